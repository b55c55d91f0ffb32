package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// These tests are of what PostgreSQL alone has; the contract is in sinktest.

// fixture is a Writer that owns a pipeline in a database of its own.
type fixture struct {
	*testing.T
	server *dbtest.Server
	dsn    string // as superuser
	w      *Writer
	pos    uint64
}

func start(t *testing.T, opts ...dbtest.Option) *fixture {
	server := dbtest.Postgres(t, opts...)
	f := &fixture{T: t, server: server, dsn: server.Database(t)}
	f.own(f.dsn)
	return f
}

func (f *fixture) own(dsn string) {
	f.Helper()
	w, err := New(Config{DSN: dsn, Pipeline: "shop"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { w.Close(context.Background()) })
	f.w = w
	if err := w.Own(f.Context(), checkpoint.Owner{Host: "test", Instance: w.id}, 0); err != nil {
		f.Fatalf("Own: %v", err)
	}
}

func (f *fixture) exec(sql ...string) { f.Helper(); f.server.Exec(f, f.dsn, sql...) }

func (f *fixture) wantRows(sql string, want ...string) {
	f.Helper()
	if got := f.server.Query(f, f.dsn, sql); !slices.Equal(got, want) {
		f.Fatalf("%s\n gives %q\n want  %q", sql, got, want)
	}
}

func (f *fixture) create(t *scd.Target) *scd.Target {
	f.Helper()
	if err := f.w.Create(f.Context(), t); err != nil {
		f.Fatalf("Create: %v", err)
	}
	return t
}

func (f *fixture) batch(t *scd.Target, rounds ...scd.Round) *sink.Batch {
	f.pos += 16
	return &sink.Batch{Targets: []sink.TargetRounds{{Target: t, Rounds: rounds}}, Position: change.LSN(f.pos), First: true}
}

func (f *fixture) apply(t *scd.Target, rounds ...scd.Round) {
	f.Helper()
	if err := f.w.Apply(f.Context(), f.batch(t, rounds...)); err != nil {
		f.Fatalf("Apply: %v", err)
	}
}

func (f *fixture) load(t *scd.Target, lines string) {
	f.Helper()
	if _, err := f.w.Load(f.Context(), t, sink.Copy{Rows: strings.NewReader(lines)}, false, checkpoint.Table{Target: t.Name, Phase: checkpoint.Live}); err != nil {
		f.Fatalf("Load: %v", err)
	}
}

// table makes a target in schema public of columns written "name:type"; the first
// is the key.
func table(name string, kind scd.Kind, columns ...string) *scd.Target {
	t := &scd.Target{Name: change.Name{Schema: "public", Table: name}, Source: change.Name{Schema: "public", Table: name}, Kind: kind}
	for i, c := range columns {
		n, typ, _ := strings.Cut(c, ":")
		t.Columns = append(t.Columns, scd.Column{Name: n, Type: typeNamed(typ), Key: i == 0, Tracked: i > 0, Nullable: i > 0})
	}
	return t
}

func typeNamed(name string) change.Type {
	switch name {
	case "integer":
		return builtInType(change.Int32, name, 23)
	case "bigint":
		return builtInType(change.Int64, name, 20)
	case "text":
		return builtInType(change.Text, name, 25)
	}
	return change.Type{Kind: change.Other, Name: name, ID: 20000}
}

// row makes a row of texts; "∅" is NULL and "…" was not sent.
func row(cells ...string) change.Row {
	r := change.Row{}
	for _, c := range cells {
		switch c {
		case "∅":
			r = r.Append(change.Value{State: change.Null})
		case "…":
			r = r.Append(change.Value{State: change.Absent})
		default:
			r = r.Append(change.Value{State: change.AsText, Data: []byte(c)})
		}
	}
	return r
}

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

// as is the connection string of another role.
func (f *fixture) as(role string) string {
	conf, err := pgconn.ParseConfig(f.dsn)
	if err != nil {
		f.Fatal(err)
	}
	return f.server.DSNAs(role, "", conf.Database)
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

func (f *fixture) database() string {
	return f.server.Query(f, f.dsn, "SELECT current_database()")[0]
}

func TestAServerThatCannotTakeEveryTextIsRefused(t *testing.T) {
	server := dbtest.Postgres(t)
	name := "ascii_" + time.Now().Format("150405")
	server.CreateDatabase(t, name, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	w, err := New(Config{DSN: server.DSN(name), Pipeline: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.State(t.Context())
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "UTF8") {
		t.Fatalf("State of an SQL_ASCII database: %v", err)
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	const secret = "s3cr3t-p@ss/word?#%"
	server := dbtest.Postgres(t)
	for _, dsn := range []string{
		"postgres://user:" + secret + "@localhost/db",
		"host=localhost password='" + secret + " port=x",
		"postgres://user:s3cr3t-p%40ss%2Fword%3F%23%25@127.0.0.1:1/db",
		"host=127.0.0.1 port=" + fmt.Sprint(server.Port) + " user=nobody_here dbname=postgres password='" + secret + "'",
	} {
		w, err := New(Config{DSN: dsn, Pipeline: "shop"})
		if err == nil {
			_, err = w.State(t.Context())
		}
		if err == nil {
			t.Fatal("there was no error")
		}
		for _, part := range []string{"s3cr3t", "word?#%"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("the error shows the password: %v", err)
			}
		}
	}
}

// writes counts the messages that a Writer's connections send.
type writes struct {
	net.Conn
	n *atomic.Int64
}

func (c writes) Write(b []byte) (int, error) { c.n.Add(1); return c.Conn.Write(b) }

func TestASmallTransactionIsOneRoundTrip(t *testing.T) {
	f := start(t)
	f.w.Close(t.Context())
	var n atomic.Int64
	dial := f.w.conf.DialFunc
	f.w.conf.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return writes{c, &n}, err
	}
	if err := f.w.Own(t.Context(), checkpoint.Owner{Host: "test", Instance: "again"}, 0); err != nil {
		t.Fatal(err)
	}
	one, two := f.create(table("one", scd.Type1, "id:integer", "v:text")), f.create(table("two", scd.Type2, "id:integer", "v:text"))
	f.w.apply.broken = false
	apply := func(i int) {
		b := f.batch(one, scd.Round{Inserts: []change.Row{row(fmt.Sprint(i), "a")}, Deletes: []change.Row{row(fmt.Sprint(i - 1))}})
		b.Targets = append(b.Targets, sink.TargetRounds{Target: two, Rounds: []scd.Round{{Steps: []scd.Step{{Key: row("1"), N: 1, Lo: int64(i), Row: row("1", fmt.Sprint(i))}}}}})
		if err := f.w.Apply(t.Context(), b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
	}
	apply(1)
	before := n.Load()
	for i := range 10 {
		apply(i + 2)
	}
	if got := n.Load() - before; got != 10 {
		t.Errorf("10 transactions took %d messages, want 10", got)
	}
	f.wantRows("SELECT * FROM one", "11|a")
	f.wantRows("SELECT count(*) FROM two", "11")
}

func TestACommitThatFailsLeavesNothing(t *testing.T) {
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer", "x:integer"))
	f.w.Close(t.Context())
	// A constraint trigger that fires always, for us too, and only at commit.
	f.exec("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''row % is not wanted'', NEW; END'",
		"CREATE CONSTRAINT TRIGGER no AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()", "ALTER TABLE t ENABLE ALWAYS TRIGGER no")
	for _, rows := range []int{1, 1000} {
		f.own(f.dsn)
		var r scd.Round
		for i := range rows {
			r.Upserts = append(r.Upserts, row(fmt.Sprint(i), "5555"))
		}
		err := f.w.Apply(t.Context(), f.batch(target, r))
		if err == nil || strings.Contains(err.Error(), "5555") {
			t.Fatalf("%d rows: %v", rows, err)
		}
		f.wantRows("SELECT count(*) FROM t", "0")
		if m, err := f.w.State(t.Context()); err != nil || !m.Position.IsZero() {
			t.Fatalf("mark %v, %v", m.Position, err)
		}
		f.w.Close(t.Context())
	}
	f.exec("DROP TRIGGER no ON t")
	f.own(f.dsn)
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "1")}})
	f.wantRows("SELECT count(*) FROM t", "1")
}

func TestALostConnectionIsTransientAndNothingIsHalfWritten(t *testing.T) {
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer", "x:integer"))
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "1")}})
	b := f.batch(target, scd.Round{Truncate: true})
	b.More = true
	if err := f.w.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	f.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%" + f.w.id + "' AND state = 'idle in transaction'")
	b = f.batch(target, scd.Round{Inserts: []change.Row{row("2", "2")}})
	b.First = false
	err := f.w.Apply(t.Context(), b)
	if fault.KindOf(err) != fault.Transient {
		t.Fatalf("Apply over a lost connection: %v (%v)", err, fault.KindOf(err))
	}
	f.wantRows("SELECT id FROM t", "1")
	if err := f.w.Apply(t.Context(), f.batch(target)); err == nil {
		t.Fatal("a Writer that failed goes on")
	}
}

func TestDurableDoesNotWaitForALazyServer(t *testing.T) {
	f := start(t, dbtest.Setting("wal_writer_delay", "10s"), dbtest.Setting("wal_writer_flush_after", "0"), dbtest.Setting("autovacuum", "off"))
	target := f.create(table("t", scd.Type1, "id:integer", "x:integer"))
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "1")}})
	began := time.Now()
	for {
		p, err := f.w.Durable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p == change.LSN(f.pos) {
			break
		}
		if time.Since(began) > 5*time.Second {
			t.Fatal("not durable after 5 s")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := f.server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := f.server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wantRows("SELECT id FROM t", "1")
}

// Every statement of a batch must find a target's rows by its index, also where
// its plan was made while the table was small or unknown.
func TestNoStatementOfABatchReadsTheWholeTarget(t *testing.T) {
	f := start(t)
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		target := table(fmt.Sprintf("t%d", kind), kind, "id:integer", "b:integer", "v:text")
		target.Columns[1].Key, target.Columns[1].Tracked = true, false
		f.create(target)
		a := &f.w.apply
		if a.s == nil {
			if err := a.connect(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		sh, err := a.shape(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.s.exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if err := a.wantStage(t.Context(), sh); err != nil {
			t.Fatal(err)
		}
		list := []string{sh.sql(moveFill), sh.sql(patchStaged), sh.sql(stagedDelete), strings.NewReplacer("$1", "'{1,2}'", "$2", "'{1,2}'").Replace(sh.sql(keysDelete)), strings.NewReplacer("$1", "1", "$2", "1").Replace(sh.sql(rowDelete))}
		if kind == scd.Type2 {
			if err := a.s.exec(t.Context(), sh.createRecordSQL()); err != nil {
				t.Fatal(err)
			}
			list = []string{sh.sql(stepFill), sh.sql(stepStaged), sh.sql(stepsStaged), sh.rememberSQL()}
			for _, whole := range []bool{false, true} {
				forget, restore := sh.undoSQL(whole)
				list = append(list, forget, restore)
			}
		}
		for _, rows := range []int{0, 20000} { // estimates of an empty and of a grown table
			f.exec(fmt.Sprintf("INSERT INTO t%d SELECT g, g, 'x'%s FROM generate_series(1, %d) AS g", kind, map[scd.Kind]string{scd.Type2: ", now(), NULL"}[kind], rows))
			for _, sql := range list {
				plan, err := a.s.query(t.Context(), "EXPLAIN "+sql)
				if err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
				for _, line := range plan {
					if strings.Contains(*line[0], "Seq Scan on "+target.Name.Table) || strings.Contains(*line[0], "Hash Join") {
						t.Errorf("%s\n%s", sql, texts(plan))
						break
					}
				}
			}
		}
		if err := a.s.exec(t.Context(), "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		a.staged = nil
	}
	plan, err := f.w.apply.s.query(t.Context(), "EXPLAIN "+strings.NewReplacer("$1", "'0/1'", "$2", "NULL", "$3", "'(0,1)'", "$4", "'shop'", "$5", "1").Replace(applyMarkSQL))
	if err != nil || !strings.Contains(texts(plan), "Tid Scan") {
		t.Errorf("the mark is not found by its place: %v\n%s", err, texts(plan))
	}
}

func texts(rows [][]*string) string {
	var b strings.Builder
	for _, r := range rows {
		b.WriteString(*r[0] + "\n")
	}
	return b.String()
}

// More targets than stages and more statements than are kept prepared.
func TestManyTargetsTakeTurnsWithStagesAndStatements(t *testing.T) {
	f := start(t)
	const targets = 90
	var list []*scd.Target
	for i := range targets {
		list = append(list, f.create(table(fmt.Sprintf("t%d", i), scd.Type1, "id:integer", "v:text", "w:text")))
	}
	for turn := range 3 {
		small, large := f.batch(list[0]), f.batch(list[0])
		small.Targets, large.Targets = nil, nil
		for i, target := range list {
			small.Targets = append(small.Targets, sink.TargetRounds{Target: target, Rounds: []scd.Round{
				{Upserts: []change.Row{row("1", fmt.Sprint(turn), "x")}}, {Patches: []change.Row{row("1", "…", "y")}}}})
			if i < 20 {
				var r scd.Round
				for k := range 250 {
					r.Upserts = append(r.Upserts, row(fmt.Sprint(k+10), fmt.Sprint(turn), "z"))
				}
				large.Targets = append(large.Targets, sink.TargetRounds{Target: target, Rounds: []scd.Round{r, r}})
			}
		}
		for _, b := range []*sink.Batch{small, large} {
			b.Position = change.LSN(f.pos)
			if err := f.w.Apply(t.Context(), b); err != nil {
				t.Fatalf("Apply: %v", err)
			}
		}
	}
	f.wantRows("SELECT (SELECT count(*) FROM t0 WHERE v = '2'), (SELECT string_agg(v || w, '') FROM t89)", "251|2y")
	if n := f.w.apply.s.recent.Len(); n > preparedMax {
		t.Errorf("%d statements are prepared", n)
	}
	if n := len(f.w.apply.staged); n > stagesMax {
		t.Errorf("%d stages stand", n)
	}
}

func TestALayoutThatChangesInTheMiddle(t *testing.T) {
	f := start(t)
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		name := fmt.Sprintf("t%d", kind)
		rounds := func(n int, cells ...string) scd.Round {
			var r scd.Round
			for i := range n {
				cells := append([]string{fmt.Sprint(i)}, cells...)
				if kind == scd.Type1 {
					r.Upserts = append(r.Upserts, row(cells...))
				} else {
					r.Steps = append(r.Steps, scd.Step{Key: row(cells[0]), N: 1, Lo: int64(f.pos), Row: row(cells...)})
				}
			}
			return r
		}
		before := f.create(table(name, kind, "id:integer", "n:integer"))
		f.apply(before, rounds(1, "1"))
		f.apply(before, rounds(300, "2"))
		f.exec("ALTER TABLE " + name + " ALTER n TYPE bigint")
		after := f.create(table(name, kind, "id:integer", "n:bigint", "more:text"))
		f.apply(after, rounds(1, "3000000000", "x"))
		f.apply(after, rounds(300, "3000000001", "y"))
		f.wantRows("SELECT count(*) FROM "+name+" WHERE n = 3000000001 AND more = 'y'", "300")
	}
}

func TestAStandbyAndAReadOnlyDatabaseAreNamed(t *testing.T) {
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer", "x:integer"))
	// A role's or database's wish to be read-only by default is overridden.
	f.exec("ALTER DATABASE " + f.database() + " SET default_transaction_read_only = on")
	f.w.Close(t.Context())
	f.own(f.dsn)
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "1")}})
	err := f.w.explain(t.Context(), &pgconn.PgError{Code: readOnly, Message: "cannot execute UPDATE in a read-only transaction"}, "apply", nil)
	if fault.RemedyOf(err) == "" {
		t.Errorf("%v has no remedy", err)
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Operator {
		t.Errorf("%v is %v", err, fault.KindOf(err))
	}
}

func TestTimeoutsOfTheRoleDoNotEndOurSessions(t *testing.T) {
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer", "x:integer"))
	f.exec("ALTER DATABASE "+f.database()+" SET statement_timeout = '200ms'", "ALTER DATABASE "+f.database()+" SET lock_timeout = '100ms'",
		"ALTER DATABASE "+f.database()+" SET idle_in_transaction_session_timeout = '100ms'", "ALTER DATABASE "+f.database()+" SET idle_session_timeout = '100ms'")
	f.w.Close(t.Context())
	f.own(f.dsn)
	b := f.batch(target, scd.Round{Upserts: []change.Row{row("1", "1")}})
	b.More = true
	if err := f.w.Apply(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	time.Sleep(400 * time.Millisecond)
	b = f.batch(target, scd.Round{Patches: []change.Row{row("1", "2")}})
	b.First = false
	if err := f.w.Apply(t.Context(), b); err != nil {
		t.Fatalf("after a pause inside a transaction: %v", err)
	}
	time.Sleep(300 * time.Millisecond)
	if err := f.w.Heartbeat(t.Context()); err != nil {
		t.Fatalf("after a pause: %v", err)
	}
	f.wantRows("SELECT x FROM t", "2")
}
