package expr

import (
	"bytes"
	"regexp"
	"unicode/utf8"

	"tailrace/internal/change"
)

// like builds LIKE, ILIKE and RLIKE.
func (c *compiler) like(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	for i := range kids {
		if kids[i], err = c.textual(kids[i]); err != nil {
			return expr{}, err
		}
	}
	if n.word == "RLIKE" {
		e, err := c.matches(n, kids[0], kids[1])
		return negated(e, n.negate), err
	}
	escape := constant(n.pos, typeOf(change.Text), value{b: []byte(`\`)})
	if len(kids) > 2 {
		escape = kids[2]
	}
	fold := n.word == "ILIKE"
	text, pattern := kids[0], kids[1]
	if pattern.known != nil && escape.known != nil && !pattern.known.null && !escape.known.null && !fold {
		mask, err := newMask(nil, pattern.known.b, escape.known.b)
		if err != nil {
			return expr{}, c.fail(pattern.pos, "%s: %v", n.word, err)
		}
		if quick := mask.quick(); quick != nil {
			inner := text.eval
			return negated(condition(n.pos, func(f *frame) (tri, error) {
				v, err := inner(f)
				if err != nil || v.null {
					return unknown, err
				}
				return truth(quick(v.b)), nil
			}), n.negate), nil
		}
	}
	e := strict3(c.site(n, n.word), n.pos, typeOf(change.Bool), text, pattern, escape, func(f *frame, text, pattern, escape value) (value, error) {
		if fold {
			text.b, pattern.b, escape.b = lower(f, text.b), lower(f, pattern.b), lower(f, escape.b)
		}
		start := len(f.buf)
		m, err := newMask(f.buf, pattern.b, escape.b)
		if err != nil {
			return value{}, err
		}
		f.buf = m.codes
		m.codes = f.since(start)
		return value{i: int64(truth(m.match(text.b)))}, nil
	})
	return negated(e, n.negate), nil
}

// mask is a LIKE pattern without escapes: the signs are the bytes 0xFE (any
// character) and 0xFF (any text), which UTF-8 does not use.
type mask struct{ codes []byte }

const (
	anyChar = 0xFE
	anyText = 0xFF
)

// newMask appends the pattern's codes to buf. An empty escape is none.
func newMask(buf, pattern, escape []byte) (mask, error) {
	if len(escape) > 0 {
		if _, n := utf8.DecodeRune(escape); n != len(escape) {
			return mask{}, errEscapeLength
		}
	}
	start := len(buf)
	for i := 0; i < len(pattern); {
		switch c := pattern[i]; {
		case len(escape) > 0 && bytes.HasPrefix(pattern[i:], escape):
			i += len(escape)
			if i == len(pattern) {
				return mask{}, errEscapeEnd
			}
			_, n := utf8.DecodeRune(pattern[i:])
			buf = append(buf, pattern[i:i+n]...)
			i += n
		case c == '_':
			buf = append(buf, anyChar)
			i++
		case c == '%':
			if len(buf) == start || buf[len(buf)-1] != anyText {
				buf = append(buf, anyText)
			}
			i++
		default:
			buf = append(buf, c)
			i++
		}
	}
	return mask{buf}, nil
}

// quick returns the test of a pattern that is a word with anything before or
// after it, or nil.
func (m mask) quick() func([]byte) bool {
	word := m.codes
	before := len(word) > 0 && word[0] == anyText
	if before {
		word = word[1:]
	}
	after := len(word) > 0 && word[len(word)-1] == anyText
	if after {
		word = word[:len(word)-1]
	}
	switch {
	case bytes.IndexByte(word, anyText) >= 0 || bytes.IndexByte(word, anyChar) >= 0:
		return nil
	case len(word) == 0 && before:
		return func([]byte) bool { return true }
	case before && after:
		return func(b []byte) bool { return bytes.Contains(b, word) }
	case before:
		return func(b []byte) bool { return bytes.HasSuffix(b, word) }
	case after:
		return func(b []byte) bool { return bytes.HasPrefix(b, word) }
	}
	return func(b []byte) bool { return bytes.Equal(b, word) }
}

// match goes back only to the last "any text", which suffices, so its time is
// bounded by the product of the lengths.
func (m mask) match(b []byte) bool {
	codes := m.codes
	i, j := 0, 0
	backI, backJ := 0, -1
	for i < len(b) {
		if j < len(codes) {
			switch codes[j] {
			case anyText:
				backI, backJ = i, j
				j++
				continue
			case anyChar:
				_, n := utf8.DecodeRune(b[i:])
				i, j = i+n, j+1
				continue
			case b[i]:
				i, j = i+1, j+1
				continue
			}
		}
		if backJ < 0 {
			return false
		}
		_, n := utf8.DecodeRune(b[backI:])
		backI += n
		i, j = backI, backJ+1
	}
	for j < len(codes) && codes[j] == anyText {
		j++
	}
	return j == len(codes)
}

// regular compiles the pattern of a regular expression, which has to be known: a
// pattern that changes from row to row would be compiled for each.
func (c *compiler) regular(n *node, pattern expr) (*regexp.Regexp, error) {
	if pattern.known == nil {
		return nil, c.fail(pattern.pos, "the pattern of a regular expression must be a literal")
	}
	re, err := regexp.Compile(string(pattern.known.b))
	if err != nil {
		return nil, c.fail(pattern.pos, "the pattern is no regular expression: %v", err)
	}
	return re, nil
}

func (c *compiler) matches(n *node, text, pattern expr) (expr, error) {
	if pattern.known != nil && pattern.known.null {
		return constant(n.pos, typeOf(change.Bool), null), nil
	}
	re, err := c.regular(n, pattern)
	if err != nil {
		return expr{}, err
	}
	return strict1(c.site(n, "RLIKE"), n.pos, typeOf(change.Bool), text, func(_ *frame, v value) (value, error) {
		return value{i: int64(truth(re.Match(v.b)))}, nil
	}), nil
}
