//go:build !noduckdb

package duckdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	bindings "github.com/duckdb/duckdb-go-bindings"
	engine "github.com/duckdb/duckdb-go/v2"
	"github.com/duckdb/duckdb-go/v2/mapping"
)

// This file is the thin layer over the engine's C interface. database/sql is not
// used: it boxes every value, which costs an allocation a value on the way in
// and twice that on the way out, and its appender cannot write a JSON column
// verbatim.

// instance is one open database.
type instance struct {
	handle mapping.Database
}

// openInstance opens path with the given settings; readOnly never creates.
func openInstance(path string, readOnly bool, settings map[string]string) (*instance, error) {
	var config mapping.Config
	if mapping.CreateConfig(&config) == mapping.StateError {
		return nil, errors.New("create the engine's configuration")
	}
	defer mapping.DestroyConfig(&config)
	if readOnly {
		settings["access_mode"] = "READ_ONLY"
	}
	for name, value := range settings {
		if mapping.SetConfig(config, name, value) == mapping.StateError {
			return nil, fmt.Errorf("setting %s = %s is refused by the engine", name, value)
		}
	}
	var db instance
	var text string
	if mapping.OpenExt(path, &db.handle, config, &text) == mapping.StateError {
		mapping.Close(&db.handle)
		return nil, engineError(text)
	}
	return &db, nil
}

func (d *instance) close() { mapping.Close(&d.handle) }

// conn is one connection: one transaction and one set of temporary tables at a
// time. It is used by one goroutine at a time.
type conn struct {
	handle mapping.Connection
}

func (d *instance) connect() (*conn, error) {
	c := &conn{}
	if mapping.Connect(d.handle, &c.handle) == mapping.StateError {
		return nil, errors.New("connect to the open database")
	}
	return c, nil
}

func (c *conn) close() { mapping.Disconnect(&c.handle) }

// engineError reads the kind of an error from its text's prefix.
func engineError(text string) error {
	kind := engine.ErrorTypeInvalid
	switch prefix, _, _ := strings.Cut(text, ": "); prefix {
	case "IO Error":
		kind = engine.ErrorTypeIO
	case "Out of Memory Error":
		kind = engine.ErrorTypeOutOfMemory
	case "Constraint Error":
		kind = engine.ErrorTypeConstraint
	case "Conversion Error":
		kind = engine.ErrorTypeConversion
	case "Catalog Error":
		kind = engine.ErrorTypeCatalog
	case "TransactionContext Error":
		kind = engine.ErrorTypeTransaction
	case "FATAL Error":
		kind = engine.ErrorTypeFatal
	case "INTERNAL Error":
		kind = engine.ErrorTypeInternal
	case "Serialization Error":
		kind = engine.ErrorTypeSerialization
	case "INTERRUPT Error":
		kind = engine.ErrorTypeInterrupt
	}
	return &engine.Error{Type: kind, Msg: text}
}

// interruptEvery is how often a cancelled statement is told again: the engine
// clears the request when it starts its next phase.
const interruptEvery = 50 * time.Millisecond

// interruptible runs call and interrupts it when ctx ends.
func (c *conn) interruptible(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() == nil {
		return call()
	}
	finished, told := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		for {
			mapping.Interrupt(c.handle)
			select {
			case <-finished:
				return
			case <-time.After(interruptEvery):
			}
		}
	})
	err := call()
	close(finished)
	if !stop() {
		<-told // an interrupt must not reach the connection's next statement
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	return err
}

// exec runs statements without parameters and returns the rows changed by the
// last one.
func (c *conn) exec(ctx context.Context, statement string) (changed int64, err error) {
	err = c.interruptible(ctx, func() error {
		var res mapping.Result
		defer mapping.DestroyResult(&res)
		if mapping.Query(c.handle, statement, &res) == mapping.StateError {
			return &engine.Error{Type: engine.ErrorType(mapping.ResultErrorType(&res)), Msg: mapping.ResultError(&res)}
		}
		changed = int64(mapping.RowsChanged(&res))
		return nil
	})
	return changed, err
}

// statement is a prepared statement.
type statement struct {
	conn   *conn
	handle mapping.PreparedStatement
}

func (c *conn) prepare(text string) (*statement, error) {
	s := &statement{conn: c}
	if mapping.Prepare(c.handle, text, &s.handle) == mapping.StateError {
		err := engineError(mapping.PrepareError(s.handle))
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *statement) close() { mapping.DestroyPrepare(&s.handle) }

func (s *statement) bind(args []any) error {
	for i, arg := range args {
		at := mapping.IdxT(i + 1)
		var state mapping.State
		switch v := arg.(type) {
		case nil:
			state = mapping.BindNull(s.handle, at)
		case string:
			state = mapping.BindVarchar(s.handle, at, v)
		case int64:
			state = mapping.BindInt64(s.handle, at, v)
		case bool:
			state = mapping.BindBoolean(s.handle, at, v)
		default:
			return fmt.Errorf("bind a parameter of type %T", arg)
		}
		if state == mapping.StateError {
			return fmt.Errorf("bind parameter %d, a %T: the engine refuses it (a text that is not UTF-8?)", at, arg)
		}
	}
	return nil
}

// exec runs the statement and returns the rows it changed.
func (s *statement) exec(ctx context.Context, args ...any) (changed int64, err error) {
	if err := s.bind(args); err != nil {
		return 0, err
	}
	err = s.conn.interruptible(ctx, func() error {
		var res mapping.Result
		defer mapping.DestroyResult(&res)
		if mapping.ExecutePrepared(s.handle, &res) == mapping.StateError {
			return &engine.Error{Type: engine.ErrorType(mapping.ResultErrorType(&res)), Msg: mapping.ResultError(&res)}
		}
		changed = int64(mapping.RowsChanged(&res))
		return nil
	})
	return changed, err
}

// run prepares and executes one statement with parameters.
func (c *conn) run(ctx context.Context, text string, args ...any) (int64, error) {
	s, err := c.prepare(text)
	if err != nil {
		return 0, err
	}
	defer s.close()
	return s.exec(ctx, args...)
}

// rows is a streaming result: chunk by chunk, so that a big table never lies in
// memory as a whole. The connection runs nothing else until close.
type rows struct {
	conn  *conn
	ctx   context.Context
	stmt  *statement
	res   mapping.Result
	chunk mapping.DataChunk
	cols  []cells
	size  int
	err   error
}

// query runs one statement that returns rows.
func (c *conn) query(ctx context.Context, text string, args ...any) (*rows, error) {
	s, err := c.prepare(text)
	if err != nil {
		return nil, err
	}
	return s.query(ctx, args...)
}

// query runs the statement, which the rows own from then on.
func (s *statement) query(ctx context.Context, args ...any) (*rows, error) {
	r := &rows{conn: s.conn, ctx: ctx, stmt: s}
	if err := s.bind(args); err != nil {
		r.close()
		return nil, err
	}
	err := s.conn.interruptible(ctx, func() error {
		if bindings.ExecutePreparedStreaming(s.handle, &r.res) == mapping.StateError {
			return &engine.Error{Type: engine.ErrorType(mapping.ResultErrorType(&r.res)), Msg: mapping.ResultError(&r.res)}
		}
		return nil
	})
	if err != nil {
		r.close()
		return nil, err
	}
	for i := range mapping.ColumnCount(&r.res) {
		logical := mapping.ColumnLogicalType(&r.res, i)
		c := cells{typ: typeOfResult(logical)}
		if c.typ.store == asStruct {
			for _, f := range fieldsOf(logical) {
				c.names, c.fields = append(c.names, f.name), append(c.fields, cells{typ: f.typ})
			}
		}
		r.cols = append(r.cols, c)
		mapping.DestroyLogicalType(&logical)
	}
	return r, nil
}

// next fetches the next chunk of rows; false at the end or on an error.
func (r *rows) next() bool {
	mapping.DestroyDataChunk(&r.chunk)
	r.err = r.conn.interruptible(r.ctx, func() error {
		if bindings.StreamFetchChunk(r.res, &r.chunk) == mapping.StateError {
			if text := mapping.ResultError(&r.res); text != "" {
				return &engine.Error{Type: engine.ErrorType(mapping.ResultErrorType(&r.res)), Msg: text}
			}
		}
		return nil
	})
	if r.err != nil || r.chunk.Ptr == nil {
		return false
	}
	r.size = int(mapping.DataChunkGetSize(r.chunk))
	for i := range r.cols {
		v := mapping.DataChunkGetVector(r.chunk, mapping.IdxT(i))
		r.cols[i].lie(v)
		for f := range r.cols[i].fields {
			r.cols[i].fields[f].lie(mapping.StructVectorGetChild(v, mapping.IdxT(f)))
		}
	}
	return r.size > 0
}

func (c *cells) lie(in mapping.Vector) {
	c.data, c.valid = mapping.VectorGetData(in), (*uint64)(mapping.VectorGetValidity(in))
}

func (r *rows) close() {
	mapping.DestroyDataChunk(&r.chunk)
	mapping.DestroyResult(&r.res)
	r.stmt.close()
}

// each calls fn for every row of a result, with its cells as text (nil is NULL).
func (c *conn) each(ctx context.Context, fn func(cells []*string) error, text string, args ...any) error {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return err
	}
	return r.each(fn)
}

// each is conn.each for rows, which it closes.
func (r *rows) each(fn func(cells []*string) error) error {
	defer r.close()
	var buf []byte
	line := make([]*string, len(r.cols))
	for r.next() {
		for row := range r.size {
			for i := range r.cols {
				line[i] = nil
				if !r.cols[i].null(row) {
					buf = r.cols[i].text(buf[:0], row)
					s := string(buf)
					line[i] = &s
				}
			}
			if err := fn(line); err != nil {
				return err
			}
		}
	}
	return r.err
}

// blob runs a statement whose result is one BLOB; nil for NULL.
func (c *conn) blob(ctx context.Context, text string) (b []byte, err error) {
	r, err := c.query(ctx, text)
	if err != nil {
		return nil, err
	}
	defer r.close()
	for r.next() {
		b = r.cols[0].blob(0)
	}
	return b, r.err
}

// number runs a statement whose result is one number.
func (c *conn) number(ctx context.Context, text string, args ...any) (n int64, err error) {
	r, err := c.query(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	defer r.close()
	for r.next() {
		if r.size > 0 && !r.cols[0].null(0) {
			n = *(*int64)(r.cols[0].at(0, unsafe.Sizeof(n)))
		}
	}
	return n, r.err
}
