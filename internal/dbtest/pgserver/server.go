// Package pgserver runs throw-away PostgreSQL servers: a data directory in a
// temporary folder, a free port on 127.0.0.1 and a unix socket beside it, trust
// authentication, and nothing left behind when the process ends, however it ends.
// Tests use it through internal/dbtest; the demonstration and the bench directly.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Superuser is the role every server is made with.
const Superuser = "postgres"

// Options say how a server is made. The zero value is good.
type Options struct {
	// Binaries is the installation to run; the zero value is the first that Find("") gives.
	Binaries Binaries
	// Settings override or add to the defaults in defaultSettings.
	Settings map[string]string
	// Install lets Start install the distribution's package where no binaries are
	// found (root on Debian and its children only).
	Install bool
}

// defaultSettings suit tests of logical replication: many slots, no waiting for
// the disk. The data is thrown away, so fsync is off.
func defaultSettings() map[string]string {
	return map[string]string{
		"fsync":                           "off",
		"full_page_writes":                "off",
		"wal_level":                       "logical",
		"max_wal_senders":                 "100",
		"max_replication_slots":           "200",
		"max_connections":                 "400",
		"wal_sender_timeout":              "60s",
		"track_commit_timestamp":          "off",
		"logging_collector":               "off",
		"log_min_messages":                "warning",
		"log_error_verbosity":             "default",
		"max_wal_size":                    "1GB",
		"shared_buffers":                  "128MB",
		"timezone":                        "UTC",
		"log_timezone":                    "UTC",
		"unix_socket_permissions":         "0777",
		"max_prepared_transactions":       "10",
		"idle_session_timeout":            "0",
		"restart_after_crash":             "off",
		"bgwriter_lru_maxpages":           "0",
		"autovacuum_naptime":              "1min",
		"checkpoint_timeout":              "10min",
		"log_replication_commands":        "off",
		"max_locks_per_transaction":       "256",
		"max_parallel_workers":            "0",
		"max_logical_replication_workers": "8",
	}
}

// Mode is how a server is stopped, as pg_ctl names it.
type Mode string

const (
	Smart     Mode = "smart"     // waits for clients to leave
	Fast      Mode = "fast"      // rolls clients back, checkpoints
	Immediate Mode = "immediate" // as a crash: recovery at the next start
)

func (m Mode) signal() syscall.Signal {
	switch m {
	case Smart:
		return syscall.SIGTERM
	case Immediate:
		return syscall.SIGQUIT
	}
	return syscall.SIGINT
}

// Server is a running (or stopped) throw-away server. Methods are for one
// goroutine at a time.
type Server struct {
	Binaries  Binaries
	Dir       string // temporary folder that holds data/, socket/ and log
	SocketDir string // holds the unix socket
	Host      string // 127.0.0.1
	Port      int

	engine   Engine // nil: child processes of ours
	account  *account
	settings map[string]string
	watchdog *exec.Cmd
	lifeline io.Closer // the watchdog ends the server when this end closes

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start makes a data directory and starts a server on it. The caller must Close it.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Binaries.Dir == "" {
		found, err := Find("")
		if errors.Is(err, ErrNone) && o.Install {
			if err := Install(ctx); err != nil {
				return nil, err
			}
			found, err = Find("")
		}
		if err != nil {
			return nil, err
		}
		o.Binaries = found[0]
	}
	s := &Server{Binaries: o.Binaries, Host: "127.0.0.1", settings: defaultSettings()}
	for k, v := range o.Settings {
		s.settings[k] = v
	}
	if s.account, err = unprivileged(); err != nil {
		return nil, err
	}
	if s.Dir, err = tempDir(); err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	s.SocketDir = filepath.Join(s.Dir, "socket")
	if err := os.Mkdir(s.SocketDir, 0o755); err != nil {
		return nil, err
	}
	for _, dir := range []string{s.Dir, s.SocketDir} {
		if err := s.account.own(dir); err != nil {
			return nil, err
		}
	}
	if err := s.startWatchdog(); err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	if err := s.initdb(ctx); err != nil {
		return nil, err
	}
	return s, s.StartAgain(ctx)
}

// tempDir makes the server's folder; a unix socket's path may not exceed 107
// bytes, so a long TMPDIR gives way to /tmp.
func tempDir() (string, error) {
	base := os.TempDir()
	if len(base) > 60 {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "tailrace-pg-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// startWatchdog starts a shell of the server's user that waits for the end of a
// pipe which only this process holds. When the process ends, even by SIGKILL, the
// pipe closes, and the shell stops the server and removes its folder.
func (s *Server) startWatchdog() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	const script = `trap '' INT TERM HUP; cat >/dev/null
"$1" stop -D "$2/data" -m immediate -t 10 >/dev/null 2>&1
rm -rf "$2"`
	cmd := exec.Command("/bin/sh", "-c", script, "watchdog", s.Binaries.path("pg_ctl"), s.Dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = s.account.attributes()
	if err := cmd.Start(); err != nil {
		w.Close()
		return err
	}
	s.watchdog, s.lifeline = cmd, w
	return nil
}

func (s *Server) initdb(ctx context.Context) error {
	locale := "C.UTF-8"
	var out []byte
	var err error
	for range 2 { // not every system knows C.UTF-8
		cmd := exec.CommandContext(ctx, s.Binaries.path("initdb"), "-D", s.data(), "-U", Superuser, "-A", "trust",
			"-E", "UTF8", "--locale="+locale, "--no-sync", "--no-instructions")
		cmd.Dir = "/"
		cmd.SysProcAttr = s.account.attributes()
		if out, err = cmd.CombinedOutput(); err == nil {
			break
		}
		locale = "C"
	}
	if err != nil {
		return fmt.Errorf("run initdb of %s as %s: %w\n%s", s.Binaries.Dir, s.account.name, err, bytes.TrimSpace(out))
	}
	return s.Configure(nil)
}

// Configure changes settings; they hold from the next start, or from Reload.
func (s *Server) Configure(settings map[string]string) error {
	if s.engine != nil {
		return errors.New("the settings of a server in a container are fixed when it is made")
	}
	for k, v := range settings {
		s.settings[k] = v
	}
	var names []string
	for k := range s.settings {
		names = append(names, k)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, k := range names {
		fmt.Fprintf(&b, "%s = '%s'\n", k, strings.ReplaceAll(s.settings[k], "'", "''"))
	}
	conf := filepath.Join(s.data(), "postgresql.conf")
	if err := os.WriteFile(conf, []byte(b.String()), 0o644); err != nil {
		return err
	}
	return s.account.own(conf)
}

// WriteFile writes a file of the data directory, such as pg_hba.conf or a key, for
// the server's user alone.
func (s *Server) WriteFile(name string, content []byte) error {
	if s.engine != nil {
		return errors.New("the files of a server in a container are out of reach")
	}
	path := filepath.Join(s.data(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return s.account.own(path)
}

// StartAgain starts a stopped server on the same data and port.
func (s *Server) StartAgain(ctx context.Context) error {
	if s.engine != nil {
		if err := s.engine.Start(ctx); err != nil {
			return err
		}
		return s.meet(ctx)
	}
	var last error
	for range 20 { // another process may take the port first; a killed server's children may linger
		if s.Port == 0 {
			port, err := freePort()
			if err != nil {
				return err
			}
			s.Port = port
		}
		fresh, err := s.launch(ctx)
		if err == nil {
			return nil
		}
		last = err
		log := fresh()
		switch {
		case strings.Contains(log, "could not bind"), strings.Contains(log, "could not create any TCP/IP sockets"):
			if s.everReady() {
				return last // its address is already known to others
			}
			s.Port = 0
		case strings.Contains(log, "pre-existing shared memory block"):
			time.Sleep(100 * time.Millisecond)
		default:
			return last
		}
	}
	return last
}

func (s *Server) everReady() bool {
	_, err := os.Stat(filepath.Join(s.Dir, "ready"))
	return err == nil
}

// launch starts the postmaster and waits until it takes connections. On failure
// the returned function gives what the server logged in this attempt.
func (s *Server) launch(ctx context.Context) (func() string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	logPath := filepath.Join(s.Dir, "log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return func() string { return "" }, err
	}
	defer log.Close()
	begin, _ := log.Seek(0, io.SeekEnd)
	fresh := func() string {
		b, _ := os.ReadFile(logPath)
		return string(bytes.TrimSpace(b[min(int(begin), len(b)):]))
	}
	cmd := exec.Command(s.Binaries.path("postgres"), "-D", s.data(), "-p", strconv.Itoa(s.Port),
		"-k", s.SocketDir, "-c", "listen_addresses="+s.Host)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = s.account.attributes()
	if err := cmd.Start(); err != nil {
		return fresh, fmt.Errorf("start postgres: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	s.cmd, s.exited = cmd, exited
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			conn.Close(ctx)
			return fresh, os.WriteFile(filepath.Join(s.Dir, "ready"), nil, 0o644)
		}
		select {
		case <-exited:
			s.cmd = nil
			return fresh, fmt.Errorf("server ended while starting:\n%s", fresh())
		case <-ctx.Done():
			cmd.Process.Kill()
			<-exited
			s.cmd = nil
			return fresh, fmt.Errorf("server not ready after 60 s: %w\n%s", err, fresh())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Stop stops the server and waits for its end.
func (s *Server) Stop(m Mode) error {
	if s.engine != nil {
		return s.signalEngine(m.signal(), true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	s.cmd.Process.Signal(m.signal())
	select {
	case <-s.exited:
	case <-time.After(60 * time.Second):
		s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
		return fmt.Errorf("server did not stop in 60 s (%s); killed", m)
	}
	s.cmd = nil
	return nil
}

// Restart stops the server fast and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(Fast); err != nil {
		return err
	}
	return s.StartAgain(ctx)
}

// Reload makes the server read its configuration files again.
func (s *Server) Reload() error {
	if s.engine != nil {
		return s.signalEngine(syscall.SIGHUP, false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return errors.New("server is not running")
	}
	return s.cmd.Process.Signal(syscall.SIGHUP)
}

// Kill9 ends the postmaster and its children by SIGKILL.
func (s *Server) Kill9() error {
	if s.engine != nil {
		return s.signalEngine(syscall.SIGKILL, true)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	for _, pid := range s.family() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	<-s.exited
	s.cmd = nil
	return nil
}

// Pause freezes the whole server (SIGSTOP to the postmaster and its children)
// until the returned function is called: a server that is there and says nothing.
func (s *Server) Pause() (resume func(), err error) {
	if s.engine != nil {
		return nil, errors.New("a server in a container cannot be paused")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil, errors.New("server is not running")
	}
	pids := s.family()
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}, nil
}

// family lists the postmaster and, on Linux, its children. The caller holds mu.
func (s *Server) family() []int {
	pid := s.cmd.Process.Pid
	pids := []int{pid}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return pids
	}
	for _, f := range strings.Fields(string(children)) {
		if child, err := strconv.Atoi(f); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// Close stops the server and removes everything it had.
func (s *Server) Close() error {
	if s.engine != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return s.engine.Remove(ctx)
	}
	err := s.Stop(Immediate)
	if s.lifeline != nil {
		s.lifeline.Close()
		s.watchdog.Wait()
	}
	if e := os.RemoveAll(s.Dir); err == nil {
		err = e
	}
	return err
}

// Version is the major version.
func (s *Server) Version() int { return s.Binaries.Version }

// DSN is the connection string of a database over TCP, as the superuser.
func (s *Server) DSN(database string) string { return s.DSNAs(Superuser, "", database) }

// DSNAs is DSN for another role.
func (s *Server) DSNAs(user, password, database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(user), Host: net.JoinHostPort(s.Host, strconv.Itoa(s.Port)),
		Path: "/" + database, RawQuery: "sslmode=disable"}
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// SocketDSN is DSN over the unix socket.
func (s *Server) SocketDSN(database string) string {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace
	return fmt.Sprintf("host='%s' port=%d user=%s dbname='%s' sslmode=disable", quote(s.SocketDir), s.Port, Superuser, quote(database))
}

// Log returns what the server has logged.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(b)
}
