package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// The examples in SQL print the documented tables in every destination, and so does the
// YAML that is printed for them.
func TestExamplesInSQLPrintTheDocumentedTables(t *testing.T) {
	server := dbtest.Postgres(t)
	const folder = "../../examples"
	readme, err := os.ReadFile(filepath.Join(folder, "sql", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	current, history, tracked := "users_current` of users", "users_history` of users", "users_history_without_moves` of users"
	examples := map[string]map[string]string{ // of the targets of each: where the README shows them
		"users":    {"users_current": current, "users_history": history, "users_history_without_moves": tracked},
		"truncate": {"users_current": "users_current` of truncate"},
		"versions": {"cdc_tutorial.target_versioned": "cdc_tutorial.target_versioned`"},
		"current":  {"users_current": current},
		"history":  {"users_history": history},
		"tracked":  {"users_history": tracked},
		"clause_1": {"target": "target` of clause_1"},
		"clause_2": {"target": history},
		"clause_3": {"target": tracked},
		"periodic": {"target": "target` of periodic"},
	}
	if found, err := filepath.Glob(filepath.Join(folder, "sql", "*.yaml")); err != nil || len(found) != len(examples) {
		t.Fatalf("%d examples: %v", len(found), err)
	}
	overKinds(t, func(t *testing.T, kind string) {
		for name, tables := range examples {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				work := t.TempDir()
				for _, part := range []string{"sql", "autocdc"} {
					if err := os.CopyFS(filepath.Join(work, part), os.DirFS(filepath.Join(folder, part))); err != nil {
						t.Fatal(err)
					}
				}
				path := filepath.Join(work, "sql", name+".yaml")
				source := server.Database(t)
				fromDatabase := false
				execute := func(file string) {
					if sql, err := os.ReadFile(filepath.Join(folder, "sql", file)); err != nil {
						t.Fatal(err)
					} else {
						server.Exec(t, source, string(sql))
					}
				}
				if text, err := os.ReadFile(path); err != nil {
					t.Fatal(err)
				} else if fromDatabase = strings.Contains(string(text), "${SOURCE_DSN}"); fromDatabase {
					execute("sample.sql")
					rewrite(t, path, regexp.MustCompile(`\$\{SOURCE_DSN\}`), source)
				}
				dest := freshDestination(t, server, kind)
				rewrite(t, path, regexp.MustCompile(`destination: .*`), "destination: {kind: "+dest.kind+`, dsn: "`+dest.dsn+`"}`)
				rewrite(t, path, regexp.MustCompile(`(?m)^pipeline: .*`), "pipeline: "+uniqueName("p"))
				for range 2 { // the second run finds nothing new
					must(t, "run", "--once", "-c", path)
					if name == "periodic" {
						execute("sample_later.sql")
					}
				}
				shows := func() {
					t.Helper()
					for table, heading := range tables {
						want := section(t, string(readme), "`"+heading)
						if got := trimLines(must(t, "show", "-c", path, table)); got != want {
							t.Errorf("%s:\n%s\nwant\n%s", table, got, want)
						}
					}
				}
				shows()
				if kind != "duckdb" || name == "truncate" { // which has relations of its own
					return
				}
				// The equivalent YAML is the same pipeline: it goes on with these targets.
				_, yaml, found := strings.Cut(must(t, "plan", "--sql", "-c", path), "# the same as YAML\n")
				if !found {
					t.Fatal("plan --sql prints no YAML")
				}
				rewrite(t, path, regexp.MustCompile(`(?m)^sql: .*`), yaml)
				must(t, "run", "--once", "-c", path)
				shows()
			})
		}
	})
}

// Columns that a flow names are found whatever their case, as in SQL.
func TestColumnsAreFoundWithoutRegardToCase(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table Feed (userId int, Name text, op text, sequenceNum int, changed text[], "Odd" text, "odd" text);
			insert into feed values (1,'a','I',1,null,'x','y'),(2,'b','I',1,null,'x','y')`, "sql: feed.sql\n")
		const flow = `CREATE STREAMING TABLE users FLOW AUTO CDC FROM stream(feed) KEYS (userId) APPLY AS DELETE WHEN OP = "D"
			SEQUENCE BY sequenceNum COLUMNS * EXCEPT (Op, sequencenum, Odd) COLUMNS TO UPDATE CHANGED`
		if err := os.WriteFile(filepath.Join(filepath.Dir(r.config), "feed.sql"), []byte(flow), 0o600); err != nil {
			t.Fatal(err)
		}
		r.once(t)
		r.exec(t, `insert into feed values (1,'A','U',3,'{name}',null,null),(2,null,'D',2,null,null,null)`)
		r.once(t)
		r.holds(t, "users", []string{"userid", "name", "odd"}, "1 A y")
		r.same(t)
		if out := r.must(t, "show", "users"); !strings.HasPrefix(out, "userid  name  odd\n") {
			t.Errorf("the target has other columns:\n%s", out)
		}
	})
}

// What is ignored is said by run, check and plan; what is wrong with its place.
func TestSQLIsReported(t *testing.T) {
	server := dbtest.Postgres(t)
	overOneKind(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, `create table feed (id int, n int)`, "sql: feed.sql\n")
		path := filepath.Join(filepath.Dir(r.config), "feed.sql")
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		const flow = "FLOW AUTO CDC FROM stream(feed) KEYS (id) SEQUENCE BY n"
		write("CREATE STREAMING TABLE t\nUSING DELTA\n" + flow)
		for _, command := range [][]string{{"run", "--once"}, {"check"}, {"plan"}, {"plan", "--sql"}} {
			contains(t, r.must(t, command[0], command[1:]...), "feed.sql:2: USING DELTA is ignored")
		}
		write("CREATE STREAMING TABLE t\nUSING DELTA\nFLOW AUTO CDC FROM stream(feed) KEYS (id) SEQENCE BY n")
		for _, command := range [][]string{{"run", "--once"}, {"check"}, {"plan"}, {"plan", "--sql"}, {"status"}} {
			r.refused(t, 2, []string{"feed.sql:3:43: there is no clause SEQENCE", "did you mean SEQUENCE BY?"}, command[0], command[1:]...)
		}
		write("CREATE STREAMING TABLE t FLOW AUTO CDC FROM stream(feed) KEYS (nobody) SEQUENCE BY n")
		r.refused(t, 2, []string{"no such column: nobody"}, "plan")
	})
}
