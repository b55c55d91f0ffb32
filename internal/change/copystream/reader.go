// Package copystream reads the rows of a PostgreSQL COPY stream (the text and
// binary formats of the COPY command's documentation, "File Formats").
package copystream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"tailrace/internal/change"
)

// Reader gives one row after another. Values lie in its buffer, which holds some
// thousand rows, so that neither a read nor an allocation is needed for a row;
// the buffer grows to the largest row.
type Reader struct {
	in      io.Reader
	binary  bool
	columns int
	begun   bool
	ended   bool   // the stream is read to its end
	buf     []byte // unread bytes are buf[pos:]
	pos     int
	vals    []change.Value
	row     change.Row
}

// ErrMalformed is wrapped by errors about bytes that are no COPY output of the
// expected shape. An early end is io.ErrUnexpectedEOF; every other error is the
// underlying reader's own.
var ErrMalformed = errors.New("malformed COPY stream")

// firstBuffer is 256 KiB: about a thousand rows a read.
const firstBuffer = 256 << 10

// NewReader reads rows of that many columns.
func NewReader(r io.Reader, binary bool, columns int) *Reader {
	return &Reader{in: r, binary: binary, columns: columns, vals: make([]change.Value, columns)}
}

// Next returns the next row, valid until the next call, or io.EOF after the last.
// A binary stream that ends without its trailer is io.ErrUnexpectedEOF; a text
// stream has none, so its sender must not end it early (hydrate sees to that).
func (r *Reader) Next() (change.Row, error) {
	vals, err := r.Values()
	if err != nil {
		return nil, err
	}
	r.row = r.row[:0]
	for _, v := range vals {
		r.row = r.row.Append(v)
	}
	return r.row, nil
}

// Values is Next for who wants the columns one by one: it copies nothing.
func (r *Reader) Values() ([]change.Value, error) {
	var err error
	if r.binary {
		err = r.nextBinary()
	} else {
		err = r.nextText()
	}
	if err != nil {
		return nil, err
	}
	return r.vals, nil
}

// fill makes at least n unread bytes available, or says io.ErrUnexpectedEOF.
func (r *Reader) fill(n int) error {
	for len(r.buf)-r.pos < n {
		if r.ended {
			return io.ErrUnexpectedEOF
		}
		if err := r.more(); err != nil {
			return err
		}
	}
	return nil
}

// more reads once. A full buffer is doubled: it grows by what really arrives, so
// that a hostile length costs no memory.
func (r *Reader) more() error {
	if r.pos > 0 {
		r.buf = r.buf[:copy(r.buf, r.buf[r.pos:])]
		r.pos = 0
	}
	if len(r.buf) == cap(r.buf) {
		bigger := make([]byte, len(r.buf), max(2*cap(r.buf), firstBuffer))
		copy(bigger, r.buf)
		r.buf = bigger
	}
	n, err := r.in.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+n]
	if errors.Is(err, io.EOF) {
		r.ended = true
		return nil
	}
	return err
}

var signature = []byte("PGCOPY\n\xff\r\n\x00")

// header reads signature, flags and the header extension.
func (r *Reader) header() error {
	if err := r.fill(19); err != nil {
		return err
	}
	if !bytes.Equal(r.buf[r.pos:r.pos+11], signature) {
		return fmt.Errorf("%w: no binary signature", ErrMalformed)
	}
	extension := int(binary.BigEndian.Uint32(r.buf[r.pos+15:]) & 0x7fffffff)
	if err := r.fill(19 + extension); err != nil {
		return err
	}
	r.pos += 19 + extension
	r.begun = true
	return nil
}

func (r *Reader) nextBinary() error {
	if !r.begun {
		if err := r.header(); err != nil {
			return err
		}
	}
	if err := r.fill(2); err != nil {
		return err
	}
	switch count := int16(binary.BigEndian.Uint16(r.buf[r.pos:])); {
	case count == -1:
		if err := r.fill(3); err == nil {
			return fmt.Errorf("%w: it goes on after its trailer", ErrMalformed)
		} else if err != io.ErrUnexpectedEOF {
			return err
		}
		return io.EOF
	case int(count) != r.columns:
		return fmt.Errorf("%w: a row of %d columns, want %d", ErrMalformed, count, r.columns)
	}
	// The whole row must be there before values are taken, because filling moves
	// the buffer.
	end := 2
	for range r.columns {
		if err := r.fill(end + 4); err != nil {
			return err
		}
		size := int32(binary.BigEndian.Uint32(r.buf[r.pos+end:]))
		if size < -1 {
			return fmt.Errorf("%w: a value of length %d", ErrMalformed, size)
		}
		end += 4 + int(max(size, 0))
	}
	if err := r.fill(end); err != nil {
		return err
	}
	row := r.buf[r.pos+2 : r.pos+end]
	r.pos += end
	for i := range r.vals {
		size := int32(binary.BigEndian.Uint32(row))
		row = row[4:]
		if size == -1 {
			r.vals[i] = change.Value{State: change.Null}
			continue
		}
		r.vals[i] = change.Value{State: change.Binary, Data: row[:size:size]}
		row = row[size:]
	}
	return nil
}

func (r *Reader) nextText() error {
	seen := 0
	for {
		if i := bytes.IndexByte(r.buf[r.pos+seen:], '\n'); i >= 0 {
			line := r.buf[r.pos : r.pos+seen+i]
			r.pos += seen + i + 1
			if string(line) == `\.` {
				return io.EOF
			}
			return r.split(line)
		}
		seen = len(r.buf) - r.pos
		if r.ended {
			if seen > 0 {
				return io.ErrUnexpectedEOF
			}
			return io.EOF
		}
		if err := r.more(); err != nil {
			return err
		}
	}
}

// split takes a line apart at its tabs and resolves escapes in place.
func (r *Reader) split(line []byte) error {
	for i := range r.vals {
		cell := line
		if i < r.columns-1 {
			end := bytes.IndexByte(line, '\t')
			if end < 0 {
				return fmt.Errorf("%w: a row of %d columns, want %d", ErrMalformed, i+1, r.columns)
			}
			cell, line = line[:end], line[end+1:]
		} else if bytes.IndexByte(cell, '\t') >= 0 {
			return fmt.Errorf("%w: a row of more than %d columns", ErrMalformed, r.columns)
		}
		if string(cell) == `\N` {
			r.vals[i] = change.Value{State: change.Null}
			continue
		}
		r.vals[i] = change.Value{State: change.AsText, Data: unescape(cell)}
	}
	return nil
}

// unescape resolves a cell's backslash sequences in place. COPY TO writes no
// octal or hexadecimal sequences, so none are read.
func unescape(cell []byte) []byte {
	w := bytes.IndexByte(cell, '\\')
	if w < 0 {
		return cell
	}
	for r := w; r < len(cell); r++ {
		c := cell[r]
		if c == '\\' && r+1 < len(cell) {
			r++
			switch c = cell[r]; c {
			case 'b':
				c = '\b'
			case 'f':
				c = '\f'
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			case 'v':
				c = '\v'
			}
		}
		cell[w] = c
		w++
	}
	return cell[:w]
}
