package expr

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// conversion turns a value that is not NULL into another type. Texts it makes
// lie in f.buf; its errors are the reasons above.
type conversion func(f *frame, v value) (value, error)

var boolText = [2][]byte{[]byte("false"), []byte("true")}

func same(_ *frame, v value) (value, error) { return v, nil }

// castTo returns the conversion of an explicit cast, or nil if there is none.
// Numbers are cut, not rounded, on their way to an integer, and a number of
// seconds since 1970 is a timestamp, as in Spark.
func castTo(from, to change.Type) conversion {
	switch to.Kind {
	case change.Text:
		return toText(from, to)
	case change.Bool:
		return toBool(from)
	case change.Int16, change.Int32, change.Int64:
		return toInt(from, to.Kind)
	case change.Float32:
		return toFloat(from, 32)
	case change.Float64:
		return toFloat(from, 64)
	case change.Numeric:
		return toNumeric(from, to)
	case change.Date, change.Timestamp, change.TimestampTZ:
		return toMoment(from, to.Kind)
	case change.Bytes:
		switch from.Kind {
		case change.Bytes, change.Text, change.Enum, change.JSON, change.JSONB:
			return same
		}
	case change.UUID:
		switch from.Kind {
		case change.UUID:
			return same
		case change.Text:
			return func(f *frame, v value) (_ value, err error) {
				v.b, err = parseUUID(f, v.b)
				return v, err
			}
		}
	case change.Time: // only for comparisons with a column
		if from.Kind == change.Text {
			return func(_ *frame, v value) (_ value, err error) {
				v.i, err = parseClockText(v.b)
				return v, err
			}
		}
	case change.Interval: // only for comparisons with a column
		if from.Kind == change.Text {
			return func(_ *frame, v value) (value, error) { return parseInterval(string(v.b)) }
		}
	}
	if from.Kind == to.Kind && from.Name == to.Name {
		return same
	}
	return nil
}

func toText(from, to change.Type) conversion {
	convert := plainText(from)
	if to.Length == 0 {
		return convert
	}
	return func(f *frame, v value) (value, error) {
		v, err := convert(f, v)
		if err != nil {
			return v, err
		}
		v.b = v.b[:charsEnd(v.b, to.Length)]
		if padded(to) {
			v.b = trimBlanks(v.b)
		}
		return v, nil
	}
}

// plainText is a cast to text, which every type has.
func plainText(from change.Type) conversion {
	switch from.Kind {
	case change.Bool:
		return func(_ *frame, v value) (value, error) {
			return value{b: boolText[v.i]}, nil
		}
	case change.Int16, change.Int32, change.Int64, change.Float32, change.Float64, change.Numeric,
		change.Date, change.Timestamp, change.TimestampTZ, change.Time, change.Interval:
		return func(f *frame, v value) (value, error) {
			start := len(f.buf)
			f.buf = appendValue(f.buf, from, &v)
			return value{b: f.since(start)}, nil
		}
	case change.Bytes:
		return func(_ *frame, v value) (value, error) {
			if !utf8.Valid(v.b) {
				return value{}, errNotUTF8
			}
			if bytes.IndexByte(v.b, 0) >= 0 {
				return value{}, errNUL
			}
			return v, nil
		}
	}
	return same
}

func toBool(from change.Type) conversion {
	switch from.Kind {
	case change.Bool:
		return same
	case change.Int16, change.Int32, change.Int64, change.Numeric:
		return func(_ *frame, v value) (value, error) {
			return value{i: int64(truth(v.sp != pgvalue.Finite || v.sign() != 0))}, nil
		}
	case change.Float32, change.Float64:
		return func(_ *frame, v value) (value, error) { return value{i: int64(truth(v.f != 0))}, nil }
	case change.Text:
		return func(_ *frame, v value) (value, error) {
			b := trimSpace(v.b)
			for _, w := range [...]string{"true", "t", "yes", "y", "on", "1"} {
				if equalFold(b, w) {
					return value{i: 1}, nil
				}
			}
			for _, w := range [...]string{"false", "f", "no", "n", "off", "0"} {
				if equalFold(b, w) {
					return value{}, nil
				}
			}
			return value{}, errNotBool
		}
	}
	return nil
}

// fits checks the range of an integer kind.
func fits(n int64, k change.Kind) (value, error) {
	if k == change.Int16 && n != int64(int16(n)) || k == change.Int32 && n != int64(int32(n)) {
		return value{}, errIntRange
	}
	return value{i: n}, nil
}

func toInt(from change.Type, k change.Kind) conversion {
	switch from.Kind {
	case change.Bool, change.Int16, change.Int32, change.Int64:
		return func(_ *frame, v value) (value, error) { return fits(v.i, k) }
	case change.Numeric:
		return func(_ *frame, v value) (value, error) {
			n, err := intOfDecimal(&v)
			if err != nil {
				return value{}, err
			}
			return fits(n, k)
		}
	case change.Float32, change.Float64:
		return func(_ *frame, v value) (value, error) {
			if !(v.f >= -1<<63 && v.f < 1<<63) { // NaN too
				return value{}, errIntRange
			}
			return fits(int64(v.f), k)
		}
	case change.Text:
		return func(_ *frame, v value) (value, error) {
			n, err := parseInt(v.b)
			if err != nil {
				return value{}, err
			}
			return fits(n, k)
		}
	case change.TimestampTZ:
		return func(_ *frame, v value) (value, error) {
			n, err := unixSeconds(v.i)
			if err != nil {
				return value{}, err
			}
			return fits(n, k)
		}
	}
	return nil
}

// unixSeconds gives whole seconds since 1970, those before it rounded down.
func unixSeconds(micros int64) (int64, error) {
	if micros == forever || micros == never {
		return 0, errInfinite
	}
	return floorDiv(micros, microsPerSecond) + unixDays*86_400, nil
}

func round32(f float64, bits int) (float64, error) {
	if bits == 32 {
		g := float64(float32(f))
		if math.IsInf(g, 0) && !math.IsInf(f, 0) {
			return 0, errFloatRange
		}
		return g, nil
	}
	return f, nil
}

func toFloat(from change.Type, bits int) conversion {
	switch from.Kind {
	case change.Float32, change.Float64:
		return func(_ *frame, v value) (_ value, err error) {
			v.f, err = round32(v.f, bits)
			return v, err
		}
	case change.Bool, change.Int16, change.Int32, change.Int64:
		return func(_ *frame, v value) (value, error) {
			if bits == 32 {
				return value{f: float64(float32(v.i))}, nil
			}
			return value{f: float64(v.i)}, nil
		}
	case change.Numeric:
		return func(_ *frame, v value) (value, error) {
			f, err := floatOfDecimal(&v, bits)
			return value{f: f}, err
		}
	case change.TimestampTZ:
		return func(_ *frame, v value) (value, error) {
			if v.i == forever || v.i == never {
				return value{}, errInfinite
			}
			f, err := round32(float64(v.i)/microsPerSecond+unixDays*86_400, bits)
			return value{f: f}, err
		}
	case change.Text:
		return func(_ *frame, v value) (value, error) {
			b := trimSpace(v.b)
			if d, err := specialDecimal(b); err == nil {
				f, err := floatOfDecimal(&d, bits)
				return value{f: f}, err
			}
			if !numberLike(b) {
				return value{}, errNotNumeric
			}
			f, err := strconv.ParseFloat(view(b), bits)
			if err != nil {
				if ne, ok := err.(*strconv.NumError); ok && ne.Err == strconv.ErrRange {
					return value{}, errFloatRange
				}
				return value{}, errNotNumeric
			}
			return value{f: f}, nil
		}
	}
	return nil
}

// numberLike excludes what strconv takes beside decimal numbers: hexadecimal,
// underscores, names.
func numberLike(b []byte) bool {
	for _, c := range b {
		if !isDigit(c) && c != '.' && c != '-' && c != '+' && c|0x20 != 'e' {
			return false
		}
	}
	return len(b) > 0
}

// view reads bytes as a string without copying, for the time of one call.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func toNumeric(from, to change.Type) conversion {
	var convert conversion
	switch from.Kind {
	case change.Numeric, change.Bool, change.Int16, change.Int32, change.Int64:
		convert = same
	case change.Float32, change.Float64:
		bits := 64
		if from.Kind == change.Float32 {
			bits = 32
		}
		convert = func(_ *frame, v value) (value, error) { return decimalOfFloat(v.f, bits) }
	case change.TimestampTZ:
		convert = func(_ *frame, v value) (value, error) {
			if v.i == forever || v.i == never {
				return value{}, errInfinite
			}
			epoch := value{i: unixMicros, scale: 6}
			return addDecimals(&value{i: v.i, scale: 6}, &epoch)
		}
	case change.Text:
		convert = func(_ *frame, v value) (value, error) { return parseDecimal(trimSpace(v.b)) }
	default:
		return nil
	}
	if to.Precision == 0 {
		return convert
	}
	return func(f *frame, v value) (value, error) {
		v, err := convert(f, v)
		if err != nil {
			return v, err
		}
		return fitDecimal(v, to.Precision, to.Scale)
	}
}

// toMoment casts to a date or a timestamp; both timestamps hold UTC.
func toMoment(from change.Type, k change.Kind) conversion {
	switch from.Kind {
	case change.Text:
		return func(_ *frame, v value) (_ value, err error) {
			v.i, err = parseMoment(v.b, k)
			return v, err
		}
	case change.Date:
		if k == change.Date {
			return same
		}
		return func(_ *frame, v value) (_ value, err error) {
			v.i, err = microsOfDay(v.i)
			return v, err
		}
	case change.Timestamp, change.TimestampTZ:
		if k != change.Date {
			return same
		}
		return func(_ *frame, v value) (value, error) {
			v.i = dayOfMicros(v.i)
			return v, nil
		}
	}
	if k != change.TimestampTZ {
		return nil
	}
	switch from.Kind {
	case change.Int16, change.Int32, change.Int64, change.Numeric:
		return func(_ *frame, v value) (value, error) { return fromUnix(&v, 6) }
	case change.Float32, change.Float64:
		return func(_ *frame, v value) (value, error) {
			d, err := decimalOfFloat(v.f, 64)
			if err != nil {
				return d, err
			}
			return fromUnix(&d, 6)
		}
	}
	return nil
}

// fromUnix turns a count since 1970, in units of 10^(6-shift) microseconds, into
// a timestamp; what is finer than a microsecond is cut off.
func fromUnix(v *value, shift int32) (value, error) {
	if v.sp != pgvalue.Finite {
		return value{}, errTimeRange
	}
	n := *v
	n.scale -= shift // the coefficient is now counted in microseconds
	var micros int64
	if n.scale >= 0 {
		whole, err := intOfDecimal(&n)
		if err != nil {
			return value{}, errTimeRange
		}
		micros = whole
	} else {
		unit := value{i: int64(pow10[-n.scale])}
		n.scale = 0
		product, err := mulDecimals(&n, &unit)
		if err != nil || product.big != nil {
			return value{}, errTimeRange
		}
		micros = product.i
	}
	if micros < math.MinInt64+unixMicros {
		return value{}, errTimeRange
	}
	m, err := checkMicros(micros - unixMicros)
	return value{i: m}, err
}
