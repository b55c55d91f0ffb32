package sequenced_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// is makes a rule about one column: its text is another than this.
func is(name string, action sequenced.Action, column int, not string) sequenced.Rule {
	return sequenced.Rule{Name: name, Action: action, Reads: []int{column}, Test: func(row []change.Value) (bool, bool, error) {
		v := row[column]
		if string(v.Data) == "BROKEN" {
			return false, false, errors.New("it cannot be computed")
		}
		return string(v.Data) != not, v.State == change.AsText, nil
	}}
}

func items() (*change.Table, *scd.Target) {
	table := &change.Table{ID: 1, Name: change.Name{Schema: "public", Table: "items"}}
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1}
	for _, c := range []string{"id", "v", "big"} {
		table.Columns = append(table.Columns, change.Column{Name: c, Type: textType, Key: c == "id"})
		target.Columns = append(target.Columns, scd.Column{Name: c, Type: textType, Key: c == "id"})
	}
	return table, target
}

// unsent makes a row like values, ~ for a value that was not sent.
func unsent(text string) change.Row {
	var row change.Row
	rest := values(text)
	for len(rest) > 0 {
		v, next, _ := rest.Next()
		if string(v.Data) == "~" {
			v = change.Value{State: change.Absent}
		}
		row, rest = row.Append(v), next
	}
	return row
}

func TestRowsAreJudgedByTheHardestRule(t *testing.T) {
	table, target := items()
	for _, c := range []struct {
		name     string
		rules    []sequenced.Rule
		old, row string
		oldIsKey bool
		dropped  string
		fails    string
		parks    bool
		violated string // of each rule
		unjudged string
	}{
		{name: "all hold", rules: []sequenced.Rule{is("a", sequenced.Drop, 1, "x"), is("b", sequenced.Fail, 2, "x")}, row: "1|y|y", violated: "00", unjudged: "00"},
		{name: "warn", rules: []sequenced.Rule{is("a", sequenced.Warn, 1, "x")}, row: "1|x|y", violated: "1", unjudged: "0"},
		{name: "NULL is a violation", rules: []sequenced.Rule{is("a", sequenced.Drop, 1, "x")}, row: "1|∅|y", dropped: "a", violated: "1", unjudged: "0"},
		{name: "so is what cannot be computed", rules: []sequenced.Rule{is("a", sequenced.Drop, 1, "x")}, row: "1|BROKEN|y", dropped: "a", violated: "1", unjudged: "0"},
		{name: "all are counted and the hardest wins", rules: []sequenced.Rule{is("a", sequenced.Drop, 1, "x"), is("b", sequenced.Fail, 1, "x"), is("c", sequenced.Warn, 1, "x")}, row: "1|x|y", fails: "expectation b ", violated: "111", unjudged: "000"},
		{name: "several drop", rules: []sequenced.Rule{is("a", sequenced.Drop, 1, "x"), is("b", sequenced.Drop, 2, "x"), is("c", sequenced.Drop, 2, "y")}, row: "1|x|x", dropped: "a, b", violated: "110", unjudged: "000"},
		{name: "a value that the old row has is judged", rules: []sequenced.Rule{is("a", sequenced.Drop, 2, "x")}, old: "1|y|x", row: "1|z|~", dropped: "a", violated: "1", unjudged: "0"},
		{name: "one that nobody sent is not, under warn", rules: []sequenced.Rule{is("a", sequenced.Warn, 2, "x"), is("b", sequenced.Fail, 1, "z")}, row: "1|z|~", fails: "expectation b ", violated: "01", unjudged: "10"},
		{name: "a row in part is no row to drop, or to change after that", rules: []sequenced.Rule{is("b", sequenced.Drop, 1, "z")}, row: "1|y|~", parks: true, violated: "0", unjudged: "0"},
		{name: "nor is one of an old key", rules: []sequenced.Rule{is("a", sequenced.Warn, 2, "x")}, old: "1|∅|∅", oldIsKey: true, row: "1|z|~", violated: "0", unjudged: "1"},
		{name: "under fail it parks", rules: []sequenced.Rule{is("a", sequenced.Fail, 2, "x")}, row: "1|z|~", parks: true, violated: "0", unjudged: "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tally := sequenced.NewTally(len(c.rules))
			j := sequenced.NewJudge("f", target, c.rules, tally)
			ch := &change.Change{Op: change.Update, Table: table, New: unsent(c.row), OldIsKey: c.oldIsKey}
			if c.old != "" {
				ch.Old = unsent(c.old)
			}
			dropped, at, err := j.Change(&change.Tx{Begin: change.LSN(5), End: change.LSN(9)}, ch, false)
			var park *sequenced.Park
			switch {
			case c.parks:
				if !errors.As(err, &park) || !strings.Contains(park.Remedy, "REPLICA IDENTITY FULL") {
					t.Errorf("%v, want it parked", err)
				}
			case c.fails != "":
				if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), c.fails) || !strings.Contains(err.Error(), "(key id)") {
					t.Errorf("%v, want a refusal with %q", err, c.fails)
				}
			case err != nil || dropped != c.dropped || (at != nil) != (c.dropped != ""):
				t.Errorf("dropped by %q at %x, %v; want %q", dropped, at, err, c.dropped)
			}
			violated, unjudged := []byte(strings.Repeat("0", len(c.rules))), []byte(strings.Repeat("0", len(c.rules)))
			tally.Take(func(rule int, v, n int64) { violated[rule] += byte(v); unjudged[rule] += byte(n) })
			if string(violated) != c.violated || string(unjudged) != c.unjudged {
				t.Errorf("violated %s, not judged %s; want %s and %s", violated, unjudged, c.violated, c.unjudged)
			}
			tally.Take(func(int, int64, int64) { t.Error("counted twice") })
		})
	}
}

func TestJudgingAllocatesNothing(t *testing.T) {
	table, target := items()
	rules := []sequenced.Rule{is("a", sequenced.Fail, 1, "x"), is("b", sequenced.Warn, 2, "y"), is("c", sequenced.Warn, 2, "z")}
	j := sequenced.NewJudge("f", target, rules, sequenced.NewTally(len(rules)))
	tx := &change.Tx{Begin: change.LSN(5), End: change.LSN(9), CommitTime: time.Unix(1, 0)}
	changes := []*change.Change{
		{Op: change.Insert, Table: table, New: values("1|v|y")},
		{Op: change.Update, Table: table, Old: values("1|v|y"), New: unsent("1|v|~")},
		{Op: change.Update, Table: table, New: unsent("1|v|~")},
	}
	n := testing.AllocsPerRun(200, func() {
		for _, c := range changes {
			if _, _, err := j.Change(tx, c, false); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > 0 {
		t.Errorf("judging three changes takes %g allocations", n)
	}
}

// An event that a rule drops leaves its place to the DELETE that follows it: at once, in
// a later batch, and with nothing else known of the key.
func TestADeleteStandsBehindAnEventThatWasDropped(t *testing.T) {
	for _, later := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			f := newFeed(scd.Type1, func(fl *sequenced.Flow, target *scd.Target) {
				rules := []sequenced.Rule{is("good", sequenced.Drop, 1, "bad")}
				fl.Feed, fl.Judge = false, sequenced.NewJudge("f", target, rules, sequenced.NewTally(1))
			})
			f.table.Columns[0].Key, f.table.Identity = true, change.IdentityDefault
			var memory []sequenced.Record
			flush := func() scd.Round {
				for _, look := range f.lane.Lookups() {
					for _, r := range memory {
						if string(r.Key) == string(look.Key) {
							if err := f.lane.Remember(r); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				w, round, aside, _, err := f.lane.Take()
				if err != nil || len(aside) > 0 {
					t.Fatalf("%v, %v", aside, err)
				}
				for _, id := range w.Remove {
					memory = without(memory, id)
				}
				for _, r := range w.Put {
					memory = append(without(memory, r.ID()), r)
				}
				return round
			}
			good := func(bad *sequenced.Bad, err error) {
				t.Helper()
				if bad != nil || err != nil {
					t.Fatal(bad, err)
				}
			}
			if before {
				good(f.send(change.Insert, "", "1|a|∅|U|1|∅"))
				flush()
			}
			bad, err := f.send(change.Update, "", "1|bad|∅|U|5|∅")
			if err != nil || bad == nil || !bad.Dropped || bad.Reason != "expectation good" {
				t.Fatalf("%+v, %v", bad, err)
			}
			if later {
				if r := flush(); !r.Empty() {
					t.Errorf("a dropped event writes %+v", r)
				}
			}
			f.line++
			key := &change.Change{Op: change.Delete, Table: f.table, Old: values("1|∅|∅|∅|∅|∅"), OldIsKey: true, Ordinal: f.line}
			good(f.shaper.Change(f.lane, &change.Tx{Begin: change.LSN(100), End: change.LSN(110), CommitTime: time.Unix(1, 0)}, key))
			if r := flush(); before && len(r.Deletes) != 1 {
				t.Errorf("the DELETE writes %+v", r)
			}
			// It stands at the dropped event's sequence: nothing below comes back.
			good(f.send(change.Insert, "", "1|late|∅|U|4|∅"))
			if r := flush(); !r.Empty() {
				t.Errorf("an event below the DELETE writes %+v (before %v, later %v)", r, before, later)
			}
			good(f.send(change.Insert, "", "1|new|∅|U|6|∅"))
			if r := flush(); len(r.Upserts) != 1 {
				t.Errorf("an event above the DELETE writes %+v", r)
			}
		}
	}
}

func without(list []sequenced.Record, id sequenced.RecordID) (out []sequenced.Record) {
	for _, r := range list {
		if string(r.Key) != string(id.Key) || string(r.Seq) != string(id.Seq) || string(r.At) != string(id.At) {
			out = append(out, r)
		}
	}
	return out
}
