package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest"
)

// load runs fn again and again in several sessions until stop, which returns how
// often it ran.
func (r *rig) load(t *testing.T, sessions int, fn func(n int64, exec func(sql string) error) error) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var n atomic.Int64
	for range sessions {
		conn, err := pgx.Connect(ctx, r.source)
		if err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer conn.Close(context.Background())
			for ctx.Err() == nil {
				err := fn(n.Add(1), func(sql string) error {
					_, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
					return err
				})
				if err != nil {
					t.Errorf("load: %v", err)
					return
				}
				time.Sleep(time.Millisecond) // leave the pipeline some of the processor
			}
		}()
	}
	var once sync.Once
	stop = func() int64 {
		once.Do(func() { cancel(); wg.Wait() })
		return n.Load()
	}
	t.Cleanup(func() { stop() })
	return stop
}

// All tables are copied at one moment: what moves from one to another during the
// copy is in exactly one of them. A later run goes on without a gap.
func TestCopyIsOneMomentOfAllTables(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		schema := ""
		for i := range 4 {
			schema += fmt.Sprintf("create table part%d(id int primary key, balance int not null, pad text); insert into part%[1]d select i, 100, repeat('x', 300) from generate_series(1, 15000) i;\n", i)
		}
		r := newRig(t, server, kind, schema, everything)
		stop := r.load(t, 2, func(n int64, exec func(string) error) error {
			a, b := n%4, (n*7+1)%4
			return exec(fmt.Sprintf("begin; select pg_advisory_xact_lock(1); update part%d set balance = balance - %d where id = %d; update part%d set balance = balance + %[2]d where id = %d; commit", a, n%50, 1+n*13%15000, b, 1+n*17%15000))
		})
		r.must(t, "backfill")
		moved := stop()
		sum := 0
		for i := range 4 {
			_, rows := r.shown(t, fmt.Sprintf("part%d", i))
			for _, row := range rows {
				var n int
				fmt.Sscan(row[1], &n)
				sum += n
			}
		}
		if sum != 4*15000*100 || moved < 10 {
			t.Errorf("the copy sums to %d, want %d (%d transfers)", sum, 4*15000*100, moved)
		}
		r.once(t)
		r.same(t)
	})
}

// Writers that never stop, whenever the first start comes: the history has each
// version once.
func TestFirstStartUnderLoadHasEachVersionOnce(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, n int not null); insert into t select i, 0 from generate_series(1, 40) i", "flows: [{source: public.t, stored_as_scd_type: 2}]")
		for range 3 {
			r.exec(t, "truncate t; insert into t select i, 0 from generate_series(1, 40) i")
			stop := r.load(t, 4, func(n int64, exec func(string) error) error {
				return exec(fmt.Sprintf("update t set n = n + 1 where id = %d", 1+n%40))
			})
			p := r.start(t, nil, "--overwrite")
			r.following(t, p)
			time.Sleep(300 * time.Millisecond)
			stop()
			p.stop(t)
			r.once(t)
			r.same(t)
			next := countsUp(t, r, "t")
			want := r.server.Query(t, r.source, "select id, n + 1 from t order by id")
			for _, line := range want {
				id, n, _ := strings.Cut(line, "|")
				if fmt.Sprint(next[id]) != n {
					t.Fatalf("key %s ends at %d, the source at %s", id, next[id]-1, n)
				}
			}
		}
	})
}

// countsUp asserts that the versions of each key, whose second column counts its
// updates, have all numbers from the first on, each once; and returns the numbers
// that come next.
func countsUp(t *testing.T, r *rig, target string) map[string]int {
	t.Helper()
	_, rows := r.shown(t, target)
	next := map[string]int{}
	for _, row := range rows {
		var n int
		fmt.Sscan(row[1], &n)
		if want, seen := next[row[0]]; seen && n != want {
			t.Fatalf("key %s: a version with %d follows, not %d", row[0], n, want)
		}
		next[row[0]] = n + 1
	}
	return next
}

// The session that exports the snapshot may be ended by a person: tables that are
// done stay done, the others come under another snapshot.
func TestCopyOutlivesTheSessionOfItsSnapshot(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		schema := ""
		for i := range 5 {
			schema += fmt.Sprintf("create table part%d(id int primary key, v text); insert into part%[1]d select i, repeat('x', 400) from generate_series(1, %d) i;\n", i, 40000-4000*i)
		}
		r := newRig(t, server, kind, schema+"analyze", "hydrate: {workers: 1}\n"+everything)
		stop := r.load(t, 1, func(n int64, exec func(string) error) error {
			k := 1 + n*31%20000
			return exec(fmt.Sprintf("update part%d set v = 'n' where id = %d; delete from part%d where id = %d; update part%d set id = id + 100000 where id = %d", n%5, k, (n+1)%5, k+1, (n+2)%5, k+2))
		})
		p := r.start(t, nil)
		p.says(t, patience, "table copied")
		ended := r.one(t, "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name like 'tailrace%'")
		if ended == "0" {
			t.Error("no session was ended")
		}
		r.following(t, p)
		stop()
		p.stop(t)
		out := p.output.String()
		if n := strings.Count(out, "table copied"); n != 5 {
			t.Errorf("%d tables were copied to the end, there are 5", n)
		}
		if !strings.Contains(out, "resume copy") {
			t.Error("the copy was not interrupted")
		}
		r.once(t)
		r.same(t)
	})
}

// A crash in the middle of the copy; rows that it had are changed, deleted and moved
// while nothing runs.
func TestCrashInTheMiddleOfACopy(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table big(id int primary key, v text); insert into big select i, repeat('x', 300) from generate_series(1, 60000) i; create table first(id int primary key, v int); insert into first select i, 0 from generate_series(1, 1000) i; create table log(v int); insert into log select generate_series(1, 1000); analyze",
			"hydrate: {workers: 3}\n"+withHistory)
		r.reconfigure(t, "{source: public.*, target: '{table}_history'", "{source: public.*, except: [public.log], target: '{table}_history'")
		r.dies(t, "table loaded:2")
		change := "update %[1]s set v = v where id %% 7 = 0; delete from %[1]s where id %% 10 = 1; update %[1]s set id = id + 1000000 where id %% 10 = 2; insert into %[1]s select i, '5' from generate_series(2000000, 2000500) i"
		r.exec(t, fmt.Sprintf(change, "big"), fmt.Sprintf(strings.Replace(change, "'5'", "5", 1), "first"), "insert into log select generate_series(1, 10)")
		p := r.start(t, nil)
		eventually(t, patience, "the copy goes on", func() bool { return strings.Contains(p.output.String(), "msg=copying") })
		time.Sleep(50 * time.Millisecond)
		p.kill()
		r.exec(t, fmt.Sprintf(strings.NewReplacer("2000000, 2000500", "3000000, 3000500", "+ 1000000", "+ 50000000").Replace(change), "big"))
		r.once(t)
		r.same(t)
	})
}

// Keys move back and forth over the whole table while it is copied.
func TestKeysThatMoveDuringTheCopy(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, repeat('x', 200) from generate_series(1, 60000) i", everything)
		stop := r.load(t, 3, func(n int64, exec func(string) error) error {
			id := 1 + n*7919%60000
			return exec(fmt.Sprintf("update t set id = id + 10000000 where id = %d; update t set id = id - 10000000 where id = %d", id, 10000000+1+(n-500)*7919%60000))
		})
		p := r.start(t, nil)
		r.following(t, p)
		stop()
		p.stop(t)
		r.once(t)
		r.same(t)
	})
}

// A table added to the configuration has its own copy, beside a backlog that holds
// changes of it from before and after it was published.
func TestTableThatIsAddedLater(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v int); create table added(id int primary key, v int); insert into t values(1, 1); insert into added values(1, 1)", "flows: [{source: public.t}]")
		r.once(t)
		slot := r.one(t, "select slot_name from pg_replication_slots where database = current_database()")
		r.exec(t, "insert into added values(2, 2); insert into t values(2, 2)", "alter publication "+slot+" add table added", "insert into added values(3, 3); update added set v = 10 where id = 1; insert into t values(3, 3)")
		r.reconfigure(t, "flows: [", "flows: [{source: public.added}, {source: public.added, target: added_history, stored_as_scd_type: 2}, ")
		stop := r.load(t, 2, func(n int64, exec func(string) error) error {
			return exec(fmt.Sprintf("insert into added values(%d, 0); update added set v = v + 1, id = id + 1000000 where id = %d; insert into t values(%d, 0)", 100+n, 100+n/2, 100+n))
		})
		p := r.start(t, nil)
		p.says(t, patience, "table copied")
		p.kill()
		p = r.start(t, nil)
		p.says(t, patience, "decided where to begin") // the slot may still be read by the session of the one before
		r.following(t, p)
		stop()
		p.stop(t)
		r.once(t)
		r.same(t)
		r.refused(t, 0, []string{"whole"}, "status", "--check")
	})
}

// One table is copied again: strays go, what was missing comes back, the others are
// not touched.
func TestOneTableIsCopiedAgain(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, v text); insert into t select i, 'v' from generate_series(1, 100) i; create table u(id int primary key); insert into u values(1)", everything)
		r.once(t)
		spoil := []string{"update t set v = 'spoilt' where id <= 5", "delete from t where id between 6 and 10", "insert into t values(1001, 's'), (1002, 's')"}
		for _, sql := range spoil {
			if kind == "duckdb" {
				inDuckDB(t, r.dest.dsn, sql)
			} else {
				r.atTarget(t, sql)
			}
		}
		out := r.refused(t, 1, []string{"t: 12 differences of 100 rows", "u: 0 differences of 1 rows", "id=3: values differ", "id=7: missing", "only in the destination"}, "verify")
		if strings.Contains(out, "spoilt") {
			t.Errorf("a row's value was printed:\n%s", out)
		}
		r.refused(t, 2, []string{"nosuch"}, "backfill", "--table", "nosuch", "--overwrite")
		r.exec(t, "insert into t values(200, 'new'); insert into u values(2)")
		r.must(t, "backfill", "--table", "t", "--overwrite")
		r.exec(t, "insert into t values(201, 'new'); delete from u where id = 1")
		r.once(t)
		r.same(t)
	})
}
