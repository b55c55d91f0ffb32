package dbtest

import (
	"os"
	"testing"
)

func TestSharedMariaDBLogsRows(t *testing.T) {
	s := MariaDB(t)
	if MariaDB(t) != s {
		t.Fatal("a second call started a second server")
	}
	if got := s.Query(t, "", "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@gtid_strict_mode"); got[0] != "1|ROW|FULL|FULL|1" {
		t.Fatalf("settings: %v", got)
	}
	db := s.Database(t)
	s.Exec(t, db, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
	if got := s.Query(t, db, "SELECT count(*), NULL FROM t"); got[0] != "2|" {
		t.Fatalf("rows: %v", got)
	}
}

func TestDedicatedMariaDBSurvivesKillAndRestart(t *testing.T) {
	s := MariaDB(t, Setting("max-binlog-size", "1M"))
	db := s.Database(t)
	s.Exec(t, db, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	if err := s.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := s.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.Query(t, db, "SELECT id, @@max_binlog_size FROM t"); got[0] != "1|1048576" {
		t.Fatalf("after the restart: %v", got)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Fatalf("the server's folder is still there: %v", err)
	}
}
