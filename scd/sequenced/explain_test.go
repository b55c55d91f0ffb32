package sequenced_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Events of key 1 arrive one by one, written as SEQUENCE OP VALUES: columns a, b, c
// (c is not tracked); a dot is "not written". T is a truncate.
func TestExplain(t *testing.T) {
	const kept = "it is remembered so that an older event does not bring the row back"
	for _, c := range []struct {
		title   string
		kind    scd.Kind
		partial bool
		merge   bool // column a is JSON, written leaf by leaf
		events  string
		forget  bool // old deletes are forgotten
		want    string
	}{
		{title: "type 1, a write", kind: 1, events: "3 U x y z, 2 D", want: `
rule: the newest event is the write at sequence 3: its row is shown
3 write: its row is shown`},
		{title: "type 1, a delete", kind: 1, events: "6 D, 3 U x y z", want: `
rule: the newest event is the delete at sequence 6: no row is shown
6 tombstone: no row is shown; ` + kept},
		{title: "type 1, a truncate", kind: 1, events: "3 U x y z, 4 T, 2 U x y z", want: `
rule: nothing is remembered of this key: no event of it was taken, or its delete is forgotten, or a truncate took it; no row is shown
note: a truncate came at sequence 4 (f, line 1): no event at or below it has an effect`},
		{title: "type 1, forgotten", kind: 1, events: "3 D", forget: true, want: `
rule: nothing is remembered of this key: no event of it was taken, or its delete is forgotten, or a truncate took it; no row is shown
note: deletes up to sequence 3 may be forgotten (tombstone_retention); an event of this key at or below it is applied, although the row may have been deleted later`},
		{title: "type 1, parts", kind: 1, partial: true, events: "1 U a1 b1 c1, 3 U . b3 ., 2 U . b2 c2", want: `
rule: the newest event is the write at sequence 3: a row is shown, and each column shows what the newest event that wrote it wrote
1 write: columns a show what it wrote
2 write: columns c show what it wrote
3 write: columns b show what it wrote`},
		{title: "type 1, parts across a delete", kind: 1, partial: true, events: "1 U a1 b1 c1, 2 D, 3 U . b3 .", want: `
rule: the newest event is the write at sequence 3: a row is shown, and each column shows what the newest event that wrote it wrote
2 delete: columns a, c are NULL: it cleared them, and nothing newer wrote them
3 write: columns b show what it wrote`},
		{title: "type 1, parts never written", kind: 1, partial: true, events: "3 U . b3 ., 4 U . . .", want: `
rule: the newest event is the write at sequence 4: a row is shown, and each column shows what the newest event that wrote it wrote
note: columns a, c are NULL: no event wrote them
3 write: columns b show what it wrote
4 write: it says that the row is there`},
		{title: "type 1, parts and a delete", kind: 1, partial: true, events: "3 U . b3 ., 4 D", want: `
rule: the newest event is the delete at sequence 4: no row is shown
4 tombstone: no row is shown; ` + kept},
		{title: "type 1, leaves", kind: 1, partial: true, merge: true, events: `1 U {"x":1,"y":1} b1 ., 2 U {"y":2} . .`, want: `
rule: the newest event is the write at sequence 2: a row is shown, and each column shows what the newest event that wrote it wrote
note: columns c are NULL: no event wrote them
1 write: columns b and parts of columns a show what it wrote
2 write: parts of columns a show what it wrote`},
		{title: "type 2, versions", kind: 2, events: "1 U x y z, 5 U x2 y z, 3 U x y z3, 6 D", want: `
rule: the newest event is the delete at sequence 6: it ended the version that began at 5, and none is open
1 write: begins a version: none was open
3 write: continues the version that began at 1: tracked columns are equal
5 write: ends the version that began at 1 and begins another: tracked columns differ
6 delete: ends the version that began at 5`},
		{title: "type 2, continues", kind: 2, events: "1 U x y z, 2 U x y z2", want: `
rule: the newest event, at sequence 2, continues the version that began at 1, which is open: tracked columns are equal
1 write: begins a version: none was open
2 write: continues the version that began at 1: tracked columns are equal`},
		{title: "type 2, open", kind: 2, events: "1 U x y z, 2 U x2 y z", want: `
rule: the newest event, at sequence 2, began the version that is open: tracked columns differ from those of the version before
1 write: begins a version: none was open
2 write: ends the version that began at 1 and begins another: tracked columns differ`},
		{title: "type 2, a delete of nothing", kind: 2, events: "3 D, 2 D, 4 U x y z", want: `
rule: the newest event, at sequence 4, began the version that is open
2 tombstone: no version was open: it ends none
3 tombstone: no version was open: it ends none
4 write: begins a version: none was open`},
		{title: "type 2, one step", kind: 2, events: "1 U x y z, 1 U x2 y z, 2 D, 2 U x2 y z", want: `
rule: the newest event, at sequence 2, continues the version that began at 1, which is open: tracked columns are equal
1 write: the next event has an equal sequence: both are one step, and nobody saw what was between them
1 write: begins a version: none was open
2 delete: the next event has an equal sequence: both are one step, and nobody saw what was between them
2 write: continues the version that began at 1: tracked columns are equal`},
		{title: "type 2, parts", kind: 2, partial: true, events: "1 U x y ., 2 U x2 . .", want: `
rule: the newest event, at sequence 2, began the version that is open: tracked columns differ from those of the version before
1 write: begins a version: none was open; what it does not write (c) comes from the step or the version before, or is NULL
2 write: ends the version that began at 1 and begins another: tracked columns differ; what it does not write (b, c) comes from the step or the version before, or is NULL`},
	} {
		t.Run(c.title, func(t *testing.T) {
			target := &scd.Target{Name: change.Name{Table: "t"}, Kind: c.kind, Sequenced: true, Columns: []scd.Column{
				{Name: "k", Type: bigint, Key: true}, {Name: "a", Type: textType, Tracked: true}, {Name: "b", Type: textType, Tracked: true}, {Name: "c", Type: textType}}}
			o := sequenced.Options{Partial: c.partial, Merge: []bool{false, c.merge, false, false}}
			m, lane := newMemory(target), sequenced.New(target, o, sequenced.Head{})
			key := change.Row(nil).Append(text("1"))
			for i, words := range strings.Split(c.events, ", ") {
				w := strings.Fields(words)
				var n int
				fmt.Sscan(w[0], &n)
				p := placeOf(n, "f", uint64(i))
				var events []sequenced.Event
				var truncates []sequenced.Place
				e := sequenced.Event{Key: key, Place: p, Delete: w[1] == "D", Start: startOf(p), Time: 1}
				switch w[1] {
				case "T":
					truncates = []sequenced.Place{p}
				case "U":
					e.Row = change.Row(nil).Append(text("1"))
					for _, v := range w[2:] {
						if v == "." {
							e.Row = e.Row.Append(change.Value{State: change.Absent})
						} else {
							e.Row = e.Row.Append(text(v))
						}
					}
					fallthrough
				default:
					events = []sequenced.Event{e}
				}
				if _, err := m.apply(lane, events, truncates); err != nil {
					t.Fatal(err)
				}
			}
			head, records := lane.Head(), m.sorted(string(key))
			if c.forget {
				head.Horizon, records = records[0].Seq, nil
			}
			x, err := sequenced.Explain(target, o, []change.Type{bigint}, head, records)
			if err != nil {
				t.Fatal(err)
			}
			got := "\nrule: " + x.Rule
			for _, n := range x.Notes {
				got += "\nnote: " + n
			}
			for _, e := range x.Events {
				what := "write"
				switch {
				case e.Tombstone:
					what = "tombstone"
				case e.Delete:
					what = "delete"
				}
				got += fmt.Sprintf("\n%s %s: %s", e.Sequence, what, e.Led)
			}
			if got != c.want {
				t.Errorf("got%s\nwant%s", got, c.want)
			}
		})
	}
}

// An explanation never says otherwise than the table, whatever came in whatever order.
func TestExplanationsAgreeWithTheTable(t *testing.T) {
	for n := range uint64(3000) {
		r := rand.New(rand.NewPCG(n, 11))
		h := randomHistory(r)
		m, err := h.arrive(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		for key := range m.records {
			x, err := sequenced.Explain(h.target, h.options, []change.Type{bigint}, sequenced.Head{}, m.sorted(key))
			if err != nil {
				t.Fatalf("history %d: %v", n, err)
			}
			_, shown := m.rows[key]
			open := 0
			for _, v := range m.versions[key] {
				if v.end == "" {
					open++
				}
			}
			if h.target.Kind == scd.Type2 {
				shown = open == 1
			}
			says := len(x.Events) > 0 && !x.Events[len(x.Events)-1].Delete
			if says != shown || strings.Contains(x.Rule, "is the delete") == says && len(x.Events) > 0 {
				t.Fatalf("history %d, key %q: shown %v, the rule is %q", n, key, shown, x.Rule)
			}
			for _, e := range x.Events {
				if e.Led == "" {
					t.Fatalf("history %d: nothing is said of the event at %s", n, e.Sequence)
				}
			}
		}
	}
}
