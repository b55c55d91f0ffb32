package pipeline

import (
	"context"
	"sync"

	"tailrace/internal/change"
)

// queue carries segments from the receiving to the applying goroutine, bounded in
// bytes. It always takes one segment, however large, so a row larger than the
// bound still passes; that is the "plus one largest row" of promise I6.
type queue struct {
	mu     sync.Mutex
	items  []*change.Segment
	bytes  int64
	limit  int64
	filled chan struct{} // holds a token when there may be something to take
	freed  chan struct{} // holds a token when there may be room
}

func newQueue(limit int64) *queue {
	return &queue{limit: limit, filled: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

// push waits for room.
func (q *queue) push(ctx context.Context, s *change.Segment) error {
	for {
		q.mu.Lock()
		if q.bytes == 0 || q.bytes+int64(s.Bytes) <= q.limit {
			q.items = append(q.items, s)
			q.bytes += int64(s.Bytes)
			q.mu.Unlock()
			signal(q.filled)
			return nil
		}
		q.mu.Unlock()
		select {
		case <-q.freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take returns the next segment, or nil at once if there is none.
func (q *queue) take() *change.Segment {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	s := q.items[0]
	q.items[0] = nil
	q.items = q.items[1:]
	q.bytes -= int64(s.Bytes)
	signal(q.freed)
	return s
}

// size returns the bytes that wait.
func (q *queue) size() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
