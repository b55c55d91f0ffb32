package postgres

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
	s, err := w.connect(ctx, believeRows+" SET idle_in_transaction_session_timeout = 0;")
	if err != nil {
		return nil, err
	}
	// The first query takes the snapshot, BEGIN does not.
	if err := s.exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT count(*) FROM _tailrace.marks"); err != nil {
		s.close(ctx)
		return nil, w.explain(ctx, err, "keep a moment of the destination", nil)
	}
	return view{w, s}, nil
}

func (v view) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	return v.w.scan(ctx, v.s, t, nil, fn)
}

func (v view) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	return v.w.invariants(ctx, v.s, t)
}

func (v view) Close(ctx context.Context) { v.s.close(ctx) }
