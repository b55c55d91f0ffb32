package flowsql

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"tailrace/internal/fault"
)

// Problem is what is wrong with a file, and where. It prints as
//
//	users.sql:7:1: expected ...
//	   7 | KEYS userId)
//	     |            ^
//	  hint: ...
type Problem struct {
	File         string
	Line, Column int    // from 1; a column is a character
	Text         string // the line
	Width        int    // how many characters are marked, at least 1
	What         string
	Hint         string // what to write instead; may be empty
}

func (f *File) problem(from, to Pos, hint, format string, args ...any) *Problem {
	p := &Problem{File: f.Name, What: fmt.Sprintf(format, args...), Hint: hint}
	p.Line, p.Column = f.place(from)
	begin := strings.LastIndexByte(f.Text[:from], '\n') + 1
	p.Text = f.Text[begin:]
	if end := strings.IndexByte(p.Text, '\n'); end >= 0 {
		p.Text = p.Text[:end]
	}
	p.Text = strings.TrimRight(p.Text, "\r")
	p.Width = max(1, utf8.RuneCountInString(f.Text[from:max(from, min(to, Pos(begin+len(p.Text))))]))
	return p
}

// place turns a byte offset into line and column, both from 1.
func (f *File) place(pos Pos) (line, column int) {
	before := f.Text[:pos]
	return 1 + strings.Count(before, "\n"), 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
}

// Of a long line, what stands around the place is shown.
const (
	shownBefore = 80  // characters before the place
	shownLine   = 160 // characters in all
)

func (p *Problem) String() string {
	line, column, cut := []rune(p.Text), p.Column-1, ""
	if len(line) > shownLine {
		if column > shownBefore {
			line, column, cut = line[column-shownBefore:], shownBefore, "..."
		}
		line = line[:min(len(line), shownLine)]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: %s\n", p.File, p.Line, p.Column, p.What)
	fmt.Fprintf(&b, "%5d | %s%s\n      | %s", p.Line, cut, string(line), strings.Repeat(" ", len(cut)))
	for _, r := range line[:min(column, len(line))] {
		b.WriteString(blankFor(r))
	}
	marked := 0
	for i := column; i < min(column+p.Width, len(line)); i++ {
		n := len(blankFor(line[i]))
		b.WriteString("^^"[:n])
		marked += n
	}
	if marked == 0 {
		b.WriteByte('^')
	}
	if p.Hint != "" {
		b.WriteString("\n  hint: " + p.Hint)
	}
	return b.String()
}

// blankFor is the blank that is as wide as a character on a terminal: East Asian letters
// take two columns.
func blankFor(r rune) string {
	switch {
	case r == '\t':
		return "\t"
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1faff, r >= 0x20000 && r <= 0x3fffd:
		return "  "
	}
	return " "
}

// mostProblems is how many problems are shown: more are most often the echo of one.
const mostProblems = 20

// asError makes the error of problems, in the order of their places; nil if there are none.
func asError(problems []*Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b *Problem) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return (a.Line-b.Line)*1_000_000 + a.Column - b.Column
	})
	problems = slices.CompactFunc(problems, func(a, b *Problem) bool { return *a == *b }) // of a name that is looked up twice
	texts := make([]string, 0, len(problems))
	for i, p := range problems {
		if i == mostProblems {
			texts = append(texts, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		texts = append(texts, p.String())
	}
	return fault.Badly("%s", strings.Join(texts, "\n"))
}

// nearest returns the candidate that is spelled most like a word, or "".
func nearest(word string, candidates []string) string {
	best, least := "", max(2, len(word)/3+1)
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance in which two letters that changed places count
// once.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, before
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
