package pipeline

import (
	"context"
	"fmt"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// seal makes files durable that were taken since the position moved: a durable
// transaction makes all before it durable. What the position says, confirm waits for.
func (f *follower) seal(ctx context.Context) error {
	if !f.unsealed || f.open { // an open transaction holds the mark's row; files not sealed come again
		return nil
	}
	if err := f.dst.Save(ctx, f.head()); err != nil {
		return fmt.Errorf("write the mark: %w", err)
	}
	return nil
}

// confirm tells the source what is durable: durable first, acknowledge second.
// After the loop's end it returns when everything applied is confirmed, at the
// latest after the drain's limit.
func (f *follower) confirm(ctx context.Context) error {
	var deadline <-chan time.Time
	done := f.done
	var confirmed change.Position // by this connection: the source is told anew after each start
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		want := f.Stats.Applied.Get()
		if confirmed.Before(want) {
			durable, err := f.dst.Durable(ctx)
			if err != nil {
				return fmt.Errorf("ask what is durable: %w", err)
			}
			if confirmed.Before(durable) {
				confirmed = durable
				f.src.Confirm(durable)
				f.Stats.Confirmed.Set(durable)
				fault.KillPoint("confirmed")
			}
		}
		behind := confirmed.Before(f.Stats.Applied.Get())
		if done == nil && !behind {
			return nil
		}
		wait := time.Hour
		if behind {
			wait = durableEvery
		}
		timer.Reset(wait)
		select {
		case <-done:
			done = nil
			deadline = time.After(f.DrainMax)
		case <-f.wake:
		case <-timer.C:
		case <-deadline:
			f.Log.Warn("stopped before everything applied was durable; the next start finds it by the mark", "applied", f.Stats.Applied.Get().String(), "confirmed", confirmed.String())
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
