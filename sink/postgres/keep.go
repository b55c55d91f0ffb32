package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// kept is where a shape's old rows are kept.
type kept struct {
	since   keeping
	barrier bool   // nothing can be restored by it: nothing is kept
	rows    string // quoted name of the table
	records string // of that of records; "" until needed
	columns []string

	keys, whole, row string // statements
}

// keeping is the number under which old rows are kept.
type keeping struct {
	number int64 // 0: nothing is; keepUnknown: it has to be looked up
	turn   int64 // grows whenever tables of what is kept may have gone
}

const keepUnknown = -1

// keeps gives what is kept under now.
func (w *Writer) keeps() keeping {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keeping
}

func (w *Writer) keepUnder(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keeping = keeping{number, w.keeping.turn + 1}
}

const newestPointSQL = `SELECT coalesce(max(number), 0) FROM _tailrace.points WHERE pipeline = $1 AND state <> 'dropped'`

// toKeep says under which number the batch keeps, having looked it up if need be.
func (a *applier) toKeep(ctx context.Context) (keeping, error) {
	k := a.w.keeps()
	if k.number != keepUnknown {
		return k, nil
	}
	rows, err := a.s.query(ctx, newestPointSQL, a.w.cfg.Pipeline)
	if err != nil {
		return k, err
	}
	a.w.keepUnder(num(rows[0][0]))
	return a.w.keeps(), nil
}

// wantKept makes a target's tables of what is kept, where the batch needs them. It does so in
// a transaction of its own, unless one is open: empty ones do no harm.
func (a *applier) wantKept(ctx context.Context, sh *shape, t *sink.TargetRounds, under keeping) error {
	if sh.kept == nil || sh.kept.since != under {
		if err := a.findKept(ctx, sh, under); err != nil {
			return err
		}
	}
	k := sh.kept
	if k.barrier {
		return nil
	}
	name := a.w.qualified(sh.target.Name)
	rows := k.rows == "" && slices.ContainsFunc(t.Rounds, func(r scd.Round) bool { return !r.Empty() })
	rows = rows || k.rows == "" && t.Hidden != nil && !t.Hidden.TruncateBelow.IsZero()
	records := k.records == "" && t.Hidden != nil && (len(t.Hidden.Put)+len(t.Hidden.Remove) > 0 || t.Hidden.ForgetBefore != 0 || !t.Hidden.TruncateBelow.IsZero())
	if !rows && !records {
		return nil
	}
	var sql []string
	register := func(kind, table string, keys []string) {
		sql = append(sql, fmt.Sprintf(undoRowSQL, literal(a.w.cfg.Pipeline), under.number, literal(name.Schema), literal(name.Table), literal(kind), literal(table), literal(arrayText(keys)), "''"))
	}
	rowsName, recordsName := keptName(a.w.cfg.Pipeline, name, under.number, false), keptName(a.w.cfg.Pipeline, name, under.number, true)
	if rows {
		sql = append(sql, sh.createKeptSQL(keptTable(rowsName)))
		register("rows", rowsName, sh.identity())
	}
	if records {
		sql = append(sql, createKeptRecordsSQL(keptTable(recordsName)))
		register("records", recordsName, nil)
	}
	j := job{doing: "make a table for the old rows of", sh: sh, rows: -1}
	if err := a.makeKept(ctx, sh, j, sql); err != nil {
		return err
	}
	if rows {
		k.rows, k.columns = keptTable(rowsName), sh.keptColumns()
	}
	if records {
		k.records = keptTable(recordsName)
	}
	return nil
}

func (a *applier) makeKept(ctx context.Context, sh *shape, j job, sql []string) error {
	open := a.open
	if err := a.flush(ctx); err != nil {
		return err
	}
	run := func(sql string) error {
		err := a.s.exec(ctx, sql)
		if stateOf(err) == notPermitted {
			return fault.Refuse(grantBookSQL(a.w.conf.User), "user %s may not make tables in schema _tailrace, in which rewind points keep the old rows", a.w.conf.User)
		}
		if err != nil {
			return &jobError{j, err}
		}
		return nil
	}
	if !open {
		if err := run("BEGIN"); err != nil {
			return err
		}
		epoch, err := a.w.owned()
		if err == nil {
			err = a.w.fence(ctx, a.s, epoch)
		}
		if err != nil {
			return err
		}
	}
	for _, statement := range sql {
		if err := run(statement); err != nil {
			return err
		}
	}
	if !open {
		return run("COMMIT")
	}
	return nil
}

// findKept looks up what is kept of a target already.
func (a *applier) findKept(ctx context.Context, sh *shape, under keeping) error {
	if err := a.flush(ctx); err != nil {
		return err
	}
	name := a.w.qualified(sh.target.Name)
	rows, err := a.s.ask(ctx, "SELECT kind, name FROM _tailrace.undo WHERE pipeline = $1 AND target_schema = $2 AND target_table = $3 AND number = $4::bigint", a.w.cfg.Pipeline, name.Schema, name.Table, under.number)
	if err != nil {
		return &jobError{job{doing: "look for the old rows of", sh: sh}, err}
	}
	k := &kept{since: under}
	for _, r := range rows {
		switch str(r[0]) {
		case "barrier":
			k.barrier = true
		case "records":
			k.records = keptTable(str(r[1]))
		case "rows":
			there, err := a.w.readRelation(ctx, a.s, change.Name{Schema: "_tailrace", Table: str(r[1])})
			if err != nil {
				return &jobError{job{doing: "look at the old rows of", sh: sh}, err}
			}
			if there == nil {
				return fault.Corrupted("%s: table %s, which keeps its old rows, is not there", sh.label(), keptTable(str(r[1])))
			}
			k.rows = keptTable(str(r[1]))
			var lacks []string
			for _, c := range sh.keptColumns() {
				if _, ok := there.columns[c]; ok {
					k.columns = append(k.columns, c)
				} else {
					lacks = append(lacks, c)
				}
			}
			// A row without a key that comes is found again by all of its values; of others
			// a column that was not there at the point is not missed.
			if len(lacks) > 0 && len(sh.keys) == 0 {
				if err := a.widen(ctx, sh, k, lacks); err != nil {
					return err
				}
			}
		}
	}
	sh.kept = k
	return nil
}

func (a *applier) widen(ctx context.Context, sh *shape, k *kept, lacks []string) error {
	own, err := a.w.readRelation(ctx, a.s, a.w.qualified(sh.target.Name))
	if err != nil || own == nil {
		return &jobError{job{doing: "look at", sh: sh}, err}
	}
	sql := ""
	for _, c := range lacks {
		sql += fmt.Sprintf(", ADD COLUMN %s %s", quote(c), own.columns[c].typ)
	}
	k.columns = sh.keptColumns()
	return a.makeKept(ctx, sh, job{doing: "add columns to the old rows of", sh: sh, rows: -1}, []string{"ALTER TABLE " + k.rows + sql[1:]})
}

// keep keeps what a batch's part is about to change, as far as nothing is kept of it yet.
func (a *applier) keep(ctx context.Context, sh *shape, t *sink.TargetRounds, touched sink.Touched) error {
	k := sh.kept
	if k.barrier {
		return nil
	}
	j := job{doing: "keep the old rows of", sh: sh, rows: -1}
	if !sh.target.AppendOnly && k.rows != "" {
		if slices.ContainsFunc(t.Rounds, func(r scd.Round) bool { return r.Truncate }) {
			if err := a.keepAll(ctx, sh, j); err != nil {
				return err
			}
		}
		if err := a.keepKeys(ctx, sh, form(t.Binary), touched, j); err != nil {
			return err
		}
	}
	if t.Hidden == nil || k.records == "" {
		return nil
	}
	return a.keepRecords(ctx, sh, t.Hidden)
}

func (a *applier) keepAll(ctx context.Context, sh *shape, j job) error {
	if err := a.do(ctx, sh, j.doing, wholeTable); err != nil {
		return err
	}
	if sh.kept.whole == "" {
		sh.kept.whole = sh.keepAllSQL(sh.kept.rows, sh.kept.columns)
	}
	if err := a.do(ctx, sh, j.doing, sh.kept.whole); err != nil {
		return err
	}
	return a.do(ctx, sh, j.doing, byIndex)
}

func (a *applier) keepKeys(ctx context.Context, sh *shape, f form, t sink.Touched, j job) error {
	if sh.kept.keys == "" {
		sh.kept.keys = sh.keepKeysSQL(sh.kept.rows, sh.kept.columns)
	}
	return a.aboutKeys(ctx, sh, f, sh.kept.keys, t, j)
}

// keepAppended keeps what a round of a target without a key inserts, and before it is
// truncated what goes.
func (a *applier) keepAppended(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	k := sh.kept
	if k.barrier || r.Empty() { // of an empty round the table may not have been made
		return nil
	}
	j := job{doing: "keep the rows that come of", sh: sh, rows: -1}
	if r.Truncate {
		if err := a.keepAll(ctx, sh, j); err != nil {
			return err
		}
	}
	if few(r.Inserts) {
		if k.row == "" {
			k.row = sh.keepRowSQL(k.rows)
		}
		for _, row := range r.Inserts {
			if err := a.parse(sh, row, false); err != nil {
				return err
			}
			if err := a.setParams(sh, f); err != nil {
				return err
			}
			if err := a.push(ctx, k.row, a.params, f, j); err != nil {
				return err
			}
		}
		return nil
	}
	if !sh.direct() { // a COPY stream cannot leave a column out
		return a.keepStaged(ctx, sh, f, r, j)
	}
	return a.copyRows(ctx, sh, j.doing, copyInto(k.rows, sh.columnList(), bool(f)), f, r.Inserts)
}

// keepStaged is for a target with generated columns: its rows go by way of the stage.
func (a *applier) keepStaged(ctx context.Context, sh *shape, f form, r *scd.Round, j job) error {
	if err := a.wantStage(ctx, sh); err != nil {
		return err
	}
	if err := a.toStage(ctx, sh, f, false, rowsOf(groupInsert, r.Inserts, false)); err != nil {
		return err
	}
	return a.push(ctx, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s AS s", sh.kept.rows, sh.columnList(), sh.join(all, sentColumn), sh.stage.name), nil, asText, j)
}

// truncates reports whether a batch empties a target.
func truncates(b *sink.Batch) bool {
	return slices.ContainsFunc(b.Targets, func(t sink.TargetRounds) bool {
		return slices.ContainsFunc(t.Rounds, func(r scd.Round) bool { return r.Truncate })
	})
}

// keepShort keeps what a target's part of a batch on the short road is about to change.
func (a *applier) keepShort(ctx context.Context, sh *shape, t *sink.TargetRounds) error {
	switch {
	case !a.keeping:
		return nil
	case sh.target.AppendOnly:
		for r := range t.Rounds {
			if err := a.keepAppended(ctx, sh, form(t.Binary), &t.Rounds[r]); err != nil {
				return err
			}
		}
		return nil
	}
	touched, err := sink.TouchedBy(t)
	if err != nil {
		return err
	}
	return a.keep(ctx, sh, t, touched)
}

// keepRecords keeps what work is about to put, remove and forget.
func (a *applier) keepRecords(ctx context.Context, sh *shape, w *sequenced.Work) error {
	j := job{doing: "keep what is remembered of", sh: sh, rows: -1}
	kept := sh.kept.records
	of := func(condition string, params ...[]byte) error {
		if err := a.do(ctx, sh, j.doing, wholeTable); err != nil {
			return err
		}
		if err := a.push(ctx, keepRecordsOfSQL(kept, sh.records, condition), params, asBinary, j); err != nil {
			return err
		}
		return a.do(ctx, sh, j.doing, byIndex)
	}
	if p := w.TruncateBelow; !p.IsZero() {
		if err := of("(h.seq, h.at) <= ($1::bytea, $2::bytea)", some(p.Seq), some(p.At)); err != nil {
			return err
		}
	}
	if w.ForgetBefore != 0 {
		if err := of("h.tombstone AND h.time < $1::bigint", binary.BigEndian.AppendUint64(nil, uint64(w.ForgetBefore))); err != nil {
			return err
		}
	}
	ids := make([]sequenced.RecordID, 0, len(w.Put)+len(w.Remove))
	for i := range w.Put {
		ids = append(ids, w.Put[i].ID())
	}
	ids = append(ids, w.Remove...)
	compare := func(a, b sequenced.RecordID) int { return compareRecords(a.Key, a.Seq, a.At, b.Key, b.Seq, b.At) }
	slices.SortFunc(ids, compare)
	ids = slices.CompactFunc(ids, func(a, b sequenced.RecordID) bool { return compare(a, b) == 0 })
	return a.aboutRecords(ctx, keepRecordsSQL(kept, sh.records), ids, j)
}

// keepOrphans keeps the rows of keys that a truncate of what is remembered takes.
func (a *applier) keepOrphans(ctx context.Context, sh *shape, f form, keys []scd.Key) error {
	if sh.kept == nil || sh.kept.barrier {
		return nil
	}
	keys = slices.CompactFunc(slices.Clone(keys), func(a, b scd.Key) bool { return bytes.Equal(a, b) })
	return a.keepKeys(ctx, sh, f, sink.Touched{Keys: keys}, job{doing: "keep the old rows of", sh: sh, rows: -1})
}
