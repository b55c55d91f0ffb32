package sim

import (
	"bytes"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
)

// OracleFact is a visible row of a bitemporal target. Till empty: still believed.
type OracleFact struct {
	OracleVersion
	Since, Till string
}

// Bitemporal returns the rows of a bitemporal target, by its definition (rule R78): for
// each system time the history of the events that were known then, each version with
// the span of system times through which it was in that history. Of events at one
// business sequence the one that was known later counts as the later one (rule R81).
// Start and SystemStart of the events must not be empty.
func (o *Oracle) Bitemporal() []OracleFact {
	var times []sequenced.Event // one of each system time, in order
	times = append(times, o.Events...)
	slices.SortFunc(times, func(a, b sequenced.Event) int { return bytes.Compare(a.System, b.System) })
	times = slices.CompactFunc(times, func(a, b sequenced.Event) bool { return bytes.Equal(a.System, b.System) })
	var out []OracleFact
	believed := map[string]int{} // what tells a version: its place in out
	for _, t := range times {
		then := Oracle{Columns: o.Columns, Leaves: o.Leaves, Tracked: make([]bool, o.Columns)}
		for i := range then.Tracked {
			then.Tracked[i] = true
		}
		for _, e := range o.Events {
			if bytes.Compare(e.System, t.System) <= 0 {
				e.Place.At = append(bytes.Clone(e.System), e.Place.At...)
				then.Events = append(then.Events, e)
			}
		}
		now := map[string]int{}
		for _, v := range then.Type2() {
			var row change.Row
			for _, value := range v.Values {
				row = row.Append(value)
			}
			id := fmt.Sprintf("%q %q %q %q", v.Key, v.Start, v.End, row)
			at, is := believed[id]
			if !is {
				at = len(out)
				out = append(out, OracleFact{OracleVersion: v, Since: string(t.SystemStart.Data)})
			}
			now[id] = at
		}
		for id, at := range believed {
			if _, still := now[id]; !still {
				out[at].Till = string(t.SystemStart.Data)
			}
		}
		believed = now
	}
	return out
}
