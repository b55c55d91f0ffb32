//go:build !noduckdb

package duckdb

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2/mapping"

	"tailrace/internal/change"
)

// store says how a value lies in a DuckDB column.
type store uint8

const (
	unknown store = iota // a type we neither make nor fill
	asBoolean
	asSmallint
	asInteger
	asBigint
	asFloat
	asDouble
	asDecimal // width and scale
	asVarchar
	asJSON
	asBlob
	asDate
	asTime
	asTimeTZ
	asTimestamp
	asTimestampTZ
	asInterval
	asUUID
	asStruct // fields
)

// columnType is the type of a DuckDB column as far as we fill it.
type columnType struct {
	store        store
	width, scale int    // asDecimal
	fields       string // asStruct: names, quoted, and types, as a definition has them
}

// maxDecimal is the widest DECIMAL.
const maxDecimal = 38

var spellings = map[store]string{
	asBoolean: "BOOLEAN", asSmallint: "SMALLINT", asInteger: "INTEGER", asBigint: "BIGINT",
	asFloat: "FLOAT", asDouble: "DOUBLE", asVarchar: "VARCHAR", asJSON: "JSON", asBlob: "BLOB",
	asDate: "DATE", asTime: "TIME", asTimeTZ: "TIME WITH TIME ZONE", asTimestamp: "TIMESTAMP",
	asTimestampTZ: "TIMESTAMP WITH TIME ZONE", asInterval: "INTERVAL", asUUID: "UUID",
}

// String spells the type as the engine's catalogue does.
func (t columnType) String() string {
	switch t.store {
	case asDecimal:
		return fmt.Sprintf("DECIMAL(%d,%d)", t.width, t.scale)
	case asStruct:
		return "STRUCT(" + t.fields + ")"
	}
	return spellings[t.store]
}

// parseType reads the catalogue's spelling of a column's type.
func parseType(spelling string) columnType {
	for s, name := range spellings {
		if name == spelling {
			return columnType{store: s}
		}
	}
	if args, ok := strings.CutPrefix(spelling, "DECIMAL("); ok {
		w, s, _ := strings.Cut(strings.TrimSuffix(args, ")"), ",")
		width, err1 := strconv.Atoi(w)
		scale, err2 := strconv.Atoi(strings.TrimSpace(s))
		if err1 == nil && err2 == nil {
			return columnType{store: asDecimal, width: width, scale: scale}
		}
	}
	if list, ok := strings.CutPrefix(spelling, "STRUCT("); ok && strings.HasSuffix(list, ")") {
		return parseStruct(list[:len(list)-1])
	}
	return columnType{}
}

// typeOfResult names the type of a result's column.
func typeOfResult(t mapping.LogicalType) columnType {
	switch mapping.GetTypeId(t) {
	case mapping.TypeBoolean:
		return columnType{store: asBoolean}
	case mapping.TypeSmallInt:
		return columnType{store: asSmallint}
	case mapping.TypeInteger:
		return columnType{store: asInteger}
	case mapping.TypeBigInt:
		return columnType{store: asBigint}
	case mapping.TypeFloat:
		return columnType{store: asFloat}
	case mapping.TypeDouble:
		return columnType{store: asDouble}
	case mapping.TypeDecimal:
		return columnType{store: asDecimal, width: int(mapping.DecimalWidth(t)), scale: int(mapping.DecimalScale(t))}
	case mapping.TypeVarchar:
		return columnType{store: asVarchar}
	case mapping.TypeBlob:
		return columnType{store: asBlob}
	case mapping.TypeDate:
		return columnType{store: asDate}
	case mapping.TypeTime:
		return columnType{store: asTime}
	case mapping.TypeTimeTZ:
		return columnType{store: asTimeTZ}
	case mapping.TypeTimestamp:
		return columnType{store: asTimestamp}
	case mapping.TypeTimestampTZ:
		return columnType{store: asTimestampTZ}
	case mapping.TypeInterval:
		return columnType{store: asInterval}
	case mapping.TypeUUID:
		return columnType{store: asUUID}
	case mapping.TypeStruct:
		return structType(fieldsOf(t))
	}
	return columnType{}
}

// fieldsOf lists the fields of a result's STRUCT.
func fieldsOf(t mapping.LogicalType) []field {
	list := make([]field, mapping.StructTypeChildCount(t))
	for i := range list {
		child := mapping.StructTypeChildType(t, mapping.IdxT(i))
		list[i] = field{mapping.StructTypeChildName(t, mapping.IdxT(i)), typeOfResult(child)}
		mapping.DestroyLogicalType(&child)
	}
	return list
}

// typeFor is the type of the column that we make for a source type. docs/types.md
// is this function in prose: what has an exact counterpart gets it, everything
// else is held as VARCHAR in PostgreSQL's text form, which loses nothing.
func typeFor(t change.Type) columnType {
	switch t.Kind {
	case change.Bool:
		return columnType{store: asBoolean}
	case change.Int16:
		return columnType{store: asSmallint}
	case change.Int32:
		return columnType{store: asInteger}
	case change.Int64:
		return columnType{store: asBigint}
	case change.Float32:
		return columnType{store: asFloat}
	case change.Float64:
		return columnType{store: asDouble}
	case change.Numeric:
		if t.Precision >= 1 && t.Precision <= maxDecimal && t.Scale >= 0 && t.Scale <= t.Precision {
			return columnType{store: asDecimal, width: t.Precision, scale: t.Scale}
		}
	case change.Bytes:
		return columnType{store: asBlob}
	case change.Date:
		return columnType{store: asDate}
	case change.Time:
		return columnType{store: asTime}
	case change.TimeTZ:
		return columnType{store: asTimeTZ}
	case change.Timestamp:
		return columnType{store: asTimestamp}
	case change.TimestampTZ:
		return columnType{store: asTimestampTZ}
	case change.Interval:
		return columnType{store: asInterval}
	case change.UUID:
		return columnType{store: asUUID}
	case change.JSON, change.JSONB:
		return columnType{store: asJSON}
	}
	return columnType{store: asVarchar}
}

// takes reports whether a column of type c holds every value of t exactly: the
// type we would make, VARCHAR for anything, a wider integer.
func (c columnType) takes(t change.Type) bool {
	want := typeFor(t)
	switch {
	case c == want, c.store == asVarchar:
		return true
	case c.store == asInteger:
		return want.store == asSmallint
	case c.store == asBigint:
		return want.store == asSmallint || want.store == asInteger
	case c.store == asDecimal:
		return want.store == asDecimal && c.scale == want.scale && c.width >= want.width
	}
	return false
}
