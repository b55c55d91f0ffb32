package sink

import (
	"context"

	"tailrace/checkpoint"
	"tailrace/scd"
)

// Parts is what a Writer can do beside Load where it takes one table's copy in
// several streams at once: BeginParts, LoadPart for each part (in any order, several
// at once), EndParts. The rows are several transactions, so they are gathered where
// nobody looks for them: whoever reads the target finds no table, and after EndParts
// the whole of it.
type Parts interface {
	// BeginParts prepares a target that Create has made. What an earlier copy in parts
	// has left is dropped. It returns false where the target's copy has to be one Load:
	// it was there before this pipeline, it holds rows, it has what depends on it.
	BeginParts(ctx context.Context, t *scd.Target) (bool, error)

	// LoadPart adds the rows of one stream, in a transaction of its own, and returns
	// their number. After a crash the copy has to begin again, unless EndParts had
	// begun.
	LoadPart(ctx context.Context, t *scd.Target, in Copy) (int64, error)

	// EndParts is called when all parts are loaded. First it remembers durably that
	// they are (phase copying, with done's since); then it gives the target, which has its
	// key by then, its place, and records done, in one durable transaction where tables
	// can be moved in one. After a crash in between it is called again, with no part
	// loaded again. If done has no phase, nothing is remembered.
	EndParts(ctx context.Context, t *scd.Target, done checkpoint.Table) error
}
