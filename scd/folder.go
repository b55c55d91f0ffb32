package scd

import (
	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Folder gathers the changes of one target, in log order, and folds them per key
// into Rounds. Work per change is a walk over the row and one hash probe, without
// allocation on the common path; work in the destination is per *key* touched,
// however often it changed.
//
// A Folder is used by one goroutine: Add for each change, EndTx after each
// transaction (or piece) that touched the target, Take for the batch. After Take
// it is empty and ready for the next batch. Rows given out alias the segments they
// came from and the Folder's arena, so they live as long as someone holds them.
type Folder struct {
	shaper
	one   *fold1
	two   *fold2
	plain plainFold
}

// NewFolder makes the Folder of t.
func NewFolder(t *Target) *Folder {
	f := &Folder{shaper: shaper{target: t}}
	switch {
	case t.AppendOnly:
	case t.Kind == Type2:
		f.two = &fold2{shaper: &f.shaper}
	default:
		f.one = &fold1{shaper: &f.shaper}
	}
	return f
}

// Restored says whether the target comes from a backup of the source, of which nobody
// knows which of the changes it holds: rows may be there that are to come, and others not
// any more that are to go. Then every key that is touched and has no row in the end is
// deleted, also if the row came in the same batch; a Patch whose row is not there is to be
// left out (the row's delete follows); and rows with Absent columns whose key was changed
// are Moves, in whatever way they came to their key: which stored row they were cannot be
// told. It concerns type 1 with a key.
func (f *Folder) Restored(on bool) {
	if f.one != nil {
		f.one.restored = on
	}
}

// Add folds one change. Errors are Corrupt (an image that cannot be) or Operator
// (the key is gone from the source table); nothing of the change is kept then.
func (f *Folder) Add(c *change.Change) error {
	if f.p == nil || f.p.table != c.Table {
		p, err := newProjection(f.target, c.Table)
		if err != nil {
			return err
		}
		f.p = p
	}
	if c.Op == change.Truncate {
		switch {
		case f.two != nil:
			f.two.truncate()
		case f.one != nil:
			f.one.truncate()
		default:
			f.plain.truncate()
		}
		return nil
	}
	if f.target.AppendOnly && c.Op != change.Insert {
		return fault.Refuse("declare keys for the flow, or give the table a primary key",
			"%s arrived for append-only table %s", c.Op, c.Table.Name)
	}
	im, err := f.shape(c)
	if err != nil {
		return err
	}
	switch {
	case f.two != nil:
		err = f.two.add(c, im)
	case f.one != nil:
		err = f.one.add(c, im)
	default:
		f.plain.rows = append(f.plain.rows, im.row)
	}
	return err
}

// EndTx ends a transaction, or a piece of one, that touched this target.
// commitTime is in µs since the Unix epoch.
func (f *Folder) EndTx(commitTime int64) error {
	if f.two != nil {
		return f.two.endTx(commitTime)
	}
	return nil
}

// Take returns the folded work and empties the Folder.
func (f *Folder) Take() []Round {
	switch {
	case f.two != nil:
		return f.two.take()
	case f.one != nil:
		return f.one.take()
	default:
		return f.plain.take()
	}
}

// plainFold keeps the inserts of an append-only target in arrival order.
type plainFold struct {
	truncated bool
	rows      []change.Row
}

func (p *plainFold) truncate() { p.truncated, p.rows = true, nil }

func (p *plainFold) take() []Round {
	r := Round{Truncate: p.truncated, Inserts: p.rows}
	*p = plainFold{}
	if r.Empty() {
		return nil
	}
	return []Round{r}
}
