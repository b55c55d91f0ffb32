package control

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"syscall"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var (
	// ErrNobody: no daemon answers for this file.
	ErrNobody = errors.New("no daemon answers")
	// ErrLost: the daemon has taken the request and ended, or began anew, before the
	// answer.
	ErrLost = errors.New("the daemon was gone before it had answered")
)

// Ask asks the daemon that has file open and hands on the rows of its answer, and its reports to r.Report. It
// returns an error that wraps ErrNobody if there is none. The end of ctx leaves.
func Ask(ctx context.Context, file string, r Request, rows Rows) (string, error) {
	conn, err := dial(ctx, file)
	if err != nil {
		return "", err
	}
	defer shut(conn)
	if r.ID == "" {
		var b [8]byte
		rand.Read(b[:])
		r.ID = hex.EncodeToString(b[:])
	}
	r.Watched = r.Report != nil
	contents, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	if len(contents) > requestMost {
		return "", fault.Badly("the statement is longer than %d KiB", requestMost>>10)
	}
	frame, err := appendFrame(nil, frameRequest, func(b []byte) []byte { return append(b, contents...) })
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(frame); err != nil && !errors.Is(err, syscall.EPIPE) { // then it was refused, and says why
		return "", lost(ctx, err)
	}
	return receive(ctx, conn, rows, r.Report)
}

// receive reads an answer.
func receive(ctx context.Context, from io.Reader, rows Rows, report func(string)) (string, error) {
	in := bufio.NewReaderSize(from, spoolChunk)
	var buf []byte
	for {
		what, contents, err := readFrame(in, buf, frameMost)
		if err != nil {
			return "", lost(ctx, err)
		}
		buf = contents
		switch what {
		case frameRow:
			cells, err := readRow(contents)
			if err == nil {
				err = rows(cells)
			}
			if err != nil {
				return "", err
			}
		case frameReport:
			if report != nil {
				report(string(contents))
			}
		case frameEnd:
			var a sink.Answer
			if err := json.Unmarshal(contents, &a); err != nil {
				return "", errors.Join(errFrame, err)
			}
			return result(a)
		default:
			return "", errFrame
		}
	}
}

func foreign(file string) error {
	return fault.Refuse("run this command as the user that runs the daemon", "the daemon that has %s open belongs to another user", file)
}

func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.Retry(errors.Join(ErrLost, err), "wait for the answer")
}

// dial connects to the daemon of a file.
func dial(ctx context.Context, file string) (*net.UnixConn, error) {
	denied := false
	for _, name := range places(file) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", name)
		if err != nil {
			denied = denied || errors.Is(err, fs.ErrPermission)
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			continue // not there, or left by a process that was killed: refused
		}
		unix := conn.(*net.UnixConn)
		if err := samePeer(unix); err != nil {
			shut(unix)
			denied = true
			continue
		}
		return unix, nil
	}
	if denied {
		return nil, foreign(file)
	}
	return nil, fmt.Errorf("%w for %s", ErrNobody, file)
}

// Here carries a request out in this process, as a daemon would. The rows are kept
// until it is done and release has given back what it needed; then they are handed on.
func Here(ctx context.Context, d *Desk, r Request, spoolFolder string, release func() error, rows Rows) (string, error) {
	out := newSpool(spoolFolder)
	text, err := d.do(ctx, r, out.row)
	if e := release(); err == nil {
		err = e
	}
	if err != nil {
		return "", errors.Join(err, out.close())
	}
	out.finish(text, err)
	from, to := io.Pipe()
	drained := make(chan error, 1)
	go func() {
		err := out.drain(func(b []byte) error {
			_, err := to.Write(b)
			return err
		})
		drained <- errors.Join(err, to.Close())
	}()
	text, err = receive(ctx, from, rows, nil)
	if err := errors.Join(from.CloseWithError(err), <-drained, out.close()); err != nil {
		slog.Debug("an answer was not read to its end", "error", err.Error())
	}
	return text, err
}
