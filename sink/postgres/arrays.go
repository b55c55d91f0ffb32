package postgres

import (
	"encoding/binary"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// OIDs of the element types of our own arrays: the same on every server.
const (
	oidBool  = 16
	oidBytea = 17
	oidInt8  = 20
)

// appendArrayHead begins PostgreSQL's array_send form: dimensions, has-nulls,
// element type, then length and lower bound of the only dimension.
func appendArrayHead(dst []byte, n int, nulls bool, oid uint32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 1)
	if nulls {
		dst = binary.BigEndian.AppendUint32(dst, 1)
	} else {
		dst = binary.BigEndian.AppendUint32(dst, 0)
	}
	dst = binary.BigEndian.AppendUint32(dst, oid)
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	return binary.BigEndian.AppendUint32(dst, 1)
}

const arrayHead = 20 // bytes

func appendElement(dst, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	return append(dst, data...)
}

var null = []byte{0xff, 0xff, 0xff, 0xff}

// bytesArray makes a bytea[] in binary form; with nulls, nil is NULL.
func bytesArray(n int, nulls bool, at func(i int) []byte) []byte {
	size := arrayHead + 4*n
	for i := range n {
		size += len(at(i))
	}
	dst := appendArrayHead(make([]byte, 0, size), n, nulls, oidBytea)
	for i := range n {
		if b := at(i); b == nil && nulls {
			dst = append(dst, null...)
		} else {
			dst = appendElement(dst, b)
		}
	}
	return dst
}

func boolArray(n int, at func(i int) bool) []byte {
	dst := appendArrayHead(make([]byte, 0, arrayHead+5*n), n, false, oidBool)
	for i := range n {
		b := byte(0)
		if at(i) {
			b = 1
		}
		dst = append(dst, 0, 0, 0, 1, b)
	}
	return dst
}

func intArray(n int, at func(i int) int64) []byte {
	dst := appendArrayHead(make([]byte, 0, arrayHead+12*n), n, false, oidInt8)
	for i := range n {
		dst = append(dst, 0, 0, 0, 8)
		dst = binary.BigEndian.AppendUint64(dst, uint64(at(i)))
	}
	return dst
}

// appendValueArray makes an array of values of one column, as a parameter; a value
// may be NULL.
func appendValueArray(dst []byte, n int, at func(i int) change.Value, c *column, binaryForm bool) ([]byte, error) {
	if binaryForm {
		dst = appendArrayHead(dst, n, true, c.baseOID)
	} else {
		dst = append(dst, '{')
	}
	for i := range n {
		v := at(i)
		isNull := v.State != change.Binary && v.State != change.AsText
		switch {
		case !isNull && binaryForm != (v.State == change.Binary):
			return nil, formError(binaryForm)
		case isNull && binaryForm:
			dst = append(dst, null...)
		case binaryForm:
			dst = appendElement(dst, v.Data)
		default:
			if i > 0 {
				dst = append(dst, ',')
			}
			if isNull {
				dst = append(dst, "NULL"...)
			} else {
				dst = appendQuotedElement(dst, v.Data)
			}
		}
	}
	if !binaryForm {
		dst = append(dst, '}')
	}
	return dst, nil
}

// appendQuotedElement writes one element of an array in text form.
func appendQuotedElement(dst, data []byte) []byte {
	dst = append(dst, '"')
	for _, b := range data {
		if b == '"' || b == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, b)
	}
	return append(dst, '"')
}

// appendKeyArray makes one array of many keys' column number k, as a parameter.
func appendKeyArray(dst []byte, keys []change.Row, k int, c *column, binaryForm bool) ([]byte, error) {
	var failed error
	dst, err := appendValueArray(dst, len(keys), func(i int) (v change.Value) {
		rest := keys[i]
		for range k + 1 {
			var err error
			if v, rest, err = rest.Next(); err != nil {
				failed = fault.Corrupted("key column %s: %v", c.plain, err)
				return v
			}
		}
		if v.State != change.Binary && v.State != change.AsText {
			failed = fault.Corrupted("key column %s of a row has no value", c.plain)
		}
		return v
	}, c, binaryForm)
	if failed != nil {
		return nil, failed
	}
	return dst, err
}
