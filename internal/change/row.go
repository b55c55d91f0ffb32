package change

import (
	"encoding/binary"
	"errors"
)

// State says what a row holds for a column. The letters are pgoutput's own
// (PostgreSQL documentation, "Logical Replication Message Formats", TupleData).
type State byte

const (
	Null   State = 'n'
	Absent State = 'u' // not sent: unchanged TOAST, minimal row image. Never a value
	AsText State = 't' // a value in the type's text form
	Binary State = 'b' // a value in the type's binary form
)

// Row is the values of one row, one entry a column, in the layout's column
// order: a State byte and, for AsText and Binary, a 4-byte big-endian length and
// that many bytes. It is the body of a pgoutput TupleData without its column
// count, so a row is relayed from the log without being decoded; every other
// source encodes into it. Text and binary are PostgreSQL's forms for the
// column's Kind, whatever the source is.
//
// A nil Row means "no such image" (an insert's old row); it differs from an
// empty layout, which cannot occur.
//
// Rows share memory with the buffer they were read into and are never written.
type Row []byte

// Value is one column of a Row.
type Value struct {
	State State
	Data  []byte // shares the row's memory; empty unless AsText or Binary
}

// ErrTruncatedRow is returned for bytes that are not a Row of the expected width.
var ErrTruncatedRow = errors.New("row image is truncated or malformed")

// Next splits the first column off r. It never panics on hostile bytes.
func (r Row) Next() (v Value, rest Row, err error) {
	if len(r) == 0 {
		return Value{}, nil, ErrTruncatedRow
	}
	switch s := State(r[0]); s {
	case Null, Absent:
		return Value{State: s}, r[1:], nil
	case AsText, Binary:
		if len(r) < 5 {
			return Value{}, nil, ErrTruncatedRow
		}
		n := binary.BigEndian.Uint32(r[1:])
		if uint64(n) > uint64(len(r)-5) {
			return Value{}, nil, ErrTruncatedRow
		}
		return Value{State: s, Data: r[5 : 5+n : 5+n]}, r[5+n:], nil
	}
	return Value{}, nil, ErrTruncatedRow
}

// Values appends exactly n columns to dst[:0] and returns it; the slice can be
// reused from row to row. Bytes left over are an error.
func (r Row) Values(dst []Value, n int) ([]Value, error) {
	dst = dst[:0]
	for range n {
		v, rest, err := r.Next()
		if err != nil {
			return dst, err
		}
		dst, r = append(dst, v), rest
	}
	if len(r) != 0 {
		return dst, ErrTruncatedRow
	}
	return dst, nil
}

// Append writes one column onto r.
func (r Row) Append(v Value) Row {
	r = append(r, byte(v.State))
	if v.State == AsText || v.State == Binary {
		r = binary.BigEndian.AppendUint32(r, uint32(len(v.Data)))
		r = append(r, v.Data...)
	}
	return r
}

// HasAbsent reports whether any of the n columns is Absent.
func (r Row) HasAbsent(n int) bool {
	for range n {
		v, rest, err := r.Next()
		if err != nil {
			return false
		}
		if v.State == Absent {
			return true
		}
		r = rest
	}
	return false
}

// Equal reports whether two values are the same bytes in the same state.
func (v Value) Equal(w Value) bool {
	return v.State == w.State && string(v.Data) == string(w.Data)
}
