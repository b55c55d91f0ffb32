package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// rewindTables: one without a key, one whose keys move, one that is truncated, and a feed.
const rewindTables = `create table items (id int primary key, v text, n int);
insert into items select g, 'v'||g, g from generate_series(1, 200) g;
create table journal (what text);
insert into journal values ('a'), ('a'), ('b');
create table scratch (id int primary key, v int);
insert into scratch select g, g from generate_series(1, 50) g;
create table feed (k int, v text, op text, n bigint);
insert into feed select g % 20, 'f'||g, 'U', g from generate_series(1, 60) g`

const rewindFlows = `rewind: {keep: 6h}
flows:
  - {source: items}
  - {source: items, target: items_history, stored_as_scd_type: 2}
  - {source: journal}
  - {source: scratch, change_feed: true}
  - {source: feed, target: current, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", column_list: [k, v]}
  - {source: feed, target: past, stored_as_scd_type: 2, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", column_list: [k, v]}
`

var rewindColumns = map[string][]string{
	"items": {"id", "v", "n"}, "items_history": {"id", "v", "n", "__START_AT", "__END_AT"}, "journal": {"what"}, "scratch": {"id", "v"},
	"current": {"k", "v"}, "past": {"k", "v", "__START_AT", "__END_AT"},
}

// all is what all targets hold.
func (r *rig) all(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for _, target := range slices.Sorted(func(yield func(string) bool) {
		for name := range rewindColumns {
			if !yield(name) {
				return
			}
		}
	}) {
		b.WriteString(target + "\n" + strings.Join(sortedRows(r.held(t, "select "+columnsOf(rewindColumns[target]...)+` from "`+target+`"`)), "\n") + "\n")
	}
	return b.String()
}

func (r *rig) isAll(t testing.TB, what, want string) {
	t.Helper()
	if got := r.all(t); got != want {
		g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
		slices.Sort(g)
		slices.Sort(w)
		t.Fatalf("%s: the targets are not as they were:\n%s", what, differing(g, w))
	}
}

// churn changes every table in several transactions.
func (r *rig) churn(t testing.TB, rnd *rand.Rand) {
	t.Helper()
	for range 3 {
		a, b := 1+rnd.IntN(200), 1000+rnd.IntN(1_000_000)
		r.exec(t, fmt.Sprintf(`begin; update items set n = n + 1 where id %% 7 = %d; delete from items where id = %d; update items set id = %d where id = %d; insert into journal values ('j%d'), ('a');
			update scratch set v = v + 1 where id %% 3 = 0; insert into feed values (%d, 'late', 'U', %d), (%d, null, 'D', %d), (%d, 'new', 'U', %d); commit`,
			a%7, a, b, a+1, b, a%20, rnd.IntN(60), (a+1)%20, b, 20+a%20, b))
	}
	if rnd.IntN(2) == 0 {
		r.exec(t, fmt.Sprintf(`truncate scratch; insert into scratch values (%d, 1)`, rnd.IntN(100)))
	}
}

type listedPoint struct {
	Number     int64
	Label      string
	Position   string
	Replayable bool
	Gone       bool
	CommitTime time.Time `json:"commit_time"`
}

func (r *rig) listed(t testing.TB) (list []listedPoint) {
	t.Helper()
	stdout, stderr, code := tailrace(t, "checkpoint", "list", "-c", r.config, "--json")
	if code != 0 {
		t.Fatalf("checkpoint list: exit %d\n%s", code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// The whole story: points, a rewind that is asked about, refused and done, and a replay.
func TestTargetsAreRewoundAndReplayed(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := rand.New(rand.NewPCG(1, 2))
		r := newRig(t, server, kind, rewindTables, rewindFlows)
		r.once(t)
		r.churn(t, rnd)
		r.once(t)
		good := r.all(t)
		contains(t, r.must(t, "checkpoint", "create", "--label", "good"), "(good)")
		r.churn(t, rnd)
		r.once(t)
		r.must(t, "checkpoint", "create", "--label", "bad")
		bad := r.all(t)
		r.churn(t, rnd)
		r.once(t)
		end := r.all(t)
		points := r.listed(t)
		if len(points) != 3 || points[1].Label != "good" || !points[0].Replayable {
			t.Fatalf("points: %+v", points)
		}

		r.refused(t, 2, []string{"pass --yes"}, "rewind", "--to", "good")
		r.refused(t, 3, []string{"is no rewind point's label"}, "rewind", "--to", "nonsense", "--yes")
		r.refused(t, 3, []string{"no rewind point lies at or before"}, "rewind", "--to", "0/1", "--yes")
		contains(t, r.must(t, "rewind", "--to", "2999-01-01T00:00:00Z", "--yes"), "nothing to do")
		contains(t, r.must(t, "rewind", "--to", "good", "--dry-run"), "rewind to point 2 (good)", "RESTORED", "items_history", "no choice any more: points 3")
		r.isAll(t, "a dry run", end)

		contains(t, r.must(t, "rewind", "--to", "good", "--yes"), "rewound to point 2")
		r.isAll(t, "the rewind", good)
		contains(t, r.must(t, "rewind", "--to", "good", "--yes"), "nothing to do")
		r.refused(t, 3, []string{"no rewind point's label"}, "rewind", "--to", "bad", "--yes")
		r.must(t, "replay", "--until", "bad")
		r.isAll(t, "the replay up to a point", bad)
		r.must(t, "replay")
		r.isAll(t, "the replay", end)
		r.same(t)

		// By its time, which is that of its newest commit; then back to the first.
		r.must(t, "rewind", "--yes", "--to", points[1].CommitTime.Format(time.RFC3339Nano))
		r.isAll(t, "the rewind to a time", good)
		r.must(t, "rewind", "--yes", "--to", "1")
		p := r.start(t, nil)
		r.following(t, p)
		eventually(t, 30*time.Second, "the stream is level", func() bool {
			return r.one(t, "select bool_and(confirmed_flush_lsn >= '"+points[2].Position+"') from pg_replication_slots where database = current_database() and slot_name not like '%keep%'") == "t"
		})
		contains(t, r.must(t, "checkpoint", "create", "--label", "live"), "(live)")
		r.refused(t, 3, nil, "rewind", "--to", "1", "--yes")
		contains(t, r.must(t, "status"), "rewind", "points, the oldest at "+points[0].Position)
		contains(t, r.must(t, "checkpoint", "list"), "live")
		p.stop(t)
		r.once(t)
		r.isAll(t, "the daemon behind a rewind", end)
		r.same(t)

		r.reconfigure(t, "rewind: {keep: 6h}\n", "")
		contains(t, r.once(t), "rewind is not configured any more")
		contains(t, r.must(t, "checkpoint", "list"), "not configured")
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
	})
}

// A subset is restored, the others pass over what they hold; a table that was added and one
// that was copied again since stay as they are.
func TestSomeFlowsAreRewoundAndOthersStay(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		rnd := rand.New(rand.NewPCG(3, 4))
		r := newRig(t, server, kind, rewindTables, rewindFlows)
		r.once(t)
		r.churn(t, rnd)
		r.once(t)
		r.must(t, "checkpoint", "create", "--label", "good")
		good := r.held(t, `select count(*), cast(sum("n") as varchar(20)) from "items"`)
		r.churn(t, rnd)
		r.once(t)
		end := r.all(t)
		out := r.must(t, "rewind", "--to", "good", "--flow", "items", "--flow", "current", "--yes")
		contains(t, out, "not asked for", "catching")
		if got := r.held(t, `select count(*), cast(sum("n") as varchar(20)) from "items"`); fmt.Sprint(got) != fmt.Sprint(good) {
			t.Errorf("items: %v, want %v", got, good)
		}
		r.must(t, "replay")
		r.isAll(t, "the replay", end)

		r.exec(t, `create table added (id int primary key); insert into added values (1), (2)`)
		r.reconfigure(t, "flows:\n", "flows:\n  - {source: added}\n")
		r.once(t)
		r.must(t, "resync", "--table", "scratch")
		r.exec(t, `insert into added values (3)`, `update items set n = 0`)
		r.once(t)
		end = r.all(t)
		contains(t, r.must(t, "rewind", "--to", "good", "--yes"), "added after the point")
		r.holds(t, "added", []string{"id"}, "1", "2", "3")
		r.must(t, "replay")
		r.isAll(t, "the replay", end)
		r.holds(t, "added", []string{"id"}, "1", "2", "3")
		r.same(t)
	})
}

// Killed anywhere, a rewind has restored all or nothing and is given again, and a replay
// goes on where it was.
func TestKilledRewindsAndReplaysAreGivenAgain(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, rewindTables, rewindFlows)
		r.once(t)
		r.must(t, "checkpoint", "create", "--label", "good")
		good := r.all(t)
		r.churn(t, rnd)
		r.once(t)
		end := r.all(t)
		kills := []string{"live slot returned", "rewound", "", "", "rewind written"}
		for i, point := range kills {
			began := time.Now()
			p := start(t, []string{"TAILRACE_KILL_AT=" + point}, r.args("rewind", "--to", "good", "--yes")...)
			if point == "" {
				time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
				p.kill()
			}
			<-p.done
			state := r.all(t)
			if state != end && state != good {
				t.Fatalf("kill %d at %q after %s: neither the old state nor the restored one", i, point, time.Since(began))
			}
			if i%2 == 0 { // the pipeline starts wherever it died
				p := start(t, nil, r.args("replay")...)
				time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
				p.kill()
				<-p.done
				r.must(t, "replay")
				r.isAll(t, "the replay behind a killed rewind", end)
			}
			r.must(t, "rewind", "--to", "good", "--yes")
			r.isAll(t, "the rewind given again", good)
			r.must(t, "replay")
			r.isAll(t, "the replay", end)
		}
		r.same(t)
	})
}

// A destination that was restored from a backup is followed from the backup's mark, as long
// as the log is kept from there; its own points are those of the backup.
func TestADestinationRestoredFromABackupGoesOn(t *testing.T) {
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", rewindTables, rewindFlows)
	rnd := rand.New(rand.NewPCG(5, 6))
	r.once(t)
	r.churn(t, rnd)
	r.once(t)
	backup, err := os.ReadFile(r.dest.dsn)
	if err != nil {
		t.Fatal(err)
	}
	r.churn(t, rnd)
	r.once(t)
	r.must(t, "checkpoint", "create", "--label", "later")
	end := r.all(t)
	if err := os.RemoveAll(r.dest.dsn + ".wal"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.dest.dsn, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	contains(t, r.once(t), "restored from a backup")
	r.isAll(t, "the restored backup", end)
	if points := r.listed(t); len(points) != 1 || !points[0].Replayable {
		t.Errorf("points: %+v", points)
	}
	r.same(t)
}

// Files that were taken since a point are taken again, if they are there as they were.
func TestFilesAreTakenAgainAfterARewind(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `rewind: {keep: 6h}
relations:
  feed: {path: "feed/*.jsonl", format: jsonl, columns: {k: bigint, v: string, n: bigint}}
flows:
  - {source: feed, target: t, keys: [k], sequence_by: n, column_list: [k, v]}
`)
		r.put(t, "feed/a.jsonl", `{"k":1,"v":"a","n":1}`)
		r.once(t)
		r.must(t, "checkpoint", "create", "--label", "first")
		r.put(t, "feed/b.jsonl", `{"k":1,"v":"b","n":2}`+"\n"+`{"k":2,"v":"b","n":2}`)
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 b", "2 b")
		if err := os.Remove(filepath.Join(r.dir, "feed", "a.jsonl")); err != nil { // it is not taken again
			t.Fatal(err)
		}
		r.must(t, "rewind", "--to", "first", "--yes")
		r.holds(t, "t", []string{"k", "v"}, "1 a")
		r.must(t, "replay")
		r.holds(t, "t", []string{"k", "v"}, "1 b", "2 b")
		if err := os.Remove(filepath.Join(r.dir, "feed", "b.jsonl")); err != nil {
			t.Fatal(err)
		}
		r.refused(t, 3, []string{"b.jsonl is gone", "--allow-gap"}, "rewind", "--to", "first", "--yes")
		contains(t, r.must(t, "rewind", "--to", "first", "--yes", "--allow-gap"), "missing after a replay")
		r.must(t, "replay")
		r.holds(t, "t", []string{"k", "v"}, "1 a")
	})
}

// A MariaDB or MySQL source keeps its log by itself; a place in it can be named by GTIDs.
func TestABinlogIsReplayedUpToGTIDs(t *testing.T) {
	overOneKind(t, func(t *testing.T, kind string) {
		r := newMyRigOn(t, dbtest.MariaDB(t), kind, "rewind: {keep: 6h}\nflows: [{source: DB.items}]",
			`create table items (id int primary key, v int)`, `insert into items values (1, 1)`)
		r.once(t)
		var gtids []string
		for v := 2; v < 5; v++ {
			r.exec(t, fmt.Sprintf("update items set v = %d", v))
			gtids = append(gtids, r.my.Query(t, "", "SELECT @@gtid_binlog_pos")[0])
		}
		r.once(t)
		for i, gtid := range gtids {
			contains(t, r.must(t, "rewind", "--to", gtids[0], "--yes"), "rewound to point 1")
			r.holds(t, "items", []string{"id", "v"}, "1 1")
			r.must(t, "replay", "--until", gtid)
			r.holds(t, "items", []string{"id", "v"}, fmt.Sprintf("1 %d", i+2))
			r.must(t, "replay")
			r.holds(t, "items", []string{"id", "v"}, "1 4")
		}
		contains(t, r.must(t, "status"), "rewind")
		r.refused(t, 3, []string{"lies behind", "tailrace rewind --to"}, "replay", "--until", gtids[0])
		r.refused(t, 2, []string{"no GTIDs of that form"}, "rewind", "--to", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "--yes")
		r.same(t)
	})
}
