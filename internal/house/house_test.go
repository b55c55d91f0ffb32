// Package house holds no code: its test is the house rules that matter, who may
// import whom, so that a change which breaks one fails.
package house_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// leaves may be imported by every room.
var leaves = []string{"internal/change", "internal/fault"}

// allowed says what each room may import of ours beside the leaves. A room's
// folders may also import the room itself and each other.
var allowed = map[string][]string{
	"internal/change":   {},
	"internal/fault":    {},
	"internal/snapdiff": {},
	"internal/spool":    {},
	"internal/mysqldsn": {},
	"source":            {"internal/spool", "internal/mysqldsn"},
	"hydrate":           {},
	"scd":               {},
	"checkpoint":        {},
	"sink":              {"scd", "checkpoint", "internal/mysqldsn"},
	"internal/flow":     {},
	"internal/expr":     {},
	"internal/flowsql":  {"internal/flow", "internal/expr"},
	"internal/config":   {"internal/flow", "internal/flowsql"},
	"internal/pipeline": {"source", "hydrate", "scd", "sink", "checkpoint", "internal/flow", "internal/expr", "internal/snapdiff"},
	"internal/metrics":  {"checkpoint", "internal/pipeline"},
	"internal/control":  {"sink"},
	"internal/dbtest":   {},
	"internal/sim":      {"source", "scd", "sink", "checkpoint"},
	"internal/house":    {},
	// The door may import everything.
	"cmd":   {"source", "hydrate", "scd", "sink", "checkpoint", "internal/flow", "internal/flowsql", "internal/config", "internal/control", "internal/pipeline", "internal/metrics", "internal/dbtest"},
	"bench": {"internal/dbtest"},
}

// testsOnly are rooms that only tests may import, beside the door.
var testsOnly = []string{"internal/dbtest", "internal/sim"}

// drivers may be imported only where a database is spoken to.
var drivers = map[string][]string{
	"github.com/jackc/pgx":             {"source/postgres", "sink/postgres", "internal/dbtest", "cmd", "bench"},
	"github.com/jackc/pglogrepl":       {"source/postgres"},
	"github.com/duckdb":                {"sink/duckdb"},
	"github.com/go-sql-driver":         {"source/mysql", "sink/mysql", "internal/mysqldsn", "internal/dbtest"},
	"github.com/spf13/viper":           {"internal/config"},
	"github.com/spf13/cobra":           {"cmd"},
	"github.com/robfig/cron":           {"internal/flow"},
	"github.com/testcontainers":        {"internal/dbtest"},
	"github.com/schollz/progressbar":   {"cmd"},
	"github.com/parquet-go":            {"source/files"},
	"github.com/prometheus":            {"internal/metrics"},
	"github.com/stretchr/testify":      {},
	"github.com/go-mysql-org/go-mysql": {"source/mysql"},
}

func room(dir string) string {
	parts := strings.Split(dir, "/")
	if parts[0] == "internal" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

func below(path string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && p != root {
			return fs.SkipDir
		}
		if strings.HasSuffix(p, ".go") {
			files = append(files, p)
		}
		return nil
	})
	if err != nil || len(files) < 20 {
		t.Fatalf("found %d Go files: %v", len(files), err)
	}
	return files
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, file := range goFiles(t) {
		rel, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		here := room(dir)
		rooms, known := allowed[here]
		if !known {
			t.Errorf("%s: room %s has no arrows: add it here and to the README's table of rooms", rel, here)
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		isTest := strings.HasSuffix(file, "_test.go") || dir == "sink/sinktest"
		for _, spec := range f.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			if ours, ok := strings.CutPrefix(path, "tailrace/"); ok {
				switch {
				case below(ours, leaves), room(ours) == here && here != "internal/change":
				case below(ours, testsOnly) && isTest:
				case here == "internal/change" && below(ours, leaves[:1]):
				case below(ours, rooms):
				case isTest && here == "sink" && below(ours, []string{"source", "internal/pipeline"}):
				default:
					t.Errorf("%s imports %s: not an arrow of room %s", rel, ours, here)
				}
				if here != "cmd" && here != "bench" && !isTest && (strings.HasPrefix(ours, "source/") || strings.HasPrefix(ours, "sink/")) && room(ours) != here {
					t.Errorf("%s imports %s: only the door names concrete sources and sinks", rel, ours)
				}
			}
			for driver, where := range drivers {
				if strings.HasPrefix(path, driver) && !below(dir, where) && !isTest {
					t.Errorf("%s imports %s: that belongs to %v", rel, path, where)
				}
			}
		}
	}
}

// Every room has its row in the README's table.
func TestReadmeNamesEveryRoom(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range goFiles(t) {
		rel, _ := filepath.Rel(root, file)
		r := room(filepath.ToSlash(filepath.Dir(rel)))
		if !seen[r] && !strings.Contains(string(readme), "`"+r) {
			t.Errorf("room %s is not in the README's table of rooms", r)
		}
		seen[r] = true
	}
}
