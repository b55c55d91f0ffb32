package control

import (
	"os"
	"syscall"
)

// freeSpace is what an ordinary user may still write to the file's disk, in bytes.
func freeSpace(f *os.File) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}

// ours reports whether a file belongs to this user.
func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
