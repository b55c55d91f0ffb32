package flow

import (
	"slices"
	"strings"

	"tailrace/internal/change"
)

// Resolved returns the flow with every column that it names spelled as the relation
// spells it: a name that no column has exactly means the only column that has it but for
// case. Other names stay as they are, for whoever looks for them to complain, and so do
// the names of a pattern, which means many relations.
func (s *Spec) Resolved(t *change.Table) *Spec {
	if s.IsPattern() {
		return s
	}
	out, changed := *s, false
	one := func(name string) string {
		found := ""
		for i := range t.Columns {
			switch c := t.Columns[i].Name; {
			case c == name:
				return name
			case !strings.EqualFold(c, name):
			case found != "":
				return name // of two that differ by case alone, neither is meant
			default:
				found = c
			}
		}
		if found == "" {
			return name
		}
		changed = true
		return found
	}
	q := &out.Sequenced
	for _, list := range []*[]string{
		&out.Keys, &out.ColumnList, &out.ExceptColumnList, &out.TrackHistory, &out.TrackHistoryExcept,
		&q.SequenceBy, &q.SystemSequenceBy, &q.DeleteSequence, &q.IgnoreNullList, &q.IgnoreNullExcept,
	} {
		*list = slices.Clone(*list)
		for i, name := range *list {
			(*list)[i] = one(name)
		}
	}
	if q.ColumnsToUpdate != "" {
		q.ColumnsToUpdate = one(q.ColumnsToUpdate)
	}
	if !changed {
		return s
	}
	return &out
}
