package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var _ sink.Memory = (*Writer)(nil)

// records is the table of what is remembered of t.
func (w *Writer) records(t *scd.Target) string {
	return recordsTable(recordsName(w.cfg.Pipeline, w.qualified(t.Name)))
}

// of names a target in the bookkeeping.
func (w *Writer) of(t *scd.Target) [][]byte {
	n := w.qualified(t.Name)
	return [][]byte{[]byte(w.cfg.Pipeline), []byte(n.Schema), []byte(n.Table)}
}

// Remembered reads the records that answer lookups. It runs on Apply's session, so
// that it sees the open transaction, and like Apply in one goroutine.
//
// Events of a history mostly come in order. So the newest record of each key is asked
// for first: where it lies below the lookup's sequence it is the answer, at half the
// price of the general question, which is then asked of the others alone. Where most
// are others, the next call begins with the general question.
func (w *Writer) Remembered(ctx context.Context, t *scd.Target, at []sequenced.Lookup, fn func(sequenced.Record) error) error {
	known := newKnowledge(at)
	delete(w.apply.known, t.Name)
	err := w.remembered(ctx, t, at, func(r sequenced.Record) error {
		known.tell(&r)
		return fn(r)
	})
	if err == nil && w.apply.known != nil {
		w.apply.known[t.Name] = known
	}
	return err
}

func (w *Writer) remembered(ctx context.Context, t *scd.Target, at []sequenced.Lookup, fn func(sequenced.Record) error) error {
	records := w.records(t)
	if t.Kind == scd.Type1 {
		return w.lookup(ctx, t, lookupSQL(records), false, at, func(_ int, r sequenced.Record) error { return fn(r) })
	}
	late := at
	if !w.apply.shuffled {
		late = nil
		err := w.lookup(ctx, t, newestSQL(records), false, at, func(n int, r sequenced.Record) error {
			if bytes.Compare(r.Seq, at[n].Seq) >= 0 || len(r.At) >= placeIndexed {
				late = append(late, at[n])
				return nil
			}
			return fn(r)
		})
		if err != nil || len(late) == 0 {
			return err
		}
	}
	inOrder := 0
	var long []sequenced.Lookup // several records could be the newest below
	below := func(n int, r sequenced.Record, lookups []sequenced.Lookup) bool {
		return bytes.Compare(r.Seq, lookups[n].Seq) < 0
	}
	met := make([]bool, len(late)) // a record that is not below
	err := w.lookup(ctx, t, suffixSQL(records), true, late, func(n int, r sequenced.Record) error {
		switch {
		case !below(n, r, late):
			met[n] = true
		case len(r.At) >= placeIndexed:
			long = append(long, late[n])
			return nil
		case !met[n]:
			inOrder++
		}
		return fn(r)
	})
	if err != nil {
		return err
	}
	w.apply.shuffled = inOrder*2 < len(at) && len(late)*2 > len(at)
	if len(long) == 0 {
		return nil
	}
	newest := make([]*sequenced.Record, len(long))
	err = w.lookup(ctx, t, lookupSQL(records), false, long, func(n int, r sequenced.Record) error {
		if below(n, r, long) && (newest[n] == nil || compareRecords(nil, r.Seq, r.At, nil, newest[n].Seq, newest[n].At) > 0) {
			newest[n] = &r
		}
		return nil
	})
	for _, r := range newest {
		if err == nil && r != nil {
			err = fn(*r)
		}
	}
	return err
}

// lookup runs a statement about the keys of lookups, with ranges also about their
// sequences, and gives each record with the number of its lookup.
func (w *Writer) lookup(ctx context.Context, t *scd.Target, sql string, ranges bool, at []sequenced.Lookup, fn func(n int, r sequenced.Record) error) error {
	var arena scd.Arena
	for from := 0; from < len(at); {
		part := at[from:]
		n := chunk(len(part), func(i int) int { return len(part[i].Key) + len(part[i].Seq) })
		params := [][]byte{bytesArray(n, false, func(i int) []byte { return part[i].Key })}
		if ranges {
			params = append(params, bytesArray(n, false, func(i int) []byte { return part[i].Seq }))
		}
		err := w.reading(ctx, t, sql, params, func(v [][]byte) error {
			number := from + int(binary.BigEndian.Uint64(v[0])) - 1
			seq, place, body := v[1], v[2], v[3]
			b := arena.Take(len(seq) + len(place) + len(body))
			b = append(append(append(b, seq...), place...), body...)
			p := len(seq) + len(place)
			return fn(number, sequenced.Record{
				Key:       at[number].Key,
				Seq:       b[:len(seq):len(seq)],
				At:        b[len(seq):p:p],
				Body:      b[p:len(b):len(b)],
				Tombstone: v[4][0] == 1,
				Time:      int64(binary.BigEndian.Uint64(v[5])),
			})
		})
		if err != nil {
			return err
		}
		from += n
	}
	return nil
}

// RememberedBelow reads the keys that have a record at p or below; like Remembered.
func (w *Writer) RememberedBelow(ctx context.Context, t *scd.Target, p sequenced.Place, fn func(key []byte) error) error {
	return w.reading(ctx, t, belowSQL(w.records(t)), [][]byte{some(p.Seq), some(p.At)}, func(v [][]byte) error { return fn(bytes.Clone(v[0])) })
}

// Keys reads keys in their order; like Remembered. Where it goes on is a key.
func (w *Writer) Keys(ctx context.Context, t *scd.Target, from []byte, limit int, fn func(key []byte) error) (next []byte, err error) {
	n := 0
	err = w.reading(ctx, t, keysSQL(w.records(t), limit), [][]byte{some(from)}, func(v [][]byte) error {
		n++
		next = bytes.Clone(v[0])
		return fn(next)
	})
	if n < limit {
		next = nil
	}
	return next, err
}

// some makes an empty slice of nil, which as a parameter is NULL.
func some(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// reading runs a query on Apply's session and gives each row, all in binary form
// and valid during the call only. The callback's error leaves the session whole.
func (w *Writer) reading(ctx context.Context, t *scd.Target, sql string, params [][]byte, fn func(v [][]byte) error) error {
	a := &w.apply
	if a.broken {
		return errBroken
	}
	w.stall.Begin(a.s.wire())
	defer w.stall.End()
	if a.s == nil {
		if err := a.connect(ctx); err != nil {
			return err
		}
	}
	desc, err := a.s.prepare(ctx, sql)
	var stopped error
	if err == nil {
		rows := a.s.conn.ExecStatement(ctx, desc, params, binaryCode, binaryCode)
		for stopped == nil && rows.NextRow() {
			stopped = fn(rows.Values())
		}
		_, err = rows.Close()
	}
	if err != nil {
		a.broken = true
		err = w.explain(ctx, err, "read what is remembered of table "+w.qualified(t.Name).String(), nil)
		a.close(ctx)
		return err
	}
	return stopped
}

// Head reads what is remembered of a target as a whole.
func (w *Writer) Head(ctx context.Context, t *scd.Target) (h sequenced.Head, err error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return h, err
	}
	limited, done := s.limited(ctx)
	defer done()
	res := s.conn.ExecParams(limited, headSQL, w.of(t), nil, nil, binaryCode).Read()
	if missingBook(res.Err) {
		return h, nil
	}
	if res.Err != nil {
		return h, w.explain(ctx, res.Err, "read what is remembered of table "+w.qualified(t.Name).String(), nil)
	}
	if len(res.Rows) > 0 {
		v := res.Rows[0]
		h = sequenced.Head{Truncated: sequenced.Place{Seq: v[0], At: v[1]}, Horizon: v[2]}
	}
	return h, nil
}

// Counted reads what was counted of a target's events.
func (w *Writer) Counted(ctx context.Context, t *scd.Target) (c sequenced.Counts, err error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return c, err
	}
	n := w.qualified(t.Name)
	rows, err := s.query(ctx, countedSQL, w.cfg.Pipeline, n.Schema, n.Table)
	if missingBook(err) {
		return c, nil
	}
	if err != nil {
		return c, w.explain(ctx, err, "read what was counted of table "+n.String(), nil)
	}
	for _, r := range rows {
		for i, to := range []*int{&c.Duplicates, &c.Late, &c.Ties, &c.Truncated, &c.Beyond, &c.Unknown, &c.Forgotten} {
			*to = int(num(r[i]))
		}
	}
	return c, nil
}

// Reset empties a target and what is remembered of it, in one transaction that is on
// disk when it returns. A table of ours that no longer fits goes, with its memory:
// Create makes both anew.
func (w *Writer) Reset(ctx context.Context, t *scd.Target) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx) // also what takes an unfinished transaction back
	w.mayReplicate(ctx, s)
	delete(w.apply.known, t.Name)
	return w.explain(ctx, w.reset(ctx, s, epoch, t), "empty table "+w.qualified(t.Name).String(), nil)
}

func (w *Writer) reset(ctx context.Context, s *session, epoch int64, t *scd.Target) error {
	name := w.qualified(t.Name)
	r, err := w.readRelation(ctx, s, name)
	if err != nil {
		return err
	}
	there, err := w.remembers(ctx, s, t)
	if err != nil {
		return err
	}
	d, err := w.plan(ctx, s, t)
	if err != nil {
		return err
	}
	misfit := slices.ContainsFunc(d.Problems, func(f sink.Finding) bool { return f.Blocks && f.Reset })
	sql := "SET LOCAL synchronous_commit = local;"
	drop := misfit && r != nil && r.ours
	switch {
	case drop:
		sql += "DROP TABLE " + qualifiedName(name) + ";"
		if t.ChangeFeed { // its columns are the table's
			sql += "DROP TABLE IF EXISTS " + feedTable(w.feedName(t)) + ";"
		}
		if there {
			sql += "DROP TABLE " + w.records(t) + ";"
		}
	default:
		if r != nil {
			sql += "TRUNCATE " + qualifiedName(name) + ";"
		}
		if there {
			sql += "TRUNCATE " + w.records(t) + ";"
		}
	}
	if err := s.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := w.fence(ctx, s, epoch); err != nil {
		return err
	}
	if t.ChangeFeed && !drop && r != nil {
		if err := w.feedEmptied(ctx, s, t); err != nil {
			return err
		}
	}
	if err := s.exec(ctx, sql); err != nil {
		return err
	}
	if _, err := s.query(ctx, resetSQL, w.cfg.Pipeline, name.Schema, name.Table); err != nil {
		return err
	}
	if err := w.barrier(ctx, s, name, "it was emptied, to be filled anew"); err != nil {
		return err
	}
	for _, sql := range []string{resolveTargetSQL, forgetTargetsSQL} {
		if _, err := s.query(ctx, sql, w.cfg.Pipeline, t.Name.Schema, t.Name.Table); err != nil {
			return err
		}
	}
	return s.exec(ctx, "COMMIT")
}

// Records reads every record of a target, sorted by the server.
func (w *Writer) Records(ctx context.Context, t *scd.Target, fn func(sequenced.Record) error) error {
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx) // also what ends a reading that fn has stopped
	rows := s.conn.ExecParams(ctx, "SELECT "+recordColumns+" FROM "+w.records(t)+" WHERE key <> '' ORDER BY key, seq, at", nil, nil, nil, binaryCode)
	for rows.NextRow() {
		v := rows.Values()
		b := make([]byte, 0, len(v[0])+len(v[1])+len(v[2])+len(v[3]))
		part := func(i int) []byte { b = append(b, v[i]...); return b[len(b)-len(v[i]) : len(b) : len(b)] }
		err := fn(sequenced.Record{Key: part(0), Seq: part(1), At: part(2), Body: part(3), Tombstone: v[4][0] == 1, Time: int64(binary.BigEndian.Uint64(v[5]))})
		if err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil && !missingBook(err) {
		return w.explain(ctx, err, "read what is remembered of table "+w.qualified(t.Name).String(), nil)
	}
	return nil
}

// Rows reads every row of a sequenced target.
func (w *Writer) Rows(ctx context.Context, t *scd.Target, fn func(row change.Row) error) error {
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx)
	name := w.qualified(t.Name)
	list := each(len(t.Columns), ", ", func(i int) string { return quote(t.Columns[i].Name) })
	if t.Kind == scd.Type2 {
		list += ", " + startColumn + ", " + endColumn
	}
	rows := s.conn.ExecParams(ctx, "SELECT "+list+" FROM "+qualifiedName(name), nil, nil, nil, nil)
	var row change.Row
	for rows.NextRow() {
		row = row[:0]
		for _, data := range rows.Values() {
			v := change.Value{State: change.AsText, Data: data}
			if data == nil {
				v.State = change.Null
			}
			row = row.Append(v)
		}
		if err := fn(row); err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil {
		return w.explain(ctx, err, "read table "+name.String(), nil)
	}
	return nil
}

// countedPages are how many pages of records are counted (32 MiB); of larger tables a
// sample of that size is.
const countedPages = 4096

// Remembers counts the records of a sequenced target.
func (w *Writer) Remembers(ctx context.Context, t *scd.Target) (n sink.MemorySize, err error) {
	w.side.Lock()
	defer w.side.Unlock()
	s, err := w.sideSession(ctx)
	if err != nil {
		return n, err
	}
	there, err := w.remembers(ctx, s, t)
	if err == nil && there {
		n, err = w.count(ctx, s, w.records(t), countedPages)
	}
	return n, w.explain(ctx, err, "count what is remembered of table "+w.qualified(t.Name).String(), nil)
}

func (w *Writer) count(ctx context.Context, s *session, records string, most int64) (n sink.MemorySize, err error) {
	rows, err := s.query(ctx, "SELECT pg_relation_size($1::regclass) / current_setting('block_size')::bigint", records)
	if err != nil {
		return n, err
	}
	pages := num(rows[0][0])
	sample := ""
	if n.Estimated = pages > most; n.Estimated {
		sample = fmt.Sprintf(" TABLESAMPLE SYSTEM (%g)", 100*float64(most)/float64(pages))
	}
	if rows, err = s.query(ctx, "SELECT count(*), count(*) FILTER (WHERE tombstone) FROM "+records+sample+" WHERE key <> ''"); err != nil {
		return n, err
	}
	n.Records, n.Tombstones = num(rows[0][0]), num(rows[0][1])
	if n.Estimated {
		n.Records, n.Tombstones = n.Records*pages/most, n.Tombstones*pages/most
	}
	return n, nil
}

// remembers reports whether t's table of records is there.
func (w *Writer) remembers(ctx context.Context, s *session, t *scd.Target) (bool, error) {
	rows, err := s.query(ctx, "SELECT to_regclass($1) IS NOT NULL", w.records(t))
	if err != nil {
		return false, err
	}
	return str(rows[0][0]) == "t", nil
}
