package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// myRig is a pipeline whose source is a database of a MariaDB server.
type myRig struct {
	*rig
	my       *dbtest.MyServer
	database string
}

// newMyRig makes one; @ in the configuration stands for the database.
func newMyRig(t *testing.T, kind, user, rest string, statements ...string) *myRig {
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
	return &myRig{&rig{config: config, dest: dest}, server, database}
}

// writes runs statements for i = 0, 1, ... in transactions until stop is called.
func (r *myRig) writes(t *testing.T, statements func(i int) []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	db := r.my.Open(t, r.database)
	go func() {
		var err error
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			var tx *sql.Tx
			if tx, err = db.Begin(); err != nil {
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
	r := newMyRig(t, "postgres", "", "hydrate: {workers: 3, split_bytes: 64KiB}\nflows: [{source: '@.*'}, {source: '@.big', target: past, stored_as_scd_type: 2}]\n",
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
