package scd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
)

func seed(t *testing.T) uint64 {
	s := uint64(time.Now().UnixNano())
	if e := os.Getenv("TAILRACE_TEST_SEED"); e != "" {
		var err error
		if s, err = strconv.ParseUint(e, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (repeat with TAILRACE_TEST_SEED=%d)", s, s)
	return s
}

// Any split of the same transactions into batches gives the same type 1 and type
// 2 tables, equal to the source and to the definition of a history.
func TestFoldEqualsOneByOne(t *testing.T) {
	base := seed(t)
	runs := 6000
	if testing.Short() {
		runs = 500
	}
	sawRounds, sawMoves, sawPatches, sawLate := false, false, false, false
	for run := range runs {
		rnd := rand.New(rand.NewPCG(base, uint64(run)))
		identity := change.IdentityDefault
		if run%3 == 0 {
			identity = change.IdentityFull
		}
		tab := sim.NewTable(rnd, identity)
		one, two := scd.NewFolder(sim.Target(scd.Type1)), scd.NewFolder(sim.Target(scd.Type2))
		st := sim.NewStore()
		var states []sim.State
		var log []change.Change
		for range 1 + rnd.IntN(12) {
			tx, after := tab.Transaction(1 + rnd.IntN(6))
			states = append(states, after)
			for i := range tx.Changes {
				log = append(log, tx.Changes[i])
				if err := one.Add(&tx.Changes[i]); err != nil {
					t.Fatalf("run %d: type 1: %v", run, err)
				}
				if err := two.Add(&tx.Changes[i]); err != nil {
					t.Fatalf("run %d: type 2: %v", run, err)
				}
			}
			if err := one.EndTx(after.At); err != nil {
				t.Fatal(err)
			}
			if err := two.EndTx(after.At); err != nil {
				t.Fatalf("run %d: type 2: %v", run, err)
			}
			if rnd.IntN(3) == 0 {
				flush(t, st, one, two, &sawRounds, &sawMoves, &sawPatches, &sawLate)
			}
		}
		flush(t, st, one, two, &sawRounds, &sawMoves, &sawPatches, &sawLate)
		if got, want := fmt.Sprint(st.Rows), fmt.Sprint(tab.Rows); got != want {
			t.Fatalf("run %d: type 1\n got %s\nwant %s\nlog %s", run, got, want, printLog(log))
		}
		if got, want := sim.PrintHistory(st.History), sim.PrintHistory(sim.Oracle2(states)); got != want {
			t.Fatalf("run %d: type 2\n got\n%s\nwant\n%s\nlog %s", run, got, want, printLog(log))
		}
	}
	if !sawRounds || !sawMoves || !sawPatches || !sawLate {
		t.Fatalf("the search never met: several rounds %v, moves %v, patches %v, steps after the first %v", sawRounds, sawMoves, sawPatches, sawLate)
	}
}

func flush(t *testing.T, st *sim.Store, one, two *scd.Folder, rounds, moves, patches, late *bool) {
	for _, r := range one.Take() {
		*moves = *moves || len(r.Moves) > 0
		*patches = *patches || len(r.Patches) > 0
		if err := st.Apply(scd.Type1, r); err != nil {
			t.Fatal(err)
		}
	}
	rs := two.Take()
	*rounds = *rounds || len(rs) > 1
	for _, r := range rs {
		for _, s := range r.Steps {
			*late = *late || s.N > 1
		}
		if err := st.Apply(scd.Type2, r); err != nil {
			t.Fatal(err)
		}
	}
}

func printLog(log []change.Change) string {
	var b strings.Builder
	for _, c := range log {
		fmt.Fprintf(&b, "\n  %s old=%s new=%s", c.Op, printRow(c.Old), printRow(c.New))
	}
	return b.String()
}

func printRow(r change.Row) string {
	if r == nil {
		return "-"
	}
	var cells []string
	for range sim.Columns {
		v, rest, err := r.Next()
		if err != nil {
			return "?"
		}
		if v.State == change.AsText {
			cells = append(cells, string(v.Data))
		} else {
			cells = append(cells, string(rune(v.State)))
		}
		r = rest
	}
	return strings.Join(cells, ",")
}
