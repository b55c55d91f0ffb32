package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace/checkpoint"
	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/scd"
	"tailrace/sink"
)

// bench is a Writer that owns its pipeline, and a target of it.
type bench struct {
	*harness
	t      *testing.T
	w      *Writer
	target *scd.Target
	pos    uint64
}

func begun(t *testing.T, server *dbtest.MyServer) *bench {
	t.Helper()
	b := &bench{harness: newHarness(t, server), t: t}
	b.w = b.own(b.Open(t).(*Writer))
	b.target = &scd.Target{Name: change.Name{Schema: b.schema, Table: "t"}, Columns: []scd.Column{{Name: "id", Type: bigintType, Key: true}, {Name: "v", Type: textType}}}
	if err := b.w.Create(t.Context(), b.target); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) own(w *Writer) *Writer {
	b.t.Helper()
	me, err := sink.ThisProcess()
	if err == nil {
		err = w.Own(b.t.Context(), me, 0)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

func (b *bench) row(id int, v string) change.Row {
	return change.Row{}.Append(change.Value{State: change.AsText, Data: fmt.Append(nil, id)}).Append(change.Value{State: change.AsText, Data: []byte(v)})
}

func (b *bench) batch(rows ...change.Row) *sink.Batch {
	b.pos += 16
	return &sink.Batch{Position: change.LSN(b.pos), CommitTime: time.Unix(1_700_000_000, 0), First: true, Targets: []sink.TargetRounds{{Target: b.target, Rounds: []scd.Round{{Upserts: rows}}}}}
}

func (b *bench) count() string { return *b.Query(b.t, "SELECT COUNT(*) FROM t")[0][0] }

// A session that is ended in the middle of a batch leaves nothing of it, and the error
// says that it is worth another try.
func TestASessionThatIsEndedInABatch(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	first := b.batch(b.row(1, "x"))
	first.More = true
	if err := b.w.Apply(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	b.Exec(t, fmt.Sprintf("KILL CONNECTION %d", b.w.apply.s.id))
	last := b.batch(b.row(2, "x"))
	last.First = false
	if err := b.w.Apply(t.Context(), last); fault.KindOf(err) != fault.Transient {
		t.Fatalf("Apply: %v, want a transient error", err)
	}
	if n := b.count(); n != "0" {
		t.Errorf("%s rows are left", n)
	}
	b.w.Close(t.Context())
	b.w = b.own(b.Open(t).(*Writer))
	if err := b.w.Apply(t.Context(), b.batch(b.row(1, "x"), b.row(2, "x"))); err != nil || b.count() != "2" {
		t.Errorf("after opening again: %v, %s rows", err, b.count())
	}
}

// Locks that others hold are waited for, then tried again; they park no table.
func TestLocksOfOthersAreTransient(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	if err := b.w.Apply(t.Context(), b.batch(b.row(1, "x"))); err != nil {
		t.Fatal(err)
	}
	if _, err := b.w.apply.s.exec(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
		t.Fatal(err)
	}
	other := b.session(t)
	defer other.close()
	for _, sql := range []string{"START TRANSACTION", "UPDATE t SET v = 'theirs' WHERE id = 1"} {
		if _, err := other.exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	err := b.w.Apply(t.Context(), b.batch(b.row(1, "ours")))
	var alone *sink.TargetError
	if fault.KindOf(err) != fault.Transient || errors.As(err, &alone) || !strings.Contains(err.Error(), "waited for in vain") {
		t.Errorf("Apply: %v, want a transient error of the whole batch", err)
	}
	for number, want := range map[int]fault.Kind{erDeadlock: fault.Transient, erDiskFull: fault.Transient, erTooManySessions: fault.Transient, erOptionPrevents: fault.Operator, erDenied: fault.Operator, 9999: fault.Unknown} {
		if kind, _ := judge(number); kind != want {
			t.Errorf("error %d is %s, want %s", number, kind, want)
		}
	}
}

// A server that is gone is worth another try, one that may only be read is not.
func TestServersThatAreGoneOrReadOnly(t *testing.T) {
	server := dbtest.MariaDB(t, dbtest.Dedicated())
	b := begun(t, server)
	server.Exec(t, "", "CREATE USER 'w'@'%' IDENTIFIED BY 'pw'", "GRANT ALL ON *.* TO 'w'@'%'", "REVOKE READ_ONLY ADMIN, SUPER ON *.* FROM 'w'@'%'")
	w, err := New(Config{DSN: server.URLAs("w", "pw", b.schema), Pipeline: "other"})
	if err != nil {
		t.Fatal(err)
	}
	b.own(w)
	defer w.Close(context.Background())
	server.Exec(t, "", "SET GLOBAL read_only = 1")
	if err := w.Apply(t.Context(), b.batch(b.row(1, "x"))); fault.KindOf(err) != fault.Operator || !strings.Contains(fault.RemedyOf(err), "can be written to") {
		t.Errorf("Apply to a read-only server: %v", err)
	}
	server.Exec(t, "", "SET GLOBAL read_only = 0")
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := b.w.Apply(t.Context(), b.batch(b.row(1, "x"))); fault.KindOf(err) != fault.Transient {
		t.Errorf("Apply to a server that is gone: %v, want a transient error", err)
	}
	if err := b.w.Heartbeat(t.Context()); fault.KindOf(err) != fault.Transient {
		t.Errorf("Heartbeat: %v, want a transient error", err)
	}
}

// A user without a right is told the statement that gives it; a wrong password is shown
// nowhere.
func TestMissingRightsAreNamedWithTheirGrant(t *testing.T) {
	server := dbtest.MariaDB(t)
	h := newHarness(t, server)
	h.Exec(t, "CREATE OR REPLACE USER 'keeper'@'%' IDENTIFIED BY 's3cr3t'")
	me, err := sink.ThisProcess()
	if err != nil {
		t.Fatal(err)
	}
	open := func(password string) *Writer {
		w, err := New(Config{DSN: server.URLAs("keeper", password, h.schema), Pipeline: "p"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close(context.Background()) })
		return w
	}
	err = open("wr0ngpass").Own(t.Context(), me, 0)
	if fault.KindOf(err) != fault.Operator || strings.Contains(err.Error(), "wr0ngpass") {
		t.Errorf("a wrong password: %v", err)
	}
	w := open("s3cr3t")
	err = w.Own(t.Context(), me, 0)
	grant, _, _ := strings.Cut(fault.RemedyOf(err), ";")
	if fault.KindOf(err) != fault.Operator || grant != "GRANT ALL PRIVILEGES ON `_tailrace`.* TO 'keeper'@'%'" {
		t.Fatalf("no right to the bookkeeping: %v", err)
	}
	h.Exec(t, strings.ReplaceAll(grant, "`", `"`))
	w.Close(t.Context())
	w = open("s3cr3t")
	if err := w.Own(t.Context(), me, 0); err != nil {
		t.Fatalf("with the right: %v", err)
	}
	target := &scd.Target{Name: change.Name{Schema: h.schema, Table: "t"}, Columns: []scd.Column{{Name: "id", Type: bigintType, Key: true}}}
	err = w.Create(t.Context(), target)
	grant = fault.RemedyOf(err)
	if fault.KindOf(err) != fault.Operator || !strings.Contains(grant, "ON `"+h.schema+"`.* TO 'keeper'@'%';") {
		t.Fatalf("no right to the target: %v", err)
	}
	h.Exec(t, strings.ReplaceAll(strings.TrimSuffix(grant, ";"), "`", `"`))
	if err := w.Create(t.Context(), target); err != nil {
		t.Errorf("with the right: %v", err)
	}
}

// Rows that lack columns are written in lists, by the columns that they have. One that is
// not there is no new row, and a column that must have a value keeps its own.
func TestManyPatchesMeetTheirRows(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	b.Exec(t, `CREATE TABLE p (id bigint PRIMARY KEY, v longtext, w longtext, must bigint NOT NULL) CHARACTER SET utf8mb4`)
	b.target = &scd.Target{Name: change.Name{Schema: b.schema, Table: "p"}, Columns: []scd.Column{
		{Name: "id", Type: bigintType, Key: true}, {Name: "v", Type: textType}, {Name: "w", Type: textType}, {Name: "must", Type: bigintType}}}
	row := func(id int, cells ...string) change.Row {
		row := change.Row{}.Append(change.Value{State: change.AsText, Data: fmt.Append(nil, id)})
		for _, c := range cells {
			v := change.Value{State: change.AsText, Data: []byte(c)}
			if c == "-" {
				v = change.Value{State: change.Absent}
			}
			row = row.Append(v)
		}
		return row
	}
	const n = 100
	var rows, patches []change.Row
	for id := range n {
		rows = append(rows, row(id, "v", "w", "7"))
		patches = append(patches, row(id, [][]string{{"V", "-", "8"}, {"-", "W", "9"}, {"V", "W", "-"}}[id%3]...))
	}
	if err := b.w.Apply(t.Context(), b.batch(rows...)); err != nil {
		t.Fatal(err)
	}
	patch := func(rows []change.Row) error {
		batch := b.batch()
		batch.Targets[0].Rounds[0].Patches = rows
		return b.w.Apply(t.Context(), batch)
	}
	if err := patch(patches); err != nil {
		t.Fatal(err)
	}
	for i, got := range b.Query(t, "SELECT v, w, must, COUNT(*) FROM p GROUP BY v, w, must ORDER BY must") {
		if line, want := strings.Join([]string{*got[0], *got[1], *got[2], *got[3]}, " "), []string{"V W 7 33", "V w 8 34", "v W 9 33"}[i]; line != want {
			t.Errorf("the table holds %s, want %s", line, want)
		}
	}
	if err := patch(append(patches[:n-1:n-1], row(n+2, "V", "-", "8"))); fault.KindOf(err) != fault.Corrupt {
		t.Errorf("a row that is not there: %v, want corrupt", err)
	}
	b.w.Close(t.Context())
	if got := b.Query(t, "SELECT COUNT(*) FROM p"); *got[0][0] != fmt.Sprint(n) {
		t.Errorf("%s rows", *got[0][0])
	}
}

// Every right that is missing is found before anything is made, each with its statement;
// with what they give, and no more, a pipeline runs.
func TestMissingRightsAreFoundBeforeTheStart(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		t.Run(server.Binaries.Full, func(t *testing.T) {
			h := newHarness(t, server)
			h.Exec(t, "DROP USER IF EXISTS 'clerk'@'%'")
			h.Exec(t, "CREATE USER 'clerk'@'%' IDENTIFIED BY 's3cr3t'")
			h.Exec(t, `CREATE TABLE old (id bigint PRIMARY KEY)`)
			w, err := New(Config{DSN: server.URLAs("clerk", "s3cr3t", h.schema), Pipeline: "p"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { w.Close(context.Background()) })
			table := func(name string, kind scd.Kind, columns ...scd.Column) *scd.Target {
				return &scd.Target{Name: change.Name{Schema: h.schema, Table: name}, Kind: kind, Columns: append([]scd.Column{{Name: "id", Type: bigintType, Key: true}}, columns...)}
			}
			v := scd.Column{Name: "v", Type: textType}
			fresh, past, old := table("fresh", scd.Type1, v), table("past", scd.Type2, v), table("old", scd.Type1)
			remedies := func(target *scd.Target) (list []string) {
				t.Helper()
				p, err := w.Plan(t.Context(), target)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range p.Problems {
					list = append(list, f.Remedy)
				}
				return list
			}
			step := func(target *scd.Target, give string, want ...string) {
				t.Helper()
				if got := remedies(target); !slices.Equal(got, want) {
					t.Fatalf("%s: the remedies are %q, want %q", target.Name, got, want)
				}
				h.Exec(t, strings.ReplaceAll(strings.TrimSuffix(give, ";"), "`", `"`))
			}
			book, of := "GRANT ALL PRIVILEGES ON `_tailrace`.* TO 'clerk'@'%';", "ON `"+h.schema+"`.* TO 'clerk'@'%';"
			rows := "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE " + of
			step(fresh, "GRANT SELECT, DELETE "+of, book, rows)
			step(fresh, book, book, "GRANT INSERT, UPDATE, CREATE "+of)
			step(old, "GRANT UPDATE "+of, "GRANT INSERT, UPDATE ON `"+h.schema+"`.`old` TO 'clerk'@'%';")
			step(old, "GRANT INSERT ON `"+h.schema+"`.`old` TO 'clerk'@'%';", "GRANT INSERT ON `"+h.schema+"`.`old` TO 'clerk'@'%';")
			step(old, "GRANT INSERT, CREATE "+of)
			step(past, book)
			me, err := sink.ThisProcess()
			if err == nil {
				err = w.Own(t.Context(), me, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, target := range []*scd.Target{fresh, past} {
				if err := w.Create(t.Context(), target); err != nil {
					t.Fatalf("%s: %v", target.Name, err)
				}
			}
			wider := table("fresh", scd.Type1, v, scd.Column{Name: "later", Type: textType})
			alter := "GRANT ALTER ON `" + h.schema + "`.`fresh` TO 'clerk'@'%';"
			step(wider, alter, alter)
			if err := w.Create(t.Context(), wider); err != nil {
				t.Error(err)
			}
		})
	}
}

// What would be taken for the key, or could not be taken back, blocks.
func TestTargetsThatCannotBeKeptRight(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	for what, c := range map[string]struct{ ddl, remedy string }{
		"an engine without transactions":          {`CREATE TABLE u (id bigint PRIMARY KEY, v longtext) ENGINE = MyISAM`, "ENGINE = InnoDB"},
		"a trigger":                               {`CREATE TABLE u (id bigint PRIMARY KEY, v longtext); CREATE TRIGGER tr BEFORE INSERT ON u FOR EACH ROW SET NEW.v = 'x'`, "DROP TRIGGER"},
		"a unique index beside columns of others": {`CREATE TABLE u (id bigint PRIMARY KEY, v longtext, w int, UNIQUE (w)) CHARACTER SET utf8mb4`, "DROP INDEX"},
		"no key":                                    {`CREATE TABLE u (id bigint NOT NULL, v longtext)`, "ADD PRIMARY KEY"},
		"a text in another character set":           {`CREATE TABLE u (id bigint PRIMARY KEY, v longtext CHARACTER SET latin1)`, "utf8mb4"},
		"a text that is too short":                  {`CREATE TABLE u (id bigint PRIMARY KEY, v varchar(10)) CHARACTER SET utf8mb4`, "longtext"},
		"an integer that is too narrow for the key": {`CREATE TABLE u (id int PRIMARY KEY, v longtext)`, "bigint"},
	} {
		b.Exec(t, "DROP TABLE IF EXISTS u")
		b.Exec(t, c.ddl)
		target := *b.target
		target.Name.Table = "u"
		p, err := b.w.Plan(t.Context(), &target)
		if err != nil || len(p.Problems) == 0 || !p.Problems[0].Blocks || !strings.Contains(p.Problems[0].Remedy, c.remedy) {
			t.Errorf("%s: %+v, %v", what, p.Problems, err)
		}
	}
	target := *b.target
	target.Columns = []scd.Column{{Name: "k", Type: textType, Key: true}}
	b.Exec(t, "DROP TABLE u")
	b.Exec(t, `CREATE TABLE u (k varchar(100) PRIMARY KEY) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`)
	target.Name.Table = "u"
	if p, err := b.w.Plan(t.Context(), &target); err != nil || len(p.Problems) == 0 || !strings.Contains(p.Problems[0].What, "collation") {
		t.Errorf("a key to which blanks mean nothing: %+v, %v", p.Problems, err)
	}
}

// A key's texts differ by case, by accents and by blanks at their end.
func TestKeysAreComparedAsBytes(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	keys := []string{"a", "A", "ä", "a ", "a  ", "", " ", "😀", "a\x00", "a\t"}
	target := &scd.Target{Name: change.Name{Schema: b.schema, Table: "k"}, Columns: []scd.Column{{Name: "k", Type: textType, Key: true}, {Name: "n", Type: bigintType}}}
	if err := b.w.Create(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	b.target = target
	write := func(n int) {
		var rows []change.Row
		for _, k := range keys {
			rows = append(rows, change.Row{}.Append(change.Value{State: change.AsText, Data: []byte(k)}).Append(change.Value{State: change.AsText, Data: fmt.Append(nil, n)}))
		}
		if err := b.w.Apply(t.Context(), b.batch(rows...)); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	write(2)
	if got := b.Query(t, "SELECT COUNT(*), SUM(n) FROM k")[0]; *got[0] != fmt.Sprint(len(keys)) || *got[1] != fmt.Sprint(2*len(keys)) {
		t.Errorf("%s rows, sum %s", *got[0], *got[1])
	}
	long := change.Row{}.Append(change.Value{State: change.AsText, Data: []byte(strings.Repeat(" ", 769))}).Append(change.Value{State: change.Null})
	err := b.w.Apply(t.Context(), b.batch(long))
	var alone *sink.TargetError
	if !errors.As(err, &alone) || !strings.Contains(err.Error(), "longer than its column") {
		t.Errorf("a key that is too long: %v", err)
	}
}

// A unique index that comes while the target is followed is noticed before anything is
// taken for another row.
func TestAUniqueIndexThatComesLater(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t))
	if err := b.w.Apply(t.Context(), b.batch(b.row(1, "x"))); err != nil {
		t.Fatal(err)
	}
	b.Exec(t, `ALTER TABLE t MODIFY v varchar(10), ADD UNIQUE (v)`)
	if err := b.w.Apply(t.Context(), b.batch(b.row(2, "x"))); fault.KindOf(err) != fault.Transient {
		t.Errorf("Apply: %v, want a transient error", err)
	}
	if got := b.Query(t, "SELECT id, v FROM t"); len(got) != 1 || *got[0][0] != "1" {
		t.Errorf("the target holds %d rows", len(got))
	}
}

// Without LOAD DATA LOCAL rows come by INSERT.
func TestAServerThatForbidsLocalFiles(t *testing.T) {
	b := begun(t, dbtest.MariaDB(t, dbtest.Setting("local-infile", "0")))
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&text, "%d\tv%d\n", i, i)
	}
	done := checkpoint.Table{Target: b.target.Name, Phase: checkpoint.Live}
	n, err := b.w.Load(t.Context(), b.target, sink.Copy{Rows: strings.NewReader(text.String())}, false, done)
	if err != nil || n != 3000 || b.count() != "3000" {
		t.Fatalf("Load: %d rows, %v; there are %s", n, err, b.count())
	}
	var rows []change.Row
	for i := range 2000 {
		rows = append(rows, b.row(i+2000, "new"))
	}
	if err := b.w.Apply(t.Context(), b.batch(rows...)); err != nil || b.count() != "4000" {
		t.Errorf("Apply: %v, %s rows", err, b.count())
	}
}

func TestConnectionStrings(t *testing.T) {
	for dsn, ok := range map[string]bool{
		"mysql://u:p%40ss@h:3307/shop":   true,
		"mariadb://u@h/shop":             true,
		"u:p@tcp(h:3306)/shop":           true,
		"mysql://u:p@h/":                 false, // nowhere to put targets
		"postgres://u:hidden@h/shop":     false,
		"mysql://u:hidden@h/shop?what=1": false,
		"mysql://u:hid%zzden@h/shop":     false,
	} {
		_, err := New(Config{DSN: dsn, Pipeline: "p"})
		if (err == nil) != ok {
			t.Errorf("%s: %v", dsn, err)
		}
		if err != nil && (fault.KindOf(err) != fault.Usage || strings.Contains(err.Error(), "hid")) {
			t.Errorf("%s: %v, want a usage error without the password", dsn, err)
		}
	}
	if got := Database("mysql://u:p@h/shop"); got != "shop" {
		t.Errorf("the database is %q", got)
	}
}

// Pipelines that start together on a new server all find the bookkeeping made.
func TestPipelinesMakeTheBookkeepingTogether(t *testing.T) {
	for _, server := range dbtest.MySQLs(t) {
		h := newHarness(t, server)
		var all sync.WaitGroup
		for i := range 8 {
			w := h.open(t, fmt.Sprintf("p%d", i))
			defer w.Close(context.Background())
			all.Go(func() {
				me, err := sink.ThisProcess()
				if err == nil {
					err = w.Own(t.Context(), me, 0)
				}
				if err != nil {
					t.Errorf("%s: %v", server.Binaries.Full, err)
				}
			})
		}
		all.Wait()
	}
}
