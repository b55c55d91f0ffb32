package sinktest

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// ladder is a type of sequence with five rising values, how an event may spell the
// third of them otherwise, and what a target shows.
type ladder struct {
	name   string
	types  []change.Type
	values [5]any
	shown  [5]string
	third  any // equal to values[2] where the type has several spellings
}

var ladders = []ladder{
	{"integer", bigints, [5]any{2, 9, 10, 100, 1 << 40}, [5]string{"2", "9", "10", "100", "1099511627776"}, 10},
	{"text", []change.Type{typeText}, [5]any{"", "B", "a", "a ", "ä'\"\\"}, [5]string{"", "B", "a", "a ", "ä'\"\\"}, "a"},
	{"timestamptz", []change.Type{typeTimestampTZ},
		[5]any{"1969-12-31 23:59:59.999999+00", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00.000001+00", "2024-01-01 01:00:00+00", "2025-06-01 00:00:00+00"},
		[5]string{"-1", "1704067200000000", "1704067200000001", "1704070800000000", "1748736000000000"},
		"2024-01-01 05:30:00.000001+05:30"},
	{"numeric", []change.Type{typeNumeric}, [5]any{"-3.50", "2.00", "9.90", "10.00", "99999.01"}, [5]string{"-3.50", "2.00", "9.90", "10.00", "99999.01"}, "9.9"},
	{"two columns", []change.Type{typeInt8, typeText},
		[5]any{[]any{1, "z"}, []any{2, "a"}, []any{2, "b"}, []any{10, "a"}, []any{11, ""}},
		[5]string{"1/z", "2/a", "2/b", "10/a", "11/"}, []any{2, "b"}},
	{"three columns", []change.Type{typeText, typeNumeric, typeText},
		[5]any{[]any{"", "-3.25", "z"}, []any{"B, \"\\\t", "9.95", "b"}, []any{"B, \"\\\t", "10.15", "a"}, []any{"a text that is longer than twelve", "-1.25", ""}, []any{"ä", "-9.75", ""}},
		[5]string{"/-3.25/z", "B, \"\\\t/9.95/b", "B, \"\\\t/10.15/a", "a text that is longer than twelve/-1.25/", "ä/-9.75/"}, []any{"B, \"\\\t", "10.15", "a"}},
}

var sequencedTests = []test{
	{"versions begin, end, reopen, move and go, by every type of sequence", nil, func(t *testing.T, h Harness) {
		for _, ld := range ladders {
			t.Run(ld.name, func(t *testing.T) {
				r := begin(t, h)
				defer r.w.Close(r.ctx)
				tt := r.create(sequencedTarget(h, "ages_"+ld.name, scd.Type2, ld.types, "id int4 key", "who text key", "n int8"))
				f := &flow{rig: r, target: tt, sequence: ld.types}
				id := func(key cells, start any) scd.VersionID {
					return scd.VersionID{Key: tt.key(text, key), Start: f.start(start)}
				}
				end := func(key cells, start, until any) scd.VersionEnd {
					e := scd.VersionEnd{VersionID: id(key, start), End: change.Value{State: change.Null}}
					if until != nil {
						e.End = f.start(until)
					}
					return e
				}
				version := func(key cells, start, until any, n any) scd.Version {
					return scd.Version{VersionEnd: end(key, start, until), Row: tt.row(text, cells{key[0], key[1], n})}
				}
				v, s := ld.values, ld.shown
				a, b, c := cells{1, "a"}, cells{1, "b"}, cells{2, "a"}
				r.write(tt.hidden(sequenced.Work{}, scd.Round{Begins: []scd.Version{
					version(a, v[0], v[1], 1), version(a, v[1], v[2], nil), version(a, v[2], nil, 3), version(b, v[0], nil, 4), version(c, v[2], v[3], 5),
				}}))
				r.expect(tt, "1|a|1|"+s[0]+"|"+s[1], "1|a|NULL|"+s[1]+"|"+s[2], "1|a|3|"+s[2]+"|NULL", "1|b|4|"+s[0]+"|NULL", "2|a|5|"+s[2]+"|"+s[3])
				r.write(tt.hidden(sequenced.Work{}, scd.Round{
					Ends:   []scd.VersionEnd{end(a, ld.third, v[4]), end(b, v[0], v[3]), end(c, v[2], nil)},
					Drops:  []scd.VersionID{id(a, v[1])},
					Begins: []scd.Version{version(a, v[4], nil, 6), version(b, v[4], nil, 7)},
				}))
				r.expect(tt, "1|a|1|"+s[0]+"|"+s[1], "1|a|3|"+s[2]+"|"+s[4], "1|a|6|"+s[4]+"|NULL", "1|b|4|"+s[0]+"|"+s[3], "1|b|7|"+s[4]+"|NULL", "2|a|5|"+s[2]+"|NULL")
				// A version moves to an earlier start, another is written again where it stands.
				r.write(tt.hidden(sequenced.Work{}, scd.Round{
					Drops:  []scd.VersionID{id(a, v[2]), id(b, v[0])},
					Begins: []scd.Version{version(a, v[1], v[4], 3), version(b, v[0], v[3], nil)},
				}))
				r.expect(tt, "1|a|1|"+s[0]+"|"+s[1], "1|a|3|"+s[1]+"|"+s[4], "1|a|6|"+s[4]+"|NULL", "1|b|NULL|"+s[0]+"|"+s[3], "1|b|7|"+s[4]+"|NULL", "2|a|5|"+s[2]+"|NULL")
				for what, bad := range map[string]scd.Round{
					"an end":  {Ends: []scd.VersionEnd{end(a, v[0], v[2]), end(a, v[3], v[4])}},
					"a drop":  {Drops: []scd.VersionID{id(a, v[0]), id(b, v[1])}},
					"a drop ": {Drops: []scd.VersionID{id(cells{1, "nobody"}, v[0])}},
				} {
					before := r.contents(tt)
					if err := r.w.Apply(r.ctx, r.batch(tt.hidden(sequenced.Work{}, bad))); fault.KindOf(err) != fault.Corrupt || !strings.Contains(err.Error(), tt.Name.Table) {
						t.Fatalf("%s of a version that is not there: %v, want corrupt and the table's name", what, err)
					}
					r.reopen()
					r.expect(tt, before...)
				}
			})
		}
	}},

	{"versions in binary form", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(ages(h, typeInt8))
		version := func(id, start int, until any) scd.Version {
			v := scd.Version{Row: tt.row(binary, cells{id, "a", start})}
			v.Key, v.Start, v.End = tt.key(binary, cells{id, "a"}), value(start, typeInt8, binary), value(until, typeInt8, binary)
			return v
		}
		part := func(w sequenced.Work, rd scd.Round) sink.TargetRounds {
			p := tt.hidden(w, rd)
			p.Binary = true
			return p
		}
		var rd scd.Round
		var want []string
		for id := range 500 {
			rd.Begins = append(rd.Begins, version(id, 1, nil))
			if id > 2 {
				want = append(want, fmt.Sprintf("%d|a|1|1|NULL", id))
			}
		}
		rec := sequenced.Record{Key: rd.Begins[0].Key, Seq: []byte("1"), At: []byte("p"), Body: []byte("b")}
		r.write(part(sequenced.Work{Put: []sequenced.Record{rec}}, rd))
		r.write(part(sequenced.Work{}, scd.Round{
			Ends:   []scd.VersionEnd{version(0, 1, 2).VersionEnd, version(1, 1, nil).VersionEnd},
			Drops:  []scd.VersionID{version(2, 1, nil).VersionID},
			Begins: []scd.Version{version(0, 2, nil)},
		}))
		r.expect(tt, append(want, "0|a|1|1|2", "0|a|2|2|NULL", "1|a|1|1|NULL")...)
		r.expectRecords(tt, []sequenced.Lookup{{Key: rec.Key}}, rec)

		one := r.create(diary(h))
		rec = sequenced.Record{Key: one.key(binary, cells{1, "a"}), Seq: []byte("1"), At: []byte("p"), Body: []byte("b")}
		p := one.hidden(sequenced.Work{Put: []sequenced.Record{rec}}, scd.Round{Upserts: []change.Row{one.row(binary, cells{1, "a", 1})}})
		p.Binary = true
		r.write(p)
		r.expect(one, "1|a|1")
		p = one.hidden(sequenced.Work{TruncateBelow: sequenced.Place{Seq: []byte("1"), At: []byte("q")}})
		p.Binary = true
		r.write(p)
		r.expect(one)
	}},

	{"many versions at once", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(ages(h, typeInt8))
		const n = 3000
		version := func(i, start, until int) scd.Version {
			v := scd.Version{Row: tt.row(text, cells{i, awkward[i%len(awkward)], start})}
			v.Key, v.Start = tt.key(text, cells{i, awkward[i%len(awkward)]}), value(start, typeInt8, text)
			v.End = change.Value{State: change.Null}
			if until > 0 {
				v.End = value(until, typeInt8, text)
			}
			return v
		}
		var rd scd.Round
		for i := range n {
			rd.Begins = append(rd.Begins, version(i, 10, 0))
		}
		r.write(tt.hidden(sequenced.Work{}, rd))
		rd = scd.Round{}
		var want []string
		for i := range n {
			who := awkward[i%len(awkward)]
			switch i % 3 {
			case 0:
				rd.Ends = append(rd.Ends, version(i, 10, 20).VersionEnd)
				rd.Begins = append(rd.Begins, version(i, 20, 0))
				want = append(want, fmt.Sprintf("%d|%s|10|10|20", i, who), fmt.Sprintf("%d|%s|20|20|NULL", i, who))
			case 1:
				rd.Drops = append(rd.Drops, version(i, 10, 0).VersionID)
			case 2:
				want = append(want, fmt.Sprintf("%d|%s|10|10|NULL", i, who))
			}
		}
		r.write(tt.hidden(sequenced.Work{}, rd))
		r.expect(tt, want...)
	}},

	{"type 1: late, twice, ties, deletes", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow("t", scd.Type1, bigints, false, "id int4 key", "who text key", "n int8")
		f.send(f.put(5, 1, "a", 50), f.put(5, 1, "b", 51), f.put(3, 2, "a", 30))
		f.expect(f.target, "1|a|50", "1|b|51", "2|a|30")
		again := f.put(7, 1, "a", 70)
		f.send(again, f.put(6, 1, "a", 60), again, f.put(4, 1, "b", 40))
		f.send(again)
		f.expect(f.target, "1|a|70", "1|b|51", "2|a|30")
		f.send(f.put(7, 1, "a", 71)) // a tie: the later in the source wins
		f.send(f.gone(9, 2, "a"), f.gone(9, 3, "c"))
		f.expect(f.target, "1|a|71", "1|b|51")
		f.reopen()
		f.anew()
		f.send(f.put(8, 2, "a", 80), f.put(8, 3, "c", 81), f.put(10, 3, "c", nil))
		f.expect(f.target, "1|a|71", "1|b|51", "3|c|NULL")
		f.send(f.put(11, 2, "a", 110))
		f.expect(f.target, "1|a|71", "1|b|51", "2|a|110", "3|c|NULL")
	}},

	{"type 1: keys of many columns and awkward values", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow(`odd "target"`, scd.Type1, bigints, false, `v'" text`, `k1" text key`, "k2 int8 key", "K3 text key")
		var want []string
		var first, second, third []item
		for i, s := range awkward {
			o := awkward[len(awkward)-1-i]
			first = append(first, f.put(1, "first", s, 1, o), f.put(1, nil, s, 2, o))
			second = append(second, f.put(2, s, s, 1, o), f.gone(2, s, 2, o))
			third = append(third, f.put(1, "late", s, 1, o), f.put(3, o, s, 3, o))
			want = append(want, strings.Join([]string{s, s, "1", o}, "|"), strings.Join([]string{o, s, "3", o}, "|"))
		}
		f.send(first...)
		f.send(second...)
		f.send(third...)
		f.expect(f.target, want...)
		f.send(f.emptied(4))
		f.expect(f.target)
	}},

	{"type 1: partial rows and truncates", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow("t", scd.Type1, bigints, true, "id int4 key", "a text", "b text")
		f.send(f.put(1, 1, "a1", "b1"), f.put(1, 2, "a1", "b1"), f.put(1, 3, "a1", "b1"))
		f.send(f.put(5, 1, absent{}, "b5"), f.put(3, 2, "a3", absent{}))
		f.expect(f.target, "1|a1|b5", "2|a3|b1", "3|a1|b1")
		f.send(f.emptied(2))
		f.expect(f.target, "1|NULL|b5", "2|a3|NULL")
		f.reopen()
		f.anew()
		f.send(f.put(1, 3, "late", "late"), f.put(4, 1, "a4", "b4"), f.gone(4, 2))
		f.expect(f.target, "1|a4|b5")
		f.send(f.put(5, 2, absent{}, "b5"), f.put(3, 1, "a3", "b3"))
		f.expect(f.target, "1|a4|b5", "2|NULL|b5")
		f.send(f.emptied(9))
		f.expect(f.target)
	}},

	{"type 1: the horizon of forgotten deletes", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow("t", scd.Type1, bigints, false, "id int4 key", "n int8")
		f.options.QuarantineBeyond = true
		f.anew()
		f.send(f.put(1, 1, 10), f.gone(5, 1), f.gone(7, 2))
		p := f.gather()
		p.Hidden.ForgetBefore = 1 << 40
		f.write(p)
		f.anew()
		f.lane.Add(f.put(6, 1, 60).Event)
		f.lane.Add(f.put(8, 2, 80).Event)
		if err := f.memory().Remembered(f.ctx, f.Target, f.lane.Lookups(), f.lane.Remember); err != nil {
			t.Fatalf("Remembered: %v", err)
		}
		w, rd, aside, c, err := f.lane.Take()
		if err != nil || len(aside) != 1 || c.Beyond != 1 {
			t.Fatalf("%d events aside, counts %+v, %v", len(aside), c, err)
		}
		f.write(f.hidden(w, rd))
		f.expect(f.target, "2|80")
	}},

	{"type 2: late events split, shorten, begin earlier and join", nil, func(t *testing.T, h Harness) {
		for _, ld := range ladders {
			t.Run(ld.name, func(t *testing.T) {
				r := begin(t, h)
				defer r.w.Close(r.ctx)
				f := r.flow("t_"+ld.name, scd.Type2, ld.types, false, "id int4 key", "a text", "n int8 untracked")
				v, s := ld.values, ld.shown
				one := f.put(v[1], 1, "x", 1)
				f.send(one, f.put(v[3], 1, "y", 2), f.put(v[1], 2, "x", 1))
				f.expect(f.target, "1|x|1|"+s[1]+"|"+s[3], "1|y|2|"+s[3]+"|NULL", "2|x|1|"+s[1]+"|NULL")
				f.send(f.put(ld.third, 1, "z", 3), one) // splits
				f.expect(f.target, "1|x|1|"+s[1]+"|"+s[2], "1|z|3|"+s[2]+"|"+s[3], "1|y|2|"+s[3]+"|NULL", "2|x|1|"+s[1]+"|NULL")
				f.send(f.gone(v[2], 2), f.put(v[4], 2, "x", 5)) // a gap
				f.send(f.gone(v[2], 1))                         // a tie: the delete is later in the source, and shortens
				f.expect(f.target, "1|x|1|"+s[1]+"|"+s[2], "1|y|2|"+s[3]+"|NULL", "2|x|1|"+s[1]+"|"+s[2], "2|x|5|"+s[4]+"|NULL")
				f.reopen()
				f.anew()
				f.send(f.put(v[0], 2, "x", 0), f.put(v[0], 1, "y", 4)) // begins earlier; the first row of all
				f.expect(f.target, "1|y|4|"+s[0]+"|"+s[1], "1|x|1|"+s[1]+"|"+s[2], "1|y|2|"+s[3]+"|NULL", "2|x|1|"+s[0]+"|"+s[2], "2|x|5|"+s[4]+"|NULL")
				f.send(f.put(v[1], 1, "y", 6)) // the tie's later event joins what comes before
				f.expect(f.target, "1|y|6|"+s[0]+"|"+s[2], "1|y|2|"+s[3]+"|NULL", "2|x|1|"+s[0]+"|"+s[2], "2|x|5|"+s[4]+"|NULL")
				f.send(f.gone(v[4], 1), f.gone(v[4], 2), f.gone(v[3], 3))
				f.expect(f.target, "1|y|6|"+s[0]+"|"+s[2], "1|y|2|"+s[3]+"|"+s[4], "2|x|1|"+s[0]+"|"+s[2])
				if bad, err := r.w.Invariants(r.ctx, f.Target); err != nil || len(bad) > 0 {
					t.Fatalf("Invariants: %q, %v", bad, err)
				}
			})
		}
	}},

	{"type 2: inherited columns follow what they are inherited from", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow("t", scd.Type2, bigints, true, "id int4 key", "a text", "b text")
		f.send(f.put(1, 1, "a1", "b1"), f.put(3, 1, "a3", absent{}), f.put(5, 1, absent{}, "b5"))
		f.expect(f.target, "1|a1|b1|1|3", "1|a3|b1|3|5", "1|a3|b5|5|NULL")
		f.send(f.put(2, 1, absent{}, "b2"))
		f.expect(f.target, "1|a1|b1|1|2", "1|a1|b2|2|3", "1|a3|b2|3|5", "1|a3|b5|5|NULL")
		f.send(f.gone(4, 1))
		f.expect(f.target, "1|a1|b1|1|2", "1|a1|b2|2|3", "1|a3|b2|3|4", "1|NULL|b5|5|NULL")
	}},

	{"a transaction in pieces meets what its earlier pieces wrote", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one := r.flow("one", scd.Type1, bigints, true, "id int4 key", "a text", "b text")
		two := r.flow("two", scd.Type2, bigints, false, "id int4 key", "a text")
		one.send(one.put(1, 1, "a1", "b1"))
		two.send(two.put(1, 1, "x"))
		r.sendPieces([]*flow{one, two}, [][][]item{
			{{one.put(3, 1, "a3", absent{}), one.put(3, 2, absent{}, "b3")}, {two.put(5, 1, "y"), two.gone(2, 2)}},
			{{one.put(2, 1, "a2", "b2"), one.put(1, 2, "a1", "b1"), one.gone(9, 3)}, {two.put(3, 1, "z"), two.put(1, 2, "x")}},
			{{one.emptied(2), one.put(8, 3, "no", "no")}, {two.put(4, 1, "z"), two.put(6, 2, "x")}},
		})
		r.expect(one.target, "1|a3|NULL", "2|NULL|b3")
		r.expect(two.target, "1|x|1|3", "1|z|3|5", "1|y|5|NULL", "2|x|1|2", "2|x|6|NULL")
		one.send(one.put(3, 2, "tie", absent{}))
		two.send(two.gone(2, 1))
		r.expect(one.target, "1|a3|NULL", "2|tie|b3")
		r.expect(two.target, "1|x|1|2", "1|z|3|5", "1|y|5|NULL", "2|x|1|2", "2|x|6|NULL")
	}},

	{"sequenced and ordered targets in one batch", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		f := r.flow("seq", scd.Type1, bigints, false, "id int4 key", "n int8")
		history := r.flow("seqhist", scd.Type2, bigints, false, "id int4 key", "n int8")
		plain := r.create(people(h, binary))
		r.write(f.gather(f.put(1, 1, 10)), plain.part(binary, round{inserts: []cells{{1, "a", 1}}}), history.gather(history.put(1, 1, 10)))
		r.expect(f.target, "1|10")
		r.expect(plain, "1|a|1")
		r.expect(history.target, "1|10|1|NULL")
	}},

	{"Show, Scan and Invariants of a history by a user's sequence", nil, func(t *testing.T, h Harness) {
		for _, ld := range ladders {
			t.Run(ld.name, func(t *testing.T) {
				r := begin(t, h)
				defer r.w.Close(r.ctx)
				f := r.flow("t_"+ld.name, scd.Type2, ld.types, false, "id int4 key", "a text")
				v := ld.values
				f.send(f.put(v[0], 1, "v0"), f.put(v[1], 1, "v1"), f.put(v[2], 1, "v2"), f.gone(v[3], 1), f.put(v[4], 1, "v4"), f.put(v[0], 2, "w0"))
				order := func(q sink.ShowQuery) string {
					t.Helper()
					var out []string
					err := r.w.Show(r.ctx, q, func(cells []*string) error {
						out = append(out, *cells[1])
						return nil
					})
					if err != nil {
						t.Fatalf("Show: %v", err)
					}
					return strings.Join(out[1:], " ")
				}
				q := sink.ShowQuery{Target: f.Target}
				if got := order(q); got != "v0 v1 v2 v4 w0" {
					t.Errorf("Show: %s", got)
				}
				for i, want := range []string{"v0 w0", "v1 w0", "v2 w0", "w0", "v4 w0"} {
					q.AsOf = string(f.start(v[i]).Data)
					if q.AsOf == "" { // which means all versions
						continue
					}
					if got := order(q); got != want {
						t.Errorf("Show as of %q: %s, want %s", q.AsOf, got, want)
					}
					if list := parts(v[i]); len(list) > 1 {
						var texts []string
						for _, p := range list {
							texts = append(texts, `"`+strings.ReplaceAll(fmt.Sprint(p), `"`, `""`)+`"`)
						}
						q.AsOf = "(" + strings.Join(texts, ", ") + ")"
						if got := order(q); got != want {
							t.Errorf("Show as of %q: %s, want %s", q.AsOf, got, want)
						}
					}
				}
				var open []string
				err := r.w.Scan(r.ctx, f.Target, func(key, row []byte) error { open = append(open, string(row)); return nil })
				if err != nil || len(open) != 2 {
					t.Errorf("Scan gives %d open versions, %v", len(open), err)
				}
				if bad, err := r.w.Invariants(r.ctx, f.Target); err != nil || len(bad) > 0 {
					t.Errorf("Invariants: %q, %v", bad, err)
				}
				list := strings.Join([]string{quote("id"), quote("a"), quote(scd.StartColumn), quote(scd.EndColumn)}, ", ")
				h.Exec(t, fmt.Sprintf("INSERT INTO %s (%s) SELECT 2, 'open twice', %s, NULL FROM %[1]s WHERE a = 'v2'", sqlName(f.Name), list, quote(scd.StartColumn)))
				if bad, err := r.w.Invariants(r.ctx, f.Target); err != nil || len(bad) == 0 {
					t.Errorf("Invariants with two open versions: %q, %v", bad, err)
				}
				h.Exec(t, "DELETE FROM "+sqlName(f.Name)+" WHERE id = 2")
				// v0 now ends where v2 ends: it overlaps v1.
				h.Exec(t, fmt.Sprintf("UPDATE %s SET %s = (SELECT until FROM (SELECT %[2]s AS until FROM %[1]s WHERE a = 'v2') AS v2) WHERE a = 'v0'", sqlName(f.Name), quote(scd.EndColumn)))
				if bad, err := r.w.Invariants(r.ctx, f.Target); err != nil || len(bad) == 0 {
					t.Errorf("Invariants of overlapping versions: %q, %v", bad, err)
				}
			})
		}
	}},

	{"as of what is no value of the sequence", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, c := range []struct {
			name string
			flow *flow
			seq  any
			bad  []string
		}{
			{"one column", r.flow("t", scd.Type2, bigints, false, "id int4 key", "a text"), 1, []string{"yesterday"}},
			{"two columns", r.flow("u", scd.Type2, []change.Type{typeInt8, typeText}, false, "id int4 key", "a text"), []any{1, "a"},
				[]string{"1", "(1)", "(1, a, b)", "(x, a)", `("1, a)`, "{}", `{"s": 1}`, `{"ss": 1}`, `{"ss": "x", "s": "a"}`, `{"ss": 1, "s": "a", "t": 1}`, `{"ss": null, "s": "a"}`, `{"ss": 1, "s": "a"`}},
		} {
			c.flow.send(c.flow.put(c.seq, 1, "x"))
			for _, bad := range c.bad {
				err := r.w.Show(r.ctx, sink.ShowQuery{Target: c.flow.Target, AsOf: bad}, func([]*string) error { return nil })
				if fault.KindOf(err) != fault.Usage {
					t.Errorf("%s, Show as of %s: %v, want a usage error", c.name, bad, err)
				}
			}
		}
	}},
}

// sendPieces sends the pieces of one source transaction: of each piece the items of
// each flow.
func (r *rig) sendPieces(flows []*flow, pieces [][][]item) {
	r.t.Helper()
	for i, piece := range pieces {
		var parts []sink.TargetRounds
		for k, items := range piece {
			parts = append(parts, flows[k].gather(items...))
		}
		b := r.batch(parts...)
		b.First, b.More = i == 0, i < len(pieces)-1
		if err := r.w.Apply(r.ctx, b); err != nil {
			r.t.Fatalf("Apply piece %d: %v", i+1, err)
		}
	}
}
