// Package duckdb writes to a DuckDB file that lives inside this process: the
// default destination, which needs no server.
//
// With the build tag noduckdb the package is empty and the program needs no C
// library.
package duckdb
