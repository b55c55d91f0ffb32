package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/myserver"
)

// The source is killed and a replica takes over, which has applied two domains in its own
// order: nothing is lost and nothing comes twice, in any destination.
func TestSourceFailsOverToItsReplica(t *testing.T) {
	t.Parallel()
	pg := dbtest.Postgres(t)
	primary := dbtest.MariaDB(t, dbtest.Setting("log-slave-updates", "ON"))
	replica := dbtest.MariaDB(t, dbtest.Setting("log-slave-updates", "ON"), dbtest.Setting("server-id", "2"), dbtest.Setting("slave-parallel-threads", "4"), dbtest.Setting("slave-parallel-mode", "optimistic"))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	database := primary.Database(t)
	const accounts = 100 // of each domain
	primary.Exec(t, database, "CREATE TABLE accounts (id int PRIMARY KEY, version int NOT NULL)", fmt.Sprintf("INSERT INTO accounts SELECT seq, 0 FROM seq_1_to_%d", 2*accounts))
	replica.Exec(t, "", fmt.Sprintf("CHANGE MASTER TO master_host='%s', master_port=%d, master_user='%s', master_password='%s', master_use_gtid=slave_pos", primary.Host, primary.Port, myserver.Superuser, myserver.Password), "START SLAVE")

	var rigs []*rig
	for _, kind := range kinds {
		dest := freshDestination(t, pg, kind)
		config := filepath.Join(t.TempDir(), "c.yaml")
		text := fmt.Sprintf("pipeline: %s\nsource: {kind: mysql, dsn: %q}\ndestination: {kind: %s, dsn: %q}\nflows:\n  - source: %s.*\n  - {source: %[5]s.accounts, target: history, stored_as_scd_type: 2}\n",
			uniqueName("p"), primary.URL(database), kind, dest.dsn, database)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		rigs = append(rigs, &rig{config: config, dest: dest})
	}

	// Each domain has its own accounts, and each transaction makes new versions of some.
	write := func(server *dbtest.MyServer, stream uint64) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		wrote := make(chan error, 2)
		for domain := range 2 {
			db := server.Open(t, database)
			go func() {
				own := rand.New(rand.NewPCG(seed, stream+uint64(domain)))
				conn, err := db.Conn(t.Context())
				if err == nil {
					defer conn.Close()
					_, err = conn.ExecContext(t.Context(), fmt.Sprintf("SET SESSION gtid_domain_id = %d", domain))
				}
				for err == nil && ctx.Err() == nil {
					at := domain*accounts + 1 + own.IntN(accounts-3)
					_, err = conn.ExecContext(t.Context(), fmt.Sprintf("UPDATE accounts SET version = version + 1 WHERE id BETWEEN %d AND %d", at, at+own.IntN(4)))
				}
				wrote <- err
			}()
		}
		return func() {
			cancel()
			for range 2 {
				if err := <-wrote; err != nil {
					t.Error(err)
				}
			}
		}
	}
	stop := write(primary, 1)
	var procs []*proc
	for _, r := range rigs {
		procs = append(procs, r.start(t, nil))
	}
	for i, p := range procs {
		eventually(t, time.Minute, "its tables are copied", func() bool {
			out, _ := rigs[i].command(t, nil, "status")
			return strings.Count(out, " live ") >= 2
		})
		time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
		p.kill()
	}
	time.Sleep(200 * time.Millisecond)
	stop()
	at := primary.Query(t, "", "SELECT @@gtid_binlog_pos")[0]
	if got := replica.Query(t, "", "SELECT master_gtid_wait('"+at+"', 60)"); got[0] != "0" {
		t.Fatalf("the replica does not come to %s: %v", at, got)
	}
	if err := primary.Kill9(); err != nil {
		t.Fatal(err)
	}
	replica.Exec(t, "", "STOP SLAVE", "RESET SLAVE ALL")
	for _, r := range rigs {
		r.reconfigure(t, primary.URL(database), replica.URL(database))
		if out, code := r.command(t, nil, "plan"); code != 0 || !strings.Contains(out, "another server of the same history") {
			t.Errorf("%s: plan exits %d:\n%s", r.dest.kind, code, out)
		}
	}
	stop = write(replica, 3)
	for i, r := range rigs {
		procs[i] = r.start(t, nil)
	}
	for _, p := range procs { // killed again, perhaps while it still passes over what it has
		time.Sleep(time.Duration(300+rnd.IntN(500)) * time.Millisecond)
		p.kill()
	}
	stop()
	for _, r := range rigs {
		if out, code := r.command(t, nil, "run", "--once"); code != 0 {
			t.Fatalf("%s: run --once exits %d:\n%s", r.dest.kind, code, tail(out))
		}
		out, code := r.command(t, nil, "verify")
		if code != 0 || !strings.Contains(out, fmt.Sprintf("0 differences of %d rows", 2*accounts)) {
			t.Fatalf("%s: verify exits %d:\n%s", r.dest.kind, code, out)
		}
		if out, code = r.command(t, nil, "status", "--check"); code != 0 || !strings.Contains(out, "1:") {
			t.Errorf("%s: status --check exits %d:\n%s", r.dest.kind, code, out)
		}
		// Every version that was written since the copy is there once.
		header, rows := r.shown(t, "history")
		id, version := slices.Index(header, "id"), slices.Index(header, "version")
		versions := map[string][]int{}
		for _, row := range rows {
			n, err := strconv.Atoi(row[version])
			if err != nil {
				t.Fatal(err)
			}
			versions[row[id]] = append(versions[row[id]], n)
		}
		all := 0
		for id, list := range versions {
			slices.Sort(list)
			for i, n := range list {
				if n != list[0]+i {
					t.Errorf("%s: account %s has versions %v", r.dest.kind, id, list)
					break
				}
			}
			all += len(list)
		}
		if len(versions) != 2*accounts || all < 4*accounts {
			t.Errorf("%s: %d accounts have %d versions", r.dest.kind, len(versions), all)
		}
	}
}
