//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var (
	_ sink.Resyncs = (*Writer)(nil)
	_ sink.Views   = (*Writer)(nil)
)

// stageFor names the stage of a target's resync. Names are found without regard to case.
func (w *Writer) stageFor(s *shape) string {
	return sink.StageOf(w.cfg.Pipeline, change.Name{Schema: fold(s.schema), Table: fold(s.table)})
}

// Stage implements sink.Resyncs.
func (w *Writer) Stage(ctx context.Context, t *scd.Target, in sink.Copy) (rows int64, err error) {
	c, s, err := w.resyncing(ctx, t)
	if err != nil {
		return 0, err
	}
	defer c.close()
	err = inTransaction(ctx, c, func() error {
		if err := w.makeStage(ctx, c, s); err != nil {
			return err
		}
		rows, err = w.copyRows(ctx, c, w.stageOf(s), in)
		return err
	})
	return rows, w.explain("copy into the stage of "+t.Name.String(), err)
}

// makeStage makes an empty stage for a target, fenced.
func (w *Writer) makeStage(ctx context.Context, c *conn, s *shape) error {
	if err := w.stillOurs(ctx, c); err != nil {
		return err
	}
	_, err := c.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TABLE %s AS SELECT %s FROM %s LIMIT 0", w.bookTable(w.stageFor(s)),
		s.each(func(i int) string { return quote(s.cols[i].name) + " AS " + staged("", i) }), s.name))
	return err
}

func (w *Writer) resyncing(ctx context.Context, t *scd.Target) (*conn, *shape, error) {
	if err := w.mustOwn(); err != nil {
		return nil, nil, err
	}
	s, err := w.shape(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	c, err := w.reader(ctx)
	return c, s, err
}

// Replace implements sink.Resyncs.
func (w *Writer) Replace(ctx context.Context, t *scd.Target, r sink.Replacement) (done sink.Replaced, err error) {
	c, s, err := w.resyncing(ctx, t)
	if err != nil {
		return done, err
	}
	defer c.close()
	h := history{shape: s, nulls: true}
	stage := w.bookTable(w.stageFor(s))
	err = w.anew(ctx, c, t.Name, "it was made equal to a new copy", func() error {
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		var err error
		if r.Part != nil {
			err = s.stageGone(ctx, c, r.Part.Gone)
		}
		if err == nil {
			err = w.fedBy(ctx, c, s, r.Done.Since, func() (err error) {
				if t.Kind == scd.Type2 {
					done, err = h.replaceVersions(ctx, c, stage, r.At.UnixMicro(), r.Part != nil)
				} else {
					done, err = s.replaceRows(ctx, c, stage, r.Part != nil)
				}
				return err
			})
		}
		if err != nil {
			return err
		}
		if err := w.saveTable(ctx, c, r.Done); err != nil {
			return err
		}
		if g := r.Gap; r.Records(done) {
			if _, err := c.run(ctx, "INSERT INTO "+w.bookTable("gaps")+" VALUES ($1, $2, $3, $4, $5, $6, now())",
				w.cfg.Pipeline, g.Target.Schema, g.Target.Table, g.From.String(), g.To.String(), g.Reason); err != nil {
				return err
			}
		}
		if j := r.Judged; j != nil {
			if err := w.afresh(ctx, c, t.Name, j.Flow); err != nil {
				return err
			}
			if err := w.setAside(ctx, c, j.Aside, j.Met); err != nil {
				return err
			}
		}
		if _, err := c.exec(ctx, "DROP TABLE "+stage); err != nil {
			return err
		}
		fault.KillPoint("target replaced")
		return nil
	})
	if err != nil {
		return sink.Replaced{}, w.explain("replace the rows of "+t.Name.String(), err)
	}
	w.touched(t.Name)
	return done, nil
}

// staged is column i of a stage, with a prefix ("s.").
func staged(prefix string, i int) string { return c(prefix, i) }

// sameRow is the condition that row t of the target equals row s of the stage in its
// stored bytes, in all columns.
func (s *shape) sameRow() string {
	parts := make([]string, len(s.cols))
	for i := range s.cols {
		parts[i] = s.sameAs(i, "t."+quote(s.cols[i].name), staged("s.", i))
	}
	return strings.Join(parts, " AND ")
}

// stageGone fills the table gone with the keys that go where the stage holds a part of
// the table.
func (s *shape) stageGone(ctx context.Context, c *conn, gone []change.Row) error {
	if len(s.keys) == 0 {
		return fault.Corrupted("target %s has no key by which a part of it could be replaced", s.target.Name)
	}
	all, cols := s.stageColumns(), []column(nil)
	for _, k := range s.keys {
		cols = append(cols, all[k])
	}
	ap, err := c.newTemp(ctx, "gone", cols...)
	if err != nil {
		return err
	}
	defer ap.discard()
	ap.what = s.target.Name.String()
	st := &stage{appender: ap, shape: s}
	for _, key := range gone {
		if err := st.keyInto(key, func(n int) int { return n }); err != nil {
			return err
		}
		if err := ap.end(); err != nil {
			return err
		}
	}
	_, err = ap.finish(ctx)
	return err
}

// isGone is the condition that row t of the target has the key of row s of the table
// gone, in its stored bytes.
func (s *shape) isGone() string {
	return s.keyList(" AND ", func(i int) string { return s.sameAs(i, "t."+quote(s.cols[i].name), staged("s.", i)) })
}

// scope makes the table scope, the row ids of the rows that a part may touch: those
// with a staged key, and those that go.
func (s *shape) scope(ctx context.Context, c *conn, stage string) error {
	_, err := c.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE scope AS SELECT t.rowid AS rid FROM %s AS t JOIN %s AS s ON %s UNION SELECT t.rowid FROM %[1]s AS t JOIN %[4]s AS s ON %[5]s",
		s.name, stage, s.targetKey(true, "s."), stageName("gone"), s.isGone()))
	return err
}

// replaceRows makes a type 1 target equal to the stage. One row of each key that equals
// a staged one is kept; everything else goes (of a part: everything in its scope), and
// what is missing then comes.
func (s *shape) replaceRows(ctx context.Context, c *conn, stage string, part bool) (done sink.Replaced, err error) {
	insert := fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s AS s", s.name, s.names(), s.each(func(i int) string { return staged("s.", i) }), stage)
	if len(s.keys) == 0 {
		if done.Removed, err = c.exec(ctx, "DELETE FROM "+s.name); err == nil {
			done.Written, err = c.exec(ctx, insert)
		}
		return done, err
	}
	within := ""
	if part {
		if err = s.scope(ctx, c, stage); err != nil {
			return done, err
		}
		within = "rowid IN (SELECT rid FROM " + stageName("scope") + ") AND "
	}
	if _, err = c.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE kept AS SELECT s.rowid AS sid, min(t.rowid) AS tid FROM (SELECT *, rowid FROM %s WHERE %strue) AS t JOIN %s AS s ON %s GROUP BY s.rowid", s.name, within, stage, s.sameRow())); err != nil {
		return done, err
	}
	fresh := fmt.Sprintf("s.rowid NOT IN (SELECT sid FROM %s)", stageName("kept"))
	replaced, err := c.number(ctx, fmt.Sprintf("SELECT count(*) FROM %s AS s WHERE %s AND EXISTS (SELECT 1 FROM %s AS t WHERE %s)", stage, fresh, s.name, s.targetKey(true, "s.")))
	if err != nil {
		return done, err
	}
	gone, err := c.exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE %srowid NOT IN (SELECT tid FROM %s)", s.name, within, stageName("kept")))
	if err != nil {
		return done, err
	}
	if done.Written, err = c.exec(ctx, insert+" WHERE "+fresh); err != nil {
		return done, err
	}
	done.Removed = gone - replaced
	_, err = c.exec(ctx, "DROP TABLE "+stageName("kept"))
	return done, err
}

// replaceVersions makes the open versions equal to the stage in one step at an instant
// (µs since the Unix epoch); of a part, those with a staged key or one that goes.
func (h history) replaceVersions(ctx context.Context, c *conn, stage string, at int64, part bool) (done sink.Replaced, err error) {
	open := fmt.Sprintf("%s AS t WHERE t.%s IS NULL", h.name, endColumn)
	ends := fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s AS s WHERE %s)", stage, h.targetKey(true, "s."))
	if part {
		ends = fmt.Sprintf("EXISTS (SELECT 1 FROM %s AS s WHERE %s)", stageName("gone"), h.isGone())
	}
	steps := fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE steps AS
SELECT *, row_number() OVER () AS i, 1::BIGINT AS n, %d::BIGINT AS lo, %[1]d::BIGINT AS lov FROM (
SELECT s.*, false AS closes FROM %[2]s AS s WHERE NOT EXISTS (SELECT 1 FROM %[3]s AND %[4]s)
UNION ALL SELECT %[5]s, true FROM %[3]s AND %[6]s)`,
		at, stage, open, h.sameRow(),
		h.each(func(i int) string {
			if h.target.Columns[i].Key {
				return "t." + quote(h.cols[i].name)
			}
			return "NULL"
		}), ends)
	for _, sql := range []string{steps, h.found(), h.newest(), h.verdict(), h.timeline(), h.closing()} {
		if _, err = c.exec(ctx, sql); err != nil {
			return done, err
		}
	}
	if done.Removed, err = c.number(ctx, fmt.Sprintf("SELECT count(*) FROM %s WHERE x IS NOT NULL", stageName("closing"))); err != nil {
		return done, err
	}
	for _, sql := range []string{h.deleteClosing(), h.insertClosing()} {
		if _, err = c.exec(ctx, sql); err != nil {
			return done, err
		}
	}
	done.Written, err = c.exec(ctx, h.insertVersions())
	return done, err
}

// Unstage implements sink.Resyncs.
func (w *Writer) Unstage(ctx context.Context) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.explain("drop stages that were left behind", w.unstage(ctx, w.book))
}

func (w *Writer) unstage(ctx context.Context, c *conn) error {
	var names []string
	err := c.each(ctx, func(cells []*string) error {
		names = append(names, *cells[0])
		return nil
	}, "SELECT table_name FROM duckdb_tables() WHERE database_name = $1 AND schema_name = $2 AND starts_with(table_name, $3)", w.catalog, bookSchema, sink.StagesOf(w.cfg.Pipeline))
	for _, name := range names {
		if err == nil {
			_, err = c.exec(ctx, "DROP TABLE IF EXISTS "+w.bookTable(name))
		}
	}
	return err
}

// Gaps implements sink.Resyncs.
func (w *Writer) Gaps(ctx context.Context) (gaps []sink.Gap, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	exists, err := w.readyLocked(ctx)
	if err == nil && exists {
		exists, err = w.hasBookTable(ctx, w.book, "gaps")
	}
	if err != nil || !exists {
		return nil, w.explain("read the gaps of histories", err)
	}
	err = w.book.each(ctx, func(cells []*string) error {
		g := sink.Gap{Target: change.Name{Schema: *cells[0], Table: *cells[1]}, Reason: *cells[4]}
		us, err := strconv.ParseInt(*cells[5], 10, 64)
		if err != nil {
			return fault.Corrupted("the gaps of %s: the time: %v", g.Target, err)
		}
		g.At = time.UnixMicro(us).UTC()
		if g.From, err = parsePosition(*cells[2]); err == nil {
			g.To, err = parsePosition(*cells[3])
		}
		gaps = append(gaps, g)
		return err
	}, "SELECT target_schema, target_table, from_position, to_position, reason, epoch_us(recorded) FROM "+w.bookTable("gaps")+" WHERE pipeline = $1 ORDER BY 1, 2, recorded", w.cfg.Pipeline)
	return gaps, w.explain("read the gaps of histories", err)
}
