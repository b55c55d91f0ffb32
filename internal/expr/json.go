package expr

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"tailrace/internal/change"
)

// path reads a place of a JSON document as text: a string without its quotes,
// null and a place that does not exist as NULL, everything else as it is written.
// Of a field that is there twice the last one counts, as in PostgreSQL.
func (c *compiler) path(n *node, document expr) (expr, error) {
	return c.pathWith(n, document, n.steps, typeOf(change.Text))
}

func (c *compiler) pathOf(n *node) (expr, error) {
	document, err := c.compile(n.kids[0])
	if err != nil {
		return expr{}, err
	}
	return c.path(n, document)
}

// pathWith yields text, or JSON as it is written if that is wanted. A text that
// is no JSON has no places: it yields NULL.
func (c *compiler) pathWith(n *node, document expr, steps []step, want change.Type) (expr, error) {
	if document.untyped {
		return constant(n.pos, want, null), nil
	}
	trusted := isDocument(document.typ)
	if !trusted && document.typ.Kind != change.Text {
		return expr{}, c.fail(n.pos, "a path leads into a JSON document, this is %s", document.typ.Name)
	}
	asText := want.Kind == change.Text
	return strict1(c.site(n, "the JSON path"), n.pos, want, document, func(f *frame, v value) (value, error) {
		if !trusted && !json.Valid(v.b) {
			return null, nil
		}
		b := trimSpace(v.b)
		for _, s := range steps {
			if b = s.of(b); b == nil {
				return null, nil
			}
		}
		switch {
		case !asText:
			return value{b: b}, nil
		case bytes.Equal(b, []byte("null")):
			return null, nil
		case len(b) > 0 && b[0] == '"':
			text, err := unquote(f, b)
			return value{b: text}, err
		}
		return value{b: b}, nil
	}), nil
}

// of returns the value one step inside, or nil. Documents are valid JSON; on
// others it returns anything, but never panics.
func (s step) of(b []byte) []byte {
	open := byte('{')
	if s.array {
		open = '['
	}
	if len(b) < 2 || b[0] != open {
		return nil
	}
	index := s.index
	if s.array && index < 0 { // from the end: only PostgreSQL's arrow has it
		index += elements(b)
		if index < 0 {
			return nil
		}
	}
	var found []byte
	b = trimSpace(b[1:])
	for i := 0; len(b) > 0 && b[0] != '}' && b[0] != ']'; i++ {
		var key, item []byte
		if !s.array {
			if b[0] != '"' {
				return nil
			}
			key, b = skipJSON(b)
			b = trimSpace(b)
			if len(b) == 0 || b[0] != ':' {
				return nil
			}
			b = trimSpace(b[1:])
		}
		item, b = skipJSON(b)
		switch {
		case s.array && i == index:
			return item
		case !s.array && sameKey(key, s.key):
			found = item
		}
		if b = trimSpace(b); len(b) > 0 && b[0] == ',' {
			b = trimSpace(b[1:])
		}
		if len(item) == 0 {
			return nil
		}
	}
	return found
}

func elements(b []byte) int {
	n := 0
	for b = trimSpace(b[1:]); len(b) > 0 && b[0] != ']'; n++ {
		var item []byte
		if item, b = skipJSON(b); len(item) == 0 {
			return n
		}
		if b = trimSpace(b); len(b) > 0 && b[0] == ',' {
			b = trimSpace(b[1:])
		}
	}
	return n
}

// skipJSON splits one value off b, which begins with it.
func skipJSON(b []byte) (item, rest []byte) {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				end := min(i+1, len(b))
				return b[:end], b[end:]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return b[:i], b[i:]
			}
			if depth--; depth == 0 {
				return b[:i+1], b[i+1:]
			}
		case ',', ' ', '\t', '\n', '\r', ':':
			if depth == 0 {
				return b[:i], b[i:]
			}
		}
	}
	return b, nil
}

// sameKey compares a key in quotes with a name.
func sameKey(quoted []byte, name string) bool {
	if len(quoted) < 2 {
		return false
	}
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner) == name
	}
	var f frame
	plain, err := unquote(&f, quoted)
	return err == nil && string(plain) == name
}

// unquote resolves a JSON string's escapes; without any it is a part of b.
func unquote(f *frame, b []byte) ([]byte, error) {
	b = b[1:max(1, len(b)-1)]
	if bytes.IndexByte(b, '\\') < 0 {
		return b, nil
	}
	start := len(f.buf)
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 == len(b) {
			f.buf = append(f.buf, b[i])
			continue
		}
		i++
		switch c := b[i]; c {
		case 'u':
			r := hexRune(b[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+2 < len(b) && b[i+1] == '\\' && b[i+2] == 'u' {
					low = hexRune(b[i+3:])
				}
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					r, i = pair, i+6
				}
			}
			if r == 0 {
				return nil, errNUL
			}
			f.buf = utf8.AppendRune(f.buf, r)
		default:
			if at := strings.IndexByte("bfnrt", c); at >= 0 {
				c = "\b\f\n\r\t"[at]
			}
			f.buf = append(f.buf, c)
		}
	}
	return f.since(start), nil
}

// hexRune reads four hexadecimal digits; anything else is the replacement sign.
func hexRune(b []byte) rune {
	if len(b) < 4 {
		return utf8.RuneError
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 32)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

// arrow builds PostgreSQL's -> (JSON) and ->> (text).
func (c *compiler) arrow(n *node) (expr, error) {
	document, err := c.compile(n.kids[0])
	if err != nil {
		return expr{}, err
	}
	key := n.kids[1]
	s := step{key: string(key.val.b)}
	switch {
	case key.typ.Kind == change.Text:
	case isInteger(key.typ.Kind):
		s = step{index: int(key.val.i), array: true}
	default:
		return expr{}, c.fail(key.pos, "expected a key in quotes or an index")
	}
	want := typeOf(change.Text)
	if n.word == "->" {
		want = typeOf(change.JSON)
		if document.typ.Kind == change.JSONB {
			want = typeOf(change.JSONB)
		}
	}
	return c.pathWith(n, document, []step{s}, want)
}

// buildGetJSONObject takes Spark's path in a string: $.a.b[0]['c'].
func buildGetJSONObject(c *compiler, n *node, args []expr) (expr, error) {
	path, err := c.literalText(n, args[1], "path")
	if err != nil {
		return expr{}, err
	}
	rest, ok := strings.CutPrefix(path, "$")
	var steps []step
	for ok && rest != "" {
		var s step
		s, rest, ok = cutStep(rest)
		steps = append(steps, s)
	}
	if !ok {
		return expr{}, c.fail(args[1].pos, "get_json_object: the path is of the form $.field[0]['other field'], without *")
	}
	return c.pathWith(n, args[0], steps, typeOf(change.Text))
}

func cutStep(path string) (s step, rest string, ok bool) {
	if name, ok := strings.CutPrefix(path, "."); ok {
		end := strings.IndexAny(name, ".[")
		if end < 0 {
			end = len(name)
		}
		return step{key: name[:end]}, name[end:], end > 0 && name[:end] != "*"
	}
	inner, ok := strings.CutPrefix(path, "[")
	if !ok {
		return s, "", false
	}
	if quoted, ok := strings.CutPrefix(inner, "'"); ok {
		key, rest, ok := strings.Cut(quoted, "']")
		return step{key: key}, rest, ok
	}
	index, rest, ok := strings.Cut(inner, "]")
	n, err := strconv.ParseUint(index, 10, 31)
	return step{index: int(n), array: true}, rest, ok && err == nil
}
