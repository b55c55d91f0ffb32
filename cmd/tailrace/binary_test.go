package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

func TestMain(m *testing.M) {
	// These tests wait for servers more than they compute: run more of them at once
	// than there are processors, unless told otherwise.
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		flag.Set("test.parallel", strconv.Itoa(5*runtime.GOMAXPROCS(0)))
	}
	// With a program for each of so many tests at once an engine of several threads waits
	// for its own, spinning, and the collector's work at a heap of few megabytes is a tenth
	// of all. Tests of many rows and of memory run with what users have: see asUsersRun.
	if os.Getenv("TAILRACE_SOAK") == "" && flag.Lookup("test.bench").Value.String() == "" {
		for name, value := range lean {
			if _, set := os.LookupEnv(name); !set {
				os.Setenv(name, value)
			}
		}
	}
	code := dbtest.Main(m)
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

var lean = map[string]string{"TAILRACE_DESTINATION_DUCKDB_THREADS": "1", "GOGC": "400"}

// asUsersRun is the environment in which nothing of lean holds.
var asUsersRun = []string{"TAILRACE_DESTINATION_DUCKDB_THREADS=2", "GOGC=100"}

// built is the program under test, made once: this package with the points at
// which it may be told to kill itself.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "tailrace-binary-"); built.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-tags", "killpoints", "-o", filepath.Join(built.dir, "tailrace"), ".").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "tailrace")
}

// proc is a running tailrace.
type proc struct {
	cmd    *exec.Cmd
	output *syncBuffer
	done   chan struct{}
	err    error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs the binary; it ends with the test at the latest.
func start(t testing.TB, env []string, args ...string) *proc {
	t.Helper()
	p := &proc{cmd: exec.Command(binary(t), args...), output: &syncBuffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("output of tailrace %s:\n%s", strings.Join(args, " "), tail(p.output.String()))
		}
	})
	return p
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

func (p *proc) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// wait waits for the end and returns the exit code; -1: killed by a signal.
func (p *proc) wait(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("tailrace did not end within %s\n%s", limit, tail(p.output.String()))
		return 0
	}
}

// tailrace runs a command to its end and returns stdout, stderr and exit code.
func tailrace(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, binary(t), args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// must runs a command that has to exit 0 and returns its stdout.
func must(t testing.TB, args ...string) string {
	t.Helper()
	stdout, stderr, code := tailrace(t, args...)
	if code != 0 {
		t.Fatalf("tailrace %s: exit %d\n%s\n%s", strings.Join(args, " "), code, tail(stdout), tail(stderr))
	}
	return stdout
}

// seeded gives the test's random source and prints its seed.
func seeded(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if e := os.Getenv("TAILRACE_TEST_SEED"); e != "" {
		var err error
		if s, err = strconv.ParseUint(e, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (repeat with TAILRACE_TEST_SEED=%d)", s, s)
	return rand.New(rand.NewPCG(s, 0))
}

// destination is one kind of destination for a test.
type destination struct {
	kind string
	dsn  string
}

// destinations are all kinds, each fresh.
func destinations(t testing.TB, server *dbtest.Server) []destination {
	return []destination{
		{"duckdb", filepath.Join(t.TempDir(), "target.duckdb")},
		{"postgres", server.Database(t)},
	}
}

// configure writes a configuration and returns its path.
func configure(t testing.TB, name, sourceDSN string, d destination, rest string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := fmt.Sprintf("pipeline: %s\nsource: {kind: postgres, dsn: %q}\ndestination: {kind: %s, dsn: %q}\n%s\n", name, sourceDSN, d.kind, d.dsn, rest)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
