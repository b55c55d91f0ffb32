// Package checkpoint is the memory of a pipeline: what the destination remembers
// (Mark), and the decision where to begin (Decide). It is pure.
package checkpoint

import (
	"time"

	"tailrace/internal/change"
)

// Phase is where a whole pipeline or one table stands.
type Phase string

const (
	None     Phase = ""         // no mark: the destination has never seen this pipeline
	Creating Phase = "creating" // about to make the slot: a slot of ours is not trusted
	Copying  Phase = "copying"  // slot made at Position; the copy is running
	Catching Phase = "catching" // table: copied at Since, the mark has not reached it yet
	Live     Phase = "live"     // table: equals the source at the mark. Pipeline: following
	Parked   Phase = "parked"   // table: set aside with Reason; nothing is applied to it
)

// Identity says which source a mark belongs to.
type Identity struct {
	System   string // PostgreSQL: system identifier
	Timeline uint32 // PostgreSQL: timeline; 0 elsewhere
	Database string
}

// Table is the state of one target.
type Table struct {
	Target change.Name
	Source change.Name
	ID     uint32 // the source table's identifier at the copy
	Phase  Phase
	Since  change.Position // the copy's position: changes with end <= Since are already contained
	Reason string          // why parked, with the remedy
}

// Mark is what the destination remembers of a pipeline, in one transaction with
// the rows it speaks of. Position is a commit's end or a quiet point (promise I3).
type Mark struct {
	Phase      Phase // None, Creating, Copying, Live
	Source     Identity
	Slot       string
	Position   change.Position
	CommitTime time.Time // of the newest applied transaction; zero before the first
	Epoch      int64     // the owner's; every write is fenced by it
	Tables     []Table
}

// Owner identifies a process that owns a pipeline.
type Owner struct {
	Host     string
	BootID   string // the host's boot, so that a pid is not mistaken after a reboot
	PID      int
	Started  int64  // process start time in clock ticks since boot (Linux), else Unix seconds
	Instance string // random, one for each run of the program
}
