package sinktest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

var violationTests = []test{
	{"what expectations met is added up, with the batch and beside it", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := r.create(diary(h)), r.create(makeTarget(h, `other "t'`, scd.Type1, "id int4 key"))
		expect := func(want ...sink.Violation) {
			t.Helper()
			got, err := r.memory().Violations(r.ctx)
			if err != nil {
				t.Fatalf("Violations: %v", err)
			}
			slices.SortFunc(want, func(a, b sink.Violation) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			slices.SortFunc(got, func(a, b sink.Violation) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			if !slices.Equal(got, want) {
				t.Fatalf("violations are %+v, want %+v", got, want)
			}
		}
		send := func(met ...sink.Violation) {
			t.Helper()
			b := r.batch()
			b.Violations = met
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
		expect()
		long := strings.Repeat("ü", 128)
		a := sink.Violation{Target: one.Name, Flow: "it's", Expectation: long, Met: "drop", Events: 2}
		b := sink.Violation{Target: one.Name, Flow: "it's", Expectation: long, Met: sink.NotJudged, Events: 1 << 40}
		c := sink.Violation{Target: one.Name, Flow: "Other", Expectation: "e", Met: "warn", Events: 1}
		d := sink.Violation{Target: two.Name, Flow: "it's", Expectation: long, Met: "drop", Events: 7}
		e := sink.Violation{Target: one.Name, Flow: "other", Expectation: "E", Met: "warn", Events: 1} // names differ by case
		send(a, b, c, d)
		send(a, e)
		a.Events = 4
		expect(a, b, c, d, e)

		aside := sink.Aside{Flow: "it's", Target: one.Name, Reason: "expectation x", Position: "p", At: []byte{1}, Time: time.Unix(1, 0).UTC(), Event: []byte("{}")}
		if err := r.memory().SetAside(r.ctx, []sink.Aside{aside, aside}, []sink.Violation{a, c}); err != nil {
			t.Fatalf("SetAside: %v", err)
		}
		other := aside
		other.Target = two.Name
		if err := r.memory().SetAside(r.ctx, []sink.Aside{other}, nil); err != nil {
			t.Fatalf("SetAside: %v", err)
		}
		a.Events, c.Events = 8, 2
		r.reopen()
		expect(a, b, c, d, e)
		if counts, err := r.memory().Unresolved(r.ctx); err != nil || counts["it's"] != 3 {
			t.Fatalf("unresolved are %v, %v, want 3 of one flow", counts, err)
		}
		if err := r.memory().Afresh(r.ctx, one.Name, "it's"); err != nil {
			t.Fatalf("Afresh: %v", err)
		}
		expect(c, d, e)
		if counts, err := r.memory().Unresolved(r.ctx); err != nil || counts["it's"] != 1 {
			t.Fatalf("unresolved are %v, %v, want the other target's", counts, err)
		}
		if err := r.memory().Reset(r.ctx, one.Target); err != nil {
			t.Fatalf("Reset: %v", err)
		}
		expect(d)
		if err := r.memory().StartOver(r.ctx); err != nil {
			t.Fatalf("StartOver: %v", err)
		}
		expect()
	}},

	{"violations of a transaction in pieces that fails are not counted", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		b := r.batch()
		b.Violations, b.More = []sink.Violation{{Target: tt.Name, Flow: "f", Expectation: "e", Met: "warn", Events: 1}}, true
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		r.reopen()
		if got, err := r.memory().Violations(r.ctx); err != nil || len(got) > 0 {
			t.Fatalf("violations are %v, %v", got, err)
		}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		last := r.batch()
		last.Violations, last.First = b.Violations, false
		if err := r.w.Apply(r.ctx, last); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		if got, err := r.memory().Violations(r.ctx); err != nil || len(got) != 1 || got[0].Events != 2 {
			t.Fatalf("violations are %v, %v, want 2", got, err)
		}
	}},

	{"a deposed owner counts nothing", deposes, func(t *testing.T, h Harness) {
		old := begin(t, h)
		tt := old.create(diary(h))
		h.Expire(t)
		begin(t, h)
		met := []sink.Violation{{Target: tt.Name, Flow: "f", Expectation: "e", Met: "warn", Events: 1}}
		for name, err := range map[string]error{"SetAside": old.memory().SetAside(old.ctx, nil, met), "Afresh": old.memory().Afresh(old.ctx, tt.Name, "f")} {
			if !errors.Is(err, fault.ErrFenced) {
				t.Errorf("%s of the deposed owner: %v, want ErrFenced", name, err)
			}
		}
	}},
}
