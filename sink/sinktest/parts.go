package sinktest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// takesParts gives the Writer's sink.Parts; the tests of a destination without it end
// here, as there is nothing to hold it to.
func takesParts(r *rig) (sink.Parts, bool) {
	p, ok := r.w.(sink.Parts)
	return p, ok
}

func beginParts(t *testing.T, r *rig, p sink.Parts, tt target, want bool) {
	t.Helper()
	began, err := p.BeginParts(r.ctx, tt.Target)
	if err != nil || began != want {
		t.Fatalf("BeginParts: %v, %v, want %v", began, err, want)
	}
}

func loadPart(t *testing.T, r *rig, p sink.Parts, tt target, f form, rows ...cells) {
	t.Helper()
	n, err := p.LoadPart(r.ctx, tt.Target, tt.copyOf(f, rows...))
	if err != nil || n != int64(len(rows)) {
		t.Fatalf("LoadPart: %d rows, %v", n, err)
	}
}

func there(t *testing.T, r *rig, tt target) bool {
	t.Helper()
	p, err := r.w.Plan(r.ctx, tt.Target)
	if err != nil {
		t.Fatal(err)
	}
	return p.Exists
}

var partsTests = []test{
	{"rows of all parts arrive together, with key and state", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		p, ok := takesParts(r)
		if !ok {
			return
		}
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "id int4 key", "a text"))
		beginParts(t, r, p, tt, true)
		loadPart(t, r, p, tt, f, cells{1, "one"}, cells{2, nil})
		loadPart(t, r, p, tt, f)
		loadPart(t, r, p, tt, f, cells{3, "three"})
		if there(t, r, tt) || slices.ContainsFunc(r.mark().Tables, func(c checkpoint.Table) bool { return c.Target == tt.Name }) {
			t.Fatal("the table shows before its end")
		}
		done := r.done(tt, checkpoint.Catching)
		if err := p.EndParts(r.ctx, tt.Target, done); err != nil {
			t.Fatal(err)
		}
		r.expect(tt, "1|one", "2|NULL", "3|three")
		if m := r.reopen(); !slices.Contains(m.Tables, done) {
			t.Fatalf("tables = %+v, want %+v", m.Tables, done)
		}
		r.apply(tt, f, round{upserts: []cells{{2, "two"}, {4, "four"}}, deletes: []cells{{1}}})
		r.expect(tt, "2|two", "3|three", "4|four")
	})},

	{"a copy in parts that died leaves nothing behind in the next", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		p, ok := takesParts(r)
		if !ok {
			return
		}
		for _, name := range []string{"parts", "whole"} {
			tt := r.create(makeTarget(h, name, scd.Type2, "id int4 key", "a text"))
			beginParts(t, r, p, tt, true)
			loadPart(t, r, p, tt, text, cells{1, "lost", 5})
			died := errors.New("the source went away")
			in := tt.copyOf(text, cells{2, "lost", 5})
			whole, err := io.ReadAll(in.Rows)
			if err != nil {
				t.Fatal(err)
			}
			in.Rows = failingReader{bytes.NewReader(whole[:len(whole)-1]), died}
			if _, err := p.LoadPart(r.ctx, tt.Target, in); !errors.Is(err, died) {
				t.Fatalf("LoadPart of a dying stream: %v, want the stream's own error", err)
			}
			r.reopen()
			p, _ = takesParts(r)
			r.create(tt)
			if name == "whole" {
				r.load(tt, text, true, cells{3, "kept", 7})
			} else {
				beginParts(t, r, p, tt, true)
				loadPart(t, r, p, tt, text, cells{3, "kept", 7})
				if err := p.EndParts(r.ctx, tt.Target, r.done(tt, checkpoint.Live)); err != nil {
					t.Fatal(err)
				}
			}
			r.expect(tt, "3|kept|7|NULL")
		}
	}},

	{"a target that others may look at is no copy in parts", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		p, ok := takesParts(r)
		if !ok {
			return
		}
		full := r.create(makeTarget(h, "full", scd.Type1, "id int4 key"))
		r.load(full, text, false, cells{1})
		beginParts(t, r, p, full, false)
		r.expect(full, "1")
		seen := r.create(makeTarget(h, "seen", scd.Type1, "id int4 key"))
		h.Exec(t, "CREATE VIEW "+sqlName(change.Name{Schema: h.Schema(), Table: "looks"})+" AS SELECT id FROM "+sqlName(seen.Name))
		beginParts(t, r, p, seen, false)
		theirs := makeTarget(h, "theirs", scd.Type1, "id int4 key")
		h.Exec(t, "CREATE TABLE "+sqlName(theirs.Name)+" (id integer PRIMARY KEY)")
		beginParts(t, r, p, theirs, false)
	}},

	{"no part of a deposed owner arrives", deposes, func(t *testing.T, h Harness) {
		old := begin(t, h)
		p, ok := takesParts(old)
		if !ok {
			return
		}
		tt := old.create(makeTarget(h, "t", scd.Type1, "id int4 key"))
		beginParts(t, old, p, tt, true)
		h.Expire(t)
		next := begin(t, h)
		heir, _ := takesParts(next)
		next.create(tt)
		beginParts(t, next, heir, tt, true)
		if _, err := p.LoadPart(old.ctx, tt.Target, tt.copyOf(text, cells{1})); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("LoadPart of the deposed owner: %v, want ErrFenced", err)
		}
		if err := p.EndParts(old.ctx, tt.Target, old.done(tt, checkpoint.Live)); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("EndParts of the deposed owner: %v, want ErrFenced", err)
		}
		loadPart(t, next, heir, tt, text, cells{2})
		if err := heir.EndParts(next.ctx, tt.Target, next.done(tt, checkpoint.Live)); err != nil {
			t.Fatal(err)
		}
		next.expect(tt, "2")
	}},
}
