package pgvalue

import (
	"math"
	"math/big"
	"strconv"
)

// AppendFloat prints a float as the server does with extra_float_digits 1: the
// shortest digits that lie *inside* the interval of reals rounding to f, in
// exponent form where the exponent is below -4 or at least 15 (6 for 32 bits).
// bits is 32 or 64.
//
// Go's shortest digits may lie on the interval's edge, where reading back needs
// the tie to go to the even neighbour; the server does not accept those
// (src/common/d2s.c, STRICTLY_SHORTEST 0), so one digit more is needed there.
func AppendFloat(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	case f == 0:
		if math.Signbit(f) {
			dst = append(dst, '-')
		}
		return append(dst, '0')
	}
	var buf [40]byte
	sci := strconv.AppendFloat(buf[:0], f, 'e', -1, bits)
	for e := exponentAt(sci); onEdge(sci, f, bits); e = exponentAt(sci) {
		sci = strconv.AppendFloat(buf[:0], f, 'e', digitsBefore(sci, e), bits)
	}
	e := exponentAt(sci)
	exp, _ := strconv.Atoi(string(sci[e+1:]))
	limit := 15
	if bits == 32 {
		limit = 6
	}
	if exp < -4 || exp >= limit {
		return append(dst, sci...)
	}
	if sci[0] == '-' {
		dst, sci, e = append(dst, '-'), sci[1:], e-1
	}
	d := sci[:1] // the digits alone: the first one takes the point's place
	if e > 1 {
		sci[1] = sci[0]
		d = sci[1:e]
	}
	if exp < 0 {
		dst = append(dst, "0.0000"[:1-exp]...)
		return append(dst, d...)
	}
	for i := 0; i <= exp || i < len(d); i++ {
		if i == exp+1 {
			dst = append(dst, '.')
		}
		if i < len(d) {
			dst = append(dst, d[i])
		} else {
			dst = append(dst, '0')
		}
	}
	return dst
}

// exponentAt returns the index of the e in [-]d[.d...]e±xx.
func exponentAt(sci []byte) int {
	i := 0
	for sci[i] != 'e' {
		i++
	}
	return i
}

// digitsBefore counts the digits before the exponent at e.
func digitsBefore(sci []byte, e int) int {
	n := 0
	for _, c := range sci[:e] {
		if c >= '0' && c <= '9' {
			n++
		}
	}
	return n
}

// onEdge reports whether the decimal sci lies exactly between f and a
// neighbouring float. That is possible only from 2^(mantissa bits) on, and only
// while the power of five in it fits the mantissa, so it costs nothing for the
// usual values.
func onEdge(sci []byte, f float64, bits int) bool {
	a := math.Abs(f)
	var lo, hi float64 // neighbours
	if bits == 32 {
		if a < 1<<22 || a > 1e20 {
			return false
		}
		g := float32(a)
		lo, hi = float64(math.Nextafter32(g, 0)), float64(math.Nextafter32(g, math.MaxFloat32))
	} else {
		if a < 1<<51 || a > 1e41 {
			return false
		}
		lo, hi = math.Nextafter(a, 0), math.Nextafter(a, math.MaxFloat64)
	}
	var text, mid big.Rat
	if _, ok := text.SetString(string(sci)); !ok {
		return false
	}
	text.Abs(&text)
	var x, y big.Rat
	x.SetFloat64(a)
	for _, n := range [2]float64{lo, hi} {
		y.SetFloat64(n)
		mid.Add(&x, &y)
		mid.Quo(&mid, big.NewRat(2, 1))
		if mid.Cmp(&text) == 0 {
			return true
		}
	}
	return false
}
