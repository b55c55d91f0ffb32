package expr

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"
	"strconv"

	"tailrace/internal/change/pgvalue"
)

// A numeric is a value with sp, scale and the coefficient: it stands for
// coefficient * 10^-scale. The coefficient is i where it fits 64 bits, so that
// the usual numbers need no memory, and big otherwise; an integer is therefore
// already the numeric of scale 0. The scale is the number of decimals printed
// and follows PostgreSQL's rules (numeric.c), so 1.50 stays 1.50.

// Limits of PostgreSQL's numeric.
const (
	maxDecimals = 16383
	maxDigits   = 131072 // before the point
)

var pow10 = func() (p [19]uint64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * 10
	}
	return p
}()

func bigPow10(n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

// coefficient returns the coefficient as a big integer, not to be written.
func (v *value) coefficient() *big.Int {
	if v.big != nil {
		return v.big
	}
	return big.NewInt(v.i)
}

// decimalOf makes the numeric n * 10^-scale, in its small form if possible.
func decimalOf(n *big.Int, scale int) (value, error) {
	if scale > maxDecimals || n.BitLen() > (maxDigits+scale)*10/3+4 {
		return value{}, errNumericRange
	}
	if n.IsInt64() {
		return value{i: n.Int64(), scale: int32(scale)}, nil
	}
	return value{big: n, scale: int32(scale)}, nil
}

// parseDecimal reads what PostgreSQL prints and takes as a numeric: digits with
// sign, point and exponent, NaN, Infinity.
func parseDecimal(b []byte) (value, error) {
	s := b
	neg := false
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		neg, s = s[0] == '-', s[1:]
	}
	var n uint64
	digits, scale, point, small := 0, 0, false, true
	i := 0
	for ; i < len(s); i++ {
		c := s[i]
		if c == '.' && !point {
			point = true
			continue
		}
		d := c - '0'
		if d > 9 {
			break
		}
		digits++
		if point {
			scale++
		}
		if n > (math.MaxInt64-9)/10 {
			small = false
		}
		n = n*10 + uint64(d)
	}
	exp := 0
	if digits > 0 && i < len(s) && s[i]|0x20 == 'e' {
		e, err := strconv.Atoi(string(s[i+1:]))
		if err != nil || e > maxDigits || e < -maxDecimals {
			return value{}, errNotNumeric
		}
		exp = e
	} else if i < len(s) || digits == 0 {
		return specialDecimal(b)
	}
	if small && exp == 0 && scale <= maxDecimals {
		v := value{i: int64(n), scale: int32(scale)}
		if neg {
			v.i = -v.i
		}
		return v, nil
	}
	if digits > maxDigits+maxDecimals {
		return value{}, errNumericRange
	}
	plain := make([]byte, 0, i)
	for _, c := range s[:i] {
		if c != '.' {
			plain = append(plain, c)
		}
	}
	coefficient, ok := new(big.Int).SetString(string(plain), 10)
	if !ok {
		return value{}, errNotNumeric
	}
	scale -= exp
	if scale < 0 {
		coefficient.Mul(coefficient, bigPow10(-scale))
		scale = 0
	}
	if neg {
		coefficient.Neg(coefficient)
	}
	return decimalOf(coefficient, scale)
}

func specialDecimal(b []byte) (value, error) {
	switch {
	case equalFold(b, "nan"):
		return value{sp: pgvalue.NaN}, nil
	case equalFold(b, "infinity"), equalFold(b, "inf"), equalFold(b, "+infinity"), equalFold(b, "+inf"):
		return value{sp: pgvalue.Infinity}, nil
	case equalFold(b, "-infinity"), equalFold(b, "-inf"):
		return value{sp: pgvalue.NegInfinity}, nil
	}
	return value{}, errNotNumeric
}

func appendDecimal(dst []byte, v *value) []byte {
	switch v.sp {
	case pgvalue.NaN:
		return append(dst, "NaN"...)
	case pgvalue.Infinity:
		return append(dst, "Infinity"...)
	case pgvalue.NegInfinity:
		return append(dst, "-Infinity"...)
	}
	start := len(dst)
	if v.big != nil {
		dst = v.big.Append(dst, 10)
	} else {
		dst = strconv.AppendInt(dst, v.i, 10)
	}
	scale := int(v.scale)
	if scale == 0 {
		return dst
	}
	if dst[start] == '-' {
		start++
	}
	if missing := scale + 1 - (len(dst) - start); missing > 0 {
		dst = append(dst, make([]byte, missing)...)
		copy(dst[start+missing:], dst[start:])
		for i := range missing {
			dst[start+i] = '0'
		}
	}
	dst = append(dst, 0)
	at := len(dst) - 1 - scale
	copy(dst[at+1:], dst[at:len(dst)-1])
	dst[at] = '.'
	return dst
}

// sign returns -1, 0 or 1 of a finite numeric.
func (v *value) sign() int {
	if v.big != nil {
		return v.big.Sign()
	}
	return cmp.Compare(v.i, 0)
}

// rank orders what is not finite: -Infinity, numbers, Infinity, NaN.
func rank(sp pgvalue.Special) int {
	if sp == pgvalue.NaN {
		return 2
	}
	return int(sp)
}

func compareDecimals(a, b *value) int {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return cmp.Compare(rank(a.sp), rank(b.sp))
	}
	if a.big == nil && b.big == nil {
		if a.scale == b.scale {
			return cmp.Compare(a.i, b.i)
		}
		if sa, sb := a.sign(), b.sign(); sa != sb {
			return cmp.Compare(sa, sb)
		}
		if a.scale < b.scale {
			if d := b.scale - a.scale; d < int32(len(pow10)) {
				return a.sign() * compareScaled(magnitude(a.i), pow10[d], magnitude(b.i))
			}
		} else if d := a.scale - b.scale; d < int32(len(pow10)) {
			return -a.sign() * compareScaled(magnitude(b.i), pow10[d], magnitude(a.i))
		}
	}
	x, y, _ := aligned(a, b)
	return x.Cmp(y)
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// compareScaled compares a*scale with b.
func compareScaled(a, scale, b uint64) int {
	hi, lo := bits.Mul64(a, scale)
	if hi != 0 {
		return 1
	}
	return cmp.Compare(lo, b)
}

// aligned returns both coefficients at the larger scale; they may be shared and
// are not to be written.
func aligned(a, b *value) (x, y *big.Int, scale int) {
	x, y, scale = a.coefficient(), b.coefficient(), int(max(a.scale, b.scale))
	if d := scale - int(a.scale); d > 0 {
		x = new(big.Int).Mul(x, bigPow10(d))
	}
	if d := scale - int(b.scale); d > 0 {
		y = new(big.Int).Mul(y, bigPow10(d))
	}
	return x, y, scale
}

// alignedSmall is aligned where both fit 64 bits.
func alignedSmall(a, b *value) (x, y int64, ok bool) {
	if a.big != nil || b.big != nil {
		return 0, 0, false
	}
	if a.scale == b.scale {
		return a.i, b.i, true
	}
	if a.scale < b.scale {
		x, ok = scaledUp(a.i, b.scale-a.scale)
		return x, b.i, ok
	}
	y, ok = scaledUp(b.i, a.scale-b.scale)
	return a.i, y, ok
}

func scaledUp(n int64, digits int32) (int64, bool) {
	if digits >= int32(len(pow10)) {
		return 0, false
	}
	hi, lo := bits.Mul64(magnitude(n), pow10[digits])
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	if n < 0 {
		return -int64(lo), true
	}
	return int64(lo), true
}

// notFinite handles the operands of + - * / % of which one is not finite.
func notFinite(op string, a, b *value) (value, error) {
	nan := value{sp: pgvalue.NaN}
	if a.sp == pgvalue.NaN || b.sp == pgvalue.NaN {
		return nan, nil
	}
	switch op {
	case "-":
		b = &value{sp: -b.sp}
		fallthrough
	case "+":
		if a.sp != pgvalue.Finite && b.sp != pgvalue.Finite && a.sp != b.sp {
			return nan, nil
		}
		if a.sp != pgvalue.Finite {
			return value{sp: a.sp}, nil
		}
		return value{sp: b.sp}, nil
	case "*":
		sign := signOf(a) * signOf(b)
		if sign == 0 {
			return nan, nil
		}
		return value{sp: pgvalue.Special(sign)}, nil
	case "/":
		switch {
		case a.sp == pgvalue.Finite:
			return value{}, nil
		case b.sp != pgvalue.Finite:
			return nan, nil
		case b.sign() == 0:
			return value{}, errDivision
		}
		return value{sp: pgvalue.Special(signOf(a) * signOf(b))}, nil
	}
	switch { // %
	case a.sp == pgvalue.Finite:
		return *a, nil
	case b.sp == pgvalue.Finite && b.sign() == 0:
		return value{}, errDivision
	}
	return nan, nil
}

// signOf is sign for infinities too.
func signOf(v *value) int {
	if v.sp != pgvalue.Finite {
		return int(v.sp)
	}
	return v.sign()
}

func addDecimals(a, b *value) (value, error) {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return notFinite("+", a, b)
	}
	if p, q, ok := alignedSmall(a, b); ok {
		if n := p + q; (p < 0) != (q < 0) || (n < 0) == (p < 0) {
			return value{i: n, scale: max(a.scale, b.scale)}, nil
		}
	}
	x, y, scale := aligned(a, b)
	return decimalOf(new(big.Int).Add(x, y), scale)
}

func subDecimals(a, b *value) (value, error) {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return notFinite("-", a, b)
	}
	if p, q, ok := alignedSmall(a, b); ok {
		if n := p - q; (p < 0) == (q < 0) || (n < 0) == (p < 0) {
			return value{i: n, scale: max(a.scale, b.scale)}, nil
		}
	}
	x, y, scale := aligned(a, b)
	return decimalOf(new(big.Int).Sub(x, y), scale)
}

func mulDecimals(a, b *value) (value, error) {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return notFinite("*", a, b)
	}
	if a.big == nil && b.big == nil {
		if hi, lo := bits.Mul64(magnitude(a.i), magnitude(b.i)); hi == 0 && lo <= math.MaxInt64 && a.scale+b.scale <= maxDecimals {
			n := int64(lo)
			if (a.i < 0) != (b.i < 0) {
				n = -n
			}
			return value{i: n, scale: a.scale + b.scale}, nil
		}
	}
	return decimalOf(new(big.Int).Mul(a.coefficient(), b.coefficient()), int(a.scale+b.scale))
}

// divDecimals divides to the scale that PostgreSQL chooses: at least 16
// significant digits, never fewer decimals than either operand has.
func divDecimals(a, b *value) (value, error) {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return notFinite("/", a, b)
	}
	if b.sign() == 0 {
		return value{}, errDivision
	}
	scale := divScale(a, b)
	x, y := a.coefficient(), b.coefficient()
	shift := scale + int(b.scale) - int(a.scale)
	if shift >= 0 {
		x = new(big.Int).Mul(x, bigPow10(shift))
	} else {
		y = new(big.Int).Mul(y, bigPow10(-shift))
	}
	return decimalOf(divideRounding(x, y), scale)
}

// divScale is numeric.c's select_div_scale.
func divScale(a, b *value) int {
	const minSignificant, maxScale = 16, 1000
	wa, fa := leading(a)
	wb, fb := leading(b)
	weight := wa - wb
	if fa <= fb {
		weight--
	}
	scale := max(minSignificant-4*weight, int(a.scale), int(b.scale), 0)
	return min(scale, maxScale)
}

// leading returns the place and the value of the first digit in base 10000.
func leading(v *value) (weight, digit int) {
	var buf [24]byte
	s := v.coefficient().Append(buf[:0], 10)
	if s[0] == '-' {
		s = s[1:]
	}
	if s[0] == '0' {
		return 0, 0
	}
	before := len(s) - int(v.scale) // decimal digits before the point, may be negative
	weight = int(math.Ceil(float64(before)/4)) - 1
	n := before - 4*weight // decimal digits in the first group: 1..4
	for i := range n {
		digit *= 10
		if i < len(s) {
			digit += int(s[i] - '0')
		}
	}
	return weight, digit
}

// divideRounding divides with rounding half away from zero.
func divideRounding(x, y *big.Int) *big.Int {
	q, r := new(big.Int).QuoRem(x, y, new(big.Int))
	if r.Lsh(r.Abs(r), 1).CmpAbs(y) >= 0 {
		one := big.NewInt(int64(x.Sign() * y.Sign()))
		q.Add(q, one)
	}
	return q
}

// modDecimals keeps the sign of the dividend.
func modDecimals(a, b *value) (value, error) {
	if a.sp != pgvalue.Finite || b.sp != pgvalue.Finite {
		return notFinite("%", a, b)
	}
	if b.sign() == 0 {
		return value{}, errDivision
	}
	if p, q, ok := alignedSmall(a, b); ok && q != -1 {
		return value{i: p % q, scale: max(a.scale, b.scale)}, nil
	}
	x, y, scale := aligned(a, b)
	return decimalOf(new(big.Int).Rem(x, y), scale)
}

func negDecimal(v *value) (value, error) {
	if v.sp != pgvalue.Finite {
		if v.sp == pgvalue.NaN {
			return *v, nil
		}
		return value{sp: -v.sp}, nil
	}
	if v.big == nil && v.i != math.MinInt64 {
		return value{i: -v.i, scale: v.scale}, nil
	}
	return decimalOf(new(big.Int).Neg(v.coefficient()), int(v.scale))
}

// rounding says what becomes of the digits behind the wanted ones.
type rounding uint8

const (
	halfAway rounding = iota // half away from zero, as PostgreSQL and Spark round
	toZero
	toFloor
	toCeiling
)

// rescale gives v the scale, which may be negative: then the result has scale 0
// and zeros before the point.
func rescale(v *value, scale int, how rounding) (value, error) {
	if v.sp != pgvalue.Finite {
		return *v, nil
	}
	drop := int(v.scale) - scale
	switch {
	case drop == 0:
		return *v, nil
	case drop < 0:
		return decimalOf(new(big.Int).Mul(v.coefficient(), bigPow10(-drop)), scale)
	}
	if drop > maxDigits+maxDecimals {
		drop = maxDigits + maxDecimals // all digits are gone by then
	}
	x, unit := v.coefficient(), bigPow10(drop)
	var q *big.Int
	switch how {
	case halfAway:
		q = divideRounding(x, unit)
	case toZero:
		q = new(big.Int).Quo(x, unit)
	case toFloor:
		q, _ = new(big.Int).DivMod(x, unit, new(big.Int))
	case toCeiling:
		q, _ = new(big.Int).DivMod(new(big.Int).Neg(x), unit, new(big.Int))
		q.Neg(q)
	}
	if scale < 0 {
		if q.Sign() == 0 {
			return value{}, nil
		}
		q.Mul(q, bigPow10(-scale))
		scale = 0
	}
	return decimalOf(q, scale)
}

// fitDecimal makes v a numeric(precision, scale); precision 0 leaves it alone.
func fitDecimal(v value, precision, scale int) (value, error) {
	if precision == 0 || v.sp == pgvalue.NaN {
		return v, nil
	}
	if v.sp != pgvalue.Finite {
		return value{}, errNumericRange
	}
	r, err := rescale(&v, scale, halfAway)
	if err != nil {
		return value{}, err
	}
	if digits := precision - scale + int(r.scale); digits <= 18 && r.big == nil {
		if digits < 0 {
			digits = 0
		}
		if magnitude(r.i) >= pow10[digits] {
			return value{}, errNumericRange
		}
	} else if r.coefficient().CmpAbs(bigPow10(max(digits, 0))) >= 0 {
		return value{}, errNumericRange
	}
	return r, nil
}

// intOfDecimal cuts the decimals off.
func intOfDecimal(v *value) (int64, error) {
	if v.sp != pgvalue.Finite {
		return 0, errIntRange
	}
	r, err := rescale(v, 0, toZero)
	if err != nil || r.big != nil {
		return 0, errIntRange
	}
	return r.i, nil
}

func equalFold(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i := range b {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}
