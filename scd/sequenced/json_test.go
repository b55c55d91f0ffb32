package sequenced_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/sim"
	"tailrace/scd"
	"tailrace/scd/sequenced"
)

func randomJSON(r *rand.Rand, depth int) any {
	switch n := r.IntN(8); {
	case n < 4 && depth < 3 || depth == 0 && n < 7:
		object := map[string]any{}
		for range r.IntN(4) {
			object[string(rune('a'+r.IntN(3)))] = randomJSON(r, depth+1)
		}
		return object
	case n == 4:
		return nil
	case n == 5:
		return []any{nil, float64(r.IntN(2)), map[string]any{"x": nil}}
	default:
		return fmt.Sprint("v", r.IntN(3))
	}
}

// Leaves of JSON objects are written one by one, whatever the order of arrival.
func TestLeavesOfObjectsAreWrittenOneByOne(t *testing.T) {
	start := rand.Uint64()
	t.Logf("from seed %d", start)
	for i := range uint64(20_000) {
		r := rand.New(rand.NewPCG(start+i, 4))
		h := &history{target: &scd.Target{Kind: scd.Kind(1 + r.IntN(2)), Sequenced: true, Columns: []scd.Column{
			{Name: "k", Type: bigint, Key: true}, {Name: "j", Type: change.Type{Kind: change.JSONB, Name: "jsonb"}, Tracked: true}}}}
		h.options = sequenced.Options{Partial: true, Merge: []bool{false, true}}
		used := map[int]bool{}
		for n := 2 + r.IntN(7); n > 0; n-- {
			seq := r.IntN(30)
			if used[seq] {
				continue
			}
			used[seq] = true
			p := placeOf(seq, "f", uint64(n))
			key := integer(1)
			e := sequenced.Event{Key: change.Row(nil).Append(key), Place: p, Start: startOf(p), Delete: r.IntN(6) == 0}
			if !e.Delete {
				value := change.Value{State: change.Absent}
				if v := randomJSON(r, 0); v != nil {
					text, err := json.Marshal(v)
					if err != nil {
						t.Fatal(err)
					}
					value = change.Value{State: change.AsText, Data: text}
				}
				e.Row = change.Row(nil).Append(key).Append(value)
			}
			h.events = append(h.events, e)
		}
		o := sim.Oracle{Events: h.events, Columns: 2, Tracked: []bool{false, true}, Leaves: []bool{false, true}}
		m, err := h.arrive(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		rows := o.Type1
		if h.target.Kind == scd.Type2 {
			rows = o.Type2
		}
		for _, v := range rows() {
			want = append(want, plain(t, v.Start, v.End, v.Values[1]))
		}
		for _, row := range m.rows {
			got = append(got, plain(t, "", "", column(t, row)))
		}
		for _, start := range sortedStarts(m.versions) {
			for _, versions := range m.versions {
				got = append(got, plain(t, start, versions[start].end, column(t, versions[start].row)))
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") || len(m.problems) > 0 {
			t.Fatalf("seed %d type %d\ngot\n%s\nwant\n%s\n%v", start+i, h.target.Kind, strings.Join(got, "\n"), strings.Join(want, "\n"), m.problems)
		}
	}
}

func column(t *testing.T, row change.Row) change.Value {
	values, err := row.Values(nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	return values[1]
}

// plain prints a version with its JSON in one form.
func plain(t *testing.T, start, end string, v change.Value) string {
	text := "NULL"
	if v.State == change.AsText {
		var x any
		if err := json.Unmarshal(v.Data, &x); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		text = string(b)
	}
	return fmt.Sprintf("[%s,%s) %s", start, end, text)
}

func sortedStarts(versions map[string]map[string]stored2) (out []string) {
	for n := range 30 {
		for _, v := range versions {
			if _, ok := v[fmt.Sprint(n)]; ok {
				out = append(out, fmt.Sprint(n))
			}
		}
	}
	return out
}
