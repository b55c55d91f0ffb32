package control

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// socketMost is the longest name of a socket that every system takes, in bytes (104
// with its end on macOS, 108 on Linux).
const socketMost = 103

// places are the names that the socket of a file may have, the first that works is
// taken: beside the file, unless that is too long or lies where no socket can be (some
// mounted folders); else in the user's folder for such things, else in one of ours
// among the temporary files. The asker tries them in the same order.
func places(file string) []string {
	var list []string
	add := func(name string) {
		if len(name) <= socketMost {
			list = append(list, name)
		}
	}
	add(file + ".sock")
	sum := sha256.Sum256([]byte(file))
	short := hex.EncodeToString(sum[:8]) + ".sock"
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		add(filepath.Join(dir, "tailrace", short))
	}
	add(filepath.Join(os.TempDir(), "tailrace-"+strconv.Itoa(os.Geteuid()), short))
	return list
}

// listen makes the socket of a file. Whoever calls it owns the file, so that a socket
// that is there was left by a process that was killed.
func listen(file string) (*net.UnixListener, string, error) {
	var failed error
	for _, name := range places(file) {
		l, err := listenAt(name, name == file+".sock")
		if err == nil {
			return l, name, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, "", failed
}

func listenAt(name string, beside bool) (*net.UnixListener, error) {
	if !beside {
		if err := privateFolder(filepath.Dir(name)); err != nil {
			return nil, err
		}
	}
	switch info, err := os.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s is there and is no socket", name)
	default:
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Until here the mode is what the umask left; whoever got in is looked at (samePeer).
	if err := os.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// privateFolder makes a folder that nobody else can enter, or refuses one that is not.
func privateFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ours(info) {
		return fmt.Errorf("folder %s must belong to this user alone (mode 0700)", dir)
	}
	return nil
}
