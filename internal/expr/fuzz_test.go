package expr

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tailrace/internal/change"
)

// texts of values by kind: ordinary ones and edges.
var texts = map[change.Kind][]string{
	change.Bool:        {"t", "f"},
	change.Int16:       {"0", "-1", "32767", "-32768", "7"},
	change.Int32:       {"0", "-1", "2147483647", "-2147483648", "42"},
	change.Int64:       {"0", "-1", "9223372036854775807", "-9223372036854775808", "1000000"},
	change.Float32:     {"0", "-0", "0.1", "NaN", "Infinity", "-Infinity", "3.4028235e+38"},
	change.Float64:     {"0", "-0", "0.1", "NaN", "Infinity", "-Infinity", "1.7976931348623157e+308", "5e-324"},
	change.Numeric:     {"0", "0.00", "-1.50", "99999999999999999999.999", "NaN", "Infinity", "-Infinity", "0.0000000000000000000000001", "9223372036854775807", "12.5"},
	change.Text:        {"", "DELETE", "Grüße", " 12.5 ", "2024-02-29", "a%b_c\\", "{\"a\":[1,{\"b\":\"c\"}]}", "true", "\xff\xfe", "ß"},
	change.Enum:        {"happy", "sad"},
	change.Date:        {"2024-02-29", "infinity", "-infinity", "0044-03-15 BC", "4714-11-24 BC", "5874897-12-31", "1970-01-01"},
	change.Timestamp:   {"2024-02-29 13:14:15.123456", "infinity", "-infinity", "4714-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"},
	change.TimestampTZ: {"2024-02-29 13:14:15.5+00", "infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00", "2024-01-01 00:00:00+05:30"},
	change.Time:        {"00:00:00", "24:00:00", "08:30:00.5"},
	change.Interval:    {"00:00:00", "1 mon 2 days 03:00:00", "-1 years -2 mons +3 days -04:05:06.7", "infinity", "178000000 years"},
	change.UUID:        {"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"},
	change.Bytes:       {"\\x", "\\xdeadbeef", "\\x616263"},
	change.JSON:        {`{"a":1, "a" : {"c":"d"}}`, `[1,[2,"\ud83d\ude00"]]`, `"s"`, "null", `{"a":{"b":[1,2]}}`},
	change.JSONB:       {`{"a": {"b": [1, 2.50, "x\"y", null]}}`, "[]", "{}", "1"},
	change.Other:       {"10.0.0.1"},
}

// randomRow fills the columns of the samples; one value in twenty is garbage, as
// no server would send it.
func randomRow(r *rand.Rand) []change.Value {
	row := make([]change.Value, len(samples))
	for i, s := range samples {
		switch r.IntN(20) {
		case 0, 1, 2:
			row[i] = change.Value{State: change.Null}
		case 3:
			row[i] = change.Value{State: change.Absent}
		case 4:
			row[i] = change.Value{State: change.AsText, Data: []byte(texts[change.JSON][r.IntN(4)][:r.IntN(3)])}
		case 5:
			row[i] = change.Value{State: change.Binary, Data: make([]byte, r.IntN(20))}
		default:
			all := texts[s.typ.Kind]
			row[i] = change.Value{State: change.AsText, Data: []byte(all[r.IntN(len(all))])}
		}
	}
	return row
}

// No text panics, to compile or to evaluate, and the canonical text is a program
// with the same canonical text and the same outcomes.
func FuzzCompile(f *testing.F) {
	for i, text := range usual {
		f.Add(text, uint64(i))
	}
	for i, text := range []string{
		"CASE id WHEN 1 THEN 'a' ELSE \"b\" END", "TRY_CAST(name AS decimal(10,2)) + 1e3", "d + INTERVAL '1 day -2 hours'", "j:a.b[0]::int", "js -> 'a' ->> -1",
		"trim(LEADING 'x' FROM name) || substring(name FROM 2 FOR 3)", "extract(SECOND FROM ts)", "date_format(at, \"yyyy-MM-dd'T'HH:mm\")", "round(price, -2) DIV 3",
		"get_json_object(doc, '$.a[0]')", "regexp_replace(name, '(.)', '$1$1')", "NOT `Mixed` <=> 1", "X'00ff' || bin", "lpad(name, 9, operation)", "greatest(f, r, price, 1D)", "-9223372036854775808 % -1",
		"from_unixtime(id, 'E d MMM')", "CAST(name AS char(3))", "position('a', name, 2)", "sha2(bin, 512)", "span - INTERVAL 1 month", "at - ts", "concat_ws(',', name, NULL)", "/* c */ id -- d",
	} {
		f.Add(text, uint64(i))
	}
	columns, _ := sampleRow()
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		p, err := Compile(text, columns)
		if err != nil {
			return
		}
		canonical := p.String()
		again, err := Compile(canonical, columns)
		if err != nil {
			t.Fatalf("%q prints as %q, which does not compile: %v", text, canonical, err)
		}
		if again.String() != canonical {
			t.Fatalf("%q prints as %q and then as %q", text, canonical, again)
		}
		if again.Type().Name != p.Type().Name {
			t.Fatalf("%q is of type %s, %q of %s", text, p.Type().Name, canonical, again.Type().Name)
		}
		r := rand.New(rand.NewPCG(seed, 1))
		for range 4 {
			row := randomRow(r)
			a, b := evaluated(p, row), evaluated(again, row)
			if a != b {
				t.Fatalf("%q is %s, its canonical text %q is %s", text, a, canonical, b)
			}
			truth, known, err := p.Test(row)
			if err != nil && (truth || known) {
				t.Fatalf("%q fails with %v and is %v %v", text, err, truth, known)
			}
		}
	})
}

func evaluated(p *Program, row []change.Value) string {
	v, _, err := p.Eval(row, nil)
	if err != nil {
		return "an error"
	}
	return fmt.Sprintf("%c %q", v.State, v.Data)
}
