//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// Binary reports whether the binary form of t can be decoded. An enum's is left
// out, as by every destination: whether it is one is for the source to say.
func (w *Writer) Binary(t change.Type) bool {
	if t.Kind == change.Enum || t.Kind == change.Array && t.Elem != nil && t.Elem.Kind == change.Enum {
		return false
	}
	return pgvalue.HasBinary(t)
}

// Plan compares the target with the file and changes nothing.
func (w *Writer) Plan(ctx context.Context, t *scd.Target) (sink.Plan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plan(ctx, t)
}

func (w *Writer) plan(ctx context.Context, t *scd.Target) (sink.Plan, error) {
	var p sink.Plan
	exists, err := w.readyLocked(ctx)
	if err != nil {
		return p, err
	}
	p.Problems = append(findings(t), w.twins(t)...)
	if !exists {
		p.DDL = append(w.createTarget(t, true), w.createMemory(t)...)
		return p, w.planFeed(ctx, &p, t, nil, &relation{})
	}
	known, err := w.catalogueOf(ctx)
	if err != nil {
		return p, err
	}
	remembers := known.find(bookSchema, memoryName(w.cfg.Pipeline, t.Name)).exists
	memory := func() {
		switch {
		case t.Sequenced && !remembers:
			p.DDL = append(p.DDL, w.createMemory(t)...)
		case !t.Sequenced && remembers:
			// The ordered lane will not keep it up to date.
			p.Remembered = true
			p.DDL = append(p.DDL, "DROP TABLE "+w.memoryTable(t.Name)+";")
		}
	}
	rel := known.find(schemaOf(t.Name), t.Name.Table)
	if !rel.exists {
		p.DDL = w.createTarget(t, !known.schemas[fold(schemaOf(t.Name))])
		memory()
		return p, w.planFeed(ctx, &p, t, known, &rel)
	}
	p.Exists = true
	if rel.view {
		p.Problems = append(p.Problems, sink.Finding{Blocks: true, What: fmt.Sprintf("target %s is a view", t.Name),
			Remedy: fmt.Sprintf("DROP VIEW %s;", w.qualify(rel.schema, rel.table))})
		return p, nil
	}
	n, err := w.book.number(ctx, fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s LIMIT 1)", w.qualify(rel.schema, rel.table)))
	if err != nil {
		return p, w.explain("read target "+t.Name.String(), err)
	}
	p.Rows = n > 0
	ours, err := w.made(ctx, known, rel.schema, rel.table)
	if err != nil {
		return p, err
	}
	w.compare(&p, t, &rel, ours)
	if t.Sequenced && !remembers && p.Rows {
		p.Problems = append(p.Problems, sink.Finding{Blocks: true, Reset: true,
			What:   fmt.Sprintf("target %s holds rows, but nothing is remembered of the events that made them", t.Name),
			Remedy: overwrite})
		p.Unremembered = true
		return p, nil
	}
	memory()
	return p, w.planFeed(ctx, &p, t, known, &rel)
}

// overwrite is the remedy for a target that must begin again.
const overwrite = "tailrace run --overwrite (it empties the target and copies it again)"

// findings are what stands against a target whatever the file holds.
func findings(t *scd.Target) []sink.Finding {
	var out []sink.Finding
	if strings.EqualFold(schemaOf(t.Name), bookSchema) {
		out = append(out, sink.Finding{Blocks: true, What: fmt.Sprintf("schema %s of target %s is reserved for bookkeeping", bookSchema, t.Name),
			Remedy: "give the flow another target"})
	}
	seen := map[string]string{}
	for _, name := range wantedNames(t) {
		folded := fold(name)
		if other, ok := seen[folded]; ok {
			out = append(out, sink.Finding{Blocks: true,
				What:   fmt.Sprintf("columns %s and %s of target %s differ only by case, which DuckDB does not tell apart", quote(other), quote(name), t.Name),
				Remedy: fmt.Sprintf("leave one out with except_column_list: [%s], or rename it in the source", name)})
		}
		seen[folded] = name
	}
	for i := range t.SequenceFields {
		for k := range i {
			if a, b := t.SequenceFields[k].Name, t.SequenceFields[i].Name; fold(a) == fold(b) {
				out = append(out, sink.Finding{Blocks: true,
					What:   fmt.Sprintf("columns %s and %s of the sequence of target %s differ only by case, which DuckDB does not tell apart in a STRUCT", quote(a), quote(b), t.Name),
					Remedy: "rename one of them in the source"})
			}
		}
	}
	return out
}

// twins finds another planned target whose name differs by case only: here they
// are one table.
func (w *Writer) twins(t *scd.Target) []sink.Finding {
	folded := fold(schemaOf(t.Name)) + "." + fold(t.Name.Table)
	other, planned := w.planned[folded]
	if !planned {
		if w.planned == nil {
			w.planned = map[string]change.Name{}
		}
		w.planned[folded] = t.Name
		return nil
	}
	if other == t.Name {
		return nil
	}
	return []sink.Finding{{Blocks: true,
		What:   fmt.Sprintf("targets %s and %s differ only by case, which DuckDB does not tell apart", other, t.Name),
		Remedy: "give one of their flows another target"}}
}

// fold maps a name to what the engine compares: it ignores the case of ASCII
// letters alone.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// wantedNames are the target's columns with those of type 2.
func wantedNames(t *scd.Target) []string {
	var names []string
	for i := range t.Columns {
		names = append(names, t.Columns[i].Name)
	}
	if t.Kind == scd.Type2 {
		names = append(names, scd.StartColumn, scd.EndColumn)
	}
	return names
}

// compare finds what an existing table lacks, and what stands against it. A
// table of ours gets new columns; somebody else's is never altered.
func (w *Writer) compare(p *sink.Plan, t *scd.Target, rel *relation, ours bool) {
	name := w.qualify(rel.schema, rel.table)
	block := func(remedy, format string, args ...any) {
		p.Problems = append(p.Problems, sink.Finding{Blocks: true, What: fmt.Sprintf(format, args...), Remedy: remedy, Reset: ours && t.Sequenced})
	}
	if rel.table != t.Name.Table || rel.schema != schemaOf(t.Name) {
		block("give the flow another target, or rename the table: DuckDB does not tell names apart that differ only by case",
			"target %s is there under the name %s.%s", t.Name, rel.schema, rel.table)
		return
	}
	_, starts := rel.find(scd.StartColumn)
	_, ends := rel.find(scd.EndColumn)
	copied := t.Bitemporal == nil && slices.ContainsFunc(t.Columns, func(c scd.Column) bool { // it has a history's columns as columns like others
		return strings.EqualFold(c.Name, scd.StartColumn) || strings.EqualFold(c.Name, scd.EndColumn)
	})
	if history := t.Kind == scd.Type2 || t.Bitemporal != nil; !copied && (starts && ends) != history {
		block("DROP TABLE "+name+"; or give the flow another target", "target %s keeps another kind of past: it %s the columns %s and %s",
			t.Name, map[bool]string{true: "lacks", false: "has"}[history], scd.StartColumn, scd.EndColumn)
		p.Problems[len(p.Problems)-1].Flow = starts == ends
		return
	}
	wanted := map[string]bool{}
	for i := range t.Columns {
		col := &t.Columns[i]
		wanted[col.Name] = true
		there, ok := rel.find(col.Name)
		switch {
		case ok && !there.typ.takes(col.Type):
			block(retype(name, col.Name, typeFor(col.Type)), "column %s of target %s has type %s, which cannot hold every %s", quote(col.Name), t.Name, there.spelling, col.Type.Name)
		case ok && ours && t.Sequenced && there.nullable == col.Key:
			// The keys are others than those it was made with; with a primary key they count.
			block(overwrite, "target %s was made with another key: column %s was %s of it", t.Name, quote(col.Name), map[bool]string{true: "no part", false: "a part"}[col.Key])
		case ok:
		case rel.twin(col.Name) != "":
			block(fmt.Sprintf("ALTER TABLE %s RENAME COLUMN %s TO %s;", name, quote(rel.twin(col.Name)), quote(col.Name)),
				"column %s of target %s is spelled %s there", quote(col.Name), t.Name, quote(rel.twin(col.Name)))
		default:
			add := fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", name, quote(col.Name), typeFor(col.Type))
			if ours && !col.Key {
				p.DDL = append(p.DDL, add)
			} else {
				block(add, "target %s has no column %s", t.Name, quote(col.Name))
			}
		}
	}
	if t.Kind == scd.Type2 {
		for _, c := range boundColumns(t) {
			wanted[c.name] = true
			if there, _ := rel.find(c.name); there.typ != c.typ {
				remedy := retype(name, c.name, c.typ)
				if t.Sequenced {
					remedy = overwrite
				}
				block(remedy, "column %s of target %s has type %s, the flow's is %s", quote(c.name), t.Name, there.spelling, c.typ)
			}
		}
	}
	for _, c := range rel.cols {
		if !wanted[c.name] && !c.nullable && c.fallback == "" {
			block(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", name, quote(c.name)),
				"column %s of target %s is NOT NULL but nothing fills it", quote(c.name), t.Name)
		}
	}
}

// twin returns the column whose name differs from name by case alone, or "".
func (r *relation) twin(name string) string {
	for _, c := range r.cols {
		if fold(c.name) == fold(name) {
			return c.name
		}
	}
	return ""
}

// made reports whether this pipeline made the table.
func (w *Writer) made(ctx context.Context, known *catalogue, schema, table string) (bool, error) {
	if !known.find(bookSchema, "made").exists {
		return false, nil
	}
	n, err := w.book.number(ctx, "SELECT count(*) FROM "+w.bookTable("made")+" WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3", w.cfg.Pipeline, schema, table)
	return n > 0, w.explain("read the bookkeeping", err)
}

// createMemory makes the table of what is remembered of a sequenced target.
func (w *Writer) createMemory(t *scd.Target) []string {
	if !t.Sequenced {
		return nil
	}
	name := quote(bookSchema) + "." + quote(memoryName(w.cfg.Pipeline, t.Name))
	if w.catalog != "" {
		name = w.memoryTable(t.Name)
	}
	return []string{fmt.Sprintf("CREATE TABLE %s (\n  %s\n);", name, strings.ReplaceAll(memoryColumns, ", ", ",\n  "))}
}

// createTarget makes the table, and its schema where asked.
func (w *Writer) createTarget(t *scd.Target, schema bool) []string {
	name := quote(schemaOf(t.Name)) + "." + quote(t.Name.Table)
	if w.catalog != "" {
		name = w.qualify(schemaOf(t.Name), t.Name.Table)
	}
	var ddl []string
	if schema && schemaOf(t.Name) != defaultSchema {
		s := quote(schemaOf(t.Name))
		if w.catalog != "" {
			s = quote(w.catalog) + "." + s
		}
		ddl = append(ddl, fmt.Sprintf("CREATE SCHEMA IF NOT EXISTS %s;", s))
	}
	var cols, keys []string
	for i := range t.Columns {
		c := &t.Columns[i]
		def := "  " + quote(c.Name) + " " + typeFor(c.Type).String()
		if c.Key {
			keys = append(keys, quote(c.Name))
			if !c.Nullable {
				def += " NOT NULL"
			}
		}
		cols = append(cols, def)
	}
	if t.Kind == scd.Type2 {
		bound := startColumnOf(t).typ.String()
		cols = append(cols, "  "+startColumn+" "+bound+" NOT NULL", "  "+endColumn+" "+bound)
		keys = append(keys, startColumn)
	}
	// The engine makes no index on a STRUCT.
	if w.cfg.PrimaryKey && !t.AppendOnly && len(keys) > 0 && len(t.SequenceFields) == 0 {
		cols = append(cols, "  PRIMARY KEY ("+strings.Join(keys, ", ")+")")
	}
	return append(ddl, fmt.Sprintf("CREATE TABLE %s (\n%s\n);", name, strings.Join(cols, ",\n")))
}

// Create carries Plan out, in one transaction.
func (w *Writer) Create(ctx context.Context, t *scd.Target) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	w.pointing.RLock()
	defer w.pointing.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	p, err := w.plan(ctx, t)
	if err != nil {
		return err
	}
	for _, f := range p.Problems {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
	}
	if len(p.DDL) == 0 {
		return nil
	}
	w.shapes = nil
	known := w.known // as the plan has seen it
	if p.Exists || t.Sequenced || t.ChangeFeed || known.find(bookSchema, memoryName(w.cfg.Pipeline, t.Name)).exists {
		known = nil // more than one table changes
	}
	w.known = nil
	err = inTransaction(ctx, w.book, func() error {
		for _, sql := range p.DDL {
			if _, err := w.book.exec(ctx, sql); err != nil {
				return err
			}
		}
		if err := w.noteFeed(ctx, t); err != nil {
			return err
		}
		if p.Remembered {
			if err := w.barrier(ctx, w.book, t.Name, "what was remembered of it was dropped"); err != nil {
				return err
			}
		}
		if err := w.noteMemory(ctx, t); err != nil || p.Exists {
			return err
		}
		_, err := w.book.run(ctx, "INSERT INTO "+w.bookTable("made")+" VALUES ($1, $2, $3)", w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table)
		return err
	})
	w.touched(t.Name)
	if err != nil || known == nil {
		return w.explain("create target "+t.Name.String(), err)
	}
	return w.learn(ctx, known, t.Name)
}

// noteMemory makes the head's row agree with the memory's table: a row for a
// sequenced target, none for another.
func (w *Writer) noteMemory(ctx context.Context, t *scd.Target) error {
	if !t.Sequenced {
		if err := w.forgetCounts(ctx, w.book, t.Name); err != nil {
			return err
		}
		_, err := w.book.run(ctx, "DELETE FROM "+w.bookTable("heads")+ofTarget, w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table)
		return err
	}
	n, err := w.book.number(ctx, "SELECT count(*) FROM "+w.bookTable("heads")+ofTarget, w.cfg.Pipeline, schemaOf(t.Name), t.Name.Table)
	if err != nil || n > 0 {
		return err
	}
	return w.insertMemory(ctx, w.book, t.Name, sequenced.Head{})
}
