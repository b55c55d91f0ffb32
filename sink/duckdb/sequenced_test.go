//go:build !noduckdb

package duckdb_test

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// sequencedTarget is target for a flow with a sequence of that type.
func sequencedTarget(name string, kind scd.Kind, sequence string, cols ...string) *scd.Target {
	t := target(name, kind, cols...)
	t.Sequenced = true
	if kind == scd.Type2 {
		typ := typeNamed(sequence)
		t.Sequence = &typ
	}
	return t
}

func remember(t testing.TB, w *duckdb.Writer, tg *scd.Target, work sequenced.Work, rounds ...scd.Round) {
	t.Helper()
	lsn++
	must(t, w.Apply(ctx, &sink.Batch{Position: change.LSN(lsn), CommitTime: time.UnixMicro(int64(lsn)), First: true,
		Targets: []sink.TargetRounds{{Target: tg, Rounds: rounds, Hidden: &work}}}))
}

func inside(t testing.TB, w *duckdb.Writer, sql string) (cells []string) {
	t.Helper()
	_, err := duckdb.Peek(w, ctx, sql, func(line []*string) error {
		for _, c := range line {
			cells = append(cells, *c)
		}
		return nil
	})
	must(t, err)
	return cells
}

func recalled(t testing.TB, w *duckdb.Writer, tg *scd.Target, at ...sequenced.Lookup) string {
	t.Helper()
	var lines []string
	must(t, w.Remembered(ctx, tg, at, func(r sequenced.Record) error {
		lines = append(lines, fmt.Sprintf("%x %s %s %s", r.Key[5:], r.Seq, r.At, r.Body))
		return nil
	}))
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func rec(key scd.Key, seq, at, body string) sequenced.Record {
	return sequenced.Record{Key: key, Seq: []byte(seq), At: []byte(at), Body: []byte(body), Time: 1}
}

func version(key, start, end any, cells ...any) scd.Version {
	v := scd.Version{VersionEnd: scd.VersionEnd{VersionID: scd.VersionID{Key: row(key)}}, Row: row(append([]any{key}, cells...)...)}
	v.Start, _, _ = row(start).Next()
	v.End, _, _ = row(end).Next()
	return v
}

// Two keys, and two records, with one hash: the stored hashes are made equal by hand.
func TestAHashThatTwoRecordsShareMixesNothingUp(t *testing.T) {
	w := newWriter(t, file(t))
	tg := sequencedTarget("t", scd.Type2, "int8", "id int8 key")
	must(t, w.Create(ctx, tg))
	a, b := row(1), row(2)
	remember(t, w, tg, sequenced.Work{Put: []sequenced.Record{
		rec(a, "1", "p", "a1"), rec(a, "3", "p", "a3"), rec(a, "3", "q", "a3q"), rec(a, "6", "p", "a6"),
		rec(b, "2", "p", "b2"), rec(b, "5", "p", "b5"), rec(b, "7", "p", "b7"),
	}})
	table := inside(t, w, "SELECT '_tailrace.' || table_name FROM duckdb_tables() WHERE table_name LIKE 'remembered%'")[0]
	inside(t, w, fmt.Sprintf("UPDATE %s SET h = (SELECT min(h) FROM %[1]s WHERE body = 'a1'::BLOB)", table))
	inside(t, w, fmt.Sprintf("UPDATE %s SET i = (SELECT min(i) FROM %[1]s WHERE body = 'a3'::BLOB)", table))
	look := func(key scd.Key, seq string) sequenced.Lookup {
		l := sequenced.Lookup{Key: key}
		if seq != "" {
			l.Seq = []byte(seq)
		}
		return l
	}
	is := func(got string, want ...string) {
		t.Helper()
		for i := range want {
			want[i] = fmt.Sprintf("%x %s", want[i][:1], want[i][2:])
		}
		if got != strings.Join(want, "\n") {
			t.Fatalf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	}
	// The newest of all below 6 is b's.
	is(recalled(t, w, tg, look(a, "6")), "1 3 q a3q", "1 6 p a6")
	is(recalled(t, w, tg, look(a, "")), "1 1 p a1", "1 3 p a3", "1 3 q a3q", "1 6 p a6")
	// Removing one identity takes one record.
	remember(t, w, tg, sequenced.Work{Remove: []sequenced.RecordID{{Key: a, Seq: []byte("3"), At: []byte("p")}}})
	inside(t, w, fmt.Sprintf("UPDATE %s SET h = (SELECT min(h) FROM %[1]s WHERE body = 'a1'::BLOB)", table))
	is(recalled(t, w, tg, look(a, "")), "1 1 p a1", "1 3 q a3q", "1 6 p a6")
	if n := inside(t, w, "SELECT count(*) FROM "+table)[0]; n != "6" {
		t.Fatalf("%s records are left, want 6", n)
	}
}

func TestBookkeepingOfAnEarlierVersionIsCompleted(t *testing.T) {
	path := file(t)
	w := newWriter(t, path)
	tg := sequencedTarget("t", scd.Type1, "int8", "id int8 key")
	for _, table := range []string{"heads", "files", "quarantine"} {
		inside(t, w, "DROP TABLE _tailrace."+table)
	}
	must(t, w.Close(ctx))
	old, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"}) // reads only
	must(t, err)
	if head, err := old.Head(ctx, tg); err != nil || head.Horizon != nil || !head.Truncated.IsZero() {
		t.Fatalf("%+v, %v", head, err)
	}
	if files, err := old.Files(ctx); err != nil || len(files) != 0 {
		t.Fatalf("%v, %v", files, err)
	}
	must(t, old.Quarantine(ctx, "", func(sink.Aside) error { return fmt.Errorf("there is one") }))
	must(t, old.Close(ctx))
	w = newWriter(t, path)
	must(t, w.Create(ctx, tg))
	remember(t, w, tg, sequenced.Work{Put: []sequenced.Record{rec(row(1), "1", "p", "x")}})
	must(t, w.Close(ctx))
	// Who only reads can ask too.
	reader, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	defer reader.Close(ctx)
	if got := recalled(t, reader, tg, sequenced.Lookup{Key: row(1)}); got != "31 1 p x" {
		t.Fatal(got)
	}
}

func TestWhatIsRememberedIsForgottenWithTheSequence(t *testing.T) {
	w := newWriter(t, file(t))
	tg := sequencedTarget("t", scd.Type1, "int8", "id int8 key")
	must(t, w.Create(ctx, tg))
	remember(t, w, tg, sequenced.Work{Put: []sequenced.Record{rec(row(1), "1", "p", "x")}}, scd.Round{Inserts: []change.Row{row(1)}})
	ordered := target("t", scd.Type1, "id int8 key")
	must(t, w.Create(ctx, ordered))
	apply(t, w, ordered, scd.Round{Deletes: []scd.Key{row(1)}, Inserts: []change.Row{row(2)}})
	p, err := w.Plan(ctx, tg)
	must(t, err)
	if len(p.Problems) != 1 || !p.Problems[0].Blocks || !strings.Contains(p.Problems[0].Remedy, "--overwrite") {
		t.Fatalf("the stale memory is taken for the target's: %+v", p)
	}
}

func TestAsOfComparesLikeTheSequence(t *testing.T) {
	w := newWriter(t, file(t))
	for _, c := range []struct {
		sequence   string
		start, end any
		inside     []string
		outside    []string
		refused    []string
	}{
		{"int8", 9, 100, []string{"9", "10", "99.9"}, []string{"8.6", "100", "-9"}, []string{"soon", "{}"}},
		{"numeric", "9.5", "100.25", []string{"9.50", "100.2"}, []string{"9.49", "100.25", "1e3"}, []string{"x"}},
		{"numeric(12,2)", "9.50", "100.25", []string{"9.5", "100.249"}, []string{"9.499", "100.25"}, []string{""}[:0]},
		{"bytea", `\x4142`, `\xff`, []string{`\x4142`, `\x5c5c`, `\xfe`}, []string{`\x41`, `\xff00`}, []string{`\xzz`}},
		{"date", "2024-02-01", "2024-03-01", []string{"2024-02-01", "2024-02-29"}, []string{"2024-01-31", "2024-03-01"}, []string{"2024-02-31"}},
		{"pg_lsn", "0/9", "0/10", []string{"0/9", "0/A", "0/F"}, []string{"0/8", "0/10", "1/0"}, []string{"x"}},
	} {
		name := "t_" + strings.NewReplacer("(", "_", ")", "", ",", "_").Replace(c.sequence)
		tg := sequencedTarget(name, scd.Type2, c.sequence, "id int8 key", "v text")
		must(t, w.Create(ctx, tg))
		remember(t, w, tg, sequenced.Work{}, scd.Round{Begins: []scd.Version{version(1, c.start, c.end, "first"), version(1, c.end, nil, "second")}})
		bad, err := w.Invariants(ctx, tg)
		must(t, err)
		if len(bad) > 0 {
			t.Errorf("%s: %q", c.sequence, bad)
		}
		ask := func(at string) (string, error) {
			seen := ""
			err := w.Show(ctx, sink.ShowQuery{Target: tg, AsOf: at}, func(cells []*string) error {
				if *cells[1] == "first" {
					seen += "first"
				}
				return nil
			})
			return seen, err
		}
		for _, at := range c.inside {
			if got, err := ask(at); err != nil || got != "first" {
				t.Errorf("%s as of %s: %q, %v", c.sequence, at, got, err)
			}
		}
		for _, at := range c.outside {
			if got, err := ask(at); err != nil || got != "" {
				t.Errorf("%s as of %s: %q, %v", c.sequence, at, got, err)
			}
		}
		for _, at := range c.refused {
			if _, err := ask(at); fault.KindOf(err) != fault.Usage {
				t.Errorf("%s as of %s: %v, want a usage error", c.sequence, at, err)
			}
		}
	}
}

// A version before held a sequence of several columns as JSON, which has no order.
func TestASequenceOfSeveralColumnsHeldAsJSONIsFound(t *testing.T) {
	w := newWriter(t, file(t), func(c *duckdb.Config) { c.PrimaryKey = true })
	earlier := sequencedTarget("t", scd.Type2, "jsonb", "id int8 key")
	must(t, w.Create(ctx, earlier))
	remember(t, w, earlier, sequenced.Work{}, scd.Round{Begins: []scd.Version{version(1, `{"a": 9, "b": 1}`, nil)}})
	tg := sequencedTarget("t", scd.Type2, "jsonb", "id int8 key")
	tg.SequenceFields = []change.Column{{Name: "b", Type: typeNamed("int8")}, {Name: "a", Type: typeNamed("timestamptz")}}
	if got := dump(t, w, tg); !strings.HasPrefix(got, "1|{") {
		t.Fatal(got)
	}
	if err := w.Show(ctx, sink.ShowQuery{Target: tg, AsOf: "(1, 2024-01-01)"}, nil); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "--overwrite") {
		t.Fatalf("as of: %v", err)
	}
	p, err := w.Plan(ctx, tg)
	must(t, err)
	if len(p.Problems) == 0 || !p.Problems[0].Blocks || !p.Problems[0].Reset || !strings.Contains(p.Problems[0].What, `STRUCT("b" BIGINT, "a" TIMESTAMP WITH TIME ZONE)`) {
		t.Fatalf("plan: %+v", p)
	}
	must(t, w.Reset(ctx, tg))
	must(t, w.Create(ctx, tg))
	p, err = w.Plan(ctx, tg)
	must(t, err)
	if len(p.Problems)+len(p.DDL) > 0 {
		t.Fatalf("plan after Reset and Create: %+v", p)
	}
	remember(t, w, tg, sequenced.Work{}, scd.Round{Begins: []scd.Version{version(1, `{"b": 1, "a": "2024-01-01 02:00:00+02"}`, `{"a": "infinity", "b": 1}`)}})
	if got := dump(t, w, tg); got != `1|{"b": 1, "a": "2024-01-01 00:00:00+00"}|{"b": 1, "a": "infinity"}`+"\n" {
		t.Fatal(got)
	}

	// Two of its columns are one name here.
	tg.SequenceFields[1].Name = "B"
	p, err = w.Plan(ctx, tg)
	must(t, err)
	if len(p.Problems) == 0 || !strings.Contains(p.Problems[0].What, "by case") {
		t.Fatalf("plan: %+v", p)
	}
}

// TestPrimaryKeysOfSequencedTargets sends the same random events, late ones among
// them, into targets with and without primary keys.
func TestPrimaryKeysOfSequencedTargets(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	one, two := sequencedTarget("one", scd.Type1, "int8", "id int8 key", "v int4"), sequencedTarget("two", scd.Type2, "int8", "id int8 key", "v int4")
	writers := []*duckdb.Writer{newWriter(t, file(t)), newWriter(t, file(t), func(c *duckdb.Config) { c.PrimaryKey = true })}
	lanes := map[*duckdb.Writer][2]*sequenced.Lane{}
	for _, w := range writers {
		must(t, w.Create(ctx, one))
		must(t, w.Create(ctx, two))
		lanes[w] = [2]*sequenced.Lane{sequenced.New(one, sequenced.Options{}, sequenced.Head{}), sequenced.New(two, sequenced.Options{}, sequenced.Head{})}
	}
	line := uint64(0)
	for range 40 {
		var events []sequenced.Event
		for range 1 + rnd.IntN(60) {
			line++
			n, _, _ := row(rnd.IntN(300)).Next()
			seq, err := sequenced.AppendSequence(nil, n, typeNamed("int8"))
			must(t, err)
			id := rnd.IntN(20)
			e := sequenced.Event{Key: row(id), Start: n, Place: sequenced.Place{Seq: seq, At: sequenced.AppendFile(nil, "f", line, 1)}, Delete: rnd.IntN(4) == 0}
			if !e.Delete {
				e.Row = row(id, rnd.IntN(3))
			}
			events = append(events, e)
		}
		truncate := rnd.IntN(15) == 0
		for _, w := range writers {
			for i, tg := range []*scd.Target{one, two} {
				lane := lanes[w][i]
				for _, e := range events {
					lane.Add(e)
				}
				if truncate && tg.Kind == scd.Type1 {
					lane.Truncate(events[0].Place)
				}
				must(t, w.Remembered(ctx, tg, lane.Lookups(), lane.Remember))
				work, r, _, _, err := lane.Take()
				must(t, err)
				remember(t, w, tg, work, r)
			}
		}
	}
	for _, tg := range []*scd.Target{one, two} {
		if a, b := dump(t, writers[0], tg), dump(t, writers[1], tg); a != b || a == "" {
			t.Fatalf("%s without\n%s\nwith\n%s", tg.Name, a, b)
		}
		for _, w := range writers {
			if bad, err := w.Invariants(ctx, tg); err != nil || len(bad) > 0 {
				t.Fatal(bad, err)
			}
		}
	}
}

// A truncate of everything, within the memory that is enough for all else.
func TestATruncateOfManyKeysStaysInMemory(t *testing.T) {
	w := newWriter(t, file(t), func(c *duckdb.Config) { c.MemoryLimit = "128MB" })
	tg := sequencedTarget("t", scd.Type1, "int8", "id int8 key", "v text")
	must(t, w.Create(ctx, tg))
	const keys, size = 300_000, 50_000
	for from := 0; from < keys; from += size {
		var work sequenced.Work
		var r scd.Round
		for i := from; i < from+size; i++ {
			work.Put = append(work.Put, rec(row(i), "1", "2026/03/01/customers-0001.jsonl", "x"))
			r.Inserts = append(r.Inserts, row(i, "some text that is not very short"))
		}
		remember(t, w, tg, work, r)
	}
	began := time.Now()
	remember(t, w, tg, sequenced.Work{TruncateBelow: sequenced.Place{Seq: []byte("2"), At: []byte("a")}, Put: []sequenced.Record{rec(row(1), "3", "p", "x")}},
		scd.Round{Upserts: []change.Row{row(1, "x")}})
	t.Logf("%d keys in %v", keys, time.Since(began))
	expect(t, dump(t, w, tg), "1|x")
	if got := recalled(t, w, tg, sequenced.Lookup{Key: row(1)}, sequenced.Lookup{Key: row(2)}); got != "31 3 p x" {
		t.Fatal(got)
	}
}
