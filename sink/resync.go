package sink

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
)

// Resyncs is the part of a Writer that makes a target of an ordered flow equal to a new
// copy of its source without a moment at which a reader finds it empty or half filled:
// the copy goes into a stage beside it (a table in schema _tailrace), and one
// transaction makes the target equal to the stage. All but Gaps are the owner's and
// fenced. Stage, Replace and Unstage run while no batch is applied and no Stager is at
// work, except that Unstage may run beside batches.
type Resyncs interface {
	// Stage fills the target's stage with in, the data columns alone, in either type of
	// target. It replaces an older stage, and returns the number of rows.
	Stage(ctx context.Context, t *scd.Target, in Copy) (int64, error)

	// Replace makes the target equal to its stage, and drops the stage, in one durable
	// transaction with r.Done and r.Gap. Of type 1: rows whose key is not staged go,
	// those that differ are written, others are not touched; a target without a key gets
	// all of its rows anew. Of type 2 it is one version step at r.At: the open versions
	// of keys that are not staged end, those whose tracked columns differ end and begin
	// anew, new keys begin; see scd.Step for instants that are too early. With r.Part
	// all this is of the staged keys and those that it names alone: other rows stay as
	// they are, and are not read where an index finds the others. On any error nothing
	// has happened.
	Replace(ctx context.Context, t *scd.Target, r Replacement) (Replaced, error)

	// Stager opens what keeps stages up to date while batches are applied. There is one
	// at a time.
	Stager() (Stager, error)

	// Unstage drops the stages that a process which died, or a Stager, has left behind.
	Unstage(ctx context.Context) error

	// Gaps reads what is missing in the histories of this pipeline, by target and
	// position. It needs no ownership.
	Gaps(ctx context.Context) ([]Gap, error)
}

// Stager makes stages that follow the log beside the stream, on connections of its own:
// what it does meets Apply nowhere. Every transaction of it is fenced. It has no mark: a
// stage is of use only to the process that filled it.
type Stager interface {
	// Fill makes the target's stage and fills it with in, as Resyncs.Stage does, so that
	// Apply can find its rows by their key. Several may run at once, for different
	// targets, before the first Apply.
	Fill(ctx context.Context, t *scd.Target, in Copy) (int64, error)

	// Apply writes a batch's rounds into stages. Its targets are those that StageTarget
	// gives of the targets that were filled; of the rest of the batch only First and
	// More count, as for Writer.Apply. After an error it must be closed.
	Apply(ctx context.Context, b *Batch) error

	// Close ends its connections and what is open on them. The stages stay: Replace or
	// Unstage drops them.
	Close(ctx context.Context)
}

// Noter is a Stager that knows what Replace has to look at, where comparing two tables
// takes long: then only what is noted is compared while the batches wait. A key at which
// target and stage were equal during Compare, and which no change has touched since
// Note, is equal still; so Compare is called once the target, too, holds everything up to
// the position that Note gave.
type Noter interface {
	// Note makes Apply note the keys that it writes into a target's stage, from the next
	// batch on, and returns the position of the last one before (zero: there was none).
	// ok is false while a transaction in pieces is open: it is to be asked again. It may
	// be called beside Apply.
	Note(ctx context.Context, t *scd.Target) (from change.Position, ok bool, err error)

	// Compare notes the keys at which target and stage differ. It may be called beside
	// Apply of both.
	Compare(ctx context.Context, t *scd.Target) error

	// Noted reports whether what was noted says all that may differ: not after a
	// TRUNCATE. It is asked when nothing is applied any more.
	Noted(t *scd.Target) bool
}

// StageTarget is a target's stage as a target of its own: of type 1, under the target's
// name.
func StageTarget(t *scd.Target) *scd.Target {
	return &scd.Target{Name: t.Name, Source: t.Source, Kind: scd.Type1, AppendOnly: t.AppendOnly, Columns: t.Columns}
}

// Replacement says as what Replace makes a target.
type Replacement struct {
	At   time.Time        // type 2: the instant of the step
	Done checkpoint.Table // the target's state after it
	Gap  *Gap             // nil: none
	Part *Part            // nil: the stage holds the whole table

	// Judged is what the expectations of the target's flow met in the copy; nil: it has none.
	Judged *Judged

	// Mended: the gap is recorded only where something differed.
	Mended bool

	// Noted: the target is compared with its stage at the keys that a Noter has noted, and
	// is equal to it at all others.
	Noted bool

	// Ahead: the stage is gone on with, and nothing is recorded. It is for a target that
	// no batch writes, and runs beside them.
	Ahead bool
}

// Records reports whether the gap is to be recorded after what was done.
func (r *Replacement) Records(done Replaced) bool {
	return r.Gap != nil && (!r.Mended || done != Replaced{})
}

// Judged is what the expectations of a flow met in a copy of its table: it takes the place
// of all that they met before, in the transaction of the copy. The flow's events in
// quarantine are marked as resolved.
type Judged struct {
	Flow  string
	Aside []Aside
	Met   []Violation
}

// Part says that a stage holds some rows of its table, of a target that has a key.
type Part struct {
	// Gone are the keys of rows (of type 2 of open versions) that go, each spelled as
	// Scan gives it: a row whose key compares equal and is spelled otherwise stays.
	Gone []change.Row
}

// Replaced counts what Replace did.
type Replaced struct {
	Removed int64 // type 1: rows whose key is not at the source, or which stood twice; type 2: versions that ended
	Written int64 // type 1: rows that differed or were missing; type 2: versions that began
}

// Gap is a part of a history that was not seen version by version: it was crossed in
// one step.
type Gap struct {
	Target   change.Name
	From, To change.Position // changes with From < end <= To
	Reason   string
	At       time.Time // when it was recorded, by the destination's clock; given by the destination
}

// StagesOf begins the names of a pipeline's stages. The names are hashes, since a
// destination cuts long names off and several pipelines may share it.
func StagesOf(pipeline string) string { return "stage_" + short(pipeline) + "_" }

// StageOf names the stage of one of its targets.
func StageOf(pipeline string, target change.Name) string {
	return StagesOf(pipeline) + short(target.Schema+"\x00"+target.Table)
}

// NotesOf names the table of the keys that are noted at it.
func NotesOf(pipeline string, target change.Name) string { return StageOf(pipeline, target) + "_keys" }

func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
