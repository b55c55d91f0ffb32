package files

import (
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// PostgreSQL's ranges, counted from 2000-01-01: 4714-11-24 BC to 5874897-12-31 for
// dates, to 294276-12-31 for timestamps.
const (
	dateLeast, dateEnd           = -2451545, 2145031949
	timestampLeast, timestampEnd = -211_813_488_000_000_000, 9_223_371_331_200_000_000
	microsPerDay                 = 86_400_000_000
	julianEpoch                  = 2451545 // 2000-01-01 as a Julian day, as INT96 counts
)

// describe sets how a leaf's values become text.
func (n *node) describe(c *parquet.Column) {
	t := c.Type()
	n.exact = integerText
	if lt := t.LogicalType(); lt != nil {
		if n.describeLogical(lt.Value, t) {
			return
		}
	}
	switch t.Kind() {
	case parquet.Boolean:
		n.leaf(typeBool, false, func(dst []byte, v parquet.Value) ([]byte, bool) { return pgvalue.AppendBool(dst, v.Boolean()), true })
	case parquet.Int32:
		n.leaf(typeInt32, false, printInt32)
	case parquet.Int64:
		n.leaf(typeInt64, false, printInt64)
	case parquet.Int96:
		n.leaf(typeInstant, true, printInt96)
		n.exact = bytesText
	case parquet.Float:
		n.leaf(typeFloat32, false, func(dst []byte, v parquet.Value) ([]byte, bool) {
			return pgvalue.AppendFloat(dst, float64(v.Float()), 32), true
		})
	case parquet.Double:
		n.leaf(typeFloat64, false, func(dst []byte, v parquet.Value) ([]byte, bool) {
			return pgvalue.AppendFloat(dst, v.Double(), 64), true
		})
	default:
		n.leaf(typeBytes, true, func(dst []byte, v parquet.Value) ([]byte, bool) { return pgvalue.AppendBytes(dst, v.ByteArray()), true })
	}
}

func (n *node) leaf(t change.Type, quoted bool, print func([]byte, parquet.Value) ([]byte, bool)) {
	n.typ, n.kind, n.quoted, n.print = t, t.Kind, quoted, print
}

func (n *node) describeLogical(logical format.LogicalTypeValue, t parquet.Type) bool {
	switch lt := logical.(type) {
	case *format.StringType, *format.EnumType, *format.NullType:
		n.leaf(typeText, true, printBytes)
	case *format.JsonType:
		n.leaf(typeJSONB, true, printBytes)
		n.inexact = true // a writer may store anything
	case *format.UUIDType:
		n.leaf(typeUUID, true, func(dst []byte, v parquet.Value) ([]byte, bool) {
			if b := v.ByteArray(); len(b) == 16 {
				return pgvalue.AppendUUID(dst, [16]byte(b)), true
			}
			return dst, false
		})
		n.exact = bytesText
	case *format.DateType:
		n.leaf(typeDate, true, printDate)
	case *format.IntType:
		return n.describeInt(lt)
	case *format.DecimalType:
		n.describeDecimal(lt, t)
	case *format.TimeType:
		perMicro, nanos := unitOf(lt.Unit)
		n.leaf(typeTime, true, func(dst []byte, v parquet.Value) ([]byte, bool) {
			micros, ok := toMicros(integer(v), perMicro, nanos)
			if !ok || micros < 0 || micros >= microsPerDay {
				return dst, false
			}
			return pgvalue.AppendTime(dst, micros), true
		})
	case *format.TimestampType:
		n.describeTimestamp(lt)
	default:
		return false
	}
	return true
}

// describeInt takes the narrow and the unsigned ones; the usual are as the physical
// type.
func (n *node) describeInt(lt *format.IntType) bool {
	switch {
	case lt.BitWidth <= 8, lt.BitWidth == 16 && lt.IsSigned:
		n.leaf(typeInt16, false, printInt32)
	case lt.BitWidth == 16:
		n.leaf(typeInt32, false, printInt32)
	case lt.IsSigned:
		return false
	case lt.BitWidth == 32:
		n.leaf(typeInt64, false, func(dst []byte, v parquet.Value) ([]byte, bool) {
			return strconv.AppendUint(dst, uint64(v.Uint32()), 10), true
		})
	default:
		n.leaf(typeNumeric, false, func(dst []byte, v parquet.Value) ([]byte, bool) { return strconv.AppendUint(dst, v.Uint64(), 10), true })
	}
	n.inexact = lt.BitWidth <= 16 // a writer may store more than the width
	return true
}

func (n *node) describeDecimal(lt *format.DecimalType, t parquet.Type) {
	scale := int(lt.Scale)
	typ := typeNumeric
	if p := int(lt.Precision); p >= 1 && p <= maxPrecision && scale >= 0 && scale <= p {
		typ, _ = numericType("decimal", []int{p, scale})
	}
	print := func(dst []byte, v parquet.Value) ([]byte, bool) {
		return appendDecimal(dst, strconv.FormatInt(integer(v), 10), scale), true
	}
	if k := t.Kind(); k == parquet.ByteArray || k == parquet.FixedLenByteArray {
		print = func(dst []byte, v parquet.Value) ([]byte, bool) {
			return appendDecimal(dst, bigEndian(v.ByteArray()), scale), true
		}
	}
	n.leaf(typ, false, print)
	n.inexact = true // a value may have more digits than the schema says
}

// appendDecimal prints an integer with its last scale digits behind the point.
func appendDecimal(dst []byte, digits string, scale int) []byte {
	if digits[0] == '-' {
		dst, digits = append(dst, '-'), digits[1:]
	}
	if scale <= 0 {
		dst = append(dst, digits...)
		for ; scale < 0 && digits != "0"; scale++ {
			dst = append(dst, '0')
		}
		return dst
	}
	if len(digits) <= scale {
		dst = append(dst, '0')
	}
	point := max(len(digits)-scale, 0)
	dst = append(append(dst, digits[:point]...), '.')
	for n := len(digits) - point; n < scale; n++ {
		dst = append(dst, '0')
	}
	return append(dst, digits[point:]...)
}

// bigEndian reads a two's complement integer of any width.
func bigEndian(b []byte) string {
	if len(b) <= 8 && len(b) > 0 {
		n := int64(int8(b[0]))
		for _, c := range b[1:] {
			n = n<<8 | int64(c)
		}
		return strconv.FormatInt(n, 10)
	}
	var i big.Int
	i.SetBytes(b)
	if len(b) > 0 && b[0] >= 0x80 {
		i.Sub(&i, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return i.String()
}

func (n *node) describeTimestamp(lt *format.TimestampType) {
	typ := typeTimestamp
	if lt.IsAdjustedToUTC {
		typ = typeInstant
	}
	perMicro, nanos := unitOf(lt.Unit)
	n.leaf(typ, true, func(dst []byte, v parquet.Value) ([]byte, bool) {
		micros, ok := toMicros(integer(v), perMicro, nanos)
		if !ok {
			return dst, false
		}
		return printTimestamp(dst, micros, lt.IsAdjustedToUTC)
	})
	if nanos {
		n.exact = func(dst []byte, v parquet.Value) []byte {
			t := time.Unix(0, v.Int64()).UTC()
			layout := `"2006-01-02 15:04:05.999999999"`
			if lt.IsAdjustedToUTC {
				layout = `"2006-01-02 15:04:05.999999999+00"`
			}
			return t.AppendFormat(dst, layout)
		}
	}
}

// unitOf returns what a unit of a time is: so many microseconds, or a nanosecond.
func unitOf(u format.TimeUnit) (micros int64, nanos bool) {
	switch u.Value.(type) {
	case *format.MilliSeconds:
		return 1000, false
	case *format.NanoSeconds:
		return 0, true
	}
	return 1, false
}

// toMicros converts exactly or not at all.
func toMicros(n, perMicro int64, nanos bool) (int64, bool) {
	if nanos {
		return n / 1000, n%1000 == 0
	}
	return n * perMicro, n <= math.MaxInt64/perMicro && n >= math.MinInt64/perMicro
}

// printTimestamp prints microseconds since 1970.
func printTimestamp(dst []byte, micros int64, instant bool) ([]byte, bool) {
	if micros < timestampLeast+pgvalue.UnixEpochMicros || micros-pgvalue.UnixEpochMicros >= timestampEnd {
		return dst, false
	}
	return pgvalue.AppendTimestamp(dst, micros-pgvalue.UnixEpochMicros, pgvalue.Finite, instant), true
}

func printDate(dst []byte, v parquet.Value) ([]byte, bool) {
	days := integer(v) - pgvalue.UnixEpochDays
	if days < dateLeast || days >= dateEnd {
		return dst, false
	}
	return pgvalue.AppendDate(dst, int32(days), pgvalue.Finite), true
}

// printInt96 prints the old timestamps of Impala and Spark: nanoseconds of a Julian day.
func printInt96(dst []byte, v parquet.Value) ([]byte, bool) {
	w := v.Int96()
	nanos := int64(uint64(w[0]) | uint64(w[1])<<32)
	days := int64(int32(w[2])) - julianEpoch
	if nanos < 0 || nanos >= microsPerDay*1000 || nanos%1000 != 0 || days < dateLeast || days >= timestampEnd/microsPerDay {
		return dst, false
	}
	return pgvalue.AppendTimestamp(dst, days*microsPerDay+nanos/1000, pgvalue.Finite, true), true
}

// integer reads a value of 32 or 64 bits.
func integer(v parquet.Value) int64 {
	if v.Kind() == parquet.Int32 {
		return int64(v.Int32())
	}
	return v.Int64()
}

func printInt32(dst []byte, v parquet.Value) ([]byte, bool) {
	return strconv.AppendInt(dst, int64(v.Int32()), 10), true
}

func printInt64(dst []byte, v parquet.Value) ([]byte, bool) {
	return strconv.AppendInt(dst, v.Int64(), 10), true
}

func printBytes(dst []byte, v parquet.Value) ([]byte, bool) {
	return append(dst, v.ByteArray()...), true
}

func integerText(dst []byte, v parquet.Value) []byte { return strconv.AppendInt(dst, integer(v), 10) }

// bytesText is what has no better form: its bytes in hexadecimal.
func bytesText(dst []byte, v parquet.Value) []byte {
	var b []byte
	if v.Kind() == parquet.Int96 {
		w := v.Int96()
		for _, part := range w {
			b = binary.LittleEndian.AppendUint32(b, part)
		}
	} else {
		b = v.ByteArray()
	}
	return append(pgvalue.AppendBytes(append(dst, '"', '\\'), b), '"')
}
