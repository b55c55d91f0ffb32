package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// feed is a target's change feed, as its shape knows it.
type feed struct {
	table string // quoted
	notes string // quoted name of the notes; "" until they are made
	open  bool   // the open transaction has noted something
	keys  int64  // about how many rows
	whole bool   // and all rows of the target
	dead  int64  // about how many deleted rows the notes have
	trim  sink.FeedTrim

	noteKeys, compare string // statements, made with the notes
}

// feedEmptied writes the rows of a target that is about to be emptied into its feed, in
// the transaction that is open on s.
func (w *Writer) feedEmptied(ctx context.Context, s *session, t *scd.Target) error {
	there, err := s.query(ctx, "SELECT to_regclass($1) IS NOT NULL", feedTable(w.feedName(t)))
	if err != nil || str(there[0][0]) != "t" {
		return err
	}
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return err
	}
	sql := sh.intoFeed("'"+sink.FeedDelete+"'", qualifiedBy("t.", fedColumns(t))) + " FROM " + sh.name + " AS t"
	return s.conn.ExecParams(ctx, sql, feedParams(change.Position{}, time.Time{}), nil, nil, nil).Read().Err
}

// notesDead is up to how many deleted rows notes may have. To empty a table by TRUNCATE
// makes its files anew, some ms; by DELETE every reader walks over what was there.
const notesDead = 1000

func (w *Writer) feedName(t *scd.Target) string {
	return sink.FeedName(w.qualified(t.Name), "public")
}

// planFeed finds the statements that make a target's feed fit its target, which columns
// describe, and what stands against it.
func (w *Writer) planFeed(ctx context.Context, s *session, p *planner, t *scd.Target, columns map[string]string) ([]string, error) {
	name := w.feedName(t)
	p.problems = append(p.problems, sink.FeedFindings(t)...)
	owners, err := s.query(ctx, "SELECT pipeline, target_schema, target_table FROM _tailrace.feeds WHERE feed = $1 AND (pipeline, target_schema, target_table) <> ($2, $3, $4)", name, w.cfg.Pipeline, p.name.Schema, p.name.Table)
	if err != nil && !missingBook(err) {
		return nil, err
	}
	if err == nil && len(owners) > 0 {
		p.block("give one of the flows another target, or take its change_feed away and drop that table", "table %s is the change feed of table %s.%s of pipeline %s", feedTable(name), str(owners[0][1]), str(owners[0][2]), str(owners[0][0]))
		return nil, nil
	}
	r, err := w.readRelation(ctx, s, change.Name{Schema: "_tailrace", Table: name})
	if err != nil {
		return nil, err
	}
	if r == nil {
		return createFeedSQL(name, p.name, t), nil
	}
	var ddl []string
	names := []string{}
	for i := range t.Columns {
		names = append(names, t.Columns[i].Name)
	}
	if t.Kind == scd.Type2 {
		names = append(names, scd.StartColumn, scd.EndColumn)
	}
	for _, c := range names {
		switch a, ok := r.columns[c]; {
		case !ok:
			ddl = append(ddl, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", feedTable(name), quote(c), columns[c]))
		case a.typ != columns[c]:
			p.block(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s; -- or DROP TABLE %[1]s; which lets the feed begin anew", feedTable(name), quote(c), columns[c]),
				"column %s of table %s is %s, in the change feed it is %s", c, p.name, columns[c], a.typ)
		}
	}
	return ddl, nil
}

const feedRowSQL = `INSERT INTO _tailrace.feeds (pipeline, target_schema, target_table, feed) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING`

// note notes what a batch's part may change, before it does.
func (a *applier) note(ctx context.Context, sh *shape, t *sink.TargetRounds, touched sink.Touched) error {
	j := job{doing: "note the changes of", sh: sh, rows: -1}
	f := sh.feed
	if f.notes == "" {
		a.notes++
		f.notes = "pg_temp." + quote("tailrace_notes_"+strconv.Itoa(a.notes))
		if err := a.do(ctx, sh, j.doing, sh.createNotesSQL(f.notes, false)); err != nil {
			return err
		}
		if !sh.target.AppendOnly {
			f.noteKeys = sh.noteKeysSQL(f.notes)
		}
		f.compare = sh.feedSQL(f.notes, false)
	}
	if !f.open {
		f.open = true
		a.fed = append(a.fed, sh)
	}
	if touched.Whole && !sh.target.AppendOnly {
		if err := a.noteAll(ctx, sh, j); err != nil {
			return err
		}
	}
	f.keys += int64(len(touched.Keys))
	return a.aboutKeys(ctx, sh, form(t.Binary), f.noteKeys, touched, j)
}

func (a *applier) noteAll(ctx context.Context, sh *shape, j job) error {
	sh.feed.whole = true
	if err := a.do(ctx, sh, j.doing, wholeTable); err != nil {
		return err
	}
	if err := a.do(ctx, sh, j.doing, sh.noteAllSQL(sh.feed.notes)); err != nil {
		return err
	}
	return a.do(ctx, sh, j.doing, byIndex)
}

// aboutKeys pushes a statement about keys, of a sequenced history with starts.
func (a *applier) aboutKeys(ctx context.Context, sh *shape, f form, sql string, t sink.Touched, j job) error {
	if sh.nestedKey() {
		ids := make([]scd.VersionID, len(t.Keys))
		for i := range ids {
			ids[i].Key = t.Keys[i]
			if sh.byVersion() {
				ids[i].Start = t.Starts[i]
			}
		}
		return a.eachID(ctx, sh, f, sql, j, ids, nil)
	}
	for from := 0; from < len(t.Keys); {
		keys := t.Keys[from:]
		n := chunk(len(keys), func(i int) int { return len(keys[i]) })
		var params [][]byte
		for k, at := range sh.keys {
			p, err := appendKeyArray(nil, keys[:n], k, &sh.columns[at], bool(f))
			if err != nil {
				return fmt.Errorf("%s: %w", sh.label(), err)
			}
			params = append(params, p)
		}
		if sh.byVersion() {
			p, err := appendValueArray(nil, n, func(i int) change.Value { return t.Starts[from+i] }, &sh.start, bool(f))
			if err != nil {
				return fmt.Errorf("%s: %w", sh.label(), err)
			}
			params = append(params, p)
		}
		if err := a.push(ctx, sql, params, f, j); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// noteAppended notes a round of a target without a key: what it truncates, before it does,
// and what it inserts.
func (a *applier) noteAppended(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	const doing = "note the changes of"
	if r.Truncate {
		if err := a.noteAll(ctx, sh, job{doing: doing, sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	if len(r.Inserts) == 0 {
		return nil
	}
	sh.feed.keys += int64(len(r.Inserts))
	return a.copyRows(ctx, sh, doing, copyInto(sh.feed.notes, each(len(sh.columns), ", ", stageColumn), bool(f)), f, r.Inserts)
}

// feedChanges writes the feeds of the targets that the open transaction has changed.
func (a *applier) feedChanges(ctx context.Context, b *sink.Batch) error {
	for _, sh := range a.fed {
		const doing = "write the change feed of"
		f := sh.feed
		if err := a.push(ctx, f.compare, feedParams(b.Position, b.CommitTime), asText, job{doing: doing, sh: sh, rows: -1}); err != nil {
			return err
		}
		empty := "DELETE FROM " + f.notes
		if f.dead += f.keys; f.whole || f.dead > notesDead {
			f.dead, empty = 0, "TRUNCATE "+f.notes
		}
		if err := a.push(ctx, empty, nil, asText, job{doing: doing, sh: sh, rows: -1}); err != nil {
			return err
		}
		if keep := sh.target.FeedKeep; f.trim.Due(keep) {
			if err := a.flush(ctx); err != nil {
				return err
			}
			rows, err := a.s.ask(ctx, trimFeedSQL(f.table), keep.Microseconds(), sink.FeedSpan(2*f.keys))
			if err != nil {
				return &jobError{job{doing: "remove old changes from the change feed of", sh: sh}, err}
			}
			f.trim.Done(keep, num(rows[0][0]))
		}
		f.open, f.keys, f.whole = false, 0, false
	}
	a.fed = a.fed[:0]
	return nil
}

func feedParams(at change.Position, commit time.Time) [][]byte {
	params := [][]byte{[]byte(at.String()), nil}
	if !commit.IsZero() {
		params[1] = appendInstant(nil, commit.UnixMicro())
	}
	return params
}

// Feeds implements sink.Feeds.
func (w *Writer) Feeds(ctx context.Context) (list []sink.FeedSize, err error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, "SELECT f.target_schema, f.target_table, f.feed, c.pages, c.bytes, c.rows FROM _tailrace.feeds AS f CROSS JOIN LATERAL (SELECT pg_relation_size(oid) / current_setting('block_size')::bigint AS pages, pg_total_relation_size(oid) AS bytes, reltuples::bigint AS rows FROM pg_class WHERE oid = to_regclass('_tailrace.' || quote_ident(f.feed))) AS c WHERE f.pipeline = $1 ORDER BY 1, 2", w.cfg.Pipeline)
	if missingBook(err) {
		return nil, nil
	}
	for i := 0; err == nil && i < len(rows); i++ {
		r := rows[i]
		f := sink.FeedSize{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Table: str(r[2]), Bytes: num(r[4]), Rows: num(r[5])}
		table := feedTable(f.Table)
		count := "NULL"
		if f.Estimated = num(r[3]) > countedPages && f.Rows >= 0; !f.Estimated {
			count = "(SELECT count(*) FROM " + table + ")"
		}
		var more [][]*string
		if more, err = s.query(ctx, fmt.Sprintf("SELECT (SELECT (extract(epoch FROM %s) * 1000000)::bigint FROM %s ORDER BY %s LIMIT 1), %s", quote(sink.FeedCommitTime), table, quote(sink.FeedID), count)); err != nil {
			break
		}
		if more[0][0] != nil {
			f.Oldest = time.UnixMicro(num(more[0][0]))
		}
		if !f.Estimated {
			f.Rows = num(more[0][1])
		}
		list = append(list, f)
	}
	return list, w.explain(ctx, err, "measure the change feeds", nil)
}

// TrimFeed implements sink.Feeds.
func (w *Writer) TrimFeed(ctx context.Context, t *scd.Target) (removed int64, err error) {
	table := feedTable(w.feedName(t))
	err = w.amend(ctx, "remove old changes from the change feed of "+w.qualified(t.Name).String(), func(s *session) error {
		there, err := s.query(ctx, "SELECT to_regclass($1) IS NOT NULL", table)
		if err != nil || str(there[0][0]) != "t" {
			return err
		}
		rows, err := s.query(ctx, trimFeedSQL(table), t.FeedKeep.Microseconds(), int64(sink.FeedStep))
		if err == nil {
			removed = num(rows[0][0])
		}
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
	const notes = "pg_temp.tailrace_notes"
	rows, err := s.query(ctx, "SELECT EXISTS (SELECT FROM "+sh.name+")")
	if err != nil {
		return err
	}
	filled := str(rows[0][0]) == "t"
	if filled {
		if err := s.exec(ctx, sh.createNotesSQL(notes, true)); err != nil {
			return err
		}
		if err := s.exec(ctx, sh.noteAllSQL(notes)); err != nil {
			return err
		}
		if err := s.exec(ctx, "ANALYZE "+notes); err != nil {
			return err
		}
	}
	if err := fn(); err != nil {
		return err
	}
	statements := []string{sh.feedNewSQL("")}
	switch {
	case filled && sh.target.AppendOnly:
		statements = []string{sh.feedSQL(notes, true), sh.feedNewSQL("")}
	case filled:
		statements = []string{sh.feedSQL(notes, true), sh.feedNewSQL(notes)}
	}
	for _, sql := range statements {
		if err := s.conn.ExecParams(ctx, sql, feedParams(at, time.Time{}), nil, nil, nil).Read().Err; err != nil {
			return err
		}
	}
	return nil
}
