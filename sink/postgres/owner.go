package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// Ownership has two witnesses: a row in _tailrace.owners with a heartbeat, and an
// advisory lock that the side session holds for life. The row says who, the lock
// that its session still stands. An owner is
//
//   - dead when its process is gone from this host and boot and its lock is free.
//     The lock matters where two containers share a host's name but do not see
//     each other's processes;
//   - stale when its heartbeat is older than 15 s by the destination's clock.
//
// Who is dead or stale is taken over: its sessions are ended where that is
// permitted, and the epoch goes up by one. What such a session still tries is
// stopped by the epoch, so that neither witness need be perfect.
const (
	staleAfter   = 15 * time.Second       // seven heartbeats
	lockPatience = time.Second            // for a dead owner's session to end; with the rest a refusal takes below 2 s
	waitStep     = 500 * time.Millisecond // between looks at an owner that may become stale
)

const (
	ownerSQL = `SELECT o.host, o.boot_id, o.pid, o.started, o.instance, o.sessions, extract(epoch FROM clock_timestamp() - o.heartbeat), m.epoch FROM _tailrace.marks AS m LEFT JOIN _tailrace.owners AS o USING (pipeline) WHERE m.pipeline = $1`
	firstSQL = `INSERT INTO _tailrace.marks (pipeline, epoch) VALUES ($1, 0) ON CONFLICT DO NOTHING`
	nextSQL  = `UPDATE _tailrace.marks SET epoch = epoch + 1 WHERE pipeline = $1 AND epoch = $2::bigint RETURNING epoch`
	takeSQL  = `INSERT INTO _tailrace.owners VALUES ($1, $2::bigint, $3, $4, $5::bigint, $6::bigint, $7, $8, clock_timestamp())
ON CONFLICT (pipeline) DO UPDATE SET epoch = excluded.epoch, host = excluded.host, boot_id = excluded.boot_id, pid = excluded.pid, started = excluded.started,
  instance = excluded.instance, sessions = excluded.sessions, heartbeat = excluded.heartbeat`
	heartbeatSQL = `UPDATE _tailrace.owners SET heartbeat = clock_timestamp() WHERE pipeline = $1 AND epoch = $2::bigint RETURNING 1`
	releaseSQL   = `DELETE FROM _tailrace.owners WHERE pipeline = $1 AND epoch = $2::bigint`
	endSQL       = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND right(application_name, 9) = ' ' || $1 AND pid <> pg_backend_pid()`
)

// Own makes this process the pipeline's owner.
func (w *Writer) Own(ctx context.Context, me checkpoint.Owner, wait time.Duration) error {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	if err := ensureBook(ctx, s); err != nil {
		return w.explain(ctx, err, "make the bookkeeping in schema _tailrace", nil)
	}
	if _, err := s.query(ctx, firstSQL, w.cfg.Pipeline); err != nil {
		return w.explain(ctx, err, "own the pipeline", nil)
	}
	for deadline := time.Now().Add(wait); ; {
		living, err := w.claim(ctx, s, me)
		if err != nil {
			return w.explain(ctx, err, "own the pipeline", nil)
		}
		if living == "" {
			return nil
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
}

// claim takes the pipeline, or says who is living.
func (w *Writer) claim(ctx context.Context, s *session, me checkpoint.Owner) (living string, err error) {
	rows, err := s.query(ctx, ownerSQL, w.cfg.Pipeline)
	if err != nil {
		return "", err
	}
	if len(rows) == 0 {
		return "", fault.Retry(nil, "the pipeline's mark was removed just now")
	}
	r, seen := rows[0], num(rows[0][7])
	old := checkpoint.Owner{Host: str(r[0]), BootID: str(r[1]), PID: int(num(r[2])), Started: num(r[3]), Instance: str(r[4])}
	taken, sessions := r[4] != nil, str(r[5])
	if taken && old.Instance != me.Instance {
		var age float64
		fmt.Sscan(str(r[6]), &age)
		stale := age > staleAfter.Seconds()
		dead := !stale && sink.Dead(old, me)
		if dead {
			free, err := w.lock(ctx, s, lockPatience)
			if err != nil {
				return "", err
			}
			dead = free
		}
		if !stale && !dead {
			return fmt.Sprintf("process %d on host %s, heartbeat %.1f s old", old.PID, old.Host, age), nil
		}
	}
	if taken {
		// Not permitted, or already gone: the epoch stops them all the same.
		if _, err := s.query(ctx, endSQL, sessions); err != nil && stateOf(err) != notPermitted {
			return "", err
		}
	}
	if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
		return "", err
	}
	rows, err = s.query(ctx, nextSQL, w.cfg.Pipeline, seen)
	if err == nil && len(rows) == 1 {
		_, err = s.query(ctx, takeSQL, w.cfg.Pipeline, num(rows[0][0]), me.Host, me.BootID, me.PID, me.Started, me.Instance, w.id)
	}
	if err != nil || len(rows) == 0 {
		s.exec(ctx, "ROLLBACK")
		return "another process that is starting", err
	}
	if err := s.exec(ctx, "COMMIT"); err != nil {
		return "", err
	}
	if _, err := w.lock(ctx, s, lockPatience); err != nil {
		return "", err
	}
	m, err := w.readMark(ctx, s)
	if err != nil {
		return "", err
	}
	if rows, err = s.query(ctx, newestPointSQL, w.cfg.Pipeline); err != nil {
		return "", err
	}
	w.keepUnder(num(rows[0][0]))
	w.mu.Lock()
	w.epoch, w.applied = m.Epoch, m.Position
	w.durables.restart()
	w.mu.Unlock()
	return "", nil
}

// lock tries for the pipeline's advisory lock; taking it twice is harmless.
func (w *Writer) lock(ctx context.Context, s *session, patience time.Duration) (bool, error) {
	for deadline := time.Now().Add(patience); ; {
		rows, err := s.query(ctx, "SELECT pg_try_advisory_lock($1::bigint)", lockNumber("pipeline", w.cfg.Pipeline))
		if err != nil {
			return false, err
		}
		if str(rows[0][0]) == "t" {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lockNumber names an advisory lock of ours.
func lockNumber(kind, name string) int64 {
	sum := sha256.Sum256([]byte("tailrace " + kind + " " + name))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// Heartbeat renews the owner's row, and looks after a batch that has been running for
// long: an error if its session cannot end any more.
func (w *Writer) Heartbeat(ctx context.Context) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	rows, err := s.query(ctx, heartbeatSQL, w.cfg.Pipeline, epoch)
	if err == nil && len(rows) == 0 {
		err = fault.ErrFenced
	}
	if err == nil {
		err = w.attend(ctx, s)
	}
	return w.explain(ctx, err, "renew the heartbeat", nil)
}
