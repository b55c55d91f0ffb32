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

var historyTests = []test{
	{"random histories in random order end as the oracle says", nil, func(t *testing.T, h Harness) {
		rnd := random(t)
		r := begin(t, h)
		var lives []*life
		for _, ld := range ladders {
			for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
				partial := rnd.IntN(2) == 0
				lives = append(lives, newLife(r, rnd, fmt.Sprintf("life%d_%s", kind, ld.name), kind, ld.types, partial))
				if len(ld.types) == 1 && ld.types[0].Kind == change.Int64 {
					lives = append(lives, newLife(r, rnd, fmt.Sprintf("life%d_again", kind), kind, ld.types, !partial))
				}
			}
		}
		rounds := fewer(h, 17) // times the targets: 204 histories
		for n := range rounds {
			for _, l := range lives {
				if n > 0 {
					if err := r.memory().Reset(r.ctx, l.Target); err != nil {
						t.Fatalf("Reset: %v", err)
					}
				}
				l.begin(rnd)
			}
			for slices.ContainsFunc(lives, func(l *life) bool { return len(l.coming) > 0 }) {
				pieces := 1
				if rnd.IntN(4) == 0 {
					pieces = 2 + rnd.IntN(3)
				}
				for i := range pieces {
					var parts []sink.TargetRounds
					for _, l := range lives {
						if part, ok := l.next(rnd); ok {
							parts = append(parts, part)
						}
					}
					b := r.batch(parts...)
					b.First, b.More = i == 0, i < pieces-1
					if err := r.w.Apply(r.ctx, b); err != nil {
						t.Fatalf("history %d: Apply: %v", n+1, err)
					}
				}
				switch rnd.IntN(12) {
				case 0:
					r.reopen()
					fallthrough
				case 1, 2:
					for _, l := range lives {
						l.anew()
					}
				}
			}
			for _, l := range lives {
				l.judge(n + 1)
			}
		}
	}},
}

// life is one target and the history it is going through.
type life struct {
	*flow
	events    []sequenced.Event
	truncates []sequenced.Place
	coming    []item
	print     map[string]string // a start as the events spell it: as the target shows it
}

// newLife makes a target with a key of two columns; of its others none, some or all
// are tracked.
func newLife(r *rig, rnd *rand.Rand, name string, kind scd.Kind, sequence []change.Type, partial bool) *life {
	r.t.Helper()
	columns := []string{"v0 int8", "k1 int4 key", "v1 text", "k2 text key", "v2 int8"}
	for _, i := range [][]int{{}, {0}, {0, 4}, {0, 2, 4}}[rnd.IntN(4)] {
		columns[i] += " untracked"
	}
	return &life{flow: r.flow(name, kind, sequence, partial, columns...)}
}

// begin invents a history and an order for it to arrive in.
func (l *life) begin(rnd *rand.Rand) {
	l.t.Helper()
	l.events, l.truncates, l.coming, l.print = nil, nil, nil, map[string]string{}
	l.anew()
	keys, sequences := 1+rnd.IntN(4), 3+rnd.IntN(10)
	for range 3 + rnd.IntN(18) {
		seq := l.moment(rnd, rnd.IntN(sequences))
		if l.Kind == scd.Type1 && rnd.IntN(9) == 0 {
			it := l.emptied(seq)
			l.truncates, l.coming = append(l.truncates, it.Place), append(l.coming, it)
			continue
		}
		k := rnd.IntN(keys)
		k1, k2 := any(k%2), any(awkward[k%len(awkward)])
		var it item
		if rnd.IntN(4) == 0 {
			it = l.gone(seq, k1, k2)
		} else {
			row := cells{rnd.IntN(2), k1, randomText(rnd), k2, rnd.IntN(3)}
			for _, i := range []int{0, 2, 4} {
				switch {
				case rnd.IntN(5) == 0:
					row[i] = nil
				case l.options.Partial && rnd.IntN(3) == 0:
					row[i] = absent{}
				}
			}
			it = l.put(seq, row...)
		}
		l.events, l.coming = append(l.events, it.Event), append(l.coming, it)
	}
	for range rnd.IntN(5) { // delivered twice
		l.coming = append(l.coming, l.coming[rnd.IntN(len(l.coming))])
	}
	rnd.Shuffle(len(l.coming), func(i, j int) { l.coming[i], l.coming[j] = l.coming[j], l.coming[i] })
}

// joined is how the suite shows a value of several columns.
func joined(list []any) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, "/")
}

// moment is the n-th value of the sequence, in one of its spellings.
func (l *life) moment(rnd *rand.Rand, n int) any {
	var seq any
	var shown string
	switch {
	case len(l.sequence) > 1:
		list, rest := make([]any, len(l.sequence)), n
		for i := len(list) - 1; i >= 0; i-- { // the digits of n in base three, of which the first may be larger
			digit := rest
			if i > 0 {
				digit, rest = rest%3, rest/3
			}
			switch l.sequence[i].Kind {
			case change.Text:
				list[i] = []string{"", "A longer text", "a", "ä", "ß"}[digit]
			case change.Numeric:
				list[i] = fmt.Sprintf("%d.25", 9+digit)
			default:
				list[i] = digit
			}
		}
		seq, shown = list, joined(list)
	case l.sequence[0].Kind == change.Int64:
		seq = n*7 - 20
	case l.sequence[0].Kind == change.Text:
		seq = []string{"", "A", "B", "a", "a ", "b", "bb", "c", "ä", "ß", "表", "表1", "😀"}[n]
	case l.sequence[0].Kind == change.Numeric:
		shown = fmt.Sprintf("%d.%d0", n, n%10)
		seq = shown
		if rnd.IntN(2) == 0 {
			seq = strings.TrimSuffix(shown, "0")
		}
	default:
		shown = fmt.Sprint(1_700_000_000_000_000 + int64(n))
		seq = fmt.Sprintf("2023-11-14 22:13:20.%06d+00", n)
		if rnd.IntN(2) == 0 {
			seq = fmt.Sprintf("2023-11-15 07:13:20.%06d+09", n)
		}
	}
	spelled := string(l.start(seq).Data)
	if shown == "" {
		shown = spelled
	}
	l.print[spelled] = shown
	return seq
}

// next takes some of what is coming into a batch.
func (l *life) next(rnd *rand.Rand) (sink.TargetRounds, bool) {
	l.t.Helper()
	n := min(len(l.coming), rnd.IntN(6))
	if rnd.IntN(10) == 0 {
		n = len(l.coming)
	}
	if n == 0 {
		return sink.TargetRounds{}, false
	}
	part := l.gather(l.coming[:n]...)
	l.coming = l.coming[n:]
	return part, true
}

// judge compares the target with the oracle.
func (l *life) judge(number int) {
	l.t.Helper()
	o := sim.Oracle{Events: l.events, Columns: len(l.Columns)}
	for _, c := range l.Columns {
		o.Tracked = append(o.Tracked, c.Tracked)
	}
	for _, p := range l.truncates {
		if o.Truncate.Before(p) {
			o.Truncate = p
		}
	}
	versions := o.Type2
	if l.Kind == scd.Type1 {
		versions = o.Type1
	}
	var want []string
	for _, v := range versions() {
		var parts []string
		for _, value := range v.Values {
			if value.State == change.Null {
				parts = append(parts, "NULL")
			} else {
				parts = append(parts, string(value.Data))
			}
		}
		if l.Kind == scd.Type2 {
			end := "NULL"
			if v.End != "" {
				end = l.print[v.End]
			}
			parts = append(parts, l.print[v.Start], end)
		}
		want = append(want, strings.Join(parts, "|"))
	}
	slices.Sort(want)
	if got := l.contents(l.target); !slices.Equal(got, want) {
		l.t.Fatalf("history %d of %s (partial %v, %d events, %d truncates) ends as\n  %s\nwant\n  %s", number, l.Name, l.options.Partial, len(l.events), len(l.truncates), strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	l.judgeMemory(number)
}

// judgeMemory compares what is remembered, read as a whole, with the target's rows:
// whole rows, without what has several spellings; of type 1 without partial rows the
// keys.
func (l *life) judgeMemory(number int) {
	l.t.Helper()
	width, whole := len(l.Columns), l.options.Partial || l.Kind == scd.Type2
	line := func(values []change.Value) string {
		var parts []string
		for i, c := range l.Columns {
			switch {
			case !c.Key && !whole:
			case values[i].State == change.Null:
				parts = append(parts, "NULL")
			default:
				parts = append(parts, string(values[i].Data))
			}
		}
		if l.Kind == scd.Type2 {
			parts = append(parts, fmt.Sprint(values[width+1].State == change.Null))
		}
		return strings.Join(parts, "|")
	}
	var got, want []string
	x := sequenced.Expect(l.Target, l.options, l.head(l.target), func(e sequenced.Expected) error {
		values, err := e.Row.Values(nil, width)
		if e.Row == nil {
			values = make([]change.Value, width)
			var keys []change.Value
			keys, err = e.Key.Values(nil, 2)
			values[1], values[3] = keys[0], keys[1]
		}
		want = append(want, line(append(values, e.Start, e.End)))
		return err
	})
	err := l.memory().Records(l.ctx, l.Target, x.Add)
	if err == nil {
		err = x.End()
	}
	if err != nil {
		l.t.Fatalf("Records: %v", err)
	}
	err = l.memory().Rows(l.ctx, l.Target, func(row change.Row) error {
		n := width
		if l.Kind == scd.Type2 {
			n += 2
		}
		values, err := row.Values(nil, n)
		got = append(got, line(values))
		return err
	})
	if err != nil {
		l.t.Fatalf("Rows: %v", err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		l.t.Fatalf("history %d of %s: the rows are\n  %s\nbut what is remembered says\n  %s", number, l.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
