// Command open measures what source.streaming changes: the time from the COMMIT of
// one large transaction at the source until its rows are visible in a PostgreSQL
// destination, with tailrace following all the while, and the time for a backlog of
// one-row transactions. Both ways take turns in one run, on servers made for it; it
// prints the medians as a Markdown table.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest/pgserver"
)

func main() {
	tailrace := flag.String("tailrace", "bin/tailrace", "the program to measure")
	rows := flag.Int("rows", 2_000_000, "rows of the large transaction")
	small := flag.Int("small", 200_000, "transactions of one row in the backlog")
	reps := flag.Int("reps", 3, "runs of each; medians are printed")
	flag.Parse()
	if err := run(*tailrace, *rows, *small, *reps); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measured is one run.
type measured struct {
	statement, commit, applied, backlog float64 // seconds; applied counts from before the COMMIT
	rss                                 int64   // peak of the follower, MiB
}

func run(tailrace string, rows, small, reps int) error {
	ctx := context.Background()
	var servers [2]*pgserver.Server
	for i := range servers {
		s, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{
			"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off", "fsync": "on", "full_page_writes": "on", "checkpoint_timeout": "30min"}})
		if err != nil {
			return err
		}
		defer s.Close()
		servers[i] = s
	}
	dir, err := os.MkdirTemp("", "tailrace-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	results := map[bool][]measured{}
	for n := range reps {
		for _, streaming := range []bool{n%2 == 0, n%2 != 0} {
			name := fmt.Sprintf("open_%d_%v", n, streaming)
			b := &bench{tailrace: tailrace, src: servers[0].DSN(name), dst: servers[1].DSN(name), config: filepath.Join(dir, name+".yaml")}
			for _, s := range servers {
				if err := execute(ctx, s.DSN("postgres"), "create database "+name); err != nil {
					return err
				}
			}
			text := fmt.Sprintf("pipeline: %s\nsource: {dsn: %q, streaming: %s, spool_dir: %q}\ndestination: {kind: postgres, dsn: %q}\nflows: [{source: public.*}]\nlog_level: warn\n",
				name, b.src, map[bool]string{true: "on", false: "off"}[streaming], filepath.Join(dir, "spool"), b.dst)
			if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
				return err
			}
			m, err := b.once(ctx, rows, small)
			if err != nil {
				return fmt.Errorf("streaming %v: %w", streaming, err)
			}
			fmt.Fprintf(os.Stderr, "streaming %v: %+v\n", streaming, m)
			results[streaming] = append(results[streaming], m)
		}
	}
	fmt.Printf("| streaming | statements s | COMMIT s | COMMIT to applied s | peak RSS MiB | %d one-row transactions s |\n|---|---|---|---|---|---|\n", small)
	for _, streaming := range []bool{false, true} {
		all := results[streaming]
		median := func(get func(measured) float64) float64 {
			var v []float64
			for _, m := range all {
				v = append(v, get(m))
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		fmt.Printf("| %v | %.1f | %.2f | %.2f | %.0f | %.2f |\n", streaming,
			median(func(m measured) float64 { return m.statement }), median(func(m measured) float64 { return m.commit }),
			median(func(m measured) float64 { return m.applied }), median(func(m measured) float64 { return float64(m.rss) }),
			median(func(m measured) float64 { return m.backlog }))
	}
	return nil
}

type bench struct{ tailrace, src, dst, config string }

func (b *bench) once(ctx context.Context, rows, small int) (m measured, err error) {
	err = execute(ctx, b.src, "create table big(id bigint primary key, n int, note text, at timestamptz)", "create table small(id bigint primary key, note text)",
		`create procedure fill(n int) language plpgsql as $$ begin for i in 1..n loop insert into small values (i, md5(i::text)); commit; end loop; end $$`)
	if err != nil {
		return m, err
	}
	if out, err := exec.CommandContext(ctx, b.tailrace, "backfill", "-c", b.config).CombinedOutput(); err != nil {
		return m, fmt.Errorf("backfill: %w\n%s", err, out)
	}
	if err := execute(ctx, b.src, "set synchronous_commit = off", fmt.Sprintf("call fill(%d)", small)); err != nil {
		return m, err
	}
	began := time.Now()
	daemon := exec.CommandContext(ctx, b.tailrace, "run", "-c", b.config)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return m, err
	}
	defer func() {
		daemon.Process.Signal(syscall.SIGTERM)
		daemon.Wait()
	}()
	if err := b.visible(ctx, "small", small); err != nil {
		return m, err
	}
	m.backlog = time.Since(began).Seconds()

	source, err := pgx.Connect(ctx, b.src)
	if err != nil {
		return m, err
	}
	defer source.Close(ctx)
	began = time.Now()
	if _, err := source.Exec(ctx, "begin"); err != nil {
		return m, err
	}
	const portion = 100_000 // rows a statement, as a loader sends them
	for at := 0; at < rows; at += portion {
		sql := fmt.Sprintf("insert into big select i, i %% 7, md5(i::text), now() from generate_series(%d, %d) i", at+1, min(at+portion, rows))
		if _, err := source.Exec(ctx, sql); err != nil {
			return m, err
		}
	}
	m.statement = time.Since(began).Seconds()
	began = time.Now()
	if _, err := source.Exec(ctx, "commit"); err != nil {
		return m, err
	}
	m.commit = time.Since(began).Seconds()
	if err := b.visible(ctx, "big", rows); err != nil {
		return m, err
	}
	m.applied = time.Since(began).Seconds()
	m.rss, err = peak(daemon.Process.Pid)
	return m, err
}

// visible waits until the destination shows the row of this id.
func (b *bench) visible(ctx context.Context, table string, id int) error {
	conn, err := pgx.Connect(ctx, b.dst)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var there bool
		if err := conn.QueryRow(ctx, fmt.Sprintf("select exists(select from %s where id = %d)", table, id)).Scan(&there); err != nil {
			return err
		}
		if there {
			return nil
		}
	}
	return fmt.Errorf("row %d of %s did not come", id, table)
}

// peak is a process's highest memory in MiB.
func peak(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(kib, 10, 64)
	return n >> 10, err
}

func execute(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
