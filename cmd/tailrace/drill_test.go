package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/faultproxy"
)

// recoversWithin is the promise: this long after a fault has ended, rows are durable in
// the destination and confirmed to the source again. Silence is noticed after 30 s, a
// peer is tried again at the latest 15 s after that, and its answer may take 15 s.
const recoversWithin = 90 * time.Second

// keepalives is how long a server keeps a session whose network has forgotten it: our
// sessions ask for probes after 15 s, every 5 s, four times.
const keepalives = 35 * time.Second

// drillRole is a role for which a server ends whatever takes a little long.
const drillRole = `create role drill login superuser;
alter role drill set statement_timeout = '300ms';
alter role drill set lock_timeout = '100ms';
alter role drill set idle_in_transaction_session_timeout = '300ms';
alter role drill set idle_session_timeout = '1s';
alter role drill set wal_sender_timeout = '3s';
alter role drill set tcp_keepalives_idle = 1;
alter role drill set tcp_keepalives_interval = 1;
alter role drill set tcp_keepalives_count = 2;`

// drill is a pipeline whose two sides and whose ways to them fail again and again.
type drill struct {
	*rig
	t        *testing.T
	rnd      *rand.Rand
	long     time.Duration  // how long to let things fail; 0: the short form
	dest     *dbtest.Server // nil: an embedded destination
	toSource *faultproxy.Proxy
	toDest   *faultproxy.Proxy
	target   string // connection string of the destination, beside the proxy
	later    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	daemon  *proc
	stopped bool
	starts  int
	gaveUp  int // exits with code 4
	owned   int // refusals because the one before counts as alive
}

// peer is one side of the drill.
type peer struct {
	name   string
	server *dbtest.Server
	way    *faultproxy.Proxy
}

// Whatever fails, and however: it comes back by itself, nothing is lost or doubled,
// and nothing of it stays behind on either side.
func TestOutagesHealByThemselves(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			newDrill(t, kind).run()
		})
	}
}

func newDrill(t *testing.T, kind string) *drill {
	d := &drill{t: t, rnd: seeded(t)}
	if soak := os.Getenv("TAILRACE_SOAK"); soak != "" {
		d.long = soakFor
		if asked, err := time.ParseDuration(soak); err == nil {
			d.long = asked
		}
	}
	server := dbtest.Postgres(t, dbtest.Dedicated())
	source := server.Database(t)
	server.Exec(t, source, drillRole, crashTables)
	for _, rel := range crashHistories {
		server.Exec(t, source,
			fmt.Sprintf("create trigger a after insert or update or delete on %s for each row execute function audit_row()", rel),
			fmt.Sprintf("create trigger b after truncate on %s for each statement execute function audit_truncate()", rel))
	}
	d.toSource = proxyTo(t, server)
	at := freshDestination(t, server, "duckdb")
	if kind == "postgres" {
		d.dest = dbtest.Postgres(t, dbtest.Dedicated())
		d.target = d.dest.Database(t)
		d.dest.Exec(t, d.target, drillRole)
		d.toDest = proxyTo(t, d.dest)
		at = destination{kind, throughProxy(t, d.target, d.toDest)}
	}
	d.rig = &rig{server: server, source: source, dest: at,
		config: configure(t, "drill_"+kind, lowMemory(throughProxy(t, source, d.toSource)), at, crashFlows),
		env:    []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB", "TAILRACE_QUEUE_BYTES=8MiB", "TAILRACE_BATCH_MAX_BYTES=8MiB", "TAILRACE_DUCKDB_MEMORY_LIMIT=128MiB"}}
	t.Cleanup(func() {
		if d.session != nil {
			d.session.Close(context.Background())
		}
	})
	return d
}

func proxyTo(t *testing.T, s *dbtest.Server) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New(net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// throughProxy is a connection string as the role with the time-outs, by way of a proxy.
func throughProxy(t *testing.T, dsn string, p *faultproxy.Proxy) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Host = url.User("drill"), net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port()))
	return u.String()
}

func (d *drill) run() {
	t := d.t
	supervised := make(chan struct{})
	go func() {
		defer close(supervised)
		d.supervise()
	}()
	eventually(t, recoversWithin, "the first copy is done and the log is read", func() bool {
		return d.one(t, "select count(*) from pg_stat_replication r join pg_replication_slots s on s.active_pid = r.pid where not s.temporary and r.state = 'streaming'") == "1"
	})
	writers, stopWriters := context.WithCancel(t.Context())
	defer stopWriters()
	var load sync.WaitGroup
	for i, writer := range []func(context.Context, string, *rand.Rand) error{crashWriter, bulkWriter} {
		rnd := rand.New(rand.NewPCG(d.rnd.Uint64(), uint64(i)))
		load.Add(1)
		go func() {
			defer load.Done()
			d.write(writers, rnd, writer)
		}()
	}
	var sums atomic.Int64
	if d.target != "" {
		load.Add(1)
		go func() {
			defer load.Done()
			d.readSums(writers, &sums)
		}()
	}
	d.recovered("the first load")
	sessions := d.sessions()

	took := map[string][]time.Duration{}
	var memory []int
	for _, e := range d.schedule() {
		began := time.Now()
		t.Logf("%s", e.name)
		e.run()
		d.heal()
		if e.overlaps {
			continue
		}
		healed := time.Now()
		again := d.recovered(e.name)
		took[e.name] = append(took[e.name], again)
		memory = append(memory, d.memory())
		t.Logf("%s: %.1f s, works again after %.1f s, caught up after %.1f s", e.name, healed.Sub(began).Seconds(), again.Seconds(), time.Since(healed).Seconds())
	}
	d.heal()
	d.recovered("everything")
	stopWriters()
	load.Wait()
	d.recovered("the load's end")
	d.later.Wait()
	eventually(t, 60*time.Second, "as many sessions as at the beginning", func() bool { return d.sessions() == sessions })
	d.flat(memory)
	d.mu.Lock()
	d.stopped = true
	p := d.daemon
	d.mu.Unlock()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(t, 30*time.Second); code != 0 {
		t.Errorf("SIGTERM: exit %d\n%s", code, tail(p.output.String()))
	}
	<-supervised
	d.same(t)
	compareIndependently(t, d.server, d.source, d.config)
	if d.target != "" && sums.Load() < 50 {
		t.Errorf("the sum was read only %d times", sums.Load())
	}
	eventually(t, patience, "no session is left", func() bool { return d.sessions() == [2]int{} })
	if slots := d.one(t, "select count(*) from pg_replication_slots"); slots != "1" {
		t.Errorf("%s slots are there, want the pipeline's own", slots)
	}
	d.must(t, "teardown", "--yes")
	d.leftNothing(t)
	d.report(took, sums.Load())
}

// memoryMost bounds the pipeline's resident memory here: twice what its queue and its
// batch may hold, 64 MiB beside them, and what an embedded destination may use.
const memoryMost = 400 << 20

// flat asserts that the pipeline holds no more memory at the end than at the beginning.
func (d *drill) flat(samples []int) {
	third := len(samples) / 3
	first, last := slices.Max(samples[:third]), slices.Max(samples[len(samples)-third:])
	d.t.Logf("it held %d MiB at most in the first third, %d MiB in the last", first>>20, last>>20)
	if last > memoryMost || d.long > 0 && last > first+first/4+32<<20 {
		d.t.Errorf("it holds %d MiB, %d MiB at the beginning", last>>20, first>>20)
	}
}

// report says how long recovery took, worst first.
func (d *drill) report(took map[string][]time.Duration, sums int64) {
	var names []string
	events := 0
	for name, times := range took {
		names = append(names, name)
		events += len(times)
	}
	slices.SortFunc(names, func(a, b string) int { return int(slices.Max(took[b]) - slices.Max(took[a])) })
	d.t.Logf("%d recoveries; started %d times, gave up %d times, found itself alive %d times; the sum was read %d times", events, d.starts, d.gaveUp, d.owned, sums)
	for _, name := range names {
		slices.Sort(took[name])
		d.t.Logf("%-32s %3d times: median %5.1f s, most %5.1f s", name, len(took[name]), took[name][len(took[name])/2].Seconds(), slices.Max(took[name]).Seconds())
	}
}

// supervise does what a service manager does: it starts the pipeline again when that
// ends. Only two ends are allowed beside those that the drill causes.
func (d *drill) supervise() {
	for {
		d.mu.Lock()
		if d.stopped || d.t.Failed() {
			d.mu.Unlock()
			return
		}
		p := d.rig.start(d.t, asUsersRun)
		d.daemon = p
		d.starts++
		d.mu.Unlock()
		<-p.done
		code, text := p.cmd.ProcessState.ExitCode(), p.output.String()
		d.mu.Lock()
		switch {
		case code <= 0: // the drill's doing
		case code == 4:
			d.gaveUp++
		case code == 3 && strings.Contains(text, "another process owns this pipeline"):
			d.owned++
		default:
			d.t.Errorf("it ended with exit code %d\n%s", code, tail(text))
		}
		d.mu.Unlock()
		if code > 0 {
			time.Sleep(time.Second)
		}
	}
}

// signal ends the running pipeline.
func (d *drill) signal(s syscall.Signal) {
	d.mu.Lock()
	p := d.daemon
	d.mu.Unlock()
	p.cmd.Process.Signal(s)
	p.wait(d.t, 30*time.Second)
}

// recovered waits until what is committed now is confirmed, and returns after what time
// something was confirmed again. From there on it may take as long as it goes on.
func (d *drill) recovered(what string) time.Duration {
	d.t.Helper()
	began := time.Now()
	confirmed := func(lsn string) (at string, reached bool) {
		row := d.one(d.t, "select confirmed_flush_lsn, confirmed_flush_lsn >= '"+lsn+"' from pg_replication_slots where database = current_database() and not temporary")
		at, is, _ := strings.Cut(row, "|")
		return at, is == "t"
	}
	lsn := d.one(d.t, "insert into journal(what) values ('recovered'); select pg_current_wal_insert_lsn()")
	first, reached := confirmed(lsn)
	var again time.Duration
	for last, moved := first, began; !reached; {
		time.Sleep(100 * time.Millisecond)
		var now string
		if now, reached = confirmed(lsn); now != last {
			last, moved = now, time.Now()
			if again == 0 {
				again = moved.Sub(began)
			}
		}
		if time.Since(moved) > recoversWithin {
			d.mu.Lock()
			text := d.daemon.output.String()
			d.mu.Unlock()
			d.t.Fatalf("nothing moved for %s: %s\n%s", recoversWithin, what, tail(text))
		}
	}
	return again
}

// write commits in bursts, and goes on after whatever happens to its session.
func (d *drill) write(ctx context.Context, rnd *rand.Rand, writer func(context.Context, string, *rand.Rand) error) {
	for ctx.Err() == nil {
		burst, cancel := context.WithTimeout(ctx, time.Duration(500+rnd.IntN(2500))*time.Millisecond)
		err := writer(burst, d.source, rnd)
		cancel()
		if err != nil {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		time.Sleep(time.Duration(rnd.IntN(4000)) * time.Millisecond)
	}
}

// readSums reads what a reader of the destination sees, whenever there is one.
func (d *drill) readSums(ctx context.Context, sums *atomic.Int64) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		if conn == nil || conn.IsClosed() {
			conn, _ = pgx.Connect(limited, d.target)
		}
		if conn != nil {
			var sum int64
			var live bool
			err := conn.QueryRow(limited, `select (select sum(balance) from left_side) + (select sum(balance) from right_side),
				(select count(*) = 2 from _tailrace.tables where target_table in ('left_side', 'right_side') and phase = 'live')`).Scan(&sum, &live)
			switch {
			case err == nil && !live:
			case err == nil && sum != crashSum:
				d.t.Errorf("a reader of the destination saw the sum %d, it is always %d", sum, crashSum)
			case err == nil:
				sums.Add(1)
			}
		}
		cancel()
	}
	if conn != nil {
		conn.Close(context.Background())
	}
}

// sessions counts the pipeline's sessions on source and destination.
func (d *drill) sessions() (n [2]int) {
	n[0] = connections(d.t, d.server)
	if d.dest != nil {
		n[1] = connections(d.t, d.dest)
	}
	return n
}

// memory is the pipeline's resident memory in bytes; 0 where the system does not say.
func (d *drill) memory() int {
	d.mu.Lock()
	pid := d.daemon.cmd.Process.Pid
	d.mu.Unlock()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib int
	fmt.Sscan(rest, &kib)
	return kib << 10
}

// heal ends what is still in force on the ways to both sides.
func (d *drill) heal() {
	d.toSource.Heal()
	if d.toDest != nil {
		d.toDest.Heal()
	}
}
