package expr

import (
	"math"
	"math/big"
	"math/bits"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// operation is a binary operator on values of one type; neither is NULL. They go
// by value: their addresses would cost memory for each row.
type operation func(a, b value) (value, error)

// arithmetic builds + - * / % DIV. Integers stay integers of the wider type, but
// for / which divides as numeric; beside a float everything is double precision;
// texts are cast to numbers for each row.
func (c *compiler) arithmetic(n *node, l, r expr) (expr, error) {
	if l.untyped && r.untyped {
		return nothing(n.pos), nil
	}
	if e, ok, err := c.momentArithmetic(n, l, r); ok || err != nil {
		return e, err
	}
	l, r, err := c.numbers(n, l, r)
	if err != nil {
		return expr{}, err
	}
	wide, _ := wider(typeOf(l.typ.Kind), typeOf(r.typ.Kind))
	t, op := operationOf(n.word, wide)
	if isFloat(wide.Kind) {
		if l, err = c.coerce(l, wide); err != nil {
			return expr{}, err
		}
		if r, err = c.coerce(r, wide); err != nil {
			return expr{}, err
		}
	}
	return strict2(c.site(n, n.word), n.pos, t, l, r, func(_ *frame, a, b value) (value, error) { return op(a, b) }), nil
}

// numbers makes both operands numbers.
func (c *compiler) numbers(n *node, l, r expr) (expr, expr, error) {
	for _, side := range [2][2]*expr{{&l, &r}, {&r, &l}} {
		e, other := side[0], side[1]
		var err error
		switch {
		case isNumber(e.typ.Kind) && !e.untyped:
		case e.untyped || isText(e.typ.Kind):
			t := typeOf(change.Numeric)
			if other.typ.Kind != change.Text && isFloat(other.typ.Kind) || e.untyped && isNumber(other.typ.Kind) {
				t = typeOf(other.typ.Kind)
			}
			if e.typ.Kind == change.Enum {
				e.typ = typeOf(change.Text)
			}
			*e, err = c.coerce(*e, t)
		default:
			err = c.fail(n.pos, "%s of %s and %s is not possible: it takes numbers%s", n.word, l.typ.Name, r.typ.Name, momentHint(n.word, l, r))
		}
		if err != nil {
			return l, r, err
		}
	}
	return l, r, nil
}

func momentHint(op string, l, r expr) string {
	switch {
	case op == "-" && l.typ.Kind == change.Date && r.typ.Kind == change.Date:
		return "; datediff(a, b) gives the days between two dates"
	case isMoment(l.typ.Kind) || isMoment(r.typ.Kind):
		return ", or a time and an INTERVAL"
	}
	return ""
}

// operationOf picks the result's type and the operation for operands of numeric
// type t.
func operationOf(op string, t change.Type) (change.Type, operation) {
	switch {
	case op == "DIV" && isInteger(t.Kind):
		return typeOf(change.Int64), divInts
	case op == "DIV":
		return typeOf(change.Int64), divWhole(t.Kind)
	case isFloat(t.Kind):
		return t, floatOperation(op, t.Kind)
	case t.Kind == change.Numeric:
		return t, decimalOperations[op]
	case op == "/":
		return typeOf(change.Numeric), decimalOperations["/"]
	}
	k, run := t.Kind, intOperations[op]
	return t, func(a, b value) (value, error) {
		v, err := run(a, b)
		if err != nil {
			return v, err
		}
		return fits(v.i, k)
	}
}

var decimalOperations = map[string]operation{
	"+": func(a, b value) (value, error) { return addDecimals(&a, &b) },
	"-": func(a, b value) (value, error) { return subDecimals(&a, &b) },
	"*": func(a, b value) (value, error) { return mulDecimals(&a, &b) },
	"/": func(a, b value) (value, error) { return divDecimals(&a, &b) },
	"%": func(a, b value) (value, error) { return modDecimals(&a, &b) },
}

var intOperations = map[string]operation{
	"+": func(a, b value) (value, error) {
		n := a.i + b.i
		if (a.i < 0) == (b.i < 0) && (n < 0) != (a.i < 0) {
			return value{}, errIntRange
		}
		return value{i: n}, nil
	},
	"-": func(a, b value) (value, error) {
		n := a.i - b.i
		if (a.i < 0) != (b.i < 0) && (n < 0) != (a.i < 0) {
			return value{}, errIntRange
		}
		return value{i: n}, nil
	},
	"*": func(a, b value) (value, error) {
		hi, lo := bits.Mul64(magnitude(a.i), magnitude(b.i))
		negative := (a.i < 0) != (b.i < 0)
		switch {
		case hi == 0 && lo <= math.MaxInt64:
			if negative {
				return value{i: -int64(lo)}, nil
			}
			return value{i: int64(lo)}, nil
		case hi == 0 && lo == 1<<63 && negative:
			return value{i: math.MinInt64}, nil
		}
		return value{}, errIntRange
	},
	"%": func(a, b value) (value, error) {
		switch b.i {
		case 0:
			return value{}, errDivision
		case -1: // the lowest integer divided by it would overflow
			return value{}, nil
		}
		return value{i: a.i % b.i}, nil
	},
}

func divInts(a, b value) (value, error) {
	switch {
	case b.i == 0:
		return value{}, errDivision
	case b.i == -1 && a.i == math.MinInt64:
		return value{}, errIntRange
	}
	return value{i: a.i / b.i}, nil
}

// divWhole divides and cuts off the decimals, without going through a rounded
// quotient.
func divWhole(k change.Kind) operation {
	return func(a, b value) (value, error) {
		if isFloat(k) {
			if b.f == 0 {
				return value{}, errDivision
			}
			return toInt(typeOf(change.Float64), change.Int64)(nil, value{f: a.f / b.f})
		}
		if b.sp == pgvalue.Finite && b.sign() == 0 {
			return value{}, errDivision
		}
		if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
			return value{}, errIntRange
		}
		x, y, _ := aligned(&a, &b)
		q, err := decimalOf(new(big.Int).Quo(x, y), 0)
		if err != nil || q.big != nil {
			return value{}, errIntRange
		}
		return q, nil
	}
}

func floatOperation(op string, k change.Kind) operation {
	width := 64
	if k == change.Float32 {
		width = 32
	}
	return func(a, b value) (value, error) {
		var f float64
		switch op {
		case "+":
			f = a.f + b.f
		case "-":
			f = a.f - b.f
		case "*":
			f = a.f * b.f
		default:
			if b.f == 0 {
				return value{}, errDivision
			}
			if op == "/" {
				f = a.f / b.f
			} else {
				f = math.Mod(a.f, b.f)
			}
		}
		if math.IsInf(f, 0) && !math.IsInf(a.f, 0) && !math.IsInf(b.f, 0) {
			return value{}, errFloatRange
		}
		f, err := round32(f, width)
		return value{f: f}, err
	}
}

func (c *compiler) negative(n *node) (expr, error) {
	e, err := c.compile(n.kids[0])
	if err != nil {
		return expr{}, err
	}
	at := c.site(n, "-")
	t := e.typ
	if isNumber(t.Kind) || t.Kind == change.Interval {
		t = typeOf(t.Kind)
	}
	switch {
	case e.untyped:
		return nothing(n.pos), nil
	case isInteger(t.Kind):
		return strict1(at, n.pos, t, e, func(_ *frame, v value) (value, error) {
			if v.i == math.MinInt64 {
				return value{}, errIntRange
			}
			return fits(-v.i, t.Kind)
		}), nil
	case isFloat(t.Kind):
		return strict1(at, n.pos, t, e, func(_ *frame, v value) (value, error) { return value{f: -v.f}, nil }), nil
	case t.Kind == change.Interval:
		return strict1(at, n.pos, t, e, func(_ *frame, v value) (value, error) { return negInterval(&v) }), nil
	case t.Kind == change.Numeric, isText(t.Kind):
		if t.Kind != change.Numeric {
			e.typ = typeOf(change.Text)
			if e, err = c.coerce(e, typeOf(change.Numeric)); err != nil {
				return expr{}, err
			}
		}
		return strict1(at, n.pos, typeOf(change.Numeric), e, func(_ *frame, v value) (value, error) { return negDecimal(&v) }), nil
	}
	return expr{}, c.fail(n.pos, "- of %s is not possible: it takes a number or an interval", t.Name)
}

// momentArithmetic builds + and - with dates, timestamps and intervals; ok is
// false if neither side is one.
func (c *compiler) momentArithmetic(n *node, l, r expr) (e expr, ok bool, err error) {
	if n.word != "+" && n.word != "-" {
		return expr{}, false, nil
	}
	if n.word == "+" && isMoment(r.typ.Kind) {
		l, r = r, l
	}
	minus := n.word == "-"
	at := c.site(n, n.word)
	lk, rk := l.typ.Kind, r.typ.Kind
	switch {
	case lk == change.Date && isInteger(rk):
		return strict2(at, n.pos, typeOf(change.Date), l, r, func(_ *frame, a, b value) (value, error) {
			if minus {
				b.i = -b.i
			}
			return addDays(a.i, b.i)
		}), true, nil
	case lk == change.Date && rk == change.Interval && r.known != nil && r.known.i == 0 && r.known.sp == pgvalue.Finite:
		return strict2(at, n.pos, typeOf(change.Date), l, r, func(_ *frame, a, b value) (value, error) {
			return shifted(a.i, b, minus, shiftDay)
		}), true, nil
	case isMoment(lk) && rk == change.Interval:
		t := typeOf(lk)
		if lk == change.Date {
			t = typeOf(change.TimestampTZ)
			if l, err = c.coerce(l, t); err != nil {
				return expr{}, false, err
			}
		}
		return strict2(at, n.pos, t, l, r, func(_ *frame, a, b value) (value, error) {
			return shifted(a.i, b, minus, shiftMicros)
		}), true, nil
	case lk == change.Interval && rk == change.Interval:
		return strict2(at, n.pos, typeOf(change.Interval), l, r, func(_ *frame, a, b value) (value, error) {
			if minus {
				var err error
				if b, err = negInterval(&b); err != nil {
					return value{}, err
				}
			}
			return addIntervals(&a, &b)
		}), true, nil
	case minus && isMoment(lk) && isMoment(rk) && (lk != change.Date || rk != change.Date):
		for _, side := range [2]*expr{&l, &r} {
			if side.typ.Kind == change.Date {
				if *side, err = c.coerce(*side, typeOf(change.TimestampTZ)); err != nil {
					return expr{}, false, err
				}
			}
		}
		return strict2(at, n.pos, typeOf(change.Interval), l, r, func(_ *frame, a, b value) (value, error) {
			return between(a.i, b.i)
		}), true, nil
	}
	return expr{}, false, nil
}

func shifted(n int64, iv value, minus bool, shift func(int64, value) (int64, error)) (value, error) {
	if minus {
		var err error
		if iv, err = negInterval(&iv); err != nil {
			return value{}, err
		}
	}
	n, err := shift(n, iv)
	return value{i: n}, err
}

// between is the time from b to a in days and what remains of one.
func between(a, b int64) (value, error) {
	if a == forever || a == never || b == forever || b == never {
		return value{}, errInfinite
	}
	days, micros := a/microsPerDay-b/microsPerDay, a%microsPerDay-b%microsPerDay
	for micros > 0 && days < 0 || micros >= microsPerDay {
		days, micros = days+1, micros-microsPerDay
	}
	for micros < 0 && days > 0 || micros <= -microsPerDay {
		days, micros = days-1, micros+microsPerDay
	}
	return value{days: int32(days), i: micros}, nil
}

func addDays(day, n int64) (value, error) {
	if day == forever || day == never {
		return value{i: day}, nil
	}
	if n > 1<<33 || n < -1<<33 || day+n < firstDay || day+n > lastDay {
		return value{}, errTimeRange
	}
	return value{i: day + n}, nil
}

// strict1, strict2 and strict3 apply a function that is NULL if an argument is.
// All arguments are computed, so that a failing one fails beside a NULL too.
// Errors of run get their place; errors of the arguments have theirs.
func strict1(at site, pos int, t change.Type, a expr, run func(f *frame, a value) (value, error)) expr {
	first := a.eval
	return result(pos, t, func(f *frame) (value, error) {
		v, err := first(f)
		if err != nil || v.null {
			return v, err
		}
		if v, err = run(f, v); err != nil {
			return value{}, at.wrap(err)
		}
		return v, nil
	})
}

func strict2(at site, pos int, t change.Type, a, b expr, run func(f *frame, a, b value) (value, error)) expr {
	first, second := a.eval, b.eval
	return result(pos, t, func(f *frame) (value, error) {
		v, err := first(f)
		if err != nil {
			return value{}, err
		}
		w, err := second(f)
		if err != nil {
			return value{}, err
		}
		if v.null || w.null {
			return null, nil
		}
		if v, err = run(f, v, w); err != nil {
			return value{}, at.wrap(err)
		}
		return v, nil
	})
}

func strict3(at site, pos int, t change.Type, a, b, d expr, run func(f *frame, a, b, d value) (value, error)) expr {
	first, second, third := a.eval, b.eval, d.eval
	return result(pos, t, func(f *frame) (value, error) {
		v, err := first(f)
		if err != nil {
			return value{}, err
		}
		w, err := second(f)
		if err != nil {
			return value{}, err
		}
		x, err := third(f)
		if err != nil {
			return value{}, err
		}
		if v.null || w.null || x.null {
			return null, nil
		}
		if v, err = run(f, v, w, x); err != nil {
			return value{}, at.wrap(err)
		}
		return v, nil
	})
}
