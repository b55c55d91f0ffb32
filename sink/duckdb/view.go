//go:build !noduckdb

package duckdb

import (
	"context"

	"tailrace/scd"
	"tailrace/sink"
)

// view is a read-only transaction. It holds up no checkpoint, because nothing of ours
// is updated in place (see the bookkeeping); deleted rows stay in the file until it
// ends.
type view struct {
	w *Writer
	c *conn
}

// View implements sink.Views.
func (w *Writer) View(ctx context.Context) (sink.View, error) {
	if err := w.mustOwn(); err != nil {
		return nil, err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return nil, err
	}
	_, err = c.exec(ctx, "BEGIN TRANSACTION READ ONLY")
	if err == nil { // the first look at the file begins its part of the transaction
		_, err = c.number(ctx, "SELECT count(*) FROM "+w.bookTable("positions"))
	}
	if err != nil {
		c.close()
		return nil, w.explain("keep a moment of "+w.cfg.Path, err)
	}
	return view{w, c}, nil
}

func (v view) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	return v.w.scan(ctx, v.c, t, fn)
}

func (v view) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	return v.w.invariants(ctx, v.c, t)
}

func (v view) Close(context.Context) {
	// It may have been broken off, and then there is nothing to end.
	_, _ = v.c.exec(context.Background(), "ROLLBACK")
	v.c.close()
}
