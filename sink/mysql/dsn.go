package mysql

import (
	"time"

	driver "github.com/go-sql-driver/mysql"

	"tailrace/internal/fault"
	"tailrace/internal/mysqldsn"
)

// connectPatience is for a server that swallows packets, if the dsn says nothing.
const connectPatience = 15 * time.Second

// parseDSN reads destination.dsn. The settings of sessions are ours.
func parseDSN(dsn string) (*driver.Config, error) {
	c, err := mysqldsn.Parse("destination.dsn", dsn)
	if err != nil {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = connectPatience
	}
	if len(c.Params) > 0 {
		return nil, fault.Badly("destination.dsn sets variables of the server's sessions, which are tailrace's to set: leave all but tls, ssl-... and timeouts out")
	}
	c.ParseTime, c.InterpolateParams, c.CheckConnLiveness = false, false, false
	c.Logger = &driver.NopLogger{} // its errors come back as errors
	c.Collation = "utf8mb4_bin"    // set again when the server is known
	c.ClientFoundRows = true       // an UPDATE counts the rows that it meets
	c.MultiStatements = true
	c.MaxAllowedPacket = 1 << 30 // the server's limit is looked at
	if _, err := driver.NewConnector(c); err != nil {
		return nil, fault.Badly("destination.dsn: the driver refuses it; write it as mysql://user:password@host:3306/database")
	}
	return c, nil
}

// Database is the database that a connection string names, where targets without a schema
// lie if nothing else is said; "" if it names none or cannot be read (New says why).
func Database(dsn string) string {
	c, err := parseDSN(dsn)
	if err != nil {
		return ""
	}
	return c.DBName
}
