package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace/internal/pipeline"
)

// outcomes are how a run may have ended.
var outcomes = []string{"done", "failed", "stopped", "interrupted"}

// describeRuns are the figures of a pipeline with a trigger. Others have no such series.
func describeRuns() []figure {
	var out []figure
	add := func(name, help string, labels []string, read func(*pipeline.RunFigures) []sample) {
		out = append(out, figure{prometheus.NewDesc("tailrace_"+name, help, labels, nil), prometheus.GaugeValue, func(b *Board) []sample {
			if f := b.stats.Runs(); f != nil {
				return read(f)
			}
			return nil
		}})
	}
	instant := func(t time.Time) []sample {
		if t.IsZero() {
			return nil
		}
		return one(float64(t.UnixMicro()) / 1e6)
	}
	add("run_going", "1 while a run of the trigger is going.", nil, func(f *pipeline.RunFigures) []sample { return one(truth(f.Running)) })
	add("run_outcome", "1 for how the newest run that has ended did so: done, failed, stopped, interrupted.", []string{"outcome"}, func(f *pipeline.RunFigures) (list []sample) {
		for _, o := range outcomes {
			if f.Last.Number > 0 {
				list = append(list, sample{truth(string(f.Last.Outcome) == o), []string{o}})
			}
		}
		return list
	})
	add("run_duration_seconds", "How long the newest run that has ended took.", nil, func(f *pipeline.RunFigures) []sample {
		if f.Last.Number == 0 {
			return nil
		}
		return one(f.Last.Ended.Sub(f.Last.Started).Seconds())
	})
	add("run_last_success_timestamp_seconds", "End of the newest run that is done, in seconds since the Unix epoch.", nil, func(f *pipeline.RunFigures) []sample { return instant(f.LastSuccess) })
	add("run_next_timestamp_seconds", "When the next run begins by the clock, in seconds since the Unix epoch.", nil, func(f *pipeline.RunFigures) []sample { return instant(f.Next) })
	return out
}

func unreadyRuns(f *pipeline.RunFigures) string {
	switch {
	case f.Last.Number == 0:
		return "the first run has not ended"
	case f.Last.Outcome == "failed":
		return fmt.Sprintf("run %d failed", f.Last.Number)
	}
	return ""
}
