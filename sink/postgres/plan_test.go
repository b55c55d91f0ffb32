package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

func TestTypesOfTheSourceAreTakenWhereTheDestinationHasThem(t *testing.T) {
	f := start(t)
	elem := change.Type{Kind: change.Enum, Name: "public.mood", ID: 16500}
	columns := []struct {
		typ          change.Type
		here, fallen string // the column's type where the destination has the type, and where not
		value        string
	}{
		{elem, "mood", "text", "sad"},
		{change.Type{Kind: change.Array, Name: "public.mood[]", ID: 16501, Elem: &elem}, "mood[]", "text", "{sad,NULL}"},
		{change.Type{Kind: change.Numeric, Name: "public.price", ID: 16502, Domain: true, Precision: 10, Scale: 2}, "price", "numeric(10,2)", "1.50"},
		{change.Type{Kind: change.Composite, Name: "public.pair", ID: 16503}, "pair", "text", "(1,x)"},
		{change.Type{Kind: change.Other, Name: "public.citext", ID: 16504}, "citext", "text", "MiXed"},
		{change.Type{Kind: change.Other, Name: "regclass", ID: 2205, BuiltIn: true}, "text", "text", "not_there"},
		{change.Type{Kind: change.Other, Name: `other."Odd Type"`, ID: 16505}, "text", "text", "x"},
	}
	for _, there := range []bool{false, true} {
		name := fmt.Sprintf("t_%v", there)
		if there {
			f.exec("CREATE TYPE mood AS ENUM ('sad', 'glad')", "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0)", "CREATE TYPE pair AS (a int, b text)", "CREATE EXTENSION citext")
		}
		target := table(name, scd.Type2, "id:integer")
		cells, want := []string{"1"}, []string{"integer"}
		for i, c := range columns {
			target.Columns = append(target.Columns, scd.Column{Name: fmt.Sprintf("c%d", i), Type: c.typ, Tracked: true, Nullable: true})
			cells = append(cells, c.value)
			if there {
				want = append(want, c.here)
			} else {
				want = append(want, c.fallen)
			}
			if f.w.Binary(c.typ) {
				t.Errorf("binary values of %s are taken", c.typ.Name)
			}
		}
		f.create(target)
		f.wantRows("SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'public."+name+"'::regclass AND attnum > 0 AND attname NOT LIKE '\\_\\_%' ORDER BY attnum", want...)
		f.apply(target, scd.Round{Steps: []scd.Step{{Key: row("1"), N: 1, Lo: 1, Row: row(cells...)}}})
		f.apply(target, scd.Round{Steps: []scd.Step{{Key: row("1"), N: 1, Lo: 2, Row: row(cells...)}}}) // an equal version continues
		f.wantRows("SELECT count(*), max(c0::text), max(c1::text), max(c2::text), max(c3::text), max(c4::text) FROM "+name, "1|sad|{sad,NULL}|1.50|(1,x)|MiXed")
	}
	err := f.w.Apply(t.Context(), f.batch(table("t_true", scd.Type2, "id:integer", "c0:public.mood"), scd.Round{Steps: []scd.Step{{Key: row("2"), N: 1, Lo: 1, Row: row("2", "SECRETLABEL")}}}))
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "ADD VALUE") || strings.Contains(err.Error(), "SECRETLABEL") {
		t.Errorf("a new label: %v", err)
	}
}

// A key whose equality belongs to an extension must be compared by it, and found
// by its index.
func TestKeysOfAnExtensionsType(t *testing.T) {
	f := start(t)
	f.exec("CREATE EXTENSION citext")
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		target := f.create(table(fmt.Sprintf("t%d", kind), kind, "k:public.citext", "v:text"))
		if kind == scd.Type1 {
			f.apply(target, scd.Round{Inserts: []change.Row{row("A", "1"), row("b", "2"), row("c", "3"), row("d", "4")}})
			f.apply(target, scd.Round{Deletes: []change.Row{row("C"), row("D")}, Patches: []change.Row{row("a", "9")}})
			f.wantRows("SELECT k, v FROM t1 ORDER BY 1", "A|9", "b|2")
			continue
		}
		f.apply(target, scd.Round{Steps: []scd.Step{{Key: row("A"), N: 1, Lo: 1, Row: row("A", "1")}}})
		f.apply(target, scd.Round{Steps: []scd.Step{{Key: row("a"), N: 1, Lo: 2}}})
		f.wantRows(`SELECT k, "__END_AT" IS NULL FROM t2`, "A|f")
	}
}

func TestRemediesMendWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		name, ddl string
		kind      scd.Kind
	}{
		{"type", "CREATE TABLE t (id int PRIMARY KEY, v int)", scd.Type1},
		{"missing column", "CREATE TABLE t (id int PRIMARY KEY)", scd.Type1},
		{"no key", "CREATE TABLE t (id int, v text)", scd.Type1},
		{"deferrable key", "CREATE TABLE t (id int, v text, UNIQUE (id) DEFERRABLE)", scd.Type1},
		{"partial key", "CREATE TABLE t (id int, v text); CREATE UNIQUE INDEX ON t (id) WHERE v IS NULL", scd.Type1},
		{"further column", "CREATE TABLE t (id int PRIMARY KEY, v text, w int NOT NULL)", scd.Type1},
		{"identity", "CREATE TABLE t (id int PRIMARY KEY, v int GENERATED ALWAYS AS IDENTITY)", scd.Type1},
		{"history without key", `CREATE TABLE t (id int, v text, "__START_AT" timestamptz, "__END_AT" timestamptz)`, scd.Type2},
		{"history with one version", `CREATE TABLE t (id int, v text, "__START_AT" timestamptz, "__END_AT" timestamptz, PRIMARY KEY (id, "__START_AT")); CREATE UNIQUE INDEX one ON t (id)`, scd.Type2},
		{"history always closed", `CREATE TABLE t (id int, v text, "__START_AT" timestamptz, "__END_AT" timestamptz NOT NULL, PRIMARY KEY (id, "__START_AT"))`, scd.Type2},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t)
			f.exec(c.ddl)
			typ := "text"
			if c.name == "identity" {
				typ = "integer"
			}
			target := table("t", c.kind, "id:integer", "v:"+typ)
			for i := 0; ; i++ {
				p, err := f.w.Plan(t.Context(), target)
				if err != nil {
					t.Fatalf("Plan: %v", err)
				}
				if len(p.Problems) == 0 {
					if i == 0 {
						t.Fatal("there is no problem")
					}
					break
				}
				if i == 3 {
					t.Fatalf("the remedies do not mend: %+v", p.Problems)
				}
				for _, problem := range p.Problems {
					f.exec(problem.Remedy)
				}
			}
			f.create(target)
			if c.kind == scd.Type1 {
				f.apply(target, scd.Round{Upserts: []change.Row{row("1", "5")}})
			} else {
				f.apply(target, scd.Round{Steps: []scd.Step{{Key: row("1"), N: 1, Lo: 1, Row: row("1", "5")}}})
			}
			f.wantRows("SELECT id, v FROM t", "1|5")
		})
	}
}

func TestGeneratedAndIdentityColumnsOfAnExistingTable(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, d int GENERATED ALWAYS AS (a * 2) STORED, a int)`)
	target := f.create(table("t", scd.Type1, "id:integer", "d:integer", "a:integer"))
	f.load(target, "1\t99\t1\n2\t99\t2\n")
	f.wantRows("SELECT * FROM t ORDER BY 1", "1|2|1", "2|4|2")
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "99", "10")}, Inserts: []change.Row{row("3", "∅", "30")}})
	f.apply(target, scd.Round{Patches: []change.Row{row("2", "…", "20")}, Moves: []scd.Move{{Old: row("3"), Row: row("4", "…", "40")}}})
	f.wantRows("SELECT * FROM t ORDER BY 1", "1|20|10", "2|40|20", "4|80|40")
	var many scd.Round
	for i := range 500 {
		many.Inserts = append(many.Inserts, row(fmt.Sprint(i+1000), "99", "1"))
		many.Upserts = append(many.Upserts, row(fmt.Sprint(i+2000), "99", "1"))
	}
	f.apply(target, many)
	f.wantRows("SELECT count(*), sum(d) FROM t WHERE id >= 1000", "1000|2000")
}

func TestTriggersAndForeignKeysDoNotFireAgain(t *testing.T) {
	f := start(t)
	f.exec("CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent)", "CREATE TABLE log (x int)",
		"CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO log VALUES (1); RETURN NULL; END'",
		"CREATE TRIGGER note AFTER INSERT OR UPDATE ON child FOR EACH ROW EXECUTE FUNCTION note()")
	child := f.create(table("child", scd.Type1, "id:integer", "parent:integer"))
	f.load(child, "1\t77\n")
	f.apply(child, scd.Round{Upserts: []change.Row{row("2", "78")}})
	f.wantRows("SELECT count(*) FROM child", "2")
	f.wantRows("SELECT count(*) FROM log", "0")

	// Who may not set session_replication_role is told so before the first row.
	f.w.Close(t.Context())
	f.exec("CREATE ROLE plain_"+f.w.id+" LOGIN", "ALTER TABLE child OWNER TO plain_"+f.w.id, "GRANT ALL ON SCHEMA _tailrace TO PUBLIC", "GRANT ALL ON ALL TABLES IN SCHEMA _tailrace TO PUBLIC")
	t.Cleanup(func() { f.exec("DROP OWNED BY plain_"+f.w.id, "DROP ROLE plain_"+f.w.id) })
	w, err := New(Config{DSN: f.as("plain_" + f.w.id), Pipeline: "other"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.Plan(t.Context(), child)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if !slices.ContainsFunc(p.Problems, func(x sink.Finding) bool { return x.Blocks && strings.Contains(x.Remedy, "session_replication_role") }) {
		t.Fatalf("problems: %+v", p.Problems)
	}
}

func TestAnOrdinaryRoleIsTold(t *testing.T) {
	f := start(t)
	f.w.Close(t.Context())
	role := "plain_" + f.w.id
	f.exec("DROP SCHEMA _tailrace CASCADE", "CREATE ROLE "+role+" LOGIN", "REVOKE ALL ON SCHEMA public FROM PUBLIC", "REVOKE TEMPORARY ON DATABASE "+f.database()+" FROM PUBLIC")
	t.Cleanup(func() { f.exec("DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
	w, err := New(Config{DSN: f.as(role), Pipeline: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	err = w.Own(t.Context(), checkpoint.Owner{Host: "test", Instance: "a"}, 0)
	if fault.KindOf(err) != fault.Operator || !strings.HasPrefix(fault.RemedyOf(err), "GRANT CREATE ON DATABASE") {
		t.Fatalf("Own without rights: %v", err)
	}
	f.exec("CREATE TABLE theirs (id int PRIMARY KEY, v text)")
	for _, target := range []*scd.Target{table("mine", scd.Type1, "id:integer", "v:text"), table("theirs", scd.Type1, "id:integer", "v:text")} {
		for i := 0; ; i++ {
			p, err := w.Plan(t.Context(), target)
			if err != nil {
				t.Fatalf("Plan: %v", err)
			}
			if len(p.Problems) == 0 {
				break
			}
			if i == 5 {
				t.Fatalf("the grants do not help: %+v", p.Problems)
			}
			for _, problem := range p.Problems {
				f.exec(problem.Remedy)
			}
		}
	}
	f.own(f.as(role))
	for _, name := range []string{"mine", "theirs"} {
		target := f.create(table(name, scd.Type1, "id:integer", "v:text"))
		f.load(target, "1\ta\n")
		var many scd.Round
		for i := range 300 {
			many.Upserts = append(many.Upserts, row(fmt.Sprint(i), "b"))
		}
		f.apply(target, many, scd.Round{Truncate: true, Inserts: []change.Row{row("1", "c")}})
		f.wantRows("SELECT * FROM "+name, "1|c")
	}
}
