package sink

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"tailrace/checkpoint"
)

// Runs reports whether o's process still runs on this machine and is another one
// than me. It is asked only where o's host and boot are me's. A process of the
// same number and start time as me is me, whatever its instance says: a restarted
// container begins again with process 1.
func Runs(o, me checkpoint.Owner) bool {
	if o.PID <= 0 || (o.PID == me.PID && o.Started == me.Started) {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(o.PID) + "/stat")
	if err == nil {
		return startTicks(stat) == o.Started && !zombie(stat)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return false // a Linux system, and the process is not listed
	}
	err = syscall.Kill(o.PID, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// startTicks reads field 22 of /proc/PID/stat (proc(5)); the command's name,
// field 2, may hold anything, so fields are counted from its closing bracket.
func startTicks(stat []byte) int64 {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[19], 10, 64)
	return n
}

func zombie(stat []byte) bool {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 0 && fields[0] == "Z"
}
