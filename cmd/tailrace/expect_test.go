package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// expectMet asserts what status says that expectations met: "flow/expectation/action
// events", in any order.
func (r *rig) expectMet(t testing.TB, want ...string) {
	t.Helper()
	var st status
	if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &st); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range st.Expected {
		flow := strings.TrimPrefix(strings.TrimPrefix(e.Flow, "main."), "public.")
		flow = flow[strings.LastIndexByte(flow, '.')+1:]
		got = append(got, fmt.Sprintf("%s/%s/%s %d", flow, e.Expectation, e.Action, e.Events))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("expectations met\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// expectAside asserts target and reason of what is in quarantine, in any order.
func (r *rig) expectAside(t testing.TB, want ...string) {
	t.Helper()
	var got []string
	for _, row := range r.quarantined(t) {
		got = append(got, row[1]+": "+row[2])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("in quarantine\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// killed runs until the program is killed at each of the points, then to the end.
func (r *rig) killed(t testing.TB, points ...string) {
	t.Helper()
	for _, at := range points {
		p := r.start(t, []string{"TAILRACE_KILL_AT=" + at})
		if code := p.wait(t, time.Minute); code != -1 {
			t.Fatalf("it was not killed at %q but ended with %d\n%s", at, code, tail(p.output.String()))
		}
	}
	r.once(t)
}

// Rows of the tutorial: a NULL result of a rule drops, whichever rule it is, also where
// the key is what is missing; a delete is never judged, and one of a key that was never
// there shows in no target.
func TestRowsOfAFeedAreDroppedByExpectations(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		const rules = `expect: {valid_id: {condition: "id IS NOT NULL", on_violation: drop}, valid_operation: {condition: "operation IN ('APPEND', 'UPDATE', 'DELETE')", on_violation: drop}, nothing_rescued: {condition: "_rescued_data IS NULL", on_violation: drop}, named: {condition: "length(firstname) > 2"}}`
		r := newFeedRig(t, server, kind, `relations:
  raw: {path: "feed/*.jsonl", format: jsonl, columns: {id: int, firstname: string, operation: string, day: date}}
flows:
  - {source: raw, target: customers, keys: [id], sequence_by: day, apply_as_deletes: "operation = 'DELETE'", except_column_list: [operation, day, _rescued_data], `+rules+`}
  - {source: raw, target: customers_history, stored_as_scd_type: 2, keys: [id], sequence_by: day, apply_as_deletes: "operation = 'DELETE'", except_column_list: [operation, day, _rescued_data], on_bad_event: fail, `+rules+`}`)
		r.once(t)
		r.put(t, "feed/1.jsonl",
			`{"id": 1, "firstname": "Ann", "operation": "APPEND", "day": "2024-01-01"}`,
			`{"id": null, "firstname": "nobody", "operation": "APPEND", "day": "2024-01-01"}`,
			`{"id": 2, "firstname": "Bo", "operation": null, "day": "2024-01-01"}`,
			`{"id": 3, "firstname": "Cy", "operation": "APPEND", "day": "2024-01-01"}`,
			`{"id": 4, "firstname": "Dora", "operation": "APPEND", "day": "2024-01-01", "extra": "rescued"}`,
			`{"id": null, "firstname": "both", "operation": "MERGE", "day": "2024-01-02"}`)
		r.put(t, "feed/2.jsonl",
			`{"id": 1, "firstname": "Anna", "operation": "MERGE", "day": "2024-01-02"}`,
			`{"id": 9, "operation": "DELETE", "day": "2024-01-02"}`,
			`{"id": 3, "operation": "DELETE", "day": "2024-01-02"}`,
			`{"id": 1, "firstname": "Anne", "operation": "UPDATE", "day": "2024-01-03"}`)
		r.killed(t, "rows written:1", "applied:1")
		want := func() {
			t.Helper()
			r.holds(t, "customers", []string{"id", "firstname"}, "1 Anne")
			r.holds(t, "customers_history", []string{"id", "firstname", "__START_AT", "__END_AT"},
				"1 Ann 2024-01-01 2024-01-03", "1 Anne 2024-01-03 ∅", "3 Cy 2024-01-01 2024-01-02")
		}
		want()
		var aside, met []string
		for _, target := range []string{"customers", "customers_history"} {
			aside = append(aside, target+": expectation valid_id", target+": expectation valid_operation", target+": expectation nothing_rescued",
				target+": expectation valid_id, valid_operation", target+": expectation valid_operation")
			met = append(met, target+"/valid_id/drop 2", target+"/valid_operation/drop 3", target+"/nothing_rescued/drop 1", target+"/named/warn 2")
		}
		r.expectAside(t, aside...)
		r.expectMet(t, met...)
		contains(t, r.refused(t, 1, []string{"5 events are in quarantine"}, "status", "--check"), "EXPECTATION", "valid_operation")
		r.refused(t, 1, []string{"10 still in quarantine", "expectation nothing_rescued"}, "quarantine", "retry")

		// Judged again by today's expectations, at the places that they had.
		for range 2 {
			r.reconfigure(t, `operation IN ('APPEND', 'UPDATE', 'DELETE')`, `operation IN ('APPEND', 'UPDATE', 'DELETE', 'MERGE')`)
		}
		r.refused(t, 1, []string{"2 applied, 8 still in quarantine"}, "quarantine", "retry")
		r.holds(t, "customers", []string{"id", "firstname"}, "1 Anne")
		r.holds(t, "customers_history", []string{"id", "firstname", "__START_AT", "__END_AT"},
			"1 Ann 2024-01-01 2024-01-02", "1 Anna 2024-01-02 2024-01-03", "1 Anne 2024-01-03 ∅", "3 Cy 2024-01-01 2024-01-02")
		r.expectMet(t, met...) // as they came
		r.must(t, "quarantine", "discard", "--all", "--yes")
		r.must(t, "status", "--check")
	})
}

// A row that an expectation fails for stops the pipeline, by name, place and key
// columns, without a value; nothing of the batch is there, and nothing is counted.
func TestAnExpectationThatFailsStopsThePipeline(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `relations:
  feed: {path: "feed/*.jsonl", format: jsonl, columns: {k: int, n: bigint, v: string}}
flows:
  - {source: feed, target: now, name: the flow, keys: [k], sequence_by: n, except_column_list: [_rescued_data], expect: {short: {condition: "length(v) < 5", on_violation: drop}, "not a secret": {condition: "v <> 'secret'", on_violation: fail}}}`)
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "v": "a"}`)
		r.once(t)
		r.put(t, "feed/2.jsonl", `{"k": 2, "n": 1, "v": "b"}`, `{"k": 1, "n": 2, "v": "secret"}`)
		for range 2 {
			out := r.refused(t, 3, []string{"flow the flow: expectation not a secret", "(key k)", "2.jsonl, line 2", "on_violation", "remedy"}, "run", "--once")
			if strings.Contains(strings.ReplaceAll(out, "not a secret", ""), "secret") {
				t.Errorf("the message holds a row's value:\n%s", out)
			}
		}
		r.holds(t, "now", []string{"k", "v"}, "1 a")
		r.expectAside(t)
		r.expectMet(t)
		r.reconfigure(t, "on_violation: fail", "on_violation: drop")
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 a", "2 b")
		r.expectAside(t, "now: expectation short, not a secret")
		r.expectMet(t, "the flow/short/drop 1", "the flow/not a secret/drop 1")
	})
}

// So it does in the order of a log, and in a first copy, which can be mended at the source.
func TestAnExpectationThatFailsStopsACopyAndALog(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table items(id int primary key, n int not null); insert into items values (1, 1), (2, -77)", `flows:
  - {source: public.items, expect: {positive: {condition: "n > 0", on_violation: fail}}}
  - {source: public.items, target: history, stored_as_scd_type: 2, expect: {small: {condition: "n < 100"}}}`)
		refused := func(at string) {
			t.Helper()
			out := r.refused(t, 3, []string{"expectation positive", "(key id)", at, "on_violation"}, "run", "--once")
			if strings.Contains(out, "-77") {
				t.Errorf("the message holds a row's value:\n%s", out)
			}
		}
		refused("first copy at ")
		r.exec(t, "update items set n = 2 where id = 2")
		r.once(t)
		r.holds(t, "items", []string{"id", "n"}, "1 1", "2 2")
		r.commit(t, "insert into items values (3, 300)", "update items set n = -77 where id = 1") // one batch
		refused(", change ")
		r.holds(t, "items", []string{"id", "n"}, "1 1", "2 2")
		if got := sortedRows(r.held(t, `select id, n from history where "__END_AT" is null`)); strings.Join(got, ", ") != "1 1, 2 2" {
			t.Errorf("open versions: %v", got)
		}
		r.expectMet(t)
		r.reconfigure(t, "on_violation: fail", "on_violation: warn")
		r.once(t)
		r.holds(t, "items", []string{"id", "n"}, "1 -77", "2 2", "3 300")
		r.same(t)
		r.atTarget(t, "update items set n = 5 where id = 2")
		r.refused(t, 1, []string{"id=2"}, "verify")
		r.expectMet(t, "items/positive/warn 1", "history/small/warn 1")
	})
}

// Of a partial event only what it writes is judged.
func TestPartialEventsAreJudgedByWhatTheyWrite(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `relations:
  feed: {path: "feed/*.jsonl", format: jsonl, columns: {k: int, n: bigint, a: int, b: int, note: string}}
flows:
  - {source: feed, target: now, keys: [k], sequence_by: n, ignore_null_updates: true, except_column_list: [note, _rescued_data], expect: {a: {condition: "a > 0", on_violation: drop}, order: {condition: "a < b", on_violation: drop}, noted: {condition: "note IS NOT NULL"}}}`)
		r.put(t, "feed/1.jsonl", `{"k": 1, "n": 1, "a": 1, "b": 5, "note": "x"}`, `{"k": 1, "n": 2, "a": 3, "note": "x"}`, `{"k": 1, "n": 3, "b": 7}`, `{"k": 1, "n": 4, "a": -1}`, `{"k": 1, "n": 5, "a": 9, "b": 8, "note": "x"}`)
		r.once(t)
		r.holds(t, "now", []string{"k", "a", "b"}, "1 3 7")
		r.expectAside(t, "now: expectation a", "now: expectation order")
		r.expectMet(t, "now/a/drop 1", "now/a/not_judged 1", "now/order/drop 1", "now/order/not_judged 3", "now/noted/warn 2")
	})
}

const judgedTables = `create table items(id int primary key, v text, n int not null); alter table items replica identity full;
insert into items values (1, 'a', 1), (2, 'bad', 1), (3, 'c', 1), (4, 'odd', 1);
create table cdf(id int, v text, op text, n int);
insert into cdf values (1, 'a', 'I', 1), (2, 'bad', 'I', 1), (3, 'c', 'I', 1), (3, null, 'D', 2), (4, 'odd', 'I', 1);
create table journal(what text, grade int)`

// The first copy is judged too, in flows of every kind, and killed anywhere it comes
// out the same.
func TestCopiesAndChangesAreJudged(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		const rules = `expect: {good: {condition: "v <> 'bad'", on_violation: drop}, even: {condition: "v <> 'odd' AND _op <> 'DELETE'"}}`
		r := newRig(t, server, kind, judgedTables+"; insert into journal values ('x', 1), ('y', -1), ('z', 3)", `flows:
  - {source: public.items, target: plain, column_list: [id, n], `+rules+`}
  - {source: public.items, target: plain_history, stored_as_scd_type: 2, except_column_list: [n], `+rules+`}
  - {source: public.items, target: sequenced, sequence_by: n, except_column_list: [n], `+rules+`}
  - {source: public.cdf, source_kind: feed, target: feed, keys: [id], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n], `+rules+`}
  - {source: public.journal, expect: {graded: {condition: "grade > 0", on_violation: drop}}}`)
		r.killed(t, "table loaded:2", "rows written:1", "table loaded:1", "table loaded:1")
		targets := []string{"plain", "plain_history", "sequenced", "feed"}
		aside, met := []string{"journal: expectation graded"}, []string{"journal/graded/drop 1"}
		for _, target := range targets {
			aside = append(aside, target+": expectation good")
			met = append(met, target+"/good/drop 1", target+"/even/warn 1")
		}
		r.expectAside(t, aside...)
		r.expectMet(t, met...)
		r.holds(t, "plain", []string{"id", "n"}, "1 1", "3 1", "4 1")
		r.holds(t, "plain_history", []string{"id", "v"}, "1 a", "3 c", "4 odd")
		r.holds(t, "sequenced", []string{"id", "v"}, "1 a", "3 c", "4 odd")
		r.holds(t, "feed", []string{"id", "v"}, "1 a", "4 odd")
		r.holds(t, "journal", []string{"what"}, "x", "z")

		// A dropped update leaves the former row, and later changes apply; a dropped row that
		// comes good is written; a dropped change of a key ends the row at the old one; a row
		// that was dropped goes without a trace.
		for _, sql := range []string{
			"update items set v = 'bad', n = 2 where id = 1", "update items set v = 'b', n = 2 where id = 2", "update items set id = 33, v = 'bad', n = 2 where id = 3",
			"insert into items values (5, 'bad', 1), (6, 'f', 1)", "delete from items where id = 5", "update items set v = 'odd', n = 3 where id = 6",
			"insert into cdf values (1, 'bad', 'I', 5), (2, 'b', 'I', 5), (1, null, 'D', 6)",
			"insert into journal values ('w', null)",
		} {
			r.commit(t, sql)
		}
		r.killed(t, "before apply:1", "rows written:1")
		r.holds(t, "plain", []string{"id", "n"}, "1 1", "2 2", "4 1", "6 3")
		r.holds(t, "sequenced", []string{"id", "v"}, "1 a", "2 b", "4 odd", "6 odd")
		r.holds(t, "feed", []string{"id", "v"}, "2 b", "4 odd")
		r.holds(t, "journal", []string{"what"}, "x", "z")
		if got := sortedRows(r.held(t, `select id, v from plain_history where "__END_AT" is null`)); strings.Join(got, ", ") != "1 a, 2 b, 4 odd, 6 odd" {
			t.Errorf("open versions: %v", got)
		}
		if got := sortedRows(r.held(t, `select id, v from plain_history where "__END_AT" is not null`)); strings.Join(got, ", ") != "3 c, 6 f" {
			t.Errorf("ended versions: %v", got)
		}
		aside = append(aside, "journal: expectation graded", "feed: expectation good")
		met = []string{"journal/graded/drop 2", "feed/good/drop 2", "feed/even/warn 1"}
		for _, target := range targets[:3] {
			met = append(met, target+"/good/drop 4", target+"/even/warn 2")
			for range 3 {
				aside = append(aside, target+": expectation good")
			}
		}
		r.expectAside(t, aside...)
		r.expectMet(t, met...)

		// What went in the order of the log cannot come back out of it; what has a sequence can.
		r.refused(t, 1, []string{"order of the log", "resync --table"}, "quarantine", "retry", "--flow", r.flowName("plain"))
		r.reconfigure(t, "sequence_by: n, except_column_list: [n], expect: {good: {condition: \"v <> 'bad'\"", "sequence_by: n, except_column_list: [n], expect: {good: {condition: \"v <> 'worse'\"")
		contains(t, r.must(t, "quarantine", "retry", "--flow", r.flowName("sequenced")), "4 applied, 0 still")
		r.holds(t, "sequenced", []string{"id", "v"}, "1 bad", "2 b", "33 bad", "4 odd", "6 odd")
		r.refused(t, 3, []string{"expectations", "resync --table"}, "verify", "--repair", "--table", "plain")

		// A new copy judges every row anew, in one transaction with what it met.
		of := func(target string, want int) {
			t.Helper()
			if n := len(slices.DeleteFunc(r.quarantined(t), func(row []string) bool { return row[1] != target })); n != want {
				t.Errorf("%d rows of %s are in quarantine, want %d", n, target, want)
			}
		}
		if out, code := r.command(t, []string{"TAILRACE_KILL_AT=target replaced"}, "resync", "--table", "plain"); code != -1 {
			t.Fatalf("not killed: exit %d\n%s", code, tail(out))
		}
		r.holds(t, "plain", []string{"id", "n"}, "1 1", "2 2", "4 1", "6 3")
		of("plain", 4)
		r.must(t, "resync", "--table", "plain")
		r.holds(t, "plain", []string{"id", "n"}, "2 2", "4 1", "6 3")
		of("plain", 2) // keys 1 and 33
		p := r.start(t, nil)
		r.following(t, p)
		r.must(t, "resync", "--table", "plain_history")
		r.commit(t, "insert into items values (7, 'bad', 1), (8, 'h', 1)")
		p.stop(t)
		r.once(t)
		if got := sortedRows(r.held(t, `select id, v from plain_history where "__END_AT" is null`)); strings.Join(got, ", ") != "2 b, 4 odd, 6 odd, 8 h" {
			t.Errorf("open versions after a resync: %v", got)
		}
		of("plain_history", 3)
		r.must(t, "backfill", "--table", "plain", "--overwrite")
		of("plain", 3)

		// So does one that leaves nothing behind, but what it set aside.
		alone := rigOn(t, server, r.source, freshDestination(t, server, kind), "flows:\n  - {source: public.items, target: plain, column_list: [id, n], "+rules+"}")
		contains(t, alone.must(t, "backfill", "--no-follow"), "rows were set aside")
		alone.holds(t, "plain", []string{"id", "n"}, "2 2", "4 1", "6 3", "8 1")
		alone.expectAside(t, "plain: expectation good", "plain: expectation good", "plain: expectation good")
		alone.must(t, "backfill", "--no-follow", "--overwrite")
		alone.expectAside(t, "plain: expectation good", "plain: expectation good", "plain: expectation good")
	})
}

// flowName is a flow without a name of its own, as the pipeline knows it.
func (r *rig) flowName(target string) string {
	switch r.dest.kind {
	case "duckdb":
		return "main." + target
	case "mysql":
		return r.dest.dsn[strings.LastIndexByte(r.dest.dsn, '/')+1:] + "." + target
	}
	return "public." + target
}

// A row that the log may send in part cannot be judged as `drop` and `fail` demand: that is
// refused at the start with the statement that sends whole rows. `warn` counts it.
func TestExpectationsNeedTheColumnsThatTheyRead(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table docs(id int primary key, n int not null, body text, k int not null); alter table docs alter body set storage external; insert into docs values (1, 1, repeat('x', 9000), 1)", `flows:
  - {source: public.docs, target: docs, expect: {full: {condition: "length(body) > 10", on_violation: drop}}}
  - {source: public.docs, target: seq, sequence_by: k, expect: {n: {condition: "n > 0"}}}`)
		full := `ALTER TABLE "public"."docs" REPLICA IDENTITY FULL`
		r.refused(t, 3, []string{"expectation full", "column body", full}, "run", "--once")
		r.reconfigure(t, "length(body) > 10", "n > 0")
		r.refused(t, 3, []string{"may drop rows", full}, "run", "--once")
		r.reconfigure(t, `condition: "n > 0", on_violation: drop`, `condition: "length(body) > 10"`)
		r.reconfigure(t, `condition: "n > 0"`, `condition: "n > 0", on_violation: drop`)
		r.refused(t, 3, []string{"may drop rows", full}, "run", "--once")
		r.reconfigure(t, `condition: "n > 0", on_violation: drop`, `condition: "n > 0"`)
		contains(t, r.once(t), "not judged", "REPLICA IDENTITY FULL sends it")
		r.commit(t, "update docs set n = -1, k = 2 where id = 1")
		r.commit(t, "update docs set body = 'short', k = 3, n = 2")
		r.once(t)
		r.holds(t, "docs", []string{"id", "body"}, "1 short")
		r.holds(t, "seq", []string{"id", "n"}, "1 2")
		r.expectMet(t, "docs/full/not_judged 1", "docs/full/warn 1", "seq/n/warn 1")
		r.expectAside(t)

		// The table stops sending whole rows while one is to be dropped: it is parked.
		r.exec(t, "alter table docs replica identity full; update docs set body = repeat('y', 9000), k = 4")
		r.reconfigure(t, `condition: "length(body) > 10"`, `condition: "length(body) > 10", on_violation: fail`)
		r.once(t)
		r.exec(t, "alter table docs replica identity default")
		r.commit(t, "update docs set n = 5, k = 5")
		r.exec(t, "alter table docs replica identity full")
		contains(t, r.onceParked(t), "expectation full", "REPLICA IDENTITY FULL", "resync --table")
		r.holds(t, "seq", []string{"id", "n"}, "1 5")
		r.must(t, "resync", "--table", "docs")
		r.holds(t, "docs", []string{"id", "n"}, "1 5")
	})
}
