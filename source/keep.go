package source

import (
	"context"

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
}

// Kept is what a source keeps for rewind points.
type Kept struct {
	Exists bool            // something keeps it: PostgreSQL's keep slot is there; elsewhere always
	Name   string          // of the keep slot; empty: there is none to name
	From   change.Position // it can be read from here on
	Bytes  int64           // of log from there to the end; 0 where nobody can say
	Lost   bool            // the keep slot has lost its log: From means nothing
	Why    string          // Lost: why
}
