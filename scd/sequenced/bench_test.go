package sequenced_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// shelf remembers records as a destination does, with the least possible work, so
// that what is measured is the lane.
type shelf struct {
	kind    scd.Kind
	records map[string][]sequenced.Record // in order
}

func (s *shelf) batch(b *testing.B, l *sequenced.Lane, events []sequenced.Event) (touched int) {
	for _, e := range events {
		l.Add(e)
	}
	looks := l.Lookups()
	b.StopTimer()
	var found []sequenced.Record
	for _, look := range looks {
		all := s.records[string(look.Key)]
		from := 0
		if s.kind == scd.Type2 {
			for from = len(all); from > 0 && bytes.Compare(all[from-1].Seq, look.Seq) >= 0; from-- {
			}
			from = max(from-1, 0)
		}
		found = append(found, all[from:]...)
	}
	b.StartTimer()
	for _, r := range found {
		if err := l.Remember(r); err != nil {
			b.Fatal(err)
		}
	}
	w, r, _, _, err := l.Take()
	if err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	defer b.StartTimer()
	for _, id := range w.Remove {
		s.records[string(id.Key)] = nil
	}
	for _, p := range w.Put {
		all := s.records[string(p.Key)]
		i := len(all)
		for i > 0 && bytes.Compare(all[i-1].Seq, p.Seq) >= 0 {
			i--
		}
		if i < len(all) && bytes.Equal(all[i].Seq, p.Seq) && bytes.Equal(all[i].At, p.At) {
			all[i] = p
			continue
		}
		all = append(all, sequenced.Record{})
		copy(all[i+1:], all[i:])
		all[i] = p
		s.records[string(p.Key)] = all
	}
	return r.Size()
}

// BenchmarkLane: 1M events over 100k keys in batches of 50,000, with a share of them late.
func BenchmarkLane(b *testing.B) {
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		for _, late := range []int{0, 5, 50} {
			b.Run(fmt.Sprintf("type%d/late%d%%", kind, late), func(b *testing.B) {
				const n, keys, size = 1_000_000, 100_000, 50_000
				t := &scd.Target{Kind: kind, Sequenced: true, Columns: []scd.Column{{Name: "k", Type: bigint, Key: true}, {Name: "a", Type: textType, Tracked: true}, {Name: "b", Type: textType, Tracked: true}}}
				r := rand.New(rand.NewPCG(1, uint64(late)))
				order := r.Perm(n)
				for i := range order {
					order[i] = i
				}
				for i := range order {
					if r.IntN(100) < late {
						j := r.IntN(n)
						order[i], order[j] = order[j], order[i]
					}
				}
				events := make([]sequenced.Event, n)
				for i, o := range order {
					key := change.Row(nil).Append(integer(o % keys * 7919 % keys))
					events[i] = sequenced.Event{Key: key, Place: placeOf(o, "f", uint64(i)), Start: integer(o),
						Row: append(change.Row(nil), key...).Append(text(fmt.Sprint("value ", o))).Append(text("some more text of a row"))}
				}
				b.ResetTimer()
				touched := 0
				for range b.N {
					s := &shelf{kind: kind, records: map[string][]sequenced.Record{}}
					l := sequenced.New(t, sequenced.Options{}, sequenced.Head{})
					touched = 0
					for from := 0; from < n; from += size {
						touched += s.batch(b, l, events[from:from+size])
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
				b.ReportMetric(float64(touched)/n, "rows/event")
			})
		}
	}
}
