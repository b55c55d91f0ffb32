// Package spool keeps transactions on disk that a source sends before it is known
// whether they will commit. It knows records and nothing of what is in them: they
// are appended to a transaction, taken back to a savepoint, given up, or read.
package spool

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"tailrace/internal/fault"
)

const (
	// blockBytes is the unit in which transactions take the file, and the size of
	// the write buffer: large enough that a write costs little beside its copying,
	// small enough that hundreds of transactions waste little in their last blocks.
	blockBytes = 256 << 10
	// chunkBytes is how much a Reader reads at once.
	chunkBytes = 1 << 20
	// Least is the smallest bound: a block for each of some transactions.
	Least = 64 * blockBytes
	// lengthBytes stand before each record.
	lengthBytes = 4
)

// Spool is one file in which any number of transactions grow side by side.
//
// The obvious way is a file for each transaction. Then hundreds of open ones are
// hundreds of open files, or files that must be opened and closed all the time
// and lie about after a kill. Here the one file is cut into blocks; a transaction
// is a list of blocks, and a freed block is used again, the lowest first, so that
// the file shrinks when what was at its end is gone. Its name is removed as soon
// as it is open: whatever ends the process, nothing stays on the disk. (Systems
// that cannot do this keep the name until Close, and the next Open removes what a
// kill left.) Nothing is ever synced: after a crash the source sends everything
// again.
//
// In memory there are one buffer for the whole spool (sources send a transaction
// in runs, so it changes hands rarely), 4 bytes for each block in use and some 60
// for each savepoint that may still be taken back.
//
// A Spool is for one goroutine.
type Spool struct {
	file *os.File
	name string // still to be removed at Close; empty: gone already
	max  int64

	used   []bool // the file's blocks
	lowest int    // no block below it is free
	txs    map[uint64]*transaction

	current *transaction // whose bytes are in buffer
	buffer  []byte
}

// transaction is one that is open.
type transaction struct {
	blocks []uint32
	size   int64            // bytes in the blocks
	marks  map[uint64]int64 // savepoint: where its records begin
	order  []uint64         // savepoints in the order of these places
}

// Open makes an empty spool in dir, which is made too if it is not there, and goes
// then with the file's name. What an earlier process of the same owner left there is
// removed. max bounds the bytes on
// disk. Errors are the operator's: dir cannot be used.
func Open(dir, owner string, max int64) (*Spool, error) {
	unusable := func(op string, err error) error {
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err,
			Remedy: "let source.spool_dir name a folder that this user may write and that has room, or set source.streaming: false"}
	}
	sum := sha256.Sum256([]byte(owner))
	prefix := "spool-" + hex.EncodeToString(sum[:8]) + "-"
	entries, err := os.ReadDir(dir)
	made := errors.Is(err, os.ErrNotExist)
	if err != nil && !made {
		return nil, unusable("look into the spool's folder", err)
	}
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), prefix)
		if ours && number != "" && strings.Trim(number, "0123456789") == "" {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, unusable("remove a spool that was left behind", err)
			}
		}
	}
	var file *os.File
	for range 3 { // another Open may just take away the folder that it has made
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, unusable("make the spool's folder", err)
		}
		if file, err = os.CreateTemp(dir, prefix+"*"); !errors.Is(err, os.ErrNotExist) { // mode 0600, its number all digits
			break
		}
	}
	if err != nil {
		return nil, unusable("make the spool", err)
	}
	s := &Spool{file: file, max: max, txs: map[uint64]*transaction{}}
	if os.Remove(file.Name()) != nil {
		s.name = file.Name()
	} else if made {
		_ = os.Remove(dir) // stays if another has put something there meanwhile
	}
	return s, nil
}

// Close gives everything up.
func (s *Spool) Close() error {
	err := s.file.Close()
	if s.name != "" {
		err = errors.Join(err, os.Remove(s.name))
	}
	if err != nil {
		return fmt.Errorf("close the spool: %w", err)
	}
	return nil
}

// Size returns the bytes that the spool takes on disk.
func (s *Spool) Size() int64 { return int64(len(s.used)) * blockBytes }

// Mark notes that what is appended to a transaction from here on may be taken back
// by its savepoint. A savepoint that is known keeps its place.
func (s *Spool) Mark(id, savepoint uint64) {
	t := s.transaction(id)
	if n := len(t.order); n > 0 && t.order[n-1] == savepoint {
		return
	}
	if _, known := t.marks[savepoint]; known {
		return
	}
	if t.marks == nil {
		t.marks = map[uint64]int64{}
	}
	at := t.size
	if s.current == t {
		at += int64(len(s.buffer))
	}
	t.marks[savepoint] = at
	t.order = append(t.order, savepoint)
}

// Back removes what was appended to a transaction since a savepoint was marked,
// with the savepoints marked since then. One that was never marked has nothing.
func (s *Spool) Back(id, savepoint uint64) error {
	t := s.txs[id]
	if t == nil {
		return nil
	}
	at, known := t.marks[savepoint]
	if !known {
		return nil
	}
	for n := len(t.order); n > 0 && t.marks[t.order[n-1]] >= at; n = len(t.order) {
		delete(t.marks, t.order[n-1])
		t.order = t.order[:n-1]
	}
	if s.current == t && at >= t.size {
		s.buffer = s.buffer[:at-t.size]
		return nil
	}
	if s.current == t {
		s.current, s.buffer = nil, s.buffer[:0]
	}
	keep := int((at + blockBytes - 1) / blockBytes)
	gone := t.blocks[keep:]
	t.blocks, t.size = t.blocks[:keep], at
	return s.free(gone)
}

// Append adds a record, given in parts, to a transaction. Errors are the
// operator's: no room within the bound, or on the disk.
func (s *Spool) Append(id uint64, parts ...[]byte) error {
	t := s.transaction(id)
	if s.current != t {
		if err := s.flush(); err != nil {
			return err
		}
		s.current = t
	}
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	var length [lengthBytes]byte
	binary.BigEndian.PutUint32(length[:], uint32(size))
	if err := s.write(length[:]); err != nil {
		return err
	}
	for _, p := range parts {
		if err := s.write(p); err != nil {
			return err
		}
	}
	return nil
}

// Drop gives a transaction up. One that is not there has nothing.
func (s *Spool) Drop(id uint64) error {
	t := s.txs[id]
	if t == nil {
		return nil
	}
	if s.current == t {
		s.current, s.buffer = nil, s.buffer[:0]
	}
	delete(s.txs, id)
	return s.free(t.blocks)
}

func (s *Spool) transaction(id uint64) *transaction {
	t := s.txs[id]
	if t == nil {
		t = &transaction{}
		s.txs[id] = t
	}
	return t
}

// write appends bytes to the current transaction.
func (s *Spool) write(p []byte) error {
	if s.buffer == nil {
		s.buffer = make([]byte, 0, blockBytes)
	}
	for len(p) > 0 {
		if len(s.buffer) == cap(s.buffer) {
			if err := s.flush(); err != nil {
				return err
			}
		}
		n := min(len(p), cap(s.buffer)-len(s.buffer))
		s.buffer = append(s.buffer, p[:n]...)
		p = p[n:]
	}
	return nil
}

// flush writes the buffer to the current transaction's blocks.
func (s *Spool) flush() error {
	t := s.current
	for rest := s.buffer; len(rest) > 0; {
		within := t.size % blockBytes
		if within == 0 {
			block, err := s.take()
			if err != nil {
				return err
			}
			t.blocks = append(t.blocks, block)
		}
		n := min(len(rest), int(blockBytes-within))
		if _, err := s.file.WriteAt(rest[:n], t.place(t.size)); err != nil {
			if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
				return &fault.Error{Kind: fault.Operator, Op: "write the spool of open transactions", Err: bare(err),
					Remedy: "free space on the disk of source.spool_dir, or name another disk there, then start again: nothing is lost, the source sends the transactions once more"}
			}
			return fmt.Errorf("write the spool of open transactions: %w", bare(err))
		}
		t.size += int64(n)
		rest = rest[n:]
	}
	s.buffer = s.buffer[:0]
	return nil
}

// place is where a transaction's byte lies in the file; its block is there.
func (t *transaction) place(at int64) int64 {
	return int64(t.blocks[at/blockBytes])*blockBytes + at%blockBytes
}

// take gives the lowest free block.
func (s *Spool) take() (uint32, error) {
	for i := s.lowest; i < len(s.used); i++ {
		if !s.used[i] {
			s.used[i], s.lowest = true, i+1
			return uint32(i), nil
		}
	}
	if s.Size()+blockBytes > s.max {
		return 0, fault.Refuse("end the long transactions at the source, or raise source.spool_max (on a disk with room: source.spool_dir), then start again: "+
			"nothing is lost, the source sends the transactions once more",
			"the transactions that are open at the source fill the spool: %d of them, %d bytes, and source.spool_max is %d", len(s.txs), s.Size(), s.max)
	}
	s.used = append(s.used, true)
	s.lowest = len(s.used)
	return uint32(len(s.used) - 1), nil
}

// free takes blocks back, and cuts the file where nothing is behind them.
func (s *Spool) free(blocks []uint32) error {
	if len(blocks) == 0 {
		return nil
	}
	for _, b := range blocks {
		s.used[b] = false
		s.lowest = min(s.lowest, int(b))
	}
	n := len(s.used)
	for n > 0 && !s.used[n-1] {
		n--
	}
	if n == len(s.used) {
		return nil
	}
	s.used, s.lowest = s.used[:n], min(s.lowest, n)
	if err := s.file.Truncate(s.Size()); err != nil {
		return fmt.Errorf("cut the spool: %w", bare(err))
	}
	return nil
}

// bare takes the path, which names a file that is not there, off an error.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
