package postgres

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/sink"
)

const (
	// connectPatience is for a server that swallows packets, if the dsn says nothing.
	connectPatience = 15 * time.Second
	// sidePatience is for one small statement beside the batches. The heartbeat is
	// stale after this time: who has waited so long may have been succeeded already.
	sidePatience = staleAfter
	// amendPatience is for a change of the bookkeeping that may touch millions of rows:
	// events set aside, files taken.
	amendPatience = 2 * time.Minute
)

// dialed makes a dialer that takes down the session's socket.
func (s *session) dialed(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.line = sink.NewLine(conn)
		return s.line, nil
	}
}

// patiently bounds connecting.
func patiently(conf *pgconn.Config) {
	if conf.ConnectTimeout == 0 {
		conf.ConnectTimeout = connectPatience
	}
	conf.DialFunc = sink.Dialer(conf.ConnectTimeout).DialContext
}

// stallSQL says of a session: whether it waits for its client, and who keeps it from a
// lock.
const stallSQL = `SELECT state LIKE 'idle%' OR wait_event_type = 'Client', array_to_string(pg_blocking_pids(pid), ', ')
FROM pg_stat_activity WHERE pid = $1::int AND datname = current_database() AND right(application_name, 9) = ' ' || $2`

// attend looks after a running batch; s is another session.
func (w *Writer) attend(ctx context.Context, s *session) error {
	return w.stall.Attend(w.cfg.Logger, func(backend int64) (sink.Doing, error) {
		rows, err := s.query(ctx, stallSQL, backend, w.id)
		if err != nil || len(rows) == 0 {
			return sink.Doing{Waits: true}, err
		}
		return sink.Doing{Waits: str(rows[0][0]) == "t", Holder: str(rows[0][1])}, nil
	})
}

// wire is the session's socket; nil where there is no session.
func (s *session) wire() *sink.Line {
	if s == nil {
		return nil
	}
	return s.line
}
