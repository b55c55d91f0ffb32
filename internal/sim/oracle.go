package sim

import (
	"encoding/json"
	"slices"
	"sort"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
)

// Oracle says what a sequenced target must hold, from all of its events at once and
// by the shortest possible reading of the rules: sort, then go through. It shares
// nothing with the lane that it judges but the words for an event.
type Oracle struct {
	Events   []sequenced.Event
	Truncate sequenced.Place // the highest truncate; zero: none
	Columns  int
	Tracked  []bool // type 2
	Leaves   []bool // columns whose JSON objects are written leaf by leaf; nil: none
}

// OracleVersion is one visible row: of type 1 without start and end.
type OracleVersion struct {
	Key, Start, End string // End empty: open
	Values          []change.Value
}

// perKey returns each key's events in order, each once, without what the truncate
// took.
func (o *Oracle) perKey() map[string][]sequenced.Event {
	keys := map[string][]sequenced.Event{}
	for _, e := range o.Events {
		if o.Truncate.IsZero() || o.Truncate.Before(e.Place) {
			keys[string(e.Key)] = append(keys[string(e.Key)], e)
		}
	}
	for k, events := range keys {
		sort.SliceStable(events, func(i, j int) bool { return events[i].Place.Before(events[j].Place) })
		keys[k] = slices.CompactFunc(events, func(a, b sequenced.Event) bool { return a.Place.Compare(b.Place) == 0 })
	}
	return keys
}

func (o *Oracle) nulls() []change.Value {
	row := make([]change.Value, o.Columns)
	for i := range row {
		row[i].State = change.Null
	}
	return row
}

// write puts what an event writes over a row.
func (o *Oracle) write(row []change.Value, e sequenced.Event) []change.Value {
	said, err := e.Row.Values(nil, o.Columns)
	if err != nil {
		panic(err)
	}
	out := slices.Clone(row)
	for i, v := range said {
		switch {
		case v.State == change.Absent:
		case o.Leaves != nil && o.Leaves[i] && v.State == change.AsText:
			out[i] = change.Value{State: change.AsText, Data: overlay(out[i].Data, v.Data)}
		default:
			out[i] = v
		}
	}
	return out
}

// Type1 returns the rows of a type 1 target, ordered by key.
func (o *Oracle) Type1() []OracleVersion {
	var out []OracleVersion
	for k, events := range o.perKey() {
		row, there := o.nulls(), false
		for _, e := range events {
			if there = !e.Delete; there {
				row = o.write(row, e)
			} else {
				row = o.nulls()
			}
		}
		if there {
			out = append(out, OracleVersion{Key: k, Values: row})
		}
	}
	sortVersions(out)
	return out
}

// Type2 returns the versions of a type 2 target, ordered by key and start.
func (o *Oracle) Type2() []OracleVersion {
	var out []OracleVersion
	for k, events := range o.perKey() {
		var open *OracleVersion
		for len(events) > 0 {
			// All events with one sequence are one step.
			seq, start := string(events[0].Place.Seq), string(events[0].Start.Data)
			row, there := o.nulls(), open != nil
			if there {
				row = open.Values
			}
			for len(events) > 0 && string(events[0].Place.Seq) == seq {
				if there = !events[0].Delete; there {
					row = o.write(row, events[0])
				} else {
					row = o.nulls()
				}
				events = events[1:]
			}
			if open != nil && there && o.same(open.Values, row) {
				open.Values = row
				continue
			}
			if open != nil {
				open.End = start
				out = append(out, *open)
				open = nil
			}
			if there {
				open = &OracleVersion{Key: k, Start: start, Values: row}
			}
		}
		if open != nil {
			out = append(out, *open)
		}
	}
	sortVersions(out)
	return out
}

func (o *Oracle) same(a, b []change.Value) bool {
	for i := range a {
		if o.Tracked[i] && !a[i].Equal(b[i]) {
			return false
		}
	}
	return true
}

func sortVersions(v []OracleVersion) {
	sort.SliceStable(v, func(i, j int) bool { return v[i].Key < v[j].Key })
}

// overlay puts a JSON text over an older one (nil: none): objects leaf by leaf, a
// null in an object says nothing, anything else replaces. Keys come out sorted.
func overlay(older, newer []byte) []byte {
	var a, b any
	if older != nil {
		if err := json.Unmarshal(older, &a); err != nil {
			panic(err)
		}
	}
	if err := json.Unmarshal(newer, &b); err != nil {
		panic(err)
	}
	out, err := json.Marshal(over(a, b))
	if err != nil {
		panic(err)
	}
	return out
}

func over(a, b any) any {
	object, ok := b.(map[string]any)
	if !ok {
		return b
	}
	base, ok := a.(map[string]any)
	if !ok {
		base = map[string]any{}
	}
	for name, v := range object {
		if v != nil {
			base[name] = over(base[name], v)
		}
	}
	return base
}
