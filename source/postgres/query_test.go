package postgres

import (
	"io"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// describe describes a query: `name type, ...`.
func (f *fixture) describe(query string) (*change.Table, string) {
	f.t.Helper()
	t, err := f.source.DescribeQuery(testContext(f.t), query)
	if err != nil {
		f.t.Fatal(err)
	}
	var list []string
	for _, c := range t.Columns {
		list = append(list, c.Name+" "+c.Type.Name)
		if !c.Nullable || c.Key {
			f.t.Errorf("column %+v", c)
		}
	}
	return t, strings.Join(list, ", ")
}

func (f *fixture) copyQuery(snap source.Snapshot, query string) string {
	f.t.Helper()
	t, _ := f.describe(query)
	return copyText(f.t, snap, source.CopyRequest{Table: t, Columns: columnsOf(t), Query: query})
}

func TestAQueryOfATableGivesItsTypesAndTexts(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TYPE mood AS ENUM ('sad', 'so so')", "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0)",
			`CREATE TABLE t (id bigint PRIMARY KEY, "odd ""name" varchar(20), c char(5), n numeric(10,2), n2 numeric, n3 numeric(5,-2)[], b bytea, ts timestamptz(3),
			 d date, i interval, j jsonb, f4 real, f8 double precision, m mood, ms mood[], p price, x text[], u uuid, o oid, net inet, r int4range, bo boolean)`,
			`INSERT INTO t VALUES (1, E'a\tb\\', 'x', 12.30, 'NaN', '{1200,NULL}', '\xff00', '2024-02-29 10:20:30.123+05', 'infinity', '1 mon -2 days', '{"a": 1}', 0.1, 0.1,
			 'so so', '{sad,"so so"}', 7, '{"a,b",NULL}', gen_random_uuid(), 5, '10.0.0.0/8', '[1,5)', true)`, "INSERT INTO t (id) VALUES (2)")
		f.publish()
		snap := f.takeSnapshot()
		rel := f.relation("t")
		const query = "SELECT * FROM t ORDER BY id"
		got, list := f.describe(query)
		if len(got.Columns) != len(rel.Table.Columns) || got.ID != 0 || got.Name != (change.Name{}) {
			t.Fatalf("%+v", got)
		}
		for i, want := range rel.Table.Columns {
			g := got.Columns[i]
			if want.Name == "p" { // the domain's own type
				want.Type.Name, want.Type.Domain = "numeric(10,2)", false
			}
			if g.Name != want.Name || g.Type.Name != want.Type.Name || g.Type.Kind != want.Type.Kind || g.Type.Precision != want.Type.Precision ||
				g.Type.Scale != want.Type.Scale || g.Type.Length != want.Type.Length || g.Type.Domain {
				t.Errorf("column %+v, of the table %+v", g, want)
			}
		}
		if !strings.Contains(list, "character varying(20), c character(5), n numeric(10,2), n2 numeric, n3 numeric(5,-2)[]") {
			t.Error(list)
		}
		wantText(t, "rows", f.copyQuery(snap, query), copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: columnsOf(rel.Table)}))
	})
}

func TestQueriesOfManyForms(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE SCHEMA shop", "CREATE TABLE shop.a (id int PRIMARY KEY, s varchar(3))", "CREATE TABLE b (id int PRIMARY KEY)",
			"INSERT INTO shop.a VALUES (2, 'y'), (1, 'x')", "INSERT INTO b VALUES (1)", "CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM shop.a")
		f.publish()
		snap := f.takeSnapshot()
		f.exec("INSERT INTO shop.a VALUES (3, 'z')", "DELETE FROM b")
		for _, c := range []struct{ query, columns, rows string }{
			{"SELECT id, s FROM shop.a ORDER BY id DESC;", "id integer, s character varying(3)", "2\ty\n1\tx\n"},
			{"-- which ones; all\nSELECT id /* the key */ FROM shop.a WHERE s = 'x' -- the end", "id integer", "1\n"},
			{"WITH w AS (SELECT id, count(*) AS n FROM shop.a GROUP BY id) SELECT w.*, b.id AS b FROM w LEFT JOIN b USING (id) ORDER BY 1; -- ;", "id integer, n bigint, b integer", "1\t1\t1\n2\t1\t\\N\n"},
			{"(SELECT 1 AS a) UNION ALL (SELECT 2) ORDER BY a", "a integer", "1\n2\n"},
			{"VALUES (1, 'a'), (2, NULL)", "column1 integer, column2 text", "1\ta\n2\t\\N\n"},
			{"TABLE b", "id integer", "1\n"},
			{"SELECT * FROM v", "count bigint", "2\n"},
			{"SELECT NULL AS nothing, 1.50::numeric(5,2) AS price, 'é;' AS \"a;b\"", "nothing text, price numeric(5,2), a;b text", "\\N\t1.50\té;\n"},
			{"SELECT 1 AS id WHERE false", "id integer", ""},
		} {
			if _, got := f.describe(c.query); got != c.columns {
				t.Errorf("%s:\n got %s\nwant %s", c.query, got, c.columns)
			}
			if got := f.copyQuery(snap, c.query); got != c.rows {
				t.Errorf("%s:\n got %q\nwant %q", c.query, got, c.rows)
			}
		}
		table, _ := f.describe("TABLE shop.a")
		part := copyText(t, snap, source.CopyRequest{Table: table, Columns: []string{"s"}, Query: "TABLE shop.a"})
		if part != "y\nx\n" {
			t.Errorf("one column: %q", part)
		}
	})
}

func TestBadQueriesAreRefusedWithTheirPlace(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE a (id int PRIMARY KEY, secret text)", "INSERT INTO a VALUES (1, 'SECRET')", "CREATE SEQUENCE n",
		"CREATE FUNCTION wrong() RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'SECRET'; END$$")
	f.publish()
	snap := f.takeSnapshot()
	for query, says := range map[string]string{
		"INSERT INTO a VALUES (2) RETURNING *":                     "begins with another word",
		"SELECT 1 AS x; DELETE FROM a":                             "more than one statement",
		"SELECT id\nFROM a\nWHER é = id":                           "line 3, character 6: syntax error at or near \"é\" (SQLSTATE 42601)",
		"SELECT id,\n  nope FROM a":                                "line 2, character 3: column \"nope\" does not exist",
		"SELECT * FROM nope":                                       "line 1, character 15: relation \"nope\" does not exist",
		"SELECT 1) AS x, (SELECT 2":                                "line 1, character 9: syntax error",
		"SELECT 1 AS a, 2 AS a":                                    "two columns with the name a",
		"SELECT 1 AS a WHERE 1 = $1":                               "has a parameter",
		"SELECT FROM a":                                            "gives no columns",
		"SELECT id INTO b FROM a":                                  "gives no columns",
		"WITH d AS (DELETE FROM a RETURNING *) SELECT * FROM d":    "line 1, character 6: WITH clause containing a data-modifying statement",
		"WITH d AS (SELECT 1) INSERT INTO a SELECT 2 RETURNING id": "line 1, character 22: syntax error",
		"SELECT id FROM a FOR UPDATE":                              "read-only transaction",
		"SELECT 'SECRET'::text AS t, 'SECRET'::int AS i":           "line 1, character 29: a text that is no value of the type it is cast to (SQLSTATE 22P02)",
		"SELECT '":    "line 1, character 8: unterminated quoted string",
		"SELECT 1 /*": "line 1, character 10: unterminated /* comment",
	} {
		_, err := f.source.DescribeQuery(testContext(t), query)
		if err == nil || !strings.Contains(err.Error(), says) || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s:\n%v", query, err)
		}
	}
	for query, says := range map[string]string{ // what rows alone show
		"SELECT secret::int AS i FROM a":                            "(SQLSTATE 22P02)",
		"SELECT 1 / (id - 1) AS i FROM a":                           "a division by zero (SQLSTATE 22012)",
		"SELECT wrong() AS i FROM a":                                "an error that a function raises",
		"SELECT nextval('n') AS n FROM a":                           "read-only transaction",
		"SELECT (SELECT id FROM a UNION ALL SELECT id FROM a) AS i": "a subquery that gives more than one row",
	} {
		table, _ := f.describe(query)
		_, err := snap.Copy(testContext(t), source.CopyRequest{Table: table, Columns: columnsOf(table), Query: query}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) || fault.KindOf(err) != fault.Operator || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s:\n%v", query, err)
		}
	}
	if got := f.copyQuery(snap, "SELECT id FROM a"); got != "1\n" { // sessions are sound afterwards
		t.Errorf("%q", got)
	}
}

func TestAMissingRightNamesTheGrant(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE a (id int PRIMARY KEY)")
	role := "r_" + strings.ReplaceAll(f.source.cfg.Pipeline, "-", "_")
	f.exec("CREATE ROLE " + ident(role))
	t.Cleanup(func() { f.exec("DROP ROLE " + ident(role)) })
	f.source.conn.RuntimeParams["role"] = role
	_, err := f.source.DescribeQuery(testContext(t), "SELECT * FROM a")
	if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "permission denied for table a") || !strings.Contains(err.Error(), "GRANT SELECT") {
		t.Error(err)
	}
}

func TestATableEmptiedAfterTheSnapshotIsNoticed(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)", "CREATE MATERIALIZED VIEW v AS TABLE a",
			"CREATE TABLE p (id int) PARTITION BY LIST (id)", "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)", "CREATE TABLE calm (id int)",
			"CREATE FUNCTION f() RETURNS SETOF int STABLE LANGUAGE plpgsql AS $$BEGIN RETURN QUERY SELECT id FROM p; END$$")
		f.publish()
		snap := f.takeSnapshot()
		f.exec("TRUNCATE a", "REFRESH MATERIALIZED VIEW v", "TRUNCATE p1", "CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
		for _, query := range []string{"SELECT * FROM a", "SELECT * FROM v", "SELECT * FROM p", "SELECT * FROM late", "SELECT id FROM f() AS x(id)"} {
			table, _ := f.describe(query)
			_, err := snap.Copy(testContext(t), source.CopyRequest{Table: table, Columns: columnsOf(table), Query: query}, io.Discard)
			if fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "after the snapshot") {
				t.Errorf("%s: %v", query, err)
			}
		}
		if got := f.copyQuery(snap, "SELECT count(*) FROM calm"); got != "0\n" {
			t.Errorf("%q", got)
		}
		table, _ := f.describe("SELECT id FROM calm")
		f.exec("ALTER TABLE calm ALTER id TYPE text")
		_, err := snap.Copy(testContext(t), source.CopyRequest{Table: table, Columns: columnsOf(table), Query: "SELECT id FROM calm"}, io.Discard)
		if fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "described anew") {
			t.Error(err)
		}
	})
}
