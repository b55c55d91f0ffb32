package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// Socket is the road for a destination that lives in the daemon: a socket beside its
// file.
type Socket struct {
	File  string // the database's, absolute
	Spool string // folder for answers that wait for their reader
	Log   *slog.Logger
}

const (
	askersMost = 16               // connections at once; more wait in the system's queue
	askWithin  = 10 * time.Second // between connecting and the request's end
	// A reader that takes nothing for this long is left: somebody may be reading page by
	// page.
	stallMost = 10 * time.Minute
	// How often the socket is looked for: somebody who cleans up may have removed it.
	lookEvery = 2 * time.Second
)

// Serve answers at the desk until ctx ends, and returns when nothing of it runs any
// more. Without a socket the pipeline runs all the same: why is logged.
func (s Socket) Serve(ctx context.Context, d *Desk) {
	var running sync.WaitGroup
	defer running.Wait()
	room := make(chan struct{}, askersMost)
	for ctx.Err() == nil {
		l, name, err := listen(s.File)
		if err != nil {
			s.Log.Warn("no socket for requests: `tailrace query` and the other commands that ask the daemon find nobody; trying again in a minute", "error", err.Error())
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			continue
		}
		s.Log.Debug("requests are taken", "socket", name)
		s.accept(ctx, l, name, func(conn *net.UnixConn) {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				shut(conn)
				return
			}
			running.Add(1)
			go func() {
				defer running.Done()
				defer func() { <-room }()
				s.attend(ctx, d, conn)
			}()
		})
	}
}

// accept hands connections over until ctx ends or the socket is not at its place any
// more.
func (s Socket) accept(ctx context.Context, l *net.UnixListener, name string, take func(*net.UnixConn)) {
	mine, err := os.Lstat(name)
	gone := func() bool {
		there, err := os.Lstat(name)
		return err != nil || !os.SameFile(mine, there)
	}
	l.SetUnlinkOnClose(false) // what is at the name may be another's
	defer func() {
		if ctx.Err() != nil && err == nil && !gone() {
			err = os.Remove(name)
		}
		if e := errors.Join(err, l.Close()); e != nil {
			s.Log.Debug("the socket for requests was not put away", "error", e.Error())
		}
	}()
	stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for ctx.Err() == nil && err == nil {
		l.SetDeadline(time.Now().Add(lookEvery))
		if ctx.Err() != nil {
			return
		}
		conn, e := l.AcceptUnix()
		switch {
		case e == nil:
			take(conn)
		case errors.Is(e, os.ErrDeadlineExceeded):
			if gone() {
				return
			}
		case ctx.Err() == nil: // out of descriptors, perhaps
			s.Log.Debug("a request was not accepted", "error", e.Error())
			select {
			case <-ctx.Done():
			case <-time.After(lookEvery):
			}
		}
	}
}

// attend serves one asker.
func (s Socket) attend(ctx context.Context, d *Desk, conn *net.UnixConn) {
	defer shut(conn)
	if err := samePeer(conn); err != nil {
		s.Log.Warn("a request was refused", "error", err.Error())
		out := newSpool(s.Spool)
		out.finish("", foreign(s.File))
		conn.SetWriteDeadline(time.Now().Add(askWithin))
		if err := out.drain(func(b []byte) error { _, err := conn.Write(b); return err }); err != nil {
			s.Log.Debug("a refusal was not taken", "error", err.Error())
		}
		return
	}
	conn.SetReadDeadline(time.Now().Add(askWithin))
	what, contents, err := readFrame(conn, nil, requestMost)
	var r Request
	if err == nil && what != frameRequest {
		err = errFrame
	}
	if err == nil {
		err = json.Unmarshal(contents, &r)
	}
	if err != nil {
		s.Log.Debug("a request was not understood", "error", err.Error())
		return
	}
	conn.SetReadDeadline(time.Time{})
	s.Log.Debug("request", "kind", r.Kind, "id", r.ID, "by", r.By)

	doing, cancel := context.WithCancel(ctx)
	defer cancel()
	k, _ := d.kind(r.Kind)
	go func() { // the asker says nothing more: what is read is its end
		var b [1]byte
		if _, err := conn.Read(b[:]); err != nil && k.Ends {
			cancel()
		}
	}()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()

	out := newSpool(s.Spool)
	drained := make(chan error, 1)
	go func() {
		drained <- out.drain(func(b []byte) error {
			conn.SetWriteDeadline(time.Now().Add(stallMost))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			_, err := conn.Write(b)
			return err
		})
	}()
	text, err := "", d.begin(doing, r)
	if err == nil {
		stop := func() {}
		if r.Watched {
			var l latest
			r.Report = l.set
			stop = l.carry(doing, func(_ context.Context, text string) error { return out.report(text) })
		}
		text, err = d.do(doing, r, out.row)
		stop()
	}
	if ctx.Err() != nil { // the daemon ends, or begins anew: the asker finds out by the silence
		out.end(nil, true)
	} else {
		out.finish(text, err)
	}
	if err := errors.Join(<-drained, out.close()); err != nil {
		s.Log.Debug("an answer was not taken", "kind", r.Kind, "id", r.ID, "error", err.Error())
	}
}

// finish ends the answer with its outcome.
func (s *spool) finish(text string, err error) {
	if err == nil && s.size > 0 {
		err = s.flush()
	}
	contents, e := json.Marshal(answer(text, err))
	if e != nil {
		contents = []byte("{}") // never: texts and numbers alone
	}
	frame, e := appendFrame(nil, frameEnd, func(b []byte) []byte { return append(b, contents...) })
	if e != nil {
		frame = nil
	}
	s.end(frame, err != nil)
}

func shut(conn net.Conn) {
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		slog.Debug("a connection was not closed", "error", err.Error())
	}
}
