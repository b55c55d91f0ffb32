package postgres

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// The benchmarks of rewind points do the same work with and without, turn by turn, and
// report the ratio, which a busy machine changes least:
//
//	TAILRACE_BENCH_ROWS=1000000 go test ./sink/postgres -run '^$' -bench 'Rewind|Kept' -benchtime 1x

const keptBatch = 10_000 // changes in a batch: what a busy stream makes

// updates applies batches of updates of random keys, n changes in all.
func (h *bench) updates(rnd *rand.Rand, n int64, kind scd.Kind) time.Duration {
	h.b.Helper()
	var spent time.Duration
	for done := int64(0); done < n; done += keptBatch {
		keys := map[int64]bool{}
		for len(keys) < keptBatch {
			keys[1+rnd.Int64N(h.rows)] = true
		}
		var r scd.Round
		h.pos += 16
		for k := range keys {
			row := wideRow(k, int64(h.pos))
			if kind == scd.Type2 {
				r.Steps = append(r.Steps, scd.Step{Key: wideKey(k), N: 1, Lo: postgresEpoch + int64(h.pos)*1000, Row: row})
			} else {
				r.Upserts = append(r.Upserts, row)
			}
		}
		slices.SortFunc(r.Upserts, func(a, b change.Row) int { return slices.Compare(a, b) })
		slices.SortFunc(r.Steps, func(a, b scd.Step) int { return slices.Compare(a.Key, b.Key) })
		start := time.Now()
		err := h.w.Apply(h.b.Context(), &sink.Batch{Targets: []sink.TargetRounds{{Target: h.t, Binary: true, Rounds: []scd.Round{r}}}, Position: change.LSN(h.pos), First: true})
		if err != nil {
			h.b.Fatal(err)
		}
		spent += time.Since(start)
	}
	return spent
}

func (h *bench) point() checkpoint.Point {
	h.b.Helper()
	if err := h.w.Save(h.b.Context(), checkpoint.Mark{Phase: checkpoint.Live}); err != nil {
		h.b.Fatal(err)
	}
	p, err := h.w.Point(h.b.Context(), "")
	if err != nil {
		h.b.Fatal(err)
	}
	return p
}

// BenchmarkRewind updates as many rows as there are, at random, and rewinds.
func BenchmarkRewind(b *testing.B) {
	for name, kind := range map[string]scd.Kind{"type 1": scd.Type1, "type 2": scd.Type2} {
		b.Run(name, func(b *testing.B) {
			h := openBench(b, kind)
			rnd := rand.New(rand.NewPCG(1, 2))
			var applied, rewound time.Duration
			for range b.N {
				p := h.point()
				applied += h.updates(rnd, h.rows, kind)
				start := time.Now()
				if err := h.w.Rewind(b.Context(), sink.Rewind{To: p.Number, Targets: []*scd.Target{h.t}, Mark: p.Mark}); err != nil {
					b.Fatal(err)
				}
				rewound += time.Since(start)
			}
			rows := float64(h.rows) * float64(b.N)
			b.ReportMetric(rows/applied.Seconds(), "applied/s")
			b.ReportMetric(rows/rewound.Seconds(), "restored/s")
			b.ReportMetric(applied.Seconds()/rewound.Seconds(), "times-as-fast")
		})
	}
}

// BenchmarkUpsertKept updates half as many rows as there are, at random, behind a point that
// is made then, and as many without one; twice. The whole's rate, of which half is done
// behind a point, is that of what is done with points that are rare.
func BenchmarkUpsertKept(b *testing.B) {
	for name, kind := range map[string]scd.Kind{"type 1": scd.Type1, "type 2": scd.Type2} {
		b.Run(name, func(b *testing.B) {
			h := openBench(b, kind)
			rnd := rand.New(rand.NewPCG(1, 2))
			h.updates(rnd, keptBatch, kind)
			var with, without time.Duration
			var cpuWith, cpuWithout float64 // of the server, which a busy machine changes less
			for range b.N {
				for range 2 {
					h.point()
					at := h.cpu()
					with += h.updates(rnd, h.rows/2, kind)
					cpuWith, at = cpuWith+h.cpu()-at, h.cpu()
					if err := h.w.DropPoints(b.Context(), 1<<40); err != nil {
						b.Fatal(err)
					}
					without += h.updates(rnd, h.rows/2, kind)
					cpuWithout += h.cpu() - at
				}
			}
			b.ReportMetric(float64(h.rows)*float64(b.N)/with.Seconds(), "kept/s")
			b.ReportMetric(without.Seconds()/with.Seconds(), "behind")
			b.ReportMetric(2*without.Seconds()/(with+without).Seconds(), "whole")
			b.ReportMetric(2*cpuWithout/(cpuWith+cpuWithout), "whole-by-cpu")
		})
	}
}

// BenchmarkOneKept is a change of one row, which nothing is kept of yet, and of one that is
// kept already.
func BenchmarkOneKept(b *testing.B) {
	h := openBench(b, scd.Type1)
	one := func(i int) time.Duration {
		h.pos += 16
		start := time.Now()
		err := h.w.Apply(b.Context(), &sink.Batch{Targets: []sink.TargetRounds{{Target: h.t, Binary: true, Rounds: []scd.Round{{Upserts: []change.Row{wideRow(int64(i)%h.rows+1, int64(h.pos))}}}}}, Position: change.LSN(h.pos), First: true})
		if err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	one(0)
	var without, first, again time.Duration
	for i := range b.N {
		without += one(i)
	}
	h.point()
	one(b.N)
	for i := range b.N {
		first += one(i)
	}
	for i := range b.N {
		again += one(i)
	}
	n := float64(b.N) * 1000
	b.ReportMetric(float64(without.Microseconds())/n, "without-ms")
	b.ReportMetric(float64(first.Microseconds())/n, "first-ms")
	b.ReportMetric(float64(again.Microseconds())/n, "again-ms")
}
