package sink

import (
	"context"

	"tailrace/scd"
)

// Reader reads whole targets; see Writer for its methods.
type Reader interface {
	Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error
	Invariants(ctx context.Context, t *scd.Target) ([]string, error)
}

// View is the targets as they stood at the moment at which it was opened, whatever is
// applied meanwhile. It is an open transaction: the destination keeps the rows for it
// that are replaced meanwhile. One goroutine uses it at a time.
type View interface {
	Reader
	Close(ctx context.Context)
}

// Views is the part of a Writer that can keep a moment.
type Views interface {
	// View opens one; no batch is being applied meanwhile.
	View(ctx context.Context) (View, error)
}
