package mysql

import (
	"errors"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// A session may log less than whole rows: what is not there is absent, never NULL.
func TestImagesWithoutSomeColumnsLeaveThemAbsent(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(10), big text)", "INSERT INTO t VALUES (1, 1, 'x', 'long'), (2, 2, NULL, 'more')")
		from := r.head()
		r.exec("SET SESSION binlog_row_image = MINIMAL",
			"UPDATE t SET a = 10 WHERE id = 1", "UPDATE t SET b = NULL WHERE id = 1", "UPDATE t SET id = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t (id, a) VALUES (7, 7)",
			"SET SESSION binlog_row_image = NOBLOB", "UPDATE t SET a = 11 WHERE id = 5", "UPDATE t SET big = 'new' WHERE id = 5")
		h := r.stream(from)
		insert := "INSERT t new [7] [7] - -"
		if got := h.events[4].String(); got == "INSERT t new [7] [7] NULL NULL" { // a server that writes defaults too
			insert = got
		}
		r.want(h,
			"UPDATE t new [1] [10] - -",
			"UPDATE t new [1] - NULL -",
			"UPDATE t old [1] NULL NULL NULL (key) new [5] - - -",
			"DELETE t old [2] NULL NULL NULL (key)",
			insert,
			"UPDATE t new [5] [11] NULL -",
			"UPDATE t new [5] [11] NULL [new]")
	})
}

func TestCompressedTransactionsAndEnginesWithoutTransactionsAreRead(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE m (id int PRIMARY KEY, v varchar(500)) ENGINE = MyISAM", "CREATE TABLE t (id int PRIMARY KEY, v varchar(500))")
		from := r.head()
		if r.server.Binaries.MariaDB {
			r.exec("SET GLOBAL log_bin_compress = ON")
			defer r.exec("SET GLOBAL log_bin_compress = OFF")
			r.exec("INSERT INTO t VALUES (1, repeat('c', 400))", "UPDATE t SET v = repeat('d', 400)", "DELETE FROM t")
		} else {
			r.exec("SET SESSION binlog_transaction_compression = ON", "INSERT INTO t VALUES (1, repeat('c', 400))", "UPDATE t SET v = repeat('d', 400)", "DELETE FROM t")
		}
		r.exec("INSERT INTO m VALUES (1, 'a')", "UPDATE m SET v = 'b'")
		c, d := strings.Repeat("c", 400), strings.Repeat("d", 400)
		r.want(r.stream(from), "INSERT t new [1] ["+c+"]", "UPDATE t old [1] ["+c+"] new [1] ["+d+"]", "DELETE t old [1] ["+d+"]",
			"INSERT m new [1] [a]", "UPDATE m old [1] [a] new [1] [b]")
	})
}

func TestLargeTransactionComesInPieces(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v varchar(100))")
		from := r.head()
		r.exec("BEGIN",
			"INSERT INTO t SELECT a.n * 1000 + b.n, repeat('p', 100) FROM "+numbers(100)+" a, "+numbers(100)+" b", "COMMIT", "INSERT INTO t VALUES (-1, 'after')")
		h, err := r.follow(from, r.head(), source.FollowOptions{PieceBytes: 100_000})
		if err != nil {
			t.Fatal(err)
		}
		if len(h.events) != 10_001 {
			t.Fatalf("%d changes", len(h.events))
		}
		pieces := 0
		for _, tx := range h.txs {
			if !tx.Last {
				pieces++
			}
		}
		if pieces < 10 {
			t.Errorf("%d pieces", pieces)
		}
	})
}

// numbers is a derived table of the numbers from 0 to n-1, of up to 100.
func numbers(n int) string {
	ten := "(SELECT 0 i UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)"
	if n == 10 {
		return "(SELECT i AS n FROM " + ten + " x)"
	}
	return "(SELECT x.i * 10 + y.i AS n FROM " + ten + " x, " + ten + " y)"
}

func TestLayoutsFollowTheTable(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, e enum('a','b'), gone int)")
		from := r.head()
		r.exec("INSERT INTO t VALUES (1, 'b', 5)",
			"ALTER TABLE t MODIFY e enum('x','b','a')", "INSERT INTO t VALUES (2, 'b', 6)",
			"ALTER TABLE t ADD COLUMN n bigint unsigned AFTER id", "INSERT INTO t VALUES (3, 18446744073709551615, 'a', 7)",
			"ALTER TABLE t DROP COLUMN gone", "INSERT INTO t VALUES (4, 1, 'x')",
			"ALTER TABLE t RENAME COLUMN n TO m", "INSERT INTO t VALUES (5, 2, 'x')",
			"ALTER TABLE t MODIFY m varchar(30) CHARACTER SET latin1", "INSERT INTO t VALUES (6, 'é', 'x')")
		h := r.stream(from)
		r.want(h, "INSERT t new [1] [b] [5]", "INSERT t new [2] [b] [6]", "INSERT t new [3] [18446744073709551615] [a] [7]",
			"INSERT t new [4] [1] [x]", "INSERT t new [5] [2] [x]", "INSERT t new [6] [é] [x]")
		var names []string
		for _, tx := range h.txs {
			for _, c := range tx.Changes {
				names = append(names, c.Table.ColumnNames())
			}
		}
		if got := strings.Join(names, "; "); got != "id, e, gone; id, e, gone; id, n, e, gone; id, n, e; id, m, e; id, m, e" {
			t.Errorf("columns: %s", got)
		}
	})
}

func TestTableMadeAnewByASchemaChangeToolIsFollowed(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
		if err := r.source.Publish(t.Context(), []source.Followed{{Table: r.relation("t").Table}}); err != nil {
			t.Fatal(err)
		}
		from := r.head()
		r.exec("CREATE TABLE _t_gho (id int PRIMARY KEY, v int, more varchar(5))", "INSERT INTO _t_gho (id, v) SELECT * FROM t",
			"RENAME TABLE t TO _t_del, _t_gho TO t", "INSERT INTO t VALUES (2, 2, 'new')", "DROP TABLE _t_del")
		r.want(r.stream(from), "INSERT t new [2] [2] [new]")
	})
}

// What removes rows of a followed table without logging them ends the stream for that
// table, after everything before it.
func TestRowsThatGoWithoutBeingLoggedAreNoticed(t *testing.T) {
	onAll(t, func(r *rig) {
		for _, c := range []struct{ name, statement, says string }{
			{"drop", "DROP TABLE t", "was dropped"},
			{"replace", "RENAME TABLE t TO t_old, u TO t", "was replaced by table"},
			{"rename", "ALTER TABLE t RENAME TO elsewhere", "was renamed"},
			{"partition", "ALTER TABLE t DROP PARTITION p0", "partitions or the tablespace"},
			{"exchange", "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", "partitions or the tablespace"},
			{"database", "DROP DATABASE " + r.database, "was dropped"},
		} {
			r.exec("DROP TABLE IF EXISTS t, u, t_old, elsewhere",
				"CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))",
				"CREATE TABLE u (id int PRIMARY KEY, v int)")
			if err := r.source.Publish(t.Context(), []source.Followed{{Table: r.relation("t").Table}}); err != nil {
				t.Fatal(err)
			}
			from := r.head()
			r.exec("INSERT INTO t VALUES (1, 1)", c.statement)
			if c.name == "database" {
				r.server.Exec(t, "", "CREATE DATABASE "+r.database)
			}
			h, err := r.follow(from, change.Position{File: 1 << 30}, source.FollowOptions{})
			var lost *source.TableLost
			if !errors.As(err, &lost) || lost.Loss.Table != r.name("t") || lost.Loss.ID != tableID(r.name("t")) || !strings.Contains(lost.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			r.want(h, "INSERT t new [1] [1]")
		}
	})
}

func TestWhatTheLogDoesNotHoldIsRefusedByName(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO t VALUES (1, 1)")
		if err := r.source.Publish(t.Context(), []source.Followed{{Table: r.relation("t").Table}}); err != nil {
			t.Fatal(err)
		}
		refuses := func(says string, statements ...string) {
			t.Helper()
			from := r.head()
			r.exec(statements...)
			_, err := r.follow(from, r.head(), source.FollowOptions{})
			if says == "" {
				if err != nil {
					t.Errorf("%v: %v", statements, err)
				}
				return
			}
			if err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), says) {
				t.Errorf("%v: %v", statements, err)
			}
		}
		refuses("in place of the rows", "SET SESSION binlog_format = STATEMENT", "UPDATE t SET v = 2")
		refuses("", "SET SESSION binlog_format = STATEMENT", "INSERT INTO other VALUES (1)")
		if !r.server.Binaries.MariaDB {
			r.exec("CREATE TABLE j (id int PRIMARY KEY, d json)", `INSERT INTO j VALUES (1, '{"a": 1, "b": "some more text to make it worth it"}')`)
			if err := r.source.Publish(t.Context(), []source.Followed{{Table: r.relation("j").Table}}); err != nil {
				t.Fatal(err)
			}
			refuses("parts of documents", "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "UPDATE j SET d = JSON_SET(d, '$.a', 2)")
		}
	})
}

func TestAwkwardNamesWork(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE `b c``d.$é` (`select` int PRIMARY KEY, `wei``rd col` int, UNIQUE KEY (`wei``rd col`))")
		name := "b c`d.$é"
		r.relation(name)
		from := r.head()
		r.exec("INSERT INTO `b c``d.$é` VALUES (1, 2)", "TRUNCATE `b c``d.$é`", "SET sql_mode = 'ANSI_QUOTES'", `ALTER TABLE "b c`+"`"+`d.$é" ADD "c d" int`, `INSERT INTO "b c`+"`"+`d.$é" VALUES (2, 3, 4)`)
		r.want(r.stream(from), "INSERT "+name+" new [1] [2]", "TRUNCATE "+name, "INSERT "+name+" new [2] [3] [4]")
		if got := r.copyTable(name); len(got) != 1 || got[0] != "[2] [3] [4]" {
			t.Errorf("copied %q", got)
		}
	})
}

func TestInvisibleAndGeneratedColumnsAreTheSameInBothPhases(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v int AS (id + 1) VIRTUAL, s int AS (id + 2) STORED, hidden int INVISIBLE DEFAULT 9)")
		from := r.head()
		r.exec("INSERT INTO t (id) VALUES (1)", "UPDATE t SET id = 2")
		r.want(r.stream(from), "INSERT t new [1] [2] [3] [9]", "UPDATE t old [1] [2] [3] [9] new [2] [3] [4] [9]")
		if got := r.copyTable("t"); len(got) != 1 || got[0] != "[2] [3] [4] [9]" {
			t.Errorf("copied %q", got)
		}
	})
}

// Without row metadata the catalogue says what columns are; where it has moved on, the
// table is lost by name.
func TestLogWithoutMetadataIsReadByTheCatalogue(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int unsigned PRIMARY KEY, e enum('a','b'), s set('x','y'), b binary(3), c char(3) character set latin1)")
		from := r.head()
		r.exec("INSERT INTO t VALUES (4294967295, 'b', 'x,y', 0x01, 'é')")
		r.want(r.stream(from), `INSERT t new [4294967295] [b] [x,y] [\x010000] [é]`)
		from = r.head()
		r.exec("INSERT INTO t VALUES (1, 'b', 'x,y', 0x01, 'é')", "ALTER TABLE t ADD COLUMN n int")
		_, err := r.follow(from, r.head(), source.FollowOptions{})
		var lost *source.TableLost
		if !errors.As(err, &lost) || !strings.Contains(lost.Error(), "former layout") {
			t.Errorf("%v", err)
		}
	}, dbtest.Setting("binlog-row-metadata", "MINIMAL"))
}
