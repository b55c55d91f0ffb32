//go:build !noduckdb

package duckdb_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

var ctx = context.Background()

var me = checkpoint.Owner{Host: "here", BootID: "boot", PID: os.Getpid(), Started: 1, Instance: "test"}

// newWriter opens and owns a fresh file.
func newWriter(t testing.TB, path string, set ...func(*duckdb.Config)) *duckdb.Writer {
	t.Helper()
	cfg := duckdb.Config{Path: path, Pipeline: "p"}
	for _, f := range set {
		f(&cfg)
	}
	w, err := duckdb.New(cfg)
	must(t, err)
	must(t, w.Own(ctx, me, 0))
	t.Cleanup(func() { w.Close(ctx) })
	return w
}

func file(t testing.TB) string { return filepath.Join(t.TempDir(), "x.duckdb") }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// col describes a column: "id int8 key", "v text untracked".
func target(name string, kind scd.Kind, cols ...string) *scd.Target {
	t := &scd.Target{Name: change.Name{Schema: "main", Table: name}, Source: change.Name{Schema: "public", Table: name}, Kind: kind}
	for _, c := range cols {
		f := strings.Fields(c)
		sc := scd.Column{Name: f[0], Type: typeNamed(f[1]), Tracked: true, Nullable: true}
		for _, flag := range f[2:] {
			switch flag {
			case "key":
				sc.Key, sc.Tracked, sc.Nullable = true, false, false
			case "untracked":
				sc.Tracked = false
			}
		}
		t.Columns = append(t.Columns, sc)
	}
	return t
}

var kinds = map[string]change.Kind{
	"bool": change.Bool, "int2": change.Int16, "int4": change.Int32, "int8": change.Int64, "float4": change.Float32, "float8": change.Float64,
	"numeric": change.Numeric, "text": change.Text, "bytea": change.Bytes, "date": change.Date, "time": change.Time, "timetz": change.TimeTZ,
	"timestamp": change.Timestamp, "timestamptz": change.TimestampTZ, "interval": change.Interval, "uuid": change.UUID, "json": change.JSON,
	"jsonb": change.JSONB, "inet": change.Other, "int4range": change.Range,
}

// typeNamed reads "numeric(12,2)", "int4[]", "text".
func typeNamed(name string) change.Type {
	if elem, ok := strings.CutSuffix(name, "[]"); ok {
		e := typeNamed(elem)
		return change.Type{Kind: change.Array, Name: name, BuiltIn: true, Elem: &e}
	}
	base, args, _ := strings.Cut(name, "(")
	t := change.Type{Kind: kinds[base], Name: name, BuiltIn: true}
	if t.Kind == change.Numeric && args != "" {
		fmt.Sscanf(args, "%d,%d)", &t.Precision, &t.Scale)
	}
	return t
}

// row makes a row of text values; nil is NULL, absent unchanged.
func row(vals ...any) change.Row {
	var r change.Row
	for _, v := range vals {
		switch v := v.(type) {
		case nil:
			r = r.Append(change.Value{State: change.Null})
		case missing:
			r = r.Append(change.Value{State: change.Absent})
		default:
			r = r.Append(change.Value{State: change.AsText, Data: []byte(fmt.Sprint(v))})
		}
	}
	return r
}

type missing struct{}

var absent missing

var lsn uint64 = 100

// apply writes one whole batch.
func apply(t testing.TB, w *duckdb.Writer, tg *scd.Target, rounds ...scd.Round) {
	t.Helper()
	must(t, tryApply(w, tg, true, false, rounds...))
}

func tryApply(w *duckdb.Writer, tg *scd.Target, first, more bool, rounds ...scd.Round) error {
	lsn++
	b := &sink.Batch{Position: change.LSN(lsn), CommitTime: time.UnixMicro(int64(lsn)), First: first, More: more}
	if tg != nil {
		b.Targets = []sink.TargetRounds{{Target: tg, Rounds: rounds}}
	}
	return w.Apply(ctx, b)
}

// dump prints a target's rows, one a line.
func dump(t testing.TB, w *duckdb.Writer, tg *scd.Target) string {
	t.Helper()
	var out strings.Builder
	header := true
	must(t, w.Show(ctx, sink.ShowQuery{Target: tg}, func(cells []*string) error {
		if header {
			header = false
			return nil
		}
		for i, c := range cells {
			if i > 0 {
				out.WriteString("|")
			}
			if c == nil {
				out.WriteString("NULL")
			} else {
				out.WriteString(*c)
			}
		}
		out.WriteString("\n")
		return nil
	}))
	return out.String()
}

func expect(t testing.TB, got string, lines ...string) {
	t.Helper()
	want := strings.Join(lines, "\n")
	if want != "" {
		want += "\n"
	}
	if got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

func TestType1RoundDoesAllOperations(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("t", scd.Type1, "id int8 key", "v text", "n int4")
	must(t, w.Create(ctx, tg))
	must(t, w.Create(ctx, tg))
	apply(t, w, tg, scd.Round{Inserts: []change.Row{row(1, "a", 1), row(2, "b", 2), row(3, "c", nil), row(4, "d", 4)}})
	expect(t, dump(t, w, tg), "1|a|1", "2|b|2", "3|c|NULL", "4|d|4")
	// Swap 1 and 2 carrying v along, delete 3, patch 4, insert an existing key.
	apply(t, w, tg, scd.Round{
		Deletes: []scd.Key{row(3)},
		Moves:   []scd.Move{{Old: row(1), Row: row(2, absent, 20)}, {Old: row(2), Row: row(1, absent, 10)}},
		Patches: []change.Row{row(4, absent, 44)},
		Upserts: []change.Row{row(5, "e", 5)},
	}, scd.Round{Inserts: []change.Row{row(5, "again", 55)}})
	expect(t, dump(t, w, tg), "1|b|10", "2|a|20", "4|d|44", "5|again|55")
	apply(t, w, tg, scd.Round{Truncate: true, Inserts: []change.Row{row(9, "z", 9)}})
	expect(t, dump(t, w, tg), "9|z|9")
	if err := tryApply(w, tg, true, false, scd.Round{Patches: []change.Row{row(1, absent, 1)}}); err == nil {
		t.Fatal("a patch of a missing row was accepted")
	}
}

func TestType2RoundFollowsTheStepRules(t *testing.T) {
	w := newWriter(t, file(t))
	tg := target("h", scd.Type2, "id int8 key", "v text", "u text untracked")
	must(t, w.Create(ctx, tg))
	at := func(us int64) string {
		return time.UnixMicro(us).UTC().Format("2006-01-02 15:04:05.999999") + "+00"
	}
	apply(t, w, tg, scd.Round{Steps: []scd.Step{
		{Key: row(1), N: 1, Lo: 1000, Row: row(1, "a", "x")},
		{Key: row(2), N: 1, Lo: 1000, Row: row(2, "b", "x")},
		{Key: row(2), N: 2, Lo: 1001, LoVoid: 1001},
		{Key: row(2), N: 3, Lo: 1002, LoVoid: 1002, Row: row(2, "c", "x")},
	}})
	expect(t, dump(t, w, tg), "1|a|x|"+at(1000)+"|NULL",
		"2|b|x|"+at(1000)+"|"+at(1001), "2|c|x|"+at(1002)+"|NULL")
	// 1: void with a new untracked value; 2: void, then closed; 3: close of nothing.
	apply(t, w, tg, scd.Round{Steps: []scd.Step{
		{Key: row(1), N: 1, Lo: 2000, Row: row(1, "a", "y")},
		{Key: row(2), N: 1, Lo: 2000, Row: row(2, "c", absent)},
		{Key: row(2), N: 2, Lo: 2001, LoVoid: 900},
		{Key: row(3), N: 1, Lo: 2000},
	}})
	expect(t, dump(t, w, tg), "1|a|y|"+at(1000)+"|NULL",
		"2|b|x|"+at(1000)+"|"+at(1001), "2|c|x|"+at(1002)+"|"+at(1003))
	// Begins again after a close, never before its end; a move fills from its origin.
	apply(t, w, tg, scd.Round{Steps: []scd.Step{
		{Key: row(1), N: 1, Lo: 3000},
		{Key: row(2), N: 1, Lo: 5, Row: row(2, "d", "x")},
		{Key: row(7), N: 1, Lo: 3000, Row: row(7, "m", absent), Origin: row(1)},
	}})
	expect(t, dump(t, w, tg), "1|a|y|"+at(1000)+"|"+at(3000),
		"2|b|x|"+at(1000)+"|"+at(1001), "2|c|x|"+at(1002)+"|"+at(1003), "2|d|x|"+at(1004)+"|NULL",
		"7|m|y|"+at(3000)+"|NULL")
	apply(t, w, tg, scd.Round{Truncate: true, TruncateAt: 1, Steps: []scd.Step{{Key: row(8), N: 1, Lo: 4000, Row: row(8, "n", nil)}}})
	expect(t, dump(t, w, tg), "1|a|y|"+at(1000)+"|"+at(3000),
		"2|b|x|"+at(1000)+"|"+at(1001), "2|c|x|"+at(1002)+"|"+at(1003), "2|d|x|"+at(1004)+"|"+at(1005),
		"7|m|y|"+at(3000)+"|"+at(3001), "8|n|NULL|"+at(4000)+"|NULL")
	bad, err := w.Invariants(ctx, tg)
	must(t, err)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
}
