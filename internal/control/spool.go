package control

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"tailrace/internal/fault"
)

// spool holds the rows of an answer between the query and its reader, in a file
// without a name. The query runs at its own speed and its transaction ends with it,
// however slow the reader is: an open transaction makes the destination keep old rows
// and can stop its checkpoints.
type spool struct {
	dir string // of the file; empty: the system's folder for such files

	mu     sync.Mutex // guards size, ended, and buf once ended
	more   *sync.Cond
	file   *os.File
	buf    []byte // rows that are not in the file yet
	size   int64  // in the file
	looked int64  // size at the last look at the disk
	ended  bool   // buf holds the rest
}

const (
	spoolChunk = 64 << 10  // bytes written and read at once
	spoolMost  = 1 << 30   // bytes of one answer; more is a job for a snapshot
	spoolLook  = 16 << 20  // bytes between looks at the free disk space
	spoolFree  = 256 << 20 // bytes that an answer leaves free on the disk
)

func newSpool(dir string) *spool {
	s := &spool{dir: dir}
	s.more = sync.NewCond(&s.mu)
	return s
}

// row adds one row.
func (s *spool) row(cells []*string) (err error) {
	if s.buf, err = appendRow(s.buf, cells); err != nil {
		return err
	}
	if len(s.buf) < spoolChunk {
		return nil
	}
	return s.flush()
}

// report adds how far the work is, at once. It is for answers without rows.
func (s *spool) report(text string) (err error) {
	if s.buf, err = appendFrame(s.buf, frameReport, func(b []byte) []byte { return append(b, text...) }); err != nil {
		return err
	}
	if err = s.flush(); err != nil {
		s.buf = nil
	}
	return err
}

// end adds the last frame. With cut the rows that are not written yet are left out.
func (s *spool) end(frame []byte, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cut {
		s.buf = nil
	}
	s.buf, s.ended = append(s.buf, frame...), true
	s.more.Broadcast()
}

func (s *spool) flush() error {
	if len(s.buf) == 0 {
		return nil
	}
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "answer-*")
		if err != nil && s.dir != "" { // another user's folder
			f, err = os.CreateTemp("", "answer-*")
		}
		if err != nil {
			return fmt.Errorf("make a file for the answer: %w", err)
		}
		if err := os.Remove(f.Name()); err != nil {
			return errors.Join(fmt.Errorf("hide the answer's file: %w", err), f.Close())
		}
		s.file = f
	}
	if s.size+int64(len(s.buf)) > spoolMost {
		return fault.Refuse("ask for less, or read it all from a snapshot (tailrace snapshot)", "the answer is larger than %d MiB", spoolMost>>20)
	}
	if s.size == 0 || s.size-s.looked >= spoolLook {
		free, err := freeSpace(s.file)
		if err != nil {
			return fmt.Errorf("look for free disk space: %w", err)
		}
		if free < spoolFree {
			return s.full()
		}
		s.looked = s.size
	}
	n, err := s.file.WriteAt(s.buf, s.size)
	if errors.Is(err, syscall.ENOSPC) {
		return s.full()
	}
	if err != nil {
		return fmt.Errorf("keep the answer: %w", err)
	}
	s.buf = s.buf[:0]
	s.mu.Lock()
	s.size += int64(n)
	s.more.Broadcast()
	s.mu.Unlock()
	return nil
}

func (s *spool) full() error {
	return fault.Refuse(fmt.Sprintf("free space on the disk of %s, or ask for less", s.dir), "the disk is too full to keep the answer")
}

// drain gives everything to write, as it comes, until the end was given.
func (s *spool) drain(write func([]byte) error) error {
	buf := make([]byte, spoolChunk)
	var sent int64
	for {
		s.mu.Lock()
		for s.size == sent && !s.ended {
			s.more.Wait()
		}
		size, ended := s.size, s.ended
		s.mu.Unlock()
		if size == sent && ended {
			return write(s.buf)
		}
		n, err := s.file.ReadAt(buf[:min(int64(len(buf)), size-sent)], sent)
		if n == 0 {
			return errors.Join(io.ErrUnexpectedEOF, err)
		}
		sent += int64(n)
		if err := write(buf[:n]); err != nil {
			return err
		}
	}
}

func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
