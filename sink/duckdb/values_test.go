//go:build !noduckdb

package duckdb_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// TestValuesMeanTheSameInDuckDB asks the engine itself, in its own notation,
// what our writing of PostgreSQL's text means to it.
func TestValuesMeanTheSameInDuckDB(t *testing.T) {
	w := newWriter(t, file(t))
	for i, c := range []struct {
		source, made string
		values       [][2]string // PostgreSQL's text, DuckDB's literal
	}{
		{"bool", "BOOLEAN", [][2]string{{"t", "true"}, {"f", "false"}}},
		{"int2", "SMALLINT", [][2]string{{"-32768", "-32768"}}},
		{"int4", "INTEGER", [][2]string{{"2147483647", "2147483647"}}},
		{"int8", "BIGINT", [][2]string{{"-9223372036854775808", "-9223372036854775808"}}},
		{"float4", "FLOAT", [][2]string{{"0.1", "0.1::FLOAT"}, {"NaN", "'nan'::FLOAT"}, {"-Infinity", "'-inf'::FLOAT"}}},
		{"float8", "DOUBLE", [][2]string{{"1e+22", "1e22::DOUBLE"}, {"5e-324", "5e-324::DOUBLE"}}},
		{"numeric(4,2)", "DECIMAL(4,2)", [][2]string{{"-99.99", "-99.99"}, {"0.01", "0.01"}}},
		{"numeric(9,0)", "DECIMAL(9,0)", [][2]string{{"999999999", "999999999"}}},
		{"numeric(18,3)", "DECIMAL(18,3)", [][2]string{{"-123456789012345.678", "-123456789012345.678"}}},
		{"numeric(38,10)", "DECIMAL(38,10)", [][2]string{{"-9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999"}}},
		{"numeric(39,10)", "VARCHAR", [][2]string{{"99999999999999999999999999999.9999999999", "'99999999999999999999999999999.9999999999'"}}},
		{"numeric", "VARCHAR", [][2]string{{"NaN", "'NaN'"}, {"1.500", "'1.500'"}}},
		{"text", "VARCHAR", [][2]string{{"exactly12byt", "'exactly12byt'"}, {"thirteen char", "'thirteen char'"}, {"", "''"}}},
		{"bytea", "BLOB", [][2]string{{`\x00ff41`, `'\x00\xffA'::BLOB`}, {`\x`, "''::BLOB"}}},
		{"date", "DATE", [][2]string{{"2024-02-29", "DATE '2024-02-29'"}, {"infinity", "'infinity'::DATE"}, {"-infinity", "'-infinity'::DATE"}, {"0044-03-15 BC", "'0044-03-15 (BC)'::DATE"}, {"5874897-12-31", "'5874897-12-31'::DATE"}}},
		{"time", "TIME", [][2]string{{"23:59:59.999999", "TIME '23:59:59.999999'"}, {"24:00:00", "TIME '24:00:00'"}}},
		{"timetz", "TIME WITH TIME ZONE", [][2]string{{"12:34:56.1-03:30", "'12:34:56.1-03:30'::TIMETZ"}, {"00:00:00+15:59:59", "'00:00:00+15:59:59'::TIMETZ"}}},
		{"timestamp", "TIMESTAMP", [][2]string{{"1969-12-31 23:59:59.999999", "TIMESTAMP '1969-12-31 23:59:59.999999'"}, {"infinity", "'infinity'::TIMESTAMP"}, {"4713-11-24 00:00:00 BC", "'4713-11-24 (BC) 00:00:00'::TIMESTAMP"}}},
		{"timestamptz", "TIMESTAMP WITH TIME ZONE", [][2]string{{"2024-01-02 03:04:05+00", "'2024-01-02 03:04:05+00'::TIMESTAMPTZ"}, {"-infinity", "'-infinity'::TIMESTAMPTZ"}}},
		{"interval", "INTERVAL", [][2]string{{"1 mon -2 days +00:00:00.000001", "INTERVAL '1 month' - INTERVAL '2 days' + INTERVAL '1 microsecond'"}}},
		{"uuid", "UUID", [][2]string{{"00000000-0000-0000-0000-000000000001", "'00000000-0000-0000-0000-000000000001'::UUID"}, {"ffffffff-0000-0000-0000-000000000000", "'ffffffff-0000-0000-0000-000000000000'::UUID"}}},
		{"json", "JSON", [][2]string{{`{"a": 1,  "a":1e400}`, `'{"a": 1,  "a":1e400}'`}}},
		{"jsonb", "JSON", [][2]string{{`{"n": 12345678901234567890123}`, `'{"n": 12345678901234567890123}'`}}},
		{"int4[]", "VARCHAR", [][2]string{{"[0:1]={1,2}", "'[0:1]={1,2}'"}}},
		{"inet", "VARCHAR", [][2]string{{"10.0.0.0/8", "'10.0.0.0/8'"}}},
		{"int4range", "VARCHAR", [][2]string{{"[1,5)", "'[1,5)'"}}},
	} {
		tg := target(fmt.Sprintf("t%d", i), scd.Type1, "id int4 key", "v "+c.source)
		must(t, w.Create(ctx, tg))
		var rd scd.Round
		for n, v := range c.values {
			rd.Inserts = append(rd.Inserts, row(n, v[0]))
		}
		apply(t, w, tg, rd)
		for n, v := range c.values {
			var got string
			_, err := duckdb.Peek(w, ctx, fmt.Sprintf("SELECT typeof(v) || ' ' || (v::VARCHAR IS NOT DISTINCT FROM CAST(%s AS %s)::VARCHAR) FROM t%d WHERE id = %d", v[1], c.made, i, n), func(cells []*string) error {
				got = *cells[0]
				return nil
			})
			must(t, err)
			if got != c.made+" true" {
				t.Errorf("%s %q: %s, want %s equal to %s", c.source, v[0], got, c.made, v[1])
			}
		}
	}
}

// TestWhatAColumnCannotHoldIsNamed: the error is the operator's, names target and
// column, holds no value, and the remedy works.
func TestWhatAColumnCannotHoldIsNamed(t *testing.T) {
	for _, c := range []struct{ source, value, ok string }{
		{"numeric(12,2)", "NaN", "1.00"},
		{"numeric(12,2)", "Infinity", "1.00"},
		{"interval", "infinity", "1 day"},
		{"timestamp", "294276-12-31 23:59:59", "2024-01-01 00:00:00"},
		{"timestamptz", "294276-12-31 23:59:59+00", "2024-01-01 00:00:00+00"},
		{"text", "caf\xe9-secret", "café"},
	} {
		path := file(t)
		w := newWriter(t, path)
		tg := target("t", scd.Type1, "id int4 key", `odd"name `+c.source)
		must(t, w.Create(ctx, tg))
		apply(t, w, tg, scd.Round{Inserts: []change.Row{row(1, c.ok)}})
		err := tryApply(w, tg, true, false, scd.Round{Inserts: []change.Row{row(2, c.ok), row(3, c.value)}})
		if fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), `"odd""name"`) || !strings.Contains(err.Error(), "main.t") {
			t.Fatalf("%s: %v", c.source, err)
		}
		if strings.Contains(err.Error(), c.value) && c.value != "NaN" && c.value != "infinity" && c.value != "Infinity" {
			t.Fatalf("the error quotes the value: %v", err)
		}
		_, err = w.Load(ctx, tg, sink.Copy{Rows: strings.NewReader("4\t" + c.value + "\n")}, false, checkpoint.Table{Target: tg.Name, Phase: checkpoint.Live})
		if fault.KindOf(err) != fault.Operator {
			t.Fatalf("%s: Load: %v", c.source, err)
		}
		must(t, w.Close(ctx))
		w = newWriter(t, path)
		expect(t, dump(t, w, tg), "1|"+c.ok)
		if c.source == "text" {
			continue
		}
		// The remedy: hold the column as text.
		_, err = duckdb.Peek(w, ctx, `ALTER TABLE main.t ALTER COLUMN "odd""name" SET DATA TYPE VARCHAR`, func([]*string) error { return nil })
		must(t, err)
		apply(t, w, tg, scd.Round{Inserts: []change.Row{row(3, c.value)}})
		if got := dump(t, w, tg); !strings.HasSuffix(got, "3|"+c.value+"\n") {
			t.Fatalf("%s: %q", c.source, got)
		}
	}
}

func TestColumnsThatDifferByCaseAreRefused(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int4 key", "ID int4")
	p, err := w.Plan(ctx, tg)
	must(t, err)
	if len(p.Problems) != 1 || !p.Problems[0].Blocks || !strings.Contains(p.Problems[0].What, `"id" and "ID"`) || p.Problems[0].Remedy == "" {
		t.Fatalf("%+v", p.Problems)
	}
	if err := w.Create(ctx, tg); fault.KindOf(err) != fault.Operator {
		t.Fatal(err)
	}
	// Beyond ASCII the engine tells cases apart.
	must(t, w.Create(ctx, target("u", scd.Type1, "имя int4 key", "Имя int4")))
	must(t, w.Create(ctx, target("Имя", scd.Type1, "id int4 key")))
	must(t, w.Create(ctx, target("имя", scd.Type1, "id int4 key")))
	must(t, w.Create(ctx, target("Mixed", scd.Type1, "id int4 key")))
	p, err = w.Plan(ctx, target("mixed", scd.Type1, "id int4 key"))
	must(t, err)
	if len(p.Problems) == 0 || !p.Problems[0].Blocks {
		t.Fatalf("a second table whose name differs by case: %+v", p)
	}
	p, err = w.Plan(ctx, &scd.Target{Name: change.Name{Schema: "_tailrace", Table: "x"}, Kind: scd.Type1})
	must(t, err)
	if len(p.Problems) == 0 {
		t.Fatal("a target among the bookkeeping is accepted")
	}
}

func TestASchemaNamedLikeTheFile(t *testing.T) {
	w := newWriter(t, file(t)) // x.duckdb, whose catalogue is x
	tg := target("x", scd.Type2, "id int4 key", "v text")
	tg.Name.Schema = "x"
	must(t, w.Create(ctx, tg))
	apply(t, w, tg, scd.Round{Steps: []scd.Step{{Key: row(1), N: 1, Lo: 0, Row: row(1, "a")}}})
	expect(t, dump(t, w, tg), "1|a|1970-01-01 00:00:00+00|NULL")
}

func TestCopyStreamsThatAreNoneAreRefused(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int4 key", "v text")
	must(t, w.Create(ctx, tg))
	good := append([]byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 'a', 0xff, 0xff)
	for n := range good {
		cut := good[:n]
		if _, err := w.Load(ctx, tg, sink.Copy{Binary: true, Rows: bytes.NewReader(cut)}, false, checkpoint.Table{}); err == nil {
			t.Fatalf("a stream cut after %d bytes was loaded", n)
		}
	}
	n, err := w.Load(ctx, tg, sink.Copy{Binary: true, Rows: bytes.NewReader(good)}, false, checkpoint.Table{Target: tg.Name, Phase: checkpoint.Live})
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	for _, text := range []string{"1\n", "1\ta\tb\n"} {
		if _, err := w.Load(ctx, tg, sink.Copy{Rows: strings.NewReader(text)}, false, checkpoint.Table{}); fault.KindOf(err) != fault.Corrupt {
			t.Fatalf("%q: %v", text, err)
		}
	}
	expect(t, dump(t, w, tg), "1|a")
}

func TestTrackedEqualityIsThatOfStoredBytes(t *testing.T) {
	w := newWriter(t, file(t))
	for i, c := range []struct{ source, a, b string }{
		{"interval", "1 mon", "30 days"}, {"float8", "0", "-0"}, {"float4", "-0", "0"}, {"numeric", "1.0", "1.00"}, {"text", "a", "a "},
		{"json", `{"a":1}`, `{"a": 1}`}, {"timetz", "12:00:00+01", "11:00:00+00"},
	} {
		tg := target(fmt.Sprintf("t%d", i), scd.Type2, "id int4 key", "v "+c.source)
		must(t, w.Create(ctx, tg))
		for n, v := range []any{c.a, c.a, c.b, c.b, nil, nil, c.a} {
			apply(t, w, tg, scd.Round{Steps: []scd.Step{{Key: row(1), N: 1, Lo: int64(n), Row: row(1, v)}}})
		}
		if got := strings.Count(dump(t, w, tg), "\n"); got != 4 {
			t.Errorf("%s: %d versions of %s, %s, NULL, %s; want 4\n%s", c.source, got, c.a, c.b, c.a, dump(t, w, tg))
		}
	}
}

func TestWideTablesKeepTheirAbsentColumnsApart(t *testing.T) {
	w := newWriter(t, file(t))
	cols := []string{"id int4 key"}
	for i := 1; i < 150; i++ {
		cols = append(cols, fmt.Sprintf("c%d text", i))
	}
	tg := target("t", scd.Type1, cols...)
	must(t, w.Create(ctx, tg))
	first, second, want := []any{1}, []any{1}, []string{"1"}
	for i := 1; i < 150; i++ {
		first = append(first, fmt.Sprintf("old%d", i))
		if i%3 == 0 {
			second = append(second, fmt.Sprintf("new%d", i))
			want = append(want, fmt.Sprintf("new%d", i))
		} else {
			second = append(second, absent)
			want = append(want, fmt.Sprintf("old%d", i))
		}
	}
	apply(t, w, tg, scd.Round{Inserts: []change.Row{row(first...)}})
	apply(t, w, tg, scd.Round{Patches: []change.Row{row(second...)}})
	expect(t, dump(t, w, tg), strings.Join(want, "|"))
}

func TestNullInAKeyFindsItsRow(t *testing.T) {
	w := newWriter(t, file(t))
	one := target("one", scd.Type1, "a int4 key", "b int4 key", "v text")
	one.Columns[1].Nullable = true
	two := target("two", scd.Type2, "a int4 key", "b int4 key", "v text")
	two.Columns[1].Nullable = true
	must(t, w.Create(ctx, one))
	must(t, w.Create(ctx, two))
	apply(t, w, one, scd.Round{Inserts: []change.Row{row(1, nil, "x"), row(2, nil, "y"), row(1, 1, "z")}})
	apply(t, w, one, scd.Round{Deletes: []scd.Key{row(2, nil)}, Patches: []change.Row{row(1, nil, absent)}, Upserts: []change.Row{row(1, 1, "zz")}})
	expect(t, dump(t, w, one), "1|1|zz", "1|NULL|x")
	apply(t, w, two, scd.Round{Steps: []scd.Step{{Key: row(1, nil), N: 1, Lo: 0, Row: row(1, nil, "x")}}})
	apply(t, w, two, scd.Round{Steps: []scd.Step{{Key: row(1, nil), N: 1, Lo: 1_000_000}}})
	expect(t, dump(t, w, two), "1|NULL|x|1970-01-01 00:00:00+00|1970-01-01 00:00:01+00")
}

func TestHistoriesFromTheBeginningOfTime(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type2, "id int4 key", "v text")
	must(t, w.Create(ctx, tg))
	_, err := w.Load(ctx, tg, sink.Copy{Rows: strings.NewReader("1\ta\t-infinity\t\\N\n2\tb\t-infinity\t\\N\n3\tc\t-infinity\t\\N\n")}, false, checkpoint.Table{Target: tg.Name, Phase: checkpoint.Live})
	must(t, err)
	apply(t, w, tg, scd.Round{Steps: []scd.Step{
		{Key: row(1), N: 1, Lo: 1_000_000, Row: row(1, "A")},
		{Key: row(2), N: 1, Lo: 1_000_000, Row: row(2, "b")},
		{Key: row(2), N: 2, Lo: 9_000_000, LoVoid: 2_000_000, Row: row(2, "B")},
	}})
	apply(t, w, tg, scd.Round{Truncate: true, TruncateAt: 3_000_000})
	expect(t, dump(t, w, tg),
		"1|a|-infinity|1970-01-01 00:00:01+00", "1|A|1970-01-01 00:00:01+00|1970-01-01 00:00:03+00",
		"2|b|-infinity|1970-01-01 00:00:02+00", "2|B|1970-01-01 00:00:02+00|1970-01-01 00:00:03+00",
		"3|c|-infinity|1970-01-01 00:00:03+00")
	if bad, err := w.Invariants(ctx, tg); err != nil || len(bad) > 0 {
		t.Fatal(bad, err)
	}
}
