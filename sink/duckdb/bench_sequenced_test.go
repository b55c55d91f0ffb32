//go:build !noduckdb

package duckdb_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// The benchmarks of sequenced targets drive their real lane: 100,000 keys, rows of
// five columns and some 100 bytes in text form, events of a feed of files in order.

const feedKeys = 100_000

type feed struct {
	w     *duckdb.Writer
	t     *scd.Target
	lane  *sequenced.Lane
	rnd   *rand.Rand
	line  int
	spent struct{ read, lane, apply time.Duration } // wall clock
	cpu   struct{ read, lane, apply time.Duration } // of all threads
}

func newFeed(b testing.TB, kind scd.Kind) *feed {
	f := &feed{w: newWriter(b, file(b)), rnd: rand.New(rand.NewPCG(1, 2)),
		t: target("customers", kind, "id int8 key", "name text", "city text", "mail text", "n int8")}
	f.t.Sequenced = true
	if kind == scd.Type2 {
		f.t.Sequence = &f.t.Columns[0].Type
	}
	must(b, f.w.Create(ctx, f.t))
	f.lane = sequenced.New(f.t, sequenced.Options{}, sequenced.Head{})
	return f
}

// event is the next event of the feed, for a key.
func (f *feed) event(b testing.TB, id int) sequenced.Event {
	f.line++
	n := change.Value{State: change.AsText, Data: strconv.AppendInt(nil, int64(f.line), 10)}
	seq, err := sequenced.AppendSequence(nil, n, f.t.Columns[0].Type)
	must(b, err)
	return sequenced.Event{Key: row(id), Start: n, Time: int64(f.line),
		Place: sequenced.Place{Seq: seq, At: sequenced.AppendFile(nil, "2026/03/01/customers-0001.jsonl", uint64(f.line), 1)},
		Row:   row(id, fmt.Sprintf("customer number %d", id), fmt.Sprintf("city %d", f.line%1000), fmt.Sprintf("customer.%d.%d@example.com", id, f.line), f.line)}
}

// batch sends one batch and notes what each step took.
func (f *feed) batch(b testing.TB, events []sequenced.Event) {
	at, used := time.Now(), cpuTime(b)
	lap := func(d, c *time.Duration) {
		*d, *c = *d+time.Since(at), *c+cpuTime(b)-used
		at, used = time.Now(), cpuTime(b)
	}
	for _, e := range events {
		f.lane.Add(e)
	}
	look := f.lane.Lookups()
	lap(&f.spent.lane, &f.cpu.lane)
	records := make([]sequenced.Record, 0, len(look))
	must(b, f.w.Remembered(ctx, f.t, look, func(r sequenced.Record) error {
		records = append(records, r)
		return nil
	}))
	lap(&f.spent.read, &f.cpu.read)
	for _, r := range records {
		must(b, f.lane.Remember(r))
	}
	w, r, _, _, err := f.lane.Take()
	must(b, err)
	lap(&f.spent.lane, &f.cpu.lane)
	lsn++
	must(b, f.w.Apply(ctx, &sink.Batch{Position: change.LSN(lsn), CommitTime: time.UnixMicro(int64(lsn)), First: true,
		Targets: []sink.TargetRounds{{Target: f.t, Rounds: []scd.Round{r}, Hidden: &w}}}))
	lap(&f.spent.apply, &f.cpu.apply)
}

// cpuTime is the processor time of the process: on a shared machine it says more
// than the clock does.
func cpuTime(b testing.TB) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (f *feed) reset() {
	f.spent.read, f.spent.lane, f.spent.apply = 0, 0, 0
	f.cpu = f.spent
}

func (f *feed) report(b *testing.B, events int) {
	for name, d := range map[string]time.Duration{"read": f.spent.read, "lane": f.spent.lane, "apply": f.spent.apply,
		"read-cpu": f.cpu.read, "lane-cpu": f.cpu.lane, "apply-cpu": f.cpu.apply} {
		b.ReportMetric(float64(d.Nanoseconds())/1000/float64(events), name+"-µs/event")
	}
	b.ReportMetric(float64(events)/(f.spent.read+f.spent.lane+f.spent.apply).Seconds()/1000, "kevents/s")
	b.ReportMetric(0, "ns/op")
}

// each runs a benchmark for both kinds and several sizes of batches.
func eachFeed(b *testing.B, run func(b *testing.B, f *feed, size int)) {
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		for _, size := range []int{1000, 10_000, 40_000} {
			b.Run(fmt.Sprintf("type%d/%d", kind, size), func(b *testing.B) { run(b, newFeed(b, kind), size) })
		}
	}
}

// BenchmarkSequencedSteps changes random keys of a target that remembers one record
// a key (type 1) or ten (type 2).
func BenchmarkSequencedSteps(b *testing.B) {
	eachFeed(b, func(b *testing.B, f *feed, size int) {
		times := 1
		if f.t.Kind == scd.Type2 {
			times = 10
		}
		for range times {
			keys := f.rnd.Perm(feedKeys)
			for ; len(keys) > 0; keys = keys[20_000:] {
				f.batch(b, f.events(b, keys[:20_000]))
			}
		}
		f.reset()
		for b.Loop() {
			f.batch(b, f.events(b, f.rnd.Perm(feedKeys)[:size]))
		}
		f.report(b, b.N*size)
	})
}

func (f *feed) events(b testing.TB, keys []int) []sequenced.Event {
	list := make([]sequenced.Event, len(keys))
	for i, id := range keys {
		list[i] = f.event(b, id)
	}
	return list
}

// BenchmarkSequencedFeed is a new target's first million events over 100,000 keys.
func BenchmarkSequencedFeed(b *testing.B) {
	eachFeed(b, func(b *testing.B, f *feed, size int) {
		if size < 10_000 {
			b.Skip("takes minutes")
		}
		const total = 1_000_000
		keys := make([]int, size)
		for b.Loop() {
			f.reset()
			for range total / size {
				for i := range keys {
					keys[i] = f.rnd.IntN(feedKeys)
				}
				f.batch(b, f.events(b, keys))
			}
		}
		f.report(b, total)
	})
}
