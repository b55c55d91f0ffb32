package files

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// tokenKind is what a JSON value is.
type tokenKind uint8

const (
	notSent tokenKind = iota
	isNull
	isTrue
	isFalse
	isNumber
	isString
	isNested // object or array
)

// token is one JSON value inside a record.
type token struct {
	kind       tokenKind
	escaped    bool // isString: it holds escapes. isNested: blanks lie between its tokens
	renamed    bool // found by a name that differs in case
	start, end int32
}

// member is a name and value of the record that no column has exactly.
type member struct {
	nameStart, nameEnd int32
	nameEscaped        bool
	value              token
}

// maxNesting is encoding/json's limit; the record itself is the first level.
const maxNesting = 10000

// scanner checks one JSON object against RFC 8259, completely, and notes where the
// value of each column is: a single pass, no tree, no allocation. Beyond the grammar
// it refuses what no database can hold: bytes that are not UTF-8, the character NUL,
// half a surrogate pair.
//
// Functions take the index to begin at and return the one behind, or -1 after fail.
type scanner struct {
	b       []byte
	tokens  []token  // one a column
	extra   []member // in the order of the record
	escaped bool     // the string read last holds escapes
	spaced  bool     // blanks were met

	at        int    // where the flaw is
	what      string // what it is
	character bool   // the grammar is kept; a character is the flaw
}

func (s *scanner) fail(at int, what string) int {
	s.at, s.what = at, what
	return -1
}

func (s *scanner) refuse(at int, what string) bool {
	s.fail(at, what)
	return false
}

const (
	flawEnds      = "the record ends in the middle"
	flawNotObject = "not a JSON object in one line"
	flawUTF8      = "bytes that are not UTF-8"
	flawNUL       = `the character NUL (\u0000), which no database can hold in text`
	flawHalf      = "one half of a surrogate pair without the other"
)

// record scans b, which is one object and blanks around it. False: at, what and
// character tell the flaw.
func (s *scanner) record(b []byte, l *layout) bool {
	s.b, s.extra, s.character = b, s.extra[:0], false
	clear(s.tokens)
	if !utf8.Valid(b) {
		s.character = true
		for s.at = 0; s.at < len(b); {
			r, n := utf8.DecodeRune(b[s.at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			s.at += n
		}
		s.what = flawUTF8
		return false
	}
	i := s.blanks(0)
	if i == len(b) || b[i] != '{' {
		return s.refuse(i, flawNotObject)
	}
	i = s.blanks(i + 1)
	if i < len(b) && b[i] == '}' {
		return s.end(i + 1)
	}
	for guess := 0; ; guess++ {
		if i == len(b) {
			return s.refuse(i, flawEnds)
		}
		if b[i] != '"' {
			return s.refuse(i, "a name in quotes is missing")
		}
		name := i + 1
		if i = s.str(i); i < 0 {
			return false
		}
		nameEnd, nameEscaped := i-1, s.escaped
		if i = s.colon(i); i < 0 {
			return false
		}
		var t token
		if i, t = s.token(i); i < 0 {
			return false
		}
		column := -1
		if !nameEscaped {
			column = l.exact(b[name:nameEnd], guess)
		}
		if column >= 0 {
			s.tokens[column] = t
			guess = column
		} else {
			s.extra = append(s.extra, member{int32(name), int32(nameEnd), nameEscaped, t})
		}
		i = s.blanks(i)
		if i == len(b) {
			return s.refuse(i, flawEnds)
		}
		switch b[i] {
		case ',':
			i = s.blanks(i + 1)
		case '}':
			return s.end(i + 1)
		default:
			return s.refuse(i, "a comma or } is missing")
		}
	}
}

// end sees that nothing follows the object.
func (s *scanner) end(i int) bool {
	if i = s.blanks(i); i < len(s.b) {
		return s.refuse(i, "something follows the object")
	}
	return true
}

func (s *scanner) blanks(i int) int {
	for i < len(s.b) {
		switch s.b[i] {
		case ' ', '\t', '\n', '\r':
			i++
			s.spaced = true
		default:
			return i
		}
	}
	return i
}

func (s *scanner) colon(i int) int {
	i = s.blanks(i)
	if i == len(s.b) {
		return s.fail(i, flawEnds)
	}
	if s.b[i] != ':' {
		return s.fail(i, "a colon is missing")
	}
	return s.blanks(i + 1)
}

// token reads one value of the record itself.
func (s *scanner) token(i int) (int, token) {
	if i == len(s.b) {
		return s.fail(i, flawEnds), token{}
	}
	t := token{start: int32(i)}
	switch c := s.b[i]; c {
	case '"':
		t.kind = isString
		i = s.str(i)
		t.escaped = s.escaped
	case '{', '[':
		t.kind, s.spaced = isNested, false
		i = s.nested(i, 2)
		t.escaped = s.spaced
	case 't':
		t.kind = isTrue
		i = s.literal(i, "true")
	case 'f':
		t.kind = isFalse
		i = s.literal(i, "false")
	case 'n':
		t.kind = isNull
		i = s.literal(i, "null")
	default:
		t.kind = isNumber
		i = s.number(i)
	}
	t.end = int32(i)
	return i, t
}

// value reads any value.
func (s *scanner) value(i, depth int) int {
	if i == len(s.b) {
		return s.fail(i, flawEnds)
	}
	switch s.b[i] {
	case '"':
		return s.str(i)
	case '{', '[':
		return s.nested(i, depth)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	}
	return s.number(i)
}

// nested reads an object or an array, which is level depth.
func (s *scanner) nested(i, depth int) int {
	if depth > maxNesting {
		return s.fail(i, "more than 10000 levels of nesting")
	}
	object := s.b[i] == '{'
	closing := byte(']')
	if object {
		closing = '}'
	}
	i = s.blanks(i + 1)
	if i < len(s.b) && s.b[i] == closing {
		return i + 1
	}
	for {
		if object {
			switch {
			case i == len(s.b):
				return s.fail(i, flawEnds)
			case s.b[i] != '"':
				return s.fail(i, "a name in quotes is missing")
			}
			if i = s.str(i); i < 0 {
				return -1
			}
			if i = s.colon(i); i < 0 {
				return -1
			}
		}
		if i = s.value(i, depth+1); i < 0 {
			return -1
		}
		i = s.blanks(i)
		if i == len(s.b) {
			return s.fail(i, flawEnds)
		}
		switch s.b[i] {
		case ',':
			i = s.blanks(i + 1)
		case closing:
			return i + 1
		default:
			return s.fail(i, "a comma or the closing bracket is missing")
		}
	}
}

func (s *scanner) literal(i int, word string) int {
	for n := range len(word) {
		if i+n == len(s.b) {
			return s.fail(i+n, flawEnds)
		}
		if s.b[i+n] != word[n] {
			return s.fail(i, "no JSON value")
		}
	}
	return i + len(word)
}

func (s *scanner) digits(i int) int {
	from := i
	for i < len(s.b) && s.b[i]-'0' <= 9 {
		i++
	}
	switch {
	case i > from:
		return i
	case i == len(s.b):
		return s.fail(i, flawEnds)
	}
	return s.fail(i, "a digit is missing")
}

func (s *scanner) number(i int) int {
	b := s.b
	if b[i] == '-' {
		i++
	} else if b[i]-'0' > 9 {
		return s.fail(i, "no JSON value")
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = s.digits(i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = s.digits(i + 1); i < 0 {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return s.digits(i)
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// str reads a string; the record is known to be UTF-8.
func (s *scanner) str(i int) int {
	b := s.b
	s.escaped = false
	i++
	for {
		// Eight bytes at a time up to the next quote, backslash or control character:
		// the lowest marked byte is exact, those above it may be false.
		for len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			quote, slash := w^(ones*'"'), w^(ones*'\\')
			marks := ((w-ones*' ')&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
			if marks != 0 {
				i += bits.TrailingZeros64(marks) / 8
				break
			}
			i += 8
		}
		for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
			i++
		}
		if i == len(b) {
			return s.fail(i, flawEnds)
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			s.escaped = true
			if i = s.escape(i); i < 0 {
				return -1
			}
		default:
			return s.fail(i, "a control character inside a string")
		}
	}
}

func (s *scanner) escape(i int) int {
	if i+1 == len(s.b) {
		return s.fail(i+1, flawEnds)
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return s.fail(i, "an escape that JSON does not have")
	}
	unit, next := s.unit(i)
	if next < 0 {
		return -1
	}
	switch {
	case unit == 0:
		s.character = true
		return s.fail(i, flawNUL)
	case unit>>11 != 0xD800>>11:
		return next
	case unit < 0xDC00 && next+1 < len(s.b) && s.b[next] == '\\' && s.b[next+1] == 'u':
		low, after := s.unit(next)
		if after < 0 {
			return -1
		}
		if low>>10 == 0xDC00>>10 {
			return after
		}
	}
	s.character = true
	return s.fail(i, flawHalf)
}

// unit reads \uXXXX.
func (s *scanner) unit(i int) (unit rune, next int) {
	for n := i + 2; n < i+6; n++ {
		if n == len(s.b) {
			return 0, s.fail(n, flawEnds)
		}
		d := unhex[s.b[n]]
		if d > 15 {
			return 0, s.fail(i, "an escape that JSON does not have")
		}
		unit = unit<<4 | rune(d)
	}
	return unit, i + 6
}

// unhex maps a hexadecimal digit to its value and everything else to 255.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i := range byte(10) {
		t['0'+i] = i
	}
	for i := range byte(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// unescape appends the characters of a string's inside, which the scanner has
// accepted.
func unescape(dst, inside []byte) []byte {
	for i := 0; i < len(inside); {
		c := inside[i]
		if c != '\\' {
			from := i
			for i < len(inside) && inside[i] != '\\' {
				i++
			}
			dst = append(dst, inside[from:i]...)
			continue
		}
		c = inside[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := hexUnit(inside[i:])
			i += 4
			if r>>10 == 0xD800>>10 {
				r = 0x10000 + (r-0xD800)<<10 + hexUnit(inside[i+2:]) - 0xDC00
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

func hexUnit(b []byte) rune {
	return rune(unhex[b[0]])<<12 | rune(unhex[b[1]])<<8 | rune(unhex[b[2]])<<4 | rune(unhex[b[3]])
}

// compact appends JSON without the blanks between its tokens.
func compact(dst, value []byte) []byte {
	inside := false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			inside = !inside
			dst = append(dst, c)
		case inside && c == '\\':
			dst = append(dst, c, value[i+1])
			i++
		case inside || c > ' ':
			dst = append(dst, c)
		}
	}
	return dst
}

// jsonText reports whether text is one JSON value of the scanner's rules, and
// whether blanks lie in it.
func jsonText(text []byte) (ok, spaced bool) {
	s := scanner{b: text}
	i := s.blanks(0)
	if i == len(text) {
		return false, false
	}
	if i = s.value(i, 1); i < 0 {
		return false, false
	}
	return s.blanks(i) == len(text), s.spaced
}
