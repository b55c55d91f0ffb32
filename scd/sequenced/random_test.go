package sequenced_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

var (
	seed      = flag.Uint64("seed", 0, "replay one random history of this number")
	histories = flag.Int("histories", 60_000, "how many random histories")
)

func text(s string) change.Value { return change.Value{State: change.AsText, Data: []byte(s)} }

func integer(n int) change.Value { return text(strconv.Itoa(n)) }

var bigint = change.Type{Kind: change.Int64, Name: "bigint"}

// history is one random life of a target.
type history struct {
	target    *scd.Target
	options   sequenced.Options
	events    []sequenced.Event
	truncates []sequenced.Place
}

func placeOf(n int, at string, line uint64) sequenced.Place {
	seq, err := sequenced.AppendSequence(nil, integer(n), bigint)
	if err != nil {
		panic(err)
	}
	return sequenced.Place{Seq: seq, At: sequenced.AppendFile(nil, at, line, 0)}
}

func randomHistory(r *rand.Rand) *history {
	h := &history{}
	h.target = &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Kind(1 + r.IntN(2)), Sequenced: true}
	h.target.Columns = append(h.target.Columns, scd.Column{Name: "k", Type: bigint, Key: true})
	mode := r.IntN(3) // everything tracked, a part, nothing
	columns := 1 + r.IntN(3)
	for i := range columns {
		h.target.Columns = append(h.target.Columns, scd.Column{Name: fmt.Sprint("v", i), Type: bigint, Nullable: true, Tracked: mode == 0 || mode == 1 && i == 0})
	}
	h.options.Partial = r.IntN(2) == 0
	keys, values, sequences := 1+r.IntN(3), 2+r.IntN(2), 3+r.IntN(12)
	for n := 2 + r.IntN(11); n > 0; n-- {
		p := placeOf(r.IntN(sequences), "f", uint64(len(h.events)+len(h.truncates)))
		if h.target.Kind == scd.Type1 && r.IntN(9) == 0 {
			h.truncates = append(h.truncates, p)
			continue
		}
		key := integer(r.IntN(keys))
		e := sequenced.Event{Key: change.Row(nil).Append(key), Place: p, Time: int64(n)}
		if e.Delete = r.IntN(4) == 0; !e.Delete {
			row := change.Row(nil).Append(key)
			for range columns {
				switch c := r.IntN(values + 2); {
				case c < values:
					row = row.Append(integer(c))
				case c == values || !h.options.Partial:
					row = row.Append(change.Value{State: change.Null})
				default:
					row = row.Append(change.Value{State: change.Absent})
				}
			}
			e.Row = row
		}
		e.Start = startOf(p)
		h.events = append(h.events, e)
	}
	return h
}

// startOf turns the order-preserving form of a bigint back into its text.
func startOf(p sequenced.Place) change.Value {
	n := uint64(0)
	for _, b := range p.Seq {
		n = n<<8 | uint64(b)
	}
	return text(strconv.FormatInt(int64(n^(1<<63)), 10))
}

func (h *history) oracle() string {
	o := sim.Oracle{Events: h.events, Columns: len(h.target.Columns)}
	for _, c := range h.target.Columns {
		o.Tracked = append(o.Tracked, c.Tracked)
	}
	for _, p := range h.truncates {
		if o.Truncate.Before(p) {
			o.Truncate = p
		}
	}
	rows := o.Type2
	if h.target.Kind == scd.Type1 {
		rows = o.Type1
	}
	var lines []string
	for _, v := range rows() {
		// The key column is never inherited: it comes with every event.
		var row change.Row
		for _, value := range v.Values {
			row = row.Append(value)
		}
		if h.target.Kind == scd.Type1 {
			lines = append(lines, fmt.Sprintf("%x %x", v.Key, []byte(row)))
		} else {
			lines = append(lines, fmt.Sprintf("%x %6s..%s %x", v.Key, v.Start, v.End, []byte(row)))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// item is an event or a truncate on its way.
type item struct {
	event    *sequenced.Event
	truncate *sequenced.Place
}

// arrive plays the history in random order, cut into random batches, with some of
// it delivered twice, and with the lane made anew now and then, as after a restart.
func (h *history) arrive(r *rand.Rand, wrap func(*sequenced.Event)) (*memory, error) {
	var items []item
	for i := range h.events {
		items = append(items, item{event: &h.events[i]})
	}
	for i := range h.truncates {
		items = append(items, item{truncate: &h.truncates[i]})
	}
	for range r.IntN(4) {
		items = append(items, items[r.IntN(len(items))])
	}
	r.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	m := newMemory(h.target)
	l := sequenced.New(h.target, h.options, sequenced.Head{})
	for len(items) > 0 {
		n := 1 + r.IntN(len(items))
		if r.IntN(3) == 0 {
			n = 1
		}
		var events []sequenced.Event
		var truncates []sequenced.Place
		for _, it := range items[:n] {
			if it.truncate != nil {
				truncates = append(truncates, *it.truncate)
				continue
			}
			e := *it.event
			if wrap != nil {
				wrap(&e)
			}
			events = append(events, e)
		}
		items = items[n:]
		if _, err := m.apply(l, events, truncates); err != nil {
			return m, err
		}
		if r.IntN(4) == 0 {
			l = sequenced.New(h.target, h.options, l.Head())
		}
	}
	return m, nil
}

// The target is a function of the set of events: whatever the order, the batches and
// the repetitions, it is what the oracle makes of all of them at once.
func TestTargetIsAFunctionOfTheSetOfEvents(t *testing.T) {
	start, n := rand.Uint64(), *histories
	if *seed != 0 {
		start, n = *seed, 1
	} else if testing.Short() {
		n = 5000
	}
	t.Logf("%d histories from seed %d (replay one with -seed)", n, start)
	for i := range n {
		s := start + uint64(i)
		r := rand.New(rand.NewPCG(s, 1))
		h := randomHistory(r)
		want := h.oracle()
		m, err := h.arrive(r, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		if got := m.show(); got != want || len(m.problems) > 0 {
			t.Fatalf("seed %d, type %d, partial %v, %d events, %d truncates\ngot\n%s\nwant\n%s\n%v", s, h.target.Kind, h.options.Partial, len(h.events), len(h.truncates), got, want, m.problems)
		}
	}
}
