package files_test

import (
	"encoding/json"
	"strings"
	"testing"

	"tailrace/source/files"
)

// The text of every type is what PostgreSQL prints; `-` is a value that does not fit.
func TestTextBecomesCanonical(t *testing.T) {
	const none = "-"
	for typ, pairs := range map[string][]string{
		"boolean":  {"true", "t", "FALSE", "f", "t", "t", "F", "f", "1", none, "yes", none, "", none},
		"smallint": {"32767", "32767", "-32768", "-32768", "32768", none, "-32769", none, "007", "7", "+5", "5", "-0", "0", "1.0", none, "", none, "-", none, "1e3", none, " 1", none},
		"int":      {"2147483647", "2147483647", "-2147483648", "-2147483648", "2147483648", none, "999999999", "999999999"},
		"long":     {"9223372036854775807", "9223372036854775807", "-9223372036854775808", "-9223372036854775808", "9223372036854775808", none, "-9223372036854775809", none, "00000000000000000000000001", "1", "99999999999999999999", none},
		"real":     {"1.5", "1.5", "0.1", "0.1", "16777217", "1.6777216e+07", "1e39", none, "1e-50", none, "nan", "NaN", "-inf", "-Infinity", "123456", "123456", "1234567", "1.234567e+06"},
		"double": {"1.5", "1.5", "1.50", "1.5", "100", "100", "-0", "-0", "0.0", "0", "1e15", "1e+15", "1000000000000000", "1e+15", "999999999999999", "999999999999999", "0.0001", "0.0001", "0.00001", "1e-05",
			"0.1234567890123456789", "0.12345678901234568", "1e400", none, "1e-400", none, "0e-400", "0", "Infinity", "Infinity", "+1", "1", ".5", "0.5", "5.", "5", "0x10", none, "1_0", none, "1e", none, "NaN", "NaN", "", none, "12345678901234567890", "1.2345678901234567e+19"},
		"numeric": {"1.50", "1.50", "007.50", "7.50", "-0.00", "0.00", "1e3", "1000", "1.5e-3", "0.0015", "1.5e1", "15", "150e-1", "15.0", ".5", "0.5", "5.", "5", "-.5", "-0.5", "+1", "1", "NaN", none, "1e131072", none, "1e-20000", none, "1e99999999999999999999", none,
			"123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789", "", none, ".", none, "1.2.3", none, "0e5", "0"},
		"decimal(5,2)":    {"1.5", "1.50", "999.99", "999.99", "1000", none, "1.005", none, "1.500", "1.50", "0", "0.00", "-0.01", "-0.01", "1e2", "100.00", "1e-2", "0.01", "1e-3", none},
		"numeric(3)":      {"999", "999", "1.0", "1", "1000", none},
		"text":            {"", "", "x", "x", " ", " "},
		"varchar(3)":      {"日本語", "日本語", "日本語s", none, "abc", "abc", "abcd", none},
		"date":            {"2024-02-29", "2024-02-29", "2023-02-29", none, "2024-1-1", none, "2024-01-01T00:00:00", none, "0001-01-01", "0001-01-01", "0000-01-01", none, "infinity", "infinity", "12024-01-01", "12024-01-01", "0044-03-15 BC", "0044-03-15 BC", "0044-02-30 BC", none, "20240101", none},
		"time":            {"10:20", "10:20:00", "10:20:30.5", "10:20:30.5", "24:00:00", none, "10:60", none, "10:20:30.0000001", none},
		"timestamp":       {"2024-01-01", "2024-01-01 00:00:00", "2024-01-01T10:20", "2024-01-01 10:20:00", "2024-01-01 10:20:30.120", "2024-01-01 10:20:30.12", "2024-01-01T10:20:30Z", "2024-01-01 10:20:30", "2024-01-01T10:20:30+02:00", none, "2024-01-01T24:00:00", none, "2024-13-01T00:00:00", none, "2024-01-01T00:00:60", none, "-infinity", "-infinity"},
		"timestamptz":     {"2024-01-01", "2024-01-01 00:00:00+00", "2024-01-01T10:20:30Z", "2024-01-01 10:20:30+00", "2024-01-01T00:20:30+09:00", "2023-12-31 15:20:30+00", "2024-01-01 00:20:30-0330", "2024-01-01 03:50:30+00", "2024-01-01 10:20:30+00", "2024-01-01 10:20:30+00", "2024-01-01T10:20:30.1234567Z", none, "2024-01-01T10:20:30.1234560Z", "2024-01-01 10:20:30.123456+00", "2024-01-01T10:20:30+24", none, "2024-01-01T10:20:30 UTC", none, "2024-01-01T10:20:30.Z", none, "1969-12-31T23:59:59Z", "1969-12-31 23:59:59+00"},
		"uuid":            {"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc999c0b4ef8bb6d6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1", none, "g0eebc999c0b4ef8bb6d6bb9bd380a11", none},
		"binary":          {`\xDEAD`, `\xdead`, `\x`, `\x`, "AP8=", `\x00ff`, "", `\x`, `\xd`, none, "AP8", none, "AP9=", none},
		"jsonb":           {`{ "a" : 1 }`, `{"a":1}`, "12", "12", "x", none, "", none, `"\u0000"`, none},
		"json":            {`{ "a" : 1 }`, `{ "a" : 1 }`, "[", none},
		"map<string,int>": {`{"a":1}`, `{"a":1}`},
	} {
		t.Run(typ, func(t *testing.T) {
			var content strings.Builder
			content.WriteString("v,n\n")
			for i := 0; i < len(pairs); i += 2 {
				content.WriteString(`"` + strings.ReplaceAll(pairs[i], `"`, `""`) + "\",x\n")
			}
			res := one(t, files.Relation{Format: "csv", Columns: columns("v", typ)}, content.String())
			if res.err != nil {
				t.Fatal(res.err)
			}
			for i, row := range res.rows(t) {
				_, row, _ = strings.Cut(row, "|")
				text, _ := json.Marshal(pairs[2*i])
				want := pairs[2*i+1] + `|{"n":"x","_file_path":"f.x"}`
				if pairs[2*i+1] == none {
					want = `~|{"v":` + strings.NewReplacer(`\u003c`, "<").Replace(string(text)) + `,"n":"x","_file_path":"f.x"}`
				}
				if row != want {
					t.Errorf("%q: got %s, want %s", pairs[2*i], row, want)
				}
			}
		})
	}
}

// JSON has types of its own: a number is no boolean and no time.
func TestJSONTypesFit(t *testing.T) {
	for typ, pairs := range map[string][]string{
		"boolean":   {`true`, "t", `"true"`, "t", `1`, "-", `"x"`, "-", `[]`, "-"},
		"double":    {`1.50`, "1.5", `1e3`, "1000", `"NaN"`, "NaN", `true`, "-", `{}`, "-"},
		"timestamp": {`"2024-01-01T00:00:00"`, "2024-01-01 00:00:00", `1704067200`, "-"},
		"date":      {`"2024-01-01"`, "2024-01-01", `20240101`, "-"},
		"jsonb":     {`{"a": "b\u0061 c"}`, `{"a":"b\u0061 c"}`, `"x"`, `"x"`, `1.0`, `1.0`, `[ ]`, `[]`},
		"json":      {`{"a": "b"}`, `{"a": "b"}`, `"x"`, `"x"`},
		"uuid":      {`"a0eebc999c0b4ef8bb6d6bb9bd380a11"`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "12", "-"},
		"bytea":     {`"AA=="`, `\x00`, "12", "-"},
	} {
		t.Run(typ, func(t *testing.T) {
			var content strings.Builder
			for i := 0; i < len(pairs); i += 2 {
				content.WriteString(`{"v":` + pairs[i] + "}\n")
			}
			res := one(t, jsonRelation("v", typ), content.String())
			if res.err != nil {
				t.Fatal(res.err)
			}
			for i, row := range res.rows(t) {
				_, row, _ = strings.Cut(row, "|")
				want := pairs[2*i+1] + "|~"
				if pairs[2*i+1] == "-" {
					want = `~|{"v":` + pairs[2*i] + `,"_file_path":"f.x"}`
				}
				if row != want {
					t.Errorf("%s: got %s, want %s", pairs[2*i], row, want)
				}
			}
		})
	}
}
