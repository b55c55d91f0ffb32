package mysql

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

func (sh *shape) createNotesSQL(notes string) string {
	return fmt.Sprintf("CREATE TABLE %s (%s) ENGINE = InnoDB ROW_FORMAT = DYNAMIC", notes, sh.list(isKey, func(c *column) string { return c.name + " " + c.definition() + " NOT NULL" }))
}

// differSQL notes the keys at which target and stage differ: of a history, its open
// versions.
func (sh *shape) differSQL(stage, notes string) [2]string {
	open := ""
	if sh.target.Kind == scd.Type2 {
		open = " AND t." + endColumn + " IS NULL"
	}
	key := sh.columns[sh.keys[0]].name
	insert := func(alias string) string {
		return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s", notes, sh.list(isKey, named), sh.list(isKey, func(c *column) string { return alias + c.name }))
	}
	on := sh.sameKey("t", "s")
	return [2]string{
		fmt.Sprintf("%s FROM %s AS s LEFT JOIN %s AS t ON %s%s WHERE t.%s IS NULL OR %s", insert("s."), stage, sh.name, on, open, key, sh.differs(notKey)),
		fmt.Sprintf("%s FROM %s AS t LEFT JOIN %s AS s ON %s WHERE s.%s IS NULL%s", insert("t."), sh.name, stage, on, key, open),
	}
}

// Note implements sink.Noter.
func (g *stager) Note(ctx context.Context, t *scd.Target) (from change.Position, ok bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return from, false, nil
	}
	n := &notes{table: g.w.resyncNotes(t), whole: len(t.Keys()) == 0}
	if !n.whole {
		err = g.onStage(ctx, t, "make a table of keys for", func(s *session, sh *shape, epoch int64) error {
			return g.w.heldFence(ctx, epoch, func() error {
				for _, sql := range []string{"DROP TABLE IF EXISTS " + n.table, sh.createNotesSQL(n.table)} {
					if _, err := s.exec(ctx, sql); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	if err != nil {
		return from, false, err
	}
	g.notes[t.Name] = n
	return g.at, true, nil
}

// onStage runs fn with a target's shape on a session of its own.
func (g *stager) onStage(ctx context.Context, t *scd.Target, doing string, fn func(s *session, sh *shape, epoch int64) error) error {
	epoch, err := g.w.owned()
	if err != nil {
		return err
	}
	s, err := g.w.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	sh, err := g.w.shapeOf(ctx, s, t)
	if err != nil {
		return err
	}
	return g.w.explain(fn(s, sh, epoch), doing, sh)
}

// Compare implements sink.Noter.
func (g *stager) Compare(ctx context.Context, t *scd.Target) error {
	if !g.Noted(t) {
		return nil
	}
	return g.onStage(ctx, t, "compare with its stage", func(s *session, sh *shape, epoch int64) error {
		return within(ctx, s, func() error {
			for _, sql := range sh.differSQL(g.w.resyncStage(t), g.w.resyncNotes(t)) {
				if _, err := s.exec(ctx, sql); err != nil {
					return err
				}
			}
			return g.w.fence(ctx, s, epoch)
		})
	})
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
	e := &encoder{sh: sh}
	l := g.list("INSERT INTO "+n.table+" ("+sh.list(isKey, named)+") VALUES ", "", sh, "note keys of")
	key := func(key scd.Key) (err error) {
		l.open()
		if l.buf, err = e.keyConstants(l.buf, key); err != nil {
			return err
		}
		return l.end(ctx)
	}
	row := func(row change.Row) (err error) {
		if err = e.parse(row, true); err != nil {
			return err
		}
		l.open()
		if l.buf, err = e.constants(l.buf, isKey, e.values); err != nil {
			return err
		}
		return l.end(ctx)
	}
	for i := range t.Rounds {
		r := &t.Rounds[i]
		if n.whole = n.whole || r.Truncate; n.whole {
			return nil
		}
		for _, k := range r.Deletes {
			if err := key(k); err != nil {
				return err
			}
		}
		for i := range r.Moves {
			if err := key(r.Moves[i].Old); err != nil {
				return err
			}
			if err := row(r.Moves[i].Row); err != nil {
				return err
			}
		}
		for _, list := range [][]change.Row{r.Inserts, r.Upserts, r.Patches} {
			for _, r := range list {
				if err := row(r); err != nil {
					return err
				}
			}
		}
	}
	return l.flush(ctx)
}
