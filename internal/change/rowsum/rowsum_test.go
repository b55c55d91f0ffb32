package rowsum_test

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"tailrace/internal/change/rowsum"
)

func TestOnlyExactTypesAreSummed(t *testing.T) {
	for _, c := range []struct{ encoding, types, want string }{
		{"UTF8", "23 25 1700", "23 25 1700"},
		{"UTF8", "23", "23"},
		{"LATIN1", "23", ""},
		{"UTF8", "", ""},
		{"UTF8", "23 16384", ""}, // a type that is not built in: its number says nothing
		{"UTF8", "790", ""},      // money is printed by the locale
		{"UTF8", "142 23", ""},
	} {
		if got := rowsum.Form(c.encoding, strings.Fields(c.types)); got != c.want {
			t.Errorf("the form of %s in %s is %q, want %q", c.types, c.encoding, got, c.want)
		}
	}
	if rowsum.Form("UTF8", []string{"23", ""}) != "" {
		t.Error("a column that is not there has a form")
	}
}

func TestStatements(t *testing.T) {
	s := rowsum.Sums{Buckets: 1 << 14, Seeds: [3]int64{1, -2, 3}}
	want := `SELECT b, count(*), sum(x), sum(y) FROM (SELECT (hashtextextended(k, 1) & 16383) AS b, hashtextextended(r, -2) AS x, hashtextextended(r, 3) AS y FROM (SELECT (ROW("id")::text COLLATE "C") AS k, (ROW("id", "v")::text COLLATE "C") AS r FROM ONLY "t" OFFSET 0) AS t) AS h GROUP BY b`
	if got := s.SQL([]string{`"id"`, `"v"`}, []string{`"id"`}, `ONLY "t"`); got != want {
		t.Errorf("sums:\n%s", got)
	}
	part := rowsum.Part{Sums: s, Wanted: []int{0, 7}}
	want = `(hashtextextended((ROW("id", "v")::text COLLATE "C"), 1) & 16383) = ANY ('{0,7}'::bigint[])`
	if got := part.Condition([]string{`"id"`, `"v"`}, nil); got != want {
		t.Errorf("condition:\n%s", got)
	}
}

// Sums of any size, of either sign, are taken modulo 2^64.
func TestSumsWrap(t *testing.T) {
	s := rowsum.New(1)
	into := make([]rowsum.Bucket, 1)
	modulus := new(big.Int).Lsh(big.NewInt(1), 64)
	for range 1000 {
		n := new(big.Int).Mul(big.NewInt(rand.Int64()), big.NewInt(rand.Int64N(1<<40)))
		if rand.IntN(2) == 0 {
			n.Neg(n)
		}
		if err := s.Take(into, [][]byte{[]byte("0"), []byte("5"), []byte(n.String()), []byte("-0")}); err != nil {
			t.Fatal(err)
		}
		if want := new(big.Int).Mod(n, modulus).Uint64(); into[0] != (rowsum.Bucket{Rows: 5, A: want}) {
			t.Fatalf("%s became %+v", n, into[0])
		}
	}
	for _, bad := range []string{"1", "-1", "x"} {
		if s.Take(into, [][]byte{[]byte(bad), []byte("5"), []byte("1"), []byte("1")}) == nil {
			t.Errorf("bucket %s was taken", bad)
		}
	}
}
