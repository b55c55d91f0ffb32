package pipeline

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tailrace/internal/change"
)

// Two sources push whole and large transactions through a small queue: all arrives,
// in each source's order, the pieces of one transaction stand together, and what waits
// is never more than the bound or one segment.
func TestPiecesOfTwoSourcesDoNotMingle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const limit, each = 100, 2000
	q := newQueue(limit)
	var pushing sync.WaitGroup
	for from := range []origin{fromSource, fromBeside} {
		pushing.Add(1)
		go func() {
			defer pushing.Done()
			rnd := rand.New(rand.NewPCG(seed, uint64(from)))
			for n := uint32(0); n < each; {
				pieces := max(1, rnd.IntN(8)-4)
				for i := range pieces {
					n++
					s := &change.Segment{Bytes: 1 + rnd.IntN(2*limit), Txs: []change.Tx{{XID: n, First: i == 0, Last: i == pieces-1}}}
					if err := q.push(ctx, s, origin(from)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() { pushing.Wait(); close(done) }()
	var next [2]uint32
	inside := nobody
	look := func() bool {
		q.mu.Lock()
		if q.bytes > limit && len(q.items) > 1 {
			t.Errorf("%d bytes wait in %d segments", q.bytes, len(q.items))
		}
		q.mu.Unlock()
		s, ok := q.take()
		if !ok {
			return false
		}
		tx := s.Txs[0]
		if next[s.from]++; tx.XID != next[s.from] {
			t.Fatalf("source %d: segment %d came as %d", s.from, tx.XID, next[s.from])
		}
		if inside != nobody && inside != s.from || tx.First != (inside == nobody) {
			t.Fatalf("segment %d of source %d came inside a transaction of %d", tx.XID, s.from, inside)
		}
		if inside = s.from; tx.Last {
			inside = nobody
		}
		return true
	}
	for {
		if look() {
			continue
		}
		select {
		case <-q.filled:
		case <-done:
			for look() {
			}
			if next[0] < each || next[1] < each {
				t.Fatalf("%v segments arrived", next)
			}
			return
		}
	}
}

// A segment that needs the whole queue is not kept out by small ones that fit.
func TestALargeSegmentIsNotKeptOut(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q := newQueue(10)
	whole := func(bytes int) *change.Segment {
		return &change.Segment{Bytes: bytes, Txs: []change.Tx{{First: true, Last: true}}}
	}
	large := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if q.push(ctx, whole(1), fromSource) != nil {
				return
			}
		}
	}()
	go func() { large <- q.push(ctx, whole(10), fromBeside) }()
	for {
		select {
		case err := <-large:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
			q.take()
			time.Sleep(time.Microsecond)
		}
	}
}
