package main

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// backup keeps the destination as it is now and returns what brings it back.
func (r *rig) backup(t *testing.T) (restore func()) {
	t.Helper()
	if r.dest.kind == "duckdb" {
		kept, err := os.ReadFile(r.dest.dsn)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			os.Remove(r.dest.dsn + ".wal")
			if err := os.WriteFile(r.dest.dsn, kept, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	u, err := url.Parse(r.dest.dsn)
	if err != nil {
		t.Fatal(err)
	}
	name, copied := u.Path[1:], uniqueName("backup")
	r.server.CreateDatabase(t, copied, "TEMPLATE "+name)
	return func() {
		r.server.Exec(t, r.server.DSN("postgres"), "drop database "+name+" with (force)", "create database "+name+" template "+copied)
	}
}

// gone asserts that the pipeline says in every way that it cannot go on, touches
// nothing, and that a new copy brings it back, with what was deleted meanwhile gone.
func (r *rig) gone(t *testing.T, inEveryWay bool, wants ...string) {
	t.Helper()
	before := r.confirmed(t)
	commands := [][]string{{"run"}}
	if inEveryWay {
		commands = append(commands, []string{"run", "--once"}, []string{"verify"}, []string{"backfill"})
		r.refused(t, 1, append(wants, "BLOCKS"), "check")
	}
	for _, c := range commands {
		r.refused(t, 3, append(wants, "remedy: ", "--overwrite"), c[0], c[1:]...)
	}
	r.refused(t, 1, append(wants, "continuity", "lost"), "status", "--check")
	if after := r.confirmed(t); after != before {
		t.Errorf("the slot moved from %q to %q", before, after)
	}
	r.exec(t, "delete from t where id = (select min(id) from t)")
	r.once(t, "--overwrite")
	r.same(t)
	r.refused(t, 0, []string{"whole"}, "status", "--check")
}

// Whatever leaves a gap between the destination and what can still be read is
// refused, and a new copy is the way out.
func TestGapsAreRefusedAndANewCopyMendsThem(t *testing.T) {
	server := dbtest.Postgres(t)
	gaps := []struct {
		name  string
		make  func(t *testing.T, r *rig, slot string)
		wants []string
	}{
		{"destination restored from a backup", func(t *testing.T, r *rig, slot string) {
			restore := r.backup(t)
			r.exec(t, "insert into t select generate_series(100, 104)")
			r.once(t)
			restore()
		}, []string{"confirmed up to", "are gone"}},
		{"another consumer read the slot", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "insert into t values(200)", fmt.Sprintf("select count(*) from pg_logical_slot_get_binary_changes('%s', null, null, 'proto_version', '1', 'publication_names', '%s')", slot, slot))
		}, []string{"confirmed up to", "are gone"}},
		{"slot advanced by hand", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "insert into t values(201)", "select pg_replication_slot_advance('"+slot+"', pg_current_wal_lsn())")
		}, []string{"confirmed up to", "are gone"}},
		{"slot dropped", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "select pg_drop_replication_slot('"+slot+"')", "insert into t values(300), (301), (302)")
		}, []string{"is missing"}},
		{"slot dropped and made again", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "select pg_drop_replication_slot('"+slot+"')", "insert into t values(400)", "select pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
		}, []string{"confirmed up to", "are gone"}},
		{"publication dropped", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "insert into t values(500)", "drop publication "+slot)
		}, []string{"publication", "is missing"}},
		{"publication dropped and made again", func(t *testing.T, r *rig, slot string) {
			r.exec(t, "drop publication "+slot, "insert into t values(600)", "create publication "+slot+" for table t")
		}, []string{"publication", "after replication slot"}},
	}
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key); insert into t select generate_series(1, 20)", withHistory)
		r.once(t)
		slot := r.one(t, "select slot_name from pg_replication_slots where database = current_database()")
		for i, g := range gaps {
			g.make(t, r, slot)
			r.gone(t, i == 0, g.wants...)
		}
	})
}

// A slot whose log the server removed never comes back: it is not tried again.
func TestSlotThatLostItsLog(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("max_slot_wal_keep_size", "16MB"))
	r := newRig(t, server, "duckdb", "create table t(id int primary key); insert into t select generate_series(1, 20); create table noise(v text)", "flows: [{source: public.t}]")
	r.once(t)
	for range 4 {
		r.exec(t, "insert into noise select repeat('x', 1000) from generate_series(1, 16000)", "select pg_switch_wal()", "checkpoint")
	}
	r.gone(t, true, "has lost its log")

	// Another server at the same address is another source, whatever its slots are called.
	other := dbtest.Postgres(t)
	source := other.Database(t)
	other.Exec(t, source, "create table t(id int primary key)")
	slot := r.one(t, "select slot_name from pg_replication_slots where database = current_database()")
	other.Exec(t, source, "create publication "+slot+" for table t; create publication "+slot+"_append", "select pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	r.reconfigure(t, r.source, source)
	r.refused(t, 3, []string{"another server", "system identifier", "remedy: "}, "run")
	r.refused(t, 1, []string{"another server"}, "status", "--check")
	r.reconfigure(t, source, r.source)
	r.exec(t, "insert into t values(1000)")
	r.once(t)
	r.same(t)
}

// Something else has the slot's name: it is named, and left alone.
func TestSlotsOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	elsewhere := server.Database(t)
	r := newRig(t, server, "duckdb", "create table t(id int primary key); insert into t values(1)", everything)
	r.once(t)
	slot := r.one(t, "select slot_name from pg_replication_slots where database = current_database()")
	r.must(t, "teardown", "--yes")
	os.Remove(r.dest.dsn)
	drop := "select pg_drop_replication_slot('" + slot + "')"
	for _, c := range []struct{ at, make, want string }{
		{r.source, "select pg_create_physical_replication_slot('" + slot + "')", "physical"},
		{elsewhere, "select pg_create_logical_replication_slot('" + slot + "', 'pgoutput')", "belongs to database"},
		{r.source, "select pg_create_logical_replication_slot('" + slot + "', 'pgoutput', false, true)", "two_phase"},
		{r.source, "select pg_create_logical_replication_slot('" + slot + "', 'pgoutput')", "no mark"},
	} {
		server.Exec(t, c.at, c.make)
		r.refused(t, 3, []string{slot, c.want, "remedy: "}, "run", "--once")
		r.refused(t, 1, []string{slot, c.want}, "check")
		if n := r.one(t, "select count(*) from pg_replication_slots where slot_name = '"+slot+"'"); n != "1" {
			t.Fatalf("%s: the slot is gone", c.want)
		}
		if pubs := r.one(t, "select count(*) from pg_publication"); pubs != "0" {
			t.Errorf("%s: %s publications were made", c.want, pubs)
		}
		server.Exec(t, c.at, drop)
	}
	r.once(t)
	r.same(t)
	// The destination is gone, its slot is not: perhaps it is the wrong destination.
	os.Remove(r.dest.dsn)
	r.refused(t, 3, []string{slot, "no mark", "teardown"}, "run", "--once")
	r.must(t, "teardown", "--yes")
	r.leftNothing(t)
	r.once(t)
	r.same(t)
}

// A start may die at every step of the first copy, and the slot may be gone
// afterwards: each combination goes on or is refused, as it must.
func TestEveryStepOfTheFirstCopyWithAndWithoutItsSlot(t *testing.T) {
	server := dbtest.Postgres(t)
	const schema = "create table t(id int primary key); insert into t select generate_series(1, 100); create table u(v int); insert into u values(1)"
	steps := []struct {
		point string
		begun bool // the mark speaks of a slot
	}{
		{"mark creating", false}, {"slot made", false}, {"mark copying", true}, {"table loaded:1", true}, {"table loaded:2", true}, {"copy finished", true}, {"", true},
	}
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "", everything)
		for _, step := range steps {
			for _, kept := range []bool{true, false} {
				r.exec(t, "drop schema public cascade; create schema public; "+schema)
				if step.point == "" {
					r.once(t)
				} else {
					r.dies(t, step.point)
				}
				r.exec(t, "delete from t where id = 1; insert into t values(1000); update t set id = -5 where id = 5; insert into u values(2)")
				if !kept {
					r.exec(t, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()")
				}
				if step.begun && !kept {
					r.refused(t, 3, []string{"is missing", "--overwrite"}, "run", "--once")
					r.once(t, "--overwrite")
				} else {
					r.once(t)
				}
				r.same(t)
				if t.Failed() {
					t.Fatalf("killed at %q, slot kept: %v", step.point, kept)
				}
				// As if nothing had been there.
				r.exec(t, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()", "do $$ declare p text; begin for p in select pubname from pg_publication loop execute 'drop publication ' || p; end loop; end $$")
				if kind == "duckdb" {
					os.Remove(r.dest.dsn)
				} else {
					r.atTarget(t, "drop schema _tailrace cascade; drop table t, u")
				}
			}
		}
	})
}

// What is left after a kill in the middle of a copy is named by status, and goes on
// or goes away as told.
func TestLeftoversOfACopyAreNamed(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key); insert into t values(1)", everything)
		for _, point := range []string{"slot made", "mark copying"} {
			p := start(t, []string{"TAILRACE_KILL_AT=" + point}, r.args("backfill")...)
			p.wait(t, time.Minute)
			slot := r.one(t, "select slot_name from pg_replication_slots where database = current_database()")
			out := r.must(t, "status")
			contains(t, out, slot, "nothing reads it")
			if !strings.Contains(out, "creating") && !strings.Contains(out, "copying") {
				t.Errorf("status does not say that a copy was begun:\n%s", out)
			}
		}
		r.must(t, "backfill")
		r.exec(t, "insert into t values(2)")
		r.once(t)
		r.same(t)
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
		if kind == "postgres" {
			if book := server.Query(t, r.dest.dsn, "select 1 from pg_namespace where nspname = '_tailrace'"); len(book) > 0 {
				t.Error("the bookkeeping is still there")
			}
		}
	})
}

// A stop in the middle of the copy leaves at once; the next start completes.
func TestStopInTheMiddleOfACopy(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, repeat('x', 500) from generate_series(1, 100000) i", everything)
		p := r.start(t, nil)
		eventually(t, patience, "the copy runs", func() bool {
			return r.one(t, "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'copy%' and state = 'active'") != "0"
		})
		p.cmd.Process.Signal(os.Interrupt)
		if code := p.wait(t, patience); code != 0 {
			t.Errorf("exit %d\n%s", code, tail(p.output.String()))
		}
		r.once(t)
		r.same(t)
		if n := server.Query(t, server.DSN("postgres"), "select count(*) from pg_stat_activity where datname = '"+server.Connect(t, r.source).Config().Database+"' and application_name like 'tailrace%'")[0]; n != "0" {
			t.Errorf("%s sessions are left", n)
		}
	})
}
