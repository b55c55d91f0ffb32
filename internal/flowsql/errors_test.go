package flowsql

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailrace/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// optionsOf reads the first line of a file, `-- source: kind relation...`.
func optionsOf(text string) Options {
	o := Options{Source: "postgres"}
	first, _, _ := strings.Cut(text, "\n")
	if words, ok := strings.CutPrefix(first, "-- source: "); ok {
		fields := strings.Fields(words)
		o.Source, o.Relations = fields[0], fields[1:]
	}
	return o
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant\n%s", path, got, want)
	}
}

// Each file holds one mistake, and its golden file what is said of it.
func TestMistakesAreExplained(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.sql")
	if err != nil || len(files) < 80 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(filepath.Base(path), string(text))
		if err == nil {
			roundTrip(t, f)
			_, err = Compile([]*File{f}, optionsOf(string(text)))
		}
		if err == nil {
			t.Errorf("%s is accepted", path)
			continue
		}
		if fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: the error is of kind %s", path, fault.KindOf(err))
		}
		golden(t, strings.TrimSuffix(path, ".sql")+".golden", err.Error()+"\n")
	}
}
