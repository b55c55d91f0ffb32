package mysql

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// takeSnapshot closes the snapshot at the test's end.
func (r *rig) takeSnapshot() source.Snapshot {
	r.Helper()
	snap, err := r.source.Snapshot(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { snap.Close(context.Background()) })
	return snap
}

// describe describes a query: `name type, ...`.
func (r *rig) describe(query string) (*change.Table, string) {
	r.Helper()
	t, err := r.source.DescribeQuery(r.Context(), query)
	if err != nil {
		r.Fatalf("%s: %v", query, err)
	}
	var list []string
	for _, c := range t.Columns {
		list = append(list, c.Name+" "+c.Type.Name)
		if !c.Nullable || c.Key {
			r.Errorf("column %+v", c)
		}
	}
	return t, strings.Join(list, ", ")
}

// copyQuery gives a query's rows as the copy stream has them, sorted.
func (r *rig) copyQuery(snap source.Snapshot, query string) []string {
	r.Helper()
	t, _ := r.describe(query)
	return r.copyRows(snap, source.CopyRequest{Table: t, Query: query})
}

func (r *rig) copyRows(snap source.Snapshot, req source.CopyRequest) []string {
	r.Helper()
	for _, c := range req.Table.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	var b bytes.Buffer
	n, err := snap.Copy(r.Context(), req, &b)
	if err != nil {
		r.Fatalf("%s: %v", req.Query, err)
	}
	rows := slices.Sorted(strings.Lines(b.String()))
	if int(n) != len(rows) {
		r.Errorf("%d rows reported, %d lines", n, len(rows))
	}
	return rows
}

func TestAQueryOfATableGivesItsTypesAndTexts(t *testing.T) {
	onAll(t, func(r *rig) {
		cases := append(slices.Clone(commonValues), mysqlValues...)
		if r.server.Binaries.MariaDB {
			cases = append(slices.Clone(commonValues), mariaValues...)
		}
		for i, c := range cases {
			statements := []string{"SET sql_mode = 'NO_ENGINE_SUBSTITUTION'", "SET time_zone = '+00:00'", fmt.Sprintf("CREATE TABLE v%d (id int PRIMARY KEY, v %s)", i, c.typ),
				fmt.Sprintf("INSERT INTO v%d VALUES (1000, NULL)", i)}
			for n, v := range c.values {
				statements = append(statements, fmt.Sprintf("INSERT INTO v%d VALUES (%d, %s)", i, n, v))
			}
			r.exec(statements...)
		}
		snap := r.takeSnapshot()
		for i, c := range cases {
			query := fmt.Sprintf("SELECT * FROM v%d ORDER BY id;", i)
			rel := r.relation(fmt.Sprintf("v%d", i))
			got, _ := r.describe(query)
			want := rel.Table.Columns[1].Type
			switch c.typ { // the server describes them as texts
			case "uuid":
				want = change.Type{Name: "character varying(36)", Kind: change.Text, Length: 36}
			case "inet6":
				want = change.Type{Name: "character varying(39)", Kind: change.Text, Length: 39}
			case "inet4":
				want = change.Type{Name: "character varying(15)", Kind: change.Text, Length: 15}
			}
			if g := got.Columns[1].Type; g.Name != want.Name || g.Kind != want.Kind || g.Length != want.Length || g.Precision != want.Precision || g.Scale != want.Scale {
				t.Errorf("%s: %+v, want %+v", c.typ, g, want)
			}
			if got.ID != 0 || got.Name != (change.Name{}) {
				t.Errorf("%+v", got)
			}
			rows, table := r.copyQuery(snap, query), r.copyRows(snap, source.CopyRequest{Table: rel.Table})
			if !slices.Equal(rows, table) {
				t.Errorf("%s: %.600q, of the table %.600q", c.typ, rows, table)
			}
		}
	})
}

func TestQueriesOfManyForms(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE a (id int PRIMARY KEY, s varchar(3), f float, n decimal(8,2) unsigned)", "CREATE TABLE b (id int PRIMARY KEY)",
			"INSERT INTO a VALUES (2, 'y', 0.1, 1), (1, 'x', 16777217, 2)", "INSERT INTO b VALUES (1)", "CREATE VIEW v AS SELECT max(s) AS top FROM a")
		snap := r.takeSnapshot()
		r.exec("INSERT INTO a VALUES (3, 'z', 1, 1)", "DELETE FROM b")
		for _, c := range []struct{ query, columns, rows string }{
			{"SELECT id, s FROM a ORDER BY id DESC;", "id integer, s character varying(3)", "1\tx\n2\ty\n"},
			{"-- which ones; all\nSELECT id /* the key */ FROM a WHERE s = 'x' # the end", "id integer", "1\n"},
			{"WITH w AS (SELECT id, count(*) AS n, sum(n) AS total FROM a GROUP BY id) SELECT w.*, b.id AS b FROM w LEFT JOIN b USING (id) ORDER BY 1; -- ;",
				"id integer, n bigint, total numeric(30,2), b integer", "1\t1\t2.00\t1\n2\t1\t1.00\t\\N\n"},
			{"(SELECT 1 AS a) UNION ALL (SELECT 2)", "a integer", "1\n2\n"},
			{"SELECT * FROM v", "top character varying(3)", "y\n"},
			{"SELECT f, n FROM a ORDER BY id LIMIT 1", "f real, n numeric(8,2)", "1.6777216e+07\t2.00\n"},
			{"SELECT NULL AS nothing, CAST(1.5 AS DECIMAL(5,2)) AS price, 'é;' AS `a;b`", "nothing text, price numeric(5,2), a;b character varying(2)", "\\N\t1.50\té;\n"},
			{"SELECT id FROM a WHERE false", "id integer", ""},
		} {
			_, got := r.describe(c.query)
			if !r.server.Binaries.MariaDB { // literals and sums have other types in MySQL
				got = strings.NewReplacer("a bigint", "a integer").Replace(got)
			}
			if got != c.columns {
				t.Errorf("%s:\n got %s\nwant %s", c.query, got, c.columns)
			}
			if got := strings.Join(r.copyQuery(snap, c.query), ""); got != c.rows {
				t.Errorf("%s:\n got %q\nwant %q", c.query, got, c.rows)
			}
		}
		began := time.Now()
		r.describe("SELECT id, sleep(20) AS slept FROM a")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("described in %v: rows were read", took)
		}
	})
}

func TestBadQueriesAreRefusedWithTheirPlace(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE a (id int PRIMARY KEY, secret varchar(20), big bigint)", "INSERT INTO a VALUES (1, 'SECRET', 9223372036854775807), (2, 'SECRET', 1)",
			"CREATE FUNCTION writes() RETURNS int MODIFIES SQL DATA BEGIN INSERT INTO a (id) VALUES (7); RETURN 1; END",
			"CREATE FUNCTION wrong() RETURNS int DETERMINISTIC BEGIN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'SECRET'; RETURN 1; END")
		snap := r.takeSnapshot()
		refused := func(query string, err error, says string) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), says) || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("%s:\n%v", query, err)
			}
		}
		for query, says := range map[string]string{
			"INSERT INTO a VALUES (3, '', 1)":             "begins with another word",
			"SELECT 1 AS x; DELETE FROM a":                "more than one statement",
			"SELECT 1 AS x /*! ; DELETE FROM a */":        "more than one statement",
			"SELECT id\nFROM a\nWHER é SECRET = 1":        "a syntax error in line 3, character 6",
			"SELECT id\nFROM a\nWHERE":                    "a syntax error in line 3",
			"SELECT id, nope FROM a":                      "Unknown column 'nope'",
			"SELECT * FROM nope":                          "nope' doesn't exist",
			"SELECT 1) AS x, (SELECT 2":                   "a syntax error in line 1, character 9",
			"SELECT id, secret AS ID FROM a":              "Duplicate column name 'ID'",
			"SELECT 1 AS a WHERE 1 = ?":                   "has a parameter",
			"SELECT id FROM a FOR UPDATE":                 "locks rows",
			"SELECT id FROM a LOCK IN SHARE MODE":         "locks rows",
			"SELECT id FROM a INTO OUTFILE '/tmp/SECRET'": "",
			"SELECT id FROM a LIMIT 1 INTO @x":            "",
			"SELECT '":                                    "a syntax error in line 1",
			"SELECT writes() AS i FROM a":                 "READ ONLY transaction",
			"SELECT 1 \x00":                               "the character NUL",
			"SELECT '' AS ``":                             "",
		} {
			_, err := r.source.DescribeQuery(r.Context(), query)
			refused(query, err, says)
		}
		for query, says := range map[string]string{ // what rows alone show
			"SELECT big + id AS i FROM a":                "error 1690 (SQLSTATE 22003)",
			"SELECT wrong() AS i FROM a":                 "error 1644 (SQLSTATE 45000)",
			"SELECT (SELECT id FROM a) + id AS i FROM a": "returns more than 1 row",
		} {
			table, _ := r.describe(query)
			_, err := snap.Copy(r.Context(), source.CopyRequest{Table: table, Columns: []string{"i"}, Query: query}, io.Discard)
			refused(query, err, says)
		}
		for range defaultSessions + 1 { // sessions are sound afterwards
			if got := r.copyQuery(snap, "SELECT id FROM a"); !slices.Equal(got, []string{"1\n", "2\n"}) {
				t.Errorf("%q", got)
			}
		}
		r.exec("CREATE TABLE c (id int PRIMARY KEY)")
		table, _ := r.describe("SELECT id FROM c")
		r.exec("ALTER TABLE c MODIFY id varchar(20)")
		_, err := snap.Copy(r.Context(), source.CopyRequest{Table: table, Columns: []string{"id"}, Query: "SELECT id FROM c"}, io.Discard)
		if fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "described anew") {
			t.Error(err)
		}
	})
}

func TestATableEmptiedAfterTheSnapshotIsNoticed(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
		snap := r.takeSnapshot()
		r.exec("TRUNCATE a", "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
		for _, query := range []string{"SELECT id FROM a", "SELECT id FROM late"} {
			table, _ := r.describe(query)
			_, err := snap.Copy(r.Context(), source.CopyRequest{Table: table, Columns: []string{"id"}, Query: query}, io.Discard)
			if fault.KindOf(err) != fault.Transient {
				t.Errorf("%s: %v", query, err)
			}
		}
	})
}

func TestZeroDatesOfAQueryFollowThePolicy(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("SET sql_mode = ''", "CREATE TABLE z (id int PRIMARY KEY, d date NOT NULL)", "INSERT INTO z VALUES (1, '0000-00-00')")
		const query = "SELECT d FROM z"
		for policy, want := range map[string]string{ZeroDatesNull: "d date: \\N\n", ZeroDatesText: "d text: 0000-00-00\n"} {
			cfg := r.source.cfg
			cfg.ZeroDates = policy
			r.source = r.open(cfg)
			_, columns := r.describe(query)
			if got := columns + ": " + strings.Join(r.copyQuery(r.takeSnapshot(), query), ""); got != want {
				t.Errorf("%s: %q", policy, got)
			}
		}
		cfg := r.source.cfg
		cfg.ZeroDates = ZeroDatesError
		r.source = r.open(cfg)
		table, _ := r.describe(query)
		_, err := r.takeSnapshot().Copy(r.Context(), source.CopyRequest{Table: table, Columns: []string{"d"}, Query: query}, io.Discard)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "column d of table (a query) holds a zero") {
			t.Error(err)
		}
	})
}
