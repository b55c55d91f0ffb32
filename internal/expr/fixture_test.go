package expr

import (
	"os"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// sample is a column with a value: nil is NULL, absent is not sent.
type sample struct {
	name string
	typ  change.Type
	text any
}

type absent struct{}

func kindOf(k change.Kind) change.Type { return typeOf(k) }

func varied(t change.Type, with func(*change.Type)) change.Type {
	with(&t)
	return t
}

var samples = []sample{
	{"id", kindOf(change.Int64), "7"},
	{"small", kindOf(change.Int16), "-3"},
	{"n", kindOf(change.Int32), "42"},
	{"operation", kindOf(change.Text), "DELETE"},
	{"name", kindOf(change.Text), "Grüße"},
	{"digits", kindOf(change.Text), " 12.50 "},
	{"price", varied(kindOf(change.Numeric), func(t *change.Type) { t.Name, t.Precision, t.Scale = "numeric(12,2)", 12, 2 }), "12.50"},
	{"huge", kindOf(change.Numeric), "12345678901234567890.000000000000000001"},
	{"f", kindOf(change.Float64), "0.1"},
	{"r", kindOf(change.Float32), "0.1"},
	{"ok", kindOf(change.Bool), "t"},
	{"d", kindOf(change.Date), "2024-02-29"},
	{"ts", kindOf(change.Timestamp), "2024-02-29 13:14:15.123456"},
	{"at", kindOf(change.TimestampTZ), "2024-02-29 13:14:15.5+00"},
	{"endless", kindOf(change.TimestampTZ), "infinity"},
	{"old", kindOf(change.Date), "0044-03-15 BC"},
	{"j", kindOf(change.JSONB), `{"a": {"b": [1, 2.50, "x\"y", null]}, "k k": true, "s": "ü\u00fc"}`},
	{"js", kindOf(change.JSON), `{"a":1, "a" : {"c":"d"}}`},
	{"doc", kindOf(change.Text), `{"price":"9.5","n":[{"q":1}]}`},
	{"fixed", varied(kindOf(change.Text), func(t *change.Type) { t.Name, t.ID, t.Length = "character(8)", 1042, 8 }), "DELETE  "},
	{"mood", change.Type{Kind: change.Enum, Name: "public.mood"}, "happy"},
	{"u", kindOf(change.UUID), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
	{"bin", kindOf(change.Bytes), `\xdeadbeef`},
	{"span", kindOf(change.Interval), "1 mon 2 days 03:00:00"},
	{"clock", kindOf(change.Time), "08:30:00"},
	{"addr", change.Type{Kind: change.Other, Name: "inet"}, "10.0.0.1"},
	{"nil", kindOf(change.Text), nil},
	{"niln", kindOf(change.Int32), nil},
	{"nilb", kindOf(change.Bool), nil},
	{"toast", kindOf(change.Text), absent{}},
	{"select list", kindOf(change.Int32), "1"},
	{"Mixed", kindOf(change.Int32), "1"},
	{"MIXED", kindOf(change.Int32), "2"},
	{"from", kindOf(change.Int32), "3"},
	{"date", kindOf(change.Text), "x"},
}

func sampleRow() ([]Column, []change.Value) {
	columns, row := make([]Column, len(samples)), make([]change.Value, len(samples))
	for i, s := range samples {
		columns[i] = Column{s.name, s.typ}
		switch text := s.text.(type) {
		case nil:
			row[i] = change.Value{State: change.Null}
		case absent:
			row[i] = change.Value{State: change.Absent}
		case string:
			row[i] = change.Value{State: change.AsText, Data: []byte(text)}
		}
	}
	return columns, row
}

// outcomeOf evaluates text over the sample row: the value's text and type, NULL,
// or the error. It also holds every program to its promises: the canonical text
// compiles to itself and has the same outcome, and Test agrees with Eval.
func outcomeOf(t *testing.T, text string) string {
	t.Helper()
	columns, row := sampleRow()
	p, err := Compile(text, columns)
	if err != nil {
		return "compile: " + err.Error()
	}
	out := run(t, p, row)
	again, err := Compile(p.String(), columns)
	if err != nil {
		t.Errorf("%s prints as %s, which does not compile: %v", text, p, err)
		return out
	}
	if again.String() != p.String() {
		t.Errorf("%s prints as %s and then as %s", text, p, again)
	}
	if got := run(t, again, row); got != out && !strings.HasPrefix(out, "error:") {
		t.Errorf("%s is %s, its canonical text %s is %s", text, out, p, got)
	}
	return out
}

func run(t *testing.T, p *Program, row []change.Value) string {
	t.Helper()
	v, _, err := p.Eval(row, nil)
	if p.Type().Kind == change.Bool {
		truth, known, err2 := p.Test(row)
		want := change.Value{State: change.Null}
		if known {
			want = change.Value{State: change.AsText, Data: []byte{"ft"[truthIndex(truth)]}}
		}
		if (err == nil) != (err2 == nil) || err == nil && !v.Equal(want) {
			t.Errorf("%s: Eval %c %s %v, Test %v %v %v", p, v.State, v.Data, err, truth, known, err2)
		}
	}
	switch {
	case err != nil:
		return "error: " + err.Error()
	case v.State == change.Null:
		return "NULL"
	}
	return string(v.Data) + " " + p.Type().Name
}

func truthIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// check compares outcomes; a wanted "error..." or "compile..." is a part of the
// message after its place.
func check(t *testing.T, cases [][2]string) {
	t.Helper()
	for _, c := range cases {
		got := outcomeOf(t, c[0])
		if want := c[1]; got != want && !(strings.HasPrefix(want, "~") && strings.Contains(got, want[1:])) {
			t.Errorf("%s\n  gives %s\n  want  %s", c[0], got, want)
		}
	}
}
