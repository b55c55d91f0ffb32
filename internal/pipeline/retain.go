package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tailrace/internal/fault"
	"tailrace/source"
)

// Retention bounds what the source keeps for this pipeline (promise I9).
type Retention struct {
	Max  int64 // bytes of log; 0: no bound of ours
	Drop bool  // beyond it: drop the slot and stop, instead of warning
}

// errRetained ends a run whose source keeps too much for it. The slot is dropped on
// the way out, when nothing reads it any more.
var errRetained = errors.New("the source keeps too much log for this pipeline")

// retainedFor is how long the bound must be exceeded before the slot is dropped for it.
// A server moves what a slot keeps only with its records of running transactions,
// every 15 s: a pipeline that has just caught up keeps nothing in truth.
var retainedFor = 45 * time.Second

// warnEvery is how often the same warning is worth a line.
const warnEvery = time.Minute

// retained judges what the source keeps, and tells the statistics.
func (c *Config) retained(state source.State, now time.Time) error {
	c.Stats.Head.Set(state.Head)
	kept := state.Slot.Retained
	c.Stats.Retained.Store(max(kept, state.Beside))
	if c.Retention.Max <= 0 || kept <= c.Retention.Max || !state.Slot.Exists || state.Slot.Problem != "" {
		c.Stats.over.Store(0)
		return nil
	}
	c.Stats.over.CompareAndSwap(0, now.UnixNano())
	if c.Retention.Drop && now.UnixNano()-c.Stats.over.Load() >= int64(retainedFor) {
		return &fault.Error{Kind: fault.Operator, Err: errRetained,
			Op:     fmt.Sprintf("slot %s is dropped because it keeps %d MiB of log, above source.max_retained_wal (%d MiB); the mark is at %s", state.Slot.Name, kept>>20, c.Retention.Max>>20, c.Stats.Applied.Get()),
			Remedy: "find out why the pipeline fell behind (the lines above say it); then `tailrace run --overwrite` copies everything again"}
	}
	if last := c.Stats.warned.Load(); now.UnixNano()-last >= int64(warnEvery) && c.Stats.warned.CompareAndSwap(last, now.UnixNano()) {
		c.Log.Warn("the source keeps more log for this pipeline than source.max_retained_wal allows", "slot", state.Slot.Name, "kept_mib", kept>>20, "allowed_mib", c.Retention.Max>>20)
	}
	return nil
}

// keptBeside judges what the source keeps for a copy beside the stream: that alone is
// given up for it.
func (s *session) keptBeside(state source.State, now time.Time) {
	c := s.copies.running()
	if c == nil || s.Retention.Max <= 0 || state.Beside <= s.Retention.Max {
		return
	}
	if c.over.IsZero() {
		c.over = now
		s.Log.Warn("the source keeps more log for a copy beside the stream than source.max_retained_wal allows", "tables", c.names(), "kept_mib", state.Beside>>20, "allowed_mib", s.Retention.Max>>20)
	}
	if s.Retention.Drop && now.Sub(c.over) >= retainedFor {
		c.cancel(fault.Refuse("raise source.max_retained_wal, and ask again: tailrace resync --table",
			"the source keeps %d MiB of log for the copy of %s, above source.max_retained_wal (%d MiB)", state.Beside>>20, c.names(), s.Retention.Max>>20))
	}
}

// lookAway looks at a source whose pipeline cannot run now, between two attempts:
// what it keeps for us goes on growing. It gives up soon, for the next attempt must
// not wait for it; what cannot be asked is not judged.
func (c *Config) lookAway(ctx context.Context) error {
	if c.OpenSource == nil {
		return nil // files: nothing is kept
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	src, err := c.OpenSource(ctx)
	if err != nil {
		return nil
	}
	defer func() {
		if err := src.Close(ctx); err != nil {
			c.Log.Debug("closing failed", "what", "source", "error", err.Error())
		}
	}()
	state, err := src.State(ctx)
	if err != nil || state.Keepless {
		return nil
	}
	return c.letGo(ctx, src, c.retained(state, time.Now()))
}

// letGo drops the slot if err is that the source keeps too much; it returns err.
func (c *Config) letGo(ctx context.Context, src source.Source, err error) error {
	if !errors.Is(err, errRetained) {
		return err
	}
	if failed := src.Release(ctx); failed != nil {
		return fmt.Errorf("%w; but the slot could not be dropped: %w", err, failed)
	}
	return err
}
