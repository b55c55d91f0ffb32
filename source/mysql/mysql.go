// Package mysql follows the binary log of MariaDB and MySQL, and copies tables as they
// were at a position of it.
//
// The server keeps its log for everybody and knows nothing of us: there is no slot, no
// publication, and nothing is confirmed. What we must know to go on is the position (log
// file and offset), which the destination's mark holds; beside it stands what proves that
// this is still the same log (change.Tx.Resume).
package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/mysqldsn"
	"tailrace/source"
)

// Config says which server, and how.
type Config struct {
	DSN       string // mysql://user:password@host:3306/database, or the driver's form
	Pipeline  string // its name: the server knows us by a number made of it
	ServerID  uint32 // as a replica; 0: made of the pipeline's name
	ZeroDates string // ZeroDatesError (also if empty), ZeroDatesNull, ZeroDatesText
	Sessions  int    // that copy at once, all of one snapshot; 0: 4
	Logger    *slog.Logger

	SnapshotLock string // LockAuto (also if empty), LockTables, LockNever
}

// Source implements source.Source for MariaDB and MySQL.
type Source struct {
	cfg Config
	dsn *mysql.Config
	db  *sql.DB // a few sessions for questions
	log *slog.Logger

	silence time.Duration // a stream that says nothing for so long is dead

	mu         sync.Mutex
	known      *server
	marked     source.Located // what the mark remembers; zero: there is none, or nobody said
	collations map[uint64]characterSet
	described  map[change.Name]*described    // as the catalogue was when it was last read
	tables     map[change.Name]*change.Table // as they were last handed on
	followed   map[change.Name]bool          // nil: all
	version    uint64                        // of followed
	kept       change.Position               // what Keep was asked for; zero: nothing
}

var (
	_ source.Source  = (*Source)(nil)
	_ source.Locator = (*Source)(nil)
)

const (
	defaultSessions = 4
	// heartbeat is how often a server with nothing to say says so.
	heartbeat = 5 * time.Second
	// defaultSilence is six heartbeats: a slow network loses none, and a server that is
	// gone is noticed before anybody asks.
	defaultSilence = 6 * heartbeat
	// questionPatience is how long the server may take for a question to its catalogue or
	// log. A copy has no such limit.
	questionPatience = 30 * time.Second
)

// New validates the configuration. It connects to nothing yet.
func New(cfg Config) (*Source, error) {
	dsn, err := mysqldsn.Parse("source.dsn", cfg.DSN)
	if err != nil {
		return nil, err
	}
	switch cfg.ZeroDates {
	case "":
		cfg.ZeroDates = ZeroDatesError
	case ZeroDatesError, ZeroDatesNull, ZeroDatesText:
	default:
		return nil, fault.Badly("source.zero_dates is error, null or text, not %q", cfg.ZeroDates)
	}
	switch cfg.SnapshotLock {
	case "":
		cfg.SnapshotLock = LockAuto
	case LockAuto, LockTables, LockNever:
	default:
		return nil, fault.Badly("source.snapshot_lock is auto, tables or never, not %q", cfg.SnapshotLock)
	}
	if cfg.Sessions <= 0 {
		cfg.Sessions = defaultSessions
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ServerID == 0 {
		cfg.ServerID = replicaNumber("tailrace " + cfg.Pipeline)
	}
	s := &Source{cfg: cfg, dsn: prepared(dsn), log: cfg.Logger, silence: defaultSilence,
		described: map[change.Name]*described{}, tables: map[change.Name]*change.Table{}}
	questions := s.dsn.Clone()
	questions.ReadTimeout, questions.WriteTimeout = questionPatience, questionPatience
	connector, err := mysql.NewConnector(questions)
	if err != nil {
		return nil, fault.Badly("source.dsn: its settings do not go together")
	}
	s.db = sql.OpenDB(connector)
	s.db.SetMaxOpenConns(3) // Follow, Watch and the pipeline ask at once
	s.db.SetMaxIdleConns(1)
	return s, nil
}

// replicaNumber makes a number for a reader of the log, away from the small ones that
// people give to servers.
func replicaNumber(of string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(of))
	return 1<<30 | h.Sum32()&(1<<30-1)
}

// DatabaseOf is the database that a connection string names, or empty: the source's
// default schema. New judges the string.
func DatabaseOf(dsn string) string {
	c, err := mysqldsn.Parse("source.dsn", dsn)
	if err != nil {
		return ""
	}
	return c.DBName
}

// State implements source.Source.
func (s *Source) State(ctx context.Context) (source.State, error) {
	f, err := s.readServer(ctx)
	if err != nil {
		return source.State{}, err
	}
	if !f.logBin {
		return source.State{}, noLog()
	}
	st := source.State{System: f.identity, Slotless: true}
	if st.Head, err = s.Head(ctx); err != nil {
		return source.State{}, err
	}
	files, err := s.logFiles(ctx)
	if err != nil {
		return source.State{}, err
	}
	if st.Oldest, err = s.positionOf(files[0].name, fileBegin); err != nil {
		return source.State{}, err
	}
	st.Moved, err = s.moved(ctx, f, files)
	return st, err
}

// Head implements source.Source.
func (s *Source) Head(ctx context.Context) (change.Position, error) {
	file, offset, _, err := s.status(ctx, s.db)
	if err != nil {
		return change.Position{}, err
	}
	return s.positionOf(file, offset)
}

// PlanPublications implements source.Source: the server keeps no list of what we follow.
func (s *Source) PlanPublications(context.Context, []source.Followed) ([]string, error) {
	return nil, nil
}

// Publish implements source.Source: from now on changes of these tables alone are read.
func (s *Source) Publish(_ context.Context, tables []source.Followed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followed = map[change.Name]bool{}
	for _, t := range tables {
		s.followed[t.Table.Name] = true
	}
	s.version++
	return nil
}

func (s *Source) follows(n change.Name) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.followed == nil || s.followed[n]
}

func (s *Source) followedVersion() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Confirm implements source.Source: the server holds nothing back for us.
func (s *Source) Confirm(change.Position) {}

// Drop implements source.Source: nothing of ours is there.
func (s *Source) Drop(context.Context) error { return nil }

// Release implements source.Source: nothing is kept.
func (s *Source) Release(context.Context) error { return nil }

// Close implements source.Source.
func (s *Source) Close(context.Context) error { return s.db.Close() }

// lost is the error of Follow that concerns one table.
func (s *Source) lost(n change.Name, remedy, format string, args ...any) error {
	return &source.TableLost{Loss: source.Loss{Table: n, ID: tableID(n), Reason: fmt.Sprintf(format, args...), Remedy: remedy}}
}
