package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/source"
)

// copier copies tables beside the stream, so that nobody waits for a table of hours.
//
// It reads a snapshot at a position S into stages, one for each target, and then
// follows the log from S on, which the snapshot's own temporary slot or the server keeps,
// with a follower as the stream's: a stage is an ordinary target of type 1. Meanwhile the
// stream goes on from where it is. A live target goes on receiving its changes; those of
// one that is new or parked are dropped, since the copier reads them too.
//
// When the two are close to each other they meet, which is short: the stream is left at
// its mark M. The copier goes on to exactly M, or, if it is beyond M, stops where it is
// and the stream goes on to there. So there is one position P at which the mark stands
// and at which the stages hold the source's rows, and each target is made equal to its
// stage in one transaction: at every mark it is either as it was, or equal to the source.
//
// Nothing of it is remembered. Its slot goes with its session, its stages are dropped when
// it fails and at the next start, and it begins again.
type copier struct {
	main   *session
	stages sink.Resyncs // the destination's
	tables []Bound      // as they were bound when it began
	added  bool         // their targets are new: the stream writes none of them
	binary bool         // likewise
	shown  hydrate.Progress
	began  time.Time
	cancel context.CancelCauseFunc
	ended  atomic.Bool // by a pause: tables that are new begin again after it
	over   time.Time   // since when the source keeps too much for it; the stream's watch alone

	clock    time.Time // of the source, just before the snapshot
	rows     map[change.Name]int64
	noter    sink.Noter // nil: there is none
	ahead    map[change.Name]sink.Replaced
	own      *session   // of its stream
	staged   *staging   // its destination
	followed chan error // what ended that

	done    chan struct{}
	err     error      // once done
	results []Resynced // once done, if err is nil
}

// copies is the place of a session's copier: there is one at a time.
type copies struct {
	life  context.Context // ends with the session
	group *errgroup.Group
	again time.Duration // how long the last copy of added tables waited to begin again; 0: it went well

	mu  sync.Mutex
	now *copier
}

const (
	// A copier is close to the stream if less log lies between them than a batch takes,
	// or if each has come to where the other was a second ago.
	closeBytes = 1 << 20
	closeFor   = time.Second
	closeLook  = 100 * time.Millisecond

	// meetMost is how long the stream waits for a copier that is close. If a transaction
	// that takes longer lies between them, the copy begins again.
	meetMost = time.Minute

	// sayBehind is how often it is said how far a copier is behind.
	sayBehind = time.Minute
)

// open lets copiers run in g until stop, the end of work, or the returned call.
func (c *copies) open(g *errgroup.Group, stop, work context.Context) (end func()) {
	life, cancel := context.WithCancel(work)
	undo := context.AfterFunc(stop, cancel)
	c.life, c.group = life, g
	return func() {
		undo()
		cancel()
	}
}

// running is the copier at work; nil if none is.
func (c *copies) running() *copier {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *copies) set(now *copier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// holds reports whether a target is being copied beside the stream.
func (c *copies) holds(target change.Name) bool {
	now := c.running()
	return now != nil && slices.ContainsFunc(now.tables, func(b Bound) bool { return b.Target.Name == target })
}

// end ends the copier at work, if there is one, because of a pause, and waits for it.
func (c *copies) end(cause error) {
	if now := c.running(); now != nil {
		now.ended.Store(true)
		now.cancel(cause)
		<-now.done
	}
}

// copiesBeside reports whether copies run beside the stream: in a daemon, where source
// and destination know how.
func (s *session) copiesBeside() bool {
	_, stages := s.dst.(sink.Resyncs)
	_, trails := s.src.(source.Trailer)
	return s.Attend != nil && s.moments == nil && stages && trails // where a trigger is, the stream rests by itself
}

// copyBeside begins to copy tables that are published and whose targets are there. No
// other copier runs. then, if not nil, follows in its goroutine when it has ended.
func (s *session) copyBeside(tables []Bound, shown hydrate.Progress, then func(context.Context, *copier)) *copier {
	ctx, cancel := context.WithCancelCause(s.copies.life)
	c := &copier{main: s, tables: tables, added: then != nil, binary: s.binary, shown: shown, began: time.Now(), cancel: cancel,
		rows: map[change.Name]int64{}, ahead: map[change.Name]sink.Replaced{}, followed: make(chan error, 1), done: make(chan struct{})}
	c.stages, _ = s.dst.(sink.Resyncs)
	s.copies.set(c)
	s.copies.group.Go(func() error {
		defer cancel(nil)
		c.err = c.run(ctx)
		s.copies.set(nil)
		close(c.done)
		if then != nil {
			then(s.copies.life, c)
		}
		return nil // whoever waits for the copy is told; the stream goes on
	})
	return c
}

// names lists the targets.
func (c *copier) names() string {
	var names []string
	for _, b := range c.tables {
		names = append(names, b.Target.Name.String())
	}
	return strings.Join(names, ", ")
}

func (c *copier) run(ctx context.Context) error {
	err := c.copy(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	c.main.close("stages of a copy", c.stages.Unstage)
	return err
}

func (c *copier) copy(ctx context.Context) error {
	src, err := c.main.OpenSource(ctx)
	if err != nil {
		return fmt.Errorf("open the source: %w", err)
	}
	defer c.main.close("source of a copy", src.Close)
	c.main.markMu.Lock()
	Locate(src, c.main.mark)
	c.main.markMu.Unlock()
	trailer, ok := src.(source.Trailer)
	if !ok {
		return fault.Corrupted("the source cannot be copied from beside its stream")
	}
	var names []change.Name
	for _, b := range c.tables {
		names = append(names, b.Relation.Table.Name)
	}
	trail, err := trailer.Trail(ctx, names)
	if err != nil {
		return fmt.Errorf("take a snapshot of the source: %w", err)
	}
	defer c.main.close("snapshot of a copy", trail.Close)
	c.clock = trail.Clock()
	stager, err := c.stages.Stager()
	if err != nil {
		return fmt.Errorf("prepare the stages: %w", err)
	}
	defer stager.Close(context.WithoutCancel(ctx))
	c.main.Log.Info("copying beside the stream", "tables", c.names(), "position", trail.Position().String())
	if err := c.fill(ctx, trail, stager); err != nil {
		return err
	}
	fault.KillPoint("stage filled")
	following, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		<-c.followed
	}()
	c.own = c.stream(src, trail, stager)
	go func() {
		c.followed <- c.own.follow(following, following, stretch{exact: true})
		close(c.followed)
	}()
	if err := c.approach(ctx); err != nil {
		return err
	}
	if noter, ok := stager.(sink.Noter); ok {
		if err := c.narrow(ctx, noter); err != nil {
			return err
		}
		c.noter = noter
		if err := c.approach(ctx); err != nil {
			return err
		}
	}
	fault.KillPoint("stage followed")
	return c.main.hold.errand(ctx, c.meet)
}

// fill copies the tables into their stages.
func (c *copier) fill(ctx context.Context, trail source.Trail, stager sink.Stager) error {
	tables := make([]hydrate.Table, len(c.tables))
	var mu sync.Mutex
	for i := range c.tables {
		b := &c.tables[i]
		req := source.CopyRequest{Table: b.Relation.Table, Binary: c.binary}
		for _, col := range b.Target.Columns {
			req.Columns = append(req.Columns, col.Name)
		}
		tables[i] = hydrate.Table{
			Name: b.Target.Name.String(), Rows: b.Relation.Rows, Bytes: b.Relation.Size,
			Read: func(ctx context.Context, w io.Writer) (int64, error) {
				rows, err := c.main.copy(ctx, trail, req, w)
				return rows, parkedByFault(b.Target.Name, err)
			},
			Load: func(ctx context.Context, r io.Reader) (int64, error) {
				rows, err := stager.Fill(ctx, b.Target, sink.Copy{Binary: c.binary, Rows: r})
				mu.Lock()
				defer mu.Unlock()
				c.rows[b.Target.Name] = rows
				return rows, parkedByFault(b.Target.Name, err)
			},
		}
	}
	return hydrate.Run(ctx, tables, c.main.Workers, c.shown)
}

// parkedByFault makes of what an operator must mend at a target one that parks it.
func parkedByFault(target change.Name, err error) error {
	var p *parking
	if err == nil || errors.As(err, &p) || fault.KindOf(err) != fault.Operator {
		return err
	}
	return parkedFor(target, err)
}

// stream makes the session whose follower applies the log to the stages.
func (c *copier) stream(src source.Source, trail source.Trail, stager sink.Stager) *session {
	c.staged = &staging{Writer: c.main.dst, stager: stager, resume: resumeOf(trail)}
	c.staged.applied.Set(trail.Position())
	own := &session{Config: c.main.Config, hold: newHold(), said: map[string]bool{}, binary: c.binary, meeting: newMeeting(),
		src: trailing{src, trail}, dst: c.staged, mark: checkpoint.Mark{Position: trail.Position(), Resume: c.staged.resume}}
	own.Stats, own.Retention, own.Log = &Stats{}, Retention{}, c.main.Log.With("beside", "the stream")
	for _, b := range c.tables {
		b.Target = sink.StageTarget(b.Target)
		own.bound = append(own.bound, b)
		own.mark.Tables = append(own.mark.Tables, checkpoint.Table{Target: b.Target.Name, Source: b.Relation.Table.Name, ID: b.Relation.Table.ID, Phase: checkpoint.Live, Since: trail.Position()})
	}
	own.Stats.Applied.Set(trail.Position())
	return own
}

// approach waits until the copier is close to the stream.
func (c *copier) approach(ctx context.Context) error {
	said := time.Now()
	type places struct{ mine, main change.Position }
	var past []places // of the last second, the oldest first
	for {
		now := places{c.own.Stats.Applied.Get(), c.main.Stats.Applied.Get()}
		past = append(past, now)
		if len(past) > int(closeFor/closeLook) {
			then := past[0]
			past = past[1:]
			if !now.mine.Before(then.main) && !now.main.Before(then.mine) {
				return nil
			}
		}
		apart := int64(now.main.Offset) - int64(now.mine.Offset)
		if now.main.File == now.mine.File && max(apart, -apart) <= closeBytes {
			return nil
		}
		if time.Since(said) >= sayBehind {
			said = time.Now()
			c.main.Log.Info("the copy beside the stream is following the log", "tables", c.names(), "position", now.mine.String(), "stream", now.main.String())
		}
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
}

// narrow leaves to the meeting only the keys that changes have touched by then, and those
// that differed shortly before: to compare two tables, or to fill one, takes long. It is
// done beside the stream: of live and parked targets a comparison, and new ones are
// filled ahead. A new history is not, because its first versions begin where it meets
// the stream.
func (c *copier) narrow(ctx context.Context, noter sink.Noter) error {
	from := c.own.mark.Position
	for i := range c.tables {
		for noted := false; !noted; {
			at, ok, err := noter.Note(ctx, c.tables[i].Target)
			if err != nil {
				return err
			}
			if noted = ok; !ok {
				if err := c.wait(ctx); err != nil {
					return err
				}
			}
			if from.Before(at) {
				from = at
			}
		}
	}
	for !c.added && c.main.Stats.Applied.Get().Before(from) { // what is older must be in the targets: it is not noted
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
	for i := range c.tables {
		var err error
		switch t := c.tables[i].Target; {
		case !c.added:
			err = noter.Compare(ctx, t)
		case t.Kind == scd.Type1:
			c.ahead[t.Name], err = c.stages.Replace(ctx, t, sink.Replacement{Ahead: true})
		}
		if err != nil {
			return parkedByFault(c.tables[i].Target.Name, err)
		}
	}
	return nil
}

// wait is a short wait for the copier's stream or the other.
func (c *copier) wait(ctx context.Context) error {
	select {
	case err := <-c.followed:
		if err == nil {
			err = errors.New("the stream of the copy ended")
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(closeLook):
		return nil
	}
}

// meet is the errand that brings stages and mark to one position and replaces the
// targets.
func (c *copier) meet(stop, work context.Context, s *session) error {
	waited := time.Now()
	c.own.meeting.ask(s.mark.Position)
	limit := time.NewTimer(meetMost)
	defer limit.Stop()
	select {
	case err := <-c.followed:
		if err != nil {
			return err
		}
	case <-limit.C:
		return fault.Retry(nil, "the copy of %s did not come to where the stream is within %s: a long transaction lies between them", c.names(), meetMost)
	case <-stop.Done():
		return stop.Err()
	case <-work.Done():
		return work.Err()
	}
	at := c.own.Stats.Applied.Get()
	if at.Before(s.mark.Position) {
		return fault.Retry(nil, "the stream of the copy ended at %s, before the mark at %s", at, s.mark.Position)
	}
	if err := s.cut(stop, work, stretch{position: at, resume: c.staged.resume}); err != nil {
		return err
	}
	for i := range c.tables {
		if err := c.replace(work, s, &c.tables[i], waited); err != nil {
			return parkedByFault(c.tables[i].Target.Name, err)
		}
	}
	fault.KillPoint("resync done")
	return nil
}

// replace makes one target equal to its stage at the mark.
func (c *copier) replace(work context.Context, s *session, b *Bound, waited time.Time) (err error) {
	before := s.state(b.Target.Name)
	done := s.tableState(b, checkpoint.Live, s.mark.Position)
	r := Resynced{Target: b.Target.Name, Type2: b.Target.Kind == scd.Type2, Position: done.Since, Rows: c.rows[b.Target.Name], Parked: before.Phase == checkpoint.Parked}
	replacement := sink.Replacement{At: s.instant(c), Done: done}
	ahead, filled := c.ahead[b.Target.Name]
	replacement.Noted = c.noter != nil && (filled || !c.added) && c.noter.Noted(b.Target)
	switch {
	case !r.Type2 || before.Phase == checkpoint.Copying: // nothing can be missing
	case r.Parked:
		replacement.Gap = &sink.Gap{Target: b.Target.Name, From: before.Since, To: done.Since, Reason: "it was parked: " + before.Reason}
	default:
		replacement.Gap = &sink.Gap{Target: b.Target.Name, From: done.Since, To: done.Since, Reason: "it differed from the source when it was copied again while it was live"}
		replacement.Mended = true
	}
	if r.Replaced, err = c.stages.Replace(work, b.Target, replacement); err != nil {
		return err
	}
	r.Removed += ahead.Removed
	r.Written += ahead.Written
	s.remember(done)
	r.Took, r.Waited = time.Since(c.began), time.Since(waited)
	c.results = append(c.results, r)
	s.Log.Info("copied beside the stream", "target", r.Target.String(), "position", r.Position.String(), "rows", r.Rows, "removed", r.Removed, "written", r.Written,
		"seconds", fmt.Sprintf("%.1f", r.Took.Seconds()), "stream_waited_seconds", fmt.Sprintf("%.1f", r.Waited.Seconds()))
	return nil
}

// instant is when the rows of the stages were the source's, by its clock: that of the
// newest transaction they hold, as far as is known.
func (s *session) instant(c *copier) time.Time {
	at := c.clock
	for _, commit := range []time.Time{s.mark.CommitTime, c.own.Stats.LastCommit()} {
		if commit.After(at) {
			at = commit
		}
	}
	return at
}
