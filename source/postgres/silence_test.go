package postgres

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/faultproxy"
	"tailrace/internal/fault"
)

func TestALookAtASilentServerEnds(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	p, err := faultproxy.New(net.JoinHostPort(server.Host, strconv.Itoa(server.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dsn := strings.Replace(server.DSN(f.query("SELECT current_database()")), strconv.Itoa(server.Port), strconv.Itoa(p.Port()), 1)
	s := newSource(t, Config{DSN: dsn, Pipeline: "silent"})
	if _, err := s.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Lose(faultproxy.Both)
	began := time.Now()
	_, err = s.State(t.Context())
	if fault.KindOf(err) != fault.Transient {
		t.Errorf("a look at a server that is silent: %v", err)
	}
	if took := time.Since(began); took > lookPatience+10*time.Second {
		t.Errorf("it took %s", took)
	}
	if _, err := s.State(t.Context()); err != nil { // over a new connection
		t.Errorf("the next look: %v", err)
	}
}

func TestSessionsAskForKeepalives(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	s := newSource(t, Config{DSN: server.DSN(f.query("SELECT current_database()")), Pipeline: "alive"})
	conn, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for name, want := range map[string]string{"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4"} {
		var got string
		if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
}
