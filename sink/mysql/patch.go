package mysql

import (
	"context"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// patchTogether rows that have the same columns are written in a list: two statements for
// all of them, where each by itself would be a statement that the server parses and plans.
const patchTogether = 10

// patch updates rows that have absent columns. Each must meet a row, unless the target was
// restored.
func (a *applier) patch(ctx context.Context, e *encoder, list []change.Row, restored bool) error {
	if restored || len(list) < patchTogether {
		return a.patchSingly(ctx, e, list, restored)
	}
	groups := map[string]*[]change.Row{}
	var singly []change.Row
	var has []byte
	for _, row := range list {
		if err := e.parse(row, true); err != nil {
			return err
		}
		has = has[:0]
		together := true
		for i := range e.values {
			c := &e.sh.columns[i]
			if e.values[i].State != change.Absent {
				has = append(has, '1')
				continue
			}
			if c.key {
				return fault.Corrupted("%s: key column %s of a row was not sent", e.sh.label(), c.plain)
			}
			has = append(has, '0')
			together = together && !c.required
		}
		if !together {
			singly = append(singly, row)
			continue
		}
		group := groups[string(has)]
		if group == nil {
			group = new([]change.Row)
			groups[string(has)] = group
		}
		*group = append(*group, row)
	}
	for has, rows := range groups {
		if len(*rows) < patchTogether {
			singly = append(singly, *rows...)
		} else if err := a.patchAlike(ctx, e, has, *rows); err != nil {
			return err
		}
	}
	return a.patchSingly(ctx, e, singly, false)
}

// patchAlike updates rows that have the same columns, those with a 1 in has. It locks
// them first, and counts them: an INSERT that meets its row in each case is an UPDATE of
// the columns that it names.
func (a *applier) patchAlike(ctx context.Context, e *encoder, has string, rows []change.Row) error {
	sh := e.sh
	const doing = "patch rows of"
	head, tail := sh.lockSQL()
	locked := a.list(head, tail, sh, doing)
	locked.counts = true
	for _, row := range rows {
		if err := e.parse(row, true); err != nil {
			return err
		}
		var err error
		locked.open()
		if locked.buf, err = e.constants(locked.buf, isKey, e.values); err != nil {
			return err
		}
		if err := locked.end(ctx); err != nil {
			return err
		}
	}
	if err := locked.flush(ctx); err != nil {
		return err
	}
	if locked.met != int64(len(rows)) {
		return fault.Corrupted("%s %s: a row that the source has changed is not there", doing, sh.label())
	}
	present := func(c *column) bool { return has[c.at] == '1' }
	head, tail = sh.patchSQL(present)
	l := a.list(head, tail, sh, doing)
	for _, row := range rows {
		if err := e.parse(row, true); err != nil {
			return err
		}
		var err error
		l.open()
		if l.buf, err = e.constants(l.buf, present, e.values); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// patchStatements are sent at once: each is parsed by itself, some 20 µs.
const patchStatements = 200

// patchSingly updates each row in a statement with the columns that it has. Each must meet
// a row, unless the target was restored.
func (a *applier) patchSingly(ctx context.Context, e *encoder, list []change.Row, restored bool) error {
	sh := e.sh
	const doing = "patch rows of"
	var sql []byte
	n := 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		met, err := a.s.execEach(ctx, text(sql))
		if err != nil {
			return &jobError{doing, sh, err}
		}
		for _, m := range met {
			if m != 1 && !restored {
				return fault.Corrupted("%s %s: a row that the source has changed is not there", doing, sh.label())
			}
		}
		sql, n = sql[:0], 0
		return nil
	}
	for _, row := range list {
		if err := e.parse(row, true); err != nil {
			return err
		}
		if n > 0 {
			sql = append(sql, ';')
		}
		begun := len(sql)
		var err error
		if sql, err = e.appendPatch(sql); err != nil {
			return err
		}
		if len(sql)-begun >= a.s.server.packet-1024 {
			return &jobError{doing, sh, tooLarge}
		}
		n++
		if n >= patchStatements || len(sql) >= statementBytes {
			if len(sql) >= a.s.server.packet-1024 { // the last one by itself
				last := slices.Clone(sql[begun:])
				sql, n = sql[:begun-1], n-1
				if err := flush(); err != nil {
					return err
				}
				sql, n = append(sql, last...), 1
			}
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// appendPatch appends an UPDATE of the row that was parsed.
func (e *encoder) appendPatch(dst []byte) ([]byte, error) {
	var err error
	dst = append(append(dst, "UPDATE "...), e.sh.name...)
	dst = append(dst, " SET "...)
	first := true
	for i := range e.sh.columns {
		c := &e.sh.columns[i]
		if c.key && e.values[i].State == change.Absent {
			return dst, fault.Corrupted("%s: key column %s of a row was not sent", e.sh.label(), c.plain)
		}
		if c.key || c.generated || e.values[i].State == change.Absent {
			continue
		}
		if !first {
			dst = append(dst, ", "...)
		}
		first = false
		dst = append(append(dst, c.name...), " = "...)
		if dst, err = e.constant(dst, c, e.values[i]); err != nil {
			return dst, err
		}
	}
	if first { // it must still be there
		name := e.sh.columns[e.sh.keys[0]].name
		dst = append(append(append(dst, name...), " = "...), name...)
	}
	for n, k := range e.sh.keys {
		dst = append(dst, []string{" WHERE ", " AND "}[min(n, 1)]...)
		dst = append(append(dst, e.sh.columns[k].name...), " = "...)
		if dst, err = e.constant(dst, &e.sh.columns[k], e.values[k]); err != nil {
			return dst, err
		}
	}
	return dst, nil
}
