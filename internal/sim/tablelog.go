package sim

import (
	"bytes"

	"tailrace/scd/sequenced"
)

// Statement is one change of a key in a table's log, as the log tells it without old
// rows: an upsert has a sequence; a DELETE or TRUNCATE has none.
type Statement struct {
	sequenced.Event     // Place.At always; Place.Seq of an upsert, of a delete in a history what delete_sequence says
	Flow            int // whose log
}

// Placed gives every statement its place by the shortest reading of the rule: a DELETE
// looks back through the whole log for its flow's last statement of the key, a
// TRUNCATE for the highest. next is the smallest sequence above another, nil for type
// 1. The log is in order; statements that say nothing are left out.
func Placed(log []Statement, next func(seq []byte) sequenced.Event) []sequenced.Event {
	var out []sequenced.Event
	done := make([]*sequenced.Event, len(log))
	for i := range log {
		e := log[i].Event
		var base *sequenced.Event
		for j := range i {
			if done[j] == nil || !bytes.Equal(done[j].Key, e.Key) {
				continue
			}
			switch {
			case e.Behind == sequenced.BehindLast && log[j].Flow == log[i].Flow:
				base = done[j]
			case e.Behind == sequenced.BehindNewest && (base == nil || base.Place.Before(done[j].Place)):
				base = done[j]
			}
		}
		if e.Behind != sequenced.BehindNothing {
			if base == nil || e.Behind == sequenced.BehindNewest && base.Delete {
				continue
			}
			if next == nil {
				e.Place.Seq = base.Place.Seq
			} else if bytes.Compare(e.Place.Seq, base.Place.Seq) <= 0 {
				above := next(base.Place.Seq)
				e.Place.Seq, e.Start = above.Place.Seq, above.Start
			}
		}
		e.Behind = sequenced.BehindNothing
		done[i] = &e
		out = append(out, e)
	}
	return out
}
