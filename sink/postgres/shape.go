package postgres

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
	name    string // quoted
	columns []column
	keys    []int // indexes of the key columns

	identityAlways bool     // a column is GENERATED ALWAYS AS IDENTITY
	uniques        []string // unique indexes beside the key's
	keyed          bool     // a unique index on the key can be used (type 2: on key and start)
	stage          *stage   // nil until needed
	restored       bool     // in this batch: see sink.TargetRounds.Restored
	record         string   // name of the record of an open source transaction; "" without one
	start          column   // type 2: the start, and the end, which has its type
	feed           *feed    // nil: it has no change feed
	kept           *kept    // nil until old rows are kept
	records        string   // quoted name of the table of what a sequenced target remembers
	texts          [statementsMax]string
}

// column is one of Target.Columns in the destination.
type column struct {
	plain     string // the name as it is
	name      string // quoted
	base      string // its type without length, of a domain the type below it
	baseOID   uint32
	domain    bool   // its type is a domain over base
	array     string // the type of arrays of base
	nested    bool   // base is an array itself: arrays of it are not lists of keys
	equals    string // base's equality operator: that of an extension's type is not in pg_catalog
	generated bool   // GENERATED ALWAYS AS (...) STORED: never written
	key       bool
	tracked   bool
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

// direct reports whether rows can be copied straight into the target.
func (sh *shape) direct() bool {
	return !slices.ContainsFunc(sh.columns, func(c column) bool { return c.generated })
}

func qualifiedName(n change.Name) string { return quote(n.Schema) + "." + quote(n.Table) }

// relation is a destination table as the catalogue describes it.
type relation struct {
	oid      string
	kind     string // pg_class.relkind
	parent   bool   // an ordinary table that others inherit from
	hidden   bool   // row security would hide rows from us
	columns  map[string]attribute
	indexes  []index
	triggers []string // enabled ones of users that replication fires not
	foreign  []string // foreign key constraints on it or to it
	missing  []string // privileges that the user lacks, of those a target needs
	ours     bool     // made by a Writer
}

type attribute struct {
	typ       string // as written, with length
	base      string
	baseOID   uint32
	domain    bool
	typmod    int64
	array     string
	nested    bool
	equals    string
	notNull   bool
	filled    bool // has a default, or fills itself
	identity  string
	generated bool
}

func (a attribute) column(name string) column {
	return column{plain: name, name: quote(name), base: a.base, baseOID: a.baseOID, array: a.array, nested: a.nested, equals: a.equals, domain: a.domain, generated: a.generated}
}

type index struct {
	name     string
	columns  []string // empty where it has expressions
	unique   bool
	usable   bool // valid, immediate, whole
	primary  bool
	deferred bool // DEFERRABLE: not checked at once
}

// readRelation looks a table up; nil if there is none.
func (w *Writer) readRelation(ctx context.Context, s *session, n change.Name) (*relation, error) {
	rows, err := s.ask(ctx, relationSQL, n.Schema, n.Table)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	r := &relation{oid: str(rows[0][0]), kind: str(rows[0][1]), parent: str(rows[0][2]) == "t", hidden: str(rows[0][4]) == "t", columns: map[string]attribute{}}
	if list := str(rows[0][3]); list != "" {
		r.missing = strings.Split(list, ", ")
	}
	if rows, err = s.ask(ctx, attributesSQL, r.oid); err != nil {
		return nil, err
	}
	for _, row := range rows {
		r.columns[str(row[0])] = attribute{
			typ: str(row[1]), typmod: num(row[2]), notNull: str(row[3]) == "t", filled: str(row[4]) == "t",
			identity: str(row[5]), generated: str(row[6]) != "",
			baseOID: uint32(num(row[7])), base: str(row[8]), array: str(row[9]), nested: str(row[10]) == "A",
			equals: equalsIn(row[11]), domain: str(row[12]) == "t",
		}
	}
	if rows, err = s.ask(ctx, indexesSQL, r.oid); err != nil {
		return nil, err
	}
	for _, row := range rows {
		i := index{name: str(row[0]), unique: str(row[1]) == "t", usable: str(row[2]) == "t", primary: str(row[3]) == "t", deferred: str(row[5]) == "t"}
		if len(r.indexes) > 0 && r.indexes[len(r.indexes)-1].name == i.name {
			last := &r.indexes[len(r.indexes)-1]
			last.columns = append(last.columns, str(row[4]))
			continue
		}
		i.columns = []string{str(row[4])}
		r.indexes = append(r.indexes, i)
	}
	if rows, err = s.ask(ctx, firingSQL, r.oid); err != nil {
		return nil, err
	}
	for _, row := range rows {
		if str(row[0]) == "trigger" {
			r.triggers = append(r.triggers, str(row[1]))
		} else {
			r.foreign = append(r.foreign, str(row[1]))
		}
	}
	rows, err = s.ask(ctx, oursSQL, n.Schema, n.Table)
	if err != nil && !missingBook(err) && stateOf(err) != notPermitted {
		return nil, err
	}
	r.ours = err == nil && len(rows) > 0
	return r, nil
}

// equalsIn is the equality operator that lies in a schema; nil for types that
// borrow another type's.
func equalsIn(schema *string) string {
	if schema == nil || *schema == "pg_catalog" {
		return "="
	}
	return "OPERATOR(" + quote(*schema) + ".=)"
}

// keyIndex finds the index that keeps the key unique: on exactly the key columns,
// of type 2 followed by the start.
func (r *relation) keyIndex(t *scd.Target) *index {
	for i := range r.indexes {
		if ix := &r.indexes[i]; ix.unique && ix.usable && ix.onKey(t) {
			return ix
		}
	}
	return nil
}

// onKey reports whether the index is on exactly the key's columns (and start).
func (ix *index) onKey(t *scd.Target) bool {
	var want []string
	for _, k := range t.Keys() {
		want = append(want, t.Columns[k].Name)
	}
	cols := slices.Clone(ix.columns)
	if t.Kind == scd.Type2 {
		if len(cols) == 0 || cols[len(cols)-1] != scd.StartColumn {
			return false
		}
		cols = cols[:len(cols)-1]
	}
	slices.Sort(want)
	slices.Sort(cols)
	return len(want) > 0 && slices.Equal(cols, want)
}

// shapeOf reads a target's shape for loading or applying. The table must be there
// and fit: Create has seen to that.
func (w *Writer) shapeOf(ctx context.Context, s *session, t *scd.Target) (*shape, error) {
	return w.shapeAt(ctx, s, t, w.qualified(t.Name))
}

// shapeAt is shapeOf for a target that stands under a name: its own, or where its
// copy is being put together.
func (w *Writer) shapeAt(ctx context.Context, s *session, t *scd.Target, name change.Name) (*shape, error) {
	r, err := w.readRelation(ctx, s, name)
	if err != nil {
		return nil, w.explain(ctx, err, "look at table "+name.String(), nil)
	}
	if r == nil {
		return nil, fault.Refuse("run again: the table is made anew; tailrace resync fills it", "table %s is not there", name)
	}
	sh := &shape{target: t, name: qualifiedName(name), keys: t.Keys()}
	for _, c := range t.Columns {
		a, ok := r.columns[c.Name]
		if !ok {
			return nil, fault.Refuse("add the column, or run tailrace plan to see what the table lacks", "table %s has no column %s", name, c.Name)
		}
		col := a.column(c.Name)
		col.key, col.tracked = c.Key, c.Tracked
		sh.columns = append(sh.columns, col)
		sh.identityAlways = sh.identityAlways || a.identity == "a"
	}
	if t.Kind == scd.Type2 {
		sh.start = r.columns[scd.StartColumn].column(scd.StartColumn)
	}
	if t.Sequenced {
		sh.records = w.records(t)
	}
	if t.ChangeFeed {
		sh.feed = &feed{table: feedTable(w.feedName(t))}
	}
	key := r.keyIndex(t)
	sh.keyed = key != nil
	for i := range r.indexes {
		if ix := &r.indexes[i]; ix.unique && ix != key {
			sh.uniques = append(sh.uniques, ix.name)
		}
	}
	if len(sh.keys) > 0 && !sh.keyed && !r.ours && name == w.qualified(t.Name) {
		return nil, fault.Refuse(addKeySQL(name, t)+";", "table %s has no unique index on its key", name)
	}
	return sh, nil
}

const relationSQL = `SELECT c.oid, c.relkind, c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid),
  (SELECT string_agg(p, ', ') FROM unnest(ARRAY['SELECT','INSERT','UPDATE','DELETE','TRUNCATE']) AS p WHERE NOT has_table_privilege(c.oid, p)),
  row_security_active(c.oid)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind NOT IN ('i', 'I', 't', 'c')`

// The type below a domain is looked up to the last one: domains can be made of
// domains. format_type with -1 spells bpchar and bit so that they have no length.
const attributesSQL = `SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypmod, a.attnotnull,
  a.atthasdef OR a.attidentity <> '', a.attidentity, a.attgenerated, b.oid, format_type(b.oid, -1), format_type(b.typarray, -1), b.typcategory,
  (SELECT n.nspname FROM pg_operator AS o JOIN pg_namespace AS n ON n.oid = o.oprnamespace WHERE o.oprname = '=' AND o.oprleft = b.oid AND o.oprright = b.oid LIMIT 1), b.oid <> a.atttypid
FROM pg_attribute AS a
CROSS JOIN LATERAL (
  WITH RECURSIVE below AS (
    SELECT t.oid, t.typtype, t.typbasetype FROM pg_type AS t WHERE t.oid = a.atttypid
    UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM pg_type AS t JOIN below ON t.oid = below.typbasetype WHERE below.typtype = 'd')
  SELECT t.oid, t.typarray, t.typcategory FROM below JOIN pg_type AS t ON t.oid = below.oid WHERE below.typtype <> 'd') AS b
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`

const indexesSQL = `SELECT ic.relname, i.indisunique, i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL, i.indisprimary, a.attname, NOT i.indimmediate
FROM pg_index AS i JOIN pg_class AS ic ON ic.oid = i.indexrelid
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, at)
LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = $1::oid AND k.at <= i.indnkeyatts ORDER BY i.indisprimary DESC, ic.relname, k.at`

// Triggers set to fire always or on replicas are meant to fire for us.
const firingSQL = `SELECT 'trigger', tgname FROM pg_trigger WHERE tgrelid = $1::oid AND NOT tgisinternal AND tgenabled = 'O'
UNION ALL SELECT 'foreign key', conname FROM pg_constraint WHERE contype = 'f' AND (conrelid = $1::oid OR confrelid = $1::oid)`

const oursSQL = `SELECT FROM _tailrace.made WHERE target_schema = $1 AND target_table = $2`
