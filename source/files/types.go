package files

import (
	"fmt"
	"strconv"
	"strings"

	"tailrace/internal/change"
)

// Types have PostgreSQL's names and numbers, because rows carry PostgreSQL's text
// forms whatever the source is (change.Row).
var (
	typeBool      = builtIn(change.Bool, "boolean", 16)
	typeInt16     = builtIn(change.Int16, "smallint", 21)
	typeInt32     = builtIn(change.Int32, "integer", 23)
	typeInt64     = builtIn(change.Int64, "bigint", 20)
	typeFloat32   = builtIn(change.Float32, "real", 700)
	typeFloat64   = builtIn(change.Float64, "double precision", 701)
	typeNumeric   = builtIn(change.Numeric, "numeric", 1700)
	typeText      = builtIn(change.Text, "text", 25)
	typeBytes     = builtIn(change.Bytes, "bytea", 17)
	typeDate      = builtIn(change.Date, "date", 1082)
	typeTime      = builtIn(change.Time, "time without time zone", 1083)
	typeTimestamp = builtIn(change.Timestamp, "timestamp without time zone", 1114)
	typeInstant   = builtIn(change.TimestampTZ, "timestamp with time zone", 1184)
	typeUUID      = builtIn(change.UUID, "uuid", 2950)
	typeJSON      = builtIn(change.JSON, "json", 114)
	typeJSONB     = builtIn(change.JSONB, "jsonb", 3802)
)

func builtIn(k change.Kind, name string, id uint32) change.Type {
	return change.Type{Kind: k, Name: name, ID: id, BuiltIn: true}
}

// typeNames are the spellings of PostgreSQL and of Spark SQL. Where they differ in
// meaning (float, timestamp), PostgreSQL's counts: float has 64 bits, timestamp has
// no zone.
var typeNames = map[string]change.Type{
	"boolean": typeBool, "bool": typeBool,
	"smallint": typeInt16, "short": typeInt16, "int2": typeInt16, "tinyint": typeInt16, "byte": typeInt16,
	"integer": typeInt32, "int": typeInt32, "int4": typeInt32,
	"bigint": typeInt64, "long": typeInt64, "int8": typeInt64,
	"real": typeFloat32, "float4": typeFloat32,
	"double precision": typeFloat64, "double": typeFloat64, "float8": typeFloat64, "float": typeFloat64,
	"text": typeText, "string": typeText,
	"bytea": typeBytes, "binary": typeBytes,
	"date": typeDate,
	"time": typeTime, "time without time zone": typeTime,
	"timestamp": typeTimestamp, "timestamp without time zone": typeTimestamp, "timestamp_ntz": typeTimestamp,
	"timestamptz": typeInstant, "timestamp with time zone": typeInstant, "timestamp_ltz": typeInstant,
	"uuid": typeUUID,
	"json": typeJSON, "jsonb": typeJSONB, "variant": typeJSONB,
}

const (
	maxPrecision = 1000       // PostgreSQL's limit of numeric(p,s)
	maxLength    = 10_485_760 // and of varchar(n)
)

// parseType reads a declared type. Spelling is free in case and blanks.
func parseType(spelling string) (change.Type, error) {
	name := strings.Join(strings.Fields(strings.ToLower(spelling)), " ")
	if t, ok := typeNames[name]; ok {
		return t, nil
	}
	for _, nested := range []string{"array<", "struct<", "map<"} {
		if strings.HasPrefix(name, nested) && strings.HasSuffix(name, ">") {
			return typeJSONB, nil
		}
	}
	base, args, hasArgs := strings.Cut(name, "(")
	base = strings.TrimSpace(base)
	var numbers []int
	if hasArgs {
		inner, closed := strings.CutSuffix(args, ")")
		if !closed {
			return change.Type{}, fmt.Errorf("type %q has no closing parenthesis", spelling)
		}
		for part := range strings.SplitSeq(inner, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(part))
			if err != nil {
				return change.Type{}, fmt.Errorf("type %q: %q is not a whole number", spelling, strings.TrimSpace(part))
			}
			numbers = append(numbers, n)
		}
	}
	switch base {
	case "numeric", "decimal", "dec":
		return numericType(spelling, numbers)
	case "varchar", "character varying":
		t := builtIn(change.Text, "character varying", 1043)
		switch {
		case len(numbers) > 1 || len(numbers) == 1 && (numbers[0] < 1 || numbers[0] > maxLength):
			return change.Type{}, fmt.Errorf("type %q: a length lies between 1 and %d", spelling, maxLength)
		case len(numbers) == 1:
			t.Length, t.Name = numbers[0], fmt.Sprintf("character varying(%d)", numbers[0])
		}
		return t, nil
	}
	return change.Type{}, fmt.Errorf("type %q is not known; use boolean, smallint, integer, bigint, real, double precision, numeric(p,s), text, varchar(n), "+
		"date, time, timestamp, timestamptz, uuid, bytea, json or jsonb", spelling)
}

func numericType(spelling string, numbers []int) (change.Type, error) {
	t := typeNumeric
	if len(numbers) == 0 {
		return t, nil
	}
	t.Precision = numbers[0]
	if len(numbers) == 2 {
		t.Scale = numbers[1]
	}
	if len(numbers) > 2 || t.Precision < 1 || t.Precision > maxPrecision || t.Scale < 0 || t.Scale > t.Precision {
		return t, fmt.Errorf("type %q: a precision lies between 1 and %d, a scale between 0 and the precision", spelling, maxPrecision)
	}
	t.Name = fmt.Sprintf("numeric(%d,%d)", t.Precision, t.Scale)
	return t, nil
}
