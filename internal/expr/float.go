package expr

import (
	"cmp"
	"math"
	"math/big"
	"strconv"

	"tailrace/internal/change/pgvalue"
)

// decimalOfFloat takes the shortest decimal that reads back as the float.
func decimalOfFloat(f float64, bits int) (value, error) {
	switch {
	case math.IsNaN(f):
		return value{sp: pgvalue.NaN}, nil
	case math.IsInf(f, 0):
		return value{sp: pgvalue.Special(cmp.Compare(f, 0))}, nil
	}
	var buf [400]byte
	v, err := parseDecimal(strconv.AppendFloat(buf[:0], f, 'f', -1, bits))
	if err == nil && v.big == nil && v.i == 0 {
		v = value{}
	}
	return v, err
}

// floatOfDecimal rounds to the nearest float.
func floatOfDecimal(v *value, bits int) (float64, error) {
	switch v.sp {
	case pgvalue.NaN:
		return math.NaN(), nil
	case pgvalue.Infinity, pgvalue.NegInfinity:
		return math.Inf(int(v.sp)), nil
	}
	var buf [64]byte
	f, err := strconv.ParseFloat(string(appendDecimal(buf[:0], v)), bits)
	if err != nil {
		return 0, errFloatRange
	}
	return f, nil
}

// compareFloats orders as PostgreSQL and Spark do: NaN equals itself and lies
// above everything; -0 equals 0.
func compareFloats(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == b:
		return 0
	}
	return cmp.Compare(nanRank(a), nanRank(b))
}

func nanRank(f float64) int {
	if math.IsNaN(f) {
		return 1
	}
	return 0
}

// compareFloatExactly compares a float with a numeric without rounding either.
func compareFloatExactly(f float64, d *value) int {
	switch {
	case math.IsNaN(f), math.IsInf(f, 0), d.sp != pgvalue.Finite:
		r := 0
		if math.IsNaN(f) {
			r = 2
		} else if math.IsInf(f, 0) {
			r = cmp.Compare(f, 0)
		}
		return cmp.Compare(r, rank(d.sp))
	}
	if d.big == nil && d.scale == 0 {
		switch {
		case f >= 1<<63:
			return 1
		case f < -1<<63:
			return -1
		}
		whole := math.Trunc(f)
		if c := cmp.Compare(int64(whole), d.i); c != 0 {
			return c
		}
		return cmp.Compare(f, whole)
	}
	x := new(big.Rat).SetFloat64(f)
	y := new(big.Rat).SetFrac(d.coefficient(), bigPow10(int(d.scale)))
	return x.Cmp(y)
}
