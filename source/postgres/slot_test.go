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

func (f *fixture) state() source.State {
	f.t.Helper()
	st, err := f.source.State(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	return st
}

func TestStateTellsSourceSlotAndPublications(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		st := f.state()
		if st.Slot.Exists || len(st.PublicationsMissing) != 2 || st.Slot.Name != f.source.names.slot {
			t.Errorf("at first: %+v", st)
		}
		wantText(t, "system", st.System, f.query("SELECT system_identifier FROM pg_control_system()"))
		wantText(t, "database", st.Database, f.query("SELECT current_database()"))
		if st.Timeline != 1 || st.Head.IsZero() {
			t.Errorf("timeline %d, head %v", st.Timeline, st.Head)
		}
		f.publish()
		f.begin()
		st = f.state()
		if s := st.Slot; !s.Exists || s.Problem != "" || s.Lost || s.Active || s.Confirmed != f.from || s.Restart.IsZero() || st.PublicationsMissing != nil || st.PublicationNewer {
			t.Errorf("begun: %+v", st)
		}
		f.exec("INSERT INTO t SELECT generate_series(1, 10000)")
		stream := f.follow(source.FollowOptions{})
		stream.next()
		st = f.state()
		if s := st.Slot; !s.Active || s.ActivePID == 0 || s.Retained < 100_000 {
			t.Errorf("following: %+v", s)
		}
		stream.stop()
		if err := f.source.Drop(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if err := f.source.Drop(testContext(t)); err != nil {
			t.Errorf("dropping nothing: %v", err)
		}
		if st := f.state(); st.Slot.Exists || len(st.PublicationsMissing) != 2 {
			t.Errorf("dropped: %+v", st)
		}
	})
}

func TestSlotOfAnotherMakeIsRefused(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Setting("max_prepared_transactions", "5"))
	other := server.Database(t)
	for name, c := range map[string]struct{ in, sql, problem string }{
		"physical":       {"", "SELECT pg_create_physical_replication_slot(%s, true)", "physical"},
		"other database": {other, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", "belongs to database"},
		"other plugin":   {"", "SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", "test_decoding"},
		"two-phase":      {"", "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", "two_phase"},
	} {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		f.publish()
		in := c.in
		if in == "" {
			in = f.dsn
		}
		if name == "other plugin" && tryExec(f, "SELECT pg_create_logical_replication_slot('probe', 'test_decoding')") != nil {
			continue // an installation without contrib
		}
		if name == "other plugin" {
			f.exec("SELECT pg_drop_replication_slot('probe')")
		}
		server.Exec(t, in, fmt.Sprintf(c.sql, literal(f.source.names.slot)))
		t.Cleanup(func() { server.Exec(t, in, "SELECT pg_drop_replication_slot("+literal(f.source.names.slot)+")") })
		if st := f.state(); !strings.Contains(st.Slot.Problem, c.problem) {
			t.Errorf("%s: %+v", name, st.Slot)
		}
		ctx := testContext(t)
		_, err := f.source.Begin(ctx)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: begin: %v", name, err)
		}
		err = f.source.Follow(ctx, change.LSN(1), source.FollowOptions{}, nil)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), c.problem) || !strings.Contains(fault.RemedyOf(err), "pg_drop_replication_slot") {
			t.Errorf("%s: follow: %v", name, err)
		}
	}
}

func TestMissingLostAndOvertakenSlotsAreRefused(t *testing.T) {
	t.Parallel()
	for _, server := range dbtest.Postgreses(t, dbtest.Setting("max_slot_wal_keep_size", "16MB"), dbtest.Setting("min_wal_size", "32MB"), dbtest.Setting("max_wal_size", "48MB")) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
		f.publish()
		ctx := testContext(t)
		err := f.source.Follow(ctx, change.LSN(1), source.FollowOptions{}, nil)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "does not exist") {
			t.Errorf("missing: %v", err)
		}
		f.begin()
		// Another consumer takes the changes.
		f.exec("INSERT INTO t VALUES (1)", "SELECT pg_replication_slot_advance("+literal(f.source.names.slot)+", pg_current_wal_lsn())")
		err = f.source.Follow(ctx, f.from, source.FollowOptions{}, nil)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), f.from.String()) {
			t.Errorf("overtaken: %v", err)
		}
		f.begin()
		for range 8 {
			f.exec("INSERT INTO t SELECT coalesce((SELECT max(id) FROM t), 0) + i, repeat('x', 1000) FROM generate_series(1, 12000) i", "SELECT pg_switch_wal()", "CHECKPOINT")
		}
		st := f.state()
		if !st.Slot.Lost || st.Slot.LostWhy == "" {
			t.Fatalf("lost: %+v", st.Slot)
		}
		err = f.source.Follow(ctx, f.from, source.FollowOptions{}, nil)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "lost") || !strings.Contains(fault.RemedyOf(err), "--overwrite") {
			t.Errorf("lost: %v", err)
		}
		f.begin() // a lost slot of ours is made again
		if st := f.state(); st.Slot.Lost {
			t.Errorf("made again: %+v", st.Slot)
		}
	}
}

func TestActiveSlotIsTransient(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("INSERT INTO t VALUES (1)")
	f.follow(source.FollowOptions{}).next()
	second := newSource(t, f.source.cfg)
	err := second.Follow(testContext(t), f.from, source.FollowOptions{}, nil)
	if fault.KindOf(err) != fault.Transient {
		t.Errorf("got %v", err)
	}
}

func TestDropEndsOurOwnWalsender(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("INSERT INTO t VALUES (1)")
	st := f.follow(source.FollowOptions{})
	st.next()
	second := newSource(t, f.source.cfg)
	if err := second.Drop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := st.ended(); err == nil {
		t.Error("Follow went on without its slot")
	}
	if st := f.state(); st.Slot.Exists {
		t.Errorf("%+v", st.Slot)
	}
}

func TestPublicationNewerThanTheSlotIsNoticed(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		// A slot made by hand, a change, then the publications.
		f.exec("SELECT pg_create_logical_replication_slot("+literal(f.source.names.slot)+", 'pgoutput')", "INSERT INTO t VALUES (1)")
		f.publish()
		f.exec("INSERT INTO t VALUES (2)")
		if st := f.state(); !st.PublicationNewer {
			t.Errorf("not noticed: %+v", st)
		}
		from := f.confirmed()
		err := f.source.Follow(testContext(t), from, source.FollowOptions{}, followNothing)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "newer") {
			t.Errorf("follow: %v", err)
		}

		// Dropped and made again by someone, with changes in between.
		f.begin()
		f.exec("INSERT INTO t VALUES (3)", "DROP PUBLICATION "+ident(f.source.names.main))
		if st := f.state(); len(st.PublicationsMissing) != 1 {
			t.Errorf("missing: %+v", st)
		}
		f.exec("INSERT INTO t VALUES (4)")
		f.publish()
		if st := f.state(); st.PublicationNewer {
			t.Log("noticed at the first change already")
		}
		st := f.follow(source.FollowOptions{})
		if err := st.ended(); fault.KindOf(err) != fault.Operator {
			t.Errorf("made again: %v", err)
		}
	})
}

func TestOurOwnChangesOfPublicationsAreNotNewer(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
		// An old transaction holds the slot's catalog_xmin below the publication's xmin.
		old := server.Connect(t, server.DSN("postgres"))
		if _, err := old.Exec(testContext(t), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { old.Exec(testContext(t), "ROLLBACK") })
		f.publish()
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(300 * time.Millisecond)
			old.Exec(testContext(t), "ROLLBACK")
		}()
		f.begin()
		<-done
		f.exec("INSERT INTO t VALUES (1)")
		if st := f.state(); st.PublicationNewer {
			t.Error("made before the slot, yet newer")
		}
		f.exec("ALTER PUBLICATION "+ident(f.source.names.main)+" DROP TABLE u", "ALTER PUBLICATION "+ident(f.source.names.main)+" ADD TABLE u",
			"ALTER PUBLICATION "+ident(f.source.names.main)+" SET (publish = 'insert')")
		f.publish()
		if st := f.state(); st.PublicationNewer {
			t.Error("altered since, yet newer")
		}
		wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT t (1)")
	})
}

func followNothing(_ context.Context, _ *change.Segment) error { return nil }

func TestHeadIsReachedOnAnIdleServer(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Setting("synchronous_commit", "off"))
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	st := f.follow(source.FollowOptions{})
	for i := range 5 {
		switch i {
		case 1:
			f.exec("SELECT pg_switch_wal()")
		case 2:
			f.exec("CHECKPOINT")
		default:
			f.exec(fmt.Sprintf("INSERT INTO t VALUES (%d)", i))
		}
		head, err := f.source.Head(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for {
			tx := st.any()
			if tx.Last && !tx.End.Before(head) {
				break
			}
		}
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("case %d: %v until the head %v", i, d, head)
		}
	}
}

func TestPositionBehindAPageHeaderMovesBeforeIt(t *testing.T) {
	const page, file = 8192, 16 << 20
	for in, want := range map[uint64]uint64{
		5*file + 40:         5 * file,
		5*file + page + 24:  5*file + page,
		5*file + 24:         5*file + 24,
		5*file + page + 40:  5*file + page + 40,
		5*file + 3*page:     5*file + 3*page,
		5*file + page + 100: 5*file + page + 100,
	} {
		if got := beforeHeader(change.LSN(in), page, file); got != change.LSN(want) {
			t.Errorf("%v gives %v", change.LSN(in), got)
		}
	}
}
