package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// systemSchemas hold no tables of a user's.
const systemSchemas = "'mysql', 'information_schema', 'performance_schema', 'sys', '_tailrace'"

const columnsSQL = `SELECT c.table_schema, c.table_name, c.column_name, c.data_type, c.column_type, c.character_maximum_length, c.numeric_precision,
  c.numeric_scale, c.datetime_precision, c.character_set_name, c.is_nullable, c.extra
FROM information_schema.columns c WHERE %s ORDER BY c.table_schema, c.table_name, c.ordinal_position`

const keysSQL = `SELECT table_schema, table_name, column_name FROM information_schema.statistics
WHERE index_name = 'PRIMARY' AND %s ORDER BY table_schema, table_name, seq_in_index`

// readCatalog describes tables: all of the users', or one.
func (s *Source) readCatalog(ctx context.Context, one *change.Name) (map[change.Name]*described, map[change.Name]string, error) {
	where, args := "table_schema NOT IN ("+systemSchemas+")", []any(nil)
	if one != nil {
		where, args = "table_schema = ? AND table_name = ?", []any{one.Schema, one.Table}
	}
	facts, err := s.facts(ctx)
	if err != nil {
		return nil, nil, err
	}
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf(columnsSQL, "c."+strings.ReplaceAll(where, "AND ", "AND c.")), args...)
	if err != nil {
		return nil, nil, s.explain(err, "read the catalogue")
	}
	defer rows.Close()
	tables, problems := map[change.Name]*described{}, map[change.Name]string{}
	for rows.Next() {
		var n change.Name
		var column, typ, full, nullable, extra string
		var length, precision, scale, digits sql.NullInt64
		var charset sql.NullString
		if err := rows.Scan(&n.Schema, &n.Table, &column, &typ, &full, &length, &precision, &scale, &digits, &charset, &nullable, &extra); err != nil {
			return nil, nil, fmt.Errorf("read the catalogue: %w", err)
		}
		t := tables[n]
		if t == nil {
			t = &described{name: n}
			tables[n] = t
		}
		d := definition{name: column, charset: charset.String, nullable: nullable == "YES", unsigned: strings.Contains(full, "unsigned") || strings.Contains(full, "zerofill"),
			unlogged: facts.mariaDB && strings.Contains(strings.ToUpper(extra), "VIRTUAL")}
		typ = strings.ToLower(typ)
		if d.width = integers[typ]; d.width > 0 {
			d.kind = integer
		} else {
			d.kind = kindsByName[typ]
		}
		switch d.kind {
		case decimalKind:
			d.precision, d.scale = int(precision.Int64), int(scale.Int64)
		case bitKind:
			d.precision = int(precision.Int64)
		case datetimeKind, timestampKind, timeKind:
			d.precision = int(digits.Int64)
		case textKind, bytesKind:
			switch typ {
			case "char", "varchar", "binary", "varbinary":
				d.length, d.fixed = int(length.Int64), typ == "char" || typ == "binary"
			}
		case enumKind, setKind:
			d.labels = labelsOf(full)
		}
		_, readable := newTranscoder(d.charset)
		switch {
		case d.kind == unknownKind:
			problems[n] = fmt.Sprintf("column %s has type %s, which cannot be followed", column, full)
		case strings.Contains(strings.ToUpper(full), "COMPRESSED"):
			problems[n] = fmt.Sprintf("column %s is COMPRESSED, a form that cannot be read from the log: ALTER TABLE %s MODIFY it without", column, quoted(n))
		case !readable:
			problems[n] = fmt.Sprintf("column %s has character set %s, which cannot be read from the log", column, d.charset)
		}
		t.columns = append(t.columns, d)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, s.explain(err, "read the catalogue")
	}
	keys, err := s.db.QueryContext(ctx, fmt.Sprintf(keysSQL, where), args...)
	if err != nil {
		return nil, nil, s.explain(err, "read the primary keys")
	}
	defer keys.Close()
	for keys.Next() {
		var n change.Name
		var column string
		if err := keys.Scan(&n.Schema, &n.Table, &column); err != nil {
			return nil, nil, fmt.Errorf("read the primary keys: %w", err)
		}
		if t := tables[n]; t != nil {
			t.key = append(t.key, column)
		}
	}
	return tables, problems, s.explain(keys.Err(), "read the primary keys")
}

// describe gives the catalogue's description of one table, nil if there is none; with
// fresh as it is now, else perhaps as it was a while ago.
func (s *Source) describe(ctx context.Context, n change.Name, fresh bool) (*described, error) {
	s.mu.Lock()
	d := s.described[n]
	s.mu.Unlock()
	if d != nil && !fresh {
		return d, nil
	}
	tables, _, err := s.readCatalog(ctx, &n)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.described[n] = tables[n]; tables[n] == nil {
		delete(s.described, n)
	}
	return tables[n], nil
}

// forgetCatalog makes the next look at any table a fresh one: a statement may have
// changed it.
func (s *Source) forgetCatalog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.described)
}

const tablesSQL = `SELECT table_schema, table_name, table_type, coalesce(engine, ''), coalesce(table_rows, 0), coalesce(data_length, 0)
FROM information_schema.tables WHERE table_type <> 'VIEW' AND table_type <> 'SYSTEM VIEW' AND table_type <> 'SEQUENCE' AND table_schema NOT IN (` + systemSchemas + `)
ORDER BY table_schema, table_name`

// Relations implements source.Source.
func (s *Source) Relations(ctx context.Context) ([]source.Relation, error) {
	if err := s.readCollations(ctx); err != nil {
		return nil, err
	}
	tables, problems, err := s.readCatalog(ctx, nil)
	if err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, tablesSQL)
	if err != nil {
		return nil, s.explain(err, "list the tables")
	}
	defer rows.Close()
	var out []source.Relation
	ids := map[uint32]change.Name{}
	for rows.Next() {
		var n change.Name
		var typ, engine string
		r := source.Relation{Usable: true, TextOnly: true}
		if err := rows.Scan(&n.Schema, &n.Table, &typ, &engine, &r.Rows, &r.Size); err != nil {
			return nil, fmt.Errorf("list the tables: %w", err)
		}
		d := tables[n]
		if d == nil {
			continue // made or dropped in between, or no right to any column
		}
		if other, twice := ids[tableID(n)]; twice {
			return nil, fault.Refuse("rename one of them", "tables %s and %s have names with the same number", other, n)
		}
		ids[tableID(n)] = n
		s.mu.Lock()
		s.described[n] = d
		s.mu.Unlock()
		r.Table = s.sameTable(newTable(d, s.layoutOptions()))
		r.PrimaryKey = slices.Clone(d.key)
		switch {
		case problems[n] != "":
			r.Problem = problems[n]
		case typ == "SYSTEM VERSIONED":
			r.Problem = "it is system-versioned, and the log mixes its former rows with the present ones"
		case engine == "BLACKHOLE" || engine == "FEDERATED" || engine == "CONNECT" || engine == "SPIDER":
			r.Problem = "its engine " + engine + " does not hold its rows"
		case engine != "" && engine != "InnoDB" && engine != "RocksDB" && engine != "ROCKSDB":
			r.Notes = append(r.Notes, fmt.Sprintf("%s: engine %s has no transactions: its copy is read while it changes, and is right once the mark has passed the end of the copy", n, engine))
		}
		out = append(out, r)
	}
	return out, s.explain(rows.Err(), "list the tables")
}

// readCollations reads which character set each collation is of.
func (s *Source) readCollations(ctx context.Context) error {
	s.mu.Lock()
	known := s.collations != nil
	s.mu.Unlock()
	if known {
		return nil
	}
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	query := "SELECT c.id, c.character_set_name, s.maxlen FROM information_schema.collations c JOIN information_schema.character_sets s ON s.character_set_name = c.character_set_name WHERE c.id IS NOT NULL"
	if f.mariaDB && f.atLeast(10, 10) { // collations of several character sets have a number for each
		query = "SELECT c.id, c.character_set_name, s.maxlen FROM information_schema.collation_character_set_applicability c JOIN information_schema.character_sets s ON s.character_set_name = c.character_set_name"
	}
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return s.explain(err, "read the collations")
	}
	defer rows.Close()
	all := map[uint64]characterSet{63: {"binary", 1}}
	for rows.Next() {
		var id uint64
		var c characterSet
		if err := rows.Scan(&id, &c.name, &c.most); err != nil {
			return fmt.Errorf("read the collations: %w", err)
		}
		all[id] = c
	}
	if err := rows.Err(); err != nil {
		return s.explain(err, "read the collations")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collations = all
	return nil
}

// characterSet is a character set and the most bytes that one of its characters has.
type characterSet struct {
	name string
	most int
}

func (s *Source) charsetOf(collation uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collations[collation].name
}

func (s *Source) bytesPerCharacter(collation uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collations[collation].most
}

func (s *Source) layoutOptions() *layoutOptions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &layoutOptions{zeroDates: s.cfg.ZeroDates, full: s.known == nil || s.known.image == "FULL"}
}
