package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// BenchmarkCatchUp takes a backlog from one server into another, by the built program:
// 500,000 inserts and 250,000 updates of rows of some 100 bytes, 1,000 in a transaction.
//
//	go test ./cmd/tailrace -run '^$' -bench CatchUp -benchtime 1x
func BenchmarkCatchUp(b *testing.B) {
	for _, source := range []string{"postgres", "mysql"} {
		for _, target := range []string{"postgres", "mysql", "duckdb"} {
			b.Run(source+"-"+target, func(b *testing.B) {
				for range b.N {
					b.StopTimer()
					r := backlog(b, source, target)
					b.StartTimer()
					began := time.Now()
					r.must(b, "run", "--once")
					b.ReportMetric(750_000/time.Since(began).Seconds(), "changes/s")
					b.StopTimer()
					contains(b, r.must(b, "verify"), "0 differences of 500000 rows")
					b.StartTimer()
				}
			})
		}
	}
}

// backlog makes a pipeline whose table was copied while it was empty, and writes it.
func backlog(b *testing.B, source, target string) *rig {
	b.Helper()
	pg, my := dbtest.Postgres(b), dbtest.MariaDB(b)
	const table = "create table t(id int primary key, a int not null, b varchar(100) not null, c decimal(12,2))"
	var dsn, flow string
	var exec func(statements ...string)
	if source == "postgres" {
		dsn = pg.Database(b)
		flow = "public.t"
		exec = func(s ...string) { pg.Exec(b, dsn, s...) }
	} else {
		database := my.Database(b)
		dsn, flow = my.URL(database), database+".t"
		db := my.Open(b, database)
		exec = func(list ...string) {
			for _, s := range list {
				if _, err := db.Exec(s); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	var dest string
	switch target {
	case "postgres":
		dest = pg.Database(b)
	case "mysql":
		dest = my.URL(my.Database(b))
	default:
		dest = filepath.Join(b.TempDir(), "target.duckdb")
	}
	exec(table)
	r := &rig{config: filepath.Join(b.TempDir(), "c.yaml")}
	text := fmt.Sprintf("pipeline: %s\nsource: {kind: %s, dsn: %q}\ndestination: {kind: %s, dsn: %q}\nflows: [{source: %s}]\n", uniqueName("p"), source, dsn, target, dest, flow)
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	r.must(b, "run", "--once")
	rows := "select i, i, repeat('x', 60), i * 1.5 from generate_series(%d, %d) i"
	if source == "mysql" {
		rows = "select seq, seq, repeat('x', 60), seq * 1.5 from seq_%d_to_%d"
	}
	for n := 1; n < 500_000; n += 1000 {
		exec(fmt.Sprintf("insert into t "+rows, n, n+999))
		if n%2000 == 1 {
			exec(fmt.Sprintf("update t set a = a + 1, c = 0 where id between %d and %d", n, n+999))
		}
	}
	return r
}
