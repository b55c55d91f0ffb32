package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/source"
)

// copyBuffer is how much of a copy is gathered before it is written on.
const copyBuffer = 64 << 10

// Copy implements source.Snapshot.
func (n *snapshot) Copy(ctx context.Context, r source.CopyRequest, w io.Writer) (rows int64, err error) {
	if r.Query != "" {
		if rows, err = n.copyQuery(ctx, r, w); err != nil {
			return 0, fmt.Errorf("copy the rows of a query: %w", err)
		}
		return rows, nil
	}
	rows, err = n.copy(ctx, r, w)
	if err != nil {
		return 0, fmt.Errorf("copy %s: %w", r.Table.Name, err)
	}
	return rows, nil
}

func (n *snapshot) copy(ctx context.Context, r source.CopyRequest, w io.Writer) (rows int64, err error) {
	s := n.source
	if r.Binary {
		return 0, fault.Corrupted("a copy in binary was asked of a MySQL source")
	}
	d, err := s.describe(ctx, r.Table.Name, true)
	if err != nil {
		return 0, err
	}
	if d == nil {
		return 0, fault.Refuse("take it out of the configuration, or start the copy again", "the table was dropped or renamed after the snapshot")
	}
	var columns []reading
	var list []string
	for _, name := range r.Columns {
		at := -1
		for i := range d.columns {
			if d.columns[i].name == name {
				at = i
			}
		}
		if at < 0 {
			return 0, fault.Retry(nil, "column %s is gone since the copy began: a new snapshot is needed", name)
		}
		c := reading{def: d.columns[at], table: r.Table.Name, zero: s.cfg.ZeroDates}
		for _, k := range d.key {
			c.key = c.key || k == name
		}
		columns = append(columns, c)
		list = append(list, c.expression())
	}
	if len(list) == 0 {
		list = []string{"1"}
	}
	query := "SELECT " + strings.Join(list, ", ") + " FROM " + quoted(r.Table.Name)
	if r.Range != nil {
		part := r.Range.At.(*keyRange)
		query += " FORCE INDEX (" + quote(part.index) + ") WHERE " + part.condition
	}
	return n.readRows(ctx, query, columns, copyTail(r, len(columns) > 0), w)
}

// readRows writes the rows that a query of ours gives in one of the snapshot's sessions.
func (n *snapshot) readRows(ctx context.Context, query string, columns []reading, tail string, w io.Writer) (rows int64, err error) {
	s := n.source
	var conn *sql.Conn
	var open bool
	select {
	case conn, open = <-n.sessions:
		if !open {
			return 0, errClosed
		}
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	// A session that has failed goes back too: its place in the snapshot is lost, no
	// other can have it, and who gets it is told.
	defer func() { n.sessions <- conn }()
	if _, err := conn.ExecContext(ctx, "SAVEPOINT "+markedPlace); err != nil {
		return 0, s.explain(err, "mark a place in the snapshot")
	}
	out := &rowWriter{w: w}
	err = conn.Raw(func(c any) error {
		q, ok := c.(driver.QueryerContext)
		if !ok {
			return fault.Corrupted("the driver cannot ask")
		}
		result, err := q.QueryContext(ctx, query, nil)
		if err != nil {
			return s.explain(err, "read the table")
		}
		rows, err = out.copy(result, columns, tail)
		if e := result.Close(); err == nil && e != nil {
			err = e
		}
		if out.failed != nil {
			return out.failed
		}
		return s.explain(err, "read the rows")
	})
	// Also after what the server has refused in the middle: it leaves the table locked.
	if _, e := conn.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+markedPlace); err == nil && e != nil {
		err = s.explain(e, "let go of the table")
	}
	return rows, err
}

// copyTail is what follows a row's columns.
func copyTail(r source.CopyRequest, behind bool) string {
	if r.StartAt == nil {
		return "\n"
	}
	start := "-infinity"
	if !r.StartAt.IsZero() {
		start = r.StartAt.UTC().Format("2006-01-02 15:04:05.999999+00")
	}
	if behind {
		start = "\t" + start
	}
	return start + "\t\\N\n"
}

// reading is one column of a copy.
type reading struct {
	def   definition
	table change.Name
	zero  string
	key   bool
}

// expression reads the column so that its text is exact.
func (c *reading) expression() string {
	name := quote(c.def.name)
	if c.def.kind == float32Kind { // the text of a FLOAT has six digits
		return "(" + name + " + 0e0)"
	}
	return name
}

// rowWriter writes rows as a COPY stream.
type rowWriter struct {
	w      io.Writer
	buf    []byte
	value  []byte // room for one value
	failed error  // the writer's own error
}

func (o *rowWriter) copy(result driver.Rows, columns []reading, tail string) (rows int64, err error) {
	values := make([]driver.Value, max(len(columns), 1))
	for {
		err := result.Next(values)
		if err == io.EOF {
			return rows, o.flush()
		}
		if err != nil {
			return rows, err
		}
		for i := range columns {
			if i > 0 {
				o.buf = append(o.buf, '\t')
			}
			if err := o.field(&columns[i], values[i]); err != nil {
				return rows, err
			}
		}
		o.buf = append(o.buf, tail...)
		rows++
		if len(o.buf) >= copyBuffer {
			if err := o.flush(); err != nil {
				return rows, err
			}
		}
	}
}

func (o *rowWriter) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	if _, err := o.w.Write(o.buf); err != nil {
		o.failed = err
		return err
	}
	o.buf = o.buf[:0]
	return nil
}

func (o *rowWriter) field(c *reading, v driver.Value) error {
	if v == nil {
		o.buf = append(o.buf, `\N`...)
		return nil
	}
	text, err := c.text(o.value[:0], v)
	if errors.Is(err, errZeroDate) {
		if c.zero == ZeroDatesNull && !c.key {
			o.buf = append(o.buf, `\N`...)
			return nil
		}
		return zeroDateRefusal(c.table, c.def.name)
	}
	if err != nil {
		return fault.Corrupted("read column %s: %v", c.def.name, err)
	}
	o.value = text
	o.buf = appendCopyText(o.buf, text)
	return nil
}

// appendCopyText appends a value of the text format of COPY.
func appendCopyText(dst, text []byte) []byte {
	for _, b := range text {
		switch b {
		case '\\':
			dst = append(dst, '\\', '\\')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, b)
		}
	}
	return dst
}

// text appends a value as the driver gives it in the form that the log's reader gives it
// too: a table's row is the same text by both ways.
func (c *reading) text(dst []byte, v driver.Value) ([]byte, error) {
	switch v := v.(type) {
	case int64:
		if c.def.kind == float32Kind {
			return appendFloat32(dst, float32(v)), nil
		}
		return strconv.AppendInt(dst, v, 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case float32:
		return appendFloat32(dst, v), nil
	case float64:
		if c.def.kind == float32Kind {
			return appendFloat32(dst, float32(v)), nil
		}
		return appendFloat64(dst, v), nil
	case []byte:
		return c.bytes(dst, v)
	}
	return dst, fmt.Errorf("the driver gave a %T", v)
}

func (c *reading) bytes(dst, v []byte) ([]byte, error) {
	switch c.def.kind {
	case integer, yearKind:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil { // a bigint unsigned beyond, or zero-filled
			u, err := strconv.ParseUint(string(v), 10, 64)
			return strconv.AppendUint(dst, u, 10), err
		}
		return strconv.AppendInt(dst, n, 10), nil
	case float32Kind:
		f, err := strconv.ParseFloat(string(v), 64)
		return appendFloat32(dst, float32(f)), err
	case float64Kind:
		f, err := strconv.ParseFloat(string(v), 64)
		return appendFloat64(dst, f), err
	case decimalKind: // perhaps zero-filled
		start := 0
		for start < len(v)-1 && v[start] == '0' && v[start+1] != '.' {
			start++
		}
		return append(dst, v[start:]...), nil
	case bitKind:
		return appendBits(dst, v, c.def.precision), nil
	case dateKind, datetimeKind, timestampKind:
		m, err := parseMoment(v)
		if err != nil {
			return dst, err
		}
		return appendMoment(dst, m, c.def.kind, c.zero == ZeroDatesText)
	case timeKind:
		return appendTimeText(dst, v)
	case bytesKind:
		return appendBytea(dst, v), nil
	case geometryKind:
		return appendGeometry(dst, v)
	}
	return append(dst, v...), nil
}

var errNoTime = errors.New("the server's text is no date or time")

// parseMoment reads YYYY-MM-DD, with hh:mm:ss and a fraction behind or not.
func parseMoment(v []byte) (m moment, err error) {
	number := func(from, to int) int {
		n := 0
		for _, b := range v[from:to] {
			if b < '0' || b > '9' {
				err = errNoTime
			}
			n = n*10 + int(b-'0')
		}
		return n
	}
	if len(v) < 10 || v[4] != '-' || v[7] != '-' {
		return m, errNoTime
	}
	m.year, m.month, m.day = number(0, 4), number(5, 7), number(8, 10)
	if len(v) == 10 {
		return m, err
	}
	if len(v) < 19 {
		return m, errNoTime
	}
	m.hour, m.minute, m.second = number(11, 13), number(14, 16), number(17, 19)
	m.micro = micros(v[19:])
	return m, err
}

// micros reads .ffffff as microseconds.
func micros(v []byte) int {
	if len(v) < 2 || v[0] != '.' {
		return 0
	}
	n := 0
	for i := 1; i <= 6; i++ {
		n *= 10
		if i < len(v) {
			n += int(v[i] - '0')
		}
	}
	return n
}

// appendTimeText appends [-]hhh:mm:ss[.ffffff] as an interval.
func appendTimeText(dst, v []byte) ([]byte, error) {
	negative := len(v) > 0 && v[0] == '-'
	if negative {
		v = v[1:]
	}
	hours, rest, ok := strings.Cut(string(v), ":")
	h, err := strconv.Atoi(hours)
	if !ok || err != nil || len(rest) < 5 {
		return dst, errNoTime
	}
	minute, err1 := strconv.Atoi(rest[:2])
	second, err2 := strconv.Atoi(rest[3:5])
	return appendInterval(dst, negative, h, minute, second, micros([]byte(rest[5:]))), errors.Join(err1, err2)
}
