package expr

import (
	"slices"

	"tailrace/internal/change"
)

func negated(e expr, negate bool) expr {
	if !negate {
		return e
	}
	inner := e.test
	return condition(e.pos, func(f *frame) (tri, error) {
		t, err := inner(f)
		return t.not(), err
	})
}

// conjunction is AND from left to right: FALSE ends it, so what stands further
// right is then neither computed nor able to fail.
func conjunction(pos int, kids []expr) expr { return chain(pos, kids, no) }

func disjunction(pos int, kids []expr) expr { return chain(pos, kids, yes) }

// chain joins truth values: decisive wins over unknown, unknown over the other.
func chain(pos int, kids []expr, decisive tri) expr {
	if len(kids) == 1 {
		return kids[0]
	}
	if len(kids) == 2 {
		left, right := kids[0].test, kids[1].test
		return condition(pos, func(f *frame) (tri, error) {
			a, err := left(f)
			if err != nil || a == decisive {
				return a, err
			}
			b, err := right(f)
			if err != nil || b == decisive || a != unknown {
				return b, err
			}
			return unknown, nil
		})
	}
	tests := make([]func(*frame) (tri, error), len(kids))
	for i := range kids {
		tests[i] = kids[i].test
	}
	return condition(pos, func(f *frame) (tri, error) {
		out := decisive.not()
		for _, test := range tests {
			t, err := test(f)
			if err != nil || t == decisive {
				return t, err
			}
			if t == unknown {
				out = unknown
			}
		}
		return out, nil
	})
}

// boolean makes e a condition; a text is none.
func (c *compiler) boolean(e expr) (expr, error) {
	switch {
	case e.untyped:
		return condition(e.pos, func(*frame) (tri, error) { return unknown, nil }), nil
	case e.typ.Kind == change.Bool:
		return e, nil
	}
	return expr{}, c.fail(e.pos, "expected a condition, this is %s", e.typ.Name)
}

func (c *compiler) booleans(n *node) ([]expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return nil, err
	}
	for i := range kids {
		if kids[i], err = c.boolean(kids[i]); err != nil {
			return nil, err
		}
	}
	return kids, nil
}

func (c *compiler) not(n *node) (expr, error) {
	kids, err := c.booleans(n)
	if err != nil {
		return expr{}, err
	}
	return negated(kids[0], true), nil
}

func (c *compiler) logic(n *node) (expr, error) {
	kids, err := c.booleans(n)
	if err != nil {
		return expr{}, err
	}
	if n.kind == isAnd {
		return conjunction(n.pos, kids), nil
	}
	return disjunction(n.pos, kids), nil
}

func (c *compiler) is(n *node) (expr, error) {
	e, err := c.compile(n.kids[0])
	if err != nil {
		return expr{}, err
	}
	if n.word == "NULL" {
		return isNullTest(n.pos, e, n.negate), nil
	}
	if e, err = c.boolean(e); err != nil {
		return expr{}, err
	}
	want := map[string]tri{"TRUE": yes, "FALSE": no, "UNKNOWN": unknown}[n.word]
	inner, negate := e.test, n.negate
	return condition(n.pos, func(f *frame) (tri, error) {
		t, err := inner(f)
		return truth((t == want) != negate), err
	}), nil
}

// isNullTest does not read a bare column's value: it needs no comparison and no
// valid text.
func isNullTest(pos int, e expr, negate bool) expr {
	i, inner := e.column, e.eval
	return condition(pos, func(f *frame) (tri, error) {
		if i >= 0 {
			switch f.row[i].State {
			case change.Null:
				return truth(!negate), nil
			case change.AsText, change.Binary:
				return truth(negate), nil
			}
		}
		v, err := inner(f)
		return truth(v.null != negate), err
	})
}

// common finds the type that several results have together, and casts them to
// it: a string literal takes the others' type, numbers the widest, dates and
// timestamps the timestamp. Texts and other things have none.
func (c *compiler) common(n *node, kids []expr) ([]expr, change.Type, error) {
	var t change.Type
	first := true
	for _, e := range kids {
		if e.untyped || e.quoted {
			continue
		}
		if first {
			t, first = e.typ, false
			continue
		}
		wider, ok := wider(t, e.typ)
		if !ok {
			return nil, t, c.fail(e.pos, "%s and %s have no common type: CAST one of them", t.Name, e.typ.Name)
		}
		t = wider
	}
	if first {
		t = typeOf(change.Text)
	}
	if slices.ContainsFunc(kids, func(e expr) bool { return e.quoted }) {
		if t.Kind == change.Enum {
			t.Kind = change.Text
		}
		if builtIn[t.Kind].Name != "" { // without length and precision, so that no literal is cut
			t = typeOf(t.Kind)
		}
	}
	out := make([]expr, len(kids))
	for i, e := range kids {
		switch {
		case e.untyped:
			out[i] = constant(e.pos, t, null)
		case e.typ.Kind == t.Kind && !(e.quoted && t.Kind == change.Text):
			out[i] = e
		case castTo(e.typ, t) == nil:
			return nil, t, c.fail(e.pos, "%s and %s have no common type: CAST one of them", t.Name, e.typ.Name)
		default:
			var err error
			if out[i], err = c.coerce(e, t); err != nil {
				return nil, t, err
			}
		}
	}
	return out, t, nil
}

// wider is the type that holds the values of both, if there is one.
func wider(a, b change.Type) (change.Type, bool) {
	switch {
	case a.Name == b.Name && a.Kind == b.Kind:
		return a, true
	case isInteger(a.Kind) && isInteger(b.Kind):
		return typeOf(max(a.Kind, b.Kind)), true
	case isNumber(a.Kind) && isNumber(b.Kind):
		switch {
		case a.Kind == change.Float32 && b.Kind == change.Float32:
			return typeOf(change.Float32), true
		case isFloat(a.Kind) || isFloat(b.Kind):
			return typeOf(change.Float64), true
		}
		return typeOf(change.Numeric), true
	case isText(a.Kind) && isText(b.Kind):
		return typeOf(change.Text), true
	case isMoment(a.Kind) && isMoment(b.Kind):
		if a.Kind == b.Kind {
			return typeOf(a.Kind), true
		}
		if a.Kind == change.TimestampTZ || b.Kind == change.TimestampTZ {
			return typeOf(change.TimestampTZ), true
		}
		return typeOf(change.Timestamp), true
	case a.Kind == b.Kind && builtIn[a.Kind].Name != "":
		return typeOf(a.Kind), true
	}
	return a, false
}

func (c *compiler) caseWhen(n *node) (expr, error) {
	kids, err := c.kids(n)
	if err != nil {
		return expr{}, err
	}
	operand := expr{}
	if n.kind == isCaseOf {
		operand, kids = kids[0], kids[1:]
	}
	var tests, results []expr
	for ; len(kids) >= 2; kids = kids[2:] {
		var when expr
		if n.kind == isCaseOf {
			when, err = c.compare(n, outcomes["="], operand, kids[0])
		} else {
			when, err = c.boolean(kids[0])
		}
		if err != nil {
			return expr{}, err
		}
		tests, results = append(tests, when), append(results, kids[1])
	}
	if len(kids) == 1 {
		results = append(results, kids[0])
	} else {
		results = append(results, nothing(n.pos))
	}
	results, t, err := c.common(n, results)
	if err != nil {
		return expr{}, err
	}
	return choose(n.pos, t, tests, results), nil
}

// choose yields the result whose test is the first to be true, else the last one.
func choose(pos int, t change.Type, tests, results []expr) expr {
	return result(pos, t, func(f *frame) (value, error) {
		for i := range tests {
			truth, err := tests[i].test(f)
			if err != nil {
				return value{}, err
			}
			if truth == yes {
				return results[i].eval(f)
			}
		}
		return results[len(results)-1].eval(f)
	})
}
