package main

import (
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// What concerns one target alone parks it, with the reason and the remedy; other tables
// go on.
func TestATargetThatCannotGoOnIsParkedAndOthersGoOn(t *testing.T) {
	server := dbtest.Postgres(t)
	const tables = `create table items(id int primary key, v text, n bigint not null); create table more(like items including all); create table other(id int primary key, v text);
insert into items values(1, 'a', 1), (2, 'b', 1); insert into more values(3, 'c', 1); insert into other values(1, 'x')`
	overKinds(t, func(t *testing.T, kind string) {
		for _, c := range []struct {
			name, schema, flows string
			do                  []string
			says                []string
			mend                func(r *rig)
			target              string
			before, after       []string
		}{
			{"a TRUNCATE of a target that several flows write", "", `
  - {source: public.items, target: both, name: items, sequence_by: n, keys: [id], except_column_list: [n]}
  - {source: public.more, target: both, name: more, sequence_by: n, keys: [id], except_column_list: [n]}`,
				[]string{"insert into items values(4, 'd', 1)", "truncate items", "insert into items values(5, 'e', 1)"},
				[]string{"TRUNCATE of table public.items", "several flows", "backfill --table", "both --overwrite"},
				func(*rig) {}, "both", []string{"1 a", "2 b", "3 c"}, []string{"3 c", "5 e"}},
			{"a DELETE not above its row, of a type without a next value", "", `
  - {source: public.items, target: history, stored_as_scd_type: 2, sequence_by: n, delete_sequence: _xid, keys: [id], except_column_list: [n]}`,
				[]string{"insert into items values(4, 'd', 1)", "update items set n = 9000000000000 where id = 1", "delete from items where id = 1", "delete from items where id = 2"},
				[]string{"not above", "delete_sequence", "backfill --table", "history --overwrite"},
				func(*rig) {}, "history", []string{"1 a", "2 b"}, []string{"4 d"}},
			{"a DELETE without the column that gives it a sequence", "alter table items replica identity full", `
  - {source: public.items, target: history, stored_as_scd_type: 2, sequence_by: n, delete_sequence: n, keys: [id], except_column_list: [n]}`,
				[]string{"alter table items replica identity default", "delete from items where id = 1"},
				[]string{"delete_sequence", "REPLICA IDENTITY FULL", "_lsn", "backfill --table", "history --overwrite"},
				func(r *rig) { r.exec(t, "alter table items replica identity full") }, "history", []string{"1 a", "2 b"}, []string{"2 b"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := newRig(t, server, kind, tables+";"+c.schema, "flows:\n  - {source: public.other}"+c.flows)
				r.once(t)
				r.holds(t, c.target, []string{"id", "v"}, c.before...)
				r.commit(t, c.do[0])
				for _, sql := range c.do[1:] {
					r.commit(t, sql)
				}
				r.exec(t, "insert into other values(2, 'y')")
				out := r.onceParked(t)
				contains(t, out, c.says...)
				r.holds(t, "other", []string{"id", "v"}, "1 x", "2 y")
				status := r.refused(t, 1, []string{"parked"}, "status", "--check")
				contains(t, status, c.says...)
				c.mend(r)
				r.must(t, "backfill", "--table", c.target, "--overwrite")
				r.once(t)
				r.holds(t, c.target, []string{"id", "v"}, c.after...)
			})
		}
	})
}

// A DELETE behind an event that was set aside waits beside it: retried together, the
// target holds what it would hold had the event been good at once.
func TestADeleteBehindAnEventSetAsideIsRetriedWithIt(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table items(id int primary key, v text, n bigint, op text); insert into items values(1, 'a', 10, '1'), (2, 'b', 10, '1')", `
flows:
  - {source: public.items, target: now, sequence_by: n, keys: [id], except_column_list: [n, op], apply_as_deletes: "CAST(op AS INT) = 0"}`)
		r.once(t)
		r.commit(t, "update items set v = 'aa', n = 20, op = 'x' where id = 1")
		r.commit(t, "delete from items where id = 1")
		r.commit(t, "insert into items values(3, 'c', 10, 'x')")
		r.commit(t, "delete from items where id = 3")
		r.commit(t, "insert into items values(3, 'cc', 5, '1')")
		r.once(t)
		r.holds(t, "now", []string{"id", "v"}, "1 a", "2 b", "3 cc")
		rows := r.quarantined(t)
		waiting := 0 // their order is that of the batches
		for _, row := range rows {
			if strings.Contains(row[2], "set aside") {
				waiting++
			}
		}
		if len(rows) != 4 || waiting != 2 {
			t.Fatalf("in quarantine: %v", rows)
		}
		r.reconfigure(t, `CAST(op AS INT) = 0`, `op = '0'`)
		r.must(t, "quarantine", "retry")
		if rows := r.quarantined(t); len(rows) != 0 {
			t.Errorf("in quarantine: %v", rows)
		}
		// Key 3 went at sequence 10; what came later has a lower one.
		r.holds(t, "now", []string{"id", "v"}, "2 b")
		r.commit(t, "delete from items where id = 2")
		r.once(t)
		r.holds(t, "now", []string{"id", "v"})
	})
}

// A large value that the log did not send stays with its row, and does not move with it.
func TestALargeValueThatWasNotSent(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table docs(id int primary key, v text, big text, n bigint); alter table docs alter big set storage external; insert into docs values(1, 'a', repeat('A', 3000), 1), (2, 'b', repeat('B', 3000), 1)", `
flows:
  - {source: public.docs, target: now, sequence_by: n, keys: [id], except_column_list: [n]}`)
		r.once(t)
		r.commit(t, "update docs set v = 'aa', n = 2 where id = 1", "update docs set id = 3, n = 2 where id = 2")
		r.once(t)
		rows := r.held(t, `select id, v, substr(big, 1, 1), length(big) from now order by id`)
		if got := strings.Join(sortedRows(rows), ", "); got != "1 aa A 3000, 2 b B 3000" {
			t.Errorf("now holds %s", got)
		}
		if rows := r.quarantined(t); len(rows) != 1 || !strings.Contains(rows[0][2], "REPLICA IDENTITY FULL") {
			t.Errorf("in quarantine: %v", rows)
		}
	})
}

// Rows that were written whole, and are remembered without their values, keep what a
// later partial event does not write.
func TestAFlowThatBecomesPartialKeepsWhatIsThere(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table feed(id int, v text, w text, n bigint); insert into feed values(1, 'a', 'x', 10), (2, 'b', 'y', 10), (3, 'c', 'z', 10)", `
flows:
  - {source: public.feed, source_kind: feed, target: now, sequence_by: n, keys: [id], except_column_list: [n]}`)
		r.once(t)
		r.reconfigure(t, "source_kind: feed,", "source_kind: feed, ignore_null_updates: true,")
		r.commit(t, "insert into feed values(1, 'aa', null, 20), (2, null, 'late', 5), (2, null, null, 30), (3, 'cc', null, 20), (3, null, 'zz', 30)")
		r.once(t)
		r.holds(t, "now", []string{"id", "v", "w"}, "1 aa x", "2 b y", "3 cc zz")
		r.commit(t, "insert into feed values(1, null, 'xx', 30)", "insert into feed values(4, null, 'new', 1)")
		r.once(t)
		r.holds(t, "now", []string{"id", "v", "w"}, "1 aa xx", "2 b y", "3 cc zz", "4 ∅ new")
	})
}
