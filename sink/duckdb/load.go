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
	err = w.anew(ctx, c, t.Name, "it was copied", func() error {
		err := w.fedBy(ctx, c, s, done.Since, func() (err error) {
			if empty {
				if _, err := c.exec(ctx, "DELETE FROM "+s.name); err != nil {
					return err
				}
			}
			rows, err = w.copyRows(ctx, c, filled{schema: s.schema, table: s.table, cols: s.loadColumns(), exact: s.exact}, in)
			return err
		})
		if err != nil {
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

// filled is a table that a copy's rows go into.
type filled struct {
	schema, table string
	cols          []column
	exact         bool   // it has these columns, in this order, and no others
	of            string // the target that messages name instead, if it is a stage
}

// stageOf is a target's stage; messages name the target and its columns.
func (w *Writer) stageOf(s *shape) filled {
	return filled{schema: bookSchema, table: w.stageFor(s), cols: append([]column(nil), s.cols...), exact: true, of: s.schema + "." + s.table}
}

// copyRows appends a copy's rows to a table.
func (w *Writer) copyRows(ctx context.Context, c *conn, to filled, in sink.Copy) (int64, error) {
	rows, _, err := w.copySome(ctx, c, to, copystream.NewReader(in.Rows, in.Binary, len(to.cols)), nil)
	return rows, err
}

// copySome is copyRows until enough, if it is not nil, says so of the number of rows;
// ended: there were no more.
func (w *Writer) copySome(ctx context.Context, c *conn, to filled, r *copystream.Reader, enough func(rows int) bool) (rows int64, ended bool, err error) {
	if err := w.roomLeft(); err != nil {
		return 0, false, err
	}
	ap, err := c.newAppender(w.catalog, to.schema, to.table, to.cols, to.exact)
	if err != nil {
		return 0, false, err
	}
	if to.of != "" {
		ap.what = to.of
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
