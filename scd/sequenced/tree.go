package sequenced

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// tree is a JSON value that is written leaf by leaf: objects are branches, anything
// else is a leaf; a null inside an object means "not sent" (rules R45, R47). Arrays
// are leaves.
type tree struct {
	whole    bool // nothing below this place shows anything older
	leaf     []byte
	branches map[string]*tree // nil: a leaf
}

// parseTree reads a JSON text. A value that is no object is whole.
func parseTree(text []byte) (*tree, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	t, err := readTree(d, 0)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = fmt.Errorf("more than one value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("a value of a JSON column is malformed: %w", err)
	}
	return t, nil
}

// deepest is far beyond any document that databases accept (PostgreSQL's own limit
// is its stack, some 6,000 levels).
const deepest = 10000

func readTree(d *json.Decoder, depth int) (*tree, error) {
	if depth > deepest {
		return nil, fmt.Errorf("nested deeper than %d", deepest)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			t := &tree{branches: map[string]*tree{}}
			for d.More() {
				name, err := d.Token()
				if err != nil {
					return nil, err
				}
				child, err := readTree(d, depth+1)
				if err != nil {
					return nil, err
				}
				if child.leaf != nil && string(child.leaf) == "null" {
					continue
				}
				t.branches[name.(string)] = child
			}
			_, err := d.Token()
			return t, err
		}
		leaf := []byte{'['}
		for d.More() {
			if len(leaf) > 1 {
				leaf = append(leaf, ',', ' ')
			}
			child, err := readArrayItem(d, depth+1)
			if err != nil {
				return nil, err
			}
			leaf = append(leaf, child...)
		}
		_, err := d.Token()
		return &tree{whole: true, leaf: append(leaf, ']')}, err
	case string:
		return &tree{whole: true, leaf: appendString(nil, v)}, nil
	case json.Number:
		return &tree{whole: true, leaf: []byte(v)}, nil
	case bool:
		if v {
			return &tree{whole: true, leaf: []byte("true")}, nil
		}
		return &tree{whole: true, leaf: []byte("false")}, nil
	default:
		return &tree{whole: true, leaf: []byte("null")}, nil
	}
}

// readArrayItem keeps nulls: an array is written as a whole.
func readArrayItem(d *json.Decoder, depth int) ([]byte, error) {
	var raw json.RawMessage
	if depth > deepest {
		return nil, fmt.Errorf("nested deeper than %d", deepest)
	}
	if err := d.Decode(&raw); err != nil {
		return nil, err
	}
	return appendCanonical(nil, raw)
}

// under puts an older value beneath t, which is newer, and reports whether anything
// of it is seen, now or when something in between goes.
func (t *tree) under(older *tree) bool {
	if t.whole {
		return false
	}
	if older.branches == nil {
		t.whole = true // the older leaf hides everything older still
		return true
	}
	seen := false
	if older.whole {
		t.whole, seen = true, true
	}
	for name, o := range older.branches {
		mine, ok := t.branches[name]
		switch {
		case !ok:
			t.branches[name] = o
			seen = true
		case mine.under(o):
			seen = true
		}
	}
	return seen
}

// appendJSONB writes the value as PostgreSQL prints jsonb: keys by length, then
// bytewise; a space after colon and comma.
func (t *tree) appendJSONB(dst []byte) []byte {
	if t.branches == nil {
		return append(dst, t.leaf...)
	}
	names := make([]string, 0, len(t.branches))
	for n := range t.branches {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return bytes.Compare([]byte(a), []byte(b))
	})
	dst = append(dst, '{')
	for i, n := range names {
		if i > 0 {
			dst = append(dst, ',', ' ')
		}
		dst = append(appendString(dst, n), ':', ' ')
		dst = t.branches[n].appendJSONB(dst)
	}
	return append(dst, '}')
}

// appendCanonical writes any JSON value in that form, nulls included.
func appendCanonical(dst []byte, raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return dst, err
	}
	return appendAny(dst, v), nil
}

func appendAny(dst []byte, v any) []byte {
	switch v := v.(type) {
	case map[string]any:
		t := tree{branches: map[string]*tree{}}
		for n, x := range v {
			t.branches[n] = &tree{leaf: appendAny(nil, x)}
		}
		return t.appendJSONB(dst)
	case []any:
		dst = append(dst, '[')
		for i, x := range v {
			if i > 0 {
				dst = append(dst, ',', ' ')
			}
			dst = appendAny(dst, x)
		}
		return append(dst, ']')
	case string:
		return appendString(dst, v)
	case json.Number:
		return append(dst, v...)
	case bool:
		if v {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	}
	return append(dst, "null"...)
}

// appendString escapes as PostgreSQL does: no more than it must.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			if c < 0x20 {
				dst = fmt.Appendf(dst, `\u%04x`, c)
			} else {
				dst = append(dst, c)
			}
		}
	}
	return append(dst, '"')
}
