package scd_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
)

// A target that holds, of each key, some moment of the source between the slot's and the
// end of the backup equals the source when everything up to that end has been applied to
// it, in any batches; or a row with unchanged columns has changed its key, which is seen.
func TestABackupCatchesUpWhateverItHolds(t *testing.T) {
	base := seed(t)
	runs := 12000
	if testing.Short() {
		runs = 1000
	}
	equal, parked := 0, 0
	for run := range runs {
		rnd := rand.New(rand.NewPCG(base, uint64(run)))
		identity := change.IdentityDefault
		if run%3 == 0 {
			identity = change.IdentityFull
		}
		tab := sim.NewTable(rnd, identity)
		for range rnd.IntN(4) {
			tab.Transaction(6)
		}
		states := []sim.State{{Rows: clone(tab.Rows)}} // the slot's position
		var txs []change.Tx
		var log []change.Change
		for range 1 + rnd.IntN(8) {
			tx, after := tab.Transaction(1 + rnd.IntN(5))
			txs, states, log = append(txs, tx), append(states, after), append(log, tx.Changes...)
		}
		// One moment for all keys, or one for each.
		st := sim.NewStore()
		st.Restored = true
		moment, torn := rnd.IntN(len(states)), rnd.IntN(3) == 0
		for _, id := range []string{"0", "1", "2", "3", "4", "5"} {
			if torn {
				moment = rnd.IntN(len(states))
			}
			if row := states[moment].Rows[id]; row != nil {
				st.Rows[id] = slices.Clone(row)
			}
		}
		backup := fmt.Sprint(st.Rows)
		f := scd.NewFolder(sim.Target(scd.Type1))
		f.Restored(true)
		whole := true
		take := func() {
			for _, r := range f.Take() {
				for _, m := range r.Moves {
					whole = whole && !m.Row.HasAbsent(len(sim.Columns))
				}
				if !whole {
					return
				}
				if err := st.Apply(scd.Type1, r); err != nil {
					t.Fatalf("run %d: %v\nbackup %s\nlog %s", run, err, backup, printLog(log))
				}
			}
		}
		for i := range txs {
			for j := range txs[i].Changes {
				if err := f.Add(&txs[i].Changes[j]); err != nil {
					t.Fatal(err)
				}
			}
			if rnd.IntN(2) == 0 {
				take()
			}
		}
		take()
		switch {
		case !whole && identity == change.IdentityFull:
			t.Fatalf("run %d: a log with whole rows leaves nothing open\nlog %s", run, printLog(log))
		case !whole:
			parked++
		case fmt.Sprint(st.Rows) != fmt.Sprint(tab.Rows):
			t.Fatalf("run %d: backup %s, got\n%v, want\n%v\nlog %s", run, backup, st.Rows, tab.Rows, printLog(log))
		default:
			equal++
		}
	}
	if equal < runs/3 || parked == 0 {
		t.Fatalf("of %d runs %d were equal, %d had to be given up", runs, equal, parked)
	}
}

func clone(rows map[string][]string) map[string][]string {
	out := maps.Clone(rows)
	for k, v := range out {
		out[k] = slices.Clone(v)
	}
	return out
}
