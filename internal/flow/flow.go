// Package flow is the specification of what goes where: declared paths from
// source relations to target tables, and their validation. It knows no database.
package flow

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Spec is one flow as a person declares it. Names follow the AUTO CDC parameters.
type Spec struct {
	Source  string   // `schema.table`, or a pattern with * and ?, e.g. `public.*`; of Files the relation's name
	Files   bool     // the source is a relation of files, not a table
	Except  []string // names or patterns that a pattern leaves out
	Target  string   // `table`, `schema.table`, or a template with {schema} and {table}; empty: by the naming rule
	SCDType int      // 1, 2 or Bitemporal

	Keys             []string // empty: the primary key
	Once             bool     // take the rows or files that are there, and follow nothing (rule R90)
	AppendOnly       bool     // follow inserts and truncates only, although there is a key
	ColumnList       []string // only these columns
	ExceptColumnList []string // all but these

	TrackHistory       []string // type 2: only differences here open a version
	TrackHistoryExcept []string // type 2: differences anywhere but here do

	// HistoryStart is where versions of copied rows begin: HistoryStartSnapshot (the
	// source's clock just before the snapshot) or HistoryStartInfinity.
	HistoryStart string

	Expect     []Expectation // in the order of the declaration
	ChangeFeed bool          // the destination keeps every row-level change of the target
	FeedKeep   time.Duration // for how long; 0: until somebody removes it

	Sequenced Sequenced
	Snapshot  *Snapshot // of whole snapshots; Source says then what is read, for messages
}

// Sequenced is what makes a flow a sequenced one: its events are ordered by columns
// of the user, and may arrive in any order. It is one if SequenceBy is not empty.
type Sequenced struct {
	Name       string   // the flow's identity; empty: the target's name
	SequenceBy []string // columns (or _lsn, _commit_time), compared from left to right
	// SystemSequenceBy is the column (or _lsn, _commit_time) that says when an event became
	// known: of a bitemporal target, which must have it.
	SystemSequenceBy []string
	Feed             bool     // source_kind: feed: only INSERTs of the relation are events
	SkipChange       []string // of a feed: insert-only is expected; these operations are passed over: update, delete, truncate

	DeleteWhen   string // apply_as_deletes
	TruncateWhen string // apply_as_truncates; type 1 only (rule R27)

	IgnoreNull       bool     // ignore_null_updates: for all columns
	IgnoreNullList   []string // for these only
	IgnoreNullExcept []string // for all but these
	ColumnsToUpdate  string   // the column that names what an event writes (rule R51)

	// DeleteSequence is what gives a DELETE statement its sequence in the history of a
	// table: columns or _commit_time, _lsn, of the types of SequenceBy. Empty: _commit_time,
	// for a sequence of one timestamp; for a sequence of _lsn or _commit_time alone that.
	DeleteSequence []string

	Global             bool          // sequence_scope: global: sequences compare across keys, not only within one
	TombstoneRetention time.Duration // how long deletes are remembered, in commit time
	QuarantineBeyond   bool          // late_beyond_retention: quarantine
	FailOnBad          bool          // on_bad_event: fail
}

// Is reports whether the flow is sequenced.
func (s *Sequenced) Is() bool { return len(s.SequenceBy) > 0 }

// Partial reports whether an event may leave columns unwritten.
func (s *Sequenced) Partial() bool {
	return s.IgnoreNull || len(s.IgnoreNullList) > 0 || len(s.IgnoreNullExcept) > 0 || s.ColumnsToUpdate != ""
}

// validate checks what can be known without a database.
func (s *Sequenced) validate(scdType int, keys []string, bad func(string, ...any) error) error {
	if !s.Is() {
		for name, set := range map[string]bool{
			"apply_as_deletes": s.DeleteWhen != "", "apply_as_truncates": s.TruncateWhen != "", "columns_to_update": s.ColumnsToUpdate != "",
			"ignore_null_updates": s.Partial() && s.ColumnsToUpdate == "", "source_kind: feed": s.Feed, "late_beyond_retention": s.QuarantineBeyond,
			"delete_sequence": len(s.DeleteSequence) > 0, "sequence_scope": s.Global,
		} {
			if set {
				return bad("%s needs sequence_by: the column that orders the events of a key", name)
			}
		}
		return nil
	}
	ways := 0
	for _, set := range []bool{s.IgnoreNull, len(s.IgnoreNullList) > 0, len(s.IgnoreNullExcept) > 0} {
		if set {
			ways++
		}
	}
	switch {
	case s.Feed && len(keys) == 0:
		return bad("a feed needs keys: the columns that say which row an event is about")
	case scdType == 2 && s.TruncateWhen != "":
		return bad("apply_as_truncates goes with stored_as_scd_type: 1 only: a history is not truncated")
	case ways > 1:
		return bad("ignore_null_updates, ignore_null_updates_column_list and ignore_null_updates_except_column_list exclude each other")
	case ways > 0 && s.ColumnsToUpdate != "":
		return bad("columns_to_update and ignore_null_updates exclude each other")
	case len(s.SkipChange) > 0 && !s.Feed:
		return bad("skip_change_commits goes with source_kind: feed")
	case s.TombstoneRetention < 0:
		return bad("tombstone_retention is negative")
	case s.QuarantineBeyond && !s.Global:
		return bad("late_beyond_retention: quarantine compares an event with deletes of other keys; say sequence_scope: global if sequences compare across keys, else leave it at apply")
	case len(s.DeleteSequence) > 0 && s.Feed:
		return bad("delete_sequence goes with source_kind: table: the events of a feed have their own sequence")
	case len(s.DeleteSequence) > 0 && scdType == 1:
		return bad("delete_sequence goes with stored_as_scd_type: 2: in type 1 a DELETE has the sequence of the row that went")
	}
	for _, op := range s.SkipChange {
		if op != "update" && op != "delete" && op != "truncate" {
			return bad("skip_change_commits lists update, delete or truncate, not %q", op)
		}
	}
	return nil
}

// bookSchema is where pipelines that write to the source's database keep their books.
const bookSchema = "_tailrace"

// DefaultFeedKeep is how long a change feed keeps a change: a week, so that a reader that
// rests over a holiday goes on where it was.
const DefaultFeedKeep = 168 * time.Hour

const (
	HistoryStartSnapshot = "snapshot"
	HistoryStartInfinity = "-infinity"
)

// IsPattern reports whether the flow names many relations.
func (s *Spec) IsPattern() bool { return s.Snapshot == nil && strings.ContainsAny(s.Source, "*?") }

// Validate checks what can be known without a database. Errors are Usage errors
// that name the flow.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return fault.Badly("flow %q: %s", s.Source, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Source == "":
		return fault.Badly("a flow needs `source`: a table like public.orders or a pattern like public.*")
	case s.SCDType != 1 && s.SCDType != 2 && s.SCDType != Bitemporal:
		return bad("stored_as_scd_type is 1, 2 or bitemporal, not %d", s.SCDType)
	case len(s.ColumnList) > 0 && len(s.ExceptColumnList) > 0:
		return bad("column_list and except_column_list exclude each other")
	case len(s.TrackHistory) > 0 && len(s.TrackHistoryExcept) > 0:
		return bad("track_history_column_list and track_history_except_column_list exclude each other")
	case s.SCDType == 1 && len(s.TrackHistory)+len(s.TrackHistoryExcept) > 0:
		return bad("track_history_* belongs to stored_as_scd_type: 2")
	case s.SCDType == 2 && s.AppendOnly:
		return bad("append_only keeps no history: it goes with stored_as_scd_type: 1")
	case len(s.Except) > 0 && !s.IsPattern():
		return bad("except goes with a pattern as source")
	case s.IsPattern() && s.Target != "" && !strings.Contains(s.Target, "{table}"):
		return bad("a pattern needs a target template with {table}, e.g. \"{schema}_{table}\", or no target")
	case s.HistoryStart != HistoryStartSnapshot && s.HistoryStart != HistoryStartInfinity:
		return bad("history_start is %q or %q, not %q", HistoryStartSnapshot, HistoryStartInfinity, s.HistoryStart)
	}
	if s.FeedKeep < 0 {
		return bad("change_feed_retention is negative")
	}
	if s.Snapshot != nil {
		if s.SCDType == Bitemporal {
			return bad("a bitemporal target takes events that say when they became known: snapshots go into stored_as_scd_type: 1 or 2")
		}
		return s.validateSnapshot(bad)
	}
	if s.Sequenced.Is() {
		switch {
		case s.AppendOnly:
			return bad("append_only keeps every row as it came: it does not go with sequence_by")
		case s.IsPattern():
			return bad("sequence_by belongs to a flow of one relation, not to a pattern")
		}
	}
	if err := s.validateBitemporal(bad); err != nil {
		return err
	}
	if err := s.Sequenced.validate(s.SCDType, s.Keys, bad); err != nil {
		return err
	}
	if err := validateExpectations(s.Expect, s.IsPattern(), bad); err != nil {
		return err
	}
	for _, p := range append([]string{s.Source}, s.Except...) {
		if _, err := path.Match(p, "x"); err != nil {
			return bad("pattern %q is malformed", p)
		}
	}
	return nil
}

// Matches reports whether the flow takes the relation named n. Without a schema
// in the pattern, schema public is meant; relations of files have none, and only
// flows of files take them. Names are compared as the database stores them, case
// included.
func (s *Spec) Matches(n change.Name) bool {
	if n.Schema == bookSchema && s.IsPattern() {
		return false // its change feeds are named one by one
	}
	if s.Snapshot != nil || s.Files != (n.Schema == "") || !match(s.Source, n) {
		return false
	}
	return !slices.ContainsFunc(s.Except, func(p string) bool { return match(p, n) })
}

// match compares schema and table apart, so that a star never crosses the dot.
// A name that itself holds a dot is written in double quotes: public."a.b".
func match(pattern string, n change.Name) bool {
	schema, table := SplitName(pattern)
	if schema == "" && n.Schema != "" {
		schema = "public"
	}
	return glob(schema, n.Schema) && glob(table, n.Table)
}

func glob(pattern, s string) bool {
	if !strings.ContainsAny(pattern, "*?[\\") {
		return pattern == s
	}
	// path.Match stops at '/', which a name may hold.
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(s, "/", "\x00"))
	return err == nil && ok
}

// SplitName splits schema.table at the first dot outside double quotes and takes
// the quotes off (a doubled quote inside means one).
func SplitName(s string) (schema, table string) {
	inQuotes := false
	for i, r := range s {
		switch {
		case r == '"':
			inQuotes = !inQuotes
		case r == '.' && !inQuotes:
			return unquote(s[:i]), unquote(s[i+1:])
		}
	}
	return "", unquote(s)
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return strings.ReplaceAll(s[1:len(s)-1], `""`, `"`)
	}
	return s
}

// TargetFor names the target of relation n. An unqualified target lies in the
// destination's default schema. Without one the source's schema is kept, with
// sourceDefault (PostgreSQL: public) mapped to the default schema, as is the lack of
// one (relations of files).
func (s *Spec) TargetFor(n change.Name, sourceDefault, defaultSchema string) change.Name {
	if s.Target == "" {
		if n.Schema == sourceDefault || n.Schema == "" {
			return change.Name{Schema: defaultSchema, Table: n.Table}
		}
		return n
	}
	schema, table := SplitName(s.Target)
	fill := strings.NewReplacer("{schema}", n.Schema, "{table}", n.Table)
	out := change.Name{Schema: fill.Replace(schema), Table: fill.Replace(table)}
	if out.Schema == "" {
		out.Schema = defaultSchema
	}
	return out
}

// Reserved are column names that a target with versions may not take from its source
// (rule R99), compared without case.
var Reserved = []string{"__START_AT", "__END_AT"}

// Columns chooses the target's columns among a relation's and checks every named
// one. It returns, in the relation's order, the index of each chosen column, and
// which of them are key and tracked.
func (s *Spec) Columns(t *change.Table, keys []string) (chosen []int, isKey, tracked map[int]bool, err error) {
	bad := func(format string, args ...any) error {
		return fault.Badly("flow %q, table %s: %s", s.Source, t.Name, fmt.Sprintf(format, args...))
	}
	var unknown []string
	lookup := func(names []string) map[int]bool {
		set := map[int]bool{}
		for _, n := range names {
			if i := t.Find(n); i >= 0 {
				set[i] = true
			} else if !s.IsPattern() {
				unknown = append(unknown, n)
			}
		}
		return set
	}
	only, except := lookup(s.ColumnList), lookup(s.ExceptColumnList)
	track, noTrack := lookup(s.TrackHistory), lookup(s.TrackHistoryExcept)
	isKey = lookup(keys)
	if len(unknown) > 0 {
		return nil, nil, nil, bad("no such column: %s (it has %s)", strings.Join(unknown, ", "), t.ColumnNames())
	}
	tracked = map[int]bool{}
	for i := range t.Columns {
		if len(s.ColumnList) > 0 && !only[i] || except[i] {
			if isKey[i] {
				return nil, nil, nil, bad("key column %s must be among the selected columns", t.Columns[i].Name)
			}
			if track[i] || noTrack[i] {
				return nil, nil, nil, bad("tracked column %s is not among the selected columns", t.Columns[i].Name)
			}
			continue
		}
		for _, r := range s.reserved() {
			if strings.EqualFold(t.Columns[i].Name, r) {
				return nil, nil, nil, bad("column %s has a reserved name, which this target needs for its own versions; leave it out with except_column_list, or say stored_as_scd_type: 1", t.Columns[i].Name)
			}
		}
		chosen = append(chosen, i)
		if len(s.TrackHistory) > 0 {
			tracked[i] = track[i] && !isKey[i]
		} else {
			tracked[i] = !noTrack[i] && !isKey[i]
		}
	}
	return chosen, isKey, tracked, nil
}
