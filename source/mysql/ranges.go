package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

var _ source.Ranger = (*snapshot)(nil)

// keyRange is a part of a table: the rows whose keys lie between two places of the
// clustered index, in the order that the index has.
//
// The places are constants in conditions of SQL, so it is the server that compares them,
// by the type and the collation of the key: a row's key is either below a place or not,
// and the parts together hold each row once, whatever the constants are and however the
// table has changed since they were chosen. What is chosen well or badly is only how
// large the parts are.
type keyRange struct {
	index     string // its name
	condition string // in SQL
}

// sizesSQL asks for the sizes of tables, as the engine's statistics have them.
const sizesSQL = `SELECT table_schema, table_name, coalesce(engine, ''), coalesce(table_rows, 0), coalesce(data_length, 0)
FROM information_schema.tables WHERE table_schema IN (%s) AND table_type <> 'VIEW'`

// Measure implements source.Ranger.
//
// Left whole are tables of other engines than InnoDB, those without a key that has an
// order we can name (see orderedKey), and those of which the engine has no statistics yet.
func (n *snapshot) Measure(ctx context.Context, tables []*change.Table, most int64) (_ []source.Extent, err error) {
	s := n.source
	f, err := s.facts(ctx)
	if err != nil {
		return nil, err
	}
	// A session outside of the snapshot: a place in an index need not be of its moment.
	conn, err := n.db.Conn(ctx)
	if err != nil {
		return nil, s.explain(err, "connect to the source")
	}
	defer conn.Close()
	if !f.mariaDB { // which remembers sizes for a day
		if _, err := conn.ExecContext(ctx, "SET SESSION information_schema_stats_expiry = 0"); err != nil {
			return nil, s.explain(err, "prepare a session")
		}
	}
	sizes, err := s.sizes(ctx, conn, tables)
	if err != nil {
		return nil, err
	}
	out := make([]source.Extent, len(tables))
	for i, t := range tables {
		size := sizes[t.Name]
		out[i].Bytes = size.bytes
		if size.bytes <= most || size.engine != "InnoDB" || size.rows < 2 {
			continue
		}
		c := &cutter{source: s, conn: conn, table: t.Name, rows: size.rows, parts: (size.bytes-1)/most + 1}
		if out[i].Ranges, err = c.cut(ctx, size.bytes); err != nil {
			return nil, fmt.Errorf("cut table %s into parts: %w", t.Name, err)
		}
	}
	return out, nil
}

type tableSize struct {
	engine      string
	rows, bytes int64
}

func (s *Source) sizes(ctx context.Context, q querier, tables []*change.Table) (map[change.Name]tableSize, error) {
	var schemas []any
	for _, t := range tables {
		if !slices.Contains(schemas, any(t.Name.Schema)) {
			schemas = append(schemas, t.Name.Schema)
		}
	}
	sizes := map[change.Name]tableSize{}
	if len(schemas) == 0 {
		return sizes, nil
	}
	rows, err := q.QueryContext(ctx, fmt.Sprintf(sizesSQL, strings.Repeat(", ?", len(schemas))[2:]), schemas...)
	if err != nil {
		return nil, s.explain(err, "measure tables")
	}
	defer rows.Close()
	for rows.Next() {
		var n change.Name
		var t tableSize
		if err := rows.Scan(&n.Schema, &n.Table, &t.engine, &t.rows, &t.bytes); err != nil {
			return nil, fmt.Errorf("measure tables: %w", err)
		}
		sizes[n] = t
	}
	return sizes, s.explain(rows.Err(), "measure tables")
}

// cutter chooses the places at which one table is cut.
type cutter struct {
	source *Source
	conn   *sql.Conn
	table  change.Name
	rows   int64 // about how many there are
	parts  int64 // about how many are wanted
	index  string
	key    []definition // as many of its columns as have an order that can be named
}

// cut gives the parts; none if the table is to be copied whole.
func (c *cutter) cut(ctx context.Context, bytes int64) ([]source.Range, error) {
	if err := c.orderedKey(ctx); err != nil || len(c.key) == 0 {
		return nil, err
	}
	var places []indexPlace
	var err error
	even := false
	if c.key[0].kind == integer {
		if places, even, err = c.byEstimates(ctx); err != nil {
			return nil, err
		}
	}
	if !even {
		if places, err = c.byWalking(ctx); err != nil {
			return nil, err
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	out := make([]source.Range, len(places)+1)
	for i := range out {
		var parts []string
		if i > 0 {
			parts = append(parts, c.condition(places[i-1], ">", ">="))
		}
		if i < len(places) {
			parts = append(parts, c.condition(places[i], "<", "<"))
		}
		out[i] = source.Range{Bytes: bytes / int64(len(out)), At: &keyRange{index: c.index, condition: strings.Join(parts, " AND ")}}
	}
	return out, nil
}

// orderedKey finds the table's clustered index, which its rows lie in the order of: the
// primary key, or the first unique index without NULL. Of its columns count those before
// the first whose order cannot be named by a constant of its type: of labels (an index
// orders them by number, a comparison by text), of floats, of a column's beginning alone.
func (c *cutter) orderedKey(ctx context.Context) error {
	d, err := c.source.describe(ctx, c.table, false)
	if err != nil || d == nil {
		return err
	}
	rows, err := c.conn.QueryContext(ctx, "SHOW INDEX FROM "+quoted(c.table))
	if err != nil {
		return c.source.explain(err, "read the indexes")
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	type index struct {
		name           string
		columns        []definition
		ended, useless bool
	}
	var all []*index // the server's order begins with the clustered one
	for rows.Next() {
		values := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return fmt.Errorf("read the indexes: %w", err)
		}
		of := func(name string) sql.NullString {
			if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, name) }); i >= 0 {
				return values[i]
			}
			return sql.NullString{}
		}
		name := of("Key_name").String
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, &index{name: name})
		}
		x := all[len(all)-1]
		column := of("Column_name")
		x.useless = x.useless || of("Non_unique").String != "0" || of("Index_type").String != "BTREE" || of("Null").String == "YES" || !column.Valid ||
			of("Visible").String == "NO" || of("Ignored").String == "YES"
		at := slices.IndexFunc(d.columns, func(d definition) bool { return strings.EqualFold(d.name, column.String) })
		if x.ended = x.ended || at < 0 || of("Sub_part").Valid || !d.columns[at].ordered(); !x.ended {
			x.columns = append(x.columns, d.columns[at])
		}
	}
	if err := rows.Err(); err != nil {
		return c.source.explain(err, "read the indexes")
	}
	if i := slices.IndexFunc(all, func(x *index) bool { return !x.useless }); i >= 0 {
		c.index, c.key = all[i].name, all[i].columns
	}
	return nil
}

// ordered reports whether a constant that is read from the column, compared with it,
// stands where the column's index has it.
func (d *definition) ordered() bool {
	switch d.kind {
	case integer, decimalKind, yearKind, dateKind, datetimeKind, timestampKind, timeKind, bytesKind:
		return true
	case textKind:
		return d.charset != ""
	}
	return false
}

// indexPlace is a place in the index: constants of SQL for the first columns of the key.
type indexPlace []string

// condition compares the key with a place, column by column: within says how the last of
// them is compared.
func (c *cutter) condition(p indexPlace, beyond, within string) string {
	last := len(p) - 1
	text := quote(c.key[last].name) + " " + within + " " + p[last]
	for i := last - 1; i >= 0; i-- {
		name := quote(c.key[i].name)
		text = fmt.Sprintf("%s %s %s OR %s = %s AND (%s)", name, beyond, p[i], name, p[i], text)
	}
	return "(" + text + ")"
}

// finer is how many pieces for each part are estimated: the more, the evener the parts.
const finer = 4

// byEstimates cuts by the first column, a whole number, without reading the rows: the
// engine estimates how many keys lie between two, by looking at the index at both. Where
// many do, the middle of the two numbers is looked at next. It is not even where one
// number has more rows than two parts should have.
func (c *cutter) byEstimates(ctx context.Context) (places []indexPlace, even bool, err error) {
	name := quote(c.key[0].name)
	var lowest, highest sql.NullString
	if err := c.conn.QueryRowContext(ctx, fmt.Sprintf("SELECT MIN(%s), MAX(%[1]s) FROM %s", name, quoted(c.table))).Scan(&lowest, &highest); err != nil {
		return nil, false, c.source.explain(err, "read the ends of the key")
	}
	low, ok1 := new(big.Int).SetString(lowest.String, 10)
	high, ok2 := new(big.Int).SetString(highest.String, 10)
	if !ok1 || !ok2 { // no rows
		return nil, true, nil
	}
	type piece struct {
		from *big.Int
		rows int64
	}
	var pieces []piece
	var total int64
	grain := max(c.rows/(c.parts*finer), 1)
	one := big.NewInt(1)
	var split func(from, to *big.Int) error // both included
	split = func(from, to *big.Int) error {
		rows, err := c.estimate(ctx, fmt.Sprintf("%s >= %s AND %[1]s <= %[3]s", name, from, to))
		if err != nil {
			return err
		}
		if rows <= grain || from.Cmp(to) >= 0 {
			pieces = append(pieces, piece{from, rows})
			total += rows
			return nil
		}
		middle := new(big.Int).Add(from, to)
		middle.Rsh(middle, 1) // rounds down, also below zero
		if err := split(from, middle); err != nil {
			return err
		}
		return split(middle.Add(middle, one), to)
	}
	if err := split(low, high); err != nil {
		return nil, false, err
	}
	// A part ends where the rows so far come closest to its share of all.
	share := max(total/c.parts, 1)
	even = true
	var before, since int64
	for _, p := range pieces {
		even = even && p.rows <= 2*share+grain
		if since > 0 && before+p.rows/2 >= int64(len(places)+1)*share && int64(len(places)) < c.parts-1 {
			places = append(places, indexPlace{p.from.String()})
			since = 0
		}
		before += p.rows
		since += p.rows
	}
	return places, even, nil
}

// estimate asks the engine how many rows meet a condition on the index: all rows, if it
// would rather read the whole table. MySQL does not look at an index that is forced on it.
func (c *cutter) estimate(ctx context.Context, condition string) (int64, error) {
	rows, err := c.conn.QueryContext(ctx, fmt.Sprintf("EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM %s USE INDEX (%s) WHERE %s", quoted(c.table), quote(c.index), condition))
	if err != nil {
		return 0, c.source.explain(err, "estimate the rows between two keys")
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return 0, err
	}
	at := slices.Index(names, "rows")
	if at < 0 {
		return 0, fault.Corrupted("the server's EXPLAIN has no column rows")
	}
	var number sql.NullInt64 // NULL: it knows that there are none
	into := make([]any, len(names))
	for i := range into {
		into[i] = new(sql.RawBytes)
	}
	into[at] = &number
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return 0, fmt.Errorf("estimate the rows between two keys: %w", err)
		}
	}
	return number.Int64, c.source.explain(rows.Err(), "estimate the rows between two keys")
}

// byWalking cuts by all columns of the key, reading the index from one place to the next.
func (c *cutter) byWalking(ctx context.Context) (places []indexPlace, err error) {
	step := max(c.rows/c.parts, 1)
	var list, read []string
	for _, d := range c.key {
		name := quote(d.name)
		list = append(list, name)
		if d.kind == textKind || d.kind == bytesKind {
			name = "HEX(" + name + ")"
		}
		read = append(read, name)
	}
	values := make([]string, len(c.key))
	into := make([]any, len(c.key))
	for i := range values {
		into[i] = &values[i]
	}
	for {
		where := ""
		if len(places) > 0 {
			where = "WHERE " + c.condition(places[len(places)-1], ">", ">")
		}
		err := c.conn.QueryRowContext(ctx, fmt.Sprintf("SELECT %s FROM %s FORCE INDEX (%s) %s ORDER BY %s LIMIT 1 OFFSET %d",
			strings.Join(read, ", "), quoted(c.table), quote(c.index), where, strings.Join(list, ", "), step)).Scan(into...)
		if err == sql.ErrNoRows {
			return places, nil
		}
		if err != nil {
			return nil, c.source.explain(err, "walk along the key")
		}
		next := make(indexPlace, len(c.key))
		for i := range c.key {
			next[i] = c.key[i].literal(values[i])
		}
		places = append(places, next)
	}
}

// literal writes a value that was read as byWalking does as a constant.
func (d *definition) literal(value string) string {
	switch d.kind {
	case textKind: // in the column's own character set, so that nothing is converted
		return "_" + d.charset + " X'" + value + "'"
	case bytesKind:
		return "X'" + value + "'"
	case integer, decimalKind, yearKind:
		return value
	}
	return "'" + value + "'" // a date or a time: digits and their separators
}
