//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var _ sink.Runs = (*Writer)(nil)

// AddRun implements sink.Runs.
func (w *Writer) AddRun(ctx context.Context, r sink.Run) error {
	return w.amend(ctx, "write a run down", func(c *conn) error {
		if _, err := c.run(ctx, "DELETE FROM "+w.bookTable("runs")+" WHERE pipeline = $1 AND number = $2", w.cfg.Pipeline, r.Number); err != nil {
			return err
		}
		_, err := c.run(ctx, "INSERT INTO "+w.bookTable("runs")+" VALUES ($1, $2, $3, make_timestamptz($4), make_timestamptz($5), $6, $7, $8, $9)",
			w.cfg.Pipeline, r.Number, string(r.Why), commitMicros(r.Started), commitMicros(r.Ended), string(r.Outcome), r.Position, r.Rows, r.Error)
		if err != nil {
			return err
		}
		_, err = c.run(ctx, "DELETE FROM "+w.bookTable("runs")+" WHERE pipeline = $1 AND number <= (SELECT max(number) FROM "+w.bookTable("runs")+" WHERE pipeline = $1) - $2",
			w.cfg.Pipeline, int64(sink.RunsKept))
		return err
	})
}

// Runs implements sink.Runs; the bookkeeping of an earlier version has none.
func (w *Writer) Runs(ctx context.Context, most int) (list []sink.Run, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	exists, err := w.readyLocked(ctx)
	if err != nil || !exists {
		return nil, err
	}
	if exists, err = w.hasBookTable(ctx, w.book, "runs"); err != nil || !exists {
		return nil, w.explain("read the runs", err)
	}
	instant := func(cell *string) (t time.Time, err error) {
		if cell == nil {
			return t, nil
		}
		us, err := strconv.ParseInt(*cell, 10, 64)
		if err != nil {
			return t, fault.Corrupted("read the runs: an instant: %v", err)
		}
		return time.UnixMicro(us).UTC(), nil
	}
	err = w.book.each(ctx, func(c []*string) (err error) {
		r := sink.Run{Why: sink.RunReason(*c[1]), Outcome: sink.RunOutcome(*c[4]), Position: *c[5], Error: *c[7]}
		if r.Number, err = strconv.ParseInt(*c[0], 10, 64); err == nil {
			r.Rows, err = strconv.ParseInt(*c[6], 10, 64)
		}
		if err != nil {
			return fault.Corrupted("read the runs: %v", err)
		}
		if r.Started, err = instant(c[2]); err != nil {
			return err
		}
		if r.Ended, err = instant(c[3]); err != nil {
			return err
		}
		list = append(list, r)
		return nil
	}, fmt.Sprintf("SELECT number, why, epoch_us(started), epoch_us(ended), outcome, position, written, error FROM %s WHERE pipeline = $1 ORDER BY number DESC LIMIT %d", w.bookTable("runs"), most), w.cfg.Pipeline)
	return list, w.explain("read the runs", err)
}
