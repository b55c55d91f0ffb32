package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// echo is a server that answers every line with itself.
func echo(t *testing.T) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for r := bufio.NewReader(conn); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					io.WriteString(conn, line)
				}
			}()
		}
	}()
	p, err := New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{conn, bufio.NewReader(conn)}
}

func (c *client) say(line string) { io.WriteString(c, line+"\n") }

// hears reads a line within the limit; os.ErrDeadlineExceeded: nothing came.
func (c *client) hears(limit time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(limit))
	line, err := c.r.ReadString('\n')
	return line, err
}

func (c *client) works(t *testing.T, line string) {
	t.Helper()
	c.say(line)
	if got, err := c.hears(5 * time.Second); err != nil || got != line+"\n" {
		t.Fatalf("said %q, heard %q, %v", line, got, err)
	}
}

// silent asserts that the connection stands and that nothing comes.
func (c *client) silent(t *testing.T) {
	t.Helper()
	if got, err := c.hears(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v; want silence", got, err)
	}
}

func (c *client) ended(t *testing.T) {
	t.Helper()
	if got, err := c.hears(5 * time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q, %v; want the connection's end", got, err)
	}
}

// refused asserts that a new connection ends without a word. On a busy machine the reset can
// overtake the dial itself, which then fails with it.
func refused(t *testing.T, p *Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port())))
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	(&client{conn, bufio.NewReader(conn)}).ended(t)
}

func TestForwardsUntilAnEndCloses(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	c.works(t, "two")
	c.Close()
	for deadline := time.Now().Add(5 * time.Second); p.Links() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the link stays")
		}
	}
}

func TestCutEndsPresentConnectionsOnly(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	p.Cut()
	c.ended(t)
	dial(t, p).works(t, "two")
}

func TestRefuseEndsNewConnectionsOnly(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	p.Refuse(true)
	refused(t, p)
	c.works(t, "two")
	p.Heal()
	dial(t, p).works(t, "three")
}

func TestWhatIsHeldArrivesAfterRelease(t *testing.T) {
	for name, d := range map[string]Direction{"to the server": ToServer, "to the client": ToClient, "both": Both} {
		t.Run(name, func(t *testing.T) {
			p := echo(t)
			c := dial(t, p)
			c.works(t, "one")
			p.Hold(d)
			c.say("two")
			c.silent(t)
			late := dial(t, p) // is accepted and hears nothing
			late.say("three")
			late.silent(t)
			p.Release()
			for conn, want := range map[*client]string{c: "two\n", late: "three\n"} {
				if got, err := conn.hears(5 * time.Second); err != nil || got != want {
					t.Fatalf("heard %q, %v, want %q", got, err, want)
				}
			}
		})
	}
}

func TestLostLinksStaySilentAndOpen(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	end := p.Lose(Both)
	c.say("two")
	c.silent(t)
	dial(t, p).works(t, "three")
	p.Heal()
	c.silent(t)
	if p.Links() < 2 {
		t.Errorf("%d links: the lost one is not counted", p.Links())
	}
	end()
	c.silent(t)
	p.Cut()
	c.ended(t)
}

func TestALostLinkDoesNotTellTheServerThatTheClientHasGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c := dial(t, p)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := c.Write([]byte("x")); err != nil { // the link is there once this has come through
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end := p.Lose(Both)
	c.Close()
	server.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the server heard %v", err)
	}
	end()
	server.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the server heard %v after the end", err)
	}
}

func TestAWriterBlocksBehindAHold(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	p.Hold(ToServer)
	c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	var err error
	for sent := 0; err == nil && sent < 64<<20; {
		var n int
		n, err = c.Write(make([]byte, 1<<20))
		sent += n
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("64 MB could be written: %v", err)
	}
}

func TestSlowDelaysAndBounds(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	p.Slow(50*time.Millisecond, 0)
	began := time.Now()
	c.works(t, "one")
	if took := time.Since(began); took < 100*time.Millisecond { // there and back
		t.Errorf("a delay of 50 ms each way: %s", took)
	}
	p.Slow(0, 10_000)
	began = time.Now()
	c.works(t, string(make([]byte, 2_000)))
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("2,000 bytes there and back at 10,000 a second: %s", took)
	}
	p.Heal()
	began = time.Now()
	c.works(t, "two")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("healed: %s", took)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	p := echo(t)
	c := dial(t, p)
	c.works(t, "one")
	p.Hold(Both)
	p.Lose(Both)
	done := make(chan struct{})
	go func() {
		p.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits")
	}
	c.ended(t)
}
