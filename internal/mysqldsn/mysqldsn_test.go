package mysqldsn

import (
	"fmt"
	"strings"
	"testing"

	"tailrace/internal/fault"
)

func TestConnectionStrings(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://u:p%40w@db.example.com/shop":                  "u p@w tcp db.example.com:3306 shop",
		"mariadb://u:p@db:3307/shop?ssl-mode=DISABLED":         "u p tcp db:3307 shop",
		"mysql://u@localhost/shop?socket=/run/mysqld.sock":     "u  unix /run/mysqld.sock shop",
		"u:p@tcp(10.0.0.1:3306)/shop?tls=preferred":            "u p tcp 10.0.0.1:3306 shop",
		"mysql://u:p@[::1]:3306/":                              "u p tcp [::1]:3306 ",
		"mysql://u:p@h/d?ssl-mode=REQUIRED&maxAllowedPacket=0": "u p tcp h:3306 d",
	} {
		c, err := Parse("source.dsn", dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if got := fmt.Sprintf("%s %s %s %s %s", c.User, c.Passwd, c.Net, c.Addr, c.DBName); got != want {
			t.Errorf("%s is %q, want %q", dsn, got, want)
		}
		if strings.Contains(dsn, "REQUIRED") && (c.TLS == nil || !c.TLS.InsecureSkipVerify) {
			t.Errorf("%s has TLS %+v", dsn, c.TLS)
		}
	}
	for _, dsn := range []string{"postgres://u:secret@h/d", "mysql://u:secret@h:port/d", "secret", "mysql://u:secret@h/d?nonsense=1x&tls=zz", "mysql://u:secret@h/d?ssl-mode=maybe"} {
		if _, err := Parse("source.dsn", dsn); fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), "source.dsn") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}
