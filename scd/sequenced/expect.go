package sequenced

import (
	"bytes"
	"slices"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// Expectation says what a target must hold, from what is remembered of it alone: of
// type 1 the row of each key whose newest event is no delete, of type 2 the versions
// that the events led to. Add takes all records, those of one key one after the other in
// the order of their places; End ends the last key. Both hand on what must be there.
type Expectation struct {
	lane *Lane
	fn   func(Expected) error
	held []record

	overlaps int
}

// Overlaps returns how many rows of a bitemporal target overlap another of their key on
// both axes, of the keys that have ended: none, unless the lane is wrong.
func (x *Expectation) Overlaps() int { return x.overlaps }

// Expected is a row that a target must hold; valid during the call.
type Expected struct {
	Key scd.Key
	// Row is the whole row. nil: its columns beside the key are not remembered (type 1
	// where events write whole rows: the target alone has them).
	Row        change.Row
	Start, End change.Value // type 2
}

// Expect makes an Expectation of t; fn is called for each row.
func Expect(t *scd.Target, o Options, head Head, fn func(Expected) error) *Expectation {
	return &Expectation{lane: New(t, o, head), fn: fn}
}

// Add takes the next record. It keeps the record's memory until the key's end.
func (x *Expectation) Add(r Record) error {
	if len(r.Key) == 0 {
		return nil // about the target itself
	}
	if len(x.held) > 0 && !bytes.Equal(x.held[0].Key, r.Key) {
		if err := x.End(); err != nil {
			return err
		}
	}
	s, err := x.lane.open(r.Body)
	if err != nil {
		return err
	}
	x.held = append(x.held, record{Record: r, stored: s})
	return nil
}

// End ends the present key.
func (x *Expectation) End() error {
	if len(x.held) == 0 {
		return nil
	}
	held := x.lane.held[:0]
	for i := range x.held {
		held = append(held, &x.held[i])
	}
	x.lane.held, x.held = held, x.held[:0]
	switch x.lane.target.Kind {
	case scd.Bitemporal:
		return x.facts(held)
	case scd.Type2:
		return x.versions(held)
	}
	return x.row(held)
}

func (x *Expectation) row(held []*record) error {
	newest := held[len(held)-1]
	if newest.delete {
		return nil
	}
	e := Expected{Key: newest.Key}
	if x.lane.partial {
		m := x.lane.merger(len(x.lane.target.Columns))
		whole := true
		for i := len(held) - 1; i >= 0 && !held[i].delete; i-- {
			if held[i].row == nil { // from a time when events wrote whole rows
				whole = false
				break
			}
			if _, _, err := m.add(held[i].row); err != nil {
				return x.unreadable(err)
			}
		}
		if whole {
			e.Row = m.row(&x.lane.slab)
		}
	}
	return x.fn(e)
}

func (x *Expectation) versions(held []*record) error {
	x.lane.steps[0] = x.lane.compose(x.lane.steps[0][:0], nil, held)
	var err error
	if x.lane.versions[0], err = asStored(x.lane.versions[0][:0], life{}, x.lane.steps[0]); err != nil {
		return x.unreadable(err)
	}
	for i := range x.lane.versions[0] {
		v := &x.lane.versions[0][i]
		e := Expected{Key: held[0].Key, Row: v.row, Start: change.Value{State: change.AsText, Data: v.start}, End: change.Value{State: change.Null}}
		if v.ended {
			e.End = change.Value{State: change.AsText, Data: v.end}
		}
		if err := x.fn(e); err != nil {
			return err
		}
	}
	return nil
}

func (x *Expectation) facts(held []*record) error {
	key := held[0].Key
	held = slices.DeleteFunc(held, func(h *record) bool { return len(h.Seq) == 0 }) // they tell of a log alone
	b := &x.lane.beliefs[0]
	b.reset(x.lane)
	if err := b.all(x.lane.witnesses(nil, held)); err != nil {
		return x.unreadable(err)
	}
	x.overlaps += overlaps(b.facts, b.closed)
	for i := range b.facts {
		row, err := x.lane.factRow(&b.facts[i])
		if err != nil {
			return x.unreadable(err)
		}
		if err := x.fn(Expected{Key: key, Row: row}); err != nil {
			return err
		}
	}
	return nil
}

func (x *Expectation) unreadable(err error) error {
	return fault.Corrupted("target %s: what is remembered of a key makes no sense: %v", x.lane.target.Name, err)
}
