package postgres

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"strconv"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// tuples gives the rows of a COPY one after another: each call the next row's
// fields, false after the last. The slice and what scratch fields point to are
// valid until the next call.
type tuples func() (fields []change.Value, ok bool, err error)

// copyStream writes tuples in COPY's text or binary format (PostgreSQL
// documentation, "COPY", File Formats). Values go from a row's memory straight
// into the reader's buffer, however large they are; nothing is allocated per row.
type copyStream struct {
	next   tuples
	binary bool

	fields  []change.Value // of the current tuple, those not yet written
	column  int            // number of fields written of it
	head    [20]byte       // bytes to write before rest: a length, a separator
	headLen int
	rest    []byte // of the current value
	escape  bool   // rest is text that COPY's text format must escape
	started bool
	ended   bool
	err     error
}

const copySignature = "PGCOPY\n\377\r\n\000\000\000\000\000\000\000\000\000"

func newCopyStream(form bool, next tuples) *copyStream {
	return &copyStream{next: next, binary: form}
}

// Read fills p with as much of the stream as it takes.
func (c *copyStream) Read(p []byte) (int, error) {
	n := 0
	for {
		if c.headLen > 0 {
			k := copy(p[n:], c.head[:c.headLen])
			n += k
			copy(c.head[:], c.head[k:c.headLen])
			c.headLen -= k
			if c.headLen > 0 {
				return n, nil
			}
		}
		if len(c.rest) > 0 {
			var written, read int
			if c.escape {
				written, read = escapeInto(p[n:], c.rest)
			} else {
				read = copy(p[n:], c.rest)
				written = read
			}
			n += written
			c.rest = c.rest[read:]
			if len(c.rest) > 0 {
				return n, nil
			}
		}
		if c.err != nil {
			if n > 0 {
				return n, nil
			}
			return 0, c.err
		}
		c.step()
	}
}

// step puts the next bit of the stream into head and rest.
func (c *copyStream) step() {
	if !c.started {
		c.started = true
		if c.binary {
			c.headLen = copy(c.head[:], copySignature)
			return
		}
	}
	if c.column == len(c.fields) {
		if c.column > 0 && !c.binary {
			c.head[0], c.headLen = '\n', 1
		}
		fields, ok, err := c.next()
		switch {
		case err != nil:
			c.err = err
			return
		case !ok:
			c.err = io.EOF
			if c.binary {
				c.head[0], c.head[1], c.headLen = 0xff, 0xff, 2
			}
			return
		}
		c.fields, c.column = fields, 0
		if c.binary {
			binary.BigEndian.PutUint16(c.head[:], uint16(len(fields)))
			c.headLen = 2
		}
		return
	}
	v := c.fields[c.column]
	if !c.binary && c.column > 0 {
		c.head[0], c.headLen = '\t', 1
	}
	c.column++
	switch {
	case v.State == change.Null || v.State == change.Absent:
		if c.binary {
			c.headLen = copy(c.head[:], "\xff\xff\xff\xff")
		} else {
			c.headLen += copy(c.head[c.headLen:], `\N`)
		}
	case c.binary != (v.State == change.Binary):
		c.err = formError(c.binary)
	case c.binary:
		binary.BigEndian.PutUint32(c.head[:], uint32(len(v.Data)))
		c.headLen = 4
		c.rest, c.escape = v.Data, false
	default:
		c.rest, c.escape = v.Data, true
	}
}

func formError(binary bool) error {
	if binary {
		return fault.Corrupted("a value is in text form in a batch of binary values")
	}
	return fault.Corrupted("a value is in binary form in a batch of texts")
}

// escapes are the letters after a backslash of bytes that COPY's text format must
// not hold as they are.
var escapes = func() (t [256]byte) {
	for c, e := range map[byte]byte{'\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't', '\v': 'v'} {
		t[c] = e
	}
	return t
}()

// escapeInto writes as much of src as fits.
func escapeInto(dst, src []byte) (written, read int) {
	for read < len(src) {
		e := escapes[src[read]]
		if e == 0 {
			if written == len(dst) {
				return written, read
			}
			dst[written] = src[read]
			written++
		} else {
			if written+2 > len(dst) {
				return written, read
			}
			dst[written], dst[written+1] = '\\', e
			written += 2
		}
		read++
	}
	return written, read
}

// postgresEpoch is 2000-01-01 in microseconds since 1970: where PostgreSQL's
// binary timestamps count from.
const postgresEpoch = 946_684_800_000_000

// appendInstant spells a timestamp with time zone, given in microseconds since
// 1970, as the server reads it. Years before 1 are written with BC.
func appendInstant(dst []byte, micros int64) []byte {
	t := time.UnixMicro(micros).UTC()
	year, era := t.Year(), ""
	if year <= 0 {
		year, era = 1-year, " BC"
	}
	if year < 1000 {
		dst = append(dst, "0000"[len(strconv.Itoa(year)):]...)
	}
	dst = strconv.AppendInt(dst, int64(year), 10)
	dst = t.AppendFormat(dst, "-01-02 15:04:05.000000+00")
	return append(dst, era...)
}

// scratch holds the fields of a tuple that are ours, not a row's: numbers,
// instants, bits. They live until reset.
type scratch struct {
	binary bool
	buf    []byte
}

func (s *scratch) reset() { s.buf = s.buf[:0] }

// value closes a field that began at from. Should the buffer move while a tuple is
// being made, the fields before keep what they had.
func (s *scratch) value(from int) change.Value {
	v := change.Value{State: change.AsText, Data: s.buf[from:len(s.buf):len(s.buf)]}
	if s.binary {
		v.State = change.Binary
	}
	return v
}

func (s *scratch) int2(n int16) change.Value {
	from := len(s.buf)
	if s.binary {
		s.buf = binary.BigEndian.AppendUint16(s.buf, uint16(n))
	} else {
		s.buf = strconv.AppendInt(s.buf, int64(n), 10)
	}
	return s.value(from)
}

func (s *scratch) int4(n int32) change.Value {
	from := len(s.buf)
	if s.binary {
		s.buf = binary.BigEndian.AppendUint32(s.buf, uint32(n))
	} else {
		s.buf = strconv.AppendInt(s.buf, int64(n), 10)
	}
	return s.value(from)
}

func (s *scratch) int8(n int64) change.Value {
	from := len(s.buf)
	if s.binary {
		s.buf = binary.BigEndian.AppendUint64(s.buf, uint64(n))
	} else {
		s.buf = strconv.AppendInt(s.buf, n, 10)
	}
	return s.value(from)
}

func (s *scratch) bool(b bool) change.Value {
	from := len(s.buf)
	switch {
	case s.binary && b:
		s.buf = append(s.buf, 1)
	case s.binary:
		s.buf = append(s.buf, 0)
	case b:
		s.buf = append(s.buf, 't')
	default:
		s.buf = append(s.buf, 'f')
	}
	return s.value(from)
}

func (s *scratch) instant(micros int64) change.Value {
	from := len(s.buf)
	if s.binary {
		s.buf = binary.BigEndian.AppendUint64(s.buf, uint64(micros-postgresEpoch))
	} else {
		s.buf = appendInstant(s.buf, micros)
	}
	return s.value(from)
}

// absences is the bits of a row's absent columns as a bytea, or NULL if it has
// none; a key column may not be absent.
func (s *scratch) absences(row []change.Value, columns []column) (change.Value, error) {
	var any bool
	bits := make([]byte, 0, 8)
	if n := (len(row) + 7) / 8; n <= cap(bits) {
		bits = bits[:n]
	} else {
		bits = make([]byte, n)
	}
	for i := range row {
		if row[i].State != change.Absent {
			continue
		}
		if columns[i].key {
			return change.Value{}, fault.Corrupted("key column %s of a row was not sent", columns[i].plain)
		}
		bits[i/8] |= 1 << (i % 8)
		any = true
	}
	if !any {
		return change.Value{State: change.Null}, nil
	}
	from := len(s.buf)
	if s.binary {
		s.buf = append(s.buf, bits...)
	} else {
		s.buf = append(s.buf, `\x`...)
		s.buf = hex.AppendEncode(s.buf, bits)
	}
	return s.value(from), nil
}

// noAbsence is the bits of n columns of which none is absent.
func (s *scratch) noAbsence(n int) change.Value {
	from := len(s.buf)
	if s.binary {
		s.buf = append(s.buf, make([]byte, (n+7)/8)...)
	} else {
		s.buf = append(s.buf, `\x`...)
		for range (n + 7) / 8 {
			s.buf = append(s.buf, "00"...)
		}
	}
	return s.value(from)
}

// torn says which table's row image could not be read.
func torn(sh *shape, err error) error {
	return fault.Corrupted("%s: a row of %d columns: %v", sh.label(), len(sh.columns), err)
}
