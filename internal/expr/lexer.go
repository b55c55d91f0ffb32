package expr

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"tailrace/internal/fault"
)

type tokenKind uint8

const (
	tokEnd    tokenKind = iota
	tokWord             // bare identifier or keyword
	tokQuoted           // `identifier`
	tokString           // '...' or "..."
	tokBytes            // X'...'
	tokNumber           // digits with point, exponent and suffix as written
	tokOp               // operator or punctuation
)

type token struct {
	kind tokenKind
	text string // words as written; quoted things without quotes
	pos  int    // byte offset in the text
}

func (t token) String() string {
	switch t.kind {
	case tokEnd:
		return "the end of the expression"
	case tokString:
		return "a string"
	case tokBytes:
		return "a binary literal"
	case tokQuoted:
		return "`" + t.text + "`"
	}
	return t.text
}

// operators, longest first where one begins another.
var operators = []string{
	"<=>", "->>", "->", "::", "<=", ">=", "<>", "!=", "==", "||",
	"(", ")", "[", "]", ",", ".", ":", "+", "-", "*", "/", "%", "=", "<", ">", "!",
}

// place turns a byte offset into line and column, both from 1; columns count
// characters.
func place(text string, pos int) (line, column int) {
	before := text[:min(pos, len(text))]
	line = 1 + strings.Count(before, "\n")
	return line, 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
}

// misread is where a text does not compile, and why.
type misread struct {
	pos int
	why string
}

func (m *misread) Error() string { return m.why }

// badly makes the error of a text that does not compile.
func badly(text string, pos int, format string, args ...any) error {
	line, column := place(text, pos)
	return &fault.Error{Kind: fault.Usage, Op: fmt.Sprintf("line %d, column %d", line, column), Err: &misread{pos, fmt.Sprintf(format, args...)}}
}

// Check parses text without columns. It returns the byte at which the text cannot be
// read, and why; -1 if it can, whatever it names.
func Check(text string) (pos int, why string) {
	_, err := parse(text)
	var m *misread
	if errors.As(err, &m) {
		return m.pos, m.why
	}
	return -1, ""
}

// lex splits text into tokens; the last one is tokEnd.
func lex(text string) ([]token, error) {
	var tokens []token
	i := 0
	for {
		skipped, err := skipBlank(text, i)
		if err != nil {
			return nil, err
		}
		i = skipped
		if i == len(text) {
			return append(tokens, token{tokEnd, "", i}), nil
		}
		t, next, err := lexOne(text, i)
		if err != nil {
			return nil, err
		}
		tokens, i = append(tokens, t), next
	}
}

// skipBlank passes white space and comments: -- to the end of the line, and
// /* ... */.
func skipBlank(text string, i int) (int, error) {
	for i < len(text) {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case unicode.IsSpace(r):
			i += n
		case strings.HasPrefix(text[i:], "--"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return len(text), nil
			}
			i += end
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return i, badly(text, i, "the comment /* is not closed")
			}
			i += end + 4
		default:
			return i, nil
		}
	}
	return i, nil
}

func lexOne(text string, i int) (token, int, error) {
	c := text[i]
	switch {
	case c == '\'' || c == '"' || c == '`':
		return lexQuoted(text, i, i)
	case (c|0x20 == 'x' || c|0x20 == 'r') && i+1 < len(text) && (text[i+1] == '\'' || text[i+1] == '"'):
		t, next, err := lexQuoted(text, i, i+1)
		if c|0x20 == 'x' {
			t.kind = tokBytes
		}
		return t, next, err
	case isDigit(c) || c == '.' && i+1 < len(text) && isDigit(text[i+1]):
		return lexNumber(text, i)
	}
	if r, _ := utf8.DecodeRuneInString(text[i:]); startsWord(r) {
		end := i
		for end < len(text) {
			r, n := utf8.DecodeRuneInString(text[end:])
			if !startsWord(r) && !unicode.IsDigit(r) && r != '$' {
				break
			}
			end += n
		}
		return token{tokWord, text[i:end], i}, end, nil
	}
	for _, op := range operators {
		if strings.HasPrefix(text[i:], op) {
			return token{tokOp, op, i}, i + len(op), nil
		}
	}
	r, _ := utf8.DecodeRuneInString(text[i:])
	return token{}, i, badly(text, i, "unexpected character %q", r)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func startsWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) && r != utf8.RuneError
}

// lexQuoted reads a quoted token whose quote stands at open; a doubled quote
// inside stands for one. A backslash is an ordinary character.
func lexQuoted(text string, start, open int) (token, int, error) {
	quote := text[open]
	kind, what := tokString, "string"
	if quote == '`' {
		kind, what = tokQuoted, "name"
	}
	var b strings.Builder
	for i := open + 1; i < len(text); i++ {
		if text[i] != quote {
			b.WriteByte(text[i])
			continue
		}
		if i+1 < len(text) && text[i+1] == quote {
			b.WriteByte(quote)
			i++
			continue
		}
		if kind == tokQuoted && b.Len() == 0 {
			return token{}, i, badly(text, start, "an empty name")
		}
		if !utf8.ValidString(b.String()) || strings.IndexByte(b.String(), 0) >= 0 {
			return token{}, i, badly(text, start, "the %s is not valid UTF-8 text", what)
		}
		return token{kind, b.String(), start}, i + 1, nil
	}
	return token{}, len(text), badly(text, start, "the %s that begins here is not closed by %c (a quote inside is written twice, not with a backslash)", what, quote)
}

// lexNumber reads digits, a point, an exponent and one of Spark's suffixes.
func lexNumber(text string, i int) (token, int, error) {
	end := i
	digits := func() {
		for end < len(text) && isDigit(text[end]) {
			end++
		}
	}
	digits()
	if end < len(text) && text[end] == '.' {
		end++
		digits()
	}
	if end < len(text) && text[end]|0x20 == 'e' {
		exp := end + 1
		if exp < len(text) && (text[exp] == '+' || text[exp] == '-') {
			exp++
		}
		if exp < len(text) && isDigit(text[exp]) {
			end = exp
			digits()
		}
	}
	body := end
	for end < len(text) {
		r, n := utf8.DecodeRuneInString(text[end:])
		if !startsWord(r) && !unicode.IsDigit(r) {
			break
		}
		end += n
	}
	switch strings.ToUpper(text[body:end]) {
	case "", "L", "S", "Y", "D", "F", "BD":
		return token{tokNumber, text[i:end], i}, end, nil
	}
	return token{}, end, badly(text, i, "%s is not a number (a name that begins with a digit is written in backticks)", text[i:end])
}
