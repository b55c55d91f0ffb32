package flowsql

import (
	"slices"
	"strings"
)

// deepest is how deep queries may be nested. Deeper would cost stack, not sense.
const deepest = 100

// largest is how long a file may be, in bytes. A pipeline is written by people.
const largest = 4 << 20

// parser reads one statement by recursive descent. The first problem ends it: what is
// read afterwards is the end of the statement, so that no method needs to ask.
type parser struct {
	file    *File
	words   []token // the last one is tokEnd
	at      int
	depth   int
	problem *Problem
}

// Parse reads a file; name stands for it in messages. The error is a usage error that
// shows each problem with its line; a statement that cannot be read does not hide what
// is wrong with the next.
func Parse(name, text string) (*File, error) {
	f := &File{Name: name, Text: text}
	if len(text) > largest {
		f.Text = ""
		return f, asError([]*Problem{f.problem(0, 0, "", "the file is larger than 4 MiB")})
	}
	statements, problem := lex(f)
	if problem != nil {
		return f, asError([]*Problem{problem})
	}
	var problems []*Problem
	for _, words := range statements {
		p := &parser{file: f, words: words}
		s := p.statement()
		if p.problem != nil {
			if problems = append(problems, p.problem); len(problems) > 2*mostProblems {
				break // nobody reads on, and each place costs a walk through the file
			}
			continue
		}
		f.Statements = append(f.Statements, s)
	}
	return f, asError(problems)
}

func (p *parser) peek() token { return p.words[p.at] }

func (p *parser) ahead(n int) token { return p.words[min(p.at+n, len(p.words)-1)] }

func (p *parser) next() token {
	t := p.words[p.at]
	if t.kind != tokEnd {
		p.at++
	}
	return t
}

func (p *parser) done() bool { return p.peek().kind == tokEnd }

// is reports whether these keywords come next.
func (p *parser) is(keywords ...string) bool {
	for i, k := range keywords {
		if !p.ahead(i).word(k) {
			return false
		}
	}
	return true
}

// accept takes these keywords if they come next.
func (p *parser) accept(keywords ...string) bool {
	if !p.is(keywords...) {
		return false
	}
	p.at += len(keywords)
	return true
}

func (p *parser) acceptOp(op string) bool {
	if p.peek().is(op) {
		p.at++
		return true
	}
	return false
}

// need takes these keywords or fails.
func (p *parser) need(keywords ...string) {
	for i, k := range keywords {
		if !p.ahead(i).word(k) {
			p.at = min(p.at+i, len(p.words)-1)
			p.expected(strings.Join(keywords[i:], " "))
			return
		}
	}
	p.at += len(keywords)
}

func (p *parser) needOp(op string) {
	if !p.acceptOp(op) {
		p.expected(op)
	}
}

// closing takes the parenthesis that closes the one at open.
func (p *parser) closing(open token) {
	if p.acceptOp(")") {
		return
	}
	t := p.peek()
	if t.kind == tokEnd {
		line, column := p.file.place(open.pos)
		p.fail(t.pos, t.end(), "close it with )", "expected ) for the parenthesis of line %d, column %d, found %s", line, column, t)
		return
	}
	hint := "names in a list have commas between; a list ends with )"
	if p.clauseStarts() || t.word("AS", "FLOW", "COMMENT", "STORED") {
		hint = "a parenthesis is missing: close the list with )"
	}
	p.expectedHint(hint, "a comma or )")
}

func (p *parser) fail(from, to Pos, hint, format string, args ...any) {
	if p.problem == nil {
		p.problem = p.file.problem(from, to, hint, format, args...)
	}
	p.at = len(p.words) - 1
}

func (p *parser) failAt(t token, hint, format string, args ...any) {
	p.fail(t.pos, t.end(), hint, format, args...)
}

// expected fails at the next token. Where a word was expected and one stands there that
// is spelled nearly so, it is suggested.
func (p *parser) expected(what string) { p.expectedHint("", what) }

func (p *parser) expectedHint(hint, what string) {
	t := p.peek()
	if hint == "" && t.kind == tokWord {
		first, _, _ := strings.Cut(what, " ")
		if first == strings.ToUpper(first) && !t.word(first) && nearest(t.text, []string{first}) != "" {
			hint = "did you mean " + first + "?"
		}
	}
	p.failAt(t, hint, "expected %s, found %s", what, t)
}

// span is from a token to the last one that was taken.
func (p *parser) span(from token) Span {
	return Span{from.pos, p.words[max(p.at-1, 0)].end()}
}

// canonical is the text of the words from one index on to the last one taken.
func (p *parser) canonical(from int) string {
	if p.problem != nil {
		return ""
	}
	t := Text{words: p.words[from:p.at]}
	return t.String()
}

// name takes one identifier. Keywords may be names: nothing is reserved where a name must
// stand.
func (p *parser) name(what string) Name {
	t := p.peek()
	switch {
	case t.kind == tokWord:
		p.next()
		return Name{Span: Span{t.pos, t.end()}, Text: t.text}
	case t.kind == tokQuoted, t.kind == tokString && t.text[0] == '"' && len(t.text) > 2 && !strings.ContainsAny(t.text, "\\\n"):
		p.next()
		return Name{Span: Span{t.pos, t.end()}, Text: unquoteName(t.text), Quoted: true}
	}
	hint := ""
	if t.kind == tokString {
		hint = "a name stands bare or in backticks"
	}
	p.failAt(t, hint, "expected %s, found %s", what, t)
	return Name{}
}

// path takes a name of up to three parts.
func (p *parser) path(what string) Path {
	out := Path{p.name(what)}
	for p.acceptOp(".") {
		out = append(out, p.name("a name behind the dot"))
	}
	if len(out) > 3 {
		p.fail(out[0].From, out[len(out)-1].To, "", "a name has at most three parts: catalog.schema.table")
	}
	return out
}

// names takes names with commas between, in parentheses or bare. A bare list ends with
// the first word that has no comma before it.
func (p *parser) names(what string) []Name {
	open := p.peek()
	inside := p.acceptOp("(")
	var out []Name
	for {
		if len(out) > 0 && p.trailing(inside) {
			return out
		}
		out = append(out, p.plain(what))
		if !p.acceptOp(",") {
			break
		}
	}
	if inside {
		p.closing(open)
	}
	return out
}

// trailing fails where a comma ends a list.
func (p *parser) trailing(inside bool) bool {
	t := p.peek()
	if inside && t.is(")") || t.kind == tokEnd || !inside && p.clauseStarts() {
		p.failAt(p.words[p.at-1], "leave the comma out", "a comma ends the list")
		return true
	}
	return false
}

// plain takes the name of a column, which has one part.
func (p *parser) plain(what string) Name {
	n := p.name(what)
	if p.peek().is(".") && p.problem == nil {
		p.fail(n.From, p.ahead(1).end(), "fields inside a column cannot be chosen; name the column", "expected %s of one part, found %s.%s", what, n.Text, p.ahead(1))
	}
	return n
}

// list takes names in parentheses.
func (p *parser) list(what string) []Name {
	if !p.peek().is("(") {
		p.expected("(")
		return nil
	}
	return p.names(what)
}

func (p *parser) str(what string) *String {
	t := p.peek()
	if t.kind != tokString {
		p.failAt(t, "", "expected %s in quotes, found %s", what, t)
		return nil
	}
	p.next()
	return &String{Span: Span{t.pos, t.end()}, Raw: t.text}
}

// statement reads one statement to its end.
func (p *parser) statement() Statement {
	// What is copied from a page may have its prompt in front.
	if p.peek().is(">") {
		p.next()
	}
	start := p.peek()
	var s Statement
	switch {
	case p.accept("CREATE"):
		s = p.create(start)
	case p.accept("APPLY", "CHANGES", "INTO"):
		f := &CreateFlow{}
		f.Target = p.path("the name of the target")
		f.Span = p.span(start)
		f.Body = p.cdcBody(start, false)
		s = f
	case p.accept("USE"):
		u := &Use{Catalog: p.accept("CATALOG")}
		if !u.Catalog && !p.accept("SCHEMA") {
			p.accept("DATABASE")
		}
		u.Name = p.path("a name")
		if most := map[bool]int{true: 1, false: 2}[u.Catalog]; len(u.Name) > most && p.problem == nil {
			p.fail(u.Name[0].From, u.Name[len(u.Name)-1].To, "", "the name has at most %d parts here", most)
		}
		u.Span = p.span(start)
		s = u
	default:
		p.unknownStatement()
	}
	if p.problem == nil && !p.done() {
		if p.peek().word(statementWords...) {
			p.notEnded()
			return nil
		}
		p.expected("the end of the statement")
	}
	return s
}

// statementWords begin statements.
var statementWords = []string{"CREATE", "APPLY", "USE"}

// foreign are statements of the dialect that have no place in a pipeline, and what to do.
var foreign = map[string]string{
	"INSERT":   "rows are written by flows; sample data is made in the source, outside of the pipeline",
	"UPDATE":   "rows are written by flows; sample data is made in the source, outside of the pipeline",
	"DELETE":   "rows are written by flows; sample data is made in the source, outside of the pipeline",
	"MERGE":    "that is what AUTO CDC is for",
	"TRUNCATE": "rows are written by flows; a target is made anew with `tailrace refresh --flow F --full`",
	"ALTER":    "write the table as it is to be, in CREATE STREAMING TABLE",
	"DROP":     "take the statement out that makes the table; `tailrace teardown` drops the bookkeeping of a pipeline",
	"SELECT":   "a query stands in a flow; `tailrace query` and `tailrace show` read targets",
	"WITH":     "a query stands in a flow; `tailrace query` and `tailrace show` read targets",
	"SET":      "settings stand in the configuration file",
	"REFRESH":  "`tailrace run --once` brings all up to date; `tailrace refresh --flow F --full` makes a target anew",
	"GRANT":    "rights are given in the destination",
}

func (p *parser) unknownStatement() {
	t := p.peek()
	if why, ok := foreign[strings.ToUpper(t.text)]; ok && t.kind == tokWord {
		p.failAt(t, why, "%s has no place in a pipeline file", strings.ToUpper(t.text))
		return
	}
	hint := ""
	if t.kind == tokWord {
		if best := nearest(t.text, statementWords); best != "" {
			hint = "did you mean " + best + "?"
		}
	}
	p.failAt(t, hint, "expected a statement (CREATE ..., APPLY CHANGES INTO ..., USE ...), found %s", t)
}

// create reads what stands behind CREATE.
func (p *parser) create(start token) Statement {
	or := ""
	if p.accept("OR", "REFRESH") {
		or = "REFRESH"
	} else if p.accept("OR", "REPLACE") {
		or = "REPLACE"
	}
	adjective := p.peek()
	private := p.accept("PRIVATE")
	temporary := !private && (p.accept("TEMPORARY") || p.accept("TEMP"))
	live := p.accept("LIVE") // of an older spelling; it says nothing
	switch t := p.peek(); {
	case p.accept("STREAMING"):
		p.accept("LIVE")
		p.need("TABLE")
		if or == "REPLACE" {
			p.failAt(t, "CREATE OR REFRESH STREAMING TABLE", "a streaming table cannot be replaced")
		} else if temporary {
			p.failAt(adjective, "PRIVATE keeps a table inside its pipeline", "a streaming table is not TEMPORARY")
		}
		return p.table(start, or == "REFRESH", private)
	case p.accept("MATERIALIZED", "VIEW"):
		if temporary {
			p.failAt(adjective, "", "a materialized view is not TEMPORARY")
		}
		return p.view(start, &CreateView{Materialized: true, Private: private, Or: or})
	case p.accept("VIEW"):
		return p.view(start, &CreateView{Temporary: temporary, Private: private, Or: or})
	case or != "" || private || temporary || live:
	case p.accept("FLOW"):
		return p.flow(start)
	case p.accept("SCHEMA"), p.accept("DATABASE"):
		s := &CreateSchema{IfNotExists: p.accept("IF", "NOT", "EXISTS"), Name: p.path("the name of the schema")}
		if p.accept("COMMENT") {
			s.Comment = p.str("a comment")
		}
		s.Span = p.span(start)
		return s
	case p.is("TABLE"):
		p.failAt(t, "a target is CREATE OR REFRESH STREAMING TABLE; tables with sample data are made in the source", "CREATE TABLE has no place in a pipeline file")
		return nil
	}
	p.unknownCreation(or != "" || private || temporary)
	return nil
}

func (p *parser) unknownCreation(qualified bool) {
	words := []string{"STREAMING TABLE", "MATERIALIZED VIEW", "VIEW"}
	if !qualified {
		words = append(words, "FLOW", "SCHEMA")
	}
	t := p.peek()
	hint := ""
	if t.kind == tokWord {
		firsts := slices.Concat(words, []string{"STREAMING", "MATERIALIZED"})
		if best := nearest(t.text, firsts); best != "" {
			hint = "did you mean " + best + "?"
		}
		switch {
		case t.word("FLOW"):
			hint = "CREATE FLOW"
		case t.word("TABLE"):
			hint = "CREATE OR REFRESH STREAMING TABLE"
		}
	}
	p.failAt(t, hint, "expected %s, found %s", strings.Join(words, ", "), t)
}

// flow reads what stands behind CREATE FLOW.
func (p *parser) flow(start token) Statement {
	f := &CreateFlow{Name: p.path("the name of the flow")}
	if p.accept("COMMENT") {
		f.Comment = p.str("a comment")
	}
	p.need("AS")
	switch {
	case p.is("AUTO"), p.is("APPLY"):
		p.needCDC()
		once := p.accept("ONCE")
		p.needInto()
		f.Target = p.path("the name of the target")
		f.Span = p.span(start)
		f.Body = p.cdcBody(start, once)
	case p.accept("INSERT"):
		once := p.accept("ONCE")
		p.needInto()
		if !once && p.is("ONCE") && !p.ahead(1).word("BY") && !p.ahead(1).is(".") {
			once = p.accept("ONCE")
		}
		f.Target = p.path("the name of the target")
		f.Span = p.span(start)
		f.Body = p.insertBody(start, once)
	default:
		p.expected("AUTO CDC INTO or INSERT INTO")
	}
	return f
}

// needCDC takes AUTO CDC, or its older spelling.
func (p *parser) needCDC() {
	if !p.accept("APPLY", "CHANGES") {
		p.need("AUTO", "CDC")
	}
}

func (p *parser) needInto() {
	if p.accept("INTO") {
		return
	}
	hint := ""
	if p.is("FROM") {
		hint = "a flow names its target: AUTO CDC INTO target FROM ..."
	}
	p.expectedHint(hint, "INTO")
}
