package sinktest

import (
	"fmt"
	"slices"
	"testing"

	"tailrace/internal/fault"
	"tailrace/scd"
)

var pieceTests = []test{
	{"pieces are one transaction", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2})
		before := r.mark()
		r.apply(tt, f, round{upserts: []cells{{3, "whole", 3}}})
		at := r.mark()
		first := r.batch(tt.part(f, round{deletes: []cells{{1}}, inserts: []cells{{4, "d", 4}}}))
		first.More = true
		if err := r.w.Apply(r.ctx, first); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		second := r.batch(tt.part(f, round{patches: []cells{{4, absent{}, 44}}, moves: []move{{cells{2}, cells{1, absent{}, absent{}}}}}))
		second.First, second.More = false, true
		if err := r.w.Apply(r.ctx, second); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		if h.Has().Depose { // readable from outside only where other sessions are admitted
			r.expect(tt, "1|a|1", "2|b|2", "3|whole|3")
			if m := r.mark(); m.Position != at.Position || before.Position == at.Position {
				t.Fatalf("the mark is at %v in mid-transaction, want %v", m.Position, at.Position)
			}
		}
		last := r.batch(tt.part(f, round{upserts: []cells{{3, "new", nil}}}))
		last.First = false
		if err := r.w.Apply(r.ctx, last); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.expect(tt, "1|b|2", "3|new|NULL", "4|d|44")
		if m := r.mark(); m.Position != last.Position {
			t.Fatalf("the mark is at %v, want %v", m.Position, last.Position)
		}
		r.apply(tt, f, round{deletes: []cells{{1}}})
		r.expect(tt, "3|new|NULL", "4|d|44")
	})},

	{"a crash between pieces leaves nothing of them", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		one := r.create(people(h, f))
		two := r.create(staff(h, f))
		r.load(one, f, false, cells{1, "a", 1})
		r.load(two, f, false, cells{1, "a", nil, 1000})
		b := r.batch(one.part(f, round{truncate: true}), two.part(f, round{steps: []step{{key: cells{1}, lo: 2000}}}))
		b.More = true
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.reopen()
		r.expect(one, "1|a|1")
		r.expect(two, "1|a|NULL|1000|NULL")
	})},

	{"an error in a later piece takes the earlier ones with it", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		b := r.batch(tt.part(f, round{inserts: []cells{{1, "a", 1}}}))
		b.More = true
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		b = r.batch(tt.part(f, round{patches: []cells{{2, absent{}, 1}}}))
		b.First = false
		if err := r.w.Apply(r.ctx, b); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("Apply: %v, want corrupt", err)
		}
		r.reopen()
		r.expect(tt)
	})},

	{"steps compose across pieces", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		for i, c := range []struct {
			name   string
			stored []step // applied before, whole
			pieces []round
			want   []string
		}{
			{"changed twice is one version",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}, {steps: []step{{lo: 2000, row: cells{1, "c", "m"}}}}},
				[]string{"1|a|n|1000|2000", "1|c|m|2000|NULL"}},
			{"changed and changed back continues the version",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}, {steps: []step{{lo: 2000, row: cells{1, "a", "m"}}}}},
				[]string{"1|a|m|1000|NULL"}},
			{"deleted and inserted equal continues the version",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000}}}, {steps: []step{{lo: 2000, row: cells{1, "a", "n"}}}}},
				[]string{"1|a|n|1000|NULL"}},
			{"deleted and inserted different is a change",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000}}}, {steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}},
				[]string{"1|a|n|1000|2000", "1|b|n|2000|NULL"}},
			{"inserted and deleted was never there",
				nil,
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}, {steps: []step{{lo: 2000}}}},
				nil},
			{"inserted, deleted, inserted",
				nil,
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}, {steps: []step{{lo: 2000}}}, {steps: []step{{lo: 2000, row: cells{1, "c", "n"}}}}},
				[]string{"1|c|n|2000|NULL"}},
			{"changed and deleted closes the stored version as it was",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}, {steps: []step{{lo: 2000}}}},
				[]string{"1|a|n|1000|2000"}},
			{"an untracked change and then a delete",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000, row: cells{1, "a", "m"}}}}, {steps: []step{{lo: 2000}}}},
				[]string{"1|a|n|1000|2000"}},
			{"absent columns keep what the earlier piece wrote",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{steps: []step{{lo: 2000, row: cells{1, "b", "m"}}}}, {steps: []step{{lo: 2000, row: cells{1, "c", absent{}}}}}, {steps: []step{{lo: 2000, row: cells{1, absent{}, "k"}}}}},
				[]string{"1|a|n|1000|2000", "1|c|k|2000|NULL"}},
			{"after a close long ago",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}, {lo: 1500}},
				[]round{{steps: []step{{lo: 1200, row: cells{1, "a", "n"}}}}, {steps: []step{{lo: 1200, row: cells{1, "b", "n"}}}}},
				[]string{"1|a|n|1000|1500", "1|b|n|1501|NULL"}},
			{"a move whose row the earlier piece wrote",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{
					{steps: []step{{lo: 2000, row: cells{1, "b", "m"}}}},
					{steps: []step{{lo: 2000}, {key: cells{2}, lo: 2000, row: cells{2, absent{}, absent{}}, origin: cells{1}}}},
					{steps: []step{{key: cells{2}, lo: 2000}, {lo: 2000, row: cells{1, absent{}, absent{}}, origin: cells{2}}}},
				},
				[]string{"1|a|n|1000|2000", "1|b|m|2000|NULL"}},
			{"a truncate and then the same row again",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}, {key: cells{2}, lo: 1000, row: cells{2, "x", nil}}},
				[]round{{truncate: true, truncateAt: 2000}, {steps: []step{{lo: 2000, row: cells{1, "a", "n"}}}}},
				[]string{"1|a|n|1000|NULL", "2|x|NULL|1000|2000"}},
			{"a truncate and then another row of the key",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{{truncate: true, truncateAt: 2000}, {steps: []step{{lo: 2000, row: cells{1, "b", "n"}}}}},
				[]string{"1|a|n|1000|2000", "1|b|n|2000|NULL"}},
			{"a truncate of what the earlier piece wrote",
				[]step{{lo: 1000, row: cells{1, "a", "n"}}},
				[]round{
					{steps: []step{{lo: 2000, row: cells{1, "b", "n"}}, {key: cells{2}, lo: 2000, row: cells{2, "x", nil}}}},
					{truncate: true, truncateAt: 2000, steps: []step{{key: cells{3}, lo: 2000, row: cells{3, "y", nil}}}},
				},
				[]string{"1|a|n|1000|2000", "3|y|NULL|2000|NULL"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := begin(t, h)
				defer r.w.Close(r.ctx)
				tt := r.create(makeTarget(h, fmt.Sprintf("staff%d_%s", i, f), scd.Type2, "id int4 key", "name text", "note text untracked"))
				withKey := func(steps []step) []step {
					steps = slices.Clone(steps)
					for i := range steps {
						if steps[i].key == nil {
							steps[i].key = cells{1}
						}
					}
					return steps
				}
				for _, s := range withKey(c.stored) {
					r.apply(tt, f, round{steps: []step{s}})
				}
				var rounds []round
				for _, p := range c.pieces {
					p.steps = withKey(p.steps)
					rounds = append(rounds, p)
				}
				r.pieces(tt, f, rounds...)
				r.expect(tt, c.want...)
				// The next transaction composes with nothing of this one.
				r.apply(tt, f, round{steps: withKey([]step{{lo: 5000, row: cells{1, "later", nil}}})})
				open := 0
				for _, line := range r.contents(tt) {
					if line == "1|later|NULL|5000|NULL" {
						open++
					}
				}
				if open != 1 {
					t.Fatalf("after the next transaction: %q", r.contents(tt))
				}
			})
		}
	})},

	{"large pieces", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(staff(h, f))
		var rows []cells
		for i := range 1000 {
			rows = append(rows, cells{i, "a", nil, 1000})
		}
		r.load(tt, f, false, rows...)
		var one, two, three round
		want := []string{}
		for i := range 1500 {
			one.steps = append(one.steps, step{key: cells{i}, lo: 2000, row: cells{i, "b", nil}})
			switch {
			case i%3 == 0: // deleted again
				two.steps = append(two.steps, step{key: cells{i}, lo: 2000})
			case i%3 == 1: // back to what it was
				two.steps = append(two.steps, step{key: cells{i}, lo: 2000, row: cells{i, "x", nil}})
				three.steps = append(three.steps, step{key: cells{i}, lo: 2000, row: cells{i, "a", absent{}}})
			}
			switch {
			case i >= 1000 && i%3 == 0:
			case i >= 1000 && i%3 == 1:
				want = append(want, fmt.Sprintf("%d|a|NULL|2000|NULL", i))
			case i >= 1000:
				want = append(want, fmt.Sprintf("%d|b|NULL|2000|NULL", i))
			case i%3 == 0:
				want = append(want, fmt.Sprintf("%d|a|NULL|1000|2000", i))
			case i%3 == 1:
				want = append(want, fmt.Sprintf("%d|a|NULL|1000|NULL", i))
			default:
				want = append(want, fmt.Sprintf("%d|a|NULL|1000|2000", i), fmt.Sprintf("%d|b|NULL|2000|NULL", i))
			}
		}
		r.pieces(tt, f, one, two, three)
		r.expect(tt, want...)
	})},
}
