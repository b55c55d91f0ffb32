package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/source"
)

// Beginning says how a pipeline begins that has no mark. Without a copy of ours the rows
// are the operator's, and no start empties them.
//
// Prepared: slot and mark are made first, then the operator restores a backup of the
// source that was taken after that. What of the log the backup holds nobody knows; but it
// holds, of each row, a moment between the slot's position and the end of the backup. So
// all changes from the slot on are applied, folded so that they do no harm to rows that
// have seen them (scd.Folder.Restored). Of each row the last change up to that end decides,
// and when the mark has passed it the table is live. What that does not hold for is
// refused or parked: tables without a key, histories, targets of events, and a row with
// unchanged columns whose key changed.
//
// Adopted without that: the targets are compared with the snapshot of the slot that is
// made, row by row, and are live at its position if they are equal. No lock is needed: the
// snapshot and the stream meet exactly, and a source that is written meanwhile makes a
// target unequal, never wrong.
type Beginning uint8

const (
	ByCopy Beginning = iota
	ByPreparing
	ByAdopting
)

// Begun is what came of a beginning without a copy.
type Begun struct {
	Prepared bool   // slot and mark; else targets were adopted
	Slot     string // its name
	Position change.Position
	Until    change.Position // adopted from a backup: its end; zero: compared
	Compared []Comparison    // with the source, before they were adopted
	Adopted  []change.Name
	Parked   []change.Name // named, and unequal
	Left     []change.Name // not named: run copies them
}

// Refused reports whether nothing was adopted because targets are unequal.
func (b *Begun) Refused() bool { return !b.Prepared && len(b.Adopted)+len(b.Parked) == 0 }

// begins begins a pipeline in another way than by a copy; done is false where it is to be
// copied or has begun.
func (s *session) begins(ctx context.Context, d checkpoint.Decision, state source.State) (done bool, err error) {
	begun := d.Action == checkpoint.Follow || d.Action == checkpoint.ResumeCopy
	how := s.Beginning
	if s.mode.Overwrite && len(s.mode.Tables) == 0 {
		how = ByCopy // and what is there is replaced
	}
	switch {
	case begun && s.mode.Asked:
		return true, fault.Refuse("`tailrace run` follows it", "pipeline %s has begun: its mark is at %s", s.Name, s.mark.Position)
	case begun, how == ByCopy && d.Action == checkpoint.Hydrate:
		return false, nil
	case state.Keepless:
		return true, fault.Badly("hydrate.mode is copy where the source is files: there is no log that a backup could lie in")
	case !s.mode.CopyOnly || how == ByCopy:
		return true, s.notBegun(d)
	case how == ByPreparing && d.Action == checkpoint.Adopt:
		s.begun(Begun{Prepared: true, Slot: state.Slot.Name, Position: s.mark.Position})
		return true, nil
	case how == ByPreparing:
		return true, s.prepare(ctx, state)
	case d.Action == checkpoint.Adopt:
		return true, s.adoptBackup(ctx, state)
	}
	return true, s.adoptEqual(ctx, state)
}

func (s *session) begun(b Begun) {
	s.Stats.Applied.Set(b.Position)
	s.progressed = true
	if s.mode.Begun != nil {
		s.mode.Begun(b)
	}
}

// notBegun refuses to copy or to follow where the operator has more to do first.
func (s *session) notBegun(d checkpoint.Decision) error {
	switch {
	case d.Action == checkpoint.Adopt:
		return fault.Refuse(fmt.Sprintf("restore a backup of the source that was taken after %s into the destination, then `tailrace backfill --adopt`; or begin with a copy instead, which empties the targets: `tailrace run --overwrite`", s.mark.Position),
			"pipeline %s is prepared at %s, and its targets are not adopted yet", s.Name, s.mark.Position)
	case d.Action == checkpoint.Prepare:
		return fault.Refuse("give the same command again, `tailrace backfill --prepare` or `tailrace backfill --adopt`; or `tailrace teardown`, to begin in another way",
			"the beginning of pipeline %s was interrupted", s.Name)
	case s.Beginning == ByPreparing:
		return fault.Refuse("tailrace backfill --prepare", "hydrate.mode is prepare, and pipeline %s is not prepared yet", s.Name)
	}
	return fault.Refuse("tailrace backfill --adopt", "hydrate.mode is adopt, and the targets of pipeline %s are not adopted yet", s.Name)
}

// prepare makes the slot and the mark, and copies nothing.
func (s *session) prepare(ctx context.Context, state source.State) error {
	chosen, _, err := s.adoption(ctx, true)
	if err != nil {
		return err
	}
	if err := s.atSource(ctx, chosen); err != nil {
		return err
	}
	m, snap, err := s.makeSlot(ctx, state)
	if err != nil {
		return err
	}
	s.close("snapshot", snap.Close)
	m.Phase, m.Position, m.Resume = checkpoint.Prepared, snap.Position(), resumeOf(snap)
	if err := s.save(ctx, m); err != nil {
		return err
	}
	fault.KillPoint("mark prepared")
	s.begun(Begun{Prepared: true, Slot: state.Slot.Name, Position: m.Position})
	return nil
}

// makeSlot makes publications and slot for targets that are not ours to empty.
func (s *session) makeSlot(ctx context.Context, state source.State) (m checkpoint.Mark, snap source.Snapshot, err error) {
	m = checkpoint.Mark{Phase: checkpoint.Preparing, Source: DecideState(state).Identity, Slot: state.Slot.Name}
	if err := s.save(ctx, m); err != nil {
		return m, nil, err
	}
	fault.KillPoint("mark preparing")
	if err := s.src.Publish(ctx, Followed(s.bound)); err != nil {
		return m, nil, fmt.Errorf("make the publications: %w", err)
	}
	if snap, err = s.src.Begin(ctx); err != nil {
		return m, nil, fmt.Errorf("make the replication slot: %w", err)
	}
	fault.KillPoint("slot made")
	if state.Slotless {
		return m, snap, nil
	}
	s.Log.Info("replication slot made", "slot", state.Slot.Name, "position", snap.Position().String())
	return m, snap, nil
}

// adoptBackup takes targets that were restored from a backup which ended before Until, or
// before now: they catch up from the mark.
func (s *session) adoptBackup(ctx context.Context, state source.State) error {
	head, err := s.src.Head(ctx)
	if err != nil {
		return fmt.Errorf("read the source's position: %w", err)
	}
	until := s.mode.Until
	switch {
	case until.IsZero():
		until = head
	case until.Before(s.mark.Position):
		return fault.Refuse("take a backup now, and give the position at its end", "the backup ended at %s, before the slot was made at %s: what was changed in between is in neither", until, s.mark.Position)
	case head.Before(until):
		return fault.Refuse("give the position that the source had when the backup ended", "the source's log ends at %s, before --until %s", head, until)
	}
	chosen, left, err := s.adoption(ctx, true)
	if err != nil {
		return err
	}
	for i := range chosen {
		if err := s.sentSince(&chosen[i], state); err != nil {
			return err
		}
	}
	if err := s.asRestored(ctx, chosen, true); err != nil {
		return err
	}
	b := Begun{Slot: state.Slot.Name, Position: s.mark.Position, Until: until, Left: left}
	m := s.mark
	m.Phase, m.Tables, m.Flows = checkpoint.Live, nil, nil
	for i := range chosen {
		phase := checkpoint.Adopting
		if until.Compare(s.mark.Position) <= 0 {
			phase = checkpoint.Live
		}
		m.Tables = append(m.Tables, s.tableState(&chosen[i], phase, until))
		b.Adopted = append(b.Adopted, chosen[i].Target.Name)
	}
	if err := s.save(ctx, m); err != nil {
		return err
	}
	fault.KillPoint("adopted")
	s.begun(b)
	return nil
}

// sentSince refuses a table whose changes were not all published since the slot was made.
func (s *session) sentSince(b *Bound, state source.State) error {
	if state.Published == nil || slices.Contains(state.PublishedWhole, b.Relation.Table.ID) {
		return nil
	}
	return fault.Refuse("name the other targets with --table: run copies this one, into an empty target. Or `tailrace teardown`, and prepare and back up anew",
		"table %s was not published when the slot was made: its changes since then were not sent", b.Relation.Table.Name)
}

// adoptEqual takes targets that equal the source in the snapshot of a new slot.
func (s *session) adoptEqual(ctx context.Context, state source.State) (err error) {
	if !s.mode.Until.IsZero() {
		return fault.Badly("--until is the end of a backup that was taken after `tailrace backfill --prepare`; without that the targets are compared with the source")
	}
	chosen, left, err := s.adoption(ctx, false)
	if err != nil {
		return err
	}
	if err := s.atSource(ctx, chosen); err != nil {
		return err
	}
	if err := s.asRestored(ctx, chosen, false); err != nil {
		return err
	}
	defer func() {
		if err != nil && (ctx.Err() != nil || fault.KindOf(err) != fault.Transient) {
			err = errors.Join(err, s.unmake(context.WithoutCancel(ctx)))
		}
	}()
	m, snap, err := s.makeSlot(ctx, state)
	if err != nil {
		return err
	}
	defer s.close("snapshot", snap.Close)
	m.Position, m.Resume = snap.Position(), resumeOf(snap)
	b := Begun{Slot: m.Slot, Position: m.Position, Left: left}
	list := make([]*Bound, len(chosen))
	for i := range chosen {
		list[i] = &chosen[i]
	}
	w := watching(list, s.HowFar)
	for i := range chosen {
		w.begin(&chosen[i])
		r, err := s.compare(ctx, &chosen[i], snap, s.dst, nil, w)
		if err != nil {
			return err
		}
		w.end(&chosen[i])
		b.Compared = append(b.Compared, r)
		state := s.tableState(&chosen[i], checkpoint.Live, m.Position)
		if n := r.Differences + int64(len(r.Violations)); n > 0 {
			state = s.parked(state, fmt.Sprintf("it differed from its source when it was to be adopted: %d differences of %d rows", n, r.Rows), "")
			b.Parked = append(b.Parked, r.Target)
		} else {
			b.Adopted = append(b.Adopted, r.Target)
		}
		m.Tables = append(m.Tables, state)
	}
	if len(b.Parked) > 0 && len(s.mode.Tables) == 0 {
		b.Adopted, b.Parked = nil, nil
		s.close("snapshot", snap.Close)
		if err := s.unmake(ctx); err != nil {
			return err
		}
		s.begun(b)
		return nil
	}
	fault.KillPoint("compared")
	m.Phase = checkpoint.Live
	if err := s.save(ctx, m); err != nil {
		return err
	}
	fault.KillPoint("adopted")
	s.begun(b)
	return nil
}

// unmake takes back what makeSlot made: the pipeline has not begun.
func (s *session) unmake(ctx context.Context) error {
	if err := s.src.Drop(ctx); err != nil {
		return err
	}
	m := s.head()
	m.Phase = checkpoint.None
	return s.save(ctx, m)
}

// adoption lists the targets that are named, or all, and those that are not; it refuses
// those that cannot be adopted.
func (s *session) adoption(ctx context.Context, restored bool) (chosen []Bound, left []change.Name, err error) {
	if err := s.tablesExist(); err != nil {
		return nil, nil, err
	}
	var cannot []string
	for i := range s.bound {
		b := &s.bound[i]
		if len(s.mode.Tables) > 0 && !s.asked(b) {
			if !b.second {
				left = append(left, b.Target.Name)
			}
			continue
		}
		if why := b.Unadoptable(restored); why != "" {
			cannot = append(cannot, fmt.Sprintf("%s (%s)", b.Target.Name, why))
		}
		chosen = append(chosen, *b)
	}
	if len(cannot) > 0 {
		return nil, nil, fault.Refuse("name the other targets with --table, with --prepare and with --adopt: run copies these, into empty targets. Or leave their flows out until the pipeline follows, and add them then",
			"these targets cannot be taken over with their rows: %s", strings.Join(cannot, ", "))
	}
	return chosen, left, nil
}

// Unadoptable says why the rows of a target cannot be taken over: from a backup that lies
// somewhere in the log (restored), or as they are found. Empty: they can.
func (b *Bound) Unadoptable(restored bool) string {
	switch {
	case b.flow != nil || b.Spec.Files:
		return "it is made of events, and what is to be remembered of them is not in its rows"
	case len(b.Spec.Expect) > 0:
		return "its flow has expectations, by which nobody has judged its rows"
	case !restored:
		return ""
	case b.Target.Kind == scd.Type2:
		return "it keeps a history: changes that the backup holds would become versions again"
	case b.Target.AppendOnly:
		return "it has no key: rows that the backup holds would be inserted again"
	case b.Spec.Once:
		return "it is copied once and not followed: it would stay what the backup is"
	}
	return ""
}

// asRestored looks whether targets are as their flows need them, with rows where there are
// to be some. Nothing is altered.
func (s *session) asRestored(ctx context.Context, chosen []Bound, restored bool) error {
	for i := range chosen {
		b := &chosen[i]
		name := b.Target.Name
		p, err := s.dst.Plan(ctx, b.Target)
		if err != nil {
			return fmt.Errorf("look at target %s: %w", name, err)
		}
		if !p.Exists {
			return fault.Refuse("restore it; or name the other targets with --table: run makes and copies it", "target %s is not there", name)
		}
		for _, f := range p.Problems {
			if f.Blocks {
				return fault.Refuse(f.Remedy, "%s", f.What)
			}
			s.Log.Warn(f.What, "remedy", f.Remedy)
		}
		if len(p.DDL) > 0 {
			return fault.Refuse(strings.Join(p.DDL, "; "), "target %s lacks what its flow needs", name)
		}
		switch {
		case p.Rows || !restored:
		case b.Relation.Rows > 0:
			return fault.Refuse("restore it; or name the other targets with --table: run copies it", "target %s is empty, and table %s is not: nothing was restored into it", name, b.Relation.Table.Name)
		default:
			s.Log.Warn("the target is empty: was it restored?", "target", name.String())
		}
	}
	return nil
}

// fold gives the route a folder.
func (r *route) fold(t *scd.Target) {
	r.folder = scd.NewFolder(t)
	r.folder.Restored(r.state.Phase == checkpoint.Adopting)
}

// live makes the route's target one that equals the source at the mark.
func (r *route) live() {
	r.state.Phase = checkpoint.Live
	if r.folder != nil {
		r.folder.Restored(false)
	}
}

// settled refuses a layout of the source table that is not the present one while its rows
// come from a backup: an ALTER TABLE changes rows that are in no log.
func (r *route) settled(layout *change.Table) error {
	if r.state.Phase != checkpoint.Adopting {
		return nil
	}
	for i := range r.Target.Columns {
		if layout.Find(r.Target.Columns[i].Name) < 0 {
			return r.altered(layout)
		}
	}
	for i := range layout.Columns {
		if r.Relation.Table.Find(layout.Columns[i].Name) < 0 {
			return r.altered(layout)
		}
	}
	return nil
}

func (r *route) altered(layout *change.Table) error {
	return fault.Refuse("", "the columns of table %s were changed between the slot and the end of the backup: what that did to its rows is in no log", layout.Name)
}

// unmoved parks a target from a backup in which a row with unchanged columns is to change
// its key: whether the backup has it at the old key or at the new one is not known.
func (r *route) unmoved(rounds []scd.Round) error {
	for i := range rounds {
		for _, m := range rounds[i].Moves {
			if m.Row.HasAbsent(len(r.Target.Columns)) {
				return parkedFor(r.Target.Name, fault.Refuse("", "the key of a row of table %s changed while the table was catching up from a backup, and the log leaves large columns out: which row of the backup it is cannot be told", r.Relation.Table.Name))
			}
		}
	}
	return nil
}
