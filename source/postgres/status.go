package postgres

import (
	"encoding/binary"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"tailrace/source/postgres/pgoutput"
)

const (
	// confirmGap gathers confirmations: at most five a second are sent for their own
	// sake, the first after a quiet moment at once. For each one that frees log the
	// walsender writes the slot to disk and waits for it (some 10 ms), and it decodes
	// nothing meanwhile.
	confirmGap = 200 * time.Millisecond
	// A status is due after a third of the server's patience, within these bounds.
	statusLeast, statusMost = 100 * time.Millisecond, 10 * time.Second
	// writePatience is how long a status of 39 bytes may take to leave.
	writePatience = 15 * time.Second
)

// status writes standby status updates: it is the only writer on the log's
// connection while that is read, and independent of the reader, so that the
// server hears from us while a destination makes the reader wait.
//
// Every update carries three positions, always all three, because the server takes
// a missing flush position for the write position and would forget log that is
// not durable here: write is what was received; flush and apply are what the
// destination holds durably, so the slot can never pass it.
type status struct {
	conn      net.Conn
	received  *atomic.Uint64
	confirmed *atomic.Uint64
	moved     <-chan struct{} // confirmed has moved
	asked     chan struct{}   // of one: the server wants an update now
	ping      atomic.Bool     // ask the server for a sign of life with the next
	every     time.Duration
}

// statusEvery is the interval for a server that gives up after timeout (0: never).
func statusEvery(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return statusMost
	}
	return min(max(timeout/3, statusLeast), statusMost)
}

// run sends updates until stop is closed or sending fails.
func (st *status) run(stop <-chan struct{}) error {
	timer := time.NewTimer(st.every)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-stop:
			return nil
		case <-st.asked:
		case <-timer.C:
		case <-st.moved:
			if wait := min(confirmGap, st.every) - time.Since(last); wait > 0 {
				select {
				case <-stop:
					return nil
				case <-st.asked:
				case <-time.After(wait):
				}
			}
		}
		if err := st.send(); err != nil {
			return err
		}
		last = time.Now()
		timer.Reset(st.every)
	}
}

// answer makes run send at once.
func (st *status) answer() {
	select {
	case st.asked <- struct{}{}:
	default:
	}
}

func (st *status) send() error {
	st.conn.SetWriteDeadline(time.Now().Add(writePatience))
	_, err := st.conn.Write(st.message())
	return err
}

func (st *status) message() []byte {
	confirmed := st.confirmed.Load()
	received := max(st.received.Load(), confirmed)
	m := make([]byte, 0, 39)
	m = append(m, 'd')
	m = binary.BigEndian.AppendUint32(m, 38)
	m = append(m, pglogrepl.StandbyStatusUpdateByteID)
	m = binary.BigEndian.AppendUint64(m, received)
	m = binary.BigEndian.AppendUint64(m, confirmed)
	m = binary.BigEndian.AppendUint64(m, confirmed)
	m = binary.BigEndian.AppendUint64(m, uint64(pgoutput.Micros(time.Now())))
	if st.ping.Swap(false) {
		return append(m, 1)
	}
	return append(m, 0)
}
