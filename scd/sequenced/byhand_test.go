package sequenced_test

import (
	"bytes"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/scd/sequenced"
)

// Events applied by hand stand behind all that the log held up to the mark, in the order of
// their applications and lines, and before what the log says later.
func TestPlacesOfEventsAppliedByHand(t *testing.T) {
	mark, then := change.LSN(0x500), time.Date(2026, 11, 30, 10, 0, 0, 123e6, time.UTC)
	order := [][]byte{
		sequenced.AppendFile(nil, "zzz", 9, 3),
		sequenced.AppendLog(nil, change.LSN(0x4FF), false, 1<<40, 3),
		sequenced.AppendLog(nil, mark, true, 99<<40, 3), // a row of a copy at the mark
		sequenced.AppendByHand(nil, mark, then, 1, 3),
		sequenced.AppendByHand(nil, mark, then, sequenced.LinesMost, 0),
		sequenced.AppendByHand(nil, mark, then.Add(time.Millisecond), 1, 0),
		sequenced.AppendByHand(nil, mark, time.Date(2109, 1, 1, 0, 0, 0, 0, time.UTC), 1, 0),
		sequenced.AppendLog(nil, mark, false, 0, 0), // a commit that begins where the mark stands
		sequenced.AppendByHand(nil, change.LSN(0x501), then, 1, 0),
	}
	for i := 1; i < len(order); i++ {
		if bytes.Compare(order[i-1], order[i]) >= 0 {
			t.Errorf("place %d is not below place %d", i-1, i)
		}
	}
	spot, err := sequenced.ReadAt(order[4])
	if err != nil {
		t.Fatal(err)
	}
	if at, line, ok := spot.ByHand(); !ok || !at.Equal(then) || line != sequenced.LinesMost || spot.Flow != 0 || spot.Log != mark {
		t.Errorf("%v, line %d, %v, %+v", at, line, ok, spot)
	}
	if got := sequenced.At(order[3]); got != "applied by hand at 0/500, 2026-11-30T10:00:00.123Z, line 1" {
		t.Error(got)
	}
	if spot, err = sequenced.ReadAt(order[2]); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := spot.ByHand(); ok {
		t.Error("a copied row counts as applied by hand")
	}
}
