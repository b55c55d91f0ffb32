package dbtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest/pgserver"
)

func TestMain(m *testing.M) {
	if os.Getenv("DBTEST_CHILD") != "" {
		child()
		return
	}
	os.Exit(Main(m))
}

// child is a process that is killed while it has a server.
func child() {
	s, err := pgserver.Start(context.Background(), pgserver.Options{})
	if err != nil {
		os.Stdout.WriteString("error: " + err.Error())
		return
	}
	os.Stdout.WriteString(s.Dir + "\n")
	select {}
}

func TestSharedServerDecodesLogically(t *testing.T) {
	s := Postgres(t)
	dsn := s.Database(t)
	if got := s.Query(t, dsn, "SHOW wal_level"); got[0] != "logical" {
		t.Fatalf("wal_level is %v", got)
	}
	s.Exec(t, dsn, "SELECT pg_create_logical_replication_slot('left_behind_"+time.Now().Format("150405")+"', 'pgoutput')")
	if Postgres(t) != s {
		t.Fatal("a second call started a second server")
	}
	if s.Version() < 14 {
		t.Fatalf("version %d", s.Version())
	}
	if got := s.Query(t, s.SocketDSN("postgres"), "SELECT 1, NULL, 'x'"); got[0] != "1||x" {
		t.Fatalf("over the socket: %q", got)
	}
}

func TestDedicatedServerSurvivesKillAndRestart(t *testing.T) {
	s := Postgres(t, Setting("wal_sender_timeout", "4s"))
	dsn := s.Database(t)
	s.Exec(t, dsn, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "CHECKPOINT")
	if got := s.Query(t, dsn, "SHOW wal_sender_timeout"); got[0] != "4s" {
		t.Fatalf("setting: %v", got)
	}
	ctx := context.Background()
	if err := s.Kill9(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(ctx, dsn); err == nil {
		t.Fatal("the killed server answers")
	}
	if err := s.StartAgain(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.Query(t, dsn, "SELECT count(*) FROM t"); got[0] != "1" {
		t.Fatalf("rows after the restarts: %v", got)
	}
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	installations(t) // installed by now
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DBTEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, _ := out.Read(buf)
	dir := strings.TrimSpace(string(buf[:n]))
	if _, err := os.Stat(filepath.Join(dir, "data", "postmaster.pid")); err != nil {
		t.Fatalf("child said %q: %v", dir, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there 20 s after its process was killed", dir)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestFindRefusesWhatIsNotThere(t *testing.T) {
	if _, err := pgserver.Find("/nowhere/bin"); err == nil || !strings.Contains(err.Error(), "/nowhere/bin") {
		t.Fatalf("got %v", err)
	}
}
