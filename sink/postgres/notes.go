package postgres

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// Note implements sink.Noter.
func (g *stager) Note(ctx context.Context, t *scd.Target) (from change.Position, ok bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.apply.open {
		return from, false, nil
	}
	s, sh, err := g.w.resyncing(ctx, t)
	if err != nil {
		return from, false, err
	}
	defer s.close(ctx)
	n := &notes{table: g.w.resyncNotes(sh), whole: len(sh.keys) == 0}
	if !n.whole {
		err = g.fenced(ctx, s, fmt.Sprintf("CREATE UNLOGGED TABLE %s AS SELECT %s FROM %s WHERE false", n.table, sh.stageKeys(), g.w.resyncStage(sh)))
	}
	if err != nil {
		return from, false, g.w.explain(ctx, err, "make a table of keys for", sh)
	}
	g.notes[t.Name] = n
	return g.at, true, nil
}

// fenced runs statements in one transaction.
func (g *stager) fenced(ctx context.Context, s *session, statements ...string) error {
	epoch, err := g.w.owned()
	if err != nil {
		return err
	}
	if err := s.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	for _, sql := range statements {
		if err := s.exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := g.w.fence(ctx, s, epoch); err != nil {
		return err
	}
	return s.exec(ctx, "COMMIT")
}

// Compare implements sink.Noter.
func (g *stager) Compare(ctx context.Context, t *scd.Target) error {
	if g.Noted(t) {
		s, sh, err := g.w.resyncing(ctx, t)
		if err != nil {
			return err
		}
		defer s.close(ctx)
		err = g.fenced(ctx, s, sh.differSQL(g.w.resyncStage(sh), g.w.resyncNotes(sh))...)
		return g.w.explain(ctx, err, "compare with its stage", sh)
	}
	return nil
}

// Noted implements sink.Noter.
func (g *stager) Noted(t *scd.Target) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.notes[t.Name]
	return n != nil && !n.whole
}

// note notes the keys of a batch's rounds, as often as they come.
func (g *stager) note(ctx context.Context, sh *shape, n *notes, t *sink.TargetRounds) error {
	a := &g.apply
	var keys []scd.Key
	for r := range t.Rounds {
		round := &t.Rounds[r]
		n.whole = n.whole || round.Truncate
		if n.whole {
			return nil
		}
		keys = append(keys, round.Deletes...)
		for i := range round.Moves {
			keys = append(keys, round.Moves[i].Old)
		}
		rows := make([]change.Row, 0, len(round.Moves))
		for i := range round.Moves {
			rows = append(rows, round.Moves[i].Row)
		}
		for _, list := range [][]change.Row{rows, round.Inserts, round.Upserts, round.Patches} {
			for _, row := range list {
				key, err := keyOf(sh, row)
				if err != nil {
					return err
				}
				keys = append(keys, key)
			}
		}
	}
	i := 0
	return a.copyIn(ctx, sh, "note keys of", copyInto(n.table, sh.stageKeys(), t.Binary), form(t.Binary), func() ([]change.Value, bool, error) {
		if i == len(keys) {
			return nil, false, nil
		}
		var err error
		a.keyValues, err = keys[i].Values(a.keyValues, len(sh.keys))
		i++
		return a.keyValues, err == nil, err
	})
}
