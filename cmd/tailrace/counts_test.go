package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// What status counts of a target's events, each event is counted in once, wherever
// the program is killed.
func TestCountsOfEventsSurviveKills(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `relations:
  feed: {path: "feed/*.jsonl", format: jsonl, columns: {k: bigint, op: string, n: bigint, a: string}}
flows:
  - {source: feed, target: now, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", apply_as_truncates: "op = 'T'", except_column_list: [op, n, _rescued_data], tombstone_retention: 1s}
  - {source: feed, target: past, stored_as_scd_type: 2, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, _rescued_data]}`)
		counted := func(target string) (c counts) {
			t.Helper()
			var st status
			if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &st); err != nil {
				t.Fatal(err)
			}
			for _, m := range st.Sequenced {
				if m.Target == target || strings.HasSuffix(m.Target, "."+target) {
					c = m.Counts
				}
			}
			return c
		}
		expect := func(target string, want counts) {
			t.Helper()
			if got := counted(target); got != want {
				t.Errorf("%s counts %+v, want %+v", target, got, want)
			}
		}
		// killed runs until a file's batch is written but not committed, then until it is
		// committed, and once more.
		killed := func() {
			t.Helper()
			for _, at := range []string{"rows written:1", "applied:1"} {
				p := r.start(t, []string{"TAILRACE_KILL_AT=" + at})
				if code := p.wait(t, time.Minute); code != -1 {
					t.Fatalf("it was not killed at %q but ended with %d\n%s", at, code, tail(p.output.String()))
				}
			}
			r.once(t)
		}
		r.once(t)
		r.put(t, "feed/1.jsonl", `{"k":1,"op":"U","n":10,"a":"x"}`, `{"k":2,"op":"U","n":10,"a":"x"}`, `{"k":3,"op":"D","n":30}`)
		r.once(t)
		expect("now", counts{})
		expect("past", counts{})
		// A late one, a tie, and a later one.
		r.put(t, "feed/2.jsonl", `{"k":1,"op":"U","n":5,"a":"late"}`, `{"k":2,"op":"U","n":10,"a":"tie"}`, `{"k":1,"op":"U","n":11,"a":"y"}`)
		time.Sleep(1100 * time.Millisecond) // the delete's retention
		killed()
		expect("past", counts{Late: 1, Ties: 1})
		expect("now", counts{Late: 1, Ties: 1, Forgotten: 1})
		// Of an unknown key below the forgotten delete, then a truncate, then below it.
		r.put(t, "feed/3.jsonl", `{"k":4,"op":"U","n":20,"a":"z"}`, `{"k":null,"op":"T","n":40}`)
		killed()
		r.put(t, "feed/4.jsonl", `{"k":5,"op":"U","n":35,"a":"z"}`, `{"k":5,"op":"U","n":41,"a":"z"}`)
		r.once(t)
		r.holds(t, "now", []string{"k", "a"}, "5 z")
		got := counted("now")
		if want := (counts{Late: 1, Ties: 1, Forgotten: 1, Truncated: got.Truncated, Resurrected: got.Resurrected}); got != want || got.Truncated < 1 || got.Truncated+got.Resurrected != 2 {
			t.Errorf("now counts %+v, want two truncated or beyond the horizon", got)
		}
		contains(t, r.must(t, "status"), "POSSIBLY RESURRECTED")
		// All files come again, in one batch with the truncate above all but one event.
		r.once(t, "--overwrite")
		expect("now", counts{Truncated: 8})
	})
}
