package sequenced

import (
	"encoding/binary"
	"errors"

	"tailrace/internal/change"
	"tailrace/scd"
)

// Event is one event of a key, as a flow's definition made it from a source row.
type Event struct {
	Key    scd.Key
	Place  Place
	Delete bool
	Row    change.Row   // the target's columns; Absent: this event does not write the column (rules R45-R52). nil for a delete
	Start  change.Value // the sequence as a value: what __START_AT shows. Type 2 and bitemporal only
	Time   int64        // commit time, µs since the Unix epoch: the clock of retention
	Origin *Origin      // what it was made from; nil unless Flow.KeepOrigin, or Behind

	// Of a bitemporal target: when it became known, as AppendSequence gives it and as a value.
	System      []byte
	SystemStart change.Value

	// Behind gives a delete its place when the batch is taken (see last.go). Until then
	// Place.Seq and Start are what delete_sequence says, in type 1 nothing.
	Behind Behind
	Base   []byte // the sequence that it is to stand behind, where the source said it; nil: it is looked up
}

// Behind says behind which event of its key a delete stands that has no sequence of
// its own.
type Behind byte

const (
	BehindNothing Behind = iota // it has one
	BehindLast                  // its flow's last event of the key in the order of the log: a DELETE statement
	BehindNewest                // the newest event of the key, if that shows a row: a TRUNCATE statement
)

// Aside is an event that a rule of its flow set aside.
type Aside struct {
	Event  Event
	Reason string // no values
	Bad    bool   // as an event that cannot take its place; else by the rule of the horizon
}

// Record is an event as a destination remembers it, in _tailrace beside the target.
// Key, Seq and At identify it; a destination compares those as bytes and reads
// nothing into Body.
type Record struct {
	Key, Seq, At []byte
	Body         []byte
	// Tombstone: a delete that nothing visible depends on; it may be forgotten when
	// its time is older than the retention (rule R18).
	Tombstone bool
	Time      int64
}

// RecordID names a Record.
type RecordID struct{ Key, Seq, At []byte }

// ID returns the record's identity.
func (r *Record) ID() RecordID { return RecordID{r.Key, r.Seq, r.At} }

func (r *Record) place() Place { return Place{Seq: r.Seq, At: r.At} }

// Lookup asks for what is stored of a key. In type 1 and bitemporal (Seq nil) that is every
// record of it. In type 2 only the suffix: every record with a sequence of Seq or
// above, and the newest one below (rule R41).
type Lookup struct {
	Key []byte
	Seq []byte
}

// Head is what is remembered of a target as a whole.
type Head struct {
	Truncated Place  // the highest truncate (rule R25)
	Horizon   []byte // the highest sequence of a delete that was forgotten (rule R18)
}

// Body layout: flags, then for each flag in order its field with a length in front.
const (
	isDelete  byte = 1 << iota
	hasRow         // the columns as the event wrote them
	hasStart       // its own sequence as a value
	hasFilled      // the columns with what was inherited, where that differs from the row
	hasRun         // the version it belongs to began earlier: sequence and value of that
	hasLast        // of the newest event of a key: see last.go
	hasSystem      // bitemporal: when it became known, for order and as a value
)

// stored is a Record taken apart. What follows Row is type 2's.
type stored struct {
	delete bool
	row    change.Row
	start  []byte
	filled change.Row // nil: as row
	runSeq []byte     // nil: it begins its version itself
	run    []byte
	last   []byte // all types: the last events in the log of flows on tables, without this one

	system, systemStart []byte // bitemporal; nil: of another kind of target
}

// size is at least what encode needs.
func (s *stored) size() int {
	return 1 + 8*binary.MaxVarintLen32 + len(s.row) + len(s.start) + len(s.filled) + len(s.runSeq) + len(s.run) + len(s.last) + len(s.system) + len(s.systemStart)
}

func (s *stored) encode(dst []byte) []byte {
	var flags byte
	if s.delete {
		flags |= isDelete
	}
	if s.row != nil {
		flags |= hasRow
	}
	if s.start != nil {
		flags |= hasStart
	}
	if s.filled != nil {
		flags |= hasFilled
	}
	if s.runSeq != nil {
		flags |= hasRun
	}
	if s.last != nil {
		flags |= hasLast
	}
	if s.system != nil {
		flags |= hasSystem
	}
	dst = append(dst, flags)
	field := func(has byte, b []byte) {
		if flags&has != 0 {
			dst = binary.AppendUvarint(dst, uint64(len(b)))
			dst = append(dst, b...)
		}
	}
	field(hasRow, s.row)
	field(hasStart, s.start)
	field(hasFilled, s.filled)
	field(hasRun, s.runSeq)
	field(hasRun, s.run)
	field(hasLast, s.last)
	field(hasSystem, s.system)
	field(hasSystem, s.systemStart)
	return dst
}

var errBody = errors.New("a remembered event cannot be read")

func decode(b []byte) (s stored, err error) {
	if len(b) == 0 {
		return s, errBody
	}
	flags := b[0]
	b = b[1:]
	field := func(has byte) []byte {
		if flags&has == 0 || err != nil {
			return nil
		}
		n, w := binary.Uvarint(b)
		if w <= 0 || n > uint64(len(b)-w) {
			err = errBody
			return nil
		}
		out := b[w : w+int(n) : w+int(n)]
		b = b[w+int(n):]
		return out
	}
	s.delete = flags&isDelete != 0
	s.row = field(hasRow)
	s.start = field(hasStart)
	s.filled = field(hasFilled)
	s.runSeq = field(hasRun)
	s.run = field(hasRun)
	s.last = field(hasLast)
	s.system = field(hasSystem)
	s.systemStart = field(hasSystem)
	if err == nil && len(b) != 0 {
		err = errBody
	}
	return s, err
}
