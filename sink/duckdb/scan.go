//go:build !noduckdb

package duckdb

import (
	"context"
	"encoding/binary"
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// The canonical form of a row is a change.Row of text values: the key columns
// first, in column order, then the others. Texts are PostgreSQL's, made by the
// same functions from what the file holds and from what the source sends, so
// that equal values have equal bytes whatever column type holds them.

// Scan streams a target's rows in canonical form.
func (w *Writer) Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error {
	c, err := w.reader(ctx)
	if err != nil {
		return err
	}
	if c == nil {
		return fault.Refuse("run the pipeline first", "target %s: there is no file %s", t.Name, w.cfg.Path)
	}
	defer c.close()
	return w.scan(ctx, c, t, fn)
}

func (w *Writer) scan(ctx context.Context, c *conn, t *scd.Target, fn func(key, row []byte) error) error {
	s, err := w.shape(ctx, t)
	if err != nil {
		return err
	}
	order := canonicalOrder(t)
	sql := "SELECT "
	for n, i := range order {
		if n > 0 {
			sql += ", "
		}
		sql += quote(s.cols[i].name)
	}
	sql += " FROM " + s.name
	if t.Kind == scd.Type2 {
		sql += " WHERE " + endColumn + " IS NULL"
	}
	return w.explain("read target "+t.Name.String(), scanRows(ctx, c, sql, len(s.keys), fn))
}

func scanRows(ctx context.Context, c *conn, sql string, keys int, fn func(key, row []byte) error) error {
	r, err := c.query(ctx, sql)
	if err != nil {
		return err
	}
	defer r.close()
	var buf []byte
	for r.next() {
		for row := range r.size {
			buf = buf[:0]
			keyLen := 0
			for i := range r.cols {
				if r.cols[i].null(row) {
					buf = append(buf, byte(change.Null))
				} else {
					start := openText(&buf)
					buf = r.cols[i].text(buf, row)
					closeText(buf, start)
				}
				if i == keys-1 {
					keyLen = len(buf)
				}
			}
			if err := fn(buf[:keyLen], buf); err != nil {
				return err
			}
		}
	}
	return r.err
}

// openText begins a text value of a row whose length is not known yet.
func openText(buf *[]byte) (start int) {
	*buf = append(*buf, byte(change.AsText), 0, 0, 0, 0)
	return len(*buf)
}

func closeText(buf []byte, start int) {
	binary.BigEndian.PutUint32(buf[start-4:], uint32(len(buf)-start))
}

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

// Canonical gives a complete source row the form that Scan gives it.
func (w *Writer) Canonical(t *scd.Target, row change.Row, dst []byte) (out []byte, keyLen int, err error) {
	start := len(dst)
	var few [32]change.Value
	vals, err := row.Values(few[:0], len(t.Columns))
	if err != nil {
		return dst, 0, fault.Corrupted("read a row of %s: %v", t.Source, err)
	}
	write := func(i int) error {
		v := vals[i]
		switch v.State {
		case change.Null:
			dst = append(dst, byte(change.Null))
			return nil
		case change.Absent:
			return fault.Corrupted("a row of %s to be compared has unchanged columns", t.Source)
		}
		at := openText(&dst)
		var err error
		if dst, err = canonicalText(dst, v, t.Columns[i].Type); err != nil {
			return &fault.Error{Kind: fault.Corrupt, Op: fmt.Sprintf("read column %s of %s", quote(t.Columns[i].Name), t.Source), Err: err}
		}
		closeText(dst, at)
		return nil
	}
	for i := range t.Columns {
		if t.Columns[i].Key {
			if err := write(i); err != nil {
				return dst, 0, err
			}
		}
	}
	keyLen = len(dst) - start
	for i := range t.Columns {
		if !t.Columns[i].Key {
			if err := write(i); err != nil {
				return dst, 0, err
			}
		}
	}
	return dst, keyLen, nil
}

// canonicalText prints v as cells.text prints it from the file. A float's text
// is made from its value, because a source's session may print it with other
// digits; every other kind has one text only.
func canonicalText(dst []byte, v change.Value, t change.Type) ([]byte, error) {
	switch t.Kind {
	case change.Float32:
		f, err := pgvalue.Float32(v)
		return pgvalue.AppendFloat(dst, float64(f), 32), err
	case change.Float64:
		f, err := pgvalue.Float64(v)
		return pgvalue.AppendFloat(dst, f, 64), err
	case change.Bytes:
		if v.State == change.AsText { // hex or escape
			raw, err := pgvalue.Bytes(nil, v)
			return pgvalue.AppendBytes(dst, raw), err
		}
	}
	return pgvalue.Text(dst, v, t)
}

// Invariants checks what no index of ours checks.
func (w *Writer) Invariants(ctx context.Context, t *scd.Target) ([]string, error) {
	c, err := w.reader(ctx)
	if err != nil || c == nil {
		return nil, err
	}
	defer c.close()
	return w.invariants(ctx, c, t)
}

func (w *Writer) invariants(ctx context.Context, c *conn, t *scd.Target) ([]string, error) {
	s, err := w.shape(ctx, t)
	if err != nil {
		return nil, err
	}
	if len(s.keys) == 0 {
		return nil, nil
	}
	keys := s.keyList(", ", func(i int) string { return quote(s.cols[i].name) })
	checks := [][2]string{{"keys stand more than once",
		fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s GROUP BY %s HAVING count(*) > 1)", s.name, keys)}}
	if t.Kind == scd.Type2 {
		b := boundsOf(t)
		start, end := b.value(startColumn), b.value(endColumn)
		checks = [][2]string{
			{"keys have more than one open version",
				fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM %s WHERE %s IS NULL GROUP BY %s HAVING count(*) > 1)", s.name, endColumn, keys)},
			{"versions are empty or end before they start",
				fmt.Sprintf("SELECT count(*) FROM %s WHERE %s <= %s OR %s IS NULL", s.name, end, start, startColumn)},
			{"versions overlap the next version of their key",
				fmt.Sprintf("SELECT count(*) FROM (SELECT %s AS open, %s AS e, lead(%s) OVER (PARTITION BY %s ORDER BY %s, %s) AS n FROM %s) WHERE n IS NOT NULL AND (open OR e > n)",
					endColumn+" IS NULL", end, start, keys, start, end, s.name)},
		}
	}
	if t.Bitemporal != nil {
		what, sql := sink.BitemporalInvariant(s.name, t, func(a sink.Axis, column string) string { return boundsOf(a.Target).value(quote(column)) })
		checks = append(checks, [2]string{what, sql})
	}
	var out []string
	for _, check := range checks {
		n, err := c.number(ctx, check[1])
		if err != nil {
			return nil, w.explain("check target "+t.Name.String(), err)
		}
		if n > 0 {
			out = append(out, fmt.Sprintf("%s: %d %s", t.Name, n, check[0]))
		}
	}
	return out, nil
}
