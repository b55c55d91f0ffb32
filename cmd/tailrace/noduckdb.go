//go:build noduckdb

package main

import "tailrace/sink"

func openDuckDB(*environment) (sink.Writer, error) { return nil, errNoDuckDB }
