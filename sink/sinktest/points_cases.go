package sinktest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// bookTables are the tables of ours that there are.
func (m *times) bookTables() []string {
	m.t.Helper()
	return lines(m.h.Query(m.t, "SELECT table_name FROM information_schema.tables WHERE table_schema = '_tailrace'"))
}

// refuses demands that a rewind is refused and that nothing has happened.
func (m *times) refuses(to int64, name string, kind fault.Kind, list ...target) {
	m.t.Helper()
	before, points := m.look(), fmt.Sprint(m.points())
	err := m.rewinds().Rewind(m.ctx, m.rewound(to, list))
	if err == nil || kind != fault.Unknown && fault.KindOf(err) != kind || !strings.Contains(err.Error(), name) {
		m.t.Fatalf("Rewind to point %d: %v", to, err)
	}
	m.compare("after a rewind that was refused", before)
	if after := fmt.Sprint(m.points()); after != points {
		m.t.Fatalf("the points are %s, were %s", after, points)
	}
}

// trio is two small targets of type 1 and a history.
func (m *times) trio(name string) (a, b, c target) {
	m.t.Helper()
	a, b = makeTarget(m.h, name+"_a", scd.Type1, "id int4 key", "a text"), makeTarget(m.h, name+"_b", scd.Type1, "id int4 key", "a text")
	c = makeTarget(m.h, name+"_c", scd.Type2, "id int4 key", "a text")
	m.watch(a, b, c)
	return a, b, c
}

// sets writes a value at keys of a trio's targets.
func (m *times) sets(v string, at int64, key int, list ...target) {
	m.t.Helper()
	var parts []sink.TargetRounds
	for _, t := range list {
		rd := round{upserts: []cells{{key, v}}}
		if t.Kind == scd.Type2 {
			rd = round{steps: []step{{key: cells{key}, lo: at, row: cells{key, v}}}}
		}
		parts = append(parts, t.part(text, rd))
	}
	m.write(parts...)
}

var pointTests = []test{
	{"what is read before anything is made", nil, func(t *testing.T, h Harness) {
		w := h.Open(t)
		defer w.Close(t.Context())
		r, ok := w.(sink.Rewinds)
		if !ok {
			t.Fatalf("%T is no sink.Rewinds", w)
		}
		if list, err := r.Points(t.Context()); err != nil || len(list) > 0 {
			t.Errorf("Points: %v, %v", list, err)
		}
		if list, err := r.Undo(t.Context(), 1); err != nil || len(list) > 0 {
			t.Errorf("Undo: %v, %v", list, err)
		}
		if left := h.Query(t, "SELECT table_name FROM information_schema.tables WHERE table_schema = '_tailrace'"); len(left) > 0 {
			t.Errorf("reading has made %q", lines(left))
		}
		if _, err := r.Point(t.Context(), ""); err == nil {
			t.Error("a point without ownership")
		}
	}},

	{"there is no point of no mark", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		if _, err := r.rewinds().Point(r.ctx, "x"); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("Point: %v, want corrupt", err)
		}
		if list, err := r.rewinds().Points(r.ctx); err != nil || len(list) > 0 {
			t.Fatalf("Points: %v, %v", list, err)
		}
	}},

	{"points have what they were made with, and can be read by everybody", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, _ := m.trio("t")
		first := m.point(`a "label" it's`)
		if first != 1 {
			t.Errorf("the first point has number %d", first)
		}
		for range 2 {
			for k := range 200 {
				m.sets(strings.Repeat("x", 100), 1, k, a)
			}
		}
		mark := m.mark()
		mark.Position = change.Position{}
		mark.Tables = []checkpoint.Table{m.done(a, checkpoint.Live), m.done(b, checkpoint.Parked)}
		if err := m.w.Save(m.ctx, mark); err != nil {
			t.Fatal(err)
		}
		second := m.point("")
		m.sets("y", 1, 1, a)
		third := m.point(`a "label" it's`)
		r := m.rewinds()
		if h.Has().Depose {
			other := h.Open(t)
			defer other.Close(t.Context())
			r = other.(sink.Rewinds)
		}
		for range 2 {
			list, err := r.Points(m.ctx)
			if err != nil || len(list) != 3 || list[0].Number != first || list[1].Number != second || list[2].Number != third {
				t.Fatalf("points %+v, %v", list, err)
			}
			if list[0].Label != `a "label" it's` || list[1].Label != "" || list[2].Label != list[0].Label {
				t.Fatalf("labels of %+v", list)
			}
			for _, p := range list {
				if markText(p.Mark) != m.at[p.Number].mark || p.Gone || time.Since(p.Made).Abs() > time.Hour {
					t.Fatalf("point %+v, want the mark %s", p, m.at[p.Number].mark)
				}
			}
			if list[0].Bytes < 200*20 || list[0].Bytes > 100<<20 {
				t.Fatalf("of 200 rows %d bytes are kept", list[0].Bytes)
			}
			u, err := r.Undo(m.ctx, first)
			if err != nil || len(u) != 1 || u[0] != (sink.Undo{Target: a.Name, Rows: 200}) {
				t.Fatalf("Undo: %+v, %v", u, err)
			}
			m.reopen()
			if !h.Has().Depose {
				r = m.rewinds()
			}
		}
	}},

	{"Undo counts what a rewind touches", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		m := beginTimes(t, h)
		a, c := people(h, f), staff(h, f)
		log := makeTarget(h, "log_"+f.String(), scd.Type1, "a text")
		m.watch(a, c, log)
		m.load(a, f, false, cells{1, "a", 1}, cells{2, "b", 2}, cells{3, "c", 3})
		m.load(c, f, false, cells{1, "a", nil, 1000}, cells{2, "b", nil, 1000})
		m.load(log, f, false, cells{"x"}, cells{"x"})
		first := m.point("")
		expect := func(to int64, rows ...int64) {
			t.Helper()
			for i, tt := range m.targets {
				got := m.undo(to, tt)
				if more := got.Rows - rows[i]; more < 0 || more > 0 && (tt.Kind != scd.Type2 || rows[i] == 0) || got.Barrier != "" || (rows[i] > 0) != (got.Target == tt.Name) {
					t.Fatalf("Undo to %d of %s: %+v, want %d rows", to, tt.Name, got, rows[i])
				}
			}
		}
		expect(first, 0, 0, 0)
		m.apply(a, f, round{upserts: []cells{{1, "x", 1}}, deletes: []cells{{2}}, inserts: []cells{{9, "n", nil}}})
		m.apply(log, f, round{inserts: []cells{{"x"}, {"y"}}})
		expect(first, 3, 0, 2)
		second := m.point("")
		expect(second, 0, 0, 0)
		m.apply(a, f, round{upserts: []cells{{1, "x", 2}}, patches: []cells{{3, absent{}, nil}}})
		m.apply(c, f, round{steps: []step{{key: cells{2}, lo: 2000, row: cells{2, "c", nil}}}})
		m.apply(log, f, round{inserts: []cells{{"x"}}})
		expect(second, 2, 1, 1)
		expect(first, 4, 1, 3)
		m.rewind(second)
		expect(second, 0, 0, 0)
		expect(first, 3, 0, 2)
		m.rewind(first)
		expect(first, 0, 0, 0)
	})},

	{"a subset goes back, and the rest later", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, c := m.trio("t")
		m.sets("0", 1000, 1, a, b, c)
		one := m.point("")
		m.sets("1", 2000, 1, a, b, c)
		two := m.point("")
		m.sets("2", 3000, 1, a, b, c)
		m.sets("2", 3000, 2, a, b, c)
		m.point("")
		m.sets("3", 4000, 1, a, b, c)
		m.sets("3", 4000, 3, b)
		m.rewind(two, a)
		m.sets("4", 5000, 1, a, c) // b keeps nothing of it
		m.sets("4", 5000, 4, a, b)
		m.reopen()
		m.rewind(two, b)
		m.rewind(two, a, c)
		m.sets("5", 6000, 1, a, b, c)
		m.rewind(one, c)
		m.sets("6", 7000, 1, a, b, c)
		m.point("")
		m.sets("7", 8000, 1, a, b, c)
		m.sets("7", 8000, 9, a, b, c)
		m.rewind(one, a)
		m.rewind(one)
	}},

	{"points that are gone are no choice, and numbers go on", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, _, _ := m.trio("t")
		one := m.point("")
		m.sets("1", 1000, 1, a)
		two := m.point("")
		m.sets("2", 1000, 1, a)
		m.rewind(one)
		m.refuses(two, "", fault.Unknown, a)
		m.refuses(two+7, "", fault.Unknown, a)
		m.sets("3", 1000, 1, a)
		three := m.point("")
		if three <= two {
			t.Fatalf("point %d comes after point %d", three, two)
		}
		m.sets("4", 1000, 1, a)
		m.rewind(three)
		m.rewind(one)
	}},

	{"old points are dropped, and with the last everything that is kept", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, c := m.trio("t")
		d := diary(h)
		m.watch(d)
		log := makeTarget(h, "log", scd.Type1, "a text")
		m.watch(log)
		tables := m.bookTables()
		change := func(n int) {
			m.sets(fmt.Sprint(n), int64(n*1000), n%2, a, b, c)
			m.write(d.hidden(sequenced.Work{Put: []sequenced.Record{d.record(cells{n, "x"}, "1", "p", "b")}, HeadChanged: true, Head: sequenced.Head{Horizon: []byte{byte(n)}}, Counts: sequenced.Counts{Late: 1}}),
				log.part(text, round{inserts: []cells{{fmt.Sprint(n)}}}))
		}
		drop := func(below int64) {
			t.Helper()
			before := m.look()
			if err := m.rewinds().DropPoints(m.ctx, below); err != nil {
				t.Fatalf("DropPoints: %v", err)
			}
			m.compare("after points were dropped", before)
			for n := range m.at {
				if n < below {
					delete(m.at, n)
				}
			}
			for _, p := range m.points() {
				if p.Number < below {
					t.Fatalf("point %d is still there", p.Number)
				}
			}
		}
		change(1)
		one := m.point("")
		change(2)
		two := m.point("")
		change(3)
		three := m.point("")
		change(4)
		drop(one) // nothing
		m.refuses(one-1, "", fault.Unknown, a)
		drop(two)
		m.refuses(one, "", fault.Unknown, a)
		change(5)
		m.rewind(three)
		change(6)
		m.rewind(two, a, d)
		drop(three) // leaves one that is gone
		change(7)
		drop(three + 100)
		if list := m.points(); len(list) > 0 {
			t.Fatalf("points %+v are left", list)
		}
		if got := m.bookTables(); !slices.Equal(got, tables) {
			t.Fatalf("the bookkeeping's tables are\n  %s\nwere\n  %s", strings.Join(got, "\n  "), strings.Join(tables, "\n  "))
		}
		change(8)
		if got := m.bookTables(); !slices.Equal(got, tables) {
			t.Fatalf("without points a batch has made tables:\n  %s", strings.Join(got, "\n  "))
		}
		drop(three + 100)
		m.reopen()
		four := m.point("")
		if four <= three {
			t.Fatalf("point %d comes after point %d", four, three)
		}
		change(9)
		m.rewind(four)
	}},

	{"a batch that fails keeps nothing", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, _ := m.trio("t")
		d := diary(h)
		m.watch(d)
		m.sets("0", 1000, 1, a, b)
		one := m.point("")
		tables := m.bookTables()
		for _, pieces := range []bool{false, true} {
			batch := m.batch(a.part(text, round{upserts: []cells{{1, "x"}}}), d.hidden(sequenced.Work{Put: []sequenced.Record{d.record(cells{1, "x"}, "1", "p", "b")}}, scd.Round{Upserts: []change.Row{d.row(text, cells{1, "x", 1})}}))
			batch.Files = []change.File{{Relation: pointRelations[0], Path: "f", Modified: time.Unix(1, 0)}}
			bad := b.part(text, round{patches: []cells{{77, absent{}}}})
			bad.Rounds[0].Patches = []change.Row{b.row(text, cells{77, absent{}})}
			if pieces {
				batch.More = true
				if err := m.w.Apply(m.ctx, batch); err != nil {
					t.Fatalf("Apply: %v", err)
				}
				batch = m.batch(bad)
				batch.First = false
			} else {
				batch.Targets = append(batch.Targets, bad)
			}
			if err := m.w.Apply(m.ctx, batch); fault.KindOf(err) != fault.Corrupt {
				t.Fatalf("Apply: %v, want corrupt", err)
			}
			m.reopen()
			if u := m.undo(one, a); u.Rows != 0 {
				t.Fatalf("of a batch that failed %+v is kept", u)
			}
		}
		m.sets("1", 2000, 1, a)
		m.sets("1", 2000, 5, b)
		m.rewind(one)
		if err := m.rewinds().DropPoints(m.ctx, one+1); err != nil {
			t.Fatal(err)
		}
		if got := m.bookTables(); !slices.Equal(got, tables) {
			t.Fatalf("the bookkeeping's tables are %q, were %q", got, tables)
		}
	}},

	{"a crash between pieces leaves what was kept before", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, _, c := m.trio("t")
		m.sets("0", 1000, 1, a, c)
		one := m.point("")
		m.sets("1", 2000, 1, a, c)
		b := m.batch(a.part(text, round{truncate: true, inserts: []cells{{2, "p"}}}), c.part(text, round{truncate: true, truncateAt: 3000}))
		b.More = true
		if err := m.w.Apply(m.ctx, b); err != nil {
			t.Fatal(err)
		}
		m.reopen()
		m.sets("2", 4000, 2, a, c)
		m.rewind(one)
	}},

	{"the layout of today is what comes back", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, _, c := m.trio("t")
		m.sets("0", 1000, 1, a, c)
		m.sets("0", 1000, 2, a, c)
		log := makeTarget(h, "log", scd.Type1, "a text")
		m.watch(log)
		m.apply(log, text, round{inserts: []cells{{"x"}, {"x"}}})
		one := m.point("")
		m.sets("1", 2000, 1, a, c)
		m.apply(log, text, round{inserts: []cells{{"x"}}})
		wider := func(t target, columns ...string) target {
			w := makeTarget(m.h, t.Name.Table, t.Kind, columns...)
			return m.create(w)
		}
		a2, c2, log2 := wider(a, "id int4 key", "a text", "b int8"), wider(c, "id int4 key", "a text", "b int8"), wider(log, "a text", "b int8")
		m.apply(a2, text, round{upserts: []cells{{1, "2", 2}, {2, "2", 2}}, inserts: []cells{{3, "n", 3}}})
		m.apply(c2, text, round{steps: []step{{key: cells{1}, lo: 3000, row: cells{1, "2", 2}}, {key: cells{2}, lo: 3000, row: cells{2, "2", 2}}}})
		m.apply(log2, text, round{inserts: []cells{{"x", 1}, {"y", nil}}})
		m.targets = []target{a2, c2, log2}
		two := m.point("")
		m.apply(a2, text, round{upserts: []cells{{1, "3", 3}}, deletes: []cells{{3}}})
		m.apply(log2, text, round{truncate: true, inserts: []cells{{"z", 1}}})
		m.rewind(two)
		if err := m.rewinds().Rewind(m.ctx, m.rewound(one, m.targets)); err != nil {
			t.Fatalf("Rewind: %v", err)
		}
		m.mustBeGone(one)
		m.expect(a2, "1|0|NULL", "2|0|NULL")
		m.expect(c2, "1|0|NULL|1000|NULL", "2|0|NULL|1000|NULL")
		m.expect(log2, "x|NULL", "x|NULL")
	}},

	{"relations that are not named keep their files", nil, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, _, _ := m.trio("t")
		one := m.point("")
		b := m.batch(a.part(text, round{upserts: []cells{{1, "x"}}}))
		for _, rel := range pointRelations {
			b.Files = append(b.Files, change.File{Relation: rel, Path: "f", Size: 1, Modified: time.Unix(1, 0), Checksum: "c"})
		}
		if err := m.w.Apply(m.ctx, b); err != nil {
			t.Fatal(err)
		}
		for n := range pointRelations {
			r := m.rewound(one, []target{a})
			r.Relations = pointRelations[n : n+1]
			if err := m.rewinds().Rewind(m.ctx, r); err != nil {
				t.Fatalf("Rewind: %v", err)
			}
			files, err := m.memory().Files(m.ctx)
			if err != nil || len(files) != len(pointRelations)-n-1 {
				t.Fatalf("files %+v, %v", files, err)
			}
		}
	}},

	{"a deposed owner makes no point and rewinds nothing", deposes, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, c := m.trio("t")
		m.sets("0", 1000, 1, a, b, c)
		one := m.point("")
		m.sets("1", 2000, 1, a, b, c)
		shadow := m.create(makeTarget(h, "shadow", scd.Type1, "id int4 key", "a text"))
		back := m.rewound(one, m.targets)
		h.Expire(t)
		next := &times{rig: begin(t, h), targets: m.targets, at: m.at}
		before, points := next.look(), fmt.Sprint(next.points())
		_, pointErr := m.rewinds().Point(m.ctx, "late")
		_, recallErr := m.rewinds().Recall(m.ctx, shadow.Target, sink.Past{Pipeline: "nobody's", Point: one, Target: a.Target}, m.done(shadow, checkpoint.Live))
		for _, act := range []struct {
			name string
			err  error
		}{
			{"Point", pointErr},
			{"DropPoints", m.rewinds().DropPoints(m.ctx, one+1)},
			{"Rewind", m.rewinds().Rewind(m.ctx, back)},
			{"Recall", recallErr},
		} {
			if !errors.Is(act.err, fault.ErrFenced) {
				t.Errorf("%s of the deposed owner: %v, want ErrFenced", act.name, act.err)
			}
		}
		next.compare("after what the deposed owner has tried", before)
		if after := fmt.Sprint(next.points()); after != points {
			t.Fatalf("the points are %s, were %s", after, points)
		}
		next.pos = m.pos
		next.sets("2", 3000, 2, a, b, c)
		next.rewind(one)
	}},

	{"pipelines keep what is theirs", deposes, func(t *testing.T, h Harness) {
		m := beginTimes(t, h)
		a, b, c := m.trio("t")
		m.sets("0", 1000, 1, a, b, c)
		one := m.point("")
		n := &times{rig: &rig{t: t, h: named{h.(PointHarness), "another"}, ctx: t.Context()}, at: map[int64]moment{}}
		n.open()
		n.start()
		x, y, z := n.trio("u")
		if list := n.points(); len(list) > 0 {
			t.Fatalf("another pipeline has points %+v", list)
		}
		first := n.point("")
		if first != 1 {
			t.Errorf("its first point has number %d", first)
		}
		for i := range 3 {
			n.sets(fmt.Sprint(i), int64(i)*1000, i, x, y, z)
			m.sets(fmt.Sprint(i), int64(i)*1000, i, a, b, c)
		}
		n.rewind(first)
		if err := n.w.Teardown(n.ctx); err != nil {
			t.Fatalf("Teardown: %v", err)
		}
		m.rewind(one)
		m.sets("9", 9000, 1, a, b, c)
		if err := m.w.Teardown(m.ctx); err != nil {
			t.Fatalf("Teardown: %v", err)
		}
		if left := m.bookTables(); len(left) > 0 {
			t.Fatalf("after the teardown there is %q", left)
		}
	}},
}

// named is a destination as a pipeline of another name sees it.
type named struct {
	PointHarness
	pipeline string
}

func (n named) Open(t testing.TB) sink.Writer { return n.OpenAs(t, n.pipeline) }
