package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/change/segment"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/internal/spool"
	"tailrace/source"
)

// lowMemory makes the server stream every transaction of more than 64 kB.
const lowMemory = "logical_decoding_work_mem=64kB"

// streaming is begun with a source to which the server streams all but small
// transactions.
func streaming(t testing.TB, server *dbtest.Server, ddl ...string) *fixture {
	t.Helper()
	f := bare(t, server, ddl...)
	f.source = newSource(t, Config{DSN: with(f.dsn, lowMemory), Pipeline: f.source.cfg.Pipeline, Streaming: true, SpoolDir: t.TempDir()})
	f.publish()
	f.begin()
	return f
}

func with(dsn, parameter string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + parameter
	}
	return dsn + "?" + parameter
}

// whole is the second reader of a fixture's database: protocol 1, on a slot of its
// own that begins at the same state.
func (f *fixture) whole(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{t: t, server: f.server, dsn: f.dsn,
		source: newSource(t, Config{DSN: with(f.dsn, lowMemory), Pipeline: f.source.cfg.Pipeline + "w"})}
	w.publish()
	w.begin()
	return w
}

// streamed is how many transactions the server has streamed.
func (f *fixture) streamed() int {
	f.t.Helper()
	n, err := strconv.Atoi(f.query("SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots WHERE slot_name = " + literal(f.source.names.slot)))
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

func (f *fixture) wantStreamed(least int) {
	f.t.Helper()
	eventually(f.t, fmt.Sprintf("%d streamed transactions", least), 10*time.Second, func() bool { return f.streamed() >= least })
}

// account is everything that a piece says, with its changes.
func account(tx change.Tx) string {
	s := fmt.Sprintf("%d %v..%v %v first %v last %v: %s", tx.XID, tx.Begin, tx.End, tx.CommitTime, tx.First, tx.Last, show(tx))
	for _, c := range tx.Changes {
		s += fmt.Sprintf(" %d/%d", c.Ordinal, len(c.Table.Columns))
	}
	return s
}

// sameUntil compares two streams up to the transaction that inserts into the table
// done, piece by piece.
func sameUntil(t testing.TB, streamed, whole *stream) {
	t.Helper()
	for n := 0; ; n++ {
		a, b := streamed.next(), whole.next()
		if got, want := account(a), account(b); got != want {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("piece %d differs from byte %d on:\n    streamed ...%.300s\nnot streamed ...%.300s", n, i, got[max(0, i-50):], want[max(0, i-50):])
		}
		if len(a.Changes) > 0 && a.Changes[0].Table.Name.Table == "done" {
			return
		}
	}
}

const streamTables = `
create table a(id int primary key, n int, big text);
alter table a alter big set storage external;
create table b(id int primary key, v text);
alter table b replica identity full;
create table unpublished(v text);
create table done(id int primary key)`

func TestStreamedTransactionIsTheSameAsTheWholeOne(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, strings.Split(streamTables, ";")...)
		f.source = newSource(t, Config{DSN: with(f.dsn, lowMemory), Pipeline: f.source.cfg.Pipeline, Streaming: true, SpoolDir: t.TempDir()})
		f.publish()
		f.exec("ALTER PUBLICATION " + ident(f.source.names.appendix) + " DROP TABLE unpublished")
		f.begin()
		w := f.whole(t)
		f.exec("ALTER PUBLICATION " + ident(w.source.names.appendix) + " DROP TABLE unpublished")
		o := source.FollowOptions{PieceBytes: 200_000}
		st, wt := f.follow(o), w.follow(o)

		one, two, small := server.Connect(t, f.dsn), server.Connect(t, f.dsn), server.Connect(t, f.dsn)
		exec := func(conn *pgx.Conn, statements ...string) {
			t.Helper()
			for _, sql := range statements {
				if _, err := conn.Exec(testContext(t), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
		}
		fill := func(table string, from, to int) string {
			if table == "a" {
				return fmt.Sprintf("insert into a select i, i, repeat(md5(i::text), 2 + (i %% 7) * 20) from generate_series(%d, %d) i", from, to)
			}
			return fmt.Sprintf("insert into %s select i, md5(i::text) || repeat('x', 80) from generate_series(%d, %d) i", table, from, to)
		}
		// Two large ones interleaved, small ones between; values that did not change
		// stored out of line; TRUNCATE.
		exec(one, "begin", fill("a", 1, 400))
		exec(two, "begin", fill("b", 1, 600))
		exec(small, "insert into a values (-1, 0, 'small')")
		exec(one, "update a set n = n + 1 where id > 0", "delete from a where id % 5 = 0")
		exec(two, "update b set v = v || 'y' where id % 3 = 0")
		exec(small, "begin", "insert into a values (-2, 0, 'small')", "insert into b values (-2, 'small')", "commit")
		exec(two, "commit")
		exec(one, fill("a", 401, 900), "commit")
		exec(one, "begin", fill("b", 1001, 2000), "truncate b, a", fill("b", 2001, 3000), "commit")
		// Undone as a whole, and by parts: savepoints inside each other, released and
		// then undone with what they were released into, an exception block.
		exec(one, "begin", fill("a", 10_001, 11_000), "rollback")
		exec(one, "begin", fill("b", 10_001, 11_000),
			"savepoint s", fill("b", 11_001, 12_000), "savepoint t", fill("b", 12_001, 13_000), "rollback to t",
			fill("b", 13_001, 13_500), "release t", fill("b", 13_501, 14_000))
		exec(small, "insert into a values (-3, 0, 'small')")
		exec(one, "rollback to s", fill("b", 14_001, 15_000), "savepoint u", fill("b", 15_001, 15_100), "release s", fill("b", 15_101, 15_600), "commit")
		exec(one, "begin", fill("b", 20_001, 20_900), "savepoint s", fill("b", 20_901, 21_800), "rollback to s", "commit")
		exec(one, "begin", "savepoint s", fill("b", 22_001, 23_000), "rollback to s", "insert into b values (23001, '')")
		exec(one, "commit")
		exec(one, `do $$ begin for i in 30001..32000 loop begin insert into b values (i, repeat('z', 100)); if i % 3 = 0 then raise exception 'no'; end if; exception when raise_exception then null; end; end loop; end $$`)
		// A layout that changes inside, and one whose change is undone, wholly or by
		// part; a type that did not exist.
		exec(one, "begin", fill("a", 40_001, 40_500), "alter table a add c text default 'c'", "update a set n = 0 where id > 40000")
		exec(small, "insert into b values (-4, 'small')")
		exec(one, "commit", "insert into a values (-5, 0, 'small', 'd')")
		exec(one, "begin", "alter table a add gone int", "update a set n = 1", "update a set n = 2", "rollback", "insert into a values (-6, 0, 'small', 'd')")
		exec(one, "begin", "create type mood as enum ('ok')", "savepoint s", "alter table a add gone mood default 'ok'", "update a set n = 3", "update a set n = 4",
			"rollback to s", "update a set n = 5", "commit")
		exec(one, "begin", "alter table a add m mood default 'ok', drop c", "update a set n = 6", "update a set n = 7", "commit", "insert into a values (-7, 0, 'small', 'ok')")
		// Nothing for us, a lot of it; rows of COPY.
		exec(one, "insert into unpublished select repeat('x', 100) from generate_series(1, 3000)")
		exec(one, "begin")
		rows := make([][]any, 3000)
		for i := range rows {
			rows[i] = []any{50_000 + i, strings.Repeat("c", 60)}
		}
		if _, err := one.CopyFrom(testContext(t), pgx.Identifier{"b"}, []string{"id", "v"}, pgx.CopyFromRows(rows)); err != nil {
			t.Fatal(err)
		}
		exec(one, "commit", "insert into done values (1)")

		sameUntil(t, st, wt)
		f.wantStreamed(8)
		if n := w.streamed(); n != 0 {
			t.Errorf("%d transactions were streamed with protocol 1", n)
		}
	})
}

// Servers fail, each time, at an open transaction whose change of a table was undone
// by part and made again. After its commit they do not.
func TestTransactionThatCannotBeStreamedIsReadWhole(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := streaming(t, server, strings.Split(streamTables, ";")...)
		w := f.whole(t)
		f.exec("insert into a select i, 0, repeat('x', 100) from generate_series(1, 3000) i", "insert into b values (1, 'before')",
			"begin; savepoint s; alter table a add gone int; update a set n = 3; rollback to s; update a set n = 5; alter table a add m int; update a set n = 6; commit",
			"insert into a values (-1, 0, 'after', 7)", "insert into a select i, 0, repeat('x', 100) from generate_series(5001, 9000) i", "insert into done values (1)")
		var said lockedBuffer
		f.source.log = slog.New(slog.NewTextHandler(&said, nil))
		sameUntil(t, f.follow(source.FollowOptions{}), w.follow(source.FollowOptions{}))
		if server.Version() <= 18 && !strings.Contains(said.String(), "cannot send a transaction while it is open") {
			t.Errorf("the log does not say what happened:\n%s", said.String())
		}
	})
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestRandomTransactionsAreTheSameStreamedAndWhole(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := streaming(t, dbtest.Postgres(t), "create table t(id bigint primary key, v text)", "create table done(id int primary key)")
	w := f.whole(t)
	o := source.FollowOptions{PieceBytes: 100_000, Binary: true}
	st, wt := f.follow(o), w.follow(o)
	type session struct {
		conn  *pgx.Conn
		open  bool
		depth int
	}
	var sessions []*session
	for range 6 {
		sessions = append(sessions, &session{conn: f.server.Connect(t, f.dsn)})
	}
	next := 0
	for range 500 {
		s := sessions[rnd.IntN(len(sessions))]
		run := func(format string, args ...any) {
			t.Helper()
			sql := fmt.Sprintf(format, args...)
			if _, err := s.conn.Exec(testContext(t), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		if !s.open {
			run("begin")
			s.open, s.depth = true, 0
		}
		switch n := rnd.IntN(12); {
		case n < 5:
			count := 1 + rnd.IntN(800)
			run("insert into t select i, repeat('v', %d) from generate_series(%d, %d) i", 1+rnd.IntN(150), next, next+count-1)
			next += count
		case n < 7:
			s.depth++
			run("savepoint s%d", s.depth)
		case n < 9 && s.depth > 0: // some of the inner ones go with it
			s.depth = 1 + rnd.IntN(s.depth)
			run("rollback to s%d", s.depth)
		case n < 10 && s.depth > 0:
			s.depth = 1 + rnd.IntN(s.depth)
			run("release s%d", s.depth)
			s.depth--
		case n < 11:
			run("commit")
			s.open = false
		case rnd.IntN(3) == 0:
			run("rollback")
			s.open = false
		}
	}
	for _, s := range sessions {
		if s.open {
			if _, err := s.conn.Exec(testContext(t), "commit"); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.exec("insert into done values (1)")
	sameUntil(t, st, wt)
	f.wantStreamed(5)
}

// While a transaction is open, the mark moves on past its beginning. It comes whole
// all the same, also where it was half received before a stop.
func TestOpenTransactionSurvivesAStop(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := streaming(t, server, "create table t(id int primary key, v text)")
		var spooled atomic.Int64
		o := source.FollowOptions{Spooled: spooled.Store}
		st := f.follow(o)
		conn := server.Connect(t, f.dsn)
		exec := func(sql string) {
			t.Helper()
			if _, err := conn.Exec(testContext(t), sql); err != nil {
				t.Fatal(err)
			}
		}
		exec("begin")
		exec("insert into t select i, repeat('x', 100) from generate_series(1, 3000) i")
		f.exec("insert into t values (-1, 'small')")
		small := st.next()
		wantTx(t, small, "INSERT t (-1, small)")
		f.wantStreamed(1)
		if n := spooled.Load(); n < 100*1000 { // a block or two of the 3000 rows of 100 bytes
			t.Errorf("%d bytes are said to be on disk", n)
		}
		f.source.Confirm(small.End)
		eventually(t, "the slot is confirmed", 20*time.Second, func() bool { return f.confirmed() == small.End })
		if err := st.stop(); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if n := spooled.Load(); n != 0 {
			t.Errorf("%d bytes are said to be on disk after the end", n)
		}
		exec("insert into t select i, repeat('y', 100) from generate_series(3001, 4000) i")
		f.from = small.End
		st = f.follow(o)
		exec("commit")
		tx := st.next()
		if len(tx.Changes) != 4000 || !tx.Last || tx.Begin.Before(small.End) {
			t.Errorf("%d changes, begin %v behind %v, last %v", len(tx.Changes), tx.Begin, small.End, tx.Last)
		}
		eventually(t, "nothing is left on disk", 20*time.Second, func() bool { return spooled.Load() == 0 })
	})
}

func TestServerHearsFromUsWhileASpooledTransactionIsHandedOn(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("wal_sender_timeout", "1s"))
	f := streaming(t, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	var slow atomic.Bool
	slow.Store(true)
	st := followWith(t, f.source, f.from, source.FollowOptions{PieceBytes: 200_000}, func(context.Context, *change.Segment) error {
		if slow.Load() {
			time.Sleep(120 * time.Millisecond)
		}
		return nil
	})
	f.exec("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 40000) i", "INSERT INTO t VALUES (-1, 'after')")
	inside, rows, began := false, 0, time.Now()
	for {
		tx := st.any()
		if inside && tx.First {
			t.Fatalf("quiet point or transaction %v inside a transaction", tx)
		}
		inside = !tx.Last
		rows += len(tx.Changes)
		if rows == 40_001 {
			break
		}
	}
	slow.Store(false)
	if d := time.Since(began); d < 2*time.Second {
		t.Errorf("it took %v, too short to say anything", d)
	}
	f.wantStreamed(1)
}

func TestFullSpoolLosesNothing(t *testing.T) {
	f := streaming(t, dbtest.Postgres(t), "create table t(id int primary key, v text)")
	f.source.cfg.SpoolMax = spool.Least
	st := f.follow(source.FollowOptions{})
	f.exec("insert into t values (-1, 'before')", "insert into t select i, repeat('x', 1000) from generate_series(1, 20000) i")
	before := st.next()
	wantTx(t, before, "INSERT t (-1, before)")
	err := st.ended()
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "source.spool_max") {
		t.Fatalf("%v", err)
	}
	f.source.cfg.SpoolMax *= 2
	f.from = before.End
	if tx := f.follow(source.FollowOptions{PieceBytes: 1 << 30}).next(); len(tx.Changes) != 20000 || !tx.Last {
		t.Errorf("%d changes, last %v", len(tx.Changes), tx.Last)
	}
}

// Hundreds of transactions that are open and streamed at once.
func TestManyOpenTransactions(t *testing.T) {
	const many = 200
	f := streaming(t, dbtest.Postgres(t), "create table t(id int primary key, v text)")
	st := f.follow(source.FollowOptions{})
	conns := make([]*pgx.Conn, many)
	for i := range conns {
		conns[i] = f.server.Connect(t, f.dsn)
		for _, sql := range []string{"begin", fmt.Sprintf("insert into t select i, repeat('x', 100) from generate_series(%d, %d) i", i*1000, i*1000+99)} {
			if _, err := conns[i].Exec(testContext(t), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.wantStreamed(many / 2)
	for i, conn := range conns {
		sql := "commit"
		if i%4 == 3 {
			sql = "rollback"
		}
		if _, err := conn.Exec(testContext(t), sql); err != nil {
			t.Fatal(err)
		}
	}
	for i := range conns {
		if i%4 == 3 {
			continue
		}
		tx := st.next()
		if len(tx.Changes) != 100 || !strings.HasPrefix(show(tx), fmt.Sprintf("INSERT t (%d, ", i*1000)) {
			t.Fatalf("transaction %d has %d changes: %.60s", i, len(tx.Changes), show(tx))
		}
	}
}

func TestCheckFindsAnUnusableSpoolFolder(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "create table t(id int primary key)")
	f.source.cfg.SpoolDir = "/dev/null/spool"
	findings, err := f.source.Check(testContext(t), f.followed())
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range findings {
		if finding.Blocks && strings.Contains(finding.Remedy, "source.spool_dir") {
			return
		}
	}
	t.Errorf("not found: %+v", findings)
}

// message builds what the plugin sends.
type message []byte

func (m message) u8(v byte) message    { return append(m, v) }
func (m message) u16(v uint16) message { return binary.BigEndian.AppendUint16(m, v) }
func (m message) u32(v uint32) message { return binary.BigEndian.AppendUint32(m, v) }
func (m message) u64(v uint64) message { return binary.BigEndian.AppendUint64(m, v) }
func (m message) str(s string) message { return append(append(m, s...), 0) }

// relationMessage describes the one table of these messages, with columns of text;
// xid 0: outside of a block.
func relationMessage(xid uint32, columns ...string) message {
	m := message{'R'}
	if xid != 0 {
		m = m.u32(xid)
	}
	m = m.u32(7).str("public").str("t").u8('d').u16(uint16(len(columns)))
	for _, c := range columns {
		m = m.u8(0).str(c).u32(25).u32(^uint32(0))
	}
	return m
}

func insertMessage(xid uint32, values ...string) message {
	m := message{'I'}
	if xid != 0 {
		m = m.u32(xid)
	}
	m = m.u32(7).u8('N').u16(uint16(len(values)))
	for _, v := range values {
		m = append(m.u8('t').u32(uint32(len(v))), v...)
	}
	return m
}

func startMessage(xid uint32, first byte) message { return message{'S'}.u32(xid).u8(first) }
func doneMessage(xid uint32, at uint64) message {
	return message{'c'}.u32(xid).u8(0).u64(at).u64(at + 10).u64(1)
}
func beginMessage(at uint64) message  { return message{'B'}.u64(at).u64(1).u32(uint32(at)) }
func commitMessage(at uint64) message { return message{'C'}.u8(0).u64(at).u64(at + 10).u64(1) }

// fed is what comes of messages, transaction by transaction, with the columns of
// each row's table.
func (f *fixture) fed(t *testing.T, messages ...message) ([]string, error) {
	t.Helper()
	s, err := f.source.openSpool()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var got []string
	out := func(_ context.Context, seg *change.Segment) error {
		for _, tx := range seg.Txs {
			for _, c := range tx.Changes {
				got = append(got, fmt.Sprintf("%v %s %s", tx.Begin, c.Table.ColumnNames(), showRow(c.Table, c.New)))
			}
		}
		return nil
	}
	r := &follower{source: f.source, out: out, streams: streams{spool: s},
		layouts: layouts{known: map[uint32]*layout{}, names: map[uint32]string{}}, build: segment.Builder{PieceBytes: 1 << 20}}
	for _, m := range messages {
		if err := r.logMessage(testContext(t), m); err != nil {
			return nil, err
		}
	}
	return got, r.handOn(testContext(t), false)
}

// The server sends a layout to all once, and to each streamed transaction once;
// the one it sent last is what it goes by, whatever commits last.
func TestLayoutOfAStreamedTransaction(t *testing.T) {
	f := bare(t, dbtest.Postgres(t))
	stop := message{'E'}
	abort := func(xid, sub uint32) message { return message{'A'}.u32(xid).u32(sub) }
	for name, c := range map[string]struct {
		in   []message
		want []string
	}{
		"becomes known to all": {
			[]message{startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "1", "2"), stop, doneMessage(1, 100),
				beginMessage(200), insertMessage(0, "3", "4"), commitMessage(200)},
			[]string{"0/64 a, b (1, 2)", "0/C8 a, b (3, 4)"}},
		"gives way to a newer one": {
			[]message{startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "1", "2"), stop,
				beginMessage(50), relationMessage(0, "a", "c"), insertMessage(0, "3", "4"), commitMessage(50),
				doneMessage(1, 100),
				beginMessage(200), insertMessage(0, "5", "6"), commitMessage(200)},
			[]string{"0/32 a, c (3, 4)", "0/64 a, b (1, 2)", "0/C8 a, c (5, 6)"}},
		"is newer than one between": {
			[]message{startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "1", "2"), stop,
				beginMessage(50), relationMessage(0, "a", "c"), insertMessage(0, "3", "4"), commitMessage(50),
				startMessage(1, 0), relationMessage(1, "a", "d"), insertMessage(1, "5", "6"), stop, doneMessage(1, 100),
				beginMessage(200), insertMessage(0, "7", "8"), commitMessage(200)},
			[]string{"0/32 a, c (3, 4)", "0/64 a, b (1, 2)", "0/64 a, d (5, 6)", "0/C8 a, d (7, 8)"}},
		"repeated to all counts as newer": {
			[]message{beginMessage(40), relationMessage(0, "a", "c"), insertMessage(0, "1", "2"), commitMessage(40),
				startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "3", "4"), stop,
				beginMessage(50), relationMessage(0, "a", "c"), insertMessage(0, "5", "6"), commitMessage(50), doneMessage(1, 100),
				beginMessage(200), insertMessage(0, "7", "8"), commitMessage(200)},
			[]string{"0/28 a, c (1, 2)", "0/32 a, c (5, 6)", "0/64 a, b (3, 4)", "0/C8 a, c (7, 8)"}},
		"goes with an abort": {
			[]message{beginMessage(50), relationMessage(0, "a", "c"), insertMessage(0, "1", "2"), commitMessage(50),
				startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "3", "4"), stop, abort(1, 1),
				beginMessage(200), insertMessage(0, "5", "6"), commitMessage(200)},
			[]string{"0/32 a, c (1, 2)", "0/C8 a, c (5, 6)"}},
		"goes with a subtransaction": {
			[]message{startMessage(1, 1), relationMessage(1, "a", "b"), insertMessage(1, "1", "2"),
				relationMessage(2, "a", "b2"), insertMessage(2, "3", "4"), insertMessage(3, "5", "6"), stop, abort(1, 3), abort(1, 2),
				startMessage(1, 0), relationMessage(1, "a", "b"), insertMessage(1, "7", "8"), stop, doneMessage(1, 100)},
			[]string{"0/64 a, b (1, 2)", "0/64 a, b (7, 8)"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := f.fed(t, c.in...)
			if err != nil {
				t.Fatal(err)
			}
			wantText(t, "changes", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		})
	}
}

func TestImpossibleStreamsAreCorrupt(t *testing.T) {
	f := bare(t, dbtest.Postgres(t))
	stop := message{'E'}
	for name, in := range map[string][]message{
		"a block goes on that never began":       {startMessage(1, 0)},
		"a transaction begins twice":             {startMessage(1, 1), stop, startMessage(1, 1)},
		"a block ends that never began":          {stop},
		"a commit of nothing":                    {doneMessage(1, 100)},
		"a block inside a transaction":           {beginMessage(1), startMessage(1, 1)},
		"a transaction inside a block":           {startMessage(1, 1), beginMessage(1)},
		"a block inside a block":                 {startMessage(1, 1), startMessage(2, 1)},
		"a commit inside a block":                {startMessage(1, 1), doneMessage(1, 100)},
		"a row of a table that is not described": {startMessage(1, 1), insertMessage(1, "1"), stop, doneMessage(1, 100)},
		"a layout of others": {beginMessage(50), relationMessage(0, "a"), insertMessage(0, "1"), commitMessage(50),
			startMessage(1, 1), insertMessage(1, "1"), stop, doneMessage(1, 100)},
		"a message that is cut off": {startMessage(1, 1), relationMessage(1, "a"), insertMessage(1, "1")[:12], stop, doneMessage(1, 100)},
		"a commit that ends early":  {startMessage(1, 1), stop, message{'c'}.u32(1).u8(0).u64(9).u64(9).u64(0)},
		"transaction 0":             {startMessage(0, 1)},
		"an empty message":          {startMessage(1, 1), {}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := f.fed(t, in...); fault.KindOf(err) != fault.Corrupt {
				t.Errorf("got %v", err)
			}
		})
	}
}
