package pipeline

import (
	"sync/atomic"
	"time"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
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
	Sequenced                    SequencedStats
}

// SequencedStats are what happened to the events of sequenced flows: see
// sequenced.Counts. Aside are those in quarantine since the start.
type SequencedStats struct {
	Events, Duplicates, Late, Ties, Truncated, Beyond, Aside atomic.Int64
}

func (s *SequencedStats) add(c sequenced.Counts) {
	s.Events.Add(int64(c.Events))
	s.Duplicates.Add(int64(c.Duplicates))
	s.Late.Add(int64(c.Late))
	s.Ties.Add(int64(c.Ties))
	s.Truncated.Add(int64(c.Truncated))
	s.Beyond.Add(int64(c.Beyond))
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
