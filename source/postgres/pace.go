package postgres

import "time"

const (
	// behind is how old a transaction must be when the server sends it (by the
	// server's own clock) to count as backlog. A live transaction is sent within a
	// millisecond of its commit and never waits here.
	behind = 20 * time.Millisecond

	pauseLeast = 100 * time.Microsecond
	pauseMost  = 4 * time.Millisecond
)

// pace decides how long to wait before the next read.
//
// The server makes one send() call for every message. A reader that keeps up makes
// each of them a trip through the network stack and a wake-up on both sides,
// several times the cost of decoding the row. If the reader lets the receive
// window fill instead, messages wait in the server's socket and leave together.
// So while there is a backlog, and only then, the reader pauses before it reads,
// by feedback: a read that finds little makes the pause longer, one that finds
// the window full makes it shorter, so that the server is never starved for long.
// The window is made small (receiveWindow) before connecting: a large one lets
// the kernel queue thousands of tiny segments, which it then spends its time
// merging.
type pace struct {
	pause  time.Duration
	window int // bytes that count as a full window
}

// next takes what the last read found and how old the newest transaction in it
// was when sent, and returns the pause before the next read.
func (p *pace) next(found int, age time.Duration) time.Duration {
	if age < behind {
		p.pause = 0
		return 0
	}
	switch {
	case p.pause == 0:
		p.pause = pauseLeast
	case found < p.window/2:
		p.pause = min(p.pause+p.pause/4+20*time.Microsecond, pauseMost)
	case found >= p.window-p.window/8:
		p.pause = max(p.pause-p.pause/8, pauseLeast)
	}
	return p.pause
}
