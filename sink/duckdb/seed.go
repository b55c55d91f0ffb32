//go:build !noduckdb

package duckdb

import (
	"context"
	"iter"

	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Seed makes the table of what is remembered of an ordered target, and fills it.
func (w *Writer) Seed(ctx context.Context, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error {
	err := w.amend(ctx, "remember the rows of "+t.Name.String(), func(c *conn) error {
		for _, sql := range w.createMemory(t) {
			if _, err := c.exec(ctx, sql); err != nil {
				return err
			}
		}
		if err := w.seedRecords(ctx, c, t, records); err != nil {
			return err
		}
		if err := w.forgetCounts(ctx, c, t.Name); err != nil {
			return err
		}
		if _, err := c.run(ctx, "DELETE FROM "+w.bookTable("heads")+ofTarget, w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table); err != nil {
			return err
		}
		if err := w.insertMemory(ctx, c, t.Name, head); err != nil {
			return err
		}
		return w.barrier(ctx, c, t.Name, "what is remembered of it was made from its rows")
	})
	w.touched(t.Name)
	w.mu.Lock()
	w.shapes, w.known = nil, nil
	w.mu.Unlock()
	return err
}

func (w *Writer) seedRecords(ctx context.Context, c *conn, t *scd.Target, records iter.Seq2[sequenced.Record, error]) error {
	ap, err := c.newAppender(w.catalog, bookSchema, memoryName(w.cfg.Pipeline, t.Name), recordColumns(), true)
	if err != nil {
		return err
	}
	defer ap.discard()
	n := 0
	for rec, err := range records {
		if err != nil {
			return err
		}
		if n%roomEvery == 0 {
			if err := w.roomLeft(); err != nil {
				return err
			}
		}
		n++
		h, i := hashes(rec.ID())
		if err := ap.record(&rec, h, i); err != nil {
			return err
		}
	}
	_, err = ap.finish(ctx)
	return err
}

// record writes a record, with its hashes, as a row of the table of what is remembered.
func (a *appender) record(r *sequenced.Record, h, i int64) error {
	put(a, 0, h)
	put(a, 1, i)
	a.blob(2, r.Key)
	a.blob(3, r.Seq)
	a.blob(4, r.At)
	a.blob(5, r.Body)
	put(a, 6, r.Tombstone)
	put(a, 7, r.Time)
	return a.end()
}
