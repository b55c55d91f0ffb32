package main

import (
	"context"
	"syscall"
	"time"

	"tailrace/internal/dbtest/faultproxy"
	"tailrace/internal/dbtest/pgserver"
)

// drillEvent is a fault; run returns when it has ended.
type drillEvent struct {
	name     string
	run      func()
	overlaps bool // the next one comes before this one is recovered from
}

// soakFor is how long events last with TAILRACE_SOAK=1; with what comes before and after
// them 20 minutes. TAILRACE_SOAK=5m makes it five minutes.
const soakFor = 17 * time.Minute

// schedule yields the events of a drill: in the short form each of a few kinds once,
// in the long one any, until the time is over.
func (d *drill) schedule() func(yield func(int, drillEvent) bool) {
	quick, slow := d.faults()
	return func(yield func(int, drillEvent) bool) {
		if d.long == 0 {
			d.rnd.Shuffle(len(quick), func(i, j int) { quick[i], quick[j] = quick[j], quick[i] })
			d.rnd.Shuffle(len(slow), func(i, j int) { slow[i], slow[j] = slow[j], slow[i] })
			events := append(quick[:4], slow[0])
			for i, e := range events {
				if !yield(i, e) {
					return
				}
			}
			return
		}
		all := append(quick, slow...)
		for i, began := 0, time.Now(); time.Since(began) < d.long; i++ {
			e := all[d.rnd.IntN(len(all))]
			e.overlaps = d.rnd.IntN(4) == 0
			if !yield(i, e) {
				return
			}
			time.Sleep(time.Duration(d.rnd.IntN(2000)) * time.Millisecond)
		}
	}
}

// between is a random duration.
func (d *drill) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.rnd.Int64N(int64(most-least)))
}

// faults are all kinds of them: those that are over and noticed soon, and those that
// are noticed only by silence.
func (d *drill) faults() (quick, slow []drillEvent) {
	peers := []peer{{"source", d.server, d.toSource}}
	if d.dest != nil {
		peers = append(peers, peer{"destination", d.dest, d.toDest})
	}
	most := 3 * time.Second
	if d.long > 0 {
		most = 20 * time.Second
	}
	for _, p := range peers {
		quick = append(quick,
			drillEvent{name: p.name + " cut", run: func() {
				for range 1 + d.rnd.IntN(4) {
					p.way.Cut()
					time.Sleep(d.between(0, time.Second))
				}
			}},
			drillEvent{name: p.name + " refuses", run: func() {
				p.way.Refuse(true)
				p.way.Cut()
				time.Sleep(d.between(time.Second, most))
			}},
			drillEvent{name: p.name + " far away", run: func() {
				p.way.Slow(d.between(5*time.Millisecond, 100*time.Millisecond), 256<<10+d.rnd.IntN(1<<20))
				time.Sleep(d.between(time.Second, most))
			}},
			drillEvent{name: p.name + " ends sessions", run: func() {
				for began := time.Now(); time.Since(began) < most; time.Sleep(d.between(100*time.Millisecond, time.Second)) {
					p.server.Query(d.t, p.server.DSN("postgres"), "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'drill'")
				}
			}},
			drillEvent{name: p.name + " restarts", run: func() { d.away(p, func() error { return p.server.Stop(pgserver.Fast) }, most) }},
			drillEvent{name: p.name + " crashes", run: func() { d.away(p, func() error { return p.server.Stop(pgserver.Immediate) }, most) }},
			drillEvent{name: p.name + " is killed", run: func() { d.away(p, p.server.Kill9, most) }},
			drillEvent{name: p.name + " held", run: func() {
				p.way.Hold(faultproxy.Direction(1 + d.rnd.IntN(3)))
				time.Sleep(d.between(time.Second, 2*most))
			}},
			drillEvent{name: p.name + " frozen", run: func() {
				resume, err := p.server.Pause()
				if err != nil {
					d.t.Fatal(err)
				}
				defer resume()
				time.Sleep(d.between(time.Second, 2*most))
			}},
		)
		slow = append(slow, drillEvent{name: p.name + " lost", run: func() { d.lose(p, faultproxy.Both) }})
		if d.long > 0 {
			slow = append(slow,
				drillEvent{name: p.name + " hears nothing", run: func() { d.lose(p, faultproxy.ToServer) }},
				drillEvent{name: p.name + " is not heard", run: func() { d.lose(p, faultproxy.ToClient) }},
				drillEvent{name: p.name + " gone silent", run: func() {
					p.way.Hold(faultproxy.Both)
					time.Sleep(d.between(30*time.Second, 60*time.Second))
				}})
		}
	}
	quick = append(quick,
		drillEvent{name: "pipeline killed", run: func() { d.signal(syscall.SIGKILL) }},
		drillEvent{name: "pipeline stopped", run: func() { d.signal(syscall.SIGTERM) }})
	if d.dest != nil {
		quick = append(quick, drillEvent{name: "target locked", run: func() { d.lock(most) }})
	}
	return quick, slow
}

// away takes a server down for a while.
func (d *drill) away(p peer, down func() error, most time.Duration) {
	if err := down(); err != nil {
		d.t.Error(err)
	}
	time.Sleep(d.between(0, most))
	if err := p.server.StartAgain(context.Background()); err != nil {
		d.t.Fatal(err)
	}
}

// lose makes the present connections silent. The server learns of it as late as its
// keepalives would tell it, the pipeline not at all.
func (d *drill) lose(p peer, way faultproxy.Direction) {
	end := p.way.Lose(way)
	d.later.Add(1)
	time.AfterFunc(keepalives, func() {
		defer d.later.Done()
		end()
	})
}

// lock takes a target away from everybody.
func (d *drill) lock(most time.Duration) {
	conn := d.dest.Connect(d.t, d.target)
	defer conn.Close(context.Background())
	for _, sql := range []string{"begin", "lock table left_side in access exclusive mode"} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			d.t.Error(err)
		}
	}
	time.Sleep(d.between(time.Second, most))
}
