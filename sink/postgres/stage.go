package postgres

import (
	"context"
	"slices"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// stage is a temporary table for one target's rows on their way.
type stage struct {
	plain string
	name  string // quoted, with its schema
	dirty bool   // holds rows of this transaction
}

func newStage(number int) *stage {
	plain := "tailrace_stage_" + strconv.Itoa(number)
	return &stage{plain: plain, name: "pg_temp." + quote(plain)}
}

// wantStage gives the target an empty stage. At most stagesMax live at once; the one
// that was not used for longest goes.
func (a *applier) wantStage(ctx context.Context, sh *shape) error {
	if at := slices.Index(a.staged, sh); at >= 0 {
		a.staged = append(slices.Delete(a.staged, at, at+1), sh)
		if sh.stage.dirty {
			sh.stage.dirty = false
			return a.do(ctx, sh, "empty the stage of", "TRUNCATE "+sh.stage.name)
		}
		return nil
	}
	if len(a.staged) >= stagesMax {
		if err := a.dropStage(ctx, a.staged[0]); err != nil {
			return err
		}
	}
	a.stages++
	sh.stage = newStage(a.stages)
	sh.texts = [statementsMax]string{}
	a.staged = append(a.staged, sh)
	return a.do(ctx, sh, "make a stage for", sh.createStageSQL())
}

func (a *applier) dropStage(ctx context.Context, sh *shape) error {
	a.staged = slices.DeleteFunc(a.staged, func(s *shape) bool { return s == sh })
	name := sh.stage.name
	sh.stage = nil
	return a.do(ctx, sh, "drop the stage of", "DROP TABLE "+name)
}

// do sends what waits and then one statement without parameters.
func (a *applier) do(ctx context.Context, sh *shape, doing, sql string) error {
	if err := a.flush(ctx); err != nil {
		return err
	}
	if err := a.s.exec(ctx, sql); err != nil {
		return &jobError{job{doing: doing, sh: sh}, err}
	}
	return nil
}

// copyIn sends what waits and then rows by COPY.
func (a *applier) copyIn(ctx context.Context, sh *shape, doing, sql string, f form, next tuples) error {
	if err := a.flush(ctx); err != nil {
		return err
	}
	stream := newCopyStream(bool(f), next)
	_, err := a.s.conn.CopyFrom(ctx, stream, sql)
	if stream.err != nil && fault.KindOf(stream.err) == fault.Corrupt {
		return stream.err
	}
	if err != nil {
		return &jobError{job{doing: doing, sh: sh}, err}
	}
	return nil
}

// copyRows sends what waits and then complete rows by COPY.
func (a *applier) copyRows(ctx context.Context, sh *shape, doing, sql string, f form, rows []change.Row) error {
	i := 0
	return a.copyIn(ctx, sh, doing, sql, f, func() ([]change.Value, bool, error) {
		if i == len(rows) {
			return nil, false, nil
		}
		err := a.parse(sh, rows[i], false)
		i++
		return a.values, err == nil, err
	})
}

// section is a list of rows on its way into a stage.
type section struct {
	group int16
	n     int
	at    func(i int) (origin scd.Key, row change.Row)
	gaps  bool // rows may have absent columns
}

func rowsOf(group int16, rows []change.Row, gaps bool) section {
	return section{group, len(rows), func(i int) (scd.Key, change.Row) { return nil, rows[i] }, gaps}
}

// toStage copies sections into a type 1 target's stage. With gaps the stage also
// gets which columns are absent, and the origins.
func (a *applier) toStage(ctx context.Context, sh *shape, f form, gaps bool, sections ...section) error {
	at, i := 0, 0
	sc := &a.scratch
	sc.binary = bool(f)
	var fields []change.Value
	sh.stage.dirty = true
	return a.copyIn(ctx, sh, "copy rows for", copyInto(sh.stage.name, sh.stageList(gaps, false), bool(f)), f, func() ([]change.Value, bool, error) {
		for at < len(sections) && i == sections[at].n {
			at, i = at+1, 0
		}
		if at == len(sections) {
			return nil, false, nil
		}
		origin, row := sections[at].at(i)
		i++
		sc.reset()
		if err := a.parse(sh, row, sections[at].gaps); err != nil {
			return nil, false, err
		}
		fields = append(fields[:0], sc.int2(sections[at].group))
		var err error
		if fields, err = a.appendGaps(fields, sh, gaps, origin); err != nil {
			return nil, false, err
		}
		fields = append(fields, a.values...) // absent ones as NULL until filled
		return fields, true, nil
	})
}

// appendGaps appends the bits of a.values' absent columns and the origin's key.
func (a *applier) appendGaps(fields []change.Value, sh *shape, gaps bool, origin scd.Key) ([]change.Value, error) {
	if !gaps {
		return fields, nil
	}
	bits, err := a.scratch.absences(a.values, sh.columns)
	if err != nil {
		return nil, err
	}
	fields = append(fields, bits)
	if origin == nil {
		for range sh.keys {
			fields = append(fields, change.Value{State: change.Null})
		}
		return fields, nil
	}
	if a.keyValues, err = origin.Values(a.keyValues, len(sh.keys)); err != nil {
		return nil, torn(sh, err)
	}
	return append(fields, a.keyValues...), nil
}
