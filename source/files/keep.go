package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"tailrace/internal/change"
	"tailrace/source"
)

var (
	_ source.Keeper   = (*Source)(nil)
	_ source.Rereader = (*Source)(nil)
)

// Keep implements source.Keeper: files are nobody's log, and lie where they are.
func (s *Source) Keep(context.Context, change.Position) error { return nil }

// Kept implements source.Keeper. Whether the files of before are still there Unchanged says.
func (s *Source) Kept(context.Context) (source.Kept, error) { return source.Kept{Exists: true}, nil }

// Return implements source.Keeper: which files were taken is the mark's to say.
func (s *Source) Return(context.Context, change.Position) error { return nil }

// Unkeep implements source.Keeper.
func (s *Source) Unkeep(context.Context) error { return nil }

// CheckKeep implements source.Keeper: nothing here cuts a window short that a person or
// another program does not.
func (s *Source) CheckKeep(context.Context, time.Duration) ([]source.Finding, error) { return nil, nil }

// Unchanged implements source.Rereader. Files are read one after the other; of one whose
// size is another nothing is read.
func (s *Source) Unchanged(ctx context.Context, taken []change.File) ([]source.Problem, error) {
	relations := map[change.Name]*relation{}
	for _, rel := range s.relations {
		relations[rel.name()] = rel
	}
	var problems []source.Problem
	for _, f := range taken {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if f.Ends() {
			continue
		}
		what := "belongs to a relation that is not in the configuration"
		if rel := relations[f.Relation]; rel != nil {
			var err error
			if what, err = rel.compare(ctx, f); err != nil {
				return nil, fmt.Errorf("look whether files are as they were: relation %s: %w", rel.Name, err)
			}
		}
		if what != "" {
			problems = append(problems, source.Problem{File: f, What: what})
		}
	}
	return problems, nil
}

// compare says what is different about a file that was taken; empty: nothing.
func (rel *relation) compare(ctx context.Context, f change.File) (string, error) {
	o, err := found{path: f.Path, full: filepath.Join(rel.glob.root, filepath.FromSlash(f.Path))}.open()
	if errors.Is(err, fs.ErrNotExist) {
		return "is gone", nil
	}
	if err != nil {
		return "", err
	}
	defer o.file.Close()
	if o.size != f.Size {
		return fmt.Sprintf("has %d bytes, and had %d when it was taken", o.size, f.Size), nil
	}
	if now := o.modified.UTC().Truncate(time.Microsecond); rel.Order == ByTime && !now.Equal(f.Modified) {
		return fmt.Sprintf("is of %s, and was of %s when it was taken: its place among the others is another (order: time)", stamp(now), stamp(f.Modified)), nil
	}
	sum, err := o.checksum(ctx)
	var moved changing
	switch {
	case errors.As(err, &moved):
		return "is being written to", nil
	case err != nil:
		return "", err
	case sum != f.Checksum:
		return "has another content than when it was taken", nil
	}
	return "", nil
}
