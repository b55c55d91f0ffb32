//go:build !noduckdb

package duckdb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unicode/utf8"
	"unsafe"

	engine "github.com/duckdb/duckdb-go/v2"
	"github.com/duckdb/duckdb-go/v2/mapping"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/fault"
)

// appender writes rows into a table at the engine's own speed: values are
// decoded straight into the memory of a chunk of 2048 rows, without an
// allocation and without a call into C for a value. Long strings lie in an arena
// of pinned Go memory that the chunk points into until it is appended, which
// copies it.
type appender struct {
	conn   *conn
	what   string // for messages
	handle mapping.Appender
	types  []mapping.LogicalType
	chunk  mapping.DataChunk
	cols   []column
	row    int // rows in the chunk
	room   int // rows a chunk can hold
	total  int64
	arena  arena
}

// column is where a column's values go in the present chunk.
type column struct {
	name   string
	source change.Type // what the values are
	typ    columnType
	data   unsafe.Pointer
	valid  unsafe.Pointer

	fields []change.Column // of a STRUCT: what they are, and
	first  int             // where they stand among the appender's columns, behind its own
	within bool            // it is such a field
}

// newAppender opens an appender on catalog.schema.table for exactly the given
// columns, in this order. all says that they are the table's columns.
func (c *conn) newAppender(catalog, schema, table string, cols []column, all bool) (*appender, error) {
	a := &appender{conn: c, what: schema + "." + table, cols: cols, room: int(mapping.VectorSize())}
	if mapping.AppenderCreateExt(c.handle, catalog, schema, table, &a.handle) == mapping.StateError {
		err := a.failure()
		a.discard()
		return nil, err
	}
	for i := range cols {
		if !all && mapping.AppenderAddColumn(a.handle, cols[i].name) == mapping.StateError {
			err := a.failure()
			a.discard()
			return nil, err
		}
		a.types = append(a.types, mapping.AppenderColumnType(a.handle, mapping.IdxT(i)))
	}
	for i := range cols {
		a.cols[i].first = len(a.cols)
		for _, f := range cols[i].fields {
			a.cols = append(a.cols, column{name: cols[i].name + "." + f.Name, source: f.Type, typ: typeFor(f.Type), within: true})
		}
	}
	a.chunk = mapping.CreateDataChunk(a.types)
	a.refresh()
	return a, nil
}

// newTemp makes an empty temporary table and an appender on it.
func (c *conn) newTemp(ctx context.Context, name string, cols ...column) (*appender, error) {
	defs := make([]string, len(cols))
	for i, col := range cols {
		defs[i] = col.name + " " + col.typ.String()
	}
	if _, err := c.exec(ctx, fmt.Sprintf("CREATE OR REPLACE TEMP TABLE %s (%s)", name, strings.Join(defs, ", "))); err != nil {
		return nil, err
	}
	return c.newAppender("temp", "main", name, cols, true)
}

func (a *appender) failure() error {
	data := mapping.AppenderErrorData(a.handle)
	defer mapping.DestroyErrorData(&data)
	return &engine.Error{Type: engine.ErrorType(mapping.ErrorDataErrorType(data)), Msg: mapping.ErrorDataMessage(data)}
}

// refresh takes the addresses of the chunk's columns, all rows valid.
func (a *appender) refresh() {
	for i := range a.types {
		v := mapping.DataChunkGetVector(a.chunk, mapping.IdxT(i))
		a.cols[i].refresh(v)
		for f := range a.cols[i].fields {
			a.cols[a.cols[i].first+f].refresh(mapping.StructVectorGetChild(v, mapping.IdxT(f)))
		}
	}
	a.row = 0
	a.arena.reset()
}

func (c *column) refresh(v mapping.Vector) {
	mapping.VectorEnsureValidityWritable(v)
	c.data, c.valid = mapping.VectorGetData(v), mapping.VectorGetValidity(v)
}

// end finishes a row.
func (a *appender) end() error {
	a.row++
	if a.row < a.room {
		return nil
	}
	return a.push()
}

func (a *appender) push() error {
	if a.row == 0 {
		return nil
	}
	mapping.DataChunkSetSize(a.chunk, mapping.IdxT(a.row))
	if mapping.AppendDataChunk(a.handle, a.chunk) == mapping.StateError {
		return a.failure()
	}
	a.total += int64(a.row)
	mapping.DataChunkReset(a.chunk)
	a.refresh()
	return nil
}

// finish hands everything to the table and closes the appender. It returns the
// number of rows.
func (a *appender) finish(ctx context.Context) (int64, error) {
	defer a.discard()
	if err := a.push(); err != nil {
		return 0, err
	}
	err := a.conn.interruptible(ctx, func() error {
		if mapping.AppenderFlush(a.handle) == mapping.StateError {
			return a.failure()
		}
		return nil
	})
	return a.total, err
}

// discard frees everything without flushing. It is safe to call twice.
func (a *appender) discard() {
	mapping.DestroyDataChunk(&a.chunk)
	for i := range a.types {
		mapping.DestroyLogicalType(&a.types[i])
	}
	a.types = nil
	if a.handle.Ptr != nil {
		mapping.AppenderClear(a.handle)
		mapping.AppenderDestroy(&a.handle)
	}
	a.arena.free()
}

// null writes NULL.
func (a *appender) null(col int) {
	word := (*uint64)(unsafe.Add(a.cols[col].valid, a.row/64*8))
	*word &^= 1 << (a.row % 64)
	for f := range a.cols[col].fields { // what lies in them is no value
		a.null(a.cols[col].first + f)
	}
}

// setValid takes a NULL back.
func (a *appender) setValid(col int) {
	word := (*uint64)(unsafe.Add(a.cols[col].valid, a.row/64*8))
	*word |= 1 << (a.row % 64)
}

// put writes a value of the column's type into the present row: the way for
// columns of our own.
func put[T any](a *appender, col int, v T) {
	*(*T)(unsafe.Add(a.cols[col].data, uintptr(a.row)*unsafe.Sizeof(v))) = v
}

// blob writes bytes as they are.
func (a *appender) blob(col int, b []byte) {
	if len(b) > inlineSize {
		start := a.arena.open(len(b))
		a.arena.block = append(a.arena.block, b...)
		b = a.arena.close(start)
	}
	a.str(col, b)
}

// value decodes v into a column of the present row. Absent is written as NULL.
func (a *appender) value(col int, v change.Value) error {
	if v.State == change.Null || v.State == change.Absent {
		a.null(col)
		return nil
	}
	c := &a.cols[col]
	var err error
	switch c.typ.store {
	case asBoolean:
		var b bool
		if b, err = pgvalue.Bool(v); err == nil {
			put(a, col, b)
		}
	case asSmallint:
		var n int64
		if n, err = pgvalue.Int64(v, c.source.Kind); err == nil {
			put(a, col, int16(n))
		}
	case asInteger:
		var n int64
		if n, err = pgvalue.Int64(v, c.source.Kind); err == nil {
			put(a, col, int32(n))
		}
	case asBigint:
		var n int64
		if n, err = pgvalue.Int64(v, c.source.Kind); err == nil {
			put(a, col, n)
		}
	case asFloat:
		var f float32
		if f, err = pgvalue.Float32(v); err == nil {
			put(a, col, f)
		}
	case asDouble:
		var f float64
		if f, err = pgvalue.Float64(v); err == nil {
			put(a, col, f)
		}
	case asDecimal:
		err = a.decimal(col, v)
	case asVarchar, asJSON:
		err = a.chars(col, v)
	case asBlob:
		start := a.arena.open(len(v.Data))
		if a.arena.block, err = pgvalue.Bytes(a.arena.block, v); err == nil {
			a.str(col, a.arena.close(start))
		}
	case asDate:
		err = a.date(col, v)
	case asTime:
		var n int64
		if n, err = pgvalue.Time(v); err == nil {
			put(a, col, n)
		}
	case asTimeTZ:
		var n int64
		var east int32
		if n, east, err = pgvalue.TimeTZ(v); err == nil {
			put(a, col, uint64(n)<<zoneBits|uint64(maxZone-east))
		}
	case asTimestamp, asTimestampTZ:
		err = a.timestamp(col, v)
	case asInterval:
		var i pgvalue.Interval
		var s pgvalue.Special
		if i, s, err = pgvalue.ReadInterval(v); err == nil && s != pgvalue.Finite {
			err = errNotFinite
		} else if err == nil {
			put(a, col, interval{i.Months, i.Days, i.Micros})
		}
	case asUUID:
		var u [16]byte
		if u, err = pgvalue.UUID(v); err == nil {
			put(a, col, hugeint{lo: binary.BigEndian.Uint64(u[8:]), hi: int64(binary.BigEndian.Uint64(u[:8]) ^ 1<<63)})
		}
	case asStruct:
		return a.object(col, v)
	default:
		err = errors.New("no column type")
	}
	if err != nil {
		return a.refuse(col, err)
	}
	return nil
}

var (
	errNotFinite = errors.New("a value that is NaN or infinite has no place in this column type")
	errTooLate   = errors.New("a value beyond the year 294247 has no place in this column type")
	errNotUTF8   = errors.New("a text is not valid UTF-8")
)

// refuse names the column and says how any value can be held: as text.
func (a *appender) refuse(col int, err error) error {
	c := &a.cols[col]
	op := fmt.Sprintf("write column %s of %s (source type %s, column type %s)", quote(c.name), a.what, c.source.Name, c.typ)
	tooLarge := errors.Is(err, errNotFinite) || errors.Is(err, errTooLate) || errors.Is(err, pgvalue.ErrOverflow)
	switch {
	case tooLarge && c.within:
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err, Remedy: "mend the value in the source"}
	case tooLarge:
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err,
			Remedy: fmt.Sprintf("hold this column as exact text: stop, run ALTER TABLE %s ALTER COLUMN %s SET DATA TYPE VARCHAR in the destination (or create the table so beforehand); or mend the value in the source", a.what, quote(c.name))}
	case errors.Is(err, errNotUTF8):
		return &fault.Error{Kind: fault.Operator, Op: op, Err: err,
			Remedy: "mend the bytes in the source, or hold the column as bytea there; DuckDB holds UTF-8 text only"}
	}
	return &fault.Error{Kind: fault.Corrupt, Op: op, Err: err}
}

func (a *appender) decimal(col int, v change.Value) error {
	t := a.cols[col].typ
	n, s, err := pgvalue.Numeric(v, t.scale)
	if err != nil {
		return err
	}
	if s != pgvalue.Finite {
		return errNotFinite
	}
	if t.width > 18 {
		put(a, col, hugeint{lo: n.Lo, hi: n.Hi})
		return nil
	}
	m := int64(n.Lo)
	if n.Hi != m>>63 || m >= pow10[t.width] || -m >= pow10[t.width] {
		return pgvalue.ErrOverflow
	}
	switch {
	case t.width <= 4:
		put(a, col, int16(m))
	case t.width <= 9:
		put(a, col, int32(m))
	default:
		put(a, col, m)
	}
	return nil
}

// pow10[n] is 10^n.
var pow10 = func() (p [19]int64) {
	p[0] = 1
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * 10
	}
	return p
}()

func (a *appender) date(col int, v change.Value) error {
	d, s, err := pgvalue.Date(v)
	if err != nil {
		return err
	}
	n := int64(d) + pgvalue.UnixEpochDays
	switch {
	case s == pgvalue.Infinity:
		n = dateInfinity
	case s == pgvalue.NegInfinity:
		n = -dateInfinity
	case n >= dateInfinity || n <= -dateInfinity:
		return errTooLate
	}
	put(a, col, int32(n))
	return nil
}

func (a *appender) timestamp(col int, v change.Value) error {
	c := &a.cols[col]
	n, s, err := pgvalue.Timestamp(v, c.source.Kind)
	if err != nil {
		return err
	}
	switch {
	case s == pgvalue.Infinity:
		n = timeInfinity
	case s == pgvalue.NegInfinity:
		n = -timeInfinity
	case n >= timeInfinity-pgvalue.UnixEpochMicros:
		return errTooLate
	default:
		n += pgvalue.UnixEpochMicros
	}
	put(a, col, n)
	return nil
}

// chars writes a value's characters into a text column: the bytes themselves
// where the value is text in either form, else its text form.
func (a *appender) chars(col int, v change.Value) error {
	t := a.cols[col].source
	if v.State == change.Binary {
		switch t.Kind {
		case change.Text, change.JSON, change.JSONB, change.Enum:
			data, err := pgvalue.Chars(v, t.Kind)
			if err != nil {
				return err
			}
			v = change.Value{State: change.AsText, Data: data}
		default:
			start := a.arena.open(4*len(v.Data) + 64)
			var err error
			if a.arena.block, err = pgvalue.Text(a.arena.block, v, t); err != nil {
				return err
			}
			s := a.arena.close(start)
			if !utf8.Valid(s) { // an array of texts
				return errNotUTF8
			}
			a.str(col, s)
			return nil
		}
	}
	if !utf8.Valid(v.Data) {
		return errNotUTF8
	}
	if len(v.Data) <= inlineSize {
		a.str(col, v.Data)
		return nil
	}
	start := a.arena.open(len(v.Data))
	a.arena.block = append(a.arena.block, v.Data...)
	a.str(col, a.arena.close(start))
	return nil
}

// str writes a string cell. A string longer than inlineSize must lie in the
// arena.
func (a *appender) str(col int, s []byte) {
	p := unsafe.Add(a.cols[col].data, uintptr(a.row)*16)
	*(*[16]byte)(p) = [16]byte{}
	*(*uint32)(p) = uint32(len(s))
	if len(s) <= inlineSize {
		copy(unsafe.Slice((*byte)(unsafe.Add(p, 4)), inlineSize), s)
		return
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(p, 4)), 4), s)
	*(*uintptr)(unsafe.Add(p, 8)) = uintptr(unsafe.Pointer(unsafe.SliceData(s)))
}

// arena holds the long strings of one chunk in pinned blocks, whose addresses
// the chunk may therefore hold. The pinner keeps earlier blocks alive.
type arena struct {
	pinner runtime.Pinner
	block  []byte // the present block
	base   *byte  // its address, pinned
	blocks int    // pinned since the last free
}

// arenaBlock is a block's least size: a chunk of 2048 rows with 100 bytes of
// long strings each fits into one.
const arenaBlock = 256 << 10

// open makes sure that n more bytes fit without moving the block and returns
// where they will begin.
func (m *arena) open(n int) int {
	if cap(m.block)-len(m.block) < n {
		m.block = make([]byte, 0, max(n, arenaBlock))
		m.pin()
	}
	return len(m.block)
}

func (m *arena) pin() {
	m.base = unsafe.SliceData(m.block)
	m.pinner.Pin(m.base)
	m.blocks++
}

// close returns what was appended since open. Where that outgrew what open was
// told (a text form longer than foreseen), the block has moved and is pinned
// anew.
func (m *arena) close(start int) []byte {
	if unsafe.SliceData(m.block) != m.base {
		m.pin()
	}
	return m.block[start:len(m.block):len(m.block)]
}

func (m *arena) reset() {
	if m.blocks > 1 { // a chunk of big values: give the memory back
		m.free()
	}
	m.block = m.block[:0]
}

func (m *arena) free() {
	m.pinner.Unpin()
	m.block, m.base, m.blocks = nil, nil, 0
}
