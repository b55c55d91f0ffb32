package sinktest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/scd"
	"tailrace/sink"
)

var recallTests = []test{
	{"another pipeline gets what a target was", nil, func(t *testing.T, h Harness) {
		rnd := random(t)
		m := beginTimes(t, named{h.(PointHarness), "first"})
		v := newVariety(m)
		var numbers []int64
		for range 4 {
			for range 6 {
				v.batch(rnd)
			}
			numbers = append(numbers, m.point(""))
		}
		for range 3 {
			v.batch(rnd)
		}
		n := &times{rig: &rig{t: t, h: named{h.(PointHarness), "second"}, ctx: t.Context()}, at: map[int64]moment{}}
		if !h.Has().Depose {
			m.w.Close(m.ctx)
		}
		n.open()
		n.start()
		for i, number := range []int64{numbers[0], numbers[2], numbers[3]} {
			for _, of := range m.targets {
				shadow := *of.Target
				shadow.Name.Table = fmt.Sprintf("%s_shadow%d", of.Name.Table, i)
				tt := n.create(target{&shadow})
				rows, err := n.rewinds().Recall(n.ctx, tt.Target, sink.Past{Pipeline: "first", Point: number, Target: of.Target}, n.done(tt, checkpoint.Live))
				if err != nil {
					t.Fatalf("Recall of %s as of point %d: %v", of.Name, number, err)
				}
				want := m.at[number].targets[of.Name]
				if got := n.of(tt); got != want {
					t.Fatalf("%s as of point %d is\n  %s\nwas\n  %s", of.Name, number, got, want)
				}
				list := strings.Split(want, "\n  ")
				held := int64(len(slices.DeleteFunc(list, func(l string) bool { return strings.HasPrefix(l, "record ") || strings.HasPrefix(l, "head ") })) - 1)
				if rows != held {
					t.Errorf("Recall of %s says %d rows, there are %d", of.Name, rows, held)
				}
				if k := n.mark(); !slices.Contains(k.Tables, n.done(tt, checkpoint.Live)) {
					t.Errorf("the mark has no %s: %+v", tt.Name, k.Tables)
				}
				if h.Has().Depose && of.Kind == scd.Type1 && !of.Sequenced && i == 0 {
					v.batch(rnd) // the first goes on
				}
			}
		}
		tt := n.create(makeTarget(h, "none", scd.Type1, "a text", "k int4 key", "b int8", "c text"))
		past := sink.Past{Pipeline: "first", Point: numbers[3] + 50, Target: m.targets[0].Target}
		if _, err := n.rewinds().Recall(n.ctx, tt.Target, past, n.done(tt, checkpoint.Live)); err == nil {
			t.Error("Recall of a point that there never was")
		}
		n.expect(tt)
		if !h.Has().Depose {
			n.w.Close(n.ctx)
			m.open()
		}
		m.rewind(numbers[1])
	}},

	{"a barrier stands in the way of a recall too", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, named{h.(PointHarness), "first"})
		a, b, c := m.trio("t")
		m.sets("0", 1000, 1, a, b, c)
		one := m.point("")
		m.load(a, text, true, cells{1, "new"})
		two := m.point("")
		n := &times{rig: &rig{t: t, h: named{h.(PointHarness), "second"}, ctx: t.Context()}, at: map[int64]moment{}}
		if !h.Has().Depose {
			m.w.Close(m.ctx)
		}
		n.open()
		n.start()
		tt := n.create(makeTarget(h, "shadow", scd.Type1, "id int4 key", "a text"))
		if _, err := n.rewinds().Recall(n.ctx, tt.Target, sink.Past{Pipeline: "first", Point: one, Target: a.Target}, n.done(tt, checkpoint.Live)); err == nil {
			t.Fatal("a recall across a barrier")
		}
		n.expect(tt)
		if _, err := n.rewinds().Recall(n.ctx, tt.Target, sink.Past{Pipeline: "first", Point: two, Target: a.Target}, n.done(tt, checkpoint.Live)); err != nil {
			t.Fatalf("Recall: %v", err)
		}
		n.expect(tt, "1|new")
	}},
}

// variety is a pipeline with a target of each kind, to which random things happen.
type variety struct {
	*times
	model1   *model1
	model2   *model2
	one, two target // ordered
	log      target
	flows    []*flow
	bi       *bitemporalLife // nil where targets have feeds
}

func newVariety(m *times) *variety {
	m.t.Helper()
	k := &variety{times: m}
	k.one = makeTarget(m.h, "kind1", scd.Type1, "a text", "k int4 key", "b int8", "c text")
	k.two = makeTarget(m.h, "kind2", scd.Type2, "k int4 key", "a text", "b int8 untracked", "c text")
	k.log = makeTarget(m.h, "kindlog", scd.Type1, "a text", "n int8")
	m.watch(k.one, k.two, k.log)
	for i, name := range []string{"kinds1", "kinds2"} {
		f := m.flow(name, scd.Kind(i+1), bigints, i == 0, "k1 int4 key", "v1 text", "k2 text key", "v2 int8")
		k.flows = append(k.flows, f)
		m.targets = append(m.targets, f.target)
	}
	if _, feeds := m.h.(fed); !feeds {
		k.bi = newBitemporalLife(m.rig, "kindb", typeInt8, false)
		m.targets = append(m.targets, k.bi.target)
	}
	k.forget()
	return k
}

// forget begins the models anew, of empty targets.
func (k *variety) forget() {
	k.model1 = &model1{t: k.one, rows: map[string]cells{}}
	k.model2 = &model2{versions: map[int][]version{}, clock: 1000}
}

// events are a few of a flow's.
func (k *variety) events(rnd *rand.Rand, f *flow) (out []item) {
	f.anew()
	for range 1 + rnd.IntN(5) {
		key := rnd.IntN(8)
		k1, k2 := any(key%3), any(awkward[key%len(awkward)])
		seq := rnd.IntN(40)
		switch n := rnd.IntN(20); {
		case n == 0 && f.Kind == scd.Type1:
			out = append(out, f.emptied(seq))
		case n < 5:
			out = append(out, f.gone(seq, k1, k2))
		default:
			row := cells{k1, randomText(rnd), k2, rnd.IntN(3)}
			if f.options.Partial && rnd.IntN(3) == 0 {
				row[1] = absent{}
			}
			out = append(out, f.put(seq, row...))
		}
	}
	return out
}

// batch sends something random to some of the targets, whole or in pieces.
func (k *variety) batch(rnd *rand.Rand) {
	k.t.Helper()
	pieces := rnd.IntN(4) == 0
	var parts [][]sink.TargetRounds // of each piece
	add := func(piece int, p sink.TargetRounds) {
		for len(parts) <= piece {
			parts = append(parts, nil)
		}
		parts[piece] = append(parts[piece], p)
	}
	if rnd.IntN(2) == 0 {
		n := 1 + rnd.IntN(3)
		var rounds []round
		for range n {
			rd := k.model1.generate(rnd, false)
			k.model1.apply(rd)
			rounds = append(rounds, rd)
		}
		if pieces {
			for i, rd := range rounds {
				add(i, k.one.part(text, rd))
			}
		} else {
			add(0, k.one.part(text, rounds...))
		}
	}
	if rnd.IntN(2) == 0 {
		if pieces {
			for i, rd := range k.model2.piecewise(rnd) {
				add(i, k.two.part(text, rd))
			}
		} else {
			add(0, k.two.part(text, k.model2.whole(rnd, 1+rnd.IntN(4))))
		}
	}
	if rnd.IntN(2) == 0 {
		rd := round{truncate: rnd.IntN(12) == 0}
		for range rnd.IntN(5) {
			rd.inserts = append(rd.inserts, cells{randomText(rnd), rnd.IntN(2)})
		}
		add(0, k.log.part(text, rd))
		if pieces {
			add(1, k.log.part(text, round{inserts: []cells{{"p", 1}}}))
		}
	}
	for _, f := range k.flows {
		if rnd.IntN(2) == 0 {
			add(0, f.gather(k.events(rnd, f)...))
		}
	}
	if k.bi != nil && rnd.IntN(3) == 0 {
		if len(k.bi.coming) == 0 {
			k.bi.begin(rnd)
		}
		k.bi.anew()
		n := min(len(k.bi.coming), 1+rnd.IntN(5))
		add(0, k.bi.gather(k.bi.coming[:n]...))
		k.bi.coming = k.bi.coming[n:]
	}
	for i := range parts {
		b := k.times.batch(parts[i]...)
		b.First, b.More = i == 0, i < len(parts)-1
		if err := k.w.Apply(k.ctx, b); err != nil {
			k.t.Fatalf("Apply, piece %d of %d: %v", i+1, len(parts), err)
		}
	}
}
