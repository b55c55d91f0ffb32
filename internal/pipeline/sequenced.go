package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/expr"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// inputs are what a sequenced flow's conditions and sequence may name: the columns
// of the source table, then the meta columns.
func inputs(t *change.Table) []change.Column {
	return append(slices.Clip(t.Columns), sequenced.Meta(t)...)
}

func findInput(in []change.Column, name string) int {
	found := -1
	for i := range in {
		switch {
		case in[i].Name == name:
			return i
		case found < 0 && strings.EqualFold(in[i].Name, name):
			found = i
		}
	}
	return found
}

// sequencedFlow makes the definition of a flow for one layout of its source table.
func sequencedFlow(spec *flow.Spec, order int, layout *change.Table, target *scd.Target) (*sequenced.Flow, error) {
	target = target.Declared()
	q := &spec.Sequenced
	bad := func(format string, args ...any) error {
		return fault.Badly("flow %s, table %s: %s", flowName(spec, target), layout.Name, fmt.Sprintf(format, args...))
	}
	in := inputs(layout)
	f := &sequenced.Flow{Name: flowName(spec, target), Order: uint16(order), Feed: q.Feed, Inputs: len(in), Update: -1, KeepOrigin: q.QuarantineBeyond}
	for _, name := range q.SequenceBy {
		i := findInput(in, name)
		if i < 0 {
			return nil, bad("sequence_by names no column: %s (it has %s)", name, layout.ColumnNames())
		}
		if !sequenced.Sortable(in[i].Type) {
			return nil, bad("sequence_by: values of column %s, type %s, have no order to go by; choose a number, a time or an identifier", in[i].Name, in[i].Type.Name)
		}
		f.Sequence, f.Types, f.Names = append(f.Sequence, i), append(f.Types, in[i].Type), append(f.Names, in[i].Name)
	}
	if err := systemSequence(f, q, in, layout, bad); err != nil {
		return nil, err
	}
	for _, op := range q.SkipChange {
		f.Skip = append(f.Skip, map[string]change.Op{"update": change.Update, "delete": change.Delete, "truncate": change.Truncate}[op])
	}
	condition := func(key, text string) (sequenced.Condition, error) {
		if text == "" {
			return nil, nil
		}
		columns := make([]expr.Column, len(in))
		for i := range in {
			columns[i] = expr.Column{Name: in[i].Name, Type: in[i].Type}
		}
		p, err := expr.CompileCondition(text, columns)
		if err != nil {
			return nil, bad("%s: %v", key, err)
		}
		return p.Test, nil
	}
	var err error
	if f.Delete, err = condition("apply_as_deletes", q.DeleteWhen); err != nil {
		return nil, err
	}
	if f.Truncate, err = condition("apply_as_truncates", q.TruncateWhen); err != nil {
		return nil, err
	}
	if q.ColumnsToUpdate != "" {
		if f.Update = findInput(in, q.ColumnsToUpdate); f.Update < 0 {
			return nil, bad("columns_to_update names no column: %s (it has %s)", q.ColumnsToUpdate, layout.ColumnNames())
		}
	}
	ignore := q.IgnoreNull || len(q.IgnoreNullExcept) > 0
	if ignore || len(q.IgnoreNullList) > 0 {
		f.IgnoreNull = make([]bool, len(target.Columns))
	}
	listed := map[string]bool{}
	for _, name := range slices.Concat(q.IgnoreNullList, q.IgnoreNullExcept) {
		i := findInput(layout.Columns, name)
		if i < 0 {
			return nil, bad("ignore_null_updates_*: no such column: %s (it has %s)", name, layout.ColumnNames())
		}
		listed[layout.Columns[i].Name] = true
	}
	for i := range target.Columns {
		c := &target.Columns[i]
		at := layout.Find(c.Name)
		if at < 0 && c.Key {
			return nil, fault.Refuse("copy the table again under a key that exists, or restore the column",
				"table %s no longer has key column %q of target %s", layout.Name, c.Name, target.Name)
		}
		f.Columns = append(f.Columns, at)
		if f.IgnoreNull != nil {
			f.IgnoreNull[i] = ignore != listed[c.Name]
		}
	}
	if !q.Feed && target.Kind != scd.Type1 {
		return f, deleteSequence(f, q.DeleteSequence, in, len(layout.Columns), bad)
	}
	return f, nil
}

// systemSequence says what gives an event of a bitemporal target its system time.
func systemSequence(f *sequenced.Flow, q *flow.Sequenced, in []change.Column, layout *change.Table, bad func(string, ...any) error) error {
	for _, name := range q.SystemSequenceBy {
		i := findInput(in, name)
		switch {
		case i < 0:
			return bad("system_sequence_by names no column: %s (it has %s)", name, layout.ColumnNames())
		case !sequenced.Sortable(in[i].Type):
			return bad("system_sequence_by: values of column %s, type %s, have no order to go by; choose a number, a time or an identifier", in[i].Name, in[i].Type.Name)
		case !q.Feed && in[i].Name != "_commit_time" && in[i].Name != "_lsn":
			return bad("system_sequence_by of a table whose rows change is _commit_time or _lsn, which a DELETE has too, not %s; or source_kind: feed, if its rows are events", name)
		}
		f.System, f.SystemType = append(f.System, i), in[i].Type
	}
	return nil
}

// deleteSequence says what gives a DELETE its sequence in the history of a table.
func deleteSequence(f *sequenced.Flow, names []string, in []change.Column, columns int, bad func(string, ...any) error) error {
	stamp := len(f.Types) == 1 && (f.Types[0].Kind == change.Timestamp || f.Types[0].Kind == change.TimestampTZ)
	switch own := !slices.ContainsFunc(f.Sequence, func(i int) bool { return i < columns }); {
	case len(names) > 0:
	case own:
		return nil // a DELETE has its own sequence, as every change has
	case stamp:
		names = []string{"_commit_time"}
	default:
		return bad("a DELETE has no sequence of its own: name what gives it one with delete_sequence, of type %s: a column of the row, _lsn or _commit_time (which is the default where sequence_by is one timestamp)", typeNames(f.Types))
	}
	if len(names) != len(f.Types) {
		return bad("delete_sequence has %d columns and sequence_by %d", len(names), len(f.Types))
	}
	for n, name := range names {
		i := findInput(in, name)
		if i < 0 {
			return bad("delete_sequence names no column: %s", name)
		}
		if f.Types[n].Kind != in[i].Type.Kind || f.Types[n].Kind == change.Other && f.Types[n].Name != in[i].Type.Name {
			if !(in[i].Name == "_commit_time" && f.Types[n].Kind == change.Timestamp) {
				return bad("delete_sequence %s has type %s, and sequence_by has %s", name, in[i].Type.Name, f.Types[n].Name)
			}
		}
		f.DeleteSequence = append(f.DeleteSequence, i)
	}
	return nil
}

func typeNames(types []change.Type) string {
	var names []string
	for _, t := range types {
		names = append(names, t.Name)
	}
	return strings.Join(names, ", ")
}

// large reports whether a column of the target can hold values that the log leaves
// out where they did not change (TOAST, unless the whole old row is logged).
func large(t *scd.Target) bool {
	return slices.ContainsFunc(t.Columns, func(c scd.Column) bool { return !c.Key && long(c.Type.Kind) })
}

// long reports whether values of a kind have no fixed length.
func long(k change.Kind) bool {
	switch k {
	case change.Bool, change.Int16, change.Int32, change.Int64, change.Float32, change.Float64,
		change.Date, change.Time, change.TimeTZ, change.Timestamp, change.TimestampTZ, change.UUID, change.Enum:
		return false
	}
	return true
}

func flowName(spec *flow.Spec, target *scd.Target) string { return identity(spec, target.Name) }

// identity is the name by which the mark knows a flow (rule R89).
func identity(spec *flow.Spec, target change.Name) string {
	if spec.Sequenced.Name != "" {
		return spec.Sequenced.Name
	}
	return target.String()
}

func (b *Bound) name() string { return flowName(b.Spec, b.Target) }

// laneOptions is what the lane of a target has to reckon with, by its flows.
func laneOptions(flows []*Bound) sequenced.Options {
	target := flows[0].Target.Declared()
	o := sequenced.Options{Merge: make([]bool, len(target.Columns))}
	for _, b := range flows {
		q := &b.Spec.Sequenced
		if b.Spec.Snapshot != nil {
			continue // whole rows
		}
		// A table's replica identity may change at any time, so what is remembered does not
		// depend on it.
		o.Partial = o.Partial || q.Partial() || !q.Feed && large(target)
		if !q.Feed {
			o.Follows = append(o.Follows, uint16(b.order))
		}
		o.QuarantineBeyond = o.QuarantineBeyond || q.QuarantineBeyond
		for i := range target.Columns {
			c := &target.Columns[i]
			ignored := q.IgnoreNull || slices.Contains(q.IgnoreNullList, c.Name) || len(q.IgnoreNullExcept) > 0 && !slices.Contains(q.IgnoreNullExcept, c.Name)
			o.Merge[i] = o.Merge[i] || ignored && (c.Type.Kind == change.JSONB || c.Type.Kind == change.JSON)
		}
	}
	return o
}

// sequencedTarget gives a bound target what makes it a sequenced one; of a bitemporal one
// it returns the table.
func sequencedTarget(t *scd.Target, f *sequenced.Flow) *scd.Target {
	t.Sequenced = true
	switch t.Kind {
	case scd.Type1:
		return t
	case scd.Bitemporal:
		return t.Table(scd.Axes{Business: f.Types[0], System: f.SystemType})
	}
	if len(f.Types) == 1 {
		t.Sequence = &f.Types[0]
	} else {
		t.Sequence = &change.Type{Kind: change.JSONB, Name: "jsonb", BuiltIn: true}
		for i := range f.Types {
			t.SequenceFields = append(t.SequenceFields, change.Column{Name: f.Names[i], Type: f.Types[i]})
		}
	}
	return t
}

// agree checks that two flows may share a target (rule R88).
func agree(a, b *Bound) error {
	if a.Spec.ChangeFeed != b.Spec.ChangeFeed || a.Spec.FeedKeep != b.Spec.FeedKeep {
		return fault.Badly("target %s is written by several flows, from %s and from %s; they must agree on change_feed and change_feed_retention", a.Target.Name, a.Relation.Table.Name, b.Relation.Table.Name)
	}
	if a.Spec.Snapshot != nil || b.Spec.Snapshot != nil {
		return merges(a, b)
	}
	sameColumns := slices.EqualFunc(a.Target.Columns, b.Target.Columns, func(x, y scd.Column) bool {
		return x.Name == y.Name && x.Type.Kind == y.Type.Kind && x.Key == y.Key && x.Tracked == y.Tracked
	})
	sameSequence := slices.EqualFunc(a.flow.Types, b.flow.Types, func(x, y change.Type) bool { return x.Kind == y.Kind })
	what := ""
	switch {
	case a.Target.Bitemporal != nil || b.Target.Bitemporal != nil:
		return fault.Badly("target %s is bitemporal and is written by several flows, from %s and from %s; give one of them another target", a.Target.Name, a.Relation.Table.Name, b.Relation.Table.Name)
	case a.Target.Kind != b.Target.Kind:
		what = "stored_as_scd_type"
	case !sameSequence:
		what = "type of sequence_by"
	case !sameColumns:
		what = "keys, columns and tracked columns (in their order)"
	case flowName(a.Spec, a.Target) == flowName(b.Spec, b.Target):
		return fault.Badly("target %s is written by several flows, from %s and from %s; give each a `name` of its own", a.Target.Name, a.Relation.Table.Name, b.Relation.Table.Name)
	default:
		return nil
	}
	return fault.Badly("target %s is written by several flows, from %s and from %s; they must agree on %s", a.Target.Name, a.Relation.Table.Name, b.Relation.Table.Name, what)
}

// sequenceNotes are warnings about a sequence that may not mean what it seems to.
func sequenceNotes(spec *flow.Spec, t *scd.Target, f *sequenced.Flow) (notes []string) {
	for i, typ := range f.Types {
		if typ.Kind == change.Text {
			notes = append(notes, fmt.Sprintf("flow %s: sequence_by %s is text and is compared byte by byte: 10 comes before 9, and month-first dates are out of order across years", f.Name, f.Names[i]))
		}
		if t.Kind != scd.Type1 && tracks(t, f.Names[i]) {
			notes = append(notes, fmt.Sprintf("flow %s: the sequence column %s is a tracked column of target %s, so every event opens a version; leave it out with except_column_list or track_history_except_column_list", f.Name, f.Names[i], t.Name))
		}
	}
	for _, name := range spec.Sequenced.SystemSequenceBy {
		if tracks(t, name) {
			notes = append(notes, fmt.Sprintf("flow %s: the system sequence column %s is a column of target %s, so every event changes what is believed, also one that says nothing new; leave it out with except_column_list", f.Name, name, t.Name))
		}
		if f.SystemType.Kind == change.Text {
			notes = append(notes, fmt.Sprintf("flow %s: system_sequence_by %s is text and is compared byte by byte", f.Name, name))
		}
	}
	return notes
}

func tracks(t *scd.Target, name string) bool {
	return slices.ContainsFunc(t.Columns, func(c scd.Column) bool { return c.Name == name && c.Tracked })
}
