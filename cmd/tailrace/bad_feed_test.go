package main

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// oneFeed is a relation of JSON lines and the beginning of a flow from it.
const oneFeed = `
relations: {feed: {path: "feed/*.jsonl", format: jsonl, columns: {k: int, op: string, n: bigint, at: string, v: string}}}
flows:
  - {source: feed, target: now, name: the flow, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n, at, _rescued_data]}
`

// What cannot take its place is set aside, with its place, and nothing else is.
func TestBadEventsAreSetAside(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, oneFeed)
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`, `{"k": null, "n": 2, "v": "no key"}`, `{"k": 2, "v": "no sequence"}`, `{"k": 3, "n": 1, "v": "b"}`)
		r.put(t, "feed/2.jsonl", `{"k": "x", "n": 9, "v": "a key that is no number"}`, `{"k": 1, "n": 2, "v": "c"}`, `{"k": 3, "n": "later", "v": "d"}`)
		r.once(t)
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 c", "3 b")
		want := [][]string{
			{"the flow", "now", "a key column is NULL", "1.jsonl, line 2"},
			{"the flow", "now", "the sequence is NULL", "1.jsonl, line 3"},
			{"the flow", "now", "a key column is NULL", "2.jsonl, line 1"},
			{"the flow", "now", "the sequence is NULL", "2.jsonl, line 3"},
		}
		got := r.quarantined(t)
		if len(got) != len(want) {
			t.Fatalf("in quarantine: %q", got)
		}
		for i := range want {
			if strings.Join(got[i], "|") != strings.Join(want[i], "|") {
				t.Errorf("in quarantine: %q, want %q", got[i], want[i])
			}
		}
		r.refused(t, 1, []string{"flow the flow: 4 events are in quarantine"}, "status", "--check")
	})
}

// With on_bad_event: fail the run ends at the event, and nothing of its file is
// there; mended, the file is taken.
func TestBadEventsFailTheRunIfToldSo(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, strings.Replace(oneFeed, "sequence_by: n,", "sequence_by: n, on_bad_event: fail,", 1))
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
		r.once(t)
		r.put(t, "feed/2.jsonl", `{"k": 2, "n": 1, "v": "secret"}`, `{"k": 1, "v": "secret"}`, `{"k": 3, "n": 1, "v": "b"}`)
		out := r.refused(t, 3, []string{"the flow", "2.jsonl, line 2", "the sequence is NULL", "on_bad_event: quarantine"}, "run", "--once")
		if strings.Contains(out, "secret") {
			t.Errorf("the message holds a row's value:\n%s", out)
		}
		r.holds(t, "now", []string{"k", "v"}, "1 a")
		if aside := r.quarantined(t); len(aside) > 0 {
			t.Errorf("in quarantine: %q", aside)
		}
		r.put(t, "feed/2.jsonl", `{"k": 2, "n": 1, "v": "mended"}`, `{"k": 1, "n": 2, "v": "mended"}`)
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 mended", "2 mended")
	})
}

// A malformed line in the middle of a file stops the run, by file and line; nothing
// of the file is there, also if it comes in pieces; what came before it is.
func TestMalformedFilesAreNamedAndLeftOut(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, oneFeed)
		r.env = []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB", "TAILRACE_BATCH_MAX_ROWS=100"}
		var lines []string
		for range 3000 {
			lines = append(lines, `{"k": 2, "n": 1, "v": "of the malformed file"}`)
		}
		lines[2500] = `{"k": 2, "n": 1, "v": "of the mal`
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
		r.once(t)
		r.put(t, "feed/2.jsonl", `{"k": 1, "n": 2, "v": "b"}`)
		r.put(t, "feed/3.jsonl", lines...)
		r.put(t, "feed/4.jsonl", `{"k": 4, "n": 1, "v": "d"}`)
		for range 2 {
			r.refused(t, 3, []string{"3.jsonl", "line 2501"}, "run", "--once")
			if n := r.held(t, `select count(*) from "now" where k > 1`); n[0][0] != "0" {
				t.Errorf("%s rows of the malformed file or of later ones are there", n[0][0])
			}
		}
		lines[2500] = `{"k": 3, "n": 1, "v": "c"}`
		r.put(t, "feed/3.jsonl", lines...)
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 b", "2 of the malformed file", "3 c", "4 d")
	})
}

// A file that was taken and is another one now is refused; it may come back, or come
// again under another name.
func TestFilesThatChangeAfterTheyWereTakenAreRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, oneFeed)
		first := `{"k": 1, "n": 1, "v": "a"}`
		r.put(t, "feed/1.jsonl", first)
		r.once(t)
		r.put(t, "feed/1.jsonl", first, `{"k": 2, "n": 1, "v": "appended"}`)
		r.put(t, "feed/2.jsonl", `{"k": 3, "n": 1, "v": "c"}`)
		r.refused(t, 3, []string{"1.jsonl", "changed", "another name"}, "run", "--once")
		r.holds(t, "now", []string{"k", "v"}, "1 a")
		r.put(t, "feed/1.jsonl", first)
		touched := time.Now().Add(-time.Minute)
		if err := os.Chtimes(filepath.Join(r.dir, "feed", "1.jsonl"), touched, touched); err != nil {
			t.Fatal(err)
		}
		r.once(t) // another time, and the same content
		r.holds(t, "now", []string{"k", "v"}, "1 a", "3 c")
		if err := os.Remove(filepath.Join(r.dir, "feed", "1.jsonl")); err != nil {
			t.Fatal(err)
		}
		r.once(t) // taken, archived
		r.holds(t, "now", []string{"k", "v"}, "1 a", "3 c")
		r.once(t, "--overwrite")
		r.holds(t, "now", []string{"k", "v"}, "3 c")
	})
}

// What a flow cannot mean is a mistake in the configuration: nothing is made.
func TestFlowsThatMakeNoSenseAreRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		for name, c := range map[string]struct {
			old, new string
			wants    []string
		}{
			"unknown column in a condition":  {"op = 'D'", "operation = 'D'", []string{"apply_as_deletes", "operation", "the flow"}},
			"malformed condition":            {"op = 'D'", "op = = 'D'", []string{"apply_as_deletes", "the flow"}},
			"unknown column in a truncate":   {"keys:", `apply_as_truncates: "operation = 'T'", keys:`, []string{"apply_as_truncates", "operation"}},
			"unknown sequence":               {"sequence_by: n,", "sequence_by: number,", []string{"sequence_by", "number", "the flow"}},
			"unknown key":                    {"keys: [k]", "keys: [id]", []string{"no such column", "id"}},
			"no keys":                        {"keys: [k],", "", []string{"keys"}},
			"truncate and history":           {"keys:", `stored_as_scd_type: 2, apply_as_truncates: "op = 'T'", keys:`, []string{"apply_as_truncates", "stored_as_scd_type: 1"}},
			"reserved name":                  {"at: string", "__start_at: string", []string{"__start_at", "reserved", "except_column_list"}},
			"unknown column to ignore":       {"keys:", "ignore_null_updates_column_list: [w], keys:", []string{"ignore_null_updates", "w"}},
			"unknown columns_to_update":      {"keys:", "columns_to_update: written, keys:", []string{"columns_to_update", "written"}},
			"two ways of ignoring":           {"keys:", "ignore_null_updates: true, ignore_null_updates_column_list: [v], keys:", []string{"exclude each other"}},
			"a condition without a sequence": {"sequence_by: n,", "", []string{"sequence_by"}},
		} {
			t.Run(name, func(t *testing.T) {
				text := strings.Replace(oneFeed, c.old, c.new, 1)
				if name == "reserved name" {
					text = strings.Replace(strings.Replace(text, "[op, n, at,", "[op, n,", 1), "sequence_by: n,", "stored_as_scd_type: 2, sequence_by: n,", 1)
				}
				r := newFeedRig(t, server, kind, text)
				r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
				r.refused(t, 2, c.wants, "run", "--once")
				if kind == "duckdb" {
					if _, err := os.Stat(r.dest.dsn); err != nil {
						return // not even the file
					}
				}
				if made := r.held(t, "select table_name from information_schema.tables where table_name = 'now' and table_schema in ('main', 'public', '"+path.Base(r.dest.dsn)+"')"); len(made) > 0 {
					t.Error("the target was made")
				}
			})
		}
	})
}

// What may not be meant is said, and done.
func TestDoubtfulSequencesAreWarnedOf(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		text := strings.Replace(oneFeed, "sequence_by: n,", "sequence_by: at, stored_as_scd_type: 2,", 1)
		r := newFeedRig(t, server, kind, strings.Replace(text, "[op, n, at,", "[op, n,", 1))
		r.put(t, "feed/1.jsonl", `{"k": 1, "at": "9", "v": "a"}`, `{"k": 1, "at": "10", "v": "a"}`)
		contains(t, r.once(t), "level=WARN", "the flow", "at is text", "byte by byte", "every event opens a version", "except_column_list")
		r.holds(t, "now", []string{"k", "at", "v", "__START_AT", "__END_AT"}, "1 10 a 10 9", "1 9 a 9 ∅")
	})
}

// A flow whose definition no longer fits what its target remembers is refused; with
// the old definition it goes on, and with --overwrite the new one begins again.
func TestChangedDefinitionsOfExistingTargetsAreRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		history := strings.Replace(oneFeed, "keys:", "stored_as_scd_type: 2, keys:", 1)
		// Rows after both files: what a table by k holds, and what a history, or a table
		// in which v is a part of the key.
		table, all := []string{"1 c", "2 b"}, []string{"1 a", "1 c", "2 b"}
		for name, c := range map[string]struct {
			flow, old, new string
			before, after  []string
		}{
			"keys":                       {oneFeed, "keys: [k]", "keys: [k, v]", table, all},
			"another key":                {oneFeed, "keys: [k]", "keys: [v]", table, all},
			"type of the sequence":       {oneFeed, "sequence_by: n,", "sequence_by: at,", table, table},
			"number of sequences":        {oneFeed, "sequence_by: n,", "sequence_by: [n, at],", table, table},
			"keys of a history":          {history, "keys: [k]", "keys: [k, v]", all, all},
			"type of a history's bounds": {history, "sequence_by: n,", "sequence_by: at,", all, all},
			"tracked columns":            {history, "keys:", "track_history_except_column_list: [v], keys:", all, table},
			"a history from a table":     {oneFeed, "keys:", "stored_as_scd_type: 2, keys:", table, all},
			"a table from a history":     {history, "scd_type: 2", "scd_type: 1", all, table},
		} {
			t.Run(name, func(t *testing.T) {
				r := newFeedRig(t, server, kind, c.flow)
				r.env = []string{"TAILRACE_DESTINATION_DUCKDB_PRIMARY_KEY=true"} // of which nothing may be left
				r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "at": "1", "v": "a"}`, `{"k": 2, "n": 1, "at": "1", "v": "b"}`)
				r.once(t)
				r.put(t, "feed/2.jsonl", `{"k": 1, "n": 2, "at": "2", "v": "c"}`)
				r.reconfigure(t, c.old, c.new)
				r.refused(t, 3, []string{"the flow", "was built as", "`tailrace run --overwrite`"}, "run", "--once")
				r.holds(t, "now", []string{"k", "v"}, "1 a", "2 b")
				r.reconfigure(t, c.new, c.old)
				r.once(t)
				r.holds(t, "now", []string{"k", "v"}, c.before...)
				r.reconfigure(t, c.old, c.new)
				r.once(t, "--overwrite")
				r.holds(t, "now", []string{"k", "v"}, c.after...)
				r.put(t, "feed/3.jsonl", `{"n": 3, "at": "3", "v": "d"}`) // whose k is NULL
				r.once(t)
				if aside := len(r.quarantined(t)); name == "another key" {
					r.holds(t, "now", []string{"k", "v"}, append([]string{"∅ d"}, c.after...)...)
				} else if aside != 1 {
					t.Errorf("%d events are in quarantine", aside)
				}
			})
		}
	})
}

// A table of somebody else in the target's place is not touched without being told.
func TestTablesInTheTargetsPlaceAreKept(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, oneFeed)
		r.inTarget(t, `create table "now"(k int primary key, v text)`, `insert into "now" values(7, 'somebody''s')`)
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
		r.refused(t, 3, []string{"now", "holds rows", "--overwrite"}, "run", "--once")
		r.holds(t, "now", []string{"k", "v"}, "7 somebody's")
		r.inTarget(t, `delete from "now"`)
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 a")

		s := newFeedRig(t, server, kind, oneFeed)
		s.inTarget(t, `create table "now"(k text, other int)`)
		s.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
		s.refused(t, 3, []string{"now", "ALTER TABLE"}, "run", "--once")
	})
}

// inTarget runs statements in the destination, as a person would.
func (r *rig) inTarget(t testing.TB, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if r.dest.kind == "duckdb" {
			inDuckDB(t, r.dest.dsn, sql)
		} else {
			r.atTarget(t, sql)
		}
	}
}
