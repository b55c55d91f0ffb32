//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// versions applies a round of a history whose sequence is the user's: ends and
// drops name stored versions by key and start, compared by the columns' types. They
// are found first, and each must be there once. A version that ends is deleted and
// inserted again (nothing is updated in place: see type1); begins go straight into
// the table.
func (a *applier) versions(ctx context.Context, s *shape, r *scd.Round) error {
	if len(r.Ends)+len(r.Drops)+len(r.Begins) != r.Size() || r.Truncate {
		return fault.Corrupted("apply to %s: a round of the sequenced lane holds other work", s.target.Name)
	}
	if err := a.endAndDrop(ctx, s, r); err != nil {
		return err
	}
	return a.beginVersions(ctx, s, r.Begins)
}

func (a *applier) endAndDrop(ctx context.Context, s *shape, r *scd.Round) error {
	total := int64(len(r.Ends) + len(r.Drops))
	if total == 0 {
		return nil
	}
	nulls, err := a.stageVersions(ctx, s, r)
	if err != nil {
		return err
	}
	// In order, what ends is open. Few rows are, so the others' columns are not read
	// unless something is missing.
	find := fmt.Sprintf("SELECT t.rowid AS rid, q.n, q.e, q.gone FROM %s AS t JOIN %s AS q ON %s AND t.%s = q.s WHERE t.%s",
		s.name, stageName("named"), s.targetKey(nulls, "q."), startColumn, endColumn)
	if _, err := a.conn.exec(ctx, "CREATE OR REPLACE TEMP TABLE found AS "+find+" IS NULL"); err != nil {
		return err
	}
	const count = "SELECT count(*) FROM temp.main.found"
	found, err := a.conn.number(ctx, count)
	if err != nil {
		return err
	}
	if found < total {
		if _, err := a.conn.exec(ctx, "INSERT INTO "+stageName("found")+" "+find+" IS NOT NULL"); err != nil {
			return err
		}
		if found, err = a.conn.number(ctx, count); err != nil {
			return err
		}
	}
	each, err := a.conn.number(ctx, "SELECT count(DISTINCT n) FROM "+stageName("found"))
	if err != nil {
		return err
	}
	if found != total || each != total {
		return fault.Corrupted("apply to %s: %d versions to end or drop met %d stored ones (%d rows); copy the table again (tailrace backfill --table)", s.target.Name, total, each, found)
	}
	if len(r.Ends) > 0 {
		if _, err := a.fetch(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE ended AS SELECT %s, t.%s AS s, f.e FROM %s AS t JOIN %s AS f ON t.rowid = f.rid WHERE NOT f.gone",
			s.each(func(i int) string { return "t." + quote(s.cols[i].name) + " AS " + c("", i) }), startColumn, s.name, stageName("found"))); err != nil {
			return err
		}
	}
	if _, err := a.conn.exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE rowid IN (SELECT rid FROM %s)", s.name, stageName("found"))); err != nil {
		return err
	}
	if len(r.Ends) > 0 {
		_, err = a.conn.exec(ctx, fmt.Sprintf("%s SELECT %s, s, e FROM %s", s.insertInto(), s.each(func(i int) string { return c("", i) }), stageName("ended")))
	}
	return err
}

// stageVersions fills the table named: key, start, new end, number.
func (a *applier) stageVersions(ctx context.Context, s *shape, r *scd.Round) (nulls bool, err error) {
	var cols []column
	for _, k := range s.keys {
		cols = append(cols, column{name: c("", k), source: s.cols[k].source, typ: s.cols[k].typ})
	}
	start := len(cols)
	bound := startColumnOf(s.target)
	from, until := bound, bound
	from.name, until.name = "s", "e"
	cols = append(cols, from, until, own("n", asBigint), own("gone", asBoolean))
	ap, err := a.conn.newTemp(ctx, "named", cols...)
	if err != nil {
		return false, err
	}
	defer ap.discard()
	ap.what = s.target.Name.String()
	for n, k := range s.keys { // messages name the target's columns
		ap.cols[n].name = s.cols[k].name
	}
	ap.cols[start].name, ap.cols[start+1].name = scd.StartColumn, scd.EndColumn
	st := &stage{appender: ap, shape: s}
	n := int64(0)
	write := func(v scd.VersionEnd, gone bool) error {
		if err := st.keyInto(v.Key, func(n int) int { return n }); err != nil {
			return err
		}
		if err := ap.value(start, v.Start); err != nil {
			return err
		}
		if err := ap.value(start+1, v.End); err != nil {
			return err
		}
		put(ap, start+2, n)
		put(ap, start+3, gone)
		n++
		return ap.end()
	}
	for _, e := range r.Ends {
		if err := write(e, false); err != nil {
			return false, err
		}
	}
	for _, d := range r.Drops {
		if err := write(scd.VersionEnd{VersionID: d, End: change.Value{State: change.Null}}, true); err != nil {
			return false, err
		}
	}
	_, err = ap.finish(ctx)
	return st.nullKey, err
}

func (a *applier) beginVersions(ctx context.Context, s *shape, begins []scd.Version) error {
	if len(begins) == 0 {
		return nil
	}
	ap, err := a.conn.newAppender(a.w.catalog, s.schema, s.table, s.loadColumns(), s.exact)
	if err != nil {
		return err
	}
	st := &stage{appender: ap, shape: s}
	defer st.discard()
	start := len(s.cols)
	for i := range begins {
		v := &begins[i]
		absent, err := st.read(v.Row)
		if err != nil {
			return err
		}
		if absent {
			return fault.Corrupted("apply to %s: a complete row has unchanged columns", s.target.Name)
		}
		if err := st.data(); err != nil {
			return err
		}
		if err := ap.value(start, v.Start); err != nil {
			return err
		}
		if err := ap.value(start+1, v.End); err != nil {
			return err
		}
		if err := st.end(); err != nil {
			return err
		}
	}
	_, err = st.finish(ctx)
	return err
}
