package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
)

// myRig is a pipeline under test whose source is a database of MariaDB or MySQL.
type myRig struct {
	*rig
	my       *dbtest.MyServer
	database string
}

// newMyRig makes a source database by statements, a fresh destination of a kind, and the
// configuration between them, in which DB stands for the database's name.
func newMyRig(t *testing.T, kind, rest string, statements ...string) *myRig {
	t.Helper()
	return newMyRigOn(t, dbtest.MySQL(t), kind, rest, statements...)
}

func newMyRigOn(t *testing.T, my *dbtest.MyServer, kind, rest string, statements ...string) *myRig {
	t.Helper()
	r := &myRig{my: my, database: my.Database(t)}
	pg := (*dbtest.Server)(nil)
	if kind == "postgres" {
		pg = dbtest.Postgres(t)
	}
	r.rig = &rig{server: pg, dest: freshDestination(t, pg, kind), config: filepath.Join(t.TempDir(), "pipeline.yaml")}
	r.exec(t, statements...)
	r.write(t, "", rest)
	return r
}

// write writes the configuration; more are further settings of the source.
func (r *myRig) write(t testing.TB, more, rest string) {
	t.Helper()
	text := fmt.Sprintf("pipeline: %s\nsource: {kind: mysql, dsn: %q%s}\ndestination: {kind: %s, dsn: %q}\n%s\n",
		uniqueName("p"), r.my.URL(r.database), more, r.dest.kind, r.dest.dsn, strings.NewReplacer("DB.", r.database+".").Replace(rest))
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// exec runs statements in one session of the source.
func (r *myRig) exec(t testing.TB, statements ...string) {
	t.Helper()
	r.my.Exec(t, r.database, statements...)
}
