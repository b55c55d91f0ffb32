package sequenced

import (
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// Action is what becomes of a row that violates a rule. The highest of several wins.
type Action uint8

const (
	Warn Action = iota // it is written
	Drop               // it is set aside
	Fail               // nothing is written any more
)

// Rule is a condition that the rows which a flow writes are to meet (rules R106 to R108).
type Rule struct {
	Name   string
	Action Action
	Test   Condition
	Reads  []int // the inputs that Test reads
}

// Judge judges rows by the rules of one flow, in either lane. It sees a row as the
// event writes it, before anything is applied; deletes and truncates never, because
// their columns say nothing. A rule is violated where its condition comes out FALSE or
// NULL, or cannot be computed: what is not known to be good is not. It is *not judged*
// where the event leaves one of the columns that it reads as they are: the row's value
// is not known here, and was judged when it was written.
//
// A log that leaves out what did not change would so let rows pass that Drop and Fail
// are to stop: that parks the target.
//
// A Judge is used by one goroutine. It keeps no memory of rows.
type Judge struct {
	flow  string
	key   string // names of the key columns, for messages
	rules []Rule
	drops bool // some rule does
	tally *Tally

	inputs Shaper // for its meta columns
	row    []change.Value
	old    []change.Value
}

// Tally is what a flow's rules met since Taken; by rule.
type Tally struct{ Violated, NotJudged []int64 }

// NewTally makes the tally of n rules.
func NewTally(n int) *Tally { return &Tally{make([]int64, n), make([]int64, n)} }

// Take hands on what was counted, and begins anew.
func (t *Tally) Take(fn func(rule int, violated, notJudged int64)) {
	for i := range t.Violated {
		if t.Violated[i]+t.NotJudged[i] > 0 {
			fn(i, t.Violated[i], t.NotJudged[i])
			t.Violated[i], t.NotJudged[i] = 0, 0
		}
	}
}

// NewJudge makes the judge of a flow into t, who counts in tally.
func NewJudge(flow string, t *scd.Target, rules []Rule, tally *Tally) *Judge {
	var keys []string
	for _, i := range t.Keys() {
		keys = append(keys, t.Columns[i].Name)
	}
	drops := slices.ContainsFunc(rules, func(r Rule) bool { return r.Action == Drop })
	return &Judge{flow: flow, key: strings.Join(keys, ", "), rules: rules, drops: drops, tally: tally}
}

// verdict judges a row. sent are the inputs as the log gave them, written the same
// without what the event does not write. It returns the names of the rules because of
// which the row is to be set aside, and of one for which all is to stop; empty: none.
func (j *Judge) verdict(sent, written []change.Value) (dropped, failed string, err error) {
	for i := range j.rules {
		r := &j.rules[i]
		absent, lost := false, -1
		for _, in := range r.Reads {
			if written[in].State == change.Absent {
				absent = true
				if sent[in].State == change.Absent {
					lost = in
				}
			}
		}
		if absent {
			if lost >= 0 && r.Action != Warn {
				return "", "", j.park("expectation " + r.Name + " reads a column that the log does not send where it did not change")
			}
			j.tally.NotJudged[i]++
			continue
		}
		if r.holds(written) {
			continue
		}
		j.tally.Violated[i]++
		r.because(&dropped, &failed)
	}
	return dropped, failed, nil
}

// holds reports whether a row is known to meet the rule.
func (r *Rule) holds(row []change.Value) bool {
	truth, known, err := r.Test(row)
	return truth && known && err == nil
}

// because names the rule among those because of which a row is to be set aside, or all
// is to stop.
func (r *Rule) because(dropped, failed *string) {
	switch {
	case r.Action == Fail && *failed == "":
		*failed = r.Name
	case r.Action == Drop && *dropped == "":
		*dropped = r.Name
	case r.Action == Drop:
		*dropped += ", " + r.Name
	}
}

// Row judges a row of a snapshot, which is whole and has no meta columns. Nothing is
// counted yet, because only what a snapshot brings is: violated, which has a byte for each
// rule, gets what Count is to be given then.
func (j *Judge) Row(row []change.Value, violated []byte) (dropped, failed string) {
	for i := range j.rules {
		violated[i] = 0
		if !j.rules[i].holds(row) {
			violated[i] = 1
			j.rules[i].because(&dropped, &failed)
		}
	}
	return dropped, failed
}

// Count counts what Row found.
func (t *Tally) Count(violated []byte) {
	for i := range t.Violated {
		t.Violated[i] += int64(violated[i])
	}
}

// park is the error that parks the target, because rows do not come whole.
func (j *Judge) park(reason string) error {
	return &Park{
		Reason: fmt.Sprintf("flow %s: %s", j.flow, reason),
		Remedy: "have the log send whole rows (PostgreSQL: REPLICA IDENTITY FULL; MariaDB and MySQL: binlog_row_image = FULL)",
	}
}

func (j *Judge) parkPart() error {
	return j.park("an expectation may have dropped the row, and the log does not send those of its columns that did not change")
}

// refuse is the error that stops all because of a row at a place.
func (j *Judge) refuse(failed string, at []byte) error {
	key := ""
	if j.key != "" {
		key = " (key " + j.key + ")"
	}
	return fault.Refuse("correct the condition, or say `on_violation: drop` or `warn` there until the pipeline has passed this place: what stands in a log stays there. A row that is being copied can be mended at the source",
		"flow %s: expectation %s does not hold for a row%s at %s; nothing of its batch was applied", j.flow, failed, key, At(at))
}

// Reason is why events are in quarantine that expectations have dropped.
func Reason(names string) string { return "expectation " + names }

// Change judges a change of an ordered flow: an insert, or an update's new row; copied: a
// row of the first copy, whose position is tx's End. Columns that the log left out are taken
// from the old row where it has them. at is the place of a row that is dropped.
func (j *Judge) Change(tx *change.Tx, c *change.Change, copied bool) (dropped string, at []byte, err error) {
	n := len(c.Table.Columns)
	if j.row, err = c.New.Values(j.row, n); err != nil {
		return "", nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
	}
	if c.Old != nil {
		if j.old, err = c.Old.Values(j.old, n); err != nil {
			return "", nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
		}
		for i := range j.row {
			if j.row[i].State == change.Absent && (!c.OldIsKey || c.Table.Columns[i].Key) {
				j.row[i] = j.old[i]
			}
		}
	}
	if j.drops && !copied && slices.ContainsFunc(j.row, func(v change.Value) bool { return v.State == change.Absent }) {
		return "", nil, j.parkPart()
	}
	j.row = j.inputs.withMeta(j.row, tx, c)
	dropped, failed, err := j.verdict(j.row, j.row)
	if err != nil || dropped == "" && failed == "" {
		return "", nil, err
	}
	if at = AppendLog(nil, tx.Begin, false, c.Ordinal, 0); copied {
		at = AppendLog(nil, tx.End, true, c.Ordinal, 0)
	}
	if failed != "" {
		return "", at, j.refuse(failed, at)
	}
	return dropped, at, nil
}
