package sinktest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

var loadTests = []test{
	{"rows and the table's state arrive together", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "id int4 key", "a text", "n int8"))
		r.load(tt, f, false, cells{1, "one", 10}, cells{2, nil, nil}, cells{3, "", -1}, cells{4, "tab\tand \\N\nline\r", 1 << 40})
		r.expect(tt, "1|one|10", "2|NULL|NULL", "3||-1", "4|tab\tand \\N\nline\r|1099511627776")
		if m := r.reopen(); !slices.Contains(m.Tables, r.done(tt, checkpoint.Live)) {
			t.Fatalf("tables = %+v, want %+v", m.Tables, r.done(tt, checkpoint.Live))
		}
	})},

	{"type 2 rows begin where the stream says and are open", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type2, "id int4 key", "a text"))
		r.load(tt, f, false, cells{1, "one", 1_700_000_000_000_001}, cells{2, nil, 1_700_000_000_000_001})
		r.expect(tt, "1|one|1700000000000001|NULL", "2|NULL|1700000000000001|NULL")
	})},

	{"an append-only target takes equal rows", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "a text", "n int8"))
		r.load(tt, f, false, cells{"x", 1}, cells{"x", 1}, cells{nil, nil})
		r.expect(tt, "x|1", "x|1", "NULL|NULL")
	})},

	{"an empty stream is a finished load", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "id int4 key", "a text"))
		r.load(tt, f, false)
		r.expect(tt)
		if m := r.mark(); !slices.Contains(m.Tables, r.done(tt, checkpoint.Live)) {
			t.Fatalf("tables = %+v", m.Tables)
		}
		r.apply(tt, f, round{inserts: []cells{{1, "a"}}, upserts: []cells{{2, "b"}}})
		r.expect(tt, "1|a", "2|b")
	})},

	{"with empty the target holds the copy alone", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "id int4 key", "a text"))
		r.load(tt, f, false, cells{1, "stale"}, cells{9, "stray"})
		r.load(tt, f, true, cells{1, "fresh"}, cells{2, "new"})
		r.expect(tt, "1|fresh", "2|new")
		r.apply(tt, f, round{upserts: []cells{{2, "newer"}}, deletes: []cells{{1}}})
		r.expect(tt, "2|newer")
	})},

	{"a load that dies leaves what was there", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "t_"+f.String(), scd.Type1, "id int4 key", "a text"))
		r.load(tt, f, false, cells{1, "kept"})
		died := errors.New("the source went away")
		for _, empty := range []bool{false, true} {
			in := tt.copyOf(f, cells{2, "lost"}, cells{3, "lost"})
			whole, _ := io.ReadAll(in.Rows)
			in.Rows = failingReader{bytes.NewReader(whole[:len(whole)-3]), died}
			before := r.mark()
			done := r.done(tt, checkpoint.Live)
			done.Since = change.LSN(99)
			if _, err := r.w.Load(r.ctx, tt.Target, in, empty, done); !errors.Is(err, died) {
				t.Fatalf("Load of a dying stream: %v, want the stream's own error", err)
			}
			r.expect(tt, "1|kept")
			if m := r.reopen(); !slices.Equal(m.Tables, before.Tables) {
				t.Fatalf("tables = %+v, want them unchanged", m.Tables)
			}
		}
		r.load(tt, f, true, cells{2, "again"})
		r.expect(tt, "2|again")
	})},

	{"several tables load at once", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		targets := make([]target, 4)
		for i := range targets {
			targets[i] = r.create(makeTarget(h, "t"+string(rune('a'+i)), scd.Type1, "id int4 key", "a text"))
		}
		var rows []cells
		for i := range 2000 {
			rows = append(rows, cells{i, strings.Repeat("x", i%50)})
		}
		var wait sync.WaitGroup
		errs := make([]error, len(targets))
		for i, tt := range targets {
			wait.Add(1)
			go func() {
				defer wait.Done()
				_, errs[i] = r.w.Load(r.ctx, tt.Target, tt.copyOf(binary, rows...), false, r.done(tt, checkpoint.Live))
			}()
		}
		for range 5 {
			if err := r.w.Heartbeat(r.ctx); err != nil {
				t.Errorf("Heartbeat beside Load: %v", err)
			}
			if _, err := r.w.Durable(r.ctx); err != nil {
				t.Errorf("Durable beside Load: %v", err)
			}
			if _, err := r.w.State(r.ctx); err != nil {
				t.Errorf("State beside Load: %v", err)
			}
		}
		wait.Wait()
		for i, tt := range targets {
			if errs[i] != nil {
				t.Fatalf("Load %s: %v", tt.Name, errs[i])
			}
			if got := len(r.contents(tt)); got != len(rows) {
				t.Fatalf("%s holds %d rows, want %d", tt.Name, got, len(rows))
			}
		}
		if m := r.mark(); len(m.Tables) != len(targets) {
			t.Fatalf("tables = %+v", m.Tables)
		}
	}},

	{"a value that does not fit is named by table, never shown", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "ledger", scd.Type1, "id int4 key", "n int8"))
		in := sink.Copy{Rows: strings.NewReader("1\tSECRETVALUE\n")}
		_, err := r.w.Load(r.ctx, tt.Target, in, false, r.done(tt, checkpoint.Live))
		wantSilent(t, err, "ledger", "SECRETVALUE")
		r.expect(tt)
	}},
}

// wantSilent demands an error that names something and keeps a secret.
func wantSilent(t *testing.T, err error, name, secret string) {
	t.Helper()
	if err == nil {
		t.Fatal("there was no error")
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(e.Error(), secret) {
			t.Fatalf("the error shows a row's value: %v", e)
		}
	}
	if !strings.Contains(err.Error(), name) {
		t.Fatalf("the error does not name %q: %v", name, err)
	}
}
