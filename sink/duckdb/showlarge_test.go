//go:build !noduckdb

package duckdb_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// A table larger than the engine's memory is printed in order, whole.
func TestShowOfATableLargerThanTheMemory(t *testing.T) {
	w := newWriter(t, filepath.Join(t.TempDir(), "d.duckdb"), func(c *duckdb.Config) { c.MemoryLimit = "96MB" })
	tg := target("large", scd.Type1, "id int8 key", "body text")
	must(t, w.Create(ctx, tg))
	const rows = 24_000
	for from := 0; from < rows; from += 2000 {
		var r scd.Round
		for i := range 2000 {
			n := (from + i) * 7919 % rows
			r.Inserts = append(r.Inserts, row(n, strconv.Itoa(n)+strings.Repeat(strconv.Itoa(n*n+1), 1500)))
		}
		apply(t, w, tg, r)
	}
	next := -1
	must(t, w.Show(ctx, sink.ShowQuery{Target: tg}, func(cells []*string) error {
		if next >= 0 && (*cells[0] != strconv.Itoa(next) || !strings.HasPrefix(*cells[1], strconv.Itoa(next)+strconv.Itoa(next*next+1))) {
			t.Fatalf("row %d is of key %s", next, *cells[0])
		}
		next++
		return nil
	}))
	if next != rows {
		t.Fatalf("%d rows of %d", next, rows)
	}
}
