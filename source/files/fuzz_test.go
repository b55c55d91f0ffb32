package files

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzJSONScanner: what the scanner accepts is exactly what encoding/json takes for an
// object, less what no database can hold; and the values it finds are the same.
func FuzzJSONScanner(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` {"a":-0.5e+10,"b":"\ud83d\ude00\n"} `, `{"a":[{"b":null},true,false]}`, `[1]`, `{"a":01}`, `{"a":1,}`, `{"a"}`, `{"\u0061":"x","a":2}`,
		`{"a":"\u0000"}`, `{"a":"\ud800"}`, "{\"a\":\"\xff\"}", `{"A":1,"a":2}`, `{"a":tru}`, `{"a":1}}`, `{"a":1 2}`, `{"b":{"c":[ 1 , 2 ]}}`} {
		f.Add([]byte(s))
	}
	rel := &relation{Relation: Relation{Name: "r"}, id: 1}
	rel.Columns = []DeclaredColumn{{"a", "text"}, {"b", "jsonb"}}
	if err := rel.declare(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if bytes.IndexByte(b, '\n') >= 0 {
			return // a line has none
		}
		d := newJSONDecoder(&input{window: newWindow(bytes.NewReader(b), int64(len(b))), rescue: newRescue("f")}, rel.layout)
		accepted := d.scan.record(b, rel.layout)
		valid := json.Valid(b) && strings.HasPrefix(strings.TrimLeft(string(b), " \t\r\n"), "{")
		switch {
		case accepted && !valid:
			t.Fatalf("accepted, but it is not JSON: %q", b)
		case !accepted && valid && !d.scan.character:
			t.Fatalf("refused at %d (%s), but it is JSON: %q", d.scan.at, d.scan.what, b)
		case !accepted && d.scan.what == flawUTF8 && utf8.Valid(b):
			t.Fatalf("it is UTF-8: %q", b)
		case !accepted && (d.scan.at < 0 || d.scan.at > len(b)):
			t.Fatalf("a flaw at %d of %d", d.scan.at, len(b))
		}
		row, _, err := d.next(&slab{})
		if !accepted {
			if err == nil {
				t.Fatalf("a row of what was refused: %q", b)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		values, err := row.Values(nil, 3)
		if err != nil {
			t.Fatal(err)
		}
		// A string in column a is what encoding/json reads: the last of that very name.
		var object map[string]any
		if err := json.Unmarshal(b, &object); err != nil {
			t.Fatal(err)
		}
		if s, ok := object["a"].(string); ok && s != string(values[0].Data) {
			t.Fatalf("a is %q, want %q: %q", values[0].Data, s, b)
		}
		for _, v := range values[1:] {
			if v.Data != nil && !json.Valid(v.Data) {
				t.Fatalf("no JSON: %q of %q", v.Data, b)
			}
		}
	})
}

// FuzzCSVScanner: any bytes give rows or a flaw, the same in one stretch or byte by
// byte; and fields come back from how they are written.
func FuzzCSVScanner(f *testing.F) {
	for _, s := range []string{"a,b\n1,2\n", "a\r\n\"x\"\"\r\ny\"\r\n", "\"", "a\rb", ",,\n", "\"a\"b", "a,a\n", "\xef\xbb\xbfa\n1", "a\n\n\n1\n", "\"a\"\r"} {
		f.Add([]byte(s), "x,\"y\n")
	}
	rel := &relation{Relation: Relation{Name: "r", Format: CSV}, id: 1, delimiter: ',', header: true}
	rel.Columns = []DeclaredColumn{{"a", "text"}, {"b", "bigint"}}
	if err := rel.declare(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, value string) {
		read := func(w *window) (rows []string, flaw string) {
			in := &input{window: w, rescue: newRescue("f")}
			if err := in.skipBOM(); err != nil {
				return nil, err.Error()
			}
			d, err := newCSVDecoder(in, rel.layout)
			if err != nil {
				return nil, err.Error()
			}
			for {
				row, ordinal, err := d.next(&slab{})
				if err != nil {
					return rows, err.Error()
				}
				values, err := row.Values(nil, 3)
				if err != nil {
					t.Fatal(err)
				}
				if ordinal == 0 {
					t.Fatal("a record in line 0")
				}
				for _, v := range values {
					rows = append(rows, string(v.Data))
				}
			}
		}
		rows, flaw := read(newWindow(bytes.NewReader(b), int64(len(b))))
		narrow := newWindow(bytes.NewReader(b), 0)
		narrow.buf = make([]byte, 0, 1)
		rows2, flaw2 := read(narrow)
		if flaw != flaw2 || strings.Join(rows, "|") != strings.Join(rows2, "|") {
			t.Fatalf("%q\n%q %s\n%q %s", b, rows, flaw, rows2, flaw2)
		}
		if utf8.ValidString(value) && !strings.Contains(value, "\x00") {
			written := `"` + strings.ReplaceAll(value, `"`, `""`) + `"`
			rows, flaw := read(newWindow(strings.NewReader("a\r\n"+written+"\r\n"), 0))
			if len(rows) != 3 || rows[0] != value {
				t.Fatalf("%q came back as %q, %s", value, rows, flaw)
			}
		}
	})
}

// FuzzFit: a value that fits prints as text that fits and prints the same again.
func FuzzFit(f *testing.F) {
	for _, s := range []string{"1.50e-3", "-0", "2024-02-29T23:59:59.5+09:30", "NaN", "\\xAB", "a0eebc999c0b4ef8bb6d6bb9bd380a11", "{\"a\": 1}", "0044-03-15 BC", "10:20", "1e131071"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, typ := range typeNames {
			once, ok := fit(nil, b, &typ)
			if !ok {
				continue
			}
			twice, ok := fit(nil, once, &typ)
			if !ok || !bytes.Equal(once, twice) {
				t.Fatalf("%s: %q prints %q, that prints %q (%v)", name, b, once, twice, ok)
			}
		}
	})
}
