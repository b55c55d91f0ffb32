package main

import (
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// What concerns one table alone parks it, with a remedy that works, and the others go
// on. Each fault: how it comes about in the destination, what the source then does, what
// is said of it, and how it is mended.
func TestAFaultOfOneTableParksItAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	for _, c := range []struct {
		kind, name    string
		spoil, change string
		says, mend    string
	}{
		{"postgres", "not null", "alter table t add column w int; alter table t alter column v set not null", "update t set v = null where id = 1", "column v|DROP NOT NULL", `alter table t alter column v drop not null`},
		{"postgres", "too long", "alter table t alter column v type varchar(5)", "update t set v = 'longer than five' where id = 1", "too long for its column", "alter table t alter column v type text"},
		{"postgres", "check", "alter table t add check (n < 100)", "insert into t values (200, 'v', 200)", "drop it", "alter table t drop constraint t_n_check"},
		{"postgres", "unique", "create unique index other on t(n)", "insert into t values (200, 'v', 1)", `constraint "other"`, "drop index other"},
		{"postgres", "out of range", "alter table t alter column n type smallint", "update t set n = 100000 where id = 1", "out of the range", "alter table t alter column n type int"},
		{"postgres", "column gone", "alter table t drop column n", "update t set n = 7 where id = 1", "column", "alter table t add column n int"},
		{"postgres", "table gone", "drop table t", "update t set n = 7 where id = 1", "tailrace resync", ""},
		{"postgres", "trigger", "create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end'; create trigger refuse before update on t for each row execute function refuse(); alter table t enable always trigger refuse", "update t set n = 7 where id = 1", "raised an error", "drop trigger refuse on t"},
		{"duckdb", "check", "alter table t alter column v set not null", "update t set v = null where id = 1", "refuses a row by a constraint", "alter table t alter column v drop not null"},
		{"duckdb", "not a number", "", "insert into t values (200, 'v', 1, 'NaN')", "VARCHAR", "alter table t alter column d set data type varchar"},
	} {
		t.Run(c.kind+", "+c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, server, c.kind, "create table t(id int primary key, v text, n int, d numeric(10,2)); insert into t select i, 'v', i from generate_series(1, 50) i; create table u(id int primary key)", everything)
			r.once(t)
			if c.spoil != "" && c.kind == "duckdb" {
				r.atTarget(t, c.spoil)
			}
			p := r.start(t, nil)
			r.following(t, p)
			r.through(t, "update t set v = 'w' where id = 2") // so that the table was looked at
			if c.spoil != "" && c.kind != "duckdb" {
				r.atTarget(t, strings.Split(c.spoil, "; alter table t alter")[0])
				if _, rest, found := strings.Cut(c.spoil, "; alter table t alter"); found {
					r.atTarget(t, "alter table t alter"+rest)
				}
			}
			r.exec(t, c.change)
			p.says(t, 40*time.Second, "table is parked")
			r.through(t, "insert into u values (1)")
			out := r.refused(t, 1, []string{"is parked: ", "remedy: ", "tailrace resync --table"}, "status", "--check")
			contains(t, out, strings.Split(c.says, "|")...)
			for _, value := range []string{"longer than five", "100000"} {
				if strings.Contains(out+p.output.String(), value) {
					t.Errorf("it prints the value %s", value)
				}
			}
			if c.mend != "" {
				p = r.plant(t, p, c.mend)
			}
			contains(t, r.must(t, "resync", "--table", "t"), "it was parked and is live")
			r.through(t, "update t set v = 'after' where id = 3")
			p.stop(t)
			r.same(t)
		})
	}
}

// A target that is not there any more at a start has lost its rows: it is not made anew
// empty and gone on with. Its table alone stops.
func TestATargetThatIsGoneAtTheStart(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, 'v' from generate_series(1, 50) i; create table u(id int primary key); insert into u values (1)", everything)
		r.once(t)
		r.atTarget(t, "drop table t")
		r.exec(t, "update t set v = 'w' where id = 1", "insert into u values (2)")
		contains(t, r.onceParked(t), "not in the destination any more", ".t --overwrite")
		r.equalRows(t, "u", "select * from u")
		contains(t, r.must(t, "resync", "--table", "t"), "it was parked and is live")
		r.once(t)
		r.same(t)

		// Here all of them: nothing would go on.
		r.atTarget(t, "drop table t", "drop table u")
		r.refused(t, 3, []string{"not in the destination any more", "tailrace backfill --table", "--overwrite"}, "run", "--once")
		r.must(t, "backfill", "--table", "t", "--table", "u", "--overwrite")
		r.once(t)
		r.same(t)
	})
}

// A target that was changed while nothing ran is parked at the start, and the others go
// on. Where nothing would go on the statement is asked for and no copy is needed.
func TestATargetThatDoesNotFitAtTheStartIsParkedAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, 'v' from generate_series(1, 50) i; create table u(id int primary key); insert into u values (1)", everything)
		r.atTarget(t, "create table t(id int primary key, v text)") // not made by us: it is never altered
		r.atTarget(t, "create table u(id int primary key)")
		r.once(t)
		r.atTarget(t, "alter table t drop column v")
		r.exec(t, "update t set v = 'w' where id = 1", "insert into u values (2)")

		out := r.onceParked(t)
		contains(t, out, "does not fit any more", "column", "ADD COLUMN", "tailrace resync --table", ".t; `tailrace status`")
		r.equalRows(t, "u", "select * from u")
		r.onceParked(t) // it was parked before, and still is
		r.refused(t, 1, []string{"tailrace: parked: "}, "backfill")
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into u values (3)")
		p.stop(t)
		out = r.refused(t, 1, []string{"is parked: the target does not fit any more", "ADD COLUMN"}, "status", "--check")
		r.refused(t, 1, []string{"t: not compared", "u: 0 differences of 3 rows"}, "verify")

		r.refused(t, 3, []string{"ADD COLUMN"}, "resync", "--table", "t")
		r.atTarget(t, "alter table t add column v text")
		contains(t, r.must(t, "resync", "--table", "t"), "it was parked and is live")
		r.once(t)
		r.same(t)

		// Columns that nothing fills; here in all targets.
		for _, table := range []string{"t", "u"} {
			r.atTarget(t, "alter table "+table+" add column w int default 1; alter table "+table+" alter column w set not null; alter table "+table+" alter column w drop default")
		}
		r.exec(t, "insert into t values (100, 'x')", "insert into u values (100)")
		r.refused(t, 3, []string{"DROP NOT NULL"}, "run", "--once")
		r.refused(t, 3, []string{"DROP NOT NULL"}, "run")
		if out := r.must(t, "status"); strings.Contains(out, "parked") {
			t.Errorf("a refusal parked tables:\n%s", out)
		}
		r.atTarget(t, "alter table t alter column w drop not null", "alter table u alter column w drop not null")
		r.once(t)
		r.same(t)

		// Another declaration is no fault of the target: put back, it goes on.
		r.reconfigure(t, everything, "flows: [{source: public.t, stored_as_scd_type: 2}, {source: public.u}]")
		r.refused(t, 3, []string{"__START_AT"}, "run", "--once")
		r.reconfigure(t, "source: public.t, stored_as_scd_type: 2}, {source: public.u", "source: public.t}, {source: public.u")
		r.once(t)
		r.same(t)
	})
}
