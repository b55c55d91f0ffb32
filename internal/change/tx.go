// Package change is the vocabulary that every room speaks: positions, table
// layouts, rows, changes and transactions. It imports nothing of ours.
package change

import "time"

// Op is what happened to a row (or, for Truncate, to a table).
type Op byte

const (
	Insert   Op = 'I'
	Update   Op = 'U'
	Delete   Op = 'D'
	Truncate Op = 'T' // Table only; no rows. One Change for each table the statement named
)

func (o Op) String() string {
	switch o {
	case Insert:
		return "INSERT"
	case Update:
		return "UPDATE"
	case Delete:
		return "DELETE"
	case Truncate:
		return "TRUNCATE"
	}
	return "op(" + string(rune(o)) + ")"
}

// Change is one row-level event.
//
// Old is the old image: for an update whose key did not change under identity
// DEFAULT or INDEX it is nil (the key is then read from New); where the key
// changed, and for every delete, it holds the identity columns with everything
// else Null or Absent (OldIsKey true: both mean "not sent"), or under identity FULL
// the whole old row (OldIsKey false). Where a source under identity FULL has logged
// only some columns of an old row, the others are Absent and OldIsKey is true. New is
// nil for deletes and truncates. New may hold Absent columns.
type Change struct {
	Op       Op
	OldIsKey bool
	Ordinal  uint64 // place inside the transaction, from 0; with the position it orders all events
	Table    *Table
	Old, New Row
}

// Tx is one source transaction, or a piece of one, or a quiet point.
//
// A transaction that fits the source's memory bound comes whole: First and Last
// are both true. A larger one comes in pieces that follow each other directly;
// only the last piece knows End. A quiet point is a Tx without changes: the log
// up to End holds nothing for us; First and Last are true.
type Tx struct {
	First, Last bool
	XID         uint32    // the source's transaction id; 0 for a quiet point
	Begin       Position  // PostgreSQL: BEGIN's final LSN, the start of the commit record: Begin < End. Known in every piece
	End         Position  // the commit's end: the position to remember. Zero unless Last
	CommitTime  time.Time // UTC, microseconds; zero for a quiet point. Files: when the file was taken
	Changes     []Change

	// Resume says in the source's own words what lies before End, beside what a Position
	// can say (a binlog's GTID set, which file it was): kept in the mark, and given back at
	// the next start. Only the last piece and quiet points have it; empty where the
	// position says everything.
	Resume string

	// A source of files hands on each file as one transaction. Path is set in every
	// piece: the file's place in the order of files, in the form that events are
	// ordered by (bytewise). File describes what was taken; only the last piece has it.
	Path string
	File *File
}

// File is one file of a change feed that was taken. It is taken once: the set of
// them is part of the mark.
type File struct {
	Relation Name
	Path     string    // relative to the root of the relation's glob, with slashes; empty: see Ends
	Size     int64     // bytes
	Modified time.Time // as the file system says, when it was taken
	Checksum string    // of all its bytes, in hexadecimal
	Rows     int64     // events in it
}

// Ends reports whether f is no file but says that its relation was taken to its end
// and is not looked at any more: of a relation that is taken once. Rows counts files.
func (f *File) Ends() bool { return f.Path == "" }

// Segment is what a source hands on at once: consecutive transactions (or
// pieces) that were read together, and the bytes they hold in memory. It lets a
// thousand one-row transactions cross a queue as one item.
type Segment struct {
	Txs   []Tx
	Bytes int // memory held by rows and bookkeeping, for the queue's bound

	// Age is how old the newest transaction was when the source sent it, by the
	// source's own clock: more than a moment means a backlog. 0: not known.
	Age time.Duration
}
