package mysql

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"io"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// rows takes an event of row images.
func (f *follower) rows(typ replication.EventType, data []byte, h header, before change.Position) error {
	bad := func() error { return fault.Corrupted("the log has a row event at %s that cannot be read", f.at()) }
	if len(data) < 8 {
		return bad()
	}
	l, known := f.layouts.find(uintAt(data, 6))
	if !known {
		return fault.Corrupted("the log has rows at %s of a table that it has not described", f.at())
	}
	if l.table == nil {
		return nil // not followed
	}
	data = data[8:]
	op, second, compressed := change.Insert, false, false
	switch typ {
	case replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2:
		if len(data) < 2 {
			return bad()
		}
		extra := int(binary.LittleEndian.Uint16(data)) // counts itself
		if extra < 2 || len(data) < extra {
			return bad()
		}
		data = data[extra:]
	case replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		compressed = true
	}
	switch typ {
	case replication.UPDATE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv2, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1:
		op, second = change.Update, true
	case replication.DELETE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv2, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		op = change.Delete
	}
	columns, n, ok := lengthEncoded(data)
	width := (int(columns) + 7) / 8
	if !ok || int(columns) != len(l.columns) || len(data) < n+2*width {
		return bad()
	}
	data = data[n:]
	first := newImage(data[:width], int(columns))
	data = data[width:]
	var after image
	if second {
		if len(data) < width {
			return bad()
		}
		after = newImage(data[:width], int(columns))
		data = data[width:]
	}
	written := first
	if second {
		written = after
	}
	if op != change.Delete && written.columns < len(l.columns) {
		if err := f.unsent(l, op, written); err != nil {
			return err
		}
	}
	if compressed {
		var err error
		if data, err = inflate(data); err != nil {
			return fault.Corrupted("decompress the rows at %s: %v", f.at(), err)
		}
	}
	if !f.group.open { // rows without BEGIN: a server that writes no GTIDs at all
		if err := f.open(before, gtid{}, time.Unix(int64(h.time), 0).UTC()); err != nil {
			return err
		}
		f.group.begun = true
	}
	for len(data) > 0 {
		f.arena.reserve(2*len(data) + len(l.columns)*2*fieldBytes + 4096)
		c := change.Change{Op: op, Table: l.table}
		var used int
		var err error
		switch op {
		case change.Insert:
			c.New, used, err = l.decode(&f.arena, first, data, change.Absent)
		case change.Delete:
			c.OldIsKey = first.columns < len(l.columns)
			c.Old, used, err = l.decode(&f.arena, first, data, change.Absent)
		default:
			used, err = l.update(&f.arena, &c, first, after, data)
		}
		if err == nil && used == 0 {
			err = errShort
		}
		if err != nil {
			return f.rowError(err)
		}
		data = data[used:]
		f.build.Add(c, len(c.Old)+len(c.New))
		if err := f.portion(); err != nil {
			return err
		}
	}
	return nil
}

// unsent is the loss of a table whose new rows are not in the log as they are: written by
// a session with binlog_row_image = MINIMAL.
func (f *follower) unsent(l *layout, op change.Op, im image) error {
	for i := range l.columns {
		if im.has(i) || op == change.Update && !l.columns[i].def.unlogged {
			continue
		}
		what := "an INSERT left to its default"
		if op == change.Update {
			what = "is virtual"
		}
		return f.source.lost(l.table.Name, "SET GLOBAL binlog_row_image = 'FULL' (or 'NOBLOB') on the source, also for the sessions that are open",
			"a session with binlog_row_image = MINIMAL wrote to table %s, and the log does not hold column %s, which %s", l.table.Name, l.columns[i].def.name, what)
	}
	return nil
}

func (f *follower) rowError(err error) error {
	if fault.KindOf(err) == fault.Unknown {
		return fault.Corrupted("read the rows at %s: %v", f.at(), err)
	}
	return err
}

// update reads both images of an update. Columns that the second does not have are
// unchanged: where the first has them, their values are there.
func (l *layout) update(a *arena, c *change.Change, before, after image, data []byte) (used int, err error) {
	old, n, err := l.decode(a, before, data, change.Absent)
	if err != nil {
		return 0, err
	}
	new, m, err := l.decode(a, after, data[n:], change.Absent)
	if err != nil {
		return 0, err
	}
	if after.columns < len(l.columns) {
		if new, err = l.complete(a, new, old); err != nil {
			return 0, err
		}
	}
	c.New = new
	switch {
	case before.columns == len(l.columns):
		c.Old = old
	case l.table.Identity == change.IdentityFull: // but not in the session that wrote this
		c.Old, c.OldIsKey = old, true
	case !l.keyed:
	default:
		if c.Old, err = l.formerKey(a, old, new); err != nil {
			return 0, err
		}
		c.OldIsKey = c.Old != nil
	}
	return n + m, nil
}

// complete gives new the values of old where it has none.
func (l *layout) complete(a *arena, new, old change.Row) (change.Row, error) {
	a.reserve(len(new) + len(old))
	start := len(a.buf)
	out := change.Row(a.buf)
	for range l.columns {
		var v, w change.Value
		var err error
		if v, new, err = new.Next(); err != nil {
			return nil, err
		}
		if w, old, err = old.Next(); err != nil {
			return nil, err
		}
		if v.State == change.Absent {
			v = w
		}
		out = out.Append(v)
	}
	a.buf = out
	return out[start:len(out):len(out)], nil
}

// formerKey makes the old image of an update whose first image has only some columns:
// nil if the key did not change, else the key's columns.
func (l *layout) formerKey(a *arena, old, new change.Row) (change.Row, error) {
	a.reserve(len(old) + len(l.columns))
	start := len(a.buf)
	out := change.Row(a.buf)
	changed := false
	for i := range l.columns {
		var v, w change.Value
		var err error
		if v, old, err = old.Next(); err != nil {
			return nil, err
		}
		if w, new, err = new.Next(); err != nil {
			return nil, err
		}
		if !l.columns[i].key {
			out = out.Append(change.Value{State: change.Absent})
			continue
		}
		changed = changed || !v.Equal(w)
		out = out.Append(v)
	}
	if !changed {
		return nil, nil
	}
	a.buf = out
	return out[start:len(out):len(out)], nil
}

// inflateMost bounds what a compressed event may become: the servers' own largest event.
const inflateMost = 1 << 30

// inflate decompresses the rows of a MariaDB event: a byte with the number of bytes of
// the length, the length (big endian), then zlib (log_event.cc of its source).
func inflate(data []byte) ([]byte, error) {
	if len(data) < 1 {
		return nil, errShort
	}
	n := int(data[0] & 7)
	if n == 0 || n > 4 || len(data) < 1+n {
		return nil, errShort
	}
	size := 0
	for _, b := range data[1 : 1+n] {
		size = size<<8 | int(b)
	}
	if size > inflateMost {
		return nil, errShort
	}
	r, err := zlib.NewReader(bytes.NewReader(data[1+n:]))
	if err != nil {
		return nil, err
	}
	out := make([]byte, size)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, err
	}
	return out, r.Close()
}
