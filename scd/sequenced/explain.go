package sequenced

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
)

// Explanation says in words why a target shows what it shows of one key. It follows
// from what is remembered alone, by the rules of the lane. It holds no values
// but sequences; rows are beside it.
type Explanation struct {
	Events []Told // what is remembered of the key, in the order of their places; of a bitemporal target in that of their system times
	Rule   string // what decided
	Notes  []string
}

// Told is a remembered event and what it led to.
type Told struct {
	Place     Place
	Sequence  string
	System    string // of a bitemporal target: when it became known
	From      string // its place in the source
	Delete    bool
	Tombstone bool
	Time      time.Time  // of its commit: the clock of retention
	Led       string     // what it led to
	Row       change.Row // as the event wrote it; nil: a delete, or the target alone has its values
	Shown     change.Row // type 2: the row with what was inherited, where that differs
}

// Explain explains a key of t: from all records that are remembered of it, in any
// order, and the head. Types are those of the sequence.
func Explain(t *scd.Target, o Options, types []change.Type, head Head, records []Record) (*Explanation, error) {
	x := explainer{lane: New(t, o, head), types: types, out: &Explanation{}}
	for _, r := range records {
		s, err := decode(r.Body)
		if err == nil {
			if s.row, err = x.lane.widen(s.row, o.Partial); err == nil {
				s.filled, err = x.lane.widen(s.filled, false)
			}
		}
		if err != nil {
			return nil, fault.Corrupted("target %s: %v", t.Name, err)
		}
		if err := x.follow(&r, s.last); err != nil {
			return nil, err
		}
		if len(r.Seq) > 0 {
			x.held = append(x.held, record{Record: r, stored: s})
		}
	}
	slices.SortFunc(x.held, func(a, b record) int { return a.place().Compare(b.place()) })
	for i := range x.held {
		h := &x.held[i]
		x.out.Events = append(x.out.Events, Told{Place: h.place(), Sequence: x.sequence(h.Seq), From: At(h.At), Delete: h.delete, Tombstone: h.Tombstone,
			Time: time.UnixMicro(h.Time).UTC(), Row: h.row, Shown: h.filled})
	}
	x.notes(head)
	switch {
	case len(x.held) == 0:
		x.out.Rule = "nothing is remembered of this key: no event of it was taken, or its delete is forgotten, or a truncate took it; no row is shown"
	case x.lane.target.Kind == scd.Bitemporal:
		return x.out, x.believed()
	case t.Kind == scd.Type2:
		return x.out, x.versions()
	case o.Partial:
		return x.out, x.columns()
	default:
		x.newest()
	}
	return x.out, nil
}

type explainer struct {
	lane  *Lane
	types []change.Type
	held  []record
	out   *Explanation
}

func (x *explainer) sequence(seq []byte) string { return SequenceText(seq, x.types) }

// follow tells behind what a DELETE statement would stand, where that is not the newest
// event.
func (x *explainer) follow(r *Record, last []byte) error {
	note := func(seq, at []byte) {
		if len(seq) == 0 {
			x.out.Notes = append(x.out.Notes, fmt.Sprintf("an event was set aside (%s): a DELETE that follows it in the log is set aside too", At(at)))
			return
		}
		x.out.Notes = append(x.out.Notes, fmt.Sprintf("a flow's last event in the log is the one at sequence %s (%s): a DELETE that follows stands behind it", x.sequence(seq), At(at)))
	}
	if len(r.Seq) == 0 {
		note(nil, r.At)
	}
	if err := eachLast(last, note); err != nil {
		return fault.Corrupted("target %s: %v", x.lane.target.Name, err)
	}
	return nil
}

// notes tells what holds for all keys.
func (x *explainer) notes(head Head) {
	if !head.Truncated.IsZero() {
		x.out.Notes = append(x.out.Notes, fmt.Sprintf("a truncate came at sequence %s (%s): no event at or below it has an effect", x.sequence(head.Truncated.Seq), At(head.Truncated.At)))
	}
	if head.Horizon == nil {
		return
	}
	note := fmt.Sprintf("deletes up to sequence %s may be forgotten (tombstone_retention)", x.sequence(head.Horizon))
	if len(x.held) == 0 {
		note += "; an event of this key at or below it "
		if x.lane.beyond {
			note += "is set aside"
		} else {
			note += "is applied, although the row may have been deleted later"
		}
	}
	x.out.Notes = append(x.out.Notes, note)
}

// newest explains type 1 where every event writes the whole row.
func (x *explainer) newest() {
	for i := range x.out.Events {
		x.out.Events[i].Led = "it is older than the newest event: it has no effect"
	}
	last := &x.out.Events[len(x.out.Events)-1]
	if last.Delete {
		last.Led = "no row is shown; it is remembered so that an older event does not bring the row back"
		x.out.Rule = fmt.Sprintf("the newest event is the delete at sequence %s: no row is shown", last.Sequence)
		return
	}
	last.Led = "its row is shown"
	x.out.Rule = fmt.Sprintf("the newest event is the write at sequence %s: its row is shown", last.Sequence)
}

// columns explains type 1 with partial updates, from the newest event to the oldest.
func (x *explainer) columns() error {
	t := x.lane.target
	m := x.lane.merger(len(t.Columns))
	var left []int           // columns that nothing newer wrote as a whole
	inPart := map[int]bool{} // of which something newer wrote leaves
	for i := range t.Columns {
		if !t.Columns[i].Key {
			left = append(left, i)
		}
	}
	for i := len(x.held) - 1; i >= 0; i-- {
		h, told := &x.held[i], &x.out.Events[i]
		newest := i == len(x.held)-1
		switch {
		case h.delete && newest:
			told.Led = "no row is shown; it is remembered so that an older event does not bring the row back"
			left = nil
			continue
		case h.delete && len(left) > 0:
			told.Led = "it cleared what nothing newer wrote"
			if unwritten := slices.DeleteFunc(left, func(c int) bool { return inPart[c] }); len(unwritten) > 0 {
				told.Led = fmt.Sprintf("columns %s are NULL: it cleared them, and nothing newer wrote them", x.names(unwritten))
			}
			left = nil
			continue
		case len(left) == 0:
			told.Led = "nothing of it is shown any more"
			continue
		case h.row == nil:
			told.Led = fmt.Sprintf("columns %s show what it wrote", x.names(left))
			left = nil
			continue
		}
		var whole, parts []int
		m.wrote = func(column int, part bool) {
			switch {
			case t.Columns[column].Key:
			case part:
				parts = append(parts, column)
				inPart[column] = true
			default:
				whole = append(whole, column)
			}
		}
		_, _, err := m.add(h.row)
		m.wrote = nil
		if err != nil {
			return err
		}
		var shows []string
		if len(whole) > 0 {
			shows = append(shows, "columns "+x.names(whole))
		}
		if len(parts) > 0 {
			shows = append(shows, "parts of columns "+x.names(parts))
		}
		switch {
		case len(shows) > 0:
			told.Led = strings.Join(shows, " and ") + " show what it wrote"
		case newest:
			told.Led = "it says that the row is there"
		default:
			told.Led = "nothing of it is shown any more"
		}
		left = slices.DeleteFunc(left, func(c int) bool { return m.closed[c] })
	}
	last := &x.out.Events[len(x.held)-1]
	if last.Delete {
		x.out.Rule = fmt.Sprintf("the newest event is the delete at sequence %s: no row is shown", last.Sequence)
		return nil
	}
	x.out.Rule = fmt.Sprintf("the newest event is the write at sequence %s: a row is shown, and each column shows what the newest event that wrote it wrote", last.Sequence)
	if left = slices.DeleteFunc(left, func(c int) bool { return inPart[c] }); len(left) > 0 {
		x.out.Notes = append(x.out.Notes, fmt.Sprintf("columns %s are NULL: no event wrote them", x.names(left)))
	}
	return nil
}

func (x *explainer) names(columns []int) string {
	var names []string
	for _, c := range columns {
		names = append(names, x.lane.target.Columns[c].Name)
	}
	return strings.Join(names, ", ")
}

// versions explains type 2, from the oldest event to the newest.
func (x *explainer) versions() error {
	began := "" // sequence at which the open version began; empty: none is open
	for i := range x.held {
		h, told := &x.held[i], &x.out.Events[i]
		if i+1 < len(x.held) && bytes.Equal(h.Seq, x.held[i+1].Seq) {
			told.Led = "the next event has an equal sequence: both are one step, and nobody saw what was between them"
			continue
		}
		continues := !h.delete && h.runSeq != nil && !bytes.Equal(h.runSeq, h.Seq)
		inherited := ""
		if h.filled != nil {
			if columns, err := x.inherited(h.row); err != nil {
				return err
			} else if len(columns) > 0 {
				inherited = "; what it does not write (" + x.names(columns) + ") comes from the step or the version before, or is NULL"
			}
		}
		switch {
		case h.delete && began == "":
			told.Led = "no version was open: it ends none"
			x.out.Rule = fmt.Sprintf("the newest event is the delete at sequence %s: no version is open", told.Sequence)
		case h.delete:
			told.Led = fmt.Sprintf("ends the version that began at %s", began)
			x.out.Rule = fmt.Sprintf("the newest event is the delete at sequence %s: it ended the version that began at %s, and none is open", told.Sequence, began)
		case continues:
			began = x.sequence(h.runSeq)
			told.Led = fmt.Sprintf("continues the version that began at %s: tracked columns are equal", began) + inherited
			x.out.Rule = fmt.Sprintf("the newest event, at sequence %s, continues the version that began at %s, which is open: tracked columns are equal", told.Sequence, began)
		case began != "":
			told.Led = fmt.Sprintf("ends the version that began at %s and begins another: tracked columns differ", began) + inherited
			x.out.Rule = fmt.Sprintf("the newest event, at sequence %s, began the version that is open: tracked columns differ from those of the version before", told.Sequence)
		default:
			told.Led = "begins a version: none was open" + inherited
			x.out.Rule = fmt.Sprintf("the newest event, at sequence %s, began the version that is open", told.Sequence)
		}
		switch {
		case h.delete:
			began = ""
		case !continues:
			began = told.Sequence
		}
	}
	return nil
}

// inherited are the columns that an event does not write.
func (x *explainer) inherited(row change.Row) (columns []int, err error) {
	values, err := row.Values(nil, len(x.lane.target.Columns))
	for i, v := range values {
		if v.State == change.Absent {
			columns = append(columns, i)
		}
	}
	return columns, err
}
