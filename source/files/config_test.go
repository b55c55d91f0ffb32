package files_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
	"tailrace/source/files"
)

func TestBadConfigurationNamesRelationAndKey(t *testing.T) {
	yes := true
	good := files.Relation{Name: "r", Path: "*.json", Format: "jsonl"}
	for says, change := range map[string]func(*files.Relation){
		"relation 1 has no name":                                                   func(r *files.Relation) { r.Name = " " },
		"relation r: path: is missing":                                             func(r *files.Relation) { r.Path = "" },
		"relation r: path: \"in/\" names a folder":                                 func(r *files.Relation) { r.Path = "in/" },
		"relation r: path: \"in/[a\": ":                                            func(r *files.Relation) { r.Path = "in/[a" },
		"relation r: path: \"in/*/../x\" goes":                                     func(r *files.Relation) { r.Path = "in/*/../x" },
		"relation r: path: \"in/**\" ends":                                         func(r *files.Relation) { r.Path = "in/**" },
		"relation r: format: is missing":                                           func(r *files.Relation) { r.Format = "" },
		"relation r: format: \"json\" is none of":                                  func(r *files.Relation) { r.Format = "json" },
		"relation r: order: \"name\" is":                                           func(r *files.Relation) { r.Order = "name" },
		"relation r: header: belongs to format csv":                                func(r *files.Relation) { r.Header = &yes },
		"relation r: delimiter: belongs":                                           func(r *files.Relation) { r.Delimiter = ";" },
		"relation r: delimiter: \"||\" is":                                         func(r *files.Relation) { r.Format, r.Delimiter = "csv", "||" },
		"relation r: delimiter: \"\\\"\"":                                          func(r *files.Relation) { r.Format, r.Delimiter = "csv", `"` },
		"relation r: null: \",\" can be":                                           func(r *files.Relation) { r.Format, r.Null = "csv", "," },
		"relation r: columns: column 2 has no name":                                func(r *files.Relation) { r.Columns = columns("a", "int", "", "int") },
		"relation r: columns: column a is there twice":                             func(r *files.Relation) { r.Columns = columns("a", "int", "a", "int") },
		"relation r: columns: _rescued_data is added":                              func(r *files.Relation) { r.Columns = columns("_Rescued_Data", "jsonb") },
		"relation r: columns: column a: type \"number\" is not known; use boolean": func(r *files.Relation) { r.Columns = columns("a", "number") },
		"relation r: columns: column a: type \"decimal(5,7)\": a precision":        func(r *files.Relation) { r.Columns = columns("a", "decimal(5,7)") },
		"relation r: columns: column a: type \"decimal(5\" has no closing":         func(r *files.Relation) { r.Columns = columns("a", "decimal(5") },
		"relation r: columns: column a: type \"varchar(0)\": a length":             func(r *files.Relation) { r.Columns = columns("a", "varchar(0)") },
		"relation r: columns: column a: type \"varchar(x)\": \"x\" is not":         func(r *files.Relation) { r.Columns = columns("a", "varchar(x)") },
	} {
		rel := good
		change(&rel)
		_, err := files.New(files.Config{Root: t.TempDir(), Relations: []files.Relation{rel}})
		if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
	_, err := files.New(files.Config{Relations: []files.Relation{good, good}})
	if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "relation r is there twice") {
		t.Error(err)
	}
}

func TestDeclaredTypesHaveTheirPostgreSQLNames(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl", Columns: columns(
		"a", "INT", "b", "long", "c", "String", "d", "decimal( 10 , 2 )", "e", "TIMESTAMP", "f", "timestamp_ntz", "g", "timestamptz", "h", "float", "i", "array<struct<a:int>>",
		"j", "varchar(20)", "k", "binary", "l", "double  precision", "m", "short", "n", "character varying", "o", "numeric(4)")})
	same(t, "columns", r.columns(), "a integer, b bigint, c text, d numeric(10,2), e timestamp without time zone, f timestamp without time zone, g timestamp with time zone, "+
		"h double precision, i jsonb, j character varying(20), k bytea, l double precision, m smallint, n character varying, o numeric(4,0)")
}

func TestTheSourceKeepsNothing(t *testing.T) {
	ctx := context.Background()
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl", Columns: idColumn})
	s := r.source()
	st, err := s.State(ctx)
	if err != nil || !st.Keepless || st.System != "files" || st.Database != r.root || !st.Head.IsZero() {
		t.Errorf("%+v, %v", st, err)
	}
	snap, err := s.Begin(ctx)
	if err != nil || !snap.Position().IsZero() || snap.Clock().IsZero() {
		t.Error(snap, err)
	}
	rels, _ := s.Relations(ctx)
	if _, err := snap.Copy(ctx, source.CopyRequest{Table: rels[0].Table}, nil); err == nil {
		t.Error("a feed was copied")
	}
	again, _ := r.source().Relations(ctx)
	if rels[0].Table.ID == 0 || rels[0].Table.ID != again[0].Table.ID {
		t.Error("the relation's number is not stable")
	}
}

func TestCheckNamesWhatStopsThePipeline(t *testing.T) {
	r := newRig(t,
		files.Relation{Name: "none", Path: "none/*.json", Format: "jsonl", Columns: idColumn},
		files.Relation{Name: "bad", Path: "bad/*", Format: "jsonl"},
		files.Relation{Name: "kinds", Path: "kinds/*", Format: "jsonl", Columns: idColumn},
		files.Relation{Name: "pq", Path: "pq/*", Format: "parquet", Columns: idColumn},
		files.Relation{Name: "good", Path: "good/*", Format: "jsonl"},
		files.Relation{Name: "other", Path: "bad/*", Format: "jsonl"})
	r.write("bad/a", `{"id":`)
	r.write("kinds/a.zst", "x")
	r.write("kinds/b", "\x1f\x8b")
	r.write("kinds/c\xff", "{}")
	r.write("pq/a", "x")
	r.write("good/a", `{"id":1}`)
	s := r.source()
	var followed []source.Followed
	for _, name := range []string{"none", "bad", "kinds", "pq", "good"} {
		followed = append(followed, source.Followed{Table: &change.Table{Name: change.Name{Table: name}}})
	}
	findings, err := s.Check(context.Background(), followed)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		kind := "note: "
		if f.Blocks {
			kind = "blocks: "
		}
		if f.Remedy == "" {
			t.Errorf("no remedy: %s", f.What)
		}
		got = append(got, kind+f.What)
	}
	want := []string{
		"note: relation none: none/*.json matches no file below " + r.root,
		"blocks: relation bad, file a: line 1, byte 6: the last line ends in the middle of its object: the file is cut off, or still being written",
		"blocks: relation kinds, file a.zst: files ending in .zst cannot be read",
		"blocks: relation kinds, file b: the file is compressed by gzip, but its name does not end in .gz",
		`blocks: relation kinds: the name of file "c\xff" is not UTF-8`,
		"blocks: relation pq, file a: the file does not begin as Parquet does (PAR1)",
	}
	same(t, "findings", "\n"+strings.Join(got, "\n"), "\n"+strings.Join(want, "\n"))
}

func TestUnreadableFilesAndFoldersAreNamed(t *testing.T) {
	if os.Getuid() == 0 {
		// Rights do not bind this user; a folder that is none is as unreadable.
		r := newRig(t, files.Relation{Name: "r", Path: "in/*/x*", Format: "jsonl", Columns: idColumn})
		r.write("in/a/x", "{}")
		os.Symlink("loop", filepath.Join(r.root, "in/loop"))
		refused(t, r.drain(source.FollowOptions{}).err, "relation r: look at folder "+filepath.Join(r.root, "in/loop"))
		return
	}
	r := newRig(t, files.Relation{Name: "r", Path: "in/*", Format: "jsonl", Columns: idColumn})
	r.write("in/a", "{}")
	full := filepath.Join(r.root, "in/a")
	os.Chmod(full, 0)
	refused(t, r.drain(source.FollowOptions{}).err, "relation r, file a: open file "+full, "chmod")
	findings, err := r.source().Check(context.Background(), []source.Followed{{Table: &change.Table{Name: change.Name{Table: "r"}}}})
	if err != nil || len(findings) != 1 || !findings[0].Blocks || !strings.Contains(findings[0].What, full) {
		t.Error(findings, err)
	}
	os.Chmod(full, 0o644)
	os.Chmod(filepath.Dir(full), 0)
	defer os.Chmod(filepath.Dir(full), 0o755)
	refused(t, r.drain(source.FollowOptions{}).err, "relation r: list folder "+filepath.Dir(full))
}

func TestGlobs(t *testing.T) {
	all := []string{"a.json", "b.json", "x/a.json", "x/y/a.json", "x/y/b.csv", "x/z/.hidden.json", "x/_part/a.json", ".git/a.json", "with [x]/a.json"}
	for pattern, want := range map[string]string{
		"a.json":            "a.json",
		"./*.json":          "a.json b.json",
		"?.json":            "a.json b.json",
		"[!b].json":         "a.json",
		"[^b].json":         "a.json",
		"**/a.json":         "a.json with [x]/a.json x/a.json x/y/a.json",
		"x/**/*.json":       "a.json y/a.json",
		"**/y/**/*":         "x/y/a.json x/y/b.csv",
		"x/y/*":             "a.json b.csv",
		"x/*/*.json":        "y/a.json",
		"x/*/.*.json":       "z/.hidden.json",
		"x/_*/*.json":       "_part/a.json",
		`with \[x\]/*.json`: `with [x]/a.json`,
		"**/**/a.json":      "a.json with [x]/a.json x/a.json x/y/a.json",
		"nowhere/**/*.json": "",
		"x/../b.json":       "b.json",
	} {
		t.Run(pattern, func(t *testing.T) {
			r := newRig(t, files.Relation{Name: "r", Path: pattern, Format: "jsonl", Columns: idColumn})
			for _, f := range all {
				r.write(f, "")
			}
			res := r.drain(source.FollowOptions{})
			if res.err != nil {
				t.Fatal(res.err)
			}
			same(t, "files", strings.ReplaceAll(res.paths(), "r:", ""), want)
		})
	}
}

func TestLinksAreFollowedButNotByDoubleStars(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "link/*/*.json", Format: "jsonl", Columns: idColumn},
		files.Relation{Name: "deep", Path: "link/**/*.json", Format: "jsonl", Columns: idColumn})
	r.write("data/day/a.json", "{}")
	if err := os.Symlink(filepath.Join(r.root, "data"), filepath.Join(r.root, "link")); err != nil {
		t.Fatal(err)
	}
	os.Symlink("..", filepath.Join(r.root, "data/day/up"))
	os.Symlink("a.json", filepath.Join(r.root, "data/day/b.json"))
	os.Symlink("nowhere", filepath.Join(r.root, "data/day/c.json"))
	res := r.drain(source.FollowOptions{})
	if res.err != nil {
		t.Fatal(res.err)
	}
	same(t, "files", res.paths(), "r:day/a.json r:day/b.json deep:day/a.json deep:day/b.json")
}
