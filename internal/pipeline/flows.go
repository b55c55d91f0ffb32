package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/sink"
	"tailrace/source"
)

// Several flows write one sequenced target, and each has a state beside the target's:
// so one can come to a target that is there. Its relation is copied as events, which find
// their place among those that are there, whatever the order; then it is followed from
// the copy's position, while the others were never stopped from where they are.
//
// A copy that dies is made again, under a later snapshot, over what the first one wrote.
// Two copies make what the first would have made, because the flow's since stays that
// of the first: what happened between the two is followed too. A row that went away
// in between is deleted by its change, and a row that stayed comes a second time with
// an equal sequence and equal values, which changes nothing.
//
// The number of a flow stands in the place of each of its events. It is given once, so
// that the declaration of another flow in front of it moves no event.

// flowsOf returns what the mark says of the flows into a target.
func (s *session) flowsOf(target change.Name) (out []checkpoint.Flow) {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	for _, f := range s.mark.Flows {
		if f.Target == target {
			out = append(out, f)
		}
	}
	return out
}

// flowState returns what the mark says of a flow; the zero Flow if nothing.
func (s *session) flowState(b *Bound) checkpoint.Flow {
	name := b.name()
	for _, f := range s.flowsOf(b.Target.Name) {
		if f.Name == name {
			return f
		}
	}
	return checkpoint.Flow{}
}

// copiedID is the number that the source table of b had at its copy; 0: not known.
func (s *session) copiedID(b *Bound) uint32 {
	if f := s.flowState(b); f.Phase != checkpoint.None {
		return f.ID
	}
	return s.state(b.Target.Name).ID
}

// isNew reports whether a flow is new to a target that has been copied. Where the mark
// knows of no flows, an earlier version wrote it, with what it knew: the one source
// table, or that there were several.
func (s *session) isNew(spec *flow.Spec, target change.Name) bool {
	if !spec.ByEvents() {
		return false
	}
	have := s.flowsOf(target)
	if len(have) == 0 {
		st := s.state(target)
		return st.ID != 0 && !spec.Matches(st.Source)
	}
	name := identity(spec, target)
	return !slices.ContainsFunc(have, func(f checkpoint.Flow) bool {
		return f.Name == name && (f.Phase == checkpoint.Live || f.Phase == checkpoint.Copying)
	})
}

// moved reports whether a flow reads another table now, from the beginning like a new
// one. A table whose rows come and go is not left so: the target is parked. Files are
// known by themselves, whatever the flow read before.
func (s *session) moved(b *Bound) bool {
	st := s.flowState(b)
	known := st.Phase == checkpoint.Live || st.Phase == checkpoint.Copying
	another := st.Source != b.Relation.Table.Name && st.ID != b.Relation.Table.ID
	return b.flow != nil && b.Spec.FromLog() && known && another && (b.Spec.Sequenced.Feed || b.Spec.Once || st.ID == 0)
}

// number gives flows the numbers that they had, and new ones numbers behind those.
func (s *session) number() {
	next := map[change.Name]uint16{}
	for i := range s.bound {
		b := &s.bound[i]
		have := s.flowsOf(b.Target.Name)
		if b.flow == nil || len(have) == 0 || s.asked(b) || !s.knows(b.Target.Name) {
			continue
		}
		order, known := s.flowState(b).Order, s.flowState(b).Phase != checkpoint.None
		if !known {
			for _, f := range have {
				next[b.Target.Name] = max(next[b.Target.Name], f.Order+1)
			}
			order = next[b.Target.Name]
			next[b.Target.Name]++
		}
		b.order, b.flow.Order = int(order), order
	}
}

// stateOf makes the state of a flow.
func stateOf(b *Bound, phase checkpoint.Phase, since change.Position) checkpoint.Flow {
	f := checkpoint.Flow{Target: b.Target.Name, Name: b.name(), Order: uint16(b.order), Source: b.Relation.Table.Name, Phase: phase}
	if b.Spec.FromLog() {
		f.ID, f.Since = b.Relation.Table.ID, since
	}
	return f
}

// copiedFlows are the states of all flows into a target that was just made, and the end
// of those that it had.
func (s *session) copiedFlows(target change.Name, since change.Position) []checkpoint.Flow {
	states := forgotten(s.flowsOf(target))
	for i := range s.bound {
		if b := &s.bound[i]; b.flow != nil && b.Target.Name == target {
			states = putFlow(states, stateOf(b, checkpoint.Live, since))
		}
	}
	return states
}

// forgotten makes the states that let the destination forget flows.
func forgotten(flows []checkpoint.Flow) []checkpoint.Flow {
	out := slices.Clone(flows)
	for i := range out {
		out[i].Phase = checkpoint.None
	}
	return out
}

// putFlow adds a state, in place of the flow's former one.
func putFlow(flows []checkpoint.Flow, f checkpoint.Flow) []checkpoint.Flow {
	for i := range flows {
		if flows[i].Target == f.Target && flows[i].Name == f.Name {
			flows[i] = f
			return flows
		}
	}
	return append(flows, f)
}

// arrival is what the configuration changed in the flows of targets that are there.
type arrival struct {
	flows  []*Bound          // to be copied, or of files: to be followed from the first one
	states []checkpoint.Flow // of flows that left, and of those that an earlier version knew
	since  map[*Bound]change.Position
}

// arrivals looks for flows that are new to targets that are there, whose copy died, or
// that are no longer declared.
func (s *session) arrivals() (*arrival, error) {
	a := &arrival{since: map[*Bound]change.Position{}}
	left := s.leaving()
	for _, f := range left {
		if f.Phase != checkpoint.Left {
			s.Log.Warn("flow is no longer declared; what it wrote stays in its target, it is not followed any more", "flow", f.Name, "target", f.Target.String())
			f.Phase = checkpoint.Left
			a.states = append(a.states, f)
		}
	}
	for i := range s.bound {
		b := &s.bound[i]
		target := b.Target.Name
		if b.flow == nil || s.asked(b) || !s.knows(target) || s.state(target).Phase == checkpoint.Parked {
			continue
		}
		st := s.flowState(b)
		switch {
		case s.moved(b) || s.isNew(b.Spec, target):
			if err := s.welcome(b, left, a); err != nil {
				return nil, err
			}
		case st.Phase == checkpoint.Copying && b.Spec.FromLog():
			a.since[b] = st.Since // of the first copy
		default:
			if st.Phase == checkpoint.None || !b.Spec.FromLog() && st.Source != b.Relation.Table.Name {
				a.states = append(a.states, stateOf(b, checkpoint.Live, s.state(target).Since))
			}
			continue
		}
		a.flows = append(a.flows, b)
	}
	return a, nil
}

// leaving are the flows into targets that are there which nobody declares.
func (s *session) leaving() (left []checkpoint.Flow) {
	for _, f := range s.mark.Flows {
		declared := slices.ContainsFunc(s.Flows, func(spec flow.Spec) bool {
			if !spec.ByEvents() || spec.IsPattern() {
				return false
			}
			target := spec.TargetFor(specRelation(&spec, s.SourceSchema), s.SourceSchema, s.DefaultSchema)
			return target == f.Target && identity(&spec, target) == f.Name
		})
		if !declared {
			left = append(left, f)
		}
	}
	return left
}

// specRelation is the relation of a flow that is no pattern.
func specRelation(spec *flow.Spec, sourceDefault string) change.Name {
	if spec.Snapshot != nil {
		return spec.Snapshot.Name(sourceDefault)
	}
	schema, table := flow.SplitName(spec.Source)
	if schema == "" && !spec.Files {
		schema = sourceDefault
	}
	return change.Name{Schema: schema, Table: table}
}

// welcome judges a new flow. A table's rows may be in the target under another flow's
// name. If that flow left just now, the new one goes on from where the other is; if it
// left before, deletes of its rows were missed.
func (s *session) welcome(b *Bound, left []checkpoint.Flow, a *arrival) error {
	relation := b.Relation.Table.Name
	missed := ""
	for _, f := range append(slices.Clip(left), s.flowState(b)) {
		if f.Target != b.Target.Name || f.Source != relation || !b.Spec.FromLog() {
			continue
		}
		if f.Phase == checkpoint.Left {
			missed = f.Name
			continue
		}
		a.since[b] = f.Since
		f.Phase, f.Source = checkpoint.Left, change.Name{} // its rows are the new flow's
		a.states = putFlow(a.states, f)
	}
	_, goesOn := a.since[b]
	if missed != "" && !goesOn && !b.Spec.Sequenced.Feed && !b.Spec.Once {
		return fault.Refuse(fmt.Sprintf("`tailrace backfill --table %s --overwrite` makes the target anew, with all its flows", b.Target.Name),
			"flow %s: rows of table %s came into target %s through flow %s, which was not followed for a while: deletes of that time were missed", b.name(), relation, b.Target.Name, missed)
	}
	s.Log.Info("flow is new in a target that is there; its relation is read from the beginning (a renamed flow is a new flow)",
		"flow", b.name(), "target", b.Target.Name.String(), "relation", relation.String())
	return nil
}

// needsCopy reports whether rows of the log's source are to be copied.
func (a *arrival) needsCopy() bool {
	return slices.ContainsFunc(a.flows, func(b *Bound) bool { return b.Spec.FromLog() })
}

// admit copies the relations of new flows into their targets, whose other flows are not
// concerned. snap is nil where all are of files.
func (s *session) admit(ctx context.Context, a *arrival, snap source.Snapshot) error {
	states := slices.Clone(a.states)
	for _, b := range a.flows {
		if !b.Spec.FromLog() {
			states = append(states, stateOf(b, checkpoint.Live, change.Position{}))
			continue
		}
		since, begun := a.since[b]
		if !begun {
			since = snap.Position()
			a.since[b] = since
		}
		states = append(states, stateOf(b, checkpoint.Copying, since))
	}
	if err := s.saveFlows(ctx, states); err != nil {
		return err
	}
	fault.KillPoint("flows arrived")
	for _, b := range a.flows {
		if err := s.resolveOf(ctx, b); err != nil {
			return err
		}
		if !b.Spec.FromLog() {
			continue
		}
		began := time.Now()
		c, err := s.channelOf(b.Target.Name)
		if err == nil {
			err = c.recall(ctx)
		}
		if err != nil {
			return err
		}
		rows, err := s.copyEvents(ctx, c, b, snap)
		if err != nil {
			return fmt.Errorf("copy table %s for flow %s: %w", b.Relation.Table.Name, b.name(), err)
		}
		if err := s.saveFlows(ctx, []checkpoint.Flow{stateOf(b, checkpoint.Live, a.since[b])}); err != nil {
			return err
		}
		fault.KillPoint("flow copied")
		s.Log.Info("flow copied", "flow", b.name(), "target", b.Target.Name.String(), "events", rows, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))
	}
	return nil
}

// saveFlows writes states of flows; the rest of the mark stays as it is.
func (s *session) saveFlows(ctx context.Context, states []checkpoint.Flow) error {
	if len(states) == 0 {
		return nil
	}
	m := s.head()
	m.Flows = states
	if err := s.dst.Save(ctx, m); err != nil {
		return fmt.Errorf("write the mark: %w", err)
	}
	s.rememberFlows(states)
	return nil
}

func (s *session) rememberFlows(states []checkpoint.Flow) {
	s.markMu.Lock()
	defer s.markMu.Unlock()
	s.mark.Flows = upsertFlows(s.mark.Flows, states)
}

func upsertFlows(have, states []checkpoint.Flow) []checkpoint.Flow {
	out := slices.Clone(have)
	for _, f := range states {
		out = putFlow(out, f)
	}
	return slices.DeleteFunc(out, func(f checkpoint.Flow) bool { return f.Phase == checkpoint.None })
}

// resolveOf resolves the events that a flow has in quarantine: its relation is read from
// the beginning, and those that are still bad come again; so do violations.
func (s *session) resolveOf(ctx context.Context, b *Bound) error {
	memory, ok := s.dst.(sink.Memory)
	if !ok {
		return fault.Badly("target %s: this destination does not take flows with sequence_by", b.Target.Name)
	}
	if err := memory.Afresh(ctx, b.Target.Name, b.name()); err != nil {
		return fmt.Errorf("resolve the quarantine of flow %s: %w", b.name(), err)
	}
	return nil
}
