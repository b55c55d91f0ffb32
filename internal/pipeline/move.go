package pipeline

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// Moves reports whether run moves the target of b to the lane of sequenced flows, where
// Plan finds that nothing is remembered of its rows: they were kept in the order of the
// log so far, and the new flow orders events by their position there too. Of a history
// every version would have to be remembered as the events that made it, which are gone;
// and with another sequence, or events of other flows, nothing says where a row stands.
func Moves(bound []Bound, b *Bound, p sink.Plan) bool {
	several := slices.ContainsFunc(bound, func(o Bound) bool { return o.second && o.Target.Name == b.Target.Name })
	return p.Unremembered && !several && b.flow != nil && b.Target.Kind == scd.Type1 && b.Target.Bitemporal == nil && slices.Equal(b.Spec.Sequenced.SequenceBy, []string{"_lsn"}) &&
		slices.Equal(b.flow.Names, []string{"_lsn"}) && !slices.ContainsFunc(p.Problems[:len(p.Problems)-1], func(f sink.Finding) bool { return f.Blocks })
}

// Abandons says what stands against a flow that had a sequence when its target was built:
// its rows are what the sequence made of the events, which need not be the source's rows.
func Abandons(p sink.Plan) *sink.Finding {
	if !p.Remembered || !p.Rows {
		return nil
	}
	return &sink.Finding{Blocks: true, What: "the target was built by a flow with sequence_by, and the flow has none now",
		Remedy: "put sequence_by back; or build the target anew with `tailrace run --overwrite`"}
}

// move moves a live target to the lane of sequenced flows: see sequenced.Seed.
func (s *session) move(ctx context.Context, b *Bound) error {
	c, err := s.channelOf(b.Target.Name)
	if err != nil {
		return err
	}
	// New columns first, by themselves: the rows are read while the rest is written.
	ordered := *b.Target
	ordered.Sequenced = false
	if err := s.dst.Create(ctx, &ordered); err != nil {
		return err
	}
	at := s.mark.Position
	if since := s.state(b.Target.Name).Since; at.Before(since) {
		at = since // a table that is catching holds what was there then
	}
	seed, err := sequenced.NewSeed(b.Target, b.Relation.Table, laneOptions(c.flows), at, s.mark.CommitTime.UnixMicro(), b.flow.Order)
	if err != nil {
		return err
	}
	var rows int64
	if err := c.memory.Seed(ctx, b.Target, seed.Head(), c.seeds(ctx, b, seed, &rows)); err != nil {
		return err
	}
	s.Log.Info("the target is kept by the position of events from now on", "target", b.Target.Name.String(), "position", at.String(), "rows", rows)
	return nil
}

// seeds gives the records that a target begins with.
func (c *channel) seeds(ctx context.Context, b *Bound, seed *sequenced.Seed, rows *int64) iter.Seq2[sequenced.Record, error] {
	return func(yield func(sequenced.Record, error) bool) {
		if !yield(seed.Define(definition(b)), nil) {
			return
		}
		err := c.memory.Rows(ctx, c.target, func(row change.Row) error {
			rec, err := seed.Row(row)
			if err != nil {
				return fault.Corrupted("a row of the destination cannot be read: %v", err)
			}
			if *rows++; !yield(rec, nil) {
				return errSeedStopped
			}
			return nil
		})
		if errors.Is(err, errSeedStopped) {
			return
		}
		if err != nil {
			yield(sequenced.Record{}, fmt.Errorf("read the rows: %w", err))
			return
		}
		fault.KillPoint("rows remembered")
	}
}

var errSeedStopped = errors.New("stopped")
