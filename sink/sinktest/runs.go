package sinktest

import (
	"strings"
	"testing"
	"time"

	"tailrace/sink"
)

var runTests = []test{
	{"runs are remembered, the newest of them, and one that ends replaces itself", nil, runsAreRemembered},
	{"runs are the owner's to write", func(f Features) bool { return f.Depose }, runsAreFenced},
}

func runsAreRemembered(t *testing.T, h Harness) {
	w := h.Open(t)
	book, ok := w.(sink.Runs)
	if !ok {
		t.Fatal("the destination remembers no runs")
	}
	read := func(w sink.Writer, most int) []sink.Run {
		t.Helper()
		list, err := w.(sink.Runs).Runs(t.Context(), most)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := read(w, 5); len(list) > 0 {
		t.Errorf("a fresh pipeline has run: %+v", list)
	}
	own(t, w)
	add := func(r sink.Run) {
		t.Helper()
		if err := book.AddRun(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	began := time.UnixMicro(1_700_000_000_123_456).UTC()
	first := sink.Run{Number: 1, Why: sink.RunAtStart, Started: began, Outcome: sink.RunGoesOn}
	add(first)
	if list := read(w, 5); len(list) != 1 || list[0] != first {
		t.Errorf("a run that goes on is %+v, want %+v", list, first)
	}
	first.Ended, first.Outcome, first.Position, first.Rows, first.Error = began.Add(time.Second), sink.RunFailed, "0/1A", 1<<40, `a "b" 'c' \d `+strings.Repeat("é", 2000)+"\n  remedy: e"
	add(first)
	if list := read(w, 5); len(list) != 1 || list[0] != first {
		t.Errorf("a run that has ended is %+v, want %+v", list, first)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w = h.Open(t)
	if list := read(w, 5); len(list) != 1 || list[0] != first {
		t.Errorf("read without ownership the run is %+v, want %+v", list, first)
	}
	own(t, w)
	book = w.(sink.Runs)
	for n := int64(2); n <= sink.RunsKept+3; n++ {
		add(sink.Run{Number: n, Why: sink.RunEvery, Started: began.Add(time.Duration(n) * time.Minute), Ended: began.Add(time.Duration(n+1) * time.Minute), Outcome: sink.RunDone})
	}
	list := read(w, 2*sink.RunsKept)
	if len(list) != sink.RunsKept || list[0].Number != sink.RunsKept+3 || list[len(list)-1].Number != 4 {
		t.Errorf("%d runs are kept, from %d to %d", len(list), list[len(list)-1].Number, list[0].Number)
	}
	if list := read(w, 2); len(list) != 2 || list[1].Number != sink.RunsKept+2 {
		t.Errorf("of the newest two: %+v", list)
	}
	if err := w.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func runsAreFenced(t *testing.T, h Harness) {
	old, w := h.Open(t), h.Open(t)
	own(t, old)
	h.Expire(t)
	own(t, w)
	if err := old.(sink.Runs).AddRun(t.Context(), sink.Run{Number: 1, Started: time.Now(), Outcome: sink.RunDone}); err == nil {
		t.Error("who was deposed writes a run")
	}
	if list, err := w.(sink.Runs).Runs(t.Context(), 5); err != nil || len(list) > 0 {
		t.Errorf("runs: %+v %v", list, err)
	}
}
