//go:build killpoints

package fault

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

var kill struct {
	sync.Mutex
	at   string
	left int
}

func init() {
	at, n, counted := strings.Cut(os.Getenv("TAILRACE_KILL_AT"), ":")
	kill.at, kill.left = at, 1
	if counted {
		kill.left, _ = strconv.Atoi(n)
	}
}

// KillPoint sends SIGKILL to this process when it reaches the point named in
// TAILRACE_KILL_AT (name, or name:n for the nth time).
func KillPoint(name string) {
	if kill.at != name {
		return
	}
	kill.Lock()
	defer kill.Unlock()
	if kill.left--; kill.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
