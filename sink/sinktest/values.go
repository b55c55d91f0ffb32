package sinktest

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// valuesFile lists every built-in type with its edge values, each as PostgreSQL
// prints it and as PostgreSQL sends it in binary. Lines are
//
//	type TAB name TAB oid TAB kind
//	quoted text TAB binary in hex
//
// A test of sink/postgres asks a real server whether the file is right.
//
//go:embed testdata/values.tsv
var valuesFile string

// ValueType is a built-in type and its edge values.
type ValueType struct {
	Type   change.Type
	Values []Value
}

// Value is one value in PostgreSQL's two forms.
type Value struct {
	Text   string
	Binary []byte
}

// Values reads the list of types and values.
func Values() ([]ValueType, error) {
	var out []ValueType
	for i, l := range strings.Split(strings.TrimRight(valuesFile, "\n"), "\n") {
		f := strings.Split(l, "\t")
		if f[0] == "type" && len(f) == 4 {
			oid, err := strconv.ParseUint(f[2], 10, 32)
			kind, ok := kinds[f[3]]
			if err != nil || !ok {
				return nil, fmt.Errorf("values.tsv line %d: oid %q, kind %q", i+1, f[2], f[3])
			}
			t := change.Type{Kind: kind, Name: f[1], ID: uint32(oid), BuiltIn: true}
			if kind == change.Array {
				elem := strings.TrimSuffix(f[1], "[]")
				at := slices.IndexFunc(out, func(v ValueType) bool { return v.Type.Name == elem })
				if at < 0 {
					return nil, fmt.Errorf("values.tsv line %d: the element type %q must come first", i+1, elem)
				}
				t.Elem = &out[at].Type
			}
			if n, _ := fmt.Sscanf(f[1], "numeric(%d,%d)", &t.Precision, &t.Scale); n == 0 {
				fmt.Sscanf(f[1], "character varying(%d)", &t.Length)
			}
			out = append(out, ValueType{Type: t})
			continue
		}
		if len(f) != 2 || len(out) == 0 {
			return nil, fmt.Errorf("values.tsv line %d is neither a type nor a value", i+1)
		}
		text, err := strconv.Unquote(f[0])
		if err != nil {
			return nil, fmt.Errorf("values.tsv line %d: %w", i+1, err)
		}
		bin, err := hex.DecodeString(f[1])
		if err != nil {
			return nil, fmt.Errorf("values.tsv line %d: %w", i+1, err)
		}
		v := &out[len(out)-1]
		v.Values = append(v.Values, Value{text, bin})
	}
	return out, nil
}

var kinds = map[string]change.Kind{
	"Other": change.Other, "Bool": change.Bool, "Int16": change.Int16, "Int32": change.Int32, "Int64": change.Int64,
	"Float32": change.Float32, "Float64": change.Float64, "Numeric": change.Numeric, "Text": change.Text, "Bytes": change.Bytes,
	"Date": change.Date, "Time": change.Time, "TimeTZ": change.TimeTZ, "Timestamp": change.Timestamp, "TimestampTZ": change.TimestampTZ,
	"Interval": change.Interval, "UUID": change.UUID, "JSON": change.JSON, "JSONB": change.JSONB, "Array": change.Array, "Range": change.Range,
}

var valueTests = []test{
	{"every built-in type arrives the same by every road", nil, func(t *testing.T, h Harness) {
		types, err := Values()
		if err != nil {
			t.Fatal(err)
		}
		r := begin(t, h)
		for i, vt := range types {
			vt = taken(h, vt)
			t.Run(vt.Type.Name, func(t *testing.T) {
				sub := *r
				sub.t = t
				sub.everyRoad(i, vt)
			})
			if t.Failed() { // an Apply may have failed: the rule is to open again
				r.reopen()
			}
		}
	}},

	{"an equal value of any type continues its version", nil, func(t *testing.T, h Harness) {
		types, err := Values()
		if err != nil {
			t.Fatal(err)
		}
		r := begin(t, h)
		for i, vt := range types {
			vt = taken(h, vt)
			tt := valueTarget(h, fmt.Sprintf("history%d", i), vt.Type, scd.Type2)
			r.create(tt)
			for _, f := range r.forms(vt.Type) {
				var part sink.TargetRounds
				for lo := int64(1000); lo <= 2000; lo += 1000 {
					part = sink.TargetRounds{Target: tt.Target, Binary: f == binary, Rounds: []scd.Round{{}}}
					for k := range len(vt.Values) + 1 {
						part.Rounds[0].Steps = append(part.Rounds[0].Steps, scd.Step{Key: tt.key(f, cells{k}), N: 1, Lo: lo, Row: valueRow(vt, k, k, f)})
					}
					slices.SortFunc(part.Rounds[0].Steps, func(a, b scd.Step) int { return bytes.Compare(a.Key, b.Key) })
					if err := r.w.Apply(r.ctx, r.batch(part)); err != nil {
						t.Fatalf("%s, %s: %v", vt.Type.Name, f, err)
					}
				}
				n := h.Query(t, "SELECT count(*) FROM "+sqlName(tt.Name))
				if want := strconv.Itoa(len(vt.Values) + 1); *n[0][0] != want {
					t.Errorf("%s, %s: %s versions after writing %s values again", vt.Type.Name, f, *n[0][0], want)
				}
			}
		}
	}},
}

// taken leaves out the values that the destination refuses.
func taken(h Harness, vt ValueType) ValueType {
	if refuses := h.Has().Refuses; refuses != nil {
		vt.Values = slices.DeleteFunc(slices.Clone(vt.Values), func(v Value) bool { return refuses(vt.Type, v.Text) })
	}
	return vt
}

func valueTarget(h Harness, name string, typ change.Type, kind scd.Kind) target {
	tt := makeTarget(h, name, kind, "k int4 key", "v text")
	tt.Columns[1].Type = typ
	return tt
}

// forms are the forms in which values of a type may reach the destination.
func (r *rig) forms(t change.Type) []form {
	if r.w.Binary(t) {
		return []form{text, binary}
	}
	return []form{text}
}

// valueRow is a row (key, value number v of the type); the number after the last
// is NULL.
func valueRow(vt ValueType, key, v int, f form) change.Row {
	row := change.Row{}.Append(value(key, typeInt4, f))
	switch {
	case v == len(vt.Values):
		return row.Append(change.Value{State: change.Null})
	case f == binary:
		return row.Append(change.Value{State: change.Binary, Data: vt.Values[v].Binary})
	}
	return row.Append(change.Value{State: change.AsText, Data: []byte(vt.Values[v].Text)})
}

// everyRoad sends a type's values by COPY, by a small and by a large batch, in
// each form, and demands that all of them are stored alike.
func (r *rig) everyRoad(i int, vt ValueType) {
	n := len(vt.Values) + 1
	tt := r.create(valueTarget(r.h, fmt.Sprintf("values%d", i), vt.Type, scd.Type1))
	roads := []string{}
	for _, f := range r.forms(vt.Type) {
		base := len(roads) * n
		var stream bytes.Buffer
		if f == binary {
			stream.WriteString("PGCOPY\n\377\r\n\000")
			stream.Write(make([]byte, 8))
		}
		for v := range n {
			vs, err := valueRow(vt, base+v, v, f).Values(nil, 2)
			if err != nil {
				r.t.Fatal(err)
			}
			appendCopyRow(&stream, f, vs)
		}
		if f == binary {
			stream.Write([]byte{0xff, 0xff})
		}
		if _, err := r.w.Load(r.ctx, tt.Target, sink.Copy{Binary: f == binary, Rows: &stream}, false, r.done(tt, checkpoint.Live)); err != nil {
			r.t.Fatalf("Load %s: %v", f, err)
		}
		roads = append(roads, "load "+f.String())
		for _, large := range []bool{false, true} {
			base := len(roads) * n
			round := scd.Round{}
			for v := range n {
				round.Upserts = append(round.Upserts, valueRow(vt, base+v, v, f))
			}
			if large {
				for k := range 1000 {
					round.Upserts = append(round.Upserts, valueRow(vt, 1_000_000+k, n-1, f))
				}
			}
			slices.SortFunc(round.Upserts, func(a, b change.Row) int { return bytes.Compare(a, b) })
			if err := r.w.Apply(r.ctx, r.batch(sink.TargetRounds{Target: tt.Target, Binary: f == binary, Rounds: []scd.Round{round}})); err != nil {
				r.t.Fatalf("Apply %s, large %v: %v", f, large, err)
			}
			roads = append(roads, fmt.Sprintf("apply %s large=%v", f, large))
		}
	}
	stored := map[int]*string{}
	for _, row := range r.h.Query(r.t, "SELECT k, v FROM "+sqlName(tt.Name)+" WHERE k < 1000000") {
		k, _ := strconv.Atoi(*row[0])
		stored[k] = row[1]
	}
	for road, name := range roads {
		for v := range n {
			got, ok := stored[road*n+v]
			if !ok {
				r.t.Errorf("%s: value %d is not there", name, v)
				continue
			}
			if v == n-1 {
				if got != nil {
					r.t.Errorf("%s: NULL became %q", name, *got)
				}
				continue
			}
			first := stored[v]
			if got == nil || first == nil || *got != *first {
				r.t.Errorf("%s stores %v, %s %v", name, show(got), roads[0], show(first))
			}
			if r.h.Has().SourceText && got != nil && *got != vt.Values[v].Text {
				r.t.Errorf("%s stores %q, the source has %q", name, *got, vt.Values[v].Text)
			}
		}
	}
	f := r.forms(vt.Type)[len(r.forms(vt.Type))-1]
	var got, want []string
	err := r.w.Scan(r.ctx, tt.Target, func(key, row []byte) error {
		got = append(got, string(row))
		return nil
	})
	if err != nil {
		r.t.Fatalf("Scan: %v", err)
	}
	for road := range roads {
		for v := range n {
			out, _, err := r.w.Canonical(tt.Target, valueRow(vt, road*n+v, v, f), nil)
			if err != nil {
				r.t.Fatalf("Canonical: %v", err)
			}
			want = append(want, string(out))
		}
	}
	for k := range 1000 {
		out, _, err := r.w.Canonical(tt.Target, valueRow(vt, 1_000_000+k, n-1, f), nil)
		if err != nil {
			r.t.Fatalf("Canonical: %v", err)
		}
		want = append(want, string(out))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.t.Errorf("Scan and Canonical differ")
	}
}

func show(s *string) string {
	if s == nil {
		return "NULL"
	}
	return strconv.Quote(*s)
}
