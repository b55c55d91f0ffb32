package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/snapdiff"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// A snapshot is taken in two steps. First it is read from the source, to disk, which
// takes as long as the source needs and holds nobody up. Then it is compared with the
// target and what differs is written, at one mark and in one destination transaction: in
// a daemon as an errand, while the stream rests.
//
// A snapshot that cannot be applied concerns its flow alone: why is remembered beside
// the target until one can be, and the daemon tries again when the next one is due.

// shots are a session's snapshot flows at work.
type shots struct {
	begun  sync.Once
	missed error     // the first that a run which ends did not apply
	kicks  chan kick // those who ask for one out of turn

	mu     sync.Mutex
	bases  map[change.Name]sequenced.Base // by target: its newest
	copies []chan error                   // of those who wait for targets that are made anew
}

// copiedAgain gives what is closed when the targets that are to be made anew are copied.
func (h *shots) copiedAgain() chan error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan error, 1)
	h.copies = append(h.copies, c)
	return c
}

func (h *shots) copied() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.copies {
		c <- nil
	}
	h.copies = nil
}

func (h *shots) base(target change.Name) sequenced.Base {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bases[target]
}

func (h *shots) setBase(target change.Name, b sequenced.Base) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bases == nil {
		h.bases = map[change.Name]sequenced.Base{}
	}
	h.bases[target] = b
}

// errColumns: what a flow reads has other columns than it had when it was bound.
var errColumns = errors.New("columns changed")

// awaitsShot reports whether a target is declared by a snapshot flow that has nothing to
// read: its files are gone, or not there yet.
func (s *session) awaitsShot(target change.Name) bool {
	return slices.ContainsFunc(s.Flows, func(f flow.Spec) bool {
		return f.Snapshot != nil && f.TargetFor(specRelation(&f, s.SourceSchema), s.SourceSchema, s.DefaultSchema) == target
	})
}

// awaitShot waits where all flows are of snapshot files and none is there (rule R65).
func (s *session) awaitShot(stop, work context.Context) error {
	if s.resting() {
		_, err := s.errands(stop, work)
		return cmp.Or(err, errPaused)
	}
	if s.Attend == nil || s.moments != nil {
		return nil
	}
	select {
	case <-time.After(flow.FilesEvery):
		return errPaused // look again
	case <-stop.Done():
		return nil
	case <-work.Done():
		return work.Err()
	}
}

// shoot takes the snapshots that are due: in a run that ends all there are, in a daemon
// from now on beside the stream.
func (s *session) shoot(stop, work context.Context) error {
	flows := s.shotFlows()
	for _, b := range flows {
		c, err := s.channelOf(b.Target.Name)
		if err != nil {
			return err
		}
		_, base, _, err := c.defined(work)
		if err != nil {
			return err
		}
		s.shots.setBase(b.Target.Name, base)
	}
	if s.Attend != nil {
		if len(flows) > 0 {
			s.shots.begun.Do(func() {
				s.copies.group.Go(func() error { return s.shootAlways(s.copies.life) })
			})
		}
		if s.moments == nil || s.resting() {
			return nil
		}
	}
	if s.mode.Flow != "" {
		of, err := s.flowNamed(s.mode.Flow)
		if err != nil {
			return err
		}
		flows = slices.DeleteFunc(flows, func(b *Bound) bool { return b.Target.Name != of.Target.Name })
	}
	for _, b := range flows {
		for stop.Err() == nil {
			took, err := s.shot(work, b, func(x *exposure) error { return s.applyShot(work, x) })
			if s.broken != nil {
				return s.broken
			}
			if errors.Is(err, errColumns) {
				return errPaused // the next walk binds them
			}
			if err := s.missed(work, b, err); err != nil {
				return err
			}
			s.shots.missed = cmp.Or(s.shots.missed, err)
			if !took || err != nil || b.Spec.Snapshot.Path == "" {
				break // files are drained in the order of their versions (rule R60)
			}
		}
	}
	return nil
}

// shootAlways takes each flow's snapshots when they are due, one after the other.
func (s *session) shootAlways(ctx context.Context) error {
	last, said := map[string]time.Time{}, map[string]string{} // by flow: when it was last tried, and why it failed
	for {
		var due *Bound
		var at time.Time
		for _, b := range s.shotFlows() {
			if s.moments != nil {
				break // runs take them; here only who asks
			}
			next := b.Spec.Snapshot.Next(last[b.name()])
			if _, tried := last[b.name()]; !tried {
				next = time.Now() // a daemon's start is an update
			} else if next.IsZero() {
				continue
			}
			if due == nil || next.Before(at) {
				due, at = b, next
			}
		}
		if due == nil {
			at = time.Now().Add(flow.FilesEvery) // flows may come by a walk
		}
		timer := time.NewTimer(time.Until(at))
		var asked kick
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case asked = <-s.shots.kicks:
			timer.Stop()
			flows := s.shotFlows()
			i := slices.IndexFunc(flows, func(b *Bound) bool { return b.Target.Name == asked.target })
			if i < 0 {
				asked.done <- fault.Retry(nil, "target %s has no snapshot flow any more", asked.target)
				continue
			}
			due = flows[i]
		case <-timer.C:
		}
		if due == nil {
			continue
		}
		last[due.name()] = time.Now()
		took, err := s.shot(ctx, due, func(x *exposure) error {
			return s.hold.errand(ctx, func(_, work context.Context, s *session) error { return s.applyShot(work, x) })
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errColumns):
			delete(last, due.name()) // a walk binds them
			err := s.hold.errand(ctx, func(_, _ context.Context, _ *session) error { return nil })
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("the columns of a snapshot changed, and could not be looked at", "flow", due.name(), "error", err.Error())
				last[due.name()] = time.Now()
			}
		case err != nil && fault.KindOf(err) == fault.Transient:
			s.Log.Warn("a snapshot could not be taken; it is tried again when the next one is due", "flow", due.name(), "error", err.Error())
		case err != nil && said[due.name()] == err.Error():
			s.Log.Debug("a snapshot was not applied, for the same reason as before", "flow", due.name())
		case err != nil:
			said[due.name()] = err.Error()
			if err := s.hold.errand(ctx, func(_, work context.Context, s *session) error { return s.missed(work, due, err) }); err != nil && ctx.Err() == nil {
				s.Log.Warn("why a snapshot was not applied could not be written down", "flow", due.name(), "error", err.Error())
			}
		case took && due.Spec.Snapshot.Path != "":
			delete(last, due.name()) // the next file at once
			fallthrough
		case took:
			delete(said, due.name())
		}
		if asked.done != nil {
			asked.done <- err
		}
	}
}

// shotFlows copies the snapshot flows that are bound now, without those of parked targets.
func (s *session) shotFlows() (out []*Bound) {
	s.markMu.Lock()
	all := slices.Clone(s.bound)
	s.markMu.Unlock()
	for i := range all {
		if b := &all[i]; b.Spec.Snapshot != nil && s.state(b.Target.Name).Phase != checkpoint.Parked {
			out = append(out, b)
		}
	}
	return out
}

// missed remembers why a flow's snapshot was not applied. What may pass by itself is
// returned instead.
func (s *session) missed(ctx context.Context, b *Bound, err error) error {
	if err == nil {
		return nil
	}
	if kind := fault.KindOf(err); ctx.Err() != nil || kind != fault.Operator && kind != fault.Usage || errors.Is(err, fault.ErrFenced) || errors.Is(err, fault.ErrOwned) {
		return err
	}
	s.Log.Error("snapshot was not applied", "flow", b.name(), "target", b.Target.Name.String(), "reason", err.Error())
	failed := sequenced.Failed{Reason: err.Error(), At: time.Now().UnixMicro()}
	work := sequenced.Work{Put: []sequenced.Record{failed.Record()}}
	batch := &sink.Batch{Position: s.mark.Position, Resume: s.mark.Resume, CommitTime: s.mark.CommitTime, First: true,
		Targets: []sink.TargetRounds{{Target: b.Target, Hidden: &work}}}
	if err := s.dst.Apply(ctx, batch); err != nil {
		return fmt.Errorf("write why a snapshot was not applied: %w", err)
	}
	return nil
}

// shot takes a flow's next snapshot, if there is one, and has it applied.
func (s *session) shot(ctx context.Context, b *Bound, apply func(*exposure) error) (took bool, err error) {
	base := s.shots.base(b.Target.Name)
	if b.Spec.Once && !base.IsZero() {
		return false, nil // taken (rule R75)
	}
	read := s.exposeTable
	if b.Spec.Snapshot.Path != "" {
		read = s.exposeFile
	}
	x, err := read(ctx, b, base)
	if err != nil || x == nil {
		return false, err
	}
	defer x.close()
	fault.KillPoint("snapshot read")
	return true, apply(x)
}

// applyShot compares a snapshot with its target and writes what differs.
func (s *session) applyShot(ctx context.Context, x *exposure) error {
	began := time.Now()
	i := slices.IndexFunc(s.bound, func(b Bound) bool {
		return b.Spec.Snapshot != nil && b.name() == x.b.name() && b.Target.Name == x.b.Target.Name
	})
	if phase := s.state(x.b.Target.Name).Phase; i < 0 || phase == checkpoint.None || phase == checkpoint.Parked {
		return fault.Retry(nil, "flow %s cannot be written to at the moment", x.b.name())
	}
	c, err := s.channelOf(x.b.Target.Name)
	if err == nil {
		err = c.recall(ctx)
	}
	if err != nil {
		return err
	}
	if !sameColumns(c.target, x.b.Target) {
		return fault.Retry(nil, "the columns of target %s changed meanwhile", c.target.Name)
	}
	if base := c.lane.Base(); !base.IsZero() && x.place.Compare(base.Place) <= 0 {
		return nil // applied meanwhile
	}
	if err := s.held(ctx, c, x); err != nil {
		return err
	}
	if err := s.inQuarantine(ctx, c, x); err != nil {
		return err
	}
	counts, err := x.diff.Compare(ctx)
	if err != nil {
		return err
	}
	if err := s.guardShot(x, counts); err != nil {
		return err
	}
	fault.KillPoint("snapshot compared")
	base, err := s.writeShot(ctx, c, x)
	if err != nil {
		s.broken = err // the destination must be opened again
		return err
	}
	s.shots.setBase(c.target.Name, base)
	if s.points != nil {
		s.points.moved = true
	}
	fault.KillPoint("snapshot applied")
	s.progressed = true
	s.Stats.Shots.Add(1)
	about := []any{"flow", x.b.name(), "target", c.target.Name.String(), "version", string(x.version.Data)}
	if x.file != "" {
		about = append(about, "file", x.file)
	}
	if x.trial.judge != nil {
		about = append(about, "dropped", counts.Dropped)
	}
	s.Log.Info("snapshot applied", append(about, "rows", counts.Snapshot,
		"new", counts.New, "changed", counts.Changed, "gone", counts.Gone, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))...)
	return nil
}

func sameLayout(a, b *change.Table) bool {
	return slices.EqualFunc(a.Columns, b.Columns, func(x, y change.Column) bool { return x.Name == y.Name && x.Type.Name == y.Type.Name })
}

func sameColumns(a, b *scd.Target) bool {
	return slices.EqualFunc(a.Columns, b.Columns, func(x, y scd.Column) bool { return x.Name == y.Name && x.Type.Name == y.Type.Name })
}

// held gives the target's side: of a history its open versions.
func (s *session) held(ctx context.Context, c *channel, x *exposure) error {
	n, width := len(c.target.Columns), len(c.target.Columns)
	if c.target.Kind == scd.Type2 {
		width += 2
	}
	err := c.memory.Rows(ctx, c.target, func(row change.Row) error {
		if err := x.form.read(row, width); err != nil {
			return fault.Corrupted("a row of the destination cannot be read: %v", err)
		}
		if width > n && x.form.values[n+1].State != change.Null {
			return nil // ended
		}
		key, form := x.form.forms()
		return x.diff.Held(key, form, x.form.key(c.target))
	})
	if err != nil {
		return fmt.Errorf("read the destination: %w", err)
	}
	return nil
}

// guardShot refuses snapshots that cannot be right (rules R64, R66).
func (s *session) guardShot(x *exposure, c snapdiff.Counts) error {
	name := x.b.name()
	share := x.b.Spec.Snapshot.MaxDeleteShare
	if s.mode.DeleteShare != nil {
		share = *s.mode.DeleteShare
	}
	switch {
	case c.DuplicateSnapshot > 0:
		return fault.Refuse("let the snapshot hold each key once, or choose other keys", "DUPLICATE_KEY_VIOLATION: flow %s: %d rows of the snapshot at version %s have a key that another of its rows has", name, c.DuplicateSnapshot, x.version.Data)
	case c.DuplicateHeld > 0:
		return fault.Refuse(fmt.Sprintf("take the surplus rows out, or `tailrace backfill --table %s --overwrite`", x.b.Target.Name), "DUPLICATE_KEY_VIOLATION: %d rows of target %s have a key that another of its rows has", c.DuplicateHeld, x.b.Target.Name)
	case share < 1 && c.Snapshot+c.Dropped == 0 && c.Held > 0, float64(c.Gone) > share*float64(c.Held):
		return fault.Refuse("if that is right, run once with --max-delete-share 1; or set snapshot.max_delete_share",
			"flow %s: the snapshot at version %s has %d rows and would delete %d of the %d rows of target %s (max_delete_share is %v)", name, x.version.Data, c.Snapshot, c.Gone, c.Held, x.b.Target.Name, share)
	}
	return nil
}

// writeShot makes events of the differences and applies them in pieces of one
// destination transaction, the last of which says that the target is as the snapshot is.
func (s *session) writeShot(ctx context.Context, c *channel, x *exposure) (base sequenced.Base, err error) {
	var start change.Value
	if c.target.Kind == scd.Type2 {
		start = x.version
	}
	first, bytes := true, int64(0)
	tally, resolved := c.tallyOf(x.b), []int64(nil)
	piece := func(more bool) error {
		batch := &sink.Batch{Position: s.mark.Position, Resume: s.mark.Resume, CommitTime: s.mark.CommitTime, First: first, More: more, Resolved: resolved}
		now := time.Time{}
		if c.besideOnly && !more {
			now = x.taken // deletes are forgotten by the snapshots' own clock
		}
		operations, err := c.take(ctx, batch, now)
		if err != nil {
			return err
		}
		if err := s.dst.Apply(ctx, batch); err != nil {
			return fmt.Errorf("write the snapshot: %w", parkedByTarget(err))
		}
		fault.KillPoint("snapshot piece")
		s.Stats.Operations.Add(int64(operations))
		s.Stats.Met(batch.Violations)
		s.Stats.resolved(x.b.name(), int64(len(resolved)))
		first, bytes, resolved = false, 0, nil
		return c.applied(ctx, batch)
	}
	add := func(key scd.Key, row change.Row) error {
		c.lane.Add(sequenced.Event{Key: key, Place: x.place, Delete: row == nil, Row: row, Start: start, Time: x.taken.UnixMicro()})
		s.Stats.Changes.Add(1)
		bytes += int64(len(key) + len(row))
		if c.lane.Size() >= s.BatchRows || bytes >= s.BatchBytes {
			return piece(true)
		}
		return nil
	}
	if err := x.sentence(c, tally, &resolved, func() error { return piece(true) }); err != nil {
		return base, err
	}
	err = x.diff.Each(func(row []byte) error {
		if n := len(x.trial.violated); n > 0 {
			tally.Count(row[:n])
			row = row[n:]
		}
		if err := x.form.read(row, len(c.target.Columns)); err != nil {
			return fault.Corrupted("a row of the snapshot cannot be read back: %v", err)
		}
		return add(x.form.key(c.target), row)
	}, func(key []byte) error { return add(key, nil) })
	if err != nil {
		return base, err
	}
	base = sequenced.Base{Place: x.place, Version: x.version, Taken: x.taken.UnixMicro(), Rows: x.rows}
	if x.file != "" {
		if base.Layout, err = json.Marshal(x.b.Relation.Table.Columns); err != nil {
			return base, fault.Corrupted("write down the columns of snapshot files: %v", err)
		}
	}
	c.lane.Compared(base)
	return base, piece(false)
}
