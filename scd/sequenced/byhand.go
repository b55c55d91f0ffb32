package sequenced

import (
	"time"

	"tailrace/internal/change"
)

// An event that a person applies stands, at an equal sequence, behind all that the log
// held up to the mark, and before what it says later; behind every event of a file. Among
// such events the later application comes later, and in one the later line. So the same
// lines applied again are new events that change nothing, unless something else was
// written at their sequence in between.
//
// Its place is that of a row copied at the mark, with an ordinal that no copied row has:
// the highest bit, the time of applying in ms (42 bits, until the year 2109), the line.
const (
	byHand    = 1 << 63
	lineBits  = 21
	LinesMost = 1<<lineBits - 1 // lines that can be applied at once
)

// AppendByHand appends the place of an event that a person applies, while the mark is at
// a position. line counts from 1.
func AppendByHand(dst []byte, mark change.Position, at time.Time, line int, flow uint16) []byte {
	return AppendLog(dst, mark, true, byHand|uint64(at.UnixMilli())<<lineBits|uint64(line), flow)
}

// ByHand takes such a place apart; ok is false for every other.
func (s Spot) ByHand() (at time.Time, line int, ok bool) {
	if !s.Copied || s.Line&byHand == 0 {
		return at, 0, false
	}
	return time.UnixMilli(int64(s.Line &^ byHand >> lineBits)).UTC(), int(s.Line & LinesMost), true
}
