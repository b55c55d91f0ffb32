package scd

import (
	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// projection maps rows of one source layout to a target's columns.
type projection struct {
	table  *change.Table
	from   []int // target column -> source column, -1 where the source has none (dropped there)
	same   bool  // the rows can be used as they are
	keys   []int // target columns that are the key
	keyEnd int   // source columns to walk to have seen every key column
}

func newProjection(t *Target, table *change.Table) (*projection, error) {
	p := &projection{table: table, from: make([]int, len(t.Columns)), keys: t.Keys()}
	p.same = len(table.Columns) == len(t.Columns)
	for i := range t.Columns {
		p.from[i] = table.Find(t.Columns[i].Name)
		if p.from[i] != i {
			p.same = false
		}
		if t.Columns[i].Key {
			if p.from[i] < 0 {
				return nil, fault.Refuse("copy the table again under a key that exists, or restore the column",
					"table %s no longer has key column %q of target %s", table.Name, t.Columns[i].Name, t.Name)
			}
			p.keyEnd = max(p.keyEnd, p.from[i]+1)
		}
	}
	return p, nil
}

// shaper turns source images into target rows. Its scratch is reused for every
// row; what it returns lies in the arena or in the source's own memory.
type shaper struct {
	target   *Target
	p        *projection
	arena    Arena
	values   []change.Value
	oldVals  []change.Value
	prevVals []change.Value
}

// images is a change as a target sees it: the key before (nil for an insert), the
// key after and the row after (nil for a delete).
type images struct {
	oldKey, newKey Key
	row            change.Row
	partial        bool       // row has Absent columns
	oldRow         change.Row // the complete old row, where the source logs it (identity FULL)
}

// shape projects c. Absent columns that the old image knows are filled from it.
func (s *shaper) shape(c *change.Change) (im images, err error) {
	n := len(c.Table.Columns)
	if c.Old != nil {
		if s.oldVals, err = c.Old.Values(s.oldVals, n); err != nil {
			return im, s.malformed(c, err)
		}
		if c.OldIsKey {
			if err := s.sent(c, s.oldVals); err != nil {
				return im, err
			}
		}
		im.oldKey = s.key(s.oldVals)
		if !c.OldIsKey {
			im.oldRow = s.row(c, s.oldVals, c.Old)
		}
	}
	if c.New == nil {
		return im, nil
	}
	if c.Op == change.Insert && s.p.same {
		// An insert's row is complete: only its key has to be looked at.
		if s.values, err = s.head(c.New, s.p.keyEnd); err != nil {
			return im, s.malformed(c, err)
		}
		im.newKey, im.row = s.key(s.values), c.New
		return im, nil
	}
	if s.values, err = c.New.Values(s.values, n); err != nil {
		return im, s.malformed(c, err)
	}
	absent, filled := false, false
	for i := range s.values {
		if s.values[i].State != change.Absent {
			continue
		}
		// Identity FULL logs the old value of an unchanged TOAST column; a key
		// column stored out of line comes in the key image.
		if c.Old != nil && s.oldVals[i].State != change.Absent && (!c.OldIsKey || c.Table.Columns[i].Key) {
			s.values[i], filled = s.oldVals[i], true
		} else {
			absent = true
		}
	}
	im.newKey = s.key(s.values)
	for _, k := range s.p.keys {
		if s.values[s.p.from[k]].State == change.Absent {
			return im, fault.Corrupted("%s on %s: the log sent no value for key column %q", c.Op, c.Table.Name, s.target.Columns[k].Name)
		}
	}
	if im.oldKey == nil && c.Op == change.Update {
		im.oldKey = im.newKey
	}
	switch {
	case s.p.same && !filled:
		im.row, im.partial = c.New, absent
	default:
		im.row = s.row(c, s.values, nil)
		im.partial = im.row.HasAbsent(len(s.target.Columns))
	}
	return im, nil
}

// sent refuses an old image that lacks a column of the flow's key.
func (s *shaper) sent(c *change.Change, old []change.Value) error {
	for _, k := range s.p.keys {
		if from := s.p.from[k]; old[from].State == change.Absent {
			return fault.Refuse("have the source log whole rows, in all its sessions (MariaDB, MySQL: binlog_row_image = FULL), and copy the target again: `tailrace run --overwrite`",
				"%s on %s: the log does not hold the former value of key column %q", c.Op, c.Table.Name, s.target.Columns[k].Name)
		}
	}
	return nil
}

// row builds the target row of source values; whole is their encoding where it
// can be used as it is. A column that the source no longer has keeps what is
// stored in type 1 updates and is NULL otherwise (rule R98).
func (s *shaper) row(c *change.Change, vals []change.Value, whole change.Row) change.Row {
	if s.p.same && whole != nil {
		return whole
	}
	size := 0
	for _, from := range s.p.from {
		if from >= 0 {
			size += len(vals[from].Data) + 5
		} else {
			size++
		}
	}
	row := change.Row(s.arena.Take(size))
	for _, from := range s.p.from {
		switch {
		case from >= 0:
			row = row.Append(vals[from])
		case c.Op == change.Update && s.target.Kind == Type1:
			row = row.Append(change.Value{State: change.Absent})
		default:
			row = row.Append(change.Value{State: change.Null})
		}
	}
	return row
}

// key encodes the key columns of source values. Where they are the row's first
// column, in order, this is still a copy: 13 bytes for a bigint.
func (s *shaper) key(vals []change.Value) Key {
	if len(s.p.keys) == 0 {
		return nil
	}
	size := 0
	for _, k := range s.p.keys {
		size += len(vals[s.p.from[k]].Data) + 5
	}
	key := change.Row(s.arena.Take(size))
	for _, k := range s.p.keys {
		key = key.Append(vals[s.p.from[k]])
	}
	return key
}

func (s *shaper) head(r change.Row, n int) ([]change.Value, error) {
	vals := s.values[:0]
	for range n {
		v, rest, err := r.Next()
		if err != nil {
			return vals, err
		}
		vals, r = append(vals, v), rest
	}
	return vals, nil
}

// merge fills row's Absent columns from prev, both in target columns. partial
// reports whether Absent ones remain.
func (s *shaper) merge(row, prev change.Row) (merged change.Row, partial bool, err error) {
	n := len(s.target.Columns)
	if s.values, err = row.Values(s.values, n); err != nil {
		return nil, false, err
	}
	if s.prevVals, err = prev.Values(s.prevVals, n); err != nil {
		return nil, false, err
	}
	size := 0
	for i := range s.values {
		if s.values[i].State == change.Absent {
			s.values[i] = s.prevVals[i]
			partial = partial || s.values[i].State == change.Absent
		}
		size += len(s.values[i].Data) + 5
	}
	merged = change.Row(s.arena.Take(size))
	for _, v := range s.values {
		merged = merged.Append(v)
	}
	return merged, partial, nil
}

func (s *shaper) malformed(c *change.Change, err error) error {
	return &fault.Error{Kind: fault.Corrupt, Op: "read the row image of " + c.Op.String() + " on " + c.Table.Name.String(), Err: err}
}

// Arena hands out memory in pieces of larger chunks: one allocation for
// thousands of rows. Chunks are never reused; the collector takes them when the
// batch is gone.
type Arena struct{ free []byte }

// arenaChunk is 64 KiB: small against a batch's 16 MiB, large against a row.
const arenaChunk = 64 << 10

// Take returns an empty slice with room for exactly size bytes.
func (a *Arena) Take(size int) []byte {
	if size > len(a.free) {
		if size > arenaChunk/4 {
			return make([]byte, 0, size)
		}
		a.free = make([]byte, arenaChunk)
	}
	b := a.free[:0:size]
	a.free = a.free[size:]
	return b
}
