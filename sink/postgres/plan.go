package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// fillfactor leaves room on a page for the next version of its rows, so that an
// update (of type 2: the end of a version) need not touch an index. Rows of
// append-only targets never change.
func fillfactor(t *scd.Target) string {
	if t.AppendOnly {
		return ""
	}
	return " WITH (fillfactor = 80)"
}

// Plan compares a target with what is there.
func (w *Writer) Plan(ctx context.Context, t *scd.Target) (sink.Plan, error) {
	s, err := w.connect(ctx, "")
	if err != nil {
		return sink.Plan{}, err
	}
	defer s.close(ctx)
	p, later, err := w.plan(ctx, s, t)
	p.DDL = append(p.DDL, later...)
	return p, err
}

// Create makes the target or adds what it lacks.
func (w *Writer) Create(ctx context.Context, t *scd.Target) error {
	if _, err := w.owned(); err != nil {
		return err
	}
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx)
	p, _, err := w.plan(ctx, s, t)
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
	name := w.qualified(t.Name)
	record := fmt.Sprintf(madeSQL, literal(w.cfg.Pipeline), literal(name.Schema), literal(name.Table))
	if err := s.exec(ctx, "BEGIN;"+strings.Join(p.DDL, ";")+";"+record+";COMMIT"); err != nil {
		return w.explain(ctx, err, "create table "+name.String(), nil)
	}
	return nil
}

const madeSQL = `INSERT INTO _tailrace.made (pipeline, target_schema, target_table) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING`

// planner gathers what stands against a target.
type planner struct {
	name     change.Name
	user     string
	problems []sink.Finding
}

func (p *planner) block(remedy, format string, args ...any) {
	p.problems = append(p.problems, sink.Finding{Blocks: true, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

// plan finds the statements that make the target fit, those that a load runs
// later, and the problems.
func (w *Writer) plan(ctx context.Context, s *session, t *scd.Target) (sink.Plan, []string, error) {
	p := planner{name: w.qualified(t.Name)}
	fail := func(err error) (sink.Plan, []string, error) {
		return sink.Plan{}, nil, w.explain(ctx, err, "look at table "+p.name.String(), nil)
	}
	types, err := w.destinationTypes(ctx, s, t)
	if err != nil {
		return fail(err)
	}
	rights, err := s.query(ctx, rightsSQL, p.name.Schema)
	if err != nil {
		return fail(err)
	}
	p.user = str(rights[0][0])
	database, makes, temp := str(rights[0][1]), str(rights[0][2]) == "t", str(rights[0][3]) == "t"
	schemaThere, book := rights[0][4] != nil, str(rights[0][5]) == "t"
	if !temp {
		p.block(fmt.Sprintf("GRANT TEMPORARY ON DATABASE %s TO %s;", quote(database), quote(p.user)), "user %s may not make temporary tables in database %s", p.user, database)
	}
	if !makes && (!schemaThere || !book) {
		p.block(fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s;", quote(database), quote(p.user)), "user %s may not create schemas in database %s", p.user, database)
	}
	r, err := w.readRelation(ctx, s, p.name)
	if err != nil {
		return fail(err)
	}
	if r == nil {
		if schemaThere && str(rights[0][4]) != "t" {
			p.block(fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s;", quote(p.name.Schema), quote(p.user)), "user %s may not create tables in schema %s", p.user, p.name.Schema)
		}
		var ddl, later []string
		if !schemaThere {
			ddl = append(ddl, "CREATE SCHEMA IF NOT EXISTS "+quote(p.name.Schema))
		}
		ddl = append(ddl, createSQL(p.name, t, types))
		if !t.AppendOnly {
			later = append(later, addKeySQL(p.name, t)+" -- when the copy has been loaded")
		}
		return sink.Plan{DDL: ddl, Problems: p.problems}, later, nil
	}
	out := sink.Plan{Exists: true, DDL: p.compare(t, r, types)}
	if !w.mayReplicate(s) && len(r.triggers)+len(r.foreign) > 0 {
		p.block(fmt.Sprintf("GRANT SET ON PARAMETER session_replication_role TO %s; -- version 15 and later; before: ALTER TABLE %s DISABLE TRIGGER USER, and drop its foreign keys", quote(p.user), qualifiedName(p.name)),
			"table %s has triggers or foreign keys (%s) that would fire again for the source's changes", p.name, strings.Join(append(r.triggers, r.foreign...), ", "))
	}
	if len(r.missing) == 0 {
		rows, err := s.query(ctx, "SELECT EXISTS (SELECT FROM "+qualifiedName(p.name)+")")
		if err != nil {
			return fail(err)
		}
		out.Rows = str(rows[0][0]) == "t"
	}
	out.Problems = p.problems
	return out, nil, nil
}

// compare judges an existing table and returns the columns to add.
func (p *planner) compare(t *scd.Target, r *relation, types []destinationType) []string {
	table := qualifiedName(p.name)
	switch {
	case r.kind != "r" && r.kind != "p":
		p.block("give the flow another target", "%s is no table", p.name)
		return nil
	case r.kind == "p" && t.Kind == scd.Type2:
		p.block("give the flow another target", "table %s is partitioned: a history cannot be kept in it", p.name)
	case r.parent:
		p.block("give the flow another target", "other tables inherit from table %s", p.name)
	}
	if r.hidden {
		p.block(fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", quote(p.user)), "row security of table %s hides rows from user %s", p.name, p.user)
	}
	if len(r.missing) > 0 {
		p.block(fmt.Sprintf("GRANT %s ON %s TO %s;", strings.Join(r.missing, ", "), table, quote(p.user)), "user %s lacks %s on table %s", p.user, strings.Join(r.missing, ", "), p.name)
	}
	var ddl []string
	known := map[string]bool{}
	for i, c := range t.Columns {
		known[c.Name] = true
		a, ok := r.columns[c.Name]
		column := fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s ", table, quote(c.Name))
		switch {
		case !ok && r.ours && !c.Key:
			ddl = append(ddl, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table, quote(c.Name), types[i].name))
		case !ok:
			p.block(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s;", table, quote(c.Name), types[i].name), "table %s has no column %s", p.name, c.Name)
		case !fits(a, c.Type, types[i]):
			p.block(column+"TYPE "+types[i].name+";", "column %s of table %s is %s, the source's is %s", c.Name, p.name, a.typ, types[i].name)
		case a.identity == "a" && !c.Key:
			p.block(column+"SET GENERATED BY DEFAULT;", "column %s of table %s is GENERATED ALWAYS AS IDENTITY: the source's value cannot be kept in it", c.Name, p.name)
		case a.generated && c.Key:
			p.block(column+"DROP EXPRESSION;", "key column %s of table %s is a generated column", c.Name, p.name)
		}
	}
	if t.Kind == scd.Type2 {
		for _, name := range []string{scd.StartColumn, scd.EndColumn} {
			known[name] = true
			if a, ok := r.columns[name]; !ok || a.typ != "timestamp with time zone" {
				p.block("drop the table or give the flow another target", "table %s keeps no history: it has no column %s of type timestamp with time zone", p.name, name)
			}
		}
		if r.columns[scd.EndColumn].notNull {
			p.block(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", table, endColumn), "column %s of table %s must admit NULL: it means open", scd.EndColumn, p.name)
		}
		for _, ix := range r.indexes {
			if ix.unique && !slices.Contains(ix.columns, scd.StartColumn) {
				p.block("DROP INDEX "+quote(p.name.Schema)+"."+quote(ix.name)+";", "unique index %s of table %s admits one version only", ix.name, p.name)
			}
		}
	}
	var further []string
	for name, a := range r.columns {
		if !known[name] && a.notNull && !a.filled {
			further = append(further, name)
		}
	}
	slices.Sort(further)
	for _, name := range further {
		p.block(fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL;", table, quote(name)), "column %s of table %s must have a value, and the flow gives none", name, p.name)
	}
	if !t.AppendOnly && !r.ours && r.keyIndex(t) == nil {
		p.block(addKeySQL(p.name, t)+";", "table %s has no unique index on its key that ON CONFLICT can use", p.name)
	}
	return ddl
}

// destinationType is the type that a column is to have.
type destinationType struct {
	name string
	oid  uint32
}

// destinationTypes chooses each column's type: the source's own where the
// destination has it.
func (w *Writer) destinationTypes(ctx context.Context, s *session, t *scd.Target) ([]destinationType, error) {
	var names []string
	for _, c := range t.Columns {
		names = append(names, candidates(c.Type)...)
	}
	rows, err := s.query(ctx, "SELECT to_regtype(n)::oid FROM unnest($1::text[]) WITH ORDINALITY AS x (n, i) ORDER BY i", names)
	if err != nil {
		return nil, err
	}
	var out []destinationType
	at := 0
	for _, c := range t.Columns {
		var chosen destinationType
		for _, name := range candidates(c.Type) {
			if oid := rows[at][0]; oid != nil && chosen.name == "" {
				chosen = destinationType{name, uint32(num(oid))}
			}
			at++
		}
		out = append(out, chosen)
	}
	return out, nil
}

// fits reports whether every value of the source's type t can be kept unchanged
// in a column: want is the type that we would have made.
func fits(a attribute, t change.Type, want destinationType) bool {
	switch {
	case a.typ == want.name:
		return true
	case a.base == "text":
		return slices.Contains([]string{"character varying", "bpchar", "character", "name", "text"}, strings.TrimSpace(strings.SplitN(want.name, "(", 2)[0]))
	case a.baseOID != want.oid:
		return false
	case a.typmod == -1:
		return true
	case t.Kind == change.Text && t.Length > 0 && a.base == "character varying":
		return a.typmod-4 >= int64(t.Length)
	case t.Kind == change.Numeric && t.Precision > 0:
		// numeric's modifier: precision and scale in 16 bits each (scale: 11, signed).
		precision, scale := (a.typmod-4)>>16, (a.typmod-4)&0x7ff
		return precision >= int64(t.Precision) && scale == int64(t.Scale)&0x7ff
	}
	return false
}

func createSQL(name change.Name, t *scd.Target, types []destinationType) string {
	var lines []string
	for i, c := range t.Columns {
		line := quote(c.Name) + " " + types[i].name
		if c.Key {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	if t.Kind == scd.Type2 {
		lines = append(lines, startColumn+" timestamp with time zone NOT NULL", endColumn+" timestamp with time zone")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n  %s\n)%s", qualifiedName(name), strings.Join(lines, ",\n  "), fillfactor(t))
}

func addKeySQL(name change.Name, t *scd.Target) string {
	var cols []string
	for _, k := range t.Keys() {
		cols = append(cols, quote(t.Columns[k].Name))
	}
	if t.Kind == scd.Type2 {
		cols = append(cols, startColumn)
	}
	return fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (%s)", qualifiedName(name), strings.Join(cols, ", "))
}

// mayReplicate tries to make a session one whose writes fire no triggers and
// check no foreign keys: the source has done both.
func (w *Writer) mayReplicate(s *session) bool {
	return s.exec(context.Background(), "SET session_replication_role = replica") == nil
}

const rightsSQL = `SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY'),
  (SELECT has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = $1),
  EXISTS (SELECT FROM pg_namespace WHERE nspname = '_tailrace')`
