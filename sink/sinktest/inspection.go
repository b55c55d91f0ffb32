package sinktest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tailrace/scd"
	"tailrace/sink"
)

var inspectionTests = []test{
	{"Scan and Canonical agree", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		// The form of the source rows is the binary one where every column can be
		// binary: what the pipeline asks of the source too.
		tt := r.create(makeTarget(h, "t", scd.Type1, "name text", "id int4 key", "n int8"))
		log := r.create(makeTarget(h, "log", scd.Type1, "a text", "n int8"))
		history := r.create(makeTarget(h, "history", scd.Type2, "name text", "id int4 key", "n int8"))
		rows := []cells{{"a", 1, 10}, {nil, 2, nil}, {"", 3, -5}, {"ä\t\\N", -4, 1 << 40}}
		r.apply(tt, binary, round{inserts: rows})
		r.apply(log, binary, round{inserts: []cells{{"x", 1}, {"x", 1}, {nil, 2}}})
		var steps []step
		for _, row := range rows {
			steps = append(steps, step{key: cells{row[1]}, lo: 1000, row: row})
		}
		r.apply(history, binary, round{steps: steps})
		r.apply(history, binary, round{steps: []step{{key: cells{9}, lo: 1000, row: cells{"gone", 9, 9}}}})
		r.apply(history, binary, round{steps: []step{{key: cells{9}, lo: 2000}, {key: cells{1}, lo: 2000, row: cells{"changed", 1, 10}}}})

		r.wantScan(tt, rows...)
		r.wantScan(log, cells{"x", 1}, cells{"x", 1}, cells{nil, 2})
		r.wantScan(history, append([]cells{{"changed", 1, 10}}, rows[1:]...)...)
	}},

	{"Canonical tells rows apart that only look alike", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text", "b text"))
		seen := map[string]cells{}
		for _, row := range []cells{{1, "", nil}, {1, nil, ""}, {1, "ab", "c"}, {1, "a", "bc"}, {1, "NULL", "\\N"}, {1, nil, nil}, {2, nil, nil}} {
			out, n, err := r.w.Canonical(tt.Target, tt.row(binary, row), []byte("prefix"))
			if err != nil {
				t.Fatalf("Canonical: %v", err)
			}
			if !bytes.HasPrefix(out, []byte("prefix")) {
				t.Fatal("Canonical does not append")
			}
			out = out[len("prefix"):]
			if n <= 0 || n > len(out) {
				t.Fatalf("the key is %d of %d bytes", n, len(out))
			}
			if old, ok := seen[string(out)]; ok {
				t.Fatalf("%v and %v have one form", old, row)
			}
			seen[string(out)] = row
		}
	}},

	{"Invariants find what was planted", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "history", scd.Type2, "id int4 key", "a text"))
		r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "a"}}}})
		r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "b"}}, {key: cells{2}, lo: 2000, row: cells{2, "b"}}}})
		check := func(want int) {
			t.Helper()
			bad, err := r.w.Invariants(r.ctx, tt.Target)
			if err != nil {
				t.Fatalf("Invariants: %v", err)
			}
			if (len(bad) > 0) != (want > 0) {
				t.Fatalf("Invariants say %q, want %d violated", bad, want)
			}
		}
		check(0)
		at := func(s string) string { return "TIMESTAMP WITH TIME ZONE '" + s + "'" }
		for _, plant := range []string{
			// a second open version, an overlap, an empty interval, a backward one
			"(1, 'x', " + at("2001-01-01 00:00:00+00") + ", NULL)",
			"(1, 'x', " + at("1969-01-01 00:00:00+00") + ", " + at("1970-01-01 00:00:01+00") + ")",
			"(3, 'x', " + at("2001-01-01 00:00:00+00") + ", " + at("2001-01-01 00:00:00+00") + ")",
			"(3, 'x', " + at("2001-01-01 00:00:00+00") + ", " + at("2000-01-01 00:00:00+00") + ")",
		} {
			h.Exec(t, "INSERT INTO "+sqlName(tt.Name)+" VALUES "+plant)
			check(1)
			h.Exec(t, "DELETE FROM "+sqlName(tt.Name)+" WHERE a = 'x'")
			check(0)
		}
	}},

	{"Show prints rows by key and start", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "name text", "id int4 key"))
		r.apply(tt, text, round{inserts: []cells{{"ten", 10}, {nil, 9}, {"", -1}}})
		got := r.show(sink.ShowQuery{Target: tt.Target})
		want := "name|id; |-1; NULL|9; ten|10"
		if got != want {
			t.Fatalf("Show printed %q, want %q", got, want)
		}
	}},

	{"Show prints a history, whole and as of an instant", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type2, "id int4 key", "name text"))
		const second = 1_000_000
		r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 10 * second, row: cells{1, "a"}}, {key: cells{2}, lo: 30 * second, row: cells{2, "z"}}}})
		r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 20 * second, row: cells{1, "b"}}}})
		r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 40 * second}}})
		names := func(q sink.ShowQuery) string {
			q.Target = tt.Target
			var out []string
			err := r.w.Show(r.ctx, q, func(cells []*string) error {
				if len(cells) != 4 {
					t.Fatalf("a line of %d cells, want 4", len(cells))
				}
				out = append(out, *cells[0]+*cells[1])
				return nil
			})
			if err != nil {
				t.Fatalf("Show: %v", err)
			}
			return strings.Join(out, " ")
		}
		for _, c := range []struct{ asOf, want string }{
			{"", "idname 1a 1b 2z"},
			{"1970-01-01 00:00:05+00", "idname"},
			{"1970-01-01 00:00:10+00", "idname 1a"},
			{"1970-01-01 00:00:19.999999+00", "idname 1a"},
			{"1970-01-01 00:00:20+00", "idname 1b"},
			{"1970-01-01 00:00:30+00", "idname 1b 2z"},
			{"1970-01-01 00:00:40+00", "idname 2z"},
		} {
			if got := names(sink.ShowQuery{AsOf: c.asOf}); got != c.want {
				t.Errorf("as of %q: %q, want %q", c.asOf, got, c.want)
			}
		}
		if err := r.w.Show(r.ctx, sink.ShowQuery{Target: tt.Target, AsOf: "yesterday's' OR 1"}, func([]*string) error { return nil }); err == nil {
			t.Error("an instant that is none was taken")
		}
	}},

	{"Show stops when told", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		rd := round{}
		for i := range 500 {
			rd.inserts = append(rd.inserts, cells{i, "a", 1})
		}
		r.apply(tt, text, rd)
		stop := fmt.Errorf("enough")
		for range 3 {
			n := 0
			err := r.w.Show(r.ctx, sink.ShowQuery{Target: tt.Target}, func([]*string) error {
				n++
				if n == 3 {
					return stop
				}
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "enough") || n != 3 {
				t.Fatalf("Show: %d lines, %v", n, err)
			}
			err = r.w.Scan(r.ctx, tt.Target, func(_, _ []byte) error { return stop })
			if err == nil || !strings.Contains(err.Error(), "enough") {
				t.Fatalf("Scan: %v", err)
			}
		}
		r.apply(tt, text, round{truncate: true})
		r.expect(tt)
	}},
}

// wantScan compares a scan with the canonical forms of rows.
func (r *rig) wantScan(t target, rows ...cells) {
	r.t.Helper()
	var got, want []string
	err := r.w.Scan(r.ctx, t.Target, func(key, row []byte) error {
		got = append(got, fmt.Sprintf("%x of %x", key, row))
		return nil
	})
	if err != nil {
		r.t.Fatalf("Scan: %v", err)
	}
	for _, row := range rows {
		out, n, err := r.w.Canonical(t.Target, t.row(binary, row), nil)
		if err != nil {
			r.t.Fatalf("Canonical: %v", err)
		}
		want = append(want, fmt.Sprintf("%x of %x", out[:n], out))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Fatalf("Scan of %s gives\n  %s\nCanonical\n  %s", t.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func (r *rig) show(q sink.ShowQuery) string {
	r.t.Helper()
	var out []string
	err := r.w.Show(r.ctx, q, func(cells []*string) error {
		var line []string
		for _, c := range cells {
			if c == nil {
				line = append(line, "NULL")
			} else {
				line = append(line, *c)
			}
		}
		out = append(out, strings.Join(line, "|"))
		return nil
	})
	if err != nil {
		r.t.Fatalf("Show: %v", err)
	}
	return strings.Join(out, "; ")
}
