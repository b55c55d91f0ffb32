// Package faultproxy stands between a client and a server and does to their
// connections what networks do: it cuts them, refuses them, slows them down, or lets
// them go silent without closing them.
package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is a way through the proxy; the two may be combined.
type Direction uint8

const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy forwards TCP connections to one address.
//
// What goes through it is a link: a connection of the client and one to the server.
// A link is in one of three states, by direction. Forwarding: bytes and the end of
// bytes go through. Held (Hold): nothing goes through until Release, then all of it
// does, as after a cable was put back. Lost (Lose): nothing ever goes through again,
// as behind a firewall that has forgotten the connection; the ends of a lost link
// learn of nothing, not even that the other one has closed, until Cut or Close (or, the
// server, until what Lose returned is called).
// Nothing is read in a direction that does not forward, so that a writer's buffers
// fill and it blocks, as it does when its packets are not acknowledged.
//
// All methods may be called at any time by any goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond // one of the below, or a link's state
	links   map[*link]bool
	refuse  bool
	held    Direction
	delay   time.Duration
	rate    int
	closed  bool
}

type link struct {
	proxy          *Proxy
	client, server *net.TCPConn
	lost           Direction // guarded by the proxy's mu
	cut            bool      // guarded by the proxy's mu
}

// chunk is how much is passed on at once, and so how much a delay is applied to.
const chunk = 32 << 10

// dialPatience is how long the server may take to accept a connection.
const dialPatience = 10 * time.Second

// New starts a proxy on a free port of 127.0.0.1.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy of %s: %w", target, err)
	}
	p := &Proxy{target: target, listener: l, links: map[*link]bool{}}
	p.changed = sync.NewCond(&p.mu)
	p.serving.Add(1)
	go p.serve()
	return p, nil
}

// Port is where clients connect, on 127.0.0.1.
func (p *Proxy) Port() int { return p.listener.Addr().(*net.TCPAddr).Port }

// Links counts the connections that have not been closed, lost ones among them.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Refuse makes new connections fail, or lets them through again.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Hold stops forwarding in the given directions, for present links and for new ones.
func (p *Proxy) Hold(d Direction) { p.set(func() { p.held |= d }) }

// Release ends Hold: what was held goes through.
func (p *Proxy) Release() { p.set(func() { p.held = 0 }) }

// Slow delays every chunk of up to 32 KiB and bounds each direction of a link in
// bytes a second (0: not at all).
func (p *Proxy) Slow(delay time.Duration, bytesPerSecond int) {
	p.set(func() { p.delay, p.rate = delay, bytesPerSecond })
}

// Lose makes the present links silent in the given directions for ever. New ones are
// not affected. It returns a function that ends them at the server alone, as its
// keepalives would; the clients go on hearing nothing.
func (p *Proxy) Lose(d Direction) (end func()) {
	var lost []*link
	p.set(func() {
		for l := range p.links {
			l.lost |= d
			lost = append(lost, l)
		}
	})
	return func() {
		p.set(func() {
			for _, l := range lost {
				l.lost = Both
			}
		})
		for _, l := range lost {
			reset(l.server)
		}
	}
}

// Cut resets the present links at both ends.
func (p *Proxy) Cut() {
	p.mu.Lock()
	var all []*link
	for l := range p.links {
		all = append(all, l)
	}
	p.mu.Unlock()
	for _, l := range all {
		l.end()
	}
}

// Heal undoes Refuse, Hold and Slow. What was lost stays lost.
func (p *Proxy) Heal() {
	p.set(func() { p.refuse, p.held, p.delay, p.rate = false, 0, 0, 0 })
}

// Close cuts everything and waits until nothing of the proxy runs.
func (p *Proxy) Close() error {
	p.set(func() { p.closed = true })
	err := p.listener.Close()
	p.Cut()
	p.serving.Wait()
	return err
}

func (p *Proxy) set(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	p.changed.Broadcast()
}

func (p *Proxy) serve() {
	defer p.serving.Done()
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // no file descriptor, for instance
			continue
		}
		p.serving.Add(1)
		go p.connect(conn.(*net.TCPConn))
	}
}

func (p *Proxy) connect(client *net.TCPConn) {
	defer p.serving.Done()
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	conn, err := net.DialTimeout("tcp", p.target, dialPatience)
	if err != nil {
		reset(client)
		return
	}
	l := &link{proxy: p, client: client, server: conn.(*net.TCPConn)}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		reset(client)
		reset(l.server)
		return
	}
	p.links[l] = true
	p.mu.Unlock()
	var pumps sync.WaitGroup
	for _, way := range []struct {
		from, to *net.TCPConn
		d        Direction
	}{{l.client, l.server, ToServer}, {l.server, l.client, ToClient}} {
		pumps.Add(1)
		go func() {
			defer pumps.Done()
			l.pump(way.from, way.to, way.d)
		}()
	}
	pumps.Wait()
	l.end()
}

// pump forwards one direction until its end, or an error at either side.
func (l *link) pump(from, to *net.TCPConn, d Direction) {
	buf := make([]byte, chunk)
	for l.pass(d) {
		n, err := from.Read(buf)
		// What was read may not go on if the direction has been stopped meanwhile.
		if !l.pass(d) {
			return
		}
		if n > 0 {
			l.slow(n)
			if _, err := to.Write(buf[:n]); err != nil {
				l.end()
				return
			}
		}
		if err != nil {
			if isReset(err) {
				l.end()
			} else {
				to.CloseWrite()
			}
			return
		}
	}
}

// isReset reports whether a connection did not end in order.
func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

// pass waits while a direction does not forward; false: the link has been ended.
func (l *link) pass(d Direction) bool {
	p := l.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for !l.cut && (p.held|l.lost)&d != 0 {
		p.changed.Wait()
	}
	return !l.cut
}

func (l *link) slow(n int) {
	p := l.proxy
	p.mu.Lock()
	wait := p.delay
	if p.rate > 0 {
		wait += time.Duration(float64(n) / float64(p.rate) * float64(time.Second))
	}
	p.mu.Unlock()
	time.Sleep(wait)
}

// end resets both connections.
func (l *link) end() {
	p := l.proxy
	p.mu.Lock()
	over := l.cut
	l.cut = true
	delete(p.links, l)
	p.changed.Broadcast()
	p.mu.Unlock()
	if !over {
		reset(l.client)
		reset(l.server)
	}
}

func reset(c *net.TCPConn) {
	c.SetLinger(0) // closing then sends a reset
	c.Close()
}
