package pipeline

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/source"
)

// Resynced is what Resync did.
type Resynced struct {
	Target   change.Name
	Type2    bool
	Position change.Position // of the copy, and of the mark at which it took the target's place
	Rows     int64           // of the copy
	sink.Replaced
	Parked bool // it was, and is not any more
	Took   time.Duration
	Waited time.Duration // of Took: nothing was applied to any target
}

// Resync copies the source table of one target again, and makes the target equal to the
// copy in one transaction of the destination. It owns the pipeline meanwhile. The
// target's changes up to the copy's position are contained in it.
func Resync(ctx context.Context, c Config, target string) (r Resynced, err error) {
	err = Run(ctx, c, Mode{errand: func(stop, work context.Context, s *session) error {
		r, err = s.resync(stop, work, target, s.Progress)
		return err
	}})
	if err == nil && ctx.Err() != nil {
		err = fault.Refuse("run it again", "the resync was stopped; nothing has happened")
	}
	return r, err
}

// Resync has the running pipeline do what the function of this name does, beside its
// stream where source and destination can. If another copy is at work it waits for that.
// How far it is goes to report, too.
func (h *Hold) Resync(ctx context.Context, target string, report func(HowFar)) (r Resynced, err error) {
	for {
		var other, mine *copier
		err := h.errand(ctx, func(stop, work context.Context, s *session) (err error) {
			if other = s.copies.running(); other != nil {
				return nil
			}
			shown := &watched{Progress: s.Progress, report: report, target: target}
			if b, wrong := s.ordered(target); wrong == nil && s.copiesBeside() && b.judge == nil {
				mine, err = s.resyncBeside(work, target, shown)
			} else {
				r, err = s.resync(stop, work, target, shown)
			}
			return err
		})
		switch {
		case err != nil:
			return r, err
		case mine != nil:
			<-mine.done
			if mine.err != nil {
				return r, mine.err
			}
			return mine.results[0], nil
		case other == nil:
			return r, nil
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// resyncBeside begins a resync beside the stream. A parked table is published before the
// snapshot is taken.
func (s *session) resyncBeside(work context.Context, name string, shown hydrate.Progress) (*copier, error) {
	b, err := s.ordered(name)
	if err != nil {
		return nil, err
	}
	s.mode.Tables = []string{b.Target.Name.String()}
	defer func() { s.mode.Tables = nil }()
	if err := s.ready(work, b); err != nil {
		return nil, err
	}
	return s.copyBeside([]Bound{*b}, shown, nil), nil
}

// ready prepares source and destination for a new copy of a table that was asked for.
func (s *session) ready(work context.Context, b *Bound) error {
	if err := s.preflight(work, []Bound{*b}, true); err != nil {
		return err
	}
	if err := s.src.Publish(work, s.publishable()); err != nil {
		return fmt.Errorf("change the publications: %w", err)
	}
	if err := s.dst.Create(work, b.Target); err != nil {
		return fmt.Errorf("make target %s: %w", b.Target.Name, err)
	}
	return nil
}

func (s *session) resync(stop, work context.Context, name string, shown hydrate.Progress) (r Resynced, err error) {
	b, err := s.ordered(name)
	if err != nil {
		return r, err
	}
	stages, ok := s.dst.(sink.Resyncs)
	if !ok {
		return r, fault.Badly("this destination cannot copy a table again beside its readers; use `tailrace backfill --table %s --overwrite`", b.Target.Name)
	}
	before := s.state(b.Target.Name)
	began := time.Now()
	r = Resynced{Target: b.Target.Name, Type2: b.Target.Kind == scd.Type2, Parked: before.Phase == checkpoint.Parked}

	// The table is published before the snapshot is taken: what comes later is in the
	// stream. Until the target is replaced it stays as it is, parked or not; the next
	// start takes a parked one out again.
	s.mode.Tables = []string{b.Target.Name.String()}
	defer func() { s.mode.Tables = nil }()
	if err := s.ready(work, b); err != nil {
		return r, err
	}
	snap, err := s.snapshotFor(work)
	if err != nil {
		return r, err
	}
	defer s.close("snapshot", snap.Close)
	if err := s.cut(stop, work, placeOf(snap)); err != nil {
		return r, err
	}
	r.Position = snap.Position()
	if s.mark.Position != r.Position {
		return r, fault.Retry(nil, "the mark at %s lies behind the snapshot at %s", s.mark.Position, r.Position)
	}
	var judged *sink.Judged
	if b.judge != nil {
		judged = &sink.Judged{Flow: b.name()}
	}
	if r.Rows, err = s.stage(stop, work, stages, b, snap, judged, shown); err != nil {
		return r, err
	}
	fault.KillPoint("stage filled")
	done := s.tableState(b, checkpoint.Live, r.Position)
	replacement := sink.Replacement{At: snap.Clock(), Done: done, Judged: judged}
	if r.Type2 {
		replacement.Gap = &sink.Gap{Target: b.Target.Name, From: r.Position, To: r.Position, Reason: "copied again while it was live"}
		if r.Parked {
			replacement.Gap.From, replacement.Gap.Reason = before.Since, "it was parked: "+before.Reason
		}
	}
	r.Replaced, err = stages.Replace(work, b.Target, replacement)
	if err != nil {
		return r, err
	}
	fault.KillPoint("resync done")
	s.remember(done)
	if judged != nil {
		s.Stats.Met(judged.Met)
		s.Stats.resolved(judged.Flow, s.Stats.Unresolved()[judged.Flow])
		for range judged.Aside {
			s.Stats.aside(judged.Flow)
		}
	}
	r.Took = time.Since(began)
	r.Waited = r.Took
	s.Log.Info("copied again", "target", r.Target.String(), "position", r.Position.String(), "rows", r.Rows, "removed", r.Removed, "written", r.Written, "seconds", fmt.Sprintf("%.1f", r.Took.Seconds()))
	return r, nil
}

// ordered finds the target of an ordered flow that has been copied.
func (s *session) ordered(name string) (*Bound, error) {
	i := slices.IndexFunc(s.bound, func(b Bound) bool { return named(name, &b) })
	if i < 0 {
		return nil, fault.Badly("--table %s: no flow has such a target", name)
	}
	b := &s.bound[i]
	if b.Blocked != nil {
		return nil, fault.Refuse(b.Blocked.Remedy, "%s", b.Blocked.What)
	}
	if b.flow != nil || b.Spec.Files || b.Spec.Once {
		return nil, fault.Refuse(fmt.Sprintf("stop the daemon, then: tailrace backfill --table %s --overwrite", b.Target.Name),
			"target %s is not made of one table's rows in the order of the log: its flow has a sequence, files, or is a copy of one time", b.Target.Name)
	}
	switch phase := s.state(b.Target.Name).Phase; phase {
	case checkpoint.Live, checkpoint.Parked:
		return b, nil
	default:
		return nil, fault.Refuse("wait until `tailrace status` shows it as live", "target %s is %s", b.Target.Name, phase.Shown())
	}
}

// stage copies the source table into the target's stage.
func (s *session) stage(stop, work context.Context, stages sink.Resyncs, b *Bound, snap source.Snapshot, judged *sink.Judged, shown hydrate.Progress) (rows int64, err error) {
	ctx, cancel := context.WithCancel(work) // a stop ends a copy at once
	defer cancel()
	defer context.AfterFunc(stop, cancel)()
	req := source.CopyRequest{Table: b.Relation.Table, Binary: s.binary}
	for _, c := range b.Target.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	read := snap.Copy
	if judged != nil {
		read = s.judging(b, snap, 0, judged)
	}
	err = hydrate.Run(ctx, []hydrate.Table{{
		Name: b.Target.Name.String(), Rows: b.Relation.Rows, Bytes: b.Relation.Size,
		Read: func(ctx context.Context, w io.Writer) (int64, error) { return read(ctx, req, w) },
		Load: func(ctx context.Context, r io.Reader) (n int64, err error) {
			rows, err = stages.Stage(ctx, b.Target, sink.Copy{Binary: s.binary, Rows: r})
			return rows, err
		},
	}}, 1, shown)
	if err != nil && stop.Err() != nil {
		err = stop.Err()
	}
	return rows, err
}
