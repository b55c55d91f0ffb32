package mysql

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

const (
	askSQL      = `INSERT INTO _tailrace.requests (pipeline, kind, argument, asked, asked_by, outcome) VALUES (?, ?, ?, UTC_TIMESTAMP(6), ?, '')`
	answerSQL   = `SELECT state, outcome, fault FROM _tailrace.requests WHERE pipeline = ? AND id = ?`
	withdrawSQL = `UPDATE _tailrace.requests SET state = 'withdrawn', finished = UTC_TIMESTAMP(6) WHERE pipeline = ? AND id = ? AND state = 'asked'`
	livingSQL   = `SELECT host, pid, TIMESTAMPDIFF(MICROSECOND, heartbeat, UTC_TIMESTAMP(6)) FROM _tailrace.owners WHERE pipeline = ?`

	// What the owner does with requests is fenced by its epoch: see fencedly.
	leftSQL    = `SELECT id, kind FROM _tailrace.requests WHERE pipeline = ? AND state = 'taken' AND epoch < ?`
	againSQL   = `UPDATE _tailrace.requests SET state = 'asked', epoch = NULL, outcome = '' WHERE pipeline = ? AND id = ?`
	oldSQL     = `DELETE FROM _tailrace.requests WHERE pipeline = ? AND finished < UTC_TIMESTAMP(6) - INTERVAL 7 DAY`
	waitingSQL = `SELECT id, kind, argument, asked_by, asked FROM _tailrace.requests WHERE pipeline = ? AND state = 'asked' ORDER BY id`
	takenSQL   = `UPDATE _tailrace.requests SET state = 'taken', epoch = ? WHERE pipeline = ? AND id = ? AND state = 'asked'`
	finishSQL  = `UPDATE _tailrace.requests SET state = ?, outcome = ?, fault = ?, finished = UTC_TIMESTAMP(6) WHERE pipeline = ? AND id = ? AND state = 'taken'`
	reportSQL  = `UPDATE _tailrace.requests SET outcome = ? WHERE pipeline = ? AND id = ? AND state = 'taken' AND epoch = ?`
	// ownSQL is the fence beside the batches: the mark's row may be held for a moment,
	// the owner's is not.
	ownSQL = `SELECT 1 FROM _tailrace.owners WHERE pipeline = ? AND epoch = ? LOCK IN SHARE MODE`
)

// Ask implements sink.Requests.
func (w *Writer) Ask(ctx context.Context, r sink.Request) (id int64, err error) {
	err = w.onSide(ctx, "write a request down", func(s *session) (err error) {
		id, err = s.insertID(ctx, bind(askSQL, w.cfg.Pipeline, r.Kind, r.Argument, r.By))
		return err
	})
	return id, err
}

// AnswerTo implements sink.Requests.
func (w *Writer) AnswerTo(ctx context.Context, id int64) (a sink.Answer, err error) {
	err = w.onSide(ctx, "look for an answer", func(s *session) error {
		rows, err := s.query(ctx, bind(answerSQL, w.cfg.Pipeline, id))
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
		n, err := s.exec(ctx, bind(withdrawSQL, w.cfg.Pipeline, id))
		was = n > 0
		return err
	})
	return was, err
}

// Living implements sink.Requests.
func (w *Writer) Living(ctx context.Context) (who string, err error) {
	err = w.onSide(ctx, "look who owns the pipeline", func(s *session) error {
		rows, err := s.query(ctx, bind(livingSQL, w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		if age := time.Duration(num(rows[0][2])) * time.Microsecond; age <= staleAfter {
			who = fmt.Sprintf("process %s on host %s, heartbeat %.1f s old", str(rows[0][1]), str(rows[0][0]), age.Seconds())
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
	return w.fencedly(ctx, "settle earlier requests", epoch, func(s *session) error {
		rows, err := s.query(ctx, bind(leftSQL, w.cfg.Pipeline, epoch))
		if err != nil {
			return err
		}
		for _, r := range rows {
			sql := bind(finishSQL, string(sink.Failed), "the process that took the request ended before it was finished; ask again", int(fault.Operator), w.cfg.Pipeline, num(r[0]))
			if again(str(r[1])) {
				sql = bind(againSQL, w.cfg.Pipeline, num(r[0]))
			}
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		_, err = s.exec(ctx, bind(oldSQL, w.cfg.Pipeline))
		return err
	})
}

// Take implements sink.Requests. Where nothing is asked it only reads.
func (w *Writer) Take(ctx context.Context) (list []sink.Request, err error) {
	epoch, err := w.owned()
	if err != nil {
		return nil, err
	}
	waiting := false
	err = w.onSide(ctx, "take requests", func(s *session) error {
		rows, err := s.query(ctx, bind(waitingSQL, w.cfg.Pipeline))
		waiting = len(rows) > 0
		return err
	})
	if err != nil || !waiting {
		return nil, err
	}
	err = w.fencedly(ctx, "take requests", epoch, func(s *session) error {
		rows, err := s.query(ctx, bind(waitingSQL, w.cfg.Pipeline))
		if err != nil {
			return err
		}
		for _, r := range rows {
			n, err := s.exec(ctx, bind(takenSQL, epoch, w.cfg.Pipeline, num(r[0])))
			if err != nil {
				return err
			}
			if n == 0 { // withdrawn meanwhile
				continue
			}
			at, err := instantOf(r[4])
			if err != nil {
				return err
			}
			list = append(list, sink.Request{ID: num(r[0]), Kind: str(r[1]), Argument: str(r[2]), By: str(r[3]), At: at})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Report implements sink.Requests.
func (w *Writer) Report(ctx context.Context, id int64, text string) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, "report on a request", func(s *session) error {
		_, err := s.exec(ctx, bind(reportSQL, text, w.cfg.Pipeline, id, epoch))
		return err
	})
}

// Finish implements sink.Requests.
func (w *Writer) Finish(ctx context.Context, id int64, a sink.Answer) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.fencedly(ctx, "answer a request", epoch, func(s *session) error {
		_, err := s.exec(ctx, bind(finishSQL, string(a.State), a.Text, int(a.Fault), w.cfg.Pipeline, id))
		return err
	})
}

// fencedly runs fn on the small session in a transaction of the owner's.
func (w *Writer) fencedly(ctx context.Context, doing string, epoch int64, fn func(s *session) error) error {
	return w.onSide(ctx, doing, func(s *session) error {
		return within(ctx, s, func() error {
			rows, err := s.query(ctx, bind(ownSQL, w.cfg.Pipeline, epoch))
			if err == nil && len(rows) == 0 {
				err = fault.ErrFenced
			}
			if err != nil {
				return err
			}
			return fn(s)
		})
	})
}
