package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
)

// channel is a sequenced target at work: its lane, and the flows into it.
type channel struct {
	target *scd.Target
	flows  []*Bound
	lane   *sequenced.Lane
	dst    sink.Writer
	memory sink.Memory
	aside  []sink.Aside
	retain time.Duration

	besideOnly bool // no flow from a log writes it

	forgot time.Time // commit time at which deletes were last forgotten
	stats  *Stats
}

// forgetEvery is how often, in commit time, a target's old deletes are looked for:
// often beside a retention of hours, rare beside the cost of looking through all.
const forgetEvery = 10 * time.Minute

// channelOf makes the channel of a target with its flows. It needs recall before use.
func (s *session) channelOf(target change.Name) (*channel, error) {
	c := &channel{dst: s.dst, stats: s.Stats, besideOnly: true}
	for i := range s.bound {
		if b := &s.bound[i]; b.flow != nil && b.Target.Name == target {
			c.flows = append(c.flows, b)
			c.besideOnly = c.besideOnly && (s.origin(b) == fromBeside || b.Spec.Snapshot != nil || b.Spec.Once && !s.keepless)
			c.retain = max(c.retain, b.Spec.Sequenced.TombstoneRetention)
		}
	}
	c.target = c.flows[0].Target
	var ok bool
	if c.memory, ok = s.dst.(sink.Memory); !ok {
		return nil, fault.Badly("target %s: this destination does not take flows with sequence_by", target)
	}
	return c, nil
}

// recall makes the lane anew from what the destination remembers.
func (c *channel) recall(ctx context.Context) error {
	head, err := c.memory.Head(ctx, c.target)
	if err != nil {
		return fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
	}
	c.lane = sequenced.New(c.target, laneOptions(c.flows), head)
	want := definition(c.flows[0])
	have, base, _, err := c.defined(ctx)
	c.lane.SetBase(base)
	switch {
	case err != nil:
		return err
	case have == "":
		c.lane.Define(want)
	case have != want:
		return c.refuse(have, want)
	}
	return nil
}

// defined reads the definition that the target was built by (empty: none yet), the newest
// snapshot that it was compared with, and why a later one was not applied.
func (c *channel) defined(ctx context.Context) (have string, base sequenced.Base, failed sequenced.Failed, err error) {
	return aboutTarget(ctx, c.memory, c.target)
}

func aboutTarget(ctx context.Context, memory sink.Memory, t *scd.Target) (have string, base sequenced.Base, failed sequenced.Failed, err error) {
	err = memory.Remembered(ctx, t, []sequenced.Lookup{sequenced.DefinitionLookup()}, func(r sequenced.Record) error {
		a, err := sequenced.AboutTarget(&r)
		have += a.Definition
		if !a.Base.IsZero() {
			base = a.Base
		}
		if a.Failed.Reason != "" {
			failed = a.Failed
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("read what is remembered of %s: %w", t.Name, err)
	}
	return have, base, failed, err
}

func (c *channel) refuse(have, want string) error {
	if before, _, history := strings.Cut(have, ", tracked "); history && strings.HasPrefix(want, before+", tracked ") {
		return fault.Refuse(fmt.Sprintf("put the definition back; decide the history anew: `tailrace refresh --flow %q --rebuild-history`; or build it anew of its source: `tailrace run --overwrite`", flowName(c.flows[0].Spec, c.target)),
			"flow %s: history %s was built as %q; the flow says %q now", flowName(c.flows[0].Spec, c.target), c.target.Name, have, want)
	}
	return fault.Refuse("put the definition back; or build the target anew with `tailrace run --overwrite`",
		"flow %s: target %s was built as %q, and what is remembered of it makes sense only so; the flow says %q now", flowName(c.flows[0].Spec, c.target), c.target.Name, have, want)
}

// redefined refuses a target that was built by another definition. What cannot be
// read tells nothing: then there was none.
func (s *session) redefined(ctx context.Context, b *Bound) error {
	if b.flow == nil {
		return nil
	}
	c, err := s.channelOf(b.Target.Name)
	if err != nil {
		return err
	}
	have, _, _, err := c.defined(ctx)
	if want := definition(c.flows[0]); err == nil && have != "" && have != want {
		return c.refuse(have, want)
	}
	return nil
}

// definition is what must not change in a target's life: type, keys, the types of its
// sequence, and what opens a version (rules R10, R11, R43). A new column under "all but"
// changes nothing.
func definition(b *Bound) string {
	var keys, types, tracked []string
	t := b.Target.Declared()
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Key {
			keys = append(keys, c.Name)
		} else if only := len(b.Spec.TrackHistory) > 0; only == c.Tracked {
			tracked = append(tracked, c.Name)
		}
	}
	for _, t := range b.flow.Types {
		types = append(types, t.Name)
	}
	if t.Kind == scd.Bitemporal {
		return fmt.Sprintf("bitemporal, keys (%s), sequence (%s), system sequence (%s)", strings.Join(keys, ", "), strings.Join(types, ", "), b.flow.SystemType.Name)
	}
	text := fmt.Sprintf("type %d, keys (%s), sequence (%s)", b.Target.Kind, strings.Join(keys, ", "), strings.Join(types, ", "))
	if b.Target.Kind != scd.Type2 {
		return text
	}
	slices.Sort(tracked)
	if len(b.Spec.TrackHistory) > 0 {
		return text + fmt.Sprintf(", tracked (%s)", strings.Join(tracked, ", "))
	}
	return text + fmt.Sprintf(", tracked all but (%s)", strings.Join(tracked, ", "))
}

// bad sets a bad event aside, or fails, as its flow says.
func (c *channel) bad(b *Bound, bad *sequenced.Bad, from sequenced.Origin) error {
	a := aside(b, bad.Reason, bad.At, from)
	if b.Spec.Sequenced.FailOnBad && !bad.Dropped {
		return badEvent(&a)
	}
	c.aside = append(c.aside, a)
	return nil
}

func badEvent(a *sink.Aside) error {
	return fault.Refuse("mend the event at its source, or set `on_bad_event: quarantine` to set such events aside", "flow %s, %s: %s", a.Flow, a.Position, a.Reason)
}

func (c *channel) failsOn(flow string) bool {
	return slices.ContainsFunc(c.flows, func(b *Bound) bool { return flowName(b.Spec, b.Target) == flow && b.Spec.Sequenced.FailOnBad })
}

// take turns what the lane has gathered into work for the destination: it reads what
// is remembered of the keys concerned, and decides. now is the newest commit time.
func (c *channel) take(ctx context.Context, b *sink.Batch, now time.Time) (operations int, err error) {
	if p, raised := c.lane.Truncates(); raised && c.lane.Partial() {
		if err := c.memory.RememberedBelow(ctx, c.target, p, func(key []byte) error { c.lane.Touch(key); return nil }); err != nil {
			return 0, fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
		}
	}
	if err := c.remembered(ctx, c.lane.Lookups()); err != nil {
		return 0, err
	}
	work, round, late, counts, err := c.lane.Take()
	if err != nil {
		return 0, c.undecided(err)
	}
	c.stats.Sequenced.add(counts)
	for _, f := range c.flows {
		f.violations(func(v sink.Violation) { b.Violations = append(b.Violations, v) })
	}
	for i := range late {
		a := c.late(&late[i])
		if late[i].Bad && c.failsOn(a.Flow) {
			return 0, badEvent(&a)
		}
		c.aside = append(c.aside, a)
	}
	if len(c.aside) > 0 {
		c.stats.Sequenced.Aside.Add(int64(len(c.aside)))
		for i := range c.aside {
			c.stats.aside(c.aside[i].Flow)
		}
		b.Aside = append(b.Aside, c.aside...)
		c.aside = nil
	}
	if !now.IsZero() && now.Sub(c.forgot) >= forgetEvery {
		c.forgot = now
		mayForget, err := c.mayForget(ctx, b)
		if err != nil {
			return 0, err
		}
		if mayForget {
			work.ForgetBefore = now.Add(-c.retain).UnixMicro()
		}
	}
	if work.Empty() && round.Empty() {
		return 0, nil
	}
	part := sink.TargetRounds{Target: c.target, Hidden: &work}
	if !round.Empty() {
		part.Rounds = []scd.Round{round}
	}
	b.Targets = append(b.Targets, part)
	return round.Size(), nil
}

// clock is the time by which a target's old deletes are forgotten. Where the log
// writes it too, the log's: a file is taken now, and a log that lags may still bring
// what has to meet those deletes.
func (f *follower) clock(c *channel) time.Time {
	if c.besideOnly {
		return f.takenAt
	}
	return f.commit
}

// mayForget reports whether no event of the target is in quarantine: one that is
// retried has to meet the deletes that it would have met had it been good at once.
func (c *channel) mayForget(ctx context.Context, b *sink.Batch) (bool, error) {
	if slices.ContainsFunc(c.flows, func(f *Bound) bool { return f.Spec.Snapshot != nil && f.Spec.Drops() }) {
		return true, nil // what is set aside of snapshots is not retried
	}
	if slices.ContainsFunc(b.Aside, func(a sink.Aside) bool { return a.Target == c.target.Name }) {
		return false, nil
	}
	unresolved, err := c.memory.Unresolved(ctx)
	if err != nil {
		return false, fmt.Errorf("count the quarantine: %w", err)
	}
	return !slices.ContainsFunc(c.flows, func(f *Bound) bool { return unresolved[flowName(f.Spec, f.Target)] > 0 }), nil
}

// applied is told that the batch is written: what it made the destination forget
// raises the horizon.
func (c *channel) applied(ctx context.Context, b *sink.Batch) error {
	for i := range b.Targets {
		if t := &b.Targets[i]; t.Target == c.target && t.Hidden != nil && t.Hidden.ForgetBefore != 0 {
			head, err := c.memory.Head(ctx, c.target)
			if err != nil {
				return fmt.Errorf("read what is remembered of %s: %w", c.target.Name, err)
			}
			c.lane.Forgot(head.Horizon)
		}
	}
	return nil
}

// loadSequenced makes events of the rows of the first copy and brings them through
// the lane. Chunks commit one by one, which readers may see while the table is
// copying; a copy that dies begins again.
func (s *session) loadSequenced(ctx context.Context, first *Bound, snap source.Snapshot, phase checkpoint.Phase) error {
	c, err := s.channelOf(first.Target.Name)
	if err != nil {
		return err
	}
	if err := c.recall(ctx); err != nil {
		return err
	}
	began, rows := time.Now(), int64(0)
	for _, b := range c.flows {
		if !b.Spec.FromLog() {
			continue // files are followed from the first one, snapshots are taken
		}
		n, err := s.copyEvents(ctx, c, b, snap)
		if err != nil {
			return fmt.Errorf("copy table %s: %w", b.Relation.Table.Name, err)
		}
		rows += n
	}
	m := s.head()
	done := s.doneState(first, phase, snap)
	m.Tables, m.Flows = []checkpoint.Table{done}, s.copiedFlows(first.Target.Name, done.Since)
	if err := s.dst.Save(ctx, m); err != nil {
		return fmt.Errorf("write the mark: %w", err)
	}
	s.remember(done)
	s.rememberFlows(m.Flows)
	fault.KillPoint("table loaded")
	s.Log.Info("feed copied", "target", c.target.Name.String(), "events", rows, "seconds", fmt.Sprintf("%.1f", time.Since(began).Seconds()))
	return nil
}

// copyEvents reads one relation under the snapshot.
func (s *session) copyEvents(ctx context.Context, c *channel, b *Bound, snap source.Snapshot) (rows int64, err error) {
	t := b.Relation.Table
	req := source.CopyRequest{Table: t}
	for _, col := range t.Columns {
		req.Columns = append(req.Columns, col.Name)
	}
	in, out := io.Pipe()
	g, work := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := s.copy(work, snap, req, out)
		out.CloseWithError(err)
		return err
	})
	g.Go(func() error {
		defer in.CloseWithError(errors.New("the copy ended"))
		r := copystream.NewReader(in, false, len(t.Columns))
		shaper := sequenced.NewShaper(b.flow, c.target)
		tx := &change.Tx{First: true, Last: true, Begin: snap.Position(), End: snap.Position(), CommitTime: snap.Clock()}
		var bytes int64
		for {
			row, err := r.Next()
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			ended := err != nil
			if !ended {
				row = append(change.Row(nil), row...) // the reader's memory is used again
				ch := &change.Change{Op: change.Insert, Table: t, New: row, Ordinal: uint64(rows)}
				bad, err := shaper.Copied(c.lane, tx, ch)
				if err != nil {
					return err
				}
				if bad != nil {
					if err := c.bad(b, bad, sequenced.Origin{Tx: tx, Change: ch}); err != nil {
						return err
					}
				}
				rows++
				bytes += int64(len(row))
			}
			if ended || c.lane.Size() >= s.BatchRows || bytes >= s.BatchBytes {
				if err := s.applyCopied(work, c); err != nil {
					return err
				}
				bytes = 0
			}
			if ended {
				return nil
			}
		}
	})
	return rows, g.Wait()
}

// applyCopied writes a chunk of copied events; the mark stays where it is.
func (s *session) applyCopied(ctx context.Context, c *channel) error {
	batch := &sink.Batch{Position: s.mark.Position, Resume: s.mark.Resume, CommitTime: s.mark.CommitTime, First: true}
	if _, err := c.take(ctx, batch, time.Time{}); err != nil {
		return err
	}
	if len(batch.Targets)+len(batch.Aside)+len(batch.Violations) == 0 {
		return nil
	}
	if err := s.dst.Apply(ctx, batch); err != nil {
		return fmt.Errorf("write copied events: %w", err)
	}
	s.Stats.Met(batch.Violations)
	return nil
}
