package sink

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// A target's change feed is a table in schema _tailrace with every row-level change of
// the target, written in the transaction that makes the change. A batch counts as one
// change of each row (a source transaction in pieces too, with all its pieces): the feed
// says what differs after it from what was there before, however often a row was written
// in between, and rows that were written with equal values are no change (rule R55).
//
// A row is identified by its key, of type 2 by key and start (rule R44): a version whose
// start moves is a delete and an insert (rules R38, R103). Rows that differ have a pre-
// and a post-image, which are neighbours in the order of FeedID. Without a key every row
// that comes is an insert and every row that goes a delete.
//
// The first copy is in the feed as inserts, and what a later copy of the table changes as
// the differences that it makes. Whoever reads a feed that was there from the target's
// beginning and is whole still, has the target; else a reader begins with the target's
// rows.
//
// How a destination finds the changes: before it carries out a batch's rounds it notes
// the rows of the keys that they touch (TouchedBy), and compares them with those that are
// there at the end.

// Columns of a feed before those of its target (of type 2 with start and end).
const (
	FeedID         = "_change_id"   // 64-bit integer: grows from change to change of a target; gaps mean nothing
	FeedType       = "_change_type" // one of the constants below
	FeedMark       = "_mark"        // the position of the batch (change.Position as text); of a copy the position of its snapshot
	FeedCommitTime = "_commit_time" // the source's commit of the batch's last transaction; of what has none the destination's clock
)

// FeedColumns are their names, in this order.
var FeedColumns = [...]string{FeedID, FeedType, FeedMark, FeedCommitTime}

// Kinds of changes.
const (
	FeedInsert = "insert"
	FeedBefore = "update_preimage"
	FeedAfter  = "update_postimage"
	FeedDelete = "delete"
)

// Feeds is the part of a Writer that looks after change feeds beside the batches that
// write them.
type Feeds interface {
	// Feeds measures this pipeline's change feeds, also those whose flow keeps none any
	// more, in the order of their targets. It needs no ownership, only reads, and takes about
	// a second at most for each. None where the bookkeeping is missing.
	Feeds(ctx context.Context) ([]FeedSize, error)

	// TrimFeed removes what is older than FeedKeep among the oldest FeedStep changes of a
	// target's feed, fenced, in one durable transaction, and returns how many they were. One
	// change may stay, however old, where the numbers go on from it. It is called where Apply
	// may be, with no batch open. What is not there has nothing to remove.
	TrimFeed(ctx context.Context, t *scd.Target) (removed int64, err error)
}

// FeedSize is how much a target's change feed holds.
type FeedSize struct {
	Target    change.Name
	Table     string // its name in schema _tailrace
	Rows      int64
	Estimated bool      // Rows is, from statistics
	Bytes     int64     // on disk, with its index; what is not written there yet does not count
	Oldest    time.Time // _commit_time of its oldest change; zero: there is none
}

// feedNameMax is the bytes of the shortest limit of a table's name among destinations.
const feedNameMax = 63

// FeedName names a target's feed in schema _tailrace: changes_TABLE for a target in the
// schema that a name without one means there (usual), else changes_SCHEMA_TABLE. A name
// that is too long ends with a hash.
func FeedName(target change.Name, usual string) string {
	name := "changes_" + target.Table
	if target.Schema != "" && target.Schema != usual {
		name = "changes_" + target.Schema + "_" + target.Table
	}
	if len(name) <= feedNameMax {
		return name
	}
	end := "_" + short(target.Schema+"\x00"+target.Table)
	name = name[:feedNameMax-len(end)]
	for !utf8.ValidString(name) {
		name = name[:len(name)-1]
	}
	return name + end
}

// FeedFindings are what stands against a feed of t: columns that the feed's own names
// leave no place for, compared without case.
func FeedFindings(t *scd.Target) []Finding {
	var out []Finding
	for i := range t.Columns {
		for _, own := range FeedColumns {
			if t.ChangeFeed && strings.EqualFold(t.Columns[i].Name, own) {
				out = append(out, Finding{Blocks: true,
					What:   "column " + t.Columns[i].Name + " of target " + t.Name.String() + " has a name that its change feed needs for itself",
					Remedy: "leave it out with except_column_list, or take change_feed out of the flow"})
			}
		}
	}
	return out
}

// Touched is what a batch's part may change of its target.
type Touched struct {
	Keys   []scd.Key      // each once, sorted
	Starts []change.Value // of a sequenced type 2 target: with each of Keys (which then may stand several times) the start of a version
	Whole  bool           // any row may change, beside those of Keys
}

// TouchedBy looks through a part's rounds. Of an ordered type 2 target it is the newest
// version of each key that may change, and later ones that may come.
func TouchedBy(p *TargetRounds) (Touched, error) {
	var t Touched
	t.Whole = p.Hidden != nil && !p.Hidden.TruncateBelow.IsZero() && p.Target.Kind == scd.Type1
	if p.Target.AppendOnly {
		return t, nil
	}
	keys := p.Target.Keys()
	var arena scd.Arena
	var values []change.Value
	ofRow := func(row change.Row) (err error) {
		if values, err = row.Values(values, len(p.Target.Columns)); err != nil {
			return fault.Corrupted("target %s: a row of %d columns: %v", p.Target.Name, len(p.Target.Columns), err)
		}
		size := 0
		for _, k := range keys {
			size += len(values[k].Data) + 5
		}
		key := scd.Key(arena.Take(size))
		for _, k := range keys {
			key = key.Append(values[k])
		}
		t.Keys = append(t.Keys, key)
		return nil
	}
	var versions []scd.VersionID
	for i := range p.Rounds {
		r := &p.Rounds[i]
		t.Whole = t.Whole || r.Truncate
		t.Keys = append(t.Keys, r.Deletes...)
		for j := range r.Moves {
			t.Keys = append(t.Keys, r.Moves[j].Old)
			if err := ofRow(r.Moves[j].Row); err != nil {
				return t, err
			}
		}
		for _, list := range [][]change.Row{r.Inserts, r.Upserts, r.Patches} {
			for _, row := range list {
				if err := ofRow(row); err != nil {
					return t, err
				}
			}
		}
		for j := range r.Steps {
			if r.Steps[j].N == 1 {
				t.Keys = append(t.Keys, r.Steps[j].Key)
			}
		}
		for j := range r.Ends {
			versions = append(versions, r.Ends[j].VersionID)
		}
		versions = append(versions, r.Drops...)
		for j := range r.Begins {
			versions = append(versions, r.Begins[j].VersionID)
		}
	}
	if len(versions) == 0 {
		slices.SortFunc(t.Keys, func(a, b scd.Key) int { return bytes.Compare(a, b) })
		t.Keys = slices.CompactFunc(t.Keys, func(a, b scd.Key) bool { return bytes.Equal(a, b) })
		return t, nil
	}
	compare := func(a, b scd.VersionID) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return bytes.Compare(a.Start.Data, b.Start.Data)
	}
	slices.SortFunc(versions, compare)
	versions = slices.CompactFunc(versions, func(a, b scd.VersionID) bool { return compare(a, b) == 0 })
	for _, v := range versions {
		t.Keys, t.Starts = append(t.Keys, v.Key), append(t.Starts, v.Start)
	}
	return t, nil
}

// A feed's old rows are removed in steps, each in the transaction of a batch that writes
// the target. A step looks at the oldest FeedStep changes, or twice as many as the batch
// has written, so that a busy feed does not outgrow it. The next one is due when
// feedTrimEvery has passed, or at the next batch while there was something to remove.
const (
	FeedStep      = 10_000
	feedTrimEvery = time.Minute
)

// FeedTrim says when a feed's next step of removal is due. The zero value is due.
type FeedTrim struct{ next time.Time }

// Due reports whether the step is to be done now, by a monotonic clock, of a feed that is
// kept for keep. Tests keep it for less than a minute.
func (f *FeedTrim) Due(keep time.Duration) bool {
	return keep > 0 && !time.Now().Before(f.next)
}

// Done notes that a step has removed rows of a feed that is kept for keep.
func (f *FeedTrim) Done(keep time.Duration, removed int64) {
	f.next = time.Now()
	if removed == 0 {
		f.next = f.next.Add(min(feedTrimEvery, keep))
	}
}

// FeedSpan is how many changes a step looks at, after a batch that has written some.
func FeedSpan(written int64) int64 { return max(FeedStep, 2*written) }

// FeedChanged refuses a target's new layout in the middle of a transaction in pieces: what
// was noted of its rows has the old one.
func FeedChanged(t *scd.Target) error {
	return fault.Refuse("tailrace resync for that table", "table %s changed its columns inside a transaction that comes in pieces: its changes cannot be compared", t.Name)
}
