package mysql

import (
	"time"

	"github.com/go-sql-driver/mysql"
)

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
