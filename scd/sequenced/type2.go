package sequenced

import (
	"bytes"
	"errors"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// life is a key's history at one moment: whether a version is open, its row, and
// where it began.
type life struct {
	open bool
	row  change.Row
	seq  []byte // of its start
	from []byte // its start as a value
}

// step is what all events of a key with one sequence say together (they compose in
// the order of their places in the source): nobody saw the states in between.
type step struct {
	seq, at []byte
	start   []byte
	delete  bool
	cleared bool         // a delete came before the row: unwritten columns are NULL, not inherited
	row     change.Row   // of its last event, with Absent columns
	older   []change.Row // of those before it that still count, newest first (partial updates)
	event   *event       // the last of its events; one of the two is set
	record  *record
}

// version is a visible row.
type version struct {
	seq, start []byte
	ended      bool
	end        []byte
	row        change.Row
}

// fold2 decides one key of a type 2 target. It walks the remembered suffix as it
// was and as it is with the new events, by the same rules, and writes what differs
// (rules R28-R42, R50).
func (l *Lane) fold2(d *node, events []*event, held []*record, w *Work, r *scd.Round) error {
	if len(events) == 0 {
		l.retell(d, held, w)
		return nil
	}
	var before life
	for len(held) > 0 && bytes.Compare(held[0].Seq, d.minSeq) < 0 {
		h := held[0]
		before = life{}
		if !h.delete {
			before = life{open: true, row: h.filledRow(), seq: h.Seq, from: h.start}
			if h.runSeq != nil {
				before.seq, before.from = h.runSeq, h.run
			}
		}
		held = held[1:]
	}
	l.steps[0] = l.compose(l.steps[0][:0], nil, held)
	var err error
	if l.versions[0], err = asStored(l.versions[0][:0], before, l.steps[0]); err != nil {
		return fault.Corrupted("target %s: %v", l.target.Name, err)
	}
	l.steps[1] = l.compose(l.steps[1][:0], events, held)
	if l.versions[1], err = l.walk(l.versions[1][:0], before, l.steps[1], w, d.key); err != nil {
		return err
	}
	// Events that are not the last of their step are remembered as they came.
	for _, e := range events {
		if !e.kept {
			s := e.stored()
			l.put(w, d.key, e.Place, &s, false, e.Time)
		}
	}
	difference(d.key, l.versions[0], l.versions[1], r)
	return nil
}

// compose groups events and records, merged in order, into steps.
func (l *Lane) compose(out []step, events []*event, held []*record) []step {
	for len(events) > 0 || len(held) > 0 {
		var s step
		if len(held) == 0 || len(events) > 0 && events[0].Place.Before(held[0].place()) {
			e := events[0]
			s = step{seq: e.Place.Seq, at: e.Place.At, start: e.Start.Data, delete: e.Delete, row: e.Row, event: e}
			events = events[1:]
		} else {
			h := held[0]
			s = step{seq: h.Seq, at: h.At, start: h.start, delete: h.delete, row: h.row, record: h}
			held = held[1:]
		}
		if len(out) == 0 || !bytes.Equal(out[len(out)-1].seq, s.seq) {
			out = append(out, s)
			continue
		}
		last := &out[len(out)-1]
		s.start = last.start // of the first: equal sequences may be spelled differently
		switch {
		case s.delete:
		case last.delete:
			s.cleared = true
		case l.partial:
			s.cleared = last.cleared
			s.older = append([]change.Row{last.row}, last.older...)
		}
		*last = s
	}
	return out
}

// asStored returns the visible versions as they are, from what the records say they
// led to.
func asStored(out []version, now life, steps []step) ([]version, error) {
	if now.open {
		out = append(out, version{seq: now.seq, start: now.from, row: now.row})
	}
	open := now.open
	for i := range steps {
		h := steps[i].record
		continues := !h.delete && h.runSeq != nil && !bytes.Equal(h.runSeq, h.Seq)
		if continues {
			if !open {
				return nil, errContinues
			}
			out[len(out)-1].row = h.filledRow()
			continue
		}
		if open {
			v := &out[len(out)-1]
			v.ended, v.end = true, steps[i].start
		}
		if open = !h.delete; open {
			v := version{seq: h.Seq, start: h.start, row: h.filledRow()}
			if h.runSeq != nil {
				v.start = h.run
			}
			out = append(out, v)
		}
	}
	return out, nil
}

var errContinues = errors.New("a remembered event continues a version that no other event began")

// walk lives through the steps and returns the visible versions they lead to. It
// remembers, with the last event of each step, where that step led.
func (l *Lane) walk(out []version, now life, steps []step, w *Work, key []byte) ([]version, error) {
	if now.open {
		out = append(out, version{seq: now.seq, start: now.from, row: now.row})
	}
	for i := range steps {
		s := &steps[i]
		closes := now.open
		continues := false
		if s.delete {
			now = life{}
		} else {
			row, err := l.fill(s, now)
			if err != nil {
				return nil, err
			}
			if now.open {
				if continues, err = l.sameTracked(now.row, row); err != nil {
					return nil, err
				}
			}
			if continues {
				now.row = row
			} else {
				now = life{open: true, row: row, seq: s.seq, from: s.start}
			}
		}
		switch {
		case continues:
			out[len(out)-1].row = now.row
		default:
			if closes {
				v := &out[len(out)-1]
				v.ended, v.end = true, s.start
			}
			if now.open {
				out = append(out, version{seq: now.seq, start: now.from, row: now.row})
			}
		}
		l.rememberStep(w, key, s, now, s.delete && !closes)
	}
	return out, nil
}

// rememberStep stores the last event of a step with where it led, if that is new.
func (l *Lane) rememberStep(w *Work, key []byte, s *step, now life, tombstone bool) {
	var own stored
	var time int64
	is := false
	if s.event != nil {
		own, time = s.event.stored(), s.event.Time
		s.event.kept = true
	} else {
		own, time = s.record.stored, s.record.Time
		is = s.record.Tombstone == tombstone
	}
	next := stored{delete: own.delete, row: own.row, start: own.start, last: own.last}
	if bytes.Equal(s.seq, l.newest.Seq) && bytes.Equal(s.at, l.newest.At) {
		next.last = l.last
	}
	if now.open {
		if !bytes.Equal(now.row, own.row) {
			next.filled = now.row
		}
		if !bytes.Equal(now.seq, s.seq) || !bytes.Equal(now.from, own.start) {
			next.runSeq, next.run = now.seq, now.from
		}
	}
	if is && bytes.Equal(next.filled, own.filled) && bytes.Equal(next.runSeq, own.runSeq) && bytes.Equal(next.run, own.run) && bytes.Equal(next.last, own.last) {
		return
	}
	l.put(w, key, Place{Seq: s.seq, At: s.at}, &next, tombstone, time)
}

func (s *stored) filledRow() change.Row {
	if s.filled != nil {
		return s.filled
	}
	return s.row
}

// fill returns the step's row with unwritten columns inherited from the open version,
// or NULL where there is none or a delete came in between (rule R50).
func (l *Lane) fill(s *step, now life) (change.Row, error) {
	if !l.partial {
		return s.row, nil
	}
	m := l.merger(len(l.target.Columns))
	if _, _, err := m.add(s.row); err != nil {
		return nil, err
	}
	for _, row := range s.older {
		if _, _, err := m.add(row); err != nil {
			return nil, err
		}
	}
	if now.open && !s.cleared {
		if _, _, err := m.add(now.row); err != nil {
			return nil, err
		}
	}
	return m.row(&l.slab), nil
}

// sameTracked compares the tracked columns of two complete rows, null-safe, by
// their stored bytes (rule R31).
func (l *Lane) sameTracked(a, b change.Row) (bool, error) {
	n := len(l.target.Columns)
	var err error
	if l.values[0], err = a.Values(l.values[0], n); err != nil {
		return false, err
	}
	if l.values[1], err = b.Values(l.values[1], n); err != nil {
		return false, err
	}
	for i := range l.target.Columns {
		if l.target.Columns[i].Tracked && !l.values[0][i].Equal(l.values[1][i]) {
			return false, nil
		}
	}
	return true, nil
}

// difference turns two lists of versions, each ordered by start, into work.
func difference(key []byte, was, is []version, r *scd.Round) {
	value := func(b []byte) change.Value { return change.Value{State: change.AsText, Data: b} }
	end := func(v *version) change.Value {
		if !v.ended {
			return change.Value{State: change.Null}
		}
		return value(v.end)
	}
	for len(was) > 0 || len(is) > 0 {
		order := 0
		switch {
		case len(was) == 0:
			order = 1
		case len(is) == 0:
			order = -1
		default:
			order = bytes.Compare(was[0].seq, is[0].seq)
		}
		switch {
		case order < 0:
			r.Drops = append(r.Drops, scd.VersionID{Key: key, Start: value(was[0].start)})
			was = was[1:]
			continue
		case order > 0:
			r.Begins = append(r.Begins, scd.Version{VersionEnd: scd.VersionEnd{VersionID: scd.VersionID{Key: key, Start: value(is[0].start)}, End: end(&is[0])}, Row: is[0].row})
			is = is[1:]
			continue
		}
		o, v := &was[0], &is[0]
		id := scd.VersionID{Key: key, Start: value(o.start)}
		switch {
		case !bytes.Equal(o.row, v.row):
			r.Drops = append(r.Drops, id)
			r.Begins = append(r.Begins, scd.Version{VersionEnd: scd.VersionEnd{VersionID: scd.VersionID{Key: key, Start: value(v.start)}, End: end(v)}, Row: v.row})
		case o.ended != v.ended || !bytes.Equal(o.end, v.end):
			r.Ends = append(r.Ends, scd.VersionEnd{VersionID: id, End: end(v)})
		}
		was, is = was[1:], is[1:]
	}
}
