package scd_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"tailrace/internal/change"
)

// tableSim is a source table that logs its changes as pgoutput would: columns id
// (key), n, note (tracked), seen (untracked), big (TOASTed: Absent when an update
// leaves it).
type tableSim struct {
	rnd   *rand.Rand
	table *change.Table
	rows  map[string][]string // id -> values
	at    int64               // clock, µs
	big   int
}

var simColumns = []string{"id", "n", "note", "seen", "big"}

const (
	colID = iota
	colN
	colNote
	colSeen
	colBig
)

func newTableSim(rnd *rand.Rand, identity change.Identity) *tableSim {
	t := &change.Table{ID: 1, Name: change.Name{Schema: "public", Table: "t"}, Identity: identity}
	for _, c := range simColumns {
		t.Columns = append(t.Columns, change.Column{Name: c, Key: c == "id" || identity == change.IdentityFull})
	}
	return &tableSim{rnd: rnd, table: t, rows: map[string][]string{}, at: 1_000_000}
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

func (s *tableSim) old(vals []string, force bool) (change.Row, bool) {
	if s.table.Identity == change.IdentityFull {
		return encode(vals), false
	}
	if !force {
		return nil, false
	}
	var r change.Row
	for i, v := range vals {
		if i == colID {
			r = r.Append(text(v))
		} else {
			r = r.Append(change.Value{State: change.Null})
		}
	}
	return r, true
}

// state is what the table holds after a transaction.
type state struct {
	at   int64
	rows map[string][]string
}

// transaction makes one random transaction and the state after it.
func (s *tableSim) transaction(maxOps int) (change.Tx, state) {
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
	rows := map[string][]string{}
	for k, v := range s.rows {
		rows[k] = slices.Clone(v)
	}
	return tx, state{s.at, rows}
}

func (s *tableSim) pick() (string, bool) {
	if len(s.rows) == 0 {
		return "", false
	}
	keys := slices.Sorted(maps.Keys(s.rows))
	return keys[s.rnd.IntN(len(keys))], true
}

func (s *tableSim) op() []change.Change {
	small := func(n int) string { return fmt.Sprint(s.rnd.IntN(n)) }
	switch d := s.rnd.IntN(100); {
	case d < 25: // insert
		id := small(6)
		if s.rows[id] != nil {
			return nil
		}
		s.rows[id] = []string{id, small(3), small(2), small(4), "big" + small(2)}
		return []change.Change{{Op: change.Insert, Table: s.table, New: encode(s.rows[id])}}
	case d < 65: // update
		id, ok := s.pick()
		if !ok {
			return nil
		}
		before := slices.Clone(s.rows[id])
		row := s.rows[id]
		var absent []int
		switch s.rnd.IntN(5) {
		case 0:
			row[colN] = small(3)
		case 1:
			row[colSeen] = small(4)
		case 2:
			row[colNote] = small(2)
		}
		if s.rnd.IntN(3) == 0 {
			row[colBig] = "big" + small(2) // named, though it may be equal
		} else {
			absent = append(absent, colBig)
		}
		old, isKey := s.old(before, false)
		return []change.Change{{Op: change.Update, OldIsKey: isKey, Table: s.table, Old: old, New: encode(row, absent...)}}
	case d < 80: // delete
		id, ok := s.pick()
		if !ok {
			return nil
		}
		old, isKey := s.old(s.rows[id], true)
		delete(s.rows, id)
		return []change.Change{{Op: change.Delete, OldIsKey: isKey, Table: s.table, Old: old}}
	case d < 90: // key change
		id, ok := s.pick()
		to := small(6)
		if !ok || s.rows[to] != nil {
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
		s.rows = map[string][]string{}
		return []change.Change{{Op: change.Truncate, Table: s.table}}
	}
}

func (s *tableSim) move(from, to string) change.Change {
	row := s.rows[from]
	old, isKey := s.old(row, true)
	delete(s.rows, from)
	moved := slices.Clone(row)
	moved[colID] = to
	s.rows[to] = moved
	if s.rnd.IntN(2) == 0 {
		moved[colN] = fmt.Sprint(s.rnd.IntN(3))
	}
	return change.Change{Op: change.Update, OldIsKey: isKey, Table: s.table, Old: old, New: encode(moved, colBig)}
}
