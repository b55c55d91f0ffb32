package expr

import (
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
)

// kind says what a node of the syntax tree is.
type kind uint8

const (
	isLiteral  kind = iota // typ, val
	isName                 // parts, later column and steps
	isPath                 // kids[0] at steps
	isNegative             // -kids[0]
	isNot                  // NOT kids[0]
	isBinary               // kids[0] word kids[1]: + - * / % DIV = <> < <= > >= <=> -> ->>
	isAnd                  // all kids
	isOr
	isConcat   // kids[0] || kids[1] || ...
	isIn       // kids[0] IN (kids[1:])
	isBetween  // kids[0] BETWEEN kids[1] AND kids[2]
	isLike     // kids[0] word kids[1] [ESCAPE kids[2]]; word is LIKE, ILIKE or RLIKE
	isIs       // kids[0] IS word; word is NULL, TRUE, FALSE or UNKNOWN
	isDistinct // kids[0] IS DISTINCT FROM kids[1]
	isCase     // WHEN kids[0] THEN kids[1] ... ELSE the last one
	isCaseOf   // CASE kids[0] WHEN kids[1] THEN kids[2] ... ELSE the last one
	isCast     // CAST(kids[0] AS typ); word is CAST or TRY_CAST
	isCall     // word(kids...); field for EXTRACT and TRIM
	isNull     // NULL
)

// node is one part of the syntax tree. The tree is what String prints; compiling
// does not change it but for the spelling of names.
type node struct {
	kind   kind
	pos    int    // where it begins, or its operator stands, in the text
	word   string // operator or function, in canonical spelling
	negate bool   // NOT IN, NOT BETWEEN, NOT LIKE, IS NOT
	field  string // EXTRACT's field, TRIM's side
	quoted bool   // a string literal, which takes the type of its neighbour
	depth  int

	typ   change.Type // of literals and casts
	val   value
	parts []part // a dotted name as written
	steps []step // a path in a JSON document
	text  string // canonical spelling of a name, once it is resolved
	kids  []*node
}

// part is one part of a dotted name.
type part struct {
	text   string
	quoted bool
	pos    int
}

// step goes one level into a JSON document: to a field, or to an element of an
// array counted from 0.
type step struct {
	key   string
	index int
	array bool
}

// Binding strength, weakest first; see Program.
const (
	bindOr = iota + 1
	bindAnd
	bindNot
	bindPredicate
	bindSum
	bindProduct
	bindUnary
	bindPrimary
)

func (n *node) binds() int {
	switch n.kind {
	case isOr:
		return bindOr
	case isAnd:
		return bindAnd
	case isNot:
		return bindNot
	case isIn, isBetween, isLike, isIs, isDistinct:
		return bindPredicate
	case isConcat:
		return bindSum
	case isBinary:
		switch n.word {
		case "+", "-":
			return bindSum
		case "*", "/", "%", "DIV":
			return bindProduct
		case "->", "->>":
			return bindPrimary
		}
		return bindPredicate
	case isNegative:
		return bindUnary
	case isLiteral:
		if n.negativeNumber() {
			return bindUnary
		}
	}
	return bindPrimary
}

func (n *node) negativeNumber() bool {
	switch n.typ.Kind {
	case change.Int16, change.Int32, change.Int64, change.Numeric:
		return n.val.sign() < 0
	case change.Float32, change.Float64:
		return n.val.f < 0
	}
	return false
}

// printer writes the canonical text: keywords and operators in capitals,
// functions in lower case, no parenthesis that is not needed.
type printer struct{ strings.Builder }

// sub prints n, in parentheses if it binds weaker than its place needs.
func (p *printer) sub(n *node, needs int) {
	if n.binds() < needs {
		p.WriteByte('(')
		p.print(n)
		p.WriteByte(')')
		return
	}
	p.print(n)
}

func (p *printer) list(nodes []*node, separator string, needs int) {
	for i, n := range nodes {
		if i > 0 {
			p.WriteString(separator)
		}
		p.sub(n, needs)
	}
}

func (p *printer) print(n *node) {
	not := ""
	if n.negate {
		not = "NOT "
	}
	switch n.kind {
	case isNull:
		p.WriteString("NULL")
	case isLiteral:
		p.literal(n)
	case isName:
		p.WriteString(n.text)
		p.path(n.steps)
	case isPath:
		p.sub(n.kids[0], bindPrimary)
		p.path(n.steps)
	case isNegative:
		p.WriteByte('-')
		if kid := n.kids[0]; kid.kind == isLiteral {
			p.WriteByte('(') // -5 is one literal, -(5) is not
			p.print(kid)
			p.WriteByte(')')
		} else {
			p.sub(kid, bindPrimary)
		}
	case isNot:
		p.WriteString("NOT ")
		p.sub(n.kids[0], bindNot)
	case isAnd:
		p.list(n.kids, " AND ", bindNot)
	case isOr:
		p.list(n.kids, " OR ", bindAnd)
	case isConcat:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" || ")
		p.list(n.kids[1:], " || ", bindProduct)
	case isBinary:
		p.binary(n)
	case isIn:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" " + not + "IN (")
		p.list(n.kids[1:], ", ", 0)
		p.WriteByte(')')
	case isBetween:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" " + not + "BETWEEN ")
		p.list(n.kids[1:], " AND ", bindSum)
	case isLike:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" " + not + n.word + " ")
		p.list(n.kids[1:], " ESCAPE ", bindSum)
	case isIs:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" IS " + not + n.word)
	case isDistinct:
		p.sub(n.kids[0], bindSum)
		p.WriteString(" IS " + not + "DISTINCT FROM ")
		p.sub(n.kids[1], bindSum)
	case isCase, isCaseOf:
		p.caseOf(n)
	case isCast:
		p.WriteString(n.word + "(")
		p.print(n.kids[0])
		p.WriteString(" AS " + n.typ.Name + ")")
	case isCall:
		p.call(n)
	}
}

func (p *printer) binary(n *node) {
	left, right := bindSum, bindSum
	switch n.binds() {
	case bindSum:
		right = bindProduct
	case bindProduct:
		left, right = bindProduct, bindUnary
	case bindPrimary:
		left, right = bindPrimary, 0 // a key or an index
	}
	p.sub(n.kids[0], left)
	p.WriteString(" " + n.word + " ")
	p.sub(n.kids[1], right)
}

func (p *printer) caseOf(n *node) {
	kids := n.kids
	p.WriteString("CASE")
	if n.kind == isCaseOf {
		p.WriteByte(' ')
		p.print(kids[0])
		kids = kids[1:]
	}
	for ; len(kids) >= 2; kids = kids[2:] {
		p.WriteString(" WHEN ")
		p.print(kids[0])
		p.WriteString(" THEN ")
		p.print(kids[1])
	}
	if len(kids) == 1 {
		p.WriteString(" ELSE ")
		p.print(kids[0])
	}
	p.WriteString(" END")
}

func (p *printer) call(n *node) {
	p.WriteString(n.word + "(")
	switch {
	case n.word == "extract":
		p.WriteString(n.field + " FROM ")
		p.print(n.kids[0])
	case n.word == "trim" && (n.field != "" || len(n.kids) > 1):
		p.WriteString(n.field)
		if len(n.kids) > 1 {
			p.WriteByte(' ')
			p.print(n.kids[1])
		}
		p.WriteString(" FROM ")
		p.print(n.kids[0])
	default:
		p.list(n.kids, ", ", 0)
	}
	p.WriteByte(')')
}

func (p *printer) path(steps []step) {
	for i, s := range steps {
		if i == 0 {
			p.WriteByte(':')
		}
		switch {
		case s.array:
			fmt.Fprintf(p, "[%d]", s.index)
		case plainName(s.key):
			if i > 0 {
				p.WriteByte('.')
			}
			p.WriteString(s.key)
		default:
			p.WriteString("[" + quote(s.key, '\'') + "]")
		}
	}
}

func (p *printer) literal(n *node) {
	text := appendValue(nil, n.typ, &n.val)
	switch n.typ.Kind {
	case change.Bool:
		p.WriteString(map[int64]string{0: "FALSE", 1: "TRUE"}[n.val.i])
	case change.Int16:
		p.WriteString(string(text) + "S")
	case change.Int32:
		p.Write(text)
	case change.Int64:
		p.Write(text)
		if n.val.i == int64(int32(n.val.i)) {
			p.WriteByte('L')
		}
	case change.Numeric:
		p.Write(text)
		if n.val.scale == 0 {
			p.WriteString("BD")
		}
	case change.Float32:
		p.WriteString(strconv.FormatFloat(n.val.f, 'e', -1, 32) + "F")
	case change.Float64:
		p.WriteString(strconv.FormatFloat(n.val.f, 'e', -1, 64) + "D")
	case change.Date:
		p.WriteString("DATE '" + string(text) + "'")
	case change.TimestampTZ:
		p.WriteString("TIMESTAMP '" + string(text) + "'")
	case change.Timestamp:
		p.WriteString("TIMESTAMP_NTZ '" + string(text) + "'")
	case change.Interval:
		p.WriteString("INTERVAL '" + string(text) + "'")
	case change.Bytes:
		fmt.Fprintf(p, "X'%X'", n.val.b)
	default:
		p.WriteString(quote(string(n.val.b), '\''))
	}
}

func quote(s string, q byte) string {
	return string(q) + strings.ReplaceAll(s, string(q), string([]byte{q, q})) + string(q)
}

// reserved words cannot be names without backticks.
var reserved = map[string]bool{
	"AND": true, "OR": true, "NOT": true, "IN": true, "BETWEEN": true, "LIKE": true, "ILIKE": true,
	"RLIKE": true, "REGEXP": true, "IS": true, "NULL": true, "TRUE": true, "FALSE": true, "CASE": true,
	"WHEN": true, "THEN": true, "ELSE": true, "END": true, "DISTINCT": true, "FROM": true, "AS": true,
	"ESCAPE": true, "DIV": true,
}

// contextual words are names unless something particular follows; in canonical
// text they are written in backticks so that nothing can follow by chance.
var contextual = map[string]bool{
	"DATE": true, "TIMESTAMP": true, "TIMESTAMP_NTZ": true, "TIMESTAMP_LTZ": true, "INTERVAL": true,
	"BOTH": true, "LEADING": true, "TRAILING": true,
}

// plainName reports whether s can be written without quotes.
func plainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || !isDigit(c)) {
			return false
		}
	}
	upper := strings.ToUpper(s)
	return s != "" && !reserved[upper] && !contextual[upper]
}

// typeNamed returns the type of a SQL name, in capitals with single spaces, and
// reports whether there is one. Spark's timestamp is an instant.
func typeNamed(name string) (change.Type, bool) {
	switch name {
	case "BOOLEAN", "BOOL":
		return typeOf(change.Bool), true
	case "TINYINT", "BYTE", "SMALLINT", "SHORT", "INT2":
		return typeOf(change.Int16), true
	case "INT", "INTEGER", "INT4":
		return typeOf(change.Int32), true
	case "BIGINT", "LONG", "INT8":
		return typeOf(change.Int64), true
	case "REAL", "FLOAT", "FLOAT4":
		return typeOf(change.Float32), true
	case "DOUBLE", "DOUBLE PRECISION", "FLOAT8":
		return typeOf(change.Float64), true
	case "DECIMAL", "NUMERIC", "DEC":
		return typeOf(change.Numeric), true
	case "STRING", "TEXT":
		return typeOf(change.Text), true
	case "VARCHAR", "CHARACTER VARYING":
		return change.Type{Kind: change.Text, Name: "character varying", ID: 1043, BuiltIn: true}, true
	case "CHAR", "CHARACTER":
		return change.Type{Kind: change.Text, Name: "character", ID: 1042, BuiltIn: true}, true
	case "BINARY", "BYTEA":
		return typeOf(change.Bytes), true
	case "DATE":
		return typeOf(change.Date), true
	case "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE":
		return typeOf(change.TimestampTZ), true
	case "TIMESTAMP_NTZ", "TIMESTAMP WITHOUT TIME ZONE":
		return typeOf(change.Timestamp), true
	case "UUID":
		return typeOf(change.UUID), true
	}
	return change.Type{}, false
}

var builtIn = map[change.Kind]change.Type{
	change.Bool:        {Name: "boolean", ID: 16},
	change.Bytes:       {Name: "bytea", ID: 17},
	change.Int64:       {Name: "bigint", ID: 20},
	change.Int16:       {Name: "smallint", ID: 21},
	change.Int32:       {Name: "integer", ID: 23},
	change.Text:        {Name: "text", ID: 25},
	change.JSON:        {Name: "json", ID: 114},
	change.Float32:     {Name: "real", ID: 700},
	change.Float64:     {Name: "double precision", ID: 701},
	change.Date:        {Name: "date", ID: 1082},
	change.Time:        {Name: "time without time zone", ID: 1083},
	change.Timestamp:   {Name: "timestamp without time zone", ID: 1114},
	change.TimestampTZ: {Name: "timestamp with time zone", ID: 1184},
	change.Interval:    {Name: "interval", ID: 1186},
	change.Numeric:     {Name: "numeric", ID: 1700},
	change.UUID:        {Name: "uuid", ID: 2950},
	change.JSONB:       {Name: "jsonb", ID: 3802},
}

// typeOf returns PostgreSQL's built-in type of a kind, without modifiers.
func typeOf(k change.Kind) change.Type {
	t := builtIn[k]
	t.Kind, t.BuiltIn = k, true
	return t
}

// padded reports PostgreSQL's char(n), whose trailing blanks are not part of the
// value.
func padded(t change.Type) bool {
	return t.Kind == change.Text && t.Length > 0 && (t.ID == 1042 || strings.HasPrefix(t.Name, "character("))
}
