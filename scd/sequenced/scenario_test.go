package sequenced_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

var textType = change.Type{Kind: change.Text, Name: "text"}

// scene turns a scenario into the lane's words.
func scene(s *sim.Scenario) *history {
	h := &history{target: &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Kind(s.Type), Sequenced: true}}
	h.target.Columns = append(h.target.Columns, scd.Column{Name: "k", Type: bigint, Key: true})
	for _, c := range s.Columns {
		h.target.Columns = append(h.target.Columns, scd.Column{Name: c, Type: textType, Tracked: s.Track == nil || slices.Contains(s.Track, c)})
	}
	bitemporal := h.target.Kind == scd.Bitemporal
	if bitemporal {
		h.target = h.target.Table(scd.Axes{Business: bigint, System: bigint})
	}
	h.options.Partial = len(s.Ignore) > 0 || slices.ContainsFunc(s.Events, func(e sim.ScenarioEvent) bool { return e.Cols != nil })
	for i, e := range s.Events {
		p := placeOf(e.Seq, "f", uint64(i))
		if e.Op == 'T' {
			h.truncates = append(h.truncates, p)
			continue
		}
		key := text(e.Key)
		ev := sequenced.Event{Key: change.Row(nil).Append(key), Place: p, Delete: e.Op == 'D', Start: startOf(p)}
		if bitemporal {
			ev.System, ev.SystemStart = placeOf(e.System, "f", 0).Seq, integer(e.System)
		}
		if !ev.Delete {
			ev.Row = change.Row(nil).Append(key)
			for j, v := range e.Values {
				value := text(v)
				switch {
				case e.Cols != nil && !slices.Contains(e.Cols, s.Columns[j]), v == sim.Null && slices.Contains(s.Ignore, s.Columns[j]):
					value = change.Value{State: change.Absent}
				case v == sim.Null:
					value = change.Value{State: change.Null}
				}
				ev.Row = ev.Row.Append(value)
			}
		}
		h.events = append(h.events, ev)
	}
	return h
}

// readable prints the table as scenarios write it.
func (m *memory) readable() []string {
	if m.target.Bitemporal != nil {
		return m.facts()
	}
	show := func(row change.Row) string {
		values, err := row.Values(nil, len(m.target.Columns))
		if err != nil {
			return err.Error()
		}
		var cells []string
		for _, v := range values {
			if v.State == change.Null {
				cells = append(cells, sim.Null)
			} else {
				cells = append(cells, string(v.Data))
			}
		}
		return strings.Join(cells, " ")
	}
	var out []string
	for _, row := range m.rows {
		out = append(out, show(row))
	}
	for _, versions := range m.versions {
		for start, v := range versions {
			out = append(out, fmt.Sprintf("%s [%s,%s)", show(v.row), start, v.end))
		}
	}
	sort.Strings(out)
	return out
}

func TestScenarios(t *testing.T) {
	scenarios, err := sim.Scenarios()
	if err != nil || len(scenarios) < 40 {
		t.Fatalf("%d scenarios, %v", len(scenarios), err)
	}
	for i := range scenarios {
		s := &scenarios[i]
		t.Run(s.Title, func(t *testing.T) {
			h := scene(s)
			want := slices.Sorted(slices.Values(s.Holds))
			for n := range uint64(60) {
				r := rand.New(rand.NewPCG(n, 3))
				var got *memory
				if s.AnyOrder {
					got, err = h.arrive(r, nil)
				} else {
					got, err = h.inOrder(r)
				}
				if err != nil {
					t.Fatal(err)
				}
				if lines := got.readable(); !slices.Equal(lines, want) || len(got.problems) > 0 {
					t.Fatalf("order %d: got\n%s\nwant\n%s\n%v", n, strings.Join(lines, "\n"), strings.Join(want, "\n"), got.problems)
				}
			}
		})
	}
}

// inOrder plays events and truncates as their places in the source say, in random
// batches.
func (h *history) inOrder(r *rand.Rand) (*memory, error) {
	type line struct {
		at string
		item
	}
	var lines []line
	for i := range h.events {
		lines = append(lines, line{string(h.events[i].Place.At), item{event: &h.events[i]}})
	}
	for i := range h.truncates {
		lines = append(lines, line{string(h.truncates[i].At), item{truncate: &h.truncates[i]}})
	}
	sort.Slice(lines, func(i, j int) bool { return lines[i].at < lines[j].at })
	m := newMemory(h.target)
	l := sequenced.New(h.target, h.options, sequenced.Head{})
	for len(lines) > 0 {
		n := 1 + r.IntN(len(lines))
		var events []sequenced.Event
		var truncates []sequenced.Place
		for _, x := range lines[:n] {
			if x.event != nil {
				events = append(events, *x.event)
			} else {
				truncates = append(truncates, *x.truncate)
			}
		}
		lines = lines[n:]
		if _, err := m.apply(l, events, truncates); err != nil {
			return m, err
		}
	}
	return m, nil
}
