package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// A server that was never reached is more likely a wrong address than an outage.
func TestWrongAddressesAreGivenUpSoon(t *testing.T) {
	t.Parallel()
	binary(t) // its making is no part of what is measured
	server := dbtest.Postgres(t)
	good := server.Database(t)
	server.Exec(t, good, "create table t(id int primary key)")
	at := func(change func(*url.URL)) string {
		u, err := url.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		change(u)
		return u.String()
	}
	port := at(func(u *url.URL) { u.Host = server.Host + ":1" })
	host := at(func(u *url.URL) { u.Host = "nosuch.invalid:5432" })
	database := at(func(u *url.URL) { u.Path = "/nosuch" })
	role := at(func(u *url.URL) { u.User = url.User("nosuch") })
	for _, c := range []struct {
		name, source, dest, command string
		code                        int
		say                         string
	}{
		{"source port", port, good, "run", 4, "source"},
		{"source port, asked once", port, good, "check", 4, "source"},
		{"source host", host, good, "run", 4, "source"},
		{"source database", database, good, "run", 3, "nosuch"},
		{"source role", role, good, "run", 3, "nosuch"},
		{"destination port", good, port, "run", 4, "destination"},
		{"destination database", good, database, "run", 3, "nosuch"},
		{"destination role", good, role, "backfill", 3, "nosuch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := destination{"postgres", c.dest}
			if c.source != good {
				d = freshDestination(t, server, "duckdb")
			}
			r := &rig{server: server, source: good, dest: d, config: configure(t, uniqueName("p"), c.source, d, everything)}
			began := time.Now()
			r.refused(t, c.code, []string{c.say}, c.command)
			if took := time.Since(began); late(t, took, 15*time.Second) {
				t.Errorf("gave up after %s", took)
			}
			r.leftNothing(t)
		})
	}
}

// The password may come in five ways, hold what URLs and keyword strings must
// escape, and no command prints it, whatever goes wrong.
func TestPasswordsConnectAndAreNeverPrinted(t *testing.T) {
	t.Parallel()
	const password = `s3cr3t-p@ss/word?#%`
	server := dbtest.Postgres(t, dbtest.Dedicated())
	if err := server.WriteFile("pg_hba.conf", []byte("host all keeper 127.0.0.1/32 scram-sha-256\nhost all stranger 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")); err != nil {
		t.Fatal(err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	source, dest, empty := server.DatabaseName(t), server.DatabaseName(t), server.DatabaseName(t)
	server.Exec(t, server.DSN("postgres"), "create role keeper login replication password '"+password+"'", "create role stranger login replication password 'another'",
		"alter database "+source+" owner to keeper", "alter database "+dest+" owner to keeper", "alter database "+empty+" owner to keeper")
	server.Exec(t, server.DSN(source), "create table t(id int primary key); alter table t owner to keeper; insert into t values(1)")
	for _, d := range []string{dest, empty} {
		server.Exec(t, server.DSN(d), "grant all on schema public to keeper")
	}

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keyword := func(role, host string, port int, database, pw string) string {
		return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable %s", host, port, role, database, pw)
	}
	secret := write("secret", password+"\n")
	passfile := write("pgpass", "*:*:*:*:"+password+"\n")
	ways := []struct {
		name string
		dsn  func(role string, port int, database string) string
		env  []string
	}{
		{"url", func(role string, port int, database string) string {
			u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: fmt.Sprintf("127.0.0.1:%d", port), Path: "/" + database, RawQuery: "sslmode=disable"}
			return u.String()
		}, nil},
		{"keywords", func(role string, port int, database string) string {
			return keyword(role, "127.0.0.1", port, database, "password='"+password+"'")
		}, nil},
		{"PGPASSWORD", func(role string, port int, database string) string {
			return keyword(role, "127.0.0.1", port, database, "")
		}, []string{"PGPASSWORD=" + password}},
		{"passfile", func(role string, port int, database string) string {
			return keyword(role, "127.0.0.1", port, database, "")
		}, []string{"PGPASSFILE=" + passfile}},
		{"file", func(role string, port int, database string) string {
			return keyword(role, "127.0.0.1", port, database, "password='${file:"+secret+"}'")
		}, nil},
	}
	commands := [][]string{{"run", "--once"}, {"check"}, {"plan"}, {"status"}, {"verify"}, {"show", "t"}, {"backfill"}, {"teardown", "--yes"}}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			clean := func(what, out string) {
				if strings.Contains(out, "s3cr3t") || strings.Contains(out, "word?#") || strings.Contains(out, "word%3F") {
					t.Errorf("%s printed the password:\n%s", what, out)
				}
			}
			config := func(role string, port int) *rig {
				d := destination{"postgres", way.dsn(role, port, empty)}
				r := rigOn(t, server, way.dsn(role, port, source), d, "log_level: debug\nretry_max: 300ms\n"+everything)
				r.env = way.env
				return r
			}
			r := config("keeper", server.Port)
			for _, c := range []string{"check", "plan", "status"} {
				out := r.must(t, c)
				clean(c, out)
			}
			broken := []struct {
				name string
				r    *rig
				code int
			}{{"wrong port", config("keeper", 1), 4}, {"wrong password", config("stranger", server.Port), 3}}
			for _, b := range broken {
				for i, c := range commands {
					if i > 2 && way.name != "url" { // the commands share one way to connect
						break
					}
					out, code := b.r.command(t, nil, c[0], c[1:]...)
					clean(b.name+", "+c[0], out)
					if code != b.code {
						t.Errorf("%s, %s: exit %d, want %d:\n%s", b.name, c[0], code, b.code, out)
					}
				}
			}
		})
	}
	t.Run("all commands", func(t *testing.T) {
		t.Parallel()
		r := rigOn(t, server, ways[0].dsn("keeper", server.Port, source), destination{"postgres", ways[0].dsn("keeper", server.Port, dest)}, "log_level: debug\n"+everything)
		for _, c := range commands {
			out := r.must(t, c[0], c[1:]...)
			if strings.Contains(out, "s3cr3t") {
				t.Errorf("%s printed the password:\n%s", c[0], out)
			}
		}
	})
	t.Run("not escaped", func(t *testing.T) {
		t.Parallel()
		bad := fmt.Sprintf("postgres://keeper:%s@127.0.0.1:%d/%s", password, server.Port, source)
		for _, r := range []*rig{
			rigOn(t, server, bad, freshDestination(t, server, "duckdb"), everything),
			rigOn(t, server, server.DSN(source), destination{"postgres", bad}, everything),
		} {
			for _, c := range commands[:4] {
				out, code := r.command(t, nil, c[0], c[1:]...)
				if code != 2 {
					t.Errorf("%s: exit %d", c[0], code)
				}
				if strings.Contains(out, "s3cr3t") || strings.Contains(out, "word?#") {
					t.Errorf("%s printed the password:\n%s", c[0], out)
				}
			}
		}
	})
}

// Each right is asked for by the statement that gives it; with all of them a role
// without superuser works.
func TestMissingRightsAreAskedForOneByOne(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	name := server.DatabaseName(t)
	admin := server.DSN(name)
	role := uniqueName("limited")
	server.Exec(t, admin, "create table t(id int primary key, v text); insert into t values (1, 'a')", "revoke all on schema public from public; revoke create on database "+name+" from public",
		"create role "+role+" login")
	t.Cleanup(func() { server.Exec(t, admin, "drop owned by "+role+"; drop role "+role) })
	d := freshDestination(t, server, "duckdb")
	r := &rig{server: server, source: admin, dest: d, config: configure(t, uniqueName("p"), server.DSNAs(role, "", name), d, "flows: [{source: public.t}]")}

	step := func(grant string, wants ...string) {
		t.Helper()
		out, code := r.command(t, nil, "run", "--once")
		if code != 3 {
			t.Fatalf("exit %d:\n%s", code, out)
		}
		contains(t, out, wants...)
		if checked, code := r.command(t, nil, "check"); code != 1 && code != 3 {
			t.Errorf("check: exit %d\n%s", code, checked)
		}
		r.leftNothing(t)
		server.Exec(t, admin, grant)
	}
	step("grant usage on schema public to "+role+"; grant select on t to "+role, `GRANT SELECT ON "public"."t"`, "USAGE")
	step("grant create on database "+name+" to "+role, "GRANT CREATE ON DATABASE", "CREATE PUBLICATION")
	step("alter table t owner to "+role, "owner of a table", `ADD TABLE ONLY "public"."t"`)
	step("alter role "+role+" replication", `ALTER ROLE "`+role+`" REPLICATION`)
	r.once(t)
	r.same(t)
	r.exec(t, "insert into t values(2, 'b')")
	r.once(t)
	r.same(t)
	r.must(t, "teardown", "--yes")
	r.leftNothing(t)
}

// An administrator may make the publications by the statements that are printed.
func TestPublicationsMadeByTheAdministratorAreTaken(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	name := server.DatabaseName(t)
	admin := server.DSN(name)
	role := uniqueName("reader")
	server.Exec(t, admin, "create table t(id int primary key, v text); insert into t values (1, 'a'); create table l(v text)",
		"create role "+role+" login replication", "grant select on all tables in schema public to "+role)
	t.Cleanup(func() { server.Exec(t, admin, "drop owned by "+role+"; drop role "+role) })
	d := freshDestination(t, server, "duckdb")
	r := &rig{server: server, source: admin, dest: d, config: configure(t, uniqueName("p"), server.DSNAs(role, "", name), d, everything)}
	out := r.refused(t, 3, []string{"an administrator runs: "}, "run", "--once")
	_, statements, _ := strings.Cut(out, "an administrator runs: ")
	statements, _, _ = strings.Cut(statements, "\n")
	r.leftNothing(t)
	server.Exec(t, admin, statements)
	r.once(t)
	r.exec(t, "insert into t values(2, 'b'); insert into l values('x'); delete from t where id = 1")
	r.once(t)
	r.same(t)
}

func TestLogicalLogIsAskedFor(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t, dbtest.Setting("wal_level", "replica"), dbtest.Setting("max_wal_senders", "4"))
	r := newRig(t, server, "duckdb", "create table t(id int primary key); insert into t values(1)", everything)
	for _, c := range []struct {
		command string
		code    int
	}{{"check", 1}, {"run", 3}, {"backfill", 3}} {
		r.refused(t, c.code, []string{"wal_level", "ALTER SYSTEM SET wal_level = 'logical'", "restart"}, c.command)
		r.leftNothing(t)
	}
	r.exec(t, "ALTER SYSTEM SET wal_level = 'logical'")
	if err := server.Configure(map[string]string{"wal_level": "logical"}); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.once(t)
	r.same(t)
}

// What is wrong in the configuration or the source's tables is said before anything
// is made.
func TestWhatCannotBeFollowedIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	for _, c := range []struct {
		name, schema, rest string
		kind               string
		code               int
		wants              []string
	}{
		{"no such table", "create table t(id int primary key)", "flows: [{source: public.T}]", "", 3, []string{"public.T", "remedy"}},
		{"no table at all", "", everything, "", 3, []string{"no flow matches"}},
		{"unknown key", "", "hydrate: {worker: 3}\n" + everything, "", 2, []string{":4", "workers"}},
		{"a view", "create view v as select 1 as id", "flows: [{source: public.v}]", "", 3, []string{"public.v"}},
		{"an unlogged table", "create unlogged table t(id int primary key)", "flows: [{source: public.t}]", "", 3, []string{"unlogged", "SET LOGGED"}},
		{"identity nothing", "create table t(id int primary key); alter table t replica identity nothing", everything, "", 3, []string{`ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT`}},
		{"identity whose index is gone", "create table t(id int not null); create unique index i on t(id); alter table t replica identity using index i; drop index i", "flows: [{source: public.t, keys: [id]}]", "", 3, []string{`ALTER TABLE "public"."t" REPLICA IDENTITY FULL`}},
		{"keys outside the identity", "create table t(a int primary key, b int not null unique); insert into t values(1, 1)", "flows: [{source: public.t, keys: [b]}]", "", 3, []string{"key column b", "identity", `ALTER TABLE "public"."t" REPLICA IDENTITY FULL`}},
		{"keys that do not exist", "create table t(a int primary key)", "flows: [{source: public.t, keys: [z]}]", "", 2, []string{"z"}},
		{"keys that may be NULL", "create table t(a int); alter table t replica identity full", "flows: [{source: public.t, keys: [a]}]", "", 3, []string{"SET NOT NULL"}},
		{"history without a key", "create table t(a int)", "flows: [{source: public.t, stored_as_scd_type: 2}]", "", 3, []string{"ADD PRIMARY KEY"}},
		{"a deferrable key", "create table t(a int primary key deferrable)", "flows: [{source: public.t}]", "", 3, []string{"deferrable", "REPLICA IDENTITY FULL"}},
		{"a reserved column", `create table t(id int primary key, "__START_AT" int)`, "flows: [{source: public.t, stored_as_scd_type: 2}]", "", 2, []string{"__START_AT", "except_column_list"}},
		{"two flows, one target", "create table t(id int primary key); create table u(id int primary key)", "flows: [{source: public.t, target: x}, {source: public.u, target: x}]", "", 2, []string{"public.t", "public.u"}},
		{"a partition without identity", "create table t(id int not null, v text) partition by range(id); alter table t replica identity full; create table leaf partition of t default", "flows: [{source: public.t, keys: [id]}]", "", 3, []string{"leaf", `ALTER TABLE "public"."leaf" REPLICA IDENTITY FULL`}},
		{"columns that differ by case", `create table t("Id" int, "ID" int, id int primary key)`, "flows: [{source: public.t}]", "duckdb", 3, []string{"differ only by case", "except_column_list"}},
		{"tables that differ by case", `create table t(id int primary key); create table "T"(id int primary key)`, everything, "duckdb", 3, []string{"case"}},
	} {
		for _, kind := range kinds {
			if c.kind != "" && c.kind != kind {
				continue
			}
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, server, kind, c.schema, c.rest)
				out := r.refused(t, c.code, c.wants, "run", "--once")
				if c.code == 3 && !strings.Contains(out, "remedy: ") {
					t.Errorf("no remedy:\n%s", out)
				}
				r.leftNothing(t)
				if kind == "postgres" {
					if made := server.Query(t, r.dest.dsn, "select oid::regclass from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"); len(made) > 0 {
						t.Errorf("made in the destination: %v", made)
					}
				}
			})
		}
	}
}

func TestUnknownByteMeaningsAreRefused(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	name := uniqueName("ascii")
	server.CreateDatabase(t, name, "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	source := server.DSN(name)
	server.Exec(t, source, "create table t(id int primary key, v text); insert into t values(1, e'\\xE9')")
	r := rigOn(t, server, source, freshDestination(t, server, "duckdb"), everything)
	r.refused(t, 3, []string{"SQL_ASCII", "remedy: ", "UTF8"}, "run", "--once")
	r.leftNothing(t)
}

// Columns whose names differ by case alone are three columns where the destination
// can tell them apart.
func TestColumnsThatDifferByCaseAreKeptApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, dbtest.Postgres(t), "postgres", `create table t("Id" int, "ID" int, id int primary key); insert into t values(1, 2, 3)`, everything)
	r.once(t)
	r.exec(t, `update t set "ID" = 20; insert into t values(4, 5, 6)`)
	r.once(t)
	r.same(t)
	r.equalRows(t, "t", "select * from t")
}

// Names are data: quotes, statements, dots, letters of other scripts.
func TestNamesWithQuotesAndStatementsAreHarmless(t *testing.T) {
	server := dbtest.Postgres(t)
	const schema = `create table victim(id int primary key); insert into victim values(1);
create table "a""; DROP TABLE victim; --"("x' OR '1'='1" int primary key, "b""; drop table victim; --" text, "select" text, "c.d" int, "$1" text, "\'" text);
insert into "a""; DROP TABLE victim; --" values(1, '''; drop table victim; --', '$1', 3, '\''', '%s');
create schema "s'""; drop table victim; --"; create table "s'""; drop table victim; --"."t.u v"(id int primary key, "имя" text); insert into "s'""; drop table victim; --"."t.u v" values(1, 'п');
create table "таблица_表"("имя" int primary key, "值" text); insert into "таблица_表" values(1, '表');
create table "order"("group" int primary key, "table" text); insert into "order" values(1, 'x');
create table "`
	overKinds(t, func(t *testing.T, kind string) {
		long := strings.Repeat("n", 63)
		r := newRig(t, server, kind, schema+long+`"(id int primary key, "`+strings.Repeat("c", 63)+`" int)`, "flows: [{source: '*.*'}, {source: '*.*', target: '{schema}_{table}_h', stored_as_scd_type: 2, except: [public."+long+"]}]")
		r.reconfigure(t, "pipeline: ", "pipeline: It's \"; drop table victim; -- ")
		r.once(t)
		r.exec(t, `update "a""; DROP TABLE victim; --" set "x' OR '1'='1" = 2, "select" = 'y'; insert into "a""; DROP TABLE victim; --" select 3; delete from "a""; DROP TABLE victim; --" where "x' OR '1'='1" = 3;
update "s'""; drop table victim; --"."t.u v" set "имя" = 'й'; update "таблица_表" set "имя" = 2; update "order" set "table" = 'z', "group" = 7; insert into "`+long+`" values(1, 1)`)
		r.once(t)
		r.same(t)
		r.equalRows(t, "victim", "select * from victim")
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
	})
}

// A target that is there is taken only if it is ours, or with --overwrite.
func TestTargetsWithRowsAreLeftAlone(t *testing.T) {
	server := dbtest.Postgres(t)
	overKinds(t, func(t *testing.T, kind string) {
		r := newRig(t, server, kind, "create table t(id int primary key, n int); insert into t values(1, 10), (2, 20)", everything)
		r.once(t)
		r.must(t, "teardown", "--yes")
		r.leftNothing(t)
		r.exec(t, "update t set n = 99; delete from t where id = 2; insert into t values(3, 30)")
		r.refused(t, 3, []string{"public.t", "holds rows", "--overwrite"}[1:], "run", "--once")
		r.refused(t, 1, []string{"holds rows", "--overwrite"}, "check")
		r.refused(t, 3, []string{"holds rows"}, "backfill")
		r.leftNothing(t)
		if _, rows := r.shown(t, "t"); fmt.Sprint(rows) != "[[1 10] [2 20]]" {
			t.Errorf("the target was touched: %v", rows)
		}
		r.once(t, "--overwrite")
		r.same(t)

		// A refused --overwrite has forgotten nothing: it can go on as it was.
		r.exec(t, "create table extra(id int primary key); alter table extra replica identity nothing; insert into t values(4, 40)")
		r.refused(t, 3, []string{"REPLICA IDENTITY DEFAULT"}, "run", "--once", "--overwrite")
		r.exec(t, "drop table extra")
		contains(t, r.once(t), "action=follow")
		r.same(t)

		// Another shape is refused with the statement that mends it, also by --overwrite.
		r.must(t, "teardown", "--yes")
		r.exec(t, "alter table t alter n type text")
		out := r.refused(t, 3, []string{`"n"`, "ALTER TABLE"}, "run", "--once", "--overwrite")
		r.leftNothing(t)
		if _, rows := r.shown(t, "t"); len(rows) != 3 {
			t.Errorf("the target was touched: %v", rows)
		}
		if kind == "postgres" {
			_, statement, _ := strings.Cut(out, "remedy: ")
			statement, _, _ = strings.Cut(statement, "\n")
			r.atTarget(t, statement)
			r.once(t, "--overwrite")
			r.same(t)
		}
	})
}

// A DuckDB file that cannot be used stays as it was, and so does the source.
func TestDuckDBFilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	source := server.Database(t)
	server.Exec(t, source, "create table t(id int primary key); insert into t values(1)")
	refuse := func(t *testing.T, path string, wants ...string) *rig {
		t.Helper()
		r := rigOn(t, server, source, destination{"duckdb", path}, everything)
		r.refused(t, 3, append(wants, "remedy: "), "run", "--once")
		return r
	}
	dir := t.TempDir()

	text := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(text, bytes.Repeat([]byte("my only copy\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(text)
	refuse(t, text, "not an intact DuckDB file")
	if after, _ := os.ReadFile(text); !bytes.Equal(before, after) {
		t.Error("a file that is no database was changed")
	}
	refuse(t, dir, dir)
	refuse(t, filepath.Join(text, "x.duckdb"), text)

	// Another program holds the file's lock.
	held := filepath.Join(dir, "held.duckdb")
	r := rigOn(t, server, source, destination{"duckdb", held}, everything)
	r.once(t)
	f, err := os.OpenFile(held, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.refused(t, 3, []string{fmt.Sprint(os.Getpid()), "remedy: "}, "run", "--once")
	if took := time.Since(began); late(t, took, 4*time.Second) {
		t.Errorf("said so after %s", took)
	}
	f.Close()
	r.exec(t, "insert into t values(2)")
	r.once(t)
	r.same(t)
	r.must(t, "teardown", "--yes")
	r.leftNothing(t)

	// A folder that may not be written, as a user who is bound by that.
	if os.Getuid() != 0 {
		closed := filepath.Join(dir, "closed")
		if err := os.Mkdir(closed, 0o555); err != nil {
			t.Fatal(err)
		}
		refuse(t, filepath.Join(closed, "x.duckdb"), "right to write")
	} else {
		const nobody = 65534
		closed, err := os.MkdirTemp("", "tailrace-closed-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(closed)
		config := filepath.Join(closed, "c.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, "pipeline: closed\nsource: {dsn: %q}\ndestination: {dsn: %q}\n%s\n", source, filepath.Join(closed, "x.duckdb"), everything), 0o644); err != nil {
			t.Fatal(err)
		}
		for path, mode := range map[string]os.FileMode{closed: 0o555, filepath.Dir(binary(t)): 0o755} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
		c := exec.Command(binary(t), "run", "--once", "-c", config)
		c.Dir = "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != 3 {
			t.Errorf("exit %d:\n%s", code, out)
		}
		contains(t, string(out), "remedy: ", "right to write")
	}
	r.leftNothing(t)
}

// A full disk stops it with nothing lost; with room it goes on.
func TestFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	server := dbtest.Postgres(t)
	dir := t.TempDir()
	room := func(size string, options ...string) bool {
		out, err := exec.Command("mount", append(options, "-t", "tmpfs", "-o", strings.Join(append([]string{"size=" + size}, map[bool][]string{true: {"remount"}}[len(options) > 0]...), ","), "tmpfs", dir)...).CombinedOutput()
		if err != nil {
			t.Logf("mount: %s", out)
		}
		return err == nil
	}
	d := destination{"duckdb", filepath.Join(dir, "target.duckdb")}
	source := server.Database(t)
	server.Exec(t, source, "create table t(id int primary key, v text); insert into t select i, 'small' from generate_series(1, 100) i")
	r := rigOn(t, server, source, d, everything)
	fill := "insert into t select i, (select string_agg(md5(i::text || j), '') from generate_series(1, 40) j) from generate_series(1000, 31000) i"
	mounted := os.Getuid() == 0 && room("24m")
	if mounted {
		t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
	}
	r.once(t)
	r.exec(t, fill)
	before := r.confirmed(t)
	if mounted {
		r.refused(t, 3, []string{"remedy: ", "free space"}, "run", "--once")
	} else { // a limit on the size of a file instead: 8192 blocks of 1 KiB or 512 bytes
		c := exec.Command("sh", "-c", `trap '' XFSZ; ulimit -f 8192; exec "$@"`, "sh", binary(t), "run", "--once", "-c", r.config)
		out, _ := c.CombinedOutput()
		if c.ProcessState.ExitCode() == 0 {
			t.Fatalf("it fitted:\n%s", out)
		}
	}
	if after := r.confirmed(t); after != before {
		t.Errorf("the slot moved from %s to %s although nothing more was written", before, after)
	}
	if mounted && !room("400m", "-i") {
		t.Fatal("cannot enlarge the disk")
	}
	r.exec(t, "delete from t where id < 50")
	r.once(t)
	r.same(t)
}
