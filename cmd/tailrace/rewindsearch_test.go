package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// everywhere is what all targets hold and what is remembered of their events.
func (r *rig) everywhere(t testing.TB, kind string) string {
	t.Helper()
	hex := map[string]string{"duckdb": "hex(%s)", "mysql": "hex(%s)", "postgres": "encode(%s, 'hex')"}[kind]
	quoted := map[string]string{"duckdb": `"%s"`, "mysql": "`%s`", "postgres": `"%s"`}[kind]
	all := r.all(t)
	name := r.held(t, "select pipeline from _tailrace.marks where slot = '"+r.slot(t)+"'")[0][0]
	records, heads, place := "records", "sequenced", "at"
	if kind == "duckdb" {
		records, heads, place = "remembered", "heads", "place"
	}
	lists := r.held(t, "select target_table, "+records+" from _tailrace."+heads+" where pipeline = '"+name+"' order by target_table")
	if len(lists) != 2 {
		t.Fatalf("%d targets remember events", len(lists))
	}
	for _, of := range lists {
		query := "select "
		for _, column := range []string{"key", "seq", place, "body"} {
			query += fmt.Sprintf(hex+", ", fmt.Sprintf(quoted, column))
		}
		all += "remembered of " + of[0] + "\n"
		for _, row := range sortedRows(r.held(t, query+"tombstone from _tailrace."+fmt.Sprintf(quoted, of[1]))) {
			all += row + "\n"
		}
	}
	return all
}

func (r *rig) slot(t testing.TB) string {
	t.Helper()
	return r.one(t, "select slot_name from pg_replication_slots where database = current_database() and slot_name not like '%keep%'")
}

// Random work with points on real servers: a rewind to any of them gives what was there,
// to the byte, with what is remembered; killed at any moment, a reader sees the old state or
// the restored one; a replay, killed or not, gives every later point and the end.
func TestRandomRewindsGiveWhatWasThere(t *testing.T) {
	server := dbtest.Postgres(t)
	runs := 5 // of each of three destinations
	if os.Getenv("TAILRACE_SOAK") != "" {
		runs = 34
	}
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, rewindTables, rewindFlows)
		r.once(t)
		var labels []string
		states := map[string]string{}
		for run := range runs {
			for n := range 1 + rnd.IntN(2) {
				label := fmt.Sprintf("run %d point %d", run, n)
				r.must(t, "checkpoint", "create", "--label", label)
				labels = append(labels, label)
				states[label] = r.everywhere(t, kind)
				r.churn(t, rnd)
				r.once(t)
			}
			end := r.everywhere(t, kind)
			is := func(what, want string) {
				t.Helper()
				if got := r.everywhere(t, kind); got != want {
					t.Fatalf("run %d, %s: the targets or what is remembered are not as they were\n got %s\nwant %s", run, what, got, want)
				}
			}
			at := rnd.IntN(len(labels))
			to := labels[at]
			if run%2 == 1 {
				p := start(t, nil, r.args("rewind", "--to", to, "--yes")...)
				time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
				p.kill()
				<-p.done
				if got := r.everywhere(t, kind); got != end && got != states[to] {
					t.Fatalf("run %d: after a kill neither the old state nor the restored one stands", run)
				}
			}
			r.must(t, "rewind", "--to", to, "--yes")
			is("rewound to "+to, states[to])
			if run%2 == 1 {
				p := start(t, nil, r.args("replay")...)
				time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
				p.kill()
				<-p.done
			} else if later := at + rnd.IntN(len(labels)-at); later > at {
				r.must(t, "replay", "--until", labels[later])
				is("replayed until "+labels[later], states[labels[later]])
			}
			r.must(t, "replay")
			is("replayed to the end", end)
			labels = labels[:at+1] // those behind are no choice any more
		}
		r.same(t)
	})
}
