package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/fault"
)

// oldest is the first version whose pgoutput and catalogues we know.
const oldest = 14

// pinned are the settings of every session of ours. They travel in the start-up
// packet, which outranks what ALTER ROLE, ALTER DATABASE and the server's
// configuration say. The first group fixes how values are written, equal for copy
// and log; of DateStyle only the first word matters, the order of day and month
// is about input and we send none. row_security off makes a policy that would
// hide rows from a copy an error.
var pinned = map[string]string{
	"DateStyle":                   "ISO, MDY",
	"IntervalStyle":               "postgres",
	"extra_float_digits":          "3",
	"bytea_output":                "hex",
	"lc_monetary":                 "C",
	"xmloption":                   "content",
	"TimeZone":                    "UTC",
	"client_encoding":             "UTF8",
	"standard_conforming_strings": "on",

	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",

	// The server looks after half a minute whether we are still there: what a session
	// of ours that the network has forgotten holds is then free.
	"tcp_keepalives_idle":     "15",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "4",

	"search_path":         "pg_catalog",
	"row_security":        "off",
	"jit":                 "off",
	"client_min_messages": "warning",
}

// config returns a configuration for one session of ours.
func (s *Source) config() *pgconn.Config {
	c := s.conn.Config.Copy()
	delete(c.RuntimeParams, "options") // -c settings there would be beside the point
	for k := range c.RuntimeParams {   // names of parameters ignore case
		for p := range pinned {
			if strings.EqualFold(k, p) {
				delete(c.RuntimeParams, k)
			}
		}
	}
	for k, v := range pinned {
		c.RuntimeParams[k] = v
	}
	c.RuntimeParams["application_name"] = s.cfg.AppName
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 15 * time.Second // a host that swallows packets must not hold us for minutes
	}
	c.DialFunc = newDialer(c.ConnectTimeout).DialContext
	c.AfterConnect = greet
	return c
}

// newDialer notices a dead peer of an idle connection after half a minute.
func newDialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{Timeout: timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}}
}

// greet judges the server and pins what only newer versions know.
func greet(ctx context.Context, conn *pgconn.PgConn) error {
	if v := versionOf(conn); v < oldest {
		return fault.Refuse(fmt.Sprintf("upgrade the source to PostgreSQL %d or newer", oldest),
			"the source is PostgreSQL %s; %d is the oldest that is supported", conn.ParameterStatus("server_version"), oldest)
	}
	if conn.ParameterStatus("server_encoding") == "SQL_ASCII" {
		return fault.Refuse("move the data into a database made with ENCODING 'UTF8'",
			"the source database has the encoding SQL_ASCII: the server does not know what its bytes mean and cannot give UTF-8")
	}
	if versionOf(conn) >= 17 {
		return conn.Exec(ctx, "SET transaction_timeout = 0").Close()
	}
	return nil
}

// versionOf gives the server's major version; 0 if it does not say.
func versionOf(conn *pgconn.PgConn) int {
	text := conn.ParameterStatus("server_version") // 15.18 (Debian 15.18-0+deb12u1), 18beta1
	end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(text)
	}
	v, _ := strconv.Atoi(text[:end])
	return v
}

// connect opens an ordinary session.
func (s *Source) connect(ctx context.Context) (*pgx.Conn, error) {
	c := s.conn.Copy()
	c.Config = *s.config()
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, s.safe("connect to the source", err)
	}
	return conn, nil
}

// connectReplication opens a session of the replication protocol on the database.
func (s *Source) connectReplication(ctx context.Context) (*pgconn.PgConn, error) {
	return s.connectLog(ctx, nil)
}

// connectLog is connectReplication for a session whose socket is to be paced: wrap,
// if not nil, is given it.
func (s *Source) connectLog(ctx context.Context, wrap func(net.Conn) net.Conn) (*pgconn.PgConn, error) {
	c := s.config()
	c.RuntimeParams["replication"] = "database"
	if wrap != nil {
		dialer := newDialer(c.ConnectTimeout)
		dialer.Control = smallWindow
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if network == "unix" {
				return newDialer(c.ConnectTimeout).DialContext(ctx, network, address)
			}
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}
	}
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42501" {
			return nil, fault.Refuse(fmt.Sprintf("ALTER ROLE %s REPLICATION; -- or, on a managed service, grant its replication role", ident(c.User)),
				"role %s may not open a replication connection: %s", c.User, pg.Message)
		}
		return nil, s.safe("open a replication connection to the source", err)
	}
	return conn, nil
}

// safe replaces the driver's connection error, which carries the configuration
// with its password, by its text, its SQLSTATE and the judgement of it.
func (s *Source) safe(op string, err error) error {
	var known *fault.Error
	if errors.As(err, &known) {
		return known
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", op, context.Canceled)
	}
	safe := connectError{text: err.Error()}
	if p := s.conn.Password; p != "" {
		safe.text = strings.ReplaceAll(safe.text, p, "***")
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		safe.state = state.SQLState()
	}
	f := &fault.Error{Kind: fault.KindOf(err), Op: op, Err: safe}
	if strings.HasPrefix(safe.state, "28") {
		f.Remedy = "check user and password in source.dsn, and the server's pg_hba.conf"
	}
	return f
}

type connectError struct{ text, state string }

func (e connectError) Error() string    { return e.text }
func (e connectError) SQLState() string { return e.state }
