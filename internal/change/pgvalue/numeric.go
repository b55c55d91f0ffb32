package pgvalue

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"strconv"

	"tailrace/internal/change"
)

// Special says that a numeric, a date, a timestamp or an interval is not finite.
type Special int8

const (
	Finite      Special = 0
	Infinity    Special = 1
	NegInfinity Special = -1
	NaN         Special = 2 // numeric only
)

// ErrOverflow is returned for a numeric that does not fit the asked scale and 38
// digits exactly. Nothing is ever rounded.
var ErrOverflow = errors.New("numeric does not fit without rounding")

// Int128 is a signed 128-bit integer in two's complement.
type Int128 struct {
	Hi int64
	Lo uint64
}

// Neg returns -i.
func (i Int128) Neg() Int128 {
	lo, borrow := bits.Sub64(0, i.Lo, 0)
	hi, _ := bits.Sub64(0, uint64(i.Hi), borrow)
	return Int128{Hi: int64(hi), Lo: lo}
}

// limit128 is 10^38: the first magnitude with 39 digits.
var limit128 = Int128{Hi: 0x4b3b4ca85a86c47a, Lo: 0x098a224000000000}

// accumulator gathers decimal digits into 128 bits.
type accumulator struct {
	hi, lo   uint64
	overflow bool
}

// push makes the value value*base + digit.
func (a *accumulator) push(base, digit uint64) {
	h1, lo := bits.Mul64(a.lo, base)
	h2, hi := bits.Mul64(a.hi, base)
	hi, c1 := bits.Add64(hi, h1, 0)
	lo, c2 := bits.Add64(lo, digit, 0)
	hi, c3 := bits.Add64(hi, 0, c2)
	if h2 != 0 || c1 != 0 || c3 != 0 || hi >= 1<<63 {
		a.overflow = true
	}
	a.hi, a.lo = hi, lo
}

func (a *accumulator) value(neg bool) (Int128, error) {
	if a.overflow || a.hi > uint64(limit128.Hi) || a.hi == uint64(limit128.Hi) && a.lo >= limit128.Lo {
		return Int128{}, ErrOverflow
	}
	v := Int128{Hi: int64(a.hi), Lo: a.lo}
	if neg {
		v = v.Neg()
	}
	return v, nil
}

// Numeric reads a numeric as an integer of units of 10^-scale: 1.25 at scale 4
// is 12500; scale is not negative. A value with more decimals than scale, or with more than 38 digits
// at that scale, is ErrOverflow. Special values come back as such, with a zero
// integer.
func Numeric(v change.Value, scale int) (Int128, Special, error) {
	switch v.State {
	case change.AsText:
		return numericText(v.Data, scale)
	case change.Binary:
		return numericBinary(v.Data, scale)
	}
	return Int128{}, Finite, errNumeric
}

func numericText(b []byte, scale int) (Int128, Special, error) {
	switch string(b) {
	case "NaN":
		return Int128{}, NaN, nil
	case "Infinity":
		return Int128{}, Infinity, nil
	case "-Infinity":
		return Int128{}, NegInfinity, nil
	}
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	var a accumulator
	digits, decimals, point := 0, 0, false
	for _, c := range b {
		if c == '.' && !point {
			point = true
			continue
		}
		d := c - '0'
		if d > 9 {
			return Int128{}, Finite, errNumeric
		}
		digits++
		if point {
			if decimals == scale {
				if d != 0 {
					return Int128{}, Finite, ErrOverflow
				}
				continue
			}
			decimals++
		}
		if a.hi == 0 && a.lo < 1<<59 { // below 2^63 after times ten: the usual case
			a.lo = a.lo*10 + uint64(d)
		} else {
			a.push(10, uint64(d))
		}
	}
	if digits == 0 {
		return Int128{}, Finite, errNumeric
	}
	for ; decimals < scale && !a.overflow; decimals++ {
		a.push(10, 0)
	}
	n, err := a.value(neg)
	return n, Finite, err
}

// Sign words of the binary form (numeric.c).
const (
	numericPos    = 0x0000
	numericNeg    = 0x4000
	numericNaN    = 0xC000
	numericPosInf = 0xD000
	numericNegInf = 0xF000

	numericMaxScale = 16383 // NUMERIC_DSCALE_MASK
)

// header is the binary form's first four words; digits follow in base 10000.
type header struct {
	digits  []byte // two bytes each, every one below 10000
	weight  int    // the first digit counts 10000^weight
	neg     bool
	special Special
	scale   int // digits to print after the point
}

func numericHeader(b []byte) (h header, err error) {
	if len(b) < 8 {
		return h, errNumeric
	}
	n := int(binary.BigEndian.Uint16(b))
	h.weight = int(int16(binary.BigEndian.Uint16(b[2:])))
	h.scale = int(binary.BigEndian.Uint16(b[6:]))
	switch binary.BigEndian.Uint16(b[4:]) {
	case numericPos:
	case numericNeg:
		h.neg = true
	case numericNaN:
		h.special = NaN
		return h, nil
	case numericPosInf:
		h.special = Infinity
		return h, nil
	case numericNegInf:
		h.special = NegInfinity
		return h, nil
	default:
		return h, errNumeric
	}
	h.digits = b[8:]
	if len(h.digits) != 2*n || h.scale > numericMaxScale {
		return h, errNumeric
	}
	for i := 0; i < len(h.digits); i += 2 {
		if binary.BigEndian.Uint16(h.digits[i:]) > 9999 {
			return h, errNumeric
		}
	}
	return h, nil
}

// digit returns the base-10000 digit that counts 10000^place.
func (h *header) digit(place int) uint64 {
	i := h.weight - place
	if i < 0 || 2*i >= len(h.digits) {
		return 0
	}
	return uint64(binary.BigEndian.Uint16(h.digits[2*i:]))
}

var powersOfTen = [...]uint64{1, 10, 100, 1000, 10000}

func numericBinary(b []byte, scale int) (Int128, Special, error) {
	h, err := numericHeader(b)
	if err != nil || h.special != Finite {
		return Int128{}, h.special, err
	}
	if len(h.digits) == 0 {
		return Int128{}, Finite, nil
	}
	// The lowest place that scale reaches into, and how many of its four decimal
	// digits are kept.
	last := -((scale + 3) / 4)
	keep := scale + 4*(last+1) // 1..4
	// Places below must be zero, places above 38 digits overflow by themselves.
	for place := h.weight - len(h.digits)/2 + 1; place < last; place++ {
		if h.digit(place) != 0 {
			return Int128{}, Finite, ErrOverflow
		}
	}
	var a accumulator
	for place := h.weight; place > last; place-- {
		d := h.digit(place)
		if a.hi == 0 && a.lo < 1<<49 { // below 2^63 after times ten thousand
			a.lo = a.lo*10000 + d
		} else {
			a.push(10000, d)
		}
		if a.overflow {
			return Int128{}, Finite, ErrOverflow
		}
	}
	drop, d := powersOfTen[4-keep], h.digit(last)
	if d%drop != 0 {
		return Int128{}, Finite, ErrOverflow
	}
	a.push(powersOfTen[keep], d/drop)
	n, err := a.value(h.neg)
	return n, Finite, err
}

// appendNumeric prints the binary form as numeric_out does.
func appendNumeric(dst, b []byte) ([]byte, error) {
	h, err := numericHeader(b)
	if err != nil {
		return dst, err
	}
	switch h.special {
	case NaN:
		return append(dst, "NaN"...), nil
	case Infinity:
		return append(dst, "Infinity"...), nil
	case NegInfinity:
		return append(dst, "-Infinity"...), nil
	}
	if h.neg {
		dst = append(dst, '-')
	}
	if h.weight < 0 {
		dst = append(dst, '0')
	} else {
		dst = strconv.AppendUint(dst, h.digit(h.weight), 10)
		for place := h.weight - 1; place >= 0; place-- {
			dst = append4(dst, h.digit(place))
		}
	}
	if h.scale == 0 {
		return dst, nil
	}
	dst = append(dst, '.')
	end := len(dst) + h.scale
	for place := -1; len(dst) < end; place-- {
		dst = append4(dst, h.digit(place))
	}
	return dst[:end], nil
}

func append4(dst []byte, d uint64) []byte {
	return append(dst, byte('0'+d/1000), byte('0'+d/100%10), byte('0'+d/10%10), byte('0'+d%10))
}

// AppendInt128 prints n, an integer in units of 10^-scale, with exactly scale
// decimals, as numeric(p,scale) prints: 12500 at scale 4 is 1.2500.
func AppendInt128(dst []byte, n Int128, scale int) []byte {
	neg := n.Hi < 0
	if neg {
		n = n.Neg()
	}
	var buf [48]byte
	i := len(buf)
	hi, lo := uint64(n.Hi), n.Lo
	for digits := 0; digits <= scale || hi != 0 || lo != 0; digits++ {
		if digits == scale && scale > 0 {
			i--
			buf[i] = '.'
		}
		var r uint64
		if hi == 0 {
			lo, r = lo/10, lo%10
		} else {
			var rem uint64
			hi, rem = hi/10, hi%10
			lo, r = bits.Div64(rem, lo, 10)
		}
		i--
		buf[i] = byte('0' + r)
	}
	if neg {
		i--
		buf[i] = '-'
	}
	return append(dst, buf[i:]...)
}
