package mysql

import (
	"context"
	"sync"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// stager keeps stages up to date beside the batches, on a session of its own.
type stager struct {
	mu sync.Mutex // guards what follows
	applier
	at    change.Position // of the last batch
	notes map[change.Name]*notes
}

// notes are the keys of one target that are written since Note, in a table beside its
// stage. It has no key: who notes a key twice waits for nobody.
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
	return &stager{applier: applier{w: w}, notes: map[change.Name]*notes{}}, nil
}

// Fill implements sink.Stager.
func (g *stager) Fill(ctx context.Context, t *scd.Target, in sink.Copy) (int64, error) {
	return g.w.Stage(ctx, t, in)
}

// Apply implements sink.Stager.
func (g *stager) Apply(ctx context.Context, b *sink.Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	epoch, err := g.w.owned()
	if err != nil {
		return err
	}
	if g.broken {
		return errBroken
	}
	if err := g.write(ctx, epoch, b); err != nil {
		g.broken = true
		err = g.w.alone(err)
		g.close()
		return err
	}
	if !b.More {
		g.at = b.Position
	}
	return nil
}

func (g *stager) write(ctx context.Context, epoch int64, b *sink.Batch) (err error) {
	if b.First == g.open {
		return fault.Corrupted("pieces of a transaction out of order: first %v, one open %v", b.First, g.open)
	}
	if g.s == nil {
		if g.s, err = g.w.connect(ctx); err != nil {
			return err
		}
		g.shapes = map[change.Name]*shape{}
		if err := g.s.choose(ctx); err != nil {
			return err
		}
	}
	if !g.open {
		if err := g.do(ctx, "START TRANSACTION", "begin"); err != nil {
			return err
		}
		g.open = true
	}
	for i := range b.Targets {
		t := b.Targets[i].Target
		sh := g.shapes[t.Name]
		if sh == nil || sh.target != t {
			place := change.Name{Schema: "_tailrace", Table: sink.StageOf(g.w.cfg.Pipeline, g.w.qualified(t.Name))}
			if sh, err = g.w.shapeAt(ctx, g.s, t, place); err != nil {
				return err
			}
			g.shapes[t.Name] = sh
		}
		err := g.target(ctx, sh, &b.Targets[i], false)
		if n := g.notes[t.Name]; err == nil && n != nil {
			err = g.note(ctx, sh, n, &b.Targets[i])
		}
		if err != nil {
			return &targetError{sh, err}
		}
	}
	if b.More {
		return nil
	}
	g.open = false
	if err := g.w.fence(ctx, g.s, epoch); err != nil {
		return err
	}
	return g.do(ctx, "COMMIT", "commit")
}

// Close implements sink.Stager.
func (g *stager) Close(context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.close()
}
