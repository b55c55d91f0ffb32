package sequenced

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// Facts that overlap are counted, and only where some do.
func TestOverlappingFactsAreFound(t *testing.T) {
	start := rand.Uint64()
	t.Logf("from seed %d", start)
	point := func(n int) bound { return bound{[]byte{byte(n)}, nil} }
	found := 0
	for s := range uint64(20_000) {
		r := rand.New(rand.NewPCG(start+s, 8))
		var facts []fact
		for range 1 + r.IntN(5) {
			f := fact{from: point(1 + r.IntN(6)), since: point(1 + r.IntN(6))}
			if r.IntN(3) > 0 {
				f.to = point(int(f.from.seq[0]) + 1 + r.IntN(4))
			}
			if r.IntN(3) > 0 {
				f.till = point(int(f.since.seq[0]) + 1 + r.IntN(4))
			}
			facts = append(facts, f)
		}
		slices.SortStableFunc(facts, func(a, b fact) int { return bytes.Compare(a.since.seq, b.since.seq) })
		var closed []int32
		for i := range facts {
			if facts[i].till.seq != nil {
				closed = append(closed, int32(i))
			}
		}
		slices.SortStableFunc(closed, func(a, b int32) int { return bytes.Compare(facts[a].till.seq, facts[b].till.seq) })
		meet := func(from, to, from2, to2 bound) bool {
			return (to.seq == nil || bytes.Compare(from2.seq, to.seq) < 0) && (to2.seq == nil || bytes.Compare(from.seq, to2.seq) < 0)
		}
		some := false
		for i, a := range facts {
			for _, b := range facts[:i] {
				some = some || meet(a.from, a.to, b.from, b.to) && meet(a.since, a.till, b.since, b.till)
			}
		}
		if got := overlaps(facts, closed); (got > 0) != some {
			t.Fatalf("seed %d: %d of %+v, overlapping: %v", start+s, got, facts, some)
		}
		if some {
			found++
		}
	}
	if found < 5000 || found > 19_000 {
		t.Errorf("%d of 20,000 overlap: the search tells nothing", found)
	}
}
