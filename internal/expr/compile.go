package expr

import (
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
)

// expr is a checked expression. eval is always there; test only for booleans,
// where it is the cheaper one.
type expr struct {
	typ     change.Type
	eval    func(f *frame) (value, error)
	test    func(f *frame) (tri, error)
	known   *value // the value, if no column decides it
	untyped bool   // NULL, which has every type
	quoted  bool   // a string literal, which takes its neighbour's type
	column  int    // the index if it is a bare column, else -1
	pos     int
}

// compiler checks a tree and builds closures, bottom up.
type compiler struct {
	text    string
	columns []Column
	used    map[int]bool
	reads   int // columns read so far: a subtree that reads none is a constant
}

func (c *compiler) fail(pos int, format string, args ...any) error {
	return badly(c.text, pos, format, args...)
}

// site describes the node for errors at run time.
func (c *compiler) site(n *node, what string) site {
	line, column := place(c.text, n.pos)
	return site{what, line, column}
}

func condition(pos int, test func(f *frame) (tri, error)) expr {
	return expr{
		typ: typeOf(change.Bool), test: test, column: -1, pos: pos,
		eval: func(f *frame) (value, error) {
			t, err := test(f)
			return t.value(), err
		},
	}
}

// result makes an expression of a type; booleans get their test.
func result(pos int, t change.Type, eval func(f *frame) (value, error)) expr {
	e := expr{typ: t, eval: eval, column: -1, pos: pos}
	if t.Kind == change.Bool {
		e.test = func(f *frame) (tri, error) {
			v, err := eval(f)
			return v.tri(), err
		}
	}
	return e
}

// constant makes an expression of a known value.
func constant(pos int, t change.Type, v value) expr {
	e := result(pos, t, func(*frame) (value, error) { return v, nil })
	if e.test != nil {
		truth := v.tri()
		e.test = func(*frame) (tri, error) { return truth, nil }
	}
	e.known = &v
	return e
}

func nothing(pos int) expr {
	e := constant(pos, typeOf(change.Text), null)
	e.untyped = true
	return e
}

// compile checks n. What no column decides is computed here, once; if that fails
// it is left to fail where the rows get there, because CASE may keep them away.
func (c *compiler) compile(n *node) (expr, error) {
	before := c.reads
	e, err := c.build(n)
	if err != nil || c.reads != before || e.known != nil {
		return e, err
	}
	v, err := e.eval(new(frame))
	if err != nil {
		return e, nil
	}
	folded := constant(e.pos, e.typ, v)
	folded.untyped = e.untyped
	return folded, nil
}

func (c *compiler) build(n *node) (expr, error) {
	switch n.kind {
	case isNull:
		return nothing(n.pos), nil
	case isLiteral:
		e := constant(n.pos, n.typ, n.val)
		e.quoted = n.quoted
		return e, nil
	case isName:
		return c.name(n)
	case isPath:
		return c.pathOf(n)
	case isNegative:
		return c.negative(n)
	case isNot:
		return c.not(n)
	case isAnd, isOr:
		return c.logic(n)
	case isConcat:
		return c.concat(n)
	case isBinary:
		return c.binary(n)
	case isIn:
		return c.in(n)
	case isBetween:
		return c.between(n)
	case isLike:
		return c.like(n)
	case isIs:
		return c.is(n)
	case isDistinct:
		return c.distinct(n)
	case isCase, isCaseOf:
		return c.caseWhen(n)
	case isCast:
		return c.cast(n)
	}
	return c.call(n)
}

func (c *compiler) kids(n *node) ([]expr, error) {
	kids := make([]expr, len(n.kids))
	for i, k := range n.kids {
		var err error
		if kids[i], err = c.compile(k); err != nil {
			return nil, err
		}
	}
	return kids, nil
}

func (c *compiler) binary(n *node) (expr, error) {
	if n.word == "->" || n.word == "->>" {
		return c.arrow(n)
	}
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	if op, ok := outcomes[n.word]; ok {
		return c.compare(n, op, kids[0], kids[1])
	}
	if n.word == "<=>" {
		return c.same(n, kids[0], kids[1], true)
	}
	return c.arithmetic(n, kids[0], kids[1])
}

// name resolves a dotted name: a column, a column behind a table's name, or
// either with the path of a field in a JSON document.
func (c *compiler) name(n *node) (expr, error) {
	for at := range min(len(n.parts), 4) {
		i, err := c.find(n.parts[at])
		if err != nil {
			return expr{}, err
		}
		if i < 0 {
			continue
		}
		rest := n.parts[at+1:]
		if len(rest) > 0 && !isDocument(c.columns[i].Type) {
			if at == 0 {
				continue // a table may be called like a column
			}
			return expr{}, c.fail(rest[0].pos, "column %s of type %s has no fields", c.columns[i].Name, c.columns[i].Type.Name)
		}
		steps := make([]step, 0, len(rest)+len(n.steps))
		for _, p := range rest {
			steps = append(steps, step{key: p.text})
		}
		n.steps, n.parts = append(steps, n.steps...), nil
		n.text = c.spell(c.columns[i].Name)
		column := c.column(n.pos, i)
		if len(n.steps) == 0 {
			return column, nil
		}
		return c.path(n, column)
	}
	first := n.parts[0]
	if i, _ := c.find(first); i >= 0 {
		return expr{}, c.fail(n.parts[1].pos, "column %s of type %s has no fields", c.columns[i].Name, c.columns[i].Type.Name)
	}
	last := n.parts[len(n.parts)-1]
	if why, ok := refused[strings.ToLower(last.text)]; ok && len(n.parts) == 1 && !last.quoted {
		return expr{}, c.fail(n.pos, "%s is refused: %s", last.text, why)
	}
	names := make([]string, len(c.columns))
	for i := range c.columns {
		names[i] = c.columns[i].Name
	}
	return expr{}, c.fail(n.pos, "unknown column %s%s", last.text, suggest(last.text, names))
}

// find returns the index of the column that p names, or -1.
func (c *compiler) find(p part) (int, error) {
	found := -1
	for i := range c.columns {
		switch {
		case p.quoted && c.columns[i].Name == p.text:
			return i, nil
		case !strings.EqualFold(c.columns[i].Name, p.text):
		case found < 0:
			found = i
		default:
			// An exact match may still follow for a quoted name.
			if p.quoted && slices.ContainsFunc(c.columns, func(k Column) bool { return k.Name == p.text }) {
				continue
			}
			return -1, c.fail(p.pos, "%s is ambiguous: columns %s and %s differ only by case; write one exactly, in backticks", p.text, c.columns[found].Name, c.columns[i].Name)
		}
	}
	return found, nil
}

// spell writes a column's name so that it is found again.
func (c *compiler) spell(name string) string {
	alike := 0
	for i := range c.columns {
		if strings.EqualFold(c.columns[i].Name, name) {
			alike++
		}
	}
	if alike == 1 && plainName(name) {
		return name
	}
	return quote(name, '`')
}

// column reads column i.
func (c *compiler) column(pos, i int) expr {
	c.used[i] = true
	c.reads++
	name, t := c.columns[i].Name, c.columns[i].Type
	trim := padded(t)
	line, at := place(c.text, pos)
	absent := fault.Refuse("give the table REPLICA IDENTITY FULL, or leave the column out of the expression",
		"evaluate the expression at line %d, column %d: column %s was not sent with this change", line, at, name)
	where := site{"column " + name, line, at}
	e := result(pos, t, func(f *frame) (value, error) {
		in := f.row[i]
		data := in.Data
		switch in.State {
		case change.AsText:
		case change.Null:
			return null, nil
		case change.Binary:
			start := len(f.buf)
			var err error
			if f.buf, err = pgvalue.Text(f.buf, in, t); err != nil {
				return value{}, where.wrap(err)
			}
			data = f.since(start)
		default:
			return value{}, absent
		}
		v, err := readValue(t.Kind, trim, data)
		if err != nil {
			return value{}, where.wrap(err)
		}
		return v, nil
	})
	e.column = i
	return e
}

// suggest names the candidate nearest to name, for an error message.
func suggest(name string, candidates []string) string {
	best, least := "", 1<<30
	for _, k := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ": there is none"
	}
	return fmt.Sprintf("; the nearest is %s", best)
}

// distance counts the insertions, deletions and replacements between two words;
// of long ones only the beginning.
func distance(a, b string) int {
	const most = 64
	a, b = a[:min(len(a), most)], b[:min(len(b), most)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// coerce makes e of the type, for a place that needs it: an untyped NULL becomes
// one of the type, a string literal is read now, other values convert for each
// row. Where no conversion exists it is an error.
func (c *compiler) coerce(e expr, to change.Type) (expr, error) {
	if e.untyped {
		return constant(e.pos, to, null), nil
	}
	convert := castTo(e.typ, to)
	if convert == nil {
		return expr{}, c.fail(e.pos, "expected %s, this is %s", to.Name, e.typ.Name)
	}
	if e.typ.Kind == to.Kind && to.Precision == 0 && to.Length == 0 {
		return e, nil
	}
	return c.convert(c.site(&node{pos: e.pos}, "as "+to.Name), e, to, convert, false)
}

// convert applies a conversion; of a constant it is done now, and a string
// literal that cannot be converted is an error now. A failed try is NULL.
func (c *compiler) convert(at site, e expr, to change.Type, convert conversion, try bool) (expr, error) {
	if e.known != nil && !e.known.null {
		f := new(frame)
		v, err := convert(f, *e.known)
		switch {
		case err == nil:
			return constant(e.pos, to, v), nil
		case try:
			return constant(e.pos, to, null), nil
		case e.quoted:
			return expr{}, c.fail(e.pos, "%s: %v", to.Name, err)
		}
	}
	inner := e.eval
	return result(e.pos, to, func(f *frame) (value, error) {
		v, err := inner(f)
		if err != nil || v.null {
			return v, err
		}
		v, err = convert(f, v)
		switch {
		case err == nil:
			return v, nil
		case try:
			return null, nil
		}
		return value{}, at.wrap(err)
	}), nil
}

func (c *compiler) cast(n *node) (expr, error) {
	e, err := c.compile(n.kids[0])
	if err != nil {
		return expr{}, err
	}
	return c.castExpr(n, e, n.typ, n.word == "TRY_CAST")
}

func (c *compiler) castExpr(n *node, e expr, to change.Type, try bool) (expr, error) {
	if e.untyped {
		return constant(n.pos, to, null), nil
	}
	convert := castTo(e.typ, to)
	if convert == nil {
		return expr{}, c.fail(n.pos, "%s cannot be cast to %s", e.typ.Name, to.Name)
	}
	out, err := c.convert(c.site(n, "CAST to "+to.Name), e, to, convert, try)
	out.pos = n.pos
	return out, err
}
