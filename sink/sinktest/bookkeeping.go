package sinktest

import (
	"slices"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
)

var bookkeepingTests = []test{
	{"an empty destination has the zero mark and stays empty", nil, func(t *testing.T, h Harness) {
		w := h.Open(t)
		defer w.Close(t.Context())
		m, err := w.State(t.Context())
		if err != nil {
			t.Fatalf("State: %v", err)
		}
		if m.Phase != checkpoint.None || !m.Position.IsZero() || m.Epoch != 0 || len(m.Tables) != 0 || m.Source != (checkpoint.Identity{}) {
			t.Fatalf("State of an empty destination = %+v, want the zero Mark", m)
		}
		if n := h.Query(t, "SELECT count(*) FROM information_schema.tables WHERE table_schema = '_tailrace'"); *n[0][0] != "0" {
			t.Fatalf("State made %s tables in _tailrace", *n[0][0])
		}
	}},

	{"Save keeps the head and the tables it is not given", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		first := checkpoint.Mark{
			Phase:    checkpoint.Copying,
			Source:   checkpoint.Identity{System: "7300000000000000001", Timeline: 3, Database: `shop "x"`},
			Slot:     "tailrace_shop",
			Position: change.LSN(0x16B374D848), Resume: "log.000003 1764512345 0-1-100,1-2-5",
			Tables: []checkpoint.Table{
				{Target: change.Name{Schema: "a", Table: "one"}, Source: change.Name{Schema: "public", Table: "one"}, ID: 16385, Phase: checkpoint.Creating},
				{Target: change.Name{Schema: "a", Table: "t.w'o"}, Source: change.Name{Schema: "public", Table: "two"}, ID: 4294967295, Phase: checkpoint.Parked, Since: change.LSN(77), Reason: "it's gone"},
			},
		}
		if err := r.w.Save(r.ctx, first); err != nil {
			t.Fatalf("Save: %v", err)
		}
		second := first
		second.Phase, second.Position = checkpoint.Live, change.LSN(0x16B374D900)
		second.CommitTime = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
		second.Tables = []checkpoint.Table{{Target: change.Name{Schema: "a", Table: "one"}, Source: change.Name{Schema: "public", Table: "one"}, ID: 16385, Phase: checkpoint.Live, Since: change.LSN(78)}}
		if err := r.w.Save(r.ctx, second); err != nil {
			t.Fatalf("Save again: %v", err)
		}
		m := r.reopen()
		if m.Phase != checkpoint.Live || m.Source != first.Source || m.Slot != first.Slot || m.Position != second.Position || !m.CommitTime.Equal(second.CommitTime) {
			t.Fatalf("head = %+v", m)
		}
		if len(m.Tables) != 2 {
			t.Fatalf("tables = %+v, want two", m.Tables)
		}
		for _, want := range []checkpoint.Table{second.Tables[0], first.Tables[1]} {
			if !slices.Contains(m.Tables, want) {
				t.Fatalf("tables = %+v, want among them %+v", m.Tables, want)
			}
		}
	}},

	{"Save without a position leaves it, and forgets a table without a phase", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		r.apply(tt, text, round{inserts: []cells{{1, "a"}}})
		before := r.mark()
		kept, gone := r.done(tt, checkpoint.Live), r.done(target{&scd.Target{Name: change.Name{Schema: "s", Table: "gone"}}}, checkpoint.Parked)
		if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Slot: "a", Tables: []checkpoint.Table{kept, gone}}); err != nil {
			t.Fatalf("Save: %v", err)
		}
		gone.Phase = checkpoint.None
		if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Slot: "b", Tables: []checkpoint.Table{gone}}); err != nil {
			t.Fatalf("Save: %v", err)
		}
		m := r.mark()
		if m.Position != before.Position || !m.CommitTime.Equal(before.CommitTime) || m.Slot != "b" || !slices.Equal(m.Tables, []checkpoint.Table{kept}) {
			t.Fatalf("mark = %+v, want position %v, slot b and the table %v", m, before.Position, kept.Target)
		}
		r.apply(tt, text, round{inserts: []cells{{2, "b"}}})
		r.expect(tt, "1|a", "2|b")
	}},

	{"Save keeps flows, and forgets one without a phase", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		target, source := change.Name{Schema: "a", Table: `t "1"`}, change.Name{Table: "it's files"}
		one := checkpoint.Flow{Target: target, Name: "first's", Order: 3, Source: source, Phase: checkpoint.Live}
		two := checkpoint.Flow{Target: target, Name: "second", Order: 65535, Source: change.Name{Schema: "public", Table: "t"}, ID: 4294967295, Phase: checkpoint.Copying, Since: change.LSN(0x16B374D848)}
		other := checkpoint.Flow{Target: change.Name{Schema: "a", Table: "t2"}, Name: "second", Phase: checkpoint.Left}
		expect := func(m checkpoint.Mark, want ...checkpoint.Flow) {
			t.Helper()
			if !slices.Equal(m.Flows, want) {
				t.Fatalf("flows = %+v, want %+v", m.Flows, want)
			}
		}
		save := func(flows ...checkpoint.Flow) {
			t.Helper()
			if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Flows: flows}); err != nil {
				t.Fatalf("Save: %v", err)
			}
		}
		save(two, other, one)
		expect(r.mark(), one, two, other)
		two.Phase, two.Since = checkpoint.Live, change.LSN(7)
		save(two)
		expect(r.reopen(), one, two, other)
		gone := two
		gone.Phase = checkpoint.None
		save(gone)
		expect(r.mark(), one, other)
		save()
		expect(r.mark(), one, other)
		if err := r.w.Teardown(r.ctx); err != nil {
			t.Fatalf("Teardown: %v", err)
		}
		expect(r.mark())
	}},

	{"Save beside Apply", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		stop, saved := make(chan struct{}), make(chan error, 1)
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					saved <- nil
					return
				default:
				}
				if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Slot: "s", Tables: []checkpoint.Table{r.done(tt, checkpoint.Live)}}); err != nil {
					saved <- err
					return
				}
			}
		}()
		for i := range 60 {
			rd := round{upserts: []cells{{i, "x"}}}
			if i%3 == 0 { // a batch too large for the short road
				for k := range 600 {
					rd.upserts = append(rd.upserts, cells{1000 + k, "y"})
				}
			}
			r.apply(tt, text, rd)
		}
		close(stop)
		if err := <-saved; err != nil {
			t.Fatalf("Save: %v", err)
		}
		if m := r.mark(); m.Position != change.LSN(r.pos) || m.Slot != "s" {
			t.Fatalf("mark = %+v, want position %v", m, change.LSN(r.pos))
		}
	}},

	{"positions of logs with files and epochs come back", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		p := change.Position{Epoch: 4294967295, File: 7, Offset: 1<<64 - 1}
		if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Position: p}); err != nil {
			t.Fatalf("Save: %v", err)
		}
		if m := r.mark(); m.Position != p {
			t.Fatalf("position %v came back as %v", p, m.Position)
		}
	}},

	{"a batch writes its position and a quiet point moves it without a commit time", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		b := r.batch()
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		if m := r.mark(); m.Position != b.Position || m.Resume != b.Resume || !m.CommitTime.Equal(b.CommitTime) {
			t.Fatalf("mark = %v at %v, want %v at %v", m.Position, m.CommitTime, b.Position, b.CommitTime)
		}
		quiet := r.batch()
		quiet.CommitTime = time.Time{}
		if err := r.w.Apply(r.ctx, quiet); err != nil {
			t.Fatalf("Apply a quiet point: %v", err)
		}
		if m := r.mark(); m.Position != quiet.Position || !m.CommitTime.Equal(b.CommitTime) {
			t.Fatalf("mark = %v at %v, want %v at %v", m.Position, m.CommitTime, quiet.Position, b.CommitTime)
		}
	}},

	{"Durable reaches the newest applied position", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		for i := range 20 {
			r.apply(tt, text, round{upserts: []cells{{i, "x"}}})
		}
		want := change.LSN(r.pos)
		deadline := time.Now().Add(5 * time.Second)
		for {
			start := time.Now()
			p, err := r.w.Durable(r.ctx)
			if err != nil {
				t.Fatalf("Durable: %v", err)
			}
			if d := time.Since(start); d > time.Second {
				t.Fatalf("Durable waited %v", d)
			}
			if want.Before(p) {
				t.Fatalf("Durable = %v, beyond the applied %v", p, want)
			}
			if p == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("Durable stays at %v, applied is %v", p, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}},

	{"Durable after a restart begins at the mark", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Position: change.LSN(500)}); err != nil {
			t.Fatalf("Save: %v", err)
		}
		r.reopen()
		deadline := time.Now().Add(5 * time.Second)
		for {
			p, err := r.w.Durable(r.ctx)
			if err != nil {
				t.Fatalf("Durable: %v", err)
			}
			if p == change.LSN(500) {
				return
			}
			if !p.IsZero() || time.Now().After(deadline) {
				t.Fatalf("Durable = %v, want 0/1F4 in time", p)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}},

	{"tables named by a batch become live with it", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		other := r.done(target{&scd.Target{Name: change.Name{Schema: "s", Table: "other"}}}, checkpoint.Catching)
		mine := r.done(tt, checkpoint.Catching)
		if err := r.w.Save(r.ctx, checkpoint.Mark{Phase: checkpoint.Live, Tables: []checkpoint.Table{mine, other}}); err != nil {
			t.Fatalf("Save: %v", err)
		}
		b := r.batch(tt.part(text, round{inserts: []cells{{1, "a"}}}))
		b.Live = []change.Name{tt.Name}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		mine.Phase = checkpoint.Live
		if m := r.mark(); !slices.Contains(m.Tables, mine) || !slices.Contains(m.Tables, other) {
			t.Fatalf("tables = %+v, want %+v and %+v", m.Tables, mine, other)
		}
	}},

	{"Teardown leaves targets and forgets the pipeline", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		r.apply(tt, text, round{inserts: []cells{{1, "a"}}})
		if err := r.w.Teardown(r.ctx); err != nil {
			t.Fatalf("Teardown: %v", err)
		}
		r.expect(tt, "1|a")
		if n := h.Query(t, "SELECT count(*) FROM information_schema.schemata WHERE schema_name = '_tailrace'"); *n[0][0] != "0" {
			t.Fatalf("_tailrace is still there")
		}
		m := r.mark()
		if m.Phase != checkpoint.None || !m.Position.IsZero() || len(m.Tables) != 0 {
			t.Fatalf("State after Teardown = %+v", m)
		}
		if err := r.w.Close(r.ctx); err != nil {
			t.Fatalf("Close: %v", err)
		}
		begin(t, h) // and the next run starts afresh
	}},

	{"Close twice and after an error is harmless", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		missing := makeTarget(h, "missing", scd.Type1, "id int4 key", "a text")
		if err := r.w.Apply(r.ctx, r.batch(missing.part(text, round{upserts: []cells{{1, "a"}}}))); err == nil {
			t.Fatal("Apply to a missing table succeeded")
		}
		for range 2 {
			if err := r.w.Close(r.ctx); err != nil {
				t.Fatalf("Close: %v", err)
			}
		}
	}},
}
