package postgres

import (
	"context"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// pushSteps pushes steps, each the only one of its key and complete, as
// statements.
func (a *applier) pushSteps(ctx context.Context, sh *shape, f form, steps []scd.Step) error {
	a.scratch.binary = bool(f)
	for i := range steps {
		st := &steps[i]
		if err := a.stepValues(sh, st, false); err != nil {
			return err
		}
		a.scratch.reset()
		a.params = append(a.params[:0], a.scratch.bool(st.Row == nil).Data, a.scratch.instant(st.Lo).Data)
		for _, v := range a.values {
			p, err := param(v, f)
			if err != nil {
				return err
			}
			a.params = append(a.params, p)
		}
		if err := a.push(ctx, sh.sql(rowStep), a.params, f, job{doing: "apply versions to", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	return nil
}

// stepValues puts a step's row into a.values; of a close the key alone.
func (a *applier) stepValues(sh *shape, st *scd.Step, gaps bool) error {
	if st.Row != nil {
		return a.parse(sh, st.Row, gaps)
	}
	var err error
	if a.keyValues, err = st.Key.Values(a.keyValues, len(sh.keys)); err != nil {
		return torn(sh, err)
	}
	a.values = a.values[:0]
	for range sh.columns {
		a.values = append(a.values, change.Value{State: change.Null})
	}
	for i, k := range sh.keys {
		a.values[k] = a.keyValues[i]
	}
	return nil
}

// round2 carries out a type 2 round. In a source transaction that comes in pieces
// what an earlier piece did to the same keys is taken back first: absent columns
// are filled while it still stands, then the keys are put back to what they were
// before the transaction, and the steps are judged as if they were its only ones.
func (a *applier) round2(ctx context.Context, sh *shape, f form, r *scd.Round, pieces bool) error {
	if !pieces && len(r.Steps) <= fewRows && asStatements(sh, r) && sizeOf(r) <= fewBytes {
		return a.pushSteps(ctx, sh, f, r.Steps)
	}
	if err := a.wantStage(ctx, sh); err != nil {
		return err
	}
	several := slices.ContainsFunc(r.Steps, func(s scd.Step) bool { return s.N > 1 })
	if len(r.Steps) > 0 {
		gapped := 0
		for i := range r.Steps {
			if r.Steps[i].Row != nil && r.Steps[i].Row.HasAbsent(len(sh.columns)) {
				gapped++
			}
		}
		if err := a.stepsToStage(ctx, sh, f, r.Steps, gapped > 0, several); err != nil {
			return err
		}
		if gapped > 0 {
			if err := a.push(ctx, sh.sql(stepFill), nil, asText, job{doing: "fill versions of", sh: sh, rows: int64(gapped)}); err != nil {
				return err
			}
		}
	}
	if pieces {
		if err := a.recompose(ctx, sh, r); err != nil {
			return err
		}
	}
	if r.Truncate {
		if err := a.truncate2(ctx, sh, r); err != nil {
			return err
		}
	}
	if len(r.Steps) == 0 {
		return nil
	}
	which := stepStaged
	if several {
		which = stepsStaged
	}
	return a.push(ctx, sh.sql(which), nil, asText, job{doing: "apply versions to", sh: sh, rows: -1})
}

// recompose puts the round's keys back to what they were before the source
// transaction, and records the state of those that it touches for the first time.
// A truncate touches all.
func (a *applier) recompose(ctx context.Context, sh *shape, r *scd.Round) error {
	j := job{doing: "compose the pieces of a transaction in", sh: sh, rows: -1}
	if sh.record == "" {
		sh.record = fmt.Sprintf("pg_temp.tailrace_before_%d", len(a.recorded))
		a.recorded = append(a.recorded, sh)
		if err := a.do(ctx, sh, j.doing, sh.createRecordSQL()); err != nil {
			return err
		}
	} else {
		forget, restore := sh.undoSQL(r.Truncate)
		for _, sql := range []string{forget, restore} {
			if err := a.do(ctx, sh, j.doing, sql); err != nil {
				return err
			}
		}
	}
	if len(r.Steps) > 0 {
		if err := a.do(ctx, sh, j.doing, sh.rememberSQL()); err != nil {
			return err
		}
	}
	if r.Truncate {
		return a.do(ctx, sh, j.doing, sh.rememberOpenSQL())
	}
	return nil
}

// truncate2 ends the open versions of all keys without a step. It is the one
// statement of a batch that must read the whole target, so that the planner may
// do as it likes.
func (a *applier) truncate2(ctx context.Context, sh *shape, r *scd.Round) error {
	if err := a.do(ctx, sh, "truncate", wholeTable); err != nil {
		return err
	}
	at := [][]byte{appendInstant(nil, r.TruncateAt)}
	if err := a.push(ctx, sh.truncateStepsSQL(len(r.Steps) > 0), at, asText, job{doing: "truncate", sh: sh, rows: -1}); err != nil {
		return err
	}
	return a.do(ctx, sh, "truncate", byIndex)
}

// stepsToStage copies steps into the stage.
func (a *applier) stepsToStage(ctx context.Context, sh *shape, f form, steps []scd.Step, gaps, several bool) error {
	sc := &a.scratch
	sc.binary = bool(f)
	var fields []change.Value
	i, number := 0, int32(0)
	sh.stage.dirty = true
	return a.copyIn(ctx, sh, "copy versions for", copyInto(sh.stage.name, sh.stageList(gaps, several), bool(f)), f, func() ([]change.Value, bool, error) {
		if i == len(steps) {
			return nil, false, nil
		}
		st := &steps[i]
		i++
		sc.reset()
		if err := a.stepValues(sh, st, gaps); err != nil {
			return nil, false, err
		}
		fields = fields[:0]
		if several {
			if st.N == 1 {
				number++
			}
			fields = append(fields, sc.int4(number), sc.int4(int32(st.N)))
		}
		fields = append(fields, sc.bool(st.Row == nil), sc.instant(st.Lo))
		if several {
			null := change.Value{State: change.Null}
			if i < len(steps) && steps[i].N != 1 {
				if steps[i].N != st.N+1 || string(steps[i].Key) != string(st.Key) {
					return nil, false, fault.Corrupted("%s: the steps of a key are out of order", sh.label())
				}
				fields = append(fields, sc.instant(st.LoVoid), sc.instant(steps[i].Lo), sc.instant(steps[i].LoVoid))
			} else {
				fields = append(fields, sc.instant(st.LoVoid), null, null)
			}
		}
		origin := st.Origin
		if origin == nil {
			origin = st.Key
		}
		var err error
		if fields, err = a.appendGaps(fields, sh, gaps, origin); err != nil {
			return nil, false, err
		}
		fields = append(fields, a.values...)
		return fields, true, nil
	})
}
