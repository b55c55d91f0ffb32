package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
)

func TestCatalogueListsWhatCanBeFollowed(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server,
			"CREATE SCHEMA _tailrace", "CREATE TABLE _tailrace.mark (id int PRIMARY KEY)",
			"CREATE VIEW v AS SELECT 1", "CREATE MATERIALIZED VIEW mv AS SELECT 1",
			"CREATE UNLOGGED TABLE u (id int PRIMARY KEY)",
			"CREATE FOREIGN DATA WRAPPER w", "CREATE SERVER s FOREIGN DATA WRAPPER w", "CREATE FOREIGN TABLE ft (id int) SERVER s",
			`CREATE TABLE t ("Id" int, "ID" int, id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent int, x text NOT NULL, gen int GENERATED ALWAYS AS (parent + 1) STORED)`,
			`CREATE TABLE ref (k1 uuid, k2 text, t_id int REFERENCES t, PRIMARY KEY (k2, k1))`,
			"CREATE INDEX t_x ON t (x)", "CREATE UNIQUE INDEX t_parent ON t (parent)",
			"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'", "CREATE TRIGGER tr AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
			"CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)", "CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)", "CREATE TABLE leaf PARTITION OF mid FOR VALUES FROM (0) TO (10)",
			"INSERT INTO t (parent, x) SELECT i, 'x' FROM generate_series(1, 1000) i", "INSERT INTO root VALUES (1, 'a')", "ANALYZE")
		relations := f.relations()
		wantText(t, "relations", strings.Join(sortedNames(relations), " "), "public.ft public.ref public.root public.t public.u")
		rel := f.relation("t")
		wantText(t, "columns", rel.Table.ColumnNames(), "Id, ID, id, parent, x")
		wantText(t, "notes", strings.Join(rel.Notes, "\n"),
			"not replicated: 2 indexes (t_parent, t_x)\nnot replicated: 1 sequence (t_id_seq)\nnot replicated: 1 trigger (tr)\nnot sent by the log: gen")
		wantText(t, "primary key", fmt.Sprint(rel.PrimaryKey), "[id]")
		if rel.Rows != 1000 || rel.Size <= 0 || !rel.Usable || rel.Problem != "" {
			t.Errorf("%+v", rel)
		}
		if ref := f.relation("ref"); !slices.Equal(ref.PrimaryKey, []string{"k2", "k1"}) || !slices.Contains(ref.Notes, "not replicated: 1 foreign key (ref_t_id_fkey)") {
			t.Errorf("%+v", ref)
		}
		if root := f.relation("root"); root.Rows != 1 || root.Size <= 0 || !root.Usable {
			t.Errorf("%+v", root)
		}
		for name, problem := range map[string]string{"ft": "foreign", "u": "unlogged"} {
			if r := f.relation(name); !strings.Contains(r.Problem, problem) {
				t.Errorf("%s: %q", name, r.Problem)
			}
		}
	})
}

func TestIdentityIsJudgedAsTheServerDoes(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		cases := []struct {
			name, ddl string
			serves    bool
			keys      string
		}{
			{"pk", "CREATE TABLE pk (id int PRIMARY KEY, v int)", true, "id"},
			{"keyless", "CREATE TABLE keyless (id int, v int)", false, ""},
			{"uniq", "CREATE TABLE uniq (id int NOT NULL UNIQUE, v int)", false, ""},
			{"deferred", "CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, v int)", false, ""},
			{"idx", "CREATE TABLE idx (id int PRIMARY KEY, u int NOT NULL UNIQUE); ALTER TABLE idx REPLICA IDENTITY USING INDEX idx_u_key", true, "u"},
			{"gone", "CREATE TABLE gone (id int PRIMARY KEY, u int NOT NULL UNIQUE); ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_u_key; ALTER TABLE gone DROP CONSTRAINT gone_u_key", false, ""},
			{"whole", "CREATE TABLE whole (id int, v int); ALTER TABLE whole REPLICA IDENTITY FULL", true, "id, v"},
			{"nothing", "CREATE TABLE nothing (id int PRIMARY KEY, v int); ALTER TABLE nothing REPLICA IDENTITY NOTHING", false, ""},
			{"rooted", "CREATE TABLE rooted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE rooted1 PARTITION OF rooted DEFAULT", true, "id"},
			{"badleaf", "CREATE TABLE badleaf (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE badleaf1 PARTITION OF badleaf DEFAULT; ALTER TABLE badleaf1 REPLICA IDENTITY NOTHING", false, ""},
			{"fullroot", "CREATE TABLE fullroot (id int, v int) PARTITION BY RANGE (id); CREATE TABLE fullroot1 PARTITION OF fullroot DEFAULT; ALTER TABLE fullroot REPLICA IDENTITY FULL", false, ""},
			{"fullboth", "CREATE TABLE fullboth (id int, v int) PARTITION BY RANGE (id); CREATE TABLE fullboth1 PARTITION OF fullboth DEFAULT; ALTER TABLE fullboth REPLICA IDENTITY FULL; ALTER TABLE fullboth1 REPLICA IDENTITY FULL", true, "id, v"},
			{"otherleaf", "CREATE TABLE otherleaf (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id); CREATE TABLE otherleaf1 PARTITION OF otherleaf DEFAULT; CREATE UNIQUE INDEX oi ON otherleaf1 (v); ALTER TABLE otherleaf1 REPLICA IDENTITY USING INDEX oi", false, ""},
		}
		var ddl []string
		for _, c := range cases {
			ddl = append(ddl, c.ddl)
		}
		f := bare(t, server, ddl...)
		for _, c := range cases {
			rel := f.relation(c.name)
			var keys []string
			for _, col := range rel.Table.Columns {
				if col.Key {
					keys = append(keys, col.Name)
				}
			}
			if rel.Usable != c.serves || c.serves && strings.Join(keys, ", ") != c.keys {
				t.Errorf("%s: usable %v with (%s), want %v with (%s)", c.name, rel.Usable, strings.Join(keys, ", "), c.serves, c.keys)
			}
			// The server's own verdict: does an UPDATE of a published table fail?
			f.exec("CREATE PUBLICATION x FOR TABLE ONLY "+c.name+" WITH (publish_via_partition_root = true)", "INSERT INTO "+c.name+" VALUES (1, 1)")
			err := tryExec(f, "UPDATE "+c.name+" SET id = 1")
			if c.name != "fullroot" && c.name != "otherleaf" && (err == nil) != c.serves {
				t.Errorf("%s: the server says %v", c.name, err)
			}
			f.exec("DROP PUBLICATION x")
		}
	})
}

func tryExec(f *fixture, sql string) error {
	conn := f.server.Connect(f.t, f.dsn)
	_, err := conn.Exec(testContext(f.t), sql)
	return err
}

func TestThousandsOfTablesAreReadFast(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TYPE mood AS ENUM ('a')")
	for i := range 20 {
		f.exec(fmt.Sprintf("DO $$ BEGIN FOR i IN 1..100 LOOP EXECUTE format('CREATE TABLE t%d_%%s (id bigint PRIMARY KEY, a text, b numeric(10,2), c mood[], d timestamptz)', i); END LOOP; END $$", i))
	}
	begin := time.Now()
	relations := f.relations()
	if d := time.Since(begin); d > 3*time.Second || len(relations) != 2000 {
		t.Errorf("%d relations in %v", len(relations), d)
	}
	begin = time.Now()
	f.publish()
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("publishing took %v", d)
	}
	if plan, err := f.source.PlanPublications(testContext(t), f.followed()); err != nil || len(plan) != 0 {
		t.Errorf("after publishing: %v, %v", plan, err)
	}
}

func TestTypesAreDescribed(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE SCHEMA s", "CREATE DOMAIN s.positive AS int CHECK (VALUE > 0)", "CREATE DOMAIN s.list AS s.positive[]", "CREATE TYPE s.pair AS (a int, b text)",
		`CREATE TABLE t (id int PRIMARY KEY, n0 numeric, n1 numeric(5), n2 numeric(5,-2), n3 numeric(3,5)[], l s.list, p s.pair, c "char", nm name, ch char, vc varchar, tz time(3) with time zone, mr int4multirange, o oid, bits bit(3))`)
	got := map[string]change.Type{}
	for _, c := range f.relation("t").Table.Columns {
		got[c.Name] = c.Type
	}
	brief := func(ty change.Type) string {
		s := fmt.Sprintf("%d %s %d,%d len %d", ty.Kind, ty.Name, ty.Precision, ty.Scale, ty.Length)
		if ty.BuiltIn {
			s += " built-in"
		}
		if ty.Domain {
			s += " domain"
		}
		if ty.Elem != nil {
			s += fmt.Sprintf(" of [%d %s %d,%d]", ty.Elem.Kind, ty.Elem.Name, ty.Elem.Precision, ty.Elem.Scale)
		}
		return s
	}
	for name, want := range map[string]string{
		"n0":   fmt.Sprintf("%d numeric 0,0 len 0 built-in", change.Numeric),
		"n1":   fmt.Sprintf("%d numeric(5,0) 5,0 len 0 built-in", change.Numeric),
		"n2":   fmt.Sprintf("%d numeric(5,-2) 5,-2 len 0 built-in", change.Numeric),
		"n3":   fmt.Sprintf("%d numeric(3,5)[] 0,0 len 0 built-in of [%d numeric(3,5) 3,5]", change.Array, change.Numeric),
		"l":    fmt.Sprintf("%d s.list 0,0 len 0 domain of [%d s.positive 0,0]", change.Array, change.Int32),
		"p":    fmt.Sprintf("%d s.pair 0,0 len 0", change.Composite),
		"c":    fmt.Sprintf("%d \"char\" 0,0 len 0 built-in", change.Other),
		"nm":   fmt.Sprintf("%d name 0,0 len 0 built-in", change.Text),
		"ch":   fmt.Sprintf("%d character(1) 0,0 len 1 built-in", change.Text),
		"vc":   fmt.Sprintf("%d character varying 0,0 len 0 built-in", change.Text),
		"tz":   fmt.Sprintf("%d time(3) with time zone 0,0 len 0 built-in", change.TimeTZ),
		"mr":   fmt.Sprintf("%d int4multirange 0,0 len 0 built-in", change.Range),
		"o":    fmt.Sprintf("%d oid 0,0 len 0 built-in", change.Other),
		"bits": fmt.Sprintf("%d bit(3) 0,0 len 0 built-in", change.Other),
	} {
		wantText(t, name, brief(got[name]), want)
	}
}
