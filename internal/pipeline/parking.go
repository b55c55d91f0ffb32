package pipeline

import (
	"errors"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
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

// parkedByTarget makes of the destination's error that concerns one target alone one that parks it.
func parkedByTarget(err error) error {
	var alone *sink.TargetError
	if !errors.As(err, &alone) {
		return err
	}
	return parkedFor(alone.Target, err)
}

// parkedByRefusal makes of a refusal of ours that concerns a target one that parks it.
func parkedByRefusal(target change.Name, err error) error {
	var refused *fault.Error
	if errors.As(err, &refused) && refused.Kind == fault.Operator && refused.Err == nil {
		return parkedFor(target, err)
	}
	return err
}

func parkedFor(target change.Name, err error) *parking {
	p := &parking{target: target, reason: err.Error(), cause: err}
	var judged *fault.Error
	if errors.As(err, &judged) {
		p.remedy = judged.Remedy
		p.reason = strings.TrimSuffix(p.reason, "\n  remedy: "+p.remedy)
	}
	return p
}

// parkedByLoss makes of a source's error that concerns one table one that parks a target
// of it. If it has several, the next session meets the next.
func (f *follower) parkedByLoss(err error) error {
	var lost *source.TableLost
	if !errors.As(err, &lost) {
		return err
	}
	for _, r := range f.routes[fromSource.relation(lost.Loss.ID)] {
		return &parking{target: r.Target.Name, reason: lost.Loss.Reason, remedy: lost.Loss.Remedy, cause: err}
	}
	return err
}
