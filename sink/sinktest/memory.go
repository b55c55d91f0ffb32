package sinktest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var bigints = []change.Type{typeInt8}

// diary is the usual sequenced type 1 target, for hand-made work.
func diary(h Harness) target {
	return sequencedTarget(h, "diary", scd.Type1, bigints, "id int4 key", "who text key", "n int8")
}

// ages is the usual sequenced type 2 target, for hand-made work.
func ages(h Harness, sequence ...change.Type) target {
	return sequencedTarget(h, "ages", scd.Type2, sequence, "id int4 key", "who text key", "n int8")
}

// awkward are values that a careless writer would break.
var awkward = []string{"", " ", "a,b", `"`, `\`, `\x00`, "{}", "NULL", "O'Brien", "ä表\n\t"}

var memoryTests = []test{
	{"records are put, replaced, removed and looked up", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		one, two, three := cells{1, "a"}, cells{2, `b"\`}, cells{3, ""}
		odd := tt.record(one, "\x01\x00", "f\x00\xff", "body\x00\xfe")
		odd.Time = -5
		far := tt.record(two, "\x02", "p", "x")
		far.Time = 1<<62 + 1
		dead := tt.tombstone(three, "\x7f\x80", "p", 7)
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{odd, far, dead}}))
		r.expectRecords(tt, tt.lookups(one, two, three, cells{1, "b"}, cells{4, "a"}), odd, far, dead)
		r.expectRecords(tt, tt.lookups(three), dead)
		r.expectRecords(tt, nil)
		r.expect(tt)

		again := odd
		again.Body, again.Tombstone, again.Time = []byte("other"), true, 9
		alive := dead
		alive.Tombstone, alive.Body = false, []byte("row")
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{again, alive}, Remove: []sequenced.RecordID{far.ID(), {Key: tt.key(text, cells{4, "a"}), Seq: []byte("1"), At: []byte("1")}}}))
		r.expectRecords(tt, tt.lookups(one, two, three), again, alive)
		r.reopen()
		r.expectRecords(tt, tt.lookups(one, two, three), again, alive)
		r.write(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{again.ID(), alive.ID()}}))
		r.expectRecords(tt, tt.lookups(one, two, three))
	}},

	{"a record written by the batch before is replaced, looked up or not", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, tt := range []target{r.create(diary(h)), r.create(ages(h, typeInt8))} {
			var first, second, third []sequenced.Record
			for i := range 1000 {
				rec := tt.record(cells{i, "a"}, "1", "p", "first")
				first = append(first, rec)
				rec.Body = []byte("second")
				second = append(second, rec)
				rec.Body, rec.Tombstone = []byte("third"), true
				third = append(third, rec)
			}
			var at []sequenced.Lookup
			for _, rec := range first {
				at = append(at, sequenced.Lookup{Key: rec.Key})
			}
			slices.SortFunc(at, func(a, b sequenced.Lookup) int { return slices.Compare(a.Key, b.Key) })
			r.expectRecords(tt, at)
			r.write(tt.hidden(sequenced.Work{Put: first}))
			r.write(tt.hidden(sequenced.Work{Put: second}))
			r.expectRecords(tt, at, second...)
			r.write(tt.hidden(sequenced.Work{Put: third}))
			r.expectRecords(tt, at, third...)
			// All of them go or move, and a new one comes for each.
			var w sequenced.Work
			var want []sequenced.Record
			for i, rec := range third {
				w.Remove = append(w.Remove, rec.ID())
				fresh := tt.tombstone(cells{i, "b"}, "\x00\xff", "p", int64(i-500))
				w.Put, want = append(w.Put, fresh), append(want, fresh)
				at = append(at, sequenced.Lookup{Key: fresh.Key})
				if i%2 == 0 {
					rec.At, rec.Tombstone, rec.Time = []byte("q\x00"), i%4 == 0, int64(-i)
					w.Put, want = append(w.Put, rec), append(want, rec)
				}
			}
			slices.SortFunc(at, func(a, b sequenced.Lookup) int { return slices.Compare(a.Key, b.Key) })
			r.expectRecords(tt, at, third...)
			r.write(tt.hidden(w))
			r.expectRecords(tt, at, want...)
		}
	}},

	{"a record takes the place of another of its key", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		key := func(i int) cells { return cells{i, "k"} }
		var put []sequenced.Record
		for i := range 8 {
			put = append(put, tt.record(key(i), "1", "a", "old"), tt.record(key(i), "2", "b", "old"))
		}
		r.write(tt.hidden(sequenced.Work{Put: put}))
		var w sequenced.Work
		var want []sequenced.Record
		remove := func(i int, seq, at string) {
			gone := tt.record(key(i), seq, at, "")
			w.Remove = append(w.Remove, gone.ID())
		}
		for i := range 8 {
			first, second, third := tt.record(key(i), "1", "a", "old"), tt.record(key(i), "2", "b", "old"), tt.record(key(i), "3", "c", "new")
			switch i {
			case 0: // one goes, a new one comes
				remove(i, "1", "a")
				w.Put, want = append(w.Put, third), append(want, second, third)
			case 1: // both go, a new one comes
				remove(i, "1", "a")
				remove(i, "2", "b")
				w.Put, want = append(w.Put, third), append(want, third)
			case 2: // one goes, the other is written again
				second.Body = []byte("rewritten")
				remove(i, "1", "a")
				w.Put, want = append(w.Put, second), append(want, second)
			case 3: // what goes is not there
				remove(i, "0", "z")
				w.Put, want = append(w.Put, third), append(want, first, second, third)
			case 4: // one goes, the other is written again, a new one comes
				second.Body = []byte("rewritten")
				remove(i, "1", "a")
				w.Put, want = append(w.Put, second, third), append(want, second, third)
			case 5: // the same one goes and comes
				first.Body = []byte("back")
				remove(i, "1", "a")
				w.Put, want = append(w.Put, first), append(want, first, second)
			case 6: // nothing goes
				w.Put, want = append(w.Put, third), append(want, first, second, third)
			case 7: // nothing comes
				remove(i, "2", "b")
				want = append(want, first)
			}
		}
		r.write(tt.hidden(w))
		r.expectRecords(tt, tt.lookups(key(0), key(1), key(2), key(3), key(4), key(5), key(6), key(7)), want...)
	}},

	{"a lookup with a sequence gives the suffix and the newest record below", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(ages(h, typeInt8))
		key, other, late := cells{1, "x"}, cells{2, "x"}, cells{3, "x"}
		var all []sequenced.Record
		// As bytes: a prefix first, 0x7f below 0x80, 0xff last.
		for i, seq := range []string{"\x10", "\x20", "\x20\x00", "\x7f", "\x80", "\xff"} {
			all = append(all, tt.record(key, seq, "a", fmt.Sprint(i)))
		}
		twin := tt.record(key, "\x20", "b", "twin")
		noise := []sequenced.Record{tt.record(other, "\x20", "a", "x"), tt.record(late, "\xf0", "a", "y")}
		r.write(tt.hidden(sequenced.Work{Put: slices.Concat(all, noise, []sequenced.Record{twin})}))
		for _, c := range []struct {
			from string
			want []sequenced.Record
		}{
			{"\x05", slices.Concat(all, []sequenced.Record{twin})},
			{"\x10", slices.Concat(all, []sequenced.Record{twin})},
			{"\x11", slices.Concat(all, []sequenced.Record{twin})},
			{"\x20", slices.Concat(all, []sequenced.Record{twin})},
			{"\x20\x00", append([]sequenced.Record{twin}, all[2:]...)},
			{"\x20\x01", all[2:]},
			{"\x80", all[3:]},
			{"\x80\x00", all[4:]},
			{"\xff\xff", all[5:]},
		} {
			r.expectRecords(tt, []sequenced.Lookup{{Key: all[0].Key, Seq: []byte(c.from)}}, c.want...)
		}
		r.expectRecords(tt, []sequenced.Lookup{
			{Key: all[0].Key, Seq: []byte("\x80\x00")}, {Key: noise[0].Key, Seq: []byte("\xff")}, {Key: noise[1].Key, Seq: []byte("\x01")}, {Key: tt.key(text, cells{9, "x"}), Seq: []byte("\x01")},
		}, slices.Concat(all[4:], noise)...)
	}},

	{"many records at once, and they may be kept", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, tt := range []target{r.create(diary(h)), r.create(ages(h, typeInt8))} {
			const n = 12_000
			w := sequenced.Work{}
			var at []sequenced.Lookup
			for i := range n {
				w.Put = append(w.Put, tt.record(cells{i, "who"}, fmt.Sprintf("%08d", i), "p", strings.Repeat("x", i%300)+fmt.Sprint(i)))
				l := sequenced.Lookup{Key: w.Put[i].Key}
				if tt.Kind == scd.Type2 {
					l.Seq = []byte("1")
				}
				at = append(at, l, sequenced.Lookup{Key: tt.key(text, cells{i, "nobody"}), Seq: l.Seq})
			}
			r.write(tt.hidden(w))
			r.expectRecords(tt, at, w.Put...)
			next := sequenced.Work{}
			var want []sequenced.Record
			for i := range n {
				rec := w.Put[i]
				switch i % 3 {
				case 0:
					next.Remove = append(next.Remove, rec.ID())
				case 1:
					next.Remove = append(next.Remove, rec.ID())
					rec.Seq, rec.Body = []byte(fmt.Sprintf("%08d", i+n)), []byte("moved")
					next.Put, want = append(next.Put, rec), append(want, rec)
				default:
					want = append(want, rec)
				}
			}
			r.write(tt.hidden(next))
			r.expectRecords(tt, at, want...)
		}
	}},

	{"long keys, sequences, places and bodies", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, tt := range []target{r.create(diary(h)), r.create(ages(h, typeInt8))} {
			rec := tt.record(cells{1, strings.Repeat("k", 300)}, strings.Repeat("s", 700), strings.Repeat("path/", 800), strings.Repeat("b\x00", 1<<20))
			r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{rec}}))
			r.expectRecords(tt, []sequenced.Lookup{{Key: rec.Key}}, rec)
			moved := rec
			moved.At = []byte(strings.Repeat("PATH/", 800))
			r.write(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{rec.ID()}, Put: []sequenced.Record{moved}}))
			r.expectRecords(tt, []sequenced.Lookup{{Key: rec.Key}}, moved)
			if tt.Kind == scd.Type1 {
				continue
			}
			// Places that differ at their end alone: the newest below is still one.
			later := moved
			later.At = []byte(strings.Repeat("PATH/", 800) + "a")
			r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{later}}))
			above := []byte(strings.Repeat("s", 701))
			r.expectRecords(tt, []sequenced.Lookup{{Key: rec.Key, Seq: above}}, later)
			newest := tt.record(cells{1, strings.Repeat("k", 300)}, strings.Repeat("t", 10), "p", "b")
			r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{newest}}))
			r.expectRecords(tt, []sequenced.Lookup{{Key: rec.Key, Seq: above}}, later, newest)
		}
	}},

	{"the callback's error ends the reading", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		b := r.batch(tt.hidden(sequenced.Work{Put: []sequenced.Record{tt.record(cells{1, "a"}, "1", "p", "x"), tt.record(cells{2, "a"}, "1", "p", "x")}}))
		b.Aside = []sink.Aside{{Flow: "f", Target: tt.Name, Event: []byte("{}")}, {Flow: "f", Target: tt.Name, Event: []byte("{}")}}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		stop := errors.New("stop")
		calls := 0
		m := r.memory()
		for what, err := range map[string]error{
			"Remembered":      m.Remembered(r.ctx, tt.Target, tt.lookups(cells{1, "a"}, cells{2, "a"}), func(sequenced.Record) error { calls++; return stop }),
			"RememberedBelow": m.RememberedBelow(r.ctx, tt.Target, sequenced.Place{Seq: []byte("9")}, func([]byte) error { calls++; return stop }),
			"Quarantine":      m.Quarantine(r.ctx, "", func(sink.Aside) error { calls++; return stop }),
		} {
			if !errors.Is(err, stop) {
				t.Errorf("%s: %v, want the callback's error", what, err)
			}
		}
		if calls != 3 {
			t.Errorf("%d calls, want 3", calls)
		}
		r.expectRecords(tt, tt.lookups(cells{3, "a"}))
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{tt.record(cells{3, "a"}, "1", "p", "x")}}))
	}},

	{"keys below a place", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		var w sequenced.Work
		for i, id := range []struct{ seq, at string }{{"1", "z"}, {"5", "a"}, {"5", "m"}, {"5", "n"}, {"6", "a"}, {"\xff", "a"}} {
			w.Put = append(w.Put, tt.record(cells{i, "x"}, id.seq, id.at, "b"))
		}
		w.Put = append(w.Put, tt.record(cells{5, "x"}, "1", "a", "early"))
		r.write(tt.hidden(w))
		var got []string
		err := r.memory().RememberedBelow(r.ctx, tt.Target, sequenced.Place{Seq: []byte("5"), At: []byte("m")}, func(key []byte) error {
			got = append(got, string(key))
			return nil
		})
		if err != nil {
			t.Fatalf("RememberedBelow: %v", err)
		}
		slices.Sort(got)
		got = slices.Compact(got)
		var want []string
		for _, i := range []int{0, 1, 2, 5} {
			want = append(want, string(tt.key(text, cells{i, "x"})))
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("keys %q, want %q", got, want)
		}
	}},

	{"all keys are gone through, each once, also while they change", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, tt := range []target{r.create(diary(h)), r.create(ages(h, typeInt8))} {
			want := map[string]bool{}
			w := sequenced.Work{Put: []sequenced.Record{{Key: []byte{}, Seq: []byte("d"), At: []byte{}, Body: []byte("definition")}}}
			for i := range 500 {
				key := cells{i, awkward[i%len(awkward)]}
				w.Put = append(w.Put, tt.record(key, "1", "p", "b"))
				if i%3 == 0 {
					w.Put = append(w.Put, tt.tombstone(key, "2", "p", 7))
				}
				want[string(tt.key(text, key))] = true
			}
			r.write(tt.hidden(w))
			for _, limit := range []int{1000, 500, 99} {
				got := map[string]bool{}
				b := r.batch()
				b.More = true
				var from []byte
				for first := true; first || from != nil; first = false {
					var next sequenced.Work
					var err error
					from, err = r.memory().Keys(r.ctx, tt.Target, from, limit, func(key []byte) error {
						if got[string(key)] {
							t.Errorf("key %q comes twice", key)
						}
						got[string(key)] = true
						next.Put = append(next.Put, sequenced.Record{Key: key, Seq: fmt.Appendf(nil, "3 %d", limit), At: []byte("p"), Body: []byte("new")})
						return nil
					})
					if err != nil {
						t.Fatalf("Keys: %v", err)
					}
					if len(next.Put) > 2*limit {
						t.Errorf("%d keys at once, the limit is %d", len(next.Put), limit)
					}
					b.Targets = []sink.TargetRounds{{Target: tt.Target, Hidden: &next}}
					b.More = from != nil
					if err := r.w.Apply(r.ctx, b); err != nil {
						t.Fatalf("Apply: %v", err)
					}
					b.First = false
				}
				if !maps.Equal(got, want) {
					t.Errorf("limit %d: %d keys, want %d", limit, len(got), len(want))
				}
			}
		}
	}},

	{"a truncate forgets what lies below and removes rows of which nothing is left", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		var w sequenced.Work
		var rd scd.Round
		var at []sequenced.Lookup
		put := func(i int, who string, recs ...sequenced.Record) {
			w.Put = append(w.Put, recs...)
			rd.Upserts = append(rd.Upserts, tt.row(text, cells{i, who, i}))
			at = append(at, tt.lookups(cells{i, who})...)
		}
		rec := func(i int, who, seq, place string) sequenced.Record { return tt.record(cells{i, who}, seq, place, "b") }
		stay, both, edge := rec(3, "above", "6", "a"), rec(2, "both", "5", "n"), rec(5, "edge", "5", "n")
		put(1, "below", rec(1, "below", "4", "z"))
		put(2, "both", rec(2, "both", "1", "a"), both)
		put(3, "above", stay)
		put(4, "at", rec(4, "at", "5", "m"))
		put(5, "edge", edge)
		put(6, "two below", rec(6, "two below", "1", "a"), rec(6, "two below", "5", "a"))
		for _, s := range awkward {
			put(7, s, rec(7, s, "1", "a"))
		}
		w.Put = append(w.Put, tt.tombstone(cells{8, "dead"}, "2", "a", 1))
		at = append(at, tt.lookups(cells{8, "dead"})...)
		r.write(tt.hidden(w, rd))

		place := sequenced.Place{Seq: []byte("5"), At: []byte("m")}
		fresh, taken := tt.record(cells{1, "below"}, "7", "a", "new"), rec(1, "below", "4", "z")
		r.write(tt.hidden(sequenced.Work{
			TruncateBelow: place, HeadChanged: true, Head: sequenced.Head{Truncated: place},
			Remove: []sequenced.RecordID{taken.ID()}, // taken by the truncate already
			Put:    []sequenced.Record{fresh},
		}, scd.Round{Upserts: []change.Row{tt.row(text, cells{1, "below", 100})}}))
		r.expectRecords(tt, at, stay, both, edge, fresh)
		r.expect(tt, "1|below|100", "2|both|2", "3|above|3", "5|edge|5")
		if head := r.head(tt); string(head.Truncated.Seq) != "5" || string(head.Truncated.At) != "m" || head.Horizon != nil {
			t.Fatalf("head %+v", head)
		}
	}},

	{"a truncate of very many keys", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		const n = 25_000
		var w sequenced.Work
		var rd scd.Round
		for i := range n {
			w.Put = append(w.Put, tt.record(cells{i, "w"}, fmt.Sprintf("%08d", i), "p", "b"))
			rd.Inserts = append(rd.Inserts, tt.row(text, cells{i, "w", i}))
		}
		slices.SortFunc(rd.Inserts, func(a, b change.Row) int { return slices.Compare(a, b) })
		r.write(tt.hidden(w, rd))
		r.write(tt.hidden(sequenced.Work{TruncateBelow: sequenced.Place{Seq: []byte(fmt.Sprintf("%08d", n-2)), At: []byte("p")}}))
		r.expect(tt, fmt.Sprintf("%d|w|%d", n-1, n-1))
		if got := r.remembered(tt, tt.lookups(cells{0, "w"}, cells{n - 2, "w"}, cells{n - 1, "w"})); len(got) != 1 {
			t.Fatalf("%d records, want 1", len(got))
		}
	}},

	{"the head is kept", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := r.create(diary(h)), r.create(ages(h, typeInt8))
		if head := r.head(one); !head.Truncated.IsZero() || head.Truncated.Seq != nil || head.Horizon != nil {
			t.Fatalf("the head of a new target is %+v", head)
		}
		want := sequenced.Head{Truncated: sequenced.Place{Seq: []byte("s\x00"), At: []byte("\xfft")}, Horizon: []byte("\x00h")}
		r.write(one.hidden(sequenced.Work{Head: want, HeadChanged: true}))
		r.write(one.hidden(sequenced.Work{Put: []sequenced.Record{one.record(cells{1, "a"}, "1", "a", "x")}})) // no change of the head
		for range 2 {
			got := r.head(one)
			if got.Truncated.Compare(want.Truncated) != 0 || string(got.Horizon) != string(want.Horizon) {
				t.Fatalf("head %+v, want %+v", got, want)
			}
			if head := r.head(two); !head.Truncated.IsZero() || head.Horizon != nil {
				t.Fatalf("another target's head is %+v", head)
			}
			r.reopen()
		}
	}},

	{"old tombstones are forgotten and leave a horizon", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		row := tt.record(cells{1, "row"}, "\x90", "a", "x") // old, but no tombstone
		old, older, young := tt.tombstone(cells{2, "old"}, "\x80", "a", 99), tt.tombstone(cells{3, "older"}, "\x7f", "a", 5), tt.tombstone(cells{4, "young"}, "\xff", "a", 100)
		at := tt.lookups(cells{1, "row"}, cells{2, "old"}, cells{3, "older"}, cells{4, "young"}, cells{5, "same"})
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{row, old, older, young}}))
		r.write(tt.hidden(sequenced.Work{ForgetBefore: 5}))
		r.expectRecords(tt, at, row, old, older, young)
		if head := r.head(tt); head.Horizon != nil {
			t.Fatalf("the horizon is %q though nothing was forgotten", head.Horizon)
		}
		// A tombstone of the same batch is put first and forgotten at the end.
		r.write(tt.hidden(sequenced.Work{ForgetBefore: 100, Put: []sequenced.Record{tt.tombstone(cells{5, "same"}, "\x20", "a", 1)}}))
		r.expectRecords(tt, at, row, young)
		if head := r.head(tt); string(head.Horizon) != "\x80" {
			t.Fatalf("the horizon is %q", head.Horizon)
		}
		r.write(tt.hidden(sequenced.Work{ForgetBefore: 101, HeadChanged: true, Head: sequenced.Head{Truncated: sequenced.Place{Seq: []byte("1"), At: []byte("1")}, Horizon: []byte("\xff\xff")}}))
		r.expectRecords(tt, at, row)
		if head := r.head(tt); string(head.Horizon) != "\xff\xff" || string(head.Truncated.Seq) != "1" {
			t.Fatalf("the head is %+v: a horizon never goes back", head)
		}
	}},

	{"what is read before anything is made", nil, func(t *testing.T, h Harness) {
		w := h.Open(t)
		defer w.Close(t.Context())
		m, ok := w.(sink.Memory)
		if !ok {
			t.Fatalf("%T is no sink.Memory", w)
		}
		head, err := m.Head(t.Context(), diary(h).Target)
		if err != nil || !head.Truncated.IsZero() || head.Horizon != nil {
			t.Errorf("Head: %+v, %v", head, err)
		}
		if files, err := m.Files(t.Context()); err != nil || len(files) != 0 {
			t.Errorf("Files: %v, %v", files, err)
		}
		if err := m.Quarantine(t.Context(), "", func(sink.Aside) error { return errors.New("there is one") }); err != nil {
			t.Errorf("Quarantine: %v", err)
		}
		if counts, err := m.Unresolved(t.Context()); err != nil || len(counts) != 0 {
			t.Errorf("Unresolved: %v, %v", counts, err)
		}
		if n, err := m.Remembers(t.Context(), diary(h).Target); err != nil || n != (sink.MemorySize{}) {
			t.Errorf("Remembers: %+v, %v", n, err)
		}
	}},

	{"what is remembered takes part in the batch's transaction", nil, func(t *testing.T, h Harness) {
		for _, pieces := range []bool{false, true} {
			t.Run(fmt.Sprintf("in pieces %v", pieces), func(t *testing.T) {
				r := begin(t, h)
				tt := r.create(sequencedTarget(h, fmt.Sprintf("t_%v", pieces), scd.Type1, bigints, "id int4 key", "who text key", "n int8"))
				history := r.create(sequencedTarget(h, fmt.Sprintf("h_%v", pieces), scd.Type2, bigints, "id int4 key"))
				kept := tt.record(cells{1, "a"}, "1", "p", "x")
				r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{kept}}, scd.Round{Inserts: []change.Row{tt.row(text, cells{1, "a", 1})}}))
				before := r.mark()
				place := sequenced.Place{Seq: []byte("2"), At: []byte("p")}
				b := r.batch(
					tt.hidden(sequenced.Work{TruncateBelow: place, Head: sequenced.Head{Truncated: place}, HeadChanged: true,
						Put: []sequenced.Record{tt.record(cells{2, "b"}, "3", "p", "x")}}, scd.Round{Upserts: []change.Row{tt.row(text, cells{2, "b", 2})}}),
				)
				b.Files = []change.File{{Path: "f", Modified: time.Unix(1, 0)}}
				b.Aside = []sink.Aside{{Flow: "f", Target: tt.Name, Time: time.Unix(1, 0), Event: []byte("{}")}}
				broken := history.hidden(sequenced.Work{}, scd.Round{Ends: []scd.VersionEnd{{VersionID: scd.VersionID{Key: history.key(text, cells{1}), Start: value(1, typeInt8, text)}, End: value(2, typeInt8, text)}}})
				if pieces {
					b.More = true
					if err := r.w.Apply(r.ctx, b); err != nil {
						t.Fatalf("Apply: %v", err)
					}
					b = r.batch(broken)
					b.First = false
				} else {
					b.Targets = append(b.Targets, broken)
				}
				if err := r.w.Apply(r.ctx, b); fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), history.Name.Table) {
					t.Fatalf("Apply: %v, want corrupt and the table's name", err)
				}
				if m := r.reopen(); m.Position != before.Position {
					t.Fatalf("the mark moved from %v to %v", before.Position, m.Position)
				}
				r.expect(tt, "1|a|1")
				r.expectRecords(tt, tt.lookups(cells{1, "a"}, cells{2, "b"}), kept)
				if head := r.head(tt); !head.Truncated.IsZero() {
					t.Fatalf("head %+v", head)
				}
				if files, err := r.memory().Files(r.ctx); err != nil || len(files) != 0 {
					t.Fatalf("Files: %v, %v", files, err)
				}
				if err := r.memory().Quarantine(r.ctx, "", func(sink.Aside) error { return errors.New("there is one") }); err != nil {
					t.Fatalf("Quarantine: %v", err)
				}
				r.w.Close(r.ctx)
			})
		}
	}},

	{"reading sees the pieces of the open transaction", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		old, kept := tt.record(cells{1, "a"}, "1", "p", "x"), tt.record(cells{3, "c"}, "1", "p", "x")
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{old, kept}}))
		fresh := tt.record(cells{2, "b"}, "2", "p", "y")
		b := r.batch(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{old.ID()}, Put: []sequenced.Record{fresh}}))
		b.More = true
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		all := tt.lookups(cells{1, "a"}, cells{2, "b"}, cells{3, "c"})
		r.expectRecords(tt, all, fresh, kept)
		var below []string
		if err := r.memory().RememberedBelow(r.ctx, tt.Target, sequenced.Place{Seq: []byte("9")}, func(key []byte) error { below = append(below, string(key)); return nil }); err != nil {
			t.Fatalf("RememberedBelow: %v", err)
		}
		slices.Sort(below)
		if below = slices.Compact(below); len(below) != 2 || below[0] != string(fresh.Key) {
			t.Fatalf("keys below %q", below)
		}
		b = r.batch(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{kept.ID()}}))
		b.First = false
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.expectRecords(tt, all, fresh)

		b = r.batch(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{fresh.ID()}}))
		b.More = true
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.reopen() // a crash between pieces
		r.expectRecords(tt, all, fresh)
	}},

	{"a deposed owner changes nothing that is remembered", deposes, func(t *testing.T, h Harness) {
		old := begin(t, h)
		tt := old.create(diary(h))
		rec := tt.record(cells{1, "a"}, "1", "p", "x")
		b := old.batch(tt.hidden(sequenced.Work{Put: []sequenced.Record{rec}}, scd.Round{Inserts: []change.Row{tt.row(text, cells{1, "a", 1})}}))
		b.Aside = []sink.Aside{{Flow: "f", Target: tt.Name, Time: time.Unix(1, 0), Event: []byte("{}")}}
		if err := old.w.Apply(old.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		var id int64
		old.memory().Quarantine(old.ctx, "", func(a sink.Aside) error { id = a.ID; return nil })
		h.Expire(t)
		next := begin(t, h)
		late := old.batch(tt.hidden(sequenced.Work{Remove: []sequenced.RecordID{rec.ID()}}))
		late.Files = []change.File{{Path: "f", Modified: time.Unix(1, 0)}}
		for _, act := range []struct {
			name string
			err  error
		}{
			{"Reset", old.memory().Reset(old.ctx, tt.Target)},
			{"Seed", old.memory().Seed(old.ctx, ages(h, typeInt8).Target, sequenced.Head{}, func(func(sequenced.Record, error) bool) {})},
			{"StartOver", old.memory().StartOver(old.ctx)},
			{"Forget", old.memory().Forget(old.ctx, []change.Name{{Table: "r"}})},
			{"Resolve", old.memory().Resolve(old.ctx, []int64{id})},
			{"TrimFeed", trimmed(old, tt)},
			{"Apply", old.w.Apply(old.ctx, late)},
		} {
			if !errors.Is(act.err, fault.ErrFenced) {
				t.Errorf("%s of the deposed owner: %v, want ErrFenced", act.name, act.err)
			}
		}
		next.expect(tt, "1|a|1")
		next.expectRecords(tt, tt.lookups(cells{1, "a"}), rec)
		n := 0
		next.memory().Quarantine(next.ctx, "", func(sink.Aside) error { n++; return nil })
		if files, err := next.memory().Files(next.ctx); n != 1 || err != nil || len(files) != 0 {
			t.Fatalf("%d events in quarantine, files %v, %v", n, files, err)
		}
	}},
}
