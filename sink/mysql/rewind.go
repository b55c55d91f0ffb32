package mysql

import (
	"context"
	"slices"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

const (
	doneTable        = "_tailrace.tailrace_done"
	recalledTable    = "_tailrace.tailrace_recalled"
	rewindNotes      = "_tailrace.tailrace_notes"
	setHeadSQL       = `UPDATE _tailrace.sequenced SET truncated_seq = ?, truncated_at = ?, horizon = ?` + ofTarget
	asidesAfterSQL   = `DELETE FROM _tailrace.quarantine WHERE pipeline = ? AND target_schema = ? AND target_table = ? AND id > ?`
	unresolveSQL     = `UPDATE _tailrace.quarantine AS e JOIN _tailrace.undo_asides AS u ON u.pipeline = e.pipeline AND u.id = e.id SET e.resolved = NULL WHERE e.pipeline = ? AND e.target_schema = ? AND e.target_table = ? AND u.number >= ?`
	forgetAsidesSQL  = `DELETE u FROM _tailrace.undo_asides AS u LEFT JOIN _tailrace.quarantine AS e ON e.pipeline = u.pipeline AND e.id = u.id WHERE u.pipeline = ? AND u.number >= ? AND (e.id IS NULL OR e.resolved IS NULL)`
	untakeSQL        = `DELETE f FROM _tailrace.undo_files AS u JOIN _tailrace.files AS f USING (pipeline, relation_schema, relation_table, path_hash) WHERE u.pipeline = ? AND u.relation_schema = ? AND u.relation_table = ? AND u.number >= ?`
	retakeSQL        = "INSERT INTO _tailrace.files (pipeline, relation_schema, relation_table, path_hash, path, size, modified, checksum, `rows`) SELECT pipeline, relation_schema, relation_table, path_hash, path, size, modified, checksum, `rows` FROM _tailrace.undo_files AS u WHERE pipeline = ? AND relation_schema = ? AND relation_table = ? AND was = 1 AND number = (SELECT MIN(m.number) FROM _tailrace.undo_files AS m WHERE m.pipeline = u.pipeline AND m.relation_schema = u.relation_schema AND m.relation_table = u.relation_table AND m.path_hash = u.path_hash AND m.number >= ?)"
	forgetKeptFiles  = `DELETE FROM _tailrace.undo_files WHERE pipeline = ? AND relation_schema = ? AND relation_table = ? AND number >= ?`
	pointsBehindGone = `UPDATE _tailrace.points SET state = 'gone' WHERE pipeline = ? AND number > ?`
)

// keptOf reads what is kept of a target from a point on, oldest first: of its rows, and of
// what is remembered. It is refused where that does not restore it.
func (w *Writer) keptOf(ctx context.Context, s *session, pipeline string, sh *shape, target change.Name, from int64) (rows, records []*held, err error) {
	list, err := readUndo(ctx, s, pipeline, from, bind(" AND target_schema = ? AND target_table = ?", target.Schema, target.Table))
	if err != nil || len(list) == 0 {
		return nil, nil, err
	}
	there, err := heldTables(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range list {
		switch {
		case k.holds == heldBarrier:
			return nil, nil, fault.Refuse("leave it out, or choose a later point: tailrace checkpoint list", "table %s cannot be restored to rewind point %d: %s", target, from, k.reason)
		case !there[heldName(k.id, k.target.Table)]: // it died before it was made
		case !k.fits(sh):
			return nil, nil, fault.Refuse("leave it out, or choose a later point: tailrace checkpoint list", "table %s cannot be restored to rewind point %d: its flow is declared otherwise since then", target, from)
		case k.holds == heldRecords:
			records = append(records, k)
		default:
			rows = append(rows, k)
		}
	}
	return rows, records, nil
}

// Rewind implements sink.Rewinds.
func (w *Writer) Rewind(ctx context.Context, r sink.Rewind) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close() // also what takes an unfinished transaction back
	if err := s.choose(ctx); err != nil {
		return w.explain(err, "rewind", nil)
	}
	shapes := make([]*shape, len(r.Targets))
	for i, t := range r.Targets {
		if shapes[i], err = w.shapeOf(ctx, s, t); err != nil {
			return err
		}
	}
	err = within(ctx, s, func() error {
		if err := w.rewind(ctx, s, epoch, r, shapes); err != nil {
			return err
		}
		fault.KillPoint("rewind written")
		return nil
	})
	if err != nil {
		return w.present(err, "rewind", nil)
	}
	w.mu.Lock()
	w.applied = r.Mark.Position
	w.durables.restart()
	w.undo.turn++
	w.mu.Unlock()
	fault.KillPoint("rewound")
	if err := s.settle(ctx); err != nil {
		return w.explain(err, "wait for the destination's disk", nil)
	}
	// To drop a table commits: it comes last, and whoever comes next finishes it.
	if err := w.dropHeld(ctx, s); err != nil {
		w.cfg.Logger.Debug("what was kept stays until points are dropped", "error", w.explain(err, "drop what was kept", nil))
	}
	return nil
}

func (w *Writer) rewind(ctx context.Context, s *session, epoch int64, r sink.Rewind, shapes []*shape) error {
	pipeline := w.cfg.Pipeline
	if err := w.fence(ctx, s, epoch); err != nil {
		return err
	}
	if _, err := s.query(ctx, bind(lockPointsSQL, pipeline)); err != nil {
		return err
	}
	p, err := w.choice(ctx, s, pipeline, r.To, bind(pointsSQL+" AND number = ?", pipeline, r.To))
	if err != nil {
		return err
	}
	type kept struct{ rows, records []*held }
	found := make([]kept, len(shapes))
	for i, sh := range shapes { // all are looked at before anything happens
		if found[i].rows, found[i].records, err = w.keptOf(ctx, s, pipeline, sh, sh.target.Name, r.To); err != nil {
			return err
		}
	}
	statements := []string{}
	for i, sh := range shapes {
		if err := sh.restoreFed(ctx, s, r.Mark.Position, found[i].rows); err != nil {
			return err
		}
		if err := sh.restoreRecords(ctx, s, found[i].records); err != nil {
			return err
		}
		name := sh.target.Name
		statements = append(statements,
			bind("UPDATE _tailrace.undo SET dropped = 1 WHERE pipeline = ? AND target_schema = ? AND target_table = ? AND number >= ?", pipeline, name.Schema, name.Table, r.To),
			bind(asidesAfterSQL, pipeline, name.Schema, name.Table, p.aside),
			bind(unresolveSQL, pipeline, name.Schema, name.Table, r.To),
			bind(forgetTargetsSQL, pipeline, name.Schema, name.Table))
		if sh.target.Sequenced {
			statements = append(statements, w.headAgain(p, sh.target, w.qualified(name))...)
		}
	}
	statements = append(statements, bind(forgetAsidesSQL, pipeline, r.To))
	for _, sql := range statements {
		if _, err := s.exec(ctx, sql); err != nil {
			return err
		}
	}
	met := slices.DeleteFunc(slices.Clone(p.memory.Violations), func(v sink.Violation) bool {
		return !slices.ContainsFunc(r.Targets, func(t *scd.Target) bool { return t.Name == v.Target })
	})
	if err := w.setAside(ctx, s, nil, met); err != nil {
		return err
	}
	for _, rel := range r.Relations {
		for _, sql := range []string{untakeSQL, retakeSQL, forgetKeptFiles} {
			if _, err := s.exec(ctx, bind(sql, pipeline, rel.Schema, rel.Table, r.To)); err != nil {
				return err
			}
		}
	}
	if err := w.save(ctx, s, epoch, r.Mark); err != nil {
		return err
	}
	for _, sql := range []string{
		bind(savePlaceSQL, checkpoint.PlaceText(r.Mark.Position, r.Mark.Resume), r.Mark.CommitTime, pipeline),
		bind(pointsBehindGone, pipeline, r.To),
	} {
		if _, err := s.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// choice reads a point that can be gone back to.
func (w *Writer) choice(ctx context.Context, s *session, pipeline string, number int64, sql string) (p point, err error) {
	rows, err := s.query(ctx, sql)
	if err != nil {
		return p, err
	}
	const remedy = "tailrace checkpoint list -- and choose one of those"
	if len(rows) == 0 {
		return p, fault.Refuse(remedy, "pipeline %s has no rewind point %d", pipeline, number)
	}
	if p, err = readPoint(pipeline, rows[0]); err == nil && p.Gone {
		err = fault.Refuse(remedy, "pipeline %s was rewound to before its rewind point %d", pipeline, number)
	}
	return p, err
}

// headAgain gives a target the head and the counts that another, or it, had at a point.
func (w *Writer) headAgain(p point, t *scd.Target, of change.Name) []string {
	for _, h := range p.memory.Heads {
		if h.Target != of {
			continue
		}
		out := []string{w.of(setHeadSQL, t, h.TruncatedSeq, h.TruncatedAt, h.Horizon), w.of(resetCountsSQL, t)}
		if len(h.Counts) == 7 {
			n := w.qualified(t.Name)
			args := []any{w.cfg.Pipeline, n.Schema, n.Table}
			for _, c := range h.Counts {
				args = append(args, c)
			}
			out = append(out, bind(countSQL, args...))
		}
		return out
	}
	return nil
}

// run runs statements about the shape's target.
func (sh *shape) run(ctx context.Context, s *session, doing string, statements ...string) error {
	for _, sql := range statements {
		if _, err := s.exec(ctx, sql); err != nil {
			return &jobError{doing, sh, err}
		}
	}
	return nil
}

const restoring = "restore rows of"

// restoreFed restores a target's rows, and writes the differences into its feed.
func (sh *shape) restoreFed(ctx context.Context, s *session, at change.Position, tables []*held) error {
	switch {
	case len(tables) == 0:
		return nil
	case len(sh.keys) == 0:
		return sh.restoreCounted(ctx, s, at, tables)
	case sh.feed == nil:
		return sh.restore(ctx, s, tables)
	}
	const doing = "write the change feed of"
	noted := *sh
	if sh.holds() == heldNewest { // it gets and loses versions, each of which is a change
		target := *sh.target
		target.Sequenced = true
		noted.target = &target
	}
	statements := []string{"DROP TEMPORARY TABLE IF EXISTS " + rewindNotes, noted.createImagesSQL(rewindNotes)}
	for _, k := range tables {
		statements = append(statements, noted.noteKeptSQL(k, rewindNotes))
	}
	if err := sh.run(ctx, s, doing, statements...); err != nil {
		return err
	}
	if err := sh.restore(ctx, s, tables); err != nil {
		return err
	}
	return sh.run(ctx, s, doing, noted.compareSQL(rewindNotes, at, time.Time{}), "DROP TEMPORARY TABLE "+rewindNotes)
}

// restore restores the rows of a target with a key. Of each key the earliest table counts.
func (sh *shape) restore(ctx context.Context, s *session, tables []*held) error {
	whole := len(sh.uniques) > 0
	if whole {
		for _, k := range tables {
			if err := sh.run(ctx, s, restoring, sh.removeSQL(k, "", nil, true)); err != nil {
				return err
			}
		}
	}
	return sh.eachKept(ctx, s, tables, func(k, names *held) []string {
		if whole {
			return []string{sh.restoreSQL(k, doneTable, names)}
		}
		return []string{sh.removeSQL(k, doneTable, names, false), sh.restoreSQL(k, doneTable, names)}
	})
}

func (sh *shape) restoreRecords(ctx context.Context, s *session, tables []*held) error {
	return sh.eachKept(ctx, s, tables, func(k, names *held) []string {
		return []string{sh.removeRecordsSQL(k, doneTable, names), sh.restoreRecordsSQL(k, doneTable, names)}
	})
}

// eachKept runs statements for each table, and keeps account of what was done by earlier
// ones, in a table made with the columns of names.
func (sh *shape) eachKept(ctx context.Context, s *session, tables []*held, statements func(k, names *held) []string) error {
	for i, k := range tables {
		var names *held
		if i > 0 {
			names = tables[0]
		}
		if err := sh.run(ctx, s, restoring, statements(k, names)...); err != nil {
			return err
		}
		var account []string
		if i == 0 && len(tables) > 1 {
			account = append(account, "DROP TEMPORARY TABLE IF EXISTS "+doneTable, k.createDoneSQL(doneTable))
		}
		if i < len(tables)-1 {
			account = append(account, k.addDoneSQL(doneTable, tables[0]))
		}
		if err := sh.run(ctx, s, restoring, account...); err != nil {
			return err
		}
	}
	if len(tables) > 1 {
		return sh.run(ctx, s, restoring, "DROP TEMPORARY TABLE "+doneTable)
	}
	return nil
}

// restoreCounted takes back what came to a target without a key and brings what went.
// Equal rows are counted: which of them goes is no matter.
func (sh *shape) restoreCounted(ctx context.Context, s *session, at change.Position, tables []*held) error {
	columns := sh.list(all, named)
	statements := []string{"DROP TEMPORARY TABLE IF EXISTS " + netTable + ", " + surplusTable, createNetSQL, sh.createSurplusSQL()}
	for _, k := range tables {
		statements = append(statements, sh.addNetSQL(k))
	}
	if sh.feed != nil {
		statements = append(statements, sh.intoFeedFrom(sink.FeedDelete, at, sh.alike()+" WHERE x.number <= x.n"))
	}
	back := sh.back(tables) + " WHERE x.number <= -x.n"
	statements = append(statements,
		"INSERT INTO "+surplusTable+" SELECT "+sh.numbered("x.")+" FROM "+sh.alike()+" WHERE x.number > x.n",
		"DELETE t FROM "+sh.name+" AS t STRAIGHT_JOIN "+netTable+" AS d ON d.h = "+sh.rowHash(func(c *column) string { return "t." + c.name })+" WHERE d.n > 0",
		"INSERT INTO "+sh.name+" ("+columns+") SELECT "+sh.numbered("")+" FROM "+surplusTable,
		"INSERT INTO "+sh.name+" ("+columns+") SELECT "+sh.numbered("x.")+" FROM "+back)
	if sh.feed != nil {
		statements = append(statements, sh.intoFeedFrom(sink.FeedInsert, at, back))
	}
	return sh.run(ctx, s, restoring, append(statements, "DROP TEMPORARY TABLE "+netTable+", "+surplusTable)...)
}

// Recall implements sink.Rewinds.
//
// The other pipeline goes on meanwhile. That is no harm, because what is kept does not
// change: the rows are read first, and then what is kept, which says how it was of all
// that had been touched, before the reading or since. The point is held, so that nothing
// that is kept for it goes. Rows without a key are not told apart, and so they and what is
// kept of them are read in one statement, which sees one moment.
func (w *Writer) Recall(ctx context.Context, t *scd.Target, of sink.Past, done checkpoint.Table) (rows int64, err error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	if err := s.choose(ctx); err != nil {
		return 0, w.explain(err, "recall", nil)
	}
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return 0, err
	}
	from, err := w.shapeOf(ctx, s, of.Target)
	if err != nil {
		return 0, err
	}
	if err := w.fence(ctx, s, epoch); err != nil { // again at the end: a batch waits for it
		return 0, err
	}
	err = within(ctx, s, func() error {
		p, err := w.choice(ctx, s, of.Pipeline, of.Point, bind(holdPointSQL, of.Pipeline, of.Point))
		if err != nil {
			return err
		}
		if len(sh.keys) == 0 {
			err = w.recallCounted(ctx, s, sh, from, of)
		} else {
			err = w.recall(ctx, s, sh, from, of, p)
		}
		if err != nil {
			return err
		}
		counted, err := s.query(ctx, "SELECT COUNT(*) FROM "+sh.name)
		if err != nil {
			return err
		}
		rows = num(counted[0][0])
		if sh.feed != nil {
			if err := sh.run(ctx, s, "write the change feed of", sh.newSQL(sink.FeedInsert, "", done.Since)); err != nil {
				return err
			}
		}
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if err := w.barrier(ctx, s, t.Name, filledAnew); err != nil {
			return err
		}
		return saveTable(ctx, s, w.cfg.Pipeline, done)
	})
	if err == nil {
		err = s.settle(ctx)
	}
	if err != nil {
		return 0, w.present(err, "recall", sh)
	}
	return rows, nil
}

// recall fills a target with a key, and what is remembered of it.
func (w *Writer) recall(ctx context.Context, s *session, sh, from *shape, of sink.Past, p point) error {
	const doing = "recall rows of"
	both := func(c *column) bool { return !from.lacks(c) }
	columns := sh.list(both, named)
	if sh.target.Kind == scd.Type2 {
		columns += ", " + startColumn + ", " + endColumn
	}
	if err := sh.run(ctx, s, doing, "INSERT INTO "+sh.name+" ("+columns+") SELECT "+columns+" FROM "+from.name); err != nil {
		return err
	}
	remembered := sh.target.Sequenced && of.Target.Sequenced
	if remembered {
		theirs := recordsTable(recordsName(of.Pipeline, w.qualified(of.Target.Name)))
		if err := sh.run(ctx, s, doing, "INSERT INTO "+sh.records+" ("+recordColumns+") SELECT "+recordColumns+" FROM "+theirs); err != nil {
			return err
		}
	}
	rows, records, err := w.keptOf(ctx, s, of.Pipeline, sh, of.Target.Name, of.Point)
	if err != nil {
		return err
	}
	if err := sh.restore(ctx, s, rows); err != nil {
		return err
	}
	if !remembered {
		return nil
	}
	if err := sh.restoreRecords(ctx, s, records); err != nil {
		return err
	}
	return sh.run(ctx, s, doing, w.headAgain(p, sh.target, w.qualified(of.Target.Name))...)
}

// recallTries is how often rows without a key are read: again only where the other
// pipeline has made a table for them meanwhile, which it does once for each of its points.
const recallTries = 3

// recallCounted fills a target without a key.
func (w *Writer) recallCounted(ctx context.Context, s *session, sh, from *shape, of sink.Past) error {
	const doing = "recall rows of"
	all := &held{target: sh.target.Name, holds: heldRows, layout: sh.heldLayout(), place: recalledTable}
	columns := sh.list(func(c *column) bool { return !from.lacks(c) }, named)
	names := sh.list(func(c *column) bool { return !from.lacks(c) }, all.column)
	for try := 1; ; try++ {
		tables, _, err := w.keptOf(ctx, s, of.Pipeline, sh, of.Target.Name, of.Point)
		if err != nil {
			return err
		}
		parts := []string{"SELECT 0 AS came, " + columns + " FROM " + from.name}
		for _, k := range tables {
			parts = append(parts, "SELECT came, "+sh.list(func(c *column) bool { return !from.lacks(c) }, func(c *column) string {
				if name := k.column(c); name != "" {
					return name
				}
				return "NULL"
			})+" FROM "+k.table())
		}
		err = sh.run(ctx, s, doing, "DROP TEMPORARY TABLE IF EXISTS "+recalledTable, all.createSQL("TEMPORARY TABLE"),
			"INSERT INTO "+recalledTable+" (came"+joined(names)+") "+strings.Join(parts, " UNION ALL "))
		if err != nil {
			return err
		}
		again, _, err := w.keptOf(ctx, s, of.Pipeline, sh, of.Target.Name, of.Point)
		if err != nil {
			return err
		}
		if len(again) == len(tables) {
			break
		}
		if try == recallTries {
			return fault.Retry(nil, "pipeline %s makes rewind points faster than its rows can be read", of.Pipeline)
		}
	}
	err := sh.run(ctx, s, doing, "INSERT INTO "+sh.name+" ("+columns+") SELECT "+names+" FROM "+recalledTable+" WHERE came = 0 ORDER BY n")
	if err != nil {
		return err
	}
	plain := *sh
	plain.feed = nil // it gets all rows at the end
	if err := plain.restoreCounted(ctx, s, change.Position{}, []*held{all}); err != nil {
		return err
	}
	return sh.run(ctx, s, doing, "DROP TEMPORARY TABLE "+recalledTable)
}
