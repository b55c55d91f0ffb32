package spool

import (
	"encoding/binary"
	"fmt"
	"io"

	"tailrace/internal/fault"
)

// Reader reads a transaction's records in the order in which they were appended.
// The memory it reads into is never written twice: records stay valid, and belong
// to whoever keeps parts of them.
type Reader struct {
	spool  *Spool
	t      *transaction
	at     int64 // of the next byte to read
	chunk  []byte
	lo, hi int // unread bytes of chunk
}

// Read begins to read a transaction. Nothing may be appended to it or taken back
// meanwhile.
func (s *Spool) Read(id uint64) (*Reader, error) {
	if err := s.flush(); err != nil {
		return nil, err
	}
	s.current = nil
	t := s.txs[id]
	if t == nil {
		t = &transaction{}
	}
	return &Reader{spool: s, t: t}, nil
}

// Next returns the next record, or io.EOF behind the last one.
func (r *Reader) Next() ([]byte, error) {
	for {
		have := r.chunk[r.lo:r.hi]
		need := lengthBytes
		if len(have) >= lengthBytes {
			need += int(binary.BigEndian.Uint32(have))
			if len(have) >= need {
				r.lo += need
				return have[lengthBytes:need:need], nil
			}
		}
		left := r.t.size - r.at
		if len(have) == 0 && left == 0 {
			return nil, io.EOF
		}
		if int64(len(have))+left < int64(need) {
			return nil, fault.Corrupted("the spool has a record of %d bytes where %d are left", need, int64(len(have))+left)
		}
		if err := r.fill(need); err != nil {
			return nil, err
		}
	}
}

// fill moves the unread bytes to a new chunk and reads more, need bytes at least.
func (r *Reader) fill(need int) error {
	unread := r.chunk[r.lo:r.hi]
	size := int(min(int64(max(chunkBytes, need)), int64(len(unread))+r.t.size-r.at))
	chunk := make([]byte, size)
	r.lo, r.hi = 0, copy(chunk, unread)
	r.chunk = chunk
	for r.hi < size {
		n := min(size-r.hi, int(blockBytes-r.at%blockBytes))
		if _, err := r.spool.file.ReadAt(chunk[r.hi:r.hi+n], r.t.place(r.at)); err != nil {
			return fmt.Errorf("read the spool of open transactions: %w", bare(err))
		}
		r.hi += n
		r.at += int64(n)
	}
	return nil
}
