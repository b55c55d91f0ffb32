// Package control carries requests to the process that runs a pipeline, and its
// answers back.
package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"sync"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

// Request is what somebody asks of a running pipeline.
//
// There are two roads with one contract. Where the destination is a server, a request
// is a row in it, so that it can be asked from any host and is allowed to whoever may
// write there. Where the destination is a file inside the daemon, it comes through a
// socket beside the file, which the same user alone can open.
//
// A request is taken once. Its outcome goes back to the asker, who waits as long as it
// likes; leaving does not take the request back, unless its kind ends with its asker.
// If the daemon ends before a request is finished, the kind says what then: it is
// asked again of the next one, or it has failed.
//
// What a kind does is not known here: a Desk is given its kinds.
type Request struct {
	ID       string
	Kind     string
	Argument string
	By       string        // who asks: user, host and process
	At       time.Time     // of asking
	Limit    time.Duration // how long the kind may work at it; 0: as long as it needs
	Watched  bool          // the asker wants to hear how far it is

	// Report takes how far the work has come, as a text that the kind understands. The
	// asker gives its own (nil: it does not listen) and hears the latest now and then,
	// not every one; a kind finds one that is never nil, costs little and may be called
	// from any goroutine until Do returns.
	Report func(text string) `json:"-"`
}

// latest keeps the latest report of a request for a road, which carries it every
// reportEvery.
type latest struct {
	mu   sync.Mutex
	text string
	sent string
}

// reportEvery is how often a report travels: often enough for a bar that moves, and a
// small write in the destination or frame each.
const reportEvery = time.Second

func (l *latest) set(text string) {
	l.mu.Lock()
	l.text = text
	l.mu.Unlock()
}

// carry gives what is new to send, every reportEvery, until the returned function is
// called, which sends the last one. A report that cannot be sent is lost.
func (l *latest) carry(ctx context.Context, send func(ctx context.Context, text string) error) (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for last := false; !last; {
			select {
			case <-ctx.Done():
				return
			case <-over:
				last = true
			case <-tick.C:
			}
			l.mu.Lock()
			text := l.text
			l.mu.Unlock()
			if text != l.sent && send(ctx, text) == nil {
				l.sent = text
			}
		}
	}()
	return func() { close(over); <-ended }
}

// Kind is one kind of request, and how it is carried out.
type Kind struct {
	Name string

	// Again: a request that was not finished when the daemon ended is carried out by the
	// next one, so doing it twice must be as good as once. Otherwise it has failed.
	Again bool

	// Ends: nobody else has a use for the outcome; without its asker it is broken off.
	Ends bool

	// AtOnce is how many of the kind are carried out at once; 0: any number.
	AtOnce int

	// Begin, if not nil, does the part that must be done in the order of asking; it is
	// short. Do follows, beside what was asked earlier.
	Begin func(ctx context.Context, r Request) error

	// Do carries the request out and returns what to tell the asker. rows takes a
	// table's rows, first its header, nil for NULL; it may be called where a request
	// can have a table as its answer, which is on the socket alone.
	Do func(ctx context.Context, r Request, rows Rows) (string, error)
}

// Rows takes one row of an answer; its cells are not kept.
type Rows func(cells []*string) error

// Desk is where requests arrive in the daemon.
type Desk struct {
	kinds []Kind
	slots map[string]chan struct{}
	order sync.Mutex
}

// NewDesk makes a desk for the kinds.
func NewDesk(kinds ...Kind) *Desk {
	d := &Desk{kinds: kinds, slots: map[string]chan struct{}{}}
	for _, k := range kinds {
		if k.AtOnce > 0 {
			d.slots[k.Name] = make(chan struct{}, k.AtOnce)
		}
	}
	return d
}

func (d *Desk) kind(name string) (Kind, bool) {
	i := slices.IndexFunc(d.kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return d.kinds[i], true
}

// begin does what must be done in the order of asking.
func (d *Desk) begin(ctx context.Context, r Request) error {
	k, _ := d.kind(r.Kind)
	if k.Begin == nil {
		return nil
	}
	d.order.Lock()
	defer d.order.Unlock()
	return k.Begin(ctx, r)
}

// do carries a request out that has begun. Its error is for the asker.
func (d *Desk) do(ctx context.Context, r Request, rows Rows) (string, error) {
	if r.Report == nil {
		r.Report = func(string) {}
	}
	k, known := d.kind(r.Kind)
	if !known {
		return "", fault.Badly("the running daemon does not know requests of kind %q: is it of another version?", r.Kind)
	}
	if r.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Limit, errLimit)
		defer cancel()
	}
	text, err := d.inTurn(ctx, k, r, rows)
	if err != nil && errors.Is(context.Cause(ctx), errLimit) {
		return "", fault.Retry(nil, "%s: not done within %s (--timeout)", r.Kind, r.Limit)
	}
	return text, err
}

var errLimit = errors.New("the request's time is up")

func (d *Desk) inTurn(ctx context.Context, k Kind, r Request, rows Rows) (string, error) {
	if slot := d.slots[k.Name]; slot != nil {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return k.Do(ctx, r, rows)
}

// Me names this process as an asker.
func Me() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	return fmt.Sprintf("%s@%s, process %d", name, host, os.Getpid())
}

// answer is what came of a request, for the way back.
func answer(text string, err error) sink.Answer {
	if err == nil {
		return sink.Answer{State: sink.Done, Text: text}
	}
	return sink.Answer{State: sink.Failed, Text: err.Error(), Fault: fault.KindOf(err)}
}

// result is answer on the asker's side.
func result(a sink.Answer) (string, error) {
	if a.State == sink.Failed {
		return "", &fault.Error{Kind: a.Fault, Op: a.Text}
	}
	return a.Text, nil
}
