package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

func (f *fixture) point() checkpoint.Point {
	f.Helper()
	if err := f.w.Save(f.Context(), checkpoint.Mark{Phase: checkpoint.Live}); err != nil {
		f.Fatal(err)
	}
	p, err := f.w.Point(f.Context(), "")
	if err != nil {
		f.Fatalf("Point: %v", err)
	}
	return p
}

func (f *fixture) rewind(p checkpoint.Point, targets ...*scd.Target) {
	f.Helper()
	if err := f.w.Rewind(f.Context(), sink.Rewind{To: p.Number, Targets: targets, Mark: p.Mark}); err != nil {
		f.Fatalf("Rewind: %v", err)
	}
}

func upserts(rows ...change.Row) scd.Round { return scd.Round{Upserts: rows} }

func TestTargetsThatPeopleHaveMadeGoBack(t *testing.T) {
	f := start(t)
	f.exec(
		"CREATE TABLE swaps (id integer PRIMARY KEY, v text UNIQUE)",
		"CREATE TABLE always (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
		"CREATE TABLE computed (id integer PRIMARY KEY, v text, twice text GENERATED ALWAYS AS (v || v) STORED)",
		"CREATE TABLE parts (id integer, v text) PARTITION BY HASH (id)",
		"CREATE TABLE parts0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
		"CREATE TABLE parts1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
		"CREATE TABLE log (v text, twice text GENERATED ALWAYS AS (v || v) STORED)",
		"CREATE DOMAIN word AS text CHECK (value <> 'bad')",
		"CREATE TABLE words (id numeric PRIMARY KEY, v word)")
	swaps, always, computed := table("swaps", scd.Type1, "id:integer", "v:text"), table("always", scd.Type1, "id:integer", "v:text"), table("computed", scd.Type1, "id:integer", "v:text", "twice:text")
	words := table("words", scd.Type1, "id:numeric", "v:text")
	words.Columns[0].Type = builtInType(change.Numeric, "numeric", 1700)
	parts, log := table("parts", scd.Type1, "id:integer", "v:text"), table("log", scd.Type1, "v:text", "twice:text")
	for _, tt := range []*scd.Target{parts, log} {
		tt.Columns[0].Key, tt.Columns[0].Nullable, tt.AppendOnly = false, true, true
	}
	all := []*scd.Target{swaps, always, computed, words, parts, log}
	for _, tt := range all {
		f.create(tt)
	}
	dump := func() string {
		var out []string
		for _, tt := range all {
			out = append(out, strings.Join(f.server.Query(f, f.dsn, fmt.Sprintf("SELECT t::text FROM %s AS t ORDER BY 1", tt.Name.Table)), " "))
		}
		return strings.Join(out, "\n")
	}
	f.apply(swaps, upserts(row("1", "a"), row("2", "b"), row("3", "c")))
	f.apply(always, upserts(row("1", "a"), row("2", "b")))
	f.apply(computed, upserts(row("1", "a", "aa"), row("2", "b", "bb")))
	f.apply(words, upserts(row("1.0", "a"), row("2.00", "b")))
	var many scd.Round
	for i := range 40 {
		many.Inserts = append(many.Inserts, row(fmt.Sprint(i%8), "x"))
	}
	f.apply(parts, many)
	f.apply(log, scd.Round{Inserts: []change.Row{row("a", "aa"), row("a", "aa"), row("∅", "∅")}})
	want := dump()
	p := f.point()
	f.apply(swaps, upserts(row("1", "b"), row("2", "a")), scd.Round{Deletes: []change.Row{row("3")}}, upserts(row("4", "c")))
	f.apply(always, scd.Round{Deletes: []change.Row{row("1")}, Upserts: []change.Row{row("2", "c"), row("3", "d")}})
	f.apply(computed, upserts(row("1", "c", "cc"), row("3", "d", "dd")))
	f.apply(words, upserts(row("1.00", "c"), row("1.000", "d")), upserts(row("2", "e"), row("3", "f")))
	f.apply(parts, scd.Round{}) // nothing, first of all
	f.apply(parts, scd.Round{Inserts: many.Inserts[:5]})
	f.apply(parts, many)
	for i := range 400 { // by COPY
		many.Inserts = append(many.Inserts, row(fmt.Sprint(i%3), "y"))
	}
	f.apply(parts, many)
	var logged scd.Round
	for i := range 300 {
		logged.Inserts = append(logged.Inserts, row(fmt.Sprint(i%3), "ignored"))
	}
	f.apply(log, logged)
	f.apply(log, scd.Round{Inserts: []change.Row{row("a", "aa")}})
	if dump() == want {
		t.Fatal("nothing has changed")
	}
	f.rewind(p, all...)
	if got := dump(); got != want {
		t.Fatalf("after the rewind there is\n%s\nwant\n%s", got, want)
	}
}

func TestColumnsThatWereNotThereGetTheirDefaults(t *testing.T) {
	f := start(t)
	tt := f.create(table("t", scd.Type1, "id:integer", "v:text"))
	f.apply(tt, upserts(row("1", "a"), row("2", "b"), row("3", "c")))
	p := f.point()
	f.apply(tt, upserts(row("1", "x")))
	f.point()
	f.exec("ALTER TABLE t ADD COLUMN n integer DEFAULT 7", "ALTER TABLE t ADD COLUMN mine text NOT NULL DEFAULT 'm'")
	wide := f.create(table("t", scd.Type1, "id:integer", "v:text", "n:integer"))
	f.apply(wide, scd.Round{Upserts: []change.Row{row("1", "y", "1"), row("2", "y", "2")}, Deletes: []change.Row{row("3")}})
	f.rewind(p, wide)
	f.wantRows("SELECT * FROM t ORDER BY id", "1|a|7|m", "2|b|7|m", "3|c|7|m")
}

func TestWhoMayMakeNoTablesGetsNoPoint(t *testing.T) {
	f := start(t)
	tt := f.create(table("t", scd.Type1, "id:integer", "v:text"))
	f.apply(tt, upserts(row("1", "0"))) // gives it its key
	role := "pointless_" + f.w.id
	f.exec("CREATE ROLE "+role+" LOGIN", "GRANT USAGE ON SCHEMA _tailrace TO "+role, "GRANT ALL ON ALL TABLES IN SCHEMA _tailrace TO "+role, "GRANT ALL ON ALL SEQUENCES IN SCHEMA _tailrace TO "+role, "GRANT ALL ON TABLE t TO "+role)
	if err := f.w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.own(f.as(role))
	if err := f.w.Save(t.Context(), checkpoint.Mark{Phase: checkpoint.Live}); err != nil {
		t.Fatal(err)
	}
	_, err := f.w.Point(t.Context(), "")
	grant := grantBookSQL(role)
	var e *fault.Error
	if fault.KindOf(err) != fault.Operator || !errors.As(err, &e) || !strings.Contains(e.Remedy, grant) {
		t.Fatalf("Point: %v, want the remedy %s", err, grant)
	}
	f.apply(tt, upserts(row("1", "a")))
	f.exec(grant)
	p := f.point()
	f.exec("REVOKE CREATE ON SCHEMA _tailrace FROM " + role)
	if err := f.w.Apply(t.Context(), f.batch(tt, upserts(row("1", "b")))); fault.KindOf(err) != fault.Operator || !errors.As(err, &e) || !strings.Contains(e.Remedy, grant) {
		t.Fatalf("Apply: %v, want the remedy %s", err, grant)
	}
	f.exec(grant)
	f.w.Close(t.Context())
	f.own(f.as(role))
	f.apply(tt, upserts(row("1", "b")))
	f.rewind(p, tt)
	f.wantRows("SELECT * FROM t", "1|a")
}

func TestOlderBookkeepingGetsWhatPointsNeed(t *testing.T) {
	f := start(t)
	tt := f.create(table("t", scd.Type1, "id:integer", "v:text"))
	f.exec("DROP TABLE _tailrace.points, _tailrace.undo, _tailrace.undo_files, _tailrace.undo_resolved")
	if list, err := f.w.Points(t.Context()); err != nil || len(list) > 0 {
		t.Fatalf("Points: %v, %v", list, err)
	}
	if list, err := f.w.Undo(t.Context(), 1); err != nil || len(list) > 0 {
		t.Fatalf("Undo: %v, %v", list, err)
	}
	f.w.Close(t.Context())
	f.own(f.dsn)
	f.apply(tt, upserts(row("1", "a")))
	p := f.point()
	f.apply(tt, upserts(row("1", "b")))
	f.rewind(p, tt)
	f.wantRows("SELECT * FROM t", "1|a")
}

// A batch of more targets than statements that are kept prepared.
func TestManyTargetsAreKeptInOneMessage(t *testing.T) {
	f := start(t)
	var list []*scd.Target
	for i := range 150 {
		list = append(list, f.create(table(fmt.Sprintf("t%d", i), scd.Type1, "id:integer", "v:text")))
	}
	write := func(v string) {
		b := f.batch(list[0])
		b.Targets = nil
		for _, tt := range list {
			b.Targets = append(b.Targets, sink.TargetRounds{Target: tt, Rounds: []scd.Round{upserts(row("1", v)), {Deletes: []change.Row{row("2")}}}})
		}
		if err := f.w.Apply(t.Context(), b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
	}
	write("a")
	p := f.point()
	write("b")
	write("c")
	f.rewind(p, list...)
	f.wantRows("SELECT (SELECT v FROM t0), (SELECT v FROM t149)", "a|a")
	write("d")
	if n := f.w.apply.s.recent.Len(); n > 3*len(list)+50 {
		t.Errorf("%d statements are prepared", n)
	}
	if err := f.w.DropPoints(t.Context(), p.Number+1); err != nil {
		t.Fatal(err)
	}
	f.wantRows("SELECT count(*) FROM pg_tables WHERE schemaname = '_tailrace' AND tablename LIKE 'undo\\_%\\_%' AND tablename NOT IN ('undo_files', 'undo_resolved')", "0")
}

func TestNoStatementThatKeepsReadsAWholeTable(t *testing.T) {
	f := start(t)
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		_, a, sh := f.byTwo(kind)
		kept := keptTable(fmt.Sprintf("kept%d", kind))
		f.exec(sh.createKeptSQL(kept))
		sql := strings.NewReplacer("$1", "'{1,2}'", "$2", "'{1,2}'").Replace(sh.keepKeysSQL(kept, sh.keptColumns()))
		for _, rows := range []int{0, 20000} { // estimates of an empty and of a grown table
			for _, name := range []string{sh.name, kept} {
				was := map[bool]string{true: "true, "}[name == kept]
				f.exec(fmt.Sprintf("INSERT INTO %s SELECT %sg, g, 'x'%s FROM generate_series(1, %d) AS g", name, was, map[scd.Kind]string{scd.Type2: ", now(), NULL"}[kind], rows))
			}
			plan, err := a.s.query(t.Context(), "EXPLAIN "+sql)
			if err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			if text := texts(plan); strings.Contains(text, "Seq Scan") || strings.Contains(text, "Hash") {
				t.Errorf("%s\n%s", sql, text)
			}
		}
	}
}
