package mysql

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strconv"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// arena is the memory that rows are written into: large pieces, which belong to the
// segments that hold rows of them. So a row is no allocation.
type arena struct{ buf []byte }

const arenaBytes = 256 << 10

// reserve makes room for about n more bytes in one piece.
func (a *arena) reserve(n int) {
	if cap(a.buf)-len(a.buf) < n {
		a.buf = make([]byte, 0, max(arenaBytes, n))
	}
}

// image is one row as a row event has it: which columns are there, and the bytes.
//
// Format (rpl_record.cc of MySQL's source, unpack_row): a bitmap of the NULLs among the
// columns that are there, then the values of the others, in the order of the table.
type image struct {
	present []byte // bit i: column i is there
	columns int    // how many are there
}

func newImage(present []byte, columns int) image {
	n := 0
	for i := range columns {
		if present[i>>3]&(1<<(i&7)) != 0 {
			n++
		}
	}
	return image{present: present, columns: n}
}

func (i image) has(column int) bool { return i.present[column>>3]&(1<<(column&7)) != 0 }

// fieldBytes is what a Row spends on a value beside its bytes.
const fieldBytes = 5

// decode reads one image from data and appends it as a Row; columns that are not there
// are written as missing. It returns how many bytes it has read.
func (l *layout) decode(a *arena, im image, data []byte, missing change.State) (row change.Row, n int, err error) {
	nulls := (im.columns + 7) / 8
	if len(data) < nulls {
		return nil, 0, errShort
	}
	null, rest := data[:nulls], data[nulls:]
	start, at := len(a.buf), 0
	buf := a.buf
	for i := range l.columns {
		if !im.has(i) {
			buf = append(buf, byte(missing))
			continue
		}
		isNull := null[at>>3]&(1<<(at&7)) != 0
		at++
		if isNull {
			buf = append(buf, byte(change.Null))
			continue
		}
		place := len(buf)
		buf = append(buf, byte(change.AsText), 0, 0, 0, 0)
		var used int
		if buf, used, err = l.columns[i].append(buf, rest); err != nil {
			if !errors.Is(err, errZeroDate) {
				return nil, 0, l.explain(i, err)
			}
			if l.zero != ZeroDatesNull || l.columns[i].key {
				return nil, 0, zeroDateRefusal(l.table.Name, l.columns[i].def.name)
			}
			buf = append(buf[:place], byte(change.Null))
		} else {
			binary.BigEndian.PutUint32(buf[place+1:], uint32(len(buf)-place-fieldBytes))
		}
		rest = rest[used:]
	}
	a.buf = buf
	return change.Row(buf[start:len(buf):len(buf)]), len(data) - len(rest), nil
}

func (l *layout) explain(i int, err error) error {
	return fault.Corrupted("read column %s of a row of table %s: %v", l.columns[i].def.name, l.table.Name, err)
}

func zeroDateRefusal(table change.Name, column string) error {
	return fault.Refuse("correct the row; or set source.zero_dates to null (NULL in its place) or to text (the column is a text in the destination), and copy the table again",
		"column %s of table %s holds a zero or partial date, which no calendar has", column, table)
}

// append reads one value from data and appends its text. Zero dates are errZeroDate,
// with the right number of bytes, unless dates are texts.
func (c *column) append(dst, data []byte) ([]byte, int, error) {
	d := &c.def
	switch d.kind {
	case integer:
		if len(data) < d.width {
			return dst, 0, errShort
		}
		v := uintAt(data, d.width)
		if d.unsigned {
			return strconv.AppendUint(dst, v, 10), d.width, nil
		}
		shift := 64 - 8*d.width
		return strconv.AppendInt(dst, int64(v<<shift)>>shift, 10), d.width, nil
	case float32Kind:
		if len(data) < 4 {
			return dst, 0, errShort
		}
		return appendFloat32(dst, float32At(data)), 4, nil
	case float64Kind:
		if len(data) < 8 {
			return dst, 0, errShort
		}
		return appendFloat64(dst, float64At(data)), 8, nil
	case decimalKind:
		return appendDecimal(dst, data, int(c.meta>>8), int(c.meta&0xff))
	case bitKind:
		n := (d.precision + 7) / 8
		if len(data) < n {
			return dst, 0, errShort
		}
		return appendBits(dst, data[:n], d.precision), n, nil
	case yearKind:
		if len(data) < 1 {
			return dst, 0, errShort
		}
		if data[0] == 0 {
			return append(dst, '0'), 1, nil
		}
		return strconv.AppendInt(dst, 1900+int64(data[0]), 10), 1, nil
	case dateKind, datetimeKind, timestampKind, timeKind:
		return c.appendTime(dst, data)
	case enumKind, setKind:
		return c.appendLabels(dst, data)
	}
	value, n, err := c.bytes(data)
	if err != nil {
		return dst, 0, err
	}
	switch d.kind {
	case textKind:
		if d.fixed && c.text == nil { // CHAR: the server pads, and takes off what it padded
			for len(value) > 0 && value[len(value)-1] == ' ' {
				value = value[:len(value)-1]
			}
		}
		if c.text == nil {
			return append(dst, value...), n, nil
		}
		start := len(dst)
		if dst, err = c.text.append(dst, value); d.fixed {
			for len(dst) > start && dst[len(dst)-1] == ' ' {
				dst = dst[:len(dst)-1]
			}
		}
		return dst, n, err
	case bytesKind:
		dst = appendBytea(dst, value)
		if d.fixed { // BINARY: trailing zeros are not logged
			for range d.length - len(value) {
				dst = append(dst, '0', '0')
			}
		}
		return dst, n, nil
	case jsonKind:
		dst, err = appendJSON(dst, value)
		return dst, n, err
	case geometryKind:
		dst, err = appendGeometry(dst, value)
		return dst, n, err
	case uuidKind, inet4Kind, inet6Kind:
		dst, err = appendNative(dst, d.kind, value)
		return dst, n, err
	}
	return dst, 0, fmt.Errorf("a value of type %d", c.typ)
}

// appendNative appends the text of MariaDB's UUID, INET4 or INET6, whose trailing zeros
// are not logged.
func appendNative(dst []byte, k kind, value []byte) ([]byte, error) {
	var full [16]byte
	if len(value) > len(full) {
		return dst, errShort
	}
	copy(full[:], value)
	switch k {
	case inet4Kind:
		return appendAddress(dst, full[:4])
	case inet6Kind:
		return appendAddress(dst, full[:])
	}
	return appendUUID(dst, full[:]), nil // stored in another order, logged in the text's
}

func (c *column) appendTime(dst, data []byte) ([]byte, int, error) {
	d := &c.def
	var m moment
	var n int
	switch c.typ {
	case typeTime2:
		return appendTime2(dst, data, int(c.meta))
	case typeTime: // three bytes: hhmmss, signed
		if len(data) < 3 {
			return dst, 0, errShort
		}
		v := int(int32(uintAt(data, 3)<<8) >> 8)
		negative := v < 0
		if negative {
			v = -v
		}
		return appendInterval(dst, negative, v/10000, v/100%100, v%100, 0), 3, nil
	case typeDate:
		if n = 3; len(data) < n {
			return dst, 0, errShort
		}
		m = date(int(uintAt(data, 3)))
	case typeDatetime2:
		var err error
		if m, n, err = datetime2(data, int(c.meta)); err != nil {
			return dst, 0, err
		}
	case typeDatetime:
		if n = 8; len(data) < n {
			return dst, 0, errShort
		}
		m = datetime1(binary.LittleEndian.Uint64(data))
	case typeTimestamp, typeTimestamp2:
		var seconds uint32
		micro := 0
		n = 4
		if c.typ == typeTimestamp2 {
			n += fractionBytes(int(c.meta))
		}
		if len(data) < n {
			return dst, 0, errShort
		}
		if c.typ == typeTimestamp2 {
			seconds, micro = binary.BigEndian.Uint32(data), fraction(data[4:], int(c.meta))
		} else {
			seconds = binary.LittleEndian.Uint32(data)
		}
		if seconds != 0 || micro != 0 { // 0 is '0000-00-00 00:00:00'
			m = instant(int64(seconds), micro)
		}
	default:
		return dst, 0, fmt.Errorf("a time of type %d", c.typ)
	}
	dst, err := appendMoment(dst, m, d.kind, c.asText)
	return dst, n, err
}

// appendMoment appends a date or a date with a time as its destination has it: as the
// server writes it if asText, else as PostgreSQL does.
func appendMoment(dst []byte, m moment, k kind, asText bool) ([]byte, error) {
	switch {
	case asText:
		return m.appendLiteral(dst, k != dateKind), nil
	case !m.real():
		return dst, errZeroDate
	}
	return m.appendText(dst, k != dateKind, k == timestampKind), nil
}

// appendLabels appends the label of an enum's number, or those of a set's bits with
// commas between. The number 0 is the empty string that stands for an invalid value.
func (c *column) appendLabels(dst, data []byte) ([]byte, int, error) {
	n := int(c.meta & 0xff)
	if n < 1 || n > 8 || len(data) < n {
		return dst, 0, errShort
	}
	v := uintAt(data, n)
	if c.def.kind == enumKind {
		switch {
		case v == 0:
			return dst, n, nil
		case v > uint64(len(c.label)):
			return dst, 0, fmt.Errorf("number %d of an enum of %d labels", v, len(c.label))
		}
		return append(dst, c.label[v-1]...), n, nil
	}
	for first := true; v != 0; v &= v - 1 {
		at := bits.TrailingZeros64(v)
		if at >= len(c.label) {
			return dst, 0, fmt.Errorf("bit %d of a set of %d labels", at, len(c.label))
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, c.label[at]...)
	}
	return dst, n, nil
}

// bytes reads a value that has its length in front.
func (c *column) bytes(data []byte) (value []byte, n int, err error) {
	prefix := 1
	switch c.typ {
	case typeVarchar, typeVarString:
		if c.meta > 255 {
			prefix = 2
		}
	case typeString:
		if stringLength(c.meta) > 255 {
			prefix = 2
		}
	case typeBlob, typeJSON, typeGeometry, typeVector:
		if prefix = int(c.meta); prefix < 1 || prefix > 4 {
			return nil, 0, fmt.Errorf("a length of %d bytes", c.meta)
		}
	default:
		return nil, 0, fmt.Errorf("a value of type %d", c.typ)
	}
	if len(data) < prefix {
		return nil, 0, errShort
	}
	size := int(uintAt(data, prefix))
	if len(data)-prefix < size {
		return nil, 0, errShort
	}
	return data[prefix : prefix+size], prefix + size, nil
}
