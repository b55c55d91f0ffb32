//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// A feed is written from notes, a temporary table with a row for each key (of a sequenced
// history for each version) that the open transaction may change, and what stood there
// before:
//
//	k0, ..  the key, and ks the version's start (sequenced type 2)
//	was     there was such a row
//	c0, ..  the row, and s and e, its start and end (type 2; of an ordered one of the
//	        newest version)
//
// Of a target without a key they are what goes into the feed, in their order: kind, c0, ...
//
// At the end the rows of these keys are fetched again, as the table after, and compared.
// As everywhere here, rows are found by their keys first and read by their row ids then.

// notes are those of one target.
type notes struct {
	*shape
	table string   // quoted, with catalogue and schema
	older []string // tables of the same kind: what is in them is noted
	nulls bool     // a key may have a NULL
}

// feedState is what is known of a feed from batch to batch.
type feedState struct {
	last int64 // number of its newest change
	at   any   // Writer.changes of the target when it was read
	trim sink.FeedTrim
}

func feedName(t *scd.Target) string { return sink.FeedName(t.Name, defaultSchema) }

// byVersion reports whether notes hold versions, each by its start.
func (s *shape) byVersion() bool { return s.target.Kind == scd.Type2 && s.target.Sequenced }

// newestOnly reports whether notes hold the newest version of each key.
func (s *shape) newestOnly() bool { return s.target.Kind == scd.Type2 && !s.target.Sequenced }

func noteKey(n int) string { return fmt.Sprintf("k%d", n) }

// noteKeys are the notes' columns that say which row it is, ownKeys the target's.
func (s *shape) noteKeys() (names []string) {
	for n := range s.keys {
		names = append(names, noteKey(n))
	}
	if s.byVersion() {
		names = append(names, "ks")
	}
	return names
}

func (s *shape) ownKeys() (names []string) {
	for _, k := range s.keys {
		names = append(names, quote(s.cols[k].name))
	}
	if s.byVersion() {
		names = append(names, startColumn)
	}
	return names
}

// fedColumns are the columns that a feed has from its target, noteColumns the notes'.
func (s *shape) fedColumns() (names []string) {
	for i := range s.cols {
		names = append(names, quote(s.cols[i].name))
	}
	if s.target.Kind == scd.Type2 {
		names = append(names, startColumn, endColumn)
	}
	return names
}

func (s *shape) noteColumns() (names []string) {
	for i := range s.cols {
		names = append(names, c("", i))
	}
	if s.target.Kind == scd.Type2 {
		names = append(names, "s", "e")
	}
	return names
}

// listed joins names with a prefix, renamed if as is not nil.
func listed(prefix string, names, as []string) string {
	parts := make([]string, len(names))
	for i := range names {
		parts[i] = prefix + names[i]
		if as != nil {
			parts[i] += " AS " + as[i]
		}
	}
	return strings.Join(parts, ", ")
}

// matched is the condition that rows of two tables have the same key.
func matched(a string, as []string, b string, bs []string, nulls bool) string {
	parts := make([]string, len(as))
	for i := range as {
		parts[i] = a + as[i] + eq(nulls) + b + bs[i]
	}
	return strings.Join(parts, " AND ")
}

// createFeed makes a feed whose columns have the given types.
func (w *Writer) createFeed(t *scd.Target, types map[string]string) []string {
	name := quote(bookSchema) + "." + quote(feedName(t))
	if w.catalog != "" {
		name = w.bookTable(feedName(t))
	}
	cols := []string{quote(sink.FeedID) + " BIGINT NOT NULL", quote(sink.FeedType) + " VARCHAR NOT NULL", quote(sink.FeedMark) + " VARCHAR NOT NULL", quote(sink.FeedCommitTime) + " TIMESTAMPTZ NOT NULL"}
	for _, c := range wantedNames(t) {
		cols = append(cols, quote(c)+" "+types[c])
	}
	return []string{fmt.Sprintf("CREATE TABLE %s (\n  %s\n);", name, strings.Join(cols, ",\n  "))}
}

// feedTypes are the types of a target's columns as they are or, where there is none yet,
// as Create makes it.
func feedTypes(t *scd.Target, rel *relation) map[string]string {
	types := map[string]string{}
	for i := range t.Columns {
		types[t.Columns[i].Name] = typeFor(t.Columns[i].Type).String()
	}
	if t.Kind == scd.Type2 {
		for _, c := range boundColumns(t) {
			types[c.name] = c.typ.String()
		}
	}
	for _, c := range rel.cols {
		if _, ok := types[c.name]; ok {
			types[c.name] = c.spelling
		}
	}
	return types
}

// planFeed adds to a plan what makes the target's feed fit, and what stands against it.
func (w *Writer) planFeed(ctx context.Context, p *sink.Plan, t *scd.Target, known *catalogue, rel *relation) error {
	if !t.ChangeFeed {
		return nil
	}
	p.Problems = append(p.Problems, sink.FeedFindings(t)...)
	types := feedTypes(t, rel)
	if known == nil {
		p.DDL = append(p.DDL, w.createFeed(t, types)...)
		return nil
	}
	if known.find(bookSchema, "feeds").exists {
		n, err := w.book.number(ctx, "SELECT count(*) FROM "+w.bookTable("feeds")+" WHERE feed = $1 AND NOT (pipeline = $2 AND target_schema = $3 AND target_table = $4)", feedName(t), w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table)
		if err != nil {
			return w.explain("read the bookkeeping", err)
		}
		if n > 0 {
			p.Problems = append(p.Problems, sink.Finding{Blocks: true, What: fmt.Sprintf("table %s is the change feed of another target than %s", w.bookTable(feedName(t)), t.Name),
				Remedy: "give one of the flows another target, or take its change_feed away and drop that table"})
			return nil
		}
	}
	feed := known.find(bookSchema, feedName(t))
	if !feed.exists {
		p.DDL = append(p.DDL, w.createFeed(t, types)...)
		return nil
	}
	name := w.bookTable(feedName(t))
	for _, c := range wantedNames(t) {
		switch there, ok := feed.find(c); {
		case !ok:
			p.DDL = append(p.DDL, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", name, quote(c), types[c]))
		case there.spelling != types[c] && there.typ.String() != types[c]:
			p.Problems = append(p.Problems, sink.Finding{Blocks: true, What: fmt.Sprintf("column %s of target %s is %s, in its change feed it is %s", quote(c), t.Name, types[c], there.spelling),
				Remedy: fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DATA TYPE %s; or DROP TABLE %[1]s; which lets the feed begin anew", name, quote(c), types[c])})
		}
	}
	return nil
}

// noteFeed writes down which table is the target's feed.
func (w *Writer) noteFeed(ctx context.Context, t *scd.Target) error {
	if !t.ChangeFeed {
		return nil
	}
	if _, err := w.book.run(ctx, "DELETE FROM "+w.bookTable("feeds")+" WHERE feed = $1", feedName(t)); err != nil {
		return err
	}
	_, err := w.book.run(ctx, "INSERT INTO "+w.bookTable("feeds")+" VALUES ($1, $2, $3, $4)", w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table, feedName(t))
	return err
}

// feeds are the tables of this pipeline's feeds.
func (w *Writer) feeds(ctx context.Context) (names []string, err error) {
	err = w.book.each(ctx, func(cells []*string) error {
		names = append(names, *cells[0])
		return nil
	}, "SELECT feed FROM "+w.bookTable("feeds")+" WHERE pipeline = $1", w.cfg.Pipeline)
	return names, err
}

// newNotes are notes in a temporary table.
func newNotes(s *shape, name string) *notes { return &notes{shape: s, table: stageName(name)} }

// create makes an empty table of notes.
func (n *notes) create() string {
	cols := "'' AS kind, "
	if len(n.shape.keys) > 0 {
		cols = listed("", n.ownKeys(), n.noteKeys()) + ", false AS was, "
	}
	kind := "TABLE"
	if strings.HasPrefix(n.table, stageName("")) {
		kind = "TEMP TABLE"
	}
	return fmt.Sprintf("CREATE OR REPLACE %s %s AS SELECT %s%s FROM %s LIMIT 0", kind, n.table, cols, listed("", n.fedColumns(), n.noteColumns()), n.name)
}

// all notes every row that is not noted yet, of an ordered history the newest version of
// each key: older ones never change.
func (n *notes) all() string {
	if len(n.shape.keys) == 0 {
		return fmt.Sprintf("INSERT INTO %s SELECT '%s', %s FROM %s", n.table, sink.FeedDelete, listed("", n.fedColumns(), nil), n.name)
	}
	newest := ""
	if n.newestOnly() {
		newest = fmt.Sprintf(" JOIN (SELECT arg_max(rowid, %s) AS rid FROM %s GROUP BY %s) AS m ON t.rowid = m.rid", startColumn, n.name, listed("", n.ownKeys(), nil))
	}
	return fmt.Sprintf("INSERT INTO %s SELECT %s, true, %s FROM (SELECT *, rowid FROM %s) AS t%s WHERE %s",
		n.table, listed("t.", n.ownKeys(), nil), listed("t.", n.fedColumns(), nil), n.name, newest, n.unnoted("t.", n.ownKeys()))
}

// unnoted is the condition that a row's key is not noted.
func (n *notes) unnoted(row string, keys []string) string {
	parts := make([]string, 0, 1+len(n.older))
	for _, table := range append([]string{n.table}, n.older...) {
		parts = append(parts, fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s AS p WHERE %s)", table, matched(row, keys, "p.", n.noteKeys(), n.nulls)))
	}
	return strings.Join(parts, " AND ")
}

// find makes the table touched: the keys in touching that are not noted yet, and the row
// ids of their rows.
func (n *notes) find() string {
	fresh := fmt.Sprintf("(SELECT DISTINCT %s FROM %s AS q WHERE %s)", listed("", n.noteKeys(), nil), stageName("touching"), n.unnoted("q.", n.noteKeys()))
	on := matched("t.", n.ownKeys(), "q.", n.noteKeys(), n.nulls)
	keys := listed("q.", n.noteKeys(), nil)
	if n.newestOnly() {
		return fmt.Sprintf("CREATE OR REPLACE TEMP TABLE touched AS SELECT %s, arg_max(t.rowid, t.%s) AS rid FROM %s AS q LEFT JOIN %s AS t ON %s GROUP BY %[1]s", keys, startColumn, fresh, n.name, on)
	}
	return fmt.Sprintf("CREATE OR REPLACE TEMP TABLE touched AS SELECT %s, t.rowid AS rid FROM %s AS q LEFT JOIN %s AS t ON %s", keys, fresh, n.name, on)
}

// store notes the rows that find has found, and the keys without one.
func (n *notes) store() (found, missing string) {
	into := fmt.Sprintf("INSERT INTO %s (%s, was", n.table, listed("", n.noteKeys(), nil))
	return fmt.Sprintf("%s, %s) SELECT %s, true, %s FROM %s AS t JOIN %s AS q ON t.rowid = q.rid", into, listed("", n.noteColumns(), nil),
			listed("q.", n.noteKeys(), nil), listed("t.", n.fedColumns(), nil), n.name, stageName("touched")),
		fmt.Sprintf("%s) SELECT %s, false FROM %s WHERE rid IS NULL", into, listed("", n.noteKeys(), nil), stageName("touched"))
}

// came makes the table came: the notes' numbers, and the row ids of the rows that have
// their keys now.
func (n *notes) came() string {
	on := matched("t.", n.ownKeys(), "q.", n.noteKeys(), n.nulls)
	if n.newestOnly() {
		on += fmt.Sprintf(" AND (NOT q.was OR t.%s >= q.s)", startColumn)
	}
	return fmt.Sprintf("CREATE OR REPLACE TEMP TABLE came AS SELECT q.rowid AS nid, t.rowid AS rid FROM %s AS t JOIN %s AS q ON %s", n.name, n.table, on)
}

func (n *notes) after() string {
	return fmt.Sprintf("CREATE OR REPLACE TEMP TABLE after AS SELECT q.nid, %s FROM %s AS t JOIN %s AS q ON t.rowid = q.rid", listed("t.", n.fedColumns(), n.noteColumns()), n.name, stageName("came"))
}

// into begins a statement that writes the feed, from rows in order with the columns kind
// and noteColumns.
func (n *notes) into(feed string, last int64, at change.Position, commit time.Time, order string) string {
	when := "now()"
	if !commit.IsZero() {
		when = fmt.Sprintf("make_timestamptz(%d)", commit.UnixMicro())
	}
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s, %s, %s) SELECT %d + row_number() OVER (%s), kind, %s, %s, %s FROM ", feed,
		quote(sink.FeedID), quote(sink.FeedType), quote(sink.FeedMark), quote(sink.FeedCommitTime), listed("", n.fedColumns(), nil),
		last, order, literal(at.String()), when, listed("", n.noteColumns(), nil))
}

// compared selects the changes between notes and the table after, in the order of nid, o
// and since.
func (n *notes) compared() string {
	same := make([]string, len(n.cols))
	for i := range n.cols {
		same[i] = n.sameAs(i, c("q.", i), c("a.", i))
	}
	one, start := "", "0"
	if n.shape.target.Kind == scd.Type2 {
		same = append(same, "q.e IS NOT DISTINCT FROM a.e")
		start = "a.s"
	}
	if n.newestOnly() {
		one = " AND a.s = q.s"
	}
	differs := "NOT (" + strings.Join(same, " AND ") + ")"
	return fmt.Sprintf(`(SELECT q.rowid AS nid, 0 AS o, NULL AS since, CASE WHEN a.nid IS NULL THEN '%s' ELSE '%s' END AS kind, %s
FROM %s AS q LEFT JOIN %s AS a ON a.nid = q.rowid%s WHERE q.was AND (a.nid IS NULL OR %s)
UNION ALL SELECT a.nid, 1, %s, CASE WHEN q.was%s THEN '%s' ELSE '%s' END, %s
FROM %[4]s AS q JOIN %[5]s AS a ON a.nid = q.rowid WHERE NOT (q.was%[6]s) OR %[7]s)`,
		sink.FeedDelete, sink.FeedBefore, listed("q.", n.noteColumns(), nil), n.table, stageName("after"), one, differs,
		start, one, sink.FeedAfter, sink.FeedInsert, listed("a.", n.noteColumns(), nil))
}

// rows selects the target's rows as changes of a kind; with fresh those that are not
// noted.
func (n *notes) rows(kind string, fresh bool) string {
	where := ""
	if fresh {
		where = fmt.Sprintf(" WHERE NOT EXISTS (SELECT 1 FROM %s AS q WHERE %s)", n.table, matched("t.", n.ownKeys(), "q.", n.noteKeys(), true))
	}
	return fmt.Sprintf("(SELECT '%s' AS kind, %s FROM %s AS t%s)", kind, listed("t.", n.fedColumns(), n.noteColumns()), n.name, where)
}

// note notes what a batch's part may change, before it does: for the target's feed, and
// for the newest rewind point. It returns the notes.
func (a *applier) note(ctx context.Context, s *shape, t *sink.TargetRounds) (into []*notes, err error) {
	if !t.Target.ChangeFeed && a.window == nil {
		return nil, nil
	}
	touched, err := sink.TouchedBy(t)
	if err != nil {
		return nil, err
	}
	if len(touched.Keys) == 0 && !touched.Whole && !t.Target.AppendOnly {
		return nil, nil
	}
	if t.Target.ChangeFeed {
		n, err := a.feedNotes(ctx, s)
		if err != nil {
			return nil, err
		}
		into = append(into, n)
	}
	if a.window != nil {
		k, err := a.keeperOf(ctx, s)
		if err != nil {
			return nil, err
		}
		into = append(into, k.notes(s))
	}
	if t.Target.AppendOnly {
		return into, nil
	}
	nulls := false
	if len(touched.Keys) > 0 {
		if nulls, err = a.stageTouched(ctx, s, &touched); err != nil {
			return nil, err
		}
	}
	for _, n := range into {
		n.nulls = n.nulls || nulls || touched.Whole
		if touched.Whole {
			if _, err := a.conn.exec(ctx, n.all()); err != nil {
				return nil, err
			}
		}
		if len(touched.Keys) > 0 {
			if err := a.noteKeys(ctx, n); err != nil {
				return nil, err
			}
		}
	}
	return into, nil
}

// noteKeys notes the rows of the keys in the table touching.
func (a *applier) noteKeys(ctx context.Context, n *notes) error {
	if _, err := a.conn.exec(ctx, n.find()); err != nil {
		return err
	}
	found, missing := n.store()
	if _, err := a.fetch(ctx, found); err != nil {
		return err
	}
	_, err := a.conn.exec(ctx, missing)
	return err
}

// feedNotes are the open transaction's notes for a target's feed.
func (a *applier) feedNotes(ctx context.Context, s *shape) (*notes, error) {
	n := a.notes[s.name]
	if n == nil {
		n = newNotes(s, fmt.Sprintf("notes%d", len(a.notes)))
		if _, err := a.conn.exec(ctx, n.create()); err != nil {
			return nil, err
		}
		a.notes[s.name] = n
		a.fed = append(a.fed, n)
	}
	if n.target != s.target {
		return nil, sink.FeedChanged(s.target)
	}
	return n, nil
}

// stageTouched fills the table touching: keys, and starts of versions.
func (a *applier) stageTouched(ctx context.Context, s *shape, t *sink.Touched) (nulls bool, err error) {
	var cols []column
	for i, k := range s.keys {
		cols = append(cols, column{name: noteKey(i), source: s.cols[k].source, typ: s.cols[k].typ})
	}
	start := len(cols)
	if s.byVersion() {
		bound := startColumnOf(s.target)
		bound.name = "ks"
		cols = append(cols, bound)
	}
	ap, err := a.conn.newTemp(ctx, "touching", cols...)
	if err != nil {
		return false, err
	}
	defer ap.discard()
	ap.what = s.target.Name.String()
	for i, k := range s.keys { // messages name the target's columns
		ap.cols[i].name = s.cols[k].name
	}
	st := &stage{appender: ap, shape: s}
	for i, key := range t.Keys {
		if err := st.keyInto(key, func(i int) int { return i }); err != nil {
			return false, err
		}
		if s.byVersion() {
			if err := ap.value(start, t.Starts[i]); err != nil {
				return false, err
			}
		}
		if err := ap.end(); err != nil {
			return false, err
		}
	}
	_, err = ap.finish(ctx)
	return st.nullKey, err
}

// noteAppended notes a round of a target without a key: what it truncates, before it does,
// and what it inserts.
func (a *applier) noteAppended(ctx context.Context, s *shape, into []*notes, r *scd.Round) error {
	if r.Truncate {
		for _, n := range into {
			if _, err := a.conn.exec(ctx, n.all()); err != nil {
				return err
			}
		}
	}
	if len(r.Inserts) == 0 {
		return nil
	}
	st, err := a.newStage(ctx, s, "appended")
	if err != nil {
		return err
	}
	defer st.discard()
	for _, row := range r.Inserts {
		if _, err := st.read(row); err != nil {
			return err
		}
		if err := st.data(); err != nil {
			return err
		}
		if err := st.end(); err != nil {
			return err
		}
	}
	if _, err := st.finish(ctx); err != nil {
		return err
	}
	for _, n := range into {
		if _, err := a.conn.exec(ctx, fmt.Sprintf("INSERT INTO %s SELECT '%s', * FROM %s", n.table, sink.FeedInsert, stageName("appended"))); err != nil {
			return err
		}
	}
	return nil
}

// newestChange is the number of a feed's newest change.
func newestChange(ctx context.Context, c *conn, feed string) (int64, error) {
	return c.number(ctx, fmt.Sprintf("SELECT coalesce(max(%s), 0) FROM %s", quote(sink.FeedID), feed))
}

// trimFeed removes what is too old among the oldest changes of a feed. last is its newest.
func trimFeed(feed string, span, last int64, keep time.Duration) string {
	return fmt.Sprintf("DELETE FROM %s WHERE %[2]s < (SELECT min(%[2]s) FROM %[1]s) + %[3]d AND %[2]s < %[4]d AND %[5]s < now() - to_microseconds(%[6]d)",
		feed, quote(sink.FeedID), span, last, quote(sink.FeedCommitTime), keep.Microseconds())
}

// TrimFeed implements sink.Feeds.
func (w *Writer) TrimFeed(ctx context.Context, t *scd.Target) (removed int64, err error) {
	feed := w.bookTable(feedName(t))
	err = w.amend(ctx, "remove old changes from the change feed of "+t.Name.String(), func(c *conn) error {
		if there, err := w.hasBookTable(ctx, c, feedName(t)); err != nil || !there {
			return err
		}
		last, err := newestChange(ctx, c, feed)
		if err == nil {
			removed, err = c.exec(ctx, trimFeed(feed, sink.FeedStep, last, t.FeedKeep))
		}
		return err
	})
	return removed, err
}

// blockBytes is the size of a block of a DuckDB file.
const blockBytes = 256 << 10

// Feeds implements sink.Feeds. Rows are counted from what the engine knows of its row
// groups.
func (w *Writer) Feeds(ctx context.Context) (list []sink.FeedSize, err error) {
	err = w.readBook(ctx, "feeds", func(c *conn) error {
		err := c.each(ctx, func(cells []*string) error {
			list = append(list, sink.FeedSize{Target: change.Name{Schema: *cells[0], Table: *cells[1]}, Table: *cells[2]})
			return nil
		}, "SELECT target_schema, target_table, feed FROM "+w.bookTable("feeds")+" WHERE pipeline = $1 ORDER BY 1, 2", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		there := list[:0]
		for _, f := range list {
			if found, err := w.hasBookTable(ctx, c, f.Table); err != nil || !found {
				if err != nil {
					return err
				}
				continue
			}
			table := w.bookTable(f.Table)
			oldest := int64(0)
			for sql, into := range map[string]*int64{
				"SELECT count(*) FROM " + table: &f.Rows,
				fmt.Sprintf("SELECT coalesce(epoch_us(arg_min(%s, %s)), 0) FROM %s", quote(sink.FeedCommitTime), quote(sink.FeedID), table):                                             &oldest,
				fmt.Sprintf("SELECT count(DISTINCT block_id) * %d FROM pragma_storage_info('%s') WHERE persistent AND block_id >= 0", blockBytes, strings.ReplaceAll(table, "'", "''")): &f.Bytes,
			} {
				if *into, err = c.number(ctx, sql); err != nil {
					return err
				}
			}
			if oldest != 0 {
				f.Oldest = time.UnixMicro(oldest)
			}
			there = append(there, f)
		}
		list = there
		return nil
	})
	return list, w.explain("measure the change feeds", err)
}

// feedChanges writes the feeds of the targets that the open transaction has changed.
func (a *applier) feedChanges(ctx context.Context, b *sink.Batch) error {
	for _, n := range a.fed {
		feed := a.w.bookTable(feedName(n.target))
		f := a.feeds[n.name]
		if f == nil {
			f = &feedState{}
			a.feeds[n.name] = f
		}
		if at, _ := a.w.changes.Load(n.target.Name); f.at == nil || f.at != at { // a copy may have written it
			last, err := newestChange(ctx, a.conn, feed)
			if err != nil {
				return err
			}
			f.last, f.at = last, at
		}
		from, order := "(SELECT * FROM "+n.table+")", ""
		if len(n.shape.keys) > 0 {
			if _, err := a.conn.exec(ctx, n.came()); err != nil {
				return err
			}
			if _, err := a.fetch(ctx, n.after()); err != nil {
				return err
			}
			from, order = n.compared(), "ORDER BY nid, o, since"
		}
		written, err := a.conn.exec(ctx, n.into(feed, f.last, b.Position, b.CommitTime, order)+from)
		if err != nil {
			return err
		}
		f.last += written
		if keep := n.target.FeedKeep; f.trim.Due(keep) {
			// The newest change stays: the numbers go on from it.
			removed, err := a.conn.exec(ctx, trimFeed(feed, sink.FeedSpan(written), f.last, keep))
			if err != nil {
				return err
			}
			f.trim.Done(keep, removed)
		}
		if _, err := a.conn.exec(ctx, "DROP TABLE "+n.table); err != nil { // it may be large
			return err
		}
	}
	return nil
}

// fedBy writes what fn does to a target, in the transaction that is open on c, into its
// feed: any row may be changed by it. It is for what is no batch.
func (w *Writer) fedBy(ctx context.Context, c *conn, s *shape, at change.Position, fn func() error) error {
	if !s.target.ChangeFeed {
		return fn()
	}
	n := newNotes(s, "notes")
	n.nulls = true
	for _, sql := range []string{n.create(), n.all()} {
		if _, err := c.exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := fn(); err != nil {
		return err
	}
	return w.feedNoted(ctx, c, n, at, true)
}

// feedNoted writes the feed from notes, in the transaction that is open on c; with fresh
// also the rows whose keys are not noted.
func (w *Writer) feedNoted(ctx context.Context, c *conn, n *notes, at change.Position, fresh bool) error {
	feed := w.bookTable(feedName(n.target))
	last, err := newestChange(ctx, c, feed)
	if err != nil {
		return err
	}
	from, order := "(SELECT * FROM "+n.table+")", ""
	if len(n.shape.keys) > 0 {
		for _, sql := range []string{n.came(), n.after()} {
			if _, err := c.exec(ctx, sql); err != nil {
				return err
			}
		}
		from, order = n.compared(), "ORDER BY nid, o, since"
	}
	written, err := c.exec(ctx, n.into(feed, last, at, time.Time{}, order)+from)
	if err != nil || !fresh {
		return err
	}
	_, err = c.exec(ctx, n.into(feed, last+written, at, time.Time{}, "")+n.rows(sink.FeedInsert, len(n.shape.keys) > 0))
	return err
}
