//go:build !noduckdb

package duckdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// A sequence of several columns is a STRUCT of them in their order, which the engine
// compares field by field, as the sequence is. Its values come as JSON objects, whose
// members are the columns' texts: strings, or numbers as they are.

// structOf is the type of the column that holds a sequence of several columns.
func structOf(fields []change.Column) columnType {
	list := make([]field, len(fields))
	for i := range fields {
		list[i] = field{fields[i].Name, typeFor(fields[i].Type)}
	}
	return structType(list)
}

// field is one field of a STRUCT.
type field struct {
	name string
	typ  columnType
}

func structType(list []field) columnType {
	parts := make([]string, len(list))
	for i, f := range list {
		parts[i] = quote(f.name) + " " + f.typ.String()
	}
	return columnType{store: asStruct, fields: strings.Join(parts, ", ")}
}

// parseStruct reads what stands between the brackets of STRUCT( ). Fields of types that
// we do not fill make it unknown.
func parseStruct(text string) columnType {
	var list []field
	for len(text) > 0 {
		var name string
		if text[0] == '"' {
			end := 1
			for end < len(text) && (text[end] != '"' || end+1 < len(text) && text[end+1] == '"') {
				if text[end] == '"' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return columnType{}
			}
			name, text = strings.ReplaceAll(text[1:end], `""`, `"`), strings.TrimPrefix(text[end+1:], " ")
		} else {
			var found bool
			if name, text, found = strings.Cut(text, " "); !found {
				return columnType{}
			}
		}
		end, depth := 0, 0
		for end < len(text) && (text[end] != ',' || depth > 0) {
			switch text[end] {
			case '(':
				depth++
			case ')':
				depth--
			}
			end++
		}
		f := field{name, parseType(text[:end])}
		if f.typ.store == unknown || f.typ.store == asStruct {
			return columnType{}
		}
		list = append(list, f)
		text = strings.TrimPrefix(strings.TrimPrefix(text[end:], ","), " ")
	}
	return structType(list)
}

var errObject = errors.New("a sequence of several columns is no object of them")

// object writes a JSON object into the fields of a STRUCT.
func (a *appender) object(col int, v change.Value) error {
	c := &a.cols[col]
	text, err := pgvalue.Chars(v, change.JSONB)
	if err != nil {
		return err
	}
	o := members{rest: text}
	found := 0
	for o.next() {
		at := -1
		for i := range c.fields {
			if c.fields[i].Name == string(o.name) {
				at = i
			}
		}
		if at < 0 {
			return errObject
		}
		found++
		if err := a.value(c.first+at, change.Value{State: change.AsText, Data: o.value}); err != nil {
			return err
		}
	}
	if o.broken || found != len(c.fields) {
		return errObject
	}
	return nil
}

// members reads a flat JSON object of strings and numbers, member by member.
type members struct {
	rest        []byte
	name, value []byte // of the present member; valid until the next
	begun       bool
	broken      bool
	space       [2][]byte // for strings with escapes
}

func (m *members) next() bool {
	open, shut := byte('{'), byte('}')
	if m.begun {
		open = ','
	}
	m.skip()
	if m.begun && len(m.rest) == 1 && m.rest[0] == shut {
		m.rest = nil
		return false
	}
	if len(m.rest) == 0 || m.rest[0] != open {
		m.broken = true
		return false
	}
	m.begun, m.rest = true, m.rest[1:]
	m.skip()
	ok := false
	if m.name, ok = m.text(0); ok {
		m.skip()
		if ok = len(m.rest) > 0 && m.rest[0] == ':'; ok {
			m.rest = m.rest[1:]
			m.skip()
			if len(m.rest) > 0 && m.rest[0] == '"' {
				m.value, ok = m.text(1)
			} else {
				n := 0
				for n < len(m.rest) && m.rest[n] != ',' && m.rest[n] != shut && m.rest[n] != ' ' {
					n++
				}
				m.value, m.rest, ok = m.rest[:n], m.rest[n:], n > 0
			}
		}
	}
	m.broken = m.broken || !ok
	return ok
}

func (m *members) skip() {
	for len(m.rest) > 0 && m.rest[0] == ' ' {
		m.rest = m.rest[1:]
	}
}

// text reads a string.
func (m *members) text(into int) ([]byte, bool) {
	if len(m.rest) == 0 || m.rest[0] != '"' {
		return nil, false
	}
	escaped := false
	for i := 1; i < len(m.rest); i++ {
		switch m.rest[i] {
		case '\\':
			escaped = true
			i++
		case '"':
			s := m.rest[:i+1]
			m.rest = m.rest[i+1:]
			if !escaped {
				return s[1:i], true
			}
			var text string
			if json.Unmarshal(s, &text) != nil {
				return nil, false
			}
			m.space[into] = append(m.space[into][:0], text...)
			return m.space[into], true
		}
	}
	return nil, false
}

// appendObject prints a STRUCT as a JSON object of its fields, in their order.
func (c *cells) appendObject(dst []byte, row int) []byte {
	dst = append(dst, '{')
	for i := range c.fields {
		f := &c.fields[i]
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = append(appendQuoted(dst, []byte(c.names[i])), ": "...)
		switch {
		case f.null(row):
			dst = append(dst, "null"...)
		case f.typ.store == asSmallint, f.typ.store == asInteger, f.typ.store == asBigint, f.typ.store == asDecimal:
			dst = f.text(dst, row)
		default:
			dst = appendQuoted(dst, f.text(nil, row))
		}
	}
	return append(dst, '}')
}

// appendQuoted prints a JSON string with no more escapes than it must have.
func appendQuoted(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
