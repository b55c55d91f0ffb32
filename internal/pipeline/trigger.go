package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// Trigger makes a daemon one that runs at moments, in place of following its source all
// the time. Each run does what Mode.Once does: it goes to the source's position of its
// beginning, and drains files and snapshot flows. Between two runs the daemon rests: it
// owns the pipeline, beats, and carries out what it is asked for as errands.
//
// A run outlives the session in which it began: after a pause, an errand or a passing
// fault it goes on, through the front door as everything does. Moments that pass while one
// is going are not counted; if any did, one run follows at its end. A run that fails for
// a reason that a person, or time, can mend ends itself, not the daemon: the next moment
// tries again. Everything else ends the daemon as it ends one that follows.
type Trigger struct {
	Next     func(after time.Time) time.Time // the first moment behind after; the zero time: the clock has none
	Why      sink.RunReason                  // of moments of the clock
	Arrivals Arrivals                        // nil: files do not matter
	Failed   func(sink.Run, error)           // is told of a run that failed while the daemon goes on; it must not wait
}

// Arrivals tells of files that arrive.
type Arrivals interface {
	Begin(ctx context.Context) error          // a run begins: what is there does not count any more
	Look(ctx context.Context) (string, error) // a file that has arrived since and is complete; empty: none
	Every() time.Duration                     // between two looks
}

// RunFigures are about the runs of a pipeline with a trigger.
type RunFigures struct {
	Running     bool
	Last        sink.Run  // the newest that has ended; Number is 0: none has
	LastSuccess time.Time // end of the newest that is done; zero: none is remembered
	Next        time.Time // zero: running, or the clock says nothing
}

// Runs returns the figures of a pipeline with a trigger; nil for others.
func (s *Stats) Runs() *RunFigures { return s.runs.Load() }

// SetRuns makes f the figures.
func (s *Stats) SetRuns(f RunFigures) { s.runs.Store(&f) }

// moments are the runs of a pipeline with a trigger. They belong to the goroutine that
// walks, and between sessions to Run; askers come through mu.
type moments struct {
	*Trigger
	stats *Stats
	once  bool // a single run, asked for: not a daemon

	known  bool      // what is remembered was read
	begun  bool      // the pipeline has a mark
	number int64     // of the newest run
	run    *sink.Run // that is going on; nil: rests
	next   time.Time // moment of the clock
	first  bool      // no run has begun in this process
	parked map[change.Name]bool
	base   int64        // operations before the run
	copied atomic.Int64 // rows of first copies
	unsaid []sink.Run   // that have ended and are not written down

	mu     sync.Mutex
	asked  []chan sink.Run // who waits for a run that has not begun
	served []chan sink.Run // who waits for the one that is going on
}

// moments begins the runs of this process; nil without a trigger.
func (c *Config) moments() *moments {
	if c.Trigger == nil {
		return nil
	}
	t := &moments{Trigger: c.Trigger, stats: c.Stats, once: c.Attend == nil, first: true}
	c.Stats.SetRuns(RunFigures{})
	c.Progress = &countingCopies{c.Progress, &t.copied}
	return t
}

// countingCopies counts the rows of first copies.
type countingCopies struct {
	hydrate.Progress
	rows *atomic.Int64
}

func (c *countingCopies) Done(table string, rows int64, took time.Duration) {
	c.rows.Add(rows)
	c.Progress.Done(table, rows, took)
}

// resting reports whether the daemon waits for its next run.
func (s *session) resting() bool { return s.moments != nil && s.moments.run == nil }

// awaitMoment returns when there is something to walk for: a run that begins or goes on,
// or an errand; errPaused: a pause has begun. It looks at the source meanwhile as a pause
// does, whose log grows.
func (s *session) awaitMoment(stop, work context.Context) error {
	m := s.moments
	if err := m.recall(work, s.dst); err != nil {
		return err
	}
	if m.run != nil || len(s.mode.Tables) > 0 {
		return nil
	}
	rested := time.Now()
	defer func() { s.rested = s.rested || time.Since(rested) >= steady }()
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	arrived := ""
	var lookAt time.Time
	for {
		now := time.Now()
		if arrived == "" && m.Arrivals != nil && !now.Before(lookAt) {
			arrived = s.lookForFiles(work)
			took := time.Since(now)
			now = now.Add(took)
			lookAt = now.Add(max(m.Arrivals.Every(), lookShare*took))
		}
		p, _, changed := s.hold.look()
		why, due := m.due(now, arrived)
		switch {
		case !p.IsZero():
			return errPaused
		case s.hold.waits():
			return nil
		case due:
			return s.beginRun(work, why, arrived)
		}
		until := watchEvery // so that a clock which is put right is noticed
		if !m.next.IsZero() {
			until = min(until, m.next.Sub(now))
		}
		if m.Arrivals != nil {
			until = min(until, lookAt.Sub(now))
		}
		wait := time.NewTimer(until)
		select {
		case <-changed:
		case <-wait.C:
		case <-watch.C:
			if err := s.lookAtSource(work); err != nil {
				return err
			}
		case <-stop.Done():
			return nil
		case <-work.Done():
			return work.Err()
		}
		wait.Stop()
	}
}

// lookAtSource does what has to be done at a source while nothing is read. It may be away,
// or silent: the next run says so, and a stop does not wait for it.
func (s *session) lookAtSource(work context.Context) error {
	ctx, cancel := context.WithTimeout(work, lookEvery)
	defer cancel()
	s.guard(ctx)
	state, err := s.src.State(ctx)
	if err != nil {
		s.Log.Debug("the source cannot be looked at between two runs", "error", err.Error())
		return nil
	}
	return s.retained(state, time.Now())
}

// lookShare bounds the part of the time that is spent on looking for files: the wait is at
// least so many times what the last look took.
const lookShare = 10

// lookForFiles returns a file that has arrived. A folder that cannot be read is said
// once and looked at again.
func (s *session) lookForFiles(ctx context.Context) string {
	name, err := s.moments.Arrivals.Look(ctx)
	if err != nil && ctx.Err() == nil {
		s.warnOnce("whether files have arrived cannot be seen; it is tried again", "error", err.Error())
	}
	return name
}

// due reports whether a run is to begin now, and why.
func (m *moments) due(now time.Time, arrived string) (sink.RunReason, bool) {
	m.mu.Lock()
	asked := len(m.asked) > 0
	m.mu.Unlock()
	switch {
	case m.once, asked:
		return sink.RunAsked, true
	case m.first:
		return sink.RunAtStart, true
	case arrived != "":
		return sink.RunFile, true
	}
	return m.Why, !m.next.IsZero() && !m.next.After(now)
}

// recall reads what is remembered, once, and writes down what could not be written by the
// session in which it happened.
func (m *moments) recall(ctx context.Context, dst sink.Writer) error {
	book, ok := dst.(sink.Runs)
	if !m.known && ok {
		list, err := book.Runs(ctx, sink.RunsKept)
		if err != nil {
			return fmt.Errorf("read the runs: %w", err)
		}
		f := *m.stats.Runs()
		for _, r := range slices.Backward(list) {
			if r.Outcome == sink.RunGoesOn {
				r.Outcome, r.Ended = sink.RunInterrupted, time.Now()
				m.unsaid = append(m.unsaid, r)
			}
			f.take(r)
			m.number = r.Number
		}
		m.stats.SetRuns(f)
	}
	m.known = true
	for ok && len(m.unsaid) > 0 {
		if err := book.AddRun(ctx, m.unsaid[0]); err != nil {
			return fmt.Errorf("write a run down: %w", err)
		}
		m.unsaid = m.unsaid[1:]
	}
	m.unsaid = nil
	return nil
}

func (f *RunFigures) take(r sink.Run) {
	f.Last = r
	if r.Outcome == sink.RunDone {
		f.LastSuccess = r.Ended
	}
}

func (s *session) beginRun(ctx context.Context, why sink.RunReason, file string) error {
	m := s.moments
	mark, err := s.dst.State(ctx)
	if err != nil {
		return fmt.Errorf("read the mark: %w", err)
	}
	m.begun = m.begun || mark.Phase != checkpoint.None
	m.parked = parkedIn(mark)
	if m.Arrivals != nil {
		if err := m.Arrivals.Begin(ctx); err != nil {
			s.warnOnce("whether files have arrived cannot be seen; it is tried again", "error", err.Error())
		}
	}
	r := sink.Run{Number: m.number + 1, Why: why, Started: time.Now(), Outcome: sink.RunGoesOn}
	if book, ok := s.dst.(sink.Runs); ok {
		if err := book.AddRun(ctx, r); err != nil {
			return fmt.Errorf("write a run down: %w", err)
		}
	}
	m.mu.Lock()
	m.served, m.asked = append(m.served, m.asked...), nil
	m.mu.Unlock()
	m.number, m.run, m.first = r.Number, &r, false
	m.base = m.stats.Operations.Load() + m.copied.Load()
	if m.Next != nil {
		m.next = m.Next(r.Started)
	}
	f := *m.stats.Runs()
	f.Running, f.Next = true, time.Time{}
	m.stats.SetRuns(f)
	s.shots.missed = nil
	about := []any{"run", r.Number, "why", string(why)}
	if file != "" {
		about = append(about, "file", file)
	}
	s.Log.Info("run begins", about...)
	fault.KillPoint("run begun")
	return nil
}

func parkedIn(m checkpoint.Mark) map[change.Name]bool {
	parked := map[change.Name]bool{}
	for _, t := range m.Tables {
		if t.Phase == checkpoint.Parked {
			parked[t.Target] = true
		}
	}
	return parked
}

// ranTo takes down how a walk ended with a run going on. It returns what the walk
// returned, unless the run's end could not be written down.
func (s *session) ranTo(stop, work context.Context, err error) error {
	m := s.moments
	stopped := stop.Err() != nil
	if m.run == nil || err != nil && !(stopped && errors.Is(err, context.Canceled)) {
		return err
	}
	mark, e := s.dst.State(work)
	if e != nil {
		return fmt.Errorf("read the mark: %w", e)
	}
	r := m.run
	r.Outcome = sink.RunDone
	if stopped {
		r.Outcome = sink.RunStopped
	}
	r.Position = mark.Position.String()
	var names []string
	for target := range parkedIn(mark) {
		if !m.parked[target] {
			names = append(names, target.String())
		}
	}
	var parked error
	if len(names) > 0 && !stopped {
		slices.Sort(names)
		parked = fault.Refuse("`tailrace status` says why and what to do", "parked: %s; other targets are up to date", strings.Join(names, ", "))
		r.Outcome, r.Error = sink.RunFailed, parked.Error()
	}
	ended := m.end()
	if e := m.recall(work, s.dst); e != nil {
		return e
	}
	about := []any{"run", ended.Number, "outcome", string(ended.Outcome), "position", ended.Position, "rows", ended.Rows, "seconds", fmt.Sprintf("%.1f", ended.Ended.Sub(ended.Started).Seconds())}
	if !m.next.IsZero() && !m.once {
		about = append(about, "next", m.next.Format(time.RFC3339))
	}
	s.Log.Info("run ended", about...)
	if parked != nil && m.Failed != nil {
		m.Failed(ended, parked)
	}
	return err
}

// end ends the run that is going on; recall writes it down.
func (m *moments) end() sink.Run {
	r := *m.run
	m.run = nil
	r.Ended = time.Now()
	r.Rows = m.stats.Operations.Load() + m.copied.Load() - m.base
	m.unsaid = append(m.unsaid, r)
	f := *m.stats.Runs()
	f.Running, f.Next = false, m.next
	f.take(r)
	m.stats.SetRuns(f)
	m.mu.Lock()
	served := m.served
	m.served = nil
	m.mu.Unlock()
	for _, c := range served {
		c <- r
	}
	return r
}

// failed takes down that a session ended for good with a run going on, and reports
// whether the daemon goes on without it.
func (m *moments) failed(c *Config, s *session, err error) bool {
	if m == nil || m.run == nil {
		return false
	}
	m.run.Outcome, m.run.Error = sink.RunFailed, shortened(err.Error())
	if at := c.Stats.Applied.Get(); !at.IsZero() {
		m.run.Position = at.String()
	}
	r := m.end()
	kind := fault.KindOf(err)
	begun := m.begun || s.mark.Phase != checkpoint.None
	switch {
	case m.once || !begun, kind != fault.Operator && kind != fault.Transient,
		errors.Is(err, fault.ErrFenced), errors.Is(err, fault.ErrOwned), errors.Is(err, errRetained):
		return false
	}
	about := []any{"run", r.Number, "error", err.Error()}
	if !m.next.IsZero() {
		about = append(about, "next", m.next.Format(time.RFC3339))
	}
	c.Log.Error("run failed; the next moment tries again", about...)
	if m.Failed != nil {
		m.Failed(r, err)
	}
	return true
}

// errorMost is how much of an error's text is remembered of a run, in bytes: many times
// what messages have.
const errorMost = 4096

func shortened(text string) string {
	if len(text) <= errorMost {
		return text
	}
	return strings.ToValidUTF8(text[:errorMost], "") + "..."
}

// lastWord writes down a run whose failure ends the process, if it can within lastMost.
func (m *moments) lastWord(c *Config, err error) {
	if m == nil || len(m.unsaid) == 0 || errors.Is(err, fault.ErrFenced) || errors.Is(err, fault.ErrOwned) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastMost)
	defer cancel()
	dst, failed := c.OpenSink(ctx)
	if failed == nil {
		if failed = dst.Own(ctx, c.Owner, 0); failed == nil {
			failed = m.recall(ctx, dst)
		}
		failed = errors.Join(failed, dst.Close(ctx))
	}
	if failed != nil {
		c.Log.Warn("how the run ended could not be written down", "error", failed.Error())
	}
}

// lastMost is how long the end of a process is put off for that.
const lastMost = 5 * time.Second

// RunNow has a resting pipeline run now, and waits for the end of that run. While one is
// going, another follows it.
func (h *Hold) RunNow(ctx context.Context) (sink.Run, error) {
	m := h.moments
	if m == nil {
		return sink.Run{}, fault.Badly("the pipeline has no trigger: it follows its source all the time")
	}
	done := make(chan sink.Run, 1)
	h.change(func() {
		m.mu.Lock()
		m.asked = append(m.asked, done)
		m.mu.Unlock()
	})
	withdraw := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		n := len(m.asked)
		m.asked = slices.DeleteFunc(m.asked, func(o chan sink.Run) bool { return o == done })
		return len(m.asked) < n
	}
	for {
		p, _, changed := h.look()
		if !p.IsZero() && withdraw() {
			return sink.Run{}, fault.Refuse("tailrace resume, then ask again", "the pipeline is paused since %s, by %s", p.Since.Local().Format(time.RFC3339), p.By)
		}
		select {
		case r := <-done:
			return r, nil
		case <-changed:
		case <-ctx.Done():
			withdraw()
			return sink.Run{}, ctx.Err()
		}
	}
}
