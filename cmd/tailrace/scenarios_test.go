package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
	"tailrace/internal/flow"
	"tailrace/internal/sim"
	"tailrace/scd"
)

// Every scenario through files: in one file, in a file for each event, and in files
// that are added between runs; in random orders where the order does not matter.
func TestScenariosHoldFromFiles(t *testing.T) {
	scenarios, err := sim.Scenarios()
	if err != nil || len(scenarios) < 40 {
		t.Fatalf("%d scenarios, %v", len(scenarios), err)
	}
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		var relations, flows strings.Builder
		var all []*played
		for i := range scenarios {
			for d := range deliveries {
				p := &played{Scenario: &scenarios[i], name: fmt.Sprintf("s%02d", i), way: deliveries[d]}
				if p.truncates() {
					p.name += "_" + p.way
				}
				if d == 0 || p.truncates() {
					relations.WriteString(p.relation())
					flows.WriteString(p.flow())
				}
				p.deliver(rnd)
				all = append(all, p)
			}
		}
		r := newFeedRig(t, server, kind, "relations:\n"+relations.String()+"flows:\n"+flows.String())
		for run, rows := range []string{"17", "3", "50000"} {
			for _, p := range all {
				for _, f := range p.runs[run] {
					r.put(t, p.name+"/"+f.name, f.lines...)
				}
			}
			r.env = []string{"TAILRACE_BATCH_MAX_ROWS=" + rows}
			r.once(t)
		}
		for _, p := range all {
			p.compare(t, r)
		}
		if bad := r.quarantined(t); len(bad) > 0 {
			t.Errorf("%d events are in quarantine, the first: %q", len(bad), bad[0])
		}
	})
}

// The ways in which a scenario's events arrive.
var deliveries = []string{"file", "each", "runs"}

// played is a scenario on its way through the program. All deliveries of one go into
// one target, each under keys of its own; a truncate would concern all of them, so
// a scenario with one has a target for each.
type played struct {
	*sim.Scenario
	name string // of relation and target
	way  string
	runs [3][]feedFile // the files that are there before each run
}

type feedFile struct {
	name  string
	lines []string
}

func (p *played) truncates() bool {
	return slices.ContainsFunc(p.Events, func(e sim.ScenarioEvent) bool { return e.Op == 'T' })
}

func (p *played) bitemporal() bool { return p.Type == flow.Bitemporal }

func (p *played) partial() bool {
	return slices.ContainsFunc(p.Events, func(e sim.ScenarioEvent) bool { return e.Cols != nil })
}

func (p *played) relation() string {
	columns := []string{"k: string", "op: string", "at_sequence: bigint", "known_at: bigint"}
	for _, c := range p.Columns {
		columns = append(columns, c+": string")
	}
	if p.partial() {
		columns = append(columns, "written: json")
	}
	return fmt.Sprintf("  %s: {path: \"%[1]s/*.jsonl\", format: jsonl, columns: {%s}}\n", p.name, strings.Join(columns, ", "))
}

func (p *played) flow() string {
	var b strings.Builder
	kind := fmt.Sprint(p.Type)
	if p.bitemporal() {
		kind = "bitemporal, system_sequence_by: known_at"
	}
	fmt.Fprintf(&b, "  - {source: %s, target: %[1]s, stored_as_scd_type: %s, keys: [k], sequence_by: at_sequence, apply_as_deletes: \"op = 'D'\", except_column_list: [op, at_sequence, known_at, _rescued_data]", p.name, kind)
	if p.Type == 1 {
		b.WriteString(", apply_as_truncates: \"op = 'T'\"")
	}
	if p.Ignore != nil {
		fmt.Fprintf(&b, ", ignore_null_updates_column_list: [%s]", strings.Join(p.Ignore, ", "))
	}
	switch {
	case p.Track == nil:
	case len(p.Track) == 0:
		fmt.Fprintf(&b, ", track_history_except_column_list: [%s]", strings.Join(p.Columns, ", "))
	default:
		fmt.Fprintf(&b, ", track_history_column_list: [%s]", strings.Join(p.Track, ", "))
	}
	if p.partial() {
		b.WriteString(", columns_to_update: written")
	}
	b.WriteString("}\n")
	return b.String()
}

func (p *played) line(e sim.ScenarioEvent) string {
	object := map[string]any{"op": string(e.Op), "at_sequence": e.Seq}
	if p.bitemporal() {
		object["known_at"] = e.System
	}
	if e.Op != 'T' {
		object["k"] = p.way + e.Key
	}
	for i, v := range e.Values {
		if v == sim.Null {
			object[p.Columns[i]] = nil
		} else {
			object[p.Columns[i]] = v
		}
	}
	if e.Cols != nil {
		object["written"] = e.Cols
	}
	out, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// deliver cuts the events into files and the files into runs. In a scenario whose
// order matters paths and lines stand in that order: they decide equal sequences.
func (p *played) deliver(rnd *rand.Rand) {
	var lines []string
	for _, e := range p.Events {
		lines = append(lines, p.line(e))
	}
	if p.AnyOrder && !p.tied() {
		rnd.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	}
	name := func(i int) string { return fmt.Sprintf("%s%02d.jsonl", p.way, i) }
	switch p.way {
	case "file":
		p.runs[0] = []feedFile{{name(0), lines}}
	case "each":
		for i := range lines {
			p.runs[0] = append(p.runs[0], feedFile{name(i), lines[i : i+1]})
		}
	case "runs":
		run := 0
		for from := 0; from < len(lines); {
			n := 1 + rnd.IntN(min(3, len(lines)-from))
			if p.AnyOrder { // a later run may bring an earlier name
				run = rnd.IntN(len(p.runs))
			}
			p.runs[run] = append(p.runs[run], feedFile{name(from), lines[from : from+n]})
			from += n
			run = min(run+rnd.IntN(2), len(p.runs)-1)
		}
	}
}

// tied reports whether path and line decide between two different events: then
// events may arrive in any order, but each keeps its place.
func (p *played) tied() bool {
	for i, a := range p.Events {
		for _, b := range p.Events[:i] {
			if a.Seq == b.Seq && a.System == b.System && (a.Key == b.Key || a.Op == 'T' || b.Op == 'T') && p.line(a) != p.line(b) {
				return true
			}
		}
	}
	return false
}

func (p *played) compare(t *testing.T, r *feedRig) {
	t.Helper()
	columns := append([]string{"k"}, p.Columns...)
	switch {
	case p.Type == 2:
		columns = append(columns, "__START_AT", "__END_AT")
	case p.bitemporal():
		columns = append(columns, scd.BitemporalColumns...)
	}
	rows := r.held(t, fmt.Sprintf("select %s from %q where k like '%s%%'", columnsOf(columns...), p.name, p.way))
	var got []string
	for _, row := range rows {
		for i := range row {
			row[i] = strings.ReplaceAll(row[i], null, sim.Null)
		}
		line := strings.TrimPrefix(strings.Join(row[:1+len(p.Columns)], " "), p.way)
		for at := 1 + len(p.Columns); at < len(row); at += 2 {
			line += fmt.Sprintf(" [%s,%s)", row[at], strings.TrimSuffix(row[at+1], sim.Null))
		}
		got = append(got, line)
	}
	slices.Sort(got)
	want := slices.Sorted(slices.Values(p.Holds))
	if !slices.Equal(got, want) {
		var how strings.Builder
		for run, files := range p.runs {
			for _, f := range files {
				fmt.Fprintf(&how, "run %d, %s:\n%s\n", run+1, f.name, strings.Join(f.lines, "\n"))
			}
		}
		t.Errorf("%s (%s) holds\n%s\nwant\n%s\nfrom\n%s", p.Title, p.name, strings.Join(got, "\n"), strings.Join(want, "\n"), how.String())
	}
}
