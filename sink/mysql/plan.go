package mysql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Binary reports whether binary values of t can be written.
func (w *Writer) Binary(t change.Type) bool { return t.BuiltIn && pgvalue.HasBinary(t) }

// Plan compares a target with what is there.
func (w *Writer) Plan(ctx context.Context, t *scd.Target) (sink.Plan, error) {
	s, err := w.borrow(ctx)
	if err != nil {
		return sink.Plan{}, err
	}
	d, err := w.plan(ctx, s, t)
	w.giveBack(s, err == nil)
	d.DDL = slices.Concat(d.DDL, d.memory, d.feed)
	return d.Plan, w.explain(err, "look at table "+w.qualified(t.Name).String(), nil)
}

// Create makes the target or adds what it lacks. Each of its statements commits by
// itself; that the table is ours is written down before it is made, and that a sequenced
// target remembers after the table of its records was made. So Create goes on from
// wherever an earlier one has ended.
func (w *Writer) Create(ctx context.Context, t *scd.Target) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return err
	}
	err = w.create(ctx, s, epoch, t)
	w.giveBack(s, err == nil)
	return w.explain(err, "create table "+w.qualified(t.Name).String(), nil)
}

const madeSQL = `INSERT INTO _tailrace.made (pipeline, target_schema, target_table) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE pipeline = VALUES(pipeline)`

func (w *Writer) create(ctx context.Context, s *session, epoch int64, t *scd.Target) error {
	d, err := w.plan(ctx, s, t)
	if err != nil {
		return err
	}
	for _, f := range d.Problems {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
	}
	if len(d.DDL)+len(d.memory)+len(d.feed) == 0 {
		return nil
	}
	name := w.qualified(t.Name)
	return w.heldFence(ctx, epoch, func() error {
		if len(d.memory) > 0 && !t.Sequenced {
			if err := w.barrier(ctx, s, t.Name, madeAnew); err != nil {
				return err
			}
		}
		if len(d.DDL) > 0 {
			if _, err := s.exec(ctx, bind(madeSQL, w.cfg.Pipeline, name.Schema, name.Table)); err != nil {
				return err
			}
		}
		for _, sql := range slices.Concat(d.DDL, d.memory) {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		if len(d.memory) > 0 && t.Sequenced {
			if _, err := s.exec(ctx, bind(sequencedRowSQL, w.cfg.Pipeline, name.Schema, name.Table, recordsName(w.cfg.Pipeline, name))); err != nil {
				return err
			}
		}
		if len(d.feed) > 0 {
			d.feed = append([]string{bind(feedRowSQL, w.cfg.Pipeline, name.Schema, name.Table, w.feedName(t))}, d.feed...)
		}
		for _, sql := range d.feed {
			if _, err := s.exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
}

// planner gathers what stands against a target.
type planner struct {
	name     change.Name
	server   server
	problems []sink.Finding
}

func (p *planner) block(remedy, format string, args ...any) {
	p.problems = append(p.problems, sink.Finding{Blocks: true, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

// declared says of the newest problem that the flow's declaration has brought it about.
func (p *planner) declared(is bool) { p.problems[len(p.problems)-1].Flow = is }

// design is a Plan whose statements are the target's own.
type design struct {
	sink.Plan
	memory []string // those that make the table of what it remembers, or drop that of an ordered target
	feed   []string // those that make its change feed, or add columns to it
}

const overwriteRemedy = "tailrace run --overwrite -- empties the table and "

// plan finds the statements that make the target fit, and the problems.
func (w *Writer) plan(ctx context.Context, s *session, t *scd.Target) (design, error) {
	p := planner{name: w.qualified(t.Name), server: s.server}
	want := layoutOf(t)
	book, err := w.permittedRows(ctx, s, &p)
	if err != nil {
		return design{}, err
	}
	there := false
	if book {
		if there, err = w.remembers(ctx, s, t); err != nil {
			return design{}, err
		}
	}
	var memory []string
	switch {
	case !book:
	case t.Sequenced && !there:
		records := change.Name{Schema: "_tailrace", Table: recordsName(w.cfg.Pipeline, p.name)}
		left, err := about(ctx, s, relationSQL, records)
		if err != nil {
			return design{}, err
		}
		if len(left) > 0 { // without its row in the bookkeeping it was not finished
			memory = append(memory, "DROP TABLE "+qualifiedName(records))
		}
		memory = append(memory, createRecordsSQL(records.Table))
	case !t.Sequenced && there: // the ordered lane will not keep it up to date
		memory = dropRecordsSQL(w.cfg.Pipeline, p.name)
	}
	if err := w.permittedTables(ctx, s, &p, t, len(memory) > 0); err != nil {
		return design{}, err
	}
	p.names(t)
	r, err := w.readRelation(ctx, s, p.name)
	if err != nil {
		return design{}, err
	}
	if r == nil {
		if _, err := w.permitted(ctx, s, &p, r, false); err != nil {
			return design{}, err
		}
		var ddl []string
		schema, err := s.query(ctx, bind("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?", p.name.Schema))
		if err != nil {
			return design{}, err
		}
		if !slices.ContainsFunc(schema, func(row []*string) bool { return str(row[0]) == p.name.Schema }) {
			ddl = append(ddl, "CREATE DATABASE IF NOT EXISTS "+quote(p.name.Schema)+" CHARACTER SET utf8mb4")
		}
		ddl = append(ddl, createSQL(p.name, t, want, s.server.collation))
		feed, err := w.feedOf(ctx, s, &p, t, want, nil)
		if err != nil {
			return design{}, err
		}
		return design{sink.Plan{DDL: ddl, Problems: p.problems, Remembered: there && !t.Sequenced}, memory, feed}, nil
	}
	before := len(p.problems)
	out := design{Plan: sink.Plan{Exists: true, DDL: p.compare(t, r, want), Remembered: there && !t.Sequenced}, memory: memory}
	for i := before; i < len(p.problems); i++ {
		p.problems[i].Reset = r.ours && t.Sequenced
	}
	readable, err := w.permitted(ctx, s, &p, r, len(out.DDL) > 0)
	if err != nil {
		return design{}, err
	}
	if r.kind == "BASE TABLE" && readable {
		rows, err := s.query(ctx, "SELECT EXISTS (SELECT 1 FROM "+qualifiedName(p.name)+")")
		if err != nil {
			return design{}, err
		}
		out.Rows = str(rows[0][0]) == "1"
	}
	if out.feed, err = w.feedOf(ctx, s, &p, t, want, r); err != nil {
		return design{}, err
	}
	if out.Rows && t.Sequenced && book && !there {
		p.block(overwriteRemedy+"fills it again", "table %s holds rows, and nothing is remembered of the events that they come from", p.name)
		p.problems[len(p.problems)-1].Reset = true
		out.Unremembered = true
	}
	out.Problems = p.problems
	return out, nil
}

// nameMax is how many characters a name of the servers may have.
const nameMax = 64

// names looks for names that the servers cannot hold or do not tell apart.
func (p *planner) names(t *scd.Target) {
	seen := map[string]string{}
	list := []string{}
	for i := range t.Columns {
		list = append(list, t.Columns[i].Name)
	}
	if t.Kind == scd.Type2 {
		list = append(list, scd.StartColumn, scd.EndColumn)
	}
	for _, name := range list {
		lower := strings.ToLower(name)
		if other, twice := seen[lower]; twice {
			p.block("leave one out with except_column_list", "columns %s and %s of table %s differ by the case of letters alone, which these servers do not tell apart", other, name, p.name)
		}
		seen[lower] = name
	}
	for _, name := range append(list, p.name.Schema, p.name.Table) {
		switch {
		case len([]rune(name)) > nameMax:
			p.block("give the flow another target, or leave the column out", "the name %s has more than %d characters", name, nameMax)
		case strings.HasSuffix(name, " "):
			p.block("give the flow another target, or leave the column out", "the name %q ends with a blank, which these servers do not admit", name)
		case strings.ContainsFunc(name, func(r rune) bool { return r > 0xffff }):
			p.block("give the flow another target, or leave the column out", "the name %s has a letter beyond the Basic Multilingual Plane, which these servers do not admit", name)
		}
	}
}

// compare judges an existing table and returns the statements that add columns.
func (p *planner) compare(t *scd.Target, r *relation, want layout) []string {
	table := qualifiedName(p.name)
	if r.kind != "BASE TABLE" {
		p.block("give the flow another target", "%s is no table", p.name)
		return nil
	}
	if !strings.EqualFold(r.engine, "InnoDB") {
		p.block(fmt.Sprintf("ALTER TABLE %s ENGINE = InnoDB;", table), "table %s is kept by the engine %s, which knows no transactions", p.name, r.engine)
	}
	if len(r.triggers) > 0 {
		p.block(fmt.Sprintf("DROP TRIGGER %s.%s;", quote(p.name.Schema), quote(r.triggers[0])), "table %s has triggers (%s) that would fire again for the source's changes", p.name, strings.Join(r.triggers, ", "))
	}
	var ddl []string
	known := map[string]bool{}
	for i, c := range t.Columns {
		known[strings.ToLower(c.Name)] = true
		a, ok := r.columns[strings.ToLower(c.Name)]
		modify := func(null string) string {
			return fmt.Sprintf("ALTER TABLE %s MODIFY %s %s%s;", table, quote(c.Name), definition(want.columns[i], p.server.collation), null)
		}
		null := ""
		if c.Key {
			null = " NOT NULL"
		}
		switch {
		case !ok && r.ours && !c.Key:
			ddl = append(ddl, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table, quote(c.Name), definition(want.columns[i], p.server.collation)))
		case !ok:
			p.block(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s%s;", table, quote(c.Name), definition(want.columns[i], p.server.collation), null), "table %s has no column %s", p.name, c.Name)
		case a.generated && c.Key:
			p.block(modify(null), "key column %s of table %s is a generated column", c.Name, p.name)
		case a.generated:
		case !a.typ.takes(c.Type, want.columns[i]):
			p.block(modify(null), "column %s of table %s is %s, the source's %s needs %s", c.Name, p.name, a.spelling, c.Type.Name, want.columns[i])
		case a.typ.store == asChars && a.charset != "utf8mb4":
			p.block(modify(null), "column %s of table %s has the character set %s, which does not hold every text", c.Name, p.name, a.charset)
		case c.Key && a.typ.store == asChars && a.collation != p.server.collation && a.typ.name != "char":
			p.block(modify(null), "key column %s of table %s has the collation %s, to which different texts are one", c.Name, p.name, a.collation)
		case t.Kind == scd.Type2 && !c.Key && a.notNull && !a.filled:
			p.block(modify(""), "column %s of table %s must admit NULL: versions are ended without their other columns", c.Name, p.name)
		}
	}
	if t.Kind == scd.Type2 {
		p.compareHistory(t, r, want, known)
	}
	var further []string
	for name, a := range r.columns {
		if !known[name] && a.notNull && !a.filled && !a.generated {
			further = append(further, a.name)
		}
	}
	slices.Sort(further)
	for _, name := range further {
		p.block(fmt.Sprintf("ALTER TABLE %s MODIFY %s %s NULL;", table, quote(name), r.columns[strings.ToLower(name)].spelling), "column %s of table %s must have a value, and the flow gives none", name, p.name)
		p.declared(r.history() && name == scd.StartColumn)
	}
	if !t.AppendOnly && r.keyIndex(t) == nil {
		p.block(addKeySQL(p.name, t)+";", "table %s has no unique index on its key", p.name)
		p.declared(r.ours && len(r.indexes) > 0)
	}
	if extra := len(r.columns) - len(known); extra > 0 && !t.AppendOnly {
		key := r.keyIndex(t)
		for i := range r.indexes {
			if ix := &r.indexes[i]; ix.unique && ix != key {
				p.block(fmt.Sprintf("DROP INDEX %s ON %s;", quote(ix.name), table),
					"table %s has columns that the flow does not know and a further unique index %s: rows that exchange its values cannot be written without losing those columns", p.name, ix.name)
			}
		}
	}
	return ddl
}

func (p *planner) compareHistory(t *scd.Target, r *relation, want layout, known map[string]bool) {
	table := qualifiedName(p.name)
	for _, name := range []string{scd.StartColumn, scd.EndColumn} {
		known[strings.ToLower(name)] = true
		switch a, ok := r.columns[strings.ToLower(name)]; {
		case ok && a.typ.takes(sequenceOf(t), want.start) && (a.typ.store == asChars) == (want.start.store == asChars):
		case ok && t.Sequenced && r.ours:
			p.block(overwriteRemedy+"gives the column that type", "column %s of table %s is %s, the flow's sequence needs %s", name, p.name, a.spelling, want.start)
		default:
			p.block("drop the table or give the flow another target", "table %s keeps no history: it has no column %s of type %s", p.name, name, want.start)
			p.declared(!r.history())
		}
	}
	if r.columns[strings.ToLower(scd.EndColumn)].notNull {
		p.block(fmt.Sprintf("ALTER TABLE %s MODIFY %s %s NULL;", table, endColumn, want.start), "column %s of table %s must admit NULL: it means open", scd.EndColumn, p.name)
	}
	for _, ix := range r.indexes {
		if ix.unique && !slices.Contains(ix.columns, strings.ToLower(scd.StartColumn)) {
			p.block(fmt.Sprintf("DROP INDEX %s ON %s;", quote(ix.name), table), "unique index %s of table %s admits one version only", ix.name, p.name)
		}
	}
}

// definition is a type as a statement has it.
func definition(t columnType, collation string) string {
	if t.store == asChars {
		return t.String() + " CHARACTER SET utf8mb4 COLLATE " + collation
	}
	return t.String()
}

func createSQL(name change.Name, t *scd.Target, l layout, collation string) string {
	var lines []string
	for i, c := range t.Columns {
		line := quote(c.Name) + " " + l.columns[i].String()
		if c.Key {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	if t.Kind == scd.Type2 {
		lines = append(lines, startColumn+" "+l.start.String()+" NOT NULL", endColumn+" "+l.start.String())
	}
	if key := keyColumns(t); key != "" {
		lines = append(lines, "PRIMARY KEY ("+key+")")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n  %s\n) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE %s", qualifiedName(name), strings.Join(lines, ",\n  "), collation)
}

func keyColumns(t *scd.Target) string {
	var cols []string
	for _, k := range t.Keys() {
		cols = append(cols, quote(t.Columns[k].Name))
	}
	if t.Kind == scd.Type2 && len(cols) > 0 {
		cols = append(cols, startColumn)
	}
	return strings.Join(cols, ", ")
}

func addKeySQL(name change.Name, t *scd.Target) string {
	return fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", qualifiedName(name), keyColumns(t))
}
