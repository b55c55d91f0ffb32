package postgres

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/source"
)

func TestNamesOfAPipelineAreValidStableAndDistinct(t *testing.T) {
	for pipeline, want := range map[string]string{
		"shop":         "tailrace_shop",
		"2024_orders":  "tailrace_2024_orders",
		"2024-orders":  "tailrace_2024_orders_bbedcd7e",
		"2024.orders":  "tailrace_2024_orders_93c32075",
		"Shop":         "tailrace_shop_d00aae6b",
		`a"; DROP --`:  "tailrace_a___drop____9d6bdd0b",
		"größe":        "tailrace_gr__e_d353a267",
		"日本":           "tailrace____cf2abf0c",
		"o'brien":      "tailrace_o_brien_65b87174",
		"_":            "tailrace__",
		"a\x00b\nc\\d": "tailrace_a_b_c_d_c0b0ebcc",
	} {
		wantText(t, pipeline, nameAll(Config{Pipeline: pipeline}).slot, want)
	}
	valid := regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	seen := map[string]string{}
	for _, p := range []string{"shop", "Shop", "SHOP", "s-hop", "s_hop", "s.hop", strings.Repeat("x", 56), strings.Repeat("x", 47), strings.Repeat("x", 46),
		strings.Repeat("x", 200), strings.Repeat("x", 201), strings.Repeat("ü", 100), "shop_append", "shop_keep", "a_keep_keep"} {
		n := nameAll(Config{Pipeline: p})
		for _, name := range []string{n.slot, n.keep, n.main, n.appendix} {
			if !valid.MatchString(name) {
				t.Errorf("%q gives %q (%d bytes)", p, name, len(name))
			}
		}
		if other, dup := seen[n.slot]; dup {
			t.Errorf("%q and %q share %q", p, other, n.slot)
		}
		seen[n.slot] = p
		if other, dup := seen[n.keep]; dup {
			t.Errorf("the keep slot of %q is a slot of %q: %q", p, other, n.keep)
		}
		seen[n.keep] = p
		if again := nameAll(Config{Pipeline: p}); again != n {
			t.Errorf("%q gives %v, then %v", p, n, again)
		}
	}
}

func TestQuotingKeepsNamesWhole(t *testing.T) {
	for _, c := range [][2]string{
		{literal(`it's`), `'it''s'`},
		{ident(`a"b`), `"a""b"`},
		{qualified(change.Name{Schema: `s"`, Table: `t;`}), `"s"""."t;"`},
		{literal(publicationList([]string{`p"'`, "q,r"})), `'"p""''","q,r"'`},
	} {
		if c[0] != c[1] {
			t.Errorf("got %s, want %s", c[0], c[1])
		}
	}
}

// Every name that an SQL injection would try, from table to publication, goes
// through the whole life: publish, snapshot, follow, drop.
func TestStrangeNamesAreFollowed(t *testing.T) {
	everyServer(t, func(t *testing.T, server *dbtest.Server) {
		database := "my-db'\"; é" + server.DatabaseName(t)
		server.CreateDatabase(t, database)
		f := &fixture{t: t, server: server, dsn: server.DSN(database)}
		schema, table, column := `s"x`, `a"; DROP TABLE public.victim; --`, `x' OR '1'='1`
		full := ident(schema) + "." + ident(table)
		f.exec("CREATE TABLE public.victim (id int PRIMARY KEY)", "CREATE SCHEMA "+ident(schema),
			"CREATE TYPE "+ident(schema)+`."My ""Type" AS ENUM ('a''b', 'c"d')`,
			"CREATE TABLE "+full+" (id int PRIMARY KEY, "+ident(column)+` text, "größe" `+ident(schema)+`."My ""Type")`,
			"INSERT INTO "+full+" VALUES (1, '$1 \\\\ ''quoted''', 'a''b')")
		f.source = newSource(t, Config{DSN: f.dsn, Pipeline: `2024-"orders'; --` + database})
		f.publish()
		ctx := testContext(t)
		snap, err := f.source.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		rel := f.relation(table)
		if got := rel.Table.ColumnNames(); got != `id, `+column+`, größe` {
			t.Errorf("columns %s", got)
		}
		var b strings.Builder
		if _, err := snap.Copy(ctx, source.CopyRequest{Table: rel.Table, Columns: []string{"id", column, "größe"}}, &b); err != nil {
			t.Fatal(err)
		}
		wantText(t, "copy", b.String(), "1\t$1 \\\\\\\\ 'quoted'\ta'b\n")
		f.from = snap.Position()
		snap.Close(ctx)
		f.exec("UPDATE " + full + " SET " + ident(column) + " = 'y'")
		st := f.follow(source.FollowOptions{})
		tx := st.next()
		wantText(t, "change", showRow(tx.Changes[0].Table, tx.Changes[0].New), "(1, y, a'b)")
		wantText(t, "type", tx.Changes[0].Table.Columns[2].Type.Name, `"s""x"."My ""Type"`)
		st.stop()
		if err := f.source.Drop(ctx); err != nil {
			t.Fatal(err)
		}
		wantText(t, "victim", f.query("SELECT count(*) FROM public.victim"), "0")
		wantText(t, "left", f.query(fmt.Sprintf("SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE database = %s)", literal(database))), "0|0")
	})
}

func TestNamedObjectsWithStrangeNamesAreUsed(t *testing.T) {
	server := dbtest.Postgres(t)
	f := bare(t, server, "CREATE TABLE t (id int PRIMARY KEY)")
	slot := "named_" + f.query("SELECT current_database()")
	pub := `my-pub'", x`
	f.exec("CREATE PUBLICATION "+ident(pub)+" FOR TABLE t", "SELECT pg_create_logical_replication_slot("+literal(slot)+", 'pgoutput')", "INSERT INTO t VALUES (1)")
	f.source = newSource(t, Config{DSN: f.dsn, Pipeline: "x", Slot: slot, Publication: pub})
	f.publish()
	f.begin()
	f.exec("INSERT INTO t VALUES (2)")
	st := f.follow(source.FollowOptions{})
	wantTx(t, st.next(), "INSERT t (2)")
	st.stop()
	if err := f.source.Drop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantText(t, "what the user named stays", f.query("SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE slot_name = "+literal(slot)+")"), "1|1")
}
