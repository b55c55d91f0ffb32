package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tailrace/internal/change"
	"tailrace/sink"
)

// asides pushes what a batch holds beside its targets: files and events set aside.
func (a *applier) asides(ctx context.Context, b *sink.Batch) error {
	if files := lastOfEach(b.Files); len(files) > 0 {
		texts := func(of func(f *change.File) string) []byte {
			return textArray(len(files), func(i int) string { return of(&files[i]) })
		}
		params := [][]byte{
			[]byte(a.w.cfg.Pipeline),
			texts(func(f *change.File) string { return f.Relation.Schema }),
			texts(func(f *change.File) string { return f.Relation.Table }),
			texts(func(f *change.File) string { return f.Path }),
			texts(func(f *change.File) string { return strconv.FormatInt(f.Size, 10) }),
			texts(func(f *change.File) string { return strconv.FormatInt(f.Modified.UnixNano(), 10) }),
			texts(func(f *change.File) string { return f.Checksum }),
			texts(func(f *change.File) string { return strconv.FormatInt(f.Rows, 10) }),
		}
		if a.keeping {
			if err := a.push(ctx, keepFilesSQL, params[:4], asText, job{doing: "keep which files were taken", rows: -1}); err != nil {
				return err
			}
		}
		if err := a.push(ctx, saveFilesSQL, params, asText, job{doing: "record the files that were taken", rows: -1}); err != nil {
			return err
		}
	}
	for list := b.Aside; len(list) > 0; {
		n, params := a.w.asideParams(list)
		if err := a.push(ctx, saveAsideSQL, params, asText, job{doing: "set events aside", rows: -1}); err != nil {
			return err
		}
		list = list[n:]
	}
	for i := range b.Violations {
		if err := a.push(ctx, saveViolationSQL, a.w.violationParams(&b.Violations[i]), asText, job{doing: "count what violated expectations", rows: -1}); err != nil {
			return err
		}
	}
	if n := len(b.Resolved); n > 0 {
		ids := textArray(n, func(i int) string { return strconv.FormatInt(b.Resolved[i], 10) })
		if a.keeping {
			if err := a.push(ctx, keepResolvedSQL+ofIDs, [][]byte{[]byte(a.w.cfg.Pipeline), ids}, asText, job{doing: "keep which events were set aside", rows: -1}); err != nil {
				return err
			}
		}
		return a.push(ctx, resolveSQL, [][]byte{[]byte(a.w.cfg.Pipeline), ids}, asText, job{doing: "resolve events that were set aside", rows: int64(n)})
	}
	return nil
}

// asideParams are the parameters of saveAsideSQL for the first n of list.
func (w *Writer) asideParams(list []sink.Aside) (n int, params [][]byte) {
	n = chunk(len(list), func(i int) int {
		return len(list[i].Event) + len(list[i].At) + len(list[i].Reason) + len(list[i].Position)
	})
	texts := func(of func(e *sink.Aside) string) []byte {
		return textArray(n, func(i int) string { return of(&list[i]) })
	}
	return n, [][]byte{
		[]byte(w.cfg.Pipeline),
		texts(func(e *sink.Aside) string { return e.Flow }),
		texts(func(e *sink.Aside) string { return e.Target.Schema }),
		texts(func(e *sink.Aside) string { return e.Target.Table }),
		texts(func(e *sink.Aside) string { return e.Reason }),
		texts(func(e *sink.Aside) string { return e.Position }),
		texts(func(e *sink.Aside) string { return fmt.Sprintf(`\x%x`, e.At) }),
		texts(func(e *sink.Aside) string { return string(appendInstant(nil, e.Time.UnixMicro())) }),
		texts(func(e *sink.Aside) string { return string(e.Event) }),
	}
}

func (w *Writer) violationParams(v *sink.Violation) [][]byte {
	return [][]byte{[]byte(w.cfg.Pipeline), []byte(v.Target.Schema), []byte(v.Target.Table), []byte(v.Flow), []byte(v.Expectation), []byte(v.Met), strconv.AppendInt(nil, v.Events, 10)}
}

func textArray(n int, at func(i int) string) []byte {
	dst := []byte{'{'}
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuotedElement(dst, []byte(at(i)))
	}
	return append(dst, '}')
}

// lastOfEach leaves one of each file: a statement may not change a row twice.
func lastOfEach(files []change.File) []change.File {
	type name struct {
		relation change.Name
		path     string
	}
	seen := map[name]int{}
	var out []change.File
	for _, f := range files {
		n := name{f.Relation, f.Path}
		if i, ok := seen[n]; ok {
			out[i] = f
			continue
		}
		seen[n] = len(out)
		out = append(out, f)
	}
	return out
}

// Files reads the files that were taken.
func (w *Writer) Files(ctx context.Context) ([]change.File, error) {
	return w.filesOf(ctx, filesSQL, w.cfg.Pipeline)
}

const takenSinceSQL = filesSQL + ` AND EXISTS (SELECT FROM _tailrace.undo_files AS u WHERE u.pipeline = files.pipeline AND u.number >= $2::bigint
	AND u.relation_schema = files.relation_schema AND u.relation_table = files.relation_table AND u.path = files.path)`

// TakenSince implements sink.Rewinds.
func (w *Writer) TakenSince(ctx context.Context, to int64) ([]change.File, error) {
	return w.filesOf(ctx, takenSinceSQL, w.cfg.Pipeline, to)
}

func (w *Writer) filesOf(ctx context.Context, sql string, args ...any) ([]change.File, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, sql, args...)
	if missingBook(err) {
		return nil, nil
	}
	if err != nil {
		return nil, w.explain(ctx, err, "read which files were taken", nil)
	}
	files := make([]change.File, len(rows))
	for i, r := range rows {
		files[i] = change.File{
			Relation: change.Name{Schema: str(r[0]), Table: str(r[1])}, Path: str(r[2]), Size: num(r[3]),
			Modified: time.Unix(0, num(r[4])).UTC(), Checksum: str(r[5]), Rows: num(r[6]),
		}
	}
	return files, nil
}

// Quarantine reads the events that were set aside and are not resolved, on a
// session of its own.
func (w *Writer) Quarantine(ctx context.Context, flow string, fn func(sink.Aside) error) error {
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx) // also what ends a reading that fn has stopped
	rows := s.conn.ExecParams(ctx, asideSQL, [][]byte{[]byte(w.cfg.Pipeline), []byte(flow)}, nil, nil, []int16{0, 0, 0, 0, 0, 0, 1, 0, 0})
	for rows.NextRow() {
		v := rows.Values()
		number := func(i int) int64 { n, _ := strconv.ParseInt(string(v[i]), 10, 64); return n }
		err := fn(sink.Aside{
			ID: number(0), Flow: string(v[1]), Target: change.Name{Schema: string(v[2]), Table: string(v[3])}, Reason: string(v[4]), Position: string(v[5]),
			At: append([]byte(nil), v[6]...), Time: time.UnixMicro(number(7)).UTC(), Event: append([]byte(nil), v[8]...),
		})
		if err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil && !missingBook(err) {
		return w.explain(ctx, err, "read the events that were set aside", nil)
	}
	return nil
}

// Unresolved counts the events that were set aside and are not resolved.
func (w *Writer) Unresolved(ctx context.Context) (map[string]int64, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, unresolvedSQL, w.cfg.Pipeline)
	if missingBook(err) {
		return nil, nil
	}
	if err != nil {
		return nil, w.explain(ctx, err, "count the events that were set aside", nil)
	}
	counts := map[string]int64{}
	for _, r := range rows {
		counts[str(r[0])] = num(r[1])
	}
	return counts, nil
}

// Resolve marks events set aside as resolved.
func (w *Writer) Resolve(ctx context.Context, ids []int64) error {
	return w.amend(ctx, "resolve events that were set aside", func(s *session) error {
		list := textArray(len(ids), func(i int) string { return strconv.FormatInt(ids[i], 10) })
		if _, err := s.query(ctx, keepResolvedSQL+ofIDs, w.cfg.Pipeline, string(list)); err != nil {
			return err
		}
		_, err := s.query(ctx, resolveSQL, w.cfg.Pipeline, string(list))
		return err
	})
}

// StartOver implements sink.Memory.
func (w *Writer) StartOver(ctx context.Context) error {
	return w.amend(ctx, "forget the files taken and the quarantine", func(s *session) error {
		for _, sql := range []string{fmt.Sprintf(keepTakenSQL, ""), forgetFilesSQL, forgetAsideSQL, forgetViolationsSQL} {
			if _, err := s.query(ctx, sql, w.cfg.Pipeline); err != nil {
				return err
			}
		}
		return nil
	})
}

// Violations implements sink.Memory.
func (w *Writer) Violations(ctx context.Context) ([]sink.Violation, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, violationsSQL, w.cfg.Pipeline)
	if missingBook(err) {
		return nil, nil
	}
	if err != nil {
		return nil, w.explain(ctx, err, "read what violated expectations", nil)
	}
	list := make([]sink.Violation, len(rows))
	for i, r := range rows {
		list[i] = sink.Violation{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Flow: str(r[2]), Expectation: str(r[3]), Met: str(r[4]), Events: num(r[5])}
	}
	return list, nil
}

// SetAside implements sink.Memory.
func (w *Writer) SetAside(ctx context.Context, events []sink.Aside, met []sink.Violation) error {
	return w.amend(ctx, "set events aside", func(s *session) error { return w.setAside(ctx, s, events, met) })
}

func (w *Writer) setAside(ctx context.Context, s *session, events []sink.Aside, met []sink.Violation) error {
	run := func(sql string, params [][]byte) error {
		limited, done := s.limited(ctx)
		defer done()
		return s.conn.ExecParams(limited, sql, params, nil, nil, nil).Read().Err
	}
	for len(events) > 0 {
		n, params := w.asideParams(events)
		if err := run(saveAsideSQL, params); err != nil {
			return err
		}
		events = events[n:]
	}
	for i := range met {
		if err := run(saveViolationSQL, w.violationParams(&met[i])); err != nil {
			return err
		}
	}
	return nil
}

// Afresh implements sink.Memory.
func (w *Writer) Afresh(ctx context.Context, target change.Name, flow string) error {
	return w.amend(ctx, "begin a flow's quarantine afresh", func(s *session) error { return w.afresh(ctx, s, target, flow) })
}

func (w *Writer) afresh(ctx context.Context, s *session, target change.Name, flow string) error {
	for _, sql := range []string{keepResolvedSQL + ofFlow, resolveFlowSQL, forgetFlowsSQL} {
		if _, err := s.query(ctx, sql, w.cfg.Pipeline, target.Schema, target.Table, flow); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements sink.Memory.
func (w *Writer) Forget(ctx context.Context, relations []change.Name) error {
	return w.amend(ctx, "forget the files of relations", func(s *session) error {
		for _, r := range relations {
			for _, sql := range []string{fmt.Sprintf(keepTakenSQL, " AND f.relation_schema = $2 AND f.relation_table = $3"), forgetFilesSQL + " AND relation_schema = $2 AND relation_table = $3"} {
				if _, err := s.query(ctx, sql, w.cfg.Pipeline, r.Schema, r.Table); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// amend changes bookkeeping in a fenced, durable transaction beside the batches.
func (w *Writer) amend(ctx context.Context, what string, change func(*session) error) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	s.patience = amendPatience
	defer func() { s.patience = sidePatience }()
	amend := func() error {
		if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
			return err
		}
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := change(s); err != nil {
			return err
		}
		return s.exec(ctx, "COMMIT")
	}
	if err := amend(); err != nil {
		if !s.conn.IsClosed() {
			s.exec(ctx, "ROLLBACK")
		}
		return w.explain(ctx, err, what, nil)
	}
	return nil
}
