package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// hook is a webhook's other end: it answers with the codes in turn, the last for good.
type hook struct {
	*httptest.Server
	mu    sync.Mutex
	codes []int
	got   []notice
}

func newHook(t testing.TB, codes ...int) *hook {
	h := &hook{codes: codes}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var n notice
		if err == nil {
			err = json.Unmarshal(body, &n)
		}
		if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.URL.Path != "/s3cret" {
			t.Errorf("%s %s %s: %v", r.Method, r.URL.Path, body, err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.got = append(h.got, n)
		code := h.codes[0]
		if len(h.codes) > 1 {
			h.codes = h.codes[1:]
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) told() []notice {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

// A webhook is tried again where it may help, and the log does not hold its URL.
func TestAWebhookIsToldAFewTimes(t *testing.T) {
	defer func(old []time.Duration) { webhookPauses = old }(webhookPauses)
	webhookPauses = []time.Duration{time.Millisecond, time.Millisecond}
	for _, c := range []struct {
		name     string
		codes    []int
		attempts int
		says     string
	}{
		{"at once", []int{204}, 1, "was told"},
		{"after a restart", []int{503, 429, 200}, 3, "was told"},
		{"never", []int{500}, 3, "it answers 500 Internal Server Error"},
		{"not there", []int{404}, 1, "it answers 404 Not Found"},
		{"moved", []int{302}, 1, "it answers 302 Found"},
		{"gone", nil, 0, "attempts=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHook(t, append(c.codes, 200)[:max(len(c.codes), 1)]...)
			if c.codes == nil {
				h.Close()
			}
			var log bytes.Buffer
			e := &environment{Config: &config.Config{Pipeline: "p", OnFailure: config.OnFailure{Webhook: config.Secret(strings.Replace(h.URL, "http://", "http://me:pw@", 1) + "/s3cret")}}, log: slog.New(slog.NewTextHandler(&log, nil))}
			n := e.notices(t.Context())
			began := time.Now().Add(-time.Minute)
			n.failed(sink.Run{Number: 7, Started: began, Ended: began.Add(time.Second)}, fault.Refuse("mend it", "it is broken"))
			n.end(t.Context(), nil, nil)
			got := h.told()
			if len(got) != c.attempts || !strings.Contains(log.String(), c.says) || strings.Contains(log.String(), "s3cret") || strings.Contains(log.String(), "pw") {
				t.Errorf("%d attempts, want %d; the log: %s", len(got), c.attempts, log.String())
			}
			for _, n := range got {
				host, err := os.Hostname()
				if n.Pipeline != "p" || n.Run != 7 || n.ErrorKind != "operator" || n.Message != "it is broken" || n.Remedy != "mend it" || n.Host != host || err != nil || !n.Started.Equal(began) || !n.Ended.Equal(began.Add(time.Second)) {
					t.Errorf("told %+v", n)
				}
			}
		})
	}
}

// A command gets the notice on its standard input and no shell; what it prints is
// logged, bounded.
func TestACommandIsToldWithoutAShell(t *testing.T) {
	out := filepath.Join(t.TempDir(), "notice")
	for _, c := range []struct {
		command []string
		says    []string
	}{
		{[]string{"tee", out}, []string{"the command of on_failure ran", `\"message\":\"no; $HOME\"`}},
		{[]string{"echo", "$HOME; false"}, []string{"ran", "$HOME; false"}},
		{[]string{"false"}, []string{"the command of on_failure failed", "exit status 1"}},
		{[]string{"no-such-program"}, []string{"the command of on_failure failed", "not found"}},
		{[]string{"head", "-c", "10000", "/dev/zero"}, []string{"ran"}},
	} {
		var log bytes.Buffer
		e := &environment{Config: &config.Config{Pipeline: "p", OnFailure: config.OnFailure{Command: c.command}}, log: slog.New(slog.NewTextHandler(&log, nil))}
		n := e.notices(t.Context())
		n.end(t.Context(), fault.Retry(nil, "no; $HOME"), nil)
		contains(t, log.String(), c.says...)
		if log.Len() > 5*outputMost {
			t.Errorf("%v: the log has %d bytes", c.command, log.Len())
		}
	}
	text, err := os.ReadFile(out)
	if err != nil || strings.Contains(string(text), `"run"`) || !strings.Contains(string(text), `"error_kind":"transient"`) {
		t.Errorf("it got %s: %v", text, err)
	}
}
