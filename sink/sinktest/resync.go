package sinktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

var resyncTests = []test{
	{"a whole copy takes the place of a target's rows", nil, inBothForms(wholeReplaced)},
	{"what a copy met takes the place of what was met before", nil, metReplaced},
	{"a part takes the place of its rows and of no others", nil, inBothForms(partReplaced)},
	{"a part of a history is one step of its keys", nil, inBothForms(partOfAHistoryReplaced)},
}

func metReplaced(t *testing.T, h Harness) {
	r := begin(t, h)
	tt := r.create(makeTarget(h, "judged", scd.Type1, "id int4 key"))
	one := func(flow string, n int64) ([]sink.Aside, []sink.Violation) {
		return []sink.Aside{{Flow: flow, Target: tt.Name, Reason: fmt.Sprint(n), Time: time.Unix(1, 0), Event: []byte("{}")}},
			[]sink.Violation{{Target: tt.Name, Flow: flow, Expectation: "x", Met: "drop", Events: n}}
	}
	b := r.batch(tt.part(text, round{inserts: []cells{{1}}}))
	for _, flow := range []string{"f", "g"} {
		aside, met := one(flow, 5)
		b.Aside, b.Violations = append(b.Aside, aside...), append(b.Violations, met...)
	}
	if err := r.w.Apply(r.ctx, b); err != nil {
		t.Fatal(err)
	}
	judged := &sink.Judged{Flow: "f"}
	judged.Aside, judged.Met = one("f", 1)
	r.replace(tt, text, sink.Replacement{Judged: judged}, sink.Replaced{Written: 1}, cells{1}, cells{2})
	r.reopen()
	var got []string
	if err := r.memory().Quarantine(r.ctx, "", func(a sink.Aside) error { got = append(got, a.Flow+" "+a.Reason); return nil }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	met, err := r.memory().Violations(r.ctx)
	if err != nil || fmt.Sprint(got) != "[f 1 g 5]" || len(met) != 2 || met[0].Events != 1 || met[1].Events != 5 {
		t.Fatalf("in quarantine %q, met %+v, %v", got, met, err)
	}
}

func (r *rig) stages() sink.Resyncs {
	r.t.Helper()
	s, ok := r.w.(sink.Resyncs)
	if !ok {
		r.t.Fatal("the destination cannot copy a table again")
	}
	return s
}

// replace stages rows and has them replace those of a target.
func (r *rig) replace(t target, f form, what sink.Replacement, want sink.Replaced, rows ...cells) {
	r.t.Helper()
	data := target{&scd.Target{Name: t.Name, Columns: t.Columns}} // of either type the data columns alone
	if n, err := r.stages().Stage(r.ctx, t.Target, data.copyOf(f, rows...)); err != nil || n != int64(len(rows)) {
		r.t.Fatalf("Stage: %d rows, %v", n, err)
	}
	what.Done = r.done(t, checkpoint.Live)
	done, err := r.stages().Replace(r.ctx, t.Target, what)
	if err != nil {
		r.t.Fatalf("Replace: %v", err)
	}
	if done != want {
		r.t.Fatalf("Replace says %+v, want %+v", done, want)
	}
	if left := r.h.Query(r.t, "SELECT count(*) FROM information_schema.tables WHERE table_schema = '_tailrace' AND table_name LIKE 'stage%'"); *left[0][0] != "0" {
		r.t.Fatalf("%s stages are left", *left[0][0])
	}
}

// keysLike gives the keys, as Scan spells them, of the rows that hold a text.
func (r *rig) keysLike(t target, text string) (keys []change.Row) {
	r.t.Helper()
	err := r.w.Scan(r.ctx, t.Target, func(key, row []byte) error {
		if strings.Contains(string(row), text) {
			keys = append(keys, slices.Clone(change.Row(key)))
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("Scan: %v", err)
	}
	return keys
}

func wholeReplaced(t *testing.T, h Harness, f form) {
	r := begin(t, h)
	tt := r.create(makeTarget(h, "whole_"+f.String(), scd.Type1, "id int4 key", "v text", "who text key"))
	r.load(tt, f, false, cells{1, "same", "a"}, cells{2, "old", "a"}, cells{3, "too many", "a"})
	r.replace(tt, f, sink.Replacement{}, sink.Replaced{Removed: 1, Written: 2}, cells{1, "same", "a"}, cells{2, "new", "a"}, cells{4, nil, "a"})
	r.expect(tt, "1|same|a", "2|new|a", "4|NULL|a")
	r.replace(tt, f, sink.Replacement{}, sink.Replaced{}, cells{1, "same", "a"}, cells{2, "new", "a"}, cells{4, nil, "a"})
	r.reopen()
	r.expect(tt, "1|same|a", "2|new|a", "4|NULL|a")
}

func partReplaced(t *testing.T, h Harness, f form) {
	r := begin(t, h)
	for i, columns := range [][]string{{"id int4 key", "v text"}, {"v text", "id int4 key", "who text key"}, {"id int4 key", "who text key"}} {
		tt := r.create(makeTarget(h, fmt.Sprintf("part%d_%s", i, f), scd.Type1, columns...))
		row := func(id int, v string) (out cells) {
			for _, c := range tt.Columns {
				out = append(out, map[string]any{"id": id, "v": v, "who": "who " + v}[c.Name])
			}
			return out
		}
		var rows []cells
		for id := range 500 {
			rows = append(rows, row(id, "kept"))
		}
		rows = append(rows, row(1000, "gone"), row(1001, "gone"))
		r.load(tt, f, false, rows...)
		before := r.contents(tt)
		gone := r.keysLike(tt, "gone")
		if len(gone) != 2 {
			t.Fatalf("%d keys are to go", len(gone))
		}
		// Nothing staged, and nothing that goes: nothing happens.
		r.replace(tt, f, sink.Replacement{Part: &sink.Part{}}, sink.Replaced{})
		if got := r.contents(tt); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Fatal("an empty part has touched rows")
		}
		r.replace(tt, f, sink.Replacement{Part: &sink.Part{Gone: gone}}, sink.Replaced{Removed: 2, Written: 2}, row(7, "new"), row(2000, "new"), row(8, "kept"))
		n := 501
		if len(tt.Keys()) > 1 {
			n++ // the first is of another key
		}
		got := r.contents(tt)
		if len(got) != n || strings.Contains(strings.Join(got, " "), "gone") || strings.Count(strings.Join(got, " "), "new") < 2 {
			t.Fatalf("%d rows are there, want %d", len(got), n)
		}
		r.reopen()
	}
}

func partOfAHistoryReplaced(t *testing.T, h Harness, f form) {
	r := begin(t, h)
	tt := r.create(makeTarget(h, "steps_"+f.String(), scd.Type2, "id int4 key", "v text", "u text untracked"))
	const start, at = 1_600_000_000_000_000, 1_700_000_000_000_000
	r.load(tt, f, false, cells{1, "same", "u", start}, cells{2, "old", "u", start}, cells{3, "gone", "u", start}, cells{4, "beside", "u", start}, cells{5, "free", "u", start})
	r.replace(tt, f, sink.Replacement{At: time.UnixMicro(at), Part: &sink.Part{Gone: r.keysLike(tt, "gone")},
		Gap: &sink.Gap{Target: tt.Name, From: change.LSN(5), To: change.LSN(6), Reason: "because"}},
		sink.Replaced{Removed: 2, Written: 2}, cells{1, "same", "u"}, cells{2, "new", "u"}, cells{6, "more", nil}, cells{5, "free", "other"})
	s, a := fmt.Sprint(start), fmt.Sprint(at)
	want := []string{"1|same|u|" + s + "|NULL", "2|old|u|" + s + "|" + a, "2|new|u|" + a + "|NULL", "3|gone|u|" + s + "|" + a,
		"4|beside|u|" + s + "|NULL", "5|free|other|" + s + "|NULL", "6|more|NULL|" + a + "|NULL"}
	r.expect(tt, want...)
	r.replace(tt, f, sink.Replacement{At: time.UnixMicro(at + 1), Part: &sink.Part{}}, sink.Replaced{}, cells{2, "new", "u"})
	r.reopen()
	r.expect(tt, want...)
	gaps, err := r.stages().Gaps(r.ctx)
	gaps = slices.DeleteFunc(gaps, func(g sink.Gap) bool { return g.Target != tt.Name })
	if err != nil || len(gaps) != 1 || gaps[0].Reason != "because" || gaps[0].To != change.LSN(6) {
		t.Fatalf("gaps %+v, %v", gaps, err)
	}
	if found, err := r.w.Invariants(r.ctx, tt.Target); err != nil || len(found) != 0 {
		t.Fatalf("invariants: %v %v", found, err)
	}
}
