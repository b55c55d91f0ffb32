package sim

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
)

// Target is the table's target of that kind; every column but the key and seen is
// tracked.
func Target(kind scd.Kind) *scd.Target {
	t := &scd.Target{Name: change.Name{Table: "t"}, Source: change.Name{Schema: "public", Table: "t"}, Kind: kind}
	for i, c := range Columns {
		t.Columns = append(t.Columns, scd.Column{Name: c, Key: i == ColID, Tracked: i != ColID && i != ColSeen})
	}
	return t
}

// Version is one stored row of a type 2 target.
type Version struct {
	Start, End int64 // µs; End 0: open
	Vals       []string
}

// Store is a target's rows in memory. It does what scd.Round documents, to the
// letter and one row at a time, and refuses what cannot be.
type Store struct {
	Rows    map[string][]string  // type 1
	History map[string][]Version // type 2, by start
	// Restored: the rows come from a backup; see sink.TargetRounds.
	Restored bool
	base     map[string][]Version // the history before the source transaction that comes in pieces; nil outside
}

// NewStore makes an empty one.
func NewStore() *Store {
	return &Store{Rows: map[string][]string{}, History: map[string][]Version{}}
}

// Clone copies the store, for a transaction that may be rolled back.
func (s *Store) Clone() *Store {
	c := NewStore()
	maps.Copy(c.Rows, s.Rows) // rows are replaced, never written
	for k, h := range s.History {
		c.History[k] = slices.Clone(h)
	}
	c.base, c.Restored = s.base, s.Restored
	return c
}

// violation is something a round may not do.
type violation string

func violate(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// Apply does a round. first and more frame pieces as sink.Batch does.
func (s *Store) Apply(kind scd.Kind, r scd.Round) (err error) {
	defer func() {
		if p := recover(); p != nil {
			v, ok := p.(violation)
			if !ok {
				panic(p)
			}
			err = fmt.Errorf("%s", string(v))
		}
	}()
	if kind == scd.Type2 {
		s.apply2(r)
	} else {
		s.apply1(r)
	}
	return nil
}

// Piecewise says that the rounds that follow belong to one source transaction in
// pieces, until it is called with false.
func (s *Store) Piecewise(on bool) {
	switch {
	case !on:
		s.base = nil
	case s.base == nil:
		s.base = s.Clone().History
	}
}

func decode(r change.Row, n int) []change.Value {
	vals, err := r.Values(nil, n)
	if err != nil {
		violate("row out of the fold: %v", err)
	}
	return vals
}

func keyOf(k scd.Key) string { return string(decode(k, 1)[0].Data) }

func fill(r change.Row, from []string) []string {
	vals := decode(r, len(Columns))
	out := make([]string, len(vals))
	for i, v := range vals {
		switch {
		case v.State != change.Absent:
			out[i] = string(v.Data)
		case from == nil:
			violate("Absent column %s without a stored row", Columns[i])
		default:
			out[i] = from[i]
		}
	}
	return out
}

func (s *Store) apply1(r scd.Round) {
	if r.Truncate {
		s.Rows = map[string][]string{}
	}
	moved := make([][]string, len(r.Moves))
	for i, m := range r.Moves {
		moved[i] = fill(m.Row, s.Rows[keyOf(m.Old)])
	}
	for _, k := range r.Deletes {
		delete(s.Rows, keyOf(k))
	}
	for _, m := range r.Moves {
		delete(s.Rows, keyOf(m.Old))
	}
	put := func(vals []string, what string, mayExist bool) {
		mayExist = mayExist || s.Restored
		if _, there := s.Rows[vals[ColID]]; there && !mayExist {
			violate("%s of key %s, which is there", what, vals[ColID])
		}
		s.Rows[vals[ColID]] = vals
	}
	for _, vals := range moved {
		put(vals, "move", false)
	}
	for _, row := range r.Inserts {
		put(fill(row, nil), "insert", false)
	}
	for _, row := range r.Upserts {
		put(fill(row, nil), "upsert", true)
	}
	for _, row := range r.Patches {
		id := string(decode(row, len(Columns))[ColID].Data)
		if s.Rows[id] == nil && s.Restored {
			continue
		}
		if s.Rows[id] == nil {
			violate("patch of key %s, which is missing", id)
		}
		put(fill(row, s.Rows[id]), "patch", true)
	}
}

func tracked(vals []string) []string { return []string{vals[ColN], vals[ColNote], vals[ColBig]} }

func (s *Store) apply2(r scd.Round) {
	before := map[string][]Version{}
	for k, h := range s.History {
		before[k] = slices.Clone(h)
	}
	open := func(k string) *Version {
		if h := before[k]; len(h) > 0 && h[len(h)-1].End == 0 {
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
		k := keyOf(r.Steps[i].Key)
		if stepped[k] {
			violate("steps of key %s are not together", k)
		}
		stepped[k] = true
		h := slices.Clone(before[k])
		if s.base != nil {
			h = slices.Clone(s.base[k]) // what earlier pieces did to the key is undone
		}
		var b int64 = -1 << 62
		if len(h) > 0 {
			if b = h[len(h)-1].End; b == 0 {
				b = h[len(h)-1].Start
			}
		}
		void := false
		for n, st := range r.Steps[i:j] {
			if st.N != n+1 {
				violate("step %d of key %s stands at place %d", st.N, k, n+1)
			}
			var vals []string
			if st.Row != nil {
				origin := k
				if st.Origin != nil {
					origin = keyOf(st.Origin)
				}
				var from []string
				if o := open(origin); o != nil {
					from = o.Vals
				}
				vals = fill(st.Row, from)
			}
			isOpen := len(h) > 0 && h[len(h)-1].End == 0
			if n == 0 {
				if vals == nil && !isOpen {
					void = true
					continue
				}
				if vals != nil && isOpen && slices.Equal(tracked(h[len(h)-1].Vals), tracked(vals)) {
					void = true
					h[len(h)-1].Vals = vals
					continue
				}
			}
			at := max(st.Lo, b+int64(st.N))
			if void {
				at = max(st.LoVoid, b+int64(st.N)-1)
			}
			if isOpen {
				h[len(h)-1].End = at
			}
			if vals != nil {
				h = append(h, Version{Start: at, Vals: vals})
			}
		}
		s.History[k] = h
		i = j
	}
	if r.Truncate {
		for k, h := range s.History {
			if stepped[k] {
				continue
			}
			if s.base != nil {
				h = slices.Clone(s.base[k])
				s.History[k] = h
			}
			if len(h) > 0 && h[len(h)-1].End == 0 {
				h[len(h)-1].End = max(r.TruncateAt, h[len(h)-1].Start+1)
			}
		}
	}
}

// Oracle2 is the definition: state by state, nothing folded.
func Oracle2(states []State) map[string][]Version {
	hist := map[string][]Version{}
	prev := map[string][]string{}
	for _, st := range states {
		keys := map[string]bool{}
		for k := range prev {
			keys[k] = true
		}
		for k := range st.Rows {
			keys[k] = true
		}
		for k := range keys {
			h := hist[k]
			now := st.Rows[k]
			isOpen := len(h) > 0 && h[len(h)-1].End == 0
			if now != nil && isOpen && slices.Equal(tracked(h[len(h)-1].Vals), tracked(now)) {
				h[len(h)-1].Vals = now
				continue
			}
			if now == nil && !isOpen {
				continue
			}
			at := st.At
			if len(h) > 0 {
				last := h[len(h)-1]
				at = max(at, max(last.Start, last.End)+1)
			}
			if isOpen {
				h[len(h)-1].End = at
			}
			if now != nil {
				h = append(h, Version{Start: at, Vals: now})
			}
			hist[k] = h
		}
		prev = st.Rows
	}
	return hist
}

// PrintHistory writes a history in a stable order, for comparing.
func PrintHistory(h map[string][]Version) string {
	var lines []string
	for k, vs := range h {
		for _, v := range vs {
			lines = append(lines, fmt.Sprintf("%s [%d,%d) %v", k, v.Start, v.End, v.Vals))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
