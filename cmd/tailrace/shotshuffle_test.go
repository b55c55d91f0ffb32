package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/sim"
	"tailrace/scd/sequenced"
)

// Many short histories at once, of snapshots with keys that vanish and come back, merged
// with feeds that are late: each target is what its rules make of all of it, also where
// the program is killed in between.
func TestSnapshotSequencesGiveWhatTheRulesSay(t *testing.T) {
	const histories, last = 300, 20
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		r := newRig(t, server, kind, `create table feed (k text, op text, v int, w int, n bigint); create table whole (k text, v int, w int); create table at_version (n bigint)`,
			`batch: {max_rows: 200}
flows:
  - {source: feed, source_kind: feed, target: merged, name: feed, keys: [k], sequence_by: n, apply_as_deletes: "op = 'D'", column_list: [k, v, w]}
  - {target: merged, name: whole, keys: [k], snapshot: {relation: whole, version: {query: "select n from at_version"}, max_delete_share: 1}}
  - {target: past, stored_as_scd_type: 2, keys: [k], track_history_column_list: [v], snapshot: {query: "select k, v, w from whole", version: {query: "select n from at_version"}, max_delete_share: 1}}
`)
		p := &pastWorld{rnd: rnd, known: map[string]bool{},
			merged: sim.Oracle{Columns: 3}, past: sim.Oracle{Columns: 3, Tracked: []bool{false, true, false}}}
		for h := range histories {
			for k := range 1 + rnd.IntN(3) {
				p.keys = append(p.keys, fmt.Sprintf("%d-%d", h, k))
			}
		}
		events := p.feed(last)
		points := []string{"snapshot read", "snapshot compared", "snapshot piece", "snapshot piece:2", "snapshot applied", "before apply:2"}
		for version := 2 + rnd.IntN(2); version <= last; version += 3 + rnd.IntN(4) {
			n := rnd.IntN(1 + len(events)*2/3)
			p.write(t, r, events[:n])
			events = events[n:]
			if rnd.IntN(4) > 0 {
				p.snapshot(t, r, version)
			}
			if point := points[rnd.IntN(len(points))]; rnd.IntN(2) == 0 {
				r.command(t, []string{"TAILRACE_KILL_AT=" + point}, "run", "--once") // or it ends before that point
			}
			r.once(t)
		}
		p.write(t, r, events)
		p.snapshot(t, r, last+1)
		r.once(t)
		p.write(t, r, p.feed(2*last)) // what is late now comes too late
		r.once(t)
		r.holds(t, "merged", []string{"k", "v", "w"}, lines(p.merged.Type1(), false)...)
		r.holds(t, "past", []string{"k", "v", "w", "__START_AT", "__END_AT"}, lines(p.past.Type2(), true)...)
		r.same(t)
	})
}

// pastWorld gives the events and snapshots, and what the rules make of them.
type pastWorld struct {
	rnd          *rand.Rand
	keys         []string
	known        map[string]bool
	written      int
	merged, past sim.Oracle
}

type fed struct {
	key, op string
	v, w, n int
}

// feed makes events of sequences from 1 to last, in no order.
func (p *pastWorld) feed(last int) (out []fed) {
	for _, k := range p.keys {
		for range p.rnd.IntN(4) {
			out = append(out, fed{k, []string{"U", "U", "D"}[p.rnd.IntN(3)], p.rnd.IntN(3), p.rnd.IntN(3), 1 + p.rnd.IntN(last)})
		}
	}
	p.rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func asText(s string) change.Value { return change.Value{State: change.AsText, Data: []byte(s)} }

func threeCells(k string, v, w int) change.Row {
	return change.Row(nil).Append(asText(k)).Append(asText(strconv.Itoa(v))).Append(asText(strconv.Itoa(w)))
}

func sequenceOf(n int) []byte {
	seq, err := sequenced.AppendSequence(nil, asText(strconv.Itoa(n)), change.Type{Kind: change.Int64, Name: "bigint"})
	if err != nil {
		panic(err)
	}
	return seq
}

// write inserts events into the feed.
func (p *pastWorld) write(t *testing.T, r *rig, events []fed) {
	var rows []string
	for _, e := range events {
		rows = append(rows, fmt.Sprintf("('%s','%s',%d,%d,%d)", e.key, e.op, e.v, e.w, e.n))
		p.written++
		event := sequenced.Event{Key: change.Row(nil).Append(asText(e.key)), Delete: e.op == "D", Place: sequenced.Place{Seq: sequenceOf(e.n), At: sequenced.AppendFile(nil, "f", uint64(p.written), 0)}}
		if !event.Delete {
			event.Row = threeCells(e.key, e.v, e.w)
		}
		p.merged.Events = append(p.merged.Events, event)
	}
	if len(rows) > 0 {
		r.exec(t, "insert into feed values "+strings.Join(rows, ","))
	}
}

// snapshot puts another whole in place of the last.
func (p *pastWorld) snapshot(t *testing.T, r *rig, version int) {
	place := sequenced.SnapshotPlace(sequenceOf(version))
	start := asText(strconv.Itoa(version))
	if below := (sequenced.Place{Seq: place.Seq, At: []byte{place.At[0] - 1}}); p.merged.Truncate.Before(below) {
		p.merged.Truncate = below
	}
	var rows []string
	for _, k := range p.keys {
		key := change.Row(nil).Append(asText(k))
		if p.rnd.IntN(4) == 0 {
			if p.known[k] {
				p.past.Events = append(p.past.Events, sequenced.Event{Key: key, Place: place, Delete: true, Start: start})
			}
			continue
		}
		p.known[k] = true
		v, w := p.rnd.IntN(2), p.rnd.IntN(2)
		rows = append(rows, fmt.Sprintf("('%s',%d,%d)", k, v, w))
		e := sequenced.Event{Key: key, Place: place, Row: threeCells(k, v, w), Start: start}
		p.merged.Events = append(p.merged.Events, e)
		p.past.Events = append(p.past.Events, e)
	}
	r.exec(t, "truncate whole", "truncate at_version", "insert into whole values "+strings.Join(rows, ","), fmt.Sprintf("insert into at_version values (%d)", version))
}

// lines are an oracle's rows as holds wants them.
func lines(rows []sim.OracleVersion, history bool) (out []string) {
	for _, v := range rows {
		var cells []string
		for _, c := range v.Values {
			cells = append(cells, string(c.Data))
		}
		if history {
			cells = append(cells, v.Start, v.End)
			if v.End == "" {
				cells[len(cells)-1] = "∅"
			}
		}
		out = append(out, strings.Join(cells, " "))
	}
	slices.Sort(out)
	return out
}
