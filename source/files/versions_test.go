package files_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
	"tailrace/source/files"
)

const numbered = "snapshots/snapshot_(?P<version>[0-9]+).csv"

// snapshots is a rig with a set on its folder.
type snapshots struct {
	*rig
	set files.SnapshotSet
}

func newSnapshots(t *testing.T, path, format string) *snapshots {
	t.Helper()
	r := newRig(t)
	return &snapshots{rig: r, set: files.SnapshotSet{Root: r.root, Path: path, Format: format}}
}

func (s *snapshots) list() []source.VersionFile {
	s.t.Helper()
	list, err := s.set.List(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// read describes and reads the only file, and returns its columns and its rows as
// `value|value`, NULL as a tilde.
func (s *snapshots) read() (columns string, rows []string, err error) {
	s.t.Helper()
	list := s.list()
	if len(list) != 1 {
		s.t.Fatalf("files %+v", list)
	}
	table, err := s.set.Describe(context.Background(), list[0])
	if err != nil {
		return "", nil, err
	}
	var names []string
	for _, c := range table.Columns {
		names = append(names, c.Name+" "+c.Type.Name)
	}
	rows, err = s.readAs(list[0], table)
	return strings.Join(names, ", "), rows, err
}

func (s *snapshots) readAs(f source.VersionFile, table *change.Table) (rows []string, err error) {
	s.t.Helper()
	err = s.set.Read(context.Background(), f, table, func(row change.Row) error {
		values, err := row.Values(nil, len(table.Columns))
		if err != nil {
			return err
		}
		var list []string
		for _, v := range values {
			if v.State == change.Null {
				list = append(list, "~")
			} else {
				list = append(list, string(v.Data))
			}
		}
		rows = append(rows, strings.Join(list, "|"))
		return nil
	})
	return rows, err
}

func TestSnapshotPathsTellTheVersion(t *testing.T) {
	for _, c := range []struct{ path, files, want string }{
		{numbered, "snapshots/snapshot_1.csv snapshots/snapshot_10.csv snapshots/snapshot_x.csv snapshots/snapshot_2.csv.gz snapshots/old/snapshot_3.csv snapshots/.snapshot_4.csv snapshot_5.csv",
			"snapshot_1.csv=1 snapshot_10.csv=10"},
		{"in/(?P<version>\\d{4}-\\d{2}-\\d{2})/*.json*", "in/2024-01-31/part.json in/2024-02-01/part.jsonl in/2024-1-1/part.json in/x/2024-01-31/part.json in/2024-03-01/_part.json",
			"2024-01-31/part.json=2024-01-31 2024-02-01/part.jsonl=2024-02-01"},
		{"*/t*(?<version>[0-9]+)?", "a/t12x b/t3 c/table7y d/t9", "a/t12x=12 c/table7y=7"},
		{"s*_(?P<version>[0-9]+)*.csv", "s_a_12.csv s_1_2.csv", "s_1_2.csv=1 s_a_12.csv=12"},
		{"x.(?P<version>(a|b)+[)]?)", "x.abba xxa x.ab) x.c", "x.ab)=ab) x.abba=abba"},
		{"[!_]\\(1\\)[a\\-\\d](?P<version>.+)", "x(1)-v1 x(1)dv2 x(1)5v3 _(1)-v4 x(1)bv5", "x(1)-v1=v1 x(1)dv2=v2"},
		{"é+$(?P<version>.)", "é+$ü éé$x", "é+$ü=ü"},
		{"fixed/(?P<version>v)", "fixed/v fixed/w", "v=v"},
		{numbered, "", ""},
	} {
		s := newSnapshots(t, c.path, files.CSV)
		for _, path := range strings.Fields(c.files) {
			s.write(path, "id\n1\n")
		}
		if err := s.set.Validate(); err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		var got []string
		for _, f := range s.list() {
			got = append(got, f.Path+"="+f.Version)
			if f.Size != 5 || f.Modified.IsZero() {
				t.Errorf("%+v", f)
			}
			table, err := s.set.Describe(context.Background(), f)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := s.readAs(f, table)
			if err != nil || fmt.Sprint(rows) != "[1]" {
				t.Error(f, rows, err)
			}
		}
		same(t, c.path, strings.Join(got, " "), c.want)
	}
}

func TestTwoFilesOfOneVersionAreRefused(t *testing.T) {
	s := newSnapshots(t, "*/v(?P<version>[0-9]+).csv", files.CSV)
	s.write("a/v1.csv", "id\n")
	s.write("b/v1.csv", "id\n")
	_, err := s.set.List(context.Background())
	if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "files a/v1.csv and b/v1.csv are of one version, 1") {
		t.Error(err)
	}
}

func TestBadSnapshotSetsNameTheirKey(t *testing.T) {
	yes := true
	for says, spoil := range map[string]func(*files.SnapshotSet){
		"path: \"\" has no group (?P<version>...)":           func(s *files.SnapshotSet) { s.Path = "" },
		"path: \"a/*.csv\" has no group":                     func(s *files.SnapshotSet) { s.Path = "a/*.csv" },
		"path: \"a_(?P<v>[0-9]+)\": outside of the group":    func(s *files.SnapshotSet) { s.Path = "a_(?P<v>[0-9]+)" },
		"path: \"(?P<version>a)(?P<version>b)\" has two":     func(s *files.SnapshotSet) { s.Path = "(?P<version>a)(?P<version>b)" },
		"path: \"(?P<version>a\": the group is not closed":   func(s *files.SnapshotSet) { s.Path = "(?P<version>a" },
		"path: \"(?P<version>[)]\": the group is not closed": func(s *files.SnapshotSet) { s.Path = "(?P<version>[)]" },
		"path: \"(?P<version>a**)\" is no regular":           func(s *files.SnapshotSet) { s.Path = "(?P<version>a**)" },
		"path: \"(?P<version>[0-9]*)\" matches the empty":    func(s *files.SnapshotSet) { s.Path = "(?P<version>[0-9]*)" },
		"path: \"(?P<version>a/b)\": the version lies":       func(s *files.SnapshotSet) { s.Path = "(?P<version>a/b)" },
		"path: \"**/(?P<version>a)\": a path of":             func(s *files.SnapshotSet) { s.Path = "**/(?P<version>a)" },
		"path: \"x(?P<version>a)|y\": outside":               func(s *files.SnapshotSet) { s.Path = "x(?P<version>a)|y" },
		"path: \"^(?P<version>a)\": outside":                 func(s *files.SnapshotSet) { s.Path = "^(?P<version>a)" },
		"path: \"(?P<version>a).csv$\": outside":             func(s *files.SnapshotSet) { s.Path = "(?P<version>a).csv$" },
		"path: \"(?P<version>a)/\" names a folder":           func(s *files.SnapshotSet) { s.Path = "(?P<version>a)/" },
		"path: \"(?P<version>a)/../b\" goes up":              func(s *files.SnapshotSet) { s.Path = "(?P<version>a)/../b" },
		"path: \"[(?P<version>a)\" has no group":             func(s *files.SnapshotSet) { s.Path = "[(?P<version>a)" },
		"path: holds a control":                              func(s *files.SnapshotSet) { s.Path = "\x01(?P<version>a)" },
		"format: is missing":                                 func(s *files.SnapshotSet) { s.Format = "" },
		"header: belongs to format csv":                      func(s *files.SnapshotSet) { s.Format, s.Header = files.JSONLines, &yes },
		"delimiter: \"||\" is not one":                       func(s *files.SnapshotSet) { s.Delimiter = "||" },
		"null: \",\" can be":                                 func(s *files.SnapshotSet) { s.Null = "," },
		"columns: column a: type \"number\" is not known":    func(s *files.SnapshotSet) { s.Columns = columns("a", "number") },
		"columns: a snapshot has no _rescued_data":           func(s *files.SnapshotSet) { s.Columns = columns("_rescued_data", "jsonb") },
	} {
		set := files.SnapshotSet{Root: t.TempDir(), Path: numbered, Format: files.CSV}
		spoil(&set)
		_, listing := set.List(context.Background())
		for _, err := range []error{set.Validate(), listing} {
			if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), says) {
				t.Errorf("want %q, got %v", says, err)
			}
		}
	}
}

func TestSnapshotsOfEachFormatAreRead(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, "id,name\n1,a\n")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	no := false
	for name, c := range map[string]struct {
		format, content, columns string
		rows                     []string
		change                   func(*files.SnapshotSet)
	}{
		"csv":               {format: files.CSV, content: "id,name,day\n1,\"a,b\",2024-02-29\n2,,2024-03-01\n", columns: "id bigint, name text, day date", rows: []string{"1|a,b|2024-02-29", "2|~|2024-03-01"}},
		"other csv":         {format: files.CSV, content: "1;-\n2;x", columns: "_c0 bigint, _c1 text", rows: []string{"1|~", "2|x"}, change: func(s *files.SnapshotSet) { s.Header, s.Delimiter, s.Null = &no, ";", "-" }},
		"declared":          {format: files.CSV, content: "name,id\na,01\n", columns: "id integer, name character varying(3), more date", rows: []string{"1|a|~"}, change: func(s *files.SnapshotSet) { s.Columns = columns("id", "int", "name", "varchar(3)", "more", "date") }},
		"jsonl":             {format: files.JSONLines, content: "{\"id\": 1, \"o\": {\"a\": [1, 2]}}\n{\"id\": 2.5}", columns: "id double precision, o jsonb", rows: []string{`1|{"a":[1,2]}`, "2.5|~"}},
		"header alone":      {format: files.CSV, content: "id\n", columns: "id integer", change: func(s *files.SnapshotSet) { s.Columns = columns("id", "int") }},
		"no line":           {format: files.JSONLines, content: "", columns: "id integer", change: func(s *files.SnapshotSet) { s.Columns = columns("id", "int") }},
		"compressed":        {format: files.CSV, content: packed.String(), columns: "id bigint, name text", rows: []string{"1|a"}, change: func(s *files.SnapshotSet) { s.Path = "f(?P<version>1).gz" }},
		"NULL of no column": {format: files.JSONLines, content: `{"id": 1, "x": null}`, columns: "id integer", rows: []string{"1"}, change: func(s *files.SnapshotSet) { s.Columns = columns("id", "int") }},
	} {
		s := newSnapshots(t, "f(?P<version>1)", c.format)
		if c.change != nil {
			c.change(&s.set)
		}
		s.write(strings.NewReplacer("(?P<version>1)", "1").Replace(s.set.Path), c.content)
		got, rows, err := s.read()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		same(t, name, got, c.columns)
		same(t, name, rows, c.rows)
	}
}

func TestParquetSnapshotsAreRead(t *testing.T) {
	type item struct {
		ID   int64   `parquet:"id"`
		Name *string `parquet:"name,optional"`
	}
	a := "a"
	s := newSnapshots(t, "f(?P<version>1)", files.Parquet)
	s.write("f1", parquetFile(t, []item{{1, &a}, {2, nil}}))
	columns, rows, err := s.read()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "columns", columns, "id bigint, name text")
	same(t, "rows", rows, []string{"1|a", "2|~"})
}

func TestRowsComeInTheColumnsOfAnotherVersion(t *testing.T) {
	s := newSnapshots(t, numbered, files.CSV)
	s.write("snapshots/snapshot_1.csv", "id,name\n1,a\n")
	s.write("snapshots/snapshot_2.csv", "NAME,id\nb,2\n")
	s.write("snapshots/snapshot_3.csv", "id\n3\n")
	s.write("snapshots/snapshot_4.csv", "id,name,extra\n4,d,\n5,e,SECRET\n")
	list := s.list()
	table, err := s.set.Describe(context.Background(), list[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"1|a", "2|b", "3|~", "4|d"} {
		rows, err := s.readAs(list[i], table)
		same(t, list[i].Path, strings.Join(rows, " "), want)
		if i < 3 && err != nil || i == 3 && (fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), `file snapshot_4.csv: line 3: "extra" is none of the columns`) || strings.Contains(err.Error(), "SECRET")) {
			t.Error(err)
		}
	}
}

func TestBadSnapshotsAreRefusedWithTheirPlace(t *testing.T) {
	declared := columns("id", "int", "name", "varchar(9)")
	for name, c := range map[string]struct{ format, content, says string }{
		"no value of its type":    {files.CSV, "id,name\n1,a\nSECRET,b\n", "line 3: column id holds what is no integer"},
		"too long":                {files.CSV, "id,name\n1,SECRET-SECRET\n", "line 2: column name holds what is no character varying(9)"},
		"of another case":         {files.CSV, "ID,name\nSECRET,a\n", "line 2: column id holds what is no integer"},
		"a column too many":       {files.CSV, "id,name,\"x\"\"y\"\n1,a,SECRET\n", `line 2: "x\"y" is none of the columns`},
		"a field too many":        {files.CSV, "id,name\n1,a,SECRET\n", `line 2: "_c2" is none of the columns`},
		"json":                    {files.JSONLines, "{\"id\": 1}\n\n{\"id\": \"SECRET\"}\n", "line 3: column id holds what is no integer"},
		"json, a name too many":   {files.JSONLines, `{"id": 1, "x": ["SECRET"]}`, `line 1: "x" is none of the columns`},
		"no header":               {files.CSV, "", "the file has no header"},
		"a header of blank lines": {files.CSV, "\n\n", "the file has no header"},
		"cut off in a quote":      {files.CSV, "id,name\n1,\"SECR", "line 2, byte 10: a quoted field has no closing quote: the file is cut off"},
		"cut off in a record":     {files.CSV, "id,name\n1,a\n2", "the last line has no line feed and 1 of 2 fields: the file is cut off"},
		"cut off in an object":    {files.JSONLines, "{\"id\": 1}\n{\"id\": ", "line 2, byte 17: the last line ends in the middle of its object: the file is cut off"},
		"no JSON":                 {files.JSONLines, "SECRET", "line 1, byte 0: not a JSON object"},
		"not UTF-8":               {files.CSV, "id,name\n1,\xff\n", "line 2"},
		"no Parquet":              {files.Parquet, "SECRET-SECRET", "the file does not begin as Parquet does"},
	} {
		s := newSnapshots(t, "f(?P<version>1)", c.format)
		s.set.Columns = declared
		s.write("f1", c.content)
		_, _, err := s.read()
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "file f1: ") || !strings.Contains(err.Error(), c.says) || fault.RemedyOf(err) == "" || strings.Contains(err.Error(), "SECR") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, content := range map[string]string{"nothing": "", "a header alone": "id,name\n"} {
		s := newSnapshots(t, "f(?P<version>1)", files.CSV)
		s.write("f1", content)
		if _, _, err := s.read(); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "file f1 has no rows to infer the columns from") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestASnapshotThatChangesWhileItIsReadIsRefused(t *testing.T) {
	const content = "id\n1\n2\n"
	for name, spoil := range map[string]func(path string) error{
		"longer":    func(path string) error { return os.WriteFile(path, []byte(content+"3\n"), 0o644) },
		"rewritten": func(path string) error { return os.WriteFile(path, []byte("id\n8\n9\n"), 0o644) },
		"gone":      os.Remove,
	} {
		s := newSnapshots(t, "f(?P<version>1)", files.CSV)
		s.write("f1", content)
		f := s.list()[0]
		table, err := s.set.Describe(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		first := true
		read := func() error {
			return s.set.Read(context.Background(), f, table, func(change.Row) error {
				if first {
					first = false
					return spoil(filepath.Join(s.root, "f1"))
				}
				return nil
			})
		}
		if err := read(); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "file f1: the file changed while it was read") {
			t.Errorf("%s: %v", name, err)
		}
		if err := read(); fault.KindOf(err) != fault.Operator { // as it was listed, it is not there any more
			t.Errorf("%s, read again: %v", name, err)
		}
	}
	s := newSnapshots(t, "f(?P<version>1)", files.CSV)
	s.write("f1", content)
	f := s.list()[0]
	s.writeAt("f1", content, time.Now())
	if _, err := s.readAs(f, &change.Table{}); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "when it was listed") {
		t.Error(err)
	}
}

func TestTheCallersErrorEndsASnapshot(t *testing.T) {
	s := newSnapshots(t, "f(?P<version>1)", files.CSV)
	s.write("f1", "id\n1\n2\n")
	f := s.list()[0]
	table, err := s.set.Describe(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	stop, calls := errors.New("stop"), 0
	err = s.set.Read(context.Background(), f, table, func(change.Row) error { calls++; return stop })
	if err != stop || calls != 1 {
		t.Error(err, calls)
	}
}

func TestRowsOfASnapshotCostNoAllocation(t *testing.T) {
	s := newSnapshots(t, "f(?P<version>1)", files.CSV)
	s.write("f1", "id,name\n"+strings.Repeat("1,abcdefghij\n", 100_000))
	f := s.list()[0]
	table, err := s.set.Describe(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	allocs := testing.AllocsPerRun(1, func() {
		if err := s.set.Read(context.Background(), f, table, func(change.Row) error { rows++; return nil }); err != nil {
			t.Error(err)
		}
	})
	if rows != 200_000 || allocs > 1000 {
		t.Errorf("%d rows, %v allocations", rows, allocs)
	}
}
