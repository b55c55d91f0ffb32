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

// Each run takes one snapshot of a table: rows that are equal are not written, others
// come, change and go at its version; of a target with a history and of one without.
func TestATableIsTakenAsSnapshots(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table city (id int primary key, name text, note text);
			insert into city values (1,'Oaxaca',null),(2,'Monterrey','m'),(3,'Tijuana',null)`,
			`flows:
  - {target: city_now, snapshot: {relation: city, version: counter}}
  - {target: city_history, stored_as_scd_type: 2, snapshot: {query: "select id, name, note from city", version: counter, max_delete_share: 1}, keys: [id], track_history_column_list: [name]}
`)
		r.once(t)
		r.holds(t, "city_now", []string{"id", "name"}, "1 Oaxaca", "2 Monterrey", "3 Tijuana")
		r.holds(t, "city_history", []string{"id", "name", "__START_AT", "__END_AT"}, "1 Oaxaca 0 ∅", "2 Monterrey 0 ∅", "3 Tijuana 0 ∅")
		r.exec(t, `delete from city where id = 1`, `update city set name = 'Carmel' where id = 2`, `update city set note = 'n' where id = 3`,
			`insert into city values (4,'Death Valley',null),(6,'Kings Canyon',null)`)
		out := r.once(t)
		contains(t, out, "rows=4", "new=2", "changed=2", "gone=1")
		r.holds(t, "city_now", []string{"id", "name"}, "2 Carmel", "3 Tijuana", "4 Death Valley", "6 Kings Canyon")
		r.holds(t, "city_history", []string{"id", "name", "note", "__START_AT", "__END_AT"},
			"1 Oaxaca ∅ 0 1", "2 Monterrey m 0 1", "2 Carmel m 1 ∅", "3 Tijuana n 0 ∅", "4 Death Valley ∅ 1 ∅", "6 Kings Canyon ∅ 1 ∅")
		out = r.once(t) // nothing differs
		contains(t, out, "new=0", "changed=0", "gone=0")
		r.same(t)
		status := r.must(t, "status", "--check")
		contains(t, status, "SNAPSHOT VERSION")

		// What cannot be right is refused, and said until a good one comes.
		r.exec(t, `delete from city where id <> 2`)
		r.refused(t, 3, []string{"would delete 3 of the 4 rows", "--max-delete-share"}, "run", "--once")
		r.holds(t, "city_now", []string{"id"}, "2", "3", "4", "6")
		r.holds(t, "city_history", []string{"id", "__START_AT", "__END_AT"}, "1 0 1", "2 0 1", "2 1 ∅", "3 0 3", "4 1 3", "6 1 3")
		r.refused(t, 1, []string{"problem: target", "would delete 3"}, "status", "--check")
		r.once(t, "--max-delete-share", "1")
		r.holds(t, "city_now", []string{"id"}, "2")
		r.must(t, "status", "--check")
		r.same(t)
	})
}

// Snapshots and feeds write one target: each event counts by its sequence, whether it
// came before the snapshot or after, and what a snapshot does not hold is gone unless it
// came back above it.
func TestSnapshotsAndAFeedFillOneTarget(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (k int, v text, op text, n bigint);
			create table whole (k int, v text); create table at_version (n bigint);
			insert into feed values (1,'a1','u',100),(2,'b1','u',110),(9,'z','u',120)`,
			`flows:
  - {source: feed, source_kind: feed, target: t, name: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'd'", except_column_list: [op, n]}
  - {target: t, name: whole, keys: [k], snapshot: {relation: whole, version: {query: "select n from at_version"}, max_delete_share: 0.7}}
`)
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 a1", "2 b1", "9 z")
		r.exec(t, `insert into whole values (1,'a2'),(3,'c1')`, `insert into at_version values (150)`)
		contains(t, r.once(t), "version=150", "new=1", "changed=1", "gone=2")
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "3 c1")
		r.exec(t, `insert into feed values (2,'b2','u',160),(1,'old','u',140),(3,null,'d',170),(9,'late','u',149),(1,'tie','u',150)`)
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "2 b2")
		r.exec(t, `insert into feed values (7,'new','u',300)`)
		r.once(t) // the version is the same: no snapshot
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "2 b2", "7 new")
		r.exec(t, `update at_version set n = 200`, `delete from whole where k = 3`)
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "7 new")
		r.same(t)

		r.exec(t, `update at_version set n = 180`)
		r.refused(t, 3, []string{"OUT_OF_ORDER_SNAPSHOT_VERSION"}, "run", "--once")
		r.exec(t, `update at_version set n = null`)
		r.refused(t, 3, []string{"NULL_SNAPSHOT_VERSION"}, "run", "--once")
		r.exec(t, `delete from at_version`)
		contains(t, r.once(t), "there is no new snapshot")
		r.exec(t, `insert into at_version values (400)`, `insert into whole values (1,'twice')`)
		r.refused(t, 3, []string{"DUPLICATE_KEY_VIOLATION", "1 rows of the snapshot"}, "run", "--once")
		r.exec(t, `delete from whole where v = 'twice'`, `insert into whole values (null,'x')`)
		r.refused(t, 3, []string{"a key column is NULL"}, "run", "--once")
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "7 new")
		r.exec(t, `delete from whole where k is null`, `insert into whole values (7,'seven')`)
		r.once(t)
		r.holds(t, "t", []string{"k", "v"}, "1 a2", "7 seven")
		r.same(t)
	})
}

// A daemon takes a snapshot every so often and follows the feed in between.
func TestADaemonTakesSnapshotsBesideAFeed(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table item (k int primary key, v text); insert into item select g, 'v'||g from generate_series(1,500) g`,
			`flows:
  - {source: item, source_kind: table, target: t, name: log, sequence_by: _lsn}
  - {target: t, name: whole, snapshot: {relation: item, version: position, every: 1s}}
`)
		p := r.start(t, nil)
		p.says(t, time.Minute, "snapshot applied")
		r.exec(t, `update item set v = 'w'||k where k % 7 = 0`, `delete from item where k % 5 = 0`, `insert into item select g, 'n' from generate_series(501,600) g`,
			`alter table item add column more text`, `update item set more = 'm' where k < 10`)
		applied := func() int { return strings.Count(p.output.String(), "snapshot applied") }
		before := applied()
		eventually(t, time.Minute, "three more snapshots", func() bool { return applied() > before+2 })
		p.kill()
		r.once(t)
		got := sortedRows(r.held(t, `select cast(k as varchar), v, more from t`))
		want := sortedRows(query(t, server, r.source, `select k::text, v, more from item`))
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s", differing(got, want))
		}
		r.same(t)
	})
}

// A kill leaves a target as it was before the snapshot or as it is after it, and the next
// run goes on from there.
func TestASnapshotIsAppliedWholeOrNotAtAll(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, `create table item (k int primary key, v int, w text); insert into item select g, g % 7, 'w' from generate_series(1,400) g`,
			`flows:
  - {target: now, snapshot: {relation: item, version: counter, max_delete_share: 1}}
  - {target: past, stored_as_scd_type: 2, snapshot: {relation: item, version: counter, max_delete_share: 1}}
`)
		r.env = []string{"TAILRACE_BATCH_MAX_ROWS=50"}
		r.once(t)
		rows := func() string {
			return strings.Join(sortedRows(r.held(t, `select cast(k as varchar), cast(v as varchar), w from now`)), "\n")
		}
		open := func() string {
			return strings.Join(sortedRows(r.held(t, `select cast(k as varchar), cast(v as varchar), w from past where "__END_AT" is null`)), "\n")
		}
		source := func() string {
			return strings.Join(sortedRows(query(t, server, r.source, `select k::text, v::text, w from item`)), "\n")
		}
		for _, at := range []string{"snapshot read", "snapshot compared", "snapshot piece", "snapshot piece:3", "snapshot applied", "snapshot applied:2", "snapshot piece:5"} {
			before := source()
			r.exec(t, fmt.Sprintf(`update item set v = v + 1 where k %% 3 = %d`, rnd.IntN(3)), fmt.Sprintf(`delete from item where k %% 11 = %d`, rnd.IntN(11)),
				fmt.Sprintf(`insert into item select g, 0, 'back' from generate_series(1,500) g where g %% 5 = %d on conflict do nothing`, rnd.IntN(5)))
			if out, code := r.command(t, []string{"TAILRACE_KILL_AT=" + at}, "run", "--once"); code != -1 {
				t.Fatalf("not killed at %s: exit %d\n%s", at, code, tail(out))
			}
			after := source()
			for what, got := range map[string]string{"now": rows(), "past": open()} {
				if got != before && got != after {
					t.Fatalf("killed at %s: %s is neither as it was nor as the snapshot", at, what)
				}
			}
			r.once(t)
			if rows() != after || open() != after {
				t.Fatalf("after a kill at %s: a target is not as the source", at)
			}
		}
		r.same(t)
	})
}

// Snapshot files are drained in the order of their versions, each by itself; one that is
// late is left alone, and bad ones change nothing.
func TestSnapshotFilesAreTakenInTheOrderOfTheirVersions(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newFeedRig(t, server, kind, `flows:
  - {target: past, stored_as_scd_type: 2, keys: [id], snapshot: {path: 'in/s_(?P<version>[0-9]+)\.csv', format: csv, max_delete_share: 1}}
  - {target: now, keys: [id], snapshot: {path: 'in/s_(?P<version>[0-9]+)\.csv', format: csv}}
`)
		contains(t, r.once(t), "FIRST_SNAPSHOT_EMPTY")
		r.put(t, "in/s_2.csv", "id,city", "1,A", "2,B")
		r.put(t, "in/s_10.csv", "id,city", "2,B", "3,C")
		r.put(t, "in/s_4.csv", "id,city", "1,A", "2,X")
		out := r.once(t)
		if n := strings.Count(out, "snapshot applied"); n != 6 {
			t.Errorf("%d snapshots applied, want 6\n%s", n, out)
		}
		past := []string{"1 A 2 10", "2 B 2 4", "2 X 4 10", "2 B 10 ∅", "3 C 10 ∅"}
		r.holds(t, "past", []string{"id", "city", "__START_AT", "__END_AT"}, past...)
		r.holds(t, "now", []string{"id", "city"}, "2 B", "3 C")
		r.put(t, "in/s_3.csv", "id,city", "9,late")
		if out := r.once(t); strings.Contains(out, "snapshot applied") {
			t.Errorf("a late file was taken:\n%s", out)
		}
		r.holds(t, "past", []string{"id", "city", "__START_AT", "__END_AT"}, past...)
		r.put(t, "in/s_11.csv", "id,city", "2,B", "2,B2")
		r.refused(t, 3, []string{"DUPLICATE_KEY_VIOLATION", "at version 11"}, "run", "--once")
		r.put(t, "in/s_11.csv", "id,city", "2,B", "x,C")
		r.refused(t, 3, []string{"s_11.csv", "line 3"}, "run", "--once")
		r.put(t, "in/s_11.csv", "id,city", "2,B")
		r.put(t, "in/s_011.csv", "id,city", "2,B")
		r.refused(t, 3, []string{"have one version"}, "run", "--once")
		r.remove(t, "in/s_011.csv")
		r.once(t)
		r.holds(t, "now", []string{"id", "city"}, "2 B")
		r.same(t)

		// A daemon finds what comes later, and a target lives on without its files.
		for _, name := range []string{"2", "3", "4", "10", "11"} {
			r.remove(t, "in/s_"+name+".csv")
		}
		r.once(t)
		r.must(t, "status")
		p := r.start(t, nil)
		time.Sleep(time.Second)
		r.put(t, "in/s_20.csv", "id,city,more", "2,B,m")
		eventually(t, time.Minute, "the file is taken", func() bool { return strings.Count(p.output.String(), "snapshot applied") == 2 })
		p.stop(t)
		r.holds(t, "now", []string{"id", "city", "more"}, "2 B m")
		r.same(t)
	})
}

func (r *feedRig) remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(filepath.Join(r.dir, filepath.FromSlash(path))); err != nil {
		t.Fatal(err)
	}
}

// A MariaDB source gives snapshots of tables and of queries as well.
func TestMariaDBTablesAreTakenAsSnapshots(t *testing.T) {
	server, pg := dbtest.MariaDB(t), dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		database := server.Database(t)
		server.Exec(t, database, "CREATE TABLE item (k varchar(20) COLLATE utf8mb4_bin PRIMARY KEY, v decimal(20,4), d datetime(3), u bigint unsigned, b varbinary(9), note text)",
			"INSERT INTO item VALUES ('a', 1.5, '2024-01-01 10:00:00.25', 18446744073709551615, x'00ff', NULL), ('A', -2, '0099-01-01', 0, NULL, 'é'), ('c', 3, NULL, 7, '', '')")
		dest := freshDestination(t, pg, kind)
		r := &rig{server: pg, dest: dest, config: filepath.Join(t.TempDir(), "c.yaml")}
		text := fmt.Sprintf(`pipeline: %s
source: {kind: mysql, dsn: %q}
destination: {kind: %s, dsn: %q}
flows:
  - {target: item_now, snapshot: {relation: %s.item, version: position}}
  - {target: item_past, stored_as_scd_type: 2, keys: [k], snapshot: {query: "SELECT k, v, d, u, b FROM %[5]s.item WHERE v > -5", version: counter}}
`, uniqueName("p"), server.URL(database), kind, dest.dsn, database)
		if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.once(t)
		server.Exec(t, database, "CREATE TABLE other (x int)") // the log's position moves
		out := r.once(t)                                       // nothing differs, whatever the types
		if strings.Count(out, "new=0 changed=0 gone=0") != 2 {
			t.Errorf("equal rows count as changed:\n%s", out)
		}
		server.Exec(t, database, "UPDATE item SET v = 9 WHERE k = 'A'", "DELETE FROM item WHERE k = 'c'", "INSERT INTO item VALUES ('d', 0, NULL, NULL, NULL, NULL)")
		r.once(t)
		r.holds(t, "item_now", []string{"k", "v", "u", "note"}, "a 1.5000 18446744073709551615 ∅", "A 9.0000 0 é", "d 0.0000 ∅ ∅")
		r.holds(t, "item_past", []string{"k", "v", "__START_AT", "__END_AT"}, "a 1.5000 0 ∅", "A -2.0000 0 2", "A 9.0000 2 ∅", "c 3.0000 0 2", "d 0.0000 2 ∅")
		r.same(t)
	})
}

// A snapshot that is taken once fills a target that a feed goes on with, and is taken
// again when the target is made anew.
func TestASnapshotTakenOnceIsABackfill(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (k int, v text, op text, n bigint); create table whole (k int primary key, v text);
			insert into whole select g, 'old' from generate_series(1,5) g`,
			`flows:
  - {target: t, name: seed, once: true, snapshot: {relation: whole, version: counter, every: 1s}}
  - {source: feed, source_kind: feed, target: t, name: live, keys: [k], sequence_by: n, apply_as_deletes: "op = 'd'", column_list: [k, v]}
`)
		r.once(t)
		r.exec(t, `insert into feed values (1,'new','u',7),(2,null,'d',8)`, `update whole set v = 'newer'`, `delete from whole where k = 5`)
		if out := r.once(t); strings.Contains(out, "snapshot applied") {
			t.Errorf("taken twice:\n%s", out)
		}
		r.holds(t, "t", []string{"k", "v"}, "1 new", "3 old", "4 old", "5 old")
		r.must(t, "refresh", "--flow", "live", "--full")
		r.holds(t, "t", []string{"k", "v"}, "1 new", "3 newer", "4 newer")
		r.same(t)
	})
}
