package pipeline

import (
	"context"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/source"
)

// stretch is how far a stream is followed.
type stretch struct {
	position change.Position // stop when the mark has reached it; zero: never
	exact    bool            // never apply anything beyond it
	resume   string          // what the source says beside it
}

// placeOf is a snapshot's place in the log.
func placeOf(snap source.Snapshot) stretch {
	return stretch{position: snap.Position(), resume: resumeOf(snap)}
}

// resumeOf is what a source says beside the position of its snapshot.
func resumeOf(snap source.Snapshot) string {
	if r, ok := snap.(source.Resumable); ok {
		return r.Resume()
	}
	return ""
}

// reached reports whether a run that ends has nothing more to wait for: of the log up
// to its position, of the files those that were there.
func (f *follower) reached() bool {
	if f.open || f.drain && !f.drained || f.until.position.IsZero() && !f.drain {
		return false
	}
	return f.until.position.Compare(f.end) <= 0
}

// beyond reports whether tx ends after the stop position. A piece whose end is not
// known is judged by BEGIN's final LSN: see checkpoint.Table.Contains.
func (f *follower) beyond(tx *change.Tx) bool {
	t := checkpoint.Table{Since: f.until.position}
	return !t.Contains(tx)
}

// reach moves the mark to a position that is known to hold nothing more for us.
func (f *follower) reach(ctx context.Context, p change.Position) error {
	if f.applied.Before(p) {
		f.end = p
		if f.until.resume != "" {
			f.resume = f.until.resume
		}
		if err := f.flush(ctx); err != nil {
			return err
		}
	}
	return errReached
}
