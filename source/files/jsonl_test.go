package files_test

import (
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/source"
	"tailrace/source/files"
)

// one drains a relation with one file of that content.
func one(t *testing.T, rel files.Relation, content string) *result {
	t.Helper()
	rel.Name = "r"
	if rel.Path == "" {
		rel.Path = "in/*"
	}
	r := newRig(t, rel)
	r.write("in/f.x", content)
	return r.drain(source.FollowOptions{})
}

func jsonRelation(cols ...string) files.Relation {
	return files.Relation{Format: "jsonl", Columns: columns(cols...)}
}

func TestJSONLines(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    []string
	}{
		"empty":                             {"", nil},
		"blank lines":                       {"\n  \r\n\t\n", nil},
		"no line feed":                      {`{"id":1,"s":"a"}`, []string{"1|1|a|~"}},
		"CRLF and blank":                    {"{\"id\":1}\r\n\r\n{\"id\":2}\r\n", []string{"1|1|~|~", "3|2|~|~"}},
		"BOM":                               {"\xef\xbb\xbf{\"id\":1}\n", []string{"1|1|~|~"}},
		"blanks":                            {" { \"id\" : 1 , \"s\" : \"a b\" } \n", []string{"1|1|a b|~"}},
		"empty object":                      {"{}\n{ }\n", []string{"1|~|~|~", "2|~|~|~"}},
		"null":                              {`{"id":null,"s":null,"other":null}`, []string{"1|~|~|~"}},
		"empty string":                      {`{"s":""}`, []string{"1|~||~"}},
		"escapes":                           {`{"s":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u65e5"}`, []string{"1|~|\"\\/\b\f\n\r\té😀日|~"}},
		"utf-8":                             {`{"s":"日本語 and more than eight bytes"}`, []string{"1|~|日本語 and more than eight bytes|~"}},
		"escaped name":                      {`{"\u0069d":5}`, []string{"1|5|~|~"}},
		"last counts":                       {`{"id":1,"id":2,"s":"a","\u0073":"b"}`, []string{"1|2|b|~"}},
		"last of the escaped and the plain": {`{"\u0073":"a","s":"b"}`, []string{"1|~|b|~"}},
		"a null may be last":                {`{"id":1,"id":null}`, []string{"1|~|~|~"}},
		"scalars as text":                   {"{\"s\":1.50}\n{\"s\":true}\n{\"s\":{\"a\": [1, \"b c\"]}}", []string{"1|~|1.50|~", "2|~|true|~", `3|~|{"a":[1,"b c"]}|~`}},
		"other order":                       {`{"s":"x","id":9}`, []string{"1|9|x|~"}},

		"unknown":        {`{"id":1,"x":{"a": 1},"y":"q\n"}`, []string{`1|1|~|{"x":{"a":1},"y":"q\n","_file_path":"f.x"}`}},
		"unknown, twice": {`{"x":1,"x":2}`, []string{`1|~|~|{"x":2,"_file_path":"f.x"}`}},
		"no integer": {"{\"id\":\"abc\"}\n{\"id\":1.5}\n{\"id\":9223372036854775808}\n{\"id\":true}\n{\"id\":[1]}", []string{
			`1|~|~|{"id":"abc","_file_path":"f.x"}`, `2|~|~|{"id":1.5,"_file_path":"f.x"}`, `3|~|~|{"id":9223372036854775808,"_file_path":"f.x"}`,
			`4|~|~|{"id":true,"_file_path":"f.x"}`, `5|~|~|{"id":[1],"_file_path":"f.x"}`}},
		"a number in quotes": {`{"id":"9007199254740993"}`, []string{"1|9007199254740993|~|~"}},

		"other case":               {`{"ID":1,"S":"a"}`, []string{"1|1|a|~"}},
		"exact before other":       {`{"ID":1,"id":2}` + "\n" + `{"id":2,"ID":1}`, []string{`1|2|~|{"ID":1,"_file_path":"f.x"}`, `2|2|~|{"ID":1,"_file_path":"f.x"}`}},
		"first of two others":      {`{"ID":1,"Id":2}`, []string{`1|1|~|{"Id":2,"_file_path":"f.x"}`}},
		"rescued as it is spelled": {`{"ID":"abc"}`, []string{`1|~|~|{"ID":"abc","_file_path":"f.x"}`}},
		"_file_path":               {`{"_file_path":1}`, []string{`1|~|~|{"_file_path":1}`}},
		"_rescued_data":            {`{"_rescued_data":1}`, []string{`1|~|~|{"_rescued_data":1,"_file_path":"f.x"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			res := one(t, jsonRelation("id", "bigint", "s", "text"), c.content)
			if res.err != nil {
				t.Fatal(res.err)
			}
			sameRows(t, res.rows(t), c.want)
			if len(res.txs) != 1 || res.txs[0].File.Rows != int64(len(c.want)) {
				t.Errorf("%d files", len(res.txs))
			}
		})
	}
}

func TestManyUnknownNames(t *testing.T) {
	var s strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&s, `"x%d":%d,`, i%2500, i)
	}
	res := one(t, jsonRelation("id", "int"), "{"+s.String()+`"id":1}`)
	rows := res.rows(t)
	if len(rows) != 1 || !strings.HasPrefix(rows[0], `1|1|{"x0":2500,"x1":2501,`) || strings.Count(rows[0], ",") != 2500 {
		t.Errorf("%.100s, %d members", rows[0], strings.Count(rows[0], ",")+1)
	}
}

func TestBadJSONLinesNameTheirPlace(t *testing.T) {
	const first = `{"id":1,"s":"SECRET"}` + "\n" // 22 bytes
	for name, c := range map[string]struct{ line, says string }{
		"cut off":           {`{"id":2,"s":"SEC`, "line 2, byte 38: the last line ends in the middle of its object: the file is cut off"},
		"cut in an escape":  {`{"s":"\u00`, "line 2, byte 32: the last line ends"},
		"two lines":         {"{\"id\":2,\n\"s\":1}", "line 2, byte 30: the line ends in the middle of its object; an object must be whole in one line"},
		"array":             {`[{"id":2}]`, "line 2, byte 22: an array; each line must be one object"},
		"scalar":            {`"SECRET"`, "line 2, byte 22: not a JSON object"},
		"text":              {`id,s`, "line 2, byte 22: not a JSON object"},
		"two objects":       {`{"id":2}{"id":3}`, "line 2, byte 30: not JSON: something follows the object"},
		"comma at the end":  {`{"id":2,}`, "line 2, byte 30: not JSON: a name in quotes is missing"},
		"no comma":          {`{"id":2 "s":1}`, "line 2, byte 30: not JSON: a comma or } is missing"},
		"no colon":          {`{"id" 2}`, "line 2, byte 28: not JSON: a colon is missing"},
		"leading zero":      {`{"id":02}`, "line 2, byte 29: not JSON: a comma or } is missing"},
		"NaN":               {`{"id":NaN}`, "line 2, byte 28: not JSON: no JSON value"},
		"half a number":     {`{"id":1.}`, "line 2, byte 30: not JSON: a digit is missing"},
		"single quotes":     {`{'id':2}`, "line 2, byte 23: not JSON: a name in quotes is missing"},
		"control character": {"{\"s\":\"a\tb\"}", "line 2, byte 29: not JSON: a control character inside a string"},
		"NUL byte":          {"{\"s\":\"a\x00b\"}", "line 2, byte 29: not JSON: a control character inside a string"},
		"NUL escape":        {`{"s":"a\u0000b"}`, `line 2, byte 29: the character NUL (\u0000), which no database can hold in text`},
		"NUL, nested":       {`{"x":["\u0000"]}`, `line 2, byte 29: the character NUL`},
		"half a pair":       {`{"s":"\ud83d"}`, "line 2, byte 28: one half of a surrogate pair without the other"},
		"low half":          {`{"s":"\ude00"}`, "line 2, byte 28: one half of a surrogate pair"},
		"two high halves":   {`{"s":"\ud83d\ud83d"}`, "line 2, byte 28: one half of a surrogate pair"},
		"not UTF-8":         {"{\"s\":\"a\xffb\"}", "line 2, byte 29: bytes that are not UTF-8"},
		"zeros of a crash":  {strings.Repeat("\x00", 40), "line 2, byte 22: not a JSON object"},
		"nested, unclosed":  {`{"x":[1,{"a":2]}`, "line 2, byte 36: not JSON: a comma or the closing bracket is missing"},
		"too deep":          {`{"x":` + strings.Repeat("[", 10001), "more than 10000 levels of nesting"},
		"UTF-16":            {"", "the file is UTF-16"},
		"gzip":              {"", "the file is compressed by gzip, but its name does not end in .gz"},
		"Parquet":           {"", "the file is Parquet"},
	} {
		t.Run(name, func(t *testing.T) {
			content := first + c.line
			switch name {
			case "UTF-16":
				content = "\xff\xfe{\x00}\x00"
			case "gzip":
				content = "\x1f\x8b\x08\x00"
			case "Parquet":
				content = "PAR1...PAR1"
			}
			res := one(t, jsonRelation("id", "bigint", "s", "text"), content)
			if len(res.txs) > 0 {
				t.Error("it was handed on")
			}
			refused(t, res.err, "relation r, file f.x: ", c.says, "nothing of it was kept")
			if strings.Contains(res.err.Error(), "SECRET") {
				t.Error("the error holds a value: ", res.err)
			}
		})
	}
}

func TestARecordBeyondTheLimitIsRefused(t *testing.T) {
	value := strings.Repeat("x", 64<<20)
	res := one(t, jsonRelation("s", "text"), `{"s":"a"}`+"\n"+`{"s":"`+value+`"}`+"\n")
	refused(t, res.err, "line 2, byte 10: the record is longer than 64 MiB")
	res = one(t, jsonRelation("s", "text"), `{"s":"a"}`+"\n"+`{"s":"`+value[100:]+`"}`+"\n")
	if res.err != nil || len(res.txs[0].Changes) != 2 {
		t.Error(res.err)
	}
}

// Records lie across the blocks that a file is read in, at every offset.
func TestRecordsAcrossBlocks(t *testing.T) {
	var content strings.Builder
	var want []string
	for i := 0; content.Len() < 1<<20; i++ {
		s := strings.Repeat("é", i%300)
		fmt.Fprintf(&content, "{\"id\":%d,\"s\":\"%s\"}\n", i, s)
		want = append(want, fmt.Sprintf("%d|%d|%s|~", i+1, i, s))
	}
	sameRows(t, one(t, jsonRelation("id", "int", "s", "text"), content.String()).rows(t), want)
	csv := strings.NewReplacer(`{"id":`, "", `,"s":`, ",", "}", "").Replace(content.String())
	for i := range want {
		n, rest, _ := strings.Cut(want[i], "|")
		_ = n
		want[i] = fmt.Sprintf("%d|%s", i+2, rest)
	}
	sameRows(t, one(t, files.Relation{Format: "csv", Columns: columns("id", "int", "s", "text")}, "id,s\n"+csv).rows(t), want)
}

func TestCompressedFiles(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl", Columns: idColumn})
	content := idLines(0, 100_000)
	var z strings.Builder
	w := gzip.NewWriter(&z)
	w.Write([]byte(content))
	w.Close()
	r.write("a.json.gz", z.String())
	bzip, err := exec.LookPath("bzip2")
	wantFiles := 1
	if err == nil {
		r.write("b.json", content)
		if err := exec.Command(bzip, filepath.Join(r.root, "b.json")).Run(); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		os.Chtimes(filepath.Join(r.root, "b.json.bz2"), old, old)
		wantFiles = 2
	}
	res := r.drain(source.FollowOptions{})
	if res.err != nil || len(res.txs) != wantFiles {
		t.Fatal(res.err, res.paths())
	}
	for _, tx := range res.txs {
		if len(tx.Changes) != 100_000 {
			t.Errorf("%s: %d rows", tx.Path, len(tx.Changes))
		}
	}
	if res.txs[0].File.Size != int64(z.Len()) {
		t.Errorf("size %d is not the file's", res.txs[0].File.Size)
	}
	for name, c := range map[string]struct{ path, content, says string }{
		"cut":     {"c.json.gz", z.String()[:z.Len()-100], "file c.json.gz: line "},
		"damaged": {"c.json.gz", z.String()[:1000] + "xxxx" + z.String()[1004:], "damaged"},
		"other":   {"c.json.gz", content, "the compressed data (.gz) are damaged, or they are not of that kind"},
		"empty":   {"c.json.gz", "", "end in the middle"},
		"zstd":    {"c.json.zst", "\x28\xb5\x2f\xfd", "files ending in .zst cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl", Columns: idColumn})
			r.write(c.path, c.content)
			res := r.drain(source.FollowOptions{})
			if len(res.txs) > 0 {
				t.Error("it was handed on")
			}
			refused(t, res.err, c.says)
		})
	}
}
