// Package myserver runs throw-away MariaDB and MySQL servers: a data directory in a
// temporary folder, a free port on 127.0.0.1, row-based logging with full images and
// metadata, and nothing left behind when the process ends, however it ends. Tests use
// it through internal/dbtest; the bench directly.
package myserver

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	// The driver that tells when the server takes connections.
	_ "github.com/go-sql-driver/mysql"
)

// The account every server is made with: all rights, from everywhere.
const (
	Superuser = "tester"
	Password  = "throw-away"
)

// Options say how a server is made.
type Options struct {
	Binaries Binaries
	// Settings override or add to the defaults, as options of the server's program
	// without the dashes; an empty value is an option without one.
	Settings map[string]string
}

// Defaults suit tests of replication; the data is thrown away, so nothing waits for
// the disk.
func Defaults(mariaDB bool) map[string]string {
	d := map[string]string{
		"server-id": "1", "log-bin": "binlog", "binlog-format": "ROW", "binlog-row-image": "FULL", "binlog-row-metadata": "FULL",
		"innodb-flush-log-at-trx-commit": "2", "sync-binlog": "0", "innodb-buffer-pool-size": "128M", "max-connections": "200",
		"innodb-doublewrite": "0", "log-bin-trust-function-creators": "1", "max-allowed-packet": "64M", "local-infile": "1",
		"character-set-server": "utf8mb4", "default-time-zone": "+00:00", "skip-name-resolve": "", "innodb-log-file-size": "64M",
	}
	if mariaDB {
		d["gtid-strict-mode"] = "ON"
	} else {
		d["gtid-mode"], d["enforce-gtid-consistency"], d["mysqlx"] = "ON", "ON", "OFF"
		d["secure-file-priv"] = ""
		delete(d, "innodb-log-file-size")
	}
	return d
}

// Server is a running (or stopped) throw-away server. Methods are for one goroutine at
// a time.
type Server struct {
	Binaries Binaries
	Dir      string // temporary folder that holds data/, log and the socket
	Host     string // 127.0.0.1
	Port     int

	remove   func() error // of a container; nil: child processes of ours
	account  *account
	settings map[string]string
	watchdog *exec.Cmd
	lifeline io.Closer // the watchdog ends the server when this end closes
	ready    bool      // it was, once: its address is known to others

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start makes a data directory and starts a server on it. The caller must Close it.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	s := &Server{Binaries: o.Binaries, Host: "127.0.0.1", settings: Defaults(o.Binaries.MariaDB)}
	for k, v := range o.Settings {
		s.settings[k] = v
	}
	if s.account, err = unprivileged(); err != nil {
		return nil, err
	}
	base := os.TempDir()
	if len(base) > 60 { // a unix socket's path may not exceed 107 bytes
		base = "/tmp"
	}
	if s.Dir, err = os.MkdirTemp(base, "tailrace-my-"); err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, dir := range []string{s.Dir, s.data()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return nil, err
		}
		if err := s.account.own(dir); err != nil {
			return nil, err
		}
	}
	init := fmt.Sprintf("SET sql_log_bin = 0;\nCREATE USER IF NOT EXISTS '%s'@'%%' IDENTIFIED BY '%s';\nGRANT ALL PRIVILEGES ON *.* TO '%[1]s'@'%%' WITH GRANT OPTION;\n", Superuser, Password)
	if err := os.WriteFile(s.initFile(), []byte(init), 0o644); err != nil {
		return nil, err
	}
	if err := s.startWatchdog(); err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	if err := s.initialize(ctx); err != nil {
		return nil, err
	}
	return s, s.StartAgain(ctx)
}

// Adopt makes a Server of one that runs elsewhere; remove ends it.
func Adopt(b Binaries, host string, port int, remove func() error) *Server {
	return &Server{Binaries: b, Host: host, Port: port, remove: remove}
}

func (s *Server) data() string     { return filepath.Join(s.Dir, "data") }
func (s *Server) initFile() string { return filepath.Join(s.Dir, "init.sql") }
func (s *Server) pidFile() string  { return filepath.Join(s.Dir, "pid") }

// startWatchdog starts a shell of the server's user that waits for the end of a pipe
// which only this process holds, then kills the server and removes its folder.
func (s *Server) startWatchdog() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	const script = `trap '' INT TERM HUP; cat >/dev/null
[ -f "$1/pid" ] && kill -9 "$(cat "$1/pid")" 2>/dev/null
rm -rf "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, "watchdog", s.Dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = s.account.attributes()
	if err := cmd.Start(); err != nil {
		return errors.Join(err, w.Close())
	}
	s.watchdog, s.lifeline = cmd, w
	return nil
}

func (s *Server) initialize(ctx context.Context) error {
	var cmd *exec.Cmd
	if s.Binaries.MariaDB {
		cmd = exec.CommandContext(ctx, installer(s.Binaries.Server), "--no-defaults", "--datadir="+s.data(), "--auth-root-authentication-method=normal", "--skip-test-db")
	} else {
		cmd = exec.CommandContext(ctx, s.Binaries.Server, "--no-defaults", "--initialize-insecure", "--datadir="+s.data())
	}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+s.Dir) // servers that are made at once take each other's tables in a common one
	cmd.SysProcAttr = s.account.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a data directory with %s as %s: %w\n%s", cmd.Path, s.account.name, err, bytes.TrimSpace(out))
	}
	return nil
}

// Configure changes settings; they hold from the next start.
func (s *Server) Configure(settings map[string]string) {
	for k, v := range settings {
		s.settings[k] = v
	}
}

// StartAgain starts a stopped server on the same data and port.
func (s *Server) StartAgain(ctx context.Context) error {
	if s.remove != nil {
		return errors.New("a server in a container is not started again")
	}
	var last error
	for range 20 { // another process may take the port first
		if s.Port == 0 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			s.Port = l.Addr().(*net.TCPAddr).Port
			if err := l.Close(); err != nil {
				return err
			}
		}
		var fresh string
		if fresh, last = s.launch(ctx); last == nil {
			return nil
		}
		if s.ready || !strings.Contains(fresh, "ddress already in use") {
			return last
		}
		s.Port = 0
	}
	return last
}

// launch starts the server and waits until it takes connections; it returns what the
// server logged in this attempt.
func (s *Server) launch(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	logPath := filepath.Join(s.Dir, "log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	fresh := func() string {
		b, _ := os.ReadFile(logPath)
		return string(bytes.TrimSpace(b[min(int(begin), len(b)):]))
	}
	args := []string{"--no-defaults", "--datadir=" + s.data(), "--port=" + strconv.Itoa(s.Port), "--bind-address=" + s.Host,
		"--socket=" + filepath.Join(s.Dir, "socket"), "--pid-file=" + s.pidFile(), "--init-file=" + s.initFile(), "--tmpdir=" + s.Dir}
	var names []string
	for k := range s.settings {
		names = append(names, k)
	}
	sort.Strings(names)
	for _, k := range names {
		if v := s.settings[k]; v == "" && k != "secure-file-priv" {
			args = append(args, "--"+k)
		} else {
			args = append(args, "--"+k+"="+v)
		}
	}
	cmd := exec.Command(s.Binaries.Server, args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = s.account.attributes()
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w", s.Binaries.Server, err)
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
		err := s.ping(ctx)
		if err == nil {
			s.ready = true
			return "", nil
		}
		select {
		case <-exited:
			s.cmd = nil
			return fresh(), fmt.Errorf("server ended while starting:\n%s", fresh())
		case <-ctx.Done():
			cmd.Process.Kill()
			<-exited
			s.cmd = nil
			return fresh(), fmt.Errorf("server not ready after 60 s: %w\n%s", err, fresh())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	db, err := sql.Open("mysql", s.DSN(""))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

// Stop ends the server in order and waits for its end.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

// Kill9 ends the server by SIGKILL.
func (s *Server) Kill9() error { return s.end(syscall.SIGKILL) }

func (s *Server) end(signal syscall.Signal) error {
	if s.remove != nil {
		return errors.New("a server in a container cannot be stopped alone")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	s.cmd.Process.Signal(signal)
	var err error
	select {
	case <-s.exited:
	case <-time.After(60 * time.Second):
		s.cmd.Process.Kill()
		<-s.exited
		err = errors.New("server did not stop in 60 s; killed")
	}
	s.cmd = nil
	return err
}

// Restart stops the server in order and starts it again.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.StartAgain(ctx)
}

// Pause freezes the server until the returned function is called: a server that is
// there and says nothing.
func (s *Server) Pause() (resume func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil, errors.New("server is not running here")
	}
	p := s.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() { p.Signal(syscall.SIGCONT) }, nil
}

// Close ends the server and removes everything it had.
func (s *Server) Close() error {
	if s.remove != nil {
		return s.remove()
	}
	err := s.Kill9()
	if s.lifeline != nil {
		err = errors.Join(err, s.lifeline.Close())
		s.watchdog.Wait()
	}
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// DSN is the driver's connection string of a database (none if empty) over TCP, as the
// superuser.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("%s:%s@tcp(%s)/%s", Superuser, Password, net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), database)
}

// URL is the connection string that users write.
func (s *Server) URL(database string) string { return s.URLAs(Superuser, Password, database) }

// URLAs is URL for another account.
func (s *Server) URLAs(user, password, database string) string {
	return fmt.Sprintf("mysql://%s:%s@%s/%s", user, password, net.JoinHostPort(s.Host, strconv.Itoa(s.Port)), database)
}

// LogFile is the path of a file in the data directory.
func (s *Server) LogFile(name string) string { return filepath.Join(s.data(), name) }

// Log returns what the server has logged.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(b)
}
