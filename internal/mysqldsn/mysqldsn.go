// Package mysqldsn reads the connection strings of MySQL and MariaDB servers.
package mysqldsn

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/fault"
)

// Parse reads a connection string: a URL (mysql://user:password@host:3306/database,
// mariadb:// too) or the driver's own form (user:password@tcp(host:3306)/database). Both
// take the driver's parameters; ssl-ca and ssl-mode of the URL are those of MySQL's own
// programs. key is the configuration's key, for messages: source.dsn, destination.dsn.
// Errors never hold the text, which has a password in it.
func Parse(key, dsn string) (*mysql.Config, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	if !isURL {
		c, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, fault.Badly("%s is neither mysql://user:password@host:3306/database nor user:password@tcp(host:3306)/database", key)
		}
		return c, nil
	}
	if scheme != "mysql" && scheme != "mariadb" {
		return nil, fault.Badly("%s begins with %s://; of kind mysql it is mysql://user:password@host:3306/database", key, scheme)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, fault.Badly("%s is no URL like mysql://user:password@host:3306/database (special characters of the password are written as %%XX)", key)
	}
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.DBName = strings.TrimPrefix(u.Path, "/")
	c.Net, c.Addr = "tcp", u.Host
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	q := u.Query()
	if socket := q.Get("socket"); socket != "" {
		c.Net, c.Addr = "unix", socket
	}
	if err := useTLS(key, c, u.Hostname(), q); err != nil {
		return nil, err
	}
	for _, own := range []string{"socket", "ssl-ca", "ssl-mode", "ssl-cert", "ssl-key"} {
		q.Del(own)
	}
	if len(q) == 0 {
		return c, nil
	}
	with, err := mysql.ParseDSN("/?" + q.Encode())
	if err != nil {
		return nil, fault.Badly("%s has a parameter that is not known: it takes socket, ssl-mode, ssl-ca, ssl-cert, ssl-key and those of github.com/go-sql-driver/mysql", key)
	}
	with.User, with.Passwd, with.DBName, with.Net, with.Addr = c.User, c.Passwd, c.DBName, c.Net, c.Addr
	if c.TLS != nil {
		with.TLS = c.TLS
	}
	if c.TLSConfig != "" {
		with.TLSConfig = c.TLSConfig
	}
	return with, nil
}

// useTLS applies ssl-mode (DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY),
// ssl-ca, ssl-cert and ssl-key.
func useTLS(name string, c *mysql.Config, host string, q url.Values) error {
	ca, cert, key := q.Get("ssl-ca"), q.Get("ssl-cert"), q.Get("ssl-key")
	mode := strings.ToUpper(q.Get("ssl-mode"))
	switch mode {
	case "":
		if ca == "" && cert == "" {
			return nil
		}
		mode = "REQUIRED"
		if ca != "" {
			mode = "VERIFY_IDENTITY"
		}
	case "DISABLED":
		c.TLSConfig = "false"
		return nil
	case "PREFERRED":
		c.TLSConfig = "preferred"
		return nil
	case "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY":
	default:
		return fault.Badly("%s: ssl-mode is DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY", name)
	}
	t := &tls.Config{ServerName: host, InsecureSkipVerify: mode != "VERIFY_IDENTITY"}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return fault.Badly("%s: read ssl-ca: %v", name, err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return fault.Badly("%s: ssl-ca %s holds no certificate", name, ca)
		}
	}
	if mode == "VERIFY_CA" { // the chain counts, the name does not
		t.VerifyConnection = func(s tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: t.RootCAs, Intermediates: x509.NewCertPool()}
			for _, between := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(between)
			}
			_, err := s.PeerCertificates[0].Verify(o)
			return err
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return fault.Badly("%s: read ssl-cert and ssl-key: %v", name, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	c.TLS = t
	return nil
}
