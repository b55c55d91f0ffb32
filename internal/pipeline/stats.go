package pipeline

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// Stats are a run's counters. Received, applied and confirmed are three different
// things: read from the log, committed in the destination, told to the source.
type Stats struct {
	Received, Applied, Confirmed Gauge
	Transactions                 atomic.Int64
	Changes                      atomic.Int64 // row-level changes applied, before folding
	Shots                        atomic.Int64 // snapshots of snapshot flows applied
	Operations                   atomic.Int64 // row-level operations written, after folding
	Batches                      atomic.Int64
	Retries                      atomic.Int64
	ApplyTime                    atomic.Int64 // ns inside the destination
	CommitTime                   atomic.Int64 // of the newest applied transaction, ns since the Unix epoch
	Sequenced                    SequencedStats

	Head       Gauge        // the end of the source's log, looked at every lookEvery
	Retained   atomic.Int64 // bytes of log that the source keeps for us, likewise
	Queued     atomic.Int64 // bytes between reading and applying
	Spooled    atomic.Int64 // bytes of open transactions on disk
	Following  atomic.Bool  // in the stream's loop: nothing is being copied, nothing is away
	Paused     atomic.Bool  // somebody asked it to rest
	LevelAt    atomic.Int64 // when everything received was applied last, ns since the Unix epoch; 0: never
	waiting    atomic.Int64 // commit time of the oldest transaction received and not applied, ns; 0: none
	over       atomic.Int64 // since when the source keeps more than it may, ns; 0: it does not
	warned     atomic.Int64 // when it was last warned of too much log, ns
	Points     atomic.Int64 // rewind points that can be gone back to
	Window     atomic.Int64 // the newest commit that the oldest of them holds, ns since the Unix epoch; 0: there is none
	KeptLog    atomic.Int64 // bytes of log that the source keeps for them
	Undo       atomic.Int64 // bytes that the destination keeps for them, about
	newest     Gauge        // end of the newest transaction received that has changes
	phases     phases
	unresolved counts
	violated   violated
	failure    atomic.Pointer[Failure]
	runs       atomic.Pointer[RunFigures] // nil: there is no trigger
	feeds      atomic.Pointer[[]FeedSize]

	// Batch, if not nil, is told of every batch written, by the goroutine that wrote it.
	Batch func(BatchFigures)
}

// BatchFigures are about one batch.
type BatchFigures struct {
	Changes    int           // row-level changes, before folding
	Operations int           // row-level operations, after folding
	Decide     time.Duration // what the targets must hold; of sequenced flows with reading what is remembered
	Write      time.Duration // inside the destination, with its commit
}

// Failure is the newest session that ended for a reason that may pass.
type Failure struct {
	At  time.Time
	Err error
}

// Failure returns the newest one; nil if there was none since the start.
func (s *Stats) Failure() *Failure { return s.failure.Load() }

// phases are the targets' phases.
type phases struct {
	mu sync.Mutex
	of map[change.Name]checkpoint.Phase
}

// counts are numbers by flow.
type counts struct {
	mu sync.Mutex
	of map[string]int64
}

// SetPhase says where a target stands; None: it is not followed any more.
func (s *Stats) SetPhase(target change.Name, p checkpoint.Phase) {
	p = checkpoint.Phase(p.Shown())
	s.phases.mu.Lock()
	defer s.phases.mu.Unlock()
	if s.phases.of == nil {
		s.phases.of = map[change.Name]checkpoint.Phase{}
	}
	if s.phases.of[target] = p; p == checkpoint.None {
		delete(s.phases.of, target)
	}
}

// forgetPhases begins anew: targets may have gone.
func (s *Stats) forgetPhases() {
	s.phases.mu.Lock()
	defer s.phases.mu.Unlock()
	s.phases.of = nil
}

// Phases returns where each target stands.
func (s *Stats) Phases() map[change.Name]checkpoint.Phase {
	s.phases.mu.Lock()
	defer s.phases.mu.Unlock()
	return maps.Clone(s.phases.of)
}

// SetUnresolved says how many events of each flow are in quarantine; aside adds to it.
func (s *Stats) SetUnresolved(of map[string]int64) {
	s.unresolved.mu.Lock()
	defer s.unresolved.mu.Unlock()
	s.unresolved.of = maps.Clone(of)
}

func (s *Stats) aside(flow string) {
	s.unresolved.mu.Lock()
	defer s.unresolved.mu.Unlock()
	if s.unresolved.of == nil {
		s.unresolved.of = map[string]int64{}
	}
	s.unresolved.of[flow]++
}

// FeedSize is how much a target's change feed holds.
type FeedSize = sink.FeedSize

// Feeds returns how large the change feeds were when they were measured last, which is
// done once a minute while a pipeline follows.
func (s *Stats) Feeds() []FeedSize {
	if list := s.feeds.Load(); list != nil {
		return *list
	}
	return nil
}

// SetFeeds says how large they are.
func (s *Stats) SetFeeds(list []FeedSize) { s.feeds.Store(&list) }

// resolved takes n events of a flow off.
func (s *Stats) resolved(flow string, n int64) {
	if n == 0 {
		return
	}
	s.unresolved.mu.Lock()
	defer s.unresolved.mu.Unlock()
	if left := s.unresolved.of[flow] - n; left > 0 {
		s.unresolved.of[flow] = left
	} else {
		delete(s.unresolved.of, flow)
	}
}

// Unresolved returns how many events of each flow are in quarantine. Events that
// another process retries or discards are counted off at the next start.
func (s *Stats) Unresolved() map[string]int64 {
	s.unresolved.mu.Lock()
	defer s.unresolved.mu.Unlock()
	return maps.Clone(s.unresolved.of)
}

// Violation counts what an expectation of a flow met.
type Violation = sink.Violation

// violated are what expectations met since the start.
type violated struct {
	mu sync.Mutex
	of map[sink.Violation]int64 // by all but Events, which is 0
}

// Met adds what the expectations of flows met in a batch that is written.
func (s *Stats) Met(list []sink.Violation) {
	if len(list) == 0 {
		return
	}
	s.violated.mu.Lock()
	defer s.violated.mu.Unlock()
	if s.violated.of == nil {
		s.violated.of = map[sink.Violation]int64{}
	}
	for _, v := range list {
		n := v.Events
		v.Events = 0
		s.violated.of[v] += n
	}
}

// Violations returns what the expectations of flows met since the start.
func (s *Stats) Violations() (list []sink.Violation) {
	s.violated.mu.Lock()
	defer s.violated.mu.Unlock()
	for v, n := range s.violated.of {
		v.Events = n
		list = append(list, v)
	}
	return list
}

// received is told of a segment before it is queued, applied of a mark that is written:
// between the two the segment's oldest transaction waits.
func (s *Stats) received(seg *change.Segment) {
	for i := range seg.Txs {
		if t := &seg.Txs[i]; len(t.Changes) > 0 && !t.CommitTime.IsZero() {
			s.waiting.CompareAndSwap(0, t.CommitTime.UnixNano())
			break
		}
	}
	for i := len(seg.Txs) - 1; i >= 0; i-- {
		if t := &seg.Txs[i]; len(t.Changes) > 0 {
			end := t.End
			if end.IsZero() { // a piece: its end lies beyond where its commit begins
				end = t.Begin
				end.Offset++
			}
			s.newest.Set(end)
			break
		}
	}
}

func (s *Stats) applied(mark change.Position, now time.Time) {
	switch {
	case mark.Compare(s.newest.Get()) >= 0:
		s.waiting.Store(0)
		s.LevelAt.Store(now.UnixNano())
	case s.CommitTime.Load() != 0:
		s.waiting.Store(s.CommitTime.Load())
	}
}

// LagNoise is how much log may lie beyond the mark of a pipeline that has nothing to
// do, because its mark follows other tables' and databases' log only every few
// seconds: one log segment.
const LagNoise = 16 << 20

// LagBytes is how much of the source's log lies beyond what is applied.
func (s *Stats) LagBytes() int64 {
	head, at := s.Head.Get(), s.Applied.Get()
	if received := s.Received.Get(); head.Before(received) {
		head = received
	}
	if at.IsZero() {
		return 0
	}
	return head.Since(at)
}

// Lag is how old the oldest change is that the destination does not have, as far as
// is known: 0 if it has all. While nothing is followed (the first copy, a server that
// is away) it is the time since everything received was applied, or since start.
func (s *Stats) Lag(now, start time.Time) time.Duration {
	since := func(ns int64) time.Duration {
		if ns == 0 {
			return now.Sub(start)
		}
		return max(0, now.Sub(time.Unix(0, ns)))
	}
	switch w := s.waiting.Load(); {
	case !s.Following.Load():
		return since(s.LevelAt.Load())
	case w != 0:
		return since(w)
	case s.LagBytes() > LagNoise:
		return since(s.CommitTime.Load())
	}
	return 0
}

// SequencedStats are what happened to the events of sequenced flows: see
// sequenced.Counts. Aside are those in quarantine since the start.
type SequencedStats struct {
	Events, Duplicates, Late, Ties, Truncated, Beyond, Unknown, Aside atomic.Int64
}

func (s *SequencedStats) add(c sequenced.Counts) {
	s.Events.Add(int64(c.Events))
	s.Duplicates.Add(int64(c.Duplicates))
	s.Late.Add(int64(c.Late))
	s.Ties.Add(int64(c.Ties))
	s.Truncated.Add(int64(c.Truncated))
	s.Beyond.Add(int64(c.Beyond))
	s.Unknown.Add(int64(c.Unknown))
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
