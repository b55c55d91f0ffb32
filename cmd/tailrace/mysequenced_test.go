package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/sim"
)

// A feed in a table of MariaDB or MySQL: the rows that are there, and those that come, in
// whatever order, through kills; deletes and a truncate by conditions.
func TestMySQLFeedFillsItsTargets(t *testing.T) {
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newMyRig(t, kind, `
batch: {max_rows: 40}
flows:
  - {source: DB.events, source_kind: feed, target: now, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [pos, op, n]}
  - {source: DB.events, source_kind: feed, target: past, stored_as_scd_type: 2, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [pos, op, n]}
  - {source: DB.cleared, source_kind: feed, target: cleared, keys: [k], sequence_by: n, apply_as_truncates: "op = 'T'", except_column_list: [pos, op, n]}`,
			"CREATE TABLE events (pos bigint AUTO_INCREMENT PRIMARY KEY, k int, a varchar(9), b int, op enum('U','D'), n bigint)",
			"CREATE TABLE cleared (pos bigint AUTO_INCREMENT PRIMARY KEY, k int, op char(1), n int unsigned)",
			"INSERT INTO cleared (k, op, n) VALUES (1, 'U', 1), (2, 'U', 20), (NULL, 'T', 10), (3, 'U', 9)")
		var events []string
		for _, e := range rnd.Perm(1200) {
			op := "U"
			if rnd.IntN(4) == 0 {
				op = "D"
			}
			events = append(events, fmt.Sprintf("(%d, 'a%d', nullif(%d, 0), '%s', %d)", e/12, rnd.IntN(3), rnd.IntN(4), op, e%12))
		}
		tell := func(n int) {
			for n = min(n, len(events)); n > 0; {
				size := min(n, 1+rnd.IntN(60))
				end := "COMMIT"
				if rnd.IntN(10) == 0 {
					end = "ROLLBACK"
				}
				r.exec(t, "BEGIN", "INSERT INTO events (k, a, b, op, n) VALUES "+strings.Join(events[:size], ", "), end)
				if n -= size; end == "COMMIT" {
					events = events[size:]
				}
			}
		}
		tell(300)
		for _, point := range []string{"rows written:1", "copy finished", "rows written:2", "applied:2", "before apply:3"} {
			tell(120)
			p := r.start(t, []string{"TAILRACE_KILL_AT=" + point})
			select {
			case <-p.done:
			case <-time.After(10 * time.Second):
				p.kill()
			}
		}
		tell(len(events) * 2)
		tell(len(events) * 2)
		r.exec(t, "INSERT INTO cleared (k, op, n) VALUES (4, 'U', 30), (5, 'U', 5), (2, 'U', 25)", "INSERT INTO cleared (k, op, n) VALUES (NULL, 'T', 24), (1, 'U', 24)")
		r.once(t)
		o := sim.Oracle{Columns: 3, Tracked: []bool{false, true, true}}
		for _, row := range queryMyServer(t, r.my, r.database, "SELECT k, a, b, op, n FROM events") {
			o.Events = append(o.Events, tableEvent(t, row))
		}
		now, past := expected(&o)
		r.holds(t, "now", []string{"k", "a", "b"}, now...)
		r.holds(t, "past", []string{"k", "a", "b", "__START_AT", "__END_AT"}, past...)
		r.holds(t, "cleared", []string{"k"}, "1", "2", "4")
		contains(t, r.must(t, "verify"), "\n0 differences of ")
	})
}

// What is done to a feed's rows is refused, or passed over; what cannot be judged waits
// in quarantine and takes its place when it is retried.
func TestMySQLFeedsThatChangeAndEventsThatWait(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"duckdb", "mysql"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newMyRig(t, kind, "flows:\n  - {source: DB.events, source_kind: feed, name: the flow, target: now, keys: [k], sequence_by: n, apply_as_deletes: \"CAST(op AS INT) = 1\", except_column_list: [pos, op, n]}",
				"CREATE TABLE events (pos bigint AUTO_INCREMENT PRIMARY KEY, k int, v varchar(9), op varchar(9), n bigint)", "INSERT INTO events (k, v, op, n) VALUES (1, 'a', '0', 1), (1, 'secret', 'DELETE', 3), (4, 'd', '0', 2)")
			r.once(t)
			r.exec(t, "INSERT INTO events (k, v, op, n) VALUES (1, 'c', '0', 5), (2, 'secret', 'DELETE', 2), (2, 'x', '0', 1), (3, 'secret', '0', NULL), (4, 'secret', 'DELETE', 2)")
			r.once(t)
			r.holds(t, "now", []string{"k", "v"}, "1 c", "2 x", "4 d")
			if rows := r.quarantined(t); len(rows) != 4 {
				t.Errorf("in quarantine: %q", rows)
			}
			out := r.refused(t, 1, []string{"4 events are in quarantine"}, "status", "--check")
			if strings.Contains(out, "secret") {
				t.Errorf("values are shown:\n%s", out)
			}
			r.judgeDeletesOnce(t)
			if out, code := r.command(t, nil, "quarantine", "retry"); code != 1 || !strings.Contains(out, "3 applied, 1 still in quarantine") {
				t.Fatalf("retry: exit %d\n%s", code, out)
			}
			r.holds(t, "now", []string{"k", "v"}, "1 c")
			r.must(t, "quarantine", "discard", "--all", "--yes")
			skip := ""
			for _, c := range [][2]string{{"update", "UPDATE events SET v = 'changed', n = 99 WHERE k = 1"}, {"delete", "DELETE FROM events WHERE k = 1"}, {"truncate", "TRUNCATE TABLE events"}} {
				r.exec(t, c[1], "INSERT INTO events (k, v, op, n) VALUES (7, '"+c[0]+"', '0', 1)")
				r.refused(t, 3, []string{"the flow", strings.ToUpper(c[0]), "skip_change_commits: [" + c[0] + "]"}, "run", "--once")
				if skip == "" {
					r.reconfigure(t, "sequence_by: n,", "sequence_by: n, skip_change_commits: [update],")
				} else {
					r.reconfigure(t, skip+"]", skip+", "+c[0]+"]")
				}
				skip = strings.TrimPrefix(skip+", "+c[0], ", ")
				r.once(t)
				r.holds(t, "now", []string{"k", "v"}, "1 c", "7 "+c[0])
			}
		})
	}
}

func (r *rig) judgeDeletesOnce(t testing.TB) {
	t.Helper()
	r.reconfigure(t, "CAST(op AS INT) = 1", "op = 'DELETE'")
}

// Tables by a sequence of their own: late changes lose, a DELETE stands behind its row, a
// TRUNCATE behind every row, and a history has the source's own instants.
func TestMySQLTablesBySequence(t *testing.T) {
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newMyRig(t, kind, `flows:
  - {source: DB.items, target: now, sequence_by: at, keys: [id], except_column_list: [at]}
  - {source: DB.items, target: history, stored_as_scd_type: 2, sequence_by: at, keys: [id], except_column_list: [at]}
  - {source: DB.gone, target: gone, sequence_by: n, keys: [id], except_column_list: [n]}`,
			"CREATE TABLE items (id int PRIMARY KEY, v varchar(9), at timestamp(3) NULL)", "INSERT INTO items VALUES (1, 'a', '2024-01-01 00:00:01'), (2, 'b', '2024-01-01 00:00:01'), (3, 'c', '2024-01-01 00:00:01')",
			"CREATE TABLE gone (id int PRIMARY KEY, n bigint unsigned)", "INSERT INTO gone VALUES (1, 18446744073709551615), (2, 2)")
		r.once(t)
		r.exec(t, "UPDATE items SET v = 'late', at = '2023-01-01' WHERE id = 1", "UPDATE items SET v = 'bb', at = '2024-01-01 00:00:02.5' WHERE id = 2", "UPDATE items SET id = 4, at = '2024-01-01 00:00:03' WHERE id = 3",
			"DELETE FROM items WHERE id = 2", "TRUNCATE TABLE gone", "INSERT INTO gone VALUES (1, 5), (3, 1)")
		r.once(t)
		r.holds(t, "now", []string{"id", "v"}, "1 a", "4 c")
		r.holds(t, "gone", []string{"id"}, "3") // key 1 went at the highest sequence there is
		_, rows := r.shown(t, "history")
		var got []string
		for _, row := range rows {
			end := row[3]
			switch {
			case end == null:
				end = "-"
			case instant(end) > time.Now().Add(-time.Hour).UnixMicro():
				end = "now"
			default:
				end = fmt.Sprint(time.UnixMicro(instant(end)).UTC().Format("2006 05.000"))
			}
			got = append(got, fmt.Sprintf("%s %s %s %s", row[0], row[1], time.UnixMicro(instant(row[2])).UTC().Format("2006 05.000"), end))
		}
		want := []string{"1 late 2023 00.000 2024 01.000", "1 a 2024 01.000 -", "2 b 2024 01.000 2024 02.500", "2 bb 2024 02.500 now", "3 c 2024 01.000 2024 03.000", "4 c 2024 03.000 -"}
		if !slices.Equal(got, want) {
			t.Errorf("history:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		contains(t, r.must(t, "verify"), "\n0 differences of ")
	})
}
