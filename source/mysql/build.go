package mysql

import (
	"time"
	"unsafe"

	"tailrace/internal/change"
)

// Bounds of a segment. It is handed on earlier, as soon as nothing more has been read:
// these only cut a backlog into portions that keep the next stage busy while the next
// portion is read.
const (
	segmentBytes   = 1 << 20
	segmentTxs     = 4096
	segmentChanges = 16384
)

// defaultPiece is where a transaction is cut if nobody says.
const defaultPiece = 4 << 20

const (
	changeBytes = int(unsafe.Sizeof(change.Change{}))
	txBytes     = int(unsafe.Sizeof(change.Tx{}))
)

// builder gathers what is read into segments of whole transactions. All changes of a
// segment lie in one slice; the transactions' parts of it are cut at the end, when it no
// longer moves.
type builder struct {
	pieceBytes int

	txs     []pending       // complete transactions and pieces
	changes []change.Change // theirs, then those of the open transaction
	bytes   int             // held by the complete ones

	open      bool      // inside a transaction
	current   change.Tx // the open transaction
	currentAt int       // where its changes begin
	held      int       // bytes held by them
	ordinal   uint64    // of its next change
	cut       bool      // a piece of it was handed on

	end   change.Position // of the newest complete transaction or quiet point
	quiet change.Position // a quiet point beyond end, not handed on yet; zero: none
	hint  int             // changes in the last segment: room for the next
}

// pending is a transaction with the place of its changes.
type pending struct {
	tx     change.Tx
	lo, hi int
}

func (b *builder) begin(at change.Position, xid uint32, when time.Time) {
	b.open, b.cut, b.ordinal, b.held = true, false, 0, 0
	b.current = change.Tx{XID: xid, Begin: at, CommitTime: when}
	b.currentAt = len(b.changes)
}

// add appends a change of the open transaction; size is the memory of its rows.
func (b *builder) add(c change.Change, size int) {
	if b.changes == nil {
		b.changes = make([]change.Change, 0, max(16, min(b.hint, segmentChanges)))
	}
	c.Ordinal = b.ordinal
	b.ordinal++
	b.changes = append(b.changes, c)
	b.held += size + changeBytes
}

// back takes back the changes since the n-th, which were undone. It reports whether all
// of them were still here.
func (b *builder) back(n uint64) bool {
	gone := int(b.ordinal - n)
	if gone > len(b.changes)-b.currentAt {
		return false
	}
	b.changes = b.changes[:len(b.changes)-gone]
	b.ordinal = n
	return true
}

// commit completes the open transaction. One without changes is a quiet point.
func (b *builder) commit(end change.Position, resume string) {
	b.open = false
	if b.ordinal == 0 {
		b.quietAt(end)
		return
	}
	b.current.End, b.current.Resume = end, resume
	b.push(true)
	b.end = end
}

// piece closes a part of the open transaction, which goes on.
func (b *builder) piece() {
	b.push(false)
	b.cut = true
	b.currentAt, b.held = len(b.changes), 0
}

func (b *builder) push(last bool) {
	tx := b.current
	tx.First, tx.Last = !b.cut, last
	b.txs = append(b.txs, pending{tx, b.currentAt, len(b.changes)})
	b.bytes += b.held + txBytes
}

// quietAt notes that the log up to p holds nothing more for us.
func (b *builder) quietAt(p change.Position) {
	if b.end.Before(p) && b.quiet.Before(p) {
		b.quiet = p
	}
}

// tooBig reports whether the open transaction must be cut.
func (b *builder) tooBig() bool { return b.open && b.held >= b.pieceBytes }

// full reports whether the complete transactions are enough for a segment.
func (b *builder) full() bool {
	return b.bytes >= segmentBytes || len(b.txs) >= segmentTxs ||
		len(b.txs) > 0 && b.txs[len(b.txs)-1].hi >= segmentChanges
}

// take returns what is complete as a segment, with the quiet point behind it if there is
// one; nil if there is nothing. A quiet point alone is taken only if alone is true.
// resume is the resume position at the quiet point.
func (b *builder) take(alone bool, resume string) *change.Segment {
	if len(b.txs) == 0 && (!alone || b.quiet.IsZero()) {
		return nil
	}
	done := len(b.changes)
	if b.open {
		done = b.currentAt
	}
	if b.end.Before(b.quiet) && !(b.open && b.cut) {
		b.txs = append(b.txs, pending{change.Tx{First: true, Last: true, End: b.quiet, Resume: resume}, done, done})
		b.bytes += txBytes
		b.end = b.quiet
	}
	b.quiet = change.Position{}
	seg := &change.Segment{Txs: make([]change.Tx, len(b.txs)), Bytes: b.bytes}
	for i, p := range b.txs {
		seg.Txs[i] = p.tx
		if p.lo < p.hi {
			seg.Txs[i].Changes = b.changes[p.lo:p.hi:p.hi]
		}
	}
	b.hint = done
	rest := b.changes[done:]
	b.changes = nil
	if len(rest) > 0 {
		b.changes = append(make([]change.Change, 0, max(2*len(rest), min(b.hint, segmentChanges))), rest...)
	}
	b.currentAt, b.txs, b.bytes = 0, b.txs[:0], 0
	return seg
}
