package mysql

import (
	"bytes"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
)

// A value crosses as its payload: the text that the server itself prints of what its
// column holds. So what is read back and what is about to be written are equal in bytes
// exactly if they are the same value, and a value that was read is written again as it
// is. Every payload is made from a value that was read and found right: numbers go into
// statements without quotes.

// stored is the state of a value that is a payload already: it was read from the
// destination.
const stored change.State = 's'

var (
	errNotFinite = errors.New("a value that is NaN or infinite has no place in this column type")
	errYears     = errors.New("a value before the year 1 or after the year 9999 has no place in this column type")
	errDigits    = errors.New("a number has more digits than this column type holds")
	errTooLong   = errors.New("a value is longer than its column")
	errNotUTF8   = errors.New("a text is not valid UTF-8")
)

// payload makes v's payload for the column: of texts v's own bytes, else in the memory
// behind buf, which is returned too.
func (c *column) payload(buf []byte, v change.Value) (data, rest []byte, err error) {
	if v.State == stored {
		return v.Data, buf, nil
	}
	if c.typ.store == asChars {
		return c.chars(buf, v)
	}
	from := len(buf)
	switch c.typ.store {
	case asBool:
		var b bool
		if b, err = pgvalue.Bool(v); b {
			buf = append(buf, '1')
		} else {
			buf = append(buf, '0')
		}
	case asSmallint, asInt, asBigint:
		var n int64
		n, err = pgvalue.Int64(v, c.source.Kind)
		buf = strconv.AppendInt(buf, n, 10)
	case asFloat, asDouble:
		var f float64
		if c.source.Kind == change.Float32 {
			var narrow float32
			narrow, err = pgvalue.Float32(v)
			f = float64(narrow)
		} else {
			f, err = pgvalue.Float64(v)
		}
		if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
			err = errNotFinite
		}
		buf = appendDouble(buf, f)
	case asDecimal:
		buf, err = c.decimal(buf, v)
	case asOctets:
		if v.State == change.Binary {
			data = v.Data
		} else {
			buf, err = pgvalue.Bytes(buf, v)
			data = buf[from:len(buf):len(buf)]
		}
		if room := c.typ.length + c.typ.room(); err == nil && room > 0 && len(data) > room {
			err = errTooLong
		}
		if err != nil {
			err = c.refuse(err)
		}
		return data, buf, err
	case asDate:
		var days int32
		var s pgvalue.Special
		if days, s, err = pgvalue.Date(v); err == nil && s != pgvalue.Finite {
			err = errNotFinite
		}
		buf = pgvalue.AppendDate(buf, days, pgvalue.Finite)
		if err == nil && (len(buf)-from != len("2006-01-02") || string(buf[from:from+4]) == "0000") {
			err = errYears
		}
	case asTime:
		var n int64
		n, err = pgvalue.Time(v)
		buf = appendClock(buf, n)
	case asDatetime:
		var n int64
		var s pgvalue.Special
		n, s, err = pgvalue.Timestamp(v, c.source.Kind)
		switch {
		case err != nil:
		case s == pgvalue.NegInfinity && c.bound:
			buf = appendInstant(buf, firstInstant)
		case s != pgvalue.Finite:
			err = errNotFinite
		case n < firstInstant-pgvalue.UnixEpochMicros || n > lastInstant-pgvalue.UnixEpochMicros:
			err = errYears
		default:
			days := n / microsPerDay
			if n%microsPerDay < 0 {
				days--
			}
			buf = append(pgvalue.AppendDate(buf, int32(days), pgvalue.Finite), ' ')
			buf = appendClock(buf, n-days*microsPerDay)
		}
	default:
		err = errors.New("no column type")
	}
	if err != nil {
		return nil, buf, c.refuse(err)
	}
	return buf[from:len(buf):len(buf)], buf, nil
}

const microsPerDay = 86_400_000_000

// appendClock prints microseconds since midnight with all their digits.
func appendClock(dst []byte, n int64) []byte {
	two := func(sep byte, n int64) {
		if sep != 0 {
			dst = append(dst, sep)
		}
		dst = append(dst, byte('0'+n/10), byte('0'+n%10))
	}
	two(0, n/3_600_000_000)
	two(':', n/60_000_000%60)
	two(':', n/1_000_000%60)
	n %= 1_000_000
	dst = append(dst, '.')
	for unit := int64(100_000); unit > 0; unit /= 10 {
		dst = append(dst, byte('0'+n/unit%10))
	}
	return dst
}

// appendDouble prints a float so that the server reads the same one; the exponent makes
// it a constant of that type.
func appendDouble(dst []byte, f float64) []byte {
	return strconv.AppendFloat(dst, unsigned(f), 'e', -1, 64)
}

// unsigned makes 0 of -0: some versions of these servers hold no other zero.
func unsigned(f float64) float64 {
	if f == 0 {
		return 0
	}
	return f
}

// chars makes the payload of a text column: the characters themselves of texts, else
// the text form.
func (c *column) chars(buf []byte, v change.Value) (data, rest []byte, err error) {
	from := len(buf)
	switch c.source.Kind {
	case change.Text, change.JSON, change.JSONB, change.Enum:
		data, err = pgvalue.Chars(v, c.source.Kind)
	default:
		buf, err = sourceText(buf, v, c.source)
		data = buf[from:len(buf):len(buf)]
	}
	switch {
	case err != nil:
	case !utf8.Valid(data):
		err = errNotUTF8
	case c.typ.length > 0 && len(data) > c.typ.length && utf8.RuneCount(data) > c.typ.length, c.typ.room() > 0 && len(data) > c.typ.room():
		err = errTooLong // the server would cut blanks at its end off in silence
	}
	if err != nil {
		return nil, buf, c.refuse(err)
	}
	return data, buf, nil
}

// decimal prints a numeric with exactly the column's scale.
func (c *column) decimal(buf []byte, v change.Value) ([]byte, error) {
	from := len(buf)
	buf, err := pgvalue.Text(buf, v, c.source)
	if err != nil {
		return buf, err
	}
	switch string(buf[from:]) {
	case "NaN", "Infinity", "-Infinity":
		return buf, errNotFinite
	}
	whole, fraction, _ := bytes.Cut(bytes.TrimPrefix(buf[from:], []byte("-")), []byte("."))
	if !digits(whole) || !digits(fraction) || len(whole) == 0 {
		return buf, pgvalue.ErrMalformed
	}
	end := len(buf) - len(fraction) // behind the point, if there is one
	if len(fraction) > c.typ.scale {
		if len(bytes.Trim(fraction[c.typ.scale:], "0")) > 0 {
			return buf, errDigits
		}
		fraction = fraction[:c.typ.scale]
	}
	if len(bytes.TrimLeft(whole, "0")) > c.typ.width-c.typ.scale {
		return buf, errDigits
	}
	if buf = bytes.TrimSuffix(buf[:end], []byte(".")); c.typ.scale == 0 {
		return buf, nil
	}
	buf = append(append(buf, '.'), fraction...) // onto itself
	for range c.typ.scale - len(fraction) {
		buf = append(buf, '0')
	}
	return buf, nil
}

func digits(b []byte) bool {
	for _, d := range b {
		if d < '0' || d > '9' {
			return false
		}
	}
	return true
}

// refuse names the column and says how any value can be held: as text.
func (c *column) refuse(err error) error {
	op := fmt.Sprintf("write column %s of table %s (source type %s, column type %s)", c.plain, c.table, c.source.Name, c.typ)
	switch {
	case errors.Is(err, errNotFinite), errors.Is(err, errYears), errors.Is(err, errDigits), errors.Is(err, pgvalue.ErrOverflow):
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err,
			Remedy: fmt.Sprintf("hold this column as exact text: stop, run ALTER TABLE %s MODIFY %s LONGTEXT in the destination (or create the table so beforehand), and tailrace resync; or mend the value in the source", c.table, c.name)}
	case errors.Is(err, errTooLong):
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err,
			Remedy: "give the column a longer type in the destination; a key column cannot have more than its part of the 3,072 bytes of an index entry: mend the value in the source, or choose other keys"}
	case errors.Is(err, errNotUTF8):
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err, Remedy: "mend the bytes in the source, or hold the column as bytea there"}
	}
	return &fault.Error{Kind: fault.Corrupt, Op: op, Err: err}
}

// appendConstant writes a payload into a statement.
func (c *column) appendConstant(dst, payload []byte) []byte {
	switch c.typ.store {
	case asChars:
		return appendLiteral(dst, payload)
	case asOctets:
		return appendOctets(dst, payload)
	case asDate:
		dst = append(dst, "DATE"...)
	case asTime:
		dst = append(dst, "TIME"...)
	case asDatetime:
		dst = append(dst, "TIMESTAMP"...)
	default:
		return append(dst, payload...)
	}
	return appendLiteral(dst, payload)
}

// read is how a statement selects a column so that its value comes exactly. Floats are
// printed with six digits by themselves.
func (c *column) read(alias string) string {
	if c.typ.store == asFloat {
		return alias + c.name + " * 1e0"
	}
	return alias + c.name
}

// readBack makes a payload of a value that was read; nil is NULL.
func (c *column) readBack(dst []byte, v sqldriver.Value) []byte {
	switch v := v.(type) {
	case []byte:
		return append(dst, v...)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case uint64:
		return strconv.AppendUint(dst, v, 10)
	case float64:
		return appendDouble(dst, v)
	}
	return dst
}

// appendSource prints a value that was read as the source's text of it.
func (c *column) appendSource(dst []byte, v sqldriver.Value) []byte {
	switch v := v.(type) {
	case int64:
		if c.typ.store == asBool {
			return pgvalue.AppendBool(dst, v != 0)
		}
		return strconv.AppendInt(dst, v, 10)
	case float64:
		if c.source.Kind == change.Float32 {
			return pgvalue.AppendFloat(dst, unsigned(v), 32)
		}
		return pgvalue.AppendFloat(dst, unsigned(v), 64)
	case []byte:
		switch c.typ.store {
		case asOctets:
			return pgvalue.AppendBytes(dst, v)
		case asTime, asDatetime:
			dst = append(dst, trimFraction(v)...)
			if c.source.Kind == change.TimestampTZ {
				dst = append(dst, "+00"...)
			}
			return dst
		}
		return append(dst, v...)
	}
	return c.readBack(dst, v)
}

// trimFraction takes the zeros behind a clock's seconds away, as the source prints none.
func trimFraction(text []byte) []byte {
	if bytes.IndexByte(text, '.') < 0 {
		return text
	}
	for len(text) > 0 && text[len(text)-1] == '0' {
		text = text[:len(text)-1]
	}
	if len(text) > 0 && text[len(text)-1] == '.' {
		text = text[:len(text)-1]
	}
	return text
}

// sourceText prints v as the source does under pinned settings. A float's text is made
// from its value, because a source's session may print it with other digits; a bytea is
// printed in hexadecimal.
func sourceText(dst []byte, v change.Value, t change.Type) ([]byte, error) {
	switch t.Kind {
	case change.Float32:
		f, err := pgvalue.Float32(v)
		return pgvalue.AppendFloat(dst, unsigned(float64(f)), 32), err
	case change.Float64:
		f, err := pgvalue.Float64(v)
		return pgvalue.AppendFloat(dst, unsigned(f), 64), err
	case change.Bytes:
		if v.State == change.AsText {
			raw, err := pgvalue.Bytes(nil, v)
			return pgvalue.AppendBytes(dst, raw), err
		}
	}
	return pgvalue.Text(dst, v, t)
}
