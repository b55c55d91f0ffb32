package main

import (
	"fmt"
	"strings"
	"testing"

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
	for _, row := range r.held(t, `SELECT _change_type, cast(id as char(9)), name FROM _tailrace.`+feed+` ORDER BY _change_id`) {
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
