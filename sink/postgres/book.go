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
)

// The bookkeeping: schema _tailrace, one row of marks and at most one of owners
// for each pipeline, one of tables for each of its targets, one of flows for each flow
// into a target with a user's sequence; made lists the targets that we created, feeds the
// tables of change feeds.
// sequenced names, of each target with a user's sequence, the table of its records, and
// holds its head; counts are what was counted of its events, a row from the first such
// event on; files are those that were taken (modified in ns since the Unix epoch),
// quarantine the events set aside, violations what expectations met, runs the newest runs of
// pipelines with a trigger, pauses the pipelines that are held, gaps
// what histories have crossed in one step, requests what the
// owners are asked (epoch: of the owner that took it; fault: the kind of a failed one's
// error). points and the undo tables are about rewind points (points.go).
const bookSQL = `
CREATE SCHEMA IF NOT EXISTS _tailrace;
CREATE TABLE IF NOT EXISTS _tailrace.marks (
  pipeline text PRIMARY KEY,
  epoch bigint NOT NULL,
  phase text NOT NULL DEFAULT '',
  position text NOT NULL DEFAULT '0/0',
  commit_time timestamptz,
  slot text NOT NULL DEFAULT '',
  source_system text NOT NULL DEFAULT '',
  source_timeline bigint NOT NULL DEFAULT 0,
  source_database text NOT NULL DEFAULT ''
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS _tailrace.owners (
  pipeline text PRIMARY KEY,
  epoch bigint NOT NULL,
  host text NOT NULL,
  boot_id text NOT NULL,
  pid bigint NOT NULL,
  started bigint NOT NULL,
  instance text NOT NULL,
  sessions text NOT NULL,
  heartbeat timestamptz NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS _tailrace.tables (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  source_schema text NOT NULL,
  source_table text NOT NULL,
  source_id bigint NOT NULL,
  phase text NOT NULL,
  since text NOT NULL,
  reason text NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table)
);
CREATE TABLE IF NOT EXISTS _tailrace.flows (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  flow text NOT NULL,
  number bigint NOT NULL,
  source_schema text NOT NULL,
  source_table text NOT NULL,
  source_id bigint NOT NULL,
  phase text NOT NULL,
  since text NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table, flow)
);
CREATE TABLE IF NOT EXISTS _tailrace.made (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  PRIMARY KEY (target_schema, target_table)
);
CREATE TABLE IF NOT EXISTS _tailrace.feeds (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  feed text NOT NULL PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS _tailrace.sequenced (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  records text NOT NULL,
  truncated_seq bytea,
  truncated_at bytea,
  horizon bytea,
  PRIMARY KEY (pipeline, target_schema, target_table)
);
CREATE TABLE IF NOT EXISTS _tailrace.counts (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  duplicates bigint NOT NULL DEFAULT 0,
  late bigint NOT NULL DEFAULT 0,
  ties bigint NOT NULL DEFAULT 0,
  truncated bigint NOT NULL DEFAULT 0,
  beyond bigint NOT NULL DEFAULT 0,
  unknown bigint NOT NULL DEFAULT 0,
  forgotten bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (pipeline, target_schema, target_table)
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS _tailrace.files (
  pipeline text NOT NULL,
  relation_schema text NOT NULL,
  relation_table text NOT NULL,
  path text NOT NULL,
  size bigint NOT NULL,
  modified bigint NOT NULL,
  checksum text NOT NULL,
  rows bigint NOT NULL,
  PRIMARY KEY (pipeline, relation_schema, relation_table, path)
);
CREATE TABLE IF NOT EXISTS _tailrace.quarantine (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pipeline text NOT NULL,
  flow text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  reason text NOT NULL,
  position text NOT NULL,
  at bytea NOT NULL,
  time timestamptz NOT NULL,
  event text NOT NULL,
  resolved timestamptz
);
CREATE TABLE IF NOT EXISTS _tailrace.violations (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  flow text NOT NULL,
  expectation text NOT NULL,
  met text NOT NULL,
  events bigint NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table, flow, expectation, met)
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS _tailrace.runs (
  pipeline text NOT NULL,
  number bigint NOT NULL,
  why text NOT NULL,
  started timestamptz NOT NULL,
  ended timestamptz,
  outcome text NOT NULL,
  position text NOT NULL,
  written bigint NOT NULL,
  error text NOT NULL,
  PRIMARY KEY (pipeline, number)
);
CREATE TABLE IF NOT EXISTS _tailrace.pauses (
  pipeline text PRIMARY KEY,
  since timestamptz NOT NULL,
  asked_by text NOT NULL
);
CREATE TABLE IF NOT EXISTS _tailrace.gaps (
  pipeline text NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  from_position text NOT NULL,
  to_position text NOT NULL,
  reason text NOT NULL,
  recorded timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS _tailrace.requests (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  pipeline text NOT NULL,
  kind text NOT NULL,
  argument text NOT NULL,
  asked timestamptz NOT NULL DEFAULT clock_timestamp(),
  asked_by text NOT NULL,
  state text NOT NULL DEFAULT 'asked',
  epoch bigint,
  outcome text NOT NULL DEFAULT '',
  fault integer NOT NULL DEFAULT 0,
  finished timestamptz
);
CREATE TABLE IF NOT EXISTS _tailrace.points (
  pipeline text NOT NULL,
  number bigint NOT NULL,
  label text NOT NULL,
  made timestamptz NOT NULL,
  state text NOT NULL,
  mark text NOT NULL,
  heads jsonb NOT NULL,
  counts jsonb NOT NULL,
  violations jsonb NOT NULL,
  last_aside bigint NOT NULL,
  PRIMARY KEY (pipeline, number)
);
CREATE TABLE IF NOT EXISTS _tailrace.undo (
  pipeline text NOT NULL,
  number bigint NOT NULL,
  target_schema text NOT NULL,
  target_table text NOT NULL,
  kind text NOT NULL,
  name text NOT NULL,
  keys text[] NOT NULL,
  reason text NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table, number, kind)
);
CREATE TABLE IF NOT EXISTS _tailrace.undo_files (
  pipeline text NOT NULL,
  number bigint NOT NULL,
  relation_schema text NOT NULL,
  relation_table text NOT NULL,
  path text NOT NULL,
  was boolean NOT NULL,
  size bigint,
  modified bigint,
  checksum text,
  rows bigint,
  PRIMARY KEY (pipeline, relation_schema, relation_table, path, number)
);
CREATE TABLE IF NOT EXISTS _tailrace.undo_resolved (
  pipeline text NOT NULL,
  number bigint NOT NULL,
  id bigint NOT NULL,
  PRIMARY KEY (pipeline, number, id)
);`

// bookTables are the tables that are there once, with a column pipeline in each.
var bookTables = []string{"marks", "owners", "tables", "flows", "made", "feeds", "sequenced", "counts", "files", "quarantine", "violations", "runs", "pauses", "gaps", "requests", "points", "undo", "undo_files", "undo_resolved"}

const (
	// The fences. A batch's UPDATE raises division_by_zero where the epoch is not
	// ours, so that it may travel in one round trip with rows and COMMIT. It finds
	// its row by ctid: while a long query of somebody holds back VACUUM, the index
	// would lead through every dead version of it.
	applyMarkSQL = `WITH u AS (UPDATE _tailrace.marks SET position = $1, commit_time = coalesce($2::timestamptz, commit_time) WHERE ctid = $3::tid AND pipeline = $4 AND epoch = $5::bigint RETURNING ctid)
SELECT (SELECT ctid FROM u), 1 / (SELECT count(*) FROM u)`
	markPlaceSQL = `SELECT ctid FROM _tailrace.marks WHERE pipeline = $1 AND epoch = $2::bigint`
	fenceSQL     = `SELECT FROM _tailrace.marks WHERE pipeline = $1 AND epoch = $2::bigint FOR SHARE`
	epochSQL     = `SELECT epoch FROM _tailrace.marks WHERE pipeline = $1`

	applyLiveSQL = `UPDATE _tailrace.tables SET phase = 'live' WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3`

	stateSQL  = `SELECT epoch, phase, position, extract(epoch FROM commit_time) * 1000000, slot, source_system, source_timeline, source_database FROM _tailrace.marks WHERE pipeline = $1`
	flowsSQL  = `SELECT target_schema, target_table, flow, number, source_schema, source_table, source_id, phase, since FROM _tailrace.flows WHERE pipeline = $1 ORDER BY target_schema, target_table, number`
	tablesSQL = `SELECT target_schema, target_table, source_schema, source_table, source_id, phase, since, reason FROM _tailrace.tables WHERE pipeline = $1 ORDER BY 1, 2`

	saveMarkSQL = `UPDATE _tailrace.marks SET phase = $3, position = CASE WHEN $4 = '0/0' THEN position ELSE $4 END, commit_time = CASE WHEN $4 = '0/0' THEN commit_time ELSE $5::timestamptz END, slot = $6, source_system = $7, source_timeline = $8::bigint, source_database = $9
WHERE pipeline = $1 AND epoch = $2::bigint RETURNING ctid`
	saveTableSQL = `INSERT INTO _tailrace.tables VALUES ($1, $2, $3, $4, $5, $6::bigint, $7, $8, $9)
ON CONFLICT (pipeline, target_schema, target_table) DO UPDATE SET source_schema = excluded.source_schema, source_table = excluded.source_table,
  source_id = excluded.source_id, phase = excluded.phase, since = excluded.since, reason = excluded.reason`
	saveFlowSQL = `INSERT INTO _tailrace.flows VALUES ($1, $2, $3, $4, $5::bigint, $6, $7, $8::bigint, $9, $10)
ON CONFLICT (pipeline, target_schema, target_table, flow) DO UPDATE SET number = excluded.number, source_schema = excluded.source_schema, source_table = excluded.source_table,
  source_id = excluded.source_id, phase = excluded.phase, since = excluded.since`
)

// sideSession gives the lasting small session; the caller holds w.side's lock. None of
// its statements may take long: the heartbeat waits behind them.
func (w *Writer) sideSession(ctx context.Context) (*session, error) {
	if w.side.session != nil && !w.side.conn.IsClosed() {
		return w.side.session, nil
	}
	s, err := w.connect(ctx, "")
	if err != nil {
		return nil, err
	}
	s.patience = sidePatience
	w.side.session = s
	return s, nil
}

// ensureBook makes the bookkeeping where it is missing. Looking first lets a user
// without the right to create schemas use what an administrator has made.
func ensureBook(ctx context.Context, s *session) error {
	there, err := bookTablesThere(ctx, s)
	if err != nil || len(there) == len(bookTables) {
		return err
	}
	// Two pipelines that start at once would collide in the catalogue.
	sql := fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d);%s COMMIT", lockNumber("", "book"), bookSQL)
	if err := s.exec(ctx, sql); err != nil {
		s.exec(ctx, "ROLLBACK")
		if stateOf(err) == notPermitted {
			who, e := s.query(ctx, "SELECT current_user, current_database(), to_regnamespace('_tailrace') IS NOT NULL")
			if e != nil {
				return e
			}
			if str(who[0][2]) == "t" {
				return fault.Refuse(grantBookSQL(str(who[0][0])), "user %s may not make tables in schema _tailrace, which hold the pipeline's position", str(who[0][0]))
			}
			return fault.Refuse(fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s;", quote(str(who[0][1])), quote(str(who[0][0]))),
				"user %s may not make schema _tailrace and its tables, which hold the pipeline's position", str(who[0][0]))
		}
		return err
	}
	return nil
}

func grantBookSQL(user string) string {
	return fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA _tailrace TO %s;", quote(user))
}

// bookTablesThere are those of bookTables that have been made: by an earlier version
// not all.
func bookTablesThere(ctx context.Context, s *session) ([]string, error) {
	rows, err := s.query(ctx, `SELECT n FROM unnest($1::text[]) AS n WHERE to_regclass('_tailrace.' || n) IS NOT NULL`, bookTables)
	var there []string
	for _, r := range rows {
		there = append(there, str(r[0]))
	}
	return there, err
}

// State reads the mark.
func (w *Writer) State(ctx context.Context) (checkpoint.Mark, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return checkpoint.Mark{}, err
	}
	m, err := w.readMark(ctx, s)
	return m, w.explain(ctx, err, "read the pipeline's mark", nil)
}

func (w *Writer) readMark(ctx context.Context, s *session) (m checkpoint.Mark, err error) {
	rows, err := s.query(ctx, stateSQL, w.cfg.Pipeline)
	if missingBook(err) {
		return m, nil
	}
	if err != nil || len(rows) == 0 {
		return m, err
	}
	r := rows[0]
	m.Epoch = num(r[0])
	m.Phase = checkpoint.Phase(str(r[1]))
	if m.Position, m.Resume, err = checkpoint.ParsePlace(str(r[2])); err != nil {
		return m, fault.Corrupted("the mark of pipeline %s: %v", w.cfg.Pipeline, err)
	}
	if r[3] != nil {
		whole, _, _ := strings.Cut(*r[3], ".")
		m.CommitTime = time.UnixMicro(num(&whole)).UTC()
	}
	m.Slot = str(r[4])
	m.Source = checkpoint.Identity{System: str(r[5]), Timeline: uint32(num(r[6])), Database: str(r[7])}
	if rows, err = s.query(ctx, tablesSQL, w.cfg.Pipeline); err != nil {
		return m, err
	}
	for _, r := range rows {
		t := checkpoint.Table{
			Target: change.Name{Schema: str(r[0]), Table: str(r[1])},
			Source: change.Name{Schema: str(r[2]), Table: str(r[3])},
			ID:     uint32(num(r[4])), Phase: checkpoint.Phase(str(r[5])), Reason: str(r[7]),
		}
		if t.Since, err = change.ParsePosition(str(r[6])); err != nil {
			return m, fault.Corrupted("the state of table %s: %v", t.Target, err)
		}
		m.Tables = append(m.Tables, t)
	}
	rows, err = s.query(ctx, flowsSQL, w.cfg.Pipeline)
	if missingBook(err) {
		return m, nil // an earlier version's bookkeeping
	}
	for _, r := range rows {
		f := checkpoint.Flow{
			Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, Name: str(r[2]), Order: uint16(num(r[3])),
			Source: change.Name{Schema: str(r[4]), Table: str(r[5])}, ID: uint32(num(r[6])), Phase: checkpoint.Phase(str(r[7])),
		}
		if f.Since, err = change.ParsePosition(str(r[8])); err != nil {
			return m, fault.Corrupted("the state of flow %s into table %s: %v", f.Name, f.Target, err)
		}
		m.Flows = append(m.Flows, f)
	}
	return m, err
}

// Save replaces the mark's head and the given tables, beside Apply if need be.
func (w *Writer) Save(ctx context.Context, m checkpoint.Mark) error {
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
	w.mark.Lock()
	defer w.mark.Unlock()
	if err := w.save(ctx, s, epoch, m); err != nil {
		w.mark.place = ""
		if !s.conn.IsClosed() {
			s.exec(ctx, "ROLLBACK")
		}
		return w.explain(ctx, err, "save the pipeline's mark", nil)
	}
	w.mu.Lock()
	if !m.Position.IsZero() {
		w.applied = m.Position
		w.durables.restart()
	}
	w.mu.Unlock()
	return nil
}

func (w *Writer) save(ctx context.Context, s *session, epoch int64, m checkpoint.Mark) error {
	if err := s.exec(ctx, "BEGIN; SET LOCAL synchronous_commit = local"); err != nil {
		return err
	}
	rows, err := s.query(ctx, saveMarkSQL, w.cfg.Pipeline, epoch, m.Phase, checkpoint.PlaceText(m.Position, m.Resume), instantOf(m.CommitTime), m.Slot, m.Source.System, m.Source.Timeline, m.Source.Database)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fault.ErrFenced
	}
	for _, t := range m.Tables {
		if err := saveTable(ctx, s, w.cfg.Pipeline, t); err != nil {
			return err
		}
	}
	for _, f := range m.Flows {
		if err := saveFlow(ctx, s, w.cfg.Pipeline, f); err != nil {
			return err
		}
	}
	w.mark.place = str(rows[0][0])
	return s.exec(ctx, "COMMIT")
}

// saveTable remembers a table's state; one without a phase is forgotten.
func saveTable(ctx context.Context, s *session, pipeline string, t checkpoint.Table) error {
	if t.Phase == checkpoint.None {
		_, err := s.query(ctx, "DELETE FROM _tailrace.tables WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3", pipeline, t.Target.Schema, t.Target.Table)
		return err
	}
	_, err := s.query(ctx, saveTableSQL, pipeline, t.Target.Schema, t.Target.Table, t.Source.Schema, t.Source.Table, t.ID, string(t.Phase), t.Since, t.Reason)
	return err
}

// saveFlow remembers a flow's state; one without a phase is forgotten.
func saveFlow(ctx context.Context, s *session, pipeline string, f checkpoint.Flow) error {
	if f.Phase == checkpoint.None {
		_, err := s.query(ctx, "DELETE FROM _tailrace.flows WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND flow = $4", pipeline, f.Target.Schema, f.Target.Table, f.Name)
		return err
	}
	_, err := s.query(ctx, saveFlowSQL, pipeline, f.Target.Schema, f.Target.Table, f.Name, int64(f.Order), f.Source.Schema, f.Source.Table, f.ID, string(f.Phase), f.Since)
	return err
}

// instantOf is a time as a parameter; nil for the zero time.
func instantOf(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return string(appendInstant(nil, t.UnixMicro()))
}

// Teardown removes this pipeline's bookkeeping.
func (w *Writer) Teardown(ctx context.Context) error {
	w.mu.Lock()
	epoch := w.epoch
	w.mu.Unlock()
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	s.patience = 0 // no heartbeat waits, and tables may be large
	if epoch != 0 {
		if err := w.fence(ctx, s, epoch); err != nil && !missingBook(err) {
			return w.explain(ctx, err, "remove the bookkeeping", nil)
		}
	}
	if err := w.teardown(ctx, s); err != nil {
		if !s.conn.IsClosed() {
			s.exec(ctx, "ROLLBACK")
		}
		return w.explain(ctx, err, "remove the bookkeeping", nil)
	}
	return nil
}

func (w *Writer) teardown(ctx context.Context, s *session) error {
	there, err := bookTablesThere(ctx, s)
	if err != nil || len(there) == 0 {
		return err
	}
	if err := w.unstage(ctx, s); err != nil {
		return err
	}
	sql := "BEGIN;"
	if slices.Contains(there, "sequenced") {
		rows, err := s.query(ctx, "SELECT records FROM _tailrace.sequenced WHERE pipeline = $1", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		for _, r := range rows {
			sql += fmt.Sprintf("DROP TABLE IF EXISTS %s;", recordsTable(str(r[0])))
		}
	}
	if slices.Contains(there, "undo") {
		if err := dropAllKept(ctx, s, w.cfg.Pipeline); err != nil {
			return err
		}
	}
	if slices.Contains(there, "feeds") {
		rows, err := s.query(ctx, "SELECT feed FROM _tailrace.feeds WHERE pipeline = $1", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		for _, r := range rows {
			sql += fmt.Sprintf("DROP TABLE IF EXISTS %s;", feedTable(str(r[0])))
		}
	}
	if slices.Contains(there, "made") {
		rows, err := s.query(ctx, "SELECT target_schema, target_table FROM _tailrace.made WHERE pipeline = $1", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		for _, r := range rows {
			sql += w.dropWaiting(change.Name{Schema: str(r[0]), Table: str(r[1])}) + ";"
		}
	}
	var counts, names []string
	for _, table := range there {
		table = "_tailrace." + table
		sql += fmt.Sprintf("DELETE FROM %s WHERE pipeline = %s;", table, literal(w.cfg.Pipeline))
		counts, names = append(counts, fmt.Sprintf("(SELECT count(*) FROM %s)", table)), append(names, table)
	}
	if err := s.exec(ctx, sql+"COMMIT"); err != nil {
		return err
	}
	// The last pipeline takes the schema with it, unless it holds what is not ours.
	rows, err := s.query(ctx, "SELECT "+strings.Join(counts, " + "))
	if err != nil || num(rows[0][0]) > 0 {
		return err
	}
	if err := s.exec(ctx, "DROP TABLE "+strings.Join(names, ", ")); err != nil {
		if stateOf(err) == notPermitted {
			return nil // an administrator made them; they are empty
		}
		return err
	}
	if err := s.exec(ctx, "DROP SCHEMA _tailrace"); err != nil && stateOf(err) != notPermitted && stateOf(err) != "2BP01" {
		return err
	}
	return nil
}
