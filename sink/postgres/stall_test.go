package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest/faultproxy"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// throughProxy makes the fixture's Writer anew, by way of a proxy.
func (f *fixture) throughProxy() *faultproxy.Proxy {
	f.Helper()
	p, err := faultproxy.New(net.JoinHostPort(f.server.Host, strconv.Itoa(f.server.Port)))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { p.Close() })
	u, err := url.Parse(f.dsn)
	if err != nil {
		f.Fatal(err)
	}
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port()))
	f.w.Close(f.Context())
	f.own(u.String())
	return p
}

// beats renews the heartbeat as the pipeline does until it fails or ctx ends.
func (f *fixture) beats(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := f.w.Heartbeat(ctx); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	return nil
}

func TestHeartbeatEndsInsteadOfWaitingForASilentServer(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := f.throughProxy()
	f.create(table("t", scd.Type1, "id:integer"))
	p.Lose(faultproxy.Both)
	began := time.Now()
	err := f.w.Heartbeat(t.Context())
	if fault.KindOf(err) != fault.Transient {
		t.Errorf("a heartbeat over a lost connection: %v", err)
	}
	if took := time.Since(began); took > sidePatience+10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestOpeningASilentServerEnds(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := f.throughProxy()
	p.Hold(faultproxy.Both)
	w, err := New(Config{DSN: strings.Replace(f.dsn, fmt.Sprint(f.server.Port), fmt.Sprint(p.Port()), 1), Pipeline: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := w.Own(t.Context(), checkpoint.Owner{Host: "test"}, 0); fault.KindOf(err) != fault.Transient {
		t.Errorf("owning by way of a server that is silent: %v", err)
	}
	if took := time.Since(began); took > connectPatience+10*time.Second {
		t.Errorf("it took %s", took)
	}
	p.Heal()
}

// The session of a batch alone is lost, as when it was idle for longer than a firewall
// remembers; the heartbeat's goes on.
func TestBatchOverALostConnectionIsNoticedByTheHeartbeat(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := f.throughProxy()
	target := f.create(table("t", scd.Type1, "id:integer"))
	f.apply(target, scd.Round{Upserts: []change.Row{row("1")}}) // its session is open
	p.Lose(faultproxy.Both)
	if err := f.w.side.conn.Conn().Close(); err != nil {
		t.Fatal(err)
	}
	f.w.side.close(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	applied := make(chan error, 1)
	go func() { applied <- f.w.Apply(ctx, f.batch(target, scd.Round{Upserts: []change.Row{row("2")}})) }()
	began := time.Now()
	if err := f.beats(ctx); fault.KindOf(err) != fault.Transient || !strings.Contains(err.Error(), "counts as dead") {
		t.Errorf("the heartbeat says %v", err)
	}
	if took := time.Since(began); took < sink.LineSilence || took > sink.LineSilence+15*time.Second {
		t.Errorf("it took %s", took)
	}
	cancel()
	if err := <-applied; err == nil {
		t.Error("the batch has been applied")
	}
}

func TestBatchThatWaitsForALockIsLeftAlone(t *testing.T) {
	t.Parallel()
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer"))
	holder := f.server.Connect(t, f.dsn)
	for _, sql := range []string{"begin", "lock table t in access exclusive mode"} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), sink.LineSilence+5*time.Second)
	defer cancel()
	applied := make(chan error, 1)
	go func() { applied <- f.w.Apply(t.Context(), f.batch(target, scd.Round{Upserts: []change.Row{row("1")}})) }()
	if err := f.beats(ctx); err != nil && ctx.Err() == nil {
		t.Errorf("the heartbeat says %v", err)
	}
	if _, err := holder.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	if err := <-applied; err != nil {
		t.Errorf("the batch: %v", err)
	}
	f.wantRows("select id from t", "1")
}

func TestSessionsAskForKeepalives(t *testing.T) {
	f := start(t)
	for name, want := range map[string]string{"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4"} {
		rows, err := f.w.side.query(t.Context(), "SHOW "+name)
		if err != nil || str(rows[0][0]) != want {
			t.Errorf("%s: %v, %v, want %s", name, rows, err, want)
		}
	}
}
