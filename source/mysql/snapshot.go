package mysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// snapshot is one moment of the server, seen by several sessions: see begin for how they
// come to see the same one.
type snapshot struct {
	source   *Source
	db       *sql.DB
	position change.Position
	resume   string
	clock    time.Time
	lock     string         // under which it was begun: see begin
	sessions chan *sql.Conn // idle; closed when the log behind the snapshot is followed
	all      []*sql.Conn
	followed bool
}

// markedPlace is the savepoint to which a session goes back after each table, so that no
// finished table stays locked against ALTER TABLE.
const markedPlace = "tailrace"

// Begin implements source.Source: there is no slot to make.
func (s *Source) Begin(ctx context.Context) (source.Snapshot, error) { return s.Snapshot(ctx) }

// Snapshot implements source.Source.
func (s *Source) Snapshot(ctx context.Context) (source.Snapshot, error) {
	n, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// errClosed is the error of a copy from a snapshot whose sessions are gone.
var errClosed = errors.New("the snapshot is closed")

func (s *Source) take(ctx context.Context) (_ *snapshot, err error) {
	f, err := s.readServer(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.refusal(); err != nil {
		return nil, err
	}
	if err := s.readCollations(ctx); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(s.dsn)
	if err != nil {
		return nil, fault.Badly("source.dsn: its settings do not go together")
	}
	n := &snapshot{source: s, db: sql.OpenDB(connector)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close(ctx))
		}
	}()
	if err := s.sameClock(ctx, &n.clock); err != nil {
		return nil, err
	}
	for range s.cfg.Sessions {
		conn, err := n.db.Conn(ctx)
		if err != nil {
			return nil, s.explain(err, "connect to the source")
		}
		n.all = append(n.all, conn)
		if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
			return nil, s.explain(err, "prepare a session")
		}
	}
	m, err := n.begin(ctx, f)
	if err != nil {
		return nil, err
	}
	if n.position, err = s.positionOf(m.file, m.offset); err != nil {
		return nil, err
	}
	n.lock, n.resume = m.lock, resume{file: m.file, gtids: m.set}.String()
	n.sessions = make(chan *sql.Conn, len(n.all))
	for _, conn := range n.all {
		n.sessions <- conn
	}
	s.log.Info("took a snapshot", "position", n.position.String(), "file", m.file, "sessions", len(n.all), "lock", m.lock)
	return n, nil
}

// sameClock reads the source's clock.
func (s *Source) sameClock(ctx context.Context, into *time.Time) error {
	var us int64
	if err := s.db.QueryRowContext(ctx, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)").Scan(&us); err != nil {
		return s.explain(err, "read the source's clock")
	}
	*into = time.UnixMicro(us).UTC()
	return nil
}

func (n *snapshot) Position() change.Position { return n.position }
func (n *snapshot) Clock() time.Time          { return n.clock }

// Resume implements source.Resumable.
func (n *snapshot) Resume() string { return n.resume }

// Close implements source.Snapshot.
func (n *snapshot) Close(context.Context) error { return errors.Join(n.endSessions(), n.db.Close()) }

// endSessions lets go of what the sessions hold back at the server: old versions of rows.
func (n *snapshot) endSessions() error {
	var err error
	for _, conn := range n.all {
		if e := conn.Close(); !errors.Is(e, sql.ErrConnDone) {
			err = errors.Join(err, e)
		}
	}
	return err
}
