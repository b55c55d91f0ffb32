package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/flow"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// shuffleConfig: of one feed every kind of target that there is; `lives` is a feed in
// which no two events of a key have one sequence; `beliefs` has a system sequence too. A truncate has no key, so it is a
// bad event for all flows but the one that reads it as a truncate.
func shuffleConfig() string {
	var b strings.Builder
	b.WriteString("batch: {max_rows: 30}\nrelations:\n")
	for _, feed := range []string{"feed", "lives", "beliefs"} {
		fmt.Fprintf(&b, "  %s: {path: \"%[1]s/**/*.jsonl\", format: jsonl, columns: {k: bigint, op: string, n: bigint, s: bigint, a: int, b: string, c: string}}\n", feed)
	}
	b.WriteString("flows:\n")
	for _, s := range shuffleTargets {
		fmt.Fprintf(&b, "  - {source: %s, target: %s, stored_as_scd_type: %s, keys: [k], sequence_by: n, apply_as_deletes: \"op = 'D'\", except_column_list: [op, n, s, _rescued_data], ignore_null_updates: %t", s.feed, s.name,
			[]string{1: "1", 2: "2", flow.Bitemporal: "bitemporal, system_sequence_by: s"}[s.kind], s.sparse)
		if s.truncated {
			b.WriteString(", apply_as_truncates: \"op = 'T'\"")
		}
		if s.kind == 2 && !s.tracked[3] {
			b.WriteString(", track_history_column_list: [a]")
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// shuffleTarget says how a target reads the feed.
type shuffleTarget struct {
	name, feed        string
	kind              int
	sparse, truncated bool
	tracked           []bool // of k, a, b, c
}

var shuffleTargets = []shuffleTarget{
	{name: "one", feed: "feed", kind: 1},
	{name: "one_sparse", feed: "feed", kind: 1, sparse: true},
	{name: "one_truncated", feed: "feed", kind: 1, truncated: true},
	{name: "two", feed: "feed", kind: 2, tracked: []bool{false, true, true, true}},
	{name: "two_by_a", feed: "feed", kind: 2, tracked: []bool{false, true, false, false}},
	{name: "two_sparse", feed: "feed", kind: 2, sparse: true, tracked: []bool{false, true, true, true}},
	{name: "lives_one", feed: "lives", kind: 1},
	{name: "lives_two", feed: "lives", kind: 2, tracked: []bool{false, true, true, true}},
	{name: "beliefs_whole", feed: "beliefs", kind: flow.Bitemporal},
	{name: "beliefs_sparse", feed: "beliefs", kind: flow.Bitemporal, sparse: true},
}

// columns are what people see of a target.
func (s *shuffleTarget) columns() []string {
	columns := []string{"k", "a", "b", "c"}
	switch s.kind {
	case 2:
		columns = append(columns, scd.StartColumn, scd.EndColumn)
	case flow.Bitemporal:
		columns = append(columns, scd.BitemporalColumns...)
	}
	return columns
}

// shuffled is one event of a feed; nil is NULL.
type shuffled struct {
	K  *int    `json:"k"`
	Op string  `json:"op"`
	N  *int    `json:"n"`
	S  *int    `json:"s"`
	A  *int    `json:"a"`
	B  *string `json:"b"`
	C  *string `json:"c"`
}

// shuffledFile is a file of a feed.
type shuffledFile struct {
	feed, path string
	events     []shuffled
}

// Whatever the order, the files, the batches, and wherever the program is killed:
// each target is what its rules make of the set of all events.
func TestShuffledFeedsSurviveKills(t *testing.T) {
	keys, kills := 500, 18
	if os.Getenv("TAILRACE_SOAK") != "" {
		keys, kills = 2000, 100
	}
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newFeedRig(t, server, kind, shuffleConfig())
		files := append(shuffleFiles("feed", keys, rnd), shuffleFiles("lives", keys/2, rnd)...)
		files = append(files, shuffleFiles("beliefs", 3*keys/5, rnd)...)
		later := files[len(files)/10:]
		rnd.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
		rest := files
		for i := range kills {
			n := min(len(rest), 1+rnd.IntN(1+2*len(rest)/(kills-i)))
			for _, f := range rest[:n] {
				f.put(t, r)
			}
			rest = rest[n:]
			killAnywhere(t, r, rnd, i)
		}
		for _, f := range rest {
			f.put(t, r)
		}
		r.once(t)
		compareShuffled(t, r, files)

		before := everyRow(t, r)
		r.once(t)
		for name, rows := range everyRow(t, r) {
			if rows != before[name] {
				t.Errorf("%s: a run that finds no new files changed it", name)
			}
		}

		// The whole feed twice more under other names.
		for _, f := range slices.Clone(files) {
			if f.feed != "lives" {
				continue
			}
			for copied := range 2 {
				f := f
				f.path = fmt.Sprintf("again%d/%s", copied, f.path)
				f.put(t, r)
				files = append(files, f)
			}
		}
		r.once(t)
		for name, rows := range everyRow(t, r) {
			if rows != before[name] && !strings.HasPrefix(name, "_tailrace.files") {
				t.Errorf("%s: the same events under other names changed it", name)
			}
		}
		compareShuffled(t, r, files)
		t.Logf("%s: killed %d times, %d files", kind, kills, len(files))
	})
}

// startPoints are met once each on the way to the first file.
var startPoints = []string{"mark creating", "slot made", "mark copying", "table loaded:3", "copy finished"}

// killAnywhere runs the pipeline until it is killed, at a point or at a moment.
func killAnywhere(t *testing.T, r *feedRig, rnd *rand.Rand, attempt int) {
	t.Helper()
	var env []string
	limit := time.Duration(100+rnd.IntN(1500)) * time.Millisecond
	if attempt < len(startPoints) {
		env, limit = append(env, "TAILRACE_KILL_AT="+startPoints[attempt]), 30*time.Second
	} else if rnd.IntN(3) > 0 {
		point := crashPoints[rnd.IntN(len(crashPoints))]
		env, limit = append(env, fmt.Sprintf("TAILRACE_KILL_AT=%s:%d", point.name, 1+rnd.IntN(point.upTo/2))), 3*time.Second
	}
	if rnd.IntN(2) == 0 { // some files come in pieces
		env = append(env, "TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB")
	}
	p := r.start(t, env)
	select {
	case <-p.done:
		if p.cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("it ended by itself: %v\n%s", p.err, tail(p.output.String()))
		}
	case <-time.After(limit):
		if attempt < len(startPoints) {
			t.Fatalf("point %q was never reached\n%s", startPoints[attempt], tail(p.output.String()))
		}
		p.kill()
	}
}

// shuffleFiles makes a feed: random lives of keys, shuffled over files whose names
// have no order; some files are there twice under other names.
func shuffleFiles(feed string, keys int, rnd *rand.Rand) (files []shuffledFile) {
	var events []shuffled
	for k := range keys {
		n := 2 + rnd.IntN(9)
		sequences := rnd.Perm(3 * n) // in lives each once
		for i := range n {
			e := shuffled{K: pointer(k), Op: "U", N: pointer(sequences[i]), A: maybe(rnd, rnd.IntN(3)), B: maybe(rnd, "b"+strconv.Itoa(rnd.IntN(3))), C: maybe(rnd, "")}
			if feed == "feed" {
				e.N = pointer(rnd.IntN(2 * n))
				switch rnd.IntN(150) {
				case 0:
					e.N = nil
				case 1:
					e.K = nil
				}
			}
			if feed == "beliefs" {
				e.N = pointer(rnd.IntN(2 * n))
				if e.S = pointer(rnd.IntN(2 * n)); rnd.IntN(150) == 0 {
					e.S = nil
				}
			}
			if e.Op == "U" && rnd.IntN(4) == 0 {
				e.Op = "D"
			}
			events = append(events, e)
		}
	}
	rnd.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	if feed == "feed" {
		// Few truncates, so that what they took must stay away through many starts: one
		// among the first events, a higher one in the middle, lower ones anywhere.
		for _, t := range []struct{ at, n int }{{5, 8}, {len(events) / 2, 11}, {rnd.IntN(len(events)), 3}, {len(events), 6}} {
			events = slices.Insert(events, t.at, shuffled{Op: "T", N: pointer(t.n)})
		}
	}
	for len(events) > 0 {
		n := 1 + rnd.IntN(35)
		if len(files) == 0 {
			n = 800 // which comes in pieces, if they are small
		}
		n = min(n, len(events))
		files = append(files, shuffledFile{feed, fmt.Sprintf("%08x.jsonl", rnd.Uint32()), events[:n]})
		if rnd.IntN(8) == 0 && feed == "feed" {
			files = append(files, shuffledFile{feed, fmt.Sprintf("%08x.jsonl", rnd.Uint32()), events[:n]})
		}
		events = events[n:]
	}
	return files
}

func pointer[T any](v T) *T { return &v }

func maybe[T any](rnd *rand.Rand, v T) *T {
	if rnd.IntN(4) == 0 {
		return nil
	}
	return &v
}

func (f *shuffledFile) put(t testing.TB, r *feedRig) {
	t.Helper()
	var lines []string
	for _, e := range f.events {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	r.put(t, f.feed+"/"+f.path, lines...)
}

// compareShuffled compares every target with the oracle, and the quarantine with
// the bad events.
func compareShuffled(t *testing.T, r *feedRig, files []shuffledFile) {
	t.Helper()
	open := map[string]string{}
	aside := map[string]int{}
	for _, target := range shuffleTargets {
		want, bad := target.expect(t, files)
		aside[target.name] = bad
		var got, now []string
		for _, row := range r.held(t, "select "+columnsOf(target.columns()...)+` from "`+target.name+`"`) {
			got = append(got, strings.Join(row, "|"))
			if target.kind == 1 || target.kind == 2 && row[5] == null {
				now = append(now, strings.Join(row[:4], "|"))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		slices.Sort(now)
		open[target.name] = strings.Join(now, "\n")
		if len(want) == 0 {
			t.Errorf("%s: nothing is expected of it", target.name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d rows, want %d\n%s", target.name, len(got), len(want), differing(got, want))
		}
	}
	for two, one := range map[string]string{"two": "one", "two_by_a": "one", "two_sparse": "one_sparse", "lives_two": "lives_one"} {
		if open[two] != open[one] {
			t.Errorf("the open versions of %s are not the rows of %s", two, one)
		}
	}
	got := map[string]int{}
	for _, row := range r.quarantined(t) {
		got[row[1]]++
	}
	for name, n := range aside {
		if got[name] != n {
			t.Errorf("%d events of %s are in quarantine, want %d", got[name], name, n)
		}
	}
}

// expect asks the oracle what a target holds after all files, and counts the events
// that are bad for its flow.
func (s *shuffleTarget) expect(t *testing.T, files []shuffledFile) (lines []string, bad int) {
	t.Helper()
	o := sim.Oracle{Columns: 4, Tracked: s.tracked}
	for _, f := range files {
		if f.feed != s.feed {
			continue
		}
		for i, e := range f.events {
			if e.N == nil || e.K == nil && !(e.Op == "T" && s.truncated) || e.S == nil && s.kind == flow.Bitemporal {
				bad++
				continue
			}
			place := sequenced.Place{At: sequenced.AppendFile(nil, f.path, uint64(i+1), 0)}
			var err error
			if place.Seq, err = sequenced.AppendSequence(nil, cell(e.N, false), change.Type{Kind: change.Int64}); err != nil {
				t.Fatal(err)
			}
			if e.Op == "T" {
				if o.Truncate.Before(place) {
					o.Truncate = place
				}
				continue
			}
			key := cell(e.K, false)
			event := sequenced.Event{Key: change.Row(nil).Append(key), Place: place, Delete: e.Op == "D", Start: cell(e.N, false)}
			if s.kind == flow.Bitemporal {
				event.SystemStart = cell(e.S, false)
				if event.System, err = sequenced.AppendSequence(nil, event.SystemStart, change.Type{Kind: change.Int64}); err != nil {
					t.Fatal(err)
				}
			}
			if !event.Delete {
				event.Row = change.Row(nil).Append(key).Append(cell(e.A, s.sparse)).Append(cell(e.B, s.sparse)).Append(cell(e.C, s.sparse))
			}
			o.Events = append(o.Events, event)
		}
	}
	add := func(v sim.OracleVersion, bounds ...string) {
		var cells []string
		for _, value := range v.Values {
			if value.State == change.Null {
				cells = append(cells, null)
			} else {
				cells = append(cells, string(value.Data))
			}
		}
		for _, b := range bounds {
			if b == "" {
				b = null
			}
			cells = append(cells, b)
		}
		lines = append(lines, strings.Join(cells, "|"))
	}
	switch s.kind {
	case 1:
		for _, v := range o.Type1() {
			add(v)
		}
	case 2:
		for _, v := range o.Type2() {
			add(v, v.Start, v.End)
		}
	case flow.Bitemporal:
		for _, f := range o.Bitemporal() {
			add(f.OracleVersion, f.Start, f.End, f.Since, f.Till)
		}
	}
	return lines, bad
}

// cell is a value of an event; NULL is not sent in a sparse flow.
func cell[T any](v *T, sparse bool) change.Value {
	switch {
	case v != nil:
		return change.Value{State: change.AsText, Data: fmt.Append(nil, *v)}
	case sparse:
		return change.Value{State: change.Absent}
	}
	return change.Value{State: change.Null}
}

// everyRow is all that people see of the targets, the files taken and the quarantine.
func everyRow(t *testing.T, r *feedRig) map[string]string {
	t.Helper()
	all := map[string]string{}
	read := func(name, columns string) {
		rows := r.held(t, "select "+columns+" from "+name)
		sortRows(rows)
		all[name] = fmt.Sprint(rows)
	}
	for _, target := range shuffleTargets {
		read(target.name, columnsOf(target.columns()...))
	}
	read("_tailrace.files where "+r.ours(t), "path, checksum")
	read("_tailrace.quarantine where "+r.ours(t), columnsOf("id", "flow", "reason"))
	return all
}
