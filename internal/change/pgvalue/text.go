package pgvalue

import (
	"encoding/hex"
	"strconv"

	"tailrace/internal/change"
)

// Text appends the text form of v, a value of type t, to dst: of a value that is
// text already its bytes, of a binary one what the server's output function
// prints under the pinned settings. ErrNoBinary where HasBinary is false.
func Text(dst []byte, v change.Value, t change.Type) ([]byte, error) {
	switch v.State {
	case change.AsText:
		return append(dst, v.Data...), nil
	case change.Binary:
		return textOfBinary(dst, v, t)
	}
	return dst, ErrMalformed
}

func textOfBinary(dst []byte, v change.Value, t change.Type) ([]byte, error) {
	switch t.Kind {
	case change.Bool:
		b, err := Bool(v)
		if err != nil {
			return dst, err
		}
		return AppendBool(dst, b), nil
	case change.Int16, change.Int32, change.Int64:
		n, err := Int64(v, t.Kind)
		if err != nil {
			return dst, err
		}
		return strconv.AppendInt(dst, n, 10), nil
	case change.Float32:
		f, err := Float32(v)
		if err != nil {
			return dst, err
		}
		return AppendFloat(dst, float64(f), 32), nil
	case change.Float64:
		f, err := Float64(v)
		if err != nil {
			return dst, err
		}
		return AppendFloat(dst, f, 64), nil
	case change.Numeric:
		return appendNumeric(dst, v.Data)
	case change.Text, change.JSON, change.JSONB, change.Enum:
		c, err := Chars(v, t.Kind)
		return append(dst, c...), err
	case change.Bytes:
		return AppendBytes(dst, v.Data), nil
	case change.Date:
		d, s, err := Date(v)
		if err != nil {
			return dst, err
		}
		return AppendDate(dst, d, s), nil
	case change.Time:
		n, err := Time(v)
		if err != nil {
			return dst, err
		}
		return AppendTime(dst, n), nil
	case change.TimeTZ:
		n, east, err := TimeTZ(v)
		if err != nil {
			return dst, err
		}
		return AppendTimeTZ(dst, n, east), nil
	case change.Timestamp, change.TimestampTZ:
		n, s, err := Timestamp(v, t.Kind)
		if err != nil {
			return dst, err
		}
		return AppendTimestamp(dst, n, s, t.Kind == change.TimestampTZ), nil
	case change.Interval:
		i, s, err := ReadInterval(v)
		if err != nil {
			return dst, err
		}
		return AppendInterval(dst, i, s), nil
	case change.UUID:
		u, err := UUID(v)
		if err != nil {
			return dst, err
		}
		return AppendUUID(dst, u), nil
	case change.Array:
		if !HasBinary(t) {
			return dst, ErrNoBinary
		}
		return appendArray(dst, v.Data, *t.Elem)
	}
	return dst, ErrNoBinary
}

// AppendBool prints t or f.
func AppendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 't')
	}
	return append(dst, 'f')
}

// AppendBytes prints a bytea in the hex format.
func AppendBytes(dst, b []byte) []byte {
	return hex.AppendEncode(append(dst, '\\', 'x'), b)
}

// AppendUUID prints a uuid with its four dashes.
func AppendUUID(dst []byte, u [16]byte) []byte {
	const digits = "0123456789abcdef"
	for i, b := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	return dst
}
