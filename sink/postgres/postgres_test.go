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

// as is the connection string of another role.
func (f *fixture) as(role string) string {
	conf, err := pgconn.ParseConfig(f.dsn)
	if err != nil {
		f.Fatal(err)
	}
	return f.server.DSNAs(role, "", conf.Database)
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

// byTwo makes a target with a key of two columns, and gives its shape.
func (f *fixture) byTwo(kind scd.Kind) (*scd.Target, *applier, *shape) {
	f.Helper()
	target := table(fmt.Sprintf("t%d", kind), kind, "id:integer", "b:integer", "v:text")
	target.Columns[1].Key, target.Columns[1].Tracked = true, false
	f.create(target)
	a := &f.w.apply
	if a.s == nil {
		if err := a.connect(f.Context()); err != nil {
			f.Fatal(err)
		}
	}
	sh, err := a.shape(f.Context(), target)
	if err != nil {
		f.Fatal(err)
	}
	return target, a, sh
}

// Every statement of a batch must find a target's rows by its index, also where
// its plan was made while the table was small or unknown.
func TestNoStatementOfABatchReadsTheWholeTarget(t *testing.T) {
	f := start(t)
	for _, kind := range []scd.Kind{scd.Type1, scd.Type2} {
		target, a, sh := f.byTwo(kind)
		if err := a.s.exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if err := a.wantStage(t.Context(), sh); err != nil {
			t.Fatal(err)
		}
		list := []string{sh.sql(moveFill), sh.sql(patchStaged), sh.sql(stagedDelete), strings.NewReplacer("$1", "'{1,2}'", "$2", "'{1,2}'").Replace(sh.sql(keysDelete)), strings.NewReplacer("$1", "1", "$2", "1").Replace(sh.sql(rowDelete))}
		if kind == scd.Type2 {
			sh.record = "pg_temp.tailrace_before_0"
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

// The record of a transaction in pieces outlives the stages of its targets.
func TestManyHistoriesInOneTransactionOfPieces(t *testing.T) {
	f := start(t)
	var list []*scd.Target
	for i := range stagesMax + 4 {
		list = append(list, f.create(table(fmt.Sprintf("t%d", i), scd.Type2, "id:integer", "v:text")))
	}
	apply := func(first, more bool, step scd.Step) {
		t.Helper()
		b := f.batch(list[0])
		b.First, b.More, b.Targets = first, more, nil
		for _, target := range list {
			b.Targets = append(b.Targets, sink.TargetRounds{Target: target, Rounds: []scd.Round{{Steps: []scd.Step{step}}}})
		}
		if err := f.w.Apply(t.Context(), b); err != nil {
			t.Fatalf("Apply: %v", err)
		}
	}
	for range 2 { // and the next transaction begins with clean records
		apply(true, false, scd.Step{Key: row("1"), N: 1, Lo: 1, Row: row("1", "a")})
		apply(true, true, scd.Step{Key: row("1"), N: 1, Lo: 2, Row: row("1", "b")})
		apply(false, true, scd.Step{Key: row("1"), N: 1, Lo: 2})
		apply(false, false, scd.Step{Key: row("1"), N: 1, Lo: 2, Row: row("1", "a")})
	}
	for _, target := range list {
		f.wantRows(`SELECT v, "__END_AT" IS NULL FROM `+target.Name.Table, "a|t")
	}
}

func TestAUniqueIndexMadeWhileRunning(t *testing.T) {
	f := start(t)
	target := f.create(table("t", scd.Type1, "id:integer", "u:integer"))
	f.apply(target, scd.Round{Inserts: []change.Row{row("1", "1"), row("2", "2")}})
	f.exec("CREATE UNIQUE INDEX ON t (u)")
	f.apply(target, scd.Round{Upserts: []change.Row{row("1", "2"), row("2", "1")}})
	f.wantRows("SELECT * FROM t ORDER BY 1", "1|2", "2|1")
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
