package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tailrace/internal/fault"
)

// Arrivals tells that a file has arrived in a folder, or where a glob matches. A file
// counts once it has rested, by the rule by which files of a relation are taken: its time
// is older than one look at the folder, or looks have found it as it was. A file that
// arrives anew under its old name, or grows, counts again.
type Arrivals struct {
	Poll time.Duration    // between two looks, and how long a file must have rested
	Now  func() time.Time // for the rule

	base, path string
	glob       *glob // nil: path may be a folder or a file

	seen    map[string]rest // at the last Begin, by full name
	resting map[string]rest
}

// NewArrivals watches a path: a folder (any file in it, but not in folders of it), a file,
// or a glob as relations have. root is where a relative one starts. It touches no file.
func NewArrivals(root, path string) (*Arrivals, error) {
	base, err := filepath.Abs(root)
	if err != nil {
		return nil, fault.Badly("the folder of the configuration, %s, has no absolute path: %v", root, err)
	}
	a := &Arrivals{Poll: defaultPoll, Now: time.Now, base: base, path: path}
	if strings.HasSuffix(filepath.ToSlash(path), "/") {
		a.path += "*"
	}
	if a.glob, err = newGlob(base, a.path); err != nil {
		return nil, fault.Badly("trigger.file_arrival: %v", err)
	}
	return a, nil
}

// Begin takes down what is there: it does not count as arrived any more.
func (a *Arrivals) Begin(ctx context.Context) error {
	files, err := a.list(ctx)
	if err != nil {
		return err
	}
	a.seen, a.resting = map[string]rest{}, nil
	for _, f := range files {
		a.seen[f.full] = rest{size: f.size, modified: f.modified}
	}
	return nil
}

// Look returns the name of a file that has arrived since Begin and has rested; empty:
// none has.
func (a *Arrivals) Look(ctx context.Context) (name string, err error) {
	files, err := a.list(ctx)
	if err != nil {
		return "", err
	}
	before := a.resting
	a.resting = map[string]rest{}
	for _, f := range files {
		if s, known := a.seen[f.full]; known && s.size == f.size && s.modified.Equal(f.modified) {
			continue
		}
		b, known := before[f.full]
		r, rested := rests(f, b, known, a.Now(), a.Poll)
		if rested {
			return f.path, nil
		}
		a.resting[f.full] = r
	}
	return "", nil
}

// Every is how long to wait between two looks.
func (a *Arrivals) Every() time.Duration { return a.Poll }

func (a *Arrivals) list(ctx context.Context) ([]found, error) {
	g := a.glob
	if !isPattern(a.path) {
		full := a.path
		if !filepath.IsAbs(full) {
			full = filepath.Join(a.base, full)
		}
		if info, err := os.Stat(full); err == nil && info.IsDir() {
			g = &glob{root: full, parts: []string{"*"}}
		}
	}
	files, err := g.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("look whether files have arrived: %w", err)
	}
	return files, nil
}
