package flowsql

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each file's flows, as YAML, and what is ignored.
func TestFilesCompile(t *testing.T) {
	files, err := filepath.Glob("testdata/compile/*.sql")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(filepath.Base(path), string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		roundTrip(t, f)
		o := optionsOf(string(text))
		if _, line, found := strings.Cut(string(text), "-- catalogs: "); found {
			line, _, _ = strings.Cut(line, "\n")
			o.Catalogs = map[string]string{}
			for _, pair := range strings.Fields(line) {
				from, to, _ := strings.Cut(pair, "=")
				o.Catalogs[from] = to
			}
		}
		plan, err := Compile([]*File{f}, o)
		if err != nil {
			t.Error(err)
			continue
		}
		yaml, err := plan.YAML()
		if err != nil {
			t.Error(err)
		}
		for _, n := range plan.Notes {
			yaml += "# " + n + "\n"
		}
		golden(t, strings.TrimSuffix(path, ".sql")+".golden", yaml)

		// The canonical form compiles to the same.
		canonical, err := Parse(f.Name, f.String())
		if err != nil {
			t.Fatal(err)
		}
		again, err := Compile([]*File{canonical}, o)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := again.YAML(); err != nil || !strings.HasPrefix(yaml, text) {
			t.Errorf("%s: the canonical form gives\n%s\nnot\n%s", path, text, yaml)
		}
	}
}
