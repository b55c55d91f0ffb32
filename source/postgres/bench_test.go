package postgres

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

const wide = `CREATE TABLE wide (id bigint PRIMARY KEY, qty int, amount numeric(12,2), created timestamptz, title text, attrs jsonb, active bool, uid uuid)`

const fillWide = `CREATE FUNCTION fill_wide(lo bigint, hi bigint) RETURNS void LANGUAGE sql AS $$
INSERT INTO wide SELECT i, (i*37%1000)::int, (i%1000000)/100.0, timestamptz '2026-01-01 00:00+00'+i*interval '1 second', left(md5(i::text)||md5((i+1)::text),60),
 jsonb_build_object('k',i,'tag',left(md5(i::text),12),'n',i%100,'src','bench'), i%3=0, md5((i*3)::text)::uuid FROM generate_series(lo,hi) i $$`

// workloads make a backlog: the name, what is there before the slot, the change
// itself, and how many row changes that is.
var workloads = []struct {
	name         string
	base, change []string
	pgbench      []string
	rows         int
}{
	{name: "insert", rows: 1_000_000, change: []string{
		`DO $$ BEGIN FOR t IN 0..999 LOOP PERFORM fill_wide(t*1000+1, t*1000+1000); COMMIT; END LOOP; END $$`}},
	{name: "update", rows: 1_000_000, base: []string{"SELECT fill_wide(1, 1000000)"}, change: []string{`DO $$ BEGIN FOR t IN 0..999 LOOP
 FOR i IN 0..999 LOOP
  UPDATE wide SET qty=qty+1, amount=amount+1, created=created+interval '1 day', title=reverse(title) WHERE id = ((t*1000+i)::bigint*7919 % 1000000)+1;
 END LOOP; COMMIT; END LOOP; END $$`}},
	{name: "smalltx", rows: 300_000, change: []string{`DO $$ BEGIN FOR i IN 1..300000 LOOP PERFORM fill_wide(i,i); COMMIT; END LOOP; END $$`}},
	{name: "pgbench", rows: 1_200_000, pgbench: []string{"-n", "-M", "prepared", "-c", "4", "-j", "2", "-t", "75000"}},
	{name: "bigtx", rows: 2_000_000, change: []string{"SELECT fill_wide(1, 2000000)"}},
}

// BenchmarkFollow reads backlogs with and without the paced reads: go test -bench
// Follow -benchtime 3x. CPU seconds are this process's and the walsender's.
func BenchmarkFollow(b *testing.B) {
	server := dbtest.Postgres(b, dbtest.Setting("shared_buffers", "512MB"), dbtest.Setting("max_wal_size", "8GB"),
		dbtest.Setting("synchronous_commit", "off"), dbtest.Setting("autovacuum", "off"))
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			f := backlog(b, server, w.base, w.change, w.pgbench)
			for _, eager := range []bool{false, true} {
				b.Run(map[bool]string{false: "paced", true: "eager"}[eager], func(b *testing.B) {
					f := &fixture{t: b, server: server, dsn: f.dsn, source: f.source, from: f.from}
					f.source.eager = eager
					var wall, own, sender time.Duration
					for range b.N {
						d, o, s := readAll(b, f, w.rows)
						wall, own, sender = wall+d, own+o, sender+s
					}
					b.ReportMetric(float64(w.rows)*float64(b.N)/wall.Seconds(), "rows/s")
					b.ReportMetric(own.Seconds()/float64(b.N), "cpu-s")
					b.ReportMetric(sender.Seconds()/float64(b.N), "walsender-s")
					b.ReportMetric(0, "ns/op")
				})
			}
		})
	}
}

func backlog(b *testing.B, server *dbtest.Server, base, changes, pgbench []string) *fixture {
	f := bare(b, server, wide, fillWide)
	name := f.query("SELECT current_database()")
	f.exec(base...)
	if pgbench != nil {
		bench(b, server, name, "-q", "-i", "-s", "10")
	}
	f.publish()
	f.begin()
	f.exec(changes...)
	if pgbench != nil {
		bench(b, server, name, pgbench...)
	}
	f.exec("CHECKPOINT")
	return f
}

func bench(b *testing.B, server *dbtest.Server, database string, args ...string) {
	args = append(args, "-h", server.Host, "-p", fmt.Sprint(server.Port), "-U", "postgres", database)
	if out, err := exec.Command("pgbench", args...).CombinedOutput(); err != nil {
		b.Fatalf("pgbench: %v\n%s", err, out)
	}
}

// readAll follows the whole backlog once, from its beginning.
func readAll(b *testing.B, f *fixture, want int) (wall, own, sender time.Duration) {
	ctx, cancel := context.WithCancel(testContext(b))
	defer cancel()
	rows := 0
	var before syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	begin := time.Now()
	err := f.source.Follow(ctx, f.from, source.FollowOptions{PieceBytes: 8 << 20}, func(_ context.Context, seg *change.Segment) error {
		for i := range seg.Txs {
			rows += len(seg.Txs[i].Changes)
		}
		if rows >= want {
			wall = time.Since(begin)
			sender = cpuOf(f.query("SELECT active_pid FROM pg_replication_slots WHERE slot_name = " + literal(f.source.names.slot)))
			cancel()
		}
		return nil
	})
	if ctx.Err() == nil {
		b.Fatal(err)
	}
	var after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	own = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	if rows < want {
		b.Fatalf("%d rows of %d", rows, want)
	}
	return wall, own, sender
}

// BenchmarkLatency measures, at 500 one-row transactions a second on an otherwise
// idle pipeline, the time from the source's COMMIT returning to the change being
// handed on.
func BenchmarkLatency(b *testing.B) {
	server := dbtest.Postgres(b)
	f := begun(b, server, "CREATE TABLE lat (id int PRIMARY KEY, n int)", "INSERT INTO lat VALUES (1, 0)")
	arrived := make(chan time.Time, 1<<16)
	followWith(b, f.source, f.from, source.FollowOptions{}, func(_ context.Context, seg *change.Segment) error {
		now := time.Now()
		for i := range seg.Txs {
			if len(seg.Txs[i].Changes) > 0 {
				arrived <- now
			}
		}
		return nil
	})
	conn := server.Connect(b, f.dsn)
	var late []time.Duration
	for b.Loop() {
		if _, err := conn.Exec(context.Background(), "UPDATE lat SET n = n + 1"); err != nil {
			b.Fatal(err)
		}
		done := time.Now()
		late = append(late, (<-arrived).Sub(done))
		time.Sleep(2 * time.Millisecond)
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-us")
}
