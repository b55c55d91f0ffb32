package main

import (
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// Positions of a binary log order the events of flows as PostgreSQL's do: current rows,
// histories, feeds, also of a transaction that comes in pieces.
func TestFlowsOfMariaDBOrderedByPosition(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		server, pg := dbtest.MariaDB(t), dbtest.Postgres(t)
		database := server.Database(t)
		server.Exec(t, database,
			"CREATE TABLE t (id int PRIMARY KEY, v varchar(300), w int)", "INSERT INTO t SELECT seq, 'copied', 0 FROM seq_1_to_2000",
			"CREATE TABLE cdf (n int AUTO_INCREMENT PRIMARY KEY, id int, v varchar(20), op varchar(10))", "INSERT INTO cdf (id, v, op) VALUES (1, 'a', 'PUT'), (2, 'a', 'PUT')")
		dest := freshDestination(t, pg, kind)
		config := filepath.Join(t.TempDir(), "c.yaml")
		text := fmt.Sprintf(`pipeline: %s
source: {kind: mysql, dsn: %q, max_transaction_bytes: 64KiB}
destination: {kind: %s, dsn: %q}
flows:
  - {source: %s.t, target: moved}
  - {source: %[5]s.t, target: current, sequence_by: _lsn, keys: [id]}
  - {source: %[5]s.t, target: history, stored_as_scd_type: 2, sequence_by: _lsn, keys: [id]}
  - {source: %[5]s.cdf, source_kind: feed, target: fed, keys: [id], sequence_by: _lsn, apply_as_deletes: "op = 'DROP'", column_list: [id, v]}
`, uniqueName("p"), server.URL(database), kind, dest.dsn, database)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := &rig{config: config, dest: dest}
		r.once(t)
		server.Exec(t, database,
			"UPDATE t SET v = 'first' WHERE id <= 10", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (3, 'again', 1)",
			"INSERT INTO cdf (id, v, op) VALUES (1, 'b', 'PUT'), (2, '', 'DROP'), (3, 'c', 'PUT')")
		r.once(t)
		// One transaction in many pieces, which changes a row at both ends; then a move.
		server.Exec(t, database, "BEGIN", "UPDATE t SET w = 1 WHERE id = 1", "UPDATE t SET v = repeat('x', 300) WHERE id > 10", "UPDATE t SET w = 2 WHERE id = 1", "COMMIT",
			"UPDATE t SET id = 5000 WHERE id = 5", "UPDATE t SET v = 'last' WHERE id = 2000")
		r.reconfigure(t, "target: moved}", "target: moved, sequence_by: _lsn, keys: [id]}")
		contains(t, r.once(t), "kept by the position of events")
		server.Exec(t, database, "DELETE FROM t WHERE id = 7", "UPDATE t SET v = 'moved' WHERE id = 8", "DELETE FROM t WHERE id BETWEEN 100 AND 1900")
		r.once(t)
		contains(t, r.must(t, "verify"), "differences of", "keys and columns compared with the remembered events")
		r.must(t, "status", "--check")
		rows := slices.Sorted(slices.Values(server.Query(t, database, "SELECT id, v, w FROM t")))
		for _, target := range []string{"moved", "current"} {
			var got []string
			_, shown := r.shown(t, target)
			for _, row := range shown {
				got = append(got, strings.Join(row, "|"))
			}
			slices.Sort(got)
			if !slices.Equal(got, rows) {
				t.Errorf("%s holds %d rows, the table %d\n%s", target, len(got), len(rows), differing(got, rows))
			}
		}
		r.holds(t, "fed", []string{"id", "v"}, "1 b", "3 c")

		// The versions of a row: the copy, then one of each transaction, in order and whole.
		header, shown := r.shown(t, "history")
		from, to := slices.Index(header, "__START_AT"), slices.Index(header, "__END_AT")
		versions := map[string][]string{}
		open := map[string]string{}
		for _, row := range shown {
			id := row[0]
			if n, ok := new(big.Int).SetString(row[from], 10); !ok || n.BitLen() < 64 {
				t.Fatalf("version of row %s begins at %q", id, row[from])
			}
			if end, ok := open[id]; ok && id != "3" && end != row[from] {
				t.Errorf("row %s: a version ends at %s, the next begins at %s", id, end, row[from])
			}
			open[id] = row[to]
			versions[id] = append(versions[id], strings.Join(row[1:3], "|"))
		}
		for id, want := range map[string][]string{
			"1": {"copied|0", "first|0", "first|2"}, "3": {"copied|0", "first|0", "again|1"}, "8": {"copied|0", "first|0", "moved|0"},
			"5": {"copied|0", "first|0"}, "5000": {"first|0"}, "2000": {"copied|0", strings.Repeat("x", 300) + "|0", "last|0"},
		} {
			if !slices.Equal(versions[id], want) {
				t.Errorf("row %s has versions %q", id, versions[id])
			}
		}
		for id, ended := range map[string]bool{"5": true, "7": true, "1": false, "5000": false} {
			if (open[id] != null) != ended {
				t.Errorf("row %s ends at %q", id, open[id])
			}
		}
		// As of the end of the copy: its own position is a number that anybody can make.
		var first string
		for _, row := range shown {
			if row[0] == "2000" {
				first = row[from]
				break
			}
		}
		_, then := r.shown(t, "history", "--as-of", first)
		if len(then) != 2000 || slices.ContainsFunc(then, func(row []string) bool { return row[1] != "copied" }) {
			t.Errorf("as of %s there were %d rows", first, len(then))
		}
	})
}
