package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// lines writes events to a file and gives the arguments that apply them.
func eventFile(t testing.TB, flow string, lines ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--flow", flow, path}
}

const editedFeed = `create table cdf(id int, city text, price numeric(8,2), op text, n int);
insert into cdf values (1, 'Oaxaca', 1, 'I', 1), (2, 'Tijuana', 2, 'I', 1);
create table goods(id int primary key, v text, n int not null); insert into goods values (1, 'a', 1), (2, 'b', 1);
create table plain(id int primary key)`

const editedFlows = `flows:
  - {source: public.plain}
  - {source: public.cdf, source_kind: feed, target: now, name: current, keys: [id], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n], expect: {dear: {condition: "price > 0", on_violation: drop}}}
  - {source: public.cdf, source_kind: feed, target: past, keys: [id], sequence_by: n, apply_as_deletes: "op = 'D'", except_column_list: [op, n], stored_as_scd_type: 2, on_bad_event: fail}
  - {source: public.goods, sequence_by: n}`

// A target is edited by events: what is remembered and what it shows stay one. Edits past
// the engine are found, with what mends them.
func TestTargetsAreEditedByEvents(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, editedFeed, editedFlows)
		refuse := func(code int, args []string, wants ...string) {
			t.Helper()
			r.refused(t, code, wants, "apply-event", args...)
		}
		refuse(3, eventFile(t, "past", `{"id": 1, "n": 2}`), "has not been started")
		r.once(t)
		r.same(t)
		r.atTarget(t, `update past set city = 'edited' where id = 1`, `delete from now where id = 2`)
		r.refused(t, 1, []string{"2 differences", "tailrace apply-event", "backfill --table"}, "verify")

		// As an event the edit stays, also in the middle of a history.
		r.must(t, "apply-event", eventFile(t, "past", `{"id": 1, "city": "edited", "price": "1.5", "op": "U", "n": 5}`, ``, `{"id": 1, "city": "edited", "price": 1, "op": "U", "n": 1}`)...)
		contains(t, r.must(t, "apply-event", eventFile(t, "current", `{"id": 2, "city": "back", "price": 3, "op": "U", "n": 1}`, `{"id": "3", "city": null, "price": 4.00, "n": 1}`, `{"ID": 1, "op": "D", "n": 9}`)...), "3 events applied", "0 set aside")
		r.prints(t, "now", "2|back|3.00", "3|-|4.00")
		r.prints(t, "past", "1|edited|1.00|1|5", "1|edited|1.50|5|-", "2|Tijuana|2.00|1|-")
		r.same(t)
		contains(t, r.must(t, "explain", "--flow", "past", "--key", "1"), "applied by hand at ", ", line 1", ", line 3")

		// Applied again it changes nothing; a later event of the log wins at an equal sequence.
		r.must(t, "apply-event", eventFile(t, "past", `{"id": 1, "city": "edited", "price": "1.5", "op": "U", "n": 5}`)...)
		r.prints(t, "past", "1|edited|1.00|1|5", "1|edited|1.50|5|-", "2|Tijuana|2.00|1|-")
		r.exec(t, "insert into cdf values (1, 'log', 7, 'U', 5), (2, 'log', 7, 'U', 1)")
		r.once(t)
		r.prints(t, "now", "2|log|7.00", "3|-|4.00")
		r.prints(t, "past", "1|edited|1.00|1|5", "1|log|7.00|5|-", "2|log|7.00|1|-")

		// Of a table an event may be what a statement on it would be.
		r.must(t, "apply-event", eventFile(t, "goods", `{"_op": "DELETE", "id": 1, "n": 1}`, `{"id": 2, "v": "bb", "n": 2}`, `{"id": 9, "v": "new", "n": 1}`)...)
		r.holds(t, "goods", []string{"id", "v"}, "2 bb", "9 new")
		r.exec(t, "delete from goods where id = 2")
		r.once(t)
		r.holds(t, "goods", []string{"id", "v"}, "9 new")

		// What is wrong is named by its line, without its value, and what cannot take its
		// place is handled as the flow says.
		refuse(1, eventFile(t, "current", `{"id": 5, "price": 1, "n": 1}`, `{"id": "secret", "n": 1}`, `{"id": 1, "colour": "secret"}`, `[]`, `{"id": 7, "n": {"secret": 1}}`, `{"id": 8, "_op": "DELETE", "n": 1}`),
			"line 2: the value of column id is no ", "line 3: column colour is not in ", "line 4: it is no JSON object", "line 5: the value of column n is no ", "line 6: _op is INSERT", "nothing was applied: 5 lines")
		refuse(1, eventFile(t, "current", `{"id": 5, "price": 1, "n": 1}`, `{"price": 1, "n": 1}`, `{"id": 6, "price": 0, "n": 1}`), "line 2 is set aside: a key column is NULL", "line 3 is set aside: expectation dear", "1 events applied")
		refuse(1, eventFile(t, "past", `{"id": 5, "price": 1, "n": 1}`, `{"id": 5, "price": 1}`), "line 2: the sequence is NULL", "nothing was applied")
		r.prints(t, "now", "2|log|7.00", "3|-|4.00", "5|-|1.00")
		for _, row := range r.quarantined(t) {
			if !strings.HasPrefix(row[3], "applied by hand at ") {
				t.Errorf("in quarantine: %q", row)
			}
		}
		r.reconfigure(t, "price > 0", "price >= 0")
		r.refused(t, 1, []string{"1 applied, 1 still in quarantine"}, "quarantine", "retry")
		r.prints(t, "now", "2|log|7.00", "3|-|4.00", "5|-|1.00", "6|-|0.00")
		refuse(3, eventFile(t, "plain", `{"id": 5}`), "order of the log", "change the row at the source")
		refuse(2, eventFile(t, "nobody", `{"id": 5}`), "no flow has this name")
		r.same(t)
	})
}

// A running daemon applies events while its stream stands. If it is killed meanwhile, it
// may be asked again: what was applied already changes nothing.
func TestADaemonAppliesEvents(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, editedFeed, editedFlows)
		p := r.start(t, nil)
		r.following(t, p)
		contains(t, r.must(t, "apply-event", eventFile(t, "current", `{"id": 2, "city": "back", "price": 3, "n": 2}`)...), "1 events applied")
		r.refused(t, 1, []string{"line 1: it is no JSON object"}, "apply-event", eventFile(t, "past", `x`)...)
		// A value that the destination refuses fails for who asked, and nobody else.
		if kind != "duckdb" {
			r.atTarget(t, fmt.Sprintf("alter table goods add constraint short check (%s(v) < 5)", "char_length"))
			r.refused(t, 3, []string{"goods"}, "apply-event", eventFile(t, "goods", `{"id": 8, "v": "too long", "n": 1}`)...)
		}
		r.through(t, "insert into cdf values (3, 'log', 7, 'U', 5)")
		p.stop(t)
		r.prints(t, "now", "1|Oaxaca|1.00", "2|back|3.00", "3|log|7.00")

		p = r.start(t, []string{"TAILRACE_KILL_AT=events applied"})
		r.following(t, p)
		again := eventFile(t, "past", `{"id": 1, "city": "edited", "price": 9, "n": 5}`)
		asker := start(t, r.env, r.args("apply-event", again...)...)
		if code := p.wait(t, time.Minute); code != -1 {
			t.Fatalf("the daemon was not killed: exit %d\n%s", code, tail(p.output.String()))
		}
		p = r.start(t, nil)
		if code := asker.wait(t, time.Minute); (code == 0) != (kind == "duckdb") { // where the asker asks the next daemon by itself
			t.Errorf("the asker: exit %d\n%s", code, tail(asker.output.String()))
		}
		contains(t, r.must(t, "apply-event", again...), "1 events applied") // applied or not
		p.stop(t)
		r.prints(t, "past", "1|Oaxaca|1.00|1|5", "1|edited|9.00|5|-", "2|Tijuana|2.00|1|-", "3|log|7.00|5|-")
		r.same(t)
	})
}
