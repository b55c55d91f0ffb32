package sequenced_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// feed is a relation with columns id, name, city, op, seq, cols, and its target id,
// name, city.
type feed struct {
	table  *change.Table
	target *scd.Target
	flow   *sequenced.Flow
	lane   *sequenced.Lane
	shaper *sequenced.Shaper
	line   uint64
}

func newFeed(kind scd.Kind, set func(*sequenced.Flow, *scd.Target)) *feed {
	f := &feed{table: &change.Table{ID: 1, Name: change.Name{Table: "feed"}, Identity: change.IdentityFull}}
	for _, c := range []string{"id", "name", "city", "op", "seq", "cols"} {
		typ := textType
		if c == "id" || c == "seq" {
			typ = bigint
		}
		f.table.Columns = append(f.table.Columns, change.Column{Name: c, Type: typ, Nullable: true})
	}
	f.target = &scd.Target{Name: change.Name{Table: "t"}, Kind: kind, Sequenced: true, Columns: []scd.Column{
		{Name: "id", Type: bigint, Key: true}, {Name: "name", Type: textType, Tracked: true, Nullable: true}, {Name: "city", Type: textType, Tracked: true, Nullable: true}}}
	op := func(want string) sequenced.Condition {
		return func(row []change.Value) (bool, bool, error) {
			if string(row[3].Data) == "BROKEN" {
				return false, false, fmt.Errorf("CAST of column op fails")
			}
			return string(row[3].Data) == want, row[3].State == change.AsText, nil
		}
	}
	f.flow = &sequenced.Flow{Name: "f", Feed: true, Columns: []int{0, 1, 2}, Sequence: []int{4}, Types: []change.Type{bigint}, Names: []string{"seq"}, Update: -1, Delete: op("D"), Truncate: op("T")}
	o := sequenced.Options{}
	if set != nil {
		set(f.flow, f.target)
		o.Partial = f.flow.Update >= 0 || f.flow.IgnoreNull != nil
	}
	f.flow.Inputs = len(f.table.Columns) + len(sequenced.MetaColumns)
	if !f.flow.Feed {
		o.Follows = []uint16{0}
	}
	f.lane = sequenced.New(f.target, o, sequenced.Head{})
	f.shaper = sequenced.NewShaper(f.flow, f.target)
	return f
}

// values makes a row of "a|b|∅|c"; ∅ is NULL.
func values(text string) change.Row {
	var row change.Row
	for _, v := range strings.Split(text, "|") {
		value := change.Value{State: change.Null}
		if v != "∅" {
			value = change.Value{State: change.AsText, Data: []byte(v)}
		}
		row = row.Append(value)
	}
	return row
}

func (f *feed) send(op change.Op, old, row string) (*sequenced.Bad, error) {
	f.line++
	c := &change.Change{Op: op, Table: f.table, Ordinal: f.line}
	if old != "" {
		c.Old = values(old)
	}
	if row != "" {
		c.New = values(row)
	}
	tx := &change.Tx{First: true, Last: true, Begin: change.LSN(100), End: change.LSN(110), CommitTime: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Changes: []change.Change{*c}}
	return f.shaper.Change(f.lane, tx, c)
}

// holds applies everything sent and prints the target.
func (f *feed) holds(t *testing.T) string {
	t.Helper()
	m := newMemory(f.target)
	if _, err := m.apply(f.lane, nil, nil); err != nil {
		t.Fatal(err)
	}
	return strings.Join(m.readable(), "; ")
}

func TestRowsBecomeEvents(t *testing.T) {
	update := func(fl *sequenced.Flow, _ *scd.Target) { fl.Update = 5 }
	ignore := func(fl *sequenced.Flow, _ *scd.Target) { fl.IgnoreNull = []bool{false, true, false} }
	for _, c := range []struct {
		name string
		kind scd.Kind
		set  func(*sequenced.Flow, *scd.Target)
		rows []string
		want string
	}{
		{"upserts by sequence", scd.Type1, nil, []string{"1|new|x|U|2|∅", "1|old|x|U|1|∅"}, "1 new x"},
		{"a condition that is NULL is an upsert", scd.Type1, nil, []string{"1|a|x|∅|1|∅"}, "1 a x"},
		{"deletes", scd.Type1, nil, []string{"1|a|x|U|1|∅", "1|∅|∅|D|2|∅", "2|b|y|U|1|∅"}, "2 b y"},
		{"a truncate needs no key", scd.Type1, nil, []string{"1|a|x|U|1|∅", "2|b|y|U|9|∅", "∅|∅|∅|T|5|∅"}, "2 b y"},
		{"named columns, PostgreSQL's array", scd.Type1, update, []string{"1|a|x|U|1|∅", "1|b|y|U|2|{city}"}, "1 a y"},
		{"named columns, JSON, without case", scd.Type1, update, []string{"1|a|x|U|1|∅", `1|∅|y|U|2|["NAME"]`}, "1 ∅ x"},
		{"an empty array writes nothing", scd.Type1, update, []string{"1|a|x|U|1|∅", "1|b|y|U|2|{}", "2|b|y|U|2|{}"}, "1 a x; 2 ∅ ∅"},
		{"NULL is not sent, in chosen columns", scd.Type1, ignore, []string{"1|a|x|U|1|∅", "1|∅|∅|U|2|∅"}, "1 a ∅"},
		{"history", scd.Type2, nil, []string{"1|b|x|U|5|∅", "1|a|x|U|1|∅", "1|∅|∅|D|9|∅"}, "1 a x [1,5); 1 b x [5,9)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFeed(c.kind, c.set)
			for _, row := range c.rows {
				if bad, err := f.send(change.Insert, "", row); bad != nil || err != nil {
					t.Fatalf("%s: %+v, %v", row, bad, err)
				}
			}
			if got := f.holds(t); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestBadEventsAreReturnedWithoutValues(t *testing.T) {
	f := newFeed(scd.Type1, func(fl *sequenced.Flow, _ *scd.Target) { fl.Update = 5 })
	for row, want := range map[string]string{
		"∅|secret|x|U|1|∅":      "a key column is NULL",
		"1|secret|x|U|∅|∅":      "the sequence is NULL",
		"1|secret|x|U|secret|∅": "the sequence cannot be read",
		"1|secret|x|BROKEN|1|∅": "cannot be evaluated",
		"1|secret|x|U|1|secret": "no array of column names",
		"1|secret|x|U|1|{nope}": "does not have",
		"∅|∅|∅|T|∅|∅":           "the sequence is NULL",
	} {
		bad, err := f.send(change.Insert, "", row)
		if err != nil || bad == nil || !strings.Contains(bad.Reason, want) || strings.Contains(bad.Reason, "secret") || bad.At == nil {
			t.Errorf("%s: %+v, %v", row, bad, err)
		}
	}
	if got := f.holds(t); got != "" {
		t.Errorf("bad events left %q", got)
	}
}

func TestAFeedOnlyGrows(t *testing.T) {
	f := newFeed(scd.Type1, nil)
	const row = "1|a|x|U|1|∅"
	for op, images := range map[change.Op][2]string{change.Update: {row, row}, change.Delete: {row, ""}, change.Truncate: {"", ""}} {
		_, err := f.send(op, images[0], images[1])
		if err == nil || fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "flow f") || !strings.Contains(fault.RemedyOf(err), "skip_change_commits") {
			t.Errorf("%s: %v", op, err)
		}
		f.flow.Skip = append(f.flow.Skip, op)
		if bad, err := f.send(op, images[0], images[1]); bad != nil || err != nil {
			t.Errorf("%s, passed over: %v, %v", op, bad, err)
		}
	}
	if got := f.holds(t); got != "" {
		t.Errorf("changes of the feed left %q", got)
	}
}

func TestChangesOfATableBecomeEvents(t *testing.T) {
	table := func(fl *sequenced.Flow, _ *scd.Target) { fl.Feed, fl.Delete, fl.Truncate = false, nil, nil }
	f := newFeed(scd.Type1, table)
	for _, c := range []struct {
		op       change.Op
		old, row string
	}{
		{change.Insert, "", "1|a|x|∅|1|∅"}, {change.Update, "1|a|x|∅|1|∅", "1|b|x|∅|2|∅"},
		{change.Insert, "", "2|c|y|∅|1|∅"}, {change.Delete, "2|c|y|∅|1|∅", ""},
		{change.Insert, "", "3|d|z|∅|1|∅"}, {change.Update, "3|d|z|∅|1|∅", "4|d|z|∅|2|∅"},
		{change.Insert, "", "2|again|y|∅|1|∅"}, // at the same sequence: later in the log
	} {
		if bad, err := f.send(c.op, c.old, c.row); bad != nil || err != nil {
			t.Fatalf("%+v, %v", bad, err)
		}
	}
	if got, want := f.holds(t), "1 b x; 2 again y; 4 d z"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	// In a history a delete ends the version at its commit time, or just above the row's
	// own time.
	stamp := change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone"}
	for own, want := range map[string]string{
		"2026-01-01 00:00:00+00": "1 a x [2026-01-01 00:00:00+00,2026-01-02 03:04:05+00)",
		"2027-01-01 00:00:00+00": "1 a x [2027-01-01 00:00:00+00,2027-01-01 00:00:00.000001+00)",
	} {
		f := newFeed(scd.Type2, func(fl *sequenced.Flow, tg *scd.Target) {
			table(fl, tg)
			fl.Types, fl.DeleteSequence, tg.Sequence = []change.Type{stamp}, []int{8}, &stamp
		})
		row := "1|a|x|∅|" + own + "|∅"
		for _, c := range [][2]string{{"", row}, {row, ""}} {
			op := change.Insert
			if c[1] == "" {
				op = change.Delete
			}
			if bad, err := f.send(op, c[0], c[1]); bad != nil || err != nil {
				t.Fatalf("%+v, %v", bad, err)
			}
		}
		if got := f.holds(t); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestASequenceOfSeveralColumns(t *testing.T) {
	f := newFeed(scd.Type2, func(fl *sequenced.Flow, _ *scd.Target) {
		fl.Sequence, fl.Types, fl.Names = []int{4, 3}, []change.Type{bigint, textType}, []string{"seq", "op"}
		fl.Delete, fl.Truncate = nil, nil
	})
	for _, row := range []string{"1|c|x|b|2|∅", "1|a|x|z|1|∅", "1|b|x|a|2|∅"} {
		if bad, err := f.send(change.Insert, "", row); bad != nil || err != nil {
			t.Fatalf("%+v, %v", bad, err)
		}
	}
	want := `1 a x [{"op": "z", "seq": 1},{"op": "a", "seq": 2}); 1 b x [{"op": "a", "seq": 2},{"op": "b", "seq": 2}); 1 c x [{"op": "b", "seq": 2},)`
	if got := f.holds(t); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
