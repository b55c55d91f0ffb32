package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// snapshot is one moment of the server, seen by several sessions.
//
// A session cannot join another's snapshot here, so all of them begin theirs at once,
// while the log stands still. MariaDB tells each session where in the log its snapshot
// is: if all say the same, no lock was needed. Else, and on MySQL, a global read lock
// holds commits back for as long as the sessions need to begin: some milliseconds. How
// long we may wait for that lock is limited, because everybody who writes waits behind
// us.
type snapshot struct {
	source   *Source
	db       *sql.DB
	position change.Position
	resume   string
	clock    time.Time
	sessions chan *sql.Conn // idle
	all      []*sql.Conn
}

const (
	// lockPatience is how long writers may have to wait behind our wish for the lock,
	// while it waits for statements that run.
	lockPatience = 3 * time.Second
	// lockAttempts and the growing pauses between them give long statements half a minute
	// to end.
	lockAttempts = 6
	// freeAttempts is how often sessions are begun without a lock until they agree.
	freeAttempts = 5
	// markedPlace is the savepoint to which a session goes back after each table, so that
	// no finished table stays locked against ALTER TABLE.
	markedPlace = "tailrace"
)

// Begin implements source.Source: there is no slot to make.
func (s *Source) Begin(ctx context.Context) (source.Snapshot, error) { return s.Snapshot(ctx) }

// Snapshot implements source.Source.
func (s *Source) Snapshot(ctx context.Context) (_ source.Snapshot, err error) {
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
	var file, set string
	var offset uint64
	if f.mariaDB {
		file, offset, err = n.beginFreely(ctx)
		if err == nil && file != "" {
			set, err = s.gtidsAt(ctx, s.db, file, offset)
		}
	}
	if err == nil && file == "" {
		file, offset, set, err = n.beginLocked(ctx, f.mariaDB)
	}
	if err != nil {
		return nil, err
	}
	if n.position, err = positionOf(file, offset); err != nil {
		return nil, err
	}
	n.resume = resume{file: file, gtids: set}.String()
	n.sessions = make(chan *sql.Conn, len(n.all))
	for _, conn := range n.all {
		n.sessions <- conn
	}
	s.log.Info("took a snapshot", "position", n.position.String(), "file", file, "sessions", len(n.all))
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

// beginSnapshot begins read-only, because a query may call functions that write.
const beginSnapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

// beginFreely begins the sessions of a MariaDB without a lock. It returns no file where
// they did not agree.
func (n *snapshot) beginFreely(ctx context.Context) (file string, offset uint64, err error) {
	for range freeAttempts {
		agree := true
		for i, conn := range n.all {
			name, at, err := n.beginOne(ctx, conn)
			if err != nil {
				return "", 0, err
			}
			if i == 0 {
				file, offset = name, at
			}
			agree = agree && name == file && at == offset
		}
		if agree {
			return file, offset, nil
		}
	}
	return "", 0, nil
}

// beginOne begins one session and asks where it stands; beginning again ends what was
// before.
func (n *snapshot) beginOne(ctx context.Context, conn *sql.Conn) (file string, offset uint64, err error) {
	if _, err := conn.ExecContext(ctx, beginSnapshot); err != nil {
		return "", 0, n.source.explain(err, "begin a snapshot")
	}
	rows, err := conn.QueryContext(ctx, "SHOW STATUS LIKE 'binlog_snapshot_%'")
	if err != nil {
		return "", 0, n.source.explain(err, "read the snapshot's position")
	}
	defer rows.Close()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return "", 0, fmt.Errorf("read the snapshot's position: %w", err)
		}
		switch name {
		case "Binlog_snapshot_file":
			file = value
		case "Binlog_snapshot_position":
			if _, err := fmt.Sscan(value, &offset); err != nil {
				return "", 0, fault.Corrupted("the server's snapshot is at no number")
			}
		}
	}
	return file, offset, n.source.explain(rows.Err(), "read the snapshot's position")
}

// beginLocked begins the sessions while a global read lock holds commits back.
func (n *snapshot) beginLocked(ctx context.Context, mariaDB bool) (file string, offset uint64, set string, err error) {
	s := n.source
	lock, err := n.db.Conn(ctx)
	if err != nil {
		return "", 0, "", s.explain(err, "connect to the source")
	}
	defer lock.Close() // ends the lock too
	if _, err := lock.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", int(lockPatience.Seconds()))); err != nil {
		return "", 0, "", s.explain(err, "prepare a session")
	}
	for attempt := 1; ; attempt++ {
		_, err = lock.ExecContext(ctx, "FLUSH TABLES WITH READ LOCK")
		if !isCode(err, errLockWait) || attempt == lockAttempts {
			break
		}
		s.log.Info("statements that run keep the source from being locked for a moment; will try again", "attempt", attempt)
		select {
		case <-time.After(time.Duration(attempt) * 2 * time.Second):
		case <-ctx.Done():
			return "", 0, "", ctx.Err()
		}
	}
	if isCode(err, errLockWait) {
		return "", 0, "", fault.Retry(err, "lock the source for a moment, which needs a moment without long statements (SHOW PROCESSLIST names them)")
	}
	if err != nil {
		return "", 0, "", s.explain(err, "lock the source for a moment (FLUSH TABLES WITH READ LOCK)")
	}
	began := time.Now()
	if file, offset, set, err = s.status(ctx, lock); err != nil {
		return "", 0, "", err
	}
	for _, conn := range n.all {
		if _, err := conn.ExecContext(ctx, beginSnapshot); err != nil {
			return "", 0, "", s.explain(err, "begin a snapshot")
		}
	}
	if mariaDB {
		if set, err = s.gtidsAt(ctx, lock, file, offset); err != nil {
			return "", 0, "", err
		}
	}
	if _, err := lock.ExecContext(ctx, "UNLOCK TABLES"); err != nil {
		return "", 0, "", s.explain(err, "unlock the source")
	}
	s.log.Info("the source was locked for the snapshot", "for", time.Since(began).Round(time.Microsecond).String())
	return file, offset, set, nil
}

func (n *snapshot) Position() change.Position { return n.position }
func (n *snapshot) Clock() time.Time          { return n.clock }

// Resume implements source.Resumable.
func (n *snapshot) Resume() string { return n.resume }

// Close implements source.Snapshot.
func (n *snapshot) Close(context.Context) error {
	var err error
	for _, conn := range n.all {
		if e := conn.Close(); !errors.Is(e, sql.ErrConnDone) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, n.db.Close())
}
