package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// A stage of a resync is a table of the bookkeeping's database. Its columns are the
// target's, with its own types, so that a value stands there as it will stand in the
// target, and it has the target's key.

func (w *Writer) resyncStage(t *scd.Target) string {
	return "_tailrace." + quote(sink.StageOf(w.cfg.Pipeline, w.qualified(t.Name)))
}

func (w *Writer) resyncNotes(t *scd.Target) string {
	return "_tailrace." + quote(sink.NotesOf(w.cfg.Pipeline, w.qualified(t.Name)))
}

func (sh *shape) createStageSQL(stage, collation string) string {
	var lines []string
	for i := range sh.columns {
		c := &sh.columns[i]
		line := c.name + " " + c.definition()
		if c.key {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	if len(sh.keys) > 0 {
		lines = append(lines, "PRIMARY KEY ("+sh.list(isKey, named)+")")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n  %s\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE %s", stage, strings.Join(lines, ",\n  "), collation)
}

// Stage implements sink.Resyncs. It may run beside batches, which a fence that is held
// would keep from their mark: so it is held while the stage is made, and asked again
// before its rows are committed.
func (w *Writer) Stage(ctx context.Context, t *scd.Target, in sink.Copy) (int64, error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return 0, err
	}
	stage := w.resyncStage(t)
	err = w.heldFence(ctx, epoch, func() error {
		for _, sql := range []string{"DROP TABLE IF EXISTS " + stage, sh.createStageSQL(stage, s.server.collation)} {
			if _, err := s.exec(ctx, sql); err != nil {
				return &jobError{"make a stage for", sh, err}
			}
		}
		return nil
	})
	var rows int64
	if err == nil {
		err = within(ctx, s, func() (err error) {
			if rows, err = copyIn(ctx, s, sh, "copy into the stage of", stage, sh.list(func(*column) bool { return true }, named), in, false); err != nil {
				return err
			}
			return w.fence(ctx, s, epoch)
		})
	}
	return rows, w.present(err, "copy into the stage of", sh)
}

// replaceStep is a statement that makes a target equal to a stage.
type replaceStep struct {
	sql    string
	counts countedAs
}

type countedAs uint8

const (
	notCounted countedAs = iota
	countRemoved
	countWritten
)

// differs is the condition that rows t and s differ in a column that want wants, in what
// is stored: texts as their bytes, and zeros with their sign.
func (sh *shape) differs(want func(*column) bool) string {
	var parts []string
	for i := range sh.columns {
		c := &sh.columns[i]
		if c.generated || !want(c) {
			continue
		}
		parts = append(parts, c.differs("t."+c.name, "s."+c.name))
	}
	if len(parts) == 0 {
		return "FALSE"
	}
	return "(" + strings.Join(parts, " OR ") + ")"
}

// differs is the condition that two values of the column differ in what is stored.
func (c *column) differs(a, b string) string {
	switch c.typ.store {
	case asChars:
		return fmt.Sprintf("NOT CAST(%s AS BINARY) <=> CAST(%s AS BINARY)", a, b)
	case asFloat, asDouble:
		return fmt.Sprintf("NOT CAST(%s AS CHAR) <=> CAST(%s AS CHAR) OR NOT %[1]s <=> %[2]s", a, b)
	}
	return fmt.Sprintf("NOT %s <=> %s", a, b)
}

// targetRows and stageRows are the rows t of the target and s of the stage, with notes
// those at the keys that are noted.
func (sh *shape) targetRows(notes string) string { return sh.rowsAt(notes, "t", sh.name+" AS t") }

func (sh *shape) stageRows(stage, notes string) string {
	return sh.rowsAt(notes, "s", stage+" AS s")
}

func (sh *shape) rowsAt(notes, alias, table string) string {
	if notes == "" {
		return table
	}
	return fmt.Sprintf("(SELECT DISTINCT %s FROM %s) AS n STRAIGHT_JOIN %s ON %s", sh.list(isKey, named), notes, table, sh.sameKey(alias, "n"))
}

// sameKey is the condition that two aliases' rows have one key.
func (sh *shape) sameKey(a, b string) string {
	var parts []string
	for _, k := range sh.keys {
		parts = append(parts, fmt.Sprintf("%s.%s = %s.%[2]s", a, sh.columns[k].name, b))
	}
	return strings.Join(parts, " AND ")
}

// replaceSQL makes a type 1 target equal to the stage, with notes at the keys that are
// noted. What is equal is not touched: most of a table mostly is. With a second unique
// index the rows that differ are deleted first: they may exchange its values.
func (sh *shape) replaceSQL(stage, notes string) []replaceStep {
	insert := fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", sh.name, sh.list(all, named), sh.list(all, func(c *column) string { return "s." + c.name }), sh.stageRows(stage, notes))
	if len(sh.keys) == 0 {
		return []replaceStep{{"DELETE FROM " + sh.name, countRemoved}, {insert, countWritten}}
	}
	on, target := sh.sameKey("t", "s"), sh.targetRows(notes)
	key := sh.columns[sh.keys[0]].name
	steps := []replaceStep{{fmt.Sprintf("DELETE t FROM %s LEFT JOIN %s AS s ON %s WHERE s.%s IS NULL", target, stage, on, key), countRemoved}}
	set := sh.list(notKey, func(c *column) string { return fmt.Sprintf("t.%s = s.%[1]s", c.name) })
	switch {
	case len(sh.uniques) > 0:
		steps = append(steps, replaceStep{fmt.Sprintf("DELETE t FROM %s JOIN %s AS s ON %s WHERE %s", target, stage, on, sh.differs(notKey)), notCounted})
	case set != "":
		steps = append(steps, replaceStep{fmt.Sprintf("UPDATE %s JOIN %s AS s ON %s SET %s WHERE %s", target, stage, on, set, sh.differs(notKey)), countWritten})
	}
	return append(steps, replaceStep{fmt.Sprintf("%s LEFT JOIN %s AS t ON %s WHERE t.%s IS NULL", insert, sh.name, on, key), countWritten})
}

// Replace implements sink.Resyncs.
func (w *Writer) Replace(ctx context.Context, t *scd.Target, r sink.Replacement) (done sink.Replaced, err error) {
	epoch, err := w.owned()
	if err != nil {
		return done, err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return done, err
	}
	defer s.close()
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return done, err
	}
	if err := s.choose(ctx); err != nil {
		return done, w.explain(err, "replace the rows of", sh)
	}
	notes := ""
	if r.Noted {
		notes = w.resyncNotes(t)
	}
	err = within(ctx, s, func() (err error) {
		a := &applier{w: w, s: s}
		err = sh.fedBy(ctx, s, r.Done.Since, func() (err error) {
			if t.Kind == scd.Type2 {
				done, err = a.replaceVersions(ctx, sh, notes, r.At.UnixMicro(), r.Part)
			} else {
				done, err = a.replaceRows(ctx, sh, notes, r.Part)
			}
			return err
		})
		if err != nil {
			return err
		}
		// It locks the mark's row: at last, because batches may run beside this.
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := w.barrier(ctx, s, t.Name, filledAnew); err != nil || r.Ahead {
			return err
		}
		if err := saveTable(ctx, s, w.cfg.Pipeline, r.Done); err != nil {
			return err
		}
		if g := r.Gap; r.Records(done) {
			if _, err := s.exec(ctx, bind("INSERT INTO _tailrace.gaps VALUES (?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))", w.cfg.Pipeline, g.Target.Schema, g.Target.Table, g.From, g.To, g.Reason)); err != nil {
				return err
			}
		}
		if j := r.Judged; j != nil {
			if err := w.afresh(ctx, s, t.Name, j.Flow); err != nil {
				return err
			}
			if err := w.setAside(ctx, s, j.Aside, j.Met); err != nil {
				return err
			}
		}
		fault.KillPoint("target replaced")
		return nil
	})
	if err != nil {
		return sink.Replaced{}, w.present(err, "replace the rows of", sh)
	}
	if r.Ahead {
		return done, nil
	}
	// To drop the stage commits: it comes last. One that is left is dropped by Unstage.
	if _, err := s.exec(ctx, "DROP TABLE IF EXISTS "+w.resyncStage(t)+", "+w.resyncNotes(t)); err != nil {
		w.cfg.Logger.Debug("a stage stays behind until the next start", "target", t.Name.String(), "error", w.explain(err, "drop the stage of", sh))
	}
	return done, nil
}

// replaceRows makes a type 1 target equal to the stage; with part the keys that it names
// go, and no others.
func (a *applier) replaceRows(ctx context.Context, sh *shape, notes string, part *sink.Part) (done sink.Replaced, err error) {
	steps := sh.replaceSQL(a.w.resyncStage(sh.target), notes)
	if part != nil {
		if len(sh.keys) == 0 {
			return done, fault.Corrupted("%s has no key by which a part of it could be replaced", sh.label())
		}
		if done.Removed, err = a.delete(ctx, sh, part.Gone); err != nil {
			return done, err
		}
		steps = steps[1:] // all but that which deletes what is not staged
	}
	for _, step := range steps {
		n, err := a.on(ctx, sh, step.sql, "replace the rows of")
		if err != nil {
			return done, err
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

// replacedAtOnce steps are gathered before they are carried out, some MiB.
const replacedAtOnce = 5000

// replaceVersions makes the open versions equal to the stage in one step at an instant:
// it is an ordinary round of a step for each key that differs. What differs is read on a
// session of its own, which sees what was there before. With part the versions with the
// keys that it names end, and no others.
func (a *applier) replaceVersions(ctx context.Context, sh *shape, notes string, at int64, part *sink.Part) (done sink.Replaced, err error) {
	w := a.w
	reader, err := w.connect(ctx)
	if err != nil {
		return done, err
	}
	defer reader.close()
	stage := w.resyncStage(sh.target)
	target, staged := sh.targetRows(notes), sh.stageRows(stage, notes)
	onKey := sh.sameKey("t", "s")
	on := onKey + " AND t." + endColumn + " IS NULL"
	first := sh.columns[sh.keys[0]].name
	tracked := func(c *column) bool { return c.tracked }
	rows, err := reader.query(ctx, fmt.Sprintf(`SELECT (SELECT COUNT(*) FROM %[1]s JOIN %[2]s AS s ON %[3]s WHERE %[4]s),
  (SELECT COUNT(*) FROM %[1]s LEFT JOIN %[2]s AS s ON %[5]s WHERE t.%[6]s IS NULL AND s.%[7]s IS NULL),
  (SELECT COUNT(*) FROM %[8]s LEFT JOIN %[9]s AS t ON %[3]s WHERE t.%[7]s IS NULL)`,
		target, stage, on, sh.differs(tracked), onKey, endColumn, first, staged, sh.name))
	if err != nil {
		return done, &jobError{"compare the stage of", sh, err}
	}
	changed := num(rows[0][0])
	done.Removed, done.Written = changed+num(rows[0][1]), changed+num(rows[0][2])
	if part != nil {
		done.Removed = changed
	}

	columns := make([]*column, len(sh.columns))
	var list []string
	for i := range sh.columns {
		columns[i] = &sh.columns[i]
		list = append(list, columns[i].read("s."))
	}
	var steps []scd.Step
	flush := func() error {
		if len(steps) == 0 {
			return nil
		}
		err := a.round2(ctx, sh, &scd.Round{Steps: steps}, false)
		steps = nil
		return err
	}
	row := func(columns []*column, values []sqldriver.Value) change.Row {
		out := change.Row{}
		var buf []byte
		for i, v := range values {
			if v == nil {
				out = out.Append(change.Value{State: change.Null})
				continue
			}
			buf = columns[i].appendSource(buf[:0], v)
			out = out.Append(change.Value{State: change.AsText, Data: buf})
		}
		return out
	}
	var keys []*column
	var keyList []string
	for _, k := range sh.keys {
		keys = append(keys, columns[k])
		keyList = append(keyList, columns[k].read("t."))
	}
	step := func(s scd.Step) error {
		s.N, s.Lo = 1, at
		if steps = append(steps, s); len(steps) < replacedAtOnce {
			return nil
		}
		return flush()
	}
	begins := fmt.Sprintf("SELECT %s FROM %s LEFT JOIN %s AS t ON %s WHERE t.%s IS NULL OR %s", strings.Join(list, ", "), staged, sh.name, on, first, sh.differs(notKey))
	err = reader.stream(ctx, begins, true, nil, func(values []sqldriver.Value) error {
		r := row(columns, values)
		var key []sqldriver.Value
		for _, k := range sh.keys {
			key = append(key, values[k])
		}
		return step(scd.Step{Key: row(keys, key), Row: r})
	})
	if err == nil {
		err = flush()
	}
	if err == nil && part != nil {
		var gone []chain
		for _, key := range part.Gone {
			gone = append(gone, chain{{Key: key}})
		}
		stored, e := a.newest(ctx, sh, gone)
		if err = e; err == nil {
			for i, v := range stored {
				if v != nil && v.open {
					done.Removed++
					if err = step(scd.Step{Key: gone[i][0].Key}); err != nil {
						return done, err
					}
				}
			}
		}
	}
	if err == nil && part == nil {
		closes := fmt.Sprintf("SELECT %s FROM %s LEFT JOIN %s AS s ON %s WHERE t.%s IS NULL AND s.%s IS NULL", strings.Join(keyList, ", "), target, stage, onKey, endColumn, first)
		err = reader.stream(ctx, closes, true, nil, func(values []sqldriver.Value) error { return step(scd.Step{Key: row(keys, values)}) })
	}
	if err == nil {
		err = flush()
	}
	return done, err
}

// Unstage implements sink.Resyncs.
func (w *Writer) Unstage(ctx context.Context) error {
	return w.onSide(ctx, "drop stages that were left behind", func(s *session) error { return w.unstage(ctx, s) })
}

func (w *Writer) unstage(ctx context.Context, s *session) error {
	rows, err := s.query(ctx, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '_tailrace'")
	if err != nil {
		return err
	}
	for _, r := range rows {
		if strings.HasPrefix(str(r[0]), sink.StagesOf(w.cfg.Pipeline)) {
			if _, err := s.exec(ctx, "DROP TABLE IF EXISTS _tailrace."+quote(str(r[0]))); err != nil {
				return err
			}
		}
	}
	return nil
}

// Gaps implements sink.Resyncs.
func (w *Writer) Gaps(ctx context.Context) (gaps []sink.Gap, err error) {
	err = w.onSide(ctx, "read the gaps of histories", func(s *session) error {
		rows, err := s.query(ctx, bind("SELECT target_schema, target_table, from_position, to_position, reason, recorded FROM _tailrace.gaps WHERE pipeline = ? ORDER BY 1, 2, recorded", w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			g := sink.Gap{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Reason: str(r[4])}
			if g.From, err = change.ParsePosition(str(r[2])); err == nil {
				g.To, err = change.ParsePosition(str(r[3]))
			}
			if err == nil {
				g.At, err = instantOf(r[5])
			}
			if err != nil {
				return fault.Corrupted("the gaps of table %s: %v", g.Target, err)
			}
			gaps = append(gaps, g)
		}
		return err
	})
	return gaps, err
}
