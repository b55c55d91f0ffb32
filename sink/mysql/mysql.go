// Package mysql writes to a destination that is MariaDB 10.6 or later, or MySQL 8.0.17
// or later.
package mysql

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	driver "github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// Config says where to write and as whom.
type Config struct {
	DSN      string // mysql://USER:PASSWORD@HOST:3306/DATABASE?tls=true
	Pipeline string // name of the pipeline: the key of its bookkeeping
	Schema   string // database where targets without a schema lie; the DSN's if empty
	Logger   *slog.Logger
}

// Writer is a MariaDB or MySQL destination of one pipeline.
//
// It holds at most two lasting sessions: a small one (side) for ownership, heartbeat,
// state and durability, so that these never wait behind a batch, and one for Apply. Scan
// and Show open a session each for as long as they run; Plan, Create and Load share
// some, which end with the first batch.
//
// What makes a batch exactly-once is one row: _tailrace.marks. It holds the position and
// the owner's epoch, and every transaction that writes rows ends with an UPDATE of it
// that demands our epoch and is taken back if it meets no row, so that rows, position
// and fence stand or fall together. The owner's heartbeat is in another table: a batch
// that holds the mark's row must not make its own owner look dead.
//
// These servers commit at every DDL statement and at TRUNCATE. So a batch holds neither:
// a TRUNCATE is a DELETE, and what a batch needs in tables is there before it begins.
// What is made beside a batch is written down before it is made (made) or after
// (sequenced), so that a start after a crash goes on from there.
type Writer struct {
	cfg  Config
	conf *driver.Config
	id   string // of this Writer's sessions: in the names of their locks

	sessions atomic.Uint32 // opened

	side struct {
		sync.Mutex
		*session
	}
	mu       sync.Mutex // guards what follows
	epoch    int64      // 0 until owned
	applied  change.Position
	durables durables
	idle     []*session // of the copy
	user     string     // see account
	undo     undo

	permits permits

	apply applier    // used by Apply alone
	stall sink.Stall // of Apply, as the heartbeat sees it
}

var (
	_ sink.Writer   = (*Writer)(nil)
	_ sink.Memory   = (*Writer)(nil)
	_ sink.Resyncs  = (*Writer)(nil)
	_ sink.Views    = (*Writer)(nil)
	_ sink.Pauses   = (*Writer)(nil)
	_ sink.Requests = (*Writer)(nil)
)

// New makes a Writer; it connects when first used.
func New(cfg Config) (*Writer, error) {
	conf, err := parseDSN(cfg.DSN)
	if err != nil {
		return nil, err
	}
	if cfg.Pipeline == "" {
		return nil, fault.Badly("the destination needs the pipeline's name")
	}
	if cfg.Schema == "" {
		cfg.Schema = conf.DBName
	}
	if cfg.Schema == "" {
		return nil, fault.Badly("name the database for targets without a schema: mysql://.../DATABASE in the destination's dsn, or destination.schema")
	}
	conf.DBName = "" // it may have to be made
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
	w.apply.close()
	w.closeIdle()
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
	defer s.close()
	if epoch != 0 && !s.dead {
		// What was lost on the way may still hold locks.
		if err := endSessions(ctx, s, w.id); err != nil {
			w.cfg.Logger.Debug("sessions may stay behind until they are taken for dead", "pipeline", w.cfg.Pipeline, "error", w.explain(err, "end what is left of the sessions", nil))
		}
		// An error leaves the row. This process takes it over when it comes back; another
		// finds our process gone, or waits until the row is stale.
		if _, err := s.exec(ctx, bind(releaseSQL, w.cfg.Pipeline, epoch)); err != nil && !missingBook(err) {
			w.cfg.Logger.Debug("the owner's row stays behind", "pipeline", w.cfg.Pipeline, "error", w.explain(err, "give up ownership", nil))
		}
	}
	return nil
}

// A session costs a connection, a sign-on and a thread of the server. With a thousand
// tables to look at, to make and to load that would be seconds. So Plan, Create and the
// copy hand theirs on to the next, until a batch is applied: from then on none lies idle.

// borrow gives an idle session or a new one, for looking at tables, making and loading
// them.
func (w *Writer) borrow(ctx context.Context) (*session, error) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		s := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		return s, nil
	}
	w.mu.Unlock()
	return w.connect(ctx)
}

// giveBack keeps a session that has ended its transaction well, and closes another.
func (w *Writer) giveBack(s *session, good bool) {
	if !good || s.dead {
		s.close()
		return
	}
	w.mu.Lock()
	w.idle = append(w.idle, s)
	w.mu.Unlock()
}

// closeIdle ends the idle sessions.
func (w *Writer) closeIdle() {
	w.mu.Lock()
	idle := w.idle
	w.idle = nil
	w.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
}
