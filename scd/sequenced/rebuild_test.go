package sequenced_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// A history that was built with one set of tracked columns and is rebuilt with another is
// what it would have been with that from its beginning, and goes on from there.
func TestARebuiltHistoryIsAsIfItHadAlwaysBeenTrackedSo(t *testing.T) {
	start, n := rand.Uint64(), 8_000
	if *seed != 0 {
		start, n = *seed, 1
	} else if testing.Short() {
		n = 2000
	}
	t.Logf("%d histories from seed %d (replay one with -seed)", n, start)
	for i := range n {
		s := start + uint64(i)
		r := rand.New(rand.NewPCG(s, 3))
		h := randomHistory(r)
		if h.target.Kind != scd.Type2 {
			continue
		}
		first := *h
		first.events = h.events[:len(h.events)/2]
		m, err := first.arrive(r, nil)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		now := *h.target
		now.Columns = slices.Clone(now.Columns)
		for c := 1; c < len(now.Columns); c++ {
			now.Columns[c].Tracked = r.IntN(2) == 0
		}
		m.target, first.target, h.target = &now, &now, &now
		if err := m.rebuild(h.options, 1+r.IntN(5)); err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		if got, want := m.show(), first.oracle(); got != want || len(m.problems) > 0 {
			t.Fatalf("seed %d: rebuilt\ngot\n%s\nwant\n%s\n%v", s, got, want, m.problems)
		}
		// What comes later, late events too, meets the rebuilt history.
		l := sequenced.New(&now, h.options, sequenced.Head{})
		for _, e := range h.events[len(h.events)/2:] {
			if _, err := m.apply(l, []sequenced.Event{e}, nil); err != nil {
				t.Fatalf("seed %d: %v", s, err)
			}
		}
		if got, want := m.show(), h.oracle(); got != want || len(m.problems) > 0 {
			t.Fatalf("seed %d: after it\ngot\n%s\nwant\n%s\n%v", s, got, want, m.problems)
		}
	}
}

// rebuild does what a pipeline does, in pieces of some operations.
func (m *memory) rebuild(o sequenced.Options, piece int) error {
	b := sequenced.NewRebuild(m.target, o, sequenced.Head{})
	var keys []string
	for k := range m.records {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	take := func(last bool) error {
		w, r, err := b.Take(last, "defined")
		if err == nil {
			m.work(&w)
			m.round(&r)
		}
		return err
	}
	var all []sequenced.Record
	for _, k := range keys {
		all = append(all, m.sorted(k)...)
	}
	for _, r := range all {
		if err := b.Add(r); err != nil {
			return err
		}
		if b.Size() >= piece {
			if err := take(false); err != nil {
				return err
			}
		}
	}
	return take(true)
}
