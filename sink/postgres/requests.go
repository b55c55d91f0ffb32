package postgres

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var (
	_ sink.Pauses   = (*Writer)(nil)
	_ sink.Requests = (*Writer)(nil)
)

const (
	pausedSQL = `SELECT extract(epoch FROM since) * 1000000, asked_by FROM _tailrace.pauses WHERE pipeline = $1`
	pauseSQL  = `INSERT INTO _tailrace.pauses VALUES ($1, $2::timestamptz, $3) ON CONFLICT DO NOTHING`
	goOnSQL   = `DELETE FROM _tailrace.pauses WHERE pipeline = $1`

	askSQL      = `INSERT INTO _tailrace.requests (pipeline, kind, argument, asked_by) VALUES ($1, $2, $3, $4) RETURNING id`
	answerSQL   = `SELECT state, outcome, fault FROM _tailrace.requests WHERE pipeline = $1 AND id = $2::bigint`
	withdrawSQL = `UPDATE _tailrace.requests SET state = 'withdrawn', finished = clock_timestamp() WHERE pipeline = $1 AND id = $2::bigint AND state = 'asked' RETURNING 1`
	livingSQL   = `SELECT host, pid, extract(epoch FROM clock_timestamp() - heartbeat) FROM _tailrace.owners WHERE pipeline = $1`

	// What the owner does with requests is fenced by its epoch: see fence.
	leftSQL  = `SELECT id, kind FROM _tailrace.requests WHERE pipeline = $1 AND state = 'taken' AND epoch < $2::bigint`
	againSQL = `UPDATE _tailrace.requests SET state = 'asked', epoch = NULL, outcome = '' WHERE pipeline = $1 AND id = $2::bigint`
	oldSQL   = `DELETE FROM _tailrace.requests WHERE pipeline = $1 AND finished < clock_timestamp() - interval '7 days'`
	takenSQL = `WITH t AS (UPDATE _tailrace.requests SET state = 'taken', epoch = $2::bigint WHERE pipeline = $1 AND state = 'asked' RETURNING id, kind, argument, asked_by, asked)
SELECT id, kind, argument, asked_by, extract(epoch FROM asked) * 1000000 FROM t ORDER BY id`
	waitingSQL = `SELECT 1 FROM _tailrace.requests WHERE pipeline = $1 AND state = 'asked' LIMIT 1`
	reportSQL  = `UPDATE _tailrace.requests SET outcome = $4 WHERE pipeline = $1 AND id = $2::bigint AND state = 'taken' AND epoch = $3::bigint`
	finishSQL  = `UPDATE _tailrace.requests SET state = $3, outcome = $4, fault = $5::integer, finished = clock_timestamp() WHERE pipeline = $1 AND id = $2::bigint AND state = 'taken'`
)

// Paused implements sink.Pauses.
func (w *Writer) Paused(ctx context.Context) (p sink.Pause, err error) {
	err = w.onSide(ctx, "read whether the pipeline is paused", func(s *session) error {
		rows, err := s.query(ctx, pausedSQL, w.cfg.Pipeline)
		if missingBook(err) {
			return nil
		}
		if err == nil && len(rows) > 0 {
			p = sink.Pause{Since: microsOf(rows[0][0]), By: str(rows[0][1])}
		}
		return err
	})
	return p, err
}

// SetPause implements sink.Pauses; it needs no ownership.
func (w *Writer) SetPause(ctx context.Context, p sink.Pause) error {
	return w.onSide(ctx, "write down the pause", func(s *session) error {
		return durably(ctx, s, func() (err error) {
			if p.IsZero() {
				_, err = s.query(ctx, goOnSQL, w.cfg.Pipeline)
			} else {
				_, err = s.query(ctx, pauseSQL, w.cfg.Pipeline, instantOf(p.Since), p.By)
			}
			return err
		})
	})
}

// Ask implements sink.Requests.
func (w *Writer) Ask(ctx context.Context, r sink.Request) (id int64, err error) {
	err = w.onSide(ctx, "write a request down", func(s *session) error {
		return durably(ctx, s, func() error {
			rows, err := s.query(ctx, askSQL, w.cfg.Pipeline, r.Kind, r.Argument, r.By)
			if err == nil {
				id = num(rows[0][0])
			}
			return err
		})
	})
	return id, err
}

// AnswerTo implements sink.Requests.
func (w *Writer) AnswerTo(ctx context.Context, id int64) (a sink.Answer, err error) {
	err = w.onSide(ctx, "look for an answer", func(s *session) error {
		rows, err := s.query(ctx, answerSQL, w.cfg.Pipeline, id)
		if err == nil && len(rows) == 0 {
			return fault.Refuse("ask again", "request %d is not there any more", id)
		}
		if err == nil {
			a = sink.Answer{State: sink.RequestState(str(rows[0][0])), Text: str(rows[0][1]), Fault: fault.Kind(num(rows[0][2]))}
		}
		return err
	})
	return a, err
}

// Withdraw implements sink.Requests.
func (w *Writer) Withdraw(ctx context.Context, id int64) (was bool, err error) {
	err = w.onSide(ctx, "withdraw a request", func(s *session) error {
		rows, err := s.query(ctx, withdrawSQL, w.cfg.Pipeline, id)
		was = len(rows) > 0
		return err
	})
	return was, err
}

// Living implements sink.Requests.
func (w *Writer) Living(ctx context.Context) (who string, err error) {
	err = w.onSide(ctx, "look who owns the pipeline", func(s *session) error {
		rows, err := s.query(ctx, livingSQL, w.cfg.Pipeline)
		if missingBook(err) {
			return nil
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		var age float64
		fmt.Sscan(str(rows[0][2]), &age)
		if age <= staleAfter.Seconds() {
			who = fmt.Sprintf("process %s on host %s, heartbeat %.1f s old", str(rows[0][1]), str(rows[0][0]), age)
		}
		return nil
	})
	return who, err
}

// Unfinished implements sink.Requests.
func (w *Writer) Unfinished(ctx context.Context, again func(kind string) bool) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "settle earlier requests", func(s *session) error {
		return w.fencedly(ctx, s, epoch, func() error {
			rows, err := s.query(ctx, leftSQL, w.cfg.Pipeline, epoch)
			if err != nil {
				return err
			}
			for _, r := range rows {
				if again(str(r[1])) {
					_, err = s.query(ctx, againSQL, w.cfg.Pipeline, num(r[0]))
				} else {
					_, err = s.query(ctx, finishSQL, w.cfg.Pipeline, num(r[0]), string(sink.Failed), "the process that took the request ended before it was finished; ask again", int(fault.Operator))
				}
				if err != nil {
					return err
				}
			}
			_, err = s.query(ctx, oldSQL, w.cfg.Pipeline)
			return err
		})
	})
}

// Take implements sink.Requests. Where nothing is asked it only reads.
func (w *Writer) Take(ctx context.Context) (list []sink.Request, err error) {
	epoch, err := w.owned()
	if err != nil {
		return nil, err
	}
	err = w.onSide(ctx, "take requests", func(s *session) error {
		rows, err := s.query(ctx, waitingSQL, w.cfg.Pipeline)
		if err != nil || len(rows) == 0 {
			return err
		}
		return w.fencedly(ctx, s, epoch, func() error {
			rows, err := s.query(ctx, takenSQL, w.cfg.Pipeline, epoch)
			for _, r := range rows {
				list = append(list, sink.Request{ID: num(r[0]), Kind: str(r[1]), Argument: str(r[2]), By: str(r[3]), At: microsOf(r[4])})
			}
			return err
		})
	})
	return list, err
}

// Report implements sink.Requests. The session's commit does not wait for the disk.
func (w *Writer) Report(ctx context.Context, id int64, text string) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "report on a request", func(s *session) error {
		_, err := s.query(ctx, reportSQL, w.cfg.Pipeline, id, epoch, text)
		return err
	})
}

// Finish implements sink.Requests.
func (w *Writer) Finish(ctx context.Context, id int64, a sink.Answer) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "answer a request", func(s *session) error {
		return w.fencedly(ctx, s, epoch, func() error {
			_, err := s.query(ctx, finishSQL, w.cfg.Pipeline, id, string(a.State), a.Text, int(a.Fault))
			return err
		})
	})
}

// onSide runs fn on the small session and explains its error.
func (w *Writer) onSide(ctx context.Context, doing string, fn func(s *session) error) error {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	err = fn(s)
	if stateOf(err) == notPermitted {
		who, e := s.query(ctx, "SELECT current_user")
		if e != nil {
			return w.explain(ctx, e, doing, nil)
		}
		user := quote(str(who[0][0]))
		return fault.Refuse(fmt.Sprintf("GRANT USAGE ON SCHEMA _tailrace TO %s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA _tailrace TO %[1]s;", user),
			"user %s may not %s: who may write to schema _tailrace may command the pipeline", user, doing)
	}
	return w.explain(ctx, err, doing, nil)
}

// durably runs fn in a transaction that a crash of the server does not undo.
func durably(ctx context.Context, s *session, fn func() error) error {
	if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		return s.exec(ctx, "COMMIT")
	}
	if !s.conn.IsClosed() {
		s.exec(ctx, "ROLLBACK")
	}
	return err
}

// fencedly is durably for the owner.
func (w *Writer) fencedly(ctx context.Context, s *session, epoch int64, fn func() error) error {
	return durably(ctx, s, func() error {
		rows, err := s.query(ctx, ownSQL, w.cfg.Pipeline, epoch)
		if err == nil && len(rows) == 0 {
			err = fault.ErrFenced
		}
		if err != nil {
			return err
		}
		return fn()
	})
}

// ownSQL is the fence beside the batches: the mark's row may be held for as long as a
// batch takes, the owner's is not.
const ownSQL = `SELECT FROM _tailrace.owners WHERE pipeline = $1 AND epoch = $2::bigint FOR SHARE`

func microsOf(cell *string) time.Time {
	var us float64
	fmt.Sscan(str(cell), &us)
	return time.UnixMicro(int64(us)).UTC()
}
