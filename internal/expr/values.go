package expr

import (
	"math"
	"math/big"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// value is what an expression yields at run time. Which fields count is said by
// the static type:
//
//	boolean                      i: 0 or 1
//	smallint, integer, bigint    i
//	real, double precision       f
//	numeric                      i or big, scale, sp (see decimal.go)
//	date                         i: days since 2000-01-01, or forever, never
//	timestamp (both)             i: microseconds since 2000-01-01 UTC, or forever, never
//	time                         i: microseconds since midnight
//	interval                     months, days, i (microseconds), sp
//	bytea                        b: the bytes themselves
//	everything else              b: PostgreSQL's text form, without char(n)'s trailing blanks
type value struct {
	null         bool
	sp           pgvalue.Special
	scale        int32
	months, days int32
	i            int64
	f            float64
	big          *big.Int
	b            []byte
}

// Dates and timestamps hold infinities as the ends of the range, so they compare
// like all others.
const (
	forever = math.MaxInt64
	never   = math.MinInt64
)

const (
	microsPerSecond = 1_000_000
	microsPerDay    = 86_400 * microsPerSecond
)

// maxText bounds a text that a function makes: far above what a row holds, far
// below what would endanger the process. maxKept is the scratch memory a program
// keeps from row to row.
const (
	maxText = 64 << 20
	maxKept = 64 << 10
)

var null = value{null: true}

// tri is a truth value of three-valued logic.
type tri uint8

const (
	no tri = iota
	yes
	unknown
)

func truth(b bool) tri {
	if b {
		return yes
	}
	return no
}

func (t tri) not() tri {
	return [...]tri{yes, no, unknown}[t]
}

func (t tri) value() value {
	if t == unknown {
		return null
	}
	return value{i: int64(t)}
}

func (v *value) tri() tri {
	if v.null {
		return unknown
	}
	return tri(v.i)
}

// frame is one evaluation's state. Texts that functions make lie in buf; growing
// it leaves earlier ones where they are.
type frame struct {
	row []change.Value
	buf []byte
}

// since returns what was appended to buf since it was start long.
func (f *frame) since(start int) []byte { return f.buf[start:len(f.buf):len(f.buf)] }

// readInt reads the text form of a type whose values lie in i alone.
func readInt(k change.Kind, data []byte) (int64, error) {
	in := change.Value{State: change.AsText, Data: data}
	switch k {
	case change.Int16, change.Int32, change.Int64:
		return pgvalue.Int64(in, k)
	case change.Date:
		d, sp, err := pgvalue.Date(in)
		return endless(int64(d), sp), err
	case change.Timestamp, change.TimestampTZ:
		n, sp, err := pgvalue.Timestamp(in, k)
		return endless(n, sp), err
	case change.Time:
		return pgvalue.Time(in)
	}
	b, err := pgvalue.Bool(in)
	return int64(truth(b)), err
}

// readValue reads the text form of a value of kind k; trim takes away the blanks
// that fill a char(n).
func readValue(k change.Kind, trim bool, data []byte) (value, error) {
	in := change.Value{State: change.AsText, Data: data}
	var v value
	var err error
	switch k {
	case change.Bool, change.Int16, change.Int32, change.Int64, change.Date, change.Timestamp, change.TimestampTZ, change.Time:
		v.i, err = readInt(k, data)
	case change.Float32:
		var g float32
		g, err = pgvalue.Float32(in)
		v.f = float64(g)
	case change.Float64:
		v.f, err = pgvalue.Float64(in)
	case change.Numeric:
		v, err = parseDecimal(data)
	case change.Interval:
		var iv pgvalue.Interval
		iv, v.sp, err = pgvalue.ReadInterval(in)
		v.months, v.days, v.i = iv.Months, iv.Days, iv.Micros
	case change.Bytes:
		v.b, err = pgvalue.Bytes(nil, in)
	default:
		v.b = data
		if trim {
			v.b = trimBlanks(data)
		}
	}
	return v, err
}

func endless(n int64, sp pgvalue.Special) int64 {
	switch sp {
	case pgvalue.Infinity:
		return forever
	case pgvalue.NegInfinity:
		return never
	}
	return n
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return b
}

// appendValue prints v, a value of type t that is not NULL, as PostgreSQL does.
func appendValue(dst []byte, t change.Type, v *value) []byte {
	switch t.Kind {
	case change.Bool:
		return pgvalue.AppendBool(dst, v.i != 0)
	case change.Int16, change.Int32, change.Int64:
		return strconv.AppendInt(dst, v.i, 10)
	case change.Float32:
		return pgvalue.AppendFloat(dst, v.f, 32)
	case change.Float64:
		return pgvalue.AppendFloat(dst, v.f, 64)
	case change.Numeric:
		return appendDecimal(dst, v)
	case change.Date:
		n, sp := finite(v.i)
		return pgvalue.AppendDate(dst, int32(n), sp)
	case change.Timestamp, change.TimestampTZ:
		n, sp := finite(v.i)
		return pgvalue.AppendTimestamp(dst, n, sp, t.Kind == change.TimestampTZ)
	case change.Time:
		return pgvalue.AppendTime(dst, v.i)
	case change.Interval:
		return pgvalue.AppendInterval(dst, pgvalue.Interval{Months: v.months, Days: v.days, Micros: v.i}, v.sp)
	case change.Bytes:
		return pgvalue.AppendBytes(dst, v.b)
	}
	start := len(dst)
	dst = append(dst, v.b...)
	if padded(t) {
		for n := countChars(dst[start:]); n < t.Length; n++ {
			dst = append(dst, ' ')
		}
	}
	return dst
}

func finite(n int64) (int64, pgvalue.Special) {
	switch n {
	case forever:
		return 0, pgvalue.Infinity
	case never:
		return 0, pgvalue.NegInfinity
	}
	return n, pgvalue.Finite
}
