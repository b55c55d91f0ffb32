package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

func TestTransactionsComeWholeAndInCommitOrder(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
		a, b := server.Connect(t, f.dsn), server.Connect(t, f.dsn)
		ctx := testContext(t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		exec := func(first bool, sql string) {
			t.Helper()
			conn := b
			if first {
				conn = a
			}
			_, err := conn.Exec(ctx, sql)
			must(err)
		}
		exec(true, "BEGIN")
		exec(true, "INSERT INTO t VALUES (1, 'a')")
		exec(false, "BEGIN")
		exec(false, "INSERT INTO t VALUES (2, 'b')")
		exec(true, "INSERT INTO t VALUES (3, 'a')")
		exec(false, "COMMIT")
		exec(true, "UPDATE t SET v = 'c' WHERE id = 1")
		exec(true, "COMMIT")

		st := f.follow(source.FollowOptions{})
		first, second := st.next(), st.next()
		wantTx(t, first, "INSERT t (2, b)")
		wantTx(t, second, "INSERT t (1, a); INSERT t (3, a); UPDATE t (1, c)")
		if second.End.Compare(first.End) <= 0 || second.Begin.Compare(first.End) < 0 {
			t.Errorf("second (%v, %v) is not behind first (%v, %v)", second.Begin, second.End, first.Begin, first.End)
		}
	})
}

func TestBackToBackCommitsMeetAtOnePosition(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
	st := f.follow(source.FollowOptions{})
	first := st.next()
	wantTx(t, first, "INSERT t (1)")
	second := st.next()
	if err := st.stop(); !errors.Is(err, context.Canceled) {
		t.Fatalf("Follow returned %v", err)
	}
	// From the first one's end on: the second comes, the first does not.
	f.from = first.End
	st = f.follow(source.FollowOptions{})
	again := st.next()
	wantTx(t, again, "INSERT t (2)")
	if again.End != second.End {
		t.Errorf("the second ended at %v and now at %v", second.End, again.End)
	}
	wantTx(t, st.next(), "INSERT t (3)")
}

func TestLargeTransactionComesInPieces(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f.exec("INSERT INTO t VALUES (-1, 'before')",
		"INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i",
		"INSERT INTO t VALUES (-2, 'after')")
	st := f.follow(source.FollowOptions{PieceBytes: 100_000})
	wantTx(t, st.next(), "INSERT t (-1, before)")
	var pieces, rows int
	var begin change.Position
	for last := false; !last; {
		tx := st.next()
		pieces++
		if tx.First != (pieces == 1) {
			t.Fatalf("piece %d has First %v", pieces, tx.First)
		}
		if pieces == 1 {
			begin = tx.Begin
		}
		if tx.Begin != begin || tx.CommitTime.IsZero() || tx.XID == 0 {
			t.Fatalf("piece %d: begin %v, time %v, xid %d", pieces, tx.Begin, tx.CommitTime, tx.XID)
		}
		for _, c := range tx.Changes {
			if c.Ordinal != uint64(rows) {
				t.Fatalf("ordinal %d at row %d", c.Ordinal, rows)
			}
			rows++
		}
		if last = tx.Last; last == tx.End.IsZero() {
			t.Fatalf("piece %d: Last %v, End %v", pieces, tx.Last, tx.End)
		}
	}
	if rows != 5000 || pieces < 5 {
		t.Errorf("%d rows in %d pieces", rows, pieces)
	}
	wantTx(t, st.next(), "INSERT t (-2, after)")
}

func TestPiecesAreHandedOnDirectlyAfterEachOther(t *testing.T) {
	// With other traffic, whose quiet points must not come between.
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, v text)")
	other := f.server.Database(t)
	f.server.Exec(t, other, "CREATE TABLE noise (id int)")
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				f.server.Exec(t, other, "INSERT INTO noise VALUES (1)")
			}
		}
	}()
	st := f.follow(source.FollowOptions{PieceBytes: 20_000})
	for range 3 {
		f.exec("INSERT INTO t SELECT coalesce((SELECT max(id) FROM t), 0) + i, repeat('x', 100) FROM generate_series(1, 3000) i")
	}
	whole := 0
	inside := false
	for whole < 3 {
		tx := st.any()
		if inside && tx.First {
			t.Fatalf("a transaction or quiet point at %v inside another", tx.End)
		}
		inside = !tx.Last
		if tx.Last && tx.XID != 0 {
			whole++
		}
	}
	close(stop)
	<-stopped
}

func TestOldImagesHaveTheShapeOfTheIdentity(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server,
			"CREATE TABLE d (id int PRIMARY KEY, n int, big text)",
			"CREATE TABLE i (id int, u int NOT NULL UNIQUE, big text)",
			"CREATE TABLE w (id int PRIMARY KEY, n int, big text)",
			"ALTER TABLE d ALTER big SET STORAGE EXTERNAL", "ALTER TABLE i ALTER big SET STORAGE EXTERNAL", "ALTER TABLE w ALTER big SET STORAGE EXTERNAL",
			"ALTER TABLE i REPLICA IDENTITY USING INDEX i_u_key", "ALTER TABLE w REPLICA IDENTITY FULL",
			"INSERT INTO d VALUES (1, 1, repeat('x', 5000))", "INSERT INTO i VALUES (1, 1, repeat('x', 5000))", "INSERT INTO w VALUES (1, 1, repeat('x', 5000))")
		f.exec("UPDATE d SET n = 2", "UPDATE d SET id = 3", "UPDATE d SET id = id", "DELETE FROM d",
			"UPDATE i SET id = 2", "UPDATE i SET u = 3", "DELETE FROM i",
			"UPDATE w SET n = NULL", "UPDATE w SET id = 3", "DELETE FROM w")
		st := f.follow(source.FollowOptions{})
		for _, want := range []string{
			"UPDATE d (1, 2, ?)",
			"UPDATE d K(1, ~, ~) -> (3, 2, ?)",
			"UPDATE d (3, 2, ?)",
			"DELETE d K(3, ~, ~)",
			"UPDATE i (2, 1, ?)",
			"UPDATE i K(~, 1, ~) -> (2, 3, ?)",
			"DELETE i K(~, 3, ~)",
			"UPDATE w O(1, 1, xxxx...5000) -> (1, ~, xxxx...5000)",
			"UPDATE w O(1, ~, xxxx...5000) -> (3, ~, xxxx...5000)",
			"DELETE w O(3, ~, xxxx...5000)",
		} {
			wantTx(t, st.next(), want)
		}
	})
}

func TestTruncateNamesEveryTableInOrderWithTheRows(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)", "CREATE TABLE c (x int)")
	f.exec("BEGIN; INSERT INTO a VALUES (1); TRUNCATE a CASCADE; INSERT INTO a VALUES (2); COMMIT", "TRUNCATE c")
	st := f.follow(source.FollowOptions{})
	wantTx(t, st.next(), "INSERT a (1); TRUNCATE a; TRUNCATE b; INSERT a (2)")
	wantTx(t, st.next(), "TRUNCATE c")
}

func TestPartitionsArriveAsTheirRoot(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server,
			"CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
			"CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
			"CREATE TABLE p2 (v text, junk int, id int NOT NULL)", "ALTER TABLE p2 DROP junk",
			"ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)")
		f.exec("INSERT INTO p VALUES (1, 'a'), (11, 'b')", "UPDATE p SET id = 12 WHERE id = 1",
			"CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)", "INSERT INTO p VALUES (21, 'c')", "DELETE FROM p2 WHERE id = 11", "TRUNCATE p")
		st := f.follow(source.FollowOptions{})
		wantTx(t, st.next(), "INSERT p (1, a); INSERT p (11, b)")
		wantTx(t, st.next(), "DELETE p K(1, ~); INSERT p (12, a)")
		wantTx(t, st.next(), "INSERT p (21, c)")
		wantTx(t, st.next(), "DELETE p K(11, ~)")
		wantTx(t, st.next(), "TRUNCATE p")
	})
}

func TestLayoutIsNewOnlyWhereItChanged(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE SCHEMA app", "CREATE TYPE app.mood AS ENUM ('ok', 'sad')", "CREATE DOMAIN app.money2 AS numeric(12,2)",
			`CREATE TABLE t (id int PRIMARY KEY, amount app.money2 NOT NULL, moods app.mood[], name varchar(20), code char(3), r int4range, iv int2vector)`)
		st := f.follow(source.FollowOptions{})
		f.exec("INSERT INTO t VALUES (1, 2, '{ok,sad}', 'n', 'c', '[1,2)', '1 2')")
		first := st.next()
		wantTx(t, first, "INSERT t (1, 2.00, {ok,sad}, n, c  , [1,2), 1 2)")
		table := first.Changes[0].Table
		rel := f.relation("t").Table
		for i, c := range table.Columns {
			if got, want := fmt.Sprintf("%+v", c), fmt.Sprintf("%+v", rel.Columns[i]); c.Type.Elem == nil && got != want {
				t.Errorf("the log's column and the catalogue's differ:\n%s\n%s", got, want)
			}
		}
		for i, want := range []change.Type{
			{Kind: change.Int32, Name: "integer", ID: 23, BuiltIn: true},
			{Kind: change.Numeric, Name: "app.money2", Precision: 12, Scale: 2, Domain: true},
			{Kind: change.Array, Name: "app.mood[]"},
			{Kind: change.Text, Name: "character varying(20)", ID: 1043, BuiltIn: true, Length: 20},
			{Kind: change.Text, Name: "character(3)", ID: 1042, BuiltIn: true, Length: 3},
			{Kind: change.Range, Name: "int4range", ID: 3904, BuiltIn: true},
			{Kind: change.Other, Name: "int2vector", ID: 22, BuiltIn: true},
		} {
			got := table.Columns[i].Type
			if want.Kind == change.Array {
				if got.Elem == nil || got.Elem.Kind != change.Enum || got.Elem.Name != "app.mood" {
					t.Errorf("element of the array: %+v", got.Elem)
				}
				got.Elem = nil
			}
			if want.ID == 0 {
				got.ID = 0
			}
			if got != want {
				t.Errorf("column %d: %+v, want %+v", i, got, want)
			}
		}
		if !table.Columns[2].Nullable || table.Columns[1].Nullable || !table.Columns[0].Key || table.Columns[1].Key {
			t.Errorf("flags: %+v", table.Columns)
		}

		// The server describes the relation again, but nothing about it changed.
		f.exec("ANALYZE t", "ALTER TABLE t SET (fillfactor = 90)", "INSERT INTO t VALUES (2, 2)")
		if again := st.next(); again.Changes[0].Table != table {
			t.Error("an unchanged layout came as a new one")
		}
		f.exec("ALTER TABLE t ADD extra bigint, DROP iv", "INSERT INTO t VALUES (3, 2)")
		changed := st.next().Changes[0].Table
		if changed == table || changed.Find("extra") < 0 || changed.Find("iv") >= 0 {
			t.Errorf("after ALTER: %s", changed.ColumnNames())
		}
		f.exec("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET amount = 3 WHERE id = 3")
		tx := st.next()
		if full := tx.Changes[0].Table; full.Identity != change.IdentityFull || tx.Changes[0].Old == nil || tx.Changes[0].OldIsKey {
			t.Errorf("after REPLICA IDENTITY FULL: %+v", full)
		}
	})
}

func TestBinaryValuesComeWhereTheTypeHasThem(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, b boolean, n numeric, x text)")
		f.exec("INSERT INTO t VALUES (258, true, NULL, 'é')")
		text := f.follow(source.FollowOptions{})
		wantTx(t, text.next(), "INSERT t (258, t, ~, é)")
		text.stop()
		binary := f.follow(source.FollowOptions{Binary: true})
		wantTx(t, binary.next(), "INSERT t (x00000102, x01, ~, xc3a9)")
	})
}

func TestLargeValuesComeThrough(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, big text)")
	sizes := []int{60_000, 70_000, 900_000, 1_048_576, 3_000_000, 20_000_000, 1}
	for i, n := range sizes {
		f.exec(fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('y', %d))", i, n))
	}
	st := f.follow(source.FollowOptions{PieceBytes: 1 << 20})
	for i, n := range sizes {
		var size int
		for last := false; !last; {
			tx := st.next()
			for _, c := range tx.Changes {
				values, err := c.New.Values(nil, 2)
				if err != nil {
					t.Fatal(err)
				}
				if string(values[0].Data) != fmt.Sprint(i) {
					t.Fatalf("row %s, want %d", values[0].Data, i)
				}
				size += len(values[1].Data)
			}
			last = tx.Last
		}
		if size != n {
			t.Errorf("row %d has %d bytes, want %d", i, size, n)
		}
	}
}

func TestRowsKeepTheirMemory(t *testing.T) {
	// Rows share the read buffers: nothing may write into those again.
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f.exec("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 60000) i")
	for i := range 50 {
		f.exec(fmt.Sprintf("INSERT INTO t SELECT i, 'v' || i FROM generate_series(%d, %d) i", 60001+i*100, 60100+i*100))
	}
	st := f.follow(source.FollowOptions{PieceBytes: 1 << 20})
	var kept []change.Change
	for len(kept) < 65000 {
		kept = append(kept, st.next().Changes...)
	}
	for i, c := range kept {
		want := fmt.Sprintf("(%d, v%d)", i+1, i+1)
		if got := showRow(c.Table, c.New); got != want {
			t.Fatalf("row %d reads %s, want %s", i, got, want)
		}
	}
}

func TestBlockedReaderKeepsTheConnection(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("wal_sender_timeout", "4s"))
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	f.exec("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 50000) i")
	var blocked atomic.Bool
	st := followWith(t, f.source, f.from, source.FollowOptions{PieceBytes: 1 << 20}, func(ctx context.Context, seg *change.Segment) error {
		if blocked.CompareAndSwap(false, true) {
			time.Sleep(12 * time.Second)
		}
		return nil
	})
	rows := 0
	for rows < 50000 {
		rows += len(st.next().Changes)
	}
	f.exec("INSERT INTO t VALUES (-1)")
	for {
		if tx := st.next(); len(tx.Changes) == 1 {
			break
		}
	}
}

func TestIdleDatabaseAdvancesWithOthersTraffic(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		st := followWith(t, f.source, f.from, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
			if last := seg.Txs[len(seg.Txs)-1]; last.Last {
				f.source.Confirm(last.End) // as a pipeline does after it has marked it
			}
			return nil
		})
		other := server.Database(t)
		for _, dsn := range []string{other, f.dsn} { // another database; another table of this one
			server.Exec(t, dsn, "CREATE TABLE unpublished (v text)", "INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
			head, err := f.source.Head(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the slot is confirmed to the head", 20*time.Second, func() bool { return !f.confirmed().Before(head) })
		}
		st.nothing(0)
	})
}

func TestQuietPointsAreRare(t *testing.T) {
	t.Parallel()
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE noise (id int)")
	f.exec("ALTER PUBLICATION " + ident(f.source.names.appendix) + " DROP TABLE noise")
	var segments atomic.Int64
	followWith(t, f.source, f.from, source.FollowOptions{}, func(context.Context, *change.Segment) error {
		segments.Add(1)
		return nil
	})
	conn := f.server.Connect(t, f.dsn)
	begin := time.Now()
	for time.Since(begin) < 2500*time.Millisecond {
		if _, err := conn.Exec(testContext(t), "INSERT INTO noise VALUES (1)"); err != nil {
			t.Fatal(err)
		}
	}
	if n := segments.Load(); n < 1 || n > 6 {
		t.Errorf("%d segments in 2.5 s of traffic that is not ours", n)
	}
}

func TestKeepaliveInsideATransactionIsNoQuietPoint(t *testing.T) {
	t.Parallel()
	// A transaction that takes the server long to send, with a server that asks often.
	server := dbtest.Postgres(t, dbtest.Setting("wal_sender_timeout", "1s"))
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	var slow atomic.Bool
	slow.Store(true)
	st := followWith(t, f.source, f.from, source.FollowOptions{PieceBytes: 200_000}, func(context.Context, *change.Segment) error {
		if slow.Load() {
			time.Sleep(120 * time.Millisecond)
		}
		return nil
	})
	f.exec("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 40000) i")
	inside := false
	for {
		tx := st.any()
		if inside && tx.First {
			t.Fatalf("quiet point or transaction %v inside a transaction", tx)
		}
		inside = !tx.Last
		if tx.XID != 0 && tx.Last {
			break
		}
	}
	slow.Store(false)
}

func TestShutdownLeavesSlotAndMarkEqual(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
		st := f.follow(source.FollowOptions{})
		for i := range 5 {
			f.exec(fmt.Sprintf("INSERT INTO t VALUES (%d)", i))
			tx := st.next()
			f.source.Confirm(tx.End)
			begin := time.Now()
			if err := st.stop(); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > 1500*time.Millisecond {
				t.Errorf("stopping took %v", d)
			}
			if got := f.confirmed(); got != tx.End {
				t.Errorf("slot at %v, mark at %v", got, tx.End)
			}
			f.from = tx.End
			st = f.follow(source.FollowOptions{})
		}
	})
}

func TestConfirmedNeverPassesTheMark(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	st := f.follow(source.FollowOptions{})
	f.exec("INSERT INTO t VALUES (1)")
	mark := st.next().End
	f.source.Confirm(mark)
	f.source.Confirm(f.from) // backwards: no effect
	eventually(t, "confirmed", 20*time.Second, func() bool { return f.confirmed() == mark })
	f.exec("INSERT INTO t SELECT i FROM generate_series(2, 1000) i")
	st.next()
	other := f.server.Database(t)
	f.server.Exec(t, other, "CREATE TABLE x AS SELECT repeat('x', 1000) FROM generate_series(1, 3000)")
	time.Sleep(1500 * time.Millisecond)
	if got := f.confirmed(); got != mark {
		t.Errorf("confirmed moved to %v without a mark beyond %v", got, mark)
	}
	if err := st.stop(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := f.confirmed(); got != mark {
		t.Errorf("after the stop confirmed is %v, mark %v", got, mark)
	}
}

func TestFailureOfTheCallerEndsFollowing(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	broken := errors.New("the destination said no")
	st := followWith(t, f.source, f.from, source.FollowOptions{}, func(context.Context, *change.Segment) error { return broken })
	f.exec("INSERT INTO t VALUES (1)")
	if err := st.ended(); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	eventually(t, "the slot is free", 20*time.Second, func() bool {
		return f.query("SELECT active FROM pg_replication_slots WHERE slot_name = "+literal(f.source.names.slot)) == "f"
	})
}

func TestServerThatFallsSilentIsNoticed(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("wal_sender_timeout", "500ms"))
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	f.source.silence = 2 * time.Second
	st := f.follow(source.FollowOptions{})
	f.exec("INSERT INTO t VALUES (1)")
	st.next()
	resume, err := server.Pause()
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	begin := time.Now()
	err = st.ended()
	if fault.KindOf(err) != fault.Transient || time.Since(begin) > 8*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}

func TestServerEndsAreTransient(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Dedicated())
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	st := f.follow(source.FollowOptions{})
	f.exec("INSERT INTO t VALUES (1)")
	st.next()
	f.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
	if err := st.ended(); fault.KindOf(err) != fault.Transient {
		t.Errorf("terminated: %v is %v", err, fault.KindOf(err))
	}
	st = f.follow(source.FollowOptions{})
	st.next()
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := st.ended(); fault.KindOf(err) != fault.Transient {
		t.Errorf("killed: %v is %v", err, fault.KindOf(err))
	}
	st = f.follow(source.FollowOptions{})
	if err := st.ended(); fault.KindOf(err) != fault.Transient {
		t.Errorf("nobody there: %v is %v", err, fault.KindOf(err))
	}
	if err := server.StartAgain(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT t (1)")
}

func TestServerShutdownIsNotHeldUp(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Dedicated())
	f := begun(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	st := followWith(t, f.source, f.from, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
		if last := seg.Txs[len(seg.Txs)-1]; last.Last {
			f.source.Confirm(last.End)
		}
		return nil
	})
	f.exec("INSERT INTO t VALUES (1)")
	st.next()
	begin := time.Now()
	if err := server.Restart(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("the server took %v to restart", d)
	}
	if err := st.ended(); fault.KindOf(err) != fault.Transient {
		t.Errorf("got %v", err)
	}
}
