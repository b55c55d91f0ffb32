package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest"
)

// restore takes a backup of tables at one moment of the source and restores it into the
// destination: with pg_dump and pg_restore where the server has them, else by COPY. It
// returns a position behind the backup's end.
func (r *rig) restore(t testing.TB, tables ...string) string {
	t.Helper()
	bin := r.server.Binaries.Dir
	if _, err := os.Stat(filepath.Join(bin, "pg_restore")); err == nil && bin != "" && r.dest.kind == "postgres" {
		args := []string{"--format=custom", "--no-publications", "--dbname=" + r.source}
		for _, table := range tables {
			args = append(args, "--table="+table)
		}
		dump := filepath.Join(t.TempDir(), "dump")
		for _, c := range []*exec.Cmd{
			exec.Command(filepath.Join(bin, "pg_dump"), append(args, "--file="+dump)...),
			exec.Command(filepath.Join(bin, "pg_restore"), "--exit-on-error", "--dbname="+r.dest.dsn, dump),
		} {
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c.Args[0], err, out)
			}
		}
	} else {
		r.copyAcross(t, tables...)
	}
	return r.one(t, "select pg_current_wal_insert_lsn()")
}

// copyAcross is a backup and restore by hand; the targets are made with their keys alone.
func (r *rig) copyAcross(t testing.TB, tables ...string) {
	t.Helper()
	ctx := context.Background()
	conn := r.server.Connect(t, r.source)
	defer conn.Close(ctx)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	for _, table := range tables {
		var columns string
		err := tx.QueryRow(ctx, `select string_agg(quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod) || case when i.indrelid is null then '' else ' primary key' end, ', ' order by a.attnum)
			from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary and a.attnum = any(i.indkey)
			where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped`, table).Scan(&columns)
		if err != nil {
			t.Fatal(err)
		}
		var rows bytes.Buffer
		if _, err := conn.PgConn().CopyTo(ctx, &rows, "copy "+table+" to stdout (format csv, null '\\N')"); err != nil {
			t.Fatal(err)
		}
		if r.dest.kind == "duckdb" {
			file := filepath.Join(t.TempDir(), "rows.csv")
			if err := os.WriteFile(file, rows.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			r.atTarget(t, "create table "+table+"("+strings.ReplaceAll(columns, " primary key", "")+")")
			if rows.Len() > 0 {
				r.atTarget(t, "copy "+table+" from '"+file+"' (format csv, header false, nullstr '\\N')")
			}
			continue
		}
		r.atTarget(t, "create table "+table+"("+columns+")")
		to := r.server.Connect(t, r.dest.dsn)
		if _, err := to.PgConn().CopyFrom(ctx, &rows, "copy "+table+" from stdin (format csv, null '\\N')"); err != nil {
			t.Fatal(err)
		}
		to.Close(ctx)
	}
}

// writing changes tables t, k and w of the source at random until it is told to stop.
func (r *rig) writing(t *testing.T) (stop func()) {
	rnd := seeded(t)
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	for n := range 2 {
		conn := r.server.Connect(t, r.source)
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(n)))
		g.Go(func() {
			defer conn.Close(context.Background())
			for i := 0; ctx.Err() == nil; i++ {
				id := rnd.IntN(300)
				sql := []string{
					fmt.Sprintf("update t set n = n + 1 where id = %d", id), // big is not sent
					fmt.Sprintf("update t set n = n + 1, big = repeat('%d', 4000) where id = %d", i%7, id),
					fmt.Sprintf("delete from t where id = %d", id),
					fmt.Sprintf("insert into t values (%d, %d, repeat('n', 4000)) on conflict do nothing", id, i),
					fmt.Sprintf("update k set id = %d where id = %d and not exists (select from k where id = %[1]d)", rnd.IntN(300), id),
					fmt.Sprintf("insert into k values (%d, 'x') on conflict do nothing; delete from k where id = %d", id, rnd.IntN(300)),
					fmt.Sprintf("begin; insert into k values (%d, 'y') on conflict (id) do update set v = k.v || 'z'; delete from t where id = %[1]d; insert into t values (%[1]d, 0, 'short'); commit", id),
					fmt.Sprintf("insert into w select i, 'w' from generate_series(%d, %d) i on conflict do nothing", id, id+20),
					"truncate w",
				}[rnd.IntN(9)]
				if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "23505") && !strings.Contains(err.Error(), "40P01") {
					t.Errorf("%s: %v", sql, err)
					return
				} else if err != nil && ctx.Err() == nil { // two writers met
					_, _ = conn.PgConn().Exec(ctx, "rollback").ReadAll()
				}
			}
		})
	}
	return func() { cancel(); g.Wait() }
}

const adoptable = `create table t(id int primary key, n int, big text); alter table t alter column big set storage external; insert into t select i, i, repeat('b', 4000) from generate_series(1, 200) i;
create table k(id int primary key, v text); insert into k select i, 'v' from generate_series(1, 200) i;
create table w(id int primary key, v text); insert into w select i, 'v' from generate_series(1, 50) i`

func (r *rig) prepare(t testing.TB, more ...string) string {
	t.Helper()
	out := r.must(t, "backfill", append([]string{"--prepare"}, more...)...)
	contains(t, out, "prepared at ", "next:", "--adopt")
	return out
}

// A backup that is taken while the source is being written, at a moment that only the
// backup knows, is taken over, and no change is lost or seen twice.
func TestABackupOfABusySourceIsAdopted(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, adoptable, "batch: {max_rows: 40}\n"+everything)
		stop := r.writing(t)
		defer stop()
		time.Sleep(200 * time.Millisecond)
		r.prepare(t)
		out := r.refused(t, 1, []string{"(prepared)", "keeps ", "backfill --adopt"}, "status", "--check")
		contains(t, out, "continuity  whole")
		r.refused(t, 3, []string{"prepared at", "restore a backup", "backfill --adopt"}, "run")
		contains(t, r.must(t, "check"), "prepared at", "nothing is copied")
		contains(t, r.must(t, "plan"), "-- then: prepared at")
		time.Sleep(300 * time.Millisecond)
		end := r.restore(t, "t", "k", "w")
		time.Sleep(200 * time.Millisecond)
		until := []string{"--adopt"}
		if kind == "postgres" {
			until = append(until, "--until", end)
		}
		contains(t, r.must(t, "backfill", until...), "adopted at", "catching until the mark has reached", "next: tailrace run")
		contains(t, r.must(t, "status"), "catching")
		p := r.start(t, []string{"TAILRACE_KILL_AT=applied:3"}) // and killed on its way
		if code := p.wait(t, time.Minute); code != -1 {
			t.Fatalf("it was not killed: exit %d\n%s", code, tail(p.output.String()))
		}
		r.once(t)
		out = r.must(t, "status", "--check")
		if strings.Contains(out, "catching") {
			t.Errorf("after the end of the backup:\n%s", out)
		}
		p = r.start(t, nil)
		r.following(t, p)
		time.Sleep(300 * time.Millisecond)
		stop()
		p.stop(t)
		r.same(t)
		r.refused(t, 3, []string{"has begun", "tailrace run"}, "backfill", "--adopt")
		r.refused(t, 3, []string{"has begun"}, "backfill", "--prepare")
	})
}

// What the log has from before the backup does no harm to rows that have seen it, in one
// batch or in many.
func TestChangesThatTheBackupHoldsAreHarmless(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		for _, rows := range []string{"1", "50000"} {
			t.Run(rows, func(t *testing.T) {
				r := newRig(t, server, kind, adoptable, "batch: {max_rows: "+rows+"}\n"+everything)
				r.env = []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB"}
				r.prepare(t)
				for _, sql := range []string{
					"update t set n = -1 where id = 1", "delete from t where id = 1", // a partial row that is gone
					"update t set n = -2 where id = 2", "delete from t where id = 2", "insert into t values (2, 2, repeat('again', 1000))",
					"insert into t values (1000, 1, 'x')", "delete from t where id = 1000", // came and went
					"insert into t values (1001, 1, 'x')",
					"update k set id = id + 1000 where id < 20", "update k set id = id - 1000 where id between 1005 and 1010", // there and back
					"update k set v = 'u' where id > 100; delete from k where id = 150",
					"truncate w", "insert into w select i, 'after' from generate_series(40, 60) i",
					"update t set n = n + 7 where id > 20", // in pieces
				} {
					r.exec(t, sql)
				}
				r.restore(t, "t", "k", "w")
				for _, sql := range []string{
					"delete from t where id in (1001, 2)", "insert into t values (1, 1, 'back')", "update t set n = 0 where id = 30",
					"insert into k values (150, 'back')", "update k set id = 5000 where id = 1011", "update w set v = 'late' where id = 41",
					"begin; insert into t select i, 0, repeat('p', 3000) from generate_series(2000, 2100) i; delete from t where id between 2050 and 2060; update t set n = 9 where id >= 2000; commit",
				} {
					r.exec(t, sql)
				}
				r.must(t, "backfill", "--adopt")
				r.once(t)
				r.same(t)
				r.exec(t, "update t set n = 1", "truncate w")
				r.once(t)
				r.same(t)
			})
		}
	})
}

// A row that changed its key, while the log leaves its large column out, was at one of two
// places when the backup was taken: nobody can tell. Its table is parked, and not guessed.
func TestAKeyChangeOfALargeRowIsNotGuessed(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, adoptable, everything)
		r.prepare(t)
		r.exec(t, "update t set big = repeat('other', 1000) where id = 2; update t set id = 9999 where id = 1; update t set id = 1 where id = 2; insert into k values (777, 'k')")
		r.restore(t, "t", "k", "w")
		r.must(t, "backfill", "--adopt")
		r.refused(t, 1, []string{"the key of a row of table public.t changed", "tailrace resync --table", "tailrace: parked: "}, "run", "--once")
		r.refused(t, 1, []string{"t: not compared", "k: 0 differences", "w: 0 differences"}, "verify")
		r.must(t, "resync", "--table", "t")
		r.once(t)
		r.same(t)
	})
}

// An ALTER TABLE changes rows and is in no log: what it did between slot and backup is not
// undone by the changes from before it.
func TestATableThatWasAlteredBeforeTheBackupIsParked(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, adoptable, everything)
		r.prepare(t)
		r.exec(t, "delete from k where id = 1; insert into k values (1, 'new')", "alter table k add column c int default 7")
		r.restore(t, "t", "k", "w")
		r.must(t, "backfill", "--adopt")
		r.refused(t, 1, []string{"the columns of table public.k were changed", "tailrace: parked: "}, "run", "--once")
		r.must(t, "resync", "--table", "k")
		r.once(t)
		r.same(t)
	})
}

// A second unique index holds for each moment of the source, and a table that catches up
// stands between moments: it is parked by name, not made wrong.
func TestASecondUniqueIndexMayParkATableThatCatchesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "postgres", "create table t(id int primary key, v text unique); insert into t values (1, 'a'), (2, 'b'); create table u(id int primary key)", "batch: {max_rows: 1}\n"+everything)
	r.prepare(t)
	r.exec(t, "update t set v = 'c' where id = 1", "update t set v = 'd' where id = 1", "update t set v = 'c' where id = 2")
	r.copyAcross(t, "t", "u")
	r.atTarget(t, "create unique index second on t(v)")
	r.must(t, "backfill", "--adopt")
	r.refused(t, 1, []string{"second", "remedy: ", "tailrace: parked: "}, "run", "--once")
	r.atTarget(t, "drop index second")
	r.must(t, "resync", "--table", "t")
	r.same(t)
}

func TestWhatCannotBeAdoptedIsRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		const only = "--table=t"
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, 'v' from generate_series(1, 9) i; analyze t; create table log(v text); insert into log values ('one'); create table feed(id int, n int, op text); insert into feed values (1, 1, 'w')",
			"flows:\n  - {source: public.t}\n  - {source: public.t, target: t_history, stored_as_scd_type: 2}\n  - {source: public.log}\n  - {source: public.feed, source_kind: feed, target: now, keys: [id], sequence_by: n, except_column_list: [n, op]}\n#more")
		out := r.refused(t, 3, []string{"t_history (it keeps a history", "log (it has no key", "now (it is made of events", "--table"}, "backfill", "--prepare")
		contains(t, out, "cannot be taken over")
		r.leftNothing(t)
		contains(t, r.must(t, "status"), "not started")
		r.refused(t, 2, []string{"--until"}, "backfill", "--until", "0/1")
		r.refused(t, 2, []string{"no position"}, "backfill", "--adopt", "--until", "yesterday")
		r.refused(t, 2, []string{"--table nothing"}, "backfill", "--prepare", "--table", "nothing")
		if _, code := r.command(t, nil, "backfill", "--adopt", "--overwrite"); code != 2 {
			t.Errorf("--adopt --overwrite: exit %d", code)
		}
		r.reconfigure(t, "flows:", "hydrate: {mode: prepare}\nflows:")
		r.refused(t, 3, []string{"not prepared yet", "backfill --prepare"}, "run")
		contains(t, r.must(t, "check"), "hydrate.mode is prepare", "t_history cannot be taken over")
		before := r.one(t, "select pg_current_wal_insert_lsn()")
		contains(t, r.must(t, "backfill", only), "prepared at") // hydrate.mode
		contains(t, r.must(t, "backfill", only), "prepared at") // it is said again
		r.refused(t, 3, []string{"t is not there", "restore it"}, "backfill", "--adopt", only)
		r.atTarget(t, "create table t(id int primary key, v text)")
		r.refused(t, 3, []string{"t is empty", "nothing was restored"}, "backfill", "--adopt", only)
		r.atTarget(t, "drop table t")
		r.restore(t, "t")
		r.refused(t, 3, []string{"before the slot was made"}, "backfill", "--adopt", only, "--until", before)
		r.refused(t, 3, []string{"before --until"}, "backfill", "--adopt", only, "--until", "FFFF/0")
		r.refused(t, 3, []string{"cannot be taken over"}, "backfill", "--adopt")
		r.exec(t, "create table late(id int primary key); insert into late values (1)")
		r.reconfigure(t, "#more", "  - {source: public.late}\n#more")
		r.restore(t, "late")
		r.refused(t, 3, []string{"late was not published when the slot was made", "--table"}, "backfill", "--adopt", only, "--table", "late")
		r.atTarget(t, "alter table t drop column v")
		r.refused(t, 3, []string{"ADD COLUMN"}, "backfill", "--adopt", only)
		r.atTarget(t, "drop table t", "drop table late")
		r.restore(t, "t")

		out = r.must(t, "backfill", "--adopt", only)
		contains(t, out, "not named; run makes them", "t_history", "log", "now", "late")
		r.exec(t, "update t set v = 'w' where id = 1; insert into log values ('two'); insert into feed values (2, 2, 'w')")
		r.once(t) // hydrate.mode is over, and the others are copied
		r.same(t)
		r.once(t)
	})
}

// Targets that hold what the source holds are taken over without a copy: current rows,
// rows without a key, and histories of our shape.
func TestEqualTargetsAreAdopted(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		const flows = "flows: [{source: public.t}, {source: public.log}, {source: public.t, target: t_history, stored_as_scd_type: 2}]"
		r := newRig(t, server, kind, "create table t(id int primary key, v text, n numeric); insert into t select i, 'v', i + 0.50 from generate_series(1, 900) i; create table log(v text); insert into log values ('one'), ('one'), (null)", flows)
		r.once(t)
		r.exec(t, "update t set v = 'w' where id < 10; delete from t where id = 20")
		r.once(t)
		all, open := r.versions(t, "t_history")
		r.must(t, "teardown", "--yes") // the targets are anybody's now
		r.refused(t, 3, []string{"holds rows, and no mark"}, "run", "--once")

		// Nothing is adopted where something differs, and nothing is left.
		r.exec(t, "update t set v = 'x' where id = 5; insert into log values ('two')")
		out := r.refused(t, 1, []string{"t: 1 differences of 899 rows", "id=5: values differ", "log: 1 differences", "t_history: 1 differences", "nothing was adopted"}, "backfill", "--adopt")
		if strings.Contains(out, "adopted at") {
			t.Errorf("it was adopted:\n%s", out)
		}
		r.leftNothing(t)
		contains(t, r.must(t, "status"), "not started")
		r.refused(t, 3, []string{"holds rows, and no mark"}, "run", "--once")
		r.refused(t, 2, []string{"--until"}, "backfill", "--adopt", "--until", "0/1")

		r.exec(t, "update t set v = 'w' where id = 5; delete from log where v = 'two'")
		for _, point := range []string{"mark preparing", "slot made", "compared"} {
			p := start(t, []string{"TAILRACE_KILL_AT=" + point}, r.args("backfill", "--adopt")...)
			if code := p.wait(t, time.Minute); code != -1 {
				t.Fatalf("%s was never reached: exit %d\n%s", point, code, tail(p.output.String()))
			}
			r.refused(t, 3, []string{"was interrupted", "backfill --adopt"}, "run", "--once") // and no row is emptied
			r.refused(t, 1, []string{"(preparing)", "interrupted"}, "status", "--check")
		}
		contains(t, r.must(t, "backfill", "--adopt"), "0 differences of 899 rows", "adopted at", "next: tailrace run")
		r.exec(t, "update t set v = 'y' where id = 7; delete from t where id = 8; insert into t values (8, 'again', 1); insert into log values ('three')")
		r.once(t)
		r.same(t)
		if a, o := r.versions(t, "t_history"); a != all+2 || o != open {
			t.Errorf("%d versions, %d open; before %d and %d", a, o, all, open)
		}

		// Named targets that differ are parked; the others are copied by run.
		r.must(t, "teardown", "--yes")
		r.exec(t, "update t set v = 'z' where id = 9")
		r.atTarget(t, "drop table t_history")
		out = r.refused(t, 1, []string{"adopted at", "parked, because they differ: ", "t: 1 differences", "not named", "t_history", "tailrace: parked: "}, "backfill", "--adopt", "--table", "t", "--table", "log")
		contains(t, out, "log: 0 differences")
		r.onceParked(t)
		r.must(t, "resync", "--table", "t")
		r.once(t)
		r.same(t)
	})
}

// Killed anywhere between the first command and the stream, the same command goes on.
func TestKilledWhileItPreparesAndAdopts(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, adoptable, everything)
		dies := func(point string, more ...string) {
			t.Helper()
			p := start(t, []string{"TAILRACE_KILL_AT=" + point}, r.args("backfill", more...)...)
			if code := p.wait(t, time.Minute); code != -1 {
				t.Fatalf("%s was never reached: exit %d\n%s", point, code, tail(p.output.String()))
			}
		}
		for _, point := range []string{"mark preparing", "slot made"} {
			dies(point, "--prepare")
			r.refused(t, 3, []string{"was interrupted", "backfill --prepare"}, "run")
		}
		dies("mark prepared", "--prepare")
		at := between(r.prepare(t), "prepared at ")
		if mark := r.must(t, "status"); !strings.Contains(mark, strings.Fields(at)[0]) {
			t.Errorf("it was prepared again: %s\n%s", at, mark)
		}
		r.exec(t, "update t set n = 1 where id < 50; delete from k where id < 50")
		r.restore(t, "t", "k", "w")
		r.exec(t, "delete from t where id < 20")
		dies("adopted", "--adopt")
		r.refused(t, 3, []string{"has begun", "tailrace run"}, "backfill", "--adopt")
		r.dies(t, "before apply")
		r.dies(t, "applied")
		r.once(t)
		r.same(t)

		// A beginning that is given up leaves nothing, and a copy may take its place.
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
		r.prepare(t)
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
		r.prepare(t)
		r.once(t, "--overwrite")
		r.same(t)
	})
}
