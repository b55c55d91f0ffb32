package mysql

import (
	"context"
	"crypto/sha256"
	sqldriver "database/sql/driver"
	"slices"
	"strconv"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

const (
	filesHead = "INSERT INTO _tailrace.files (pipeline, relation_schema, relation_table, path_hash, path, size, modified, checksum, `rows`) VALUES "
	filesTail = " ON DUPLICATE KEY UPDATE size = VALUES(size), modified = VALUES(modified), checksum = VALUES(checksum), `rows` = VALUES(`rows`)"
	filesSQL  = "SELECT relation_schema, relation_table, path, size, modified, checksum, `rows` FROM _tailrace.files WHERE pipeline = ?"
	asideHead = `INSERT INTO _tailrace.quarantine (pipeline, flow, target_schema, target_table, reason, position, at, time, event) VALUES `
	// Times before the year 1 are the zero time, which these servers cannot hold.
	asideSQL         = `SELECT id, flow, target_schema, target_table, reason, position, at, time, event FROM _tailrace.quarantine WHERE pipeline = ? AND (? = '' OR flow = ?) AND resolved IS NULL ORDER BY id`
	forgetFilesSQL   = `DELETE FROM _tailrace.files WHERE pipeline = ?`
	forgetAsideSQL   = `DELETE FROM _tailrace.quarantine WHERE pipeline = ?`
	unresolvedSQL    = `SELECT flow, COUNT(*) FROM _tailrace.quarantine WHERE pipeline = ? AND resolved IS NULL GROUP BY flow`
	resolveAllSQL    = `UPDATE _tailrace.quarantine SET resolved = UTC_TIMESTAMP(6) WHERE pipeline = ? AND resolved IS NULL`
	resolveTargetSQL = `UPDATE _tailrace.quarantine SET resolved = UTC_TIMESTAMP(6) WHERE pipeline = ? AND target_schema = ? AND target_table = ? AND resolved IS NULL`
	resolveFlowSQL   = resolveTargetSQL + ` AND flow = ?`
	resolveHead      = `UPDATE _tailrace.quarantine SET resolved = UTC_TIMESTAMP(6) WHERE resolved IS NULL AND pipeline = ? AND id IN (`
)

const (
	violationsHead      = `INSERT INTO _tailrace.violations (pipeline, target_schema, target_table, flow, expectation, met, events) VALUES `
	violationsTail      = ` ON DUPLICATE KEY UPDATE events = events + VALUES(events)`
	violationsSQL       = `SELECT target_schema, target_table, flow, expectation, met, events FROM _tailrace.violations WHERE pipeline = ? ORDER BY 1, 2, 3, 4, 5`
	forgetViolationsSQL = `DELETE FROM _tailrace.violations WHERE pipeline = ?`
	forgetTargetsSQL    = forgetViolationsSQL + ` AND target_schema = ? AND target_table = ?`
	forgetFlowsSQL      = forgetTargetsSQL + ` AND flow = ?`
)

// asides writes what a batch holds beside its targets: files and events set aside.
func (a *applier) asides(ctx context.Context, b *sink.Batch) error {
	pipeline := a.w.cfg.Pipeline
	if err := a.keepFiles(ctx, b.Files); err != nil {
		return err
	}
	l := a.list(filesHead, filesTail, nil, "record the files that were taken")
	for i := range b.Files {
		f := &b.Files[i]
		hash := sha256.Sum256([]byte(f.Path))
		l.item(bind("?, ?, ?, ?, ?, ?, ?, ?, ?", pipeline, f.Relation.Schema, f.Relation.Table, hash[:], f.Path, f.Size, f.Modified.UnixNano(), f.Checksum, f.Rows))
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	if err := a.w.setAside(ctx, a.s, b.Aside, b.Violations); err != nil {
		return err
	}
	if len(b.Resolved) == 0 {
		return nil
	}
	n, err := a.resolve(ctx, a.s, b.Resolved)
	if err == nil && n != int64(len(b.Resolved)) {
		err = fault.Corrupted("resolve events that were set aside: %d were to be there, %d are", len(b.Resolved), n)
	}
	return err
}

// setAside stores events, and adds what expectations met to what is kept.
func (w *Writer) setAside(ctx context.Context, s *session, events []sink.Aside, met []sink.Violation) error {
	pipeline := w.cfg.Pipeline
	l := newList(s, nil, asideHead, "", "set events aside")
	for i := range events {
		e := &events[i]
		at := e.At
		if at == nil {
			at = []byte{}
		}
		l.item(bind("?, ?, ?, ?, ?, ?, ?, ?, ?", pipeline, e.Flow, e.Target.Schema, e.Target.Table, e.Reason, e.Position, at, e.Time, string(e.Event)))
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	l = newList(s, nil, violationsHead, violationsTail, "count what violated expectations")
	for i := range met {
		v := &met[i]
		l.item(bind("?, ?, ?, ?, ?, ?, ?", pipeline, v.Target.Schema, v.Target.Table, v.Flow, v.Expectation, v.Met, v.Events))
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// resolve marks events as resolved and returns how many of them were not.
func (a *applier) resolve(ctx context.Context, s *session, ids []int64) (total int64, err error) {
	for part := range slices.Chunk(ids, 1000) {
		var list []byte
		for i, id := range part {
			if i > 0 {
				list = append(list, ',')
			}
			list = strconv.AppendInt(list, id, 10)
		}
		if err := a.w.keepAsides(ctx, s, " AND id IN ("+string(list)+")"); err != nil {
			return total, err
		}
		n, err := s.exec(ctx, bind(resolveHead, a.w.cfg.Pipeline)+string(list)+")")
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// Files reads the files that were taken.
func (w *Writer) Files(ctx context.Context) ([]change.File, error) {
	return w.filesOf(ctx, bind(filesSQL, w.cfg.Pipeline))
}

// TakenSince implements sink.Rewinds.
func (w *Writer) TakenSince(ctx context.Context, to int64) ([]change.File, error) {
	return w.filesOf(ctx, bind(filesSQL+" AND EXISTS (SELECT 1 FROM _tailrace.undo_files AS u WHERE u.pipeline = files.pipeline AND u.relation_schema = files.relation_schema AND u.relation_table = files.relation_table AND u.path_hash = files.path_hash AND u.number >= ?)", w.cfg.Pipeline, to))
}

func (w *Writer) filesOf(ctx context.Context, sql string) (files []change.File, err error) {
	err = w.onSide(ctx, "read which files were taken", func(s *session) error {
		rows, err := s.query(ctx, sql)
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			files = append(files, change.File{
				Relation: change.Name{Schema: str(r[0]), Table: str(r[1])}, Path: str(r[2]), Size: num(r[3]),
				Modified: time.Unix(0, num(r[4])).UTC(), Checksum: str(r[5]), Rows: num(r[6]),
			})
		}
		return err
	})
	return files, err
}

// Quarantine reads the events that were set aside and are not resolved, on a session of
// its own.
func (w *Writer) Quarantine(ctx context.Context, flow string, fn func(sink.Aside) error) error {
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close() // also what ends a reading that fn has stopped
	var stopped error
	err = s.stream(ctx, bind(asideSQL, w.cfg.Pipeline, flow, flow), true, nil, func(row []sqldriver.Value) error {
		at, err := instantOf(cell(row[7]))
		if err != nil {
			return err
		}
		stopped = fn(sink.Aside{
			ID: intOf(row[0]), Flow: string(bytesOf(row[1])), Target: change.Name{Schema: string(bytesOf(row[2])), Table: string(bytesOf(row[3]))},
			Reason: string(bytesOf(row[4])), Position: string(bytesOf(row[5])), At: slices.Clone(bytesOf(row[6])), Time: at, Event: slices.Clone(bytesOf(row[8])),
		})
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	if missingBook(err) {
		return nil
	}
	return w.explain(err, "read the events that were set aside", nil)
}

// Unresolved counts the events that were set aside and are not resolved.
func (w *Writer) Unresolved(ctx context.Context) (counts map[string]int64, err error) {
	counts = map[string]int64{}
	err = w.onSide(ctx, "count the events that were set aside", func(s *session) error {
		rows, err := s.query(ctx, bind(unresolvedSQL, w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			counts[str(r[0])] = num(r[1])
		}
		return err
	})
	return counts, err
}

// Resolve marks events set aside as resolved.
func (w *Writer) Resolve(ctx context.Context, ids []int64) error {
	return w.amend(ctx, "resolve events that were set aside", func(s *session) error {
		_, err := w.apply.resolve(ctx, s, ids)
		return err
	})
}

// StartOver implements sink.Memory.
func (w *Writer) StartOver(ctx context.Context) error {
	return w.amend(ctx, "forget the files taken and the quarantine", func(s *session) error {
		aside := forgetAsideSQL
		if w.keepsUnder().newest > 0 { // a rewind finds them
			aside = resolveAllSQL
			if err := w.keepFilesWhere(ctx, s, ""); err != nil {
				return err
			}
			if err := w.keepAsides(ctx, s, ""); err != nil {
				return err
			}
		}
		for _, sql := range []string{forgetFilesSQL, aside, forgetViolationsSQL} {
			if _, err := s.exec(ctx, bind(sql, w.cfg.Pipeline)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Violations implements sink.Memory.
func (w *Writer) Violations(ctx context.Context) (list []sink.Violation, err error) {
	err = w.onSide(ctx, "read what violated expectations", func(s *session) error {
		rows, err := s.query(ctx, bind(violationsSQL, w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			list = append(list, violationOf(r))
		}
		return err
	})
	return list, err
}

func violationOf(r []*string) sink.Violation {
	return sink.Violation{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Flow: str(r[2]), Expectation: str(r[3]), Met: str(r[4]), Events: num(r[5])}
}

// SetAside implements sink.Memory.
func (w *Writer) SetAside(ctx context.Context, events []sink.Aside, met []sink.Violation) error {
	return w.amend(ctx, "set events aside", func(s *session) error { return w.setAside(ctx, s, events, met) })
}

// Afresh implements sink.Memory.
func (w *Writer) Afresh(ctx context.Context, target change.Name, flow string) error {
	return w.amend(ctx, "begin a flow's quarantine afresh", func(s *session) error { return w.afresh(ctx, s, target, flow) })
}

func (w *Writer) afresh(ctx context.Context, s *session, target change.Name, flow string) error {
	if err := w.keepAsides(ctx, s, bind(" AND target_schema = ? AND target_table = ? AND flow = ?", target.Schema, target.Table, flow)); err != nil {
		return err
	}
	for _, sql := range []string{resolveFlowSQL, forgetFlowsSQL} {
		if _, err := s.exec(ctx, bind(sql, w.cfg.Pipeline, target.Schema, target.Table, flow)); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements sink.Memory.
func (w *Writer) Forget(ctx context.Context, relations []change.Name) error {
	return w.amend(ctx, "forget the files of relations", func(s *session) error {
		for _, r := range relations {
			if err := w.keepFilesWhere(ctx, s, bind(" AND relation_schema = ? AND relation_table = ?", r.Schema, r.Table)); err != nil {
				return err
			}
			if _, err := s.exec(ctx, bind(forgetFilesSQL+" AND relation_schema = ? AND relation_table = ?", w.cfg.Pipeline, r.Schema, r.Table)); err != nil {
				return err
			}
		}
		return nil
	})
}

// amend changes bookkeeping in a fenced transaction beside the batches.
func (w *Writer) amend(ctx context.Context, what string, change func(*session) error) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	return w.onSide(ctx, what, func(s *session) error {
		s.patience = amendPatience
		defer func() { s.patience = sidePatience }()
		return within(ctx, s, func() error {
			if err := w.fence(ctx, s, epoch); err != nil {
				return err
			}
			return change(s)
		})
	})
}
