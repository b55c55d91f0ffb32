//go:build !noduckdb

package duckdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"tailrace/internal/change"
)

// copyReader splits a COPY stream into rows (PostgreSQL documentation, COPY,
// "File Formats"). Values lie in its buffer and live until the next row.
type copyReader struct {
	in     io.Reader
	binary bool
	begun  bool
	ended  bool   // the stream is read to its end
	buf    []byte // unread bytes are buf[pos:]
	pos    int
}

// copyBuffer is the first size of the buffer: some thousand rows, so that reads
// are few. It grows to the largest row.
const copyBuffer = 256 << 10

// maxField bounds one value: PostgreSQL's own limit is 1 GB.
const maxField = 1 << 30

var copySignature = []byte("PGCOPY\n\xff\r\n\x00")

// fill makes at least n unread bytes available; io.ErrUnexpectedEOF where the
// stream has fewer.
func (r *copyReader) fill(n int) error {
	for len(r.buf)-r.pos < n {
		if r.ended {
			return io.ErrUnexpectedEOF
		}
		if err := r.more(n); err != nil {
			return err
		}
	}
	return nil
}

// more reads once, with room for n unread bytes in all.
func (r *copyReader) more(n int) error {
	if r.pos > 0 {
		r.buf = r.buf[:copy(r.buf, r.buf[r.pos:])]
		r.pos = 0
	}
	if cap(r.buf) < n || cap(r.buf) == len(r.buf) {
		bigger := make([]byte, len(r.buf), max(n, 2*cap(r.buf), copyBuffer))
		copy(bigger, r.buf)
		r.buf = bigger
	}
	got, err := r.in.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+got]
	if errors.Is(err, io.EOF) {
		r.ended = true
		return nil
	}
	return err
}

// next reads one row into vals; false at the end.
func (r *copyReader) next(vals []change.Value) (bool, error) {
	if r.binary {
		return r.nextBinary(vals)
	}
	return r.nextText(vals)
}

func (r *copyReader) nextBinary(vals []change.Value) (bool, error) {
	if !r.begun {
		r.begun = true
		if err := r.header(); err != nil {
			return false, err
		}
	}
	if err := r.fill(2); err != nil {
		return false, truncated(err)
	}
	n := int16(binary.BigEndian.Uint16(r.buf[r.pos:]))
	if n == -1 {
		return false, nil
	}
	if int(n) != len(vals) {
		return false, errCopy("a row has %d columns, the target %d", n, len(vals))
	}
	// The row's bytes must be there together, because a refill moves them: first
	// find how many they are.
	at := 2
	for range vals {
		if err := r.fill(at + 4); err != nil {
			return false, truncated(err)
		}
		size := int32(binary.BigEndian.Uint32(r.buf[r.pos+at:]))
		at += 4
		if size > 0 {
			if size > maxField {
				return false, errCopy("a value claims %d bytes", size)
			}
			at += int(size)
		} else if size < -1 {
			return false, errCopy("a value has a negative length")
		}
	}
	if err := r.fill(at); err != nil {
		return false, truncated(err)
	}
	row := r.buf[r.pos+2 : r.pos+at]
	r.pos += at
	for i := range vals {
		size := int32(binary.BigEndian.Uint32(row))
		row = row[4:]
		if size == -1 {
			vals[i] = change.Value{State: change.Null}
			continue
		}
		vals[i] = change.Value{State: change.Binary, Data: row[:size:size]}
		row = row[size:]
	}
	return true, nil
}

func (r *copyReader) header() error {
	if err := r.fill(len(copySignature) + 8); err != nil {
		return truncated(err)
	}
	if !bytes.HasPrefix(r.buf[r.pos:], copySignature) {
		return errCopy("it does not begin with the binary format's signature")
	}
	r.pos += len(copySignature)
	if flags := binary.BigEndian.Uint32(r.buf[r.pos:]); flags&0xFFFF0000 != 0 {
		return errCopy("unknown flags %#x", flags)
	}
	extension := binary.BigEndian.Uint32(r.buf[r.pos+4:])
	r.pos += 8
	if extension > maxField {
		return errCopy("a header extension of %d bytes", extension)
	}
	if err := r.fill(int(extension)); err != nil {
		return truncated(err)
	}
	r.pos += int(extension)
	return nil
}

func (r *copyReader) nextText(vals []change.Value) (bool, error) {
	seen := 0
	for {
		if i := bytes.IndexByte(r.buf[r.pos+seen:], '\n'); i >= 0 {
			line := r.buf[r.pos : r.pos+seen+i]
			r.pos += seen + i + 1
			if string(line) == `\.` {
				return false, nil
			}
			return true, splitLine(line, vals)
		}
		seen = len(r.buf) - r.pos
		if r.ended {
			if seen > 0 {
				return false, truncated(io.ErrUnexpectedEOF)
			}
			return false, nil
		}
		if err := r.more(seen + 1); err != nil {
			return false, err
		}
	}
}

// splitLine splits a text line at tabs and takes its escapes back, in place.
func splitLine(line []byte, vals []change.Value) error {
	for i := range vals {
		field := line
		tab := bytes.IndexByte(line, '\t')
		switch {
		case tab >= 0 && i == len(vals)-1:
			return errCopy("a row has more columns than the target's %d", len(vals))
		case tab >= 0:
			field, line = line[:tab], line[tab+1:]
		case i < len(vals)-1:
			return errCopy("a row has %d columns, the target %d", i+1, len(vals))
		}
		if string(field) == `\N` {
			vals[i] = change.Value{State: change.Null}
			continue
		}
		vals[i] = change.Value{State: change.AsText, Data: unescapeField(field)}
	}
	return nil
}

func unescapeField(b []byte) []byte {
	w := bytes.IndexByte(b, '\\')
	if w < 0 {
		return b
	}
	for r := w; r < len(b); r++ {
		ch := b[r]
		if ch == '\\' && r+1 < len(b) {
			r++
			switch ch = b[r]; ch {
			case 'b':
				ch = '\b'
			case 'f':
				ch = '\f'
			case 'n':
				ch = '\n'
			case 'r':
				ch = '\r'
			case 't':
				ch = '\t'
			case 'v':
				ch = '\v'
			}
		}
		b[w] = ch
		w++
	}
	return b[:w]
}

func truncated(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errCopy("it ends in the middle of a row")
	}
	return err
}
