package postgres

import (
	"context"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/scd"
)

// round carries out one round on the long road.
func (a *applier) round(ctx context.Context, sh *shape, binaryForm bool, r *scd.Round, pieces bool) error {
	f := form(binaryForm)
	switch {
	case r.Empty():
		return nil
	case sh.target.Kind == scd.Type2 && sh.target.Sequenced:
		return a.versions(ctx, sh, f, r)
	case sh.target.Kind == scd.Type2:
		return a.round2(ctx, sh, f, r, pieces)
	case len(sh.uniques) > 0 && len(sh.keys) > 0:
		return a.guarded(ctx, sh, f, r)
	}
	return a.round1(ctx, sh, f, r)
}

// round1 carries out a type 1 round, in the order that scd.Round gives.
func (a *applier) round1(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	n := len(sh.columns)
	var gapped []scd.Move  // need their old rows
	var moved []change.Row // complete at the new key
	for _, m := range r.Moves {
		if m.Row.HasAbsent(n) {
			gapped = append(gapped, m)
		} else {
			moved = append(moved, m.Row)
		}
	}
	inserts := r.Inserts
	if len(moved) > 0 {
		inserts = append(moved, inserts...)
	}
	stageUpserts, stagePatches := !few(r.Upserts), !few(r.Patches)
	stageInserts := !few(inserts) && !sh.direct()

	if r.Truncate {
		if err := a.push(ctx, sh.truncateSQL(), nil, asText, job{doing: "truncate", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	if len(gapped) > 0 || stageUpserts || stagePatches || stageInserts {
		if err := a.wantStage(ctx, sh); err != nil {
			return err
		}
		var sections []section
		if len(gapped) > 0 {
			sections = append(sections, section{groupMove, len(gapped), func(i int) (scd.Key, change.Row) { return gapped[i].Old, gapped[i].Row }, true})
		}
		if stageUpserts {
			sections = append(sections, rowsOf(groupUpsert, r.Upserts, false))
		}
		if stagePatches {
			sections = append(sections, rowsOf(groupPatch, r.Patches, true))
		}
		if stageInserts {
			sections = append(sections, rowsOf(groupInsert, inserts, false))
		}
		if err := a.toStage(ctx, sh, f, len(gapped) > 0 || stagePatches, sections...); err != nil {
			return err
		}
	}
	if len(gapped) > 0 {
		if err := a.push(ctx, sh.sql(moveFill), nil, asText, job{doing: "move rows of", sh: sh, rows: int64(len(gapped))}); err != nil {
			return err
		}
	}
	if err := a.deletes(ctx, sh, f, r); err != nil {
		return err
	}
	if len(gapped) > 0 {
		if err := a.push(ctx, sh.sql(moveInsert), nil, asText, job{doing: "move rows of", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	switch {
	case stageInserts:
		if err := a.push(ctx, sh.sql(insertStaged), nil, asText, job{doing: "insert into", sh: sh, rows: -1}); err != nil {
			return err
		}
	case few(inserts):
		if err := a.pushRows(ctx, sh, f, inserts, "insert into"); err != nil {
			return err
		}
	default:
		if err := a.copyDirect(ctx, sh, f, inserts); err != nil {
			return err
		}
	}
	if stageUpserts {
		if err := a.push(ctx, sh.sql(upsertStaged), nil, asText, job{doing: "upsert into", sh: sh, rows: -1}); err != nil {
			return err
		}
	} else if err := a.pushRows(ctx, sh, f, r.Upserts, "upsert into"); err != nil {
		return err
	}
	if stagePatches {
		there := int64(len(r.Patches))
		if sh.restored {
			there = -1
		}
		return a.push(ctx, sh.sql(patchStaged), nil, asText, job{doing: "patch rows of", sh: sh, rows: there})
	}
	return a.pushPatches(ctx, sh, f, r.Patches)
}

// copyDirect copies rows that should not be there straight into the target, twice
// as fast as by way of a stage. If one is there after all, they go that way.
func (a *applier) copyDirect(ctx context.Context, sh *shape, f form, rows []change.Row) error {
	load := func(to string) error { return a.copyRows(ctx, sh, "insert into", to, f, rows) }
	if len(sh.keys) == 0 {
		return load(sh.copySQL(bool(f)))
	}
	if err := a.do(ctx, sh, "insert into", "SAVEPOINT tailrace_insert"); err != nil {
		return err
	}
	err := load(sh.copySQL(bool(f)))
	if err == nil {
		return a.do(ctx, sh, "insert into", "RELEASE SAVEPOINT tailrace_insert")
	}
	if stateOf(err) != uniqueViolation {
		return err
	}
	if err := a.do(ctx, sh, "insert into", "ROLLBACK TO SAVEPOINT tailrace_insert; RELEASE SAVEPOINT tailrace_insert"); err != nil {
		return err
	}
	if sh.stage == nil || !sh.stage.dirty { // a stage in use holds other groups of this round
		if err := a.wantStage(ctx, sh); err != nil {
			return err
		}
	}
	if err := a.toStage(ctx, sh, f, false, rowsOf(groupInsert, rows, false)); err != nil {
		return err
	}
	return a.push(ctx, sh.sql(insertStaged), nil, asText, job{doing: "insert into", sh: sh, rows: -1})
}

// guarded carries out a round on a target with a second unique index. Rows that
// exchange values under such an index meet each other half-way, in whatever order
// they are written. Then everything is taken back, and the round done again so
// that no two versions of its rows ever stand together: all keys it touches are
// deleted, and the complete rows inserted.
func (a *applier) guarded(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	if err := a.wantStage(ctx, sh); err != nil { // before the savepoint, so that it outlives it
		return err
	}
	if err := a.do(ctx, sh, "apply to", "SAVEPOINT tailrace_round"); err != nil {
		return err
	}
	err := a.round1(ctx, sh, f, r)
	if err == nil {
		err = a.flush(ctx)
	}
	if stateOf(err) == uniqueViolation {
		a.reset()
		if err := a.do(ctx, sh, "apply to", "ROLLBACK TO SAVEPOINT tailrace_round"); err != nil {
			return err
		}
		err = a.replaceAll(ctx, sh, f, r)
	}
	if err != nil {
		return err
	}
	return a.do(ctx, sh, "apply to", "RELEASE SAVEPOINT tailrace_round")
}

func (a *applier) replaceAll(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	sh.stage.dirty = false // emptied by the rollback
	if r.Truncate {
		if err := a.push(ctx, sh.truncateSQL(), nil, asText, job{doing: "truncate", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	moves := section{groupMove, len(r.Moves), func(i int) (scd.Key, change.Row) { return r.Moves[i].Old, r.Moves[i].Row }, true}
	patches := section{groupMove, len(r.Patches), func(i int) (scd.Key, change.Row) {
		key, _ := keyOf(sh, r.Patches[i]) // a torn row is found when it is parsed
		return key, r.Patches[i]
	}, true}
	if err := a.toStage(ctx, sh, f, true, moves, patches, rowsOf(groupMove, r.Inserts, false), rowsOf(groupMove, r.Upserts, false)); err != nil {
		return err
	}
	gapped := len(r.Patches)
	for i := range r.Moves {
		if r.Moves[i].Row.HasAbsent(len(sh.columns)) {
			gapped++
		}
	}
	for _, row := range r.Patches {
		if !row.HasAbsent(len(sh.columns)) {
			gapped--
		}
	}
	filled := int64(gapped)
	if sh.restored {
		filled = -1
		if err := a.push(ctx, sh.sql(moveUnfilled), nil, asText, job{doing: "apply to", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	if err := a.push(ctx, sh.sql(moveFill), nil, asText, job{doing: "apply to", sh: sh, rows: filled}); err != nil {
		return err
	}
	if err := a.deletes(ctx, sh, f, r); err != nil {
		return err
	}
	if err := a.push(ctx, sh.sql(stagedDelete), nil, asText, job{doing: "delete from", sh: sh, rows: -1}); err != nil {
		return err
	}
	if err := a.push(ctx, sh.sql(moveInsert), nil, asText, job{doing: "insert into", sh: sh, rows: -1}); err != nil {
		return err
	}
	return a.flush(ctx)
}

// keyOf picks a row's key out of it.
func keyOf(sh *shape, row change.Row) (scd.Key, error) {
	values, err := row.Values(nil, len(sh.columns))
	if err != nil {
		return nil, torn(sh, err)
	}
	key := scd.Key{}
	for _, k := range sh.keys {
		key = key.Append(values[k])
	}
	return key, nil
}

// deletes pushes the deletion of a round's Deletes and of its moves' old keys.
func (a *applier) deletes(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	keys := r.Deletes
	if len(r.Moves) > 0 {
		keys = make([]scd.Key, 0, len(r.Deletes)+len(r.Moves))
		keys = append(keys, r.Deletes...)
		for i := range r.Moves {
			keys = append(keys, r.Moves[i].Old)
		}
	}
	j := job{doing: "delete from", sh: sh, rows: -1}
	nested := slices.ContainsFunc(sh.keys, func(k int) bool { return sh.columns[k].nested })
	if len(keys) < 2 || nested {
		for _, key := range keys {
			var err error
			if a.keyValues, err = key.Values(a.keyValues, len(sh.keys)); err != nil {
				return torn(sh, err)
			}
			a.params = a.params[:0]
			for _, v := range a.keyValues {
				p, err := param(v, f)
				if err != nil {
					return err
				}
				a.params = append(a.params, p)
			}
			if err := a.push(ctx, sh.sql(rowDelete), a.params, f, j); err != nil {
				return err
			}
		}
		return nil
	}
	for len(keys) > 0 {
		n, bytes := 0, 0
		for n < len(keys) && n < keysMax && bytes < keyBytes {
			bytes += len(keys[n])
			n++
		}
		a.params, a.array = a.params[:0], a.array[:0]
		for k := range sh.keys {
			from := len(a.array)
			var err error
			if a.array, err = appendKeyArray(a.array, keys[:n], k, &sh.columns[sh.keys[k]], bool(f)); err != nil {
				return fmt.Errorf("%s: %w", sh.label(), err)
			}
			a.params = append(a.params, a.array[from:len(a.array):len(a.array)])
		}
		if err := a.push(ctx, sh.sql(keysDelete), a.params, f, j); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}
