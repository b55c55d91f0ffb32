//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// canPace: the windows of other systems are not known well enough to pace by.
const canPace = false

func smallWindow(string, string, syscall.RawConn) error { return nil }

func nap(d time.Duration) { time.Sleep(d) }
