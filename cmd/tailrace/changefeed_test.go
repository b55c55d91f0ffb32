package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

const fedFlows = `flows:
  - {source: public.items, target: items, change_feed: true}
  - {source: public.items, target: items_history, stored_as_scd_type: 2, history_start: "-infinity", change_feed: true, change_feed_retention: 24h}
`

const fedItems = `CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8,2)); INSERT INTO items VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', NULL)`

// feedLines are the changes in a feed of items, in order.
func (r *rig) feedLines(t *testing.T, feed string) string {
	t.Helper()
	var out []string
	for _, row := range r.held(t, `SELECT _change_type, cast(id as varchar), name FROM _tailrace.`+feed+` ORDER BY _change_id`) {
		out = append(out, strings.Join(row, " "))
	}
	return strings.Join(out, "\n")
}

func TestATargetsChangesAreInItsFeedOnce(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		server := dbtest.Postgres(t)
		r := newRig(t, server, kind, fedItems, fedFlows)
		r.once(t)
		r.exec(t, "UPDATE items SET name = 'A' WHERE id = 1", "UPDATE items SET name = name", "DELETE FROM items WHERE id = 2",
			"INSERT INTO items VALUES (4, 'd', 4)", "UPDATE items SET id = 5 WHERE id = 3")
		// Killed where the rows and their changes are written and not committed: all of it
		// comes again, once.
		if out, code := r.command(t, []string{"TAILRACE_KILL_AT=rows written"}, "run", "--once"); code == 0 {
			t.Fatalf("it was not killed:\n%s", out)
		}
		r.once(t)
		feed := "changes_items"
		if kind == "mysql" {
			feed = "changes_" + r.dest.dsn[strings.LastIndex(r.dest.dsn, "/")+1:] + "_items"
		}
		got := r.feedLines(t, feed)
		want := map[string]int{"insert 1 a": 1, "insert 2 b": 1, "insert 3 c": 1, "update_preimage 1 a\nupdate_postimage 1 A": 1, "delete 2 b": 1, "insert 4 d": 1, "delete 3 c": 1, "insert 5 c": 1}
		for line, n := range want {
			if strings.Count(got, line) != n {
				t.Errorf("the feed has %q %d times, want %d", line, strings.Count(got, line), n)
			}
		}
		if n := len(strings.Split(got, "\n")); n != 9 {
			t.Errorf("the feed has %d changes, want 9:\n%s", n, got)
		}
		r.must(t, "verify")
	})
}

// A feed in PostgreSQL is itself what another pipeline follows.
func TestAPipelineFollowsAnothersChangeFeed(t *testing.T) {
	server := dbtest.Postgres(t)
	a := newRig(t, server, "postgres", fedItems, fedFlows)
	a.once(t)
	b := rigOn(t, server, a.dest.dsn, freshDestination(t, server, "duckdb"), `flows:
  - source: _tailrace.changes_items
    source_kind: feed
    target: copy
    keys: [id]
    sequence_by: _change_id
    apply_as_deletes: "_change_type = 'delete'"
    except_column_list: [_change_id, _change_type, _mark, _commit_time]
  - source: _tailrace.changes_items
    source_kind: feed
    target: copy_history
    stored_as_scd_type: 2
    keys: [id]
    sequence_by: _change_id
    apply_as_deletes: "_change_type = 'delete'"
    except_column_list: [_change_id, _change_type, _mark, _commit_time]
`)
	b.once(t)
	equal := func() {
		t.Helper()
		var want []string
		for _, row := range query(t, server, a.dest.dsn, "SELECT id, name, price FROM items") {
			want = append(want, strings.Join(row, " "))
		}
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], null, "∅")
		}
		b.holds(t, "copy", []string{"id", "name", "price"}, want...)
		got := sortedRows(b.held(t, `SELECT `+columnsOf("id", "name", "price")+` FROM copy_history WHERE "__END_AT" IS NULL`))
		if strings.Join(got, "\n") != strings.Join(sortedRows(query(t, server, a.dest.dsn, "SELECT id, name, price FROM items")), "\n") {
			t.Errorf("the open versions are %q, want %q", got, want)
		}
	}
	equal()
	for i := range 3 {
		a.exec(t, fmt.Sprintf("INSERT INTO items VALUES (%d, 'n', 0)", 10+i), "UPDATE items SET price = coalesce(price, 0) + 1", fmt.Sprintf("DELETE FROM items WHERE id = %d", i+1))
		a.once(t)
		b.once(t)
		equal()
	}
	a.exec(t, "TRUNCATE items")
	a.once(t)
	b.once(t)
	equal()
	if n := b.held(t, `SELECT count(*) FROM copy_history WHERE "__END_AT" IS NULL`); n[0][0] != "0" {
		t.Errorf("%s versions are open after the truncate", n[0][0])
	}
}

// A history's feed is followed with its bounds, as a table whose key is the history's and
// the start: the copy equals the history, also where versions move and where histories are
// cut off.
func TestAPipelineFollowsAHistoryWithItsBounds(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		const feed = `source_kind: feed, sequence_by: _change_id, apply_as_deletes: "_change_type = 'delete'", except_column_list: [_change_id, _change_type, _mark, _commit_time]`
		a := newRig(t, server, "postgres", fedItems+`; CREATE TABLE cdf (id int, v text, at date, known date); INSERT INTO cdf VALUES (1, 'a', '2024-01-01', '2024-01-01'), (1, 'c', '2024-03-01', '2024-01-02')`, fedFlows+`
  - {source: public.cdf, source_kind: feed, target: late, stored_as_scd_type: 2, keys: [id], sequence_by: at, except_column_list: [at, known], change_feed: true}
  - {source: public.cdf, source_kind: feed, target: facts, stored_as_scd_type: bitemporal, keys: [id], sequence_by: at, system_sequence_by: known, except_column_list: [at, known], change_feed: true}`)
		a.once(t)
		b := rigOn(t, server, a.dest.dsn, freshDestination(t, server, kind), `flows:
  - {source: _tailrace.changes_items_history, target: items_history, keys: [id, __START_AT], `+feed+`}
  - {source: _tailrace.changes_late, target: late, keys: [id, __START_AT], `+feed+`}
  - {source: _tailrace.changes_facts, target: facts, keys: [id, __START_AT, __SYSTEM_START_AT], `+feed+`}`)
		equal := func() {
			t.Helper()
			a.once(t)
			b.once(t)
			for target, columns := range map[string][]string{"items_history": {"id", "name", "price", "__START_AT", "__END_AT"}, "late": {"id", "v", "__START_AT", "__END_AT"},
				"facts": {"id", "v", "__START_AT", "__END_AT", "__SYSTEM_START_AT", "__SYSTEM_END_AT"}} {
				sql := "SELECT " + columnsOf(columns...) + " FROM " + target
				if got, want := sortedRows(b.held(t, sql)), sortedRows(a.held(t, sql)); strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Errorf("%s: %s", target, differing(got, want))
				}
			}
		}
		equal()
		a.exec(t, "UPDATE items SET price = 9 WHERE id = 1", "DELETE FROM items WHERE id = 2", "UPDATE items SET id = 7 WHERE id = 3",
			"INSERT INTO cdf VALUES (1, 'b', '2024-02-01', '2024-01-03'), (1, 'b', '2024-01-15', '2024-01-04'), (2, 'x', '2024-01-01', '2024-01-01')")
		equal()
		a.exec(t, "TRUNCATE items", "INSERT INTO items VALUES (1, 'again', 1)")
		equal()
		b.same(t)
	})
}

// The retention of a feed holds for a target to which nothing happens too, in a daemon and
// in a run that ends; status shows what there is.
func TestAnIdleTargetsOldChangesGo(t *testing.T) {
	overAllKinds(t, func(t *testing.T, kind string) {
		server := dbtest.Postgres(t)
		r := newRig(t, server, kind, fedItems, `flows:
  - {source: public.items, target: items, change_feed: true, change_feed_retention: 1s}
  - {source: public.items, target: kept, change_feed: true}`)
		fed := func() map[string]int64 {
			t.Helper()
			var st status
			if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &st); err != nil {
				t.Fatal(err)
			}
			rows := map[string]int64{}
			for _, f := range st.Feeds {
				rows[f.Target[strings.LastIndexByte(f.Target, '.')+1:]] = f.Rows
				if f.Rows > 0 && (f.Oldest == nil || time.Since(*f.Oldest).Abs() > time.Hour) {
					t.Errorf("the oldest change of %s is of %v", f.Target, f.Oldest)
				}
			}
			return rows
		}
		left := int64(0)
		if kind == "duckdb" {
			left = 1 // numbers go on from it
		}
		r.once(t)
		p := r.start(t, nil)
		eventually(t, time.Minute, "the daemon removes old changes", func() bool { return fed()["items"] == left })
		p.stop(t)
		if got := fed(); got["kept"] != 3 {
			t.Errorf("the feeds hold %v", got)
		}
		contains(t, r.must(t, "status"), "CHANGE FEED", "OLDEST CHANGE")
		r.exec(t, "UPDATE items SET name = 'x'")
		r.once(t)
		time.Sleep(1100 * time.Millisecond)
		r.once(t)
		if got := fed(); got["items"] != left || got["kept"] != 9 {
			t.Errorf("after a run the feeds hold %v", got)
		}
	})
}
