package postgres

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// The benchmarks of sequenced targets: 100,000 keys with one record each (type 1) or
// ten (type 2), rows of five columns and some 100 bytes, in text form, as a feed of
// files gives them. Each operation is one batch of keys at random.

const seqKeys = 100_000

type seqBench struct {
	*bench
	rnd  *rand.Rand
	last []int // of each key the newest sequence
}

func openSeqBench(b *testing.B, kind scd.Kind) *seqBench {
	server := dbtest.Postgres(b, dbtest.Setting("shared_buffers", "512MB"), dbtest.Setting("max_wal_size", "8GB"), dbtest.Setting("fsync", "on"), dbtest.Setting("autovacuum", "on"))
	w, err := New(Config{DSN: server.Database(b), Pipeline: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { w.Close(b.Context()) })
	bigint, text := builtInType(change.Int64, "bigint", 20), builtInType(change.Text, "text", 25)
	t := &scd.Target{Name: change.Name{Schema: "public", Table: "customers"}, Kind: kind, Sequenced: true, Columns: []scd.Column{
		{Name: "id", Type: bigint, Key: true},
		{Name: "name", Type: text, Tracked: true, Nullable: true},
		{Name: "city", Type: text, Tracked: true, Nullable: true},
		{Name: "mail", Type: text, Tracked: true, Nullable: true},
		{Name: "n", Type: bigint, Tracked: true, Nullable: true},
	}}
	if kind == scd.Type2 {
		t.Sequence = &bigint
	}
	h := &seqBench{bench: &bench{b: b, w: w, t: t, rows: seqKeys}, rnd: rand.New(rand.NewPCG(1, 2)), last: make([]int, seqKeys)}
	if err := w.Own(b.Context(), checkpoint.Owner{Host: "bench", Instance: "bench"}, 0); err != nil {
		b.Fatal(err)
	}
	if err := w.Create(b.Context(), t); err != nil {
		b.Fatal(err)
	}
	versions := 1
	if kind == scd.Type2 {
		versions = 10
	}
	for range versions {
		for from := 0; from < seqKeys; from += 20_000 {
			h.apply(h.change(h.span(from, 20_000)))
		}
	}
	return h
}

func (h *seqBench) span(from, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = from + i
	}
	return ids
}

// some are n different keys, in the order of their bytes.
func (h *seqBench) some(n int) []int {
	ids := h.rnd.Perm(seqKeys)[:n]
	slices.SortFunc(ids, func(a, b int) int { return bytes.Compare(h.key(a), h.key(b)) })
	return ids
}

func (h *seqBench) key(id int) scd.Key { return row(strconv.Itoa(id)) }

func (h *seqBench) record(id, seq int) sequenced.Record {
	place, err := sequenced.AppendSequence(nil, change.Value{State: change.AsText, Data: []byte(strconv.Itoa(seq))}, builtInType(change.Int64, "bigint", 20))
	if err != nil {
		h.b.Fatal(err)
	}
	return sequenced.Record{Key: h.key(id), Seq: place, At: sequenced.AppendFile(nil, "2026/03/01/customers-0001.jsonl", uint64(seq), 1), Body: h.row(id, seq), Time: int64(seq)}
}

func (h *seqBench) row(id, seq int) change.Row {
	return row(strconv.Itoa(id), fmt.Sprintf("customer number %d", id), fmt.Sprintf("city %d", seq%1000), fmt.Sprintf("customer.%d.%d@example.com", id, seq), strconv.Itoa(seq))
}

// change is what a batch in order does to the keys: each gets its next event.
func (h *seqBench) change(ids []int) sink.TargetRounds {
	w := &sequenced.Work{}
	var r scd.Round
	number := func(n int) change.Value {
		return change.Value{State: change.AsText, Data: []byte(strconv.Itoa(n))}
	}
	for _, id := range ids {
		was, is := h.last[id], h.last[id]+1+h.rnd.IntN(5)
		h.last[id] = is
		w.Put = append(w.Put, h.record(id, is))
		if h.t.Kind == scd.Type1 {
			if was > 0 {
				old := h.record(id, was)
				w.Remove = append(w.Remove, old.ID())
			}
			r.Upserts = append(r.Upserts, h.row(id, is))
			continue
		}
		if was > 0 {
			r.Ends = append(r.Ends, scd.VersionEnd{VersionID: scd.VersionID{Key: h.key(id), Start: number(was)}, End: number(is)})
		}
		r.Begins = append(r.Begins, scd.Version{VersionEnd: scd.VersionEnd{VersionID: scd.VersionID{Key: h.key(id), Start: number(is)}, End: change.Value{State: change.Null}}, Row: h.row(id, is)})
	}
	return sink.TargetRounds{Target: h.t, Rounds: []scd.Round{r}, Hidden: w}
}

func (h *seqBench) apply(part sink.TargetRounds) {
	h.pos += 16
	if err := h.w.Apply(h.b.Context(), &sink.Batch{Targets: []sink.TargetRounds{part}, Position: change.LSN(h.pos), First: true}); err != nil {
		h.b.Fatal(err)
	}
}

// Each operation is one batch in order: what is remembered of its keys is read, then
// the batch is applied.
func BenchmarkSequenced(b *testing.B) {
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		for _, n := range []int{10_000, 40_000} {
			b.Run(fmt.Sprintf("type%d/%d", kind, n), func(b *testing.B) { openSeqBench(b, kind).batches(n) })
		}
	}
}

func (h *seqBench) batches(n int) {
	var took [2]time.Duration // looking up, applying
	var server [2]float64
	for i := range h.b.N + 2 { // the first two made the statements
		ids := h.some(n)
		var at []sequenced.Lookup
		for _, id := range ids {
			l := sequenced.Lookup{Key: h.key(id)}
			if h.t.Kind == scd.Type2 {
				l.Seq = h.record(id, h.last[id]+1).Seq
			}
			at = append(at, l)
		}
		part := h.change(ids)
		for step, do := range []func(){
			func() {
				found := 0
				if err := h.w.Remembered(h.b.Context(), h.t, at, func(sequenced.Record) error { found++; return nil }); err != nil || found != n {
					h.b.Fatal(found, err)
				}
			},
			func() { h.apply(part) },
		} {
			cpu, from := h.cpu(), time.Now()
			do()
			if i >= 2 {
				took[step] += time.Since(from)
				server[step] += h.cpu() - cpu
			}
		}
	}
	events := float64(n) * float64(h.b.N)
	for step, name := range []string{"lookup", "apply"} {
		h.b.ReportMetric(took[step].Seconds()*1e6/events, name+"-µs/event")
		h.b.ReportMetric(server[step]/events, name+"-server-µs/event")
	}
	h.b.ReportMetric(0, "ns/op")
}
