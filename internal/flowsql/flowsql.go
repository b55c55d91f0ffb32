// Package flowsql reads pipelines that are written in the AUTO CDC dialect of SQL and
// turns them into specifications of flows.
//
//	text --Parse--> File (statements, with their places) --Compile--> Plan (flows, relations)
//	                  |                                                 |
//	                  +--String--> canonical SQL                        +--YAML--> the same as configuration
//
// Everything that the dialect can say is parsed; what cannot be run is refused by Compile
// with its place, so that nothing that a file says is passed over in silence. What is
// understood and has no meaning here is a note (docs/sql.md lists both).
package flowsql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/internal/flow"
)

// Options are what a pipeline is compiled for.
type Options struct {
	Source    string   // kind of the source: postgres, mysql or files
	Relations []string // names of relations of files that are declared elsewhere
	// Catalogs maps catalog or catalog.schema to the schema that is meant. What is not in it
	// loses its catalog and keeps its schema.
	Catalogs map[string]string
	// Retention is how long flows remember deletes unless their table says otherwise; 0:
	// DefaultRetention.
	Retention time.Duration
}

// Plan is what files of SQL declare.
type Plan struct {
	Flows     []flow.Spec
	Relations []FileRelation // of files, made of read_files
	Notes     []string       // what was understood and is ignored, each once

	retention time.Duration // the default
}

// FileRelation is a relation of files, as `relations` of the configuration declares it.
type FileRelation struct {
	Name, Path, Format string
	Columns            []flow.Column
	Header             *bool
	Delimiter, Null    string
}

// place is a schema, which may be empty, and a table.
type place struct{ schema, table string }

// spec is the name as flow.Spec has it.
func (n place) spec() string {
	quote := func(s string) string {
		if strings.ContainsAny(s, `."`) {
			return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
		}
		return s
	}
	if n.schema == "" {
		return quote(n.table)
	}
	return quote(n.schema) + "." + quote(n.table)
}

// key is what names are compared by.
func (n place) key() place { return place{strings.ToLower(n.schema), strings.ToLower(n.table)} }

// dataset is something that the pipeline declares: a streaming table or a view.
type dataset struct {
	file  *File
	span  Span
	name  place
	table *CreateTable // or
	view  *CreateView
	scope scope // of the statement

	expect []flow.Expectation
	knobs  knobs
	read   bool // a flow writes it, or a view is read
}

// entry is a flow as it is declared.
type entry struct {
	file   *File
	span   Span
	name   string // empty: the target's
	target *dataset
	body   *Body
	scope  scope
}

// scope is what USE has said.
type scope struct{ catalog, schema string }

// compiler gathers declarations, then makes specifications of them. Problems do not stop
// it: all are shown together.
type compiler struct {
	Options
	plan     Plan
	datasets map[place]*dataset
	entries  []entry
	origins  []*entry // of the plan's flows
	problems []*Problem
	notes    []note
}

type note struct{ where, what string }

// Compile turns files into a plan. The error is a usage error with every problem at its
// place: what cannot be run in this version, and what contradicts itself.
func Compile(files []*File, o Options) (*Plan, error) {
	c := &compiler{Options: o, datasets: map[place]*dataset{}}
	c.plan.retention = cmp.Or(o.Retention, DefaultRetention)
	for _, f := range files {
		c.declare(f)
	}
	for _, f := range files {
		c.gather(f)
	}
	for i := range c.entries {
		c.entry(&c.entries[i])
	}
	c.leftovers()
	if err := asError(c.problems); err != nil {
		return nil, err
	}
	for _, n := range c.notes {
		c.plan.Notes = append(c.plan.Notes, n.where+": "+n.what)
	}
	return &c.plan, nil
}

func (c *compiler) bad(f *File, at Span, hint, format string, args ...any) {
	c.problems = append(c.problems, f.problem(at.From, at.To, hint, format, args...))
}

// cannot refuses what is right and cannot be run.
func (c *compiler) cannot(f *File, at Span, hint, format string, args ...any) {
	c.bad(f, at, cmp.Or(hint, "docs/sql.md lists what can be run"), "%s cannot be run in this version", fmt.Sprintf(format, args...))
}

// note says once what is ignored, at its first place.
func (c *compiler) note(f *File, at Span, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if slices.ContainsFunc(c.notes, func(n note) bool { return n.what == what }) {
		return
	}
	line, _ := f.place(at.From)
	c.notes = append(c.notes, note{fmt.Sprintf("%s:%d", f.Name, line), what})
}

// resolve gives a name its schema: its own, or the one of USE. A catalog is dropped, or
// mapped.
func (c *compiler) resolve(f *File, p Path, s scope) place {
	for _, n := range p {
		if strings.ContainsAny(n.Text, `*?[]\{}`) {
			c.bad(f, n.Span, "", "a name cannot hold any of * ? [ ] { } \\ here")
		}
	}
	table := p[len(p)-1].Text
	switch {
	case len(p) == 2 && strings.EqualFold(p[0].Text, "LIVE") && !p[0].Quoted: // an older spelling of "of this pipeline"
	case len(p) == 3:
		s = scope{p[0].Text, p[1].Text}
	case len(p) == 2:
		s.schema = p[0].Text
	}
	return place{c.schema(s), table}
}

// schema is the schema of the databases that a scope means.
func (c *compiler) schema(s scope) string {
	if s.schema == "" {
		return ""
	}
	for _, key := range []string{s.catalog + "." + s.schema, s.catalog} {
		for from, to := range c.Catalogs {
			if s.catalog != "" && strings.EqualFold(from, key) {
				return to
			}
		}
	}
	return s.schema
}

// scopes calls fn with each statement of a file and what USE has said before it.
func scopes(f *File, fn func(s Statement, in scope)) {
	var in scope
	for _, s := range f.Statements {
		if u, ok := s.(*Use); ok {
			switch {
			case u.Catalog:
				in = scope{catalog: u.Name[0].Text}
			case len(u.Name) == 2:
				in = scope{u.Name[0].Text, u.Name[1].Text}
			default:
				in.schema = u.Name[0].Text
			}
			continue
		}
		fn(s, in)
	}
}

// declare takes the tables and views of a file.
func (c *compiler) declare(f *File) {
	scopes(f, func(s Statement, in scope) {
		d := &dataset{file: f, scope: in}
		var name Path
		switch s := s.(type) {
		case *CreateTable:
			d.table, d.span, name = s, s.Span, s.Name
		case *CreateView:
			d.view, d.span, name = s, s.Span, s.Name
		default:
			return
		}
		d.name = c.resolve(f, name, in)
		if other, twice := c.datasets[d.name.key()]; twice {
			line, _ := other.file.place(other.span.From)
			c.bad(f, name.span(), "give one of them another name", "%s is declared twice, first in %s, line %d", name, other.file.Name, line)
			return
		}
		c.datasets[d.name.key()] = d
		if d.table != nil {
			c.tableOptions(d)
		}
	})
}

// gather takes the flows of a file.
func (c *compiler) gather(f *File) {
	scopes(f, func(s Statement, in scope) {
		switch s := s.(type) {
		case *CreateTable:
			d := c.datasets[c.resolve(f, s.Name, in).key()]
			switch {
			case d == nil || d.table != s: // declared twice
			case s.Query != nil:
				d.read = true
				c.cannot(f, s.Query.Span, "", "a table that is filled by AS SELECT, which is an append flow,")
			case s.Flow != nil:
				c.entries = append(c.entries, entry{f, s.Flow.Span, "", d, s.Flow, in})
			}
		case *CreateFlow:
			d := c.datasets[c.resolve(f, s.Target, in).key()]
			if d == nil || d.table == nil {
				c.noTarget(f, s, in, d)
				return
			}
			e := entry{file: f, span: s.Span, target: d, body: &s.Body, scope: in}
			if s.Name != nil {
				e.name = s.Name[len(s.Name)-1].Text
			}
			c.entries = append(c.entries, e)
		case *CreateSchema:
			c.note(f, s.Span, "CREATE SCHEMA is ignored: the schemas of targets are made where they are missing")
		}
	})
}

// noTarget is the problem of a flow whose target is not a streaming table of the pipeline.
func (c *compiler) noTarget(f *File, s *CreateFlow, in scope, d *dataset) {
	if d != nil {
		c.bad(f, s.Target.span(), "a flow writes a streaming table", "%s is a view", s.Target)
		return
	}
	var tables []string
	for _, d := range c.datasets {
		if d.table != nil {
			tables = append(tables, d.table.Name.String())
		}
	}
	slices.Sort(tables)
	hint := fmt.Sprintf("CREATE OR REFRESH STREAMING TABLE %s;", s.Target)
	if best := nearest(s.Target.String(), tables); best != "" {
		hint = "did you mean " + best + "? Otherwise declare it: " + hint
	}
	c.bad(f, s.Target.span(), hint, "the flow has no target: no streaming table %s is declared", s.Target)
}

// leftovers judges what no flow has used.
func (c *compiler) leftovers() {
	var all []*dataset
	for _, d := range c.datasets {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *dataset) int {
		return cmp.Or(strings.Compare(a.file.Name, b.file.Name), cmp.Compare(a.span.From, b.span.From))
	})
	for _, d := range all {
		switch {
		case d.table != nil && !d.read:
			c.note(d.file, d.span, "streaming table %s is not made: no flow writes it", d.table.Name)
		case d.table != nil:
		case d.view.Materialized:
			c.cannot(d.file, d.span, "make a view in the destination that reads the targets", "a materialized view")
		case passes(d.view) == nil:
			c.cannot(d.file, d.span, "only a view that is SELECT * FROM one table can be read by a flow", "a view that computes something")
		case !d.read:
			c.note(d.file, d.span, "view %s is not made: no flow reads it", d.view.Name)
		case !d.view.Temporary:
			c.note(d.file, d.span, "view %s is not made in the destination: flows that read it read what it reads", d.view.Name)
		}
	}
	for i := range c.plan.Flows {
		// What reads the equivalent YAML would take the name of a table for that of files.
		s := &c.plan.Flows[i]
		if schema, table := flow.SplitName(s.Source); s.FromLog() && schema == "" {
			for _, r := range c.plan.Relations {
				if r.Name == table {
					e := c.origins[i]
					c.bad(e.file, e.span, "write the table with its schema", "%s is a table here, and the name of a flow that reads files", table)
				}
			}
		}
	}
}

// passes returns what a view reads if it is SELECT * FROM that, else nil.
func passes(v *CreateView) *From {
	s := simple(v.Query)
	if v.Materialized || len(v.Columns)+len(v.Expectations) > 0 || s == nil || len(s.From) != 1 || s.Where != nil || s.GroupBy != nil || s.Having != nil || s.Distinct {
		return nil
	}
	if len(s.Items) != 1 || !s.Items[0].Star || len(s.Items[0].Except) > 0 || s.From[0].Query != nil {
		return nil
	}
	return &s.From[0]
}

// simple returns the only SELECT of a query that has nothing around it.
func simple(q *Query) *Select {
	if q == nil || len(q.With)+len(q.Sets)+len(q.OrderBy) > 0 || q.Limit != nil || q.Selects[0].Nested != nil {
		return nil
	}
	return &q.Selects[0]
}

// DefaultRetention is how long deletes are remembered unless the table, or the
// configuration, says otherwise.
const DefaultRetention = 48 * time.Hour
