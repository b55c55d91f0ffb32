package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

// BenchmarkFollow reads a backlog of a million row changes, a thousand in a transaction,
// into nothing: go test -bench Follow -benchtime 3x. cpu-s is this process's.
func BenchmarkFollow(b *testing.B) {
	server := dbtest.MariaDB(b, dbtest.Setting("max-binlog-size", "1G"))
	database := server.Database(b)
	server.Exec(b, database, "CREATE TABLE wide (id bigint PRIMARY KEY, qty int, amount decimal(12,2), created datetime(6), title varchar(60), active tinyint)")
	s, err := New(Config{DSN: server.URL(database), Pipeline: "bench", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(context.Background())
	for _, w := range []struct{ name, base, change string }{
		{"insert", "TRUNCATE TABLE wide", "INSERT INTO wide SELECT seq, seq * 37 %% 1000, seq %% 1000000 / 100, '2026-01-01' + INTERVAL seq SECOND, concat(md5(seq), left(md5(seq + 1), 28)), seq %% 3 = 0 FROM seq_%d_to_%d"},
		{"update", "FLUSH BINARY LOGS", "UPDATE wide SET qty = qty + 1, amount = amount + 1, title = reverse(title) WHERE id BETWEEN %d AND %d"},
	} {
		b.Run(w.name, func(b *testing.B) {
			server.Exec(b, database, w.base) // each run begins anew
			from, err := s.Head(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			const rows, each = 1_000_000, 1000
			var statements []string
			for lo := 1; lo <= rows; lo += each {
				statements = append(statements, fmt.Sprintf(w.change, lo, lo+each-1))
			}
			server.Exec(b, database, statements...)
			b.ResetTimer()
			var cpu time.Duration
			for range b.N {
				began := cpuTime()
				seen, enough := 0, errors.New("enough")
				err := s.Follow(b.Context(), from, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
					for i := range seg.Txs {
						seen += len(seg.Txs[i].Changes)
					}
					if seen >= rows {
						return enough
					}
					return nil
				})
				if !errors.Is(err, enough) {
					b.Fatal(err)
				}
				cpu += cpuTime() - began
			}
			b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
			b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s")
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
