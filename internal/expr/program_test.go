package expr

import (
	"strings"
	"sync"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

const (
	isTrue  = "t boolean"
	isFalse = "f boolean"
)

// The conditions that the AUTO CDC documents write.
func TestConditionsOfTheDocuments(t *testing.T) {
	check(t, [][2]string{
		{`operation = "DELETE"`, isTrue},
		{`operation = 'DELETE'`, isTrue},
		{`operation = "TRUNCATE"`, isFalse},
		{`operation IN ('APPEND', 'DELETE', 'UPDATE')`, isTrue},
		{`id IS NOT NULL`, isTrue},
		{`nil IS NULL`, isTrue},
		{`Operation == "DELETE" AND NOT (n < 0)`, isTrue},
		{`operation <=> nil`, isFalse},
		{`source.operation = 'DELETE'`, isTrue},
	})
}

// Every pair of truth values.
func TestThreeValuedLogic(t *testing.T) {
	names := []string{"FALSE", "TRUE", "NULL"}
	shown := []string{isFalse, isTrue, "NULL"}
	and := [3][3]int{{0, 0, 0}, {0, 1, 2}, {0, 2, 2}}
	or := [3][3]int{{0, 1, 2}, {1, 1, 1}, {2, 1, 2}}
	// Constants fold; columns do not, so both roads are walked.
	columns := []string{"(n < 0)", "(n > 0)", "(niln > 0)"}
	for a := range 3 {
		for b := range 3 {
			for _, words := range [][]string{names, columns} {
				check(t, [][2]string{
					{words[a] + " AND " + words[b], shown[and[a][b]]},
					{words[a] + " OR " + words[b], shown[or[a][b]]},
					{words[a] + " AND " + words[b] + " AND TRUE", shown[and[a][b]]},
					{words[a] + " OR " + words[b] + " OR FALSE", shown[or[a][b]]},
				})
			}
		}
	}
	for a, not := range []int{1, 0, 2} {
		for _, words := range [][]string{names, columns} {
			truth := func(b bool) string {
				if b {
					return isTrue
				}
				return isFalse
			}
			x := words[a]
			if x == "NULL" {
				x = "(NULL)"
			}
			check(t, [][2]string{
				{"NOT " + x, shown[not]},
				{x + " IS TRUE", truth(a == 1)}, {x + " IS NOT TRUE", truth(a != 1)},
				{x + " IS FALSE", truth(a == 0)}, {x + " IS NOT FALSE", truth(a != 0)},
				{x + " IS UNKNOWN", truth(a == 2)}, {x + " IS NOT UNKNOWN", truth(a != 2)},
				{x + " IS NULL", truth(a == 2)}, {x + " IS NOT NULL", truth(a != 2)},
			})
		}
	}
}

func TestFalseEndsAnd(t *testing.T) {
	check(t, [][2]string{
		{"n < 0 AND 1 / (n - 42) > 0", isFalse},
		{"n > 0 OR 1 / (n - 42) > 0", isTrue},
		{"CASE WHEN n = 42 THEN 'ok' ELSE string(1 / 0) END", "ok text"},
		{"niln > 0 AND 1 / (n - 42) > 0", "~division by zero"},
	})
}

func TestPrecedence(t *testing.T) {
	for text, want := range map[string]string{
		"a or b and not c":              "a OR b AND NOT c",
		"(a or b) and c":                "(a OR b) AND c",
		"not (a and b)":                 "NOT (a AND b)",
		"not x = y":                     "NOT x = y",
		"(not a) = b":                   "(NOT a) = b",
		"x + y * z":                     "x + y * z",
		"(x + y) * z":                   "(x + y) * z",
		"x - (y - z)":                   "x - (y - z)",
		"x - y - z":                     "x - y - z",
		"-x * -1":                       "-x * -1",
		"- - x":                         "-(-x)",
		"-(5)":                          "-(5)",
		"x - -5":                        "x - -5",
		"x || y || s":                   "x || y || s",
		"x || (y || s)":                 "x || y || s",
		"x || y + z":                    "x || y + z",
		"x || (y + z)":                  "x || (y + z)",
		"x between 1 and 2 and a":       "x BETWEEN 1 AND 2 AND a",
		"x not between y + 1 and z*2":   "x NOT BETWEEN y + 1 AND z * 2",
		"s not like 'a%' escape '!'":    "s NOT LIKE 'a%' ESCAPE '!'",
		"x in (1, 2) is not true":       "(x IN (1, 2)) IS NOT TRUE",
		"x = y is null":                 "(x = y) IS NULL",
		"a is distinct from b":          "a IS DISTINCT FROM b",
		"x::text || s":                  "CAST(x AS text) || s",
		"-x::bigint":                    "-CAST(x AS bigint)",
		"try_cast(s as decimal(10, 2))": "TRY_CAST(s AS numeric(10,2))",
		"s::timestamp":                  "CAST(s AS timestamp with time zone)",
		"x != y or x == y or x <> z":    "x <> y OR x = y OR x <> z",
		"case x when 1 then 'a' end":    "CASE x WHEN 1 THEN 'a' END",
		"case when a then x else y end": "CASE WHEN a THEN x ELSE y END",
		"nvl(x, 1)":                     "coalesce(x, 1)",
		"position('a' in s)":            "position('a', s)",
		"substring(s from 1 for 2)":     "substring(s, 1, 2)",
		"trim(s)":                       "trim(s)",
		"trim(leading 'x' from s)":      "trim(LEADING 'x' FROM s)",
		"extract(year from at)":         "extract(YEAR FROM at)",
		"date'2024-1-2' + 1":            "DATE '2024-01-02' + 1",
		"at > interval 1 day + at":      "at > INTERVAL '1 day' + at",
		"j:k['x y'][0].z":               "j:k['x y'][0].z",
		"j['k']":                        "j:k",
		"j.k.l":                         "j:k.l",
		"j -> 'a' ->> 0":                "j -> 'a' ->> 0",
		"`x` + Y":                       "x + y",
		`s = "it's"`:                    "s = 'it''s'",
		"s = r'\\d'":                    "s = '\\d'",
		"x = x'0aff'":                   "compile",
		"1e3 + 1.50 + 7L + 2BD":         "1000BD + 1.50 + 7L + 2BD",
		"! a":                           "NOT a",
		"a -- comment\n and /* c */ b":  "a AND b",
	} {
		columns := []Column{
			{"a", typeOf(change.Bool)}, {"b", typeOf(change.Bool)}, {"c", typeOf(change.Bool)},
			{"x", typeOf(change.Int32)}, {"y", typeOf(change.Int32)}, {"z", typeOf(change.Int32)},
			{"s", typeOf(change.Text)}, {"j", typeOf(change.JSONB)}, {"at", typeOf(change.TimestampTZ)},
		}
		p, err := Compile(text, columns)
		if err != nil {
			if want != "compile" {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if p.String() != want {
			t.Errorf("%s prints as %s, want %s", text, p, want)
		}
	}
}

func TestNames(t *testing.T) {
	check(t, [][2]string{
		{"ID", "7 bigint"},
		{"`ID`", "7 bigint"},
		{"`Mixed`", "1 integer"},
		{"`MIXED`", "2 integer"},
		{"mixed", "~columns Mixed and MIXED differ only by case"},
		{"`mixed`", "~columns Mixed and MIXED differ only by case"},
		{"`select list` + 1", "2 integer"},
		{"`from`", "3 integer"},
		{"from", "~a column of that name is written in backticks"},
		{"date = 'x'", isTrue},
		{"shop.users.id", "7 bigint"},
		{"operatoin = 'x'", "compile: line 1, column 1: unknown column operatoin; the nearest is operation"},
		{"id.name.x", "~column name of type text has no fields"},
		{"id.x", "~column id of type bigint has no fields"},
		{"\"id\"", "id text"},
	})
}

func TestErrorsNameTheirPlace(t *testing.T) {
	check(t, [][2]string{
		{"", "compile: line 1, column 1: expected a value, found the end of the expression"},
		{"operation = 'x' AND\n  nmae = 'y'", "compile: line 2, column 3: unknown column nmae; the nearest is name"},
		{"operation = 'x", "~line 1, column 13: the string that begins here is not closed by '"},
		{"id = 'abc'", "compile: line 1, column 6: bigint: the text is no integer"},
		{"d = '2024-02-30'", "~line 1, column 5: date: the text is no date like"},
		{"at > '2024-13-01'", "~line 1, column 6: timestamp with time zone: the text is no timestamp like"},
		{"ts = '2024-01-01 00:00:00+01'", "~a timestamp without time zone cannot have an offset"},
		{"u = 'abc'", "~uuid: the text is no uuid"},
		{"ok = 'maybe'", "~boolean: the text is no boolean"},
		{"bin = '\\xde'", "~a binary literal is written X'...'"},
		{"upperr(name)", "compile: line 1, column 1: unknown function upperr; the nearest is upper"},
		{"upper()", "compile: line 1, column 1: upper takes one argument, here are 0"},
		{"substring(name, 1, 2, 3)", "~substring takes two or three arguments, here are 4"},
		{"id = n = 1", "~line 1, column 8: a comparison of a comparison needs parentheses"},
		{"id = n IN (1)", "~a comparison of a comparison needs parentheses"},
		{"id IN (SELECT 1)", "~a subquery is not possible"},
		{"id IN ()", "~IN needs at least one value"},
		{"count(*)", "~an aggregate is not possible"},
		{"sum(id)", "~sum is refused: an expression sees one row"},
		{"current_timestamp", "~an event's outcome must not depend on when it is applied"},
		{"at > now()", "~an event's outcome must not depend on when it is applied"},
		{"unix_timestamp()", "~an event's outcome must not depend on when it is applied"},
		{"ok AND id", "compile: line 1, column 8: expected a condition, this is bigint"},
		{"d = id", "~date and bigint cannot be compared: CAST one of them"},
		{"ok = 1", "~boolean and integer cannot be compared"},
		{"addr = '10.0.0.1'", "~values of type inet have no comparison here: CAST it to text"},
		{"j = '{}'", "~values of type jsonb have no comparison here: take a field of it"},
		{"mood < 'sad'", "~the order of an enum is known to its server alone"},
		{"CASE WHEN ok THEN 1 ELSE 'x' END", "~the text is no integer"},
		{"coalesce(n, name)", "~integer and text have no common type: CAST one of them"},
		{"d - d", "~datediff(a, b) gives the days between two dates"},
		{"name RLIKE name", "~the pattern of a regular expression must be a literal"},
		{"name RLIKE '('", "~the pattern is no regular expression"},
		{"name LIKE 'a\\'", "~the pattern ends with the escape character"},
		{"CAST(id AS money)", "~line 1, column 12: unknown type money"},
		{"CAST(id AS char)", "~needs a length"},
		{"CAST(d AS boolean)", "~date cannot be cast to boolean"},
		{"ltrim('x', name)", "~is read differently by Spark and by PostgreSQL"},
		{"extract(dow from d)", "~DOW counts from Sunday = 1 in Spark"},
		{"to_date(name, 'yyyy-QQ')", "~the format's letter Q is not known"},
		{"j:a[*]", "~[*] is not possible"},
		{"id ? 1", "~unexpected character"},
		{"1abc", "~1abc is not a number"},
		{"id = 5Q", "~5Q is not a number"},
		{"300Y", "~300 does not fit 8 bits"},
		{"ok AND", "~expected a value, found the end of the expression"},
		{"(id", "~expected ), found the end of the expression"},
		{"(id, n)", "~a list stands only behind IN"},
		{"id n", "~expected an operator or the end of the expression, found n"},
		{"/* open", "~the comment /* is not closed"},
		{"concat(bin, name)", "~expected text, this is bytea"},
	})
	for _, text := range []string{"id = 'abc'", "nmae", "("} {
		columns, _ := sampleRow()
		if _, err := Compile(text, columns); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v is no usage error", text, err)
		}
	}
}

// An error of an evaluation names the function and its place, is the operator's,
// and holds no value.
func TestEvaluationErrorsHoldNoValue(t *testing.T) {
	columns, row := sampleRow()
	for text, want := range map[string]string{
		"id = 1 AND\n n / (n - 42) = 1 OR n / (n - 42) = 1": "evaluate / at line 2, column 24",
		"CAST(name AS int)":              "evaluate CAST to integer at line 1, column 1",
		"n + name":                       "the text is no number",
		"name = n":                       "line 1, column 1",
		"to_date(operation, 'MM-dd-yy')": "the text does not match the pattern",
		"toast = 'x'":                    "column toast was not sent with this change",
		"toast":                          "column toast was not sent with this change",
		"small * 32767S * 2S":            "out of the integer's range",
		"split_part(name, 'ü', n - 42)":  "parts count from 1",
	} {
		p, err := Compile(text, columns)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if strings.HasPrefix(text, "id") {
			_, _, err = p.Test(row)
		} else {
			_, _, err = p.Eval(row, nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
			t.Errorf("%s: %v, want %s", text, err, want)
			continue
		}
		for _, v := range []string{"Grüße", "DELETE", "-3", "98301"} {
			if strings.Contains(err.Error(), v) {
				t.Errorf("%s: the error holds a value: %v", text, err)
			}
		}
	}
}

func TestCompileCondition(t *testing.T) {
	columns, row := sampleRow()
	if _, err := CompileCondition("id + 1", columns); fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "a condition must be boolean, this is bigint") {
		t.Errorf("a number as a condition: %v", err)
	}
	p, err := CompileCondition("NULL", columns)
	if err != nil {
		t.Fatal(err)
	}
	if truth, known, err := p.Test(row); truth || known || err != nil {
		t.Errorf("NULL is %v %v %v", truth, known, err)
	}
	p, err = Compile("id + 1", columns)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Test(row); fault.KindOf(err) != fault.Usage {
		t.Errorf("Test of a number: %v", err)
	}
	if _, _, err := p.Test(nil); fault.KindOf(err) != fault.Corrupt {
		t.Errorf("a row that is too short: %v", err)
	}
}

func TestColumnsAreThoseRead(t *testing.T) {
	columns, _ := sampleRow()
	p, err := Compile("n > 1 AND id = n AND operation IS NULL", columns)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Columns()
	if len(got) != 3 || got[0] != 0 || got[1] != 2 || got[2] != 3 {
		t.Errorf("reads %v", got)
	}
}

// A bare column is passed through, whatever its type and form.
func TestBareColumnPassesThrough(t *testing.T) {
	check(t, [][2]string{
		{"fixed", "DELETE   character(8)"},
		{"addr", "10.0.0.1 inet"},
		{"price", "12.50 numeric(12,2)"},
		{"nil", "NULL"},
	})
	columns, row := sampleRow()
	row[0] = change.Value{State: change.Binary, Data: []byte{0, 0, 0, 0, 0, 0, 0, 9}}
	p, err := Compile("id", columns)
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := p.Eval(row, nil); err != nil || !v.Equal(row[0]) {
		t.Errorf("%v %v", v, err)
	}
	p, err = Compile("id + 1", columns)
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := p.Eval(row, nil); err != nil || string(v.Data) != "10" {
		t.Errorf("%s %v", v.Data, err)
	}
}

func TestEvalAppends(t *testing.T) {
	columns, row := sampleRow()
	p, err := Compile("id + 1", columns)
	if err != nil {
		t.Fatal(err)
	}
	buf := []byte("before")
	v, buf, err := p.Eval(row, buf)
	if err != nil || string(buf) != "before8" || string(v.Data) != "8" {
		t.Errorf("%q %q %v", buf, v.Data, err)
	}
}

// Each evaluation has its own scratch memory.
func TestProgramsAreShared(t *testing.T) {
	columns, row := sampleRow()
	p, err := Compile("upper(operation) || '-' || lower(operation) || id", columns)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				if v, _, err := p.Eval(row, nil); err != nil || string(v.Data) != "DELETE-delete7" {
					t.Errorf("%q %v", v.Data, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestDepthIsBounded(t *testing.T) {
	columns, _ := sampleRow()
	for _, text := range []string{
		strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000),
		strings.Repeat("NOT ", 5000) + "ok",
		strings.Repeat("- ", 5000) + "1",
		"1" + strings.Repeat(" + 1", 5000),
		"id" + strings.Repeat("::text", 5000),
		strings.Repeat("abs(", 5000) + "1" + strings.Repeat(")", 5000),
		strings.Repeat("CASE WHEN ok THEN ", 2000),
	} {
		if _, err := Compile(text, columns); err == nil || !strings.Contains(err.Error(), "nested more than 200 deep") {
			t.Errorf("%.20s...: %v", text, err)
		}
	}
	if _, err := Compile(strings.Repeat("x", maxBytes+1), columns); err == nil {
		t.Error("a long text compiles")
	}
	// Long is not deep.
	for _, text := range []string{
		"id = 1" + strings.Repeat(" OR id = 1", 5000),
		"'a'" + strings.Repeat(" || 'b'", 5000),
		"id IN (1" + strings.Repeat(", 2", 5000) + ")",
	} {
		if _, err := Compile(text, columns); err != nil {
			t.Errorf("%.20s...: %v", text, err)
		}
	}
}
