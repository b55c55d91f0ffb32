package pipeline

import (
	"context"
	"fmt"

	"tailrace/checkpoint"
	"tailrace/source"
)

// failover goes over to the server that has taken the place of the mark's.
//
// Tables that wait for the mark to reach their copy's position are parked: that position
// is one of the former server's, and which of the new one's transactions are in the copy
// cannot be told from it.
func (s *session) failover(ctx context.Context, to *checkpoint.Elsewhere, state source.State) error {
	from, ahead := s.mark, s.mark.Tables
	m := s.mark
	m.Source, m.Position, m.Resume, m.Flows = DecideState(state).Identity, to.Position, to.Resume, nil
	m.Tables = nil
	for _, t := range ahead {
		waits := t.Catches()
		for _, f := range s.flowsOf(t.Target) {
			waits = waits || from.Position.Before(f.Since)
		}
		if waits {
			m.Tables = append(m.Tables, s.parked(t, fmt.Sprintf("the source is another server since %s; the table was copied at a later place of the former server's log", from.Position), ""))
		}
	}
	if err := s.save(ctx, m); err != nil {
		return fmt.Errorf("go over to another server: %w", err)
	}
	s.Log.Warn("the source is another server of the same history; the mark's place was found in its log", "server", m.Source.System, "before", from.Source.System,
		"position", to.Position.String(), "mark", from.Position.String())
	for _, t := range m.Tables {
		s.Log.Error("table is parked", "target", t.Target.String(), "reason", t.Reason)
	}
	return nil
}
