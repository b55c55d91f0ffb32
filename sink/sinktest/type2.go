package sinktest

import (
	"fmt"
	"math"
	"testing"

	"tailrace/internal/fault"
	"tailrace/scd"
)

// staff is the usual type 2 target: id, name (tracked), note (not tracked).
func staff(h Harness, f form) target {
	return makeTarget(h, "staff_"+f.String(), scd.Type2, "id int4 key", "name text", "note text untracked")
}

var type2Tests = []test{
	{"a key's life: begin, change, close, begin again", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "a", "n"}}, {key: cells{2}, lo: 1000, row: cells{2, nil, nil}}}})
		r.expect(tt, "1|a|n|1000|NULL", "2|NULL|NULL|1000|NULL")
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "b", "n"}}}})
		r.expect(tt, "1|a|n|1000|2000", "1|b|n|2000|NULL", "2|NULL|NULL|1000|NULL")
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 3000}, {key: cells{2}, lo: 3000}}})
		r.expect(tt, "1|a|n|1000|2000", "1|b|n|2000|3000", "2|NULL|NULL|1000|3000")
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 4000, row: cells{1, "b", "n"}}}})
		r.expect(tt, "1|a|n|1000|2000", "1|b|n|2000|3000", "1|b|n|4000|NULL", "2|NULL|NULL|1000|3000")
	})},

	{"an equal version continues and takes the untracked values", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "a", "old", 1000}, cells{2, nil, "old", 1000}, cells{3, "", "old", 1000})
		r.apply(tt, f, round{steps: []step{
			{key: cells{1}, lo: 2000, row: cells{1, "a", "new"}},
			{key: cells{2}, lo: 2000, row: cells{2, nil, nil}},
			{key: cells{3}, lo: 2000, row: cells{3, nil, "new"}}, // an empty text is not NULL
		}})
		r.expect(tt, "1|a|new|1000|NULL", "2|NULL|NULL|1000|NULL", "3||old|1000|2000", "3|NULL|new|2000|NULL")
	})},

	{"a close of what is not open does nothing", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "a", nil}}}})
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 2000}, {key: cells{7}, lo: 2000}}})
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 3000}, {key: cells{7}, lo: 3000}}})
		r.expect(tt, "1|a|NULL|1000|2000")
	})},

	{"commit times that stand still or go back never overlap", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		for _, s := range []step{
			{lo: 5000, row: cells{1, "a", nil}},
			{lo: 5000, row: cells{1, "b", nil}},
			{lo: 10, row: cells{1, "c", nil}},
			{lo: 10},
			{lo: 10, row: cells{1, "d", nil}},
		} {
			s.key = cells{1}
			r.apply(tt, f, round{steps: []step{s}})
		}
		r.expect(tt, "1|a|NULL|5000|5001", "1|b|NULL|5001|5002", "1|c|NULL|5002|5003", "1|d|NULL|5004|NULL")
	})},

	{"several versions of a key in one round", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "a", nil, 1000}, cells{2, "a", nil, 9000}, cells{3, "a", nil, 1000})
		steps := []step{
			// 1: changes at 2000, closes at 2500, begins at 3000
			{key: cells{1}, n: 1, lo: 2000, row: cells{1, "b", nil}},
			{key: cells{1}, n: 2, lo: 2500, loVoid: 2500},
			{key: cells{1}, n: 3, lo: 3000, loVoid: 3000, row: cells{1, "c", nil}},
			// 2: everything lies before the stored start
			{key: cells{2}, n: 1, lo: 2000, row: cells{2, "b", nil}},
			{key: cells{2}, n: 2, lo: 2500, loVoid: 2500, row: cells{2, "c", nil}},
			{key: cells{2}, n: 3, lo: 3000, loVoid: 3000},
			// 3: closes first
			{key: cells{3}, n: 1, lo: 2000},
			{key: cells{3}, n: 2, lo: 2000 + 1, loVoid: 2000, row: cells{3, "a", nil}},
			// 4: unknown
			{key: cells{4}, n: 1, lo: 2000, row: cells{4, "a", nil}},
			{key: cells{4}, n: 2, lo: 2001, loVoid: 1500, row: cells{4, "b", nil}},
		}
		r.apply(tt, f, round{steps: steps})
		r.expect(tt,
			"1|a|NULL|1000|2000", "1|b|NULL|2000|2500", "1|c|NULL|3000|NULL",
			"2|a|NULL|9000|9001", "2|b|NULL|9001|9002", "2|c|NULL|9002|9003",
			"3|a|NULL|1000|2000", "3|a|NULL|2001|NULL",
			"4|a|NULL|2000|2001", "4|b|NULL|2001|NULL")
	})},

	{"a void first step gives its instant to nobody", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "a", "old", 1000}, cells{2, "a", nil, 7000}, cells{3, "a", nil, 1000})
		r.apply(tt, f, round{steps: []step{{key: cells{3}, lo: 1500}}})
		r.apply(tt, f, round{steps: []step{
			// 1: equal at 8000, then a change committed at 3000: without the void step it could not come before 8001
			{key: cells{1}, n: 1, lo: 8000, row: cells{1, "a", "new"}},
			{key: cells{1}, n: 2, lo: 8001, loVoid: 3000, row: cells{1, "b", nil}},
			{key: cells{1}, n: 3, lo: 8002, loVoid: 3500, row: cells{1, "c", nil}},
			// 2: equal, then closed before its start
			{key: cells{2}, n: 1, lo: 100, row: cells{2, "a", "kept"}},
			{key: cells{2}, n: 2, lo: 101, loVoid: 100},
			// 3: closed twice, then begins
			{key: cells{3}, n: 1, lo: 8000},
			{key: cells{3}, n: 2, lo: 8001, loVoid: 2000, row: cells{3, "z", nil}},
			// 9: a close of an unknown key, then begins
			{key: cells{9}, n: 1, lo: 8000},
			{key: cells{9}, n: 2, lo: 8001, loVoid: 2000, row: cells{9, "z", nil}},
		}})
		r.expect(tt,
			"1|a|new|1000|3000", "1|b|NULL|3000|3500", "1|c|NULL|3500|NULL",
			"2|a|kept|7000|7001",
			"3|a|NULL|1000|1500", "3|z|NULL|2000|NULL",
			"9|z|NULL|2000|NULL")
	})},

	{"absent columns come from the open version of the origin", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "one", "n1", 1000}, cells{2, "two", "n2", 1000}, cells{3, "three", nil, 1000}, cells{4, "four", "n4", 1000})
		r.apply(tt, f, round{steps: []step{
			{key: cells{1}, lo: 2000, row: cells{1, absent{}, "m1"}}, // nothing tracked changes
			{key: cells{2}, lo: 2000, row: cells{2, "TWO", absent{}}},
			{key: cells{3}, lo: 2000}, // 3 moves to 5
			{key: cells{5}, lo: 2000, row: cells{5, absent{}, absent{}}, origin: cells{3}},
			{key: cells{4}, n: 1, lo: 2000, row: cells{4, "FOUR", absent{}}},
			{key: cells{4}, n: 2, lo: 2001, loVoid: 2000, row: cells{4, "fyra", absent{}}},
		}})
		r.expect(tt,
			"1|one|m1|1000|NULL",
			"2|two|n2|1000|2000", "2|TWO|n2|2000|NULL",
			"3|three|NULL|1000|2000", "5|three|NULL|2000|NULL",
			"4|four|n4|1000|2000", "4|FOUR|n4|2000|2001", "4|fyra|n4|2001|NULL")
	})},

	{"keys swap", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "one", "n1", 1000}, cells{2, "two", "n2", 1000})
		r.apply(tt, f, round{steps: []step{
			{key: cells{1}, lo: 2000, row: cells{1, absent{}, absent{}}, origin: cells{2}},
			{key: cells{2}, lo: 2000, row: cells{2, absent{}, absent{}}, origin: cells{1}},
		}})
		r.expect(tt, "1|one|n1|1000|2000", "2|two|n2|1000|2000", "1|two|n2|2000|NULL", "2|one|n1|2000|NULL")
	})},

	{"an absent column without an open version is corrupt", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "one", "n1", 1000})
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 1500}}})
		for _, key := range []int{1, 2} {
			err := r.w.Apply(r.ctx, r.batch(tt.part(f, round{steps: []step{{key: cells{key}, lo: 2000, row: cells{key, "x", absent{}}}}})))
			if fault.KindOf(err) != fault.Corrupt {
				t.Fatalf("key %d: %v, want corrupt", key, err)
			}
			r.reopen()
			r.expect(tt, "1|one|n1|1000|1500")
		}
	})},

	{"truncate closes what no step touches", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.load(tt, f, false, cells{1, "a", nil, 1000}, cells{2, "b", nil, 1000}, cells{3, "c", nil, 9000}, cells{4, "d", nil, 1000})
		r.apply(tt, f, round{steps: []step{{key: cells{4}, lo: 1200}}})
		r.apply(tt, f, round{truncate: true, truncateAt: 2000, steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "a", nil}}, {key: cells{5}, lo: 2500, row: cells{5, "e", nil}}}})
		r.expect(tt, "1|a|NULL|1000|NULL", "2|b|NULL|1000|2000", "3|c|NULL|9000|9001", "4|d|NULL|1000|1200", "5|e|NULL|2500|NULL")
		r.apply(tt, f, round{truncate: true, truncateAt: 3000})
		r.expect(tt, "1|a|NULL|1000|3000", "2|b|NULL|1000|2000", "3|c|NULL|9000|9001", "4|d|NULL|1000|1200", "5|e|NULL|2500|3000")
	})},

	{"rounds of a batch see each other", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		r.apply(tt, f,
			round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "a", "n"}}}},
			round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "b", absent{}}}}},
			round{truncate: true, truncateAt: 3000, steps: []step{{key: cells{2}, lo: 3000, row: cells{2, "c", nil}}}},
			round{steps: []step{{key: cells{2}, lo: 4000}}})
		r.expect(tt, "1|a|n|1000|2000", "1|b|n|2000|3000", "2|c|NULL|3000|4000")
	})},

	{"large rounds, single steps and several", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		var rows []cells
		for i := range 2000 {
			rows = append(rows, cells{i, "a", nil, 1000})
		}
		r.load(tt, f, false, rows...)
		var single, several round
		want := []string{}
		for i := range 2000 {
			single.steps = append(single.steps, step{key: cells{i}, lo: 2000, row: cells{i, "b", nil}})
			several.steps = append(several.steps,
				step{key: cells{i}, n: 1, lo: 3000, row: cells{i, "b", "kept"}},
				step{key: cells{i}, n: 2, lo: 3001, loVoid: 2500, row: cells{i, "c", nil}},
				step{key: cells{i}, n: 3, lo: 4000, loVoid: 4000})
			want = append(want, fmt.Sprintf("%d|a|NULL|1000|2000", i), fmt.Sprintf("%d|b|kept|2000|2500", i), fmt.Sprintf("%d|c|NULL|2500|4000", i))
		}
		r.apply(tt, f, single)
		r.apply(tt, f, several)
		r.expect(tt, want...)
	})},

	{"composite keys", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "composite_"+f.String(), scd.Type2, "v int8", "a text key", "b int4 key"))
		r.apply(tt, f, round{steps: []step{
			{key: cells{"x,\"", 1}, lo: 1000, row: cells{1, "x,\"", 1}},
			{key: cells{"x,\"", 2}, lo: 1000, row: cells{2, "x,\"", 2}},
		}})
		r.apply(tt, f, round{steps: []step{
			{key: cells{"x,\"", 1}, lo: 2000},
			{key: cells{"x,\"", 3}, lo: 2000, row: cells{absent{}, "x,\"", 3}, origin: cells{"x,\"", 1}},
			{key: cells{"x,\"", 2}, lo: 2000, row: cells{2, "x,\"", 2}},
		}})
		r.expect(tt, `1|x,"|1|1000|2000`, `1|x,"|3|2000|NULL`, `2|x,"|2|1000|NULL`)
	})},

	{"no tracked column: one version a life", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "untracked_"+f.String(), scd.Type2, "id int4 key", "note text untracked"))
		only := r.create(makeTarget(h, "only_"+f.String(), scd.Type2, "id int4 key"))
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "a"}}}})
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "b"}}}})
		r.expect(tt, "1|b|1000|NULL")
		r.apply(only, f, round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1}}}})
		r.apply(only, f, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1}}, {key: cells{2}, lo: 2000, row: cells{2}}}})
		r.apply(only, f, round{steps: []step{{key: cells{1}, lo: 3000}}})
		r.expect(only, "1|1000|3000", "2|2000|NULL")
	})},

	{"instants far away", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		const year1 = -62_135_596_800_000_000
		year9999 := int64(253_402_300_799_999_999)
		if last := h.Has().LastInstant; last > 0 {
			year9999 = last - 1 // it ends a microsecond later
		}
		r.apply(tt, f, round{steps: []step{
			{key: cells{1}, lo: year1, row: cells{1, "a", nil}},
			{key: cells{2}, lo: year9999, row: cells{2, "a", nil}},
			{key: cells{3}, lo: -1, row: cells{3, "a", nil}},
			{key: cells{4}, lo: math.MaxInt32 * 1_000_000, row: cells{4, "a", nil}},
		}})
		r.expect(tt, fmt.Sprintf("1|a|NULL|%d|NULL", year1), fmt.Sprintf("2|a|NULL|%d|NULL", year9999), "3|a|NULL|-1|NULL", fmt.Sprintf("4|a|NULL|%d|NULL", math.MaxInt32*1_000_000))
		r.apply(tt, f, round{steps: []step{{key: cells{1}, lo: year1, row: cells{1, "b", nil}}, {key: cells{2}, lo: 0}}})
		r.expect(tt, fmt.Sprintf("1|a|NULL|%d|%d", year1, year1+1), fmt.Sprintf("1|b|NULL|%d|NULL", year1+1), fmt.Sprintf("2|a|NULL|%d|%d", year9999, year9999+1), "3|a|NULL|-1|NULL", fmt.Sprintf("4|a|NULL|%d|NULL", math.MaxInt32*1_000_000))
	})},
}
