package pipeline

import (
	"context"
	"slices"
	"sync"

	"tailrace/internal/change"
)

// origin says which of a session's sources a segment comes from. The position of the
// mark is always the first one's.
type origin uint8

const (
	fromSource origin = iota // the log; of a pipeline without one, the files
	fromBeside               // files beside a log
	nobody     origin = 255
)

// item is what the queue holds.
type item struct {
	*change.Segment
	from origin
}

// queue carries segments from the receiving goroutines to the applying one, bounded
// in bytes, for all of them together. It always takes one segment, however large, so
// a row larger than the bound still passes; that is the "plus one largest row" of
// promise I6.
//
// The pieces of a transaction follow each other directly: who has pushed a first one
// has the queue to himself up to the last, and others wait outside. So whatever lies
// in front of a piece can be applied without it, and the queue always moves. Who waits
// longest for room goes first: small segments of one source do not keep out a large
// one of the other.
type queue struct {
	mu     sync.Mutex
	items  []item
	bytes  int64
	limit  int64
	inside origin           // whose transaction is in pieces, or nobody
	line   []origin         // who waits, in order
	filled chan struct{}    // holds a token when there may be something to take
	freed  [2]chan struct{} // for each origin: holds a token when it may be its turn
}

func newQueue(limit int64) *queue {
	return &queue{limit: limit, inside: nobody, filled: make(chan struct{}, 1), freed: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}}
}

// push waits for its turn and for room.
func (q *queue) push(ctx context.Context, s *change.Segment, from origin) error {
	for {
		q.mu.Lock()
		if q.turn(from) && (q.bytes == 0 || q.bytes+int64(s.Bytes) <= q.limit) {
			q.items = append(q.items, item{s, from})
			q.bytes += int64(s.Bytes)
			q.inside = nobody
			if n := len(s.Txs); n > 0 && !s.Txs[n-1].Last {
				q.inside = from
			}
			q.leave(from)
			q.mu.Unlock()
			signal(q.filled)
			q.wake()
			return nil
		}
		if !slices.Contains(q.line, from) {
			q.line = append(q.line, from)
		}
		q.mu.Unlock()
		select {
		case <-q.freed[from]:
		case <-ctx.Done():
			q.mu.Lock()
			q.leave(from)
			q.mu.Unlock()
			q.wake()
			return ctx.Err()
		}
	}
}

// turn reports whether nobody else comes first; mu is held.
func (q *queue) turn(from origin) bool {
	if q.inside != nobody {
		return q.inside == from
	}
	return len(q.line) == 0 || q.line[0] == from
}

// leave takes from out of the line; mu is held.
func (q *queue) leave(from origin) {
	q.line = slices.DeleteFunc(q.line, func(o origin) bool { return o == from })
}

// take returns the next segment; false at once if there is none.
func (q *queue) take() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return item{}, false
	}
	s := q.items[0]
	q.items[0] = item{}
	q.items = q.items[1:]
	q.bytes -= int64(s.Bytes)
	q.wake()
	return s, true
}

// wake lets everybody who waits look again.
func (q *queue) wake() {
	for _, c := range q.freed {
		signal(c)
	}
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
