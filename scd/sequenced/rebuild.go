package sequenced

import (
	"bytes"

	"tailrace/internal/fault"
	"tailrace/scd"
)

// Rebuild decides a history anew from all that is remembered of it, where another set of
// columns is tracked than the one it was built by (rule R43): every event is remembered,
// so the versions are what they would have been. Add takes all records, those of one key
// one after the other in the order of their places; Take gives the work so far, of whole
// keys.
type Rebuild struct {
	lane *Lane
	held []record
	work Work
	r    scd.Round
	keys int
}

// NewRebuild makes the Rebuild of t, which says what is tracked now.
func NewRebuild(t *scd.Target, o Options, head Head) *Rebuild { return &Rebuild{lane: New(t, o, head)} }

// Add takes the next record. It keeps its memory until Take.
func (b *Rebuild) Add(r Record) error {
	if len(r.Key) == 0 {
		return nil // about the target itself
	}
	if len(b.held) > 0 && !bytes.Equal(b.held[0].Key, r.Key) {
		if err := b.key(); err != nil {
			return err
		}
	}
	s, err := b.lane.open(r.Body)
	if err != nil {
		return err
	}
	b.held = append(b.held, record{Record: r, stored: s})
	return nil
}

// key decides the present key.
func (b *Rebuild) key() error {
	if len(b.held) == 0 {
		return nil
	}
	l, held := b.lane, make([]*record, 0, len(b.held))
	for i := range b.held {
		if len(b.held[i].Seq) > 0 { // not a mark
			held = append(held, &b.held[i])
		}
	}
	key := b.held[0].Key
	b.held = nil
	b.keys++
	l.steps[0] = l.compose(l.steps[0][:0], nil, held)
	was, err := asStored(nil, life{}, l.steps[0])
	if err != nil {
		return fault.Corrupted("target %s: %v", l.target.Name, err)
	}
	is, err := l.walk(nil, life{}, l.steps[0], &b.work, key)
	if err != nil {
		return err
	}
	difference(key, was, is, &b.r)
	return nil
}

// Size returns how many operations Take would give.
func (b *Rebuild) Size() int { return b.r.Size() + len(b.work.Put) }

// Keys returns how many keys were decided so far.
func (b *Rebuild) Keys() int { return b.keys }

// Take gives the work of the keys that were decided since the last Take. With last, of the
// present one too, and the definition by which all are decided now.
func (b *Rebuild) Take(last bool, definition string) (w Work, r scd.Round, err error) {
	if last {
		if err := b.key(); err != nil {
			return w, r, err
		}
		b.work.Put = append(b.work.Put, definitionRecord(definition))
	}
	w, r = b.work, b.r
	b.work, b.r = Work{}, scd.Round{}
	return w, r, nil
}

func definitionRecord(text string) Record {
	return Record{Key: definition.Key, Seq: definition.Seq, At: definition.At, Body: []byte(text)}
}
