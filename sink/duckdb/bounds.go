//go:build !noduckdb

package duckdb

import (
	"fmt"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

// bounds compares the starts and ends of a history as its sequence does: column by
// column, where it has several.
type bounds struct {
	parts []bound
}

// bound is one column of a sequence.
type bound struct {
	field string // quoted, in the STRUCT of several columns; empty: the only one
	kind  change.Kind
	typ   columnType
	lsn   bool // a position in a log, held as text
}

func boundsOf(t *scd.Target) bounds {
	if len(t.SequenceFields) == 0 {
		c := startColumnOf(t)
		return bounds{[]bound{boundOf("", c.source, c.typ)}}
	}
	var b bounds
	for i := range t.SequenceFields {
		f := &t.SequenceFields[i]
		b.parts = append(b.parts, boundOf(quote(f.Name), f.Type, typeFor(f.Type)))
	}
	return b
}

func boundOf(field string, source change.Type, typ columnType) bound {
	return bound{field: field, kind: source.Kind, typ: typ, lsn: source.Name == "pg_lsn"}
}

// exactNumber is the widest number with a fraction that the engine compares; what
// does not fit (NaN, thirty digits) has no order here.
const exactNumber = "DECIMAL(38,10)"

// whole: integers.
func (b *bound) whole() bool {
	return b.typ.store == asSmallint || b.typ.store == asInteger || b.typ.store == asBigint
}

// exact: numbers held as text.
func (b *bound) exact() bool { return b.typ.store == asVarchar && b.kind == change.Numeric }

// number: compared with what a person gives as exactNumber, because that may lie
// between those that are held; a cast to the column's type would round it.
func (b *bound) number() bool {
	return b.exact() || b.whole() || b.typ.store == asDecimal && b.typ.width-b.typ.scale <= 28
}

// stored is a stored value in the form in which values are compared.
func (b *bound) stored(column string) string {
	if b.field != "" {
		column += "." + b.field
	}
	switch {
	case b.lsn:
		return lsnNumber(column)
	case b.exact(), b.field != "" && b.number():
		return "TRY_CAST(" + column + " AS " + exactNumber + ")"
	}
	return column
}

// lsnNumber is a position in a log, as text in hexadecimal halves, as a number.
func lsnNumber(text string) string {
	return fmt.Sprintf("(CAST('0x' || split_part(%s, '/', 1) AS UBIGINT) * 4294967296 + CAST('0x' || split_part(%[1]s, '/', 2) AS UBIGINT))", text)
}

// given is a value as a person writes it, as a literal.
func (b *bound) given(text string) string {
	switch {
	case b.lsn:
		return lsnNumber(text)
	case b.number():
		return "CAST(" + text + " AS " + exactNumber + ")"
	case b.typ.store == asBlob:
		return "unhex(ltrim(" + text + ", '\\x'))"
	}
	return "CAST(" + text + " AS " + b.typ.String() + ")"
}

// value is a stored start or end; NULL for an open end.
func (b bounds) value(column string) string {
	if len(b.parts) == 1 {
		return b.parts[0].stored(column)
	}
	return fmt.Sprintf("CASE WHEN %s IS NOT NULL THEN %s END", column, b.pack(func(i int) string { return b.parts[i].stored(column) }))
}

// given is a value of the sequence as a person writes it.
func (b bounds) given(t *scd.Target, text string) (string, error) {
	if len(b.parts) == 1 {
		return b.parts[0].given(literal(text)), nil
	}
	values, err := sink.SequenceValues(t, text)
	if err != nil {
		return "", err
	}
	return b.pack(func(i int) string { return b.parts[i].given(literal(values[i])) }), nil
}

func (b bounds) pack(part func(i int) string) string {
	parts := make([]string, len(b.parts))
	for i := range parts {
		parts[i] = fmt.Sprintf("f%d := %s", i, part(i))
	}
	return "struct_pack(" + strings.Join(parts, ", ") + ")"
}
