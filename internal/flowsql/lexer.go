package flowsql

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pos is a place in a file: a byte offset from 0.
type Pos int

type tokenKind uint8

const (
	tokEnd    tokenKind = iota // of a statement: its semicolon or the end of the file
	tokWord                    // a bare name or keyword
	tokQuoted                  // `name`
	tokString                  // '...', "...", r'...', with quotes and prefix
	tokNumber                  // as written
	tokOp                      // operator or punctuation
)

// token is a piece of a file; text is as written, quotes included.
type token struct {
	kind  tokenKind
	text  string
	pos   Pos
	blank bool // white space or a comment stands before
}

func (t token) end() Pos { return t.pos + Pos(len(t.text)) }

func (t token) is(op string) bool { return t.kind == tokOp && t.text == op }

func (t token) word(words ...string) bool {
	return t.kind == tokWord && slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(t.text, w) })
}

// String describes the token for messages.
func (t token) String() string {
	switch t.kind {
	case tokEnd:
		if t.text == "" {
			return "the end of the file"
		}
		return "the end of the statement"
	case tokString:
		if len(t.text) > 40 {
			return "a string"
		}
	}
	return t.text
}

// operators, longer ones before those that begin them.
var operators = []string{
	"<=>", "->>", "=>", "->", "::", "<=", ">=", "<>", "!=", "==", "||",
	"(", ")", "[", "]", ",", ".", ":", ";", "+", "-", "*", "/", "%", "=", "<", ">", "!", "&", "|", "^", "~", "?",
}

// lexer cuts a file into statements of tokens. A semicolon always ends one, so that an
// error in one says nothing of the next.
type lexer struct {
	file *File
	at   int
}

// lex returns the statements of a file, each with a tokEnd at its end; empty ones are
// left out. Strings and comments that are not closed are problems of the whole file.
func lex(f *File) (statements [][]token, problem *Problem) {
	l := &lexer{file: f}
	if strings.HasPrefix(f.Text, "\ufeff") {
		l.at = len("\ufeff")
	}
	var current []token
	for {
		blank, problem := l.skip()
		if problem != nil {
			return nil, problem
		}
		if l.at == len(f.Text) {
			if len(current) > 0 {
				statements = append(statements, append(current, token{kind: tokEnd, pos: Pos(l.at)}))
			}
			return statements, nil
		}
		t, problem := l.next()
		if problem != nil {
			return nil, problem
		}
		t.blank = blank
		switch {
		case !t.is(";"):
			current = append(current, t)
		case len(current) > 0:
			t.kind = tokEnd
			statements, current = append(statements, append(current, t)), nil
		}
	}
}

// skip passes white space and comments: -- to the end of the line, and /* ... */, which
// nest.
func (l *lexer) skip() (blank bool, problem *Problem) {
	text := l.file.Text
	for start := l.at; l.at < len(text); {
		r, n := utf8.DecodeRuneInString(text[l.at:])
		switch {
		case unicode.IsSpace(r):
			l.at += n
		case strings.HasPrefix(text[l.at:], "--"):
			end := strings.IndexByte(text[l.at:], '\n')
			if end < 0 {
				end = len(text) - l.at
			}
			l.at += end
		case strings.HasPrefix(text[l.at:], "/*"):
			if problem := l.comment(); problem != nil {
				return false, problem
			}
		default:
			return l.at > start, nil
		}
	}
	return true, nil
}

func (l *lexer) comment() *Problem {
	text, start, depth := l.file.Text, l.at, 0
	for l.at < len(text) {
		switch {
		case strings.HasPrefix(text[l.at:], "/*"):
			depth++
			l.at += 2
		case strings.HasPrefix(text[l.at:], "*/"):
			depth--
			l.at += 2
			if depth == 0 {
				return nil
			}
		default:
			l.at++
		}
	}
	return l.file.problem(Pos(start), Pos(start+2), "close it with */", "the comment that begins here is not closed")
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func startsWord(r rune) bool { return r == '_' || unicode.IsLetter(r) }

func inWord(r rune) bool { return startsWord(r) || unicode.IsDigit(r) || unicode.IsMark(r) }

func (l *lexer) next() (token, *Problem) {
	text, i := l.file.Text, l.at
	take := func(kind tokenKind, end int) (token, *Problem) {
		l.at = end
		return token{kind: kind, text: text[i:end], pos: Pos(i)}, nil
	}
	c := text[i]
	switch {
	case c == '\'' || c == '"':
		return l.quoted(tokString, i, i, false)
	case c == '`':
		return l.quoted(tokQuoted, i, i, false)
	case c|0x20 == 'r' && i+1 < len(text) && (text[i+1] == '\'' || text[i+1] == '"'):
		return l.quoted(tokString, i, i+1, true)
	case isDigit(c) || c == '.' && i+1 < len(text) && isDigit(text[i+1]):
		return take(tokNumber, numberEnd(text, i))
	}
	if r, _ := utf8.DecodeRuneInString(text[i:]); startsWord(r) {
		end := i
		for end < len(text) {
			r, n := utf8.DecodeRuneInString(text[end:])
			if !inWord(r) {
				break
			}
			end += n
		}
		return take(tokWord, end)
	}
	for _, op := range operators {
		if strings.HasPrefix(text[i:], op) {
			return take(tokOp, i+len(op))
		}
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	hint := ""
	switch {
	case strings.ContainsRune("‘’“”´", r):
		hint = "this is a typographic quote; strings stand in ' or \", names in `"
	case strings.HasPrefix(text[i:], "${"):
		hint = "parameters are not replaced in SQL files: write the value"
	case r == utf8.RuneError:
		hint = "the file is to be UTF-8"
	}
	return token{}, l.file.problem(Pos(i), Pos(i+n), hint, "unexpected character %q", r)
}

// quoted reads a quoted token whose quote stands at open. A doubled quote inside is one;
// in a string that is not raw, a backslash takes the next character with it.
func (l *lexer) quoted(kind tokenKind, start, open int, raw bool) (token, *Problem) {
	text := l.file.Text
	quote, what := text[open], "string"
	if kind == tokQuoted {
		what = "name"
	}
	for i := open + 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && kind == tokString && !raw:
			i++
		case text[i] == 0 || text[i] == '\n' && kind == tokQuoted:
			return token{}, l.file.problem(Pos(start), Pos(open+1), "", "the %s that begins here holds a character that it cannot", what)
		case text[i] != quote:
		case i+1 < len(text) && text[i+1] == quote:
			i++
		case kind == tokQuoted && i == open+1:
			return token{}, l.file.problem(Pos(start), Pos(i+1), "", "an empty name")
		case !utf8.ValidString(text[start : i+1]):
			return token{}, l.file.problem(Pos(start), Pos(open+1), "the file is to be UTF-8", "the %s that begins here is not valid UTF-8", what)
		default:
			l.at = i + 1
			return token{kind: kind, text: text[start:l.at], pos: Pos(start)}, nil
		}
	}
	return token{}, l.file.problem(Pos(start), Pos(open+1), "a quote inside is written twice", "the %s that begins here is not closed by %c", what, quote)
}

// numberEnd is the end of digits, a point, an exponent and a suffix such as L.
func numberEnd(text string, i int) int {
	digits := func() {
		for i < len(text) && isDigit(text[i]) {
			i++
		}
	}
	digits()
	if i < len(text) && text[i] == '.' {
		i++
		digits()
	}
	if i+1 < len(text) && text[i]|0x20 == 'e' && (isDigit(text[i+1]) || i+2 < len(text) && (text[i+1] == '+' || text[i+1] == '-') && isDigit(text[i+2])) {
		i += 2
		digits()
	}
	for i < len(text) {
		r, n := utf8.DecodeRuneInString(text[i:])
		if !inWord(r) {
			break
		}
		i += n
	}
	return i
}

// unquoteName takes the quotes off a name in backticks or double quotes.
func unquoteName(text string) string {
	quote := text[:1]
	return strings.ReplaceAll(text[1:len(text)-1], quote+quote, quote)
}

// unquoteString is the value of a string as Spark reads it: a backslash escapes, unless
// the string is raw.
func unquoteString(text string) string {
	raw := text[0]|0x20 == 'r'
	if raw {
		text = text[1:]
	}
	quote, body := text[0], text[1:len(text)-1]
	var b strings.Builder
	for i := 0; i < len(body); i++ {
		switch {
		case body[i] == quote: // doubled
			i++
			b.WriteByte(quote)
		case body[i] == '\\' && !raw && i+1 < len(body):
			i++
			i += escape(&b, body[i:]) - 1
		default:
			b.WriteByte(body[i])
		}
	}
	return b.String()
}

// escape writes what stands behind a backslash and returns how many bytes of it were
// taken. The rules are those of Spark's string literals.
func escape(b *strings.Builder, rest string) int {
	switch c := rest[0]; c {
	case 'n':
		b.WriteByte('\n')
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case 'b':
		b.WriteByte('\b')
	case 'Z':
		b.WriteByte(0x1a)
	case '%', '_': // kept for LIKE
		b.WriteByte('\\')
		b.WriteByte(c)
	case 'u', 'U':
		digits := map[byte]int{'u': 4, 'U': 8}[c]
		if len(rest) > digits {
			if r, ok := hexRune(rest[1 : 1+digits]); ok {
				b.WriteRune(r)
				return 1 + digits
			}
		}
		b.WriteByte(c)
	default:
		_, n := utf8.DecodeRuneInString(rest)
		b.WriteString(rest[:n])
		return n
	}
	return 1
}

func hexRune(digits string) (r rune, ok bool) {
	var n uint32
	for i := range len(digits) {
		c := digits[i]
		switch {
		case isDigit(c):
			n = n<<4 | uint32(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | uint32(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	r = rune(n)
	return r, n != 0 && n <= unicode.MaxRune && utf8.ValidRune(r)
}
