package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"encoding/binary"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// The canonical form of a row is a change.Row of text values: the key columns first, in
// column order, then the others. Texts are the source's, made from what the destination
// holds and from what the source sends, so that equal values have equal bytes whatever
// column type holds them.

// canonicalOrder lists the columns: keys first.
func canonicalOrder(t *scd.Target) []int {
	order := t.Keys()
	for i := range t.Columns {
		if !t.Columns[i].Key {
			order = append(order, i)
		}
	}
	return order
}

// openText begins a text value of a row whose length is not known yet.
func openText(dst []byte) []byte { return append(dst, byte(change.AsText), 0, 0, 0, 0) }

// closeText ends the text that begins at start.
func closeText(dst []byte, start int) {
	binary.BigEndian.PutUint32(dst[start-4:], uint32(len(dst)-start))
}

// Canonical gives a complete source row the form that Scan gives it.
func (w *Writer) Canonical(t *scd.Target, row change.Row, dst []byte) (out []byte, keyLen int, err error) {
	from := len(dst)
	var few [32]change.Value
	values, err := row.Values(few[:0], len(t.Columns))
	if err != nil {
		return dst, 0, fault.Corrupted("table %s: a row of %d columns: %v", t.Name, len(t.Columns), err)
	}
	keys := len(t.Keys())
	for n, i := range canonicalOrder(t) {
		switch v := values[i]; v.State {
		case change.Null:
			dst = append(dst, byte(change.Null))
		case change.Absent:
			return dst, 0, fault.Corrupted("table %s: column %s of a complete row was not sent", t.Name, t.Columns[i].Name)
		default:
			dst = openText(dst)
			start := len(dst)
			if dst, err = sourceText(dst, v, t.Columns[i].Type); err != nil {
				return dst, 0, fault.Corrupted("table %s: column %s of a row: %v", t.Name, t.Columns[i].Name, err)
			}
			closeText(dst, start)
		}
		if n+1 == keys {
			keyLen = len(dst) - from
		}
	}
	return dst, keyLen, nil
}

// Scan reads a target's rows, of a type 2 target the open versions.
func (w *Writer) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close() // also what ends a scan that fn has stopped
	return w.scan(ctx, s, t, true, fn)
}

// scan reads rows; with abandon a stopped one ends the session.
func (w *Writer) scan(ctx context.Context, s *session, t *scd.Target, abandon bool, fn func(key, row []byte) error) error {
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return err
	}
	order, keys := canonicalOrder(t), len(sh.keys)
	var list []string
	for _, i := range order {
		list = append(list, sh.columns[i].read(""))
	}
	sql := fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), sh.name)
	if t.Kind == scd.Type2 {
		sql += " WHERE " + endColumn + " IS NULL"
	}
	var buf []byte
	var stopped error
	err = s.stream(ctx, sql, abandon, nil, func(row []sqldriver.Value) error {
		buf = buf[:0]
		keyLen := 0
		for n, v := range row {
			if v == nil {
				buf = append(buf, byte(change.Null))
			} else {
				buf = openText(buf)
				start := len(buf)
				buf = sh.columns[order[n]].appendSource(buf, v)
				closeText(buf, start)
			}
			if n+1 == keys {
				keyLen = len(buf)
			}
		}
		stopped = fn(buf[:keyLen], buf)
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return w.explain(err, "read", sh)
}

// Rows reads every row of a sequenced target.
func (w *Writer) Rows(ctx context.Context, t *scd.Target, fn func(row change.Row) error) error {
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	sh, err := w.shapeOf(ctx, s, t)
	if err != nil {
		return err
	}
	columns := make([]*column, 0, len(sh.columns)+2)
	for i := range sh.columns {
		columns = append(columns, &sh.columns[i])
	}
	if t.Kind == scd.Type2 {
		columns = append(columns, &sh.start, &sh.end)
	}
	var list []string
	for _, c := range columns {
		list = append(list, c.read(""))
	}
	var row change.Row
	var buf []byte
	var stopped error
	err = s.stream(ctx, "SELECT "+strings.Join(list, ", ")+" FROM "+sh.name, true, nil, func(values []sqldriver.Value) error {
		row = row[:0]
		for i, v := range values {
			if v == nil {
				row = row.Append(change.Value{State: change.Null})
				continue
			}
			buf = columns[i].appendSource(buf[:0], v)
			row = row.Append(change.Value{State: change.AsText, Data: buf})
		}
		stopped = fn(row)
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return w.explain(err, "read", sh)
}

// Invariants counts what must not be in a target.
func (w *Writer) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	s, err := w.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return w.invariants(ctx, s, t)
}

func (w *Writer) invariants(ctx context.Context, s *session, t *scd.Target) ([]string, error) {
	name := w.qualified(t.Name)
	var found []string
	checks := invariants(qualifiedName(name), t)
	if t.Bitemporal != nil {
		what, sql := sink.BitemporalInvariant(qualifiedName(name), t, func(a sink.Axis, column string) string { return orderOf(a.Target).values(quote(column))[0] })
		checks = append(checks, invariant{what, sql})
	}
	for _, check := range checks {
		rows, err := s.query(ctx, check.sql)
		if err != nil {
			return nil, w.explain(err, "check table "+name.String(), nil)
		}
		if n := num(rows[0][0]); n > 0 {
			found = append(found, fmt.Sprintf("table %s: %d %s", name, n, check.what))
		}
	}
	return found, nil
}

type invariant struct{ what, sql string }

func invariants(table string, t *scd.Target) []invariant {
	var keys []string
	for _, k := range t.Keys() {
		keys = append(keys, quote(t.Columns[k].Name))
	}
	key := strings.Join(keys, ", ")
	switch {
	case len(keys) == 0:
		return nil
	case t.Kind == scd.Type1:
		return []invariant{{"keys stand more than once", fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM %s GROUP BY %s HAVING COUNT(*) > 1) AS x", table, key)}}
	}
	o := orderOf(t)
	start, end := o.values(startColumn), o.values(endColumn)
	var leads, list, nexts, ends []string
	for i := range start {
		leads = append(leads, fmt.Sprintf("LEAD(%s) OVER w AS n%d", start[i], i))
		list = append(list, fmt.Sprintf("%s AS e%d", end[i], i))
		nexts, ends = append(nexts, fmt.Sprintf("n%d", i)), append(ends, fmt.Sprintf("e%d", i))
	}
	return []invariant{
		{"versions end before or at their start", fmt.Sprintf("SELECT COUNT(*) FROM %s WHERE %s IS NOT NULL AND %s", table, endColumn, notAfter(end, start))},
		{"keys have more than one open version", fmt.Sprintf("SELECT COUNT(*) FROM (SELECT 1 FROM %s WHERE %s IS NULL GROUP BY %s HAVING COUNT(*) > 1) AS x", table, endColumn, key)},
		{"versions overlap the next version of their key", fmt.Sprintf("SELECT COUNT(*) FROM (SELECT %s IS NULL AS open, LEAD(1) OVER w AS more, %s, %s FROM %s WINDOW w AS (PARTITION BY %s ORDER BY %s)) AS x WHERE more = 1 AND (open OR %s)",
			endColumn, strings.Join(list, ", "), strings.Join(leads, ", "), table, key, strings.Join(append(start, endColumn+" IS NULL"), ", "), before(nexts, ends))},
	}
}

// Show reads rows for printing.
func (w *Writer) Show(ctx context.Context, q sink.ShowQuery, fn func(cells []*string) error) error {
	s, err := w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	name := w.qualified(q.Target.Name)
	r, err := w.readRelation(ctx, s, name)
	if err != nil {
		return w.explain(err, "look at table "+name.String(), nil)
	}
	if r == nil {
		return fault.Refuse("run the pipeline first", "table %s is not there", name)
	}
	var order []string
	declared := q.Target.Declared()
	for _, k := range declared.Keys() {
		order = append(order, quote(declared.Columns[k].Name))
	}
	where := ""
	for _, axis := range q.Axes() {
		o := orderOf(axis.Target)
		start, end := o.values(quote(axis.Start)), o.values(quote(axis.End))
		order = append(order, start...)
		if axis.Asked != "" {
			at, err := o.given(axis.Target, axis.Asked)
			if err != nil {
				return err
			}
			where += fmt.Sprintf("%s %s AND (%s IS NULL OR %s)", map[bool]string{true: " WHERE", false: " AND"}[where == ""], notAfter(start, at), quote(axis.End), before(at, end))
		}
	}
	columns := r.inOrder(q.Target, name)
	var list []string
	var cells []*string
	for i := range columns {
		list = append(list, columns[i].read(""))
		cells = append(cells, &columns[i].plain)
	}
	sql := "SELECT " + strings.Join(list, ", ") + " FROM " + qualifiedName(name) + where
	if len(order) > 0 {
		sql += " ORDER BY " + strings.Join(order, ", ")
	}
	if err := fn(cells); err != nil {
		return err
	}
	var buf []byte
	var stopped error
	err = s.stream(ctx, sql, true, nil, func(row []sqldriver.Value) error {
		cells = cells[:0]
		for i, v := range row {
			if v == nil {
				cells = append(cells, nil)
				continue
			}
			buf = columns[i].appendSource(buf[:0], v)
			text := string(buf)
			cells = append(cells, &text)
		}
		stopped = fn(cells)
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return w.explain(err, "read table "+name.String(), nil)
}

// inOrder is a table's columns as they stand there, those of the target with their source
// types.
func (r *relation) inOrder(t *scd.Target, name change.Name) []column {
	out := make([]column, len(r.columns))
	for _, a := range r.columns {
		c := a.column(a.name, name, change.Type{})
		for i := range t.Columns {
			if strings.EqualFold(t.Columns[i].Name, a.name) {
				c.source = t.Columns[i].Type
			}
		}
		if t.Kind == scd.Type2 && (strings.EqualFold(a.name, scd.StartColumn) || strings.EqualFold(a.name, scd.EndColumn)) {
			c.source = sequenceOf(t)
		}
		out[a.place] = c
	}
	return out
}
