package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"tailrace/internal/change"
)

// piece is what is gathered of one file for one segment.
type piece struct {
	tx    change.Tx
	bytes int
}

// take hands on one file as a transaction. false: it is gone, or is being written to
// again, and nothing was handed on. more tells that other files follow at once.
func (f *follower) take(ctx context.Context, l *layout, file found, more bool) (taken bool, err error) {
	o, err := file.open()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, explain(l.rel, file, err)
	}
	defer o.file.Close()
	if o.size != file.size || !o.modified.Equal(file.modified) {
		return false, nil
	}
	bad := func(err error) (bool, error) {
		// What looks cut off or damaged may just have been written to.
		if moved := o.changed(); moved != nil && ctx.Err() == nil {
			err = moved
		}
		return false, explain(l.rel, file, err)
	}
	d, err := decode(ctx, o, l)
	if err != nil {
		return bad(err)
	}
	defer d.close()

	now := f.source.now().UTC().Truncate(time.Microsecond)
	number := change.Position{Offset: f.count + 1}
	p := piece{tx: change.Tx{First: true, XID: uint32(number.Offset), Begin: number, CommitTime: now, Path: orderKey(l.rel, file)}}
	rows := int64(0)
	for {
		row, ordinal, err := d.next(&f.slab)
		if err == io.EOF {
			break
		}
		if err != nil {
			return bad(err)
		}
		if p.bytes >= f.pieceMost {
			if err := f.handOn(ctx, &p, now.Sub(o.modified)); err != nil {
				return false, err
			}
		}
		p.tx.Changes = append(p.tx.Changes, change.Change{Op: change.Insert, Ordinal: ordinal, Table: l.table, New: row})
		p.bytes += len(row) + changeBytes
		rows++
	}
	sum, err := o.checksum(ctx)
	if err != nil {
		return false, explain(l.rel, file, err)
	}
	p.tx.Last, p.tx.End = true, number
	p.tx.File = &change.File{Relation: l.table.Name, Path: file.path, Size: o.size, Modified: o.modified.UTC().Truncate(time.Microsecond), Checksum: sum, Rows: rows}
	age := time.Duration(0)
	if more {
		age = now.Sub(o.modified)
	}
	known := *p.tx.File
	if err := f.handOn(ctx, &p, age); err != nil {
		return false, err
	}
	f.count++
	f.taken[fileKey{l.rel.Name, file.path}] = &known
	return true, nil
}

// handOn gives a piece to the caller and makes p the next one.
func (f *follower) handOn(ctx context.Context, p *piece, age time.Duration) error {
	seg := &change.Segment{Txs: []change.Tx{p.tx}, Bytes: p.bytes + changeBytes, Age: max(age, 0)}
	if !p.tx.Last {
		p.tx.First, p.bytes = false, 0
		p.tx.Changes = make([]change.Change, 0, len(p.tx.Changes))
	}
	return f.out(ctx, seg)
}

// orderKey is the file's place in the order of files, as bytes compare. A time before
// 1970 counts as 1970.
func orderKey(rel *relation, file found) string {
	if rel.Order != ByTime {
		return file.path
	}
	return fmt.Sprintf("%020d/%s", max(file.modified.UnixMicro(), 0), file.path)
}
