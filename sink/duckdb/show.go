//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	engine "github.com/duckdb/duckdb-go/v2"

	"tailrace/internal/fault"
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
		expr := "t." + quote(col.name)
		if col.typ.store == unknown {
			expr += "::VARCHAR"
		}
		list = append(list, expr)
	}
	declared := q.Target.Declared()
	for _, k := range declared.Keys() {
		order = append(order, quote(declared.Columns[k].Name))
	}
	from := w.qualify(rel.schema, rel.table) + " AS t"
	sql := fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), from)
	where, asked := "", false
	for _, axis := range q.Axes() {
		b := boundsOf(axis.Target)
		start, end := quote(axis.Start), quote(axis.End)
		if at, _ := rel.find(axis.Start); at.typ.store == asJSON {
			// An earlier version made it, where a sequence of several columns had no order.
			if axis.Asked != "" {
				return fault.Refuse(overwrite, "column %s of target %s has type %s, the flow's is %s", start, q.Target.Name, at.spelling, startColumnOf(axis.Target).typ)
			}
			b = bounds{[]bound{{typ: at.typ}}}
		}
		order = append(order, b.value(start))
		if axis.Asked != "" {
			at, err := b.given(axis.Target, axis.Asked)
			if err != nil {
				return err
			}
			where += fmt.Sprintf("%s %s <= %s AND (%s IS NULL OR %s > %s)", map[bool]string{false: " WHERE", true: " AND"}[asked], b.value(start), at, end, b.value(end), at)
			asked = true
		}
	}
	if err := fn(header); err != nil {
		return err
	}
	what := "show target " + q.Target.Name.String()
	if len(order) == 0 {
		return w.explain(what, c.each(ctx, fn, sql+where))
	}
	by := " ORDER BY " + strings.Join(order, ", ")
	shown := 0
	err = c.each(ctx, func(cells []*string) error { shown++; return fn(cells) }, sql+where+by)
	var e *engine.Error
	if asked && errors.As(err, &e) && (e.Type == engine.ErrorTypeConversion || e.Type == engine.ErrorTypeInvalidInput || e.Type == engine.ErrorTypeOutOfRange) {
		return fault.Badly("%s", q.NotAValue())
	}
	if err == nil || !strings.Contains(err.Error(), "Out of Memory") {
		return w.explain(what, err)
	}
	// Sorting whole rows needs room for many of them at once. Places of rows are
	// small: those are sorted, and the rows are read some at a time, from where the
	// printing stopped.
	places := fmt.Sprintf("CREATE OR REPLACE TEMP TABLE shown AS SELECT row_number() OVER (%s) AS n, rowid AS place FROM %s%s", by, from, where)
	if _, err := c.exec(ctx, places); err != nil {
		return w.explain(what, err)
	}
	for {
		before := shown
		chunk := fmt.Sprintf("%s, (SELECT n, place FROM shown WHERE n > %d AND n <= %d) AS s WHERE t.rowid = s.place ORDER BY s.n", sql, before, before+showChunk)
		if err := c.each(ctx, func(cells []*string) error { shown++; return fn(cells) }, chunk); err != nil {
			return w.explain(what, err)
		}
		if shown == before {
			return nil
		}
	}
}

// showChunk is how many rows are read at once where memory is short: 1,000 rows of
// 16 KiB are 16 MiB.
const showChunk = 1000
