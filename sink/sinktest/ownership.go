package sinktest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/scd"
)

func deposes(f Features) bool { return f.Depose }

var ownershipTests = []test{
	{"a live owner is named within two seconds", nil, func(t *testing.T, h Harness) {
		first := begin(t, h)
		if err := first.w.Heartbeat(first.ctx); err != nil {
			t.Fatalf("Heartbeat: %v", err)
		}
		second := h.Open(t)
		defer second.Close(t.Context())
		start := time.Now()
		err := second.Own(t.Context(), ownerOf(living(t).Process.Pid), 0)
		if !errors.Is(err, fault.ErrOwned) {
			t.Fatalf("Own beside a live owner: %v, want ErrOwned", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Fatalf("the refusal took %v", d)
		}
		if !strings.Contains(err.Error(), "sinktest") {
			t.Fatalf("the refusal does not name the owner's host: %v", err)
		}
		tt := first.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		first.apply(tt, text, round{inserts: []cells{{1, "undisturbed"}}})
		first.expect(tt, "1|undisturbed")
	}},

	{"a closed Writer leaves the pipeline free", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		before := r.mark().Epoch
		m := r.reopen()
		if m.Epoch <= before {
			t.Fatalf("the epoch went from %d to %d", before, m.Epoch)
		}
	}},

	{"an owner on another host is waited for until it is stale", deposes, func(t *testing.T, h Harness) {
		begin(t, h)
		elsewhere := owner()
		elsewhere.Host = "elsewhere"
		second := h.Open(t)
		defer second.Close(t.Context())
		if err := second.Own(t.Context(), elsewhere, 0); !errors.Is(err, fault.ErrOwned) {
			t.Fatalf("Own beside a live owner elsewhere: %v, want ErrOwned", err)
		}
		go func() {
			time.Sleep(700 * time.Millisecond)
			h.Expire(t)
		}()
		start := time.Now()
		if err := second.Own(t.Context(), elsewhere, 20*time.Second); err != nil {
			t.Fatalf("Own with patience: %v", err)
		}
		if d := time.Since(start); d < 500*time.Millisecond || d > 10*time.Second {
			t.Fatalf("ownership came after %v", d)
		}
	}},

	{"a deposed owner writes nothing more", deposes, func(t *testing.T, h Harness) {
		old := begin(t, h)
		tt := old.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		old.apply(tt, text, round{inserts: []cells{{1, "before"}}})
		at := old.mark().Position

		h.Expire(t)
		next := begin(t, h)
		if next.mark().Epoch <= 1 {
			t.Fatalf("the epoch is %d after a takeover", next.mark().Epoch)
		}
		_, loadErr := old.w.Load(old.ctx, tt.Target, tt.copyOf(text, cells{3, "late"}), false, old.done(tt, checkpoint.Live))
		for _, act := range []struct {
			name string
			err  error
		}{
			{"Heartbeat", old.w.Heartbeat(old.ctx)},
			{"Save", old.w.Save(old.ctx, checkpoint.Mark{Phase: checkpoint.Parked})},
			{"Load", loadErr},
			{"Apply", old.w.Apply(old.ctx, old.batch(tt.part(text, round{inserts: []cells{{2, "after"}}})))},
		} {
			if !errors.Is(act.err, fault.ErrFenced) {
				t.Errorf("%s of the deposed owner: %v, want ErrFenced", act.name, act.err)
			}
		}
		next.expect(tt, "1|before")
		if m := next.mark(); m.Position != at || m.Phase != checkpoint.None {
			t.Fatalf("mark = %+v, want it unchanged at %v", m, at)
		}
		if err := old.w.Close(old.ctx); err != nil {
			t.Fatalf("Close of the deposed owner: %v", err)
		}
		if err := next.w.Heartbeat(next.ctx); err != nil {
			t.Fatalf("Heartbeat after the deposed owner has closed: %v", err)
		}
	}},

	{"a dead owner on this host is taken over at once", deposes, func(t *testing.T, h Harness) {
		process := living(t)
		first := h.Open(t)
		if err := first.Own(t.Context(), ownerOf(process.Process.Pid), 0); err != nil {
			t.Fatalf("Own: %v", err)
		}
		second := h.Open(t)
		if err := second.Own(t.Context(), owner(), 0); !errors.Is(err, fault.ErrOwned) {
			t.Fatalf("Own while the owner's process lives: %v, want ErrOwned", err)
		}
		process.Process.Kill()
		process.Wait()
		h.Kill(t, first)
		start := time.Now()
		if err := second.Own(t.Context(), owner(), 0); err != nil {
			t.Fatalf("Own after the owner's death: %v", err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Fatalf("the takeover took %v", d)
		}
		second.Close(t.Context())
	}},
}

// living starts a process that lives until the test ends or kills it.
func living(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a process: %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}
