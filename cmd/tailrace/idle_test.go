package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/pgserver"
)

// Log that is not ours does not stay on the source because of us.
func TestSlotFollowsLogOfOthers(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key); create table noise(v text)", "flows: [{source: public.t}]")
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into t values(1)")
		elsewhere := server.Database(t)
		server.Exec(t, elsewhere, "create table noise(v text)")
		for _, dsn := range []string{r.source, elsewhere} {
			server.Exec(t, dsn, "insert into noise select repeat('x', 1000) from generate_series(1, 55000)")
			r.awaitConfirmed(t, r.one(t, "select pg_current_wal_insert_lsn() - 1000"), patience)
		}
		p.stop(t)
		r.once(t)
		r.same(t)
		contains(t, r.must(t, "status", "--check"), "whole")
	})
}

// pgbench's own tables under its own load, while it runs.
func TestPgbenchDatabase(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		source := server.Database(t)
		bench := func(args ...string) *exec.Cmd {
			cmd := exec.Command(filepath.Join(server.Binaries.Dir, "pgbench"), append(args, source)...)
			cmd.Dir = "/"
			return cmd
		}
		if out, err := bench("-i", "-q", "-s", "1").CombinedOutput(); err != nil {
			t.Fatalf("pgbench: %v\n%s", err, out)
		}
		r := rigOn(t, server, source, freshDestination(t, server, kind), everything)
		load := bench("-c", "3", "-T", "5", "-n")
		if err := load.Start(); err != nil {
			t.Fatal(err)
		}
		p := r.start(t, nil)
		if err := load.Wait(); err != nil {
			t.Fatal(err)
		}
		r.following(t, p)
		r.through(t, "insert into pgbench_history(tid) values(-1)")
		p.stop(t)
		r.once(t)
		r.same(t)
		n := r.one(t, "select count(*) from pgbench_history")
		if _, rows := r.shown(t, "pgbench_history"); fmt.Sprint(len(rows)) != n || len(rows) < 100 {
			t.Errorf("pgbench_history: %d rows, the source has %s", len(rows), n)
		}
		contains(t, r.must(t, "check"), "pgbench_history is followed append-only")
	})
}

// connections counts a pipeline's sessions on a server.
func connections(t testing.TB, s *dbtest.Server) int {
	t.Helper()
	var n int
	fmt.Sscan(s.Query(t, s.DSN("postgres"), "select count(*) from pg_stat_activity where application_name like 'tailrace%'")[0], &n)
	return n
}

// The destination goes away and comes back: what was there is there once, and
// connections do not pile up.
func TestDestinationThatIsAwayForAWhile(t *testing.T) {
	t.Parallel()
	server, dest := dbtest.Postgres(t, dbtest.Dedicated()), dbtest.Postgres(t, dbtest.Dedicated())
	r := newRig(t, server, "duckdb", "create table t(id int primary key, n int); insert into t select i, 0 from generate_series(1, 100) i", withHistory)
	r = rigOn(t, server, r.source, destination{"postgres", dest.Database(t)}, withHistory)
	p := r.start(t, nil)
	r.following(t, p)
	r.through(t, "update t set n = 1")
	source, target := connections(t, server), connections(t, dest)
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		if err := dest.Stop(mode); err != nil {
			t.Fatal(err)
		}
		r.exec(t, "update t set n = n + 1")
		most := 0
		for range 10 {
			most = max(most, connections(t, server))
			time.Sleep(500 * time.Millisecond)
		}
		if most > source {
			t.Errorf("%d connections to the source while the destination was away, %d before", most, source)
		}
		if err := dest.StartAgain(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.through(t, "update t set n = n + 1")
	}
	if now := connections(t, dest); now > target {
		t.Errorf("%d connections to the destination, %d at the beginning", now, target)
	}
	p.stop(t)
	r.same(t)
	if all, _ := r.versions(t, "t_history"); all != 600 {
		t.Errorf("%d versions, want 600", all)
	}
}

// The source is restarted, in order and by a crash, and its sessions are ended again
// and again: the pipeline comes back by itself each time.
func TestSourceThatGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("fsync", "on"), dbtest.Setting("full_page_writes", "on"))
	shared := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", "create table t(id serial primary key, n int)", withHistory)
	r = rigOn(t, server, r.source, destination{"postgres", shared.Database(t)}, withHistory)
	p := r.start(t, nil)
	r.following(t, p)
	ctx := context.Background()
	for i, away := range []func() error{
		func() error { return server.Restart(ctx) },
		server.Kill9,
		func() error { return server.Stop(pgserver.Immediate) },
	} {
		r.through(t, "insert into t(n) select 1 from generate_series(1, 50)")
		r.exec(t, "insert into t(n) select 2 from generate_series(1, 50)")
		began := time.Now()
		if err := away(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); late(t, took, 15*time.Second) {
			t.Errorf("the source's shutdown took %s", took)
		}
		if i > 0 {
			time.Sleep(time.Second)
			if err := server.StartAgain(ctx); err != nil {
				t.Fatal(err)
			}
		}
		r.following(t, p)
	}
	// Sessions that are ended as soon as they are seen, twice a second, until it was five
	// times: with the pauses between attempts that takes up to a quarter of a minute.
	ended := 0
	for began := time.Now(); ended < 5 && time.Since(began) < time.Minute; time.Sleep(500 * time.Millisecond) {
		r.exec(t, "insert into t(n) values(3); update t set n = n + 1 where id % 10 = 0")
		if r.one(t, "select count(pg_terminate_backend(pid)) from pg_stat_replication") != "0" {
			ended++
		}
	}
	if ended < 5 {
		t.Errorf("only %d sessions could be ended in a minute: it came back too slowly", ended)
	}
	r.through(t, "insert into t(n) values(4)")
	p.stop(t)
	r.same(t)
	if n := strings.Count(p.output.String(), "level=ERROR"); n > 0 {
		t.Errorf("%d errors:\n%s", n, tail(p.output.String()))
	}
	if next := countsUp(t, r, "t_history"); fmt.Sprint(len(next)) != r.one(t, "select count(*) from t") {
		t.Errorf("the history knows %d keys", len(next))
	}
}
