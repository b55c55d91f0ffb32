package files_test

import (
	"strings"
	"testing"

	"tailrace/source"
	"tailrace/source/files"
)

func csvRelation(change func(*files.Relation)) files.Relation {
	rel := files.Relation{Format: "csv", Columns: columns("id", "bigint", "s", "text")}
	if change != nil {
		change(&rel)
	}
	return rel
}

func TestCSV(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		content string
		want    []string
		change  func(*files.Relation)
	}{
		"empty":              {content: ""},
		"header alone":       {content: "id,s"},
		"plain":              {content: "id,s\n1,a\n2,b", want: []string{"2|1|a|~", "3|2|b|~"}},
		"CRLF, BOM":          {content: "\xef\xbb\xbfid,s\r\n1,a\r\n", want: []string{"2|1|a|~"}},
		"blank lines":        {content: "\n\nid,s\n\n1,a\r\n\r\n2,b\n\n", want: []string{"5|1|a|~", "7|2|b|~"}},
		"null and empty":     {content: "id,s\n,\n1,\"\"\n", want: []string{"2|~|~|~", "3|1||~"}},
		"quoted":             {content: "id,s\n\"1\",\"a,\"\"b\"\"\r\nc\"\n2,d\n", want: []string{"2|1|a,\"b\"\r\nc|~", "4|2|d|~"}},
		"quoted at the end":  {content: "id,s\n1,\"a\"", want: []string{"2|1|a|~"}},
		"blanks stay":        {content: "id,s\n1, a \n", want: []string{"2|1| a |~"}},
		"other order":        {content: "s,id\na,1\n", want: []string{"2|1|a|~"}},
		"column missing":     {content: "id\n1\n", want: []string{"2|1|~|~"}},
		"other case":         {content: "ID,S\n1,a\n", want: []string{"2|1|a|~"}},
		"exact before other": {content: "ID,id,s\n7,1,a\n", want: []string{`2|1|a|{"ID":"7","_file_path":"f.x"}`}},
		"unknown":            {content: "id,x,s\n1,\"q\"\"\n\",a\n2,,b\n3,\"\",c\n", want: []string{`2|1|a|{"x":"q\"\n","_file_path":"f.x"}`, "4|2|b|~", `5|3|c|{"x":"","_file_path":"f.x"}`}},
		"no integer":         {content: "id,s\nabc,x\n 1,y\n\"\",z\n", want: []string{`2|~|x|{"id":"abc","_file_path":"f.x"}`, `3|~|y|{"id":" 1","_file_path":"f.x"}`, `4|~|z|{"id":"","_file_path":"f.x"}`}},
		"fewer fields":       {content: "id,s\n1\n2,b\n", want: []string{"2|1|~|~", "3|2|b|~"}},
		"more fields":        {content: "id,s\n1,a,b,,\"\"\n2,c,\n", want: []string{`2|1|a|{"_c2":"b","_c4":"","_file_path":"f.x"}`, "3|2|c|~"}},
		"no header":          {content: "1,a\n2,b,c\n3\n", want: []string{"1|1|a|~", `2|2|b|{"_c2":"c","_file_path":"f.x"}`, "3|3|~|~"}, change: func(r *files.Relation) { r.Header = &no }},
		"delimiter":          {content: "id;s\n1;\"a;b\"\n", want: []string{"2|1|a;b|~"}, change: func(r *files.Relation) { r.Delimiter = ";" }},
		"tabs":               {content: "id\ts\n1\ta,b\n", want: []string{"2|1|a,b|~"}, change: func(r *files.Relation) { r.Delimiter = "\t" }},
		"null by a word":     {content: "id,s\nNULL,NULL\n1,\"NULL\"\n2,\n", want: []string{"2|~|~|~", "3|1|NULL|~", "4|2||~"}, change: func(r *files.Relation) { r.Null = "NULL" }},
	} {
		t.Run(name, func(t *testing.T) {
			res := one(t, csvRelation(c.change), c.content)
			if res.err != nil {
				t.Fatal(res.err)
			}
			sameRows(t, res.rows(t), c.want)
		})
	}
}

func TestBadCSVNamesItsPlace(t *testing.T) {
	for name, c := range map[string]struct{ content, says string }{
		"unclosed quote":                 {"id,s\n1,\"SECRET\n2,b\n", "line 2, byte 7: a quoted field has no closing quote"},
		"quote inside":                   {"id,s\n1,SEC\"RET\n", "line 2, byte 10: a quote inside a field that does not begin with one"},
		"behind a quote":                 {"id,s\n1,\"SECRET\" x\n", "line 2, byte 15: something follows the closing quote"},
		"lone CR":                        {"id,s\r1,SECRET\r", "line 1, byte 4: a carriage return without a line feed"},
		"CR at the end":                  {"id,s\n1,SECRET\r", "line 2, byte 13: a carriage return without a line feed"},
		"not UTF-8":                      {"id,s\n1,\"\n\"\n2,SECRET\xff\n", "line 4, byte 19: bytes that are not UTF-8"},
		"not UTF-8, in a field of lines": {"id,s\n1,\"\n\xff\"\n", "line 3, byte 9: bytes that are not UTF-8"},
		"NUL":                            {"id,s\n1,SECRET\x00\n", "line 2, byte 13: the character NUL"},
		"name twice":                     {"id,s,id\n1,SECRET,2\n", "line 1: the header's fields 1 and 3 have one name"},
		"name missing":                   {"id,,s\n1,SECRET,2\n", "line 1: the header's field 2 has no name"},
		"cut off":                        {"id,s\n1,a\n2", "line 3, byte 10: the last line has no line feed and 1 of 2 fields: the file is cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			res := one(t, csvRelation(nil), c.content)
			if len(res.txs) > 0 {
				t.Error("it was handed on")
			}
			refused(t, res.err, "relation r, file f.x: ", c.says)
			if strings.Contains(res.err.Error(), "SECRET") {
				t.Error("the error holds a value: ", res.err)
			}
		})
	}
}

// A quote that is never closed makes one record of all the rest: it is an error of
// bounded memory and time, at the line where the quote is.
func TestAnUnclosedQuoteInALargeFile(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*.csv", Format: "csv", Columns: columns("id", "bigint", "s", "text")})
	r.write("a.csv", "id,s\n1,\"a\n"+strings.Repeat("2,bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n", 1<<20))
	refused(t, r.drain(source.FollowOptions{}).err, "file a.csv: line 2, byte 7: a quoted field has no closing quote")
}
