package myserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Binaries is one installation of MariaDB's or MySQL's server programs.
type Binaries struct {
	Server  string // the path of mariadbd or mysqld; empty: a container image
	MariaDB bool
	Full    string // e.g. 10.11.14
}

// Key tells installations apart, for people and maps.
func (b Binaries) Key() string {
	if b.Server == "" {
		return "a container image"
	}
	return b.Server
}

// ErrNone is returned by Find when no server programs are there.
var ErrNone = errors.New("no MariaDB server programs found: install them (Debian, Ubuntu: apt-get install mariadb-server; " +
	"macOS: brew install mariadb) or name the server's program in TAILRACE_TEST_MYSQL")

// FindMariaDB looks for mariadbd on PATH and where distributions put it.
func FindMariaDB() (Binaries, error) {
	places := []string{"/usr/sbin/mariadbd", "/usr/libexec/mariadbd", "/usr/local/sbin/mariadbd"}
	if p, err := exec.LookPath("mariadbd"); err == nil {
		places = append([]string{p}, places...)
	}
	for _, p := range places {
		if b, err := Examine(p); err == nil && b.MariaDB {
			return b, nil
		}
	}
	return Binaries{}, ErrNone
}

// FindListed resolves a list of server programs (mariadbd, mysqld), separated by
// commas or colons. Naming something that is not there is an error.
func FindListed(list string) (found []Binaries, err error) {
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ':' }) {
		b, err := Examine(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("TAILRACE_TEST_MYSQL names %s: %w", item, err)
		}
		found = append(found, b)
	}
	return found, nil
}

var versionText = regexp.MustCompile(`Ver (\d+\.\d+\.\d+)(\S*)`)

// Examine asks a server program for its version.
func Examine(path string) (Binaries, error) {
	if _, err := os.Stat(path); err != nil {
		return Binaries{}, err
	}
	out, err := exec.Command(path, "--no-defaults", "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return Binaries{}, fmt.Errorf("%s --version says %q", path, out)
	}
	return Binaries{Server: path, MariaDB: strings.Contains(string(m[2]), "MariaDB"), Full: string(m[1])}, nil
}

// Install installs the distribution's server package without starting its service.
// It needs root and apt-get.
func Install(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return ErrNone
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return ErrNone
	}
	// The package's scripts ask this program whether they may start a service.
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer os.Remove(policy)
	}
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", "mariadb-server"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// account is the user a server runs as. The servers refuse to run as root.
type account struct {
	name string
	cred *syscall.Credential // nil: as ourselves
}

func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{name: "the current user"}, nil
	}
	for _, name := range []string{"mysql", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &account{name: name, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return nil, errors.New("the server refuses to run as root, and neither user mysql nor nobody exists")
}

func (a *account) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.cred}
}

func (a *account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// installer is the program that makes a data directory of MariaDB.
func installer(server string) string {
	if p, err := exec.LookPath("mariadb-install-db"); err == nil {
		return p
	}
	return filepath.Join(filepath.Dir(server), "mariadb-install-db")
}
