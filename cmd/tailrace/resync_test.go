package main

import (
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// plant changes a target by hand; a running DuckDB daemon has to be stopped for it.
func (r *rig) plant(t testing.TB, p *proc, statements ...string) *proc {
	t.Helper()
	if r.dest.kind != "duckdb" {
		r.atTarget(t, statements...)
		return p
	}
	p.stop(t)
	r.atTarget(t, statements...)
	p = r.start(t, nil)
	r.following(t, p)
	return p
}

const manyTypes = `create table w(id int primary key, n numeric, f float8, j json, b jsonb, i interval, x bytea, a int[], s text unique, c char(5), k text);
insert into w select i, i * 1.10, case when i % 7 = 0 then '-0'::float8 else i / 3.0 end, '{"a": 1}', '{"a": 2}', '1 mon', '\x01', array[i, null], 's' || i, 'c', null from generate_series(1, 2000) i`

// Differences planted by hand go under load, in one transaction: a reader never sees
// another number of rows than the source has, or a sum that it never had.
func TestResyncBesideADaemonUnderLoad(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, balanced+";"+manyTypes, withHistoryOf("a"))
		r.refused(t, 3, []string{"has not been started"}, "resync", "--table", "w")
		p := r.start(t, nil)
		r.following(t, p)
		r.refused(t, 2, []string{"no flow has such a target"}, "resync", "--table", "nothing")
		contains(t, r.must(t, "resync", "--table", "w"), "2000 rows, 0 rows removed, 0 written")
		p = r.plant(t, p, "update w set n = 1.100 where id = 1", "update w set f = '0' where id = 7", "update w set j = '{\"a\":1}' where id = 8",
			"delete from w where id between 10 and 19", "insert into w(id, s) values (-1, 'x'), (-2, 'y')",
			"delete from w where id in (20, 21)", "insert into w(id, s) values (20, 's21'), (21, 's20')",
			"update a set v = v + 1 where id = 5", "delete from a where id = 6")
		stop := r.balance(t)
		out := r.must(t, "resync", "--table", "w")
		contains(t, out, "w copied again at ")
		if kind == "postgres" {
			contains(t, out, "2 rows removed, 15 written")
		}
		contains(t, r.must(t, "resync", "--table", "a"), "a copied again at ")
		stop()
		r.through(t, "update w set k = 'after' where id = 3", "delete from w where id = 4")
		if strings.Contains(p.output.String(), "will try again") {
			t.Errorf("a resync counts as a fault:\n%s", tail(p.output.String()))
		}
		p.stop(t)
		r.same(t)
		contains(t, r.must(t, "resync", "--table", "w"), "1999 rows, 0 rows removed, 0 written") // without a daemon
		r.same(t)
		if st := r.state(t); len(st.Gaps) != 0 {
			t.Errorf("gaps of type 1 targets: %+v", st.Gaps)
		}
	})
}

// Of a history a resync is one step, and the gap is recorded; a parked table is live by it.
func TestResyncOfAHistoryAndOfAParkedTable(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table h(id int primary key, v text, u text); insert into h select i, 'v', 'u' from generate_series(1, 100) i; create table t(id int primary key)",
			"flows: [{source: public.t}, {source: public.h, stored_as_scd_type: 2, track_history_except_column_list: [u]}]")
		r.once(t)
		r.exec(t, "alter table h drop constraint h_pkey")
		p := r.start(t, nil)
		p.says(t, patience, "table is parked")
		contains(t, p.output.String(), "tailrace resync --table")
		r.following(t, p)
		r.exec(t, "alter table h add primary key (id)", "update h set v = 'new' where id <= 10", "update h set u = 'new' where id between 11 and 15",
			"delete from h where id between 91 and 95", "insert into h values (101, 'v', 'u')")
		r.through(t, "insert into t values (1)")
		parked := r.state(t)
		out := r.must(t, "resync", "--table", "h")
		contains(t, out, "96 rows, 15 versions ended, 11 began", "it was parked and is live")
		st := r.state(t)
		if len(st.Problems) != 0 || len(st.Gaps) != 1 || st.Gaps[0].From != parked.Tables[0].Since || !strings.Contains(st.Gaps[0].Reason, "it was parked: table public.h") {
			t.Errorf("after the resync: %+v %v", st.Gaps, st.Problems)
		}
		contains(t, r.must(t, "status"), "GAP IN", st.Gaps[0].To)
		r.through(t, "update h set v = 'later' where id = 1", "delete from h where id = 101")
		p.stop(t)
		r.same(t)
		rows := r.held(t, "select count(*), count(*) filter (where \"__END_AT\" is null), count(*) filter (where u = 'new') from h")
		if got := strings.Join(rows[0], " "); got != "112 95 5" {
			t.Errorf("versions, open, with u = new: %s", got)
		}
		r.atTarget(t, "delete from h where id = 50", "update h set v = 'by hand' where id = 51 and \"__END_AT\" is null")
		p = r.start(t, nil)
		r.following(t, p)
		contains(t, r.must(t, "resync", "--table", "h"), "1 versions ended, 2 began")
		contains(t, r.must(t, "resync", "--table", "h"), "0 versions ended, 0 began")
		p.stop(t)
		r.same(t)
	})
}

// A kill at any point: nothing has happened, or all of it; no stage is left, and what
// was asked for is done by the next daemon.
func TestKillsDuringAResync(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		for _, at := range []string{"stage filled", "target replaced", "resync done"} {
			r := newRig(t, server, kind, "create table t(id int primary key, v int); insert into t select i, i from generate_series(1, 1000) i", everything)
			r.once(t)
			r.atTarget(t, "delete from t where id <= 10", "update t set v = 0 where id = 11")
			out, code := r.command(t, []string{"TAILRACE_KILL_AT=" + at}, "resync", "--table", "t")
			if code != -1 {
				t.Fatalf("%s: exit %d\n%s", at, code, tail(out))
			}
			n, err := strconv.Atoi(r.held(t, "select count(*) from t")[0][0])
			if err != nil {
				t.Fatal(err)
			}
			if done := at == "resync done"; done && n != 1000 || !done && n != 990 {
				t.Errorf("killed at %q: %d rows", at, n)
			}
			r.exec(t, "update t set v = v + 1 where id > 500")
			r.once(t)
			if left := r.held(t, "select count(*) from information_schema.tables where table_schema = '_tailrace' and table_name like 'stage%'")[0][0]; left != "0" {
				t.Errorf("killed at %q: %s stages are left", at, left)
			}
			r.must(t, "resync", "--table", "t")
			r.same(t)
		}
	})
}

// Targets that no resync may touch.
func TestResyncIsRefused(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", "create table s(id int primary key, n int)", "flows: [{source: public.s, sequence_by: n}]")
	r.once(t)
	r.refused(t, 3, []string{"has a sequence", "tailrace backfill --table", "--overwrite"}, "resync", "--table", "s")
	r.refused(t, 2, []string{"needs --table"}, "resync")
	p := r.start(t, nil)
	r.following(t, p)
	r.refused(t, 3, []string{"has a sequence", "tailrace backfill --table"}, "resync", "--table", "s")
	r.must(t, "pause")
	r.refused(t, 3, []string{"is paused since", "tailrace resume"}, "resync", "--table", "s")
	contains(t, r.must(t, "resume"), "resumed")
	p.stop(t)
}
