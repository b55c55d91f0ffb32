package expr

import (
	"bytes"
	"cmp"
	"slices"

	"tailrace/internal/change"
)

// outcome is a comparison operator: which of less (1), equal (2) and greater (4)
// make it true.
type outcome uint8

var outcomes = map[string]outcome{"<": 1, "=": 2, "<=": 3, ">": 4, "<>": 5, ">=": 6}

func (o outcome) of(order int) tri {
	return tri(o >> (order + 1) & 1)
}

// mirrored is the operator with its sides exchanged.
func (o outcome) mirrored() outcome { return o>>2 | o&2 | o<<2&4 }

func (o outcome) needsOrder() bool { return o != 2 && o != 5 }

// comparer says how two values are ordered. It is a number and not a function,
// because values whose address goes to an unknown function cost memory.
type comparer uint8

const (
	incomparable comparer = iota
	byInt
	byFloat
	byDecimal
	byFloatAndDecimal
	byDecimalAndFloat
	byInterval
	byBytes
)

// order is negative, 0 or positive; neither value is NULL.
func (c comparer) order(a, b *value) int {
	switch c {
	case byInt:
		return cmp.Compare(a.i, b.i)
	case byFloat:
		return compareFloats(a.f, b.f)
	case byDecimal:
		return compareDecimals(a, b)
	case byFloatAndDecimal:
		return compareFloatExactly(a.f, b)
	case byDecimalAndFloat:
		return -compareFloatExactly(b.f, a)
	case byInterval:
		return compareIntervals(a, b)
	}
	return bytes.Compare(a.b, b.b)
}

func isInteger(k change.Kind) bool {
	return k == change.Int16 || k == change.Int32 || k == change.Int64
}

func isFloat(k change.Kind) bool { return k == change.Float32 || k == change.Float64 }

func isNumber(k change.Kind) bool { return isInteger(k) || isFloat(k) || k == change.Numeric }

func isMoment(k change.Kind) bool {
	return k == change.Date || k == change.Timestamp || k == change.TimestampTZ
}

func isText(k change.Kind) bool { return k == change.Text || k == change.Enum }

// comparers of types with themselves. Enums have an order that only their server
// knows; of the types that are not here, equal values can have several texts.
var comparers = map[change.Kind]comparer{
	change.Bool: byInt, change.Int16: byInt, change.Int32: byInt, change.Int64: byInt,
	change.Date: byInt, change.Timestamp: byInt, change.TimestampTZ: byInt, change.Time: byInt,
	change.Float32: byFloat, change.Float64: byFloat, change.Numeric: byDecimal, change.Interval: byInterval,
	change.Text: byBytes, change.Enum: byBytes, change.UUID: byBytes, change.Bytes: byBytes,
}

// harmonize makes two expressions comparable: the same type on both sides, or
// numbers that have a common comparer. It is the one place that says which types
// compare and how.
func (c *compiler) harmonize(n *node, l, r expr) (expr, expr, comparer, error) {
	var err error
	switch {
	case l.untyped || r.untyped:
		return l, r, byInt, nil // one side is always NULL
	case isText(l.typ.Kind) && isText(r.typ.Kind):
		return l, r, byBytes, nil
	case isText(l.typ.Kind):
		l, err = c.asPartner(n, l, r)
	case isText(r.typ.Kind):
		r, err = c.asPartner(n, r, l)
	}
	if err != nil {
		return l, r, incomparable, err
	}
	lk, rk := l.typ.Kind, r.typ.Kind
	switch {
	case isNumber(lk) && isNumber(rk):
		return c.harmonizeNumbers(l, r)
	case isMoment(lk) && isMoment(rk) && lk != rk:
		if lk == change.Date {
			l, err = c.coerce(l, typeOf(rk))
		} else if rk == change.Date {
			r, err = c.coerce(r, typeOf(lk))
		}
		return l, r, byInt, err
	case lk == rk && comparers[lk] != incomparable:
		return l, r, comparers[lk], nil
	}
	for _, e := range [2]expr{l, r} {
		if comparers[e.typ.Kind] == incomparable {
			hint := "CAST it to text to compare its spelling"
			if isDocument(e.typ) {
				hint = "take a field of it, or CAST it to text to compare its spelling"
			}
			return l, r, incomparable, c.fail(n.pos, "values of type %s have no comparison here: %s", e.typ.Name, hint)
		}
	}
	return l, r, incomparable, c.fail(n.pos, "%s and %s cannot be compared: CAST one of them", l.typ.Name, r.typ.Name)
}

// asPartner casts a text to its partner's type: a literal now, anything else for
// each row, as Spark does. Beside a number a text is a number of any kind.
func (c *compiler) asPartner(n *node, text, partner expr) (expr, error) {
	to := partner.typ
	switch {
	case comparers[to.Kind] == incomparable:
		return text, nil // refused by the caller
	case isFloat(to.Kind):
		to = typeOf(to.Kind)
	case isInteger(to.Kind) && text.quoted:
		to = typeOf(change.Int64)
	case isNumber(to.Kind):
		to = typeOf(change.Numeric)
	case to.Kind == change.Bytes && text.quoted && bytes.HasPrefix(text.known.b, []byte(`\x`)):
		return text, c.fail(text.pos, `a binary literal is written X'...', not '\x...'`)
	default:
		to = typeOf(to.Kind)
	}
	if text.typ.Kind == change.Enum {
		text.typ = typeOf(change.Text)
	}
	e, err := c.coerce(text, to)
	e.quoted = false
	return e, err
}

func (c *compiler) harmonizeNumbers(l, r expr) (expr, expr, comparer, error) {
	lf, rf := isFloat(l.typ.Kind), isFloat(r.typ.Kind)
	var err error
	switch {
	case lf && rf:
		return l, r, byFloat, nil
	case !lf && !rf:
		if isInteger(l.typ.Kind) && isInteger(r.typ.Kind) {
			return l, r, byInt, nil
		}
		return l, r, byDecimal, nil
	case lf && r.known != nil && r.typ.Kind == change.Numeric:
		r, err = c.coerce(r, l.typ)
		return l, r, byFloat, err
	case rf && l.known != nil && l.typ.Kind == change.Numeric:
		l, err = c.coerce(l, r.typ)
		return l, r, byFloat, err
	case lf:
		return l, r, byFloatAndDecimal, nil
	}
	return l, r, byDecimalAndFloat, nil
}

// compare builds = <> < <= > >=.
func (c *compiler) compare(n *node, op outcome, l, r expr) (expr, error) {
	l, r, by, err := c.harmonize(n, l, r)
	if err != nil {
		return expr{}, err
	}
	if op.needsOrder() && (l.typ.Kind == change.Enum || r.typ.Kind == change.Enum) {
		return expr{}, c.fail(n.pos, "the order of an enum is known to its server alone: compare with = or IN, or CAST it to text to order by spelling")
	}
	if r.known != nil && l.column >= 0 && by == comparers[l.typ.Kind] {
		if test := quickCompare(op, l, *r.known); test != nil {
			return condition(n.pos, test), nil
		}
	}
	if l.known != nil && r.column >= 0 && by == comparers[r.typ.Kind] {
		if test := quickCompare(op.mirrored(), r, *l.known); test != nil {
			return condition(n.pos, test), nil
		}
	}
	left, right := l.eval, r.eval
	return condition(n.pos, func(f *frame) (tri, error) {
		a, err := left(f)
		if err != nil {
			return unknown, err
		}
		b, err := right(f)
		if err != nil || a.null || b.null {
			return unknown, err
		}
		return op.of(by.order(&a, &b)), nil
	}), nil
}

// quickCompare compares a column with a known value without the detour over
// value: the usual condition of a flow is operation = 'DELETE'. nil where there
// is no such way.
func quickCompare(op outcome, column expr, known value) func(f *frame) (tri, error) {
	i, k, slow := column.column, column.typ.Kind, column.eval
	if known.null {
		return nil
	}
	var quick func(data []byte) (tri, error)
	by := comparers[k]
	switch {
	case by == byInt:
		quick = func(data []byte) (tri, error) {
			n, err := readInt(k, data)
			return op.of(cmp.Compare(n, known.i)), err
		}
	case isText(k) && !padded(column.typ) && !op.needsOrder():
		equal, other := op.of(0), op.of(1)
		quick = func(data []byte) (tri, error) {
			if string(data) == string(known.b) {
				return equal, nil
			}
			return other, nil
		}
	case isText(k) && !padded(column.typ):
		quick = func(data []byte) (tri, error) { return op.of(bytes.Compare(data, known.b)), nil }
	default:
		return nil
	}
	return func(f *frame) (tri, error) {
		switch v := f.row[i]; v.State {
		case change.AsText:
			if t, err := quick(v.Data); err == nil {
				return t, nil
			}
		case change.Null:
			return unknown, nil
		}
		v, err := slow(f) // binary, absent or malformed
		if err != nil {
			return unknown, err
		}
		return op.of(by.order(&v, &known)), nil
	}
}

// same builds IS NOT DISTINCT FROM, or IS DISTINCT FROM where wanted is false.
func (c *compiler) same(n *node, l, r expr, wanted bool) (expr, error) {
	l, r, by, err := c.harmonize(n, l, r)
	if err != nil {
		return expr{}, err
	}
	left, right := l.eval, r.eval
	return condition(n.pos, func(f *frame) (tri, error) {
		a, err := left(f)
		if err != nil {
			return unknown, err
		}
		b, err := right(f)
		if err != nil {
			return unknown, err
		}
		equal := a.null == b.null && (a.null || by.order(&a, &b) == 0)
		return truth(equal == wanted), nil
	}), nil
}

func (c *compiler) distinct(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	return c.same(n, kids[0], kids[1], n.negate)
}

func (c *compiler) between(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	low, err := c.compare(n, outcomes[">="], kids[0], kids[1])
	if err != nil {
		return expr{}, err
	}
	high, err := c.compare(n, outcomes["<="], kids[0], kids[2])
	if err != nil {
		return expr{}, err
	}
	return negated(conjunction(n.pos, []expr{low, high}), n.negate), nil
}

// in builds IN: TRUE if one item is equal, else unknown if one comparison is.
func (c *compiler) in(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	operand := kids[0]
	if test := c.inSet(n, operand, kids[1:]); test != nil {
		return negated(condition(n.pos, test), n.negate), nil
	}
	items := make([]expr, 0, len(kids)-1)
	for _, k := range kids[1:] {
		item, err := c.compare(n, outcomes["="], operand, k)
		if err != nil {
			return expr{}, err
		}
		items = append(items, item)
	}
	return negated(disjunction(n.pos, items), n.negate), nil
}

// few is how many items are searched one after the other: a map's hash costs
// about as much as eight comparisons of short texts.
const few = 8

// inSet is IN over known texts or known integers; nil where the general way has
// to be taken.
func (c *compiler) inSet(n *node, operand expr, items []expr) func(f *frame) (tri, error) {
	text := isText(operand.typ.Kind)
	if !text && !isInteger(operand.typ.Kind) || operand.untyped {
		return nil
	}
	var texts []string
	var ints []int64
	otherwise := no
	for _, item := range items {
		switch {
		case item.known == nil:
			return nil
		case item.known.null:
			otherwise = unknown
		case text && isText(item.typ.Kind):
			texts = append(texts, string(item.known.b))
		case !text && isInteger(item.typ.Kind):
			ints = append(ints, item.known.i)
		default:
			return nil
		}
	}
	has := func(b []byte) bool {
		for _, t := range texts {
			if string(b) == t {
				return true
			}
		}
		return false
	}
	if len(texts) > few {
		set := setOf(texts)
		has = func(b []byte) bool { return set[string(b)] }
	}
	hasInt := func(n int64) bool { return slices.Contains(ints, n) }
	if len(ints) > few {
		set := setOf(ints)
		hasInt = func(n int64) bool { return set[n] }
	}
	eval := operand.eval
	return func(f *frame) (tri, error) {
		v, err := eval(f)
		switch {
		case err != nil || v.null:
			return unknown, err
		case text && has(v.b), !text && hasInt(v.i):
			return yes, nil
		}
		return otherwise, nil
	}
}

func setOf[T comparable](items []T) map[T]bool {
	set := make(map[T]bool, len(items))
	for _, k := range items {
		set[k] = true
	}
	return set
}
