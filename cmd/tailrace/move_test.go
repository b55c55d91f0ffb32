package main

import (
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

const moving = `create table t (id int primary key, name text, n numeric(10,2), doc jsonb, at timestamptz);
alter table t replica identity full;
insert into t select i, 'name ' || i, i / 4.0, json_build_object('i', i)::jsonb, '2024-01-01' from generate_series(1, 2000) i;
create table h (id int primary key, v text); alter table h replica identity full; insert into h values (1, 'a');
create table p (id int primary key, a text, b text); alter table p replica identity full; insert into p values (1, 'a', 'b'), (2, 'a', 'b'), (3, 'a', 'b')`

// A type 1 target moves to the lane of flows with a sequence, if that is the position,
// and then holds what it would hold had it been there from the beginning.
func TestATargetMovesToTheSequenceOfPositions(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		const ordered, position = "{source: public.t}", `{source: public.t, sequence_by: _lsn}`
		r := newRig(t, server, kind, moving, "flows:\n  - "+ordered+"\n  - {source: public.h, target: hist, stored_as_scd_type: 2}\n  - {source: public.p}")
		r.once(t)
		r.exec(t, "delete from t where id % 10 = 0", "update t set n = -n where id % 7 = 0", "insert into t select i, 'new', 1 from generate_series(3000, 3010) i")
		r.once(t)
		r.exec(t, "delete from t where id between 100 and 120", "update t set id = id + 10000 where id between 130 and 140", "alter table t add column more text", "update t set more = 'x' where id < 50")

		// Other sequences, and histories, are refused and change nothing.
		r.reconfigure(t, ordered, "{source: public.t, sequence_by: at}")
		r.refused(t, 3, []string{"nothing is remembered", "--overwrite"}, "run", "--once")
		r.refused(t, 1, []string{"nothing is remembered"}, "check")
		r.reconfigure(t, "{source: public.t, sequence_by: at}", ordered)
		r.reconfigure(t, "stored_as_scd_type: 2}", "stored_as_scd_type: 2, sequence_by: _commit_time}")
		r.refused(t, 3, []string{"--overwrite"}, "run", "--once")
		r.reconfigure(t, "stored_as_scd_type: 2, sequence_by: _commit_time}", "stored_as_scd_type: 2}")

		// Killed in the middle of the move nothing has happened, and the old way goes on.
		r.reconfigure(t, ordered, position)
		contains(t, r.must(t, "check"), "from the next run on")
		p := r.start(t, []string{"TAILRACE_KILL_AT=rows remembered"})
		if code := p.wait(t, time.Minute); code != -1 {
			t.Fatalf("it was not killed in the move: %d\n%s", code, tail(p.output.String()))
		}
		r.reconfigure(t, position, ordered)
		r.exec(t, "delete from t where id between 200 and 203")
		r.once(t)
		r.same(t)
		r.exec(t, "update t set name = 'between' where id between 210 and 250", "delete from t where id between 300 and 310")

		r.reconfigure(t, ordered, position)
		r.reconfigure(t, "{source: public.p}", "{source: public.p, sequence_by: _lsn, ignore_null_updates: true}")
		r.exec(t, "update p set a = null, b = 'new' where id = 1", "delete from p where id = 2", "insert into p values (2, null, 'again')")
		contains(t, r.once(t), "kept by the position of events")
		r.holds(t, "p", []string{"id", "a", "b"}, "1 a new", "2 ∅ again", "3 a b")
		if out := r.once(t); strings.Contains(out, "kept by the position") {
			t.Errorf("it moved twice\n%s", out)
		}
		all := "select * from t"
		r.equalRows(t, "t", all)
		for range 2 {
			r.exec(t, "delete from t where id % 11 = 0", "update t set n = n + 1, more = null where id % 5 = 0", "update t set id = id + 20000 where id between 400 and 410",
				"begin; delete from t where id between 500 and 600; insert into t (id, name) select i, 'back' from generate_series(550, 560) i; commit", "insert into t (id) values (500), (100)", "delete from t where id = 100")
			r.once(t)
			r.equalRows(t, "t", all)
		}
		contains(t, r.must(t, "verify"), "differences of", "keys and columns compared with the remembered events")
		contains(t, r.must(t, "explain", "--flow", "t", "--key", "1"), "a row is shown", "first copy at")
		r.must(t, "status", "--check")

		// And not back.
		r.reconfigure(t, position, ordered)
		r.refused(t, 3, []string{"put sequence_by back", "--overwrite"}, "run", "--once")
		r.refused(t, 1, []string{"put sequence_by back"}, "check")
		r.reconfigure(t, ordered, position)
		r.once(t)
		r.reconfigure(t, position, ordered)
		r.reconfigure(t, "{source: public.p, sequence_by: _lsn, ignore_null_updates: true}", "{source: public.p}")
		r.once(t, "--overwrite")
		r.once(t)
		r.same(t)
	})
}
