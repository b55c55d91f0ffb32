package flow

import (
	"time"

	"github.com/robfig/cron/v3"

	"tailrace/internal/change"
)

// Snapshot makes a flow one of whole snapshots (rules R54-R66): each is compared with
// the target, and what differs are its events, at the snapshot's version.
type Snapshot struct {
	// One of the three says what is read.
	Relation string // a table of the source
	Query    string // of the source
	Path     string // files, each a version: path with a group (?P<version>...)

	// Of Path.
	Format    string
	Header    *bool
	Delimiter string
	Null      string
	Columns   []Column // declared; others are inferred
	// VersionType is the type of the version in Path: bigint (the default), text, date,
	// timestamp or timestamptz.
	VersionType string

	// Version is what gives a Relation or Query its version; of Path it is empty.
	Version      VersionKind
	VersionQuery string // with ByQuery: one column, no row or one, read in the same snapshot

	// When a daemon takes it: every so often, by a cron expression, or at its start alone.
	// Of Path: how often it looks for new files; 0 is FilesEvery.
	Every time.Duration
	Cron  string // five fields, in the machine's zone unless it begins with CRON_TZ=...

	// MaxDeleteShare is the greatest part of the target's rows that a snapshot may delete.
	// Above it, and where it is empty and the target is not, it is refused (rule R66), unless
	// it is 1.
	MaxDeleteShare float64
}

// Column is a declared column: name and type.
type Column struct{ Name, Type string }

// VersionKind is where a version comes from.
type VersionKind string

const (
	ByCounter  VersionKind = "counter"  // 0, 1, 2...: bigint
	ByPosition VersionKind = "position" // of the source's log, as _lsn
	ByQuery    VersionKind = "query"
)

const (
	// FilesEvery is how often a daemon looks for new snapshot files: often beside people
	// who wait for them, rare beside the cost of listing a folder.
	FilesEvery = 10 * time.Second
	// everyLeast is the shortest interval: each snapshot costs the source a reading of
	// the whole table.
	everyLeast = time.Second
	// DefaultDeleteShare is half of the rows.
	DefaultDeleteShare = 0.5
)

// VersionTypes are the types that a version in a path may have, by their names in the
// configuration.
var VersionTypes = map[string]change.Type{
	"bigint":      {Kind: change.Int64, Name: "bigint", BuiltIn: true},
	"text":        {Kind: change.Text, Name: "text", BuiltIn: true},
	"date":        {Kind: change.Date, Name: "date", BuiltIn: true},
	"timestamp":   {Kind: change.Timestamp, Name: "timestamp without time zone", BuiltIn: true},
	"timestamptz": {Kind: change.TimestampTZ, Name: "timestamp with time zone", BuiltIn: true},
}

// What says what is read, for messages.
func (s *Snapshot) What() string {
	switch {
	case s.Relation != "":
		return "snapshot of " + s.Relation
	case s.Query != "":
		return "snapshot query"
	}
	return "snapshots " + s.Path
}

// Name is the relation's name under which a flow reads it.
func (s *Snapshot) Name(sourceDefault string) change.Name {
	if s.Relation == "" {
		return change.Name{Table: s.What()}
	}
	schema, table := SplitName(s.Relation)
	if schema == "" {
		schema = sourceDefault
	}
	return change.Name{Schema: schema, Table: table}
}

// Next is when a daemon takes it again after last, which is zero if it never did. The
// zero time: not by itself.
func (s *Snapshot) Next(last time.Time) time.Time {
	if s.Cron != "" {
		if last.IsZero() {
			return last
		}
		return nextByCron(s.Cron, last)
	}
	every := s.Every
	if s.Path != "" && every == 0 {
		every = FilesEvery
	}
	if every == 0 {
		return time.Time{}
	}
	return last.Add(every)
}

func (s *Spec) validateSnapshot(bad func(string, ...any) error) error {
	n, q := s.Snapshot, &s.Sequenced
	ways := 0
	for _, set := range []bool{n.Relation != "", n.Query != "", n.Path != ""} {
		if set {
			ways++
		}
	}
	for name, set := range map[string]bool{
		"sequence_by": len(q.SequenceBy) > 0, "delete_sequence": len(q.DeleteSequence) > 0, "apply_as_deletes": q.DeleteWhen != "", "apply_as_truncates": q.TruncateWhen != "",
		"ignore_null_updates": q.IgnoreNull || len(q.IgnoreNullList)+len(q.IgnoreNullExcept) > 0, "columns_to_update": q.ColumnsToUpdate != "",
		"append_only": s.AppendOnly, "skip_change_commits": len(q.SkipChange) > 0, "except": len(s.Except) > 0,
	} {
		if set {
			return bad("%s does not go with snapshot: a snapshot holds whole rows at its version (rule R58)", name)
		}
	}
	switch {
	case ways != 1:
		return bad("snapshot needs one of relation, query and path")
	case len(s.Keys) == 0 && n.Relation == "":
		return bad("snapshot needs keys: the columns that say which row is which")
	case s.Target == "" && n.Relation == "":
		return bad("snapshot needs a target")
	case n.Path != "" && n.Version != "":
		return bad("the version of snapshot files is the group (?P<version>...) of their path; leave version out (version_type says its type)")
	case n.Path == "" && n.Version == "":
		return bad("snapshot needs version: counter, position, or {query: \"...\"}")
	case n.Path == "" && n.Version != ByCounter && n.Version != ByPosition && n.Version != ByQuery:
		return bad("version is counter, position, or {query: \"...\"}, not %q", n.Version)
	case n.Path == "" && (n.Format != "" || n.Header != nil || n.Delimiter != "" || n.Null != "" || len(n.Columns) > 0 || n.VersionType != ""):
		return bad("format, header, delimiter, null, columns and version_type belong to snapshot files (path)")
	case n.Every != 0 && n.Cron != "":
		return bad("every and cron exclude each other")
	case n.Every != 0 && n.Every < everyLeast:
		return bad("every is at least %s: each snapshot is a reading of the whole table", everyLeast)
	case n.MaxDeleteShare < 0 || n.MaxDeleteShare > 1:
		return bad("max_delete_share is a part between 0 and 1, not %v", n.MaxDeleteShare)
	}
	if n.VersionType != "" {
		if _, ok := VersionTypes[n.VersionType]; !ok {
			return bad("version_type is bigint, text, date, timestamp or timestamptz, not %q (SNAPSHOT_VERSION_NOT_SORTABLE)", n.VersionType)
		}
	}
	if n.Cron != "" {
		if _, err := cron.ParseStandard(n.Cron); err != nil {
			return bad("cron %q: %v; it has five fields: minute, hour, day of the month, month, day of the week", n.Cron, err)
		}
	}
	return nil
}

// ByEvents reports whether the flow's events carry a sequence of their own: a user's
// columns or a snapshot's version.
func (s *Spec) ByEvents() bool { return s.Sequenced.Is() || s.Snapshot != nil }

// FromLog reports whether the flow reads a table of the source's log.
func (s *Spec) FromLog() bool { return !s.Files && s.Snapshot == nil }
