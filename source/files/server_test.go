package files

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// TestFitPrintsWhatAServerPrints gives a real server everything that fits, and
// compares: it must read the same value from what was written, and print what we do.
func TestFitPrintsWhatAServerPrints(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	digits := func(n int) string {
		s := ""
		for range n {
			s += fmt.Sprint(r.IntN(10) * r.IntN(2))
		}
		return s
	}
	number := func() string {
		s := []string{"", "-", "+"}[r.IntN(3)] + digits(r.IntN(20))
		if r.IntN(2) == 0 {
			s += "." + digits(r.IntN(20))
		}
		if r.IntN(4) == 0 {
			s += fmt.Sprintf("e%d", r.IntN(60)-30)
		}
		return s
	}
	clock := func() string {
		at := time.Unix(r.Int64N(250_000_000_000)-60_000_000_000, r.Int64N(1e6)*1000*r.Int64N(2)).UTC()
		return at.Format([]string{"2006-01-02", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05.999999", "2006-01-02T15:04:05.999999Z", "2006-01-02 15:04:05.000000-07"}[r.IntN(6)])
	}
	zoned := func() string {
		s := time.Unix(r.Int64N(250_000_000_000)-60_000_000_000, r.Int64N(1e6)*1000).UTC().Format("2006-01-02T15:04:05.999999")
		return s + fmt.Sprintf([]string{"%+03d:%02d", "%+03d%02d", "%+03[1]d"}[r.IntN(3)], r.IntN(31)-15, r.IntN(60))[:]
	}
	families := map[string]func() string{
		"boolean":       func() string { return []string{"true", "FALSE", "t", "F"}[r.IntN(4)] },
		"smallint":      func() string { return []string{"", "-", "+"}[r.IntN(3)] + digits(1+r.IntN(6)) },
		"integer":       func() string { return []string{"", "-", "+"}[r.IntN(3)] + digits(1+r.IntN(11)) },
		"bigint":        func() string { return []string{"", "-", "+"}[r.IntN(3)] + digits(1+r.IntN(21)) },
		"numeric":       number,
		"numeric(12,3)": number,
		"double precision": func() string {
			switch r.IntN(3) {
			case 0:
				return fmt.Sprint(math.Float64frombits(r.Uint64()))
			case 1:
				return fmt.Sprint(float64(r.IntN(2_000_000)-1_000_000) / 1000)
			}
			return number()
		},
		"real": func() string {
			if r.IntN(2) == 0 {
				return fmt.Sprint(math.Float32frombits(r.Uint32()))
			}
			return number()
		},
		"date":        clock,
		"timestamp":   clock,
		"timestamptz": func() string { return []func() string{clock, zoned}[r.IntN(2)]() },
		"time": func() string {
			return fmt.Sprintf("%02d:%02d:%02d.%s", r.IntN(24), r.IntN(60), r.IntN(60), digits(1+r.IntN(6)))
		},
		"uuid":  func() string { return fmt.Sprintf("%016X%016x", r.Uint64(), r.Uint64()) },
		"bytea": func() string { return fmt.Sprintf("\\x%016X", r.Uint64()) },
	}
	s := dbtest.Postgres(t)
	ctx := context.Background()
	conn := s.Connect(t, s.Database(t))
	if _, err := conn.Exec(ctx, "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET extra_float_digits = 1"); err != nil {
		t.Fatal(err)
	}
	for name, random := range families {
		typ, err := parseType(name)
		if err != nil {
			t.Fatal(err)
		}
		var written, printed []string
		for range 3000 {
			w := random()
			p, ok := fit(nil, []byte(w), &typ)
			if !ok {
				continue
			}
			written = append(written, w)
			printed = append(printed, string(p))
		}
		if len(written) < 300 {
			t.Errorf("%s: only %d values fit", name, len(written))
		}
		rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT w, p, w::%[1]s::text, p::%[1]s::text FROM unnest($1::text[], $2::text[]) v(w, p)`, typ.Name), written, printed)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var w, p, ofWritten, ofPrinted string
			if err := rows.Scan(&w, &p, &ofWritten, &ofPrinted); err != nil {
				t.Fatal(err)
			}
			if typ.Kind == change.Bool {
				ofWritten, ofPrinted = ofWritten[:1], ofPrinted[:1] // a cast spells the word
			}
			if p != ofPrinted || p != ofWritten {
				t.Errorf("%s: %q is printed as %s, by the server as %s; it prints ours as %s", name, w, p, ofWritten, ofPrinted)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
