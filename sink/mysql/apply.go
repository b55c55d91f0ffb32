package mysql

import (
	"context"
	"errors"
	"hash/maphash"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// applier holds what Apply keeps between batches.
type applier struct {
	w      *Writer
	s      *session
	shapes map[change.Name]*shape
	open   bool // a transaction waits for its next piece
	broken bool

	fed      []*shape // targets with a change feed that the open source transaction has changed
	notes    int      // tables of notes made so far
	seeds    [2]maphash.Seed
	known    int      // keys that are known to be kept, of all shapes
	recorded []*shape // type 2 targets with a record of what the open source transaction has changed
}

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
	w.stall.Begin(a.s.wire())
	defer w.stall.End()
	if err = a.run(ctx, epoch, b); err != nil {
		a.broken = true
		err = w.alone(err)
		a.close()
		return err
	}
	if !b.More {
		w.mu.Lock()
		w.applied = b.Position
		w.mu.Unlock()
	}
	return nil
}

// alone makes a batch's error fit to be shown, and says whether it concerns one target
// alone.
func (w *Writer) alone(err error) error {
	var target *targetError
	if errors.As(err, &target) {
		own := fault.KindOf(target.err) == fault.Operator
		var j *jobError
		if errors.As(target.err, &j) {
			own = j.sh != nil && ownFault(j.err)
		}
		err = w.present(target.err, "apply to "+target.sh.label(), nil)
		if own && fault.KindOf(err) == fault.Operator && !errors.Is(err, fault.ErrFenced) {
			return &sink.TargetError{Target: target.sh.target.Name, Err: err}
		}
		return err
	}
	return w.present(err, "apply", nil)
}

// targetError is a failure at one target's part of a batch.
type targetError struct {
	sh  *shape
	err error
}

func (e *targetError) Error() string { return e.err.Error() }
func (e *targetError) Unwrap() error { return e.err }

func (a *applier) close() {
	a.s.close()
	a.s, a.open, a.shapes, a.recorded, a.fed = nil, false, nil, nil, nil
}

func (a *applier) connect(ctx context.Context) error {
	a.w.closeIdle()
	s, err := a.w.connect(ctx)
	if err != nil {
		return err
	}
	if err = s.choose(ctx); err != nil {
		s.close()
		return err
	}
	a.s, a.shapes = s, map[change.Name]*shape{}
	a.w.stall.Connected(s.wire())
	return nil
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
			return &targetError{&shape{target: b.Targets[i].Target}, err}
		}
	}
	for i, sh := range shapes {
		if err := a.keeps(ctx, sh); err != nil {
			return &targetError{shapes[i], err}
		}
	}
	if !a.open {
		if err := a.do(ctx, "START TRANSACTION", "begin"); err != nil {
			return err
		}
		a.open = true
	}
	pieces := !b.First || b.More
	for i := range b.Targets {
		if err := a.target(ctx, shapes[i], &b.Targets[i], pieces); err != nil {
			return &targetError{shapes[i], err}
		}
	}
	if err := a.asides(ctx, b); err != nil {
		return err
	}
	if b.More {
		return nil
	}
	if err := a.feedChanges(ctx, b); err != nil {
		return err
	}
	fault.KillPoint("rows written")
	if err := a.finish(ctx, epoch, b); err != nil {
		return err
	}
	a.open = false
	for _, sh := range a.recorded {
		if err := a.do(ctx, "DROP TEMPORARY TABLE "+sh.record, "drop the record of"); err != nil {
			return err
		}
		sh.record = ""
	}
	a.recorded = a.recorded[:0]
	return nil
}

// target carries out one target's part of a batch.
func (a *applier) target(ctx context.Context, sh *shape, t *sink.TargetRounds, pieces bool) error {
	if sh.feed != nil || sh.held != nil {
		touched, err := sink.TouchedBy(t)
		if err == nil && sh.held != nil {
			err = a.keep(ctx, sh, &touched)
		}
		if err == nil && sh.feed != nil {
			err = a.note(ctx, sh, &touched)
		}
		if err != nil {
			return err
		}
	}
	if t.Hidden != nil {
		if sh.heldRecords != nil {
			if err := a.keepRecords(ctx, sh, t.Hidden); err != nil {
				return err
			}
		}
		if err := a.work(ctx, sh, t.Hidden); err != nil {
			return err
		}
	}
	for i := range t.Rounds {
		r := &t.Rounds[i]
		if sh.held != nil && sh.target.AppendOnly {
			if err := a.keepAppended(ctx, sh, r); err != nil {
				return err
			}
		}
		if sh.feed != nil && sh.target.AppendOnly {
			if err := a.noteAppended(ctx, sh, r); err != nil {
				return err
			}
		}
		var err error
		switch {
		case r.Empty():
		case sh.target.Kind == scd.Type2 && sh.target.Sequenced:
			err = a.versions(ctx, sh, r)
		case sh.target.Kind == scd.Type2:
			err = a.round2(ctx, sh, r, pieces)
		default:
			err = a.round1(ctx, sh, r, t.Restored)
		}
		if err != nil {
			return err
		}
	}
	if t.Hidden != nil {
		return a.workAfter(ctx, sh, t.Hidden)
	}
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
	if old != nil && old.feed != nil && old.feed.notes != "" {
		if err := a.do(ctx, "DROP TEMPORARY TABLE "+old.feed.notes, "drop the notes of"); err != nil {
			return nil, err
		}
	}
	a.shapes[t.Name] = sh
	return sh, nil
}

// do runs one statement that is not about a target.
func (a *applier) do(ctx context.Context, sql, doing string) error {
	if _, err := a.s.exec(ctx, sql); err != nil {
		return &jobError{doing, nil, err}
	}
	return nil
}

// on runs one statement about a target and returns how many rows it met.
func (a *applier) on(ctx context.Context, sh *shape, sql, doing string) (int64, error) {
	n, err := a.s.exec(ctx, sql)
	if err != nil {
		return n, &jobError{doing, sh, err}
	}
	return n, nil
}

// finish writes the mark and the tables that become live, and commits.
func (a *applier) finish(ctx context.Context, epoch int64, b *sink.Batch) error {
	pipeline := a.w.cfg.Pipeline
	n, err := a.s.exec(ctx, bind(applyMarkSQL, checkpoint.PlaceText(b.Position, b.Resume), b.CommitTime, pipeline, epoch))
	if err != nil {
		return &jobError{"write the pipeline's mark", nil, err}
	}
	if n == 0 {
		return fault.ErrFenced
	}
	for _, name := range b.Live {
		if err := a.do(ctx, bind(applyLiveSQL, pipeline, name.Schema, name.Table), "record that a table is live"); err != nil {
			return err
		}
	}
	return a.do(ctx, "COMMIT", "commit")
}
