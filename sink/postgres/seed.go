package postgres

import (
	"context"
	"fmt"
	"iter"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Seed makes the table of what is remembered of an ordered target, and fills it.
func (w *Writer) Seed(ctx context.Context, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx) // also what takes an unfinished transaction back
	return w.explain(ctx, w.seed(ctx, s, epoch, t, head, records), "remember the rows of table "+w.qualified(t.Name).String(), nil)
}

func (w *Writer) seed(ctx context.Context, s *session, epoch int64, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error {
	name := w.qualified(t.Name)
	create := createRecordsSQL(recordsName(w.cfg.Pipeline, name), t.Kind)
	if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
		return err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return err
	}
	if err := s.exec(ctx, create[0]); err != nil {
		return err
	}
	next, stop := iter.Pull2(records)
	defer stop()
	var sc scratch
	sc.binary = true
	bytea := func(b []byte) change.Value { return change.Value{State: change.Binary, Data: b} }
	fields := make([]change.Value, 6)
	stream := newCopyStream(true, func() ([]change.Value, bool, error) {
		r, err, more := next()
		if err != nil || !more {
			return nil, false, err
		}
		sc.reset()
		fields[0], fields[1], fields[2], fields[3] = bytea(r.Key), bytea(r.Seq), bytea(r.At), bytea(r.Body)
		fields[4], fields[5] = sc.bool(r.Tombstone), sc.int8(r.Time)
		return fields, true, nil
	})
	if _, err := s.conn.CopyFrom(ctx, stream, copyInto(w.records(t), recordColumns, true)); err != nil {
		if stream.err != nil {
			return stream.err
		}
		return err
	}
	for _, sql := range append(create[1:], fmt.Sprintf(sequencedRowSQL, literal(w.cfg.Pipeline), literal(name.Schema), literal(name.Table), literal(recordsName(w.cfg.Pipeline, name)))) {
		if err := s.exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := s.query(ctx, resetSQL, w.cfg.Pipeline, name.Schema, name.Table); err != nil { // what an earlier life left
		return err
	}
	params := append(w.of(t), head.Truncated.Seq, head.Truncated.At, head.Horizon)
	if res := s.conn.ExecParams(ctx, saveHeadSQL, params, nil, []int16{0, 0, 0, 1, 1, 1}, nil).Read(); res.Err != nil {
		return res.Err
	}
	if err := w.barrier(ctx, s, name, "it began to remember its events"); err != nil {
		return err
	}
	return s.exec(ctx, "COMMIT")
}
