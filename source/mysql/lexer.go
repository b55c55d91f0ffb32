package mysql

import (
	"strings"
	"unicode/utf8"

	"tailrace/internal/change"
)

// wordKind is what a piece of a statement is.
type wordKind uint8

const (
	wordEnd    wordKind = iota // behind the last
	wordOf                     // a keyword or a name
	wordString                 // a text in single quotes, without its content
	wordMark                   // one other character
)

type word struct {
	is     wordKind
	text   string
	quoted bool // a name in quotes: no keyword
}

// upper gives a keyword in upper case; a quoted name is none.
func (w word) upper() string {
	if w.is != wordOf || w.quoted {
		return ""
	}
	return strings.ToUpper(w.text)
}

// lex cuts a statement into words. Double quotes are taken for those of names
// (ANSI_QUOTES), because no text stands where a name is looked for; what stands in
// executable comments (/*!50000 ... */) belongs to the statement.
func lex(text string, noEscapes bool) (words []word) {
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v':
			i++
		case c == '#', strings.HasPrefix(text[i:], "-- "), strings.HasPrefix(text[i:], "--\t"), strings.HasPrefix(text[i:], "--\n"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return words
			}
			i += end + 1
		case strings.HasPrefix(text[i:], "/*!"), strings.HasPrefix(text[i:], "/*M!"):
			i += strings.IndexByte(text[i:], '!') + 1
			for i < len(text) && text[i] >= '0' && text[i] <= '9' {
				i++
			}
		case strings.HasPrefix(text[i:], "/*"):
			end := strings.Index(text[i+2:], "*/")
			if end < 0 {
				return words
			}
			i += end + 4
		case strings.HasPrefix(text[i:], "*/"):
			i += 2
		case c == '`' || c == '"' || c == '\'':
			content, next := quotedText(text, i, c, c != '`' && !noEscapes)
			if i = next; c == '\'' {
				words = append(words, word{is: wordString})
			} else {
				words = append(words, word{is: wordOf, text: content, quoted: true})
			}
		case isNameByte(c):
			from := i
			for i < len(text) && isNameByte(text[i]) {
				i++
			}
			words = append(words, word{is: wordOf, text: text[from:i]})
		default:
			words = append(words, word{is: wordMark, text: text[i : i+1]})
			i++
		}
	}
	return words
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= utf8.RuneSelf
}

// quotedText reads from the quote at i and returns what is inside, and the place behind.
func quotedText(text string, i int, quote byte, escapes bool) (string, int) {
	var b strings.Builder
	for i++; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case text[i] != quote:
			b.WriteByte(text[i])
		case i+1 < len(text) && text[i+1] == quote:
			i++
			b.WriteByte(quote)
		default:
			return b.String(), i + 1
		}
	}
	return b.String(), i
}

// parser walks over words.
type parser struct {
	words  []word
	at     int
	schema string // of names without one
}

func (p *parser) peek() word {
	if p.at < len(p.words) {
		return p.words[p.at]
	}
	return word{}
}

func (p *parser) next() word {
	w := p.peek()
	if w.is != wordEnd {
		p.at++
	}
	return w
}

// skip passes over a keyword or a mark, if it is next.
func (p *parser) skip(what string) bool {
	w := p.peek()
	if w.upper() == what || w.is == wordMark && w.text == what {
		p.at++
		return true
	}
	return false
}

func (p *parser) skipIfExists() {
	if p.skip("IF") {
		p.skip("EXISTS")
	}
}

func (p *parser) skipNumber() bool {
	w := p.peek()
	if w.is == wordOf && !w.quoted && w.text != "" && strings.Trim(w.text, "0123456789") == "" {
		p.at++
		return true
	}
	return false
}

// name reads a table's name, with or without its schema.
func (p *parser) name() (change.Name, bool) {
	w := p.peek()
	if w.is != wordOf {
		return change.Name{}, false
	}
	p.at++
	if !p.skip(".") {
		return change.Name{Schema: p.schema, Table: w.text}, true
	}
	t := p.peek()
	if t.is != wordOf {
		return change.Name{}, false
	}
	p.at++
	return change.Name{Schema: w.text, Table: t.text}, true
}
