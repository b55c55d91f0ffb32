package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"slices"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// round1 carries out a type 1 round, in the order that scd.Round gives.
//
// Rows are identified by the key's index alone. ON DUPLICATE KEY UPDATE and REPLACE
// would take a row with an equal value under another unique index for the same one; so
// where there is such an index, all keys that the round touches are deleted first, and
// its rows, made complete, are inserted. That is also right for rows that exchange such
// values.
//
// In a restored target a patch whose row is not there is left out.
func (a *applier) round1(ctx context.Context, sh *shape, r *scd.Round, restored bool) error {
	if r.Truncate { // TRUNCATE would commit
		if _, err := a.on(ctx, sh, "DELETE FROM "+sh.name, "truncate"); err != nil {
			return err
		}
	}
	e := &encoder{sh: sh}
	if len(sh.keys) == 0 {
		return a.write(ctx, e, "insert into", false, rowsOf(e, r.Inserts))
	}
	gone := r.Deletes
	if len(r.Moves) > 0 {
		gone = make([]scd.Key, 0, len(r.Deletes)+len(r.Moves))
		gone = append(gone, r.Deletes...)
		for i := range r.Moves {
			gone = append(gone, r.Moves[i].Old)
		}
	}
	moved, err := a.filled(ctx, e, len(r.Moves), false, func(i int) (scd.Key, change.Row) { return r.Moves[i].Old, r.Moves[i].Row })
	if err != nil {
		return err
	}
	if len(sh.uniques) > 0 {
		return a.replaceAll(ctx, e, r, gone, moved, restored)
	}
	if _, err := a.delete(ctx, sh, gone); err != nil {
		return err
	}
	if err := a.write(ctx, e, "move rows of", true, moved); err != nil {
		return err
	}
	if err := a.write(ctx, e, "insert into", true, rowsOf(e, r.Inserts)); err != nil {
		return err
	}
	if err := a.write(ctx, e, "upsert into", true, rowsOf(e, r.Upserts)); err != nil {
		return err
	}
	if err := a.patch(ctx, e, r.Patches, restored); err != nil {
		return err
	}
	return a.unchanged(ctx, sh)
}

// replaceAll deletes every key of the round and inserts its rows.
func (a *applier) replaceAll(ctx context.Context, e *encoder, r *scd.Round, gone []scd.Key, moved rows, restored bool) error {
	patched, err := a.filled(ctx, e, len(r.Patches), restored, func(i int) (scd.Key, change.Row) { return nil, r.Patches[i] })
	if err != nil {
		return err
	}
	gone = slices.Clone(gone)
	lists := []rows{moved, rowsOf(e, r.Inserts), rowsOf(e, r.Upserts), patched}
	for _, list := range lists {
		for i := range list.n {
			values, err := list.at(i)
			if err != nil {
				return err
			}
			key := scd.Key{}
			for _, k := range e.sh.keys {
				key = key.Append(values[k])
			}
			gone = append(gone, key)
		}
	}
	if _, err := a.delete(ctx, e.sh, gone); err != nil {
		return err
	}
	for _, list := range lists {
		if err := a.write(ctx, e, "insert into", false, list); err != nil {
			return err
		}
	}
	return nil
}

// unchanged makes sure that no unique index has come to a target since it was looked at.
// The transaction has written to the target, so that none can come until it ends.
func (a *applier) unchanged(ctx context.Context, sh *shape) error {
	rows, err := about(ctx, a.s, uniquesSQL, sh.place)
	if err != nil {
		return &jobError{"look at", sh, err}
	}
	if len(rows) > 1 {
		return fault.Retry(nil, "%s has a further unique index since it was looked at", sh.label())
	}
	return nil
}

const uniquesSQL = `SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0 AND SEQ_IN_INDEX = 1`

// rows are complete rows, one after another; what at gives is valid until its next call.
type rows struct {
	n  int
	at func(i int) ([]change.Value, error)
}

func rowsOf(e *encoder, list []change.Row) rows {
	return rows{len(list), func(i int) ([]change.Value, error) {
		err := e.parse(list[i], false)
		return e.values, err
	}}
}

// write inserts rows, with upsert over those with their keys.
func (a *applier) write(ctx context.Context, e *encoder, doing string, upsert bool, list rows) error {
	if list.n == 0 {
		return nil
	}
	sh := e.sh
	if a.s.server.local && list.n >= loadRows && (sh.exact || !upsert) {
		i := 0
		sent, met, err := load(ctx, a.s, sh, doing, func(reader string) string { return sh.loadSQL(reader, upsert) }, func(dst []byte) ([]byte, bool, error) {
			if i == list.n {
				return dst, false, nil
			}
			values, err := list.at(i)
			i++
			if err == nil {
				dst, err = e.line(dst, values)
			}
			return dst, err == nil, err
		})
		if err == nil && (met < sent || !upsert && met != sent) {
			err = fault.Corrupted("%s %s: of %d rows %d have arrived", doing, sh.label(), sent, met)
		}
		return err
	}
	head, tail := sh.insertSQL(upsert)
	l := a.list(head, tail, sh, doing)
	for i := range list.n {
		values, err := list.at(i)
		if err != nil {
			return err
		}
		l.open()
		if l.buf, err = e.row(l.buf, values); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// keyValues splits a key.
func (e *encoder) keyValues(dst []change.Value, key scd.Key) ([]change.Value, error) {
	dst, err := key.Values(dst, len(e.sh.keys))
	if err != nil {
		return dst, e.torn(err)
	}
	return dst, nil
}

// keyConstants appends a key's columns, separated by commas.
func (e *encoder) keyConstants(dst []byte, key scd.Key) ([]byte, error) {
	for n, k := range e.sh.keys {
		v, rest, err := key.Next()
		if err != nil {
			return dst, e.torn(err)
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		if dst, err = e.constant(dst, &e.sh.columns[k], v); err != nil {
			return dst, err
		}
		key = rest
	}
	return dst, nil
}

// delete deletes keys and returns how many rows there were.
func (a *applier) delete(ctx context.Context, sh *shape, keys []scd.Key) (int64, error) {
	e := &encoder{sh: sh}
	head, tail := sh.deleteSQL(false)
	l := a.list(head, tail, sh, "delete from")
	for _, key := range keys {
		l.open()
		var err error
		if l.buf, err = e.keyConstants(l.buf, key); err != nil {
			return l.met, err
		}
		if err := l.end(ctx); err != nil {
			return l.met, err
		}
	}
	err := l.flush(ctx)
	return l.met, err
}

// fetchKeys are asked for in one statement; each is a part of its UNION.
const fetchKeys = 200

// fetch reads stored rows by key: of type 1 the row, of type 2 the newest version. It
// gives each that is there with the number of its key; what it gives is valid during the
// call.
func (a *applier) fetch(ctx context.Context, sh *shape, n int, key func(i int) (scd.Key, error), fn func(i int, row []sqldriver.Value) error) error {
	head, tail := sh.fetchSQL()
	return a.byKeys(ctx, sh, "read rows of", head, tail, n, key, fn)
}

// byKeys runs a statement between whose head and tail a list of keys comes. Without fn it
// gives no rows.
func (a *applier) byKeys(ctx context.Context, sh *shape, doing, head, tail string, n int, key func(i int) (scd.Key, error), fn func(i int, row []sqldriver.Value) error) error {
	return a.byIDs(ctx, sh, doing, head, tail, n, key, nil, fn)
}

// byIDs is byKeys for a list of versions, if start is not nil.
func (a *applier) byIDs(ctx context.Context, sh *shape, doing, head, tail string, n int, key func(i int) (scd.Key, error), start func(i int) change.Value, fn func(i int, row []sqldriver.Value) error) error {
	e := &encoder{sh: sh}
	var sql []byte
	for from := 0; from < n; from += fetchKeys {
		sql = append(sql[:0], head...)
		for i := from; i < min(n, from+fetchKeys); i++ {
			k, err := key(i)
			if err != nil {
				return err
			}
			if sql, err = e.appendKey(sql, i, i == from, k); err != nil {
				return err
			}
			if start == nil {
				continue
			}
			if sql, err = e.constant(append(sql, ", "...), &sh.start, start(i)); err != nil {
				return err
			}
			if sh.start.typ.store == asChars && sh.start.collation != sh.session {
				sql = append(append(sql, " COLLATE "...), sh.start.collation...)
			}
			if i == from {
				sql = append(sql, " AS ks"...)
			}
		}
		sql = append(sql, tail...)
		var err error
		if fn == nil {
			_, err = a.s.exec(ctx, text(sql))
		} else {
			var stopped error
			err = a.s.stream(ctx, text(sql), false, nil, func(row []sqldriver.Value) error {
				stopped = fn(int(intOf(row[0])), row[1:])
				return stopped
			})
			if stopped != nil {
				return stopped
			}
		}
		if err != nil {
			return &jobError{doing, sh, err}
		}
	}
	return nil
}

// appendKey appends a key as a part of the derived table q.
func (e *encoder) appendKey(dst []byte, number int, first bool, key scd.Key) ([]byte, error) {
	if !first {
		dst = append(dst, " UNION ALL "...)
	}
	dst = strconv.AppendInt(append(dst, "SELECT "...), int64(number), 10)
	if first {
		dst = append(dst, " AS n"...)
	}
	for n, k := range e.sh.keys {
		v, rest, err := key.Next()
		if err != nil {
			return dst, e.torn(err)
		}
		key = rest
		c := &e.sh.columns[k]
		dst = append(dst, ", "...)
		if dst, err = e.constant(dst, c, v); err != nil {
			return dst, err
		}
		if c.typ.store == asChars && c.collation != e.sh.session {
			dst = append(append(dst, " COLLATE "...), c.collation...)
		}
		if first {
			dst = strconv.AppendInt(append(dst, " AS k"...), int64(n), 10)
		}
	}
	return dst, nil
}

// filled makes rows complete: absent columns come from the stored rows of their origins
// (nil: the row's own key), as they are before anything of the round is written. One
// whose origin is not there is corrupt; with lenient it is left out.
func (a *applier) filled(ctx context.Context, e *encoder, n int, lenient bool, at func(i int) (origin scd.Key, row change.Row)) (rows, error) {
	sh := e.sh
	var gapped []int
	for i := range n {
		if _, row := at(i); row.HasAbsent(len(sh.columns)) {
			gapped = append(gapped, i)
		}
	}
	fills := make(map[int][]change.Value, len(gapped))
	var arena scd.Arena
	err := a.fetch(ctx, sh, len(gapped), func(i int) (scd.Key, error) {
		origin, row := at(gapped[i])
		if origin != nil {
			return origin, nil
		}
		return e.ownKey(row)
	}, func(i int, row []sqldriver.Value) error {
		fills[gapped[i]] = sh.keep(&arena, row)
		return nil
	})
	if err != nil {
		return rows{}, err
	}
	if len(fills) != len(gapped) && lenient {
		var there []int
		for i := range n {
			if _, filled := fills[i]; filled || !slices.Contains(gapped, i) {
				there = append(there, i)
			}
		}
		return rows{len(there), func(i int) ([]change.Value, error) {
			_, row := at(there[i])
			if err := e.parse(row, true); err != nil {
				return nil, err
			}
			return e.values, e.fill(fills[there[i]])
		}}, nil
	}
	if len(fills) != len(gapped) {
		return rows{}, fault.Corrupted("fill rows of %s: %d rows that the source has changed are not there", sh.label(), len(gapped)-len(fills))
	}
	return rows{n, func(i int) ([]change.Value, error) {
		_, row := at(i)
		if err := e.parse(row, true); err != nil {
			return nil, err
		}
		return e.values, e.fill(fills[i])
	}}, nil
}

// ownKey picks a row's key out of it.
func (e *encoder) ownKey(row change.Row) (scd.Key, error) {
	if err := e.parse(row, true); err != nil {
		return nil, err
	}
	key := scd.Key{}
	for _, k := range e.sh.keys {
		if e.values[k].State == change.Absent {
			return nil, fault.Corrupted("%s: key column %s of a row was not sent", e.sh.label(), e.sh.columns[k].plain)
		}
		key = key.Append(e.values[k])
	}
	return key, nil
}

// keep copies a row that fetch gives, as values of all columns; those of the key are not
// read and stay absent.
func (sh *shape) keep(arena *scd.Arena, row []sqldriver.Value) []change.Value {
	values := make([]change.Value, len(sh.columns))
	at := 0
	for i := range sh.columns {
		c := &sh.columns[i]
		values[i].State = change.Absent
		if c.key || c.generated {
			continue
		}
		v := row[at]
		at++
		if v == nil {
			values[i].State = change.Null
			continue
		}
		size := 32 // of a number
		if b, ok := v.([]byte); ok {
			size = len(b)
		}
		values[i] = change.Value{State: stored, Data: c.readBack(arena.Take(size), v)}
	}
	return values
}

// fill puts stored values in the place of absent ones.
func (e *encoder) fill(from []change.Value) error {
	for i := range e.values {
		if e.values[i].State != change.Absent {
			continue
		}
		if e.sh.columns[i].key {
			return fault.Corrupted("%s: key column %s of a row was not sent", e.sh.label(), e.sh.columns[i].plain)
		}
		if !e.sh.columns[i].generated {
			e.values[i] = from[i]
		}
	}
	return nil
}
