package sinktest

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

var barrierTests = []test{
	{"what makes a target anew stands between it and earlier points", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		beside := makeTarget(h, "beside", scd.Type1, "id int4 key", "a text")
		m.watch(beside)
		m.sets("0", 1000, 1, beside)
		type anew struct {
			name string
			t    target
			do   func(t target)
		}
		ordered := func(name string) target { return makeTarget(h, name, scd.Type1, "id int4 key", "a text") }
		sequencedOne := sequencedTarget(h, "reset", scd.Type1, bigints, "id int4 key", "a text")
		all := []anew{
			{"Load", ordered("load"), func(t target) { m.load(t, text, true, cells{5, "new"}) }},
			{"Load into what is empty", ordered("fill"), func(t target) { m.load(t, text, false, cells{5, "new"}) }},
			{"Reset", sequencedOne, func(tt target) {
				if err := m.memory().Reset(m.ctx, tt.Target); err != nil {
					t.Fatalf("Reset: %v", err)
				}
			}},
			{"Seed", ordered("seed"), func(tt target) {
				s := *tt.Target
				s.Sequenced = true
				var none iter.Seq2[sequenced.Record, error] = func(func(sequenced.Record, error) bool) {}
				if err := m.memory().Seed(m.ctx, &s, sequenced.Head{}, none); err != nil {
					t.Fatalf("Seed: %v", err)
				}
			}},
			{"Replace", ordered("replace"), func(tt target) {
				m.replace(tt, text, sink.Replacement{}, sink.Replaced{Removed: 2, Written: 1}, cells{7, "new"})
			}},
			{"Replace of a part", ordered("part"), func(tt target) {
				m.replace(tt, text, sink.Replacement{Part: &sink.Part{}}, sink.Replaced{Written: 1}, cells{1, "new"})
			}},
		}
		for _, a := range all {
			m.watch(a.t)
			switch {
			case a.name == "Load into what is empty":
			case a.t.Sequenced:
				m.write(a.t.hidden(sequenced.Work{Put: []sequenced.Record{a.t.record(cells{1}, "1", "p", "b")}}, scd.Round{Upserts: []change.Row{a.t.row(text, cells{1, "0"})}}))
			default:
				m.sets("0", 1000, 1, a.t)
			}
		}
		one := m.point("")
		for _, a := range all {
			if !a.t.Sequenced && a.name != "Load into what is empty" {
				m.sets("1", 2000, 2, a.t)
			}
			a.do(a.t)
		}
		m.sets("1", 2000, 1, beside)
		two := m.point("")
		m.sets("2", 2000, 1, beside)
		for _, a := range all {
			if a.name != "Seed" {
				for _, key := range []int{1, 7} {
					if a.t.Sequenced {
						m.write(a.t.hidden(sequenced.Work{Put: []sequenced.Record{a.t.record(cells{key}, "2", "p", "b")}}, scd.Round{Upserts: []change.Row{a.t.row(text, cells{key, "2"})}}))
					} else {
						m.sets("2", 3000, key, a.t)
					}
				}
			}
		}
		m.reopen()
		for _, a := range all {
			if u := m.undo(one, a.t); u.Target != a.t.Name || u.Barrier == "" || strings.HasSuffix(u.Barrier, ".") {
				t.Errorf("%s: Undo to the point before is %+v", a.name, u)
			}
			if u := m.undo(two, a.t); u.Barrier != "" {
				t.Errorf("%s: Undo to the point after is %+v", a.name, u)
			}
			m.refuses(one, a.t.Name.Table, fault.Operator, beside, a.t)
		}
		var rest []target
		for _, tt := range m.targets {
			if tt.Name.Table != "seed" { // it is of another kind now
				rest = append(rest, tt)
			}
		}
		m.rewind(two, rest...)
		m.refuses(one, "load", fault.Operator, rest...)
		m.rewind(one, beside)
		if u := m.undo(one, all[0].t); u.Barrier == "" {
			t.Errorf("a rewind of another target has taken the barrier away: %+v", u)
		}
		if err := m.rewinds().DropPoints(m.ctx, two+1); err != nil {
			t.Fatal(err)
		}
		if list, err := m.rewinds().Undo(m.ctx, 1); err != nil || len(list) > 0 {
			t.Fatalf("without points there is %+v, %v", list, err)
		}
	}},

	{"a load that fails is no barrier", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, c := m.trio("t")
		m.sets("0", 1000, 1, a, b, c)
		one := m.point("")
		in := a.copyOf(text, cells{1, "x"})
		in.Rows = failingReader{in.Rows, fmt.Errorf("torn")}
		if _, err := m.w.Load(m.ctx, a.Target, in, true, m.done(a, checkpoint.Live)); err == nil {
			t.Fatal("a torn load went well")
		}
		m.reopen()
		if u := m.undo(one, a); u.Barrier != "" {
			t.Fatalf("Undo: %+v", u)
		}
		m.sets("1", 2000, 1, a, b, c)
		m.rewind(one)
	}},

	{"a copy in parts is a barrier", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		p, ok := m.w.(sink.Parts)
		if !ok {
			return
		}
		a := makeTarget(h, "parted", scd.Type1, "id int4 key", "a text")
		beside := makeTarget(h, "beside", scd.Type1, "id int4 key", "a text")
		m.watch(beside)
		one := m.point("")
		m.watch(a)
		if yes, err := p.BeginParts(m.ctx, a.Target); err != nil || !yes {
			t.Fatalf("BeginParts: %v, %v", yes, err)
		}
		if _, err := p.LoadPart(m.ctx, a.Target, a.copyOf(text, cells{1, "a"})); err != nil {
			t.Fatalf("LoadPart: %v", err)
		}
		if err := p.EndParts(m.ctx, a.Target, m.done(a, checkpoint.Live)); err != nil {
			t.Fatalf("EndParts: %v", err)
		}
		m.sets("1", 2000, 1, a, beside)
		if u := m.undo(one, a); u.Barrier == "" {
			t.Fatalf("Undo: %+v", u)
		}
		m.at[one].targets[a.Name] = "" // it was not there
		m.refuses(one, "parted", fault.Operator, a, beside)
		m.rewind(one, beside)
	}},
}
