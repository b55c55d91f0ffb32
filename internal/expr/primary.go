package expr

import (
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"tailrace/internal/change"
)

// primary parses literals, names, calls, CASE, CAST and parentheses.
func (p *parser) primary() (*node, error) {
	t := p.peek()
	switch t.kind {
	case tokNumber:
		return p.number(p.next())
	case tokString:
		p.next()
		return &node{kind: isLiteral, pos: t.pos, quoted: true, typ: typeOf(change.Text), val: value{b: []byte(t.text)}}, nil
	case tokBytes:
		p.next()
		b, err := hex.DecodeString(t.text)
		if err != nil {
			return nil, p.fail(t.pos, "X'...' holds pairs of hexadecimal digits")
		}
		return &node{kind: isLiteral, pos: t.pos, typ: typeOf(change.Bytes), val: value{b: b}}, nil
	case tokQuoted:
		return p.name()
	case tokWord:
		return p.word()
	}
	if p.accept("(") {
		n, err := p.or()
		if err != nil {
			return nil, err
		}
		if p.peek().is(",") {
			return nil, p.fail(p.peek().pos, "a list stands only behind IN; expected )")
		}
		return n, p.need(")")
	}
	return nil, p.expected("a value")
}

// number types a numeric literal: the smallest of integer, bigint and numeric
// that holds it; numeric with a point or an exponent; or what its suffix says.
func (p *parser) number(t token) (*node, error) {
	body := strings.TrimRight(t.text, "LSYDFBlsydfb")
	suffix := strings.ToUpper(t.text[len(body):])
	n := &node{kind: isLiteral, pos: t.pos}
	bits := map[string]int{"L": 64, "S": 16, "Y": 8}[suffix]
	switch {
	case suffix == "D" || suffix == "F":
		n.typ, bits = typeOf(change.Float64), 64
		if suffix == "F" {
			n.typ, bits = typeOf(change.Float32), 32
		}
		f, err := strconv.ParseFloat(body, bits)
		if err != nil {
			return nil, p.fail(t.pos, "%s is out of the range of %s", body, n.typ.Name)
		}
		n.val.f = f
		return n, nil
	case suffix == "BD" || strings.ContainsAny(body, ".eE"):
		if bits != 0 {
			return nil, p.fail(t.pos, "%s is not an integer", body)
		}
	default:
		i, err := strconv.ParseInt(body, 10, max(bits, 64))
		switch {
		case bits != 0 && (err != nil || i>>(bits-1) != 0 && i>>(bits-1) != -1):
			return nil, p.fail(t.pos, "%s does not fit %d bits", body, bits)
		case err != nil: // a numeric
		default:
			n.val.i = i
			switch {
			case bits == 16 || bits == 8:
				n.typ = typeOf(change.Int16)
			case bits == 64 || i < math.MinInt32 || i > math.MaxInt32:
				n.typ = typeOf(change.Int64)
			default:
				n.typ = typeOf(change.Int32)
			}
			return n, nil
		}
	}
	if exp := strings.IndexAny(body, "eE"); exp >= 0 {
		if e, err := strconv.Atoi(body[exp+1:]); err != nil || e > 1000 || e < -1000 {
			return nil, p.fail(t.pos, "the exponent of a number is -1000 to 1000")
		}
	}
	n.typ = typeOf(change.Numeric)
	v, err := parseDecimal([]byte(body))
	if err != nil || v.coefficient().BitLen() > 10_000 || v.scale > 2000 {
		return nil, p.fail(t.pos, "a number of more than about 2000 digits")
	}
	n.val = v
	return n, nil
}

// name parses a dotted name; which part is a column is found out later.
func (p *parser) name() (*node, error) {
	t := p.next()
	n := &node{kind: isName, pos: t.pos, parts: []part{{t.text, t.kind == tokQuoted, t.pos}}}
	for p.peek().is(".") {
		k := p.ahead(1)
		if k.kind != tokWord && k.kind != tokQuoted {
			p.next()
			return nil, p.expected("a name after the point")
		}
		p.at += 2
		n.parts = append(n.parts, part{k.text, k.kind == tokQuoted, k.pos})
	}
	return n, nil
}

func (p *parser) word() (*node, error) {
	t := p.peek()
	literal := p.ahead(1).kind == tokString
	switch {
	case t.word("NULL"):
		p.next()
		return &node{kind: isNull, pos: t.pos}, nil
	case t.word("TRUE", "FALSE"):
		p.next()
		return &node{kind: isLiteral, pos: t.pos, typ: typeOf(change.Bool), val: value{i: int64(truth(t.word("TRUE")))}}, nil
	case t.word("CASE"):
		return p.caseWhen()
	case t.word("CAST", "TRY_CAST") && p.ahead(1).is("("):
		p.at += 2
		operand, err := p.or()
		if err != nil {
			return nil, err
		}
		if err := p.needWord("AS"); err != nil {
			return nil, err
		}
		n, err := p.castTo(strings.ToUpper(t.text), t.pos, operand)
		if err != nil {
			return nil, err
		}
		return n, p.need(")")
	case t.word("DATE") && literal:
		return p.timeLiteral(change.Date)
	case t.word("TIMESTAMP", "TIMESTAMP_LTZ") && literal:
		return p.timeLiteral(change.TimestampTZ)
	case t.word("TIMESTAMP_NTZ") && literal:
		return p.timeLiteral(change.Timestamp)
	case t.word("INTERVAL") && (literal || p.ahead(1).kind == tokNumber || p.ahead(1).is("-") && p.ahead(2).kind == tokNumber):
		return p.interval()
	case reserved[strings.ToUpper(t.text)]:
		return nil, p.expected("a value (a column of that name is written in backticks)")
	case p.ahead(1).is("("):
		return p.call()
	}
	return p.name()
}

func (p *parser) caseWhen() (*node, error) {
	t := p.next()
	n := &node{kind: isCase, pos: t.pos}
	if !p.peek().word("WHEN") {
		operand, err := p.or()
		if err != nil {
			return nil, err
		}
		n.kind, n.kids = isCaseOf, append(n.kids, operand)
	}
	for first := true; first || p.peek().word("WHEN"); first = false {
		for _, word := range [2]string{"WHEN", "THEN"} {
			if err := p.needWord(word); err != nil {
				return nil, err
			}
			kid, err := p.or()
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, kid)
		}
	}
	if p.acceptWord("ELSE") {
		kid, err := p.or()
		if err != nil {
			return nil, err
		}
		n.kids = append(n.kids, kid)
	}
	if !p.acceptWord("END") {
		return nil, p.expected("WHEN, ELSE or END")
	}
	return p.made(n)
}

func (p *parser) timeLiteral(k change.Kind) (*node, error) {
	word, t := p.next(), p.next()
	n := &node{kind: isLiteral, pos: word.pos, typ: typeOf(k)}
	var err error
	if n.val.i, err = parseMoment([]byte(t.text), k); err != nil {
		return nil, p.fail(t.pos, "%s: %v", strings.ToUpper(word.text), err)
	}
	return n, nil
}

// interval parses INTERVAL '1 day 2 hours', INTERVAL 1 day 2 hours and
// INTERVAL '1' DAY.
func (p *parser) interval() (*node, error) {
	word := p.next()
	var b strings.Builder
	if t := p.peek(); t.kind == tokString {
		p.next()
		b.WriteString(t.text)
		if _, ok := intervalUnits[strings.ToLower(p.peek().text)]; ok && p.peek().kind == tokWord {
			b.WriteString(" " + p.next().text)
			if p.peek().word("TO") {
				return nil, p.fail(p.peek().pos, "an interval from one unit to another is written with each unit: '1 year 2 months'")
			}
		}
	} else {
		for p.peek().kind == tokNumber || p.peek().is("-") && p.ahead(1).kind == tokNumber {
			if p.accept("-") {
				b.WriteString("-")
			}
			b.WriteString(p.next().text + " ")
			if p.peek().kind != tokWord {
				return nil, p.expected("a unit like DAY")
			}
			b.WriteString(p.next().text + " ")
			if !p.peek().is("-") {
				continue
			}
			// INTERVAL 1 day - 2 ...: a minus belongs to the interval only before another unit.
			if _, ok := intervalUnits[strings.ToLower(p.ahead(2).text)]; !ok || p.ahead(2).kind != tokWord {
				break
			}
		}
	}
	v, err := parseInterval(b.String())
	if err != nil {
		return nil, p.fail(word.pos, "INTERVAL: %v", err)
	}
	return &node{kind: isLiteral, pos: word.pos, typ: typeOf(change.Interval), val: v}, nil
}

// call parses name(arguments) and the functions with words between arguments.
func (p *parser) call() (*node, error) {
	t := p.next()
	p.next()
	n := &node{kind: isCall, word: strings.ToLower(t.text), pos: t.pos}
	if canonical, ok := aliases[n.word]; ok {
		n.word = canonical
	}
	switch {
	case n.word == "extract":
		field := p.next()
		if field.kind != tokWord && field.kind != tokString {
			return nil, p.fail(field.pos, "expected a field like YEAR")
		}
		n.field = strings.ToUpper(field.text)
		if err := p.needWord("FROM"); err != nil {
			return nil, err
		}
	case n.word == "trim" && (p.peek().word("BOTH", "LEADING", "TRAILING") || p.trimsFrom()):
		return p.trim(n)
	}
	first, err := p.arguments(n)
	if err != nil || !first {
		return n, err
	}
	return p.made(n)
}

// arguments parses the arguments of an ordinary call, of POSITION(a IN b) and of
// SUBSTRING(a FROM b FOR c). It reports whether the node is still to be finished.
func (p *parser) arguments(n *node) (bool, error) {
	if p.accept(")") {
		return true, nil
	}
	if p.peek().word("DISTINCT") || p.peek().is("*") {
		return false, p.fail(p.peek().pos, "an aggregate is not possible: an expression sees one row")
	}
	operand := p.or
	if n.word == "position" {
		operand = p.sum // IN separates
	}
	for {
		kid, err := operand()
		if err != nil {
			return false, err
		}
		n.kids = append(n.kids, kid)
		switch {
		case p.accept(")"):
			return true, nil
		case p.accept(","):
			operand = p.or
		case n.word == "position" && len(n.kids) == 1 && p.acceptWord("IN"),
			n.word == "substring" && len(n.kids) == 1 && p.acceptWord("FROM"),
			n.word == "substring" && len(n.kids) == 2 && p.acceptWord("FOR"):
		default:
			return false, p.expected(", or )")
		}
	}
}

// trimsFrom looks for TRIM(x FROM y) at the next closing of this parenthesis.
func (p *parser) trimsFrom() bool {
	depth := 0
	for _, t := range p.tokens[p.at:] {
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			if depth--; depth < 0 {
				return false
			}
		case depth == 0 && t.word("FROM"):
			return true
		}
	}
	return false
}

// trim parses TRIM([BOTH|LEADING|TRAILING] [characters] FROM text); the text
// becomes the first kid.
func (p *parser) trim(n *node) (*node, error) {
	n.field = "BOTH"
	if p.peek().word("BOTH", "LEADING", "TRAILING") {
		n.field = strings.ToUpper(p.next().text)
	}
	var characters *node
	var err error
	if !p.peek().word("FROM") {
		if characters, err = p.sum(); err != nil {
			return nil, err
		}
	}
	if err := p.needWord("FROM"); err != nil {
		return nil, err
	}
	text, err := p.or()
	if err != nil {
		return nil, err
	}
	n.kids = []*node{text}
	if characters != nil {
		n.kids = append(n.kids, characters)
	}
	if err := p.need(")"); err != nil {
		return nil, err
	}
	return p.made(n)
}
