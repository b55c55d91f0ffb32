package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// refresh takes a snapshot out of turn; --full makes a target anew with all its flows: in
// a process of its own, and by a running daemon.
func TestAFlowIsRefreshed(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		for _, daemon := range []bool{false, true} {
			r := newRig(t, server, kind, `create table feed (k int primary key, v text, n bigint); insert into feed values (1,'a',1),(2,'b',2);
				create table whole (k int primary key, v text); insert into whole values (1,'x'),(5,'y')`,
				`flows:
  - {source: feed, source_kind: feed, target: events, keys: [k], sequence_by: n, except_column_list: [n], skip_change_commits: [update]}
  - {target: shots, snapshot: {relation: whole, version: counter}}
  - {target: past, stored_as_scd_type: 2, snapshot: {relation: whole, version: counter}}
`)
			r.once(t)
			var p *proc
			if daemon {
				p = r.start(t, nil)
				r.following(t, p)
				eventually(t, time.Minute, "the snapshots of the start", func() bool { return strings.Count(p.output.String(), "snapshot applied") == 2 })
			}
			r.exec(t, `update whole set v = v || '!'`, `update feed set v = 'mended' where k = 1`) // no event of a feed
			contains(t, r.must(t, "refresh", "--flow", "shots"), "shots is up to date, with the snapshot at version")
			contains(t, r.must(t, "refresh", "--flow", "events", "--full"), "events was made anew")
			r.refused(t, 3, []string{"earlier snapshots are not there any more", "--force"}, "refresh", "--flow", "past", "--full")
			contains(t, r.must(t, "refresh", "--flow", "past", "--full", "--force"), "past was made anew, with the snapshot at version 0")
			if p != nil {
				p.stop(t)
			}
			r.holds(t, "events", []string{"k", "v"}, "1 mended", "2 b")
			r.holds(t, "past", []string{"k", "v", "__START_AT", "__END_AT"}, "1 x! 0 ∅", "5 y! 0 ∅")
			r.holds(t, "shots", []string{"k", "v"}, "1 x!", "5 y!")
			r.once(t)
			r.same(t)
			r.refused(t, 2, []string{"there is no such flow"}, "refresh", "--flow", "nothing")
		}
	})
}

// What filled a target and is gone keeps it from being made anew.
func TestAFullRefreshIsRefusedWhereItsFilesAreGone(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `relations:
  seed: {path: "seed/*.jsonl", format: jsonl, columns: {k: bigint, v: string, n: bigint}}
  live: {path: "live/*.jsonl", format: jsonl, columns: {k: bigint, v: string, n: bigint}}
flows:
  - {source: seed, target: t, name: seed, once: true, keys: [k], sequence_by: n, column_list: [k, v]}
  - {source: live, target: t, name: live, keys: [k], sequence_by: n, column_list: [k, v]}
`)
		r.put(t, "seed/a.jsonl", `{"k":1,"v":"seed","n":1}`)
		r.put(t, "live/a.jsonl", `{"k":2,"v":"live","n":2}`)
		r.once(t)
		contains(t, r.must(t, "refresh", "--flow", "live", "--full"), "t was made anew")
		r.holds(t, "t", []string{"k", "v"}, "1 seed", "2 live")
		if err := os.Remove(filepath.Join(r.dir, "seed", "a.jsonl")); err != nil {
			t.Fatal(err)
		}
		r.refused(t, 3, []string{"flow seed took 1 files that are not there any more", "--force"}, "refresh", "--flow", "live", "--full")
		r.holds(t, "t", []string{"k", "v"}, "1 seed", "2 live")
		contains(t, r.must(t, "refresh", "--flow", "live", "--full", "--force"), "t was made anew")
		r.holds(t, "t", []string{"k", "v"}, "2 live")
		r.same(t)
	})
}

// A history whose tracked columns were changed is decided anew from its events.
func TestAHistoryIsRebuiltAfterItsTrackedColumnsChanged(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (k int, a text, b text, n bigint);
			insert into feed select g, 'a', 'b'||v, v from generate_series(1,300) g, generate_series(1,4) v`,
			`flows:
  - {source: feed, source_kind: feed, target: t, stored_as_scd_type: 2, keys: [k], sequence_by: n, except_column_list: [n], track_history_column_list: [a]}
`)
		r.env = []string{"TAILRACE_BATCH_MAX_ROWS=100"}
		r.once(t)
		if got := r.held(t, "select count(*) from t"); got[0][0] != "300" {
			t.Fatal(got)
		}
		r.reconfigure(t, "track_history_column_list: [a]", "track_history_column_list: [a, b]")
		r.refused(t, 3, []string{"was built as", "--rebuild-history"}, "run", "--once")
		contains(t, r.must(t, "refresh", "--flow", "t", "--rebuild-history"), "300 keys")
		r.holds(t, "t", []string{"k", "b", "__START_AT", "__END_AT"}, func() (want []string) {
			for k := range 300 {
				for v, end := range strings.Fields("2 3 4 ∅") {
					want = append(want, strings.Join([]string{strconv.Itoa(k + 1), "b" + strconv.Itoa(v+1), strconv.Itoa(v + 1), end}, " "))
				}
			}
			return want
		}()...)
		r.exec(t, `insert into feed values (1,'a','late',2),(2,'z','b4',9)`)
		r.once(t)
		r.same(t)
		r.refused(t, 2, []string{"there is no such flow"}, "refresh", "--flow", "nothing", "--rebuild-history")
	})
}
