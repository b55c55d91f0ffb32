package source

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Querier is a Source that can describe what a query gives. Its snapshots copy a query's
// rows too (CopyRequest.Query).
type Querier interface {
	// DescribeQuery returns the columns of a query's rows as a table without name and
	// number: names, types, nullability (true where it cannot be known). It reads no rows.
	// A query that is no single statement that only reads (SELECT, WITH, VALUES, TABLE) is
	// refused; so are two columns with one name.
	DescribeQuery(ctx context.Context, query string) (*change.Table, error)
}

// QueryRemedy is what mends a query that was refused.
const QueryRemedy = "correct the query: one statement that reads alone (SELECT, WITH ... SELECT, VALUES or TABLE), each column with a name of its own"

// Query is one reading statement, ready to be put in parentheses.
type Query struct {
	// Text is what was written, up to the semicolon at its end. It may end in a comment of
	// one line: what follows it begins a new line.
	Text string
	// Words are its keywords and names that are not quoted, in upper case.
	Words []string
}

// ReadQuery looks at a query without understanding more of it than where its words,
// quotes and comments are, which mysql writes in ways of its own. It refuses what is no
// single statement that could be read from; whether it is correct the server says.
func ReadQuery(text string, mysql bool) (*Query, error) {
	switch {
	case !utf8.ValidString(text):
		return nil, fault.Refuse(QueryRemedy, "the query is not UTF-8")
	case strings.IndexByte(text, 0) >= 0:
		return nil, fault.Refuse(QueryRemedy, "the query holds the character NUL")
	}
	q := &Query{Text: text}
	ended := false
	l := queryLexer{text: text, mysql: mysql}
	for {
		from, piece := l.next()
		switch {
		case piece == "":
			return q, q.judge()
		case piece == ";":
			if !ended && len(q.Words) > 0 {
				q.Text, ended = text[:from], true
			}
		case ended:
			return nil, fault.Refuse(QueryRemedy, "the query is more than one statement: something stands behind the semicolon, %s", (&Query{Text: text}).Place(from))
		case isWordByte(piece[0]):
			q.Words = append(q.Words, strings.ToUpper(piece))
		case len(q.Words) == 0 && piece != "(":
			return nil, fault.Refuse(QueryRemedy, "the query does not begin with a keyword")
		}
	}
}

func (q *Query) judge() error {
	if len(q.Words) == 0 {
		return fault.Refuse(QueryRemedy, "the query is empty")
	}
	if !slices.Contains([]string{"SELECT", "WITH", "VALUES", "TABLE"}, q.Words[0]) {
		return fault.Refuse(QueryRemedy, "the query is no SELECT: it begins with another word")
	}
	return nil
}

// Has reports whether the words stand in the query one behind the other.
func (q *Query) Has(words ...string) bool {
	for i := 0; i+len(words) <= len(q.Words); i++ {
		if slices.Equal(q.Words[i:i+len(words)], words) {
			return true
		}
	}
	return false
}

// Place names the place of a byte of the text, or its end, for people.
func (q *Query) Place(at int) string {
	before := q.Text[:min(max(at, 0), len(q.Text))]
	line := strings.LastIndexByte(before, '\n') + 1
	return fmt.Sprintf("line %d, character %d", strings.Count(before, "\n")+1, utf8.RuneCountInString(before[line:])+1)
}

// queryLexer cuts a query into words, quoted pieces and single characters.
type queryLexer struct {
	text  string
	at    int
	mysql bool
}

// next returns the next piece and where it begins: a word, one character, or of what is
// quoted its first quote alone. "" is the end.
func (l *queryLexer) next() (from int, piece string) {
	for l.at < len(l.text) {
		from = l.at
		rest := l.text[from:]
		c := rest[0]
		switch {
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
			l.at++
		case l.lineComment(rest):
			l.skipPast("\n")
		case l.mysql && (strings.HasPrefix(rest, "/*!") || strings.HasPrefix(rest, "/*M!")):
			// What stands in it the server executes.
			l.at += strings.IndexByte(rest, '!') + 1
			for l.at < len(l.text) && l.text[l.at] >= '0' && l.text[l.at] <= '9' {
				l.at++
			}
		case strings.HasPrefix(rest, "/*"):
			l.blockComment()
		case c == '\'', c == '"', c == '`' && l.mysql:
			l.quoted(c, l.mysql && c != '`')
			return from, rest[:1]
		case !l.mysql && c == '$' && dollarTag(rest) != "":
			tag := dollarTag(rest)
			l.at += len(tag)
			l.skipPast(tag)
			return from, rest[:1]
		case isWordByte(c):
			for l.at < len(l.text) && (isWordByte(l.text[l.at]) || l.text[l.at] == '$') {
				l.at++
			}
			piece = l.text[from:l.at]
			if !l.mysql && strings.EqualFold(piece, "e") && strings.HasPrefix(l.text[l.at:], "'") {
				l.quoted('\'', true)
				return from, "'"
			}
			return from, piece
		default:
			l.at++
			return from, rest[:1]
		}
	}
	return l.at, ""
}

// lineComment reports a comment up to the end of its line. In MySQL -- is one only before
// a blank.
func (l *queryLexer) lineComment(rest string) bool {
	if !l.mysql {
		return strings.HasPrefix(rest, "--")
	}
	return rest[0] == '#' || rest == "--" || strings.HasPrefix(rest, "--") && rest[2] <= ' '
}

// skipPast moves behind the next end, or to the end of the text.
func (l *queryLexer) skipPast(end string) {
	n := strings.Index(l.text[l.at:], end)
	if n < 0 {
		l.at = len(l.text)
		return
	}
	l.at += n + len(end)
}

// blockComment moves behind a comment. In PostgreSQL comments may hold comments.
func (l *queryLexer) blockComment() {
	for depth := 0; l.at < len(l.text); {
		switch rest := l.text[l.at:]; {
		case strings.HasPrefix(rest, "/*") && (depth == 0 || !l.mysql):
			depth++
			l.at += 2
		case strings.HasPrefix(rest, "*/"):
			depth--
			l.at += 2
			if depth == 0 {
				return
			}
		default:
			l.at++
		}
	}
}

// quoted moves behind what begins with a quote here.
func (l *queryLexer) quoted(quote byte, escapes bool) {
	for l.at++; l.at < len(l.text); l.at++ {
		switch c := l.text[l.at]; {
		case c == '\\' && escapes:
			l.at++
		case c != quote:
		case l.at+1 < len(l.text) && l.text[l.at+1] == quote:
			l.at++
		default:
			l.at++
			return
		}
	}
	l.at = min(l.at, len(l.text))
}

// dollarTag is the $tag$ that text begins with, or "".
func dollarTag(text string) string {
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '$':
			return text[:i+1]
		case !isWordByte(c), i == 1 && c >= '0' && c <= '9':
			return ""
		}
	}
	return ""
}

func isWordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf
}
