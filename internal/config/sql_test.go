package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tailrace/internal/config"
	"tailrace/internal/fault"
)

// inFolder writes files into a folder and returns the path of the configuration in it.
func inFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "c.yaml")
}

// The YAML that is printed for SQL files says what the SQL says.
func TestSQLAndItsYAMLAreTheSame(t *testing.T) {
	files, err := filepath.Glob("../flowsql/testdata/compile/*.sql")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			head := "pipeline: p\ndestination: {kind: duckdb, dsn: d}\n"
			kind, relations := "postgres", ""
			if first, _, _ := strings.Cut(string(text), "\n"); strings.HasPrefix(first, "-- source: files") {
				kind = "files"
				if strings.HasSuffix(first, "users_cdf") {
					relations = "  users_cdf: {path: \"feed/*.jsonl\", format: jsonl}\n"
				}
			}
			head += fmt.Sprintf("source: {kind: %s}\n", kind)
			written, catalogs := head, ""
			if relations != "" {
				written += "relations:\n" + relations
			}
			if _, line, found := strings.Cut(string(text), "-- catalogs: "); found {
				line, _, _ = strings.Cut(line, "\n")
				catalogs = "sql_catalogs: {" + strings.ReplaceAll(strings.ReplaceAll(line, "=", ": "), " ", ", ") + "}\n"
				catalogs = strings.ReplaceAll(catalogs, ":,", ":")
			}
			inSQL, err := config.Load(inFolder(t, map[string]string{"c.yaml": written + catalogs + "sql: [sql/*.sql]\n", "sql/a.sql": string(text)}))
			if err != nil {
				t.Fatal(err)
			}
			yaml, err := inSQL.SQL().Plan.YAML()
			if err != nil {
				t.Fatal(err)
			}
			if relations != "" {
				yaml = strings.Replace(yaml, "relations:\n", "relations:\n"+relations, 1)
			}
			inYAML, err := config.Load(inFolder(t, map[string]string{"c.yaml": head + yaml}))
			if err != nil {
				t.Fatalf("%v\n%s", err, yaml)
			}
			if want, got := inSQL.Specs(), inYAML.Specs(); !reflect.DeepEqual(want, got) {
				for i := range want {
					if i < len(got) && !reflect.DeepEqual(want[i], got[i]) {
						t.Errorf("in SQL  %+v %+v\nin YAML %+v %+v", want[i], want[i].Snapshot, got[i], got[i].Snapshot)
					}
				}
				t.Errorf("%d flows in SQL, %d in YAML:\n%s", len(want), len(got), yaml)
			}
			if !reflect.DeepEqual(inSQL.Relations, inYAML.Relations) {
				t.Errorf("in SQL  %+v\nin YAML %+v", inSQL.Relations, inYAML.Relations)
			}
		})
	}
}

// Flows in SQL stand behind those of the file, and several files are one pipeline.
func TestSQLFilesAreOnePipeline(t *testing.T) {
	c, err := config.Load(inFolder(t, map[string]string{
		"c.yaml":      "pipeline: p\nsource: {kind: postgres}\ndestination: {kind: duckdb, dsn: d}\nflows: [{source: public.*}]\nsql_catalogs: {main.Sales: public}\nsql: [two.sql, 'pipeline/*.sql']\n",
		"two.sql":     "CREATE FLOW f AS AUTO CDC INTO t FROM stream(main.sales.x) KEYS (id) SEQUENCE BY n;",
		"pipeline/01": "not read",
		"pipeline/a.sql": "CREATE STREAMING TABLE t;\n" +
			"CREATE STREAMING TABLE u FLOW AUTO CDC FROM stream(s.y) KEYS (id) SEQUENCE BY n;",
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.Specs() {
		got = append(got, s.Source+">"+s.Target)
	}
	if fmt.Sprint(got) != "[public.*> s.y>u public.x>t]" {
		t.Errorf("%v", got)
	}
	if files := c.SQL().Files; len(files) != 2 || !strings.HasSuffix(files[0].Name, "a.sql") {
		t.Errorf("%v", files)
	}
}

// Flows in SQL remember deletes for as long as rewind reaches back, as others do.
func TestFlowsInSQLCoverTheWindowOfRewind(t *testing.T) {
	c, err := config.Load(inFolder(t, map[string]string{
		"c.yaml": "pipeline: p\nsource: {kind: postgres}\ndestination: {kind: duckdb, dsn: d}\nrewind: {keep: 72h}\nsql: a.sql\n",
		"a.sql":  "CREATE STREAMING TABLE t FLOW AUTO CDC FROM stream(a.b) KEYS (id) SEQUENCE BY n;",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if keep := c.Specs()[0].Sequenced.TombstoneRetention; keep != 72*time.Hour {
		t.Errorf("deletes are remembered for %s", keep)
	}
	if yaml, err := c.SQL().Plan.YAML(); err != nil || strings.Contains(yaml, "tombstone") {
		t.Errorf("the default is written: %v\n%s", err, yaml)
	}
}

// What is wrong with `sql` is said, with the places of all mistakes.
func TestSQLThatIsWrong(t *testing.T) {
	const head = "pipeline: p\nsource: {kind: postgres}\ndestination: {kind: duckdb, dsn: d}\n"
	for _, c := range []struct {
		yaml, sql string
		want      []string
	}{
		{"sql: [nothing/*.sql]\n", "", []string{"no file matches"}},
		{"sql: ['[']\n", "", []string{"malformed"}},
		{"sql: a.sql\n", "CREATE STREAMING TABL t;\nCREATE FLOW f;", []string{"a.sql:1:18: expected TABLE", "a.sql:2:14: expected AS"}},
		{"sql: a.sql\n", "CREATE FLOW f AS AUTO CDC INTO t FROM s.x KEYS (id) SEQUENCE BY n;", []string{"a.sql:1:32", "no target"}},
		{"sql: a.sql\n", "CREATE STREAMING TABLE t;", []string{"`flows` is empty"}},
		{"flows: [{source: a.b}]\nsql_catalogs: {a: b}\n", "", []string{"goes with sql"}},
		{"sql: a.sql\nsql_catalogs: [a]\n", "", []string{"c.yaml:5"}},
		{"sql: a.sql\nrewind: {keep: 72h}\n", "CREATE STREAMING TABLE t TBLPROPERTIES ('tailrace.tombstone_retention' = '50h') FLOW AUTO CDC FROM stream(a.b) KEYS (id) SEQUENCE BY n;", []string{"shorter than rewind.keep"}},
		{"relations: {f: {path: x, format: jsonl}}\nsql: a.sql\n", "CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC INTO t FROM STREAM read_files('x', format => 'json') KEYS (id) SEQUENCE BY n;", []string{"names other files already"}},
	} {
		_, err := config.Load(inFolder(t, map[string]string{"c.yaml": head + c.yaml, "a.sql": c.sql}))
		if err == nil || fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", c.yaml, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s\n%v, want %q", c.sql, err, want)
			}
		}
	}
}
