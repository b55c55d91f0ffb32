package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"tailrace/internal/fault"
)

// begun is where in the log the sessions of a snapshot stand.
type begun struct {
	file   string
	offset uint64
	set    string // GTIDs before it
	lock   string // that held commits back meanwhile, for the log
}

// What the sessions of a snapshot may be begun under (source.snapshot_lock).
const (
	LockAuto   = "auto"   // the least that the account's rights allow and the moment needs
	LockTables = "tables" // a read lock on the followed tables at most
	LockNever  = "never"  // none
)

const (
	// lockPatience is how long writers may have to wait behind our wish for a lock, while
	// it waits for statements or transactions that run.
	lockPatience = 3 * time.Second
	// lockAttempts and the growing pauses between them give those half a minute to end.
	lockAttempts = 6
	// freeAttempts is how often the sessions of a MariaDB are begun without a lock until
	// they agree.
	freeAttempts = 5
	// quietFor is how long a moment of a MySQL is looked for in which nothing commits:
	// the first half of it for all sessions, then for one, which takes a third of the time.
	quietFor = 20 * time.Second
	// quietFirst is how long such a moment is looked for where a lock may be had: most
	// servers have one within some milliseconds, and nobody has to wait for it.
	quietFirst = time.Second
	// quietPause is the longest pause between two attempts.
	quietPause = 20 * time.Millisecond
)

// beginSnapshot begins read-only, because a query may call functions that write.
const beginSnapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

// begin begins a snapshot in all sessions, or in as many as can see one moment, and finds
// out which it is. The position is exact in every way, or there is no snapshot.
//
// A session cannot join another's snapshot here, so all of them begin theirs at once,
// while the log stands still for the tables that matter:
//
//   - MariaDB tells each session where in the log its snapshot is. If all say the same, no
//     lock was needed, and one session alone needs none ever.
//   - FLUSH TABLES WITH READ LOCK holds all commits back, for some milliseconds.
//   - LOCK TABLES ... READ waits until every transaction that has written to these tables
//     has ended, and keeps others from writing there. What else commits does not concern
//     the copy, so any position meanwhile is exact.
//   - Without a lock, on MySQL with GTIDs: a transaction owns its GTID from before it is in
//     the log until after the engine has committed it. If the log ends at a place, nothing
//     owns a GTID then, the sessions begin, and the log still ends there, then whatever is
//     in the log was committed before they began, and nothing else was.
//
// How long we may wait for a lock is limited, because who writes waits behind us. Where
// writers of the same rows wait for each other a MySQL may give it to nobody: the one that
// has the row waits behind our wish, and our wish behind the one that wants it. So a moment
// without one is looked for before the first attempt and between all of them.
func (n *snapshot) begin(ctx context.Context, f *server) (m begun, err error) {
	quiet := false
	if f.mariaDB {
		m, err = n.beginFreely(ctx)
		quiet = m.file != ""
	} else {
		m, quiet, err = n.lookForQuiet(ctx, f, quietFirst)
	}
	if err != nil || quiet {
		return m, err
	}
	lock := n.source.cfg.SnapshotLock
	if lock == LockAuto {
		m, err = n.beginLocked(ctx, f, "FLUSH TABLES WITH READ LOCK", "all")
		if !denied(err) {
			return m, err
		}
	}
	if names := n.source.lockable(); lock != LockNever && len(names) > 0 {
		m, err = n.beginLocked(ctx, f, "LOCK TABLES "+strings.Join(names, " READ, ")+" READ", "tables")
		if !denied(err) {
			return m, err
		}
	}
	if f.mariaDB {
		return n.beginAlone(ctx)
	}
	return n.beginQuietly(ctx, f)
}

// denied reports whether the account lacks the right to what was tried.
func denied(err error) bool {
	return isCode(err, errPrivilege, errDBAccessDenied, errTableAccess)
}

// lockable lists the tables that are followed, or else all that the account has been
// shown, in SQL.
func (s *Source) lockable() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for n := range s.followed {
		names = append(names, quoted(n))
	}
	if s.followed == nil {
		for n := range s.described {
			names = append(names, quoted(n))
		}
	}
	slices.Sort(names)
	return names
}

// beginFreely begins the sessions of a MariaDB without a lock. It returns no file where
// they did not agree.
func (n *snapshot) beginFreely(ctx context.Context) (m begun, err error) {
	for range freeAttempts {
		agree := true
		for i, conn := range n.all {
			file, offset, err := n.beginOne(ctx, conn)
			if err != nil {
				return begun{}, err
			}
			if i == 0 {
				m = begun{file: file, offset: offset, lock: "none"}
			}
			agree = agree && file == m.file && offset == m.offset
		}
		if agree {
			m.set, err = n.source.gtidsAt(ctx, n.source.db, m.file, m.offset)
			return m, err
		}
	}
	return begun{}, nil
}

// beginAlone leaves one session of a MariaDB, whose moment is known whatever commits.
func (n *snapshot) beginAlone(ctx context.Context) (m begun, err error) {
	if err := n.leaveOne(); err != nil {
		return m, err
	}
	return n.beginFreely(ctx)
}

// leaveOne ends all sessions but one.
func (n *snapshot) leaveOne() error {
	var err error
	for _, conn := range n.all[1:] {
		err = errors.Join(err, conn.Close())
	}
	if n.all = n.all[:1]; err != nil {
		return n.source.explain(err, "end a session")
	}
	n.source.log.Warn("there was no moment at which several sessions could begin the copy without a lock: one session reads all tables, one after the other",
		"remedy", n.source.lockRemedy())
	return nil
}

// lockRemedy is what makes several sessions of a copy possible on a busy server.
func (s *Source) lockRemedy() string {
	on := "*.*"
	if s.dsn.DBName != "" {
		on = quote(s.dsn.DBName) + ".*"
	}
	remedy := s.grant("RELOAD", "*.*") + "; or, for a lock on the followed tables alone, " + s.grant("LOCK TABLES", on)
	if s.cfg.SnapshotLock != LockAuto {
		remedy = "source.snapshot_lock: auto; and the right to it: " + remedy
	}
	return remedy
}

// beginQuietly begins the sessions of a MySQL without a lock at a moment at which nothing
// is being committed: see begin.
func (n *snapshot) beginQuietly(ctx context.Context, f *server) (m begun, err error) {
	s := n.source
	if f.gtidMode != "ON" {
		return m, fault.Refuse(s.lockRemedy()+"; or turn gtid_mode on", "without a lock the position of a snapshot cannot be known on a MySQL without GTIDs (gtid_mode is %s)", f.gtidMode)
	}
	for half := range 2 {
		if half == 1 && len(n.all) > 1 {
			if err := n.leaveOne(); err != nil {
				return m, err
			}
		}
		quiet := false
		if m, quiet, err = n.lookForQuiet(ctx, f, quietFor/2); err != nil || quiet {
			return m, err
		}
	}
	return m, fault.Refuse(s.lockRemedy(), "without a lock no moment was found within %s at which nothing commits: the position of a snapshot would not be exact", quietFor)
}

// lookForQuiet tries to begin the sessions of a MySQL at a moment at which nothing is being
// committed. Of one that has no GTIDs no such moment can be known.
func (n *snapshot) lookForQuiet(ctx context.Context, f *server, most time.Duration) (m begun, quiet bool, err error) {
	if f.gtidMode != "ON" {
		return m, false, nil
	}
	for began := time.Now(); ; {
		if m, quiet, err = n.tryQuietly(ctx); err != nil || quiet || time.Since(began) > most {
			return m, quiet, err
		}
		select {
		case <-time.After(time.Duration(1 + rand.Int64N(int64(quietPause)))):
		case <-ctx.Done():
			return m, false, ctx.Err()
		}
	}
}

// tryQuietly begins the sessions and reports whether nothing was committed meanwhile. The
// order of the four steps is what proves it.
func (n *snapshot) tryQuietly(ctx context.Context) (m begun, quiet bool, err error) {
	s := n.source
	m.lock = "none"
	if m.file, m.offset, m.set, err = s.status(ctx, s.db); err != nil {
		return m, false, err
	}
	var owned string
	if err := s.db.QueryRowContext(ctx, "SELECT @@global.gtid_owned").Scan(&owned); err != nil {
		return m, false, s.explain(err, "ask which transactions are being committed")
	}
	if owned != "" {
		return m, false, nil
	}
	for _, conn := range n.all {
		if _, err := conn.ExecContext(ctx, beginSnapshot); err != nil {
			return m, false, s.explain(err, "begin a snapshot")
		}
	}
	file, offset, _, err := s.status(ctx, s.db)
	return m, file == m.file && offset == m.offset, err
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

// beginLocked begins the sessions while a lock holds commits back: all of them, or those
// to the tables it names.
func (n *snapshot) beginLocked(ctx context.Context, f *server, statement, what string) (m begun, err error) {
	s := n.source
	m.lock = what
	lock, err := n.db.Conn(ctx)
	if err != nil {
		return m, s.explain(err, "connect to the source")
	}
	defer lock.Close() // ends the lock too
	if _, err := lock.ExecContext(ctx, fmt.Sprintf("SET SESSION lock_wait_timeout = %d", int(lockPatience.Seconds()))); err != nil {
		return m, s.explain(err, "prepare a session")
	}
	for attempt := 1; ; attempt++ {
		_, err = lock.ExecContext(ctx, statement)
		if !isCode(err, errLockWait) || attempt == lockAttempts {
			break
		}
		s.log.Info("statements or transactions that run keep the source from being locked for a moment; will try again", "lock", what, "attempt", attempt)
		pause := time.Duration(attempt) * 2 * time.Second
		free, quiet, err := n.lookForQuiet(ctx, f, pause)
		if err != nil || quiet {
			return free, err
		}
		if f.gtidMode == "ON" {
			continue
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return m, ctx.Err()
		}
	}
	if isCode(err, errLockWait) {
		return m, fault.Retry(err, "lock the source for a moment, which needs a moment without long statements (SHOW PROCESSLIST names them)")
	}
	if denied(err) {
		return m, err // for who asked: there are other ways
	}
	if err != nil {
		return m, s.explain(err, "lock the source for a moment")
	}
	began := time.Now()
	if m.file, m.offset, m.set, err = s.status(ctx, lock); err != nil {
		return m, err
	}
	for _, conn := range n.all {
		if _, err := conn.ExecContext(ctx, beginSnapshot); err != nil {
			return m, s.explain(err, "begin a snapshot")
		}
	}
	if f.mariaDB {
		if m.set, err = s.gtidsAt(ctx, lock, m.file, m.offset); err != nil {
			return m, err
		}
	}
	if _, err := lock.ExecContext(ctx, "UNLOCK TABLES"); err != nil {
		return m, s.explain(err, "unlock the source")
	}
	s.log.Info("the source was locked for the snapshot", "lock", what, "for", time.Since(began).Round(time.Microsecond).String())
	return m, nil
}
