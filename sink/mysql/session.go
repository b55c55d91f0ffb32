package mysql

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
	"unsafe"

	driver "github.com/go-sql-driver/mysql"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// The settings under which values have one spelling and statements one meaning,
// whatever a server or user has set. No time-out may end a long copy or a transaction
// that waits for its next piece; a lock is waited for a minute, then the pipeline
// begins anew.
//
// A week of idleness is longer than any pause between batches should be; the row locks
// of a session whose client has vanished are freed when the pipeline is opened again,
// here or elsewhere, which ends it.
const pinned = `SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION';
SET SESSION time_zone = '+00:00', autocommit = 1, completion_type = 0, foreign_key_checks = 0, unique_checks = 1, sql_safe_updates = 0,
  sql_select_limit = 18446744073709551615, sql_auto_is_null = 0, wait_timeout = 604800, net_read_timeout = 3600, net_write_timeout = 3600,
  innodb_lock_wait_timeout = 60, lock_wait_timeout = 60, eq_range_index_dive_limit = 1, group_concat_max_len = 1048576;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET SESSION TRANSACTION READ WRITE;
`

// Lists of keys are long, and are to be found by the index however long they are.
const (
	pinnedMariaDB = `SET SESSION max_statement_time = 0, in_predicate_conversion_threshold = 0, optimizer_max_sel_arg_weight = 0;`
	pinnedMySQL   = `SET SESSION max_execution_time = 0, range_optimizer_max_mem_size = 0;`
)

// Oldest versions: MariaDB 10.6 has what we ask of its optimizer and is the oldest that
// is still maintained; MySQL 8.0.17 brought a collation that tells a text from the same
// with a blank behind it.
const (
	oldestMariaDB = 100600
	oldestMySQL   = 80017
)

// server is what a session's server is.
type server struct {
	mariaDB   bool
	version   int    // 101114 for 10.11.14
	collation string // compares texts as their bytes, trailing blanks included
	local     bool   // LOAD DATA LOCAL is permitted
	packet    int    // max_allowed_packet, bytes
	durable   bool   // a commit that has returned is on disk
}

// session is one connection with our settings.
type session struct {
	conn     sqldriver.Conn
	server   server
	id       int64         // of the connection, at the server
	user     string        // as a GRANT names it
	dead     bool          // it has failed in a way that ends it
	patience time.Duration // for one statement; 0: any
	line     *sink.Line    // its socket
}

// connect opens a session.
func (w *Writer) connect(ctx context.Context) (*session, error) {
	conf := w.conf.Clone()
	s := &session{patience: sidePatience}
	conf.DialFunc = s.dialed(sink.Dialer(conf.Timeout))
	connector, err := driver.NewConnector(conf)
	if err != nil {
		return nil, fault.Badly("the destination's dsn is refused by the driver")
	}
	greeted, done := context.WithTimeout(ctx, conf.Timeout) // a server may take the connection and say nothing
	s.conn, err = connector.Connect(greeted)
	done()
	if err != nil {
		return nil, w.explain(err, "connect to the destination", nil)
	}
	if err := s.prepare(ctx, sessionLock(w.id, w.sessions.Add(1))); err != nil {
		s.close()
		return nil, w.explain(err, "prepare a session of the destination", nil)
	}
	s.patience, s.line.Backend = 0, s.id
	w.mu.Lock()
	w.user = s.user
	w.mu.Unlock()
	return s, nil
}

// account is the user that the server took the last session's for; "" before the first.
func (w *Writer) account() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.user
}

// prepare looks at the server, takes the session's lock and sets its settings.
func (s *session) prepare(ctx context.Context, lock string) error {
	rows, err := s.query(ctx, bind("SELECT VERSION(), @@local_infile, @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@read_only, CONNECTION_ID(), CURRENT_USER(), GET_LOCK(?, 0)", lock))
	if err != nil {
		return err
	}
	r := rows[0]
	v := &s.server
	v.mariaDB, v.version = parseVersion(str(r[0]))
	name, oldest := "MySQL 8.0.17", oldestMySQL
	v.collation = "utf8mb4_0900_bin"
	if v.mariaDB {
		name, oldest, v.collation = "MariaDB 10.6", oldestMariaDB, "utf8mb4_nopad_bin"
	}
	if v.version < oldest {
		return fault.Refuse("use a server of "+name+" or later", "the destination is version %s", str(r[0]))
	}
	v.local = str(r[1]) == "1"
	v.packet = int(num(r[2]))
	v.durable = str(r[3]) == "1" && (str(r[4]) == "0" || str(r[5]) == "1")
	s.id = num(r[7])
	s.user = account(str(r[8]))
	further := pinnedMySQL
	if v.mariaDB {
		further = pinnedMariaDB
	}
	_, err = s.exec(ctx, "SET NAMES utf8mb4 COLLATE "+v.collation+";"+pinned+further)
	return err
}

// choose chooses the bookkeeping's database, which is there for an owner: a DELETE by an
// alias wants one to be chosen, in which the user has rights, whatever table it names.
func (s *session) choose(ctx context.Context) error {
	_, err := s.exec(ctx, "USE _tailrace")
	return err
}

// parseVersion reads what VERSION() says: 10.11.14-MariaDB-..., 8.0.36. Behind a proxy
// MariaDB says 5.5.5- in front.
func parseVersion(text string) (mariaDB bool, version int) {
	mariaDB = strings.Contains(text, "MariaDB")
	if mariaDB {
		text = strings.TrimPrefix(text, "5.5.5-")
	}
	for i, part := range strings.SplitN(text, ".", 3) {
		n := 0
		for _, c := range part {
			if c < '0' || c > '9' {
				break
			}
			n = n*10 + int(c-'0')
		}
		version += n * []int{10000, 100, 1}[i]
	}
	return mariaDB, version
}

func (s *session) close() {
	if s != nil {
		s.dead = true
		// The driver says nothing of use here: what is left of the session ends with its
		// connection.
		if err := s.conn.Close(); err != nil {
			return
		}
	}
}

// limited bounds one statement by the session's patience.
func (s *session) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.patience)
}

// failed takes down whether an error has ended the session.
func (s *session) failed(err error) error {
	var e *driver.MySQLError
	if err != nil && (!errors.As(err, &e) || e.Number == erShutdown || e.Number == erKilled) {
		s.dead = true
	}
	return err
}

// exec runs statements and returns how many rows the last one met.
func (s *session) exec(ctx context.Context, sql string) (int64, error) {
	res, err := s.run(ctx, sql)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// execEach runs statements and returns how many rows each of them met.
func (s *session) execEach(ctx context.Context, sql string) ([]int64, error) {
	res, err := s.run(ctx, sql)
	if err != nil {
		return nil, err
	}
	return res.(driver.Result).AllRowsAffected(), nil
}

func (s *session) run(ctx context.Context, sql string) (sqldriver.Result, error) {
	if s.dead {
		return nil, driver.ErrInvalidConn
	}
	ctx, done := s.limited(ctx)
	defer done()
	res, err := s.conn.(sqldriver.ExecerContext).ExecContext(ctx, sql, nil)
	return res, s.failed(err)
}

// text views a statement as a string without copying; the driver copies it.
func text(sql []byte) string { return unsafe.String(unsafe.SliceData(sql), len(sql)) }

// insertID runs an INSERT and returns the number that its row was given.
func (s *session) insertID(ctx context.Context, sql string) (int64, error) {
	res, err := s.run(ctx, sql)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// stream runs one statement and gives each of its rows, valid during the call. An error
// of fn ends the reading: of the session too with abandon, else the rest is read first.
func (s *session) stream(ctx context.Context, sql string, abandon bool, head func(columns []string) error, fn func(row []sqldriver.Value) error) error {
	if s.dead {
		return driver.ErrInvalidConn
	}
	ctx, done := s.limited(ctx)
	defer done()
	rows, err := s.conn.(sqldriver.QueryerContext).QueryContext(ctx, sql, nil)
	if err != nil {
		return s.failed(err)
	}
	stop := func(err error) error {
		if abandon {
			s.close()
			return err
		}
		if e := rows.Close(); e != nil {
			return s.failed(e)
		}
		return err
	}
	if head != nil {
		if err := head(rows.Columns()); err != nil {
			return stop(err)
		}
	}
	row := make([]sqldriver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return s.failed(rows.Close())
		} else if err != nil {
			return s.failed(err)
		}
		if err := fn(row); err != nil {
			return stop(err)
		}
	}
}

// query runs one statement and returns its rows as text; nil is NULL.
func (s *session) query(ctx context.Context, sql string) (out [][]*string, err error) {
	err = s.stream(ctx, sql, false, nil, func(row []sqldriver.Value) error {
		line := make([]*string, len(row))
		for i, v := range row {
			line[i] = cell(v)
		}
		out = append(out, line)
		return nil
	})
	return out, err
}

// cell is a value of a result as text; nil is NULL.
func cell(v sqldriver.Value) *string {
	var text string
	switch v := v.(type) {
	case nil:
		return nil
	case []byte:
		text = string(v)
	case int64:
		text = strconv.FormatInt(v, 10)
	case uint64:
		text = strconv.FormatUint(v, 10)
	case float64:
		text = strconv.FormatFloat(v, 'g', -1, 64)
	case float32:
		text = strconv.FormatFloat(float64(v), 'g', -1, 32)
	}
	return &text
}

// str is a text cell, "" for NULL.
func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func num(s *string) int64 {
	n, _ := strconv.ParseInt(str(s), 10, 64)
	return n
}

// bytesOf is a cell of bytes; nil for NULL.
func bytesOf(v sqldriver.Value) []byte {
	b, _ := v.([]byte)
	return b
}

func intOf(v sqldriver.Value) int64 {
	n, _ := v.(int64)
	return n
}
