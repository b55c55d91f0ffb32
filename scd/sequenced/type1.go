package sequenced

import (
	"tailrace/internal/change"
	"tailrace/scd"
)

// fold1 decides one key of a type 1 target. The row is what the newest event says,
// column by column: each column shows what the newest event that wrote it wrote,
// where a delete writes NULL to all (rules R13-R17, R20, R47-R49).
func (l *Lane) fold1(d *node, events []*event, held []*record, w *Work, r *scd.Round) error {
	if l.partial {
		return l.fold1Partial(d, events, held, w, r)
	}
	if len(events) == 0 {
		l.retell(d, held, w)
		return nil
	}
	e := events[len(events)-1]
	was := false // whether a row is visible now
	if len(held) > 0 {
		h := held[len(held)-1]
		if e.Place.Before(h.place()) {
			l.retell(d, held, w)
			return nil
		}
		was = !h.delete
		for i := range held {
			w.Remove = append(w.Remove, held[i].ID())
		}
	}
	l.put(w, d.key, e.Place, &stored{delete: e.Delete, last: l.last}, e.Delete, e.Time)
	switch {
	case e.Delete && was:
		r.Deletes = append(r.Deletes, d.key)
	case e.Delete:
	case len(held) == 0 && l.head.Horizon == nil && l.head.Truncated.IsZero():
		r.Inserts = append(r.Inserts, e.Row)
	default:
		r.Upserts = append(r.Upserts, e.Row)
	}
	return nil
}

// said is an event, remembered or new.
type said struct {
	place  Place
	delete bool
	row    change.Row
	event  *event  // new
	record *record // remembered
	kept   bool
}

func (l *Lane) fold1Partial(d *node, events []*event, held []*record, w *Work, r *scd.Round) error {
	all := make([]said, 0, len(events)+len(held))
	for len(events) > 0 || len(held) > 0 {
		if len(held) == 0 || len(events) > 0 && events[0].Place.Before(held[0].place()) {
			e := events[0]
			all = append(all, said{place: e.Place, delete: e.Delete, row: e.Row, event: e})
			events = events[1:]
		} else {
			h := held[0]
			all = append(all, said{place: h.place(), delete: h.delete, row: h.row, record: h})
			held = held[1:]
		}
	}
	if len(all) == 0 {
		return nil // its records went with the truncate, and its row too
	}
	n := len(l.target.Columns)
	m := l.merger(n)
	open, stands := n, 0 // columns that nothing newer wrote; of them those that stay as the target has them
	for i := len(all) - 1; i >= 0; i-- {
		s := &all[i]
		s.kept = i == len(all)-1
		if s.delete {
			s.kept = true
			break
		}
		if s.record != nil && s.row == nil {
			// It was remembered when every event wrote the whole row, which the target
			// alone has: nothing older can be seen.
			s.kept, stands = true, open
			break
		}
		wrote, closed, err := m.add(s.row)
		if err != nil {
			return err
		}
		s.kept = s.kept || wrote
		if open -= closed; open == 0 {
			break
		}
	}
	newest := &all[len(all)-1]
	was, changed := false, newest.event != nil
	for i := range all {
		s := &all[i]
		if s.record != nil {
			was = was || !s.delete
			if !s.kept {
				w.Remove = append(w.Remove, s.record.ID())
			} else if s.record.Tombstone && s != newest {
				// What is visible depends on it now: it cleared columns.
				l.put(w, d.key, s.place, &s.record.stored, false, s.record.Time)
			}
		} else if s.kept {
			changed = true
			is := stored{delete: s.delete, row: s.row}
			if s == newest {
				is.last = l.last
			}
			l.put(w, d.key, s.place, &is, s.delete && s == newest, s.event.Time)
		}
	}
	if newest.record != nil {
		l.tell(d, newest.record, w)
	}
	raised := w.HeadChanged
	if !changed && !raised {
		return nil
	}
	if newest.delete {
		if was || raised {
			r.Deletes = append(r.Deletes, d.key)
		}
		return nil
	}
	switch {
	case stands == n: // the newest event's row is there as it is
	case stands > 0:
		r.Patches = append(r.Patches, m.written(&l.slab))
	default:
		r.Upserts = append(r.Upserts, m.row(&l.slab))
	}
	return nil
}
