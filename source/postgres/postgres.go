// Package postgres follows a PostgreSQL database (14 to 18) by logical decoding:
// a replication slot with the built-in plugin pgoutput, publications that say
// which tables, and a snapshot exported by the slot's making for the first copy.
//
// What belongs to a pipeline on the server is found by name alone (names.go), so
// nothing about it needs to be remembered elsewhere.
package postgres

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// Config says which database and which objects in it.
type Config struct {
	DSN         string       // anything pgx understands: URL, keywords, PG* variables, .pgpass, TLS; never logged
	Pipeline    string       // names the slot and the publications
	Slot        string       // an existing slot to use as it is; empty: one of ours
	Publication string       // an existing publication to use as it is; empty: two of ours
	Streaming   bool         // large transactions are sent while they are open, and kept on disk until they commit
	SpoolDir    string       // where; empty: tailrace_PIPELINE in the system's folder for temporary files
	SpoolMax    int64        // bytes of them on disk at most; 0: 20 GiB
	AppName     string       // application_name; empty: tailrace/PIPELINE
	Logger      *slog.Logger // nil: slog.Default()
}

// Source implements source.Source for PostgreSQL.
type Source struct {
	cfg   Config
	names names
	conn  *pgx.ConnConfig // parsed DSN, without our parameters
	log   *slog.Logger

	// side is the one ordinary session for catalogue and housekeeping, made when
	// first needed; the channel of one is its lock.
	side  chan *pgx.Conn
	types typeCache

	confirmed  atomic.Uint64 // told, or to be told, to the server as flushed
	confirmNow chan struct{} // of one: confirmed has moved

	eager   bool          // measurements only: read without pauses
	silence time.Duration // least time without a byte before the server counts as gone
}

var _ source.Source = (*Source)(nil)

// New prepares a source; it connects to nothing.
func New(cfg Config) (*Source, error) {
	if strings.TrimSpace(cfg.Pipeline) == "" {
		return nil, fault.Badly("the pipeline has no name")
	}
	conn, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		// The driver's own text may quote the string, password and all.
		return nil, fault.Badly("source.dsn is not a PostgreSQL connection string " +
			"(postgres://user:password@host:5432/database with special characters percent-encoded, or host=... user=... dbname=...), " +
			"or a file it names (certificate, key, password file, service) cannot be read")
	}
	if cfg.AppName == "" {
		cfg.AppName = "tailrace/" + cfg.Pipeline
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Source{
		cfg: cfg, names: nameAll(cfg), conn: conn, log: cfg.Logger,
		side:       make(chan *pgx.Conn, 1),
		confirmNow: make(chan struct{}, 1),
		silence:    30 * time.Second,
	}
	s.side <- nil
	return s, nil
}

// askPatience is for what one ask does: statements on catalogues, which may be large,
// and the waits of dropSlot and of publications for a lock. lookPatience is for looks
// at the source while its log is read: beyond it, it counts as away.
const (
	askPatience  = 2 * time.Minute
	lookPatience = 30 * time.Second
)

// ask runs fn on the side session. A session that turns out to be dead is
// replaced once, so fn must be safe to run twice. fn is given a context that ends
// after askPatience: a server that has gone silent would hold it for ever.
func (s *Source) ask(ctx context.Context, fn func(context.Context, *pgx.Conn) error) error {
	ctx, done := context.WithTimeout(ctx, askPatience)
	defer done()
	var conn *pgx.Conn
	select {
	case conn = <-s.side:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.side <- conn }()
	for {
		fresh := conn == nil || conn.IsClosed()
		if fresh {
			var err error
			if conn, err = s.connect(ctx); err != nil {
				conn = nil
				return err
			}
		}
		err := fn(ctx, conn)
		if err == nil || fresh || !conn.IsClosed() || ctx.Err() != nil {
			return err
		}
	}
}

// Confirm implements source.Source.
func (s *Source) Confirm(p change.Position) {
	for {
		old := s.confirmed.Load()
		if p.Offset <= old {
			return
		}
		if s.confirmed.CompareAndSwap(old, p.Offset) {
			break
		}
	}
	select {
	case s.confirmNow <- struct{}{}:
	default:
	}
}

// Close implements source.Source.
func (s *Source) Close(ctx context.Context) error {
	select {
	case conn := <-s.side:
		s.side <- nil
		if conn != nil {
			return conn.Close(ctx)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
