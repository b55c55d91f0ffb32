package sinktest

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var (
	typeTimestampTZ = change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone", ID: 1184, BuiltIn: true}
	typeNumeric     = change.Type{Kind: change.Numeric, Name: "numeric(12,2)", ID: 1700, BuiltIn: true, Precision: 12, Scale: 2}
	typeJSONB       = change.Type{Kind: change.JSONB, Name: "jsonb", ID: 3802, BuiltIn: true}
)

// flow is a sequenced target and its lane, driven as a pipeline drives them.
type flow struct {
	*rig
	target
	sequence []change.Type
	options  sequenced.Options
	lane     *sequenced.Lane
	line     uint64 // of the last event: its place in the source
}

// sequencedTarget is makeTarget for a flow with a sequence of the user.
func sequencedTarget(h Harness, name string, kind scd.Kind, sequence []change.Type, columns ...string) target {
	t := makeTarget(h, name, kind, columns...)
	t.Sequenced = true
	if kind == scd.Type2 {
		t.Sequence = &sequence[0]
		if len(sequence) > 1 {
			t.Sequence = &typeJSONB
			for i, typ := range sequence {
				t.SequenceFields = append(t.SequenceFields, change.Column{Name: sequenceColumn(len(sequence), i), Type: typ})
			}
		}
	}
	return t
}

// sequenceColumn names a column of a sequence. The first has the longest name: JSON
// objects are ordered by short names first.
func sequenceColumn(columns, i int) string { return strings.Repeat("s", columns-i) }

// flow makes a sequenced target and its lane.
func (r *rig) flow(name string, kind scd.Kind, sequence []change.Type, partial bool, columns ...string) *flow {
	r.t.Helper()
	f := &flow{rig: r, target: r.create(sequencedTarget(r.h, name, kind, sequence, columns...)), sequence: sequence}
	f.options.Partial = partial
	f.anew()
	return f
}

// memory is the Writer's other half.
func (r *rig) memory() sink.Memory {
	r.t.Helper()
	m, ok := r.w.(sink.Memory)
	if !ok {
		r.t.Fatalf("%T is no sink.Memory", r.w)
	}
	return m
}

func (r *rig) head(t target) sequenced.Head {
	r.t.Helper()
	head, err := r.memory().Head(r.ctx, t.Target)
	if err != nil {
		r.t.Fatalf("Head: %v", err)
	}
	return head
}

// anew makes the lane again, as after a restart.
func (f *flow) anew() {
	f.t.Helper()
	f.lane = sequenced.New(f.Target, f.options, f.head(f.target))
}

// item is an event or a truncate on its way.
type item struct {
	sequenced.Event
	truncate bool
}

// parts are the values of a sequence of one or several columns.
func parts(seq any) []any {
	if list, ok := seq.([]any); ok {
		return list
	}
	return []any{seq}
}

// place gives the next event of the source its place.
func (f *flow) place(seq any) sequenced.Place {
	f.t.Helper()
	var p sequenced.Place
	for i, c := range parts(seq) {
		var err error
		if p.Seq, err = sequenced.AppendSequence(p.Seq, value(c, f.sequence[i], text), f.sequence[i]); err != nil {
			f.t.Fatalf("sequence %v: %v", seq, err)
		}
	}
	f.line++
	p.At = sequenced.AppendFile(nil, "feed/part 1.jsonl", f.line, 1)
	return p
}

// start is a sequence as the value that __START_AT shows.
func (f *flow) start(seq any) change.Value {
	list := parts(seq)
	if len(list) == 1 {
		return value(list[0], f.sequence[0], text)
	}
	var b strings.Builder
	for i, c := range list {
		fmt.Fprintf(&b, `%s"%s": `, []string{"{", ", "}[min(i, 1)], sequenceColumn(len(list), i))
		if s, ok := c.(string); ok && f.sequence[i].Kind != change.Numeric {
			b.WriteString(strconv.Quote(s))
		} else {
			fmt.Fprint(&b, c)
		}
	}
	return change.Value{State: change.AsText, Data: []byte(b.String() + "}")}
}

// put is an event that writes a row.
func (f *flow) put(seq any, row ...any) item {
	f.t.Helper()
	return item{Event: sequenced.Event{Key: f.key(text, f.keyOf(row)), Place: f.place(seq), Row: f.row(text, row), Start: f.start(seq), Time: int64(1000 + f.line)}}
}

// gone is an event that deletes a key.
func (f *flow) gone(seq any, key ...any) item {
	f.t.Helper()
	return item{Event: sequenced.Event{Key: f.key(text, key), Place: f.place(seq), Delete: true, Start: f.start(seq), Time: int64(1000 + f.line)}}
}

// emptied is a truncate.
func (f *flow) emptied(seq any) item {
	f.t.Helper()
	return item{Event: sequenced.Event{Place: f.place(seq)}, truncate: true}
}

// gather turns events into the target's part of a batch.
func (f *flow) gather(items ...item) sink.TargetRounds {
	f.t.Helper()
	for _, it := range items {
		if it.truncate {
			f.lane.Truncate(it.Place)
		} else {
			f.lane.Add(it.Event)
		}
	}
	if p, raised := f.lane.Truncates(); raised && f.lane.Partial() {
		err := f.memory().RememberedBelow(f.ctx, f.Target, p, func(key []byte) error { f.lane.Touch(key); return nil })
		if err != nil {
			f.t.Fatalf("RememberedBelow: %v", err)
		}
	}
	if err := f.memory().Remembered(f.ctx, f.Target, f.lane.Lookups(), f.lane.Remember); err != nil {
		f.t.Fatalf("Remembered: %v", err)
	}
	w, rd, _, _, err := f.lane.Take()
	if err != nil {
		f.t.Fatalf("the lane of %s: %v", f.Name, err)
	}
	return sink.TargetRounds{Target: f.Target, Rounds: []scd.Round{rd}, Hidden: &w}
}

// send is one batch of events.
func (f *flow) send(items ...item) {
	f.t.Helper()
	f.write(f.gather(items...))
}

// write applies parts as one batch.
func (r *rig) write(parts ...sink.TargetRounds) {
	r.t.Helper()
	if err := r.w.Apply(r.ctx, r.batch(parts...)); err != nil {
		r.t.Fatalf("Apply: %v", err)
	}
}

// hidden is a part of a batch with hand-made work.
func (t target) hidden(w sequenced.Work, rounds ...scd.Round) sink.TargetRounds {
	return sink.TargetRounds{Target: t.Target, Rounds: rounds, Hidden: &w}
}

// record is a hand-made record; sequence, place and body are taken as bytes.
func (t target) record(key cells, seq, at, body string) sequenced.Record {
	return sequenced.Record{Key: t.key(text, key), Seq: []byte(seq), At: []byte(at), Body: []byte(body), Time: 1}
}

func (t target) tombstone(key cells, seq, at string, time int64) sequenced.Record {
	r := t.record(key, seq, at, "deleted")
	r.Tombstone, r.Time = true, time
	return r
}

// lookups ask for everything that is remembered of keys.
func (t target) lookups(keys ...cells) []sequenced.Lookup {
	var out []sequenced.Lookup
	for _, k := range keys {
		out = append(out, sequenced.Lookup{Key: t.key(text, k)})
	}
	return out
}

// remembered reads records, in order.
func (r *rig) remembered(t target, at []sequenced.Lookup) []sequenced.Record {
	r.t.Helper()
	var out []sequenced.Record
	err := r.memory().Remembered(r.ctx, t.Target, at, func(rec sequenced.Record) error {
		out = append(out, rec)
		return nil
	})
	if err != nil {
		r.t.Fatalf("Remembered: %v", err)
	}
	slices.SortFunc(out, compareRecords)
	return out
}

func compareRecords(a, b sequenced.Record) int {
	if c := bytes.Compare(a.Key, b.Key); c != 0 {
		return c
	}
	if c := bytes.Compare(a.Seq, b.Seq); c != 0 {
		return c
	}
	return bytes.Compare(a.At, b.At)
}

// expectRecords compares what answers lookups with records, in any order.
func (r *rig) expectRecords(t target, at []sequenced.Lookup, want ...sequenced.Record) {
	r.t.Helper()
	got := r.remembered(t, at)
	want = slices.Clone(want)
	slices.SortFunc(want, compareRecords)
	print := func(list []sequenced.Record) string {
		var b strings.Builder
		for _, rec := range list {
			fmt.Fprintf(&b, "\n  key %q, sequence %q, place %q, body %q, tombstone %v, time %d", rec.Key, rec.Seq, rec.At, rec.Body, rec.Tombstone, rec.Time)
		}
		return b.String()
	}
	if g, w := print(got), print(want); g != w {
		r.t.Fatalf("remembered of %s:%s\nwant:%s", t.Name, g, w)
	}
}
