package mysql

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"tailrace/internal/fault"
)

// logConn is the socket of a stream. Before it waits for the server, which means that
// everything received was handled, it says so; and it gives up when the server has said
// nothing for too long.
//
// The binlog library reads from it through a buffer. A read that filled the buffer means
// that more is there already: a backlog.
type logConn struct {
	net.Conn
	ctx     context.Context
	silence time.Duration
	idle    func(backlog bool) (wait time.Duration, err error) // called before each read; wait: be called again after that time at the latest
	filled  atomic.Bool                                        // the last read filled its buffer
	started atomic.Bool                                        // the stream has begun: before it, nobody is told
}

func (c *logConn) Read(p []byte) (int, error) {
	if !c.started.Load() {
		return c.Conn.Read(p)
	}
	until := time.Now().Add(c.silence)
	for {
		if err := c.ctx.Err(); err != nil {
			return 0, err
		}
		wait, err := c.idle(c.filled.Load())
		if err != nil {
			return 0, err
		}
		deadline := until
		if wait > 0 {
			if soon := time.Now().Add(wait); soon.Before(until) {
				deadline = soon
			}
		}
		if err := c.Conn.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		if err := c.ctx.Err(); err != nil { // after the deadline was set: the interrupt sets a later one
			return 0, err
		}
		n, err := c.Conn.Read(p)
		switch {
		case n > 0 || err == nil:
			c.filled.Store(n == len(p))
			return n, err
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case c.ctx.Err() != nil:
			return 0, c.ctx.Err()
		case !time.Now().Before(until):
			return 0, fault.Retry(nil, "the server has been silent for %v, not even a heartbeat came: the connection counts as dead", c.silence)
		}
		c.filled.Store(false)
	}
}
