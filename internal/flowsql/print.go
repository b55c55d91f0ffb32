package flowsql

import (
	"fmt"
	"strings"

	"tailrace/internal/flow"
)

// String is the file in its canonical form: keywords in capitals, clauses in the order of
// the documentation, one a line, lists in parentheses, no comments. Parsing it gives the
// same statements.
func (f *File) String() string {
	var p printer
	for i, s := range f.Statements {
		if i > 0 {
			p.line("")
		}
		p.statement(s)
	}
	return p.String()
}

type printer struct{ strings.Builder }

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(p, format+"\n", args...)
}

// sql is the name as it can be written.
func (n Name) sql() string {
	if n.Quoted {
		return "`" + strings.ReplaceAll(n.Text, "`", "``") + "`"
	}
	return n.Text
}

func list(names []Name) string {
	out := make([]string, len(names))
	for i := range names {
		out[i] = names[i].sql()
	}
	return "(" + strings.Join(out, ", ") + ")"
}

func sqlString(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'"
}

func (p *printer) statement(s Statement) {
	var lines []string
	switch s := s.(type) {
	case *Use:
		lines = []string{"USE " + map[bool]string{true: "CATALOG ", false: "SCHEMA "}[s.Catalog] + s.Name.String()}
	case *CreateSchema:
		lines = []string{"CREATE SCHEMA " + onlyIf(s.IfNotExists, "IF NOT EXISTS ") + s.Name.String()}
		if s.Comment != nil {
			lines = append(lines, "COMMENT "+s.Comment.Raw)
		}
	case *CreateTable:
		lines = tableLines(s)
	case *CreateView:
		lines = viewLines(s)
	case *CreateFlow:
		lines = flowLines(s)
	}
	p.line("%s;", strings.Join(lines, "\n"))
}

func onlyIf(yes bool, text string) string {
	if yes {
		return text
	}
	return ""
}

func tableLines(t *CreateTable) []string {
	lines := []string{"CREATE " + onlyIf(t.OrRefresh, "OR REFRESH ") + onlyIf(t.Private, "PRIVATE ") + "STREAMING TABLE " + onlyIf(t.IfNotExists, "IF NOT EXISTS ") + t.Name.String()}
	lines = bodyLines(lines, t.Columns, t.Expectations, t.Constraints)
	lines = append(lines, t.Clauses.lines()...)
	switch {
	case t.Query != nil:
		lines = append(lines, "AS "+t.Query.String())
	case t.Flow != nil && t.Flow.Insert != nil:
		lines = append(lines, "FLOW "+t.Flow.Insert.head(t.Flow.Once, nil), t.Flow.Insert.Query.String())
	case t.Flow != nil:
		lines = append(append(lines, "FLOW AUTO CDC"+onlyIf(t.Flow.Once, " ONCE")), t.Flow.lines()...)
	}
	return lines
}

func viewLines(v *CreateView) []string {
	head := "CREATE "
	if v.Or != "" {
		head += "OR " + v.Or + " "
	}
	head += onlyIf(v.Private, "PRIVATE ") + onlyIf(v.Temporary, "TEMPORARY ") + onlyIf(v.Materialized, "MATERIALIZED ") + "VIEW " + onlyIf(v.IfNotExists, "IF NOT EXISTS ")
	lines := bodyLines([]string{head + v.Name.String()}, v.Columns, v.Expectations, v.Constraints)
	return append(append(lines, v.Clauses.lines()...), "AS "+v.Query.String())
}

// bodyLines adds the body of a table to the last line.
func bodyLines(lines []string, columns []Column, expectations []Expectation, constraints []Constraint) []string {
	var items []string
	for _, c := range columns {
		item := c.Name.sql()
		if c.Type != "" {
			item += " " + c.Type
		}
		for _, property := range c.Properties {
			item += " " + property.Text
		}
		items = append(items, item)
	}
	for _, e := range expectations {
		item := "CONSTRAINT " + e.Name.sql() + " EXPECT (" + e.Condition.String() + ")"
		if e.Action != "" {
			item += " ON VIOLATION " + e.Action
		}
		items = append(items, item)
	}
	for _, c := range constraints {
		items = append(items, c.Text)
	}
	if len(items) == 0 {
		return lines
	}
	lines[len(lines)-1] += " ("
	for i, item := range items {
		lines = append(lines, "  "+item+onlyIf(i < len(items)-1, ","))
	}
	return append(lines, ")")
}

func (o *Clauses) lines() (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if o.Using != nil {
		add("USING %s", o.Using.sql())
	}
	if o.Partitioned != nil {
		add("PARTITIONED BY %s", list(o.Partitioned))
	}
	if o.Cluster != nil {
		by := o.Cluster.Word
		if by == "" {
			by = list(o.Cluster.Names)
		}
		add("CLUSTER BY %s", by)
	}
	if o.Location != nil {
		add("LOCATION %s", o.Location.Raw)
	}
	if o.Comment != nil {
		add("COMMENT %s", o.Comment.Raw)
	}
	if o.Properties != nil {
		items := make([]string, len(o.Properties))
		for i, p := range o.Properties {
			items[i] = sqlString(p.Key) + " = " + p.Value.text
		}
		add("TBLPROPERTIES (%s)", strings.Join(items, ", "))
	}
	if o.Collation != nil {
		add("DEFAULT COLLATION %s", o.Collation.sql())
	}
	if o.Filter != nil {
		add("WITH ROW FILTER %s ON %s", o.Filter.Function, list(o.Filter.On))
	}
	if s := o.Schedule; s != nil {
		switch {
		case s.Trigger:
			text := "TRIGGER ON UPDATE"
			if s.AtMost != nil {
				text += " AT MOST EVERY " + s.AtMost.String()
			}
			add("%s", text)
		case s.Cron != nil && s.Zone != nil:
			add("SCHEDULE CRON %s AT TIME ZONE %s", s.Cron.Raw, s.Zone.Raw)
		case s.Cron != nil:
			add("SCHEDULE CRON %s", s.Cron.Raw)
		default:
			add("SCHEDULE EVERY %d %s%s", s.Every, s.Unit, onlyIf(s.Every > 1, "S"))
		}
	}
	return lines
}

func flowLines(f *CreateFlow) []string {
	if f.Name == nil {
		return append([]string{"APPLY CHANGES INTO " + f.Target.String()}, f.Body.lines()...)
	}
	head := "CREATE FLOW " + f.Name.String()
	if f.Comment != nil {
		head += " COMMENT " + f.Comment.Raw
	}
	if i := f.Body.Insert; i != nil {
		return []string{head + " AS", i.head(f.Body.Once, f.Target), i.Query.String()}
	}
	return append([]string{head + " AS", "AUTO CDC " + onlyIf(f.Body.Once, "ONCE ") + "INTO " + f.Target.String()}, f.Body.lines()...)
}

// head is what stands before the query of an append flow: with its target, or inside of
// its table.
func (i *Insert) head(once bool, target Path) string {
	replace := ""
	switch {
	case i.ReplaceWhere != nil:
		replace = "REPLACE WHERE " + i.ReplaceWhere.String()
	case i.ReplaceUsing != nil:
		replace = "REPLACE USING " + list(i.ReplaceUsing) + " SEQUENCE BY " + i.SequenceBy.sql()
	}
	switch {
	case target != nil:
		return "INSERT " + onlyIf(once, "ONCE ") + "INTO " + target.String() + " BY NAME" + onlyIf(replace != "", " ") + replace
	case replace != "":
		return replace + " BY NAME"
	}
	return "INSERT " + onlyIf(once, "ONCE ") + "BY NAME"
}

func (b *Body) lines() []string {
	if b.Snapshot != nil {
		return b.Snapshot.lines()
	}
	return b.CDC.lines()
}

func (c *CDC) lines() []string {
	lines := []string{"FROM " + c.Source.String(), "KEYS " + list(c.Keys)}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if c.IgnoreNull != nil {
		add("IGNORE NULL UPDATES%s", onlyIf(!c.IgnoreNull.All || len(c.IgnoreNull.Names) > 0, " ON "+c.IgnoreNull.String()))
	}
	if c.DeleteWhen != nil {
		add("APPLY AS DELETE WHEN %s", c.DeleteWhen)
	}
	if c.TruncateWhen != nil {
		add("APPLY AS TRUNCATE WHEN %s", c.TruncateWhen)
	}
	add("SEQUENCE BY %s", c.SequenceBy)
	if c.SystemSequenceBy != nil {
		add("SYSTEM SEQUENCE BY %s", c.SystemSequenceBy)
	}
	if c.Columns != nil {
		add("COLUMNS %s", c.Columns)
	}
	if c.StoredAs != nil {
		add("STORED AS %s", c.StoredAs)
	}
	if c.TrackHistory != nil {
		add("TRACK HISTORY ON %s", c.TrackHistory)
	}
	if c.ColumnsToUpdate != nil {
		add("COLUMNS TO UPDATE %s", c.ColumnsToUpdate.sql())
	}
	return lines
}

func (s *Snapshot) lines() []string {
	lines := []string{"FROM SNAPSHOT (" + s.From.String() + ")"}
	if s.Version != nil {
		lines = append(lines, "WITH VERSION ("+s.Version.String()+")")
	}
	lines = append(lines, "KEYS "+list(s.Keys))
	if s.StoredAs != nil {
		lines = append(lines, "STORED AS "+s.StoredAs.String())
	}
	if s.TrackHistory != nil {
		lines = append(lines, "TRACK HISTORY ON "+s.TrackHistory.String())
	}
	return lines
}

func (s *Selection) String() string {
	switch {
	case s.All && len(s.Names) == 0:
		return "*"
	case s.All:
		return "* EXCEPT " + list(s.Names)
	}
	return list(s.Names)
}

func (s *StoredAs) String() string {
	if s.Type == flow.Bitemporal {
		return "BITEMPORAL"
	}
	return fmt.Sprintf("SCD TYPE %d", s.Type)
}

func (s *Sequence) String() string {
	switch {
	case s.Other != nil:
		return s.Other.String()
	case s.Struct:
		return "STRUCT" + list(s.Names)
	}
	return s.Names[0].sql()
}

func (s *Source) String() string {
	out := s.Relation.String()
	switch {
	case s.Stream:
		return "STREAM(" + out + ")"
	case s.Query != nil:
		return "(" + out + ")"
	}
	return out
}

// String is the relation; a query is without its parentheses.
func (r *Relation) String() string {
	switch {
	case r.Function != nil:
		args := make([]string, len(r.Function.Args))
		for i, a := range r.Function.Args {
			if a.Name != nil {
				args[i] = a.Name.sql() + " => "
			}
			args[i] += a.Value.String()
		}
		return r.Function.Name.String() + "(" + strings.Join(args, ", ") + ")"
	case r.Query != nil:
		return r.Query.String()
	}
	return r.Table.String()
}
