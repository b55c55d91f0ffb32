package main

import (
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// Each version of a snapshot is judged whole. A row that is dropped is neither there nor
// gone: what the target held of its key stays. It is in quarantine as long as the newest
// snapshot has it, and is counted when it comes, not with each version again.
func TestRowsOfASnapshotAreJudged(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		const rules = `expect: {good: {condition: "note <> 'bad' AND price >= 0", on_violation: drop}, named: {condition: "length(name) > 1"}, whole: {condition: "price < 1000", on_violation: fail}}`
		r := newRig(t, server, kind, `create table item (id int, name text, price int, note text);
			insert into item values (1,'aa',1,'x'),(2,'b',2,'x'),(3,'cc',3,'bad'),(null,'dd',4,null),(5,'ee',5,'x')`, `flows:
  - {target: now, keys: [id], except_column_list: [note], snapshot: {relation: public.item, version: counter, max_delete_share: 0.5}, `+rules+`}
  - {target: past, stored_as_scd_type: 2, keys: [id], except_column_list: [note], snapshot: {query: "select * from item", version: counter, max_delete_share: 0.5}, `+rules+`}`)
		r.env = []string{"TAILRACE_BATCH_MAX_ROWS=2"}
		both := func(now, past []string) {
			t.Helper()
			r.holds(t, "now", []string{"id", "name", "price"}, now...)
			r.holds(t, "past", []string{"id", "price", "__START_AT", "__END_AT"}, past...)
		}
		met := func(good, named string) {
			t.Helper()
			r.expectMet(t, "now/good/drop "+good, "now/named/warn "+named, "past/good/drop "+good, "past/named/warn "+named)
		}
		r.killed(t, "snapshot piece", "snapshot applied")
		both([]string{"1 aa 1", "2 b 2", "5 ee 5"}, []string{"1 1 0 ∅", "2 2 0 ∅", "5 5 0 ∅"})
		r.expectAside(t, "now: expectation good", "now: expectation good", "past: expectation good", "past: expectation good")
		met("2", "1")
		contains(t, r.once(t), "dropped=2", "rows=3", "new=0") // the same again
		met("2", "1")

		// 1 is dropped and keeps its former row, 2 changes, 3 comes good, 5 is gone.
		r.exec(t, `update item set price = -1 where id = 1`, `update item set price = 20 where id = 2`, `update item set note = 'ok' where id = 3`, `delete from item where id = 5 or id is null`)
		r.once(t)
		past := []string{"1 1 0 ∅", "2 2 0 2", "2 20 2 ∅", "3 3 2 ∅", "5 5 0 2"}
		both([]string{"1 aa 1", "2 b 20", "3 cc 3"}, past)
		r.expectAside(t, "now: expectation good", "past: expectation good")
		met("3", "2")
		contains(t, r.refused(t, 1, []string{"still in quarantine", "next one judges", "refresh --flow"}, "quarantine", "retry", "--flow", r.flowName("now")))

		// `fail` leaves everything as it was, and says so until a snapshot can be applied.
		r.exec(t, `update item set price = 1000 where id = 3`, `delete from item where id = 1`)
		out := r.refused(t, 3, []string{"expectation whole", "at version 3", "nothing of it was applied"}, "run", "--once")
		if strings.Contains(out, "1000") {
			t.Errorf("the message holds a row's value:\n%s", out)
		}
		both([]string{"1 aa 1", "2 b 20", "3 cc 3"}, past)
		met("3", "2")
		r.refused(t, 1, []string{"expectation whole"}, "status", "--check")

		// Nobody drops anything any more: the quarantine is empty by itself. A row that another
		// row of its key has dropped counts alone.
		r.exec(t, `update item set price = 30 where id = 3`, `insert into item values (2,'b',99,'bad')`)
		r.once(t)
		r.holds(t, "now", []string{"id", "name", "price"}, "2 b 20", "3 cc 30")
		r.expectAside(t, "now: expectation good", "past: expectation good")
		r.exec(t, `delete from item where note = 'bad'`)
		r.once(t)
		r.expectAside(t)
		r.must(t, "status", "--check")
		met("4", "3")
		r.same(t)

		// What is edited by hand is found, and named with what helps. An event cannot.
		r.atTarget(t, "update past set price = 77 where id = 3 and price = 30")
		r.refused(t, 1, []string{"id=3", "not what its snapshots say", "--full"}, "verify")
		r.refused(t, 3, []string{"takes snapshots"}, "apply-event", eventFile(t, "past", `{"id": 3}`)...)
		r.must(t, "refresh", "--flow", "past", "--full", "--force")
		r.same(t)
	})
}

// On a target that a feed writes too a row may be judged and not dropped: what a snapshot
// says of a key must not depend on what came first.
func TestSnapshotsBesideAFeedMayWarnAndFail(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (k int, v text, n bigint); create table whole (k int, v text);
			insert into feed values (1,'a',100); insert into whole values (1,'short'),(2,'b')`, `flows:
  - {source: feed, source_kind: feed, target: t, name: feed, keys: [k], sequence_by: n, except_column_list: [n]}
  - {target: t, name: whole, keys: [k], snapshot: {relation: whole, version: {query: "select 150::bigint"}}, expect: {long: {condition: "length(v) > 1", on_violation: drop}}}`)
		r.refused(t, 2, []string{"INTEROP_EXPECTATIONS_NOT_SUPPORTED", "warn or fail"}, "run", "--once")
		r.reconfigure(t, "on_violation: drop", "on_violation: fail")
		r.refused(t, 3, []string{"expectation long"}, "run", "--once")
		r.reconfigure(t, "on_violation: fail", "on_violation: warn")
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 short", "2 b")
		r.expectMet(t, "whole/long/warn 1")
		r.must(t, "status", "--check")
	})
}

// Files are judged as they are taken, and one that fails can be mended.
func TestSnapshotFilesAreJudged(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `flows:
  - {target: now, keys: [id], snapshot: {path: 'in/s_(?P<version>[0-9]+)\.csv', format: csv}, expect: {id: {condition: "id > 0", on_violation: drop}, city: {condition: "city IS NOT NULL", on_violation: fail}}}`)
		r.put(t, "in/s_1.csv", "id,city", "1,A", "-2,B")
		r.put(t, "in/s_2.csv", "id,city", "1,A", "-2,B", "3,")
		r.refused(t, 3, []string{"expectation city", "(s_2.csv, row 3)", "at version 2"}, "run", "--once")
		r.holds(t, "now", []string{"id", "city"}, "1 A")
		r.expectAside(t, "now: expectation id")
		r.put(t, "in/s_2.csv", "id,city", "1,A", "-2,B", "3,C")
		r.once(t)
		r.holds(t, "now", []string{"id", "city"}, "1 A", "3 C")
		r.expectMet(t, "now/id/drop 1")
		contains(t, r.must(t, "quarantine", "list"), "snapshot at version 1, s_1.csv, row 2")
	})
}
