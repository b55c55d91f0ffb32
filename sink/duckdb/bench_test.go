//go:build !noduckdb

package duckdb_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// wide is a table of about 200 bytes a row with eight columns of mixed types.
func wide(kind scd.Kind) *scd.Target {
	return target("wide", kind, "id int8 key", "qty int4", "amount numeric(12,2)", "created timestamptz", "title text", "attrs jsonb", "active bool", "uid uuid")
}

const baseRows = 1_000_000

// wideValues appends the binary values of row id; salt changes most of them.
func wideValues(buf []byte, vals []change.Value, id, salt int) ([]byte, []change.Value) {
	vals = vals[:0]
	add := func(n int) {
		vals = append(vals, change.Value{State: change.Binary, Data: buf[len(buf)-n:]})
	}
	buf = binary.BigEndian.AppendUint64(buf, uint64(id))
	add(8)
	buf = binary.BigEndian.AppendUint32(buf, uint32((id*37+salt)%1000))
	add(4)
	v := (id + salt*7) % 1_000_000 // of hundredths
	buf = append(buf, 0, 2, 0, 0, 0, 0, 0, 2)
	buf = binary.BigEndian.AppendUint16(buf, uint16(v/100))
	buf = binary.BigEndian.AppendUint16(buf, uint16(v%100*100))
	add(12)
	buf = binary.BigEndian.AppendUint64(buf, uint64(820454400000000+id*1000000))
	add(8)
	n := len(buf)
	buf = fmt.Appendf(buf, "%016x%016x%016x%012x", id*2654435761, id+salt, id*40503, salt)
	add(len(buf) - n)
	n = len(buf)
	buf = fmt.Appendf(append(buf, 1), `{"k": %d, "n": %d, "src": "bench", "tag": "%012x"}`, id, id%100, id*2654435761%(1<<40))
	add(len(buf) - n)
	buf = append(buf, byte(id%3%2))
	add(1)
	buf = binary.BigEndian.AppendUint64(buf, uint64(id)*0x9E3779B97F4A7C15)
	buf = binary.BigEndian.AppendUint64(buf, uint64(id)*0xC2B2AE3D27D4EB4F)
	add(16)
	return buf, vals
}

func wideRow(id, salt int) change.Row {
	var vals []change.Value
	_, vals = wideValues(make([]byte, 0, 512), vals, id, salt)
	r := make(change.Row, 0, 320)
	for _, v := range vals {
		r = r.Append(v)
	}
	return r
}

func wideKey(id int) change.Row {
	return change.Row{}.Append(change.Value{State: change.Binary, Data: binary.BigEndian.AppendUint64(nil, uint64(id))})
}

// copyStream is a binary COPY stream of rows 0..n-1; type 2 rows start at
// 2020-01-01.
func copyStream(n int, history bool) []byte {
	out := append([]byte("PGCOPY\n\xff\r\n\x00"), 0, 0, 0, 0, 0, 0, 0, 0)
	var buf []byte
	var vals []change.Value
	for id := range n {
		buf, vals = wideValues(buf[:0], vals, id, 0)
		cols := len(vals)
		if history {
			cols += 2
		}
		out = binary.BigEndian.AppendUint16(out, uint16(cols))
		for _, v := range vals {
			out = binary.BigEndian.AppendUint32(out, uint32(len(v.Data)))
			out = append(out, v.Data...)
		}
		if history {
			out = binary.BigEndian.AppendUint32(out, 8)
			out = binary.BigEndian.AppendUint64(out, 631152000000000)
			out = binary.BigEndian.AppendUint32(out, 0xFFFFFFFF)
		}
	}
	return binary.BigEndian.AppendUint16(out, 0xFFFF)
}

func loadWide(b testing.TB, w *duckdb.Writer, tg *scd.Target, stream []byte) {
	must(b, w.Create(ctx, tg))
	n, err := w.Load(ctx, tg, sink.Copy{Binary: true, Rows: bytes.NewReader(stream)}, true, checkpoint.Table{Target: tg.Name, Source: tg.Source, Phase: checkpoint.Live, Since: change.LSN(50)})
	must(b, err)
	if n == 0 {
		b.Fatal("nothing was loaded")
	}
}

func BenchmarkLoad(b *testing.B) {
	stream := copyStream(baseRows, false)
	for b.Loop() {
		b.StopTimer()
		w := newWriter(b, file(b))
		tg := wide(scd.Type1)
		must(b, w.Create(ctx, tg))
		b.StartTimer()
		loadWide(b, w, tg, stream)
		b.StopTimer()
		must(b, w.Close(ctx))
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)*baseRows/b.Elapsed().Seconds()/1000, "krows/s")
}

// BenchmarkApply changes random keys of a table of a million rows.
func BenchmarkApply(b *testing.B) {
	for _, op := range []string{"insert", "upsert", "patch", "delete", "type2", "type2void"} {
		kind := scd.Type1
		if op == "type2" || op == "type2void" {
			kind = scd.Type2
		}
		stream := copyStream(baseRows, kind == scd.Type2)
		for _, size := range []int{1, 100, 1000, 10_000, 50_000} {
			b.Run(fmt.Sprintf("%s/%d", op, size), func(b *testing.B) {
				w := newWriter(b, file(b))
				tg := wide(kind)
				loadWide(b, w, tg, stream)
				rnd := rand.New(rand.NewPCG(1, 2))
				next, salt := baseRows, 0
				gone := map[int]bool{}
				for b.Loop() {
					b.StopTimer()
					salt++
					ids := map[int]bool{}
					for len(ids) < size {
						if op == "insert" {
							ids[next] = true
							next++
							continue
						}
						id := rnd.IntN(baseRows)
						if op == "delete" {
							if gone[id] {
								continue
							}
							gone[id] = true
						}
						ids[id] = true
					}
					sorted := make([]int, 0, size)
					for id := range ids {
						sorted = append(sorted, id)
					}
					sort.Ints(sorted)
					var r scd.Round
					for _, id := range sorted {
						switch op {
						case "insert":
							r.Inserts = append(r.Inserts, wideRow(id, salt))
						case "upsert":
							r.Upserts = append(r.Upserts, wideRow(id, salt))
						case "patch":
							r.Patches = append(r.Patches, withoutTitle(wideRow(id, salt)))
						case "delete":
							r.Deletes = append(r.Deletes, wideKey(id))
						case "type2":
							r.Steps = append(r.Steps, scd.Step{Key: wideKey(id), N: 1, Lo: 1_700_000_000_000_000 + int64(salt), Row: wideRow(id, salt)})
						case "type2void":
							r.Steps = append(r.Steps, scd.Step{Key: wideKey(id), N: 1, Lo: 1_700_000_000_000_000 + int64(salt), Row: wideRow(id, 0)})
						}
					}
					if len(gone) > baseRows-2*size {
						b.Fatal("no rows left: lower -benchtime")
					}
					b.StartTimer()
					apply(b, w, tg, r)
				}
				b.ReportMetric(float64(b.N)*float64(size)/b.Elapsed().Seconds()/1000, "krows/s")
			})
		}
	}
}

// withoutTitle makes the title and attrs columns Absent.
func withoutTitle(r change.Row) change.Row {
	vals, err := r.Values(nil, 8)
	if err != nil {
		panic(err)
	}
	vals[4], vals[5] = change.Value{State: change.Absent}, change.Value{State: change.Absent}
	out := change.Row{}
	for _, v := range vals {
		out = out.Append(v)
	}
	return out
}
