package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/fault"
)

// parseDSN reads a connection string: a URL (mysql://user:password@host:3306/database,
// mariadb:// too) or the driver's own form (user:password@tcp(host:3306)/database). Both
// take the driver's parameters; ssl-ca and ssl-mode of the URL are those of MySQL's own
// programs. Errors never hold the text, which has a password in it.
func parseDSN(dsn string) (*mysql.Config, error) {
	scheme, _, isURL := strings.Cut(dsn, "://")
	if !isURL {
		c, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, fault.Badly("source.dsn is neither mysql://user:password@host:3306/database nor user:password@tcp(host:3306)/database")
		}
		return c, nil
	}
	if scheme != "mysql" && scheme != "mariadb" {
		return nil, fault.Badly("source.dsn begins with %s://; for source.kind mysql it is mysql://user:password@host:3306/database", scheme)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, fault.Badly("source.dsn is no URL like mysql://user:password@host:3306/database (special characters of the password are written as %%XX)")
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
	if err := useTLS(c, u.Hostname(), q); err != nil {
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
		return nil, fault.Badly("source.dsn has a parameter that is not known: it takes socket, ssl-mode, ssl-ca, ssl-cert, ssl-key and those of github.com/go-sql-driver/mysql")
	}
	with.User, with.Passwd, with.DBName, with.Net, with.Addr = c.User, c.Passwd, c.DBName, c.Net, c.Addr
	if c.TLS != nil {
		with.TLS = c.TLS
	}
	return with, nil
}

// useTLS applies ssl-mode (DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY),
// ssl-ca, ssl-cert and ssl-key.
func useTLS(c *mysql.Config, host string, q url.Values) error {
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
		return fault.Badly("source.dsn: ssl-mode is DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY")
	}
	t := &tls.Config{ServerName: host, InsecureSkipVerify: mode != "VERIFY_IDENTITY"}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return fault.Badly("source.dsn: read ssl-ca: %v", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return fault.Badly("source.dsn: ssl-ca %s holds no certificate", ca)
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
			return fault.Badly("source.dsn: read ssl-cert and ssl-key: %v", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	c.TLS = t
	return nil
}

// sessionSettings make every session of ours read values in one way, whatever the server
// and the account are set to.
var sessionSettings = map[string]string{
	"time_zone":         "'+00:00'",
	"sql_mode":          "''",   // no ANSI_QUOTES, no PAD_CHAR_TO_FULL_LENGTH
	"net_write_timeout": "3600", // a copy rests while the destination works
	"wait_timeout":      "28800",
	"lock_wait_timeout": "10", // of a table lock: DDL that waits for us holds up everybody
}

// connectPatience is how long a server may take to answer a new connection.
const connectPatience = 15 * time.Second

// prepared is the driver's configuration with what all our sessions need.
func prepared(c *mysql.Config) *mysql.Config {
	c = c.Clone()
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	for k, v := range sessionSettings {
		c.Params[k] = v
	}
	c.ParseTime, c.InterpolateParams, c.MultiStatements = false, true, false
	c.Collation, c.AllowNativePasswords, c.CheckConnLiveness = "utf8mb4_general_ci", true, true
	c.Timeout = connectPatience
	c.Logger = silent{}
	return c
}

// silent keeps the driver from writing to standard error by itself: its errors come back
// as errors.
type silent struct{}

func (silent) Print(...any) {}
