package postgres

import (
	"context"
	"strconv"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

// BenchmarkRestart measures the time from Follow's beginning at the mark to its first row,
// without a keep slot and beside one that keeps 256 MiB and more; and what it takes to go
// back to the kept place and to advance over all of it: go test -bench Restart -benchtime 5x.
func BenchmarkRestart(b *testing.B) {
	server := dbtest.Postgres(b, dbtest.Setting("max_wal_size", "8GB"), dbtest.Setting("autovacuum", "off"))
	f := begun(b, server, "CREATE TABLE t (id int PRIMARY KEY, v text)")
	next := 0
	first := func(b *testing.B, mark change.Position) (took time.Duration) {
		ctx, cancel := context.WithCancel(testContext(b))
		defer cancel()
		begin := time.Now()
		err := f.source.Follow(ctx, mark, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
			if took == 0 && len(seg.Txs[0].Changes) > 0 {
				took = time.Since(begin)
				cancel()
			}
			return nil
		})
		if took == 0 {
			b.Fatal(err)
		}
		return took
	}
	one := func() change.Position {
		mark := f.end()
		next--
		f.exec("INSERT INTO t VALUES (" + strconv.Itoa(next*10000) + ")")
		return mark
	}
	restart := func(b *testing.B) {
		for range 2 { // what the live slot itself keeps is the same in both
			f.exec("CHECKPOINT", "SELECT pg_replication_slot_advance("+literal(f.source.names.slot)+", pg_current_wal_flush_lsn())")
		}
		var total time.Duration
		for range b.N {
			total += first(b, one())
		}
		b.ReportMetric(float64(total.Microseconds())/1000/float64(b.N), "ms-to-row")
		b.ReportMetric(float64(f.kept().Bytes>>20), "MiB-kept")
		b.ReportMetric(0, "ns/op")
	}
	point := f.end()
	f.keep(point)
	for range 64 {
		next--
		f.exec("INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series("+strconv.Itoa(next*10000)+", "+strconv.Itoa(next*10000+3500)+") i", "CHECKPOINT")
	}
	f.confirm(point, f.end())
	b.Run("beside", restart)
	b.Run("back", func(b *testing.B) {
		var total, toRow time.Duration
		for range b.N {
			f.confirm(f.confirmed(), f.end())
			begin := time.Now()
			f.back(point)
			total += time.Since(begin)
			toRow += first(b, point)
		}
		b.ReportMetric(float64(total.Microseconds())/1000/float64(b.N), "ms-return")
		b.ReportMetric(float64(toRow.Microseconds())/1000/float64(b.N), "ms-to-row")
		b.ReportMetric(0, "ns/op")
	})
	f.confirm(f.confirmed(), f.end())
	begin, kept := time.Now(), f.kept().Bytes
	f.keep(f.end())
	took := time.Since(begin)
	b.Logf("advanced over %d MiB in %v; %d MiB are kept then", kept>>20, took, f.kept().Bytes>>20)
	if err := f.source.Unkeep(testContext(b)); err != nil {
		b.Fatal(err)
	}
	b.Run("alone", restart)
}
