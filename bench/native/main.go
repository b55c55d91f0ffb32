// Command native replays backlogs through PostgreSQL's own subscription and through
// tailrace, in turn, on one machine in one run, checks that both destinations end
// equal to the source, and prints rates, ratios and peak memory as a Markdown table.
//
// Both replicate from the same kind of source server into the same kind of
// destination server, with the settings below. A backlog is what waits in the slot
// while nothing reads it; the clock runs from the start of the reader (the
// subscription enabled; the tailrace process started) until the last row of the
// backlog is visible in the destination.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest/pgserver"
)

// settings of both servers: durable, as a small production server, but without
// autovacuum, so that it does not fall into one run and not into the other.
var settings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off", "fsync": "on", "full_page_writes": "on",
	"wal_retrieve_retry_interval":     "100ms", // else the subscription's start alone takes up to 5 s
	"max_logical_replication_workers": "8", "max_worker_processes": "16", "checkpoint_timeout": "30min",
}

type workload struct {
	name  string
	units string
	count int
}

var workloads = []workload{
	{name: "insert", units: "rows inserted, 1000 a transaction", count: 1_000_000},
	{name: "update", units: "rows updated once, scattered, 1000 a transaction", count: 1_000_000},
	{name: "pgbench", units: "pgbench transactions of 4 changes", count: 300_000},
	{name: "hot", units: "updates of 10,000 hot rows, 1000 a transaction", count: 1_000_000},
	{name: "smalltx", units: "transactions of one inserted row", count: 300_000},
	{name: "bigtx", units: "rows inserted in one transaction", count: 2_000_000},
	{name: "delete", units: "rows deleted, scattered, 1000 a transaction", count: 200_000},
}

type result struct {
	seconds float64
	cpu     float64 // seconds of processor time, of tailrace itself
	rss     int64   // peak, bytes; 0 where it is a server's
}

type bench struct {
	tailrace string
	files    string
	level    string // log level of tailrace, whose log goes to stderr
	src, dst *pgserver.Server
	n        int
}

func main() {
	tailrace := flag.String("tailrace", "bin/tailrace", "the program to measure")
	files := flag.String("workloads", "bench/workloads", "folder of the workloads")
	only := flag.String("only", "insert,update,pgbench", "comma-separated workloads, or all")
	reps := flag.Int("reps", 3, "runs of each; medians are printed")
	latency := flag.Bool("latency", true, "measure the latency of one-row transactions too")
	level := flag.String("level", "warn", "log level of tailrace")
	flag.Parse()
	if err := run(*tailrace, *files, *only, *level, *reps, *latency); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(tailrace, files, only, level string, reps int, latency bool) error {
	ctx := context.Background()
	b := &bench{files: files, level: level}
	var err error
	if b.tailrace, err = filepath.Abs(tailrace); err != nil {
		return err
	}
	if b.src, err = pgserver.Start(ctx, pgserver.Options{Settings: settings, Install: true}); err != nil {
		return err
	}
	defer b.src.Close()
	if b.dst, err = pgserver.Start(ctx, pgserver.Options{Settings: settings}); err != nil {
		return err
	}
	defer b.dst.Close()
	fmt.Printf("PostgreSQL %s on both sides, %d runs each, medians. Native: a subscription with binary = true, streaming = on, synchronous_commit = off (its default).\n\n",
		b.src.Binaries.Full, reps)
	fmt.Println("| backlog | native s | tailrace s | tailrace / native | native per s | tailrace per s | tailrace peak RSS |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, w := range workloads {
		if only != "all" && !slices.Contains(strings.Split(only, ","), w.name) {
			continue
		}
		var native, ours []result
		for range reps {
			n, err := b.native(ctx, w)
			if err != nil {
				return fmt.Errorf("%s through a subscription: %w", w.name, err)
			}
			o, err := b.ours(ctx, w)
			if err != nil {
				return fmt.Errorf("%s through tailrace: %w", w.name, err)
			}
			native, ours = append(native, n), append(ours, o)
			fmt.Fprintf(os.Stderr, "%s: native %.2f s, tailrace %.2f s (%.2f s of CPU), %d MiB\n", w.name, n.seconds, o.seconds, o.cpu, o.rss>>20)
		}
		n, o := median(native), median(ours)
		fmt.Printf("| %d %s | %.2f | %.2f | %.2f | %.0f k | %.0f k | %d MiB |\n", w.count, w.units, n.seconds, o.seconds,
			o.seconds/n.seconds, float64(w.count)/n.seconds/1000, float64(w.count)/o.seconds/1000, o.rss>>20)
	}
	if latency {
		return b.latencies(ctx)
	}
	return nil
}

func median(rs []result) result {
	seconds, rss := make([]float64, len(rs)), int64(0)
	for i, r := range rs {
		seconds[i] = r.seconds
		rss = max(rss, r.rss)
	}
	slices.Sort(seconds)
	return result{seconds: seconds[len(seconds)/2], rss: rss}
}

func exec1(ctx context.Context, dsn string, statements ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%.60s: %w", s, err)
		}
	}
	return nil
}

// fresh makes a database on both servers with the workload's tables, and its base
// rows on the source.
func (b *bench) fresh(ctx context.Context, w workload) (name string, err error) {
	b.n++
	name = fmt.Sprintf("bench_%d", b.n)
	for _, s := range []*pgserver.Server{b.src, b.dst} {
		if err := exec1(ctx, s.DSN("postgres"), "create database "+name); err != nil {
			return "", err
		}
	}
	if w.name == "pgbench" {
		if err := b.script(b.src, name, "pgbench.base.sh"); err != nil {
			return "", err
		}
		return name, exec1(ctx, b.src.DSN(name), "create table marker(id int primary key)")
	}
	tables, err := os.ReadFile(filepath.Join(b.files, "tables.sql"))
	if err != nil {
		return "", err
	}
	base, err := os.ReadFile(filepath.Join(b.files, w.name+".base.sql"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return name, exec1(ctx, b.src.DSN(name), string(tables), string(base), "analyze")
}

func (b *bench) script(s *pgserver.Server, database, file string) error {
	c := exec.Command("bash", filepath.Join(b.files, file), fmt.Sprint(s.Port), database)
	c.Env = append(os.Environ(), "PGHOST="+s.Host, "PGUSER="+pgserver.Superuser, "PATH="+s.Binaries.Dir+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", file, err, out)
	}
	return nil
}

// change makes the backlog, ends it with the marker row, and lets both servers
// write out what they hold, so that no run pays for another's.
func (b *bench) change(ctx context.Context, w workload, name string) error {
	if w.name == "pgbench" {
		if err := b.script(b.src, name, "pgbench.change.sh"); err != nil {
			return err
		}
	} else {
		text, err := os.ReadFile(filepath.Join(b.files, w.name+".change.sql"))
		if err != nil {
			return err
		}
		// One at a time: a DO block that commits may not share a message.
		for _, s := range statements(string(text)) {
			if err := exec1(ctx, b.src.DSN(name), s); err != nil {
				return err
			}
		}
	}
	if err := exec1(ctx, b.src.DSN(name), "insert into marker values(1)", "checkpoint"); err != nil {
		return err
	}
	return exec1(ctx, b.dst.DSN(name), "checkpoint")
}

// statements splits SQL at semicolons outside $$ quotes.
func statements(text string) []string {
	var out []string
	quoted, from := false, 0
	for i := range text {
		switch {
		case strings.HasPrefix(text[i:], "$$"):
			quoted = !quoted
		case text[i] == ';' && !quoted:
			out, from = append(out, text[from:i]), i+1
		}
	}
	if rest := strings.TrimSpace(text[from:]); rest != "" && !strings.HasPrefix(rest, "--") {
		out = append(out, rest)
	}
	return out
}

// untilMarker waits until the backlog's last row is visible in the destination.
func untilMarker(ctx context.Context, dsn string, failed <-chan error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	deadline := time.Now().Add(5 * time.Minute)
	for time.Now().Before(deadline) {
		var there bool
		if err := conn.QueryRow(ctx, "select exists(select from marker where id = 1)").Scan(&there); err != nil {
			return err
		}
		if there {
			return nil
		}
		select {
		case err := <-failed:
			return fmt.Errorf("it ended: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errors.New("not there after 5 minutes")
}

func (b *bench) native(ctx context.Context, w workload) (result, error) {
	name, err := b.fresh(ctx, w)
	if err != nil {
		return result{}, err
	}
	ddl, err := tables(ctx, b.src.DSN(name))
	if err != nil {
		return result{}, err
	}
	if err := exec1(ctx, b.dst.DSN(name), ddl...); err != nil {
		return result{}, err
	}
	sub := "sub_" + name
	if err := exec1(ctx, b.src.DSN(name), "create publication p for all tables"); err != nil {
		return result{}, err
	}
	if err := exec1(ctx, b.dst.DSN(name), fmt.Sprintf("create subscription %s connection 'host=%s port=%d user=%s dbname=%s' publication p with (binary = true, streaming = on)",
		sub, b.src.Host, b.src.Port, pgserver.Superuser, name)); err != nil {
		return result{}, err
	}
	if err := poll(ctx, b.dst.DSN(name), "select count(*) = count(*) filter (where srsubstate = 'r') from pg_subscription_rel"); err != nil {
		return result{}, fmt.Errorf("the first copy: %w", err)
	}
	if err := exec1(ctx, b.dst.DSN(name), "alter subscription "+sub+" disable"); err != nil {
		return result{}, err
	}
	if err := poll(ctx, b.src.DSN(name), "select not active from pg_replication_slots where slot_name = '"+sub+"'"); err != nil {
		return result{}, err
	}
	if err := b.change(ctx, w, name); err != nil {
		return result{}, err
	}
	began := time.Now()
	if err := exec1(ctx, b.dst.DSN(name), "alter subscription "+sub+" enable"); err != nil {
		return result{}, err
	}
	if err := untilMarker(ctx, b.dst.DSN(name), nil); err != nil {
		return result{}, err
	}
	r := result{seconds: time.Since(began).Seconds()}
	if err := b.same(ctx, name); err != nil {
		return result{}, err
	}
	if err := exec1(ctx, b.dst.DSN(name), "drop subscription "+sub); err != nil {
		return result{}, err
	}
	return r, b.drop(ctx, name)
}

func (b *bench) ours(ctx context.Context, w workload) (result, error) {
	name, err := b.fresh(ctx, w)
	if err != nil {
		return result{}, err
	}
	config, err := b.configure(name)
	if err != nil {
		return result{}, err
	}
	defer os.Remove(config)
	if out, err := exec.Command(b.tailrace, "backfill", "-c", config).CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("backfill: %w\n%s", err, out)
	}
	if err := b.change(ctx, w, name); err != nil {
		return result{}, err
	}
	began := time.Now()
	c, failed, err := b.start(config)
	if err != nil {
		return result{}, err
	}
	if err := untilMarker(ctx, b.dst.DSN(name), failed); err != nil {
		c.Process.Kill()
		return result{}, err
	}
	r := result{seconds: time.Since(began).Seconds()}
	c.Process.Signal(syscall.SIGTERM)
	if err := <-failed; err != nil {
		return result{}, fmt.Errorf("stopping: %w", err)
	}
	r.rss = c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	r.cpu = (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds()
	if err := b.same(ctx, name); err != nil {
		return result{}, err
	}
	if out, err := exec.Command(b.tailrace, "teardown", "-c", config, "--yes").CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("teardown: %w\n%s", err, out)
	}
	return r, b.drop(ctx, name)
}

func (b *bench) configure(name string) (string, error) {
	f, err := os.CreateTemp("", "bench-*.yaml")
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "pipeline: %s\nsource: {kind: postgres, dsn: %q}\ndestination: {kind: postgres, dsn: %q}\nflows: [{source: public.*}]\nlog_level: %s\n",
		name, b.src.DSN(name), b.dst.DSN(name), b.level)
	return f.Name(), err
}

func (b *bench) start(config string) (*exec.Cmd, <-chan error, error) {
	c := exec.Command(b.tailrace, "run", "-c", config)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	failed := make(chan error, 1)
	go func() { failed <- c.Wait() }()
	return c, failed, nil
}

func (b *bench) drop(ctx context.Context, name string) error {
	for _, s := range []*pgserver.Server{b.src, b.dst} {
		if err := exec1(ctx, s.DSN("postgres"), "drop database "+name+" with (force)"); err != nil {
			return err
		}
	}
	return nil
}

func poll(ctx context.Context, dsn, question string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var yes bool
		if err := conn.QueryRow(ctx, question).Scan(&yes); err != nil {
			return err
		}
		if yes {
			return nil
		}
	}
	return fmt.Errorf("never true: %s", question)
}

// tables returns the statements that make the source's tables anew, with their
// primary keys.
func tables(ctx context.Context, dsn string) ([]string, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `
select 'create table ' || quote_ident(c.relname) || '(' ||
  (select string_agg(quote_ident(attname) || ' ' || format_type(atttypid, atttypmod), ', ' order by attnum) from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped) ||
  coalesce(', ' || (select pg_get_constraintdef(oid) from pg_constraint where conrelid = c.oid and contype = 'p'), '') || ')'
from pg_class c where relnamespace = 'public'::regnamespace and relkind = 'r'`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// same compares every table by count and by a sum of row hashes.
func (b *bench) same(ctx context.Context, name string) error {
	digest := func(dsn string) (string, error) {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return "", err
		}
		defer conn.Close(ctx)
		rows, err := conn.Query(ctx, "select relname::text from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' order by 1")
		if err != nil {
			return "", err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return "", err
		}
		out := ""
		for _, n := range names {
			columns := ""
			err := conn.QueryRow(ctx, "select string_agg(quote_ident(attname), ',' order by attname) from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped", n).Scan(&columns)
			if err != nil {
				return "", err
			}
			var count int64
			var sum *string
			if err := conn.QueryRow(ctx, "select count(*), sum(hashtextextended(row("+columns+")::text, 0)::numeric)::text from "+n).Scan(&count, &sum); err != nil {
				return "", err
			}
			if sum == nil {
				sum = new(string)
			}
			out += fmt.Sprintf("%s %d %s\n", n, count, *sum)
		}
		return out, nil
	}
	a, err := digest(b.src.DSN(name))
	if err != nil {
		return err
	}
	z, err := digest(b.dst.DSN(name))
	if err != nil {
		return err
	}
	if a != z {
		return fmt.Errorf("source and destination differ:\n%s\n%s", a, z)
	}
	return nil
}

// latencies measures one-row transactions on an otherwise idle pipeline: from the
// commit's return on the source until the row is seen in the destination by a
// reader that polls without a pause.
func (b *bench) latencies(ctx context.Context) error {
	name, err := b.fresh(ctx, workload{name: "latency"})
	if err != nil {
		return err
	}
	if err := exec1(ctx, b.src.DSN(name), "insert into lat select i from generate_series(1, 1000) i"); err != nil {
		return err
	}
	config, err := b.configure(name)
	if err != nil {
		return err
	}
	defer os.Remove(config)
	c, failed, err := b.start(config)
	if err != nil {
		return err
	}
	defer c.Process.Kill()
	if err := poll(ctx, b.src.DSN(name), "select exists(select from pg_stat_replication where state = 'streaming')"); err != nil {
		return err
	}
	src, err := pgx.Connect(ctx, b.src.DSN(name))
	if err != nil {
		return err
	}
	defer src.Close(ctx)
	dst, err := pgx.Connect(ctx, b.dst.DSN(name))
	if err != nil {
		return err
	}
	defer dst.Close(ctx)
	var took []time.Duration
	for i := range 400 {
		id := 1 + i%1000
		if _, err := src.Exec(ctx, "update lat set seq = $2 where id = $1", id, i+1); err != nil {
			return err
		}
		began := time.Now()
		for {
			var seq int64
			if err := dst.QueryRow(ctx, "select seq from lat where id = $1", id).Scan(&seq); err != nil {
				return err
			}
			if seq == int64(i+1) {
				break
			}
			select {
			case err := <-failed:
				return fmt.Errorf("tailrace ended: %w", err)
			default:
			}
			if time.Since(began) > 30*time.Second {
				return errors.New("a change did not arrive within 30 s")
			}
		}
		took = append(took, time.Since(began))
		time.Sleep(10 * time.Millisecond)
	}
	slices.Sort(took)
	ms := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	fmt.Printf("\nLatency of a one-row transaction on an idle pipeline into PostgreSQL (%d samples, 10 ms apart): p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, max %.2f ms\n",
		len(took), ms(0.5), ms(0.9), ms(0.99), ms(1))
	c.Process.Signal(syscall.SIGTERM)
	<-failed
	if out, err := exec.Command(b.tailrace, "teardown", "-c", config, "--yes").CombinedOutput(); err != nil {
		return fmt.Errorf("teardown: %w\n%s", err, out)
	}
	return b.drop(ctx, name)
}
