// Package snapdiff finds how a snapshot of a table differs from what a target holds,
// key by key, in bounded memory.
package snapdiff

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"os"

	"tailrace/internal/fault"
)

const (
	// Parts is into how many parts both sides are cut by the hash of the key. One part is
	// in memory at a time: at 32 million keys that is 250,000 of them, some 25 MB.
	Parts = 128
	// partBuffer is what a part of a side gathers before it is written: 8 MiB in all.
	partBuffer = 32 << 10
	// readBuffer is for reading one part.
	readBuffer = 1 << 20
)

// Diff compares two sides. First each side's rows are given, in any order; each is
// written to a file of the part that its key belongs to. Then Compare reads part after
// part: the target's keys into memory, the snapshot's rows past them. What differs is
// written to one more file, which Each reads. So nothing has to be known of the sizes
// beforehand, no side has to be sorted or read twice, and a caller can judge the counts
// before anything is done about the differences.
//
// Rows are compared by 128 bits of hash with seeds of their own for each Diff: two rows
// that differ are taken for equal once in 10^38. The files have no names from the moment
// they are open, so a kill leaves nothing.
//
// A Diff is used by one goroutine.
type Diff struct {
	dir    string
	seeds  [2]maphash.Seed
	sides  [3][Parts]part
	differ part
	now    Counts
	body   []byte // of the row that is read
}

// Counts are what Compare found, in rows.
type Counts struct {
	Snapshot, Held           int64 // of each side
	Same, New, Changed, Gone int64
	Dropped                  int64 // rows of the snapshot that do not count (Kept)
	DuplicateSnapshot        int64 // rows of the snapshot whose key another row of it has
	DuplicateHeld            int64 // rows of the target likewise
}

// Differs reports how many rows Each will give.
func (c Counts) Differs() int64 { return c.New + c.Changed + c.Gone }

const (
	snapshotSide = iota
	heldSide
	keptSide
)

// part is what was written to it, in order: in its file, if it outgrew its buffer, and
// behind that in the buffer. So a small snapshot never sees the disk.
type part struct {
	file   *os.File
	buffer []byte
}

// Open makes an empty one whose files lie in dir (the system's folder for such files if
// empty). Errors, of other methods too, are the operator's: dir cannot be used.
func Open(dir string) (*Diff, error) {
	if dir == "" {
		dir = os.TempDir()
	}
	d := &Diff{dir: dir, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	if info, err := os.Stat(dir); err != nil {
		return nil, d.unusable("keep a snapshot", err)
	} else if !info.IsDir() {
		return nil, d.unusable("keep a snapshot", errors.New("it is no folder"))
	}
	return d, nil
}

func (d *Diff) unusable(op string, err error) error {
	return &fault.Error{Kind: fault.Operator, Op: op + " in " + d.dir, Err: err,
		Remedy: "let source.spool_dir name a folder that this user may write and that has room for the snapshot"}
}

// append writes to a part.
func (d *Diff) append(p *part, head, body []byte) error {
	p.buffer = append(append(p.buffer, head...), body...)
	if len(p.buffer) < partBuffer {
		return nil
	}
	if p.file == nil {
		f, err := os.CreateTemp(d.dir, ".tailrace-snapshot-*")
		if err != nil {
			return d.unusable("keep a snapshot", err)
		}
		p.file = f
		if err := os.Remove(f.Name()); err != nil {
			return d.unusable("keep a snapshot", err)
		}
	}
	if _, err := p.file.Write(p.buffer); err != nil {
		return d.unusable("keep a snapshot", err)
	}
	if p.buffer = p.buffer[:0]; cap(p.buffer) > 2*partBuffer { // one large row
		p.buffer = nil
	}
	return nil
}

// reader reads a part from its start.
func (d *Diff) reader(p *part) (*bufio.Reader, error) {
	var r io.Reader = bytes.NewReader(p.buffer)
	if p.file != nil {
		if _, err := p.file.Seek(0, io.SeekStart); err != nil {
			return nil, d.unusable("read a snapshot", err)
		}
		r = io.MultiReader(p.file, r)
	}
	return bufio.NewReaderSize(r, readBuffer), nil
}

// Snapshot gives a row of the snapshot. key and form are its key and the whole row as
// both sides spell equal values; row is what Each gives back.
func (d *Diff) Snapshot(key, form, row []byte) error {
	d.now.Snapshot++
	return d.write(snapshotSide, key, form, row)
}

// Held gives a row of the target. back is what Each gives back as its key.
func (d *Diff) Held(key, form, back []byte) error {
	d.now.Held++
	return d.write(heldSide, key, form, back)
}

// Kept gives the key of a row of the snapshot that does not count: what the target holds
// of that key is no difference, unless another row of the snapshot has the key too. key
// nil: the row has none.
func (d *Diff) Kept(key []byte) error {
	d.now.Dropped++
	if key == nil {
		return nil
	}
	return d.write(keptSide, key, nil, nil)
}

type sum [2]uint64

func (d *Diff) sum(b []byte) sum {
	return sum{maphash.Bytes(d.seeds[0], b), maphash.Bytes(d.seeds[1], b)}
}

const head = 36 // two sums and a length

func (d *Diff) write(side int, key, form, body []byte) error {
	k, f := d.sum(key), d.sum(form)
	var h [head]byte
	binary.LittleEndian.PutUint64(h[0:], k[0])
	binary.LittleEndian.PutUint64(h[8:], k[1])
	binary.LittleEndian.PutUint64(h[16:], f[0])
	binary.LittleEndian.PutUint64(h[24:], f[1])
	binary.LittleEndian.PutUint32(h[32:], uint32(len(body)))
	return d.append(&d.sides[side][k[0]%Parts], h[:], body)
}

// read hands on what was written to a part. body is valid during the call only.
func (d *Diff) read(p *part, fn func(key, form sum, body []byte) error) error {
	if p.file == nil && len(p.buffer) == 0 {
		return nil
	}
	r, err := d.reader(p)
	if err != nil {
		return err
	}
	var h [head]byte
	for {
		switch _, err := io.ReadFull(r, h[:]); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return d.unusable("read a snapshot", err)
		}
		n := int(binary.LittleEndian.Uint32(h[32:]))
		if cap(d.body) < n {
			d.body = make([]byte, n+n/4)
		}
		body := d.body[:n]
		if _, err := io.ReadFull(r, body); err != nil {
			return d.unusable("read a snapshot", err)
		}
		key := sum{binary.LittleEndian.Uint64(h[0:]), binary.LittleEndian.Uint64(h[8:])}
		form := sum{binary.LittleEndian.Uint64(h[16:]), binary.LittleEndian.Uint64(h[24:])}
		if err := fn(key, form, body); err != nil {
			return err
		}
	}
}

// held is a key of the part at work.
type held struct {
	form     sum
	from, to uint32 // of the key as the target spells it
	seen     bool   // in the snapshot
}

const (
	isRow  = 0 // of the snapshot: new or changed
	isGone = 1 // a key of the target that the snapshot does not have
)

// Compare compares both sides, once. It may take long: ctx ends it.
func (d *Diff) Compare(ctx context.Context) (Counts, error) {
	c := d.now
	keys := map[sum]held{}
	var spelled []byte
	for i := range Parts {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		clear(keys)
		spelled = spelled[:0]
		err := d.read(&d.sides[heldSide][i], func(key, form sum, body []byte) error {
			if _, twice := keys[key]; twice {
				c.DuplicateHeld++
				return nil
			}
			from := uint32(len(spelled))
			spelled = append(spelled, body...)
			keys[key] = held{form: form, from: from, to: uint32(len(spelled))}
			return nil
		})
		if err != nil {
			return c, err
		}
		err = d.read(&d.sides[snapshotSide][i], func(key, form sum, body []byte) error {
			h, there := keys[key]
			if there && h.seen {
				c.DuplicateSnapshot++
				return nil
			}
			switch {
			case !there:
				c.New++
			case h.form == form:
				c.Same++
			default:
				c.Changed++
			}
			same := there && h.form == form
			h.seen = true
			keys[key] = h
			if same {
				return nil
			}
			return d.differs(isRow, body)
		})
		if err != nil {
			return c, err
		}
		err = d.read(&d.sides[keptSide][i], func(key, _ sum, _ []byte) error {
			if h, there := keys[key]; there {
				h.seen = true
				keys[key] = h
			}
			return nil
		})
		if err != nil {
			return c, err
		}
		for _, h := range keys {
			if h.seen {
				continue
			}
			c.Gone++
			if err := d.differs(isGone, spelled[h.from:h.to]); err != nil {
				return c, err
			}
		}
		d.drop(i)
	}
	return c, nil
}

// differs notes a difference: what, and its row or key.
func (d *Diff) differs(what byte, body []byte) error {
	return d.append(&d.differ, binary.AppendUvarint([]byte{what}, uint64(len(body))), body)
}

// drop gives the files of a part back.
func (d *Diff) drop(i int) {
	for side := range d.sides {
		d.sides[side][i].close()
	}
}

// Each hands on the differences that Compare found, in no order: rows of the snapshot
// that are new or changed, and the keys that it does not have. The memory is the callee's.
func (d *Diff) Each(row, gone func([]byte) error) error {
	r, err := d.reader(&d.differ)
	if err != nil {
		return err
	}
	for {
		what, err := r.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		n, short := binary.ReadUvarint(r)
		if err = errors.Join(err, short); err != nil {
			return d.unusable("read a snapshot", err)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return d.unusable("read a snapshot", err)
		}
		fn := row
		if what == isGone {
			fn = gone
		}
		if err := fn(body); err != nil {
			return err
		}
	}
}

// Close gives everything back. Safe after any error, and twice.
func (d *Diff) Close() {
	for i := range Parts {
		d.drop(i)
	}
	d.differ.close()
}

// close gives back what it holds.
func (p *part) close() {
	if p.file != nil {
		p.file.Close() // it has no name: nothing can be lost by a failure
	}
	*p = part{}
}
