//go:build !noduckdb

package duckdb

import (
	"context"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// files notes files that were taken, each in place of what was noted of it.
func (a *applier) files(ctx context.Context, list []change.File) error {
	if len(list) == 0 {
		return nil
	}
	st, err := a.conn.newTemp(ctx, "taken", own("relation_schema", asVarchar), own("relation_table", asVarchar), own("path", asVarchar),
		own("size", asBigint), own("modified", asTimestampTZ), own("checksum", asVarchar), own("events", asBigint))
	if err != nil {
		return err
	}
	defer st.discard()
	for i := range list {
		f := &list[i]
		if err := st.texts(0, f.Relation.Schema, f.Relation.Table, f.Path); err != nil {
			return err
		}
		put(st, 3, f.Size)
		st.instant(4, f.Modified)
		if err := st.texts(5, f.Checksum); err != nil {
			return err
		}
		put(st, 6, f.Rows)
		if err := st.end(); err != nil {
			return err
		}
	}
	if _, err := st.finish(ctx); err != nil {
		return err
	}
	table, taken := a.w.bookTable("files"), stageName("taken")
	if err := a.w.keepTaken(ctx, a.conn, taken); err != nil {
		return err
	}
	if _, err := a.conn.run(ctx, "DELETE FROM "+table+" AS t USING "+taken+" AS q WHERE t.pipeline = $1 AND t.relation_schema = q.relation_schema AND t.relation_table = q.relation_table AND t.path = q.path", a.w.cfg.Pipeline); err != nil {
		return err
	}
	_, err = a.conn.run(ctx, "INSERT INTO "+table+" SELECT $1, * FROM "+taken, a.w.cfg.Pipeline)
	return err
}

// Files reads the set of files that were taken.
func (w *Writer) Files(ctx context.Context) ([]change.File, error) {
	return w.filesOf(ctx, "files", "", w.cfg.Pipeline)
}

// TakenSince implements sink.Rewinds.
func (w *Writer) TakenSince(ctx context.Context, to int64) ([]change.File, error) {
	return w.filesOf(ctx, "undo_files", " AND EXISTS (SELECT 1 FROM "+w.bookTable("undo_files")+` AS u WHERE u.pipeline = f.pipeline AND u.number >= $2
		AND u.relation_schema = f.relation_schema AND u.relation_table = f.relation_table AND u.path = f.path)`, w.cfg.Pipeline, to)
}

// filesOf reads the files of a further condition; there are none where a table is missing.
func (w *Writer) filesOf(ctx context.Context, table, more string, args ...any) (list []change.File, err error) {
	err = w.readBook(ctx, table, func(c *conn) error {
		r, err := c.query(ctx, "SELECT relation_schema, relation_table, path, size, epoch_us(modified), checksum, events FROM "+w.bookTable("files")+" AS f WHERE pipeline = $1"+more, args...)
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				text := func(i int) string { return string(r.cols[i].bytes(row)) }
				list = append(list, change.File{Relation: change.Name{Schema: text(0), Table: text(1)}, Path: text(2),
					Size: r.cols[3].int64(row), Modified: r.cols[4].micros(row), Checksum: text(5), Rows: r.cols[6].int64(row)})
			}
		}
		return r.err
	})
	return list, w.explain("read the files that were taken", err)
}

// setAside stores events that a rule set aside, numbered in their order, and adds what
// expectations met.
func (w *Writer) setAside(ctx context.Context, c *conn, list []sink.Aside, met []sink.Violation) error {
	if err := w.addViolations(ctx, c, met); err != nil || len(list) == 0 {
		return err
	}
	last, err := w.lastAside(ctx, c)
	if err != nil {
		return err
	}
	before := last
	cols := []column{own("pipeline", asVarchar), own("id", asBigint), own("flow", asVarchar), own("target_schema", asVarchar), own("target_table", asVarchar),
		own("reason", asVarchar), own("source_position", asVarchar), own("place", asBlob), own("event_time", asTimestampTZ), own("event", asJSON), own("resolved", asTimestampTZ)}
	ap, err := c.newAppender(w.catalog, bookSchema, "quarantine", cols, true)
	if err != nil {
		return err
	}
	defer ap.discard()
	for i := range list {
		e := &list[i]
		last++
		put(ap, 1, last)
		if err := ap.texts(0, w.cfg.Pipeline); err != nil {
			return err
		}
		if err := ap.texts(2, e.Flow, e.Target.Schema, e.Target.Table, e.Reason, e.Position); err != nil {
			return err
		}
		ap.blob(7, e.At)
		ap.instant(8, e.Time)
		if len(e.Event) == 0 { // which is no JSON
			ap.null(9)
		} else if err := ap.texts(9, string(e.Event)); err != nil {
			return err
		}
		ap.null(10)
		if err := ap.end(); err != nil {
			return err
		}
	}
	if _, err = ap.finish(ctx); err != nil {
		return err
	}
	return w.keepAside(ctx, c, before)
}

// Quarantine reads the events that were set aside and are not resolved.
func (w *Writer) Quarantine(ctx context.Context, flow string, fn func(sink.Aside) error) error {
	err := w.readBook(ctx, "quarantine", func(c *conn) error {
		r, err := c.query(ctx, "SELECT id, flow, target_schema, target_table, reason, source_position, place, epoch_us(event_time), event FROM "+
			w.bookTable("quarantine")+" WHERE pipeline = $1 AND resolved IS NULL AND ($2 = '' OR flow = $2) ORDER BY id", w.cfg.Pipeline, flow)
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				text := func(i int) string { return string(r.cols[i].bytes(row)) }
				e := sink.Aside{ID: r.cols[0].int64(row), Flow: text(1), Target: change.Name{Schema: text(2), Table: text(3)}, Reason: text(4), Position: text(5),
					At: r.cols[6].blob(row), Time: r.cols[7].micros(row), Event: r.cols[8].blob(row)}
				if err := fn(e); err != nil {
					return err
				}
			}
		}
		return r.err
	})
	return w.explain("read the quarantine", err)
}

// Resolve marks events set aside as resolved.
func (w *Writer) Resolve(ctx context.Context, ids []int64) error {
	return w.amend(ctx, "resolve events in quarantine", func(c *conn) error {
		if len(ids) == 0 {
			return nil
		}
		_, err := w.resolve(ctx, c, ids)
		return err
	})
}

// StartOver implements sink.Memory.
func (w *Writer) StartOver(ctx context.Context) error {
	return w.amend(ctx, "forget the files taken and the quarantine", func(c *conn) error {
		for _, table := range []string{"files", "quarantine", "violations"} {
			if err := w.forget(ctx, c, table, "true"); err != nil {
				return err
			}
		}
		return nil
	})
}

// Forget implements sink.Memory.
func (w *Writer) Forget(ctx context.Context, relations []change.Name) error {
	return w.amend(ctx, "forget the files of relations", func(c *conn) error {
		for _, r := range relations {
			if err := w.forget(ctx, c, "files", "relation_schema = $2 AND relation_table = $3", r.Schema, r.Table); err != nil {
				return err
			}
		}
		return nil
	})
}

// forget deletes rows of a table of the bookkeeping, where a condition with arguments from
// $2 on holds.
func (w *Writer) forget(ctx context.Context, c *conn, table, condition string, args ...any) error {
	if err := w.keepBook(ctx, c, table, condition, args...); err != nil {
		return err
	}
	_, err := c.run(ctx, "DELETE FROM "+w.bookTable(table)+" WHERE pipeline = $1 AND "+condition, append([]any{w.cfg.Pipeline}, args...)...)
	return err
}

// amend changes bookkeeping in a fenced transaction beside the batches.
func (w *Writer) amend(ctx context.Context, what string, change func(*conn) error) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	w.pointing.RLock()
	defer w.pointing.RUnlock()
	return w.explain(what, inTransaction(ctx, c, func() error {
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		return change(c)
	}))
}

// resolve marks those of ids as resolved that are not yet, and counts them.
func (w *Writer) resolve(ctx context.Context, c *conn, ids []int64) (int64, error) {
	if err := stageNumbers(ctx, c, "resolving", "id", len(ids), func(i int) (int64, int64) { return int64(i), ids[i] }); err != nil {
		return 0, err
	}
	return w.resolveWhere(ctx, c, "id IN (SELECT id FROM "+stageName("resolving")+")")
}

// resolveWhere writes the rows anew: an update, with a reader open, would keep the
// engine from its checkpoints.
func (w *Writer) resolveWhere(ctx context.Context, c *conn, condition string, args ...any) (int64, error) {
	if err := w.keepBook(ctx, c, "quarantine", "resolved IS NULL AND "+condition, args...); err != nil {
		return 0, err
	}
	table := w.bookTable("quarantine")
	open := " FROM " + table + " WHERE pipeline = $1 AND resolved IS NULL AND " + condition
	args = append([]any{w.cfg.Pipeline}, args...)
	if _, err := c.run(ctx, "INSERT INTO "+table+" SELECT * REPLACE (now() AS resolved)"+open, args...); err != nil {
		return 0, err
	}
	return c.run(ctx, "DELETE"+open, args...)
}

// resolveAll marks ids as resolved, none of which may be resolved already.
func (w *Writer) resolveAll(ctx context.Context, c *conn, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	n, err := w.resolve(ctx, c, ids)
	if err == nil && n != int64(len(ids)) {
		err = fault.Corrupted("%d events were to be in quarantine, %d are", len(ids), n)
	}
	return err
}

// Unresolved counts the events that were set aside and are not resolved.
func (w *Writer) Unresolved(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	err := w.readBook(ctx, "quarantine", func(c *conn) error {
		r, err := c.query(ctx, "SELECT flow, count(*) FROM "+w.bookTable("quarantine")+" WHERE pipeline = $1 AND resolved IS NULL GROUP BY flow", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		defer r.close()
		for r.next() {
			for row := range r.size {
				counts[string(r.cols[0].bytes(row))] = r.cols[1].int64(row)
			}
		}
		return r.err
	})
	return counts, w.explain("count the quarantine", err)
}

// texts writes texts of ours into columns from first on.
func (a *appender) texts(first int, list ...string) error {
	for i, text := range list {
		if err := a.value(first+i, change.Value{State: change.AsText, Data: []byte(text)}); err != nil {
			return err
		}
	}
	return nil
}

// instant writes a time; the zero time is NULL.
func (a *appender) instant(col int, t time.Time) {
	if t.IsZero() {
		a.null(col)
		return
	}
	put(a, col, t.UnixMicro())
}

// micros reads µs since the Unix epoch as a time; NULL is the zero time.
func (c *cells) micros(row int) time.Time {
	if c.null(row) {
		return time.Time{}
	}
	return time.UnixMicro(c.int64(row)).UTC()
}
