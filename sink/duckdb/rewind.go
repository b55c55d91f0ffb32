//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// A target is restored from two tables: restoring, notes of what stood there, gathered
// from what is kept under the point's number and all behind it; and, of a target without
// a key, going, which of its rows go. Both are made of the target as it is today.

// pointOf finds the point of a pipeline that is to be restored.
func (w *Writer) pointOf(ctx context.Context, c *conn, pipeline string, number int64) error {
	list, err := w.readPoints(ctx, c, pipeline)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Number == number && !list[i].Gone {
			return nil
		}
	}
	return fault.Refuse("choose one of those that tailrace checkpoint list names", "pipeline %s has no rewind point %d, or has gone back behind it", pipeline, number)
}

// Undo implements sink.Rewinds.
func (w *Writer) Undo(ctx context.Context, to int64) (list []sink.Undo, err error) {
	err = w.readBook(ctx, "undo", func(c *conn) error {
		return inTransaction(ctx, c, func() error {
			tables, err := w.keptTables(ctx, c, w.cfg.Pipeline, fmt.Sprintf("number >= %d", to))
			if err != nil {
				return err
			}
			barriers, err := w.barriers(ctx, c, w.cfg.Pipeline, to)
			if err != nil {
				return err
			}
			for name, of := range tables {
				u := sink.Undo{Target: name, Barrier: barriers[name]}
				if u.Rows, err = w.keptRows(ctx, c, of); err != nil {
					return err
				}
				if u.Barrier == "" && !allAlike(of) {
					u.Barrier = anotherLayout
				}
				list = append(list, u)
			}
			for name, why := range barriers {
				if tables[name] == nil {
					list = append(list, sink.Undo{Target: name, Barrier: why})
				}
			}
			return nil
		})
	})
	slices.SortFunc(list, func(a, b sink.Undo) int {
		return strings.Compare(a.Target.Schema+"\x00"+a.Target.Table, b.Target.Schema+"\x00"+b.Target.Table)
	})
	return list, w.explain("read what is kept", err)
}

// anotherLayout is the barrier of a target whose rows are told apart otherwise since.
const anotherLayout = "its key or its kind was another"

func allAlike(tables []keptTable) bool {
	return !slices.ContainsFunc(tables, func(t keptTable) bool { return !t.layout.alike(&tables[0].layout) })
}

// keptRows counts the rows of a target of which something is kept.
func (w *Writer) keptRows(ctx context.Context, c *conn, tables []keptTable) (int64, error) {
	l := &tables[len(tables)-1].layout
	var of []string
	for i := range tables {
		of = append(of, "SELECT %s FROM "+w.bookTable(tables[i].rows))
	}
	switch {
	case len(l.Keys) == 0:
		var all []string
		for i := range tables {
			all = append(all, fmt.Sprintf(of[i], "kind, "+strings.Join(tables[i].layout.mapped(l.Columns, nil), ", ")))
		}
		return c.number(ctx, "SELECT coalesce(sum(abs(n)), 0)::BIGINT FROM ("+l.net("("+strings.Join(all, " UNION ALL ")+")")+")")
	case len(tables) == 1:
		return c.number(ctx, fmt.Sprintf(of[0], "count(*)"))
	}
	var keys []string
	for n := range l.Keys {
		keys = append(keys, noteKey(n))
	}
	if scd.Kind(l.Kind) == scd.Type2 && l.Sequenced {
		keys = append(keys, "ks")
	}
	return c.number(ctx, "SELECT count(*) FROM ("+strings.ReplaceAll(strings.Join(of, " UNION "), "%s", strings.Join(keys, ", "))+")")
}

// mapped are expressions for columns as c0, c1, ..., from a table of what is kept: a column
// that was not there has its default, or NULL.
func (l *layout) mapped(columns, defaults []string) []string {
	list := make([]string, len(columns))
	for i, name := range columns {
		at := slices.Index(l.Columns, name)
		switch {
		case at >= 0:
			list[i] = c("", at)
		case defaults != nil && defaults[i] != "":
			list[i] = "(" + defaults[i] + ")"
		default:
			list[i] = "NULL"
		}
		list[i] += " AS " + c("", i)
	}
	return list
}

// net selects, of notes of a target without a key, each row and how often more it came
// than it went, as n.
func (l *layout) net(from string) string {
	var rows, groups []string
	for i, typ := range l.Types {
		rows = append(rows, fmt.Sprintf("any_value(%s) AS %[1]s", c("", i)))
		groups = append(groups, distinguished(typ, c("", i)))
	}
	return fmt.Sprintf("SELECT %s, sum(CASE kind WHEN '%s' THEN 1 ELSE -1 END)::BIGINT AS n FROM %s GROUP BY %s HAVING n <> 0",
		strings.Join(rows, ", "), sink.FeedInsert, from, strings.Join(groups, ", "))
}

// distinguished is a value as what groups tell apart: its stored bytes.
func distinguished(typ, expr string) string {
	switch parseType(typ).store {
	case asInterval:
		return expr + "::VARCHAR"
	case asFloat, asDouble:
		return fmt.Sprintf("%s, signbit(%[1]s)", expr)
	}
	return expr
}

// gather makes the table restoring, and going.
func (w *Writer) gather(ctx context.Context, c *conn, s *shape, tables []keptTable) error {
	now := s.layout()
	n := newNotes(s, "restoring")
	n.nulls = true
	work := []string{n.create()}
	for i := range tables {
		l := &tables[i].layout
		cols := strings.Join(l.mapped(now.Columns, s.defaults), ", ")
		from := w.bookTable(tables[i].rows)
		if len(s.keys) == 0 {
			work = append(work, fmt.Sprintf("INSERT INTO %s SELECT kind, %s FROM %s", n.table, cols, from))
			continue
		}
		if s.target.Kind == scd.Type2 {
			cols += ", s, e"
		}
		where := ""
		if i > 0 {
			where = " WHERE " + n.unnoted("t.", n.noteKeys())
		}
		work = append(work, fmt.Sprintf("INSERT INTO %s SELECT %s, was, %s FROM %s AS t%s", n.table, listed("", n.noteKeys(), nil), cols, from, where))
	}
	if len(s.keys) == 0 {
		same, kept := make([]string, len(s.cols)), s.noteColumns()
		for i := range s.cols {
			same[i] = s.sameAs(i, "t."+quote(s.cols[i].name), "q."+kept[i])
		}
		work = append(work, "CREATE OR REPLACE TEMP TABLE net AS "+now.net(n.table),
			fmt.Sprintf("CREATE OR REPLACE TEMP TABLE going AS SELECT t.rowid AS rid, row_number() OVER (PARTITION BY q.rowid) AS i, q.n FROM %s AS t JOIN %s AS q ON %s WHERE q.n > 0", s.name, stageName("net"), strings.Join(same, " AND ")),
			"DELETE FROM "+stageName("going")+" WHERE i > n",
			"DROP TABLE "+n.table)
	}
	for _, sql := range work {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// coming selects, of a target without a key, the rows that come back.
func (s *shape) coming() string {
	return fmt.Sprintf("SELECT * EXCLUDE (n, i) FROM (SELECT *, unnest(range(-n)) AS i FROM %s WHERE n < 0)", stageName("net"))
}

// replacedBy is the condition that row t of the target gives way to row q of the table
// restoring.
func (s *shape) replacedBy(nulls bool) string {
	on := matched("t.", s.ownKeys(), "q.", s.noteKeys(), nulls)
	if s.newestOnly() {
		on += fmt.Sprintf(" AND (NOT q.was OR t.%s >= q.s)", startColumn)
	}
	return on
}

// restoreRows makes a target what it was.
func (w *Writer) restoreRows(ctx context.Context, c *conn, s *shape) error {
	into := fmt.Sprintf("INSERT INTO %s (%s) ", s.name, listed("", s.fedColumns(), nil))
	work := []string{
		fmt.Sprintf("DELETE FROM %s WHERE rowid IN (SELECT rid FROM %s)", s.name, stageName("going")),
		into + s.coming(),
		"DROP TABLE " + stageName("net"),
		"DROP TABLE " + stageName("going"),
	}
	if len(s.keys) > 0 {
		restoring := stageName("restoring")
		nulls, err := c.number(ctx, fmt.Sprintf("SELECT count(*) FROM %s WHERE %s IS NULL", restoring, strings.Join(s.noteKeys(), " IS NULL OR ")))
		if err != nil {
			return err
		}
		work = []string{
			fmt.Sprintf("DELETE FROM %s AS t USING %s AS q WHERE %s", s.name, restoring, s.replacedBy(nulls > 0)),
			fmt.Sprintf("%sSELECT %s FROM %s WHERE was", into, listed("", s.noteColumns(), nil), restoring),
			"DROP TABLE " + restoring,
		}
	}
	for _, sql := range work {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// restoreFed is restoreRows with the differences written into the target's feed.
func (w *Writer) restoreFed(ctx context.Context, c *conn, s *shape, at change.Position) error {
	n := newNotes(s, "notes")
	n.nulls = true
	work := []string{n.create()}
	if len(s.keys) == 0 {
		work = append(work, fmt.Sprintf("INSERT INTO %s SELECT '%s', %s FROM %s AS t JOIN %s AS q ON t.rowid = q.rid", n.table, sink.FeedDelete, listed("t.", s.fedColumns(), nil), s.name, stageName("going")),
			fmt.Sprintf("INSERT INTO %s SELECT '%s', * FROM (%s)", n.table, sink.FeedInsert, s.coming()))
	} else {
		touching := fmt.Sprintf("SELECT %s FROM %s", listed("", s.noteKeys(), nil), stageName("restoring"))
		if s.newestOnly() { // versions that began later go, so each is noted for itself
			versions, each := *s, *s.target
			each.Sequenced = true
			versions.target = &each
			n.shape = &versions
			work[0] = n.create()
			touching = fmt.Sprintf("SELECT %s, t.%s AS ks FROM %s AS t JOIN %s AS q ON %s UNION SELECT %s, s FROM %[4]s WHERE was",
				listed("q.", s.noteKeys(), nil), startColumn, s.name, stageName("restoring"), s.replacedBy(true), listed("", s.noteKeys(), nil))
		}
		found, missing := n.store()
		work = append(work, "CREATE OR REPLACE TEMP TABLE touching AS "+touching, n.find(), found, missing)
	}
	for _, sql := range work {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := w.restoreRows(ctx, c, s); err != nil {
		return err
	}
	return w.feedNoted(ctx, c, n, at, false)
}

// mayRestore refuses a target that cannot be restored.
func mayRestore(s *shape, to int64, tables []keptTable, barrier string) error {
	now := s.layout()
	for i := range tables {
		if barrier == "" && !tables[i].layout.alike(&now) {
			barrier = anotherLayout
		}
	}
	if barrier == "" {
		return nil
	}
	return fault.Refuse("choose a later point, or leave its flow out", "target %s cannot be restored to rewind point %d: since then %s", s.target.Name, to, barrier)
}

// Rewind implements sink.Rewinds.
func (w *Writer) Rewind(ctx context.Context, r sink.Rewind) error {
	shapes := make([]*shape, len(r.Targets))
	for i, t := range r.Targets {
		if err := w.mustOwn(); err != nil {
			return err
		}
		s, err := w.shape(ctx, t)
		if err != nil {
			return err
		}
		shapes[i] = s
	}
	marking := false
	defer func() {
		if marking {
			w.marking.Unlock()
		}
	}()
	err := w.quietly(ctx, fmt.Sprintf("go back to rewind point %d", r.To), func(c *conn) (newest int64, err error) {
		w.marking.Lock()
		marking = true
		if err := w.rewind(ctx, c, &r, shapes); err != nil {
			return 0, err
		}
		return c.number(ctx, "SELECT max(number) FROM "+w.bookTable("points")+" WHERE pipeline = $1", w.cfg.Pipeline)
	})
	if err != nil {
		return err
	}
	w.commitTime = r.Mark.CommitTime
	position := r.Mark.Position
	w.applied.Store(&position)
	for _, t := range r.Targets {
		w.touched(t.Name)
	}
	return nil
}

func (w *Writer) rewind(ctx context.Context, c *conn, r *sink.Rewind, shapes []*shape) error {
	if err := w.pointOf(ctx, c, w.cfg.Pipeline, r.To); err != nil {
		return err
	}
	tables, err := w.keptTables(ctx, c, w.cfg.Pipeline, fmt.Sprintf("number >= %d", r.To))
	if err != nil {
		return err
	}
	barriers, err := w.barriers(ctx, c, w.cfg.Pipeline, r.To)
	if err != nil {
		return err
	}
	var names []string // of targets, as the bookkeeping has them
	for _, s := range shapes {
		n := storedName(s.target.Name)
		if err := mayRestore(s, r.To, tables[n], barriers[n]); err != nil {
			return err
		}
		names = append(names, pair(s.target.Name), pair(n))
	}
	for _, s := range shapes {
		if err := w.restore(ctx, c, s, tables[storedName(s.target.Name)], r.Mark.Position); err != nil {
			return w.explain("restore "+s.target.Name.String(), err)
		}
	}
	if len(names) > 0 {
		ofTargets := "(target_schema, target_table) IN (" + strings.Join(names, ", ") + ")"
		if err := w.forgetKept(ctx, c, fmt.Sprintf("number >= %d AND %s", r.To, ofTargets)); err != nil {
			return err
		}
		for _, table := range []string{"quarantine", "violations"} {
			if err := w.restoreBook(ctx, c, table, ofTargets, r.To); err != nil {
				return err
			}
		}
	}
	if len(r.Relations) > 0 {
		var relations []string
		for _, n := range r.Relations {
			relations = append(relations, pair(n))
		}
		if err := w.restoreBook(ctx, c, "files", "(relation_schema, relation_table) IN ("+strings.Join(relations, ", ")+")", r.To); err != nil {
			return err
		}
	}
	behind := fmt.Sprintf(" FROM %s WHERE pipeline = $1 AND number > %d AND NOT gone", w.bookTable("points"), r.To)
	for _, sql := range []string{"INSERT INTO " + w.bookTable("points") + " SELECT * REPLACE (true AS gone)" + behind, "DELETE" + behind} {
		if _, err := c.run(ctx, sql, w.cfg.Pipeline); err != nil {
			return err
		}
	}
	if err := w.saveMark(ctx, c, r.Mark, true); err != nil {
		return err
	}
	fault.KillPoint("targets restored")
	return nil
}

// pair is a name as a pair of literals.
func pair(n change.Name) string { return "(" + literal(n.Schema) + ", " + literal(n.Table) + ")" }

// restore makes one target what it was, with what is remembered of it.
func (w *Writer) restore(ctx context.Context, c *conn, s *shape, tables []keptTable, at change.Position) error {
	if len(tables) == 0 {
		return nil
	}
	if err := w.gather(ctx, c, s, tables); err != nil {
		return err
	}
	var err error
	if s.target.ChangeFeed {
		err = w.restoreFed(ctx, c, s, at)
	} else {
		err = w.restoreRows(ctx, c, s)
	}
	if err != nil || !s.target.Sequenced {
		return err
	}
	return w.restoreRecords(ctx, c, s, tables)
}

// Recall implements sink.Rewinds.
func (w *Writer) Recall(ctx context.Context, t *scd.Target, of sink.Past, done checkpoint.Table) (rows int64, err error) {
	if err := w.mustOwn(); err != nil {
		return 0, err
	}
	into, err := w.shape(ctx, t)
	if err != nil {
		return 0, err
	}
	from, err := w.shape(ctx, of.Target)
	if err != nil {
		return 0, err
	}
	c, err := w.reader(ctx)
	if err != nil {
		return 0, err
	}
	defer c.close()
	err = w.anew(ctx, c, t.Name, "it was filled with what another target was", func() error {
		if err := w.stillOurs(ctx, c); err != nil {
			return err
		}
		if err := w.pointOf(ctx, c, of.Pipeline, of.Point); err != nil {
			return err
		}
		kept, err := w.keptTables(ctx, c, of.Pipeline, fmt.Sprintf("number >= %d", of.Point))
		if err != nil {
			return err
		}
		barriers, err := w.barriers(ctx, c, of.Pipeline, of.Point)
		if err != nil {
			return err
		}
		name := storedName(of.Target.Name)
		tables := kept[name]
		if err := mayRestore(from, of.Point, tables, barriers[name]); err != nil {
			return err
		}
		was, is := from.layout(), into.layout()
		if !was.alike(&is) {
			return fault.Refuse("give the flow the kind and the key that the other has", "target %s is of another kind than %s, or has another key", t.Name, of.Target.Name)
		}
		if err := w.gather(ctx, c, from, tables); err != nil {
			return err
		}
		err = w.fedBy(ctx, c, into, done.Since, func() error {
			rows, err = w.recallRows(ctx, c, into, from)
			return err
		})
		if err == nil && t.Sequenced {
			err = w.recallRecords(ctx, c, into, from, of.Pipeline, tables)
		}
		if err != nil {
			return err
		}
		return w.saveTable(ctx, c, done)
	})
	if err != nil {
		return 0, w.explain("fill "+t.Name.String()+" with what "+of.Target.Name.String()+" was", err)
	}
	w.touched(t.Name)
	return rows, nil
}

// recallRows fills a target with another's rows as the tables restoring and going say.
func (w *Writer) recallRows(ctx context.Context, c *conn, into, from *shape) (rows int64, err error) {
	var own, theirs, noted []string
	for i := range into.cols {
		at := slices.IndexFunc(from.cols, func(o column) bool { return o.name == into.cols[i].name })
		if at >= 0 {
			own, theirs, noted = append(own, quote(into.cols[i].name)), append(theirs, "t."+quote(from.cols[at].name)), append(noted, "c"+fmt.Sprint(at))
		}
	}
	if into.target.Kind == scd.Type2 {
		own, theirs, noted = append(own, startColumn, endColumn), append(theirs, "t."+startColumn, "t."+endColumn), append(noted, "s", "e")
	}
	insert := fmt.Sprintf("INSERT INTO %s (%s) SELECT ", into.name, strings.Join(own, ", "))
	stays := fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s AS q WHERE %s)", stageName("restoring"), from.replacedBy(true))
	back := stageName("restoring") + " WHERE was"
	if len(from.keys) == 0 {
		stays = fmt.Sprintf("t.rowid NOT IN (SELECT rid FROM %s)", stageName("going"))
		back = "(" + from.coming() + ")"
	}
	for _, sql := range []string{
		insert + strings.Join(theirs, ", ") + " FROM " + from.name + " AS t WHERE " + stays,
		insert + strings.Join(noted, ", ") + " FROM " + back,
	} {
		n, err := c.exec(ctx, sql)
		if err != nil {
			return 0, err
		}
		rows += n
	}
	return rows, nil
}

// recallRecords fills what is remembered of a target with what was remembered of another.
func (w *Writer) recallRecords(ctx context.Context, c *conn, into, from *shape, pipeline string, tables []keptTable) error {
	theirs := w.bookTable(memoryName(pipeline, from.target.Name))
	work := []string{fmt.Sprintf("INSERT INTO %s SELECT * FROM %s", into.memory, theirs)}
	if len(tables) > 0 {
		if err := w.gatherRecords(ctx, c, tables); err != nil {
			return err
		}
		records := stageName("records")
		work = []string{
			fmt.Sprintf("INSERT INTO %s SELECT * FROM %s AS t WHERE NOT EXISTS (SELECT 1 FROM %s AS q WHERE %s)", into.memory, theirs, records, sameRecord("t", "q")),
			fmt.Sprintf("INSERT INTO %s SELECT %s FROM %s WHERE was", into.memory, recordColumnList, records),
		}
	}
	for _, sql := range work {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	head, err := w.readHead(ctx, c, pipeline, from.target.Name)
	if err != nil {
		return err
	}
	counts, err := w.readCounts(ctx, c, pipeline, from.target.Name)
	if err != nil {
		return err
	}
	if len(tables) > 0 {
		head, counts = tables[0].head, tables[0].counts
	}
	if err := w.replaceHead(ctx, c, into.target.Name, head); err != nil {
		return err
	}
	return w.replaceCounts(ctx, c, into.target.Name, counts)
}
