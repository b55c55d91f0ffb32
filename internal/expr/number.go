package expr

import (
	"math"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// numeric makes an argument a number; a text is cast to numeric for each row.
func (c *compiler) numeric(n *node, e expr) (expr, error) {
	switch {
	case e.untyped:
		return constant(e.pos, typeOf(change.Numeric), null), nil
	case isNumber(e.typ.Kind):
		e.typ = typeOf(e.typ.Kind)
		return e, nil
	case e.typ.Kind == change.Text:
		return c.coerce(e, typeOf(change.Numeric))
	}
	return expr{}, c.fail(e.pos, "%s expects a number, this is %s", n.word, e.typ.Name)
}

func (c *compiler) double(n *node, e expr) (expr, error) {
	e, err := c.numeric(n, e)
	if err != nil {
		return expr{}, err
	}
	return c.coerce(e, typeOf(change.Float64))
}

// numberFunction builds a function of one number that keeps its type, from its
// three forms.
func (c *compiler) numberFunction(n *node, e expr, ints, decimals func(v value) (value, error), floats func(float64) float64) (expr, error) {
	e, err := c.numeric(n, e)
	if err != nil {
		return expr{}, err
	}
	k := e.typ.Kind
	return strict1(c.site(n, n.word), n.pos, e.typ, e, func(_ *frame, v value) (value, error) {
		switch {
		case isFloat(k):
			return value{f: floats(v.f)}, nil
		case k == change.Numeric:
			return decimals(v)
		}
		v, err := ints(v)
		if err != nil {
			return v, err
		}
		return fits(v.i, k)
	}), nil
}

func itself(v value) (value, error) { return v, nil }

func buildAbs(c *compiler, n *node, args []expr) (expr, error) {
	ints := func(v value) (value, error) {
		if v.i == math.MinInt64 {
			return value{}, errIntRange
		}
		return value{i: max(v.i, -v.i)}, nil
	}
	decimals := func(v value) (value, error) {
		if signOf(&v) < 0 && v.sp != pgvalue.NaN {
			return negDecimal(&v)
		}
		return v, nil
	}
	return c.numberFunction(n, args[0], ints, decimals, math.Abs)
}

func buildCeilFloor(c *compiler, n *node, args []expr) (expr, error) {
	how, floats := toFloor, math.Floor
	if n.word == "ceil" {
		how, floats = toCeiling, math.Ceil
	}
	decimals := func(v value) (value, error) { return rescale(&v, 0, how) }
	return c.numberFunction(n, args[0], itself, decimals, floats)
}

// buildRound rounds half away from zero; a float by its shortest decimal. Below 0
// the digits name places before the point.
func buildRound(c *compiler, n *node, args []expr) (expr, error) {
	digits := 0
	if len(args) == 2 {
		var err error
		if digits, err = c.literalInt(n, args[1], -1000, 1000, "number of decimals"); err != nil {
			return expr{}, err
		}
	}
	decimals := func(v value) (value, error) { return rescale(&v, digits, halfAway) }
	ints := func(v value) (value, error) {
		if digits >= 0 {
			return v, nil
		}
		r, err := decimals(v)
		if err != nil || r.big != nil {
			return value{}, errIntRange
		}
		return r, nil
	}
	floats := func(f float64) float64 {
		d, err := decimalOfFloat(f, 64)
		if err != nil || d.sp != pgvalue.Finite || int(d.scale) <= digits {
			return f
		}
		if d, err = decimals(d); err != nil {
			return f
		}
		g, err := floatOfDecimal(&d, 64)
		if err != nil {
			return f
		}
		return g
	}
	return c.numberFunction(n, args[0], ints, decimals, floats)
}

func buildMod(c *compiler, n *node, args []expr) (expr, error) {
	return c.arithmetic(&node{kind: isBinary, word: "%", pos: n.pos}, args[0], args[1])
}

func buildPow(c *compiler, n *node, args []expr) (expr, error) {
	base, err := c.double(n, args[0])
	if err != nil {
		return expr{}, err
	}
	exponent, err := c.double(n, args[1])
	if err != nil {
		return expr{}, err
	}
	return strict2(c.site(n, n.word), n.pos, typeOf(change.Float64), base, exponent, func(_ *frame, a, b value) (value, error) {
		f := math.Pow(a.f, b.f)
		switch {
		case math.IsNaN(f) && !math.IsNaN(a.f) && !math.IsNaN(b.f), a.f == 0 && b.f < 0:
			return value{}, errPower
		case math.IsInf(f, 0) && !math.IsInf(a.f, 0) && !math.IsInf(b.f, 0):
			return value{}, errFloatRange
		}
		return value{f: f}, nil
	}), nil
}

func buildSqrt(c *compiler, n *node, args []expr) (expr, error) {
	e, err := c.double(n, args[0])
	if err != nil {
		return expr{}, err
	}
	return strict1(c.site(n, n.word), n.pos, typeOf(change.Float64), e, func(_ *frame, v value) (value, error) {
		if v.f < 0 {
			return value{}, errNegativeRoot
		}
		return value{f: math.Sqrt(v.f)}, nil
	}), nil
}

func buildSign(c *compiler, n *node, args []expr) (expr, error) {
	ints := func(v value) (value, error) { return value{i: int64(v.sign())}, nil }
	decimals := func(v value) (value, error) {
		if v.sp == pgvalue.NaN {
			return v, nil
		}
		return value{i: int64(signOf(&v))}, nil
	}
	floats := func(f float64) float64 {
		switch {
		case f > 0:
			return 1
		case f < 0:
			return -1
		}
		return f // 0 and NaN
	}
	return c.numberFunction(n, args[0], ints, decimals, floats)
}
