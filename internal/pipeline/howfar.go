package pipeline

import (
	"sync/atomic"
	"time"

	"tailrace/hydrate"
)

// HowFar is how far an errand has come.
type HowFar struct {
	Doing  string `json:"doing"`            // "comparing"
	Target string `json:"target,omitempty"` // at which it is
	Done   int    `json:"tables_done"`
	Tables int    `json:"tables"`
	Moved  int64  `json:"moved"` // rows read on both sides, or bytes
	Of     int64  `json:"of"`    // estimate of what Moved will be in the end; 0: unknown
	Bytes  bool   `json:"bytes,omitempty"`
}

// watched is a copy's progress for the process that runs it, and for who has asked.
type watched struct {
	hydrate.Progress
	report func(HowFar)
	target string
	moved  atomic.Int64
	of     int64
}

func (w *watched) Begin(tables int, bytes int64) {
	w.of = bytes
	w.tell()
	w.Progress.Begin(tables, bytes)
}

func (w *watched) Moved(table string, n int) {
	w.moved.Add(int64(n))
	w.tell()
	w.Progress.Moved(table, n)
}

func (w *watched) Done(table string, rows int64, took time.Duration) {
	w.report(HowFar{Doing: "making the target equal to the copy", Target: w.target, Tables: 1, Moved: w.of, Of: w.of, Bytes: true})
	w.Progress.Done(table, rows, took)
}

func (w *watched) tell() {
	w.report(HowFar{Doing: "copying", Target: w.target, Tables: 1, Moved: w.moved.Load(), Of: w.of, Bytes: true})
}

// watch counts the rows that a comparison reads, on both sides. nil: nobody listens.
type watch struct {
	report func(HowFar)
	far    HowFar
	left   int   // of watchRows
	read   int64 // of the present target
}

// watchRows is how many rows go by between two reports: some milliseconds' work.
const watchRows = 1 << 12

func watching(list []*Bound, report func(HowFar)) *watch {
	if report == nil {
		return nil
	}
	w := &watch{report: report, far: HowFar{Doing: "comparing", Tables: len(list)}}
	for _, b := range list {
		if b.flow == nil {
			w.far.Of += 2 * b.Relation.Rows
		}
	}
	return w
}

func (w *watch) begin(b *Bound) {
	if w == nil {
		return
	}
	w.far.Target, w.read = b.Target.Name.String(), 0
	w.doing("comparing")
}

// end counts a target as done: what it had fewer or more rows than estimated is set right.
func (w *watch) end(b *Bound) {
	if w == nil {
		return
	}
	w.far.Done++
	if b.flow == nil {
		w.far.Of += w.read - 2*b.Relation.Rows
	}
	w.tell()
}

func (w *watch) doing(what string) {
	if w != nil {
		w.far.Doing = what
		w.tell()
	}
}

func (w *watch) row() {
	if w == nil {
		return
	}
	if w.left--; w.left < 0 {
		w.left = watchRows - 1
		w.read += watchRows
		w.far.Moved += watchRows
		w.tell()
	}
}

// rows counts rows that were read elsewhere.
func (w *watch) rows(n int64) {
	if w != nil {
		w.read += n
		w.far.Moved += n
		w.tell()
	}
}

func (w *watch) tell() {
	far := w.far
	far.Of = max(far.Of, far.Moved)
	w.report(far)
}
