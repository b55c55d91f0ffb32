package files

import (
	"strings"

	"tailrace/internal/change"
)

// layout is a relation's columns with what finds one by its name fast.
type layout struct {
	rel     *relation
	table   *change.Table
	columns []change.Column // of table, without RescuedColumn
	slots   []int16         // open addressing by hash: column + 1, or 0; a power of two of them
}

// maxColumns is more than any destination's tables have (PostgreSQL: 1600).
const maxColumns = 8192

func newLayout(rel *relation, columns []change.Column) *layout {
	all := append(append([]change.Column(nil), columns...), change.Column{Name: RescuedColumn, Type: typeJSONB, Nullable: true})
	l := &layout{rel: rel, columns: all[:len(columns):len(columns)],
		table: &change.Table{ID: rel.id, Name: rel.name(), Identity: change.IdentityFull, Columns: all}}
	size := 4
	for size < 2*len(columns) {
		size *= 2
	}
	l.slots = make([]int16, size)
	for i := range columns {
		at := hashName([]byte(columns[i].Name))
		for l.slots[at&uint32(size-1)] != 0 {
			at++
		}
		l.slots[at&uint32(size-1)] = int16(i + 1)
	}
	return l
}

// hashName is FNV-1a.
func hashName(name []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range name {
		h = (h ^ uint32(c)) * 16777619
	}
	return h
}

// exact returns the column of exactly that name, or -1. guess is where it is
// likely, because records mostly name columns in one order.
func (l *layout) exact(name []byte, guess int) int {
	if guess < len(l.columns) && l.columns[guess].Name == string(name) {
		return guess
	}
	mask := uint32(len(l.slots) - 1)
	for at := hashName(name); ; at++ {
		i := int(l.slots[at&mask]) - 1
		if i < 0 || l.columns[i].Name == string(name) {
			return i
		}
	}
}

// folded returns the first column whose name differs in case alone, or -1.
func (l *layout) folded(name string) int {
	for i := range l.columns {
		if strings.EqualFold(l.columns[i].Name, name) {
			return i
		}
	}
	return -1
}
