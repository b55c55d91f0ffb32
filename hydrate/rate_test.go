package hydrate_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"tailrace/hydrate"
)

// Two streams together keep the rate, whatever the size of their writes.
func TestRateHoldsAllStreamsTogether(t *testing.T) {
	const perSecond, each = 8 << 20, 2 << 20
	rate := hydrate.NewRate(perSecond)
	began := time.Now()
	var streams sync.WaitGroup
	for _, size := range []int{100, 512 << 10} {
		streams.Go(func() {
			w := rate.Writer(t.Context(), io.Discard)
			for sent := 0; sent < each; sent += size {
				if _, err := w.Write(make([]byte, size)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	streams.Wait()
	if took := time.Since(began); took < 400*time.Millisecond || took > 5*time.Second {
		t.Errorf("4 MiB at 8 MiB/s took %s", took)
	}
}

func TestRateEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	w := hydrate.NewRate(1).Writer(ctx, io.Discard)
	if _, err := w.Write(make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	if w := hydrate.NewRate(0).Writer(ctx, io.Discard); w != io.Discard {
		t.Error("no limit is not the writer itself")
	}
}
