package sequenced_test

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// shot is a snapshot at a version: rows by key.
type shot struct {
	version int
	rows    map[string]change.Row
}

// compare applies a snapshot as a pipeline does: what differs from the visible table
// becomes events.
func (m *memory) compare(l *sequenced.Lane, s shot) (differ int, err error) {
	version, err := sequenced.AppendSequence(nil, integer(s.version), bigint)
	if err != nil {
		return 0, err
	}
	p := sequenced.SnapshotPlace(version)
	seen := map[string]change.Row{}
	for k, row := range m.rows {
		seen[k] = row
	}
	for k, versions := range m.versions {
		for _, v := range versions {
			if v.end == "" {
				seen[k] = v.row
			}
		}
	}
	var events []sequenced.Event
	for k, row := range s.rows {
		if string(seen[k]) != string(row) {
			events = append(events, sequenced.Event{Key: change.Row(k), Place: p, Row: row, Start: startOf(p)})
		}
	}
	for k := range seen {
		if _, there := s.rows[k]; !there {
			events = append(events, sequenced.Event{Key: change.Row(k), Place: p, Delete: true, Start: startOf(p)})
		}
	}
	l.Compared(sequenced.Base{Place: p, Version: integer(s.version)})
	_, err = m.apply(l, events, nil)
	return len(events), err
}

// A target is what its feeds and its snapshots say together, whatever the order in which
// they arrive among each other: each snapshot as a truncate at its version and an upsert
// there of each of its rows.
func TestSnapshotsMergeWithFeedsInAnyOrder(t *testing.T) {
	start, n := rand.Uint64(), 50_000
	if *seed != 0 {
		start, n = *seed, 1
	} else if testing.Short() {
		n = 3000
	}
	t.Logf("%d histories from seed %d (replay one with -seed)", n, start)
	for i := range n {
		s := start + uint64(i)
		if err := mergedHistory(rand.New(rand.NewPCG(s, 2))); err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
	}
}

func mergedHistory(r *rand.Rand) error {
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1, Sequenced: true, Columns: []scd.Column{
		{Name: "k", Type: bigint, Key: true}, {Name: "v", Type: bigint, Nullable: true, Tracked: true}, {Name: "w", Type: bigint, Nullable: true, Tracked: true},
	}}
	history := r.IntN(3) == 0 // of a target with a history, which has snapshots only
	if history {
		target.Kind = scd.Type2
		target.Columns[2].Tracked = r.IntN(2) == 0
	}
	keys, values, sequences := 1+r.IntN(4), 1+r.IntN(3), 4+r.IntN(12)
	row := func(k int) change.Row {
		return change.Row(nil).Append(integer(k)).Append(integer(r.IntN(values))).Append(integer(r.IntN(values)))
	}
	key := func(k int) change.Row { return change.Row(nil).Append(integer(k)) }

	oracle := sim.Oracle{Columns: 3, Tracked: []bool{false, true, target.Columns[2].Tracked}}
	var feed []item
	if !history {
		for n := r.IntN(12); n > 0; n-- {
			p := placeOf(r.IntN(sequences), "f", uint64(len(feed)))
			if r.IntN(8) == 0 {
				feed = append(feed, item{truncate: &p})
				if oracle.Truncate.Before(p) {
					oracle.Truncate = p
				}
				continue
			}
			k := r.IntN(keys)
			e := sequenced.Event{Key: key(k), Place: p, Time: 1}
			if e.Delete = r.IntN(4) == 0; !e.Delete {
				e.Row = row(k)
			}
			feed = append(feed, item{event: &e})
			oracle.Events = append(oracle.Events, e)
		}
		for range r.IntN(3) {
			if len(feed) > 0 {
				feed = append(feed, feed[r.IntN(len(feed))]) // delivered twice
			}
		}
		r.Shuffle(len(feed), func(i, j int) { feed[i], feed[j] = feed[j], feed[i] })
	}
	var shots []shot
	known := map[string]bool{}
	for v := r.IntN(3); v < sequences && len(shots) < 5; v += 1 + r.IntN(4) {
		s := shot{version: v, rows: map[string]change.Row{}}
		for k := range keys {
			if r.IntN(4) > 0 {
				s.rows[string(key(k))] = row(k)
			}
		}
		if len(shots) > 0 && r.IntN(4) == 0 { // the same again
			s.rows = shots[len(shots)-1].rows
		}
		shots = append(shots, s)
		version, err := sequenced.AppendSequence(nil, integer(v), bigint)
		if err != nil {
			return err
		}
		p := sequenced.SnapshotPlace(version)
		if below := (sequenced.Place{Seq: version, At: []byte{0xEF}}); !history && oracle.Truncate.Before(below) {
			oracle.Truncate = below
		}
		for k, row := range s.rows {
			known[k] = true
			oracle.Events = append(oracle.Events, sequenced.Event{Key: change.Row(k), Place: p, Row: row, Start: startOf(p)})
		}
		for k := range known {
			if _, there := s.rows[k]; !there && history {
				oracle.Events = append(oracle.Events, sequenced.Event{Key: change.Row(k), Place: p, Delete: true, Start: startOf(p)})
			}
		}
	}

	m := newMemory(target)
	o := sequenced.Options{Partial: !history && r.IntN(3) == 0} // a lane that reckons with absent columns, as of tables
	l := sequenced.New(target, o, sequenced.Head{})
	for len(feed)+len(shots) > 0 {
		if len(shots) > 0 && (len(feed) == 0 || r.IntN(3) == 0) {
			if _, err := m.compare(l, shots[0]); err != nil {
				return err
			}
			// The table equals the snapshot but for what the feed has above it.
			shots = shots[1:]
		} else {
			n := 1 + r.IntN(len(feed))
			var events []sequenced.Event
			var truncates []sequenced.Place
			for _, it := range feed[:n] {
				if it.truncate != nil {
					truncates = append(truncates, *it.truncate)
				} else {
					events = append(events, *it.event)
				}
			}
			feed = feed[n:]
			if _, err := m.apply(l, events, truncates); err != nil {
				return err
			}
		}
		if r.IntN(3) == 0 { // as after a restart
			base, err := m.base()
			if err != nil {
				return err
			}
			l = sequenced.New(target, o, l.Head())
			l.SetBase(base)
		}
	}
	var lines []string
	rows := oracle.Type1
	if history {
		rows = oracle.Type2
	}
	for _, v := range rows() {
		var row change.Row
		for _, value := range v.Values {
			row = row.Append(value)
		}
		if history {
			lines = append(lines, fmt.Sprintf("%x %6s..%s %x", v.Key, v.Start, v.End, []byte(row)))
		} else {
			lines = append(lines, fmt.Sprintf("%x %x", v.Key, []byte(row)))
		}
	}
	sort.Strings(lines)
	want := strings.Join(lines, "\n")
	if got := m.show(); got != want || len(m.problems) > 0 {
		return fmt.Errorf("history %v, partial %v\ngot\n%s\nwant\n%s\n%v", history, o.Partial, got, want, m.problems)
	}
	return nil
}

// base reads the base back from the records.
func (m *memory) base() (sequenced.Base, error) {
	for _, r := range m.sorted(string(sequenced.DefinitionLookup().Key)) {
		if a, err := sequenced.AboutTarget(&r); err != nil || !a.Base.IsZero() {
			return a.Base, err
		}
	}
	return sequenced.Base{}, nil
}

// Rows that a snapshot confirms are not written, and what it said is remembered.
func TestASnapshotWritesOnlyWhatDiffers(t *testing.T) {
	target := &scd.Target{Name: change.Name{Table: "t"}, Kind: scd.Type1, Sequenced: true, Columns: []scd.Column{
		{Name: "k", Type: bigint, Key: true}, {Name: "v", Type: bigint, Nullable: true, Tracked: true},
	}}
	row := func(k, v int) change.Row { return change.Row(nil).Append(integer(k)).Append(integer(v)) }
	key := func(k int) string { return string(change.Row(nil).Append(integer(k))) }
	m := newMemory(target)
	l := sequenced.New(target, sequenced.Options{}, sequenced.Head{})
	first := shot{1, map[string]change.Row{key(1): row(1, 1), key(2): row(2, 2), key(3): row(3, 3)}}
	if n, err := m.compare(l, first); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	m.written = 0
	second := shot{2, map[string]change.Row{key(1): row(1, 1), key(2): row(2, 5), key(4): row(4, 4)}}
	if n, err := m.compare(l, second); n != 3 || err != nil || m.written != 3 {
		t.Fatal(n, m.written, err)
	}
	base, err := m.base()
	if err != nil || string(base.Version.Data) != "2" || base.Place.Compare(l.Base().Place) != 0 {
		t.Errorf("%+v, %v", base, err)
	}
}
