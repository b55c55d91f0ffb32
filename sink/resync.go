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
// transaction makes the target equal to the stage. Stage, Replace and Unstage are the
// owner's and fenced; they run while no batch is applied.
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

	// Unstage drops the stages that a process which died has left behind.
	Unstage(ctx context.Context) error

	// Gaps reads what is missing in the histories of this pipeline, by target and
	// position. It needs no ownership.
	Gaps(ctx context.Context) ([]Gap, error)
}

// Replacement says as what Replace makes a target.
type Replacement struct {
	At   time.Time        // type 2: the instant of the step
	Done checkpoint.Table // the target's state after it
	Gap  *Gap             // nil: none
	Part *Part            // nil: the stage holds the whole table
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

func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
