package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// sent is what the source sent of an event, as the quarantine stores it: the change,
// so that it can be judged again by another definition of its flow. Values are texts;
// columns that were not sent are left out.
type sent struct {
	Op  string             `json:"op"` // INSERT, UPDATE, DELETE
	LSN string             `json:"lsn,omitempty"`
	XID uint32             `json:"xid,omitempty"`
	Row map[string]*string `json:"row"`           // the new row; of a delete the old one
	Old map[string]*string `json:"old,omitempty"` // of an update, what was sent of the old row
	Key bool               `json:"key,omitempty"` // only its key was sent
}

// aside makes the quarantine entry of an event.
func aside(b *Bound, reason string, at []byte, from sequenced.Origin) sink.Aside {
	a := sink.Aside{Flow: flowName(b.Spec, b.Target), Target: b.Target.Name, Reason: reason, Position: sequenced.At(at), At: at}
	if tx, c := from.Tx, from.Change; c != nil {
		e := sent{Op: c.Op.String(), XID: tx.XID}
		if lsn := tx.End; !lsn.IsZero() {
			e.LSN = lsn.String()
		} else if !tx.Begin.IsZero() {
			e.LSN = tx.Begin.String()
		}
		switch {
		case c.Op == change.Delete:
			e.Row, e.Key = texts(c.Table, c.Old, c.OldIsKey), c.OldIsKey
		default:
			e.Row = texts(c.Table, c.New, false)
			if c.Old != nil {
				e.Old, e.Key = texts(c.Table, c.Old, c.OldIsKey), c.OldIsKey
			}
		}
		a.Time = tx.CommitTime
		a.Event, _ = json.Marshal(e) // texts and numbers alone
	}
	return a
}

// late makes the entry of an event that was set aside when its batch was decided.
func (c *channel) late(set *sequenced.Aside) sink.Aside {
	e, b := &set.Event, c.flows[0]
	if spot, err := sequenced.ReadAt(e.Place.At); err == nil {
		if i := slices.IndexFunc(c.flows, func(f *Bound) bool { return f.order == int(spot.Flow) }); i >= 0 {
			b = c.flows[i]
		}
	}
	var from sequenced.Origin
	if e.Origin != nil {
		from = *e.Origin
	}
	return aside(b, set.Reason, e.Place.At, from)
}

// texts are the values of a row that were sent; key: those of the identity alone.
func texts(t *change.Table, row change.Row, key bool) map[string]*string {
	out := map[string]*string{}
	values, err := row.Values(nil, len(t.Columns))
	if err != nil {
		return out
	}
	for i, v := range values {
		if key && !t.Columns[i].Key {
			continue
		}
		switch v.State {
		case change.Null:
			out[t.Columns[i].Name] = nil
		case change.AsText:
			text := string(v.Data)
			out[t.Columns[i].Name] = &text
		}
	}
	return out
}

// origin makes the change again, in today's layout of its table. A column that was
// not there then is NULL, or not written where events may write in part.
func (e *sent) origin(t *change.Table, at time.Time, partial bool) (*change.Tx, *change.Change, error) {
	row := func(m map[string]*string, missing func(name string) change.State) (r change.Row) {
		for _, c := range t.Columns {
			text, found := m[c.Name]
			switch {
			case !found:
				r = r.Append(change.Value{State: missing(c.Name)})
			case text == nil:
				r = r.Append(change.Value{State: change.Null})
			default:
				r = r.Append(change.Value{State: change.AsText, Data: []byte(*text)})
			}
		}
		return r
	}
	unknown := func(string) change.State {
		if partial {
			return change.Absent
		}
		return change.Null
	}
	old := unknown
	if e.Key {
		old = func(string) change.State { return change.Absent }
	}
	tx := &change.Tx{First: true, Last: true, XID: e.XID, CommitTime: at}
	if e.LSN != "" {
		p, err := change.ParsePosition(e.LSN)
		if err != nil {
			return nil, nil, err
		}
		tx.Begin, tx.End = p, p
	}
	c := &change.Change{Table: t, OldIsKey: e.Key}
	switch e.Op {
	case change.Insert.String(), change.Update.String():
		c.Op = change.Insert
		if e.Op == change.Update.String() {
			c.Op = change.Update
		}
		c.New = row(e.Row, func(name string) change.State {
			if _, found := e.Old[name]; found {
				return change.Absent // the old row has it
			}
			return unknown(name)
		})
		if e.Old != nil {
			c.Old = row(e.Old, old)
		}
	case change.Delete.String():
		c.Op, c.Old = change.Delete, row(e.Row, old)
	default:
		return nil, nil, errors.New("it is neither an insert, an update nor a delete")
	}
	return tx, c, nil
}

// Retried is what came of an event in quarantine. Stays says why it is still there;
// empty: it was applied.
type Retried struct {
	sink.Aside
	Stays string
}

// Retry judges events in quarantine again by the flows as they are now, and applies
// those that are good at the place that they had: a target then holds what it would
// hold had they been good at once. Rows, memory and the event's resolution are one
// transaction. Flow empty: of all flows; ids nil: all. It owns the pipeline meanwhile.
func Retry(ctx context.Context, c Config, flow string, ids []int64, report func(Retried)) error {
	counted := false
	var reported int64 // what was said is not said again after a transient fault
	return Run(ctx, c, Mode{instead: func(stop, work context.Context, s *session) error {
		memory, ok := s.dst.(sink.Memory)
		if !ok {
			return fault.Badly("this destination has no quarantine")
		}
		if !counted {
			if err := MustBeInQuarantine(work, memory, flow, ids); err != nil {
				return err
			}
			counted = true
		}
		r := retrier{session: s, memory: memory, channels: map[change.Name]*channel{}, shapers: map[*Bound]*sequenced.Shaper{}}
		r.report = func(list []Retried) {
			slices.SortFunc(list, func(a, b Retried) int { return int(a.ID - b.ID) })
			for _, a := range list {
				if a.ID > reported {
					reported = a.ID
					report(a)
				}
			}
		}
		err := memory.Quarantine(work, flow, func(a sink.Aside) error {
			if stop.Err() != nil {
				return errRetryStopped
			}
			if ids != nil && !slices.Contains(ids, a.ID) {
				return nil
			}
			return r.add(work, a)
		})
		if err != nil && !errors.Is(err, errRetryStopped) {
			return fmt.Errorf("read the quarantine: %w", err)
		}
		return r.flush(work, true)
	}})
}

var errRetryStopped = errors.New("stopped")

// MustBeInQuarantine refuses numbers of events that are not in quarantine.
func MustBeInQuarantine(ctx context.Context, m sink.Memory, flow string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	missing := map[int64]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	if err := m.Quarantine(ctx, flow, func(a sink.Aside) error { delete(missing, a.ID); return nil }); err != nil {
		return fmt.Errorf("read the quarantine: %w", err)
	}
	for _, id := range ids {
		if missing[id] {
			return fault.Badly("--id %d: no such event is in quarantine; `tailrace quarantine list` shows those that are", id)
		}
	}
	return nil
}

// retrier gathers events in quarantine and applies them batch by batch.
type retrier struct {
	*session
	memory   sink.Memory
	channels map[change.Name]*channel
	shapers  map[*Bound]*sequenced.Shaper
	report   func([]Retried)

	gathered []Retried
	bytes    int64
}

func (r *retrier) add(ctx context.Context, a sink.Aside) error {
	stays, err := r.shape(ctx, &a)
	if err != nil {
		return err
	}
	r.bytes += int64(len(a.Event))
	a.Event = nil
	r.gathered = append(r.gathered, Retried{a, stays})
	if len(r.gathered) >= r.BatchRows || r.bytes >= r.BatchBytes {
		return r.flush(ctx, false)
	}
	return nil
}

// shape makes the event and adds it to its target's lane, or says why it stays.
func (r *retrier) shape(ctx context.Context, a *sink.Aside) (stays string, err error) {
	i := slices.IndexFunc(r.bound, func(b Bound) bool {
		return b.Target.Name == a.Target && flowName(b.Spec, b.Target) == a.Flow
	})
	if i < 0 {
		return "no flow of this name writes this target now", nil
	}
	b := &r.bound[i]
	if b.flow == nil {
		return fmt.Sprintf("its flow follows the order of the log, and later changes may have been applied: change the row at the source; or copy the table again, which judges every row anew: tailrace resync --table %s", b.Target.Name), nil
	}
	if b.Spec.Snapshot != nil {
		return "its flow takes snapshots, and the next one judges each of its rows anew: tailrace refresh --flow " + strconv.Quote(b.name()), nil
	}
	if phase := r.state(b.Target.Name).Phase; phase != checkpoint.Live && phase != checkpoint.Catching {
		return fmt.Sprintf("its target is %s", phase), nil
	}
	c := r.channels[b.Target.Name]
	if c == nil {
		if err := r.widen(ctx, b); err != nil {
			return "", fmt.Errorf("prepare target %s: %w", b.Target.Name, err)
		}
		if c, err = r.channelOf(b.Target.Name); err == nil {
			err = c.recall(ctx)
		}
		if err != nil {
			return "", err
		}
		r.channels[b.Target.Name] = c
	}
	var e sent
	if json.Unmarshal(a.Event, &e) != nil {
		return "what was stored of it cannot be read", nil
	}
	tx, ch, err := e.origin(b.Relation.Table, a.Time, c.lane.Partial())
	if err != nil {
		return "what was stored of it cannot be read: " + err.Error(), nil
	}
	if r.shapers[b] == nil {
		r.shapers[b] = sequenced.NewShaper(b.flow, b.Target)
	}
	bad, err := r.shapers[b].Again(c.lane, tx, ch, a.At)
	var parks *sequenced.Park
	switch {
	case errors.As(err, &parks):
		return parks.Reason + ": " + parks.Remedy, nil
	case fault.KindOf(err) == fault.Operator:
		return err.Error(), nil
	case err != nil:
		return "", fmt.Errorf("event %d in quarantine: %w", a.ID, err)
	case bad != nil:
		return bad.Reason, nil
	}
	return "", nil
}

// flush applies what is gathered. The mark stays where it is; what was applied is
// durable when the last one returns.
func (r *retrier) flush(ctx context.Context, last bool) error {
	batch := &sink.Batch{Position: r.mark.Position, Resume: r.mark.Resume, CommitTime: r.mark.CommitTime, First: true}
	for _, c := range r.channels {
		if _, err := c.take(ctx, batch, time.Time{}); err != nil {
			if p := (*parking)(nil); errors.As(err, &p) {
				return fault.Refuse(p.remedy, "target %s: %s", p.target, p.reason)
			}
			return err
		}
	}
	// What the rule of the horizon sets aside again stays where it is.
	again := map[string]string{}
	for _, a := range batch.Aside {
		again[a.Flow+"\x00"+string(a.At)] = a.Reason
	}
	batch.Aside, batch.Violations = nil, nil // they were counted when they came
	for i := range r.gathered {
		a := &r.gathered[i]
		if reason, ok := again[a.Flow+"\x00"+string(a.At)]; ok && a.Stays == "" {
			a.Stays = reason
		}
		if a.Stays == "" {
			batch.Resolved = append(batch.Resolved, a.ID)
		}
	}
	if len(batch.Resolved) > 0 {
		fault.KillPoint("before apply")
		if err := r.dst.Apply(ctx, batch); err != nil {
			return fmt.Errorf("apply events from quarantine: %w", err)
		}
		fault.KillPoint("applied")
	}
	if last && len(r.channels) > 0 {
		// A durable transaction makes all before it durable.
		if err := r.dst.Save(ctx, r.head()); err != nil {
			return fmt.Errorf("write the mark: %w", err)
		}
	}
	r.report(r.gathered)
	r.gathered, r.bytes = nil, 0
	return nil
}
