package mysql

import (
	"context"
	"net"

	"tailrace/sink"
)

// stallSQL reads what a session is doing. A user sees all sessions of his own.
const stallSQL = `SELECT COMMAND, STATE FROM information_schema.PROCESSLIST WHERE ID = ?`

// attend looks after a running batch; s is another session. Who holds a lock is not asked:
// a lock is waited for a minute only.
func (w *Writer) attend(ctx context.Context, s *session) error {
	return w.stall.Attend(w.cfg.Logger, func(backend int64) (sink.Doing, error) {
		rows, err := s.query(ctx, bind(stallSQL, backend))
		if err != nil || len(rows) == 0 {
			return sink.Doing{Waits: true}, err
		}
		return sink.Doing{Waits: str(rows[0][0]) == "Sleep" || waitsForClient[str(rows[0][1])]}, nil
	})
}

// waitsForClient are the states, MariaDB's and MySQL's, of a session that has something to
// read from its client, as the rows of a LOAD DATA, or to write to it.
var waitsForClient = map[string]bool{
	"Reading from net": true, "Writing to net": true,
	"Receiving from client": true, "Sending to client": true,
}

// dialed makes a dialer that takes down the session's socket.
func (s *session) dialed(dialer *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.line = sink.NewLine(conn)
		return s.line, nil
	}
}

// wire is the session's socket; nil where there is no session.
func (s *session) wire() *sink.Line {
	if s == nil {
		return nil
	}
	return s.line
}
