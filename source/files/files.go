// Package files follows change feeds that arrive as files in a folder: JSON lines,
// CSV and Parquet. Each file is one transaction of inserts, and it is taken once.
//
// Nothing is kept on our behalf and nothing is written into the folders: which files
// were taken is part of the destination's mark and comes back with FollowOptions.
// Files are found by listing the folders again and again, because notifications of
// an operating system lose events and do not exist on network file systems.
package files

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// Formats of files.
const (
	JSONLines = "jsonl"
	CSV       = "csv"
	Parquet   = "parquet"
)

// Orders in which the files of a relation are taken.
const (
	ByPath = "path"
	ByTime = "time"
)

// RescuedColumn is every relation's last column: what did not fit, as JSON.
const RescuedColumn = "_rescued_data"

// defaultPoll is how often folders are listed: short beside the minutes between
// files of a feed, long beside the milliseconds that a listing takes.
const defaultPoll = 2 * time.Second

// Config says which files are which relations.
type Config struct {
	Root      string           // folder of the configuration file: relative globs start there
	Relations []Relation       //
	Poll      time.Duration    // between two looks at the folders, and how long a file must have rested; 0: 2 s
	Now       func() time.Time // nil: time.Now
	Log       *slog.Logger     // nil: slog.Default()
}

// Relation is one change feed: all files that a glob matches.
type Relation struct {
	Name      string           // what flows call it
	Path      string           // glob: *, ?, [...] within a name, ** for any number of folders
	Format    string           // JSONLines, CSV or Parquet
	Columns   []DeclaredColumn // empty: inferred from the first files
	Header    *bool            // CSV: the first record names the columns; nil: true
	Delimiter string           // CSV: one ASCII character; empty: a comma
	Null      string           // CSV: the unquoted field that is NULL; empty: the empty one
	Order     string           // ByPath (also if empty) or ByTime
	Once      bool             // the files that are there are taken, and then no others
}

// DeclaredColumn is a column by name and type, in PostgreSQL's or Spark's spelling.
type DeclaredColumn struct{ Name, Type string }

// Source implements source.Source for files.
type Source struct {
	root      string // absolute
	relations []*relation
	poll      time.Duration
	now       func() time.Time
	log       *slog.Logger
	mu        sync.Mutex // guards the layouts of relations
}

// relation is a validated Relation.
type relation struct {
	Relation
	id        uint32
	glob      *glob
	header    bool
	delimiter byte
	declared  []change.Column // nil: inferred
	layout    *layout         // nil: not inferred yet
}

var _ source.Source = (*Source)(nil)

// New validates the configuration. It touches no file.
func New(cfg Config) (*Source, error) {
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, fault.Badly("the folder of the configuration, %s, has no absolute path: %v", cfg.Root, err)
	}
	s := &Source{root: root, poll: cfg.Poll, now: cfg.Now, log: cfg.Log}
	if s.poll <= 0 {
		s.poll = defaultPoll
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	names, ids := map[string]bool{}, map[uint32]string{}
	for i, r := range cfg.Relations {
		if strings.TrimSpace(r.Name) == "" {
			return nil, fault.Badly("relation %d has no name", i+1)
		}
		if names[r.Name] {
			return nil, fault.Badly("relation %s is there twice", r.Name)
		}
		names[r.Name] = true
		rel, err := newRelation(root, r)
		if err != nil {
			return nil, err
		}
		if other, taken := ids[rel.id]; taken {
			return nil, fault.Badly("relations %s and %s have names with the same number; give one of them another name", other, r.Name)
		}
		ids[rel.id] = r.Name
		s.relations = append(s.relations, rel)
	}
	return s, nil
}

func newRelation(root string, r Relation) (*relation, error) {
	bad := func(key, format string, args ...any) (*relation, error) {
		return nil, fault.Badly("relation %s: %s: %s", r.Name, key, fmt.Sprintf(format, args...))
	}
	rel := &relation{Relation: r, id: relationID(r.Name), header: true, delimiter: ','}
	var err error
	if rel.glob, err = newGlob(root, r.Path); err != nil {
		return bad("path", "%v", err)
	}
	if key, err := rel.options(); err != nil {
		return bad(key, "%v", err)
	}
	switch r.Order {
	case "", ByPath, ByTime:
	default:
		return bad("order", "%q is neither path nor time", r.Order)
	}
	if err := rel.declare(); err != nil {
		return bad("columns", "%v", err)
	}
	return rel, nil
}

// options reads how the files are written; key names the one that is wrong.
func (rel *relation) options() (key string, err error) {
	switch rel.Format {
	case JSONLines, CSV, Parquet:
	case "":
		return "format", errors.New("is missing; it is jsonl, csv or parquet")
	default:
		return "format", fmt.Errorf("%q is none of jsonl, csv, parquet", rel.Format)
	}
	if rel.Format != CSV {
		for key, set := range map[string]bool{"header": rel.Header != nil, "delimiter": rel.Delimiter != "", "null": rel.Null != ""} {
			if set {
				return key, fmt.Errorf("belongs to format csv; the format is %s", rel.Format)
			}
		}
	}
	if rel.Header != nil {
		rel.header = *rel.Header
	}
	if d := rel.Delimiter; d != "" {
		if len(d) != 1 || d[0] >= 0x80 || d[0] < ' ' && d[0] != '\t' || d[0] == '"' {
			return "delimiter", fmt.Errorf("%q is not one ASCII character other than a quote", d)
		}
		rel.delimiter = d[0]
	}
	if strings.ContainsAny(rel.Null, "\"\r\n\x00") || strings.IndexByte(rel.Null, rel.delimiter) >= 0 {
		return "null", fmt.Errorf("%q can be no unquoted field", rel.Null)
	}
	return "", nil
}

// declare reads the declared columns, if there are any.
func (rel *relation) declare() error {
	if len(rel.Columns) > maxColumns {
		return fmt.Errorf("more than %d", maxColumns)
	}
	for i, c := range rel.Columns {
		switch {
		case c.Name == "":
			return fmt.Errorf("column %d has no name", i+1)
		case strings.EqualFold(c.Name, RescuedColumn):
			return fmt.Errorf("%s is added by itself", RescuedColumn)
		case slices.ContainsFunc(rel.declared, func(d change.Column) bool { return d.Name == c.Name }):
			return fmt.Errorf("column %s is there twice", c.Name)
		}
		t, err := parseType(c.Type)
		if err != nil {
			return fmt.Errorf("column %s: %v", c.Name, err)
		}
		rel.declared = append(rel.declared, change.Column{Name: c.Name, Type: t, Nullable: true})
	}
	if rel.declared != nil {
		rel.layout = newLayout(rel, rel.declared)
	}
	return nil
}

// relationID numbers a relation by its name, so that it keeps its number when the
// configuration is put into another order.
func relationID(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return max(h.Sum32(), 1)
}

func (rel *relation) name() change.Name { return change.Name{Table: rel.Name} }

// Relations implements source.Source. A relation without declared columns has the
// layout of its first files; it cannot be followed while there are none.
func (s *Source) Relations(ctx context.Context) ([]source.Relation, error) {
	var out []source.Relation
	for _, rel := range s.relations {
		l, err := s.inferLayout(ctx, rel)
		r := source.Relation{Usable: true}
		switch {
		case errors.Is(err, errNothingToInferFrom):
			l = newLayout(rel, nil)
			r.Problem = fmt.Sprintf("its columns are not declared, and %s matches no file with rows to infer them from", rel.Path)
		case err != nil:
			return nil, err
		}
		r.Table = l.table
		out = append(out, r)
	}
	return out, nil
}

// inferLayout returns the relation's layout, inferred anew if it is not declared, and
// remembers it for Follow. The same columns give the same pointer.
func (s *Source) inferLayout(ctx context.Context, rel *relation) (*layout, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rel.declared != nil {
		return rel.layout, nil
	}
	columns, err := s.infer(ctx, rel)
	if err != nil {
		return nil, err
	}
	l := newLayout(rel, columns)
	if rel.layout == nil || !rel.layout.table.EqualTypes(l.table) {
		rel.layout = l
	}
	return rel.layout, nil
}

// layoutOf returns the layout that Relations told, so that rows come in that one even
// if files have come since by which another would be inferred.
func (s *Source) layoutOf(ctx context.Context, rel *relation) (*layout, error) {
	s.mu.Lock()
	known := rel.layout
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	return s.inferLayout(ctx, rel)
}

// State implements source.Source: nothing is kept for us.
func (s *Source) State(context.Context) (source.State, error) {
	return source.State{System: "files", Database: s.root, Keepless: true}, nil
}

// PlanPublications implements source.Source: there are none.
func (s *Source) PlanPublications(context.Context, []source.Followed) ([]string, error) {
	return nil, nil
}

// Publish implements source.Source: there is nothing to do.
func (s *Source) Publish(context.Context, []source.Followed) error { return nil }

// Begin implements source.Source: an empty snapshot before every file.
func (s *Source) Begin(context.Context) (source.Snapshot, error) { return snapshot{s.now()}, nil }

// Snapshot implements source.Source.
func (s *Source) Snapshot(context.Context) (source.Snapshot, error) { return snapshot{s.now()}, nil }

// Watch implements source.Source: a file loses nothing.
func (s *Source) Watch(context.Context) ([]source.Loss, error) { return nil, nil }

// Confirm implements source.Source: nobody waits for it.
func (s *Source) Confirm(change.Position) {}

// Head implements source.Source: files have no log with an end.
func (s *Source) Head(context.Context) (change.Position, error) { return change.Position{}, nil }

// Drop implements source.Source: nothing of ours is there.
func (s *Source) Drop(context.Context) error { return nil }

// Release implements source.Source: nothing is kept.
func (s *Source) Release(context.Context) error { return nil }

// Close implements source.Source.
func (s *Source) Close(context.Context) error { return nil }

// snapshot is the moment before the first file.
type snapshot struct{ clock time.Time }

func (snapshot) Position() change.Position { return change.Position{} }

func (s snapshot) Clock() time.Time { return s.clock }

// Copy is never right: a feed is read from its first file, not copied.
func (snapshot) Copy(_ context.Context, r source.CopyRequest, _ io.Writer) (int64, error) {
	return 0, fault.Corrupted("relation %s is a feed of files: it is followed from its first file, there is nothing to copy", r.Table.Name)
}

func (snapshot) Close(context.Context) error { return nil }

// There lists the paths of a relation's files, as they are taken by.
func (s *Source) There(ctx context.Context, relation change.Name) (paths []string, err error) {
	for _, rel := range s.relations {
		if rel.Name != relation.Table {
			continue
		}
		files, err := rel.list(ctx)
		if err != nil {
			return nil, fmt.Errorf("relation %s: %w", rel.Name, err)
		}
		for _, f := range files {
			paths = append(paths, f.path)
		}
	}
	return paths, nil
}
