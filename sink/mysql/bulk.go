package mysql

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"

	driver "github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// Many rows go by one of two roads: as the list of a statement, some hundred at once, or
// by LOAD DATA, which is half as fast again, where the server permits that and the list
// is long enough to be worth its two round trips.
//
// With LOCAL the server cannot stop our sending, so that it takes what is wrong with a
// row for a warning and goes on. So its warnings are looked at, and any is an error.
const (
	statementBytes = 1 << 20 // of one statement: the server parses it in one piece
	statementRows  = 1000    // in one statement: measured, more gains nothing
	loadRows       = 500     // from here on by LOAD DATA
	loadBytes      = 256 << 10
)

// list is a statement with a list of items, which is sent in parts.
type list struct {
	s          *session
	sh         *shape
	doing      string
	head, tail string
	buf        []byte
	begun      int   // where the present item begins
	items      int   // in the present part
	counts     bool  // the statement reads one number
	sent       int64 // items of the parts sent
	met        int64 // rows that the parts have met, or the sum of the numbers
}

func newList(s *session, sh *shape, head, tail, doing string) *list {
	return &list{s: s, sh: sh, doing: doing, head: head, tail: tail, buf: append(make([]byte, 0, 4096), head...)}
}

func (a *applier) list(head, tail string, sh *shape, doing string) *list {
	return newList(a.s, sh, head, tail, doing)
}

// open begins an item; what is appended to buf until end is its inside.
func (l *list) open() {
	if l.items > 0 {
		l.buf = append(l.buf, ',')
	}
	l.begun = len(l.buf)
	l.buf = append(l.buf, '(')
}

// item is open with a text.
func (l *list) item(inside string) {
	l.open()
	l.buf = append(l.buf, inside...)
}

// end closes an item, and sends the part if it is large enough. An item that would make
// it too large for the server waits for the next one.
func (l *list) end(ctx context.Context) error {
	l.buf = append(l.buf, ')')
	l.items++
	if len(l.buf)+len(l.tail) >= l.s.server.packet-1024 && l.items > 1 {
		last := append([]byte(nil), l.buf[l.begun:]...)
		l.buf, l.items = l.buf[:l.begun-1], l.items-1
		if err := l.flush(ctx); err != nil {
			return err
		}
		l.buf, l.items = append(l.buf, last...), 1
	}
	if len(l.buf) >= statementBytes || l.items >= statementRows {
		return l.flush(ctx)
	}
	return nil
}

// flush sends the present part.
func (l *list) flush(ctx context.Context) error {
	if l.items == 0 {
		return nil
	}
	l.buf = append(l.buf, l.tail...)
	if len(l.buf) >= l.s.server.packet-1024 {
		return &jobError{l.doing, l.sh, tooLarge}
	}
	if l.counts {
		rows, err := l.s.query(ctx, text(l.buf))
		if err != nil {
			return &jobError{l.doing, l.sh, err}
		}
		l.met += num(rows[0][0])
	} else {
		n, err := l.s.exec(ctx, text(l.buf))
		if err != nil {
			return &jobError{l.doing, l.sh, err}
		}
		l.met += n
	}
	l.sent += int64(l.items)
	l.buf, l.items = l.buf[:len(l.head)], 0
	return nil
}

// encoder writes rows of a shape. Its memory is used again for each.
type encoder struct {
	sh      *shape
	scratch []byte
	values  []change.Value
}

// parse splits a row into values. Only with gaps may columns be absent.
func (e *encoder) parse(row change.Row, gaps bool) error {
	var err error
	if e.values, err = row.Values(e.values, len(e.sh.columns)); err != nil {
		return e.torn(err)
	}
	if !gaps {
		for i := range e.values {
			if e.values[i].State == change.Absent {
				return fault.Corrupted("%s: column %s of a complete row was not sent", e.sh.label(), e.sh.columns[i].plain)
			}
		}
	}
	return nil
}

func (e *encoder) torn(err error) error {
	return fault.Corrupted("%s: a row of %d columns: %v", e.sh.label(), len(e.sh.columns), err)
}

// constant appends a value as a constant.
func (e *encoder) constant(dst []byte, c *column, v change.Value) ([]byte, error) {
	if v.State == change.Null || v.State == change.Absent {
		return append(dst, "NULL"...), nil
	}
	data, rest, err := c.payload(e.scratch[:0], v)
	e.scratch = rest
	if err != nil {
		return dst, err
	}
	return c.appendConstant(dst, data), nil
}

// constants appends the values of the columns that want wants, separated by commas.
func (e *encoder) constants(dst []byte, want func(*column) bool, values []change.Value) ([]byte, error) {
	var err error
	first := true
	for i := range e.sh.columns {
		c := &e.sh.columns[i]
		if c.generated || !want(c) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if dst, err = e.constant(dst, c, values[i]); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// field appends a value as a field of LOAD DATA.
func (e *encoder) field(dst []byte, c *column, v change.Value) ([]byte, error) {
	if v.State == change.Null || v.State == change.Absent {
		return append(dst, '\\', 'N'), nil
	}
	data, rest, err := c.payload(e.scratch[:0], v)
	e.scratch = rest
	if err != nil {
		return dst, err
	}
	return appendEscaped(dst, data), nil
}

// line appends a row as a line of LOAD DATA; bounds are a version's start and end.
func (e *encoder) line(dst []byte, values []change.Value, bounds ...change.Value) ([]byte, error) {
	var err error
	first := true
	for i := range e.sh.columns {
		c := &e.sh.columns[i]
		if c.generated {
			continue
		}
		if !first {
			dst = append(dst, '\t')
		}
		first = false
		if dst, err = e.field(dst, c, values[i]); err != nil {
			return dst, err
		}
	}
	for i, v := range bounds {
		dst = append(dst, '\t')
		if dst, err = e.field(dst, [...]*column{&e.sh.start, &e.sh.end}[i], v); err != nil {
			return dst, err
		}
	}
	return append(dst, '\n'), nil
}

// row appends a row as the inside of an item.
func (e *encoder) row(dst []byte, values []change.Value, bounds ...change.Value) ([]byte, error) {
	dst, err := e.constants(dst, all, values)
	for i, v := range bounds {
		if err == nil {
			dst, err = e.constant(append(dst, ','), [...]*column{&e.sh.start, &e.sh.end}[i], v)
		}
	}
	return dst, err
}

// lines is the stream of a LOAD DATA: next appends one more line.
type lines struct {
	next func(dst []byte) (line []byte, more bool, err error)
	buf  []byte
	at   int
	n    int64
	err  error
}

func (l *lines) Read(p []byte) (int, error) {
	if l.at == len(l.buf) {
		l.buf, l.at = l.buf[:0], 0
		for len(l.buf) < loadBytes && l.err == nil {
			var more bool
			if l.buf, more, l.err = l.next(l.buf); l.err == nil && !more {
				l.err = io.EOF
			} else if more {
				l.n++
			}
		}
		if len(l.buf) == 0 || l.err != nil && l.err != io.EOF {
			return 0, l.err
		}
	}
	n := copy(p, l.buf[l.at:])
	l.at += n
	return n, nil
}

// load sends lines by a LOAD DATA statement, which makeSQL makes for the name of its
// reader, and returns how many rows it has sent and met.
func load(ctx context.Context, s *session, sh *shape, doing string, makeSQL func(reader string) string, next func(dst []byte) ([]byte, bool, error)) (sent, met int64, err error) {
	var b [8]byte
	rand.Read(b[:])
	name := "tailrace" + hex.EncodeToString(b[:])
	in := &lines{next: next}
	driver.RegisterReaderHandler(name, func() io.Reader { return in })
	defer driver.DeregisterReaderHandler(name)
	met, err = s.exec(ctx, makeSQL(name))
	if in.err != nil && in.err != io.EOF {
		return 0, 0, in.err // the stream's own error, before what the server says of its end
	}
	if err != nil {
		return 0, 0, &jobError{doing, sh, err}
	}
	rows, err := s.query(ctx, "SHOW WARNINGS LIMIT 1")
	if err == nil && len(rows) > 0 {
		err = &driver.MySQLError{Number: uint16(num(rows[0][1])), Message: str(rows[0][2])}
	}
	if err != nil {
		return 0, 0, &jobError{doing, sh, err}
	}
	return in.n, met, nil
}
