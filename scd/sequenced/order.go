package sequenced

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// Place is where an event stands among all events of its target: by the user's
// sequence first, and where that is equal by its place in the source (rule R4), so
// two different events are never equal and a redelivered one always is. Both parts
// compare as bytes.
type Place struct {
	Seq []byte // AppendSequence of the user's columns
	At  []byte // AppendLog or AppendFile
}

// IsZero reports "no place", which lies before every event.
func (p Place) IsZero() bool { return len(p.Seq) == 0 && len(p.At) == 0 }

// Compare orders places: -1, 0 or +1.
func (p Place) Compare(q Place) int {
	if c := bytes.Compare(p.Seq, q.Seq); c != 0 {
		return c
	}
	return bytes.Compare(p.At, q.At)
}

// Before reports p < q.
func (p Place) Before(q Place) bool { return p.Compare(q) < 0 }

// The first byte of a place in the source: files come before logs, so that an old
// feed kept in files never beats the live log at an equal sequence.
const (
	fromFile byte = 1
	fromLog  byte = 2
)

const placeInLog = 28 // bytes that AppendLog appends; the flow is the last two

// AppendLog appends the place of an event in a log. at is the transaction's begin
// position (known in every piece of it, and ordered like the commits); ordinal is
// the event's place inside it. copied marks rows of a first copy: at is the copy's
// position then, and they come before everything that the log says there. flow is
// the declaration order of the flow.
func AppendLog(dst []byte, at change.Position, copied bool, ordinal uint64, flow uint16) []byte {
	dst = append(dst, fromLog)
	dst = binary.BigEndian.AppendUint32(dst, at.Epoch)
	dst = binary.BigEndian.AppendUint32(dst, at.File)
	dst = binary.BigEndian.AppendUint64(dst, at.Offset)
	if copied {
		dst = append(dst, 0)
	} else {
		dst = append(dst, 1)
	}
	dst = binary.BigEndian.AppendUint64(dst, ordinal)
	return binary.BigEndian.AppendUint16(dst, flow)
}

// AppendFile appends the place of an event in a file: path (which holds no NUL),
// then line or row.
func AppendFile(dst []byte, path string, line uint64, flow uint16) []byte {
	dst = append(dst, fromFile)
	dst = append(dst, path...)
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, line)
	return binary.BigEndian.AppendUint16(dst, flow)
}

// Sortable reports whether values of t can be a sequence (rule R3). Text sorts
// bytewise, which is rarely what a sequence means: the caller warns.
func Sortable(t change.Type) bool {
	switch t.Kind {
	case change.Bool, change.Int16, change.Int32, change.Int64, change.Float32, change.Float64, change.Numeric,
		change.Text, change.Bytes, change.Date, change.Time, change.TimeTZ, change.Timestamp, change.TimestampTZ, change.UUID:
		return true
	}
	return t.Name == position
}

// position is the type of _lsn.
const position = "pg_lsn"

// PositionType is the type of a sequence that is the position in the source's log.
var PositionType = change.Type{Kind: change.Other, Name: position}

// NumberType is that of a log in files: see change.Position.Number.
var NumberType = change.Type{Kind: change.Numeric, Name: "numeric(38,0)", ID: 1700, BuiltIn: true, Precision: 38}

// AppendSequence appends the form of v (not Null, not Absent) that compares as
// bytes like values of t compare: numbers by value, NaN above everything, text and
// bytes bytewise, times by instant. The forms of several columns may be appended
// one after the other: they compare column by column (STRUCT, rule R3).
func AppendSequence(dst []byte, v change.Value, t change.Type) ([]byte, error) {
	switch t.Kind {
	case change.Bool:
		b, err := pgvalue.Bool(v)
		if b {
			return append(dst, 1), err
		}
		return append(dst, 0), err
	case change.Int16, change.Int32, change.Int64:
		n, err := pgvalue.Int64(v, t.Kind)
		return appendInt(dst, n), err
	case change.Float32, change.Float64:
		var f float64
		var err error
		if t.Kind == change.Float32 {
			var g float32
			g, err = pgvalue.Float32(v)
			f = float64(g)
		} else {
			f, err = pgvalue.Float64(v)
		}
		return appendFloat(dst, f), err
	case change.Numeric:
		text, err := pgvalue.Text(nil, v, t)
		if err != nil {
			return dst, err
		}
		return appendNumeric(dst, text)
	case change.Text:
		chars, err := pgvalue.Chars(v, t.Kind)
		return appendBytes(dst, chars), err
	case change.Bytes:
		b, err := pgvalue.Bytes(nil, v)
		return appendBytes(dst, b), err
	case change.Date:
		days, special, err := pgvalue.Date(v)
		return appendInt(dst, orInfinity(int64(days), special)), err
	case change.Time:
		us, err := pgvalue.Time(v)
		return appendInt(dst, us), err
	case change.TimeTZ:
		us, east, err := pgvalue.TimeTZ(v)
		// By instant, then (as the server does) the more western first.
		return appendInt(appendInt(dst, us-int64(east)*1e6), -int64(east)), err
	case change.Timestamp, change.TimestampTZ:
		us, special, err := pgvalue.Timestamp(v, t.Kind)
		return appendInt(dst, orInfinity(us, special)), err
	case change.UUID:
		u, err := pgvalue.UUID(v)
		return append(dst, u[:]...), err
	}
	if t.Name == position {
		p, err := change.ParsePosition(string(v.Data))
		dst = binary.BigEndian.AppendUint32(dst, p.Epoch)
		dst = binary.BigEndian.AppendUint32(dst, p.File)
		return binary.BigEndian.AppendUint64(dst, p.Offset), err
	}
	return dst, fmt.Errorf("values of type %s have no order", t.Name)
}

func orInfinity(n int64, s pgvalue.Special) int64 {
	switch s {
	case pgvalue.Infinity:
		return math.MaxInt64
	case pgvalue.NegInfinity:
		return math.MinInt64
	}
	return n
}

func appendInt(dst []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(n)^(1<<63))
}

func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return binary.BigEndian.AppendUint64(dst, math.MaxUint64)
	case f == 0:
		f = 0 // minus zero is zero
	}
	bits := math.Float64bits(f)
	if bits>>63 != 0 {
		bits = ^bits
	} else {
		bits |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(dst, bits)
}

// appendBytes ends with a zero that is below every continuation; a zero inside is
// followed by 0xFF.
func appendBytes(dst, b []byte) []byte {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 {
			break
		}
		dst = append(append(dst, b[:i]...), 0, 0xFF)
		b = b[i+1:]
	}
	return append(append(dst, b...), 0, 0)
}

// Classes of numeric values, in order.
const (
	numNegInf byte = iota + 1
	numNegative
	numZero
	numPositive
	numInf
	numNaN
)

// appendNumeric encodes a decimal text as class, exponent and digits: d1.d2d3... x
// 10^exponent without trailing zeros, so 1, 1.0 and 1.00 are equal. The bytes of
// negative numbers are inverted.
func appendNumeric(dst, text []byte) ([]byte, error) {
	switch string(text) {
	case "NaN":
		return append(dst, numNaN), nil
	case "Infinity":
		return append(dst, numInf), nil
	case "-Infinity":
		return append(dst, numNegInf), nil
	}
	negative := len(text) > 0 && text[0] == '-'
	if negative || len(text) > 0 && text[0] == '+' {
		text = text[1:]
	}
	digits := make([]byte, 0, len(text))
	exponent, point, any := 0, false, false
	for i, c := range text {
		switch {
		case c >= '0' && c <= '9':
			any = true
			if len(digits) > 0 || c != '0' {
				digits = append(digits, c)
				if !point {
					exponent++
				}
			} else if point {
				exponent--
			}
		case c == '.' && !point:
			point = true
		case (c == 'e' || c == 'E') && any:
			var e int
			if _, err := fmt.Sscanf(string(text[i+1:]), "%d", &e); err != nil || e > 1<<20 || e < -(1<<20) {
				return dst, pgvalue.ErrMalformed
			}
			exponent += e
			goto done
		default:
			return dst, pgvalue.ErrMalformed
		}
	}
done:
	if !any {
		return dst, pgvalue.ErrMalformed
	}
	digits = bytes.TrimRight(digits, "0")
	if len(digits) == 0 {
		return append(dst, numZero), nil
	}
	if negative {
		dst = append(dst, numNegative)
	} else {
		dst = append(dst, numPositive)
	}
	from := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, uint32(int32(exponent))^(1<<31))
	dst = append(append(dst, digits...), 0)
	if negative {
		for i := from; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst, nil
}
