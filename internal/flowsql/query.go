package flowsql

import "strings"

func (p *parser) deeper() bool {
	if p.depth++; p.depth > deepest {
		p.failAt(p.peek(), "", "nested more than %d deep", deepest)
		return false
	}
	return true
}

func (p *parser) queryStarts() bool {
	return p.peek().word("SELECT", "WITH", "VALUES") || p.peek().is("(") && p.ahead(1).word("SELECT", "WITH")
}

// query reads a SELECT with WITH, set operations, ORDER BY and LIMIT.
func (p *parser) query() *Query {
	if !p.deeper() {
		return nil
	}
	defer func() { p.depth-- }()
	start, at := p.peek(), p.at
	q := &Query{}
	if p.accept("WITH") {
		for {
			c := CTE{Name: p.name("the name of a query")}
			if p.peek().is("(") {
				c.Columns = p.list("a column")
			}
			p.need("AS")
			open := p.peek()
			p.needOp("(")
			c.Query = p.query()
			p.closing(open)
			q.With = append(q.With, c)
			if !p.acceptOp(",") {
				break
			}
		}
	}
	q.Selects = append(q.Selects, p.selects())
	for p.peek().word("UNION", "EXCEPT", "INTERSECT", "MINUS") {
		set := strings.ToUpper(p.next().text)
		if p.accept("ALL") {
			set += " ALL"
		} else {
			p.accept("DISTINCT")
		}
		q.Sets = append(q.Sets, set)
		q.Selects = append(q.Selects, p.selects())
	}
	if p.accept("ORDER", "BY") {
		q.OrderBy = p.ordered()
	}
	if p.accept("LIMIT") {
		t := p.expression("a number")
		q.Limit = &t
	}
	q.Span = p.span(start)
	if p.problem == nil {
		q.words = p.words[at:p.at]
	}
	return q
}

// ordered reads expressions with ASC or DESC, and NULLS FIRST or LAST.
func (p *parser) ordered() (out []Text) {
	for {
		at := p.at
		t := p.expression("an expression")
		if !p.accept("ASC") {
			p.accept("DESC")
		}
		if !p.accept("NULLS", "FIRST") {
			p.accept("NULLS", "LAST")
		}
		if p.problem == nil {
			t.words, t.To = p.words[at:p.at], p.words[p.at-1].end()
		}
		if out = append(out, t); !p.acceptOp(",") {
			return out
		}
	}
}

// selects reads one SELECT, or a query in parentheses.
func (p *parser) selects() Select {
	start := p.peek()
	s := Select{}
	if p.acceptOp("(") {
		s.Nested = p.query()
		p.closing(start)
		s.Span = p.span(start)
		return s
	}
	p.need("SELECT")
	if s.Distinct = p.accept("DISTINCT"); !s.Distinct {
		p.accept("ALL")
	}
	for {
		if len(s.Items) > 0 && (p.is("FROM") || p.done()) {
			p.failAt(p.words[max(p.at-1, 0)], "leave the comma out", "a comma ends the list")
			break
		}
		s.Items = append(s.Items, p.item())
		if !p.acceptOp(",") {
			break
		}
	}
	if p.accept("FROM") {
		s.From = p.froms()
	}
	if p.accept("WHERE") {
		t := p.expression("a condition")
		s.Where = &t
	}
	if p.accept("GROUP", "BY") {
		for {
			s.GroupBy = append(s.GroupBy, p.expression("an expression"))
			if !p.acceptOp(",") {
				break
			}
		}
	}
	if p.accept("HAVING") {
		t := p.expression("a condition")
		s.Having = &t
	}
	s.Span = p.span(start)
	return s
}

func (p *parser) item() Item {
	var i Item
	if p.acceptOp("*") {
		i.Star = true
		if p.is("EXCEPT") && (p.ahead(1).is("(") && !p.ahead(2).word("SELECT", "WITH")) {
			p.next()
			i.Except = p.list("the name of a column")
		}
		return i
	}
	i.Value = p.expression("a column")
	i.Alias = p.alias()
	return i
}

// behindRelation are words that go on after a relation or a column, so that they are not
// its alias unless AS says so.
var behindRelation = []string{
	"FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "MINUS", "ON", "USING",
	"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "LATERAL", "WINDOW", "QUALIFY",
	"ASC", "DESC", "NULLS", "WITH", "TABLESAMPLE", "PIVOT", "UNPIVOT",
}

func (p *parser) alias() *Name {
	t := p.peek()
	if p.accept("AS") || t.kind == tokQuoted || t.kind == tokWord && !t.word(behindRelation...) && !p.clauseStarts() {
		n := p.name("an alias")
		return &n
	}
	return nil
}

func (p *parser) froms() []From {
	out := []From{p.from("")}
	for p.problem == nil {
		join, ok := p.join()
		if !ok {
			break
		}
		out = append(out, p.from(join))
	}
	return out
}

func (p *parser) join() (kind string, ok bool) {
	if p.acceptOp(",") {
		return ",", true
	}
	from := p.at
	for p.peek().word("NATURAL", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI") {
		if word := strings.ToUpper(p.next().text); word != "OUTER" && word != "INNER" {
			kind += word + " "
		}
	}
	if p.accept("JOIN") {
		return kind + "JOIN", true
	}
	if p.at > from {
		p.expected("JOIN")
	}
	return "", false
}

func (p *parser) from(join string) From {
	f := From{Join: join, Source: p.source()}
	f.Alias = p.alias()
	if f.Alias != nil && p.peek().is("(") {
		f.Columns = p.list("a column")
	}
	switch {
	case join == "" || join == ",":
	case p.accept("ON"):
		t := p.expression("a condition")
		f.On = &t
	case p.accept("USING"):
		f.Using = p.list("a column")
	}
	return f
}

// source reads what may be a stream: STREAM(relation), STREAM relation, or a relation.
func (p *parser) source() Source {
	start := p.peek()
	s := Source{}
	switch next := p.ahead(1); {
	case p.is("STREAM") && next.is("("):
		p.next()
		open := p.next()
		s.Stream = true
		if p.peek().word("SELECT", "WITH") {
			s.Query = p.query()
		} else {
			s.Relation = p.relation()
		}
		p.closing(open)
	case p.is("STREAM") && (next.kind == tokQuoted || next.kind == tokString || next.kind == tokWord && !next.word(behindRelation...) && !isClauseWord(next)):
		p.next()
		s.Stream = true
		s.Relation = p.relation()
	default:
		s.Relation = p.relation()
	}
	s.Span = p.span(start)
	return s
}

// relation reads a table, a function of tables, or a query in parentheses.
func (p *parser) relation() Relation {
	open := p.peek()
	if p.acceptOp("(") {
		q := p.query()
		p.closing(open)
		return Relation{Query: q}
	}
	if p.isKeywordHere() {
		p.expectedHint("", "a table, read_files(...) or a query in parentheses")
		return Relation{}
	}
	if open.kind == tokString && open.text[0] == '\'' {
		p.failAt(open, "files are read with read_files('path', format => 'json')", "expected a table, found a string")
		return Relation{}
	}
	name := p.path("the name of a table")
	if !p.peek().is("(") {
		return Relation{Table: name}
	}
	return Relation{Function: p.call(open, name)}
}

// isKeywordHere reports whether a clause begins where a relation should.
func (p *parser) isKeywordHere() bool {
	t := p.peek()
	return p.clauseStarts() || t.word("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "SELECT")
}

func (p *parser) call(start token, name Path) *Call {
	c := &Call{Name: name}
	open := p.next()
	if !p.acceptOp(")") {
		for {
			a := Arg{}
			if p.ahead(1).is("=>") {
				n := p.name("the name of an option")
				a.Name = &n
				p.next()
			}
			if len(c.Args) > 0 && p.trailing(true) {
				break
			}
			a.Value = p.expression("a value")
			c.Args = append(c.Args, a)
			if !p.acceptOp(",") {
				break
			}
		}
		p.closing(open)
	}
	c.Span = p.span(start)
	return c
}

// connecting are words that join operands inside an expression.
var connecting = []string{"AND", "OR", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "IS", "DIV", "ESCAPE", "COLLATE", "OVER"}

// never are words that cannot be an operand: where one is due, something is missing.
var never = []string{"FROM", "WHERE", "HAVING", "LIMIT", "UNION", "INTERSECT", "SELECT", "JOIN", "ON", "WHEN", "THEN", "ELSE", "END", "AND", "OR", "BY"}

// expression reads an expression to where it ends: at a comma, a closing parenthesis, the
// end of the statement, or a word that follows a complete operand and joins nothing.
func (p *parser) expression(what string) Text {
	if !p.deeper() {
		return Text{}
	}
	defer func() { p.depth-- }()
	start, at := p.peek(), p.at
	t := Text{}
	complete, cases := false, 0 // an operand is complete; CASEs are open
	for p.problem == nil {
		w := p.peek()
		before := p.words[max(p.at-1, 0)]
		first := p.at == at
		switch {
		case w.kind == tokEnd, w.is(","), w.is(")"), w.is("]"), w.is("=>"):
			return p.expressionEnd(&t, start, at, complete, what)
		case w.is("("), w.is("["):
			p.group(&t)
			complete = true
		case w.kind == tokOp:
			p.next()
			complete = w.is("*") && !complete && before.is(".")
		case complete && w.word("NOT") && p.ahead(1).word("IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN"):
			p.at += 2
			complete = false
		case complete && w.word(connecting...):
			p.next()
			complete = false
		case complete && cases > 0 && w.word("WHEN", "THEN", "ELSE"):
			p.next()
			complete = false
		case complete && cases > 0 && w.word("END"):
			p.next()
			cases--
		case complete && !first && isUnit(p.words[max(p.at-2, at)], before, w):
			p.next()
		case complete && !(w.kind == tokString && before.word("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL", "X")) && !(w.kind == tokNumber && before.word("INTERVAL")):
			return p.expressionEnd(&t, start, at, complete, what)
		case w.word("CASE"):
			p.next()
			cases++
			if complete = p.is("WHEN"); complete {
				p.next()
				complete = false
			}
		case w.word("NOT"):
			p.next()
		case before.word("IS", "NOT") && !first && p.is("DISTINCT", "FROM"):
			p.at += 2
		case w.kind == tokWord && (w.word(never...) || !complete && p.clauseStarts() && !p.is("KEYS") && !p.is("COLUMNS")):
			return p.expressionEnd(&t, start, at, complete, what)
		default:
			p.next()
			complete = true
		}
	}
	return t
}

// isUnit reports whether w is the unit of INTERVAL n unit.
func isUnit(interval, number, w token) bool {
	return w.kind == tokWord && interval.word("INTERVAL") && (number.kind == tokNumber || number.kind == tokString)
}

func (p *parser) expressionEnd(t *Text, start token, at int, complete bool, what string) Text {
	if !complete {
		if p.at > at {
			what = "an operand behind " + p.words[p.at-1].text
		}
		p.expectedHint("", what)
		return Text{}
	}
	t.Span, t.words = p.span(start), p.words[at:p.at]
	return *t
}

// group passes what stands in parentheses or brackets; a query in it is parsed.
func (p *parser) group(t *Text) {
	if !p.deeper() {
		return
	}
	defer func() { p.depth-- }()
	open := p.next()
	if open.is("(") && p.peek().word("SELECT", "WITH") {
		t.Queries = append(t.Queries, p.query())
		p.closing(open)
		return
	}
	for p.problem == nil {
		switch w := p.peek(); {
		case w.is("("), w.is("["):
			p.group(t)
		case w.is(")") && open.is("("), w.is("]") && open.is("["):
			p.next()
			return
		case w.kind == tokEnd, w.is(")"), w.is("]"):
			if open.is("[") {
				p.failAt(w, "", "expected ], found %s", w)
			}
			p.closing(open)
			return
		default:
			p.next()
		}
	}
}
