//go:build !noduckdb

package duckdb

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"tailrace/internal/change/pgvalue"
)

// Epochs and extremes of the engine's own representation: days and microseconds
// count from 1970-01-01, the extremes stand for the infinities.
const (
	dateInfinity = math.MaxInt32 // and its negative
	timeInfinity = math.MaxInt64 // and its negative

	zoneBits   = 24          // TIME WITH TIME ZONE: microseconds above, maxZone - seconds east below
	maxZone    = 16*3600 - 1 //
	zoneMask   = 1<<zoneBits - 1
	inlineSize = 12 // characters that a string holds without a pointer
)

// hugeint is the engine's 128-bit integer.
type hugeint struct {
	lo uint64
	hi int64
}

// interval is the engine's INTERVAL; its three parts are PostgreSQL's.
type interval struct {
	months, days int32
	micros       int64
}

// cells is one column of a fetched chunk, read in place.
type cells struct {
	typ   columnType
	data  unsafe.Pointer
	valid *uint64 // one bit a row; nil: no NULL

	names  []string // of a STRUCT's fields, and
	fields []cells  // what lies in them
}

func (c *cells) null(row int) bool {
	if c.valid == nil {
		return false
	}
	word := *(*uint64)(unsafe.Add(unsafe.Pointer(c.valid), row/64*8))
	return word>>(row%64)&1 == 0
}

func (c *cells) at(row int, size uintptr) unsafe.Pointer {
	return unsafe.Add(c.data, uintptr(row)*size)
}

// bytes returns a string's or blob's bytes; valid until the next chunk.
func (c *cells) bytes(row int) []byte {
	p := c.at(row, 16)
	n := *(*uint32)(p)
	if n <= inlineSize {
		return unsafe.Slice((*byte)(unsafe.Add(p, 4)), n)
	}
	return unsafe.Slice(*(**byte)(unsafe.Add(p, 8)), n)
}

func (c *cells) int64(row int) int64 { return *(*int64)(c.at(row, 8)) }

func (c *cells) bool(row int) bool { return *(*byte)(c.at(row, 1)) != 0 }

// blob returns a copy of a string's or blob's bytes; nil for NULL.
func (c *cells) blob(row int) []byte {
	if c.null(row) {
		return nil
	}
	return append([]byte{}, c.bytes(row)...)
}

// text appends a value that is not NULL in PostgreSQL's text form.
func (c *cells) text(dst []byte, row int) []byte {
	switch c.typ.store {
	case asBoolean:
		return pgvalue.AppendBool(dst, *(*byte)(c.at(row, 1)) != 0)
	case asSmallint:
		return strconv.AppendInt(dst, int64(*(*int16)(c.at(row, 2))), 10)
	case asInteger:
		return strconv.AppendInt(dst, int64(*(*int32)(c.at(row, 4))), 10)
	case asBigint:
		return strconv.AppendInt(dst, *(*int64)(c.at(row, 8)), 10)
	case asFloat:
		return pgvalue.AppendFloat(dst, float64(*(*float32)(c.at(row, 4))), 32)
	case asDouble:
		return pgvalue.AppendFloat(dst, *(*float64)(c.at(row, 8)), 64)
	case asDecimal:
		return pgvalue.AppendInt128(dst, c.decimal(row), c.typ.scale)
	case asVarchar, asJSON:
		return append(dst, c.bytes(row)...)
	case asBlob:
		return pgvalue.AppendBytes(dst, c.bytes(row))
	case asDate:
		switch d := *(*int32)(c.at(row, 4)); d {
		case dateInfinity:
			return pgvalue.AppendDate(dst, 0, pgvalue.Infinity)
		case -dateInfinity:
			return pgvalue.AppendDate(dst, 0, pgvalue.NegInfinity)
		default:
			return pgvalue.AppendDate(dst, d-pgvalue.UnixEpochDays, pgvalue.Finite)
		}
	case asTime:
		return pgvalue.AppendTime(dst, *(*int64)(c.at(row, 8)))
	case asTimeTZ:
		v := *(*uint64)(c.at(row, 8))
		return pgvalue.AppendTimeTZ(dst, int64(v>>zoneBits), maxZone-int32(v&zoneMask))
	case asTimestamp, asTimestampTZ:
		return appendInstant(dst, *(*int64)(c.at(row, 8)), c.typ.store == asTimestampTZ)
	case asInterval:
		i := *(*interval)(c.at(row, 16))
		return pgvalue.AppendInterval(dst, pgvalue.Interval{Months: i.months, Days: i.days, Micros: i.micros}, pgvalue.Finite)
	case asStruct:
		return c.appendObject(dst, row)
	case asUUID:
		h := *(*hugeint)(c.at(row, 16))
		var u [16]byte
		binary.BigEndian.PutUint64(u[:8], uint64(h.hi)^1<<63)
		binary.BigEndian.PutUint64(u[8:], h.lo)
		return pgvalue.AppendUUID(dst, u)
	}
	return dst
}

func appendInstant(dst []byte, micros int64, zoned bool) []byte {
	switch micros {
	case timeInfinity:
		return pgvalue.AppendTimestamp(dst, 0, pgvalue.Infinity, zoned)
	case -timeInfinity:
		return pgvalue.AppendTimestamp(dst, 0, pgvalue.NegInfinity, zoned)
	}
	return pgvalue.AppendTimestamp(dst, micros-pgvalue.UnixEpochMicros, pgvalue.Finite, zoned)
}

// decimal reads a DECIMAL, whose width decides how wide its integer is.
func (c *cells) decimal(row int) pgvalue.Int128 {
	var n int64
	switch w := c.typ.width; {
	case w <= 4:
		n = int64(*(*int16)(c.at(row, 2)))
	case w <= 9:
		n = int64(*(*int32)(c.at(row, 4)))
	case w <= 18:
		n = *(*int64)(c.at(row, 8))
	default:
		h := *(*hugeint)(c.at(row, 16))
		return pgvalue.Int128{Hi: h.hi, Lo: h.lo}
	}
	return pgvalue.Int128{Hi: n >> 63, Lo: uint64(n)}
}
