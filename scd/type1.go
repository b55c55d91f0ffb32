package scd

import (
	"bytes"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// fold1 folds type 1. It follows *lineages*: a lineage is one source row through
// the batch, from where it was stored at the start (origin) or from its insert,
// over changes of its key, to its end. A node is one key and who lives there now.
// So a chain 1→2→3 or a swap over a temporary key comes out as moves that speak
// only of what was stored before the batch, and need no order among themselves.
type fold1 struct {
	*shaper
	index     keyIndex
	nodes     []node1 // one a key of index
	slab      []lineage
	truncated bool
	restored  bool // see Folder.Restored
}

type node1 struct {
	cur, under *lineage // who lives at this key; under: whom cur displaced (see displaced)
	gone       bool     // the row stored here at the start is not here any more
}

type lineage struct {
	origin  Key // where it was stored at the start; nil: born in this batch
	row     change.Row
	partial bool // row has Absent columns; then origin is not nil
	moved   bool // it was at another key meanwhile
}

// born allocates lineages by the slab: one allocation for 512 rows.
func (f *fold1) born(l lineage) *lineage {
	if len(f.slab) == cap(f.slab) {
		f.slab = make([]lineage, 0, 512)
	}
	f.slab = append(f.slab, l)
	return &f.slab[len(f.slab)-1]
}

func (f *fold1) node(key Key) *node1 {
	n, found := f.index.lookup(key)
	if !found {
		f.nodes = append(f.nodes, node1{})
	}
	return &f.nodes[n]
}

func (f *fold1) truncate() {
	f.index.reset()
	f.nodes = f.nodes[:0]
	f.truncated = true
}

func (f *fold1) add(c *change.Change, im images) error {
	switch c.Op {
	case change.Insert:
		n := f.node(im.newKey)
		if n.cur != nil && n.cur.origin != nil {
			n.gone = true
		}
		n.cur = f.born(lineage{row: im.row})
		return nil
	case change.Delete:
		f.depart(im)
		return nil
	}
	if bytes.Equal(im.oldKey, im.newKey) {
		n := f.node(im.newKey)
		if n.cur == nil {
			if n.gone && im.partial {
				return f.vanished(c)
			}
			if !f.truncated && !n.gone {
				n.cur = f.born(lineage{origin: im.newKey, row: im.row, partial: im.partial})
				return nil
			}
			if im.partial {
				return f.vanished(c)
			}
			n.cur = f.born(lineage{row: im.row})
			return nil
		}
		l := n.cur
		if f.displaced(n, im) {
			l = n.under
		}
		return f.update(l, im)
	}
	l := f.depart(im)
	if l == nil {
		if im.partial {
			return f.vanished(c)
		}
		l = f.born(lineage{})
	}
	if err := f.update(l, im); err != nil {
		return err
	}
	l.moved = true
	n := f.node(im.newKey)
	if n.cur != nil {
		n.under = n.cur // only a deferred constraint allows this; its own move follows
	}
	n.cur = l
	return nil
}

// depart takes the row that the old image means away from its key and returns its
// lineage; nil if it is known not to exist.
func (f *fold1) depart(im images) *lineage {
	n := f.node(im.oldKey)
	if n.cur == nil {
		if n.gone || f.truncated {
			return nil
		}
		n.gone = true
		return f.born(lineage{origin: im.oldKey, partial: true})
	}
	l := n.cur
	if f.displaced(n, im) {
		l = n.under
		n.under = nil
	} else {
		n.cur, n.under = n.under, nil
	}
	if l.origin != nil && bytes.Equal(l.origin, im.oldKey) {
		n.gone = true
	}
	return l
}

// displaced reports that the old image means not the row that moved to this key
// in the batch but the one that was here before. Only under a deferred unique
// constraint do two rows share a key for a moment, and such a table has identity
// FULL, so the old row tells: if it is the newcomer's, the newcomer is meant (two
// equal rows are interchangeable).
func (f *fold1) displaced(n *node1, im images) bool {
	if im.oldRow == nil || n.cur == nil || n.cur.row == nil {
		return false
	}
	if n.under == nil {
		// The one before may be stored and not touched yet: only possible if the
		// newcomer came from another key.
		if n.gone || f.truncated || n.cur.origin == nil || bytes.Equal(n.cur.origin, im.oldKey) || f.agree(n.cur.row, im.oldRow) {
			return false
		}
		n.under = f.born(lineage{origin: im.oldKey, partial: true})
		return true
	}
	return !f.agree(n.cur.row, im.oldRow)
}

// agree compares a row in flight with a complete image; Absent matches anything.
func (f *fold1) agree(row, image change.Row) bool {
	for range f.target.Columns {
		v, restRow, err1 := row.Next()
		w, restImage, err2 := image.Next()
		if err1 != nil || err2 != nil {
			return false
		}
		if v.State != change.Absent && w.State != change.Absent && !v.Equal(w) {
			return false
		}
		row, image = restRow, restImage
	}
	return true
}

func (f *fold1) update(l *lineage, im images) (err error) {
	if !im.partial || l.row == nil {
		l.row, l.partial = im.row, im.partial
		return nil
	}
	l.row, l.partial, err = f.merge(im.row, l.row)
	return err
}

func (f *fold1) vanished(c *change.Change) error {
	return fault.Corrupted("%s on %s leaves columns unchanged of a row that was deleted before it in the same batch", c.Op, c.Table.Name)
}

func (f *fold1) take() []Round {
	r := Round{Truncate: f.truncated}
	for _, i := range f.index.sorted() {
		key, n := f.index.keys[i], &f.nodes[i]
		l := n.cur
		switch {
		case l == nil:
			if (n.gone || f.restored) && !f.truncated {
				r.Deletes = append(r.Deletes, key)
			}
		case l.origin == nil:
			if n.gone || n.under != nil {
				r.Upserts = append(r.Upserts, l.row)
			} else {
				r.Inserts = append(r.Inserts, l.row)
			}
		case bytes.Equal(l.origin, key):
			if l.partial && l.moved && f.restored {
				r.Moves = append(r.Moves, Move{Old: l.origin, Row: l.row})
			} else if l.partial {
				r.Patches = append(r.Patches, l.row)
			} else {
				r.Upserts = append(r.Upserts, l.row)
			}
		case l.partial:
			if n.gone {
				r.Deletes = append(r.Deletes, key)
			}
			r.Moves = append(r.Moves, Move{Old: l.origin, Row: l.row})
		default:
			// A complete row at a new key needs nothing of the old one; the node of
			// its origin gives the delete.
			r.Upserts = append(r.Upserts, l.row)
		}
	}
	f.index.reset()
	clear(f.nodes)
	f.nodes = f.nodes[:0]
	f.truncated = false
	if r.Empty() {
		return nil
	}
	return []Round{r}
}
