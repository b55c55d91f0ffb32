package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

// balance changes two tables in one transaction again and again until the test stops it:
// the sum over both stays zero.
func (r *rig) balance(t *testing.T) (stop func()) {
	t.Helper()
	stop, _ = r.balanceNoting(t)
	return stop
}

// balanceNoting is balance that notes, behind each commit, the end of the log.
func (r *rig) balanceNoting(t *testing.T) (stop func(), ends func() []change.Position) {
	t.Helper()
	var mu sync.Mutex
	var noted []change.Position
	ends = func() []change.Position {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(noted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	conn := r.server.Connect(t, r.source)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			results, err := conn.PgConn().Exec(context.Background(), fmt.Sprintf("begin; update a set v = v + 1 where id %% 50 = %d; update b set v = v - 1 where id %% 50 = %[1]d; commit; select pg_current_wal_insert_lsn()", i%50)).ReadAll()
			var p change.Position
			if err == nil {
				p, err = change.ParsePosition(string(results[len(results)-1].Rows[0][0]))
			}
			if err != nil {
				t.Errorf("load: %v", err)
				return
			}
			mu.Lock()
			noted = append(noted, p)
			mu.Unlock()
			time.Sleep(2 * time.Millisecond)
		}
	}()
	var stopped bool
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-done
			conn.Close(context.Background())
		}
	}
	t.Cleanup(stop)
	return stop, ends
}

const balanced = `create table a(id int primary key, v int not null); create table b(id int primary key, v int not null);
insert into a select i, 0 from generate_series(1, 5000) i; insert into b select i, 0 from generate_series(1, 5000) i`

const sumOfBoth = "select (select sum(v) from a) + (select sum(v) from b) as rest, (select sum(v) from a) as v"

// ask runs query and returns its lines behind the header.
func (r *rig) ask(t testing.TB, sql string, more ...string) []string {
	t.Helper()
	out, stderr, code := tailrace(t, append(r.args("query", sql, "--format", "csv"), more...)...)
	if code != 0 {
		t.Fatalf("query: exit %d\n%s%s", code, out, stderr)
	}
	return strings.Split(strings.TrimRight(out, "\r\n"), "\r\n")[1:]
}

func TestQueriesBesideADaemonSeeOneMark(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	stop := r.balance(t)
	moved := map[string]bool{}
	for range 15 {
		line := r.ask(t, sumOfBoth)[0]
		rest, v, _ := strings.Cut(line, ",")
		if rest != "0" {
			t.Fatalf("the two tables were seen at two marks: %s", line)
		}
		moved[v] = true
	}
	if len(moved) < 5 {
		t.Errorf("15 queries beside a load saw %d states", len(moved))
	}

	// Order, types, NULL and text.
	if got := fmt.Sprint(r.ask(t, "select id, [id, null] as l, {'x': 'y,\"z'} as s, null as n, '' as e, 1::hugeint as h from a where id < 4 order by id desc;")); got != `[3,"[3, NULL]","{""x"": ""y,\""z""}",,"",1 2,"[2, NULL]","{""x"": ""y,\""z""}",,"",1 1,"[1, NULL]","{""x"": ""y,\""z""}",,"",1]` {
		t.Errorf("%s", got)
	}
	out := r.must(t, "query", "select 1 as a, 'x' as b", "--format", "json")
	if out != `{"a":"1","b":"x"}`+"\n" {
		t.Errorf("%q", out)
	}

	// What is not one SELECT is refused, and nothing of it is done.
	csv := filepath.Join(t.TempDir(), "x.csv")
	for sql, want := range map[string]string{
		"delete from a":                               "only a SELECT",
		"insert into a values (0, 0)":                 "only a SELECT",
		"create temp table x(i int)":                  "only a SELECT",
		"explain analyze delete from a":               "only a SELECT",
		"set threads = 1":                             "only a SELECT",
		"pragma memory_limit = '1GB'":                 "only a SELECT",
		"checkpoint":                                  "only a SELECT",
		"install httpfs":                              "only a SELECT",
		"load httpfs":                                 "only a SELECT",
		"commit":                                      "only a SELECT",
		"commit; delete from a":                       "2 statements",
		"select 1; select 2":                          "2 statements",
		"attach '" + csv + "' as x":                   "",
		"copy a to '" + csv + "'":                     "disabled by configuration",
		"select * from read_csv('/etc/group')":        "disabled by configuration",
		"select * from read_text('" + r.config + "')": "disabled by configuration",
		"select $1":                                   "has parameters",
		"select nothere":                              "nothere",
		"select":                                      "SELECT clause",
		"":                                            "no statement",
		"select 'x'::int":                             "Could not convert",
		"from force_checkpoint()":                     "",
	} {
		if out := r.refused(t, 2, []string{want}, "query", sql); want == "" && !strings.Contains(out, "rror") && !strings.Contains(out, "only") {
			t.Errorf("%s: %s", sql, out)
		}
	}
	if _, err := os.Stat(csv); err == nil {
		t.Error("a file was written")
	}
	if out, code := r.command(t, nil, "status"); code != 0 || !strings.Contains(out, "being read") {
		t.Errorf("status beside the daemon: exit %d\n%s", code, out)
	}
	stop()
	p.stop(t)
	if _, err := os.Stat(r.dest.dsn + ".sock"); err == nil {
		t.Error("the socket is left behind")
	}
	if strings.Contains(p.output.String(), "nothere") || strings.Contains(p.output.String(), "level=ERROR") {
		t.Errorf("the log:\n%s", tail(p.output.String()))
	}

	// Without a daemon query opens the file itself.
	r.once(t)
	if line := r.ask(t, sumOfBoth)[0]; !strings.HasPrefix(line, "0,") {
		t.Errorf("without a daemon: %s", line)
	}
	r.refused(t, 2, []string{"only a SELECT"}, "query", "delete from a")
	r.refused(t, 2, []string{"disabled by configuration"}, "query", "select * from read_csv('/etc/group')")
	r.same(t)
}

// slow is a statement that would run for hours in little memory.
const slow = "select count(*) from range(3000000) x(i), range(3000000) y(j) where hash(i + j) = 1"

func TestQueriesEndInTimeAndAtMostTwoRun(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	began := time.Now()
	r.refused(t, 4, []string{"not done within 1s"}, "query", slow, "--timeout", "1s")
	if took := time.Since(began); late(t, took, 8*time.Second) {
		t.Errorf("a limit of 1 s took %s", took)
	}
	// Two that run, and a third that finds no room. An asker that is gone frees its own.
	var busy []*proc
	for range 2 {
		busy = append(busy, start(t, nil, r.args("query", slow, "--timeout", "60s")...))
	}
	eventually(t, patience, "two queries run", func() bool {
		_, code := r.command(t, nil, "query", "select 1", "--timeout", "500ms")
		return code == 4
	})
	r.through(t, "update a set v = v + 1 where id = 1; update b set v = v - 1 where id = 1") // goes on beside them
	for _, q := range busy {
		q.kill()
	}
	eventually(t, patience, "the queries of askers that are gone have ended", func() bool {
		_, code := r.command(t, nil, "query", "select 1", "--timeout", "500ms")
		return code == 0
	})
	if line := r.ask(t, sumOfBoth)[0]; line != "0,1" {
		t.Errorf("%s", line)
	}
	p.stop(t)
}

// A reader that takes its time holds no transaction: checkpoints go on.
func TestASlowReaderHoldsNoTransaction(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything+"\n")
	r.env = []string{"TAILRACE_DESTINATION_DUCKDB_CHECKPOINT_THRESHOLD=256KiB"}
	p := r.start(t, nil)
	r.following(t, p)
	reader := exec.Command(binary(t), r.args("query", "select i, repeat('x', 1000) as v from range(100000) t(i)", "--format", "csv")...)
	out, err := reader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	stop := r.balance(t)
	time.Sleep(3 * time.Second) // the 100 MB of the answer fill every buffer on the way
	if info, err := os.Stat(r.dest.dsn + ".wal"); err == nil && info.Size() > 4<<20 {
		t.Errorf("the write-ahead file has %d bytes: checkpoints do not run", info.Size())
	}
	if out := r.must(t, "snapshot"); !strings.Contains(out, "snapshot.duckdb at ") {
		t.Errorf("%s", out)
	}
	// Both other places are free, and the answer is whole.
	r.ask(t, "select 1", "--timeout", "5s")
	n := 10
	for buf := make([]byte, 1<<20); ; {
		m, err := out.Read(buf)
		n += m
		if err != nil {
			break
		}
	}
	if err := reader.Wait(); err != nil || n < 100_000*1000 {
		t.Errorf("%d bytes: %v", n, err)
	}
	stop()
	p.stop(t)
}

func TestASocketThatIsRemovedOrLeftBehind(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	socket := r.dest.dsn + ".sock"
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v %v", info, err)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	r.ask(t, "select 1") // it comes back by itself
	p.kill()
	if _, err := os.Stat(socket); err != nil {
		t.Fatalf("a killed daemon leaves its socket: %v", err)
	}
	r.ask(t, sumOfBoth) // nobody is behind it: the file is opened
	p = r.start(t, nil)
	r.following(t, p)
	r.ask(t, sumOfBoth)
	p.stop(t)
}

func TestAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Fatal("this test must be able to become another user: run it as root")
	}
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	// Let nothing but the user stand in the way.
	for dir := filepath.Dir(r.dest.dsn); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Dir(filepath.Dir(r.config)), filepath.Dir(r.config), filepath.Dir(binary(t))} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(r.config, 0o644); err != nil {
		t.Fatal(err)
	}
	asNobody := func() string {
		c := exec.Command(binary(t), r.args("query", "select 1")...)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.CombinedOutput()
		if err == nil || c.ProcessState.ExitCode() != 3 {
			t.Errorf("another user: %v\n%s", err, out)
		}
		return string(out)
	}
	contains(t, asNobody(), "belongs to another user")
	// Where the mode does not stop it, the daemon does.
	if err := os.Chmod(r.dest.dsn+".sock", 0o666); err != nil {
		t.Fatal(err)
	}
	contains(t, asNobody(), "belongs to another user")
	p.says(t, patience, "user id 65534 is on the other side")
	p.stop(t)
}

// A path that is too long for a socket gets its socket elsewhere.
func TestAFileWithALongNameCanBeAsked(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	long := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "x.duckdb")
	r.reconfigure(t, r.dest.dsn, long)
	r.dest.dsn = long
	short, err := os.MkdirTemp("", "tr-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	r.env = []string{"XDG_RUNTIME_DIR=" + short}
	p := r.start(t, nil)
	r.following(t, p)
	contains(t, r.must(t, "query", "select count(*) as n from a"), "5000")
	info, err := os.Stat(filepath.Join(short, "tailrace"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the socket: %v %v", info, err)
	}
	p.stop(t)
}

// What is not a request gets no answer and does no harm.
func TestNoiseOnTheSocket(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", balanced, everything)
	p := r.start(t, nil)
	r.following(t, p)
	for _, noise := range []string{"", "GET / HTTP/1.1\r\n\r\n", "q\xff\xff\xff\xff", "q\x00\x00\x00\x02{]", "q\x00\x00\x00\x10{"} {
		conn, err := net.Dial("unix", r.dest.dsn+".sock")
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte(noise))
		conn.Close()
	}
	conn, err := net.Dial("unix", r.dest.dsn+".sock")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request, _ := json.Marshal(map[string]string{"Kind": "make coffee"})
	conn.Write(append([]byte{'q', 0, 0, 0, byte(len(request))}, request...))
	answer := make([]byte, 1000)
	n, _ := conn.Read(answer)
	contains(t, string(answer[:n]), "does not know requests of kind")
	r.ask(t, "select 1")
	p.stop(t)
}
