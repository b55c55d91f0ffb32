package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd"
)

// Tables that come to a pipeline whose other targets are live are copied beside its
// stream. Until the stream meets the copy such a table is copying: what the stream
// brings of it is dropped. Then it is live at the mark, like all others.
//
// A copy that fails concerns its tables alone. What may pass is tried again, after
// a new look at the catalogue; what an operator must mend parks the table.

// A copy that failed for a reason that may pass begins again after 2 s, doubling to a
// minute: each costs the source a reading of the tables.
const (
	addAgainFirst = 2 * time.Second
	addAgainLast  = time.Minute
)

// beside takes those tables out of the missing ones that are copied beside the stream:
// of ordered flows without expectations, where others are live. A history that is to begin at -infinity is
// not: a stage takes its target's place at an instant.
func (s *session) beside(missing []Bound) (wait, beside []Bound) {
	live := slices.ContainsFunc(s.bound, func(b Bound) bool { return s.state(b.Target.Name).Phase == checkpoint.Live })
	if !live || s.mark.Phase != checkpoint.Live || s.mode.Overwrite || !s.copiesBeside() {
		return missing, nil
	}
	for _, b := range missing {
		if b.flow != nil || b.judge != nil || b.Spec.Files || b.Spec.Once || s.asked(&b) || b.Target.Kind == scd.Type2 && b.Spec.HistoryStart == flow.HistoryStartInfinity {
			wait = append(wait, b)
		} else {
			beside = append(beside, b)
		}
	}
	return wait, beside
}

// addBeside begins to copy tables beside the stream, whose publication is committed. If
// another copy is at work they wait for that: it ends with a walk through here.
func (s *session) addBeside(ctx context.Context, tables []Bound) error {
	if len(tables) == 0 {
		return nil
	}
	m := s.mark
	m.Tables, m.Flows = nil, nil
	for i := range tables {
		m.Tables = append(m.Tables, s.tableState(&tables[i], checkpoint.Copying, change.Position{}))
	}
	if err := s.save(ctx, m); err != nil {
		return err
	}
	if s.copies.running() != nil {
		return nil
	}
	for i := range tables {
		if err := s.dst.Create(ctx, tables[i].Target); err != nil {
			return fmt.Errorf("make target %s: %w", tables[i].Target.Name, err)
		}
	}
	s.copyBeside(tables, s.Progress, s.added)
	return nil
}

// added judges what came of such a copy.
func (s *session) added(life context.Context, c *copier) {
	if c.err == nil {
		s.copies.again = 0
		return
	}
	if life.Err() != nil || c.ended.Load() {
		return // it begins again by itself
	}
	var alone *parking
	var parked []*parking
	switch {
	case errors.As(c.err, &alone):
		parked = []*parking{alone}
	case fault.KindOf(c.err) != fault.Transient:
		for _, b := range c.tables {
			parked = append(parked, parkedFor(b.Target.Name, c.err))
		}
	default:
		s.copies.again = min(max(2*s.copies.again, addAgainFirst), addAgainLast)
		s.Log.Warn("the copy beside the stream will begin again", "tables", c.names(), "in", s.copies.again.String(), "error", c.err.Error())
		select {
		case <-time.After(s.copies.again):
		case <-life.Done():
			return
		}
	}
	// The walk after this errand begins again with the tables that are left.
	err := s.hold.errand(life, func(_, work context.Context, s *session) error {
		var states []checkpoint.Table
		for _, p := range parked {
			states = append(states, s.parked(s.state(p.target), p.reason, p.remedy))
		}
		return s.park(work, states)
	})
	if err != nil && life.Err() == nil {
		s.Log.Warn("a copy beside the stream failed, and its tables could not be parked", "tables", c.names(), "error", err.Error())
	}
}
