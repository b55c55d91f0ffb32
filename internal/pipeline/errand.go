package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tailrace/internal/fault"
	"tailrace/source"
)

// errand is what is done for somebody while the stream stands at a place: the batch is
// finished, marked and confirmed, then the errand runs, then the pipeline walks again.
// What it fails with is for who asked; the pipeline goes on, unless the stream itself
// broke (session.broken).
type errand struct {
	do    func(stop, work context.Context, s *session) error
	begun bool          // guarded by Hold.mu
	done  chan struct{} // closed when err is what came of it
	err   error
}

// errand has fn done and waits for it. Before it has begun, the end of ctx takes it
// back; a pause refuses it.
func (h *Hold) errand(ctx context.Context, fn func(stop, work context.Context, s *session) error) error {
	e := &errand{do: fn, done: make(chan struct{})}
	h.change(func() { h.errands = append(h.errands, e) })
	for {
		p, _, changed := h.look()
		if (ctx.Err() != nil || !p.IsZero()) && h.withdraw(e) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fault.Refuse("tailrace resume, then ask again", "the pipeline is paused since %s, by %s", p.Since.Local().Format(time.RFC3339), p.By)
		}
		left := ctx.Done()
		if ctx.Err() != nil {
			left = nil // it has begun: its own context ends it
		}
		select {
		case <-e.done:
			return e.err
		case <-changed:
		case <-left:
		}
	}
}

// withdraw takes back an errand that has not begun.
func (h *Hold) withdraw(e *errand) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errands = slices.DeleteFunc(h.errands, func(o *errand) bool { return o == e })
	return !e.begun
}

// waits reports whether an errand waits.
func (h *Hold) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.errands) > 0
}

// next takes the next errand.
func (h *Hold) next() *errand {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.errands) == 0 {
		return nil
	}
	e := h.errands[0]
	h.errands = h.errands[1:]
	e.begun = true
	return e
}

// errands carries out the next errand that waits, if there is one; after it the pipeline walks
// again, because the mark has moved.
func (s *session) errands(stop, work context.Context) (ran bool, err error) {
	e := s.hold.next()
	if e == nil {
		return false, nil
	}
	e.err = e.do(stop, work, s)
	if stop.Err() != nil && errors.Is(e.err, stop.Err()) {
		e.err = fault.Retry(nil, "the pipeline was stopped meanwhile")
	}
	close(e.done)
	if s.broken != nil {
		select {
		case <-time.After(answerMost):
		case <-stop.Done():
		}
	}
	return true, s.broken
}

// answerMost is how long a session that an errand has broken stays, so that who asked
// hears why: many times what an answer takes.
const answerMost = time.Second

// snapshotMost is how long an errand waits for a snapshot of the source, which waits for
// all transactions that are open there: meanwhile nothing is applied.
const snapshotMost = 15 * time.Second

// snapshotFor takes a snapshot for an errand.
func (s *session) snapshotFor(work context.Context) (source.Snapshot, error) {
	ctx, cancel := context.WithTimeout(work, snapshotMost)
	defer cancel()
	snap, err := s.src.Snapshot(ctx)
	if err != nil && ctx.Err() != nil && work.Err() == nil {
		return nil, fault.Retry(nil, "no snapshot of the source within %s: transactions are open there for longer (the log names them)", snapshotMost)
	}
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of the source: %w", err)
	}
	return snap, nil
}

// cut moves the mark exactly to a position.
func (s *session) cut(stop, work context.Context, at stretch) error {
	if !s.mark.Position.Before(at.position) {
		return nil
	}
	at.exact = true
	if s.broken = s.follow(stop, work, at); s.broken != nil {
		return s.broken
	}
	if stop.Err() != nil {
		return stop.Err()
	}
	mark, err := s.dst.State(work)
	if err != nil {
		return fmt.Errorf("read the mark: %w", err)
	}
	s.mark = mark
	if mark.Position != at.position {
		return fault.Corrupted("the mark is to stand at %s and stands at %s", at.position, mark.Position)
	}
	return nil
}
