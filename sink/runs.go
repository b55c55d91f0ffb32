package sink

import (
	"context"
	"time"
)

// Run is one run of a pipeline that runs at moments of its own (trigger).
type Run struct {
	Number   int64 // 1, 2, ... in the pipeline's life
	Why      RunReason
	Started  time.Time
	Ended    time.Time // zero: it is going on
	Outcome  RunOutcome
	Position string // of the mark at its end, as text; empty: it did not get there
	Rows     int64  // row-level operations that it wrote, with the rows of first copies
	Error    string // of a failed one, with the remedy; no row values
}

// RunReason is why a run began.
type RunReason string

const (
	RunAtStart RunReason = "start"        // of the daemon
	RunEvery   RunReason = "every"        //
	RunCron    RunReason = "cron"         //
	RunFile    RunReason = "file arrival" //
	RunAsked   RunReason = "asked"        // by a person: `tailrace trigger`, `tailrace run --once`
)

// RunOutcome is how a run ended.
type RunOutcome string

const (
	RunGoesOn      RunOutcome = "running"
	RunDone        RunOutcome = "done"        // everything up to where it was to go is there
	RunFailed      RunOutcome = "failed"      // Run.Error says why
	RunStopped     RunOutcome = "stopped"     // in order, before its end: by a signal
	RunInterrupted RunOutcome = "interrupted" // its process is gone; found by the next one
)

// RunsKept is how many runs a pipeline remembers, the newest: a day of runs every
// quarter of an hour, so that one sees when something began to go wrong, and some tens
// of kilobytes, so that all are read at once.
const RunsKept = 100

// Runs is the part of a Writer that remembers the runs of a pipeline.
type Runs interface {
	// AddRun writes a run down, in place of the one with its number, and forgets all but
	// the RunsKept newest: fenced, in one durable transaction. It may be called beside
	// Apply.
	AddRun(ctx context.Context, r Run) error

	// Runs reads the newest runs, at most so many, the newest first. It needs no
	// ownership; none where there is no bookkeeping.
	Runs(ctx context.Context, most int) ([]Run, error)
}
