package postgres

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/fault"
)

const (
	// connectPatience is for a server that swallows packets, if the dsn says nothing.
	connectPatience = 15 * time.Second
	// sidePatience is for one small statement beside the batches. The heartbeat is
	// stale after this time: who has waited so long may have been succeeded already.
	sidePatience = staleAfter
	// amendPatience is for a change of the bookkeeping that may touch millions of rows:
	// events set aside, files taken.
	amendPatience = 2 * time.Minute
	// lineSilence is how long nothing may come or go on the socket of a running batch
	// before the server is asked what it is doing. What a slow network still carries
	// of bytes that were sent has arrived by then.
	lineSilence = 15 * time.Second
	// stalledLooks is how often in a row, at each heartbeat, the server must say that
	// it waits for us while we wait for it.
	stalledLooks = 3
	// lockedEvery is how often a batch that waits for a lock is told of.
	lockedEvery = time.Minute
)

// line is a socket that knows when bytes last came or went.
type line struct {
	net.Conn
	moved atomic.Int64 // time in ns since 1970
}

func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.moved.Store(time.Now().UnixNano())
	return n, err
}

func (l *line) Write(b []byte) (int, error) {
	n, err := l.Conn.Write(b)
	l.moved.Store(time.Now().UnixNano())
	return n, err
}

// dialed makes a dialer that takes down the session's socket.
func (s *session) dialed(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.line = &line{Conn: conn}
		s.line.moved.Store(time.Now().UnixNano())
		return s.line, nil
	}
}

// patiently bounds connecting, and notices a dead peer of an idle connection after half
// a minute.
func patiently(conf *pgconn.Config) {
	if conf.ConnectTimeout == 0 {
		conf.ConnectTimeout = connectPatience
	}
	dialer := &net.Dialer{Timeout: conf.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}
	conf.DialFunc = dialer.DialContext
}

// stall notices that a batch can never end.
//
// A batch may rightly take long: it waits for a lock, or for a disk. So it has no
// deadline. But where a connection has been forgotten by something between the two
// ends (a firewall, a balancer) both wait for ever, and no keepalive tells if that
// something answers them itself. Only the server knows the difference: it is working
// on our statement, or it waits for us, or it has no such session. The heartbeat asks
// it, on the other session, when the batch's socket has been silent for a while.
type stall struct {
	mu      sync.Mutex
	running bool     // a batch, or a reading on its session
	session *session // its session; nil: none is running, or it is connecting
	looks   int      // in a row that found it waiting for us
	told    time.Time
}

// begin says that a batch is running from now on, on a session that it may still have
// to open.
func (st *stall) begin(s *session) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if s != nil && s.line != nil {
		s.line.moved.Store(time.Now().UnixNano()) // silence before the batch says nothing
	}
	st.running, st.session, st.looks, st.told = true, s, 0, time.Now()
}

// connected gives the session that a batch has opened.
func (st *stall) connected(s *session) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.running {
		st.session = s
	}
}

func (st *stall) end() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.running, st.session = false, nil
}

// stallSQL says of a session: whether it waits for its client, and who keeps it from a
// lock.
const stallSQL = `SELECT state LIKE 'idle%' OR wait_event_type = 'Client', array_to_string(pg_blocking_pids(pid), ', ')
FROM pg_stat_activity WHERE pid = $1::int AND datname = current_database() AND right(application_name, 9) = ' ' || $2`

// attend looks after a running batch; s is another session. It returns a transient
// error if the batch's session cannot end any more.
func (w *Writer) attend(ctx context.Context, s *session) error {
	st := &w.stall
	st.mu.Lock()
	batch := st.session
	st.mu.Unlock()
	if batch == nil || batch.line == nil {
		return nil
	}
	silence := time.Since(time.Unix(0, batch.line.moved.Load()))
	if silence < lineSilence {
		return nil
	}
	rows, err := s.query(ctx, stallSQL, batch.conn.PID(), w.id)
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.session != batch || time.Since(time.Unix(0, batch.line.moved.Load())) < lineSilence {
		return nil // it has ended or gone on meanwhile
	}
	switch {
	case len(rows) == 0 || str(rows[0][0]) == "t":
		if st.looks++; st.looks >= stalledLooks {
			return fault.Retry(nil, "the destination has been silent for %s and waits for us: the connection of the batch counts as dead", silence.Round(time.Second))
		}
		return nil
	case str(rows[0][1]) != "" && time.Since(st.told) >= lockedEvery:
		st.told = time.Now()
		w.cfg.Logger.Warn("a batch waits for a lock in the destination", "for", silence.Round(time.Second).String(), "held_by_pid", str(rows[0][1]))
	}
	st.looks = 0
	return nil
}
