package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

// crashTables: two tables whose balances always sum to the same, one with values
// stored out of line, one with a second unique column whose keys move and swap, one
// that is truncated, one without a key, one of large transactions. The audit trail is not replicated.
const crashTables = `
create table left_side(id int primary key, balance bigint not null, note text);
create table right_side(id int primary key, balance bigint not null, note text);
insert into left_side select i, 1000, 'l' || i from generate_series(1, 500) i;
insert into right_side select i, 1000, null from generate_series(1, 500) i;
create table docs(id int primary key, n int not null, body text);
alter table docs alter body set storage external;
insert into docs select i, 0, repeat(md5(i::text), 100) from generate_series(1, 100) i;
create table items(id int primary key, u int unique, v text);
insert into items select i, i, 'v' || i % 3 from generate_series(1, 200) i;
create table scratch(id int primary key, v int);
insert into scratch select i, i from generate_series(1, 50) i;
create table journal(at timestamptz not null default clock_timestamp(), what text);
insert into journal(what) select 'start ' || i from generate_series(1, 20) i;
create table bulk(id int primary key, n int not null, pad text);

create table audit(seq bigserial primary key, tx xid8 not null default pg_current_xact_id(), rel text not null, op text not null, old text[], new text[]);
create function audit_row() returns trigger language plpgsql as $$
declare o text[]; n text[];
begin
  if tg_op <> 'INSERT' then execute format('select array[%s]', (select string_agg('($1).' || quote_ident(attname) || '::text', ',' order by attnum) from pg_attribute where attrelid = tg_relid and attnum > 0)) into o using old; end if;
  if tg_op <> 'DELETE' then execute format('select array[%s]', (select string_agg('($1).' || quote_ident(attname) || '::text', ',' order by attnum) from pg_attribute where attrelid = tg_relid and attnum > 0)) into n using new; end if;
  insert into audit(rel, op, old, new) values (tg_table_name, tg_op, o, n);
  return null;
end $$;
create function audit_truncate() returns trigger language plpgsql as $$ begin insert into audit(rel, op) values (tg_table_name, 'TRUNCATE'); return null; end $$;
`

var crashHistories = []string{"left_side", "docs", "items", "scratch"}

const crashFlows = `
batch: {max_rows: 2000}
flows:
  - {source: public.*, except: [public.audit]}
  - {source: public.left_side, target: left_side_history, stored_as_scd_type: 2}
  - {source: public.docs, target: docs_history, stored_as_scd_type: 2}
  - {source: public.items, target: items_history, stored_as_scd_type: 2}
  - {source: public.scratch, target: scratch_history, stored_as_scd_type: 2}
`

type killPoint struct {
	name string
	upTo int
}

// crashPoints are the places at which the program kills itself, with how often
// they are passed before it does.
var crashPoints = []killPoint{
	{"segment received", 20}, {"before apply", 20}, {"rows written", 20}, {"applied", 20}, {"confirmed", 10},
	{"block spooled", 30}, {"taken from the spool", 4},
}

// copyPoints are met once each on the way through the first copy.
var copyPoints = []string{"mark creating", "slot made", "mark copying", "table loaded:1", "table loaded:2", "table loaded:3", "copy finished"}

// However often the program is killed, and wherever, both databases end equal and
// the history tells every change once.
func TestCrashesLoseAndDoubleNothing(t *testing.T) {
	kills := 24
	if os.Getenv("TAILRACE_SOAK") != "" {
		kills = 300
	}
	seed := seeded(t).Uint64()
	server := dbtest.Postgres(t)
	overAllKinds(t, func(t *testing.T, kind string) {
		crash(t, rand.New(rand.NewPCG(seed, uint64(len(kind)))), server, freshDestination(t, server, kind), kills)
	})
}

func crash(t *testing.T, rnd *rand.Rand, server *dbtest.Server, d destination, kills int) {
	source := server.Database(t)
	server.Exec(t, source, crashTables)
	for _, rel := range crashHistories {
		server.Exec(t, source,
			fmt.Sprintf("create trigger a after insert or update or delete on %s for each row execute function audit_row()", rel),
			fmt.Sprintf("create trigger b after truncate on %s for each statement execute function audit_truncate()", rel))
	}
	// With so little memory the server streams what is larger, to the runs that want it:
	// a transaction may come in one way before a kill, and in the other after it.
	config := configure(t, uniqueName("crash"), lowMemory(source), d, crashFlows)
	// A small bound makes some transactions come in pieces.
	env := []string{"TAILRACE_SOURCE_MAX_TRANSACTION_BYTES=64KiB", "TAILRACE_RETRY_MAX=60s"}

	writers, stopWriters := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stopWriters()
	for i := range 3 {
		seed := rnd.Uint64()
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := crashWriter(writers, source, rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
				t.Errorf("writer: %v", err)
			}
		}()
	}
	bulk := rand.New(rand.NewPCG(rnd.Uint64(), 9))
	wg.Add(1)
	go func() {
		defer wg.Done()
		if err := bulkWriter(writers, source, bulk); err != nil {
			t.Errorf("writer: %v", err)
		}
	}()
	r := &rig{server: server, source: source, dest: d, config: config}
	reads := watchSum(writers, t, &wg, r)
	streaming := func(point string) string {
		return "TAILRACE_SOURCE_STREAMING=" + onOrOff(rnd.IntN(3) > 0 || strings.Contains(point, "spool"))
	}
	killRepeatedly(t, rnd, r, env, streaming, copyPoints, crashPoints, kills)
	// One clean stop in the middle of the load leaves the slot at the mark, or behind it
	// where the server was too busy to read our last word; never beyond.
	p := start(t, append(env, "TAILRACE_SOURCE_STREAMING=on"), "run", "-c", config)
	time.Sleep(2 * time.Second)
	reads.await()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(t, patience); code != 0 {
		t.Fatalf("SIGTERM: exit %d\n%s", code, tail(p.output.String()))
	}
	status := must(t, "status", "-c", config, "--json")
	if mark, confirmed := between(status, `"position": "`), between(status, `"confirmed": "`); mark != confirmed {
		m, errMark := change.ParsePosition(mark)
		c, errSlot := change.ParsePosition(confirmed)
		if errMark != nil || errSlot != nil || m.Before(c) || c.IsZero() {
			t.Errorf("after SIGTERM the mark is %s, the slot is confirmed to %s", mark, confirmed)
		}
	}
	stopWriters()
	wg.Wait()
	// A destination that was killed every other second may be minutes behind by now.
	if p := start(t, nil, "run", "-c", config, "--once"); p.wait(t, 20*time.Minute) != 0 {
		t.Fatalf("catching up failed\n%s", tail(p.output.String()))
	}
	if out := must(t, "verify", "-c", config); !strings.Contains(out, "\n0 differences of ") {
		t.Errorf("verify:\n%s", out)
	}
	compareIndependently(t, server, source, config)
	reads.enough(t)
	t.Logf("%s: killed %d times", d.kind, kills)
}

// killRepeatedly runs a pipeline and kills it, a number of times: at each of the points
// of the copy, then at random points and moments. also gives a setting for a run that is
// to be killed at a point; it may be nil.
func killRepeatedly(t *testing.T, rnd *rand.Rand, r *rig, env []string, also func(point string) string, copyPoints []string, points []killPoint, kills int) {
	t.Helper()
	for _, point := range copyPoints {
		p := r.start(t, append(slices.Clone(env), "TAILRACE_KILL_AT="+point))
		if code := p.wait(t, 60*time.Second); code != -1 {
			t.Fatalf("point %q was never reached: exit %d\n%s", point, code, tail(p.output.String()))
		}
	}
	for range kills - len(copyPoints) {
		point := points[rnd.IntN(len(points))]
		named := rnd.IntN(3) > 0
		e := slices.Clone(env)
		if also != nil {
			e = append(e, also(point.name))
		}
		limit := time.Duration(50+rnd.IntN(1200)) * time.Millisecond
		if named {
			e, limit = append(e, fmt.Sprintf("TAILRACE_KILL_AT=%s:%d", point.name, 1+rnd.IntN(point.upTo))), 5*time.Second
		}
		p := r.start(t, e)
		select {
		case <-p.done:
			if p.cmd.ProcessState.ExitCode() != -1 || !named {
				t.Fatalf("it ended by itself: %v\n%s", p.err, tail(p.output.String()))
			}
		case <-time.After(limit):
			p.kill()
		}
	}
}

func between(s, before string) string {
	_, rest, _ := strings.Cut(s, before)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// crashWriter commits random transactions until told to stop.
func crashWriter(ctx context.Context, dsn string, rnd *rand.Rand) error {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	exec := func(sql string, args ...any) error {
		_, err := conn.Exec(context.Background(), sql, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		return err
	}
	for ctx.Err() == nil {
		// Lock in one order, so that the writers never deadlock.
		err := exec("begin; select pg_advisory_xact_lock(1)")
		steps := 1 + rnd.IntN(4)
		for range steps {
			if err != nil {
				break
			}
			id, other := 1+rnd.IntN(500), 1+rnd.IntN(500)
			switch rnd.IntN(14) {
			case 0, 1, 2, 3:
				amount := rnd.IntN(100)
				if err = exec("update left_side set balance = balance - $2 where id = $1", id, amount); err == nil {
					err = exec("update right_side set balance = balance + $2, note = 'r' where id = $1", other, amount)
				}
				// Both rows exist always: they are never deleted.
			case 4:
				err = exec("update docs set n = n + 1 where id = $1", 1+id%100)
			case 5:
				err = exec("update docs set body = repeat(md5($2::text), 80) where id = $1", 1+id%100, rnd.IntN(3))
			case 6:
				if err = exec("delete from docs where id = $1", 1+id%100); err == nil && rnd.IntN(2) == 0 {
					err = exec("insert into docs values($1, 0, repeat(md5('x'), 120))", 1+id%100)
				}
			case 7:
				err = exec("insert into docs values($1, 0, repeat(md5($1::text), 90)) on conflict (id) do update set n = docs.n", 1+id%100)
			case 8: // a key moves, and perhaps back
				err = exec("update items set id = $2 where id = $1 and not exists(select from items where id = $2)", 1+id%200, 1+other%260)
			case 9: // two keys swap over a temporary one, and so do their unique values
				a, b := 1+id%200, 1+other%200
				for _, sql := range []string{
					"update items set id = -1, u = -u where id = $1", "update items set id = $1, u = -u where id = $2",
					"update items set id = $2, u = -u where id = -1", "update items set u = -u where id = $1 and u < 0",
				} {
					if err == nil && a != b {
						args := []any{a, b}
						if strings.Contains(sql, "$2") && strings.Contains(sql, "$1") {
							err = exec(sql, args...)
						} else if strings.Contains(sql, "$2") {
							err = exec(strings.ReplaceAll(sql, "$2", "$1"), b)
						} else {
							err = exec(sql, a)
						}
					}
				}
			case 10:
				err = exec("update items set v = 'v' || (1 + length(v)) % 4 where id = $1", 1+id%200) // often changes nothing
			case 11:
				if err = exec("insert into scratch select i, $1 from generate_series(1, 30) i on conflict (id) do update set v = excluded.v", rnd.IntN(1e9)); err == nil && rnd.IntN(4) == 0 {
					if err = exec("truncate scratch"); err == nil && rnd.IntN(2) == 0 {
						err = exec("insert into scratch select i, $1 from generate_series(10, 20) i", rnd.IntN(1e9))
					}
				}
			case 12:
				err = exec("insert into journal(what) select 'entry ' || i from generate_series(1, 3) i")
			case 13: // a transaction larger than the bound
				if rnd.IntN(6) == 0 {
					err = exec("update docs set n = n + 1, body = repeat(md5(n::text), 70)")
				}
			}
		}
		end := "commit"
		if rnd.IntN(12) == 0 {
			end = "rollback"
		}
		if err == nil {
			err = exec(end)
		}
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
	}
	return nil
}

// compareIndependently compares what people see, through text, without the code
// that verify uses; and the histories with the audit trail.
func compareIndependently(t *testing.T, server *dbtest.Server, source, config string) {
	t.Helper()
	for _, rel := range []string{"left_side", "right_side", "docs", "items", "scratch", "journal", "bulk"} {
		want := query(t, server, source, "select * from "+rel)
		got := showRows(t, config, rel)
		if rel == "journal" { // an instant prints in more than one way: compare what was written
			for _, r := range append(want, got...) {
				r[0] = ""
			}
		}
		sortRows(want)
		sortRows(got)
		if len(want) != len(got) {
			t.Errorf("%s: %d rows at the source, %d in the destination", rel, len(want), len(got))
		}
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Errorf("%s differs", rel)
		}
	}
	for _, rel := range crashHistories {
		versions := showRows(t, config, rel+"_history")
		if len(versions) == 0 {
			t.Errorf("%s_history is empty", rel)
			continue
		}
		width := len(versions[0]) - 2 // without the interval
		if err := checkHistory(versions, width); err != nil {
			t.Errorf("%s_history: %v", rel, err)
		}
		var open [][]string
		counts := map[string]int{}
		for _, v := range versions {
			counts[v[0]]++
			if v[width+1] == null {
				open = append(open, v[:width])
			}
		}
		want := query(t, server, source, "select * from "+rel)
		sortRows(open)
		sortRows(want)
		if fmt.Sprint(open) != fmt.Sprint(want) {
			t.Errorf("%s_history: its open versions are not the source's rows", rel)
		}
		// The copy saw some state of the trail; from there on every change of a key is
		// one version. Which state that was is known from the first versions.
		expected, started := auditVersions(t, server, source, rel, versions, width)
		total, want2 := 0, 0
		for k, n := range counts {
			total += n
			if e := expected[k]; e != n && started[k] {
				t.Errorf("%s_history: key %s has %d versions, the audit trail tells of %d", rel, k, n, e)
			}
		}
		for _, n := range expected {
			want2 += n
		}
		if want2 == 0 || total != want2 {
			t.Errorf("%s_history: %d versions, the audit trail tells of %d", rel, total, want2)
		}
	}
}

const null = "\x00NULL"

// showRows is `tailrace show --format csv` without its header.
func showRows(t *testing.T, config, target string) [][]string {
	t.Helper()
	out := must(t, "show", "-c", config, target, "--format", "csv")
	// encoding/csv cannot tell NULL from an empty string: mark NULLs by the quotes
	// that show puts around empty strings. No value here is empty, so empty is NULL.
	r := csv.NewReader(strings.NewReader(out))
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = null
			}
		}
	}
	return rows[1:]
}

func query(t testing.TB, server *dbtest.Server, dsn, sql string) [][]string {
	t.Helper()
	conn := server.Connect(t, dsn)
	rows, err := conn.Query(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out [][]string
	for rows.Next() {
		var row []string
		for _, v := range rows.RawValues() {
			if v == nil {
				row = append(row, null)
			} else {
				row = append(row, string(v))
			}
		}
		out = append(out, row)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return out
}

func sortRows(rows [][]string) {
	sort.Slice(rows, func(i, j int) bool { return slices.Compare(rows[i], rows[j]) < 0 })
}

// checkHistory: intervals of a key neither overlap nor are empty, one is open at
// most. Instants compare as text: they have one form.
func checkHistory(versions [][]string, width int) error {
	byKey := map[string][][]string{}
	for _, v := range versions {
		byKey[v[0]] = append(byKey[v[0]], v[width:])
	}
	for k, vs := range byKey {
		sort.Slice(vs, func(i, j int) bool { return instant(vs[i][0]) < instant(vs[j][0]) })
		for i, v := range vs {
			switch {
			case v[1] == null && i < len(vs)-1:
				return fmt.Errorf("key %s has an open version before another", k)
			case v[1] != null && instant(v[1]) <= instant(v[0]):
				return fmt.Errorf("key %s has an empty interval [%s, %s)", k, v[0], v[1])
			case i > 0 && instant(vs[i-1][1]) > instant(v[0]):
				return fmt.Errorf("key %s has overlapping intervals", k)
			}
		}
	}
	return nil
}

func instant(s string) int64 {
	for _, layout := range []string{"2006-01-02 15:04:05.999999-07", "2006-01-02 15:04:05.999999-07:00", "2006-01-02 15:04:05.999999", time.RFC3339Nano} {
		if v, err := time.Parse(layout, s); err == nil {
			return v.UnixMicro()
		}
	}
	panic("instant " + s)
}

// auditVersions plays the audit trail from the copied state on and counts the
// versions of each key. Where the copy fell in the trail is found by the copied
// rows themselves: all copied versions begin at one instant, the first of all.
func auditVersions(t *testing.T, server *dbtest.Server, source, rel string, versions [][]string, width int) (map[string]int, map[string]bool) {
	t.Helper()
	copied := map[string]string{}
	first := int64(1 << 62)
	for _, v := range versions {
		first = min(first, instant(v[width]))
	}
	for _, v := range versions {
		if instant(v[width]) == first {
			copied[v[0]] = strings.Join(v[:width], "\x01")
		}
	}
	type change struct {
		tx       string
		op       string
		old, new []string
	}
	var trail []change
	for _, r := range query(t, server, source, "select tx, op, array_to_json(old), array_to_json(new) from audit where rel = '"+rel+"' order by seq") {
		trail = append(trail, change{r[0], r[1], parseArray(r[2]), parseArray(r[3])})
	}
	// Rows at the beginning: what the tables were filled with, before any trigger.
	state := initialRows(t, server, rel)
	at := -1
	same := func() bool {
		if len(state) != len(copied) {
			return false
		}
		for k, v := range copied {
			if state[k] != v {
				return false
			}
		}
		return true
	}
	play := func(c change, into map[string]string) {
		switch {
		case c.op == "TRUNCATE":
			clear(into)
		default:
			if c.old != nil {
				delete(into, c.old[0])
			}
			if c.new != nil {
				into[c.new[0]] = strings.Join(c.new, "\x01")
			}
		}
	}
	for i := 0; ; i++ {
		if (i == len(trail) || i == 0 || trail[i].tx != trail[i-1].tx) && same() {
			at = i
			break
		}
		if i == len(trail) {
			break
		}
		play(trail[i], state)
	}
	if at < 0 {
		t.Errorf("%s_history: the copied rows are no state that the source ever had", rel)
		return nil, nil
	}
	counts, started := map[string]int{}, map[string]bool{}
	for k := range state {
		counts[k], started[k] = 1, true
	}
	before := clone(state)
	for i := at; i < len(trail); i++ {
		play(trail[i], state)
		if i+1 < len(trail) && trail[i+1].tx == trail[i].tx {
			continue
		}
		for k, v := range state {
			if before[k] != v {
				counts[k]++
				started[k] = true
			}
		}
		before = clone(state)
	}
	return counts, started
}

func clone(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

// initialRows is what crashTables fills a table with.
func initialRows(t *testing.T, server *dbtest.Server, rel string) map[string]string {
	t.Helper()
	fresh := server.Database(t)
	server.Exec(t, fresh, crashTables)
	rows := map[string]string{}
	for _, r := range query(t, server, fresh, "select * from "+rel) {
		rows[r[0]] = strings.Join(r, "\x01")
	}
	return rows
}

// parseArray reads a JSON array of strings and nulls.
func parseArray(s string) []string {
	if s == null {
		return nil
	}
	var out []string
	for s = strings.TrimPrefix(s, "["); s != "" && s[0] != ']'; s = strings.TrimPrefix(s, ",") {
		if strings.HasPrefix(s, "null") {
			out, s = append(out, null), s[4:]
			continue
		}
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			panic(err)
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			panic(err)
		}
		out, s = append(out, text), s[len(quoted):]
	}
	return out
}
