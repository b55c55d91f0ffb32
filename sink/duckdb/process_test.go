//go:build !noduckdb

package duckdb_test

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// The test binary is its own child: with this variable set it plays a part.
const partVariable = "TAILRACE_DUCKDB_PART"

func TestMain(m *testing.M) {
	switch part, path, _ := strings.Cut(os.Getenv(partVariable), ":"); part {
	case "":
		os.Exit(m.Run())
	case "own": // a daemon that waits
		w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
		if err == nil {
			err = w.Own(ctx, checkpoint.Owner{Host: "elsewhere", PID: os.Getpid()}, 0)
		}
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin)
		w.Close(ctx)
	case "read", "hold": // another program with the file open
		mode := map[string]string{"read": "?access_mode=READ_ONLY", "hold": ""}[part]
		db, err := sql.Open("duckdb", path+mode)
		if err == nil {
			err = db.Ping()
		}
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin)
		db.Close()
	case "loop":
		applyLoop(path)
	}
}

// child starts the test binary in a part and returns when it has said its first
// line, which it expects to be want.
func child(t *testing.T, part, path, want string) (cmd *exec.Cmd, stop func()) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), partVariable+"="+part+":"+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != want {
		t.Fatalf("child %s: %q %v", part, line, err)
	}
	stop = func() {
		in.Close()
		cmd.Wait()
	}
	t.Cleanup(stop)
	return cmd, stop
}

func TestALiveOwnerInAnotherProcessIsNamed(t *testing.T) {
	path := file(t)
	cmd, _ := child(t, "own", path, "<nil>")
	w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	defer w.Close(ctx)
	start := time.Now()
	for name, act := range map[string]func() error{
		"Own":   func() error { return w.Own(ctx, me, 0) },
		"State": func() error { _, err := w.State(ctx); return err },
		"Plan":  func() error { _, err := w.Plan(ctx, target("t", scd.Type1, "id int4 key")); return err },
	} {
		err := act()
		if !errors.Is(err, fault.ErrOwned) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", cmd.Process.Pid)) || fault.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("the refusals took %v", d)
	}
	// A killed owner leaves nothing to wait for.
	must(t, cmd.Process.Kill())
	cmd.Wait()
	must(t, w.Own(ctx, me, 0))
}

func TestAnotherProgramWithTheFileOpenIsNamed(t *testing.T) {
	path := file(t)
	must(t, newWriter(t, path).Close(ctx))
	for _, part := range []string{"read", "hold"} {
		cmd, stop := child(t, part, path, "<nil>")
		w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
		must(t, err)
		start := time.Now()
		err = w.Own(ctx, me, 0)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) || fault.RemedyOf(err) == "" {
			t.Fatalf("%s: %v", part, err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("the refusal took %v", d)
		}
		// A reader that is about to finish is waited for.
		go func() { time.Sleep(300 * time.Millisecond); stop() }()
		must(t, w.Own(ctx, me, 0))
		must(t, w.Close(ctx))
	}
}

func TestReadersShareAndCreateNothing(t *testing.T) {
	path := file(t)
	open := func() *duckdb.Writer {
		w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
		must(t, err)
		t.Cleanup(func() { w.Close(ctx) })
		return w
	}
	m, err := open().State(ctx)
	must(t, err)
	if m.Phase != checkpoint.None || m.Epoch != 0 {
		t.Fatalf("%+v", m)
	}
	if p, err := open().Plan(ctx, target("t", scd.Type1, "id int4 key")); err != nil || len(p.DDL) == 0 {
		t.Fatal(p, err)
	}
	left, err := filepath.Glob(filepath.Dir(path) + "/*")
	must(t, err)
	if len(left) != 0 {
		t.Fatalf("looking made %v", left)
	}
	w := newWriter(t, path)
	must(t, w.Save(ctx, checkpoint.Mark{Phase: checkpoint.Live, Position: change.LSN(7)}))
	if _, err := open().State(ctx); !errors.Is(err, fault.ErrOwned) {
		t.Fatalf("a reader beside the owner: %v", err)
	}
	must(t, w.Close(ctx))
	a, b := open(), open()
	for _, r := range []*duckdb.Writer{a, b} {
		m, err := r.State(ctx)
		must(t, err)
		if m.Position != change.LSN(7) {
			t.Fatalf("%+v", m)
		}
	}
	must(t, a.Close(ctx))
	if err := open().Own(ctx, me, 0); err == nil {
		t.Fatal("owned beside a reader of the same process")
	}
	must(t, b.Close(ctx))
	must(t, open().Own(ctx, me, 0))
}

func TestALostLockFileFences(t *testing.T) {
	path := file(t)
	w := newWriter(t, path)
	must(t, w.Heartbeat(ctx))
	must(t, os.Remove(path+".lock"))
	if err := w.Heartbeat(ctx); !errors.Is(err, fault.ErrFenced) {
		t.Fatal(err)
	}
}

func TestSpillFilesOfADeadProcessAreRemoved(t *testing.T) {
	path := file(t)
	dir := path + ".tmp"
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(dir+"/duckdb_temp_storage_DEFAULT-0.tmp", []byte("x"), 0o644))
	must(t, os.WriteFile(dir+"/mine", []byte("x"), 0o644))
	newWriter(t, path)
	if _, err := os.Stat(dir + "/duckdb_temp_storage_DEFAULT-0.tmp"); !os.IsNotExist(err) {
		t.Error("the spill file is still there")
	}
	if _, err := os.Stat(dir + "/mine"); err != nil {
		t.Error("a file that is not the engine's was removed")
	}
}

// applyLoop is the child of the crash test: batch n at position n replaces ten
// rows of each of two targets and says so when it is committed.
func applyLoop(path string) {
	check := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p", CheckpointThreshold: "256KB"})
	check(err)
	check(w.Own(ctx, checkpoint.Owner{Host: "here", PID: os.Getpid()}, 0))
	one, two := crashTargets()
	check(w.Create(ctx, one))
	check(w.Create(ctx, two))
	m, err := w.State(ctx)
	check(err)
	fmt.Println("ready")
	for n := int(m.Position.Offset) + 1; ; n++ {
		var r1, r2 scd.Round
		for k := range 10 {
			r1.Upserts = append(r1.Upserts, row(k, n, strings.Repeat("x", 500)))
			r2.Steps = append(r2.Steps, scd.Step{Key: row(k), N: 1, Lo: int64(n), Row: row(k, n, strings.Repeat("y", 500))})
		}
		r1.Inserts = append(r1.Inserts, row(1000+n, n, "new"))
		check(w.Apply(ctx, &sink.Batch{First: true, Position: change.LSN(uint64(n)), CommitTime: time.UnixMicro(int64(n)), Targets: []sink.TargetRounds{
			{Target: one, Rounds: []scd.Round{r1}}, {Target: two, Rounds: []scd.Round{r2}}}}))
		fmt.Println(n)
	}
}

func crashTargets() (one, two *scd.Target) {
	return target("one", scd.Type1, "id int4 key", "n int4", "pad text"), target("two", scd.Type2, "id int4 key", "n int4", "pad text")
}

// TestKilledProcessLeavesMarkAndRowsEqual kills a process in its apply loop at
// random moments: the mark is never behind what was acknowledged, and rows and
// history are exactly the mark's.
func TestKilledProcessLeavesMarkAndRowsEqual(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	path := file(t)
	one, two := crashTargets()
	for round := range 25 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), partVariable+"=loop:"+path)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		acknowledged := uint64(0)
		if !lines.Scan() || lines.Text() != "ready" {
			t.Fatalf("round %d: the child says %q", round, lines.Text())
		}
		time.AfterFunc(time.Duration(rnd.IntN(400_000))*time.Microsecond, func() { cmd.Process.Signal(syscall.SIGKILL) })
		for lines.Scan() {
			if _, err := fmt.Sscan(lines.Text(), &acknowledged); err != nil {
				t.Fatalf("round %d: the child says %q", round, lines.Text())
			}
		}
		cmd.Wait()

		w := newWriter(t, path)
		m, err := w.State(ctx)
		must(t, err)
		n := m.Position.Offset
		if n < acknowledged {
			t.Fatalf("round %d: acknowledged %d, the mark is at %d", round, acknowledged, n)
		}
		for _, c := range []struct {
			what string
			want uint64
			sql  string
		}{
			{"rows", min(n, 1)*10 + n, "SELECT count(*) FROM one"},
			{"distinct rows", min(n, 1)*10 + n, "SELECT count(DISTINCT id) FROM one"},
			{"rows of the mark", min(n, 1)*10 + min(n, 1), fmt.Sprintf("SELECT count(*) FROM one WHERE n = %d", n)},
			{"versions", 10 * n, "SELECT count(*) FROM two"},
			{"open versions of the mark", min(n, 1) * 10, fmt.Sprintf(`SELECT count(*) FROM two WHERE n = %d AND "__END_AT" IS NULL`, n)},
			{"open versions", min(n, 1) * 10, `SELECT count(*) FROM two WHERE "__END_AT" IS NULL`},
		} {
			_, err := duckdb.Peek(w, ctx, c.sql, func(cells []*string) error {
				if *cells[0] != fmt.Sprint(c.want) {
					t.Errorf("round %d, mark %d: %s %s, want %d", round, n, *cells[0], c.what, c.want)
				}
				return nil
			})
			must(t, err)
		}
		for _, tg := range []*scd.Target{one, two} {
			if bad, err := w.Invariants(ctx, tg); err != nil || len(bad) > 0 {
				t.Errorf("round %d: %v %v", round, bad, err)
			}
		}
		must(t, w.Close(ctx))
		if t.Failed() {
			return
		}
	}
}
