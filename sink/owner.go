package sink

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"tailrace/checkpoint"
)

// ThisProcess identifies the running process as an owner.
func ThisProcess() (checkpoint.Owner, error) {
	host, err := os.Hostname()
	if err != nil {
		return checkpoint.Owner{}, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return checkpoint.Owner{}, err
	}
	o := checkpoint.Owner{Host: host, BootID: BootID(), PID: os.Getpid(), Instance: hex.EncodeToString(id[:])}
	if o.Started = ProcessStart(o.PID); o.Started == 0 {
		o.Started = time.Now().Unix()
	}
	return o, nil
}

// BootID names this boot of the host; empty where the system has none (then only
// the heartbeat tells whether an owner lives).
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ProcessStart returns when the process with this pid started, in clock ticks
// since boot; 0 if there is no such process, or no way to know.
func ProcessStart(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The command name is in parentheses and may hold anything; fields follow the
	// last one. starttime is field 22 of proc(5), the 20th after the name.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	n, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Dead reports for certain that the owner's process is gone: it was on this host and boot,
// and no process with its pid and start time lives here except, perhaps, the one
// that asks (a restarted container is pid 1 again, with another instance).
func Dead(o, me checkpoint.Owner) bool {
	if o.Host != me.Host || o.BootID == "" || o.BootID != me.BootID {
		return false
	}
	if o.PID == me.PID {
		return o.Instance != me.Instance
	}
	return ProcessStart(o.PID) != o.Started
}
