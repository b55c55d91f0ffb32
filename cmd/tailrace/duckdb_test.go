//go:build !noduckdb

package main

import (
	"database/sql"
	"testing"

	_ "github.com/duckdb/duckdb-go/v2"
)

// inDuckDB runs a statement on a DuckDB file that no pipeline has open, as a person
// would.
func inDuckDB(t testing.TB, path, statement string) {
	t.Helper()
	db, err := sql.Open("duckdb", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
