package sequenced_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// Each kind of hidden state is needed: a store that loses one of them is caught by
// the random histories, at a rate far above chance. So the suite can fail.
func TestEachPartOfTheHiddenStateIsNeeded(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*memory, *sequenced.Work, *sequenced.Head)
	}{
		{"deletes", func(m *memory, w *sequenced.Work, _ *sequenced.Head) {
			keep := w.Put[:0]
			for _, r := range w.Put {
				if !r.Tombstone {
					keep = append(keep, r)
				}
			}
			w.Put = keep
		}},
		{"the truncate number", func(_ *memory, _ *sequenced.Work, h *sequenced.Head) { *h = sequenced.Head{} }},
		{"what was remembered before the newest event of a key", func(m *memory, w *sequenced.Work, _ *sequenced.Head) {
			for _, r := range w.Put {
				for id, old := range m.records[string(r.Key)] {
					if bytes.Compare(old.Seq, r.Seq) < 0 {
						delete(m.records[string(r.Key)], id)
					}
				}
			}
		}},
		{"what later versions inherited", func(m *memory, w *sequenced.Work, _ *sequenced.Head) {
			keep := w.Put[:0]
			for _, r := range w.Put {
				if _, again := m.records[string(r.Key)][recordKey(r.Seq, r.At)]; !again {
					keep = append(keep, r)
				}
			}
			w.Put = keep
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 4000
			wrong := 0
			for s := range uint64(n) {
				r := rand.New(rand.NewPCG(s, 2))
				h := randomHistory(r)
				m := newMemory(h.target)
				l := sequenced.New(h.target, h.options, sequenced.Head{})
				r.Shuffle(len(h.events), func(i, j int) { h.events[i], h.events[j] = h.events[j], h.events[i] })
				early := h.truncates
				if len(h.events) > 0 && h.target.Kind == scd.Type1 {
					if _, err := m.apply(l, nil, early); err != nil {
						t.Fatal(err)
					}
				}
				head := l.Head()
				for _, e := range h.events {
					c.lose(m, &sequenced.Work{}, &head)
					l = sequenced.New(h.target, h.options, head)
					m.lose = func(w *sequenced.Work) { c.lose(m, w, &head) }
					if _, err := m.apply(l, []sequenced.Event{e}, nil); err != nil {
						m.complain("%v", err)
						break
					}
				}
				if m.show() != h.oracle() || len(m.problems) > 0 {
					wrong++
				}
			}
			t.Logf("%d of %d histories went wrong", wrong, n)
			if wrong < n/200 {
				t.Errorf("losing it went unnoticed")
			}
		})
	}
}
