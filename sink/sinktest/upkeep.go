package sinktest

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// What is kept beside the targets, and how it is made and unmade.
var upkeepTests = []test{
	{"files that were taken", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		files := func() []change.File {
			list, err := r.memory().Files(r.ctx)
			if err != nil {
				t.Fatalf("Files: %v", err)
			}
			return list
		}
		if list := files(); len(list) != 0 {
			t.Fatalf("files of a new pipeline: %+v", list)
		}
		at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
		one := change.File{Relation: change.Name{Schema: "s", Table: `odd "name"`}, Path: "2026/03/a b\\'ä.jsonl", Size: 1 << 40, Modified: at, Checksum: "c0ffee", Rows: 12}
		two := one
		two.Relation = change.Name{Table: "cdf"}
		three := one
		three.Path, three.Size, three.Rows = "", 0, 0
		send := func(list ...change.File) {
			b := r.batch()
			b.Files = list
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
		expect := func(want ...change.File) {
			t.Helper()
			got := files()
			for i := range got {
				got[i].Modified = got[i].Modified.UTC()
			}
			order := func(a, b change.File) int {
				return strings.Compare(a.Relation.String()+"|"+a.Path, b.Relation.String()+"|"+b.Path)
			}
			slices.SortFunc(got, order)
			slices.SortFunc(want, order)
			if !slices.Equal(got, want) {
				t.Fatalf("files\n  %+v\nwant\n  %+v", got, want)
			}
		}
		send(one, two)
		send()
		send(three)
		expect(one, two, three)
		two.Size, two.Checksum, two.Rows, two.Modified = 7, "beef", 8, at.Add(time.Hour)
		send(two)
		expect(one, two, three)
		r.reopen()
		expect(one, two, three)
		var many []change.File
		for i := range 2000 {
			f := one
			f.Path = fmt.Sprintf("%05d", i)
			many = append(many, f)
		}
		send(many...)
		expect(append(slices.Clone(many), one, two, three)...)
		if err := r.memory().Forget(r.ctx, []change.Name{two.Relation, {Table: "another"}}); err != nil {
			t.Fatalf("Forget: %v", err)
		}
		expect(append(slices.Clone(many), one, three)...)
		b := r.batch()
		b.Aside = []sink.Aside{{Flow: "f", Reason: "r", Time: at, Event: []byte("{}")}}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		if err := r.memory().StartOver(r.ctx); err != nil {
			t.Fatalf("StartOver: %v", err)
		}
		expect()
		if err := r.memory().Quarantine(r.ctx, "", func(a sink.Aside) error { t.Error("something is in quarantine after starting over"); return nil }); err != nil {
			t.Fatalf("Quarantine: %v", err)
		}
		send(two)
		expect(two)
	}},

	{"events set aside, and resolved", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		read := func(flow string) []sink.Aside {
			var out []sink.Aside
			err := r.memory().Quarantine(r.ctx, flow, func(a sink.Aside) error {
				out = append(out, a)
				return nil
			})
			if err != nil {
				t.Fatalf("Quarantine: %v", err)
			}
			return out
		}
		if list := read(""); len(list) != 0 {
			t.Fatalf("the quarantine of a new pipeline: %+v", list)
		}
		at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
		var all []sink.Aside
		for i := range 600 {
			a := sink.Aside{Flow: []string{"one", `two "x"`}[i%2], Target: change.Name{Schema: "s", Table: `t"'`}, Reason: "no sequence", Position: fmt.Sprintf("dir/a b.jsonl:%d", i), At: []byte{1, 0, byte(i), 0xff}, Time: at.Add(time.Duration(i) * time.Microsecond), Event: []byte(fmt.Sprintf(`{"id": %d, "odd": "ä\u0000\"\\ "}`, i))}
			all = append(all, a)
		}
		for _, part := range [][]sink.Aside{all[:1], all[1:590], nil, all[590:]} {
			b := r.batch()
			b.Aside = part
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
		r.reopen()
		expect := func(flow string, want []sink.Aside) []sink.Aside {
			t.Helper()
			got := read(flow)
			if len(got) != len(want) {
				t.Fatalf("%d events in quarantine, want %d", len(got), len(want))
			}
			seen := map[int64]bool{}
			for i, g := range got {
				w := want[i]
				if seen[g.ID] {
					t.Fatalf("two events have number %d", g.ID)
				}
				seen[g.ID] = true
				if g.Flow != w.Flow || g.Target != w.Target || g.Reason != w.Reason || g.Position != w.Position || string(g.At) != string(w.At) || !g.Time.Equal(w.Time) || string(g.Event) != string(w.Event) {
					t.Fatalf("event %d in quarantine\n  %+v\nwant\n  %+v", i, g, w)
				}
			}
			return got
		}
		got := expect("", all)
		expect("nobody's", nil)
		var two []sink.Aside
		for i, a := range all {
			if i%2 == 1 {
				two = append(two, a)
			}
		}
		expect(`two "x"`, two)
		if err := r.memory().Resolve(r.ctx, []int64{got[0].ID, got[2].ID, got[599].ID}); err != nil {
			t.Fatalf("Resolve: %v", err)
		}
		if err := r.memory().Resolve(r.ctx, nil); err != nil {
			t.Fatalf("Resolve of nothing: %v", err)
		}
		r.reopen()
		left := slices.Concat(all[1:2], all[3:599])
		expect("", left)
		b := r.batch()
		b.Aside = all[:1]
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		expect("", append(left, all[0]))
	}},

	{"a batch resolves the events that it applies, while they are being read", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		counts := func(want string) {
			t.Helper()
			got, err := r.memory().Unresolved(r.ctx)
			if s := fmt.Sprint(got); err != nil || s != want {
				t.Fatalf("Unresolved: %s, %v, want %s", s, err, want)
			}
		}
		counts("map[]")
		b := r.batch()
		for i := range 1000 {
			b.Aside = append(b.Aside, sink.Aside{Flow: []string{"one", `two "x"`}[i%2], Target: tt.Name, Event: []byte(fmt.Sprintf(`{"n": %d}`, i))})
		}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		counts(`map[one:500 two "x":500]`)
		var ids, kept []int64
		var want []string
		write := func() {
			t.Helper()
			part := tt.hidden(sequenced.Work{}, scd.Round{})
			for _, id := range ids {
				row := cells{int(id), "w", int(id)}
				part.Rounds[0].Inserts = append(part.Rounds[0].Inserts, tt.row(text, row))
				part.Hidden.Put = append(part.Hidden.Put, tt.record(cells{int(id), "w"}, "1", "p", "x"))
				want = append(want, fmt.Sprintf("%d|w|%[1]d", id))
			}
			b := r.batch(part)
			b.Resolved, ids = ids, nil
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
		n := 0
		err := r.memory().Quarantine(r.ctx, "", func(a sink.Aside) error {
			if n++; n%10 == 0 {
				kept = append(kept, a.ID)
				return nil
			}
			if ids = append(ids, a.ID); len(ids) == 150 {
				write()
			}
			return nil
		})
		if err != nil || n != 1000 {
			t.Fatalf("Quarantine: %d events, %v", n, err)
		}
		r.expect(tt, want...)
		counts(`map[two "x":100]`)
		ids = kept[:1]
		write()
		r.reopen()
		counts(`map[two "x":99]`)

		// One that is resolved already: nothing of the batch is there.
		before := r.mark()
		part := tt.hidden(sequenced.Work{}, scd.Round{Upserts: []change.Row{tt.row(text, cells{1, "twice", 1})}})
		b = r.batch(part)
		b.Resolved = []int64{kept[1], kept[0]}
		if err := r.w.Apply(r.ctx, b); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("Apply: %v, want corrupt", err)
		}
		if m := r.reopen(); m.Position != before.Position {
			t.Fatalf("the mark moved to %v", m.Position)
		}
		r.expect(tt, want...)
		counts(`map[two "x":99]`)
		// Without rows.
		b = r.batch()
		b.Resolved = kept[1:]
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		counts("map[]")
	}},

	{"what is remembered is counted", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := diary(h), r.create(ages(h, typeInt8))
		expect := func(tt target, records, tombstones int64) {
			t.Helper()
			n, err := r.memory().Remembers(r.ctx, tt.Target)
			if err != nil || n != (sink.MemorySize{Records: records, Tombstones: tombstones}) {
				t.Fatalf("%s remembers %+v, %v; want %d records and %d tombstones", tt.Name, n, err, records, tombstones)
			}
		}
		expect(one, 0, 0) // there is no such target yet
		one = r.create(one)
		expect(one, 0, 0)
		about := sequenced.Record{Key: []byte{}, Seq: []byte("\xff"), At: []byte{}, Body: []byte("x")}
		r.write(
			one.hidden(sequenced.Work{Put: []sequenced.Record{about, one.record(cells{1, "a"}, "1", "p", "x"), one.record(cells{1, "a"}, "2", "p", "x"), one.tombstone(cells{2, "a"}, "2", "p", 1)}}),
			two.hidden(sequenced.Work{Put: []sequenced.Record{two.tombstone(cells{2, "a"}, "2", "p", 1)}}),
		)
		expect(one, 3, 1)
		expect(two, 1, 1)
	}},

	{"all that is remembered is read key by key", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(ages(h, typeInt8))
		read := func() (list []sequenced.Record) {
			t.Helper()
			if err := r.memory().Records(r.ctx, tt.Target, func(rec sequenced.Record) error { list = append(list, rec); return nil }); err != nil {
				t.Fatalf("Records: %v", err)
			}
			return list
		}
		if list := read(); len(list) != 0 {
			t.Fatalf("%d records of a new target", len(list))
		}
		const n = 300
		w := sequenced.Work{Put: []sequenced.Record{{Key: []byte{}, Seq: []byte("\xff"), At: []byte{}, Body: []byte("about the target")}}}
		for i := range n {
			for _, seq := range []string{"\x80", "", "\x7f\x00"} {
				for _, at := range []string{"b", "a"} {
					w.Put = append(w.Put, tt.record(cells{i, awkward[i%len(awkward)]}, seq, at, strings.Repeat("x", 30_000)))
				}
			}
		}
		r.write(tt.hidden(w))
		list := read()
		if len(list) != 6*n {
			t.Fatalf("%d records, want %d", len(list), 6*n)
		}
		keys := map[string]bool{}
		for i := range list {
			if i%6 == 0 {
				keys[string(list[i].Key)] = true
			} else if a, b := &list[i-1], &list[i]; string(a.Key) != string(b.Key) || compareRecords(*a, *b) >= 0 {
				t.Fatalf("record %d is out of order", i)
			}
			if len(list[i].Body) != 30_000 || list[i].Time != 1 {
				t.Fatalf("record %d is %+v", i, list[i].ID())
			}
		}
		if len(keys) != n {
			t.Fatalf("%d keys, want %d", len(keys), n)
		}
		stop := errors.New("stop")
		if err := r.memory().Records(r.ctx, tt.Target, func(sequenced.Record) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("Records: %v, want the callback's error", err)
		}
	}},

	{"events are counted with the batches that hold them", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := diary(h), ages(h, typeInt8)
		expect := func(tt target, want sequenced.Counts) {
			t.Helper()
			if got, err := r.memory().Counted(r.ctx, tt.Target); err != nil || got != want {
				t.Fatalf("of %s was counted %+v, %v; want %+v", tt.Name, got, err, want)
			}
		}
		expect(one, sequenced.Counts{}) // there is no such target yet
		one, two = r.create(one), r.create(two)
		some := sequenced.Counts{Events: 100, Duplicates: 1, Late: 2, Ties: 3, Truncated: 4, Beyond: 5, Unknown: 6}
		r.write(one.hidden(sequenced.Work{Counts: sequenced.Counts{Events: 7}}))
		expect(one, sequenced.Counts{})
		r.write(one.hidden(sequenced.Work{Counts: some}), two.hidden(sequenced.Work{Counts: sequenced.Counts{Late: 1 << 40}}))
		r.write(one.hidden(sequenced.Work{Counts: some, HeadChanged: true, Head: sequenced.Head{Horizon: []byte("h")}}))
		want := sequenced.Counts{Duplicates: 2, Late: 4, Ties: 6, Truncated: 8, Beyond: 10, Unknown: 12}
		expect(one, want)
		expect(two, sequenced.Counts{Late: 1 << 40})

		// Deletes that are forgotten are counted where they are.
		r.write(one.hidden(sequenced.Work{Put: []sequenced.Record{one.tombstone(cells{1, "a"}, "1", "p", 1), one.tombstone(cells{2, "a"}, "1", "p", 2), one.tombstone(cells{3, "a"}, "1", "p", 3)}}))
		r.write(one.hidden(sequenced.Work{ForgetBefore: 3, Counts: sequenced.Counts{Late: 1}}))
		r.write(one.hidden(sequenced.Work{ForgetBefore: 3}))
		want.Forgotten, want.Late = 2, 5
		expect(one, want)
		r.reopen()
		expect(one, want)

		// Pieces count together, or not at all.
		for i, whole := range []bool{false, true} {
			for n := range 3 {
				b := r.batch(one.hidden(sequenced.Work{Counts: sequenced.Counts{Ties: 1}}))
				b.First, b.More = n == 0, n < 2
				if n == 2 && !whole {
					break
				}
				if err := r.w.Apply(r.ctx, b); err != nil {
					t.Fatalf("Apply: %v", err)
				}
			}
			r.reopen()
			want.Ties += 3 * i
			expect(one, want)
		}
		if err := r.memory().Reset(r.ctx, one.Target); err != nil {
			t.Fatalf("Reset: %v", err)
		}
		expect(one, sequenced.Counts{})
		expect(two, sequenced.Counts{Late: 1 << 40})

		// Bookkeeping of an earlier version has no counts, and gains them.
		r.w.Close(r.ctx)
		h.Exec(t, "DROP TABLE _tailrace.counts")
		r.w = h.Open(t) // as status does, which owns nothing
		expect(two, sequenced.Counts{})
		r.w.Close(r.ctx)
		r.open()
		r.write(two.hidden(sequenced.Work{Counts: some}))
		some.Events = 0
		expect(two, some)
	}},

	{"an ordered target is seeded, as a whole or not at all", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		ordered := r.create(makeTarget(h, "diary", scd.Type1, "id int4 key", "who text key", "n int8"))
		const n = 5000
		var rd round
		for i := range n {
			rd.inserts = append(rd.inserts, cells{i, awkward[i%len(awkward)], i})
		}
		slices.SortFunc(rd.inserts, func(a, b cells) int { return slices.Compare(ordered.row(text, a), ordered.row(text, b)) })
		r.write(ordered.part(text, rd))
		rows := r.contents(ordered)
		tt := diary(h)
		at := sequenced.Place{Seq: []byte("5"), At: []byte("a")}
		records := func(limit int) iter.Seq2[sequenced.Record, error] {
			return func(yield func(sequenced.Record, error) bool) {
				i := 0
				err := r.memory().Rows(r.ctx, tt.Target, func(row change.Row) error {
					values, err := row.Values(nil, 3)
					if err != nil {
						return err
					}
					key := change.Row(nil).Append(values[0]).Append(values[1])
					if i++; i > limit || !yield(sequenced.Record{Key: key, Seq: at.Seq, At: fmt.Appendf([]byte("b"), "%d", i), Body: []byte("x\x00"), Time: -1}, nil) {
						return errors.New("no more")
					}
					return nil
				})
				if err != nil {
					yield(sequenced.Record{}, err)
				}
			}
		}
		untouched := func() {
			t.Helper()
			r.reopen()
			p := r.plan(tt)
			if !p.Unremembered || len(p.Problems) == 0 || !p.Problems[len(p.Problems)-1].Blocks {
				t.Fatalf("plan: %+v", p)
			}
			if err := r.w.Create(r.ctx, tt.Target); fault.KindOf(err) != fault.Operator {
				t.Fatalf("Create over rows without memory: %v", err)
			}
			r.expect(ordered, rows...)
		}
		untouched()
		if err := r.memory().Seed(r.ctx, tt.Target, sequenced.Head{Truncated: at}, records(n/2)); err == nil || !strings.Contains(err.Error(), "no more") {
			t.Fatalf("Seed: %v, want the error of its records", err)
		}
		untouched()
		before := r.mark()
		if err := r.memory().Seed(r.ctx, tt.Target, sequenced.Head{Truncated: at}, records(n)); err != nil {
			t.Fatalf("Seed: %v", err)
		}
		if m := r.reopen(); m.Position != before.Position {
			t.Fatalf("Seed moved the mark to %v", m.Position)
		}
		if p := r.plan(tt); p.Unremembered || len(p.Problems)+len(p.DDL) > 0 {
			t.Fatalf("plan after Seed: %+v", p)
		}
		r.expect(tt, rows...)
		if head := r.head(tt); head.Truncated.Compare(at) != 0 || head.Horizon != nil {
			t.Fatalf("head %+v", head)
		}
		if size, err := r.memory().Remembers(r.ctx, tt.Target); err != nil || size.Records != n || size.Tombstones != 0 {
			t.Fatalf("it remembers %+v, %v", size, err)
		}
		// It is a sequenced target like any other: a truncate takes the rows.
		r.write(tt.hidden(sequenced.Work{TruncateBelow: sequenced.Place{Seq: []byte("6")}, Put: []sequenced.Record{tt.record(cells{1, "new"}, "7", "p", "x")}}, scd.Round{Upserts: []change.Row{tt.row(text, cells{1, "new", 1})}}))
		r.expect(tt, "1|new|1")

		// Back in the order of the log, what is remembered goes, and does not come back.
		if p := r.plan(ordered); !p.Remembered || !p.Rows {
			t.Fatalf("plan of the ordered target: %+v", p)
		}
		r.create(ordered)
		if p := r.plan(ordered); p.Remembered || len(p.Problems)+len(p.DDL) > 0 {
			t.Fatalf("plan of the ordered target: %+v", p)
		}
		if p := r.plan(tt); !p.Unremembered {
			t.Fatalf("plan: %+v", p)
		}
		if err := r.memory().Seed(r.ctx, tt.Target, sequenced.Head{}, records(n)); err != nil {
			t.Fatalf("Seed: %v", err)
		}
		if head := r.head(tt); !head.Truncated.IsZero() {
			t.Fatalf("head %+v", head)
		}
	}},

	{"Reset empties one target and its memory", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		one, two := r.create(diary(h)), r.create(ages(h, typeInt8))
		fill := func(tt target) {
			t.Helper()
			w := sequenced.Work{Put: []sequenced.Record{tt.record(cells{1, "a"}, "1", "p", "x")}, HeadChanged: true, Head: sequenced.Head{Truncated: sequenced.Place{Seq: []byte("0"), At: []byte("p")}, Horizon: []byte("h")}}
			rd := scd.Round{Inserts: []change.Row{tt.row(text, cells{1, "a", 1})}}
			if tt.Kind == scd.Type2 {
				rd = scd.Round{Begins: []scd.Version{{VersionEnd: scd.VersionEnd{VersionID: scd.VersionID{Key: tt.key(text, cells{1, "a"}), Start: value(1, typeInt8, text)}, End: value(nil, typeInt8, text)}, Row: tt.row(text, cells{1, "a", 1})}}}
			}
			r.write(tt.hidden(w, rd))
		}
		fill(one)
		fill(two)
		b := r.batch()
		for _, tt := range []target{one, two} {
			b.Aside = append(b.Aside, sink.Aside{Flow: tt.Name.Table, Target: tt.Name, Event: []byte("{}")})
		}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		at := r.mark()
		for _, tt := range []target{one, two} {
			if err := r.memory().Reset(r.ctx, tt.Target); err != nil {
				t.Fatalf("Reset: %v", err)
			}
			r.expect(tt)
			r.expectRecords(tt, tt.lookups(cells{1, "a"}))
			if head := r.head(tt); !head.Truncated.IsZero() || head.Horizon != nil {
				t.Fatalf("head %+v", head)
			}
			if tt.Kind == scd.Type1 {
				r.expect(two, "1|a|1|1|NULL")
				if head := r.head(two); head.Horizon == nil || len(r.remembered(two, two.lookups(cells{1, "a"}))) != 1 {
					t.Fatal("Reset took what is remembered of another target")
				}
				if left, err := r.memory().Unresolved(r.ctx); err != nil || len(left) != 1 || left[two.Name.Table] != 1 {
					t.Fatalf("in quarantine are %v, %v; want what concerns the other target", left, err)
				}
			}
		}
		if m := r.reopen(); m.Position != at.Position {
			t.Fatalf("Reset moved the mark to %v", m.Position)
		}
		r.expect(one)
		fill(one)
		fill(two)
		r.expect(one, "1|a|1")
		r.expect(two, "1|a|1|1|NULL")
	}},

	{"Teardown takes the memory and leaves the targets", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(diary(h))
		b := r.batch(tt.hidden(sequenced.Work{Put: []sequenced.Record{tt.record(cells{1, "a"}, "1", "p", "x")}}, scd.Round{Inserts: []change.Row{tt.row(text, cells{1, "a", 1})}}))
		b.Files = []change.File{{Path: "f", Modified: time.Unix(1, 0)}}
		b.Aside = []sink.Aside{{Flow: "f", Target: tt.Name, Time: time.Unix(1, 0), Event: []byte("{}")}}
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
		if err := r.w.Teardown(r.ctx); err != nil {
			t.Fatalf("Teardown: %v", err)
		}
		r.expect(tt, "1|a|1")
		if n := h.Query(t, "SELECT count(*) FROM information_schema.tables WHERE table_schema = '_tailrace'"); *n[0][0] != "0" {
			t.Fatalf("Teardown left %s tables in _tailrace", *n[0][0])
		}
		if err := r.w.Close(r.ctx); err != nil {
			t.Fatalf("Close: %v", err)
		}
		r.open()
		p := r.plan(tt)
		if !slices.ContainsFunc(p.Problems, func(f sink.Finding) bool { return f.Blocks && strings.Contains(f.Remedy, "--overwrite") }) {
			t.Fatalf("rows without memory are no problem: %+v", p)
		}
		if err := r.w.Create(r.ctx, tt.Target); fault.KindOf(err) != fault.Operator {
			t.Fatalf("Create over rows without memory: %v", err)
		}
		if err := r.memory().Reset(r.ctx, tt.Target); err != nil { // what --overwrite does
			t.Fatalf("Reset: %v", err)
		}
		r.create(tt)
		if p := r.plan(tt); len(p.Problems) > 0 || len(p.DDL) > 0 || p.Rows {
			t.Fatalf("plan after Reset and Create: %+v", p)
		}
		r.expectRecords(tt, tt.lookups(cells{1, "a"}))
		r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{tt.record(cells{2, "a"}, "1", "p", "x")}}))
		if files, err := r.memory().Files(r.ctx); err != nil || len(files) != 0 {
			t.Fatalf("files after Teardown: %v, %v", files, err)
		}
	}},

	{"plans of sequenced targets", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		long := strings.Repeat("long_name_", 5)
		for i, tt := range []target{
			diary(h), ages(h, typeInt8),
			sequencedTarget(h, long+"a", scd.Type1, bigints, "id int4 key"),
			sequencedTarget(h, long+"b", scd.Type1, bigints, "id int4 key"),
			sequencedTarget(h, `odd "name" ä`, scd.Type2, []change.Type{typeText}, "id int4 key"),
			sequencedTarget(h, `odd name`, scd.Type2, []change.Type{typeText, typeInt8}, "id int4 key"),
		} {
			if p := r.plan(tt); p.Exists || len(p.DDL) == 0 || len(p.Problems) > 0 {
				t.Fatalf("plan of the missing %s: %+v", tt.Name, p)
			}
			r.create(tt)
			r.create(tt)
			if p := r.plan(tt); !p.Exists || p.Rows || len(p.DDL) > 0 || len(p.Problems) > 0 {
				t.Fatalf("plan of the new %s: %+v", tt.Name, p)
			}
			r.write(tt.hidden(sequenced.Work{Put: []sequenced.Record{tt.record(tt.keyOf(cells{i, "a", 1}[:len(tt.Columns)]), "1", "p", fmt.Sprint(i))}}))
			if got := r.remembered(tt, []sequenced.Lookup{{Key: tt.key(text, tt.keyOf(cells{i, "a", 1}[:len(tt.Columns)]))}}); len(got) != 1 || string(got[0].Body) != fmt.Sprint(i) {
				t.Fatalf("%s remembers %+v", tt.Name, got)
			}
		}
	}},

	{"a start column of another type is a problem that Reset and Create mend", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		r.create(ages(h, typeInt8))
		other := ages(h, typeTimestampTZ)
		p := r.plan(other)
		if !slices.ContainsFunc(p.Problems, func(f sink.Finding) bool {
			return f.Blocks && strings.Contains(f.What, scd.StartColumn) && strings.Contains(f.Remedy, "--overwrite")
		}) {
			t.Fatalf("plan: %+v", p)
		}
		if err := r.memory().Reset(r.ctx, other.Target); err != nil {
			t.Fatalf("Reset: %v", err)
		}
		r.create(other)
		if p := r.plan(other); len(p.Problems) > 0 || len(p.DDL) > 0 {
			t.Fatalf("plan after Reset and Create: %+v", p)
		}
		ordered := makeTarget(h, "ages", scd.Type2, "id int4 key", "who text key", "n int8")
		r.create(ages(h, typeTimestampTZ))
		if p := r.plan(ordered); len(p.Problems) > 0 {
			t.Fatalf("plan by commit time: %+v", p)
		}
	}},
}
