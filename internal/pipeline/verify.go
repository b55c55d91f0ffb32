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
	"tailrace/sink"
	"tailrace/source"
)

// Comparison is what verify found for one target.
type Comparison struct {
	Target      change.Name
	Rows        int64    // rows of the source
	Differences int64    // rows that differ, are missing or too many; at least this many if Cut
	Cut         bool     // it stopped looking for more
	Examples    []string // keys of the first of them, with what differs
	Violations  []string // broken invariants of the target
	Skipped     string   // not compared, and why
	Once        bool     // it was copied once and is not followed: its source may differ by now
	Events      string   // its source holds events, not rows: it was compared with those that are remembered; what of it
	Checked     string   // with Events: which invariants were checked
	Snapshots   string   // with Events: snapshots alone make them; the flow's name
	Repair      *Repair  // nil: none was asked for or needed
}

// Checking says what Verify does.
type Checking struct {
	Tables []string `json:"tables,omitempty"` // targets; empty: all
	Repair bool     `json:"repair,omitempty"` // make what differs equal; only of named targets
}

// refuse finds what cannot be done, before anything is done.
func (o Checking) refuse(s *session) error {
	if !o.Repair {
		return nil
	}
	if err := s.stagesFree(); err != nil {
		return err
	}
	for _, name := range o.Tables {
		if _, err := s.repairable(name); err != nil {
			return err
		}
	}
	return nil
}

// Verify catches up to the position of a snapshot of the source, and compares every
// live target with that snapshot: both sides at one position, even while the source
// is being written. It owns the pipeline meanwhile.
func Verify(ctx context.Context, c Config, o Checking, report func(Comparison)) error {
	return Run(ctx, c, Mode{atSnapshot: func(ctx context.Context, snap source.Snapshot, s *session) error {
		if err := o.refuse(s); err != nil {
			return err
		}
		list, err := s.chosen(o.Tables)
		if err != nil {
			return err
		}
		w := watching(list, c.HowFar)
		for _, b := range list {
			w.begin(b)
			result, done, err := s.withoutScan(ctx, b)
			if err == nil && !done {
				keys := o.keys()
				if result, err = s.compare(ctx, b, snap, s.dst, keys, w); err == nil && keys.wants(result) {
					result.Repair, err = s.repair(ctx, b, snap, keys, w)
					if err == nil {
						err = s.compareAgain(ctx, b, snap, s.dst, result.Repair, w)
					}
				}
			}
			if err != nil {
				return err
			}
			w.end(b)
			report(result)
		}
		return nil
	}})
}

// verifyMost bounds a comparison beside a running pipeline: as long as it takes, the
// source keeps its log and dead rows for the snapshot, and the destination those that
// are replaced.
const verifyMost = 6 * time.Hour

// Verify compares beside the running pipeline. The stream is cut at the position of a
// snapshot of the source, and the destination is asked to keep that moment; then the
// stream goes on, and the two moments are compared. Targets with a sequence, which are
// compared inside the destination, are compared before the stream goes on.
//
// A repair cuts the stream once more: the stream rests while the rows that differed are
// read again and put right, and goes on; then the repaired targets are compared again
// as they stand at that position.
func (h *Hold) Verify(ctx context.Context, o Checking, how func(HowFar)) ([]Comparison, error) {
	how(HowFar{Doing: "taking a snapshot of the source"})
	v, err := h.moment(ctx, func(stop, work context.Context, v *verification) error {
		if err := o.refuse(v.session); err != nil {
			return err
		}
		return v.begin(stop, work, o)
	})
	if err != nil {
		return nil, err
	}
	v.watch = watching(v.list, how)
	err = v.run(ctx)
	v.close()
	if err != nil || !slices.ContainsFunc(v.keys, func(k *keySet) bool { return k != nil }) {
		return v.results, err
	}
	again, err := h.moment(ctx, func(stop, work context.Context, again *verification) error { return again.mend(stop, work, v) })
	if err != nil {
		return nil, err
	}
	defer again.close()
	return v.results, again.look(ctx, v)
}

// moment has fn open a moment while the stream stands.
func (h *Hold) moment(ctx context.Context, fn func(stop, work context.Context, v *verification) error) (v *verification, err error) {
	err = h.errand(ctx, func(stop, work context.Context, s *session) error {
		views, ok := s.dst.(sink.Views)
		if !ok {
			return fault.Badly("this destination cannot be compared beside a running pipeline: stop it first")
		}
		v = &verification{session: s}
		err := fn(stop, work, v)
		if err == nil {
			v.view, err = views.View(work)
		}
		if err != nil {
			v.close()
		}
		return err
	})
	return v, err
}

var errVerifyLong = errors.New("the comparison takes too long")

// verification is a comparison of two moments. Of the session it uses what does not
// change: destination and log.
type verification struct {
	*session
	list    []*Bound
	results []Comparison
	done    []bool    // there is a result
	keys    []*keySet // what differs in each target; nil: nothing, or it is not to be repaired
	snap    source.Snapshot
	view    sink.View
	watch   *watch
}

// begin cuts the stream at a snapshot.
func (v *verification) begin(stop, work context.Context, o Checking) (err error) {
	if v.list, err = v.chosen(o.Tables); err != nil {
		return err
	}
	v.results, v.done, v.keys = make([]Comparison, len(v.list)), make([]bool, len(v.list)), make([]*keySet, len(v.list))
	if err = v.cutAtSnapshot(stop, work); err != nil {
		return err
	}
	for i, b := range v.list {
		v.keys[i] = o.keys()
		if v.results[i], v.done[i], err = v.withoutScan(work, b); err != nil {
			return err
		}
	}
	return nil
}

func (v *verification) cutAtSnapshot(stop, work context.Context) (err error) {
	if v.snap, err = v.snapshotFor(work); err != nil {
		return err
	}
	if err = v.cut(stop, work, placeOf(v.snap)); err != nil {
		return err
	}
	if v.mark.Position != v.snap.Position() {
		return fault.Retry(nil, "the mark at %s lies behind the snapshot at %s", v.mark.Position, v.snap.Position())
	}
	return nil
}

// run compares what has no result yet; the keys of targets that need no repair go.
func (v *verification) run(ctx context.Context) error {
	return v.limited(ctx, func(ctx context.Context) (err error) {
		for i, b := range v.list {
			v.watch.begin(b)
			if !v.done[i] {
				began := time.Now()
				if v.results[i], err = v.compare(ctx, b, v.snap, v.view, v.keys[i], v.watch); err != nil {
					return err
				}
				v.Log.Info("compared with the source", "target", b.Target.Name.String(), "position", v.snap.Position().String(),
					"rows", v.results[i].Rows, "differences", v.results[i].Differences, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))
			}
			if !v.keys[i].wants(v.results[i]) {
				v.keys[i] = nil
			}
			v.watch.end(b)
		}
		return nil
	})
}

// limited runs a comparison in the time that it has.
func (v *verification) limited(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, verifyMost, errVerifyLong)
	defer cancel()
	err := fn(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errVerifyLong) {
		return fault.Refuse("compare fewer targets at once with --table", "the comparison took more than %s", verifyMost)
	}
	return err
}

func (v *verification) close() {
	if v.view != nil {
		v.view.Close(context.Background())
	}
	if v.snap != nil {
		v.session.close("snapshot", v.snap.Close)
	}
}

// chosen lists the first flow into each of the named targets, or of all.
func (s *session) chosen(tables []string) (list []*Bound, err error) {
	for _, name := range tables {
		if !slices.ContainsFunc(s.bound, func(b Bound) bool { return named(name, &b) }) {
			return nil, fault.Badly("--table %s: no flow has such a target", name)
		}
	}
	for i := range s.bound {
		b := &s.bound[i]
		if !b.second && (len(tables) == 0 || slices.ContainsFunc(tables, func(name string) bool { return named(name, b) })) {
			list = append(list, b)
		}
	}
	return list, nil
}

// withoutScan gives the result for targets that are not compared with rows of the
// source; done is false for the others.
func (s *session) withoutScan(ctx context.Context, b *Bound) (result Comparison, done bool, err error) {
	switch st := s.state(b.Target.Name); {
	case st.Phase == checkpoint.Parked:
		return Comparison{Target: b.Target.Name, Skipped: "parked: " + st.Reason}, true, nil
	case st.Phase == checkpoint.Adopting && s.mark.Position.Before(st.Since):
		return Comparison{Target: b.Target.Name, Skipped: fmt.Sprintf("catching: it came from a backup that ends at %s", st.Since)}, true, nil
	case st.Phase == checkpoint.Copying:
		return Comparison{Target: b.Target.Name, Skipped: "it is being copied"}, true, nil
	case b.Spec.Once && b.flow == nil:
		return Comparison{Target: b.Target.Name, Once: true}, true, nil
	case b.flow != nil:
		if result, err = s.verifyEvents(ctx, b); err != nil {
			err = fmt.Errorf("verify %s: %w", b.Target.Name, err)
		}
		return result, true, err
	}
	return Comparison{}, false, nil
}
