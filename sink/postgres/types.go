package postgres

import (
	"fmt"
	"slices"
	"strings"

	"tailrace/internal/change"
)

// firstUnstable is the first OID that initdb or a user may give: types below it
// are the same on every server (src/include/access/transam.h, FirstGenbkiObjectId).
const firstUnstable = 10000

// ownToServer are built-in types whose values mean something in one database
// alone: numbers of its objects, or rights of its roles. They are kept as text.
var ownToServer = []string{
	"regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc", "regprocedure", "regrole", "regtype",
	"aclitem", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "gtsvector", "refcursor",
}

// builtIn reports whether t is a type that every server has with one meaning and
// one binary form.
func builtIn(t change.Type) bool {
	if t.Kind == change.Array && t.Elem != nil && !builtIn(*t.Elem) {
		return false
	}
	return t.BuiltIn && !t.Domain && t.ID != 0 && t.ID < firstUnstable && !slices.Contains(ownToServer, strings.TrimSuffix(t.Name, "[]"))
}

// Binary reports whether binary values of t can be written as they are. The
// server cannot read what it sends of an empty tsquery ("malformed tsquery:
// operand not found"), so that type goes as text.
func (w *Writer) Binary(t change.Type) bool {
	return builtIn(t) && strings.TrimSuffix(t.Name, "[]") != "tsquery"
}

// candidates are the types that a column of source type t may get, best first.
// The destination takes the first one that it has.
func candidates(t change.Type) []string {
	var list []string
	if t.ID != 0 && (!t.BuiltIn || builtIn(t)) && t.Name != "" {
		list = append(list, t.Name)
	}
	return append(list, fallback(t))
}

// fallback is a type that every server has and that holds t's values exactly.
func fallback(t change.Type) string {
	switch t.Kind {
	case change.Bool:
		return "boolean"
	case change.Int16:
		return "smallint"
	case change.Int32:
		return "integer"
	case change.Int64:
		return "bigint"
	case change.Float32:
		return "real"
	case change.Float64:
		return "double precision"
	case change.Numeric:
		if t.Precision > 0 {
			return fmt.Sprintf("numeric(%d,%d)", t.Precision, t.Scale)
		}
		return "numeric"
	case change.Bytes:
		return "bytea"
	case change.Date:
		return "date"
	case change.Time:
		return "time without time zone"
	case change.TimeTZ:
		return "time with time zone"
	case change.Timestamp:
		return "timestamp without time zone"
	case change.TimestampTZ:
		return "timestamp with time zone"
	case change.Interval:
		return "interval"
	case change.UUID:
		return "uuid"
	case change.JSON:
		return "json"
	case change.JSONB:
		return "jsonb"
	case change.Array:
		if t.Elem != nil && t.Elem.Kind != change.Array {
			if elem := fallback(*t.Elem); elem != "text" || t.Elem.Kind == change.Text {
				return elem + "[]"
			}
		}
	}
	// Text of any length; enums, ranges, composites, types of extensions: in the
	// source's own notation.
	return "text"
}
