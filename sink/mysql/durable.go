package mysql

import (
	"context"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// durables follows applied positions until they are on the destination's disk.
//
// With innodb_flush_log_at_trx_commit = 1 (and sync_binlog = 1, where there is a binary
// log: without it a crash may take back what the engine has prepared) a commit that has
// returned is on disk, and there is nothing to follow. Otherwise the engine flushes its
// log about once a second. A transaction is on disk when the log is flushed beyond its
// commit record. The record's place need not be known: any place in the log read after
// the commit lies behind it. So a look takes down the newest applied position with the
// log's present end, and a later look finds the end flushed.
type durables struct {
	reached change.Position
	waiting []waiting // oldest first, at most waitingMax
}

type waiting struct {
	position change.Position
	end      uint64 // of the log when position was known to be committed
}

// waitingMax: looks come every few ms at most, and the log is flushed every second.
const waitingMax = 256

// restart forgets everything: the mark was set anew or is another owner's.
func (d *durables) restart() {
	d.reached = change.Position{}
	d.waiting = d.waiting[:0]
}

// flushedSQL reads the log's end and how far it is on disk: the first pair is MariaDB's,
// the second that of MySQL 8.0.30 and later.
const flushedSQL = `SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_lsn_current', 'Innodb_lsn_flushed', 'Innodb_redo_log_current_lsn', 'Innodb_redo_log_flushed_to_disk_lsn')`

// flushed returns the log's end and how far it is on disk.
func (s *session) flushed(ctx context.Context) (end, flushed uint64, err error) {
	rows, err := s.query(ctx, flushedSQL)
	for _, r := range rows {
		n, e := strconv.ParseUint(str(r[1]), 10, 64)
		if e != nil {
			continue
		}
		switch str(r[0]) {
		case "Innodb_lsn_current", "Innodb_redo_log_current_lsn":
			end = n
		default:
			flushed = n
		}
	}
	return end, flushed, err
}

// provesDurability refuses a server of which cannot be known what it has on disk.
func (s *session) provesDurability(ctx context.Context) error {
	if s.server.durable {
		return nil
	}
	end, flushed, err := s.flushed(ctx)
	if err == nil && (end == 0 || flushed == 0) {
		err = fault.Refuse("SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL sync_binlog = 1; -- and in the server's configuration file",
			"the destination does not wait for its disk when it commits, and does not tell what it has written: no position could ever be confirmed to the source")
	}
	return err
}

// Durable returns the newest position that a crash of the destination would keep.
func (w *Writer) Durable(ctx context.Context) (p change.Position, err error) {
	if _, err := w.owned(); err != nil {
		return p, err
	}
	err = w.onSide(ctx, "ask how far the destination's log is on disk", func(s *session) error {
		w.mu.Lock()
		applied, d := w.applied, &w.durables
		known := s.server.durable || applied == d.reached
		w.mu.Unlock()
		if known {
			p = applied
			return nil
		}
		end, flushed, err := s.flushed(ctx)
		if err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		n := 0
		for n < len(d.waiting) && d.waiting[n].end <= flushed {
			d.reached = d.waiting[n].position
			n++
		}
		d.waiting = append(d.waiting[:0], d.waiting[n:]...)
		if last := len(d.waiting) - 1; len(d.waiting) < waitingMax && applied != d.reached && (last < 0 || d.waiting[last].position != applied) {
			d.waiting = append(d.waiting, waiting{applied, end})
		}
		p = d.reached
		return nil
	})
	return p, err
}
