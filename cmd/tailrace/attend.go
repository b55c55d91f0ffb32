package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/control"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/sink"
)

// The kinds of requests that a daemon takes.
const (
	kindPause      = "pause"
	kindResume     = "resume"
	kindStatus     = "status"
	kindShow       = "show"
	kindExplain    = "explain"
	kindQuarantine = "quarantine list"
	kindQuery      = "query"
	kindSnapshot   = "snapshot"
	kindResync     = "resync"
	kindVerify     = "verify"
	kindRefresh    = "refresh"
	kindApply      = "apply-event"
	kindPoints     = "checkpoint list"
	kindCheckpoint = "checkpoint create"
)

// queriesAtOnce is how many statements of people run beside the batches: each may take
// as many threads and as much memory as there is.
const queriesAtOnce = 2

// attend answers those who ask the daemon, while a session lasts.
func (e *environment) attend(ctx context.Context, dst sink.Writer, hold *pipeline.Hold) error {
	kinds := []control.Kind{resyncKind(hold), verifyKind(hold), refreshKind(hold), applyKind(hold), checkpointKind(hold), triggerKind(hold)}
	if pauses, ok := dst.(sink.Pauses); ok {
		kinds = append(kinds, pauseKinds(dst, pauses, hold)...)
	}
	if embedded, ok := dst.(sink.Embedded); ok {
		kinds = append(kinds, queryKind(embedded), snapshotKind(embedded))
		for _, q := range []question{askStatus, askShow, askExplain, askQuarantine, askPoints} {
			kinds = append(kinds, e.questionKind(q, embedded))
		}
		var also sync.WaitGroup
		defer also.Wait()
		if every := e.Destination.DuckDB.SnapshotEvery; every > 0 {
			also.Go(func() { e.snapshotEvery(ctx, dst, embedded, every) })
		}
		control.Socket{File: embedded.Path(), Spool: e.spoolFolder(embedded), Log: e.log}.Serve(ctx, control.NewDesk(kinds...))
		return nil
	}
	if book, ok := dst.(sink.Requests); ok {
		return control.Poll(ctx, book, control.NewDesk(kinds...), e.log)
	}
	<-ctx.Done()
	return nil
}

// spoolFolder is where answers wait for their readers: where the engine spills.
func (e *environment) spoolFolder(dst sink.Embedded) string {
	dir := e.Destination.DuckDB.TempDirectory
	if dir == "" {
		dir = dst.Path() + ".tmp"
	}
	if _, err := os.Stat(dir); err != nil { // there is no daemon that has made it
		dir = filepath.Dir(dst.Path())
	}
	return dir
}

// pauseKinds hold the pipeline and let it go on. What they write down is obeyed also by
// a daemon that never hears of the request.
func pauseKinds(dst sink.Writer, pauses sink.Pauses, hold *pipeline.Hold) []control.Kind {
	set := func(ctx context.Context, p sink.Pause) error {
		ctx = context.WithoutCancel(ctx) // breaking a statement off would cost the session
		if err := pauses.SetPause(ctx, p); err != nil {
			return err
		}
		p, err := pauses.Paused(ctx)
		if err == nil {
			hold.Set(p)
		}
		return err
	}
	return []control.Kind{
		{
			Name: kindPause, Again: true,
			Begin: func(ctx context.Context, r control.Request) error {
				return set(ctx, sink.Pause{Since: time.Now(), By: r.By})
			},
			Do: func(ctx context.Context, r control.Request, _ control.Rows) (string, error) {
				rests, err := hold.Rested(ctx)
				if err != nil {
					return "", err
				}
				if !rests {
					return "", fault.Refuse("ask again if it is still wanted", "somebody resumed it before it rested")
				}
				mark, err := dst.State(context.WithoutCancel(ctx))
				return fmt.Sprintf("paused at %s; `tailrace resume` lets it go on", mark.Position), err
			},
		},
		{
			Name: kindResume, Again: true,
			Begin: func(ctx context.Context, _ control.Request) error { return set(ctx, sink.Pause{}) },
			Do:    func(context.Context, control.Request, control.Rows) (string, error) { return "resumed", nil },
		},
	}
}

// mustHaveBegun refuses a pipeline that no daemon has started yet.
func (e *environment) mustHaveBegun(ctx context.Context, dst sink.Writer) error {
	mark, err := dst.State(ctx)
	if err == nil && mark.Phase == checkpoint.None {
		err = fault.Refuse("tailrace run", "pipeline %s has not been started", e.Pipeline)
	}
	return err
}

// owning runs fn with the pipeline owned by this process.
func (e *environment) owning(ctx context.Context, dst sink.Writer, fn func() (string, error)) (text string, err error) {
	if err := e.mustHaveBegun(ctx, dst); err != nil {
		return "", err
	}
	me, err := sink.ThisProcess()
	if err != nil {
		return "", err
	}
	if err := dst.Own(ctx, me, 0); err != nil {
		return "", fmt.Errorf("take ownership of pipeline %s: %w", e.Pipeline, err)
	}
	defer func() { err = errors.Join(err, dst.Close(context.WithoutCancel(ctx))) }()
	return fn()
}

// askStep is how often it is looked whether somebody answers by now.
const askStep = 100 * time.Millisecond

// askOwner asks the daemon that has the file open, or, if nobody has it, does here
// itself. A daemon that is just starting, ending or beginning anew is waited for; with
// again also for the answer no longer than wait, and it is asked again if it was gone.
func (e *environment) askOwner(ctx context.Context, dst sink.Embedded, r control.Request, wait time.Duration, again bool, rows control.Rows, here func() (string, error)) (string, error) {
	r.By, r.At = control.Me(), time.Now()
	deadline, asking := time.Now().Add(wait), ctx
	if again {
		var cancel context.CancelFunc
		asking, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	for {
		text, err := control.Ask(asking, dst.Path(), r, rows)
		if errors.Is(err, context.DeadlineExceeded) && again {
			return "", fault.Retry(nil, "%s: the daemon has taken the request and not finished it within %s (while a table is copied it does not rest); it goes on, see `tailrace status`", r.Kind, wait)
		}
		lost := again && errors.Is(err, control.ErrLost)
		if errors.Is(err, control.ErrNobody) {
			text, err = here()
			lost = errors.Is(err, fault.ErrOwned)
		}
		if !lost {
			return text, err
		}
		if time.Now().After(deadline) {
			return "", fault.Retry(err, "%s: nobody has answered within %s. Is another command than `run` at work?", r.Kind, wait)
		}
		select {
		case <-time.After(askStep):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
