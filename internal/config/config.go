// Package config turns a YAML file, TAILRACE_ variables and flags into
// specifications. It is strict: an unknown key is an error with its line and a
// suggestion. Case of values (table and column names) is kept. Secrets have a type
// that never prints.
package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/flowsql"
)

// Config is one pipeline's configuration. config.example.yaml documents every key
// with its default and unit.
type Config struct {
	Pipeline    string        `yaml:"pipeline"`
	Source      Source        `yaml:"source"`
	Destination Destination   `yaml:"destination"`
	Hydrate     Hydrate       `yaml:"hydrate"`
	Batch       Batch         `yaml:"batch"`
	Rewind      Rewind        `yaml:"rewind"`
	Relations   Relations     `yaml:"relations"`
	Flows       []Flow        `yaml:"flows"`
	SQLFiles    Names         `yaml:"sql"`
	SQLCatalogs Catalogs      `yaml:"sql_catalogs"`
	Listen      string        `yaml:"listen"`
	Pprof       bool          `yaml:"pprof"`
	QueueBytes  Bytes         `yaml:"queue_bytes"`
	DrainMax    time.Duration `yaml:"drain_max"`
	RetryMax    time.Duration `yaml:"retry_max"`
	MaxLag      time.Duration `yaml:"max_lag"`
	Trigger     Trigger       `yaml:"trigger"`
	OnFailure   OnFailure     `yaml:"on_failure"`
	LogLevel    string        `yaml:"log_level"`
	LogFormat   string        `yaml:"log_format"`

	written *Written
}

// Source is where changes come from.
type Source struct {
	Kind                string `yaml:"kind"`
	DSN                 Secret `yaml:"dsn"`
	Slot                string `yaml:"slot"`
	Publication         string `yaml:"publication"`
	MaxTransactionBytes Bytes  `yaml:"max_transaction_bytes"`
	MaxRetainedWAL      Bytes  `yaml:"max_retained_wal"`
	OnLimit             string `yaml:"on_limit"`
	Streaming           string `yaml:"streaming"`
	SpoolDir            string `yaml:"spool_dir"`
	SpoolMax            Bytes  `yaml:"spool_max"`
	ServerID            uint32 `yaml:"server_id"`     // mysql; 0: made of the pipeline's name
	ZeroDates           string `yaml:"zero_dates"`    // mysql
	SnapshotLock        string `yaml:"snapshot_lock"` // mysql
}

// Streams reports whether large transactions are received while they are open. A
// publication of somebody else's may be altered inside one, of which a streaming server
// then sends less than all, silently (docs/decisions/0012).
func (s *Source) Streams() bool {
	return s.Streaming == "on" || s.Streaming == "auto" && s.Publication == ""
}

// Destination is the database that receives.
type Destination struct {
	Kind   string `yaml:"kind"`
	DSN    Secret `yaml:"dsn"`
	Schema string `yaml:"schema"`
	DuckDB DuckDB `yaml:"duckdb"`
}

// DuckDB tunes the embedded destination.
type DuckDB struct {
	MemoryLimit         Bytes  `yaml:"memory_limit"`
	Threads             int    `yaml:"threads"`
	CheckpointThreshold Bytes  `yaml:"checkpoint_threshold"`
	TempDirectory       string `yaml:"temp_directory"`
	PrimaryKey          bool   `yaml:"primary_key"`

	SnapshotEvery time.Duration `yaml:"snapshot_every"` // 0: never
}

// Hydrate tunes the copy.
type Hydrate struct {
	Mode       string `yaml:"mode"` // copy | prepare | adopt
	Workers    int    `yaml:"workers"`
	SplitBytes Bytes  `yaml:"split_bytes"`
	MaxRate    Bytes  `yaml:"max_rate"` // per second
}

// Batch bounds one destination transaction.
type Batch struct {
	MaxRows  int   `yaml:"max_rows"`
	MaxBytes Bytes `yaml:"max_bytes"`
}

// Rewind says which rewind points are kept; none unless Every or Keep is set.
type Rewind struct {
	Every   time.Duration `yaml:"every"`
	Keep    time.Duration `yaml:"keep"`
	MaxWAL  Bytes         `yaml:"max_wal"`  // 0: no bound
	MaxUndo Bytes         `yaml:"max_undo"` // 0: no bound
}

// On reports whether points are kept.
func (r *Rewind) On() bool { return r.Keep > 0 }

const (
	// A rewind point is a durable transaction, and in the destination a table for each
	// target that changes behind it: not more often than once a minute, and not more than a
	// thousand at once.
	pointsEvery = time.Minute
	pointsMost  = 1000

	defaultRewindEvery = time.Hour
	defaultRewindKeep  = 24 * time.Hour
)

// settle gives what is left out of a `rewind` that is there its default.
func (r *Rewind) settle() {
	switch {
	case r.Every > 0 && r.Keep == 0:
		r.Keep = max(defaultRewindKeep, r.Every)
	case r.Keep > 0 && r.Every == 0:
		r.Every = min(defaultRewindEvery, r.Keep)
	}
}

func (r *Rewind) validate() error {
	bad := fault.Badly
	switch {
	case r.Every < 0 || r.Keep < 0:
		return bad("rewind.every and rewind.keep are positive durations such as 1h, or both 0 for no rewind points")
	case !r.On():
	case r.Every < pointsEvery:
		return bad("rewind.every is at least %s, not %s: each point is a table in the destination for every target that changes behind it", pointsEvery, r.Every)
	case r.Every > r.Keep:
		return bad("rewind.every (%s) is longer than rewind.keep (%s): points would be dropped before the next one is made", r.Every, r.Keep)
	case r.Keep/r.Every > pointsMost:
		return bad("rewind.keep (%s) is more than %d times rewind.every (%s): each point is a table in the destination for every target that changes behind it", r.Keep, pointsMost, r.Every)
	}
	return nil
}

// Flow is one entry of flows.
type Flow struct {
	Source             string   `yaml:"source"`
	Except             []string `yaml:"except"`
	Target             string   `yaml:"target"`
	SCDType            SCDType  `yaml:"stored_as_scd_type"`
	Keys               []string `yaml:"keys"`
	AppendOnly         bool     `yaml:"append_only"`
	ColumnList         []string `yaml:"column_list"`
	ExceptColumnList   []string `yaml:"except_column_list"`
	TrackHistory       []string `yaml:"track_history_column_list"`
	TrackHistoryExcept []string `yaml:"track_history_except_column_list"`
	HistoryStart       string   `yaml:"history_start"`

	Name                string        `yaml:"name"`
	Once                bool          `yaml:"once"`
	SequenceBy          Names         `yaml:"sequence_by"`
	SystemSequenceBy    Names         `yaml:"system_sequence_by"`
	SequenceScope       string        `yaml:"sequence_scope"`
	DeleteSequence      Names         `yaml:"delete_sequence"`
	SourceKind          string        `yaml:"source_kind"`
	SkipChangeCommits   []string      `yaml:"skip_change_commits"`
	ApplyAsDeletes      string        `yaml:"apply_as_deletes"`
	ApplyAsTruncates    string        `yaml:"apply_as_truncates"`
	IgnoreNull          bool          `yaml:"ignore_null_updates"`
	IgnoreNullList      []string      `yaml:"ignore_null_updates_column_list"`
	IgnoreNullExcept    []string      `yaml:"ignore_null_updates_except_column_list"`
	ColumnsToUpdate     string        `yaml:"columns_to_update"`
	TombstoneRetention  time.Duration `yaml:"tombstone_retention"`
	LateBeyondRetention string        `yaml:"late_beyond_retention"`
	OnBadEvent          string        `yaml:"on_bad_event"`
	Expect              Expectations  `yaml:"expect"`

	ChangeFeed          bool           `yaml:"change_feed"`
	ChangeFeedRetention *time.Duration `yaml:"change_feed_retention"`

	Snapshot *Snapshot `yaml:"snapshot"`
}

// Snapshot makes a flow one of whole snapshots.
type Snapshot struct {
	Relation       string          `yaml:"relation"`
	Query          string          `yaml:"query"`
	Path           string          `yaml:"path"`
	Format         string          `yaml:"format"`
	Columns        Columns         `yaml:"columns"`
	Header         *bool           `yaml:"header"`
	Delimiter      string          `yaml:"delimiter"`
	Null           string          `yaml:"null"`
	Version        SnapshotVersion `yaml:"version"`
	VersionType    string          `yaml:"version_type"`
	Every          time.Duration   `yaml:"every"`
	Cron           string          `yaml:"cron"`
	MaxDeleteShare *float64        `yaml:"max_delete_share"`
}

// SnapshotVersion is written as a word, or as {query: "..."}.
type SnapshotVersion struct {
	Kind  string `yaml:"-"`
	Query string `yaml:"query"`
}

// SCDType is 1, 2 or bitemporal (flow.Bitemporal).
type SCDType int

// UnmarshalText reads one; 1 and 2 may be texts too.
func (t *SCDType) UnmarshalText(text []byte) error {
	switch strings.ToLower(string(text)) {
	case "1":
		*t = 1
	case "2":
		*t = 2
	case "bitemporal":
		*t = flow.Bitemporal
	default:
		return errors.New("it is 1, 2 or bitemporal")
	}
	return nil
}

// Expectations are conditions on the rows of a flow, in the order of the file.
type Expectations []Expectation

// Expectation is one of them.
type Expectation struct {
	Name        string `yaml:"-"` // its key in expect
	Condition   string `yaml:"condition"`
	OnViolation string `yaml:"on_violation"`
}

// Names is a list that may be written as one name.
type Names []string

// Relations are the change feeds in files, in the order of the file.
type Relations []Relation

// Relation is one of them.
type Relation struct {
	Name      string  `yaml:"-"` // its key in relations
	Path      string  `yaml:"path"`
	Format    string  `yaml:"format"`
	Columns   Columns `yaml:"columns"`
	Header    *bool   `yaml:"header"`
	Delimiter string  `yaml:"delimiter"`
	Null      string  `yaml:"null"`
	Order     string  `yaml:"order"`
}

// Columns are declared columns, in order: name and type.
type Columns []Column

// Column is one of them.
type Column struct{ Name, Type string }

// Default returns the configuration with every default.
func Default() Config {
	return Config{
		Source: Source{Kind: "postgres", MaxTransactionBytes: 8 << 20, OnLimit: "warn", Streaming: "auto", SpoolMax: 20 << 30, ZeroDates: "error", SnapshotLock: "auto"},
		Destination: Destination{Kind: "duckdb", DuckDB: DuckDB{
			MemoryLimit: 512 << 20, Threads: 2, CheckpointThreshold: 64 << 20,
		}},
		Hydrate:    Hydrate{Mode: "copy", Workers: 4, SplitBytes: 256 << 20},
		Batch:      Batch{MaxRows: 50_000, MaxBytes: 16 << 20},
		Rewind:     Rewind{MaxWAL: 20 << 30, MaxUndo: 20 << 30},
		QueueBytes: 16 << 20,
		DrainMax:   10 * time.Second,
		RetryMax:   30 * time.Minute,
		MaxLag:     5 * time.Minute,
		LogLevel:   "info",
		LogFormat:  "text",
	}
}

// ofFiles reports whether the flow names a relation of files. A table of that name is
// named with its schema.
func (c *Config) ofFiles(f *Flow) bool {
	schema, table := flow.SplitName(f.Source)
	return schema == "" && slices.ContainsFunc(c.Relations, func(r Relation) bool { return r.Name == table })
}

// Specs returns the flows' specifications: those of the file, then those in SQL.
func (c *Config) Specs() []flow.Spec {
	specs := make([]flow.Spec, len(c.Flows))
	for i, f := range c.Flows {
		files := f.Snapshot == nil && (c.Source.Kind == "files" || c.ofFiles(&f))
		specs[i] = flow.Spec{
			Source: f.Source, Files: files, Once: f.Once, Except: f.Except, Target: f.Target, SCDType: int(f.SCDType), Keys: f.Keys, AppendOnly: f.AppendOnly,
			ColumnList: f.ColumnList, ExceptColumnList: f.ExceptColumnList,
			TrackHistory: f.TrackHistory, TrackHistoryExcept: f.TrackHistoryExcept, HistoryStart: f.HistoryStart,
			Sequenced: flow.Sequenced{
				Name: f.Name, SequenceBy: f.SequenceBy, SystemSequenceBy: f.SystemSequenceBy, Feed: f.SourceKind == "feed" || files, SkipChange: f.SkipChangeCommits,
				DeleteWhen: f.ApplyAsDeletes, TruncateWhen: f.ApplyAsTruncates,
				IgnoreNull: f.IgnoreNull, IgnoreNullList: f.IgnoreNullList, IgnoreNullExcept: f.IgnoreNullExcept, ColumnsToUpdate: f.ColumnsToUpdate,
				DeleteSequence: f.DeleteSequence, Global: f.SequenceScope == "global",
				TombstoneRetention: f.TombstoneRetention, QuarantineBeyond: f.LateBeyondRetention == "quarantine", FailOnBad: f.OnBadEvent == "fail",
			},
		}
		specs[i].Snapshot = f.Snapshot.spec()
		if specs[i].Snapshot != nil && f.Source == "" {
			specs[i].Source = specs[i].Snapshot.What()
		}
		for _, e := range f.Expect {
			specs[i].Expect = append(specs[i].Expect, flow.Expectation{Name: e.Name, Condition: e.Condition, Action: cmp.Or(e.OnViolation, flow.Warn)})
		}
		if specs[i].Sequenced.TombstoneRetention == 0 {
			specs[i].Sequenced.TombstoneRetention = c.retention()
		}
		if specs[i].ChangeFeed = f.ChangeFeed; f.ChangeFeed {
			specs[i].FeedKeep = flow.DefaultFeedKeep
			if f.ChangeFeedRetention != nil {
				specs[i].FeedKeep = *f.ChangeFeedRetention
			}
		}
		if specs[i].SCDType == 0 {
			specs[i].SCDType = 1
		}
		if specs[i].HistoryStart == "" {
			specs[i].HistoryStart = flow.HistoryStartSnapshot
		}
	}
	if c.written != nil {
		specs = append(specs, c.written.Plan.Flows...)
	}
	return specs
}

func (s *Snapshot) spec() *flow.Snapshot {
	if s == nil {
		return nil
	}
	out := &flow.Snapshot{
		Relation: s.Relation, Query: s.Query, Path: s.Path, Format: s.Format, Header: s.Header, Delimiter: s.Delimiter, Null: s.Null,
		VersionType: s.VersionType, Version: flow.VersionKind(s.Version.Kind), VersionQuery: s.Version.Query,
		Every: s.Every, Cron: s.Cron, MaxDeleteShare: flow.DefaultDeleteShare,
	}
	if s.Version.Query != "" {
		out.Version = flow.ByQuery
	}
	if s.MaxDeleteShare != nil {
		out.MaxDeleteShare = *s.MaxDeleteShare
	}
	for _, c := range s.Columns {
		out.Columns = append(out.Columns, flow.Column(c))
	}
	return out
}

// retention is how long flows remember deletes unless they say: it covers the window of
// rewind.
func (c *Config) retention() time.Duration { return max(flowsql.DefaultRetention, c.Rewind.Keep) }

// Validate checks everything that needs no database.
func (c *Config) Validate() error {
	bad := fault.Badly
	switch {
	case strings.TrimSpace(c.Pipeline) == "":
		return bad("`pipeline` is missing: a name such as `pipeline: shop`; it names slot, publications and bookkeeping")
	case len(c.Pipeline) > 200:
		return bad("`pipeline` is longer than 200 bytes")
	case c.Source.Kind != "postgres" && c.Source.Kind != "mysql" && c.Source.Kind != "files":
		return bad("source.kind %q is not known; it is postgres, mysql (MariaDB too) or files", c.Source.Kind)
	case c.Source.Kind == "mysql" && c.Source.DSN == "":
		return bad("`source.dsn` is missing: mysql://user:password@host:3306/database")
	case c.Source.Kind == "mysql" && (c.Source.Slot != "" || c.Source.Publication != ""):
		return bad("source.slot and source.publication belong to PostgreSQL; a MySQL server has neither")
	case c.Source.Kind == "mysql" && c.Source.OnLimit != "warn":
		return bad("source.on_limit belongs to PostgreSQL: a MySQL server keeps nothing for us that could be dropped (its binlog_expire_logs_seconds says how long it keeps its log)")
	case c.Source.Kind != "mysql" && (c.Source.ServerID != 0 || c.Source.ZeroDates != "error" || c.Source.SnapshotLock != "auto"):
		return bad("source.server_id, source.zero_dates and source.snapshot_lock belong to source.kind mysql")
	case !slices.Contains([]string{"auto", "tables", "never"}, c.Source.SnapshotLock):
		return bad("source.snapshot_lock is auto, tables or never, not %q", c.Source.SnapshotLock)
	case c.Source.ZeroDates != "error" && c.Source.ZeroDates != "null" && c.Source.ZeroDates != "text":
		return bad("source.zero_dates is error, null or text, not %q", c.Source.ZeroDates)
	case c.Source.Kind == "files" && slices.ContainsFunc(c.Flows, func(f Flow) bool { return f.Snapshot != nil && f.Snapshot.Path == "" }):
		return bad("a snapshot by relation or query needs a database as source; with source.kind files it has a path")
	case c.Source.Kind == "files" && len(c.Relations) == 0 && !slices.ContainsFunc(c.Specs(), func(s flow.Spec) bool { return s.Snapshot != nil }):
		return bad("source.kind files needs `relations`: each a name with a path, such as `users_cdf: {path: \"feed/*.jsonl\", format: jsonl}`")
	case !slices.Contains([]string{"duckdb", "postgres", "mysql"}, c.Destination.Kind):
		return bad("destination.kind %q is not known; it is duckdb, postgres or mysql", c.Destination.Kind)
	case c.Destination.Kind == "mysql" && len(c.Pipeline) > 128:
		return bad("`pipeline` is longer than 128 bytes, which is the most in a destination of kind mysql")
	case c.Destination.Kind == "duckdb" && c.Destination.DSN == "":
		return bad("`destination.dsn` is missing: the path of the DuckDB file, such as shop.duckdb")
	case c.Destination.DuckDB.SnapshotEvery != 0 && c.Destination.DuckDB.SnapshotEvery < time.Minute:
		return bad("destination.duckdb.snapshot_every is at least 60s, or 0 for none")
	case len(c.Specs()) == 0:
		return bad("`flows` is empty: add at least `- source: public.*`, or name files with `sql`")
	case c.Hydrate.Mode != "copy" && c.Hydrate.Mode != "prepare" && c.Hydrate.Mode != "adopt":
		return bad("hydrate.mode is copy, prepare or adopt, not %q", c.Hydrate.Mode)
	case c.Hydrate.Mode != "copy" && c.Source.Kind == "files":
		return bad("hydrate.mode is copy where the source is files: there is no log that a backup could lie in")
	case c.Hydrate.Workers < 1 || c.Hydrate.Workers > 64:
		return bad("hydrate.workers is between 1 and 64, not %d", c.Hydrate.Workers)
	case c.Hydrate.SplitBytes != 0 && c.Hydrate.SplitBytes < 64<<10:
		return bad("hydrate.split_bytes is at least 64KiB, or 0 to copy every table in one stream")
	case c.Batch.MaxRows < 1:
		return bad("batch.max_rows is at least 1")
	case c.Batch.MaxBytes < 64<<10:
		return bad("batch.max_bytes is at least 64KiB")
	case c.QueueBytes < 1<<20:
		return bad("queue_bytes is at least 1MiB")
	case c.Source.MaxTransactionBytes < 64<<10:
		return bad("source.max_transaction_bytes is at least 64KiB")
	case c.Source.OnLimit != "warn" && c.Source.OnLimit != "stop_and_drop_slot":
		return bad("source.on_limit is warn or stop_and_drop_slot, not %q", c.Source.OnLimit)
	case c.Source.OnLimit != "warn" && c.Source.MaxRetainedWAL == 0:
		return bad("source.on_limit says what happens beyond source.max_retained_wal, which is not set: for instance 20GiB")
	case c.Pprof && c.Listen == "":
		return bad("pprof is served where `listen` says, which is empty")
	case c.Source.Streaming != "auto" && c.Source.Streaming != "on" && c.Source.Streaming != "off":
		return bad("source.streaming is auto, on or off, not %q", c.Source.Streaming)
	case c.Source.SpoolMax < 16<<20:
		return bad("source.spool_max is at least 16MiB")
	case c.DrainMax <= 0 || c.RetryMax <= 0 || c.MaxLag <= 0:
		return bad("drain_max, retry_max and max_lag are positive durations such as 10s")
	case c.LogFormat != "text" && c.LogFormat != "json":
		return bad("log_format is text or json, not %q", c.LogFormat)
	}
	if err := cmp.Or(c.validateTrigger(), c.Rewind.validate()); err != nil {
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return bad("log_level is debug, info, warn or error, not %q", c.LogLevel)
	}
	for _, f := range c.Flows {
		switch {
		case f.Snapshot != nil && f.Source != "":
			return bad("flow %q: source and snapshot exclude each other: snapshot says what is read", f.Source)
		case f.ChangeFeedRetention != nil && !f.ChangeFeed:
			return bad("flow %q: change_feed_retention goes with change_feed: true", f.Source)
		case f.SourceKind == "table" && c.ofFiles(&f):
			return bad("flow %q: source_kind is feed: a relation of files holds events", f.Source)
		case f.SourceKind != "" && f.SourceKind != "table" && f.SourceKind != "feed":
			return bad("flow %q: source_kind is table or feed, not %q", f.Source, f.SourceKind)
		case f.SequenceScope != "" && f.SequenceScope != "key" && f.SequenceScope != "global":
			return bad("flow %q: sequence_scope is key or global, not %q", f.Source, f.SequenceScope)
		case f.OnBadEvent != "" && f.OnBadEvent != "quarantine" && f.OnBadEvent != "fail":
			return bad("flow %q: on_bad_event is quarantine or fail, not %q", f.Source, f.OnBadEvent)
		case f.LateBeyondRetention != "" && f.LateBeyondRetention != "apply" && f.LateBeyondRetention != "quarantine":
			return bad("flow %q: late_beyond_retention is apply or quarantine, not %q", f.Source, f.LateBeyondRetention)
		}
	}
	once := map[string]bool{}
	for _, s := range c.Specs() {
		if err := s.Validate(); err != nil {
			return err
		}
		if keep := s.Sequenced.TombstoneRetention; keep < c.Rewind.Keep {
			return bad("flow %q: tombstone_retention (%s) is shorter than rewind.keep (%s): a replay from the oldest rewind point would meet deletes that are forgotten already; make it at least as long", s.Source, keep, c.Rewind.Keep)
		}
		if !s.Files {
			continue
		}
		if before, again := once[s.Source]; again && before != s.Once {
			return bad("relation %q has a flow with once and one without: a file is taken for all flows of its relation; give one of them a relation of its own, with the same path", s.Source)
		}
		once[s.Source] = s.Once
	}
	return nil
}

// Secret is text that never prints: not by fmt, not in logs, not in JSON or YAML.
type Secret string

const hidden = "[hidden]"

func (s Secret) String() string               { return hidden }
func (s Secret) GoString() string             { return hidden }
func (s Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the secret, for the one call that needs it.
func (s Secret) Reveal() string { return string(s) }

// Bytes is a size; in the file a number with an optional unit: 512KiB, 16MiB,
// 1GiB (powers of 1024; KB, MB, GB mean the same here) or plain bytes.
type Bytes int64

var _ encoding.TextUnmarshaler = (*Bytes)(nil)

func (b *Bytes) UnmarshalText(text []byte) error {
	s := strings.TrimSpace(string(text))
	unit := int64(1)
	for _, u := range []struct {
		suffix string
		factor int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"B", 1}} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = strings.TrimSpace(rest), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 1<<62/unit {
		return fmt.Errorf("%q is not a size such as 16MiB", text)
	}
	*b = Bytes(n * unit)
	return nil
}

func (b Bytes) String() string {
	for _, u := range []struct {
		suffix string
		factor Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b >= u.factor && b%u.factor == 0 {
			return fmt.Sprintf("%d%s", b/u.factor, u.suffix)
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// leaves calls fn with the dotted path of every scalar key of the configuration.
func leaves(t reflect.Type, prefix string, fn func(path string)) {
	for i := range t.NumField() {
		f := t.Field(i)
		p := prefix + f.Tag.Get("yaml")
		switch {
		case !f.IsExported():
		case f.Type.Kind() == reflect.Struct:
			leaves(f.Type, p+".", fn)
		case f.Type.Kind() != reflect.Slice:
			fn(p)
		}
	}
}
