// Package segment gathers what is read of a log into segments.
package segment

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

// DefaultPiece is where a transaction is cut if nobody says, in bytes.
const DefaultPiece = 4 << 20

const (
	changeBytes = int(unsafe.Sizeof(change.Change{}))
	txBytes     = int(unsafe.Sizeof(change.Tx{}))
)

// Builder gathers what is read into segments of whole transactions.
//
// Rows are slices of the buffers they were read into; those belong to the segments from
// then on, so no row is copied and none is allocated. All changes of a segment lie in one
// slice, grown as usual; the transactions' parts of it are cut at the end, when it no
// longer moves.
type Builder struct {
	PieceBytes int // a transaction above this is cut; above 0

	txs     []pending       // complete transactions, pieces and quiet points
	changes []change.Change // theirs, then those of the open transaction
	bytes   int             // held by the complete ones

	Open      bool      // inside a transaction
	Current   change.Tx // the open transaction
	currentAt int       // where its changes begin
	held      int       // bytes held by them
	Ordinal   uint64    // of its next change
	Cut       bool      // a piece of it was handed on

	End   change.Position // of the newest complete transaction or quiet point
	Quiet change.Position // a quiet point beyond End, not handed on yet; zero: none
	hint  int             // changes in the last segment: room for the next
}

// pending is a transaction with the place of its changes.
type pending struct {
	tx     change.Tx
	lo, hi int
}

// Begin opens a transaction; at is its BEGIN's place.
func (b *Builder) Begin(at change.Position, xid uint32, when time.Time) {
	b.Open, b.Cut, b.Ordinal, b.held = true, false, 0, 0
	b.Current = change.Tx{XID: xid, Begin: at, CommitTime: when}
	b.currentAt = len(b.changes)
}

// Add appends a change of the open transaction; size is the memory of its rows.
func (b *Builder) Add(c change.Change, size int) {
	if b.changes == nil {
		b.changes = make([]change.Change, 0, max(16, min(b.hint, segmentChanges)))
	}
	c.Ordinal = b.Ordinal
	b.Ordinal++
	b.changes = append(b.changes, c)
	b.held += size + changeBytes
}

// Back takes back the changes since the n-th, which were undone. It reports whether all
// of them were still here.
func (b *Builder) Back(n uint64) bool {
	gone := int(b.Ordinal - n)
	if gone > len(b.changes)-b.currentAt {
		return false
	}
	b.changes = b.changes[:len(b.changes)-gone]
	b.Ordinal = n
	return true
}

// Commit completes the open transaction. One without changes is a quiet point.
func (b *Builder) Commit(end change.Position, resume string) {
	b.Open = false
	if b.Ordinal == 0 {
		b.QuietAt(end)
		return
	}
	b.Current.End, b.Current.Resume = end, resume
	b.push(true)
	b.End = end
}

// Piece closes a part of the open transaction, which goes on.
func (b *Builder) Piece() {
	b.push(false)
	b.Cut = true
	b.currentAt, b.held = len(b.changes), 0
}

func (b *Builder) push(last bool) {
	tx := b.Current
	tx.First, tx.Last = !b.Cut, last
	b.txs = append(b.txs, pending{tx, b.currentAt, len(b.changes)})
	b.bytes += b.held + txBytes
}

// QuietAt notes that the log up to p holds nothing more for us.
func (b *Builder) QuietAt(p change.Position) {
	if b.End.Before(p) && b.Quiet.Before(p) {
		b.Quiet = p
	}
}

// TooBig reports whether the open transaction must be cut.
func (b *Builder) TooBig() bool { return b.Open && b.held >= b.PieceBytes }

// Partial reports whether a part of the open transaction is complete, or what was read
// before it: it is to be handed on.
func (b *Builder) Partial() bool { return b.Cut && len(b.txs) > 0 }

// Full reports whether the complete transactions are enough for a segment.
func (b *Builder) Full() bool {
	return b.bytes >= segmentBytes || len(b.txs) >= segmentTxs ||
		len(b.txs) > 0 && b.txs[len(b.txs)-1].hi >= segmentChanges
}

// Take returns what is complete as a segment, with the quiet point behind it if there is
// one; nil if there is nothing. A quiet point alone is taken only if alone is true.
// resume is the resume position at the quiet point.
func (b *Builder) Take(alone bool, resume string) *change.Segment {
	if len(b.txs) == 0 && (!alone || b.Quiet.IsZero()) {
		return nil
	}
	done := len(b.changes)
	if b.Open {
		done = b.currentAt
	}
	if b.End.Before(b.Quiet) && !(b.Open && b.Cut) {
		b.txs = append(b.txs, pending{change.Tx{First: true, Last: true, End: b.Quiet, Resume: resume}, done, done})
		b.bytes += txBytes
		b.End = b.Quiet
	}
	b.Quiet = change.Position{}
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
