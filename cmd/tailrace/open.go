package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"

	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/pipeline"
	"tailrace/sink"
	sinkmysql "tailrace/sink/mysql"
	"tailrace/source"
	"tailrace/source/files"
	sourcemy "tailrace/source/mysql"
	sourcepg "tailrace/source/postgres"
)

// environment is a loaded configuration and what is made from it.
type environment struct {
	*config.Config
	path string // of the file
	log  *slog.Logger
}

func (a *app) load() (*environment, error) {
	c, err := config.Load(a.configPath)
	if err != nil {
		return nil, err
	}
	e := &environment{Config: c, path: a.configPath, log: newLogger(c, a.errs)}
	_, err = e.trigger(nil) // a wrong pattern is found by every command
	return e, err
}

func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Validate has refused anything else
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// openLog opens the source with a log; there may be none.
func (e *environment) openLog(context.Context) (source.Source, error) {
	if e.Source.Kind == "mysql" {
		return sourcemy.New(sourcemy.Config{
			DSN: e.Source.DSN.Reveal(), Pipeline: e.Pipeline, ServerID: e.Source.ServerID, ZeroDates: e.Source.ZeroDates, SnapshotLock: e.Source.SnapshotLock,
			Sessions: e.Hydrate.Workers, Logger: e.log,
		})
	}
	return sourcepg.New(sourcepg.Config{
		DSN: e.Source.DSN.Reveal(), Pipeline: e.Pipeline,
		Slot: e.Source.Slot, Publication: e.Source.Publication,
		Streaming: e.Source.Streams(), SpoolDir: e.Source.SpoolDir, SpoolMax: int64(e.Source.SpoolMax), Logger: e.log,
	})
}

// openFiles opens the relations as a source; relative paths start at the folder of
// the configuration.
func (e *environment) openFiles(context.Context) (source.Source, error) {
	c := files.Config{Root: filepath.Dir(e.path), Log: e.log}
	for _, r := range e.Relations {
		// A relation that no flow reads must not count as taken.
		reads := slices.IndexFunc(e.Specs(), func(s flow.Spec) bool { return s.Matches(change.Name{Table: r.Name}) })
		if reads < 0 {
			e.log.Warn("no flow reads the relation; its files are left alone", "relation", r.Name)
			continue
		}
		f := files.Relation{Name: r.Name, Path: r.Path, Format: r.Format, Header: r.Header, Delimiter: r.Delimiter, Null: r.Null, Order: r.Order, Once: e.Specs()[reads].Once}
		for _, col := range r.Columns {
			f.Columns = append(f.Columns, files.DeclaredColumn{Name: col.Name, Type: col.Type})
		}
		c.Relations = append(c.Relations, f)
	}
	return files.New(c)
}

// fromFiles reports whether there is a source of files: beside a log, or in its place.
func (e *environment) fromFiles() bool { return len(e.Relations) > 0 || e.Source.Kind == "files" }

// openVersions opens the files of a snapshot flow.
func (e *environment) openVersions(s *flow.Snapshot) (source.Versions, error) {
	set := &files.SnapshotSet{Root: filepath.Dir(e.path), Path: s.Path, Format: s.Format, Header: s.Header, Delimiter: s.Delimiter, Null: s.Null}
	for _, c := range s.Columns {
		set.Columns = append(set.Columns, files.DeclaredColumn(c))
	}
	return set, set.Validate()
}

// sources are what a configuration's changes come from: a log, files, or both.
type sources struct {
	log, files source.Source // either may be nil
	main       source.Source // whose position the mark is: the log, if there is one
}

func (e *environment) openSources(ctx context.Context) (s sources, err error) {
	if e.fromFiles() {
		if s.files, err = e.openFiles(ctx); err != nil {
			return s, fmt.Errorf("open the relations of files: %w", err)
		}
	}
	if s.main = s.files; e.Source.Kind != "files" {
		if s.log, err = e.openLog(ctx); err != nil {
			return s, fmt.Errorf("open the source: %w", err)
		}
		s.main = s.log
	}
	return s, nil
}

func (s *sources) close(ctx context.Context) {
	for _, src := range []source.Source{s.log, s.files} {
		if src != nil {
			src.Close(ctx)
		}
	}
}

// sourceSchema is the source's default schema; relations of files have none.
func (e *environment) sourceSchema() string {
	switch e.Source.Kind {
	case "files":
		return ""
	case "mysql":
		return sourcemy.DatabaseOf(e.Source.DSN.Reveal())
	}
	return "public"
}

func (e *environment) openSink(context.Context) (sink.Writer, error) {
	switch e.Destination.Kind {
	case "duckdb":
		return openDuckDB(e)
	case "mysql":
		return openMySQL(e)
	}
	return openPostgres(e)
}

func (e *environment) defaultSchema() string {
	switch {
	case e.Destination.Schema != "":
		return e.Destination.Schema
	case e.Destination.Kind == "duckdb":
		return "main"
	case e.Destination.Kind == "mysql":
		return sinkmysql.Database(e.Destination.DSN.Reveal())
	default:
		return "public"
	}
}

// pipeline assembles the corridor's configuration.
func (e *environment) pipeline(progress *progress) (pipeline.Config, error) {
	me, err := sink.ThisProcess()
	if err != nil {
		return pipeline.Config{}, fmt.Errorf("identify this process: %w", err)
	}
	c := pipeline.Config{
		Name: e.Pipeline, Flows: e.Specs(), OpenSink: e.openSink,
		SourceSchema: e.sourceSchema(), DefaultSchema: e.defaultSchema(), Owner: me,
		Workers: e.Hydrate.Workers, SplitBytes: int64(e.Hydrate.SplitBytes), CopyRate: hydrate.NewRate(int64(e.Hydrate.MaxRate)), BatchRows: e.Batch.MaxRows, BatchBytes: int64(e.Batch.MaxBytes),
		QueueBytes: int64(e.QueueBytes), PieceBytes: int64(e.Source.MaxTransactionBytes),
		DrainMax: e.DrainMax, RetryMax: e.RetryMax,
		Retention: pipeline.Retention{Max: int64(e.Source.MaxRetainedWAL), Drop: e.Source.OnLimit == "stop_and_drop_slot"},
		Rewind:    pipeline.Rewinding{Every: e.Rewind.Every, Keep: e.Rewind.Keep, MaxLog: int64(e.Rewind.MaxWAL), MaxUndo: int64(e.Rewind.MaxUndo)},
		Log:       e.log, Progress: progress, HowFar: progress.hear, Stats: progress.stats,
	}
	c.Beginning = map[string]pipeline.Beginning{"prepare": pipeline.ByPreparing, "adopt": pipeline.ByAdopting}[e.Hydrate.Mode]
	if e.Source.Kind != "files" {
		c.OpenSource = e.openLog
	}
	if e.fromFiles() {
		c.OpenFiles = e.openFiles
	}
	c.OpenVersions, c.SpoolDir = e.openVersions, e.Source.SpoolDir
	return c, nil
}

// bind connects to the sources and matches the flows with their relations; see
// pipeline.Bind for known.
func (e *environment) bind(ctx context.Context, src sources, known pipeline.Known) ([]pipeline.Bound, []sink.Finding, error) {
	relations, err := pipeline.Relations(ctx, src.log, src.files)
	if err != nil {
		return nil, nil, err
	}
	shots, err := pipeline.Shots(ctx, e.Specs(), src.main, relations, e.sourceSchema(), e.openVersions)
	if err != nil {
		return nil, nil, err
	}
	return pipeline.Bind(e.Specs(), relations, shots, e.sourceSchema(), e.defaultSchema(), known)
}

// untilSignal returns a context that ends at the first SIGTERM or SIGINT: finish
// and leave. A second signal leaves at once.
func untilSignal(ctx context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	var stopped atomic.Bool
	go func() {
		for s := range signals {
			if stopped.Swap(true) {
				os.Exit(128 + int(s.(syscall.Signal)))
			}
			log.Info("stopping: finishing what is running; a second signal leaves at once", "signal", s.String())
			cancel()
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}

// untilInterrupt returns a context that ends at the first SIGINT or SIGTERM: an asker
// leaves, what it has asked for goes on.
func untilInterrupt(ctx context.Context) (context.Context, func()) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

var errNoDuckDB = fault.Badly("this build has no DuckDB (build tag noduckdb); use destination.kind: postgres or mysql, or another build")
