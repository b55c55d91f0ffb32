package main

import (
	"database/sql"
	"path"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// mysqlSchema has what the targets of one pipeline differ in: a table with many types,
// one without a key, one whose rows change their keys, and a change feed.
const mysqlSchema = `create table a(id int primary key, v int not null, note text, n numeric(12,2), at timestamptz, raw bytea, tags text[], doc jsonb, f real, ok bool);
insert into a select i, i, 'note ' || i, i * 1.25, '2026-01-01 00:00:00+00'::timestamptz + i * interval '1 microsecond', decode(lpad(to_hex(i), 8, '0'), 'hex'), array['x', null, i::text], json_build_object('n', i)::jsonb, i / 3.0, i % 2 = 0 from generate_series(1, 3000) i;
create table k(id text primary key, v int); insert into k values ('a', 1), ('A', 2), ('ä', 3), ('a ', 4), ('', 5), (' ', 6), ('it''s \ ` + "`" + ` "', 7);
create table log(what text); insert into log values ('x'), ('x'), (null);
create table cdf(id int, city text, op text, n int);
insert into cdf values (1, 'Oaxaca', 'I', 1), (2, 'Monterrey', 'I', 1), (2, null, 'D', 6), (2, 'Chihuahua', 'U', 5), (3, 'Tijuana', 'I', 2), (3, 'Guadalajara', 'U', 6), (3, 'Mexicali', 'U', 5)`

const mysqlFlows = `flows:
  - {source: public.a}
  - {source: public.k}
  - {source: public.log}
  - {source: public.a, target: a_history, stored_as_scd_type: 2, track_history_except_column_list: [note]}
  - {source: public.cdf, source_kind: feed, target: now, keys: [id], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
  - {source: public.cdf, source_kind: feed, target: past, keys: [id], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n], stored_as_scd_type: 2}`

// ansi makes a session of MariaDB read the statements that the other destinations get.
const ansi = "SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES'"

// queryMySQL runs a query in a database of the test's server as the other destinations
// get it.
func queryMySQL(t testing.TB, database, query string) [][]string {
	t.Helper()
	return queryMyServer(t, dbtest.MySQL(t), database, strings.ReplaceAll(query, " as varchar)", " as char)"), ansi)
}

// queryMyServer runs a query, after other statements of its session: every column as
// text, null for NULL.
func queryMyServer(t testing.TB, server *dbtest.MyServer, database, query string, before ...string) (rows [][]string) {
	t.Helper()
	db := server.Open(t, database)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, statement := range before {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	got, err := conn.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer got.Close()
	columns, err := got.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for got.Next() {
		cells, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := got.Scan(into...); err != nil {
			t.Fatal(err)
		}
		row := make([]string, len(columns))
		for i, c := range cells {
			if row[i] = c.String; !c.Valid {
				row[i] = null
			}
		}
		rows = append(rows, row)
	}
	if err := got.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// What a person asks of a running daemon reaches it, and what was changed by hand goes.
func TestMySQLAnswersAndIsMended(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "mysql", mysqlSchema, mysqlFlows)
	p := r.start(t, nil)
	r.following(t, p)
	r.through(t, "update a set v = v + 1 where id <= 100", "delete from a where id = 7")
	contains(t, r.must(t, "status"), "a_history", "live")
	contains(t, r.must(t, "verify"), "\n0 differences of ")
	r.must(t, "pause")
	r.must(t, "resume")
	r.atTarget(t, "UPDATE a SET n = 0 WHERE id = 1", "DELETE FROM a WHERE id BETWEEN 10 AND 19", "INSERT INTO a (id, v) VALUES (-1, 1)",
		"UPDATE a_history SET v = -5 WHERE id = 3 AND __END_AT IS NULL", "DELETE FROM a_history WHERE id = 50")
	out, code := r.command(t, nil, "verify")
	if code != 1 || strings.Contains(out, "\n0 differences of ") {
		t.Errorf("verify sees nothing: exit %d\n%s", code, tail(out))
	}
	contains(t, r.must(t, "resync", "--table", "a"), "1 rows removed, 11 written")
	contains(t, r.must(t, "resync", "--table", "a_history"), "1 versions ended, 2 began")
	p.stop(t)
	r.same(t)
	contains(t, r.must(t, "show", "past", "--as-of", "5"), "Chihuahua", "Mexicali")
	contains(t, r.must(t, "explain", "--flow", "now", "--key", "2"), "D")
	r.must(t, "teardown", "--yes")
	r.leftNothing(t)
}

// A value that its column cannot hold, and a trigger, park one table with the remedy; the
// password is shown nowhere.
func TestMySQLParksWhatItCannotHold(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "mysql", "create table t(id int primary key, at timestamptz); insert into t values (1, now()); create table other(id int primary key)", everything)
	r.once(t)
	r.exec(t, "insert into t values (2, 'infinity')", "insert into other values (1)")
	out := r.refused(t, 1, nil, "run", "--once")
	contains(t, out, "table is parked", "column at", "MODIFY `at` LONGTEXT")
	if strings.Contains(out, "throw-away") {
		t.Errorf("the password is shown:\n%s", tail(out))
	}
	name := path.Base(r.dest.dsn)
	if got := dbtest.MySQL(t).Query(t, name, "SELECT (SELECT COUNT(*) FROM t), (SELECT COUNT(*) FROM other)"); got[0] != "1|1" {
		t.Errorf("rows: %v", got)
	}
	r.atTarget(t, "ALTER TABLE t MODIFY `at` LONGTEXT CHARACTER SET utf8mb4")
	contains(t, r.must(t, "resync", "--table", "t"), "it was parked and is live")
	r.same(t)
}
