package sinktest

import (
	"fmt"
	"testing"
	"time"

	"tailrace/internal/fault"
	"tailrace/sink"
)

var askingTests = []test{
	{"a pause is there until it is ended, whoever owns the pipeline", nil, pauseStays},
	{"a request is taken once, answered, and settled when its owner is gone", nil, requestsAreTakenOnce},
}

func pauseStays(t *testing.T, h Harness) {
	w := h.Open(t)
	book, ok := w.(sink.Pauses)
	if !ok {
		t.Fatal("the destination remembers no pause")
	}
	paused := func(w sink.Writer) sink.Pause {
		t.Helper()
		p, err := w.(sink.Pauses).Paused(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := paused(w); !p.IsZero() {
		t.Errorf("a fresh pipeline is paused: %v", p)
	}
	own(t, w)
	first := sink.Pause{Since: time.UnixMicro(1_700_000_000_123_456).UTC(), By: `so"me'one`}
	for _, p := range []sink.Pause{first, {Since: time.Now(), By: "later"}} {
		if err := book.SetPause(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := paused(w); got != first {
			t.Errorf("the pause is %v, want %v", got, first)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w = h.Open(t)
	if got := paused(w); got != first {
		t.Errorf("read without ownership the pause is %v", got)
	}
	own(t, w)
	if err := w.(sink.Pauses).SetPause(t.Context(), sink.Pause{}); err != nil {
		t.Fatal(err)
	}
	if got := paused(w); !got.IsZero() {
		t.Errorf("an ended pause is %v", got)
	}
	if err := w.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// requestsAreTakenOnce concerns destinations that carry requests as rows.
func requestsAreTakenOnce(t *testing.T, h Harness) {
	w, asker := h.Open(t), h.Open(t)
	book, ok := w.(sink.Requests)
	if !ok {
		return // asked through a socket
	}
	desk := asker.(sink.Requests)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	living := func() string {
		t.Helper()
		who, err := desk.Living(t.Context())
		check(err)
		return who
	}
	take := func(want ...int64) (list []sink.Request) {
		t.Helper()
		list, err := book.Take(t.Context())
		check(err)
		var ids []int64
		for _, r := range list {
			ids = append(ids, r.ID)
		}
		if fmt.Sprint(ids) != fmt.Sprint(want) {
			t.Fatalf("taken: %v, want %v", ids, want)
		}
		return list
	}
	state := func(id int64, want sink.RequestState) sink.Answer {
		t.Helper()
		a, err := desk.AnswerTo(t.Context(), id)
		check(err)
		if a.State != want {
			t.Fatalf("request %d is %s, want %s", id, a.State, want)
		}
		return a
	}
	ask := func(kind string) int64 {
		t.Helper()
		id, err := desk.Ask(t.Context(), sink.Request{Kind: kind, Argument: "x'y", By: "me"})
		check(err)
		return id
	}
	if who := living(); who != "" {
		t.Errorf("nobody owns it, and %s lives", who)
	}
	own(t, w)
	if living() == "" {
		t.Error("its owner does not live")
	}
	take()
	a, b, c := ask("a"), ask("b"), ask("c")
	if was, err := desk.Withdraw(t.Context(), b); err != nil || !was {
		t.Fatalf("withdraw: %t %v", was, err)
	}
	list := take(a, c)
	if r := list[0]; r.Kind != "a" || r.Argument != "x'y" || r.By != "me" || time.Since(r.At).Abs() > time.Hour {
		t.Errorf("the request came as %+v", r)
	}
	take()
	state(a, sink.Taken)
	state(b, sink.Withdrawn)
	check(book.Report(t.Context(), a, "half"))
	if got := state(a, sink.Taken); got.Text != "half" {
		t.Errorf("of a request that is half done is told %+v", got)
	}
	check(book.Report(t.Context(), b, "withdrawn"))
	if got := state(b, sink.Withdrawn); got.Text != "" {
		t.Errorf("of a request that was withdrawn is told %+v", got)
	}
	if was, err := desk.Withdraw(t.Context(), a); err != nil || was {
		t.Fatalf("a taken request was withdrawn: %t %v", was, err)
	}
	check(book.Finish(t.Context(), a, sink.Answer{State: sink.Failed, Text: "no", Fault: fault.Operator}))
	if got := state(a, sink.Failed); got.Text != "no" || got.Fault != fault.Operator {
		t.Errorf("the answer is %+v", got)
	}

	// The next owner settles what is left.
	d := ask("again")
	take(d)
	check(book.Report(t.Context(), d, "half"))
	check(w.Close(t.Context()))
	w = h.Open(t)
	book = w.(sink.Requests)
	own(t, w)
	check(book.Unfinished(t.Context(), func(kind string) bool { return kind == "again" }))
	state(c, sink.Failed)
	if got := state(d, sink.Asked); got.Text != "" {
		t.Errorf("a request that is asked again tells of %+v", got)
	}
	take(d)
	check(book.Finish(t.Context(), d, sink.Answer{State: sink.Done, Text: "yes"}))
	if got := state(d, sink.Done); got.Text != "yes" {
		t.Errorf("the answer is %+v", got)
	}
}

// own makes this process the owner.
func own(t *testing.T, w sink.Writer) {
	t.Helper()
	if err := w.Own(t.Context(), owner(), 0); err != nil {
		t.Fatalf("Own: %v", err)
	}
}
