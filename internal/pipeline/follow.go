package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/source"
)

// follower is the stream's loop. Two goroutines and one number: the source hands
// segments into a queue bounded in bytes; this loop gathers whole transactions
// until the queue is empty or the batch is full, folds them per key, and hands one
// batch to the destination; what the destination has made durable goes back to the
// source. There is no lingering: an idle source's transaction goes at once, and
// under load batches grow by themselves because the next one gathers while this
// one is written.
//
// Files beside a log come through the same queue. Their transactions move no position:
// that is the log's, and that a file was taken is written with its rows.
type follower struct {
	*session
	queue  *queue
	routes map[routeKey][]*route
	byTgt  map[change.Name]*route
	lanes  map[change.Name]*channel // of sequenced targets
	until  stretch

	// The batch being gathered.
	end     change.Position // end of its last whole transaction or quiet point
	resume  string          // what the source says beside it
	commit  time.Time       // of its last transaction
	takenAt time.Time       // of the last file beside a log
	changes int
	bytes   int
	txs     int
	open    bool          // the destination holds an unfinished source transaction (pieces)
	took    []change.File // files, whole
	aside   []sink.Aside  // rows that expectations of ordered flows dropped
	piecing bool          // some piece of it touched a target
	touched []*route      // by the running transaction
	tables  bool          // some sequenced flow follows a table, which a TRUNCATE may empty

	drain    bool // the run ends when the files are drained, too
	drained  bool // those that were there at the start are taken
	halted   bool // nothing more of the log is taken: see Until
	unsealed bool // a file was applied since the position moved: Durable says nothing of it

	applied change.Position
	written time.Time     // when the mark was last written
	done    chan struct{} // closed when the loop has applied its last batch
	wake    chan struct{} // something was applied: ask what is durable
	trims   trimmer
}

// routeKey is a relation: the source's number for it, and above that where it comes
// from, because two sources number by themselves.
type routeKey uint64

func (o origin) relation(id uint32) routeKey { return routeKey(o)<<32 | routeKey(id) }

// origin is where the flow's relation comes from.
func (s *session) origin(b *Bound) origin {
	if b.Spec.Files && !s.keepless {
		return fromBeside
	}
	return fromSource
}

// route is one target of a source table.
type route struct {
	*Bound
	folder *scd.Folder       // of an ordered flow
	shaper *sequenced.Shaper // of a sequenced one, with
	lane   *channel          // its target's lane
	state  checkpoint.Table  // of the target
	own    checkpoint.Flow   // of a sequenced flow
	layout *change.Table     // the last layout seen in the log
	dirty  bool              // changes in the batch
	inTx   bool              // changes in the running transaction
}

// A quiet stretch of log costs the destination a small write; once in 5 s keeps the
// source's log short (a minute is promised) and an idle destination idle.
var quietEvery = 5 * time.Second

// gatherMost is how long a batch of a backlog gathers before it is written, if it
// does not fill earlier: long beside the fixed cost of a batch (some ms), short
// beside the backlog's own age.
var gatherMost = 200 * time.Millisecond

const (
	// The catalogue is looked at so that a table that lost its identity leaves the
	// publication within 30 s, before many of the application's statements fail.
	watchEvery = 15 * time.Second
	// How far the source's log goes is looked at this often: a few small queries.
	lookEvery = 5 * time.Second
	// backlogAge is how old a transaction must be when it is sent to count as backlog.
	backlogAge = 100 * time.Millisecond
	// How often an applied batch is asked for until it is durable.
	durableEvery = 100 * time.Millisecond
)

// errReached ends the loop at until; never leaves follow.
var errReached = errors.New("reached")

// follow streams from the mark. It returns nil when until is reached or stop ended
// and everything applied is durable and confirmed.
func (s *session) follow(stop, work context.Context, until stretch) error {
	f := &follower{
		session: s, queue: newQueue(s.QueueBytes), until: until,
		drain:  s.mode.Once && s.files != nil,
		routes: map[routeKey][]*route{}, byTgt: map[change.Name]*route{}, lanes: map[change.Name]*channel{},
		end: s.mark.Position, resume: s.mark.Resume, applied: s.mark.Position,
		done: make(chan struct{}), wake: make(chan struct{}, 1), trims: s.trimmer(),
	}
	var wanted []Bound
	for i := range s.bound {
		b := &s.bound[i]
		f.tables = f.tables || b.flow != nil && !b.flow.Feed
		r := &route{Bound: b, state: s.state(b.Target.Name), own: s.flowState(b), layout: b.Relation.Table}
		switch r.state.Phase {
		case checkpoint.Parked, checkpoint.Creating, checkpoint.Copying: // a copy beside the stream reads its changes
			continue
		}
		wanted = append(wanted, *b)
		if b.Spec.Snapshot == nil && (!b.Spec.Once || b.Spec.Files) {
			key := s.origin(b).relation(b.Relation.Table.ID)
			f.routes[key] = append(f.routes[key], r)
		}
		if !b.second {
			f.byTgt[b.Target.Name] = r
		}
		if b.flow == nil {
			r.fold(b.Target)
			continue
		}
		if f.lanes[b.Target.Name] == nil {
			c, err := s.channelOf(b.Target.Name)
			if err == nil {
				err = c.recall(work)
			}
			if err != nil {
				return err
			}
			f.lanes[b.Target.Name] = c
		}
		r.lane, r.shaper = f.lanes[b.Target.Name], sequenced.NewShaper(b.flow, b.Target)
	}
	s.Stats.Applied.Set(f.applied)
	if f.reached() && !f.anyCatching() {
		return nil
	}

	if s.slotless { // what is published there is what we read: of the others nothing can stop the stream
		if err := s.src.Publish(work, Followed(wanted)); err != nil {
			return fmt.Errorf("choose the tables to follow: %w", err)
		}
	}
	g, work := errgroup.WithContext(work)
	read, stopReading := context.WithCancel(work)
	defer stopReading()
	from := f.applied
	receive := func(src source.Source, as origin, from change.Position) error {
		o := source.FollowOptions{Resume: s.mark.Resume, Binary: s.binary, PieceBytes: s.PieceBytes, Taken: s.taken, Once: s.mode.Once, Spooled: s.Stats.Spooled.Store}
		err := src.Follow(read, from, o, func(ctx context.Context, seg *change.Segment) error {
			if n := len(seg.Txs); as == fromSource && n > 0 && seg.Txs[n-1].Last {
				s.Stats.Received.Set(seg.Txs[n-1].End)
			}
			fault.KillPoint("segment received")
			if as == fromSource {
				s.Stats.received(seg)
			}
			return f.queue.push(ctx, seg, as)
		})
		switch {
		case read.Err() != nil:
			return nil // we ended it
		case err == nil:
			err = errors.New("the stream ended")
		}
		if as == fromBeside || s.keepless {
			return err
		}
		return fmt.Errorf("follow the log from %s: %w", from, f.parkedByLoss(err))
	}
	g.Go(func() error { return receive(s.src, fromSource, from) })
	if s.files != nil && !s.keepless && !until.exact {
		// Their own positions count the files that were taken.
		g.Go(func() error { return receive(s.files, fromBeside, change.Position{Offset: uint64(len(s.taken))}) })
	}
	g.Go(func() error {
		err := f.loop(stop, work)
		s.halfway = f.open
		if err == nil || errors.Is(err, errReached) {
			if e := f.seal(work); e != nil {
				err = e
			}
		}
		close(f.done)
		if err != nil && !errors.Is(err, errReached) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		defer stopReading()
		return f.confirm(work)
	})
	g.Go(func() error { return f.watch(work) })
	s.Stats.Following.Store(true)
	defer s.Stats.Following.Store(false)
	return g.Wait()
}

func (f *follower) anyCatching() bool {
	for _, r := range f.byTgt {
		if r.state.Catches() {
			return true
		}
	}
	return false
}

// loop gathers and applies. In order of importance it looks at: being told to
// stop, what is waiting, and only then waits.
func (f *follower) loop(stop, work context.Context) error {
	for stop.Err() == nil { // what waits in the queue then will be sent again
		began := time.Now()
		backlog := false
		for !f.full() && stop.Err() == nil {
			if f.meets() {
				if err := f.flush(work); err != nil {
					return err
				}
				return errReached
			}
			seg, found := f.queue.take()
			if !found {
				more, err := f.await(stop, work, began, backlog)
				if err != nil {
					return err
				}
				if !more {
					break
				}
				continue
			}
			if err := f.gather(stop, work, seg); err != nil {
				return err
			}
			backlog = seg.Age >= backlogAge
		}
		if err := f.flush(work); err != nil {
			return err
		}
		if !f.open {
			if _, err := f.trims.trim(work); err != nil {
				return err
			}
		}
	}
	return nil
}

// await waits for the queue to fill and reports whether to look again. A batch with
// something in it waits only while there is a backlog: then more is on its way, and
// a larger batch folds more changes into one and costs less of everything. A live
// transaction is never kept waiting.
func (f *follower) await(stop, work context.Context, began time.Time, backlog bool) (more bool, err error) {
	var limit <-chan time.Time
	if f.changes > 0 {
		left := gatherMost - time.Since(began)
		if !backlog || f.open || left <= 0 {
			return false, nil
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		limit = timer.C
	} else if !f.open {
		wait := f.trims.wait()
		if f.applied.Before(f.end) { // a source that falls silent says nothing that would wake us
			if f.quietDue() {
				return false, nil
			}
			if quiet := quietEvery - time.Since(f.written); wait < 0 || quiet < wait {
				wait = quiet
			}
		}
		if wait == 0 {
			return false, nil
		}
		if wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			limit = timer.C
		}
	}
	select {
	case <-f.queue.filled:
		return true, nil
	case <-f.asked():
		return true, nil
	case <-limit:
		return false, nil
	case <-stop.Done():
		return false, nil
	case <-work.Done():
		return false, work.Err()
	}
}

func (f *follower) full() bool {
	return f.changes >= f.BatchRows || int64(f.bytes) >= f.BatchBytes
}

// gather folds a segment into the batch; it writes batches where it must: around
// a transaction in pieces, at the stop position, before a change of layout. A stop
// leaves the rest of the segment: it will be sent again.
func (f *follower) gather(stop, ctx context.Context, seg item) error {
	perTx := seg.Bytes / max(len(seg.Txs), 1)
	for i := range seg.Txs {
		tx := &seg.Txs[i]
		if stop.Err() != nil {
			return nil
		}
		beside := seg.from == fromBeside
		if f.until.exact && !f.until.position.IsZero() && f.beyond(tx) {
			if err := f.flush(ctx); err != nil {
				return err
			}
			return f.reach(ctx, f.until.position)
		}
		if !beside {
			halt, err := f.halts(tx)
			if err == nil && halt {
				err = f.flush(ctx)
			}
			if err == nil && halt && f.reached() {
				err = errReached
			}
			if halt || err != nil {
				return err
			}
		}
		f.bytes += perTx // first, because a piece is written at once: full while open would never end
		if !tx.First || !tx.Last || !beside && f.empties(tx) {
			if err := f.piece(ctx, tx, seg.from); err != nil {
				return err
			}
		} else {
			if err := f.add(ctx, tx, seg.from); err != nil {
				return err
			}
			f.ended(tx, beside)
			if tx.File == nil && len(tx.Changes) == 0 && (beside || f.keepless) {
				f.drained = true // the point behind the last file that was there
			}
		}
		if f.full() && !f.open {
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
		if f.reached() {
			if err := f.flush(ctx); err != nil {
				return err
			}
			return errReached
		}
	}
	return nil
}

// ended takes down the end of a transaction or a quiet point. One of files beside a log
// moves no position.
func (f *follower) ended(tx *change.Tx, beside bool) {
	if tx.File != nil {
		f.took = append(f.took, *tx.File)
	}
	if beside {
		f.takenAt = tx.CommitTime
	} else {
		f.end = tx.End
		if tx.Resume != "" {
			f.resume = tx.Resume
		}
	}
	if !tx.CommitTime.IsZero() {
		f.txs++
		if !beside {
			f.commit = tx.CommitTime
		}
	}
}

// piece applies one piece of a large transaction, all of them inside one
// destination transaction that nothing else shares; or a whole one that is written in
// pieces because it empties a sequenced target.
func (f *follower) piece(ctx context.Context, tx *change.Tx, from origin) error {
	if tx.First {
		if err := f.flush(ctx); err != nil {
			return err
		}
		f.piecing = false
	}
	if err := f.add(ctx, tx, from); err != nil {
		return err
	}
	touched := f.changes > 0
	if !tx.Last {
		if !touched {
			return nil
		}
		err := f.write(ctx, !f.piecing, true)
		f.piecing, f.open = true, true
		return err
	}
	f.ended(tx, from == fromBeside)
	if !f.piecing {
		return nil // like any other transaction, or nothing for us at all
	}
	f.piecing = false
	err := f.write(ctx, false, false)
	f.open = false
	return err
}

// add routes a transaction's changes to the folders of their targets.
func (f *follower) add(ctx context.Context, tx *change.Tx, from origin) error {
	for i := range tx.Changes {
		c := &tx.Changes[i]
		routes := f.routes[from.relation(c.Table.ID)]
		for _, r := range routes {
			if from == fromSource && r.contains(tx) {
				continue // the copy holds it already
			}
			if r.layout != c.Table {
				if err := f.relayout(ctx, r, c.Table, tx); err != nil {
					return parkedByRefusal(r.Target.Name, err)
				}
			}
			if r.Target.AppendOnly && (c.Op == change.Update || c.Op == change.Delete) {
				continue // declared: append_only
			}
			if r.empties(c) {
				if err := f.empty(ctx, r, tx, c); err != nil {
					return f.at(tx, r, err)
				}
				continue
			}
			left, err := c, error(nil)
			if r.judge != nil {
				left, err = f.judged(r, tx, c)
			}
			if err == nil && left != nil {
				err = r.add(tx, left)
			}
			if err != nil {
				return f.at(tx, r, parkedBy(r.Target.Name, err))
			}
			if !r.inTx {
				r.inTx, r.dirty = true, true
				f.touched = append(f.touched, r)
			}
			f.changes++
		}
	}
	return f.endTx(tx)
}

// endTx tells the folders that what they got so far of a transaction is to be judged.
func (f *follower) endTx(tx *change.Tx) error {
	for _, r := range f.touched {
		r.inTx = false
		if r.folder == nil {
			continue
		}
		if err := r.folder.EndTx(tx.CommitTime.UnixMicro()); err != nil {
			return f.at(tx, r, err)
		}
	}
	f.touched = f.touched[:0]
	return nil
}

// contains reports whether the copy holds tx already.
func (r *route) contains(tx *change.Tx) bool {
	if r.flow != nil {
		return r.own.Contains(tx)
	}
	return r.state.Contains(tx)
}

// add folds one change, or makes its events.
func (r *route) add(tx *change.Tx, c *change.Change) error {
	if r.folder != nil {
		return r.folder.Add(c)
	}
	bad, err := r.shaper.Change(r.lane.lane, tx, c)
	if err == nil && bad != nil {
		err = r.lane.bad(r.Bound, bad, sequenced.Origin{Tx: tx, Change: c})
	}
	return err
}

// at adds to an error what a person needs to find the place.
func (f *follower) at(tx *change.Tx, r *route, err error) error {
	place := "commit " + tx.End.String()
	if tx.Path != "" {
		place = "file " + tx.Path
	} else if tx.End.IsZero() {
		place = "the transaction whose commit begins at " + tx.Begin.String()
	}
	return fmt.Errorf("apply to %s, transaction %d, %s: %w", r.Target.Name, tx.XID, place, err)
}

// flush writes the batch gathered so far, if there is anything to say.
func (f *follower) flush(ctx context.Context) error {
	if f.open {
		return nil
	}
	if f.changes == 0 && len(f.took) == 0 && !f.quietDue() {
		return nil
	}
	return f.write(ctx, true, false)
}

// quietDue reports whether the mark is to move although no row did.
func (f *follower) quietDue() bool {
	return f.applied.Before(f.end) && (time.Since(f.written) >= quietEvery || f.awaited())
}

// awaited reports that somebody waits for the mark to move although no row did.
func (f *follower) awaited() bool {
	if !f.until.position.IsZero() && f.until.position.Compare(f.end) <= 0 {
		return true
	}
	for _, r := range f.byTgt {
		if r.state.Catches() && r.state.Since.Compare(f.end) <= 0 {
			return true
		}
	}
	return false
}

// write hands the folded batch to the destination.
func (f *follower) write(ctx context.Context, first, more bool) error {
	b := &sink.Batch{Position: f.end, Resume: f.resume, CommitTime: f.commit, First: first, More: more}
	operations, entered := 0, time.Now()
	if f.points != nil && first {
		if err := f.points.between(ctx, f); err != nil {
			return err
		}
	}
	for _, r := range f.byTgt {
		if r.dirty && r.folder != nil {
			r.dirty = false
			rounds := r.folder.Take()
			restored := r.state.Phase == checkpoint.Adopting
			if restored {
				if err := r.unmoved(rounds); err != nil {
					return err
				}
			}
			if len(rounds) > 0 {
				b.Targets = append(b.Targets, sink.TargetRounds{Target: r.Target, Binary: f.binary, Rounds: rounds, Restored: restored})
			}
			for i := range rounds {
				operations += rounds[i].Size()
			}
		}
		if !more && r.state.Catches() && r.state.Since.Compare(f.end) <= 0 {
			b.Live = append(b.Live, r.Target.Name)
		}
	}
	for _, c := range f.lanes {
		if c.lane.Size() == 0 && len(c.aside) == 0 {
			if _, raised := c.lane.Truncates(); !raised {
				continue
			}
		}
		n, err := c.take(ctx, b, f.clock(c))
		if err != nil {
			return err
		}
		operations += n
	}
	aside := f.aside
	b.Aside, f.aside = append(b.Aside, aside...), nil
	for _, routes := range f.routes {
		for _, r := range routes {
			if r.judge != nil {
				r.violations(func(v sink.Violation) { b.Violations = append(b.Violations, v) })
			}
			if r.lane != nil {
				r.dirty = false
			}
		}
	}
	b.Files, f.took = f.took, nil
	changes, txs := f.changes, f.txs
	f.changes, f.bytes, f.txs = 0, 0, 0
	fault.KillPoint("before apply")
	began := time.Now()
	if err := f.dst.Apply(ctx, b); err != nil {
		return fmt.Errorf("write the batch that ends at %s: %w", f.end, parkedByTarget(err))
	}
	fault.KillPoint("applied")
	for _, c := range f.lanes {
		if err := c.applied(ctx, b); err != nil {
			return err
		}
	}
	now := time.Now()
	f.Stats.Met(b.Violations)
	for i := range aside {
		f.Stats.aside(aside[i].Flow)
	}
	f.Stats.ApplyTime.Add(int64(now.Sub(began)))
	f.Stats.Changes.Add(int64(changes))
	f.Stats.Operations.Add(int64(operations))
	f.Stats.Batches.Add(1)
	if f.Stats.Batch != nil {
		f.Stats.Batch(BatchFigures{Changes: changes, Operations: operations, Decide: began.Sub(entered), Write: now.Sub(began)})
	}
	if more {
		return nil
	}
	if f.applied != f.end {
		f.unsealed = false
	}
	f.unsealed = f.unsealed || len(b.Files) > 0 && f.applied == f.end
	f.written, f.applied = now, f.end
	f.progressed = true
	f.Stats.Transactions.Add(int64(txs))
	f.Stats.Applied.Set(f.end)
	if !f.commit.IsZero() {
		f.Stats.CommitTime.Store(f.commit.UnixNano())
	}
	for _, name := range b.Live {
		r := f.byTgt[name]
		r.live()
		f.Stats.SetPhase(name, checkpoint.Live)
		f.Log.Info("table is live", "target", name.String(), "position", f.end.String())
	}
	f.Stats.Queued.Store(f.queue.size())
	f.Stats.applied(f.end, now)
	signal(f.wake)
	return nil
}
