package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// copyText copies a table's columns as text.
func copyText(t testing.TB, snap source.Snapshot, r source.CopyRequest) string {
	t.Helper()
	var b bytes.Buffer
	rows, err := snap.Copy(testContext(t), r, &b)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\n"); int64(n) != rows {
		t.Errorf("%d rows reported, %d lines", rows, n)
	}
	return b.String()
}

func columnsOf(t *change.Table) []string {
	var names []string
	for _, c := range t.Columns {
		names = append(names, c.Name)
	}
	return names
}

// takeSnapshot begins, and closes the snapshot at the test's end.
func (f *fixture) takeSnapshot() source.Snapshot {
	f.t.Helper()
	snap, err := f.source.Begin(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { snap.Close(testContext(f.t)) })
	f.from = snap.Position()
	return snap
}

func TestSnapshotIsOneMomentWhileWritersRun(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE a (id int PRIMARY KEY, n bigint)", "CREATE TABLE b (id int PRIMARY KEY, n bigint)",
			"INSERT INTO a SELECT i, 100 FROM generate_series(1, 2000) i", "INSERT INTO b SELECT i, 100 FROM generate_series(1, 2000) i")
		f.publish()
		ctx, stop := context.WithCancel(context.Background())
		var writers sync.WaitGroup
		for w := range 2 {
			writers.Go(func() {
				conn := server.Connect(t, f.dsn)
				for i := w; ctx.Err() == nil; i += 7 {
					// Moves money between the tables; the sum stays 400000.
					sql := fmt.Sprintf("WITH x AS (UPDATE a SET n = n - %d WHERE id = %d) UPDATE b SET n = n + %d WHERE id = %d", i%5, i%2000+1, i%5, (i*3)%2000+1)
					if _, err := conn.Exec(context.Background(), sql); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		before := time.Now()
		snap := f.takeSnapshot()
		time.Sleep(200 * time.Millisecond) // writers go on
		state := map[string]int64{}
		var mu sync.Mutex
		var copies sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			rel := f.relation(name)
			copies.Go(func() {
				var out bytes.Buffer
				if _, err := snap.Copy(testContext(t), source.CopyRequest{Table: rel.Table, Columns: []string{"id", "n"}}, &out); err != nil {
					t.Error(err)
				}
				for line := range strings.Lines(out.String()) {
					var id, n int64
					fmt.Sscan(line, &id, &n)
					mu.Lock()
					state[fmt.Sprint(name, id)] = n
					mu.Unlock()
				}
			})
		}
		copies.Wait()
		stop()
		writers.Wait()
		sum := func() (s int64) {
			for _, n := range state {
				s += n
			}
			return s
		}
		if len(state) != 4000 || sum() != 400_000 {
			t.Errorf("%d rows with the sum %d", len(state), sum())
		}
		if d := snap.Clock().Sub(before); d < -time.Second || d > 2*time.Second {
			t.Errorf("clock %v off", d)
		}

		// What follows the snapshot's position brings it to the source's state exactly.
		head, err := f.source.Head(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		st := followWith(t, f.source, f.from, source.FollowOptions{}, nil)
		for {
			tx := st.any()
			if !tx.End.IsZero() && tx.End.Compare(snap.Position()) <= 0 {
				t.Fatalf("transaction ending at %v is in the snapshot at %v", tx.End, snap.Position())
			}
			for _, c := range tx.Changes {
				v, err := c.New.Values(nil, 2)
				if err != nil {
					t.Fatal(err)
				}
				var n int64
				fmt.Sscan(string(v[1].Data), &n)
				state[c.Table.Name.Table+string(v[0].Data)] = n
			}
			if !tx.End.Before(head) {
				break
			}
		}
		var rows []string
		rows = append(rows, server.Query(t, f.dsn, "SELECT 'a' || id, n FROM a UNION ALL SELECT 'b' || id, n FROM b")...)
		for _, row := range rows {
			key, n, _ := strings.Cut(row, "|")
			if fmt.Sprint(state[key]) != n {
				t.Errorf("%s is %d, at the source %s", key, state[key], n)
			}
		}
	})
}

// Rows are found by their keys' texts, whatever they hold; of an inheritance parent its
// own only.
func TestRowsOfKeysAreCopied(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server,
		`CREATE TABLE one ("k " text PRIMARY KEY, v int)`, `INSERT INTO one VALUES ('a', 1), ('it''s', 2), ('back\', 3), ('', 4), ('other', 5)`,
		"CREATE TABLE nulls (a int, b text, v int)", "INSERT INTO nulls VALUES (1, NULL, 1), (1, 'x', 2), (NULL, NULL, 3), (2, 'x', 4)",
		"CREATE TABLE parent (id int PRIMARY KEY, v int)", "CREATE TABLE child () INHERITS (parent)", "INSERT INTO parent VALUES (1, 1)", "INSERT INTO child VALUES (1, 2)")
	snap := f.takeSnapshot()
	of := func(texts ...string) (key []*string) {
		for i := range texts {
			if texts[i] == "NULL" {
				key = append(key, nil)
			} else {
				key = append(key, &texts[i])
			}
		}
		return key
	}
	for _, c := range []struct {
		table   string
		columns []string
		keys    [][]*string
		want    string
	}{
		{"one", []string{"k "}, [][]*string{of("it's"), of("back\\"), of(""), of("nobody")}, "2\n3\n4\n"},
		{"one", []string{"k "}, [][]*string{}, ""},
		{"nulls", []string{"a", "b"}, [][]*string{of("1", "NULL"), of("NULL", "NULL"), of("2", "x"), of("2", "y")}, "1\n3\n4\n"},
		{"nulls", []string{"a"}, [][]*string{of("NULL"), of("2")}, "3\n4\n"},
		{"parent", []string{"id"}, [][]*string{of("1")}, "1\n"},
	} {
		rel := f.relation(c.table)
		wantText(t, fmt.Sprint(c.table, c.columns), copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: []string{"v"}, KeyColumns: c.columns, Keys: c.keys}), c.want)
	}
}

func TestCopyIsWhatTheLogWouldSend(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server,
			"CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (parent)",
			"CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY HASH (id)",
			"CREATE TABLE r0 PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 0)", "CREATE TABLE r1 PARTITION OF root FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
			"CREATE TABLE g (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)",
			"CREATE TABLE empty ()",
			"INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (2, 3)", "INSERT INTO root SELECT i, 'v' FROM generate_series(1, 10) i", "INSERT INTO g VALUES (1, 5)")
		f.publish()
		wantText(t, "published", f.query("SELECT string_agg(r.prrelid::regclass::text, ',' ORDER BY 1) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE pubname = "+literal(f.source.names.main)),
			"child,g,parent,root")
		snap := f.takeSnapshot()
		for name, want := range map[string]string{"parent": "1\n", "child": "2\t3\n", "g": "1\t5\n"} {
			rel := f.relation(name)
			wantText(t, name, copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: columnsOf(rel.Table)}), want)
		}
		root := f.relation("root")
		if n := strings.Count(copyText(t, snap, source.CopyRequest{Table: root.Table, Columns: []string{"v", "id"}}), "\n"); n != 10 {
			t.Errorf("%d rows of the partitioned table", n)
		}
		if _, err := snap.Copy(testContext(t), source.CopyRequest{Table: root.Table, Columns: []string{"nope"}}, io.Discard); err == nil {
			t.Error("an unknown column was copied")
		}
		f.exec("INSERT INTO parent VALUES (10)", "INSERT INTO child VALUES (20, 30)", "INSERT INTO g VALUES (2, 6)")
		st := f.follow(source.FollowOptions{})
		wantTx(t, st.next(), "INSERT parent (10)")
		wantTx(t, st.next(), "INSERT child (20, 30)")
		wantTx(t, st.next(), "INSERT g (2, 6)")
	})
}

func TestCopyAppendsTheStartOfHistory(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (7)")
	f.publish()
	snap := f.takeSnapshot()
	rel := f.relation("t")
	at := time.Date(2024, 2, 29, 12, 0, 0, 123456000, time.FixedZone("", 3600))
	zero := time.Time{}
	wantText(t, "text", copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: []string{"id"}, StartAt: &at}), "7\t2024-02-29 11:00:00.123456+00\t\\N\n")
	wantText(t, "from ever", copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: []string{"id"}, StartAt: &zero}), "7\t-infinity\t\\N\n")
	var b bytes.Buffer
	if _, err := snap.Copy(testContext(t), source.CopyRequest{Table: rel.Table, Columns: []string{"id"}, Binary: true, StartAt: &at}, &b); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	if !bytes.HasPrefix(data, []byte("PGCOPY\n\xff\r\n\x00")) || !bytes.HasSuffix(data, []byte{0xff, 0xff}) {
		t.Fatalf("not a binary COPY: %q", data)
	}
	row := data[19:]
	if binary.BigEndian.Uint16(row) != 3 || binary.BigEndian.Uint32(row[6:]) != 7 {
		t.Errorf("row % x", row)
	}
}

func TestSecondSnapshotStandsBesideTheSlot(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	st := f.follow(source.FollowOptions{})
	f.exec("INSERT INTO t VALUES (1)")
	first := st.next()
	ctx := testContext(t)
	snap, err := f.source.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if snap.Position().Before(first.End) {
		t.Errorf("snapshot at %v, before %v", snap.Position(), first.End)
	}
	f.exec("INSERT INTO t VALUES (2)")
	second := st.next()
	if !snap.Position().Before(second.End) {
		t.Errorf("snapshot at %v, not before %v", snap.Position(), second.End)
	}
	wantText(t, "rows", copyText(t, snap, source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id"}}), "1\n")
	slots := "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
	wantText(t, "slots", f.query(slots), "2")
	if err := snap.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := snap.Copy(ctx, source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id"}}, io.Discard); err == nil {
		t.Error("a closed snapshot copied")
	}
	eventually(t, "the temporary slot is gone", 20*time.Second, func() bool { return f.query(slots) == "1" })
}

func TestTableRewrittenAfterTheSnapshotIsNotCopiedEmpty(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		for what, ddl := range map[string]string{
			"a changed type": "ALTER TABLE t ALTER n TYPE bigint",
			"truncate":       "TRUNCATE t",
			"a partition":    "ALTER TABLE p1 SET UNLOGGED",
			"made anew":      "ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY, n int)",
		} {
			f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)",
				"CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)", "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)", "INSERT INTO p VALUES (1, 1)")
			snap := f.takeSnapshot()
			name := "t"
			if what == "a partition" {
				name = "p"
			}
			rel := f.relation(name)
			request := source.CopyRequest{Table: rel.Table, Columns: []string{"id", "n"}}
			wantText(t, what+": before", copyText(t, snap, request), "1\t1\n")
			f.exec(ddl)
			_, err := snap.Copy(testContext(t), request, io.Discard)
			if fault.KindOf(err) != fault.Transient {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestFinishedTableIsNotLocked(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
	snap := f.takeSnapshot()
	copyText(t, snap, source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id"}})
	f.exec("SET lock_timeout = '1s'; ALTER TABLE t ADD x int")
	copyText(t, snap, source.CopyRequest{Table: f.relation("u").Table, Columns: []string{"id"}})
}

func TestTimeOutsOfTheRoleDoNotApply(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i")
		role := "role_" + f.query("SELECT current_database()")
		f.exec("CREATE ROLE "+role+" LOGIN SUPERUSER REPLICATION PASSWORD 'x'",
			"ALTER ROLE "+role+" SET statement_timeout = '500ms'", "ALTER ROLE "+role+" SET lock_timeout = '200ms'",
			"ALTER ROLE "+role+" SET idle_in_transaction_session_timeout = '500ms'", "ALTER ROLE "+role+" SET idle_session_timeout = '500ms'",
			"ALTER ROLE "+role+" SET DateStyle = 'SQL, DMY'", "ALTER ROLE "+role+" SET extra_float_digits = '-3'", "ALTER ROLE "+role+" SET bytea_output = 'escape'",
			"ALTER ROLE "+role+" SET search_path = 'nowhere'", "ALTER ROLE "+role+" SET TimeZone = 'Asia/Kathmandu'", "ALTER ROLE "+role+" SET IntervalStyle = 'iso_8601'", "ALTER ROLE "+role+" SET xmloption = 'document'")
		t.Cleanup(func() { f.exec("DROP OWNED BY "+role, "DROP ROLE "+role) })
		if server.Version() >= 17 {
			f.exec("ALTER ROLE " + role + " SET transaction_timeout = '700ms'")
		}
		f.exec("CREATE TABLE v (id int PRIMARY KEY, d date, f float8, b bytea, z timestamptz, i interval)",
			"INSERT INTO v VALUES (1, '2024-02-03', 0.1::float8 + 0.2, '\\xff00', '2024-02-03 12:00+00', '1 mon 2 days 03:04:05')")
		const want = "(1, 2024-02-03, 0.30000000000000004, \\xff00, 2024-02-03 12:00:00+00, 1 mon 2 days 03:04:05)"
		f.source = newSource(t, Config{DSN: server.DSNAs(role, "x", f.query("SELECT current_database()")), Pipeline: "role" + role})
		f.publish()
		snap := f.takeSnapshot()
		rel, v := f.relation("t"), f.relation("v")
		slow := &slowWriter{pause: 300 * time.Microsecond}
		if rows, err := snap.Copy(testContext(t), source.CopyRequest{Table: rel.Table, Columns: []string{"id", "v"}}, slow); err != nil || rows != 2000 {
			t.Fatalf("slow copy: %d rows, %v", rows, err)
		}
		time.Sleep(1200 * time.Millisecond) // idle, in and out of transactions
		line := copyText(t, snap, source.CopyRequest{Table: v.Table, Columns: columnsOf(v.Table)})
		wantText(t, "copied values", "("+strings.ReplaceAll(strings.TrimSpace(strings.ReplaceAll(line, `\\`, `\`)), "\t", ", ")+")", want)
		if _, err := f.source.State(testContext(t)); err != nil {
			t.Fatal(err)
		}
		st := f.follow(source.FollowOptions{})
		time.Sleep(1200 * time.Millisecond)
		f.exec("UPDATE v SET id = 1")
		tx := st.next()
		wantText(t, "followed values", showRow(tx.Changes[0].Table, tx.Changes[0].New), want)
	})
}

type slowWriter struct{ pause time.Duration }

func (w *slowWriter) Write(b []byte) (int, error) {
	time.Sleep(w.pause)
	return len(b), nil
}

func TestFailureOfTheWriterIsTheCopysError(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
	snap := f.takeSnapshot()
	rel := f.relation("t")
	broken := io.ErrShortBuffer
	_, err := snap.Copy(testContext(t), source.CopyRequest{Table: rel.Table, Columns: []string{"id", "v"}}, writerFunc(func(b []byte) (int, error) { return 0, broken }))
	if err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err = snap.Copy(ctx, source.CopyRequest{Table: rel.Table, Columns: []string{"id", "v"}}, writerFunc(func(b []byte) (int, error) {
		cancel()
		return len(b), nil
	}))
	if err == nil {
		t.Error("a cancelled copy succeeded")
	}
	if n := strings.Count(copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: []string{"id", "v"}}), "\n"); n != 20000 {
		t.Errorf("the next copy has %d rows", n)
	}
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

func TestSlotWaitsForOldTransactionsAndNamesThem(t *testing.T) {
	t.Parallel()
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	f.publish()
	var mu sync.Mutex
	var lines bytes.Buffer
	f.source.log = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return lines.Write(b)
	}), nil))
	old := f.server.Connect(t, f.dsn)
	ctx := testContext(t)
	if _, err := old.Exec(ctx, "BEGIN; INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		snap, err := f.source.Begin(ctx)
		if err == nil {
			snap.Close(ctx)
		}
		done <- err
	}()
	pid := fmt.Sprintf("pid %d ", old.PgConn().PID())
	eventually(t, "the blocking session is named", 15*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(lines.String(), pid)
	})
	if _, err := old.Exec(ctx, "COMMIT"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestRowLevelSecurityIsAnErrorNotAGap(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)",
		"ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON t USING (id = 1)")
	name := f.query("SELECT current_database()")
	role := "reader_" + name
	f.exec("CREATE ROLE "+role+" LOGIN REPLICATION", "GRANT SELECT ON t TO "+role)
	t.Cleanup(func() { f.server.Exec(t, f.server.DSN("postgres"), "DROP ROLE "+role) })
	t.Cleanup(func() { f.exec("DROP OWNED BY " + role) })
	f.publish() // as the administrator
	f.source = newSource(t, Config{DSN: f.server.DSNAs(role, "", name), Pipeline: "p" + name})
	snap := f.takeSnapshot()
	_, err := snap.Copy(testContext(t), source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id"}}, io.Discard)
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "BYPASSRLS") {
		t.Errorf("got %v", err)
	}
	findings, err := f.source.Check(testContext(t), f.followed())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings, true, "row-level security", "BYPASSRLS")
}
