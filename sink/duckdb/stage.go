//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// own makes a stage column of ours.
func own(name string, s store) column { return column{name: name, typ: columnType{store: s}} }

// stage is a temporary table that is being filled with rows of one target. Its
// first columns are the target's data columns.
type stage struct {
	*appender
	shape   *shape
	vals    []change.Value
	nullKey bool // a key column was NULL: keys must be compared null-safely
	masks   []uint64
}

// newStage makes an empty temporary table of the target's data columns and
// extra ones, and an appender on it.
func (a *applier) newStage(ctx context.Context, s *shape, name string, extra ...column) (*stage, error) {
	cols := append(s.stageColumns(), extra...)
	ap, err := a.conn.newTemp(ctx, name, cols...)
	if err != nil {
		return nil, err
	}
	ap.what = s.target.Name.String()
	for i := range s.cols { // messages name the target's columns
		ap.cols[i].name = s.target.Columns[i].Name
	}
	return &stage{appender: ap, shape: s}, nil
}

// read splits a row image; absent reports whether any column is Absent.
func (st *stage) read(row change.Row) (absent bool, err error) {
	st.vals, err = row.Values(st.vals, len(st.shape.cols))
	if err != nil {
		return false, fault.Corrupted("read a row for %s: %v", st.shape.target.Name, err)
	}
	for i := range st.vals {
		if st.vals[i].State == change.Absent {
			return true, nil
		}
	}
	return false, nil
}

// data writes the row that read split.
func (st *stage) data() error {
	for i := range st.vals {
		if err := st.value(i, st.vals[i]); err != nil {
			return err
		}
	}
	for _, k := range st.shape.keys {
		st.nullKey = st.nullKey || st.vals[k].State != change.AsText && st.vals[k].State != change.Binary
	}
	return nil
}

// key writes a key into the key columns and NULL into the others.
func (st *stage) key(key change.Row) error {
	for i := range st.shape.cols {
		st.null(i)
	}
	return st.keyInto(key, func(n int) int { return st.shape.keys[n] })
}

// keyInto writes a key's columns where place says.
func (st *stage) keyInto(key change.Row, place func(n int) int) error {
	for n := range st.shape.keys {
		v, rest, err := key.Next()
		if err != nil {
			return fault.Corrupted("read a key for %s: %v", st.shape.target.Name, err)
		}
		col := place(n)
		if v.State == change.AsText || v.State == change.Binary {
			st.setValid(col)
		} else {
			st.nullKey = true
		}
		if err := st.value(col, v); err != nil {
			return err
		}
		key = rest
	}
	return nil
}

// maskBits is how many Absent flags one BIGINT column of a stage holds.
const maskBits = 63

// patchColumns are what a row with Absent columns needs besides its data: the
// key of the row that fills it (o0, ...) and one bit a column (m0, ...).
func (s *shape) patchColumns() []column {
	var cols []column
	for n, k := range s.keys {
		cols = append(cols, column{name: fmt.Sprintf("o%d", n), source: s.cols[k].source, typ: s.cols[k].typ})
	}
	for n := range (len(s.cols) + maskBits - 1) / maskBits {
		cols = append(cols, own(fmt.Sprintf("m%d", n), asBigint))
	}
	return cols
}

// patch writes the origin's key and the Absent flags of the row that read
// split, into the columns from first on. origin nil: the row's own key.
func (st *stage) patch(first int, origin change.Row) error {
	if origin == nil {
		for n, k := range st.shape.keys {
			if err := st.value(first+n, st.vals[k]); err != nil {
				return err
			}
		}
	} else if err := st.keyInto(origin, func(n int) int { return first + n }); err != nil {
		return err
	}
	first += len(st.shape.keys)
	if st.masks == nil {
		st.masks = make([]uint64, (len(st.shape.cols)+maskBits-1)/maskBits)
	}
	for m := range st.masks {
		var bits uint64
		for b := range min(maskBits, len(st.vals)-m*maskBits) {
			if st.vals[m*maskBits+b].State == change.Absent {
				bits |= 1 << b
			}
		}
		put(st.appender, first+m, int64(bits))
		st.masks[m] |= bits
	}
	return nil
}

// filledColumns selects the data columns of stage p, with Absent ones taken
// from the target's row t. Only columns that are Absent somewhere in the round
// are read from the target.
func (st *stage) filledColumns() string {
	return st.shape.each(func(i int) string {
		m, bit := i/maskBits, uint64(1)<<(i%maskBits)
		if st.masks[m]&bit == 0 {
			return c("p.", i)
		}
		return fmt.Sprintf("CASE WHEN p.m%d & %d <> 0 THEN t.%s ELSE %s END AS %s", m, bit, quote(st.shape.cols[i].name), c("p.", i), c("", i))
	})
}

// originKey is the condition that row t of the target is the origin of row p.
func (st *stage) originKey() string {
	parts := make([]string, len(st.shape.keys))
	for n, k := range st.shape.keys {
		parts[n] = fmt.Sprintf("t.%s%sp.o%d", quote(st.shape.cols[k].name), eq(st.nullKey), n)
	}
	return strings.Join(parts, " AND ")
}

// findOrigins makes the table origins: of each patch row p its number and the row
// id of its origin. where restricts the target's rows t.
func (st *stage) findOrigins(where string) string {
	return fmt.Sprintf("CREATE OR REPLACE TEMP TABLE origins AS SELECT p.rowid AS pid, t.rowid AS rid FROM %s AS p JOIN %s AS t ON %s%s",
		stageName("patch"), st.shape.name, st.originKey(), where)
}

// fromOrigins joins the patch rows p with their origins' rows t.
func (st *stage) fromOrigins() string {
	return fmt.Sprintf("FROM %s AS o JOIN %s AS p ON p.rowid = o.pid JOIN %s AS t ON t.rowid = o.rid", stageName("origins"), stageName("patch"), st.shape.name)
}

// fetchPruned is up to how many rows a fetch by row id skips what lies between
// them.
const fetchPruned = 2000

// fetch runs a statement that reads whole rows of a target by row ids that an
// earlier statement found. For a join with few row ids the engine skips the
// vectors (2048 rows) that hold none, which by a key it cannot; its limit for
// "few" is 50, and 2000 make such a fetch from a large table several times
// faster. Everywhere else a longer list costs more than it saves.
func (a *applier) fetch(ctx context.Context, sql string) (int64, error) {
	if _, err := a.conn.exec(ctx, fmt.Sprintf("SET dynamic_or_filter_threshold = %d", fetchPruned)); err != nil {
		return 0, err
	}
	n, err := a.conn.exec(ctx, sql)
	if err != nil {
		return 0, err
	}
	_, err = a.conn.exec(ctx, "RESET dynamic_or_filter_threshold")
	return n, err
}
