package mysql

import (
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
)

// Types of columns in the log and in binary JSON (field_types.h of MySQL's source).
const (
	typeTiny       = 1
	typeShort      = 2
	typeLong       = 3
	typeFloat      = 4
	typeDouble     = 5
	typeTimestamp  = 7
	typeLongLong   = 8
	typeInt24      = 9
	typeDate       = 10
	typeTime       = 11
	typeDatetime   = 12
	typeYear       = 13
	typeVarchar    = 15
	typeBit        = 16
	typeTimestamp2 = 17
	typeDatetime2  = 18
	typeTime2      = 19
	typeVector     = 242
	typeJSON       = 245
	typeNewDecimal = 246
	typeEnum       = 247
	typeSet        = 248
	typeBlob       = 252
	typeVarString  = 253
	typeString     = 254
	typeGeometry   = 255
)

// kind is what a column holds: how its values are read and written as text.
type kind uint8

const (
	unknownKind kind = iota
	integer
	float32Kind
	float64Kind
	decimalKind
	bitKind
	yearKind
	dateKind
	datetimeKind
	timestampKind
	timeKind
	textKind
	bytesKind
	enumKind
	setKind
	jsonKind
	geometryKind
	uuidKind
	inet4Kind
	inet6Kind
)

// definition is a column as the catalogue or the log's own metadata describes it.
type definition struct {
	name      string
	kind      kind
	width     int // integer: bytes
	unsigned  bool
	precision int // decimal: digits; bit: bits; time types: digits behind the second
	scale     int // decimal
	length    int // text and bytes: declared characters or bytes; 0: not limited
	fixed     bool
	labels    []string // enum, set
	charset   string   // text, enum, set: as the log has it
	nullable  bool
	unlogged  bool // virtual, in MariaDB: an image that is not whole lacks it also where it changed
}

// dated reports whether d holds dates.
func (d *definition) dated() bool {
	return d.kind == dateKind || d.kind == datetimeKind || d.kind == timestampKind
}

// integers are the bytes of the whole numbers.
var integers = map[string]int{"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}

// kindsByName are the other types, by the name that information_schema gives them.
var kindsByName = map[string]kind{
	"float": float32Kind, "double": float64Kind, "decimal": decimalKind, "bit": bitKind, "year": yearKind, "date": dateKind,
	"datetime": datetimeKind, "timestamp": timestampKind, "time": timeKind, "char": textKind, "varchar": textKind,
	"tinytext": textKind, "text": textKind, "mediumtext": textKind, "longtext": textKind, "binary": bytesKind, "varbinary": bytesKind,
	"tinyblob": bytesKind, "blob": bytesKind, "mediumblob": bytesKind, "longblob": bytesKind, "vector": bytesKind, "enum": enumKind, "set": setKind,
	"json": jsonKind, "uuid": uuidKind, "inet4": inet4Kind, "inet6": inet6Kind,
	"geometry": geometryKind, "point": geometryKind, "linestring": geometryKind, "polygon": geometryKind, "multipoint": geometryKind,
	"multilinestring": geometryKind, "multipolygon": geometryKind, "geometrycollection": geometryKind, "geomcollection": geometryKind,
}

// labelsOf reads the labels out of enum('a','b”c') as the catalogue spells it.
func labelsOf(full string) []string {
	from := strings.IndexByte(full, '(')
	if from < 0 {
		return nil
	}
	var labels []string
	var b strings.Builder
	inside := false
	for i := from + 1; i < len(full); i++ {
		c := full[i]
		switch {
		case !inside && c == '\'':
			inside = true
		case inside && c == '\'' && i+1 < len(full) && full[i+1] == '\'':
			b.WriteByte(c)
			i++
		case inside && c == '\'':
			inside = false
			labels = append(labels, b.String())
			b.Reset()
		case inside:
			b.WriteByte(c)
		}
	}
	return labels
}

// What to do with a date that no calendar has: 0000-00-00, or a month or day of 0.
const (
	ZeroDatesError = "error" // stop, and say which column and what to do
	ZeroDatesNull  = "null"  // NULL
	ZeroDatesText  = "text"  // columns of dates are texts, as the server writes them
)

// pgType is one of PostgreSQL's types. BuiltIn is not set: there is no binary form of
// values here.
func pgType(k change.Kind, name string, id uint32) change.Type {
	return change.Type{Kind: k, Name: name, ID: id}
}

var (
	pgInt16     = pgType(change.Int16, "smallint", 21)
	pgInt32     = pgType(change.Int32, "integer", 23)
	pgInt64     = pgType(change.Int64, "bigint", 20)
	pgFloat32   = pgType(change.Float32, "real", 700)
	pgFloat64   = pgType(change.Float64, "double precision", 701)
	pgText      = pgType(change.Text, "text", 25)
	pgBytes     = pgType(change.Bytes, "bytea", 17)
	pgDate      = pgType(change.Date, "date", 1082)
	pgTimestamp = pgType(change.Timestamp, "timestamp without time zone", 1114)
	pgInstant   = pgType(change.TimestampTZ, "timestamp with time zone", 1184)
	pgInterval  = pgType(change.Interval, "interval", 1186)
	pgUUID      = pgType(change.UUID, "uuid", 2950)
	pgJSON      = pgType(change.JSON, "json", 114)
)

// destinationType is the type, in PostgreSQL's words, that holds every value of d: see
// docs/mysql.md for the table.
func (d *definition) destinationType(zeroDates string) change.Type {
	switch d.kind {
	case integer:
		switch {
		case d.width == 1, d.width == 2 && !d.unsigned:
			return pgInt16
		case d.width < 4, d.width == 4 && !d.unsigned:
			return pgInt32
		case d.width == 4, !d.unsigned:
			return pgInt64
		}
		return numericType(20, 0)
	case yearKind:
		return pgInt16
	case float32Kind:
		return pgFloat32
	case float64Kind:
		return pgFloat64
	case decimalKind:
		return numericType(d.precision, d.scale)
	case bitKind:
		return pgType(change.Other, fmt.Sprintf("bit(%d)", d.precision), 1560)
	case dateKind, datetimeKind, timestampKind:
		switch {
		case zeroDates == ZeroDatesText:
			return pgText
		case d.kind == dateKind:
			return pgDate
		case d.kind == datetimeKind:
			return pgTimestamp
		}
		return pgInstant
	case timeKind:
		return pgInterval
	case bytesKind, geometryKind:
		return pgBytes
	case jsonKind:
		return pgJSON
	case uuidKind:
		return pgUUID
	case textKind:
		if d.length > 0 {
			t := pgType(change.Text, fmt.Sprintf("character varying(%d)", d.length), 1043)
			t.Length = d.length
			return t
		}
	}
	return pgText
}

func numericType(precision, scale int) change.Type {
	t := pgType(change.Numeric, fmt.Sprintf("numeric(%d,%d)", precision, scale), 1700)
	t.Precision, t.Scale = precision, scale
	return t
}

// logged reports whether a column that the log describes by its type and number can be
// one of d.
func (d *definition) logged(typ byte, meta uint16) bool {
	switch d.kind {
	case integer:
		return typ == map[int]byte{1: typeTiny, 2: typeShort, 3: typeInt24, 4: typeLong, 8: typeLongLong}[d.width]
	case float32Kind:
		return typ == typeFloat
	case float64Kind:
		return typ == typeDouble
	case decimalKind:
		return typ == typeNewDecimal && int(meta>>8) == d.precision && int(meta&0xff) == d.scale
	case bitKind:
		return typ == typeBit && int(meta>>8)*8+int(meta&0xff) == d.precision
	case yearKind:
		return typ == typeYear
	case dateKind:
		return typ == typeDate
	case datetimeKind:
		return typ == typeDatetime2 && int(meta) == d.precision || typ == typeDatetime
	case timestampKind:
		return typ == typeTimestamp2 && int(meta) == d.precision || typ == typeTimestamp
	case timeKind:
		return typ == typeTime2 && int(meta) == d.precision || typ == typeTime
	case textKind, bytesKind:
		switch typ {
		case typeVarchar, typeVarString:
			return !d.fixed && d.length > 0
		case typeString:
			return d.fixed && byte(meta>>8)|0x30 != typeEnum && byte(meta>>8)|0x30 != typeSet
		case typeBlob, typeVector:
			return d.length == 0
		}
		return false
	case enumKind:
		return typ == typeString && meta>>8 == typeEnum && int(meta&0xff) == enumBytes(len(d.labels))
	case setKind:
		return typ == typeString && meta>>8 == typeSet
	case jsonKind:
		return typ == typeJSON
	case geometryKind:
		return typ == typeGeometry
	case uuidKind, inet4Kind, inet6Kind:
		return typ == typeString
	}
	return false
}

func enumBytes(labels int) int {
	if labels > 255 {
		return 2
	}
	return 1
}

// digitsIn reads the first number in parentheses, or 0.
func digitsIn(full string) int {
	_, inside, ok := strings.Cut(full, "(")
	if !ok {
		return 0
	}
	end := strings.IndexFunc(inside, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return 0
	}
	n, err := strconv.Atoi(inside[:end])
	if err != nil {
		return 0
	}
	return n
}
