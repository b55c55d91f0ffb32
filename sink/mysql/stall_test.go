package mysql

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/faultproxy"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// Each of these waits for some 20 s, so they do it together: pipelines of their own on
// one server, whose way to it goes silent.
func TestSilence(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		h := newHarness(t, server)
		var all sync.WaitGroup
		for name, fn := range map[string]func(s *silence){
			"a heartbeat ends instead of waiting":       heartbeatEnds,
			"opening ends":                              openingEnds,
			"a batch over a lost connection is noticed": lostBatchIsNoticed,
			"and so is one that sends its rows":         lostLoadIsNoticed,
			"one that waits for a lock is left alone":   lockedBatchIsLeftAlone,
		} {
			all.Go(func() {
				t.Run(server.Binaries.Full+" "+name, func(t *testing.T) { fn(newSilence(t, h)) })
			})
		}
		all.Wait()
	}
}

// silence is a Writer whose way to the server can be lost, and a target of it.
type silence struct {
	*bench
	proxy *faultproxy.Proxy
	name  string
}

func newSilence(t *testing.T, h *harness) *silence {
	t.Helper()
	p, err := faultproxy.New(net.JoinHostPort(h.server.Host, strconv.Itoa(h.server.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	s := &silence{&bench{harness: h, t: t}, p, "p" + strconv.Itoa(p.Port())}
	s.w = s.own(s.writer())
	s.target = &scd.Target{Name: change.Name{Schema: h.schema, Table: s.name}, Columns: []scd.Column{{Name: "id", Type: bigintType, Key: true}, {Name: "v", Type: textType}}}
	if err := s.w.Create(t.Context(), s.target); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *silence) writer() *Writer {
	s.t.Helper()
	u, err := url.Parse(s.server.URL(s.schema))
	if err != nil {
		s.t.Fatal(err)
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.proxy.Port()))
	w, err := New(Config{DSN: u.String(), Pipeline: s.name})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { w.Close(context.Background()) })
	return w
}

// lose loses the connections, and lets the side session's be made anew.
func (s *silence) lose() {
	s.proxy.Lose(faultproxy.Both)
	s.w.side.Lock()
	defer s.w.side.Unlock()
	s.w.side.session.close()
}

// beats renews the heartbeat as the pipeline does until it fails or ctx ends.
func (s *silence) beats(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.w.Heartbeat(ctx); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

func heartbeatEnds(s *silence) {
	s.proxy.Lose(faultproxy.Both)
	began := time.Now()
	if err := s.w.Heartbeat(s.t.Context()); fault.KindOf(err) != fault.Transient {
		s.t.Errorf("a heartbeat over a lost connection: %v", err)
	}
	if took := time.Since(began); took > sidePatience+10*time.Second {
		s.t.Errorf("it took %s", took)
	}
}

func openingEnds(s *silence) {
	s.proxy.Hold(faultproxy.Both)
	began := time.Now()
	if err := s.writer().Own(s.t.Context(), checkpoint.Owner{Host: "test"}, 0); fault.KindOf(err) != fault.Transient {
		s.t.Errorf("owning by way of a server that is silent: %v", err)
	}
	if took := time.Since(began); took > connectPatience+10*time.Second {
		s.t.Errorf("it took %s", took)
	}
	s.proxy.Release()
}

// noticed waits for a heartbeat that says that the running batch can never end. What the
// batch has locked is free as soon as the pipeline is opened again.
func (s *silence) noticed(cancel func(), applied <-chan error) {
	s.t.Helper()
	began := time.Now()
	if err := s.beats(s.t.Context()); fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "counts as dead") {
		s.t.Errorf("the heartbeat says %v", err)
	}
	if took := time.Since(began); took < sink.LineSilence-5*time.Second || took > sink.LineSilence+15*time.Second {
		s.t.Errorf("it took %s", took)
	}
	cancel()
	if err := <-applied; err == nil {
		s.t.Error("the batch has been applied")
	}
	if err := s.w.Close(s.t.Context()); err != nil {
		s.t.Error(err)
	}
	s.w = s.own(s.writer())
	began = time.Now()
	if err := s.w.Apply(s.t.Context(), s.batch(s.row(1, "again"))); err != nil {
		s.t.Errorf("the batch after it: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		s.t.Errorf("it has waited %s for what the lost one had locked", took)
	}
}

// The session of a batch alone is lost, as when it was idle for longer than a firewall
// remembers; the heartbeat's goes on.
func lostBatchIsNoticed(s *silence) {
	first := s.batch(s.row(1, "first"))
	first.More = true
	if err := s.w.Apply(s.t.Context(), first); err != nil {
		s.t.Fatal(err)
	}
	s.lose()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	applied := make(chan error, 1)
	last := s.batch(s.row(2, "last"))
	last.First = false
	go func() { applied <- s.w.Apply(ctx, last) }()
	s.noticed(cancel, applied)
}

func lostLoadIsNoticed(s *silence) {
	s.proxy.Slow(0, 2<<20)
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	applied := make(chan error, 1)
	var rows []change.Row
	for i := range loadRows {
		rows = append(rows, s.row(i, strings.Repeat("x", 60_000)))
	}
	b := s.batch(rows...)
	go func() { applied <- s.w.Apply(ctx, b) }()
	watcher := s.session(s.t)
	defer watcher.close()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		sending, err := watcher.query(ctx, "SELECT STATE FROM information_schema.PROCESSLIST WHERE INFO LIKE 'LOAD DATA%"+s.name+"%' AND ID <> CONNECTION_ID()")
		if err == nil && len(sending) > 0 && waitsForClient[str(sending[0][0])] {
			break
		}
		if err != nil || time.Now().After(deadline) {
			s.t.Fatalf("the rows are not on their way: %v", errors.Join(err, ctx.Err()))
		}
	}
	s.lose()
	s.proxy.Slow(0, 0)
	s.noticed(cancel, applied)
}

func lockedBatchIsLeftAlone(s *silence) {
	if err := s.w.Apply(s.t.Context(), s.batch(s.row(1, "mine"))); err != nil {
		s.t.Fatal(err)
	}
	holder := s.session(s.t)
	defer holder.close()
	if _, err := holder.exec(s.t.Context(), "START TRANSACTION; UPDATE "+s.name+" SET v = 'theirs'"); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), sink.LineSilence+5*time.Second)
	defer cancel()
	applied := make(chan error, 1)
	go func() { applied <- s.w.Apply(s.t.Context(), s.batch(s.row(1, "mine again"))) }()
	if err := s.beats(ctx); err != nil && ctx.Err() == nil {
		s.t.Errorf("the heartbeat says %v", err)
	}
	if _, err := holder.exec(s.t.Context(), "ROLLBACK"); err != nil {
		s.t.Fatal(err)
	}
	if err := <-applied; err != nil {
		s.t.Errorf("the batch: %v", err)
	}
}
