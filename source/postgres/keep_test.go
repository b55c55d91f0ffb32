package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// read follows from a position to the log's end, whether anybody has confirmed it or not.
func (f *fixture) read(from change.Position) (txs []change.Tx) {
	f.t.Helper()
	head, err := f.source.Head(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	st := followWith(f.t, f.source, from, source.FollowOptions{}, nil)
	for {
		tx := st.any()
		if len(tx.Changes) > 0 {
			txs = append(txs, tx)
		}
		if tx.Last && !tx.End.Before(head) {
			st.stop()
			return txs
		}
	}
}

// confirm moves the live slot as a pipeline does whose mark is at p.
func (f *fixture) confirm(from, p change.Position) {
	f.t.Helper()
	st := followWith(f.t, f.source, from, source.FollowOptions{}, nil)
	eventually(f.t, "the live slot is read", 20*time.Second, func() bool { return f.state().Slot.Active })
	f.source.Confirm(p)
	eventually(f.t, "the live slot is confirmed", 20*time.Second, func() bool { return !f.confirmed().Before(p) })
	st.stop()
}

func (f *fixture) end() change.Position {
	f.t.Helper()
	p, err := f.source.Head(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

func (f *fixture) keep(p change.Position) {
	f.t.Helper()
	if err := f.source.Keep(testContext(f.t), p); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) kept() source.Kept {
	f.t.Helper()
	k, err := f.source.Kept(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	return k
}

func (f *fixture) back(p change.Position) {
	f.t.Helper()
	if err := f.source.Return(testContext(f.t), p); err != nil {
		f.t.Fatal(err)
	}
}

func wantRefusal(t *testing.T, what string, err error, says, remedy string) {
	t.Helper()
	if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), says) || !strings.Contains(fault.RemedyOf(err), remedy) {
		t.Errorf("%s: want a refusal that says %q with the remedy %q: %v", what, says, remedy, err)
	}
}

func list(txs []change.Tx) string {
	var out []string
	for _, tx := range txs {
		out = append(out, fmt.Sprintf("%s %d %s", tx.End, tx.XID, show(tx)))
	}
	return strings.Join(out, "\n")
}

// grow writes some MiB of log, a file of it at least, and has the server forget what it can.
func (f *fixture) grow() {
	f.t.Helper()
	f.exec("CREATE TABLE IF NOT EXISTS bulk (v text)", "INSERT INTO bulk SELECT repeat('x', 1000) FROM generate_series(1, 3000)", "SELECT pg_switch_wal()", "CHECKPOINT")
}

func TestReturnGivesTheLogFromAPointOnAgain(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE going (id int PRIMARY KEY)", "CREATE TABLE held (id int PRIMARY KEY)")
		f.exec("INSERT INTO t VALUES (1, 'before')", "INSERT INTO going VALUES (1)")
		before := f.read(f.from)
		point := before[len(before)-1].End
		f.confirm(f.from, point)
		f.keep(point)
		if k := f.kept(); !k.Exists || k.Lost || k.From != point || k.Name != f.source.names.slot+"_keep" {
			t.Fatalf("kept: %+v; the point is %s", k, point)
		}

		// A transaction is open over the point's time; tables are added, altered and dropped;
		// and the server cleans up whatever it may.
		open := server.Connect(t, f.dsn)
		if _, err := open.Exec(testContext(t), "BEGIN; INSERT INTO held VALUES (2)"); err != nil {
			t.Fatal(err)
		}
		f.exec("INSERT INTO t VALUES (3, 'old layout')", "ALTER TABLE t ADD COLUMN w int", "INSERT INTO t VALUES (4, 'new layout', 4)",
			"CREATE TABLE added (id int PRIMARY KEY)", "INSERT INTO added VALUES (1)")
		f.publish()
		f.exec("INSERT INTO added VALUES (2)", "UPDATE going SET id = 2", "DROP TABLE going", "ALTER TABLE t DROP COLUMN v")
		middle := f.end()
		if _, err := open.Exec(testContext(t), "COMMIT"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.grow()
		}
		f.exec("UPDATE t SET w = 5 WHERE id = 4", "VACUUM FULL pg_attribute", "VACUUM FULL pg_class", "VACUUM pg_publication_rel", "VACUUM pg_type")
		after := f.read(point)
		var shown []string
		for _, tx := range after {
			shown = append(shown, show(tx))
		}
		wantText(t, "changes", strings.Join(shown, "\n"), strings.Join([]string{"INSERT t (3, old layout)", "INSERT t (4, new layout, 4)", "INSERT added (2)",
			"UPDATE going K(1) -> (2)", "INSERT held (2)", "UPDATE t (4, 5)"}, "\n"))
		end := f.end()
		f.confirm(point, end)
		f.keep(point) // nothing new
		f.grow()
		f.confirm(end, f.end())
		st := f.state()
		if k := st.Keep; !k.Exists || k.From != point || k.Bytes < 48<<20 || st.Slot.Retained >= k.Bytes || f.kept().From != point {
			t.Errorf("state: the live slot keeps %d bytes, beside %+v", st.Slot.Retained, k)
		}

		f.back(point)
		if st := f.state(); !st.Slot.Exists || point.Before(st.Slot.Confirmed) || !st.Keep.Exists || st.PublicationNewer {
			t.Errorf("returned: %+v", st)
		}
		wantText(t, "again", list(f.read(point)), list(after))
		f.confirm(point, after[1].End)
		f.back(point) // and again, after a part
		wantText(t, "once more", list(f.read(point)), list(after))
		f.back(middle) // there is nothing to do
		if at := f.confirmed(); at != point {
			t.Errorf("a slot that can be followed was replaced: it is at %s", at)
		}

		// The oldest point goes.
		f.confirm(point, end)
		f.keep(middle)
		if k := f.kept(); k.From != middle || k.Lost {
			t.Errorf("moved: %+v, want %s", k, middle)
		}
		wantRefusal(t, "a point before", f.source.Return(testContext(t), point), point.String(), "later point")
		f.back(middle)
		wantText(t, "from the middle", list(f.read(middle)), list(after[4:]))

		for range 2 {
			if err := f.source.Unkeep(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		if k := f.kept(); k.Exists {
			t.Errorf("kept on: %+v", k)
		}
		f.confirm(middle, end)
		wantRefusal(t, "nothing kept", f.source.Return(testContext(t), middle), "does not exist", "")
	})
}

func TestReturnThatWasKilledIsFinished(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		f.exec("INSERT INTO t VALUES (1)")
		point := f.end()
		f.confirm(f.from, point)
		f.keep(point)
		f.exec("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
		f.confirm(point, f.end())
		f.exec("SELECT pg_drop_replication_slot(" + literal(f.source.names.slot) + ")") // and no copy

		second := newSource(t, f.source.cfg)
		f.source = second
		f.back(point)
		var rows []string
		for _, tx := range f.read(point) {
			rows = append(rows, show(tx))
		}
		wantText(t, "rows", strings.Join(rows, "\n"), "INSERT t (2)\nINSERT t (3)")

		// An old session of ours still reads the slot.
		end := f.end()
		f.confirm(point, end)
		f.exec("INSERT INTO t VALUES (4)")
		st := followWith(t, f.source, end, source.FollowOptions{}, nil)
		eventually(t, "the slot is read", 10*time.Second, func() bool { return f.state().Slot.Active })
		third := newSource(t, f.source.cfg)
		if err := third.Return(testContext(t), point); err != nil {
			t.Fatal(err)
		}
		if err := st.ended(); err == nil {
			t.Error("Follow went on without its slot")
		}
		f.source = third
		if got := f.read(point); len(got) != 3 {
			t.Errorf("read:\n%s", list(got))
		}
	})
}

func TestLostKeepSlotCostsTheWindowAlone(t *testing.T) {
	t.Parallel()
	for _, server := range dbtest.Postgreses(t, dbtest.Setting("max_slot_wal_keep_size", "16MB"), dbtest.Setting("min_wal_size", "32MB"), dbtest.Setting("max_wal_size", "48MB")) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		lose := func(how func()) {
			t.Helper()
			point := f.end()
			f.keep(point)
			how()
			end := f.end()
			k := f.kept()
			if !k.Exists || !k.Lost || k.Why == "" {
				t.Fatalf("kept: %+v", k)
			}
			f.keep(end) // no error: Kept says it
			ctx := testContext(t)
			wantRefusal(t, k.Why, f.source.Return(ctx, point), "lost", "max_slot_wal_keep_size")
			if st := f.state(); st.Slot.Lost || !st.Slot.Exists || !st.Keep.Lost {
				t.Errorf("state: %+v", st)
			}
			findings, err := f.source.CheckKeep(ctx, 48*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			wantFinding(t, findings, false, "is lost: "+k.Why, "next one begins a new window")
			wantFinding(t, findings, false, "more than 16 MiB of log (max_slot_wal_keep_size)", "ALTER SYSTEM SET max_slot_wal_keep_size")
			if err := f.source.Unkeep(ctx); err != nil {
				t.Fatal(err)
			}
			f.keep(end)
			if k := f.kept(); !k.Exists || k.Lost || k.From != end {
				t.Errorf("begun anew: %+v", k)
			}
		}
		lose(func() {
			for range 4 {
				f.grow()
				f.exec("SELECT pg_replication_slot_advance(" + literal(f.source.names.slot) + ", pg_current_wal_lsn())")
				f.grow()
				f.exec("SELECT pg_replication_slot_advance(" + literal(f.source.names.slot) + ", pg_current_wal_lsn())")
			}
		})
		if server.Version() < 18 {
			continue
		}
		lose(func() {
			st := followWith(t, f.source, f.end(), source.FollowOptions{}, nil) // the live slot is in use
			f.exec("ALTER SYSTEM SET idle_replication_slot_timeout = '1s'", "SELECT pg_reload_conf()")
			eventually(t, "the slot is given up", 20*time.Second, func() bool {
				f.exec("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t", "CHECKPOINT")
				return f.kept().Lost
			})
			end := f.end()
			f.source.Confirm(end)
			eventually(t, "the live slot moves", 20*time.Second, func() bool { return !f.confirmed().Before(end) })
			findings, err := f.source.CheckKeep(testContext(t), 48*time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			wantFinding(t, findings, false, "not used for 1s (idle_replication_slot_timeout)", "ALTER SYSTEM SET idle_replication_slot_timeout = 0")
			f.exec("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")
			st.stop()
		})
	}
}

func TestKeepSlotNeedsAPlaceAndRights(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("max_replication_slots", "2"))
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)", "SELECT pg_create_physical_replication_slot('taken')")
	ctx := testContext(t)
	check := func(s *Source) []source.Finding {
		t.Helper()
		findings, err := s.CheckKeep(ctx, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return findings
	}
	wantRefusal(t, "no place", f.source.Keep(ctx, f.from), "max_replication_slots", "max_replication_slots")
	wantFinding(t, check(f.source), true, "needs a second replication slot", "ALTER SYSTEM SET max_replication_slots = '4'")
	if blocking(check(f.source)) != 1 {
		t.Errorf("findings: %+v", check(f.source))
	}

	// A slot of that name that is somebody else's.
	f.exec("SELECT pg_drop_replication_slot('taken')", "SELECT pg_create_physical_replication_slot("+literal(f.source.names.keep)+")")
	wantRefusal(t, "foreign", f.source.Keep(ctx, f.from), "physical", "pg_drop_replication_slot")
	if _, err := f.source.Kept(ctx); fault.KindOf(err) != fault.Operator {
		t.Errorf("kept: %v", err)
	}
	wantFinding(t, check(f.source), true, "physical", "pg_drop_replication_slot")
	if err := f.source.Unkeep(ctx); err != nil {
		t.Error(err)
	}
	if st := f.state(); st.Keep.Exists || f.query("SELECT count(*) FROM pg_replication_slots") != "2" {
		t.Errorf("a foreign slot: %+v", st.Keep)
	}
	f.exec("SELECT pg_drop_replication_slot(" + literal(f.source.names.keep) + ")")

	f.exec("CREATE ROLE weak LOGIN", "GRANT CREATE ON DATABASE "+ident(f.query("SELECT current_database()"))+" TO weak")
	cfg := f.source.cfg
	cfg.DSN = server.DSNAs("weak", "", f.query("SELECT current_database()"))
	weak := newSource(t, cfg)
	wantRefusal(t, "no right", weak.Keep(ctx, f.from), "weak", `ALTER ROLE "weak" REPLICATION`)
	wantFinding(t, check(weak), true, "weak may not copy and advance", `ALTER ROLE "weak" REPLICATION`)
	f.exec("ALTER ROLE weak REPLICATION")
	if blocking(check(weak)) != 0 {
		t.Errorf("findings: %+v", check(weak))
	}
	f.exec("REVOKE EXECUTE ON FUNCTION pg_copy_logical_replication_slot(name, name, boolean) FROM PUBLIC")
	wantFinding(t, check(weak), true, "weak may not execute", `GRANT EXECUTE ON FUNCTION pg_catalog.pg_copy_logical_replication_slot(name, name, boolean) TO "weak"`)
	f.exec("GRANT EXECUTE ON FUNCTION pg_copy_logical_replication_slot(name, name, boolean) TO PUBLIC")
	if err := weak.Keep(ctx, f.end()); err != nil {
		t.Error(err)
	}
	wantFinding(t, check(weak), false, "dead rows of the system catalogues", "rewind.keep")
}

func TestKeepSlotGoesWithThePipeline(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	there := func() string {
		return f.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name IN (" + literal(f.source.names.slot) + ", " + literal(f.source.names.keep) + ")")
	}
	f.keep(f.from)
	wantText(t, "kept", there(), "2")
	f.begin() // a new copy: nobody goes back to before it
	wantText(t, "begun anew", there(), "1")
	f.keep(f.from)
	if err := f.source.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantText(t, "released", there(), "0")

	// Of a slot that the user named, the keep slot is ours.
	cfg := f.source.cfg
	cfg.Slot = f.source.names.slot + "_own"
	f.exec("SELECT pg_create_logical_replication_slot(" + literal(cfg.Slot) + ", 'pgoutput')")
	f.source = newSource(t, cfg)
	f.begin()
	f.exec("INSERT INTO t VALUES (1)")
	point := f.end()
	f.confirm(f.from, point)
	f.keep(point)
	f.exec("INSERT INTO t VALUES (2)")
	f.confirm(point, f.end())
	f.back(point)
	if got := f.read(point); len(got) != 1 || show(got[0]) != "INSERT t (2)" {
		t.Errorf("read %s", list(got))
	}
	if err := f.source.Drop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantText(t, "named", there(), "1")
	if st := f.state(); st.Keep.Exists || !st.Slot.Exists {
		t.Errorf("%+v", st)
	}
	f.exec("SELECT pg_drop_replication_slot(" + literal(cfg.Slot) + ")")
}

func TestKeepCanBeCancelledAndEndsAnOlderOneOfOurs(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f.keep(f.from)
	f.exec("INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i")
	end := f.end()
	for wait := 2 * time.Millisecond; ; wait /= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		begin := time.Now()
		err := f.source.Keep(ctx, end)
		cancel()
		if err != nil && ctx.Err() != nil && time.Since(begin) < 5*time.Second {
			break
		}
		if err != nil || wait < time.Microsecond {
			t.Fatalf("not cancelled within %v: %v", wait, err)
		}
	}
	// Another reader of it, known as ours: an earlier process that still advances it.
	cfg := f.source.cfg
	cfg.Slot = f.source.names.keep
	earlier := newSource(t, cfg)
	st := followWith(t, earlier, f.kept().From, source.FollowOptions{}, nil)
	st.next()
	f.keep(end)
	if k := f.kept(); k.From != end {
		t.Errorf("kept: %+v, want %s", k, end)
	}
	if err := st.ended(); err == nil {
		t.Error("the earlier reader went on")
	}

	// And of one that is not ours.
	cfg.AppName = "somebody"
	other := followWith(t, newSource(t, cfg), end, source.FollowOptions{}, nil)
	f.exec("INSERT INTO t VALUES (0, '')")
	other.next()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := f.source.Keep(ctx, end); err == nil || ctx.Err() == nil {
		t.Errorf("a slot in use: %v", err)
	}
}

func TestKeepSlotOutlivesACrashOfTheServer(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Dedicated())
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("INSERT INTO t VALUES (1)")
	point := f.end()
	f.confirm(f.from, point)
	f.keep(point)
	f.exec("INSERT INTO t VALUES (2)")
	f.confirm(point, f.end())
	f.exec("CHECKPOINT", "INSERT INTO t VALUES (3)")
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := server.StartAgain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if k := f.kept(); !k.Exists || k.Lost || point.Before(k.From) {
		t.Errorf("kept: %+v", k)
	}
	f.back(point)
	var rows []string
	for _, tx := range f.read(point) {
		rows = append(rows, show(tx))
	}
	wantText(t, "rows", strings.Join(rows, "\n"), "INSERT t (2)\nINSERT t (3)")
}
