package scd

import (
	"bytes"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// fold2 folds type 2. Within one transaction nobody saw the states in between, so
// its changes of a key compose into one *pending* state; when the transaction
// ends, each pending state becomes a Step, unless it is known to continue the
// version before it (all tracked columns equal), which then takes its values
// (rules R30-R33).
//
// Whether two versions are equal is known from their bytes, except where one
// leaves a column unchanged from what is stored (Absent) and the other names a
// value. Then the steps so far become a Round of their own, and the version is
// judged as a first step against what that Round stored. This happens at most once
// a column and key in a batch: a named value is known from then on.
type fold2 struct {
	*shaper
	index     keyIndex
	nodes     []node2
	steps     []Step
	pending   []int32 // nodes with a pending state, in order of first touch
	truncated bool    // in the transaction that is being read
	rounds    []Round
}

type lifeState uint8

const (
	unknown lifeState = iota // whatever is stored
	alive
	dead
)

// version is a row on its way: Absent columns come from the open version stored
// at origin before the round.
type version struct {
	row     change.Row
	partial bool
	origin  Key
}

type node2 struct {
	state lifeState // after the last finished transaction
	last  version
	step  int // index in steps of the node's last one

	pend      lifeState
	next      version
	pendStart Key // key at which the pending row stood when this transaction began
}

func (f *fold2) node(key Key) int32 {
	n, found := f.index.lookup(key)
	if !found {
		f.nodes = append(f.nodes, node2{})
	}
	return int32(n)
}

// current returns the state of key as the transaction sees it, and where the row
// stood when the transaction began.
func (f *fold2) current(n int32) (lifeState, version, Key) {
	d := &f.nodes[n]
	if d.pend != unknown {
		return d.pend, d.next, d.pendStart
	}
	if f.truncated {
		return dead, version{}, nil
	}
	return d.state, d.last, f.index.keys[n]
}

func (f *fold2) set(n int32, s lifeState, v version, start Key) {
	d := &f.nodes[n]
	if d.pend == unknown {
		f.pending = append(f.pending, n)
	}
	d.pend, d.next, d.pendStart = s, v, start
}

func (f *fold2) truncate() {
	for _, n := range f.pending {
		f.set(n, dead, version{}, nil)
	}
	f.truncated = true
}

func (f *fold2) add(c *change.Change, im images) error {
	switch c.Op {
	case change.Insert:
		f.set(f.node(im.newKey), alive, version{row: im.row}, nil)
		return nil
	case change.Delete:
		f.set(f.node(im.oldKey), dead, version{}, nil)
		return nil
	}
	from := f.node(im.oldKey)
	state, before, start := f.current(from)
	v := version{row: im.row, partial: im.partial}
	if im.partial {
		switch state {
		case unknown:
			v.origin = im.oldKey
		case alive:
			var err error
			if v.row, v.partial, err = f.merge(im.row, before.row); err != nil {
				return err
			}
			v.origin = before.origin
		case dead:
			return fault.Corrupted("%s on %s leaves columns unchanged of a row that was deleted before it", c.Op, c.Table.Name)
		}
	}
	if bytes.Equal(im.oldKey, im.newKey) {
		f.set(from, alive, v, start)
		return nil
	}
	f.set(from, dead, version{}, nil)
	f.set(f.node(im.newKey), alive, v, start)
	return nil
}

func (f *fold2) endTx(at int64) error {
	if len(f.pending) == 0 && !f.truncated {
		return nil
	}
	if f.truncated {
		f.split()
	} else {
		for _, n := range f.pending {
			d := &f.nodes[n]
			if d.state == alive && d.pend == alive && f.compare(d.last, d.next) == maybe {
				f.split()
				break
			}
		}
	}
	for _, n := range f.pending {
		f.settle(n, at)
	}
	f.pending = f.pending[:0]
	if f.truncated {
		f.truncated = false
		f.rounds = append(f.rounds, Round{Truncate: true, TruncateAt: at, Steps: f.inKeyOrder()})
		f.restart()
	}
	return nil
}

// settle turns a node's pending state into a step, or lets the version continue.
func (f *fold2) settle(n int32, at int64) {
	d := &f.nodes[n]
	pend, next := d.pend, d.next
	d.pend, d.next, d.pendStart = unknown, version{}, nil
	if d.state == dead && pend == dead {
		return
	}
	if d.state == alive && pend == alive && f.compare(d.last, next) == equal {
		// The run goes on with the newest values (R32).
		s := &f.steps[d.step]
		s.Row, s.Origin = next.row, next.fill()
		d.last = next
		return
	}
	s := Step{Key: f.index.keys[n], N: 1, Lo: at}
	if d.state != unknown {
		prev := &f.steps[d.step]
		s.N = prev.N + 1
		s.Lo = max(at, prev.Lo+1)
		s.LoVoid = at
		if prev.N > 1 {
			s.LoVoid = max(at, prev.LoVoid+1)
		}
	}
	if pend == alive {
		s.Row, s.Origin = next.row, next.fill()
	}
	d.step, d.state, d.last = len(f.steps), pend, next
	f.steps = append(f.steps, s)
}

func (v version) fill() Key {
	if !v.partial {
		return nil
	}
	return v.origin
}

type likeness uint8

const (
	differ likeness = iota
	equal
	maybe // only the stored row can tell
)

// compare compares tracked columns of two versions in flight.
func (f *fold2) compare(a, b version) likeness {
	result := equal
	ra, rb := a.row, b.row
	for i := range f.target.Columns {
		v, restA, err1 := ra.Next()
		w, restB, err2 := rb.Next()
		if err1 != nil || err2 != nil {
			return differ // rows were walked when they came; not reached
		}
		ra, rb = restA, restB
		if col := &f.target.Columns[i]; !col.Tracked || col.Key {
			continue
		}
		switch {
		case v.State == change.Absent && w.State == change.Absent:
			if !bytes.Equal(a.origin, b.origin) {
				result = maybe
			}
		case v.State == change.Absent || w.State == change.Absent:
			result = maybe
		case !v.Equal(w):
			return differ
		}
	}
	return result
}

// split makes a Round of the finished transactions. What the running one still
// takes from "before" is from then on what the Round stores.
func (f *fold2) split() {
	if len(f.steps) > 0 {
		f.rounds = append(f.rounds, Round{Steps: f.inKeyOrder()})
	}
	type carried struct {
		key   Key
		pend  lifeState
		next  version
		start Key
	}
	keep := make([]carried, 0, len(f.pending))
	for _, n := range f.pending {
		d := &f.nodes[n]
		c := carried{f.index.keys[n], d.pend, d.next, d.pendStart}
		if c.next.partial && c.start != nil {
			c.next.origin = c.start
		}
		keep = append(keep, c)
	}
	f.restart()
	for _, c := range keep {
		f.set(f.node(c.key), c.pend, c.next, c.start)
	}
}

func (f *fold2) restart() {
	f.index.reset()
	clear(f.nodes)
	f.nodes = f.nodes[:0]
	f.pending = f.pending[:0]
	f.steps = nil
}

// inKeyOrder returns the steps sorted by key, then N.
func (f *fold2) inKeyOrder() []Step {
	single := len(f.steps) == len(f.nodes)
	if single { // one step a key: nodes and steps may still differ in order
		sorted := make([]Step, 0, len(f.steps))
		for _, n := range f.index.sorted() {
			if f.nodes[n].state != unknown && f.steps[f.nodes[n].step].N == 1 {
				sorted = append(sorted, f.steps[f.nodes[n].step])
			}
		}
		if len(sorted) == len(f.steps) {
			return sorted
		}
	}
	rank := make([]int32, len(f.nodes))
	count := make([]int32, len(f.nodes)+1)
	order := f.index.sorted()
	for r, n := range order {
		rank[n] = int32(r)
	}
	// Steps of a key were appended in order of N, so a stable placement by rank is
	// all that is needed.
	nodeOf := make([]int32, len(f.steps))
	for i := range f.steps {
		n, _ := f.index.lookup(f.steps[i].Key)
		nodeOf[i] = int32(n)
		count[rank[n]+1]++
	}
	for r := 1; r < len(count); r++ {
		count[r] += count[r-1]
	}
	sorted := make([]Step, len(f.steps))
	for i := range f.steps {
		r := rank[nodeOf[i]]
		sorted[count[r]] = f.steps[i]
		count[r]++
	}
	return sorted
}

func (f *fold2) take() []Round {
	if len(f.steps) > 0 {
		f.rounds = append(f.rounds, Round{Steps: f.inKeyOrder()})
	}
	f.restart()
	rounds := f.rounds
	f.rounds = nil
	return rounds
}
