//go:build unix

package postgres

import "syscall"

// smallWindow bounds the receive window of a socket; it must be called before the
// connection is made, because the window's scale is agreed then.
func smallWindow(network, _ string, c syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveWindow)
	}); err != nil {
		return err
	}
	return failed
}
