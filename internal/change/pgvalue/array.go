package pgvalue

import (
	"encoding/binary"
	"strconv"

	"tailrace/internal/change"
)

// maxDims is PostgreSQL's MAXDIM.
const maxDims = 6

// arrayHeader is the head of an array's binary form.
type arrayHeader struct {
	ndim   int
	length [maxDims]int
	lower  [maxDims]int32
	count  int    // elements in all
	body   []byte // each element: 4 bytes of length (-1 = NULL), then its bytes
}

func readArrayHeader(b []byte) (h arrayHeader, err error) {
	if len(b) < 12 {
		return h, errArray
	}
	n := binary.BigEndian.Uint32(b)
	if n > maxDims {
		return h, errArray
	}
	h.ndim = int(n)
	b = b[12:] // dimensions, flags, element type
	if len(b) < 8*h.ndim {
		return h, errArray
	}
	count := 1
	for i := range h.ndim {
		length := int32(binary.BigEndian.Uint32(b[8*i:]))
		h.lower[i] = int32(binary.BigEndian.Uint32(b[8*i+4:]))
		if length < 0 || int64(h.lower[i])+int64(length) > 1<<31 {
			return h, errArray
		}
		h.length[i] = int(length)
		count *= h.length[i]
		if count > len(b) { // every element takes four bytes at least
			return h, errArray
		}
	}
	h.body = b[8*h.ndim:]
	if h.ndim > 0 {
		h.count = count
	}
	return h, nil
}

// next splits one element off the body; null reports a NULL.
func (h *arrayHeader) next() (data []byte, null bool, err error) {
	if len(h.body) < 4 {
		return nil, false, errArray
	}
	n := int32(binary.BigEndian.Uint32(h.body))
	h.body = h.body[4:]
	if n == -1 {
		return nil, true, nil
	}
	if n < 0 || int(n) > len(h.body) {
		return nil, false, errArray
	}
	data, h.body = h.body[:n:n], h.body[n:]
	return data, false, nil
}

// appendArray prints an array's binary form as array_out does.
func appendArray(dst, b []byte, elem change.Type) ([]byte, error) {
	h, err := readArrayHeader(b)
	if err != nil {
		return dst, err
	}
	if h.count == 0 {
		if len(h.body) != 0 {
			return dst, errArray
		}
		return append(dst, "{}"...), nil
	}
	for i := range h.ndim {
		if h.lower[i] != 1 {
			dst = appendBounds(dst, &h)
			break
		}
	}
	dst, err = appendDimension(dst, &h, 0, elem)
	if err == nil && len(h.body) != 0 {
		err = errArray
	}
	return dst, err
}

func appendBounds(dst []byte, h *arrayHeader) []byte {
	for i := range h.ndim {
		dst = strconv.AppendInt(append(dst, '['), int64(h.lower[i]), 10)
		dst = strconv.AppendInt(append(dst, ':'), int64(h.lower[i])+int64(h.length[i])-1, 10)
		dst = append(dst, ']')
	}
	return append(dst, '=')
}

func appendDimension(dst []byte, h *arrayHeader, dim int, elem change.Type) ([]byte, error) {
	dst = append(dst, '{')
	for i := range h.length[dim] {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dim+1 < h.ndim {
			dst, err = appendDimension(dst, h, dim+1, elem)
		} else {
			dst, err = appendElement(dst, h, elem)
		}
		if err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func appendElement(dst []byte, h *arrayHeader, elem change.Type) ([]byte, error) {
	data, null, err := h.next()
	if err != nil {
		return dst, err
	}
	if null {
		return append(dst, "NULL"...), nil
	}
	start := len(dst)
	dst, err = Text(dst, change.Value{State: change.Binary, Data: data}, elem)
	if err != nil {
		return dst, err
	}
	return quoteElement(dst, start), nil
}

// quoteElement puts dst[start:] into double quotes where array_out would: empty,
// the word NULL, or with a character that means something in an array.
func quoteElement(dst []byte, start int) []byte {
	text := dst[start:]
	quote := len(text) == 0 || len(text) == 4 && isNullWord(text)
	escapes := 0
	for _, c := range text {
		switch c {
		case '"', '\\':
			escapes++
			quote = true
		case '{', '}', ',', ' ', '\t', '\n', '\r', '\v', '\f':
			quote = true
		}
	}
	if !quote {
		return dst
	}
	// Grow by the quotes and backslashes, then move from the end.
	old := len(dst)
	for range escapes + 2 {
		dst = append(dst, '"')
	}
	w := len(dst) - 2
	for r := old - 1; r >= start; r-- {
		c := dst[r]
		dst[w] = c
		w--
		if c == '"' || c == '\\' {
			dst[w] = '\\'
			w--
		}
	}
	dst[start] = '"'
	dst[len(dst)-1] = '"'
	return dst
}

func isNullWord(b []byte) bool {
	const word = "null"
	for i := range word {
		if b[i]|0x20 != word[i] {
			return false
		}
	}
	return true
}
