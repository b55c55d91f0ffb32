package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
)

// stableOID is the first type OID that may differ between servers of one version
// (FirstGenbkiObjectId; those from 16384 on are users'). Below it a type has the
// same number and binary form everywhere.
const stableOID = 10000

// kinds maps the built-in types that have a kind of their own.
var kinds = map[uint32]change.Kind{
	16: change.Bool, 17: change.Bytes, 19: change.Text, 20: change.Int64, 21: change.Int16, 23: change.Int32,
	25: change.Text, 114: change.JSON, 700: change.Float32, 701: change.Float64, 1042: change.Text, 1043: change.Text,
	1082: change.Date, 1083: change.Time, 1114: change.Timestamp, 1184: change.TimestampTZ, 1186: change.Interval,
	1266: change.TimeTZ, 1700: change.Numeric, 2950: change.UUID, 3802: change.JSONB,
}

const (
	oidBPChar  = 1042
	oidVarchar = 1043
)

// typeKey is a type with a modifier, as a column has it.
type typeKey struct {
	oid uint32
	mod int32
}

// typeRow is what the catalogue says of a type.
type typeRow struct {
	kind    string // typtype: b, c, d, e, m, p, r
	isArray bool   // a true array (its text form is {...}); int2vector and oidvector are not
	elem    uint32
	base    uint32 // of a domain
	baseMod int32
}

// typeCache remembers built-in types for ever; users' types can change and are
// read anew for each layout.
type typeCache struct {
	mu    sync.Mutex
	known map[typeKey]change.Type
}

// resolve describes types, in a constant number of round trips. A type that is
// gone from the catalogue is Other with an empty name.
func (c *typeCache) resolve(ctx context.Context, conn *pgx.Conn, keys []typeKey) (map[typeKey]change.Type, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[typeKey]change.Type{}
	}
	out := make(map[typeKey]change.Type, len(keys))
	var missing []typeKey
	for _, k := range keys {
		if t, ok := c.known[k]; ok {
			out[k] = t
		} else if _, ok := out[k]; !ok {
			out[k] = change.Type{}
			missing = append(missing, k)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	rows, err := readTypes(ctx, conn, missing)
	if err != nil {
		return nil, err
	}
	all := closure(missing, rows)
	spellings, err := readSpellings(ctx, conn, all)
	if err != nil {
		return nil, err
	}
	for _, k := range missing {
		t := describeType(k, rows, spellings)
		out[k] = t
		if t.BuiltIn {
			c.known[k] = t
		}
	}
	return out, nil
}

// readTypes reads the rows of types and of everything they are made of: at most
// an array of a domain over an array of a domain, so a handful of rounds.
func readTypes(ctx context.Context, conn *pgx.Conn, keys []typeKey) (map[uint32]typeRow, error) {
	rows := map[uint32]typeRow{}
	var want []uint32
	for _, k := range keys {
		want = append(want, k.oid)
	}
	for len(want) > 0 {
		result, err := conn.Query(ctx, `
SELECT oid, typtype::text, typoutput = 'pg_catalog.array_out'::regproc, typelem, typbasetype, typtypmod
FROM pg_catalog.pg_type WHERE oid = ANY($1)`, want)
		if err != nil {
			return nil, fmt.Errorf("read types: %w", err)
		}
		want = nil
		var oid uint32
		var r typeRow
		_, err = pgx.ForEachRow(result, []any{&oid, &r.kind, &r.isArray, &r.elem, &r.base, &r.baseMod}, func() error {
			rows[oid] = r
			if r.isArray {
				want = append(want, r.elem)
			}
			if r.base != 0 {
				want = append(want, r.base)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read types: %w", err)
		}
		unread := want[:0]
		for _, oid := range want {
			if _, ok := rows[oid]; !ok {
				unread = append(unread, oid)
			}
		}
		want = unread
	}
	return rows, nil
}

// closure lists the keys and, for arrays, their elements' as they are spelled.
func closure(keys []typeKey, rows map[uint32]typeRow) []typeKey {
	seen := map[typeKey]bool{}
	var all []typeKey
	var add func(typeKey)
	add = func(k typeKey) {
		r, ok := rows[k.oid]
		if seen[k] || !ok {
			return
		}
		seen[k] = true
		all = append(all, k)
		if r.isArray {
			add(typeKey{r.elem, k.mod})
		}
		if r.base != 0 {
			add(typeKey{r.base, r.baseMod})
		}
	}
	for _, k := range keys {
		add(k)
	}
	return all
}

// readSpellings asks the server to spell types; with our search path everything
// outside pg_catalog comes with its schema.
func readSpellings(ctx context.Context, conn *pgx.Conn, keys []typeKey) (map[typeKey]string, error) {
	oids, mods := make([]uint32, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		oids[i], mods[i] = k.oid, k.mod
	}
	result, err := conn.Query(ctx, `
SELECT k.oid, k.mod, pg_catalog.format_type(k.oid, k.mod)
FROM unnest($1::oid[], $2::int4[]) AS k(oid, mod)`, oids, mods)
	if err != nil {
		return nil, fmt.Errorf("read the names of types: %w", err)
	}
	spellings := make(map[typeKey]string, len(keys))
	var k typeKey
	var name string
	_, err = pgx.ForEachRow(result, []any{&k.oid, &k.mod, &name}, func() error {
		spellings[k] = name
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the names of types: %w", err)
	}
	return spellings, nil
}

// describeType puts a type together.
func describeType(k typeKey, rows map[uint32]typeRow, spellings map[typeKey]string) change.Type {
	r, ok := rows[k.oid]
	if !ok {
		return change.Type{ID: k.oid}
	}
	if r.base != 0 {
		t := describeType(typeKey{r.base, r.baseMod}, rows, spellings)
		t.Name, t.ID, t.BuiltIn, t.Domain = spellings[k], k.oid, false, true
		return t
	}
	t := change.Type{Name: spellings[k], ID: k.oid, BuiltIn: k.oid < stableOID}
	switch {
	case r.isArray:
		elem := describeType(typeKey{r.elem, k.mod}, rows, spellings)
		t.Kind, t.Elem = change.Array, &elem
		t.BuiltIn = t.BuiltIn && elem.BuiltIn
	case r.kind == "e":
		t.Kind = change.Enum
	case r.kind == "c":
		t.Kind = change.Composite
	case r.kind == "r", r.kind == "m":
		t.Kind = change.Range
	default:
		t.Kind = kinds[k.oid]
	}
	switch {
	case k.mod < 4: // no modifier; a length or precision is kept with 4 added
	case t.Kind == change.Numeric:
		t.Precision, t.Scale = numericModifier(k.mod)
	case k.oid == oidBPChar, k.oid == oidVarchar:
		t.Length = int(k.mod - 4)
	}
	return t
}

// numericModifier unpacks precision and scale (numeric.c: 16 bits each, the scale
// in the low 11 bits as a signed number).
func numericModifier(mod int32) (precision, scale int) {
	mod -= 4
	return int(mod>>16) & 0xffff, int((mod&0x7ff)^1024) - 1024
}
