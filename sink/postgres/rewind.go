package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// rewinding is a transaction that brings back what was kept.
type rewinding struct {
	w       *Writer
	s       *session
	to      int64
	entries []entry
	made    int // temporary tables
}

// restoreSettings are for statements that read whole tables.
const restoreSettings = "SET work_mem = '64MB'; SET temp_buffers = '64MB';"

// Rewind implements sink.Rewinds.
func (w *Writer) Rewind(ctx context.Context, r sink.Rewind) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx, restoreSettings)
	if err != nil {
		return err
	}
	defer s.close(ctx) // also what takes an unfinished transaction back
	w.mayReplicate(ctx, s)
	doing := fmt.Sprintf("rewind to point %d", r.To)
	if err := w.rewind(ctx, s, epoch, r); err != nil {
		return w.explain(ctx, err, doing, nil)
	}
	for _, t := range r.Targets {
		delete(w.apply.known, t.Name)
	}
	w.mark.Lock()
	w.mark.place = ""
	w.mark.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeping.turn++
	w.applied = r.Mark.Position
	w.durables.restart()
	return nil
}

func (w *Writer) rewind(ctx context.Context, s *session, epoch int64, r sink.Rewind) error {
	if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
		return err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return err
	}
	if err := w.holdMark(ctx, s); err != nil {
		return err
	}
	if err := w.choice(ctx, s, w.cfg.Pipeline, r.To); err != nil {
		return err
	}
	re := rewinding{w: w, s: s, to: r.To}
	var err error
	if re.entries, err = readUndo(ctx, s, w.cfg.Pipeline, r.To); err != nil {
		return err
	}
	for _, t := range r.Targets {
		if err := re.admit(w.qualified(t.Name)); err != nil {
			return err
		}
	}
	for _, t := range r.Targets {
		if err := re.target(ctx, t, r.Mark.Position); err != nil {
			return w.explain(ctx, err, fmt.Sprintf("rewind table %s", t.Name), nil)
		}
	}
	if err := re.relations(ctx, r.Relations); err != nil {
		return err
	}
	if err := re.saveMark(ctx, epoch, r.Mark); err != nil {
		return err
	}
	fault.KillPoint("rewound")
	return s.exec(ctx, "COMMIT")
}

// choice demands that a point is there and not gone.
func (w *Writer) choice(ctx context.Context, s *session, pipeline string, number int64) error {
	rows, err := s.query(ctx, "SELECT state FROM _tailrace.points WHERE pipeline = $1 AND number = $2::bigint AND state <> 'dropped'", pipeline, number)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fault.Refuse("choose one that tailrace checkpoint list shows", "pipeline %s has no rewind point %d", pipeline, number)
	}
	if str(rows[0][0]) != "" {
		return fault.Refuse("choose one that tailrace checkpoint list shows", "rewind point %d is gone: the pipeline was rewound to an earlier one", number)
	}
	return nil
}

// admit refuses a target with a barrier.
func (re *rewinding) admit(n change.Name) error {
	for _, e := range re.entries {
		if e.target == n && e.kind == "barrier" {
			return fault.Refuse("rewind the other targets: leave this one out", "table %s cannot be brought back to rewind point %d: %s", n, re.to, e.reason)
		}
	}
	return nil
}

// of are the tables of what is kept of a target, lowest number first.
func (re *rewinding) of(n change.Name, kind string) (tables []string) {
	for _, e := range re.entries {
		if e.target == n && e.kind == kind {
			tables = append(tables, e.table)
		}
	}
	return tables
}

// target brings one target back.
func (re *rewinding) target(ctx context.Context, t *scd.Target, at change.Position) error {
	n := re.w.qualified(t.Name)
	sh, err := re.w.shapeOf(ctx, re.s, t)
	if err != nil {
		return err
	}
	if tables := re.of(n, "rows"); len(tables) > 0 {
		if len(sh.keys) == 0 {
			err = re.appended(ctx, sh, tables, at)
		} else {
			err = re.rows(ctx, sh, tables, at)
		}
		if err != nil {
			return err
		}
	}
	if tables := re.of(n, "records"); len(tables) > 0 && t.Sequenced {
		state, err := re.records(ctx, tables, true)
		if err != nil {
			return err
		}
		if err := re.exec(ctx, restoreRecordsSQL(sh.records, state)...); err != nil {
			return err
		}
	}
	return re.beside(ctx, n)
}

func (re *rewinding) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if err := re.s.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// rows brings the rows of a target with a key back.
func (re *rewinding) rows(ctx context.Context, sh *shape, tables []string, at change.Position) error {
	state, err := re.state(ctx, sh, tables, sh.keptColumns(), true, true)
	if err != nil {
		return err
	}
	if sh.feed == nil {
		return re.exec(ctx, sh.restoreSQL(state)...)
	}
	// Versions come and go by their start, whatever the target's lane is.
	fed, target := *sh, *sh.target
	target.Sequenced = true
	fed.target = &target
	notes := re.temporary()
	if err := re.exec(ctx, fed.createNotesSQL(notes, true)); err != nil {
		return err
	}
	if err := re.exec(ctx, sh.touchedSQL(&fed, notes, state)...); err != nil {
		return err
	}
	if err := re.exec(ctx, "ANALYZE "+notes); err != nil {
		return err
	}
	if err := re.exec(ctx, sh.restoreSQL(state)...); err != nil {
		return err
	}
	return re.s.conn.ExecParams(ctx, fed.feedSQL(notes, true), feedParams(at, time.Time{}), nil, nil, nil).Read().Err
}

// appended brings the rows of a target without a key back.
func (re *rewinding) appended(ctx context.Context, sh *shape, tables []string, at change.Position) error {
	state, err := re.state(ctx, sh, tables, sh.keptColumns(), false, true)
	if err != nil {
		return err
	}
	net := re.temporary()
	if err := re.exec(ctx, sh.netSQL(net, state), "ANALYZE "+net); err != nil {
		return err
	}
	rows, err := re.s.query(ctx, "SELECT coalesce(sum(-n) FILTER (WHERE n < 0), 0) FROM "+net)
	if err != nil {
		return err
	}
	want := num(rows[0][0])
	run := func(sql, kind string) (int64, error) {
		if sh.feed == nil {
			res := re.s.conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
			return res.CommandTag.RowsAffected(), res.Err
		}
		returning := "t."
		if kind == sink.FeedInsert {
			returning = ""
		}
		sql = fmt.Sprintf("WITH f AS (%s RETURNING %s) %s FROM f", sql, prefixed(returning, fedColumns(sh.target)), sh.intoFeed("'"+kind+"'", qualifiedBy("f.", fedColumns(sh.target))))
		res := re.s.conn.ExecParams(ctx, sql, feedParams(at, time.Time{}), nil, nil, nil).Read()
		return res.CommandTag.RowsAffected(), res.Err
	}
	if want > 0 {
		gone, err := run(sh.leaveSQL(net), sink.FeedDelete)
		if err != nil {
			return err
		}
		if gone != want {
			return fault.Corrupted("%s: %d rows came since rewind point %d, of which only %d are there", sh.label(), want, re.to, gone)
		}
	}
	_, err = run(sh.comeSQL(net, state), sink.FeedInsert)
	return err
}

func (re *rewinding) temporary() string {
	re.made++
	return "pg_temp." + quote(fmt.Sprintf("tailrace_undo_%d", re.made))
}

// state makes one table of what is kept of a target: of a key the row with the lowest
// number. columns are those that it has, in the types that they have in the target; where
// one was not kept it has its default.
func (re *rewinding) state(ctx context.Context, sh *shape, tables []string, columns []string, keyed, ours bool) (string, error) {
	own, err := re.w.readRelation(ctx, re.s, re.w.qualified(sh.target.Name))
	if err != nil || own == nil {
		return "", err
	}
	kept := make([]*relation, len(tables))
	for i, table := range tables {
		name := strings.TrimSuffix(strings.TrimPrefix(table, `_tailrace."`), `"`)
		if kept[i], err = re.w.readRelation(ctx, re.s, change.Name{Schema: "_tailrace", Table: name}); err != nil {
			return "", err
		}
		if kept[i] == nil {
			return "", fault.Corrupted("%s: table %s, which keeps its old rows, is not there", sh.label(), table)
		}
	}
	fits := !slices.ContainsFunc(columns, func(c string) bool { return kept[0].columns[c].typ != own.columns[c].typ })
	if ours { // another pipeline is not to wait behind it
		if err := re.exec(ctx, "ANALYZE "+strings.Join(tables, ", ")); err != nil {
			return "", err
		}
	}
	if len(tables) == 1 && fits {
		return tables[0], nil
	}
	defaults := map[string]string{}
	if keyed {
		rows, err := re.s.query(ctx, "SELECT a.attname, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute AS a JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attrelid = $1::oid AND a.attgenerated = '' AND a.attidentity = ''", own.oid)
		if err != nil {
			return "", err
		}
		for _, r := range rows {
			defaults[str(r[0])] = str(r[1])
		}
	}
	state := re.temporary()
	if err := re.exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT false AS %s, %s FROM %s AS t WITH NO DATA", state, wasColumn, prefixed("t.", quoted(columns)), sh.name)); err != nil {
		return "", err
	}
	for i, table := range tables {
		values := make([]string, len(columns))
		for c, name := range columns {
			switch a, ok := kept[i].columns[name]; {
			case !ok && defaults[name] != "":
				values[c] = "(" + defaults[name] + ")"
			case !ok:
				values[c] = "NULL"
			case a.typ != own.columns[name].typ:
				values[c] = fmt.Sprintf("t.%s::text::%s", quote(name), own.columns[name].typ)
			default:
				values[c] = "t." + quote(name)
			}
		}
		sql := fmt.Sprintf("INSERT INTO %s (%s, %s) SELECT t.%s, %s FROM %s AS t", state, wasColumn, strings.Join(quoted(columns), ", "), wasColumn, strings.Join(values, ", "), table)
		if keyed && i > 0 {
			sql += fmt.Sprintf(" WHERE NOT EXISTS (SELECT FROM %s AS e WHERE %s)", state, sh.onIdentity("e."))
		}
		if err := re.exec(ctx, sql, "ANALYZE "+state); err != nil {
			return "", err
		}
	}
	return state, nil
}

// records is state of records.
func (re *rewinding) records(ctx context.Context, tables []string, ours bool) (string, error) {
	if ours {
		if err := re.exec(ctx, "ANALYZE "+strings.Join(tables, ", ")); err != nil {
			return "", err
		}
	}
	if len(tables) == 1 {
		return tables[0], nil
	}
	state := re.temporary()
	if err := re.exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE %s ON COMMIT DROP AS SELECT * FROM %s WITH NO DATA", state, tables[0])); err != nil {
		return "", err
	}
	for _, table := range tables {
		sql := fmt.Sprintf("INSERT INTO %s SELECT * FROM %s AS k WHERE NOT EXISTS (SELECT FROM %[1]s AS e WHERE e.key = k.key AND e.seq = k.seq AND e.at = k.at)", state, table)
		if err := re.exec(ctx, sql, "ANALYZE "+state); err != nil {
			return "", err
		}
	}
	return state, nil
}

// beside brings back what stands of a target in the bookkeeping, and drops what is kept.
func (re *rewinding) beside(ctx context.Context, n change.Name) error {
	for _, sql := range besideSQL {
		if _, err := re.s.query(ctx, strings.ReplaceAll(sql, "#", fmt.Sprint(re.to)), re.w.cfg.Pipeline, n.Schema, n.Table); err != nil {
			return err
		}
	}
	rows, err := re.s.query(ctx, `DELETE FROM _tailrace.undo WHERE pipeline = $1 AND number >= $2::bigint AND target_schema = $3 AND target_table = $4 RETURNING name`, re.w.cfg.Pipeline, re.to, n.Schema, n.Table)
	if err != nil {
		return err
	}
	return dropKept(ctx, re.s, rows)
}

// besideSQL are statements about a target, $1 to $3, and a point, #.
var besideSQL = []string{
	"DELETE FROM _tailrace.violations WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3",
	"INSERT INTO _tailrace.violations SELECT r.* FROM _tailrace.points AS p CROSS JOIN LATERAL jsonb_populate_recordset(NULL::_tailrace.violations, p.violations) AS r WHERE p.pipeline = $1 AND p.number = # AND r.target_schema = $2 AND r.target_table = $3",
	"DELETE FROM _tailrace.counts WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3",
	"INSERT INTO _tailrace.counts SELECT r.* FROM _tailrace.points AS p CROSS JOIN LATERAL jsonb_populate_recordset(NULL::_tailrace.counts, p.counts) AS r WHERE p.pipeline = $1 AND p.number = # AND r.target_schema = $2 AND r.target_table = $3",
	"UPDATE _tailrace.sequenced SET (truncated_seq, truncated_at, horizon) = (SELECT r.truncated_seq, r.truncated_at, r.horizon FROM _tailrace.points AS p CROSS JOIN LATERAL jsonb_populate_recordset(NULL::_tailrace.sequenced, p.heads) AS r WHERE p.pipeline = $1 AND p.number = # AND r.target_schema = $2 AND r.target_table = $3) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3",
	"DELETE FROM _tailrace.quarantine WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND id > (SELECT p.last_aside FROM _tailrace.points AS p WHERE p.pipeline = $1 AND p.number = #)",
	"UPDATE _tailrace.quarantine SET resolved = NULL WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND id IN (SELECT r.id FROM _tailrace.undo_resolved AS r WHERE r.pipeline = $1 AND r.number >= #)",
	"DELETE FROM _tailrace.undo_resolved AS r USING _tailrace.quarantine AS q WHERE r.pipeline = $1 AND r.number >= # AND q.id = r.id AND q.pipeline = $1 AND q.target_schema = $2 AND q.target_table = $3",
}

// relations brings back which files were taken of relations.
func (re *rewinding) relations(ctx context.Context, list []change.Name) error {
	const kept = `(SELECT DISTINCT ON (path) * FROM _tailrace.undo_files WHERE pipeline = $1 AND number >= $2::bigint AND relation_schema = $3 AND relation_table = $4 ORDER BY path, number)`
	for _, n := range list {
		for _, sql := range []string{
			`DELETE FROM _tailrace.files AS f USING ` + kept + ` AS k WHERE f.pipeline = $1 AND f.relation_schema = $3 AND f.relation_table = $4 AND f.path = k.path`,
			`INSERT INTO _tailrace.files (pipeline, relation_schema, relation_table, path, size, modified, checksum, rows) SELECT k.pipeline, k.relation_schema, k.relation_table, k.path, k.size, k.modified, k.checksum, k.rows FROM ` + kept + ` AS k WHERE k.was`,
			`DELETE FROM _tailrace.undo_files WHERE pipeline = $1 AND number >= $2::bigint AND relation_schema = $3 AND relation_table = $4`,
		} {
			if _, err := re.s.query(ctx, sql, re.w.cfg.Pipeline, re.to, n.Schema, n.Table); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveMark writes the mark as it is given, also an earlier one, and makes the points behind
// the restored one gone.
func (re *rewinding) saveMark(ctx context.Context, epoch int64, m checkpoint.Mark) error {
	rows, err := re.s.query(ctx, `UPDATE _tailrace.marks SET phase = $3, position = $4, commit_time = $5::timestamptz, slot = $6, source_system = $7, source_timeline = $8::bigint, source_database = $9 WHERE pipeline = $1 AND epoch = $2::bigint RETURNING 1`,
		re.w.cfg.Pipeline, epoch, m.Phase, checkpoint.PlaceText(m.Position, m.Resume), instantOf(m.CommitTime), m.Slot, m.Source.System, m.Source.Timeline, m.Source.Database)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fault.ErrFenced
	}
	for _, t := range m.Tables {
		if err := saveTable(ctx, re.s, re.w.cfg.Pipeline, t); err != nil {
			return err
		}
	}
	for _, f := range m.Flows {
		if err := saveFlow(ctx, re.s, re.w.cfg.Pipeline, f); err != nil {
			return err
		}
	}
	_, err = re.s.query(ctx, "UPDATE _tailrace.points SET state = 'gone' WHERE pipeline = $1 AND number > $2::bigint AND state = ''", re.w.cfg.Pipeline, re.to)
	return err
}

// Recall implements sink.Rewinds.
func (w *Writer) Recall(ctx context.Context, t *scd.Target, of sink.Past, done checkpoint.Table) (int64, error) {
	epoch, err := w.owned()
	if err != nil {
		return 0, err
	}
	s, err := w.connect(ctx, restoreSettings)
	if err != nil {
		return 0, err
	}
	defer s.close(ctx) // also what takes an unfinished transaction back
	w.mayReplicate(ctx, s)
	n, err := w.recall(ctx, s, epoch, t, of, done)
	return n, w.explain(ctx, err, fmt.Sprintf("recall table %s as of rewind point %d", of.Target.Name, of.Point), nil)
}

// recallTries is how often the locks are taken again because the other pipeline has begun
// to keep more, or has dropped something: both happen once a point.
const recallTries = 5

func (w *Writer) recall(ctx context.Context, s *session, epoch int64, t *scd.Target, of sink.Past, done checkpoint.Table) (int64, error) {
	re := rewinding{w: w, s: s, to: of.Point}
	for try := 1; ; try++ {
		err := re.hold(ctx, of)
		if err == nil {
			break
		}
		if try == recallTries || err != errMoved {
			return 0, err
		}
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return 0, err
	}
	if err := w.choice(ctx, s, of.Pipeline, of.Point); err != nil {
		return 0, err
	}
	other := w.qualified(of.Target.Name)
	if err := re.admit(other); err != nil {
		return 0, err
	}
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return 0, err
	}
	from, err := w.shapeOf(ctx, s, of.Target)
	if err != nil {
		return 0, err
	}
	var rows int64
	err = sh.fedBy(ctx, s, done.Since, func() error {
		rows, err = re.recallRows(ctx, sh, from)
		return err
	})
	if err != nil {
		return 0, err
	}
	if t.Sequenced && of.Target.Sequenced {
		if err := re.recallMemory(ctx, sh, of, other); err != nil {
			return 0, err
		}
	}
	if err := sh.ensureKey(ctx, s, w); err != nil {
		return 0, err
	}
	if err := w.barrier(ctx, s, t.Name, "it was filled with what another target was"); err != nil {
		return 0, err
	}
	if err := saveTable(ctx, s, w.cfg.Pipeline, done); err != nil {
		return 0, err
	}
	return rows, s.exec(ctx, "COMMIT")
}

var errMoved = fault.Retry(nil, "the other pipeline has changed what it keeps for its rewind points")

// hold begins a transaction that sees one moment of another pipeline's target. What it reads
// is locked before, since neither TRUNCATE nor DROP minds who sees an earlier moment.
func (re *rewinding) hold(ctx context.Context, of sink.Past) error {
	n := re.w.qualified(of.Target.Name)
	read := func() (tables []string, err error) {
		re.entries, err = readUndo(ctx, re.s, of.Pipeline, of.Point)
		tables = []string{qualifiedName(n)}
		if of.Target.Sequenced {
			tables = append(tables, recordsTable(recordsName(of.Pipeline, n)))
		}
		return append(append(tables, re.of(n, "rows")...), re.of(n, "records")...), err
	}
	before, err := read()
	if err != nil {
		return err
	}
	err = re.exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SET LOCAL synchronous_commit = local", "LOCK TABLE "+strings.Join(before, ", ")+" IN ACCESS SHARE MODE")
	var after []string
	if err == nil {
		after, err = read()
	}
	if err == nil && slices.Equal(before, after) {
		return nil
	}
	if err != nil && stateOf(err) != undefinedTable {
		return err
	}
	if err := re.s.exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	return errMoved
}

// recallRows fills the target with what another was.
func (re *rewinding) recallRows(ctx context.Context, sh, from *shape) (int64, error) {
	theirs := from.keptColumns()
	columns := slices.DeleteFunc(sh.keptColumns(), func(c string) bool { return !slices.Contains(theirs, c) })
	n := re.w.qualified(from.target.Name)
	keyed := len(from.keys) > 0
	state, net := "", ""
	if tables := re.of(n, "rows"); len(tables) > 0 {
		var err error
		if state, err = re.state(ctx, from, tables, theirs, keyed, false); err != nil {
			return 0, err
		}
	}
	if state != "" && !keyed {
		net = re.temporary()
		if err := re.exec(ctx, from.netSQL(net, state), "ANALYZE "+net); err != nil {
			return 0, err
		}
	}
	var rows int64
	for _, sql := range sh.recallSQL(from, state, net, columns) {
		res := re.s.conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		if res.Err != nil {
			return 0, res.Err
		}
		rows += res.CommandTag.RowsAffected()
	}
	return rows, nil
}

// recallMemory fills what is remembered of the target with what was of another.
func (re *rewinding) recallMemory(ctx context.Context, sh *shape, of sink.Past, other change.Name) error {
	theirs := recordsTable(recordsName(of.Pipeline, other))
	statements := []string{fmt.Sprintf("INSERT INTO %s (%s) SELECT %[2]s FROM %s", sh.records, recordColumns, theirs)}
	if tables := re.of(other, "records"); len(tables) > 0 {
		state, err := re.records(ctx, tables, false)
		if err != nil {
			return err
		}
		statements[0] += fmt.Sprintf(" AS h WHERE NOT EXISTS (SELECT FROM %s AS e WHERE e.key = h.key AND e.seq = h.seq AND e.at = h.at)", state)
		statements = append(statements, fmt.Sprintf("INSERT INTO %s (%s) SELECT %[2]s FROM %s WHERE %s", sh.records, recordColumns, state, wasColumn))
	}
	if err := re.exec(ctx, statements...); err != nil {
		return err
	}
	n := re.w.qualified(sh.target.Name)
	for _, sql := range []string{
		`UPDATE _tailrace.sequenced SET (truncated_seq, truncated_at, horizon) = (SELECT r.truncated_seq, r.truncated_at, r.horizon FROM _tailrace.points AS p CROSS JOIN LATERAL jsonb_populate_recordset(NULL::_tailrace.sequenced, p.heads) AS r
WHERE p.pipeline = $4 AND p.number = $5::bigint AND r.target_schema = $6 AND r.target_table = $7) WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`,
		`INSERT INTO _tailrace.counts SELECT $1, $2, $3, r.duplicates, r.late, r.ties, r.truncated, r.beyond, r.unknown, r.forgotten FROM _tailrace.points AS p CROSS JOIN LATERAL jsonb_populate_recordset(NULL::_tailrace.counts, p.counts) AS r
WHERE p.pipeline = $4 AND p.number = $5::bigint AND r.target_schema = $6 AND r.target_table = $7`,
	} {
		if _, err := re.s.query(ctx, sql, re.w.cfg.Pipeline, n.Schema, n.Table, of.Pipeline, of.Point, other.Schema, other.Table); err != nil {
			return err
		}
	}
	return nil
}
