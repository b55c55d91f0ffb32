package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// The log describes a table anew when its identity changes; what is sent changes
// with it.
func TestIdentityThatChangesWhileRunning(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, n int, big text, other int not null default 0); alter table t alter big set storage external; insert into t select i, 1, repeat('x', 9000), i from generate_series(1, 9) i; create unique index by_other on t(other)", withHistory)
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "update t set n = 2")
		r.exec(t, "alter table t replica identity full")
		r.through(t, "update t set n = 3", "delete from t where id = 9")
		r.through(t, "update t set n = 30 where id = 1", "alter table t replica identity default", "update t set n = 31 where id = 1", "update t set id = 102 where id = 2")
		r.through(t, "update t set n = 4 where id < 5", "update t set id = id + 1000 where id = 3", "delete from t where id = 4")
		p.stop(t)
		r.same(t)
		_, rows := r.shown(t, "t_history")
		for _, row := range rows {
			if len(row[2]) != 9000 {
				t.Errorf("a version of key %s has lost its large value", row[0])
			}
		}
	})
}

// A table that loses its identity is set aside before the application notices, the
// others go on, and the printed remedy brings it back.
func TestIdentityThatIsLostWhileRunning(t *testing.T) {
	server := dbtest.Postgres(t)
	losses := map[string]struct{ lose, mend string }{
		"key dropped":      {"alter table t drop constraint t_pkey", "alter table t add primary key (id)"},
		"identity nothing": {"alter table t replica identity nothing", "REPLICA IDENTITY"},
		"index dropped":    {"drop index i", "REPLICA IDENTITY"},
	}
	overOneKind(t, func(t *testing.T, kind string) {
		for name, loss := range losses {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				schema := "create table t(id int primary key, v text); insert into t values(1, 'a'), (2, 'b'); create table calm(id int primary key)"
				flows := withHistory
				if name == "index dropped" {
					schema = strings.Replace(schema, "id int primary key, v", "id int not null, v", 1) + "; create unique index i on t(id); alter table t replica identity using index i"
				}
				r := newRig(t, server, kind, schema, flows)
				p := r.start(t, nil)
				r.following(t, p)
				r.through(t, "update t set v = 'c' where id = 1")
				r.exec(t, loss.lose)
				lost := time.Now()
				conn := server.Connect(t, r.source)
				eventually(t, 30*time.Second, "the application's UPDATE works again", func() bool {
					_, err := conn.Exec(t.Context(), "update t set v = 'd' where id = 2")
					return err == nil
				})
				t.Logf("after %s", time.Since(lost).Round(time.Millisecond))
				p.says(t, patience, "table is parked")
				r.through(t, "insert into calm values(1)")
				r.through(t, "insert into calm values(2)", "delete from calm where id = 1")
				p.stop(t)
				out := r.refused(t, 1, []string{"parked", "remedy: "}, "status", "--check")
				contains(t, out, "public.t", "tailrace resync --table")
				r.refused(t, 1, []string{"not compared", "parked"}, "verify")
				// Others go on over a restart, too.
				p = r.start(t, nil)
				r.following(t, p)
				r.through(t, "insert into calm values(3)", "insert into t values(3, 'unseen')")
				p.stop(t)

				mend := loss.mend
				if mend == "REPLICA IDENTITY" { // as it is printed
					_, mend, _ = strings.Cut(out, "ALTER TABLE ")
					mend, _, _ = strings.Cut(mend, ", then: ")
					mend = "ALTER TABLE " + mend
				}
				r.exec(t, mend)
				tables := []string{}
				for _, target := range []string{"t", "t_history"} {
					tables = append(tables, "--table", target)
				}
				if name == "index dropped" { // FULL knows no key: the flow names it
					r.reconfigure(t, withHistory, "flows: [{source: public.calm}, {source: public.t, keys: [id]}, {source: public.t, target: t_history, keys: [id], stored_as_scd_type: 2}]")
				}
				r.must(t, "backfill", append(tables, "--overwrite")...)
				r.exec(t, "update t set v = 'e'; delete from t where id = 1")
				r.once(t)
				r.same(t)
				r.refused(t, 0, nil, "status", "--check")
			})
		}
	})
}

// An identity that was lost while nothing ran does not make the application wait
// for a person either.
func TestIdentityThatIsLostWhileStopped(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t values(1, 'a'), (2, 'b'); create table calm(id int primary key)", withHistory)
		r.once(t)
		r.exec(t, "update t set v = 'c'", "alter table t replica identity nothing")
		p := r.start(t, nil)
		p.says(t, 30*time.Second, "table is parked")
		eventually(t, 30*time.Second, "the application's UPDATE works", func() bool {
			_, err := server.Connect(t, r.source).Exec(t.Context(), "update t set v = 'd' where id = 2")
			return err == nil
		})
		r.following(t, p)
		r.through(t, "insert into calm values(1)")
		p.stop(t)
		out := r.refused(t, 1, []string{"parked", "public.t"}, "status", "--check")
		contains(t, out, "REPLICA IDENTITY DEFAULT")
		r.exec(t, "alter table t replica identity default")
		r.must(t, "backfill", "--table", "t", "--table", "t_history", "--overwrite")
		r.once(t)
		r.same(t)
	})
}

// New columns appear, dropped ones stay; nothing stops.
func TestColumnsThatComeAndGo(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, a text, b int); insert into t values(1, 'one', 1), (2, 'two', 2)", withHistory)
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into t values(3, 'three', 3)")
		r.exec(t, "alter table t add column c timestamptz")
		r.through(t, "update t set c = '2024-01-01+00' where id = 1", "insert into t values(4, 'four', 4, '2025-01-01+00')")
		r.through(t, "alter table t add column d numeric(5,2)", "insert into t values(5, 'five', 5, null, 1.50)")
		p.says(t, patience, "new column")
		r.exec(t, "alter table t drop column b")
		r.through(t, "update t set a = 'TWO' where id = 2", "insert into t values(6, 'six', null, 6)")
		p.says(t, patience, "lost a column")
		p.stop(t)
		header, rows := r.shown(t, "t")
		want := [][]string{{"1", "one", "1", "2024-01-01 00:00:00+00", null}, {"2", "TWO", "2", null, null}, {"3", "three", "3", null, null}, {"4", "four", "4", "2025-01-01 00:00:00+00", null}, {"5", "five", "5", null, "1.50"}, {"6", "six", null, null, "6.00"}}
		if fmt.Sprint(rows) != fmt.Sprint(want) || fmt.Sprint(header) != "[id a b c d]" {
			t.Errorf("%v %q", header, rows)
		}
		// While it is stopped, too.
		r.exec(t, "alter table t add column e text; update t set a = 'x' where id = 3; alter table t drop column c; insert into t(id, a) values(7, 'seven')")
		r.once(t)
		r.same(t)
		if _, open := r.versions(t, "t_history"); open != 7 {
			t.Errorf("%d open versions", open)
		}
		// A default of the source's is in no log: old rows have NULL, and verify tells.
		r.exec(t, "alter table t add column f int not null default 7; update t set a = 'y' where id = 1")
		contains(t, r.once(t), "NULL in rows that are there", "ADD COLUMN")
		r.refused(t, 1, []string{"t: 6 differences of 7 rows"}, "verify", "--table", "t")
		r.must(t, "backfill", "--table", "t", "--table", "t_history", "--overwrite")
		r.once(t)
		r.same(t)
	})
}

// Inside one transaction a layout cannot be taken apart from rows: the remedy is
// printed, and works.
func TestColumnAddedBetweenRowsOfOneTransaction(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, a text); insert into t values(1, 'one')", everything)
		r.once(t)
		r.commit(t, "insert into t values(2, 'two')", "alter table t add column c int", "update t set c = 5")
		out, code := r.command(t, nil, "run", "--once")
		if code != 0 {
			if code != 1 && code != 3 {
				t.Errorf("exit %d", code)
			}
			contains(t, out, "public", "remedy: ", "tailrace resync --table")
			r.must(t, "backfill", "--table", "t", "--overwrite")
			r.once(t)
		}
		r.same(t)
	})
}

// A table that was dropped and made again is another table: it is never mixed with
// the old one.
func TestTableThatWasDroppedAndMadeAgain(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, z int); insert into t values(1, 1); create table calm(id int primary key)", withHistory)
		r.once(t)
		remake := "drop table t; create table t(id int primary key, z int); insert into t values(7, 7)"
		r.exec(t, remake, "insert into calm values(1)")
		contains(t, r.onceParked(t), "table is parked", "made again")
		r.refused(t, 1, []string{"public.t", "made again", "remedy: ", "tailrace resync --table"}, "status", "--check")
		if _, rows := r.shown(t, "calm"); len(rows) != 1 {
			t.Errorf("the others did not go on: %v", rows)
		}
		r.must(t, "backfill", "--table", "t", "--table", "t_history", "--overwrite")
		r.once(t)
		r.same(t)
		// The same while it runs.
		p := r.start(t, nil)
		r.following(t, p)
		r.exec(t, remake)
		p.says(t, 30*time.Second, "made again")
		r.through(t, "insert into calm values(2)")
		p.stop(t)
		r.refused(t, 1, []string{"public.t", "parked"}, "status", "--check")
		r.must(t, "backfill", "--table", "t", "--table", "t_history", "--overwrite")
		r.once(t)
		r.same(t)
	})
}

// A key that comes or goes while nothing runs changes what can be seen of a table:
// it is not followed in another way in silence.
func TestKeyThatComesOrGoesWhileStopped(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table had(id int primary key, v text); insert into had values(1, 'a'), (2, 'b'); create table gets(id int, v text); insert into gets values(1, 'a'), (2, 'b'); create table calm(id int primary key)", everything)
		r.once(t)
		r.exec(t, "delete from gets where id = 1", "alter table had drop constraint had_pkey; alter table gets add primary key(id)", "update gets set v = 'c'; insert into had values(3, 'c'); insert into calm values(1)")
		r.onceParked(t)
		out := r.refused(t, 1, []string{"had is parked", "gets is parked", "remedy: "}, "status", "--check")
		contains(t, out, "ADD PRIMARY KEY")
		r.exec(t, "update had set v = 'x'", "alter table had add primary key(id)")
		r.must(t, "backfill", "--table", "had", "--table", "gets", "--overwrite")
		r.exec(t, "update gets set v = 'd'; delete from had where id = 1")
		r.once(t)
		r.same(t)
	})
}
