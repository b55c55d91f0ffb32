package checkpoint

import "time"

// Point is a rewind point: a moment to which targets can be restored, with everything that
// is remembered of them (promise I7).
type Point struct {
	// Number counts the points of a pipeline from 1 on; no number is given twice.
	Number int64
	// Mark is the mark as it was: position, resume, commit time, source, tables and flows.
	// Its Epoch means nothing.
	Mark  Mark
	Label string    // of one that was asked for; may be empty, and need not be unique
	Made  time.Time // by the destination's clock

	// Gone: the pipeline was rewound to an earlier point. It is no choice any more, and
	// stays only because the numbers behind it go on.
	Gone bool

	// Bytes is about how much the destination keeps for it: what was changed between this
	// point and the next, as it was.
	Bytes int64
}
