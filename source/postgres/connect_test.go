package postgres

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

func TestNoErrorHoldsThePassword(t *testing.T) {
	const secret = "s3cr3t-p@ss/word?#%"
	server := dbtest.Postgres(t, dbtest.Dedicated())
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("CREATE ROLE locked LOGIN PASSWORD 'other'")
	if err := server.WriteFile("pg_hba.conf", []byte("host all postgres all trust\nhost all locked all scram-sha-256\nlocal all all trust\n")); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	database := f.query("SELECT current_database()")
	var logs bytes.Buffer
	seen := func(what string, err error, kind fault.Kind) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		if got := fault.KindOf(err); got != kind {
			t.Errorf("%s: %v is %v, want %v", what, err, got, kind)
		}
		for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err), fault.RemedyOf(err), logs.String()} {
			for _, s := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), "s3cr3t"} {
				if strings.Contains(text, s) {
					t.Errorf("%s: the password is in %q", what, text)
				}
			}
		}
	}
	attempt := func(what, dsn string, kind fault.Kind) {
		t.Helper()
		s, err := New(Config{DSN: dsn, Pipeline: "x", Logger: slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err == nil {
			_, err = s.State(testContext(t))
		}
		seen(what, err, kind)
		if err == nil || s == nil {
			return
		}
		_, err = s.Begin(testContext(t))
		seen(what+", replication", err, kind)
	}
	good := server.DSNAs("locked", secret, database)
	attempt("wrong password", good, fault.Operator)
	attempt("nobody there", strings.Replace(good, fmt.Sprint(server.Port), "1", 1), fault.Transient)
	attempt("unknown database", server.DSNAs("postgres", secret, "nowhere"), fault.Operator)
	attempt("password not escaped", "postgres://locked:"+secret+"@"+server.Host+"/x", fault.Usage)
	attempt("keyword form, cut", "host=localhost password='"+secret, fault.Usage)
	attempt("bad port", "host=localhost port=none password='"+secret+"'", fault.Usage)
}

func TestPasswordComesFromFileAndEnvironment(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Dedicated())
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec(`CREATE ROLE keeper LOGIN SUPERUSER PASSWORD 'pa:ss\word'`)
	if err := server.WriteFile("pg_hba.conf", []byte("host all postgres all trust\nhost all keeper all scram-sha-256\nlocal all all trust\n")); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	database := f.query("SELECT current_database()")
	file := filepath.Join(t.TempDir(), "pgpass")
	if err := os.WriteFile(file, []byte(fmt.Sprintf("%s:%d:*:keeper:pa\\:ss\\\\word\n", server.Host, server.Port)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", file)
	keywords := fmt.Sprintf("host=%s port=%d user=keeper dbname=%s", server.Host, server.Port, database)
	for what, dsn := range map[string]string{"password file": keywords, "URL": server.DSNAs("keeper", `pa:ss\word`, database)} {
		if _, err := newSource(t, Config{DSN: dsn, Pipeline: "x"}).State(testContext(t)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for k, v := range map[string]string{"PGHOST": server.Host, "PGPORT": fmt.Sprint(server.Port), "PGUSER": "keeper", "PGDATABASE": database, "PGPASSWORD": `pa:ss\word`, "PGPASSFILE": "/nowhere", "PGSSLMODE": "disable"} {
		t.Setenv(k, v)
	}
	if st, err := newSource(t, Config{Pipeline: "x"}).State(testContext(t)); err != nil || st.Database != database {
		t.Errorf("environment: %+v, %v", st, err)
	}
}

func TestUnixSocketAndOptionsInTheDSN(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	f.source = newSource(t, Config{DSN: server.SocketDSN(f.query("SELECT current_database()")) + ` options='-c statement_timeout=1 -c search_path=nowhere' statement_timeout=1 datestyle='SQL, DMY'`,
		Pipeline: "socket" + f.query("SELECT current_database()")})
	f.publish()
	f.begin()
	f.exec("INSERT INTO t VALUES (1)")
	wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT t (1)")
}

func TestDatabaseWithoutAnEncodingIsRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	name := "ascii_" + server.DatabaseName(t)
	server.CreateDatabase(t, name, "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
	_, err := newSource(t, Config{DSN: server.DSN(name), Pipeline: "x"}).State(testContext(t))
	if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "SQL_ASCII") {
		t.Errorf("got %v", err)
	}
}

func TestOtherEncodingsArriveAsUTF8(t *testing.T) {
	server := dbtest.Postgres(t)
	name := "latin_" + server.DatabaseName(t)
	server.CreateDatabase(t, name, "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	f := &fixture{t: t, server: server, dsn: server.DSN(name)}
	f.exec("SET client_encoding = 'UTF8'", `CREATE TABLE "größe" (id int PRIMARY KEY, v text)`)
	f.source = newSource(t, Config{DSN: f.dsn, Pipeline: name})
	f.publish()
	f.begin()
	f.exec("SET client_encoding = 'UTF8'", `INSERT INTO "größe" VALUES (1, 'é')`)
	wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT größe (1, é)")
}

func TestConnectionsDoNotLeak(t *testing.T) {
	f := begun(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
	count := func() string {
		return f.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = " + literal(f.source.cfg.AppName))
	}
	f.state()
	before := count()
	for range 5 {
		st := f.follow(source.FollowOptions{})
		st.stop()
		snap, err := f.source.Snapshot(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		copyText(t, snap, source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id"}})
		snap.Close(testContext(t))
	}
	f.state()
	eventually(t, "as many connections as before", 20*time.Second, func() bool { return count() == before })
}

// serveTLS makes a server take TLS connections, and only those, with a certificate
// of its own making; it returns the file to trust.
func serveTLS(t *testing.T, server *dbtest.Server) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(server.Host)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := server.WriteFile("server.crt", certificate); err != nil {
		t.Fatal(err)
	}
	if err := server.WriteFile("server.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})); err != nil {
		t.Fatal(err)
	}
	if err := server.WriteFile("pg_hba.conf", []byte("hostssl all all all trust\nlocal all all trust\n")); err != nil {
		t.Fatal(err)
	}
	if err := server.Configure(map[string]string{"ssl": "on"}); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	trusted := filepath.Join(t.TempDir(), "root.crt")
	if err := os.WriteFile(trusted, certificate, 0o644); err != nil {
		t.Fatal(err)
	}
	return trusted
}

func TestLogAndCopyThroughTLS(t *testing.T) {
	server := dbtest.Postgres(t, dbtest.Dedicated())
	name := server.DatabaseName(t)
	local := server.SocketDSN(name)
	server.Exec(t, local, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'first')")
	trusted := serveTLS(t, server)
	f := &fixture{t: t, server: server, dsn: local}
	keywords := fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=verify-full sslrootcert=%s", server.Host, server.Port, name, trusted)
	eventually(t, "the server takes TLS", 20*time.Second, func() bool {
		_, err := newSource(t, Config{DSN: keywords, Pipeline: "x"}).State(testContext(t))
		return err == nil
	})
	f.source = newSource(t, Config{DSN: keywords, Pipeline: "tls" + name})
	f.publish()
	snap := f.takeSnapshot()
	wantText(t, "copy", copyText(t, snap, source.CopyRequest{Table: f.relation("t").Table, Columns: []string{"id", "v"}}), "0\tfirst\n")
	f.exec("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 100000) i")
	time.Sleep(2 * behind) // a backlog: paced
	begin := time.Now()
	st := f.follow(source.FollowOptions{})
	for rows := 0; rows < 100000; {
		rows += len(st.next().Changes)
	}
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("100000 rows took %v", d)
	}
	wantText(t, "our sessions without TLS", f.query("SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE NOT s.ssl AND a.application_name = "+literal(f.source.cfg.AppName)), "0")
}
