package mysql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	binlog "github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-sql-driver/mysql"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

var _ source.Querier = (*Source)(nil)

// A query is put in parentheses behind this: on its first line, so that lines are
// counted as they are in the query. No row is asked for where it is described.
const (
	queryBefore  = "SELECT * FROM ("
	queryBehind  = "\n) AS q"
	queryNoRows  = queryBehind + " LIMIT 0"
	querySession = "SET SESSION sql_mode = '', lock_wait_timeout = 10"
)

// DescribeQuery implements source.Querier.
func (s *Source) DescribeQuery(ctx context.Context, query string) (*change.Table, error) {
	_, definitions, err := s.describeQuery(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("describe a query: %w", err)
	}
	t := &change.Table{Columns: make([]change.Column, len(definitions))}
	for i := range definitions {
		d := &definitions[i]
		t.Columns[i] = change.Column{Name: d.name, Type: d.destinationType(s.cfg.ZeroDates), Nullable: true}
	}
	return t, nil
}

// describeQuery reads the description that the server sends before rows. The driver of
// our other sessions does not pass all of it on, so this one is the library's by which
// the log is read.
func (s *Source) describeQuery(ctx context.Context, query string) (*source.Query, []definition, error) {
	q, err := source.ReadQuery(query, true)
	if err != nil {
		return nil, nil, err
	}
	if q.Has("FOR", "UPDATE") || q.Has("FOR", "SHARE") || q.Has("LOCK", "IN") {
		return nil, nil, fault.Refuse("take FOR UPDATE, FOR SHARE and LOCK IN SHARE MODE out of the query", "the query locks rows, and would read them as they are after the snapshot")
	}
	conn, err := s.connectToDescribe(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Quit()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	for _, statement := range []string{querySession, "START TRANSACTION READ ONLY"} {
		if _, err := conn.Execute(statement); err != nil {
			return nil, nil, s.explain(ofDriver(err), "prepare a session")
		}
	}
	// By itself first: so that the server says whether it is one statement.
	prepared, err := conn.Prepare(q.Text)
	if err != nil {
		return nil, nil, s.explainQuery(q, err)
	}
	switch {
	case prepared.ParamNum() > 0:
		return nil, nil, fault.Refuse(source.QueryRemedy, "the query has a parameter (?)")
	case prepared.ColumnNum() == 0:
		return nil, nil, fault.Refuse(source.QueryRemedy, "the query gives no columns")
	}
	if err := prepared.Close(); err != nil {
		return nil, nil, s.explainQuery(q, err)
	}
	result, err := conn.Execute(queryBefore + q.Text + queryNoRows)
	if err != nil {
		return nil, nil, s.explainQuery(q, err)
	}
	definitions := make([]definition, len(result.Fields))
	for i, f := range result.Fields {
		if definitions[i], err = definitionOf(f); err != nil {
			return nil, nil, err
		}
	}
	return q, definitions, nil
}

func (s *Source) connectToDescribe(ctx context.Context) (*client.Conn, error) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Timeout: connectPatience}
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := c.SetDeadline(time.Now().Add(questionPatience)); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}
	conn, err := client.ConnectWithDialer(ctx, s.dsn.Net, s.dsn.Addr, s.dsn.User, s.dsn.Passwd, s.dsn.DBName, dial, func(c *client.Conn) error {
		c.SetTLSConfig(s.dsn.TLS)
		return nil
	})
	if err != nil {
		return nil, s.explain(ofDriver(err), "connect to the source")
	}
	return conn, nil
}

// ofDriver makes an error of the library one of the driver, which explain knows.
func ofDriver(err error) error {
	var e *binlog.MyError
	switch {
	case errors.As(err, &e):
		of := &mysql.MySQLError{Number: e.Code, Message: e.Message}
		copy(of.SQLState[:], e.State)
		return of
	case errors.Is(err, binlog.ErrBadConn):
		return errors.Join(mysql.ErrInvalidConn, err)
	}
	return err
}

// queryCharacter is the most bytes that a character has in texts sent to us (utf8mb4),
// by which the server counts their lengths.
const queryCharacter = 4

// binaryCollation is the number by which the server calls bytes.
const binaryCollation = 63

// definitionOf reads the server's description of a column of a result.
func definitionOf(f *binlog.Field) (definition, error) {
	d := definition{name: string(f.Name), nullable: true, unsigned: f.Flag&binlog.UNSIGNED_FLAG != 0}
	length, binary := int(f.ColumnLength), f.Charset == binaryCollation
	switch f.Type {
	case typeTiny, typeShort, typeInt24, typeLong, typeLongLong:
		d.kind, d.width = integer, map[uint8]int{typeTiny: 1, typeShort: 2, typeInt24: 3, typeLong: 4, typeLongLong: 8}[f.Type]
	case typeFloat:
		d.kind = float32Kind
	case typeDouble:
		d.kind = float64Kind
	case typeNewDecimal:
		// The length counts a point, and a sign where one may be.
		d.kind, d.precision, d.scale = decimalKind, length, int(f.Decimal)
		if d.scale > 0 {
			d.precision--
		}
		if !d.unsigned {
			d.precision--
		}
		d.precision = max(d.precision, d.scale, 1)
	case typeBit:
		d.kind, d.precision = bitKind, length
	case typeYear:
		d.kind = yearKind
	case typeDate:
		d.kind = dateKind
	case typeDatetime:
		d.kind = datetimeKind
	case typeTimestamp:
		d.kind = timestampKind
	case typeTime:
		d.kind = timeKind
	case typeJSON:
		d.kind = jsonKind
	case typeGeometry:
		d.kind = geometryKind
	case typeVector:
		d.kind = bytesKind
	case binlog.MYSQL_TYPE_NULL, typeVarchar, typeVarString, typeString, typeEnum, typeSet,
		typeBlob, binlog.MYSQL_TYPE_TINY_BLOB, binlog.MYSQL_TYPE_MEDIUM_BLOB, binlog.MYSQL_TYPE_LONG_BLOB:
		limited := f.Type == typeVarchar || f.Type == typeVarString || f.Type == typeString
		switch {
		case f.Flag&binlog.ENUM_FLAG != 0:
			d.kind = enumKind
		case f.Flag&binlog.SET_FLAG != 0:
			d.kind = setKind
		case binary && length > 0:
			d.kind = bytesKind
		default: // a NULL without a type is a binary text of no length
			d.kind = textKind
			length /= queryCharacter
		}
		if limited && (d.kind == textKind || d.kind == bytesKind) {
			d.length = length
		}
	default:
		return d, fault.Refuse("CAST it to a type that is known, or leave it out", "column %s of the query has type %d, which cannot be copied", d.name, f.Type)
	}
	if d.name == "" {
		return d, fault.Refuse("name each column of the query: ... AS name", "a column of the query has no name")
	}
	return d, nil
}

// explainQuery makes an operator's error of what the server says of a query. What it says
// of data, it says with values: of that the number is kept alone.
func (s *Source) explainQuery(q *source.Query, err error) error {
	err = ofDriver(err)
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return s.explain(err, "ask the query")
	}
	if judged := s.explain(e, "ask the query"); fault.KindOf(judged) != fault.Unknown {
		return judged
	}
	switch e.Number {
	case errSyntax:
		return fault.Refuse(source.QueryRemedy, "the source refuses the query: a syntax error in %s", syntaxPlace(q, e.Message))
	case errDuplicateColumn:
		return fault.Refuse("name each column of the query: ... AS name", "the source refuses the query: %s", e.Message)
	case errNoDatabase:
		return fault.Refuse("name a database in source.dsn, or write database.table in the query", "the source refuses the query: %s", e.Message)
	}
	if namesOnly[e.Number] {
		return fault.Refuse(source.QueryRemedy, "the source refuses the query: %s (error %d)", e.Message, e.Number)
	}
	return fault.Refuse("correct the query, or the data that it reads", "the source cannot run the query: error %d (SQLSTATE %s)", e.Number, e.SQLState[:])
}

const (
	errSyntax          = 1064
	errDuplicateColumn = 1060
	errNoDatabase      = 1046
)

// namesOnly are errors whose messages hold names of tables, columns and functions, but no
// values: unknown and ambiguous columns, no such table, view or function, groups, unions
// of unequal rows, a scalar subquery of many rows, a statement that writes.
var namesOnly = map[uint16]bool{1051: true, 1052: true, 1054: true, 1055: true, 1056: true, 1066: true, 1109: true, 1140: true, 1146: true, 1221: true,
	1222: true, 1241: true, 1242: true, 1248: true, 1305: true, 1356: true, 1582: true, 1630: true, 1792: true, 3988: true, 4028: true}

// syntaxPlace finds the place of a syntax error: the server tells the line, and the text
// from the error on.
func syntaxPlace(q *source.Query, message string) string {
	_, near, _ := strings.Cut(message, "near '")
	end := strings.LastIndex(near, "' at line ")
	if end < 0 {
		return "it"
	}
	line, err := strconv.Atoi(near[end+len("' at line "):])
	if err != nil || line < 1 {
		return "it"
	}
	near = near[:end]
	from := 0
	for n := 1; n < line; n++ {
		next := strings.IndexByte(q.Text[from:], '\n')
		if next < 0 {
			break
		}
		from += next + 1
	}
	if at := strings.Index(q.Text[from:], near); at >= 0 && near != "" {
		return q.Place(from + at)
	}
	return fmt.Sprintf("line %d", line)
}

// copyQuery copies the rows of a query.
func (n *snapshot) copyQuery(ctx context.Context, r source.CopyRequest, w io.Writer) (int64, error) {
	if r.Binary || r.Range != nil || r.Keys != nil || r.Part != nil || r.StartAt != nil || len(r.Columns) == 0 {
		return 0, fault.Corrupted("a query was asked for in a way that is for tables")
	}
	q, definitions, err := n.source.describeQuery(ctx, r.Query)
	if err != nil {
		return 0, err
	}
	columns := make([]reading, len(r.Columns))
	list := make([]string, len(r.Columns))
	for i, name := range r.Columns {
		at := r.Table.Find(name)
		if at < 0 {
			return 0, fault.Corrupted("column %s of a query was not described", name)
		}
		c := &columns[i]
		c.table, c.zero = change.Name{Table: "(a query)"}, n.source.cfg.ZeroDates
		for _, d := range definitions {
			if d.name == name {
				c.def = d
			}
		}
		if c.def.name == "" {
			return 0, fault.Retry(nil, "the query gives no column %s any more: it has to be described anew", name)
		}
		if t := c.def.destinationType(c.zero); t.Name != r.Table.Columns[at].Type.Name {
			return 0, fault.Retry(nil, "the query gives column %s with another type than before: it has to be described anew", name)
		}
		list[i] = c.expression()
	}
	rows, err := n.readRows(ctx, "SELECT "+strings.Join(list, ", ")+" FROM ("+q.Text+queryBehind, columns, "\n", w)
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return 0, n.source.explainQuery(q, err)
	}
	return rows, err
}
