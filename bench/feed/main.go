// Command feed measures change feeds in files: a million events over a hundred
// thousand keys, as JSON lines, into each destination, as type 1 and type 2, with a
// share of the events out of order. The clock runs from the program's start to its
// end; the result is compared with what the events mean.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tailrace/internal/dbtest/pgserver"
)

func main() {
	tailrace := flag.String("tailrace", "bin/tailrace", "the program to measure")
	events := flag.Int("events", 1_000_000, "how many events")
	keys := flag.Int("keys", 100_000, "over how many keys")
	files := flag.Int("files", 20, "in how many files")
	late := flag.String("late", "0,5,50", "percentages of events that are out of order")
	flag.Parse()
	if err := run(*tailrace, *late, *events, *keys, *files); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(tailrace, lates string, events, keys, files int) error {
	ctx := context.Background()
	program, err := filepath.Abs(tailrace)
	if err != nil {
		return err
	}
	server, err := pgserver.Start(ctx, pgserver.Options{Install: true, Settings: map[string]string{"shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off"}})
	if err != nil {
		return err
	}
	defer server.Close()
	fmt.Printf("%d events over %d keys in %d files.\n\n| late | destination | type | seconds | events/s | CPU s | peak RSS |\n|---|---|---|---|---|---|---|\n", events, keys, files)
	n := 0
	for _, share := range strings.Split(lates, ",") {
		var percent int
		if _, err := fmt.Sscan(share, &percent); err != nil {
			return err
		}
		folder, err := os.MkdirTemp("", "feed")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		if err := write(folder, events, keys, files, percent); err != nil {
			return err
		}
		for _, kind := range []string{"duckdb", "postgres"} {
			for scdType := 1; scdType <= 2; scdType++ {
				n++
				dsn := filepath.Join(folder, fmt.Sprintf("d%d.duckdb", n))
				if kind == "postgres" {
					name := fmt.Sprintf("feed%d", n)
					if out, err := exec.Command(filepath.Join(server.Binaries.Dir, "createdb"), "-h", server.Host, "-p", fmt.Sprint(server.Port), "-U", pgserver.Superuser, name).CombinedOutput(); err != nil {
						return fmt.Errorf("createdb: %w\n%s", err, out)
					}
					dsn = server.DSN(name)
				}
				if err := one(program, folder, kind, dsn, scdType, percent, events, keys); err != nil {
					return fmt.Errorf("%s, type %d, %d%% late: %w", kind, scdType, percent, err)
				}
			}
		}
	}
	return nil
}

func one(program, folder, kind, dsn string, scdType, percent, events, keys int) error {
	config := filepath.Join(folder, fmt.Sprintf("%s%d.yaml", kind, scdType))
	text := fmt.Sprintf(`pipeline: feed%d
source: {kind: files}
destination: {kind: %s, dsn: %q}
relations:
  feed: {path: "*.jsonl", format: jsonl, columns: {id: bigint, name: string, city: string, balance: bigint, op: string, seq: bigint}}
flows:
  - {source: feed, target: users, stored_as_scd_type: %d, keys: [id], sequence_by: seq, apply_as_deletes: "op = 'D'", except_column_list: [op, seq, _rescued_data]}
log_level: warn
`, scdType, kind, dsn, scdType)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	c := exec.Command(program, "run", "--once", "-c", config)
	began := time.Now()
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	seconds := time.Since(began).Seconds()
	usage := c.ProcessState.SysUsage().(*syscall.Rusage)
	shown, err := exec.Command(program, "show", "-c", config, "users", "--format", "csv").Output()
	if err != nil {
		return fmt.Errorf("show: %w", err)
	}
	// Every key's newest event sets the row: see write.
	rows := bytes.Count(shown, []byte("\n")) - 1
	want := keys
	if scdType == 2 {
		want = events
	}
	if rows != want {
		return fmt.Errorf("%d rows, expected %d", rows, want)
	}
	fmt.Printf("| %d %% | %s | %d | %.1f | %.0f k | %.1f | %d MiB |\n", percent, kind, scdType, seconds, float64(events)/seconds/1000,
		(c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), usage.Maxrss>>10)
	return nil
}

// write makes the files: every event is another version of its key.
func write(folder string, events, keys, files, percent int) error {
	r := rand.New(rand.NewPCG(1, uint64(percent)))
	order := make([]int, events)
	for i := range order {
		order[i] = i
	}
	for i := range order {
		if r.IntN(100) < percent {
			j := r.IntN(events)
			order[i], order[j] = order[j], order[i]
		}
	}
	each := (events + files - 1) / files
	for f := 0; f*each < events; f++ {
		out, err := os.Create(filepath.Join(folder, fmt.Sprintf("feed%04d.jsonl", f)))
		if err != nil {
			return err
		}
		w := bufio.NewWriterSize(out, 1<<20)
		for _, o := range order[f*each : min(events, (f+1)*each)] {
			key := o % keys * 7919 % keys
			fmt.Fprintf(w, "{\"id\": %d, \"name\": \"user number %d\", \"city\": \"city %d\", \"balance\": %d, \"op\": \"U\", \"seq\": %d}\n", key, key, o%977, o, o)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
	}
	return nil
}
