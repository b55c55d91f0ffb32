package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/internal/sim"
)

// printed is what all targets of a destination in memory hold, in a stable order.
func printed(targets map[change.Name]*sim.Store) string {
	one, two := targets[change.Name{Table: "t"}], targets[change.Name{Table: "t_history"}]
	if one == nil || two == nil {
		return "a target is missing"
	}
	return fmt.Sprint(one.Rows) + "\n" + sim.PrintHistory(two.History)
}

// rewound is a world with rewind points, and what the destination was at each.
type rewoundWorld struct {
	*world
	mu     sync.Mutex
	copies map[int64]string
	places map[int64]change.Position
}

func newRewoundWorld(rnd *rand.Rand, rate float64) *rewoundWorld {
	identity := change.IdentityDefault
	if rnd.IntN(2) == 0 {
		identity = change.IdentityFull
	}
	w := &rewoundWorld{world: newWorld(rnd, identity, rate), copies: map[int64]string{}, places: map[int64]change.Position{}}
	w.cfg.Rewind = pipeline.Rewinding{Every: time.Duration(1+rnd.IntN(1500)) * time.Microsecond, Keep: time.Hour}
	w.db.Pointed = func(p checkpoint.Point) {
		if slices.ContainsFunc(p.Mark.Tables, func(t checkpoint.Table) bool { return t.Phase != checkpoint.Live }) {
			return // a stop has broken the copy off: the next start makes it anew
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.copies[p.Number], w.places[p.Number] = printed(w.db.Copy()), p.Mark.Position
	}
	return w
}

func (w *rewoundWorld) points(t *testing.T) []checkpoint.Point {
	t.Helper()
	for {
		list, err := (&sim.Sink{Database: w.db}).Points(t.Context())
		if err == nil {
			return list
		}
	}
}

// work runs the pipeline while the source is written to, and lets it catch up.
func (w *rewoundWorld) work(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- pipeline.Run(ctx, w.cfg, pipeline.Mode{}) }()
	for range 10 + rnd.IntN(20) {
		w.server.Commit()
		if rnd.IntN(5) == 0 {
			w.server.Elsewhere()
		}
		if rnd.IntN(2) == 0 {
			time.Sleep(time.Duration(rnd.IntN(700)) * time.Microsecond)
		}
	}
	cancel()
	if err := <-failed; err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	w.replay(t, nil)
}

// replay follows to the end, or to a place before it.
func (w *rewoundWorld) replay(t *testing.T, until *pipeline.Until) {
	t.Helper()
	if err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{Once: true, StopAt: until}); err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
}

func (w *rewoundWorld) holds(t *testing.T, what, want string) {
	t.Helper()
	if got := printed(w.db.Targets); got != want {
		t.Fatalf("%s\n got %s\nwant %s\n%s", what, got, want, w.log)
	}
}

// holdsOne asserts that one target is as it was then, and the other as it was at the end.
func (w *rewoundWorld) holdsOne(t *testing.T, restored, then, end string) {
	t.Helper()
	rows := func(text string) (one, two string) { one, two, _ = strings.Cut(text, "\n"); return one, two }
	one, two := rows(end)
	if r1, r2 := rows(then); restored == "t" {
		one = r1
	} else {
		two = r2
	}
	w.holds(t, "a rewind of "+restored, one+"\n"+two)
}

// A rewind gives what was there at a point, to the byte, and a replay from there what was
// there before the rewind; at any point on the way it gives that point; whatever fails.
func TestRewindAndReplayGiveWhatWasThere(t *testing.T) {
	base := seed(t)
	runs := 250
	if testing.Short() {
		runs = 40
	}
	rewinds, seen := 0, map[string]int{}
	must := []string{"return half done refused", "return done, answer lost", "rewind refused", "rewind done, answer lost", "keep done, answer lost", "point done, answer lost", "undo refused"}
	for run := range runs {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(base, uint64(run)))
			w := newRewoundWorld(rnd, 0.01)
			w.server.Faults.Planted = must[run%len(must)]
			for range 1 + rnd.IntN(2) {
				w.work(t, rnd)
				end := printed(w.db.Targets)
				points := w.points(t)
				if len(points) == 0 {
					continue // it stopped before all was live
				}
				to := points[rnd.IntN(len(points))]
				if to.Gone || w.copies[to.Number] == "" {
					continue
				}
				request := pipeline.RewindRequest{To: pipeline.Moment{Text: "x", Number: to.Number}}
				if rnd.IntN(4) == 0 { // some first: the others stay, and are restored with all of them
					some := request
					some.Flows = []string{[]string{"t", "t_history"}[rnd.IntN(2)]}
					if _, err := pipeline.Rewind(t.Context(), w.cfg, some); err != nil {
						t.Fatalf("rewind of %v to %d: %v\n%s", some.Flows, to.Number, err, w.log)
					}
					w.holdsOne(t, some.Flows[0], w.copies[to.Number], end)
					if rnd.IntN(2) == 0 {
						w.replay(t, nil)
						w.holds(t, "replayed from a rewind of some", end)
					}
				}
				done, err := pipeline.Rewind(t.Context(), w.cfg, request)
				if err != nil {
					t.Fatalf("rewind to %d: %v\n%s", to.Number, err, w.log)
				}
				w.holds(t, fmt.Sprintf("after the rewind to %d", to.Number), w.copies[to.Number])
				if w.db.Mark.Position != to.Mark.Position {
					t.Fatalf("the mark is at %s, point %d at %s", w.db.Mark.Position, to.Number, to.Mark.Position)
				}
				if done.Done {
					rewinds++
				}
				if later := points[rnd.IntN(len(points))]; later.Number > to.Number && w.copies[later.Number] != "" { // of one whose answer was lost nobody took a copy
					until := &pipeline.Until{Moment: pipeline.Moment{Text: "x", Number: later.Number}}
					if rnd.IntN(2) == 0 {
						until.Moment = pipeline.Moment{Text: "x", Position: later.Mark.Position}
					}
					w.replay(t, until)
					w.holds(t, fmt.Sprintf("replayed from %d until point %d at %s", to.Number, later.Number, later.Mark.Position), w.copies[later.Number])
				}
				w.replay(t, nil)
				w.holds(t, fmt.Sprintf("replayed to the end from %d", to.Number), end)
			}
			for what, n := range w.server.Faults.Seen {
				seen[what] += n
			}
		})
	}
	if rewinds < runs/2 {
		t.Errorf("%d rewinds in %d runs", rewinds, runs)
	}
	for _, what := range must {
		if seen[what] == 0 {
			t.Errorf("the search never met %q (met %v)", what, seen)
		}
	}
}

// A replay to a time stops in front of the first transaction that was committed later,
// also among several of one second.
func TestAReplayStopsInFrontOfALaterCommit(t *testing.T) {
	base := seed(t)
	for run := range 40 {
		rnd := rand.New(rand.NewPCG(base, uint64(run)))
		w := newRewoundWorld(rnd, 0)
		w.replay(t, nil)
		start := len(w.server.States(0))
		for range 12 {
			w.server.Commit()
		}
		states := w.server.States(0)
		at := states[start+rnd.IntN(12)].At
		want := states[start-1].Rows
		for _, s := range states[start:] {
			if s.At > at {
				break
			}
			want = s.Rows
		}
		moment, err := pipeline.ParseMoment(time.UnixMicro(at).UTC().Format(time.RFC3339Nano))
		if err != nil {
			t.Fatal(err)
		}
		w.replay(t, &pipeline.Until{Moment: moment})
		if got := fmt.Sprint(w.db.Targets[change.Name{Table: "t"}].Rows); got != fmt.Sprint(want) {
			t.Fatalf("run %d, until %d µs:\n got %s\nwant %v", run, at, got, want)
		}
	}
}

// A lost keep slot loses the window, loudly, and a new one begins; the pipeline goes on.
func TestALostKeepSlotBeginsANewWindow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newRewoundWorld(rnd, 0)
	w.work(t, rnd)
	old := w.points(t)
	w.server.LoseKeepSlot()
	_, err := pipeline.Rewind(t.Context(), w.cfg, pipeline.RewindRequest{To: pipeline.Moment{Text: "x", Number: old[0].Number}})
	if fault.ExitCode(err) != fault.ExitOperator || !strings.Contains(err.Error(), "keep slot keep is missing") {
		t.Fatalf("rewind: %v", err)
	}
	w.replay(t, nil)
	if points := w.points(t); len(points) != 1 || points[0].Number <= old[len(old)-1].Number {
		t.Fatalf("points %v", points)
	}
	if !strings.Contains(w.log.String(), "rewind points are lost") {
		t.Error("not said")
	}
	w.work(t, rnd)
	w.check(t, 0)
}

// Points that are not configured any more are dropped, with what the source keeps.
func TestRewindSwitchedOffDropsWhatWasKept(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newRewoundWorld(rnd, 0)
	w.work(t, rnd)
	w.cfg.Rewind = pipeline.Rewinding{}
	w.replay(t, nil)
	if points := w.points(t); len(points) != 0 {
		t.Fatalf("points %v", points)
	}
	if kept, err := (&sim.Source{Server: w.server}).Kept(t.Context()); err != nil || kept.Exists {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if _, err := pipeline.Checkpoint(t.Context(), w.cfg, "x"); fault.ExitCode(err) != fault.ExitOperator {
		t.Fatalf("checkpoint: %v", err)
	}
}
