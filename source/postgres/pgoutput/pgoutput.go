// Package pgoutput reads the messages of PostgreSQL's built-in logical decoding
// plugin (documentation: "Logical Replication Message Formats"), protocol
// versions 1 and 2.
//
// A Message is filled anew by each Parse and shares the memory it was parsed
// from, so nothing is allocated for a row. A tuple's bytes after its column count
// are exactly a change.Row: it is walked once, to find its end and to prove it
// well formed, and handed on as it is. No input makes Parse panic.
//
// Protocol 2 adds messages around transactions that are sent while they are open,
// in blocks (stream start, stop, commit, abort), and, inside these blocks only, a
// transaction id after the kind byte, which Streamed takes out. Protocols 3 and 4
// (two-phase, parallel streaming) are never asked for: what they add is ErrUnknown
// here.
package pgoutput

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"tailrace/internal/change"
)

// Kind is the first byte of a message.
type Kind byte

const (
	Begin    Kind = 'B'
	Commit   Kind = 'C'
	Origin   Kind = 'O'
	Relation Kind = 'R'
	Type     Kind = 'Y'
	Insert   Kind = 'I'
	Update   Kind = 'U'
	Delete   Kind = 'D'
	Truncate Kind = 'T'
	Logical  Kind = 'M' // pg_logical_emit_message

	StreamStart  Kind = 'S' // a block of a transaction that is open begins
	StreamStop   Kind = 'E' // it ends
	StreamCommit Kind = 'c' // outside of blocks: the transaction is whole
	StreamAbort  Kind = 'A' // outside of blocks: it, or a subtransaction of it, is undone
)

// ErrMalformed says that bytes are not a message of their kind: cut off, too
// long, or with an impossible value inside.
var ErrMalformed = errors.New("malformed pgoutput message")

// ErrUnknown says that a message is of a kind protocol 2 does not have.
var ErrUnknown = errors.New("unknown kind of pgoutput message")

// Message is one message; which fields mean something depends on Kind.
type Message struct {
	Kind Kind

	// Begin: LSN is the final LSN (the start of the commit record), Time the commit's.
	// Commit, StreamCommit: LSN is the start and End the end of the commit record.
	// StreamStart, StreamCommit, StreamAbort: XID is the transaction's. Origin: LSN is the commit's on the origin. Logical: LSN is the message's own.
	LSN  uint64
	End  uint64
	Time int64 // µs since 2000-01-01 UTC; see Instant
	XID  uint32

	// StreamAbort: what is undone: XID itself or a subtransaction of it.
	SubXID uint32
	// StreamStart: the transaction's first block.
	First bool

	// Insert, Update, Delete: the relation's OID and the row images. Old is nil if
	// none was sent; OldIsKey says that it holds the identity columns only, with NULL
	// in place of the others. The counts are the images' numbers of columns.
	Rel              uint32
	Old, New         change.Row
	OldIsKey         bool
	OldCols, NewCols int

	// Truncate.
	Rels            []uint32
	Cascade         bool
	RestartIdentity bool

	// Relation; its slice of columns is used again by the next Parse.
	Layout Layout

	// Type: OID, schema and name of a type that is not built in. Origin: Name.
	TypeID       uint32
	Schema, Name string

	// Logical.
	Transactional bool
	Prefix        string
	Content       []byte
}

// Layout is a Relation message: how the tuples that follow are laid out.
type Layout struct {
	ID       uint32
	Schema   string // empty in the message for pg_catalog; given here in full
	Name     string
	Identity change.Identity
	Columns  []Column
}

// Column is one column of a Layout.
type Column struct {
	Key      bool // part of the replica identity
	Name     string
	TypeID   uint32
	Modifier int32 // the type modifier (atttypmod); -1: none
}

// epoch is PostgreSQL's zero time in Unix microseconds.
const epoch = 946684800 * 1_000_000

// Instant converts a PostgreSQL timestamp in µs to UTC.
func Instant(us int64) time.Time { return time.UnixMicro(us + epoch).UTC() }

// Micros converts an instant to PostgreSQL's µs.
func Micros(t time.Time) int64 { return t.UnixMicro() - epoch }

// Parse reads one message into m. Strings and rows share data's memory, except
// those of a Relation or Type message, which are copies.
func Parse(data []byte, m *Message) error {
	if len(data) == 0 {
		return fmt.Errorf("%w: empty", ErrMalformed)
	}
	m.Kind = Kind(data[0])
	r := reader{b: data[1:]}
	switch m.Kind {
	case Insert:
		m.Rel = r.uint32()
		m.Old, m.OldCols, m.OldIsKey = nil, 0, false
		if r.byte() != 'N' {
			r.bad = true
		}
		m.New, m.NewCols = r.tuple()
	case Update:
		m.Rel = r.uint32()
		m.Old, m.OldCols, m.OldIsKey = nil, 0, false
		mark := r.byte()
		if mark == 'K' || mark == 'O' {
			m.OldIsKey = mark == 'K'
			m.Old, m.OldCols = r.tuple()
			mark = r.byte()
		}
		if mark != 'N' {
			r.bad = true
		}
		m.New, m.NewCols = r.tuple()
	case Delete:
		m.Rel = r.uint32()
		m.New, m.NewCols = nil, 0
		mark := r.byte()
		if mark != 'K' && mark != 'O' {
			r.bad = true
		}
		m.OldIsKey = mark == 'K'
		m.Old, m.OldCols = r.tuple()
	case Begin:
		m.LSN, m.Time, m.XID = r.uint64(), int64(r.uint64()), r.uint32()
	case Commit:
		r.byte() // flags, unused
		m.LSN, m.End, m.Time = r.uint64(), r.uint64(), int64(r.uint64())
	case StreamStart:
		m.XID, m.First = r.uint32(), r.byte() == 1
	case StreamStop:
	case StreamCommit:
		m.XID = r.uint32()
		r.byte() // flags, unused
		m.LSN, m.End, m.Time = r.uint64(), r.uint64(), int64(r.uint64())
	case StreamAbort:
		m.XID, m.SubXID = r.uint32(), r.uint32()
	case Origin:
		m.LSN, m.Name = r.uint64(), string(r.text())
	case Relation:
		r.layout(&m.Layout)
	case Type:
		m.TypeID, m.Schema, m.Name = r.uint32(), schemaName(r.text()), string(r.text())
	case Truncate:
		r.truncate(m)
	case Logical:
		m.Transactional = r.byte() != 0
		m.LSN, m.Prefix = r.uint64(), string(r.text())
		m.Content = r.take(r.uint32())
	default:
		return fmt.Errorf("%w: %q", ErrUnknown, data[0])
	}
	if r.bad || len(r.b) != 0 {
		return fmt.Errorf("%w of kind %q, %d bytes", ErrMalformed, data[0], len(data))
	}
	return nil
}

// Streamed splits a message inside a block of an open transaction: the transaction
// or subtransaction that it belongs to, and its body behind the kind and this id.
// The kind's byte and the body are the message as Parse reads it. An Origin has no
// id: xid is 0.
func Streamed(data []byte) (xid uint32, body []byte, err error) {
	if len(data) == 0 {
		return 0, nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	switch Kind(data[0]) {
	case Insert, Update, Delete, Truncate, Relation, Type, Logical:
	case Origin:
		return 0, data[1:], nil
	default:
		return 0, nil, fmt.Errorf("%w: %q inside a block of an open transaction", ErrUnknown, data[0])
	}
	if len(data) < 5 {
		return 0, nil, fmt.Errorf("%w of kind %q, %d bytes", ErrMalformed, data[0], len(data))
	}
	return binary.BigEndian.Uint32(data[1:]), data[5:], nil
}

// reader takes fields off the front; after the first impossible one it is bad
// and gives zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() {
	r.bad, r.b = true, nil
}

func (r *reader) byte() byte {
	if len(r.b) < 1 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uint16() uint16 {
	if len(r.b) < 2 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint16(r.b)
	r.b = r.b[2:]
	return v
}

func (r *reader) uint32() uint32 {
	if len(r.b) < 4 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint32(r.b)
	r.b = r.b[4:]
	return v
}

func (r *reader) uint64() uint64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) take(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// text takes a string that ends with a zero byte.
func (r *reader) text() []byte {
	for i, c := range r.b {
		if c == 0 {
			v := r.b[:i]
			r.b = r.b[i+1:]
			return v
		}
	}
	r.fail()
	return nil
}

// tuple takes a TupleData: the number of columns, then the row.
func (r *reader) tuple() (change.Row, int) {
	n := int(r.uint16())
	b, at := r.b, 0
	for range n {
		if at >= len(b) {
			r.fail()
			return nil, 0
		}
		switch change.State(b[at]) {
		case change.Null, change.Absent:
			at++
		case change.AsText, change.Binary:
			if len(b)-at < 5 {
				r.fail()
				return nil, 0
			}
			size := uint64(binary.BigEndian.Uint32(b[at+1:]))
			if size > uint64(len(b)-at-5) {
				r.fail()
				return nil, 0
			}
			at += 5 + int(size)
		default:
			r.fail()
			return nil, 0
		}
	}
	r.b = b[at:]
	return change.Row(b[:at:at]), n
}

func (r *reader) layout(l *Layout) {
	l.ID = r.uint32()
	l.Schema, l.Name = schemaName(r.text()), string(r.text())
	l.Identity = change.Identity(r.byte())
	switch l.Identity {
	case change.IdentityDefault, change.IdentityIndex, change.IdentityFull, change.IdentityNothing:
	default:
		r.fail()
	}
	n := int(r.uint16())
	if n*10 > len(r.b) { // flags, one zero byte, type, modifier: at least 10 bytes a column
		r.fail()
		n = 0
	}
	l.Columns = l.Columns[:0]
	for range n {
		c := Column{Key: r.byte()&1 != 0, Name: string(r.text())}
		c.TypeID, c.Modifier = r.uint32(), int32(r.uint32())
		l.Columns = append(l.Columns, c)
	}
}

func (r *reader) truncate(m *Message) {
	n := r.uint32()
	options := r.byte()
	m.Cascade, m.RestartIdentity = options&1 != 0, options&2 != 0
	m.Rels = m.Rels[:0]
	if uint64(n)*4 > uint64(len(r.b)) {
		r.fail()
		return
	}
	for range n {
		m.Rels = append(m.Rels, r.uint32())
	}
}

func schemaName(b []byte) string {
	if len(b) == 0 {
		return "pg_catalog"
	}
	return string(b)
}
