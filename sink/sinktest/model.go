package sinktest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/scd"
)

var modelTests = []test{
	{"type 1 equals the model after random rounds", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		rnd := random(t)
		r := begin(t, h)
		tt := r.create(makeTarget(h, "model1_"+f.String(), scd.Type1, "a text", "k int4 key", "b int8", "c text"))
		m := &model1{t: tt, rows: map[string]cells{}}
		for range fewer(h, 120) {
			n := 1 + rnd.IntN(3)
			var rounds []round
			for range n {
				rd := m.generate(rnd, h.Has().Keys)
				m.apply(rd)
				rounds = append(rounds, rd)
			}
			if rnd.IntN(4) == 0 {
				r.pieces(tt, f, rounds...)
			} else {
				r.apply(tt, f, rounds...)
			}
			r.expect(tt, m.lines()...)
		}
	})},

	{"type 2 equals the model after random transactions", nil, inBothForms(func(t *testing.T, h Harness, f form) {
		rnd := random(t)
		r := begin(t, h)
		tt := r.create(makeTarget(h, "model2_"+f.String(), scd.Type2, "k int4 key", "a text", "b int8 untracked", "c text"))
		m := &model2{versions: map[int][]version{}, clock: 1000}
		for range fewer(h, 150) {
			if rnd.IntN(4) == 0 {
				pieces := m.piecewise(rnd)
				r.pieces(tt, f, pieces...)
			} else {
				r.apply(tt, f, m.whole(rnd, 1+rnd.IntN(6)))
			}
			r.expect(tt, m.lines()...)
		}
		if bad, err := r.w.Invariants(r.ctx, tt.Target); err != nil || len(bad) > 0 {
			t.Fatalf("Invariants: %q, %v", bad, err)
		}
	})},
}

// random is seeded anew for each test; the seed is printed.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TAILRACE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("TAILRACE_TEST_SEED is not a number: %v", err)
		}
		seed = n
	}
	t.Logf("TAILRACE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// model1 restates scd.Round's rules for type 1, one row at a time. The key is
// column 1 of 4.
type model1 struct {
	t    target
	rows map[string]cells // by key
}

func (m *model1) apply(rd round) {
	if rd.truncate {
		clear(m.rows)
	}
	var moved []cells
	for _, mv := range rd.moves {
		moved = append(moved, fill(mv.row, m.rows[fmt.Sprint(mv.old)]))
	}
	for _, k := range rd.deletes {
		delete(m.rows, fmt.Sprint(k))
	}
	for _, mv := range rd.moves {
		delete(m.rows, fmt.Sprint(mv.old))
	}
	for _, row := range slices.Concat(moved, rd.inserts, rd.upserts) {
		m.rows[fmt.Sprint(m.t.keyOf(row))] = row
	}
	for _, row := range rd.patches {
		k := fmt.Sprint(m.t.keyOf(row))
		m.rows[k] = fill(row, m.rows[k])
	}
}

// fill puts the stored cells where row has none.
func fill(row, stored cells) cells {
	out := slices.Clone(row)
	for i := range out {
		if out[i] == (absent{}) {
			out[i] = stored[i]
		}
	}
	return out
}

func (m *model1) lines() []string {
	var out []string
	for _, row := range m.rows {
		out = append(out, line(row))
	}
	return out
}

func line(row cells) string {
	var parts []string
	for _, c := range row {
		if c == nil {
			parts = append(parts, "NULL")
		} else {
			parts = append(parts, fmt.Sprint(c))
		}
	}
	return strings.Join(parts, "|")
}

// generate makes a round that the stored rows admit: no key in two roles.
func (m *model1) generate(rnd *rand.Rand, duplicates bool) round {
	const keys = 40
	var rd round
	if rnd.IntN(15) == 0 {
		rd.truncate = true
	}
	has := func(k int) bool { return !rd.truncate && m.rows[fmt.Sprint(cells{k})] != nil }
	order := rnd.Perm(keys)
	touched := order[:rnd.IntN(keys)]
	var free, leaving []int
	for _, k := range touched {
		switch {
		case !has(k):
			free = append(free, k)
		case rnd.IntN(3) == 0:
			leaving = append(leaving, k)
			free = append(free, k)
		case rnd.IntN(4) == 0:
			rd.deletes = append(rd.deletes, cells{k})
			free = append(free, k)
		case rnd.IntN(2) == 0:
			rd.upserts = append(rd.upserts, m.row(rnd, k, false))
		default:
			rd.patches = append(rd.patches, m.row(rnd, k, true))
		}
	}
	rnd.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	for _, k := range leaving {
		to := free[0]
		free = free[1:]
		rd.moves = append(rd.moves, move{cells{k}, m.row(rnd, to, rnd.IntN(2) == 0)})
	}
	vacated := map[int]bool{}
	for _, k := range leaving {
		vacated[k] = true
	}
	for _, d := range rd.deletes {
		vacated[d[0].(int)] = true
	}
	for _, k := range free {
		switch {
		case vacated[k] && rnd.IntN(2) == 0: // left empty
		case rnd.IntN(3) == 0 && !vacated[k]:
			rd.deletes = append(rd.deletes, cells{k}) // a delete of nothing
		case rnd.IntN(2) == 0:
			rd.upserts = append(rd.upserts, m.row(rnd, k, false))
		default:
			rd.inserts = append(rd.inserts, m.row(rnd, k, false))
		}
	}
	if duplicates && rnd.IntN(5) == 0 { // an insert of a key that is there
		for _, k := range order[len(touched):] {
			if has(k) {
				rd.inserts = append(rd.inserts, m.row(rnd, k, false))
				break
			}
		}
	}
	return rd
}

func (m *model1) row(rnd *rand.Rand, k int, gaps bool) cells {
	row := cells{randomText(rnd), k, rnd.IntN(5), randomText(rnd)}
	if rnd.IntN(4) == 0 {
		row[2] = nil
	}
	if gaps {
		for _, i := range []int{0, 2, 3} {
			if rnd.IntN(2) == 0 {
				row[i] = absent{}
			}
		}
	}
	return row
}

func randomText(rnd *rand.Rand) any {
	return []any{nil, "", "a", "b", "a\\\t\n", "ä表"}[rnd.IntN(6)]
}

// model2 restates the rules of type 2, one source transaction at a time: a write
// equal in the tracked columns to the open version only gives it its untracked
// values; anything else ends the open version and begins one at the greatest of
// commit time and newest start or end + 1 µs. The columns are k, a, b
// (untracked), c.
type model2 struct {
	versions map[int][]version // by key, oldest first
	clock    int64
}

type version struct {
	row        cells
	start, end int64 // end 0: open
}

const model2Keys = 12

func (m *model2) open(k int) *version {
	if vs := m.versions[k]; len(vs) > 0 && vs[len(vs)-1].end == 0 {
		return &vs[len(vs)-1]
	}
	return nil
}

func equalTracked(a, b cells) bool { return a[1] == b[1] && a[3] == b[3] }

// commit carries out the net effect of one transaction on a key.
func (m *model2) commit(k int, row cells, at int64) {
	vs := m.versions[k]
	open := m.open(k)
	if open != nil && row != nil && equalTracked(open.row, row) {
		open.row = row
		return
	}
	if open == nil && row == nil {
		return
	}
	if len(vs) > 0 {
		newest := vs[len(vs)-1]
		at = max(at, max(newest.start, newest.end)+1)
	}
	if open != nil {
		open.end = at
	}
	if row != nil {
		m.versions[k] = append(vs, version{row: row, start: at})
	}
}

func (m *model2) lines() []string {
	var out []string
	for _, vs := range m.versions {
		for _, v := range vs {
			end := "NULL"
			if v.end != 0 {
				end = strconv.FormatInt(v.end, 10)
			}
			out = append(out, fmt.Sprintf("%s|%d|%s", line(v.row), v.start, end))
		}
	}
	return out
}

// tick gives a commit time: it mostly goes on, stands still, or goes back.
func (m *model2) tick(rnd *rand.Rand) int64 {
	switch rnd.IntN(4) {
	case 0:
		return m.clock
	case 1:
		return max(1, m.clock-int64(rnd.IntN(20)))
	}
	m.clock += int64(1 + rnd.IntN(10))
	return m.clock
}

// event is what one transaction does to a key: row nil ends it.
type event struct {
	key    int
	row    cells // complete
	sent   cells // row as the log sends it: may have gaps
	origin cells
}

// transaction makes one transaction's net events, one a key, given what the keys
// hold now.
func (m *model2) transaction(rnd *rand.Rand, now func(k int) cells) []event {
	var out []event
	used := map[int]bool{}
	for range 1 + rnd.IntN(4) {
		k := rnd.IntN(model2Keys)
		if used[k] {
			continue
		}
		used[k] = true
		cur := now(k)
		switch n := rnd.IntN(10); {
		case n < 2:
			out = append(out, event{key: k})
		case n < 4 && cur != nil: // the same again, untracked aside
			row := cells{k, cur[1], rnd.IntN(3), cur[3]}
			out = append(out, event{key: k, row: row, sent: row})
		case n < 6 && cur != nil: // gaps
			sent := cells{k, randomText(rnd), rnd.IntN(3), randomText(rnd)}
			for _, i := range []int{1, 2, 3} {
				if rnd.IntN(2) == 0 {
					sent[i] = absent{}
				}
			}
			out = append(out, event{key: k, row: fill(sent, cur), sent: sent})
		case n < 8 && cur != nil: // moves to another key
			to := rnd.IntN(model2Keys)
			if used[to] || now(to) != nil {
				continue
			}
			used[to] = true
			sent := cells{to, absent{}, rnd.IntN(3), absent{}}
			out = append(out, event{key: k}, event{key: to, row: fill(sent, cur), sent: sent, origin: cells{k}})
		default:
			row := cells{k, randomText(rnd), rnd.IntN(3), randomText(rnd)}
			out = append(out, event{key: k, row: row, sent: row})
		}
	}
	return out
}

// folded is one step of a key in a batch.
type folded struct {
	event
	times []int64 // commit times of the key's steps so far, this one last
}

// whole makes one round of several transactions: the small folder of the suite.
func (m *model2) whole(rnd *rand.Rand, transactions int) round {
	chains := map[int][]folded{}
	var rd round
	truncated := map[int]bool{} // keys that rd's truncate has ended
	live := func(k int) cells {
		if v := m.open(k); v != nil {
			return v.row
		}
		return nil
	}
	for range transactions {
		at := m.tick(rnd)
		events := m.transaction(rnd, live)
		for i, e := range events {
			if e.origin != nil && len(chains[e.origin[0].(int)]) > 0 {
				events[i].sent, events[i].origin = e.row, nil // the stored version is not what moves
			}
		}
		if rnd.IntN(10) == 0 { // the transaction begins with a TRUNCATE
			for k := range model2Keys {
				if live(k) == nil || slices.ContainsFunc(events, func(e event) bool { return e.key == k }) {
					continue
				}
				if len(chains[k]) > 0 || rd.truncate {
					events = append(events, event{key: k})
					continue
				}
				truncated[k] = true
				m.commit(k, nil, at)
			}
			if len(truncated) > 0 && !rd.truncate {
				rd.truncate, rd.truncateAt = true, at
			}
		}
		for _, e := range events {
			chain := chains[e.key]
			if len(chain) == 0 && truncated[e.key] {
				chain = []folded{{event{key: e.key}, []int64{rd.truncateAt}}}
			}
			m.commit(e.key, e.row, at)
			if len(chain) == 0 {
				chains[e.key] = []folded{{e, []int64{at}}}
				continue
			}
			last := &chain[len(chain)-1]
			e.sent, e.origin = e.row, nil // later steps are complete
			switch {
			case e.row == nil && last.row == nil:
			case e.row != nil && last.row != nil && equalTracked(e.row, last.row):
				last.event = e
			default:
				chain = append(chain, folded{e, append(slices.Clone(last.times), at)})
			}
			chains[e.key] = chain
		}
	}
	for k, chain := range chains {
		for i, s := range chain {
			var lo, loVoid int64
			for j, at := range s.times {
				lo = max(lo, at+int64(i-j))
				if j > 0 {
					loVoid = max(loVoid, at+int64(i-j))
				}
			}
			rd.steps = append(rd.steps, step{key: cells{k}, n: i + 1, lo: lo, loVoid: loVoid, row: s.sent, origin: s.origin})
		}
	}
	return rd
}

// piecewise makes one transaction in pieces, one round each, and commits its net
// effect to the model.
func (m *model2) piecewise(rnd *rand.Rand) []round {
	at := m.tick(rnd)
	net := map[int]cells{} // nil: ended by this transaction
	live := func(k int) cells {
		if row, ok := net[k]; ok {
			return row
		}
		if v := m.open(k); v != nil {
			return v.row
		}
		return nil
	}
	var rounds []round
	for range 2 + rnd.IntN(3) {
		var rd round
		if rnd.IntN(6) == 0 {
			rd.truncate, rd.truncateAt = true, at
			for k := range model2Keys {
				if live(k) != nil {
					net[k] = nil
				}
			}
		}
		for _, e := range m.transaction(rnd, live) {
			rd.steps = append(rd.steps, step{key: cells{e.key}, lo: at, row: e.sent, origin: e.origin})
			net[e.key] = e.row
		}
		rounds = append(rounds, rd)
	}
	for k, row := range net {
		m.commit(k, row, at)
	}
	return rounds
}
