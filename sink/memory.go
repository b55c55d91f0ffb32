package sink

import (
	"context"
	"iter"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Memory is the part of a Writer that flows with a user's sequence, files and
// quarantine need: reading back what Apply stored beside the targets. The same
// rules of concurrency and errors hold; methods only read, except Reset, Seed, StartOver,
// Forget, Resolve, SetAside and Afresh.
//
// What is remembered of a target is one table in schema _tailrace (rows: key,
// sequence, place, body, tombstone, time; identity the first three, compared as
// bytes), made by Create, and its Head. Teardown removes both.
type Memory interface {
	// Reset empties a sequenced target and what is remembered and counted of it (also its
	// violations), fenced, in one durable transaction: its first copy begins again. Its
	// events in quarantine are marked as resolved: those that are still bad come again with the copy. A table that
	// this pipeline made and that no longer fits is dropped, so that Create makes it
	// anew; a target that is not there is fine.
	Reset(ctx context.Context, t *scd.Target) error

	// Seed makes an ordered target a sequenced one: in one durable, fenced transaction the
	// table of what is remembered of it is made and filled with records, in any order,
	// and its Head with head. The target's rows stay as they are; records may read them
	// meanwhile (Rows). On any error, also one of records, nothing is made. It is for
	// targets of which Plan says Unremembered.
	Seed(ctx context.Context, t *scd.Target, head sequenced.Head, records iter.Seq2[sequenced.Record, error]) error

	// Head reads what is remembered of a sequenced target as a whole; the zero Head
	// where nothing is.
	Head(ctx context.Context, t *scd.Target) (sequenced.Head, error)

	// Counted reads what was counted of a sequenced target's events since its first copy
	// began: the sum of what Apply was given with its batches (sequenced.Work.Counts),
	// and the deletes that it has forgotten. Zero where nothing is.
	Counted(ctx context.Context, t *scd.Target) (sequenced.Counts, error)

	// Remembered reads the records of a sequenced target that answer the lookups (see
	// sequenced.Lookup), in any order. It sees what the open transaction wrote, if a
	// batch is open (More). The callee may keep the record's memory.
	Remembered(ctx context.Context, t *scd.Target, at []sequenced.Lookup, fn func(sequenced.Record) error) error

	// RememberedBelow reads the keys that have a record at p or below, each once or
	// more often. The callee may keep the memory.
	RememberedBelow(ctx context.Context, t *scd.Target, p sequenced.Place, fn func(key []byte) error) error

	// Keys reads about limit of the keys that something is remembered of (not the empty
	// key), each once, in an order of its own: from the first on, or from where an earlier
	// call ended. next is where the following call begins; nil: no more are left. Calls may
	// lie around Apply of pieces, which takes no key away. It sees what the open transaction
	// wrote, as Remembered does. The callee may keep the memory.
	Keys(ctx context.Context, t *scd.Target, from []byte, limit int, fn func(key []byte) error) (next []byte, err error)
	// Records reads every record of a sequenced target but those of the empty key: those
	// of one key one after the other, by sequence and place; keys in any order. It holds a
	// bounded part of them in memory. The callee may keep the record's memory.
	Records(ctx context.Context, t *scd.Target, fn func(sequenced.Record) error) error

	// Rows reads every row of a sequenced target in any order: its columns in the
	// target's order, of type 2 then __START_AT and __END_AT, as the texts that a source
	// gives of such values. row is valid during the call only.
	Rows(ctx context.Context, t *scd.Target, fn func(row change.Row) error) error

	// Remembers counts the records of a sequenced target's keys (not those of the empty
	// key, which are about the target); zero where nothing is. It takes a second at
	// most, and estimates where counting would take longer.
	Remembers(ctx context.Context, t *scd.Target) (MemorySize, error)

	// Files reads the set of files that were taken (Batch.Files of all batches).
	Files(ctx context.Context) ([]change.File, error)

	// Quarantine reads the events that were set aside and are not resolved, in the
	// order they were set aside; flow empty: of all flows. fn may call Apply, also with
	// a batch that resolves what it was given.
	Quarantine(ctx context.Context, flow string, fn func(Aside) error) error

	// Unresolved counts, by flow, the events that were set aside and are not resolved.
	Unresolved(ctx context.Context) (map[string]int64, error)

	// StartOver forgets which files were taken, what is in quarantine and all violations,
	// fenced, in one durable transaction: everything is going to come again.
	StartOver(ctx context.Context) error

	// Forget makes the files of relations count as never taken, fenced, in one durable
	// transaction.
	Forget(ctx context.Context, relations []change.Name) error

	// Resolve marks events set aside as resolved, fenced, in one durable transaction.
	Resolve(ctx context.Context, ids []int64) error

	// Violations reads the sums of what Apply and SetAside were given, of the whole
	// pipeline, by target, flow, expectation and outcome.
	Violations(ctx context.Context) ([]Violation, error)

	// SetAside stores events and violations as Apply does, but fenced, in one durable
	// transaction of its own: beside Load, never beside Apply or itself.
	SetAside(ctx context.Context, events []Aside, met []Violation) error

	// Afresh marks a flow's events in quarantine as resolved and forgets its violations,
	// fenced, in one durable transaction: its relation is read from the beginning.
	Afresh(ctx context.Context, target change.Name, flow string) error
}

// Violation counts what an expectation of a flow met.
type Violation struct {
	Target      change.Name
	Flow        string
	Expectation string
	Met         string // "warn" or "drop": violated, and what became of the row; or NotJudged
	Events      int64
}

// NotJudged is a Violation that may be none: the event left a column as it was that the
// expectation reads.
const NotJudged = "not_judged"

// MemorySize is how much is remembered of a target.
type MemorySize struct {
	Records    int64
	Tombstones int64 // among them
	Estimated  bool  // from a sample
}

// Aside is an event in quarantine.
type Aside struct {
	ID       int64 // given by the destination
	Flow     string
	Target   change.Name
	Reason   string // no row values
	Position string // where it came from, for people: a log position and ordinal, or a file and line
	At       []byte // its place in the source, which a retry keeps
	Time     time.Time
	Event    []byte // JSON object: what the source sent, so that it can be judged again
}
