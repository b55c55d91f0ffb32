package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"tailrace/internal/config"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// notice is what on_failure tells; its names are stable.
type notice struct {
	Pipeline  string     `json:"pipeline"`
	Run       int64      `json:"run,omitempty"`     // of a pipeline with a trigger, if it was a run that failed
	Started   *time.Time `json:"started,omitempty"` // of the run, or of the daemon
	Ended     time.Time  `json:"ended"`
	ErrorKind string     `json:"error_kind"` // operator | transient | corrupt | usage | unknown
	Message   string     `json:"message"`
	Remedy    string     `json:"remedy,omitempty"`
	Host      string     `json:"host"`
}

const (
	webhookMost  = 10 * time.Second // for one attempt, with its answer
	commandMost  = 30 * time.Second
	commandGrace = 2 * time.Second // for what a command that was killed has left behind
	noticesMost  = 16              // that wait; more are logged and dropped: who is told nothing for so long is not there
	noticesEnd   = 5 * time.Second // how long a stop waits for what is being told
	outputMost   = 4 << 10         // bytes of a command's output that are logged
)

// webhookPauses are between the attempts, of which there is one more: an endpoint that is
// restarted is back by then, and whoever waits for the exit code waits half a minute at most.
var webhookPauses = []time.Duration{time.Second, 5 * time.Second}

// notices tells of failures, one after the other, beside the pipeline.
type notices struct {
	pipeline string
	to       config.OnFailure
	log      *slog.Logger
	began    time.Time
	queue    chan notice
	done     chan struct{}
	cancel   context.CancelFunc
}

func (e *environment) notices(ctx context.Context) *notices {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n := &notices{pipeline: e.Pipeline, to: e.OnFailure, log: e.log, began: time.Now(), queue: make(chan notice, noticesMost), done: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(n.done)
		for x := range n.queue {
			n.tell(ctx, x)
		}
	}()
	return n
}

// failed takes a run that failed while the daemon goes on.
func (n *notices) failed(r sink.Run, err error) {
	n.put(n.about(err, &r))
}

func (n *notices) put(x notice) {
	if n.to.IsZero() {
		return
	}
	select {
	case n.queue <- x:
	default:
		n.log.Warn("nobody is told of a failure: too many notices wait", "run", x.Run)
	}
}

func (n *notices) about(err error, r *sink.Run) notice {
	x := notice{Pipeline: n.pipeline, Started: &n.began, Ended: time.Now(), ErrorKind: fault.KindOf(err).String(), Remedy: fault.RemedyOf(err)}
	x.Message = err.Error()
	if x.Remedy != "" {
		x.Message = strings.Replace(x.Message, "\n  remedy: "+x.Remedy, "", 1)
	}
	if r != nil {
		x.Run, x.Started, x.Ended = r.Number, &r.Started, r.Ended
	}
	if host, err := os.Hostname(); err == nil {
		x.Host = host
	}
	return x
}

// end tells of the daemon's own end, if err is one (and not that another process owns the
// pipeline: that one is well), and waits for what is being told:
// after an error until it is told, after a stop for noticesEnd.
func (n *notices) end(ctx context.Context, err error, last *sink.Run) {
	if err != nil && !errors.Is(err, fault.ErrOwned) {
		if last != nil && (last.Outcome != sink.RunFailed || last.Error != err.Error()) {
			last = nil // it was no run that failed
		}
		n.put(n.about(err, last))
	}
	close(n.queue)
	var limit <-chan time.Time
	stopped := ctx.Done()
	if err == nil {
		limit = time.After(noticesEnd)
		stopped = nil
	}
	for {
		select {
		case <-n.done:
			n.cancel()
			return
		case <-stopped:
			stopped, limit = nil, time.After(noticesEnd)
		case <-limit:
			n.cancel() // breaks off what is being told
			limit = nil
		}
	}
}

// tell tells both, the command beside the webhook.
func (n *notices) tell(ctx context.Context, x notice) {
	body, err := json.Marshal(x)
	if err != nil {
		n.log.Error("a failure could not be described", "error", err.Error())
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		if len(n.to.Command) > 0 {
			n.command(ctx, body)
		}
	}()
	if n.to.Webhook != "" {
		n.webhook(ctx, body)
	}
	<-told
}

func (n *notices) webhook(ctx context.Context, body []byte) {
	for attempt := 0; ; attempt++ {
		again, err := post(ctx, n.to.Webhook.Reveal(), body)
		if err == nil {
			n.log.Info("the webhook of on_failure was told")
			return
		}
		if !again || attempt == len(webhookPauses) || ctx.Err() != nil {
			n.log.Error("the webhook of on_failure could not be told", "attempts", attempt+1, "error", err.Error())
			return
		}
		select {
		case <-time.After(webhookPauses[attempt]):
		case <-ctx.Done():
		}
	}
}

// post sends one request. Its error does not hold the URL.
func post(ctx context.Context, to string, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, webhookMost)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("its URL cannot be used")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "tailrace/"+version)
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // a POST does not survive it
	answer, err := client.Do(r)
	if err != nil {
		var with *url.Error
		if errors.As(err, &with) {
			err = with.Err
		}
		return true, err
	}
	if err := answer.Body.Close(); err != nil {
		return true, err
	}
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		return false, nil
	}
	return answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests, fmt.Errorf("it answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
}

func (n *notices) command(ctx context.Context, body []byte) {
	ctx, cancel := context.WithTimeout(ctx, commandMost)
	defer cancel()
	c := exec.CommandContext(ctx, n.to.Command[0], n.to.Command[1:]...)
	c.Stdin = bytes.NewReader(append(body, '\n'))
	c.WaitDelay = commandGrace
	var output firstBytes
	c.Stdout, c.Stderr = &output, &output
	err := c.Run()
	about := []any{"program", n.to.Command[0], "output", strings.TrimSpace(string(output))}
	switch {
	case err == nil:
		n.log.Info("the command of on_failure ran", about...)
	case ctx.Err() != nil:
		n.log.Error("the command of on_failure was ended", append(about, "limit", commandMost.String())...)
	default:
		n.log.Error("the command of on_failure failed", append(about, "error", err.Error())...)
	}
}

// firstBytes keeps the first outputMost bytes that are written.
type firstBytes []byte

func (b *firstBytes) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), outputMost-len(*b))]...)
	return len(p), nil
}
