package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// bookSQL makes the bookkeeping: database _tailrace, one for all pipelines of a server,
// with one row of marks and at most one of owners for each pipeline, one of tables for
// each of its targets, one of flows for each flow into a target with a user's sequence;
// made lists the targets that we created, feeds the tables of change feeds. sequenced names, of each target with a user's
// sequence, the table of its records, and holds its head; counts are what was counted of
// its events, a row from the first such event on; files are those that were taken
// (modified in ns since the Unix epoch), quarantine the events set aside, violations what expectations met, runs the
// newest runs of pipelines with a trigger, pauses the
// pipelines that are held, gaps what histories have crossed in one step, requests what
// the owners are asked (epoch: of the owner that took it; fault: the kind of a failed
// one's error). points are the rewind points (state: gone, or dropped, which keeps the
// number of the last one), undo lists the tables of what is kept for them, undo_files and
// undo_asides hold, of files and of events set aside, what was there before.
//
// Names of pipelines and flows are users', at most 128 and 255 letters; those of the
// servers' databases and tables have at most 64.
var bookSQL = []struct{ table, columns string }{
	{"marks", `
  pipeline varchar(128) NOT NULL PRIMARY KEY,
  epoch bigint NOT NULL,
  phase varchar(32) NOT NULL DEFAULT '',
  position longtext NOT NULL,
  commit_time datetime(6),
  slot varchar(255) NOT NULL DEFAULT '',
  source_system varchar(255) NOT NULL DEFAULT '',
  source_timeline bigint NOT NULL DEFAULT 0,
  source_database varchar(255) NOT NULL DEFAULT ''`},
	{"owners", `
  pipeline varchar(128) NOT NULL PRIMARY KEY,
  epoch bigint NOT NULL,
  host varchar(255) NOT NULL,
  boot_id varchar(255) NOT NULL,
  pid bigint NOT NULL,
  started bigint NOT NULL,
  instance varchar(64) NOT NULL,
  sessions varchar(64) NOT NULL,
  heartbeat datetime(6) NOT NULL`},
	{"tables", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  source_schema varchar(255) NOT NULL,
  source_table varchar(255) NOT NULL,
  source_id bigint NOT NULL,
  phase varchar(32) NOT NULL,
  since varchar(255) NOT NULL,
  reason longtext NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table)`},
	{"flows", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  flow varchar(255) NOT NULL,
  number bigint NOT NULL,
  source_schema varchar(255) NOT NULL,
  source_table varchar(255) NOT NULL,
  source_id bigint NOT NULL,
  phase varchar(32) NOT NULL,
  since varchar(255) NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table, flow)`},
	{"made", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  PRIMARY KEY (target_schema, target_table)`},
	{"feeds", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  feed varchar(64) NOT NULL PRIMARY KEY`},
	{"sequenced", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  records varchar(64) NOT NULL,
  truncated_seq longblob,
  truncated_at longblob,
  horizon longblob,
  PRIMARY KEY (pipeline, target_schema, target_table)`},
	{"counts", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  duplicates bigint NOT NULL DEFAULT 0,
  late bigint NOT NULL DEFAULT 0,
  ties bigint NOT NULL DEFAULT 0,
  truncated bigint NOT NULL DEFAULT 0,
  beyond bigint NOT NULL DEFAULT 0,
  unknown bigint NOT NULL DEFAULT 0,
  forgotten bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (pipeline, target_schema, target_table)`},
	{"files", `
  pipeline varchar(128) NOT NULL,
  relation_schema varchar(64) NOT NULL,
  relation_table varchar(255) NOT NULL,
  path_hash binary(32) NOT NULL,
  path longtext NOT NULL,
  size bigint NOT NULL,
  modified bigint NOT NULL,
  checksum varchar(255) NOT NULL,
  ` + "`rows`" + ` bigint NOT NULL,
  PRIMARY KEY (pipeline, relation_schema, relation_table, path_hash)`},
	{"quarantine", `
  id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  pipeline varchar(128) NOT NULL,
  flow varchar(255) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  reason longtext NOT NULL,
  position longtext NOT NULL,
  at longblob NOT NULL,
  time datetime(6),
  event longtext NOT NULL,
  resolved datetime(6),
  KEY (pipeline, flow)`},
	{"violations", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  flow varchar(255) NOT NULL,
  expectation varchar(128) NOT NULL,
  met varchar(16) NOT NULL,
  events bigint NOT NULL,
  PRIMARY KEY (pipeline, target_schema, target_table, flow, expectation, met)`},
	{"runs", `
  pipeline varchar(128) NOT NULL,
  number bigint NOT NULL,
  why varchar(32) NOT NULL,
  started datetime(6) NOT NULL,
  ended datetime(6),
  outcome varchar(32) NOT NULL,
  position longtext NOT NULL,
  written bigint NOT NULL,
  error longtext NOT NULL,
  PRIMARY KEY (pipeline, number)`},
	{"pauses", `
  pipeline varchar(128) NOT NULL PRIMARY KEY,
  since datetime(6) NOT NULL,
  asked_by longtext NOT NULL`},
	{"gaps", `
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  from_position varchar(255) NOT NULL,
  to_position varchar(255) NOT NULL,
  reason longtext NOT NULL,
  recorded datetime(6) NOT NULL,
  KEY (pipeline)`},
	{"requests", `
  id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  pipeline varchar(128) NOT NULL,
  kind varchar(64) NOT NULL,
  argument longtext NOT NULL,
  asked datetime(6) NOT NULL,
  asked_by longtext NOT NULL,
  state varchar(32) NOT NULL DEFAULT 'asked',
  epoch bigint,
  outcome longtext NOT NULL,
  fault bigint NOT NULL DEFAULT 0,
  finished datetime(6),
  KEY (pipeline, state)`},
	{"points", `
  pipeline varchar(128) NOT NULL,
  number bigint NOT NULL,
  state varchar(16) NOT NULL,
  label longtext NOT NULL,
  made datetime(6) NOT NULL,
  mark longtext NOT NULL,
  memory longtext NOT NULL,
  aside bigint NOT NULL,
  PRIMARY KEY (pipeline, number)`},
	{"undo", `
  id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
  pipeline varchar(128) NOT NULL,
  target_schema varchar(64) NOT NULL,
  target_table varchar(64) NOT NULL,
  number bigint NOT NULL,
  holds varchar(16) NOT NULL,
  layout longtext NOT NULL,
  reason longtext NOT NULL,
  dropped tinyint(1) NOT NULL DEFAULT 0,
  KEY (pipeline, number)`},
	{"undo_files", `
  pipeline varchar(128) NOT NULL,
  relation_schema varchar(64) NOT NULL,
  relation_table varchar(255) NOT NULL,
  path_hash binary(32) NOT NULL,
  number bigint NOT NULL,
  was tinyint(1) NOT NULL,
  path longtext,
  size bigint,
  modified bigint,
  checksum varchar(255),
  ` + "`rows`" + ` bigint,
  PRIMARY KEY (pipeline, relation_schema, relation_table, path_hash, number)`},
	{"undo_asides", `
  pipeline varchar(128) NOT NULL,
  id bigint NOT NULL,
  number bigint NOT NULL,
  PRIMARY KEY (pipeline, id, number)`},
}

const (
	// The fences. A batch's UPDATE must meet one row; the others lock it until their
	// transaction ends, so that a successor waits.
	applyMarkSQL = `UPDATE _tailrace.marks SET position = ?, commit_time = COALESCE(?, commit_time) WHERE pipeline = ? AND epoch = ?`
	fenceSQL     = `SELECT 1 FROM _tailrace.marks WHERE pipeline = ? AND epoch = ? LOCK IN SHARE MODE`

	applyLiveSQL = `UPDATE _tailrace.tables SET phase = 'live' WHERE pipeline = ? AND target_schema = ? AND target_table = ?`

	stateSQL  = `SELECT epoch, phase, position, commit_time, slot, source_system, source_timeline, source_database FROM _tailrace.marks WHERE pipeline = ?`
	flowsSQL  = `SELECT target_schema, target_table, flow, number, source_schema, source_table, source_id, phase, since FROM _tailrace.flows WHERE pipeline = ? ORDER BY target_schema, target_table, number`
	tablesSQL = `SELECT target_schema, target_table, source_schema, source_table, source_id, phase, since, reason FROM _tailrace.tables WHERE pipeline = ? ORDER BY 1, 2`

	saveMarkSQL  = `UPDATE _tailrace.marks SET phase = ?, slot = ?, source_system = ?, source_timeline = ?, source_database = ? WHERE pipeline = ? AND epoch = ?`
	savePlaceSQL = `UPDATE _tailrace.marks SET position = ?, commit_time = ? WHERE pipeline = ?`
	saveTableSQL = `INSERT INTO _tailrace.tables VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE source_schema = VALUES(source_schema), source_table = VALUES(source_table), source_id = VALUES(source_id), phase = VALUES(phase), since = VALUES(since), reason = VALUES(reason)`
	saveFlowSQL = `INSERT INTO _tailrace.flows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE number = VALUES(number), source_schema = VALUES(source_schema), source_table = VALUES(source_table), source_id = VALUES(source_id), phase = VALUES(phase), since = VALUES(since)`
	forgetTableSQL = `DELETE FROM _tailrace.tables WHERE pipeline = ? AND target_schema = ? AND target_table = ?`
	forgetFlowSQL  = `DELETE FROM _tailrace.flows WHERE pipeline = ? AND target_schema = ? AND target_table = ? AND flow = ?`
)

const (
	// sidePatience is for one small statement beside the batches. The heartbeat is stale
	// after this time: who has waited so long may have been succeeded already.
	sidePatience = staleAfter
	// amendPatience is for a change of the bookkeeping that may touch millions of rows:
	// events set aside, files taken.
	amendPatience = 2 * time.Minute
)

// sideSession gives the lasting small session; the caller holds w.side's lock. None of
// its statements may take long: the heartbeat waits behind them.
func (w *Writer) sideSession(ctx context.Context) (*session, error) {
	if w.side.session != nil && !w.side.dead {
		return w.side.session, nil
	}
	s, err := w.connect(ctx)
	if err != nil {
		return nil, err
	}
	s.patience = sidePatience
	w.side.session = s
	return s, nil
}

// onSide runs fn on the small session and explains its error.
func (w *Writer) onSide(ctx context.Context, doing string, fn func(s *session) error) error {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return err
	}
	return w.explain(fn(s), doing, nil)
}

// ensureBook makes the bookkeeping where it is missing. Looking first lets a user
// without the right to create databases use what an administrator has made.
func ensureBook(ctx context.Context, s *session) error {
	there, err := bookTablesThere(ctx, s)
	if err != nil || len(there) == len(bookSQL) {
		return err
	}
	statements := []string{"CREATE DATABASE IF NOT EXISTS _tailrace CHARACTER SET utf8mb4"}
	if len(there) > 0 {
		statements = nil
	}
	for _, b := range bookSQL {
		statements = append(statements, fmt.Sprintf("CREATE TABLE IF NOT EXISTS _tailrace.%s (%s\n) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE %s", b.table, b.columns, s.server.collation))
	}
	for _, sql := range statements {
		var err error
		for range bookTries {
			if _, err = s.exec(ctx, sql); numberOf(err) != erDeadlock {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bookTries is how often a statement that makes bookkeeping is tried. Where several
// pipelines make it at one moment, MySQL lets some of them lose as in a deadlock of its
// catalogue. Of those that meet one always goes on, so that a statement loses at most once
// to each other pipeline; more than some ten hardly ever start together.
const bookTries = 20

// bookTablesThere are those tables of the bookkeeping that have been made: by an earlier
// version not all.
func bookTablesThere(ctx context.Context, s *session) ([]string, error) {
	rows, err := s.query(ctx, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '_tailrace'")
	var there []string
	for _, b := range bookSQL {
		if slices.ContainsFunc(rows, func(r []*string) bool { return str(r[0]) == b.table }) {
			there = append(there, b.table)
		}
	}
	return there, err
}

// State reads the mark.
func (w *Writer) State(ctx context.Context) (m checkpoint.Mark, err error) {
	err = w.onSide(ctx, "read the pipeline's mark", func(s *session) (err error) {
		m, err = w.readMark(ctx, s)
		return err
	})
	return m, err
}

// readMark reads head, tables and flows as of one moment.
func (w *Writer) readMark(ctx context.Context, s *session) (m checkpoint.Mark, err error) {
	if _, err := s.exec(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
		return m, err
	}
	m, err = w.readMarkIn(ctx, s)
	if _, e := s.exec(ctx, "COMMIT"); err == nil {
		err = e
	}
	return m, err
}

func (w *Writer) readMarkIn(ctx context.Context, s *session) (m checkpoint.Mark, err error) {
	rows, err := s.query(ctx, bind(stateSQL, w.cfg.Pipeline))
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
	if m.CommitTime, err = instantOf(r[3]); err != nil {
		return m, err
	}
	m.Slot = str(r[4])
	m.Source = checkpoint.Identity{System: str(r[5]), Timeline: uint32(num(r[6])), Database: str(r[7])}
	if rows, err = s.query(ctx, bind(tablesSQL, w.cfg.Pipeline)); err != nil {
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
	rows, err = s.query(ctx, bind(flowsSQL, w.cfg.Pipeline))
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

// instantOf reads a DATETIME(6), in UTC; the zero time of NULL.
func instantOf(text *string) (time.Time, error) {
	if text == nil {
		return time.Time{}, nil
	}
	t, err := time.Parse("2006-01-02 15:04:05.999999", *text)
	if err != nil {
		return t, fault.Corrupted("an instant of the bookkeeping cannot be read")
	}
	return t.UTC(), nil
}

// Save replaces the mark's head and the given tables, beside Apply if need be.
func (w *Writer) Save(ctx context.Context, m checkpoint.Mark) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	err = w.onSide(ctx, "save the pipeline's mark", func(s *session) error {
		return within(ctx, s, func() error { return w.save(ctx, s, epoch, m) })
	})
	if err == nil && !m.Position.IsZero() {
		w.mu.Lock()
		w.applied = m.Position
		w.durables.restart()
		w.mu.Unlock()
	}
	return err
}

func (w *Writer) save(ctx context.Context, s *session, epoch int64, m checkpoint.Mark) error {
	n, err := s.exec(ctx, bind(saveMarkSQL, string(m.Phase), m.Slot, m.Source.System, m.Source.Timeline, m.Source.Database, w.cfg.Pipeline, epoch))
	if err != nil {
		return err
	}
	if n == 0 {
		return fault.ErrFenced
	}
	if !m.Position.IsZero() {
		if _, err := s.exec(ctx, bind(savePlaceSQL, checkpoint.PlaceText(m.Position, m.Resume), m.CommitTime, w.cfg.Pipeline)); err != nil {
			return err
		}
	}
	for _, t := range m.Tables {
		if err := saveTable(ctx, s, w.cfg.Pipeline, t); err != nil {
			return err
		}
	}
	for _, f := range m.Flows {
		sql := bind(saveFlowSQL, w.cfg.Pipeline, f.Target.Schema, f.Target.Table, f.Name, f.Order, f.Source.Schema, f.Source.Table, f.ID, string(f.Phase), f.Since)
		if f.Phase == checkpoint.None {
			sql = bind(forgetFlowSQL, w.cfg.Pipeline, f.Target.Schema, f.Target.Table, f.Name)
		}
		if _, err := s.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// saveTable remembers a table's state; one without a phase is forgotten.
func saveTable(ctx context.Context, s *session, pipeline string, t checkpoint.Table) error {
	sql := bind(saveTableSQL, pipeline, t.Target.Schema, t.Target.Table, t.Source.Schema, t.Source.Table, t.ID, string(t.Phase), t.Since, t.Reason)
	if t.Phase == checkpoint.None {
		sql = bind(forgetTableSQL, pipeline, t.Target.Schema, t.Target.Table)
	}
	_, err := s.exec(ctx, sql)
	return err
}

// within runs fn in a transaction, which its error takes back.
func within(ctx context.Context, s *session, fn func() error) error {
	if _, err := s.exec(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		_, err = s.exec(ctx, "COMMIT")
	}
	if err != nil && !s.dead {
		if _, e := s.exec(ctx, "ROLLBACK"); e != nil {
			s.close()
		}
	}
	return err
}

// fence demands that the epoch is still ours. Inside a transaction it also makes a
// successor wait for that transaction's end.
func (w *Writer) fence(ctx context.Context, s *session, epoch int64) error {
	rows, err := s.query(ctx, bind(fenceSQL, w.cfg.Pipeline, epoch))
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fault.ErrFenced
	}
	return nil
}

// heldFence runs fn, whose statements commit by themselves, while another session keeps
// a successor from taking over.
func (w *Writer) heldFence(ctx context.Context, epoch int64, fn func() error) error {
	s, err := w.borrow(ctx)
	if err != nil {
		return err
	}
	err = within(ctx, s, func() error {
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		return fn()
	})
	w.giveBack(s, err == nil)
	return err
}

// Teardown removes this pipeline's bookkeeping.
func (w *Writer) Teardown(ctx context.Context) error {
	w.mu.Lock()
	epoch := w.epoch
	w.mu.Unlock()
	return w.onSide(ctx, "remove the bookkeeping", func(s *session) error {
		s.patience = 0 // no heartbeat waits, and tables may be large
		defer func() { s.patience = sidePatience }()
		if epoch != 0 {
			if err := w.fence(ctx, s, epoch); err != nil && !missingBook(err) {
				return err
			}
		}
		return w.teardown(ctx, s)
	})
}

// teardown drops tables first, so that one that dies can be run again: the rows say
// which tables there are.
func (w *Writer) teardown(ctx context.Context, s *session) error {
	there, err := bookTablesThere(ctx, s)
	if err != nil || len(there) == 0 {
		return err
	}
	if err := w.unstage(ctx, s); err != nil {
		return err
	}
	if slices.Contains(there, "sequenced") {
		rows, err := s.query(ctx, bind("SELECT records FROM _tailrace.sequenced WHERE pipeline = ?", w.cfg.Pipeline))
		if err != nil {
			return err
		}
		for _, r := range rows {
			if _, err := s.exec(ctx, "DROP TABLE IF EXISTS "+recordsTable(str(r[0]))); err != nil {
				return err
			}
		}
	}
	if slices.Contains(there, "undo") {
		if _, err := s.exec(ctx, bind("UPDATE _tailrace.undo SET dropped = 1 WHERE pipeline = ?", w.cfg.Pipeline)); err != nil {
			return err
		}
		if err := w.dropHeld(ctx, s); err != nil {
			return err
		}
	}
	if slices.Contains(there, "feeds") {
		rows, err := s.query(ctx, bind("SELECT feed FROM _tailrace.feeds WHERE pipeline = ?", w.cfg.Pipeline))
		if err != nil {
			return err
		}
		for _, r := range rows {
			if _, err := s.exec(ctx, "DROP TABLE IF EXISTS "+feedTable(str(r[0]))); err != nil {
				return err
			}
		}
	}
	if slices.Contains(there, "made") {
		rows, err := s.query(ctx, bind("SELECT target_schema, target_table FROM _tailrace.made WHERE pipeline = ?", w.cfg.Pipeline))
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := dropWaiting(ctx, s, w.waiting(change.Name{Schema: str(r[0]), Table: str(r[1])})); err != nil {
				return err
			}
		}
	}
	var counts []string
	err = within(ctx, s, func() error {
		for _, table := range there {
			counts = append(counts, "(SELECT COUNT(*) FROM _tailrace."+table+")")
			if _, err := s.exec(ctx, bind("DELETE FROM _tailrace."+table+" WHERE pipeline = ?", w.cfg.Pipeline)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// The last pipeline takes the database with it, unless it holds what is not ours.
	rows, err := s.query(ctx, "SELECT "+strings.Join(counts, " + ")+", (SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = '_tailrace')")
	if err != nil || num(rows[0][0]) > 0 {
		return err
	}
	drop := "DROP DATABASE _tailrace"
	if num(rows[0][1]) != int64(len(there)) {
		drop = "DROP TABLE _tailrace." + strings.Join(there, ", _tailrace.")
	}
	if _, err := s.exec(ctx, drop); err != nil && !notPermitted(err) { // an administrator made them; they are empty
		return err
	}
	return nil
}

// Paused implements sink.Pauses.
func (w *Writer) Paused(ctx context.Context) (p sink.Pause, err error) {
	err = w.onSide(ctx, "read whether the pipeline is paused", func(s *session) error {
		rows, err := s.query(ctx, bind(pausedSQL, w.cfg.Pipeline))
		if missingBook(err) {
			return nil
		}
		if err == nil && len(rows) > 0 {
			p.By = str(rows[0][1])
			p.Since, err = instantOf(rows[0][0])
		}
		return err
	})
	return p, err
}

const (
	pausedSQL = `SELECT since, asked_by FROM _tailrace.pauses WHERE pipeline = ?`
	pauseSQL  = `INSERT INTO _tailrace.pauses VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE pipeline = VALUES(pipeline)`
	goOnSQL   = `DELETE FROM _tailrace.pauses WHERE pipeline = ?`
)

// SetPause implements sink.Pauses; it needs no ownership.
func (w *Writer) SetPause(ctx context.Context, p sink.Pause) error {
	return w.onSide(ctx, "write down the pause", func(s *session) error {
		sql := bind(goOnSQL, w.cfg.Pipeline)
		if !p.IsZero() {
			sql = bind(pauseSQL, w.cfg.Pipeline, p.Since, p.By)
		}
		_, err := s.exec(ctx, sql)
		return err
	})
}
