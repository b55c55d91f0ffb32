package mysql

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// What was there before (sink.Rewinds) is kept in tables of _tailrace, one for each target
// and point, and one more for what is remembered of it. The registry undo names them, with
// their columns, and holds the barriers: rows without a table.
//
// A batch needs its table before its transaction begins, because to make one commits. So
// the registry's row comes first, the table next, both on the small session, and what is
// kept comes with the batch. A table that stays empty says that nothing was touched, which
// is true; the next batch finds it in the registry. What goes, goes the other way round:
// its row is marked as dropped in the transaction that decides it, then the table is
// dropped, then the row. Whoever comes next (a rewind, DropPoints, Teardown) finishes that.
//
// A name is never used twice, so that a table that is still to be dropped meets no other.
//
// Of a target that a barrier stands before, nothing is kept until the next point: no
// earlier one can restore it.

// What a row of the registry is about.
const (
	heldRow     = "row"     // type 1: the row of a key, or that there was none
	heldNewest  = "newest"  // ordered history: the newest version of a key, or that there was none
	heldVersion = "version" // sequenced history: a version by key and start, or that there was none
	heldRows    = "rows"    // without a key: the rows that came and went
	heldRecords = "records" // what is remembered: a record by its identity, or that there was none
	heldBarrier = "barrier" // nothing: reason says why
)

// held is a row of the registry.
type held struct {
	id     int64
	target change.Name
	number int64 // of the point
	holds  string
	layout heldLayout
	reason string
	place  string // quoted name of a table that is not in the registry, else ""
}

// heldLayout is the columns of a table of what is kept: k0, k1, ... and c0, c1, ... with
// the names and types that the target's had when it was made; Start is the type of start
// and end.
type heldLayout struct {
	Keys    []heldColumn `json:"keys,omitempty"`
	Columns []heldColumn `json:"columns,omitempty"`
	Start   string       `json:"start,omitempty"`
}

type heldColumn struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// heldName names a table of what is kept, for a person too.
func heldName(id int64, table string) string {
	name := []rune("undo_" + strconv.FormatInt(id, 10) + "_" + table)
	return strings.TrimRight(string(name[:min(len(name), nameMax)]), " ")
}

func (k *held) table() string {
	if k.place != "" {
		return k.place
	}
	return "_tailrace." + quote(heldName(k.id, k.target.Table))
}

// holds says how a target's rows are kept.
func (sh *shape) holds() string {
	switch {
	case len(sh.keys) == 0:
		return heldRows
	case sh.target.Kind != scd.Type2:
		return heldRow
	case sh.target.Sequenced:
		return heldVersion
	}
	return heldNewest
}

// heldLayout is the layout that a table of what is kept gets today.
func (sh *shape) heldLayout() heldLayout {
	var l heldLayout
	for _, k := range sh.keys {
		l.Keys = append(l.Keys, heldColumn{sh.columns[k].plain, sh.columns[k].definition()})
	}
	for i := range sh.columns {
		if c := &sh.columns[i]; !c.key && !c.generated {
			l.Columns = append(l.Columns, heldColumn{c.plain, c.definition()})
		}
	}
	if sh.target.Kind == scd.Type2 {
		l.Start = sh.start.definition()
	}
	return l
}

// fits reports whether what is kept is of the target as it is declared today: of its kind,
// and by its key.
func (k *held) fits(sh *shape) bool {
	if k.holds == heldRecords {
		return sh.target.Sequenced
	}
	if k.holds != sh.holds() || len(k.layout.Keys) != len(sh.keys) {
		return false
	}
	for _, n := range sh.keys {
		if k.key(&sh.columns[n]) == "" {
			return false
		}
	}
	return true
}

// alike reports whether it has all columns of a target, with their types.
func (k *held) alike(sh *shape) bool {
	for _, c := range sh.heldLayout().Columns {
		if !slices.ContainsFunc(k.layout.Columns, func(h heldColumn) bool { return strings.EqualFold(h.Name, c.Name) && h.Type == c.Type }) {
			return false
		}
	}
	return true
}

func find(list []heldColumn, letter string, c *column) string {
	i := slices.IndexFunc(list, func(h heldColumn) bool { return strings.EqualFold(h.Name, c.plain) })
	if i < 0 {
		return ""
	}
	return letter + strconv.Itoa(i)
}

// key and column are the names that columns have in a table of what is kept; "" where it
// does not have them.
func (k *held) key(c *column) string    { return find(k.layout.Keys, "k", c) }
func (k *held) column(c *column) string { return find(k.layout.Columns, "c", c) }

const (
	undoSQL = `SELECT id, target_schema, target_table, number, holds, layout, reason FROM _tailrace.undo WHERE pipeline = ? AND number >= ? AND dropped = 0`
	// The fence of what is made beside a batch: no row without our epoch.
	addUndoSQL = `INSERT INTO _tailrace.undo (pipeline, target_schema, target_table, number, holds, layout, reason) SELECT pipeline, ?, ?, ?, ?, ?, '' FROM _tailrace.marks WHERE pipeline = ? AND epoch = ?`
	barrierSQL = `INSERT INTO _tailrace.undo (pipeline, target_schema, target_table, number, holds, layout, reason)
SELECT p.pipeline, ?, ?, p.number, 'barrier', '{}', ? FROM (SELECT pipeline, MAX(number) AS number FROM _tailrace.points WHERE pipeline = ? AND state <> 'dropped' GROUP BY pipeline) AS p
WHERE NOT EXISTS (SELECT 1 FROM _tailrace.undo AS u WHERE u.pipeline = p.pipeline AND u.target_schema = ? AND u.target_table = ? AND u.number = p.number AND u.holds = 'barrier' AND u.dropped = 0)`
	layoutSQL = `UPDATE _tailrace.undo SET layout = ? WHERE id = ?`
)

// readUndo reads the registry of a pipeline from a number on, oldest first; more is a
// further condition.
func readUndo(ctx context.Context, s *session, pipeline string, from int64, more string) (list []*held, err error) {
	rows, err := s.query(ctx, bind(undoSQL, pipeline, from)+more+" ORDER BY target_schema, target_table, number, id")
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		k := &held{id: num(r[0]), target: change.Name{Schema: str(r[1]), Table: str(r[2])}, number: num(r[3]), holds: str(r[4]), reason: str(r[6])}
		if err := json.Unmarshal([]byte(str(r[5])), &k.layout); err != nil {
			return nil, fault.Corrupted("the registry of what is kept of table %s cannot be read", k.target)
		}
		list = append(list, k)
	}
	return list, nil
}

// undo is what a Writer knows of its points.
type undo struct {
	newest int64 // the number under which is kept; 0: there is no point
	turn   int64 // grows where what shapes know of their tables may be wrong
}

// keepsUnder is what the Writer knows; it is known from Own on.
func (w *Writer) keepsUnder() undo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.undo
}

func (w *Writer) setUndo(newest int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.undo.newest = newest
	w.undo.turn++
}

// barrier notes, in the transaction that is open on s and has met the fence, that a target
// is filled or emptied otherwise than by batches.
func (w *Writer) barrier(ctx context.Context, s *session, target change.Name, reason string) error {
	known := w.keepsUnder()
	if known.newest == 0 {
		return nil
	}
	w.setUndo(known.newest)
	_, err := s.exec(ctx, bind(barrierSQL, target.Schema, target.Table, reason, w.cfg.Pipeline, target.Schema, target.Table))
	return err
}

const (
	filledAnew  = "its rows were copied anew after that"
	emptiedAnew = "it was emptied after that, to be filled anew"
	seededAnew  = "what is remembered of its events was made anew after that"
	madeAnew    = "what is remembered of its events was given up after that"
)

// keeps finds or makes the tables in which a batch keeps what it touches of a target.
func (a *applier) keeps(ctx context.Context, sh *shape) error {
	known := a.w.keepsUnder()
	if sh.undo == known {
		return nil
	}
	sh.undo, sh.held, sh.heldRecords, sh.kept = known, nil, nil, nil
	if known.newest == 0 {
		return nil
	}
	epoch, err := a.w.owned()
	if err != nil {
		return err
	}
	return a.w.onSide(ctx, "keep what was there before of "+sh.label(), func(s *session) error {
		s.patience = amendPatience
		defer func() { s.patience = sidePatience }()
		return a.w.findHeld(ctx, s, sh, epoch, known.newest)
	})
}

func (w *Writer) findHeld(ctx context.Context, s *session, sh *shape, epoch, number int64) error {
	name := sh.target.Name
	list, err := readUndo(ctx, s, w.cfg.Pipeline, number, bind(" AND target_schema = ? AND target_table = ?", name.Schema, name.Table))
	if err != nil {
		return err
	}
	var rows, records *held
	for _, k := range list {
		switch {
		case k.holds == heldBarrier || !k.fits(sh):
			return nil
		case k.holds == heldRecords:
			records = k
		default:
			rows = k
		}
	}
	// Rows without a key are found again by all of their columns. Those of several tables
	// are added up, so a table of another layout is no more than one of another point.
	if rows != nil && rows.holds == heldRows && !rows.alike(sh) {
		rows = nil
	}
	if rows == nil {
		rows = &held{target: name, number: number, holds: sh.holds(), layout: sh.heldLayout()}
	}
	if err := w.makeHeld(ctx, s, epoch, rows); err != nil {
		return err
	}
	if same, err := w.adjust(ctx, s, sh, rows); err != nil || !same {
		return err
	}
	if sh.target.Sequenced {
		if records == nil {
			records = &held{target: name, number: number, holds: heldRecords}
		}
		if err := w.makeHeld(ctx, s, epoch, records); err != nil {
			return err
		}
	}
	sh.held, sh.heldRecords = rows, records
	return nil
}

// makeHeld makes a table of what is kept, after its row in the registry.
func (w *Writer) makeHeld(ctx context.Context, s *session, epoch int64, k *held) error {
	if k.id == 0 {
		layout, err := json.Marshal(k.layout)
		if err != nil {
			return err
		}
		k.id, err = s.insertID(ctx, bind(addUndoSQL, k.target.Schema, k.target.Table, k.number, k.holds, string(layout), w.cfg.Pipeline, epoch))
		if err != nil {
			return err
		}
		if k.id == 0 {
			return fault.ErrFenced
		}
		fault.KillPoint("undo registered")
	}
	_, err := s.exec(ctx, k.createSQL("TABLE IF NOT EXISTS")+" ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE "+s.server.collation)
	return err
}

// adjust gives the columns of a table that was made earlier the types that the target's
// have today: somebody has widened them. Where that cannot be, nothing more is kept of the
// target until the next point.
func (w *Writer) adjust(ctx context.Context, s *session, sh *shape, k *held) (bool, error) {
	var changes []string
	for i := range sh.columns {
		c := &sh.columns[i]
		list, name, null := k.layout.Columns, k.column(c), "NULL"
		if c.key {
			list, name, null = k.layout.Keys, k.key(c), "NOT NULL"
		}
		if name == "" {
			continue
		}
		n, err := strconv.Atoi(name[1:])
		if err != nil {
			return false, err
		}
		if list[n].Type != c.definition() {
			list[n].Type = c.definition()
			changes = append(changes, fmt.Sprintf("MODIFY %s %s %s", name, c.definition(), null))
		}
	}
	if len(changes) == 0 {
		return true, nil
	}
	_, err := s.exec(ctx, "ALTER TABLE "+k.table()+" "+strings.Join(changes, ", "))
	if err != nil && (lostConnection(err) || fault.KindOf(w.explain(err, "", nil)) == fault.Transient) {
		return false, err
	}
	if err != nil {
		return false, w.barrier(ctx, s, sh.target.Name, "columns of it have other types since then, which do not hold what was there before")
	}
	layout, err := json.Marshal(k.layout)
	if err == nil {
		_, err = s.exec(ctx, bind(layoutSQL, string(layout), k.id))
	}
	return true, err
}

// keep keeps what a batch's part is about to touch and an earlier one has not.
func (a *applier) keep(ctx context.Context, sh *shape, touched *sink.Touched) error {
	const doing = "keep what was there before of"
	k := sh.held
	own := *touched
	touched = &own
	if touched.Whole && k.holds != heldRows {
		if _, err := a.on(ctx, sh, sh.keepAllSQL(k), doing); err != nil {
			return err
		}
	}
	if len(touched.Keys) == 0 {
		return nil
	}
	a.unknownYet(sh, touched)
	if len(touched.Keys) == 0 {
		return nil
	}
	if k.holds == heldNewest {
		head, tail := sh.keepNewestSQL(k)
		return a.byKeys(ctx, sh, doing, head, tail, len(touched.Keys), func(i int) (scd.Key, error) { return touched.Keys[i], nil }, nil)
	}
	e := &encoder{sh: sh}
	put := func(head, tail, end string) (met int64, err error) {
		l := a.list(head, tail, sh, doing)
		for i, key := range touched.Keys {
			l.open()
			if l.buf, err = e.keyConstants(l.buf, key); err != nil {
				return 0, err
			}
			if k.holds == heldVersion {
				if l.buf, err = e.constant(append(l.buf, ','), &sh.start, touched.Starts[i]); err != nil {
					return 0, err
				}
			}
			l.buf = append(l.buf, end...)
			if err = l.end(ctx); err != nil {
				return 0, err
			}
		}
		err = l.flush(ctx)
		return l.met, err
	}
	head, tail := sh.keepSQL(k)
	met, err := put(head, tail, "")
	if err != nil || met == int64(len(touched.Keys)) { // each was there
		return err
	}
	head, tail = sh.keepNoneSQL(k)
	_, err = put(head, tail, ",0")
	return err
}

// keptKnown is how many keys at most are known to be kept, of all targets together: some
// 10 MiB. More are forgotten, and asked for again.
const keptKnown = 1 << 18

// keptKey stands for a key, of a history with a start: 128 bits, so that two are never
// taken for one.
type keptKey [2]uint64

// unknownYet leaves those of touched that are not known to be kept, and makes them known:
// a batch that fails ends the applier, and with it what it knows.
func (a *applier) unknownYet(sh *shape, touched *sink.Touched) {
	if sh.kept == nil {
		sh.kept = map[keptKey]struct{}{}
	}
	if a.seeds[0] == (maphash.Seed{}) {
		a.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	}
	var keys []scd.Key
	var starts []change.Value
	for i, key := range touched.Keys {
		var id keptKey
		for n, seed := range a.seeds {
			id[n] = maphash.Bytes(seed, key)
			if touched.Starts != nil {
				id[n] ^= maphash.Bytes(a.seeds[1-n], touched.Starts[i].Data) * 0x9e3779b97f4a7c15
			}
		}
		if _, known := sh.kept[id]; known {
			continue
		}
		if a.known++; a.known > keptKnown {
			a.known = 1
			for _, other := range a.shapes {
				clear(other.kept)
			}
		}
		sh.kept[id] = struct{}{}
		keys = append(keys, key)
		if touched.Starts != nil {
			starts = append(starts, touched.Starts[i])
		}
	}
	touched.Keys, touched.Starts = keys, starts
}

// keepAppended keeps what a round of a target without a key does: the rows that it
// truncates, before it does, and those that it inserts.
func (a *applier) keepAppended(ctx context.Context, sh *shape, r *scd.Round) error {
	const doing = "keep what was there before of"
	k := sh.held
	if r.Truncate {
		if _, err := a.on(ctx, sh, sh.keepAllSQL(k), doing); err != nil {
			return err
		}
	}
	e := &encoder{sh: sh}
	if a.s.server.local && len(r.Inserts) >= loadRows {
		i := 0
		sent, met, err := load(ctx, a.s, sh, doing, func(reader string) string { return loadSQL(reader, "INTO TABLE "+k.table(), sh.keptFields(k)) }, func(dst []byte) ([]byte, bool, error) {
			if i == len(r.Inserts) {
				return dst, false, nil
			}
			err := e.parse(r.Inserts[i], false)
			i++
			if err == nil {
				dst, err = e.line(dst, e.values)
			}
			return dst, err == nil, err
		})
		if err == nil && sent != met {
			err = fault.Corrupted("%s %s: of %d rows %d have arrived", doing, sh.label(), sent, met)
		}
		return err
	}
	known := func(c *column) bool { return k.column(c) != "" }
	l := a.list(fmt.Sprintf("INSERT INTO %s (%s) VALUES ", k.table(), sh.list(known, k.column)), "", sh, doing)
	for _, row := range r.Inserts {
		if err := e.parse(row, false); err != nil {
			return err
		}
		l.open()
		var err error
		if l.buf, err = e.constants(l.buf, known, e.values); err != nil {
			return err
		}
		if err := l.end(ctx); err != nil {
			return err
		}
	}
	return l.flush(ctx)
}

// keepRecords keeps the records that a batch puts, removes or forgets by a truncate, as
// they are before it.
func (a *applier) keepRecords(ctx context.Context, sh *shape, w *sequenced.Work) error {
	const doing = "keep what was remembered of"
	k := sh.heldRecords
	if !w.TruncateBelow.IsZero() {
		if _, err := a.on(ctx, sh, sh.keepRecordsWhereSQL(k, notAbove(w.TruncateBelow)), doing); err != nil {
			return err
		}
	}
	ids := make([]sequenced.RecordID, 0, len(w.Put)+len(w.Remove))
	ids = append(ids, w.Remove...)
	for i := range w.Put {
		ids = append(ids, w.Put[i].ID())
	}
	head, tail := sh.keepRecordsSQL(k)
	var sql []byte
	for part := range slices.Chunk(ids, lookupsAtOnce) {
		sql = append(sql[:0], head...)
		for i := range part {
			if i > 0 {
				sql = append(sql, " UNION ALL "...)
			}
			sql = appendOctets(append(sql, "SELECT "...), part[i].Key)
			if i == 0 {
				sql = append(sql, " AS k"...)
			}
			sql = appendOctets(append(sql, ", "...), part[i].Seq)
			if i == 0 {
				sql = append(sql, " AS s"...)
			}
			sql = appendOctets(append(sql, ", "...), part[i].At)
			if i == 0 {
				sql = append(sql, " AS a"...)
			}
		}
		if _, err := a.on(ctx, sh, text(append(sql, tail...)), doing); err != nil {
			return err
		}
	}
	return nil
}

// heldTables are the tables of what is kept that are there.
func heldTables(ctx context.Context, s *session) (map[string]bool, error) {
	rows, err := s.query(ctx, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '_tailrace' AND LEFT(TABLE_NAME, 5) = 'undo_'")
	there := map[string]bool{}
	for _, r := range rows {
		there[str(r[0])] = true
	}
	return there, err
}

// droppedAtOnce tables go in one statement: more make it no faster, and all of them are
// locked for as long as it takes.
const droppedAtOnce = 20

// dropHeld drops the tables that are marked as dropped, and then their rows.
func (w *Writer) dropHeld(ctx context.Context, s *session) error {
	rows, err := s.query(ctx, bind("SELECT id, target_table, holds FROM _tailrace.undo WHERE pipeline = ? AND dropped = 1", w.cfg.Pipeline))
	if err != nil {
		return err
	}
	for part := range slices.Chunk(rows, droppedAtOnce) {
		var tables, ids []string
		for _, r := range part {
			ids = append(ids, *r[0])
			if str(r[2]) != heldBarrier {
				tables = append(tables, "_tailrace."+quote(heldName(num(r[0]), str(r[1]))))
			}
		}
		if len(tables) > 0 {
			if _, err := s.exec(ctx, "DROP TABLE IF EXISTS "+strings.Join(tables, ", ")); err != nil {
				return err
			}
		}
		if _, err := s.exec(ctx, "DELETE FROM _tailrace.undo WHERE id IN ("+strings.Join(ids, ", ")+")"); err != nil {
			return err
		}
	}
	return nil
}

const (
	keepFilesSQL = "INSERT INTO _tailrace.undo_files (pipeline, relation_schema, relation_table, path_hash, number, was, path, size, modified, checksum, `rows`) SELECT pipeline, relation_schema, relation_table, path_hash, ?, 1, path, size, modified, checksum, `rows` FROM _tailrace.files WHERE pipeline = ?"
	noFilesSQL   = "INSERT INTO _tailrace.undo_files (pipeline, relation_schema, relation_table, path_hash, number, was) VALUES "
	keptFilesSQL = " ON DUPLICATE KEY UPDATE _tailrace.undo_files.was = _tailrace.undo_files.was"
	keepAsideSQL = `INSERT INTO _tailrace.undo_asides (pipeline, id, number) SELECT pipeline, id, ? FROM _tailrace.quarantine WHERE pipeline = ? AND resolved IS NULL`
	keptAsideSQL = ` ON DUPLICATE KEY UPDATE _tailrace.undo_asides.number = _tailrace.undo_asides.number`
)

// keepFiles keeps what is known of files that a batch takes: mostly nothing.
func (a *applier) keepFiles(ctx context.Context, files []change.File) error {
	number := a.w.keepsUnder().newest
	if number == 0 || len(files) == 0 {
		return nil
	}
	for _, none := range []bool{false, true} {
		head, tail := bind(keepFilesSQL, number, a.w.cfg.Pipeline)+" AND (relation_schema, relation_table, path_hash) IN (", ")"+keptFilesSQL
		if none {
			head, tail = noFilesSQL, keptFilesSQL
		}
		l := a.list(head, tail, nil, "keep which files were taken before")
		for i := range files {
			f := &files[i]
			hash := sha256.Sum256([]byte(f.Path))
			if none {
				l.item(bind("?, ?, ?, ?, ?, 0", a.w.cfg.Pipeline, f.Relation.Schema, f.Relation.Table, hash[:], number))
			} else {
				l.item(bind("?, ?, ?", f.Relation.Schema, f.Relation.Table, hash[:]))
			}
			if err := l.end(ctx); err != nil {
				return err
			}
		}
		if err := l.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// keepFilesWhere keeps what is known of the files of a further condition.
func (w *Writer) keepFilesWhere(ctx context.Context, s *session, more string) error {
	number := w.keepsUnder().newest
	if number == 0 {
		return nil
	}
	_, err := s.exec(ctx, bind(keepFilesSQL, number, w.cfg.Pipeline)+more+keptFilesSQL)
	return err
}

// keepAsides keeps that the events of a further condition are not resolved, of those that
// are not.
func (w *Writer) keepAsides(ctx context.Context, s *session, more string) error {
	number := w.keepsUnder().newest
	if number == 0 {
		return nil
	}
	_, err := s.exec(ctx, bind(keepAsideSQL, number, w.cfg.Pipeline)+more+keptAsideSQL)
	return err
}
