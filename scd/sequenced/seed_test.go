package sequenced_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// A target that is seeded at a position goes on like one that was sequenced by position
// from its beginning, whatever comes after, in any order, and whatever of before comes
// again.
func TestASeededTargetIsLikeOneThatWasSequencedFromItsBeginning(t *testing.T) {
	from := uint64(time.Now().UnixNano())
	if *seed != 0 {
		from = *seed
	}
	t.Logf("seed %d", from)
	columns := []scd.Column{{Name: "a", Type: bigint}, {Name: "k", Type: bigint, Key: true}, {Name: "b", Type: bigint}}
	for n := range uint64(20_000) {
		r := rand.New(rand.NewPCG(from+n, 0))
		tg := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1, Sequenced: true, Columns: columns}
		o := sequenced.Options{Partial: r.IntN(2) == 0}
		place := func(tx, ordinal int) sequenced.Place {
			seq, err := sequenced.AppendSequence(nil, text(change.LSN(uint64(10*tx)).String()), sequenced.PositionType)
			if err != nil {
				t.Fatal(err)
			}
			return sequenced.Place{Seq: seq, At: sequenced.AppendLog(nil, change.LSN(uint64(10*tx-5)), false, uint64(ordinal), 0)}
		}
		keys := 1 + r.IntN(4)
		event := func(tx, ordinal int, partial bool) sequenced.Event {
			key := integer(r.IntN(keys))
			e := sequenced.Event{Key: change.Row(nil).Append(key), Place: place(tx, ordinal), Delete: r.IntN(3) == 0, Time: int64(tx)}
			if !e.Delete {
				cell := func() change.Value {
					switch c := r.IntN(4); {
					case c == 0:
						return change.Value{State: change.Null}
					case c == 1 && partial:
						return change.Value{State: change.Absent}
					default:
						return integer(c)
					}
				}
				e.Row = change.Row(nil).Append(cell()).Append(key).Append(cell())
			}
			return e
		}
		must := func(m *memory, l *sequenced.Lane, events []sequenced.Event, truncates []sequenced.Place) {
			if _, err := m.apply(l, events, truncates); err != nil {
				t.Fatalf("seed %d: %v", from+n, err)
			}
		}
		// Before: whole rows, in order, into both; of one only the rows are left.
		var before []sequenced.Event
		move := 1 + r.IntN(6)
		for tx := 1; tx <= move; tx++ {
			for ordinal := range 1 + r.IntN(3) {
				before = append(before, event(tx, ordinal, false))
			}
		}
		whole := newMemory(tg)
		wholeLane := sequenced.New(tg, o, sequenced.Head{})
		must(whole, wholeLane, before, nil)
		seeded := newMemory(tg)
		s, err := sequenced.NewSeed(tg, &change.Table{}, o, change.LSN(uint64(10*move)), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		work := sequenced.Work{Put: []sequenced.Record{s.Define("type 1")}}
		for key, row := range whole.rows {
			seeded.rows[key] = row
			rec, err := s.Row(row)
			if err != nil || string(rec.Key) != key {
				t.Fatalf("seed %d: the key of a row is %x, %v", from+n, rec.Key, err)
			}
			work.Put = append(work.Put, rec)
		}
		seeded.work(&work)
		seededLane := sequenced.New(tg, o, s.Head())

		var after []sequenced.Event
		var truncates []sequenced.Place
		for tx := move + 1; tx <= move+1+r.IntN(6); tx++ {
			for ordinal := range 1 + r.IntN(3) {
				if r.IntN(8) == 0 {
					truncates = append(truncates, place(tx, ordinal))
					continue
				}
				after = append(after, event(tx, ordinal, o.Partial))
			}
		}
		after = append(after, before[:r.IntN(len(before)+1)]...)
		r.Shuffle(len(after), func(i, j int) { after[i], after[j] = after[j], after[i] })
		for len(after)+len(truncates) > 0 {
			e, c := r.IntN(len(after)+1), r.IntN(len(truncates)+1)
			must(whole, wholeLane, after[:e], truncates[:c])
			must(seeded, seededLane, after[:e], truncates[:c])
			after, truncates = after[e:], truncates[c:]
			if a, b := whole.show(), seeded.show(); a != b {
				t.Fatalf("seed %d (partial %v): seeded\n%s\nwant\n%s", from+n, o.Partial, b, a)
			}
		}
		if len(seeded.problems) > 0 {
			t.Fatalf("seed %d: %v", from+n, seeded.problems)
		}
	}
}
