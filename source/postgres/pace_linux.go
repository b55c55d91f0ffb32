package postgres

import (
	"syscall"
	"time"
)

// canPace says that pacing was measured to help here.
const canPace = true

// smallWindow bounds the receive window of a socket that is about to connect.
func smallWindow(_, _ string, c syscall.RawConn) error {
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer)
	}); err != nil {
		return err
	}
	return failed
}

// nap sleeps exactly: the runtime's timers round a wait below a millisecond up to
// one when nothing else runs.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	syscall.Nanosleep(&ts, nil)
}
