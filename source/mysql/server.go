package mysql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// server is what we have to know of the server; read once a connection of ours begins to
// need it, because a restart may change it.
type server struct {
	mariaDB   bool
	version   string
	major     int
	minor     int
	identity  string // MySQL: server_uuid; MariaDB: server_uid
	logBin    bool
	format    string // binlog_format
	image     string // binlog_row_image
	metadata  string // binlog_row_metadata; empty: the server has no such thing
	partial   string // binlog_row_value_options
	gtidMode  string // MySQL
	replica   bool   // log_replica_updates is off: what it receives is not in its log
	lowerCase int
	legacyPos string // MariaDB 11.4 and later: binlog_legacy_event_pos
	encrypted bool   // our sessions with it are
}

// atLeast reports whether the version is that or later.
func (v *server) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// variables reads system variables; those that the server does not have are missing.
func variables(ctx context.Context, q querier, names ...string) (map[string]string, error) {
	rows, err := q.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "','")+"')")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		all[strings.ToLower(name)] = value
	}
	return all, rows.Err()
}

// querier is a pool or one of its sessions.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// readServer reads the facts.
func (s *Source) readServer(ctx context.Context) (*server, error) {
	v, err := variables(ctx, s.db, "version", "server_uuid", "server_uid", "server_id", "hostname", "port", "log_bin", "binlog_format", "binlog_row_image",
		"binlog_row_metadata", "binlog_row_value_options", "gtid_mode", "log_replica_updates", "log_slave_updates", "lower_case_table_names", "binlog_legacy_event_pos")
	if err != nil {
		return nil, s.explain(err, "read the server's settings")
	}
	f := &server{version: v["version"], identity: v["server_uuid"], format: v["binlog_format"], image: v["binlog_row_image"],
		metadata: v["binlog_row_metadata"], partial: v["binlog_row_value_options"], gtidMode: v["gtid_mode"], legacyPos: v["binlog_legacy_event_pos"]}
	f.mariaDB = strings.Contains(f.version, "MariaDB")
	f.logBin = v["log_bin"] == "ON" || v["log_bin"] == "1"
	f.replica = v["log_replica_updates"] == "OFF" || v["log_slave_updates"] == "OFF"
	f.lowerCase, _ = strconv.Atoi(v["lower_case_table_names"])
	major, rest, _ := strings.Cut(f.version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	f.major, _ = strconv.Atoi(major)
	f.minor, _ = strconv.Atoi(minor)
	if f.mariaDB {
		f.identity = v["server_uid"]
		if f.identity == "" { // before 10.10: what comes nearest
			f.identity = fmt.Sprintf("%s@%s:%s", v["server_id"], v["hostname"], v["port"])
		}
	}
	if f.image == "" {
		f.image = "FULL"
	}
	var name, cipher string
	if err := s.db.QueryRowContext(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil {
		return nil, s.explain(err, "ask whether the session is encrypted")
	}
	f.encrypted = cipher != ""
	s.mu.Lock()
	s.known = f
	s.mu.Unlock()
	return f, nil
}

// facts gives what readServer last read.
func (s *Source) facts(ctx context.Context) (*server, error) {
	s.mu.Lock()
	f := s.known
	s.mu.Unlock()
	if f != nil {
		return f, nil
	}
	return s.readServer(ctx)
}

// logFile is one file of the server's log.
type logFile struct {
	name string
	size int64
}

// numberOf reads the number at the end of a log file's name.
func numberOf(name string) (base string, n uint32, err error) {
	at := strings.LastIndexByte(name, '.')
	if at < 0 {
		return "", 0, fault.Corrupted("the server's log file %q has no number", name)
	}
	number, err := strconv.ParseUint(name[at+1:], 10, 32)
	if err != nil || number == 0 {
		return "", 0, fault.Corrupted("the server's log file %q has no number", name)
	}
	return name[:at], uint32(number), nil
}

// fileBegin is where the first event of a file lies, behind four bytes that say what it is.
const fileBegin = 4

// positionOf makes a position of a file's name and an offset.
func (s *Source) positionOf(name string, offset uint64) (change.Position, error) {
	_, n, err := numberOf(name)
	return change.Position{Epoch: s.epoch(), File: n, Offset: offset}, err
}

// logFiles lists the files of the log, the oldest first.
func (s *Source) logFiles(ctx context.Context) ([]logFile, error) {
	rows, err := s.db.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return nil, s.explain(err, "list the files of the log")
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	var files []logFile
	for rows.Next() {
		var f logFile
		into := []any{&f.name, &f.size}
		for range len(columns) - 2 { // Encrypted
			into = append(into, new(sql.RawBytes))
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if err := rows.Err(); err != nil {
		return nil, s.explain(err, "list the files of the log")
	}
	if len(files) == 0 {
		return nil, noLog()
	}
	return files, nil
}

func noLog() error {
	return fault.Refuse("set log_bin (for example --log-bin=binlog, or [mysqld] log_bin = binlog) and a server_id, then restart the source", "the source keeps no binary log")
}

// status reads the end of the log, and MySQL's executed set.
func (s *Source) status(ctx context.Context, q querier) (file string, offset uint64, set string, err error) {
	f, err := s.facts(ctx)
	if err != nil {
		return "", 0, "", err
	}
	statement := "SHOW MASTER STATUS"
	if !f.mariaDB && f.atLeast(8, 2) {
		statement = "SHOW BINARY LOG STATUS"
	}
	rows, err := q.QueryContext(ctx, statement)
	if err != nil {
		return "", 0, "", s.explain(err, "read the end of the log")
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", 0, "", err
	}
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return "", 0, "", s.explain(err, "read the end of the log")
		}
		return "", 0, "", noLog()
	}
	into := []any{&file, &offset}
	for i := 2; i < len(columns); i++ {
		if columns[i] == "Executed_Gtid_Set" {
			into = append(into, &set)
		} else {
			into = append(into, new(sql.RawBytes))
		}
	}
	if err := rows.Scan(into...); err != nil {
		return "", 0, "", fmt.Errorf("read the end of the log: %w", err)
	}
	return file, offset, strings.Map(withoutSpace, set), rows.Close()
}

// gtidsAt reads the set at a place of the log: MariaDB can tell it of any transaction's
// end that its function's four bytes can name. Empty: it cannot.
func (s *Source) gtidsAt(ctx context.Context, q querier, file string, offset uint64) (string, error) {
	if offset > positionEnds {
		return "", nil
	}
	var set sql.NullString
	if err := q.QueryRowContext(ctx, "SELECT binlog_gtid_pos(?, ?)", file, offset).Scan(&set); err != nil {
		return "", s.explain(err, "read the GTIDs at a place of the log")
	}
	return set.String, nil
}

// Errors of the servers (mysqld_error.h).
const (
	errAccessDenied     = 1045
	errDBAccessDenied   = 1044
	errTableAccess      = 1142
	errColumnAccess     = 1143
	errPrivilege        = 1227
	errUnknownDatabase  = 1049
	errNoSuchTable      = 1146
	errTableChanged     = 1412
	errNoSuchIndex      = 1176
	errLockWait         = 1205
	errReadingBinlog    = 1236
	errServerShutdown   = 1053
	errTooManyUsers     = 1040
	errDeadlock         = 1213
	errKilled           = 1317
	errConnectionKilled = 1927
	errStatementTimeout = 3024
	errNoBinaryLogging  = 1381
)

func isCode(err error, codes ...uint16) bool {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Number == c {
			return true
		}
	}
	return false
}

// explain judges an error of the server or the driver, and gives it the remedy that its
// number has.
func (s *Source) explain(err error, op string, args ...any) error {
	op = fmt.Sprintf(op, args...)
	var judged *fault.Error
	var e *mysql.MySQLError
	var n net.Error
	var untrusted *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case err == nil, errors.As(err, &judged), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &untrusted), errors.As(err, &unknown):
		return fault.Refuse("name the authority that has signed the server's certificate with ssl-ca in source.dsn, and the server by a name that the certificate has (ssl-mode=VERIFY_CA does not look at the name)", "%s: the source's certificate is not trusted: %v", op, err)
	case errors.Is(err, mysql.ErrNoTLS):
		return fault.Refuse("give the server a certificate (ssl_cert, ssl_key), or set ssl-mode=PREFERRED in source.dsn", "%s: the source does not encrypt", op)
	case errors.As(err, &e):
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn), errors.Is(err, mysql.ErrPktSync), errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF), errors.As(err, &n), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, mysql.ErrBusyBuffer):
		return fault.Retry(err, "%s", op)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
	switch e.Number {
	case errAccessDenied:
		return fault.Refuse("correct user and password in source.dsn, and from where the account may come: CREATE USER ...@'%'", "%s: %v", op, e)
	case errDBAccessDenied, errTableAccess, errColumnAccess:
		return fault.Refuse(s.grant("SELECT", "*.*"), "%s: %v", op, e)
	case errPrivilege:
		return fault.Refuse(s.grant(s.replicationRights(), "*.*"), "%s: %v", op, e)
	case errNoBinaryLogging:
		return noLog()
	case errUnknownDatabase:
		return fault.Refuse("correct the database in source.dsn, or make it", "%s: %v", op, e)
	case errServerShutdown, errTooManyUsers, errDeadlock, errLockWait, errKilled, errConnectionKilled, errStatementTimeout, errTableChanged, errNoSuchIndex:
		return fault.Retry(e, "%s", op)
	}
	return fmt.Errorf("%s: %w", op, e)
}

// replicationRights are the rights that reading the log needs, beside SELECT.
func (s *Source) replicationRights() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known != nil && s.known.mariaDB {
		return "REPLICATION SLAVE, BINLOG MONITOR, RELOAD"
	}
	return "REPLICATION SLAVE, REPLICATION CLIENT, RELOAD"
}

// grant writes a GRANT for our account.
func (s *Source) grant(rights, on string) string {
	return fmt.Sprintf("GRANT %s ON %s TO '%s'@'%%'", rights, on, strings.ReplaceAll(s.dsn.User, "'", "''"))
}
