package postgres

import (
	"context"
	"strconv"
	"time"

	"tailrace/internal/change"
)

// durables follows applied positions until they are on the destination's disk.
//
// Batches commit without waiting for the disk (synchronous_commit = off): their
// mark travels with their rows, so a crash loses both or neither. A position may
// be confirmed once the log is flushed beyond its commit record. The record's
// place need not be known: any place in the log read after the commit lies behind
// it. So a look takes down the newest applied position with the log's present
// end, and a later look finds the end flushed.
type durables struct {
	reached change.Position
	waiting []waiting // oldest first, at most waitingMax
}

type waiting struct {
	position change.Position
	end      string // of the log when position was known to be committed
	since    time.Time
}

const (
	waitingMax = 64          // looks come every few ms at most and the log's writer flushes within 600 ms
	nudgeAfter = time.Second // beyond that, a commit of our own makes the flush happen
)

// restart forgets everything: the mark was set anew or is another owner's.
func (d *durables) restart() {
	d.reached = change.Position{}
	d.waiting = d.waiting[:0]
}

// Durable returns the newest position that a crash of the destination would keep.
func (w *Writer) Durable(ctx context.Context) (change.Position, error) {
	epoch, err := w.owned()
	if err != nil {
		return change.Position{}, err
	}
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return change.Position{}, err
	}
	w.mu.Lock()
	applied, d := w.applied, &w.durables
	if applied == d.reached {
		defer w.mu.Unlock()
		return applied, nil
	}
	ends := make([]string, len(d.waiting))
	for i := range d.waiting {
		ends[i] = d.waiting[i].end
	}
	nudge := len(d.waiting) > 0 && time.Since(d.waiting[0].since) > nudgeAfter
	w.mu.Unlock()
	if nudge {
		if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local; UPDATE _tailrace.owners SET heartbeat = clock_timestamp() WHERE pipeline = "+literal(w.cfg.Pipeline)+" AND epoch = "+strconv.FormatInt(epoch, 10)+"; COMMIT"); err != nil {
			return change.Position{}, w.explain(ctx, err, "flush the destination's log", nil)
		}
	}
	rows, err := s.query(ctx, "SELECT pg_current_wal_insert_lsn(), (SELECT count(*) FROM unnest($1::pg_lsn[]) AS e WHERE e <= f) FROM pg_current_wal_flush_lsn() AS f", ends)
	if err != nil {
		return change.Position{}, w.explain(ctx, err, "ask how far the destination's log is on disk", nil)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := int(num(rows[0][1])); n > 0 && n <= len(d.waiting) {
		d.reached = d.waiting[n-1].position
		d.waiting = append(d.waiting[:0], d.waiting[n:]...)
	}
	if last := len(d.waiting) - 1; len(d.waiting) < waitingMax && applied != d.reached && (last < 0 || d.waiting[last].position != applied) {
		d.waiting = append(d.waiting, waiting{applied, str(rows[0][0]), time.Now()})
	}
	return d.reached, nil
}
