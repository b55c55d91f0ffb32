package mysql

import (
	"context"
	"iter"
	"slices"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// Seed makes the table of what is remembered of an ordered target, and fills it. A table
// that was made and not filled counts for nothing, since the bookkeeping does not name
// it; the next Seed or Create drops it.
func (w *Writer) Seed(ctx context.Context, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close() // also what takes an unfinished transaction back
	err = w.heldFence(ctx, epoch, func() error { return w.seed(ctx, s, t, head, records) })
	return w.present(err, "remember the rows of table "+w.qualified(t.Name).String(), nil)
}

func (w *Writer) seed(ctx context.Context, s *session, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error {
	name := w.qualified(t.Name)
	table := recordsName(w.cfg.Pipeline, name)
	there, err := w.remembers(ctx, s, t)
	if err != nil {
		return err
	}
	if !there {
		for _, sql := range []string{"DROP TABLE IF EXISTS " + recordsTable(table), createRecordsSQL(table)} {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
	}
	return within(ctx, s, func() error {
		if err := w.barrier(ctx, s, t.Name, seededAnew); err != nil {
			return err
		}
		sh := &shape{target: t}
		var part []sequenced.Record
		put := func() error {
			err := putRecords(ctx, s, sh, recordsTable(table), len(part), func(i int) (*sequenced.Record, error) { return &part[i], nil })
			part = part[:0]
			return err
		}
		for r, err := range records {
			if err != nil {
				return &streamError{err}
			}
			r.Key, r.Seq, r.At, r.Body = slices.Clone(r.Key), slices.Clone(r.Seq), slices.Clone(r.At), slices.Clone(r.Body)
			if part = append(part, r); len(part) == seededAtOnce {
				if err := put(); err != nil {
					return err
				}
			}
		}
		if err := put(); err != nil {
			return err
		}
		for _, sql := range []string{
			bind(sequencedRowSQL, w.cfg.Pipeline, name.Schema, name.Table, table),
			w.of(resetCountsSQL, t), w.of(resetHeadSQL, t), // what an earlier life left
			w.of(saveHeadSQL, t, head.Truncated.Seq, head.Truncated.At),
			bind(raiseHorizonSQL, head.Horizon, w.cfg.Pipeline, name.Schema, name.Table, head.Horizon),
		} {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// seededAtOnce records are held at once, some MiB.
const seededAtOnce = 10_000

// Reset empties a target and what is remembered of it, in one transaction. A table of
// ours that no longer fits goes after that, with its memory: Create makes both anew. If
// the process dies in between, the table does still not fit, and Reset comes again.
func (w *Writer) Reset(ctx context.Context, t *scd.Target) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close() // also what takes an unfinished transaction back
	return w.present(w.reset(ctx, s, epoch, t), "empty table "+w.qualified(t.Name).String(), nil)
}

func (w *Writer) reset(ctx context.Context, s *session, epoch int64, t *scd.Target) error {
	name := w.qualified(t.Name)
	if err := w.fence(ctx, s, epoch); err != nil {
		return err
	}
	r, err := w.readRelation(ctx, s, name)
	if err != nil {
		return err
	}
	there, err := w.remembers(ctx, s, t)
	if err != nil {
		return err
	}
	d, err := w.plan(ctx, s, t)
	if err != nil {
		return err
	}
	misfit := slices.ContainsFunc(d.Problems, func(f sink.Finding) bool { return f.Blocks && f.Reset }) && !d.Unremembered
	if d.Unremembered { // the last of its problems; others may stand before it
		misfit = slices.ContainsFunc(d.Problems[:len(d.Problems)-1], func(f sink.Finding) bool { return f.Blocks && f.Reset })
	}
	var statements []string
	if t.ChangeFeed && r != nil && !misfit {
		feed, err := about(ctx, s, relationSQL, change.Name{Schema: "_tailrace", Table: w.feedName(t)})
		if err != nil {
			return err
		}
		if len(feed) > 0 {
			sh, err := w.shapeOf(ctx, s, t)
			if err != nil {
				return err
			}
			statements = append(statements, sh.newSQL(sink.FeedDelete, "", change.Position{}))
		}
	}
	if r != nil {
		statements = append(statements, "DELETE FROM "+qualifiedName(name))
	}
	if there {
		statements = append(statements, "DELETE FROM "+w.records(t))
	}
	statements = append(statements, w.of(resetCountsSQL, t), w.of(resetHeadSQL, t), bind(resolveTargetSQL, w.cfg.Pipeline, t.Name.Schema, t.Name.Table), bind(forgetTargetsSQL, w.cfg.Pipeline, t.Name.Schema, t.Name.Table))
	err = within(ctx, s, func() error {
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := w.barrier(ctx, s, t.Name, emptiedAnew); err != nil {
			return err
		}
		for _, sql := range statements {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !misfit || r == nil || !r.ours {
		return err
	}
	return w.heldFence(ctx, epoch, func() error {
		drop := append(dropRecordsSQL(w.cfg.Pipeline, name), "DROP TABLE "+qualifiedName(name))
		if t.ChangeFeed { // its columns are the table's
			drop = append(drop, "DROP TABLE IF EXISTS "+feedTable(w.feedName(t)))
		}
		for _, sql := range drop {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}
