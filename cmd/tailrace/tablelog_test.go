package main

import (
	bigendian "encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/change/pgvalue"
	"tailrace/internal/dbtest"
	"tailrace/internal/sim"
	"tailrace/scd/sequenced"
)

// One life in two tables: one whose log sends only keys of old rows, one whose log
// sends them whole.
const tableLogTables = `
create table items(id int primary key, v text, big text, at timestamptz not null);
alter table items alter big set storage external;
create table whole(like items including all);
alter table whole replica identity full;
`

const tableLogFlows = `
batch: {max_rows: 20}
flows:
  - {source: public.items, target: items_now, sequence_by: at, keys: [id], except_column_list: [at]}
  - {source: public.items, target: items_history, stored_as_scd_type: 2, sequence_by: at, keys: [id], except_column_list: [at]}
  - {source: public.whole, target: whole_now, sequence_by: at, keys: [id], except_column_list: [at]}
  - {source: public.whole, target: whole_history, stored_as_scd_type: 2, sequence_by: at, keys: [id], except_column_list: [at]}
`

// tableLog makes statements on the tables and keeps them as the log tells them.
type tableLog struct {
	rnd      *rand.Rand
	rows     map[int][2]string // v and big ("" is NULL) by id
	log      []sim.Statement   // of items
	whole    []sim.Statement
	ordinal  uint64
	emptied  int
	unsent   int
	unsorted int
	last     map[int]int64 // the sequence of each row, in µs
}

func (l *tableLog) event(id int) sequenced.Event {
	return sequenced.Event{Key: change.Row(nil).Append(cell(&id, false)), Place: sequenced.Place{At: sequenced.AppendLog(nil, change.LSN(1), false, l.ordinal, 0)}}
}

const epoch2000 = 946684800 // seconds from 1970 to 2000, from which values count

func (l *tableLog) place(e *sequenced.Event, us int64) {
	e.Start = change.Value{State: change.AsText, Data: pgvalue.AppendTimestamp(nil, us, pgvalue.Finite, true)}
	seq, err := sequenced.AppendSequence(nil, e.Start, change.Type{Kind: change.TimestampTZ})
	if err != nil {
		panic(err)
	}
	e.Place.Seq = seq
}

// upsert is a row as both logs tell it, at a random sequence: in the years after 2000,
// which a DELETE's commit time is above, or after 2100, which it is not.
func (l *tableLog) upsert(id int, sent bool) (at string) {
	days := []int64{0, 36525}[l.rnd.IntN(2)]
	us := (days*86400 + int64(l.rnd.IntN(40))) * 1_000_000
	if us < l.last[id] {
		l.unsorted++
	}
	return l.tell(id, us, sent)
}

func (l *tableLog) tell(id int, us int64, sent bool) (at string) {
	l.last[id] = us
	e := l.event(id)
	l.place(&e, us)
	row := l.rows[id]
	value := func(s string) change.Value {
		if s == "" {
			return change.Value{State: change.Null}
		}
		return change.Value{State: change.AsText, Data: []byte(s)}
	}
	whole := e
	e.Row = change.Row(nil).Append(cell(&id, false)).Append(value(row[0]))
	whole.Row = slices.Clone(e.Row).Append(value(row[1]))
	if big := value(row[1]); sent || big.State == change.Null {
		e.Row = e.Row.Append(big)
	} else {
		l.unsent++
		e.Row = e.Row.Append(change.Value{State: change.Absent})
	}
	l.log, l.whole = append(l.log, sim.Statement{Event: e}), append(l.whole, sim.Statement{Event: whole})
	return string(e.Start.Data)
}

func (l *tableLog) gone(id int, behind sequenced.Behind) {
	e := l.event(id)
	e.Delete, e.Behind = true, behind
	l.place(&e, time.Now().UnixMicro()-epoch2000*1_000_000)
	l.log, l.whole = append(l.log, sim.Statement{Event: e}), append(l.whole, sim.Statement{Event: e})
}

func literal(v string, times int) string {
	if v == "" {
		return "null"
	}
	return "repeat('" + v + "', " + fmt.Sprint(times) + ")"
}

// transaction is one of a few statements, on both tables.
func (l *tableLog) transaction() (statements []string) {
	say := func(format string, args ...any) {
		for _, table := range []string{"items", "whole"} {
			statements = append(statements, fmt.Sprintf(strings.ReplaceAll(format, "TABLE", table), args...))
		}
	}
	big := func() string { return []string{"", "A", "B", "C"}[l.rnd.IntN(4)] }
	for range 1 + l.rnd.IntN(5) {
		l.ordinal++
		id := l.rnd.IntN(60)
		row, there := l.rows[id]
		what := l.rnd.IntN(200)
		switch {
		case what == 0:
			l.emptied++
			say("truncate TABLE")
			for id := range 100 {
				l.gone(id, sequenced.BehindNewest)
			}
			clear(l.rows)
		case !there:
			l.rows[id] = [2]string{string(rune('a' + l.rnd.IntN(3))), big()}
			row := l.rows[id]
			say("insert into TABLE values(%d, '%s', %s, '%s')", id, row[0], literal(row[1], 2500), l.upsert(id, true))
		case what < 60:
			say("delete from TABLE where id = %d", id)
			l.gone(id, sequenced.BehindLast)
			delete(l.rows, id)
		case what < 80:
			to := l.rnd.IntN(60)
			if _, taken := l.rows[to]; taken {
				continue
			}
			// Made anew, the large value is sent: without it the log would not tell it.
			l.rows[to] = row
			delete(l.rows, id)
			at := l.upsert(to, true)
			say("update TABLE set id = %d, big = big || '', at = '%s' where id = %d", to, at, id)
			for _, log := range []*[]sim.Statement{&l.log, &l.whole} {
				e := (*log)[len(*log)-1].Event
				e.Key, e.Row, e.Delete = l.event(id).Key, nil, true
				*log = append(*log, sim.Statement{Event: e})
			}
		case what < 120:
			l.rows[id] = [2]string{row[0], big()}
			say("update TABLE set big = %s, at = '%s' where id = %d", literal(l.rows[id][1], 2500), l.upsert(id, true), id)
		default:
			l.rows[id] = [2]string{string(rune('a' + l.rnd.IntN(3))), row[1]}
			say("update TABLE set v = '%s', at = '%s' where id = %d", l.rows[id][0], l.upsert(id, false), id)
		}
	}
	return statements
}

// expect is what a target must hold.
func expectOf(log []sim.Statement, history bool, now func(string) string) (lines []string) {
	o := sim.Oracle{Columns: 3, Tracked: []bool{false, true, true}}
	versions := o.Type1
	if history {
		versions = o.Type2
		o.Events = sim.Placed(log, func(seq []byte) (e sequenced.Event) {
			l := tableLog{}
			l.place(&e, int64(bigendian.BigEndian.Uint64(seq)^1<<63)+1)
			return e
		})
	} else {
		o.Events = sim.Placed(log, nil)
	}
	for _, v := range versions() {
		var cells []string
		for _, value := range v.Values {
			if value.State == change.Null {
				cells = append(cells, "∅")
			} else {
				cells = append(cells, string(value.Data))
			}
		}
		if history {
			cells = append(cells, now(v.Start), now(v.End))
		}
		lines = append(lines, strings.Join(cells, " "))
	}
	slices.Sort(lines)
	return lines
}

// Whatever is done to a table, by sequences that go up and down, its targets hold what
// follows from the whole log, with whole old rows in the log and without, however often
// the program is killed.
func TestTablesBySequenceHoldWhatTheirWholeLogSays(t *testing.T) {
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		rnd := seeded(t)
		began := time.Now().Add(-time.Minute)
		l := &tableLog{rnd: rnd, rows: map[int][2]string{}, last: map[int]int64{}}
		r := newRig(t, server, kind, tableLogTables, tableLogFlows)
		for range 10 {
			r.commit(t, l.transaction()...)
		}
		// The copy tells the rows that are there, and nothing of how they came.
		l.log, l.whole = nil, nil
		for id := range l.rows {
			l.ordinal++
			l.tell(id, l.last[id], true)
		}
		r.once(t)
		for attempt := range 6 {
			env := []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB"}
			if points := []string{"emptied", "before apply", "rows written", "applied", "confirmed"}; attempt%4 > 0 {
				env = append(env, fmt.Sprintf("TAILRACE_KILL_AT=%s:%d", points[rnd.IntN(len(points))], 1+rnd.IntN(4)))
			}
			p := r.start(t, env)
			for range 25 {
				r.commit(t, l.transaction()...)
			}
			if attempt == 4 { // a transaction in pieces, emptied in its middle
				l.ordinal++
				for id := range 100 {
					l.gone(id, sequenced.BehindNewest)
				}
				clear(l.rows)
				statements := []string{"truncate items, whole"}
				for range 60 {
					statements = append(statements, l.transaction()...)
				}
				r.commit(t, statements...)
			}
			select {
			case <-p.done:
			case <-time.After(500 * time.Millisecond):
				p.kill()
			}
		}
		r.once(t)
		instants := func(s string) string {
			if s == "" {
				return "∅"
			}
			at := time.UnixMicro(instant(s))
			if at.After(began) && at.Before(time.Now().Add(time.Minute)) {
				return "now"
			}
			return at.UTC().Format(time.RFC3339Nano)
		}
		for target, log := range map[string][]sim.Statement{"items_now": l.log, "items_history": l.log, "whole_now": l.whole, "whole_history": l.whole} {
			history := strings.HasSuffix(target, "history")
			columns := columnsOf("id", "v") + ", substr(big, 1, 1)"
			if history {
				columns += ", " + columnsOf("__START_AT", "__END_AT")
			}
			rows := r.held(t, "select "+columns+` from "`+target+`"`)
			for _, row := range rows {
				for i := 3; i < len(row); i++ {
					if row[i] != null {
						row[i] = instants(row[i])
					}
				}
			}
			want := expectOf(log, history, instants)
			if got := sortedRows(rows); !slices.Equal(got, want) || len(want) == 0 {
				t.Errorf("%s holds %d rows, want %d\n%s", target, len(got), len(want), differing(got, want))
			}
		}
		if rows := r.quarantined(t); len(rows) > 0 {
			t.Errorf("in quarantine: %v", rows)
		}
		t.Logf("%s: %d statements, %d times emptied, %d values not sent, %d sequences went back", kind, len(l.log), l.emptied, l.unsent, l.unsorted)
		if l.unsent == 0 || l.unsorted == 0 {
			t.Error("the log is too tame")
		}
	})
}
