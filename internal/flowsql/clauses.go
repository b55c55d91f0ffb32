package flowsql

import (
	"slices"
	"strings"

	"tailrace/internal/expr"
	"tailrace/internal/flow"
)

// cdcClauses are the clauses of a change feed, in the order in which they are printed.
// They may come in any order, each once. COLUMNS TO UPDATE stands before COLUMNS, which
// begins it.
var cdcClauses = []string{
	"FROM", "KEYS", "IGNORE NULL UPDATES", "APPLY AS DELETE WHEN", "APPLY AS TRUNCATE WHEN", "SEQUENCE BY",
	"SYSTEM SEQUENCE BY", "COLUMNS TO UPDATE", "COLUMNS", "STORED AS", "TRACK HISTORY ON",
}

// cdcKeywords are the keywords of each.
var cdcKeywords = func() (out [][]string) {
	for _, c := range cdcClauses {
		out = append(out, strings.Fields(c))
	}
	return out
}()

// takeClause takes the keywords of a clause, if one comes next.
func (p *parser) takeClause() (clause string) {
	for i, keywords := range cdcKeywords {
		if p.accept(keywords...) {
			return cdcClauses[i]
		}
	}
	return ""
}

// readClause reads what stands behind the keywords.
func (p *parser) readClause(clause string, c *CDC) {
	switch clause {
	case "FROM":
		c.Source = p.source()
	case "KEYS":
		c.Keys = p.names("the name of a column")
	case "IGNORE NULL UPDATES":
		c.IgnoreNull = &Selection{All: true, Span: p.span(p.words[p.at-1])}
		if p.accept("ON") {
			c.IgnoreNull = p.selection()
		}
	case "APPLY AS DELETE WHEN":
		t := p.condition()
		c.DeleteWhen = &t
	case "APPLY AS TRUNCATE WHEN":
		t := p.condition()
		c.TruncateWhen = &t
	case "SEQUENCE BY":
		c.SequenceBy = p.sequence()
	case "SYSTEM SEQUENCE BY":
		c.SystemSequenceBy = p.sequence()
	case "COLUMNS TO UPDATE":
		n := p.plain("the name of a column")
		c.ColumnsToUpdate = &n
	case "COLUMNS":
		c.Columns = p.selection()
	case "STORED AS":
		c.StoredAs = p.storedAs()
	case "TRACK HISTORY ON":
		c.TrackHistory = p.selection()
	}
}

// snapshotOnly are the clauses that a snapshot flow has, beside FROM SNAPSHOT.
var snapshotOnly = []string{"WITH VERSION", "KEYS", "STORED AS", "TRACK HISTORY ON"}

// clauseStarts reports whether a clause of AUTO CDC comes next. A column may be called
// like the first word of one, so where that is likely the second word is looked at too.
func (p *parser) clauseStarts() bool {
	if p.peek().kind != tokWord {
		return false
	}
	if p.is("KEYS") {
		return p.ahead(1).is("(")
	}
	if p.is("COLUMNS") {
		return p.ahead(1).is("*") || p.ahead(1).is("(") || p.ahead(1).word("TO")
	}
	for _, k := range cdcKeywords {
		if len(k) > 1 && k[0] != "COLUMNS" && p.is(k[0], k[1]) {
			return true
		}
	}
	return p.is("FROM", "STREAM") || p.is("FROM", "SNAPSHOT") || p.is("WITH", "VERSION")
}

// cdcBody reads the specification behind AUTO CDC INTO target, or behind FLOW AUTO CDC.
func (p *parser) cdcBody(start token, once bool) Body {
	b := Body{Once: once}
	if p.hasSnapshot() {
		b.Snapshot = p.snapshot()
	} else {
		b.CDC = p.feed()
	}
	b.Span = p.span(start)
	return b
}

// hasSnapshot reports whether FROM SNAPSHOT stands in what is left of the statement,
// outside of parentheses: clauses may come in any order.
func (p *parser) hasSnapshot() bool {
	depth := 0
	for i := p.at; i+1 < len(p.words); i++ {
		switch t := p.words[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && t.word("FROM") && p.words[i+1].word("SNAPSHOT"):
			// FROM snapshot KEYS ...: a table of that name.
			if n := p.words[min(i+2, len(p.words)-1)]; n.is("(") || n.kind == tokQuoted || n.kind == tokWord && !isClauseWord(n) {
				return true
			}
		}
	}
	return false
}

func isClauseWord(t token) bool {
	return t.word("WITH") || slices.ContainsFunc(cdcKeywords, func(k []string) bool { return t.word(k[0]) })
}

func (p *parser) feed() *CDC {
	c := &CDC{}
	seen := map[string]token{}
	for !p.done() {
		start := p.peek()
		clause := p.takeClause()
		if clause == "" {
			p.unknownClause(cdcClauses)
			break
		}
		if first, twice := seen[clause]; twice {
			line, _ := p.file.place(first.pos)
			p.failAt(start, "", "%s stands twice, first in line %d", clause, line)
			break
		}
		seen[clause] = start
		p.readClause(clause, c)
	}
	for _, needed := range []struct{ clause, hint string }{
		{"FROM", "what is read: FROM stream(schema.table)"},
		{"KEYS", "the columns that say which row an event is about: KEYS (id)"},
		{"SEQUENCE BY", "the column that orders the events of a key: SEQUENCE BY column"},
	} {
		if _, ok := seen[needed.clause]; !ok && p.problem == nil {
			p.failAt(p.peek(), needed.hint, "the flow has no %s", needed.clause)
		}
	}
	return c
}

// unknownClause fails at what begins none of the clauses.
func (p *parser) unknownClause(names []string) {
	t := p.peek()
	hint := ""
	if t.kind == tokWord {
		// The words up to the next piece that is no word, as they might have been meant.
		written := t.text
		for i := 1; i < 4 && p.ahead(i).kind == tokWord; i++ {
			written += " " + p.ahead(i).text
		}
		best, least := "", 1<<30
		for _, n := range names {
			words := strings.Fields(written)
			of := strings.Join(words[:min(len(words), strings.Count(n, " ")+1)], " ")
			first, _, _ := strings.Cut(n, " ")
			d := distance(strings.ToUpper(of), n)
			if near := nearest(t.text, []string{first}); near != "" {
				d -= 2
			} else if d > len(n)/3 {
				continue
			}
			if d < least {
				best, least = n, d
			}
		}
		switch {
		case t.word(statementWords...) && !t.word("APPLY"):
			p.notEnded()
			return
		case best != "":
			p.failAt(t, "did you mean "+best+"?", "there is no clause %s", t.text)
			return
		}
	}
	switch {
	case t.is(","):
		hint = "clauses have no commas between; a list of columns goes on only with names"
	case t.is(")"):
		hint = "nothing was opened that it could close"
	}
	p.expectedHint(hint, "a clause ("+strings.Join(names, ", ")+")")
}

// notEnded fails where a statement begins inside of another.
func (p *parser) notEnded() {
	t := p.peek()
	p.failAt(t, "a statement ends with ;", "%s begins a statement, and the one before is not ended", strings.ToUpper(t.text))
}

func (p *parser) snapshot() *Snapshot {
	s := &Snapshot{}
	seen := map[string]bool{}
	for !p.done() {
		start := p.peek()
		var name string
		switch {
		case p.accept("FROM", "SNAPSHOT"):
			name = "FROM SNAPSHOT"
			s.From = p.snapshotRelation()
		case p.accept("WITH", "VERSION"):
			name = "WITH VERSION"
			open := p.peek()
			p.needOp("(")
			s.Version = p.query()
			p.closing(open)
		case p.accept("KEYS"):
			name = "KEYS"
			s.Keys = p.names("the name of a column")
		case p.accept("STORED", "AS"):
			name = "STORED AS"
			s.StoredAs = p.storedAs()
			if p.problem == nil && s.StoredAs.Type == flow.Bitemporal {
				p.fail(s.StoredAs.From, s.StoredAs.To, "a bitemporal target takes events that say when they became known", "snapshots go into SCD TYPE 1 or 2")
			}
		case p.accept("TRACK", "HISTORY", "ON"):
			name = "TRACK HISTORY ON"
			s.TrackHistory = p.selection()
		default:
			if clause := p.takeClause(); clause != "" {
				p.failAt(start, "a snapshot holds whole rows at its version; its clauses are "+strings.Join(snapshotOnly, ", "), "%s does not go with FROM SNAPSHOT", clause)
				break
			}
			p.unknownClause(append([]string{"FROM SNAPSHOT"}, snapshotOnly...))
		}
		if seen[name] && p.problem == nil {
			p.failAt(start, "", "%s stands twice", name)
		}
		seen[name] = true
	}
	if !seen["KEYS"] && p.problem == nil {
		p.failAt(p.peek(), "the columns that say which row is which: KEYS (id)", "the flow has no KEYS")
	}
	return s
}

// snapshotRelation reads a query in parentheses, a table, or read_files(...).
func (p *parser) snapshotRelation() Relation {
	open := p.peek()
	if !p.acceptOp("(") {
		return p.relation()
	}
	defer p.closing(open)
	if p.queryStarts() {
		return Relation{Query: p.query()}
	}
	return p.relation()
}

func (p *parser) selection() *Selection {
	start := p.peek()
	s := &Selection{}
	if p.acceptOp("*") {
		s.All = true
		if p.accept("EXCEPT") {
			s.Names = p.names("the name of a column")
		}
	} else {
		s.Names = p.names("the name of a column, or *")
	}
	s.Span = p.span(start)
	return s
}

func (p *parser) storedAs() *StoredAs {
	start := p.peek()
	s := &StoredAs{}
	switch {
	case p.accept("BITEMPORAL"):
		s.Type = flow.Bitemporal
	case p.accept("SCD"):
		p.accept("TYPE")
		switch t := p.next(); t.text {
		case "1", "2":
			s.Type = int(t.text[0] - '0')
		default:
			p.failAt(t, "", "expected SCD TYPE 1 or SCD TYPE 2, found SCD TYPE %s", t)
		}
	default:
		p.expected("SCD TYPE 1, SCD TYPE 2 or BITEMPORAL")
	}
	s.Span = p.span(start)
	return s
}

func (p *parser) sequence() *Sequence {
	start := p.peek()
	s := &Sequence{}
	switch next := p.ahead(1); {
	case p.is("STRUCT") && next.is("("):
		p.next()
		s.Struct = true
		s.Names = p.list("the name of a column")
	default:
		t := p.expression("a column")
		if len(t.words) == 1 && (t.words[0].kind == tokWord || t.words[0].kind == tokQuoted) {
			p.at--
			s.Names = []Name{p.name("a column")}
		} else {
			s.Other = &t
		}
	}
	s.Span = p.span(start)
	return s
}

// condition reads an expression over a row, whose syntax is that of internal/expr.
func (p *parser) condition() Text {
	t := p.expression("a condition")
	if p.problem != nil {
		return t
	}
	text, places := t.render()
	if at, why := expr.Check(text); at >= 0 {
		from, to := t.To, t.To
		for i := range places {
			if places[i].at <= at {
				from, to = places[i].token.pos, places[i].token.end()
			}
		}
		if at >= len(text) {
			from, to = t.To, t.To
		}
		p.fail(from, to, "docs/expressions.md has the language of conditions", "%s", why)
	}
	return t
}

// rendered is where a word of a Text stands in what render made of it.
type rendered struct {
	at    int
	token token
}

// render writes an expression as internal/expr reads it, where a backslash in a string is
// itself and a quote is doubled.
func (t *Text) render() (string, []rendered) {
	var b strings.Builder
	places := make([]rendered, len(t.words))
	for i, w := range t.words {
		if i > 0 && w.blank && !tight(t.words[i-1], w) {
			b.WriteByte(' ')
		}
		places[i] = rendered{b.Len(), w}
		if w.kind == tokString && w.text[0]|0x20 != 'r' {
			b.WriteString("'" + strings.ReplaceAll(unquoteString(w.text), "'", "''") + "'")
			continue
		}
		b.WriteString(w.text)
	}
	return b.String(), places
}

// inlineFlow reads what stands behind FLOW in CREATE STREAMING TABLE.
func (p *parser) inlineFlow(start token) *Body {
	var b Body
	switch {
	case p.is("AUTO"), p.is("APPLY"):
		p.needCDC()
		once := p.peek()
		b = p.cdcBody(start, p.accept("ONCE"))
		if b.Once && b.CDC != nil && p.problem == nil {
			p.failAt(once, "CREATE FLOW name AS AUTO CDC ONCE INTO target ...", "ONCE goes with FROM SNAPSHOT here")
		}
	case p.accept("INSERT"):
		b = p.insertBody(start, p.accept("ONCE"))
	case p.is("REPLACE"):
		b = p.insertBody(start, false)
	default:
		p.expected("AUTO CDC, INSERT or REPLACE")
	}
	return &b
}

// insertBody reads BY NAME and the query, with REPLACE before or behind BY NAME.
func (p *parser) insertBody(start token, once bool) Body {
	i := &Insert{}
	named := p.accept("BY", "NAME")
	switch {
	case p.accept("REPLACE", "WHERE"):
		t := p.expression("a condition")
		i.ReplaceWhere = &t
	case p.accept("REPLACE", "USING"):
		i.ReplaceUsing = p.list("the name of a column")
		p.need("SEQUENCE", "BY")
		n := p.plain("the name of a column")
		i.SequenceBy = &n
	}
	if !named {
		p.need("BY", "NAME")
	}
	i.Query = p.query()
	return Body{Span: p.span(start), Once: once, Insert: i}
}
