// Package scd decides what a target must hold: it turns changes into the net
// work that a destination does in set-based SQL. It is pure: no clock, no
// database, no goroutine.
//
// This is the ordered lane: the changes of a key arrive in the order of the
// source's log, so no hidden state is needed. A Folder takes whole transactions
// (or pieces of one) for one target and gives Rounds.
package scd

import (
	"time"

	"tailrace/internal/change"
)

// Kind says what a target keeps of its rows' past.
type Kind uint8

const (
	Type1 Kind = 1 // the current rows only
	Type2 Kind = 2 // every version, with __START_AT and __END_AT (rules R28-R44)

	// Bitemporal: every version that was ever believed, and while it was (rules R76-R84).
	// It is the kind of what a flow declares; see Target.Table for what destinations keep.
	Bitemporal Kind = 3
)

// Names of the columns that type 2 adds. Half-open interval; NULL end = open.
const (
	StartColumn = "__START_AT"
	EndColumn   = "__END_AT"
)

// Target is what a flow writes to: the shape of a destination table.
type Target struct {
	Name       change.Name // in the destination
	Source     change.Name // for messages
	Kind       Kind
	AppendOnly bool     // no key: only inserts (and truncates) arrive; Kind is Type1
	Columns    []Column // data columns, in target order, without the type 2 columns

	// Sequence is the type of a type 2 target's start and end columns where the user
	// names the sequence; nil: they are commit times. Sequenced targets (of either
	// kind) have hidden state in _tailrace.
	Sequence  *change.Type
	Sequenced bool

	// SequenceFields are the columns of a type 2 target's sequence of several columns, in
	// the order in which they are compared (rule R3); nil where it is one. Sequence is
	// jsonb then, and its values are objects of the columns' texts, numbers as they are.
	SequenceFields []change.Column

	// Bitemporal, if not nil: this is the table of a bitemporal target, as Table made it.
	Bitemporal *Axes

	// ChangeFeed: the destination keeps every row-level change of the target in a table
	// beside it, for FeedKeep (0: until somebody removes it).
	ChangeFeed bool
	FeedKeep   time.Duration
}

// Column is one data column of a target.
type Column struct {
	Name     string
	Type     change.Type // the source's type: the destination decides its own by it
	Key      bool        // part of the key
	Tracked  bool        // type 2: a difference here opens a new version (R31)
	Nullable bool
}

// Keys returns the indexes of the key columns, in column order.
func (t *Target) Keys() []int {
	var keys []int
	for i := range t.Columns {
		if t.Columns[i].Key {
			keys = append(keys, i)
		}
	}
	return keys
}

// Key is the key columns of a row in column order, encoded as a change.Row of
// that many columns.
type Key = change.Row

// Round is net work on one target that a destination does as a set. Rounds of a
// batch are applied in order inside one destination transaction; a target has
// more than one only where a later step cannot be decided without what an
// earlier one stored. All rows are in target column order, one entry for each of
// Target.Columns. Lists are sorted by key bytes (index locality). No key stands
// twice in the same list, except in Steps.
//
// A type 1 destination does, in this order:
//
//  1. Truncate: empty the target.
//  2. Moves: read the old rows by Old, where Row has Absent columns.
//  3. Delete Deletes and the Old keys of Moves.
//  4. Insert Moves at their new keys, Absent columns filled from step 2. A
//     missing old row is corrupt when something is Absent, else it is inserted.
//  5. Inserts, Upserts, Patches. A Patch whose row is missing is corrupt.
//
// So chains and swaps of keys need no order among themselves: every Old and
// every Delete speaks of what was stored before the round.
type Round struct {
	Truncate bool

	// Type 1.
	Deletes []Key
	Moves   []Move
	Inserts []change.Row // complete rows whose key was not there before (try a direct load; on a duplicate key treat as Upserts). Append-only targets have only these, in arrival order
	Upserts []change.Row // complete rows whose key may be there
	Patches []change.Row // rows with Absent columns: those keep what is stored at the same key

	// Type 2.
	TruncateAt int64  // with Truncate: µs since the Unix epoch. Open rows of keys without a step here end at greatest(TruncateAt, start + 1)
	Steps      []Step // sorted by key, then N

	// Type 2 of the sequenced lane (package scd/sequenced), which knows what is stored:
	// first Ends change in place, then Drops are removed, then Begins are inserted. The
	// lists are sorted by key. No version stands in both Ends and Drops.
	Ends   []VersionEnd
	Drops  []VersionID
	Begins []Version
}

// Move is a row whose key changed.
type Move struct {
	Old Key
	Row change.Row // at the new key; Absent columns come from the row at Old
}

// Step is one step in the life of a type 2 key: a version begins, or the open
// one ends. Steps of a key are numbered from 1 in each round; steps from 2 on are
// known to differ from the one before.
//
// Only step 1 meets the stored history, in the destination: it is *void* when it
// is a version whose tracked columns equal the stored open version's (then that
// version stays, and takes the step's untracked values), or a close and nothing
// is open. Equality is that of the stored bytes, null-safe, never a type's own
// operator: 1.0 and 1.00 differ.
//
// Let b be the newest stored start or end of the key in µs (the newest version
// by start: its end, or its start while it is open). The instant of step N is
//
//	greatest(Lo, b + N)           normally
//	greatest(LoVoid, b + N - 1)   where step 1 is void
//
// (b missing: Lo or LoVoid alone), which equals the running rule start =
// greatest(commit time, newest start or end + 1 µs) whatever the split into
// batches. A version begins at its instant and ends at the next step's instant,
// or stays open. The stored open version ends at the instant of the first step
// that is not void.
type Step struct {
	Key    Key
	N      int
	Lo     int64      // µs since the Unix epoch
	LoVoid int64      // meaningful for N >= 2
	Row    change.Row // nil: close
	Origin Key        // where Row has Absent columns: the key whose stored open version (before the round) fills them; nil = Key. A missing one is corrupt
}

// Size returns how many row-level operations the round holds.
func (r *Round) Size() int {
	return len(r.Deletes) + len(r.Moves) + len(r.Inserts) + len(r.Upserts) + len(r.Patches) + len(r.Steps) + len(r.Ends) + len(r.Drops) + len(r.Begins)
}

// Empty reports whether the round does nothing.
func (r *Round) Empty() bool { return !r.Truncate && r.Size() == 0 }

// VersionID names a stored version of a type 2 target. Start is a value of the
// target's sequence type.
type VersionID struct {
	Key   Key
	Start change.Value
}

// VersionEnd gives a stored version another end (Null: it is open again).
type VersionEnd struct {
	VersionID
	End change.Value
}

// Version is a version to insert.
type Version struct {
	VersionEnd
	Row change.Row // complete
}
