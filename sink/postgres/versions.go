package postgres

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/scd"
)

// versions carries out a type 2 round that names stored versions by their start.
func (a *applier) versions(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	ends := make([]scd.VersionID, len(r.Ends))
	for i := range r.Ends {
		ends[i] = r.Ends[i].VersionID
	}
	err := a.named(ctx, sh, f, sh.endVersionsSQL(), "end versions of", ends, func(i int) change.Value { return r.Ends[i].End })
	if err != nil {
		return err
	}
	if err := a.named(ctx, sh, f, sh.dropVersionsSQL(), "drop versions of", r.Drops, nil); err != nil {
		return err
	}
	return a.begins(ctx, sh, f, r.Begins)
}

// named pushes a statement about versions, each of which must be there.
func (a *applier) named(ctx context.Context, sh *shape, f form, sql, doing string, ids []scd.VersionID, end func(i int) change.Value) error {
	if sh.nestedKey() {
		return a.namedEach(ctx, sh, f, sql, doing, ids, end)
	}
	for from := 0; from < len(ids); {
		part := ids[from:]
		n := chunk(len(part), func(i int) int { return len(part[i].Key) + 2*len(part[i].Start.Data) })
		keys := make([]scd.Key, n)
		for i := range keys {
			keys[i] = part[i].Key
		}
		var params [][]byte
		for k, at := range sh.keys {
			p, err := appendKeyArray(nil, keys, k, &sh.columns[at], bool(f))
			if err != nil {
				return fmt.Errorf("%s: %w", sh.label(), err)
			}
			params = append(params, p)
		}
		lists := []func(i int) change.Value{func(i int) change.Value { return part[i].Start }}
		if end != nil {
			lists = append(lists, func(i int) change.Value { return end(from + i) })
		}
		for _, list := range lists {
			p, err := appendValueArray(nil, n, list, &sh.start, bool(f))
			if err != nil {
				return fmt.Errorf("%s: %w", sh.label(), err)
			}
			params = append(params, p)
		}
		if err := a.push(ctx, sql, params, f, job{doing: doing, sh: sh, rows: int64(n)}); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// namedEach is named for keys that cannot travel as arrays.
func (a *applier) namedEach(ctx context.Context, sh *shape, f form, sql, doing string, ids []scd.VersionID, end func(i int) change.Value) error {
	return a.eachID(ctx, sh, f, sql, job{doing: doing, sh: sh, rows: 1}, ids, end)
}

// eachID pushes a statement for each key, with its start where the shape has versions by
// it, and end.
func (a *applier) eachID(ctx context.Context, sh *shape, f form, sql string, j job, ids []scd.VersionID, end func(i int) change.Value) error {
	for i := range ids {
		var err error
		if a.keyValues, err = ids[i].Key.Values(a.keyValues, len(sh.keys)); err != nil {
			return torn(sh, err)
		}
		if sh.byVersion() {
			a.keyValues = append(a.keyValues, ids[i].Start)
		}
		if end != nil {
			a.keyValues = append(a.keyValues, end(i))
		}
		a.params = a.params[:0]
		for _, v := range a.keyValues {
			p, err := param(v, f)
			if err != nil {
				return err
			}
			a.params = append(a.params, p)
		}
		if err := a.push(ctx, sql, a.params, f, j); err != nil {
			return err
		}
	}
	return nil
}

// begins inserts versions: a few as statements, many by COPY.
func (a *applier) begins(ctx context.Context, sh *shape, f form, begins []scd.Version) error {
	size := 0
	for i := range begins {
		size += len(begins[i].Row)
	}
	if len(begins) <= fewRows && size <= fewBytes {
		for i := range begins {
			if err := a.parse(sh, begins[i].Row, false); err != nil {
				return err
			}
			if err := a.setParams(sh, f); err != nil {
				return err
			}
			for _, v := range []change.Value{begins[i].Start, begins[i].End} {
				p, err := param(v, f)
				if err != nil {
					return err
				}
				a.params = append(a.params, p)
			}
			if err := a.push(ctx, sh.sql(rowBegin), a.params, f, job{doing: "begin versions of", sh: sh, rows: 1}); err != nil {
				return err
			}
		}
		return nil
	}
	to := sh.copySQL(bool(f))
	if !sh.direct() {
		if err := a.wantStage(ctx, sh); err != nil {
			return err
		}
		sh.stage.dirty = true
		to = copyInto(sh.stage.name, each(len(sh.columns), ", ", stageColumn)+", st, en", bool(f))
	}
	i := 0
	err := a.copyIn(ctx, sh, "begin versions of", to, f, func() ([]change.Value, bool, error) {
		if i == len(begins) {
			return nil, false, nil
		}
		v := &begins[i]
		i++
		if err := a.parse(sh, v.Row, false); err != nil {
			return nil, false, err
		}
		a.values = append(a.values, v.Start, v.End)
		return a.values, true, nil
	})
	if err != nil || sh.direct() {
		return err
	}
	return a.push(ctx, sh.beginStagedSQL(), nil, asText, job{doing: "begin versions of", sh: sh, rows: int64(len(begins))})
}
