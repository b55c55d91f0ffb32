package pipeline

import (
	"context"
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd/sequenced"
)

// empties reports whether a change is a TRUNCATE of a table that a sequenced flow
// follows. It says nothing of its target as a whole, but deletes each of its rows.
func (r *route) empties(c *change.Change) bool {
	return c.Op == change.Truncate && r.shaper != nil && !r.flow.Feed
}

// empties reports whether a transaction holds such a change.
func (f *follower) empties(tx *change.Tx) bool {
	if !f.tables {
		return false
	}
	for i := range tx.Changes {
		if c := &tx.Changes[i]; c.Op == change.Truncate {
			for _, r := range f.routes[fromSource.relation(c.Table.ID)] {
				if r.empties(c) && !r.contains(tx) {
					return true
				}
			}
		}
	}
	return false
}

// empty deletes what a TRUNCATE statement takes from a sequenced target: each key that
// has a row, at its newest event's sequence and the statement's place. Later events of
// a higher sequence bring a key back, those of a lower one do not. The keys are gone
// through in portions of a batch, as pieces of one destination transaction: a target
// of any size is emptied in the memory of a batch.
func (f *follower) empty(ctx context.Context, r *route, tx *change.Tx, c *change.Change) error {
	if len(r.lane.flows) > 1 || len(f.flowsOf(r.Target.Name)) > 1 {
		return parkedBy(r.Target.Name, &sequenced.Park{
			Reason: fmt.Sprintf("TRUNCATE of table %s: several flows write its target, or did, and which rows were this flow's is not known", c.Table.Name),
		})
	}
	e, err := r.shaper.Emptied(tx, c)
	if err != nil {
		return parkedBy(r.Target.Name, err)
	}
	var from []byte
	for first := true; first || from != nil; first = false {
		// What came before is stored first, so that it is gone through too.
		if err := f.passOn(ctx, tx); err != nil {
			return err
		}
		from, err = r.lane.memory.Keys(ctx, r.Target, from, f.BatchRows, func(key []byte) error {
			e.Key = key
			r.lane.lane.Add(e)
			f.changes++
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what is remembered of %s: %w", r.Target.Name, err)
		}
	}
	fault.KillPoint("emptied")
	return nil
}

// passOn writes what is gathered as a piece of the running transaction.
func (f *follower) passOn(ctx context.Context, tx *change.Tx) error {
	if err := f.endTx(tx); err != nil || f.changes == 0 {
		return err
	}
	err := f.write(ctx, !f.piecing, true)
	f.piecing, f.open = true, true
	return err
}
