//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	engine "github.com/duckdb/duckdb-go/v2"

	"tailrace/internal/change"
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
		expr := "t." + quote(col.name)
		if col.typ.store == unknown {
			expr += "::VARCHAR"
		}
		list = append(list, expr)
	}
	for _, k := range q.Target.Keys() {
		order = append(order, quote(q.Target.Columns[k].Name))
	}
	from := w.qualify(rel.schema, rel.table) + " AS t"
	sql := fmt.Sprintf("SELECT %s FROM %s", strings.Join(list, ", "), from)
	where := ""
	if q.Target.Kind == scd.Type2 {
		start, _ := rel.find(scd.StartColumn)
		b := boundOrder(q.Target, start.typ)
		order = append(order, b.value(startColumn))
		if q.AsOf != "" {
			if !b.ordered {
				return fault.Badly("target %s has a sequence of several columns, which DuckDB holds as JSON: that has no order to ask for an instant", q.Target.Name)
			}
			at := b.given(literal(q.AsOf))
			where = fmt.Sprintf(" WHERE %s <= %s AND (%s IS NULL OR %s > %s)", b.value(startColumn), at, endColumn, b.value(endColumn), at)
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
	if q.AsOf != "" && errors.As(err, &e) && (e.Type == engine.ErrorTypeConversion || e.Type == engine.ErrorTypeInvalidInput || e.Type == engine.ErrorTypeOutOfRange) {
		return fault.Badly("%q is no value of the sequence of target %s", q.AsOf, q.Target.Name)
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

// bounds compares the starts and ends of a history as its sequence does.
type bounds struct {
	typ     columnType
	exact   bool // held as text though they are numbers
	ordered bool
}

func boundOrder(t *scd.Target, typ columnType) bounds {
	return bounds{typ: typ, ordered: typ.store != asJSON, exact: typ.store == asVarchar && t.Sequence != nil && t.Sequence.Kind == change.Numeric}
}

// exactNumber is the widest number with a fraction that the engine compares; what
// does not fit (NaN, thirty digits) has no order here.
const exactNumber = "DECIMAL(38,10)"

// value is a stored start or end.
func (b bounds) value(column string) string {
	if b.exact {
		return "TRY_CAST(" + column + " AS " + exactNumber + ")"
	}
	return column
}

// given is a value of the sequence as a person writes it. Numbers may lie between
// those that are held: a cast to the column's type would round them.
func (b bounds) given(text string) string {
	whole := b.typ.store == asSmallint || b.typ.store == asInteger || b.typ.store == asBigint
	switch {
	case b.exact, whole, b.typ.store == asDecimal && b.typ.width-b.typ.scale <= 28:
		return "CAST(" + text + " AS " + exactNumber + ")"
	case b.typ.store == asBlob:
		return "unhex(ltrim(" + text + ", '\\x'))"
	}
	return "CAST(" + text + " AS " + b.typ.String() + ")"
}

// showChunk is how many rows are read at once where memory is short: 1,000 rows of
// 16 KiB are 16 MiB.
const showChunk = 1000
