package sink

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"tailrace/internal/fault"
)

const (
	// LineSilence is how long nothing may come or go on the socket of a running batch
	// before the server is asked what it is doing. What a slow network still carries
	// of bytes that were sent has arrived by then.
	LineSilence = 15 * time.Second
	// stalledLooks is how often in a row, at each heartbeat, the server must say that
	// it waits for us while we wait for it.
	stalledLooks = 3
	// lockedEvery is how often a batch that waits for a lock is told of.
	lockedEvery = time.Minute
)

// Dialer bounds connecting, and notices a dead peer of an idle connection after half a
// minute.
func Dialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}
}

// Line is a session's socket that knows when bytes last came or went.
type Line struct {
	net.Conn
	Backend int64        // the session's number at the server, once it is known
	moved   atomic.Int64 // time in ns since 1970
}

// NewLine makes one of a socket.
func NewLine(conn net.Conn) *Line {
	l := &Line{Conn: conn}
	l.move()
	return l
}

func (l *Line) move() { l.moved.Store(time.Now().UnixNano()) }

func (l *Line) silence() time.Duration { return time.Since(time.Unix(0, l.moved.Load())) }

func (l *Line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.move()
	return n, err
}

func (l *Line) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.move()
	return n, err
}

// Stall notices that a batch can never end.
//
// A batch may rightly take long: it waits for a lock, or for a disk. So it has no
// deadline. But where a connection has been forgotten by something between the two
// ends (a firewall, a balancer) both wait for ever, and no keepalive tells if that
// something answers them itself. Only the server knows the difference: it is working
// on our statement, or it waits for us, or it has no such session. The heartbeat asks
// it, on the other session, when the batch's socket has been silent for a while.
type Stall struct {
	mu      sync.Mutex
	running bool  // a batch, or a reading on its session
	line    *Line // of its session; nil: none is running, or it is connecting
	looks   int   // in a row that found it waiting for us
	told    time.Time
}

// Begin says that a batch is running from now on; its session's line is nil if it has
// still to be opened.
func (st *Stall) Begin(l *Line) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if l != nil {
		l.move() // silence before the batch says nothing
	}
	st.running, st.line, st.looks, st.told = true, l, 0, time.Now()
}

// Connected gives the line of the session that a batch has opened.
func (st *Stall) Connected(l *Line) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.running {
		st.line = l
	}
}

// End says that the batch has ended.
func (st *Stall) End() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.running, st.line = false, nil
}

// Doing is what a server says of a session.
type Doing struct {
	Waits  bool   // for its client; or there is no such session
	Holder string // who keeps it from a lock, where the server tells
}

// Attend looks after a running batch: ask asks the server, on another session, what the
// session of a number is doing. It returns a transient error if the batch's session
// cannot end any more.
func (st *Stall) Attend(log *slog.Logger, ask func(backend int64) (Doing, error)) error {
	st.mu.Lock()
	line := st.line
	st.mu.Unlock()
	if line == nil {
		return nil
	}
	silence := line.silence()
	if silence < LineSilence {
		return nil
	}
	doing, err := ask(line.Backend)
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.line != line || line.silence() < LineSilence {
		return nil // it has ended or gone on meanwhile
	}
	switch {
	case doing.Waits:
		if st.looks++; st.looks >= stalledLooks {
			return fault.Retry(nil, "the destination has been silent for %s and waits for us: the connection of the batch counts as dead", silence.Round(time.Second))
		}
		return nil
	case doing.Holder != "" && time.Since(st.told) >= lockedEvery:
		st.told = time.Now()
		log.Warn("a batch waits for a lock in the destination", "for", silence.Round(time.Second).String(), "held_by_pid", doing.Holder)
	}
	st.looks = 0
	return nil
}
