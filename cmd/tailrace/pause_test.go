package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// state is what status --json says, beside a daemon or without one.
func (r *rig) state(t testing.TB) (st status) {
	t.Helper()
	out, stderr, code := tailrace(t, r.args("status", "--json")...)
	if code != 0 {
		t.Fatalf("status: exit %d\n%s", code, stderr)
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

// A pause under load: nothing moves, also not by a daemon that was killed and comes
// back; slot and ownership stay. Then everything is there once.
func TestAPauseHoldsUntilResumeAlsoOverAKill(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, balanced, withHistoryOf("a")+"\nmax_lag: 1s")
		r.refused(t, 3, []string{"has not been started"}, "pause")
		p := r.start(t, nil)
		r.following(t, p)
		stop := r.balance(t)
		time.Sleep(500 * time.Millisecond)
		contains(t, r.must(t, "pause"), "paused at ")
		p.says(t, patience, "paused: nothing is read")
		first := r.state(t)
		if first.Paused == nil || !strings.Contains(first.Paused.By, "process") {
			t.Fatalf("status: %+v", first)
		}
		contains(t, r.must(t, "pause"), "paused at "+first.Position) // twice is as good as once
		time.Sleep(3 * time.Second)
		st := r.state(t)
		if st.Position != first.Position || st.Source.Confirmed != first.Position || st.Source.SlotActive || st.Source.RetainedBytes == 0 || st.Paused.Since != first.Paused.Since {
			t.Errorf("a paused pipeline moves: %+v %+v, before %+v", st, st.Source, first)
		}
		r.refused(t, 1, []string{"paused", "nothing reads the slot"}, "status", "--check")
		r.refused(t, 3, []string{"owns this pipeline"}, "run", "--once") // it is owned still
		if kind == "duckdb" {
			if line := r.ask(t, sumOfBoth)[0]; !strings.HasPrefix(line, "0,") {
				t.Errorf("a query while paused: %s", line)
			}
		}

		p.kill()
		r.refused(t, 3, []string{"is paused since", "tailrace resume"}, "run", "--once")
		p = r.start(t, nil)
		p.says(t, patience, "paused: nothing is read")
		if st := r.state(t); st.Position != first.Position {
			t.Errorf("a daemon that starts paused moves: %s, %s", st.Position, first.Position)
		}
		stop() // under load a busy machine's sender may never be called streaming
		contains(t, r.must(t, "resume"), "resumed")
		r.following(t, p)
		if st := r.state(t); st.Paused != nil {
			t.Errorf("status: %+v", st.Paused)
		}
		contains(t, r.must(t, "resume"), "resumed")
		r.through(t, "update a set v = v + 1 where id = 1; update b set v = v - 1 where id = 1")

		// Without a daemon both are written down.
		p.stop(t)
		if kind == "duckdb" { // an owner that answers nobody
			lock, err := os.Create(r.dest.dsn + ".lock")
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			r.refused(t, 4, []string{"within 1s"}, "pause", "--timeout", "1s")
			if err := errors.Join(os.Remove(lock.Name()), lock.Close()); err != nil {
				t.Fatal(err)
			}
		}
		contains(t, r.must(t, "pause"), "starts paused")
		p = r.start(t, nil)
		p.says(t, patience, "paused: nothing is read")
		p.stop(t) // a stop ends a pause's waiting, not the pause
		contains(t, r.must(t, "resume"), "no daemon runs")
		r.once(t)
		r.same(t)
	})
}

func withHistoryOf(table string) string {
	return fmt.Sprintf("flows: [{source: public.*}, {source: public.%s, target: %[1]s_history, stored_as_scd_type: 2}]", table)
}

// A pause in the middle of a transaction that comes in pieces takes them back.
func TestAPauseInsideALargeTransaction(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text)", everything)
		r.env = []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB", "TAILRACE_BATCH_MAX_BYTES=64KiB"}
		p := r.start(t, nil)
		r.following(t, p)
		r.exec(t, "insert into t select i, repeat('x', 300) from generate_series(1, 150000) i")
		time.Sleep(300 * time.Millisecond)
		contains(t, r.must(t, "pause"), "paused at ")
		n := r.state(t)
		time.Sleep(time.Second)
		if m := r.state(t); m.Position != n.Position {
			t.Errorf("it moves while paused: %s %s", n.Position, m.Position)
		}
		contains(t, r.must(t, "resume"), "resumed")
		r.through(t, "insert into t values (0, '')")
		for line := range strings.Lines(p.output.String()) { // a busy server may take its time to let go of the slot
			if strings.Contains(line, "will try again") && !strings.Contains(line, "still holds the slot") {
				t.Errorf("a pause counts as a fault: %s", line)
			}
		}
		p.stop(t)
		r.same(t)
	})
}

// Requests that are rows: by hand, unknown ones, those of a daemon that was killed,
// those to nobody, and by a user without rights.
func TestRequestsThatAreRows(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "postgres", "create table t(id int primary key)", everything)
	p := r.start(t, nil)
	r.following(t, p)
	state := func(id int) string {
		return strings.Join(r.held(t, fmt.Sprintf("select state, outcome from _tailrace.requests where id = %d", id))[0], " ")
	}
	await := func(id int, want string) {
		t.Helper()
		eventually(t, patience, fmt.Sprintf("request %d is %s", id, want), func() bool { return strings.Contains(state(id), want) })
	}
	name := r.held(t, "select pipeline from _tailrace.marks")[0][0]
	ask := func(kind string) {
		t.Helper()
		r.atTarget(t, fmt.Sprintf("insert into _tailrace.requests(pipeline, kind, argument, asked_by) values ('%s', '%s', '', 'me')", name, kind))
	}
	ask("make coffee")
	await(1, "failed the running daemon does not know")
	ask("pause")
	await(2, "done paused at")
	p.kill()
	// What it had taken and not finished: by kind.
	r.atTarget(t, "update _tailrace.requests set state = 'taken'", "insert into _tailrace.requests(pipeline, kind, argument, asked_by, state, epoch) select pipeline, 'resume', '', 'me', 'taken', epoch from _tailrace.marks")
	p = r.start(t, nil)
	await(1, "failed the process that took the request ended")
	await(3, "done resumed")
	eventually(t, patience, "the pause asked for before it has an answer", func() bool { return !strings.HasPrefix(state(2), "taken") })

	// A pause that was written down without a request is obeyed too.
	r.atTarget(t, "insert into _tailrace.pauses values ('"+name+"', now(), 'somebody')")
	eventually(t, patience, "it rests", func() bool {
		return strings.Count(p.output.String(), "paused: nothing is read") >= 1 && !r.state(t).Source.SlotActive
	})
	r.must(t, "resume")
	r.following(t, p)
	p.stop(t)

	// An owner that does not look: the request is withdrawn.
	r.atTarget(t, "insert into _tailrace.owners select pipeline, epoch, 'elsewhere', 'boot', 1, 1, 'x', 'y', now() from _tailrace.marks")
	r.refused(t, 4, []string{"has not taken the request within 1s", "withdrawn", "elsewhere"}, "pause", "--timeout", "1s")
	if got := r.held(t, "select state from _tailrace.requests order by id desc limit 1")[0][0]; got != "withdrawn" {
		t.Errorf("the request is %s", got)
	}
	r.atTarget(t, "delete from _tailrace.owners")

	// Who may not write there may not command.
	role := uniqueName("reader")
	r.atTarget(t, "create role "+role+" login", "grant usage on schema _tailrace to "+role, "grant select on all tables in schema _tailrace to "+role)
	t.Cleanup(func() {
		server.Exec(t, r.dest.dsn, "drop owned by "+role, "drop role "+role)
	})
	as, err := url.Parse(r.dest.dsn)
	if err != nil {
		t.Fatal(err)
	}
	as.User = url.User(role)
	r.reconfigure(t, r.dest.dsn, as.String())
	r.refused(t, 3, []string{"GRANT USAGE ON SCHEMA _tailrace"}, "pause", "--timeout", "2s")
}
