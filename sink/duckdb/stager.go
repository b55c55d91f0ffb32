//go:build !noduckdb

package duckdb

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/copystream"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// fillMost is for how long a stage is filled in one transaction. While one is open no
// checkpoint runs, and the stream's batches add to the write-ahead file; each end makes
// the engine write out what is gathered, some ms.
const fillMost = 2 * time.Second

// fillLook is how many rows are filled between looks at the clock: an engine's vector.
const fillLook = 2048

// stager writes stages with the means of Apply, on connections of its own. Its
// transactions write no table that a batch writes or makes, so neither makes the other
// fail. A snapshot of the file waits for their ends.
type stager struct {
	w      *Writer
	conn   *conn
	shapes map[change.Name]*shape
	turn   bool
	open   bool
	broken error
}

// Stager implements sink.Resyncs.
func (w *Writer) Stager() (sink.Stager, error) {
	if err := w.mustOwn(); err != nil {
		return nil, err
	}
	return &stager{w: w, shapes: map[change.Name]*shape{}}, nil
}

// Fill implements sink.Stager.
func (g *stager) Fill(ctx context.Context, t *scd.Target, in sink.Copy) (rows int64, err error) {
	w := g.w
	c, s, err := w.resyncing(ctx, t)
	if err != nil {
		return 0, err
	}
	defer c.close()
	r := copystream.NewReader(in.Rows, in.Binary, len(s.cols))
	for ended := false; err == nil && !ended; {
		err = g.alone(ctx, func() error {
			return inTransaction(ctx, c, func() error {
				if rows == 0 {
					if err := w.makeStage(ctx, c, s); err != nil {
						return err
					}
				}
				began := time.Now()
				enough := func(rows int) bool { return rows > 0 && rows%fillLook == 0 && time.Since(began) >= fillMost }
				n, last, err := w.copySome(ctx, c, w.stageOf(s), r, enough)
				rows, ended = rows+n, last
				return err
			})
		})
	}
	return rows, w.explain("copy into the stage of "+t.Name.String(), err)
}

// alone runs one transaction of the stager.
func (g *stager) alone(ctx context.Context, fn func() error) error {
	select {
	case g.w.staging <- struct{}{}:
		defer func() { <-g.w.staging }()
		return fn()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Apply implements sink.Stager.
func (g *stager) Apply(ctx context.Context, b *sink.Batch) error {
	if g.broken != nil {
		return fmt.Errorf("apply to stages after an error: %w", g.broken)
	}
	if err := g.write(ctx, b); err != nil {
		g.Close(ctx)
		g.broken = g.w.explain("apply to stages", err)
	}
	return g.broken
}

func (g *stager) write(ctx context.Context, b *sink.Batch) error {
	if b.First == g.open {
		return fault.Corrupted("a transaction's pieces come in the wrong order (first %t, open %t)", b.First, g.open)
	}
	if b.First && !b.More && len(b.Targets) == 0 {
		return nil
	}
	if b.First {
		if err := g.begin(ctx); err != nil {
			return err
		}
	}
	a := applier{w: g.w, conn: g.conn}
	for i := range b.Targets {
		t := &b.Targets[i]
		s, err := g.shape(ctx, t.Target)
		if err != nil {
			return err
		}
		for n := range t.Rounds {
			if err := a.type1(ctx, s, &t.Rounds[n], t.Restored); err != nil {
				return g.w.explain("write to the stage of "+t.Target.Name.String(), err)
			}
		}
	}
	if b.More {
		return nil
	}
	if _, err := g.conn.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	g.open = false
	g.endTurn()
	return nil
}

func (g *stager) begin(ctx context.Context) error {
	if g.conn == nil {
		c, err := g.w.reader(ctx)
		if err != nil {
			return err
		}
		g.conn = c
	}
	if err := g.w.roomLeft(); err != nil {
		return err
	}
	select {
	case g.w.staging <- struct{}{}:
		g.turn = true
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := g.conn.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	g.open = true
	return g.w.stillOurs(ctx, g.conn)
}

func (g *stager) endTurn() {
	if g.turn {
		g.turn = false
		<-g.w.staging
	}
}

// shape is the stage's as a target of type 1.
func (g *stager) shape(ctx context.Context, t *scd.Target) (*shape, error) {
	if s := g.shapes[t.Name]; s != nil {
		return s, nil
	}
	of, err := g.w.shape(ctx, t)
	if err != nil {
		return nil, err
	}
	name := g.w.stageFor(of)
	s := &shape{target: t, schema: bookSchema, table: name, name: g.w.bookTable(name), cols: of.stageColumns(), keys: of.keys, exact: true}
	g.shapes[t.Name] = s
	return s, nil
}

// Close implements sink.Stager.
func (g *stager) Close(context.Context) {
	if g.conn == nil {
		return
	}
	if g.open {
		// An error may have ended the transaction already.
		_, _ = g.conn.exec(context.Background(), "ROLLBACK")
		g.open = false
	}
	g.endTurn()
	g.conn.close()
	g.conn = nil
}
