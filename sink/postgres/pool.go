package postgres

import "context"

// A session costs a connection, a sign-on and a process of the server, some 10 ms:
// with a thousand tables to look at, to make and to load that would be half a
// minute. So Plan, Create and the copy hand theirs on to the next, until a batch is
// applied: from then on none lies idle.

// borrow gives an idle session or a new one, for looking at tables, making and
// loading them.
func (w *Writer) borrow(ctx context.Context) (*session, error) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		s := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		return s, nil
	}
	w.mu.Unlock()
	// A third of the default's time for an index over ten million rows.
	s, err := w.connect(ctx, "SET maintenance_work_mem = '256MB';")
	if err != nil {
		return nil, err
	}
	s.replica = w.mayReplicate(ctx, s)
	return s, nil
}

// giveBack keeps a session that has ended its transaction well, and closes another.
func (w *Writer) giveBack(ctx context.Context, s *session, good bool) {
	if !good || s.conn.IsClosed() {
		s.close(ctx)
		return
	}
	w.mu.Lock()
	w.idle = append(w.idle, s)
	w.mu.Unlock()
}

// closeIdle ends the idle sessions.
func (w *Writer) closeIdle(ctx context.Context) {
	w.mu.Lock()
	idle := w.idle
	w.idle = nil
	w.mu.Unlock()
	for _, s := range idle {
		s.close(ctx)
	}
}
