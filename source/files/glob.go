package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"tailrace/internal/fault"
)

// glob is a pattern of paths: a folder without wildcards, and one pattern for each
// name below it. Within a name *, ? and [...] match; a part ** matches any number
// of folders, none included.
//
// As in a shell and as other readers of such folders do, a wildcard matches no name
// that begins with a dot or an underscore, unless the pattern itself begins so:
// writers name their unfinished files and markers like that (_SUCCESS, .part).
type glob struct {
	root  string // absolute, in the system's notation
	parts []string
}

func newGlob(base, pattern string) (*glob, error) {
	if strings.TrimSpace(pattern) == "" {
		return nil, errors.New("is missing")
	}
	if strings.IndexByte(pattern, 0) >= 0 {
		return nil, errors.New("holds a NUL character")
	}
	slashed := filepath.ToSlash(pattern)
	if strings.HasSuffix(slashed, "/") {
		return nil, fmt.Errorf("%q names a folder; write which files in it, for instance %s*", pattern, pattern)
	}
	raw := strings.Split(slashed, "/")
	if wild := slices.IndexFunc(raw, isPattern); wild >= 0 && slices.Contains(raw[wild:], "..") {
		return nil, fmt.Errorf("%q goes up (..) behind a wildcard", pattern)
	}
	parts := strings.Split(path.Clean(slashed), "/")
	fixed := 0
	for fixed < len(parts)-1 && !isPattern(parts[fixed]) {
		fixed++
	}
	for i, p := range parts[fixed:] {
		p = notIn.ReplaceAllString(p, "$1[^")
		parts[fixed+i] = p
		if _, err := path.Match(p, ""); err != nil {
			return nil, fmt.Errorf("%q: %q is not a pattern: a [ without its ], or a \\ at the end", pattern, p)
		}
	}
	if parts[len(parts)-1] == "**" {
		return nil, fmt.Errorf("%q ends with **; write which files, for instance **/*", pattern)
	}
	root := filepath.FromSlash(strings.Join(parts[:fixed], "/"))
	if strings.HasPrefix(slashed, "/") && root == "" {
		root = string(filepath.Separator)
	}
	if !filepath.IsAbs(root) {
		root = filepath.Join(base, root)
	}
	return &glob{root: filepath.Clean(root), parts: parts[fixed:]}, nil
}

// notIn finds the shell's spelling of a negated class.
var notIn = regexp.MustCompile(`(^|[^\\])\[!`)

func isPattern(part string) bool { return strings.ContainsAny(part, `*?[\`) }

// found is a file that a glob matches.
type found struct {
	path     string // relative to the glob's root, with slashes
	full     string // to open it by
	size     int64
	modified time.Time
}

// list returns the regular files that the glob matches, by path.
// What disappears meanwhile is not there; what may not be read is an error.
func (g *glob) list(ctx context.Context) ([]found, error) {
	w := walk{ctx: ctx}
	if err := w.folder(g.root, "", g.parts); err != nil {
		return nil, err
	}
	slices.SortFunc(w.files, byPath)
	// Several ** can find one file in several ways.
	return slices.CompactFunc(w.files, func(a, b found) bool { return a.path == b.path }), nil
}

func byPath(a, b found) int { return strings.Compare(a.path, b.path) }

type walk struct {
	ctx   context.Context
	files []found
}

func (w *walk) folder(dir, rel string, parts []string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	part := parts[0]
	if !isPattern(part) {
		return w.entry(filepath.Join(dir, part), path.Join(rel, part), parts[1:], false)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ignoreGone(err, "list folder", dir)
	}
	for _, e := range entries {
		name := e.Name()
		full, below := filepath.Join(dir, name), path.Join(rel, name)
		if part == "**" {
			// A link to a folder may lead back up, so ** does not follow it.
			if e.IsDir() && !hidden(name, part) {
				if err := w.folder(full, below, parts); err != nil {
					return err
				}
			}
			continue
		}
		if match, _ := path.Match(part, name); !match || hidden(name, part) {
			continue
		}
		if err := w.entry(full, below, parts[1:], e.IsDir()); err != nil {
			return err
		}
	}
	if part == "**" {
		return w.folder(dir, rel, parts[1:])
	}
	return nil
}

// entry takes one name that matched: a folder if parts are left, else a file.
func (w *walk) entry(full, rel string, parts []string, isDir bool) error {
	if len(parts) == 0 {
		if isDir {
			return nil
		}
		info, err := os.Stat(full)
		if err != nil {
			return ignoreGone(err, "look at file", full)
		}
		if info.Mode().IsRegular() {
			w.files = append(w.files, found{path: rel, full: full, size: info.Size(), modified: info.ModTime()})
		}
		return nil
	}
	if !isDir {
		info, err := os.Stat(full)
		if err != nil {
			return ignoreGone(err, "look at folder", full)
		}
		if !info.IsDir() {
			return nil
		}
	}
	return w.folder(full, rel, parts)
}

func hidden(name, pattern string) bool {
	return (name[0] == '.' || name[0] == '_') && pattern[0] != name[0]
}

// ignoreGone makes an error of everything but a path that is not there.
func ignoreGone(err error, verb, path string) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return unreadable(err, verb, path)
}

// unreadable explains why the system does not let us read.
func unreadable(err error, verb, path string) error {
	var cause *fs.PathError
	if errors.As(err, &cause) {
		err = cause.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return fault.Refuse(fmt.Sprintf("let this user read it: chmod u+rX %q as its owner, or a group or ACL that does", path), "%s %s: %v", verb, path, err)
	}
	return fault.Refuse("see that the file system is there and sound, then start again", "%s %s: %v", verb, path, err)
}
