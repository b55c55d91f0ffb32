package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/sim"
	"tailrace/scd/sequenced"
)

const feedTables = `
create table events(k int, a text, b int, op text, n bigint);
create table old_events(k int, a text, b int, op text, n bigint);
`

// feedFlows: two feeds into one current table and one history.
const feedFlows = `
batch: {max_rows: 40}
flows:
  - {source: public.events, target: now, name: now_live, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
  - {source: public.old_events, target: now, name: now_old, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
  - {source: public.events, target: past, name: past_live, stored_as_scd_type: 2, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
  - {source: public.old_events, target: past, name: past_old, stored_as_scd_type: 2, source_kind: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n]}
`

// feedWriter inserts each pair of key and sequence once, in random order, into one
// feed or the other.
type feedWriter struct {
	conn *pgx.Conn
	rnd  *rand.Rand
	left []int // key * 1000 + sequence
}

func newFeedWriter(t *testing.T, r *rig, rnd *rand.Rand, keys int) *feedWriter {
	w := &feedWriter{conn: r.server.Connect(t, r.source), rnd: rnd}
	for k := range keys {
		for n := range 4 + rnd.IntN(12) {
			w.left = append(w.left, k*1000+n)
		}
	}
	rnd.Shuffle(len(w.left), func(i, j int) { w.left[i], w.left[j] = w.left[j], w.left[i] })
	return w
}

// write commits about n events in transactions of many sizes, some of which roll back.
func (w *feedWriter) write(t *testing.T, n int) {
	t.Helper()
	exec := func(sql string) {
		t.Helper()
		if _, err := w.conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	for n = min(n, len(w.left)); n > 0; {
		size := min(n, 1+w.rnd.IntN(60))
		exec("begin")
		for _, e := range w.left[:size] {
			op := "U"
			if w.rnd.IntN(4) == 0 {
				op = "D"
			}
			exec(fmt.Sprintf("insert into %s values(%d, 'a%d', nullif(%d, 0), '%s', %d)",
				[]string{"events", "old_events"}[w.rnd.IntN(2)], e/1000, w.rnd.IntN(3), w.rnd.IntN(4), op, e%1000))
		}
		if w.rnd.IntN(10) == 0 {
			exec("rollback")
			continue
		}
		exec("commit")
		w.left, n = w.left[size:], n-size
	}
}

// Feeds in tables: the rows that are there at the start, and those that come, in
// whatever order, into shared targets, through kills.
func TestFeedTablesFillSharedTargetsThroughKills(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, feedTables, feedFlows)
		w := newFeedWriter(t, r, rnd, 200)
		w.write(t, 400)
		points := []string{"mark creating", "slot made", "mark copying", "rows written:3", "rows written:9", "table loaded:1", "copy finished"}
		for i := range 16 {
			w.write(t, 70)
			var env []string
			limit := time.Duration(100+rnd.IntN(1200)) * time.Millisecond
			switch {
			case i < len(points):
				env, limit = []string{"TAILRACE_KILL_AT=" + points[i]}, 30*time.Second
			case rnd.IntN(3) > 0:
				point := crashPoints[rnd.IntN(len(crashPoints))]
				env, limit = []string{fmt.Sprintf("TAILRACE_KILL_AT=%s:%d", point.name, 1+rnd.IntN(4))}, 2*time.Second
			}
			p := r.start(t, env)
			if i >= len(points) {
				w.write(t, 50) // while it runs
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
		w.write(t, len(w.left))
		r.once(t)

		o := sim.Oracle{Columns: 3, Tracked: []bool{false, true, true}}
		for _, row := range query(t, server, r.source, "select k, a, b, op, n from events union all select k, a, b, op, n from old_events") {
			o.Events = append(o.Events, tableEvent(t, row))
		}
		now, past := expected(&o)
		if len(past) < 500 || len(now) < 50 {
			t.Fatalf("only %d and %d rows are expected", len(now), len(past))
		}
		r.holds(t, "now", []string{"k", "a", "b"}, now...)
		r.holds(t, "past", []string{"k", "a", "b", "__START_AT", "__END_AT"}, past...)
	})
}

// expected are the rows of a current table and of a history, as holds takes them.
func expected(o *sim.Oracle) (now, past []string) {
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
	return now, past
}

// tableEvent makes an event of a row k, a, b, op, n. Sequences are unique by key.
func tableEvent(t *testing.T, row []string) sequenced.Event {
	t.Helper()
	value := func(s string) change.Value {
		if s == null {
			return change.Value{State: change.Null}
		}
		return change.Value{State: change.AsText, Data: []byte(s)}
	}
	e := sequenced.Event{Key: change.Row(nil).Append(value(row[0])), Delete: row[3] == "D", Start: value(row[4])}
	var err error
	if e.Place.Seq, err = sequenced.AppendSequence(nil, e.Start, change.Type{Kind: change.Int64}); err != nil {
		t.Fatal(err)
	}
	if !e.Delete {
		for _, cell := range row[:3] {
			e.Row = e.Row.Append(value(cell))
		}
	}
	return e
}

func rowOf(values []change.Value) string {
	var cells []string
	for _, v := range values {
		if v.State == change.Null {
			cells = append(cells, "∅")
		} else {
			cells = append(cells, string(v.Data))
		}
	}
	return strings.Join(cells, " ")
}

// A feed only grows. What is done to its rows is refused by name, with what to write
// to pass it over; passed over it changes nothing, and what comes behind it arrives.
func TestChangesOfAFeedsRowsAreRefusedOrPassedOver(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table events(id bigserial primary key, k int, v text, n bigint); insert into events(k, v, n) values(1, 'a', 10)",
			`flows:
  - {source: public.events, target: now, name: current state, source_kind: feed, keys: [k], sequence_by: n, except_column_list: [id, n]}`)
		r.once(t)
		r.holds(t, "now", []string{"k", "v"}, "1 a")
		skip := ""
		for i, c := range []struct{ op, sql string }{
			{"update", "update events set v = 'changed', n = 99 where k = 1"},
			{"delete", "delete from events where k = 1"},
			{"truncate", "truncate events"},
		} {
			n := 11 + i
			r.exec(t, fmt.Sprintf("insert into events(k, v, n) values(%d, 'before', %[1]d)", n), c.sql, fmt.Sprintf("insert into events(k, v, n) values(1, 'after %s', %d)", c.op, n))
			r.refused(t, 3, []string{"current state", "feed public.events", strings.ToUpper(c.op), "skip_change_commits: [" + c.op + "]"}, "run", "--once")
			if rows := r.held(t, `select v from "now" where k = 1`); strings.HasSuffix(rows[0][0], c.op) {
				t.Errorf("what follows the %s was applied", c.op)
			}
			if skip == "" {
				r.reconfigure(t, "sequence_by: n,", "sequence_by: n, skip_change_commits: [update],")
			} else {
				r.reconfigure(t, skip+"]", skip+", "+c.op+"]")
			}
			skip = strings.TrimPrefix(skip+", "+c.op, ", ")
			r.once(t)
			if rows := r.held(t, `select v from "now" where k = 1`); rows[0][0] != "after "+c.op {
				t.Errorf("behind the %s it holds %q", c.op, rows[0][0])
			}
		}
		r.holds(t, "now", []string{"k", "v"}, "1 after truncate", "11 before", "12 before", "13 before")
	})
}

const sequencedTables = `
create table items(id int primary key, v text, w int, updated_at timestamptz not null default clock_timestamp());
alter table items replica identity full;
insert into items select i, 'v' || i % 3, i % 5 from generate_series(1, 120) i;
create table stamps(id int primary key, v text, updated_at timestamp not null default clock_timestamp());
alter table stamps replica identity full;
insert into stamps select i, 'v' from generate_series(1, 20) i;
`

const sequencedTableFlows = `
batch: {max_rows: 50}
flows:
  - {source: public.items, target: ordered}
  - {source: public.items, target: by_position, sequence_by: _lsn, keys: [id]}
  - {source: public.items, target: by_column, sequence_by: updated_at, keys: [id]}
  - {source: public.items, target: ordered_history, stored_as_scd_type: 2, except_column_list: [updated_at]}
  - {source: public.items, target: column_history, stored_as_scd_type: 2, sequence_by: updated_at, keys: [id], except_column_list: [updated_at]}
  - {source: public.stamps, target: stamps_history, stored_as_scd_type: 2, sequence_by: updated_at, keys: [id], except_column_list: [updated_at]}
`

// A table followed by a sequence of its own ends as the same table followed by its
// log: whatever is done to it, by its log position; and by a column that grows with
// each change.
func TestOrderedAndSequencedTargetsOfATableAreEqual(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, sequencedTables, sequencedTableFlows)
		p := r.start(t, nil)
		r.following(t, p)
		conn := server.Connect(t, r.source)
		exec := func(sql string, args ...any) {
			t.Helper()
			if _, err := conn.Exec(context.Background(), fmt.Sprintf(sql, args...), pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%s: %v", fmt.Sprintf(sql, args...), err)
			}
		}
		for range 150 {
			exec("begin")
			touched := map[int]bool{} // a key once a transaction, so that both histories see every state
			pick := func() (int, bool) {
				id := 1 + rnd.IntN(150)
				again := touched[id]
				touched[id] = true
				return id, !again
			}
			for range 1 + rnd.IntN(6) {
				id, fresh := pick()
				if !fresh {
					continue
				}
				switch rnd.IntN(6) {
				case 0, 1:
					exec("update items set v = 'v%d', updated_at = clock_timestamp() where id = %d", rnd.IntN(3), id)
				case 2:
					exec("update items set w = nullif(%d, 0), updated_at = clock_timestamp() where id = %d", rnd.IntN(4), id)
				case 3:
					exec("delete from items where id = %d", id)
				case 4:
					exec("insert into items(id, v, w) values(%d, 'new', 1) on conflict (id) do update set v = excluded.v, updated_at = excluded.updated_at", id)
				case 5:
					if to, fresh := pick(); fresh {
						exec("update items set id = %d, updated_at = clock_timestamp() where id = %d and not exists(select from items where id = %[1]d)", to, id)
					}
				}
			}
			exec("%s", []string{"commit", "commit", "commit", "rollback"}[rnd.IntN(4)])
		}
		// Two keys change places, over a third one, in one transaction.
		exec("insert into items(id, v) values(1, 'one'), (2, 'two') on conflict (id) do update set v = excluded.v, updated_at = excluded.updated_at")
		exec("begin; update items set id = -1 where id = 1; update items set id = 1 where id = 2; update items set id = 2 where id = -1; commit")
		exec("update items set updated_at = clock_timestamp() where id in (1, 2)") // by_column: the swap itself had old sequences
		exec("delete from stamps where id <= 5; update stamps set v = 'w', updated_at = clock_timestamp() where id > 15")
		p.stop(t)
		r.once(t)

		want := sortedRows(query(t, server, r.source, "select id, v, w from items"))
		for _, target := range []string{"ordered", "by_position", "by_column"} {
			r.holds(t, target, []string{"id", "v", "w"}, want...)
		}
		for _, target := range []string{"ordered_history", "column_history"} {
			open := r.held(t, "select "+columnsOf("id", "v", "w")+` from "`+target+`" where "__END_AT" is null`)
			if got := sortedRows(open); !slices.Equal(got, want) {
				t.Errorf("the open versions of %s are not the rows of the table:\n%s", target, differing(got, want))
			}
		}
		ordered, column := lives(t, r, "ordered_history"), lives(t, r, "column_history")
		delete(ordered, "1")
		delete(ordered, "2")
		for key, states := range ordered {
			if column[key] != states {
				t.Errorf("key %s lived through %q by its log and through %q by its sequence", key, states, column[key])
			}
		}
		if ended := r.held(t, `select 1 from stamps_history where "__END_AT" > "__START_AT"`); len(ended) != 5+5 {
			t.Errorf("%d versions of stamps have ended, 10 should have", len(ended))
		}
	})
}

// lives are the states that each key of a history lived through, in order.
func lives(t *testing.T, r *rig, history string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, row := range r.held(t, "select "+columnsOf("id", "v", "w", "__END_AT")+` from "`+history+`" order by id, "__START_AT"`) {
		end := "ended"
		if row[3] == null {
			end = "open"
		}
		out[row[0]] += fmt.Sprintf("%s,%s,%s;", row[1], row[2], end)
	}
	return out
}
