package sink

import (
	"context"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
)

// Rewinds is the part of a Writer that keeps rewind points and goes back to them.
//
// What is kept is what was there before: from a point on, everything that a batch is about
// to change is copied first, once for each point, in the batch's own transaction. So the
// state at point n of any row is what is kept of it under the lowest number from n on; of
// a row of which nothing is kept, the row itself. The newest number of all points (also
// one that is Gone) is the one under which is kept. While a pipeline has no point, nothing
// is kept and nothing is looked up.
//
// It is kept of a target:
//
//   - of type 1 and bitemporal: the row of each key that is touched, or that there is none;
//   - of an ordered history: the newest version of each such key, or that there is none
//     (older versions never change, and all that begins later came later);
//   - of a sequenced history: each version that is touched, by key and start, or that there is none;
//   - of a target without a key: the rows that came and, of a TRUNCATE, the rows that went.
//     Equal rows cannot be told apart, and so are counted;
//   - of what is remembered of it (Memory): each record that is put, removed or forgotten, by
//     its identity, or that there is none; its Head and its Counted as they were at the point.
//
// and of the pipeline: which files were taken since, which events were set aside or
// resolved since, and the violations as they were at the point. Mark, tables and flows
// stand in the point itself.
//
// What makes a target anew cannot be undone row by row: Load, Reset, Seed, Replace (also of
// a part) and what else fills or empties it outside of Apply notes a barrier, in its own
// transaction, instead of rows: no point before it can restore that target. A schema change
// is none: what is kept has the columns of the day, and a restored row has those of today; a
// column that was not there then gets its default, or NULL; one that is not there any
// more is left out.
//
// All is the owner's and fenced, but Points, Undo and TakenSince, which need no ownership
// and create nothing.
type Rewinds interface {
	// Point makes a rewind point of the mark as it stands, in one durable transaction. No
	// batch is open. It is refused (fault.Corrupt) where there is no mark.
	Point(ctx context.Context, label string) (checkpoint.Point, error)

	// Points reads the points, oldest first, with those that are Gone.
	Points(ctx context.Context) ([]checkpoint.Point, error)

	// DropPoints forgets the points with numbers below that one, and what is kept for them.
	// A number beyond the newest forgets all: from then on nothing is kept. What dies
	// between is finished by the next call.
	DropPoints(ctx context.Context, below int64) error

	// Undo says what a rewind to a point would restore, of each target of which something is
	// kept from that number on. It may take a while.
	Undo(ctx context.Context, to int64) ([]Undo, error)

	// TakenSince reads the files that a rewind to a point would make count as never taken, of
	// all relations. Like Points it needs no ownership.
	TakenSince(ctx context.Context, to int64) ([]change.File, error)

	// Rewind restores r.Targets and writes r.Mark in one transaction, durable when it
	// returns: a reader sees the one state or the other. What was kept of the restored
	// targets from that point on goes with it; of the others it stays. Points behind it are
	// Gone. A target with a change feed gets the differences into it, as Replace does. A
	// target with a barrier is refused; nothing has happened then.
	Rewind(ctx context.Context, r Rewind) error

	// Recall fills a target of this pipeline, which Create has made and which is empty, with
	// what a target of another pipeline in this destination was at one of its points: rows,
	// and what is remembered of them. done is recorded in the same durable transaction. It
	// returns the number of rows. The other pipeline may be at work meanwhile.
	Recall(ctx context.Context, t *scd.Target, of Past, done checkpoint.Table) (int64, error)
}

// Undo is what is kept of a target.
type Undo struct {
	Target  change.Name
	Rows    int64  // rows (of a history: versions, at least those of which something is kept) that a rewind would touch
	Barrier string // why the target cannot be restored to that point, a sentence without its end; empty: it can
}

// Rewind says what to restore.
type Rewind struct {
	To      int64         // the point's number
	Targets []*scd.Target // all others stay as they are
	// Mark is written in the same transaction: its head with Position, Resume and CommitTime
	// as they are (also earlier ones), and its tables and flows as by Save.
	Mark checkpoint.Mark
	// Relations of files whose taken files become those of the point.
	Relations []change.Name
}

// Past names a target of another pipeline as of one of its points.
type Past struct {
	Pipeline string
	Point    int64
	Target   *scd.Target // with the columns it has there
}
