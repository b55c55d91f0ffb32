package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailrace/internal/sim"
)

// untouched is the key of rows that no transaction touches.
const untouched = "1000000"

// myCrashTables are what crashTables are, with types of these servers, and a feed of
// events. Triggers keep the audit trail; it is not followed.
var myCrashTables = []string{
	"CREATE TABLE digits (n int PRIMARY KEY)", "INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
	"CREATE VIEW numbers AS SELECT a.n * 1000 + b.n * 100 + c.n * 10 + d.n + 1 AS n FROM digits a, digits b, digits c, digits d",
	"CREATE TABLE left_side (id int unsigned PRIMARY KEY, balance bigint NOT NULL, note varchar(40) CHARACTER SET latin1)",
	"CREATE TABLE right_side (id int unsigned PRIMARY KEY, balance bigint NOT NULL, note varchar(40), d date, span time(1), raw varbinary(20), e enum('a','b,c'), bits bit(9))",
	"INSERT INTO left_side SELECT n, 1000, concat('né', n) FROM numbers WHERE n <= 500",
	"INSERT INTO right_side SELECT n, 1000, NULL, '2024-02-29', '-25:00:00.5', unhex(lpad(hex(n), 8, '0')), 'b,c', n % 512 FROM numbers WHERE n <= 500",
	"CREATE TABLE docs (id int PRIMARY KEY, n decimal(12,2) NOT NULL, u bigint unsigned NOT NULL DEFAULT 18446744073709551615, body mediumtext)",
	"INSERT INTO docs (id, n, body) SELECT n, 0, repeat(sha2(n, 256), 50) FROM numbers WHERE n <= 100",
	"CREATE TABLE items (id int PRIMARY KEY, u int UNIQUE, v varchar(20))", "INSERT INTO items SELECT n, n, concat('v', n % 3) FROM numbers WHERE n <= 200",
	"CREATE TABLE scratch (id int PRIMARY KEY, v int)", "INSERT INTO scratch SELECT n, n FROM numbers WHERE n <= 50",
	"CREATE TABLE journal (at datetime(6) NOT NULL, what varchar(40))", "INSERT INTO journal SELECT now(6), concat('start ', n) FROM numbers WHERE n <= 20",
	"CREATE TABLE bulk (id int PRIMARY KEY, n int NOT NULL, pad varchar(200))",
	"CREATE TABLE feed (pos bigint AUTO_INCREMENT PRIMARY KEY, k int, a varchar(9), b int, op char(1), n bigint, UNIQUE (k, n))",
	"INSERT INTO left_side VALUES (" + untouched + ", 0, '')", "INSERT INTO docs VALUES (" + untouched + ", 0, 0, '')", "INSERT INTO items VALUES (" + untouched + ", NULL, '')", "INSERT INTO scratch VALUES (" + untouched + ", 0)",
	"CREATE TABLE audit (seq bigint AUTO_INCREMENT PRIMARY KEY, tx varchar(40), rel varchar(20), op char(1), old_key int, new_key int, new_row mediumtext)",
}

// myRows are the columns of the tables, as text that every destination shows alike.
var myRows = map[string]string{
	"left_side":  "id, balance, note",
	"right_side": "id, balance, note, d, span, concat('\\\\x', lower(hex(raw))), e, lpad(bin(bits), 9, '0')",
	"docs":       "id, n, u, body",
	"items":      "id, u, v",
	"scratch":    "id, v",
	"bulk":       "id, n, pad",
	"journal":    "what",
}

const myCrashFlows = `
batch: {max_rows: 2000}
flows:
  - {source: DB.*, except: [DB.audit, DB.digits, DB.feed]}
  - {source: DB.left_side, target: left_side_history, stored_as_scd_type: 2}
  - {source: DB.docs, target: docs_history, stored_as_scd_type: 2}
  - {source: DB.items, target: items_history, stored_as_scd_type: 2}
  - {source: DB.scratch, target: scratch_history, stored_as_scd_type: 2}
  - {source: DB.feed, source_kind: feed, target: now, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [pos, op, n]}
  - {source: DB.feed, source_kind: feed, target: past, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [pos, op, n], stored_as_scd_type: 2}
`

// rowText is a row's columns as one text, NULL apart from every value.
func rowText(columns, prefix string) string {
	var cells []string
	for _, c := range splitColumns(columns) {
		for _, name := range []string{"id", "balance", "note", "n", "u", "body", "v"} {
			if c == name {
				c = prefix + c
			}
		}
		cells = append(cells, "ifnull(convert("+c+" using utf8mb4), '∅')")
	}
	return "concat_ws('|', " + strings.Join(cells, ", ") + ")"
}

// splitColumns splits a list at the commas that stand outside of brackets.
func splitColumns(list string) (out []string) {
	depth, from := 0, 0
	for i, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			out, from = append(out, strings.TrimSpace(list[from:i])), i+1
		}
	}
	return append(out, strings.TrimSpace(list[from:]))
}

// However often the program is killed, and wherever: what a MariaDB or MySQL source
// holds is in the destination, and its histories tell every change once.
func TestMySQLCrashesLoseAndDoubleNothing(t *testing.T) {
	kills := 22
	if os.Getenv("TAILRACE_SOAK") != "" {
		kills = 200
	}
	rnd := seeded(t)
	seed := rnd.Uint64()
	overAllKinds(t, func(t *testing.T, kind string) {
		crashMySQL(t, rand.New(rand.NewPCG(seed, uint64(len(kind)))), kind, kills)
	})
}

func crashMySQL(t *testing.T, rnd *rand.Rand, kind string, kills int) {
	statements := slices.Clone(myCrashTables)
	for _, rel := range crashHistories {
		for _, w := range []struct{ op, verb, keys, row string }{
			{"I", "INSERT", "NULL, NEW.id", rowText(myRows[rel], "NEW.")}, {"U", "UPDATE", "OLD.id, NEW.id", rowText(myRows[rel], "NEW.")}, {"D", "DELETE", "OLD.id, NULL", "NULL"},
		} {
			statements = append(statements, fmt.Sprintf("CREATE TRIGGER %s_%s AFTER %s ON %[1]s FOR EACH ROW INSERT INTO audit (tx, rel, op, old_key, new_key, new_row) VALUES (@tx, '%[1]s', '%[2]s', %[4]s, %[5]s)", rel, w.op, w.verb, w.keys, w.row))
		}
	}
	r := newMyRig(t, kind, myCrashFlows, statements...)
	initial := map[string]map[string]string{}
	for _, rel := range crashHistories {
		initial[rel] = r.keyed(t, rel)
	}
	env := []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB", "TAILRACE_RETRY_MAX=60s"}

	writers, stopWriters := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var truncates atomic.Bool // not before the copy, whose rows must be found in the trail
	defer wg.Wait()
	defer stopWriters()
	for i, image := range []string{"FULL", "MINIMAL", "NOBLOB"} {
		own := rand.New(rand.NewPCG(rnd.Uint64(), uint64(i)))
		wg.Go(func() {
			w := &myWriter{name: strconv.Itoa(i), image: image, rnd: own, truncates: &truncates}
			if err := w.run(writers, r); err != nil {
				t.Errorf("writer: %v", err)
			}
		})
	}
	reads := watchSum(writers, t, &wg, r.rig)
	killRepeatedly(t, rnd, r.rig, env, nil, copyPoints, nil, len(copyPoints))
	truncates.Store(true)
	killRepeatedly(t, rnd, r.rig, env, nil, nil, crashPoints[:5], kills-len(copyPoints))

	p := r.start(t, env)
	p.says(t, patience, "decided where to begin")
	time.Sleep(time.Second) // in the middle of the load
	reads.await()
	p.stop(t)
	stopWriters()
	wg.Wait()
	r.once(t)
	contains(t, r.must(t, "verify"), "\n0 differences of ")
	reads.enough(t)
	for rel := range myRows {
		r.equalTables(t, rel)
	}
	for _, rel := range crashHistories {
		r.compareTrail(t, rel, initial[rel])
	}
	r.compareFeed(t)
	t.Logf("%s: killed %d times", kind, kills)
}

// myWriter commits random transactions, one writer at a time: so the audit trail is in
// the order of commits.
type myWriter struct {
	name, image string
	rnd         *rand.Rand
	truncates   *atomic.Bool
	conn        *sql.Conn
	err         error
}

func (w *myWriter) exec(format string, args ...any) {
	if w.err != nil {
		return
	}
	if len(args) > 0 {
		format = fmt.Sprintf(format, args...)
	}
	if _, w.err = w.conn.ExecContext(context.Background(), format); w.err != nil {
		w.err = fmt.Errorf("%s: %w", format, w.err)
	}
}

func (w *myWriter) run(ctx context.Context, r *myRig) error {
	db, err := sql.Open("mysql", r.my.DSN(r.database))
	if err != nil {
		return err
	}
	defer db.Close()
	if w.conn, err = db.Conn(context.Background()); err != nil {
		return err
	}
	defer w.conn.Close()
	w.exec("SET SESSION binlog_row_image = " + w.image)
	for n := 0; ctx.Err() == nil && w.err == nil; n++ {
		w.exec("DO GET_LOCK('%s', 60)", r.database)
		w.exec("SET @tx = '%s.%d'", w.name, n)
		if w.truncates.Load() && w.rnd.IntN(40) == 0 { // commits by itself
			w.exec("INSERT INTO audit (tx, rel, op) VALUES (@tx, 'scratch', 'T')")
			w.exec("TRUNCATE TABLE scratch")
		} else {
			w.exec("BEGIN")
			for range 1 + w.rnd.IntN(4) {
				w.step()
			}
			w.exec([]string{"COMMIT", "ROLLBACK"}[w.rnd.IntN(12)/11])
		}
		w.exec("DO RELEASE_LOCK('%s')", r.database)
		time.Sleep(time.Duration(w.rnd.IntN(3000)) * time.Microsecond)
	}
	return w.err
}

func (w *myWriter) step() {
	rnd := w.rnd
	id, other := 1+rnd.IntN(500), 1+rnd.IntN(500)
	switch rnd.IntN(15) {
	case 0, 1, 2:
		amount := rnd.IntN(100)
		w.exec("UPDATE left_side SET balance = balance - %d WHERE id = %d", amount, id)
		w.exec("UPDATE right_side SET balance = balance + %d, note = 'r', bits = (bits + 1) %% 512, span = '-00:00:00.1' WHERE id = %d", amount, other)
	case 3:
		w.exec("UPDATE docs SET n = n + 0.01 WHERE id = %d", 1+id%100)
	case 4:
		w.exec("UPDATE docs SET body = repeat(sha2(%d, 256), 40), u = %d WHERE id = %d", rnd.IntN(3), rnd.Uint64(), 1+id%100)
	case 5:
		w.exec("DELETE FROM docs WHERE id = %d", 1+id%100)
		if rnd.IntN(2) == 0 {
			w.exec("INSERT INTO docs VALUES (%d, 0, 1, repeat(sha2('x', 256), 60))", 1+id%100)
		}
	case 6:
		w.exec("INSERT INTO docs VALUES (%d, 0, 0, repeat('ü', 2000)) ON DUPLICATE KEY UPDATE u = 7", 1+id%100)
	case 7:
		w.exec("REPLACE INTO docs VALUES (%d, 5, 5, 'replaced')", 1+id%100)
	case 8: // a key moves, and perhaps back
		w.exec("UPDATE items SET id = %d WHERE id = %d AND NOT EXISTS (SELECT 1 FROM (SELECT id FROM items) i WHERE i.id = %[1]d)", 1+other%260, 1+id%200)
	case 9: // two keys swap over a temporary one, and so do their unique values
		if a, b := 1+id%200, 1+other%200; a != b {
			w.exec("UPDATE items SET id = -1, u = -u WHERE id = %d", a)
			w.exec("UPDATE items SET id = %d, u = -u WHERE id = %d", a, b)
			w.exec("UPDATE items SET id = %d, u = -u WHERE id = -1", b)
			w.exec("UPDATE items SET u = -u WHERE id = %d AND u < 0", a)
		}
	case 10:
		w.exec("UPDATE items SET v = concat('v', (1 + length(v)) %% 4) WHERE id = %d", 1+id%200) // often changes nothing
	case 11:
		w.exec("INSERT INTO scratch SELECT n, %d FROM numbers WHERE n <= 30 ON DUPLICATE KEY UPDATE v = VALUES(v)", rnd.IntN(1e9))
	case 12:
		w.exec("INSERT INTO journal SELECT now(6), concat('entry ', n) FROM numbers WHERE n <= 3")
	case 13: // a pair of key and sequence comes once
		w.exec("INSERT IGNORE INTO feed (k, a, b, op, n) VALUES (%d, '%c', nullif(%d, 0), '%s', %d)", rnd.IntN(60), 'a'+rune(rnd.IntN(3)), rnd.IntN(4), []string{"D", "U", "U"}[rnd.IntN(3)], rnd.IntN(200))
	case 14: // larger than the bound
		switch rnd.IntN(8) {
		case 0:
			w.exec("UPDATE docs SET n = n + 1, body = repeat(sha2(n, 256), 35)")
		case 1:
			w.exec("INSERT INTO bulk SELECT n, %d, repeat('p', 150) FROM numbers WHERE n <= 3000 ON DUPLICATE KEY UPDATE n = VALUES(n)", rnd.IntN(1000))
		case 2:
			w.exec("DELETE FROM bulk WHERE id %% %d = 0", 2+rnd.IntN(9))
		}
	}
}

// keyed are the rows of a table by its key, as the audit trail writes them.
func (r *myRig) keyed(t *testing.T, rel string) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for _, row := range queryMyServer(t, r.my, r.database, "SELECT id, "+rowText(myRows[rel], "")+" FROM "+rel) {
		rows[row[0]] = row[1]
	}
	return rows
}

// equalTables compares a table with its target through text.
func (r *myRig) equalTables(t *testing.T, rel string) {
	t.Helper()
	want := sortedRows(queryMyServer(t, r.my, r.database, "SELECT "+rowText(myRows[rel], "")+" FROM "+rel))
	_, rows := r.shown(t, rel)
	var got []string
	for _, row := range rows {
		if rel == "journal" {
			row = row[1:]
		}
		got = append(got, strings.ReplaceAll(strings.Join(row, "|"), null, "∅"))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %d rows in the destination, %d at the source\n%s", rel, len(got), len(want), differing(got, want))
	}
}

// compareTrail plays the audit trail from the state that was copied, and wants each
// state in which a transaction left a key to be one version of the history, in order.
func (r *myRig) compareTrail(t *testing.T, rel string, state map[string]string) {
	t.Helper()
	_, versions := r.shown(t, rel+"_history")
	if len(versions) == 0 {
		t.Errorf("%s_history is empty", rel)
		return
	}
	width := len(versions[0]) - 2
	if err := checkHistory(versions, width); err != nil {
		t.Errorf("%s_history: %v", rel, err)
	}
	slices.SortStableFunc(versions, func(a, b []string) int { return int(instant(a[width]) - instant(b[width])) })
	first := int64(-1) // at which the copied rows begin
	for _, v := range versions {
		if v[0] == untouched && first < 0 {
			first = instant(v[width])
		}
	}
	copied, got := map[string]string{}, map[string][]string{}
	for _, v := range versions {
		text := strings.ReplaceAll(strings.Join(v[:width], "|"), null, "∅")
		if instant(v[width]) == first {
			copied[v[0]] = text
		}
		if v[width+1] != null {
			text += " ended"
		}
		got[v[0]] = append(got[v[0]], text)
	}
	trail := queryMyServer(t, r.my, r.database, "SELECT tx, op, old_key, new_key, new_row FROM audit WHERE rel = '"+rel+"' ORDER BY seq")
	want := map[string][]string{}
	found := false
	for i := 0; ; {
		if !found && sameRows(state, copied) {
			found = true
			for k, v := range state {
				want[k] = []string{v}
			}
		}
		if i == len(trail) {
			break
		}
		before := clone(state)
		for tx := trail[i][0]; i < len(trail) && trail[i][0] == tx; i++ {
			op, was, is, row := trail[i][1], trail[i][2], trail[i][3], trail[i][4]
			if op == "T" {
				clear(state)
				continue
			}
			delete(state, was)
			if is != null {
				state[is] = row
			}
		}
		if !found {
			continue
		}
		for k, v := range before {
			if now, there := state[k]; !there || now != v {
				want[k][len(want[k])-1] += " ended"
			}
		}
		for k, v := range state {
			if was, there := before[k]; !there || was != v {
				want[k] = append(want[k], v)
			}
		}
	}
	if !found {
		t.Errorf("%s_history: the copied rows are no state that the source ever had", rel)
		return
	}
	wrong := 0
	for k := range want {
		if !slices.Equal(got[k], want[k]) {
			if wrong++; wrong < 3 {
				t.Errorf("%s_history: key %s lived through\n%.300q\nand has\n%.300q", rel, k, want[k], got[k])
			}
		}
	}
	if wrong > 0 || len(got) != len(want) {
		t.Errorf("%s_history: %d of %d keys differ, %d are there", rel, wrong, len(want), len(got))
	}
}

func sameRows(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// compareFeed compares the targets of the feed with what its rules make of it.
func (r *myRig) compareFeed(t *testing.T) {
	t.Helper()
	o := sim.Oracle{Columns: 3, Tracked: []bool{false, true, true}}
	for _, row := range queryMyServer(t, r.my, r.database, "SELECT k, a, b, op, n FROM feed") {
		o.Events = append(o.Events, tableEvent(t, row))
	}
	now, past := expected(&o)
	if len(now) < 10 || len(past) < len(now) {
		t.Errorf("only %d and %d rows are expected of the feed", len(now), len(past))
	}
	r.holds(t, "now", []string{"k", "a", "b"}, now...)
	r.holds(t, "past", []string{"k", "a", "b", "__START_AT", "__END_AT"}, past...)
}
