package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// A copy without a pipeline: filled targets, and nothing else on either side that a
// later run could take for a place to go on from.
func TestNoFollowLeavesRowsAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, largeTables+"create table feed(id int, n int, op text); insert into feed values(1, 1, 'w'), (1, 2, 'w'), (2, 1, 'w'), (2, 2, 'd');",
			inParts+"flows: [{source: public.*, except: [public.feed]}, {source: public.small, target: small_history, stored_as_scd_type: 2}, {source: public.feed, target: folded, source_kind: feed, keys: [id], sequence_by: n, apply_as_deletes: \"op = 'd'\"}]")
		r.must(t, "backfill", "--no-follow", "--table", "small")
		r.equalRows(t, "small", "select * from small")
		r.leftNothing(t)
		r.refused(t, 3, []string{"small", "--overwrite"}, "backfill", "--no-follow")
		r.must(t, "backfill", "--no-follow", "--overwrite")
		for _, table := range []string{"big", "wide", "split", "log", "small"} {
			r.equalRows(t, table, "select * from "+table)
		}
		if _, rows := r.shown(t, "folded"); fmt.Sprint(rows) != "[[1 2 w]]" {
			t.Errorf("the feed gives %v", rows)
		}
		if all, open := r.versions(t, "small_history"); all != 10 || open != 10 {
			t.Errorf("%d versions, %d open", all, open)
		}
		r.leftNothing(t)
		contains(t, r.must(t, "status"), "not started")
		r.refused(t, 3, []string{"holds rows, and no mark", "--overwrite"}, "run", "--once")
		r.leftNothing(t)

		r.once(t, "--overwrite")
		r.same(t)
		r.refused(t, 3, []string{"has a mark"}, "backfill", "--no-follow", "--overwrite")
		r.exec(t, "insert into small values(11)")
		r.once(t)
		r.same(t)
	})
}

// Whatever ends a copy, and where: no slot stays that `status` does not name, and
// without --no-follow the next start ends well.
func TestStoppedCopiesLeaveNoUnknownSlot(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, largeTables, "hydrate: {workers: 2, split_bytes: 64KiB, max_rate: 2MiB}\nflows: [{source: public.big}, {source: public.small}]")
		known := func(when string) {
			t.Helper()
			var named string
			eventually(t, patience, when+": every slot is named by status", func() bool {
				var st status
				if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &st); err != nil {
					t.Fatal(err)
				}
				named = st.Source.Slot
				return r.one(t, "select count(*) from pg_replication_slots where database = current_database() and slot_name <> '"+named+"'") == "0"
			})
		}
		for _, c := range []string{"interrupted", "killed"} {
			p := start(t, nil, r.args("backfill", "--no-follow", "--overwrite")...)
			p.says(t, patience, "msg=copying")
			if c == "killed" {
				p.kill()
			} else {
				p.cmd.Process.Signal(os.Interrupt)
				if code := p.wait(t, patience); code != 3 || !strings.Contains(p.output.String(), "before every target was filled") {
					t.Errorf("a stop: exit %d\n%s", code, tail(p.output.String()))
				}
			}
			eventually(t, patience, c+": nothing is left", func() bool {
				return r.one(t, "select count(*) from pg_replication_slots where database = current_database()") == "0"
			})
		}
		r.atTargets(t, kind, "drop table if exists big", "drop table if exists small")
		for _, point := range []string{"mark creating", "slot made", "mark copying", "table loaded:1"} {
			r.dies(t, point)
			known("killed at " + point)
		}
		r.reconfigure(t, "[{source: public.big}", "[{source: public.log}, {source: public.big}")
		for _, c := range []string{"interrupted", "killed"} {
			p := r.start(t, nil)
			p.says(t, patience, "msg=copying")
			if c == "killed" {
				p.kill()
			} else {
				p.stop(t)
			}
			known(c)
		}
		r.reconfigure(t, ", max_rate: 2MiB", "")
		r.once(t)
		r.same(t)
	})
}

// atTargets runs statements on a destination of either kind.
func (r *rig) atTargets(t testing.TB, kind string, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if kind == "duckdb" {
			inDuckDB(t.(*testing.T), r.dest.dsn, sql)
		} else {
			r.atTarget(t, sql)
		}
	}
}
