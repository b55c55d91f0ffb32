package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// Binaries is one installation of PostgreSQL's server programs.
type Binaries struct {
	Dir     string // the folder of postgres, initdb and pg_ctl
	Version int    // major
	Full    string // e.g. 15.18
}

// Key tells installations apart, for people and maps.
func (b Binaries) Key() string {
	if b.Dir == "" {
		return "a container image"
	}
	return b.Dir
}

func (b Binaries) path(program string) string { return filepath.Join(b.Dir, program) }

// ErrNone is returned by Find when no server programs are there.
var ErrNone = errors.New("no PostgreSQL server programs found: install them (Debian, Ubuntu: apt-get install postgresql; " +
	"macOS: brew install postgresql) or name their folder in TAILRACE_TEST_PG")

// debianRoot is where Debian's packages put each major version.
const debianRoot = "/usr/lib/postgresql"

// Find resolves a list of folders or major versions, separated by commas or
// colons. An empty list means: the newest of Debian's folders, else what PATH
// gives. Naming something that is not there is an error of its own.
func Find(list string) ([]Binaries, error) {
	var found []Binaries
	for _, item := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ':' }) {
		item = strings.TrimSpace(item)
		dir := item
		if _, err := strconv.Atoi(item); err == nil {
			dir = filepath.Join(debianRoot, item, "bin")
		}
		b, err := examine(dir)
		if err != nil {
			return nil, fmt.Errorf("TAILRACE_TEST_PG names %s: %w", item, err)
		}
		found = append(found, b)
	}
	if len(found) > 0 {
		return found, nil
	}
	for _, dir := range candidates() {
		if b, err := examine(dir); err == nil {
			return []Binaries{b}, nil
		}
	}
	return nil, ErrNone
}

// candidates lists folders, the newest version first, then PATH's.
func candidates() []string {
	dirs, _ := filepath.Glob(debianRoot + "/*/bin")
	sort.Slice(dirs, func(i, j int) bool { return versionOf(dirs[i]) > versionOf(dirs[j]) })
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	return dirs
}

func versionOf(dir string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return v
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) ((\d+)\S*)`)

func examine(dir string) (Binaries, error) {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return Binaries{}, fmt.Errorf("find %s: %w", program, err)
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s/postgres for its version: %w", dir, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return Binaries{}, fmt.Errorf("%s/postgres --version says %q", dir, out)
	}
	major, err := strconv.Atoi(string(m[2]))
	return Binaries{Dir: dir, Version: major, Full: string(m[1])}, err
}

// Install installs the distribution's server package without making or starting
// the cluster that the package would otherwise make. It needs root and apt-get.
func Install(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return ErrNone
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return ErrNone
	}
	const conf = "/etc/postgresql-common/createcluster.conf"
	if _, err := os.Stat(conf); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(conf, []byte("create_main_cluster = false\n"), 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"update", "-q"},
		{"install", "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", "postgresql"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out)
		}
	}
	return nil
}

// account is the user a server runs as. PostgreSQL refuses to run as root.
type account struct {
	name string
	cred *syscall.Credential // nil: as ourselves
}

func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{name: "the current user"}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
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
	return nil, errors.New("PostgreSQL refuses to run as root, and neither user postgres nor nobody exists")
}

// attributes put a child into a session of its own (a terminal's interrupt must
// not reach it before its owner decides) under the account.
func (a *account) attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: a.cred}
}

func (a *account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}
