package sequenced_test

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

// memory is a destination of one sequenced target: it does what the contract says
// and nothing more, and complains where a real one would have to guess.
type memory struct {
	target   *scd.Target
	records  map[string]map[string]sequenced.Record // key, then sequence and place
	rows     map[string]change.Row                  // type 1
	versions map[string]map[string]stored2          // type 2: key, then start
	written  int                                    // rows of the visible table that were touched
	problems []string
	aside    int // events that were set aside
	asides   []sequenced.Aside
	lose     func(*sequenced.Work) // for tests of what must not be lost
}

type stored2 struct {
	end string // empty: open
	row change.Row
}

func newMemory(t *scd.Target) *memory {
	return &memory{target: t, records: map[string]map[string]sequenced.Record{}, rows: map[string]change.Row{}, versions: map[string]map[string]stored2{}}
}

func (m *memory) complain(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

func recordKey(seq, at []byte) string { return string(seq) + "|" + string(at) }

func (m *memory) sorted(key string) []sequenced.Record {
	var out []sequenced.Record
	for _, r := range m.records[key] {
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool {
		if c := bytes.Compare(out[i].Seq, out[j].Seq); c != 0 {
			return c < 0
		}
		return bytes.Compare(out[i].At, out[j].At) < 0
	})
	return out
}

// apply runs one batch through the lane and this store.
func (m *memory) apply(l *sequenced.Lane, events []sequenced.Event, truncates []sequenced.Place) (sequenced.Counts, error) {
	for _, e := range events {
		l.Add(e)
	}
	for _, p := range truncates {
		l.Truncate(p)
	}
	if p, raised := l.Truncates(); raised && l.Partial() {
		for key := range m.records {
			for _, r := range m.sorted(key) {
				if (sequenced.Place{Seq: r.Seq, At: r.At}).Compare(p) <= 0 {
					l.Touch([]byte(key))
				}
			}
		}
	}
	for i, look := range l.Lookups() {
		if i > 0 && m.target.Bitemporal != nil && i%2 == 0 { // in portions
			if err := l.Settle(2); err != nil {
				return sequenced.Counts{}, err
			}
		}
		all := m.sorted(string(look.Key))
		from := 0
		if look.Seq != nil {
			for from < len(all) && bytes.Compare(all[from].Seq, look.Seq) < 0 {
				from++
			}
			from = max(from-1, 0)
		}
		for _, r := range all[from:] {
			if err := l.Remember(r); err != nil {
				return sequenced.Counts{}, err
			}
		}
	}
	w, r, aside, counts, err := l.Take()
	if err != nil {
		return counts, err
	}
	m.aside, m.asides = m.aside+len(aside), append(m.asides, aside...)
	if m.lose != nil {
		m.lose(&w)
	}
	m.work(&w)
	m.round(&r)
	return counts, nil
}

func (m *memory) work(w *sequenced.Work) {
	if !w.TruncateBelow.IsZero() {
		for key, records := range m.records {
			gone := false
			for id, r := range records {
				if (sequenced.Place{Seq: r.Seq, At: r.At}).Compare(w.TruncateBelow) <= 0 {
					delete(records, id)
					gone = true
				}
			}
			if gone && len(records) == 0 {
				delete(m.rows, key)
				delete(m.records, key)
			}
		}
	}
	for _, id := range w.Remove {
		// What the truncate took may be named again.
		delete(m.records[string(id.Key)], recordKey(id.Seq, id.At))
	}
	for _, r := range w.Put {
		k := string(r.Key)
		if m.records[k] == nil {
			m.records[k] = map[string]sequenced.Record{}
		}
		r.Seq, r.At, r.Body = bytes.Clone(r.Seq), bytes.Clone(r.At), bytes.Clone(r.Body)
		m.records[k][recordKey(r.Seq, r.At)] = r
	}
	for k, records := range m.records {
		if len(records) == 0 {
			delete(m.records, k)
		}
	}
}

func (m *memory) round(r *scd.Round) {
	m.written += r.Size()
	for _, k := range r.Deletes {
		if _, there := m.rows[string(k)]; !there && m.target.Bitemporal != nil {
			m.complain("deleted a row that is not there")
		}
		delete(m.rows, string(k))
	}
	for _, row := range r.Inserts {
		if _, there := m.rows[m.key(row)]; there {
			m.complain("inserted a key that is there")
		}
		m.rows[m.key(row)] = bytes.Clone(row)
	}
	for _, row := range r.Patches {
		m.rows[m.key(row)] = m.patched(m.rows[m.key(row)], row)
	}
	for _, row := range r.Upserts {
		if _, there := m.rows[m.key(row)]; !there && m.target.Bitemporal != nil {
			m.complain("replaced a row that is not there")
		}
		m.rows[m.key(row)] = bytes.Clone(row)
	}
	for _, e := range r.Ends {
		v, there := m.versions[string(e.Key)][string(e.Start.Data)]
		if !there {
			m.complain("ended a version that is not there")
		}
		v.end = string(e.End.Data)
		m.versions[string(e.Key)][string(e.Start.Data)] = v
	}
	for _, d := range r.Drops {
		if _, there := m.versions[string(d.Key)][string(d.Start.Data)]; !there {
			m.complain("dropped a version that is not there")
		}
		delete(m.versions[string(d.Key)], string(d.Start.Data))
	}
	for _, b := range r.Begins {
		k := string(b.Key)
		if m.versions[k] == nil {
			m.versions[k] = map[string]stored2{}
		}
		if _, there := m.versions[k][string(b.Start.Data)]; there {
			m.complain("began a version that is there")
		}
		m.versions[k][string(b.Start.Data)] = stored2{end: string(b.End.Data), row: bytes.Clone(b.Row)}
	}
}

// patched is a row with the columns of another that are not Absent.
func (m *memory) patched(is, by change.Row) (out change.Row) {
	old, err := is.Values(nil, len(m.target.Columns))
	if err != nil {
		m.complain("patched a row that is not there")
		return by
	}
	values, err := by.Values(nil, len(m.target.Columns))
	if err != nil {
		panic(err)
	}
	for i, v := range values {
		if v.State == change.Absent {
			v = old[i]
		}
		out = out.Append(v)
	}
	return out
}

func (m *memory) key(row change.Row) string {
	values, err := row.Values(nil, len(m.target.Columns))
	if err != nil {
		panic(err)
	}
	var key change.Row
	for _, k := range m.target.Keys() {
		key = key.Append(values[k])
	}
	return string(key)
}

// show prints the visible table in key and start order.
func (m *memory) show() string {
	var lines []string
	if m.target.Kind == scd.Type1 {
		for k, row := range m.rows {
			lines = append(lines, fmt.Sprintf("%x %x", k, []byte(row)))
		}
	} else {
		for k, versions := range m.versions {
			for start, v := range versions {
				lines = append(lines, fmt.Sprintf("%x %6s..%s %x", k, start, v.end, []byte(v.row)))
			}
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
