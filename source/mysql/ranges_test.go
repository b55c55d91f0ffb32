package mysql

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/source"
)

// keyed is a kind of table that is cut, or left whole.
type keyed struct {
	name, definition string
	columns          string                  // that get values; empty: k
	values           func(*rand.Rand) string // of the key's columns
	whole            bool
	uneven           bool // some value of what it is cut by has more rows than a part should
	mysql            bool // MariaDB does not have it
}

// letters are such as collations hold to be equal, or more than one, or in another order
// than their bytes.
var letters = []string{"a", "A", "b", "B", "ä", "Ä", "ß", "ss", "z", "Z", "é", "ñ", " ", "_", "1", "10", "ö", "ÿ", "\\\\", "''"}

func aWord(r *rand.Rand, from []string) string {
	var b strings.Builder
	for range 1 + r.IntN(7) {
		b.WriteString(from[r.IntN(len(from))])
	}
	return "'" + b.String() + "'"
}

func number(r *rand.Rand) string {
	return fmt.Sprint(r.Int64N(1<<r.IntN(63)) - r.Int64N(1<<r.IntN(63)))
}

func hexes(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return fmt.Sprintf("X'%x'", b)
}

func aMoment(r *rand.Rand) string {
	return fmt.Sprintf("'%d-%02d-%02d %02d:%02d:%02d.%06d'", 1971+r.IntN(60), 1+r.IntN(12), 1+r.IntN(28), r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1_000_000))
}

var keyedTables = []keyed{
	{name: "whole numbers", definition: "k bigint PRIMARY KEY", values: number},
	{name: "beyond signed", definition: "k bigint unsigned PRIMARY KEY", values: func(r *rand.Rand) string { return fmt.Sprint(r.Uint64() | uint64(r.IntN(2))<<63) }},
	{name: "small numbers with the ends of their type", columns: "k, i", definition: "k smallint, i int, PRIMARY KEY (k, i)", values: func(r *rand.Rand) string {
		return fmt.Sprintf("%d, %d", []int{-32768, 32767, 0, r.IntN(65536) - 32768}[r.IntN(4)], r.Int32())
	}},
	{name: "one tenant has nearly all", columns: "tenant, i", definition: "tenant int, i int, PRIMARY KEY (tenant, i)", values: func(r *rand.Rand) string {
		return fmt.Sprintf("%d, %d", []int{7, 7, 7, 7, 7, 7, 7, r.IntN(20)}[r.IntN(8)], r.Int32())
	}},
	{name: "general_ci", definition: "k varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, append(letters, "😀", "𝄞")) }},
	{name: "unicode_ci", definition: "k varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, append(letters, "😀", "𝄞")) }},
	{name: "0900_ai_ci", definition: "k varchar(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, append(letters, "😀", "𝄞")) }, mysql: true},
	{name: "downwards", columns: "k, i", definition: "k varchar(60), i int, PRIMARY KEY (k DESC, i)", values: func(r *rand.Rand) string { return fmt.Sprintf("%s, %d", aWord(r, letters), r.IntN(3)) }},
	{name: "swedish", definition: "k varchar(60) CHARACTER SET latin1 COLLATE latin1_swedish_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, letters) }},
	{name: "german in char", definition: "k char(40) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, letters) }},
	{name: "utf16", definition: "k varchar(60) CHARACTER SET utf16 COLLATE utf16_unicode_ci PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, append(letters, "😀")) }},
	{name: "utf8mb3 bytes", definition: "k varchar(60) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, letters) }},
	{name: "sjis", definition: "k varchar(60) CHARACTER SET sjis PRIMARY KEY", values: func(r *rand.Rand) string { return aWord(r, []string{"ア", "あ", "a", "A", "漢", "ソ", "表"}) }},
	{name: "bytes", definition: "k varbinary(30) PRIMARY KEY", values: func(r *rand.Rand) string { return hexes(r, 1+r.IntN(20)) }},
	{name: "sixteen bytes", definition: "k binary(16) PRIMARY KEY", values: func(r *rand.Rand) string { return hexes(r, 16) }},
	{name: "decimals", definition: "k decimal(40,20) PRIMARY KEY", values: func(r *rand.Rand) string { return fmt.Sprintf("%s.%d", number(r), r.Uint64()) }},
	{name: "dates", columns: "d, k", definition: "d date, k varchar(20), PRIMARY KEY (d, k)", values: func(r *rand.Rand) string {
		return []string{"'0000-00-00'", aMoment(r)}[r.IntN(2)] + ", " + aWord(r, letters[:6])
	}},
	{name: "instants", definition: "k timestamp(6) PRIMARY KEY", values: aMoment},
	{name: "datetimes", definition: "k datetime(3) PRIMARY KEY", values: aMoment},
	{name: "times and years", columns: "y, k", definition: "y year, k time(6), PRIMARY KEY (y, k)", values: func(r *rand.Rand) string {
		return fmt.Sprintf("%d, '%d:%02d:%02d.%06d'", []int{0, 1901, 2155, 1970 + r.IntN(100)}[r.IntN(4)], r.IntN(1600)-800, r.IntN(60), r.IntN(60), r.IntN(1_000_000))
	}},
	{name: "three columns", columns: "a, b, `c``'`", definition: "a varchar(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, b decimal(5,2), `c``'` bigint, PRIMARY KEY (a, b, `c``'`)", values: func(r *rand.Rand) string {
		return fmt.Sprintf("'%s', %d, %s", letters[r.IntN(8)], r.IntN(3), number(r))
	}},
	{name: "a label in the middle", columns: "a, e, b", definition: "a int, e enum('z','a'), b int, PRIMARY KEY (a, e, b)", values: func(r *rand.Rand) string { return fmt.Sprintf("%d, %d, %d", r.IntN(100), 1+r.IntN(2), r.Int32()) }},
	{name: "few values of what can be cut by", columns: "a, e, b", definition: "a int, e enum('z','a'), b int, PRIMARY KEY (a, e, b)", uneven: true, values: func(r *rand.Rand) string { return fmt.Sprintf("%d, %d, %d", r.IntN(3), 1+r.IntN(2), r.Int32()) }},
	{name: "unique without NULL", columns: "n, k, v", definition: "n int, k bigint NOT NULL, v varchar(50) NOT NULL, UNIQUE u (v), UNIQUE `n n` (n), KEY (k)", values: func(r *rand.Rand) string {
		return fmt.Sprintf("%d, %d, %s", r.Int32(), r.Int32(), aWord(r, letters))
	}},
	{name: "partitions", definition: "k bigint PRIMARY KEY", values: number},
	{name: "unique with NULL", definition: "k bigint, UNIQUE (k)", values: number, whole: true},
	{name: "no key", definition: "k bigint, KEY (k)", values: number, whole: true},
	{name: "a label", columns: "e, k", definition: "e enum('z','a'), k bigint, PRIMARY KEY (e, k)", values: func(r *rand.Rand) string { return fmt.Sprintf("%d, %s", 1+r.IntN(2), number(r)) }, whole: true},
	{name: "the beginning of a text", definition: "k text, PRIMARY KEY (k(10))", values: func(r *rand.Rand) string { return aWord(r, letters) }, whole: true},
	{name: "floats", definition: "k float PRIMARY KEY", values: func(r *rand.Rand) string { return fmt.Sprint(r.NormFloat64()) }, whole: true},
	{name: "another engine", definition: "k bigint PRIMARY KEY", values: number, whole: true},
}

// All parts of a table together hold each of its rows once, as the whole copy does, by
// whatever its key is and in whatever order its collation has it; they are about as large
// as was asked for, and none of them reads the whole table.
func TestPartsOfATableHoldEachRowOnce(t *testing.T) {
	onAll(t, func(r *rig) {
		t := r.T
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		const rows, most = 3000, 64 << 10
		var names, statements []string
		kinds := slices.DeleteFunc(slices.Clone(keyedTables), func(k keyed) bool { return k.mysql && r.server.Binaries.MariaDB })
		for i, k := range kinds {
			name := fmt.Sprintf("t%d", i)
			names = append(names, name)
			tail := map[string]string{"partitions": " PARTITION BY HASH (k) PARTITIONS 3", "another engine": " ENGINE=MyISAM"}[k.name]
			statements = append(statements, "CREATE TABLE "+name+" ("+k.definition+", filler varchar(200) NOT NULL DEFAULT '"+strings.Repeat("f", 150)+"')"+tail)
			into := k.columns
			if into == "" {
				into = "k"
			}
			for at := 0; at < rows; at += 500 {
				values := make([]string, 500)
				for i := range values {
					values[i] = "(" + k.values(rnd) + ")"
				}
				statements = append(statements, "SET sql_mode = ''", "INSERT IGNORE INTO "+name+" ("+into+") VALUES "+strings.Join(values, ", "))
			}
		}
		r.exec(append(statements, "ANALYZE TABLE "+strings.Join(names, ", "))...)
		r.source.cfg.ZeroDates = ZeroDatesText
		var tables []*change.Table
		for _, n := range names {
			tables = append(tables, r.relation(n).Table)
		}
		snap, err := r.source.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer snap.Close(context.Background())
		// What comes and goes after the snapshot is in no part.
		statements = nil
		for _, n := range names {
			statements = append(statements, "DELETE FROM "+n+" WHERE RAND() < 0.1")
		}
		r.exec(statements...)
		extents, err := snap.(source.Ranger).Measure(t.Context(), tables, most)
		if err != nil {
			t.Fatal(err)
		}
		questions := r.server.Open(t, r.database)
		copied := func(table *change.Table, part *source.Range) []string {
			var b bytes.Buffer
			req := source.CopyRequest{Table: table, Range: part}
			for _, c := range table.Columns {
				req.Columns = append(req.Columns, c.Name)
			}
			if _, err := snap.Copy(t.Context(), req, &b); err != nil {
				t.Fatal(err)
			}
			return slices.Collect(strings.Lines(b.String()))
		}
		for i, k := range kinds {
			whole := copied(tables[i], nil)
			extent := extents[i]
			if k.whole {
				if len(extent.Ranges) != 0 || extent.Bytes <= most {
					t.Errorf("%s: %d bytes in %d parts", k.name, extent.Bytes, len(extent.Ranges))
				}
				continue
			}
			var all []string
			largest := 0
			for at := range extent.Ranges {
				part := copied(tables[i], &extent.Ranges[at])
				largest = max(largest, len(part))
				all = append(all, part...)
				condition := extent.Ranges[at].At.(*keyRange)
				var plan string
				if err := questions.QueryRow(fmt.Sprintf("EXPLAIN FORMAT=JSON SELECT * FROM %s FORCE INDEX (%s) WHERE %s", quoted(tables[i].Name), quote(condition.index), condition.condition)).Scan(&plan); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(plan, `"range"`) && !strings.Contains(plan, "Index range scan") {
					t.Errorf("%s: a part reads with %s: %s", k.name, plan, condition.condition)
				}
			}
			slices.Sort(whole)
			slices.Sort(all)
			if !slices.Equal(whole, all) {
				t.Errorf("%s: the parts hold %d rows, the table %d", k.name, len(all), len(whole))
			}
			want := int((extent.Bytes-1)/most + 1)
			if n := len(extent.Ranges); n > 2*want || !k.uneven && (n < want/2 || largest > 3*len(whole)/want) {
				t.Errorf("%s: %d bytes in %d parts, of which the largest has %d of %d rows", k.name, extent.Bytes, n, largest, len(whole))
			}
		}
	})
}
