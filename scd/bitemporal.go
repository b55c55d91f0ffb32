package scd

import "tailrace/internal/change"

// Names of the columns that a bitemporal target has beside StartColumn and EndColumn
// (rule R77): since and until when a row was believed. Half-open; NULL end = still.
const (
	SystemStartColumn = "__SYSTEM_START_AT"
	SystemEndColumn   = "__SYSTEM_END_AT"
)

// BitemporalColumns are all four, in the order in which they are shown.
var BitemporalColumns = []string{StartColumn, EndColumn, SystemStartColumn, SystemEndColumn}

// Axes are the types of a bitemporal target's two times.
type Axes struct {
	Business change.Type // of __START_AT and __END_AT
	System   change.Type // of __SYSTEM_START_AT and __SYSTEM_END_AT
}

// Table returns the table in which destinations keep a bitemporal target that was
// declared as t, with its own keys and columns: it is of type 1, has the columns of both
// axes too, and both starts belong to its key. They tell its rows apart, because what is
// believed at one time of one key does not overlap. So a destination needs to know nothing
// more of bitemporal targets: their rows are inserted, replaced and deleted by key.
func (t *Target) Table(a Axes) *Target {
	table := *t
	table.Kind, table.Sequence, table.Bitemporal = Type1, nil, &a
	table.Columns = append([]Column(nil), t.Columns...)
	for _, c := range []Column{
		{Name: StartColumn, Type: a.Business, Key: true},
		{Name: EndColumn, Type: a.Business, Nullable: true},
		{Name: SystemStartColumn, Type: a.System, Key: true},
		{Name: SystemEndColumn, Type: a.System, Nullable: true},
	} {
		table.Columns = append(table.Columns, c)
	}
	return &table
}

// Declared returns the target as its flow declares it, whose events have its keys and
// columns: t itself, unless t is the table of a bitemporal target.
func (t *Target) Declared() *Target {
	if t.Bitemporal == nil {
		return t
	}
	d := *t
	d.Kind, d.Sequence, d.Bitemporal, d.Columns = Bitemporal, &t.Bitemporal.Business, nil, nil
	for i := range t.Columns {
		if !isAxis(t.Columns[i].Name) {
			d.Columns = append(d.Columns, t.Columns[i])
		}
	}
	return &d
}

func isAxis(name string) bool {
	for _, a := range BitemporalColumns {
		if name == a {
			return true
		}
	}
	return false
}
