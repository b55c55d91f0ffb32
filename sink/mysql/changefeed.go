package mysql

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// The notes of a target with a change feed are a temporary table with a row for each key
// (of a sequenced history for each version) that the open transaction may change, and what
// stood there before:
//
//	k0, ..  the key; ks the version's start (sequenced type 2)
//	was     there was such a row
//	c0, ..  the row; s, e its start and end (type 2, of an ordered one of the newest version)
//
// Of a target without a key they are what goes into the feed, in the order n: kind, c0...

// feed is a target's change feed, as its shape knows it.
type feed struct {
	table string // quoted
	notes string // quoted name of the notes; "" until they are made
	open  bool   // the open transaction has noted something
	keys  int64  // about how many rows
	trim  sink.FeedTrim
}

func (w *Writer) feedName(t *scd.Target) string { return sink.FeedName(w.qualified(t.Name), "") }

func feedTable(name string) string { return "_tailrace." + quote(name) }

const feedRowSQL = "INSERT INTO _tailrace.feeds (pipeline, target_schema, target_table, feed) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE pipeline = VALUES(pipeline)"

// fedColumns are the columns that a feed has from its target: all of them, those that the
// destination computes too, and of type 2 start and end.
func (sh *shape) fedColumns() []*column {
	var out []*column
	for i := range sh.columns {
		out = append(out, &sh.columns[i])
	}
	if sh.target.Kind == scd.Type2 {
		out = append(out, &sh.start, &sh.end)
	}
	return out
}

// noteColumn is the notes' name of number i of fedColumns.
func (sh *shape) noteColumn(i int) string {
	switch i - len(sh.columns) {
	case 0:
		return "s"
	case 1:
		return "e"
	}
	return "c" + strconv.Itoa(i)
}

// fed joins what f makes of fedColumns.
func (sh *shape) fed(f func(i int, c *column) string) string {
	var parts []string
	for i, c := range sh.fedColumns() {
		parts = append(parts, f(i, c))
	}
	return strings.Join(parts, ", ")
}

func (sh *shape) ownImage() string {
	return sh.fed(func(_ int, c *column) string { return "t." + c.name })
}
func (sh *shape) fedNames() string { return sh.fed(func(_ int, c *column) string { return c.name }) }
func (sh *shape) noteNames() string {
	return sh.fed(func(i int, _ *column) string { return sh.noteColumn(i) })
}

// byVersion reports whether the notes hold versions, each by its start.
func (sh *shape) byVersion() bool { return sh.target.Kind == scd.Type2 && sh.target.Sequenced }

// noteKeys are the columns that say which row it is, by the names that f gives the notes'
// and the target's.
func (sh *shape) noteKeys(sep string, f func(note, own string) string) string {
	var parts []string
	for n, k := range sh.keys {
		parts = append(parts, f("k"+strconv.Itoa(n), sh.columns[k].name))
	}
	if sh.byVersion() {
		parts = append(parts, f("ks", startColumn))
	}
	return strings.Join(parts, sep)
}

func (sh *shape) onNotes() string {
	return sh.noteKeys(" AND ", func(note, own string) string { return "t." + own + " = q." + note })
}

// planFeed finds the statements that make a target's feed fit its target, whose columns
// are defined as given, and what stands against it.
func (w *Writer) planFeed(ctx context.Context, s *session, p *planner, t *scd.Target, definitions map[string]string) ([]string, error) {
	name := w.feedName(t)
	p.problems = append(p.problems, sink.FeedFindings(t)...)
	others, err := s.query(ctx, bind("SELECT pipeline, target_schema, target_table FROM _tailrace.feeds WHERE feed = ? AND NOT (pipeline = ? AND target_schema = ? AND target_table = ?)", name, w.cfg.Pipeline, p.name.Schema, p.name.Table))
	if err != nil && !missingBook(err) {
		return nil, err
	}
	if err == nil && len(others) > 0 {
		p.block("give one of the flows another target, or take its change_feed away and drop that table", "table %s is the change feed of table %s.%s of pipeline %s", feedTable(name), str(others[0][1]), str(others[0][2]), str(others[0][0]))
		return nil, nil
	}
	r, err := w.readRelation(ctx, s, change.Name{Schema: "_tailrace", Table: name})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range t.Columns {
		names = append(names, t.Columns[i].Name)
	}
	if t.Kind == scd.Type2 {
		names = append(names, scd.StartColumn, scd.EndColumn)
	}
	var ddl []string
	if r == nil {
		lines := []string{quote(sink.FeedID) + " bigint NOT NULL AUTO_INCREMENT PRIMARY KEY", quote(sink.FeedType) + " varchar(16) NOT NULL", quote(sink.FeedMark) + " varchar(64) NOT NULL", quote(sink.FeedCommitTime) + " datetime(6) NOT NULL"}
		for _, c := range names {
			lines = append(lines, quote(c)+" "+definitions[c])
		}
		return append(ddl, fmt.Sprintf("CREATE TABLE %s (\n  %s\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE %s", feedTable(name), strings.Join(lines, ",\n  "), s.server.collation)), nil
	}
	for _, c := range names {
		switch a, ok := r.columns[strings.ToLower(c)]; {
		case !ok:
			ddl = append(ddl, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", feedTable(name), quote(c), definitions[c]))
		case definition(a.typ, a.collation) != definitions[c]:
			p.block(fmt.Sprintf("ALTER TABLE %s MODIFY %s %s; -- or DROP TABLE %[1]s; which lets the feed begin anew", feedTable(name), quote(c), definitions[c]),
				"column %s of table %s is %s, in the change feed it is %s", c, p.name, definitions[c], definition(a.typ, a.collation))
		}
	}
	return ddl, nil
}

// feedOf is planFeed for a target that may have none; r is nil where it is not there.
func (w *Writer) feedOf(ctx context.Context, s *session, p *planner, t *scd.Target, want layout, r *relation) ([]string, error) {
	if !t.ChangeFeed {
		return nil, nil
	}
	return w.planFeed(ctx, s, p, t, feedDefinitions(t, want, r, s.server.collation))
}

// feedDefinitions are the definitions of a target's columns as they are or, where there
// is none yet, as Create makes it.
func feedDefinitions(t *scd.Target, want layout, r *relation, collation string) map[string]string {
	out := map[string]string{}
	for i := range t.Columns {
		out[t.Columns[i].Name] = definition(want.columns[i], collation)
	}
	if t.Kind == scd.Type2 {
		out[scd.StartColumn], out[scd.EndColumn] = definition(want.start, collation), definition(want.start, collation)
	}
	if r != nil {
		for c := range out {
			if a, ok := r.columns[strings.ToLower(c)]; ok {
				out[c] = definition(a.typ, a.collation)
			}
		}
	}
	return out
}

func (sh *shape) createImagesSQL(notes string) string {
	lines := []string{"n bigint NOT NULL AUTO_INCREMENT PRIMARY KEY", "kind varchar(16) NOT NULL DEFAULT '" + sink.FeedInsert + "'"}
	if len(sh.keys) > 0 {
		lines = nil
		for n, k := range sh.keys {
			lines = append(lines, fmt.Sprintf("k%d %s NOT NULL", n, sh.columns[k].definition()))
		}
		if sh.byVersion() {
			lines = append(lines, "ks "+sh.start.definition()+" NOT NULL")
		}
		lines = append(lines, "was tinyint NOT NULL", "PRIMARY KEY ("+sh.noteKeys(", ", func(note, _ string) string { return note })+")")
	}
	for i, c := range sh.fedColumns() {
		lines = append(lines, sh.noteColumn(i)+" "+c.definition()+" NULL")
	}
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s (\n  %s\n) ENGINE = InnoDB", notes, strings.Join(lines, ",\n  "))
}

// noteSQL begins and ends a statement that notes the keys of q.
func (sh *shape) noteSQL(notes string) (head, tail string) {
	note := func(note, _ string) string { return note }
	on := sh.onNotes()
	if sh.target.Kind == scd.Type2 && !sh.byVersion() {
		on = sh.onNewest()
	}
	first := sh.columns[sh.keys[0]].name
	head = fmt.Sprintf("INSERT INTO %s (%s, was, %s) SELECT %s, t.%s IS NOT NULL, %s FROM (", notes, sh.noteKeys(", ", note), sh.noteNames(),
		sh.noteKeys(", ", func(note, _ string) string { return "q." + note }), first, sh.ownImage())
	return head, fmt.Sprintf(") AS q LEFT JOIN %s AS t FORCE INDEX (%s) ON %s ON DUPLICATE KEY UPDATE %s.was = %[4]s.was", sh.name, sh.index, on, notes)
}

// noteAllSQL notes every row that is not noted yet, of an ordered history the newest
// version of each key: older ones never change.
func (sh *shape) noteAllSQL(notes string) string {
	if len(sh.keys) == 0 {
		return fmt.Sprintf("INSERT INTO %s (kind, %s) SELECT '%s', %s FROM %s AS t", notes, sh.noteNames(), sink.FeedDelete, sh.ownImage(), sh.name)
	}
	where := ""
	if sh.target.Kind == scd.Type2 && !sh.byVersion() {
		where = fmt.Sprintf(" WHERE t.%s = (SELECT MAX(m.%[1]s) FROM %s AS m WHERE %s)", startColumn, sh.name,
			sh.noteKeys(" AND ", func(_, own string) string { return "m." + own + " = t." + own }))
	}
	return fmt.Sprintf("INSERT INTO %s (%s, was, %s) SELECT %s, 1, %s FROM %s AS t%s ON DUPLICATE KEY UPDATE %[1]s.was = %[1]s.was", notes,
		sh.noteKeys(", ", func(note, _ string) string { return note }), sh.noteNames(), sh.noteKeys(", ", func(_, own string) string { return "t." + own }), sh.ownImage(), sh.name, where)
}

// intoFeed begins a statement that writes the feed.
func (sh *shape) intoFeed(kind, image string, at change.Position, commit time.Time) string {
	when := "UTC_TIMESTAMP(6)"
	if !commit.IsZero() {
		when = constant(commit)
	}
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s, %s) SELECT %s, %s, %s, %s", sh.feed.table, quote(sink.FeedType), quote(sink.FeedMark), quote(sink.FeedCommitTime), sh.fedNames(),
		kind, constant(at.String()), when, image)
}

// compareSQL compares what is noted with what is there and writes the feed.
func (sh *shape) compareSQL(notes string, at change.Position, commit time.Time) string {
	if len(sh.keys) == 0 {
		return sh.intoFeed("q.kind", sh.fed(func(i int, _ *column) string { return "q." + sh.noteColumn(i) }), at, commit) + " FROM " + notes + " AS q ORDER BY q.n"
	}
	var differs []string
	for i, c := range sh.fedColumns() {
		differs = append(differs, c.differs("t."+c.name, "q."+sh.noteColumn(i)))
	}
	on, same, came := sh.onNotes(), "("+strings.Join(differs, " OR ")+")", "NOT q.was"
	before, order := same, ""
	if sh.target.Kind == scd.Type2 && !sh.byVersion() {
		on += fmt.Sprintf(" AND (NOT q.was OR t.%s >= q.s)", startColumn)
		came += fmt.Sprintf(" OR t.%s > q.s", startColumn)
		before = fmt.Sprintf("(t.%s = q.s AND %s)", startColumn, same)
		order = ", t." + startColumn
	}
	first := "t." + sh.columns[sh.keys[0]].name
	kind := fmt.Sprintf("CASE WHEN %s IS NULL THEN '%s' WHEN v.post = 0 THEN '%s' WHEN %s THEN '%s' ELSE '%s' END", first, sink.FeedDelete, sink.FeedBefore, came, sink.FeedInsert, sink.FeedAfter)
	image := sh.fed(func(i int, c *column) string {
		return fmt.Sprintf("CASE v.post WHEN 1 THEN t.%s ELSE q.%s END", c.name, sh.noteColumn(i))
	})
	return fmt.Sprintf(`%s FROM %s AS q LEFT JOIN %s AS t FORCE INDEX (%s) ON %s JOIN (SELECT 0 AS post UNION ALL SELECT 1) AS v
WHERE CASE v.post WHEN 0 THEN q.was AND (%s IS NULL OR %s) ELSE %[6]s IS NOT NULL AND (%[8]s OR %[9]s) END ORDER BY %[10]s%[11]s, v.post`,
		sh.intoFeed(kind, image, at, commit), notes, sh.name, sh.index, on, first, before, came, same,
		sh.noteKeys(", ", func(note, _ string) string { return "q." + note }), order)
}

// newSQL writes the rows into the feed that are not noted; without notes all rows, as
// changes of a kind.
func (sh *shape) newSQL(kind, notes string, at change.Position) string {
	sql := sh.intoFeed("'"+kind+"'", sh.ownImage(), at, time.Time{}) + " FROM " + sh.name + " AS t"
	if notes == "" {
		return sql
	}
	return fmt.Sprintf("%s LEFT JOIN %s AS q ON %s WHERE q.was IS NULL", sql, notes, sh.onNotes())
}

// note notes what a batch's part may change, before it does.
func (a *applier) note(ctx context.Context, sh *shape, touched *sink.Touched) error {
	const doing = "note the changes of"
	f := sh.feed
	if f.notes == "" {
		a.notes++
		f.notes = "_tailrace." + quote("tailrace_notes_"+strconv.Itoa(a.notes))
		if _, err := a.on(ctx, sh, sh.createImagesSQL(f.notes), doing); err != nil {
			return err
		}
	}
	if !f.open {
		f.open = true
		a.fed = append(a.fed, sh)
	}
	if touched.Whole && !sh.target.AppendOnly {
		if _, err := a.on(ctx, sh, sh.noteAllSQL(f.notes), doing); err != nil {
			return err
		}
	}
	if len(touched.Keys) == 0 {
		return nil
	}
	f.keys += int64(len(touched.Keys))
	head, tail := sh.noteSQL(f.notes)
	var starts func(i int) change.Value
	if sh.byVersion() {
		starts = func(i int) change.Value { return touched.Starts[i] }
	}
	return a.byIDs(ctx, sh, doing, head, tail, len(touched.Keys), func(i int) (scd.Key, error) { return touched.Keys[i], nil }, starts, nil)
}

// noteAppended notes a round of a target without a key: what it truncates, before it does,
// and what it inserts.
func (a *applier) noteAppended(ctx context.Context, sh *shape, r *scd.Round) error {
	const doing = "note the changes of"
	if r.Truncate {
		if _, err := a.on(ctx, sh, sh.noteAllSQL(sh.feed.notes), doing); err != nil {
			return err
		}
	}
	sh.feed.keys += int64(len(r.Inserts))
	var names []string
	for i := range sh.columns {
		if !sh.columns[i].generated {
			names = append(names, sh.noteColumn(i))
		}
	}
	e := &encoder{sh: sh}
	l := a.list(fmt.Sprintf("INSERT INTO %s (%s) VALUES ", sh.feed.notes, strings.Join(names, ", ")), "", sh, doing)
	for _, row := range r.Inserts {
		if err := e.parse(row, false); err != nil {
			return err
		}
		l.open()
		var err error
		if l.buf, err = e.row(l.buf, e.values); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// feedChanges writes the feeds of the targets that the open transaction has changed.
func (a *applier) feedChanges(ctx context.Context, b *sink.Batch) error {
	for _, sh := range a.fed {
		const doing, trimming = "write the change feed of", "remove old changes from the change feed of"
		f := sh.feed
		written, err := a.on(ctx, sh, sh.compareSQL(f.notes, b.Position, b.CommitTime), doing)
		if err != nil {
			return err
		}
		// TRUNCATE would commit.
		if _, err := a.on(ctx, sh, "DELETE FROM "+f.notes, doing); err != nil {
			return err
		}
		if keep := sh.target.FeedKeep; f.trim.Due(keep) {
			rows, err := a.s.query(ctx, oldestSQL(f.table))
			if err != nil {
				return &jobError{trimming, sh, err}
			}
			removed := int64(0)
			if rows[0][0] != nil {
				removed, err = a.on(ctx, sh, trimSQL(f.table, num(rows[0][0]), sink.FeedSpan(written), keep), trimming)
				if err != nil {
					return err
				}
			}
			f.trim.Done(keep, removed)
		}
		f.open, f.keys = false, 0
	}
	a.fed = a.fed[:0]
	return nil
}

// trimSQL removes what is too old among the oldest changes of a feed, whose first number
// is given.
func trimSQL(feed string, first, span int64, keep time.Duration) string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s < %d AND %s < UTC_TIMESTAMP(6) - INTERVAL %d MICROSECOND", feed, quote(sink.FeedID), first+span, quote(sink.FeedCommitTime), keep.Microseconds())
}

func oldestSQL(feed string) string {
	return fmt.Sprintf("SELECT MIN(%s) FROM %s", quote(sink.FeedID), feed)
}

// Feeds implements sink.Feeds.
func (w *Writer) Feeds(ctx context.Context) (list []sink.FeedSize, err error) {
	err = w.onSide(ctx, "measure the change feeds", func(s *session) error {
		rows, err := s.query(ctx, bind("SELECT f.target_schema, f.target_table, f.feed, t.DATA_LENGTH + t.INDEX_LENGTH, t.TABLE_ROWS FROM _tailrace.feeds AS f JOIN information_schema.TABLES AS t ON t.TABLE_SCHEMA = '_tailrace' AND t.TABLE_NAME = f.feed WHERE f.pipeline = ? ORDER BY 1, 2", w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		for i := 0; err == nil && i < len(rows); i++ {
			r := rows[i]
			f := sink.FeedSize{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Table: str(r[2]), Bytes: num(r[3]), Rows: num(r[4])}
			table := "_tailrace." + quote(f.Table)
			count := "NULL"
			if f.Estimated = f.Bytes > countedBytes; !f.Estimated {
				count = "(SELECT COUNT(*) FROM " + table + ")"
			}
			var more [][]*string
			if more, err = s.query(ctx, fmt.Sprintf("SELECT (SELECT %s FROM %s ORDER BY %s LIMIT 1), %s", quote(sink.FeedCommitTime), table, quote(sink.FeedID), count)); err != nil {
				return err
			}
			if f.Oldest, err = instantOf(more[0][0]); err != nil {
				return err
			}
			if !f.Estimated {
				f.Rows = num(more[0][1])
			}
			list = append(list, f)
		}
		return err
	})
	return list, err
}

// TrimFeed implements sink.Feeds.
func (w *Writer) TrimFeed(ctx context.Context, t *scd.Target) (removed int64, err error) {
	feed := change.Name{Schema: "_tailrace", Table: w.feedName(t)}
	err = w.amend(ctx, "remove old changes from the change feed of "+w.qualified(t.Name).String(), func(s *session) error {
		r, err := w.readRelation(ctx, s, feed)
		if err != nil || r == nil {
			return err
		}
		rows, err := s.query(ctx, oldestSQL(qualifiedName(feed)))
		if err != nil || rows[0][0] == nil {
			return err
		}
		removed, err = s.exec(ctx, trimSQL(qualifiedName(feed), num(rows[0][0]), sink.FeedStep, t.FeedKeep))
		return err
	})
	return removed, err
}

// fedBy writes what fn does to a target, in the transaction that is open on s, into its
// feed: any row may be changed by it. It is for what is no batch.
func (sh *shape) fedBy(ctx context.Context, s *session, at change.Position, fn func() error) error {
	if sh.feed == nil {
		return fn()
	}
	const notes = "_tailrace.tailrace_notes"
	run := func(statements ...string) error {
		for _, sql := range statements {
			if _, err := s.exec(ctx, sql); err != nil {
				return &jobError{"write the change feed of", sh, err}
			}
		}
		return nil
	}
	if err := run("DROP TEMPORARY TABLE IF EXISTS "+notes, sh.createImagesSQL(notes), sh.noteAllSQL(notes)); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	noted := notes
	if len(sh.keys) == 0 {
		noted = ""
	}
	return run(sh.compareSQL(notes, at, time.Time{}), sh.newSQL(sink.FeedInsert, noted, at), "DROP TEMPORARY TABLE "+notes)
}
