package mysql

import (
	"context"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// shape is a target as it stands in the destination: what statements are made of.
type shape struct {
	target  *scd.Target
	place   change.Name
	name    string // place, quoted
	columns []column
	keys    []int    // indexes of the key columns
	index   string   // of the index on the key (type 2: on key and start), quoted
	exact   bool     // it has no columns beside the target's, so that a row may be replaced
	uniques []string // unique indexes beside the key's
	start   column   // type 2: the start, and the end, which has its type
	end     column
	feed    *feed  // nil: it has no change feed
	records string // quoted name of the table of what a sequenced target remembers
	record  string // name of the record of an open source transaction; "" without one
	session string // collation of constants

	// Where what a batch touches is kept, as of undo; nil: nothing is.
	undo        undo
	held        *held
	heldRecords *held
	kept        map[keptKey]struct{} // what is known to be kept
}

// column is one of Target.Columns in the destination.
type column struct {
	plain     string // the name as it is
	name      string // quoted
	table     string // for messages
	typ       columnType
	source    change.Type
	collation string // of texts
	generated bool   // computed by the destination: never written
	bound     bool   // a version's start or end: -infinity is the first instant there is
	key       bool
	tracked   bool
	required  bool // without a value an INSERT is refused
	at        int  // among the target's
}

// label names the table for messages.
func (sh *shape) label() string { return "table " + sh.target.Name.String() }

func (sh *shape) keyNames() string {
	var names []string
	for _, k := range sh.keys {
		names = append(names, sh.columns[k].plain)
	}
	return strings.Join(names, ", ")
}

func qualifiedName(n change.Name) string { return quote(n.Schema) + "." + quote(n.Table) }

// relation is a destination table as the catalogue describes it.
type relation struct {
	kind     string // BASE TABLE, VIEW, ...
	engine   string
	columns  map[string]attribute // by name in lower case: the servers do not tell cases apart
	indexes  []index
	triggers []string
	ours     bool // made by a Writer
}

type attribute struct {
	name      string
	typ       columnType
	spelling  string
	notNull   bool
	filled    bool // has a default, or fills itself
	generated bool
	charset   string
	collation string
	place     int // among the table's columns, from 0
}

type index struct {
	name    string
	unique  bool
	columns []string // in lower case
	whole   bool     // of whole columns, not of their beginnings or of expressions
}

const (
	relationSQL   = `SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?`
	attributesSQL = `SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT IS NOT NULL, EXTRA, CHARACTER_SET_NAME, COLLATION_NAME, GENERATION_EXPRESSION
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`
	indexesSQL = `SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART
FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY INDEX_NAME = 'PRIMARY' DESC, INDEX_NAME, SEQ_IN_INDEX`
	triggersSQL = `SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ?`
	oursSQL     = `SELECT target_schema, target_table FROM _tailrace.made WHERE target_schema = ? AND target_table = ?`
)

// about runs a query about a table whose first two columns are its name. The catalogue
// compares names without their case.
func about(ctx context.Context, s *session, sql string, n change.Name) ([][]*string, error) {
	rows, err := s.query(ctx, bind(sql, n.Schema, n.Table))
	rows = slices.DeleteFunc(rows, func(r []*string) bool { return str(r[0]) != n.Schema || str(r[1]) != n.Table })
	return rows, err
}

// readRelation looks a table up; nil if there is none.
func (w *Writer) readRelation(ctx context.Context, s *session, n change.Name) (*relation, error) {
	rows, err := about(ctx, s, relationSQL, n)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	r := &relation{kind: str(rows[0][2]), engine: str(rows[0][3]), columns: map[string]attribute{}}
	if rows, err = about(ctx, s, attributesSQL, n); err != nil {
		return nil, err
	}
	for _, row := range rows {
		extra := strings.ToLower(str(row[6]))
		r.columns[strings.ToLower(str(row[2]))] = attribute{
			name: str(row[2]), typ: parseType(str(row[3])), spelling: str(row[3]), notNull: str(row[4]) == "NO",
			filled:    str(row[5]) == "1" || strings.Contains(extra, "auto_increment") || strings.Contains(extra, "default_generated"),
			generated: str(row[9]) != "", charset: str(row[7]), collation: str(row[8]), place: len(r.columns),
		}
	}
	if rows, err = about(ctx, s, indexesSQL, n); err != nil {
		return nil, err
	}
	for _, row := range rows {
		name := str(row[2])
		if len(r.indexes) == 0 || r.indexes[len(r.indexes)-1].name != name {
			r.indexes = append(r.indexes, index{name: name, unique: str(row[3]) == "0", whole: true})
		}
		ix := &r.indexes[len(r.indexes)-1]
		ix.columns = append(ix.columns, strings.ToLower(str(row[4])))
		ix.whole = ix.whole && row[4] != nil && row[5] == nil
	}
	if rows, err = about(ctx, s, triggersSQL, n); err != nil {
		return nil, err
	}
	for _, row := range rows {
		r.triggers = append(r.triggers, str(row[2]))
	}
	rows, err = about(ctx, s, oursSQL, n)
	if err != nil && !missingBook(err) && !notPermitted(err) { // Plan says which right is missing
		return nil, err
	}
	r.ours = err == nil && len(rows) > 0
	return r, nil
}

// history reports whether the table has the columns of a history.
func (r *relation) history() bool {
	_, starts := r.columns[strings.ToLower(scd.StartColumn)]
	_, ends := r.columns[strings.ToLower(scd.EndColumn)]
	return starts && ends
}

// keyIndex finds the index that keeps the key unique: on exactly the key columns, in
// any order, of type 2 followed by the start.
func (r *relation) keyIndex(t *scd.Target) *index {
	for i := range r.indexes {
		if ix := &r.indexes[i]; ix.unique && ix.whole && ix.onKey(t) {
			return ix
		}
	}
	return nil
}

func (ix *index) onKey(t *scd.Target) bool {
	var want []string
	for _, k := range t.Keys() {
		want = append(want, strings.ToLower(t.Columns[k].Name))
	}
	cols := slices.Clone(ix.columns)
	if t.Kind == scd.Type2 {
		if len(cols) == 0 || cols[len(cols)-1] != strings.ToLower(scd.StartColumn) {
			return false
		}
		cols = cols[:len(cols)-1]
	}
	slices.Sort(want)
	slices.Sort(cols)
	return len(want) > 0 && slices.Equal(cols, want)
}

// shapeOf reads a target's shape for loading or applying. The table must be there and
// fit: Create has seen to that.
func (w *Writer) shapeOf(ctx context.Context, s *session, t *scd.Target) (*shape, error) {
	return w.shapeAt(ctx, s, t, w.qualified(t.Name))
}

// shapeAt is shapeOf for what stands under a name: the target, or a stage of it.
func (w *Writer) shapeAt(ctx context.Context, s *session, t *scd.Target, name change.Name) (*shape, error) {
	r, err := w.readRelation(ctx, s, name)
	if err != nil {
		return nil, w.explain(err, "look at table "+name.String(), nil)
	}
	if r == nil {
		return nil, fault.Refuse("run again: the table is made anew; tailrace resync fills it", "table %s is not there", name)
	}
	sh := &shape{target: t, place: name, name: qualifiedName(name), keys: t.Keys(), session: s.server.collation}
	for _, c := range t.Columns {
		a, ok := r.columns[strings.ToLower(c.Name)]
		if !ok {
			return nil, fault.Refuse("add the column, or run tailrace plan to see what the table lacks", "table %s has no column %s", name, c.Name)
		}
		col := a.column(c.Name, name, c.Type)
		col.key, col.tracked, col.at = c.Key, c.Tracked, len(sh.columns)
		sh.columns = append(sh.columns, col)
	}
	further := len(r.columns) - len(t.Columns)
	if t.Kind == scd.Type2 {
		sh.start = r.columns[strings.ToLower(scd.StartColumn)].column(scd.StartColumn, name, sequenceOf(t))
		sh.end = r.columns[strings.ToLower(scd.EndColumn)].column(scd.EndColumn, name, sequenceOf(t))
		sh.start.bound, sh.end.bound = true, true
		further -= 2
	}
	sh.exact = further == 0
	if t.ChangeFeed {
		sh.feed = &feed{table: feedTable(w.feedName(t))}
	}
	if t.Sequenced {
		sh.records = w.records(t)
	}
	key := r.keyIndex(t)
	for i := range r.indexes {
		if ix := &r.indexes[i]; ix.unique && ix != key {
			sh.uniques = append(sh.uniques, ix.name)
		}
	}
	switch {
	case len(sh.keys) > 0 && key == nil:
		return nil, fault.Refuse(addKeySQL(name, t)+";", "table %s has no unique index on its key", name)
	case key != nil:
		sh.index = quote(key.name)
	}
	if len(sh.uniques) > 0 && !sh.exact {
		return nil, fault.Refuse("DROP INDEX "+quote(sh.uniques[0])+" ON "+sh.name+";",
			"table %s has columns that the flow does not know and a further unique index %s: rows that exchange its values cannot be written without losing those columns", name, sh.uniques[0])
	}
	return sh, nil
}

func (a attribute) column(name string, table change.Name, source change.Type) column {
	return column{plain: name, name: quote(name), table: table.String(), typ: a.typ, source: source, collation: a.collation, generated: a.generated, required: a.notNull && !a.filled}
}
