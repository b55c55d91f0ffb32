package pipeline

import (
	"errors"
	"fmt"
	"slices"

	"tailrace/checkpoint"
	"tailrace/sink"
)

// misfitError is why a target that was copied does not take its flow any more, although
// the flow is the one that it was made for: somebody has changed the table.
type misfitError struct{ error }

func (e misfitError) Unwrap() error { return e.error }

// misfit makes one of what Create says to a target whose plan says what stands against
// it. What the flow has brought about by another declaration is for the configuration to
// mend, and the target is as good as it was: that stays a refusal.
func misfit(p sink.Plan, err error) error {
	blocks := func(f sink.Finding) bool { return f.Blocks }
	declared := func(f sink.Finding) bool { return f.Flow }
	if err == nil || p.Unremembered || !slices.ContainsFunc(p.Problems, blocks) || slices.ContainsFunc(p.Problems, declared) {
		return err
	}
	return misfitError{err}
}

// alone reports whether an error at the start concerns one target.
func alone(err error) bool {
	var m misfitError
	return errors.As(err, &m)
}

// unfitTarget is a target with its misfit.
type unfitTarget struct {
	*Bound
	err error
}

// parkUnfit gives the states of targets that somebody has changed so that they do not
// fit any more, as a fault of one table in the middle of the stream does. If nothing would
// go on without them it is an error: one statement mends it, and a parked table needs a
// copy.
func (s *session) parkUnfit(unfit []unfitTarget) (parked []checkpoint.Table, err error) {
	if len(unfit) == 0 {
		return nil, nil
	}
	goesOn := func(b Bound) bool {
		return s.state(b.Target.Name).Phase != checkpoint.Parked &&
			!slices.ContainsFunc(unfit, func(u unfitTarget) bool { return u.Target.Name == b.Target.Name })
	}
	if !slices.ContainsFunc(s.bound, goesOn) {
		return nil, fmt.Errorf("prepare target %s: %w", unfit[0].Target.Name, unfit[0].err)
	}
	for _, u := range unfit {
		p := parkedFor(u.Target.Name, u.err)
		parked = append(parked, s.parked(s.state(u.Target.Name), "the target does not fit any more: "+p.reason, p.remedy))
	}
	return parked, nil
}
