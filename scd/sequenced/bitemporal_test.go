package sequenced_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// bitemporalHistory is a random life of a few keys, in which events meet on both axes.
func bitemporalHistory(r *rand.Rand) *history {
	h := &history{}
	declared := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Bitemporal, Sequenced: true}
	declared.Columns = append(declared.Columns, scd.Column{Name: "k", Type: bigint, Key: true})
	columns := 1 + r.IntN(2)
	for i := range columns {
		declared.Columns = append(declared.Columns, scd.Column{Name: fmt.Sprint("v", i), Type: bigint, Nullable: true, Tracked: true})
	}
	h.target = declared.Table(scd.Axes{Business: bigint, System: bigint})
	h.options.Partial = r.IntN(3) == 0
	keys, values := 1+r.IntN(2)*r.IntN(5), 2+r.IntN(2)
	business, system := 2+r.IntN(8), 2+r.IntN(8)
	for n := 2 + r.IntN(12); n > 0; n-- {
		e := bitemporalEvent(1+r.IntN(keys), r.IntN(business), r.IntN(system), len(h.events))
		if e.Delete = r.IntN(5) == 0; !e.Delete {
			e.Row = append(change.Row(nil), e.Key...)
			for range columns {
				switch c := r.IntN(values + 2); {
				case c < values:
					e.Row = e.Row.Append(integer(c))
				case c == values || !h.options.Partial:
					e.Row = e.Row.Append(change.Value{State: change.Null})
				default:
					e.Row = e.Row.Append(change.Value{State: change.Absent})
				}
			}
		}
		h.events = append(h.events, e)
	}
	return h
}

func bitemporalEvent(key, business, system, line int) sequenced.Event {
	p := placeOf(business, "f", uint64(line))
	return sequenced.Event{Key: change.Row(nil).Append(integer(key)), Place: p, Start: startOf(p),
		System: placeOf(system, "f", 0).Seq, SystemStart: integer(system), Time: int64(line)}
}

// facts prints rows of the target's table.
func facts(t *scd.Target, rows []change.Row) []string {
	var out []string
	for _, row := range rows {
		values, err := row.Values(nil, len(t.Columns))
		if err != nil {
			return []string{err.Error()}
		}
		cells := map[string]string{}
		var data []string
		for i, v := range values {
			text := string(v.Data)
			if v.State == change.Null {
				text = ""
			}
			if name := t.Columns[i].Name; slices.Contains(scd.BitemporalColumns, name) {
				cells[name] = text
			} else {
				data = append(data, printable(v))
			}
		}
		out = append(out, factLine(data, cells[scd.StartColumn], cells[scd.EndColumn], cells[scd.SystemStartColumn], cells[scd.SystemEndColumn]))
	}
	slices.Sort(out)
	return out
}

func factLine(data []string, start, end, since, till string) string {
	return fmt.Sprintf("%s [%s,%s) [%s,%s)", strings.Join(data, " "), start, end, since, till)
}

func printable(v change.Value) string {
	if v.State == change.Null {
		return sim.Null
	}
	return string(v.Data)
}

func (h *history) bitemporalOracle() []string {
	o := sim.Oracle{Events: h.events, Columns: len(h.target.Declared().Columns)}
	var out []string
	for _, f := range o.Bitemporal() {
		var data []string
		for _, v := range f.Values {
			data = append(data, printable(v))
		}
		out = append(out, factLine(data, f.Start, f.End, f.Since, f.Till))
	}
	slices.Sort(out)
	return out
}

func (m *memory) facts() []string {
	var rows []change.Row
	for _, row := range m.rows {
		rows = append(rows, row)
	}
	return facts(m.target, rows)
}

// A bitemporal target is what its definition says, whatever the order on both axes, the
// batches and the repetitions; and what is to be expected of the remembered events is
// what was written.
func TestBitemporalTargetIsItsDefinition(t *testing.T) {
	start, n := rand.Uint64(), 50_000
	if *seed != 0 {
		start, n = *seed, 1
	} else if testing.Short() {
		n = 3000
	}
	t.Logf("%d histories from seed %d (replay one with -seed)", n, start)
	for i := range n {
		s := start + uint64(i)
		r := rand.New(rand.NewPCG(s, 5))
		h := bitemporalHistory(r)
		want := h.bitemporalOracle()
		m, err := h.arrive(r, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		if got := m.facts(); !slices.Equal(got, want) || len(m.problems) > 0 {
			t.Fatalf("seed %d, partial %v, %d events\ngot\n%s\nwant\n%s\n%v", s, h.options.Partial, len(h.events), strings.Join(got, "\n"), strings.Join(want, "\n"), m.problems)
		}
		if i%10 > 0 {
			continue
		}
		var expected []change.Row
		x := sequenced.Expect(h.target, h.options, sequenced.Head{}, func(e sequenced.Expected) error {
			expected = append(expected, e.Row)
			return nil
		})
		for key := range m.records {
			for _, record := range m.sorted(key) {
				if err := x.Add(record); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := x.End(); err != nil {
			t.Fatal(err)
		}
		if got := facts(h.target, expected); !slices.Equal(got, want) {
			t.Fatalf("seed %d: expected\n%s\nwant\n%s", s, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// What is believed of a key never overlaps, and the two starts tell its rows apart:
// of the definition itself.
func TestBitemporalRowsDoNotOverlap(t *testing.T) {
	start := rand.Uint64()
	t.Logf("from seed %d", start)
	for i := range uint64(2000) {
		h := bitemporalHistory(rand.New(rand.NewPCG(start+i, 6)))
		o := sim.Oracle{Events: h.events, Columns: len(h.target.Declared().Columns)}
		all := o.Bitemporal()
		before := func(a, b string) bool { // empty: unbounded
			x, errX := strconv.Atoi(a)
			y, errY := strconv.Atoi(b)
			return errY != nil || errX == nil && x < y
		}
		for i, a := range all {
			if !before(a.Start, a.End) || !before(a.Since, a.Till) {
				t.Fatalf("seed %d: %+v is empty", start+uint64(i), a)
			}
			for _, b := range all[:i] {
				if a.Key == b.Key && before(a.Start, b.End) && before(b.Start, a.End) && before(a.Since, b.Till) && before(b.Since, a.Till) {
					t.Fatalf("seed %d: %+v overlaps %+v", start+uint64(i), a, b)
				}
			}
		}
	}
}

// Events that change nothing when they arrive are needed by later ones (rule R84).
func TestBitemporalEventsThatChangeNothingAreNeeded(t *testing.T) {
	const n = 4000
	wrong := 0
	for s := range uint64(n) {
		r := rand.New(rand.NewPCG(s, 7))
		h := bitemporalHistory(r)
		h.options.Partial = false
		r.Shuffle(len(h.events), func(i, j int) { h.events[i], h.events[j] = h.events[j], h.events[i] })
		m := newMemory(h.target)
		l := sequenced.New(h.target, h.options, sequenced.Head{})
		for _, e := range h.events {
			before := m.written
			if _, err := m.apply(l, []sequenced.Event{e}, nil); err != nil {
				t.Fatal(err)
			}
			if m.written == before {
				delete(m.records[string(e.Key)], recordKey(e.Place.Seq, e.Place.At))
			}
		}
		if !slices.Equal(m.facts(), h.bitemporalOracle()) {
			wrong++
		}
	}
	t.Logf("%d of %d histories went wrong", wrong, n)
	if wrong < n/200 {
		t.Error("losing them went unnoticed")
	}
}

func TestBitemporalCounts(t *testing.T) {
	h := bitemporalHistory(rand.New(rand.NewPCG(1, 1)))
	m := newMemory(h.target)
	l := sequenced.New(h.target, sequenced.Options{}, sequenced.Head{})
	var total sequenced.Counts
	line := 0
	for _, batch := range [][][2]int{ // business and system times
		{{10, 1}, {5, 2}},  // in the order of system time
		{{20, 4}, {30, 3}}, // the second is late
		{{20, 4}},          // tied
		{{7, 2}},           // late; the same system time is no tie
		{{9, 4}},
	} {
		var events []sequenced.Event
		for _, at := range batch {
			e := bitemporalEvent(1, at[0], at[1], line)
			line++
			e.Delete = true
			events = append(events, e, e)
		}
		c, err := m.apply(l, events, nil)
		if err != nil {
			t.Fatal(err)
		}
		total.Add(c)
	}
	if want := (sequenced.Counts{Events: 14, Duplicates: 7, Late: 2, Ties: 1}); total != want {
		t.Errorf("%+v, want %+v", total, want)
	}
}

// BenchmarkBitemporalKey lives through one key of many events, which come one batch
// after the other; each batch reads all that is remembered of the key.
func BenchmarkBitemporalKey(b *testing.B) {
	const n = 5000
	h := bitemporalHistory(rand.New(rand.NewPCG(1, 1)))
	for _, c := range []struct {
		name  string
		size  int
		order func(i int) (business, system int)
	}{
		{"in order, at once", n, func(i int) (int, int) { return i, i }},
		{"in order, 50 a batch", 50, func(i int) (int, int) { return i, i }},
		{"in order, one a batch", 1, func(i int) (int, int) { return i, i }},
		{"corrections, at once", n, func(i int) (int, int) { return (i * 7919) % n, i }},
		{"late on both axes, 50 a batch", 50, func(i int) (int, int) { return (i * 7919) % n, (i * 104729) % n }},
		{"late on the system axis, at once", n, func(i int) (int, int) { return i, n - i }},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				m := newMemory(h.target)
				l := sequenced.New(h.target, sequenced.Options{}, sequenced.Head{})
				b.StopTimer()
				var events []sequenced.Event
				for i := range n {
					business, system := c.order(i)
					e := bitemporalEvent(1, business, system, i)
					e.Row = append(change.Row(nil), e.Key...)
					for range len(h.target.Columns) - 5 {
						e.Row = e.Row.Append(integer(i))
					}
					events = append(events, e)
				}
				b.StartTimer()
				for from := 0; from < n; from += c.size {
					for _, e := range events[from:min(from+c.size, n)] {
						l.Add(e)
					}
					b.StopTimer() // the store's time is not the lane's
					records := m.sorted(string(events[0].Key))
					b.StartTimer()
					l.Lookups()
					for _, r := range records {
						if err := l.Remember(r); err != nil {
							b.Fatal(err)
						}
					}
					w, _, _, _, err := l.Take()
					if err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					m.work(&w)
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n*b.N), "µs/event")
		})
	}
}

func TestExplainBitemporal(t *testing.T) {
	h := bitemporalHistory(rand.New(rand.NewPCG(1, 1)))
	m := newMemory(h.target)
	l := sequenced.New(h.target, sequenced.Options{}, sequenced.Head{})
	write := func(line, business, system int, delete bool, value int) {
		t.Helper()
		e := bitemporalEvent(1, business, system, line)
		if e.Delete = delete; !delete {
			e.Row = append(change.Row(nil), e.Key...)
			for range len(h.target.Columns) - 5 {
				e.Row = e.Row.Append(integer(value))
			}
		}
		if _, err := m.apply(l, []sequenced.Event{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	write(0, 10, 100, false, 1)
	write(1, 30, 200, false, 2)
	write(2, 20, 300, false, 1)
	write(3, 20, 400, false, 3)
	write(4, 40, 400, true, 0)
	write(5, 5, 150, true, 0)
	key := string(bitemporalEvent(1, 0, 0, 0).Key)
	x, err := sequenced.Explain(h.target, sequenced.Options{}, []change.Type{bigint}, l.Head(), m.sorted(key))
	if err != nil {
		t.Fatal(err)
	}
	got := "rule: " + x.Rule
	for _, e := range x.Events {
		got += fmt.Sprintf("\n%s %s %v: %s", e.Sequence, e.System, e.Delete, e.Led)
	}
	const want = `rule: 3 of its 6 rows are still believed (__SYSTEM_END_AT is NULL); none of them is open
10 100 false: believed from then on: [10, open)
5 150 true: changes nothing that is believed; an event that comes late may need it
30 200 false: believed no longer: [10, open); instead: [10, 30), [30, open)
20 300 false: changes nothing that is believed; an event that comes late may need it
20 400 false: the next event became known at the same system time: nobody saw what was between them
40 400 true: believed no longer: [10, 30), [30, open); instead: [10, 20), [20, 30), [30, 40)`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if x, err = sequenced.Explain(h.target, sequenced.Options{}, []change.Type{bigint}, l.Head(), nil); err != nil || !strings.Contains(x.Rule, "nothing is remembered") {
		t.Errorf("of no events: %+v, %v", x, err)
	}
}
