package files

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"tailrace/internal/fault"
)

const (
	// aheadBlock and aheadBlocks are what is read, checked and decompressed while
	// rows are made of what came before.
	aheadBlock  = 256 << 10
	aheadBlocks = 3
)

// compressions that are read, by the end of the name.
var compressions = map[string]func(io.Reader) (io.Reader, error){
	".gz":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
	".bz2": func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil },
}

// unread are endings of compressions that are not.
var unread = []string{".zst", ".lz4", ".snappy", ".br", ".xz", ".zip", ".7z", ".z"}

// compressionOf returns the ending of name that says how it is compressed, or "".
func compressionOf(name string) (ending string, known bool) {
	ending = strings.ToLower(path.Ext(name))
	if compressions[ending] != nil {
		return ending, true
	}
	for _, e := range unread {
		if e == ending {
			return ending, false
		}
	}
	return "", true
}

// opened is a file being read, with what tells afterwards that it stayed the same.
type opened struct {
	found
	file *os.File
	sum  hash.Hash
	read int64 // bytes that went into sum
}

// open opens a file as it was found. A file that is gone is fs.ErrNotExist.
func (f found) open() (*opened, error) {
	file, err := os.Open(f.full)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, unreadable(err, "open file", f.full)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, unreadable(err, "look at file", f.full)
	}
	f.size, f.modified = info.Size(), info.ModTime()
	return &opened{found: f, file: file, sum: sha256.New()}, nil
}

// Read implements io.Reader over the raw bytes, which it sums.
func (o *opened) Read(b []byte) (int, error) {
	n, err := o.file.Read(b)
	o.sum.Write(b[:n])
	o.read += int64(n)
	return n, err
}

// checksum sums what has not been read yet and returns the sum of the whole file, or
// an error if the file is not the one that was opened any more.
func (o *opened) checksum(ctx context.Context) (string, error) {
	buf := make([]byte, aheadBlock)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		_, err := o.Read(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", unreadable(err, "read file", o.full)
		}
	}
	if err := o.changed(); err != nil {
		return "", err
	}
	if o.read != o.size {
		return "", changing(fmt.Sprintf("it had %d bytes when it was opened and %d were read", o.size, o.read))
	}
	return hex.EncodeToString(o.sum.Sum(nil)), nil
}

// changed sees that the path still leads to a file of the size and time of the one
// that was opened.
func (o *opened) changed() error {
	now, err := os.Stat(o.full)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return changing(fmt.Sprintf("it had %d bytes when it was opened and is gone now", o.size))
	case err != nil:
		return unreadable(err, "look at file", o.full)
	case now.Size() != o.size || !now.ModTime().Equal(o.modified):
		return changing(fmt.Sprintf("it had %d bytes of %s when it was opened and has %d of %s now",
			o.size, stamp(o.modified), now.Size(), stamp(now.ModTime())))
	}
	return nil
}

// changing is the refusal of a file that is written to while it is read.
type changing string

func (c changing) Error() string { return "the file changed while it was read: " + string(c) }

const changingRemedy = "write files under a name that the glob does not match (.name or _name) and rename them when they are complete; " +
	"nothing of this file was kept, so start again when it is complete"

// decompressed returns the file's content by the ending of its name.
func (o *opened) decompressed() (io.Reader, error) {
	ending, known := compressionOf(o.path)
	if !known {
		return nil, fault.Refuse("decompress it, or compress it as .gz or .bz2", "files ending in %s cannot be read", ending)
	}
	if ending == "" {
		return o, nil
	}
	r, err := compressions[ending](o)
	if err != nil {
		return nil, brokenCompression(ending, err)
	}
	return compressed{r, ending}, nil
}

// compressed names the compression in its errors.
type compressed struct {
	io.Reader
	ending string
}

func (c compressed) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if err != nil && err != io.EOF {
		err = brokenCompression(c.ending, err)
	}
	return n, err
}

// unreadableContent is a flaw of a file below its records.
type unreadableContent string

func (u unreadableContent) Error() string { return string(u) }

func brokenCompression(ending string, err error) error {
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return unreadableContent("the compressed data (" + ending + ") end in the middle")
	}
	return unreadableContent("the compressed data (" + ending + ") are damaged, or they are not of that kind")
}

// ahead reads on in a goroutine while the caller works on what it has. close must be
// called, and waits for it.
type ahead struct {
	filled, empty chan []byte
	err           error // set before filled is closed
	stop          context.CancelFunc
	done          sync.WaitGroup
	now, rest     []byte
}

func readAhead(ctx context.Context, r io.Reader) *ahead {
	ctx, stop := context.WithCancel(ctx)
	a := &ahead{filled: make(chan []byte, aheadBlocks), empty: make(chan []byte, aheadBlocks), stop: stop}
	for range aheadBlocks {
		a.empty <- make([]byte, aheadBlock)
	}
	a.done.Go(func() { a.run(ctx, r) })
	return a
}

func (a *ahead) run(ctx context.Context, r io.Reader) {
	defer close(a.filled)
	for {
		var block []byte
		select {
		case block = <-a.empty:
		case <-ctx.Done():
			a.err = ctx.Err()
			return
		}
		n, err := io.ReadFull(r, block)
		if n > 0 {
			a.filled <- block[:n] // there are as many places as blocks
		}
		if err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		if err != nil {
			a.err = err
			return
		}
	}
}

// Read implements io.Reader.
func (a *ahead) Read(b []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.now != nil {
			a.empty <- a.now[:cap(a.now)]
			a.now = nil
		}
		block, ok := <-a.filled
		if !ok {
			return 0, a.err
		}
		a.now, a.rest = block, block
	}
	n := copy(b, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

func (a *ahead) close() {
	a.stop()
	a.done.Wait()
}

// window is a stretch of a file's content in memory: records are found in it, and
// what is missing of the last one is read behind it.
type window struct {
	r      io.Reader
	buf    []byte
	start  int   // of what has not been consumed
	offset int64 // of buf[0] in the content
	line   int64 // of buf[start], from 1
	eof    bool
}

const (
	windowBytes = 256 << 10
	maxRecord   = 64 << 20 // beyond it a file has lost a line feed or a quote, rather than that a record is so large
)

var errRecordTooLong = errors.New("the record is longer than 64 MiB")

func newWindow(r io.Reader, size int64) *window {
	return &window{r: r, buf: make([]byte, 0, min(max(size+1, 512), windowBytes)), line: 1}
}

// fill reads more behind what is there; at the end it sets eof. The unconsumed part
// may move to the front.
func (w *window) fill() error {
	if w.start > 0 {
		n := copy(w.buf, w.buf[w.start:])
		w.offset += int64(w.start)
		w.buf, w.start = w.buf[:n], 0
	}
	if len(w.buf) > maxRecord {
		return errRecordTooLong
	}
	if len(w.buf) == cap(w.buf) {
		w.buf = append(make([]byte, 0, min(2*cap(w.buf), maxRecord+windowBytes)), w.buf...)
	}
	// Filled to its end, so that a record that needs many fills is looked at in
	// stretches that double.
	n, err := io.ReadFull(w.r, w.buf[len(w.buf):cap(w.buf)])
	w.buf = w.buf[:len(w.buf)+n]
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		w.eof = true
		return nil
	}
	return err
}

// skipBOM passes over a byte order mark at the beginning.
func (w *window) skipBOM() error {
	for len(w.buf) < 4 && !w.eof {
		if err := w.fill(); err != nil {
			return err
		}
	}
	switch {
	case bytes.HasPrefix(w.buf, []byte("\xef\xbb\xbf")):
		w.start = 3
	case bytes.HasPrefix(w.buf, []byte("\xff\xfe")), bytes.HasPrefix(w.buf, []byte("\xfe\xff")):
		return unreadableContent("the file is UTF-16; it must be UTF-8")
	case bytes.HasPrefix(w.buf, []byte("PAR1")):
		return unreadableContent("the file is Parquet")
	case bytes.HasPrefix(w.buf, []byte("\x1f\x8b")):
		return unreadableContent("the file is compressed by gzip, but its name does not end in .gz")
	}
	return nil
}
