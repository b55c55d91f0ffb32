package mysql

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// work carries out what a sequenced target remembers from a batch, up to the point where
// its rows are written. What comes after them is workAfter.
func (a *applier) work(ctx context.Context, sh *shape, w *sequenced.Work) error {
	if !w.TruncateBelow.IsZero() {
		if err := a.truncateBelow(ctx, sh, w.TruncateBelow); err != nil {
			return err
		}
	}
	gone := newList(a.s, sh, "DELETE r FROM "+sh.records+" AS r FORCE INDEX (identity) WHERE (r.`key`, r.seq, r.at) IN (", ")", "forget events of")
	forget := func(key, seq, at []byte) error {
		gone.open()
		for i, b := range [][]byte{key, seq, at} {
			if i > 0 {
				gone.buf = append(gone.buf, ',')
			}
			gone.buf = appendOctets(gone.buf, b)
		}
		return gone.end(ctx)
	}
	for i := range w.Remove {
		if err := forget(w.Remove[i].Key, w.Remove[i].Seq, w.Remove[i].At); err != nil {
			return err
		}
	}
	for i := range w.Put {
		if err := forget(w.Put[i].Key, w.Put[i].Seq, w.Put[i].At); err != nil {
			return err
		}
	}
	if err := gone.flush(ctx); err != nil {
		return err
	}
	return putRecords(ctx, a.s, sh, sh.records, len(w.Put), func(i int) (*sequenced.Record, error) { return &w.Put[i], nil })
}

// putRecords inserts records that are not there.
func putRecords(ctx context.Context, s *session, sh *shape, records string, n int, at func(i int) (*sequenced.Record, error)) error {
	const doing = "remember events of"
	if s.server.local && n >= loadRows {
		i := 0
		sent, met, err := load(ctx, s, sh, doing, func(reader string) string { return loadSQL(reader, "INTO TABLE "+records, recordColumns) }, func(dst []byte) ([]byte, bool, error) {
			if i == n {
				return dst, false, nil
			}
			r, err := at(i)
			i++
			if err != nil {
				return dst, false, err
			}
			return appendRecordLine(dst, r), true, nil
		})
		if err == nil && sent != met {
			err = fault.Corrupted("%s %s: of %d records %d have arrived", doing, sh.label(), sent, met)
		}
		return err
	}
	l := newList(s, sh, "INSERT INTO "+records+" ("+recordColumns+") VALUES ", "", doing)
	for i := range n {
		r, err := at(i)
		if err != nil {
			return err
		}
		l.open()
		for _, b := range [][]byte{r.Key, r.Seq, r.At, r.Body} {
			l.buf = append(appendOctets(l.buf, b), ',')
		}
		l.buf = append(l.buf, constant(r.Tombstone)+","+constant(r.Time)...)
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

func appendRecordLine(dst []byte, r *sequenced.Record) []byte {
	for _, b := range [][]byte{r.Key, r.Seq, r.At, r.Body} {
		dst = append(appendEscaped(dst, b), '\t')
	}
	dst = append(dst, constant(r.Tombstone)+"\t"+constant(r.Time)...)
	return append(dst, '\n')
}

// orphansChunk is how many keys of a truncate are held at once.
const orphansChunk = 10_000

// truncateBelow forgets every record at p or below. Rows of which nothing is remembered
// any more go with them (type 1).
func (a *applier) truncateBelow(ctx context.Context, sh *shape, p sequenced.Place) error {
	below := notAbove(p)
	if sh.target.Kind == scd.Type1 {
		from := []byte{}
		for more := true; more; {
			rows, err := a.s.query(ctx, bind(fmt.Sprintf("SELECT `key` FROM %s FORCE INDEX (identity) WHERE `key` > ? GROUP BY `key` HAVING SUM(NOT %s) = 0 AND SUM(NOT tombstone) > 0 ORDER BY `key` LIMIT %d", sh.records, below, orphansChunk), from))
			if err != nil {
				return &jobError{"truncate", sh, err}
			}
			keys := make([]scd.Key, len(rows))
			for i, r := range rows {
				keys[i] = scd.Key(str(r[0]))
			}
			if more = len(keys) == orphansChunk; more {
				from = keys[len(keys)-1]
			}
			slices.SortFunc(keys, func(a, b scd.Key) int { return bytes.Compare(a, b) })
			if _, err := a.delete(ctx, sh, keys); err != nil {
				return err
			}
		}
	}
	_, err := a.on(ctx, sh, "DELETE FROM "+sh.records+" WHERE "+below, "truncate")
	return err
}

// workAfter stores the head and the counts and forgets old deletes, once the rows are
// written.
func (a *applier) workAfter(ctx context.Context, sh *shape, w *sequenced.Work) error {
	name := a.w.qualified(sh.target.Name)
	c := w.Counts.Kept()
	if c != (sequenced.Counts{}) {
		if _, err := a.on(ctx, sh, bind(countSQL, a.w.cfg.Pipeline, name.Schema, name.Table, c.Duplicates, c.Late, c.Ties, c.Truncated, c.Beyond, c.Unknown, 0), "count events of"); err != nil {
			return err
		}
	}
	if w.HeadChanged {
		n, err := a.on(ctx, sh, a.w.of(saveHeadSQL, sh.target, w.Head.Truncated.Seq, w.Head.Truncated.At), "remember the truncate of")
		if err == nil && n != 1 {
			err = fault.Corrupted("remember the truncate of %s: it is not among the targets that remember", sh.label())
		}
		if err == nil && w.Head.Horizon != nil {
			err = a.raiseHorizon(ctx, sh, w.Head.Horizon)
		}
		if err != nil {
			return err
		}
	}
	if w.ForgetBefore == 0 {
		return nil
	}
	const doing = "forget old deletes of"
	old := fmt.Sprintf(" FROM %s WHERE tombstone = 1 AND time < %d", sh.records, w.ForgetBefore)
	rows, err := a.s.query(ctx, "SELECT MAX(seq)"+old)
	if err != nil {
		return &jobError{doing, sh, err}
	}
	if rows[0][0] == nil {
		return nil
	}
	if sh.heldRecords != nil {
		if _, err := a.on(ctx, sh, sh.keepRecordsWhereSQL(sh.heldRecords, fmt.Sprintf("tombstone = 1 AND time < %d", w.ForgetBefore)), doing); err != nil {
			return err
		}
	}
	n, err := a.on(ctx, sh, "DELETE"+old, doing)
	if err != nil {
		return err
	}
	if _, err := a.on(ctx, sh, bind(countSQL, a.w.cfg.Pipeline, name.Schema, name.Table, 0, 0, 0, 0, 0, 0, n), doing); err != nil {
		return err
	}
	return a.raiseHorizon(ctx, sh, []byte(*rows[0][0]))
}

func (a *applier) raiseHorizon(ctx context.Context, sh *shape, to []byte) error {
	name := a.w.qualified(sh.target.Name)
	_, err := a.on(ctx, sh, bind(raiseHorizonSQL, to, a.w.cfg.Pipeline, name.Schema, name.Table, to), "raise the horizon of")
	return err
}

// versions carries out a type 2 round that names stored versions by their start: first
// ends, then drops, each of which must be there, then begins.
func (a *applier) versions(ctx context.Context, sh *shape, r *scd.Round) error {
	if len(r.Ends)+len(r.Drops)+len(r.Begins) != r.Size() || r.Truncate {
		return fault.Corrupted("apply to %s: a round of the sequenced lane holds other work", sh.label())
	}
	e := &encoder{sh: sh}
	if err := a.there(ctx, e, r.Ends); err != nil {
		return err
	}
	head, tail := sh.endSQL(false)
	l := a.list(head, tail, sh, "end versions of")
	for i := range r.Ends {
		if err := e.versionID(l, &r.Ends[i].VersionID); err != nil {
			return err
		}
		var err error
		if l.buf, err = e.constant(append(l.buf, ','), &sh.end, r.Ends[i].End); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	head, tail = sh.deleteSQL(true)
	l = a.list(head, tail, sh, "drop versions of")
	for i := range r.Drops {
		if err := e.versionID(l, &r.Drops[i]); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	if l.met != l.sent {
		return fault.Corrupted("drop versions of %s: %d rows were to be there, %d are", sh.label(), l.sent, l.met)
	}
	return a.beginVersions(ctx, e, len(r.Begins), func(i int) (values []change.Value, start, end change.Value, err error) {
		v := &r.Begins[i]
		err = e.parse(v.Row, false)
		return e.values, v.Start, v.End, err
	})
}

// there demands that versions which are to end are there: the statement that ends them
// would insert them.
func (a *applier) there(ctx context.Context, e *encoder, ends []scd.VersionEnd) error {
	head, tail := e.sh.countSQL()
	for part := range slices.Chunk(ends, statementRows/2) {
		l := a.list(head, tail, e.sh, "end versions of")
		for i := range part {
			if err := e.versionID(l, &part[i].VersionID); err != nil {
				return err
			}
			l.buf = append(l.buf, ')')
			l.items++
		}
		rows, err := a.s.query(ctx, text(append(l.buf, tail...)))
		if err != nil {
			return &jobError{l.doing, e.sh, err}
		}
		if n := num(rows[0][0]); n != int64(len(part)) {
			return fault.Corrupted("end versions of %s: %d rows were to be there, %d are", e.sh.label(), len(part), n)
		}
	}
	return nil
}

// versionID begins an item with a version's key and start.
func (e *encoder) versionID(l *list, id *scd.VersionID) error {
	l.open()
	var err error
	if l.buf, err = e.keyConstants(l.buf, id.Key); err != nil {
		return err
	}
	l.buf, err = e.constant(append(l.buf, ','), &e.sh.start, id.Start)
	return err
}
