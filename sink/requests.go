package sink

import (
	"context"
	"time"

	"tailrace/internal/fault"
)

// Pause says that a pipeline is held: its owner reads and writes nothing and keeps
// slot, heartbeat and ownership. The zero value: it is not.
type Pause struct {
	Since time.Time
	By    string // who asked: user, host and process
}

// IsZero reports whether the pipeline is not paused.
func (p Pause) IsZero() bool { return p.Since.IsZero() }

// Pauses is the part of a Writer that remembers a pause, so that it outlives the
// process that obeys it.
type Pauses interface {
	// Paused reads the pause. It needs no ownership; the zero Pause where there is no
	// bookkeeping.
	Paused(ctx context.Context) (Pause, error)

	// SetPause makes p the pause, durably; the zero Pause ends it. A pause that is there
	// already stays as it is. Where the destination can be written by several processes
	// it needs no ownership: the owner looks at the pause with each heartbeat. Else only
	// the owner may call it.
	SetPause(ctx context.Context, p Pause) error
}

// Request is what somebody asks of the process that owns a pipeline.
type Request struct {
	ID       int64 // given by the destination
	Kind     string
	Argument string // of the kind; empty where it needs none
	By       string // who asked: user, host and process
	At       time.Time
}

// Answer is what came of a request.
type Answer struct {
	State RequestState
	Text  string     // for the asker: what was done, or why not (with the remedy), and of a taken one the last report; no row values
	Fault fault.Kind // of a failed one
}

// RequestState is how far a request has come.
type RequestState string

const (
	Asked     RequestState = "asked"     // nobody has taken it
	Taken     RequestState = "taken"     // the owner is at it
	Done      RequestState = "done"      //
	Failed    RequestState = "failed"    //
	Withdrawn RequestState = "withdrawn" // by the asker, before it was taken
)

// Requests is the part of a Writer whose destination carries requests to the owner, as
// rows. Whoever may write these rows may ask. Ask, AnswerTo, Withdraw and Living need
// no ownership; Take, Report and Finish are the owner's and fenced.
type Requests interface {
	// Ask writes a request down, durably. ID and At of r are not used.
	Ask(ctx context.Context, r Request) (id int64, err error)

	// AnswerTo reads how far a request has come.
	AnswerTo(ctx context.Context, id int64) (Answer, error)

	// Withdraw takes a request back that nobody has taken; false: it was taken.
	Withdraw(ctx context.Context, id int64) (bool, error)

	// Living names the owner (process, host, age of the heartbeat); empty if there is
	// none or its heartbeat is stale.
	Living(ctx context.Context) (string, error)

	// Unfinished settles the requests that an earlier owner has taken and not finished:
	// those of a kind for which again is true are asked again, the others have failed. It
	// forgets what was finished a week ago.
	Unfinished(ctx context.Context, again func(kind string) bool) error

	// Take takes what is asked, each request once, in the order of asking.
	Take(ctx context.Context) ([]Request, error)

	// Report writes how far a request is that this owner has taken; AnswerTo gives it
	// until the request is finished. It need not outlive a crash.
	Report(ctx context.Context, id int64, text string) error

	// Finish writes an answer, Done or Failed, to a request that this owner has taken.
	Finish(ctx context.Context, id int64, a Answer) error
}

// Embedded is the part of a Writer whose database lives in the owner's process: nobody
// else can open it meanwhile, so the owner answers for it.
type Embedded interface {
	// Path is the absolute name of the database's file.
	Path() string

	// Query runs exactly one statement of the kind SELECT in a read-only transaction on
	// a connection of its own: first the header, then each row; nil is NULL. The rows
	// are valid during the call. Everything else is a Usage error. It needs no
	// ownership. The end of ctx interrupts it.
	Query(ctx context.Context, sql string, fn func(cells []*string) error) error

	// Snapshot writes a copy of the database that stands at one mark to path (empty:
	// SnapshotPath), replacing an older snapshot there, and nothing else. Whoever has
	// the older one open keeps it. The copy holds no bookkeeping beyond the mark. On
	// an error the older snapshot stays and nothing is left behind. Only the owner may
	// call it; it runs beside everything else.
	Snapshot(ctx context.Context, path string) (SnapshotTaken, error)

	// Onlooker returns a Writer on the same open database that owns nothing: its
	// methods that read may run beside everything that the owner does. It is closed
	// before the owner.
	Onlooker() (Writer, error)

	// SnapshotPath is where a snapshot goes if nothing is said.
	SnapshotPath() string
}

// SnapshotTaken describes a finished snapshot.
type SnapshotTaken struct {
	Path     string
	Position string        // the mark at which it stands
	Bytes    int64         // of the file
	Held     time.Duration // for which no batch was written
	Took     time.Duration
}
