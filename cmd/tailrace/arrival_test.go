package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// diesAt runs until a point of a crash.
func (r *rig) diesAt(t testing.TB, point string) {
	t.Helper()
	out, code := r.command(t, []string{"TAILRACE_KILL_AT=" + point}, "run", "--once")
	if code != -1 {
		t.Fatalf("point %q was not reached: exit %d\n%s", point, code, tail(out))
	}
}

// feedFlow is a flow of events k, a, b, op, n into a current table or a history.
func feedFlow(source, name, target, more string) string {
	rescued := ""
	if !strings.Contains(source, ".") {
		rescued = ", _rescued_data"
	} else {
		more += ", source_kind: feed"
	}
	if target == "past" {
		more += ", stored_as_scd_type: 2"
	}
	return fmt.Sprintf("  - {source: %s, name: %s_%s, target: %s, keys: [k], sequence_by: n, apply_as_deletes: \"op = 'D'\", except_column_list: [op, n%s]%s}\n", source, target, name, target, rescued, more)
}

// Flows come to targets that are there: a feed table, a seed table, files. The copy is
// killed and made again while the feeds grow; the targets hold what they would hold had
// all flows been there from the start.
func TestFlowsThatComeToATarget(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		columns := "(k int, a text, b int, op text, n bigint)"
		r := newBesideRig(t, server, kind, "create table events"+columns+"; create table second"+columns+"; create table seed"+columns, "batch: {max_rows: 40}\n#relations\nflows:\n#front\n"+
			feedFlow("public.events", "live", "now", "")+feedFlow("public.events", "live", "past", "")+"#more\n")
		w := newMixedFeed(rnd, 400)
		w.tell(t, r.rig, "events", 300)
		w.tell(t, r.rig, "second", 300)
		w.tell(t, r.rig, "seed", 300)
		w.put(t, r, "landing", 300)
		r.once(t)
		w.tell(t, r.rig, "second", 50)
		before := w.told
		w.told = w.told[:300]
		w.expect(t, r.rig, "now", "past")
		w.told = before

		r.reconfigure(t, "#relations", "relations: {landing: {path: \""+filepath.ToSlash(r.dir)+"/landing/*.jsonl\", format: jsonl, "+besideColumns+"}}")
		r.reconfigure(t, "#front\n", feedFlow("public.second", "second", "now", "")+feedFlow("public.second", "second", "past", "")+feedFlow("landing", "files", "now", ""))
		r.reconfigure(t, "#more", feedFlow("public.seed", "seed", "now", ", once: true")+feedFlow("public.seed", "seed", "past", ", once: true")+feedFlow("landing", "files", "past", "")+"#more")
		for _, point := range []string{"flows arrived", "rows written:3", "rows written:7", "flow copied:1", "rows written:4", "flow copied:3"} {
			r.diesAt(t, point)
			w.tell(t, r.rig, "events", 30)
			w.tell(t, r.rig, "second", 30)
			w.put(t, r, "landing", 30)
		}
		out := r.once(t)
		w.expect(t, r.rig, "now", "past")
		contains(t, r.must(t, "status", "--check"), "now_second", "past_seed", "now_files")

		// What comes later: the seed is not looked at, the others are followed.
		r.exec(t, "insert into seed values (100000, 'late', 1, 'U', 1)")
		for range 3 {
			w.tell(t, r.rig, "events", 50)
			w.tell(t, r.rig, "second", 50)
			w.put(t, r, "landing", 50)
			out = r.once(t)
		}
		if strings.Contains(out, "flow is new") || strings.Contains(out, "flow copied") {
			t.Errorf("a flow arrived again:\n%s", tail(out))
		}
		w.expect(t, r.rig, "now", "past")

		// A renamed feed is read again, into what it has written, and nothing changes; one
		// that is taken out leaves its rows.
		r.reconfigure(t, "name: past_second", "name: past_other")
		r.reconfigure(t, feedFlow("landing", "files", "past", ""), "")
		w.tell(t, r.rig, "second", 50)
		contains(t, r.once(t), "flow=past_other", "a renamed flow is a new flow", "flow=past_files")
		w.expect(t, r.rig, "now", "past")
		contains(t, r.must(t, "status"), "left")

		// Under its old name a flow may read another table, from the beginning.
		r.exec(t, "create table third"+columns)
		w.tell(t, r.rig, "third", 50)
		r.reconfigure(t, "source: public.second, name: past_other", "source: public.third, name: past_other")
		r.reconfigure(t, "source: public.second, name: now_second", "source: public.third, name: now_second")
		for range 2 {
			out = r.once(t)
			w.expect(t, r.rig, "now", "past")
		}
		if strings.Contains(out, "flow is new") {
			t.Errorf("a flow arrived again:\n%s", tail(out))
		}

		// All anew: files are taken again for both targets.
		r.reconfigure(t, "#more", feedFlow("landing", "files", "past", "")+feedFlow("public.second", "again", "now", "")+feedFlow("public.second", "again", "past", ""))
		r.refused(t, 3, []string{"a relation of its own"}, "run", "--once")
		w.told = append(w.told, []string{"100000", "late", "1", "U", "1"})
		r.must(t, "backfill", "--table", "now", "--table", "past", "--overwrite")
		w.tell(t, r.rig, "events", len(w.left))
		r.once(t)
		w.expect(t, r.rig, "now", "past")
		if out := r.must(t, "status", "--check"); strings.Contains(out, "left") {
			t.Errorf("a flow that left is still there:\n%s", out)
		}
	})
}

const arrivalTables = `
create table a(id int primary key, v text, updated_at timestamptz not null default clock_timestamp());
create table b(id int primary key, v text, updated_at timestamptz not null default clock_timestamp());
alter table a replica identity full; alter table b replica identity full;
insert into a select i, 'a' from generate_series(1, 100) i;
insert into b select i, 'b' from generate_series(1001, 1100) i;
`

const arrivalFlow = `  - {source: public.%s, name: %[1]s, target: %[2]s, keys: [id], sequence_by: updated_at, except_column_list: [updated_at]%[3]s}
`

// A table that comes to a target is followed from its first copy on, if that died: rows
// that went away before the second one are gone. Under a new name it goes on where it
// was; what was not followed for a while is not believed.
func TestTablesThatComeToATarget(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		type2 := ", stored_as_scd_type: 2"
		r := newRig(t, server, kind, arrivalTables, "batch: {max_rows: 10}\nflows:\n"+fmt.Sprintf(arrivalFlow, "a", "now", "")+fmt.Sprintf(arrivalFlow, "a", "past", type2)+"#more\n")
		r.once(t)
		r.reconfigure(t, "#more", fmt.Sprintf(arrivalFlow, "b", "now", "")+fmt.Sprintf(arrivalFlow, "b", "past", type2)+"#more")
		change := func(n int) {
			r.exec(t, fmt.Sprintf("delete from b where id %% 10 = %d", n), fmt.Sprintf("update b set v = 'b%d', updated_at = clock_timestamp() where id %% 10 = %d", n, n+1), fmt.Sprintf("update a set id = id + 10000, updated_at = clock_timestamp() where id %% 10 = %d", n))
		}
		check := func() {
			t.Helper()
			want := sortedRows(query(t, server, r.source, "select id, v from a union all select id, v from b"))
			r.holds(t, "now", []string{"id", "v"}, want...)
			if got := sortedRows(r.held(t, `select cast(id as varchar), v from "past" where "__END_AT" is null`)); !slices.Equal(got, want) {
				t.Errorf("open versions:\n%s", differing(got, want))
			}
			contains(t, r.must(t, "verify"), "now: 0 differences of", ": 0 broken)")
		}
		for i, point := range []string{"rows written:4", "flow copied:1", "rows written:4"} {
			r.diesAt(t, point)
			change(i)
		}
		r.once(t)
		check()
		change(3)
		r.once(t)
		check()

		r.reconfigure(t, "name: b, target: now", "name: renamed, target: now")
		change(4)
		r.diesAt(t, "rows written:2")
		change(5)
		contains(t, r.once(t), "flow copied")
		check()
		r.reconfigure(t, "name: renamed, target: now", "name: b, target: now") // and back
		change(6)
		r.once(t)
		check()

		flow := fmt.Sprintf(arrivalFlow, "b", "now", "")
		r.reconfigure(t, flow, "#out\n")
		r.once(t)
		change(7)
		r.once(t)
		r.reconfigure(t, "#out\n", flow)
		for range 2 {
			r.refused(t, 3, []string{"flow b", "target", "deletes of that time were missed", "tailrace backfill --table"}, "run", "--once")
		}
		r.must(t, "backfill", "--table", "now", "--overwrite")
		r.once(t)
		check()

		// A new flow that cannot be followed is refused, and parks nothing.
		r.exec(t, "create table c(id int not null, v text, updated_at timestamptz)")
		r.reconfigure(t, "#more", fmt.Sprintf(arrivalFlow, "c", "now", ""))
		r.refused(t, 3, []string{`ALTER TABLE "public"."c" `}, "run", "--once")
		r.exec(t, "alter table c add primary key (id)", "insert into c values (5000, 'c', now())")
		r.once(t)
		r.exec(t, "delete from c")
		change(8)
		r.once(t)
		check()
	})
}

// The bookkeeping of the version before flows had states of their own: what it followed
// goes on, and a flow that came with the new version is copied. The versions before had
// no other destinations than these.
func TestBookkeepingWithoutStatesOfFlows(t *testing.T) {
	server := dbtest.Postgres(t)
	over(t, []string{"duckdb", "postgres"}, func(t *testing.T, kind string) {
		rnd := seeded(t)
		columns := "(k int, a text, b int, op text, n bigint)"
		r := newBesideRig(t, server, kind, "create table events"+columns+"; create table second"+columns, "flows:\n"+
			feedFlow("public.events", "live", "now", "")+feedFlow("public.events", "live", "past", "")+feedFlow("public.second", "second", "past", "")+"#more\n")
		w := newMixedFeed(rnd, 100)
		w.tell(t, r.rig, "events", 100)
		w.tell(t, r.rig, "second", 100)
		r.once(t)
		forget := "drop table _tailrace.flows"
		if kind == "duckdb" {
			inDuckDB(t, r.dest.dsn, forget)
		} else {
			r.atTarget(t, forget)
		}
		r.must(t, "status", "--check")
		w.tell(t, r.rig, "events", 50)
		w.tell(t, r.rig, "second", 50)
		r.reconfigure(t, "#more", feedFlow("public.second", "second", "now", ""))
		out := r.once(t)
		contains(t, out, "flow=now_second")
		if n := strings.Count(out, "flow copied"); n != 1 {
			t.Errorf("%d flows were copied:\n%s", n, tail(out))
		}
		w.expect(t, r.rig, "now", "past")
		if rows := r.held(t, "select flow from _tailrace.flows order by flow"); fmt.Sprint(rows) != "[[now_live] [now_second] [past_live] [past_second]]" {
			t.Errorf("states of flows: %v", rows)
		}
		w.tell(t, r.rig, "second", len(w.left))
		r.once(t)
		w.expect(t, r.rig, "now", "past")
	})
}
