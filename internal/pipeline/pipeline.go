// Package pipeline is the corridor: the order of steps from a cold start to the
// stream, the loop that applies, the drain, and the way back in after a fault.
package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/sink"
	"tailrace/source"
)

// Config is everything a pipeline needs. OpenSource, OpenFiles and OpenSink are called
// again after every fault: recovery goes through the front door.
//
// A pipeline has a source with a log, relations of files, or both: at most one log,
// because its position is the mark's. Either of the two functions may be nil.
type Config struct {
	Name          string
	Flows         []flow.Spec
	OpenSource    func(context.Context) (source.Source, error)
	OpenFiles     func(context.Context) (source.Source, error)
	OpenSink      func(context.Context) (sink.Writer, error)
	OpenVersions  func(*flow.Snapshot) (source.Versions, error) // the files of a snapshot flow
	SourceSchema  string                                        // the source's default schema, mapped to DefaultSchema
	DefaultSchema string                                        // the destination's
	Owner         checkpoint.Owner

	Workers    int           // tables, or parts of large ones, copied at once
	SplitBytes int64         // tables larger than this on disk are copied in parts of about this size; 0: none
	CopyRate   *hydrate.Rate // of all copies together; nil: as fast as it goes
	BatchRows  int           // row changes that close a batch
	BatchBytes int64         // bytes that close a batch
	QueueBytes int64         // what may wait between reading and applying
	PieceBytes int64         // a larger source transaction comes in pieces
	DrainMax   time.Duration // for finishing a batch on shutdown
	RetryMax   time.Duration // how long transient faults are retried since it last worked
	Retention  Retention     // what the source may keep for us
	Rewind     Rewinding     // which rewind points are kept
	SpoolDir   string        // where a snapshot is kept while it is compared; empty: the system's folder
	Beginning  Beginning     // of a pipeline without a mark
	WaitOwner  time.Duration // how long to wait for an owner on another host to become stale

	// Attend, if not nil, runs beside each session from the moment the pipeline is owned
	// until ctx ends, and answers those who ask; it makes the run a daemon, which rests
	// while the pipeline is paused. Without it a paused pipeline is refused.
	Attend func(ctx context.Context, dst sink.Writer, hold *Hold) error

	Trigger *Trigger // when the daemon runs; nil: it follows all the time. Of a run with Mode.Once: it is remembered

	Log      *slog.Logger
	Progress hydrate.Progress
	HowFar   func(HowFar) // hears of an errand that this process carries out for itself; nil: nobody
	Stats    *Stats
}

// Mode says how far a run goes.
type Mode struct {
	Once      bool     // stop when the mark has reached the source's position at the start
	CopyOnly  bool     // stop after the copy
	NoFollow  bool     // CopyOnly, and leave neither slot nor mark
	Overwrite bool     // targets that hold rows, and an existing mark, are replaced
	Tables    []string // CopyOnly: copy these targets again although they are there
	StopAt    *Until   // Once: stop there, if that comes first; nil: nowhere
	Replay    bool     // a pipeline that has not begun is refused

	Flow        string   // Once: snapshots are taken only for the target of this flow; empty: for all
	DeleteShare *float64 // in place of each snapshot flow's own MaxDeleteShare; nil: none

	// Of a beginning without a copy: Asked, it was asked for by a flag and not by
	// hydrate.mode; Until, the end of the backup, zero: now; Begun is told what came of it.
	Asked bool
	Until change.Position
	Begun func(Begun)

	// atSnapshot makes the run stop exactly at the position of a snapshot taken at
	// the start and hands both over, while the pipeline is still owned (verify).
	atSnapshot func(context.Context, source.Snapshot, *session) error

	// errand is carried out after the copy, in place of following.
	errand func(stop, work context.Context, s *session) error

	// refreshed is called at the end of a run that was to bring one flow up to date.
	refreshed func(s *session) error

	// instead runs in place of copying and following, with the pipeline owned and the
	// flows bound (quarantine retry). stop ends it gracefully, work at once.
	instead func(stop, work context.Context, s *session) error
}

// session is one pass through the front door: open, own, decide, copy, follow.
type session struct {
	Config
	mode          Mode
	overwriteDone func()
	toPark        *[]*parking // targets that ended the sessions before
	filling       *bool       // NoFollow: rows in the targets are of an earlier attempt of this run
	said          map[string]bool
	level         slog.Level // of what every session says
	reached       time.Time  // both sides; zero: not yet
	rested        bool       // it was paused: what could not be reached meanwhile is no outage
	progressed    bool
	hold          *Hold
	moments       *moments // nil: there is no trigger
	halfway       bool     // follow ended with a source transaction half written (pieces)
	broken        error    // what ended the stream during an errand: the session ends with it
	copies        copies   // beside the stream
	shots         shots
	points        *points  // nil: none are kept, or not yet
	again         []string // targets that the next walk makes anew
	meeting       *meeting // of such a copy's own stream: where it stops

	src    source.Source // the log; of a pipeline without one, the files
	files  source.Source // the relations of files: beside src, or src itself; nil: none
	dst    sink.Writer
	bound  []Bound
	binary bool

	keepless bool          // src are the files
	slotless bool          // the source knows nothing of us: see source.State
	taken    []change.File // those that are known

	storing sync.Mutex // for what copies set aside

	markMu sync.Mutex // guards mark and bound: the copy's workers and the loop write them
	mark   checkpoint.Mark
}

func (s *session) run(ctx context.Context) (err error) {
	if s.dst, err = s.OpenSink(ctx); err != nil {
		return fmt.Errorf("open the destination: %w", err)
	}
	defer s.close("destination", s.dst.Close)
	if s.OpenFiles != nil {
		if s.files, err = s.OpenFiles(ctx); err != nil {
			return fmt.Errorf("open the relations of files: %w", err)
		}
		defer s.close("files", s.files.Close)
	}
	s.keepless = s.OpenSource == nil
	if s.src = s.files; !s.keepless {
		if s.src, err = s.OpenSource(ctx); err != nil {
			return fmt.Errorf("open the source: %w", err)
		}
		defer s.close("source", s.src.Close)
	}
	defer func() { err = s.letGo(context.WithoutCancel(ctx), s.src, err) }()
	if err := s.dst.Own(ctx, s.Owner, s.WaitOwner); err != nil {
		return fmt.Errorf("take ownership of pipeline %s: %w", s.Name, err)
	}
	if stages, ok := s.dst.(sink.Resyncs); ok {
		if err := stages.Unstage(ctx); err != nil {
			return fmt.Errorf("look for stages that were left behind: %w", err)
		}
	}

	// From here on a stop means: finish what is running, then leave. So the work has
	// a context of its own, ended by the drain's limit.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	g, work := errgroup.WithContext(work)
	done := make(chan struct{})
	g.Go(func() error { return s.heartbeat(work, done) })
	endCopies := s.copies.open(g, ctx, work)
	g.Go(func() error {
		defer endCopies()
		defer close(done)
		return s.walks(ctx, work)
	})
	if s.Attend != nil {
		attending, cancel := context.WithCancel(work)
		go func() { <-done; cancel() }()
		g.Go(func() error { return s.Attend(attending, s.dst, s.hold) })
	}
	return g.Wait()
}

func (s *session) close(what string, fn func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := fn(ctx); err != nil {
		s.Log.Debug("closing failed", "what", what, "error", err.Error())
	}
}

// heartbeatEvery and the 15 s after which an owner counts as stale leave room for
// several lost beats.
const heartbeatEvery = 2 * time.Second

func (s *session) heartbeat(ctx context.Context, done <-chan struct{}) error {
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.dst.Heartbeat(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("renew ownership: %w", err)
			}
			if err := s.lookAtPause(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// walk is the cold start and what follows from it. stop ends it gracefully, work
// at once.
func (s *session) walk(stop, work context.Context) error {
	if err := s.survey(work); err != nil {
		return err
	}
	if len(s.bound) == 0 {
		return s.awaitShot(stop, work)
	}
	if s.mode.instead != nil {
		s.reached = time.Now()
		return s.mode.instead(stop, work, s)
	}
	state, err := s.src.State(work)
	if err != nil {
		return fmt.Errorf("read the source's state: %w", err)
	}
	s.slotless = state.Slotless
	s.reached = time.Now()
	if (s.mode.errand != nil || s.mode.Replay) && s.mark.Phase == checkpoint.None {
		return fault.Refuse("tailrace run", "pipeline %s has not been started", s.Name)
	}
	mark := s.mark
	if s.mode.Overwrite && len(s.mode.Tables) == 0 {
		// Judged as a first start whose slot may be in the way. Nothing is forgotten
		// before hydrateAll has found that nothing blocks it.
		mark = checkpoint.Mark{Phase: checkpoint.Creating}
	}
	copyCtx, cancel := context.WithCancel(work) // a stop ends a copy at once: it starts again
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	if s.mode.NoFollow {
		if state.Keepless {
			return fault.Badly("--no-follow copies tables; files are taken by run --once")
		}
		err := s.fill(copyCtx)
		if err != nil && stop.Err() != nil {
			return fault.Refuse("the same command with --overwrite fills them all", "stopped before every target was filled")
		}
		return err
	}
	d, err := DecideKept(work, mark, state, s.src)
	if err == nil && d.Return {
		d, state, err = s.returns(work, mark)
	}
	if err == nil && d.Moved != nil {
		err = s.failover(work, d.Moved, state)
	}
	if err != nil {
		return err
	}
	otherwise := false
	err = s.attended(copyCtx, func(ctx context.Context) (err error) {
		otherwise, err = s.begins(ctx, d, state)
		return err
	})
	if otherwise || err != nil {
		return err
	}
	if s.files != nil && d.Action != checkpoint.Hydrate {
		memory, ok := s.dst.(sink.Memory)
		if !ok {
			return fault.Badly("this destination does not take files")
		}
		if s.taken, err = memory.Files(work); err != nil {
			return fmt.Errorf("read which files were taken: %w", err)
		}
	}
	s.Log.Log(work, s.level, "decided where to begin", "action", d.Action.String(), "mark", s.mark.Position.String(), "tables", len(s.bound))
	switch d.Action {
	case checkpoint.Hydrate:
		err = s.attended(copyCtx, func(ctx context.Context) error { return s.hydrateAll(ctx, d, state) })
	default:
		if err = s.finishParts(copyCtx); err == nil {
			err = s.setAside(work, state)
		}
		if err == nil {
			err = s.attended(copyCtx, s.hydrateMissing)
		}
	}
	if err != nil {
		if stop.Err() != nil && errors.Is(err, context.Canceled) {
			return stop.Err()
		}
		return err
	}
	s.overwriteDone()
	if s.mode.CopyOnly {
		return nil
	}
	if s.mode.atSnapshot != nil {
		return s.followToSnapshot(stop, work)
	}
	if err := s.openPoints(work, d.Action == checkpoint.Hydrate); err != nil {
		return err
	}
	if s.mode.errand != nil {
		return s.mode.errand(stop, work, s)
	}
	if ran, err := s.errands(stop, work); ran || err != nil {
		return cmp.Or(err, stop.Err(), errPaused)
	}
	if err := s.shoot(stop, work); err != nil {
		return err
	}
	s.shots.copied()
	if s.resting() {
		return errPaused // it was an errand's walk
	}
	if s.moments != nil {
		s.mode.Once = true
		defer func() { s.mode.Once = s.moments.once }()
	}
	var until change.Position
	if s.mode.Once && !s.keepless {
		if until, err = s.src.Head(work); err != nil {
			return fmt.Errorf("read the source's position: %w", err)
		}
	}
	if s.mode.StopAt != nil {
		if s.keepless {
			return fault.Badly("a replay of files goes to their end: there is no log to stop in")
		}
		if err := s.mode.StopAt.resolve(work, s); err != nil {
			return err
		}
	}
	read, cancelRead := s.hold.until(stop)
	defer cancelRead()
	if err := s.follow(read, work, stretch{position: until}); err != nil {
		return err
	}
	if s.Attend == nil {
		s.points.settle(work, s.DrainMax)
	}
	if read.Err() != nil && stop.Err() == nil {
		return errPaused
	}
	if s.mode.Once {
		if err := s.trimOnce(work); err != nil {
			return err
		}
	}
	if s.mode.refreshed != nil && s.shots.missed == nil && stop.Err() == nil {
		return s.mode.refreshed(s)
	}
	return s.shots.missed
}

// followToSnapshot stops the mark exactly at a snapshot's position.
func (s *session) followToSnapshot(stop, work context.Context) error {
	snap, err := s.src.Snapshot(work)
	if err != nil {
		return fmt.Errorf("take a snapshot of the source: %w", err)
	}
	defer s.close("snapshot", snap.Close)
	if err := s.cut(stop, work, placeOf(snap)); err != nil {
		return err
	}
	return s.mode.atSnapshot(work, snap, s)
}

// knows reports whether a target has been copied, so that its source's present state
// concerns it alone: it can be parked while the others go on.
func (s *session) knows(target change.Name) bool {
	switch s.state(target).Phase {
	case checkpoint.Live, checkpoint.Catching, checkpoint.Adopting, checkpoint.Parked:
		return !(s.mode.Overwrite && len(s.mode.Tables) == 0)
	}
	return false
}

// setAside parks the targets whose source tables cannot be followed any more, or
// whose changes were in no stream for a while.
func (s *session) setAside(ctx context.Context, state source.State) error {
	var parked []checkpoint.Table
	for _, p := range *s.toPark {
		if s.knows(p.target) {
			parked = append(parked, s.parked(s.state(p.target), p.reason, p.remedy))
		}
	}
	*s.toPark = nil
	if err := s.park(ctx, parked); err != nil {
		return err
	}
	parked = nil
	for i := range s.bound {
		b := &s.bound[i]
		st := s.state(b.Target.Name)
		switch id := b.Relation.Table.ID; {
		case !s.knows(b.Target.Name) || s.asked(b) || st.Phase == checkpoint.Parked:
		case s.isNew(b.Spec, b.Target.Name) || s.moved(b): // nothing of it was to be sent yet
		case b.Spec.Once: // nothing of it is followed
		case !b.Spec.FromLog() && b.Blocked == nil: // files are known by themselves, and snapshots whole
		case b.Blocked != nil:
			parked = append(parked, s.parked(st, b.Blocked.What, b.Blocked.Remedy))
		case s.copiedID(b) != id && s.copiedID(b) != 0:
			parked = append(parked, s.parked(st, fmt.Sprintf("table %s was dropped and made again since it was copied: it is another table now", b.Relation.Table.Name), ""))
		case state.Published != nil && !slices.Contains(state.Published, id):
			parked = append(parked, s.parked(st, fmt.Sprintf("table %s was taken out of the publication since it was copied: its changes since then were not sent", b.Relation.Table.Name), ""))
		case b.Spec.Sequenced.Feed: // inserts are published either way
		case state.Published != nil && b.Target.AppendOnly && !b.Spec.AppendOnly && slices.Contains(state.PublishedWhole, id):
			parked = append(parked, s.parked(st, fmt.Sprintf("table %s has lost its key since it was copied: %s", b.Relation.Table.Name, b.Relation.Why), b.Relation.Remedy))
		case state.Published != nil && !b.Target.AppendOnly && !slices.Contains(state.PublishedWhole, id):
			parked = append(parked, s.parked(st, fmt.Sprintf("table %s was followed append-only so far: its updates and deletes were not seen", b.Relation.Table.Name), ""))
		}
	}
	return s.park(ctx, parked)
}

// parked is a table's state with the reason why it is set aside and what to do. Its
// since is from now on where its changes end.
func (s *session) parked(st checkpoint.Table, reason, remedy string) checkpoint.Table {
	if remedy != "" {
		remedy += ", then: "
	}
	again := "tailrace resync --table " + st.Target.String()
	if len(s.flowsOf(st.Target)) > 0 { // with a sequence
		again = "tailrace backfill --table " + st.Target.String() + " --overwrite"
	}
	s.markMu.Lock()
	at := s.mark.Position
	s.markMu.Unlock()
	for _, at := range []change.Position{at, s.Stats.Applied.Get()} {
		if st.Since.Before(at) {
			st.Since = at
		}
	}
	st.Phase = checkpoint.Parked
	st.Reason = reason + "\n  remedy: " + remedy + again
	return st
}

// park writes parked tables into the mark.
func (s *session) park(ctx context.Context, parked []checkpoint.Table) error {
	if len(parked) == 0 {
		return nil
	}
	m := s.mark
	m.Tables, m.Flows = parked, nil
	if err := s.save(ctx, m); err != nil {
		return fmt.Errorf("park tables: %w", err)
	}
	for _, p := range parked {
		s.Log.Error("table is parked", "target", p.Target.String(), "reason", p.Reason)
	}
	return nil
}

// DecideState gives Decide what it needs of the source.
func DecideState(st source.State) checkpoint.SourceState {
	return checkpoint.SourceState{
		Identity: checkpoint.Identity{System: st.System, Timeline: st.Timeline, Database: st.Database},
		SlotName: st.Slot.Name, SlotExists: st.Slot.Exists, SlotProblem: st.Slot.Problem,
		SlotLost: st.Slot.Lost, SlotLostWhy: st.Slot.LostWhy, Confirmed: st.Slot.Confirmed, Head: st.Head,
		Keepless: st.Keepless, Slotless: st.Slotless, Oldest: st.Oldest, Elsewhere: (*checkpoint.Elsewhere)(st.Moved), PublicationsMissing: st.PublicationsMissing, PublicationNewer: st.PublicationNewer,
	}
}

// Locate tells a source what the mark remembers, before anything is asked of it. Every
// source that is opened for a pipeline has to know.
func Locate(src source.Source, m checkpoint.Mark) {
	if l, ok := src.(source.Locator); ok {
		l.Locate(source.Located{System: m.Source.System, Position: m.Position, Resume: m.Resume})
	}
}

// survey reads the mark and the catalogue, binds the flows, and decides the wire
// form.
func (s *session) survey(ctx context.Context) error {
	var err error
	if s.mark, err = s.dst.State(ctx); err != nil {
		return fmt.Errorf("read the mark: %w", err)
	}
	Locate(s.src, s.mark)
	relations, err := Relations(ctx, s.src, s.files)
	if err != nil {
		return err
	}
	shots, err := Shots(ctx, s.Flows, s.src, relations, s.SourceSchema, s.OpenVersions)
	if err != nil {
		return err
	}
	if err := s.keepLayouts(ctx, shots); err != nil {
		return err
	}
	bound, findings, err := Bind(s.Flows, relations, shots, s.SourceSchema, s.DefaultSchema, func(spec *flow.Spec, target change.Name) bool {
		return s.knows(target) && !s.isNew(spec, target)
	})
	if err != nil {
		return err
	}
	for i := range s.Flows {
		if f := &s.Flows[i]; f.Snapshot != nil && shots[i].rel == nil {
			s.warnOnce("FIRST_SNAPSHOT_EMPTY: no snapshot file is there yet; nothing is done before one is", "flow", cmp.Or(f.Sequenced.Name, f.Target), "path", f.Snapshot.Path)
		}
	}
	for _, f := range findings {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
		s.warnOnce(f.What, "remedy", f.Remedy)
	}
	if len(bound) == 0 && !slices.ContainsFunc(s.Flows, func(f flow.Spec) bool { return f.Snapshot != nil }) {
		return fault.Refuse("create tables, or correct the flows", "no flow matches a table of the source")
	}
	s.markMu.Lock()
	s.bound, s.binary = bound, BinaryForm(bound, s.dst)
	s.markMu.Unlock()
	s.number()
	if err := s.count(ctx); err != nil {
		return err
	}
	for _, b := range bound {
		for _, n := range b.Notes {
			s.Log.Debug(n)
		}
		for _, w := range b.Warnings {
			s.warnOnce(w)
		}
	}
	return nil
}

// count tells the statistics what stands at the start.
func (s *session) count(ctx context.Context) error {
	s.Stats.forgetPhases()
	for i := range s.bound {
		name := s.bound[i].Target.Name
		s.Stats.SetPhase(name, cmp.Or(s.state(name).Phase, checkpoint.Creating))
	}
	for _, t := range s.mark.Tables {
		s.Stats.SetPhase(t.Target, t.Phase)
	}
	if memory, ok := s.dst.(sink.Memory); ok {
		unresolved, err := memory.Unresolved(ctx)
		if err != nil {
			return fmt.Errorf("count the quarantine: %w", err)
		}
		s.Stats.SetUnresolved(unresolved)
	}
	return nil
}

// Relations reads the catalogues of a log and of files, either of which may be nil, or
// both the same.
func Relations(ctx context.Context, log, files source.Source) ([]source.Relation, error) {
	var all []source.Relation
	if log != nil && log != files {
		tables, err := log.Relations(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the source's catalogue: %w", err)
		}
		all = tables
	}
	if files == nil {
		return all, nil
	}
	feeds, err := files.Relations(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the relations of files: %w", err)
	}
	return append(all, feeds...), nil
}

// BinaryForm decides whether values travel in binary: all of them or none, because
// the log is read in one form.
func BinaryForm(bound []Bound, w sink.Writer) bool {
	for _, b := range bound {
		if b.flow != nil || b.judge != nil || b.Relation.TextOnly {
			return false // values are compared, judged and remembered in one form, for good
		}
		for _, c := range b.Target.Columns {
			if !w.Binary(c.Type) {
				return false
			}
		}
	}
	return true
}

// save writes a mark and remembers it.
func (s *session) save(ctx context.Context, m checkpoint.Mark) error {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	m.Epoch = s.mark.Epoch
	if err := s.dst.Save(ctx, m); err != nil {
		return fmt.Errorf("write the mark: %w", err)
	}
	if m.Source != s.mark.Source {
		Locate(s.src, m)
	}
	tables := s.mark.Tables
	for _, t := range m.Tables {
		tables = upsertTable(tables, t)
		s.Stats.SetPhase(t.Target, t.Phase)
	}
	m.Tables, m.Flows = tables, upsertFlows(s.mark.Flows, m.Flows)
	s.mark = m
	return nil
}

// head is the mark as it is written beside the position: without it, tables and flows.
func (s *session) head() checkpoint.Mark {
	m := s.mark
	m.Position, m.Resume, m.CommitTime, m.Tables, m.Flows = change.Position{}, "", time.Time{}, nil, nil
	return m
}

func upsertTable(tables []checkpoint.Table, t checkpoint.Table) []checkpoint.Table {
	out := make([]checkpoint.Table, 0, len(tables)+1)
	for _, have := range tables {
		if have.Target != t.Target {
			out = append(out, have)
		}
	}
	if t.Phase != checkpoint.None {
		out = append(out, t)
	}
	return out
}

// state returns what the mark says of a target; the zero Table if nothing.
func (s *session) state(target change.Name) checkpoint.Table {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	for _, t := range s.mark.Tables {
		if t.Target == target {
			return t
		}
	}
	return checkpoint.Table{}
}
