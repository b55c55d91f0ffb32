package mysql

import (
	"context"
	"errors"
	"io"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Load writes the source's COPY stream into the target, on a session of its own, in one
// transaction with the table's state.
func (w *Writer) Load(ctx context.Context, t *scd.Target, in sink.Copy, empty bool, done checkpoint.Table) (int64, error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return 0, err
	}
	sh, err := w.shapeOf(ctx, s, t)
	var rows int64
	if err == nil {
		rows, err = w.load(ctx, s, sh, epoch, in, empty, done)
	}
	w.giveBack(s, err == nil)
	return rows, w.present(err, "load", sh)
}

// present is explain for errors that may say themselves what was being done.
func (w *Writer) present(err error, doing string, sh *shape) error {
	var j *jobError
	if errors.As(err, &j) {
		return w.explain(j.err, j.doing, j.sh)
	}
	var stream *streamError
	if errors.As(err, &stream) {
		return stream.err
	}
	return w.explain(err, doing, sh)
}

// streamError is the error that has ended a COPY stream: it is its reader's.
type streamError struct{ err error }

func (e *streamError) Error() string { return e.err.Error() }
func (e *streamError) Unwrap() error { return e.err }

func (w *Writer) load(ctx context.Context, s *session, sh *shape, epoch int64, in sink.Copy, empty bool, done checkpoint.Table) (rows int64, err error) {
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, err
	}
	if empty { // what a copy in parts has left; to drop it commits
		waiting := w.waiting(w.qualified(sh.target.Name))
		left, err := s.there(ctx, waiting)
		if err == nil && left {
			err = w.heldFence(ctx, epoch, func() error { return dropWaiting(ctx, s, waiting) })
		}
		if err != nil {
			return 0, err
		}
	}
	err = within(ctx, s, func() error {
		err := sh.fedBy(ctx, s, done.Since, func() (err error) {
			if empty {
				if _, err := s.exec(ctx, "DELETE FROM "+sh.name); err != nil {
					return &jobError{"empty", sh, err}
				}
			}
			rows, err = copyIn(ctx, s, sh, "load", sh.name, sh.columnList(), in, sh.target.Kind == scd.Type2)
			return err
		})
		if err != nil {
			return err
		}
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := w.barrier(ctx, s, sh.target.Name, filledAnew); err != nil {
			return err
		}
		if err := saveTable(ctx, s, w.cfg.Pipeline, done); err != nil {
			return &jobError{"record the load of", sh, err}
		}
		return nil
	})
	return rows, err
}

// copyIn writes the rows of a COPY stream into a table with the columns of list, those
// of the shape in their order, and with bounds a version's start and end behind them.
func copyIn(ctx context.Context, s *session, sh *shape, doing, table, columns string, in sink.Copy, bounds bool) (int64, error) {
	width := len(sh.columns)
	if bounds {
		width += 2
	}
	from := copystream.NewReader(in.Rows, in.Binary, width)
	next := func() (values []change.Value, err error) {
		if values, err = from.Values(); err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, copystream.ErrMalformed) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, fault.Corrupted("%s: its copy: %v", sh.label(), err)
			}
			return nil, &streamError{err}
		}
		return values, err
	}
	e := encoder{sh: sh}
	if s.server.local {
		sent, met, err := load(ctx, s, sh, doing, func(reader string) string { return loadSQL(reader, "INTO TABLE "+table, columns) }, func(dst []byte) ([]byte, bool, error) {
			values, err := next()
			if errors.Is(err, io.EOF) {
				return dst, false, nil
			}
			if err != nil {
				return dst, false, err
			}
			dst, err = e.line(dst, values[:len(sh.columns)], values[len(sh.columns):]...)
			return dst, err == nil, err
		})
		if err == nil && sent != met {
			err = fault.Corrupted("%s %s: of %d rows %d have arrived", doing, sh.label(), sent, met)
		}
		return met, err
	}
	l := newList(s, sh, "INSERT INTO "+table+" ("+columns+") VALUES ", "", doing)
	for {
		values, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		l.open()
		if l.buf, err = e.row(l.buf, values[:len(sh.columns)], values[len(sh.columns):]...); err != nil {
			return 0, err
		}
		if err := l.end(ctx); err != nil {
			return 0, err
		}
	}
	err := l.flush(ctx)
	return l.met, err
}
