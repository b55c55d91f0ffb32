package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/snapdiff"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// trial judges the rows of one snapshot by the expectations of its flow (rule R106).
// Each version is judged whole. A row that is dropped does not count, neither as there nor
// as gone: what the target holds of its key stays. The flow's events in quarantine are the
// rows that its newest snapshot dropped: those that it drops too, as they were, stay, and
// those that it does not are resolved. Counted is a violation with the version that brings
// it: a row that is new or differs, or is dropped and was not before.
//
// What a row violates travels in front of it, a byte for each expectation, because only
// the comparison tells whether the row differs.
type trial struct {
	judge    *sequenced.Judge // nil: the flow has no expectations
	violated []byte
	values   []change.Value
	dropped  *snapdiff.Diff // rows that were dropped, and what is in quarantine
	rows     int64          // dropped
}

func newTrial(b *Bound, spool string) (t trial, err error) {
	t.judge, t.violated = b.judge, make([]byte, len(b.rules))
	t.dropped, err = snapdiff.Open(spool)
	return t, err
}

// droppedRow is a row in trial.dropped.
type droppedRow struct {
	Reason   string
	Row      int64 // of the snapshot
	Violated []byte
	Event    json.RawMessage
}

// judged judges a row; kept is false where it is dropped.
func (x *exposure) judged(row change.Row) (kept bool, err error) {
	t := &x.trial
	if t.judge == nil {
		return true, nil
	}
	if t.values, err = row.Values(t.values, len(x.b.Relation.Table.Columns)); err != nil {
		return false, fault.Corrupted("snapshot of %s: %v", x.b.Target.Source, err)
	}
	dropped, failed := t.judge.Row(t.values, t.violated)
	if failed != "" {
		return false, fault.Refuse("mend the row at its source, correct the condition, or say `on_violation: drop` or `warn` there",
			"flow %s: expectation %s does not hold for a row of the snapshot at version %s (%s); nothing of it was applied", x.b.name(), failed, x.version.Data, x.at(x.rows))
	}
	if dropped == "" {
		return true, nil
	}
	t.rows++
	c := &change.Change{Op: change.Insert, Table: x.b.Relation.Table, New: row}
	reason := sequenced.Reason(dropped)
	event := aside(x.b, reason, x.place.At, sequenced.Origin{Tx: &change.Tx{}, Change: c}).Event
	body, err := json.Marshal(droppedRow{reason, x.rows, t.violated, event})
	if err != nil {
		return false, fault.Corrupted("write down a row that was dropped: %v", err)
	}
	same := sameDropped(reason, event)
	return false, t.dropped.Snapshot(same, same, body)
}

// at says for people which row of the snapshot is meant.
func (x *exposure) at(row int64) string {
	if x.file != "" {
		return fmt.Sprintf("%s, row %d", x.file, row)
	}
	return fmt.Sprintf("row %d as it was read", row)
}

// sameDropped is equal for rows that are dropped for one reason and have equal values.
func sameDropped(reason string, event []byte) []byte {
	return append(append([]byte(reason), 0), event...)
}

// inQuarantine gives what earlier snapshots of the flow have left in quarantine.
func (s *session) inQuarantine(ctx context.Context, c *channel, x *exposure) error {
	err := c.memory.Quarantine(ctx, x.b.name(), func(a sink.Aside) error {
		if !(sequenced.Place{At: a.At}).FromSnapshot() || a.Target != c.target.Name || !strings.HasPrefix(a.Reason, sequenced.Reason("")) {
			return nil
		}
		var e sent
		if err := json.Unmarshal(a.Event, &e); err != nil {
			return fault.Corrupted("event %d in quarantine cannot be read: %v", a.ID, err)
		}
		event, err := json.Marshal(e) // as it was spelled: a destination may spell JSON in its own way
		if err != nil {
			return fault.Corrupted("event %d in quarantine cannot be read: %v", a.ID, err)
		}
		same := sameDropped(a.Reason, event)
		return x.trial.dropped.Held(same, same, strconv.AppendInt(nil, a.ID, 10))
	})
	if err != nil {
		return fmt.Errorf("read the quarantine: %w", err)
	}
	_, err = x.trial.dropped.Compare(ctx)
	return err
}

// sentence puts the rows that were dropped now into the quarantine, and takes those out
// that are not dropped any more, with the batches of the snapshot. piece writes one.
func (x *exposure) sentence(c *channel, tally *sequenced.Tally, resolved *[]int64, piece func() error) error {
	full := func() error {
		if len(c.aside)+len(*resolved) < asideMost {
			return nil
		}
		return piece()
	}
	return x.trial.dropped.Each(func(body []byte) error {
		var d droppedRow
		if err := json.Unmarshal(body, &d); err != nil {
			return fault.Corrupted("a row that was dropped cannot be read back: %v", err)
		}
		tally.Count(d.Violated)
		c.aside = append(c.aside, sink.Aside{Flow: x.b.name(), Target: c.target.Name, Reason: d.Reason, At: x.place.At, Time: x.taken, Event: d.Event,
			Position: fmt.Sprintf("snapshot at version %s, %s", x.version.Data, x.at(d.Row))})
		return full()
	}, func(body []byte) error {
		id, err := strconv.ParseInt(string(body), 10, 64)
		if err != nil {
			return fault.Corrupted("an event in quarantine cannot be read back: %v", err)
		}
		*resolved = append(*resolved, id)
		return full()
	})
}

// tallyOf is where the violations of a flow into c are counted; nil: it has no
// expectations.
func (c *channel) tallyOf(b *Bound) *sequenced.Tally {
	if i := slices.IndexFunc(c.flows, func(f *Bound) bool { return f.name() == b.name() }); i >= 0 {
		return c.flows[i].tally
	}
	return nil
}
