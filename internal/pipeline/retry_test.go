package pipeline_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
	"tailrace/internal/sim"
	"tailrace/sink"
)

// refusing is a destination that can be reached and takes no batch that has rows.
type refusing struct{ sink.Writer }

func (r refusing) Apply(ctx context.Context, b *sink.Batch) error {
	if len(b.Targets) > 0 {
		return fault.Retry(nil, "the batch is never taken")
	}
	return r.Writer.Apply(ctx, b)
}

func TestABatchThatIsNeverTakenEndsTheRun(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	w := newWorld(rnd, change.IdentityDefault, 0)
	if err := pipeline.Run(t.Context(), w.cfg, pipeline.Mode{CopyOnly: true}); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		w.server.Commit()
	}
	w.cfg.OpenSink = func(context.Context) (sink.Writer, error) {
		return refusing{&sim.Sink{Database: w.db}}, nil
	}
	w.cfg.RetryMax = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := pipeline.Run(ctx, w.cfg, pipeline.Mode{Once: true})
	if fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "gave up after") {
		t.Errorf("the run ended with %v", err)
	}
	if n := w.cfg.Stats.Retries.Load(); n < 10 {
		t.Errorf("it was tried %d times", n)
	}
	if n := strings.Count(w.log.String(), "\n"); n > 40 {
		t.Errorf("%d lines were logged of %d attempts:\n%s", n, w.cfg.Stats.Retries.Load(), w.log)
	}
}
