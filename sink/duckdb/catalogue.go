//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"

	"tailrace/internal/change"
)

// catalogue is what the file holds, read once. The engine lists all tables to find
// one, with the text of each definition: with a thousand targets that is 10 ms for
// each question, several questions for each target, at every start. Nobody but this
// process changes the file while it is open, so what is read stays true until we
// make or drop something.
type catalogue struct {
	relations map[string]relation // by folded name
	schemas   map[string]bool     // folded
}

func foldedName(schema, table string) string { return fold(schema) + "\x00" + fold(table) }

func (c *catalogue) find(schema, table string) relation {
	return c.relations[foldedName(schema, table)]
}

// catalogueOf reads the catalogue unless it is known; mu is held.
func (w *Writer) catalogueOf(ctx context.Context) (*catalogue, error) {
	if w.known != nil {
		return w.known, nil
	}
	known := &catalogue{relations: map[string]relation{}, schemas: map[string]bool{}}
	err := w.book.each(ctx, func(cells []*string) error {
		known.schemas[fold(*cells[0])] = true
		return nil
	}, "SELECT schema_name FROM duckdb_schemas() WHERE database_name = $1", w.catalog)
	if err == nil {
		err = w.book.each(ctx, func(cells []*string) error {
			known.relations[foldedName(*cells[0], *cells[1])] = relation{exists: true, schema: *cells[0], table: *cells[1], view: *cells[2] == "t"}
			return nil
		}, `SELECT schema_name, table_name, false FROM duckdb_tables() WHERE database_name = $1
UNION ALL SELECT schema_name, view_name, true FROM duckdb_views() WHERE database_name = $1`, w.catalog)
	}
	if err == nil {
		err = w.book.each(ctx, func(cells []*string) error {
			name := foldedName(*cells[0], *cells[1])
			if r, ok := known.relations[name]; ok {
				r.cols = append(r.cols, presentOf(cells[2:]))
				known.relations[name] = r
			}
			return nil
		}, `SELECT schema_name, table_name, column_name, data_type, is_nullable, column_default FROM duckdb_columns()
WHERE database_name = $1 ORDER BY schema_name, table_name, column_index`, w.catalog)
	}
	if err != nil {
		return nil, w.explain("read the catalogue", err)
	}
	w.known = known
	return known, nil
}

// presentOf is a column from its name, type, whether it may be NULL, and default.
func presentOf(cells []*string) present {
	p := present{name: *cells[0], spelling: *cells[1], typ: parseType(*cells[1]), nullable: *cells[2] == "t"}
	if cells[3] != nil {
		p.fallback = *cells[3]
	}
	return p
}

// learn adds a table that was made just now to what was known before; mu is held.
func (w *Writer) learn(ctx context.Context, known *catalogue, n change.Name) error {
	r := relation{exists: true, schema: schemaOf(n), table: n.Table}
	if strings.Contains(r.schema+r.table, `"`) {
		return nil // the pragma finds no such name; the catalogue is read again
	}
	err := w.book.each(ctx, func(cells []*string) error {
		r.cols = append(r.cols, presentOf(cells))
		return nil
	}, fmt.Sprintf(`SELECT name, type, NOT "notnull", dflt_value FROM pragma_table_info(%s) ORDER BY cid`, literal(w.qualify(r.schema, r.table))))
	if err != nil {
		return w.explain("read the columns of "+n.String(), err)
	}
	known.relations[foldedName(r.schema, r.table)] = r
	known.schemas[fold(r.schema)] = true
	w.known = known
	return nil
}
