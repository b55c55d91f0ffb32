//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// applier is the one connection that applies batches, and the transaction that
// is open on it.
type applier struct {
	w        *Writer
	conn     *conn
	open     bool           // a transaction is open; marking is held
	inPieces bool           // of one source transaction that comes in pieces
	undo     map[string]int // type 2 targets with an undo table, by name
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
		s, err := w.shape(ctx, t.Target)
		if err != nil {
			return err
		}
		for n := range t.Rounds {
			if t.Target.Kind == scd.Type2 {
				err = a.type2(ctx, s, &t.Rounds[n])
			} else {
				err = a.type1(ctx, s, &t.Rounds[n])
			}
			if err != nil {
				return w.explain("write to "+t.Target.Name.String(), err)
			}
		}
	}
	if b.More {
		return nil
	}
	head, err := w.advance(ctx, a.conn, b)
	if err != nil {
		return err
	}
	if _, err := a.conn.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	w.head, a.open = head, false
	w.marking.Unlock()
	return nil
}

func (a *applier) begin(ctx context.Context, w *Writer, more bool) error {
	if a.conn == nil {
		if err := w.mustOwn(); err != nil {
			return err
		}
		c, err := w.connect()
		if err != nil {
			return err
		}
		a.w, a.conn = w, c
	}
	if err := w.roomLeft(); err != nil {
		return err
	}
	w.marking.Lock()
	if _, err := a.conn.exec(ctx, "BEGIN"); err != nil {
		w.marking.Unlock()
		return err
	}
	a.open, a.inPieces, a.undo = true, more, map[string]int{}
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
		w.marking.Unlock()
	}
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
