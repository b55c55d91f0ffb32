package sinktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// PointHarness is the Harness of a destination that keeps rewind points.
type PointHarness interface {
	Harness
	// OpenAs is Open for a pipeline of another name on this destination. The suite closes
	// one pipeline's Writer before it opens the other's where Has().Depose is false.
	OpenAs(t testing.TB, pipeline string) sink.Writer
}

// RunPoints tests a destination against the contract of sink.Rewinds. open is called once
// for each test. What stands after a rewind is compared with a copy of everything that
// stood there when the point was made: rows, what is remembered, files, quarantine,
// violations and the mark.
func RunPoints(t *testing.T, open func(t testing.TB) PointHarness) {
	has := open(t).Has()
	run := func(t *testing.T, tests []test, wrap func(PointHarness) Harness) {
		for _, test := range tests {
			if test.needs == nil || test.needs(has) {
				t.Run(test.name, func(t *testing.T) { test.run(t, wrap(open(t))) })
			}
		}
	}
	plain := func(h PointHarness) Harness { return h }
	t.Run("stories", func(t *testing.T) { run(t, storyTests, plain) })
	t.Run("points", func(t *testing.T) { run(t, pointTests, plain) })
	t.Run("barriers", func(t *testing.T) { run(t, barrierTests, plain) })
	t.Run("recall", func(t *testing.T) { run(t, recallTests, plain) })
	t.Run("random", func(t *testing.T) { run(t, randomPointTests, plain) })
	// Of targets with a change feed the random one, which has targets of every kind: the
	// stories take minutes on a server that makes tables slowly.
	t.Run("with a change feed", func(t *testing.T) {
		run(t, randomPointTests, func(h PointHarness) Harness { return fed{h} })
	})
}

// times is a pipeline whose destination is looked at when its points are made.
type times struct {
	*rig
	targets []target
	at      map[int64]moment // by the number of the point
}

// moment is everything that stands in a destination, as text.
type moment struct {
	targets map[change.Name]string // rows, and what is remembered
	kept    map[change.Name]string // by target or relation: quarantine, violations, files
	mark    string
}

// pointRelations are the relations of files that the suite's batches take.
var pointRelations = []change.Name{{Schema: "landing", Table: "one"}, {Schema: "landing", Table: "two"}}

// beginTimes owns a pipeline that has a mark.
func beginTimes(t testing.TB, h Harness) *times {
	t.Helper()
	m := &times{rig: begin(t, h), at: map[int64]moment{}}
	m.start()
	return m
}

func (m *times) start() {
	m.t.Helper()
	m.pos += 16
	err := m.w.Save(m.ctx, checkpoint.Mark{Phase: checkpoint.Live, Slot: "slot", Source: checkpoint.Identity{System: "7", Timeline: 1, Database: "d"},
		Position: change.LSN(m.pos), Resume: "log.000001 4", CommitTime: time.UnixMicro(1_700_000_000_000_001).UTC()})
	if err != nil {
		m.t.Fatalf("Save: %v", err)
	}
}

// rewinds is the Writer's part that this is about.
func (r *rig) rewinds() sink.Rewinds {
	r.t.Helper()
	w, ok := r.w.(sink.Rewinds)
	if !ok {
		r.t.Fatalf("%T is no sink.Rewinds", r.w)
	}
	return w
}

// watch makes targets whose states are compared.
func (m *times) watch(list ...target) {
	m.t.Helper()
	for _, t := range list {
		m.create(t)
		m.targets = append(m.targets, t)
	}
}

// look copies everything that stands in the destination.
func (m *times) look() moment {
	m.t.Helper()
	now := moment{targets: map[change.Name]string{}, kept: map[change.Name]string{}}
	for _, t := range m.targets {
		now.targets[t.Name] = m.of(t)
	}
	files, err := m.memory().Files(m.ctx)
	if err != nil {
		m.t.Fatalf("Files: %v", err)
	}
	byName := map[change.Name][]string{}
	for _, f := range files {
		byName[f.Relation] = append(byName[f.Relation], fmt.Sprintf("file %q size %d modified %d checksum %q rows %d", f.Path, f.Size, f.Modified.UnixNano(), f.Checksum, f.Rows))
	}
	err = m.memory().Quarantine(m.ctx, "", func(a sink.Aside) error {
		byName[a.Target] = append(byName[a.Target], fmt.Sprintf("aside %d of %q, %q at %q %x, time %d: %s", a.ID, a.Flow, a.Reason, a.Position, a.At, a.Time.UnixMicro(), a.Event))
		return nil
	})
	if err != nil {
		m.t.Fatalf("Quarantine: %v", err)
	}
	violations, err := m.memory().Violations(m.ctx)
	if err != nil {
		m.t.Fatalf("Violations: %v", err)
	}
	for _, v := range violations {
		byName[v.Target] = append(byName[v.Target], fmt.Sprintf("violation of %q of %q, %q: %d", v.Expectation, v.Flow, v.Met, v.Events))
	}
	for n, list := range byName {
		slices.Sort(list)
		now.kept[n] = strings.Join(list, "\n  ")
	}
	now.mark = markText(m.mark())
	return now
}

// markText is a mark without its epoch.
func markText(k checkpoint.Mark) string {
	k.Epoch = 0
	k.CommitTime = k.CommitTime.UTC()
	tables, flows := k.Tables, k.Flows
	k.Tables, k.Flows = nil, nil
	list := []string{fmt.Sprintf("%+v", k)}
	for _, t := range tables {
		list = append(list, fmt.Sprintf("table %+v", t))
	}
	for _, f := range flows {
		list = append(list, fmt.Sprintf("flow %+v", f))
	}
	slices.Sort(list[1:])
	return strings.Join(list, "\n  ")
}

// of is what stands in a target and what is remembered of it.
func (m *times) of(t target) string {
	m.t.Helper()
	if t.ChangeFeed {
		m.contents(t) // plays the feed back
	}
	var list []string
	err := m.w.Show(m.ctx, sink.ShowQuery{Target: t.Target}, func(row []*string) error {
		var b strings.Builder
		for _, c := range row {
			if c == nil {
				b.WriteString("NULL|")
			} else {
				fmt.Fprintf(&b, "%q|", *c)
			}
		}
		list = append(list, b.String())
		return nil
	})
	if err != nil {
		m.t.Fatalf("Show %s: %v", t.Name, err)
	}
	slices.Sort(list[1:])
	if !t.Sequenced {
		return strings.Join(list, "\n  ")
	}
	var records []sequenced.Record
	keep := func(rec sequenced.Record) error {
		records = append(records, sequenced.Record{Key: slices.Clone(rec.Key), Seq: slices.Clone(rec.Seq), At: slices.Clone(rec.At), Body: slices.Clone(rec.Body), Tombstone: rec.Tombstone, Time: rec.Time})
		return nil
	}
	if err := m.memory().Records(m.ctx, t.Target, keep); err != nil {
		m.t.Fatalf("Records of %s: %v", t.Name, err)
	}
	about := sequenced.Lookup{Key: []byte{}}
	if t.Kind == scd.Type2 {
		about.Seq = []byte{}
	}
	if err := m.memory().Remembered(m.ctx, t.Target, []sequenced.Lookup{about}, keep); err != nil {
		m.t.Fatalf("Remembered of %s: %v", t.Name, err)
	}
	slices.SortFunc(records, compareRecords)
	for _, rec := range records {
		list = append(list, fmt.Sprintf("record %x %x %x %x %v %d", rec.Key, rec.Seq, rec.At, rec.Body, rec.Tombstone, rec.Time))
	}
	counts, err := m.memory().Counted(m.ctx, t.Target)
	if err != nil {
		m.t.Fatalf("Counted of %s: %v", t.Name, err)
	}
	head := m.head(t)
	list = append(list, fmt.Sprintf("head %x %x %x, counts %+v", head.Truncated.Seq, head.Truncated.At, head.Horizon, counts))
	return strings.Join(list, "\n  ")
}

// point makes a point and looks at what is there.
func (m *times) point(label string) int64 {
	m.t.Helper()
	now := m.look()
	p, err := m.rewinds().Point(m.ctx, label)
	if err != nil {
		m.t.Fatalf("Point: %v", err)
	}
	for n := range m.at {
		if n >= p.Number {
			m.t.Fatalf("point %d comes after point %d", p.Number, n)
		}
	}
	if p.Label != label || p.Gone || p.Made.IsZero() || markText(p.Mark) != now.mark {
		m.t.Fatalf("the point is %+v, of the mark\n  %s", p, now.mark)
	}
	m.at[p.Number] = now
	return p.Number
}

func (m *times) points() []checkpoint.Point {
	m.t.Helper()
	list, err := m.rewinds().Points(m.ctx)
	if err != nil {
		m.t.Fatalf("Points: %v", err)
	}
	for i := range list {
		if i > 0 && list[i-1].Number >= list[i].Number {
			m.t.Fatalf("points %d and %d are not in order", list[i-1].Number, list[i].Number)
		}
		at, ok := m.at[list[i].Number]
		if ok && markText(list[i].Mark) != at.mark {
			m.t.Fatalf("the mark of point %d is\n  %s\nwas\n  %s", list[i].Number, markText(list[i].Mark), at.mark)
		}
	}
	return list
}

// rewound is what rewind asks for.
func (m *times) rewound(to int64, list []target) sink.Rewind {
	m.t.Helper()
	r := sink.Rewind{To: to, Relations: pointRelations}
	for _, t := range list {
		r.Targets = append(r.Targets, t.Target)
	}
	for _, p := range m.points() {
		if p.Number == to {
			r.Mark = p.Mark
		}
	}
	// What was not there yet is to be forgotten, as by Save.
	now := m.mark()
	for _, t := range now.Tables {
		if !slices.ContainsFunc(r.Mark.Tables, func(o checkpoint.Table) bool { return o.Target == t.Target }) {
			r.Mark.Tables = append(r.Mark.Tables, checkpoint.Table{Target: t.Target})
		}
	}
	for _, f := range now.Flows {
		if !slices.ContainsFunc(r.Mark.Flows, func(o checkpoint.Flow) bool { return o.Target == f.Target && o.Name == f.Name }) {
			r.Mark.Flows = append(r.Mark.Flows, checkpoint.Flow{Target: f.Target, Name: f.Name})
		}
	}
	return r
}

// rewind goes back to a point with some targets, or all, and compares everything.
func (m *times) rewind(to int64, some ...target) {
	m.t.Helper()
	list := some
	if len(list) == 0 {
		list = m.targets
	}
	before := m.look()
	if err := m.rewinds().Rewind(m.ctx, m.rewound(to, list)); err != nil {
		m.t.Fatalf("Rewind to point %d: %v", to, err)
	}
	want := m.at[to]
	names := slices.Clone(pointRelations)
	for _, t := range list {
		names = append(names, t.Name)
	}
	for _, t := range m.targets {
		if !slices.Contains(names, t.Name) {
			want = want.with(before, t.Name)
		}
	}
	m.compare(fmt.Sprintf("after the rewind to point %d", to), want)
	m.mustBeGone(to)
	if d, err := m.w.Durable(m.ctx); err != nil || m.mark().Position.Before(d) {
		m.t.Fatalf("the durable position is %s, %v; the mark is at %s", d, err, m.mark().Position)
	}
}

// with is a moment with a target as it is in another.
func (a moment) with(b moment, n change.Name) moment {
	c := moment{targets: map[change.Name]string{}, kept: map[change.Name]string{}, mark: a.mark}
	for k, v := range a.targets {
		c.targets[k] = v
	}
	for k, v := range a.kept {
		c.kept[k] = v
	}
	c.targets[n], c.kept[n] = b.targets[n], b.kept[n]
	return c
}

// compare demands that a moment stands in the destination.
func (m *times) compare(when string, want moment) {
	m.t.Helper()
	got := m.look()
	differ := func(what, got, want string) {
		m.t.Helper()
		if got != want {
			m.t.Fatalf("%s %s is\n  %s\nwant\n  %s", when, what, got, want)
		}
	}
	m.same(when, got, want)
	differ("the mark", got.mark, want.mark)
}

// same compares moments but for their marks.
func (m *times) same(when string, got, want moment) {
	m.t.Helper()
	for _, t := range m.targets {
		if got.targets[t.Name] != want.targets[t.Name] {
			m.t.Fatalf("%s target %s is\n  %s\nwant\n  %s", when, t.Name, got.targets[t.Name], want.targets[t.Name])
		}
	}
	for _, names := range []map[change.Name]string{got.kept, want.kept} {
		for n := range names {
			if got.kept[n] != want.kept[n] {
				m.t.Fatalf("%s what is kept beside %s is\n  %s\nwant\n  %s", when, n, got.kept[n], want.kept[n])
			}
		}
	}
}

// mustBeGone demands that the points behind a number are Gone, and no others.
func (m *times) mustBeGone(behind int64) {
	m.t.Helper()
	for _, p := range m.points() {
		if p.Number <= behind && p.Gone && m.there(p.Number) || p.Number > behind && !p.Gone {
			m.t.Fatalf("after a rewind to point %d point %d is %+v", behind, p.Number, p)
		}
	}
	for n := range m.at {
		if n > behind {
			delete(m.at, n)
		}
	}
}

// there reports whether a point is a choice, as far as the suite knows.
func (m *times) there(number int64) bool {
	_, ok := m.at[number]
	return ok
}

// undo gives what Undo says of a target; the zero Undo where it says nothing.
func (m *times) undo(to int64, t target) sink.Undo {
	m.t.Helper()
	list, err := m.rewinds().Undo(m.ctx, to)
	if err != nil {
		m.t.Fatalf("Undo: %v", err)
	}
	var out sink.Undo
	for _, u := range list {
		if u.Target == t.Name {
			if out.Target == t.Name {
				m.t.Fatalf("Undo names %s twice", t.Name)
			}
			out = u
		}
	}
	return out
}

// tell runs chapters with a point before each, then rewinds to the newest point, to one in
// the middle twice, to the oldest, each time to go on again to the same end, and back to the
// beginning.
func (m *times) tell(chapters ...func()) {
	m.t.Helper()
	numbers := make([]int64, len(chapters))
	told := make([]moment, len(chapters))
	begin := m.look()
	run := func(from int, again bool) moment {
		m.t.Helper()
		for i := from; i < len(chapters); i++ {
			if i > from || !again {
				numbers[i] = m.point(fmt.Sprintf("chapter %d", i))
			}
			if now := m.at[numbers[i]]; !again {
				told[i] = now
			} else {
				m.same(fmt.Sprintf("before chapter %d, told again,", i), now, told[i])
			}
			chapters[i]()
		}
		return m.look()
	}
	end := run(0, false)
	for n, i := range []int{len(chapters) - 1, len(chapters) / 2, 0} {
		m.rewind(numbers[i])
		if n == 1 {
			m.rewind(numbers[i]) // at once, to the same
			m.reopen()
		}
		m.same(fmt.Sprintf("at the end, told again from chapter %d,", i), run(i, true), end)
	}
	m.rewind(numbers[0])
	m.same("in the end", m.look(), begin)
}

// batches is a chapter of one batch for each list of rounds.
func (m *times) batches(t target, f form, lists ...[]round) func() {
	return func() {
		m.t.Helper()
		for _, rounds := range lists {
			m.apply(t, f, rounds...)
		}
	}
}
