package mysql

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	binlog "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"tailrace/internal/fault"
)

// positionEnds is the last place that fits into the four bytes that a position has in the
// protocol, in events and in MariaDB's functions. A file may be larger, because a
// transaction is never divided.
const positionEnds = 1<<32 - 1

// writePatience is how long the server waits for us to take what it sends, while the
// destination is slow or a table is copied. Its own default of a minute ends a stream
// that rests.
const writePatience = 24 * time.Hour

// stream reads the log from the follower's place until the context ends or something
// fails.
func (f *follower) stream(ctx context.Context) error {
	err := f.source.readLog(ctx, f.facts, f.source.cfg.ServerID, f.file, f.offset, f.idle, f)
	if f.failed != nil {
		return f.failed
	}
	return f.source.explainStream(err)
}

// readLog connects as the replica of that number and hands every event behind the offset
// to the handler, with some of the file's first ones in front. An offset beyond the
// protocol's is read up to from the beginning of the file: those events are handed on too.
func (s *Source) readLog(ctx context.Context, facts *server, number uint32, file string, offset uint64, idle func(backlog bool) (time.Duration, error), handler replication.EventHandler) error {
	conn := &logConn{ctx: ctx, silence: s.silence, idle: idle}
	host, port := s.dsn.Addr, uint16(0)
	if s.dsn.Net == "tcp" {
		h, p, err := net.SplitHostPort(s.dsn.Addr)
		if err != nil {
			return fault.Badly("source.dsn has no host and port")
		}
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return fault.Badly("source.dsn has no port")
		}
		host, port = h, uint16(n)
	}
	flags := uint16(0)
	flavor := binlog.MySQLFlavor
	if facts.mariaDB {
		flavor = binlog.MariaDBFlavor
		flags = replication.BINLOG_SEND_ANNOTATE_ROWS_EVENT // so that every event is sent, and offsets add up
	}
	cfg := replication.BinlogSyncerConfig{
		ServerID: number, Flavor: flavor, Host: host, Port: port, User: s.dsn.User, Password: s.dsn.Passwd, Localhost: "tailrace " + s.cfg.Pipeline,
		RawModeEnabled: true, HeartbeatPeriod: heartbeat, DisableRetrySync: true, DiscardGTIDSet: true, EventCacheCount: 1, DumpCommandFlag: flags,
		Logger: slog.New(slog.DiscardHandler), TLSConfig: s.encryption(facts), SynchronousEventHandler: handler,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			d := net.Dialer{Timeout: connectPatience}
			c, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// A server that takes connections and says nothing must not hold us.
			if err := c.SetDeadline(time.Now().Add(connectPatience)); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			if conn.Conn != nil { // later ones end the first
				return c, nil
			}
			conn.Conn = c
			return conn, nil
		},
		Option: func(c *client.Conn) error {
			if _, err := c.Execute(fmt.Sprintf("SET SESSION net_write_timeout = %d", int(writePatience.Seconds()))); err != nil {
				return err
			}
			return sameServer(c, facts)
		},
	}
	syncer := replication.NewBinlogSyncer(cfg)
	start := binlog.Position{Name: file, Pos: uint32(offset)}
	if offset > positionEnds {
		start.Pos = fileBegin
	}
	conn.started.Store(false)
	events, err := syncer.StartSync(start)
	if err != nil {
		syncer.Close()
		return err
	}
	conn.started.Store(true) // each read has its own deadline from now on
	if err := conn.Conn.SetWriteDeadline(time.Time{}); err != nil {
		syncer.Close()
		return fault.Retry(err, "read the log")
	}
	interrupt := context.AfterFunc(ctx, func() { conn.Conn.SetReadDeadline(time.Unix(1, 0)) })
	defer interrupt()
	_, err = events.GetEvent(ctx) // events go to the handler: only the end comes here
	syncer.Close()                // waits for its goroutine
	return err
}

// encryption is what the stream does about TLS: what the other sessions do. Where it is
// preferred they tell whether the server can.
func (s *Source) encryption(facts *server) *tls.Config {
	if s.dsn.TLSConfig != "preferred" {
		return s.dsn.TLS
	}
	if !facts.encrypted {
		return nil
	}
	return &tls.Config{InsecureSkipVerify: true} // nobody was asked to verify: this is against listeners alone
}

// sameServer refuses a connection that has come to another server than the questions did:
// behind one name there may be several.
func sameServer(c *client.Conn, facts *server) error {
	name := "server_uuid"
	if facts.mariaDB {
		name = "server_uid" // not before 10.10
	}
	r, err := c.Execute("SHOW GLOBAL VARIABLES LIKE '" + name + "'")
	if err != nil {
		return err
	}
	defer r.Close()
	if r.RowNumber() == 0 {
		return nil
	}
	identity, err := r.GetString(0, 1)
	if err == nil && identity != facts.identity {
		err = fault.Retry(nil, "read the log: the connection has come to another server (%s) than the questions before it (%s)", identity, facts.identity)
	}
	return err
}

// explainStream gives the server's errors in the stream their remedies.
func (s *Source) explainStream(err error) error {
	var e *binlog.MyError
	var judged *fault.Error
	switch {
	case errors.As(err, &judged), errors.Is(err, context.Canceled):
		return err
	case !errors.As(err, &e):
		return fault.Retry(err, "read the log")
	}
	text := e.Message
	switch {
	case e.Code == errAccessDenied || e.Code == errPrivilege:
		return fault.Refuse(s.grant(s.replicationRights(), "*.*"), "the account may not read the log: %s", text)
	case e.Code != errReadingBinlog:
		return fault.Retry(err, "read the log")
	case strings.Contains(text, "same server_id") || strings.Contains(text, "same server_uuid"):
		return fault.Refuse(fmt.Sprintf("end the other reader, or give this pipeline another number: source.server_id (it is %d now)", s.cfg.ServerID),
			"another replica with the number of this pipeline has connected to the source, which serves only one: %s", text)
	case strings.Contains(text, "purged") || strings.Contains(text, "Could not find first log file"):
		return fault.Refuse("`tailrace run --overwrite` copies everything again; then keep the log longer on the source (binlog_expire_logs_seconds)", "the log was purged: %s", text)
	case strings.Contains(text, "shutdown") || strings.Contains(text, "KILL"):
		return fault.Retry(err, "read the log")
	}
	return fault.Refuse("look into the source's error log. If its log is damaged: `tailrace run --overwrite` copies everything again", "the source cannot read its log: %s", text)
}
