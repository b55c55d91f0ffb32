package postgres

import (
	"net"
	"time"
)

const (
	// behind is how old a transaction must be when the server sends it (by the
	// server's own clock) to count as backlog. A live transaction is sent within a
	// millisecond of its commit and never waits here.
	behind = 20 * time.Millisecond

	// receiveBuffer is SO_RCVBUF of the log's connection where it is paced; the
	// kernel gives a window of once to twice that.
	receiveBuffer = 64 << 10

	// nearby is the longest round trip that such a window does not slow down: it
	// allows 32 to 64 MB/s at this distance. Farther servers keep the system's
	// window and are not paced; the distance gathers messages by itself.
	nearby = 2 * time.Millisecond

	pauseLeast = 50 * time.Microsecond
	pauseMost  = 4 * time.Millisecond
)

// pace decides how long to wait before the next read.
//
// The server makes one send() call for every message. A reader that keeps up makes
// each of them a trip through the network stack and a wake-up on both sides,
// several times the cost of decoding the row. If the receive window is closed,
// send() only appends to the server's queue, and the window's next opening takes
// what has gathered there in a few large segments. So while there is a backlog,
// and only then, the reader pauses before it reads, long enough that it always
// finds the window full: a read that finds less makes the pause longer, one that
// finds it full a little shorter, so that the server's queue does not run over
// and it never has to wait.
//
// The window must be small, or it would take the server longer to fill than we may
// pause, and until then the kernel queues thousands of tiny segments, which it
// spends its time merging. Its size is agreed when connecting.
type pace struct {
	pause time.Duration
	full  int // what a read finds when the window is full, as learned
}

// next takes what the last read found and how far behind the log is, and returns
// the pause before the next read.
func (p *pace) next(found int, age time.Duration) time.Duration {
	if age < behind {
		p.pause = 0
		return 0
	}
	p.full = max(receiveBuffer, found, p.full-p.full/256)
	if found < p.full-p.full/4 {
		p.pause = min(p.pause+p.pause/8+10*time.Microsecond, pauseMost)
	} else {
		p.pause = max(p.pause-p.pause/32, pauseLeast)
	}
	return p.pause
}

// pacedConn is the socket of the log's connection, beneath TLS where that is used.
// Reads are for one goroutine.
type pacedConn struct {
	net.Conn
	pace  pace
	found int
	age   time.Duration // of the log, set by the reader; 0: it is live

	held []byte // read from the socket, not asked for yet: TLS reads record by record
	room []byte
}

func (c *pacedConn) Read(b []byte) (n int, err error) {
	if len(c.held) > 0 {
		n = copy(b, c.held)
		c.held = c.held[n:]
		return n, nil
	}
	if pause := c.pace.next(c.found, c.age); pause > 0 {
		nap(pause)
	}
	if len(b) >= 2*receiveBuffer {
		c.found, err = c.Conn.Read(b)
		return c.found, err
	}
	if c.room == nil {
		c.room = make([]byte, 2*receiveBuffer)
	}
	c.found, err = c.Conn.Read(c.room)
	n = copy(b, c.room[:c.found])
	c.held = c.room[n:c.found]
	return n, err
}
