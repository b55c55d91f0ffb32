package postgres

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"tailrace/internal/dbtest"
	"tailrace/sink/sinktest"
)

var update = flag.Bool("update", false, "rewrite golden files")

const valuesPath = "../sinktest/testdata/values.tsv"

// The contract suite's list of values must be what a server says: each text is
// the server's own spelling of the value, each binary form its own.
func TestValuesFileIsWhatAServerSays(t *testing.T) {
	types, err := sinktest.Values()
	if err != nil {
		t.Fatal(err)
	}
	server := dbtest.Postgres(t)
	conn := server.Connect(t, server.Database(t)).PgConn()
	ctx := context.Background()
	if _, err := conn.Exec(ctx, pinned).ReadAll(); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	old, err := os.ReadFile(valuesPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(old), "\n") {
		if f := strings.Split(l, "\t"); f[0] == "type" {
			kinds[f[1]] = f[3]
		}
	}
	var out strings.Builder
	for _, vt := range types {
		oid := conn.ExecParams(ctx, "SELECT to_regtype($1)::oid", [][]byte{[]byte(vt.Type.Name)}, nil, nil, nil).Read()
		if oid.Err != nil {
			t.Fatalf("%s: %v", vt.Type.Name, oid.Err)
		}
		fmt.Fprintf(&out, "type\t%s\t%s\t%s\n", vt.Type.Name, oid.Rows[0][0], kinds[vt.Type.Name])
		for _, v := range vt.Values {
			sql := "SELECT v, v FROM (SELECT CAST($1::text AS " + vt.Type.Name + ") AS v) AS x"
			got := conn.ExecParams(ctx, sql, [][]byte{[]byte(v.Text)}, nil, nil, []int16{0, 1}).Read()
			if got.Err != nil {
				t.Errorf("%s %q: %v", vt.Type.Name, v.Text, got.Err)
				continue
			}
			if string(got.Rows[0][0]) != v.Text {
				t.Errorf("%s %q is spelled %q by the server", vt.Type.Name, v.Text, got.Rows[0][0])
			}
			fmt.Fprintf(&out, "%s\t%x\n", strconv.Quote(v.Text), got.Rows[0][1])
		}
	}
	if *update {
		if err := os.WriteFile(valuesPath, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out.String() != string(old) {
		t.Errorf("%s is not what the server says; run with -update", valuesPath)
	}
}
