package sinktest

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/scd"
	"tailrace/sink"
)

// fed is a destination on which every target has a change feed.
type fed struct{ Harness }

// fewer is how often a random test does something: with a feed a third as often, because
// every look at a target plays its feed back from the beginning.
func fewer(h Harness, n int) int {
	if _, feeds := h.(fed); feeds {
		return n / 3
	}
	return n
}

// feedOf names a target's feed.
func (r *rig) feedOf(t target) string {
	usual := "" // what a name without a schema means is fixed where servers have schemas
	if s := r.h.Schema(); s == "public" || s == "main" {
		usual = s
	}
	return quote("_tailrace") + "." + quote(sink.FeedName(t.Name, usual))
}

// changes reads a target's feed as lines "insert|1|a", in order.
func (r *rig) changes(t target) []string {
	r.t.Helper()
	rows := r.h.Query(r.t, "SELECT "+strings.Join(append([]string{quote(sink.FeedType)}, r.columns(t)...), ", ")+" FROM "+r.feedOf(t)+" ORDER BY "+quote(sink.FeedID))
	var out []string
	for _, row := range rows {
		out = append(out, lines([][]*string{row})...)
	}
	return out
}

// trimmed removes the old changes of a target's feed.
func trimmed(r *rig, t target) error {
	_, err := r.w.(sink.Feeds).TrimFeed(r.ctx, t.Target)
	return err
}

// replays plays a target's feed back: each change must meet what it says was there, and
// what is left must be the target's rows.
func (r *rig) replays(t target, want []string) {
	r.t.Helper()
	key := t.Keys()
	if t.Kind == scd.Type2 {
		key = append(key, len(t.Columns))
	}
	identity := func(line string) string {
		if t.AppendOnly {
			return line
		}
		cells := strings.Split(line, "|")
		var id []string
		for _, k := range key {
			id = append(id, cells[k])
		}
		return strings.Join(id, "|")
	}
	held := map[string][]string{}
	before := ""
	changes := r.changes(t)
	for i, change := range changes {
		kind, line, _ := strings.Cut(change, "|")
		id := identity(line)
		there := held[id]
		bad := func(why string) {
			r.t.Helper()
			r.t.Fatalf("change %d of %s, %q: %s; there is %q; the feed is\n  %s", i+1, t.Name, change, why, there, strings.Join(changes, "\n  "))
		}
		if (kind == sink.FeedAfter) != (before != "") {
			bad("pre- and post-image are no neighbours")
		}
		switch kind {
		case sink.FeedInsert:
			if len(there) > 0 && !t.AppendOnly {
				bad("its row is there already")
			}
			held[id] = append(there, line)
		case sink.FeedDelete, sink.FeedBefore:
			if !slices.Contains(there, line) {
				bad("its row is not there")
			}
			held[id] = there[1:]
			if kind == sink.FeedBefore {
				before = line
			}
		case sink.FeedAfter:
			if identity(before) != id || before == line {
				bad("it is no change of the row before")
			}
			held[id], before = []string{line}, ""
		default:
			bad("no such kind")
		}
	}
	got := []string{}
	for _, there := range held {
		got = append(got, there...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Fatalf("the feed of %s gives\n  %s\nwhere there is\n  %s\nThe feed is\n  %s", t.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "), strings.Join(changes, "\n  "))
	}
}

// changed demands what has been written to a target's feed since it had before changes.
func (r *rig) changed(t target, before int, want ...string) {
	r.t.Helper()
	got := r.changes(t)[before:]
	byUpdates := slices.Clone(got) // the order of rows is the destination's
	slices.Sort(byUpdates)
	slices.Sort(want)
	if !slices.Equal(byUpdates, want) {
		r.t.Fatalf("the feed of %s has got\n  %s\nwant\n  %s", t.Name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	r.contents(t)
}

var feedTests = []test{
	{"a feed says what differs, and nothing else", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2}, cells{3, "c", nil})
		r.changed(tt, 0, "insert|1|a|1", "insert|2|b|2", "insert|3|c|NULL")
		r.apply(tt, f, round{upserts: []cells{{1, "a", 1}, {2, "B", 2}}, patches: []cells{{3, absent{}, nil}}, inserts: []cells{{4, "d", 4}}})
		r.changed(tt, 3, "update_preimage|2|b|2", "update_postimage|2|B|2", "insert|4|d|4")
		r.apply(tt, f, round{deletes: []cells{{1}}, moves: []move{{cells{2}, cells{5, absent{}, 5}}}}, round{upserts: []cells{{4, "D", 4}}}, round{upserts: []cells{{4, "d", 4}}})
		r.changed(tt, 6, "delete|1|a|1", "delete|2|B|2", "insert|5|B|5")
		r.apply(tt, f, round{truncate: true, inserts: []cells{{3, "c", nil}, {5, "B", 6}}})
		r.changed(tt, 9, "delete|4|d|4", "update_preimage|5|B|5", "update_postimage|5|B|6")
		r.apply(tt, f, round{deletes: []cells{{99}}})
		r.changed(tt, 12)
		r.load(tt, f, true, cells{3, "c", 3}, cells{6, "f", nil})
		r.changed(tt, 12, "delete|5|B|6", "update_preimage|3|c|NULL", "update_postimage|3|c|3", "insert|6|f|NULL")
	})},

	{"a feed has the batch's position and time, and grows", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(people(h, text))
		b := r.batch(tt.part(text, round{inserts: []cells{{1, "a", 1}}}))
		if err := r.w.Apply(r.ctx, b); err != nil {
			t.Fatal(err)
		}
		rows := r.h.Query(t, "SELECT "+quote(sink.FeedMark)+", "+r.h.Micros(quote(sink.FeedCommitTime))+" FROM "+r.feedOf(tt))
		if got, want := lines(rows), b.Position.String()+"|"+strconv.FormatInt(b.CommitTime.UnixMicro(), 10); len(got) != 1 || got[0] != want {
			t.Fatalf("the change is of %q, want %q", got, want)
		}
		r.reopen()
		r.apply(tt, text, round{upserts: []cells{{1, "b", 1}}})
		r.apply(tt, text, round{deletes: []cells{{1}}})
		r.changed(tt, 0, "insert|1|a|1", "update_preimage|1|a|1", "update_postimage|1|b|1", "delete|1|b|1")
	}},

	{"a feed of pieces is of the whole transaction", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(people(h, f))
		r.load(tt, f, false, cells{1, "a", 1}, cells{2, "b", 2})
		r.pieces(tt, f,
			round{upserts: []cells{{1, "x", 1}, {3, "c", 3}}},
			round{upserts: []cells{{1, "y", 1}}, deletes: []cells{{3}}},
			round{truncate: true, inserts: []cells{{1, "y", 2}}},
			round{inserts: []cells{{4, "d", 4}}})
		r.changed(tt, 2, "update_preimage|1|a|1", "update_postimage|1|y|2", "delete|2|b|2", "insert|4|d|4")
	})},

	{"a feed of what has no key has what comes and what goes", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "log_"+f.String(), scd.Type1, "a text", "n int8"))
		r.load(tt, f, false, cells{"a", 1}, cells{"a", 1})
		r.apply(tt, f, round{inserts: []cells{{"b", nil}, {"a", 1}}})
		r.changed(tt, 0, "insert|a|1", "insert|a|1", "insert|b|NULL", "insert|a|1")
		r.pieces(tt, f, round{inserts: []cells{{"c", 3}}}, round{truncate: true, inserts: []cells{{"d", 4}}})
		r.changed(tt, 4, "insert|c|3", "delete|a|1", "delete|a|1", "delete|a|1", "delete|b|NULL", "delete|c|3", "insert|d|4")
		r.load(tt, f, true, cells{"d", 4})
		r.changed(tt, 11, "delete|d|4", "insert|d|4")
	})},

	{"a feed follows the target's columns", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "wider", scd.Type1, "id int4 key", "a text"))
		r.apply(tt, text, round{inserts: []cells{{1, "a"}}})
		wider := r.create(makeTarget(h, "wider", scd.Type1, "id int4 key", "a text", "b int8"))
		r.apply(wider, text, round{upserts: []cells{{1, "a", 7}}})
		r.changed(wider, 0, "insert|1|a|NULL", "update_preimage|1|a|NULL", "update_postimage|1|a|7")
	}},

	{"a feed is switched on later and begins there", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := makeTarget(h, "later", scd.Type1, "id int4 key", "a text")
		tt.ChangeFeed = false
		r.create(tt)
		r.apply(tt, text, round{inserts: []cells{{1, "a"}}})
		on := target{new(scd.Target)}
		*on.Target = *tt.Target
		on.ChangeFeed = true
		if p := r.plan(on); len(p.DDL) == 0 {
			t.Fatal("the plan has no feed")
		}
		r.create(on)
		r.apply(on, text, round{upserts: []cells{{1, "b"}}})
		if got, want := r.changes(on), []string{"update_preimage|1|a", "update_postimage|1|b"}; !slices.Equal(got, want) {
			t.Fatalf("the feed is %q, want %q", got, want)
		}
		if p := r.plan(on); len(p.DDL) > 0 || blocked(p) {
			t.Fatalf("the plan of what is there: %+v", p)
		}
		if err := r.w.Teardown(r.ctx); err != nil {
			t.Fatal(err)
		}
		if left := r.h.Query(t, "SELECT table_name FROM information_schema.tables WHERE table_schema = '_tailrace'"); len(left) > 0 {
			t.Fatalf("after the teardown there is %q", lines(left))
		}
	}},

	{"a target's column cannot have a name of the feed's", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		if p := r.plan(makeTarget(h, "clash", scd.Type1, "id int4 key", "_MARK text")); !blocked(p) {
			t.Fatalf("the plan: %+v", p)
		}
	}},

	{"a feed's old changes go", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := makeTarget(h, "old", scd.Type1, "id int4 key", "a text")
		tt.FeedKeep = 200 * time.Millisecond
		r.create(tt)
		now := func(rd round) {
			b := r.batch(tt.part(text, rd))
			b.CommitTime = time.Now()
			if err := r.w.Apply(r.ctx, b); err != nil {
				t.Fatal(err)
			}
		}
		now(round{inserts: []cells{{1, "a"}, {2, "b"}}})
		time.Sleep(time.Second)
		now(round{upserts: []cells{{1, "c"}}})
		if got, want := r.changes(tt), []string{"update_preimage|1|a", "update_postimage|1|c"}; !slices.Equal(got, want) {
			t.Fatalf("the feed is %q, want %q", got, want)
		}
		time.Sleep(time.Second)
		now(round{deletes: []cells{{1}, {2}}})
		number := func(n *string) int64 {
			i, err := strconv.ParseInt(*n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return i
		}
		ids := r.h.Query(t, "SELECT min("+quote(sink.FeedID)+") FROM "+r.feedOf(tt))
		if got := r.changes(tt); len(got) != 2 || number(ids[0][0]) < 5 {
			t.Fatalf("the feed is %q from number %s on, want two deletes above the four changes before", got, *ids[0][0])
		}

		// So they do without a batch; one may stay, where numbers go on from it.
		feeds, ok := r.w.(sink.Feeds)
		if !ok {
			t.Fatal("the Writer cannot look after feeds")
		}
		sizes, err := feeds.Feeds(r.ctx)
		if err != nil || len(sizes) != 1 || sizes[0].Target.Table != tt.Name.Table || sizes[0].Rows != 2 || sizes[0].Estimated || time.Since(sizes[0].Oldest).Abs() > time.Minute {
			t.Fatalf("the feeds are %+v, %v", sizes, err)
		}
		time.Sleep(time.Second)
		if n, err := feeds.TrimFeed(r.ctx, tt.Target); err != nil || n < 1 || len(r.changes(tt)) != 2-int(n) {
			t.Fatalf("removed %d, %v; the feed is %q", n, err, r.changes(tt))
		}
		if n, err := feeds.TrimFeed(r.ctx, tt.Target); err != nil || n != 0 {
			t.Fatalf("removed %d more, %v", n, err)
		}
		now(round{inserts: []cells{{9, "z"}}})
		ids = r.h.Query(t, "SELECT max("+quote(sink.FeedID)+") FROM "+r.feedOf(tt))
		if number(ids[0][0]) != 7 && number(ids[0][0]) < 8 {
			t.Fatalf("the newest change has number %s, want one above the six before", *ids[0][0])
		}
	}},
}
