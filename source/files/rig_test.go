package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/source"
	"tailrace/source/files"
)

// pollTest makes tests fast; files are made older than it where they shall be taken
// at once.
const pollTest = 20 * time.Millisecond

// rig is a folder with a source on it.
type rig struct {
	t    *testing.T
	root string
	cfg  files.Config
}

func newRig(t *testing.T, relations ...files.Relation) *rig {
	t.Helper()
	root := t.TempDir()
	return &rig{t: t, root: root, cfg: files.Config{Root: root, Relations: relations, Poll: pollTest}}
}

// write puts a file there as if it had been written an hour ago.
func (r *rig) write(path, content string) {
	r.t.Helper()
	r.writeAt(path, content, time.Now().Add(-time.Hour))
}

func (r *rig) writeAt(path, content string, at time.Time) {
	r.t.Helper()
	full := filepath.Join(r.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chtimes(full, at, at); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) source() *files.Source {
	r.t.Helper()
	s, err := files.New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// result is what Follow handed on.
type result struct {
	txs   []change.Tx // files that were handed on whole
	open  int         // changes in pieces without a last one
	quiet []change.Position
	bytes int // of the largest segment
	err   error
}

// drain runs Follow with Once until its quiet point.
func (r *rig) drain(o source.FollowOptions) *result {
	r.t.Helper()
	o.Once = true
	res := follow(r.t, r.source(), change.Position{}, o, func(res *result) bool { return len(res.quiet) > 0 })
	if len(res.quiet) == 0 && res.err == nil {
		r.t.Fatal("neither quiet point nor error")
	}
	return res
}

// follow runs Follow until stop says so or it ends by itself, and joins pieces.
func follow(t *testing.T, s *files.Source, from change.Position, o source.FollowOptions, stop func(*result) bool) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res := &result{}
	var open *change.Tx
	err := s.Follow(ctx, from, o, func(_ context.Context, seg *change.Segment) error {
		res.bytes = max(res.bytes, seg.Bytes)
		for _, tx := range seg.Txs {
			if tx.First != (open == nil) {
				t.Errorf("%s: First is %v behind an open piece: %v", tx.Path, tx.First, open != nil)
			}
			if tx.Last != !tx.End.IsZero() && tx.Path != "" || tx.Last != (tx.File != nil) && tx.Path != "" {
				t.Errorf("%s: Last %v, End %v, File %v", tx.Path, tx.Last, tx.End, tx.File)
			}
			if open != nil {
				open.Changes = append(open.Changes, tx.Changes...)
				open.Last, open.End, open.File = tx.Last, tx.End, tx.File
			} else {
				open = &tx
			}
			res.open = len(open.Changes)
			if !tx.Last {
				continue
			}
			if open.Path == "" && open.File == nil {
				res.quiet = append(res.quiet, open.End)
			} else {
				res.txs = append(res.txs, *open)
			}
			open, res.open = nil, 0
		}
		if stop(res) {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		res.err = err
	}
	return res
}

// paths lists the files handed on, in order.
func (res *result) paths() string {
	var out []string
	for _, tx := range res.txs {
		out = append(out, tx.File.Relation.Table+":"+tx.File.Path)
	}
	return strings.Join(out, " ")
}

func (res *result) taken() []change.File {
	var out []change.File
	for _, tx := range res.txs {
		out = append(out, *tx.File)
	}
	return out
}

// rows prints every row as `ordinal|value|...`, NULL as a tilde.
func (res *result) rows(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, tx := range res.txs {
		for _, c := range tx.Changes {
			if c.Op != change.Insert || c.Old != nil {
				t.Errorf("%s: %v with old image %v", tx.Path, c.Op, c.Old)
			}
			values, err := c.New.Values(nil, len(c.Table.Columns))
			if err != nil {
				t.Fatalf("%s, row %d: %v", tx.Path, c.Ordinal, err)
			}
			line := fmt.Sprint(c.Ordinal)
			for _, v := range values {
				if v.State == change.Null {
					line += "|~"
				} else if v.State == change.AsText {
					line += "|" + string(v.Data)
				} else {
					t.Fatalf("%s, row %d: state %q", tx.Path, c.Ordinal, v.State)
				}
			}
			out = append(out, line)
		}
	}
	return out
}

// columns prints the layout of a relation as `name type, ...`, without the rescue
// column, which it checks.
func (r *rig) columns() string {
	r.t.Helper()
	rels, err := r.source().Relations(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	t := rels[0].Table
	last := t.Columns[len(t.Columns)-1]
	if last.Name != "_rescued_data" || last.Type.Kind != change.JSONB || !last.Nullable {
		r.t.Errorf("last column %+v", last)
	}
	var out []string
	for _, c := range t.Columns[:len(t.Columns)-1] {
		out = append(out, c.Name+" "+c.Type.Name)
	}
	if rels[0].Problem != "" {
		return rels[0].Problem
	}
	return strings.Join(out, ", ")
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func sameRows(t *testing.T, got, want []string) {
	t.Helper()
	same(t, "rows", "\n"+strings.Join(got, "\n"), "\n"+strings.Join(want, "\n"))
}

func columns(pairs ...string) []files.DeclaredColumn {
	var out []files.DeclaredColumn
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, files.DeclaredColumn{Name: pairs[i], Type: pairs[i+1]})
	}
	return out
}
