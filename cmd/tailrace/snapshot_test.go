package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

// A snapshot that is taken under load holds the targets as they were at its mark, and
// nothing that a pipeline would take for its destination.
func TestASnapshotUnderLoadStandsAtItsMark(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced+"; create table log(lsn pg_lsn, v int)", "flows: [{source: public.a}, {source: public.b}]")
	r.env = []string{"TAILRACE_DESTINATION_DUCKDB_CHECKPOINT_THRESHOLD=1MiB"}
	p := r.start(t, nil)
	r.following(t, p)
	stop, ends := r.balanceNoting(t)
	eventually(t, patience, "the load arrives", func() bool { return r.ask(t, sumOfBoth)[0] != "0,0" })
	path := filepath.Join(filepath.Dir(r.dest.dsn), "target.snapshot.duckdb")
	other := filepath.Join(t.TempDir(), "other.duckdb")
	said := regexp.MustCompile(`^(\S+) at (\S+): .* in [0-9.]+ s, batches waited [0-9.]+ s\n$`)
	var last string
	for i := range 6 {
		to, args := path, []string{}
		if i%2 == 1 {
			to, args = other, []string{other}
		}
		m := said.FindStringSubmatch(r.must(t, "snapshot", args...))
		if m == nil || m[1] != to {
			t.Fatalf("%q", m)
		}
		if m[2] == last {
			t.Errorf("the mark stays at %s", last)
		}
		last = m[2]
		held := queryDuckDB(t, to, "select (select sum(v)::int from a), (select sum(v)::int from b), (select count(*) from a), (select position from _tailrace.snapshot), (select count(*) from duckdb_tables() where schema_name = '_tailrace' and table_name not in ('snapshot', 'snapshot_tables')), (select string_agg(distinct phase, ',') from _tailrace.snapshot_tables)")[0]
		if held[0] != strings.TrimPrefix("-"+held[1], "--") || held[0] == "0" || held[2] != "5000" || held[3] != last || held[4] != "0" || held[5] != "live" {
			t.Errorf("the snapshot holds %v", held)
		}
		// Each transaction adds 100. The newest one that is there ends behind the one
		// before it and not behind the mark; the one after it does not.
		sum, err := strconv.Atoi(held[0])
		at, err2 := change.ParsePosition(last)
		if err != nil || err2 != nil || sum%100 != 0 {
			t.Fatalf("%s at %s: %v %v", held[0], last, err, err2)
		}
		newest, noted := sum/100, ends()
		if newest > 1 && !noted[newest-2].Before(at) || newest < len(noted) && noted[newest].Before(at) {
			t.Errorf("%d of %d transactions are there at %s", newest, len(noted), at)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*snapshot*")); err != nil || len(left) != 1 {
		t.Errorf("beside the snapshot: %v %v", left, err)
	}

	// Nothing but an older snapshot is replaced.
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.refused(t, 3, []string{"is not a snapshot"}, "snapshot", precious)
	r.refused(t, 2, []string{"the pipeline's own"}, "snapshot", r.dest.dsn)
	r.refused(t, 2, []string{"the pipeline's own"}, "snapshot", r.dest.dsn+".wal")
	r.refused(t, 3, []string{"name a file in a folder"}, "snapshot", filepath.Join(precious+"-nowhere", "x"))
	stop()
	p.stop(t)
	r.refused(t, 3, []string{"is not a snapshot"}, "snapshot", precious)
	if b, err := os.ReadFile(precious); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}

	// Without a daemon; the snapshot equals the source then.
	r.once(t)
	r.must(t, "snapshot")
	if got := queryDuckDB(t, path, "select sum(v)::int from a")[0][0]; got != r.one(t, "select sum(v) from a") {
		t.Errorf("the snapshot has %s", got)
	}
	// A pipeline does not take it for its destination.
	r.reconfigure(t, r.dest.dsn, path)
	r.refused(t, 3, []string{"is a snapshot"}, "run", "--once")
	r.refused(t, 3, []string{"is a snapshot"}, "run", "--once", "--overwrite")
}

// A full disk, a kill: the older snapshot stays, and the pipeline goes on.
func TestASnapshotThatFailsLeavesTheOlderOne(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatalf("this test mounts a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(small, syscall.MNT_DETACH) })
	to := filepath.Join(small, "s.duckdb")
	r.must(t, "snapshot", to)
	sum := func() string { return queryDuckDB(t, to, "select sum(v)::int from a")[0][0] }
	r.through(t, "update a set v = v + 1")
	if err := os.WriteFile(filepath.Join(small, "filler"), make([]byte, 12<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.refused(t, 3, []string{"free space"}, "snapshot", to)
	if left, err := os.ReadDir(small); err != nil || len(left) != 2 || sum() != "0" {
		t.Errorf("left: %v %v, sum %s", left, err, sum())
	}
	r.through(t, "update a set v = v + 1")
	p.stop(t)

	for _, point := range []string{"snapshot settled", "snapshot made"} {
		p = r.start(t, []string{"TAILRACE_KILL_AT=" + point, "TAILRACE_DESTINATION_DUCKDB_SNAPSHOT_EVERY=60s"})
		if code := p.wait(t, 30*time.Second); code != -1 {
			t.Fatalf("%s: exit %d", point, code)
		}
	}
	p = r.start(t, []string{"TAILRACE_DESTINATION_DUCKDB_SNAPSHOT_EVERY=60s"})
	p.says(t, patience, "msg=snapshot")
	r.through(t, "update a set v = v + 1")
	p.stop(t)
	held := filepath.Join(filepath.Dir(r.dest.dsn), "target.snapshot.duckdb")
	if got := queryDuckDB(t, held, "select sum(v)::int from a")[0][0]; got != fmt.Sprint(2*5000) {
		t.Errorf("the snapshot has %s", got)
	}
	r.once(t)
	r.same(t)
}
