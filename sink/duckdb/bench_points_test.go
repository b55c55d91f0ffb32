//go:build !noduckdb

package duckdb_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// BenchmarkRewind makes a million updates of a million rows, of random keys, in two files,
// one of which has a rewind point from the start; batch by batch in turn, so that both meet
// the same machine. Then it goes back.
//
//	kept/plain     how long the batches with a point took, as a share of those without
//	rewind/apply   how long the rewind took, as a share of the batches without a point
func BenchmarkRewind(b *testing.B) {
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		stream := copyStream(baseRows, kind == scd.Type2)
		for _, size := range []int{10_000, 50_000} {
			b.Run(fmt.Sprintf("type %d/%d", kind, size), func(b *testing.B) {
				tg := wide(kind)
				var plain, kept, back, cpuPlain, cpuKept, cpuBack time.Duration
				for b.Loop() {
					files := [2]*duckdb.Writer{newWriter(b, file(b)), newWriter(b, file(b))}
					for _, w := range files {
						live(b, w)
						loadWide(b, w, tg, stream)
					}
					p, err := files[1].Point(ctx, "")
					must(b, err)
					rnd := rand.New(rand.NewPCG(1, 2))
					for n := 0; n < baseRows; n += size {
						chosen := map[int]bool{}
						for len(chosen) < size {
							chosen[rnd.IntN(baseRows)] = true
						}
						ids := slices.Sorted(maps.Keys(chosen))
						var r scd.Round
						for _, id := range ids {
							if kind == scd.Type1 {
								r.Upserts = append(r.Upserts, wideRow(id, 1))
							} else {
								r.Steps = append(r.Steps, scd.Step{Key: wideKey(id), N: 1, Lo: 1_700_000_000_000_000, Row: wideRow(id, 1)})
							}
						}
						for i, w := range files {
							at, used := time.Now(), cpuTime(b)
							apply(b, w, tg, r)
							took, cpu := time.Since(at), cpuTime(b)-used
							if i == 0 {
								plain, cpuPlain = plain+took, cpuPlain+cpu
							} else {
								kept, cpuKept = kept+took, cpuKept+cpu
							}
						}
					}
					at, used := time.Now(), cpuTime(b)
					must(b, files[1].Rewind(ctx, sink.Rewind{To: p.Number, Targets: []*scd.Target{tg}, Mark: checkpoint.Mark{Phase: checkpoint.Live, Position: p.Mark.Position}}))
					back, cpuBack = back+time.Since(at), cpuBack+cpuTime(b)-used
					for _, w := range files {
						must(b, w.Close(ctx))
					}
				}
				share := func(name string, a, of time.Duration) { b.ReportMetric(float64(a)/float64(of), name) }
				share("kept/plain", kept, plain)
				share("cpu-kept/plain", cpuKept, cpuPlain)
				share("rewind/apply", back, plain)
				share("cpu-rewind/apply", cpuBack, cpuPlain)
				b.ReportMetric(float64(b.N)*baseRows/plain.Seconds()/1000, "krows/s-plain")
			})
		}
	}
}
