package postgres

import (
	"context"
	"fmt"
	"sort"
	"strings"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/source"
)

// ours is the schema of bookkeeping, never followed (a destination may lie in the
// source's database) but for change feeds of targets.
const ours = "_tailrace"

// table is what the catalogue says of one relation that could be followed.
type table struct {
	oid         uint32
	name        change.Name
	kind        string // relkind: r ordinary, p partitioned, f foreign
	persistence string // relpersistence: p permanent, u unlogged
	identity    change.Identity
	rows, size  int64 // planner's estimate, pages on disk; of a partitioned table: of its leaves
	readable    bool

	columns []column
	indexes []index
	leaves  []*table // of a partitioned table: the tables that hold its rows
	notes   []string
}

type column struct {
	num       int16
	name      string
	typ       typeKey
	notNull   bool
	generated bool
}

// index is one that can say which row is meant.
type index struct {
	name     string
	primary  bool
	identity bool // chosen by REPLICA IDENTITY USING INDEX
	serves   bool // valid, unique, not deferrable, not partial
	deferred bool
	columns  []int16
}

// Relations implements source.Source. It asks a constant number of questions,
// however many tables there are, and takes no lock on any of them.
func (s *Source) Relations(ctx context.Context) ([]source.Relation, error) {
	var out []source.Relation
	err := s.ask(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tables, err := s.readTables(ctx, conn, nil)
		if err != nil {
			return err
		}
		if err := readNotes(ctx, conn, tables); err != nil {
			return err
		}
		out, err = s.relations(ctx, conn, tables)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the source's catalogue: %w", err)
	}
	return out, nil
}

// readTables reads tables with columns, indexes and leaves: all that could be
// followed, or those with the given OIDs. They come ordered by name.
func (s *Source) readTables(ctx context.Context, conn *pgx.Conn, only []uint32) ([]*table, error) {
	tables, err := readRelations(ctx, conn, only)
	if err != nil {
		return nil, err
	}
	all, err := readLeaves(ctx, conn, tables)
	if err != nil {
		return nil, err
	}
	if err := readColumns(ctx, conn, all); err != nil {
		return nil, err
	}
	if err := readIndexes(ctx, conn, all); err != nil {
		return nil, err
	}
	if !s.names.ownPubs && versionOf(conn.PgConn()) >= 15 {
		if err := s.narrowToPublication(ctx, conn, tables); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

func readRelations(ctx context.Context, conn *pgx.Conn, only []uint32) ([]*table, error) {
	condition := `NOT c.relispartition AND c.relpersistence <> 't' AND (n.nspname <> $1 OR c.relname LIKE 'changes\_%')
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'`
	args := []any{ours}
	if only != nil {
		condition, args = `c.oid = ANY($1)`, []any{only}
	}
	result, err := conn.Query(ctx, `
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       greatest(c.reltuples, 0)::bigint, c.relpages::bigint * current_setting('block_size')::bigint,
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'), false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND `+condition+`
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"`, args...)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	var tables []*table
	var t table
	var identity string
	_, err = pgx.ForEachRow(result, []any{&t.oid, &t.name.Schema, &t.name.Table, &t.kind, &t.persistence, &identity,
		&t.rows, &t.size, &t.readable}, func() error {
		one := t
		one.identity = change.Identity(identity[0])
		tables = append(tables, &one)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	return tables, nil
}

// readLeaves fills in the leaves of partitioned tables and returns tables and
// leaves by OID.
func readLeaves(ctx context.Context, conn *pgx.Conn, tables []*table) (map[uint32]*table, error) {
	all := make(map[uint32]*table, len(tables))
	var roots []uint32
	for _, t := range tables {
		all[t.oid] = t
		if t.kind == "p" {
			roots = append(roots, t.oid)
		}
	}
	if len(roots) == 0 {
		return all, nil
	}
	result, err := conn.Query(ctx, `
WITH RECURSIVE tree(root, oid) AS (
  SELECT r, r FROM unnest($1::oid[]) r
  UNION ALL
  SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT t.root, c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       greatest(c.reltuples, 0)::bigint, c.relpages::bigint * current_setting('block_size')::bigint
FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind <> 'p'
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"`, roots)
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	var leaf table
	var root uint32
	var identity string
	_, err = pgx.ForEachRow(result, []any{&root, &leaf.oid, &leaf.name.Schema, &leaf.name.Table, &leaf.kind, &leaf.persistence,
		&identity, &leaf.rows, &leaf.size}, func() error {
		one := leaf
		one.identity = change.Identity(identity[0])
		r := all[root]
		r.leaves = append(r.leaves, &one)
		all[one.oid] = &one
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	for _, oid := range roots {
		r := all[oid]
		r.rows, r.size = 0, 0
		for _, l := range r.leaves {
			r.rows, r.size = r.rows+l.rows, r.size+l.size
		}
	}
	return all, nil
}

func oidsOf(tables map[uint32]*table) []uint32 {
	oids := make([]uint32, 0, len(tables))
	for oid := range tables {
		oids = append(oids, oid)
	}
	return oids
}

func readColumns(ctx context.Context, conn *pgx.Conn, tables map[uint32]*table) error {
	result, err := conn.Query(ctx, `
SELECT attrelid, attnum, attname, atttypid, atttypmod, attnotnull, attgenerated <> ''
FROM pg_attribute WHERE attrelid = ANY($1) AND attnum > 0 AND NOT attisdropped
ORDER BY attrelid, attnum`, oidsOf(tables))
	if err != nil {
		return fmt.Errorf("read columns: %w", err)
	}
	var oid uint32
	var c column
	_, err = pgx.ForEachRow(result, []any{&oid, &c.num, &c.name, &c.typ.oid, &c.typ.mod, &c.notNull, &c.generated}, func() error {
		tables[oid].columns = append(tables[oid].columns, c)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read columns: %w", err)
	}
	return nil
}

func readIndexes(ctx context.Context, conn *pgx.Conn, tables map[uint32]*table) error {
	result, err := conn.Query(ctx, `
SELECT i.indrelid, c.relname, i.indisprimary, i.indisreplident,
       i.indisvalid AND i.indisunique AND i.indimmediate AND i.indpred IS NULL, NOT i.indimmediate,
       (SELECT array_agg(u.num ORDER BY u.place) FROM unnest(i.indkey) WITH ORDINALITY AS u(num, place) WHERE u.place <= i.indnkeyatts)::int2[]
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY($1) AND (i.indisprimary OR i.indisreplident)`, oidsOf(tables))
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	var oid uint32
	var i index
	_, err = pgx.ForEachRow(result, []any{&oid, &i.name, &i.primary, &i.identity, &i.serves, &i.deferred, &i.columns}, func() error {
		one := i
		one.columns = append([]int16(nil), i.columns...)
		tables[oid].indexes = append(tables[oid].indexes, one)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	return nil
}

// narrowToPublication leaves the columns that a named publication sends. A table
// outside it keeps the columns it would be sent with.
func (s *Source) narrowToPublication(ctx context.Context, conn *pgx.Conn, tables []*table) error {
	result, err := conn.Query(ctx, `
SELECT c.oid, p.attnames::text[]
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 AND p.attnames IS NOT NULL`, s.names.main)
	if err != nil {
		return fmt.Errorf("read the columns of publication %s: %w", s.names.main, err)
	}
	sent := map[uint32]map[string]bool{}
	var oid uint32
	var columns []string
	_, err = pgx.ForEachRow(result, []any{&oid, &columns}, func() error {
		set := map[string]bool{}
		for _, c := range columns {
			set[c] = true
		}
		sent[oid] = set
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the columns of publication %s: %w", s.names.main, err)
	}
	for _, t := range tables {
		if set, ok := sent[t.oid]; ok {
			for i := range t.columns {
				t.columns[i].generated = !set[t.columns[i].name]
			}
		}
	}
	return nil
}

// readNotes finds what hangs on the tables and is not replicated.
func readNotes(ctx context.Context, conn *pgx.Conn, tables []*table) error {
	byOID := make(map[uint32]*table, len(tables))
	for _, t := range tables {
		byOID[t.oid] = t
	}
	result, err := conn.Query(ctx, `
SELECT owner, what, count(*), string_agg(name, ', ' ORDER BY name COLLATE "C") FROM (
  SELECT i.indrelid AS owner, 1 AS what, c.relname::text AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  WHERE i.indrelid = ANY($1) AND NOT i.indisprimary
  UNION ALL
  SELECT conrelid, 2, conname::text FROM pg_constraint WHERE conrelid = ANY($1) AND contype = 'f'
  UNION ALL
  SELECT d.refobjid, 3, c.relname::text FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY($1)
    AND d.deptype IN ('a', 'i') AND c.relkind = 'S'
  UNION ALL
  SELECT tgrelid, 4, tgname::text FROM pg_trigger WHERE tgrelid = ANY($1) AND NOT tgisinternal
  UNION ALL
  SELECT d.objid, 5, e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.objid = ANY($1)
) AS notes(owner, what, name) GROUP BY owner, what ORDER BY owner, what`, oidsOf(byOID))
	if err != nil {
		return fmt.Errorf("read indexes, constraints and triggers: %w", err)
	}
	nouns := [...][2]string{{}, {"index", "indexes"}, {"foreign key", "foreign keys"}, {"sequence", "sequences"}, {"trigger", "triggers"}}
	var oid uint32
	var what, count int
	var list string
	_, err = pgx.ForEachRow(result, []any{&oid, &what, &count, &list}, func() error {
		t := byOID[oid]
		if what == 5 {
			t.notes = append(t.notes, "belongs to extension "+list)
			return nil
		}
		noun := nouns[what][1]
		if count == 1 {
			noun = nouns[what][0]
		}
		t.notes = append(t.notes, fmt.Sprintf("not replicated: %d %s (%s)", count, noun, list))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read indexes, constraints and triggers: %w", err)
	}
	return nil
}

// relations turns tables into what the contract speaks of.
func (s *Source) relations(ctx context.Context, conn *pgx.Conn, tables []*table) ([]source.Relation, error) {
	var keys []typeKey
	for _, t := range tables {
		for _, c := range t.columns {
			keys = append(keys, c.typ)
		}
	}
	types, err := s.types.resolve(ctx, conn, keys)
	if err != nil {
		return nil, err
	}
	out := make([]source.Relation, 0, len(tables))
	for _, t := range tables {
		id := t.judge()
		key := map[int16]bool{}
		for _, n := range id.columns {
			key[n] = true
		}
		layout := &change.Table{ID: t.oid, Name: t.name, Identity: t.identity}
		for _, c := range t.columns {
			if c.generated {
				continue
			}
			layout.Columns = append(layout.Columns, change.Column{Name: c.name, Type: types[c.typ],
				Key: key[c.num] || t.identity == change.IdentityFull, Nullable: !c.notNull})
		}
		r := source.Relation{Table: layout, PrimaryKey: t.names(t.primaryKey()), Rows: t.rows, Size: t.size,
			Usable: id.serves, Why: id.why, Remedy: id.remedy, Problem: t.problem(), Notes: t.notes}
		if skipped := t.generatedColumns(); len(skipped) > 0 {
			r.Notes = append(r.Notes, "not sent by the log: "+strings.Join(skipped, ", "))
		}
		if !id.serves {
			r.Notes = append(r.Notes, "append-only: "+id.why)
		}
		out = append(out, r)
	}
	return out, nil
}

func (t *table) generatedColumns() []string {
	var names []string
	for _, c := range t.columns {
		if c.generated {
			names = append(names, c.name)
		}
	}
	return names
}

// primaryKey gives the column numbers of the primary key, or nil.
func (t *table) primaryKey() []int16 {
	for _, i := range t.indexes {
		if i.primary {
			return i.columns
		}
	}
	return nil
}

// names turns column numbers into names.
func (t *table) names(numbers []int16) []string {
	var out []string
	for _, n := range numbers {
		for _, c := range t.columns {
			if c.num == n {
				out = append(out, c.name)
			}
		}
	}
	return out
}

// problem says why a table cannot be followed at all; empty if it can.
func (t *table) problem() string {
	switch {
	case t.kind == "f":
		return "a foreign table: its changes are not in this server's log"
	case t.persistence == "u":
		return "an unlogged table: its changes are not in the log; ALTER TABLE " + qualified(t.name) + " SET LOGGED"
	case !t.readable:
		return "no right to read it: GRANT SELECT ON " + qualified(t.name) + " (and USAGE on its schema) to the role of source.dsn"
	}
	var foreign, unlogged []string
	for _, l := range t.leaves {
		switch {
		case l.kind == "f":
			foreign = append(foreign, l.name.String())
		case l.persistence == "u":
			unlogged = append(unlogged, l.name.String())
		}
	}
	sort.Strings(foreign)
	sort.Strings(unlogged)
	switch {
	case len(foreign) > 0:
		return "foreign tables among its partitions: " + strings.Join(foreign, ", ")
	case len(unlogged) > 0:
		return "unlogged tables among its partitions: " + strings.Join(unlogged, ", ")
	}
	return ""
}
