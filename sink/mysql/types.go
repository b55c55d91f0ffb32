package mysql

import (
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
)

// store says how a value lies in a column.
type store uint8

const (
	unknown store = iota // a type that we neither make nor fill
	asBool
	asSmallint
	asInt
	asBigint
	asFloat
	asDouble
	asDecimal // width, scale
	asChars   // length; a CHAR, VARCHAR or TEXT
	asOctets  // length; a VARBINARY or BLOB
	asDate
	asTime
	asDatetime
)

// columnType is the type of a column as far as we fill it.
type columnType struct {
	store        store
	width, scale int    // asDecimal
	length       int    // asChars: characters, asOctets: bytes; 0: see name
	name         string // asChars, asOctets: longtext, varchar, ...
}

// What the servers hold. MariaDB's decimals may have 38 digits behind the point, MySQL's
// 30: the common limit counts.
const (
	maxDigits  = 65
	maxScale   = 30
	varcharMax = 255   // characters: a longer text is a LONGTEXT
	keyBytes   = 3072  // of an index entry of InnoDB
	rowBytes   = 65000 // of what counts to a row's limit of 65,535
)

var (
	longtext = columnType{store: asChars, name: "longtext"}
	longblob = columnType{store: asOctets, name: "longblob"}
)

func varchar(n int) columnType { return columnType{store: asChars, name: "varchar", length: n} }

// String spells the type as information_schema does.
func (t columnType) String() string {
	switch t.store {
	case asBool:
		return "tinyint(1)"
	case asSmallint:
		return "smallint"
	case asInt:
		return "int"
	case asBigint:
		return "bigint"
	case asFloat:
		return "float"
	case asDouble:
		return "double"
	case asDecimal:
		return fmt.Sprintf("decimal(%d,%d)", t.width, t.scale)
	case asChars, asOctets:
		if t.length > 0 {
			return t.name + "(" + strconv.Itoa(t.length) + ")"
		}
		return t.name
	case asDate:
		return "date"
	case asTime:
		return "time(6)"
	case asDatetime:
		return "datetime(6)"
	}
	return "unknown"
}

// parseType reads information_schema's COLUMN_TYPE. MariaDB gives integers a width for
// display, MySQL none.
func parseType(spelling string) columnType {
	name, args, _ := strings.Cut(strings.TrimSuffix(spelling, ")"), "(")
	first, second, _ := strings.Cut(args, ",")
	n, err := strconv.Atoi(first)
	if err != nil {
		n = 0
	}
	switch name {
	case "tinyint":
		if n == 1 {
			return columnType{store: asBool}
		}
	case "smallint":
		return columnType{store: asSmallint}
	case "int":
		return columnType{store: asInt}
	case "bigint":
		return columnType{store: asBigint}
	case "float":
		if args == "" {
			return columnType{store: asFloat}
		}
	case "double":
		if args == "" {
			return columnType{store: asDouble}
		}
	case "decimal":
		if scale, err := strconv.Atoi(second); err == nil {
			return columnType{store: asDecimal, width: n, scale: scale}
		}
	case "char", "varchar":
		return columnType{store: asChars, name: name, length: n}
	case "text", "mediumtext", "longtext":
		return columnType{store: asChars, name: name}
	case "varbinary":
		return columnType{store: asOctets, name: name, length: n}
	case "blob", "mediumblob", "longblob":
		return columnType{store: asOctets, name: name}
	case "date":
		return columnType{store: asDate}
	case "time":
		if n == 6 {
			return columnType{store: asTime}
		}
	case "datetime":
		if n == 6 {
			return columnType{store: asDatetime}
		}
	}
	return columnType{}
}

// room is how many bytes the type holds; 0: more than any value has.
func (t columnType) room() int {
	switch t.name {
	case "text", "blob":
		return 1<<16 - 1
	case "mediumtext", "mediumblob":
		return 1<<24 - 1
	}
	return 0
}

// rowSize is about what a column of the type counts to the limit of a row.
func (t columnType) rowSize() int {
	switch {
	case t.store == asChars && t.length > 0:
		return 4*t.length + 2
	case t.store == asOctets && t.length > 0:
		return t.length + 2
	case t.store == asDecimal:
		return t.width/2 + 2
	}
	return 12
}

// keySize is what a key column of the type counts to the limit of an index entry.
func (t columnType) keySize() int {
	if t.store == asChars || t.store == asOctets {
		return t.rowSize() - 2
	}
	return t.rowSize()
}

// typeFor is the type of the column that we make for a source type that stands in no
// key. docs/types.md is this function in prose: what has an exact counterpart gets it,
// everything else is held as text in PostgreSQL's notation, which loses nothing.
func typeFor(t change.Type) columnType {
	switch t.Kind {
	case change.Bool:
		return columnType{store: asBool}
	case change.Int16:
		return columnType{store: asSmallint}
	case change.Int32:
		return columnType{store: asInt}
	case change.Int64:
		return columnType{store: asBigint}
	case change.Float32:
		return columnType{store: asFloat}
	case change.Float64:
		return columnType{store: asDouble}
	case change.Numeric:
		if t.Precision >= 1 && t.Precision <= maxDigits && t.Scale >= 0 && t.Scale <= min(t.Precision, maxScale) {
			return columnType{store: asDecimal, width: t.Precision, scale: t.Scale}
		}
	case change.Text:
		if t.Length > 0 && t.Length <= varcharMax {
			return varchar(t.Length)
		}
	case change.Enum:
		return varchar(varcharMax)
	case change.UUID:
		return columnType{store: asChars, name: "char", length: 36}
	case change.Bytes:
		return longblob
	case change.Date:
		return columnType{store: asDate}
	case change.Time:
		return columnType{store: asTime}
	case change.Timestamp, change.TimestampTZ:
		return columnType{store: asDatetime}
	}
	return longtext
}

// commitTime is the type of a history's start and end where the user names no sequence.
var commitTime = change.Type{Kind: change.TimestampTZ, Name: "timestamp with time zone", ID: 1184, BuiltIn: true}

// sequenceOf is the source type of a type 2 target's start and end.
func sequenceOf(t *scd.Target) change.Type {
	if t.Sequence != nil {
		return *t.Sequence
	}
	return commitTime
}

// layout is the types of the columns that we make for a target, and of its start and
// end.
type layout struct {
	columns []columnType
	start   columnType
}

// layoutOf chooses them. An index entry has 3,072 bytes: what the key's other columns
// leave of them is shared out to those that are texts or bytes without a length, as
// VARCHAR and VARBINARY. A longer value is refused by name when it comes. A row has
// 65,535 bytes, to which VARCHARs count in full and LONGTEXTs hardly at all: where they
// do not fit, those that stand in no key become LONGTEXTs.
func layoutOf(t *scd.Target) layout {
	var l layout
	free := keyBytes
	var long []*columnType
	l.columns = make([]columnType, len(t.Columns))
	place := func(c *columnType, source change.Type) {
		*c = typeFor(source)
		if (c.store == asChars || c.store == asOctets) && (c.length == 0 || c.name == "varchar" && c.length == varcharMax && source.Kind == change.Enum) {
			long = append(long, c)
			return
		}
		free -= c.keySize()
	}
	for i := range t.Columns {
		if t.Columns[i].Key {
			place(&l.columns[i], t.Columns[i].Type)
		} else {
			l.columns[i] = typeFor(t.Columns[i].Type)
		}
	}
	if t.Kind == scd.Type2 {
		place(&l.start, sequenceOf(t))
	}
	for _, c := range long {
		share := max(free, 4*len(long)) / len(long)
		if c.store == asOctets {
			*c = columnType{store: asOctets, name: "varbinary", length: share}
		} else {
			*c = varchar(share / 4)
		}
	}
	size := 2 * l.start.rowSize()
	for _, c := range l.columns {
		size += c.rowSize()
	}
	if size > rowBytes {
		for i := range l.columns {
			if c := &l.columns[i]; c.name == "varchar" && !t.Columns[i].Key {
				*c = longtext
			}
		}
	}
	return l
}

// takes reports whether a column of type c holds every value of the source's type
// unchanged, or refuses it by name: the type that we would make, a longer one, text
// without a limit for anything, a wider integer, more digits at the same scale. want is
// what we would make; of a text in a key that is a part of what an index entry has, and
// then a part of another size does as well.
func (c columnType) takes(t change.Type, want columnType) bool {
	switch {
	case c == want:
		return true
	case c.store == asChars && c.length == 0:
		return true
	case c.name == "varchar" && want.store == asChars:
		if declared := max(t.Length, typeFor(t).length); declared > 0 {
			return c.length >= declared
		}
		return want.length > 0
	case c.store == asOctets:
		return want.store == asOctets && (c.length == 0 || want.length > 0)
	case c.store == asInt:
		return want.store == asSmallint
	case c.store == asBigint:
		return want.store == asSmallint || want.store == asInt
	case c.store == asDouble:
		return want.store == asFloat
	case c.store == asDecimal:
		return want.store == asDecimal && c.scale == want.scale && c.width >= want.width
	}
	return false
}
