package files_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/source"
	"tailrace/source/files"
)

func TestColumnsAreInferred(t *testing.T) {
	no := false
	for name, c := range map[string]struct {
		format string
		files  []string // f0, f1, ...
		want   string
		change func(*files.Relation)
	}{
		"json scalars": {"jsonl", []string{`{"i":1,"f":1.5,"b":true,"s":"x","n":null,"o":{"a":1},"a":[1]}`},
			"i bigint, f double precision, b boolean, s text, n text, o jsonb, a jsonb", nil},
		"json, numbers widen": {"jsonl", []string{`{"a":1,"b":1,"c":1,"d":1.5,"e":1e3,"f":1}` + "\n" + `{"a":1.5,"b":9223372036854775808,"c":"x","d":9223372036854775808,"e":1,"f":3.141592653589793238}`},
			"a double precision, b numeric, c text, d numeric, e double precision, f numeric", nil},
		"json, mixtures are text": {"jsonl", []string{`{"a":1,"b":true,"c":{},"d":"x"}` + "\n" + `{"a":false,"b":"t","c":1,"d":null}`}, "a text, b text, c text, d text", nil},
		"json strings stay text":  {"jsonl", []string{`{"d":"2024-01-01","t":"2024-01-01T00:00:00Z","n":"12"}`}, "d text, t text, n text", nil},
		"order of appearance":     {"jsonl", []string{`{"b":1}`, `{"a":1,"b":2.5}`}, "b double precision, a bigint", nil},
		"one spelling":            {"jsonl", []string{`{"Id":1,"ID":2,"id":3}`}, "Id bigint", nil},
		"reserved and empty":      {"jsonl", []string{`{"a":1,"_rescued_data":2,"":3}`}, "a bigint", nil},
		"no file":                 {"jsonl", nil, "its columns are not declared, and in/f* matches no file with rows to infer them from", nil},
		"no rows":                 {"jsonl", []string{"\n", ""}, "its columns are not declared, and in/f* matches no file with rows to infer them from", nil},
		"csv": {"csv", []string{"i,f,b,d,w,t,s,q,e,z\n1,1.5,true,2024-02-29,2024-01-01 10:00:00,2024-01-01T10:00:00.5+02:00,x,\"2\",,007\n-2,1e3,FALSE,2023-12-31,2024-01-01T10:00,2024-01-01T10:00:00Z,y,3,,1\n"},
			"i bigint, f double precision, b boolean, d date, w timestamp without time zone, t timestamp with time zone, s text, q bigint, e text, z text", nil},
		"csv mixtures": {"csv", []string{"a,b,c,d,e\n2024-01-01,2024-01-01,1,2024-01-01 00:00:00,\"\"\n2024-01-01 00:00:00,2024-02-30,2024-01-01,2024-01-01T00:00:00Z,1\n"},
			"a timestamp without time zone, b text, c text, d text, e text", nil},
		"csv, nanoseconds do not fit": {"csv", []string{"a,b\n2024-01-01T00:00:00.123456789Z,2024-01-01T00:00:00.123456000Z\n"}, "a text, b timestamp with time zone", nil},
		"csv, header alone first":     {"csv", []string{"a,b\n", "b,a\n1,x\n"}, "a text, b bigint", nil},
		"csv without header":          {"csv", []string{"1,x\n2,y,z\n"}, "_c0 bigint, _c1 text, _c2 text", func(r *files.Relation) { r.Header = &no }},
	} {
		t.Run(name, func(t *testing.T) {
			rel := files.Relation{Name: "r", Path: "in/f*", Format: c.format}
			if c.change != nil {
				c.change(&rel)
			}
			r := newRig(t, rel)
			for i, content := range c.files {
				r.write(fmt.Sprintf("in/f%d", i), content)
			}
			same(t, "columns", r.columns(), c.want)
		})
	}
}

func TestTheSampleEnds(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl"})
	r.write("a", strings.Repeat("{\"a\":1}\n", 999))
	r.write("b", "{\"a\":1}\n{\"a\":1.5}\n")
	r.write("c", `{"b":1}`)
	same(t, "1000 rows", r.columns(), "a bigint")

	r = newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl"})
	r.write("a", strings.Repeat(`{"a":"`+strings.Repeat("x", 1<<20)+"\"}\n", 2))
	r.write("b", `{"b":1}`)
	same(t, "a megabyte", r.columns(), "a text")

	r = newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl"})
	for i := range 60 {
		r.write(fmt.Sprintf("f%02d", i), fmt.Sprintf(`{"c%d":1}`, i))
	}
	if got := strings.Count(r.columns(), ","); got != 49 {
		t.Errorf("50 files, got columns of %d", got+1)
	}
}

func TestTheInferredLayoutIsOnePointer(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl"})
	r.write("b", `{"a":1}`)
	s := r.source()
	first, err := s.Relations(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r.write("c", `{"a":2}`)
	second, _ := s.Relations(context.Background())
	if first[0].Table != second[0].Table || first[0].Table.ID == 0 || !first[0].Usable || first[0].Table.Name.String() != "r" {
		t.Errorf("%+v, %+v", first[0], second[0])
	}
	res := follow(t, s, changePosition, source.FollowOptions{Once: true}, func(res *result) bool { return len(res.quiet) > 0 })
	if res.txs[0].Changes[0].Table != first[0].Table {
		t.Error("rows have another layout than Relations said")
	}
	r.write("a", `{"x":1}`)
	res = follow(t, s, changePosition, source.FollowOptions{Once: true}, func(res *result) bool { return len(res.quiet) > 0 })
	if res.txs[0].Changes[0].Table != first[0].Table {
		t.Error("rows have the layout of a file that came after Relations")
	}
	sameRows(t, res.rows(t), []string{`1|~|{"x":1,"_file_path":"a"}`, "1|1|~", "1|2|~"})
}

// A malformed file is an error before anything is made by a layout that it spoiled;
// one that is being written counts as far as it goes.
func TestInferenceFromBadFiles(t *testing.T) {
	r := newRig(t, files.Relation{Name: "r", Path: "*", Format: "jsonl"})
	r.write("a", "{\"a\":1}\n{\"b\":")
	_, err := r.source().Relations(context.Background())
	refused(t, err, "infer columns: relation r, file a: line 2, byte 13: ")
	r.cfg.Poll = time.Hour
	r.writeAt("a", "{\"a\":1}\n{\"b\":", time.Now())
	same(t, "columns", r.columns(), "a bigint")
}
