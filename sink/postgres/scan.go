package postgres

import (
	"context"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/rowsum"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// The canonical form of a row is that of change.Row, its key columns first: the
// values as they cross the wire, binary where every column's type can be binary,
// else text under the settings that both ends pin. Two values have one form
// exactly if a server cannot tell them apart: 1.0 and 1.00 differ.
//
// verify must therefore read the source in the form that the copy and the log use
// too: binary if Writer.Binary holds for every column of the target.

func (w *Writer) canonicalForm(t *scd.Target) form {
	for i := range t.Columns {
		if !w.Binary(t.Columns[i].Type) {
			return asText
		}
	}
	return asBinary
}

// Canonical appends the canonical form of a source row.
func (w *Writer) Canonical(t *scd.Target, row change.Row, dst []byte) (out []byte, keyLen int, err error) {
	f := w.canonicalForm(t)
	from := len(dst)
	for _, keys := range []bool{true, false} {
		rest := row
		for i := range t.Columns {
			var v change.Value
			if v, rest, err = rest.Next(); err != nil {
				return dst, 0, fault.Corrupted("table %s: a row of %d columns: %v", t.Name, len(t.Columns), err)
			}
			if t.Columns[i].Key != keys {
				continue
			}
			switch {
			case v.State == change.Absent:
				return dst, 0, fault.Corrupted("table %s: column %s of a complete row was not sent", t.Name, t.Columns[i].Name)
			case v.State != change.Null && bool(f) != (v.State == change.Binary):
				return dst, 0, formError(bool(f))
			}
			dst = change.Row(dst).Append(v)
		}
		if len(rest) != 0 {
			return dst, 0, fault.Corrupted("table %s: a row of more than %d columns", t.Name, len(t.Columns))
		}
		if keys {
			keyLen = len(dst) - from
		}
	}
	return dst, keyLen, nil
}

// Scan reads a target's rows, of a type 2 target the open versions.
func (w *Writer) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	// The end of the session is also what ends a scan that fn has stopped.
	return w.onSession(ctx, func(s *session) error { return w.scan(ctx, s, t, nil, fn) })
}

// scan reads a target's rows, or part of them.
func (w *Writer) scan(ctx context.Context, s *session, t *scd.Target, part *rowsum.Part, fn func(key, row []byte) error) error {
	name := w.qualified(t.Name)
	var list []string
	keys := 0
	for _, want := range []bool{true, false} {
		for i := range t.Columns {
			if t.Columns[i].Key == want {
				list = append(list, quote(t.Columns[i].Name))
			}
		}
		if want {
			keys = len(list)
		}
	}
	sql := fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), qualifiedName(name))
	var where []string
	if t.Kind == scd.Type2 {
		where = append(where, endColumn+" IS NULL")
	}
	if part != nil {
		where = append(where, part.Condition(summed(t)))
	}
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	f := w.canonicalForm(t)
	state := change.AsText
	if f == asBinary {
		state = change.Binary
	}
	rows := s.conn.ExecParams(ctx, sql, nil, nil, nil, f.codes())
	var row change.Row
	for rows.NextRow() {
		row = row[:0]
		keyLen := 0
		for i, data := range rows.Values() {
			v := change.Value{State: state, Data: data}
			if data == nil {
				v.State = change.Null
			}
			row = row.Append(v)
			if i+1 == keys {
				keyLen = len(row)
			}
		}
		if err := fn(row[:keyLen], row); err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil {
		return w.explain(ctx, err, "read table "+name.String(), nil)
	}
	return nil
}

// Invariants counts what must not be in a target.
func (w *Writer) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	s, err := w.connect(ctx, believeRows)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	return w.invariants(ctx, s, t)
}

const believeRows = "SET enable_indexscan = off; SET enable_indexonlyscan = off;" // not an index

func (w *Writer) invariants(ctx context.Context, s *session, t *scd.Target) ([]string, error) {
	name := w.qualified(t.Name)
	orders := map[string]startOrder{}
	for _, axis := range (&sink.ShowQuery{Target: t}).Axes() {
		var err error
		if orders[axis.Start], err = w.startOrder(ctx, s, axis); err != nil {
			return nil, err
		}
	}
	checks := invariants(qualifiedName(name), t, orders[scd.StartColumn])
	if t.Bitemporal != nil {
		what, sql := sink.BitemporalInvariant(qualifiedName(name), t, func(a sink.Axis, column string) string { return orders[a.Start].value(quote(column)) })
		checks = append(checks, invariant{what, sql})
	}
	var found []string
	for _, check := range checks {
		rows, err := s.query(ctx, check.sql)
		if err != nil {
			return nil, w.explain(ctx, err, "check table "+name.String(), nil)
		}
		if n := num(rows[0][0]); n > 0 {
			found = append(found, fmt.Sprintf("table %s: %d %s", name, n, check.what))
		}
	}
	return found, nil
}

type invariant struct{ what, sql string }

func invariants(table string, t *scd.Target, o startOrder) []invariant {
	var keys []string
	for _, k := range t.Keys() {
		keys = append(keys, quote(t.Columns[k].Name))
	}
	key := strings.Join(keys, ", ")
	switch {
	case len(keys) == 0:
		return nil
	case t.Kind == scd.Type1:
		return []invariant{{"keys stand more than once", fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s GROUP BY %s HAVING count(*) > 1) AS x", table, key)}}
	}
	start, end := o.value(startColumn), o.value(endColumn)
	open := invariant{"keys have more than one open version", fmt.Sprintf("SELECT count(*) FROM (SELECT FROM %s WHERE %s IS NULL GROUP BY %s HAVING count(*) > 1) AS x", table, endColumn, key)}
	return []invariant{
		{"versions end before or at their start", fmt.Sprintf("SELECT count(*) FROM %s WHERE %s <= %s", table, end, start)},
		open,
		{"versions overlap the next version of their key", fmt.Sprintf("SELECT count(*) FROM (SELECT %[1]s AS e, lead(%[2]s) OVER (PARTITION BY %[3]s ORDER BY %[2]s, %[1]s NULLS LAST) AS next FROM %[4]s) AS x WHERE next < e OR e IS NULL AND next IS NOT NULL", end, start, key, table)},
	}
}

// startOrder is how the starts of an axis are compared.
type startOrder struct {
	typ     string          // of the column
	collate string          // texts: by their bytes, as the lane does
	fields  []change.Column // of a sequence of several columns, held as jsonb, whose own order is another
}

func (w *Writer) startOrder(ctx context.Context, s *session, axis sink.Axis) (o startOrder, err error) {
	name := w.qualified(axis.Target.Name)
	rows, err := s.query(ctx, startOrderSQL, name.Schema, name.Table, axis.Start)
	if err != nil || len(rows) == 0 { // no such column: the statement that uses it says so
		return o, w.explain(ctx, err, "look at table "+name.String(), nil)
	}
	o.typ = str(rows[0][0])
	if str(rows[0][1]) == "t" {
		o.collate = ` COLLATE "C"`
	}
	if o.typ == "jsonb" {
		o.fields = axis.Target.SequenceFields
	}
	return o, nil
}

// value is a stored start or end in the form in which they are compared: of several
// columns a row of their values, NULL where the end is.
func (o startOrder) value(column string) string {
	if len(o.fields) == 0 {
		return column + o.collate
	}
	return fmt.Sprintf("CASE WHEN %s IS NOT NULL THEN %s END", column,
		o.row(func(i int) string { return fmt.Sprintf("(%s ->> %s)", column, literal(o.fields[i].Name)) }))
}

// given is a value of the sequence as a person writes it, and its parameters, which come
// behind others.
func (o startOrder) given(t *scd.Target, text string, others int) (expr string, params [][]byte, err error) {
	if len(o.fields) == 0 {
		return fmt.Sprintf("$%d::%s", others+1, o.typ), [][]byte{[]byte(text)}, nil
	}
	values, err := sink.SequenceValues(t, text)
	for _, v := range values {
		params = append(params, []byte(v))
	}
	return o.row(func(i int) string { return fmt.Sprintf("$%d::text", others+i+1) }), params, err
}

// row makes a row of the sequence's columns of their texts. Records compare texts by
// their type's collation alone, so those are given as bytes.
func (o startOrder) row(text func(i int) string) string {
	return "ROW(" + each(len(o.fields), ", ", func(i int) string {
		switch t := &o.fields[i].Type; {
		case t.Kind == change.Text:
			return "convert_to(" + text(i) + ", 'UTF8')"
		case t.Name == "pg_lsn":
			return text(i) + "::pg_lsn"
		case t.Kind == change.Numeric: // of any scale: a person may ask for what lies between
			return text(i) + "::numeric"
		default:
			return text(i) + "::" + fallback(*t)
		}
	}) + ")"
}

const startOrderSQL = `SELECT format_type(a.atttypid, a.atttypmod), a.attcollation <> 0
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attname = $3 AND a.attnum > 0`

// Show reads rows for printing.
func (w *Writer) Show(ctx context.Context, q sink.ShowQuery, fn func(cells []*string) error) error {
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx)
	name := w.qualified(q.Target.Name)
	var order []string
	declared := q.Target.Declared()
	for _, k := range declared.Keys() {
		order = append(order, quote(declared.Columns[k].Name))
	}
	sql := "SELECT * FROM " + qualifiedName(name)
	var params [][]byte
	for _, axis := range q.Axes() {
		o, err := w.startOrder(ctx, s, axis)
		if err != nil {
			return err
		}
		start, end := quote(axis.Start), quote(axis.End)
		order = append(order, o.value(start))
		if axis.Asked != "" {
			at, more, err := o.given(axis.Target, axis.Asked, len(params))
			if err != nil {
				return err
			}
			sql += fmt.Sprintf("%s %s <= %s AND (%s > %[3]s OR %[5]s IS NULL)", map[bool]string{true: " WHERE", false: " AND"}[len(params) == 0], o.value(start), at, o.value(end), end)
			params = append(params, more...)
		}
	}
	if len(order) > 0 {
		sql += " ORDER BY " + strings.Join(order, ", ")
	}
	rows := s.conn.ExecParams(ctx, sql, params, nil, nil, nil)
	var cells []*string
	for _, f := range rows.FieldDescriptions() {
		cells = append(cells, &f.Name)
	}
	if len(cells) > 0 { // none where the statement failed
		if err := fn(cells); err != nil {
			return err
		}
	}
	for rows.NextRow() {
		cells = cells[:0]
		for _, v := range rows.Values() {
			if v == nil {
				cells = append(cells, nil)
				continue
			}
			text := string(v)
			cells = append(cells, &text)
		}
		if err := fn(cells); err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil {
		if code := stateOf(err); len(params) > 0 && strings.HasPrefix(code, "22") {
			return fault.Badly("%s", q.NotAValue())
		}
		return w.explain(ctx, err, "read table "+name.String(), nil)
	}
	return nil
}
