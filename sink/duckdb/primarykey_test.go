//go:build !noduckdb

package duckdb_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink/duckdb"
)

// TestPrimaryKeysChangeNothingButTheirCost does the same random work with and
// without primary keys.
func TestPrimaryKeysChangeNothingButTheirCost(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	plain := newWriter(t, file(t))
	keyed := newWriter(t, file(t), func(c *duckdb.Config) { c.PrimaryKey = true })
	one, two := target("one", scd.Type1, "id int4 key", "v int4"), target("two", scd.Type2, "id int4 key", "v int4")
	for _, w := range []*duckdb.Writer{plain, keyed} {
		must(t, w.Create(ctx, one))
		must(t, w.Create(ctx, two))
	}
	const keys = 40
	for batch := range 60 {
		var rounds1, rounds2 []scd.Round
		for range 1 + rnd.IntN(3) {
			var r1, r2 scd.Round
			order := rnd.Perm(keys)
			for i, k := range order[:rnd.IntN(keys)] {
				switch i % 4 {
				case 0:
					r1.Deletes = append(r1.Deletes, row(k))
				case 1:
					r1.Upserts = append(r1.Upserts, row(k, rnd.IntN(5)))
				case 2:
					r1.Moves = append(r1.Moves, scd.Move{Old: row(k), Row: row(order[i-2], rnd.IntN(5))}) // to a key that is deleted
				case 3:
					r1.Inserts = append(r1.Inserts, row(k, rnd.IntN(5)))
				}
				step := scd.Step{Key: row(k), N: 1, Lo: int64(batch)}
				if rnd.IntN(4) > 0 {
					step.Row = row(k, rnd.IntN(3))
				}
				r2.Steps = append(r2.Steps, step)
			}
			r1.Truncate = rnd.IntN(20) == 0
			r2.Truncate, r2.TruncateAt = r1.Truncate, int64(batch)
			rounds1, rounds2 = append(rounds1, r1), append(rounds2, r2)
		}
		for _, w := range []*duckdb.Writer{plain, keyed} {
			apply(t, w, one, rounds1...)
			apply(t, w, two, rounds2...)
		}
	}
	for _, tg := range []*scd.Target{one, two} {
		if a, b := dump(t, plain, tg), dump(t, keyed, tg); a != b || a == "" {
			t.Fatalf("%s without\n%s\nwith\n%s", tg.Name, a, b)
		}
		if bad, err := keyed.Invariants(ctx, tg); err != nil || len(bad) > 0 {
			t.Fatal(bad, err)
		}
	}
	// And the key is one.
	if _, err := duckdb.Peek(keyed, ctx, "INSERT INTO one SELECT id, 0 FROM one LIMIT 1", func([]*string) error { return nil }); err == nil {
		t.Fatal("a duplicate key was accepted")
	}
	apply(t, plain, one, scd.Round{Inserts: []change.Row{row(1, 1)}})
}
