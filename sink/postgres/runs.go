package postgres

import (
	"context"

	"tailrace/sink"
)

var _ sink.Runs = (*Writer)(nil)

const (
	addRunSQL = `INSERT INTO _tailrace.runs VALUES ($1, $2::bigint, $3, $4::timestamptz, $5::timestamptz, $6, $7, $8::bigint, $9)
ON CONFLICT (pipeline, number) DO UPDATE SET why = excluded.why, started = excluded.started, ended = excluded.ended, outcome = excluded.outcome,
  position = excluded.position, written = excluded.written, error = excluded.error`
	oldRunsSQL = `DELETE FROM _tailrace.runs WHERE pipeline = $1 AND number <= (SELECT max(number) FROM _tailrace.runs WHERE pipeline = $1) - $2::bigint`
	runsSQL    = `SELECT number, why, extract(epoch FROM started) * 1000000, extract(epoch FROM ended) * 1000000, outcome, position, written, error
FROM _tailrace.runs WHERE pipeline = $1 ORDER BY number DESC LIMIT $2::bigint`
)

// AddRun implements sink.Runs.
func (w *Writer) AddRun(ctx context.Context, r sink.Run) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "write a run down", func(s *session) error {
		return w.fencedly(ctx, s, epoch, func() error {
			if _, err := s.query(ctx, addRunSQL, w.cfg.Pipeline, r.Number, string(r.Why), instantOf(r.Started), instantOf(r.Ended), string(r.Outcome), r.Position, r.Rows, r.Error); err != nil {
				return err
			}
			_, err := s.query(ctx, oldRunsSQL, w.cfg.Pipeline, int64(sink.RunsKept))
			return err
		})
	})
}

// Runs implements sink.Runs.
func (w *Writer) Runs(ctx context.Context, most int) (list []sink.Run, err error) {
	err = w.onSide(ctx, "read the runs", func(s *session) error {
		rows, err := s.query(ctx, runsSQL, w.cfg.Pipeline, int64(most))
		if missingBook(err) {
			return nil
		}
		for _, c := range rows {
			r := sink.Run{Number: num(c[0]), Why: sink.RunReason(str(c[1])), Started: microsOf(c[2]), Outcome: sink.RunOutcome(str(c[4])), Position: str(c[5]), Rows: num(c[6]), Error: str(c[7])}
			if c[3] != nil {
				r.Ended = microsOf(c[3])
			}
			list = append(list, r)
		}
		return err
	})
	return list, err
}
