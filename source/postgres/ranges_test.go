package postgres

import (
	"math/rand/v2"
	"testing"

	"tailrace/internal/change"
)

// The ranges of a file follow each other from its first block to beyond its last.
func TestRangesCoverEveryBlockOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		var files []file
		for range 1 + rnd.IntN(4) {
			blocks := rnd.Int64N(1 << rnd.IntN(32))
			files = append(files, file{leaf: change.Name{Table: "t"}, blocks: blocks, bytes: blocks*8192 + rnd.Int64N(1<<30), readable: true})
		}
		ranges := cut(files, 64<<10+rnd.Int64N(1<<40))
		if len(ranges) == 1 {
			t.Fatal("one range is no cut")
		}
		for at := 0; at < len(ranges); {
			blocks := func(i int) *blockRange { return ranges[i].At.(*blockRange) }
			if blocks(at).from != 0 {
				t.Fatalf("a file begins at block %d", blocks(at).from)
			}
			for ; blocks(at).to != 0; at++ {
				if next := blocks(at + 1).from; next != blocks(at).to || blocks(at).to <= blocks(at).from {
					t.Fatalf("blocks %d to %d are followed by %d", blocks(at).from, blocks(at).to, next)
				}
			}
			at++
		}
		if files[0].readable = false; cut(files, 1) != nil {
			t.Fatal("a partition that may not be read was cut")
		}
	}
}

func TestRangeIsACondition(t *testing.T) {
	for want, r := range map[string]blockRange{
		"":                    {},
		"ctid < '(5,0)'::tid": {to: 5},
		"ctid >= '(5,0)'::tid AND ctid < '(9,0)'::tid": {from: 5, to: 9},
		"ctid >= '(9,0)'::tid":                         {from: 9},
	} {
		if got := bounds(&r); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}
