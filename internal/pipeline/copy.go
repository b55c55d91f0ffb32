package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/sink"
	"tailrace/source"
)

// hydrateAll is the first start: publications, slot, and every table under the
// slot's own snapshot.
func (s *session) hydrateAll(ctx context.Context, d checkpoint.Decision, state source.State) error {
	if err := s.preflight(ctx, s.bound, s.mark.Phase == checkpoint.Creating || s.mode.Overwrite); err != nil {
		return err
	}
	m := checkpoint.Mark{Phase: checkpoint.Creating, Source: DecideState(state).Identity, Slot: state.Slot.Name}
	for _, t := range s.mark.Tables { // of a pipeline that starts over: forgotten
		t.Phase = checkpoint.None
		m.Tables = append(m.Tables, t)
	}
	m.Flows = forgotten(s.mark.Flows)
	if err := s.save(ctx, m); err != nil {
		return err
	}
	fault.KillPoint("mark creating")
	if memory, ok := s.dst.(sink.Memory); ok {
		if err := memory.StartOver(ctx); err != nil {
			return fmt.Errorf("start over: %w", err)
		}
	}
	// The publications must be there before the slot, or the slot can never be read
	// with them.
	if err := s.src.Publish(ctx, Followed(s.bound)); err != nil {
		return fmt.Errorf("make the publications: %w", err)
	}
	snap, err := s.src.Begin(ctx)
	if err != nil {
		return fmt.Errorf("make the replication slot: %w", err)
	}
	defer s.close("snapshot", snap.Close)
	fault.KillPoint("slot made")
	if !state.Keepless && !state.Slotless {
		s.Log.Info("replication slot made", "slot", state.Slot.Name, "position", snap.Position().String())
	}

	m.Phase, m.Position, m.Resume, m.Tables = checkpoint.Copying, snap.Position(), resumeOf(snap), nil
	m.Flows = nil
	for i := range s.bound {
		if !s.bound[i].second {
			m.Tables = append(m.Tables, s.tableState(&s.bound[i], checkpoint.Creating, change.Position{}))
		}
	}
	if err := s.save(ctx, m); err != nil {
		return err
	}
	fault.KillPoint("mark copying")
	if err := s.load(ctx, s.bound, snap, checkpoint.Live); err != nil {
		return err
	}
	fault.KillPoint("copy finished")
	return s.finishCopy(ctx)
}

// wanted reports whether a pattern would take a table of the source, were it there.
func (s *session) wanted(source change.Name) bool {
	return slices.ContainsFunc(s.Flows, func(f flow.Spec) bool { return f.Matches(source) }) &&
		!slices.ContainsFunc(s.bound, func(b Bound) bool { return b.Relation.Table.Name == source })
}

// hydrateMissing copies what the mark does not know as finished: tables of a copy
// that died, tables that were added to the flows, tables asked for again. They are
// catching until the mark has reached their snapshot. In a daemon with live targets those
// that can be copied beside the stream are left to that, and nobody waits for them.
func (s *session) hydrateMissing(ctx context.Context) error {
	var missing []Bound
	var unfit []unfitTarget
	var gone, parked []checkpoint.Table
	var goneFlows []checkpoint.Flow
	for i := range s.bound {
		b := &s.bound[i]
		st := s.state(b.Target.Name)
		switch {
		case b.second, b.Blocked != nil && b.Spec.Once && st.Phase != checkpoint.None:
		case s.asked(b):
			missing = append(missing, *b)
		case st.Phase == checkpoint.Parked:
			s.warnOnce("table is parked", "target", b.Target.Name.String(), "reason", st.Reason)
		case st.Phase == checkpoint.None, st.Phase == checkpoint.Creating, st.Phase == checkpoint.Copying:
			if !s.copies.holds(b.Target.Name) {
				missing = append(missing, *b)
			}
		default:
			if err := s.widen(ctx, b); err != nil {
				if changed := s.redefined(ctx, b); changed != nil {
					err = changed // which is why it does not fit
				} else if alone(err) {
					unfit = append(unfit, unfitTarget{b, err})
					break
				}
				return fmt.Errorf("prepare target %s: %w", b.Target.Name, err)
			}
		}
	}
	for _, t := range s.mark.Tables {
		switch {
		case slices.ContainsFunc(s.bound, func(b Bound) bool { return b.Target.Name == t.Target }):
		case s.awaitsShot(t.Target): // its files are gone, or not there yet
		case s.wanted(t.Source):
			if t.Phase != checkpoint.Parked {
				parked = append(parked, s.parked(t, fmt.Sprintf("the source has no table %s any more", t.Source), "make it again, or leave it out of the pattern with except"))
				break
			}
			s.Log.Warn("table is parked", "target", t.Target.String(), "reason", t.Reason)
		default:
			s.Log.Warn("target is no longer in the flows; its rows stay, it is not followed any more", "target", t.Target.String())
			t.Phase = checkpoint.None
			gone = append(gone, t)
			goneFlows = append(goneFlows, forgotten(s.flowsOf(t.Target))...)
		}
	}
	worn, err := s.parkUnfit(unfit)
	if err != nil {
		return err
	}
	if err := s.park(ctx, append(parked, worn...)); err != nil {
		return err
	}
	if len(gone) > 0 {
		m := s.mark
		m.Tables, m.Flows = gone, goneFlows
		if err := s.save(ctx, m); err != nil {
			return err
		}
	}
	if err := s.tablesExist(); err != nil {
		return err
	}
	arrived, err := s.arrivals()
	if err != nil {
		return err
	}
	again, err := s.filesAgain(missing, arrived.flows)
	if err != nil {
		return err
	}
	if len(missing)+len(arrived.flows) > 0 {
		all := slices.Clone(missing)
		for _, b := range arrived.flows {
			all = append(all, *b)
		}
		if err := s.preflight(ctx, all, s.mode.Overwrite); err != nil {
			return err
		}
	}
	if err := s.src.Publish(ctx, s.publishable()); err != nil {
		return fmt.Errorf("change the publications: %w", err)
	}
	missing, beside := s.beside(missing)
	if err := s.addBeside(ctx, beside); err != nil {
		return err
	}
	if len(missing)+len(arrived.flows) == 0 {
		if err := s.saveFlows(ctx, arrived.states); err != nil {
			return err
		}
		if s.mark.Phase == checkpoint.Copying {
			return s.finishCopy(ctx)
		}
		return nil
	}
	// The publication's change is committed, so the snapshot's position lies after
	// it: everything later is in the stream, everything earlier in the snapshot.
	m := s.mark
	m.Tables, m.Flows = nil, nil
	for i := range missing {
		m.Tables = append(m.Tables, s.tableState(&missing[i], checkpoint.Creating, change.Position{}))
	}
	if err := s.save(ctx, m); err != nil {
		return err
	}
	if err := s.forgetFiles(ctx, again); err != nil {
		return err
	}
	var snap source.Snapshot // of no use to targets that are made of files alone
	if arrived.needsCopy() || slices.ContainsFunc(missing, func(b Bound) bool { return s.copied(&b) }) {
		if snap, err = s.src.Snapshot(ctx); err != nil {
			return fmt.Errorf("take a snapshot of the source: %w", err)
		}
		defer s.close("snapshot", snap.Close)
	}
	if err := s.load(ctx, missing, snap, checkpoint.Catching); err != nil {
		return err
	}
	if err := s.admit(ctx, arrived, snap); err != nil {
		return err
	}
	fault.KillPoint("copy finished")
	return s.finishCopy(ctx)
}

// copied reports whether rows of the log's source go into the target of b, which is the
// first flow into it.
func (s *session) copied(b *Bound) bool {
	return slices.ContainsFunc(s.bound, func(o Bound) bool { return o.Target.Name == b.Target.Name && o.Spec.FromLog() })
}

// filesAgain lists the relations whose files have to be taken again, because targets
// that are to be made anew, or new flows, need them. It refuses where that would concern
// another flow, which has them.
func (s *session) filesAgain(missing []Bound, arrived []*Bound) (again []change.Name, err error) {
	needs := func(b *Bound) bool {
		return slices.ContainsFunc(missing, func(m Bound) bool { return m.Target.Name == b.Target.Name }) || slices.Contains(arrived, b)
	}
	for i := range s.bound {
		b := &s.bound[i]
		relation := b.Relation.Table.Name
		if !b.Spec.Files || !needs(b) || slices.Contains(again, relation) ||
			!slices.ContainsFunc(s.taken, func(f change.File) bool { return f.Relation == relation }) {
			continue
		}
		for j := range s.bound {
			if o := &s.bound[j]; o.Spec.Files && o.Relation.Table.Name == relation && !needs(o) {
				return nil, fault.Refuse(fmt.Sprintf("give the flow into %s a relation of its own: another name under `relations`, with the same path. Or make the targets anew: `tailrace backfill --table %[1]s --table %s --overwrite`", b.Target.Name, o.Target.Name),
					"target %s is to be made of relation %s, whose files were taken already, for target %s", b.Target.Name, relation, o.Target.Name)
			}
		}
		again = append(again, relation)
	}
	return again, nil
}

// forgetFiles makes the files of relations count as never taken.
func (s *session) forgetFiles(ctx context.Context, relations []change.Name) error {
	if len(relations) == 0 {
		return nil
	}
	memory, ok := s.dst.(sink.Memory)
	if !ok {
		return fault.Badly("this destination does not take files")
	}
	if err := memory.Forget(ctx, relations); err != nil {
		return fmt.Errorf("forget the files of relations: %w", err)
	}
	s.taken = slices.DeleteFunc(s.taken, func(f change.File) bool { return slices.Contains(relations, f.Relation) })
	return nil
}

// tablesExist refuses a --table that is no flow's target.
func (s *session) tablesExist() error {
	for _, name := range s.mode.Tables {
		if !slices.ContainsFunc(s.bound, func(b Bound) bool { return named(name, &b) }) {
			return fault.Badly("--table %s: no flow has such a target", name)
		}
	}
	return nil
}

// fill copies under a temporary slot, whose end is the end of all that the source
// keeps for us, and writes no mark: nothing is going to follow. The targets hold rows
// without a mark afterwards, as if somebody else had filled them, and a later run
// refuses them.
func (s *session) fill(ctx context.Context) error {
	if s.mark.Phase != checkpoint.None {
		return fault.Refuse("`tailrace backfill --table T --overwrite` copies a table of it again; another name under `pipeline`, with other targets, makes a copy beside it",
			"pipeline %s has a mark at %s (%s): its targets are followed", s.Name, s.mark.Position, s.mark.Phase)
	}
	if err := s.tablesExist(); err != nil {
		return err
	}
	bound := slices.Clone(s.bound)
	if len(s.mode.Tables) > 0 {
		bound = slices.DeleteFunc(bound, func(b Bound) bool { return !s.asked(&b) })
	}
	if err := unblocked(bound); err != nil {
		return err
	}
	if i := slices.IndexFunc(bound, func(b Bound) bool { return !b.Spec.FromLog() }); i >= 0 {
		return fault.Refuse("name the targets of tables with --table; `tailrace run --once` takes files and snapshots",
			"target %s is made of files or snapshots, which are followed and not copied", bound[i].Target.Name)
	}
	if err := s.fit(ctx, bound, s.mode.Overwrite || *s.filling); err != nil {
		return err
	}
	*s.filling = true
	snap, err := s.src.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of the source: %w", err)
	}
	defer s.close("snapshot", snap.Close)
	if err := s.load(ctx, bound, snap, checkpoint.None); err != nil {
		return err
	}
	s.Log.Info("filled; nothing follows, and no slot is left", "tables", len(bound), "position", snap.Position().String())
	for flow, n := range s.Stats.Unresolved() {
		s.Log.Warn("rows were set aside: `tailrace quarantine list` shows them", "flow", flow, "rows", n)
	}
	return nil
}

// widen gives a target the columns that its source table got while nothing ran, and
// what its flow needs that has got a sequence since. One that is gone has lost its rows:
// it does not fit.
func (s *session) widen(ctx context.Context, b *Bound) error {
	p, err := s.dst.Plan(ctx, b.Target)
	if err == nil && !p.Exists {
		return misfitError{fault.Refuse(fmt.Sprintf("tailrace backfill --table %s --overwrite makes it anew and fills it", b.Target.Name),
			"table %s is not in the destination any more, and the rows that it held with it", b.Target.Name)}
	}
	if err == nil && Moves(s.bound, b, p) {
		if err := s.move(ctx, b); err != nil {
			return fmt.Errorf("move it to the lane of flows with a sequence: %w", err)
		}
		p, err = s.dst.Plan(ctx, b.Target)
	}
	if err == nil {
		if f := Abandons(p); f != nil {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
	}
	if err != nil || len(p.DDL) == 0 && len(p.Problems) == 0 {
		return err
	}
	for _, ddl := range p.DDL {
		s.Log.Warn("the source table's layout, or the flow, is new; the target follows, new columns are NULL in rows that are there", "target", b.Target.Name.String(), "statement", ddl)
	}
	return misfit(p, s.dst.Create(ctx, b.Target))
}

// publishable leaves parked tables out of the publications: what parked them may
// make the application's statements fail. Those that are being copied again are in.
func (s *session) publishable() []source.Followed {
	var on []Bound
	for i := range s.bound {
		if b := &s.bound[i]; s.state(b.Target.Name).Phase != checkpoint.Parked || s.asked(b) || s.copies.holds(b.Target.Name) {
			on = append(on, s.bound[i])
		}
	}
	return Followed(on)
}

func (s *session) asked(b *Bound) bool {
	return slices.ContainsFunc(s.mode.Tables, func(name string) bool { return named(name, b) })
}

// named reports whether a command's --table means this target: its name, with or
// without schema.
func named(name string, b *Bound) bool {
	schema, table := flow.SplitName(name)
	return table == b.Target.Name.Table && (schema == "" || schema == b.Target.Name.Schema)
}

func (s *session) tableState(b *Bound, p checkpoint.Phase, since change.Position) checkpoint.Table {
	t := checkpoint.Table{Target: b.Target.Name, Source: b.Relation.Table.Name, ID: b.Relation.Table.ID, Phase: p, Since: since}
	for i := range s.bound {
		if s.bound[i].second && s.bound[i].Target.Name == b.Target.Name {
			t.ID = 0 // of several source tables
		}
	}
	return t
}

// doneState is a table's state once it is copied; snap is nil where nothing was.
func (s *session) doneState(b *Bound, p checkpoint.Phase, snap source.Snapshot) checkpoint.Table {
	var since change.Position
	if snap != nil {
		since = snap.Position()
	}
	done := s.tableState(b, p, since)
	if p == checkpoint.Catching && since.Compare(s.mark.Position) <= 0 {
		done.Phase = checkpoint.Live
	}
	return done
}

// preflight refuses before anything is made: blocking findings of the source, a
// target of another shape, and a target that holds rows we did not write.
func (s *session) preflight(ctx context.Context, bound []Bound, ours bool) error {
	if err := s.atSource(ctx, bound); err != nil {
		return err
	}
	return s.fit(ctx, bound, ours)
}

// atSource is the source's side of preflight.
func (s *session) atSource(ctx context.Context, bound []Bound) error {
	if err := unblocked(bound); err != nil {
		return err
	}
	findings, err := CheckSources(ctx, s.src, s.files, bound)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
		s.Log.Debug(f.What, "remedy", f.Remedy)
	}
	return nil
}

// unblocked refuses flows that cannot be what they say.
func unblocked(bound []Bound) error {
	for i := range bound {
		if f := bound[i].Blocked; f != nil {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
	}
	return nil
}

// fit is the destination's side of preflight.
func (s *session) fit(ctx context.Context, bound []Bound, ours bool) error {
	for i := range bound {
		t := bound[i].Target
		begun := s.state(t.Name).Phase != checkpoint.None
		p, err := s.dst.Plan(ctx, t)
		if err != nil {
			return fmt.Errorf("look at target %s: %w", t.Name, err)
		}
		for _, f := range p.Problems {
			if f.Reset && (ours || begun) {
				s.Log.Warn(f.What+"; it is made anew", "target", t.Name.String())
				continue
			}
			if f.Blocks {
				return fault.Refuse(f.Remedy, "%s", f.What)
			}
			s.Log.Warn(f.What, "remedy", f.Remedy)
		}
		if p.Rows && !ours && !begun {
			return fault.Refuse("empty or drop it, choose another target, or pass --overwrite to replace its rows",
				"target %s holds rows, and no mark says that they are this pipeline's", t.Name)
		}
	}
	return nil
}

// load copies tables under one snapshot; it is nil where nothing is to be copied.
func (s *session) load(ctx context.Context, bound []Bound, snap source.Snapshot, phase checkpoint.Phase) error {
	var plain, withSequence []*Bound
	for i := range bound {
		b := &bound[i]
		if b.second {
			continue
		}
		if memory, ok := s.dst.(sink.Memory); ok && b.flow != nil {
			if err := memory.Reset(ctx, b.Target); err != nil {
				return fmt.Errorf("empty target %s: %w", b.Target.Name, err)
			}
		}
		if err := s.dst.Create(ctx, b.Target); err != nil {
			return fmt.Errorf("make target %s: %w", b.Target.Name, err)
		}
		if b.flow != nil {
			withSequence = append(withSequence, b)
			continue
		}
		if err := s.afresh(ctx, b); err != nil {
			return err
		}
		plain = append(plain, b)
	}
	extents, err := s.measure(ctx, plain, snap)
	if err != nil {
		return err
	}
	tables := make([]hydrate.Table, len(plain))
	for i, b := range plain {
		if tables[i], err = s.tableCopy(ctx, b, snap, s.doneState(b, phase, snap), extents[i]); err != nil {
			return err
		}
	}
	if err := hydrate.Run(ctx, tables, s.Workers, s.Progress); err != nil {
		if ctx.Err() != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%w: %w", context.Canceled, err)
		}
		return err
	}
	for _, b := range withSequence {
		if err := s.loadSequenced(ctx, b, snap, phase); err != nil {
			return err
		}
	}
	s.progressed = true
	return nil
}

// measure gives the true sizes of tables, and cuts the large ones, where the source
// can tell; else what the catalogue knew.
func (s *session) measure(ctx context.Context, bound []*Bound, snap source.Snapshot) ([]source.Extent, error) {
	extents := make([]source.Extent, len(bound))
	tables := make([]*change.Table, len(bound))
	for i, b := range bound {
		extents[i].Bytes, tables[i] = b.Relation.Size, b.Relation.Table
	}
	ranger, ok := snap.(source.Ranger)
	if !ok || len(bound) == 0 {
		return extents, nil
	}
	most := s.SplitBytes
	if most <= 0 {
		most = math.MaxInt64
	}
	return ranger.Measure(ctx, tables, most)
}

// tableCopy is the copy of one table: in parts where it is large and the destination
// takes parts, else one stream.
func (s *session) tableCopy(ctx context.Context, b *Bound, snap source.Snapshot, done checkpoint.Table, extent source.Extent) (hydrate.Table, error) {
	req := source.CopyRequest{Table: b.Relation.Table, Binary: s.binary}
	for _, c := range b.Target.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	if b.Target.Kind == 2 {
		start := snap.Clock()
		if b.Spec.HistoryStart == flow.HistoryStartInfinity {
			start = time.Time{}
		}
		req.StartAt = &start
	}
	t := hydrate.Table{Name: b.Target.Name.String(), Rows: b.Relation.Rows, Bytes: extent.Bytes}
	parts, ok := s.dst.(sink.Parts)
	if ok = ok && len(extent.Ranges) > 0; ok {
		var err error
		if ok, err = parts.BeginParts(ctx, b.Target); err != nil {
			return t, fmt.Errorf("prepare target %s: %w", b.Target.Name, err)
		}
	}
	if !ok {
		read := s.judging(b, snap, 0, nil)
		t.Read = func(ctx context.Context, w io.Writer) (int64, error) { return read(ctx, req, w) }
		t.Load = func(ctx context.Context, r io.Reader) (int64, error) {
			rows, err := s.dst.Load(ctx, b.Target, sink.Copy{Binary: s.binary, Rows: r}, true, done)
			if err == nil {
				s.loaded(done)
			}
			return rows, err
		}
		return t, nil
	}
	for i := range extent.Ranges {
		req := req
		req.Range = &extent.Ranges[i]
		read := s.judging(b, snap, i, nil)
		t.Parts = append(t.Parts, hydrate.Part{
			Bytes: req.Range.Bytes,
			Read:  func(ctx context.Context, w io.Writer) (int64, error) { return read(ctx, req, w) },
			Load: func(ctx context.Context, r io.Reader) (int64, error) {
				rows, err := parts.LoadPart(ctx, b.Target, sink.Copy{Binary: s.binary, Rows: r})
				if err == nil {
					fault.KillPoint("part loaded")
				}
				return rows, err
			},
		})
	}
	t.Finish = func(ctx context.Context) error {
		err := parts.EndParts(ctx, b.Target, done)
		if err == nil {
			s.loaded(done)
		}
		return err
	}
	s.Log.Info("a large table is copied in parts", "target", t.Name, "parts", len(t.Parts), "size", extent.Bytes)
	return t, nil
}

// copy reads rows of the snapshot, no faster than is allowed.
func (s *session) copy(ctx context.Context, snap source.Snapshot, req source.CopyRequest, w io.Writer) (int64, error) {
	return snap.Copy(ctx, req, s.CopyRate.Writer(ctx, w))
}

// loaded remembers a table whose rows are committed.
func (s *session) loaded(done checkpoint.Table) {
	s.remember(done)
	fault.KillPoint("table loaded")
}

// finishParts ends copies in parts that had all their rows when the program died.
func (s *session) finishParts(ctx context.Context) error {
	parts, ok := s.dst.(sink.Parts)
	for i := range s.bound {
		b := &s.bound[i]
		st := s.state(b.Target.Name)
		if !ok || b.second || s.asked(b) || st.Phase != checkpoint.Copying || st.Since.IsZero() || st.ID != b.Relation.Table.ID {
			continue
		}
		s.Log.Info("all rows of the table were copied; it is put in its place", "target", b.Target.Name.String())
		st.Phase = checkpoint.Live
		if s.mark.Position.Before(st.Since) {
			st.Phase = checkpoint.Catching
		}
		if err := parts.EndParts(ctx, b.Target, st); err != nil {
			return fmt.Errorf("finish the copy of table %s: %w", b.Target.Name, err)
		}
		s.loaded(st)
	}
	return nil
}

func (s *session) remember(t checkpoint.Table) {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	s.mark.Tables = upsertTable(s.mark.Tables, t)
	s.Stats.SetPhase(t.Target, t.Phase)
}

func (s *session) finishCopy(ctx context.Context) error {
	m := s.mark
	m.Phase, m.Tables, m.Flows = checkpoint.Live, nil, nil
	return s.save(ctx, m)
}
