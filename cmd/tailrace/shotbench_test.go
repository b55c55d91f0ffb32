package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// BenchmarkSnapshot takes two snapshots of a table, by the built program: the first into
// an empty target, the second after 1 % of its rows changed. TAILRACE_BENCH_ROWS says how
// many rows there are (5,000,000).
//
//	go test ./cmd/tailrace -run '^$' -bench 'Snapshot$' -benchtime 1x -timeout 1h
func BenchmarkSnapshot(b *testing.B) {
	rows := 5_000_000
	if text := os.Getenv("TAILRACE_BENCH_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	server := dbtest.Postgres(b)
	for _, kind := range []string{"duckdb", "postgres"} {
		b.Run(kind, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				source := server.Database(b)
				server.Exec(b, source, "create table t (id int primary key, a int not null, b varchar(100) not null, c numeric(12,2))",
					fmt.Sprintf("insert into t select i, i, repeat('x', 60), i * 1.5 from generate_series(1, %d) i", rows))
				d := destination{kind, b.TempDir() + "/target.duckdb"}
				if kind == "postgres" {
					d.dsn = server.Database(b)
				}
				r := &rig{server: server, source: source, dest: d, config: configure(b, uniqueName("p"), source, d, "flows: [{target: t, snapshot: {relation: t, version: counter}}]")}
				b.StartTimer()
				seconds, mib := r.measured(b)
				b.ReportMetric(float64(rows)/seconds, "first-rows/s")
				b.ReportMetric(mib, "first-MiB")
				b.StopTimer()
				server.Exec(b, source, "update t set a = a + 1 where id % 100 = 0", "delete from t where id % 1000 = 1")
				b.StartTimer()
				seconds, mib = r.measured(b)
				b.ReportMetric(float64(rows)/seconds, "second-rows/s")
				b.ReportMetric(mib, "second-MiB")
			}
		})
	}
}

// measured catches up and returns how long that took and how much memory at most.
func (r *rig) measured(b *testing.B) (seconds, mib float64) {
	b.Helper()
	c := exec.CommandContext(context.Background(), binary(b), r.args("run", "--once")...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	began := time.Now()
	if err := c.Run(); err != nil {
		b.Fatalf("%v\n%s", err, tail(out.String()))
	}
	seconds = time.Since(began).Seconds()
	usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		b.Fatal("no usage of memory is known")
	}
	b.Log(tail(out.String()))
	return seconds, float64(usage.Maxrss) / 1024
}
