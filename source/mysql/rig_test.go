package mysql

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// rig is one database of one server, and a source on it.
type rig struct {
	*testing.T
	server   *dbtest.MyServer
	database string
	source   *Source
}

// onAll runs a test on each server that is there.
func onAll(t *testing.T, test func(r *rig), opts ...dbtest.Option) {
	for _, server := range dbtest.MySQLs(t, opts...) {
		t.Run(server.Binaries.Full, func(t *testing.T) { test(newRig(t, server, Config{})) })
	}
}

func newRig(t *testing.T, server *dbtest.MyServer, cfg Config) *rig {
	t.Helper()
	r := &rig{T: t, server: server, database: server.Database(t)}
	cfg.DSN, cfg.Pipeline = server.URL(r.database), "test "+r.database
	cfg.Logger = slog.New(slog.DiscardHandler)
	r.source = r.open(cfg)
	return r
}

func (r *rig) open(cfg Config) *Source {
	r.Helper()
	s, err := New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { s.Close(context.Background()) })
	return s
}

func (r *rig) exec(statements ...string) {
	r.Helper()
	r.server.Exec(r.T, r.database, statements...)
}

func (r *rig) name(table string) change.Name { return change.Name{Schema: r.database, Table: table} }

// relation finds a table in the catalogue.
func (r *rig) relation(table string) source.Relation {
	r.Helper()
	all, err := r.source.Relations(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	for _, rel := range all {
		if rel.Table.Name == r.name(table) {
			return rel
		}
	}
	r.Fatalf("no table %s", table)
	return source.Relation{}
}

func (r *rig) head() change.Position {
	r.Helper()
	p, err := r.source.Head(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// copyTable reads a table's rows in a new snapshot, sorted.
func (r *rig) copyTable(table string) []string {
	r.Helper()
	rel := r.relation(table)
	snap, err := r.source.Snapshot(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	defer snap.Close(context.Background())
	return r.copyFrom(snap, rel)
}

func (r *rig) copyFrom(snap source.Snapshot, rel source.Relation) []string {
	r.Helper()
	var buf bytes.Buffer
	req := source.CopyRequest{Table: rel.Table}
	for _, c := range rel.Table.Columns {
		req.Columns = append(req.Columns, c.Name)
	}
	n, err := snap.Copy(r.Context(), req, &buf)
	if err != nil {
		r.Fatal(err)
	}
	var rows []string
	in := copystream.NewReader(&buf, false, len(req.Columns))
	for {
		row, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			r.Fatal(err)
		}
		rows = append(rows, show(row, len(req.Columns)))
	}
	if int(n) != len(rows) {
		r.Fatalf("copied %d rows, counted %d", len(rows), n)
	}
	sort.Strings(rows)
	return rows
}

// show prints a row: NULL, - for a column that is absent, values in brackets.
func show(row change.Row, columns int) string {
	if row == nil {
		return "none"
	}
	values, err := row.Values(nil, columns)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, v := range values {
		switch v.State {
		case change.Null:
			b.WriteString("NULL ")
		case change.Absent:
			b.WriteString("- ")
		default:
			fmt.Fprintf(&b, "[%s] ", v.Data)
		}
	}
	return strings.TrimSpace(b.String())
}

// event is a change as a test sees it.
type event struct {
	tx    int
	op    change.Op
	table string
	old   string
	isKey bool
	new   string
}

func (e event) String() string {
	s := fmt.Sprintf("%s %s", e.op, e.table)
	if e.old != "none" {
		s += " old " + e.old
		if e.isKey {
			s += " (key)"
		}
	}
	if e.new != "none" {
		s += " new " + e.new
	}
	return s
}

// history is what Follow gave up to a position.
type history struct {
	txs    []change.Tx
	events []event
	end    change.Position
	resume string
}

// follow reads from a position until one, and checks what every stream must keep.
func (r *rig) follow(from, until change.Position, o source.FollowOptions) (history, error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 60*time.Second)
	defer cancel()
	var h history
	reached := errors.New("reached")
	end := from
	open := false
	var ordinal uint64
	err := r.source.Follow(ctx, from, o, func(_ context.Context, seg *change.Segment) error {
		for _, tx := range seg.Txs {
			if tx.First == open {
				return fmt.Errorf("a transaction begins: %v inside another: %v", tx.First, open)
			}
			if tx.First {
				ordinal = 0
			}
			if len(tx.Changes) > 0 && tx.Begin.Before(end) {
				return fmt.Errorf("transaction begins at %s, before the last end %s", tx.Begin, end)
			}
			for i := range tx.Changes {
				c := &tx.Changes[i]
				if c.Ordinal != ordinal {
					return fmt.Errorf("ordinal %d, want %d", c.Ordinal, ordinal)
				}
				ordinal++
				n := len(c.Table.Columns)
				h.events = append(h.events, event{tx: len(h.txs), op: c.Op, table: c.Table.Name.Table, old: show(c.Old, n), isKey: c.OldIsKey, new: show(c.New, n)})
			}
			open = !tx.Last
			h.txs = append(h.txs, tx)
			if !tx.Last {
				continue
			}
			if tx.End.Compare(end) <= 0 {
				return fmt.Errorf("transaction ends at %s, the one before at %s", tx.End, end)
			}
			end = tx.End
			h.end, h.resume = tx.End, tx.Resume
			if until.Compare(tx.End) <= 0 {
				return reached
			}
		}
		return nil
	})
	if errors.Is(err, reached) {
		return h, nil
	}
	return h, err
}

// stream is follow to the present end of the log; errors end the test.
func (r *rig) stream(from change.Position) history {
	r.Helper()
	h, err := r.follow(from, r.head(), source.FollowOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return h
}

func (r *rig) want(h history, events ...string) {
	r.Helper()
	var got []string
	for _, e := range h.events {
		got = append(got, e.String())
	}
	if strings.Join(got, "\n") != strings.Join(events, "\n") {
		r.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(events, "\n"))
	}
}
