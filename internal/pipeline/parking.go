package pipeline

import (
	"errors"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
)

// parking is an error that concerns one target alone: the pipeline goes on without it.
// The stream is left, and the target parked by the front door, so that nothing of the
// batch at work has to be taken apart.
type parking struct {
	target         change.Name
	reason, remedy string
	cause          error
}

func (p *parking) Error() string { return p.cause.Error() }
func (p *parking) Unwrap() error { return p.cause }

// parkedBy makes of an error that says so one that parks a target.
func parkedBy(target change.Name, err error) error {
	var p *sequenced.Park
	if errors.As(err, &p) {
		return &parking{target: target, reason: p.Reason, remedy: p.Remedy, cause: err}
	}
	return err
}
