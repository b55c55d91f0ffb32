// Package copystream reads the rows of a PostgreSQL COPY stream (the text and
// binary formats of the COPY command's documentation, "File Formats").
package copystream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"tailrace/internal/change"
)

// Reader gives one row after another.
type Reader struct {
	in      *bufio.Reader
	binary  bool
	columns int
	begun   bool
	row     change.Row
	line    []byte
}

// readBuffer is 256 KiB: about a thousand rows a read.
const readBuffer = 256 << 10

// NewReader reads rows of that many columns.
func NewReader(r io.Reader, binary bool, columns int) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, readBuffer), binary: binary, columns: columns}
}

// Next returns the next row, valid until the next call, or io.EOF after the last.
// A binary stream that ends without its trailer is io.ErrUnexpectedEOF; a text
// stream has none, so its sender must not end it early (hydrate sees to that).
func (r *Reader) Next() (change.Row, error) {
	if r.binary {
		return r.nextBinary()
	}
	return r.nextText()
}

var signature = []byte("PGCOPY\n\xff\r\n\x00")

func (r *Reader) nextBinary() (change.Row, error) {
	if !r.begun {
		var head [19]byte // signature, flags, length of the header extension
		if err := r.full(head[:]); err != nil {
			return nil, err
		}
		if !bytes.Equal(head[:11], signature) {
			return nil, errors.New("not a binary COPY stream")
		}
		if _, err := r.in.Discard(int(binary.BigEndian.Uint32(head[15:]) & 0x7fffffff)); err != nil {
			return nil, noEOF(err)
		}
		r.begun = true
	}
	var n [4]byte
	if err := r.full(n[:2]); err != nil {
		return nil, err
	}
	switch count := int16(binary.BigEndian.Uint16(n[:2])); {
	case count == -1:
		if _, err := r.in.ReadByte(); err != io.EOF {
			return nil, errors.New("binary COPY stream goes on after its trailer")
		}
		return nil, io.EOF
	case int(count) != r.columns:
		return nil, fmt.Errorf("binary COPY row has %d columns, want %d", count, r.columns)
	}
	r.row = r.row[:0]
	for range r.columns {
		if err := r.full(n[:]); err != nil {
			return nil, err
		}
		size := int32(binary.BigEndian.Uint32(n[:]))
		if size == -1 {
			r.row = append(r.row, byte(change.Null))
			continue
		}
		if size < 0 {
			return nil, fmt.Errorf("binary COPY value has length %d", size)
		}
		r.row = append(r.row, byte(change.Binary))
		r.row = append(r.row, n[:]...)
		at := len(r.row)
		// Grow by what really arrives, so that a hostile length costs no memory.
		for left := int(size); left > 0; {
			part := min(left, readBuffer)
			r.row = append(r.row, make([]byte, part)...)
			if err := r.full(r.row[at : at+part]); err != nil {
				return nil, err
			}
			at, left = at+part, left-part
		}
	}
	return r.row, nil
}

func (r *Reader) full(b []byte) error {
	_, err := io.ReadFull(r.in, b)
	return noEOF(err)
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *Reader) nextText() (change.Row, error) {
	r.line = r.line[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		r.line = append(r.line, part...)
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF {
			if len(r.line) == 0 {
				return nil, io.EOF
			}
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		break
	}
	line := r.line[:len(r.line)-1]
	if string(line) == `\.` {
		return nil, io.EOF
	}
	r.row = r.row[:0]
	for i := range r.columns {
		cell := line
		if i < r.columns-1 {
			end := bytes.IndexByte(line, '\t')
			if end < 0 {
				return nil, fmt.Errorf("text COPY row has %d columns, want %d", i+1, r.columns)
			}
			cell, line = line[:end], line[end+1:]
		} else if bytes.IndexByte(cell, '\t') >= 0 {
			return nil, fmt.Errorf("text COPY row has more than %d columns", r.columns)
		}
		if string(cell) == `\N` {
			r.row = append(r.row, byte(change.Null))
			continue
		}
		r.row = append(r.row, byte(change.AsText), 0, 0, 0, 0)
		at := len(r.row)
		r.row = unescape(r.row, cell)
		binary.BigEndian.PutUint32(r.row[at-4:], uint32(len(r.row)-at))
	}
	return r.row, nil
}

// unescape appends a cell without its backslash sequences.
func unescape(dst, cell []byte) []byte {
	for {
		i := bytes.IndexByte(cell, '\\')
		if i < 0 || i+1 >= len(cell) {
			return append(dst, cell...)
		}
		dst = append(dst, cell[:i]...)
		c := cell[i+1]
		cell = cell[i+2:]
		switch c {
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
		// COPY TO writes no octal or hexadecimal sequences, so none are read.
		dst = append(dst, c)
	}
}
