package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// verifyEvents compares a sequenced target with what the remembered events say that it
// holds. Its source holds events, which may be gone by now; what is remembered commits
// with the rows, and is what every later event is judged by.
func (s *session) verifyEvents(ctx context.Context, b *Bound) (Comparison, error) {
	c, err := s.channelOf(b.Target.Name)
	if err != nil {
		return Comparison{}, err
	}
	head, err := c.memory.Head(ctx, c.target)
	if err != nil {
		return Comparison{}, fmt.Errorf("read what is remembered: %w", err)
	}
	result := Comparison{Target: c.target.Name, Events: "keys", Checked: "no key stands twice"}
	if len(c.flows) == 1 && b.Spec.Snapshot != nil {
		result.Snapshots = b.name()
	}
	o := laneOptions(c.flows)
	r := review{channel: c, options: o, head: head, rows: o.Partial}
	switch {
	case c.target.Bitemporal != nil:
		r.rows = true
		result.Events, result.Checked = "keys, starts, ends and columns", "no rows of a key overlap on both axes, none is empty"
	case c.target.Kind == scd.Type2:
		r.rows = true
		result.Events, result.Checked = "keys, starts, ends and columns", "the versions of a key do not overlap, none is empty, at most one is open"
	case r.rows:
		result.Events = "keys and columns"
	}
	v := verifier{session: s, b: b, target: s.dst, keyed: true, result: result, expected: r.expected, held: r.held}
	err = v.run(ctx)
	if errors.Is(err, errRowless) {
		r.rows, result.Events = false, "keys"
		v = verifier{session: s, b: b, target: s.dst, keyed: true, result: result, expected: r.expected, held: r.held}
		err = v.run(ctx)
	}
	if r.overlaps > 0 {
		v.result.Violations = append(v.result.Violations, fmt.Sprintf("%s: by what is remembered %d rows overlap another of their key on both axes", c.target.Name, r.overlaps))
	}
	return v.result, err
}

// errRowless: events that wrote whole rows are remembered without them.
var errRowless = errors.New("an event is remembered without its row")

// review reads both sides of a sequenced target in one form: key columns, of type 2 the
// start, then the others and the end if they are compared. Texts are made anew from
// values where a value has several: an event's is as the source spelled it, a row's as
// the destination prints it.
type review struct {
	*channel
	options sequenced.Options
	head    sequenced.Head
	rows    bool // compare whole rows

	values   []change.Value
	form     []byte
	bounds   [2]change.Value
	overlaps int // of a bitemporal target, by what is remembered
}

func (r *review) expected(ctx context.Context, fn func(key, row []byte, name func() string) error) error {
	keys := r.target.Keys()
	x := sequenced.Expect(r.target, r.options, r.head, func(e sequenced.Expected) error {
		var err error
		if r.rows {
			if e.Row == nil {
				return errRowless
			}
			r.values, err = e.Row.Values(r.values, len(r.target.Columns))
		} else {
			var values []change.Value
			r.values = append(r.values[:0], make([]change.Value, len(r.target.Columns))...)
			if values, err = e.Key.Values(nil, len(keys)); err == nil {
				for i, k := range keys {
					r.values[k] = values[i]
				}
			}
		}
		if err != nil {
			return fault.Corrupted("what is remembered of a key cannot be read: %v", err)
		}
		r.bounds = [2]change.Value{e.Start, e.End}
		return r.row(fn)
	})
	err := r.memory.Records(ctx, r.target, x.Add)
	if err == nil {
		err = x.End()
	}
	if err != nil {
		return fmt.Errorf("read what is remembered: %w", err)
	}
	r.overlaps = x.Overlaps()
	return nil
}

func (r *review) held(ctx context.Context, fn func(key, row []byte, name func() string) error) error {
	n := len(r.target.Columns)
	width := n
	if r.target.Kind == scd.Type2 {
		width += 2
	}
	err := r.memory.Rows(ctx, r.target, func(row change.Row) error {
		var err error
		if r.values, err = row.Values(r.values, width); err != nil {
			return fault.Corrupted("a row of the destination cannot be read: %v", err)
		}
		if width > n {
			r.bounds = [2]change.Value{r.values[n], r.values[n+1]}
		}
		return r.row(fn)
	})
	if err != nil {
		return fmt.Errorf("read the destination: %w", err)
	}
	return nil
}

// row gives the row in values and bounds.
func (r *review) row(fn func(key, row []byte, name func() string) error) error {
	t := r.target
	r.form = r.form[:0]
	add := func(keys bool) {
		for i := range t.Columns {
			if t.Columns[i].Key == keys {
				r.form = appendForm(r.form, r.values[i], t.Columns[i].Type)
			}
		}
	}
	add(true)
	if t.Kind == scd.Type2 {
		r.form = r.appendBound(r.form, r.bounds[0])
	}
	key := len(r.form)
	if t.Kind == scd.Type2 {
		r.form = r.appendBound(r.form, r.bounds[1])
	}
	if r.rows {
		add(false)
	}
	return fn(r.form[:key], r.form, r.name)
}

// name spells the key for a person, of type 2 with the start of the version.
func (r *review) name() string {
	var parts []string
	for _, k := range r.target.Keys() {
		parts = append(parts, r.target.Columns[k].Name+"="+string(r.values[k].Data))
	}
	text := strings.Join(parts, " ")
	if r.target.Kind == scd.Type2 {
		text += fmt.Sprintf(", version that begins at %s", r.bounds[0].Data)
	}
	return text
}

// appendBound appends the form of a start or end.
func (r *review) appendBound(dst []byte, v change.Value) []byte {
	fields := r.target.SequenceFields
	if v.State == change.Null || len(fields) == 0 {
		return appendForm(dst, v, *r.target.Sequence)
	}
	values, err := sink.SequenceValues(r.target, string(v.Data))
	if err != nil {
		return change.Row(dst).Append(v) // it is no value of the sequence, and equals none
	}
	for i := range values {
		dst = appendForm(dst, change.Value{State: change.AsText, Data: []byte(values[i])}, fields[i].Type)
	}
	return dst
}

// appendForm appends a value in the form in which both sides are compared.
func appendForm(dst []byte, v change.Value, t change.Type) []byte {
	if v.State != change.AsText {
		return change.Row(dst).Append(v)
	}
	var few [64]byte
	text, err := few[:0], error(nil)
	switch t.Kind {
	case change.Numeric, change.Time, change.TimeTZ: // by value: a column of the destination may add zeros
		text, err = sequenced.AppendSequence(text, v, t)
	case change.Float32:
		var f float32
		f, err = pgvalue.Float32(v)
		text = pgvalue.AppendFloat(text, float64(f), 32)
	case change.Float64:
		var f float64
		f, err = pgvalue.Float64(v)
		text = pgvalue.AppendFloat(text, f, 64)
	case change.Bytes:
		text, err = pgvalue.Bytes(text, v)
	case change.Text:
		text = v.Data
		if strings.HasPrefix(t.Name, "character(") || t.Name == "bpchar" {
			text = []byte(strings.TrimRight(string(v.Data), " "))
		}
	case change.JSONB:
		var value any
		d := json.NewDecoder(strings.NewReader(string(v.Data)))
		d.UseNumber()
		if err = d.Decode(&value); err == nil {
			text, err = json.Marshal(value)
		}
	case change.Bool, change.Int16, change.Int32, change.Int64, change.Date, change.Timestamp, change.TimestampTZ, change.UUID:
		text, err = canonicalText(string(v.Data), t)
	default:
		text = v.Data
	}
	if err != nil {
		text = v.Data
	}
	return change.Row(dst).Append(change.Value{State: change.AsText, Data: text})
}
