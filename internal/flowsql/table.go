package flowsql

import (
	"strconv"
	"strings"
)

// table reads what stands behind CREATE STREAMING TABLE.
func (p *parser) table(start token, refresh, private bool) Statement {
	t := &CreateTable{OrRefresh: refresh, Private: private, IfNotExists: p.accept("IF", "NOT", "EXISTS")}
	t.Name = p.path("the name of the table")
	t.Span = p.span(start)
	if p.peek().is("(") {
		t.Columns, t.Expectations, t.Constraints = p.body()
	}
	p.options(&t.Clauses)
	switch head := p.peek(); {
	case p.accept("FLOW"):
		t.Flow = p.inlineFlow(head)
	case p.accept("AS"):
		t.Query = p.query()
	case !p.done():
		p.unknownOption("FLOW", "AS")
	}
	return t
}

// view reads what stands behind CREATE [MATERIALIZED] VIEW.
func (p *parser) view(start token, v *CreateView) Statement {
	v.IfNotExists = p.accept("IF", "NOT", "EXISTS")
	v.Name = p.path("the name of the view")
	v.Span = p.span(start)
	if p.peek().is("(") {
		v.Columns, v.Expectations, v.Constraints = p.body()
	}
	p.options(&v.Clauses)
	if !p.accept("AS") {
		p.unknownOption("AS")
	}
	v.Query = p.query()
	return v
}

// body reads the columns, expectations and constraints of a table.
func (p *parser) body() (columns []Column, expectations []Expectation, constraints []Constraint) {
	open := p.next()
	for first := true; first || p.acceptOp(","); first = false {
		if !first && p.trailing(true) {
			return
		}
		start, at := p.peek(), p.at
		switch {
		case p.is("PRIMARY", "KEY"), p.is("FOREIGN", "KEY"):
			constraints = append(constraints, p.constraint(start, at))
		case p.is("CONSTRAINT"):
			p.next()
			name := p.name("the name of the constraint")
			if !p.accept("EXPECT") {
				if !p.is("PRIMARY", "KEY") && !p.is("FOREIGN", "KEY") {
					p.expected("EXPECT (condition), PRIMARY KEY or FOREIGN KEY")
				}
				constraints = append(constraints, p.constraint(start, at))
				break
			}
			e := Expectation{Name: name}
			inner := p.peek()
			if !p.acceptOp("(") {
				p.expectedHint("EXPECT (condition)", "a condition in parentheses")
			}
			e.Condition = p.condition()
			p.closing(inner)
			if p.accept("ON", "VIOLATION") {
				switch {
				case p.accept("DROP", "ROW"):
					e.Action = "DROP ROW"
				case p.accept("FAIL", "UPDATE"):
					e.Action = "FAIL UPDATE"
				default:
					p.expected("DROP ROW or FAIL UPDATE")
				}
			}
			e.Span = p.span(start)
			expectations = append(expectations, e)
		default:
			columns = append(columns, p.column(start))
		}
	}
	p.closing(open)
	return
}

func (p *parser) constraint(start token, at int) Constraint {
	if p.accept("PRIMARY", "KEY") {
		p.list("a column")
	} else {
		p.need("FOREIGN", "KEY")
		p.list("a column")
		p.references()
	}
	for p.accept("NOT", "ENFORCED") || p.accept("DEFERRABLE") || p.accept("INITIALLY", "DEFERRED") || p.accept("NORELY") || p.accept("RELY") || p.accept("TIMESERIES") {
	}
	return Constraint{Span: p.span(start), Text: p.canonical(at)}
}

func (p *parser) references() {
	p.need("REFERENCES")
	p.path("the name of a table")
	if p.peek().is("(") {
		p.list("a column")
	}
}

func (p *parser) column(start token) Column {
	c := Column{Name: p.name("the name of a column")}
	if !p.peek().is(",") && !p.peek().is(")") && !p.columnProperty() {
		at := p.at
		p.dataType()
		c.Type = p.canonical(at)
	}
	for p.columnProperty() {
		c.Properties = append(c.Properties, p.property())
	}
	c.Span = p.span(start)
	return c
}

// dataType passes a type: a word, with arguments in () or <>.
func (p *parser) dataType() {
	p.name("a type")
	open := p.peek()
	switch {
	case p.acceptOp("("):
		for p.peek().kind == tokNumber && p.problem == nil {
			p.next()
			if !p.acceptOp(",") {
				break
			}
		}
		p.closing(open)
	case p.acceptOp("<>"):
	case p.acceptOp("<"):
		p.typeArguments(open)
	case p.is("PRECISION"), p.is("VARYING"):
		p.next()
	}
}

// typeArguments passes what stands in <>, which nests; >> is two tokens.
func (p *parser) typeArguments(open token) {
	for depth := 1; depth > 0; {
		switch t := p.next(); {
		case t.is("<"):
			depth++
		case t.is(">"):
			depth--
		case t.kind == tokEnd:
			p.failAt(open, "", "the < of this type is not closed by >")
			return
		case t.kind == tokWord, t.kind == tokQuoted, t.kind == tokNumber, t.kind == tokString, t.is(":"), t.is(","), t.is("("), t.is(")"):
		default:
			p.failAt(t, "", "expected a type, found %s", t)
			return
		}
	}
}

func (p *parser) columnProperty() bool {
	return p.is("NOT", "NULL") || p.peek().word("COMMENT", "DEFAULT", "GENERATED", "MASK", "CONSTRAINT", "REFERENCES") || p.is("PRIMARY", "KEY")
}

func (p *parser) property() ColumnProperty {
	start, at := p.peek(), p.at
	kind := ""
	if p.accept("CONSTRAINT") {
		p.name("the name of the constraint")
		if !p.is("PRIMARY", "KEY") && !p.is("REFERENCES") {
			p.expected("PRIMARY KEY or REFERENCES")
		}
	}
	switch {
	case p.accept("NOT", "NULL"):
		kind = "NOT NULL"
	case p.accept("COMMENT"):
		kind = "COMMENT"
		p.str("a comment")
	case p.accept("DEFAULT"):
		kind = "DEFAULT"
		p.expression("a value")
	case p.accept("GENERATED"):
		kind = "GENERATED"
		p.generated()
	case p.accept("MASK"):
		kind = "MASK"
		p.path("the name of a function")
		if p.accept("USING", "COLUMNS") {
			open := p.peek()
			p.needOp("(")
			for p.problem == nil {
				p.expression("a column or a literal")
				if !p.acceptOp(",") {
					break
				}
			}
			p.closing(open)
		}
	case p.accept("PRIMARY", "KEY"):
		kind = "PRIMARY KEY"
		for p.accept("NOT", "ENFORCED") || p.accept("NORELY") || p.accept("RELY") {
		}
	case p.is("REFERENCES"):
		kind = "REFERENCES"
		p.references()
	}
	return ColumnProperty{Span: p.span(start), Kind: kind, Text: p.canonical(at)}
}

func (p *parser) generated() {
	always := p.accept("ALWAYS")
	if !always {
		p.need("BY", "DEFAULT")
	}
	p.need("AS")
	if p.accept("IDENTITY") {
		open := p.peek()
		if p.acceptOp("(") {
			for p.accept("START", "WITH") || p.accept("INCREMENT", "BY") {
				p.acceptOp("-")
				p.number("a number")
			}
			p.closing(open)
		}
		return
	}
	open := p.peek()
	if !always {
		p.expected("IDENTITY")
	}
	p.needOp("(")
	p.expression("an expression")
	p.closing(open)
}

func (p *parser) number(what string) int {
	t := p.peek()
	n, err := strconv.Atoi(t.text)
	if t.kind != tokNumber || err != nil {
		p.expected(what)
		return 0
	}
	p.next()
	return n
}

// optionWords are the clauses of a table, by how they begin.
var optionWords = []string{"USING", "PARTITIONED BY", "CLUSTER BY", "LOCATION", "COMMENT", "TBLPROPERTIES", "DEFAULT COLLATION", "WITH ROW FILTER", "SCHEDULE", "TRIGGER ON UPDATE"}

func (p *parser) unknownOption(more ...string) {
	t := p.peek()
	words := append(append([]string(nil), optionWords...), more...)
	hint := ""
	var firsts []string
	for _, w := range words {
		first, _, _ := strings.Cut(w, " ")
		firsts = append(firsts, first)
	}
	if t.word(statementWords...) {
		p.notEnded()
		return
	}
	if t.kind == tokWord {
		if best := nearest(t.text, append(firsts, words...)); best != "" {
			p.failAt(t, "did you mean "+best+"?", "there is no clause %s", t.text)
			return
		}
	}
	if t.is("(") {
		hint = "the columns of a table stand behind its name, before other clauses"
	}
	p.expectedHint(hint, "a clause of the table ("+strings.Join(words, ", ")+")")
}

// options reads the clauses of a table, in any order, each once.
func (p *parser) options(o *Clauses) {
	seen := map[string]bool{}
	once := func(t token, clause string) {
		if seen[clause] && p.problem == nil {
			p.failAt(t, "", "%s stands twice", clause)
		}
		seen[clause] = true
	}
	for {
		start := p.peek()
		switch {
		case p.accept("USING"):
			once(start, "USING")
			n := p.name("DELTA")
			o.Using = &n
			if !strings.EqualFold(n.Text, "DELTA") && p.problem == nil {
				p.fail(n.From, n.To, "", "expected DELTA, found %s", n.Text)
			}
		case p.accept("PARTITIONED", "BY"):
			once(start, "PARTITIONED BY")
			o.Partitioned = p.list("a column")
		case p.accept("CLUSTER", "BY"):
			once(start, "CLUSTER BY")
			o.Cluster = &Cluster{}
			switch {
			case p.accept("AUTO"):
				o.Cluster.Word = "AUTO"
			case p.accept("NONE"):
				o.Cluster.Word = "NONE"
			case p.peek().is("("):
				o.Cluster.Names = p.list("a column")
			default:
				p.expected("AUTO, NONE or columns in parentheses")
			}
			o.Cluster.Span = p.span(start)
		case p.accept("LOCATION"):
			once(start, "LOCATION")
			o.Location = p.str("a path")
		case p.accept("COMMENT"):
			once(start, "COMMENT")
			o.Comment = p.str("a comment")
		case p.accept("TBLPROPERTIES"):
			once(start, "TBLPROPERTIES")
			o.Properties = p.properties()
		case p.accept("DEFAULT", "COLLATION"):
			once(start, "DEFAULT COLLATION")
			n := p.name("a collation")
			o.Collation = &n
		case p.accept("WITH", "ROW", "FILTER"):
			once(start, "WITH ROW FILTER")
			o.Filter = &Filter{Function: p.path("the name of a function")}
			p.need("ON")
			if p.peek().is("(") && p.ahead(1).is(")") {
				p.at += 2
			} else {
				o.Filter.On = p.list("a column")
			}
			o.Filter.Span = p.span(start)
		case p.is("SCHEDULE"), p.is("TRIGGER", "ON"):
			once(start, "SCHEDULE")
			o.Schedule = p.schedule(start)
		default:
			return
		}
	}
}

func (p *parser) properties() (out []Property) {
	open := p.peek()
	p.needOp("(")
	for first := true; first || p.acceptOp(","); first = false {
		if !first && p.trailing(true) {
			return nil
		}
		start := p.peek()
		var key string
		if start.kind == tokString {
			p.next()
			key = unquoteString(start.text)
		} else {
			parts := []string{p.name("the name of a property").Text}
			for p.acceptOp(".") {
				parts = append(parts, p.name("a name behind the dot").Text)
			}
			key = strings.Join(parts, ".")
		}
		if !p.acceptOp("=") {
			p.acceptOp("==")
		}
		value := p.next()
		if value.is("-") && p.peek().kind == tokNumber {
			number := p.next()
			value = token{kind: tokNumber, text: "-" + number.text, pos: value.pos}
		}
		if value.kind != tokString && value.kind != tokNumber && !value.word("TRUE", "FALSE") {
			p.at = max(p.at-1, 0)
			p.expectedHint("a property is written key = 'value'", "the value of property "+key)
			return nil
		}
		value.blank = false
		out = append(out, Property{Span: p.span(start), Key: key, Value: value})
	}
	p.closing(open)
	return out
}

// schedule reads SCHEDULE or TRIGGER ON UPDATE.
func (p *parser) schedule(start token) *Schedule {
	s := &Schedule{}
	switch {
	case p.is("TRIGGER"):
		p.need("TRIGGER", "ON", "UPDATE")
		s.Trigger = true
		if p.accept("AT", "MOST", "EVERY") {
			t := p.expression("an interval")
			s.AtMost = &t
		}
	default:
		p.need("SCHEDULE")
		p.accept("REFRESH")
		switch {
		case p.accept("EVERY"):
			number := p.peek()
			s.Every = p.number("a number of hours, days or weeks")
			unit := p.peek()
			most := map[string]int{"HOUR": 72, "DAY": 31, "WEEK": 8}
			s.Unit = strings.TrimSuffix(strings.ToUpper(unit.text), "S")
			if most[s.Unit] == 0 || unit.kind != tokWord {
				p.expectedHint("a shorter one is `every` of a snapshot in the configuration file", "HOURS, DAYS or WEEKS")
				return nil
			}
			p.next()
			if s.Every < 1 || s.Every > most[s.Unit] {
				p.failAt(number, "", "a schedule is every 1 to %d %sS, not %d", most[s.Unit], s.Unit, s.Every)
			}
		case p.accept("CRON"):
			s.Cron = p.str("a cron expression")
			if p.accept("AT", "TIME", "ZONE") {
				s.Zone = p.str("the name of a time zone")
			}
		default:
			p.expected("EVERY or CRON")
		}
	}
	s.Span = p.span(start)
	return s
}
