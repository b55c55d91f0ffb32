//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	engine "github.com/duckdb/duckdb-go/v2"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// applier is the one connection that applies batches, and the transaction that
// is open on it.
type applier struct {
	w        *Writer
	conn     *conn
	open     bool           // a transaction is open
	turn     bool           // it is this one's turn to write
	began    int64          // Writer.changed when it began
	inPieces bool           // of one source transaction that comes in pieces
	undo     map[string]int // type 2 targets with an undo table, by name

	notes map[string]*notes     // of the open transaction, by the target's name
	fed   []*notes              // the same, in the order they were made
	feeds map[string]*feedState // by the target's name, as long as the connection lasts

	window  *window                 // under which is kept; nil: nothing is
	keepers map[change.Name]*keeper // of that window, by the target's name; nil: to be read
}

// minFree is the disk space below which no batch is begun: a commit's
// write-ahead file and the next checkpoint need room, and the engine does not
// take a full disk well.
const minFree = 16 << 20

// Apply writes one batch, or one piece of one, in one transaction with the mark.
// A commit is flushed to disk, so applied is durable.
func (w *Writer) Apply(ctx context.Context, b *sink.Batch) error {
	if w.broken != nil {
		return fmt.Errorf("apply after an error, without reopening: %w", w.broken)
	}
	if err := w.applyBatch(ctx, b); err != nil {
		w.abandon()
		w.broken = w.explain(fmt.Sprintf("apply the batch that ends at %s", b.Position), err)
		return w.broken
	}
	if !b.More {
		p := b.Position
		w.applied.Store(&p)
	}
	return nil
}

func (w *Writer) applyBatch(ctx context.Context, b *sink.Batch) error {
	a := &w.apply
	if b.First == a.open {
		return fault.Corrupted("a transaction's pieces come in the wrong order (first %t, open %t)", b.First, a.open)
	}
	if b.First {
		if err := a.begin(ctx, w, b.More); err != nil {
			return err
		}
	}
	for i := range b.Targets {
		t := &b.Targets[i]
		if err := a.sees(t.Target.Name); err != nil {
			return err
		}
		s, err := w.shape(ctx, t.Target)
		if err == nil {
			err = a.target(ctx, s, t)
		}
		if err != nil {
			own := ownFault(err)
			err = w.explain("write to "+t.Target.Name.String(), err)
			if own && fault.KindOf(err) == fault.Operator {
				err = &sink.TargetError{Target: t.Target.Name, Err: err}
			}
			return err
		}
	}
	if err := a.files(ctx, b.Files); err != nil {
		return w.explain("note the files that were taken", err)
	}
	if err := w.setAside(ctx, a.conn, b.Aside, b.Violations); err != nil {
		return w.explain("set events aside", err)
	}
	if err := w.resolveAll(ctx, a.conn, b.Resolved); err != nil {
		return w.explain("resolve events in quarantine", err)
	}
	if !b.More {
		if err := a.feedChanges(ctx, b); err != nil {
			return w.explain("write change feeds", err)
		}
	}
	fault.KillPoint("rows written")
	if b.More {
		return nil
	}
	return w.commit(ctx, b)
}

// ownFault reports whether an error at a target's part of a batch concerns that target
// alone: the engine refuses a value or a row, or we do.
func ownFault(err error) bool {
	var judged *fault.Error
	if errors.As(err, &judged) {
		return judged.Kind == fault.Operator && (judged.Err == nil ||
			errors.Is(err, errNotFinite) || errors.Is(err, errTooLate) || errors.Is(err, pgvalue.ErrOverflow) || errors.Is(err, errNotUTF8))
	}
	var e *engine.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Type {
	case engine.ErrorTypeConstraint, engine.ErrorTypeConversion, engine.ErrorTypeInvalidInput, engine.ErrorTypeOutOfRange:
		return !outOfMemory(err)
	}
	return false
}

// target writes one target's part of a batch.
func (a *applier) target(ctx context.Context, s *shape, t *sink.TargetRounds) error {
	notes, err := a.note(ctx, s, t)
	if err != nil {
		return err
	}
	if t.Hidden != nil {
		if err := a.remember(ctx, s, t.Hidden); err != nil {
			return err
		}
	}
	for n := range t.Rounds {
		if len(notes) > 0 && t.Target.AppendOnly {
			if err := a.noteAppended(ctx, s, notes, &t.Rounds[n]); err != nil {
				return err
			}
		}
		var err error
		switch {
		case t.Target.Kind == scd.Type1:
			err = a.type1(ctx, s, &t.Rounds[n], t.Restored)
		case t.Target.Sequenced:
			err = a.versions(ctx, s, &t.Rounds[n])
		default:
			err = a.type2(ctx, s, &t.Rounds[n])
		}
		if err != nil {
			return err
		}
	}
	if t.Hidden != nil {
		return a.settle(ctx, s, t.Hidden)
	}
	return nil
}

// commit moves the mark to the batch's end and commits both.
func (w *Writer) commit(ctx context.Context, b *sink.Batch) error {
	a := &w.apply
	w.marking.Lock()
	defer w.marking.Unlock()
	at := b.CommitTime
	if at.IsZero() { // a quiet point keeps the newest transaction's time
		at = w.commitTime
	}
	if err := w.replacePosition(ctx, a.conn, checkpoint.PlaceText(b.Position, b.Resume), at); err != nil {
		return err
	}
	if !a.inPieces {
		if err := w.setAllLive(ctx, a.conn, b.Live); err != nil {
			return err
		}
	}
	if _, err := a.conn.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	w.commitTime, a.open = at, false
	a.endTurn()
	if !a.inPieces || len(b.Live) == 0 {
		return nil
	}
	// A transaction in pieces is long and does not see the row of a table whose
	// copy ended meanwhile. Should we die here, the table is still catching at a
	// mark that has reached it, which the next start finds.
	return inTransaction(ctx, a.conn, func() error { return w.setAllLive(ctx, a.conn, b.Live) })
}

// endTurn lets a snapshot in.
func (a *applier) endTurn() {
	if a.turn {
		a.turn = false
		<-a.w.turn
	}
}

func (w *Writer) setAllLive(ctx context.Context, c *conn, names []change.Name) error {
	for _, name := range names {
		if err := w.setLive(ctx, c, name); err != nil {
			return err
		}
	}
	return nil
}

// touched notes that a target was loaded, made or altered.
func (w *Writer) touched(n change.Name) { w.changes.Store(n, w.changed.Add(1)) }

// sees refuses to go on where the open transaction began before the target's
// newest Load or Create: it would not see their rows and columns.
func (a *applier) sees(n change.Name) error {
	if at, ok := a.w.changes.Load(n); ok && at.(int64) > a.began {
		return fault.Retry(nil, "target %s was loaded or altered while the transaction was open", n)
	}
	return nil
}

func (a *applier) begin(ctx context.Context, w *Writer, more bool) error {
	if a.conn == nil {
		if err := a.connect(w); err != nil {
			return err
		}
	}
	if err := w.roomLeft(); err != nil {
		return err
	}
	select {
	case w.turn <- struct{}{}:
		a.turn = true
	case <-ctx.Done():
		return ctx.Err()
	}
	a.began = w.changed.Load()
	if _, err := a.conn.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	a.open, a.inPieces, a.undo = true, more, map[string]int{}
	a.notes, a.fed = map[string]*notes{}, nil
	if now := w.window.Load(); a.window != now {
		a.window, a.keepers = now, nil
	}
	return nil
}

func (a *applier) connect(w *Writer) error {
	if err := w.mustOwn(); err != nil {
		return err
	}
	c, err := w.connect()
	if err != nil {
		return err
	}
	a.w, a.conn, a.feeds = w, c, map[string]*feedState{}
	return nil
}

// roomLeft refuses to go on when the disk is almost full.
func (w *Writer) roomLeft() error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(w.cfg.Path, &fs); err != nil {
		return fmt.Errorf("look for free disk space: %w", err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < minFree {
		return fmt.Errorf("%d MiB are left: %w", free>>20, syscall.ENOSPC)
	}
	return nil
}

// abandon rolls back what is open and closes the apply connection.
func (w *Writer) abandon() {
	a := &w.apply
	if a.conn == nil {
		return
	}
	if a.open {
		// An error may have ended the transaction already; then there is nothing
		// to roll back, and that is all ROLLBACK would say.
		_, _ = a.conn.exec(context.Background(), "ROLLBACK")
		a.open = false
	}
	a.endTurn()
	a.conn.close()
	a.conn = nil
}

// Durable returns the newest applied position: a commit returns after its flush.
func (w *Writer) Durable(context.Context) (change.Position, error) {
	if p := w.applied.Load(); p != nil {
		return *p, nil
	}
	return change.Position{}, nil
}

var errNotOwned = errors.New("this process does not own the file")

// mustOwn is what every writing method asks first.
func (w *Writer) mustOwn() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.write {
		return fault.Corrupted("write to %s: %v", w.cfg.Path, errNotOwned)
	}
	return nil
}
