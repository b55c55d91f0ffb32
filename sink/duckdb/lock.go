//go:build !noduckdb

package duckdb

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
)

// lockFile is the file NAME.lock beside the database. The owner holds an
// exclusive flock on it for life, so a killed process frees it at once and no
// heartbeat has to be waited for; a reader holds a shared one while it reads.
// The file names the owner for people. It is removed with the lock held, and
// whoever gets the lock checks that the file is still the one at that path.
//
// The engine's own lock alone does not do: it belongs to the process, so two
// instances on one file in one process would destroy each other's. Inside the
// process a table of what is open therefore comes first.
type lockFile struct {
	path  string
	file  *os.File // nil: a reader where no lock file is
	owner bool
}

// openHere counts the readers of each lock path in this process; an owner counts
// as owned.
var openHere = struct {
	sync.Mutex
	readers map[string]int
}{readers: map[string]int{}}

const owned = -1

// enter registers an owner or one more reader of the lock path.
func enter(path string, owner bool) error {
	openHere.Lock()
	defer openHere.Unlock()
	n := openHere.readers[path]
	switch {
	case n == owned, owner && n > 0:
		return errHeld
	case owner:
		openHere.readers[path] = owned
	default:
		openHere.readers[path] = n + 1
	}
	return nil
}

func leave(path string, owner bool) {
	openHere.Lock()
	defer openHere.Unlock()
	if n := openHere.readers[path] - 1; !owner && n > 0 {
		openHere.readers[path] = n
		return
	}
	delete(openHere.readers, path)
}

// errHeld: somebody else holds the lock in a way that excludes ours.
var errHeld = errors.New("lock is held")

// acquireLock takes the owner's lock without waiting, or gives errHeld.
func acquireLock(path string) (*lockFile, error) {
	if err := enter(path, true); err != nil {
		return nil, err
	}
	l := &lockFile{path: path, owner: true}
	for {
		var err error
		if l.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644); err == nil {
			err = l.flock(syscall.LOCK_EX)
		}
		if err != nil {
			l.drop()
			return nil, err
		}
		if l.present() {
			return l, nil
		}
		l.file.Close() // the owner before us removed it between open and flock
	}
}

// shareLock takes the reader's lock, or gives errHeld. Where there is no lock
// file a reader creates none.
func shareLock(path string) (*lockFile, error) {
	if err := enter(path, false); err != nil {
		return nil, err
	}
	l := &lockFile{path: path}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		l.file = f
		err = l.flock(syscall.LOCK_SH)
	}
	if err != nil {
		l.drop()
		return nil, err
	}
	return l, nil
}

// drop gives the lock up and leaves the file.
func (l *lockFile) drop() {
	if l.file != nil {
		l.file.Close()
	}
	leave(l.path, l.owner)
}

func (l *lockFile) flock(how int) error {
	for {
		err := syscall.Flock(int(l.file.Fd()), how|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errHeld
		default:
			return err
		}
	}
}

// present reports whether the locked file is still the one at the path.
func (l *lockFile) present() bool {
	mine, err1 := l.file.Stat()
	there, err2 := os.Stat(l.path)
	return err1 == nil && err2 == nil && os.SameFile(mine, there)
}

// describe writes who owns the lock.
func (l *lockFile) describe(o checkpoint.Owner) error {
	text := fmt.Sprintf("pid=%d\nhost=%s\ninstance=%s\n", o.PID, o.Host, o.Instance)
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(text), 0)
	return err
}

// release gives the lock up; an owner removes the file first.
func (l *lockFile) release() {
	if l.owner {
		os.Remove(l.path)
	}
	l.drop()
}

// holder reads who owns the lock at path; zero values where it cannot tell.
func holder(path string) (pid int, host string, age time.Duration) {
	f, err := os.Open(path)
	if err != nil {
		return 0, "", 0
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		age = time.Since(info.ModTime())
	}
	lines := bufio.NewScanner(io.LimitReader(f, 4096))
	for lines.Scan() {
		switch name, value, _ := strings.Cut(lines.Text(), "="); name {
		case "pid":
			pid, _ = strconv.Atoi(value)
		case "host":
			host = value
		}
	}
	return pid, host, age
}

// ownedBy is the error for a file that a live process owns.
func (w *Writer) ownedBy() error {
	pid, host, age := holder(w.lockPath())
	who := "a process that is just starting or reading"
	if pid != 0 {
		who = fmt.Sprintf("pid %d on host %s (heartbeat %s ago)", pid, host, age.Round(time.Second/10))
	}
	return &fault.Error{Kind: fault.Operator, Op: fmt.Sprintf("open %s: it is owned by %s", w.cfg.Path, who), Err: fault.ErrOwned,
		Remedy: "one process owns a DuckDB file for life: `tailrace query` asks a running daemon, `tailrace snapshot` has it write a copy for other programs; or stop that process first"}
}

// heldBy is the error for a lock that cannot be had: a reader goes away by itself, an
// owner does not.
func (w *Writer) heldBy() error {
	if lock, err := shareLock(w.lockPath()); err == nil {
		lock.release()
		return fault.Retry(nil, "open %s: other commands are reading it", w.cfg.Path)
	}
	return w.ownedBy()
}

// emptyTempDir removes what a killed process left: the engine's spill files,
// and nothing else.
func emptyTempDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(globEscape(dir), "duckdb_temp_*"))
	if err != nil {
		return err
	}
	for _, name := range left {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// globEscape makes a directory's name literal inside a pattern.
func globEscape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
