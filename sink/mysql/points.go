package mysql

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

var _ sink.Rewinds = (*Writer)(nil)

// A point is a row of points with the mark, and with the few other things of the pipeline
// that are remembered whole: heads and counts of what remembers, violations. Of files and
// events set aside, which may be many, is kept what changes (undo_files, undo_asides); an
// event that came after the point is one with a greater number than aside.

const (
	pointsSQL = `SELECT number, state, label, made, mark, memory, aside FROM _tailrace.points WHERE pipeline = ? AND state <> 'dropped'`
	newestSQL = `SELECT COALESCE(MAX(number), 0), COALESCE(MAX(CASE WHEN state <> 'dropped' THEN number END), 0) FROM _tailrace.points WHERE pipeline = ?`
	// A point is made while nothing that notes a barrier is about to commit: they hold the
	// fence, which this waits for.
	pointFenceSQL = `SELECT 1 FROM _tailrace.marks WHERE pipeline = ? AND epoch = ? FOR UPDATE`
	addPointSQL   = `INSERT INTO _tailrace.points (pipeline, number, state, label, made, mark, memory, aside)
SELECT ?, ?, '', ?, ?, ?, ?, COALESCE((SELECT MAX(id) FROM _tailrace.quarantine WHERE pipeline = ?), 0)`
	forgetDroppedSQL = `DELETE FROM _tailrace.points WHERE pipeline = ? AND state = 'dropped'`
	// Whoever takes points or what is kept away locks the points: a Recall holds one.
	lockPointsSQL = `SELECT number FROM _tailrace.points WHERE pipeline = ? FOR UPDATE`
	holdPointSQL  = pointsSQL + ` AND number = ? LOCK IN SHARE MODE`
	headsSQL      = `SELECT s.target_schema, s.target_table, s.truncated_seq, s.truncated_at, s.horizon, c.duplicates, c.late, c.ties, c.truncated, c.beyond, c.unknown, c.forgotten
FROM _tailrace.sequenced AS s LEFT JOIN _tailrace.counts AS c USING (pipeline, target_schema, target_table) WHERE s.pipeline = ?`
)

// writtenMark is a mark as a point holds it.
type writtenMark struct {
	Phase      checkpoint.Phase    `json:"phase"`
	Source     checkpoint.Identity `json:"source"`
	Slot       string              `json:"slot"`
	Place      string              `json:"place"`
	CommitTime time.Time           `json:"commit_time"`
	Tables     []writtenTable      `json:"tables,omitempty"`
	Flows      []writtenFlow       `json:"flows,omitempty"`
}

type writtenTable struct {
	Target change.Name      `json:"target"`
	Source change.Name      `json:"source"`
	ID     uint32           `json:"id"`
	Phase  checkpoint.Phase `json:"phase"`
	Since  string           `json:"since"`
	Reason string           `json:"reason,omitempty"`
}

type writtenFlow struct {
	Target change.Name      `json:"target"`
	Name   string           `json:"name"`
	Order  uint16           `json:"order"`
	Source change.Name      `json:"source"`
	ID     uint32           `json:"id"`
	Phase  checkpoint.Phase `json:"phase"`
	Since  string           `json:"since"`
}

func writeMark(m *checkpoint.Mark) writtenMark {
	out := writtenMark{Phase: m.Phase, Source: m.Source, Slot: m.Slot, Place: checkpoint.PlaceText(m.Position, m.Resume), CommitTime: m.CommitTime}
	for _, t := range m.Tables {
		out.Tables = append(out.Tables, writtenTable{t.Target, t.Source, t.ID, t.Phase, t.Since.String(), t.Reason})
	}
	for _, f := range m.Flows {
		out.Flows = append(out.Flows, writtenFlow{f.Target, f.Name, f.Order, f.Source, f.ID, f.Phase, f.Since.String()})
	}
	return out
}

func (w *writtenMark) read() (m checkpoint.Mark, err error) {
	m = checkpoint.Mark{Phase: w.Phase, Source: w.Source, Slot: w.Slot, CommitTime: w.CommitTime}
	if m.Position, m.Resume, err = checkpoint.ParsePlace(w.Place); err != nil {
		return m, err
	}
	for _, t := range w.Tables {
		since, err := change.ParsePosition(t.Since)
		if err != nil {
			return m, err
		}
		m.Tables = append(m.Tables, checkpoint.Table{Target: t.Target, Source: t.Source, ID: t.ID, Phase: t.Phase, Since: since, Reason: t.Reason})
	}
	for _, f := range w.Flows {
		since, err := change.ParsePosition(f.Since)
		if err != nil {
			return m, err
		}
		m.Flows = append(m.Flows, checkpoint.Flow{Target: f.Target, Name: f.Name, Order: f.Order, Source: f.Source, ID: f.ID, Phase: f.Phase, Since: since})
	}
	return m, nil
}

// writtenMemory is what a point remembers whole.
type writtenMemory struct {
	Heads      []writtenHead    `json:"heads,omitempty"`
	Violations []sink.Violation `json:"violations,omitempty"`
}

// writtenHead is the head and the counts of a target that remembers, whose name has its
// schema. Nil is NULL.
type writtenHead struct {
	Target                             change.Name `json:"target"`
	TruncatedSeq, TruncatedAt, Horizon []byte
	Counts                             []int64 `json:"counts,omitempty"` // in the order of countSQL; none: nothing was counted
}

// point is a row of points.
type point struct {
	checkpoint.Point
	memory writtenMemory
	aside  int64
}

func readPoint(pipeline string, r []*string) (p point, err error) {
	p.Number, p.Gone, p.Label, p.aside = num(r[0]), str(r[1]) == "gone", str(r[2]), num(r[6])
	var m writtenMark
	if p.Made, err = instantOf(r[3]); err == nil {
		err = json.Unmarshal([]byte(str(r[4])), &m)
	}
	if err == nil {
		p.Mark, err = m.read()
	}
	if err == nil {
		err = json.Unmarshal([]byte(str(r[5])), &p.memory)
	}
	if err != nil {
		return p, fault.Corrupted("rewind point %d of pipeline %s: %v", p.Number, pipeline, err)
	}
	return p, nil
}

// hasPoints reports whether anything is kept: an owner knows, others look.
func (w *Writer) hasPoints(ctx context.Context, s *session) (bool, error) {
	if _, err := w.owned(); err == nil {
		return w.keepsUnder().newest > 0, nil
	}
	rows, err := s.query(ctx, bind(newestSQL, w.cfg.Pipeline))
	if missingBook(err) || notPermitted(err) { // what is missing is said elsewhere
		return false, nil
	}
	return err == nil && num(rows[0][1]) > 0, err
}

// Point implements sink.Rewinds.
func (w *Writer) Point(ctx context.Context, label string) (p checkpoint.Point, err error) {
	epoch, err := w.owned()
	if err != nil {
		return p, err
	}
	err = w.onSide(ctx, "make a rewind point", func(s *session) error {
		var lack planner
		if err := w.permittedPoints(ctx, s, &lack); err != nil {
			return err
		}
		if len(lack.problems) > 0 {
			return fault.Refuse(lack.problems[0].Remedy, "make a rewind point: %s", lack.problems[0].What)
		}
		s.patience = amendPatience
		defer func() { s.patience = sidePatience }()
		err := within(ctx, s, func() (err error) {
			p, err = w.point(ctx, s, epoch, label)
			return err
		})
		if err != nil {
			return err
		}
		w.setUndo(p.Number)
		return s.settle(ctx)
	})
	return p, err
}

func (w *Writer) point(ctx context.Context, s *session, epoch int64, label string) (p checkpoint.Point, err error) {
	rows, err := s.query(ctx, bind(pointFenceSQL, w.cfg.Pipeline, epoch))
	if err != nil {
		return p, err
	}
	if len(rows) == 0 {
		return p, fault.ErrFenced
	}
	if p.Mark, err = w.readMarkIn(ctx, s); err != nil {
		return p, err
	}
	if p.Mark.Phase == checkpoint.None {
		return p, fault.Corrupted("make a rewind point: pipeline %s has no mark yet", w.cfg.Pipeline)
	}
	if rows, err = s.query(ctx, bind(newestSQL, w.cfg.Pipeline)); err != nil {
		return p, err
	}
	p.Number, p.Label = num(rows[0][0])+1, label
	if rows, err = s.query(ctx, "SELECT UTC_TIMESTAMP(6)"); err != nil {
		return p, err
	}
	if p.Made, err = instantOf(rows[0][0]); err != nil {
		return p, err
	}
	memory, err := w.memoryNow(ctx, s)
	if err != nil {
		return p, err
	}
	mark, err := json.Marshal(writeMark(&p.Mark))
	if err != nil {
		return p, err
	}
	kept, err := json.Marshal(memory)
	if err != nil {
		return p, err
	}
	for _, sql := range []string{
		bind(addPointSQL, w.cfg.Pipeline, p.Number, label, p.Made, string(mark), string(kept), w.cfg.Pipeline),
		bind(forgetDroppedSQL, w.cfg.Pipeline),
	} {
		if _, err := s.exec(ctx, sql); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (w *Writer) memoryNow(ctx context.Context, s *session) (m writtenMemory, err error) {
	rows, err := s.query(ctx, bind(headsSQL, w.cfg.Pipeline))
	if err != nil {
		return m, err
	}
	octets := func(s *string) []byte {
		if s == nil {
			return nil
		}
		return []byte(*s)
	}
	for _, r := range rows {
		h := writtenHead{Target: change.Name{Schema: str(r[0]), Table: str(r[1])}, TruncatedSeq: octets(r[2]), TruncatedAt: octets(r[3]), Horizon: octets(r[4])}
		for _, c := range r[5:] {
			if c != nil {
				h.Counts = append(h.Counts, num(c))
			}
		}
		m.Heads = append(m.Heads, h)
	}
	if rows, err = s.query(ctx, bind(violationsSQL, w.cfg.Pipeline)); err != nil {
		return m, err
	}
	for _, r := range rows {
		m.Violations = append(m.Violations, violationOf(r))
	}
	return m, nil
}

// settle waits until what was committed on the session is on the server's disk; that is at
// once, or within about a second.
func (s *session) settle(ctx context.Context) error {
	if s.server.durable {
		return nil
	}
	end, flushed, err := s.flushed(ctx)
	for until := end; err == nil && flushed < until; _, flushed, err = s.flushed(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(settleStep):
		}
	}
	return err
}

// settleStep lies between looks at the server's log, which it writes once a second.
const settleStep = 100 * time.Millisecond

// Points implements sink.Rewinds.
func (w *Writer) Points(ctx context.Context) (points []checkpoint.Point, err error) {
	err = w.onSide(ctx, "read the rewind points", func(s *session) error {
		rows, err := s.query(ctx, bind(pointsSQL, w.cfg.Pipeline)+" ORDER BY number")
		if missingBook(err) {
			return nil
		}
		if err != nil || len(rows) == 0 {
			return err
		}
		if !s.server.mariaDB { // its statistics are a day old, else
			if _, err := s.exec(ctx, "SET SESSION information_schema_stats_expiry = 0"); err != nil {
				return err
			}
		}
		bytes := map[int64]int64{}
		sizes, err := s.query(ctx, "SELECT TABLE_NAME, DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = '_tailrace' AND LEFT(TABLE_NAME, 5) = 'undo_'")
		if err != nil {
			return err
		}
		list, err := readUndo(ctx, s, w.cfg.Pipeline, 0, "")
		if err != nil {
			return err
		}
		size := map[string]int64{}
		for _, r := range sizes {
			size[str(r[0])] = num(r[1])
		}
		for _, k := range list {
			bytes[k.number] += size[heldName(k.id, k.target.Table)]
		}
		for _, r := range rows {
			p, err := readPoint(w.cfg.Pipeline, r)
			if err != nil {
				return err
			}
			p.Bytes = bytes[p.Number]
			points = append(points, p.Point)
		}
		return nil
	})
	return points, err
}

// DropPoints implements sink.Rewinds.
func (w *Writer) DropPoints(ctx context.Context, below int64) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	var left int64
	err = within(ctx, s, func() error {
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		if _, err := s.query(ctx, bind(lockPointsSQL, w.cfg.Pipeline)); err != nil {
			return err
		}
		rows, err := s.query(ctx, bind(newestSQL, w.cfg.Pipeline))
		if err != nil {
			return err
		}
		newest := num(rows[0][0])
		left = num(rows[0][1])
		points := bind("DELETE FROM _tailrace.points WHERE pipeline = ? AND number < ?", w.cfg.Pipeline, below)
		if below > newest { // its number stays, so that no number is given twice
			left = 0
			points = bind("DELETE FROM _tailrace.points WHERE pipeline = ? AND number < ?", w.cfg.Pipeline, newest)
		}
		statements := []string{points,
			bind("UPDATE _tailrace.undo SET dropped = 1 WHERE pipeline = ? AND number < ?", w.cfg.Pipeline, below),
			bind("DELETE FROM _tailrace.undo_files WHERE pipeline = ? AND number < ?", w.cfg.Pipeline, below),
			bind("DELETE FROM _tailrace.undo_asides WHERE pipeline = ? AND number < ?", w.cfg.Pipeline, below)}
		if left == 0 {
			statements = append(statements, bind("UPDATE _tailrace.points SET state = 'dropped', mark = '{}', memory = '{}' WHERE pipeline = ?", w.cfg.Pipeline))
		}
		for _, sql := range statements {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		w.setUndo(left)
		fault.KillPoint("points forgotten")
		err = w.dropHeld(ctx, s)
	}
	return w.present(err, "forget rewind points", nil)
}

// Undo implements sink.Rewinds.
func (w *Writer) Undo(ctx context.Context, to int64) (out []sink.Undo, err error) {
	s, err := w.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	err = func() error {
		list, err := readUndo(ctx, s, w.cfg.Pipeline, to, "")
		if missingBook(err) {
			return nil
		}
		if err != nil || len(list) == 0 {
			return err
		}
		there, err := heldTables(ctx, s)
		if err != nil {
			return err
		}
		for len(list) > 0 {
			n := slices.IndexFunc(list, func(k *held) bool { return k.target != list[0].target })
			if n < 0 {
				n = len(list)
			}
			u, touched, err := undoOf(ctx, s, list[:n], there)
			if err != nil {
				return err
			}
			if touched {
				out = append(out, u)
			}
			list = list[n:]
		}
		return nil
	}()
	return out, w.present(err, "look at what is kept for rewind points", nil)
}

// undoOf counts what is kept of one target; touched says that something is.
func undoOf(ctx context.Context, s *session, list []*held, there map[string]bool) (u sink.Undo, touched bool, err error) {
	u.Target = list[0].target
	var rows, records []string
	for _, k := range list {
		switch {
		case k.holds == heldBarrier:
			u.Barrier, touched = k.reason, true
		case !there[heldName(k.id, k.target.Table)]:
		case k.holds == heldRecords:
			records = append(records, "EXISTS (SELECT 1 FROM "+k.table()+")")
		case k.holds == heldRows:
			rows = append(rows, "SELECT n FROM "+k.table())
		default:
			rows = append(rows, "SELECT "+k.identity("")+" FROM "+k.table())
		}
	}
	if len(rows) > 0 {
		union := " UNION " // of a key once, under however many points
		if list[0].holds == heldRows || len(rows) == 1 {
			union = " UNION ALL "
		}
		got, err := s.query(ctx, "SELECT COUNT(*) FROM ("+strings.Join(rows, union)+") AS q")
		if err != nil {
			return u, false, err
		}
		u.Rows = num(got[0][0])
	}
	touched = touched || u.Rows > 0
	if !touched && len(records) > 0 {
		got, err := s.query(ctx, "SELECT "+strings.Join(records, " OR "))
		if err != nil {
			return u, false, err
		}
		touched = str(got[0][0]) == "1"
	}
	return u, touched, nil
}
