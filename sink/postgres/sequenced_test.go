package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/scd/sequenced"
	"tailrace/sink"
)

// sequencedTable is table with a sequence of type bigint.
func sequencedTable(name string, kind scd.Kind, columns ...string) *scd.Target {
	t := table(name, kind, columns...)
	t.Sequenced = true
	if kind == scd.Type2 {
		bigint := typeNamed("bigint")
		t.Sequence = &bigint
	}
	return t
}

func (f *fixture) applyHidden(t *scd.Target, w sequenced.Work, rounds ...scd.Round) {
	f.Helper()
	b := f.batch(t, rounds...)
	b.Targets[0].Hidden = &w
	if err := f.w.Apply(f.Context(), b); err != nil {
		f.Fatalf("Apply: %v", err)
	}
}

func recordOf(key scd.Key, n int) sequenced.Record {
	return sequenced.Record{Key: key, Seq: []byte(strconv.Itoa(n)), At: []byte("p"), Body: []byte("b")}
}

func TestBookkeepingOfAnEarlierVersionGainsItsTables(t *testing.T) {
	f := start(t)
	earlier := func() { f.exec("DROP TABLE _tailrace.sequenced, _tailrace.files, _tailrace.quarantine") }
	plain := f.create(table("plain", scd.Type1, "id:integer", "v:text"))
	f.apply(plain, scd.Round{Inserts: []change.Row{row("1", "a")}})
	earlier()
	target := sequencedTable("t", scd.Type1, "id:integer", "v:text")
	if h, err := f.w.Head(t.Context(), target); err != nil || h.Horizon != nil {
		t.Fatalf("Head: %v, %v", h, err)
	}
	if files, err := f.w.Files(t.Context()); err != nil || len(files) != 0 {
		t.Fatalf("Files: %v, %v", files, err)
	}
	if err := f.w.Quarantine(t.Context(), "", nil); err != nil {
		t.Fatalf("Quarantine: %v", err)
	}
	f.w.Close(t.Context())
	f.own(f.dsn)
	f.create(target)
	f.applyHidden(target, sequenced.Work{Put: []sequenced.Record{recordOf(row("1"), 1)}}, scd.Round{Upserts: []change.Row{row("1", "a")}})
	f.wantRows("SELECT * FROM t", "1|a")

	f.w.Close(t.Context())
	f.exec("DROP TABLE _tailrace.sequenced, _tailrace.files, _tailrace.quarantine, _tailrace."+quote(recordsName("shop", target.Name)), "DELETE FROM _tailrace.owners")
	if err := f.w.Teardown(t.Context()); err != nil {
		t.Fatalf("Teardown: %v", err)
	}
	f.wantRows("SELECT count(*) FROM pg_namespace WHERE nspname = '_tailrace'", "0")
}

// Two pipelines share the bookkeeping's tables and nothing else.
func TestTeardownTakesWhatOnePipelineRemembers(t *testing.T) {
	f := start(t)
	target := f.create(sequencedTable("t", scd.Type1, "id:integer", "v:text"))
	f.applyHidden(target, sequenced.Work{Put: []sequenced.Record{recordOf(row("1"), 1)}})
	other, err := New(Config{DSN: f.dsn, Pipeline: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	if err := other.Own(t.Context(), checkpoint.Owner{Host: "test", Instance: "b"}, 0); err != nil {
		t.Fatal(err)
	}
	if err := other.Create(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if err := other.Teardown(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.wantRows("SELECT records FROM _tailrace.sequenced", recordsName("shop", target.Name))
	f.wantRows("SELECT count(*) FROM pg_tables WHERE schemaname = '_tailrace' AND tablename LIKE 'records%'", "1")
	f.wantRows("SELECT count(*) FROM _tailrace."+quote(recordsName("shop", target.Name)), "1")
}

// A generated column takes no value, and arrays of arrays do not come apart into keys.
func TestVersionsInATableOfTheUsersOwn(t *testing.T) {
	f := start(t)
	f.exec(`CREATE TABLE t (k integer[], d int GENERATED ALWAYS AS (a * 2) STORED, a int, "__START_AT" bigint, "__END_AT" bigint, PRIMARY KEY (k, "__START_AT"))`)
	target := sequencedTable("t", scd.Type2, "k:integer[]", "d:integer", "a:integer")
	target.Columns[0].Type = change.Type{Kind: change.Array, Name: "integer[]", ID: 1007, BuiltIn: true, Elem: &[]change.Type{typeNamed("integer")}[0]}
	f.create(target)
	version := func(i, start int, end string) scd.Version {
		k := fmt.Sprintf("{%d,%d}", i, i+1)
		v := scd.Version{Row: row(k, "77", strconv.Itoa(start))}
		v.Key, v.Start = row(k), change.Value{State: change.AsText, Data: []byte(strconv.Itoa(start))}
		v.End = change.Value{State: change.Null}
		if end != "" {
			v.End = change.Value{State: change.AsText, Data: []byte(end)}
		}
		return v
	}
	for _, n := range []int{3, 700} {
		var begins, rest scd.Round
		for i := range n {
			begins.Begins = append(begins.Begins, version(i, 1, ""))
			switch i % 3 {
			case 0:
				rest.Ends = append(rest.Ends, version(i, 1, "5").VersionEnd)
			case 1:
				rest.Drops = append(rest.Drops, version(i, 1, "").VersionID)
			}
		}
		f.applyHidden(target, sequenced.Work{}, begins)
		f.wantRows(`SELECT count(*), sum(d), count("__END_AT") FROM t`, fmt.Sprintf("%d|%d|0", n, 2*n))
		f.applyHidden(target, sequenced.Work{}, rest)
		f.wantRows(`SELECT count(*), count("__END_AT") FROM t`, fmt.Sprintf("%d|%d", n-len(rest.Drops), len(rest.Ends)))
		if err := f.w.Reset(t.Context(), target); err != nil {
			t.Fatal(err)
		}
	}
}

// Texts are a sequence by their bytes: so does the history that we make order them,
// whatever the database's own order.
func TestATextSequenceIsOrderedByBytes(t *testing.T) {
	f := start(t)
	target := sequencedTable("t", scd.Type2, "id:integer", "v:text")
	text := typeNamed("text")
	target.Sequence = &text
	f.create(target)
	f.wantRows(`SELECT a.attname, c.collname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation WHERE attrelid = 't'::regclass AND attname LIKE '\_\_%' ORDER BY attnum`, "__START_AT|C", "__END_AT|C")
}

func TestARoleThatMayNotRememberIsTold(t *testing.T) {
	f := start(t)
	f.w.Close(t.Context())
	role := "plain_" + f.w.id
	f.exec("CREATE ROLE "+role+" LOGIN", "GRANT USAGE ON SCHEMA _tailrace TO "+role, "GRANT ALL ON ALL TABLES IN SCHEMA _tailrace TO "+role, "GRANT ALL ON ALL SEQUENCES IN SCHEMA _tailrace TO "+role, "GRANT ALL ON SCHEMA public TO "+role)
	t.Cleanup(func() { f.exec("DROP OWNED BY "+role+" CASCADE", "DROP ROLE "+role) })
	f.own(f.as(role))
	target := sequencedTable("t", scd.Type1, "id:integer", "v:text")
	p, err := f.w.Plan(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(p.Problems, func(x sink.Finding) bool { return x.Blocks && strings.Contains(x.Remedy, "SCHEMA _tailrace") })
	if at < 0 {
		t.Fatalf("problems: %+v", p.Problems)
	}
	f.exec(p.Problems[at].Remedy)
	f.create(target)
	f.applyHidden(target, sequenced.Work{Put: []sequenced.Record{recordOf(row("1"), 1)}}, scd.Round{Upserts: []change.Row{row("1", "a")}})
	f.wantRows("SELECT * FROM t", "1|a")

	f.w.Close(t.Context())
	f.exec("REVOKE CREATE ON SCHEMA _tailrace FROM "+role, "DROP TABLE _tailrace.files")
	w, err := New(Config{DSN: f.as(role), Pipeline: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close(t.Context())
	err = w.Own(t.Context(), checkpoint.Owner{Host: "test", Instance: "c"}, 0)
	if fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "SCHEMA _tailrace") {
		t.Fatalf("Own beside an earlier version's bookkeeping: %v", err)
	}
}

func TestNamesOfRecords(t *testing.T) {
	seen := map[string]bool{}
	for _, pipeline := range []string{"a", "b", "a\x00b"} {
		for _, table := range []string{"t", "T", strings.Repeat("ä", 40), strings.Repeat("ä", 41), `odd "name"`, "x\x00y"} {
			for _, schema := range []string{"", "public", "public\x00x"} {
				name := recordsName(pipeline, change.Name{Schema: schema, Table: table})
				if len(name) > 63 || seen[name] {
					t.Errorf("the name %q is too long or taken", name)
				}
				seen[name] = true
			}
		}
	}
}
