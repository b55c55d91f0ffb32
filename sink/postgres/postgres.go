// Package postgres writes to a PostgreSQL destination, version 14 or later.
package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// Config says where to write and as whom.
type Config struct {
	DSN      string // connection string, as libpq takes it
	Pipeline string // name of the pipeline: the key of its bookkeeping
	Schema   string // where targets without a schema lie; "public" if empty
	AppName  string // start of the sessions' application_name; "tailrace" if empty
	Logger   *slog.Logger
}

// Writer is a PostgreSQL destination of one pipeline.
//
// It holds at most two lasting sessions: a small one (side) for ownership,
// heartbeat, state and durability, so that these never wait behind a batch, and
// one for Apply. Scan and Show open a session each for as long as they run; Plan,
// Create, Load and the parts of a copy share some, which end with the first batch.
//
// What makes a batch exactly-once is one row: _tailrace.marks. It holds the
// position and the owner's epoch, and every transaction that writes rows ends
// with an UPDATE of it that demands our epoch and raises an error otherwise, so
// that rows, position and fence stand or fall together. The owner's heartbeat is
// in another table: a batch that holds the mark's row for long must not make its
// own owner look dead.
type Writer struct {
	cfg  Config
	conf *pgconn.Config
	id   string // of this Writer's sessions: the last 8 letters of their application_name

	side struct {
		sync.Mutex
		*session
	}
	mu       sync.Mutex // guards what follows
	epoch    int64      // 0 until owned
	applied  change.Position
	durables durables
	idle     []*session // of the copy
	keeping  keeping    // old rows for rewind points

	// mark is held while a transaction writes the mark's row, by Save or by the end
	// of a batch, so that the row's place is known to both.
	mark struct {
		sync.Mutex
		place string // ctid; "" if unknown
	}

	apply applier    // used by Apply alone
	stall sink.Stall // of Apply, as the heartbeat sees it
}

var (
	_ sink.Writer  = (*Writer)(nil)
	_ sink.Resyncs = (*Writer)(nil)
	_ sink.Views   = (*Writer)(nil)
	_ sink.Rewinds = (*Writer)(nil)
)

// New makes a Writer; it connects when first used.
func New(cfg Config) (*Writer, error) {
	conf, err := pgconn.ParseConfig(cfg.DSN)
	if err != nil {
		// The parser's text can hold parts of a password with odd letters.
		return nil, fault.Badly("the destination's dsn is no connection string of PostgreSQL: write it as postgres://USER:PASSWORD@HOST:5432/DATABASE with odd letters of user and password percent-encoded")
	}
	patiently(conf)
	if cfg.Pipeline == "" {
		return nil, fault.Badly("the destination needs the pipeline's name")
	}
	if cfg.Schema == "" {
		cfg.Schema = "public"
	}
	if cfg.AppName == "" {
		cfg.AppName = "tailrace"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	var b [4]byte
	rand.Read(b[:])
	w := &Writer{cfg: cfg, conf: conf, id: hex.EncodeToString(b[:])}
	w.apply.w = w
	return w, nil
}

// qualified gives a target's name its schema.
func (w *Writer) qualified(n change.Name) change.Name {
	if n.Schema == "" {
		n.Schema = w.cfg.Schema
	}
	return n
}

// owned returns the epoch we write under.
func (w *Writer) owned() (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.epoch == 0 {
		return 0, errors.New("the pipeline is not owned by this process")
	}
	return w.epoch, nil
}

// Close gives up ownership and ends all sessions.
func (w *Writer) Close(ctx context.Context) error {
	w.apply.close(ctx)
	w.closeIdle(ctx)
	w.side.Lock()
	defer w.side.Unlock()
	s := w.side.session
	w.side.session = nil
	w.mu.Lock()
	epoch := w.epoch
	w.epoch = 0
	w.mu.Unlock()
	if s == nil {
		return nil
	}
	defer s.close(ctx)
	if epoch != 0 && !s.conn.IsClosed() {
		// An error leaves the row. This process takes it over when it comes back; another
		// finds our process gone, or waits until the row is stale.
		if _, err := s.query(ctx, releaseSQL, w.cfg.Pipeline, epoch); err != nil && !missingBook(err) {
			w.cfg.Logger.Debug("the owner's row stays behind", "pipeline", w.cfg.Pipeline, "error", w.explain(ctx, err, "give up ownership", nil))
		}
	}
	return nil
}
