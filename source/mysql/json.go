package mysql

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// The kinds of a value in MySQL's binary JSON (json_binary.h of MySQL's source).
const (
	jsonSmallObject = 0x00
	jsonLargeObject = 0x01
	jsonSmallArray  = 0x02
	jsonLargeArray  = 0x03
	jsonLiteral     = 0x04
	jsonInt16       = 0x05
	jsonUint16      = 0x06
	jsonInt32       = 0x07
	jsonUint32      = 0x08
	jsonInt64       = 0x09
	jsonUint64      = 0x0a
	jsonDouble      = 0x0b
	jsonString      = 0x0c
	jsonOpaque      = 0x0f
)

// jsonDepth is the server's own limit of nesting.
const jsonDepth = 100

var errJSON = errors.New("binary JSON is malformed")

// appendJSON appends the text that the server prints for a document in its binary form,
// so that a document read from a table and from the log is the same text.
func appendJSON(dst, data []byte) ([]byte, error) {
	if len(data) == 0 { // what the server logs for a value that an ALTER TABLE made up
		return append(dst, "null"...), nil
	}
	return appendJSONValue(dst, data[0], data[1:], jsonDepth+1)
}

func appendJSONValue(dst []byte, kind byte, data []byte, depth int) ([]byte, error) {
	if depth == 0 {
		return dst, errJSON
	}
	need := 0
	switch kind {
	case jsonLiteral:
		need = 1
	case jsonInt16, jsonUint16:
		need = 2
	case jsonInt32, jsonUint32:
		need = 4
	case jsonInt64, jsonUint64, jsonDouble:
		need = 8
	}
	if len(data) < need {
		return dst, errJSON
	}
	switch kind {
	case jsonSmallObject, jsonLargeObject, jsonSmallArray, jsonLargeArray:
		return appendJSONContainer(dst, kind, data, depth)
	case jsonLiteral:
		switch data[0] {
		case 0:
			return append(dst, "null"...), nil
		case 1:
			return append(dst, "true"...), nil
		case 2:
			return append(dst, "false"...), nil
		}
		return dst, errJSON
	case jsonInt16:
		return strconv.AppendInt(dst, int64(int16(binary.LittleEndian.Uint16(data))), 10), nil
	case jsonUint16:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint16(data)), 10), nil
	case jsonInt32:
		return strconv.AppendInt(dst, int64(int32(binary.LittleEndian.Uint32(data))), 10), nil
	case jsonUint32:
		return strconv.AppendUint(dst, uint64(binary.LittleEndian.Uint32(data)), 10), nil
	case jsonInt64:
		return strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(data)), 10), nil
	case jsonUint64:
		return strconv.AppendUint(dst, binary.LittleEndian.Uint64(data), 10), nil
	case jsonDouble:
		return appendJSONDouble(dst, float64At(data)), nil
	case jsonString:
		text, _, err := jsonBytes(data)
		if err != nil {
			return dst, err
		}
		return appendJSONString(dst, text), nil
	case jsonOpaque:
		if len(data) < 1 {
			return dst, errJSON
		}
		b, _, err := jsonBytes(data[1:])
		if err != nil {
			return dst, err
		}
		return appendJSONOpaque(dst, data[0], b)
	}
	return dst, errJSON
}

// appendJSONContainer appends an object or an array: the number of elements and the size
// in bytes, then for an object the place and length of each key, then of each value its
// kind and its place (or, of the small ones, itself), then keys and values.
func appendJSONContainer(dst []byte, kind byte, data []byte, depth int) ([]byte, error) {
	width := 2
	if kind == jsonLargeObject || kind == jsonLargeArray {
		width = 4
	}
	object := kind == jsonSmallObject || kind == jsonLargeObject
	if len(data) < 2*width {
		return dst, errJSON
	}
	count, size := int(uintAt(data, width)), int(uintAt(data[width:], width))
	keyEntry, valueEntry := 0, 1+width
	if object {
		keyEntry = width + 2
	}
	if size > len(data) || 2*width+count*(keyEntry+valueEntry) > size {
		return dst, errJSON
	}
	data = data[:size]
	opening, closing := byte('['), byte(']')
	if object {
		opening, closing = '{', '}'
	}
	dst = append(dst, opening)
	for i := range count {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if object {
			e := data[2*width+i*keyEntry:]
			from, n := int(uintAt(e, width)), int(binary.LittleEndian.Uint16(e[width:]))
			if from > size || n > size-from {
				return dst, errJSON
			}
			dst = appendJSONString(dst, data[from:from+n])
			dst = append(dst, ": "...)
		}
		e := data[2*width+count*keyEntry+i*valueEntry:]
		value := e[1:]
		if !jsonInline(e[0], width) {
			from := int(uintAt(value, width))
			if from > size {
				return dst, errJSON
			}
			value = data[from:]
		}
		var err error
		if dst, err = appendJSONValue(dst, e[0], value, depth-1); err != nil {
			return dst, err
		}
	}
	return append(dst, closing), nil
}

// jsonInline reports whether a value of that kind lies in its container's entry.
func jsonInline(kind byte, width int) bool {
	switch kind {
	case jsonLiteral, jsonInt16, jsonUint16:
		return true
	case jsonInt32, jsonUint32:
		return width == 4
	}
	return false
}

// jsonBytes reads a length of up to five bytes, seven bits in each, and that many bytes.
func jsonBytes(data []byte) (b, rest []byte, err error) {
	var n uint64
	for i := range min(5, len(data)) {
		n |= uint64(data[i]&0x7f) << (7 * i)
		if data[i]&0x80 == 0 {
			data = data[i+1:]
			if n > uint64(len(data)) {
				return nil, nil, errJSON
			}
			return data[:n], data[n:], nil
		}
	}
	return nil, nil, errJSON
}

// appendJSONDouble prints a double as the server does (my_gcvt): the fewest digits,
// without exponent while the point stands within 15 places; always recognisably a double.
func appendJSONDouble(dst []byte, f float64) []byte {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return append(dst, "null"...) // the server stores none
	}
	var b [32]byte
	e := strconv.AppendFloat(b[:0], f, 'e', -1, 64) // d.ddde±XX
	at := len(e) - 1
	for e[at] != 'e' {
		at--
	}
	exponent, _ := strconv.Atoi(string(e[at+1:]))
	if exponent+1 >= -14 && exponent+1 <= 15 || f == 0 {
		start := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		for _, c := range dst[start:] {
			if c == '.' {
				return dst
			}
		}
		return append(dst, ".0"...)
	}
	dst = append(dst, e[:at+1]...)
	return strconv.AppendInt(dst, int64(exponent), 10)
}

const hexDigits = "0123456789abcdef"

func appendJSONString(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			if c < 0x20 {
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			} else {
				dst = append(dst, c)
			}
		}
	}
	return append(dst, '"')
}

// appendJSONOpaque appends a value of one of the server's other types, which a document
// can hold too.
func appendJSONOpaque(dst []byte, typ byte, b []byte) ([]byte, error) {
	switch typ {
	case typeNewDecimal:
		if len(b) < 2 {
			return dst, errJSON
		}
		dst, _, err := appendDecimal(dst, b[2:], int(b[0]), int(b[1]))
		return dst, err
	case typeDate, typeDatetime, typeTimestamp, typeTime:
		if len(b) != 8 {
			return dst, errJSON
		}
		packed := int64(binary.LittleEndian.Uint64(b))
		dst = append(dst, '"')
		if typ == typeTime {
			if packed < 0 {
				dst, packed = append(dst, '-'), -packed
			}
			hms := int(packed >> 24)
			dst = appendPadded(dst, hms>>12&1023, 2)
			dst = append(dst, ':')
			dst = appendPadded(dst, hms>>6&63, 2)
			dst = append(dst, ':')
			dst = appendPadded(dst, hms&63, 2)
			dst = append(dst, '.')
			dst = appendFixed(dst, uint32(packed&(1<<24-1)), 6)
			return append(dst, '"'), nil
		}
		m := unpack(uint64(packed>>24), 0)
		dst = m.appendLiteral(dst, typ != typeDate)
		if typ != typeDate {
			dst = append(dst, '.')
			dst = appendFixed(dst, uint32(packed&(1<<24-1)), 6)
		}
		return append(dst, '"'), nil
	}
	dst = append(dst, `"base64:type`...)
	dst = strconv.AppendUint(dst, uint64(typ), 10)
	dst = append(dst, ':')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"'), nil
}
