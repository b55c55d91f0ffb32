package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// EventsMost is how many bytes of events are applied at once: it is one batch, and a
// request to a daemon holds them.
const EventsMost = 4 << 20

// AppliedEvents is what came of events that a person applied. Where Wrong is not empty
// nothing was applied.
type AppliedEvents struct {
	Target change.Name
	Events int          // applied, those that change nothing included
	Aside  []LineReason `json:",omitempty"` // set aside: they are in quarantine
	Wrong  []LineReason `json:",omitempty"`
}

// LineReason is what is to be said of one line; no values.
type LineReason struct {
	Line   int
	Reason string
}

// ApplyEvents brings events of a flow with a sequence, one JSON object a line, through
// the flow as it is: so what is remembered and what the target shows stay one. It owns the
// pipeline meanwhile.
func ApplyEvents(ctx context.Context, c Config, flow, lines string) (out AppliedEvents, err error) {
	err = Run(ctx, c, Mode{instead: func(_, work context.Context, s *session) error {
		out, err = s.applyEvents(work, flow, lines)
		return err
	}})
	return out, err
}

// ApplyEvents has the running pipeline do what the function of this name does, while its
// stream stands.
func (h *Hold) ApplyEvents(ctx context.Context, flow, lines string) (out AppliedEvents, err error) {
	err = h.errand(ctx, func(_, work context.Context, s *session) (err error) {
		out, err = s.applyEvents(work, flow, lines)
		return err
	})
	return out, err
}

// sequencedFlowNamed finds one flow with a sequence by its name, or by its target's if it
// is the only one into it.
func (s *session) sequencedFlowNamed(name string) (*Bound, error) {
	var found []*Bound
	for _, means := range []func(b *Bound) bool{
		func(b *Bound) bool { return b.name() == name },
		func(b *Bound) bool { return named(name, b) },
	} {
		for i := range s.bound {
			if b := &s.bound[i]; means(b) {
				found = append(found, b)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	switch {
	case len(found) == 0:
		return nil, fault.Badly("--flow %s: no flow has this name or this target", name)
	case len(found) > 1:
		var names []string
		for _, b := range found {
			names = append(names, b.name())
		}
		return nil, fault.Badly("--flow %s is not unique: it may be %s", name, strings.Join(names, ", "))
	}
	b := found[0]
	if b.Blocked != nil {
		return nil, fault.Refuse(b.Blocked.Remedy, "%s", b.Blocked.What)
	}
	if b.Spec.Snapshot != nil {
		return nil, fault.Refuse("change the row at the source; or name a flow with sequence_by into the same target",
			"flow %s takes snapshots, which say of every row what it is at their version: an event of its own has no place among them", b.name())
	}
	if b.flow == nil {
		return nil, fault.Refuse("change the row at the source",
			"flow %s follows its table in the order of the log: its target is what the source holds, and an event has no place in it", b.name())
	}
	if s.mark.Phase == checkpoint.None {
		return nil, fault.Refuse("tailrace run", "pipeline %s has not been started", s.Name)
	}
	if phase := s.state(b.Target.Name).Phase; phase != checkpoint.Live && phase != checkpoint.Catching {
		return nil, fault.Refuse("wait until `tailrace status` shows it as live", "target %s is %s", b.Target.Name, phase.Shown())
	}
	return b, nil
}

func (s *session) applyEvents(ctx context.Context, name, lines string) (out AppliedEvents, err error) {
	b, err := s.sequencedFlowNamed(name)
	if err != nil {
		return out, err
	}
	out.Target = b.Target.Name
	if len(lines) > EventsMost {
		return out, fault.Badly("the events take %d bytes, and %d is the most at once: apply them in parts", len(lines), EventsMost)
	}
	if err := s.widen(ctx, b); err != nil {
		return out, fmt.Errorf("prepare target %s: %w", b.Target.Name, err)
	}
	c, err := s.channelOf(b.Target.Name)
	if err == nil {
		err = c.recall(ctx)
	}
	if err != nil {
		return out, err
	}
	// It commits durably, which takes longer than the millisecond that tells two
	// applications apart.
	now := time.Now()
	tx := &change.Tx{First: true, Last: true, Begin: s.mark.Position, End: s.mark.Position, CommitTime: now}
	shaper := sequenced.NewShaper(b.flow, b.Target)
	line := 0
	for text := range strings.Lines(lines) {
		if line++; strings.TrimSpace(text) == "" {
			continue
		}
		if line > sequenced.LinesMost {
			return out, fault.Badly("there are more than %d lines: apply them in parts", sequenced.LinesMost)
		}
		ch, reason := eventOf(b, text)
		if reason != "" {
			out.Wrong = append(out.Wrong, LineReason{line, reason})
			continue
		}
		ch.Ordinal = uint64(line)
		bad, err := shaper.Again(c.lane, tx, ch, sequenced.AppendByHand(nil, s.mark.Position, now, line, b.flow.Order))
		out.Events++
		switch {
		case err != nil:
			return out, fmt.Errorf("line %d: %w", line, err)
		case bad != nil && b.Spec.Sequenced.FailOnBad && !bad.Dropped:
			out.Wrong = append(out.Wrong, LineReason{line, bad.Reason})
		case bad != nil:
			if err := c.bad(b, bad, sequenced.Origin{Tx: tx, Change: ch}); err != nil {
				return out, err
			}
		}
	}
	if len(out.Wrong) > 0 {
		out.Events = 0
		return out, nil
	}
	batch := &sink.Batch{Position: s.mark.Position, Resume: s.mark.Resume, CommitTime: s.mark.CommitTime, First: true}
	if _, err := c.take(ctx, batch, time.Time{}); err != nil {
		if p := (*parking)(nil); errors.As(err, &p) {
			err = fault.Refuse(p.remedy, "target %s: %s", p.target, p.reason)
		}
		return out, s.brokenBy(err)
	}
	for _, a := range batch.Aside {
		if spot, err := sequenced.ReadAt(a.At); err == nil {
			if _, line, ok := spot.ByHand(); ok {
				out.Aside = append(out.Aside, LineReason{line, a.Reason})
			}
		}
	}
	out.Events -= len(out.Aside)
	if err := s.dst.Apply(ctx, batch); err != nil {
		return out, s.brokenBy(fmt.Errorf("apply events to %s: %w", b.Target.Name, err))
	}
	s.Stats.Met(batch.Violations)
	fault.KillPoint("events applied")
	// A durable transaction makes all before it durable.
	if err := s.dst.Save(ctx, s.head()); err != nil {
		return out, fmt.Errorf("write the mark: %w", err)
	}
	s.Log.Info("events applied by hand", "flow", b.name(), "target", b.Target.Name.String(), "events", out.Events, "set_aside", len(out.Aside))
	return out, nil
}

// brokenBy says that the destination has to be opened again after an errand's error, which
// concerns the asker alone.
func (s *session) brokenBy(err error) error {
	s.broken = fault.Retry(nil, "what somebody asked for failed in the destination, which is opened anew")
	return err
}

// eventOf makes the change that a line means, or says what is wrong with it. A column
// that it leaves out is NULL. `_op` says what a statement on the flow's table would be.
func eventOf(b *Bound, line string) (c *change.Change, wrong string) {
	var cells map[string]json.RawMessage
	if err := json.Unmarshal([]byte(line), &cells); err != nil || cells == nil {
		return nil, "it is no JSON object"
	}
	t := b.Relation.Table
	c = &change.Change{Op: change.Insert, Table: t}
	values := make([]change.Value, len(t.Columns))
	for i := range values {
		values[i] = change.Value{State: change.Null}
	}
	for name, raw := range cells {
		if name == "_op" {
			switch op := strings.ToUpper(strings.Trim(string(raw), `"`)); {
			case op == "INSERT", op == "UPDATE" && !b.flow.Feed:
			case op == "DELETE" && !b.flow.Feed:
				c.Op = change.Delete
			default:
				return nil, "_op is INSERT, or for a flow on a table UPDATE or DELETE; what deletes in a feed is said by apply_as_deletes"
			}
			continue
		}
		i := findInput(t.Columns, name)
		if i < 0 {
			return nil, fmt.Sprintf("column %s is not in %s (it has %s)", name, t.Name, t.ColumnNames())
		}
		text, null, ok := cellText(raw, t.Columns[i].Type)
		if ok && !null {
			data, err := canonicalText(text, t.Columns[i].Type)
			ok = err == nil
			values[i] = change.Value{State: change.AsText, Data: data}
		}
		if !ok {
			return nil, fmt.Sprintf("the value of column %s is no %s", t.Columns[i].Name, t.Columns[i].Type.Name)
		}
	}
	var row change.Row
	for _, v := range values {
		row = row.Append(v)
	}
	if c.Op == change.Delete {
		c.Old = row
	} else {
		c.New = row
	}
	return c, ""
}

// cellText is a JSON value as the text of a column's type: strings without quotes,
// documents only where the column takes them.
func cellText(raw json.RawMessage, t change.Type) (text string, null, ok bool) {
	raw = bytes.TrimSpace(raw)
	document := t.Kind == change.JSON || t.Kind == change.JSONB
	switch {
	case string(raw) == "null":
		return "", true, true
	case document:
		return string(raw), false, true
	case raw[0] == '"':
		return text, false, json.Unmarshal(raw, &text) == nil
	case raw[0] == '{' || raw[0] == '[':
		return string(raw), false, t.Kind == change.Text
	}
	return string(raw), false, true
}
