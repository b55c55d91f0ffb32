package checkpoint_test

import (
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
)

// A server that keeps its log by itself: what counts is whether the log still reaches
// from the mark to now.
func TestDecideWithoutASlotOverItsWholeSpace(t *testing.T) {
	at := func(file uint32, offset uint64) change.Position { return change.Position{File: file, Offset: offset} }
	mark := at(5, 1000)
	home := checkpoint.Identity{System: "uuid"}
	for _, phase := range []checkpoint.Phase{checkpoint.None, checkpoint.Creating, checkpoint.Copying, checkpoint.Live} {
		for _, id := range []checkpoint.Identity{home, {System: "other"}} {
			for _, oldest := range []change.Position{at(1, 4), at(5, 4), at(6, 4)} {
				for _, head := range []change.Position{at(5, 999), mark, at(5, 2000), at(9, 4)} {
					m := checkpoint.Mark{Phase: phase}
					begun := phase == checkpoint.Copying || phase == checkpoint.Live
					if begun {
						m.Source, m.Position = home, mark
					}
					d, err := checkpoint.Decide(m, checkpoint.SourceState{Identity: id, Slotless: true, Oldest: oldest, Head: head})
					whole := id == home && !mark.Before(oldest) && !head.Before(mark)
					want := map[checkpoint.Phase]checkpoint.Action{checkpoint.Copying: checkpoint.ResumeCopy, checkpoint.Live: checkpoint.Follow}[phase]
					switch {
					case begun && !whole && (err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == ""):
						t.Errorf("%s on %s, log from %s to %s: %v, %v", phase, id.System, oldest, head, d.Action, err)
					case begun && whole && (err != nil || d.Action != want || d.From != mark):
						t.Errorf("%s, log from %s to %s: %v from %s, %v", phase, oldest, head, d.Action, d.From, err)
					case !begun && (err != nil || d.Action != checkpoint.Hydrate || d.DropSlot):
						t.Errorf("%s: %v, %v", phase, d, err)
					}
				}
			}
		}
	}
}

// The whole space of starts, judged by what must never happen and what must
// always work, not by a second copy of the rules.
func TestDecideOverItsWholeSpace(t *testing.T) {
	const mark = 1000
	phases := []checkpoint.Phase{checkpoint.None, checkpoint.Creating, checkpoint.Copying, checkpoint.Live}
	home := checkpoint.Identity{System: "7", Timeline: 1, Database: "d"}
	identities := []checkpoint.Identity{home, {System: "8", Timeline: 1, Database: "d"}, {System: "7", Timeline: 2, Database: "d"}, {System: "7", Timeline: 1, Database: "e"}}
	seen, refused := 0, 0
	for _, phase := range phases {
		for _, id := range identities {
			for _, slot := range []string{"missing", "good", "wrong", "lost"} {
				for _, confirmed := range []uint64{900, mark, 1100} {
					for _, head := range []uint64{999, mark, 2000} {
						for _, pub := range []string{"good", "missing", "newer"} {
							m := checkpoint.Mark{Phase: phase}
							if phase == checkpoint.Copying || phase == checkpoint.Live {
								m.Source, m.Position = home, change.LSN(mark)
							}
							s := checkpoint.SourceState{
								Identity: id, SlotName: "s", SlotExists: slot != "missing", SlotLost: slot == "lost",
								Confirmed: change.LSN(confirmed), Head: change.LSN(head), PublicationNewer: pub == "newer",
							}
							if slot == "wrong" {
								s.SlotProblem = "it is physical"
							}
							if pub == "missing" {
								s.PublicationsMissing = []string{"p"}
							}
							d, err := checkpoint.Decide(m, s)
							seen++
							name := string(phase) + "/" + id.System + "/" + slot + "/" + pub
							begun := phase == checkpoint.Copying || phase == checkpoint.Live
							whole := id == home && slot == "good" && confirmed <= mark && head >= mark && pub == "good"
							switch {
							case err != nil:
								refused++
								if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
									t.Errorf("%s: refusal without remedy: %v", name, err)
								}
								if begun && whole {
									t.Errorf("%s: refused a start that loses nothing: %v", name, err)
								}
								if phase == checkpoint.Creating && slot != "wrong" {
									t.Errorf("%s: a start that died while making its slot must be able to begin again: %v", name, err)
								}
								if phase == checkpoint.None && slot == "missing" {
									t.Errorf("%s: a first start was refused: %v", name, err)
								}
							case begun && !whole:
								t.Errorf("%s: %s although something between mark and source is missing", name, d.Action)
							case begun && d.From != m.Position:
								t.Errorf("%s: begins at %s, not at the mark", name, d.From)
							case begun != (d.Action != checkpoint.Hydrate):
								t.Errorf("%s: action %s", name, d.Action)
							case phase == checkpoint.Copying != (d.Action == checkpoint.ResumeCopy):
								t.Errorf("%s: action %s", name, d.Action)
							case d.DropSlot && phase != checkpoint.Creating:
								t.Errorf("%s: would drop a slot that is not known to be a leftover", name)
							case d.DropSlot != (s.SlotExists && phase == checkpoint.Creating):
								t.Errorf("%s: DropSlot %v", name, d.DropSlot)
							case phase == checkpoint.None && s.SlotExists:
								t.Errorf("%s: took a slot without a mark", name)
							}
						}
					}
				}
			}
		}
	}
	if seen != 4*4*4*3*3*3 || refused == 0 {
		t.Fatalf("visited %d states, %d refused", seen, refused)
	}
}

func TestContainsAtItsBoundaries(t *testing.T) {
	table := checkpoint.Table{Since: change.LSN(100)}
	for _, c := range []struct {
		tx   change.Tx
		want bool
	}{
		{change.Tx{First: true, Last: true, Begin: change.LSN(60), End: change.LSN(99)}, true},
		{change.Tx{First: true, Last: true, Begin: change.LSN(60), End: change.LSN(100)}, true},
		{change.Tx{First: true, Last: true, Begin: change.LSN(100), End: change.LSN(140)}, false},
		{change.Tx{First: true, Begin: change.LSN(60)}, true},
		{change.Tx{Begin: change.LSN(99)}, true},
		{change.Tx{First: true, Begin: change.LSN(100)}, false},
		{change.Tx{Last: true, Begin: change.LSN(60), End: change.LSN(100)}, true},
		{change.Tx{Last: true, Begin: change.LSN(100), End: change.LSN(140)}, false},
	} {
		if got := table.Contains(&c.tx); got != c.want {
			t.Errorf("since %s, begin %s end %s last %v: contained %v, want %v", table.Since, c.tx.Begin, c.tx.End, c.tx.Last, got, c.want)
		}
	}
}
