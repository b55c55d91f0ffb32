package sequenced

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// Condition judges a source row: TRUE, FALSE, or not known (NULL).
type Condition func(row []change.Value) (truth, known bool, err error)

// Flow is the definition by which source rows become events of one target. Rows are
// given as inputs: the source table's columns in the order of its layout, then the
// meta columns of MetaColumns.
type Flow struct {
	Name  string      // its identity, and for messages
	Order uint16      // in which flows of one target were declared
	Feed  bool        // the relation holds a change feed: only its INSERTs are events (rule R86)
	Skip  []change.Op // of a feed: changes of the relation itself that are passed over

	Columns  []int         // target column -> input; -1: the source has none, NULL
	Sequence []int         // inputs, compared from left to right (rule R3)
	Types    []change.Type // of the sequence's inputs
	Names    []string      // of them: fields of what __START_AT shows if they are several

	Delete, Truncate Condition // nil: never

	IgnoreNull []bool // by target column: NULL means "not sent" (rules R45, R46); nil: nowhere
	Update     int    // input that names the columns an event writes (rules R51, R52); -1: none

	// OwnDelete, for relations that are tables: a DELETE's sequence is the commit time,
	// or just above the sequence of the row that went (type 2 needs an instant of its
	// own to end a version at). Otherwise it is that of the row that went.
	OwnDelete bool

	// KeepOrigin gives events their Origin, which keeps the source's memory until the
	// batch is taken: for lanes that may set events aside by the horizon.
	KeepOrigin bool
}

// MetaColumns are what expressions and sequences of a source with a log can name
// beside the row's columns.
var MetaColumns = []change.Column{
	{Name: "_op", Type: change.Type{Kind: change.Text, Name: "text"}},
	{Name: "_lsn", Type: change.Type{Kind: change.Other, Name: "pg_lsn"}},
	{Name: "_commit_time", Type: change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone"}},
	{Name: "_xid", Type: change.Type{Kind: change.Int64, Name: "bigint"}},
	{Name: "_table", Type: change.Type{Kind: change.Text, Name: "text"}},
}

// Bad is an event that cannot take its place: a key or sequence that is NULL or
// cannot be read, a condition that fails (rules R6, R7). Reason holds no values.
type Bad struct {
	Reason string
	At     []byte // its place in the source
}

// Origin is what the source sent of an event.
type Origin struct {
	Tx     *change.Tx
	Change *change.Change
}

// Shaper makes events of one flow from changes of its relation.
type Shaper struct {
	flow   *Flow
	target *scd.Target
	keys   []int
	slab   scd.Arena
	in     []change.Value
	old    []change.Value
	seq    []byte
	tx     *change.Tx
	meta   [5]change.Value
	origin *Origin // of the change at work, if it is kept
}

// NewShaper makes the shaper of a flow into t.
func NewShaper(f *Flow, t *scd.Target) *Shaper {
	return &Shaper{flow: f, target: t, keys: t.Keys()}
}

// Change makes the events of one change and adds them to the lane. A bad event is
// returned and not added.
func (s *Shaper) Change(l *Lane, tx *change.Tx, c *change.Change) (*Bad, error) {
	return s.change(l, tx, c, s.at(tx, c.Ordinal))
}

// Again makes the events of a change that was set aside, at the place that it had:
// they count as what they would have been then.
func (s *Shaper) Again(l *Lane, tx *change.Tx, c *change.Change, at []byte) (*Bad, error) {
	return s.change(l, tx, c, append(s.slab.Take(len(at)), at...))
}

func (s *Shaper) change(l *Lane, tx *change.Tx, c *change.Change, at []byte) (*Bad, error) {
	f := s.flow
	if f.KeepOrigin {
		s.origin = &Origin{tx, c}
	}
	if f.Feed && c.Op != change.Insert {
		if slices.Contains(f.Skip, c.Op) {
			return nil, nil
		}
		return nil, fault.Refuse(fmt.Sprintf("a feed only grows; if this %s is to be passed over, add `skip_change_commits: [%s]` to the flow", c.Op, strings.ToLower(c.Op.String())),
			"flow %s: %s on feed %s: it is no event of target %s", f.Name, c.Op, c.Table.Name, s.target.Name)
	}
	if c.Op == change.Truncate {
		return nil, fault.Refuse("`tailrace run --overwrite` copies the table again",
			"flow %s: TRUNCATE on %s: the rows' own sequence says nothing about it", f.Name, c.Table.Name)
	}
	n := len(c.Table.Columns)
	var err error
	if c.Old != nil {
		if s.old, err = c.Old.Values(s.old, n); err != nil {
			return nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
		}
	}
	if c.Op == change.Delete {
		return s.deleted(l, tx, c, at, s.withMeta(s.old, tx, c), nil)
	}
	if s.in, err = c.New.Values(s.in, n); err != nil {
		return nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
	}
	if c.Old != nil && !c.OldIsKey {
		for i := range s.in {
			if s.in[i].State == change.Absent {
				s.in[i] = s.old[i]
			}
		}
	}
	s.in = s.withMeta(s.in, tx, c)
	bad, err := s.row(l, s.in, at, tx.CommitTime)
	if bad != nil || err != nil || c.Old == nil || f.Feed {
		return bad, err
	}
	if old, ok := s.key(s.old); ok {
		if now, _ := s.key(s.in); string(old) != string(now) {
			// The key changed: the old one ends where the new one begins (rule R119).
			return s.deleted(l, tx, c, at, s.in, old)
		}
	}
	return nil, nil
}

// Copied makes the event of a row of the first copy: an insert at the copy's
// position, which is tx's End.
func (s *Shaper) Copied(l *Lane, tx *change.Tx, c *change.Change) (*Bad, error) {
	return s.change(l, tx, c, AppendLog(s.slab.Take(27), tx.End, true, c.Ordinal, s.flow.Order))
}

func (s *Shaper) at(tx *change.Tx, ordinal uint64) []byte {
	if tx.Path != "" {
		return AppendFile(s.slab.Take(len(tx.Path)+12), tx.Path, ordinal, s.flow.Order)
	}
	return AppendLog(s.slab.Take(27), tx.Begin, false, ordinal, s.flow.Order)
}

// withMeta appends the meta columns.
func (s *Shaper) withMeta(row []change.Value, tx *change.Tx, c *change.Change) []change.Value {
	value := func(b []byte) change.Value { return change.Value{State: change.AsText, Data: b} }
	if s.tx != tx {
		s.tx = tx
		at := tx.End
		if at.IsZero() {
			at = tx.Begin
		}
		s.meta[1] = value([]byte(at.String()))
		s.meta[2] = change.Value{State: change.Null}
		if !tx.CommitTime.IsZero() {
			s.meta[2] = value(pgvalue.AppendTimestamp(nil, since2000(tx.CommitTime), pgvalue.Finite, true))
		}
		s.meta[3] = value(fmt.Append(nil, tx.XID))
	}
	s.meta[0], s.meta[4] = opText(c.Op), value([]byte(c.Table.Name.String()))
	return append(row, s.meta[:]...)
}

// since2000 is an instant in µs since 2000-01-01 UTC, from which values count.
func since2000(t time.Time) int64 {
	const epoch = 946684800 // 2000-01-01 in seconds since 1970-01-01
	return t.UnixMicro() - epoch*1_000_000
}

var opTexts = map[change.Op]change.Value{}

func init() {
	for _, op := range []change.Op{change.Insert, change.Update, change.Delete, change.Truncate} {
		opTexts[op] = change.Value{State: change.AsText, Data: []byte(op.String())}
	}
}

func opText(op change.Op) change.Value { return opTexts[op] }

// row judges an input row and adds its event.
func (s *Shaper) row(l *Lane, in []change.Value, at []byte, commit time.Time) (*Bad, error) {
	f := s.flow
	truth := func(c Condition, what string) (bool, *Bad) {
		if c == nil {
			return false, nil
		}
		t, known, err := c(in)
		if err != nil {
			return false, &Bad{Reason: fmt.Sprintf("%s cannot be evaluated: %v", what, err), At: at}
		}
		return t && known, nil
	}
	truncate, bad := truth(f.Truncate, "apply_as_truncates")
	if bad != nil {
		return bad, nil
	}
	seq, bad := s.sequence(in, at)
	if bad != nil {
		return bad, nil
	}
	p := Place{Seq: seq, At: at}
	if truncate {
		l.Truncate(p)
		return nil, nil
	}
	remove, bad := truth(f.Delete, "apply_as_deletes")
	if bad != nil {
		return bad, nil
	}
	key, ok := s.key(in)
	if !ok {
		return &Bad{Reason: "a key column is NULL", At: at}, nil
	}
	e := Event{Key: key, Place: p, Delete: remove, Start: s.start(in), Time: commit.UnixMicro(), Origin: s.origin}
	if !remove {
		row, bad := s.project(in, at)
		if bad != nil {
			return bad, nil
		}
		e.Row = row
	}
	l.Add(e)
	return nil, nil
}

// deleted adds the delete that a DELETE of the relation, or a changed key, means.
func (s *Shaper) deleted(l *Lane, tx *change.Tx, c *change.Change, at []byte, in []change.Value, oldKey scd.Key) (*Bad, error) {
	key := oldKey
	if key == nil {
		var ok bool
		if key, ok = s.key(in); !ok {
			return &Bad{Reason: "a key column is NULL", At: at}, nil
		}
	}
	e := Event{Key: key, Delete: true, Start: s.start(in), Time: tx.CommitTime.UnixMicro(), Origin: s.origin}
	seq, bad := s.sequence(in, at)
	if bad != nil {
		return bad, nil
	}
	if s.flow.OwnDelete && oldKey == nil {
		last, special, err := pgvalue.Timestamp(e.Start, s.flow.Types[0].Kind)
		if err != nil || special != pgvalue.Finite {
			return &Bad{Reason: "the sequence of the row that was deleted is no instant to end it after", At: at}, nil
		}
		us := max(since2000(tx.CommitTime), last+1)
		e.Start.Data = pgvalue.AppendTimestamp(nil, us, pgvalue.Finite, s.flow.Types[0].Kind == change.TimestampTZ)
		if seq, err = AppendSequence(nil, e.Start, s.flow.Types[0]); err != nil {
			return nil, err
		}
	}
	e.Place = Place{Seq: seq, At: at}
	l.Add(e)
	return nil, nil
}

// key encodes the key columns; false if one is NULL or missing.
func (s *Shaper) key(in []change.Value) (scd.Key, bool) {
	size := 0
	for _, k := range s.keys {
		v := &in[s.flow.Columns[k]]
		if v.State == change.Null || v.State == change.Absent {
			return nil, false
		}
		size += 5 + len(v.Data)
	}
	key := change.Row(s.slab.Take(size))
	for _, k := range s.keys {
		key = key.Append(in[s.flow.Columns[k]])
	}
	return key, true
}

func (s *Shaper) sequence(in []change.Value, at []byte) ([]byte, *Bad) {
	s.seq = s.seq[:0]
	for i, c := range s.flow.Sequence {
		v := in[c]
		if v.State == change.Null || v.State == change.Absent {
			return nil, &Bad{Reason: "the sequence is NULL", At: at}
		}
		var err error
		if s.seq, err = AppendSequence(s.seq, v, s.flow.Types[i]); err != nil {
			return nil, &Bad{Reason: "the sequence cannot be read: " + err.Error(), At: at}
		}
	}
	return append(s.slab.Take(len(s.seq)), s.seq...), nil
}

// start is the sequence as a value: of one column that column's, of several a JSON
// object of their texts.
func (s *Shaper) start(in []change.Value) change.Value {
	if s.target.Kind != scd.Type2 {
		return change.Value{}
	}
	if len(s.flow.Sequence) == 1 {
		return in[s.flow.Sequence[0]]
	}
	t := tree{branches: map[string]*tree{}}
	for i, c := range s.flow.Sequence {
		leaf := appendString(nil, string(in[c].Data))
		switch s.flow.Types[i].Kind {
		case change.Int16, change.Int32, change.Int64:
			leaf = in[c].Data
		case change.Numeric:
			if last := in[c].Data[len(in[c].Data)-1]; last >= '0' && last <= '9' { // not NaN, Infinity
				leaf = in[c].Data
			}
		}
		t.branches[s.flow.Names[i]] = &tree{leaf: leaf}
	}
	return change.Value{State: change.AsText, Data: t.appendJSONB(nil)}
}

// project builds the target's row, with what the event does not write as Absent.
func (s *Shaper) project(in []change.Value, at []byte) (change.Row, *Bad) {
	f := s.flow
	var only []string
	if f.Update >= 0 {
		v := in[f.Update]
		if v.State == change.AsText {
			var err error
			if only, err = names(v.Data); err != nil {
				return nil, &Bad{Reason: "columns_to_update: " + err.Error(), At: at}
			}
			for _, name := range only {
				if s.find(name) < 0 {
					return nil, &Bad{Reason: "columns_to_update names a column that the target does not have", At: at}
				}
			}
			if only == nil {
				only = []string{}
			}
		}
	}
	size := 0
	for _, from := range f.Columns {
		size += 5
		if from >= 0 {
			size += len(in[from].Data)
		}
	}
	row := change.Row(s.slab.Take(size))
	for i, from := range f.Columns {
		v := change.Value{State: change.Null}
		if from >= 0 {
			v = in[from]
		}
		switch {
		case s.target.Columns[i].Key:
		case only != nil && !slices.ContainsFunc(only, func(n string) bool { return s.find(n) == i }),
			f.IgnoreNull != nil && f.IgnoreNull[i] && v.State == change.Null:
			v = change.Value{State: change.Absent}
		}
		row = row.Append(v)
	}
	return row, nil
}

// find looks a target column up by name: exactly, else without case if that is one.
func (s *Shaper) find(name string) int {
	found := -1
	for i := range s.target.Columns {
		switch c := s.target.Columns[i].Name; {
		case c == name:
			return i
		case strings.EqualFold(c, name):
			found = i
		}
	}
	return found
}
