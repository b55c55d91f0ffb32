package sinktest

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// people is the usual type 1 target: id, name, n.
func people(h Harness, f form) target {
	return makeTarget(h, "people_"+f.String(), scd.Type1, "id int4 key", "name text", "n int8")
}

var type1Tests = []test{
	{"inserts, upserts, patches and deletes", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2}, cells{3, "c", 3})
		r.apply(tt, f, round{
			deletes: []cells{{1}, {99}},
			inserts: []cells{{4, "d", 4}, {5, nil, nil}},
			upserts: []cells{{2, "B", nil}, {6, "", 6}},
			patches: []cells{{3, absent{}, 33}},
		})
		r.expect(tt, "2|B|NULL", "3|c|33", "4|d|4", "5|NULL|NULL", "6||6")
	})},

	{"an insert whose key is there becomes an upsert", func(f Features) bool { return f.Keys }, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{2, "old", 2})
		r.apply(tt, f, round{inserts: []cells{{1, "a", 1}, {2, "new", nil}, {3, "c", 3}}})
		r.expect(tt, "1|a|1", "2|new|NULL", "3|c|3")
		many := round{}
		want := []string{}
		for i := 1; i <= 1000; i++ {
			many.inserts = append(many.inserts, cells{i, "many", i})
			want = append(want, fmt.Sprintf("%d|many|%d", i, i))
		}
		r.apply(tt, f, many)
		r.expect(tt, want...)
	})},

	{"a large batch equals a small one", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		var rows []cells
		for i := range 3000 {
			rows = append(rows, cells{i, "old", i})
		}
		r.load(tt, f, false, rows...)
		var rd round
		want := []string{}
		for i := range 3000 {
			switch i % 4 {
			case 0:
				rd.deletes = append(rd.deletes, cells{i})
			case 1:
				rd.upserts = append(rd.upserts, cells{i, "up\tset", nil})
				want = append(want, fmt.Sprintf("%d|up\tset|NULL", i))
			case 2:
				rd.patches = append(rd.patches, cells{i, absent{}, -i})
				want = append(want, fmt.Sprintf("%d|old|%d", i, -i))
			case 3:
				rd.moves = append(rd.moves, move{cells{i}, cells{i + 10000, absent{}, i}})
				want = append(want, fmt.Sprintf("%d|old|%d", i+10000, i))
			}
		}
		for i := 5000; i < 7000; i++ {
			rd.inserts = append(rd.inserts, cells{i, "in", i})
			want = append(want, fmt.Sprintf("%d|in|%d", i, i))
		}
		r.apply(tt, f, rd)
		r.expect(tt, want...)
	})},

	{"patches of many shapes in one round", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		columns := []string{"id int4 key"}
		for i := range 8 {
			columns = append(columns, fmt.Sprintf("c%d int8", i))
		}
		tt := r.create(makeTarget(h, "shapes_"+f.String(), scd.Type1, columns...))
		var rows []cells
		var rd round
		want := []string{}
		for i := range 256 {
			row, patch, line := cells{i}, cells{i}, fmt.Sprint(i)
			for c := range 8 {
				row = append(row, c)
				if i>>c&1 == 0 {
					patch, line = append(patch, absent{}), fmt.Sprintf("%s|%d", line, c)
				} else if c == 3 {
					patch, line = append(patch, nil), line+"|NULL"
				} else {
					patch, line = append(patch, 100+c), fmt.Sprintf("%s|%d", line, 100+c)
				}
			}
			rows, rd.patches, want = append(rows, row), append(rd.patches, patch), append(want, line)
		}
		r.load(tt, f, false, rows...)
		r.apply(tt, f, rd)
		r.expect(tt, want...)
	})},

	{"moves: chain, swap, cycle, onto a deleted key", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		var rows []cells
		for i := 1; i <= 9; i++ {
			rows = append(rows, cells{i, fmt.Sprintf("row %d", i), i})
		}
		r.load(tt, f, false, rows...)
		r.apply(tt, f, round{
			deletes: []cells{{9}},
			moves: []move{
				{cells{1}, cells{10, absent{}, 1}}, // the chain's end
				{cells{2}, cells{1, absent{}, 2}},
				{cells{3}, cells{2, "third", 3}},
				{cells{4}, cells{5, absent{}, absent{}}}, // a swap
				{cells{5}, cells{4, absent{}, absent{}}},
				{cells{6}, cells{7, absent{}, absent{}}}, // a cycle of two and a way out
				{cells{7}, cells{6, nil, absent{}}},
				{cells{8}, cells{9, absent{}, 80}}, // onto a deleted key
			},
		})
		r.expect(tt, "10|row 1|1", "1|row 2|2", "2|third|3", "5|row 4|4", "4|row 5|5", "7|row 6|6", "6|NULL|7", "9|row 8|80")
	})},

	{"complete moves need no old row", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1})
		r.apply(tt, f, round{moves: []move{{cells{1}, cells{2, "moved", 2}}, {cells{50}, cells{51, "from nowhere", 3}}}})
		r.expect(tt, "2|moved|2", "51|from nowhere|3")
	})},

	{"rounds of a batch see each other", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.apply(tt, f,
			round{inserts: []cells{{1, "a", 1}, {2, "b", 2}}},
			round{patches: []cells{{1, absent{}, 11}}, moves: []move{{cells{2}, cells{3, absent{}, 2}}}},
			round{truncate: true, upserts: []cells{{3, "after", 3}}},
			round{moves: []move{{cells{3}, cells{4, absent{}, absent{}}}}})
		r.expect(tt, "4|after|3")
	})},

	{"truncate comes first in its round", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2})
		r.apply(tt, f, round{truncate: true, inserts: []cells{{2, "again", 2}}})
		r.expect(tt, "2|again|2")
		r.apply(tt, f, round{truncate: true})
		r.expect(tt)
	})},

	{"composite keys, of text too", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "composite_"+f.String(), scd.Type1, "v int8", "a text key", "b int4 key"))
		odd := []string{"", " ", "a,b", `"`, `\`, "{}", "NULL", "O'Brien", "ä\n"}
		var rd, next, last round
		want := []string{}
		for i, s := range odd {
			rd.inserts = append(rd.inserts, cells{i, s, 1}, cells{i, s, 2}, cells{i, s, 3})
			next.deletes = append(next.deletes, cells{s, 1})
			next.upserts = append(next.upserts, cells{100 + i, s, 2})
			next.moves = append(next.moves, move{cells{s, 3}, cells{absent{}, s, 1}})
			want = append(want, fmt.Sprintf("%d|%s|2", 100+i, s), fmt.Sprintf("%d|%s|1", i, s))
			last.deletes = append(last.deletes, cells{s, 1}, cells{s, 2})
		}
		r.apply(tt, f, rd)
		r.apply(tt, f, next)
		r.expect(tt, want...)
		r.apply(tt, f, last)
		r.expect(tt)
	})},

	{"many deletes of composite keys", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "manycomposite_"+f.String(), scd.Type1, "a text key", "b int4 key"))
		var rd, gone round
		for i := range 1500 {
			rd.inserts = append(rd.inserts, cells{fmt.Sprintf("k,%d\"", i%7), i})
			if i > 0 {
				gone.deletes = append(gone.deletes, cells{fmt.Sprintf("k,%d\"", i%7), i})
			}
		}
		r.apply(tt, f, rd)
		r.apply(tt, f, gone)
		r.expect(tt, `k,0"|0`)
	})},

	{"a target of key columns alone", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "keys_"+f.String(), scd.Type1, "id int4 key"))
		r.apply(tt, f, round{inserts: []cells{{1}, {2}}})
		r.apply(tt, f, round{upserts: []cells{{2}, {3}}, deletes: []cells{{1}}})
		r.expect(tt, "2", "3")
	})},

	{"append-only targets keep every row", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "log_"+f.String(), scd.Type1, "a text", "n int8"))
		r.apply(tt, f, round{inserts: []cells{{"x", 1}, {"x", 1}, {nil, nil}}})
		many := round{}
		for range 500 {
			many.inserts = append(many.inserts, cells{"y", 2})
		}
		r.apply(tt, f, many)
		if got := len(r.contents(tt)); got != 503 {
			t.Fatalf("%d rows, want 503", got)
		}
		r.apply(tt, f, round{truncate: true, inserts: []cells{{"z", 3}}})
		r.expect(tt, "z|3")
	})},

	{"several targets in one batch", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := r.create(people(h, text)), r.create(people(h, binary))
		history := r.create(makeTarget(h, "history", scd.Type2, "id int4 key", "a text"))
		big := round{}
		for i := range 700 {
			big.upserts = append(big.upserts, cells{i, "x", i})
		}
		err := r.w.Apply(r.ctx, r.batch(
			one.part(text, round{inserts: []cells{{1, "a", 1}}}),
			two.part(binary, big),
			history.part(binary, round{steps: []step{{key: cells{1}, lo: 5, row: cells{1, "h"}}}}),
		))
		if err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.expect(one, "1|a|1")
		r.expect(history, "1|h|5|NULL")
		if got := len(r.contents(two)); got != 700 {
			t.Fatalf("%d rows, want 700", got)
		}
	}},

	{"an error leaves nothing of the batch, mark included", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		one := r.create(people(h, f))
		two := r.create(makeTarget(h, "two_"+f.String(), scd.Type1, "id int4 key", "a text"))
		for _, rows := range []int{1, 1000} {
			before := r.mark()
			many := round{}
			for i := range rows {
				many.upserts = append(many.upserts, cells{i, "x", i})
			}
			err := r.w.Apply(r.ctx, r.batch(
				one.part(f, many),
				two.part(f, round{patches: []cells{{1, absent{}}}})))
			if err == nil {
				t.Fatal("a patch of a missing row succeeded")
			}
			r.expect(one)
			if m := r.reopen(); m.Position != before.Position {
				t.Fatalf("the mark moved from %v to %v", before.Position, m.Position)
			}
		}
	})},

	{"an absent column of a missing row is corrupt and names the table", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		for i, bad := range []round{
			{patches: []cells{{7, absent{}, 1}}},
			{moves: []move{{cells{7}, cells{8, absent{}, 1}}}},
		} {
			err := r.w.Apply(r.ctx, r.batch(tt.part(f, bad)))
			if fault.KindOf(err) != fault.Corrupt {
				t.Fatalf("case %d: %v, want corrupt", i, err)
			}
			if !strings.Contains(err.Error(), tt.Name.Table) {
				t.Fatalf("case %d: the error does not name the table: %v", i, err)
			}
			r.expect(tt)
			r.reopen()
		}
	})},

	{"in a restored target a patch of a missing row is left out, and the rest is done", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "one", 1}, cells{2, "two", 2}, cells{3, "three", 3})
		restored := func(rounds ...round) {
			t.Helper()
			part := tt.part(f, rounds...)
			part.Restored = true
			if err := r.w.Apply(r.ctx, r.batch(part)); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
		restored(round{
			deletes: []cells{{50}}, inserts: []cells{{1, "again", 10}},
			upserts: []cells{{4, "four", 4}}, patches: []cells{{2, absent{}, 20}, {60, absent{}, 60}, {61, "x", absent{}}},
		})
		r.expect(tt, "1|again|10", "2|two|20", "3|three|3", "4|four|4")
		restored(round{patches: []cells{{70, absent{}, 70}}})
		restored(round{truncate: true, inserts: []cells{{5, "five", 5}}}, round{patches: []cells{{1, absent{}, 1}, {5, absent{}, 55}}})
		r.expect(tt, "5|five|55")
		// Many at once, and as the pieces of one transaction.
		rd, want := round{}, []string{"5|five|55"}
		for i := 1000; i < 2000; i++ {
			rd.inserts = append(rd.inserts, cells{i, "in", i})
			rd.patches = append(rd.patches, cells{i + 1000, absent{}, i})
			want = append(want, fmt.Sprintf("%d|in|%d", i, i))
		}
		restored(rd)
		r.expect(tt, want...)
		for i, rd := range []round{{truncate: true, inserts: []cells{{5, "five", 5}}}, {patches: []cells{{1000, absent{}, 1}, {5, absent{}, 6}}}} {
			part := tt.part(f, rd)
			part.Restored = true
			b := r.batch(part)
			b.First, b.More = i == 0, i == 0
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply piece %d: %v", i+1, err)
			}
		}
		r.expect(tt, "5|five|6")
		// The next batch is as strict as ever.
		if err := r.w.Apply(r.ctx, r.batch(tt.part(f, round{patches: []cells{{70, absent{}, 1}}}))); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("a patch of a missing row: %v, want corrupt", err)
		}
	})},

	{"values exchanged under a second unique index, restored", func(f Features) bool { return f.Secondary }, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "x", 1}, cells{2, "y", 2})
		h.Exec(t, "CREATE UNIQUE INDEX "+quote("one_"+f.String())+" ON "+sqlName(tt.Name)+" (name)")
		r.reopen()
		part := tt.part(f, round{patches: []cells{{1, "y", absent{}}, {2, "x", absent{}}, {9, "z", absent{}}}})
		part.Restored = true
		if err := r.w.Apply(r.ctx, r.batch(part)); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.expect(tt, "1|y|1", "2|x|2")
	})},

	{"a row image of the wrong width is corrupt", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		short := tt.row(text, cells{1, "a", 1})
		for _, rows := range []int{1, 1000} {
			bad := sink.TargetRounds{Target: tt.Target, Rounds: []scd.Round{{}}}
			for range rows {
				bad.Rounds[0].Upserts = append(bad.Rounds[0].Upserts, short[:len(short)-2])
			}
			if err := r.w.Apply(r.ctx, r.batch(bad)); fault.KindOf(err) != fault.Corrupt {
				t.Fatalf("Apply of a torn row: %v, want corrupt", err)
			}
			r.reopen()
			r.expect(tt)
		}
	}},

	{"no error shows a row's value", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		for _, rows := range []int{1, 1000} {
			bad := sink.TargetRounds{Target: tt.Target, Rounds: []scd.Round{{}}}
			for i := range rows {
				row := tt.row(text, cells{i, "fine", 1})
				if i == rows/2 {
					row = change.Row{}.Append(value(i, typeInt4, text)).Append(value("x", typeText, text)).Append(value("SECRETVALUE", typeText, text))
				}
				bad.Rounds[0].Upserts = append(bad.Rounds[0].Upserts, row)
			}
			wantSilent(t, r.w.Apply(r.ctx, r.batch(bad)), tt.Name.Table, "SECRETVALUE")
			r.reopen()
			r.expect(tt)
		}
	}},

	{"values exchanged under a second unique index", func(f Features) bool { return f.Secondary }, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "x", 1}, cells{2, "y", 2}, cells{3, "z", 3})
		h.Exec(t, "CREATE UNIQUE INDEX "+quote("only_"+f.String())+" ON "+sqlName(tt.Name)+" (name)")
		r.reopen()
		r.apply(tt, f, round{upserts: []cells{{1, "y", 10}, {2, "x", 20}}})
		r.expect(tt, "1|y|10", "2|x|20", "3|z|3")
		r.apply(tt, f, round{patches: []cells{{1, "z", absent{}}, {2, "y", absent{}}, {3, "x", absent{}}}})
		r.expect(tt, "1|z|10", "2|y|20", "3|x|3")
		r.apply(tt, f, round{moves: []move{{cells{1}, cells{11, "y", absent{}}}}, patches: []cells{{2, "z", absent{}}}, inserts: []cells{{4, "w", 4}}, deletes: []cells{{3}}})
		r.expect(tt, "11|y|10", "2|z|20", "4|w|4")
		err := r.w.Apply(r.ctx, r.batch(tt.part(f, round{inserts: []cells{{5, "w", 5}}})))
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "only_"+f.String()) || !strings.Contains(err.Error(), tt.Name.Table) {
			t.Fatalf("a real collision: %v, want an operator error naming the index and the table", err)
		}
		r.expect(tt, "11|y|10", "2|z|20", "4|w|4")
	})},

	{"large values arrive whole", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "large_"+f.String(), scd.Type1, "id int4 key", "a text", "b text"))
		big := strings.Repeat("0123456789\\\t", 1<<18) // 3 MiB, with what COPY must escape
		r.load(tt, f, false, cells{1, big, "x"}, cells{2, "x", big})
		r.apply(tt, f, round{upserts: []cells{{3, big, big}}, patches: []cells{{1, absent{}, "new"}}, moves: []move{{cells{2}, cells{4, "moved", absent{}}}}})
		got := lines(h.Query(t, "SELECT id, length(a), length(b) FROM "+sqlName(tt.Name)))
		want := fmt.Sprintf("[1|%d|3 3|%d|%d 4|5|%d]", len(big), len(big), len(big), len(big))
		if fmt.Sprint(got) != want {
			t.Fatalf("lengths %v, want %s", got, want)
		}
		if n := h.Query(t, "SELECT count(*) FROM "+sqlName(tt.Name)+" WHERE id = 3 AND a = b AND a = (SELECT a FROM "+sqlName(tt.Name)+" WHERE id = 1)"); *n[0][0] != "1" {
			t.Fatal("the large values differ")
		}
	})},
}
