package postgres

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// fixture is a database with tables, a source on it, and a slot that has begun.
type fixture struct {
	t      testing.TB
	server *dbtest.Server
	dsn    string
	source *Source
	from   change.Position
}

// everyServer runs a test on each installation.
func everyServer(t *testing.T, run func(t *testing.T, server *dbtest.Server)) {
	for _, server := range dbtest.Postgreses(t) {
		t.Run(fmt.Sprint(server.Version()), func(t *testing.T) { run(t, server) })
	}
}

// bare makes a database and a source, and nothing on the server yet.
func bare(t testing.TB, server *dbtest.Server, ddl ...string) *fixture {
	t.Helper()
	name := server.DatabaseName(t)
	f := &fixture{t: t, server: server, dsn: server.DSN(name)}
	f.exec(ddl...)
	f.source = newSource(t, Config{DSN: f.dsn, Pipeline: "p" + name, Streaming: true, SpoolDir: t.TempDir()})
	return f
}

// begun also publishes every table, keyless ones append-only, and begins.
func begun(t testing.TB, server *dbtest.Server, ddl ...string) *fixture {
	t.Helper()
	f := bare(t, server, ddl...)
	f.publish()
	f.begin()
	return f
}

func newSource(t testing.TB, cfg Config) *Source {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return s
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (f *fixture) exec(statements ...string) { f.t.Helper(); f.server.Exec(f.t, f.dsn, statements...) }

func (f *fixture) query(sql string) string {
	f.t.Helper()
	return strings.Join(f.server.Query(f.t, f.dsn, sql), "\n")
}

func (f *fixture) relations() []source.Relation {
	f.t.Helper()
	relations, err := f.source.Relations(testContext(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	return relations
}

func (f *fixture) relation(name string) source.Relation {
	f.t.Helper()
	for _, r := range f.relations() {
		if r.Table.Name.Table == name {
			return r
		}
	}
	f.t.Fatalf("no relation %s", name)
	panic("unreachable")
}

// followed lists what can be followed.
func (f *fixture) followed() []source.Followed {
	f.t.Helper()
	var followed []source.Followed
	for _, r := range f.relations() {
		if r.Problem == "" {
			followed = append(followed, source.Followed{Table: r.Table, AppendOnly: !r.Usable})
		}
	}
	return followed
}

func (f *fixture) publish() {
	f.t.Helper()
	if err := f.source.Publish(testContext(f.t), f.followed()); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) begin() {
	f.t.Helper()
	ctx := testContext(f.t)
	snap, err := f.source.Begin(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	f.from = snap.Position()
	if err := snap.Close(ctx); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) confirmed() change.Position {
	f.t.Helper()
	text := f.query("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = " + literal(f.source.names.slot))
	p, err := change.ParsePosition(text)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

// stream is a running Follow.
type stream struct {
	t      testing.TB
	source *Source
	txs    chan change.Tx
	cancel context.CancelFunc
	done   chan error
}

// follow starts following; every transaction and quiet point goes to the stream.
func (f *fixture) follow(o source.FollowOptions) *stream {
	f.t.Helper()
	return followWith(f.t, f.source, f.from, o, nil)
}

// followWith calls hook, if not nil, for each segment before it is passed on.
func followWith(t testing.TB, s *Source, from change.Position, o source.FollowOptions, hook func(context.Context, *change.Segment) error) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	st := &stream{t: t, source: s, txs: make(chan change.Tx, 1<<20), cancel: cancel, done: make(chan error, 1)}
	go func() {
		st.done <- s.Follow(ctx, from, o, func(ctx context.Context, seg *change.Segment) error {
			if hook != nil {
				if err := hook(ctx, seg); err != nil {
					return err
				}
			}
			for _, tx := range seg.Txs {
				st.txs <- tx
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-st.done:
			st.done <- err
		case <-time.After(30 * time.Second):
			t.Error("Follow did not end within 30 s")
		}
	})
	return st
}

// next returns the next transaction with changes.
func (st *stream) next() change.Tx {
	st.t.Helper()
	for {
		if tx := st.any(); len(tx.Changes) > 0 || !tx.Last || !tx.First {
			return tx
		}
	}
}

// any returns the next transaction or quiet point.
func (st *stream) any() change.Tx {
	st.t.Helper()
	select {
	case tx := <-st.txs:
		return tx
	case err := <-st.done:
		st.done <- err
		st.t.Fatalf("Follow ended: %v", err)
	case <-time.After(20 * time.Second):
		st.t.Fatal("nothing came within 20 s")
	}
	panic("unreachable")
}

// nothing asserts that no change comes for a while.
func (st *stream) nothing(d time.Duration) {
	st.t.Helper()
	deadline := time.After(d)
	for {
		select {
		case tx := <-st.txs:
			if len(tx.Changes) > 0 {
				st.t.Fatalf("unexpected: %s", show(tx))
			}
		case <-deadline:
			return
		}
	}
}

// stop ends the stream and returns Follow's error.
func (st *stream) stop() error {
	st.t.Helper()
	st.cancel()
	return st.ended()
}

func (st *stream) ended() error {
	st.t.Helper()
	select {
	case err := <-st.done:
		st.done <- err
		return err
	case <-time.After(20 * time.Second):
		st.t.Fatal("Follow did not end within 20 s")
	}
	panic("unreachable")
}

// show prints a transaction: "INSERT t (1, x); UPDATE t K(1, ~) -> (2, ?)". NULL is
// ~, not sent is ?, K marks an old key and O an old row.
func show(tx change.Tx) string {
	var parts []string
	for _, c := range tx.Changes {
		s := c.Op.String() + " " + c.Table.Name.Table
		if c.Old != nil {
			mark := " O"
			if c.OldIsKey {
				mark = " K"
			}
			s += mark + showRow(c.Table, c.Old)
			if c.New != nil {
				s += " ->"
			}
		}
		if c.New != nil {
			s += " " + showRow(c.Table, c.New)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

func showRow(t *change.Table, r change.Row) string {
	values, err := r.Values(nil, len(t.Columns))
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, v := range values {
		switch v.State {
		case change.Null:
			out = append(out, "~")
		case change.Absent:
			out = append(out, "?")
		case change.Binary:
			out = append(out, fmt.Sprintf("x%x", v.Data))
		default:
			text := string(v.Data)
			if len(text) > 40 {
				text = fmt.Sprintf("%s...%d", text[:4], len(text))
			}
			out = append(out, text)
		}
	}
	return "(" + strings.Join(out, ", ") + ")"
}

func wantText(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func wantTx(t testing.TB, tx change.Tx, want string) {
	t.Helper()
	wantText(t, "transaction", show(tx), want)
	if !tx.First || !tx.Last {
		t.Errorf("First %v, Last %v: not whole", tx.First, tx.Last)
	}
	if tx.End.IsZero() || !tx.Begin.Before(tx.End) || tx.XID == 0 || tx.CommitTime.IsZero() {
		t.Errorf("begin %v, end %v, xid %d, time %v", tx.Begin, tx.End, tx.XID, tx.CommitTime)
	}
	for i, c := range tx.Changes {
		if c.Ordinal != uint64(i) {
			t.Errorf("change %d has ordinal %d", i, c.Ordinal)
		}
	}
}

func eventually(t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func sortedNames(relations []source.Relation) []string {
	var names []string
	for _, r := range relations {
		names = append(names, r.Table.Name.String())
	}
	slices.Sort(names)
	return names
}
