// Package sequenced is the lane for targets whose events carry a sequence of the
// user: they may arrive in any order, late, twice, and cut into batches in any way,
// and the target is a function of the *set* of them (rule R1). It is pure: no
// clock, no database, no goroutine.
package sequenced

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// Lane gathers the events of a batch for one target and turns them, with what is
// remembered of the keys they touch, into the batch's work.
//
// What is remembered is events: those that could still matter for an event that
// comes late. In type 1 that is the newest event of a key, and with partial updates
// every event that still owns a column; a delete owns every column that nothing
// newer wrote (rules R47-R49). In type 2 it is every event, because a late one may
// split any version (rule R40), and with each the row it led to and where its
// version began, so that only the suffix from the earliest new event on has to be
// read (rule R41). Bitemporal it is every event too, and all of a key are read
// (bitemporal.go). The visible table follows from the remembered events alone; it
// is written, never read.
//
// Use: Add and Truncate for the batch, then Lookups, then Remember for every record
// found, then Take. A Lane is used by one goroutine; what it returns aliases what
// it was given and its own memory until the next Take.
type Lane struct {
	target  *scd.Target // as it is declared
	table   *scd.Target // bitemporal: what its destination keeps
	partial bool        // rows may have Absent columns
	merge   []bool
	anyJSON bool
	beyond  bool // quarantine events below the horizon instead of applying them

	head     Head
	base     Base
	truncate Place  // the highest of this batch
	define   []byte // to be remembered with the next work
	compared *Base  // likewise

	index  map[string]int32
	nodes  []node
	events []event
	found  []record
	order  []keyed // nodes by key, once that is needed
	answer int     // in order: whose record came last
	counts Counts

	follows []uint16 // see Options
	spots   []spot   // of one key
	latest  []int    // by flow of follows: the last of its spots so far, -1: none
	newest  Place    // of the key: where last is remembered
	last    []byte   // with it: of each flow of follows the last event in the log, if it is another

	slab     scd.Arena // rows and bodies
	m        merger
	some     []*event  // of one key
	held     []*record // of one key
	values   [2][]change.Value
	steps    [2][]step
	versions [2][]version
	known    []witness
	beliefs  [2]belief

	settled int     // in order: keys that are decided already
	early   decided // of them
}

// decided is work so far.
type decided struct {
	work  Work
	round scd.Round
	aside []Aside
}

// Options say what a target's lane has to reckon with.
type Options struct {
	Partial bool // rows may have Absent columns (ignore_null_updates, columns_to_update, row images)
	// Merge marks columns (JSONB) whose objects are written leaf by leaf (rules R45, R47).
	Merge []bool
	// QuarantineBeyond sets events aside that concern an unknown key and lie below the
	// horizon of forgotten deletes; otherwise they are applied and counted.
	QuarantineBeyond bool
	// Follows are the orders of flows on tables (not feeds): their DELETEs may have to
	// stand behind the flow's last event of the key in the log.
	Follows []uint16
}

// Counts are what happened to the events of a batch; or, as a destination keeps them,
// to those of a target since its first copy began, without Events.
type Counts struct {
	Events     int // added
	Duplicates int // delivered before: nothing to do
	Late       int // not the newest of their key when they arrived
	Ties       int // an equal sequence on another event of the key; decided by place in the source
	Truncated  int // below the truncate number, or below the newest snapshot
	Beyond     int // of an unknown key, below the horizon: possibly resurrected, or set aside
	Unknown    int // DELETEs of rows of which nothing is remembered any more: nothing to do
	Forgotten  int // remembered deletes that were forgotten; the destination counts them
}

// Kept are the counts that a destination adds to those it keeps. The number of all
// events is none of them: so a batch in which everything came in order writes nothing.
func (c Counts) Kept() Counts {
	c.Events = 0
	return c
}

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	c.Events += o.Events
	c.Duplicates += o.Duplicates
	c.Late += o.Late
	c.Ties += o.Ties
	c.Truncated += o.Truncated
	c.Beyond += o.Beyond
	c.Unknown += o.Unknown
	c.Forgotten += o.Forgotten
}

// Work is what a destination stores of the lane, in the same transaction as the rows.
type Work struct {
	// TruncateBelow, if not zero: first of all, forget every record below it and remove
	// the visible row of each key whose newest record that was.
	TruncateBelow Place
	Remove        []RecordID
	Put           []Record // new, or replacing the one with its identity
	Head          Head
	HeadChanged   bool // store Head
	// ForgetBefore, if not 0: at the end, forget every Tombstone with a Time below it
	// (µs since the Unix epoch), and raise the stored Head's Horizon to the highest
	// sequence of those.
	ForgetBefore int64
	// Counts of the batch; its Kept are added to those of the target.
	Counts Counts
}

// Empty reports whether there is nothing to store.
func (w *Work) Empty() bool {
	return w.TruncateBelow.IsZero() && len(w.Remove) == 0 && len(w.Put) == 0 && !w.HeadChanged && w.ForgetBefore == 0 && w.Counts.Kept() == (Counts{})
}

type node struct {
	key    []byte
	events int32 // the last of its events in Lane.events + 1; each knows the one before
	found  int32 // likewise of its records
	minSeq []byte
	newest Place // of the events added so far
	behind bool  // some have no place yet
	marked bool  // Mark
}

// keyed is a node in the order of keys. Most keys are told apart by eight bytes, which
// spares looking at the rest.
type keyed struct {
	prefix uint64
	node   int32
}

type event struct {
	Event
	before int32
	late   bool
	mark   bool // see Mark
	gone   bool // no event after all
	kept   bool // type 2: remembered already, as the last of its step
}

// stored is the event as it is remembered, before it is known where it led.
func (e *event) stored() stored {
	return stored{delete: e.Delete, row: e.Row, start: e.Start.Data, system: e.System, systemStart: e.SystemStart.Data}
}

type record struct {
	Record
	stored
	before int32
}

// New makes the lane of t, whose Head the destination remembers.
func New(t *scd.Target, o Options, h Head) *Lane {
	l := &Lane{target: t.Declared(), table: t, partial: o.Partial, merge: o.Merge, beyond: o.QuarantineBeyond, follows: o.Follows, head: h, index: map[string]int32{}}
	l.anyJSON = slices.Contains(o.Merge, true)
	return l
}

// definition is where the target's definition is remembered: under no key, above
// every sequence, so that nothing else ever concerns it.
var definition = RecordID{Key: []byte{}, Seq: bytes.Repeat([]byte{0xFF}, 16), At: []byte{}}

// DefinitionLookup asks for the record that remembers the target's definition.
func DefinitionLookup() Lookup { return Lookup{Key: definition.Key, Seq: definition.Seq} }

// Define remembers, with the next work, what must not change while the rest is
// remembered (rules R10, R11, R43).
func (l *Lane) Define(text string) { l.define = []byte(text) }

// Head returns what is remembered of the target as a whole.
func (l *Lane) Head() Head { return l.head }

// Forgot tells that deletes up to the given sequence are no longer remembered.
func (l *Lane) Forgot(seq []byte) (changed bool) {
	if bytes.Compare(seq, l.head.Horizon) <= 0 {
		return false
	}
	l.head.Horizon = bytes.Clone(seq)
	return true
}

// Add takes one event.
func (l *Lane) Add(e Event) {
	l.counts.Events++
	n := l.node(e.Key)
	d := &l.nodes[n]
	if d.minSeq == nil || bytes.Compare(e.Place.Seq, d.minSeq) < 0 {
		d.minSeq = e.Place.Seq
	}
	late, when := false, e.Place
	if e.System != nil {
		when.Seq = e.System // what became known later is nothing late
	}
	if e.Behind != BehindNothing {
		d.behind = true
	} else if late = when.Before(d.newest); !late {
		d.newest = when
	}
	l.events = append(l.events, event{Event: e, before: d.events, late: late})
	d.events = int32(len(l.events))
}

func (l *Lane) node(key []byte) int32 {
	n, ok := l.index[string(key)]
	if !ok {
		n = int32(len(l.nodes))
		l.index[string(key)] = n
		l.nodes = append(l.nodes, node{key: key})
	}
	return n
}

// Truncate takes a truncate event (type 1 only, rules R23-R26).
func (l *Lane) Truncate(p Place) {
	l.counts.Events++
	if l.base.covers(p) {
		l.counts.Truncated++
		return
	}
	if l.truncate.Before(p) {
		l.truncate = p
	}
}

// Truncates returns the batch's truncate if it is above all earlier ones. With
// partial updates the caller then passes every key that has a record below it to
// Touch: such a row may stay, and lose columns (rule R49).
func (l *Lane) Truncates() (p Place, raised bool) {
	return l.truncate, l.head.Truncated.Before(l.truncate)
}

// Touch makes the lane look at a key although no event of the batch concerns it.
func (l *Lane) Touch(key []byte) { l.node(key) }

// Partial reports whether rows may be written in part.
func (l *Lane) Partial() bool { return l.partial }

// Size returns how many events are gathered.
func (l *Lane) Size() int { return len(l.events) }

// byKey orders the nodes by their keys: index locality, here and in the destination.
func (l *Lane) byKey() []keyed {
	if len(l.order) == len(l.nodes) {
		return l.order
	}
	l.order, l.answer = l.order[:0], 0
	same := 0 // bytes that all keys begin with
	for i := range l.nodes {
		key := l.nodes[i].key
		if i == 0 {
			same = len(key)
		}
		for first := l.nodes[0].key; !bytes.HasPrefix(key, first[:same]); {
			same--
		}
	}
	for i := range l.nodes {
		var eight [8]byte
		copy(eight[:], l.nodes[i].key[same:])
		l.order = append(l.order, keyed{prefix: binary.BigEndian.Uint64(eight[:]), node: int32(i)})
	}
	slices.SortFunc(l.order, func(a, b keyed) int {
		if c := cmp.Compare(a.prefix, b.prefix); c != 0 {
			return c
		}
		return bytes.Compare(l.nodes[a.node].key, l.nodes[b.node].key)
	})
	return l.order
}

// asked finds the node of a key that was looked up. Destinations mostly answer in the
// order of the lookups, which spares a search.
func (l *Lane) asked(key []byte) (node int32, ok bool) {
	for i := l.answer; i < min(l.answer+2, len(l.order)); i++ {
		if n := l.order[i].node; bytes.Equal(l.nodes[n].key, key) {
			l.answer = i
			return n, true
		}
	}
	node, ok = l.index[string(key)]
	return node, ok
}

// Lookups returns what has to be read before Take, sorted by key.
func (l *Lane) Lookups() []Lookup {
	out := make([]Lookup, len(l.nodes))
	for i, k := range l.byKey() {
		n := &l.nodes[k.node]
		out[i].Key = n.key
		if l.target.Kind == scd.Type2 {
			if out[i].Seq = n.minSeq; out[i].Seq == nil {
				out[i].Seq = definition.Seq // no event has a place: the newest record is enough
			}
		}
	}
	return out
}

// Remember takes one record that answers a Lookup. The lane keeps r's memory.
func (l *Lane) Remember(r Record) error {
	n, ok := l.asked(r.Key)
	if !ok {
		return fault.Corrupted("target %s: the destination gave a record of a key that was not asked for", l.target.Name)
	}
	s, err := l.open(r.Body)
	if err != nil {
		return err
	}
	if l.target.Kind == scd.Bitemporal && s.system == nil && len(r.Seq) > 0 {
		return fault.Corrupted("target %s: %v", l.target.Name, errBody)
	}
	d := &l.nodes[n]
	l.found = append(l.found, record{Record: r, stored: s, before: d.found})
	d.found = int32(len(l.found))
	return nil
}

// open takes a remembered body apart.
func (l *Lane) open(body []byte) (s stored, err error) {
	if s, err = decode(body); err != nil {
		return s, fault.Corrupted("target %s: %v", l.target.Name, err)
	}
	if s.row, err = l.widen(s.row, l.partial); err == nil {
		s.filled, err = l.widen(s.filled, false)
	}
	if err != nil {
		return s, fault.Corrupted("target %s: a remembered row cannot be read: %v", l.target.Name, err)
	}
	return s, nil
}

// widen gives a row that was remembered before the target got its newest columns
// those columns: not written, or NULL (rule R98).
func (l *Lane) widen(row change.Row, absent bool) (change.Row, error) {
	if row == nil {
		return nil, nil
	}
	rest, n := row, 0
	for ; len(rest) > 0; n++ {
		var err error
		if _, rest, err = rest.Next(); err != nil {
			return nil, err
		}
	}
	if n > len(l.target.Columns) {
		return nil, change.ErrTruncatedRow
	}
	state := change.Null
	if absent {
		state = change.Absent
	}
	for ; n < len(l.target.Columns); n++ {
		row = append(row[:len(row):len(row)], byte(state))
	}
	return row, nil
}

// Take returns the batch's work and empties the lane. Aside are the events that
// were set aside by the rule of the horizon. On an error nothing is lost: the
// lane's head is as it was.
func (l *Lane) Take() (w Work, r scd.Round, aside []Aside, c Counts, err error) {
	if p, raised := l.Truncates(); raised {
		l.head.Truncated, w.TruncateBelow, w.HeadChanged = clonePlace(p), p, true
	}
	w.Put = make([]Record, 0, len(l.events)+1)
	switch l.target.Kind {
	case scd.Bitemporal:
		if l.settled > 0 {
			w, r, aside = l.early.work, l.early.round, l.early.aside
		}
	case scd.Type2:
		r.Ends, r.Begins = make([]scd.VersionEnd, 0, len(l.nodes)), make([]scd.Version, 0, len(l.events))
	default:
		w.Remove, r.Upserts = make([]RecordID, 0, len(l.found)), make([]change.Row, 0, len(l.nodes))
	}
	for _, k := range l.byKey()[l.settled:] {
		if err = l.decide(&l.nodes[k.node], &w, &r, &aside); err != nil {
			return Work{}, scd.Round{}, nil, Counts{}, err
		}
	}
	l.settled, l.early = 0, decided{}
	if l.define != nil {
		w.Put = append(w.Put, definitionRecord(string(l.define)))
		l.define = nil
	}
	if l.compared != nil {
		w.Put = append(w.Put, l.compared.record())
		w.Remove = append(w.Remove, Failed{}.id())
		l.base, l.compared = *l.compared, nil
	}
	w.Head = l.head
	c, w.Counts = l.counts, l.counts
	l.counts, l.truncate = Counts{}, Place{}
	l.index = make(map[string]int32, len(l.nodes))
	clear(l.nodes)
	clear(l.events)
	clear(l.found)
	l.nodes, l.events, l.found, l.order = l.nodes[:0], l.events[:0], l.found[:0], l.order[:0]
	return w, r, aside, c, nil
}

// decide folds one key.
func (l *Lane) decide(d *node, w *Work, r *scd.Round, aside *[]Aside) (err error) {
	l.some, l.held = l.some[:0], l.held[:0]
	for i := d.events; i > 0; i = l.events[i-1].before {
		l.some = append(l.some, &l.events[i-1])
	}
	for i := d.found; i > 0; i = l.found[i-1].before {
		l.held = append(l.held, &l.found[i-1])
	}
	var marks []*record
	if len(l.follows) > 0 {
		if marks, err = l.arrange(d, aside); err != nil {
			return err
		}
	}
	if len(l.some) > 1 {
		slices.SortFunc(l.some, func(a, b *event) int { return a.Place.Compare(b.Place) })
	}
	if len(l.held) > 1 {
		slices.SortFunc(l.held, func(a, b *record) int { return a.place().Compare(b.place()) })
	}
	events, held := l.admit(l.some, l.held, aside)
	if len(l.follows) > 0 {
		l.summon(d, events, held, marks, w)
	}
	switch l.target.Kind {
	case scd.Bitemporal:
		return l.foldBitemporal(d, events, held, w, r)
	case scd.Type2:
		return l.fold2(d, events, held, w, r)
	}
	return l.fold1(d, events, held, w, r)
}

// Settle decides the next so many keys of Lookups, whose records have been remembered,
// ahead of Take, and lets go of what is remembered. So not all that is remembered of a
// batch's keys has to be held at once. It is for bitemporal targets.
func (l *Lane) Settle(keys int) error {
	for _, k := range l.byKey()[l.settled : l.settled+keys] {
		if err := l.decide(&l.nodes[k.node], &l.early.work, &l.early.round, &l.early.aside); err != nil {
			return err
		}
	}
	l.settled += keys
	clear(l.found)
	l.found = l.found[:0]
	return nil
}

// admit leaves out what cannot matter: redelivered events, what lies below the
// truncate number, and what the rule of the horizon sets aside.
func (l *Lane) admit(events []*event, held []*record, aside *[]Aside) ([]*event, []*record) {
	if !l.head.Truncated.IsZero() {
		for len(held) > 0 && held[0].place().Compare(l.head.Truncated) <= 0 {
			held = held[1:]
		}
	}
	var newest Place
	if len(held) > 0 {
		newest = held[len(held)-1].place()
	}
	out := events[:0]
	h := 0
	for i, e := range events {
		if i > 0 && len(out) > 0 && e.Place.Compare(out[len(out)-1].Place) == 0 {
			l.counts.Duplicates++
			continue
		}
		if e.Place.Compare(l.head.Truncated) <= 0 && !l.head.Truncated.IsZero() || l.base.covers(e.Place) {
			l.counts.Truncated++
			continue
		}
		for h < len(held) && held[h].place().Before(e.Place) {
			h++
		}
		if h < len(held) && held[h].place().Compare(e.Place) == 0 {
			l.counts.Duplicates++
			continue
		}
		if l.target.Kind == scd.Bitemporal { // it counts the rest by the other axis
			out = append(out, e)
			continue
		}
		if h < len(held) && bytes.Equal(held[h].Seq, e.Place.Seq) || h > 0 && bytes.Equal(held[h-1].Seq, e.Place.Seq) ||
			len(out) > 0 && bytes.Equal(out[len(out)-1].Place.Seq, e.Place.Seq) {
			l.counts.Ties++
		}
		if e.late || e.Place.Before(newest) {
			l.counts.Late++
		}
		if len(held) == 0 && l.head.Horizon != nil && bytes.Compare(e.Place.Seq, l.head.Horizon) <= 0 && !e.Delete {
			l.counts.Beyond++
			if l.beyond {
				*aside = append(*aside, Aside{Event: e.Event, Reason: beyondHorizon})
				continue
			}
		}
		out = append(out, e)
	}
	return out, held
}

func clonePlace(p Place) Place { return Place{Seq: bytes.Clone(p.Seq), At: bytes.Clone(p.At)} }

// put stores s as the record of an event.
func (l *Lane) put(w *Work, key []byte, p Place, s *stored, tombstone bool, time int64) {
	w.Put = append(w.Put, Record{Key: key, Seq: p.Seq, At: p.At, Body: s.encode(l.slab.Take(s.size())), Tombstone: tombstone, Time: time})
}
