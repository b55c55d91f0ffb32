package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// KeyStory is what Explain tells of one key of a sequenced target.
type KeyStory struct {
	Target      *scd.Target // as it is declared
	Explanation *sequenced.Explanation
	Quarantine  []sink.Aside // events of the key that are set aside
}

// Explain reads what is remembered of one key, and says why its target shows what it
// shows. name is that of a sequenced flow or of its target; key gives the values of so
// many key columns, in the target's order. It only reads, and needs no ownership.
func Explain(ctx context.Context, dst sink.Writer, bound []Bound, name string, key func(columns int) ([]string, error)) (*KeyStory, error) {
	flows, err := findSequenced(bound, name)
	if err != nil {
		return nil, err
	}
	memory, ok := dst.(sink.Memory)
	if !ok {
		return nil, fault.Badly("this destination does not take flows with sequence_by")
	}
	t := flows[0].Target
	mark, err := dst.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the mark: %w", err)
	}
	if !slices.ContainsFunc(mark.Tables, func(st checkpoint.Table) bool { return st.Target == t.Name && st.Phase != checkpoint.Creating }) {
		return nil, fault.Refuse("`tailrace run`", "target %s has not been copied yet: nothing is remembered of it", t.Name)
	}
	declared := t.Declared()
	texts, err := key(len(declared.Keys()))
	if err != nil {
		return nil, err
	}
	encoded, err := keyOf(declared, texts)
	if err != nil {
		return nil, err
	}
	head, err := memory.Head(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("read what is remembered of %s: %w", t.Name, err)
	}
	var records []sequenced.Record
	err = memory.Remembered(ctx, t, []sequenced.Lookup{{Key: encoded}}, func(r sequenced.Record) error { records = append(records, r); return nil })
	if err != nil {
		return nil, fmt.Errorf("read what is remembered of %s: %w", t.Name, err)
	}
	s := &KeyStory{Target: declared}
	if s.Explanation, err = sequenced.Explain(t, laneOptions(flows), flows[0].flow.Types, head, records); err != nil {
		return nil, err
	}
	for _, b := range flows {
		err := memory.Quarantine(ctx, flowName(b.Spec, t), func(a sink.Aside) error {
			if a.Target == t.Name && isOf(&a, declared, encoded) {
				s.Quarantine = append(s.Quarantine, a)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the quarantine: %w", err)
		}
	}
	return s, nil
}

// findSequenced returns all flows into the target that a name means.
func findSequenced(bound []Bound, name string) ([]*Bound, error) {
	var into change.Name
	var names []string
	found := false
	for i := range bound {
		b := &bound[i]
		if b.flow == nil {
			continue
		}
		own := flowName(b.Spec, b.Target)
		names = append(names, own)
		if own == name || named(name, b) {
			if found && into != b.Target.Name {
				return nil, fault.Badly("--flow %s is not unique; flows with sequence_by are %s", name, strings.Join(names, ", "))
			}
			into, found = b.Target.Name, true
		}
	}
	if !found {
		if len(names) == 0 {
			return nil, fault.Badly("no flow has sequence_by: nothing is remembered of keys")
		}
		return nil, fault.Badly("no flow with sequence_by is named %s; there are %s", name, strings.Join(names, ", "))
	}
	var flows []*Bound
	for i := range bound {
		if b := &bound[i]; b.flow != nil && b.Target.Name == into {
			flows = append(flows, b)
		}
	}
	return flows, nil
}

// keyOf encodes a key that a person wrote as it is remembered: in the types' text
// forms.
func keyOf(t *scd.Target, texts []string) (scd.Key, error) {
	keys := t.Keys()
	var names []string
	for _, k := range keys {
		names = append(names, t.Columns[k].Name)
	}
	if len(texts) != len(keys) {
		return nil, fault.Badly("--key has %d values, the key of %s has %d: %s", len(texts), t.Name, len(keys), strings.Join(names, ","))
	}
	var key scd.Key
	for i, k := range keys {
		text, err := canonicalText(texts[i], t.Columns[k].Type)
		if err != nil {
			return nil, fault.Badly("--key: the value for %s is no %s", names[i], t.Columns[k].Type.Name)
		}
		key = key.Append(change.Value{State: change.AsText, Data: text})
	}
	return key, nil
}

// canonicalText gives a value the form in which a source sends it, for the types that
// can be spelled in several ways.
func canonicalText(text string, t change.Type) ([]byte, error) {
	v := change.Value{State: change.AsText, Data: []byte(text)}
	switch t.Kind {
	case change.Bool:
		b, err := pgvalue.Bool(v)
		if b {
			return []byte("t"), err
		}
		return []byte("f"), err
	case change.Int16, change.Int32, change.Int64:
		n, err := pgvalue.Int64(v, t.Kind)
		return fmt.Append(nil, n), err
	case change.Date:
		days, special, err := pgvalue.Date(v)
		return pgvalue.AppendDate(nil, days, special), err
	case change.Timestamp, change.TimestampTZ:
		if b := []byte(strings.TrimSuffix(text, "Z")); len(b) > 10 && b[10] == 'T' { // ISO 8601
			if b[10] = ' '; len(b) < len(text) && t.Kind == change.TimestampTZ {
				b = append(b, "+00"...)
			}
			v.Data = b
		}
		us, special, err := pgvalue.Timestamp(v, t.Kind)
		return pgvalue.AppendTimestamp(nil, us, special, t.Kind == change.TimestampTZ), err
	case change.Float32, change.Float64:
		if t.Kind == change.Float32 {
			f, err := pgvalue.Float32(v)
			return pgvalue.AppendFloat(nil, float64(f), 32), err
		}
		f, err := pgvalue.Float64(v)
		return pgvalue.AppendFloat(nil, f, 64), err
	case change.Numeric:
		if t.Precision == 0 || t.Scale < 0 {
			_, err := sequenced.AppendSequence(nil, v, t)
			return v.Data, err
		}
		n, special, err := pgvalue.Numeric(v, t.Scale)
		if special != pgvalue.Finite {
			return v.Data, err
		}
		return pgvalue.AppendInt128(nil, n, t.Scale), err
	case change.Time:
		us, err := pgvalue.Time(v)
		return pgvalue.AppendTime(nil, us), err
	case change.Bytes:
		b, err := pgvalue.Bytes(nil, v)
		return pgvalue.AppendBytes(nil, b), err
	case change.UUID:
		u, err := pgvalue.UUID(v)
		return fmt.Appendf(nil, "%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), err
	}
	return v.Data, nil
}

// isOf reports whether an event in quarantine is about a key.
func isOf(a *sink.Aside, t *scd.Target, key scd.Key) bool {
	var e sent
	if json.Unmarshal(a.Event, &e) != nil {
		return false
	}
	var k scd.Key
	for _, i := range t.Keys() {
		text := e.Row[t.Columns[i].Name]
		if text == nil {
			return false
		}
		k = k.Append(change.Value{State: change.AsText, Data: []byte(*text)})
	}
	return string(k) == string(key)
}

// Memory is what is remembered of a sequenced target, in numbers. Sequences are texts
// where the source could be asked for their types, else hexadecimal.
type Memory struct {
	Target change.Name
	sink.MemorySize
	Counts    sequenced.Counts // since its first copy began
	Truncated string           // the highest truncate's sequence; empty: none
	Horizon   string           // the highest sequence of a forgotten delete; empty: none

	Base   sequenced.Base   // the newest snapshot that was applied
	Failed sequenced.Failed // why a later one was not
}

// Memories reads what is remembered of the sequenced targets among tables. bound may
// be nil where the source cannot be asked.
func Memories(ctx context.Context, m sink.Memory, flows []flow.Spec, sourceSchema, defaultSchema string, tables []checkpoint.Table, bound []Bound) ([]Memory, error) {
	var out []Memory
	for _, st := range tables {
		i := slices.IndexFunc(flows, func(f flow.Spec) bool {
			if f.Snapshot != nil {
				return f.TargetFor(specRelation(&f, sourceSchema), sourceSchema, defaultSchema) == st.Target
			}
			return f.Sequenced.Is() && f.Matches(st.Source) && f.TargetFor(st.Source, sourceSchema, defaultSchema) == st.Target
		})
		if i < 0 {
			continue
		}
		t := &scd.Target{Name: st.Target, Source: st.Source, Kind: tableKind(flows[i].SCDType), Sequenced: true}
		var types []change.Type
		if i := slices.IndexFunc(bound, func(b Bound) bool { return b.flow != nil && b.Target.Name == st.Target }); i >= 0 {
			types = bound[i].flow.Types
		}
		r := Memory{Target: st.Target}
		head, err := m.Head(ctx, t)
		if err == nil {
			r.MemorySize, err = m.Remembers(ctx, t)
		}
		if err == nil {
			r.Counts, err = m.Counted(ctx, t)
		}
		if err == nil {
			_, r.Base, r.Failed, err = aboutTarget(ctx, m, t)
		}
		if err != nil {
			return nil, fmt.Errorf("read what is remembered of %s: %w", st.Target, err)
		}
		if !head.Truncated.IsZero() {
			r.Truncated = sequenced.SequenceText(head.Truncated.Seq, types)
		}
		if head.Horizon != nil {
			r.Horizon = sequenced.SequenceText(head.Horizon, types)
		}
		out = append(out, r)
	}
	return out, nil
}
