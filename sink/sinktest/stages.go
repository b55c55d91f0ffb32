package sinktest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var stageTests = []test{
	{"a stage follows beside the batches and replaces the rows", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt, other := r.create(people(h, f)), r.create(makeTarget(h, "other", scd.Type1, "id int4 key", "v text"))
		r.load(tt, f, false, cells{1, "a", 1}, cells{7, "by hand", 7})
		r.load(other, f, false)
		stages, g := r.stager()
		if n, err := g.Fill(r.ctx, tt.Target, tt.copyOf(f, cells{1, "a", 1}, cells{2, "b", 2}, cells{3, "c", 3}, cells{4, "d", 4})); err != nil || n != 4 {
			t.Fatalf("Fill: %d rows, %v", n, err)
		}
		staged := target{sink.StageTarget(tt.Target)}
		write := func(first, more bool, rounds ...round) {
			t.Helper()
			b := &sink.Batch{First: first, More: more, Targets: []sink.TargetRounds{staged.part(f, rounds...)}}
			if err := g.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply to the stage: %v", err)
			}
		}
		write(true, false, round{deletes: []cells{{2}}, upserts: []cells{{3, "C", nil}}, patches: []cells{{1, absent{}, 11}}, inserts: []cells{{5, "e", 5}}})
		write(true, true, round{moves: []move{{cells{3}, cells{6, absent{}, 6}}}})
		r.apply(other, f, round{inserts: []cells{{1, "while a stage's transaction is open"}}})
		r.apply(tt, f, round{upserts: []cells{{4, "D", 4}}})
		write(false, false, round{upserts: []cells{{4, "D", 4}}})
		if err := g.Apply(r.ctx, &sink.Batch{First: true}); err != nil {
			t.Fatalf("Apply of nothing: %v", err)
		}
		r.expect(tt, "1|a|1", "4|D|4", "7|by hand|7")
		done := r.done(tt, checkpoint.Live)
		did, err := stages.Replace(r.ctx, tt.Target, sink.Replacement{Done: done})
		if err != nil {
			t.Fatal(err)
		}
		if did.Written != 3 {
			t.Errorf("replaced %+v", did)
		}
		r.expect(tt, "1|a|11", "4|D|4", "5|e|5", "6|C|6")
		if !slices.ContainsFunc(r.mark().Tables, func(c checkpoint.Table) bool { return c.Target == tt.Name && c.Since == done.Since }) {
			t.Errorf("the mark says %+v", r.mark().Tables)
		}
		r.expect(other, "1|while a stage's transaction is open")
		r.apply(tt, f, round{deletes: []cells{{1}}})
		r.expect(tt, "4|D|4", "5|e|5", "6|C|6")
	})},

	{"TRUNCATE, thousands of rows and a history", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "past", scd.Type2, "id int4 key", "v text"))
		r.load(tt, text, false)
		stages, g := r.stager()
		if _, err := g.Fill(r.ctx, tt.Target, target{sink.StageTarget(tt.Target)}.copyOf(text, cells{1, "gone"})); err != nil {
			t.Fatal(err)
		}
		var many []cells
		for i := range 3000 {
			many = append(many, cells{i, "v"})
		}
		part := target{sink.StageTarget(tt.Target)}.part(text, round{truncate: true, inserts: many})
		if err := g.Apply(r.ctx, &sink.Batch{First: true, Targets: []sink.TargetRounds{part}}); err != nil {
			t.Fatal(err)
		}
		gap := &sink.Gap{Target: tt.Name, Reason: "it differed"}
		replace := func(want sink.Replaced, gaps int) {
			t.Helper()
			did, err := stages.Replace(r.ctx, tt.Target, sink.Replacement{At: time.UnixMicro(1000), Done: r.done(tt, checkpoint.Live), Gap: gap, Mended: true})
			if err != nil || did != want {
				t.Fatalf("replaced %+v, %v; want %+v", did, err, want)
			}
			if got, err := stages.Gaps(r.ctx); err != nil || len(got) != gaps {
				t.Errorf("gaps: %+v, %v", got, err)
			}
		}
		replace(sink.Replaced{Written: 3000}, 1)
		if _, err := g.Fill(r.ctx, tt.Target, target{sink.StageTarget(tt.Target)}.copyOf(text, many...)); err != nil {
			t.Fatal(err)
		}
		replace(sink.Replaced{}, 1) // nothing differed, so nothing was missed
	}},

	{"a table without a key", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := makeTarget(h, "heap", scd.Type1, "id int4", "v text")
		tt.AppendOnly = true
		r.create(tt)
		r.load(tt, text, false, cells{1, "x"})
		stages, g := r.stager()
		if _, err := g.Fill(r.ctx, tt.Target, tt.copyOf(text, cells{1, "x"}, cells{1, "x"})); err != nil {
			t.Fatal(err)
		}
		if err := g.Apply(r.ctx, &sink.Batch{First: true, Targets: []sink.TargetRounds{target{sink.StageTarget(tt.Target)}.part(text, round{inserts: []cells{{2, "y"}}})}}); err != nil {
			t.Fatal(err)
		}
		if _, err := stages.Replace(r.ctx, tt.Target, sink.Replacement{Done: r.done(tt, checkpoint.Live)}); err != nil {
			t.Fatal(err)
		}
		r.expect(tt, "1|x", "1|x", "2|y")
	}},

	{"a deposed owner cannot write a stage", deposes, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		r.load(tt, text, false)
		_, g := r.stager()
		if _, err := g.Fill(r.ctx, tt.Target, tt.copyOf(text, cells{1, "a", 1})); err != nil {
			t.Fatal(err)
		}
		h.Expire(t)
		second := h.Open(t)
		defer second.Close(t.Context())
		if err := second.Own(t.Context(), owner(), 0); err != nil {
			t.Fatal(err)
		}
		stages, ok := second.(sink.Resyncs)
		if !ok {
			t.Fatal("it does not resync")
		}
		next, err := stages.Stager()
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close(t.Context())
		if _, err := next.Fill(t.Context(), tt.Target, tt.copyOf(text, cells{5, "e", 5})); err != nil {
			t.Fatal(err)
		}
		staged := target{sink.StageTarget(tt.Target)}
		if err := g.Apply(r.ctx, &sink.Batch{First: true, Targets: []sink.TargetRounds{staged.part(text, round{upserts: []cells{{6, "deposed", 6}}})}}); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Apply to a stage of the successor: %v, want ErrFenced", err)
		}
		if _, err := g.Fill(r.ctx, tt.Target, tt.copyOf(text, cells{7, "deposed", 7})); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Fill: %v, want ErrFenced", err)
		}
		if _, err := stages.Replace(t.Context(), tt.Target, sink.Replacement{Done: r.done(tt, checkpoint.Live)}); err != nil {
			t.Fatal(err)
		}
		r.expect(tt, "5|e|5")
	}},

	{"stages that were left behind are dropped", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		r.load(tt, text, false)
		stages, g := r.stager()
		if _, err := g.Fill(r.ctx, tt.Target, tt.copyOf(text, cells{1, "a", 1})); err != nil {
			t.Fatal(err)
		}
		open := &sink.Batch{First: true, More: true, Targets: []sink.TargetRounds{target{sink.StageTarget(tt.Target)}.part(text, round{deletes: []cells{{1}}})}}
		if err := g.Apply(r.ctx, open); err != nil {
			t.Fatal(err)
		}
		g.Close(r.ctx)
		if err := stages.Unstage(r.ctx); err != nil {
			t.Fatal(err)
		}
		if left := h.Query(t, "SELECT count(*) FROM information_schema.tables WHERE table_schema = '_tailrace' AND table_name LIKE 'stage%'"); *left[0][0] != "0" {
			t.Errorf("%s stages are left", *left[0][0])
		}
	}},
}

// notedTests are of a Stager that is a Noter.
var notedTests = []test{
	{"only what differed or was written since is compared", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
			r := begin(t, h)
			tt := r.create(makeTarget(h, fmt.Sprintf("noted_%d_%s", kind, f), kind, "id int4 key", "k text key", "v text"))
			r.load(tt, f, false)
			stages, g := r.stager()
			noter, ok := g.(sink.Noter)
			if !ok {
				return
			}
			staged := target{sink.StageTarget(tt.Target)}
			row := func(id int, v any) cells { return cells{id, "k", v} }
			var rows []cells
			for id := range 40 {
				rows = append(rows, row(id, "v"))
			}
			if _, err := g.Fill(r.ctx, tt.Target, staged.copyOf(f, rows...)); err != nil {
				t.Fatal(err)
			}
			if _, err := stages.Replace(r.ctx, tt.Target, sink.Replacement{At: time.UnixMicro(1000), Ahead: true}); err != nil {
				t.Fatal(err)
			}
			position := uint64(100)
			write := func(first, more bool, rounds ...round) {
				t.Helper()
				position++
				b := &sink.Batch{First: first, More: more, Position: change.LSN(position), Targets: []sink.TargetRounds{staged.part(f, rounds...)}}
				if err := g.Apply(r.ctx, b); err != nil {
					t.Fatalf("Apply to the stage: %v", err)
				}
			}
			write(true, true, round{deletes: []cells{{0, "k"}}})
			if _, ok, err := noter.Note(r.ctx, tt.Target); ok || err != nil {
				t.Fatalf("Note inside a transaction: %v, %v", ok, err)
			}
			write(false, false, round{upserts: []cells{row(1, "early")}})
			if noter.Noted(tt.Target) {
				t.Error("noted before Note")
			}
			if from, ok, err := noter.Note(r.ctx, tt.Target); !ok || err != nil || from != change.LSN(position) {
				t.Fatalf("Note: %v, %v, %v", from, ok, err)
			}
			write(true, false, round{upserts: []cells{row(2, "b")}, deletes: []cells{{3, "k"}}})
			if err := noter.Compare(r.ctx, tt.Target); err != nil {
				t.Fatal(err)
			}
			write(true, false, round{patches: []cells{{4, "k", "d"}}, inserts: []cells{row(50, "new")}, moves: []move{{cells{5, "k"}, row(51, absent{})}}})
			var many []cells
			for id := 100; id < 700; id++ {
				many = append(many, row(id, "many"))
			}
			write(true, false, round{inserts: many})
			h.Exec(t, "UPDATE "+sqlName(tt.Name)+" SET v = 'by hand' WHERE id = 30")
			if !noter.Noted(tt.Target) {
				t.Error("it is not noted")
			}
			if _, err := stages.Replace(r.ctx, tt.Target, sink.Replacement{At: time.UnixMicro(2000), Done: r.done(tt, checkpoint.Live), Noted: true}); err != nil {
				t.Fatal(err)
			}
			open := ""
			if kind == scd.Type2 {
				open = ` WHERE "__END_AT" IS NULL`
			}
			got := map[string]string{}
			for _, c := range h.Query(t, "SELECT id, v FROM "+sqlName(tt.Name)+open) {
				got[*c[0]] = *c[1]
			}
			want := map[string]string{"1": "early", "2": "b", "4": "d", "30": "by hand", "50": "new", "51": "v"}
			for id := range 40 {
				if key := strconv.Itoa(id); want[key] == "" && !slices.Contains([]int{0, 3, 5}, id) {
					want[key] = "v"
				}
			}
			for id := 100; id < 700; id++ {
				want[strconv.Itoa(id)] = "many"
			}
			if !maps.Equal(got, want) {
				t.Errorf("type %d holds %v", kind, got)
			}
			if left := h.Query(t, "SELECT count(*) FROM information_schema.tables WHERE table_schema = '_tailrace' AND table_name LIKE 'stage%'"); *left[0][0] != "0" {
				t.Errorf("%s tables are left", *left[0][0])
			}
			if _, err := g.Fill(r.ctx, tt.Target, staged.copyOf(f, row(1, "v"))); err != nil {
				t.Fatal(err)
			}
			if _, ok, err := noter.Note(r.ctx, tt.Target); !ok || err != nil {
				t.Fatalf("Note: %v, %v", ok, err)
			}
			write(true, false, round{truncate: true})
			if noter.Noted(tt.Target) {
				t.Error("a TRUNCATE says all that may differ")
			}
			if err := stages.Unstage(r.ctx); err != nil {
				t.Fatal(err)
			}
			g.Close(r.ctx)
			if err := r.w.Close(r.ctx); err != nil {
				t.Fatal(err)
			}
		}
	})},
}

// stager opens what makes stages; the test's end closes it.
func (r *rig) stager() (sink.Resyncs, sink.Stager) {
	r.t.Helper()
	stages, ok := r.w.(sink.Resyncs)
	if !ok {
		r.t.Fatal("it does not resync")
	}
	g, err := stages.Stager()
	if err != nil {
		r.t.Fatalf("Stager: %v", err)
	}
	r.t.Cleanup(func() { g.Close(r.ctx) })
	return stages, g
}
