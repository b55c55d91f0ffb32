package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"tailrace/internal/control"
	"tailrace/internal/pipeline"
)

// progress shows the copy: a bar on a terminal, log lines elsewhere.
type progress struct {
	log   *slog.Logger
	w     io.Writer
	tty   bool
	stats *pipeline.Stats
	rate  int64 // the copy's limit, bytes per second; 0: none

	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	moved int64
	total int64
	said  time.Time
	doing string // what hear has said last
}

// Log lines during a copy or while following come this often.
const reportEvery = 10 * time.Second

func newProgress(w io.Writer, log *slog.Logger) *progress {
	f, ok := w.(*os.File)
	return &progress{log: log, w: w, tty: ok && term.IsTerminal(int(f.Fd())), stats: &pipeline.Stats{}}
}

func (p *progress) Begin(tables int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved, p.total, p.said = 0, bytes, time.Now()
	said := []any{"tables", tables, "estimated", size(bytes)}
	if p.rate > 0 {
		said = append(said, "max_rate", size(p.rate)+"/s")
	}
	p.log.Info("copying", said...)
	if p.tty {
		p.bar = progressbar.NewOptions64(max(bytes, 1), progressbar.OptionSetWriter(p.w), progressbar.OptionSetDescription("copying"),
			progressbar.OptionShowBytes(true), progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
	}
}

func (p *progress) Moved(_ string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved += int64(n)
	if p.bar != nil {
		// The total is an estimate of the size on disk; never show more than all.
		_ = p.bar.Set64(min(p.moved, p.total))
		return
	}
	if time.Since(p.said) > reportEvery {
		p.said = time.Now()
		p.log.Info("copying", "moved", size(p.moved), "estimated", size(p.total))
	}
}

func (p *progress) Done(table string, rows int64, took time.Duration) {
	p.log.Info("table copied", "target", table, "rows", rows, "seconds", fmt.Sprintf("%.1f", took.Seconds()))
}

// hear shows how far an errand is, here or in the daemon.
func (p *progress) hear(h pipeline.HowFar) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := max(h.Of, h.Moved, 1) // an estimate
	if p.tty {
		if p.bar == nil {
			p.bar = progressbar.NewOptions64(of, progressbar.OptionSetWriter(p.w), progressbar.OptionShowCount(), progressbar.OptionShowBytes(h.Bytes),
				progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
		}
		p.bar.Describe(fmt.Sprintf("%s %s (%d of %d tables done)", h.Doing, h.Target, h.Done, h.Tables))
		p.bar.ChangeMax64(of + 1) // a full bar is a finished one
		_ = p.bar.Set64(h.Moved)
		return
	}
	if h.Doing == p.doing && time.Since(p.said) <= reportEvery {
		return
	}
	p.doing, p.said = h.Doing, time.Now()
	said := []any{"tables_done", h.Done, "tables", h.Tables}
	if h.Target != "" {
		said = append(said, "target", h.Target)
	}
	if h.Bytes {
		said = append(said, "moved", size(h.Moved), "estimated", size(h.Of))
	} else {
		said = append(said, "rows_read", h.Moved, "estimated", h.Of)
	}
	p.log.Info(h.Doing, said...)
}

// hearText is hear for what came from a daemon.
func (p *progress) hearText(text string) {
	var h pipeline.HowFar
	if json.Unmarshal([]byte(text), &h) == nil && h.Doing != "" {
		p.hear(h)
	}
}

// teller sends how far an errand is to who asked for it.
func teller(r control.Request) func(pipeline.HowFar) {
	return func(h pipeline.HowFar) {
		if text, err := json.Marshal(h); err == nil {
			r.Report(string(text))
		}
	}
}

func (p *progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish()
		p.bar = nil
	}
}

// report logs what following has done, while there is something to say.
func (p *progress) report(every time.Duration) (stop func()) {
	end := make(chan struct{})
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		var changes, txs int64
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			c, t := p.stats.Changes.Load(), p.stats.Transactions.Load()
			if t != txs || c != changes {
				behind := "unknown" // no transaction was finished yet
				if last := p.stats.LastCommit(); !last.IsZero() {
					behind = fmt.Sprintf("%.1f", max(0, time.Since(last).Seconds()))
				}
				said := []any{"applied", p.stats.Applied.Get().String(), "confirmed", p.stats.Confirmed.Get().String(),
					"changes_per_second", (c - changes) / int64(every.Seconds()), "transactions_per_second", (t - txs) / int64(every.Seconds()),
					"behind_seconds", behind}
				p.log.Info("following", append(said, p.sequencedCounts()...)...)
			}
			changes, txs = c, t
		}
	}()
	return func() { close(end) }
}

// sequencedCounts says what was out of the ordinary in flows with sequence_by since
// the start.
func (p *progress) sequencedCounts() (said []any) {
	s := &p.stats.Sequenced
	for _, c := range []struct {
		name  string
		count *atomic.Int64
	}{
		{"late", &s.Late}, {"ties", &s.Ties}, {"duplicates", &s.Duplicates}, {"truncated", &s.Truncated},
		{"beyond_horizon", &s.Beyond}, {"unknown_rows", &s.Unknown}, {"set_aside", &s.Aside},
	} {
		if n := c.count.Load(); n > 0 {
			said = append(said, c.name, n)
		}
	}
	return said
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
