package sequenced

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
)

// Spot is a place in the source for people: what AppendLog or AppendFile wrote.
type Spot struct {
	Path   string          // of a file; empty: a log's
	Shot   bool            // a snapshot's; the rest means nothing then
	Line   uint64          // or row of the file; ordinal in the log's transaction, row of the copy
	Log    change.Position // where the transaction's commit begins; of a copied row the copy's position
	Copied bool
	Flow   uint16 // in which flows were declared
}

var errSpot = errors.New("it is no place in a source")

// ReadAt takes a place in the source (Place.At) apart.
func ReadAt(at []byte) (s Spot, err error) {
	if len(at) == 0 {
		return s, errSpot
	}
	kind, at := at[0], at[1:]
	switch {
	case kind == fromSnapshot && len(at) == 0:
		s.Shot = true
	case kind == fromFile && len(at) > 10 && at[len(at)-11] == 0:
		n := len(at) - 11
		s = Spot{Path: string(at[:n]), Line: binary.BigEndian.Uint64(at[n+1:]), Flow: binary.BigEndian.Uint16(at[n+9:])}
	case kind == fromLog && len(at) == 27:
		s = Spot{
			Log:    change.Position{Epoch: binary.BigEndian.Uint32(at), File: binary.BigEndian.Uint32(at[4:]), Offset: binary.BigEndian.Uint64(at[8:])},
			Copied: at[16] == 0, Line: binary.BigEndian.Uint64(at[17:]), Flow: binary.BigEndian.Uint16(at[25:]),
		}
	default:
		return s, errSpot
	}
	return s, nil
}

func (s Spot) String() string {
	switch {
	case s.Shot:
		return "snapshot"
	case s.Path != "":
		return fmt.Sprintf("%s, line %d", s.Path, s.Line)
	case s.Copied:
		if at, line, ok := s.ByHand(); ok {
			return fmt.Sprintf("applied by hand at %s, %s, line %d", s.Log, at.Format(time.RFC3339Nano), line)
		}
		return fmt.Sprintf("first copy at %s, row %d", s.Log, s.Line)
	}
	return fmt.Sprintf("%s, change %d", s.Log, s.Line)
}

// At is a place in the source as a person reads it; what cannot be read is given in
// hexadecimal.
func At(at []byte) string {
	s, err := ReadAt(at)
	if err != nil {
		return hex.EncodeToString(at)
	}
	return s.String()
}

// SequenceText is a sequence (Place.Seq) as a person reads it: the values of its
// columns, of the given types, as texts that are equal to them; numbers without
// zeros that mean nothing. What cannot be read is given in hexadecimal.
func SequenceText(seq []byte, types []change.Type) string {
	if len(seq) == 0 {
		return "none"
	}
	var parts []string
	rest := seq
	for _, t := range types {
		var text string
		var err error
		if text, rest, err = readSequence(rest, t); err != nil {
			return hex.EncodeToString(seq)
		}
		parts = append(parts, text)
	}
	if len(rest) != 0 || len(parts) == 0 {
		return hex.EncodeToString(seq)
	}
	return strings.Join(parts, ", ")
}

var errSequence = errors.New("it is no sequence of this type")

// readSequence reads back what AppendSequence wrote for one column.
func readSequence(b []byte, t change.Type) (text string, rest []byte, err error) {
	take := func(n int) []byte {
		if len(b) < n {
			err = errSequence
			return make([]byte, n)
		}
		out := b[:n]
		b = b[n:]
		return out
	}
	integer := func() int64 { return int64(binary.BigEndian.Uint64(take(8)) ^ 1<<63) }
	special := func(n int64) pgvalue.Special {
		switch n {
		case math.MaxInt64:
			return pgvalue.Infinity
		case math.MinInt64:
			return pgvalue.NegInfinity
		}
		return pgvalue.Finite
	}
	switch t.Kind {
	case change.Bool:
		text = strconv.FormatBool(take(1)[0] != 0)
	case change.Int16, change.Int32, change.Int64:
		text = strconv.FormatInt(integer(), 10)
	case change.Float32, change.Float64:
		text = readFloat(binary.BigEndian.Uint64(take(8)))
	case change.Numeric:
		if text, b, err = readNumeric(b); err != nil {
			return "", nil, err
		}
	case change.Text, change.Bytes:
		var value []byte
		if value, b, err = readBytes(b); err != nil {
			return "", nil, err
		}
		text = string(value)
		if t.Kind == change.Bytes {
			text = `\x` + hex.EncodeToString(value)
		}
	case change.Date:
		n := integer()
		text = string(pgvalue.AppendDate(nil, int32(n), special(n)))
	case change.Time:
		text = string(pgvalue.AppendTime(nil, integer()))
	case change.TimeTZ:
		us, east := integer(), -integer()
		text = string(pgvalue.AppendTimeTZ(nil, us+east*1e6, int32(east)))
	case change.Timestamp, change.TimestampTZ:
		n := integer()
		text = string(pgvalue.AppendTimestamp(nil, n, special(n), t.Kind == change.TimestampTZ))
	case change.UUID:
		u := take(16)
		text = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	default:
		if t.Name != position {
			return "", nil, errSequence
		}
		p := change.Position{Epoch: binary.BigEndian.Uint32(take(4)), File: binary.BigEndian.Uint32(take(4))}
		p.Offset = binary.BigEndian.Uint64(take(8))
		text = p.String()
	}
	return text, b, err
}

func readFloat(bits uint64) string {
	if bits == math.MaxUint64 {
		return "NaN"
	}
	if bits>>63 != 0 {
		bits &^= 1 << 63
	} else {
		bits = ^bits
	}
	switch f := math.Float64frombits(bits); {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	default:
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
}

// readBytes reads back what appendBytes wrote.
func readBytes(b []byte) (value, rest []byte, err error) {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 >= len(b) {
			return nil, nil, errSequence
		}
		value = append(value, b[:i]...)
		end := b[i+1] == 0
		if b = b[i+2:]; end {
			return value, b, nil
		}
		value = append(value, 0)
	}
}

// readNumeric reads back what appendNumeric wrote. Numbers with many zeros are
// written with an exponent.
func readNumeric(b []byte) (text string, rest []byte, err error) {
	if len(b) == 0 {
		return "", nil, errSequence
	}
	class, b := b[0], b[1:]
	switch class {
	case numNegInf:
		return "-Infinity", b, nil
	case numZero:
		return "0", b, nil
	case numInf:
		return "Infinity", b, nil
	case numNaN:
		return "NaN", b, nil
	case numNegative, numPositive:
	default:
		return "", nil, errSequence
	}
	end := byte(0)
	if class == numNegative {
		end = 0xFF
	}
	if len(b) < 5 {
		return "", nil, errSequence
	}
	n := bytes.IndexByte(b[4:], end)
	if n < 0 {
		return "", nil, errSequence
	}
	number := bytes.Clone(b[:4+n])
	if class == numNegative {
		for i := range number {
			number[i] = ^number[i]
		}
		text = "-"
	}
	exponent, digits := int(int32(binary.BigEndian.Uint32(number)^1<<31)), string(number[4:])
	const zeros = 40 // as many as a person reads
	switch {
	case exponent > len(digits)+zeros || exponent < -zeros:
		text += fmt.Sprintf("0.%se%d", digits, exponent)
	case exponent <= 0:
		text += "0." + strings.Repeat("0", -exponent) + digits
	case exponent >= len(digits):
		text += digits + strings.Repeat("0", exponent-len(digits))
	default:
		text += digits[:exponent] + "." + digits[exponent:]
	}
	return text, b[4+n+1:], nil
}
