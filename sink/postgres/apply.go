package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// A batch goes one of two roads.
//
// The short one is for what an idle pipeline sends, a transaction of a few rows:
// prepared statements, one a row, and the mark's update in a single message, so
// that it costs one round trip. Without BEGIN the server runs the message as one
// transaction and commits at its end; every demand on it must therefore raise an
// error by itself.
//
// The long one opens a transaction. Lists of a few rows still travel as prepared
// statements; longer ones go by COPY, straight into the target where no row can
// be there, else into a stage from which one statement moves them on.
const (
	fewRows    = 200       // where COPY through a stage begins to win
	fewBytes   = 256 << 10 // statements are copied into one message: a second copy that must stay small
	queueBytes = 1 << 20   // of statements waiting to be sent on the long road
	keysMax    = 1 << 16   // in one array of keys
	keyBytes   = 4 << 20   // in one array of keys
	stagesMax  = 16        // temporary tables of a session: each costs its emptying at every commit
)

// applier holds what Apply keeps between batches.
type applier struct {
	w       *Writer
	s       *session
	shapes  map[change.Name]*shape
	staged  []*shape // those with a stage, the least recently used first
	stages  int      // made so far
	open    bool     // a transaction waits for its next piece
	broken  bool
	keeping bool // the batch keeps old rows for a rewind point

	known    map[change.Name]*knowledge
	shuffled bool     // the last lookups of a history were mostly of events that come late
	fed      []*shape // targets with a change feed that the open source transaction has changed
	notes    int      // tables of notes made so far
	recorded []*shape // type 2 targets with a record of what the open source transaction has changed

	batch  pgconn.Batch
	jobs   []job
	queued int // bytes, about

	values, keyValues []change.Value
	params            [][]byte
	array             []byte
	scratch           scratch
}

// job is a statement that waits to be sent.
type job struct {
	doing string
	sh    *shape // nil: not about a target
	rows  int64  // it must affect this many; -1: any number
	mark  bool   // it is the mark's update
	exact bool   // it raises division_by_zero where its row is missing
}

// jobError is a failure with what was being done. explain makes it presentable.
type jobError struct {
	job
	err error
}

func (e *jobError) Error() string { return e.doing + ": " + e.err.Error() }
func (e *jobError) Unwrap() error { return e.err }

// errMarkMissed: the mark's row is not where it was, or not ours any more.
var errMarkMissed = errors.New("the pipeline's mark is not where it was")

var errBroken = errors.New("an earlier batch failed: the destination must be opened again")

// Apply writes one batch.
func (w *Writer) Apply(ctx context.Context, b *sink.Batch) error {
	epoch, err := w.owned()
	if err != nil {
		return err
	}
	a := &w.apply
	if a.broken {
		return errBroken
	}
	known := a.s != nil
	w.stall.Begin(a.s.wire())
	defer w.stall.End()
	err = a.run(ctx, epoch, b)
	if known && b.First && !b.More && stateOf(err) == uniqueViolation {
		a.close(ctx) // a unique index may have been made since the target was looked at
		err = a.run(ctx, epoch, b)
	}
	if err != nil {
		a.broken = true
		var j *jobError
		if errors.As(err, &j) {
			own := j.sh != nil && ownFault(j.err)
			if err = w.explain(ctx, j.err, j.doing, j.sh); own && fault.KindOf(err) == fault.Operator {
				err = &sink.TargetError{Target: j.sh.target.Name, Err: err}
			}
		} else if alone := (*sink.TargetError)(nil); !errors.As(err, &alone) {
			err = w.explain(ctx, err, "apply", nil)
		}
		a.close(ctx)
		return err
	}
	if !b.More {
		w.mu.Lock()
		w.applied = b.Position
		w.mu.Unlock()
	}
	return nil
}

func (a *applier) close(ctx context.Context) {
	a.s.close(ctx)
	a.s, a.open, a.shapes, a.staged, a.recorded, a.known, a.fed = nil, false, nil, nil, nil, nil, nil
	a.reset()
}

func (a *applier) run(ctx context.Context, epoch int64, b *sink.Batch) error {
	if b.First == a.open {
		return fault.Corrupted("pieces of a transaction out of order: first %v, one open %v", b.First, a.open)
	}
	if a.s == nil {
		if err := a.connect(ctx); err != nil {
			return err
		}
	}
	shapes := make([]*shape, len(b.Targets))
	for i := range b.Targets {
		var err error
		if shapes[i], err = a.shape(ctx, b.Targets[i].Target); err != nil {
			if refused := (*fault.Error)(nil); errors.As(err, &refused) && refused.Kind == fault.Operator && refused.Err == nil {
				err = &sink.TargetError{Target: b.Targets[i].Target.Name, Err: err}
			}
			return err
		}
		shapes[i].restored = b.Targets[i].Restored
	}
	keeping, err := a.toKeep(ctx)
	if err != nil {
		return err
	}
	a.keeping = keeping.number != 0
	for i := range b.Targets {
		if !a.keeping {
			break
		}
		if err := a.wantKept(ctx, shapes[i], &b.Targets[i], keeping); err != nil {
			return err
		}
	}
	if b.First && !b.More && short(b, shapes) && !(a.keeping && truncates(b)) {
		err := a.short(ctx, epoch, b, shapes)
		if errors.Is(err, errMarkMissed) { // an administrator has moved the row, or we are deposed
			err = a.short(ctx, epoch, b, shapes)
		}
		// A second unique index can be met in mid-way by rows that exchange values;
		// the long road knows a way around.
		if stateOf(err) != uniqueViolation {
			return err
		}
	}
	if !a.open {
		if err := a.push(ctx, "BEGIN", nil, asText, job{doing: "begin", rows: -1}); err != nil {
			return err
		}
		a.open = true
	}
	pieces := !b.First || b.More
	for i := range b.Targets {
		if err := a.target(ctx, shapes[i], &b.Targets[i], pieces); err != nil {
			return err
		}
	}
	if err := a.asides(ctx, b); err != nil {
		return err
	}
	if b.More {
		return a.flush(ctx)
	}
	if err := a.feedChanges(ctx, b); err != nil {
		return err
	}
	fault.KillPoint("rows written")
	if slices.ContainsFunc(a.jobs, func(j job) bool { return j.rows >= 0 }) {
		if err := a.flush(ctx); err != nil { // a count is known after its statement: it must not be after COMMIT
			return err
		}
	}
	if err := a.finish(ctx, epoch, b); err != nil {
		return err
	}
	a.open = false
	for _, sh := range a.recorded {
		sh.record = ""
	}
	a.recorded = a.recorded[:0]
	for _, sh := range a.staged {
		sh.stage.dirty = false // emptied by the commit
	}
	return nil
}

// target carries out one target's part of a batch on the long road.
func (a *applier) target(ctx context.Context, sh *shape, t *sink.TargetRounds, pieces bool) error {
	if sh.feed != nil || a.keeping {
		touched, err := sink.TouchedBy(t)
		if err == nil && a.keeping {
			err = a.keep(ctx, sh, t, touched)
		}
		if err == nil && sh.feed != nil {
			err = a.note(ctx, sh, t, touched)
		}
		if err != nil {
			return err
		}
	}
	if t.Hidden != nil {
		if err := a.work(ctx, sh, form(t.Binary), t.Hidden); err != nil {
			return err
		}
	}
	for r := range t.Rounds {
		if sh.feed != nil && sh.target.AppendOnly {
			if err := a.noteAppended(ctx, sh, form(t.Binary), &t.Rounds[r]); err != nil {
				return err
			}
		}
		if a.keeping && sh.target.AppendOnly {
			if err := a.keepAppended(ctx, sh, form(t.Binary), &t.Rounds[r]); err != nil {
				return err
			}
		}
		if err := a.round(ctx, sh, t.Binary, &t.Rounds[r], pieces); err != nil {
			return err
		}
	}
	if t.Hidden != nil {
		return a.workAfter(ctx, sh, t.Hidden)
	}
	return nil
}

func (a *applier) connect(ctx context.Context) error {
	a.w.closeIdle(ctx)
	s, err := a.w.connect(ctx, descend)
	if err != nil {
		return err
	}
	a.s, a.shapes, a.known = s, map[change.Name]*shape{}, map[change.Name]*knowledge{}
	a.w.stall.Connected(s.wire())
	a.w.mayReplicate(ctx, s)
	return nil
}

// shape gives a target's shape, read anew when the flow's layout has changed.
func (a *applier) shape(ctx context.Context, t *scd.Target) (*shape, error) {
	old := a.shapes[t.Name]
	if old != nil && old.target == t {
		return old, nil
	}
	if old != nil && old.record != "" {
		return nil, fault.Refuse("tailrace resync for that table", "%s changed its columns inside a transaction that comes in pieces: its history cannot be composed", old.label())
	}
	if old != nil && old.feed != nil && old.feed.open {
		return nil, sink.FeedChanged(t)
	}
	sh, err := a.w.shapeOf(ctx, a.s, t)
	if err != nil {
		return nil, err
	}
	if err := sh.ensureKey(ctx, a.s, a.w); err != nil {
		return nil, &jobError{job{doing: "add the primary key to", sh: sh}, err}
	}
	if old != nil && old.stage != nil {
		if err := a.dropStage(ctx, old); err != nil {
			return nil, err
		}
	}
	if old != nil && old.feed != nil && old.feed.notes != "" {
		if err := a.do(ctx, old, "drop the notes of", "DROP TABLE "+old.feed.notes); err != nil {
			return nil, err
		}
	}
	a.shapes[t.Name] = sh
	return sh, nil
}

// short reports whether a batch can take the short road. What a sequenced target
// remembers cannot: what must be there is counted before the commit. Nor can what goes
// into a change feed.
func short(b *sink.Batch, shapes []*shape) bool {
	if len(b.Files)+len(b.Aside)+len(b.Violations)+len(b.Resolved) > 0 {
		return false
	}
	rows, bytes := 0, 0
	for i := range b.Targets {
		if b.Targets[i].Target.Sequenced || b.Targets[i].Target.ChangeFeed {
			return false
		}
		for r := range b.Targets[i].Rounds {
			rd := &b.Targets[i].Rounds[r]
			rows += rd.Size()
			if rows > fewRows || !asStatements(shapes[i], rd) {
				return false
			}
			bytes += sizeOf(rd)
		}
	}
	return bytes <= fewBytes
}

// asStatements reports whether every item of a round can be a statement by itself
// that sees only what its predecessors left.
func asStatements(sh *shape, r *scd.Round) bool {
	if sh.target.Kind == scd.Type2 {
		return !r.Truncate && !slices.ContainsFunc(r.Steps, func(s scd.Step) bool {
			return s.N > 1 || s.Row != nil && s.Row.HasAbsent(len(sh.columns))
		})
	}
	return !slices.ContainsFunc(r.Moves, func(m scd.Move) bool { return m.Row.HasAbsent(len(sh.columns)) })
}

func sizeOf(r *scd.Round) int {
	n := 0
	for _, list := range [][]change.Row{r.Deletes, r.Inserts, r.Upserts, r.Patches} {
		n += bytesOf(list)
	}
	for i := range r.Moves {
		n += len(r.Moves[i].Row)
	}
	for i := range r.Steps {
		n += len(r.Steps[i].Row)
	}
	return n
}

func bytesOf(list []change.Row) int {
	n := 0
	for _, row := range list {
		n += len(row)
	}
	return n
}

// few reports whether a list travels as statements on the long road.
func few(list []change.Row) bool { return len(list) <= fewRows && bytesOf(list) <= fewBytes }

func (a *applier) short(ctx context.Context, epoch int64, b *sink.Batch, shapes []*shape) error {
	for i := range b.Targets {
		t := &b.Targets[i]
		if err := a.keepShort(ctx, shapes[i], t); err != nil {
			a.reset()
			return err
		}
		for r := range t.Rounds {
			var err error
			if shapes[i].target.Kind == scd.Type2 {
				err = a.pushSteps(ctx, shapes[i], form(t.Binary), t.Rounds[r].Steps)
			} else {
				err = a.statements(ctx, shapes[i], form(t.Binary), &t.Rounds[r])
			}
			if err != nil {
				a.reset()
				return err
			}
		}
	}
	err := a.finish(ctx, epoch, b)
	a.reset()
	return err
}

// statements pushes a type 1 round as one statement a row.
func (a *applier) statements(ctx context.Context, sh *shape, f form, r *scd.Round) error {
	if r.Truncate {
		if err := a.push(ctx, sh.truncateSQL(), nil, asText, job{doing: "truncate", sh: sh, rows: -1}); err != nil {
			return err
		}
	}
	if err := a.deletes(ctx, sh, f, r); err != nil {
		return err
	}
	for i := range r.Moves {
		if err := a.pushRow(ctx, sh, f, r.Moves[i].Row, "move rows of"); err != nil {
			return err
		}
	}
	if err := a.pushRows(ctx, sh, f, r.Inserts, "insert into"); err != nil {
		return err
	}
	if err := a.pushRows(ctx, sh, f, r.Upserts, "upsert into"); err != nil {
		return err
	}
	return a.pushPatches(ctx, sh, f, r.Patches)
}

// finish writes the tables that become live and the mark, and commits.
func (a *applier) finish(ctx context.Context, epoch int64, b *sink.Batch) error {
	w := a.w
	w.mark.Lock()
	defer w.mark.Unlock()
	if w.mark.place == "" {
		rows, err := a.s.query(ctx, markPlaceSQL, w.cfg.Pipeline, epoch)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fault.ErrFenced
		}
		w.mark.place = str(rows[0][0])
	}
	for _, n := range b.Live {
		params := [][]byte{[]byte(w.cfg.Pipeline), []byte(n.Schema), []byte(n.Table)}
		if err := a.push(ctx, applyLiveSQL, params, asText, job{doing: "record that a table is live", rows: -1}); err != nil {
			return err
		}
	}
	params := [][]byte{[]byte(checkpoint.PlaceText(b.Position, b.Resume)), nil, []byte(w.mark.place), []byte(w.cfg.Pipeline), strconv.AppendInt(nil, epoch, 10)}
	if !b.CommitTime.IsZero() {
		params[1] = appendInstant(nil, b.CommitTime.UnixMicro())
	}
	if err := a.push(ctx, applyMarkSQL, params, asText, job{doing: "write the pipeline's mark", rows: -1, mark: true}); err != nil {
		return err
	}
	if a.open {
		if err := a.push(ctx, "COMMIT", nil, asText, job{doing: "commit", rows: -1}); err != nil {
			return err
		}
	}
	err := a.flush(ctx)
	if err != nil {
		w.mark.place = ""
	}
	return err
}

// form is how values cross.
type form bool

const (
	asText   form = false
	asBinary form = true
)

// codes are the protocol's format codes.
func (f form) codes() []int16 {
	if f == asBinary {
		return binaryCode
	}
	return textCode
}

var textCode, binaryCode = []int16{0}, []int16{1}

// push makes a statement wait for flush.
func (a *applier) push(ctx context.Context, sql string, params [][]byte, f form, j job) error {
	a.s.queueing = len(a.jobs) > 0
	desc, err := a.s.prepare(ctx, sql)
	a.s.queueing = false
	if err != nil {
		return &jobError{j, err}
	}
	a.batch.ExecStatement(desc, params, f.codes(), nil)
	a.jobs = append(a.jobs, j)
	for _, p := range params {
		a.queued += len(p) + 4
	}
	if a.open && a.queued > queueBytes {
		return a.flush(ctx)
	}
	return nil
}

func (a *applier) reset() {
	a.batch = pgconn.Batch{}
	a.jobs = a.jobs[:0]
	a.queued = 0
}

// flush sends what waits and reads the answers.
func (a *applier) flush(ctx context.Context) error {
	if len(a.jobs) == 0 {
		return nil
	}
	defer a.reset()
	results := a.s.conn.ExecBatch(ctx, &a.batch)
	var failed error
	done := 0
	place := ""
	for results.NextResult() {
		r := results.ResultReader()
		j := job{doing: "commit"}
		if done < len(a.jobs) {
			j = a.jobs[done]
		}
		for r.NextRow() {
			if j.mark {
				place = string(r.Values()[0])
			}
		}
		tag, err := r.Close()
		if err != nil {
			break
		}
		if j.rows >= 0 && tag.RowsAffected() != j.rows && failed == nil {
			doing := j.doing
			if j.sh != nil {
				doing += " " + j.sh.label()
			}
			failed = fault.Corrupted("%s: %d rows were to be there, %d are", doing, j.rows, tag.RowsAffected())
		}
		done++
	}
	if err := results.Close(); err != nil {
		j := job{doing: "commit"}
		if done < len(a.jobs) {
			j = a.jobs[done]
		}
		if stateOf(err) == divisionByZero && j.exact {
			return fault.Corrupted("%s %s: a row that the source has changed is not there", j.doing, j.sh.label())
		}
		if stateOf(err) == divisionByZero && j.mark {
			return fmt.Errorf("%s: %w", j.doing, errMarkMissed)
		}
		return &jobError{j, err}
	}
	if place != "" { // finish holds the lock
		a.w.mark.place = place
	}
	return failed
}

// parse splits a row into a.values. Only with gaps may columns be absent.
func (a *applier) parse(sh *shape, row change.Row, gaps bool) error {
	var err error
	if a.values, err = row.Values(a.values, len(sh.columns)); err != nil {
		return torn(sh, err)
	}
	if !gaps {
		for i := range a.values {
			if a.values[i].State == change.Absent {
				return fault.Corrupted("%s: column %s of a complete row was not sent", sh.label(), sh.columns[i].plain)
			}
		}
	}
	return nil
}

// param makes a value a parameter.
func param(v change.Value, f form) ([]byte, error) {
	switch v.State {
	case change.Null, change.Absent:
		return nil, nil
	case change.Binary:
		if f == asBinary {
			return v.Data, nil
		}
	case change.AsText:
		if f == asText {
			return v.Data, nil
		}
	}
	return nil, formError(bool(f))
}

// setParams makes a.values' written columns parameters.
func (a *applier) setParams(sh *shape, f form) error {
	a.params = a.params[:0]
	for i := range a.values {
		if sh.columns[i].generated {
			continue
		}
		p, err := param(a.values[i], f)
		if err != nil {
			return err
		}
		a.params = append(a.params, p)
	}
	return nil
}

func (a *applier) pushRows(ctx context.Context, sh *shape, f form, rows []change.Row, doing string) error {
	for _, row := range rows {
		if err := a.pushRow(ctx, sh, f, row, doing); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) pushRow(ctx context.Context, sh *shape, f form, row change.Row, doing string) error {
	if err := a.parse(sh, row, false); err != nil {
		return err
	}
	if err := a.setParams(sh, f); err != nil {
		return err
	}
	return a.push(ctx, sh.sql(rowUpsert), a.params, f, job{doing: doing, sh: sh, rows: -1})
}

func (a *applier) pushPatches(ctx context.Context, sh *shape, f form, rows []change.Row) error {
	for _, row := range rows {
		if err := a.parse(sh, row, true); err != nil {
			return err
		}
		if err := a.setParams(sh, f); err != nil {
			return err
		}
		a.scratch.reset()
		a.scratch.binary = bool(f)
		bits, err := a.scratch.absences(a.values, sh.columns)
		if err != nil {
			return err
		}
		if bits.State == change.Null { // complete after all; it must still be there
			bits = a.scratch.noAbsence(len(sh.columns))
		}
		patch, exact := rowPatch, true
		if sh.restored {
			patch, exact = rowPatchIfThere, false
		}
		if err := a.push(ctx, sh.sql(patch), append(a.params, bits.Data), f, job{doing: "patch rows of", sh: sh, rows: -1, exact: exact}); err != nil {
			return err
		}
	}
	return nil
}
