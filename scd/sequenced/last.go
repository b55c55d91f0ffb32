package sequenced

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// A DELETE of a table whose log sends only keys says which row went, and not at which
// sequence. It stands behind the flow's last event of the key *in the order of the
// log*: that was the row that went. In type 1 it takes that event's sequence, and its
// own place in the log orders it behind; in type 2 it has a sequence of its own
// (delete_sequence), which only must lie above.
//
// So the lane has to know, of each key and each flow on a table, the last event in
// the log. Mostly that is the newest event of the key, which is remembered anyway.
// Where it is not (the sequence went back, or another flow's event is newer) the
// newest event's record names it: sequence and place, in its body. The newest record
// of a key is read with every lookup and written with every change of the key, so
// nothing has to be looked up besides, and what is remembered of a key still goes all
// at once: with a truncate, with its retention. A record of its own would have to be
// told apart in all of these.
//
// What is known of the last event may be stale in records that are not the newest any
// more. It does no harm: the last is the highest place in the log of all that is seen.

// spot is an event of a flow on a table, by its place in the log.
type spot struct {
	flow  int // in Lane.follows
	at    []byte
	seq   []byte // empty: the event was set aside, nobody knows
	event *event // of the batch; nil: remembered
}

// Mark tells that an event of a flow on a table was set aside: a DELETE that follows
// it in the log cannot take its place before the event has.
func (l *Lane) Mark(key []byte, at []byte, time int64) { l.mark(key, Place{At: at}, time) }

// mark is Mark of an event whose sequence may be known: then a DELETE that follows it
// takes its place behind it, whether it comes back or not.
func (l *Lane) mark(key []byte, p Place, time int64) {
	if l.followed(p.At) < 0 {
		return
	}
	n := l.node(key)
	d := &l.nodes[n]
	d.marked = true
	l.events = append(l.events, event{Event: Event{Key: d.key, Place: p, Time: time}, before: d.events, mark: true})
	d.events = int32(len(l.events))
}

// followed returns which of the flows on tables a place in the source is of; -1: none.
func (l *Lane) followed(at []byte) int {
	if len(l.follows) == 0 || len(at) != placeInLog || at[0] != fromLog {
		return -1
	}
	return slices.Index(l.follows, binary.BigEndian.Uint16(at[placeInLog-2:]))
}

// arrange takes the key's events and records in l.some and l.held, finds what is last
// in the log, and places what stands behind others. Marks are left out of both lists;
// records of them are returned.
func (l *Lane) arrange(d *node, aside *[]Aside) (marks []*record, err error) {
	l.spots = l.spots[:0]
	for _, h := range l.held {
		if len(h.Seq) == 0 {
			marks = append(marks, h)
		}
		l.spot(h.Seq, h.At, nil)
		if err := eachLast(h.last, func(seq, at []byte) { l.spot(seq, at, nil) }); err != nil {
			return nil, fault.Corrupted("target %s: %v", l.target.Name, err)
		}
	}
	if marks != nil {
		l.held = slices.DeleteFunc(l.held, func(h *record) bool { return len(h.Seq) == 0 })
	}
	for _, e := range l.some {
		l.spot(e.Place.Seq, e.Place.At, e)
	}
	l.latest = l.latest[:0]
	for range l.follows {
		l.latest = append(l.latest, -1)
	}
	if d.behind {
		slices.SortStableFunc(l.spots, compareSpots)
		if err := l.place(aside); err != nil {
			return nil, err
		}
	} else {
		for i := range l.spots {
			s := &l.spots[i]
			if was := l.latest[s.flow]; was < 0 || compareSpots(l.spots[was], *s) <= 0 {
				l.latest[s.flow] = i
			}
		}
	}
	if d.behind || d.marked {
		l.some = slices.DeleteFunc(l.some, func(e *event) bool { return e.mark || e.gone })
	}
	return marks, nil
}

func (l *Lane) spot(seq, at []byte, e *event) {
	if f := l.followed(at); f >= 0 {
		l.spots = append(l.spots, spot{flow: f, at: at, seq: seq, event: e})
	}
}

// compareSpots orders by place in the log; a mark comes before the event that it
// stood for.
func compareSpots(a, b spot) int {
	if c := bytes.Compare(a.at, b.at); c != 0 {
		return c
	}
	return min(len(a.seq), 1) - min(len(b.seq), 1)
}

// place goes through the key's log and places the events that stand behind others.
func (l *Lane) place(aside *[]Aside) error {
	for i := range l.spots {
		s := &l.spots[i]
		e := s.event
		if e == nil || e.Behind == BehindNothing {
			l.latest[s.flow] = i
			continue
		}
		base, last := e.Base, l.latest[s.flow]
		var newest *record
		if e.Behind == BehindNewest {
			if newest = l.newestHeld(); newest == nil || newest.delete {
				e.gone = true
				l.counts.Events-- // the key has no row: it says nothing of it
				continue
			}
		}
		switch {
		case base != nil:
		case newest != nil:
			base = newest.Seq
		case last >= 0 && len(l.spots[last].seq) > 0:
			base = l.spots[last].seq
		case last < 0 && l.shotLast():
			base = l.newestHeld().Seq // the row that went came with a snapshot
		case last < 0 && (len(l.head.Horizon) > 0 || !l.head.Truncated.IsZero() || !l.base.IsZero()):
			// What is forgotten shows no row any more.
			e.gone = true
			l.counts.Unknown++
			continue
		default:
			e.gone = true
			*aside = append(*aside, Aside{Event: e.Event, Reason: lastUnknown, Bad: true})
			continue
		}
		bad, err := l.behind(e, base)
		if err != nil {
			return err
		}
		if bad != "" {
			e.gone = true
			*aside = append(*aside, Aside{Event: e.Event, Reason: bad, Bad: true})
			continue
		}
		s.seq = e.Place.Seq
		l.latest[s.flow] = i
	}
	return nil
}

const (
	beyondHorizon = "it is older than the deletes that are still remembered (tombstone_retention), and its key is unknown: the row may have been deleted"
	lastUnknown   = "the log sent only the key of the row that went, and the event before it is set aside or unknown: there is no sequence to stand behind; retry it after that one"
	lastInfinite  = "the sequence of the row that was deleted is no instant to end it after"
)

func (l *Lane) newestHeld() (newest *record) {
	for _, h := range l.held {
		if newest == nil || newest.place().Before(h.place()) {
			newest = h
		}
	}
	return newest
}

// behind gives an event its sequence: that of the event it stands behind, or its own
// if that lies above.
func (l *Lane) behind(e *event, base []byte) (bad string, err error) {
	if l.target.Kind == scd.Type1 {
		e.Place.Seq = base
		return "", nil
	}
	if bytes.Compare(e.Place.Seq, base) > 0 {
		return "", nil
	}
	kind := change.Other
	if l.target.Sequence != nil {
		kind = l.target.Sequence.Kind
	}
	if kind != change.Timestamp && kind != change.TimestampTZ {
		return "", &Park{
			Reason: "a row was deleted at a sequence that is not above that of its last version, and there is no smallest step to put it above",
			Remedy: "correct delete_sequence of the flow: what it names must be above the sequence of every row that goes",
		}
	}
	us := int64(binary.BigEndian.Uint64(base) ^ 1<<63) // appendInt's form
	if us == math.MaxInt64 || us == math.MinInt64 {
		return lastInfinite, nil
	}
	us++
	e.Place.Seq = appendInt(l.slab.Take(8), us)
	e.Start = change.Value{State: change.AsText, Data: pgvalue.AppendTimestamp(nil, us, pgvalue.Finite, kind == change.TimestampTZ)}
	return "", nil
}

// summon makes ready what the newest record of the key is to say of the last events
// in the log, and keeps a mark for a key that has nothing else.
func (l *Lane) summon(d *node, events []*event, held []*record, marks []*record, w *Work) {
	l.newest, l.last = Place{}, nil
	if len(events) > 0 {
		l.newest = events[len(events)-1].Place
	}
	if len(held) > 0 && !held[len(held)-1].place().Before(l.newest) {
		l.newest = held[len(held)-1].place()
	}
	only := l.newest.IsZero()
	if only && !d.marked {
		return
	}
	var time int64
	if only { // the highest mark stands for the key, and names itself if its sequence is known
		for _, i := range l.latest {
			if i >= 0 && bytes.Compare(l.spots[i].at, l.newest.At) > 0 {
				l.newest = Place{Seq: []byte{}, At: l.spots[i].at}
			}
		}
		if l.newest.At == nil {
			return
		}
		time = l.events[d.events-1].Time
	}
	for _, i := range l.latest {
		if i < 0 || bytes.Equal(l.spots[i].at, l.newest.At) && len(l.spots[i].seq) == len(l.newest.Seq) {
			continue
		}
		l.last = appendLast(l.last, l.spots[i].seq, l.spots[i].at)
	}
	for _, m := range marks {
		if !only || !bytes.Equal(m.At, l.newest.At) {
			w.Remove = append(w.Remove, m.ID())
		}
	}
	if only {
		l.put(w, d.key, l.newest, &stored{delete: true, last: l.last}, true, time)
	}
}

// retell rewrites the newest record of a key that gets nothing newer, if what it has
// to say of the last events in the log is new.
func (l *Lane) retell(d *node, held []*record, w *Work) {
	if len(held) > 0 {
		l.tell(d, held[len(held)-1], w)
	}
}

func (l *Lane) tell(d *node, newest *record, w *Work) {
	if len(l.follows) == 0 || bytes.Equal(newest.last, l.last) {
		return
	}
	next := newest.stored
	next.last = l.last
	l.put(w, d.key, newest.place(), &next, newest.Tombstone, newest.Time)
}

// appendLast and eachLast: sequence and place, each with its length in front.
func appendLast(dst, seq, at []byte) []byte {
	for _, b := range [][]byte{seq, at} {
		dst = append(binary.AppendUvarint(dst, uint64(len(b))), b...)
	}
	return dst
}

func eachLast(b []byte, fn func(seq, at []byte)) error {
	for len(b) > 0 {
		var parts [2][]byte
		for i := range parts {
			n, w := binary.Uvarint(b)
			if w <= 0 || n > uint64(len(b)-w) {
				return errBody
			}
			parts[i], b = b[w:w+int(n):w+int(n)], b[w+int(n):]
		}
		fn(parts[0], parts[1])
	}
	return nil
}

// Park is an error that concerns one target alone: it cannot go on, others can.
type Park struct{ Reason, Remedy string }

func (p *Park) Error() string { return strings.TrimSpace(p.Reason) }
