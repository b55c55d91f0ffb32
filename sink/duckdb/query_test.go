//go:build !noduckdb

package duckdb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// A statement that takes all the memory ends with a remedy; a batch that finds none
// left beside it is tried again.
func TestAStatementThatTakesTheMemoryDoesNotStopThePipeline(t *testing.T) {
	w := newWriter(t, file(t), func(c *duckdb.Config) { c.MemoryLimit, c.Threads = "60MB", 2 })
	tg := target("t", scd.Type1, "id int8 key", "v text")
	must(t, w.Create(ctx, tg))
	asking, stop := context.WithCancel(ctx)
	defer stop()
	asked := make(chan error, 1)
	go func() {
		var last error
		for asking.Err() == nil {
			err := w.Query(asking, "select length(string_agg(repeat('x', 500), '')) from range(2000000)", func([]*string) error { return nil })
			if asking.Err() == nil {
				last = err
			}
		}
		asked <- last
	}()
	began, id := time.Now(), 0
	var err error
	for err == nil && time.Since(began) < 3*time.Second {
		var r scd.Round
		for range 20_000 {
			r.Upserts = append(r.Upserts, row(id%60_000, strings.Repeat("y", 200)))
			id++
		}
		err = tryApply(w, tg, true, false, r)
	}
	if err != nil && fault.KindOf(err) != fault.Transient {
		t.Errorf("a batch beside the statement: %v", err)
	}
	t.Logf("%d rows, the batch: %v", id, err)
	time.Sleep(500 * time.Millisecond)
	stop()
	if err := <-asked; fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "ask for less") {
		t.Errorf("the statement: %v", err)
	}
}

// A reader's error ends the statement and leaves the Writer as it was.
func TestAQueryEndsWithItsReader(t *testing.T) {
	w := newWriter(t, file(t))
	gone := errors.New("gone")
	n := 0
	err := w.Query(ctx, "from range(1000000)", func([]*string) error {
		if n++; n == 5 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || n != 5 {
		t.Errorf("%d rows, %v", n, err)
	}
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = w.Query(limited, "select count(*) from range(3000000) x(i), range(3000000) y(j) where hash(i + j) = 1", func([]*string) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	var header []string
	must(t, w.Query(ctx, "select 1 as a, 2 as a, 3", func(cells []*string) error {
		for _, c := range cells {
			header = append(header, *c)
		}
		return nil
	}))
	if fmt.Sprint(header) != "[a a 3 1 2 3]" {
		t.Error(header)
	}
}

// Readers of the file make its owner wait and try again; they are no owner.
func TestAReaderIsWaitedFor(t *testing.T) {
	path := file(t)
	must(t, newWriter(t, path).Close(ctx))
	reader, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	if _, err := reader.State(ctx); err != nil {
		t.Fatal(err)
	}
	w, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	if err := w.Own(ctx, me, 0); fault.KindOf(err) != fault.Transient || errors.Is(err, fault.ErrOwned) {
		t.Errorf("beside a reader: %v", err)
	}
	must(t, reader.Close(ctx))
	must(t, w.Own(ctx, me, 0))
	must(t, w.Close(ctx))
}

// An onlooker reads what is committed, beside an open batch, and can write nothing.
func TestAnOnlookerReadsBesideAnOpenBatch(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int8 key", "v text")
	must(t, w.Create(ctx, tg))
	apply(t, w, tg, scd.Round{Upserts: []change.Row{row(1, "a")}})
	must(t, tryApply(w, tg, true, true, scd.Round{Upserts: []change.Row{row(2, "b")}}))

	o, err := w.Onlooker()
	must(t, err)
	rows := 0
	must(t, o.Show(ctx, sink.ShowQuery{Target: tg}, func([]*string) error { rows++; return nil }))
	if rows != 2 { // the header and the committed row
		t.Errorf("an onlooker saw %d lines", rows)
	}
	mark, err := o.State(ctx)
	must(t, err)
	if owned, err := w.State(ctx); err != nil || owned.Epoch != mark.Epoch || owned.Position != mark.Position {
		t.Errorf("the marks differ: %v and %v, %v", mark, owned, err)
	}
	if err := o.Save(ctx, mark); err == nil {
		t.Error("an onlooker wrote the mark")
	}
	if err := o.Create(ctx, target("u", scd.Type1, "id int8 key")); err == nil {
		t.Error("an onlooker made a table")
	}
	if err := o.Close(ctx); err != nil {
		t.Error(err)
	}

	must(t, tryApply(w, tg, false, false, scd.Round{Upserts: []change.Row{row(3, "c")}}))
	expect(t, dump(t, w, tg), "1|a", "2|b", "3|c")
}
