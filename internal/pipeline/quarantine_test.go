package pipeline

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/flow"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var textColumn = change.Type{Kind: change.Text, Name: "text"}

func rowOf(values ...any) (r change.Row) {
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			r = r.Append(change.Value{State: change.Null})
		case change.State:
			r = r.Append(change.Value{State: v})
		case string:
			r = r.Append(change.Value{State: change.AsText, Data: []byte(v)})
		}
	}
	return r
}

func table(names ...string) *change.Table {
	t := &change.Table{Name: change.Name{Table: "t"}}
	for _, n := range names {
		t.Columns = append(t.Columns, change.Column{Name: n, Type: textColumn, Key: n == "id"})
	}
	return t
}

// What is set aside comes back as the change that it was, in the layout that its table
// has by then.
func TestAnEventSetAsideComesBackAsItWas(t *testing.T) {
	b := &Bound{Spec: &flow.Spec{}, Target: &scd.Target{Name: change.Name{Table: "t"}}}
	b.Spec.Sequenced.Name = "f"
	then := table("id", "v", "gone", "big")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	place := sequenced.AppendLog(nil, change.LSN(7), false, 3, 0)
	full := rowOf("1", `<"ä>`, "g", "toast")
	for _, c := range []struct {
		name     string
		c        change.Change
		partial  bool
		new, old change.Row // in the layout id, v, big, added
	}{
		{"insert", change.Change{Op: change.Insert, New: rowOf("1", nil, "g", "b")}, false, rowOf("1", nil, "b", nil), nil},
		{"insert, partial", change.Change{Op: change.Insert, New: rowOf("1", nil, "g", "b")}, true, rowOf("1", nil, "b", change.Absent), nil},
		{"update", change.Change{Op: change.Update, New: rowOf("2", "w", "g", change.Absent), Old: full}, false, rowOf("2", "w", change.Absent, nil), rowOf("1", `<"ä>`, "toast", nil)},
		{"update, key sent", change.Change{Op: change.Update, New: rowOf("2", "w", "g", "b"), Old: rowOf("1", nil, nil, nil), OldIsKey: true}, false, rowOf("2", "w", "b", nil), rowOf("1", change.Absent, change.Absent, change.Absent)},
		{"delete, key sent", change.Change{Op: change.Delete, Old: rowOf("1", nil, nil, nil), OldIsKey: true}, false, nil, rowOf("1", change.Absent, change.Absent, change.Absent)},
		{"delete", change.Change{Op: change.Delete, Old: full}, false, nil, rowOf("1", `<"ä>`, "toast", nil)},
	} {
		c.c.Table, c.c.Ordinal = then, 3
		tx := &change.Tx{XID: 42, Begin: change.LSN(7), End: change.LSN(9), CommitTime: at}
		a := aside(b, "why", place, sequenced.Origin{Tx: tx, Change: &c.c})
		if a.Flow != "f" || a.Target != b.Target.Name || a.Reason != "why" || a.Position != "0/7, change 3" || string(a.At) != string(place) || !a.Time.Equal(at) {
			t.Errorf("%s: %+v", c.name, a)
		}
		var e sent
		if err := json.Unmarshal(a.Event, &e); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		now := table("id", "v", "big", "added")
		gotTx, got, err := e.origin(now, a.Time, c.partial)
		if err != nil || got.Op != c.c.Op || got.Table != now || got.OldIsKey != c.c.OldIsKey || string(got.New) != string(c.new) || string(got.Old) != string(c.old) {
			t.Errorf("%s: %v, got %+v\n  new %q, want %q\n  old %q, want %q", c.name, err, got, got.New, c.new, got.Old, c.old)
		}
		if gotTx.XID != 42 || gotTx.End != tx.End || !gotTx.CommitTime.Equal(at) {
			t.Errorf("%s: transaction %+v", c.name, gotTx)
		}
	}

	// Of a piece the end is not known; a file has no position at all.
	for begin, want := range map[uint64]string{7: "0/7", 0: ""} {
		ch := change.Change{Op: change.Insert, Table: then, New: full}
		a := aside(b, "why", place, sequenced.Origin{Tx: &change.Tx{Begin: change.LSN(begin)}, Change: &ch})
		var e sent
		if err := json.Unmarshal(a.Event, &e); err != nil || e.LSN != want {
			t.Errorf("begin %d: %+v, %v", begin, e, err)
		}
	}
	for _, text := range []string{`{}`, `{"op": "TRUNCATE"}`, `{"op": "INSERT", "lsn": "x"}`} {
		var e sent
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.origin(then, at, false); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// An event that the rule of the horizon sets aside is stored as the source sent it, under
// the flow that it came by.
func TestAnEventBelowTheHorizonIsSetAsideUnderItsFlow(t *testing.T) {
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1, Sequenced: true, Columns: []scd.Column{{Name: "id", Type: textColumn, Key: true}}}
	bigint := change.Type{Kind: change.Int64, Name: "bigint"}
	layout := table("id", "seq")
	layout.Columns[1].Type = bigint
	var flows []*Bound
	for i, name := range []string{"one", "two"} {
		b := &Bound{Spec: &flow.Spec{}, Target: target, order: 4 + i}
		b.Spec.Sequenced.Name = name
		b.flow = &sequenced.Flow{Name: name, Order: uint16(b.order), Feed: true, Columns: []int{0}, Sequence: []int{1}, Types: []change.Type{bigint}, Names: []string{"seq"}, Update: -1, KeepOrigin: true}
		flows = append(flows, b)
	}
	horizon, err := sequenced.AppendSequence(nil, change.Value{State: change.AsText, Data: []byte("10")}, bigint)
	if err != nil {
		t.Fatal(err)
	}
	c := &channel{target: target, flows: flows, lane: sequenced.New(target, sequenced.Options{QuarantineBeyond: true}, sequenced.Head{Horizon: horizon})}
	ch := &change.Change{Op: change.Insert, Table: layout, New: rowOf("1", "5"), Ordinal: 1}
	if bad, err := sequenced.NewShaper(flows[1].flow, target).Change(c.lane, &change.Tx{Begin: change.LSN(1), End: change.LSN(2)}, ch); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
	_, _, late, _, err := c.lane.Take()
	if err != nil || len(late) != 1 {
		t.Fatal(late, err)
	}
	a := c.late(&late[0])
	if want := `{"op":"INSERT","lsn":"0/2","row":{"id":"1","seq":"5"}}`; a.Flow != "two" || string(a.Event) != want || a.Position != "0/1, change 1" {
		t.Errorf("%+v, event %s", a, a.Event)
	}
}

// unresolved is a memory that knows its quarantine alone.
type unresolved struct {
	sink.Memory
	counts map[string]int64
}

func (u unresolved) Unresolved(context.Context) (map[string]int64, error) { return u.counts, nil }

// Deletes are remembered while an event waits that may have to meet them.
func TestNothingIsForgottenWhileEventsAreInQuarantine(t *testing.T) {
	target := &scd.Target{Name: change.Name{Table: "t"}}
	b := &Bound{Spec: &flow.Spec{}, Target: target}
	for _, c := range []struct {
		counts map[string]int64
		aside  []sink.Aside
		want   bool
	}{
		{nil, nil, true},
		{map[string]int64{"t": 1}, nil, false},
		{map[string]int64{"other": 1}, []sink.Aside{{Target: change.Name{Table: "other"}}}, true},
		{nil, []sink.Aside{{Target: target.Name}}, false},
	} {
		ch := &channel{target: target, flows: []*Bound{b}, memory: unresolved{counts: c.counts}}
		got, err := ch.mayForget(t.Context(), &sink.Batch{Aside: c.aside})
		if err != nil || got != c.want {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
}
