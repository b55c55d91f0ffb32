package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// pollEvery is how often the daemon looks for requests that are rows: with the
// heartbeat's beat, which costs the destination about as much.
const pollEvery = 2 * time.Second

// Poll answers at the desk what is asked in rows, until ctx ends, and returns when
// nothing of it runs any more. It fails where the pipeline was taken over or the rows
// cannot be read.
func Poll(ctx context.Context, book sink.Requests, d *Desk, log *slog.Logger) error {
	again := func(kind string) bool {
		k, known := d.kind(kind)
		return known && k.Again
	}
	if err := briefly(ctx, func(ctx context.Context) error { return book.Unfinished(ctx, again) }); err != nil {
		return unlessEnded(ctx, fmt.Errorf("settle earlier requests: %w", err))
	}
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		var list []sink.Request
		err := briefly(ctx, func(ctx context.Context) (err error) { list, err = book.Take(ctx); return err })
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("look for requests: %w", err))
		}
		for _, r := range list {
			log.Debug("request", "kind", r.Kind, "id", r.ID, "by", r.By)
			asked := Request{ID: strconv.FormatInt(r.ID, 10), Kind: r.Kind, Argument: r.Argument, By: r.By, At: r.At}
			begun := d.begin(ctx, asked)
			running.Add(1)
			go func() {
				defer running.Done()
				text, err := "", begun
				if err == nil {
					var l latest
					asked.Report = l.set
					stop := l.carry(ctx, func(ctx context.Context, text string) error {
						return briefly(ctx, func(ctx context.Context) error { return book.Report(ctx, r.ID, text) })
					})
					text, err = d.do(ctx, asked, noRows)
					stop()
				}
				if ctx.Err() != nil {
					return // taken and not finished: the next one decides
				}
				if err := briefly(ctx, func(ctx context.Context) error { return book.Finish(ctx, r.ID, answer(text, err)) }); err != nil && ctx.Err() == nil {
					log.Warn("the outcome of a request could not be written", "kind", r.Kind, "id", r.ID, "error", err.Error())
				}
			}()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// briefly runs fn to its end although ctx ends, since breaking a statement off costs
// the session on which ownership is given up; but not for longer than bookMost.
func briefly(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bookMost)
	defer cancel()
	return fn(ctx)
}

const bookMost = 10 * time.Second

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func noRows([]*string) error { return errors.New("a request that is a row has no table as its answer") }

// waitStep is how often an asker looks for the answer: it may take the daemon
// pollEvery to see the request.
const waitStep = 200 * time.Millisecond

const (
	// livingEvery is how often an asker looks whether anybody owns the pipeline still.
	livingEvery = 5 * time.Second
	// nobodyMost is how long it waits for a next owner: longer than the restart of a
	// service, beside the 15 s after which a heartbeat counts as stale.
	nobodyMost = time.Minute
)

// AskByRow asks the owner of a pipeline by a row, and waits for its answer. It returns
// an error that wraps ErrNobody, and leaves no request behind, if nobody owns the
// pipeline. After wait it takes the request back if nobody has taken it. The end of
// ctx leaves: the request stays. What the owner reports meanwhile goes to r.Report.
func AskByRow(ctx context.Context, book sink.Requests, r Request, wait time.Duration) (string, error) {
	owner, err := book.Living(ctx)
	if err != nil {
		return "", fmt.Errorf("look who owns the pipeline: %w", err)
	}
	if owner == "" {
		return "", fmt.Errorf("%w: nobody owns the pipeline", ErrNobody)
	}
	id, err := book.Ask(ctx, sink.Request{Kind: r.Kind, Argument: r.Argument, By: r.By})
	if err != nil {
		return "", fmt.Errorf("ask for %s: %w", r.Kind, err)
	}
	deadline := time.Now().Add(wait)
	looked, alive := time.Now(), time.Now()
	heard := ""
	for {
		a, err := book.AnswerTo(ctx, id)
		if err == nil && ctx.Err() == nil && (a.State == sink.Asked || a.State == sink.Taken) && time.Since(looked) >= livingEvery {
			looked = time.Now()
			var living string
			if living, err = book.Living(ctx); living != "" {
				alive = looked
			} else if err == nil && a.State == sink.Asked {
				var withdrawn bool
				if withdrawn, err = book.Withdraw(ctx, id); withdrawn {
					return "", fmt.Errorf("%w: the owner has gone", ErrNobody)
				}
			}
		}
		switch {
		case ctx.Err() != nil:
			return "", fault.Retry(ctx.Err(), "left before the answer; request %d stays, and is carried out if it can be", id)
		case err != nil:
			return "", fmt.Errorf("look for the answer to request %d: %w", id, err)
		case a.State == sink.Done, a.State == sink.Failed:
			return result(a)
		case a.State == sink.Withdrawn:
			return "", fault.Refuse("ask again", "request %d was withdrawn", id)
		}
		if r.Report != nil && a.State == sink.Taken && a.Text != heard {
			heard = a.Text
			r.Report(heard)
		}
		if time.Since(alive) > nobodyMost {
			return "", fault.Retry(ErrLost, "request %d stays, and is carried out by the next daemon if it can be", id)
		}
		if time.Now().After(deadline) {
			return "", tooLate(ctx, book, id, r.Kind, owner, wait)
		}
		select {
		case <-ctx.Done():
		case <-time.After(waitStep):
		}
	}
}

// tooLate takes a request back, or says that it is being carried out.
func tooLate(ctx context.Context, book sink.Requests, id int64, kind, owner string, wait time.Duration) error {
	withdrawn, err := book.Withdraw(ctx, id)
	switch {
	case err != nil:
		return fmt.Errorf("withdraw request %d: %w", id, err)
	case withdrawn:
		return fault.Retry(nil, "%s: the owner (%s) has not taken the request within %s; it is withdrawn. Is it a command other than `run`, or cut off from the destination?", kind, owner, wait)
	}
	return fault.Retry(nil, "%s: the owner (%s) has taken request %d and not finished it within %s; it goes on, see `tailrace status`", kind, owner, id, wait)
}
