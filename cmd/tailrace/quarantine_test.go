package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// events is a feed whose deletes the first definition of the flows cannot judge.
const events = `create table events(id int, name text, op text, seq bigint);
insert into events values (1, 'a', '0', 1), (1, 'copied secret', 'DELETE', 3), (4, 'd', '0', 2)`

const eventFlows = `flows:
  - {source: public.events, source_kind: feed, target: now, keys: [id], sequence_by: seq, apply_as_deletes: "CAST(op AS INT) = 1", except_column_list: [op, seq]}
  - {source: public.events, source_kind: feed, name: past, target: then, stored_as_scd_type: 2, keys: [id], sequence_by: seq, apply_as_deletes: "CAST(op AS INT) = 1", except_column_list: [op, seq]}`

func (r *rig) judgeDeletes(t testing.TB) {
	t.Helper()
	for range 2 {
		r.reconfigure(t, "CAST(op AS INT) = 1", "op = 'DELETE'")
	}
}

// prints asserts a target's rows, written as cells with bars between.
func (r *rig) prints(t testing.TB, target string, want ...string) {
	t.Helper()
	_, rows := r.shown(t, target)
	var got []string
	for _, row := range rows {
		got = append(got, strings.ReplaceAll(strings.Join(row, "|"), null, "-"))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s holds\n%s\nwant\n%s", target, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEventsInQuarantineAreRetriedAtTheirPlace(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, events, eventFlows)
		r.once(t)
		r.exec(t, "insert into events values (1, 'c', '0', 5), (2, 'secret', 'DELETE', 2), (2, 'x', '0', 1), (3, 'secret', '0', null), (4, 'secret', 'DELETE', 2)")
		contains(t, r.once(t), "set_aside=6") // three events, two flows
		r.prints(t, "now", "1|c", "2|x", "4|d")
		r.prints(t, "then", "1|a|1|5", "1|c|5|-", "2|x|1|-", "4|d|2|-")

		out := r.refused(t, 1, nil, "status", "--check")
		contains(t, out, "now: 4 events are in quarantine", "flow past: 4 events are in quarantine", "REMEMBERED")
		var st status
		if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &st); err != nil {
			t.Fatal(err)
		}
		if st.Quarantine["past"] != 4 || len(st.Quarantine) != 2 || len(st.Sequenced) != 2 || st.Sequenced[0].Remembered+st.Sequenced[1].Remembered != 3+4 {
			t.Errorf("status: %+v", st)
		}

		list := func(more ...string) (lines []asideLine) {
			t.Helper()
			stdout, stderr, code := tailrace(t, append([]string{"quarantine", "list", "-c", r.config, "--json"}, more...)...)
			if code != 0 {
				t.Fatalf("list: exit %d\n%s", code, stderr)
			}
			dec := json.NewDecoder(strings.NewReader(stdout))
			for dec.More() {
				var l asideLine
				if err := dec.Decode(&l); err != nil {
					t.Fatal(err)
				}
				lines = append(lines, l)
			}
			return lines
		}
		all := list()
		if len(all) != 8 || len(list("--flow", "past")) != 4 || len(list("--flow", "nobody")) != 0 {
			t.Fatalf("%d events in quarantine: %+v", len(all), all)
		}
		for i, l := range all {
			if l.Event != nil || l.Time == nil || !strings.HasSuffix(l.Target, "now") && !strings.HasSuffix(l.Target, "then") || i > 0 && l.ID <= all[i-1].ID {
				t.Errorf("%+v", l)
			}
		}
		if !strings.HasPrefix(all[0].Position, "first copy at ") || !strings.Contains(all[7].Position, ", change ") {
			t.Errorf("positions %q and %q", all[0].Position, all[7].Position)
		}
		if l := list("--show-values"); !strings.Contains(string(l[0].Event), "copied secret") {
			t.Errorf("--show-values: %s", l[0].Event)
		}
		quarantine := func(code int, env []string, command string, more ...string) string {
			t.Helper()
			out, got := r.command(t, env, "quarantine", append([]string{command}, more...)...)
			if got != code || strings.Contains(out, "secret") {
				t.Fatalf("quarantine %s: exit %d, want %d\n%s", command, got, code, out)
			}
			return out
		}
		contains(t, quarantine(0, nil, "list"), "cannot be evaluated", "the sequence is NULL", "POSITION")
		contains(t, quarantine(1, nil, "retry"), "8 still in quarantine", "0 applied", fmt.Sprintf("%d stays: ", all[0].ID))
		quarantine(2, nil, "retry", "--id", "999999999")
		quarantine(2, nil, "discard", "--id", "999999999", "--yes")
		quarantine(2, nil, "discard")
		quarantine(2, nil, "discard", "--all") // nobody says yes

		// What is retried is applied once, wherever the program dies.
		r.judgeDeletes(t)
		quarantine(-1, []string{"TAILRACE_KILL_AT=rows written"}, "retry")
		if n := len(list()); n != 8 {
			t.Fatalf("%d events after a crash before the commit", n)
		}
		r.prints(t, "now", "1|c", "2|x", "4|d")
		if got := list("--flow", "past"); len(got) > 0 {
			contains(t, quarantine(0, nil, "retry", "--id", fmt.Sprint(got[0].ID)), "1 applied, 0 still in quarantine")
		}
		r.prints(t, "then", "1|a|1|3", "1|c|5|-", "2|x|1|-", "4|d|2|-")
		quarantine(-1, []string{"TAILRACE_KILL_AT=applied"}, "retry")
		now, then := []string{"1|c"}, []string{"1|a|1|3", "1|c|5|-", "2|x|1|2"}
		r.prints(t, "now", now...)
		r.prints(t, "then", then...)
		contains(t, quarantine(1, nil, "retry"), "0 applied, 2 still in quarantine", "the sequence is NULL")
		r.prints(t, "now", now...)
		r.once(t)
		r.prints(t, "now", now...)
		r.prints(t, "then", then...)

		contains(t, quarantine(0, nil, "discard", "--flow", "past", "--all", "--yes"), "1 discarded")
		left := list()
		contains(t, quarantine(0, nil, "discard", "--yes", "--id", fmt.Sprint(left[0].ID)), "1 discarded")
		contains(t, quarantine(0, nil, "list"), "nothing is in quarantine")
		contains(t, quarantine(0, nil, "retry"), "0 applied, 0 still in quarantine")
		contains(t, quarantine(0, nil, "discard", "--all", "--yes"), "nothing is in quarantine")
		r.must(t, "status", "--check")
		contains(t, r.must(t, "verify"), ": 0 differences of 1 rows (keys compared with the remembered events; no key stands twice: 0 broken)", "at most one is open: 0 broken)")

		// The targets are those of a pipeline that could judge the events at once.
		other := rigOn(t, server, r.source, freshDestination(t, server, kind), eventFlows)
		other.judgeDeletes(t)
		other.once(t)
		other.prints(t, "now", now...)
		other.prints(t, "then", then...)
	})
}

// An event of a table is judged again as what it was: an update that moves a key, a
// delete.
func TestChangesOfATableAreRetriedAsWhatTheyWere(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table items(id int primary key, v text, s int, s2 int); alter table items replica identity full;
insert into items values (1, 'one', 1, 1), (3, 'three', 1, 1)`, "flows: [{source: public.items, sequence_by: s, except_column_list: [s, s2]}]")
		r.once(t)
		r.exec(t, "insert into items values (2, 'two', null, 3)", "update items set id = 5, s = null, s2 = 9 where id = 1", "delete from items where id = 2", "update items set v = 'mid', s = null, s2 = 4 where id = 3", "update items set v = 'last', s = 7, s2 = 7 where id = 3")
		r.once(t)
		r.prints(t, "items", "1|one", "3|last")
		r.reconfigure(t, "sequence_by: s,", "sequence_by: s2,")
		if out, code := r.command(t, nil, "quarantine", "retry"); code != 0 || !strings.Contains(out, "4 applied, 0 still") {
			t.Fatalf("retry: exit %d\n%s", code, out)
		}
		r.prints(t, "items", "3|last", "5|one")
		contains(t, r.must(t, "explain", "--flow", "items", "--key", "1"), "the newest event is the delete at sequence 9: no row is shown", "tombstone")
		contains(t, r.must(t, "explain", "--flow", "items", "--key", "2"), "the newest event is the delete at sequence 3")
	})
}

func TestQuarantineAndExplainBesideADaemon(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, events, eventFlows)
		p := r.start(t, nil)
		r.following(t, p)
		r.through(t, "insert into events values (7, 'g', '0', 1)")
		out, code := r.command(t, nil, "quarantine", "retry")
		if code != 3 {
			t.Errorf("retry beside a daemon: exit %d\n%s", code, out)
		}
		if out, code = r.command(t, nil, "quarantine", "discard", "--all", "--yes"); code != 3 {
			t.Errorf("discard beside a daemon: exit %d\n%s", code, out)
		}
		list, listed := r.command(t, nil, "quarantine", "list")
		story, explained := r.command(t, nil, "explain", "--flow", "past", "--key", "7")
		contains(t, list, "cannot be evaluated")
		contains(t, story, "began the version that is open")
		if listed != 0 || explained != 0 {
			t.Errorf("exit %d and %d\n%s\n%s", listed, explained, list, story)
		}
		rows, shown := r.command(t, nil, "show", "then", "--format", "csv")
		if contains(t, rows, "7,g,1,"); shown != 0 {
			t.Errorf("show: exit %d\n%s", shown, rows)
		}
		r.refused(t, 2, []string{"no flow has target nothing"}, "show", "nothing")
		// What was asked has not disturbed the daemon.
		r.through(t, "insert into events values (8, 'h', '1', 1)")
		p.stop(t)
	})
}

func TestExplainSaysWhatDecided(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed(k int, at timestamptz, name text, city text, op text, seq numeric);
insert into feed values (1, '2024-01-01 00:00:00+02', 'secret', 'a', 'U', 1), (1, '2024-01-01 00:00:00+02', 'secret', 'b', 'U', 2.50), (1, '2024-01-01 00:00:00+02', null, null, 'D', 6)`, `flows:
  - {source: public.feed, source_kind: feed, target: cur, keys: [k, at], sequence_by: seq, apply_as_deletes: "op = 'D'", apply_as_truncates: "op = 'T'", except_column_list: [op, seq]}
  - {source: public.feed, source_kind: feed, name: past, target: hist, stored_as_scd_type: 2, keys: [k, at], sequence_by: seq, apply_as_deletes: "op = 'D'", except_column_list: [op, seq], track_history_column_list: [name]}`)
		r.refused(t, 3, []string{"has not been copied yet"}, "explain", "--flow", "cur", "--key", "1,x")
		r.once(t)
		explain := func(flow, key string, more ...string) string {
			t.Helper()
			return r.must(t, "explain", append([]string{"--flow", flow, "--key", key}, more...)...)
		}
		// A key is found however its time is spelled.
		out := explain("cur", "1,2023-12-31T22:00:00Z")
		contains(t, out, "the newest event is the delete at sequence 6: no row is shown", "delete (tombstone)", "first copy at ")
		out = explain("past", `"01","2024-01-01 00:00:00+02"`)
		contains(t, out, "it ended the version that began at 1, and none is open", "2.5", "continues the version that began at 1: tracked columns are equal", "ends the version that began at 1")
		if strings.Contains(out, "secret") {
			t.Errorf("values are shown:\n%s", out)
		}
		contains(t, explain("hist", "1,2023-12-31 22:00:00+00", "--show-values"), "name=secret, city=b")
		contains(t, explain("past", "9,2023-12-31 22:00:00+00"), "nothing is remembered of this key")
		r.exec(t, "insert into feed values (9, '2023-12-31 22:00:00+00', 'secret', null, 'U', null)", "insert into feed values (null, null, null, null, 'T', 4)")
		r.once(t)
		contains(t, explain("cur", "9,2023-12-31 22:00:00+00"), "is in quarantine", "the sequence is NULL", "a truncate came at sequence 4")
		contains(t, r.must(t, "status"), "TRUNCATED AT")

		for _, c := range []struct {
			flow, key, want string
			code            int
		}{
			{"nobody", "1", "there are", 2}, {"past", "1", "the key of", 2}, {"past", "x,2024-01-01", "the value for k", 2}, {"past", "1,2024,3", "has 3 values", 2},
		} {
			r.refused(t, c.code, []string{c.want}, "explain", "--flow", c.flow, "--key", c.key)
		}
		r.refused(t, 2, []string{"--flow and --key"}, "explain", "--flow", "past")
	})
}
