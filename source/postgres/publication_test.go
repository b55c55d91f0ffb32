package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

func TestPlanOfAPublicationIsTheDifference(t *testing.T) {
	a, b, c := change.Name{Schema: "public", Table: "a"}, change.Name{Schema: "s x", Table: `b"`}, change.Name{Schema: "public", Table: "c"}
	want := wantedPublication{"tailrace_p", mainPublishes}
	same := &publication{publishes: mainPublishes, viaRoot: true, tables: map[uint32]change.Name{1: a, 2: b}}
	for name, c := range map[string]struct {
		have   *publication
		tables map[uint32]change.Name
		want   []string
	}{
		"new": {nil, map[uint32]change.Name{1: a, 2: b}, []string{
			`CREATE PUBLICATION "tailrace_p" WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)`,
			`ALTER PUBLICATION "tailrace_p" ADD TABLE ONLY "public"."a", ONLY "s x"."b"""`}},
		"new and empty": {nil, nil, []string{`CREATE PUBLICATION "tailrace_p" WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)`}},
		"nothing to do": {same, map[uint32]change.Name{1: a, 2: b}, nil},
		"one goes, one comes": {same, map[uint32]change.Name{1: a, 3: c}, []string{
			`ALTER PUBLICATION "tailrace_p" DROP TABLE ONLY "s x"."b"""`, `ALTER PUBLICATION "tailrace_p" ADD TABLE ONLY "public"."c"`}},
		"changed options": {&publication{publishes: "insert", tables: map[uint32]change.Name{1: a}}, map[uint32]change.Name{1: a},
			[]string{`ALTER PUBLICATION "tailrace_p" SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)`}},
	} {
		wantText(t, name, strings.Join(planPublication(want, c.have, c.tables), "\n"), strings.Join(c.want, "\n"))
	}
}

func TestPublishingHarmsNoTable(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := bare(t, server, "CREATE TABLE keyed (id int PRIMARY KEY, v int)", "CREATE TABLE keyless (v int)", "CREATE TABLE other (id int PRIMARY KEY)",
			"INSERT INTO keyed VALUES (1, 1)", "INSERT INTO keyless VALUES (1)")
		ctx := testContext(t)
		keyless := f.relation("keyless").Table
		err := f.source.Publish(ctx, []source.Followed{{Table: keyless}})
		if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), `ALTER TABLE "public"."keyless" REPLICA IDENTITY FULL`) {
			t.Errorf("a keyless table went into the main publication: %v", err)
		}
		followed := []source.Followed{{Table: f.relation("keyed").Table}, {Table: keyless, AppendOnly: true}}
		plan, err := f.source.PlanPublications(ctx, followed)
		if err != nil || len(plan) != 4 {
			t.Errorf("plan %q, %v", plan, err)
		}
		if err := f.source.Publish(ctx, followed); err != nil {
			t.Fatal(err)
		}
		f.exec("UPDATE keyed SET v = 2", "UPDATE keyless SET v = 2", "DELETE FROM keyless", "UPDATE other SET id = 2")
		if plan, err := f.source.PlanPublications(ctx, followed); err != nil || len(plan) != 0 {
			t.Errorf("plan after publishing: %q, %v", plan, err)
		}
		f.begin()
		f.exec("INSERT INTO keyless VALUES (7)", "UPDATE keyless SET v = 8", "INSERT INTO other VALUES (9)", "TRUNCATE keyless")
		st := f.follow(source.FollowOptions{})
		wantTx(t, st.next(), "INSERT keyless (7)")
		wantTx(t, st.next(), "TRUNCATE keyless")
		// A table added while following; the publication's own row does not change.
		xmin := f.query("SELECT xmin FROM pg_publication WHERE pubname = " + literal(f.source.names.main))
		if err := f.source.Publish(ctx, append(followed, source.Followed{Table: f.relation("other").Table})); err != nil {
			t.Fatal(err)
		}
		wantText(t, "xmin of the publication", f.query("SELECT xmin FROM pg_publication WHERE pubname = "+literal(f.source.names.main)), xmin)
		f.exec("INSERT INTO other VALUES (10)")
		wantTx(t, st.next(), "INSERT other (10)")
	})
}

func TestRightsThatAreMissingAreNamedWithTheStatements(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	name := f.query("SELECT current_database()")
	role := "plain_" + name
	f.exec("CREATE ROLE "+role+" LOGIN", "GRANT SELECT ON t TO "+role)
	t.Cleanup(func() { server.Exec(t, server.DSN("postgres"), "DROP ROLE "+role) })
	t.Cleanup(func() { f.exec("DROP OWNED BY " + role) })
	admin := f.source
	f.source = newSource(t, Config{DSN: server.DSNAs(role, "", name), Pipeline: "p" + name})
	ctx := testContext(t)
	err := f.source.Publish(ctx, f.followed())
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "CREATE PUBLICATION") || !strings.Contains(fault.RemedyOf(err), `ADD TABLE ONLY "public"."t"`) {
		t.Errorf("publish: %v", err)
	}
	if _, err := f.source.Begin(ctx); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "REPLICATION") {
		t.Errorf("begin: %v", err)
	}
	findings, err := f.source.Check(ctx, f.followed())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings, true, "create publications", "CREATE PUBLICATION")
	wantFinding(t, findings, true, "replication connection", "ALTER ROLE")

	// What the administrator then runs is enough.
	f.exec("ALTER ROLE " + role + " REPLICATION")
	if err := admin.Publish(ctx, f.followed()); err != nil {
		t.Fatal(err)
	}
	f.publish()
	f.begin()
	if findings, err := f.source.Check(ctx, f.followed()); err != nil || blocking(findings) != 0 {
		t.Errorf("%+v, %v", findings, err)
	}
	f.exec("INSERT INTO t VALUES (1)")
	wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT t (1)")
	if _, err := f.source.State(ctx); err != nil {
		t.Errorf("state as a plain role: %v", err)
	}
}

func TestLostIdentityIsTakenOutWhileRunning(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		f := begun(t, server, "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)")
		ctx := testContext(t)
		if losses, err := f.source.Watch(ctx); err != nil || len(losses) != 0 {
			t.Fatalf("%v, %v", losses, err)
		}
		f.exec("ALTER TABLE a DROP CONSTRAINT a_pkey")
		if err := tryExec(f, "UPDATE a SET v = 2"); err == nil {
			t.Fatal("the update should fail before the watch")
		}
		losses, err := f.source.Watch(ctx)
		if err != nil || len(losses) != 1 || losses[0].Table.Table != "a" || !losses[0].Removed || losses[0].Remedy == "" {
			t.Fatalf("%+v, %v", losses, err)
		}
		f.exec("UPDATE a SET v = 2", "UPDATE b SET v = 2")
		if losses, err := f.source.Watch(ctx); err != nil || len(losses) != 0 {
			t.Errorf("again: %v, %v", losses, err)
		}
		st := f.follow(source.FollowOptions{})
		wantTx(t, st.next(), "UPDATE b (1, 2)")
	})
}

func TestNamedPublicationIsChecked(t *testing.T) {
	server := dbtest.Postgres(t)
	ctx := testContext(t)
	for name, c := range map[string]struct{ ddl, remedy string }{
		"missing":       {"SELECT 1", `CREATE PUBLICATION "mine"`},
		"lacks a table": {"CREATE PUBLICATION mine FOR TABLE t WITH (publish_via_partition_root = true)", `ADD TABLE ONLY "public"."p"`},
		"inserts only":  {"CREATE PUBLICATION mine FOR TABLE t, p WITH (publish = insert, publish_via_partition_root = true)", "publish = 'insert, update, delete, truncate'"},
		"leaves":        {"CREATE PUBLICATION mine FOR TABLE t, p", "publish_via_partition_root = true"},
		"good":          {"CREATE PUBLICATION mine FOR TABLE t, p WITH (publish_via_partition_root = true)", ""},
		"all tables":    {"CREATE PUBLICATION mine FOR ALL TABLES WITH (publish_via_partition_root = true)", ""},
	} {
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE p1 PARTITION OF p DEFAULT", c.ddl)
		f.source = newSource(t, Config{DSN: f.dsn, Pipeline: "x", Publication: "mine"})
		err := f.source.Publish(ctx, f.followed())
		if c.remedy == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), c.remedy) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCopyFollowsTheRulesOfANamedPublication(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		if server.Version() < 15 {
			return // no row filters and column lists there
		}
		f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY, secret text, v int)", "INSERT INTO t VALUES (1, 's', 1), (2, 's', -1)",
			"CREATE PUBLICATION mine FOR TABLE t (id, v) WHERE (id < 100 AND v > 0) WITH (publish = 'insert, truncate')")
		f.source = newSource(t, Config{DSN: f.dsn, Pipeline: "rules" + f.query("SELECT current_database()"), Publication: "mine"})
		rel := f.relation("t")
		wantText(t, "columns", rel.Table.ColumnNames(), "id, v")
		if err := f.source.Publish(testContext(t), []source.Followed{{Table: rel.Table, AppendOnly: true}}); err != nil {
			t.Fatal(err)
		}
		snap := f.takeSnapshot()
		wantText(t, "rows", copyText(t, snap, source.CopyRequest{Table: rel.Table, Columns: columnsOf(rel.Table)}), "1\t1\n")
		f.exec("INSERT INTO t VALUES (3, 's', 3), (4, 's', -4), (500, 's', 5)")
		wantTx(t, f.follow(source.FollowOptions{}).next(), "INSERT t (3, 3)")
		if err := f.source.Drop(testContext(t)); err != nil {
			var e *fault.Error
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
		}
	})
}

func TestForeignMakeOfOurPublicationIsRefused(t *testing.T) {
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	f.exec("CREATE PUBLICATION " + ident(f.source.names.main) + " FOR ALL TABLES")
	err := f.source.Publish(testContext(t), f.followed())
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "DROP PUBLICATION") {
		t.Errorf("got %v", err)
	}
}

func TestPublishingWaitsForALockOnlySoLong(t *testing.T) {
	t.Parallel()
	f := bare(t, dbtest.Postgres(t), "CREATE TABLE t (id int PRIMARY KEY)")
	followed := f.followed()
	holder := f.server.Connect(t, f.dsn)
	ctx := testContext(t)
	if _, err := holder.Exec(ctx, "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.source.Relations(ctx); err != nil { // takes no lock
		t.Fatal(err)
	}
	begin := time.Now()
	err := f.source.Publish(ctx, followed)
	if fault.KindOf(err) != fault.Transient || time.Since(begin) < 9*time.Second {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
}
