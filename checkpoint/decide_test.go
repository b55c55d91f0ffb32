package checkpoint_test

import (
	"strings"
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
	for _, phase := range []checkpoint.Phase{checkpoint.None, checkpoint.Creating, checkpoint.Prepared, checkpoint.Copying, checkpoint.Live} {
		for _, id := range []checkpoint.Identity{home, {System: "other"}} {
			for _, oldest := range []change.Position{at(1, 4), at(5, 4), at(6, 4)} {
				for _, head := range []change.Position{at(5, 999), mark, at(5, 2000), at(9, 4)} {
					m := checkpoint.Mark{Phase: phase}
					begun := phase == checkpoint.Prepared || phase == checkpoint.Copying || phase == checkpoint.Live
					if begun {
						m.Source, m.Position = home, mark
					}
					d, err := checkpoint.Decide(m, checkpoint.SourceState{Identity: id, Slotless: true, Oldest: oldest, Head: head})
					whole := id == home && !mark.Before(oldest) && !head.Before(mark)
					want := map[checkpoint.Phase]checkpoint.Action{checkpoint.Prepared: checkpoint.Adopt, checkpoint.Copying: checkpoint.ResumeCopy, checkpoint.Live: checkpoint.Follow}[phase]
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

// Another server than the mark's, which was asked whether it can go on from there.
func TestDecideOnAnotherServerOverItsWholeSpace(t *testing.T) {
	mark := change.Position{Epoch: 3, File: 5, Offset: 1000}
	at := func(epoch, file uint32) change.Position { return change.Position{Epoch: epoch, File: file, Offset: 4} }
	for _, phase := range []checkpoint.Phase{checkpoint.None, checkpoint.Creating, checkpoint.Preparing, checkpoint.Prepared, checkpoint.Copying, checkpoint.Live} {
		for _, database := range []string{"", "d"} {
			for _, problem := range []string{"", "it lacks something", "it lacks something now"} {
				for _, found := range []change.Position{at(4, 2), at(3, 2), at(4, 1)} {
					for _, head := range []change.Position{at(4, 2), at(4, 9), at(4, 1)} {
						m := checkpoint.Mark{Phase: phase}
						begun := phase == checkpoint.Prepared || phase == checkpoint.Copying || phase == checkpoint.Live
						if begun {
							m.Source, m.Position = checkpoint.Identity{System: "a"}, mark
						}
						e := &checkpoint.Elsewhere{Position: found, Resume: "there", Problem: problem}
						if problem != "" {
							e.Remedy, e.Passing = "wait", strings.HasSuffix(problem, "now")
						}
						d, err := checkpoint.Decide(m, checkpoint.SourceState{Identity: checkpoint.Identity{System: "b", Database: database}, Slotless: true, Elsewhere: e, Oldest: at(4, 2), Head: head})
						possible := found == at(4, 2) && head != at(4, 1)
						switch {
						case !begun && (err != nil || d.Moved != nil):
							t.Errorf("%s: %v, moved %v", phase, err, d.Moved)
						case !begun:
						case e.Passing && database == "":
							if fault.KindOf(err) != fault.Transient {
								t.Errorf("%s, problem %q: %v, %v", phase, problem, d.Action, err)
							}
						case problem != "" || phase == checkpoint.Prepared || database != "":
							if err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
								t.Errorf("%s, problem %q: %v, %v", phase, problem, d.Action, err)
							}
						case !possible && fault.KindOf(err) != fault.Corrupt:
							t.Errorf("%s, found at %s, head %s: %v, %v", phase, found, head, d.Action, err)
						case possible && (err != nil || d.Moved != e || d.From != found || d.DropSlot || (d.Action == checkpoint.ResumeCopy) != (phase == checkpoint.Copying) || (d.Action == checkpoint.Follow) != (phase == checkpoint.Live)):
							t.Errorf("%s: %+v, %v", phase, d, err)
						}
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
	phases := []checkpoint.Phase{checkpoint.None, checkpoint.Creating, checkpoint.Copying, checkpoint.Live, checkpoint.Preparing, checkpoint.Prepared}
	home := checkpoint.Identity{System: "7", Timeline: 1, Database: "d"}
	identities := []checkpoint.Identity{home, {System: "8", Timeline: 1, Database: "d"}, {System: "7", Timeline: 2, Database: "d"}, {System: "7", Timeline: 1, Database: "e"}}
	seen, refused := 0, 0
	for _, phase := range phases {
		for _, id := range identities {
			for _, slot := range []string{"missing", "good", "wrong", "lost"} {
				for _, confirmed := range []uint64{900, mark, 1100} {
					for _, head := range []uint64{999, mark, 2000} {
						for at, kept := range []uint64{0, 900, mark, 1100, 0, 900, mark, 1100, 0, 900, mark, 1100} {
							pub := []string{"good", "missing", "newer"}[at/4]
							m := checkpoint.Mark{Phase: phase}
							begun := phase == checkpoint.Copying || phase == checkpoint.Live || phase == checkpoint.Prepared
							making := phase == checkpoint.Creating || phase == checkpoint.Preparing
							if begun {
								m.Source, m.Position = home, change.LSN(mark)
							}
							s := checkpoint.SourceState{
								Identity: id, SlotName: "s", SlotExists: slot != "missing", SlotLost: slot == "lost",
								Confirmed: change.LSN(confirmed), Head: change.LSN(head), PublicationNewer: pub == "newer",
								Kept: kept > 0, KeptFrom: change.LSN(kept),
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
							served := slot == "good" && confirmed <= mark
							returns := !served && slot != "wrong" && kept > 0 && kept <= mark && phase != checkpoint.Prepared
							whole := id == home && (served || returns) && head >= mark && pub == "good"
							switch {
							case err != nil:
								refused++
								if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" {
									t.Errorf("%s: refusal without remedy: %v", name, err)
								}
								if begun && whole {
									t.Errorf("%s: refused a start that loses nothing: %v", name, err)
								}
								if making && slot != "wrong" {
									t.Errorf("%s: a start that died while making its slot must be able to begin again: %v", name, err)
								}
								if phase == checkpoint.None && slot == "missing" {
									t.Errorf("%s: a first start was refused: %v", name, err)
								}
							case begun && !whole:
								t.Errorf("%s: %s although something between mark and source is missing", name, d.Action)
							case begun && d.From != m.Position:
								t.Errorf("%s: begins at %s, not at the mark", name, d.From)
							case begun == (d.Action == checkpoint.Hydrate || d.Action == checkpoint.Prepare):
								t.Errorf("%s: action %s", name, d.Action)
							case phase == checkpoint.Preparing != (d.Action == checkpoint.Prepare), phase == checkpoint.Prepared != (d.Action == checkpoint.Adopt):
								t.Errorf("%s: action %s: only an operator goes on from there", name, d.Action)
							case phase == checkpoint.Copying != (d.Action == checkpoint.ResumeCopy):
								t.Errorf("%s: action %s", name, d.Action)
							case d.DropSlot && !making:
								t.Errorf("%s: would drop a slot that is not known to be a leftover", name)
							case d.DropSlot != (s.SlotExists && making):
								t.Errorf("%s: DropSlot %v", name, d.DropSlot)
							case begun && d.Return != returns, !begun && d.Return:
								t.Errorf("%s, kept from %d: Return %v", name, kept, d.Return)
							case phase == checkpoint.None && s.SlotExists:
								t.Errorf("%s: took a slot without a mark", name)
							}
						}
					}
				}
			}
		}
	}
	if seen != 6*4*4*3*3*3*4 || refused == 0 {
		t.Fatalf("visited %d states, %d refused", seen, refused)
	}
}

func TestContainsAtItsBoundaries(t *testing.T) {
	table := checkpoint.Table{Since: change.LSN(100)}
	adopted := checkpoint.Table{Phase: checkpoint.Adopting, Since: change.LSN(100)}
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
		if adopted.Contains(&c.tx) {
			t.Errorf("begin %s end %s: dropped although nobody knows whether the backup has it", c.tx.Begin, c.tx.End)
		}
		if got := table.Contains(&c.tx); got != c.want {
			t.Errorf("since %s, begin %s end %s last %v: contained %v, want %v", table.Since, c.tx.Begin, c.tx.End, c.tx.Last, got, c.want)
		}
	}
}

// An owner moves mark and slot while an onlooker reads one after the other.
func TestDecideBesideAnOwnerAtWork(t *testing.T) {
	home := checkpoint.Identity{System: "7", Timeline: 1, Database: "d"}
	for _, c := range []struct {
		name                           string
		before, confirmed, head, after uint64
		refused                        bool
	}{
		{"nothing moves", 1000, 1000, 1000, 1000, false},
		{"the slot was confirmed after the mark was read", 1000, 1100, 1200, 1100, false},
		{"and the mark went on beyond the head that was read", 1000, 1100, 1200, 1300, false},
		{"the mark moved, but the slot is confirmed beyond it", 1000, 1200, 1300, 1100, true},
		{"the slot is confirmed beyond a mark that stands", 1000, 1100, 1200, 1000, true},
		{"the log ends before the mark that was read first", 1000, 900, 950, 1200, true},
	} {
		read := 0
		again := func() (checkpoint.Mark, error) {
			read++
			return checkpoint.Mark{Phase: checkpoint.Live, Source: home, Position: change.LSN(c.after)}, nil
		}
		_, err := checkpoint.DecideBeside(checkpoint.Mark{Phase: checkpoint.Live, Source: home, Position: change.LSN(c.before)},
			checkpoint.SourceState{Identity: home, SlotName: "s", SlotExists: true, Confirmed: change.LSN(c.confirmed), Head: change.LSN(c.head)}, again)
		if (err != nil) != c.refused {
			t.Errorf("%s: refused %v, want %v: %v", c.name, err != nil, c.refused, err)
		}
		if c.confirmed <= c.before && c.head >= c.before && read != 0 {
			t.Errorf("%s: the mark was read again without need", c.name)
		}
	}

	// A first start: the slot is made between the two readings.
	d, err := checkpoint.DecideBeside(checkpoint.Mark{}, checkpoint.SourceState{Identity: home, SlotName: "s", SlotExists: true, Head: change.LSN(5)},
		func() (checkpoint.Mark, error) { return checkpoint.Mark{Phase: checkpoint.Creating}, nil })
	if err != nil || d.Action != checkpoint.Hydrate {
		t.Errorf("beside a first start: %v, %v", d, err)
	}
}
