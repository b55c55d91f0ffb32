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
// update (of type 2: the end of a version) need not touch an index. Measured on
// rows of 200 bytes, 90 makes updates 10 % faster and a copy 4 % slower, and 80
// gives updates no more; a history, whose every change is one update and one
// insert, gains from 80. Rows of append-only targets never change.
func fillfactor(t *scd.Target) string {
	switch {
	case t.AppendOnly:
		return ""
	case t.Kind == scd.Type2:
		return " WITH (fillfactor = 80)"
	}
	return " WITH (fillfactor = 90)"
}

// Plan compares a target with what is there.
func (w *Writer) Plan(ctx context.Context, t *scd.Target) (sink.Plan, error) {
	s, err := w.borrow(ctx)
	if err != nil {
		return sink.Plan{}, err
	}
	d, err := w.plan(ctx, s, t)
	w.giveBack(ctx, s, err == nil)
	d.DDL = slices.Concat(d.DDL, d.memory, d.feed, d.later)
	return d.Plan, err
}

// Create makes the target or adds what it lacks.
func (w *Writer) Create(ctx context.Context, t *scd.Target) error {
	if _, err := w.owned(); err != nil {
		return err
	}
	s, err := w.borrow(ctx)
	if err != nil {
		return err
	}
	err = w.create(ctx, s, t)
	w.giveBack(ctx, s, err == nil)
	return err
}

func (w *Writer) create(ctx context.Context, s *session, t *scd.Target) error {
	d, err := w.plan(ctx, s, t)
	if err != nil {
		return err
	}
	for _, f := range d.Problems {
		if f.Blocks {
			return fault.Refuse(f.Remedy, "%s", f.What)
		}
	}
	name := w.qualified(t.Name)
	sql := d.DDL
	if len(d.DDL) > 0 {
		sql = append(sql, fmt.Sprintf(madeSQL, literal(w.cfg.Pipeline), literal(name.Schema), literal(name.Table)))
	}
	if !d.Exists && len(d.DDL) > 0 {
		sql = append(sql, w.barrierSQL(name, "its table was made"))
	}
	sql = append(sql, d.memory...)
	if d.Remembered {
		sql = append(sql, w.barrierSQL(name, "it ceased to remember its events"))
	}
	if len(d.memory) > 0 && t.Sequenced {
		sql = append(sql, fmt.Sprintf(sequencedRowSQL, literal(w.cfg.Pipeline), literal(name.Schema), literal(name.Table), literal(recordsName(w.cfg.Pipeline, name))))
	}
	if len(d.feed) > 0 {
		sql = append(append(sql, d.feed...), fmt.Sprintf(feedRowSQL, literal(w.cfg.Pipeline), literal(name.Schema), literal(name.Table), literal(w.feedName(t))))
	}
	if len(sql) == 0 {
		return nil
	}
	// A change that waits behind a long query makes everybody else wait behind it.
	begin := "BEGIN; SET LOCAL lock_timeout = '30s';"
	if s.replica {
		begin += "SET LOCAL session_replication_role = origin;" // an event trigger may want to know of the table
	}
	if err := s.exec(ctx, begin+strings.Join(sql, ";")+";COMMIT"); err != nil {
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

// declared says of the newest problem that the flow's declaration has brought it about.
func (p *planner) declared(is bool) { p.problems[len(p.problems)-1].Flow = is }

// history reports whether the table has the columns of a history.
func (r *relation) history() bool {
	_, starts := r.columns[scd.StartColumn]
	_, ends := r.columns[scd.EndColumn]
	return starts && ends
}

// design is a Plan whose statements are the target's own.
type design struct {
	sink.Plan
	memory []string // those that make the table of what it remembers, or drop that of an ordered target
	feed   []string // those that make its change feed, or add columns to it
	later  []string // those that a load runs later
}

// plan finds the statements that make the target fit, and the problems.
func (w *Writer) plan(ctx context.Context, s *session, t *scd.Target) (design, error) {
	p := planner{name: w.qualified(t.Name)}
	fail := func(err error) (design, error) {
		return design{}, w.explain(ctx, err, "look at table "+p.name.String(), nil)
	}
	types, err := w.destinationTypes(ctx, s, sourceTypes(t))
	if err != nil {
		return fail(err)
	}
	start := types[len(t.Columns)]
	rights, err := s.ask(ctx, rightsSQL, p.name.Schema)
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
	var memory []string
	there, err := w.remembers(ctx, s, t)
	if err != nil {
		return fail(err)
	}
	switch {
	case t.Sequenced && !there:
		memory = createRecordsSQL(recordsName(w.cfg.Pipeline, p.name), t.Kind)
		if book && str(rights[0][6]) != "t" {
			p.block(grantBookSQL(p.user), "user %s may not make tables in schema _tailrace, which hold what is remembered of table %s", p.user, p.name)
		}
	case !t.Sequenced && there: // the ordered lane will not keep it up to date
		memory = dropRecordsSQL(w.cfg.Pipeline, p.name)
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
		ddl = append(ddl, createSQL(p.name, t, types, start))
		if !t.AppendOnly {
			later = append(later, addKeySQL(p.name, t)+" -- when the copy has been loaded")
		}
		var feed []string
		if t.ChangeFeed {
			if feed, err = w.planFeed(ctx, s, &p, t, columnTypes(t, types)); err != nil {
				return fail(err)
			}
		}
		return design{sink.Plan{DDL: ddl, Problems: p.problems, Remembered: there && !t.Sequenced}, memory, feed, later}, nil
	}
	before := len(p.problems)
	out := design{Plan: sink.Plan{Exists: true, DDL: p.compare(t, r, types), Remembered: there && !t.Sequenced}, memory: memory}
	for i := before; i < len(p.problems); i++ {
		p.problems[i].Reset = r.ours && t.Sequenced
	}
	if len(r.triggers)+len(r.foreign) > 0 && !s.replica && !w.mayReplicate(ctx, s) {
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
	if t.ChangeFeed {
		as := columnTypes(t, types)
		for c := range as {
			if a, ok := r.columns[c]; ok {
				as[c] = a.typ
			}
		}
		if out.feed, err = w.planFeed(ctx, s, &p, t, as); err != nil {
			return fail(err)
		}
	}
	if out.Rows && t.Sequenced && !there {
		p.block("tailrace run --overwrite -- empties the table and fills it again", "table %s holds rows, and nothing is remembered of the events that they come from", p.name)
		p.problems[len(p.problems)-1].Reset = true
		out.Unremembered = true
	}
	out.Problems = p.problems
	return out, nil
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
			switch a, ok := r.columns[name]; {
			case ok && fits(a, sequenceOf(t), types[len(t.Columns)]):
			case ok && t.Sequenced && r.ours:
				p.block("tailrace run --overwrite -- empties the table and gives the column that type", "column %s of table %s is %s, the flow's sequence is %s", name, p.name, a.typ, types[len(t.Columns)].name)
			default:
				p.block("drop the table or give the flow another target", "table %s keeps no history: it has no column %s of type %s", p.name, name, types[len(t.Columns)].name)
				p.declared(!r.history())
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
	for _, ix := range r.indexes {
		if ix.deferred && ix.onKey(t) { // ON CONFLICT refuses to work beside it, whatever else there is
			p.block(fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s;", table, quote(ix.name)), "constraint %s of table %s is deferrable: it cannot serve as the key", ix.name, p.name)
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
		p.declared(r.history() && name == scd.StartColumn)
	}
	if !t.AppendOnly && r.keyIndex(t) == nil {
		switch primary := slices.IndexFunc(r.indexes, func(ix index) bool { return ix.primary }); {
		case !r.ours:
			p.block(addKeySQL(p.name, t)+";", "table %s has no unique index on its key that ON CONFLICT can use", p.name)
		case primary >= 0:
			p.block(fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s;", table, quote(r.indexes[primary].name)), "the primary key of table %s is on other columns than the flow's key", p.name)
			p.declared(true)
		}
	}
	return ddl
}

// columnTypes are the types of a target's columns as Create makes them, by name.
func columnTypes(t *scd.Target, types []destinationType) map[string]string {
	as := map[string]string{}
	for i := range t.Columns {
		as[t.Columns[i].Name] = types[i].name
	}
	if t.Kind == scd.Type2 {
		as[scd.StartColumn], as[scd.EndColumn] = types[len(t.Columns)].name, types[len(t.Columns)].name
	}
	return as
}

// destinationType is the type that a column is to have.
type destinationType struct {
	name string
	oid  uint32
}

// commitTime is the type of a history's start and end where the user names no
// sequence.
var commitTime = change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone", ID: 1184, BuiltIn: true}

// sequenceOf is the source type of a type 2 target's start and end.
func sequenceOf(t *scd.Target) change.Type {
	if t.Sequence != nil {
		return *t.Sequence
	}
	return commitTime
}

// startType is the type of a type 2 target's start and end.
func (w *Writer) startType(ctx context.Context, s *session, t *scd.Target) (destinationType, error) {
	types, err := w.destinationTypes(ctx, s, []change.Type{sequenceOf(t)})
	if err != nil {
		return destinationType{}, err
	}
	return types[0], nil
}

// startSpelling is the type as a definition has it. A text sequence is ordered by
// its bytes, whatever the database's own order of texts.
func startSpelling(t *scd.Target, typ destinationType) string {
	if sequenceOf(t).Kind == change.Text {
		return typ.name + ` COLLATE "C"`
	}
	return typ.name
}

// sourceTypes are the types of a target's columns, and of its start and end.
func sourceTypes(t *scd.Target) []change.Type {
	types := make([]change.Type, 0, len(t.Columns)+1)
	for i := range t.Columns {
		types = append(types, t.Columns[i].Type)
	}
	return append(types, sequenceOf(t))
}

// destinationTypes chooses the type of a column for each source type: the source's
// own where the destination has it.
func (w *Writer) destinationTypes(ctx context.Context, s *session, source []change.Type) ([]destinationType, error) {
	var names []string
	for _, t := range source {
		names = append(names, candidates(t)...)
	}
	rows, err := s.ask(ctx, "SELECT to_regtype(n)::oid FROM unnest($1::text[]) WITH ORDINALITY AS x (n, i) ORDER BY i", names)
	if err != nil {
		return nil, err
	}
	var out []destinationType
	at := 0
	for _, t := range source {
		var chosen destinationType
		for _, name := range candidates(t) {
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

func createSQL(name change.Name, t *scd.Target, types []destinationType, start destinationType) string {
	var lines []string
	for i, c := range t.Columns {
		line := quote(c.Name) + " " + types[i].name
		if c.Key {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	if t.Kind == scd.Type2 {
		lines = append(lines, startColumn+" "+startSpelling(t, start)+" NOT NULL", endColumn+" "+startSpelling(t, start))
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
func (w *Writer) mayReplicate(ctx context.Context, s *session) bool {
	return s.exec(ctx, "SET session_replication_role = replica") == nil
}

const rightsSQL = `SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'), has_database_privilege(current_database(), 'TEMPORARY'),
  (SELECT has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE') FROM pg_namespace AS n WHERE n.nspname = $1),
  EXISTS (SELECT FROM pg_namespace WHERE nspname = '_tailrace'),
  (SELECT has_schema_privilege(n.oid, 'CREATE') FROM pg_namespace AS n WHERE n.nspname = '_tailrace')`
