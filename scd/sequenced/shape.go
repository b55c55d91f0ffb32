package sequenced

import (
	"errors"
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

	Inputs   int           // how many there are
	Columns  []int         // target column -> input; -1: the source has none, NULL
	Sequence []int         // inputs, compared from left to right (rule R3)
	Types    []change.Type // of the sequence's inputs
	Names    []string      // of them: fields of what __START_AT shows if they are several

	// System, of a bitemporal target: the one input that says when an event became known.
	// Of a flow on a table it is a meta column, which every statement has.
	System     []int
	SystemType change.Type

	Delete, Truncate Condition // nil: never

	IgnoreNull []bool // by target column: NULL means "not sent" (rules R45, R46); nil: nowhere
	Update     int    // input that names the columns an event writes (rules R51, R52); -1: none

	// DeleteSequence, for the history of a table: inputs that give a DELETE its sequence,
	// of the types of Sequence (_commit_time also for a timestamp without zone, in UTC).
	// If that is not above the sequence of the row that went, the sequence is the next
	// microsecond; for other types the target is parked. Empty, as for type 1: a DELETE
	// has the sequence of the row that went, or its own if Sequence names only meta columns.
	DeleteSequence []int

	// Judge judges the rows of upserts; nil: there are no expectations.
	Judge *Judge

	// KeepOrigin gives events their Origin, which keeps the source's memory until the
	// batch is taken: for lanes that may set events aside by the horizon.
	KeepOrigin bool
}

// Meta are the MetaColumns of a table.
func Meta(t *change.Table) []change.Column {
	if t.FileLog {
		return metaOfFileLog
	}
	return MetaColumns
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

var metaOfFileLog = func() []change.Column {
	all := slices.Clone(MetaColumns)
	all[1].Type = NumberType
	return all
}()

const commitTime = 2 // among MetaColumns

// Bad is an event that cannot take its place: a key or sequence that is NULL or
// cannot be read, a condition that fails (rules R6, R7). Reason holds no values.
type Bad struct {
	Reason  string
	At      []byte // its place in the source
	Dropped bool   // an expectation dropped it: it has a place, and might have taken it
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
	own    bool // the sequence is of meta columns alone: each change has its own
	rows   bool // it is of the row's columns alone
	tx     *change.Tx
	table  *change.Table // of which meta holds the name
	meta   [5]change.Value
	origin *Origin // of the change at work, if it is kept

	written []change.Value // for the judge
}

// NewShaper makes the shaper of a flow into t.
func NewShaper(f *Flow, t *scd.Target) *Shaper {
	t = t.Declared()
	s := &Shaper{flow: f, target: t, keys: t.Keys(), own: true, rows: true}
	for _, c := range f.Sequence {
		meta := c >= f.Inputs-len(MetaColumns)
		s.own, s.rows = s.own && meta, s.rows && !meta
	}
	return s
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
	s.origin = nil
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
		return nil, fault.Corrupted("flow %s: a TRUNCATE of %s is no event of one key", f.Name, c.Table.Name)
	}
	n := len(c.Table.Columns)
	var err error
	if c.Old != nil {
		if s.old, err = c.Old.Values(s.old, n); err != nil {
			return nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
		}
	}
	if c.Op == change.Delete {
		s.old = s.withMeta(s.old, tx, c)
		return s.deleted(l, tx, c, at)
	}
	if s.in, err = c.New.Values(s.in, n); err != nil {
		return nil, fault.Corrupted("%s on %s: %v", c.Op, c.Table.Name, err)
	}
	if c.Old != nil {
		for i := range s.in {
			if s.in[i].State == change.Absent && (!c.OldIsKey || c.Table.Columns[i].Key) {
				s.in[i] = s.old[i]
			}
		}
	}
	s.in = s.withMeta(s.in, tx, c)
	now, ok := s.key(s.in)
	var moved scd.Key // the old key, if another
	if ok && c.Old != nil && !f.Feed {
		old, whole := s.key(s.old)
		if !whole && c.OldIsKey {
			return &Bad{Reason: "the log does not hold the key that the row had before", At: at}, nil
		}
		if whole && string(old) != string(now) {
			moved = old
		}
	}
	bad, err := s.row(l, s.in, at, tx.CommitTime, moved != nil)
	if err != nil || f.Feed {
		return bad, err
	}
	if bad != nil && bad.Dropped {
		return bad, s.dropped(l, tx, now, moved, at)
	}
	if bad != nil {
		if ok {
			l.Mark(now, at, tx.CommitTime.UnixMicro())
		}
		return bad, nil
	}
	if moved == nil {
		return nil, nil
	}
	// The key changed: the old one ends where the new one begins (rule R119).
	seq, bad := s.sequence(f.Sequence, s.in, at)
	if bad == nil {
		e := Event{Key: moved, Place: Place{Seq: seq, At: at}, Delete: true, Start: s.start(f.Sequence, s.in), Time: tx.CommitTime.UnixMicro(), Origin: s.origin}
		if bad = s.known(&e, s.in); bad == nil {
			l.Add(e)
		}
	}
	return bad, nil
}

// dropped does what is left of a change whose row an expectation dropped. A DELETE that
// follows it in the log stands behind it, as if it had taken its place. If it changed the
// key, its row is not at the old one any more.
func (s *Shaper) dropped(l *Lane, tx *change.Tx, now, moved scd.Key, at []byte) error {
	if now == nil {
		return nil
	}
	seq, bad := s.sequence(s.flow.Sequence, s.in, at)
	if bad != nil {
		seq = nil
	}
	l.mark(now, Place{Seq: seq, At: at}, tx.CommitTime.UnixMicro())
	if moved != nil && seq != nil {
		l.Add(Event{Key: moved, Place: Place{Seq: seq, At: at}, Delete: true, Start: s.start(s.flow.Sequence, s.in), Time: tx.CommitTime.UnixMicro(), Origin: s.origin})
	}
	return nil
}

// Copied makes the event of a row of the first copy: an insert at the copy's
// position, which is tx's End.
func (s *Shaper) Copied(l *Lane, tx *change.Tx, c *change.Change) (*Bad, error) {
	return s.change(l, tx, c, AppendLog(s.slab.Take(placeInLog), tx.End, true, c.Ordinal, s.flow.Order))
}

func (s *Shaper) at(tx *change.Tx, ordinal uint64) []byte {
	if tx.Path != "" {
		return AppendFile(s.slab.Take(len(tx.Path)+12), tx.Path, ordinal, s.flow.Order)
	}
	return AppendLog(s.slab.Take(placeInLog), tx.Begin, false, ordinal, s.flow.Order)
}

// withMeta appends the meta columns.
func (s *Shaper) withMeta(row []change.Value, tx *change.Tx, c *change.Change) []change.Value {
	value := func(b []byte) change.Value { return change.Value{State: change.AsText, Data: b} }
	if s.tx != tx {
		s.tx = tx
		at := tx.End
		if !tx.First || !tx.Last {
			// Its end is not known yet. This is the same for all pieces of it, and behind
			// everything that was committed before.
			at = tx.Begin
			at.Offset++
		}
		if c.Table.FileLog {
			s.meta[1] = value([]byte(at.Number()))
		} else {
			s.meta[1] = value([]byte(at.String()))
		}
		s.meta[2] = change.Value{State: change.Null}
		if !tx.CommitTime.IsZero() {
			s.meta[2] = value(pgvalue.AppendTimestamp(nil, since2000(tx.CommitTime), pgvalue.Finite, true))
		}
		s.meta[3] = value(fmt.Append(nil, tx.XID))
	}
	if s.table != c.Table {
		s.table, s.meta[4] = c.Table, value([]byte(c.Table.Name.String()))
	}
	s.meta[0] = opText(c.Op)
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

// row judges an input row and adds its event. moved: its key was another before.
func (s *Shaper) row(l *Lane, in []change.Value, at []byte, commit time.Time, moved bool) (*Bad, error) {
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
	if !truncate && f.Judge != nil {
		if bad, err := s.judge(in, at, truth); bad != nil || err != nil {
			return bad, err
		}
	}
	seq, bad := s.sequence(f.Sequence, in, at)
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
	e := Event{Key: key, Place: p, Delete: remove, Start: s.start(f.Sequence, in), Time: commit.UnixMicro(), Origin: s.origin}
	if bad = s.known(&e, in); bad != nil {
		return bad, nil
	}
	if !remove {
		row, bad := s.project(in, at)
		if bad != nil {
			return bad, nil
		}
		if e.Row = row; !f.Feed && (moved || !l.partial) && s.unsent(in) {
			if moved {
				return &Bad{Reason: "its key changed, and the log did not send a large value that did not: REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL) sends it; then the table is to be copied again", At: at}, nil
			}
			return nil, fault.Corrupted("flow %s: a change of %s came without a column that is always sent", f.Name, s.target.Source)
		}
	}
	l.Add(e)
	return nil, nil
}

// judge judges the row of an upsert by the flow's expectations: before anything else is
// asked of it, so that a NULL key can be expected not to be there.
func (s *Shaper) judge(in []change.Value, at []byte, truth func(Condition, string) (bool, *Bad)) (*Bad, error) {
	f := s.flow
	if remove, bad := truth(f.Delete, "apply_as_deletes"); remove || bad != nil {
		return bad, nil
	}
	if f.Judge.drops && !f.Feed && s.unsent(in) {
		return nil, f.Judge.parkPart()
	}
	written := in
	if f.Update >= 0 || f.IgnoreNull != nil {
		row, bad := s.project(in, at)
		if bad != nil {
			return bad, nil
		}
		written = append(s.written[:0], in...)
		s.written = written
		for _, from := range f.Columns {
			v, rest, err := row.Next()
			if err != nil {
				return nil, fault.Corrupted("flow %s: a row that was just made cannot be read: %v", f.Name, err)
			}
			if row = rest; from >= 0 && v.State == change.Absent {
				written[from] = v
			}
		}
	}
	dropped, failed, err := f.Judge.verdict(in, written)
	if err == nil && failed != "" {
		err = f.Judge.refuse(failed, at)
	}
	if err != nil || dropped == "" {
		return nil, err
	}
	return &Bad{Reason: Reason(dropped), At: at, Dropped: true}, nil
}

// deleted adds the delete that a DELETE of the relation means. s.old is what was sent
// of the row that went.
func (s *Shaper) deleted(l *Lane, tx *change.Tx, c *change.Change, at []byte) (*Bad, error) {
	key, ok := s.key(s.old)
	if !ok {
		return &Bad{Reason: "a key column is NULL", At: at}, nil
	}
	e := Event{Key: key, Place: Place{At: at}, Delete: true, Time: tx.CommitTime.UnixMicro(), Origin: s.origin}
	// Columns that are no part of the identity were not sent.
	sent := !slices.ContainsFunc(s.flow.Sequence, func(i int) bool {
		return i < len(c.Table.Columns) && (s.old[i].State == change.Absent || c.OldIsKey && !c.Table.Columns[i].Key)
	})
	var bad *Bad
	var err error
	switch own := len(s.flow.DeleteSequence) == 0; {
	case own && sent:
		e.Start = s.start(s.flow.Sequence, s.old)
		e.Place.Seq, bad = s.sequence(s.flow.Sequence, s.old, at)
	case own:
		e.Behind = BehindLast
	default:
		e.Behind = BehindLast
		if e.Place.Seq, e.Start, bad, err = s.deleteSequence(tx, c, s.old, at); bad == nil && err == nil && sent && s.rows {
			e.Base, bad = s.sequence(s.flow.Sequence, s.old, at)
		}
	}
	if bad == nil && err == nil {
		bad = s.known(&e, s.old)
	}
	if bad != nil || err != nil {
		if bad != nil {
			l.Mark(key, at, e.Time)
		}
		return bad, err
	}
	if e.Behind != BehindNothing && e.Origin == nil {
		e.Origin = &Origin{tx, c}
	}
	l.Add(e)
	return nil, nil
}

// Emptied makes the delete that a TRUNCATE of the relation means for a key that
// something is remembered of; the caller gives it each of them as its Key.
func (s *Shaper) Emptied(tx *change.Tx, c *change.Change) (Event, error) {
	at := s.at(tx, c.Ordinal)
	e := Event{Place: Place{At: at}, Delete: true, Time: tx.CommitTime.UnixMicro(), Behind: BehindNewest}
	in := s.withMeta(make([]change.Value, len(c.Table.Columns)), tx, c)
	if bad := s.known(&e, in); bad != nil {
		return e, errors.New(bad.Reason)
	}
	from := s.flow.DeleteSequence
	switch own := len(from) == 0; {
	case own && !s.own:
		return e, nil
	case own:
		seq, bad := s.sequence(s.flow.Sequence, in, at)
		if bad != nil {
			return e, errors.New(bad.Reason)
		}
		// It stands at its own sequence, in a history behind nothing else.
		if e.Base = seq; s.target.Kind != scd.Type1 {
			e.Place.Seq, e.Start, e.Base = seq, s.start(s.flow.Sequence, in), []byte{}
		}
		return e, nil
	}
	if slices.ContainsFunc(from, func(i int) bool { return i < len(c.Table.Columns) }) {
		return e, &Park{
			Reason: fmt.Sprintf("TRUNCATE of table %s: delete_sequence names a column, and a TRUNCATE has no rows", c.Table.Name),
			Remedy: "have delete_sequence name _commit_time or _lsn",
		}
	}
	seq, start, bad, err := s.deleteSequence(tx, c, in, at)
	if bad != nil {
		err = errors.New(bad.Reason)
	}
	e.Place.Seq, e.Start = seq, start
	return e, err
}

// deleteSequence is the sequence that a DELETE of a history's table has of its own.
func (s *Shaper) deleteSequence(tx *change.Tx, c *change.Change, in []change.Value, at []byte) (seq []byte, start change.Value, bad *Bad, err error) {
	for n, i := range s.flow.DeleteSequence {
		if s.flow.Types[n].Kind == change.Timestamp && i == s.flow.Inputs-len(MetaColumns)+commitTime && !tx.CommitTime.IsZero() {
			in[i] = change.Value{State: change.AsText, Data: pgvalue.AppendTimestamp(nil, since2000(tx.CommitTime), pgvalue.Finite, false)}
		}
		if i < len(c.Table.Columns) && c.OldIsKey {
			return nil, start, nil, &Park{
				Reason: fmt.Sprintf("a row of table %s was deleted, and the log does not hold its column %s, which delete_sequence names", c.Table.Name, c.Table.Columns[i].Name),
				Remedy: "set REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL), or have delete_sequence name _commit_time or _lsn",
			}
		}
	}
	seq, bad = s.sequence(s.flow.DeleteSequence, in, at)
	if bad != nil {
		bad.Reason = "delete_sequence: " + bad.Reason
		return nil, start, bad, nil
	}
	return seq, s.start(s.flow.DeleteSequence, in), nil, nil
}

// unsent reports whether the log left out a column of the target.
func (s *Shaper) unsent(in []change.Value) bool {
	return slices.ContainsFunc(s.flow.Columns, func(c int) bool { return c >= 0 && in[c].State == change.Absent })
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

// known gives an event of a bitemporal target its system time.
func (s *Shaper) known(e *Event, in []change.Value) (bad *Bad) {
	if len(s.flow.System) == 0 {
		return nil
	}
	if e.System, bad = s.read(s.flow.System, []change.Type{s.flow.SystemType}, in, e.Place.At); bad != nil {
		bad.Reason = "system_sequence_by: " + bad.Reason
	}
	e.SystemStart = in[s.flow.System[0]]
	return bad
}

// sequence reads one from inputs of the types of the flow's sequence.
func (s *Shaper) sequence(from []int, in []change.Value, at []byte) ([]byte, *Bad) {
	return s.read(from, s.flow.Types, in, at)
}

func (s *Shaper) read(from []int, types []change.Type, in []change.Value, at []byte) ([]byte, *Bad) {
	s.seq = s.seq[:0]
	for i, c := range from {
		v := in[c]
		switch v.State {
		case change.Null:
			return nil, &Bad{Reason: "the sequence is NULL", At: at}
		case change.Absent:
			return nil, &Bad{Reason: "the sequence was not sent with this change: REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL) sends it", At: at}
		}
		var err error
		if s.seq, err = AppendSequence(s.seq, v, types[i]); err != nil {
			return nil, &Bad{Reason: "the sequence cannot be read: " + err.Error(), At: at}
		}
	}
	return append(s.slab.Take(len(s.seq)), s.seq...), nil
}

// start is the sequence as a value: of one column that column's, of several a JSON
// object of their texts.
func (s *Shaper) start(from []int, in []change.Value) change.Value {
	if s.target.Kind == scd.Type1 {
		return change.Value{}
	}
	if len(from) == 1 {
		return in[from[0]]
	}
	t := tree{branches: map[string]*tree{}}
	for i, c := range from {
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
		if v.State == change.Absent {
			return nil, &Bad{Reason: "columns_to_update was not sent with this change: REPLICA IDENTITY FULL (MariaDB, MySQL: binlog_row_image = FULL) sends it", At: at}
		}
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
