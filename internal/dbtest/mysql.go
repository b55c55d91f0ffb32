package dbtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"tailrace/internal/dbtest/myserver"
)

// MyServer is a MariaDB or MySQL server for tests.
type MyServer struct {
	*myserver.Server
}

// sharedMy are the process's common servers, one for each installation.
var sharedMy struct {
	sync.Mutex
	mariaDB *myserver.Binaries
	listed  []myserver.Binaries
	servers map[string]*MyServer
}

func closeMy() {
	sharedMy.Lock()
	defer sharedMy.Unlock()
	for _, s := range sharedMy.servers {
		s.Close()
	}
}

// MariaDB gives the process's shared MariaDB server, started at the first call, or with
// options one of the test's own. Its log is row-based with full images and metadata.
func MariaDB(t testing.TB, opts ...Option) *MyServer {
	t.Helper()
	return startMy(t, mariaDB(t), opts)
}

// MySQL is the server of tests that need one: the first that TAILRACE_TEST_MYSQL lists,
// else MariaDB's.
func MySQL(t testing.TB, opts ...Option) *MyServer {
	t.Helper()
	if listed := listedMy(t); len(listed) > 0 {
		return startMy(t, listed[0], opts)
	}
	return MariaDB(t, opts...)
}

// MySQLs is MariaDB, and beside it a server of every installation that
// TAILRACE_TEST_MYSQL lists (paths of mysqld or mariadbd, separated by commas).
func MySQLs(t testing.TB, opts ...Option) []*MyServer {
	t.Helper()
	servers := []*MyServer{MariaDB(t, opts...)}
	for _, b := range listedMy(t) {
		servers = append(servers, startMy(t, b, opts))
	}
	return servers
}

func startMy(t testing.TB, b myserver.Binaries, opts []Option) *MyServer {
	t.Helper()
	r := request{settings: map[string]string{}}
	for _, o := range opts {
		o(&r)
	}
	if !r.dedicated {
		sharedMy.Lock()
		defer sharedMy.Unlock()
		if s := sharedMy.servers[b.Key()]; s != nil {
			return s
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var raw *myserver.Server
	var err error
	if b.Server == "" {
		raw, err = startMyContainer(ctx, b, r.settings)
	} else {
		raw, err = myserver.Start(ctx, myserver.Options{Binaries: b, Settings: r.settings})
	}
	if err != nil {
		t.Fatalf("start a server of %s %s: %v", b.Key(), b.Full, err)
	}
	s := &MyServer{raw}
	if r.dedicated {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of the server at %s:%d:\n%s", s.Host, s.Port, tail(s.Log(), 40))
			}
			s.Close()
		})
		return s
	}
	if sharedMy.servers == nil {
		sharedMy.servers = map[string]*MyServer{}
	}
	sharedMy.servers[b.Key()] = s
	return s
}

// mariaDB finds or installs the programs once for each process, and prints which.
func mariaDB(t testing.TB) myserver.Binaries {
	t.Helper()
	sharedMy.Lock()
	defer sharedMy.Unlock()
	if sharedMy.mariaDB != nil {
		return *sharedMy.mariaDB
	}
	defer oneInstaller(t)()
	found, err := myserver.FindMariaDB()
	if errors.Is(err, myserver.ErrNone) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if e := myserver.Install(ctx); e == nil {
			found, err = myserver.FindMariaDB()
		} else if _, ok := containerImage(ctx); ok {
			found, err = myserver.Binaries{MariaDB: true, Full: mariaDBImage}, nil
		} else if !errors.Is(e, myserver.ErrNone) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stderr, "dbtest: MariaDB %s from %s\n", found.Full, found.Key())
	sharedMy.mariaDB = &found
	return found
}

func listedMy(t testing.TB) []myserver.Binaries {
	t.Helper()
	sharedMy.Lock()
	defer sharedMy.Unlock()
	if sharedMy.listed == nil {
		found, err := myserver.FindListed(os.Getenv("TAILRACE_TEST_MYSQL"))
		if err != nil {
			t.Fatal(err)
		}
		sharedMy.listed = found
	}
	return sharedMy.listed
}

// mariaDBImage is used where there are neither programs nor a package to install.
const mariaDBImage = "mariadb:11.4"

func startMyContainer(ctx context.Context, b myserver.Binaries, settings map[string]string) (*myserver.Server, error) {
	all := myserver.Defaults(true)
	for k, v := range settings {
		all[k] = v
	}
	var args []string
	for k, v := range all {
		if v != "" {
			k += "=" + v
		}
		args = append(args, "--"+k)
	}
	c, err := testcontainers.Run(ctx, b.Full,
		testcontainers.WithEnv(map[string]string{"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1"}),
		testcontainers.WithFiles(testcontainers.ContainerFile{ContainerFilePath: "/docker-entrypoint-initdb.d/account.sql", FileMode: 0o644,
			Reader: strings.NewReader(fmt.Sprintf("GRANT ALL PRIVILEGES ON *.* TO '%s'@'%%' IDENTIFIED BY '%s' WITH GRANT OPTION;", myserver.Superuser, myserver.Password))}),
		testcontainers.WithExposedPorts("3306/tcp"),
		testcontainers.WithCmd(args...),
		// The image's entry point starts a first server to initialise the data.
		testcontainers.WithWaitStrategy(wait.ForLog("ready for connections").WithOccurrence(2)))
	if err != nil {
		return nil, err
	}
	remove := func() error { return c.Terminate(context.Background()) }
	host, err := c.Host(ctx)
	if err == nil {
		port, e := c.MappedPort(ctx, "3306/tcp")
		if e == nil {
			return myserver.Adopt(b, host, int(port.Num()), remove), nil
		}
		err = e
	}
	return nil, errors.Join(err, remove())
}

// Database makes a database with a random name for one test, which goes at its end,
// and returns the name.
func (s *MyServer) Database(t testing.TB) string {
	t.Helper()
	var b [6]byte
	rand.Read(b[:])
	name := "t_" + hex.EncodeToString(b[:])
	s.Exec(t, "", "CREATE DATABASE "+name)
	t.Cleanup(func() {
		db, err := sql.Open("mysql", s.DSN(""))
		if err != nil {
			return
		}
		defer db.Close()
		db.Exec("DROP DATABASE " + name) // unless the test has ended the server: everything goes with it
	})
	return name
}

// Open opens a pool of sessions in a database, in UTC, that ends with the test.
func (s *MyServer) Open(t testing.TB, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN(database)+"?charset=utf8mb4&time_zone=%27%2B00%3A00%27")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// Exec runs statements one after another in one session, and fails the test at the
// first error.
func (s *MyServer) Exec(t testing.TB, database string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	db := s.Open(t, database)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close()
	for _, q := range statements {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			t.Fatalf("%.300s: %v", q, err)
		}
	}
}

// Query returns the rows of a statement, columns separated by |, NULL as an empty field.
func (s *MyServer) Query(t testing.TB, database, query string) []string {
	t.Helper()
	db := s.Open(t, database)
	defer db.Close()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		fields := make([]string, len(columns))
		for i := range cells {
			fields[i] = cells[i].String
		}
		lines = append(lines, strings.Join(fields, "|"))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
