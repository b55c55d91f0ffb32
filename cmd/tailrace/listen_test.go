package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/pgserver"
)

// scraped asks a running pipeline.
func scraped(t testing.TB, p *proc, path string) (code int, body string) {
	t.Helper()
	at := regexp.MustCompile(`listening address=(\S+)`).FindStringSubmatch(p.output.String())
	if at == nil {
		t.Fatalf("it does not say where it listens:\n%s", tail(p.output.String()))
	}
	answer, err := http.Get("http://" + at[1] + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// metric returns one value of what a pipeline shows.
func metric(t testing.TB, p *proc, name, labels string) float64 {
	t.Helper()
	_, body := scraped(t, p, "/metrics")
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, labels) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s{%s} in\n%s", name, labels, body)
	return 0
}

func TestARunningPipelineShowsItself(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); create table u(id int primary key)", "listen: 127.0.0.1:0\nlog_format: text\n"+everything)
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into t select i, 'x' from generate_series(1, 1000) i", "update t set v = 'y'")
		if n := metric(t, p, "tailrace_changes_total", ""); n != 2000 {
			t.Errorf("%v changes, want 2000", n)
		}
		if n := metric(t, p, "tailrace_tables", `phase="live"`); n != 2 {
			t.Errorf("%v live tables, want 2", n)
		}
		eventually(t, patience, "the pipeline is ready", func() bool {
			code, _ := scraped(t, p, "/readyz")
			return code == http.StatusOK
		})
		lsn := r.one(t, "select pg_current_wal_flush_lsn() - '0/0'")
		eventually(t, patience, "positions reach the end of the log", func() bool {
			at, err := strconv.ParseFloat(lsn, 64)
			return err == nil && metric(t, p, "tailrace_applied_position_bytes", "") >= at && metric(t, p, "tailrace_source_position_bytes", "") >= at
		})
		eventually(t, patience, "a pipeline without work is not behind", func() bool { // others write to this server's log
			return metric(t, p, "tailrace_lag_seconds", "") == 0
		})

		// A table that is parked is seen, and the others stay ready.
		r.exec(t, "drop table u")
		eventually(t, 40*time.Second, "the parked table is shown", func() bool {
			_, body := scraped(t, p, "/metrics")
			return strings.Contains(body, "tailrace_table_parked{") && strings.Contains(body, `u"} 1`)
		})
		eventually(t, patience, "the pipeline is ready again", func() bool {
			code, _ := scraped(t, p, "/readyz")
			return code == http.StatusOK
		})
		p.stop(t)
	})
}

// While the destination is away the source keeps log: that is seen, warned of, and
// bounded if the configuration says so.
func TestLogThatTheSourceKeepsIsBounded(t *testing.T) {
	t.Parallel()
	// The source is its own: what other databases of the server write is kept, too.
	server, dest := dbtest.Postgres(t, dbtest.Dedicated()), dbtest.Postgres(t, dbtest.Dedicated())
	source := server.Database(t)
	server.Exec(t, source, "create table t(id int primary key, v text); create table noise(v text)")
	r := rigOn(t, server, source, destination{"postgres", dest.Database(t)}, "listen: 127.0.0.1:0\nflows: [{source: public.t}]")
	r.reconfigure(t, "source: {kind: postgres", "source: {max_retained_wal: 8MiB, kind: postgres")
	noise := func() {
		r.exec(t, "insert into noise select repeat('x', 1000) from generate_series(1, 20000)")
	}
	p := r.start(t, nil)
	r.following(t, p)
	r.through(t, "insert into t values(1, 'a')")
	if err := dest.Stop(pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	noise()
	p.says(t, patience, "keeps more log for this pipeline than source.max_retained_wal allows")
	if kept := metric(t, p, "tailrace_retained_wal_bytes", ""); kept < 8<<20 {
		t.Errorf("%v bytes kept are shown", kept)
	}
	if code, body := scraped(t, p, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not following") || !strings.Contains(body, " ago: ") || !strings.Contains(body, "connect") {
		t.Errorf("ready although the destination is away: %d %s", code, body)
	}
	if n := metric(t, p, "tailrace_retries_total", ""); n < 1 {
		t.Errorf("%v retries", n)
	}
	if err := dest.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.through(t, "insert into t values(2, 'b')") // only warned: nothing was lost
	p.stop(t)

	r.reconfigure(t, "max_retained_wal: 8MiB", "max_retained_wal: 8MiB, on_limit: stop_and_drop_slot")
	p = r.start(t, nil)
	r.following(t, p)
	if err := dest.Stop(pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	noise()
	select {
	case <-p.done:
	case <-time.After(100 * time.Second):
		t.Fatalf("it goes on beyond the limit:\n%s", tail(p.output.String()))
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	contains(t, p.output.String(), "above source.max_retained_wal (8 MiB)", "run --overwrite")
	if n := r.one(t, "select count(*) from pg_replication_slots where database = current_database()"); n != "0" {
		t.Errorf("%s slots are left", n)
	}
	if err := dest.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.refused(t, 3, []string{"is missing", "--overwrite"}, "run", "--once")
	r.once(t, "--overwrite")
	r.same(t)
}

func TestAnAddressInUseIsRefused(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "duckdb", "create table t(id int primary key)", "listen: 127.0.0.1:0\n"+everything)
	p := r.start(t, nil)
	r.following(t, p)
	at := regexp.MustCompile(`listening address=(\S+)`).FindStringSubmatch(p.output.String())
	other := newRig(t, server, "duckdb", "create table t(id int primary key)", fmt.Sprintf("listen: %q\n%s", at[1], everything))
	other.refused(t, 3, []string{"listen on " + at[1], "choose another `listen` address"}, "run", "--once")
	p.stop(t)
}
