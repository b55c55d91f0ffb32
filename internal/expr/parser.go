package expr

import (
	"strconv"
	"strings"

	"tailrace/internal/change"
)

// Bounds of a text. Deeper nesting would cost stack, not sense.
const (
	maxDepth = 200
	maxBytes = 64 << 10
)

// parser turns tokens into a tree by recursive descent, one method for each
// binding strength. Errors are fault.Usage errors with their place.
type parser struct {
	text   string
	tokens []token
	at     int
	depth  int
}

func parse(text string) (*node, error) {
	if len(text) > maxBytes {
		return nil, badly("", 0, "the expression is longer than %d bytes", maxBytes)
	}
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := &parser{text: text, tokens: tokens}
	n, err := p.or()
	if err != nil {
		return nil, err
	}
	if t := p.peek(); t.kind != tokEnd {
		return nil, p.expected("an operator or the end of the expression")
	}
	return n, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

// ahead looks n tokens further.
func (p *parser) ahead(n int) token { return p.tokens[min(p.at+n, len(p.tokens)-1)] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEnd {
		p.at++
	}
	return t
}

func (t token) is(op string) bool { return t.kind == tokOp && t.text == op }

func (t token) word(words ...string) bool {
	if t.kind != tokWord {
		return false
	}
	for _, w := range words {
		if strings.EqualFold(t.text, w) {
			return true
		}
	}
	return false
}

func (p *parser) accept(op string) bool {
	if p.peek().is(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) acceptWord(words ...string) bool {
	if p.peek().word(words...) {
		p.at++
		return true
	}
	return false
}

func (p *parser) fail(pos int, format string, args ...any) error {
	return badly(p.text, pos, format, args...)
}

// expected makes the error for the token that is next.
func (p *parser) expected(what string) error {
	t := p.peek()
	return p.fail(t.pos, "expected %s, found %s", what, t)
}

func (p *parser) need(op string) error {
	if !p.accept(op) {
		return p.expected(op)
	}
	return nil
}

func (p *parser) needWord(word string) error {
	if !p.acceptWord(word) {
		return p.expected(word)
	}
	return nil
}

// made finishes a node: its depth is bounded, because trees that lean to one
// side grow without the parser's recursion.
func (p *parser) made(n *node) (*node, error) {
	for _, k := range n.kids {
		n.depth = max(n.depth, k.depth+1)
	}
	if n.depth > maxDepth {
		return nil, p.fail(n.pos, "nested more than %d deep", maxDepth)
	}
	return n, nil
}

func (p *parser) descend() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail(p.peek().pos, "nested more than %d deep", maxDepth)
	}
	return nil
}

// flat parses operands joined by one associative operator into one node.
func (p *parser) flat(k kind, word string, operand func() (*node, error)) (*node, error) {
	first, err := operand()
	if err != nil || !p.peek().word(word) {
		return first, err
	}
	n := &node{kind: k, pos: p.peek().pos}
	n.adopt(first)
	for p.acceptWord(word) {
		kid, err := operand()
		if err != nil {
			return nil, err
		}
		n.adopt(kid)
	}
	return p.made(n)
}

// adopt appends a kid, or its kids if it is of the same associative kind.
func (n *node) adopt(kid *node) {
	if kid.kind == n.kind {
		n.kids = append(n.kids, kid.kids...)
		return
	}
	n.kids = append(n.kids, kid)
}

func (p *parser) or() (*node, error) {
	if err := p.descend(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	return p.flat(isOr, "OR", p.and)
}

func (p *parser) and() (*node, error) { return p.flat(isAnd, "AND", p.not) }

func (p *parser) not() (*node, error) {
	t := p.peek()
	if !t.word("NOT") && !t.is("!") {
		return p.predicate()
	}
	p.next()
	if err := p.descend(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	kid, err := p.not()
	if err != nil {
		return nil, err
	}
	return p.made(&node{kind: isNot, pos: t.pos, kids: []*node{kid}})
}

// comparisons in canonical spelling.
var comparisons = map[string]string{
	"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>",
}

// predicate parses at most one comparison or predicate, and then any IS tests.
// Chains like a = b = c and a = b IN (c) are read differently by Spark and by
// PostgreSQL, so they need parentheses.
func (p *parser) predicate() (*node, error) {
	n, err := p.sum()
	if err != nil {
		return nil, err
	}
	for compared := false; ; {
		t := p.peek()
		op, comparison := comparisons[t.text]
		comparison = comparison && t.kind == tokOp
		negated := t.word("NOT") && p.ahead(1).word("IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP")
		switch {
		case t.word("IS"):
			n, err = p.is(n)
		case !comparison && !negated && !t.word("IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP"):
			return n, nil
		case compared:
			return nil, p.fail(t.pos, "a comparison of a comparison needs parentheses")
		case comparison:
			p.next()
			var right *node
			if right, err = p.sum(); err == nil {
				n, err = p.made(&node{kind: isBinary, word: op, pos: t.pos, kids: []*node{n, right}})
			}
		default:
			if negated {
				p.next()
			}
			n, err = p.test(n, negated)
		}
		if err != nil {
			return nil, err
		}
		compared = true
	}
}

// test parses IN, BETWEEN, LIKE and their kin after the left side.
func (p *parser) test(left *node, negated bool) (*node, error) {
	t := p.next()
	n := &node{pos: t.pos, negate: negated, kids: []*node{left}}
	switch {
	case t.word("IN"):
		n.kind = isIn
		if err := p.need("("); err != nil {
			return nil, err
		}
		if p.peek().word("SELECT") {
			return nil, p.fail(p.peek().pos, "a subquery is not possible: an expression sees one row")
		}
		list, err := p.list()
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, p.fail(t.pos, "IN needs at least one value")
		}
		n.kids = append(n.kids, list...)
		return p.made(n)
	case t.word("BETWEEN"):
		n.kind = isBetween
		return p.operands(n, "AND", true)
	case t.word("LIKE"), t.word("ILIKE"):
		n.kind, n.word = isLike, strings.ToUpper(t.text)
		return p.operands(n, "ESCAPE", false)
	}
	n.kind, n.word = isLike, "RLIKE"
	return p.operands(n, "", false)
}

// operands parses an operand and, behind the word, a second one.
func (p *parser) operands(n *node, word string, required bool) (*node, error) {
	kid, err := p.sum()
	if err != nil {
		return nil, err
	}
	n.kids = append(n.kids, kid)
	if word != "" && (required || p.peek().word(word)) {
		if err := p.needWord(word); err != nil {
			return nil, err
		}
		if kid, err = p.sum(); err != nil {
			return nil, err
		}
		n.kids = append(n.kids, kid)
	}
	return p.made(n)
}

func (p *parser) is(left *node) (*node, error) {
	t := p.next()
	n := &node{kind: isIs, pos: t.pos, kids: []*node{left}}
	n.negate = p.acceptWord("NOT")
	switch {
	case p.peek().word("NULL", "TRUE", "FALSE", "UNKNOWN"):
		n.word = strings.ToUpper(p.next().text)
		return p.made(n)
	case p.acceptWord("DISTINCT"):
		if err := p.needWord("FROM"); err != nil {
			return nil, err
		}
		right, err := p.sum()
		if err != nil {
			return nil, err
		}
		n.kind, n.kids = isDistinct, append(n.kids, right)
		return p.made(n)
	}
	return nil, p.expected("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
}

// sum parses + - and ||, which bind alike and to the left.
func (p *parser) sum() (*node, error) {
	n, err := p.product()
	for err == nil {
		t := p.peek()
		if !t.is("+") && !t.is("-") && !t.is("||") {
			return n, nil
		}
		p.next()
		var right *node
		if right, err = p.product(); err != nil {
			break
		}
		if t.text == "||" {
			joined := &node{kind: isConcat, pos: t.pos}
			joined.adopt(n)
			joined.adopt(right)
			n, err = p.made(joined)
		} else {
			n, err = p.made(&node{kind: isBinary, word: t.text, pos: t.pos, kids: []*node{n, right}})
		}
	}
	return nil, err
}

func (p *parser) product() (*node, error) {
	n, err := p.unary()
	for err == nil {
		t := p.peek()
		if !t.is("*") && !t.is("/") && !t.is("%") && !t.word("DIV") {
			return n, nil
		}
		p.next()
		var right *node
		if right, err = p.unary(); err == nil {
			n, err = p.made(&node{kind: isBinary, word: strings.ToUpper(t.text), pos: t.pos, kids: []*node{n, right}})
		}
	}
	return nil, err
}

func (p *parser) unary() (*node, error) {
	t := p.peek()
	if !t.is("-") && !t.is("+") {
		return p.postfix()
	}
	p.next()
	if err := p.descend(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if number := p.peek(); t.text == "-" && number.kind == tokNumber && !p.ahead(1).binds() {
		p.next()
		return p.number(token{tokNumber, "-" + number.text, t.pos})
	}
	kid, err := p.unary()
	if err != nil || t.text == "+" {
		return kid, err
	}
	return p.made(&node{kind: isNegative, pos: t.pos, kids: []*node{kid}})
}

// binds reports an operator that binds stronger than a sign.
func (t token) binds() bool {
	return t.is("::") || t.is(":") || t.is("[") || t.is(".") || t.is("->") || t.is("->>")
}

// postfix parses what may follow a primary: ::type, a path into a document, and
// PostgreSQL's arrows.
func (p *parser) postfix() (*node, error) {
	n, err := p.primary()
	for err == nil {
		t := p.peek()
		switch {
		case t.is("::"):
			p.next()
			n, err = p.castTo("CAST", t.pos, n)
		case t.is(":"), t.is("["), t.is(".") && n.kind != isName:
			var steps []step
			if steps, err = p.steps(); err == nil {
				n, err = p.made(withPath(n, t.pos, steps))
			}
		case t.is("->"), t.is("->>"):
			p.next()
			var key *node
			if key, err = p.arrowKey(); err == nil {
				n, err = p.made(&node{kind: isBinary, word: t.text, pos: t.pos, kids: []*node{n, key}})
			}
		default:
			return n, nil
		}
	}
	return nil, err
}

func withPath(n *node, pos int, steps []step) *node {
	if n.kind == isName || n.kind == isPath {
		n.steps = append(n.steps, steps...)
		return n
	}
	return &node{kind: isPath, pos: pos, kids: []*node{n}, steps: steps}
}

func (p *parser) arrowKey() (*node, error) {
	switch t := p.peek(); {
	case t.kind == tokString:
		return p.primary()
	case t.kind == tokNumber:
		return p.number(p.next())
	case t.is("-") && p.ahead(1).kind == tokNumber:
		p.next()
		return p.number(token{tokNumber, "-" + p.next().text, t.pos})
	}
	return nil, p.expected("a key in quotes or an index")
}

// steps parses :a.b[0]['c'] from its first sign on.
func (p *parser) steps() ([]step, error) {
	var steps []step
	for first := true; ; first = false {
		t := p.peek()
		colon := first && p.accept(":")
		switch {
		case p.accept("["):
			s, err := p.subscript()
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
			continue
		case colon, p.accept("."):
		default:
			return steps, nil
		}
		k := p.next()
		if k.kind != tokWord && k.kind != tokQuoted {
			p.at--
			return nil, p.fail(t.pos, "expected a field name after %s", t.text)
		}
		steps = append(steps, step{key: k.text})
	}
}

func (p *parser) subscript() (step, error) {
	t := p.next()
	s := step{key: t.text}
	switch t.kind {
	case tokString:
	case tokNumber:
		n, err := strconv.ParseInt(t.text, 10, 32)
		if err != nil {
			return s, p.fail(t.pos, "expected an index from 0 on")
		}
		s = step{index: int(n), array: true}
	default:
		if t.is("*") {
			return s, p.fail(t.pos, "[*] is not possible: a path leads to one value")
		}
		return s, p.fail(t.pos, "expected an index or a key in quotes, found %s", t)
	}
	return s, p.need("]")
}

// list parses comma-separated expressions up to and with the parenthesis.
func (p *parser) list() ([]*node, error) {
	var kids []*node
	if p.accept(")") {
		return nil, nil
	}
	for {
		kid, err := p.or()
		if err != nil {
			return nil, err
		}
		kids = append(kids, kid)
		if p.accept(")") {
			return kids, nil
		}
		if !p.accept(",") {
			return nil, p.expected(", or )")
		}
	}
}

// castTo parses the type of a cast whose operand is there.
func (p *parser) castTo(word string, pos int, operand *node) (*node, error) {
	t, err := p.typeName()
	if err != nil {
		return nil, err
	}
	return p.made(&node{kind: isCast, word: word, pos: pos, typ: t, kids: []*node{operand}})
}

// typeName parses a type: one to four words and modifiers.
func (p *parser) typeName() (change.Type, error) {
	first := p.peek()
	if first.kind != tokWord {
		return change.Type{}, p.expected("a type")
	}
	// The longest of the spellings with several words first.
	for n := 4; n > 0; n-- {
		words := make([]string, 0, 4)
		for i := 0; i < n && p.ahead(i).kind == tokWord; i++ {
			words = append(words, strings.ToUpper(p.ahead(i).text))
		}
		t, ok := typeNamed(strings.Join(words, " "))
		if !ok || len(words) != n {
			continue
		}
		p.at += n
		return p.modifiers(t, first)
	}
	return change.Type{}, p.fail(first.pos, "unknown type %s: possible are boolean, smallint, integer, bigint, real, double, numeric(p,s), text, varchar(n), char(n), date, timestamp, timestamp_ntz, binary, uuid", first.text)
}

func (p *parser) modifiers(t change.Type, name token) (change.Type, error) {
	fixed := t.ID == 1042
	if !p.peek().is("(") {
		if fixed {
			return t, p.fail(name.pos, "%s needs a length, like char(10); text has none", name.text)
		}
		return t, nil
	}
	if t.Kind != change.Numeric && t.ID != 1042 && t.ID != 1043 {
		return t, p.fail(p.peek().pos, "type %s takes no modifier", t.Name)
	}
	p.next()
	first, err := p.small(1, 10_485_760)
	if err != nil {
		return t, err
	}
	if t.Kind == change.Text {
		t.Length = first
		t.Name += "(" + strconv.Itoa(first) + ")"
		return t, p.need(")")
	}
	if first > 1000 {
		return t, p.fail(name.pos, "the precision of numeric is 1 to 1000")
	}
	t.Precision = first
	if p.accept(",") {
		if t.Scale, err = p.small(0, 1000); err != nil {
			return t, err
		}
	}
	t.Name = "numeric(" + strconv.Itoa(t.Precision) + "," + strconv.Itoa(t.Scale) + ")"
	return t, p.need(")")
}

func (p *parser) small(low, high int) (int, error) {
	t := p.next()
	n, err := strconv.Atoi(t.text)
	if t.kind != tokNumber || err != nil || n < low || n > high {
		return 0, p.fail(t.pos, "expected a number from %d to %d", low, high)
	}
	return n, nil
}
