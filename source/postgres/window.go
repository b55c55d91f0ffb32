package postgres

import (
	"encoding/binary"
	"errors"
	"io"
	"net"

	"tailrace/internal/fault"
)

const (
	// chunkBytes is the size of a read buffer: a few receive windows.
	chunkBytes = 1 << 20
	// chunkLeast is how much room a read must have; with less a new buffer begins.
	chunkLeast = 192 << 10
	// wholeBytes is the size from which a message that has not arrived in full gets a
	// buffer of its own.
	wholeBytes = 64 << 10
	// frameMost is the largest message a server can send: a datum's 1 GiB limit, and
	// what is around it.
	frameMost = 1<<30 + 1<<20
)

// frameBytes is what surrounds a message of the plugin in a buffer: the protocol's
// kind and length, and the log's header.
const frameBytes = 5 + 25

// errMore says that the next message has not arrived in full.
var errMore = errors.New("more bytes are needed")

// window reads protocol messages from a connection. Its buffers are never written
// twice: messages stay valid, and belong to whoever keeps parts of them. Memory is
// let go buffer by buffer as its readers let go of their rows.
type window struct {
	conn   net.Conn
	chunk  []byte
	lo, hi int // unread bytes
	found  int // bytes that the last fill brought
}

func newWindow(conn net.Conn) *window { return &window{conn: conn, chunk: make([]byte, chunkBytes)} }

// next returns the next message's kind and body, or errMore.
func (w *window) next() (kind byte, body []byte, err error) {
	have := w.chunk[w.lo:w.hi]
	if len(have) < 5 {
		return 0, nil, errMore
	}
	size := binary.BigEndian.Uint32(have[1:])
	if size < 4 || size > frameMost {
		return 0, nil, fault.Corrupted("the server announces a message of %d bytes", size)
	}
	total := 1 + int(size)
	if total > len(have) {
		return 0, nil, errMore
	}
	w.lo += total
	return have[0], have[5:total:total], nil
}

// fill reads once. What was unread moves to a new buffer where the old one has no
// room left; one as large as a big message that has begun.
func (w *window) fill() error {
	unread := w.chunk[w.lo:w.hi]
	total := 0
	if len(unread) >= 5 {
		total = 1 + int(min(binary.BigEndian.Uint32(unread[1:]), frameMost))
	}
	room := len(w.chunk) - w.hi
	if begun := total > wholeBytes; begun && w.lo+total > len(w.chunk) || !begun && room < chunkLeast {
		chunk := make([]byte, max(chunkBytes, total))
		w.hi = copy(chunk, unread)
		w.chunk, w.lo = chunk, 0
	}
	n, err := w.conn.Read(w.chunk[w.hi:])
	w.hi += n
	w.found = n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}
