package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest"
)

// lowMemory is a source's address with which its server keeps 64 kB of a
// transaction in memory; a larger one it streams, where it is asked to, or spills.
func lowMemory(dsn string) string {
	separator := "?"
	if strings.Contains(dsn, "?") {
		separator = "&"
	}
	return dsn + separator + "logical_decoding_work_mem=64kB"
}

// bulkWriter commits, or not, transactions of hundreds of kilobytes, parts of which
// it undoes, until told to stop. It locks nothing that others write.
func bulkWriter(ctx context.Context, dsn string, rnd *rand.Rand) error {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	for ctx.Err() == nil {
		fill := func() string {
			return fmt.Sprintf("insert into bulk select %d + i, 0, repeat('p', 150) from generate_series(1, %d) i on conflict (id) do update set n = bulk.n + 1", rnd.IntN(2000), 100+rnd.IntN(1500))
		}
		statements := []string{"begin", fill(), "savepoint s", fill(), "savepoint t", "delete from bulk where id % 3 = 0", "rollback to t", fill()}
		if rnd.IntN(2) == 0 {
			statements = append(statements, "rollback to s", fmt.Sprintf("delete from bulk where id %% 5 = %d", rnd.IntN(5)))
		}
		end := "commit"
		if rnd.IntN(4) == 0 {
			end = "rollback"
		}
		for _, sql := range append(statements, end) {
			if _, err := conn.Exec(context.Background(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // blocks come while it is open
		}
		time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
	}
	return nil
}

func TestFullSpoolStopsWithItsRemedyAndLosesNothing(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	source := server.Database(t)
	server.Exec(t, source, "create table t(id int primary key, v text)")
	config := configure(t, uniqueName("p"), lowMemory(source), freshDestination(t, server, "postgres"), "flows: [{source: public.*}]")
	must(t, "backfill", "-c", config)
	server.Exec(t, source, "insert into t values(0, 'before')", "insert into t select i, repeat('x', 1000) from generate_series(1, 20000) i", "insert into t values(-1, 'after')")
	run := func(max string, code int) string {
		t.Helper()
		p := start(t, []string{"TAILRACE_SOURCE_STREAMING=on", "TAILRACE_SOURCE_SPOOL_DIR=" + t.TempDir(), "TAILRACE_SOURCE_SPOOL_MAX=" + max}, "run", "-c", config, "--once")
		if got := p.wait(t, 60*time.Second); got != code {
			t.Fatalf("exit %d, want %d\n%s", got, code, tail(p.output.String()))
		}
		return p.output.String()
	}
	contains(t, run("16MiB", 3), "remedy: ", "source.spool_max", "source.spool_dir")
	run("64MiB", 0)
	if out := must(t, "verify", "-c", config); !strings.Contains(out, "\n0 differences of 20002 rows") {
		t.Errorf("verify:\n%s", out)
	}
}

// onOrOff is how source.streaming is written.
func onOrOff(streaming bool) string {
	if streaming {
		return "on"
	}
	return "off"
}
