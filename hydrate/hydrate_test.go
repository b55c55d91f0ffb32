package hydrate_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tailrace/hydrate"
)

func writes(s string, rows int64) func(context.Context, io.Writer) (int64, error) {
	return func(_ context.Context, w io.Writer) (int64, error) {
		_, err := io.WriteString(w, s)
		return rows, err
	}
}

func TestEveryTableArrivesWhole(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	var order []string
	var tables []hydrate.Table
	big := strings.Repeat("x", 1<<20)
	for name, size := range map[string]int64{"small": 1, "big": 100, "middle": 50} {
		tables = append(tables, hydrate.Table{Name: name, Bytes: size, Read: writes(name+big, 7),
			Load: func(_ context.Context, r io.Reader) (int64, error) {
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				b, err := io.ReadAll(r)
				mu.Lock()
				got[name] = string(b)
				mu.Unlock()
				return 7, err
			}})
	}
	var p hydrate.Silent
	if err := hydrate.Run(t.Context(), tables, 1, &p); err != nil {
		t.Fatal(err)
	}
	for _, tb := range tables {
		if got[tb.Name] != tb.Name+big {
			t.Errorf("%s: %d bytes arrived", tb.Name, len(got[tb.Name]))
		}
	}
	if strings.Join(order, " ") != "big middle small" {
		t.Errorf("order %v, want the biggest first", order)
	}
	if p.Rows.Load() != 21 {
		t.Errorf("%d rows reported", p.Rows.Load())
	}
}

func TestAReaderThatFailsIsNeverLoadedAsComplete(t *testing.T) {
	broken := errors.New("connection lost")
	var sawEOF atomic.Bool
	err := hydrate.Run(t.Context(), []hydrate.Table{{Name: "t",
		Read: func(_ context.Context, w io.Writer) (int64, error) {
			io.WriteString(w, "half a row")
			return 0, broken
		},
		Load: func(_ context.Context, r io.Reader) (int64, error) {
			_, err := io.Copy(io.Discard, r)
			sawEOF.Store(err == nil)
			return 0, err
		}}}, 4, &hydrate.Silent{})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "t") {
		t.Fatalf("error %v", err)
	}
	if sawEOF.Load() {
		t.Fatal("the loader saw a clean end")
	}
}

func TestALoaderThatFailsStopsItsReaderAndTheOthers(t *testing.T) {
	full := errors.New("disk full")
	endless := func(ctx context.Context, w io.Writer) (int64, error) {
		b := bytes.Repeat([]byte("x"), 1<<16)
		for {
			if _, err := w.Write(b); err != nil {
				return 0, err
			}
		}
	}
	drain := func(ctx context.Context, r io.Reader) (int64, error) {
		b := make([]byte, 1<<16)
		for ctx.Err() == nil {
			if _, err := r.Read(b); err != nil {
				return 0, err
			}
		}
		return 0, ctx.Err()
	}
	err := hydrate.Run(t.Context(), []hydrate.Table{
		{Name: "a", Bytes: 2, Read: endless, Load: drain},
		{Name: "b", Bytes: 1, Read: endless, Load: func(_ context.Context, r io.Reader) (int64, error) {
			r.Read(make([]byte, 10))
			return 0, full
		}},
	}, 2, &hydrate.Silent{})
	if !errors.Is(err, full) {
		t.Fatalf("error %v", err)
	}
}

func TestRowCountsMustAgree(t *testing.T) {
	err := hydrate.Run(t.Context(), []hydrate.Table{{Name: "t", Read: writes("x", 2), Load: func(_ context.Context, r io.Reader) (int64, error) {
		io.Copy(io.Discard, r)
		return 1, nil
	}}}, 1, &hydrate.Silent{})
	if err == nil || !strings.Contains(err.Error(), "2 rows") {
		t.Fatalf("error %v", err)
	}
}

// What keeps the others waiting longest begins first: a table that cannot be cut
// before the parts of a larger one, and these before what is shorter.
func TestPartsBeginInTheOrderOfWhatWaitsForThem(t *testing.T) {
	var mu sync.Mutex
	var order []string
	load := func(name string) func(context.Context, io.Reader) (int64, error) {
		return func(_ context.Context, r io.Reader) (int64, error) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			_, err := io.Copy(io.Discard, r)
			return 3, err
		}
	}
	cut := hydrate.Table{Name: "cut", Bytes: 800, Finish: func(context.Context) error {
		order = append(order, "cut ends")
		return nil
	}}
	for _, part := range []string{"cut 1", "cut 2"} {
		cut.Parts = append(cut.Parts, hydrate.Part{Bytes: 400, Read: writes("x", 3), Load: load(part)})
	}
	tables := []hydrate.Table{
		{Name: "small", Bytes: 450, Read: writes("x", 3), Load: load("small")},
		cut,
		{Name: "whole", Bytes: 600, Read: writes("x", 3), Load: load("whole")},
	}
	var p hydrate.Silent
	if err := hydrate.Run(t.Context(), tables, 1, &p); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ", "); got != "whole, cut 1, cut 2, cut ends, small" {
		t.Errorf("order: %s", got)
	}
	if p.Rows.Load() != 12 {
		t.Errorf("%d rows reported", p.Rows.Load())
	}
}

func TestATableWhosePartFailsNeverEnds(t *testing.T) {
	full := errors.New("disk full")
	part := func(err error) hydrate.Part {
		return hydrate.Part{Read: writes("x", 1), Load: func(_ context.Context, r io.Reader) (int64, error) {
			io.Copy(io.Discard, r)
			return 1, err
		}}
	}
	err := hydrate.Run(t.Context(), []hydrate.Table{{Name: "t", Parts: []hydrate.Part{part(nil), part(full), part(nil)},
		Finish: func(context.Context) error { t.Error("it ended"); return nil }}}, 1, &hydrate.Silent{})
	if !errors.Is(err, full) {
		t.Fatalf("error %v", err)
	}
}
