package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
)

// Handler serves /metrics, /healthz and /readyz, and with profiles /debug/pprof.
func (b *Board) Handler(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(b.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		// A pipeline whose servers are away tries again by itself: killing it helps nobody.
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := b.unready(); len(why) > 0 {
			http.Error(w, strings.Join(why, "\n"), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// unready says why the pipeline is not ready: it is copying or away, a table is not
// live yet, or the lag is above the limit; with a trigger, that the newest run has not
// come to its end. A parked table waits for a person; the
// others are ready without it.
func (b *Board) unready() (why []string) {
	if b.stats.Paused.Load() {
		why = append(why, "paused: `tailrace resume` lets it go on")
	} else if runs := b.stats.Runs(); runs != nil {
		if text := unreadyRuns(runs); text != "" {
			why = append(why, text)
		}
	} else if !b.stats.Following.Load() {
		why = append(why, "not following: the first copy runs, or a server is away")
	}
	begun := 0
	for _, p := range b.stats.Phases() {
		if p != checkpoint.Live && p != checkpoint.Parked {
			begun++
		}
	}
	if begun > 0 {
		why = append(why, fmt.Sprintf("%d tables are not live yet", begun))
	}
	if lag := b.lag(); lag > b.maxLag && b.stats.Runs() == nil {
		why = append(why, fmt.Sprintf("the oldest change that is not applied is %s old (max_lag %s)", lag.Round(time.Second), b.maxLag))
	}
	if f := b.stats.Failure(); f != nil && len(why) > 0 {
		text := strings.Join(strings.Fields(f.Err.Error()), " ") // a remedy stands on a line of its own
		why = append(why, fmt.Sprintf("the newest failure, %s ago: %s", time.Since(f.At).Round(time.Second), text))
	}
	return why
}

// Listen serves the board on addr until ctx ends; the returned function waits for the
// end. An address that cannot be had is refused at once.
func (b *Board) Listen(ctx context.Context, addr string, profiles bool) (wait func() error, at net.Addr, err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, fault.Refuse("choose another `listen` address, or leave it empty", "listen on %s: %v", addr, err)
	}
	// Scrapes are small; whoever reads or writes more slowly than this is not one.
	server := &http.Server{Handler: b.Handler(profiles), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 2 * time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	stop := context.AfterFunc(ctx, func() { server.Close() })
	return func() error {
		stop()
		err := errors.Join(server.Close(), <-served)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return err
	}, l.Addr(), nil
}
