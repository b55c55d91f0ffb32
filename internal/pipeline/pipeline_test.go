package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/hydrate"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/flow"
	"tailrace/internal/pipeline"
	"tailrace/internal/sim"
	"tailrace/sink"
	"tailrace/source"
)

func TestMain(m *testing.M) {
	pipeline.Quicken()
	os.Exit(m.Run())
}

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

// world is a source, a destination and a pipeline between them.
type world struct {
	server *sim.Server
	db     *sim.Database
	cfg    pipeline.Config
	log    *strings.Builder
}

func newWorld(rnd *rand.Rand, identity change.Identity, rate float64) *world {
	faults := sim.NewFaults(rand.New(rand.NewPCG(rnd.Uint64(), 1)), rate)
	w := &world{server: sim.NewServer(rand.New(rand.NewPCG(rnd.Uint64(), 2)), identity, faults), db: sim.NewDatabase(faults), log: &strings.Builder{}}
	one := flow.Spec{Source: "public.t", SCDType: 1, HistoryStart: flow.HistoryStartSnapshot}
	two := one
	two.SCDType, two.Target, two.TrackHistoryExcept = 2, "t_history", []string{"seen"}
	w.cfg = pipeline.Config{
		Name: "p", Flows: []flow.Spec{one, two}, SourceSchema: "public", DefaultSchema: "",
		OpenSource: func(context.Context) (source.Source, error) { return &sim.Source{Server: w.server}, nil },
		OpenSink:   func(context.Context) (sink.Writer, error) { return &sim.Sink{Database: w.db}, nil },
		Workers:    2, BatchRows: 1 + rnd.IntN(20), BatchBytes: 1 << 20, QueueBytes: 256, PieceBytes: 100,
		DrainMax: 5 * time.Second, RetryMax: time.Minute,
		Log: slog.New(slog.NewTextHandler(w.log, nil)), Progress: &hydrate.Silent{}, Stats: &pipeline.Stats{},
	}
	return w
}

func (w *world) check(t *testing.T, run int) {
	t.Helper()
	one, two := w.db.Targets[change.Name{Table: "t"}], w.db.Targets[change.Name{Table: "t_history"}]
	if got, want := fmt.Sprint(one.Rows), fmt.Sprint(w.server.Rows()); got != want {
		t.Fatalf("run %d: type 1\n got %s\nwant %s\n%s", run, got, want, w.log)
	}
	open := map[string][]string{}
	for k, h := range two.History {
		if len(h) > 0 && h[len(h)-1].End == 0 {
			open[k] = h[len(h)-1].Vals
		}
		for i := 1; i < len(h); i++ {
			if h[i-1].End == 0 || h[i-1].End > h[i].Start || h[i-1].End <= h[i-1].Start {
				t.Fatalf("run %d: history of %s overlaps or has an empty interval: %v", run, k, h)
			}
		}
	}
	if got, want := fmt.Sprint(open), fmt.Sprint(w.server.Rows()); got != want {
		t.Fatalf("run %d: open versions\n got %s\nwant %s\n%s", run, got, want, w.log)
	}
}

// Whatever fails, before or after it was done, at any call: in the end both targets
// equal the source, and nothing was confirmed that is not durable.
func TestExactlyOnceUnderFaults(t *testing.T) {
	base := seed(t)
	runs := 300
	if testing.Short() {
		runs = 40
	}
	// Chance alone would miss one of these in some search of many; each run plants one.
	must := []string{"apply refused", "apply done, answer lost", "load done, answer lost", "save done, answer lost", "stream refused", "begin done, answer lost"}
	seen := map[string]int{}
	for run := range runs {
		rnd := rand.New(rand.NewPCG(base, uint64(run)))
		identity := change.IdentityDefault
		if run%2 == 0 {
			identity = change.IdentityFull
		}
		w := newWorld(rnd, identity, 0.02)
		w.server.Faults.Planted = must[run/2%len(must)]
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Add(1)
		var failed error
		go func() {
			defer wg.Done()
			failed = pipeline.Run(ctx, w.cfg, pipeline.Mode{})
		}()
		for range 10 + rnd.IntN(20) {
			w.server.Commit()
			if rnd.IntN(5) == 0 {
				w.server.Elsewhere()
			}
			if rnd.IntN(4) == 0 {
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Microsecond)
			}
		}
		cancel() // a stop in the middle
		wg.Wait()
		if failed != nil {
			t.Fatalf("run %d: %v\n%s", run, failed, w.log)
		}
		for what, n := range w.server.Faults.Seen {
			seen[what] += n
		}
		w.server.Faults.Stop()
		w.server.Commit()
		if err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{Once: true}); err != nil {
			t.Fatalf("run %d: catching up: %v\n%s", run, err, w.log)
		}
		w.check(t, run)
		if w.db.Mark.Position != w.server.Confirmed() {
			t.Fatalf("run %d: mark %s, confirmed %s after a clean stop", run, w.db.Mark.Position, w.server.Confirmed())
		}
		differences := int64(0)
		if err := pipeline.Verify(t.Context(), w.cfg, pipeline.Checking{}, func(c pipeline.Comparison) { differences += c.Differences }); err != nil || differences != 0 {
			t.Fatalf("run %d: verify: %d differences, %v", run, differences, err)
		}
	}
	for _, what := range must {
		if seen[what] == 0 {
			t.Errorf("the search never met %q (met %v)", what, seen)
		}
	}
}

func TestVerifyNamesPlantedDifferences(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newWorld(rnd, change.IdentityDefault, 0)
	for len(w.server.Rows()) < 3 {
		w.server.Commit()
	}
	if err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{Once: true}); err != nil {
		t.Fatal(err)
	}
	rows := w.db.Targets[change.Name{Table: "t"}].Rows
	n := 0
	for k, vals := range rows {
		switch n {
		case 0:
			delete(rows, k)
		case 1:
			rows[k] = append([]string{vals[0], "tampered"}, vals[2:]...)
		}
		n++
	}
	rows["stray"] = []string{"stray", "1", "1", "1", "1"}
	var examples []string
	differences := int64(0)
	if err := pipeline.Verify(t.Context(), w.cfg, pipeline.Checking{Tables: []string{"t"}}, func(c pipeline.Comparison) {
		differences += c.Differences
		examples = append(examples, c.Examples...)
	}); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(examples, "\n")
	if differences != 3 || !strings.Contains(all, "missing in the destination") || !strings.Contains(all, "values differ") || !strings.Contains(all, "only in the destination") {
		t.Fatalf("%d differences:\n%s", differences, all)
	}
}

func TestASecondOwnerFencesTheFirst(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newWorld(rnd, change.IdentityDefault, 0)
	ended := make(chan error, 1)
	go func() { ended <- pipeline.Run(t.Context(), w.cfg, pipeline.Mode{}) }()
	for w.db.Live() != 2 {
		time.Sleep(time.Millisecond)
	}
	other := &sim.Sink{Database: w.db}
	if err := other.Own(t.Context(), checkpoint.Owner{}, 0); err != nil {
		t.Fatal(err)
	}
	w.server.Commit()
	select {
	case err := <-ended:
		if fault.ExitCode(err) != fault.ExitOperator {
			t.Fatalf("ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the fenced owner goes on")
	}
}

func TestTargetsThatHoldStrangeRowsAreRefused(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newWorld(rnd, change.IdentityDefault, 0)
	st := sim.NewStore()
	st.Rows["x"] = []string{"x", "", "", "", ""}
	w.db.Targets[change.Name{Table: "t"}] = st
	err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{Once: true})
	if fault.ExitCode(err) != fault.ExitOperator || !strings.Contains(fault.RemedyOf(err), "--overwrite") {
		t.Fatalf("%v", err)
	}
	if len(st.Rows) != 1 || w.db.Mark.Phase != checkpoint.None {
		t.Fatal("something was changed")
	}
	if err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{Once: true, Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	w.check(t, 0)
}
