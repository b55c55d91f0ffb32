//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"io"

	"tailrace/checkpoint"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Load copies a whole table through the appender, on a connection and in a
// transaction of its own, and records done in it.
func (w *Writer) Load(ctx context.Context, t *scd.Target, in sink.Copy, empty bool, done checkpoint.Table) (int64, error) {
	if err := w.mustOwn(); err != nil {
		return 0, err
	}
	s, err := w.shape(ctx, t)
	if err != nil {
		return 0, err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return 0, err
	}
	defer c.close()
	var rows int64
	err = inTransaction(ctx, c, func() error {
		if empty {
			if _, err := c.exec(ctx, "DELETE FROM "+s.name); err != nil {
				return err
			}
		}
		if rows, err = w.copyRows(ctx, c, s.schema, s.table, s.loadColumns(), s.exact, in); err != nil {
			return err
		}
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		return w.saveTable(ctx, c, done)
	})
	if err != nil {
		return 0, w.explain("load "+t.Name.String(), err)
	}
	w.touched(t.Name)
	return rows, nil
}

// roomEvery is how many rows are copied between looks at the free disk space.
const roomEvery = 1 << 17

// copyRows appends a copy's rows to a table; exact: it has these columns and no others.
func (w *Writer) copyRows(ctx context.Context, c *conn, schema, table string, cols []column, exact bool, in sink.Copy) (int64, error) {
	rows, _, err := w.copySome(ctx, c, schema, table, cols, exact, copystream.NewReader(in.Rows, in.Binary, len(cols)), nil)
	return rows, err
}

// copySome is copyRows until enough, if it is not nil, says so of the number of rows;
// ended: there were no more.
func (w *Writer) copySome(ctx context.Context, c *conn, schema, table string, cols []column, exact bool, r *copystream.Reader, enough func(rows int) bool) (rows int64, ended bool, err error) {
	if err := w.roomLeft(); err != nil {
		return 0, false, err
	}
	ap, err := c.newAppender(w.catalog, schema, table, cols, exact)
	if err != nil {
		return 0, false, err
	}
	defer ap.discard()
	for n := 0; enough == nil || !enough(n); n++ {
		vals, err := r.Values()
		if err == io.EOF {
			ended = true
			break
		}
		if errors.Is(err, copystream.ErrMalformed) {
			return 0, false, &fault.Error{Kind: fault.Corrupt, Op: "read the copy stream", Err: err}
		}
		if err != nil { // the sender's own
			return 0, false, err
		}
		for i := range vals {
			if err := ap.value(i, vals[i]); err != nil {
				return 0, false, err
			}
		}
		if err := ap.end(); err != nil {
			return 0, false, err
		}
		if n%roomEvery == roomEvery-1 {
			if err := ctx.Err(); err != nil {
				return 0, false, err
			}
			if err := w.roomLeft(); err != nil {
				return 0, false, err
			}
		}
	}
	rows, err = ap.finish(ctx)
	return rows, ended, err
}
