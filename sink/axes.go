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

// BitemporalInvariants are statements that count what must not be in the table of a
// bitemporal target, with sentences that begin with the count. quote spells a column;
// form is a column of an axis in the form in which its values are compared.
func BitemporalInvariants(table string, t *scd.Target, quote func(string) string, form func(a Axis, column string) string) [][2]string {
	axes := (&ShowQuery{Target: t}).Axes()
	var same, empty, meet []string
	declared := t.Declared()
	for _, k := range declared.Keys() {
		key := quote(declared.Columns[k].Name)
		same = append(same, fmt.Sprintf("a.%s = b.%[1]s", key))
	}
	bound := func(a Axis, row, column string) string { return form(a, row+quote(column)) }
	for _, x := range axes {
		empty = append(empty, fmt.Sprintf("%s <= %s", bound(x, "", x.End), bound(x, "", x.Start)))
		for _, pair := range [][2]string{{"a.", "b."}, {"b.", "a."}} {
			meet = append(meet, fmt.Sprintf("(%s%s IS NULL OR %s < %s)", pair[0], quote(x.End), bound(x, pair[1], x.Start), bound(x, pair[0], x.End)))
		}
	}
	// Of two rows that meet, that one is a that begins first.
	b, s := axes[0], axes[1]
	first := fmt.Sprintf("(%s < %s OR %[1]s = %[2]s AND %[3]s < %[4]s)", bound(b, "a.", b.Start), bound(b, "b.", b.Start), bound(s, "a.", s.Start), bound(s, "b.", s.Start))
	return [][2]string{
		{"rows end before or at their start", fmt.Sprintf("SELECT count(*) FROM %s WHERE %s", table, strings.Join(empty, " OR "))},
		{"pairs of rows of a key overlap on both axes", fmt.Sprintf("SELECT count(*) FROM %s AS a JOIN %[1]s AS b ON %s WHERE %s AND %s", table, strings.Join(same, " AND "), first, strings.Join(meet, " AND "))},
	}
}
