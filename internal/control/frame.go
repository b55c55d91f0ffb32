package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// On the socket each side sends frames: one byte that says what it is, the length of
// the rest in four bytes, the rest. The asker sends one request and then nothing; the
// daemon sends rows, or reports, and one end.
const (
	frameRequest = 'q' // JSON of a Request
	frameReport  = 'p' // how far it is; to those who watch
	frameRow     = 'r' // each cell: its length (-1: NULL) in four bytes, its text
	frameEnd     = 'e' // JSON of an answer

	headerSize  = 5
	requestMost = 1 << 20 // bytes of a request: a statement that a person or a program wrote
	frameMost   = 1 << 30 // bytes of a row or an end
)

var errFrame = errors.New("what came through the socket is not ours")

// appendFrame appends a frame whose contents fill appends.
func appendFrame(dst []byte, what byte, fill func([]byte) []byte) ([]byte, error) {
	begin := len(dst)
	dst = fill(append(dst, what, 0, 0, 0, 0))
	size := len(dst) - begin - headerSize
	if size > frameMost {
		return dst[:begin], fmt.Errorf("a row of %d MiB is too large to send", size>>20)
	}
	binary.BigEndian.PutUint32(dst[begin+1:], uint32(size))
	return dst, nil
}

func appendRow(dst []byte, cells []*string) ([]byte, error) {
	return appendFrame(dst, frameRow, func(b []byte) []byte {
		for _, c := range cells {
			if c == nil {
				b = binary.BigEndian.AppendUint32(b, 1<<32-1)
				continue
			}
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(*c))), *c...)
		}
		return b
	})
}

// readFrame reads a frame of at most most bytes; buf is used again where it suffices.
// It never makes room for a length that it has only read of.
func readFrame(r io.Reader, buf []byte, most int) (what byte, contents []byte, err error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	size := int64(binary.BigEndian.Uint32(header[1:]))
	if size > int64(most) {
		return 0, nil, errFrame
	}
	buf = buf[:0]
	for size > int64(len(buf)) {
		step := min(size-int64(len(buf)), int64(max(64<<10, len(buf))))
		begin := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[begin:]); err != nil {
			return 0, nil, errors.Join(io.ErrUnexpectedEOF, err)
		}
	}
	return header[0], buf, nil
}

func readRow(b []byte) (cells []*string, err error) {
	for len(b) > 0 {
		if len(b) < 4 {
			return nil, errFrame
		}
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		if n == 1<<32-1 {
			cells = append(cells, nil)
			continue
		}
		if int64(n) > int64(len(b)) {
			return nil, errFrame
		}
		text := string(b[:n])
		cells, b = append(cells, &text), b[n:]
	}
	return cells, nil
}
