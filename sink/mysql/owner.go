package mysql

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// Ownership has two witnesses: a row in _tailrace.owners with a heartbeat, and a named
// lock that the side session holds for life. The row says who, the lock that its session
// still stands. An owner is
//
//   - dead when its process is gone from this host and boot and its lock is free. The
//     lock matters where two containers share a host's name but do not see each other's
//     processes;
//   - stale when its heartbeat is older than 15 s by the destination's clock.
//
// Who is dead or stale is taken over: its sessions are ended where that is permitted,
// and the epoch goes up by one. What such a session still tries is stopped by the epoch,
// so that neither witness need be perfect.
const (
	staleAfter   = 15 * time.Second       // seven heartbeats
	lockPatience = time.Second            // for a dead owner's session to end; with the rest a refusal takes below 2 s
	waitStep     = 500 * time.Millisecond // between looks at an owner that may become stale
)

const (
	ownerSQL = `SELECT o.host, o.boot_id, o.pid, o.started, o.instance, o.sessions, TIMESTAMPDIFF(MICROSECOND, o.heartbeat, UTC_TIMESTAMP(6)), m.epoch
FROM _tailrace.marks AS m LEFT JOIN _tailrace.owners AS o USING (pipeline) WHERE m.pipeline = ?`
	firstSQL = `INSERT INTO _tailrace.marks (pipeline, epoch, position) VALUES (?, 0, '0/0') ON DUPLICATE KEY UPDATE epoch = epoch`
	nextSQL  = `UPDATE _tailrace.marks SET epoch = epoch + 1 WHERE pipeline = ? AND epoch = ?`
	takeSQL  = `INSERT INTO _tailrace.owners VALUES (?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE epoch = VALUES(epoch), host = VALUES(host), boot_id = VALUES(boot_id), pid = VALUES(pid), started = VALUES(started),
  instance = VALUES(instance), sessions = VALUES(sessions), heartbeat = VALUES(heartbeat)`
	heartbeatSQL = `UPDATE _tailrace.owners SET heartbeat = UTC_TIMESTAMP(6) WHERE pipeline = ? AND epoch = ?`
	releaseSQL   = `DELETE FROM _tailrace.owners WHERE pipeline = ? AND epoch = ?`
	epochSQL     = `SELECT epoch FROM _tailrace.marks WHERE pipeline = ?`
)

// Each session of a Writer takes one of so many locks, by which a successor finds it: what
// a session holds that its client has lost, and of which the server does not know, would
// be locked for days. A Writer has a dozen sessions at most; one that finds its lock
// taken is not found.
const sessionLocks = 256

func sessionLock(writer string, n uint32) string {
	return fmt.Sprintf("tailrace.%s.%d", writer, n%sessionLocks)
}

// pipelineLock names the lock that witnesses ownership: at most 64 letters.
func pipelineLock(pipeline string) string {
	sum := sha256.Sum256([]byte(pipeline))
	return "tailrace.pipeline." + hex.EncodeToString(sum[:8])
}

// Own makes this process the pipeline's owner.
func (w *Writer) Own(ctx context.Context, me checkpoint.Owner, wait time.Duration) error {
	return w.onSide(ctx, "own the pipeline", func(s *session) error {
		if err := ensureBook(ctx, s); err != nil {
			return w.explain(err, "make the bookkeeping in database _tailrace", nil)
		}
		if err := s.provesDurability(ctx); err != nil {
			return err
		}
		if !s.server.durable {
			w.cfg.Logger.Warn("the destination does not wait for its disk when it commits: positions are confirmed to the source about a second later",
				"remedy", "SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL sync_binlog = 1;")
		}
		if _, err := s.exec(ctx, bind(firstSQL, w.cfg.Pipeline)); err != nil {
			return err
		}
		for deadline := time.Now().Add(wait); ; {
			living, err := w.claim(ctx, s, me)
			if err != nil || living == "" {
				return err
			}
			if time.Now().Add(waitStep).After(deadline) {
				return fmt.Errorf("own pipeline %s: %w: %s", w.cfg.Pipeline, fault.ErrOwned, living)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(waitStep):
			}
		}
	})
}

// claim takes the pipeline, or says who is living.
func (w *Writer) claim(ctx context.Context, s *session, me checkpoint.Owner) (living string, err error) {
	rows, err := s.query(ctx, bind(ownerSQL, w.cfg.Pipeline))
	if err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "", fault.Retry(nil, "the pipeline's mark was removed just now")
	}
	r, seen := rows[0], num(rows[0][7])
	old := checkpoint.Owner{Host: str(r[0]), BootID: str(r[1]), PID: int(num(r[2])), Started: num(r[3]), Instance: str(r[4])}
	taken := r[4] != nil
	if taken && old.Instance != me.Instance {
		age := time.Duration(num(r[6])) * time.Microsecond
		stale := age > staleAfter
		dead := !stale && sink.Dead(old, me)
		if dead {
			free, err := w.lock(ctx, s, pipelineLock(w.cfg.Pipeline), lockPatience)
			if err != nil {
				return "", err
			}
			dead = free
		}
		if !stale && !dead {
			return fmt.Sprintf("process %d on host %s, heartbeat %.1f s old", old.PID, old.Host, age.Seconds()), nil
		}
	}
	if taken {
		if err := endSessions(ctx, s, str(r[5])); err != nil {
			return "", err
		}
	}
	lost := false
	err = within(ctx, s, func() error {
		n, err := s.exec(ctx, bind(nextSQL, w.cfg.Pipeline, seen))
		if lost = err == nil && n == 0; err != nil || lost {
			return err
		}
		_, err = s.exec(ctx, bind(takeSQL, w.cfg.Pipeline, seen+1, me.Host, me.BootID, me.PID, me.Started, me.Instance, w.id))
		return err
	})
	if err != nil {
		return "", err
	}
	if lost {
		return "another process that is starting", nil
	}
	if _, err := w.lock(ctx, s, pipelineLock(w.cfg.Pipeline), lockPatience); err != nil {
		return "", err
	}
	m, err := w.readMark(ctx, s)
	if err != nil {
		return "", err
	}
	points, err := s.query(ctx, bind(newestSQL, w.cfg.Pipeline))
	if err != nil {
		return "", err
	}
	w.setUndo(num(points[0][1]))
	w.mu.Lock()
	w.epoch, w.applied = m.Epoch, m.Position
	w.durables.restart()
	w.mu.Unlock()
	return "", nil
}

// endSessions ends the sessions of a Writer, but s. That it is not permitted, or that one
// is gone already, is no matter: the epoch stops them all the same.
func endSessions(ctx context.Context, s *session, writer string) error {
	var list []string
	for n := range uint32(sessionLocks) {
		list = append(list, bind("IS_USED_LOCK(?)", sessionLock(writer, n)))
	}
	rows, err := s.query(ctx, "SELECT "+strings.Join(list, ", "))
	if err != nil {
		return err
	}
	for _, id := range rows[0] {
		if id == nil || num(id) == s.id {
			continue
		}
		if _, err := s.exec(ctx, "KILL CONNECTION "+*id); err != nil && !notPermitted(err) && numberOf(err) != erNoSuchThread {
			return err
		}
	}
	return nil
}

// lock tries for a named lock; taking it twice is harmless.
func (w *Writer) lock(ctx context.Context, s *session, name string, patience time.Duration) (bool, error) {
	rows, err := s.query(ctx, bind("SELECT GET_LOCK(?, ?)", name, int(patience.Seconds())))
	if err != nil {
		return false, err
	}
	return str(rows[0][0]) == "1", nil
}

// Heartbeat renews the owner's row, and looks after a batch that has been running for
// long: an error if its session cannot end any more.
func (w *Writer) Heartbeat(ctx context.Context) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "renew the heartbeat", func(s *session) error {
		n, err := s.exec(ctx, bind(heartbeatSQL, w.cfg.Pipeline, epoch))
		switch {
		case err != nil:
			return err
		case n == 0:
			return fault.ErrFenced
		}
		return w.attend(ctx, s)
	})
}
