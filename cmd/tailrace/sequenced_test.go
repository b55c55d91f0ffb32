package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// The examples print what their README says they print: the documented tables, cell
// by cell, from files and from a feed table, in every destination.
func TestExamplesPrintTheDocumentedTables(t *testing.T) {
	server := dbtest.Postgres(t)
	const folder = "../../examples/autocdc"
	readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	overAllKinds(t, func(t *testing.T, kind string) {
		for config, tables := range map[string][]string{
			"files.yaml":     {"users_current", "users_history", "users_history_without_moves"},
			"postgres.yaml":  {"users_current", "users_history", "users_history_without_moves"},
			"seeded.yaml":    {"users_current", "users_history"},
			"truncate.yaml":  {"users_current` with the TRUNCATE"},
			"periodic.yaml":  {"users_now", "users_past"},
			"snapshots.yaml": {"users_versioned"},
			"merged.yaml":    {"users_merged"},
			"prices.yaml":    {"prices`:", "prices --as-of 2024-02-15 --known-at 2024-03-01`", "prices --as-of 2024-02-15 --known-at 2024-04-01`"},
			"expect.yaml":    {"users_current` without the rows"},
		} {
			t.Run(config, func(t *testing.T) {
				t.Parallel()
				work := t.TempDir()
				if err := os.CopyFS(work, os.DirFS(folder)); err != nil {
					t.Fatal(err)
				}
				source := server.Database(t)
				execute := func(files ...string) {
					for _, file := range files {
						sql, err := os.ReadFile(filepath.Join(folder, file))
						if err != nil {
							t.Fatal(err)
						}
						server.Exec(t, source, string(sql))
					}
				}
				execute("users_cdf.sql", "users_live.sql", "periodic.sql")
				path := filepath.Join(work, config)
				if text, err := os.ReadFile(path); err != nil {
					t.Fatal(err)
				} else if strings.Contains(string(text), "${SOURCE_DSN}") {
					rewrite(t, path, regexp.MustCompile(`\$\{SOURCE_DSN\}`), source)
				}
				dest := freshDestination(t, server, kind)
				rewrite(t, path, regexp.MustCompile(`destination: .*`), "destination: {kind: "+dest.kind+`, dsn: "`+dest.dsn+`"}`)
				rewrite(t, path, regexp.MustCompile(`(?m)^pipeline: .*`), "pipeline: "+uniqueName("p"))
				for range 2 { // the second run finds nothing new
					must(t, "run", "--once", "-c", path)
					if config == "periodic.yaml" {
						execute("periodic_later.sql")
					}
				}
				for _, table := range tables {
					want := section(t, string(readme), "`"+table)
					name, _, _ := strings.Cut(table, "`")
					if got := trimLines(must(t, append([]string{"show", "-c", path}, strings.Fields(name)...)...)); got != want {
						t.Errorf("%s:\n%s\nwant\n%s", table, got, want)
					}
				}
				if config == "expect.yaml" {
					got, want := asideCells(must(t, "quarantine", "list", "-c", path)), asideCells(section(t, string(readme), "`quarantine list`"))
					if got != want {
						t.Errorf("quarantine list:\n%s\nwant\n%s", got, want)
					}
				}
			})
		}
	})
}

func rewrite(t *testing.T, path string, what *regexp.Regexp, with string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !what.Match(text) {
		t.Fatalf("%s has no %s", path, what)
	}
	if err := os.WriteFile(path, what.ReplaceAllLiteral(text, []byte(with)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// section is the first indented block of text behind a word.
func section(t *testing.T, text, word string) string {
	t.Helper()
	_, after, found := strings.Cut(text, "\n"+word)
	if !found {
		t.Fatalf("the README shows no %s", word)
	}
	var block []string
	for _, line := range strings.Split(after, "\n")[1:] {
		switch {
		case strings.HasPrefix(line, "    "):
			block = append(block, line[4:])
		case len(block) > 0:
			return trimLines(strings.Join(block, "\n"))
		}
	}
	return trimLines(strings.Join(block, "\n"))
}

// asideCells are the cells of `quarantine list` that are the same everywhere: flow,
// target without its schema, position, reason.
func asideCells(s string) string {
	var b strings.Builder
	for _, line := range strings.Split(trimLines(s), "\n") {
		cells := regexp.MustCompile("  +").Split(line, -1)
		if len(cells) != 6 {
			return s
		}
		b.WriteString(strings.Join([]string{cells[1], cells[2][strings.LastIndexByte(cells[2], '.')+1:], cells[4], cells[5]}, "|") + "\n")
	}
	return b.String()
}

func trimLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
