// Package pgvalue reads PostgreSQL's two forms of a value, text and binary, into
// Go values, and prints the text form of a binary one.
//
// The text form is what a type's output function prints under the settings every
// session of ours pins: DateStyle ISO, TimeZone UTC, IntervalStyle postgres,
// bytea_output hex, extra_float_digits 1 (shortest exact). The binary form is
// what its send function writes (PostgreSQL source, src/backend/utils/adt).
//
// Functions read change.Values whose State is AsText or Binary; Null and Absent
// are the caller's to handle and are errors here. Nothing panics on hostile
// bytes, nothing allocates on success, and no error holds a value.
package pgvalue

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"unsafe"

	"tailrace/internal/change"
)

// ErrMalformed is wrapped by every error about bytes that are no value of the
// type they claim.
var ErrMalformed = errors.New("malformed value")

// kindError names the type in the message; the values exist once, so that
// returning one costs nothing.
type kindError string

func (e kindError) Error() string { return "malformed value of type " + string(e) }
func (e kindError) Unwrap() error { return ErrMalformed }

var (
	errBool        error = kindError("boolean")
	errInt         error = kindError("integer")
	errFloat       error = kindError("float")
	errNumeric     error = kindError("numeric")
	errBytes       error = kindError("bytea")
	errDate        error = kindError("date")
	errTime        error = kindError("time")
	errTimeTZ      error = kindError("time with time zone")
	errTimestamp   error = kindError("timestamp")
	errTimestampTZ error = kindError("timestamp with time zone")
	errInterval    error = kindError("interval")
	errUUID        error = kindError("uuid")
	errJSONB       error = kindError("jsonb")
	errArray       error = kindError("array")
)

// ErrNoBinary is returned for the binary form of a type whose binary form this
// package does not know (HasBinary is false).
var ErrNoBinary = errors.New("the binary form of this type is not known")

// HasBinary reports whether this package reads the binary form of t.
func HasBinary(t change.Type) bool {
	switch t.Kind {
	case change.Other, change.Range, change.Composite:
		return false
	case change.Text:
		return t.Name != `"char"` // one byte, zero for the empty string; its text differs between versions
	case change.Array:
		return t.Elem != nil && t.Elem.Kind != change.Array && HasBinary(*t.Elem)
	}
	return true
}

// str views bytes as a string without copying; the result lives as long as b is
// not written, which a change.Row never is.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Bool reads a boolean.
func Bool(v change.Value) (bool, error) {
	if len(v.Data) != 1 {
		return false, errBool
	}
	switch v.State {
	case change.AsText:
		switch v.Data[0] {
		case 't':
			return true, nil
		case 'f':
			return false, nil
		}
	case change.Binary:
		switch v.Data[0] {
		case 1:
			return true, nil
		case 0:
			return false, nil
		}
	}
	return false, errBool
}

// Int64 reads an integer of the given kind: Int16, Int32 or Int64. A value
// beyond the kind's range is an error.
func Int64(v change.Value, k change.Kind) (int64, error) {
	size := 8
	switch k {
	case change.Int16:
		size = 2
	case change.Int32:
		size = 4
	}
	switch v.State {
	case change.Binary:
		if len(v.Data) != size {
			return 0, errInt
		}
		switch size {
		case 2:
			return int64(int16(binary.BigEndian.Uint16(v.Data))), nil
		case 4:
			return int64(int32(binary.BigEndian.Uint32(v.Data))), nil
		}
		return int64(binary.BigEndian.Uint64(v.Data)), nil
	case change.AsText:
		n, ok := parseInt(v.Data)
		if !ok {
			return 0, errInt
		}
		switch {
		case size == 2 && n != int64(int16(n)), size == 4 && n != int64(int32(n)):
			return 0, errInt
		}
		return n, nil
	}
	return 0, errInt
}

// parseInt reads a decimal int64 with an optional minus sign. It is several
// times faster than strconv on the short numbers that tables hold.
func parseInt(b []byte) (int64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	var n uint64
	for _, c := range b {
		d := c - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + uint64(d)
	}
	if neg {
		if n > 1<<63 {
			return 0, false
		}
		return -int64(n), true
	}
	if n > math.MaxInt64 {
		return 0, false
	}
	return int64(n), true
}

// Float32 reads a real, NaN and infinities included.
func Float32(v change.Value) (float32, error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) == 4 {
			return math.Float32frombits(binary.BigEndian.Uint32(v.Data)), nil
		}
	case change.AsText:
		f, err := parseFloat(v.Data, 32)
		return float32(f), err
	}
	return 0, errFloat
}

// Float64 reads a double precision, NaN and infinities included.
func Float64(v change.Value) (float64, error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) == 8 {
			return math.Float64frombits(binary.BigEndian.Uint64(v.Data)), nil
		}
	case change.AsText:
		return parseFloat(v.Data, 64)
	}
	return 0, errFloat
}

func parseFloat(b []byte, bits int) (float64, error) {
	switch string(b) {
	case "NaN":
		return math.NaN(), nil
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	// strconv also takes hexadecimal, underscores, "inf" and "nan"; the server
	// prints none of them.
	for _, c := range b {
		if (c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' {
			return 0, errFloat
		}
	}
	f, err := strconv.ParseFloat(str(b), bits)
	if err != nil {
		return 0, errFloat
	}
	return f, nil
}

// Bytes appends a bytea's bytes to dst. The text form is the hex format; the
// older escape format is read as well.
func Bytes(dst []byte, v change.Value) ([]byte, error) {
	switch v.State {
	case change.Binary:
		return append(dst, v.Data...), nil
	case change.AsText:
		if len(v.Data) >= 2 && v.Data[0] == '\\' && v.Data[1] == 'x' {
			out, err := hex.AppendDecode(dst, v.Data[2:])
			if err != nil {
				return dst, errBytes
			}
			return out, nil
		}
		return unescape(dst, v.Data)
	}
	return dst, errBytes
}

// unescape reads bytea's escape format: \\ is a backslash, \ooo an octal byte.
func unescape(dst, b []byte) ([]byte, error) {
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			dst = append(dst, b[i])
			continue
		}
		if i+1 < len(b) && b[i+1] == '\\' {
			dst = append(dst, '\\')
			i++
			continue
		}
		if i+3 >= len(b) {
			return dst, errBytes
		}
		n := 0
		for _, c := range b[i+1 : i+4] {
			if c < '0' || c > '7' {
				return dst, errBytes
			}
			n = n<<3 | int(c-'0')
		}
		if n > 255 {
			return dst, errBytes
		}
		dst = append(dst, byte(n))
		i += 3
	}
	return dst, nil
}

// UUID reads a uuid.
func UUID(v change.Value) (u [16]byte, err error) {
	switch v.State {
	case change.Binary:
		if len(v.Data) == 16 {
			return [16]byte(v.Data), nil
		}
	case change.AsText:
		if len(v.Data) != 36 {
			return u, errUUID
		}
		n := 0
		for i := 0; i < 36; {
			if i == 8 || i == 13 || i == 18 || i == 23 {
				if v.Data[i] != '-' {
					return u, errUUID
				}
				i++
				continue
			}
			hi, lo := unhex[v.Data[i]], unhex[v.Data[i+1]]
			if hi|lo > 15 {
				return u, errUUID
			}
			u[n] = hi<<4 | lo
			n, i = n+1, i+2
		}
		return u, nil
	}
	return u, errUUID
}

// unhex maps a hexadecimal digit to its value and everything else to 255.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	for i, c := range []byte("ABCDEF") {
		t[c] = byte(i + 10)
	}
	return t
}()

// Chars returns the characters of a value whose two forms are the same bytes
// (the text family, json, enum labels) and of jsonb, whose binary form carries
// one version byte in front. The result shares v's memory. Whether it is valid
// UTF-8 is the caller's to check where it matters: a SQL_ASCII database sends
// any bytes.
func Chars(v change.Value, k change.Kind) ([]byte, error) {
	if k == change.JSONB && v.State == change.Binary {
		if len(v.Data) < 1 || v.Data[0] != 1 {
			return nil, errJSONB
		}
		return v.Data[1:], nil
	}
	return v.Data, nil
}
