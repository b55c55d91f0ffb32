package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// Hold is the pause of a running pipeline. The destination remembers whether there is
// one; a session obeys it: the batch is finished, marked and confirmed, reading ends,
// and slot, heartbeat and ownership stay. What a pause leaves unread the source keeps.
//
// The session looks at the destination at its start and with each heartbeat; whoever
// changes the pause on the way tells it with Set, which only makes it faster.
type Hold struct {
	mu      sync.Mutex
	pause   sink.Pause
	resting bool
	errands []*errand     // asked for and not begun, in the order of asking
	changed chan struct{} // closed at the next change
	moments *moments      // nil: there is no trigger
}

func newHold() *Hold { return &Hold{changed: make(chan struct{})} }

// Set makes p the pause that is obeyed.
func (h *Hold) Set(p sink.Pause) { h.change(func() { h.pause = p }) }

func (h *Hold) change(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fn()
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Hold) look() (p sink.Pause, resting bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pause, h.resting, h.changed
}

// Rested waits until the pipeline rests; false: the pause has ended instead.
func (h *Hold) Rested(ctx context.Context) (bool, error) {
	for {
		p, resting, changed := h.look()
		if p.IsZero() || resting {
			return !p.IsZero(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// until gives a context that ends with ctx, or when a pause begins or an errand waits.
func (h *Hold) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			p, _, changed := h.look()
			if !p.IsZero() || h.waits() {
				cancel()
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

var (
	// errPaused ends a walk because of a pause or an errand; never leaves the session.
	errPaused = errors.New("paused")
	// errAnew ends a session that another one follows at once.
	errAnew = errors.New("a transaction is open in the destination; it begins anew")
)

// walks walks again after each pause and errand: by then the catalogue, the slot and the flows'
// tables may be others.
func (s *session) walks(stop, work context.Context) (err error) {
	if s.moments != nil {
		defer func() { // a run that is stopped while it is paused ends too
			if stop.Err() != nil {
				err = s.ranTo(stop, work, err)
			}
		}()
	}
	for {
		if err := s.rest(stop, work); err != nil || stop.Err() != nil {
			return err
		}
		if s.moments != nil {
			if err := s.awaitMoment(stop, work); errors.Is(err, errPaused) {
				continue
			} else if err != nil || stop.Err() != nil {
				return err
			}
		}
		err := s.walk(stop, work)
		if s.moments != nil {
			if err = s.ranTo(stop, work, err); err == nil && stop.Err() == nil && !s.moments.once {
				continue
			}
		}
		if !errors.Is(err, errPaused) {
			return err
		}
		if s.halfway {
			return errAnew // its first pieces are taken back with the session
		}
		s.mode.Overwrite, s.mode.Tables, s.again = len(s.again) > 0, s.again, nil // the rest is done
	}
}

// rest waits for the end of a pause, if there is one. A run that is not the daemon does
// not wait.
func (s *session) rest(stop, work context.Context) error {
	if err := s.lookAtPause(work); err != nil {
		return err
	}
	p, _, _ := s.hold.look()
	if p.IsZero() {
		return nil
	}
	if s.Attend == nil {
		return fault.Refuse("`tailrace resume`, when it may go on", "pipeline %s is paused since %s, by %s", s.Name, p.Since.Local().Format(time.RFC3339), p.By)
	}
	s.copies.end(fault.Refuse("tailrace resume, then ask again", "the pipeline was paused meanwhile, by %s", p.By))
	s.Log.Warn("paused: nothing is read or written before `tailrace resume`; the source keeps its log meanwhile", "since", p.Since.Local().Format(time.RFC3339), "by", p.By)
	s.hold.change(func() { s.hold.resting = true })
	defer s.hold.change(func() { s.hold.resting = false })
	s.rested = true
	s.Stats.Paused.Store(true)
	defer s.Stats.Paused.Store(false)
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	for {
		p, _, changed := s.hold.look()
		if p.IsZero() {
			s.Log.Info("resumed")
			return nil
		}
		select {
		case <-changed:
		case <-watch.C:
			s.guard(work)
			if state, err := s.src.State(work); err == nil { // else it is away, and the walk after the pause says so
				if err := s.retained(state, time.Now()); err != nil {
					return err
				}
			}
		case <-stop.Done():
			return nil
		case <-work.Done():
			return work.Err()
		}
	}
}

// guard keeps an application's statements from failing because of our publication: a
// pause is no reason. The walk after it parks what was taken out. The source may be
// away, that may be what the pause is for.
func (s *session) guard(ctx context.Context) {
	losses, err := s.src.Watch(ctx)
	if err != nil {
		s.Log.Debug("the source's catalogue cannot be looked at while paused", "error", err.Error())
	}
	for _, l := range losses {
		s.Log.Error("a table has lost its identity while paused", "table", l.Table.String(), "reason", l.Reason, "remedy", l.Remedy)
	}
}

// lookAtPause obeys what the destination remembers.
func (s *session) lookAtPause(ctx context.Context) error {
	book, ok := s.dst.(sink.Pauses)
	if !ok {
		return nil
	}
	p, err := book.Paused(ctx)
	if err != nil {
		return fmt.Errorf("read whether the pipeline is paused: %w", err)
	}
	if old, _, _ := s.hold.look(); p != old {
		s.hold.Set(p)
	}
	return nil
}
