package postgres

import (
	"context"
	"fmt"

	"tailrace/internal/change/rowsum"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var (
	_ sink.Summer = (*Writer)(nil)
	_ sink.Summer = view{}
)

// SumForm implements sink.Summer.
func (w *Writer) SumForm(ctx context.Context, t *scd.Target) (form string, err error) {
	err = w.onSession(ctx, func(s *session) error { form, err = w.sumForm(ctx, s, t); return err })
	return form, err
}

// Sum implements sink.Summer.
func (w *Writer) Sum(ctx context.Context, t *scd.Target, sums rowsum.Sums, into []rowsum.Bucket) error {
	return w.onSession(ctx, func(s *session) error { return w.sum(ctx, s, t, sums, into) })
}

// ScanPart implements sink.Summer.
func (w *Writer) ScanPart(ctx context.Context, t *scd.Target, part rowsum.Part, fn func(key, row []byte) error) error {
	return w.onSession(ctx, func(s *session) error { return w.scan(ctx, s, t, &part, fn) })
}

func (v view) SumForm(ctx context.Context, t *scd.Target) (string, error) {
	return v.w.sumForm(ctx, v.s, t)
}

func (v view) Sum(ctx context.Context, t *scd.Target, sums rowsum.Sums, into []rowsum.Bucket) error {
	return v.w.sum(ctx, v.s, t, sums, into)
}

func (v view) ScanPart(ctx context.Context, t *scd.Target, part rowsum.Part, fn func(key, row []byte) error) error {
	return v.w.scan(ctx, v.s, t, &part, fn)
}

// onSession runs fn on a session of its own.
func (w *Writer) onSession(ctx context.Context, fn func(s *session) error) error {
	s, err := w.connect(ctx, "")
	if err != nil {
		return err
	}
	defer s.close(ctx)
	return fn(s)
}

func (w *Writer) sumForm(ctx context.Context, s *session, t *scd.Target) (string, error) {
	name := w.qualified(t.Name)
	rows, err := s.query(ctx, rowsum.TypesSQL(literal(qualifiedName(name))+"::regclass"))
	if err != nil {
		return "", w.explain(ctx, err, "look at table "+name.String(), nil)
	}
	types := map[string]string{}
	for _, r := range rows {
		types[str(r[0])] = str(r[1])
	}
	list := make([]string, len(t.Columns))
	for i := range t.Columns {
		list[i] = types[t.Columns[i].Name]
	}
	return rowsum.Form(s.conn.ParameterStatus("server_encoding"), list), nil
}

// summed lists a target's columns and keys, quoted.
func summed(t *scd.Target) (columns, keys []string) {
	for i := range t.Columns {
		columns = append(columns, quote(t.Columns[i].Name))
	}
	for _, k := range t.Keys() {
		keys = append(keys, quote(t.Columns[k].Name))
	}
	return columns, keys
}

func (w *Writer) sum(ctx context.Context, s *session, t *scd.Target, sums rowsum.Sums, into []rowsum.Bucket) error {
	name := w.qualified(t.Name)
	from := qualifiedName(name)
	if t.Kind == scd.Type2 {
		from += fmt.Sprintf(" WHERE %s IS NULL", endColumn)
	}
	if err := s.exec(ctx, "SET work_mem = '64MB'"); err != nil { // for all buckets, some 300 bytes each
		return err
	}
	columns, keys := summed(t)
	rows := s.conn.ExecParams(ctx, sums.SQL(columns, keys, from), nil, nil, nil, nil)
	var bad error
	for rows.NextRow() {
		if err := sums.Take(into, rows.Values()); err != nil && bad == nil {
			bad = fault.Corrupted("table %s: %v", name, err)
		}
	}
	if _, err := rows.Close(); err != nil {
		return w.explain(ctx, err, "sum up table "+name.String(), nil)
	}
	return bad
}
