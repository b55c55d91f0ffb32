//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"

	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Show reads a target's rows as text, ordered by key and start.
func (w *Writer) Show(ctx context.Context, q sink.ShowQuery, fn func(cells []*string) error) error {
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	missing := fault.Refuse("run the pipeline first", "target %s is not in %s", q.Target.Name, w.cfg.Path)
	if c == nil {
		return missing
	}
	defer c.close()
	rel, err := w.look(ctx, c, q.Target.Name)
	if err != nil {
		return err
	}
	if !rel.exists {
		return missing
	}
	var header []*string
	var list, order []string
	for i := range rel.cols {
		col := &rel.cols[i]
		header = append(header, &col.name)
		expr := quote(col.name)
		if col.typ.store == unknown {
			expr += "::VARCHAR"
		}
		list = append(list, expr)
	}
	for _, k := range q.Target.Keys() {
		order = append(order, quote(q.Target.Columns[k].Name))
	}
	sql := fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), w.qualify(rel.schema, rel.table))
	var args []any
	if q.Target.Kind == scd.Type2 {
		order = append(order, startColumn)
		if q.AsOf != "" {
			sql += fmt.Sprintf(" WHERE %s <= $1::TIMESTAMPTZ AND (%s IS NULL OR %s > $1::TIMESTAMPTZ)", startColumn, endColumn, endColumn)
			args = append(args, q.AsOf)
		}
	}
	if len(order) > 0 {
		sql += " ORDER BY " + strings.Join(order, ", ")
	}
	if err := fn(header); err != nil {
		return err
	}
	return w.explain("show target "+q.Target.Name.String(), c.each(ctx, fn, sql, args...))
}
