package scd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/scd"
)

func simTarget(kind scd.Kind) *scd.Target {
	t := &scd.Target{Name: change.Name{Table: "t"}, Source: change.Name{Schema: "public", Table: "t"}, Kind: kind}
	for i, c := range simColumns {
		t.Columns = append(t.Columns, scd.Column{Name: c, Key: i == colID, Tracked: i != colID && i != colSeen})
	}
	return t
}

// version is one stored row of a type 2 target.
type version struct {
	start, end int64 // end 0: open
	vals       []string
}

// store is a destination in memory that does what scd.Round documents, to the
// letter and one row at a time.
type store struct {
	t       *testing.T
	rows    map[string][]string
	history map[string][]version
}

func decode(t *testing.T, r change.Row, n int) []change.Value {
	t.Helper()
	vals, err := r.Values(nil, n)
	if err != nil {
		t.Fatalf("row out of the fold: %v", err)
	}
	return vals
}

func keyOf(t *testing.T, k scd.Key) string { return string(decode(t, k, 1)[0].Data) }

func (s *store) fill(r change.Row, from []string) []string {
	vals := decode(s.t, r, len(simColumns))
	out := make([]string, len(vals))
	for i, v := range vals {
		switch {
		case v.State != change.Absent:
			out[i] = string(v.Data)
		case from == nil:
			s.t.Fatalf("Absent column %s without a stored row", simColumns[i])
		default:
			out[i] = from[i]
		}
	}
	return out
}

func (s *store) apply1(r scd.Round) {
	if r.Truncate {
		s.rows = map[string][]string{}
	}
	moved := make([][]string, len(r.Moves))
	for i, m := range r.Moves {
		moved[i] = s.fill(m.Row, s.rows[keyOf(s.t, m.Old)])
	}
	for _, k := range r.Deletes {
		delete(s.rows, keyOf(s.t, k))
	}
	for _, m := range r.Moves {
		delete(s.rows, keyOf(s.t, m.Old))
	}
	put := func(vals []string, what string, mayExist bool) {
		if _, there := s.rows[vals[colID]]; there && !mayExist {
			s.t.Fatalf("%s of key %s, which is there", what, vals[colID])
		}
		s.rows[vals[colID]] = vals
	}
	for _, vals := range moved {
		put(vals, "move", false)
	}
	for _, row := range r.Inserts {
		put(s.fill(row, nil), "insert", false)
	}
	for _, row := range r.Upserts {
		put(s.fill(row, nil), "upsert", true)
	}
	for _, row := range r.Patches {
		id := string(decode(s.t, row, len(simColumns))[colID].Data)
		if s.rows[id] == nil {
			s.t.Fatalf("patch of key %s, which is missing", id)
		}
		put(s.fill(row, s.rows[id]), "patch", true)
	}
}

func tracked(vals []string) []string { return []string{vals[colN], vals[colNote], vals[colBig]} }

func (s *store) apply2(r scd.Round) {
	before := map[string][]version{}
	for k, h := range s.history {
		before[k] = slices.Clone(h)
	}
	open := func(k string) *version {
		if h := before[k]; len(h) > 0 && h[len(h)-1].end == 0 {
			return &h[len(h)-1]
		}
		return nil
	}
	stepped := map[string]bool{}
	for i := 0; i < len(r.Steps); {
		j := i + 1
		for j < len(r.Steps) && r.Steps[j].N > 1 {
			j++
		}
		k := keyOf(s.t, r.Steps[i].Key)
		if stepped[k] {
			s.t.Fatalf("steps of key %s are not together", k)
		}
		stepped[k] = true
		h := slices.Clone(before[k])
		var b int64 = -1 << 62
		if len(h) > 0 {
			if b = h[len(h)-1].end; b == 0 {
				b = h[len(h)-1].start
			}
		}
		void := false
		for n, st := range r.Steps[i:j] {
			if st.N != n+1 {
				s.t.Fatalf("step %d of key %s stands at place %d", st.N, k, n+1)
			}
			var vals []string
			if st.Row != nil {
				origin := k
				if st.Origin != nil {
					origin = keyOf(s.t, st.Origin)
				}
				var from []string
				if o := open(origin); o != nil {
					from = o.vals
				}
				vals = s.fill(st.Row, from)
			}
			isOpen := len(h) > 0 && h[len(h)-1].end == 0
			if n == 0 {
				if vals == nil && !isOpen {
					void = true
					continue
				}
				if vals != nil && isOpen && slices.Equal(tracked(h[len(h)-1].vals), tracked(vals)) {
					void = true
					h[len(h)-1].vals = vals
					continue
				}
			}
			at := max(st.Lo, b+int64(st.N))
			if void {
				at = max(st.LoVoid, b+int64(st.N)-1)
			}
			if isOpen {
				h[len(h)-1].end = at
			}
			if vals != nil {
				h = append(h, version{start: at, vals: vals})
			}
		}
		s.history[k] = h
		i = j
	}
	if r.Truncate {
		for k, h := range s.history {
			if !stepped[k] && len(h) > 0 && h[len(h)-1].end == 0 {
				h[len(h)-1].end = max(r.TruncateAt, h[len(h)-1].start+1)
			}
		}
	}
}

// oracle2 is the definition: state by state, nothing folded.
func oracle2(states []state) map[string][]version {
	hist := map[string][]version{}
	prev := map[string][]string{}
	for _, st := range states {
		keys := map[string]bool{}
		for k := range prev {
			keys[k] = true
		}
		for k := range st.rows {
			keys[k] = true
		}
		for k := range keys {
			h := hist[k]
			now := st.rows[k]
			isOpen := len(h) > 0 && h[len(h)-1].end == 0
			if now != nil && isOpen && slices.Equal(tracked(h[len(h)-1].vals), tracked(now)) {
				h[len(h)-1].vals = now
				continue
			}
			if now == nil && !isOpen {
				continue
			}
			at := st.at
			if len(h) > 0 {
				last := h[len(h)-1]
				at = max(at, max(last.start, last.end)+1)
			}
			if isOpen {
				h[len(h)-1].end = at
			}
			if now != nil {
				h = append(h, version{start: at, vals: now})
			}
			hist[k] = h
		}
		prev = st.rows
	}
	return hist
}

func printHistory(h map[string][]version) string {
	var lines []string
	for k, vs := range h {
		for _, v := range vs {
			lines = append(lines, fmt.Sprintf("%s [%d,%d) %v", k, v.start, v.end, v.vals))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func seed(t *testing.T) uint64 {
	s := uint64(time.Now().UnixNano())
	if e := os.Getenv("TAILRACE_TEST_SEED"); e != "" {
		var err error
		if s, err = strconv.ParseUint(e, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d (repeat with TAILRACE_TEST_SEED=%d)", s, s)
	return s
}

// Any split of the same transactions into batches gives the same type 1 and type
// 2 tables, equal to the source and to the definition of a history.
func TestFoldEqualsOneByOne(t *testing.T) {
	base := seed(t)
	runs := 6000
	if testing.Short() {
		runs = 500
	}
	sawRounds, sawMoves, sawPatches, sawLate := false, false, false, false
	for run := range runs {
		rnd := rand.New(rand.NewPCG(base, uint64(run)))
		identity := change.IdentityDefault
		if run%3 == 0 {
			identity = change.IdentityFull
		}
		sim := newTableSim(rnd, identity)
		one, two := scd.NewFolder(simTarget(scd.Type1)), scd.NewFolder(simTarget(scd.Type2))
		st := &store{t: t, rows: map[string][]string{}, history: map[string][]version{}}
		var states []state
		var log []change.Change
		for range 1 + rnd.IntN(12) {
			tx, after := sim.transaction(1 + rnd.IntN(6))
			states = append(states, after)
			for i := range tx.Changes {
				log = append(log, tx.Changes[i])
				if err := one.Add(&tx.Changes[i]); err != nil {
					t.Fatalf("run %d: type 1: %v", run, err)
				}
				if err := two.Add(&tx.Changes[i]); err != nil {
					t.Fatalf("run %d: type 2: %v", run, err)
				}
			}
			if err := one.EndTx(after.at); err != nil {
				t.Fatal(err)
			}
			if err := two.EndTx(after.at); err != nil {
				t.Fatalf("run %d: type 2: %v", run, err)
			}
			if rnd.IntN(3) == 0 {
				flush(st, one, two, &sawRounds, &sawMoves, &sawPatches, &sawLate)
			}
		}
		flush(st, one, two, &sawRounds, &sawMoves, &sawPatches, &sawLate)
		if got, want := fmt.Sprint(st.rows), fmt.Sprint(sim.rows); got != want {
			t.Fatalf("run %d: type 1\n got %s\nwant %s\nlog %s", run, got, want, printLog(log))
		}
		if got, want := printHistory(st.history), printHistory(oracle2(states)); got != want {
			t.Fatalf("run %d: type 2\n got\n%s\nwant\n%s\nlog %s", run, got, want, printLog(log))
		}
	}
	if !sawRounds || !sawMoves || !sawPatches || !sawLate {
		t.Fatalf("the search never met: several rounds %v, moves %v, patches %v, steps after the first %v", sawRounds, sawMoves, sawPatches, sawLate)
	}
}

func flush(st *store, one, two *scd.Folder, rounds, moves, patches, late *bool) {
	for _, r := range one.Take() {
		*moves = *moves || len(r.Moves) > 0
		*patches = *patches || len(r.Patches) > 0
		st.apply1(r)
	}
	rs := two.Take()
	*rounds = *rounds || len(rs) > 1
	for _, r := range rs {
		for _, s := range r.Steps {
			*late = *late || s.N > 1
		}
		st.apply2(r)
	}
}

func printLog(log []change.Change) string {
	var b strings.Builder
	for _, c := range log {
		fmt.Fprintf(&b, "\n  %s old=%s new=%s", c.Op, printRow(c.Old), printRow(c.New))
	}
	return b.String()
}

func printRow(r change.Row) string {
	if r == nil {
		return "-"
	}
	var cells []string
	for range simColumns {
		v, rest, err := r.Next()
		if err != nil {
			return "?"
		}
		if v.State == change.AsText {
			cells = append(cells, string(v.Data))
		} else {
			cells = append(cells, string(rune(v.State)))
		}
		r = rest
	}
	return strings.Join(cells, ",")
}
