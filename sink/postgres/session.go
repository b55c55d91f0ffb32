package postgres

import (
	"container/list"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// pinned are the settings under which values have one spelling and statements
// one meaning, whatever a server, database or role has set. No time-out of theirs
// may end a long copy or a transaction that waits for its next piece. The server
// looks after half a minute whether we are still there: what a session of ours that
// the network has forgotten holds is then free.
const pinned = `SET client_encoding = 'UTF8';
SET DateStyle = 'ISO, MDY';
SET IntervalStyle = 'postgres';
SET TimeZone = 'UTC';
SET extra_float_digits = 3;
SET bytea_output = 'hex';
SET lc_monetary = 'C';
SET xmloption = 'content';
SET standard_conforming_strings = on;
SET search_path = pg_catalog;
SET row_security = off;
SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off;
SET default_transaction_deferrable = off;
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET idle_session_timeout = 0;
SET tcp_keepalives_idle = 15;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 4;
SET synchronous_commit = off;
SET jit = off;
`

// descend makes the planner find a target's rows by its index, for every row of a
// batch, always. Left to itself it joins middle-sized batches by reading the whole
// target, and a plan made while a table was small would stay.
const descend = `SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_material = off;
SET enable_memoize = off;
SET work_mem = '64MB';
`

const oldestServer = 140000

// session is one connection with our settings, and its prepared statements.
type session struct {
	conn    *pgconn.PgConn
	replica bool // of a borrowed session: mayReplicate

	// Prepared statements by text, the least recently used at the back. 256 of
	// them, at some 20 kB each in the server, serve fifty busy targets.
	prepared map[string]*list.Element
	recent   list.List
	made     int
	queueing bool // statements wait to be sent: none of those that are prepared may go

	line     *sink.Line    // its socket
	patience time.Duration // for one statement; 0: any
}

const preparedMax = 256

type statement struct {
	sql  string
	desc *pgconn.StatementDescription
}

// connect opens a session. further is SQL that pins more settings.
func (w *Writer) connect(ctx context.Context, further string) (*session, error) {
	conf := w.named()
	s := &session{prepared: map[string]*list.Element{}}
	conf.DialFunc = s.dialed(conf.DialFunc)
	var err error
	if s.conn, err = pgconn.ConnectConfig(ctx, conf); err != nil {
		return nil, w.explain(ctx, err, "connect to the destination", nil)
	}
	s.line.Backend = int64(s.conn.PID())
	if err := s.admit(ctx); err != nil {
		s.close(ctx)
		return nil, err
	}
	if s.version() >= 170000 {
		further += "SET transaction_timeout = 0;"
	}
	s.patience = sidePatience
	if err := s.exec(ctx, pinned+further); err != nil {
		s.close(ctx)
		return nil, w.explain(ctx, err, "prepare a session of the destination", nil)
	}
	s.patience = 0
	return s, nil
}

// named is the configuration of a session by whose name a successor finds it.
func (w *Writer) named() *pgconn.Config {
	conf := w.conf.Copy()
	if conf.RuntimeParams == nil {
		conf.RuntimeParams = map[string]string{}
	}
	conf.RuntimeParams["application_name"] = w.applicationName()
	return conf
}

// applicationName ends with the Writer's id, by which a successor finds its
// sessions. PostgreSQL cuts it at 63 bytes.
func (w *Writer) applicationName() string {
	name := w.cfg.AppName + " " + w.cfg.Pipeline
	for len(name) > 54 || !utf8.ValidString(name) {
		name = name[:len(name)-1]
	}
	return name + " " + w.id
}

// admit looks at what the server says of itself while connecting.
func (s *session) admit(ctx context.Context) error {
	if v := s.version(); v < oldestServer {
		return fault.Refuse("use a server of version 14 or later", "the destination is PostgreSQL %s", s.conn.ParameterStatus("server_version"))
	}
	if e := s.conn.ParameterStatus("server_encoding"); e != "UTF8" {
		return fault.Refuse("create the database with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
			"the destination database's encoding is %s: it cannot hold every character of a source", e)
	}
	if s.conn.ParameterStatus("in_hot_standby") == "on" {
		return fault.Refuse("give the primary's address as the destination (target_session_attrs=read-write chooses it among several)", "the destination is a standby: it cannot be written to")
	}
	return nil
}

// version is the server's version number, as server_version_num has it; a beta
// counts as its release.
func (s *session) version() int {
	major, minor, _ := strings.Cut(s.conn.ParameterStatus("server_version"), ".")
	return leadingNumber(major)*10000 + leadingNumber(minor)
}

func leadingNumber(s string) int {
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

func (s *session) close(ctx context.Context) {
	if s != nil {
		s.conn.Close(ctx)
	}
}

// limited bounds one statement by the session's patience.
func (s *session) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.patience)
}

// exec runs statements without parameters or results.
func (s *session) exec(ctx context.Context, sql string) error {
	ctx, done := s.limited(ctx)
	defer done()
	return s.conn.Exec(ctx, sql).Close()
}

// query runs one statement and returns its rows as text; nil is NULL. A parameter
// that is nil is NULL.
func (s *session) query(ctx context.Context, sql string, params ...any) ([][]*string, error) {
	ctx, done := s.limited(ctx)
	defer done()
	return textRows(s.conn.ExecParams(ctx, sql, parameters(params), nil, nil, nil).Read())
}

func parameters(params []any) [][]byte {
	values := make([][]byte, len(params))
	for i, p := range params {
		switch p := p.(type) {
		case nil:
		case []string:
			values[i] = []byte(arrayText(p))
		default:
			values[i] = fmt.Append([]byte{}, p) // never nil, which is NULL
		}
	}
	return values
}

// ask is query for a statement that is asked again and again, and so is prepared.
func (s *session) ask(ctx context.Context, sql string, params ...any) ([][]*string, error) {
	ctx, done := s.limited(ctx)
	defer done()
	desc, err := s.prepare(ctx, sql)
	if err != nil {
		return nil, err
	}
	return textRows(s.conn.ExecPrepared(ctx, desc.Name, parameters(params), nil, nil).Read())
}

func textRows(res *pgconn.Result) ([][]*string, error) {
	if res.Err != nil {
		return nil, res.Err
	}
	out := make([][]*string, len(res.Rows))
	for i, row := range res.Rows {
		out[i] = make([]*string, len(row))
		for j, v := range row {
			if v != nil {
				text := string(v)
				out[i][j] = &text
			}
		}
	}
	return out, nil
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

// arrayText writes an array of texts as the server reads it.
func arrayText(list []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, s := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		b.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// prepare gives the prepared statement of a text. No statement of ours returns a
// target's columns, so that none can fail because such a column changed.
func (s *session) prepare(ctx context.Context, sql string) (*pgconn.StatementDescription, error) {
	if e := s.prepared[sql]; e != nil {
		s.recent.MoveToFront(e)
		return e.Value.(*statement).desc, nil
	}
	for s.recent.Len() >= preparedMax && !s.queueing {
		e := s.recent.Back()
		old := e.Value.(*statement)
		if err := s.conn.Deallocate(ctx, old.desc.Name); err != nil {
			return nil, err
		}
		s.recent.Remove(e)
		delete(s.prepared, old.sql)
	}
	s.made++
	desc, err := s.conn.Prepare(ctx, "tailrace_"+strconv.Itoa(s.made), sql, nil)
	if err != nil {
		return nil, err
	}
	s.prepared[sql] = s.recent.PushFront(&statement{sql, desc})
	return desc, nil
}

// forget drops every prepared statement: after a target's definition has changed.
func (s *session) forget(ctx context.Context) error {
	s.prepared = map[string]*list.Element{}
	s.recent.Init()
	return s.exec(ctx, "DEALLOCATE ALL")
}
