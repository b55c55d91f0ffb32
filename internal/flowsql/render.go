package flowsql

import (
	"slices"
	"strings"
)

// forSource writes a query for the database of the source: names lose their catalog,
// quotes become those of the database. The database computes it, so only what means the
// same there is let through; the rest is a problem at its place.
func (c *compiler) forSource(e *entry, q *Query) string {
	r := &renderer{compiler: c, entry: e, tables: map[Pos]table{}}
	r.gather(q, nil)
	var b strings.Builder
	for i := 0; i < len(q.words); i++ {
		w := q.words[i]
		if i > 0 && w.blank && !tight(q.words[i-1], w) {
			b.WriteByte(' ')
		}
		if t, ok := r.tables[w.pos]; ok {
			b.WriteString(t.sql)
			for i+1 < len(q.words) && q.words[i+1].pos < t.to {
				i++
			}
			continue
		}
		b.WriteString(r.word(q.words, i))
	}
	return b.String()
}

type renderer struct {
	*compiler
	entry  *entry
	tables map[Pos]table // by where they begin
}

// table is how a table is written, and where the path ends that named it.
type table struct {
	sql string
	to  Pos
}

// gather finds the tables of a query; known are the names of queries around it.
func (r *renderer) gather(q *Query, known []string) {
	if q == nil {
		return
	}
	f := r.entry.file
	for _, cte := range q.With {
		r.gather(cte.Query, known)
		known = append(slices.Clip(known), strings.ToLower(cte.Name.Text))
	}
	texts := slices.Clone(q.OrderBy)
	if len(q.OrderBy) > 0 {
		r.cannot(f, q.OrderBy[0].Span, "", "ORDER BY of a query that goes to the source")
	}
	if q.Limit != nil {
		r.cannot(f, q.Limit.Span, "", "LIMIT of a query that goes to the source")
	}
	for i := range q.Selects {
		s := &q.Selects[i]
		r.gather(s.Nested, known)
		for _, item := range s.Items {
			texts = append(texts, item.Value)
			if len(item.Except) > 0 {
				r.cannot(f, item.Except[0].Span, "name the columns", "* EXCEPT of a query that goes to the source")
			}
		}
		for j := range s.From {
			r.from(&s.From[j], known)
			if on := s.From[j].On; on != nil {
				texts = append(texts, *on)
			}
		}
		texts = append(texts, s.GroupBy...)
		for _, t := range []*Text{s.Where, s.Having} {
			if t != nil {
				texts = append(texts, *t)
			}
		}
	}
	for _, t := range texts {
		for _, inner := range t.Queries {
			r.gather(inner, known)
		}
	}
}

func (r *renderer) from(from *From, known []string) {
	f := r.entry.file
	switch {
	case from.Stream:
		r.bad(f, from.Span, "leave STREAM out", "a snapshot is read as a whole")
	case from.Function != nil:
		r.cannot(f, from.Function.Span, "", "%s(...) in a query that goes to the source", from.Function.Name)
	case from.Query != nil:
		r.gather(from.Query, known)
	case len(from.Table) == 1 && slices.Contains(known, strings.ToLower(from.Table[0].Text)):
	default:
		name, ok := r.snapshotTable(r.entry, from.Table)
		if !ok {
			return
		}
		last := from.Table[len(from.Table)-1]
		sql := r.name(Name{Text: name.table, Quoted: last.Quoted})
		if name.schema != "" {
			quoted := len(from.Table) < 2 || from.Table[len(from.Table)-2].Quoted || name.schema != from.Table[len(from.Table)-2].Text
			sql = r.name(Name{Text: name.schema, Quoted: quoted}) + "." + sql
		}
		r.tables[from.Table[0].From] = table{sql, last.To}
	}
}

// name writes an identifier; a bare one stays bare, so that the database finds it as it
// finds those of its own statements.
func (r *renderer) name(n Name) string {
	switch {
	case !n.Quoted:
		return n.Text
	case r.Source == "mysql":
		return "`" + strings.ReplaceAll(n.Text, "`", "``") + "`"
	}
	return `"` + strings.ReplaceAll(n.Text, `"`, `""`) + `"`
}

var (
	// alike are functions that give the same in Spark, PostgreSQL and MySQL.
	alike = []string{"count", "sum", "min", "max", "coalesce", "nullif", "lower", "upper", "abs"}
	// beforeParenthesis are keywords behind which a parenthesis begins no call.
	beforeParenthesis = []string{
		"AND", "OR", "NOT", "IN", "EXISTS", "WHERE", "HAVING", "ON", "USING", "BY", "AS", "SELECT", "FROM", "JOIN", "BETWEEN", "IS",
		"LIKE", "WHEN", "THEN", "ELSE", "CASE", "UNION", "ALL", "EXCEPT", "INTERSECT", "DISTINCT", "ANY", "SOME",
	}
	alikeOps = []string{"(", ")", ",", ".", "+", "-", "*", "=", "<>", "<", ">", "<=", ">="}
)

// word writes one word that is no table.
func (r *renderer) word(words []token, i int) string {
	w, f := words[i], r.entry.file
	at := Span{w.pos, w.end()}
	where := map[string]string{"mysql": "a MySQL source", "postgres": "a PostgreSQL source"}[r.Source]
	cannot := func() string {
		r.cannot(f, at, "what it means there is not what it means here; a view in the source can compute it", "%s in a query for %s", w, where)
		return ""
	}
	call := i+1 < len(words) && words[i+1].is("(")
	switch w.kind {
	case tokOp:
		if w.is("!=") {
			return "<>"
		} else if w.is("==") {
			return "="
		} else if !slices.Contains(alikeOps, w.text) {
			return cannot()
		}
	case tokNumber:
		if last := w.text[len(w.text)-1]; !isDigit(last) && last != '.' {
			return cannot()
		}
	case tokString:
		value := unquoteString(w.text)
		if r.Source == "mysql" && strings.Contains(value, `\`) {
			return cannot()
		}
		return "'" + strings.ReplaceAll(value, "'", "''") + "'"
	case tokQuoted:
		return r.name(Name{Text: unquoteName(w.text), Quoted: true})
	case tokWord:
		switch {
		case call && !w.word(beforeParenthesis...) && !w.word(alike...),
			w.word("RLIKE", "REGEXP", "ILIKE", "DIV", "INTERVAL", "MINUS", "SEMI", "ANTI", "COLLATE", "OVER"):
			return cannot()
		}
	}
	return w.text
}
