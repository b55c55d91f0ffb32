package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

const triggered = `relations: {cdc: {path: "landing/*.jsonl", format: jsonl, columns: {id: bigint, v: text, n: bigint}}}
flows: [{source: cdc, target: t, keys: [id], sequence_by: n, except_column_list: [n, _rescued_data]}]
`

func event(id int, v string) string { return fmt.Sprintf(`{"id":%d,"v":%q,"n":%d}`, id, v, id) }

// runs are the runs that status tells, the oldest first, as "why outcome".
func (r *rig) runs(t testing.TB) (list []string) {
	t.Helper()
	for _, run := range r.state(t).Trigger.Runs {
		list = append([]string{run.Why + " " + run.Outcome}, list...)
	}
	return list
}

func (r *feedRig) taken(t testing.TB) int {
	t.Helper()
	_, rows := r.shown(t, "t")
	return len(rows)
}

// A daemon with a trigger runs at its start and every so often. It rests in between,
// where it can be paused, asked and killed; what failed is told, and tried again.
func TestADaemonRunsEvery(t *testing.T) {
	t.Parallel()
	h := newHook(t, 500, 200)
	r := newFeedRig(t, nil, "duckdb", "trigger: {every: 1s}\nlisten: 127.0.0.1:0\non_failure: {webhook: \""+h.URL+"/s3cret\", command: [tee, NOTICE]}\n"+triggered)
	told := filepath.Join(r.dir, "notice")
	r.reconfigure(t, "NOTICE", told)
	r.put(t, "landing/1.jsonl", event(1, "a"))
	p := r.start(t, nil)
	p.says(t, 20*time.Second, `msg="run begins" run=1 why=start`)
	p.says(t, 20*time.Second, "run=2 why=every")
	r.put(t, "landing/2.jsonl", event(2, "b"))
	eventually(t, 20*time.Second, "the second file is taken", func() bool { return r.taken(t) == 2 })
	st := r.state(t)
	if st.Trigger.When != "every 1s" || st.Trigger.Runs[len(st.Trigger.Runs)-1].Rows != 1 {
		t.Errorf("status: %+v", st.Trigger)
	}

	// Paused while it rests; moments that pass count once.
	contains(t, r.must(t, "pause"), "paused at ")
	r.put(t, "landing/3.jsonl", event(3, "c"))
	r.refused(t, 3, []string{"is paused since"}, "trigger")
	before := len(r.runs(t))
	time.Sleep(1500 * time.Millisecond)
	if after := r.runs(t); len(after) != before {
		t.Errorf("it runs while it is paused: %v", after)
	}
	r.must(t, "resume")
	contains(t, r.must(t, "trigger"), "run ", " done at ")
	if n := r.taken(t); n != 3 {
		t.Errorf("%d rows", n)
	}

	// A run that fails: the daemon goes on.
	r.put(t, "landing/4.jsonl", "no JSON")
	p.says(t, 20*time.Second, "run failed; the next moment tries again")
	eventually(t, 20*time.Second, "it is written down, by the session after it", func() bool { return strings.Contains(strings.Join(r.runs(t), ","), "every failed") })
	out := r.refused(t, 1, []string{"problem: run ", "4.jsonl", "remedy: "}, "status", "--check")
	contains(t, out, "failed")
	p.says(t, 20*time.Second, "the webhook of on_failure was told")
	p.says(t, 20*time.Second, "the command of on_failure ran")
	n := h.told()[1]
	if n.Run < 4 || n.ErrorKind != "operator" || !strings.Contains(n.Message, "4.jsonl") || strings.Contains(n.Message, "remedy") || n.Remedy == "" {
		t.Errorf("told %+v", n)
	}
	var onStdin notice
	if text, err := os.ReadFile(told); err != nil || json.Unmarshal(text, &onStdin) != nil || onStdin.ErrorKind != "operator" {
		t.Errorf("the command got %s: %v", text, err)
	}
	if v := metric(t, p, "tailrace_run_outcome", `"failed"`); v != 1 {
		t.Errorf("the outcome is not shown as failed")
	}
	r.put(t, "landing/4.jsonl", event(4, "d"))
	eventually(t, 20*time.Second, "the mended file is taken", func() bool { return r.taken(t) == 4 })
	r.must(t, "status", "--check")
	if strings.Contains(p.output.String(), "s3cret") {
		t.Error("the webhook's URL is in the log")
	}

	// Killed while it rests, or within a run; stopped in order.
	p.kill()
	p = r.start(t, []string{"TAILRACE_KILL_AT=run begun:2"})
	if code := p.wait(t, 20*time.Second); code != -1 {
		t.Fatalf("it was to be killed: exit %d", code)
	}
	r.put(t, "landing/5.jsonl", event(5, "e"))
	p = r.start(t, []string{"TAILRACE_TRIGGER_EVERY=1h"})
	p.says(t, 20*time.Second, "run ended")
	if runs := r.runs(t); strings.Join(runs[len(runs)-3:], ", ") != "start done, every interrupted, start done" {
		t.Errorf("runs: %v", runs)
	}
	if n := r.taken(t); n != 5 {
		t.Errorf("%d rows", n)
	}
	began := time.Now()
	p.stop(t)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a stop while it rests takes %s", took)
	}

	// Once is once, and remembered.
	r.put(t, "landing/6.jsonl", event(6, "f"))
	r.once(t)
	if runs := r.runs(t); runs[len(runs)-1] != "asked done" || r.taken(t) != 6 {
		t.Errorf("runs: %v", runs)
	}
	r.refused(t, 3, []string{"no daemon runs", "tailrace run --once"}, "trigger")
	r.must(t, "teardown", "--yes")
}

// Files that arrive begin a run, once they are complete.
func TestADaemonRunsWhenFilesArrive(t *testing.T) {
	t.Parallel()
	r := newFeedRig(t, nil, "duckdb", "trigger: {file_arrival: landing/}\n"+triggered)
	r.put(t, "landing/1.jsonl", event(1, "a"))
	p := r.start(t, nil)
	p.says(t, 20*time.Second, "run ended")
	r.put(t, "landing/2.jsonl", event(2, "b"))
	p.says(t, 20*time.Second, `run=2 why="file arrival" file=2.jsonl`)
	eventually(t, 20*time.Second, "it is taken", func() bool { return r.taken(t) == 2 })
	st := r.state(t)
	if st.Trigger.Next != nil || st.Trigger.When != "files that arrive at landing/" {
		t.Errorf("status: %+v", st.Trigger)
	}
	p.stop(t)

	r.reconfigure(t, "landing/}\n", "'landing/['}\n")
	r.refused(t, 2, []string{"trigger.file_arrival: ", "a [ without its ]"}, "status")
	r.reconfigure(t, "'landing/['}\n", "landing/}\n")

	// A stop while a run waits for a file to rest.
	if err := os.WriteFile(filepath.Join(r.dir, "landing", "3.jsonl"), []byte(event(3, "c")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p = r.start(t, nil)
	p.says(t, 20*time.Second, "run=3 why=start")
	p.stop(t)
	if runs := r.runs(t); runs[2] != "start stopped" {
		t.Errorf("runs: %v", runs)
	}
}

// A log: each run goes to the source's position of its beginning, and the requests of a
// daemon work between two runs.
func TestADaemonThatRunsAtMomentsOfALog(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	r := newRig(t, server, "postgres", "create table a(id int primary key, v text); insert into a select i, 'v' from generate_series(1, 100) i", "trigger: {every: 1h}\nflows: [{source: public.*}, {target: shot, name: shot, snapshot: {relation: a, version: counter, every: 1s}}]")
	p := r.start(t, nil)
	p.says(t, 30*time.Second, "run ended")
	st := r.state(t)
	if st.Trigger.Runs[0].Rows != 200 || st.Source.SlotActive || st.Trigger.Next == nil {
		t.Errorf("status: %+v", st.Trigger)
	}
	r.exec(t, "update a set v = 'w' where id = 1", "create table b(id int primary key)", "insert into b values (1)")
	if got := r.held(t, "select v from a where id = 1")[0][0]; got != "v" {
		t.Errorf("it follows: %s", got)
	}
	contains(t, r.must(t, "trigger"), "run 2 done")
	if runs := r.runs(t); strings.Join(runs, ", ") != "start done, asked done" {
		t.Errorf("runs: %v", runs)
	}
	r.equalRows(t, "a", "select id, v from a")
	r.equalRows(t, "b", "select id from b")
	r.equalRows(t, "shot", "select id, v from a")
	r.exec(t, "insert into a values (500, 'y')")
	contains(t, r.must(t, "refresh", "--flow", "shot"), "shot")
	r.equalRows(t, "shot", "select id, v from a")
	r.must(t, "refresh", "--flow", "shot", "--full")
	r.equalRows(t, "shot", "select id, v from a")
	if n := len(r.held(t, "select 1 from a")); n != 100 {
		t.Errorf("a refresh of another flow follows: %d rows", n)
	}
	r.exec(t, "delete from a where id = 2")
	contains(t, r.must(t, "resync", "--table", "a"), "copied again")
	r.same(t) // beside the resting daemon
	contains(t, r.must(t, "pause"), "paused at ")
	r.must(t, "resume")
	r.refused(t, 3, []string{"owns this pipeline"}, "run", "--once")
	r.must(t, "status", "--check")
	p.kill()
	r.exec(t, "insert into a values (1000, 'x')")
	p = r.start(t, nil)
	p.says(t, 30*time.Second, "run ended")
	r.equalRows(t, "a", "select id, v from a")
	p.stop(t)
}

// A daemon that follows tells of its end, if that is an error.
func TestTheEndOfADaemonIsTold(t *testing.T) {
	t.Parallel()
	h := newHook(t, 200)
	r := newFeedRig(t, nil, "duckdb", "on_failure: {webhook: \""+h.URL+"/s3cret\"}\n"+triggered)
	r.put(t, "landing/1.jsonl", event(1, "a"))
	p := r.start(t, nil)
	p.says(t, 20*time.Second, "feed copied")
	eventually(t, 20*time.Second, "the file is taken", func() bool { return r.taken(t) == 1 })
	p.stop(t)
	if got := h.told(); len(got) > 0 {
		t.Errorf("a stop is told: %+v", got)
	}
	r.put(t, "landing/2.jsonl", "no JSON")
	p = r.start(t, nil)
	if code := p.wait(t, 20*time.Second); code != 3 {
		t.Errorf("exit %d", code)
	}
	if got := h.told(); len(got) != 1 || got[0].Run != 0 || got[0].ErrorKind != "operator" || !strings.Contains(got[0].Message, "2.jsonl") {
		t.Errorf("told: %+v", got)
	}
}
