package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/fault"
	"tailrace/sink"
)

// What a fault with a run going on means for the daemon, for all kinds of it.
func TestWhichFaultsEndARunAlone(t *testing.T) {
	refused := fault.Refuse("mend it", "no")
	for _, c := range []struct {
		name        string
		err         error
		once, fresh bool
		goesOn      bool
	}{
		{"a person is needed", refused, false, false, true},
		{"away for too long", fault.Retry(nil, "gave up"), false, false, true},
		{"corrupt", fault.Corrupted("no"), false, false, false},
		{"unknown", errors.New("no"), false, false, false},
		{"configuration", fault.Badly("no"), false, false, false},
		{"taken over", fmt.Errorf("x: %w", fault.ErrFenced), false, false, false},
		{"owned", fmt.Errorf("x: %w", fault.ErrOwned), false, false, false},
		{"the slot was dropped", &fault.Error{Kind: fault.Operator, Err: errRetained}, false, false, false},
		{"no mark yet", refused, false, true, false},
		{"once", refused, true, false, false},
	} {
		var told []sink.Run
		config := &Config{Stats: &Stats{}, Log: slog.New(slog.DiscardHandler), Trigger: &Trigger{Failed: func(r sink.Run, _ error) { told = append(told, r) }}}
		m := config.moments()
		m.once = c.once
		s := &session{moments: m}
		if m.failed(config, s, c.err) {
			t.Errorf("%s: a daemon that rests goes on", c.name)
		}
		m.run = &sink.Run{Number: 3, Started: time.Now(), Outcome: sink.RunGoesOn}
		if !c.fresh {
			s.mark.Phase = checkpoint.Live
		}
		if got := m.failed(config, s, c.err); got != c.goesOn || (len(told) == 1) != c.goesOn {
			t.Errorf("%s: goes on %t, told %d", c.name, got, len(told))
		}
		f := config.Stats.Runs()
		if !s.resting() || f.Running || f.Last.Outcome != sink.RunFailed || f.Last.Error != c.err.Error() || len(m.unsaid) != 1 {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
	if (*moments)(nil).failed(nil, nil, refused) {
		t.Error("a daemon without a trigger goes on")
	}
	if text := shortened(strings.Repeat("é", errorMost)); len(text) > errorMost+3 || !strings.HasSuffix(text, "é...") {
		t.Errorf("an error of %d bytes ends in %q", len(text), text[len(text)-10:])
	}
}

func TestWhyARunIsDue(t *testing.T) {
	now := time.Now()
	m := (&Config{Stats: &Stats{}, Trigger: &Trigger{Why: sink.RunCron}, Attend: func(context.Context, sink.Writer, *Hold) error { return nil }}).moments()
	due := func(arrived string, want sink.RunReason) {
		t.Helper()
		why, ok := m.due(now, arrived)
		if !ok {
			why = ""
		}
		if why != want {
			t.Errorf("due: %q, want %q", why, want)
		}
	}
	due("", sink.RunAtStart)
	m.first = false
	due("", "")
	due("f", sink.RunFile)
	m.next = now.Add(time.Second)
	due("", "")
	m.next = now.Add(-time.Hour) // however many moments lie in between
	due("", sink.RunCron)
	m.asked = append(m.asked, nil)
	due("f", sink.RunAsked)
}
