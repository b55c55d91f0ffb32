package postgres

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/scd"
	"tailrace/sink"
)

// The benchmarks write a table of eight mixed columns, some 200 bytes a row:
//
//	go test ./sink/postgres -run '^$' -bench . -benchtime 10x
//
// Each operation is one batch; rows/s counts changes. TAILRACE_BENCH_ROWS sets how
// many rows are there before (default 200000).

func benchRows() int {
	if n, err := strconv.Atoi(os.Getenv("TAILRACE_BENCH_ROWS")); err == nil {
		return n
	}
	return 200_000
}

func builtInType(kind change.Kind, name string, oid uint32) change.Type {
	return change.Type{Kind: kind, Name: name, ID: oid, BuiltIn: true}
}

func wide(kind scd.Kind) *scd.Target {
	return &scd.Target{
		Name: change.Name{Schema: "public", Table: "wide"}, Kind: kind,
		Columns: []scd.Column{
			{Name: "id", Type: builtInType(change.Int64, "bigint", 20), Key: true},
			{Name: "qty", Type: builtInType(change.Int32, "integer", 23), Tracked: true},
			{Name: "amount", Type: builtInType(change.Numeric, "numeric(12,2)", 1700), Tracked: true},
			{Name: "created", Type: builtInType(change.TimestampTZ, "timestamp with time zone", 1184), Tracked: true},
			{Name: "title", Type: builtInType(change.Text, "text", 25), Tracked: true},
			{Name: "attrs", Type: builtInType(change.JSONB, "jsonb", 3802), Tracked: true},
			{Name: "active", Type: builtInType(change.Bool, "boolean", 16), Tracked: true},
			{Name: "uid", Type: builtInType(change.UUID, "uuid", 2950), Tracked: true},
		},
	}
}

// wideRow makes a row of the table; version makes it differ from others of its id.
func wideRow(id, version int64) change.Row {
	put := func(r change.Row, b []byte) change.Row { return r.Append(change.Value{State: change.Binary, Data: b}) }
	title := fmt.Sprintf("%060d", id*31+version)
	uid := make([]byte, 16)
	binary.BigEndian.PutUint64(uid, uint64(id*2654435761))
	r := put(make(change.Row, 0, 320), binary.BigEndian.AppendUint64(nil, uint64(id)))
	r = put(r, binary.BigEndian.AppendUint32(nil, uint32(version)))
	r = put(r, []byte{0, 2, 0, 0, 0, 0, 0, 2, 0, byte(id % 100), 0, 50}) // a numeric of two digits groups and scale 2
	r = put(r, binary.BigEndian.AppendUint64(nil, uint64(id*1_000_000)))
	r = put(r, []byte(title))
	r = put(r, append([]byte{1}, fmt.Sprintf(`{"k": %d, "tag": "%s", "n": %d, "src": "bench"}`, id, title[40:52], version)...))
	r = put(r, []byte{byte(id & 1)})
	return put(r, uid)
}

func wideKey(id int64) scd.Key {
	return scd.Key{}.Append(change.Value{State: change.Binary, Data: binary.BigEndian.AppendUint64(nil, uint64(id))})
}

// bench is a loaded target.
type bench struct {
	b    *testing.B
	w    *Writer
	t    *scd.Target
	rows int64
	pos  uint64
}

func openBench(b *testing.B, kind scd.Kind) *bench {
	server := dbtest.Postgres(b, dbtest.Setting("shared_buffers", "512MB"), dbtest.Setting("max_wal_size", "8GB"), dbtest.Setting("fsync", "on"), dbtest.Setting("autovacuum", "off"))
	w, err := New(Config{DSN: server.Database(b), Pipeline: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { w.Close(b.Context()) })
	h := &bench{b: b, w: w, t: wide(kind), rows: int64(benchRows())}
	if err := w.Own(b.Context(), checkpoint.Owner{Host: "bench", Instance: "bench"}, 0); err != nil {
		b.Fatal(err)
	}
	if err := w.Create(b.Context(), h.t); err != nil {
		b.Fatal(err)
	}
	next := int64(0)
	stream := newCopyStream(true, func() ([]change.Value, bool, error) {
		if next == h.rows {
			return nil, false, nil
		}
		next++
		values, err := wideRow(next, 0).Values(nil, len(h.t.Columns))
		if kind == scd.Type2 {
			values = append(values, change.Value{State: change.Binary, Data: make([]byte, 8)}, change.Value{State: change.Null})
		}
		return values, true, err
	})
	if _, err := w.Load(b.Context(), h.t, sink.Copy{Binary: true, Rows: stream}, false, checkpoint.Table{Target: h.t.Name, Phase: checkpoint.Live}); err != nil {
		b.Fatal(err)
	}
	return h
}

// keys gives n ascending keys scattered over the table, others for each i.
func (h *bench) keys(n, i int) []int64 {
	step := h.rows / int64(n)
	out := make([]int64, n)
	for k := range out {
		out[k] = 1 + int64(k)*step + int64(i)*7919%step
	}
	return out
}

// run applies one round an operation.
func (h *bench) run(size int, makeRound func(i int) scd.Round) {
	rounds := make([]scd.Round, h.b.N+1)
	for i := range rounds {
		rounds[i] = makeRound(i)
	}
	before := 0.0
	for i := range rounds {
		if i == 1 { // the first made the session, its stage and its statements
			h.b.ReportAllocs()
			h.b.ResetTimer()
			before = h.cpu()
		}
		h.pos += 16
		err := h.w.Apply(h.b.Context(), &sink.Batch{
			Targets:  []sink.TargetRounds{{Target: h.t, Binary: true, Rounds: rounds[i : i+1]}},
			Position: change.LSN(h.pos), First: true,
		})
		if err != nil {
			h.b.Fatal(err)
		}
	}
	rows := float64(size) * float64(h.b.N)
	h.b.ReportMetric(rows/h.b.Elapsed().Seconds(), "rows/s")
	h.b.ReportMetric((h.cpu()-before)/rows, "server-µs/row")
}

// cpu is the processor time of Apply's server process in microseconds, which a
// busy machine hardly changes; 0 where the system does not tell.
func (h *bench) cpu() float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.w.apply.s.conn.PID()))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) * 10_000 // ticks of 10 ms
}

func sizes(b *testing.B, kind scd.Kind, run func(h *bench, size int)) {
	for _, size := range []int{1, 100, 1_000, 10_000, 50_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) { run(openBench(b, kind), size) })
	}
}

func BenchmarkInsert(b *testing.B) {
	sizes(b, scd.Type1, func(h *bench, size int) {
		next := h.rows
		h.run(size, func(int) (r scd.Round) {
			for range size {
				next++
				r.Inserts = append(r.Inserts, wideRow(next, 0))
			}
			return r
		})
	})
}

func BenchmarkUpsert(b *testing.B) {
	sizes(b, scd.Type1, func(h *bench, size int) {
		h.run(size, func(i int) (r scd.Round) {
			for _, k := range h.keys(size, i) {
				r.Upserts = append(r.Upserts, wideRow(k, int64(i+1)))
			}
			return r
		})
	})
}

func BenchmarkPatch(b *testing.B) {
	sizes(b, scd.Type1, func(h *bench, size int) {
		h.run(size, func(i int) (r scd.Round) {
			for _, k := range h.keys(size, i) {
				values, _ := wideRow(k, int64(i+1)).Values(nil, len(h.t.Columns))
				values[5] = change.Value{State: change.Absent}
				row := change.Row{}
				for _, v := range values {
					row = row.Append(v)
				}
				r.Patches = append(r.Patches, row)
			}
			return r
		})
	})
}

func BenchmarkDelete(b *testing.B) {
	sizes(b, scd.Type1, func(h *bench, size int) {
		h.run(size, func(i int) (r scd.Round) {
			for _, k := range h.keys(size, i) {
				r.Deletes = append(r.Deletes, wideKey(k))
			}
			return r
		})
	})
}

func BenchmarkStep(b *testing.B) {
	sizes(b, scd.Type2, func(h *bench, size int) {
		h.run(size, func(i int) (r scd.Round) {
			for _, k := range h.keys(size, i) {
				r.Steps = append(r.Steps, scd.Step{Key: wideKey(k), N: 1, Lo: postgresEpoch + int64(i+1)*1_000_000, Row: wideRow(k, int64(i+1))})
			}
			return r
		})
	})
}

// Five steps a key: what hot keys make of a batch.
func BenchmarkSteps(b *testing.B) {
	sizes(b, scd.Type2, func(h *bench, size int) {
		h.run(size, func(i int) (r scd.Round) {
			for _, k := range h.keys(max(1, size/5), i) {
				for n := range min(5, size) {
					lo := postgresEpoch + int64(i+1)*1_000_000 + int64(n)
					r.Steps = append(r.Steps, scd.Step{Key: wideKey(k), N: n + 1, Lo: lo, LoVoid: lo, Row: wideRow(k, int64(i*5+n+1))})
				}
			}
			return r
		})
	})
}

// A key with very many versions must cost what any other costs.
func BenchmarkStepOfAnOldKey(b *testing.B) {
	h := openBench(b, scd.Type2)
	if err := h.w.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	conn, err := h.w.connect(b.Context(), "")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.close(b.Context())
	if err := conn.exec(b.Context(), `INSERT INTO public.wide SELECT 7, g, 0, '2000-01-01', '', '{}', false, '00000000-0000-0000-0000-000000000000',
		timestamptz '2001-01-01' + g * interval '1 second', timestamptz '2001-01-01' + (g + 1) * interval '1 second' FROM generate_series(1, 1000000) AS g`); err != nil {
		b.Fatal(err)
	}
	if err := h.w.Own(b.Context(), checkpoint.Owner{Host: "bench", Instance: "bench"}, 0); err != nil {
		b.Fatal(err)
	}
	h.run(1, func(i int) scd.Round {
		return scd.Round{Steps: []scd.Step{{Key: wideKey(7), N: 1, Lo: 2_000_000_000_000_000 + int64(i), Row: wideRow(7, int64(i+1))}}}
	})
}

// BenchmarkUpsertFed is BenchmarkUpsert on a target with a change feed.
func BenchmarkUpsertFed(b *testing.B) {
	for _, size := range []int{1, 100, 10_000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			h := openBench(b, scd.Type1)
			t := *h.t
			t.ChangeFeed = true
			h.t = &t
			if err := h.w.Create(b.Context(), h.t); err != nil {
				b.Fatal(err)
			}
			h.run(size, func(i int) (r scd.Round) {
				for _, k := range h.keys(size, i) {
					r.Upserts = append(r.Upserts, wideRow(k, int64(i+1)))
				}
				return r
			})
		})
	}
}
