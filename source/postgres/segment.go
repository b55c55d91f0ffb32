package postgres

import (
	"time"
	"unsafe"

	"tailrace/internal/change"
)

// Bounds of a segment. It is handed on earlier, as soon as nothing more has been
// read: these only cut a backlog into portions that keep the next stage busy
// while the next portion is read.
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

// builder gathers what is read into segments of whole transactions.
//
// Rows are slices of the buffers they were read into; those belong to the
// segments from then on (window allocates new ones), so no row is copied and none
// is allocated. All changes of a segment lie in one slice, grown as usual; the
// transactions' parts of it are cut at the end, when it no longer moves.
type builder struct {
	pieceBytes int

	txs     []pending       // complete transactions, pieces and quiet points
	changes []change.Change // theirs, then those of the open transaction
	bytes   int             // held by the complete ones

	open      bool      // between BEGIN and COMMIT
	current   change.Tx // the open transaction
	currentAt int       // where its changes begin
	held      int       // bytes held by them
	ordinal   uint64    // of its next change
	cut       bool      // a piece of it was handed on

	end   uint64 // of the newest complete transaction or quiet point
	quiet uint64 // a quiet point beyond end, not handed on yet; 0: none
	hint  int    // changes in the last segment: room for the next
}

// pending is a transaction with the place of its changes.
type pending struct {
	tx     change.Tx
	lo, hi int
}

func (b *builder) begin(lsn uint64, xid uint32, at time.Time) {
	b.open, b.cut, b.ordinal, b.held = true, false, 0, 0
	b.current = change.Tx{XID: xid, Begin: change.LSN(lsn), CommitTime: at}
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

// commit completes the open transaction. One without changes is a quiet point.
func (b *builder) commit(end uint64) {
	b.open = false
	if b.ordinal == 0 {
		b.quietAt(end)
		return
	}
	b.current.End = change.LSN(end)
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

// quietAt notes that the log up to lsn holds nothing more for us.
func (b *builder) quietAt(lsn uint64) {
	if lsn > b.end && lsn > b.quiet {
		b.quiet = lsn
	}
}

// tooBig reports whether the open transaction must be cut.
func (b *builder) tooBig() bool { return b.open && b.held >= b.pieceBytes }

// full reports whether the complete transactions are enough for a segment.
func (b *builder) full() bool {
	return b.bytes >= segmentBytes || len(b.txs) >= segmentTxs ||
		len(b.txs) > 0 && b.txs[len(b.txs)-1].hi >= segmentChanges
}

// take returns what is complete as a segment, with the quiet point behind it if
// there is one; nil if there is nothing. A quiet point alone is taken only if
// alone is true.
func (b *builder) take(alone bool) *change.Segment {
	if len(b.txs) == 0 && !(alone && b.quiet != 0) {
		return nil
	}
	if b.quiet > b.end { // noted before the open transaction began
		at := change.LSN(b.quiet)
		done := len(b.changes)
		if b.open {
			done = b.currentAt
		}
		if !b.cut || !b.open {
			b.txs = append(b.txs, pending{change.Tx{First: true, Last: true, End: at}, done, done})
			b.bytes += txBytes
			b.end = b.quiet
		}
	}
	b.quiet = 0
	done := len(b.changes)
	if b.open {
		done = b.currentAt
	}
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
