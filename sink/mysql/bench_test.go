package mysql

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// benchRows are in the table before, some 200 bytes each; benchBatch changes are one
// operation.
//
//	go test ./sink/mysql -run '^$' -bench . -benchtime 10x
const (
	benchRows  = 100_000
	benchBatch = 10_000
)

var benchTypes = []struct {
	typ   change.Type
	value func(id, version int) string
}{
	{bigintType, func(id, _ int) string { return fmt.Sprint(id) }},
	{change.Type{Kind: change.Int32, Name: "integer", BuiltIn: true}, func(_, version int) string { return fmt.Sprint(version) }},
	{change.Type{Kind: change.Numeric, Name: "numeric(12,2)", Precision: 12, Scale: 2, BuiltIn: true}, func(id, _ int) string { return fmt.Sprintf("%d.50", id) }},
	{change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone", BuiltIn: true}, func(id, _ int) string { return fmt.Sprintf("2026-11-01 10:%02d:%02d.25+00", id%60, id/60%60) }},
	{textType, func(id, version int) string { return fmt.Sprintf("%060d", id*31+version) }},
	{change.Type{Kind: change.JSONB, Name: "jsonb", BuiltIn: true}, func(id, version int) string { return fmt.Sprintf(`{"k": %d, "n": %d, "src": "bench"}`, id, version) }},
	{change.Type{Kind: change.Bool, Name: "boolean", BuiltIn: true}, func(id, _ int) string { return "tf"[id&1 : id&1+1] }},
}

func benchRow(id, version int, absent ...int) change.Row {
	row := make(change.Row, 0, 320)
	for i, c := range benchTypes {
		v := change.Value{State: change.AsText, Data: []byte(c.value(id, version))}
		for _, a := range absent {
			if a == i {
				v = change.Value{State: change.Absent}
			}
		}
		row = row.Append(v)
	}
	return row
}

func benchKey(id int) scd.Key {
	return scd.Key{}.Append(change.Value{State: change.AsText, Data: fmt.Append(nil, id)})
}

func benchRecord(id, seq int) sequenced.Record {
	return sequenced.Record{Key: benchKey(id), Seq: fmt.Appendf(nil, "%020d", seq), At: fmt.Appendf(nil, "2026/03/customers.jsonl %d", seq), Body: benchRow(id, seq), Time: int64(seq)}
}

// BenchmarkApply writes batches of one kind of change to scattered keys.
func BenchmarkApply(b *testing.B) {
	next := benchRows
	for _, c := range []struct {
		name      string
		kind      scd.Kind
		sequenced bool
		add       func(r *scd.Round, w *sequenced.Work, id, version int)
	}{
		{"insert", scd.Type1, false, func(r *scd.Round, _ *sequenced.Work, _, _ int) {
			next++
			r.Inserts = append(r.Inserts, benchRow(next, 0))
		}},
		{"upsert", scd.Type1, false, func(r *scd.Round, _ *sequenced.Work, id, version int) {
			r.Upserts = append(r.Upserts, benchRow(id, version))
		}},
		{"patch", scd.Type1, false, func(r *scd.Round, _ *sequenced.Work, id, version int) {
			r.Patches = append(r.Patches, benchRow(id, version, 5))
		}},
		{"delete", scd.Type1, false, func(r *scd.Round, _ *sequenced.Work, id, _ int) { r.Deletes = append(r.Deletes, benchKey(id)) }},
		{"step", scd.Type2, false, func(r *scd.Round, _ *sequenced.Work, id, version int) {
			r.Steps = append(r.Steps, scd.Step{Key: benchKey(id), N: 1, Lo: int64(version) * 1_000_000, Row: benchRow(id, version)})
		}},
		{"sequenced", scd.Type1, true, func(r *scd.Round, w *sequenced.Work, id, version int) {
			r.Upserts = append(r.Upserts, benchRow(id, version))
			old := benchRecord(id, version-1)
			w.Put, w.Remove = append(w.Put, benchRecord(id, version)), append(w.Remove, old.ID())
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			w, t := benchTarget(b, c.kind, c.sequenced)
			round := func(from, step, version int) *sink.Batch {
				var r scd.Round
				hidden := &sequenced.Work{}
				for i := range benchBatch {
					c.add(&r, hidden, from+i*step, version)
				}
				part := sink.TargetRounds{Target: t, Rounds: []scd.Round{r}}
				if c.sequenced {
					part.Hidden = hidden
				}
				return &sink.Batch{Targets: []sink.TargetRounds{part}, Position: change.LSN(uint64(16 * version)), First: true}
			}
			apply := func(batch *sink.Batch) {
				if err := w.Apply(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			if c.name == "step" || c.sequenced {
				for part := range benchRows / benchBatch {
					apply(round(part*benchBatch, 1, 1))
				}
			}
			batches := make([]*sink.Batch, b.N)
			for i := range batches {
				batches[i] = round(i*7%(benchRows/benchBatch), benchRows/benchBatch, i+2)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, batch := range batches {
				if c.sequenced {
					var at []sequenced.Lookup
					for _, k := range batch.Targets[0].Hidden.Put {
						at = append(at, sequenced.Lookup{Key: k.Key})
					}
					if err := w.Remembered(b.Context(), t, at, func(sequenced.Record) error { return nil }); err != nil {
						b.Fatal(err)
					}
				}
				apply(batch)
			}
			b.ReportMetric(float64(benchBatch*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkPoints updates every row of two tables in turns, so that what else the machine
// does meets both: one of a pipeline without a point, one with (at first each row is kept,
// then each is kept already). Then it rewinds. kept and again are to reach two thirds of
// plain; rewind is to reach plain.
//
//	go test ./sink/mysql -run '^$' -bench Points -benchtime 1x
func BenchmarkPoints(b *testing.B) {
	const rows = 300_000
	for range b.N {
		h := newHarness(b, dbtest.MariaDB(b, dbtest.Setting("innodb-buffer-pool-size", "512M")))
		var writers [2]*Writer
		var targets [2]*scd.Target
		for i, name := range []string{"plain", "pointed"} {
			writers[i], targets[i] = benchTargetOn(b, h, fmt.Sprintf("%s%d", name, os.Getpid()), name, scd.Type1, false)
		}
		version := 0
		update := func() (rates [2]float64) {
			version++
			var took [2]time.Duration
			for i := range rows / benchBatch {
				var r scd.Round
				for n := range benchBatch {
					r.Upserts = append(r.Upserts, benchRow(i+n*rows/benchBatch, version))
				}
				for k, w := range writers {
					began := time.Now()
					if err := w.Apply(b.Context(), &sink.Batch{Targets: []sink.TargetRounds{{Target: targets[k], Rounds: []scd.Round{r}}}, Position: change.LSN(uint64(16 * (version*rows + i))), First: true}); err != nil {
						b.Fatal(err)
					}
					took[k] += time.Since(began)
				}
			}
			for k := range took {
				rates[k] = rows / took[k].Seconds()
			}
			return rates
		}
		update() // the tables are filled
		if err := writers[1].Save(b.Context(), checkpoint.Mark{Phase: checkpoint.Live}); err != nil {
			b.Fatal(err)
		}
		p, err := writers[1].Point(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"kept", "again"} {
			rates := update()
			b.ReportMetric(rates[0], name+"-plain-rows/s")
			b.ReportMetric(rates[1], name+"-rows/s")
			b.ReportMetric(rates[1]/rates[0], name+"/plain")
		}
		began := time.Now()
		if err := writers[1].Rewind(b.Context(), sink.Rewind{To: p.Number, Targets: targets[1:], Mark: p.Mark}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(rows/time.Since(began).Seconds(), "rewind-rows/s")
	}
}

func benchTarget(b *testing.B, kind scd.Kind, isSequenced bool) (*Writer, *scd.Target) {
	h := newHarness(b, dbtest.MariaDB(b, dbtest.Setting("innodb-buffer-pool-size", "512M")))
	return benchTargetOn(b, h, fmt.Sprintf("bench%d", os.Getpid()), "wide", kind, isSequenced)
}

func benchTargetOn(b *testing.B, h *harness, pipeline, table string, kind scd.Kind, isSequenced bool) (*Writer, *scd.Target) {
	w := h.open(b, pipeline)
	b.Cleanup(func() { w.Close(b.Context()) })
	me, err := sink.ThisProcess()
	if err == nil {
		err = w.Own(b.Context(), me, 0)
	}
	t := &scd.Target{Name: change.Name{Schema: h.schema, Table: table}, Kind: kind, Sequenced: isSequenced}
	for i, c := range benchTypes {
		t.Columns = append(t.Columns, scd.Column{Name: fmt.Sprintf("c%d", i), Type: c.typ, Key: i == 0, Tracked: i > 0})
	}
	if err == nil {
		err = w.Create(b.Context(), t)
	}
	if err != nil {
		b.Fatal(err)
	}
	if kind == scd.Type1 && !isSequenced {
		var text strings.Builder
		for id := range benchRows {
			for i, c := range benchTypes {
				if i > 0 {
					text.WriteByte('\t')
				}
				text.WriteString(c.value(id, 0))
			}
			text.WriteByte('\n')
		}
		if _, err := w.Load(b.Context(), t, sink.Copy{Rows: strings.NewReader(text.String())}, false, checkpoint.Table{Target: t.Name, Phase: checkpoint.Live}); err != nil {
			b.Fatal(err)
		}
	}
	return w, t
}
