package source

import (
	"context"
	"time"

	"tailrace/internal/change"
)

// Keeper is a Source that can keep its log readable further back than the mark, for rewind
// points. Following from the mark costs no more for it: what is kept is held by something
// of its own (PostgreSQL: a second slot, the keep slot, beside the live one), or by the
// server for everybody (MySQL: the binlog's own expiry, which is only looked at).
//
// Keep, Return and Unkeep are called by one goroutine at a time, also beside Follow.
type Keeper interface {
	// Keep makes the log readable from p on and lets the source forget what lies before.
	// p never lies before the live slot's confirmed position where nothing is kept yet, and
	// never goes back. It is idempotent. Where what lies behind p is lost it says so by
	// Kept, not by an error.
	Keep(ctx context.Context, p change.Position) error

	// Kept reads from where on the log can be read. It changes nothing.
	Kept(ctx context.Context) (Kept, error)

	// Return makes Follow possible from anywhere that is kept: the live slot becomes a copy
	// of the keep slot. The keep slot stays. It can be killed anywhere and called again;
	// until it has returned nil the live slot may be missing, and never has it lost
	// anything that the keep slot holds. Where the live slot can already be followed from p
	// nothing is done.
	Return(ctx context.Context, p change.Position) error

	// Unkeep lets the source forget. Missing ones are fine.
	Unkeep(ctx context.Context) error

	// CheckKeep looks for what would keep points from being made, or from being replayed
	// for as long as they are kept (window): see Source.Check, which asks nothing of it.
	CheckKeep(ctx context.Context, window time.Duration) ([]Finding, error)
}

// Kept is what a source keeps for rewind points.
type Kept struct {
	Exists bool            // something keeps it: PostgreSQL's keep slot is there; elsewhere always
	Name   string          // of the keep slot; empty: there is none to name
	From   change.Position // it can be read from here on
	Bytes  int64           // of log from there to the end; 0 where nobody can say
	Lost   bool            // what Keep was asked for last cannot be read any more; of a keep slot: nothing of it, and From means nothing
	Why    string          // Lost: why, a sentence without its end
}

// Rereader is a Source of files that can say whether those that were taken can be taken
// again, as a replay does.
type Rereader interface {
	// Unchanged compares files that were taken with those that are there now: path, size
	// and checksum, and where files are taken in the order of their times the time too. It
	// reads every byte of each, in little memory, and returns those of which something
	// differs, in the order given; none: all can be taken again and give what they gave.
	// Entries that are no file (change.File.Ends) are passed over. It changes nothing.
	Unchanged(ctx context.Context, taken []change.File) ([]Problem, error)
}

// Problem is a file that cannot be taken again as it was.
type Problem struct {
	File change.File
	What string // what is wrong with it, as the end of a sentence about it: is gone
}
