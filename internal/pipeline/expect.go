package pipeline

import (
	"context"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/expr"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
)

var actions = map[string]sequenced.Action{flow.Warn: sequenced.Warn, flow.Drop: sequenced.Drop, flow.Fail: sequenced.Fail}

// judgeFor makes the judge of a flow's rows in one layout of its source table; nil: it
// has no expectations. All judges of b count in one place.
func (b *Bound) judgeFor(layout *change.Table) (*sequenced.Judge, error) {
	if len(b.Spec.Expect) == 0 {
		return nil, nil
	}
	in := inputs(layout)
	if b.Spec.Snapshot != nil {
		in = layout.Columns // no change brings its rows
	}
	columns := make([]expr.Column, len(in))
	for i := range in {
		columns[i] = expr.Column{Name: in[i].Name, Type: in[i].Type}
	}
	rules := make([]sequenced.Rule, len(b.Spec.Expect))
	for i, e := range b.Spec.Expect {
		p, err := expr.CompileCondition(e.Condition, columns)
		if err != nil {
			return nil, fault.Badly("flow %s, table %s: expectation %s: %v", b.name(), layout.Name, e.Name, err)
		}
		rules[i] = sequenced.Rule{Name: e.Name, Action: actions[e.Action], Test: p.Test, Reads: p.Columns()}
	}
	b.rules = rules
	if b.tally == nil {
		b.tally = sequenced.NewTally(len(rules))
	}
	return sequenced.NewJudge(b.name(), b.Target, rules, b.tally), nil
}

// expects gives a bound flow its judge. Refused are expectations that rows could pass
// because the log leaves columns out: what and remedy say so.
func (b *Bound) expects() (remedy, what string, err error) {
	judge, err := b.judgeFor(b.Relation.Table)
	if err != nil || judge == nil {
		return "", "", err
	}
	if b.Spec.Snapshot != nil {
		b.judge = judge
		return "", "", nil // every row comes whole
	}
	if b.flow != nil {
		b.flow.Judge = judge
	} else {
		b.judge = judge
	}
	t := b.Relation.Table
	if b.Spec.Sequenced.Feed || b.Target.AppendOnly || b.Spec.Once || t.Identity == change.IdentityFull {
		return "", "", nil // every row comes whole
	}
	whole := fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL", quoted(t.Name))
	if b.Relation.TextOnly { // a binary log: its rows are whole, or any column may be left out
		whole = "SET GLOBAL binlog_row_image = 'FULL'"
	}
	for i, r := range b.rules {
		lost := slices.IndexFunc(r.Reads, func(in int) bool {
			return in < len(t.Columns) && !t.Columns[in].Key && (b.Relation.TextOnly || long(t.Columns[in].Type.Kind))
		})
		if lost < 0 {
			continue
		}
		column := t.Columns[r.Reads[lost]].Name
		if r.Action != sequenced.Warn {
			return whole + "; or `on_violation: warn`", fmt.Sprintf("expectation %s (on_violation: %s) reads column %s, which the log may leave out where it did not change: such a row could not be judged", r.Name, b.Spec.Expect[i].Action, column), nil
		}
		b.Warnings = append(b.Warnings, fmt.Sprintf("flow %s: expectation %s reads column %s, which the log may leave out where it did not change: such changes are not judged by it, and counted as that (%s sends it)", b.name(), r.Name, column, whole))
	}
	if b.Spec.Drops() && (b.Relation.TextOnly || large(b.Target)) {
		return whole + "; or `on_violation: warn` or `fail`", "an expectation may drop rows, and of a row that is changed after it was dropped the log may leave columns out: it could not be written then", nil
	}
	return "", "", nil
}

// violations hands on what the expectations of a flow met since it was asked last.
func (b *Bound) violations(fn func(sink.Violation)) {
	if b.tally != nil {
		b.violationsIn(b.tally, fn)
	}
}

func (b *Bound) violationsIn(t *sequenced.Tally, fn func(sink.Violation)) {
	t.Take(func(i int, violated, notJudged int64) {
		e := &b.Spec.Expect[i]
		v := sink.Violation{Target: b.Target.Name, Flow: b.name(), Expectation: e.Name}
		for _, met := range []struct {
			as     string
			events int64
		}{{e.Action, violated}, {sink.NotJudged, notJudged}} {
			if met.events > 0 {
				v.Met, v.Events = met.as, met.events
				fn(v)
			}
		}
	})
}

// judged judges a change of an ordered flow. A row that is dropped goes to the
// quarantine; what is left of its change is folded: nothing, or, where it changed the key,
// the end of the row at the old one.
func (f *follower) judged(r *route, tx *change.Tx, c *change.Change) (left *change.Change, err error) {
	if c.Op != change.Insert && c.Op != change.Update {
		return c, nil
	}
	dropped, at, err := r.judge.Change(tx, c, false)
	if err != nil || dropped == "" {
		return c, err
	}
	f.aside = append(f.aside, aside(r.Bound, sequenced.Reason(dropped), at, sequenced.Origin{Tx: tx, Change: c}))
	if c.Op == change.Insert || c.Old == nil {
		return nil, nil
	}
	moved, err := r.moved(c)
	if err != nil || !moved {
		return nil, err
	}
	return &change.Change{Op: change.Delete, Table: c.Table, Old: c.Old, OldIsKey: c.OldIsKey, Ordinal: c.Ordinal}, nil
}

// moved reports whether an update with an old row changed the target's key.
func (r *route) moved(c *change.Change) (bool, error) {
	n := len(c.Table.Columns)
	now, err := c.New.Values(nil, n)
	if err != nil {
		return false, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
	}
	old, err := c.Old.Values(nil, n)
	if err != nil {
		return false, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
	}
	return slices.ContainsFunc(r.Target.Keys(), func(k int) bool {
		i := c.Table.Find(r.Target.Columns[k].Name)
		return i >= 0 && now[i].State != change.Absent && !now[i].Equal(old[i])
	}), nil
}

// judgedCopy is the copy of an ordered flow's table that leaves out the rows which its
// expectations drop. They are in the quarantine before the reader has come to the end of
// the stream, and so before the copy can be committed; a copy that dies begins afresh.
type judgedCopy struct {
	*session
	b       *Bound
	snap    source.Snapshot
	ordinal uint64       // of its first row: parts of a table have ranges of their own
	into    *sink.Judged // gathers what is met, for the transaction of the copy; nil: it is stored before that
	bytes   int64        // that are in it

	memory sink.Memory
	judge  *sequenced.Judge
	tally  *sequenced.Tally
	aside  []sink.Aside
}

// partOrdinals is how many rows a part of a table may have, so that each has an ordinal
// of its own: 2^40, more than a disk holds.
const partOrdinals = 1 << 40

// asideMost is how many events that were set aside wait to be stored: some MB of rows.
const asideMost = 1000

// judgedMost is how many bytes of rows that were dropped a copy gathers at most.
const judgedMost = 64 << 20

// judging makes the reader of a copy of b, or gives read where nothing judges its rows.
func (s *session) judging(b *Bound, snap source.Snapshot, part int, into *sink.Judged) func(context.Context, source.CopyRequest, io.Writer) (int64, error) {
	if b.judge == nil {
		return func(ctx context.Context, req source.CopyRequest, w io.Writer) (int64, error) {
			return s.copy(ctx, snap, req, w)
		}
	}
	return func(ctx context.Context, req source.CopyRequest, w io.Writer) (int64, error) {
		memory, ok := s.dst.(sink.Memory)
		if !ok {
			return 0, fault.Badly("target %s: this destination has no quarantine, which expectations need", b.Target.Name)
		}
		tally := sequenced.NewTally(len(b.rules))
		j := &judgedCopy{session: s, b: b, snap: snap, ordinal: uint64(part) * partOrdinals, memory: memory, into: into,
			judge: sequenced.NewJudge(b.name(), b.Target, b.rules, tally), tally: tally}
		return j.run(ctx, req, w)
	}
}

func (j *judgedCopy) run(ctx context.Context, req source.CopyRequest, w io.Writer) (kept int64, err error) {
	t := j.b.Relation.Table
	place := make([]int, len(t.Columns)) // of each column in the stream; -1: it is not read
	for i := range place {
		place[i] = slices.Index(req.Columns, t.Columns[i].Name)
	}
	wanted := len(req.Columns)
	for _, r := range j.b.rules {
		for _, in := range r.Reads {
			if in < len(place) && place[in] < 0 {
				place[in] = len(req.Columns)
				req.Columns = append(slices.Clip(req.Columns), t.Columns[in].Name)
			}
		}
	}
	extra, width := len(req.Columns)-wanted, len(req.Columns)
	if req.StartAt != nil {
		width += 2
	}
	in, out := io.Pipe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := j.copy(ctx, j.snap, req, out)
		out.CloseWithError(err)
		return err
	})
	g.Go(func() (err error) {
		defer func() { in.CloseWithError(err) }()
		kept, err = j.rows(ctx, copystream.NewReader(in, false, width), copystream.NewWriter(w, false), place, wanted, extra)
		return err
	})
	return kept, g.Wait()
}

// rows hands on the rows that are kept. Those wanted for the target come first, extra
// ones for the conditions alone follow, then what else the stream has.
func (j *judgedCopy) rows(ctx context.Context, in *copystream.Reader, out *copystream.Writer, place []int, wanted, extra int) (kept int64, err error) {
	tx := &change.Tx{Begin: j.snap.Position(), End: j.snap.Position(), CommitTime: j.snap.Clock()}
	c := &change.Change{Op: change.Insert, Table: j.b.Relation.Table, Ordinal: j.ordinal}
	var row change.Row
	for ; ; c.Ordinal++ {
		values, err := in.Values()
		if err == io.EOF {
			break
		}
		if err != nil {
			return kept, err
		}
		c.New = c.New[:0]
		for _, from := range place {
			v := change.Value{State: change.Absent}
			if from >= 0 {
				v = values[from]
			}
			c.New = c.New.Append(v)
		}
		dropped, at, err := j.judge.Change(tx, c, true)
		if err != nil {
			return kept, err
		}
		if dropped != "" {
			j.aside = append(j.aside, aside(j.b, sequenced.Reason(dropped), at, sequenced.Origin{Tx: tx, Change: c}))
			if len(j.aside) >= asideMost {
				if err := j.store(ctx); err != nil {
					return kept, err
				}
			}
			continue
		}
		row = row[:0]
		for i, v := range values {
			if i < wanted || i >= wanted+extra {
				row = row.Append(v)
			}
		}
		if err := out.Row(row, len(values)-extra); err != nil {
			return kept, err
		}
		kept++
	}
	if err := j.store(ctx); err != nil {
		return kept, err
	}
	return kept, out.End()
}

// store stores what was set aside and counted. Copies of several tables, and parts of
// one, take turns.
func (j *judgedCopy) store(ctx context.Context) error {
	var met []sink.Violation
	j.b.violationsIn(j.tally, func(v sink.Violation) { met = append(met, v) })
	if len(j.aside)+len(met) == 0 {
		return nil
	}
	if j.into != nil {
		for i := range j.aside {
			j.bytes += int64(len(j.aside[i].Event))
		}
		if j.bytes > judgedMost {
			return fault.Refuse(fmt.Sprintf("stop the daemon, then: tailrace backfill --table %s --overwrite", j.b.Target.Name),
				"target %s: more than %d MiB of rows are dropped by expectations; that is more than goes into the transaction of one copy", j.b.Target.Name, judgedMost>>20)
		}
		j.into.Aside, j.into.Met = append(j.into.Aside, j.aside...), append(j.into.Met, met...)
		j.aside = j.aside[:0]
		return nil
	}
	j.storing.Lock()
	defer j.storing.Unlock()
	if err := j.memory.SetAside(ctx, j.aside, met); err != nil {
		return fmt.Errorf("set rows of the copy aside: %w", err)
	}
	j.Stats.Met(met)
	for i := range j.aside {
		j.Stats.aside(j.aside[i].Flow)
	}
	j.aside = j.aside[:0]
	return nil
}

// afresh makes a flow with expectations begin to count: its relation is read from the
// beginning.
func (s *session) afresh(ctx context.Context, b *Bound) error {
	if len(b.Spec.Expect) == 0 {
		return nil
	}
	memory, ok := s.dst.(sink.Memory)
	if !ok {
		return fault.Badly("target %s: this destination has no quarantine, which expectations need", b.Target.Name)
	}
	if err := memory.Afresh(ctx, b.Target.Name, b.name()); err != nil {
		return fmt.Errorf("begin the quarantine of flow %s afresh: %w", b.name(), err)
	}
	return nil
}
