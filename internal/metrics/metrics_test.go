package metrics

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/internal/pipeline"
)

// filled is a board on which every metric has a value.
func filled() (*Board, *pipeline.Stats) {
	s := &pipeline.Stats{}
	b := New("shop", "v1", s, time.Minute)
	s.SetPhase(change.Name{Schema: "public", Table: "a"}, checkpoint.Live)
	s.SetPhase(change.Name{Schema: "public", Table: "b"}, checkpoint.Parked)
	s.SetUnresolved(map[string]int64{"users": 3})
	for _, target := range []string{"a", "b"} {
		s.Met([]pipeline.Violation{{Target: change.Name{Table: target}, Flow: "users", Expectation: "named", Met: "drop", Events: 2}})
	}
	s.SetFeeds([]pipeline.FeedSize{{Target: change.Name{Schema: "public", Table: "a"}, Rows: 5, Bytes: 8192, Oldest: time.Unix(1000, 0)}})
	s.Received.Set(change.LSN(1 << 40))
	s.Applied.Set(change.LSN(1<<40 - 100))
	s.Batch(pipeline.BatchFigures{Changes: 7, Operations: 5, Decide: time.Millisecond, Write: 20 * time.Millisecond})
	s.Following.Store(true)
	return b, s
}

// A pipeline with a trigger rests most of the time, and is ready if its newest run was.
func TestRunsOfATrigger(t *testing.T) {
	b, s := filled()
	s.SetPhase(change.Name{Schema: "public", Table: "a"}, checkpoint.Live)
	s.Following.Store(false)
	s.SetRuns(pipeline.RunFigures{})
	if code, body := get(t, b, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "the first run has not ended") {
		t.Errorf("before the first run: %d %s", code, body)
	}
	ended := time.Now().Add(-time.Hour)
	f := pipeline.RunFigures{LastSuccess: ended, Next: ended.Add(2 * time.Hour)}
	f.Last.Number, f.Last.Outcome, f.Last.Started, f.Last.Ended = 3, "done", ended.Add(-time.Minute), ended
	s.SetRuns(f)
	if code, body := get(t, b, "/readyz"); code != http.StatusOK {
		t.Errorf("an hour behind a run: %d %s", code, body)
	}
	_, body := get(t, b, "/metrics")
	for _, want := range []string{`tailrace_run_outcome{outcome="done",pipeline="shop"} 1`, `tailrace_run_outcome{outcome="failed",pipeline="shop"} 0`, `tailrace_run_duration_seconds{pipeline="shop"} 60`, "tailrace_run_going{pipeline=\"shop\"} 0", "tailrace_run_next_timestamp_seconds", "tailrace_run_last_success_timestamp_seconds"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	f.Last.Outcome = "failed"
	s.SetRuns(f)
	if code, body := get(t, b, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "run 3 failed") {
		t.Errorf("after a failed run: %d %s", code, body)
	}
}

func get(t *testing.T, b *Board, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	b.Handler(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// The names in docs/metrics.md, with their types, are those that are served.
func TestEveryMetricIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(tailrace_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = m[2] + " " + strings.TrimSpace(m[3])
	}
	b, s := filled()
	f := pipeline.RunFigures{LastSuccess: time.Now(), Next: time.Now()}
	f.Last.Number = 1
	s.SetRuns(f)
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			if l.GetName() != "pipeline" {
				labels = append(labels, l.GetName())
			}
		}
		want := strings.ToLower(f.GetType().String()) + " " + strings.Join(labels, ", ")
		if have := documented[f.GetName()]; strings.TrimSpace(want) != strings.TrimSpace(have) {
			t.Errorf("%s is %q, documented as %q", f.GetName(), want, have)
		}
		delete(documented, f.GetName())
	}
	for name := range documented {
		t.Errorf("%s is documented and not served", name)
	}
}

// What alert rules and dashboard ask for is there.
func TestExamplesNameMetricsThatExist(t *testing.T) {
	b, _ := filled()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../../examples/monitoring/alerts.yaml", "../../examples/monitoring/dashboard.json"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "json") && !json.Valid(text) {
			t.Errorf("%s is no JSON", path)
		}
		names := regexp.MustCompile(`tailrace_[a-z_]+`).FindAllString(string(text), -1)
		if len(names) < 6 {
			t.Errorf("%s names %d metrics", path, len(names))
		}
		for _, name := range names {
			name = strings.TrimSuffix(name, "_bucket")
			if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }) {
				t.Errorf("%s: there is no metric %s", path, name)
			}
		}
	}
}

func TestMetricsShowTheStatistics(t *testing.T) {
	b, _ := filled()
	code, body := get(t, b, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	for _, want := range []string{
		`tailrace_build_info{pipeline="shop",version="v1"} 1`,
		`tailrace_lag_bytes{pipeline="shop"} 100`,
		`tailrace_tables{phase="live",pipeline="shop"} 1`,
		`tailrace_tables{phase="copying",pipeline="shop"} 0`,
		`tailrace_table_parked{pipeline="shop",target="public.b"} 1`,
		`tailrace_quarantine_events{flow="users",pipeline="shop"} 3`,
		`tailrace_expectation_violations_total{action="drop",expectation="named",flow="users",pipeline="shop"} 4`,
		`tailrace_change_feed_rows{pipeline="shop",target="public.a"} 5`,
		`tailrace_change_feed_bytes{pipeline="shop",target="public.a"} 8192`,
		`tailrace_change_feed_oldest_timestamp_seconds{pipeline="shop",target="public.a"} 1000`,
		`tailrace_batch_changes_sum{pipeline="shop"} 7`,
		`tailrace_batch_seconds_count{phase="write",pipeline="shop"} 1`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("not served: %s", want)
		}
	}
}

func TestReadiness(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*Board, *pipeline.Stats)
		want  string // empty: ready
	}{
		{"live, one parked", func(*Board, *pipeline.Stats) {}, ""},
		{"away", func(_ *Board, s *pipeline.Stats) { s.Following.Store(false) }, "not following"},
		{"paused", func(_ *Board, s *pipeline.Stats) { s.Following.Store(false); s.Paused.Store(true) }, "paused: `tailrace resume`"},
		{"copying", func(_ *Board, s *pipeline.Stats) {
			s.SetPhase(change.Name{Table: "c"}, checkpoint.Copying)
		}, "1 tables are not live"},
		{"much log ahead, nothing applied for long", func(b *Board, s *pipeline.Stats) {
			s.Head.Set(change.LSN(1<<40 + 1<<30))
			s.CommitTime.Store(b.start.Add(-time.Hour).UnixNano())
		}, "1h0m"},
		{"a little log ahead", func(b *Board, s *pipeline.Stats) {
			s.Head.Set(change.LSN(1<<40 + 1000))
			s.CommitTime.Store(b.start.Add(-time.Hour).UnixNano())
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, s := filled()
			c.setup(b, s)
			code, body := get(t, b, "/readyz")
			if want := c.want == ""; want != (code == http.StatusOK) || !strings.Contains(body, c.want) {
				t.Errorf("status %d: %s", code, body)
			}
			if code, _ := get(t, b, "/healthz"); code != http.StatusOK {
				t.Errorf("not healthy: %d", code)
			}
		})
	}
}

func TestNothingElseIsServed(t *testing.T) {
	b, _ := filled()
	if code, _ := get(t, b, "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles without being asked for: %d", code)
	}
	w := httptest.NewRecorder()
	b.Handler(true).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestListening(t *testing.T) {
	b, _ := filled()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wait, at, err := b.Listen(ctx, "127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Listen(ctx, at.String(), false); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "listen") {
		t.Errorf("an address in use: %v", err)
	}
	answer, err := http.Get("http://" + at.String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(body), "tailrace_lag_bytes") {
		t.Errorf("%v: %d bytes", err, len(body))
	}
	answer.Body.Close()
	cancel()
	if err := wait(); err != nil {
		t.Error(err)
	}
}

var _ prometheus.Collector = (*reading)(nil)
