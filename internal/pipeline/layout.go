package pipeline

import (
	"context"
	"fmt"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// relayout follows a change of a source table's layout: new columns are added to
// the target (NULL in old rows), dropped ones stay.
func (f *follower) relayout(ctx context.Context, r *route, layout *change.Table, tx *change.Tx) error {
	if err := r.settled(layout); err != nil {
		return f.at(tx, r, err)
	}
	next, err := r.evolve(layout)
	if err != nil {
		return f.at(tx, r, err)
	}
	if next != nil {
		if err := f.settleBefore(ctx, r, tx); err != nil {
			return err
		}
		for _, c := range next.Columns {
			if f.binary && !f.dst.Binary(c.Type) {
				// The start-up path decides the wire form anew.
				return fault.Retry(nil, "column %s of %s has a type that travels as text; reading the log anew", c.Name, r.Target.Name)
			}
		}
		if err := f.dst.Create(ctx, next); err != nil {
			return f.at(tx, r, fmt.Errorf("follow the new layout of %s: %w", layout.Name, err))
		}
		for _, c := range next.Columns[min(len(r.Target.Columns), len(next.Columns)):] {
			f.Log.Warn("the source table has a new column; it was added to the target, NULL in rows that are there", "target", next.Name.String(), "column", c.Name)
		}
		if r.lane != nil {
			if err := f.widen(ctx, r, next); err != nil {
				return f.at(tx, r, err)
			}
		} else {
			r.fold(next)
		}
		r.Target = next
	}
	judge, err := r.judgeFor(layout)
	if err != nil {
		return f.at(tx, r, fault.Refuse("correct the expectation and start again", "the layout of table %s changed: %v", layout.Name, err))
	}
	if r.lane == nil {
		r.judge = judge
	} else {
		flow, err := sequencedFlow(r.Spec, r.order, layout, r.Target)
		if err != nil {
			return f.at(tx, r, fault.Refuse("correct the flow and start again", "the layout of table %s changed: %v", layout.Name, err))
		}
		if !slices.EqualFunc(flow.Types, r.flow.Types, func(a, b change.Type) bool { return a.Name == b.Name }) || flow.SystemType.Name != r.flow.SystemType.Name {
			types := slices.Clip(flow.Types)
			if len(flow.System) > 0 {
				types = append(types, flow.SystemType)
			}
			return f.at(tx, r, fault.Refuse("give the column its old type back; or build the target anew with `tailrace run --overwrite`",
				"the sequence of flow %s has another type now: %s", flow.Name, typeNames(types)))
		}
		flow.Judge = judge
		r.flow, r.shaper = flow, sequenced.NewShaper(flow, r.Target)
	}
	for _, c := range r.Target.Columns {
		if r.layout.Find(c.Name) >= 0 && layout.Find(c.Name) < 0 {
			f.Log.Warn("the source table lost a column; the target keeps it: unchanged in rows that stay, NULL in new ones", "target", r.Target.Name.String(), "column", c.Name)
		}
	}
	r.layout = layout
	return nil
}

// widen gives a sequenced target's lane and all flows into it the target's new columns.
func (f *follower) widen(ctx context.Context, r *route, next *scd.Target) error {
	r.lane.target = next
	for _, routes := range f.routes {
		for _, o := range routes {
			if o.lane != r.lane || o == r {
				continue
			}
			o.Target = next
			flow, err := sequencedFlow(o.Spec, o.order, o.layout, next)
			if err == nil {
				flow.Judge, err = o.judgeFor(o.layout)
			}
			if err != nil {
				return err
			}
			o.flow, o.shaper = flow, sequenced.NewShaper(flow, next)
		}
	}
	for _, b := range r.lane.flows {
		b.Target = next
	}
	return r.lane.recall(ctx)
}

// settleBefore writes what the old layout's folder holds. Inside one transaction
// DDL and rows cannot be taken apart, so the part so far goes as a piece.
func (f *follower) settleBefore(ctx context.Context, r *route, tx *change.Tx) error {
	if !r.dirty {
		return nil
	}
	if r.inTx || f.open {
		return f.at(tx, r, fault.Refuse(fmt.Sprintf("tailrace backfill --table %s --overwrite", r.Target.Name),
			"table %s was altered in the middle of a transaction that also changed rows before it", r.layout.Name))
	}
	return f.flush(ctx)
}
