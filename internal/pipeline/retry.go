package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/internal/fault"
)

var (
	// Pause before a retry: from 0.5 s doubling to 15 s, so that a restart of the
	// database costs about a second, and a long outage four attempts a minute.
	retryFirst = 500 * time.Millisecond
	retryLast  = 15 * time.Second

	// steady is how long a session must have stood to count as working although it had
	// nothing to write: longer than the longest pause, so that reaching both sides
	// again and again and failing each time does not.
	steady = 30 * time.Second

	// What is said of attempts: the first five after a session that stood, then one line in
	// 30 s. Sessions that are ended twice a second would fill a disk.
	sayFirst = 5
	sayEvery = 30 * time.Second
)

const (
	// A destination or source that was never reached is more likely a wrong DSN
	// than an outage: give up after 10 s so that the person sees it.
	retryNeverWorked = 10 * time.Second
)

// outage judges sessions that failed for a reason that may pass: how long to wait
// before the next, when to give up, and what is worth a line.
//
// It works while rows are written, and while a session stands. That both sides can be
// reached is not enough: a transaction that the server cannot decode, or a batch that
// the destination never takes, would be tried for ever, and nobody would hear of it.
type outage struct {
	began  time.Time // of the run
	worked time.Time // when it last worked, or both sides were first reached; zero: never
	pause  time.Duration

	failed int       // attempts since a session last stood
	saidAt time.Time // of the last line
	unsaid int       // attempts since
}

func newOutage() *outage { return &outage{began: time.Now(), pause: retryFirst} }

// after takes down how a session went.
func (o *outage) after(s *session, now time.Time) {
	stood := s.rested || !s.reached.IsZero() && now.Sub(s.reached) >= steady
	switch {
	case s.progressed || stood:
		o.worked = now
	case o.worked.IsZero() && !s.reached.IsZero():
		o.worked = s.reached
	}
	if s.progressed || stood {
		o.pause = retryFirst
	}
	if stood {
		o.failed = 0
	}
	o.failed++
}

// next is the pause before the next session, or an error: no more.
func (o *outage) next(limit time.Duration, now time.Time, err error) (time.Duration, error) {
	since := o.worked
	if since.IsZero() {
		limit, since = min(retryNeverWorked, limit), o.began
	}
	left := limit - now.Sub(since)
	if left <= 0 {
		return 0, fmt.Errorf("gave up after %s of retries: %w", now.Sub(since).Round(time.Second), err)
	}
	wait := min(o.pause, left).Round(time.Millisecond)
	o.pause = min(2*o.pause, retryLast)
	return wait, nil
}

// say logs an attempt that failed, unless it is one of too many.
func (o *outage) say(log *slog.Logger, wait time.Duration, now time.Time, err error) {
	if o.hushed(now) {
		o.unsaid++
		return
	}
	about := []any{"in", wait.String(), "error", err.Error()}
	if o.unsaid > 0 {
		about = append(about, "more_attempts_since_the_last_line", o.unsaid)
	}
	log.Warn("will try again", about...)
	o.saidAt, o.unsaid = now, 0
}

func (o *outage) hushed(now time.Time) bool {
	return o.failed > sayFirst && now.Sub(o.saidAt) < sayEvery
}

// level is that of what every session says.
func (o *outage) level() slog.Level {
	if o.failed >= sayFirst {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Run runs the pipeline until the mode's end, ctx (drains, then returns nil), or a
// fault that retrying does not mend. The error's kind decides the exit code.
func Run(ctx context.Context, c Config, m Mode) error {
	o := newOutage()
	moments := c.moments()
	overwrite := m.Overwrite
	filling := false
	var toPark []*parking
	said := map[string]bool{}
	for {
		s := &session{Config: c, mode: m, filling: &filling, toPark: &toPark, said: said, level: o.level(), hold: newHold(), moments: moments}
		s.hold.moments = moments
		s.shots.kicks = make(chan kick)
		s.mode.Overwrite = overwrite
		s.overwriteDone = func() { overwrite = false }
		err := s.run(ctx)
		if p := (*parking)(nil); errors.As(err, &p) && m.instead == nil {
			toPark = append(toPark, p)
			err = fault.Retry(err, "entering anew without target %s", p.target)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && errors.Is(err, context.Canceled):
			return nil
		case errors.Is(err, errAnew):
			continue
		case fault.KindOf(err) != fault.Transient || errors.Is(err, fault.ErrOwned):
			if moments.failed(&c, s, err) {
				o = newOutage()
				continue
			}
			moments.lastWord(&c, err)
			return err
		}
		now := time.Now()
		o.after(s, now)
		wait, gaveUp := o.next(c.RetryMax, now, err)
		if gaveUp != nil {
			if moments.failed(&c, s, gaveUp) {
				o = newOutage()
				o.worked = now // resting is no outage before it has lasted as long again
				continue
			}
			moments.lastWord(&c, gaveUp)
			return gaveUp
		}
		c.Stats.Retries.Add(1)
		c.Stats.failure.Store(&Failure{now, err})
		o.say(c.Log, wait, now, err)
		if err := c.lookAway(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// warnOnce warns of what holds for every session, in the first.
func (s *session) warnOnce(what string, about ...any) {
	if key := fmt.Sprint(what, about); !s.said[key] {
		s.said[key] = true
		s.Log.Warn(what, about...)
	}
}

// attended copies while the source is looked at: a copy has no deadline, and over a
// connection that was lost in silence it would wait for ever. The destination's
// heartbeat is the same for the other side.
func (s *session) attended(ctx context.Context, run func(context.Context) error) error {
	if s.keepless {
		return run(ctx)
	}
	g, ctx := errgroup.WithContext(ctx)
	done := make(chan struct{})
	g.Go(func() error {
		defer close(done)
		return run(ctx)
	})
	g.Go(func() error {
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			if _, err := s.src.State(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("look at the source: %w", err)
			}
		}
	})
	return g.Wait()
}
