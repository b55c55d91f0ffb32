//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// defaultSchema is where a target without a schema lies.
const defaultSchema = "main"

// shape is a target as the file holds it: what every statement on it is made
// from.
type shape struct {
	target *scd.Target
	schema string
	table  string
	name   string   // quoted, with catalogue and schema: a schema may be named like the file
	cols   []column // the data columns in target order, with the file's types
	keys   []int
	memory string // quoted like name: what is remembered of a sequenced target
	exact  bool   // the table has these columns, in this order, and no others

	defaults []string // of cols, as the table has them; empty: none
}

// quote makes an identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal makes a string literal.
func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

func schemaOf(n change.Name) string {
	if n.Schema == "" {
		return defaultSchema
	}
	return n.Schema
}

func (w *Writer) qualify(schema, table string) string {
	return quote(w.catalog) + "." + quote(schema) + "." + quote(table)
}

// present is a column that a table has.
type present struct {
	name     string
	typ      columnType
	spelling string
	nullable bool
	fallback string // its default; empty: none
}

// relation is a table (or view) that the file has.
type relation struct {
	exists bool
	schema string // as spelled there
	table  string
	view   bool
	cols   []present
}

// look reads the catalogue's entry for a name. Names are found as the engine
// finds them, without regard to case.
func (w *Writer) look(ctx context.Context, c *conn, n change.Name) (relation, error) {
	var r relation
	err := c.each(ctx, func(cells []*string) error {
		if fold(*cells[0]) == fold(schemaOf(n)) && fold(*cells[1]) == fold(n.Table) { // lower() folds more than the engine does
			r.exists, r.schema, r.table, r.view = true, *cells[0], *cells[1], *cells[2] == "t"
		}
		return nil
	}, `SELECT schema_name, table_name, false FROM duckdb_tables() WHERE database_name = $1 AND lower(schema_name) = lower($2) AND lower(table_name) = lower($3)
UNION ALL SELECT schema_name, view_name, true FROM duckdb_views() WHERE database_name = $1 AND lower(schema_name) = lower($2) AND lower(view_name) = lower($3)`,
		w.catalog, schemaOf(n), n.Table)
	if err != nil || !r.exists {
		return r, w.explain("read the catalogue for "+n.String(), err)
	}
	err = c.each(ctx, func(cells []*string) error {
		r.cols = append(r.cols, presentOf(cells))
		return nil
	}, `SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns()
WHERE database_name = $1 AND schema_name = $2 AND table_name = $3 ORDER BY column_index`, w.catalog, r.schema, r.table)
	return r, w.explain("read the columns of "+n.String(), err)
}

// find returns the column of exactly that name.
func (r *relation) find(name string) (present, bool) {
	for _, c := range r.cols {
		if c.name == name {
			return c, true
		}
	}
	return present{}, false
}

// shape resolves a target against the file, once for each target.
func (w *Writer) shape(ctx context.Context, t *scd.Target) (*shape, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.shapes[t]; s != nil {
		return s, nil
	}
	known, err := w.catalogueOf(ctx)
	if err != nil {
		return nil, err
	}
	rel := known.find(schemaOf(t.Name), t.Name.Table)
	if !rel.exists {
		return nil, fault.Refuse("run it again: a missing target is created at start", "target %s is not in %s", t.Name, w.cfg.Path)
	}
	s := &shape{target: t, schema: rel.schema, table: rel.table, name: w.qualify(rel.schema, rel.table), keys: t.Keys(), memory: w.memoryTable(t.Name)}
	for i := range t.Columns {
		c := &t.Columns[i]
		there, ok := rel.find(c.Name)
		if !ok {
			return nil, fault.Refuse(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", s.name, quote(c.Name), typeFor(c.Type)),
				"target %s has no column %s", t.Name, quote(c.Name))
		}
		if !there.typ.takes(c.Type) {
			return nil, fault.Refuse(retype(s.name, c.Name, typeFor(c.Type)),
				"column %s of target %s has type %s, which cannot hold every %s", quote(c.Name), t.Name, there.spelling, c.Type.Name)
		}
		s.cols = append(s.cols, column{name: c.Name, source: c.Type, typ: there.typ})
		s.defaults = append(s.defaults, there.fallback)
	}
	names := make([]string, 0, len(s.cols)+2)
	for _, c := range s.loadColumns() {
		names = append(names, c.name)
	}
	s.exact = len(names) == len(rel.cols)
	for i := range names {
		s.exact = s.exact && rel.cols[i].name == names[i]
	}
	if w.shapes == nil || len(w.shapes) >= maxShapes {
		w.shapes = map[*scd.Target]*shape{}
	}
	w.shapes[t] = s
	return s, nil
}

// maxShapes bounds the cache: a target whose layout changed is a new one.
const maxShapes = 10_000

func retype(table, col string, t columnType) string {
	return fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DATA TYPE %s;", table, quote(col), t)
}

// startColumnOf describes the column that type 2 adds for a version's start: the
// user's sequence, or the commit time.
func startColumnOf(t *scd.Target) column {
	source := change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone"}
	if t.Sequence != nil {
		source = *t.Sequence
	}
	c := column{name: scd.StartColumn, source: source, typ: typeFor(source), fields: t.SequenceFields}
	if len(c.fields) > 0 {
		c.typ = structOf(c.fields)
	}
	return c
}

// boundColumns are the two columns that type 2 adds.
func boundColumns(t *scd.Target) []column {
	start := startColumnOf(t)
	end := start
	end.name = scd.EndColumn
	return []column{start, end}
}

// loadColumns are the columns of a copy: the data columns and, of type 2, start
// and end.
func (s *shape) loadColumns() []column {
	cols := append([]column(nil), s.cols...)
	if s.target.Kind == scd.Type2 {
		cols = append(cols, boundColumns(s.target)...)
	}
	return cols
}

// Stages name their columns c0, c1, ... by place, so that no name of a user's
// can meet one of ours.

// stageName is a temporary table of ours.
func stageName(name string) string { return "temp.main." + name }

// c is a stage's column for data column i, with a prefix ("s.").
func c(prefix string, i int) string { return prefix + "c" + strconv.Itoa(i) }

// each joins f(i) for all data columns.
func (s *shape) each(f func(i int) string) string {
	parts := make([]string, len(s.cols))
	for i := range s.cols {
		parts[i] = f(i)
	}
	return strings.Join(parts, ", ")
}

// stageColumns are the data columns under their stage names.
func (s *shape) stageColumns() []column {
	cols := make([]column, len(s.cols))
	for i := range s.cols {
		cols[i] = column{name: c("", i), source: s.cols[i].source, typ: s.cols[i].typ}
	}
	return cols
}

// keyList joins f(i) for the key columns with sep.
func (s *shape) keyList(sep string, f func(i int) string) string {
	parts := make([]string, len(s.keys))
	for n, i := range s.keys {
		parts[n] = f(i)
	}
	return strings.Join(parts, sep)
}

// eq compares keys: with = where no key of the batch has a NULL, because only
// that prunes row groups.
func eq(nulls bool) string {
	if nulls {
		return " IS NOT DISTINCT FROM "
	}
	return " = "
}

// targetKey is the condition that a row t of the target has the key in columns
// c of a stage.
func (s *shape) targetKey(nulls bool, stage string) string {
	return s.keyList(" AND ", func(i int) string { return "t." + quote(s.cols[i].name) + eq(nulls) + c(stage, i) })
}

// stageKey is the condition that two stages' rows have the same key.
func (s *shape) stageKey(nulls bool, a, b string) string {
	return s.keyList(" AND ", func(i int) string { return c(a, i) + eq(nulls) + c(b, i) })
}

// names lists the target's data columns, quoted.
func (s *shape) names() string {
	return s.each(func(i int) string { return quote(s.cols[i].name) })
}
