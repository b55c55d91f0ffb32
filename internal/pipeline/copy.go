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
	if !state.Keepless {
		s.Log.Info("replication slot made", "slot", state.Slot.Name, "position", snap.Position().String())
	}

	m.Phase, m.Position, m.Tables = checkpoint.Copying, snap.Position(), nil
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

// hydrateMissing copies what the mark does not know as finished: tables of a copy
// that died, tables that were added to the flows, tables asked for again. They are
// catching until the mark has reached their snapshot.
func (s *session) hydrateMissing(ctx context.Context) error {
	var missing []Bound
	var forgotten []checkpoint.Table
	for i := range s.bound {
		b := &s.bound[i]
		st := s.state(b.Target.Name)
		switch {
		case b.second, b.Blocked != nil && b.Spec.Once && st.Phase != checkpoint.None:
		case s.asked(b):
			missing = append(missing, *b)
		case st.Phase == checkpoint.Parked:
			s.Log.Warn("table is parked", "target", b.Target.Name.String(), "reason", st.Reason)
		case st.Phase == checkpoint.None, st.Phase == checkpoint.Creating, st.Phase == checkpoint.Copying:
			missing = append(missing, *b)
		default:
			if err := s.widen(ctx, b); err != nil {
				if changed := s.redefined(ctx, b); changed != nil {
					err = changed // which is why it does not fit
				}
				return fmt.Errorf("prepare target %s: %w", b.Target.Name, err)
			}
		}
	}
	for _, t := range s.mark.Tables {
		if !slices.ContainsFunc(s.bound, func(b Bound) bool { return b.Target.Name == t.Target }) {
			s.Log.Warn("target is no longer in the flows; its rows stay, it is not followed any more", "target", t.Target.String())
			t.Phase = checkpoint.None
			forgotten = append(forgotten, t)
		}
	}
	if len(forgotten) > 0 {
		m := s.mark
		m.Tables = forgotten
		if err := s.save(ctx, m); err != nil {
			return err
		}
	}
	if err := s.tablesExist(); err != nil {
		return err
	}
	if len(missing) > 0 && s.keepless && s.mark.Phase == checkpoint.Live {
		return fault.Refuse("`tailrace run --overwrite` takes all files again, for all targets",
			"target %s is new, and files that its flow needs were taken without it", missing[0].Target.Name)
	}
	if len(missing) > 0 {
		if err := s.preflight(ctx, missing, s.mode.Overwrite); err != nil {
			return err
		}
	}
	if err := s.src.Publish(ctx, s.publishable()); err != nil {
		return fmt.Errorf("change the publications: %w", err)
	}
	if len(missing) == 0 {
		if s.mark.Phase == checkpoint.Copying {
			return s.finishCopy(ctx)
		}
		return nil
	}
	// The publication's change is committed, so the snapshot's position lies after
	// it: everything later is in the stream, everything earlier in the snapshot.
	m := s.mark
	m.Tables = nil
	for i := range missing {
		m.Tables = append(m.Tables, s.tableState(&missing[i], checkpoint.Creating, change.Position{}))
	}
	if err := s.save(ctx, m); err != nil {
		return err
	}
	snap, err := s.src.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot of the source: %w", err)
	}
	defer s.close("snapshot", snap.Close)
	if err := s.load(ctx, missing, snap, checkpoint.Catching); err != nil {
		return err
	}
	fault.KillPoint("copy finished")
	return s.finishCopy(ctx)
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
	return nil
}

// widen gives a target the columns that its source table got while nothing ran.
func (s *session) widen(ctx context.Context, b *Bound) error {
	p, err := s.dst.Plan(ctx, b.Target)
	if err != nil || len(p.DDL) == 0 && len(p.Problems) == 0 {
		return err
	}
	for _, ddl := range p.DDL {
		s.Log.Warn("the source table's layout is new; the target follows, new columns are NULL in rows that are there", "target", b.Target.Name.String(), "statement", ddl)
	}
	return s.dst.Create(ctx, b.Target)
}

// publishable leaves parked tables out of the publications: what parked them may
// make the application's statements fail.
func (s *session) publishable() []source.Followed {
	var on []Bound
	for i := range s.bound {
		if b := &s.bound[i]; s.state(b.Target.Name).Phase != checkpoint.Parked || s.asked(b) {
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

// doneState is a table's state once it is copied.
func (s *session) doneState(b *Bound, p checkpoint.Phase, snap source.Snapshot) checkpoint.Table {
	done := s.tableState(b, p, snap.Position())
	if p == checkpoint.Catching && snap.Position().Compare(s.mark.Position) <= 0 {
		done.Phase = checkpoint.Live
	}
	return done
}

// preflight refuses before anything is made: blocking findings of the source, a
// target of another shape, and a target that holds rows we did not write.
func (s *session) preflight(ctx context.Context, bound []Bound, ours bool) error {
	if err := unblocked(bound); err != nil {
		return err
	}
	findings, err := s.src.Check(ctx, Followed(bound))
	if err != nil {
		return fmt.Errorf("check the source: %w", err)
	}
	for _, f := range findings {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
		s.Log.Debug(f.What, "remedy", f.Remedy)
	}
	return s.fit(ctx, bound, ours)
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

// load copies tables under one snapshot.
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
		} else {
			plain = append(plain, b)
		}
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
		t.Read = func(ctx context.Context, w io.Writer) (int64, error) { return s.copy(ctx, snap, req, w) }
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
		t.Parts = append(t.Parts, hydrate.Part{
			Bytes: req.Range.Bytes,
			Read:  func(ctx context.Context, w io.Writer) (int64, error) { return s.copy(ctx, snap, req, w) },
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
		s.Log.Info("all rows of the table were copied; its key is built", "target", b.Target.Name.String())
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
}

func (s *session) finishCopy(ctx context.Context) error {
	m := s.mark
	m.Phase, m.Tables = checkpoint.Live, nil
	return s.save(ctx, m)
}
