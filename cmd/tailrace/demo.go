package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"tailrace/internal/dbtest/pgserver"
	"tailrace/internal/fault"
)

func (a *app) demoCommand() *cobra.Command {
	d := &demo{app: a}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show it all on a throw-away source: copy, follow, a kill, a restart, verify",
		Long: `demo starts a throw-away PostgreSQL server, fills customers and orders, replicates
them into a DuckDB file as current rows and as history under a live workload, kills
the replicator in the middle, starts it again, and compares every row. It exits 0
only if every row matched.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) },
	}
	c.Flags().IntVar(&d.rows, "rows", 200_000, "rows in each of the two tables")
	c.Flags().DurationVar(&d.load, "load", 8*time.Second, "how long the live workload runs")
	c.Flags().StringVar(&d.dir, "dir", "", "keep configuration, log and DuckDB file in this folder (default: a temporary one, removed)")
	return c
}

// demo is one run of the demonstration.
type demo struct {
	*app
	rows   int
	load   time.Duration
	dir    string
	dsn    string
	config string
	log    *os.File
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

func (d *demo) run(ctx context.Context) (err error) {
	if d.rows < 1000 {
		return fault.Badly("--rows is at least 1000")
	}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "tailrace-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	} else if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	if d.log, err = os.Create(filepath.Join(d.dir, "tailrace.log")); err != nil {
		return err
	}
	defer d.log.Close()

	began := time.Now()
	d.say("starting a throw-away PostgreSQL server")
	server, err := pgserver.Start(ctx, pgserver.Options{Install: true})
	if err != nil {
		return fmt.Errorf("start a PostgreSQL server: %w", err)
	}
	defer server.Close()
	d.dsn = server.DSN("postgres")
	conn, err := pgx.Connect(ctx, d.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	d.say("filling customers and orders with %d rows each (PostgreSQL %s)", d.rows, server.Binaries.Full)
	if _, err := conn.Exec(ctx, strings.ReplaceAll(demoTables, "$rows", fmt.Sprint(d.rows))); err != nil {
		return fmt.Errorf("fill the source: %w", err)
	}
	d.config = filepath.Join(d.dir, "demo.yaml")
	if err := os.WriteFile(d.config, []byte(fmt.Sprintf(demoConfig, d.dsn, filepath.Join(d.dir, "demo.duckdb"))), 0o600); err != nil {
		return err
	}
	d.say("\nthe configuration:\n%s", indent(fmt.Sprintf(demoConfig, "…", "demo.duckdb")))

	copied := time.Now()
	child, err := d.start("run")
	if err != nil {
		return err
	}
	defer func() { stopHard(child) }()
	if err := d.untilStreaming(ctx, conn, child); err != nil {
		return err
	}
	d.say("copied %d rows into 4 targets in %.1f s; now following", 4*d.rows, time.Since(copied).Seconds())

	work, stopWork := context.WithTimeout(ctx, d.load)
	defer stopWork()
	g, work := errgroup.WithContext(work)
	var statements atomic.Int64
	for i := range 3 {
		g.Go(func() error { return d.workload(work, uint64(i), &statements) })
	}
	lag := &lagMeter{}
	g.Go(func() error { return lag.watch(work, d.dsn) })

	select {
	case <-time.After(d.load / 2):
	case <-work.Done():
	}
	d.say("killing the replicator with SIGKILL in the middle of the workload")
	if err := child.Process.Kill(); err != nil {
		return err
	}
	_ = child.Wait() // it was killed: the error says so
	if child, err = d.start("run"); err != nil {
		return err
	}
	restarted := time.Now()
	if err := d.untilStreaming(ctx, conn, child); err != nil {
		return err
	}
	d.say("started again; streaming after %.1f s", time.Since(restarted).Seconds())
	if err := g.Wait(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the workload: %w", err)
	}
	caughtUp, err := lag.untilConfirmed(ctx, conn)
	if err != nil {
		return err
	}
	d.say("the workload ran %d statements in %.0f s; the last was durable in the destination %.0f ms after its commit",
		statements.Load(), d.load.Seconds(), caughtUp.Seconds()*1000)
	d.say("lag while it ran (source's commit to durable in the destination): median %.0f ms", lag.median().Seconds()*1000)

	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := child.Wait(); err != nil {
		return fmt.Errorf("the replicator did not stop cleanly: %w%s", err, d.lastLog())
	}
	d.say("stopped with SIGTERM; now every row of the source against every row of the destination:\n")
	var verdict bytes.Buffer
	if err := d.tool(ctx, &verdict, "verify"); err != nil {
		fmt.Fprint(d.out, indent(verdict.String()))
		return fmt.Errorf("verify: %w%s", err, d.lastLog())
	}
	fmt.Fprint(d.out, indent(verdict.String()))

	if err := d.oneHistory(ctx, conn); err != nil {
		return err
	}
	d.say("\ndone in %.0f s", time.Since(began).Seconds())
	return nil
}

const demoConfig = `pipeline: demo
source: {kind: postgres, dsn: "%s"}
destination: {kind: duckdb, dsn: "%s"}
flows:
  - {source: public.*}
  - {source: public.customers, target: customers_history, stored_as_scd_type: 2}
  - {source: public.orders, target: orders_history, stored_as_scd_type: 2, track_history_column_list: [status, amount]}
`

const demoTables = `
create table customers(id bigint primary key, name text not null, city text, balance numeric(12,2) not null, note text, changed timestamptz not null);
create table orders(id bigint generated by default as identity primary key, customer_id bigint not null, status text not null, amount numeric(12,2) not null, placed timestamptz not null, seen int not null default 0);
insert into customers select i, 'customer ' || i, (array['Lisbon','Oslo','Kyoto','Lima','Accra'])[1 + i % 5], i % 1000, repeat('n', i % 200), timestamptz '2026-01-01' + i * interval '1 second' from generate_series(1, $rows) i;
insert into orders select i, 1 + i * 7 % $rows, (array['new','paid','sent'])[1 + i % 3], i % 500 + 0.99, timestamptz '2026-01-01' + i * interval '1 minute' from generate_series(1, $rows) i;
select setval('orders_id_seq', $rows);
analyze;
`

// workload is a mixed load of short transactions on keys of its own third, so that
// two of them never wait for each other.
func (d *demo) workload(ctx context.Context, worker uint64, statements *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, d.dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	rnd := rand.New(rand.NewPCG(42, worker))
	mine := func() int64 { return int64(rnd.IntN(d.rows/3))*3 + int64(worker) + 1 }
	next := int64(d.rows)*10 + int64(worker)
	for ctx.Err() == nil {
		batch := &pgx.Batch{}
		batch.Queue("begin")
		switch rnd.IntN(10) {
		case 0, 1, 2:
			for range 5 {
				batch.Queue("insert into orders(customer_id, status, amount, placed) values($1, 'new', $2, now())", mine(), rnd.IntN(1000))
			}
		case 3, 4, 5:
			batch.Queue("update orders set status = 'paid', seen = seen + 1 where id between $1 and $1 + 9", mine())
		case 6: // a transfer: the sum of balances never changes
			from, to := mine(), mine()
			batch.Queue("update customers set balance = balance - 1, changed = now() where id = $1", from)
			batch.Queue("update customers set balance = balance + 1, changed = now() where id = $1", to)
		case 7:
			batch.Queue("update customers set city = 'Nairobi', changed = now() where id = $1", mine())
		case 8: // a key moves
			next += 3
			batch.Queue("update customers set id = $2 where id = $1", mine(), next)
		case 9:
			batch.Queue("delete from orders where id = $1", mine())
		}
		batch.Queue("commit")
		if err := conn.SendBatch(ctx, batch).Close(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		statements.Add(int64(batch.Len() - 2))
	}
	return nil
}

// start runs this program as a child with the demonstration's configuration.
func (d *demo) start(command string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.Command(self, command, "-c", d.config)
	c.Stdout, c.Stderr = d.log, d.log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start the replicator: %w", err)
	}
	return c, nil
}

func (d *demo) tool(ctx context.Context, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, self, append(args, "-c", d.config)...)
	c.Stdout, c.Stderr = out, d.log
	return c.Run()
}

func stopHard(c *exec.Cmd) {
	if c != nil && c.ProcessState == nil {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// lastLog is the end of the replicator's log, for an error.
func (d *demo) lastLog() string {
	b, err := os.ReadFile(d.log.Name())
	if err != nil {
		return ""
	}
	return "\n" + string(b[max(0, len(b)-2000):])
}

// untilStreaming waits until the child follows the log.
func (d *demo) untilStreaming(ctx context.Context, conn *pgx.Conn, child *exec.Cmd) error {
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		var streaming bool
		if err := conn.QueryRow(ctx, "select exists(select from pg_stat_replication where state in ('streaming', 'catchup'))").Scan(&streaming); err != nil {
			return err
		}
		if streaming {
			return nil
		}
		if syscall.Kill(child.Process.Pid, 0) != nil || exited(child.Process.Pid) {
			return fmt.Errorf("the replicator stopped%s", d.lastLog())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("the replicator does not stream%s", d.lastLog())
}

// exited reports a child that ended and was not waited for yet.
func exited(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

// lagMeter samples how long it takes until the source's log of one moment is
// confirmed, which happens only after it is durable in the destination.
type lagMeter struct{ samples []time.Duration }

func (l *lagMeter) watch(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for ctx.Err() == nil {
		took, err := until(ctx, conn)
		if err == nil {
			l.samples = append(l.samples, took)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func until(ctx context.Context, conn *pgx.Conn) (time.Duration, error) {
	var lsn string
	if err := conn.QueryRow(ctx, "select pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
		return 0, err
	}
	began := time.Now()
	for {
		var there bool
		err := conn.QueryRow(ctx, "select confirmed_flush_lsn >= $1::pg_lsn from pg_replication_slots where slot_name = 'tailrace_demo'", lsn).Scan(&there)
		if err != nil || there {
			return time.Since(began), err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (l *lagMeter) untilConfirmed(ctx context.Context, conn *pgx.Conn) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	took, err := until(ctx, conn)
	if err != nil {
		return 0, fmt.Errorf("wait for the destination to catch up: %w", err)
	}
	return took, nil
}

func (l *lagMeter) median() time.Duration {
	if len(l.samples) == 0 {
		return 0
	}
	s := slices.Clone(l.samples)
	slices.Sort(s)
	return s[len(s)/2]
}

// oneHistory prints the versions of one customer that changed: one with a short note (id % 200 characters), which fits on a line.
func (d *demo) oneHistory(ctx context.Context, conn *pgx.Conn) error {
	var id int64
	err := conn.QueryRow(ctx, "select id from customers where city = 'Nairobi' and id <= $1 and balance <> id % 1000 order by id % 200, id limit 1", d.rows).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = conn.QueryRow(ctx, "select id from customers where city = 'Nairobi' order by id limit 1").Scan(&id)
	}
	if err != nil {
		return fmt.Errorf("find a customer that changed: %w", err)
	}
	var csv bytes.Buffer
	if err := d.tool(ctx, &csv, "show", "customers_history", "--format", "csv"); err != nil {
		return fmt.Errorf("show: %w%s", err, d.lastLog())
	}
	d.say("\nthe history of customer %d (tailrace show customers_history):\n", id)
	lines := strings.Split(csv.String(), "\r\n")
	d.say("    %s", lines[0])
	for _, line := range lines[1:] {
		if strings.HasPrefix(line, fmt.Sprintf("%d,", id)) {
			d.say("    %s", line)
		}
	}
	return nil
}

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ") + "\n"
}
