package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

const withHistory = "flows: [{source: public.*}, {source: public.*, target: '{table}_history', stored_as_scd_type: 2}]"

// dies runs until the program kills itself at a point.
func (r *rig) dies(t testing.TB, point string, more ...string) {
	t.Helper()
	p := r.start(t, append([]string{"TAILRACE_KILL_AT=" + point}, more...))
	if code := p.wait(t, 60*time.Second); code != -1 {
		t.Fatalf("point %q was never reached: exit %d\n%s", point, code, tail(p.output.String()))
	}
}

// versions is how many versions a history has, in all and open.
func (r *rig) versions(t testing.TB, target string) (all, open int) {
	t.Helper()
	header, rows := r.shown(t, target)
	end := slices.Index(header, "__END_AT")
	for _, row := range rows {
		if row[end] == null {
			open++
		}
	}
	return len(rows), open
}

// All rows of a COPY, and of any transaction, belong to one position: that of the
// commit. A crash between them repeats or loses none.
func TestKilledInsideATransactionOfManyRows(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key)", "flows: [{source: public.t}, {source: public.t, target: t_history, stored_as_scd_type: 2}]")
		r.env = []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB"}
		r.once(t)
		r.exec(t, "copy t from program 'seq 1 60000'")
		r.dies(t, "before apply:3")
		r.dies(t, "rows written")
		r.dies(t, "applied:1")
		r.dies(t, "segment received:2")
		if kind == "postgres" { // the planner knows for certain that the targets are empty
			r.atTarget(t, "vacuum analyze t", "vacuum analyze t_history")
		}
		began := time.Now()
		r.once(t)
		if took := time.Since(began); took > patience {
			t.Errorf("60000 rows took %s", took)
		}
		r.same(t)
		if all, open := r.versions(t, "t_history"); all != 60000 || open != 60000 {
			t.Errorf("%d versions, %d open", all, open)
		}
	})
}

// A transaction that was open while a later one was applied comes whole.
func TestTransactionsThatInterleave(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t values(101, '-'), (102, '-')", withHistory)
		p := r.start(t, nil)
		r.following(t, p)
		a := server.Connect(t, r.source)
		run := func(sql string) {
			t.Helper()
			if _, err := a.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
				t.Fatal(err)
			}
		}
		run("begin; insert into t values(1); update t set v = 'a' where id = 101")
		r.through(t, "insert into t values(2)", "update t set v = 'b' where id = 102")
		p.kill()
		run("insert into t values(3); commit")
		r.once(t)
		r.same(t)
		_, rows := r.shown(t, "t_history")
		starts := map[string]string{}
		for _, row := range rows {
			if row[3] == null {
				starts[row[0]] = row[2]
			}
		}
		if len(rows) != 7 || instant(starts["102"]) >= instant(starts["101"]) || starts["1"] != starts["3"] || starts["1"] != starts["101"] {
			t.Errorf("versions begin out of the order of commits: %v", rows)
		}
	})
}

// However close two commits are, and whatever was still to be confirmed when it
// died, each is applied once.
func TestKilledRightAfterEachCommit(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, n int); insert into t values(0, 0)", "batch: {max_rows: 1}\n"+withHistory)
		r.once(t)
		for i := range 5 { // back to back in one session: the end of one is the beginning of the next
			r.exec(t, fmt.Sprintf("update t set n = %d", 2*i+1), fmt.Sprintf("update t set n = %d", 2*i+2))
		}
		before := r.confirmed(t)
		for range 10 {
			r.dies(t, "applied")
		}
		if after := r.confirmed(t); after != before {
			t.Logf("the slot moved from %s to %s", before, after)
		}
		r.once(t)
		r.same(t)
		if all, open := r.versions(t, "t_history"); all != 11 || open != 1 {
			t.Errorf("%d versions, %d open; there were ten updates", all, open)
		}
	})
}

// Nothing is confirmed that the destination does not hold, however long it stands
// still; the connection to the source lives on meanwhile.
func TestDestinationThatStandsStillHoldsTheSlot(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "postgres", "create table t(id int primary key); create table other(v text)", "flows: [{source: public.t}]")
	r.exec(t, "alter database "+server.Connect(t, r.source).Config().Database+" set wal_sender_timeout = '4s'")
	p := r.start(t, nil)
	r.following(t, p)
	r.through(t, "insert into t values(0)")
	hold := server.Connect(t, r.dest.dsn)
	if _, err := hold.Exec(context.Background(), "begin; lock table t in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	sender := r.one(t, "select active_pid from pg_replication_slots where database = current_database()")
	before := r.commit(t, "select 1")
	r.exec(t, "insert into t select generate_series(1, 10)")
	elsewhere := server.Database(t)
	server.Exec(t, elsewhere, "create table x(v text)")
	for began := time.Now(); time.Since(began) < 15*time.Second; time.Sleep(300 * time.Millisecond) {
		server.Exec(t, elsewhere, "insert into x select repeat('x', 1000) from generate_series(1, 300)")
		r.exec(t, "insert into other select repeat('x', 1000) from generate_series(1, 300)")
		if passed := r.one(t, "select confirmed_flush_lsn > '"+before+"'::pg_lsn + 2000 from pg_replication_slots where database = current_database()"); passed != "f" {
			t.Fatal("the slot was confirmed beyond rows that the destination does not hold")
		}
	}
	if now := r.one(t, "select active_pid from pg_replication_slots where database = current_database()"); now != sender {
		t.Errorf("the connection was lost while the destination stood still: %s, then %q\n%s", sender, now, tail(p.output.String()))
	}
	p.kill()
	hold.Close(context.Background())
	r.once(t)
	r.same(t)
}

// A destination that refuses at its COMMIT has confirmed nothing; what people need
// to find the cause is said, and no row's values.
func TestDestinationThatRefusesAtCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "postgres", "create table t(id int primary key, secret text)", everything)
	r.once(t)
	r.atTarget(t, `create function no() returns trigger language plpgsql as $$ begin raise exception 'no % here', new.secret; end $$;
create constraint trigger late after insert on t deferrable initially deferred for each row execute function no(); alter table t enable always trigger late`)
	before := r.confirmed(t)
	r.exec(t, "insert into t values(1, 'xyzzy-4711')")
	for range 2 {
		out := r.refused(t, 3, []string{"trigger of the destination raised an error"}, "run")
		if strings.Contains(out, "xyzzy") {
			t.Errorf("a row's value was printed:\n%s", out)
		}
		if after := r.confirmed(t); after != before {
			t.Fatalf("the slot moved from %s to %s", before, after)
		}
	}
	r.atTarget(t, "drop trigger late on t")
	r.once(t)
	r.same(t)
}

func TestRowsThatBreakAConstraintAreFoundWithoutTheirValues(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "postgres", "create table t(id int primary key, email text); create table calm(id int primary key)", everything)
	r.once(t)
	r.atTarget(t, "create unique index one_email on t(email)")
	r.exec(t, "insert into t values(1, 'xyzzy-4711@example.org')", "insert into t values(2, 'xyzzy-4711@example.org')", "insert into calm values(1)")
	out := r.onceParked(t) // the table, and the other one goes on
	contains(t, out, "table is parked", "public.t", "one_email", "remedy: ", "key columns: id")
	if strings.Contains(out, "xyzzy") {
		t.Errorf("a row's value was printed:\n%s", out)
	}
	r.equalRows(t, "calm", "select id from calm")
	r.refused(t, 1, []string{"parked", "one_email"}, "status", "--check")
	r.atTarget(t, "drop index one_email")
	r.must(t, "resync", "--table", "t")
	r.once(t)
	r.same(t)
	// The same in a copy.
	r.atTarget(t, "truncate t; create unique index one_email on t(email)")
	out = r.refused(t, 3, []string{"one_email", "remedy: "}, "backfill", "--table", "t", "--overwrite")
	if strings.Contains(out, "xyzzy") {
		t.Errorf("a row's value was printed:\n%s", out)
	}
	r.atTarget(t, "drop index one_email")
	r.must(t, "backfill", "--table", "t", "--overwrite")
	r.same(t)
}

// A stop in the middle of a load leaves slot and mark equal, and the slot there.
func TestStopLeavesTheSlotAtTheMark(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id serial primary key)", everything)
		p := r.start(t, nil)
		r.following(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		conn := server.Connect(t, r.source)
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.Background(), "insert into t select from generate_series(1, 20)"); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		time.Sleep(time.Second)
		began := time.Now()
		p.cmd.Process.Signal(syscall.SIGTERM)
		if code := p.wait(t, patience); code != 0 {
			t.Errorf("exit %d", code)
		}
		if took := time.Since(began); late(t, took, 10*time.Second) {
			t.Errorf("the stop took %s", took)
		}
		status := r.must(t, "status", "--json")
		if mark, confirmed := between(status, `"position": "`), between(status, `"confirmed": "`); mark == "" || mark != confirmed {
			t.Errorf("the mark is %s, the slot is confirmed to %s", mark, confirmed)
		}
		cancel()
		<-ended
		r.once(t)
		r.same(t)
	})
}

// One process owns a pipeline. Another one, of whatever kind, leaves within two
// seconds, and the first goes on.
func TestSecondInstanceLeavesTheFirstAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key)", everything)
		p := r.start(t, nil)
		r.following(t, p)
		for i, c := range [][]string{{"run"}, {"run", "--once"}, {"run", "--overwrite"}, {"backfill"}, {"backfill", "--table", "t", "--overwrite"}, {"teardown", "--yes"}} {
			began := time.Now()
			r.refused(t, 3, []string{fmt.Sprint(p.cmd.Process.Pid)}, c[0], c[1:]...)
			if took := time.Since(began); late(t, took, 2*time.Second) {
				t.Errorf("%v left after %s", c, took)
			}
			r.through(t, fmt.Sprintf("insert into t values(%d)", i))
		}
		if kind == "postgres" { // a DuckDB file is its owner's alone
			contains(t, r.must(t, "status", "--check"), "being read", "whole")
		}
		p.kill()
		r.once(t) // right after a SIGKILL
		r.same(t)
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
	})
}

func TestOddNamesOfPipelineAndDatabase(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		name := "my-db." + uniqueName(kind)
		server.CreateDatabase(t, name)
		source := server.DSN(name)
		server.Exec(t, source, "create table t(id int primary key); insert into t values(1)")
		r := rigOn(t, server, source, freshDestination(t, server, kind), everything)
		r.reconfigure(t, "pipeline: ", "pipeline: 2024-orders-")
		for i := range 2 {
			r.once(t)
			r.same(t)
			r.exec(t, fmt.Sprintf("insert into t values(%d)", 10+i))
		}
		if n := r.one(t, "select count(*) from pg_replication_slots where database = current_database()"); n != "1" {
			t.Errorf("%s slots", n)
		}
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
	})
}

// Time-outs that the server sets for a role are for people who forget; a copy and a
// quiet stream outlive them.
func TestTimeoutsOfTheRoleEndNothing(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		role := uniqueName("hasty")
		admin := server.DSN("postgres")
		server.Exec(t, admin, "create role "+role+" superuser login")
		t.Cleanup(func() { server.Exec(t, admin, "drop role "+role) })
		for _, s := range []string{"idle_session_timeout='1s'", "idle_in_transaction_session_timeout='1s'", "statement_timeout='700ms'", "lock_timeout='300ms'"} {
			server.Exec(t, admin, "alter role "+role+" set "+s)
		}
		name := server.DatabaseName(t)
		server.Exec(t, server.DSN(name), "create table a(id int primary key, v text); create table b(id int primary key); insert into a select i, repeat('x', 500) from generate_series(1, 80000) i; insert into b values(1)")
		d := freshDestination(t, server, kind)
		if kind == "postgres" {
			d.dsn = strings.Replace(d.dsn, "//postgres@", "//"+role+"@", 1)
		}
		r := rigOn(t, server, server.DSNAs(role, "", name), d, "hydrate: {workers: 2}\n"+everything)
		r.server, r.source = server, server.DSN(name)
		p := r.start(t, nil)
		// A copy that is held up for longer than every one of them.
		eventually(t, patience, "the copy runs", func() bool {
			return r.one(t, "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'copy%' and state = 'active'") != "0"
		})
		p.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(2 * time.Second)
		p.cmd.Process.Signal(syscall.SIGCONT)
		r.following(t, p)
		time.Sleep(2500 * time.Millisecond)
		r.through(t, "insert into b values(2)")
		for line := range strings.Lines(p.output.String()) {
			// One that was held up before it could say that it wants no time-outs has them.
			again := strings.Contains(line, "will try again") && !strings.Contains(line, "prepare a session")
			if again || strings.Contains(line, "level=ERROR") {
				t.Errorf("it was interrupted: %s", line)
			}
		}
		p.stop(t)
		r.same(t)
	})
}

// Killed wherever chance has it while it starts, the next start completes.
func TestKilledInItsFirstSeconds(t *testing.T) {
	rnd := seeded(t)
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table a(id int primary key, v text); create table b(v int); insert into a select i, repeat('x', 200) from generate_series(1, 20000) i; insert into b select generate_series(1, 1000)", everything)
		for i := range 25 {
			p := r.start(t, nil)
			time.Sleep(time.Duration(10+rnd.IntN(500)) * time.Millisecond)
			p.kill()
			if code := p.cmd.ProcessState.ExitCode(); code != -1 {
				t.Fatalf("start %d ended by itself: exit %d\n%s", i, code, tail(p.output.String()))
			}
			r.exec(t, fmt.Sprintf("update a set v = 'n' where id = %d; insert into b values(%d)", 1+rnd.IntN(20000), i))
			if i == 12 {
				r.once(t)
				r.same(t)
				r.must(t, "teardown", "--yes")
				if kind == "duckdb" {
					os.Remove(r.dest.dsn)
				} else {
					r.atTarget(t, "drop table a, b")
				}
			}
		}
		r.once(t)
		r.same(t)
	})
}
