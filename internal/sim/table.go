// Package sim is a world in memory for tests: a source table that logs its changes
// as PostgreSQL would, a source that prunes what was confirmed, a destination that
// does what the contracts say one row at a time, scripted faults, and an oracle.
// Everything random comes from one seed.
package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"tailrace/internal/change"
)

// Table is a source table that logs its changes as pgoutput would: columns id
// (key), n, note (tracked), seen (untracked), big (TOASTed: Absent when an update
// leaves it).
type Table struct {
	rnd    *rand.Rand
	Layout *change.Table
	Rows   map[string][]string // id -> values
	at     int64               // clock, µs
}

// Columns are the table's column names.
var Columns = []string{"id", "n", "note", "seen", "big"}

const (
	ColID = iota
	ColN
	ColNote
	ColSeen
	ColBig
)

func NewTable(rnd *rand.Rand, identity change.Identity) *Table {
	t := &change.Table{ID: 1, Name: change.Name{Schema: "public", Table: "t"}, Identity: identity}
	for _, c := range Columns {
		t.Columns = append(t.Columns, change.Column{Name: c, Key: c == "id" || identity == change.IdentityFull})
	}
	return &Table{rnd: rnd, Layout: t, Rows: map[string][]string{}, at: 1_000_000}
}

func text(s string) change.Value { return change.Value{State: change.AsText, Data: []byte(s)} }

func encode(vals []string, absent ...int) change.Row {
	var r change.Row
	for i, v := range vals {
		if slices.Contains(absent, i) {
			r = r.Append(change.Value{State: change.Absent})
		} else {
			r = r.Append(text(v))
		}
	}
	if r == nil {
		r = change.Row{}
	}
	return r
}

func (s *Table) old(vals []string, force bool) (change.Row, bool) {
	if s.Layout.Identity == change.IdentityFull {
		return encode(vals), false
	}
	if !force {
		return nil, false
	}
	var r change.Row
	for i, v := range vals {
		if i == ColID {
			r = r.Append(text(v))
		} else {
			r = r.Append(change.Value{State: change.Null})
		}
	}
	return r, true
}

// State is what the table holds after a transaction.
type State struct {
	At   int64 // commit time, µs
	Rows map[string][]string
}

// Transaction makes one random transaction and the state after it.
func (s *Table) Transaction(maxOps int) (change.Tx, State) {
	tx := change.Tx{First: true, Last: true}
	ops := 1 + s.rnd.IntN(maxOps)
	for range ops {
		if c := s.op(); c != nil {
			for i := range c {
				c[i].Ordinal = uint64(len(tx.Changes))
				tx.Changes = append(tx.Changes, c[i])
			}
		}
	}
	// Commit times may stand still or go backwards.
	s.at += int64(s.rnd.IntN(5)) - 1
	tx.CommitTime = time.UnixMicro(s.at).UTC()
	rows := map[string][]string{}
	for k, v := range s.Rows {
		rows[k] = slices.Clone(v)
	}
	return tx, State{s.at, rows}
}

func (s *Table) pick() (string, bool) {
	if len(s.Rows) == 0 {
		return "", false
	}
	keys := slices.Sorted(maps.Keys(s.Rows))
	return keys[s.rnd.IntN(len(keys))], true
}

func (s *Table) op() []change.Change {
	small := func(n int) string { return fmt.Sprint(s.rnd.IntN(n)) }
	switch d := s.rnd.IntN(100); {
	case d < 25: // insert
		id := small(6)
		if s.Rows[id] != nil {
			return nil
		}
		s.Rows[id] = []string{id, small(3), small(2), small(4), "big" + small(2)}
		return []change.Change{{Op: change.Insert, Table: s.Layout, New: encode(s.Rows[id])}}
	case d < 65: // update
		id, ok := s.pick()
		if !ok {
			return nil
		}
		before := slices.Clone(s.Rows[id])
		row := s.Rows[id]
		var absent []int
		switch s.rnd.IntN(5) {
		case 0:
			row[ColN] = small(3)
		case 1:
			row[ColSeen] = small(4)
		case 2:
			row[ColNote] = small(2)
		}
		if s.rnd.IntN(3) == 0 {
			row[ColBig] = "big" + small(2) // named, though it may be equal
		} else {
			absent = append(absent, ColBig)
		}
		old, isKey := s.old(before, false)
		return []change.Change{{Op: change.Update, OldIsKey: isKey, Table: s.Layout, Old: old, New: encode(row, absent...)}}
	case d < 80: // delete
		id, ok := s.pick()
		if !ok {
			return nil
		}
		old, isKey := s.old(s.Rows[id], true)
		delete(s.Rows, id)
		return []change.Change{{Op: change.Delete, OldIsKey: isKey, Table: s.Layout, Old: old}}
	case d < 90: // key change
		id, ok := s.pick()
		to := small(6)
		if !ok || s.Rows[to] != nil {
			return nil
		}
		return []change.Change{s.move(id, to)}
	case d < 97: // swap over a temporary key
		a, _ := s.pick()
		b, ok := s.pick()
		if !ok || a == b {
			return nil
		}
		return []change.Change{s.move(a, "tmp"), s.move(b, a), s.move("tmp", b)}
	default:
		s.Rows = map[string][]string{}
		return []change.Change{{Op: change.Truncate, Table: s.Layout}}
	}
}

func (s *Table) move(from, to string) change.Change {
	row := s.Rows[from]
	old, isKey := s.old(row, true)
	delete(s.Rows, from)
	moved := slices.Clone(row)
	moved[ColID] = to
	s.Rows[to] = moved
	if s.rnd.IntN(2) == 0 {
		moved[ColN] = fmt.Sprint(s.rnd.IntN(3))
	}
	return change.Change{Op: change.Update, OldIsKey: isKey, Table: s.Layout, Old: old, New: encode(moved, ColBig)}
}
