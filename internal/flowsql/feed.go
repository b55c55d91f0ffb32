package flowsql

import (
	"errors"
	"slices"
	"strings"

	"tailrace/internal/fault"
	"tailrace/internal/flow"
)

// entry makes the specification of a flow.
func (c *compiler) entry(e *entry) {
	before := len(c.problems)
	d := e.target
	first := !d.read
	d.read = true
	if e.body.Insert != nil {
		what := "an append flow (INSERT ... BY NAME)"
		if e.body.Insert.ReplaceWhere != nil || e.body.Insert.ReplaceUsing != nil {
			what = "a REPLACE flow"
		}
		c.cannot(e.file, e.body.Span, "AUTO CDC flows can, from tables and from read_files(...)", "%s", what)
		return
	}
	if c.twin(e) {
		return
	}
	s := flow.Spec{Target: d.name.spec(), SCDType: 1, Once: e.body.Once, HistoryStart: d.knobs.start, ChangeFeed: d.knobs.changeFeed}
	s.Sequenced.Name, s.Sequenced.TombstoneRetention = e.name, d.knobs.retention
	if s.ChangeFeed {
		s.FeedKeep = flow.DefaultFeedKeep
		if d.knobs.feedKeep != nil {
			s.FeedKeep = *d.knobs.feedKeep
		}
	} else if at, said := d.knobs.at["tailrace.change_feed_retention"]; said && first {
		c.bad(d.file, at, "", "tailrace.change_feed_retention goes with 'tailrace.change_feed' = 'true'")
	}
	keys := []Name(nil)
	if e.body.CDC != nil {
		keys = e.body.CDC.Keys
		c.feed(e, &s)
	} else {
		keys = e.body.Snapshot.Keys
		c.snapshot(e, &s)
	}
	if first {
		c.columns(d, keys)
	}
	if len(c.problems) > before {
		return
	}
	if err := s.Validate(); err != nil {
		why := err.Error()
		var known *fault.Error
		if errors.As(err, &known) {
			why = known.Op
			if _, behind, named := strings.Cut(why, `": `); named {
				why = behind // the flow is shown by its place
			}
		}
		if cron := d.table.Clauses.Schedule; s.Snapshot != nil && cron != nil && strings.HasPrefix(why, "cron ") {
			why, _, _ = strings.Cut(why, "; it has")
			c.bad(d.file, cron.Span, "", "%s", why)
			return
		}
		c.bad(e.file, e.span, "", "%s", why)
		return
	}
	c.plan.Flows, c.origins = append(c.plan.Flows, s), append(c.origins, e)
}

// twin reports whether another flow into the target has the name of this one.
func (c *compiler) twin(e *entry) bool {
	for i := range c.entries {
		o := &c.entries[i]
		if o == e {
			return false
		}
		if o.target == e.target && strings.EqualFold(o.name, e.name) {
			line, _ := o.file.place(o.span.From)
			what := "flow " + e.name
			if e.name == "" {
				what = "a flow without a name"
			}
			c.bad(e.file, e.span, "give each flow into a target a name of its own: CREATE FLOW name AS AUTO CDC INTO ...", "%s writes %s already, in %s, line %d", what, e.target.table.Name, o.file.Name, line)
			return true
		}
	}
	return false
}

// texts are the names; one that stands twice is a problem.
func (c *compiler) texts(f *File, names []Name) (out []string) {
	for _, n := range names {
		if slices.ContainsFunc(out, func(o string) bool { return strings.EqualFold(o, n.Text) }) {
			c.bad(f, n.Span, "", "column %s stands twice in the list", n.Text)
		}
		out = append(out, n.Text)
	}
	return out
}

// feed compiles AUTO CDC from a change feed.
func (c *compiler) feed(e *entry, s *flow.Spec) {
	f, cdc, k := e.file, e.body.CDC, &e.target.knobs
	q := &s.Sequenced
	c.read(e, &cdc.Source, s)
	q.Feed, s.Keys = true, c.texts(f, cdc.Keys)
	q.Global, q.QuarantineBeyond, q.FailOnBad, q.SkipChange = k.global, k.quarantine, k.fail, k.skip
	s.Expect = e.target.expect
	if cdc.StoredAs != nil {
		s.SCDType = cdc.StoredAs.Type
	}
	if cdc.DeleteWhen != nil {
		q.DeleteWhen, _ = cdc.DeleteWhen.render()
	}
	if cdc.TruncateWhen != nil {
		q.TruncateWhen, _ = cdc.TruncateWhen.render()
		if s.SCDType != 1 {
			c.bad(f, cdc.TruncateWhen.Span, "STORED AS SCD TYPE 1, or leave the clause out", "APPLY AS TRUNCATE goes with SCD TYPE 1 only: a history is not truncated")
		}
	}
	q.SequenceBy = c.sequence(f, cdc.SequenceBy)
	q.SystemSequenceBy = c.sequence(f, cdc.SystemSequenceBy)
	switch {
	case s.SCDType == flow.Bitemporal && cdc.SystemSequenceBy == nil:
		c.bad(f, cdc.StoredAs.Span, "SYSTEM SEQUENCE BY column", "BITEMPORAL needs SYSTEM SEQUENCE BY: the column that says when an event became known")
	case s.SCDType != flow.Bitemporal && cdc.SystemSequenceBy != nil:
		c.bad(f, cdc.SystemSequenceBy.Span, "STORED AS BITEMPORAL, or leave the clause out", "SYSTEM SEQUENCE BY goes with BITEMPORAL only")
	}
	if i := cdc.IgnoreNull; i != nil {
		names := c.texts(f, i.Names)
		switch {
		case !i.All:
			q.IgnoreNullList = names
		case len(names) > 0:
			q.IgnoreNullExcept = names
		default:
			q.IgnoreNull = true
		}
	}
	if u := cdc.ColumnsToUpdate; u != nil {
		q.ColumnsToUpdate = u.Text
		if cdc.IgnoreNull != nil {
			c.bad(f, u.Span, "leave one of them out", "COLUMNS TO UPDATE and IGNORE NULL UPDATES exclude each other")
		}
		if s.SCDType == flow.Bitemporal {
			c.bad(f, u.Span, "", "COLUMNS TO UPDATE does not go with BITEMPORAL")
		}
	}
	s.ColumnList, s.ExceptColumnList = c.selection(f, cdc.Columns)
	c.track(f, s, cdc.TrackHistory)
	c.selected(f, s, cdc)
	shot := slices.ContainsFunc(c.entries, func(o entry) bool { return o.target == e.target && o.body.Snapshot != nil })
	if at, said := k.at["tailrace.max_delete_share"]; said && !shot {
		c.bad(e.target.file, at, "", "tailrace.max_delete_share goes with FROM SNAPSHOT")
	}
	if s := e.target.table.Clauses.Schedule; s != nil && !shot {
		c.note(e.target.file, s.Span, "a schedule is ignored for flows that follow a feed: the daemon applies a change when it comes, and `tailrace run --once` is a run that ends")
	}
}

// selection is a list of columns, and the list of exceptions.
func (c *compiler) selection(f *File, s *Selection) (only, except []string) {
	switch {
	case s == nil:
		return nil, nil
	case s.All:
		return nil, c.texts(f, s.Names)
	}
	return c.texts(f, s.Names), nil
}

func (c *compiler) track(f *File, s *flow.Spec, t *Selection) {
	if t == nil {
		return
	}
	if s.SCDType != 2 {
		c.bad(f, t.Span, "STORED AS SCD TYPE 2, or leave the clause out", "TRACK HISTORY goes with SCD TYPE 2 only")
		return
	}
	s.TrackHistory, s.TrackHistoryExcept = c.selection(f, t)
}

// selected checks that what the clauses of a flow name is among the columns that COLUMNS
// selects.
func (c *compiler) selected(f *File, s *flow.Spec, cdc *CDC) {
	chosen := func(name string) bool {
		is := func(o string) bool { return strings.EqualFold(o, name) }
		if len(s.ColumnList) > 0 {
			return slices.ContainsFunc(s.ColumnList, is)
		}
		return !slices.ContainsFunc(s.ExceptColumnList, is)
	}
	for _, k := range cdc.Keys {
		if !chosen(k.Text) {
			c.bad(f, k.Span, "a target holds its keys: add the column to COLUMNS", "key column %s is not among the selected columns", k.Text)
		}
	}
	for clause, list := range map[string]*Selection{"TRACK HISTORY": cdc.TrackHistory, "IGNORE NULL UPDATES": cdc.IgnoreNull} {
		if list == nil {
			continue
		}
		for _, n := range list.Names {
			if !chosen(n.Text) {
				c.bad(f, n.Span, "add it to COLUMNS, or leave it out here", "column %s of %s is not among the selected columns", n.Text, clause)
			}
		}
	}
	if cdc.Columns != nil && !cdc.Columns.All && s.SCDType != 1 {
		for _, n := range cdc.Columns.Names {
			if slices.ContainsFunc(flow.Reserved, func(r string) bool { return strings.EqualFold(r, n.Text) }) {
				c.bad(f, n.Span, "", "column %s has a reserved name", n.Text)
			}
		}
	}
}

// sequence are the columns that order events.
func (c *compiler) sequence(f *File, s *Sequence) []string {
	switch {
	case s == nil:
		return nil
	case s.Other != nil:
		c.cannot(f, s.Span, "a column, or STRUCT(a, b); what has to be computed is computed in the source", "a sequence that is an expression")
		return nil
	}
	return c.texts(f, s.Names)
}

// read says what a flow reads.
func (c *compiler) read(e *entry, from *Source, s *flow.Spec) {
	file, in := e.file, e.scope
	for range 32 { // views of views
		switch {
		case from.Query != nil:
			c.cannot(file, from.Span, "a flow reads a table, or read_files(...)", "a change feed that is a query")
			return
		case from.Function != nil:
			c.readFiles(e, file, from.Function, s)
			return
		}
		name := c.resolve(file, from.Table, in)
		d := c.datasets[name.key()]
		if d == nil {
			c.table(file, from.Table, name, s)
			return
		}
		if d.view == nil || passes(d.view) == nil {
			d.read = d.read || d.view != nil
			c.cannot(file, from.Table.span(), "flows read tables of the source, and files", "a flow from %s, which this pipeline itself makes,", from.Table)
			return
		}
		d.read = true
		file, in, from = d.file, d.scope, &passes(d.view).Source
	}
	c.bad(file, from.Span, "", "the views are declared in a circle")
}

// table takes a table of the source, or a relation of files that is declared elsewhere.
func (c *compiler) table(f *File, path Path, name place, s *flow.Spec) {
	i := slices.IndexFunc(c.Relations, func(r string) bool { return strings.EqualFold(r, name.table) })
	switch {
	case i >= 0 && (c.Source == "files" || name.schema == ""):
		s.Source, s.Files = place{"", c.Relations[i]}.spec(), true
	case c.Source == "files":
		hint := "declare it under `relations` of the configuration, or read files with STREAM read_files('path', format => 'json')"
		if best := nearest(name.table, c.Relations); best != "" {
			hint = "did you mean " + best + "? Otherwise " + hint
		}
		c.bad(f, path.span(), hint, "the source is files, and there is no relation %s", name.table)
	default:
		s.Source = name.spec()
	}
}
