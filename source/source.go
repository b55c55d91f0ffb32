// Package source is the contract of every place that changes come from: whole
// transactions in commit order, and a snapshot to begin with. One folder below it
// per kind of source.
package source

import (
	"context"
	"io"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/rowsum"
)

// Source is one database whose log a pipeline follows.
//
// Concurrency: Confirm may be called from any goroutine while Follow runs; every
// other method is called by one goroutine at a time, except Snapshot.Copy.
type Source interface {
	// Relations reads the catalogue: every ordinary or partitioned table that could
	// be followed, with layout, key and what is wrong with it. Patterns are applied
	// by the caller.
	Relations(ctx context.Context) ([]Relation, error)

	// State reads what the source holds for this pipeline; it changes nothing.
	State(ctx context.Context) (State, error)

	// Check looks for everything that would stop the pipeline on this source, for
	// the given tables. Findings are not errors.
	Check(ctx context.Context, tables []Followed) ([]Finding, error)

	// PlanPublications returns the statements Publish would run now.
	PlanPublications(ctx context.Context, tables []Followed) ([]string, error)

	// Publish makes the publications hold exactly these tables and commits. It never
	// publishes updates and deletes of a table without a usable identity.
	Publish(ctx context.Context, tables []Followed) error

	// Begin makes the live slot (dropping one of ours first) and holds its exported
	// snapshot. Publications must exist already.
	Begin(ctx context.Context) (Snapshot, error)

	// Snapshot makes a snapshot at a known position beside an existing slot, through
	// a temporary slot that ends with it.
	Snapshot(ctx context.Context) (Snapshot, error)

	// Follow reads the log from position from and hands on segments in commit order
	// until ctx ends or an error. out may block: that is the backpressure; keepalive
	// answers continue meanwhile. The caller owns what it was given.
	Follow(ctx context.Context, from change.Position, o FollowOptions, out func(context.Context, *change.Segment) error) error

	// Watch looks at the catalogue while Follow runs: tables that lost what updates
	// and deletes need are taken out of our publication, so that the application's
	// statements do not fail, and are returned for parking. It may be called beside
	// Follow.
	Watch(ctx context.Context) ([]Loss, error)

	// Confirm tells the source, soon and at the latest with the next status, that
	// everything up to p is durable in the destination. Never goes backwards.
	Confirm(p change.Position)

	// Head returns the position of the newest committed work on the source.
	Head(ctx context.Context) (change.Position, error)

	// Drop removes slot and publications of exactly this pipeline. Missing ones are fine.
	Drop(ctx context.Context) error

	// Release drops the slot alone, so that the source need not keep log for it any
	// more; also one that the user named. Nothing follows from the mark after that.
	Release(ctx context.Context) error

	// Close releases everything. The slot stays.
	Close(ctx context.Context) error
}

// Snapshot is one consistent moment of the source, open until Close.
type Snapshot interface {
	// Position: the snapshot holds exactly the transactions with end <= Position.
	Position() change.Position
	// Clock is the source's clock just before the snapshot was made.
	Clock() time.Time
	// Copy writes the table's rows to w as a COPY stream. Several may run at once,
	// each on a connection of its own pinned to the snapshot.
	Copy(ctx context.Context, r CopyRequest, w io.Writer) (rows int64, err error)
	Close(ctx context.Context) error
}

// Trailer is a Source that can copy beside its own stream: what the snapshot does not
// hold is read from the log behind it, which the snapshot's own slot keeps, or the server
// by itself; not from the live slot. It is a Source opened for this alone: it follows
// nothing else.
type Trailer interface {
	// Trail is Snapshot for that; no other tables are asked of it.
	Trail(ctx context.Context, tables []change.Name) (Trail, error)
}

// Trail is a snapshot and the log behind it.
type Trail interface {
	Snapshot
	// Follow hands on the log from Position on, as Source.Follow does, once; the
	// snapshot cannot be copied from any more then. Nothing of it is kept for a second
	// reading: after an error all begins with another Trail.
	Follow(ctx context.Context, o FollowOptions, out func(context.Context, *change.Segment) error) error
	// Confirm lets the source forget its log up to p: see Source.Confirm.
	Confirm(p change.Position)
}

// Resumable is a Snapshot of a source whose transactions have a Resume (change.Tx): the
// one at its position.
type Resumable interface{ Resume() string }

// Locator is a Source whose positions mean something on one server alone, while its
// transactions have names that every server of the same history knows: after a failover
// the mark's place is found in another server's log.
type Locator interface {
	// Locate tells the source what the mark remembers; it asks nobody. All positions that
	// are given from then on are in the mark's epoch, or, where the server turns out to be
	// another than the mark's, in the next one; State says then where the mark lies.
	Locate(m Located)
}

// Located is what a mark remembers of its place.
type Located struct {
	System   string // of the server it was made on
	Position change.Position
	Resume   string // change.Tx.Resume at Position
}

// Moved says where a mark lies in the log of a server that it was not made on.
type Moved struct {
	// Position and Resume are what the mark becomes: everything before Position is in the
	// destination, and Resume names what is behind it and is there too.
	Position change.Position
	Resume   string
	// Problem is why the server cannot be followed from the mark; empty if it can. Passing:
	// it may go away by itself, because the server is still receiving what it lacks.
	Problem, Remedy string
	Passing         bool
}

// TableLost is an error of Follow that concerns one table alone: what is behind it in
// the log cannot be applied to that table any more. Everything before it was handed on.
// Once the table is not among the followed ones (Publish), the log can be read past it.
type TableLost struct{ Loss Loss }

func (e *TableLost) Error() string {
	s := e.Loss.Reason
	if e.Loss.Remedy != "" {
		s += "\n  remedy: " + e.Loss.Remedy
	}
	return s
}

// CopyRequest names what to copy.
type CopyRequest struct {
	Table   *change.Table
	Columns []string // in this order
	Binary  bool
	// StartAt, if not nil, appends two timestamptz columns: this instant (or
	// -infinity if it is the zero time) and NULL.
	StartAt *time.Time
	// Range, if not nil, is the part of the table to copy, of those that Ranges gave.
	Range *Range
	// Keys, if not nil, asks for the rows with one of these keys alone: values of
	// KeyColumns as texts, nil for NULL. Rows whose key compares equal come too, and a
	// source that cannot look for keys may give all rows. Not with Range.
	Keys       [][]*string
	KeyColumns []string
	// Part, if not nil, asks for the rows in these buckets alone, of a source that is a
	// Summer. KeyColumns choose the bucket; without any the whole row does.
	Part *rowsum.Part
	// Query, if not empty, asks for the rows of this query in place of a table's, of a
	// source that is a Querier. Table then only describes its columns, as DescribeQuery did,
	// and Columns are some of them. Text, without Range, Keys, Part and StartAt. The order of
	// the rows is the server's, whatever the query says. Rows that were written before an
	// error count for nothing: that a table the query reads was emptied meanwhile is found
	// at its end.
	Query string
}

// Versions is a set of files each of which holds a whole table at a version.
type Versions interface {
	// List returns the files that are there, in no order.
	List(ctx context.Context) ([]VersionFile, error)
	// Describe returns the columns of a file, as a table without name and number.
	Describe(ctx context.Context, f VersionFile) (*change.Table, error)
	// Read hands on every row of a file, in the columns of t, as texts. row is valid during
	// the call only.
	Read(ctx context.Context, f VersionFile, t *change.Table, fn func(row change.Row) error) error
}

// VersionFile is one of them.
type VersionFile struct {
	Path     string    // relative to the set's folder, with slashes
	Version  string    // as its path spells it; never empty
	Size     int64     // bytes
	Modified time.Time // Read refuses a file that is another by now; the zero time: it takes what it finds
}

// Lister is a Source of files that can say which are there.
type Lister interface {
	// There lists the paths of a relation's files, as change.File has them.
	There(ctx context.Context, relation change.Name) ([]string, error)
}

// Summer is a Snapshot that can reduce a table to sums of row hashes where it lies.
type Summer interface {
	// SumForm says of what the sums of the columns in r are made; empty: they cannot be
	// compared with another server's. See rowsum.Form.
	SumForm(ctx context.Context, r CopyRequest) (string, error)

	// Sum adds the sums up in into, which has a place for each bucket, all zero.
	Sum(ctx context.Context, r CopyRequest, s rowsum.Sums, into []rowsum.Bucket) error
}

// Ranger is a Snapshot whose tables can be copied in parts, several at once.
type Ranger interface {
	// Measure reads how large tables are on disk, in the order given, and cuts those
	// larger than most (bytes, above 0) into ranges of about that size. All ranges of
	// a table together hold each of its rows once.
	Measure(ctx context.Context, tables []*change.Table, most int64) ([]Extent, error)
}

// Extent is a table's size, and the ranges it was cut into.
type Extent struct {
	Bytes  int64   // with values stored out of line, without indexes
	Ranges []Range // none: the table is copied whole
}

// Range is one part of a table. It means something to the snapshot alone that made it.
type Range struct {
	Bytes int64 // about how much it holds
	At    any   // which rows: the source's own
}

// Relation is a table of the source's catalogue.
type Relation struct {
	Table      *change.Table // Columns as the log sends them (generated columns that the log leaves out are not there)
	PrimaryKey []string      // empty: none
	Rows, Size int64         // estimates: planner's row count, bytes on disk
	Usable     bool          // the replica identity serves updates and deletes
	Why        string        // not Usable: why not
	Remedy     string        // not Usable: the statement that mends it
	Problem    string        // why it cannot be followed at all (unlogged, foreign, no rights); empty if it can
	TextOnly   bool          // its values come as text, also where binary is asked for
	Notes      []string      // what will not be replicated: indexes, foreign keys, triggers of ours to mention
}

// Followed is a table a pipeline follows.
type Followed struct {
	Table      *change.Table
	AppendOnly bool // goes into the second publication: insert, truncate
}

// FollowOptions tune Follow.
type FollowOptions struct {
	Binary     bool  // ask for binary values
	PieceBytes int64 // a transaction larger than this is handed on in pieces of about this size

	Resume string // what the mark holds of change.Tx.Resume at from; empty: nothing

	Taken []change.File // sources of files: what the destination holds already, and which relations ended (change.File.Ends)
	Once  bool          // sources of files: hand on what is there, then a quiet point, and watch for no more

	// Spooled, if not nil, is told how many bytes of open transactions wait on disk,
	// whenever a block of one has come or a transaction has ended.
	Spooled func(bytes int64)
}

// State is what a source holds for a pipeline.
type State struct {
	System   string // system identifier
	Timeline uint32
	Database string
	Slot     SlotState
	Head     change.Position
	// Beside is how many bytes of log are kept for the pipeline's snapshots and trails,
	// the most of one; 0: there is none.
	Beside int64
	// Keep is what is kept for rewind points by something of its own (PostgreSQL's keep
	// slot), apart from Slot; Exists is false where there is none.
	Keep Kept
	// Keepless is set where the source keeps nothing on our behalf (files): Slot and
	// publications mean nothing then.
	Keepless bool
	// Slotless is set where the server keeps its log by itself, for a while and for
	// nobody in particular (MySQL's binlog): Slot and publications mean nothing then, and
	// Oldest is the first position from which the log can still be read.
	Slotless bool
	Oldest   change.Position
	// Moved is set by a Locator whose server is not the mark's, if the marks of that can
	// be found on other servers at all.
	Moved *Moved
	// PublicationsMissing lists publications of ours that do not exist.
	PublicationsMissing []string
	// Published lists the tables in publications of our own making, by identifier. A
	// followed table that is not among them was taken out by somebody: its changes
	// since then are in no stream. nil: the publications are not ours.
	Published []uint32
	// PublishedWhole lists those of Published whose updates and deletes are sent too.
	PublishedWhole []uint32
	// PublicationNewer is set when a publication was made after the slot: the slot
	// can never be read with it.
	PublicationNewer bool
}

// SlotState describes the live slot.
type SlotState struct {
	Name      string
	Exists    bool
	Problem   string // physical, another database's, another plugin's, two-phase...; empty if it is of the right make
	Lost      bool   // its log is gone
	LostWhy   string
	Active    bool
	ActivePID int
	Confirmed change.Position // confirmed flush position
	Restart   change.Position
	Retained  int64 // bytes of log kept for it
}

// Loss is a followed table whose replica identity stopped serving.
type Loss struct {
	Table   change.Name
	ID      uint32
	Reason  string
	Remedy  string
	Removed bool // taken out of our publication: its updates and deletes work again, and are not seen
}

// Finding is one result of Check, with its remedy.
type Finding struct {
	Blocks bool
	What   string
	Remedy string
}
