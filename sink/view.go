package sink

import (
	"context"

	"tailrace/internal/change/rowsum"
	"tailrace/scd"
)

// Reader reads whole targets; see Writer for its methods.
type Reader interface {
	Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error
	Invariants(ctx context.Context, t *scd.Target) ([]string, error)
}

// Summer is a Reader that can reduce a target to sums of row hashes where it lies.
type Summer interface {
	// SumForm says of what a target's sums are made, its data columns in order; empty:
	// they cannot be compared with another server's. See rowsum.Form.
	SumForm(ctx context.Context, t *scd.Target) (string, error)

	// Sum adds up the rows that Scan gives in into, which has a place for each bucket,
	// all zero.
	Sum(ctx context.Context, t *scd.Target, s rowsum.Sums, into []rowsum.Bucket) error

	// ScanPart is Scan of the rows in some buckets.
	ScanPart(ctx context.Context, t *scd.Target, part rowsum.Part, fn func(key, row []byte) error) error
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
