package sink

import (
	"fmt"
	"strings"

	"tailrace/scd"
)

// Axis is an axis of time of a target with a past.
type Axis struct {
	Target     *scd.Target // of type 2, with the sequence of this axis
	Start, End string      // the columns of its intervals
	Asked      string      // only rows whose interval holds this; empty: all
}

// Axes returns the axes of the asked target: none, of type 2 one, of a bitemporal target
// business and system time.
func (q *ShowQuery) Axes() []Axis {
	t := q.Target
	switch {
	case t.Bitemporal != nil:
		axis := func(start, end, asked string, system bool) Axis {
			of := t.Declared()
			if of.Kind = scd.Type2; system {
				of.Sequence = &t.Bitemporal.System
			}
			return Axis{of, start, end, asked}
		}
		return []Axis{axis(scd.StartColumn, scd.EndColumn, q.AsOf, false), axis(scd.SystemStartColumn, scd.SystemEndColumn, q.KnownAt, true)}
	case t.Kind == scd.Type2:
		return []Axis{{t, scd.StartColumn, scd.EndColumn, q.AsOf}}
	}
	return nil
}

// NotAValue says what was asked of a target, which is an error about usage.
func (q *ShowQuery) NotAValue() string {
	var parts []string
	for _, a := range q.Axes() {
		if a.Asked != "" {
			parts = append(parts, fmt.Sprintf("%q is no value of the sequence of %s", a.Asked, a.Start))
		}
	}
	return fmt.Sprintf("target %s: %s", q.Target.Name, strings.Join(parts, ", or "))
}

// BitemporalInvariant is a statement that counts the rows of a bitemporal target's table
// of which an interval is empty, with the words behind the count. form is a column of an
// axis, spelled for SQL, in the form in which its values are compared. That the rows of a
// key do not overlap follows from what is remembered of it (sequenced.Expectation): to find
// it in SQL, each row of a key would have to be compared with all others.
func BitemporalInvariant(table string, t *scd.Target, form func(a Axis, column string) string) (what, sql string) {
	var empty []string
	for _, a := range (&ShowQuery{Target: t}).Axes() {
		empty = append(empty, form(a, a.End)+" <= "+form(a, a.Start))
	}
	return "rows end before or at their start", fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", table, strings.Join(empty, " OR "))
}
