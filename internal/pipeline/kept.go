package pipeline

import (
	"context"
	"fmt"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/source"
)

// DecideKept is checkpoint.Decide, with what the source keeps for rewind points where the
// live slot does not serve.
func DecideKept(ctx context.Context, m checkpoint.Mark, state source.State, src source.Source) (checkpoint.Decision, error) {
	facts := DecideState(state)
	d, err := checkpoint.Decide(m, facts)
	if err == nil {
		return d, nil
	}
	kept, failed := WithKept(ctx, facts, src)
	if failed != nil {
		return d, failed
	}
	return checkpoint.Decide(m, kept)
}

// WithKept adds what the source keeps for rewind points to what Decide is told.
func WithKept(ctx context.Context, facts checkpoint.SourceState, src source.Source) (checkpoint.SourceState, error) {
	keeper, ok := src.(source.Keeper)
	if !ok || facts.Keepless || facts.Slotless {
		return facts, nil
	}
	kept, err := keeper.Kept(ctx)
	if err != nil {
		return facts, fmt.Errorf("ask what the source keeps for rewind points: %w", err)
	}
	facts.Kept, facts.KeptFrom = kept.Exists && !kept.Lost, kept.From
	return facts, nil
}

// returns replaces a live slot that cannot be followed from the mark by what is kept for
// rewind points, which can.
func (s *session) returns(ctx context.Context, m checkpoint.Mark) (d checkpoint.Decision, state source.State, err error) {
	keeper, ok := s.src.(source.Keeper)
	if !ok {
		return d, state, fault.Corrupted("the source keeps nothing for rewind points")
	}
	if err := keeper.Return(ctx, m.Position); err != nil {
		return d, state, fmt.Errorf("make the log readable from %s on: %w", m.Position, err)
	}
	fault.KillPoint("live slot returned")
	if state, err = s.src.State(ctx); err != nil {
		return d, state, fmt.Errorf("read the source's state: %w", err)
	}
	s.Log.Warn("the live slot did not have the log behind the mark (a rewind was interrupted, or the destination was restored from a backup); it was replaced by a copy of what is kept for rewind points",
		"slot", state.Slot.Name, "confirmed", state.Slot.Confirmed.String(), "mark", m.Position.String())
	d, err = checkpoint.Decide(m, DecideState(state))
	return d, state, err
}
