package sequenced

import (
	"tailrace/internal/change"
	"tailrace/scd"
)

// Seed makes what is to be remembered of a type 1 target that was kept in the order of
// its log up to a position, so that it goes on as if it had been sequenced by position
// from its beginning.
//
// A truncate number just at the position makes everything at or below it void: all of
// that is in the rows. And each row is remembered as an event there, as if the target
// had been copied at that position: whether a row is there decides what a delete does
// and what a truncate takes, and a partial update inherits from it. The keys that have
// no row need nothing: what could bring them back lies below the truncate number.
type Seed struct {
	target  *scd.Target
	partial bool
	seq     []byte
	at      change.Position
	time    int64
	flow    uint16
	rows    uint64
	keys    []int
	values  []change.Value
}

// NewSeed makes the Seed of t at a position of the log of a source table, of a flow declared
// as order, whose newest commit there has a time in µs since the Unix epoch.
func NewSeed(t *scd.Target, from *change.Table, o Options, at change.Position, time int64, order uint16) (*Seed, error) {
	s := &Seed{target: t, partial: o.Partial, at: at, time: time, flow: order, keys: t.Keys()}
	text, typ := at.String(), PositionType
	if from.FileLog {
		text, typ = at.Number(), NumberType
	}
	var err error
	s.seq, err = AppendSequence(nil, change.Value{State: change.AsText, Data: []byte(text)}, typ)
	return s, err
}

// Head is what is remembered of the target as a whole: the truncate.
func (s *Seed) Head() Head { return Head{Truncated: Place{Seq: s.seq, At: s.place(0)}} }

// place is that of the n-th row; the truncate lies just below the first.
func (s *Seed) place(n uint64) []byte { return AppendLog(nil, s.at, true, n, s.flow) }

// Define is the record of the target's definition.
func (s *Seed) Define(text string) Record {
	return definitionRecord(text)
}

// Row is the record of a row, given as its columns' texts in the target's order. It
// keeps nothing of row.
func (s *Seed) Row(row change.Row) (r Record, err error) {
	if s.values, err = row.Values(s.values, len(s.target.Columns)); err != nil {
		return r, err
	}
	s.rows++
	for _, k := range s.keys {
		r.Key = change.Row(r.Key).Append(s.values[k])
	}
	var is stored
	if s.partial {
		is.row = row
	}
	r.Seq, r.At, r.Time = s.seq, s.place(s.rows), s.time
	r.Body = is.encode(make([]byte, 0, is.size()))
	return r, nil
}
