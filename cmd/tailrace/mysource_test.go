package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// What a session leaves out of the log stays as it is, also where the row's key changes;
// a key that the log does not hold is not guessed.
func TestMySQLRowsThatWereLoggedInPart(t *testing.T) {
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newMyRig(t, kind, `flows:
  - {source: DB.items}
  - {source: DB.items, target: history, stored_as_scd_type: 2}
  - {source: DB.items, target: now, keys: [id], sequence_by: n, except_column_list: [n]}`,
			"CREATE TABLE items (id int PRIMARY KEY, n int NOT NULL, v varchar(20), big text)", "INSERT INTO items VALUES (1, 1, 'one', 'x'), (2, 1, 'two', 'y'), (3, 1, 'three', NULL), (4, 1, NULL, 'z'), (5, 1, 'five', 'f')")
		r.once(t)
		for _, image := range []string{"MINIMAL", "NOBLOB"} {
			r.exec(t, "SET SESSION binlog_row_image = "+image,
				"UPDATE items SET id = id + 10, n = n + 1 WHERE id IN (1, 4, 11, 14)",
				"BEGIN", "UPDATE items SET id = -1, n = n + 1 WHERE id = 2", "UPDATE items SET id = 2, n = n + 1 WHERE id = 3", "UPDATE items SET id = 3, n = n + 1 WHERE id = -1", "COMMIT",
				"UPDATE items SET v = NULL, n = n + 1 WHERE id = 5", "UPDATE items SET big = concat(big, '!'), n = n + 1 WHERE id = 5", "DELETE FROM items WHERE id = 14", "INSERT INTO items VALUES (14, 1, 'new', 'z')")
		}
		r.once(t)
		contains(t, r.must(t, "verify"), ": 0 differences of 6 rows", "\n0 differences of ")
		want := []string{"14 new z", "2 two y", "21 one x", "24 new z", "3 three ∅", "5 ∅ f!!"}
		r.holds(t, "items", []string{"id", "v", "big"}, want...)
		// A flow with a sequence does not reckon with what stood in a row whose key changed.
		aside := r.quarantined(t)
		for _, row := range aside {
			if !strings.Contains(row[2], "its key changed") && !strings.Contains(row[2], "the event before it is set aside") {
				t.Errorf("in quarantine: %q", row)
			}
		}
		if len(aside) == 0 {
			t.Error("nothing is in quarantine")
		}
		_, rows := r.shown(t, "now")
		if got := fmt.Sprint(rows[len(rows)-1]); got != "[14 new z]" {
			t.Errorf("the last row is %s", got)
		}
	})
}

// A flow by another key than the table's needs whole rows.
func TestMySQLKeysThatWereNotLoggedAreRefused(t *testing.T) {
	t.Parallel()
	r := newMyRig(t, "duckdb", "flows: [{source: DB.items, keys: [code], column_list: [code, v]}]",
		"CREATE TABLE items (id int PRIMARY KEY, code varchar(9) NOT NULL UNIQUE, v int)", "INSERT INTO items VALUES (1, 'a', 1), (2, 'secret', 2)")
	r.once(t)
	r.exec(t, "UPDATE items SET code = 'b' WHERE id = 1", "SET SESSION binlog_row_image = MINIMAL", "DELETE FROM items WHERE id = 2")
	out := r.refused(t, 3, []string{"does not hold the former value of key column \"code\"", "binlog_row_image = FULL"}, "run", "--once")
	if strings.Contains(out, "secret") {
		t.Errorf("a row's value was printed:\n%s", out)
	}
	r.once(t, "--overwrite")
	r.holds(t, "items", []string{"code", "v"}, "b 1")
}

// Dates that no calendar has: stopped by name, NULL, or text; other values stay exact.
func TestMySQLZeroDates(t *testing.T) {
	t.Parallel()
	fill := []string{"SET SESSION sql_mode = ''", "INSERT INTO z VALUES (1, '0000-00-00', '2024-00-00 00:00:00', 0), (2, '2024-02-00', '2024-01-01 00:00:00.123456', '2024-01-01'), (3, '2024-02-29', '0000-00-00', NULL)"}
	const table = "CREATE TABLE z (id int PRIMARY KEY, d date NOT NULL, t datetime(6), s timestamp NULL)"
	for _, phase := range []string{"copy", "log"} {
		for policy, want := range map[string][]string{
			"error": nil,
			"null":  {"1 ∅ ∅ ∅", "2 ∅ 2024-01-01 00:00:00.123456 2024-01-01 00:00:00+00", "3 2024-02-29 ∅ ∅"},
			"text":  {"1 0000-00-00 2024-00-00 00:00:00.000000 0000-00-00 00:00:00", "2 2024-02-00 2024-01-01 00:00:00.123456 2024-01-01 00:00:00", "3 2024-02-29 0000-00-00 00:00:00.000000 ∅"},
		} {
			t.Run(phase+" "+policy, func(t *testing.T) {
				t.Parallel()
				const flows = "flows: [{source: DB.z}]"
				r := newMyRig(t, "duckdb", flows, table)
				r.write(t, ", zero_dates: "+policy, flows)
				if phase == "log" {
					r.once(t)
				}
				r.exec(t, fill...)
				if policy == "error" {
					r.refused(t, 3, []string{"column d of table", "zero or partial date", "source.zero_dates"}, "run", "--once")
					return
				}
				r.once(t)
				_, rows := r.shown(t, "z")
				got := strings.Join(sortedRows(rows), "\n")
				if got = strings.ReplaceAll(got, "00:00:00 ", "00:00:00.000000 "); got != strings.ReplaceAll(strings.Join(want, "\n"), "00:00:00 ", "00:00:00.000000 ") {
					t.Errorf("it holds\n%s\nwant\n%s", got, strings.Join(want, "\n"))
				}
				contains(t, r.must(t, "verify"), "0 differences of 3 rows")
			})
		}
	}
	t.Run("key", func(t *testing.T) {
		t.Parallel()
		const flows = "flows: [{source: DB.k}]"
		r := newMyRig(t, "duckdb", flows, "SET SESSION sql_mode = ''", "CREATE TABLE k (d date PRIMARY KEY)", "INSERT INTO k VALUES ('0000-00-00')")
		r.write(t, ", zero_dates: 'null'", flows)
		r.refused(t, 3, []string{"column d of table"}, "run", "--once")
	})
}

// Everything that happens to tables while a backlog waits: each row is read by the layout
// that it was written in.
func TestMySQLTablesAreAlteredInTheBacklog(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		r := newMyRig(t, kind, "flows: [{source: DB.*}]",
			"CREATE TABLE e (id int PRIMARY KEY, m enum('b','a'), s varchar(20)) CHARACTER SET latin1", "INSERT INTO e VALUES (1, 'b', 'é')",
			"CREATE TABLE o (id int PRIMARY KEY, v int)", "INSERT INTO o VALUES (1, 1), (2, 2)",
			"CREATE TABLE m (id int PRIMARY KEY, v varchar(9)) ENGINE = MyISAM", "INSERT INTO m VALUES (1, 'x')")
		r.once(t)
		r.exec(t, "INSERT INTO e VALUES (2, 'a', 'é€')",
			"ALTER TABLE e MODIFY m enum('x','a','b')", "INSERT INTO e VALUES (3, 'a', 'ß')", "UPDATE e SET s = 'ü' WHERE id = 1",
			"ALTER TABLE e CONVERT TO CHARACTER SET utf8mb4", "INSERT INTO e VALUES (4, 'x', '中😀')",
			"SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", `ALTER TABLE "e" ADD "c d" int, COMMENT = 'a \'`, "INSERT INTO e VALUES (5, 'b', 'y', 7)",
			// An online schema change: a copy, rows that it carries over, the swap.
			"CREATE TABLE _o_gho (id int PRIMARY KEY, v int, more varchar(9) DEFAULT 'm')", "INSERT INTO _o_gho (id, v) SELECT id, v FROM o", "UPDATE o SET v = 10 WHERE id = 1", "REPLACE INTO _o_gho (id, v) VALUES (1, 10)",
			"RENAME TABLE o TO _o_del, _o_gho TO o", "INSERT INTO o VALUES (3, 3, 'new')", "DELETE FROM o WHERE id = 2", "DROP TABLE _o_del",
			"INSERT INTO m VALUES (2, 'y')", "UPDATE m SET v = 'z' WHERE id = 1")
		out := r.once(t)
		if strings.Contains(out, "parked") {
			t.Errorf("parked:\n%s", tail(out))
		}
		for table, want := range map[string]string{
			"e": "[[1 b ü NULL] [2 a é€ NULL] [3 a ß NULL] [4 x 中😀 NULL] [5 b y 7]]",
			"m": "[[1 z] [2 y]]",
		} {
			if _, rows := r.shown(t, table); strings.ReplaceAll(fmt.Sprint(rows), "\x00", "") != want {
				t.Errorf("%s holds %v", table, rows)
			}
		}
		_, rows := r.shown(t, "o")
		if got := strings.ReplaceAll(fmt.Sprint(rows), "\x00", ""); got != "[[1 10 NULL] [3 3 new]]" { // what the tool has written to the copy is in no log of o
			t.Errorf("o holds %s", got)
		}
	})
}

// Names that have a meaning elsewhere, and keys without one that people see.
func TestMySQLNamesAndHiddenKeys(t *testing.T) {
	overAllKinds(t, func(t *testing.T, kind string) {
		statements := []string{"CREATE TABLE `a.b c``d$é` (`select` int PRIMARY KEY, `x' OR '1'='1` varchar(20), `wei\"rd` int)", "INSERT INTO `a.b c``d$é` VALUES (1, '$1 \\\\ ''', 2)",
			"CREATE TABLE `order` (`key` varchar(20) PRIMARY KEY) COLLATE utf8mb4_general_ci", "INSERT INTO `order` VALUES ('a'), ('B'), ('ä b'), ('😀')"}
		r := newMyRig(t, kind, "flows: [{source: DB.*}]", statements...)
		hidden := ""
		if !r.my.Binaries.MariaDB {
			r.exec(t, "SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE nokey (v int)", "INSERT INTO nokey VALUES (7), (7)")
			hidden = "nokey"
		}
		r.once(t)
		r.exec(t, "UPDATE `a.b c``d$é` SET `select` = 5", "INSERT INTO `a.b c``d$é` VALUES (6, NULL, 3)", "UPDATE `order` SET `key` = 'A' WHERE `key` = 'a'", "DELETE FROM `order` WHERE `key` = 'b'")
		if hidden != "" {
			r.exec(t, "UPDATE nokey SET v = 8 LIMIT 1")
		}
		r.once(t)
		r.same(t)
		if _, rows := r.shown(t, "order"); len(rows) != 3 {
			t.Errorf("order holds %v", rows)
		}
		if hidden != "" {
			if _, rows := r.shown(t, hidden); fmt.Sprint(rows) != "[[1 8] [2 7]]" {
				t.Errorf("%s holds %v", hidden, rows)
			}
		}
	})
}

// A log that was purged is refused by name, and a new copy takes away what was deleted
// meanwhile.
func TestMySQLLogThatWasPurged(t *testing.T) {
	t.Parallel()
	my := dbtest.MySQL(t, dbtest.Dedicated())
	r := newMyRigOn(t, my, "duckdb", "flows: [{source: DB.*}, {source: DB.t, target: h, stored_as_scd_type: 2}]", "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1), (2, 2)")
	r.once(t)
	r.exec(t, "DELETE FROM t WHERE id = 1", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 3)", "FLUSH BINARY LOGS")
	files := my.Query(t, "", "SHOW BINARY LOGS")
	last, _, _ := strings.Cut(files[len(files)-1], "|")
	eventually(t, patience, "the log is purged", func() bool { // it is kept a moment for a reader that has gone
		my.Exec(t, "", "PURGE BINARY LOGS TO '"+last+"'")
		return len(my.Query(t, "", "SHOW BINARY LOGS")) == 1
	})
	r.refused(t, 3, []string{"purged", "run --overwrite"}, "run", "--once")
	r.refused(t, 1, []string{"lost"}, "status", "--check")
	r.once(t, "--overwrite")
	r.holds(t, "t", []string{"id", "v"}, "2 2", "3 3")
	r.same(t)
}

// The server says in its log that it has lost something.
func TestMySQLIncidentStops(t *testing.T) {
	t.Parallel()
	my := dbtest.MySQL(t, dbtest.Setting("binlog-checksum", "NONE"))
	r := newMyRigOn(t, my, "duckdb", "flows: [{source: DB.t}]", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	r.once(t)
	r.exec(t, "INSERT INTO t VALUES (2)", "DROP VIEW IF EXISTS nothing_of_this_name", "INSERT INTO t VALUES (3)")
	if err := my.Stop(); err != nil {
		t.Fatal(err)
	}
	// The statement's event becomes an incident: its type stands behind the time stamp.
	path := my.LogFile("binlog.000001")
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := false
	for at := 4; at+19 <= len(log); {
		size := int(log[at+9]) | int(log[at+10])<<8 | int(log[at+11])<<16 | int(log[at+12])<<24
		if size < 19 || at+size > len(log) {
			t.Fatalf("no event at %d", at)
		}
		if log[at+4] == 2 && strings.Contains(string(log[at:at+size]), "nothing_of_this_name") {
			log[at+4], changed = 26, true
		}
		at += size
	}
	if !changed {
		t.Fatal("the statement is not in the log")
	}
	if err := os.WriteFile(path, log, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := my.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.refused(t, 3, []string{"incident", "run --overwrite"}, "run", "--once")
	r.once(t, "--overwrite")
	r.holds(t, "t", []string{"id"}, "1", "2", "3")
}

// Rows that a foreign key changes are in no log of these servers; PostgreSQL logs them.
func TestMySQLCascadesAreWarnedOfAndMended(t *testing.T) {
	t.Parallel()
	r := newMyRig(t, "duckdb", "flows: [{source: DB.*}]", "CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
		"INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2)")
	contains(t, r.must(t, "check"), "child", "ON DELETE CASCADE")
	r.once(t)
	r.exec(t, "DELETE FROM parent WHERE id = 1")
	r.once(t)
	if r.my.Binaries.MariaDB { // MySQL logs them from 9.6 on
		r.refused(t, 1, []string{"parent: 0 differences", "child: 2 differences"}, "verify")
	}
	r.must(t, "verify", "--table", "child", "--repair")
	r.same(t)

	pg := newRig(t, dbtest.Postgres(t), "duckdb", "create table parent(id int primary key); create table child(id int primary key, p int references parent on delete cascade); insert into parent values (1), (2); insert into child values (1, 1), (2, 2)", everything)
	pg.once(t)
	pg.exec(t, "delete from parent where id = 1")
	pg.once(t)
	pg.holds(t, "child", []string{"id", "p"}, "2 2")
}

// Statements of others are in the log, with what they hold. None of it is printed.
func TestMySQLStatementsOfOthersAreNotPrinted(t *testing.T) {
	t.Parallel()
	r := newMyRig(t, "duckdb", "log_level: debug\nflows: [{source: DB.t}]", "CREATE TABLE t (id int PRIMARY KEY)")
	r.once(t)
	user := uniqueName("u")
	r.exec(t, "CREATE USER "+user+" IDENTIFIED BY 'hush-hush'", "ALTER USER "+user+" IDENTIFIED BY 'hush-again'", "DROP USER "+user, "INSERT INTO t VALUES (1)")
	if out := r.once(t); strings.Contains(out, "hush") {
		t.Errorf("a password is printed:\n%s", tail(out))
	}
}

// A start that fails leaves no session on the source.
func TestMySQLFailedStartsLeaveNoSessions(t *testing.T) {
	t.Parallel()
	my := dbtest.MySQL(t)
	r := newMyRigOn(t, my, "duckdb", "flows: [{source: DB.t}]", "CREATE TABLE t (id int PRIMARY KEY)")
	user := uniqueName("u")
	my.Exec(t, "", "CREATE USER "+user+" IDENTIFIED BY 'pw'", "GRANT ALL PRIVILEGES ON *.* TO "+user)
	t.Cleanup(func() { my.Exec(t, "", "DROP USER "+user) })
	r.reconfigure(t, my.URL(r.database), my.URLAs(user, "pw", "no_such_database"))
	for range 5 {
		r.refused(t, 3, []string{"no_such_database"}, "run", "--once")
	}
	eventually(t, patience, "its sessions have ended", func() bool {
		return len(my.Query(t, "", "SELECT id FROM information_schema.processlist WHERE user = '"+user+"'")) == 0
	})
}

// A text of these servers may hold a zero byte, which PostgreSQL's may not.
func TestMySQLTextWithAZeroByte(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		r := newMyRig(t, kind, "flows: [{source: DB.*}]", "CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "CREATE TABLE other (id int PRIMARY KEY)")
		r.once(t)
		r.exec(t, "INSERT INTO t VALUES (1, concat('secret', char(0), 'b'))", "INSERT INTO other VALUES (1)")
		if kind != "postgres" {
			r.once(t)
			r.same(t)
			return
		}
		if out := r.onceParked(t); strings.Contains(out, "secret") {
			t.Errorf("a row's value was printed:\n%s", tail(out))
		}
		contains(t, r.refused(t, 1, []string{"parked"}, "status", "--check"), "zero byte")
		r.holds(t, "other", []string{"id"}, "1")
	})
}

// GTIDs of several origins, out of order and with holes, order nothing: the place in the
// log does.
func TestMySQLGTIDsOfManyOrigins(t *testing.T) {
	t.Parallel()
	my := dbtest.MySQL(t, dbtest.Dedicated())
	r := newMyRigOn(t, my, "duckdb", "flows: [{source: DB.t}]", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
	if my.Binaries.MariaDB { // of a server that it once followed
		my.Exec(t, "", "SET GLOBAL gtid_strict_mode = OFF", "SET GLOBAL gtid_slave_pos = '0-1-1,7-99-12345'")
	}
	use := func(id int) []string {
		if my.Binaries.MariaDB {
			return []string{fmt.Sprintf("SET SESSION gtid_domain_id = %d", id%3), "SET SESSION server_id = " + fmt.Sprint(1+id%2), fmt.Sprintf("INSERT INTO t VALUES (%d)", id)}
		}
		return []string{fmt.Sprintf("SET SESSION gtid_next = '3e11fa47-71ca-11e1-9e33-c80aa94295%02d:%d'", id%3, 100-id*7%90), fmt.Sprintf("INSERT INTO t VALUES (%d)", id), "SET SESSION gtid_next = 'AUTOMATIC'"}
	}
	id := 1
	for range 4 {
		r.once(t)
		for range 5 {
			r.exec(t, use(id)...)
			id++
		}
		my.Exec(t, "", "FLUSH BINARY LOGS")
	}
	r.once(t)
	contains(t, r.must(t, "verify"), "0 differences of 21 rows")
}

// MariaDB's system-versioned tables log their former rows like new ones.
func TestMySQLSystemVersionedTablesAreLeftOut(t *testing.T) {
	t.Parallel()
	r := newMyRigOn(t, dbtest.MariaDB(t), "duckdb", "flows: [{source: DB.*}]", "CREATE TABLE v (id int PRIMARY KEY, n int) WITH SYSTEM VERSIONING", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO v VALUES (1, 1)", "INSERT INTO t VALUES (1)")
	contains(t, r.must(t, "check"), r.database+".v is left out: it is system-versioned")
	r.reconfigure(t, r.database+".*}", r.database+".*, except: ["+r.database+".v]}")
	r.once(t)
	r.exec(t, "UPDATE v SET n = 2", "DELETE FROM v", "INSERT INTO t VALUES (2)")
	r.once(t)
	r.holds(t, "t", []string{"id"}, "1", "2")
}

// Rows of an engine without transactions, and nothing behind them, are there at once.
func TestMySQLRowsOfMyISAMArriveByThemselves(t *testing.T) {
	t.Parallel()
	r := newMyRig(t, "postgres", "flows: [{source: DB.m}]", "CREATE TABLE m (id int PRIMARY KEY) ENGINE = MyISAM", "INSERT INTO m VALUES (1)")
	p := r.start(t, nil)
	eventually(t, patience, "the table is copied", func() bool {
		return strings.Contains(p.output.String(), "copied") && len(r.held(t, "select 1 from information_schema.tables where table_name = 'm'")) == 1
	})
	r.exec(t, "INSERT INTO m VALUES (2)")
	eventually(t, patience, "the row is there", func() bool { return len(r.held(t, "select id from m")) == 2 })
	p.stop(t)
}

// Where the mark was taken away under a running pipeline, nothing is applied beside it.
func TestMySQLPipelineStopsWithoutItsMark(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"postgres", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newMyRig(t, kind, "flows: [{source: DB.t}]", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
			p := r.start(t, []string{"TAILRACE_RETRY_MAX=5s"})
			p.says(t, patience, "copied")
			eventually(t, patience, "it follows", func() bool {
				return len(r.held(t, "select 1 from _tailrace.marks where phase = 'live' and "+r.ours(t))) == 1
			})
			r.atTarget(t, "delete from _tailrace.marks where "+r.ours(t))
			r.exec(t, "INSERT INTO t VALUES (2)")
			if code := p.wait(t, 60*time.Second); code == 0 {
				t.Errorf("it ended as if all were well:\n%s", tail(p.output.String()))
			}
			if rows := r.held(t, "select id from t"); len(rows) != 1 {
				t.Errorf("rows without a mark: %v", rows)
			}
			r.once(t) // it begins anew
			r.holds(t, "t", []string{"id"}, "1", "2")
		})
	}
}
