package pgserver

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Engine runs a server somewhere else than in child processes of ours, such as in
// a container. Settings and log files are then out of reach: Configure and
// WriteFile are errors, Log is empty.
type Engine interface {
	Address(ctx context.Context) (host string, port int, err error) // may change at each start
	Start(ctx context.Context) error
	Signal(ctx context.Context, signal string) error // to the postmaster, e.g. "SIGINT"
	Wait(ctx context.Context) error                  // until it has stopped
	Remove(ctx context.Context) error
}

// DefaultSettings are the settings of every server, before Options.Settings.
func DefaultSettings() map[string]string { return defaultSettings() }

// Adopt makes a Server of one that an engine has started already.
func Adopt(ctx context.Context, b Binaries, e Engine) (*Server, error) {
	s := &Server{Binaries: b, engine: e}
	return s, s.meet(ctx)
}

// meet reads the engine's address and waits for the server to take connections.
func (s *Server) meet(ctx context.Context) error {
	host, port, err := s.engine.Address(ctx)
	if err != nil {
		return err
	}
	s.Host, s.Port = host, port
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("server at %s:%d not ready after 60 s: %w", host, port, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Server) signalEngine(signal syscall.Signal, wait bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	names := map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT",
		syscall.SIGKILL: "SIGKILL", syscall.SIGHUP: "SIGHUP"}
	if err := s.engine.Signal(ctx, names[signal]); err != nil || !wait {
		return err
	}
	return s.engine.Wait(ctx)
}
