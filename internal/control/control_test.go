package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/fault"
)

func FuzzFrames(f *testing.F) {
	x := "x"
	b, err := appendRow(nil, []*string{&x, nil, &x})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("q\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		what, contents, err := readFrame(bytes.NewReader(b), nil, 1<<20)
		if err != nil {
			return
		}
		cells, err := readRow(contents)
		if err != nil {
			return
		}
		again, err := appendFrame(nil, what, func(b []byte) []byte { return append(b, contents...) })
		if err != nil || !bytes.HasPrefix(b, again) {
			t.Errorf("frame %q became %q, %v", b, again, err)
		}
		row, err := appendRow(nil, cells)
		if err != nil || !bytes.Equal(row[headerSize:], contents) {
			t.Errorf("row %q became %q, %v", contents, row, err)
		}
	})
}

// serve answers for a file in a fresh folder until the test ends.
func serve(t *testing.T, kinds ...Kind) (file string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "c-")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "x.duckdb")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Socket{File: file, Spool: dir, Log: slog.New(slog.DiscardHandler)}.Serve(ctx, NewDesk(kinds...))
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("Serve did not end")
		}
		os.RemoveAll(dir)
	})
	for range 500 {
		if _, err := os.Stat(file + ".sock"); err == nil {
			return file
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no socket")
	return ""
}

// What a kind says comes back, whole and in order, and so does why it failed.
func TestAnswersComeBack(t *testing.T) {
	many := 200_000
	file := serve(t,
		Kind{Name: "echo", Do: func(_ context.Context, r Request, _ Rows) (string, error) { return r.Argument, nil }},
		Kind{Name: "refuse", Do: func(context.Context, Request, Rows) (string, error) {
			return "", fmt.Errorf("in vain: %w", fault.Refuse("stand on your head", "it is upside down"))
		}},
		Kind{Name: "count", Do: func(_ context.Context, r Request, rows Rows) (string, error) {
			for i := range many {
				text := fmt.Sprint(i)
				if err := rows([]*string{&text, nil}); err != nil {
					return "", err
				}
			}
			if r.Argument != "" {
				return "", errors.New(r.Argument)
			}
			return "counted", nil
		}},
	)
	ctx := context.Background()
	if text, err := Ask(ctx, file, Request{Kind: "echo", Argument: "über\n\x00"}, nil); err != nil || text != "über\n\x00" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := Ask(ctx, file, Request{Kind: "refuse"}, nil); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "stand on your head") {
		t.Errorf("%v", err)
	}
	n := 0
	count := func(cells []*string) error {
		if len(cells) != 2 || cells[1] != nil || *cells[0] != fmt.Sprint(n) {
			return fmt.Errorf("row %d is wrong", n)
		}
		n++
		return nil
	}
	if text, err := Ask(ctx, file, Request{Kind: "count"}, count); err != nil || text != "counted" || n != many {
		t.Errorf("%d rows, %q %v", n, text, err)
	}
	// The rows before a failure may come; the failure does.
	n = 0
	if _, err := Ask(ctx, file, Request{Kind: "count", Argument: "burnt"}, count); err == nil || !strings.Contains(err.Error(), "burnt") {
		t.Errorf("%d rows, %v", n, err)
	}
	if _, err := Ask(ctx, file+"-other", Request{Kind: "echo"}, nil); !errors.Is(err, ErrNobody) {
		t.Errorf("%v", err)
	}
	if _, err := Ask(ctx, file, Request{Kind: "echo", Argument: strings.Repeat("x", requestMost)}, nil); fault.KindOf(err) != fault.Usage {
		t.Errorf("a request that is too long: %v", err)
	}
}

// How far a request is reaches an asker that wants to hear it, while it is being carried
// out, and the last of it before the answer.
func TestReportsComeBack(t *testing.T) {
	heard := make(chan string, 10)
	file := serve(t, Kind{Name: "work", Do: func(ctx context.Context, r Request, _ Rows) (string, error) {
		r.Report("half")
		if r.Watched {
			select {
			case text := <-heard:
				if text != "half" {
					return "", fmt.Errorf("the asker heard %q", text)
				}
			case <-time.After(30 * time.Second):
				return "", errors.New("the asker has heard nothing")
			}
		}
		r.Report("nearly")
		r.Report("all")
		return "done", nil
	}})
	ctx := context.Background()
	if text, err := Ask(ctx, file, Request{Kind: "work"}, nil); err != nil || text != "done" {
		t.Errorf("%q %v", text, err)
	}
	if text, err := Ask(ctx, file, Request{Kind: "work", Report: func(text string) { heard <- text }}, nil); err != nil || text != "done" {
		t.Errorf("%q %v", text, err)
	}
	if len(heard) != 1 || <-heard != "all" {
		t.Error("the last report has not come")
	}
}

// An asker that leaves ends the kinds that end with it, and no others.
func TestAnAskerLeaves(t *testing.T) {
	begun, ended := make(chan string, 2), make(chan string, 2)
	wait := func(name string) func(ctx context.Context, _ Request, _ Rows) (string, error) {
		return func(ctx context.Context, _ Request, _ Rows) (string, error) {
			begun <- name
			select {
			case <-ctx.Done():
				ended <- name
			case <-time.After(2 * time.Second):
				ended <- name + " went on"
			}
			return "", ctx.Err()
		}
	}
	file := serve(t, Kind{Name: "a", Ends: true, Do: wait("a")}, Kind{Name: "b", Do: wait("b")})
	for _, want := range []struct{ kind, end string }{{"a", "a"}, {"b", "b went on"}} {
		ctx, leave := context.WithCancel(context.Background())
		go func() { <-begun; leave() }()
		if _, err := Ask(ctx, file, Request{Kind: want.kind}, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", want.kind, err)
		}
		if got := <-ended; got != want.end {
			t.Errorf("%s ended as %q", want.kind, got)
		}
	}
}

// A process that answers itself gives back what it needed before anything is printed.
func TestHereKeepsTheRowsUntilItIsDone(t *testing.T) {
	released := false
	kind := Kind{Name: "k", Do: func(_ context.Context, _ Request, rows Rows) (string, error) {
		for range 5000 {
			text := strings.Repeat("x", 100)
			if err := rows([]*string{&text}); err != nil {
				return "", err
			}
		}
		return "", nil
	}}
	n := 0
	_, err := Here(context.Background(), NewDesk(kind), Request{Kind: "k"}, t.TempDir(), func() error { released = true; return nil }, func([]*string) error {
		if !released {
			return errors.New("rows come before the release")
		}
		n++
		return nil
	})
	if err != nil || n != 5000 {
		t.Errorf("%d rows, %v", n, err)
	}
	s := newSpool(t.TempDir())
	s.size = spoolMost
	text := strings.Repeat("x", spoolChunk)
	if err := s.row([]*string{&text}); fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	if _, _, err := readFrame(bytes.NewReader([]byte("r\x3f\xff\xff\xffshort")), nil, frameMost); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a frame that is cut off: %v", err)
	}
}
