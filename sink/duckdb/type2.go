//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"strings"

	"tailrace/internal/fault"
	"tailrace/scd"
)

// type2 applies one round to a history. scd.Step states the rules; here they are
// set operations over temporary tables:
//
//	steps     the round's steps, complete (Absent columns filled), numbered i
//	found     of each touched key the newest stored version's row id
//	newest    its row, with b
//	verdict   of each key: is step 1 void
//	timeline  of each step its instant and the next step's (till)
//	closing   stored open versions that change: their end is set, or (where step
//	          1 is void) their untracked values
//
// Then the closing rows are replaced by row id and the new versions inserted.
// Nothing is updated in place: see type1.
//
// A source transaction in pieces composes into one step a key: undo remembers of
// each key it touched the version that was open before it and the one that it
// began. A later piece first fills its Absent columns from what is stored now,
// then takes the earlier effect on its keys back, and is judged against the
// state before the transaction.
func (a *applier) type2(ctx context.Context, s *shape, r *scd.Round) error {
	st, steps, err := a.stageSteps(ctx, s, r)
	if err != nil {
		return err
	}
	if a.inPieces {
		if steps > 1 {
			return fault.Corrupted("apply to %s: a key has %d steps inside one transaction", s.target.Name, steps)
		}
		if err := a.takeBack(ctx, s, st.nullKey, r.Truncate); err != nil {
			return err
		}
	}
	if r.Truncate {
		if err := a.closeAll(ctx, s, st.nullKey, r.TruncateAt); err != nil {
			return err
		}
	}
	if len(r.Steps) == 0 {
		return nil
	}
	h := history{shape: s, nulls: st.nullKey, several: steps > 1}
	if _, err := a.conn.exec(ctx, h.found()); err != nil {
		return err
	}
	if _, err := a.fetch(ctx, h.newest()); err != nil {
		return err
	}
	work := []string{h.verdict(), h.timeline(), h.closing()}
	if a.inPieces {
		work = append(work, h.remember(a.undoTable(s)))
	}
	work = append(work, h.deleteClosing(), h.insertClosing(), h.insertVersions())
	for _, sql := range work {
		if _, err := a.conn.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// stageSteps fills the table steps and returns the highest step number.
func (a *applier) stageSteps(ctx context.Context, s *shape, r *scd.Round) (st *stage, highest int, err error) {
	own4 := []column{own("i", asBigint), own("n", asBigint), own("lo", asBigint), own("lov", asBigint), own("closes", asBoolean)}
	if st, err = a.newStage(ctx, s, "steps", own4...); err != nil {
		return nil, 0, err
	}
	defer st.discard()
	var patch *stage
	defer func() {
		if patch != nil {
			patch.discard()
		}
	}()
	first := len(s.cols)
	numbers := func(to *stage, i int, step *scd.Step, closes bool) error {
		put(to.appender, first, int64(i))
		put(to.appender, first+1, int64(step.N))
		put(to.appender, first+2, step.Lo)
		put(to.appender, first+3, step.LoVoid)
		put(to.appender, first+4, closes)
		return nil
	}
	for i := range r.Steps {
		step := &r.Steps[i]
		highest = max(highest, step.N)
		to := st
		if step.Row == nil {
			if err := st.key(step.Key); err != nil {
				return nil, 0, err
			}
		} else {
			absent, err := st.read(step.Row)
			if err != nil {
				return nil, 0, err
			}
			if absent {
				if patch == nil {
					if patch, err = a.newStage(ctx, s, "patch", append(own4, s.patchColumns()...)...); err != nil {
						return nil, 0, err
					}
				}
				to = patch
				patch.vals = append(patch.vals[:0], st.vals...)
				if err := patch.patch(first+len(own4), step.Origin); err != nil {
					return nil, 0, err
				}
			}
			if err := to.data(); err != nil {
				return nil, 0, err
			}
		}
		if err := numbers(to, i, step, step.Row == nil); err != nil {
			return nil, 0, err
		}
		if err := to.end(); err != nil {
			return nil, 0, err
		}
	}
	if _, err := st.finish(ctx); err != nil {
		return nil, 0, err
	}
	if patch == nil {
		return st, highest, nil
	}
	st.nullKey = st.nullKey || patch.nullKey
	want, err := patch.finish(ctx)
	if err != nil {
		return nil, 0, err
	}
	if _, err := a.conn.exec(ctx, patch.findOrigins(" AND t."+endColumn+" IS NULL")); err != nil {
		return nil, 0, err
	}
	got, err := a.fetch(ctx, fmt.Sprintf("INSERT INTO %s SELECT %s, p.i, p.n, p.lo, p.lov, p.closes %s", stageName("steps"), patch.filledColumns(), patch.fromOrigins()))
	if err != nil {
		return nil, 0, err
	}
	return st, highest, s.allFilled(want, got)
}

// history makes the statements of one round of type 2.
type history struct {
	*shape
	nulls   bool // a key has a NULL
	several bool // some key has more than one step
}

var (
	startColumn = quote(scd.StartColumn)
	endColumn   = quote(scd.EndColumn)
)

// micros is a timestamp's µs since the Unix epoch; NULL for an infinite one,
// which lies below every instant.
func micros(expr string) string {
	return fmt.Sprintf("CASE WHEN isfinite(%s) THEN epoch_us(%s) END", expr, expr)
}

// found finds the newest versions by key, start and row id alone. (One pass with
// row_number() is rewritten by the engine's optimizer into a plan that fails with
// an internal error, seen in 1.5.6.)
func (h history) found() string {
	return fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE found AS
SELECT arg_max(t.rowid, t.%s) AS rid FROM %s AS t JOIN %s AS q ON %s AND q.n = 1 GROUP BY %s`,
		startColumn, h.name, stageName("steps"), h.targetKey(h.nulls, "q."),
		h.keyList(", ", func(i int) string { return "t." + quote(h.cols[i].name) }))
}

// newest reads their rows.
func (h history) newest() string {
	return fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE newest AS
SELECT t.rowid AS rid, %s, t.%s AS s, t.%s IS NULL AS open, %s AS b
FROM %s AS t JOIN %s AS k ON t.rowid = k.rid`,
		h.each(func(i int) string { return "t." + quote(h.cols[i].name) + " AS " + c("", i) }),
		startColumn, endColumn, micros(fmt.Sprintf("coalesce(t.%s, t.%s)", endColumn, startColumn)),
		h.name, stageName("found"))
}

// same is the condition that the stored value e.c and the step's q.c are the
// same value, byte for byte: NULL equals NULL, -0 differs from 0, and an
// interval of one month differs from one of thirty days.
func (h history) same(i int) string { return h.sameAs(i, c("e.", i), c("q.", i)) }

func (s *shape) sameAs(i int, e, q string) string {
	switch s.cols[i].typ.store {
	case asInterval:
		return fmt.Sprintf("%s::VARCHAR IS NOT DISTINCT FROM %s::VARCHAR", e, q)
	case asFloat, asDouble:
		return fmt.Sprintf("%s IS NOT DISTINCT FROM %s AND signbit(%s) IS NOT DISTINCT FROM signbit(%s)", e, q, e, q)
	}
	return fmt.Sprintf("%s IS NOT DISTINCT FROM %s", e, q)
}

// unchanged joins same for the columns of the given kind; "true" for none.
func (h history) unchanged(tracked bool) string {
	parts := []string{"true"}
	for i := range h.cols {
		if tc := &h.target.Columns[i]; !tc.Key && tc.Tracked == tracked {
			parts = append(parts, h.same(i))
		}
	}
	return strings.Join(parts, " AND ")
}

func (h history) verdict() string {
	return fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE verdict AS
SELECT %s, e.b, CASE WHEN q.closes THEN e.open IS NOT TRUE ELSE e.open IS TRUE AND %s END AS void
FROM %s AS q LEFT JOIN %s AS e ON %s WHERE q.n = 1`,
		h.keyList(", ", func(i int) string { return c("q.", i) }), h.unchanged(true),
		stageName("steps"), stageName("newest"), h.stageKey(h.nulls, "q.", "e."))
}

func (h history) timeline() string {
	till := "NULL::BIGINT"
	if h.several {
		till = fmt.Sprintf("lead(instant) OVER (PARTITION BY %s ORDER BY n)", h.keyList(", ", func(i int) string { return c("", i) }))
	}
	return fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE timeline AS
SELECT *, %s AS till FROM (
SELECT q.i, q.n, q.closes, v.void, %s,
CASE WHEN NOT v.void THEN greatest(q.lo, v.b + q.n) WHEN q.n > 1 THEN greatest(q.lov, v.b + q.n - 1) END AS instant
FROM %s AS q JOIN %s AS v ON %s)`,
		till, h.keyList(", ", func(i int) string { return c("q.", i) }),
		stageName("steps"), stageName("verdict"), h.stageKey(h.nulls, "q.", "v."))
}

func (h history) closing() string {
	join, touched := "", "false"
	if h.untracked() {
		join = fmt.Sprintf(" JOIN %s AS q ON q.i = f.i", stageName("steps"))
		touched = "NOT (" + h.unchanged(false) + ")"
	}
	return fmt.Sprintf(`CREATE OR REPLACE TEMP TABLE closing AS
SELECT e.rid, f.i, f.void, CASE WHEN f.void THEN f.till ELSE f.instant END AS x
FROM %s AS e JOIN %s AS f ON %s AND f.n = 1%s
WHERE e.open AND (NOT f.void OR f.till IS NOT NULL OR %s)`,
		stageName("newest"), stageName("timeline"), h.stageKey(h.nulls, "e.", "f."), join, touched)
}

func (h history) untracked() bool {
	for i := range h.target.Columns {
		if !h.target.Columns[i].Key && !h.target.Columns[i].Tracked {
			return true
		}
	}
	return false
}

func (h history) deleteClosing() string {
	return fmt.Sprintf("DELETE FROM %s WHERE rowid IN (SELECT rid FROM %s)", h.name, stageName("closing"))
}

func (s *shape) insertInto() string {
	return fmt.Sprintf("INSERT INTO %s (%s, %s, %s)", s.name, s.names(), startColumn, endColumn)
}

// insertClosing writes the closing versions again: as they were, with their end,
// and where step 1 is void with its untracked values.
func (h history) insertClosing() string {
	join := ""
	value := func(i int) string { return c("e.", i) }
	if h.untracked() {
		join = fmt.Sprintf(" JOIN %s AS q ON q.i = k.i", stageName("steps"))
		value = func(i int) string {
			if tc := &h.target.Columns[i]; tc.Key || tc.Tracked {
				return c("e.", i)
			}
			return fmt.Sprintf("CASE WHEN k.void THEN %s ELSE %s END", c("q.", i), c("e.", i))
		}
	}
	return fmt.Sprintf("%s SELECT %s, e.s, make_timestamptz(k.x) FROM %s AS e JOIN %s AS k ON e.rid = k.rid%s",
		h.insertInto(), h.each(value), stageName("newest"), stageName("closing"), join)
}

func (h history) insertVersions() string {
	return fmt.Sprintf("%s SELECT %s, make_timestamptz(f.instant), make_timestamptz(f.till) FROM %s AS q JOIN %s AS f ON q.i = f.i WHERE NOT q.closes AND NOT (f.void AND f.n = 1)",
		h.insertInto(), h.each(func(i int) string { return c("q.", i) }), stageName("steps"), stageName("timeline"))
}

// remember notes in undo what this piece does to its keys.
func (h history) remember(undo string) string {
	return fmt.Sprintf(`INSERT INTO %s SELECT %s, e.open IS TRUE, e.s, CASE WHEN NOT f.closes AND NOT f.void THEN make_timestamptz(f.instant) END
FROM %s AS f LEFT JOIN %s AS e ON %s`,
		stageName(undo), h.each(func(i int) string {
			if h.target.Columns[i].Key {
				return c("f.", i)
			}
			return c("e.", i)
		}), stageName("timeline"), stageName("newest"), h.stageKey(h.nulls, "f.", "e."))
}

// undoTable names the target's undo table.
func (a *applier) undoTable(s *shape) string { return fmt.Sprintf("undo%d", a.undo[s.name]) }

// takeBack makes the undo table where it is missing, and takes back what earlier
// pieces did to the keys in steps (to all keys, with all).
func (a *applier) takeBack(ctx context.Context, s *shape, nulls, all bool) error {
	if _, ok := a.undo[s.name]; !ok {
		a.undo[s.name] = len(a.undo)
		undo := a.undoTable(s)
		_, err := a.conn.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE %s AS SELECT %s, false AS had, %s AS s, %s AS began FROM %s LIMIT 0",
			undo, s.each(func(i int) string { return quote(s.cols[i].name) + " AS " + c("", i) }), startColumn, startColumn, s.name))
		return err
	}
	undo := stageName(a.undoTable(s))
	pick := fmt.Sprintf("SELECT u.* FROM %s AS u", undo)
	forget := "DELETE FROM " + undo
	if !all {
		pick += fmt.Sprintf(" JOIN %s AS q ON %s AND q.n = 1", stageName("steps"), s.stageKey(nulls, "u.", "q."))
		forget = fmt.Sprintf("DELETE FROM %s AS u USING %s AS q WHERE %s", undo, stageName("undoing"), s.stageKey(nulls, "u.", "q."))
	}
	for _, sql := range []string{
		"CREATE OR REPLACE TEMP TABLE undoing AS " + pick,
		fmt.Sprintf("DELETE FROM %s AS t USING %s AS u WHERE %s AND (t.%s = u.began OR u.had AND t.%s = u.s)",
			s.name, stageName("undoing"), s.targetKey(nulls || all, "u."), startColumn, startColumn),
		fmt.Sprintf("%s SELECT %s, s, NULL FROM %s WHERE had", s.insertInto(), s.each(func(i int) string { return c("", i) }), stageName("undoing")),
		forget,
	} {
		if _, err := a.conn.exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// closeAll ends every open version whose key has no step in this round.
func (a *applier) closeAll(ctx context.Context, s *shape, nulls bool, at int64) error {
	open := fmt.Sprintf("t.%s IS NULL AND NOT EXISTS (SELECT 1 FROM %s AS q WHERE %s)", endColumn, stageName("steps"), s.targetKey(nulls, "q."))
	if a.inPieces {
		sql := fmt.Sprintf("INSERT INTO %s SELECT %s, true, t.%s, NULL FROM %s AS t WHERE %s", stageName(a.undoTable(s)),
			s.each(func(i int) string { return "t." + quote(s.cols[i].name) }), startColumn, s.name, open)
		if _, err := a.conn.exec(ctx, sql); err != nil {
			return err
		}
	}
	// Here UPDATE is right: it touches every row group anyway.
	_, err := a.conn.exec(ctx, fmt.Sprintf("UPDATE %s AS t SET %s = CASE WHEN isfinite(t.%s) THEN greatest(make_timestamptz(%d), t.%s + to_microseconds(1)) ELSE make_timestamptz(%d) END WHERE %s",
		s.name, endColumn, startColumn, at, startColumn, at, open))
	return err
}
