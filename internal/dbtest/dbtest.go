// Package dbtest gives tests real database servers: throw-away ones, made from
// the programs installed on this machine, else from the distribution's package,
// else from a container image. A test never skips for want of a server.
//
// A package whose tests use it should hand its TestMain to Main, so that servers
// end with the tests; without it a watchdog ends them a moment later.
//
// TAILRACE_TEST_PG lists the PostgreSQL installations to test against (folders of
// programs or major versions, separated by commas); Postgres takes the first,
// Postgreses all. TAILRACE_TEST_MYSQL lists MySQL and MariaDB servers to test against
// beside the MariaDB that MariaDB finds or installs; MySQLs gives all of them.
package dbtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/dbtest/pgserver"
)

// Server is a PostgreSQL server for tests.
type Server struct {
	*pgserver.Server
}

// Option changes what Postgres gives.
type Option func(*request)

type request struct {
	dedicated bool
	settings  map[string]string
}

// Dedicated asks for a server of the test's own, which it may stop, restart and
// kill. It ends with the test.
func Dedicated() Option { return func(r *request) { r.dedicated = true } }

// Setting asks for a server of the test's own with a setting of postgresql.conf, or an
// option of MariaDB's server program.
func Setting(name, value string) Option {
	return func(r *request) {
		r.dedicated = true
		r.settings[name] = value
	}
}

// shared are the process's common servers, one for each installation.
var shared struct {
	sync.Mutex
	installations []pgserver.Binaries
	servers       map[string]*Server // by folder
}

// Main runs a package's tests and then ends the shared servers:
//
//	func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	closeMy()
	shared.Lock()
	defer shared.Unlock()
	for _, s := range shared.servers {
		s.Close()
	}
	return code
}

// Postgres gives the process's shared server, started at the first call, or with
// options one of the test's own.
func Postgres(t testing.TB, opts ...Option) *Server {
	t.Helper()
	return start(t, installations(t)[0], opts)
}

// Postgreses is Postgres for every installation in TAILRACE_TEST_PG.
func Postgreses(t testing.TB, opts ...Option) []*Server {
	t.Helper()
	var servers []*Server
	for _, b := range installations(t) {
		servers = append(servers, start(t, b, opts))
	}
	return servers
}

func start(t testing.TB, b pgserver.Binaries, opts []Option) *Server {
	t.Helper()
	r := request{settings: map[string]string{}}
	for _, o := range opts {
		o(&r)
	}
	if !r.dedicated {
		shared.Lock()
		defer shared.Unlock()
		if s := shared.servers[b.Key()]; s != nil {
			return s
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var raw *pgserver.Server
	var err error
	if b.Dir == "" {
		raw, err = startContainer(ctx, b, r.settings)
	} else {
		raw, err = pgserver.Start(ctx, pgserver.Options{Binaries: b, Settings: r.settings})
	}
	if err != nil {
		t.Fatalf("start a PostgreSQL %s server: %v", b.Full, err)
	}
	s := &Server{raw}
	if r.dedicated {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of the server at %s:%d:\n%s", s.Host, s.Port, tail(s.Log(), 40))
			}
			s.Close()
		})
		return s
	}
	if shared.servers == nil {
		shared.servers = map[string]*Server{}
	}
	shared.servers[b.Key()] = s
	return s
}

// installations finds the programs once for each process, and prints which.
func installations(t testing.TB) []pgserver.Binaries {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.installations != nil {
		return shared.installations
	}
	defer oneInstaller(t)()
	found, err := pgserver.Find(os.Getenv("TAILRACE_TEST_PG"))
	if errors.Is(err, pgserver.ErrNone) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if e := pgserver.Install(ctx); e == nil {
			found, err = pgserver.Find("")
		} else if image, ok := containerImage(ctx); ok {
			found, err = []pgserver.Binaries{image}, nil
		} else if !errors.Is(e, pgserver.ErrNone) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range found {
		fmt.Fprintf(os.Stderr, "dbtest: PostgreSQL %s from %s\n", b.Full, b.Key())
	}
	shared.installations = found
	return found
}

// Database makes a database with a random name for one test and returns its
// connection string. It goes at the test's end, with its replication slots.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.DSN(s.DatabaseName(t))
}

// DatabaseName is Database for tests which need the bare name.
func (s *Server) DatabaseName(t testing.TB) string {
	t.Helper()
	var b [6]byte
	rand.Read(b[:])
	name := "t_" + hex.EncodeToString(b[:])
	s.CreateDatabase(t, name)
	return name
}

// CreateDatabase makes a database of the given name, with the options that follow
// its name in CREATE DATABASE, as Database does.
func (s *Server) CreateDatabase(t testing.TB, name string, options ...string) {
	t.Helper()
	admin := s.DSN("postgres")
	quoted := pgx.Identifier{name}.Sanitize()
	if s.Version() >= 15 { // copied as files, it is not in the log, which other tests' slots read
		options = append(options, "STRATEGY FILE_COPY")
	}
	s.Exec(t, admin, "CREATE DATABASE "+quoted+" "+strings.Join(options, " "))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, admin)
		if err != nil {
			return // the test has stopped the server: everything goes with it
		}
		defer conn.Close(ctx)
		if err := dropDatabase(ctx, conn, name); err != nil {
			t.Errorf("drop database %s: %v", name, err)
		}
	})
}

// dropDatabase ends the sessions of a database, drops its slots, then itself.
func dropDatabase(ctx context.Context, conn *pgx.Conn, name string) error {
	var last error
	for range 50 { // a walsender needs a moment to let go of its slot
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()`, name)
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, name)
		}
		if err == nil {
			_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
		}
		if err == nil {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return last
		case <-time.After(100 * time.Millisecond):
		}
	}
	return last
}

// Connect opens a session that ends with the test.
func (s *Server) Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		conn.Close(ctx)
	})
	return conn
}

// Exec runs statements one after another, each in a transaction of its own unless
// a text holds several, and fails the test at the first error.
func (s *Server) Exec(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// Query returns the rows of a statement as psql -At prints them: columns
// separated by |, NULL as an empty field.
func (s *Server) Query(t testing.TB, dsn, sql string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var lines []string
	for _, row := range results[len(results)-1].Rows {
		fields := make([]string, len(row))
		for i := range row {
			fields[i] = string(row[i])
		}
		lines = append(lines, strings.Join(fields, "|"))
	}
	return lines
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
