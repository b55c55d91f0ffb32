package mysql

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// order compares the starts and ends of a history as its sequence does: column by
// column, where it has several. Those are one JSON object in a text, whose own order
// means nothing.
type order struct {
	fields []field
}

// field is one column of a sequence.
type field struct {
	path   string // in the object of several columns; "" of the only one
	source change.Type
	typ    columnType // in which it is held by itself
}

func orderOf(t *scd.Target) order {
	if len(t.SequenceFields) == 0 {
		source := sequenceOf(t)
		return order{[]field{{"", source, typeFor(source)}}}
	}
	var o order
	for i := range t.SequenceFields {
		f := &t.SequenceFields[i]
		o.fields = append(o.fields, field{`$."` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(f.Name) + `"`, f.Type, typeFor(f.Type)})
	}
	return o
}

// exactNumber holds 35 digits before the point and 30 behind it.
const exactNumber = "DECIMAL(65,30)"

// values are a stored start or end in the forms in which they are compared.
func (o order) values(column string) []string {
	var out []string
	for _, f := range o.fields {
		expr := column
		if f.path != "" {
			expr = fmt.Sprintf("JSON_UNQUOTE(JSON_EXTRACT(%s, %s))", column, literal(f.path))
		}
		out = append(out, f.compared(expr, f.path == ""))
	}
	return out
}

// compared is an expression, of the column's own type where it is typed and else of its
// text, in the form in which it is compared.
func (f *field) compared(expr string, typed bool) string {
	switch {
	case f.source.Name == "pg_lsn":
		return fmt.Sprintf("(CAST(CONV(SUBSTRING_INDEX(%s, '/', 1), 16, 10) AS UNSIGNED) * 4294967296 + CAST(CONV(SUBSTRING_INDEX(%[1]s, '/', -1), 16, 10) AS UNSIGNED))", expr)
	case f.number() && !(typed && f.typ.store != asChars):
		return "CAST(" + expr + " AS " + exactNumber + ")"
	case f.typ.store == asDatetime && !typed:
		return "CAST(SUBSTRING_INDEX(" + expr + ", '+', 1) AS DATETIME(6))"
	case f.typ.store == asChars:
		return "CAST(" + expr + " AS BINARY)"
	}
	return expr
}

func (f *field) number() bool {
	switch f.source.Kind {
	case change.Int16, change.Int32, change.Int64, change.Numeric:
		return true
	}
	return false
}

// given are the columns of a value of the sequence as a person writes it, as constants.
func (o order) given(t *scd.Target, text string) ([]string, error) {
	texts := []string{text}
	if len(t.SequenceFields) > 0 {
		var err error
		if texts, err = sink.SequenceValues(t, text); err != nil {
			return nil, err
		}
	}
	var out []string
	for i, f := range o.fields {
		constant, ok := f.given(texts[i])
		if !ok {
			return nil, fault.Badly("%q is no value of the sequence of target %s", text, t.Name)
		}
		out = append(out, constant)
	}
	return out, nil
}

// numberText is how a person, or JSON, may write a number.
var numberText = regexp.MustCompile(`^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?$`)

// layouts are how a person may write an instant.
var layouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999-07", "2006-01-02 15:04:05.999999999-07:00", "2006-01-02 15:04:05.999999999", "2006-01-02 15:04", "2006-01-02"}

func (f *field) given(text string) (constant string, ok bool) {
	trimmed := strings.TrimSpace(text)
	switch {
	case f.source.Name == "pg_lsn":
		if _, err := change.ParsePosition(trimmed); err != nil || !strings.Contains(trimmed, "/") {
			return "", false
		}
		return f.compared(literal(trimmed), false), true
	case f.number():
		if !numberText.MatchString(trimmed) {
			return "", false
		}
		return "CAST(" + literal(trimmed) + " AS " + exactNumber + ")", true
	case f.typ.store == asDatetime:
		for _, layout := range layouts {
			if t, err := time.Parse(layout, trimmed); err == nil {
				return "TIMESTAMP'" + string(appendInstant(nil, t.UnixMicro())) + "'", true
			}
		}
		return "", false
	case f.typ.store == asChars:
		return "CAST(" + literal(text) + " AS BINARY)", true
	}
	c := column{plain: scd.StartColumn, typ: f.typ, source: f.source}
	data, _, err := c.payload(nil, change.Value{State: change.AsText, Data: []byte(text)})
	return string(c.appendConstant(nil, data)), err == nil
}

// before compares values column by column: a < b.
func before(a, b []string) string {
	if len(a) == 1 {
		return a[0] + " < " + b[0]
	}
	return "(" + strings.Join(a, ", ") + ") < (" + strings.Join(b, ", ") + ")"
}

// notAfter is a <= b.
func notAfter(a, b []string) string {
	if len(a) == 1 {
		return a[0] + " <= " + b[0]
	}
	return "(" + strings.Join(a, ", ") + ") <= (" + strings.Join(b, ", ") + ")"
}
