package dbtest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// oneInstaller keeps other processes of the tests from looking for server programs, or
// installing them, until the returned call: packages are tested side by side, the
// distribution's installer runs once at a time, and a program that is there while its
// package is being unpacked does not work yet.
func oneInstaller(t testing.TB) (release func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("tailrace-dbtest-install-%d.lock", os.Geteuid())), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("open the lock of installers: %v", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("wait for another installer: %v", err)
	}
	return func() { f.Close() }
}
