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
)

// work carries out what a sequenced target remembers from a batch, up to the point
// where its rows are written. What comes after them is workAfter.
func (a *applier) work(ctx context.Context, sh *shape, f form, w *sequenced.Work) error {
	known := a.known[sh.target.Name]
	delete(a.known, sh.target.Name)
	if !w.TruncateBelow.IsZero() {
		known = nil // what it speaks of may go now
		if err := a.truncateBelow(ctx, sh, f, w.TruncateBelow); err != nil {
			return err
		}
	}
	puts := make([]put, len(w.Put))
	for i := range w.Put {
		puts[i].Record = &w.Put[i]
	}
	removes := pair(w.Remove, puts, sh.target.Kind)
	if err := a.removeRecords(ctx, sh, removes); err != nil {
		return err
	}
	fresh, moves, others := known.sort(puts)
	if len(fresh) <= fewRows {
		fresh, others = nil, append(others, fresh...)
	}
	if err := a.copyRecords(ctx, sh, fresh); err != nil {
		return err
	}
	if err := a.putRecords(ctx, sh, moveRecordsSQL(sh.records), moves, true); err != nil {
		return err
	}
	return a.putRecords(ctx, sh, putRecordsSQL(sh.records, sh.target.Kind), others, false)
}

// copyRecords copies records that are not there.
func (a *applier) copyRecords(ctx context.Context, sh *shape, puts []put) error {
	if len(puts) == 0 {
		return nil
	}
	i := 0
	sc := &a.scratch
	sc.binary = true
	bytea := func(b []byte) change.Value { return change.Value{State: change.Binary, Data: b} }
	fields := make([]change.Value, 6)
	return a.copyIn(ctx, sh, "remember events of", copyInto(sh.records, recordColumns, true), asBinary, func() ([]change.Value, bool, error) {
		if i == len(puts) {
			return nil, false, nil
		}
		p := &puts[i]
		i++
		sc.reset()
		fields[0], fields[1], fields[2], fields[3] = bytea(p.Key), bytea(p.Seq), bytea(p.At), bytea(p.Body)
		fields[4], fields[5] = sc.bool(p.Tombstone), sc.int8(p.Time)
		return fields, true, nil
	})
}

// put is a record on its way and the one whose place it takes.
type put struct {
	*sequenced.Record
	old *sequenced.RecordID
}

func compareRecords(key, seq, at, otherKey, otherSeq, otherAt []byte) int {
	if c := bytes.Compare(key, otherKey); c != 0 {
		return c
	}
	if c := bytes.Compare(seq, otherSeq); c != 0 {
		return c
	}
	return bytes.Compare(at, otherAt)
}

// pair sorts puts and gives each that is the only one of its key a record to take
// the place of, if one of that key goes. It returns the removes that are left, in
// order. What goes and comes under one identity is a put alone.
func pair(removes []sequenced.RecordID, puts []put, kind scd.Kind) []sequenced.RecordID {
	slices.SortFunc(puts, func(a, b put) int { return compareRecords(a.Key, a.Seq, a.At, b.Key, b.Seq, b.At) })
	if len(removes) == 0 {
		return nil
	}
	removes = slices.Clone(removes)
	slices.SortFunc(removes, func(a, b sequenced.RecordID) int { return compareRecords(a.Key, a.Seq, a.At, b.Key, b.Seq, b.At) })
	var left []sequenced.RecordID
	at := 0
	for i := 0; i < len(removes); {
		key := removes[i].Key
		for at < len(puts) && bytes.Compare(puts[at].Key, key) < 0 {
			at++
		}
		end := at
		for end < len(puts) && bytes.Equal(puts[end].Key, key) {
			end++
		}
		for ; i < len(removes) && bytes.Equal(removes[i].Key, key); i++ {
			gone := &removes[i]
			comes := slices.ContainsFunc(puts[at:end], func(p put) bool { return bytes.Equal(p.Seq, gone.Seq) && bytes.Equal(p.At, gone.At) })
			switch {
			case comes:
			case kind == scd.Type1 && end-at == 1 && puts[at].old == nil:
				puts[at].old = gone
			default:
				left = append(left, *gone)
			}
		}
		at = end
	}
	return left
}

// chunk says how many of the n items from the first on go into one statement.
func chunk(n int, size func(i int) int) int {
	bytes, i := 0, 0
	for i < n && i < keysMax && bytes < keyBytes {
		bytes += size(i)
		i++
	}
	return i
}

func (a *applier) removeRecords(ctx context.Context, sh *shape, ids []sequenced.RecordID) error {
	return a.aboutRecords(ctx, removeRecordsSQL(sh.records), ids, job{doing: "forget events of", sh: sh, rows: -1})
}

// aboutRecords pushes a statement about records by their identity.
func (a *applier) aboutRecords(ctx context.Context, sql string, ids []sequenced.RecordID, j job) error {
	for len(ids) > 0 {
		n := chunk(len(ids), func(i int) int { return len(ids[i].Key) + len(ids[i].Seq) + len(ids[i].At) })
		params := [][]byte{
			bytesArray(n, false, func(i int) []byte { return ids[i].Key }),
			bytesArray(n, false, func(i int) []byte { return ids[i].Seq }),
			bytesArray(n, false, func(i int) []byte { return ids[i].At }),
		}
		if err := a.push(ctx, sql, params, asBinary, j); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// putRecords pushes a statement about records and, in type 1, those whose place they
// take. If all are known to move, each of these must be there.
func (a *applier) putRecords(ctx context.Context, sh *shape, sql string, puts []put, known bool) error {
	for len(puts) > 0 {
		n := chunk(len(puts), func(i int) int { return len(puts[i].Key) + len(puts[i].Seq) + len(puts[i].At) + len(puts[i].Body) })
		params := [][]byte{
			bytesArray(n, false, func(i int) []byte { return puts[i].Key }),
			bytesArray(n, false, func(i int) []byte { return puts[i].Seq }),
			bytesArray(n, false, func(i int) []byte { return puts[i].At }),
			bytesArray(n, false, func(i int) []byte { return puts[i].Body }),
			boolArray(n, func(i int) bool { return puts[i].Tombstone }),
			intArray(n, func(i int) int64 { return puts[i].Time }),
		}
		if sh.target.Kind == scd.Type1 {
			old := func(part func(*sequenced.RecordID) []byte) []byte {
				return bytesArray(n, true, func(i int) []byte {
					if puts[i].old == nil {
						return nil
					}
					return part(puts[i].old)
				})
			}
			params = append(params, old(func(id *sequenced.RecordID) []byte { return some(id.Seq) }), old(func(id *sequenced.RecordID) []byte { return some(id.At) }))
		}
		j := job{doing: "remember events of", sh: sh, rows: -1}
		if known {
			j.rows = int64(n)
		}
		if err := a.push(ctx, sql, params, asBinary, j); err != nil {
			return err
		}
		puts = puts[n:]
	}
	return nil
}

// orphansChunk is how many keys of a truncate are held at once.
const orphansChunk = 10_000

// truncateBelow forgets every record at p or below. Rows of which nothing is
// remembered any more go with them (type 1).
func (a *applier) truncateBelow(ctx context.Context, sh *shape, f form, p sequenced.Place) error {
	const doing = "truncate"
	if err := a.do(ctx, sh, doing, wholeTable); err != nil {
		return err
	}
	if sh.target.Kind == scd.Type1 {
		if err := a.do(ctx, sh, doing, "DECLARE tailrace_orphans NO SCROLL CURSOR FOR "+orphansSQL(sh.records, bytesLiteral(p.Seq), bytesLiteral(p.At))); err != nil {
			return err
		}
		for more := true; more; {
			keys, err := a.fetchKeys(ctx, sh)
			if err != nil {
				return err
			}
			if err := a.keepOrphans(ctx, sh, f, keys); err != nil {
				return err
			}
			if err := a.deletes(ctx, sh, f, &scd.Round{Deletes: keys}); err != nil {
				return err
			}
			if err := a.flush(ctx); err != nil {
				return err
			}
			more = len(keys) == orphansChunk
		}
		if err := a.do(ctx, sh, doing, "CLOSE tailrace_orphans"); err != nil {
			return err
		}
	}
	if err := a.push(ctx, truncateRecordsSQL(sh.records), [][]byte{some(p.Seq), some(p.At)}, asBinary, job{doing: doing, sh: sh, rows: -1}); err != nil {
		return err
	}
	return a.do(ctx, sh, doing, byIndex)
}

func (a *applier) fetchKeys(ctx context.Context, sh *shape) ([]scd.Key, error) {
	var keys []scd.Key
	var arena scd.Arena
	rows := a.s.conn.ExecParams(ctx, fmt.Sprintf("FETCH %d FROM tailrace_orphans", orphansChunk), nil, nil, nil, binaryCode)
	for rows.NextRow() {
		key := rows.Values()[0]
		keys = append(keys, scd.Key(append(arena.Take(len(key)), key...)))
	}
	if _, err := rows.Close(); err != nil {
		return nil, &jobError{job{doing: "truncate", sh: sh}, err}
	}
	slices.SortFunc(keys, func(a, b scd.Key) int { return bytes.Compare(a, b) })
	return keys, nil
}

// workAfter stores the head and the counts and forgets old deletes, once the rows are
// written.
func (a *applier) workAfter(ctx context.Context, sh *shape, w *sequenced.Work) error {
	of := a.w.of(sh.target)
	if c := w.Counts.Kept(); c != (sequenced.Counts{}) {
		params := of[:3:3]
		for _, n := range []int{c.Duplicates, c.Late, c.Ties, c.Truncated, c.Beyond, c.Unknown} {
			params = append(params, binary.BigEndian.AppendUint64(nil, uint64(n)))
		}
		if err := a.push(ctx, countSQL, params, asBinary, job{doing: "count events of", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	if w.HeadChanged {
		params := append(of[:3:3], w.Head.Truncated.Seq, w.Head.Truncated.At, w.Head.Horizon)
		if err := a.push(ctx, saveHeadSQL, params, asBinary, job{doing: "remember the truncate of", sh: sh, rows: 1}); err != nil {
			return err
		}
	}
	if w.ForgetBefore == 0 {
		return nil
	}
	if err := a.do(ctx, sh, "forget old deletes of", wholeTable); err != nil {
		return err
	}
	params := append(of[:3:3], binary.BigEndian.AppendUint64(nil, uint64(w.ForgetBefore)))
	if err := a.push(ctx, forgetSQL(sh.records), params, asBinary, job{doing: "forget old deletes of", sh: sh, rows: 1}); err != nil {
		return err
	}
	return a.do(ctx, sh, "forget old deletes of", byIndex)
}

// Statements that read a whole table, and back.
const (
	wholeTable = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_seqscan = on"
	byIndex    = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_seqscan = off"
)
