package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest"
)

// kinds are the destinations over which behaviour is tested that the program around them
// must show; allKinds those of what the destinations themselves do, with statements of
// their own. TAILRACE_TEST_KINDS (names with commas between) gives others for both.
var (
	kinds    = kindsOr("duckdb", "postgres")
	allKinds = kindsOr("duckdb", "postgres", "mysql")
)

func kindsOr(names ...string) []string {
	if list := os.Getenv("TAILRACE_TEST_KINDS"); list != "" {
		return strings.Split(list, ",")
	}
	return names
}

func overKinds(t *testing.T, fn func(t *testing.T, kind string)) {
	t.Helper()
	over(t, kinds, fn)
}

// overOneKind is for what does not depend on the destination.
func overOneKind(t *testing.T, fn func(t *testing.T, kind string)) {
	t.Helper()
	over(t, kinds[:1], fn)
}

func overAllKinds(t *testing.T, fn func(t *testing.T, kind string)) {
	t.Helper()
	over(t, allKinds, fn)
}

func over(t *testing.T, kinds []string, fn func(t *testing.T, kind string)) {
	t.Helper()
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			fn(t, kind)
		})
	}
}

// rig is one pipeline under test: a source database, a destination, and the
// configuration between them.
type rig struct {
	server *dbtest.Server
	source string // DSN
	dest   destination
	config string
	env    []string // for every command

	session *pgx.Conn // of one
}

const everything = "flows: [{source: public.*}]"

// newRig makes a source database with a schema, and a fresh destination of a kind.
func newRig(t *testing.T, server *dbtest.Server, kind, schema, rest string) *rig {
	t.Helper()
	source := server.Database(t)
	if schema != "" {
		server.Exec(t, source, schema)
	}
	return rigOn(t, server, source, freshDestination(t, server, kind), rest)
}

func rigOn(t *testing.T, server *dbtest.Server, source string, d destination, rest string) *rig {
	t.Helper()
	r := &rig{server: server, source: source, dest: d, config: configure(t, uniqueName("p"), source, d, rest)}
	t.Cleanup(func() {
		if r.session != nil {
			r.session.Close(context.Background())
		}
	})
	return r
}

func freshDestination(t *testing.T, server *dbtest.Server, kind string) destination {
	t.Helper()
	switch kind {
	case "duckdb":
		return destination{kind, filepath.Join(t.TempDir(), "target.duckdb")}
	case "mysql":
		my := dbtest.MySQL(t)
		return destination{kind, my.URL(my.Database(t))}
	}
	return destination{kind, server.Database(t)}
}

func uniqueName(prefix string) string {
	var b [5]byte
	rand.Read(b[:])
	return prefix + "_" + hex.EncodeToString(b[:])
}

var pipelineOf = regexp.MustCompile("(?m)^pipeline: (.*)$")

// ours is the condition on rows of the bookkeeping which are this pipeline's: a server of
// MariaDB or MySQL has one bookkeeping for all.
func (r *rig) ours(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("pipeline = '%s'", pipelineOf.FindSubmatch(text)[1])
}

// reconfigure replaces a part of the configuration.
func (r *rig) reconfigure(t testing.TB, old, new string) {
	t.Helper()
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("the configuration has no %q:\n%s", old, text)
	}
	if err := os.WriteFile(r.config, []byte(strings.Replace(string(text), old, new, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) exec(t testing.TB, statements ...string) {
	t.Helper()
	r.server.Exec(t, r.source, statements...)
}

// args puts -c behind the command's name.
func (r *rig) args(command string, more ...string) []string {
	return append([]string{command, "-c", r.config}, more...)
}

func (r *rig) start(t testing.TB, env []string, more ...string) *proc {
	t.Helper()
	return start(t, append(append([]string{}, r.env...), env...), r.args("run", more...)...)
}

// patience is how long is waited for what comes at once on a machine without other work.
// How soon something comes is asserted where it is promised, with a limit of its own.
const patience = 90 * time.Second

// late tells whether something took longer than is promised, beside what a busy machine
// makes of it: ten times what the program needs to print its version just then, which is
// 0.2 s on one without other work.
func late(t testing.TB, took, promised time.Duration) bool {
	t.Helper()
	if took <= promised {
		return false
	}
	began := time.Now()
	must(t, "version")
	return took > promised+10*time.Since(began)
}

// commandLimit is how long a command may take: long beside what any of them needs, also
// on a machine that has other work.
func commandLimit() time.Duration {
	if os.Getenv("TAILRACE_SOAK") != "" {
		return 15 * time.Minute
	}
	return 3 * time.Minute
}

// command runs a command to its end and returns all its output and its exit code.
func (r *rig) command(t testing.TB, env []string, command string, more ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit())
	defer cancel()
	c := exec.CommandContext(ctx, binary(t), r.args(command, more...)...)
	c.Env = append(append(os.Environ(), r.env...), env...)
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("tailrace %s did not end:\n%s", command, tail(string(out)))
	}
	return string(out), c.ProcessState.ExitCode()
}

func (r *rig) must(t testing.TB, command string, more ...string) string {
	t.Helper()
	out, code := r.command(t, nil, command, more...)
	if code != 0 {
		t.Fatalf("tailrace %s: exit %d\n%s", command, code, tail(out))
	}
	return out
}

func (r *rig) once(t testing.TB, more ...string) string {
	t.Helper()
	return r.must(t, "run", append([]string{"--once"}, more...)...)
}

// onceParked catches up where tables cannot go on: it says which, and exits 1.
func (r *rig) onceParked(t testing.TB, more ...string) string {
	t.Helper()
	return r.refused(t, 1, []string{"tailrace: parked: ", "`tailrace status`"}, "run", append([]string{"--once"}, more...)...)
}

// same asserts that source and destination are equal, as verify sees it.
func (r *rig) same(t testing.TB) string {
	t.Helper()
	out := r.must(t, "verify")
	if !strings.Contains("\n"+out, "\n0 differences of ") {
		t.Errorf("verify:\n%s", out)
	}
	return out
}

// refused asserts that a command ends with an exit code and says all of wants.
func (r *rig) refused(t testing.TB, code int, wants []string, command string, more ...string) string {
	t.Helper()
	out, got := r.command(t, nil, command, more...)
	if got != code {
		t.Fatalf("tailrace %s: exit %d, want %d\n%s", command, got, code, tail(out))
	}
	contains(t, out, wants...)
	return out
}

func contains(t testing.TB, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, tail(out))
		}
	}
}

// through commits statements in one transaction and waits until the running
// pipeline has confirmed it.
func (r *rig) through(t testing.TB, statements ...string) {
	t.Helper()
	r.awaitConfirmed(t, r.commit(t, statements...), patience)
}

// commit commits statements in one transaction; its end lies behind the returned
// position.
func (r *rig) commit(t testing.TB, statements ...string) string {
	t.Helper()
	conn := r.server.Connect(t, r.source)
	defer conn.Close(context.Background())
	run := func(sql string) {
		t.Helper()
		if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	run("begin")
	for _, sql := range statements {
		run(sql)
	}
	var lsn string
	if err := conn.QueryRow(context.Background(), "select pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
		t.Fatal(err)
	}
	run("commit")
	return lsn
}

func (r *rig) awaitConfirmed(t testing.TB, lsn string, limit time.Duration) {
	t.Helper()
	eventually(t, limit, "the slot is confirmed beyond "+lsn, func() bool {
		return r.one(t, "select coalesce(bool_or(confirmed_flush_lsn > '"+lsn+"'), false) from pg_replication_slots where database = current_database() and not temporary") == "t"
	})
}

// one is the first row of a query on the source, its columns separated by |. It is
// asked again and again while something is awaited, so it keeps its session.
func (r *rig) one(t testing.TB, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for attempt := 0; ; attempt++ {
		var err error
		if r.session == nil || r.session.IsClosed() {
			if r.session, err = pgx.Connect(ctx, r.source); err != nil {
				t.Fatalf("connect: %v", err)
			}
		}
		results, err := r.session.PgConn().Exec(ctx, sql).ReadAll()
		if err != nil {
			if attempt == 0 && r.session.IsClosed() {
				continue // the server was restarted, or the session ended
			}
			t.Fatalf("%s: %v", sql, err)
		}
		rows := results[len(results)-1].Rows
		if len(rows) == 0 {
			return ""
		}
		return string(bytes.Join(rows[0], []byte("|")))
	}
}

// confirmed is the slot's confirmed position; empty without a slot.
func (r *rig) confirmed(t testing.TB) string {
	t.Helper()
	return r.one(t, "select confirmed_flush_lsn from pg_replication_slots where database = current_database() and not temporary")
}

// leftNothing asserts that nothing of any pipeline is on the source.
func (r *rig) leftNothing(t testing.TB) {
	t.Helper()
	if left := r.server.Query(t, r.source, "select slot_name::text from pg_replication_slots where database = current_database() union all select pubname from pg_publication"); len(left) > 0 {
		t.Errorf("left on the source: %v", left)
	}
}

// atTarget runs statements on the destination, which no pipeline has open if it is a
// file.
func (r *rig) atTarget(t testing.TB, statements ...string) {
	t.Helper()
	if r.dest.kind == "duckdb" {
		execDuckDB(t, r.dest.dsn, statements...)
		return
	}
	if r.dest.kind == "mysql" {
		dbtest.MySQL(t).Exec(t, path.Base(r.dest.dsn), append([]string{ansi}, statements...)...)
		return
	}
	r.server.Exec(t, r.dest.dsn, statements...)
}

// eventually waits for a condition.
func eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// says waits until a running pipeline has printed something.
func (p *proc) says(t testing.TB, limit time.Duration, text string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !strings.Contains(p.output.String(), text) {
		select {
		case <-p.done:
			if strings.Contains(p.output.String(), text) {
				return
			}
			t.Fatalf("it ended without saying %q:\n%s", text, tail(p.output.String()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("it did not say %q within %s:\n%s", text, limit, tail(p.output.String()))
		}
	}
}

// following waits until the first copy is done and the log is being read. Making the slot
// waits for the transactions of all tests on the server.
func (r *rig) following(t testing.TB, p *proc) {
	t.Helper()
	eventually(t, patience, "the slot is being read", func() bool {
		select {
		case <-p.done:
			t.Fatalf("it ended: %v\n%s", p.err, tail(p.output.String()))
		default:
		}
		return r.one(t, "select count(*) from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid where s.database = current_database() and not s.temporary and r.state = 'streaming'") == "1"
	})
}

// shown is a target's contents: the header, and the rows with null for NULL.
func (r *rig) shown(t testing.TB, target string, more ...string) (header []string, rows [][]string) {
	t.Helper()
	stdout, stderr, code := tailrace(t, append(r.args("show", target, "--format", "json"), more...)...)
	if code != 0 {
		t.Fatalf("show %s: exit %d\n%s", target, code, stderr)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(stdout)))
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			return header, rows
		}
		if err != nil || tok != json.Delim('{') {
			t.Fatalf("show %s: %v %v\n%s", target, tok, err, tail(stdout))
		}
		var names, row []string
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				t.Fatal(err)
			}
			var cell *string
			if err := dec.Decode(&cell); err != nil {
				t.Fatal(err)
			}
			names = append(names, name.(string))
			if cell == nil {
				row = append(row, null)
			} else {
				row = append(row, *cell)
			}
		}
		if _, err := dec.Token(); err != nil {
			t.Fatal(err)
		}
		header, rows = names, append(rows, row)
	}
}

// equalRows asserts that a target holds what a query on the source gives, as text
// and in any order.
func (r *rig) equalRows(t testing.TB, target, sql string) {
	t.Helper()
	_, got := r.shown(t, target)
	want := query(t, r.server, r.source, sql)
	sortRows(got)
	sortRows(want)
	if len(got) != len(want) {
		t.Errorf("%s: %d rows in the destination, %d at the source", target, len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if fmt.Sprint(got[i]) != fmt.Sprint(want[i]) {
			t.Errorf("%s: the destination holds %.200q, the source %.200q", target, got[i], want[i])
			return
		}
	}
}

// stop ends a running pipeline in order.
func (p *proc) stop(t testing.TB) {
	t.Helper()
	p.cmd.Process.Signal(os.Interrupt)
	if code := p.wait(t, patience); code != 0 {
		t.Fatalf("a stop: exit %d\n%s", code, tail(p.output.String()))
	}
}
