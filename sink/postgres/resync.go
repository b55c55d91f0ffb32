package postgres

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// A stage of a resync is an unlogged table of the bookkeeping's schema: it must outlive
// the session that fills it, and nothing but the process. Its columns c1.. have the
// target's own types, with length and domain, so that a value stands there as it will
// stand in the target, and rows that are equal look equal.

func (w *Writer) resyncStage(sh *shape) string {
	return "_tailrace." + quote(sink.StageOf(w.cfg.Pipeline, w.qualified(sh.target.Name)))
}

func (w *Writer) resyncNotes(sh *shape) string {
	return "_tailrace." + quote(sink.NotesOf(w.cfg.Pipeline, w.qualified(sh.target.Name)))
}

// resyncing opens a session for a target's resync.
func (w *Writer) resyncing(ctx context.Context, t *scd.Target) (*session, *shape, error) {
	if _, err := w.owned(); err != nil {
		return nil, nil, err
	}
	s, err := w.connect(ctx, "SET maintenance_work_mem = '256MB'; SET work_mem = '64MB';")
	if err != nil {
		return nil, nil, err
	}
	w.mayReplicate(ctx, s)
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		s.close(ctx)
		return nil, nil, err
	}
	return s, sh, nil
}

// Stage implements sink.Resyncs.
func (w *Writer) Stage(ctx context.Context, t *scd.Target, in sink.Copy) (int64, error) {
	return w.fillStage(ctx, t, in, false)
}

// fillStage fills a stage, with a key if it is going to be written to.
func (w *Writer) fillStage(ctx context.Context, t *scd.Target, in sink.Copy, keyed bool) (int64, error) {
	s, sh, err := w.resyncing(ctx, t)
	if err != nil {
		return 0, err
	}
	defer s.close(ctx)
	epoch, err := w.owned()
	if err == nil {
		err = w.fence(ctx, s, epoch)
	}
	stage := w.resyncStage(sh)
	if err == nil {
		err = s.exec(ctx, fmt.Sprintf("BEGIN; DROP TABLE IF EXISTS %s; CREATE UNLOGGED TABLE %[1]s AS SELECT %s FROM %s AS t WHERE false", stage,
			each(len(sh.columns), ", ", func(i int) string { return "t." + sh.column(i) + " AS " + stageColumn(i) }), sh.name))
	}
	if err != nil {
		return 0, w.explain(ctx, err, "make a stage for", sh)
	}
	from := &reading{r: in.Rows}
	tag, err := s.conn.CopyFrom(ctx, from, copyInto(stage, each(len(sh.columns), ", ", stageColumn), in.Binary))
	if from.err != nil {
		return 0, from.err // the stream's own error, before what the server says of its end
	}
	if err == nil && keyed && len(sh.keys) > 0 {
		err = s.exec(ctx, fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", stage, each(len(sh.keys), ", ", func(i int) string { return stageColumn(sh.keys[i]) })))
	}
	if err == nil {
		err = s.exec(ctx, "ANALYZE "+stage)
	}
	if err == nil { // a successor has not seen the stage yet: it would be left behind
		err = w.fence(ctx, s, epoch)
	}
	if err == nil {
		err = s.exec(ctx, "COMMIT")
	}
	if err != nil {
		return 0, w.explain(ctx, err, "copy into the stage of", sh)
	}
	return tag.RowsAffected(), nil
}

// Replace implements sink.Resyncs.
func (w *Writer) Replace(ctx context.Context, t *scd.Target, r sink.Replacement) (sink.Replaced, error) {
	epoch, err := w.owned()
	if err != nil {
		return sink.Replaced{}, err
	}
	s, sh, err := w.resyncing(ctx, t)
	if err != nil {
		return sink.Replaced{}, err
	}
	defer s.close(ctx)
	done, err := w.replace(ctx, s, sh, epoch, r)
	return done, w.explain(ctx, err, "replace the rows of", sh)
}

func (w *Writer) replace(ctx context.Context, s *session, sh *shape, epoch int64, r sink.Replacement) (done sink.Replaced, err error) {
	if err = s.exec(ctx, "BEGIN"); err != nil {
		return done, err
	}
	if err = sh.ensureKey(ctx, s, w); err != nil {
		return done, err
	}
	stage, notes := w.resyncStage(sh), ""
	if r.Noted {
		notes = w.resyncNotes(sh)
		if err = s.exec(ctx, "ANALYZE "+notes); err != nil {
			return done, err
		}
	}
	part := r.Part != nil
	if part {
		if err = w.stageGone(ctx, s, sh, r.Part.Gone); err != nil {
			return done, err
		}
	}
	steps := sh.replaceSQL(stage, notes, part)
	if sh.target.Kind == scd.Type2 {
		steps = sh.replaceVersionsSQL(stage, notes, literal(string(appendInstant(nil, r.At.UnixMicro()))), part)
	}
	err = sh.fedBy(ctx, s, r.Done.Since, func() error {
		done, err = replaceBy(ctx, s, steps)
		return err
	})
	if err != nil {
		return done, err
	}
	if err = w.fence(ctx, s, epoch); err != nil { // it locks the mark's row: at last, because batches may run beside this
		return done, err
	}
	why := "it was made equal to a new copy of its table"
	if part {
		why = "rows of it were replaced by those of its table"
	}
	if err = w.barrier(ctx, s, sh.target.Name, why); err != nil {
		return done, err
	}
	if r.Ahead {
		return done, s.exec(ctx, "COMMIT")
	}
	if err = saveTable(ctx, s, w.cfg.Pipeline, r.Done); err != nil {
		return done, err
	}
	if g := r.Gap; r.Records(done) {
		if _, err = s.query(ctx, "INSERT INTO _tailrace.gaps VALUES ($1, $2, $3, $4, $5, $6, now())",
			w.cfg.Pipeline, g.Target.Schema, g.Target.Table, g.From, g.To, g.Reason); err != nil {
			return done, err
		}
	}
	if j := r.Judged; j != nil {
		if err = w.afresh(ctx, s, sh.target.Name, j.Flow); err != nil {
			return done, err
		}
		if err = w.setAside(ctx, s, j.Aside, j.Met); err != nil {
			return done, err
		}
	}
	if err = s.exec(ctx, "DROP TABLE "+stage+"; DROP TABLE IF EXISTS "+w.resyncNotes(sh)+"; SET LOCAL synchronous_commit = local"); err != nil {
		return done, err
	}
	fault.KillPoint("target replaced")
	return done, s.exec(ctx, "COMMIT")
}

// replaceBy carries out steps that make a target equal to its stage.
func replaceBy(ctx context.Context, s *session, steps []replaceStep) (done sink.Replaced, err error) {
	for _, step := range steps {
		result := s.conn.ExecParams(ctx, step.sql, nil, nil, nil, nil).Read()
		if result.Err != nil {
			return done, result.Err
		}
		n := result.CommandTag.RowsAffected()
		if result.CommandTag.Select() {
			count := string(result.Rows[0][0])
			n = num(&count)
		}
		switch step.counts {
		case countRemoved:
			done.Removed += n
		case countWritten:
			done.Written += n
		}
	}
	return done, nil
}

// stageGone fills goneTable.
func (w *Writer) stageGone(ctx context.Context, s *session, sh *shape, gone []change.Row) error {
	if len(sh.keys) == 0 {
		return fault.Corrupted("table %s has no key by which a part of it could be replaced", sh.target.Name)
	}
	if err := s.exec(ctx, sh.createGoneSQL()); err != nil {
		return err
	}
	f := w.canonicalForm(sh.target)
	var values []change.Value
	stream := newCopyStream(bool(f), func() (fields []change.Value, ok bool, err error) {
		if len(gone) == 0 {
			return nil, false, nil
		}
		if values, err = gone[0].Values(values, len(sh.keys)); err != nil {
			return nil, false, torn(sh, err)
		}
		gone = gone[1:]
		return values, true, nil
	})
	if _, err := s.conn.CopyFrom(ctx, stream, copyInto(goneTable, sh.stageKeys(), bool(f))); err != nil {
		if stream.err != nil && fault.KindOf(stream.err) == fault.Corrupt {
			return stream.err
		}
		return err
	}
	return s.exec(ctx, "ANALYZE "+goneTable)
}

// Unstage implements sink.Resyncs.
func (w *Writer) Unstage(ctx context.Context) error {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	return w.explain(ctx, w.unstage(ctx, s), "drop stages that were left behind", nil)
}

func (w *Writer) unstage(ctx context.Context, s *session) error {
	rows, err := s.query(ctx, "SELECT tablename FROM pg_tables WHERE schemaname = '_tailrace' AND starts_with(tablename, $1)", sink.StagesOf(w.cfg.Pipeline))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if err := s.exec(ctx, "DROP TABLE IF EXISTS _tailrace."+quote(str(r[0]))); err != nil {
			return err
		}
	}
	return nil
}

// Gaps implements sink.Resyncs.
func (w *Writer) Gaps(ctx context.Context) ([]sink.Gap, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, "SELECT target_schema, target_table, from_position, to_position, reason, (extract(epoch FROM recorded) * 1000000)::bigint FROM _tailrace.gaps WHERE pipeline = $1 ORDER BY 1, 2, recorded", w.cfg.Pipeline)
	if missingBook(err) {
		return nil, nil
	}
	if err != nil {
		return nil, w.explain(ctx, err, "read the gaps of histories", nil)
	}
	var gaps []sink.Gap
	for _, r := range rows {
		g := sink.Gap{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Reason: str(r[4]), At: time.UnixMicro(num(r[5])).UTC()}
		if g.From, err = change.ParsePosition(str(r[2])); err == nil {
			g.To, err = change.ParsePosition(str(r[3]))
		}
		if err != nil {
			return nil, fault.Corrupted("the gaps of table %s: %v", g.Target, err)
		}
		gaps = append(gaps, g)
	}
	return gaps, nil
}
