//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"

	"tailrace/internal/fault"
	"tailrace/scd"
)

// type1 applies one round to a table of current rows.
//
// All touched keys go into one stage: rows to be written, and keys that only
// disappear. One DELETE joins the target with the stage, one INSERT writes the
// rows. In-place UPDATE and MERGE are 6 to 30 times slower here, because the
// engine rewrites whole column segments for scattered rows. Every row to be
// written also deletes its key first, so that an insert of a key that is there
// after all replaces it, though no index watches over it.
//
// Rows with Absent columns are filled from the target before the DELETE; of a restored
// target those that are there.
func (a *applier) type1(ctx context.Context, s *shape, r *scd.Round, restored bool) error {
	if r.Truncate {
		if _, err := a.conn.exec(ctx, "DELETE FROM "+s.name); err != nil {
			return err
		}
	}
	if r.Size() == 0 {
		return nil
	}
	if len(s.keys) == 0 {
		return a.appendRows(ctx, s, r)
	}
	op := len(s.cols)
	st, err := a.newStage(ctx, s, "stage", own("op", asBoolean))
	if err != nil {
		return err
	}
	defer st.discard()
	var patch *stage
	defer func() {
		if patch != nil {
			patch.discard()
		}
	}()

	// gone stages a key that disappears; row a row that is written at its key.
	gone := func(key scd.Key) error {
		if err := st.key(key); err != nil {
			return err
		}
		put(st.appender, op, false)
		return st.end()
	}
	written := 0
	row := func(row, origin scd.Key, mayLack bool) error {
		absent, err := st.read(row)
		switch {
		case err != nil:
			return err
		case absent && !mayLack:
			return fault.Corrupted("apply to %s: a complete row has unchanged columns", s.target.Name)
		case absent:
			if patch == nil {
				if patch, err = a.newStage(ctx, s, "patch", s.patchColumns()...); err != nil {
					return err
				}
			}
			patch.vals = append(patch.vals[:0], st.vals...)
			if err := patch.data(); err != nil {
				return err
			}
			if err := patch.patch(len(s.cols), origin); err != nil {
				return err
			}
			if err := patch.end(); err != nil {
				return err
			}
		default:
			written++
		}
		if err := st.data(); err != nil {
			return err
		}
		put(st.appender, op, !absent)
		return st.end()
	}

	for _, key := range r.Deletes {
		if err := gone(key); err != nil {
			return err
		}
	}
	for _, m := range r.Moves {
		if err := gone(m.Old); err != nil {
			return err
		}
	}
	for _, m := range r.Moves {
		if err := row(m.Row, m.Old, true); err != nil {
			return err
		}
	}
	for _, rw := range r.Inserts {
		if err := row(rw, nil, false); err != nil {
			return err
		}
	}
	for _, rw := range r.Upserts {
		if err := row(rw, nil, false); err != nil {
			return err
		}
	}
	for _, rw := range r.Patches {
		if err := row(rw, nil, true); err != nil {
			return err
		}
	}
	staged, err := st.finish(ctx)
	if err != nil {
		return err
	}
	if patch != nil {
		if err := a.fill1(ctx, s, patch, restored); err != nil {
			return err
		}
	}
	lists := 0
	for _, n := range []int{len(r.Deletes), len(r.Moves), len(r.Moves), len(r.Inserts), len(r.Upserts), len(r.Patches)} {
		if n > 0 {
			lists++
		}
	}
	if _, err := a.conn.exec(ctx, s.deleteStaged(st.nullKey, lists > 1)); err != nil {
		return err
	}
	if written > 0 {
		if _, err := a.conn.exec(ctx, s.insertStaged(int64(written) == staged)); err != nil {
			return err
		}
	}
	if patch != nil {
		if _, err := a.conn.exec(ctx, s.insertFilled()); err != nil {
			return err
		}
	}
	return nil
}

// fill1 makes the table filled: the patched rows with Absent columns taken from
// their stored rows.
func (a *applier) fill1(ctx context.Context, s *shape, patch *stage, restored bool) error {
	want, err := patch.finish(ctx)
	if err != nil {
		return err
	}
	if _, err := a.conn.exec(ctx, patch.findOrigins("")); err != nil {
		return err
	}
	if _, err := a.fetch(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE filled AS SELECT %s %s", patch.filledColumns(), patch.fromOrigins())); err != nil {
		return err
	}
	got, err := a.conn.number(ctx, "SELECT count(*) FROM "+stageName("filled"))
	if err != nil {
		return err
	}
	if restored && got < want {
		return nil
	}
	return s.allFilled(want, got)
}

// allFilled: a row with Absent columns must have met exactly one stored row.
func (s *shape) allFilled(want, got int64) error {
	if want == got {
		return nil
	}
	return fault.Corrupted("apply to %s: %d rows with unchanged columns met %d stored rows; copy the table again (tailrace backfill --table)", s.target.Name, want, got)
}

// appendRows writes a target without a key: rows only arrive.
func (a *applier) appendRows(ctx context.Context, s *shape, r *scd.Round) error {
	if len(r.Inserts) != r.Size() {
		return fault.Corrupted("apply to %s: an append-only target got something else than inserts", s.target.Name)
	}
	ap, err := a.conn.newAppender(a.w.catalog, s.schema, s.table, append([]column(nil), s.cols...), s.exact)
	if err != nil {
		return err
	}
	st := &stage{appender: ap, shape: s}
	defer st.discard()
	for _, row := range r.Inserts {
		absent, err := st.read(row)
		if err != nil {
			return err
		}
		if absent {
			return fault.Corrupted("apply to %s: a complete row has unchanged columns", s.target.Name)
		}
		if err := st.data(); err != nil {
			return err
		}
		if err := st.end(); err != nil {
			return err
		}
	}
	_, err = st.finish(ctx)
	return err
}

// deleteStaged deletes the rows whose key is staged. Keys may stand twice only
// across lists; a primary key's index fails on a row that is deleted twice.
func (s *shape) deleteStaged(nulls, twice bool) string {
	from := stageName("stage")
	if twice {
		from = fmt.Sprintf("(SELECT DISTINCT %s FROM %s)", s.keyList(", ", func(i int) string { return c("", i) }), from)
	}
	return fmt.Sprintf("DELETE FROM %s AS t USING %s AS s WHERE %s", s.name, from, s.targetKey(nulls, "s."))
}

func (s *shape) insertStaged(all bool) string {
	sql := fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", s.name, s.names(), s.each(func(i int) string { return c("", i) }), stageName("stage"))
	if !all {
		sql += " WHERE op"
	}
	return sql
}

func (s *shape) insertFilled() string {
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", s.name, s.names(), s.each(func(i int) string { return c("", i) }), stageName("filled"))
}
