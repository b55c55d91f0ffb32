package sinktest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var bitemporalTests = []test{
	{"random bitemporal histories end as their definition says, and can be asked for", nil, func(t *testing.T, h Harness) {
		rnd := random(t)
		r := begin(t, h)
		var lives []*bitemporalLife
		for _, ld := range ladders {
			if len(ld.types) == 1 {
				lives = append(lives, newBitemporalLife(r, "both_"+ld.name, ld.types[0], rnd.IntN(2) == 0))
			}
		}
		for n := range 5 { // times the targets, times their keys: 120 histories
			for _, l := range lives {
				if n > 0 {
					if err := r.memory().Reset(r.ctx, l.Target); err != nil {
						t.Fatalf("Reset: %v", err)
					}
				}
				l.begin(rnd)
			}
			for slices.ContainsFunc(lives, func(l *bitemporalLife) bool { return len(l.coming) > 0 }) {
				var parts []sink.TargetRounds
				for _, l := range lives {
					if take := min(len(l.coming), rnd.IntN(16)); take > 0 {
						parts = append(parts, l.gather(l.coming[:take]...))
						l.coming = l.coming[take:]
					}
				}
				r.write(parts...)
				if rnd.IntN(8) == 0 {
					r.reopen()
					for _, l := range lives {
						l.anew()
					}
				}
			}
			for _, l := range lives {
				l.judge(rnd)
			}
		}
	}},

	{"empty rows of a bitemporal target are counted", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		l := newBitemporalLife(r, "bad", typeInt8, false)
		row := func(key, start int, end any, since int, till any) change.Row {
			return l.target.row(text, cells{1, key, "a", "k", 2, start, end, since, till})
		}
		write := func(rows ...change.Row) {
			t.Helper()
			if err := r.memory().Reset(r.ctx, l.Target); err != nil {
				t.Fatalf("Reset: %v", err)
			}
			r.write(l.hidden(sequenced.Work{}, scd.Round{Inserts: rows}))
		}
		for _, c := range []struct {
			rows []change.Row
			bad  int
		}{
			{[]change.Row{row(1, 1, nil, 1, 2), row(1, 1, 2, 2, nil), row(1, 2, nil, 2, nil), row(2, 1, nil, 1, nil)}, 0},
			{[]change.Row{row(1, 1, 1, 1, nil), row(2, 2, 3, 2, nil)}, 1},
			{[]change.Row{row(1, 1, nil, 4, 3)}, 1},
		} {
			write(c.rows...)
			found, err := r.w.Invariants(r.ctx, l.Target)
			if err != nil || len(found) != c.bad {
				t.Errorf("%d rows: %q, %v; want %d sentences", len(c.rows), found, err, c.bad)
			}
		}
	}},

	{"a bitemporal table and one of another kind do not take each other's place", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		both := newBitemporalLife(r, "t", typeInt8, false)
		one := makeTarget(h, "t", scd.Type1, "id int4 key", "a text")
		two := sequencedTarget(h, "t", scd.Type2, bigints, "id int4 key", "a text")
		for _, other := range []target{one, two} {
			if p := r.plan(other); !blocked(p) {
				t.Errorf("type %d: a plan over a bitemporal table has no problem: %+v", other.Kind, p)
			}
		}
		if p := r.plan(both.target); blocked(p) || len(p.DDL) > 0 {
			t.Errorf("its own plan: %+v", p)
		}
		for i, other := range []target{one, two} {
			other.Name.Table = fmt.Sprint("u", i)
			r.create(other)
			taking := *both.Target
			taking.Name = other.Name
			if p := r.plan(target{&taking}); !blocked(p) {
				t.Errorf("over type %d: a bitemporal plan has no problem: %+v", other.Kind, p)
			}
		}
	}},
}

// bitemporalLife is a bitemporal target and the histories that its keys are going through.
type bitemporalLife struct {
	*flow    // of its table
	declared target
	events   []sequenced.Event
	coming   []item
	print    map[string]string // a start as the events spell it: as the target gives it
}

func newBitemporalLife(r *rig, name string, axis change.Type, partial bool) *bitemporalLife {
	r.t.Helper()
	l := &bitemporalLife{declared: makeTarget(r.h, name, scd.Bitemporal, "v0 int8", "k1 int4 key", "v1 text", "k2 text key", "v2 int8")}
	l.declared.Sequenced = true
	l.flow = &flow{rig: r, target: target{l.declared.Table(scd.Axes{Business: axis, System: axis})}, sequence: []change.Type{axis}}
	l.create(l.target)
	l.options.Partial = partial
	l.anew()
	return l
}

// moment is the n-th value of the axes, in one of its spellings.
func (l *bitemporalLife) moment(rnd *rand.Rand, n int) any {
	var seq, shown string
	switch l.sequence[0].Kind {
	case change.Int64:
		seq = fmt.Sprint(n*7 - 20)
	case change.Text:
		seq = []string{"", "A", "B", "a", "a ", "b", "bb", "c", "ä", "ß", "表", "表1", "😀"}[n]
	case change.Numeric:
		shown = fmt.Sprintf("%d.%d0", n, n%10)
		if seq = shown; rnd.IntN(2) == 0 {
			seq = strings.TrimSuffix(shown, "0")
		}
	default:
		shown = fmt.Sprintf("2023-11-14 22:13:20.%06d+00", 100_001+2*n)
		if seq = shown; rnd.IntN(2) == 0 {
			seq = fmt.Sprintf("2023-11-15 07:13:20.%06d+09", 100_001+2*n)
		}
	}
	if shown == "" {
		shown = seq
	}
	l.print[seq] = shown
	return seq
}

// begin invents a history of each of some keys, and an order for them to arrive in.
func (l *bitemporalLife) begin(rnd *rand.Rand) {
	l.t.Helper()
	l.events, l.coming, l.print = nil, nil, map[string]string{}
	l.anew()
	for k := range 6 {
		business, system := 2+rnd.IntN(9), 2+rnd.IntN(9)
		key := cells{k % 2, awkward[k%len(awkward)]}
		for range 1 + rnd.IntN(9) {
			at, known := l.moment(rnd, rnd.IntN(business)), l.moment(rnd, rnd.IntN(system))
			e := sequenced.Event{Key: l.declared.key(text, key), Place: l.place(at), Start: l.start(at), System: l.place(known).Seq, SystemStart: l.start(known), Time: 1}
			if e.Delete = rnd.IntN(4) == 0; !e.Delete {
				row := cells{rnd.IntN(2), key[0], randomText(rnd), key[1], rnd.IntN(3)}
				for _, i := range []int{0, 2, 4} {
					switch {
					case rnd.IntN(5) == 0:
						row[i] = nil
					case l.options.Partial && rnd.IntN(3) == 0:
						row[i] = absent{}
					}
				}
				e.Row = l.declared.row(text, row)
			}
			l.events = append(l.events, e)
		}
	}
	for _, e := range l.events {
		for range 1 + rnd.IntN(8)/7 {
			l.coming = append(l.coming, item{Event: e})
		}
	}
	rnd.Shuffle(len(l.coming), func(i, j int) { l.coming[i], l.coming[j] = l.coming[j], l.coming[i] })
}

// judge compares the target with the oracle: its rows, what is expected by what is
// remembered, and what is shown as of random times.
func (l *bitemporalLife) judge(rnd *rand.Rand) {
	l.t.Helper()
	o := sim.Oracle{Events: l.events, Columns: len(l.declared.Columns)}
	all := o.Bitemporal()
	cell := func(v change.Value) string {
		if v.State == change.Null {
			return "NULL"
		}
		return string(v.Data)
	}
	var want []string
	for _, f := range all {
		var parts []string
		for _, v := range f.Values {
			parts = append(parts, cell(v))
		}
		for i, at := range []string{f.Start, f.End, f.Since, f.Till} {
			if shown := l.print[at]; at != "" || i%2 == 0 { // no interval ends at the lowest value
				parts = append(parts, shown)
			} else {
				parts = append(parts, "NULL")
			}
		}
		want = append(want, strings.Join(parts, "|"))
	}
	slices.Sort(want)
	rows := func(what string, read func(fn func(row change.Row) error) error) {
		l.t.Helper()
		var got []string
		err := read(func(row change.Row) error {
			values, err := row.Values(nil, len(l.Columns))
			var parts []string
			for i, v := range values {
				text := cell(v)
				if shown, ok := l.print[text]; ok && i >= len(l.declared.Columns) {
					text = shown
				}
				parts = append(parts, text)
			}
			got = append(got, strings.Join(parts, "|"))
			return err
		})
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			l.t.Fatalf("%s of %s (partial %v): %v\n  %s\nwant\n  %s", what, l.Name, l.options.Partial, err, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
	}
	rows("the rows", func(fn func(change.Row) error) error { return l.memory().Rows(l.ctx, l.Target, fn) })
	rows("what is expected", func(fn func(change.Row) error) error {
		x := sequenced.Expect(l.Target, l.options, l.head(l.target), func(e sequenced.Expected) error { return fn(e.Row) })
		if err := l.memory().Records(l.ctx, l.Target, x.Add); err != nil {
			return err
		}
		return x.End()
	})
	if found, err := l.w.Invariants(l.ctx, l.Target); err != nil || len(found) > 0 {
		l.t.Fatalf("Invariants of %s: %q, %v", l.Name, found, err)
	}
	for range 3 {
		l.ask(rnd, all)
	}
}

// ask compares what is shown as of two random times with the oracle's rows.
func (l *bitemporalLife) ask(rnd *rand.Rand, all []sim.OracleFact) {
	l.t.Helper()
	order := func(at string) string { return string(l.place(at).Seq) }
	within := func(at, from, to string) bool {
		return at == "" || order(from) <= order(at) && (to == "" || order(at) < order(to))
	}
	q := sink.ShowQuery{Target: l.Target}
	if rnd.IntN(4) > 0 {
		q.AsOf = fmt.Sprint(l.moment(rnd, 1+rnd.IntN(9)))
	}
	if rnd.IntN(4) > 0 {
		q.KnownAt = fmt.Sprint(l.moment(rnd, 1+rnd.IntN(9)))
	}
	var want, got []string
	for _, f := range all {
		if within(q.AsOf, f.Start, f.End) && within(q.KnownAt, f.Since, f.Till) {
			want = append(want, string(f.Values[1].Data)+"|"+string(f.Values[3].Data))
		}
	}
	err := l.w.Show(l.ctx, q, func(cells []*string) error {
		got = append(got, *cells[1]+"|"+*cells[3])
		return nil
	})
	slices.Sort(want)
	if err != nil || len(got) == 0 || !sameLines(got[1:], want) {
		l.t.Fatalf("Show of %s as of %q, known at %q: %v\n  %s\nwant\n  %s", l.Name, q.AsOf, q.KnownAt, err, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func sameLines(a, b []string) bool {
	a = slices.Sorted(slices.Values(a))
	return slices.Equal(a, b)
}
