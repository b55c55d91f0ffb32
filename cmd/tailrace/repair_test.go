package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// Differences of every kind that were planted by hand are repaired under load, beside a
// daemon and without one; a reader never sees another number of rows or another sum
// than the source has, and what is equal is not touched.
func TestRepairUnderLoad(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, balanced+";"+manyTypes+"; create table c(x text, y int, v text, primary key (y, x)); insert into c select 'it''s \\ ' || i, i % 7, 'v' from generate_series(1, 300) i",
			"flows: [{source: public.*}, {source: public.a, target: a_history, stored_as_scd_type: 2}, {source: public.c, target: c_history, stored_as_scd_type: 2}]")
		p := r.start(t, nil)
		r.following(t, p)
		plant := func(p *proc) *proc {
			return r.plant(t, p, "update w set n = 1.100 where id = 1", "update w set f = '0' where id = 7", "update w set j = '{\"a\":1}' where id = 8",
				"delete from w where id between 10 and 19", "insert into w(id, s) values (-1, 'x'), (-2, 'y')",
				"delete from w where id in (20, 21)", "insert into w(id, s) values (20, 's21'), (21, 's20')",
				"update c set v = 'by hand' where y = 1 and x = 'it''s \\ 1'", "delete from c where y = 2", "insert into c values ('more', 1, 'v')",
				"insert into a_history(id, v, \"__START_AT\") values (-1, 1, now())",
				"delete from c_history where y = 4", "update c_history set v = 'by hand' where y = 5 and \"__END_AT\" is null", "insert into c_history(x, y, v, \"__START_AT\") values ('more', 1, 'v', now())")
		}
		tables := []string{"--repair", "--table", "w", "--table", "c", "--table", "a_history", "--table", "c_history"}
		p = plant(p)
		stop := r.balance(t)
		out := r.must(t, "verify", tables...)
		differ := 17
		if kind == "duckdb" {
			differ = 16 // its UPDATE leaves -0 where 0 is to be written
		}
		contains(t, out, fmt.Sprintf("w: %d differences of 2000 rows", differ), fmt.Sprintf("w: repaired: %d written, 2 removed, at ", differ-2), "c: repaired: 44 written, 1 removed, at ",
			"a_history: repaired: 0 versions began, 1 ended", "c_history: repaired: 86 versions began, 44 ended", "w: 0 differences of 2000 rows", "\n0 differences of ")
		contains(t, r.must(t, "verify"), "\n0 differences of ")
		contains(t, r.must(t, "verify", tables...), "w: 0 differences of 2000 rows\n", "\n0 differences of 7600 rows\n")
		stop()
		r.through(t, "update w set k = 'after' where id = 3", "delete from w where id = 4", "update c set v = 'after' where y = 2", "delete from c where y = 3")
		if strings.Contains(p.output.String(), "will try again") {
			t.Errorf("a repair counts as a fault:\n%s", tail(p.output.String()))
		}
		p = plant(p)
		p.stop(t)
		out = r.must(t, "verify", tables...) // without a daemon
		contains(t, out, "w: repaired: ", "c_history: repaired: 86 versions began, 44 ended", "\n0 differences of ")
		contains(t, out, "comparing", "tables=4")
		r.same(t)
		gaps := 0
		for _, g := range r.state(t).Gaps {
			if !strings.HasSuffix(g.Target, "_history") || !strings.Contains(g.Reason, "were repaired") {
				t.Errorf("gap %+v", g)
			}
			gaps++
		}
		if gaps != 4 {
			t.Errorf("%d gaps are recorded, want 4", gaps)
		}
	})
}

// A kill at any point of a repair, beside the daemon or alone: nothing has happened, or
// all of it; and the next one finds it or does it.
func TestKillsDuringARepair(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		for _, at := range []string{"repair staged", "target replaced", "repair done"} {
			r := newRig(t, server, kind, "create table t(id int primary key, v int); insert into t select i, i from generate_series(1, 1000) i", everything)
			r.once(t)
			r.atTarget(t, "delete from t where id <= 10", "update t set v = 0 where id = 11", "insert into t values (-1, -1)")
			out, code := r.command(t, []string{"TAILRACE_KILL_AT=" + at}, "verify", "--repair", "--table", "t")
			if code != -1 {
				t.Fatalf("%s: exit %d\n%s", at, code, tail(out))
			}
			if n := r.held(t, "select count(*) from t where id <= 10")[0][0]; n != map[bool]string{true: "10", false: "1"}[at == "repair done"] {
				t.Errorf("killed at %q: %s rows", at, n)
			}
			p := r.start(t, []string{"TAILRACE_KILL_AT=" + at})
			r.following(t, p)
			r.exec(t, "update t set v = v + 1 where id > 500")
			if at != "repair done" { // it has nothing to do any more
				asked := make(chan struct{})
				go func() {
					defer close(asked)
					r.command(t, nil, "verify", "--repair", "--table", "t", "--timeout", "30s")
				}()
				eventually(t, time.Minute, "the daemon is killed", func() bool {
					select {
					case <-p.done:
						return true
					default:
						return false
					}
				})
				if kind == "duckdb" { // the asker finds the file free, and does it itself
					<-asked
				}
				p = r.start(t, nil) // carries out what was asked of the other
				r.following(t, p)
				<-asked
			}
			eventually(t, patience, "nothing differs", func() bool {
				out, code := r.command(t, nil, "verify")
				return code == 0 && strings.Contains(out, "t: 0 differences of 1000 rows")
			})
			p.stop(t)
			if left := r.held(t, "select count(*) from information_schema.tables where table_schema = '_tailrace' and table_name like 'stage%'")[0][0]; left != "0" {
				t.Errorf("killed at %q: %s stages are left", at, left)
			}
			r.same(t)
		}
	})
}

// What cannot be repaired row by row is refused with what to do instead, before
// anything is read.
func TestRepairIsRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table s(id int primary key, n int); create table log(v int); create table t(id int primary key, v text); insert into t values (1, 'v'); create table p(id int primary key)",
			"flows: [{source: public.*, except: [public.s]}, {source: public.s, sequence_by: n}]")
		r.once(t)
		r.exec(t, "alter table p drop constraint p_pkey")
		check := func() {
			t.Helper()
			r.refused(t, 2, []string{"each must be named", "--table"}, "verify", "--repair")
			r.refused(t, 2, []string{"no flow has such a target"}, "verify", "--repair", "--table", "nothing")
			r.refused(t, 3, []string{"has a sequence", "tailrace backfill --table", "--overwrite"}, "verify", "--repair", "--table", "t", "--table", "s")
			r.refused(t, 3, []string{"has no key", "tailrace resync --table"}, "verify", "--repair", "--table", "log")
		}
		check()
		p := r.start(t, nil)
		p.says(t, patience, "table is parked")
		r.following(t, p)
		check()
		r.refused(t, 3, []string{"is parked", "tailrace resync --table"}, "verify", "--repair", "--table", "p")
		p.stop(t)
	})
}

// Where too many rows differ a new copy is the better way, and nothing is written.
func TestARepairOfTooMuchIsLeftToResync(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v int); insert into t select i, i from generate_series(1, 150000) i", everything)
		r.once(t)
		r.atTarget(t, "update t set v = 0 where id <= 120000")
		out := r.refused(t, 1, []string{"t: not repaired: more than 100000 rows differ", "tailrace resync --table"}, "verify", "--repair", "--table", "t")
		contains(t, out, "differences of 150000 rows")
		if n := r.held(t, "select count(*) from t where v = 0")[0][0]; n != "120000" {
			t.Errorf("%s rows are as they were", n)
		}
		r.atTarget(t, fmt.Sprintf("update t set v = id where id > %d", 20000))
		contains(t, r.must(t, "verify", "--repair", "--table", "t"), "t: 20000 differences of 150000 rows", "t: repaired: 20000 written, 0 removed", "\n0 differences of 150000 rows")
		r.same(t)
	})
}
