package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// feedRig is a pipeline under test whose source is a folder of files.
type feedRig struct {
	*rig
	dir string
}

// newFeedRig makes an empty folder, a fresh destination of a kind and the
// configuration between them: rest holds the relations and flows.
func newFeedRig(t *testing.T, server *dbtest.Server, kind, rest string) *feedRig {
	t.Helper()
	dir := t.TempDir()
	r := &feedRig{rig: &rig{server: server, dest: freshDestination(t, server, kind), config: filepath.Join(dir, "pipeline.yaml")}, dir: dir}
	r.configure(t, uniqueName("p"), rest)
	return r
}

func (r *feedRig) configure(t testing.TB, pipeline, rest string) {
	t.Helper()
	text := fmt.Sprintf("pipeline: %s\nsource: {kind: files}\ndestination: {kind: %s, dsn: %q}\n%s\n", pipeline, r.dest.kind, r.dest.dsn, rest)
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// put writes a file that is complete at once and old enough to be taken at once.
func (r *feedRig) put(t testing.TB, path string, lines ...string) {
	t.Helper()
	full := filepath.Join(r.dir, filepath.FromSlash(path))
	hidden := filepath.Join(filepath.Dir(full), "."+filepath.Base(full))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hidden, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(hidden, old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, full); err != nil {
		t.Fatal(err)
	}
}

// held is a query on the destination, which no pipeline has open: every column as
// text, null for NULL.
func (r *rig) held(t testing.TB, sql string) [][]string {
	t.Helper()
	if r.dest.kind == "duckdb" {
		return queryDuckDB(t, r.dest.dsn, sql)
	}
	if r.dest.kind == "mysql" {
		return queryMySQL(t, path.Base(r.dest.dsn), sql)
	}
	return query(t, r.server, r.dest.dsn, sql)
}

// columnsOf writes a list of columns as text.
func columnsOf(names ...string) string {
	var out []string
	for _, n := range names {
		out = append(out, `cast("`+n+`" as varchar)`)
	}
	return strings.Join(out, ", ")
}

// holds asserts that the columns of a target hold these rows, in any order; cells
// are separated by blanks, ∅ is NULL.
func (r *rig) holds(t testing.TB, target string, columns []string, want ...string) {
	t.Helper()
	got := sortedRows(r.held(t, "select "+columnsOf(columns...)+` from "`+target+`"`))
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s holds %d rows, want %d\n%s", target, len(got), len(want), differing(got, want))
	}
}

// sortedRows are rows as holds compares them.
func sortedRows(rows [][]string) (out []string) {
	for _, row := range rows {
		out = append(out, strings.ReplaceAll(strings.Join(row, " "), null, "∅"))
	}
	slices.Sort(out)
	return out
}

// differing shows the first lines that only one of two sorted lists has.
func differing(got, want []string) string {
	var b strings.Builder
	for _, line := range got {
		if _, found := slices.BinarySearch(want, line); !found && b.Len() < 500 {
			fmt.Fprintf(&b, "not expected: %q\n", line)
		}
	}
	for _, line := range want {
		if _, found := slices.BinarySearch(got, line); !found && b.Len() < 1000 {
			fmt.Fprintf(&b, "missing: %q\n", line)
		}
	}
	return b.String()
}

// quarantined returns flow, target, reason and place of what this pipeline has set aside,
// in order.
func (r *rig) quarantined(t testing.TB) [][]string {
	t.Helper()
	place := map[string]string{"duckdb": "source_position", "postgres": "position", "mysql": "position"}[r.dest.kind]
	return r.held(t, "select flow, target_table, reason, "+place+" from _tailrace.quarantine where pipeline = '"+r.pipeline(t)+"' and resolved is null order by id")
}

// pipeline is its name, as the configuration has it.
func (r *rig) pipeline(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(r.config)
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut("\n"+string(text), "\npipeline: ")
	name, _, _ = strings.Cut(name, "\n")
	return name
}
