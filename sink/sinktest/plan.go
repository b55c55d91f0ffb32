package sinktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/scd"
	"tailrace/sink"
)

var planTests = []test{
	{"a missing target is planned, made once, and fits", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, tt := range []target{
			people(h, text),
			staff(h, text),
			makeTarget(h, "log", scd.Type1, "a text", "n int8"),
		} {
			p := r.plan(tt)
			if p.Exists || p.Rows || len(p.DDL) == 0 || len(p.Problems) > 0 {
				t.Fatalf("plan of the missing %s: %+v", tt.Name, p)
			}
			if n := h.Query(t, "SELECT count(*) FROM information_schema.tables WHERE table_name = '"+tt.Name.Table+"'"); *n[0][0] != "0" {
				t.Fatalf("Plan made %s", tt.Name)
			}
			r.create(tt)
			r.create(tt)
			if p := r.plan(tt); !p.Exists || p.Rows || len(p.DDL) > 0 || len(p.Problems) > 0 {
				t.Fatalf("plan of the new %s: %+v", tt.Name, p)
			}
		}
	}},

	{"a missing schema is made", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		tt := people(h, text)
		tt.Name.Schema = `other "schema"`
		r.create(tt)
		r.apply(tt, text, round{inserts: []cells{{1, "a", 1}}})
		r.expect(tt, "1|a|1")
	}},

	{"a compatible table with more columns is taken as it is", nil, func(t *testing.T, h Harness) {
		tt := people(h, text)
		h.Exec(t, "CREATE TABLE "+sqlName(tt.Name)+" (extra text, n bigint, name text, id integer PRIMARY KEY, more integer DEFAULT 7)")
		r := begin(t, h)
		p := r.plan(tt)
		if !p.Exists || p.Rows || len(p.DDL) > 0 || blocked(p) {
			t.Fatalf("plan: %+v", p)
		}
		r.create(tt)
		r.load(tt, text, false, cells{1, "a", 1})
		r.apply(tt, text, round{upserts: []cells{{1, "b", nil}, {2, "c", 2}}})
		r.apply(tt, binary, round{patches: []cells{{1, absent{}, 3}}, moves: []move{{cells{2}, cells{5, absent{}, 5}}}})
		r.expect(tt, "1|b|3", "5|c|5")
		if got := lines(h.Query(t, "SELECT extra, more FROM "+sqlName(tt.Name))); !slices.Equal(got, []string{"NULL|7", "NULL|7"}) {
			t.Fatalf("the other columns hold %q", got)
		}
		if p := r.plan(tt); !p.Rows {
			t.Fatalf("plan of a table with rows: %+v", p)
		}
	}},

	{"what does not fit is a problem with a remedy", nil, func(t *testing.T, h Harness) {
		name := sqlName(people(h, text).Name)
		r := begin(t, h)
		for _, c := range []struct{ what, ddl, names string }{
			{"another type", "(id integer PRIMARY KEY, name text, n integer)", "n"},
			{"a missing column", "(id integer PRIMARY KEY, name text)", "n"},
			{"a further column that must have a value", "(id integer PRIMARY KEY, name text, n bigint, must integer NOT NULL)", "must"},
		} {
			h.Exec(t, "CREATE TABLE "+name+" "+c.ddl)
			p := r.plan(people(h, text))
			if !blocked(p) {
				t.Fatalf("%s is no problem: %+v", c.what, p)
			}
			if !slices.ContainsFunc(p.Problems, func(f sink.Finding) bool {
				return f.Blocks && f.Remedy != "" && strings.Contains(f.What, c.names)
			}) {
				t.Fatalf("%s: no problem names %s and a remedy: %+v", c.what, c.names, p.Problems)
			}
			if err := r.w.Create(r.ctx, people(h, text).Target); err == nil {
				t.Fatalf("%s: Create went through", c.what)
			}
			h.Exec(t, "DROP TABLE "+name)
		}
	}},

	{"a new column of our own table is added", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
			name := map[scd.Kind]string{scd.Type1: "one", scd.Type2: "two"}[kind]
			before := r.create(makeTarget(h, name, kind, "id int4 key", "a text"))
			after := makeTarget(h, name, kind, "id int4 key", "a text", "b int8", "c text")
			rows := round{inserts: []cells{{1, "x"}}}
			if kind == scd.Type2 {
				rows = round{steps: []step{{key: cells{1}, lo: 1000, row: cells{1, "x"}}}}
			}
			r.apply(before, text, rows)
			p := r.plan(after)
			if !p.Exists || len(p.DDL) == 0 || blocked(p) {
				t.Fatalf("plan with new columns: %+v", p)
			}
			r.create(after)
			if kind == scd.Type1 {
				r.expect(after, "1|x|NULL|NULL")
				r.apply(after, text, round{upserts: []cells{{1, "x", 5, "y"}}})
				r.apply(after, binary, round{patches: []cells{{1, absent{}, 6, absent{}}}})
				r.expect(after, "1|x|6|y")
				continue
			}
			r.expect(after, "1|x|NULL|NULL|1000|NULL")
			r.apply(after, text, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, "x", nil, nil}}}})
			r.expect(after, "1|x|NULL|NULL|1000|NULL")
			r.apply(after, binary, round{steps: []step{{key: cells{1}, lo: 3000, row: cells{1, "x", 5, absent{}}}}})
			r.expect(after, "1|x|NULL|NULL|1000|3000", "1|x|5|NULL|3000|NULL")
		}
	}},

	{"odd names survive everywhere", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for i, name := range []string{
			`a"; DROP TABLE victim; --`, `with space`, `dot.ted`, `таблица_表`, `select`, `O'Brien`, `$1`, `%s%d`, `\`, `"`,
			`a name that is sixty-three bytes long, which is the most PG has`,
		} {
			spec := []string{"id int4 key", "x text", "y text untracked"}
			for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
				tt := makeTarget(h, name, kind, spec...)
				if kind == scd.Type2 {
					tt.Name.Table = "2" + strings.TrimSuffix(name, "s")
				}
				tt.Columns[0].Name, tt.Columns[1].Name, tt.Columns[2].Name = name, `x' OR '1'='1`, "user"
				if i%2 == 1 {
					tt.Name.Schema = fmt.Sprintf(`sch"ema. %d`, i)
				}
				r.create(tt)
				if p := r.plan(tt); !p.Exists || len(p.DDL) > 0 || blocked(p) {
					t.Fatalf("plan of %s: %+v", tt.Name, p)
				}
				if kind == scd.Type1 {
					r.load(tt, text, false, cells{1, "a", "b"}, cells{2, "a", "b"}, cells{3, "a", "b"})
					r.apply(tt, text, round{upserts: []cells{{1, "c", nil}}, patches: []cells{{2, "d", absent{}}}, moves: []move{{cells{3}, cells{4, absent{}, "e"}}}, deletes: []cells{{9}}})
					r.expect(tt, "1|c|NULL", "2|d|b", "4|a|e")
				} else {
					r.load(tt, text, false, cells{1, "a", "b", 1000})
					r.apply(tt, text, round{steps: []step{{key: cells{1}, lo: 2000, row: cells{1, absent{}, "c"}}, {key: cells{2}, n: 1, lo: 2000, row: cells{2, "x", nil}}, {key: cells{2}, n: 2, lo: 2001, loVoid: 2001, row: cells{2, "y", absent{}}, origin: cells{1}}}})
					r.expect(tt, "1|a|c|1000|NULL", "2|x|NULL|2000|2001", "2|y|b|2001|NULL") // of the origin as it was before the round
					if bad, err := r.w.Invariants(r.ctx, tt.Target); err != nil || len(bad) > 0 {
						t.Fatalf("Invariants of %s: %q, %v", tt.Name, bad, err)
					}
				}
				shown := 0
				if err := r.w.Show(r.ctx, sink.ShowQuery{Target: tt.Target}, func([]*string) error { shown++; return nil }); err != nil || shown < 2 {
					t.Fatalf("Show of %s: %d lines, %v", tt.Name, shown, err)
				}
			}
		}
	}},

	{"columns that differ by case alone are different", func(f Features) bool { return f.CaseTwins }, inBothForms(func(t *testing.T, h Harness, f form) {
		r := begin(t, h)
		tt := r.create(makeTarget(h, "twins_"+f.String(), scd.Type1, "Id int4", "ID int4", "id int4 key"))
		r.apply(tt, f, round{upserts: []cells{{10, 20, 1}}})
		r.apply(tt, f, round{patches: []cells{{11, absent{}, 1}}})
		r.expect(tt, "11|20|1")
	})},

	{"a target that keeps another kind of past is refused", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		r.create(makeTarget(h, "t", scd.Type1, "id int4 key", "a text"))
		if p := r.plan(makeTarget(h, "t", scd.Type2, "id int4 key", "a text")); !blocked(p) {
			t.Fatalf("type 2 over a type 1 table: %+v", p)
		}
	}},

	{"binary values of built-in types are taken, of a server's own types not", nil, func(t *testing.T, h Harness) {
		r := begin(t, h)
		for _, typ := range []change.Type{typeInt4, typeInt8, typeText} {
			if !r.w.Binary(typ) {
				t.Errorf("binary %s is not taken", typ.Name)
			}
		}
		mood := change.Type{Kind: change.Enum, Name: "public.mood", ID: 16999}
		if r.w.Binary(mood) {
			t.Error("binary values of an enum, whose numbers are one server's own, are taken")
		}
	}},
}

func (r *rig) plan(t target) sink.Plan {
	r.t.Helper()
	p, err := r.w.Plan(r.ctx, t.Target)
	if err != nil {
		r.t.Fatalf("Plan %s: %v", t.Name, err)
	}
	return p
}

func blocked(p sink.Plan) bool {
	return slices.ContainsFunc(p.Problems, func(f sink.Finding) bool { return f.Blocks })
}
