package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/source"
)

// RewindRequest is what a rewind is asked for.
type RewindRequest struct {
	To    Moment
	Flows []string // those whose targets are restored; none: all
	// AllowGap goes on where files that a replay would take again are gone or changed.
	AllowGap bool
	// Confirm is told what would happen, with the pipeline owned, and says whether it is to.
	Confirm func(Rewound) (bool, error)
}

// Rewound is what a rewind does, or did.
type Rewound struct {
	Point    checkpoint.Point
	From     checkpoint.Mark // as it was before
	Nothing  bool            // the mark stands there, and nothing was changed since
	Restored []RestoredTarget
	Left     []LeftTarget
	Gone     []checkpoint.Point // that are no choice any more
	Missing  []source.Problem   // files that a replay cannot take again (AllowGap)
	Done     bool
}

// RestoredTarget is a target that becomes what it was.
type RestoredTarget struct {
	Target change.Name
	Rows   int64 // rows, or versions, that are touched
}

// LeftTarget is one that stays as it is.
type LeftTarget struct {
	Target change.Name
	Why    string
	Phase  checkpoint.Phase // from then on
	Since  change.Position  // Catching: a replay passes over what it holds already, up to here
}

// Rewind restores targets to the newest rewind point at or before a moment: rows, what is
// remembered of them, and the mark. It runs nothing. The live slot is replaced first: one that
// lies further back than the mark is right with the old mark and with the new one, so
// that the pipeline can be started wherever this dies.
func Rewind(ctx context.Context, c Config, r RewindRequest) (done Rewound, err error) {
	confirmed := false
	err = Run(ctx, c, Mode{instead: func(_, work context.Context, s *session) error {
		plan, restore, err := s.planRewind(work, &r)
		if err != nil || plan.Nothing {
			done = plan
			return err
		}
		if !confirmed && r.Confirm != nil {
			if confirmed, err = r.Confirm(plan); err != nil || !confirmed {
				done = plan
				return err
			}
		}
		if keeper, ok := s.src.(source.Keeper); ok && !s.keepless {
			if err := keeper.Return(work, plan.Point.Mark.Position); err != nil {
				return fmt.Errorf("make the log readable from %s on: %w", plan.Point.Mark.Position, err)
			}
		}
		fault.KillPoint("live slot returned")
		if err := s.dst.(sink.Rewinds).Rewind(work, restore); err != nil {
			return fmt.Errorf("restore point %d: %w", plan.Point.Number, err)
		}
		fault.KillPoint("rewound")
		s.Log.Info("rewound", "point", plan.Point.Number, "position", plan.Point.Mark.Position.String(), "from", plan.From.Position.String(), "targets", len(plan.Restored))
		plan.Done = true
		done = plan
		return nil
	}})
	return done, err
}

// planRewind finds out what a rewind means.
func (s *session) planRewind(ctx context.Context, r *RewindRequest) (plan Rewound, restore sink.Rewind, err error) {
	dst, ok := s.dst.(sink.Rewinds)
	switch {
	case !ok:
		return plan, restore, fault.Badly("this destination keeps no rewind points")
	case s.mark.Phase == checkpoint.None:
		return plan, restore, fault.Refuse("tailrace run", "pipeline %s has not been started", s.Name)
	case s.mark.Phase != checkpoint.Live:
		return plan, restore, fault.Refuse("`tailrace run` finishes it", "the copy of pipeline %s is not finished", s.Name)
	}
	plan.From = s.mark
	points, err := dst.Points(ctx)
	if err != nil {
		return plan, restore, fmt.Errorf("read the rewind points: %w", err)
	}
	var now bool
	if plan.Point, now, err = r.To.choose(points, &s.mark, s.src); err != nil {
		return plan, restore, err
	}
	if now {
		plan.Nothing = true
		return plan, restore, nil
	}
	at := plan.Point.Number
	for _, p := range points {
		if p.Number > at && !p.Gone {
			plan.Gone = append(plan.Gone, p)
		}
	}
	undo, err := dst.Undo(ctx, at)
	if err != nil {
		return plan, restore, fmt.Errorf("ask what point %d would restore: %w", at, err)
	}
	restore = sink.Rewind{To: at, Mark: s.mark}
	m, was := &restore.Mark, &plan.Point.Mark
	m.Position, m.Resume, m.CommitTime, m.Tables, m.Flows = was.Position, was.Resume, was.CommitTime, nil, nil
	asked, err := s.askedToRewind(r.Flows)
	if err != nil {
		return plan, restore, err
	}
	changed := false
	for _, t := range s.mark.Tables {
		i := slices.IndexFunc(undo, func(u sink.Undo) bool { return u.Target == t.Target })
		var kept sink.Undo
		if i >= 0 {
			kept, changed = undo[i], true
		}
		b, why := s.restorable(t, was, kept)
		if why == "" {
			if why, err = s.misfits(ctx, b); err != nil {
				return plan, restore, err
			}
		}
		switch {
		case asked != nil && !slices.Contains(asked, t.Target):
			why = "not asked for"
		case asked != nil && why != "":
			return plan, restore, fault.Refuse("choose a later point, or leave it out of --flow", "target %s cannot be restored to point %d: %s", t.Target, at, why)
		}
		if why != "" {
			plan.leave(m, &s.mark, t, b, why)
			continue
		}
		// One that an earlier rewind has left as it was is to be live there again, also if it
		// holds the same rows.
		changed = changed || t != tableOf(was, t.Target)
		plan.Restored = append(plan.Restored, RestoredTarget{t.Target, kept.Rows})
		restore.Targets = append(restore.Targets, b.Target)
		m.Tables = append(m.Tables, tableOf(was, t.Target))
		m.Flows = append(m.Flows, flowsThen(was, s.flowsOf(t.Target), t.Target)...)
	}
	if was.Position == s.mark.Position && !changed && s.files == nil {
		plan.Nothing = true
		return plan, restore, nil
	}
	if len(plan.Restored) == 0 {
		var why []string
		for _, l := range plan.Left {
			why = append(why, fmt.Sprintf("%s: %s", l.Target, l.Why))
		}
		return plan, restore, fault.Refuse("choose a later point", "no target can be restored to point %d: %s", at, strings.Join(why, "; "))
	}
	if err := s.readableFrom(ctx, &plan); err != nil {
		return plan, restore, err
	}
	return plan, restore, s.filesThen(ctx, &plan, &restore, r.AllowGap)
}

// tableOf is what a mark says of a target.
func tableOf(m *checkpoint.Mark, target change.Name) checkpoint.Table {
	for _, t := range m.Tables {
		if t.Target == target {
			return t
		}
	}
	return checkpoint.Table{}
}

// flowsThen are the states that the flows into a restored target get. One that came later
// is forgotten: it comes again.
func flowsThen(was *checkpoint.Mark, now []checkpoint.Flow, target change.Name) []checkpoint.Flow {
	out := forgotten(now)
	for _, f := range was.Flows {
		if f.Target == target {
			out = putFlow(out, f)
		}
	}
	return out
}

// restorable says why a target cannot become what it was; empty: it can.
func (s *session) restorable(t checkpoint.Table, was *checkpoint.Mark, kept sink.Undo) (b *Bound, why string) {
	i := slices.IndexFunc(s.bound, func(b Bound) bool { return b.Target.Name == t.Target && !b.second })
	if i < 0 {
		return nil, "no flow writes it any more"
	}
	b = &s.bound[i]
	switch then := tableOf(was, t.Target); {
	case b.Blocked != nil:
		return b, b.Blocked.What
	case then.Phase == checkpoint.None:
		return b, "it was added after the point"
	case then.Phase != checkpoint.Live:
		return b, "it was " + then.Phase.Shown() + " at the point"
	case kept.Barrier != "":
		return b, kept.Barrier
	}
	return b, ""
}

// misfits says why what was kept of a target cannot be put into it by its present flow: it is
// the former flow's, with that one's keys; or somebody has changed the table.
func (s *session) misfits(ctx context.Context, b *Bound) (why string, err error) {
	p, err := s.dst.Plan(ctx, b.Target)
	if err != nil {
		return "", fmt.Errorf("look at target %s: %w", b.Target.Name, err)
	}
	if !p.Exists {
		return "it is not there any more", nil
	}
	if f := Abandons(p); f != nil {
		return f.What, nil
	}
	for _, f := range p.Problems {
		if f.Blocks {
			return f.What, nil
		}
	}
	return "", nil
}

// leave leaves a target as it is. What of the log it holds is passed over by a replay.
func (p *Rewound) leave(m, now *checkpoint.Mark, t checkpoint.Table, b *Bound, why string) {
	left := LeftTarget{Target: t.Target, Why: why, Phase: t.Phase, Since: t.Since}
	if t.Phase == checkpoint.Live && m.Position.Before(now.Position) && (b == nil || b.Spec.FromLog()) {
		left.Phase, left.Since = checkpoint.Catching, now.Position
		t.Phase, t.Since = left.Phase, left.Since
		m.Tables = append(m.Tables, t)
	}
	for _, f := range now.Flows {
		if f.Target == t.Target && f.Phase == checkpoint.Live && f.ID != 0 && m.Position.Before(now.Position) && f.Since.Before(now.Position) {
			f.Since = now.Position
			m.Flows = append(m.Flows, f)
		}
	}
	p.Left = append(p.Left, left)
}

// askedToRewind are the targets of flows that are named; nil: all.
func (s *session) askedToRewind(flows []string) (targets []change.Name, err error) {
	if len(flows) == 0 {
		return nil, nil
	}
	var named []*Bound
	for _, name := range flows {
		b, err := s.flowNamed(name)
		if err != nil {
			return nil, err
		}
		if b.name() == name || b.Spec.Sequenced.Name == name || len(s.flowsInto(b.Target.Name)) == 1 {
			named = append(named, b)
		} else {
			named = append(named, s.flowsInto(b.Target.Name)...) // by the target's name
		}
		if !slices.Contains(targets, b.Target.Name) {
			targets = append(targets, b.Target.Name)
		}
	}
	for i := range s.bound {
		b := &s.bound[i]
		if slices.Contains(targets, b.Target.Name) && !slices.Contains(named, b) {
			return nil, fault.Refuse("name that flow too", "flow %s writes target %s as well, which is restored as a whole", b.name(), b.Target.Name)
		}
	}
	return targets, nil
}

func (s *session) flowsInto(target change.Name) (out []*Bound) {
	for i := range s.bound {
		if s.bound[i].Target.Name == target {
			out = append(out, &s.bound[i])
		}
	}
	return out
}

// readableFrom refuses a point behind which the log cannot be read.
func (s *session) readableFrom(ctx context.Context, plan *Rewound) error {
	var kept *source.Kept
	if keeper, ok := s.src.(source.Keeper); ok && !s.keepless {
		k, err := keeper.Kept(ctx)
		if err != nil {
			return fmt.Errorf("ask what the source keeps for rewind points: %w", err)
		}
		kept = &k
	}
	if why := Unreadable(&plan.Point, kept, &s.mark); why != "" {
		return fault.Refuse("choose a later point (`tailrace checkpoint list` says which can be replayed from); or `tailrace resync --table` copies a table again",
			"nothing could be replayed from point %d at %s: %s", plan.Point.Number, plan.Point.Mark.Position, why)
	}
	return nil
}

// filesThen restores which files were taken, and looks whether those that were taken since
// can be taken again.
func (s *session) filesThen(ctx context.Context, plan *Rewound, restore *sink.Rewind, allowGap bool) error {
	if s.files == nil {
		return nil
	}
	targets := func(b *Bound) bool {
		return slices.ContainsFunc(restore.Targets, func(t *scd.Target) bool { return t.Name == b.Target.Name })
	}
	for i := range s.bound {
		b := &s.bound[i]
		name := b.Relation.Table.Name
		if !b.Spec.Files || !targets(b) || slices.Contains(restore.Relations, name) {
			continue
		}
		for j := range s.bound {
			if o := &s.bound[j]; o.Spec.Files && o.Relation.Table.Name == name && !targets(o) {
				return fault.Refuse("rewind both, or neither", "relation %s is taken for %s, which would be restored, and for %s, which would not: its files would come twice there", name, b.Target.Name, o.Target.Name)
			}
		}
		restore.Relations = append(restore.Relations, name)
	}
	return s.filesAreThere(ctx, plan, restore, allowGap)
}
