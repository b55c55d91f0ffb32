//go:build !noduckdb

package main

import (
	"fmt"

	"tailrace/internal/config"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

func openDuckDB(e *environment) (sink.Writer, error) {
	d := e.Destination.DuckDB
	return duckdb.New(duckdb.Config{
		Path: e.Destination.DSN.Reveal(), Pipeline: e.Pipeline,
		MemoryLimit: megabytes(d.MemoryLimit), Threads: d.Threads, PrimaryKey: d.PrimaryKey,
		CheckpointThreshold: megabytes(d.CheckpointThreshold), TempDir: d.TempDirectory, Logger: e.log,
	})
}

// megabytes spells a size as the engine does: MiB there are 1024 KiB.
func megabytes(b config.Bytes) string { return fmt.Sprintf("%dKiB", int64(b)>>10) }
