package pipeline

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/source"
)

// watch looks at the source beside the stream: how far its log goes and how much of
// it is kept for us, and, less often, at tables whose identity stopped serving or that
// are not published any more. Those it parks, with the remedy.
func (f *follower) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var measured time.Time
	for looked := time.Now(); ; {
		state, err := f.src.State(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("look at the source: %w", err)
		}
		if err := f.retained(state, time.Now()); err != nil {
			return err
		}
		f.keptBeside(state, time.Now())
		f.Stats.Queued.Store(f.queue.size())
		if time.Since(measured) >= feedsEvery {
			measured = time.Now()
			f.measureFeeds(ctx)
		}
		if time.Since(looked) >= watchEvery {
			looked = time.Now()
			losses, err := f.src.Watch(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("look at the catalogue: %w", err)
			}
			if err := f.park(ctx, losses, f.missing(state)); err != nil {
				return err
			}
		}
		select {
		case <-f.done:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// park sets the targets of tables aside: of those that lost their identity all but
// the append-only ones, of those that are gone all. The stream is re-entered by the
// front door, so that no loop has to know of it.
func (f *follower) park(ctx context.Context, lost, gone []source.Loss) error {
	var parked []checkpoint.Table
	add := func(l source.Loss, appendOnly bool) {
		for _, r := range f.routes[fromSource.relation(l.ID)] {
			already := slices.ContainsFunc(parked, func(p checkpoint.Table) bool { return p.Target == r.Target.Name })
			if !already && (appendOnly || !r.Target.AppendOnly) {
				parked = append(parked, f.parked(f.state(r.Target.Name), fmt.Sprintf("table %s: %s", l.Table, l.Reason), l.Remedy))
			}
		}
	}
	for _, l := range lost {
		add(l, false)
	}
	for _, l := range gone {
		add(l, true)
	}
	if len(parked) == 0 {
		return nil
	}
	m := f.head() // beside Apply: the position is the loop's
	m.Tables = parked
	if err := f.dst.Save(ctx, m); err != nil {
		return fmt.Errorf("park tables: %w", err)
	}
	for _, p := range parked {
		f.Stats.SetPhase(p.Target, checkpoint.Parked)
		f.Log.Error("table is parked", "target", p.Target.String(), "reason", p.Reason)
	}
	return fault.Retry(nil, "entering anew without the parked tables")
}

// missing finds followed tables that are in no publication of ours any more. They
// were dropped (and perhaps made again), or taken out by somebody: nothing of them
// arrives.
func (f *follower) missing(state source.State) (gone []source.Loss) {
	if state.Published == nil {
		return nil
	}
	for key, routes := range f.routes {
		id := routes[0].Relation.Table.ID
		if key == fromSource.relation(id) && !slices.Contains(state.Published, id) {
			gone = append(gone, source.Loss{ID: id, Table: routes[0].Relation.Table.Name,
				Reason: "it was dropped, dropped and made again, or taken out of the publication: its changes are not sent any more"})
		}
	}
	return gone
}
