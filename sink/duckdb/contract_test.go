//go:build !noduckdb

package duckdb_test

import (
	"database/sql"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/sink"
	"tailrace/sink/duckdb"
	"tailrace/sink/sinktest"
)

// harness is a fresh file. Statements of the suite run inside the Writer that
// has it open, because no second one may.
type harness struct {
	path    string
	writers []*duckdb.Writer
}

func TestContract(t *testing.T) {
	sinktest.Run(t, func(t testing.TB) sinktest.Harness { return &harness{path: file(t)} })
}

func TestContractOfRewindPoints(t *testing.T) {
	sinktest.RunPoints(t, func(t testing.TB) sinktest.PointHarness { return &harness{path: file(t)} })
}

func (h *harness) Open(t testing.TB) sink.Writer { return h.OpenAs(t, "p") }

// OpenAs gives the engine one thread: batches of a few rows are one piece of work, for
// which a second thread only waits, spinning. Tests of many rows run with more.
func (h *harness) OpenAs(t testing.TB, pipeline string) sink.Writer {
	w, err := duckdb.New(duckdb.Config{Path: h.path, Pipeline: pipeline, Threads: 1})
	must(t, err)
	h.writers = append(h.writers, w)
	return w
}

func (h *harness) Schema() string { return "main" }

func (h *harness) Exec(t testing.TB, sql string) {
	t.Helper()
	h.Query(t, sql)
}

func (h *harness) Query(t testing.TB, statement string) (out [][]*string) {
	t.Helper()
	read := func(cells []*string) error {
		out = append(out, append([]*string(nil), cells...))
		return nil
	}
	for _, w := range h.writers {
		if open, err := duckdb.Peek(w, ctx, statement, read); open {
			if err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			return out
		}
	}
	db, err := sql.Open("duckdb", h.path) // nobody has it open
	must(t, err)
	defer db.Close()
	rows, err := db.Query(statement)
	must(t, err)
	defer rows.Close()
	cols, err := rows.Columns()
	must(t, err)
	for rows.Next() {
		line, to := make([]*string, len(cols)), make([]any, len(cols))
		for i := range line {
			to[i] = &line[i]
		}
		must(t, rows.Scan(to...))
		out = append(out, line)
	}
	must(t, rows.Err())
	return out
}

func (h *harness) Micros(expr string) string { return "epoch_us(" + expr + ")" }

func (h *harness) Expire(testing.TB) {}

func (h *harness) Kill(testing.TB, sink.Writer) {}

func (h *harness) Has() sinktest.Features {
	return sinktest.Features{Refuses: func(t change.Type, text string) bool {
		switch t.Kind {
		case change.Numeric:
			return t.Precision > 0 && text == "NaN"
		case change.Timestamp, change.TimestampTZ:
			return strings.HasPrefix(text, "294276-")
		}
		return false
	}}
}
