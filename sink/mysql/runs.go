package mysql

import (
	"context"

	"tailrace/sink"
)

var _ sink.Runs = (*Writer)(nil)

const (
	addRunSQL     = `REPLACE INTO _tailrace.runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	newestRunSQL  = `SELECT MAX(number) FROM _tailrace.runs WHERE pipeline = ?`
	forgetRunsSQL = `DELETE FROM _tailrace.runs WHERE pipeline = ? AND number <= ?`
	runsSQL       = `SELECT number, why, started, ended, outcome, position, written, error FROM _tailrace.runs WHERE pipeline = ? ORDER BY number DESC LIMIT ?`
)

// AddRun implements sink.Runs.
func (w *Writer) AddRun(ctx context.Context, r sink.Run) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.fencedly(ctx, "write a run down", epoch, func(s *session) error {
		if _, err := s.exec(ctx, bind(addRunSQL, w.cfg.Pipeline, r.Number, string(r.Why), r.Started, r.Ended, string(r.Outcome), r.Position, r.Rows, r.Error)); err != nil {
			return err
		}
		newest, err := s.query(ctx, bind(newestRunSQL, w.cfg.Pipeline))
		if err != nil {
			return err
		}
		_, err = s.exec(ctx, bind(forgetRunsSQL, w.cfg.Pipeline, num(newest[0][0])-sink.RunsKept))
		return err
	})
}

// Runs implements sink.Runs.
func (w *Writer) Runs(ctx context.Context, most int) (list []sink.Run, err error) {
	err = w.onSide(ctx, "read the runs", func(s *session) error {
		rows, err := s.query(ctx, bind(runsSQL, w.cfg.Pipeline, most))
		if missingBook(err) {
			return nil
		}
		for _, c := range rows {
			r := sink.Run{Number: num(c[0]), Why: sink.RunReason(str(c[1])), Outcome: sink.RunOutcome(str(c[4])), Position: str(c[5]), Rows: num(c[6]), Error: str(c[7])}
			if r.Started, err = instantOf(c[2]); err != nil {
				return err
			}
			if r.Ended, err = instantOf(c[3]); err != nil {
				return err
			}
			list = append(list, r)
		}
		return err
	})
	return list, err
}
