// Package rowsum is the SQL by which a PostgreSQL server reduces a table to sums of row
// hashes, so that two servers can be compared without sending their rows.
//
// A row is hashed as the text of a record of its columns, under the settings that every
// session of ours pins. Of the types in exact that text says everything about a value
// and is the same on every server of version 14 and later: it depends on no collation
// and no setting that is not pinned, and a record's text can be read in one way only.
// So of two tables whose columns have the same such types, in databases of the same
// encoding, equal rows have equal texts and others have not.
//
// The hash is hashtextextended, which every server has and which may not change, since
// partitions are chosen by it; it gives 64 bits from a seed, and two seeds that are
// drawn anew for each comparison give 128. It costs less than a cryptographic one, and
// whoever could craft rows for seeds that do not exist yet could write to the target,
// too. Servers of unlike byte order hash otherwise: then all seems to differ.
package rowsum

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Sums says how rows are summed up.
type Sums struct {
	Buckets int      // that the key chooses from; a power of two
	Seeds   [3]int64 // of the bucket, and of a row's two hashes
}

// New draws seeds.
func New(buckets int) Sums {
	return Sums{Buckets: buckets, Seeds: [3]int64{rand.Int64(), rand.Int64(), rand.Int64()}}
}

// Part is the rows in some buckets.
type Part struct {
	Sums
	Wanted []int
}

// Bucket is what the rows in a bucket sum up to. Sums are taken modulo 2^64.
type Bucket struct {
	Rows int64
	A, B uint64
}

// exact are the types that this package speaks of: those of which equal texts under the
// pinned settings mean equal values, to the bit that a client can see.
var exact = map[string]bool{}

func init() {
	for _, oid := range strings.Fields(`
16 17 20 21 23 25 26 700 701 1042 1043 1082 1083 1114 1184 1186 1266 1700 2950 114 3802 869 650 829 774 1560 1562
1000 1001 1016 1005 1007 1009 1028 1021 1022 1014 1015 1182 1183 1115 1185 1187 1270 1231 2951 199 3807 1041 651 1040 775 1561 1563`) {
		exact[oid] = true
	}
}

// Form says what a server's sums of a table are made of, given the encoding of its
// database and its columns' types by number. Two servers' sums mean the same if their
// forms are equal and not empty. It is empty where a type is not exact or the encoding
// is not UTF8.
func Form(encoding string, types []string) string {
	if encoding != "UTF8" || len(types) == 0 {
		return ""
	}
	for _, t := range types {
		if !exact[t] {
			return ""
		}
	}
	return strings.Join(types, " ")
}

// TypesSQL reads, as texts in one row each, number and name of the type of each column
// of the table whose number or regclass expression is given.
func TypesSQL(table string) string {
	return "SELECT attname, atttypid FROM pg_catalog.pg_attribute WHERE attrelid = " + table + " AND attnum > 0 AND NOT attisdropped"
}

// SQL reads the sums: bucket, rows, both sums. columns and keys are quoted; without
// keys the whole row chooses the bucket. from is a table with its condition.
func (s Sums) SQL(columns, keys []string, from string) string {
	if len(keys) == 0 {
		keys = columns
	}
	// OFFSET 0 keeps the texts from being made once for each hash.
	return fmt.Sprintf(`SELECT b, count(*), sum(x), sum(y) FROM (SELECT %s AS b, hashtextextended(r, %d) AS x, hashtextextended(r, %d) AS y FROM (SELECT %s AS k, %s AS r FROM %s OFFSET 0) AS t) AS h GROUP BY b`,
		s.bucket("k"), s.Seeds[1], s.Seeds[2], record(keys), record(columns), from)
}

// Condition is true for the rows in the part's buckets.
func (p Part) Condition(columns, keys []string) string {
	if len(keys) == 0 {
		keys = columns
	}
	list := make([]string, len(p.Wanted))
	for i, b := range p.Wanted {
		list[i] = strconv.Itoa(b)
	}
	return fmt.Sprintf("%s = ANY ('{%s}'::bigint[])", p.bucket(record(keys)), strings.Join(list, ","))
}

func (s Sums) bucket(text string) string {
	return fmt.Sprintf("(hashtextextended(%s, %d) & %d)", text, s.Seeds[0], s.Buckets-1)
}

func record(columns []string) string {
	return `(ROW(` + strings.Join(columns, ", ") + `)::text COLLATE "C")`
}

// Take puts a row of SQL's result in its place.
func (s Sums) Take(into []Bucket, cells [][]byte) error {
	if len(cells) != 4 || len(into) != s.Buckets {
		return fmt.Errorf("sums of rows have %d columns", len(cells))
	}
	b, err := strconv.Atoi(string(cells[0]))
	if err != nil || b < 0 || b >= len(into) {
		return fmt.Errorf("sums of rows have a bucket %.20q", cells[0])
	}
	rows, err := strconv.ParseInt(string(cells[1]), 10, 64)
	if err != nil {
		return fmt.Errorf("sums of rows have a count %.20q", cells[1])
	}
	into[b] = Bucket{Rows: rows, A: wrap(cells[2]), B: wrap(cells[3])}
	return nil
}

// wrap reads a decimal integer of any length modulo 2^64.
func wrap(text []byte) (n uint64) {
	negative := false
	for _, c := range text {
		if c == '-' {
			negative = true
			continue
		}
		n = n*10 + uint64(c-'0')
	}
	if negative {
		return -n
	}
	return n
}
