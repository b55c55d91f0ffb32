package pipeline

import (
	"sync/atomic"
	"time"

	"tailrace/internal/change"
)

// Stats are a run's counters. Received, applied and confirmed are three different
// things: read from the log, committed in the destination, told to the source.
type Stats struct {
	Received, Applied, Confirmed Gauge
	Transactions                 atomic.Int64
	Changes                      atomic.Int64 // row-level changes applied, before folding
	Operations                   atomic.Int64 // row-level operations written, after folding
	Batches                      atomic.Int64
	Retries                      atomic.Int64
	ApplyTime                    atomic.Int64 // ns inside the destination
	CommitTime                   atomic.Int64 // of the newest applied transaction, ns since the Unix epoch
}

// Gauge is a position that several goroutines read.
type Gauge struct {
	p atomic.Pointer[change.Position]
}

func (g *Gauge) Set(p change.Position) { g.p.Store(&p) }

func (g *Gauge) Get() change.Position {
	if p := g.p.Load(); p != nil {
		return *p
	}
	return change.Position{}
}

// LastCommit returns the commit time of the newest applied transaction.
func (s *Stats) LastCommit() time.Time {
	if ns := s.CommitTime.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}
