//go:build !noduckdb

package duckdb_test

import (
	"slices"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
	"tailrace/sink/duckdb"
)

// live gives a pipeline a mark, without which no point can be made.
func live(t testing.TB, w sink.Writer) {
	t.Helper()
	must(t, w.Save(ctx, checkpoint.Mark{Phase: checkpoint.Live, Position: change.LSN(1)}))
}

// twoPoints applies a little before and after each of two points.
func twoPoints(t *testing.T, w *duckdb.Writer) (tg *scd.Target, one, two checkpoint.Point) {
	t.Helper()
	tg = target("t", scd.Type1, "id int8 key", "v text", "n int4")
	must(t, w.Create(ctx, tg))
	live(t, w)
	apply(t, w, tg, scd.Round{Inserts: []change.Row{row(1, "a", 1), row(2, "b", 2), row(3, "c", nil)}})
	one, err := w.Point(ctx, "one")
	must(t, err)
	apply(t, w, tg, scd.Round{Deletes: []scd.Key{row(1)}, Upserts: []change.Row{row(2, "B", 2), row(4, "d", 4)}})
	two, err = w.Point(ctx, "two")
	must(t, err)
	apply(t, w, tg, scd.Round{Truncate: true, Inserts: []change.Row{row(2, "z", 2)}})
	return tg, one, two
}

func rewind(t *testing.T, w *duckdb.Writer, tg *scd.Target, to checkpoint.Point) {
	t.Helper()
	must(t, w.Rewind(ctx, sink.Rewind{To: to.Number, Targets: []*scd.Target{tg}, Mark: to.Mark}))
}

// The index of a primary key minds rows that are deleted and inserted in one transaction.
func TestRewindWithAPrimaryKey(t *testing.T) {
	w := newWriter(t, file(t), func(c *duckdb.Config) { c.PrimaryKey = true })
	tg, one, two := twoPoints(t, w)
	rewind(t, w, tg, two)
	expect(t, dump(t, w, tg), "2|B|2", "3|c|NULL", "4|d|4")
	apply(t, w, tg, scd.Round{Upserts: []change.Row{row(3, "again", 3), row(9, "new", 9)}})
	rewind(t, w, tg, one)
	expect(t, dump(t, w, tg), "1|a|1", "2|b|2", "3|c|NULL")
}

func TestPointsAreReadBesideTheOwner(t *testing.T) {
	path := file(t)
	w := newWriter(t, path)
	tg, one, two := twoPoints(t, w)
	look := func(who string, r sink.Writer) {
		t.Helper()
		rewinds := r.(sink.Rewinds)
		list, err := rewinds.Points(ctx)
		must(t, err)
		if len(list) != 2 || list[0].Label != "one" || list[1].Label != "two" || list[0].Bytes == 0 {
			t.Fatalf("%s sees points %+v", who, list)
		}
		for number, rows := range map[int64]int64{one.Number: 4, two.Number: 3} {
			undo, err := rewinds.Undo(ctx, number)
			must(t, err)
			if want := []sink.Undo{{Target: tg.Name, Rows: rows}}; !slices.Equal(undo, want) {
				t.Fatalf("%s sees %+v of point %d, want %+v", who, undo, number, want)
			}
		}
		if _, err := rewinds.Point(ctx, ""); err == nil {
			t.Fatalf("%s made a point", who)
		}
	}
	look("the owner's onlooker", onlooker(t, w))
	must(t, w.Close(ctx))
	other, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	look("a reader of the file", other)
	must(t, other.Close(ctx))
}

func onlooker(t *testing.T, w *duckdb.Writer) sink.Writer {
	t.Helper()
	g, err := w.Onlooker()
	must(t, err)
	t.Cleanup(func() { must(t, g.Close(ctx)) })
	return g
}

func TestOlderFilesGetRewindPoints(t *testing.T) {
	path := file(t)
	w := newWriter(t, path)
	tg := target("t", scd.Type1, "id int8 key", "v text")
	must(t, w.Create(ctx, tg))
	live(t, w)
	for _, table := range []string{"points", "point_numbers", "undo", "undo_files", "undo_quarantine", "undo_violations"} {
		_, err := duckdb.Peek(w, ctx, "DROP TABLE _tailrace."+table, func([]*string) error { return nil })
		must(t, err)
	}
	must(t, w.Close(ctx))
	reader, err := duckdb.New(duckdb.Config{Path: path, Pipeline: "p"})
	must(t, err)
	points, err := reader.Points(ctx)
	must(t, err)
	undo, err := reader.Undo(ctx, 1)
	must(t, err)
	if len(points)+len(undo) > 0 {
		t.Fatalf("an older file has points %+v, %+v", points, undo)
	}
	must(t, reader.Close(ctx))
	w = newWriter(t, path)
	apply(t, w, tg, scd.Round{Inserts: []change.Row{row(1, "a")}})
	p, err := w.Point(ctx, "")
	must(t, err)
	apply(t, w, tg, scd.Round{Upserts: []change.Row{row(1, "b")}})
	rewind(t, w, tg, p)
	expect(t, dump(t, w, tg), "1|a")
}

// Without a point a batch asks nothing and keeps nothing, also after there were some.
func TestNothingIsKeptWithoutAPoint(t *testing.T) {
	w := newWriter(t, file(t))
	kept := func() (n int) {
		_, err := duckdb.Peek(w, ctx, "SELECT table_name FROM duckdb_tables() WHERE schema_name = '_tailrace' AND starts_with(table_name, 'kept_') UNION ALL SELECT kept FROM _tailrace.undo",
			func([]*string) error { n++; return nil })
		must(t, err)
		return n
	}
	tg, _, two := twoPoints(t, w)
	if n := kept(); n != 4 {
		t.Fatalf("%d entries of what is kept for two points, want a table and a row for each", n)
	}
	must(t, w.DropPoints(ctx, two.Number+1))
	apply(t, w, tg, scd.Round{Upserts: []change.Row{row(1, "x", 1)}})
	if n := kept(); n != 0 {
		t.Fatalf("%d entries of what is kept without a point", n)
	}
	three, err := w.Point(ctx, "three")
	must(t, err)
	if three.Number != two.Number+1 {
		t.Fatalf("the next point has number %d after %d", three.Number, two.Number)
	}
}
