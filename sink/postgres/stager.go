package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// stager applies batches to stages with the means of Apply, on a session of its own and
// without the mark. Its transactions hold no lock on the mark's row, which the stream's
// batches write: each locks its stage first and looks at the epoch then. A successor that
// is there by then is seen; one that comes later waits for the transaction before it can
// drop the stage.
type stager struct {
	w *Writer

	mu    sync.Mutex // guards what follows
	apply applier
	at    change.Position // of the last batch
	notes map[change.Name]*notes
}

// notes are the keys of one target that are written since Note, in a table beside its
// stage.
type notes struct {
	table string
	whole bool // all of the target may differ
}

var _ sink.Noter = (*stager)(nil)

// Stager implements sink.Resyncs.
func (w *Writer) Stager() (sink.Stager, error) {
	if _, err := w.owned(); err != nil {
		return nil, err
	}
	return &stager{w: w, apply: applier{w: w}, notes: map[change.Name]*notes{}}, nil
}

// Fill implements sink.Stager.
func (g *stager) Fill(ctx context.Context, t *scd.Target, in sink.Copy) (int64, error) {
	return g.w.fillStage(ctx, t, in, true)
}

// Apply implements sink.Stager.
func (g *stager) Apply(ctx context.Context, b *sink.Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := &g.apply
	if a.broken {
		return errBroken
	}
	err := g.run(ctx, b)
	if err == nil {
		if !b.More {
			g.at = b.Position
		}
		return nil
	}
	a.broken = true
	defer a.close(ctx)
	if j := (*jobError)(nil); errors.As(err, &j) {
		return g.w.explain(ctx, j.err, j.doing+" the stage of", j.sh)
	}
	return g.w.explain(ctx, err, "apply to stages", nil)
}

func (g *stager) run(ctx context.Context, b *sink.Batch) error {
	a := &g.apply
	if b.First == a.open {
		return fault.Corrupted("pieces of a transaction out of order: first %v, one open %v", b.First, a.open)
	}
	if b.First && !b.More && len(b.Targets) == 0 {
		return nil
	}
	if a.s == nil {
		s, err := g.w.connect(ctx, descend)
		if err != nil {
			return err
		}
		a.s, a.shapes = s, map[change.Name]*shape{}
	}
	if !a.open {
		if err := a.s.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		a.open = true
	}
	for i := range b.Targets {
		sh, err := g.shape(ctx, b.Targets[i].Target)
		if err == nil {
			err = a.do(ctx, sh, "lock", "LOCK TABLE "+sh.name+" IN ROW EXCLUSIVE MODE")
		}
		if err == nil {
			err = g.fence(ctx)
		}
		if err == nil {
			err = a.target(ctx, sh, &b.Targets[i], false)
		}
		if n := g.notes[b.Targets[i].Target.Name]; err == nil && n != nil {
			err = g.note(ctx, sh, n, &b.Targets[i])
		}
		if err != nil {
			return err
		}
	}
	if err := a.flush(ctx); err != nil || b.More {
		return err
	}
	if err := a.s.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	a.open = false
	for _, sh := range a.staged {
		sh.stage.dirty = false // emptied by the commit
	}
	return nil
}

// shape is the stage's: its columns bear the stage's names, and messages the target's.
func (g *stager) shape(ctx context.Context, t *scd.Target) (*shape, error) {
	a := &g.apply
	if sh := a.shapes[t.Name]; sh != nil {
		return sh, nil
	}
	staged := sink.StageTarget(t)
	staged.Columns = append([]scd.Column(nil), t.Columns...)
	for i := range staged.Columns {
		staged.Columns[i].Name = stageColumn(i)
	}
	name := change.Name{Schema: "_tailrace", Table: sink.StageOf(g.w.cfg.Pipeline, g.w.qualified(t.Name))}
	sh, err := g.w.shapeAt(ctx, a.s, staged, name)
	if err != nil {
		return nil, err
	}
	if len(sh.keys) > 0 && !sh.keyed {
		return nil, fault.Corrupted("the stage of %s has no key", t.Name)
	}
	sh.target = t
	for i := range sh.columns {
		sh.columns[i].plain = t.Columns[i].Name
	}
	a.shapes[t.Name] = sh
	return sh, nil
}

// fence is Writer.fence without a lock.
func (g *stager) fence(ctx context.Context) error {
	epoch, err := g.w.owned()
	if err != nil {
		return err
	}
	rows, err := g.apply.s.ask(ctx, epochSQL, g.w.cfg.Pipeline)
	if err != nil {
		return fmt.Errorf("look at the epoch: %w", err)
	}
	if len(rows) == 0 || num(rows[0][0]) != epoch {
		return fault.ErrFenced
	}
	return nil
}

// Close implements sink.Stager.
func (g *stager) Close(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.apply.close(ctx)
}
