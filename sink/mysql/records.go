package mysql

import (
	"bytes"
	"context"
	"crypto/sha256"
	sqldriver "database/sql/driver"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// What a sequenced target remembers is one table of records in _tailrace:
//
//	key, seq, at   identity: key, sequence and place in the source, compared as bytes
//	body           what the event said; nothing is read into it
//	tombstone      a delete that nothing visible depends on
//	time           the clock of retention, µs since the Unix epoch
//
// Its index begins with key and sequence as a whole, so that the suffix of a key and the
// newest sequence below it are one descent away. A place can hold a file's path, which
// may be longer than an index entry admits: its beginning alone is in the index. The
// identity is therefore not unique by an index; a record is put by deleting what has its
// identity and inserting it. Keys and sequences longer than what is kept for them here
// are refused by the server.

const recordColumns = "`key`, seq, at, body, tombstone, time"

// recordsName names a target's table of records: its own for every pipeline and target,
// within the 64 letters of a name, and to be recognized by a person.
func recordsName(pipeline string, n change.Name) string {
	sum := sha256.Sum256([]byte(pipeline + "\x00" + n.Schema + "\x00" + n.Table))
	name := []rune("records_" + hex.EncodeToString(sum[:8]) + "_" + n.Table)
	return strings.TrimRight(string(name[:min(len(name), nameMax)]), " ")
}

func recordsTable(name string) string { return "_tailrace." + quote(name) }

// records is the table of what is remembered of t.
func (w *Writer) records(t *scd.Target) string {
	return recordsTable(recordsName(w.cfg.Pipeline, w.qualified(t.Name)))
}

// createRecordsSQL makes the table of records: 1,500 + 1,000 + 500 bytes of an index
// entry's 3,072.
func createRecordsSQL(name string) string {
	return fmt.Sprintf("CREATE TABLE %s (\n  `key` varbinary(1500) NOT NULL,\n  seq varbinary(1000) NOT NULL,\n  at longblob NOT NULL,\n  body longblob NOT NULL,\n  tombstone tinyint(1) NOT NULL,\n  time bigint NOT NULL,\n  KEY identity (`key`, seq, at(500))\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC", recordsTable(name))
}

// dropRecordsSQL forgets what is remembered of a target: last that there is a table.
func dropRecordsSQL(pipeline string, n change.Name) []string {
	where := bind(" WHERE pipeline = ? AND target_schema = ? AND target_table = ?", pipeline, n.Schema, n.Table)
	return []string{"DROP TABLE IF EXISTS " + recordsTable(recordsName(pipeline, n)), "DELETE FROM _tailrace.counts" + where, "DELETE FROM _tailrace.sequenced" + where}
}

const (
	ofTarget        = ` WHERE pipeline = ? AND target_schema = ? AND target_table = ?`
	sequencedRowSQL = `INSERT INTO _tailrace.sequenced (pipeline, target_schema, target_table, records) VALUES (?, ?, ?, ?) ON DUPLICATE KEY UPDATE records = VALUES(records)`
	remembersSQL    = `SELECT target_schema, target_table FROM _tailrace.sequenced WHERE target_schema = ? AND target_table = ?`
	headSQL         = `SELECT truncated_seq, truncated_at, horizon FROM _tailrace.sequenced` + ofTarget
	countedSQL      = `SELECT duplicates, late, ties, truncated, beyond, unknown, forgotten FROM _tailrace.counts` + ofTarget
	countSQL        = `INSERT INTO _tailrace.counts (pipeline, target_schema, target_table, duplicates, late, ties, truncated, beyond, unknown, forgotten) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE duplicates = duplicates + VALUES(duplicates), late = late + VALUES(late), ties = ties + VALUES(ties), truncated = truncated + VALUES(truncated), beyond = beyond + VALUES(beyond), unknown = unknown + VALUES(unknown), forgotten = forgotten + VALUES(forgotten)`
	// A horizon never goes back: what was forgotten stays forgotten.
	saveHeadSQL     = `UPDATE _tailrace.sequenced SET truncated_seq = ?, truncated_at = ?` + ofTarget
	raiseHorizonSQL = `UPDATE _tailrace.sequenced SET horizon = ?` + ofTarget + ` AND (horizon IS NULL OR horizon < ?)`
	resetHeadSQL    = `UPDATE _tailrace.sequenced SET truncated_seq = NULL, truncated_at = NULL, horizon = NULL` + ofTarget
	resetCountsSQL  = `DELETE FROM _tailrace.counts` + ofTarget
)

// of is a statement about a target in the bookkeeping, whose last question marks are its
// name's.
func (w *Writer) of(sql string, t *scd.Target, args ...any) string {
	n := w.qualified(t.Name)
	return bind(sql, append(args, w.cfg.Pipeline, n.Schema, n.Table)...)
}

// remembers reports whether t's table of records is there and was finished.
func (w *Writer) remembers(ctx context.Context, s *session, t *scd.Target) (bool, error) {
	n := w.qualified(t.Name)
	rows, err := s.query(ctx, bind(remembersSQL+" AND pipeline = ?", n.Schema, n.Table, w.cfg.Pipeline))
	if missingBook(err) {
		return false, nil
	}
	return len(rows) > 0, err
}

// lookupsAtOnce are asked in one statement.
const lookupsAtOnce = 200

// Remembered reads the records that answer lookups. It runs on Apply's session, so that
// it sees the open transaction, and like Apply in one goroutine.
func (w *Writer) Remembered(ctx context.Context, t *scd.Target, at []sequenced.Lookup, fn func(sequenced.Record) error) error {
	var arena scd.Arena
	var sql []byte
	for part := range slices.Chunk(at, lookupsAtOnce) {
		below := make(map[int]*sequenced.Record) // the newest record below each lookup's sequence
		sql = w.appendLookups(sql[:0], t, part)
		err := w.reading(ctx, t, text(sql), func(row []sqldriver.Value) error {
			n := int(intOf(row[0]))
			seq, place, body := bytesOf(row[1]), bytesOf(row[2]), bytesOf(row[3])
			b := arena.Take(len(seq) + len(place) + len(body))
			b = append(append(append(b, seq...), place...), body...)
			p := len(seq) + len(place)
			r := sequenced.Record{Key: part[n].Key, Seq: b[:len(seq):len(seq)], At: b[len(seq):p:p], Body: b[p:len(b):len(b)], Tombstone: intOf(row[4]) != 0, Time: intOf(row[5])}
			if t.Kind == scd.Type2 && bytes.Compare(r.Seq, part[n].Seq) < 0 {
				if old := below[n]; old == nil || bytes.Compare(old.At, r.At) < 0 {
					below[n] = &r
				}
				return nil
			}
			return fn(r)
		})
		if err != nil {
			return err
		}
		for _, r := range below {
			if err := fn(*r); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendLookups asks, in type 1, for every record of the keys; in type 2 for those from a
// sequence on and those with the newest sequence below it. Where the reading of a key
// begins is found first, for all keys, so that the index is descended to there and no
// record before it is looked at, however many the key has; the LIMIT, which is no limit,
// keeps the server from putting that question into every comparison.
func (w *Writer) appendLookups(sql []byte, t *scd.Target, at []sequenced.Lookup) []byte {
	records := w.records(t)
	sql = append(sql, "SELECT q.n, r.seq, r.at, r.body, r.tombstone, r.time FROM ("...)
	if t.Kind == scd.Type2 {
		sql = append(sql, "SELECT q.n, q.k, COALESCE((SELECT m.seq FROM "+records+" AS m FORCE INDEX (identity) WHERE m.`key` = q.k AND m.seq < q.s ORDER BY m.seq DESC LIMIT 1), q.s) AS b FROM ("...)
	}
	for i := range at {
		if i == 0 {
			sql = append(sql, "SELECT 0 AS n, "...)
		} else {
			sql = append(strconv.AppendInt(append(sql, " UNION ALL SELECT "...), int64(i), 10), ", "...)
		}
		sql = appendOctets(sql, at[i].Key)
		if i == 0 {
			sql = append(sql, " AS k"...)
		}
		if t.Kind == scd.Type1 {
			continue
		}
		sql = appendOctets(append(sql, ", "...), at[i].Seq)
		if i == 0 {
			sql = append(sql, " AS s"...)
		}
	}
	on := "r.`key` = q.k"
	if t.Kind == scd.Type2 {
		sql = strconv.AppendInt(append(sql, ") AS q LIMIT "...), int64(len(at)), 10)
		on = "r.`key` >= q.k AND r.`key` <= q.k AND r.seq >= q.b"
	}
	return append(sql, ") AS q STRAIGHT_JOIN "+records+" AS r FORCE INDEX (identity) ON "+on...)
}

// RememberedBelow reads the keys that have a record at p or below; like Remembered.
func (w *Writer) RememberedBelow(ctx context.Context, t *scd.Target, p sequenced.Place, fn func(key []byte) error) error {
	return w.reading(ctx, t, "SELECT `key` FROM "+w.records(t)+" WHERE "+notAbove(p), func(row []sqldriver.Value) error { return fn(slices.Clone(bytesOf(row[0]))) })
}

// notAbove is the condition that a record lies at p or below.
func notAbove(p sequenced.Place) string {
	seq, at := constant(some(p.Seq)), constant(some(p.At))
	return fmt.Sprintf("(seq < %s OR seq = %[1]s AND at <= %s)", seq, at)
}

// some makes an empty slice of nil, which as a constant is NULL.
func some(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// Keys reads keys in their order; like Remembered. Where it goes on is a key.
func (w *Writer) Keys(ctx context.Context, t *scd.Target, from []byte, limit int, fn func(key []byte) error) (next []byte, err error) {
	n := 0
	sql := bind(fmt.Sprintf("SELECT DISTINCT `key` FROM %s WHERE `key` > ? ORDER BY `key` LIMIT %d", w.records(t), limit), some(from))
	err = w.reading(ctx, t, sql, func(row []sqldriver.Value) error {
		n++
		next = slices.Clone(bytesOf(row[0]))
		return fn(next)
	})
	if n < limit {
		next = nil
	}
	return next, err
}

// reading runs a query on Apply's session and gives each row, valid during the call only.
// The callback's error leaves the session whole.
func (w *Writer) reading(ctx context.Context, t *scd.Target, sql string, fn func(row []sqldriver.Value) error) error {
	a := &w.apply
	if a.broken {
		return errBroken
	}
	w.stall.Begin(a.s.wire())
	defer w.stall.End()
	var stopped error
	err := error(nil)
	if a.s == nil {
		err = a.connect(ctx)
	}
	if err == nil {
		err = a.s.stream(ctx, sql, false, nil, func(row []sqldriver.Value) error {
			stopped = fn(row)
			return stopped
		})
	}
	if stopped == nil && err != nil {
		a.broken = true
		err = w.explain(err, "read what is remembered of table "+w.qualified(t.Name).String(), nil)
		a.close()
	}
	return err
}

// Head reads what is remembered of a target as a whole.
func (w *Writer) Head(ctx context.Context, t *scd.Target) (h sequenced.Head, err error) {
	err = w.onSide(ctx, "read what is remembered of table "+w.qualified(t.Name).String(), func(s *session) error {
		err := s.stream(ctx, w.of(headSQL, t), false, nil, func(row []sqldriver.Value) error {
			h = sequenced.Head{Truncated: sequenced.Place{Seq: slices.Clone(bytesOf(row[0])), At: slices.Clone(bytesOf(row[1]))}, Horizon: slices.Clone(bytesOf(row[2]))}
			return nil
		})
		if missingBook(err) {
			return nil
		}
		return err
	})
	return h, err
}

// Counted reads what was counted of a target's events.
func (w *Writer) Counted(ctx context.Context, t *scd.Target) (c sequenced.Counts, err error) {
	err = w.onSide(ctx, "read what was counted of table "+w.qualified(t.Name).String(), func(s *session) error {
		rows, err := s.query(ctx, w.of(countedSQL, t))
		if missingBook(err) {
			return nil
		}
		for _, r := range rows {
			for i, to := range []*int{&c.Duplicates, &c.Late, &c.Ties, &c.Truncated, &c.Beyond, &c.Unknown, &c.Forgotten} {
				*to = int(num(r[i]))
			}
		}
		return err
	})
	return c, err
}

// Records reads every record of a target, in the order of its index, and sorts those of
// one key.
func (w *Writer) Records(ctx context.Context, t *scd.Target, fn func(sequenced.Record) error) error {
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()              // also what ends a reading that fn has stopped
	var twins []sequenced.Record // of one key and sequence: the index knows only the beginnings of their places
	var stopped error
	give := func() error {
		slices.SortFunc(twins, func(a, b sequenced.Record) int { return bytes.Compare(a.At, b.At) })
		for _, r := range twins {
			if stopped = fn(r); stopped != nil {
				return stopped
			}
		}
		twins = twins[:0]
		return nil
	}
	sql := "SELECT " + recordColumns + " FROM " + w.records(t) + " FORCE INDEX (identity) WHERE `key` <> '' ORDER BY `key`, seq"
	err = s.stream(ctx, sql, true, nil, func(row []sqldriver.Value) error {
		var b []byte
		part := func(i int) []byte {
			b = append(b, bytesOf(row[i])...)
			return b[len(b)-len(bytesOf(row[i])) : len(b) : len(b)]
		}
		b = make([]byte, 0, len(bytesOf(row[0]))+len(bytesOf(row[1]))+len(bytesOf(row[2]))+len(bytesOf(row[3])))
		r := sequenced.Record{Key: part(0), Seq: part(1), At: part(2), Body: part(3), Tombstone: intOf(row[4]) != 0, Time: intOf(row[5])}
		if len(twins) > 0 && (!bytes.Equal(twins[0].Key, r.Key) || !bytes.Equal(twins[0].Seq, r.Seq)) {
			if err := give(); err != nil {
				return err
			}
		}
		twins = append(twins, r)
		return nil
	})
	if err == nil {
		err = give()
	}
	if stopped != nil {
		return stopped
	}
	if missingBook(err) {
		return nil
	}
	return w.explain(err, "read what is remembered of table "+w.qualified(t.Name).String(), nil)
}

// countedBytes is how large a table of records may be for its records to be counted; of a
// larger one the server's statistics are asked.
const countedBytes = 64 << 20

// Remembers counts the records of a sequenced target.
func (w *Writer) Remembers(ctx context.Context, t *scd.Target) (n sink.MemorySize, err error) {
	err = w.onSide(ctx, "count what is remembered of table "+w.qualified(t.Name).String(), func(s *session) error {
		there, err := w.remembers(ctx, s, t)
		if err != nil || !there {
			return err
		}
		size, err := about(ctx, s, "SELECT TABLE_SCHEMA, TABLE_NAME, DATA_LENGTH, TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
			change.Name{Schema: "_tailrace", Table: recordsName(w.cfg.Pipeline, w.qualified(t.Name))})
		if err != nil || len(size) == 0 {
			return err
		}
		from := w.records(t) + " WHERE `key` <> ''"
		if n.Estimated = num(size[0][2]) > countedBytes; n.Estimated {
			from = "(SELECT tombstone FROM " + from + " LIMIT 100000) AS s"
		}
		rows, err := s.query(ctx, "SELECT COUNT(*), COALESCE(SUM(tombstone), 0) FROM "+from)
		if err != nil {
			return err
		}
		n.Records, n.Tombstones = num(rows[0][0]), num(rows[0][1])
		if n.Estimated && n.Records > 0 {
			n.Tombstones = n.Tombstones * num(size[0][3]) / n.Records
			n.Records = num(size[0][3])
		}
		return nil
	})
	return n, err
}
