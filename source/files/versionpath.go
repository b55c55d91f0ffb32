package files

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// versionPath is the path of snapshot files: a glob, in one name of which stands the
// group that gives the version. The names are listed with a * in the group's place, and
// those of that part are then read by an expression of the whole name.
type versionPath struct {
	glob  *glob
	part  int // of glob.parts: the name that holds the group
	whole *regexp.Regexp
}

// groupMark stands in a glob where the group was: no path holds the character.
const groupMark = "\x01"

const groupForm = "(?P<version>...)"

// newVersionPath reads a path. Outside of the group is no regular expression.
func newVersionPath(base, pattern string) (*versionPath, error) {
	if strings.ContainsAny(pattern, "\x00\x01") {
		return nil, errors.New("holds a control character")
	}
	from, to, err := findGroup(pattern)
	if err != nil {
		return nil, err
	}
	group := pattern[from:to]
	expression, err := regexp.Compile(group)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is no regular expression: %v", group, err)
	case strings.Contains(group, "/"):
		return nil, fmt.Errorf("%q: the version lies within one name, without /", group)
	case regexp.MustCompile(`^(?:` + group + `)$`).MatchString(""):
		return nil, fmt.Errorf("%q matches the empty text, which is no version", expression)
	}
	g, err := newGlob(base, pattern[:from]+groupMark+"*"+pattern[to:])
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), `\x01*`, group))
	}
	p := &versionPath{glob: g}
	for i, part := range g.parts {
		if part == "**" {
			return nil, fmt.Errorf("%q: a path of snapshots has no **; name the folders, or write * for each", pattern)
		}
		before, behind, here := strings.Cut(part, groupMark+"*")
		if here {
			p.part, g.parts[i] = i, before+"*"+behind
			p.whole, err = regexp.Compile("^(?s:" + globExpression(before) + group + globExpression(behind) + ")$")
			if err != nil {
				return nil, fmt.Errorf("%q: %v", pattern, err)
			}
		}
	}
	return p, nil
}

// findGroup finds where the one group stands. What would mean something else in a
// regular expression is refused outside of it, rather than taken as it stands.
func findGroup(pattern string) (from, to int, err error) {
	from = -1
	class := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[':
			class = true
		case c == ']':
			class = false
		case class:
		case c == '(':
			if !strings.HasPrefix(pattern[i:], "(?P<version>") && !strings.HasPrefix(pattern[i:], "(?<version>") {
				return 0, 0, fmt.Errorf("%q: outside of the group %s stands a glob, not a regular expression; a parenthesis of a file's name is written \\(", pattern, groupForm)
			}
			if from >= 0 {
				return 0, 0, fmt.Errorf("%q has two groups; there is one version", pattern)
			}
			end := groupEnd(pattern[i:])
			if end < 0 {
				return 0, 0, fmt.Errorf("%q: the group is not closed", pattern)
			}
			from, to = i, i+end
			i = to - 1
		case c == ')', c == '|', c == '^' && i == 0, c == '$' && i == len(pattern)-1:
			return 0, 0, fmt.Errorf("%q: outside of the group %s stands a glob, not a regular expression; %c of a file's name is written \\%c", pattern, groupForm, c, c)
		}
	}
	if from < 0 {
		return 0, 0, fmt.Errorf("%q has no group %s, which tells the version", pattern, groupForm)
	}
	return from, to, nil
}

// groupEnd is how long the group is that text begins with, or -1.
func groupEnd(text string) int {
	depth, class := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']' || text[i-1] == '[' || text[i-1] == '^' && text[i-2] == '['
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// globExpression is a glob of part of a name as a regular expression. A * takes as little
// as it can, so that the group takes as much as it can: 12 of a12, not 2.
func globExpression(glob string) string {
	var b strings.Builder
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; c {
		case '*':
			b.WriteString(".*?")
		case '?':
			b.WriteString(".")
		case '\\':
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		case '[': // a class reads the same, but for escaped letters and a [ in it
			b.WriteByte('[')
			for i++; glob[i] != ']'; i++ {
				switch glob[i] {
				case '\\':
					if i++; glob[i] == '-' {
						b.WriteByte('\\')
					}
					b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
				case '[':
					b.WriteString(`\[`)
				default:
					b.WriteByte(glob[i])
				}
			}
			b.WriteByte(']')
		default:
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		}
	}
	return b.String()
}

// version returns the version that a listed path holds.
func (p *versionPath) version(listed string) (string, bool) {
	names := strings.Split(listed, "/")
	m := p.whole.FindStringSubmatch(names[p.part])
	if m == nil {
		return "", false
	}
	return m[p.whole.SubexpIndex("version")], true
}
