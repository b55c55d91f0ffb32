// Package sink is the contract between the corridor and a destination, and what
// all destinations share. One folder below it per destination.
package sink

import (
	"context"
	"io"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Writer is one destination as one pipeline sees it. sink/sinktest is the
// executable form of this contract; every Writer passes it on its real server.
//
// A Writer is opened without touching the destination's contents. Everything of
// ours lives in schema _tailrace; nothing of ours is ever a column of a target.
// Identifiers are quoted everywhere; errors follow internal/fault and never hold
// row values.
//
// Concurrency: Load may run in several goroutines, beside State, Heartbeat and
// Durable. Apply is called by one goroutine, never beside Load of the same target.
type Writer interface {
	// Own makes this process the pipeline's owner: epoch + 1, the lock taken,
	// bookkeeping created where missing. If a live owner exists it returns an error
	// wrapping fault.ErrOwned that names host, pid and heartbeat age, within 2 s; a
	// dead or stale one (heartbeat older than 15 s by the destination's clock) is
	// taken over. wait > 0 waits that long for an owner on another host to become
	// stale. Call once, before any writing method. While owned, the heartbeat is
	// kept by Heartbeat.
	Own(ctx context.Context, me checkpoint.Owner, wait time.Duration) error

	// Heartbeat renews the owner row; the pipeline calls it every 2 s. An error
	// wrapping fault.ErrFenced means the pipeline was taken over: stop at once.
	Heartbeat(ctx context.Context) error

	// State reads the mark. It needs no ownership and creates nothing: where the
	// bookkeeping is missing it returns the zero Mark.
	State(ctx context.Context) (checkpoint.Mark, error)

	// Save replaces the mark's head and upserts the given tables and flows, in one
	// durable transaction, fenced by the epoch. Those not listed stay as they are; a
	// listed one with phase None is forgotten. A zero Position leaves position and commit
	// time as they are. It may be called beside Apply.
	Save(ctx context.Context, m checkpoint.Mark) error

	// Binary reports whether binary values of t can be loaded and applied as they
	// are into the column that Plan would make, or into an existing one of that type.
	Binary(t change.Type) bool

	// Plan compares the target with what is there and changes nothing.
	Plan(ctx context.Context, t *scd.Target) (Plan, error)

	// Create carries out Plan's statements. It is idempotent.
	Create(ctx context.Context, t *scd.Target) error

	// Load fills the target with one copy of the source table and records done
	// (phase and since) in the same transaction: after a crash either all of it is
	// there or none. With empty the target is first emptied in that transaction
	// (a copy that died, --overwrite). It returns the number of rows.
	Load(ctx context.Context, t *scd.Target, in Copy, empty bool, done checkpoint.Table) (int64, error)

	// Apply writes one batch: rows and mark in one destination transaction, fenced
	// by the epoch. When it returns nil the batch is committed (not yet durable:
	// see Durable). On any error nothing of the batch is there and the Writer must
	// be closed and opened again, except where the error says otherwise. With
	// b.More the transaction stays open for the next piece of the same source
	// transaction; the last piece commits all of them together.
	Apply(ctx context.Context, b *Batch) error

	// Durable returns the newest applied position that would survive a crash of the
	// destination now; it never waits longer than one round trip. Only this may be
	// confirmed to the source.
	Durable(ctx context.Context) (change.Position, error)

	// Scan reads a target's rows for verify, in any order; of a type 2 target the
	// open versions. key and row are canonical forms that equal Canonical's for the
	// same values; they are valid during the call only.
	Scan(ctx context.Context, t *scd.Target, fn func(key, row []byte) error) error

	// Canonical appends to dst the canonical form of a complete source row (target
	// column order), as Scan would give it if the destination holds it; keyLen bytes
	// of it, at its start, are the key's.
	Canonical(t *scd.Target, row change.Row, dst []byte) (out []byte, keyLen int, err error)

	// Invariants checks a type 2 target: intervals not overlapping, none empty, at
	// most one open version a key. It also checks that no key of a type 1 target
	// stands twice, and that no interval of a bitemporal target is empty. It returns
	// sentences, one a violated invariant with its count.
	Invariants(ctx context.Context, t *scd.Target) ([]string, error)

	// Show reads rows as text for printing, ordered by key (and start, of a bitemporal
	// target both starts): first the
	// header, then each row; nil is NULL.
	Show(ctx context.Context, q ShowQuery, fn func(cells []*string) error) error

	// Teardown removes this pipeline's bookkeeping (and _tailrace when it was the
	// last). Targets stay.
	Teardown(ctx context.Context) error

	// Close gives up ownership (the owner row is removed so that the next start
	// need not wait) and releases everything. Safe after any error.
	Close(ctx context.Context) error
}

// Plan is what a destination would do for one target, and what stands against it.
type Plan struct {
	Exists   bool
	Rows     bool      // it exists and holds at least one row
	DDL      []string  // statements Create would run, readable SQL
	Problems []Finding // why the existing table cannot take this flow

	// Unremembered: it holds rows, and nothing is remembered of the events that made
	// them, which is the last of Problems. Memory.Seed mends it, where it may.
	Unremembered bool
	// Remembered: the target is an ordered one, and something is remembered of it, as of a
	// sequenced one. Create drops that.
	Remembered bool
}

// Finding is one result of a check, with its remedy.
type Finding struct {
	Blocks bool   // the pipeline cannot run before this is mended
	What   string // one sentence
	Remedy string // exact statement where there is one
	Reset  bool   // Memory.Reset and Create mend it, as --overwrite does
	Flow   bool   // the table is as another kind of flow, or one with another key, has left it: the declaration has changed
}

// Copy is the rows of one source table as a PostgreSQL COPY stream (the binary
// or the text format of the COPY command's documentation, header and trailer
// included for binary). Its columns are the target's data columns in order; for
// a type 2 target __START_AT (timestamptz) and __END_AT (timestamptz, NULL)
// follow.
type Copy struct {
	Binary bool
	Rows   io.Reader
}

// Batch is what Apply writes: the rounds of each touched target, and the mark.
type Batch struct {
	Targets []TargetRounds

	// Position, Resume and CommitTime become the mark's; with More they are ignored.
	Position   change.Position
	Resume     string
	CommitTime time.Time

	// First and More frame a source transaction that comes in pieces: First on its
	// first piece, More on all but its last. A whole batch has First and not More.
	// Steps of type 2 in later pieces compose with those of earlier pieces of the
	// same transaction: a version that an earlier piece began is replaced, and one
	// that an earlier piece closed is reopened before the step is judged.
	First, More bool

	// Live lists targets that this batch brings from catching to live.
	Live []change.Name

	// Files were taken by this batch.
	Files []change.File
	// Aside are events that a rule of their flow set aside in this batch.
	Aside []Aside
	// Violations are what expectations of flows met in this batch; they are added to what
	// is kept. Nothing stands twice.
	Violations []Violation
	// Resolved are events in quarantine that this batch applies: they are marked as
	// resolved in its transaction. Each is named once and must not be resolved yet
	// (else corrupt): so an event that was set aside is applied at most once.
	Resolved []int64
}

// TargetRounds is one target's part of a batch.
type TargetRounds struct {
	Target *scd.Target
	Binary bool // values are in binary form (else text); all of one batch agree
	Rounds []scd.Round
	// Restored: the target comes from a backup that may hold what these rounds do, and
	// later changes (scd.Folder.Restored). A Patch whose row is not there is left out; no
	// Move has Absent columns. Type 1 with a key only.
	Restored bool
	// Hidden is what a sequenced target remembers from this batch: done first (its
	// TruncateBelow speaks of what was stored before), in the same transaction.
	Hidden *sequenced.Work
}

// ShowQuery says what Show reads.
type ShowQuery struct {
	Target *scd.Target // name, kind and key columns; column types are not needed
	AsOf   string      // type 2 and bitemporal: only versions valid at this instant (timestamp text) or value of the sequence (of several columns: see SequenceValues); empty = all versions
	// KnownAt, of a bitemporal target: only rows that were believed at this value of its
	// system sequence; empty: all.
	KnownAt string
}
