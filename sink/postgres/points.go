package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// A rewind point is a row of _tailrace.points. It holds the mark, and what is small: heads
// and counts of all sequenced targets, and all violations, as they were. The rest is copied
// when it is about to change, under the number of the newest point (keep.go): rows and
// records into tables that _tailrace.undo lists, files into undo_files, and of events in
// quarantine which were resolved into undo_resolved; those with higher ids came later.
// _tailrace.undo also lists the barriers.
//
// state is ” for a choice, 'gone' behind a point that was rewound to, and 'dropped' for
// the newest number of a pipeline that keeps nothing: so no number is given twice.
const (
	pointSQL = `INSERT INTO _tailrace.points (pipeline, number, label, made, state, mark, heads, counts, violations, last_aside)
SELECT $1::text, coalesce((SELECT max(number) FROM _tailrace.points WHERE pipeline = $1), 0) + 1, $2, clock_timestamp(), '', $3,
  coalesce((SELECT jsonb_agg(to_jsonb(s)) FROM _tailrace.sequenced AS s WHERE s.pipeline = $1), '[]'),
  coalesce((SELECT jsonb_agg(to_jsonb(c)) FROM _tailrace.counts AS c WHERE c.pipeline = $1), '[]'),
  coalesce((SELECT jsonb_agg(to_jsonb(v)) FROM _tailrace.violations AS v WHERE v.pipeline = $1), '[]'),
  coalesce((SELECT max(id) FROM _tailrace.quarantine), 0)
RETURNING number, (extract(epoch FROM made) * 1000000)::bigint`
	pointsSQL = `SELECT p.number, p.label, (extract(epoch FROM p.made) * 1000000)::bigint, p.state, p.mark,
  (SELECT coalesce(sum(pg_total_relation_size(to_regclass('_tailrace.' || quote_ident(u.name)))), 0)::bigint FROM _tailrace.undo AS u WHERE u.pipeline = p.pipeline AND u.number = p.number AND u.name <> '')
FROM _tailrace.points AS p WHERE p.pipeline = $1 AND p.state <> 'dropped' ORDER BY p.number`

	// undoRowSQL registers a table of what is kept: pipeline, number, schema and table of the
	// target, kind, name, columns of the key, reason.
	undoRowSQL = `INSERT INTO _tailrace.undo VALUES (%s, %d, %s, %s, %s, %s, %s, %s)`

	// newestPoint is the number under which is kept, of the pipeline $1: no row where nothing is.
	newestPoint = `(SELECT max(number) AS number FROM _tailrace.points WHERE pipeline = $1 AND state <> 'dropped' HAVING count(*) > 0) AS p`

	keepFilesSQL = `INSERT INTO _tailrace.undo_files (pipeline, number, relation_schema, relation_table, path, was, size, modified, checksum, rows)
SELECT $1, p.number, s.rs, s.rt, s.path, f.path IS NOT NULL, f.size, f.modified, f.checksum, f.rows
FROM ` + newestPoint + ` CROSS JOIN ROWS FROM (unnest($2::text[]), unnest($3::text[]), unnest($4::text[])) AS s (rs, rt, path)
LEFT JOIN _tailrace.files AS f ON f.pipeline = $1 AND f.relation_schema = s.rs AND f.relation_table = s.rt AND f.path = s.path ON CONFLICT DO NOTHING`
	keepTakenSQL = `INSERT INTO _tailrace.undo_files (pipeline, number, relation_schema, relation_table, path, was, size, modified, checksum, rows)
SELECT f.pipeline, p.number, f.relation_schema, f.relation_table, f.path, true, f.size, f.modified, f.checksum, f.rows FROM ` + newestPoint + ` CROSS JOIN _tailrace.files AS f WHERE f.pipeline = $1%s ON CONFLICT DO NOTHING`
	keepResolvedSQL = `INSERT INTO _tailrace.undo_resolved (pipeline, number, id) SELECT $1, p.number, q.id FROM ` + newestPoint + ` CROSS JOIN _tailrace.quarantine AS q
WHERE q.pipeline = $1 AND q.resolved IS NULL AND `
	ofIDs    = `q.id = ANY ($2::bigint[])` // as resolveSQL has it
	ofTarget = `q.target_schema = $2 AND q.target_table = $3`
	ofFlow   = ofTarget + ` AND q.flow = $4`
)

// Point implements sink.Rewinds.
func (w *Writer) Point(ctx context.Context, label string) (p checkpoint.Point, err error) {
	err = w.amend(ctx, "make a rewind point", func(s *session) error {
		who, err := s.query(ctx, "SELECT current_user, has_schema_privilege('_tailrace', 'CREATE')")
		if err != nil {
			return err
		}
		if str(who[0][1]) != "t" {
			return fault.Refuse(grantBookSQL(str(who[0][0])), "user %s may not make tables in schema _tailrace, in which rewind points keep the old rows", str(who[0][0]))
		}
		if err := w.holdMark(ctx, s); err != nil {
			return err
		}
		if p.Mark, err = w.readMark(ctx, s); err != nil {
			return err
		}
		if p.Mark.Phase == checkpoint.None {
			return fault.Corrupted("pipeline %s has no mark to go back to", w.cfg.Pipeline)
		}
		mark, err := json.Marshal(p.Mark)
		if err != nil {
			return err
		}
		rows, err := s.query(ctx, pointSQL, w.cfg.Pipeline, label, string(mark))
		if err != nil {
			return err
		}
		p.Number, p.Label, p.Made = num(rows[0][0]), label, time.UnixMicro(num(rows[0][1])).UTC()
		if _, err := s.query(ctx, "DELETE FROM _tailrace.points WHERE pipeline = $1 AND state = 'dropped'", w.cfg.Pipeline); err != nil {
			return err
		}
		w.keepUnder(p.Number) // before the commit: what ends behind it must not go unkept
		return nil
	})
	if err != nil {
		w.keepUnder(keepUnknown)
		return checkpoint.Point{}, err
	}
	return p, nil
}

// holdMark keeps fenced transactions of this pipeline, which hold the mark's row too, from
// ending beside this one.
func (w *Writer) holdMark(ctx context.Context, s *session) error {
	_, err := s.query(ctx, "SELECT FROM _tailrace.marks WHERE pipeline = $1 FOR NO KEY UPDATE", w.cfg.Pipeline)
	return err
}

// Points implements sink.Rewinds.
func (w *Writer) Points(ctx context.Context) ([]checkpoint.Point, error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return nil, err
	}
	list, err := w.readPoints(ctx, s)
	return list, w.explain(ctx, err, "read the rewind points", nil)
}

func (w *Writer) readPoints(ctx context.Context, s *session) ([]checkpoint.Point, error) {
	rows, err := s.query(ctx, pointsSQL, w.cfg.Pipeline)
	if missingBook(err) {
		return nil, nil
	}
	var list []checkpoint.Point
	for _, r := range rows {
		p := checkpoint.Point{Number: num(r[0]), Label: str(r[1]), Made: time.UnixMicro(num(r[2])).UTC(), Gone: str(r[3]) == "gone", Bytes: num(r[5])}
		if err := json.Unmarshal([]byte(str(r[4])), &p.Mark); err != nil {
			return nil, fault.Corrupted("the mark of rewind point %d: %v", p.Number, err)
		}
		list = append(list, p)
	}
	return list, err
}

// dropChunk is how many tables are dropped in one transaction: each holds some four locks,
// of 6,400 that a server has by default.
const dropChunk = 100

var someUndoSQL = fmt.Sprintf("DELETE FROM _tailrace.undo WHERE ctid = ANY (ARRAY(SELECT ctid FROM _tailrace.undo WHERE pipeline = $1 AND number < $2::bigint LIMIT %d)) RETURNING name", dropChunk)

// DropPoints implements sink.Rewinds. First the points go, and then, in steps, what was kept
// for them.
func (w *Writer) DropPoints(ctx context.Context, below int64) error {
	all := false
	err := w.amend(ctx, "drop rewind points", func(s *session) error {
		if err := w.holdMark(ctx, s); err != nil {
			return err
		}
		rows, err := s.query(ctx, "SELECT coalesce(max(number), 0) FROM _tailrace.points WHERE pipeline = $1", w.cfg.Pipeline)
		if err != nil {
			return err
		}
		newest := num(rows[0][0])
		if all = below > newest; all {
			w.keepUnder(0)
			if _, err := s.query(ctx, "UPDATE _tailrace.points SET state = 'dropped', mark = '{}', heads = '[]', counts = '[]', violations = '[]' WHERE pipeline = $1 AND number = $2::bigint", w.cfg.Pipeline, newest); err != nil {
				return err
			}
		}
		_, err = s.query(ctx, "DELETE FROM _tailrace.points WHERE pipeline = $1 AND number < $2::bigint AND state <> 'dropped'", w.cfg.Pipeline, below)
		return err
	})
	if err != nil {
		if all {
			w.keepUnder(keepUnknown)
		}
		return err
	}
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx, "") // no heartbeat waits behind somebody who reads one of the tables
	if err != nil {
		return err
	}
	defer s.close(ctx)
	return w.explain(ctx, w.dropBelow(ctx, s, epoch, below), "drop what was kept for rewind points", nil)
}

func (w *Writer) dropBelow(ctx context.Context, s *session, epoch, below int64) error {
	for more := true; more; {
		if err := s.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		if err := w.fence(ctx, s, epoch); err != nil {
			return err
		}
		rows, err := s.query(ctx, someUndoSQL, w.cfg.Pipeline, below)
		if err != nil {
			return err
		}
		if more = len(rows) == dropChunk; !more {
			for _, table := range []string{"undo_files", "undo_resolved"} {
				if _, err := s.query(ctx, "DELETE FROM _tailrace."+table+" WHERE pipeline = $1 AND number < $2::bigint", w.cfg.Pipeline, below); err != nil {
					return err
				}
			}
		}
		if err := dropKept(ctx, s, rows); err != nil {
			return err
		}
		if err := s.exec(ctx, "COMMIT"); err != nil {
			return err
		}
	}
	return nil
}

// dropAllKept drops all tables of what is kept of a pipeline, each step for itself.
func dropAllKept(ctx context.Context, s *session, pipeline string) error {
	for {
		if err := s.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		rows, err := s.query(ctx, someUndoSQL, pipeline, int64(math.MaxInt64))
		if err != nil {
			return err
		}
		if err := dropKept(ctx, s, rows); err != nil {
			return err
		}
		if err := s.exec(ctx, "COMMIT"); err != nil || len(rows) < dropChunk {
			return err
		}
	}
}

// dropKept drops the tables that rows name.
func dropKept(ctx context.Context, s *session, rows [][]*string) error {
	var names []string
	for _, r := range rows {
		if str(r[0]) != "" {
			names = append(names, keptTable(str(r[0])))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.exec(ctx, "DROP TABLE IF EXISTS "+strings.Join(names, ", "))
}

// barrierSQL notes that a target was made anew, for the transaction that does it.
func (w *Writer) barrierSQL(n change.Name, why string) string {
	n = w.qualified(n)
	return fmt.Sprintf(`INSERT INTO _tailrace.undo SELECT pipeline, max(number), %s, %s, 'barrier', '', '{}', %s FROM _tailrace.points WHERE pipeline = %s AND state <> 'dropped' GROUP BY pipeline
ON CONFLICT (pipeline, target_schema, target_table, number, kind) DO UPDATE SET reason = excluded.reason`, literal(n.Schema), literal(n.Table), literal(why), literal(w.cfg.Pipeline))
}

// barrier is barrierSQL carried out. From then on nothing needs to be kept of the target
// until there is another point.
func (w *Writer) barrier(ctx context.Context, s *session, n change.Name, why string) error {
	if err := s.exec(ctx, w.barrierSQL(n, why)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeping.turn++
	return nil
}

// entry is a row of _tailrace.undo.
type entry struct {
	number int64
	target change.Name
	kind   string // rows, records or barrier
	table  string // quoted; of a barrier ""
	keys   string // of rows: the key's columns, quoted, with commas; "" where there is none
	reason string
}

// readUndo reads what is kept from a number on, lowest first.
func readUndo(ctx context.Context, s *session, pipeline string, from int64) ([]entry, error) {
	rows, err := s.query(ctx, `SELECT number, target_schema, target_table, kind, name, (SELECT string_agg(quote_ident(k), ', ' ORDER BY n) FROM unnest(keys) WITH ORDINALITY AS u (k, n)), reason
FROM _tailrace.undo WHERE pipeline = $1 AND number >= $2::bigint ORDER BY target_schema, target_table, number, kind`, pipeline, from)
	if missingBook(err) {
		return nil, nil
	}
	var list []entry
	for _, r := range rows {
		e := entry{number: num(r[0]), target: change.Name{Schema: str(r[1]), Table: str(r[2])}, kind: str(r[3]), keys: str(r[5]), reason: str(r[6])}
		if name := str(r[4]); name != "" {
			e.table = keptTable(name)
		}
		list = append(list, e)
	}
	return list, err
}

// Undo implements sink.Rewinds.
func (w *Writer) Undo(ctx context.Context, to int64) ([]sink.Undo, error) {
	s, err := w.connect(ctx, "SET work_mem = '64MB';")
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	list, err := w.countUndo(ctx, s, to)
	return list, w.explain(ctx, err, "count what is kept for rewind points", nil)
}

func (w *Writer) countUndo(ctx context.Context, s *session, to int64) ([]sink.Undo, error) {
	entries, err := readUndo(ctx, s, w.cfg.Pipeline, to)
	if err != nil {
		return nil, err
	}
	var out []sink.Undo
	for len(entries) > 0 {
		u := sink.Undo{Target: entries[0].target}
		var counts []string
		n, keyed := 0, false
		for ; n < len(entries) && entries[n].target == u.Target; n++ {
			switch e := entries[n]; e.kind {
			case "barrier":
				u.Barrier = e.reason
			case "rows":
				keyed = e.keys != ""
				counts = append(counts, "SELECT "+cmp.Or(e.keys, "1")+" FROM "+e.table)
			}
		}
		if len(counts) > 0 {
			union := " UNION "
			if !keyed {
				union = " UNION ALL "
			}
			rows, err := s.query(ctx, "SELECT count(*) FROM ("+strings.Join(counts, union)+") AS k")
			if err != nil {
				return nil, err
			}
			u.Rows = num(rows[0][0])
		}
		out = append(out, u)
		entries = entries[n:]
	}
	return out, nil
}
