package pipeline

import (
	"context"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/source"
)

// trailing is a trail as the source that a follower reads.
type trailing struct {
	source.Source
	trail source.Trail
}

// Follow reads the trail, whose position is the stages'.
func (t trailing) Follow(ctx context.Context, _ change.Position, o source.FollowOptions, out func(context.Context, *change.Segment) error) error {
	return t.trail.Follow(ctx, o, out)
}

func (t trailing) Confirm(p change.Position) { t.trail.Confirm(p) }

// State and Watch say nothing: what they look at is the main stream's, which looks at it.
func (t trailing) State(context.Context) (source.State, error) { return source.State{}, nil }

func (t trailing) Watch(context.Context) ([]source.Loss, error) { return nil, nil }

// staging is stages as the destination that a follower writes. What is in them is
// durable enough at once: they do not outlive the process.
type staging struct {
	sink.Writer
	stager  sink.Stager
	applied Gauge
	resume  string // what the source says beside it; to be read when the stream has ended
}

func (s *staging) Apply(ctx context.Context, b *sink.Batch) error {
	err := s.stager.Apply(ctx, b)
	if err == nil && !b.More {
		s.applied.Set(b.Position)
		s.resume = b.Resume
	}
	return err
}

func (s *staging) Durable(context.Context) (change.Position, error) { return s.applied.Get(), nil }

// Create is asked for a table that got other columns: its stage has the old ones.
func (s *staging) Create(_ context.Context, t *scd.Target) error {
	return fault.Retry(nil, "table %s was altered while it was copied", t.Source)
}

// Save has nothing to write: stages have no mark.
func (s *staging) Save(context.Context, checkpoint.Mark) error { return nil }
