package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
	"tailrace/source"
)

// Rewinding says which rewind points are kept. The zero value: none.
type Rewinding struct {
	Every   time.Duration // a point this often, if the mark has moved
	Keep    time.Duration // older ones go
	MaxLog  int64         // bytes of log that the source may keep for them; 0: no bound
	MaxUndo int64         // bytes that the destination may keep for them; 0: no bound
}

// On reports whether points are kept.
func (r *Rewinding) On() bool { return r.Keep > 0 }

// points keeps a session's rewind points: in the destination, where the loop makes and
// drops them between two batches, and at the source, whose log has to be readable from the
// oldest on. The source is asked beside the stream, which never waits for it.
//
// The order is what makes a point worth something: the log is kept before the first point
// is made, and let go only after a point was dropped. A keep slot that was lost has lost
// the window: all points are dropped, and a new window begins at the mark.
type points struct {
	Rewinding
	log    *slog.Logger
	stats  *Stats
	dst    sink.Rewinds
	keeper source.Keeper // nil: the source keeps nothing that could be let go

	// The loop's and the walk's.
	list  []checkpoint.Point // that can be gone back to, oldest first
	moved bool               // something was written since the newest
	due   atomic.Int64       // when to look again, ns; set to 0 from beside

	asking sync.Mutex // one at a time asks the source
	held   change.Position
	heldAt time.Time     // when it was last told so
	oldest Gauge         // from where on the log is to be readable; zero: no point is there
	wake   chan struct{} // that has changed
	kept   atomic.Pointer[measure]
}

// measure is what the source was found to keep.
type measure struct {
	source.Kept
	asked change.Position // of Keep, by then
}

const (
	// pointsLook is how often the loop looks at what is kept: a few queries, beside bounds
	// of gigabytes and hours.
	pointsLook = time.Minute
	// keptEvery is how often the source is asked. A PostgreSQL server moves what a slot
	// keeps only with its records of running transactions, every 15 s: what it says sooner
	// after a point was dropped would cost another point.
	keptEvery = 20 * time.Second
	// keepEvery is how often the source is told again what to keep, though it is the same: a
	// slot that nobody uses for long may be dropped by the server.
	keepEvery = time.Minute
	// replaceAfter is how old the only point must be before it is replaced because too much
	// is kept for it: what holds the log back is perhaps not the point.
	replaceAfter = time.Minute
)

// openPoints prepares the points of a walk. anew: all targets were just made anew.
func (s *session) openPoints(work context.Context, anew bool) error {
	dst, keeps := s.dst.(sink.Rewinds)
	if !s.Rewind.On() && !keeps {
		return nil
	}
	if !keeps {
		return fault.Badly("this destination keeps no rewind points: take `rewind` out of the configuration")
	}
	p := s.points
	if p == nil {
		p = &points{Rewinding: s.Rewind, log: s.Log, stats: s.Stats, dst: dst, wake: make(chan struct{}, 1), moved: true}
		if keeper, ok := s.src.(source.Keeper); ok && !s.keepless {
			p.keeper = keeper
		}
	}
	if err := p.read(work); err != nil {
		return err
	}
	if !s.Rewind.On() {
		return p.off(work)
	}
	if anew {
		if err := p.dropAll(work, "all targets were copied again"); err != nil {
			return err
		}
	}
	if err := p.open(work, &s.mark); err != nil {
		return err
	}
	if s.points == nil {
		s.points = p
		if p.keeper != nil {
			s.copies.group.Go(func() error { return p.keepAlways(s.copies.life, s.hold) })
		}
	}
	return nil
}

// read reads the points that can be gone back to.
func (p *points) read(ctx context.Context) error {
	all, err := p.dst.Points(ctx)
	if err != nil {
		return fmt.Errorf("read the rewind points: %w", err)
	}
	undo := int64(0)
	for _, point := range all {
		undo += point.Bytes
	}
	p.list = slices.DeleteFunc(all, func(point checkpoint.Point) bool { return point.Gone })
	p.oldest.Set(change.Position{})
	p.stats.Points.Store(int64(len(p.list)))
	p.stats.Undo.Store(undo)
	p.stats.Window.Store(0)
	if len(p.list) > 0 {
		p.stats.Window.Store(timeOf(&p.list[0]).UnixNano())
		p.oldest.Set(p.list[0].Mark.Position)
	}
	return nil
}

// timeOf is the newest commit that a point holds; of one that has seen none, when it was made.
func timeOf(p *checkpoint.Point) time.Time {
	if p.Mark.CommitTime.IsZero() {
		return p.Made
	}
	return p.Mark.CommitTime
}

// off drops what an earlier configuration kept.
func (p *points) off(ctx context.Context) error {
	n := len(p.list)
	if err := p.dropAll(ctx, "rewind is not configured any more"); err != nil {
		return err
	}
	if p.keeper == nil {
		return nil
	}
	kept, err := p.keeper.Kept(ctx)
	if err != nil {
		return fmt.Errorf("ask what the source keeps for rewind points: %w", err)
	}
	if kept.Name == "" || !kept.Exists && n == 0 {
		return nil
	}
	if err := p.keeper.Unkeep(ctx); err != nil {
		return fmt.Errorf("let the source forget what it kept for rewind points: %w", err)
	}
	p.log.Warn("the source keeps no log for rewind points any more", "slot", kept.Name)
	return nil
}

// open drops the points whose log is gone, has the source keep what is behind the others,
// and makes the first point where there is none.
func (p *points) open(ctx context.Context, mark *checkpoint.Mark) error {
	p.asking.Lock()
	defer p.asking.Unlock()
	if p.keeper != nil {
		kept, err := p.keeper.Kept(ctx)
		if err != nil {
			return fmt.Errorf("ask what the source keeps for rewind points: %w", err)
		}
		if err := p.dropUnreadable(ctx, kept, mark); err != nil {
			return err
		}
		if kept.Lost && kept.Name != "" {
			if err := p.keeper.Unkeep(ctx); err != nil {
				return fmt.Errorf("drop the keep slot that has lost its log: %w", err)
			}
		}
		if len(p.list) == 0 {
			if err := p.keep(ctx, mark.Position); err != nil {
				return err
			}
			fault.KillPoint("log kept")
		}
	}
	p.due.Store(0)
	p.moved = true // by what was done between two walks, as far as anybody knows
	signal(p.wake)
	if slices.ContainsFunc(mark.Tables, func(t checkpoint.Table) bool { return t.Catches() }) ||
		!slices.ContainsFunc(mark.Tables, func(t checkpoint.Table) bool { return t.Phase == checkpoint.Live }) {
		return nil // the loop makes the first when all have reached the mark
	}
	return p.first(ctx)
}

// first makes the first point: none before all targets are live, which could restore nothing.
func (p *points) first(ctx context.Context) error {
	if len(p.list) > 0 {
		return nil
	}
	_, err := p.make(ctx, "")
	return err
}

// dropUnreadable drops the points behind which the log cannot be read.
func (p *points) dropUnreadable(ctx context.Context, kept source.Kept, mark *checkpoint.Mark) error {
	gone, why := 0, ""
	for i := range p.list {
		if lost := Unreadable(&p.list[i], &kept, mark); lost != "" {
			gone, why = i+1, lost
		}
	}
	if gone > 0 {
		p.log.Error("rewind points are lost, and a new window begins", "points", gone, "reason", why)
	}
	return p.drop(ctx, gone, why)
}

// Unreadable says why a replay from a point is not possible; empty: it is. kept is nil where
// the source keeps nothing that it could lose.
func Unreadable(p *checkpoint.Point, kept *source.Kept, mark *checkpoint.Mark) string {
	switch {
	case p.Mark.Source != mark.Source:
		return "it was made on another server"
	case kept == nil:
		return ""
	case !kept.Exists:
		return "the source does not keep the log behind it: keep slot " + kept.Name + " is missing"
	case kept.Lost && kept.Name != "":
		return "keep slot " + kept.Name + " has lost its log: " + kept.Why
	case p.Mark.Position.Before(kept.From):
		return fmt.Sprintf("the source's log begins at %s, behind it", kept.From)
	}
	return ""
}

func (p *points) dropAll(ctx context.Context, why string) error {
	return p.drop(ctx, len(p.list), why)
}

// drop drops the oldest n points.
func (p *points) drop(ctx context.Context, n int, why string) error {
	if n == 0 {
		return nil
	}
	for i := range p.list[:n] {
		o := &p.list[i]
		about := []any{"number", o.Number, "position", o.Mark.Position.String(), "made", o.Made.UTC().Format(time.RFC3339), "reason", why}
		if o.Label != "" {
			about = append(about, "label", o.Label)
		}
		p.log.Warn("a rewind point is dropped", about...)
	}
	below := p.list[n-1].Number + 1
	if n < len(p.list) {
		below = p.list[n].Number
	} else if all, err := p.dst.Points(ctx); err != nil {
		return fmt.Errorf("read the rewind points: %w", err)
	} else if len(all) > 0 {
		below = all[len(all)-1].Number + 1 // also those that were rewound over
	}
	if err := p.dst.DropPoints(ctx, below); err != nil {
		return fmt.Errorf("drop rewind points: %w", err)
	}
	fault.KillPoint("points dropped")
	return p.read(ctx)
}

// make makes a point of the mark.
func (p *points) make(ctx context.Context, label string) (checkpoint.Point, error) {
	made, err := p.dst.Point(ctx, label)
	if err != nil {
		return made, fmt.Errorf("make a rewind point: %w", err)
	}
	fault.KillPoint("point made")
	p.moved = false
	p.log.Info("rewind point", "number", made.Number, "position", made.Mark.Position.String())
	return made, p.read(ctx)
}

// between is called by the loop between two batches, before something is written.
func (p *points) between(ctx context.Context, f *follower) error {
	if len(p.list) == 0 && len(f.byTgt) > 0 && !f.anyCatching() {
		if err := p.first(ctx); err != nil {
			return err
		}
	}
	if now := time.Now(); len(p.list) > 0 && now.UnixNano() >= p.due.Load() {
		if err := p.look(ctx, f.applied, now); err != nil {
			return err
		}
	}
	p.moved = true
	return nil
}

// look makes the point that is due, and drops those whose time is over.
func (p *points) look(ctx context.Context, mark change.Position, now time.Time) error {
	next := now.Add(pointsLook)
	p.due.Store(next.UnixNano())
	if err := p.read(ctx); err != nil {
		return err
	}
	if len(p.list) == 0 {
		return nil // somebody has dropped them; the next walk begins a window
	}
	newest := p.list[len(p.list)-1]
	switch at := newest.Made.Add(p.Every); {
	case at.After(now) && at.Before(next):
		p.due.Store(at.UnixNano())
	case at.After(now):
	case p.moved || newest.Mark.Position != mark:
		if _, err := p.make(ctx, ""); err != nil {
			return err
		}
		p.due.Store(min(next.UnixNano(), now.Add(p.Every).UnixNano()))
	default:
		p.due.Store(0) // what is written now moves the mark
	}
	return p.bound(ctx, now)
}

// bound drops the oldest points until the rest is within its bounds.
func (p *points) bound(ctx context.Context, now time.Time) error {
	before := p.list[0].Number
	for {
		why := p.exceeded(now)
		if why == "" {
			break
		}
		if len(p.list) == 1 {
			if now.Sub(p.list[0].Made) < replaceAfter {
				return nil
			}
			if _, err := p.make(ctx, ""); err != nil {
				return err
			}
		}
		if err := p.drop(ctx, 1, why); err != nil {
			return err
		}
	}
	if p.list[0].Number != before {
		signal(p.wake)
	}
	return nil
}

// exceeded says why the oldest point has to go; empty: it has not.
func (p *points) exceeded(now time.Time) string {
	oldest := p.list[0]
	undo := p.stats.Undo.Load()
	kept := p.kept.Load()
	switch {
	case len(p.list) > 1 && now.Sub(oldest.Made) > p.Keep:
		return fmt.Sprintf("it is older than rewind.keep (%s)", p.Keep)
	case p.MaxUndo > 0 && undo > p.MaxUndo:
		return fmt.Sprintf("%.1f MiB are kept in the destination for rewind points, above rewind.max_undo (%.1f MiB)", mib(undo), mib(p.MaxUndo))
	case p.MaxLog > 0 && kept != nil && kept.asked == oldest.Mark.Position && kept.Bytes > p.MaxLog:
		return fmt.Sprintf("the source keeps %.1f MiB of log for rewind points, above rewind.max_wal (%.1f MiB)", mib(kept.Bytes), mib(p.MaxLog))
	}
	return ""
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// keepAlways tells the source what to keep, and asks what it does keep, until ctx ends.
func (p *points) keepAlways(ctx context.Context, hold *Hold) error {
	tick := time.NewTicker(keptEvery)
	defer tick.Stop()
	said := ""
	for {
		ask := false
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-tick.C:
			ask = true
		}
		lost, err := p.keepNow(ctx, ask)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != said: // the stream goes on without
			said = err.Error()
			p.log.Warn("what the source keeps for rewind points could not be looked after; it is tried again", "error", said)
		case err == nil:
			said = ""
		}
		if lost {
			// The walk behind it drops the points and begins a new window.
			if err := hold.errand(ctx, func(_, _ context.Context, _ *session) error { return nil }); err != nil && ctx.Err() == nil {
				p.log.Debug("a lost window waits", "error", err.Error())
			}
		}
	}
}

// keepNow has the source keep from the oldest point on. With ask it also asks what it keeps;
// lost: some point's log is gone.
func (p *points) keepNow(ctx context.Context, ask bool) (lost bool, err error) {
	p.asking.Lock()
	defer p.asking.Unlock()
	oldest := p.oldest.Get()
	if ask {
		kept, err := p.keeper.Kept(ctx)
		if err != nil {
			return false, fmt.Errorf("ask what the source keeps: %w", err)
		}
		if !kept.Exists || kept.Lost && kept.Name != "" || !oldest.IsZero() && oldest.Before(kept.From) {
			return true, nil
		}
		m := &measure{kept, p.held}
		p.kept.Store(m)
		p.stats.KeptLog.Store(kept.Bytes)
		if p.MaxLog > 0 && kept.Bytes > p.MaxLog {
			p.due.Store(0)
		}
	}
	if !oldest.IsZero() && (p.held != oldest || time.Since(p.heldAt) >= keepEvery) {
		err = p.keep(ctx, oldest)
	}
	return false, err
}

// keep has the source keep from at on; asking is locked.
func (p *points) keep(ctx context.Context, at change.Position) error {
	if err := p.keeper.Keep(ctx, at); err != nil {
		return fmt.Errorf("have the source keep its log from %s: %w", at, err)
	}
	p.held, p.heldAt = at, time.Now()
	return nil
}

// settle tells the source before a run ends that is no daemon, which else would end
// before it has.
func (p *points) settle(ctx context.Context, most time.Duration) {
	if p == nil || p.keeper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if _, err := p.keepNow(ctx, false); err != nil {
		p.log.Warn("what the source keeps for rewind points could not be looked after; the next run does it", "error", err.Error())
	}
}

// Checkpoint makes a rewind point now, in a pipeline that this process owns meanwhile.
func Checkpoint(ctx context.Context, c Config, label string) (point checkpoint.Point, err error) {
	err = Run(ctx, c, Mode{errand: func(_, work context.Context, s *session) error {
		point, err = s.checkpoint(work, label)
		return err
	}})
	return point, err
}

// Checkpoint has the running pipeline do what the function of this name does.
func (h *Hold) Checkpoint(ctx context.Context, label string) (point checkpoint.Point, err error) {
	err = h.errand(ctx, func(_, work context.Context, s *session) error {
		point, err = s.checkpoint(work, label)
		return err
	})
	return point, err
}

// checkpoint makes a point; asked twice, it is the same one.
func (s *session) checkpoint(ctx context.Context, label string) (checkpoint.Point, error) {
	p := s.points
	if p == nil {
		return checkpoint.Point{}, fault.Refuse("set `rewind: {keep: 24h}` and start the daemon again", "rewind points are not kept: `rewind` is not configured")
	}
	if n := len(p.list); n > 0 && p.list[n-1].Label == label && p.list[n-1].Mark.Position == s.mark.Position {
		undo, err := p.dst.Undo(ctx, p.list[n-1].Number)
		if err != nil {
			return checkpoint.Point{}, fmt.Errorf("look at rewind point %d: %w", p.list[n-1].Number, err)
		}
		if len(undo) == 0 {
			return p.list[n-1], nil
		}
	}
	return p.make(ctx, label)
}
