package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// copyRig is a pipeline whose source is a database of a MariaDB server.
type copyRig struct {
	*rig
	db *sql.DB
}

// newCopyRig makes one; @ in the configuration stands for the database.
func newCopyRig(t *testing.T, kind, user, rest string, statements ...string) *copyRig {
	t.Helper()
	server := dbtest.MariaDB(t)
	database := server.Database(t)
	server.Exec(t, database, statements...)
	url := server.URL(database)
	if user != "" {
		url = server.URLAs(user, user, database)
	}
	dest := freshDestination(t, dbtest.Postgres(t), kind)
	config := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf("pipeline: %s\nsource: {kind: mysql, dsn: %q}\ndestination: {kind: %s, dsn: %q}\n", uniqueName("p"), url, kind, dest.dsn) + strings.ReplaceAll(rest, "@", database)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &copyRig{&rig{server: dbtest.Postgres(t), config: config, dest: dest}, server.Open(t, database)}
}

// at runs statements in the source.
func (r *copyRig) at(t *testing.T, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := r.db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
}

// writes runs statements for i = 0, 1, ... in transactions until stop is called.
func (r *copyRig) writes(t *testing.T, statements func(i int) []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var err error
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			var tx *sql.Tx
			if tx, err = r.db.Begin(); err != nil {
				break
			}
			for _, q := range statements(i) {
				if _, err = tx.Exec(q); err != nil {
					break
				}
			}
			if err == nil {
				err = tx.Commit()
			}
		}
		ended <- err
	}()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// bigTable has a key of text, in whose order capitals and accents count for nothing.
const bigTable = "CREATE TABLE big (k varchar(40) COLLATE utf8mb4_general_ci, i int, v varchar(300), PRIMARY KEY (k, i))"

func fillBig(rows int) string {
	return fmt.Sprintf("INSERT INTO big SELECT concat(elt(1 + seq %% 5, 'é', 'E', 'z', 'A', 'a'), md5(seq)), seq, repeat('v', 200) FROM seq_1_to_%d", rows)
}

// bigChanges are changes of some rows' keys and values, of new rows and of deletes.
func bigChanges(i int) []string {
	return []string{
		fmt.Sprintf("UPDATE big SET v = concat('u', %d), k = concat(k, 'x') WHERE i %% 1000 = %d", i, i%997),
		fmt.Sprintf("UPDATE big SET k = reverse(k) WHERE i %% 1000 = %d", (i+100)%997),
		fmt.Sprintf("DELETE FROM big WHERE i %% 1000 = %d", (i+500)%997),
		fmt.Sprintf("INSERT INTO big VALUES ('Neu', %d, 'n'), ('neu', %d, 'N')", 100_000+2*i, 100_001+2*i),
	}
}

// Rows and their keys change while the parts of a table are read; the copy is one moment
// all the same, and a kill between parts begins it again.
func TestMariaDBTableIsCopiedInParts(t *testing.T) {
	t.Parallel()
	r := newCopyRig(t, "postgres", "", "hydrate: {workers: 3, split_bytes: 64KiB}\nflows: [{source: '@.*'}, {source: '@.big', target: past, stored_as_scd_type: 2}]\n",
		bigTable, fillBig(8000), "CREATE TABLE small (i int PRIMARY KEY)", "INSERT INTO small VALUES (1)", "ANALYZE TABLE big")
	stop := r.writes(t, bigChanges)
	r.dies(t, "part loaded:5")
	p := r.start(t, nil)
	p.says(t, 60*time.Second, "copied in parts")
	p.says(t, 60*time.Second, "following")
	stop()
	p.stop(t)
	r.once(t)
	if n := strings.Count(p.output.String(), "copied in parts"); n != 2 {
		t.Errorf("%d tables were copied in parts, want 2:\n%s", n, tail(p.output.String()))
	}
	r.same(t)
}

// binlogTables are such as are copied for seconds at bigSlowly, and one whose changes
// show whether the stream goes on meanwhile.
var binlogTables = []string{bigTable, fillBig(6000), "CREATE TABLE beat (i int PRIMARY KEY)"}

const (
	bigSlowly   = "TAILRACE_HYDRATE_MAX_RATE=768KiB" // 1.5 MB of big
	binlogFlows = `
flows:
  - {source: '@.beat'}
  - {source: '@.big'}
  - {source: '@.big', target: past, stored_as_scd_type: 2}
  - {source: '@.big', target: control, stored_as_scd_type: 2}
`
)

// arrives commits a row of beat and waits until the destination shows it.
func (r *copyRig) arrives(t *testing.T, i int) {
	t.Helper()
	r.at(t, fmt.Sprintf("INSERT INTO beat VALUES (%d)", i))
	eventually(t, patience, "a change of another table arrives", func() bool {
		_, rows := r.shown(t, "beat")
		return slices.ContainsFunc(rows, func(row []string) bool { return row[0] == fmt.Sprint(i) })
	})
}

// copies waits until a copy beside the stream has begun, the nth.
func (p *proc) copies(t *testing.T, n int) {
	t.Helper()
	eventually(t, patience, "it copies beside the stream", func() bool {
		return strings.Count(p.output.String(), "copying beside the stream") >= n
	})
}

// While a table is copied again the changes of others arrive at once, over files of the
// log, and its own are right at the end: in a current table, in a history that misses
// nothing, and in a table that was parked.
func TestOthersDoNotWaitForAResyncFromMariaDB(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		r := newCopyRig(t, kind, "", binlogFlows, binlogTables...)
		r.once(t)
		r.atTarget(t, "delete from big where i % 100 = 95", "update big set v = 'by hand' where i = 96")
		p := r.start(t, []string{bigSlowly})
		r.arrives(t, 0)
		for n, target := range []string{"big", "past"} {
			stop := r.writes(t, func(i int) []string {
				time.Sleep(10 * time.Millisecond)
				return bigChanges(10_000*n + i)
			})
			a := r.asking(t, "resync", "--table", target)
			p.copies(t, n+1)
			arrived := 0
			for i := 1; a.runs(); i++ {
				if r.arrives(t, 100*(n+1)+i); a.runs() {
					arrived++
				}
				r.at(t, "FLUSH BINARY LOGS")
			}
			if a.answer(t, target+" copied again at ", "the stream waited "); arrived == 0 {
				t.Errorf("changes of others arrived only after the copy of %s", target)
			}
			stop()
		}
		r.arrives(t, 300)
		versions := func(target string) []string {
			_, rows := r.shown(t, target)
			return sortedRows(rows)
		}
		if past, control := versions("past"), versions("control"); !slices.Equal(past, control) {
			t.Errorf("the history that was copied again differs from the other:\n%s", differing(past, control))
		}
		r.at(t, "DROP TABLE big", bigTable, fillBig(3000))
		eventually(t, patience, "the three targets are parked", func() bool { return len(r.parked(t)) == 3 })
		for n, target := range []string{"big", "past", "control"} {
			a := r.asking(t, "resync", "--table", target)
			p.copies(t, n+3)
			r.at(t, bigChanges(5+n)...)
			r.arrives(t, 1000+n)
			a.answer(t, target+" copied again at ")
		}
		r.at(t, bigChanges(50)...)
		r.arrives(t, 2000)
		p.stop(t)
		r.same(t)
		if left := r.parked(t); len(left) != 0 {
			t.Errorf("parked: %v", left)
		}
	})
}

// parked lists the targets that are set aside; none while the daemon begins anew.
func (r *copyRig) parked(t *testing.T) (targets []string) {
	t.Helper()
	out, _, code := tailrace(t, r.args("status", "--json")...)
	if code != 0 {
		return nil
	}
	var st status
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		t.Fatal(err)
	}
	for _, table := range st.Tables {
		if table.Phase == "parked" {
			targets = append(targets, table.Target)
		}
	}
	return targets
}

// Kills of the daemon at every step of a copy beside the stream: the next one begins it
// again, of a table that was asked for and of one that came later.
func TestKillsDuringACopyBesideABinlog(t *testing.T) {
	t.Parallel()
	r := newCopyRig(t, "postgres", "", "flows: [{source: '@.*'}]\n", binlogTables...)
	r.once(t)
	changed := 0
	for _, point := range []string{"", "stage followed", "target replaced"} {
		r.atTarget(t, "delete from big where i % 100 = 7")
		env := []string{"TAILRACE_KILL_AT=" + point}
		if point == "" {
			env = []string{"TAILRACE_HYDRATE_MAX_RATE=64KiB"}
		}
		p := r.start(t, env)
		p.says(t, patience, "action=follow")
		a := r.asking(t, "resync", "--table", "big")
		if point == "" {
			p.copies(t, 1)
			r.at(t, bigChanges(3)...)
			r.arrives(t, 1)
			p.kill()
		} else if code := p.wait(t, 60*time.Second); code != -1 {
			t.Fatalf("at %q: exit %d\n%s", point, code, tail(p.output.String()))
		}
		changed++
		r.at(t, bigChanges(10+changed)...)
		p = r.start(t, nil)
		a.answer(t, "big copied again at ")
		p.stop(t)
		r.once(t)
		r.same(t)
	}
	r.at(t, "CREATE TABLE later LIKE big", "INSERT INTO later SELECT * FROM big")
	r.dies(t, "stage filled")
	r.at(t, "DELETE FROM later WHERE i % 3 = 0", "UPDATE later SET v = 'later' WHERE i % 3 = 1")
	p := r.start(t, nil)
	eventually(t, patience, "it is live", func() bool { return strings.Contains(p.output.String(), "copied beside the stream") })
	r.at(t, "UPDATE later SET k = concat(k, 'y') WHERE i % 3 = 2")
	r.arrives(t, 3)
	p.stop(t)
	r.once(t)
	r.same(t)

	// One that is dropped while it is copied stops nobody.
	r.at(t, "CREATE TABLE gone LIKE big", "INSERT INTO gone SELECT * FROM big")
	p = r.start(t, []string{bigSlowly})
	p.copies(t, 1)
	r.at(t, "DROP TABLE gone", "CREATE TABLE gone LIKE big", "INSERT INTO gone SELECT * FROM later")
	eventually(t, patience, "it is parked alone", func() bool { return slices.Equal(r.parked(t), []string{"public.gone"}) })
	r.arrives(t, 4)
	contains(t, r.must(t, "resync", "--table", "gone"), "gone copied again at ")
	p.stop(t)
	r.same(t)
	if strings.Contains(p.output.String(), "will try again") {
		t.Errorf("the stream was left:\n%s", tail(p.output.String()))
	}
	if left := r.held(t, "select count(*) from information_schema.tables where table_schema = '_tailrace' and table_name like 'stage%'")[0][0]; left != "0" {
		t.Errorf("%s stages are left", left)
	}
}
