package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// A transaction far larger than every bound is applied whole, in memory that does
// not grow with it. (5 million rows under TAILRACE_SOAK.)
func TestHugeTransactionStaysSmall(t *testing.T) {
	t.Parallel()
	rows := 200_000
	if os.Getenv("TAILRACE_SOAK") != "" {
		rows = 5_000_000
	}
	server := dbtest.Postgres(t)
	type variant struct {
		destination
		streaming bool
	}
	var variants []variant
	for _, d := range destinations(t, server) {
		variants = append(variants, variant{d, false})
	}
	for _, kind := range []string{"postgres", "duckdb"} {
		if kind == "postgres" || os.Getenv("TAILRACE_SOAK") != "" {
			variants = append(variants, variant{freshDestination(t, server, kind), true})
		}
	}
	for _, d := range variants {
		t.Run(fmt.Sprintf("%s streaming %v", d.kind, d.streaming), func(t *testing.T) {
			t.Parallel()
			source := server.Database(t)
			server.Exec(t, source,
				"create table huge(id bigint primary key, n int, note text, at timestamptz)",
				"insert into huge select i, 0, 'before', now() from generate_series(1, 1000) i")
			config := configure(t, uniqueName("huge"), lowMemory(source), d.destination, "flows: [{source: public.huge}, {source: public.huge, target: huge_history, stored_as_scd_type: 2}]")
			must(t, "backfill", "-c", config)
			server.Exec(t, source,
				fmt.Sprintf("begin; insert into huge select i, i %% 7, md5(i::text), now() from generate_series(1001, %d) i; update huge set n = n + 1 where id <= 2000; delete from huge where id <= 100; commit", rows),
				fmt.Sprintf("begin; insert into huge select i from generate_series(%d, %d) i; rollback", rows+1, rows+rows/10))
			began := time.Now()
			p := start(t, append([]string{"TAILRACE_SOURCE_STREAMING=" + onOrOff(d.streaming)}, asUsersRun...), "run", "-c", config, "--once")
			// Not the peak that wait4 reports: that counts the test's own memory between
			// fork and exec.
			peak := int64(0)
			for running := true; running; {
				peak = max(peak, peakMemory(p.cmd.Process.Pid))
				select {
				case <-p.done:
					running = false
				case <-time.After(20 * time.Millisecond):
				}
			}
			if code := p.wait(t, time.Second); code != 0 || peak == 0 {
				t.Fatalf("exit %d, peak memory %d\n%s", code, peak, tail(p.output.String()))
			}
			streamed := server.Query(t, source, "select coalesce(sum(stream_txns), 0) > 0 from pg_replication_slots s join pg_stat_replication_slots using (slot_name) where s.database = current_database()")
			if fmt.Sprint(streamed) != map[bool]string{false: "[f]", true: "[t]"}[d.streaming] {
				t.Errorf("was it streamed: %v", streamed)
			}
			t.Logf("%s, streaming %v: %d rows in one transaction: %.1f s, peak memory %d MiB", d.kind, d.streaming, rows, time.Since(began).Seconds(), peak)
			limit := int64(256)
			if d.kind == "duckdb" {
				// The engine's own limit, what it needs beside it, and what it keeps of an open
				// transaction outside of its limit: some 60 bytes a row.
				limit = 512 + 256 + int64(rows)*60>>20
			}
			if peak > limit {
				t.Errorf("peak memory %d MiB, the bound is %d", peak, limit)
			}
			if out := must(t, "verify", "-c", config); !strings.Contains(out, fmt.Sprintf("\n0 differences of %d rows", 2*(rows-100))) {
				t.Errorf("verify:\n%s", out)
			}
			// The history saw one step a key: the rows that were there before and changed
			// have two versions, the deleted one, new ones one.
			versions := strings.Count(must(t, "show", "-c", config, "huge_history", "--format", "csv"), "\r\n") - 1
			if want := 1000 + 900 + rows - 1000; versions != want {
				t.Errorf("%d versions, want %d", versions, want)
			}
		})
	}
}

// peakMemory is a process's high-water mark in MiB; 0 when it is gone.
func peakMemory(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return kib >> 10
}
