package mysql

import (
	"context"

	"tailrace/scd"
	"tailrace/sink"
)

// view is a transaction that sees one moment.
type view struct {
	w *Writer
	s *session
}

// View implements sink.Views.
func (w *Writer) View(ctx context.Context) (sink.View, error) {
	s, err := w.connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"} {
		if _, err := s.exec(ctx, sql); err != nil {
			s.close()
			return nil, w.explain(err, "keep a moment of the destination", nil)
		}
	}
	return view{w, s}, nil
}

func (v view) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	return v.w.scan(ctx, v.s, t, false, fn)
}

func (v view) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	return v.w.invariants(ctx, v.s, t)
}

func (v view) Close(context.Context) { v.s.close() }
