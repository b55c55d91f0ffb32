// Package metrics shows a running pipeline to the outside: Prometheus metrics, and
// whether it lives and is ready. It only reads. docs/metrics.md fixes the names.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace/checkpoint"
	"tailrace/internal/pipeline"
)

// Board is what is shown of one pipeline.
type Board struct {
	stats    *pipeline.Stats
	start    time.Time
	now      func() time.Time
	maxLag   time.Duration
	registry *prometheus.Registry

	batchChanges prometheus.Histogram
	batchSeconds *prometheus.HistogramVec
}

// New makes the board of a pipeline. It takes Stats.Batch, so it must be made before
// the pipeline runs. Above maxLag the pipeline is not ready.
func New(pipelineName, version string, stats *pipeline.Stats, maxLag time.Duration) *Board {
	b := &Board{stats: stats, start: time.Now(), now: time.Now, maxLag: maxLag, registry: prometheus.NewRegistry()}
	r := prometheus.WrapRegistererWith(prometheus.Labels{"pipeline": pipelineName}, b.registry)
	b.batchChanges = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tailrace_batch_changes", Help: "Row-level changes of a batch, before several of one key are folded into one.",
		Buckets: prometheus.ExponentialBuckets(1, 4, 9), // 1 to 65,536: a batch holds 50,000 unless configured otherwise
	})
	b.batchSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "tailrace_batch_seconds", Help: "Time a batch took, by phase: decide (what targets must hold) and write (in the destination, with its commit).",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9), // 0.5 ms to 33 s
	}, []string{"phase"})
	r.MustRegister(b.batchChanges, b.batchSeconds, &reading{b, describe(version)})
	stats.Batch = func(f pipeline.BatchFigures) {
		b.batchChanges.Observe(float64(f.Changes))
		b.batchSeconds.WithLabelValues("decide").Observe(f.Decide.Seconds())
		b.batchSeconds.WithLabelValues("write").Observe(f.Write.Seconds())
	}
	return b
}

// phases in the order of a table's life.
var phases = []checkpoint.Phase{checkpoint.Creating, checkpoint.Copying, checkpoint.Catching, checkpoint.Live, checkpoint.Parked}

// figure is a metric whose value stands in the statistics already.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*Board) []sample
}

type sample struct {
	value  float64
	labels []string
}

func one(v float64) []sample { return []sample{{value: v}} }

// reading collects the figures at the moment of a scrape.
type reading struct {
	board   *Board
	figures []figure
}

// Describe implements prometheus.Collector.
func (r *reading) Describe(out chan<- *prometheus.Desc) {
	for i := range r.figures {
		out <- r.figures[i].desc
	}
}

// Collect implements prometheus.Collector.
func (r *reading) Collect(out chan<- prometheus.Metric) {
	for i := range r.figures {
		f := &r.figures[i]
		for _, s := range f.read(r.board) {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, s.value, s.labels...)
		}
	}
}

func describe(version string) []figure {
	var out []figure
	add := func(kind prometheus.ValueType, name, help string, labels []string, read func(*Board) []sample) {
		out = append(out, figure{prometheus.NewDesc("tailrace_"+name, help, labels, nil), kind, read})
	}
	gauge := func(name, help string, read func(*pipeline.Stats) float64) {
		add(prometheus.GaugeValue, name, help, nil, func(b *Board) []sample { return one(read(b.stats)) })
	}
	counter := func(name, help string, read func(*pipeline.Stats) int64) {
		add(prometheus.CounterValue, name, help, nil, func(b *Board) []sample { return one(float64(read(b.stats))) })
	}
	add(prometheus.GaugeValue, "build_info", "1, with the version of the program.", []string{"version"},
		func(*Board) []sample { return []sample{{1, []string{version}}} })

	gauge("received_position_bytes", "Position up to which the log was read (an LSN as a number). 0: nothing yet.", func(s *pipeline.Stats) float64 { return float64(s.Received.Get().Offset) })
	gauge("applied_position_bytes", "Position up to which the log is committed in the destination: the mark.", func(s *pipeline.Stats) float64 { return float64(s.Applied.Get().Offset) })
	gauge("confirmed_position_bytes", "Position up to which the source was told that its log is not needed any more.", func(s *pipeline.Stats) float64 { return float64(s.Confirmed.Get().Offset) })
	gauge("source_position_bytes", "End of the source's log, looked at every 5 s.", func(s *pipeline.Stats) float64 { return float64(s.Head.Get().Offset) })
	gauge("lag_bytes", "Log of the source beyond the mark. It counts the log of all databases of the server.", func(s *pipeline.Stats) float64 { return float64(s.LagBytes()) })
	add(prometheus.GaugeValue, "lag_seconds", "Age of the oldest change that the destination does not have; while nothing is followed, time since the destination was level.", nil,
		func(b *Board) []sample { return one(b.lag().Seconds()) })
	gauge("following", "1 while changes are followed; 0 during the first copy and while a server is away.", func(s *pipeline.Stats) float64 { return truth(s.Following.Load()) })
	gauge("paused", "1 while `tailrace pause` holds the pipeline.", func(s *pipeline.Stats) float64 { return truth(s.Paused.Load()) })
	gauge("retained_wal_bytes", "Log that the source keeps for this pipeline, looked at every 5 s.", func(s *pipeline.Stats) float64 { return float64(s.Retained.Load()) })
	gauge("rewind_points", "Rewind points that can be gone back to.", func(s *pipeline.Stats) float64 { return float64(s.Points.Load()) })
	add(prometheus.GaugeValue, "rewind_window_seconds", "How far back the oldest rewind point lies: age of the newest commit that it holds.", nil, func(b *Board) []sample {
		if at := b.stats.Window.Load(); at != 0 {
			return one(max(0, time.Since(time.Unix(0, at)).Seconds()))
		}
		return one(0)
	})
	gauge("rewind_kept_log_bytes", "Log that the source keeps for rewind points, looked at every 20 s.", func(s *pipeline.Stats) float64 { return float64(s.KeptLog.Load()) })
	gauge("rewind_undo_bytes", "About how much the destination keeps for rewind points, looked at once a minute.", func(s *pipeline.Stats) float64 { return float64(s.Undo.Load()) })
	gauge("spool_bytes", "Transactions that are still open at the source, on disk.", func(s *pipeline.Stats) float64 { return float64(s.Spooled.Load()) })
	gauge("queue_bytes", "Changes between reading and applying.", func(s *pipeline.Stats) float64 { return float64(s.Queued.Load()) })

	counter("transactions_total", "Source transactions applied.", func(s *pipeline.Stats) int64 { return s.Transactions.Load() })
	counter("changes_total", "Row-level changes applied, before several of one key are folded into one.", func(s *pipeline.Stats) int64 { return s.Changes.Load() })
	counter("operations_total", "Row-level operations written to the destination.", func(s *pipeline.Stats) int64 { return s.Operations.Load() })
	counter("batches_total", "Destination transactions.", func(s *pipeline.Stats) int64 { return s.Batches.Load() })
	counter("retries_total", "Times that a passing fault was met and everything was entered anew.", func(s *pipeline.Stats) int64 { return s.Retries.Load() })

	add(prometheus.GaugeValue, "tables", "Targets by phase.", []string{"phase"}, func(b *Board) []sample {
		count := map[checkpoint.Phase]float64{}
		for _, p := range b.stats.Phases() {
			count[p]++
		}
		var out []sample
		for _, p := range phases {
			out = append(out, sample{count[p], []string{string(p)}})
		}
		return out
	})
	add(prometheus.GaugeValue, "table_parked", "1 for each target that is parked: nothing is applied to it. `tailrace status` has reason and remedy.", []string{"target"}, func(b *Board) (out []sample) {
		for name, p := range b.stats.Phases() {
			if p == checkpoint.Parked {
				out = append(out, sample{1, []string{name.String()}})
			}
		}
		return out
	})
	add(prometheus.GaugeValue, "quarantine_events", "Events in quarantine and not resolved, by flow; events resolved by another process count until the next start.", []string{"flow"}, func(b *Board) (out []sample) {
		for flow, n := range b.stats.Unresolved() {
			out = append(out, sample{float64(n), []string{flow}})
		}
		return out
	})
	add(prometheus.CounterValue, "expectation_violations_total", "Rows that violated an expectation, by what became of them: warn, drop; not_judged: the event left a column as it was that the expectation reads.", []string{"flow", "expectation", "action"}, func(b *Board) (out []sample) {
		sums := map[[3]string]int64{} // flows into several targets may have one name
		for _, v := range b.stats.Violations() {
			sums[[3]string{v.Flow, v.Expectation, v.Met}] += v.Events
		}
		for labels, n := range sums {
			out = append(out, sample{float64(n), labels[:]})
		}
		return out
	})
	feeds := func(name, help string, of func(f *pipeline.FeedSize) (float64, bool)) {
		add(prometheus.GaugeValue, name, help, []string{"target"}, func(b *Board) (out []sample) {
			list := b.stats.Feeds()
			for i := range list {
				if v, ok := of(&list[i]); ok {
					out = append(out, sample{v, []string{list[i].Target.String()}})
				}
			}
			return out
		})
	}
	feeds("change_feed_rows", "Changes in a target's change feed, measured once a minute; of a large one an estimate.", func(f *pipeline.FeedSize) (float64, bool) { return float64(f.Rows), true })
	feeds("change_feed_bytes", "What a target's change feed takes on disk.", func(f *pipeline.FeedSize) (float64, bool) { return float64(f.Bytes), true })
	feeds("change_feed_oldest_timestamp_seconds", "Commit time of the oldest change in a target's change feed, in seconds since the Unix epoch.", func(f *pipeline.FeedSize) (float64, bool) {
		return float64(f.Oldest.UnixMicro()) / 1e6, !f.Oldest.IsZero()
	})
	add(prometheus.CounterValue, "sequenced_events_total", "Events of flows with sequence_by, by what they met: all, late, ties, duplicates, truncated, beyond_horizon, set_aside.", []string{"met"}, func(b *Board) []sample {
		s := &b.stats.Sequenced
		return []sample{
			{float64(s.Events.Load()), []string{"all"}},
			{float64(s.Late.Load()), []string{"late"}},
			{float64(s.Ties.Load()), []string{"ties"}},
			{float64(s.Duplicates.Load()), []string{"duplicates"}},
			{float64(s.Truncated.Load()), []string{"truncated"}},
			{float64(s.Beyond.Load()), []string{"beyond_horizon"}},
			{float64(s.Aside.Load()), []string{"set_aside"}},
		}
	})
	return append(out, describeRuns()...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (b *Board) lag() time.Duration { return b.stats.Lag(b.now(), b.start) }
