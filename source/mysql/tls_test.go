package mysql

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// authority is a certificate that signs others, and its file.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	dir, err := os.MkdirTemp("", "tailrace-tls-") // the server's user reads it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a := &authority{dir: dir}
	a.cert = &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.file, _, a.key = a.sign(t, name, a.cert)
	return a
}

// sign signs a certificate, or the authority's own, and writes it and its key.
func (a *authority) sign(t *testing.T, name string, c *x509.Certificate) (cert, key string, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	by := a.key
	if by == nil {
		by = private
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &private.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, private
}

// Copy and stream are encrypted alike, and trust alike.
func TestCopyAndStreamAreEncrypted(t *testing.T) {
	ca, stranger := newAuthority(t, "ca"), newAuthority(t, "stranger")
	cert, key, _ := ca.sign(t, "server", &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	mine, mineKey, _ := ca.sign(t, "client", &x509.Certificate{Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)",
			"CREATE USER secure@'%' IDENTIFIED BY 'throw-away' REQUIRE SSL", "GRANT ALL ON *.* TO secure@'%'",
			"CREATE USER known@'%' IDENTIFIED BY 'throw-away' REQUIRE SUBJECT '/CN=client'", "GRANT ALL ON *.* TO known@'%'")
		at := fmt.Sprintf("@127.0.0.1:%d/%s?ssl-mode=", r.server.Port, r.database)
		for _, c := range []struct{ dsn, refused string }{
			{"secure:throw-away" + at + "REQUIRED", ""},
			{"secure:throw-away" + at + "PREFERRED", ""},
			{"secure:throw-away" + at + "PREFERRED&connectionAttributes=a:b", ""},
			{"secure:throw-away" + at + "VERIFY_CA&ssl-ca=" + ca.file, ""},
			{"secure:throw-away" + at + "VERIFY_IDENTITY&ssl-ca=" + ca.file, ""},
			{"known:throw-away" + at + "VERIFY_CA&ssl-ca=" + ca.file + "&ssl-cert=" + mine + "&ssl-key=" + mineKey, ""},
			{"secure:throw-away" + at + "VERIFY_CA&ssl-ca=" + stranger.file, "not trusted"},
			{"secure:throw-away" + strings.Replace(at, "127.0.0.1", "localhost", 1) + "VERIFY_IDENTITY&ssl-ca=" + ca.file, "not trusted"},
			{"secure:throw-away" + at + "DISABLED", "Access denied"},
			{"known:throw-away" + at + "REQUIRED", "Access denied"},
		} {
			s := &rig{T: t, server: r.server, database: r.database, source: r.open(Config{DSN: "mysql://" + c.dsn, Pipeline: "test tls", Logger: r.source.log})}
			if c.refused != "" {
				_, err := s.source.State(t.Context())
				if err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%s: %v", c.dsn, err)
				}
				continue
			}
			if rows := s.copyTable("t"); len(rows) != 1 {
				t.Errorf("%s: copied %q", c.dsn, rows)
			}
			from, resume := s.mark()
			r.exec("UPDATE t SET id = id + 1")
			h, err := s.follow(from, s.head(), source.FollowOptions{Resume: resume})
			if err != nil || len(h.events) != 1 {
				t.Errorf("%s: %d events, %v", c.dsn, len(h.events), err)
			}
		}
		// Where the server does not encrypt, that is preferred and not demanded.
	}, dbtest.Setting("ssl-ca", ca.file), dbtest.Setting("ssl-cert", cert), dbtest.Setting("ssl-key", key))
	plain := newRig(t, dbtest.MariaDB(t), Config{})
	plain.exec("CREATE TABLE t (id int PRIMARY KEY)")
	for mode, refused := range map[string]bool{"PREFERRED": false, "REQUIRED": true} {
		s := &rig{T: t, server: plain.server, database: plain.database, source: plain.open(Config{DSN: plain.server.URL(plain.database) + "?ssl-mode=" + mode, Pipeline: "test tls", Logger: plain.source.log})}
		if _, err := s.source.State(t.Context()); refused != (err != nil) || refused && (fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "") {
			t.Errorf("%s: %v", mode, err)
		}
		if refused {
			continue
		}
		from, resume := s.mark()
		plain.exec("INSERT INTO t VALUES (1)")
		if h, err := s.follow(from, s.head(), source.FollowOptions{Resume: resume}); err != nil || len(h.events) != 1 {
			t.Errorf("%s: %d events, %v", mode, len(h.events), err)
		}
	}
}
