package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// largeTables are such as are cut differently: never analysed and half of it dead;
// with its values out of line; partitioned, one partition empty; without a key.
const largeTables = `
create table big(id int primary key, v text) with (autovacuum_enabled = off);
insert into big select i, repeat('x', 200) from generate_series(1, 12000) i;
delete from big where id % 3 = 0; update big set v = 'y' where id % 5 = 0;
create table wide(id int primary key, v text); alter table wide alter v set storage external;
insert into wide select i, repeat(md5(i::text), 200) from generate_series(1, 300) i;
create table split(id int, at int, v text, primary key (id, at)) partition by range (at);
create table split_1 partition of split for values from (0) to (10);
create table split_2 (v text, at int not null, id int not null, primary key (id, at)); alter table split attach partition split_2 for values from (10) to (20);
create table split_3 partition of split for values from (20) to (30) partition by range (id); create table split_3a partition of split_3 for values from (0) to (1000000000);
create table split_4 partition of split for values from (30) to (40);
insert into split select i, i % 30, repeat('z', 100) from generate_series(1, 6000) i;
create table log(v text); insert into log select repeat('l', 90) from generate_series(1, 6000);
create table small(id int primary key); insert into small select generate_series(1, 10);
`

const inParts = "hydrate: {workers: 3, split_bytes: 64KiB}\n"

// Rows change while the parts are read, from all sides of the bounds; the copy is
// one moment all the same.
func TestLargeTablesAreCopiedInParts(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, largeTables, inParts+"flows: [{source: public.*}, {source: public.big, target: big_history, stored_as_scd_type: 2}]")
		r.env = asUsersRun
		stop := r.load(t, 2, func(n int64, exec func(string) error) error {
			k := 1 + n*7919%12000
			return exec(fmt.Sprintf("update big set v = v || 'u' where id = %d; delete from big where id = %d; insert into big values(%d, 'new'); update split set at = (at + 7) %% 30 where id = %[1]d; update wide set v = v || 'w' where id = %[4]d", k, k+1, 100000+n, 1+n%300))
		})
		p := r.start(t, nil)
		r.following(t, p)
		stop()
		p.stop(t)
		r.once(t)
		r.same(t)
		parts := strings.Count(p.output.String(), "copied in parts")
		if want := map[string]int{"duckdb": 0, "postgres": 5, "mysql": 5}[kind]; parts != want {
			t.Errorf("%d tables were copied in parts, want %d", parts, want)
		}
		for _, table := range []string{"big", "wide", "split", "log"} {
			r.equalRows(t, table, "select * from "+table)
		}
	})
}

// A reader of the destination finds no table, or the whole of it, with its key.
func TestCopyInPartsShowsAllOrNothing(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "postgres", largeTables, inParts+everything)
	r.atTarget(t, "create role "+t.Name(), "alter default privileges in schema public grant select on tables to "+t.Name())
	t.Cleanup(func() { r.atTarget(t, "drop owned by "+t.Name(), "drop role "+t.Name()) })
	want := r.one(t, "select count(*) from big")
	reader := server.Connect(t, r.dest.dsn)
	defer reader.Close(context.Background())
	p := r.start(t, nil)
	absent, whole := 0, 0
	for deadline := time.Now().Add(30 * time.Second); whole == 0 && time.Now().Before(deadline); {
		var n string
		err := reader.QueryRow(context.Background(), "select count(*)::text from public.big").Scan(&n)
		switch {
		case err != nil && strings.Contains(err.Error(), "42P01"):
			absent++
		case err != nil:
			t.Fatal(err)
		case n == want:
			whole++
		case n != "0": // in the moment in which it is made
			t.Fatalf("a reader saw %s rows of %s", n, want)
		}
	}
	if absent == 0 || whole == 0 {
		t.Errorf("the table was absent %d times and whole %d times", absent, whole)
	}
	r.following(t, p)
	p.stop(t)
	if got := server.Query(t, r.dest.dsn, "select has_table_privilege('"+strings.ToLower(t.Name())+"', 'big', 'select'), (select count(*) from pg_index where indrelid = 'big'::regclass and indisprimary), (select string_agg(indexrelid::regclass::text, ' ') from pg_index where indrelid = 'big'::regclass), (select count(*) from pg_class where relname like 'copy\\_%')"); got[0] != "t|1|big_pkey|0" {
		t.Errorf("privilege, keys, key's name and what is left in _tailrace: %v", got)
	}
}

// A kill between parts begins that table again; one after the last part puts it in its
// place and copies nothing.
func TestCrashesOfACopyInParts(t *testing.T) {
	server := dbtest.Postgres(t)
	points := []string{"part loaded:1", "part loaded:7", "parts loaded"}
	for kind, points := range map[string][]string{"postgres": points, "mysql": append(points[:3:3], "parts placed")} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			big := uniqueName("big")
			r := newRig(t, server, kind, largeTables, inParts+"flows: [{source: public.big, target: "+big+"}, {source: public.small}]")
			change := func() {
				r.exec(t, "update big set v = v || 'c' where id % 7 = 0; delete from big where id % 11 = 1; insert into big select i, 'n' from generate_series(1, 300) i on conflict do nothing")
			}
			leaves := func(when string) {
				t.Helper()
				sql, left := "select count(*) from information_schema.tables where table_name like 'copy%"+big+"'", []string{}
				if kind == "mysql" {
					left = dbtest.MariaDB(t).Query(t, "", sql)
				} else {
					left = server.Query(t, r.dest.dsn, sql)
				}
				if left[0] != "0" {
					t.Errorf("%s tables of unfinished copies are left %s", left[0], when)
				}
			}
			for _, point := range points {
				r.dies(t, point)
				change()
				contains(t, r.must(t, "status"), "copying")
			}
			p := r.start(t, nil)
			r.following(t, p)
			p.stop(t)
			out := p.output.String()
			contains(t, out, "it is put in its place", "action=\"resume copy\"")
			if strings.Contains(out, "."+big+" parts") {
				t.Errorf("its rows were copied again:\n%s", tail(out))
			}
			r.once(t)
			r.same(t)
			leaves("after the copy")
			// One that was left in the middle is nowhere after a new beginning.
			r.must(t, "teardown", "--yes")
			r.atTarget(t, "drop table "+big+", small")
			r.dies(t, "part loaded:2")
			r.reconfigure(t, "split_bytes: 64KiB", "split_bytes: 0")
			r.once(t, "--overwrite")
			r.same(t)
			leaves("after a copy in one stream")
			r.must(t, "teardown", "--yes")
			r.reconfigure(t, "split_bytes: 0", "split_bytes: 64KiB")
			r.atTarget(t, "drop table "+big+", small")
			r.dies(t, "part loaded:2")
			r.must(t, "teardown", "--yes")
			leaves("after teardown")
		})
	}
}

// A table that is truncated, or a partition that comes or goes, between two parts:
// the copy begins again under another snapshot.
func TestPartsNoticeAnotherShapeOfTheTable(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	for _, c := range []struct{ name, sql string }{
		{"truncated", "truncate big; insert into big values(1, 'again')"},
		{"rewritten", "alter table big alter id type bigint"},
		{"attached", "create table split_5 partition of split for values from (50) to (60); insert into split values(1, 55, 'late')"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, server, "postgres", largeTables, "hydrate: {workers: 1, split_bytes: 64KiB, max_rate: 1MiB}\n"+everything)
			p := r.start(t, nil)
			p.says(t, patience, "msg=copying")
			r.exec(t, c.sql)
			p.says(t, patience, "will try again")
			p.kill()
			r.reconfigure(t, ", max_rate: 1MiB", "")
			r.once(t)
			r.same(t)
		})
	}
}
