package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
)

// A MariaDB source, and each destination: copied, followed, killed at any moment, and
// equal in the end.
func TestMariaDBSourceIsFollowedThroughKills(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		server, pg := dbtest.MariaDB(t), dbtest.Postgres(t)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		database := server.Database(t)
		server.Exec(t, database,
			"CREATE TABLE accounts (id int PRIMARY KEY, name varchar(40), balance decimal(12,2) NOT NULL, u bigint unsigned, at timestamp(6) NULL, d date, span time(3), raw varbinary(20), e enum('a','b'), bits bit(9))",
			"CREATE TABLE moves (id bigint AUTO_INCREMENT PRIMARY KEY, account int, amount decimal(12,2))",
			"INSERT INTO accounts SELECT seq, concat('né', seq), 100, 18446744073709551615 - seq, '2024-01-01 00:00:00.5', '2024-02-29', '-25:00:00.5', unhex(lpad(hex(seq), 8, '0')), 'b', seq % 512 FROM seq_1_to_500")
		dest := freshDestination(t, pg, kind)
		config := filepath.Join(t.TempDir(), "c.yaml")
		text := fmt.Sprintf("pipeline: %s\nsource: {kind: mysql, dsn: %q}\ndestination: {kind: %s, dsn: %q}\nflows:\n  - source: %s.*\n  - {source: %[5]s.accounts, target: history, stored_as_scd_type: 2}\n",
			uniqueName("p"), server.URL(database), kind, dest.dsn, database)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := &rig{config: config, dest: dest}

		ctx, stop := context.WithCancel(t.Context())
		wrote := make(chan error, 1)
		db := server.Open(t, database)
		go func() {
			var err error
			own := rand.New(rand.NewPCG(seed, 2))
			for i := 0; ctx.Err() == nil && err == nil; i++ {
				conn, e := db.Begin()
				if err = e; err != nil {
					break
				}
				from, to, amount := own.IntN(500)+1, own.IntN(500)+1, own.IntN(100)
				for _, q := range []string{
					fmt.Sprintf("UPDATE accounts SET balance = balance - %d WHERE id = %d", amount, from),
					fmt.Sprintf("UPDATE accounts SET balance = balance + %d WHERE id = %d", amount, to),
					fmt.Sprintf("INSERT INTO moves (account, amount) VALUES (%d, %d)", from, amount),
				} {
					if _, err = conn.Exec(q); err != nil {
						break
					}
				}
				if i%50 == 7 && err == nil {
					_, err = conn.Exec(fmt.Sprintf("DELETE FROM moves WHERE account = %d", from))
				}
				if err == nil {
					err = conn.Commit()
				}
			}
			wrote <- err
		}()
		for range 10 {
			p := r.start(t, nil)
			time.Sleep(time.Duration(300+rnd.IntN(1000)) * time.Millisecond)
			p.kill()
		}
		stop()
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		server.Exec(t, database, "ALTER TABLE accounts ADD COLUMN more int", "UPDATE accounts SET more = id WHERE id <= 10", "UPDATE accounts SET id = id + 1000 WHERE id > 495",
			"TRUNCATE moves", "INSERT INTO moves (account, amount) VALUES (1, 1)")
		if out, code := r.command(t, nil, "run", "--once"); code != 0 {
			t.Fatalf("run --once exits %d:\n%s", code, tail(out))
		}
		out, code := r.command(t, nil, "verify")
		if code != 0 || !strings.Contains(out, "0 differences of 1001 rows") {
			t.Fatalf("verify exits %d:\n%s", code, out)
		}
		out, code = r.command(t, nil, "status", "--check")
		if code != 0 || !strings.Contains(out, "log reaches from") {
			t.Errorf("status --check exits %d:\n%s", code, out)
		}
		if out, code := r.command(t, nil, "plan"); code != 0 || !strings.Contains(out, "its log is only read") {
			t.Errorf("plan exits %d:\n%s", code, out)
		}

		// A table that is dropped is parked, by the log; the others go on.
		server.Exec(t, database, "DROP TABLE moves", "UPDATE accounts SET balance = 7 WHERE id = 1")
		r.onceParked(t)
		if out, code = r.command(t, nil, "status", "--check"); code != 1 || !strings.Contains(out, "parked") {
			t.Errorf("status --check exits %d:\n%s", code, out)
		}
		if out, code = r.command(t, nil, "verify", "--table", "accounts"); code != 0 || !strings.Contains(out, "0 differences of 500 rows") {
			t.Errorf("verify exits %d:\n%s", code, out)
		}
	})
}
