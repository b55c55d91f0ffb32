package checkpoint

import (
	"fmt"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// SourceState is what Decide needs to know of the source.
type SourceState struct {
	Identity             Identity
	Keepless             bool            // it keeps nothing for us: there is no slot, no head, no publication (files)
	Slotless             bool            // the server keeps its log by itself, for a while: there is no slot and no publication
	Oldest               change.Position // Slotless: where its log begins
	Elsewhere            *Elsewhere      // Slotless: the server is not the mark's, and was asked for the mark's place; nil: there are no such places
	SlotName             string
	SlotExists           bool
	SlotProblem          string // it is not a slot we could read: physical, another database's...
	SlotLost             bool   // its log is gone
	SlotLostWhy          string
	Confirmed            change.Position // the slot's confirmed position
	Head                 change.Position // newest position of the source's log
	Kept                 bool            // something beside the live slot keeps the log, for rewind points,
	KeptFrom             change.Position // from here on
	PublicationsMissing  []string
	PublicationNewer     bool
	PublicationNewerName string
}

// Elsewhere is where a mark lies in the log of another server than the one it was made on:
// everything before Position is in the destination, and Resume names what is behind it
// and is there too.
type Elsewhere struct {
	Position change.Position
	Resume   string
	Problem  string // why it lies nowhere; empty: it does
	Remedy   string
	Passing  bool // the problem may go away by itself
}

// Action is what to do first.
type Action uint8

const (
	Hydrate    Action = iota // make the slot and copy everything
	ResumeCopy               // copy the tables that are not finished under a new snapshot, then follow
	Follow                   // stream from the mark
	Prepare                  // make the slot, and leave the targets to the operator
	Adopt                    // the slot is there: take the targets as they are when they are filled
)

func (a Action) String() string {
	return [...]string{"hydrate", "resume copy", "follow", "prepare", "adopt"}[a]
}

// Decision says where to begin.
type Decision struct {
	Action   Action
	From     change.Position // Follow, ResumeCopy, Adopt: the mark's position
	DropSlot bool            // Hydrate, Prepare: a slot of ours from a start that died is in the way
	Return   bool            // Follow, ResumeCopy: the live slot cannot be followed from the mark and is replaced first by what is kept for rewind points, which can
	Moved    *Elsewhere      // Follow, ResumeCopy: the mark becomes this first, on the server that was asked; From is its position
}

// Decide compares what the destination remembers with what the source holds. The
// destination's mark is the truth (promise I1); the slot is only asked whether it
// can still give everything after it. Anything that would leave a hole is refused
// with a remedy, never repaired in silence. docs/lsn.md explains each case.
func Decide(m Mark, s SourceState) (Decision, error) {
	again := "`tailrace run --overwrite` copies everything again into the same targets (a type 2 target begins a new history: rename it first to keep the old one)"
	if s.SlotExists && s.SlotProblem != "" {
		return Decision{}, fault.Refuse("drop that slot if nothing needs it, or choose another name with source.slot",
			"replication slot %s cannot be used: %s", s.SlotName, s.SlotProblem)
	}
	switch m.Phase {
	case None:
		if s.SlotExists {
			return Decision{}, fault.Refuse(
				"if nothing else reads this slot, run `tailrace teardown` with this configuration and start again; otherwise give this pipeline another name",
				"replication slot %s exists, but the destination has no mark of this pipeline: another destination may depend on the slot", s.SlotName)
		}
		return Decision{Action: Hydrate}, nil
	case Creating:
		return Decision{Action: Hydrate, DropSlot: s.SlotExists}, nil
	case Preparing:
		return Decision{Action: Prepare, DropSlot: s.SlotExists}, nil
	case Prepared:
		again = "`tailrace teardown`, then `tailrace backfill --prepare`, and a backup that is taken after it"
	case Copying, Live:
	default:
		return Decision{}, fault.Corrupted("read the mark: unknown phase %q", m.Phase)
	}

	switch {
	case m.Source.System != s.Identity.System && s.Elsewhere != nil && m.Source.Database == s.Identity.Database && m.Source.Timeline == s.Identity.Timeline:
		return moved(m, s)
	case m.Source.System != s.Identity.System:
		return Decision{}, fault.Refuse("point source.dsn at the right server; if the source was really replaced: "+again,
			"the source is another server: system identifier %s, the mark was made on %s", s.Identity.System, m.Source.System)
	case m.Source.Database != s.Identity.Database:
		return Decision{}, fault.Refuse("point source.dsn at database "+m.Source.Database+"; if the source was really moved: "+again,
			"the source is database %s, the mark was made on %s", s.Identity.Database, m.Source.Database)
	case m.Source.Timeline != s.Identity.Timeline:
		return Decision{}, fault.Refuse("the destination may hold transactions that the source lost in its restore or fail-over: "+again,
			"the source is on timeline %d, the mark at %s was made on timeline %d", s.Identity.Timeline, m.Position, m.Source.Timeline)
	case s.Keepless:
		if m.Phase == Copying {
			return Decision{Action: ResumeCopy, From: m.Position}, nil
		}
		return Decision{Action: Follow, From: m.Position}, nil
	case s.Head.Before(m.Position):
		return Decision{}, fault.Refuse("the source was set back; the destination holds transactions it no longer has: "+again,
			"the source's log ends at %s, before the mark at %s", s.Head, m.Position)
	case s.Slotless && m.Position.Before(s.Oldest):
		return Decision{}, fault.Refuse("the changes since the mark cannot be read any more: "+again+"; then have the source keep its log longer (binlog_expire_logs_seconds), or keep tailrace running",
			"the source's log begins at %s, after the mark at %s: what was in between is purged", s.Oldest, m.Position)
	case s.Slotless: // there is nothing else that could be missing
	case m.Phase != Prepared && s.returns(m.Position):
		// A rewind that died while it replaced the live slot; a destination that was restored
		// from a backup: what is kept for the rewind points has everything behind the mark.
		s.SlotExists, s.SlotLost, s.Confirmed = true, false, s.KeptFrom
		d, err := Decide(m, s)
		d.Return = err == nil
		return d, err
	case !s.SlotExists:
		return Decision{}, fault.Refuse("the changes since the mark cannot be read any more: "+again,
			"replication slot %s is missing; the mark is at %s", s.SlotName, m.Position)
	case s.SlotLost:
		why := s.SlotLostWhy
		if why != "" {
			why = " (" + why + ")"
		}
		return Decision{}, fault.Refuse("the changes since the mark cannot be read any more: "+again+"; then raise max_slot_wal_keep_size on the source, or keep tailrace running",
			"replication slot %s has lost its log%s; the mark is at %s", s.SlotName, why, m.Position)
	case m.Position.Before(s.Confirmed):
		return Decision{}, fault.Refuse("either the destination was restored from an older backup or something else read the slot: "+again,
			"replication slot %s is confirmed up to %s, the destination's mark is at %s: the changes in between are gone", s.SlotName, s.Confirmed, m.Position)
	case len(s.PublicationsMissing) > 0:
		return Decision{}, fault.Refuse("a publication made now is not seen by the existing slot for older changes: "+again,
			"publication %s is missing", fmt.Sprint(s.PublicationsMissing))
	case s.PublicationNewer:
		return Decision{}, fault.Refuse("the slot can never be read with it: "+again,
			"publication %s was made after replication slot %s", s.PublicationNewerName, s.SlotName)
	}
	switch m.Phase {
	case Copying:
		return Decision{Action: ResumeCopy, From: m.Position}, nil
	case Prepared:
		return Decision{Action: Adopt, From: m.Position}, nil
	}
	return Decision{Action: Follow, From: m.Position}, nil
}

// returns reports whether the live slot does not serve a mark and what is kept does.
func (s *SourceState) returns(mark change.Position) bool {
	unfit := !s.SlotExists || s.SlotLost || mark.Before(s.Confirmed)
	return unfit && s.Kept && s.KeptFrom.Compare(mark) <= 0
}

// moved decides for a server that has taken the place of the mark's. Its positions are of
// another epoch: only what it says itself can be compared.
func moved(m Mark, s SourceState) (Decision, error) {
	e := s.Elsewhere
	what := fmt.Sprintf("the source is another server: %s, the mark at %s was made on %s", s.Identity.System, m.Position, m.Source.System)
	switch {
	case e.Problem != "" && e.Passing:
		return Decision{}, fault.Retry(nil, "%s; %s", what, e.Problem)
	case e.Problem != "":
		return Decision{}, fault.Refuse(e.Remedy, "%s; %s", what, e.Problem)
	case m.Phase == Prepared:
		return Decision{}, fault.Refuse("`tailrace teardown`, then `tailrace backfill --prepare`, and a backup that is taken after it", "%s, and a backup of that one is being waited for", what)
	case !m.Position.Before(e.Position), e.Position.Before(s.Oldest), s.Head.Before(e.Position):
		return Decision{}, fault.Corrupted("the mark at %s lies at %s in the log of another server, which reaches from %s to %s", m.Position, e.Position, s.Oldest, s.Head)
	case m.Phase == Copying:
		return Decision{Action: ResumeCopy, From: e.Position, Moved: e}, nil
	}
	return Decision{Action: Follow, From: e.Position, Moved: e}, nil
}

// Contains reports whether a table with this state already contains tx: then its
// changes are dropped. Of one that is being adopted nobody knows, and they are applied.
// A transaction in pieces whose end is not known yet is judged by its BEGIN's final LSN,
// which is contained iff it lies before Since, because Since is a record's boundary.
func (t *Table) Contains(tx *change.Tx) bool { return t.Phase != Adopting && contained(tx, t.Since) }

// Contains reports whether the flow's copy already contains tx, like Table.Contains.
func (f *Flow) Contains(tx *change.Tx) bool { return contained(tx, f.Since) }

func contained(tx *change.Tx, since change.Position) bool {
	if tx.Last {
		return tx.End.Compare(since) <= 0
	}
	return tx.Begin.Before(since)
}

// DecideBeside decides for an onlooker, beside whom an owner may be at work: the mark
// was read before the source was asked. Where Decide refuses, again reads the mark once
// more; if it has moved, the slot is judged by what the mark became, because it is never
// confirmed beyond that, and the head of the log by what the mark was.
func DecideBeside(before Mark, s SourceState, again func() (Mark, error)) (Decision, error) {
	d, refused := Decide(before, s)
	if refused == nil || s.Head.Before(before.Position) {
		return d, refused
	}
	after, err := again()
	if err != nil {
		return Decision{}, fmt.Errorf("read the mark: %w", err)
	}
	if after.Phase == before.Phase && after.Position == before.Position {
		return d, refused
	}
	if s.Head.Before(after.Position) {
		s.Head = after.Position
	}
	return Decide(after, s)
}
