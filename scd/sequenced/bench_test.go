package sequenced_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// shelf remembers records as a destination does: outside of the program's heap, or
// nearly so (a key's records are one string of bytes, in order), and it gives them
// out in fresh memory, in the order of the lookups. Only the lane's time is measured.
type shelf struct {
	kind    scd.Kind
	records map[string][]byte
}

// list takes a key's records apart.
func (s *shelf) list(key []byte) (all []sequenced.Record) {
	rest := s.records[string(key)]
	for len(rest) > 0 {
		r := sequenced.Record{Key: key}
		for _, field := range []*[]byte{&r.Seq, &r.At, &r.Body} {
			n, w := binary.Uvarint(rest)
			*field, rest = rest[w:w+int(n)], rest[w+int(n):]
		}
		all = append(all, r)
	}
	return all
}

func appendRecord(b []byte, r sequenced.Record) []byte {
	for _, field := range [][]byte{r.Seq, r.At, r.Body} {
		b = append(binary.AppendUvarint(b, uint64(len(field))), field...)
	}
	return b
}

func (s *shelf) put(r sequenced.Record) {
	all := s.list(r.Key)
	at, found := slices.BinarySearchFunc(all, r, func(a, b sequenced.Record) int {
		return cmp.Or(bytes.Compare(a.Seq, b.Seq), bytes.Compare(a.At, b.At))
	})
	var b []byte
	for _, have := range all[:at] {
		b = appendRecord(b, have)
	}
	b = appendRecord(b, r)
	if found {
		at++
	}
	for _, have := range all[at:] {
		b = appendRecord(b, have)
	}
	s.records[string(r.Key)] = b
}

func (s *shelf) batch(b *testing.B, l *sequenced.Lane, events []sequenced.Event) (touched int) {
	for _, e := range events {
		l.Add(e)
	}
	looks := l.Lookups()
	b.StopTimer()
	var found []sequenced.Record
	var slab scd.Arena
	for _, look := range looks {
		all := s.list(look.Key)
		from := 0
		if s.kind == scd.Type2 {
			for from = len(all); from > 0 && bytes.Compare(all[from-1].Seq, look.Seq) >= 0; from-- {
			}
			from = max(from-1, 0)
		}
		for _, r := range all[from:] {
			for _, field := range []*[]byte{&r.Key, &r.Seq, &r.At, &r.Body} {
				*field = append(slab.Take(len(*field)), *field...)
			}
			found = append(found, r)
		}
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
		delete(s.records, string(id.Key))
	}
	for _, p := range w.Put {
		s.put(p)
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
				// A shaper makes a batch's events one behind the other in memory.
				batch := func(from int) []sequenced.Event {
					var slab scd.Arena
					events := make([]sequenced.Event, size)
					for i := range events {
						o := order[from+i]
						key := change.Row(slab.Take(16)).Append(integer(o % keys * 7919 % keys))
						p := placeOf(o, "f", uint64(from+i))
						p.Seq, p.At = append(slab.Take(len(p.Seq)), p.Seq...), append(slab.Take(len(p.At)), p.At...)
						events[i] = sequenced.Event{Key: scd.Key(key), Place: p, Start: integer(o),
							Row: append(change.Row(slab.Take(80)), key...).Append(text(fmt.Sprint("value ", o))).Append(text("some more text of a row"))}
					}
					return events
				}
				b.ResetTimer()
				touched := 0
				for range b.N {
					s := &shelf{kind: kind, records: map[string][]byte{}}
					l := sequenced.New(t, sequenced.Options{}, sequenced.Head{})
					touched = 0
					for from := 0; from < n; from += size {
						b.StopTimer()
						events := batch(from)
						b.StartTimer()
						touched += s.batch(b, l, events)
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
				b.ReportMetric(float64(touched)/n, "rows/event")
			})
		}
	}
}
