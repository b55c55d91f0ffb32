package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/pgserver"
	"tailrace/internal/sim"
)

// newBesideRig makes a pipeline with a log and a folder of files beside it. DIR in rest
// stands for the folder.
func newBesideRig(t *testing.T, server *dbtest.Server, kind, schema, rest string) *feedRig {
	t.Helper()
	dir := t.TempDir()
	return &feedRig{rig: newRig(t, server, kind, schema, strings.ReplaceAll(rest, "DIR", filepath.ToSlash(dir))), dir: dir}
}

const besideColumns = "columns: {k: int, a: text, b: int, op: text, n: bigint}"

// besideFlows: a seed of files that is taken once, a feed of files and a feed table into
// one current table and one history; and a plain table, whose target tells how far the
// log is.
const besideFlows = `
batch: {max_rows: 40}
relations:
  seed: {path: "DIR/seed/*.jsonl", format: jsonl, ` + besideColumns + `}
  landing: {path: "DIR/landing/*.jsonl", format: jsonl, ` + besideColumns + `}
flows:
  - {source: public.plain}
  - {source: seed, once: true, target: now, name: now_seed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, _rescued_data]}
  - {source: landing, target: now, name: now_files, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, _rescued_data]}
  - {source: public.events, target: now, name: now_live, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
  - {source: seed, once: true, target: past, name: past_seed, stored_as_scd_type: 2, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, _rescued_data]}
  - {source: landing, target: past, name: past_files, stored_as_scd_type: 2, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, _rescued_data]}
  - {source: public.events, target: past, name: past_live, stored_as_scd_type: 2, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
`

// mixedFeed are events of which each has a key and a sequence of its own, in random
// order; they are told to the table or put into files.
type mixedFeed struct {
	rnd  *rand.Rand
	left [][]string // k, a, b, op, n
	told [][]string
	file int
}

func newMixedFeed(rnd *rand.Rand, keys int) *mixedFeed {
	w := &mixedFeed{rnd: rnd}
	for k := range keys {
		for n := range 4 + rnd.IntN(12) {
			op, b := "U", null
			if rnd.IntN(4) == 0 {
				op = "D"
			}
			if v := rnd.IntN(4); v > 0 {
				b = fmt.Sprint(v)
			}
			w.left = append(w.left, []string{fmt.Sprint(k), fmt.Sprintf("a%d", rnd.IntN(3)), b, op, fmt.Sprint(n)})
		}
	}
	rnd.Shuffle(len(w.left), func(i, j int) { w.left[i], w.left[j] = w.left[j], w.left[i] })
	return w
}

func (w *mixedFeed) next(n int) [][]string {
	n = min(n, len(w.left))
	out := w.left[:n]
	w.left = w.left[n:]
	w.told = append(w.told, out...)
	return out
}

// lines are events as JSON lines.
func (w *mixedFeed) lines(n int) (lines []string) {
	for _, e := range w.next(n) {
		b := e[2]
		if b == null {
			b = "null"
		}
		lines = append(lines, fmt.Sprintf(`{"k": %s, "a": %q, "b": %s, "op": %q, "n": %s}`, e[0], e[1], b, e[3], e[4]))
	}
	return lines
}

// put writes a file into a folder.
func (w *mixedFeed) put(t *testing.T, r *feedRig, folder string, n int) {
	t.Helper()
	if lines := w.lines(n); len(lines) > 0 {
		w.file++
		r.put(t, fmt.Sprintf("%s/%05d.jsonl", folder, w.rnd.IntN(100)*1000+w.file), lines...)
	}
}

// tell inserts events into a table.
func (w *mixedFeed) tell(t *testing.T, r *rig, table string, n int) {
	t.Helper()
	var values []string
	for _, e := range w.next(n) {
		b := e[2]
		if b == null {
			b = "null"
		}
		values = append(values, fmt.Sprintf("(%s, '%s', %s, '%s', %s)", e[0], e[1], b, e[3], e[4]))
	}
	if len(values) > 0 {
		r.exec(t, "insert into "+table+" values "+strings.Join(values, ", "))
	}
}

// expect compares a current table and a history with what the events make.
func (w *mixedFeed) expect(t *testing.T, r *rig, current, history string) {
	t.Helper()
	o := sim.Oracle{Columns: 3, Tracked: []bool{false, true, true}}
	for _, row := range w.told {
		o.Events = append(o.Events, tableEvent(t, row))
	}
	var now, past []string
	for _, v := range o.Type1() {
		now = append(now, rowOf(v.Values))
	}
	for _, v := range o.Type2() {
		end := v.End
		if end == "" {
			end = "∅"
		}
		past = append(past, rowOf(v.Values)+" "+v.Start+" "+end)
	}
	if current != "" {
		r.holds(t, current, []string{"k", "a", "b"}, now...)
	}
	if history != "" {
		r.holds(t, history, []string{"k", "a", "b", "__START_AT", "__END_AT"}, past...)
	}
}

const besideTables = `
create table plain(id int primary key, v text);
create table events(k int, a text, b int, op text, n bigint);
`

// Files beside a log, through kills: a seed that is taken once, a feed of files and a
// feed in a table fill one current table and one history, while large files and large
// transactions come in pieces.
func TestFilesBesideALogThroughKills(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newBesideRig(t, server, kind, besideTables, besideFlows)
		r.env = []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB"}
		w := newMixedFeed(rnd, 1000)
		for range 3 {
			w.put(t, r, "seed", 150)
		}
		w.tell(t, r.rig, "events", 200)
		plain := 0
		points := []string{"mark creating", "slot made", "mark copying", "rows written:3", "table loaded:1", "copy finished", "segment received:2", "before apply:3", "applied:4"}
		for i := range 12 {
			w.put(t, r, "landing", 1+rnd.IntN([]int{60, 60, 60, 1500}[i%4])) // a large one comes in pieces
			w.tell(t, r.rig, "events", 40)
			var env []string
			limit := time.Duration(100+rnd.IntN(900)) * time.Millisecond
			switch {
			case i < len(points):
				env, limit = []string{"TAILRACE_KILL_AT=" + points[i]}, 30*time.Second
			case rnd.IntN(3) > 0:
				point := crashPoints[rnd.IntN(len(crashPoints))]
				env, limit = []string{fmt.Sprintf("TAILRACE_KILL_AT=%s:%d", point.name, 1+rnd.IntN(4))}, 2*time.Second
			}
			p := r.start(t, env)
			if i >= len(points) { // while it runs
				w.put(t, r, "landing", 20)
				plain++
				r.exec(t, fmt.Sprintf("insert into plain select %d * 1000 + i, repeat('x', 200) from generate_series(1, 600) i", plain))
				w.tell(t, r.rig, "events", 20)
			}
			select {
			case <-p.done:
				if p.cmd.ProcessState.ExitCode() != -1 {
					t.Fatalf("it ended by itself: %v\n%s", p.err, tail(p.output.String()))
				}
			case <-time.After(limit):
				if i < len(points) {
					t.Fatalf("point %q was never reached\n%s", points[i], tail(p.output.String()))
				}
				p.kill()
			}
		}
		w.put(t, r, "landing", 700)
		w.tell(t, r.rig, "events", len(w.left))
		r.once(t)
		w.expect(t, r.rig, "now", "past")
		r.same(t)

		// The seed was taken to its end: what comes into its folder later is not looked at.
		r.put(t, "seed/zz.jsonl", `{"k": 100000, "a": "late", "op": "U", "n": 1}`)
		r.put(t, "seed/broken.jsonl", `no JSON`)
		r.once(t)
		w.expect(t, r.rig, "now", "past")
		out := r.must(t, "status", "--check")
		contains(t, out, "seed      3, to its end", "landing   ")
		// Everything again, from the log and from files that are there.
		r.put(t, "seed/broken.jsonl", `{"k": 100000, "a": "late", "op": "D", "n": 2}`)
		r.once(t, "--overwrite")
		w.told = append(w.told, []string{"100000", "late", null, "U", "1"}, []string{"100000", "late", null, "D", "2"})
		w.expect(t, r.rig, "now", "past")
	})
}

// Neither side waits for the other: the slot is confirmed while no file comes, and a file
// is applied while the log is silent; --once ends when both are at their end.
func TestFilesAndLogDoNotHoldEachOtherBack(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newBesideRig(t, server, kind, "create table plain(id int primary key, v text)", `
relations:
  feed: {path: "DIR/feed/*.csv", format: csv, columns: {k: int, v: text, n: int}}
flows:
  - {source: public.plain}
  - {source: feed, keys: [k], sequence_by: n, except_column_list: [n, _rescued_data]}`)
		r.once(t)
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into plain values (1, 'one')")
		r.put(t, "feed/1.csv", "k,v,n", "1,a,1")
		confirmed := r.confirmed(t)
		eventually(t, patience, "the file is applied while the log is silent", func() bool {
			return r.reads(t, kind, `select v from feed`, "a")
		})
		r.through(t, "insert into plain values (2, 'two')")
		if confirmed == r.confirmed(t) {
			t.Error("the slot stayed where it was")
		}
		p.stop(t)
		r.exec(t, "insert into plain values (3, 'three')")
		r.put(t, "feed/2.csv", "k,v,n", "2,b,1")
		r.once(t)
		r.holds(t, "feed", []string{"k", "v"}, "1 a", "2 b")
		r.same(t)
		r.put(t, "feed/3.csv", "k,v,n", "3,c,1")
		out := r.same(t) // which takes no file
		contains(t, out, "feed: 0 differences of 2 rows")
		r.holds(t, "feed", []string{"k", "v"}, "1 a", "2 b")
		contains(t, r.must(t, "plan"), "files are only read", "feed -> ", "-- then: follow")
		contains(t, r.must(t, "check"), "nothing blocks")
		contains(t, r.must(t, "explain", "--flow", "feed", "--key", "2"), "2.csv, line 2")

		// A bad file stops the pipeline by name; the log waits for it and loses nothing.
		r.put(t, "feed/4.csv", "k,v,n", `4,"d`)
		r.exec(t, "insert into plain values (4, 'four')")
		r.refused(t, 3, []string{"relation feed", "4.csv"}, "run", "--once")
		r.put(t, "feed/4.csv", "k,v,n", `4,"d",1`)
		r.once(t)
		r.holds(t, "feed", []string{"k", "v"}, "1 a", "2 b", "3 c", "4 d")
		r.same(t)
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
	})
}

// reads reports whether the running pipeline's destination shows exactly this cell. An
// embedded one cannot be asked beside its owner: there the end of the run tells.
func (r *rig) reads(t testing.TB, kind, sql, want string) bool {
	t.Helper()
	if kind == "duckdb" {
		return true
	}
	rows := r.held(t, sql)
	return len(rows) == 1 && slices.Equal(rows[0], []string{want})
}

// Files come to a pipeline that follows a log already, as a target of their own or as
// another one's; a target that files fill is made anew with its files.
func TestFilesThatAreAddedToALog(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newBesideRig(t, server, kind, "create table plain(id int primary key, v text); create table events(k int, v text, n int); insert into events values (1, 'table', 5)", `
flows:
  - {source: public.plain}
#more`)
		r.exec(t, "insert into plain values (1, 'one')")
		r.once(t)
		r.put(t, "feed/1.csv", "k,v,n", "1,old,1", "2,file,1")
		relation := "relations: {%s: {path: \"" + filepath.ToSlash(r.dir) + "/feed/*.csv\", format: csv, columns: {k: int, v: text, n: int}}}\n"
		r.reconfigure(t, "flows:", fmt.Sprintf(relation, "feed")+"flows:")
		r.reconfigure(t, "#more", `
  - {source: feed, name: files, target: both, keys: [k], sequence_by: n, except_column_list: [n, _rescued_data]}
  - {source: public.events, name: table, target: both, source_kind: feed, keys: [k], sequence_by: n, except_column_list: [n]}
  #more`)
		r.once(t)
		r.holds(t, "both", []string{"k", "v"}, "1 table", "2 file")
		r.same(t)

		// Its files were taken for the other target: it needs a relation of its own.
		r.reconfigure(t, "#more", `- {source: feed, target: alone, keys: [k], sequence_by: n, except_column_list: [n, _rescued_data]}`)
		r.refused(t, 3, []string{"relation feed, whose files were taken already, for target", "a relation of its own"}, "run", "--once")
		r.reconfigure(t, "- {source: feed, target: alone", "- {source: again, target: alone")
		r.reconfigure(t, fmt.Sprintf(relation, "feed"), strings.Replace(fmt.Sprintf(relation, "feed"), "{feed: ", "{again: {path: \""+filepath.ToSlash(r.dir)+"/feed/*.csv\", format: csv, columns: {k: int, v: text, n: int}}, feed: ", 1))
		r.once(t)
		r.holds(t, "alone", []string{"k", "v"}, "1 old", "2 file")

		// Anew: the table's rows and the files again; the other target keeps its own.
		damage := map[string]string{"duckdb": "main.both", "postgres": "public.both"}[kind]
		if kind == "duckdb" {
			inDuckDB(t, r.dest.dsn, "delete from "+damage)
		} else {
			r.atTarget(t, "delete from "+damage)
		}
		r.must(t, "backfill", "--table", "both", "--overwrite")
		r.holds(t, "both", []string{"k", "v"}, "1 table")
		r.once(t)
		r.holds(t, "both", []string{"k", "v"}, "1 table", "2 file")
		r.holds(t, "alone", []string{"k", "v"}, "1 old", "2 file")
		r.same(t)
	})
}

// What a run that ended has taken of files survives a crash of the destination, also
// where the log was silent and its position says nothing of them.
func TestFilesThatWereTakenAreDurable(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	dest := dbtest.Postgres(t, dbtest.Dedicated(), dbtest.Setting("wal_writer_delay", "10s"))
	dir, source := t.TempDir(), server.Database(t)
	server.Exec(t, source, "create table plain(id int primary key)")
	r := &feedRig{dir: dir, rig: rigOn(t, server, source, destination{"postgres", dest.Database(t)}, `
relations:
  feed: {path: "`+filepath.ToSlash(dir)+`/feed/*.csv", format: csv, columns: {k: int, v: text, n: int}}
flows:
  - {source: public.plain}
  - {source: feed, keys: [k], sequence_by: n, except_column_list: [n, _rescued_data]}`)}
	r.once(t)
	for i := range 3 {
		r.put(t, fmt.Sprintf("feed/%d.csv", i), "k,v,n", fmt.Sprintf("%d,a,1", i))
		r.once(t)
		if err := dest.Stop(pgserver.Immediate); err != nil {
			t.Fatal(err)
		}
		if err := dest.StartAgain(context.Background()); err != nil {
			t.Fatal(err)
		}
		if rows := query(t, dest, r.dest.dsn, "select k from feed"); len(rows) != i+1 {
			t.Fatalf("%d rows after the crash, want %d", len(rows), i+1)
		}
	}
}
