//go:build noduckdb

package main

import "testing"

func inDuckDB(t testing.TB, _, _ string) { t.Skip("this build has no DuckDB") }

func queryDuckDB(t testing.TB, _, _ string) [][]string {
	t.Skip("this build has no DuckDB")
	return nil
}

func execDuckDB(t testing.TB, _ string, _ ...string) { t.Fatal("this build has no DuckDB") }
