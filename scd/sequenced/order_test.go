package sequenced_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/scd/sequenced"
)

// The bytes of a sequence compare as PostgreSQL compares the values.
func TestSequencesCompareAsTheServerDoes(t *testing.T) {
	server := dbtest.Postgres(t)
	db := server.Database(t)
	r := rand.New(rand.NewPCG(7, 7))
	number := func() string {
		digits := ""
		for range 1 + r.IntN(30) {
			digits += string(rune('0' + r.IntN(10)))
		}
		s := []string{"", "-"}[r.IntN(2)] + digits
		if r.IntN(2) == 0 {
			s += "." + strings.Repeat("0", r.IntN(5)) + fmt.Sprint(r.IntN(1000))
		}
		return s
	}
	for _, c := range []struct {
		typ    change.Type
		values []string
		random func() string
	}{
		{change.Type{Kind: change.Bool, Name: "boolean"}, []string{"t", "f"}, nil},
		{change.Type{Kind: change.Int16, Name: "smallint"}, []string{"-32768", "-1", "0", "1", "32767"}, nil},
		{change.Type{Kind: change.Int64, Name: "bigint"}, []string{"-9223372036854775808", "-1", "0", "9", "10", "9223372036854775807"}, func() string { return fmt.Sprint(r.Int64() - r.Int64()) }},
		{change.Type{Kind: change.Float64, Name: "double precision"}, []string{"-Infinity", "Infinity", "NaN", "0", "1e-300", "-1e-300", "1.5"}, func() string { return fmt.Sprint(r.NormFloat64() * 1e6) }},
		{change.Type{Kind: change.Float32, Name: "real"}, []string{"-Infinity", "Infinity", "NaN", "0", "1e-30", "-2.5"}, nil},
		{change.Type{Kind: change.Numeric, Name: "numeric"}, []string{"NaN", "Infinity", "-Infinity", "0", "0.1", "0.01", "1", "10", "100", "-0.1", "-0.01", "99.99", "-99.999"}, number},
		{change.Type{Kind: change.Date, Name: "date"}, []string{"infinity", "-infinity", "2000-01-01", "0044-03-15 BC", "9999-12-31"}, nil},
		{change.Type{Kind: change.Time, Name: "time"}, []string{"00:00:00", "24:00:00", "12:30:00.000001", "12:30:00"}, nil},
		{change.Type{Kind: change.TimeTZ, Name: "time with time zone"}, []string{"12:00:00+00", "12:00:00+02", "13:00:00+01", "12:00:00-05", "10:00:00-02"}, nil},
		{change.Type{Kind: change.Timestamp, Name: "timestamp"}, []string{"infinity", "-infinity", "2024-01-01 00:00:00", "2024-01-01 00:00:00.000001", "0044-03-15 00:00:00 BC"}, nil},
		{change.Type{Kind: change.TimestampTZ, Name: "timestamptz"}, []string{"infinity", "-infinity", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00.5+00", "1969-12-31 23:59:59+00"}, nil},
		{change.Type{Kind: change.UUID, Name: "uuid"}, []string{"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "8b9a3ab6-4c2a-4e7b-9a53-111111111111"}, nil},
		{change.Type{Kind: change.Bytes, Name: "bytea"}, []string{`\x`, `\x00`, `\x0000`, `\x0001`, `\x01`, `\xff`, `\xff00`}, nil},
		{change.Type{Kind: change.Text, Name: "text"}, []string{"", "a", "B", "ab", "a b", "é", "zz"}, nil},
		{change.Type{Kind: change.Other, Name: "pg_lsn"}, []string{"0/0", "0/FFFFFFFF", "1/0", "16/B374D848"}, nil},
	} {
		values := slices.Clone(c.values)
		for range 120 {
			if c.random != nil {
				values = append(values, c.random())
			}
		}
		collate := ""
		if c.typ.Kind == change.Text {
			collate = ` collate "C"`
		}
		var list []string
		for i, v := range values {
			list = append(list, fmt.Sprintf("(%d, '%s'::%s)", i, v, c.typ.Name))
		}
		ranks := server.Query(t, db, fmt.Sprintf("set timezone = 'UTC'; select n || ' ' || dense_rank() over (order by v%s) from (values %s) as x(n, v) order by n", collate, strings.Join(list, ", ")))
		encoded := make([][]byte, len(values))
		for i, v := range values {
			var err error
			if encoded[i], err = sequenced.AppendSequence(nil, text(v), c.typ); err != nil {
				t.Fatalf("%s %s: %v", c.typ.Name, v, err)
			}
		}
		for i := range values {
			for j := range values {
				var ni, ri, nj, rj int
				fmt.Sscan(ranks[i], &ni, &ri)
				fmt.Sscan(ranks[j], &nj, &rj)
				if got := bytes.Compare(encoded[i], encoded[j]); sign(got) != sign(ri-rj) || ni != i || nj != j {
					t.Fatalf("%s: %s and %s compare as %d, the server says %d", c.typ.Name, values[i], values[j], got, ri-rj)
				}
				// Of several columns the first that differs decides.
				if a, b := append(slices.Clone(encoded[i]), encoded[j]...), append(slices.Clone(encoded[j]), encoded[i]...); ri != rj && sign(bytes.Compare(a, b)) != sign(ri-rj) {
					t.Fatalf("%s: (%s, %s) and (%s, %s) are in the wrong order", c.typ.Name, values[i], values[j], values[j], values[i])
				}
			}
		}
	}
	if sequenced.Sortable(change.Type{Kind: change.JSONB, Name: "jsonb"}) || sequenced.Sortable(change.Type{Kind: change.Other, Name: "point"}) {
		t.Error("a type without an order is taken for a sequence")
	}
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
