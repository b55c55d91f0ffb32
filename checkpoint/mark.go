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
	Live     Phase = "live"     // table: equals the source at the mark. Pipeline: following. Flow: copied
	Left     Phase = "left"     // flow: no longer declared; what it wrote is still in its target
	Parked   Phase = "parked"   // table: set aside with Reason; nothing is applied to it

	// The operator fills the targets, and nothing in them is ever emptied by a start.
	Preparing Phase = "preparing" // pipeline: about to make the slot; one of ours is not trusted
	Prepared  Phase = "prepared"  // pipeline: slot made at Position; the targets are to hold a later moment of the source
	Adopting  Phase = "adopting"  // table: it holds, of each row, a moment of the source up to Since; live when the mark has reached that. Shown as catching
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
	Since  change.Position // the copy's position: changes with end <= Since are already contained. Adopting: they may be
	Reason string          // why parked, with the remedy
}

// Catches reports whether the table becomes live when the mark reaches Since.
func (t *Table) Catches() bool { return t.Phase == Catching || t.Phase == Adopting }

// Shown is the phase as people are told it.
func (p Phase) Shown() string {
	if p == Adopting {
		return string(Catching)
	}
	return string(p)
}

// Flow is the state of one flow into a target that several may write (one with a
// user's sequence). It stands beside the target's own state, which is about all of
// them: a flow can come to a target that is live, and is copied for itself.
type Flow struct {
	Target change.Name
	Name   string // its identity: a flow of another name is another flow
	Order  uint16 // which flows win ties: it is part of every event's place, and never changes
	Source change.Name
	ID     uint32 // the source table's identifier at the copy; 0: of files, or not known
	Phase  Phase  // Copying, Live, Left

	// Since is the position of its copy: of the first one, if that died and another was
	// made. Changes with end <= Since are contained. Those behind are followed, also if
	// a later copy shows what they did.
	Since change.Position
}

// Mark is what the destination remembers of a pipeline, in one transaction with
// the rows it speaks of. Position is a commit's end or a quiet point (promise I3).
type Mark struct {
	Phase      Phase // None, Creating, Copying, Live; Preparing, Prepared
	Source     Identity
	Slot       string
	Position   change.Position
	Resume     string    // what the source wants to be given back with Position (change.Tx.Resume); mostly empty
	CommitTime time.Time // of the newest applied transaction; zero before the first
	Epoch      int64     // the owner's; every write is fenced by it
	Tables     []Table
	Flows      []Flow
}

// Owner identifies a process that owns a pipeline.
type Owner struct {
	Host     string
	BootID   string // the host's boot, so that a pid is not mistaken after a reboot
	PID      int
	Started  int64  // process start time in clock ticks since boot (Linux), else Unix seconds
	Instance string // random, one for each run of the program
}
