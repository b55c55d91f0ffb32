package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// SnapshotSet is a set of files each of which holds a whole table at one version.
//
// They are read by the same readers as feeds, but more strictly: what a feed rescues, a
// snapshot refuses. A feed's event that does not fit is one event; in a snapshot the value
// would be taken for a change of its row, and again at the next version.
//
// The zero value of a field means what it means in Relation. A set is used by one
// goroutine at a time, and looks at the folders anew with every call.
type SnapshotSet struct {
	Root string // folder of the configuration file: relative paths start there
	// Path is a glob of *, ? and [...], in one name of which stands the group
	// (?P<version>...): a regular expression of what is the version there.
	Path      string
	Format    string           // JSONLines, CSV or Parquet
	Header    *bool            // CSV
	Delimiter string           // CSV
	Null      string           // CSV
	Columns   []DeclaredColumn // empty: inferred from each file
}

// Validate finds what is wrong with the configuration. It touches no file. Errors name
// the key, not the flow.
func (s *SnapshotSet) Validate() error {
	_, err := s.prepare()
	return err
}

// snapshotSet is a validated SnapshotSet.
type snapshotSet struct {
	path *versionPath
	rel  *relation
}

func (s *SnapshotSet) prepare() (*snapshotSet, error) {
	root, err := filepath.Abs(s.Root)
	if err != nil {
		return nil, fault.Badly("the folder of the configuration, %s, has no absolute path: %v", s.Root, err)
	}
	path, err := newVersionPath(root, s.Path)
	if err != nil {
		return nil, fault.Badly("path: %v", err)
	}
	rel := &relation{header: true, delimiter: ',', Relation: Relation{Path: s.Path, Format: s.Format, Header: s.Header, Delimiter: s.Delimiter, Null: s.Null, Columns: s.Columns}}
	if key, err := rel.options(); err != nil {
		return nil, fault.Badly("%s: %v", key, err)
	}
	for _, c := range s.Columns {
		if strings.EqualFold(c.Name, RescuedColumn) {
			return nil, fault.Badly("columns: a snapshot has no %s: what does not fit is refused", RescuedColumn)
		}
	}
	if err := rel.declare(); err != nil {
		return nil, fault.Badly("columns: %v", err)
	}
	return &snapshotSet{path: path, rel: rel}, nil
}

// List returns every file that the path matches whole, by path. Whether one is complete
// it does not judge. Two files of one version are refused.
func (s *SnapshotSet) List(ctx context.Context) ([]source.VersionFile, error) {
	set, err := s.prepare()
	if err != nil {
		return nil, err
	}
	all, err := set.path.glob.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []source.VersionFile
	byVersion := map[string]string{}
	for _, f := range all {
		if !utf8.ValidString(f.path) {
			return nil, fault.Refuse("rename it", "the name of file %q is not UTF-8", f.path)
		}
		version, ok := set.path.version(f.path)
		if !ok {
			continue
		}
		if other, twice := byVersion[version]; twice {
			return nil, fault.Refuse("move one of them to where the path does not match", "files %s and %s are of one version, %s", other, f.path, version)
		}
		byVersion[version] = f.path
		out = append(out, source.VersionFile{Path: f.path, Version: version, Size: f.size, Modified: f.modified})
	}
	return out, nil
}

func (set *snapshotSet) found(f source.VersionFile) found {
	return found{path: f.Path, full: filepath.Join(set.path.glob.root, filepath.FromSlash(f.Path)), size: f.Size, modified: f.Modified}
}

// Describe returns the columns of a file as a table without name and number: those that
// were declared, else what is inferred from the file alone, as for feeds. A file without
// rows says nothing of types and is refused where they are not declared.
func (s *SnapshotSet) Describe(ctx context.Context, f source.VersionFile) (*change.Table, error) {
	set, err := s.prepare()
	if err != nil {
		return nil, err
	}
	if set.rel.declared != nil {
		return &change.Table{Columns: set.rel.declared}, nil
	}
	file := set.found(f)
	n := &inference{byName: map[string]int{}}
	if _, err := n.sample(ctx, set.rel, file, sampleBytes); err != nil {
		return nil, fmt.Errorf("infer columns: %w", set.explain(file, err))
	}
	const declare = "declare the columns (columns)"
	switch columns, err := n.typed(); {
	case err != nil:
		return nil, fault.Refuse(declare, "file %s has no rows to infer the columns from", f.Path)
	case len(columns) > maxColumns:
		return nil, fault.Refuse(declare, "file %s has more than %d columns", f.Path, maxColumns)
	default:
		return &change.Table{Columns: columns}, nil
	}
}

// explain is explain for a file that has to be there.
func (set *snapshotSet) explain(f found, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Refuse("put it back, or wait for another version", "file %s is gone", f.path)
	}
	return explain(set.rel, f, err)
}

// Read hands on every row of f in the columns of t, which Describe gave of this or another
// file: by name, NULL for a column that the file does not have. A row is valid during the
// call; an error of fn ends the reading and is returned as it is.
//
// Refused are, beside what makes a file bad for a feed: a value that is none of its
// column's type, and one of a column that t does not have (NULL is fine); a CSV file without
// even its header; a file that is another than when it was listed, or changes meanwhile.
// Rows that were handed on before such an error count for nothing.
func (s *SnapshotSet) Read(ctx context.Context, f source.VersionFile, t *change.Table, fn func(row change.Row) error) error {
	set, err := s.prepare()
	if err != nil {
		return err
	}
	file := set.found(f)
	o, err := file.open()
	if err != nil {
		return set.explain(file, err)
	}
	defer o.file.Close()
	if !f.Modified.IsZero() && (o.size != f.Size || !o.modified.Equal(f.Modified)) {
		return set.explain(file, changing(fmt.Sprintf("it had %d bytes of %s when it was listed and has %d of %s now", f.Size, stamp(f.Modified), o.size, stamp(o.modified))))
	}
	bad := func(err error) error {
		// What looks cut off or damaged may just have been written to.
		if moved := o.changed(); moved != nil && ctx.Err() == nil {
			err = moved
		}
		return set.explain(file, err)
	}
	d, err := decode(ctx, o, newLayout(set.rel, t.Columns))
	if err != nil {
		return bad(err)
	}
	defer d.close()
	if c, ok := d.(*csvDecoder); ok && set.rel.header && c.names == nil {
		return bad(unreadableContent("the file has no header: a table without rows has one"))
	}
	var room slab
	for {
		row, ordinal, err := d.next(&room)
		if err == io.EOF {
			break
		}
		if err != nil {
			return bad(err)
		}
		// The decoder's last column is what it rescued: an object, or NULL.
		last := len(row) - 1
		if row[last] != byte(change.Null) {
			return bad(set.misfit(row, t, ordinal))
		}
		if err := fn(row[:last:last]); err != nil {
			return err
		}
		room.block = room.block[:0]
	}
	if err := o.changed(); err != nil {
		return set.explain(file, err)
	}
	return nil
}

// misfit names the first thing in a row that fits no column.
func (set *snapshotSet) misfit(row change.Row, t *change.Table, ordinal uint64) error {
	values, err := row.Values(nil, len(t.Columns)+1)
	if err != nil {
		return err
	}
	tokens := json.NewDecoder(strings.NewReader(string(values[len(t.Columns)].Data)))
	var name string
	for range 2 { // the brace, then the name
		token, err := tokens.Token()
		if err != nil {
			return fault.Corrupted("what a row holds beside its columns is no object")
		}
		name, _ = token.(string)
	}
	f := &flaw{line: int64(ordinal), row: set.rel.Format == Parquet, offset: -1}
	for i := range t.Columns {
		if c := &t.Columns[i]; strings.EqualFold(c.Name, name) && values[i].State == change.Null {
			f.what = fmt.Sprintf("column %s holds what is no %s", c.Name, c.Type.Name)
			f.remedy = "correct the file; or declare the column with a type that holds it (columns)"
			return f
		}
	}
	f.what = fmt.Sprintf("%q is none of the columns", name)
	f.remedy = "declare it as well (columns), or leave it out of the file"
	return f
}
