package sequenced_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

var stamp = change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone"}

// instant is a sequence of so many µs, and its value.
func instant(us int64) (seq []byte, start change.Value) {
	start = change.Value{State: change.AsText, Data: pgvalue.AppendTimestamp(nil, us, pgvalue.Finite, true)}
	return binary.BigEndian.AppendUint64(nil, uint64(us)^1<<63), start
}

func nextInstant(seq []byte) (e sequenced.Event) {
	e.Place.Seq, e.Start = instant(int64(binary.BigEndian.Uint64(seq)^1<<63) + 1)
	return e
}

// tableLife is a random log of one or two tables that write one target, as the log
// tells it without old rows.
type tableLife struct {
	history
	log []sim.Statement
}

func randomTableLife(r *rand.Rand) *tableLife {
	h := &tableLife{}
	h.target = &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Kind(1 + r.IntN(2)), Sequenced: true, Sequence: &stamp}
	h.target.Columns = append(h.target.Columns, scd.Column{Name: "k", Type: bigint, Key: true})
	columns := 1 + r.IntN(2)
	for i := range columns {
		h.target.Columns = append(h.target.Columns, scd.Column{Name: fmt.Sprint("v", i), Type: bigint, Nullable: true, Tracked: r.IntN(4) > 0})
	}
	h.options.Partial = r.IntN(2) == 0
	flows := 1 + r.IntN(2)
	for f := range flows {
		h.options.Follows = append(h.options.Follows, uint16(f))
	}
	keys, sequences := 1+r.IntN(3), 3+r.IntN(12)
	type row struct{ flow, key int }
	there := map[row]bool{}
	ordinal := uint64(0)
	event := func(f, key int, behind sequenced.Behind) sequenced.Event {
		e := sequenced.Event{Key: change.Row(nil).Append(integer(key)), Time: int64(ordinal), Behind: behind, Delete: behind != sequenced.BehindNothing}
		e.Place.At = sequenced.AppendLog(nil, change.LSN(7), ordinal == 0, ordinal, uint16(f))
		if !e.Delete || h.target.Kind == scd.Type2 {
			e.Place.Seq, e.Start = instant(10 * int64(r.IntN(sequences)))
		}
		return e
	}
	upsert := func(f, key int) sequenced.Event {
		e := event(f, key, sequenced.BehindNothing)
		e.Row = change.Row(nil).Append(integer(key))
		for range columns {
			switch c := r.IntN(5); {
			case c < 3:
				e.Row = e.Row.Append(integer(c))
			case c == 3 || !h.options.Partial:
				e.Row = e.Row.Append(change.Value{State: change.Null})
			default:
				e.Row = e.Row.Append(change.Value{State: change.Absent})
			}
		}
		return e
	}
	say := func(f int, e sequenced.Event) { h.log = append(h.log, sim.Statement{Event: e, Flow: f}) }
	for range 3 + r.IntN(14) {
		ordinal++
		f, key := r.IntN(flows), r.IntN(keys)
		at := row{f, key}
		switch what := r.IntN(12); {
		case what == 0 && flows == 1:
			for k := range keys {
				say(f, event(f, k, sequenced.BehindNewest))
				delete(there, row{f, k})
			}
		case what < 4 && there[at]:
			say(f, event(f, key, sequenced.BehindLast))
			delete(there, at)
		case what == 4 && there[at]: // the key changes
			to := row{f, r.IntN(keys)}
			if to == at || there[to] {
				continue
			}
			e := upsert(f, to.key)
			say(f, e)
			say(f, sequenced.Event{Key: change.Row(nil).Append(integer(key)), Place: e.Place, Start: e.Start, Time: e.Time, Delete: true})
			delete(there, at)
			there[to] = true
		case what == 5 && there[at]: // apply_as_deletes: the row stays
			e := upsert(f, key)
			e.Row, e.Delete = nil, true
			say(f, e)
		default:
			say(f, upsert(f, key))
			there[at] = true
		}
	}
	next := nextInstant
	if h.target.Kind == scd.Type1 {
		next = nil
	}
	h.events = sim.Placed(h.log, next)
	return h
}

// play brings the log in its order, cut into random batches (a TRUNCATE, as the
// pipeline brings it, begins one), with the lane made anew now and then.
func (h *tableLife) play(r *rand.Rand) (*memory, error) {
	m := newMemory(h.target)
	l := sequenced.New(h.target, h.options, sequenced.Head{})
	for i := 0; i < len(h.log); {
		var events []sequenced.Event
		for n := 1 + r.IntN(len(h.log)); n > 0 && i < len(h.log); n-- {
			e := h.log[i].Event
			if e.Behind == sequenced.BehindNewest && len(events) > 0 && events[len(events)-1].Time != e.Time {
				break
			}
			i++
			if _, known := m.records[string(e.Key)]; known || e.Behind != sequenced.BehindNewest {
				events = append(events, e)
			}
		}
		if r.IntN(4) == 0 { // by a lane that has to be asked again
			l = sequenced.New(h.target, h.options, l.Head())
		}
		if _, err := m.apply(l, events, nil); err != nil {
			return m, err
		}
	}
	return m, nil
}

// A table's target holds what follows from the whole log read at once, although each
// DELETE says only a key, whatever the batches.
func TestDeletesOfATableStandBehindItsLastEvent(t *testing.T) {
	start, n := rand.Uint64(), *histories/2
	if *seed != 0 {
		start, n = *seed, 1
	} else if testing.Short() {
		n = 5000
	}
	t.Logf("%d histories from seed %d (replay one with -seed)", n, start)
	for i := range n {
		s := start + uint64(i)
		r := rand.New(rand.NewPCG(s, 7))
		h := randomTableLife(r)
		want := h.oracle()
		m, err := h.play(r)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		if got := m.show(); got != want || len(m.problems) > 0 || m.aside > 0 {
			t.Fatalf("seed %d, type %d, partial %v, flows %v, %d statements\ngot\n%s\nwant\n%s\n%v, %d set aside", s, h.target.Kind, h.options.Partial, h.options.Follows, len(h.log), got, want, m.problems, m.aside)
		}
		// What is remembered in type 1 does not grow with what was deleted and forgotten.
		if h.target.Kind == scd.Type1 && !h.options.Partial {
			for key, records := range m.records {
				if len(records) > 1 {
					t.Fatalf("seed %d: %d records of key %x", s, len(records), key)
				}
			}
		}
	}
}

// life plays statements of one key through a lane, each in a batch of its own or all
// at once.
func lifeOf(kind scd.Kind, sequence change.Type, each bool, events ...sequenced.Event) (m *memory, aside []sequenced.Aside, counts sequenced.Counts, err error) {
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: kind, Sequenced: true, Sequence: &sequence, Columns: []scd.Column{{Name: "k", Type: bigint, Key: true}}}
	m = newMemory(target)
	l := sequenced.New(target, sequenced.Options{Follows: []uint16{0}}, sequenced.Head{})
	for i := range events {
		e := events[i]
		e.Key = change.Row(nil).Append(integer(1))
		e.Place.At = sequenced.AppendLog(nil, change.LSN(uint64(1+i)), false, 0, 0)
		if e.Row == nil && !e.Delete {
			l.Mark(e.Key, e.Place.At, 1)
		} else {
			l.Add(e)
		}
		if each || i == len(events)-1 {
			var c sequenced.Counts
			if c, err = m.apply(l, nil, nil); err != nil {
				return m, nil, counts, err
			}
			counts.Unknown += c.Unknown
		}
	}
	return m, m.asides, counts, nil
}

func TestADeleteBehindAnEventThatIsNotKnownIsSetAside(t *testing.T) {
	at := func(n int64) (e sequenced.Event) {
		e.Place.Seq, e.Start = instant(n)
		e.Row = change.Row(nil).Append(integer(1))
		return e
	}
	gone := sequenced.Event{Delete: true, Behind: sequenced.BehindLast}
	var set sequenced.Event // an event that was set aside
	for name, c := range map[string]struct {
		events []sequenced.Event
		aside  int
		rows   int
	}{
		"nothing was there":           {[]sequenced.Event{gone}, 1, 0},
		"the insert is aside":         {[]sequenced.Event{set, gone}, 1, 0},
		"the last update is aside":    {[]sequenced.Event{at(10), set, gone}, 1, 1},
		"a later update was good":     {[]sequenced.Event{at(10), set, at(20), gone}, 0, 0},
		"a later one, lower":          {[]sequenced.Event{at(10), set, at(5), gone}, 0, 1},
		"an earlier one was good":     {[]sequenced.Event{set, at(10), gone, at(10), set, gone}, 1, 1},
		"several were aside":          {[]sequenced.Event{set, set, gone}, 1, 0},
		"deleted, and came by aside":  {[]sequenced.Event{at(10), gone, set, gone}, 1, 0},
		"the last is not the highest": {[]sequenced.Event{at(10), at(5), gone}, 0, 1},
	} {
		for _, each := range []bool{true, false} {
			m, aside, _, err := lifeOf(scd.Type1, stamp, each, c.events...)
			if err != nil || len(aside) != c.aside || len(m.rows) != c.rows || len(m.problems) > 0 {
				t.Errorf("%s, each batch alone: %v: %d set aside, want %d; %d rows, want %d; %v, %v", name, each, len(aside), c.aside, len(m.rows), c.rows, err, m.problems)
			}
			for _, a := range aside {
				if !a.Bad || a.Reason == "" {
					t.Errorf("%s: %+v", name, a)
				}
			}
		}
	}
}

// What was forgotten shows no row: its DELETE has nothing to do, and is counted.
func TestADeleteOfAForgottenKeyIsCounted(t *testing.T) {
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1, Sequenced: true, Columns: []scd.Column{{Name: "k", Type: bigint, Key: true}}}
	horizon, _ := instant(5)
	for _, head := range []sequenced.Head{{Horizon: horizon}, {Truncated: sequenced.Place{Seq: horizon}}} {
		l := sequenced.New(target, sequenced.Options{Follows: []uint16{0}}, head)
		l.Add(sequenced.Event{Key: change.Row(nil).Append(integer(1)), Delete: true, Behind: sequenced.BehindLast, Place: sequenced.Place{At: sequenced.AppendLog(nil, change.LSN(1), false, 0, 0)}})
		w, r, aside, counts, err := l.Take()
		if err != nil || counts.Unknown != 1 || len(aside) != 0 || !r.Empty() || len(w.Put) != 0 {
			t.Errorf("%+v: %+v, %+v, %+v, %v", head, counts, aside, w, err)
		}
	}
}

// A history's delete stands above the row that went: by the next microsecond, or, where
// the type has no next, not at all: then the target is parked.
func TestADeleteOfAHistoryStandsAboveTheRow(t *testing.T) {
	up := func(us int64) (e sequenced.Event) {
		e.Place.Seq, e.Start = instant(us)
		e.Row = change.Row(nil).Append(integer(1))
		return e
	}
	gone := func(us int64) (e sequenced.Event) {
		e.Place.Seq, e.Start = instant(us)
		e.Delete, e.Behind = true, sequenced.BehindLast
		return e
	}
	for _, each := range []bool{true, false} {
		m, _, _, err := lifeOf(scd.Type2, stamp, each, up(100), gone(50), up(200), gone(300), up(300), gone(300))
		_, first := instant(100)
		_, end := instant(101)
		if v := m.versions[string(change.Row(nil).Append(integer(1)))]; err != nil || len(v) != 2 || v[string(first.Data)].end != string(end.Data) {
			t.Errorf("%v, %v", v, err)
		}
	}
	var park *sequenced.Park
	_, _, _, err := lifeOf(scd.Type2, bigint, true, up(100), gone(100))
	if !errorsAs(err, &park) || park.Remedy == "" {
		t.Errorf("%v", err)
	}
	if _, _, _, err := lifeOf(scd.Type2, bigint, true, up(100), gone(101)); err != nil {
		t.Error(err)
	}
	// Above infinity is nothing.
	forever := up(0)
	forever.Place.Seq = bytes.Repeat([]byte{0xFF}, 8)
	if _, aside, _, err := lifeOf(scd.Type2, stamp, true, forever, gone(1)); err != nil || len(aside) != 1 {
		t.Errorf("%+v, %v", aside, err)
	}
}

func errorsAs(err error, to **sequenced.Park) bool {
	p, ok := err.(*sequenced.Park)
	*to = p
	return ok
}
