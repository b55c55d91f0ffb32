package sequenced

import (
	"tailrace/internal/change"
	"tailrace/scd"
)

// merger composes a row from events, the newest first: a column shows what the
// first of them that wrote it wrote.
type merger struct {
	lane   *Lane
	values []change.Value // what was written; Absent: by nobody yet
	trees  []*tree        // of columns that are written leaf by leaf
	closed []bool         // nothing older can be seen in this column
	in     []change.Value
	text   []byte

	wrote func(column int, part bool) // if set, told which columns of an added event are seen
}

func (l *Lane) merger(n int) *merger {
	m := &l.m
	m.lane = l
	m.values = m.values[:0]
	m.closed = m.closed[:0]
	for range n {
		m.values = append(m.values, change.Value{State: change.Absent})
		m.closed = append(m.closed, false)
	}
	if l.anyJSON {
		m.trees = make([]*tree, n)
	}
	return m
}

// add takes the next older event. wrote says that something of it is seen, closed
// in how many columns nothing older can be seen any more.
func (m *merger) add(row change.Row) (wrote bool, closed int, err error) {
	if m.in, err = row.Values(m.in, len(m.values)); err != nil {
		return false, 0, err
	}
	for i, v := range m.in {
		if v.State == change.Absent || m.closed[i] {
			continue
		}
		if m.lane.anyJSON && m.lane.merge[i] && v.State != change.Null {
			t, err := parseTree(v.Data)
			if err != nil {
				return false, 0, err
			}
			seen := m.trees[i] == nil
			if seen {
				m.trees[i] = t
			} else {
				seen = m.trees[i].under(t)
			}
			if wrote = wrote || seen; seen && m.wrote != nil {
				m.wrote(i, true)
			}
			if m.trees[i].whole {
				m.closed[i] = true
				closed++
			}
			continue
		}
		wrote = true
		if m.wrote != nil {
			m.wrote(i, false)
		}
		if m.trees == nil || m.trees[i] == nil {
			m.values[i] = v
		}
		m.closed[i] = true
		closed++
	}
	return wrote, closed, nil
}

// row returns the composed row; what nobody wrote is NULL.
func (m *merger) row(slab *scd.Arena) change.Row { return m.compose(slab, change.Null) }

// written returns the composed row; what nobody wrote is Absent.
func (m *merger) written(slab *scd.Arena) change.Row { return m.compose(slab, change.Absent) }

func (m *merger) compose(slab *scd.Arena, unwritten change.State) change.Row {
	size := 0
	for i := range m.values {
		if m.trees != nil && m.trees[i] != nil {
			from := len(m.text)
			m.text = m.trees[i].appendJSONB(m.text)
			m.values[i] = change.Value{State: change.AsText, Data: m.text[from:len(m.text):len(m.text)]}
		} else if m.values[i].State == change.Absent {
			m.values[i].State = unwritten
		}
		size += 5 + len(m.values[i].Data)
	}
	out := change.Row(slab.Take(size))
	for _, v := range m.values {
		out = out.Append(v)
	}
	m.text = m.text[:0]
	return out
}
