//go:build !noduckdb

package duckdb

import (
	"context"
	"strconv"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var _ sink.Pauses = (*Writer)(nil)

// Paused implements sink.Pauses.
func (w *Writer) Paused(ctx context.Context) (p sink.Pause, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	exists, err := w.readyLocked(ctx)
	if err != nil || !exists {
		return p, err
	}
	if exists, err = w.hasBookTable(ctx, w.book, "pauses"); err == nil && exists {
		p, err = w.readPause(ctx, w.book)
	}
	return p, w.explain("read whether the pipeline is paused", err)
}

func (w *Writer) readPause(ctx context.Context, c *conn) (p sink.Pause, err error) {
	err = c.each(ctx, func(cells []*string) error {
		us, err := strconv.ParseInt(*cells[0], 10, 64)
		if err != nil {
			return fault.Corrupted("read the pause: %v", err)
		}
		p = sink.Pause{Since: time.UnixMicro(us).UTC(), By: *cells[1]}
		return nil
	}, "SELECT epoch_us(since), asked_by FROM "+w.bookTable("pauses")+" WHERE pipeline = $1", w.cfg.Pipeline)
	return p, err
}

// SetPause implements sink.Pauses; only the owner can.
func (w *Writer) SetPause(ctx context.Context, p sink.Pause) error {
	return w.amend(ctx, "write down the pause", func(c *conn) error {
		if p.IsZero() {
			_, err := c.run(ctx, "DELETE FROM "+w.bookTable("pauses")+" WHERE pipeline = $1", w.cfg.Pipeline)
			return err
		}
		old, err := w.readPause(ctx, c)
		if err != nil || !old.IsZero() {
			return err
		}
		_, err = c.run(ctx, "INSERT INTO "+w.bookTable("pauses")+" VALUES ($1, make_timestamptz($2), $3)", w.cfg.Pipeline, p.Since.UnixMicro(), p.By)
		return err
	})
}
