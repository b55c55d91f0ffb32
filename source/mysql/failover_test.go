package mysql

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"tailrace/internal/change"
	"tailrace/internal/dbtest"
	"tailrace/internal/dbtest/myserver"
	"tailrace/internal/fault"
	"tailrace/source"
)

// onPairs runs a test on two servers of each installation, the second a replica of the
// first.
func onPairs(t *testing.T, test func(primary, replica *rig)) {
	onTwo(t, func(primary, replica *rig) {
		replica.replicate(primary)
		test(primary, replica)
	})
}

// onTwo runs a test on two servers of each installation, in one database that only the
// first has.
func onTwo(t *testing.T, test func(first, second *rig)) {
	ones := dbtest.MySQLs(t, dbtest.Setting("log-slave-updates", "ON"))
	others := dbtest.MySQLs(t, dbtest.Setting("server-id", "2"), dbtest.Setting("log-slave-updates", "ON"))
	for i := range ones {
		t.Run(ones[i].Binaries.Full, func(t *testing.T) {
			first := newRig(t, ones[i], Config{})
			second := &rig{T: t, server: others[i], database: first.database}
			cfg := first.source.cfg
			cfg.DSN = second.server.URL(first.database)
			second.source = second.open(cfg)
			test(first, second)
		})
	}
}

// replicate makes the server a replica of another.
func (r *rig) replicate(of *rig) {
	r.Helper()
	if r.server.Binaries.MariaDB {
		r.server.Exec(r.T, "", fmt.Sprintf("CHANGE MASTER TO master_host='%s', master_port=%d, master_user='%s', master_password='%s', master_use_gtid=slave_pos, master_connect_retry=1", of.server.Host, of.server.Port, myserver.Superuser, myserver.Password), "START SLAVE")
	} else {
		r.server.Exec(r.T, "", fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST='%s', SOURCE_PORT=%d, SOURCE_USER='%s', SOURCE_PASSWORD='%s', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1", of.server.Host, of.server.Port, myserver.Superuser, myserver.Password), "START REPLICA")
	}
}

func (r *rig) stopReplicating() {
	r.Helper()
	if r.server.Binaries.MariaDB {
		r.server.Exec(r.T, "", "STOP SLAVE")
	} else {
		r.server.Exec(r.T, "", "STOP REPLICA")
	}
}

// receives waits until a replica has a number of rows in a table.
func (r *rig) receives(table string, rows int) {
	r.Helper()
	db := r.server.Open(r.T, "")
	var n int
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err := db.QueryRow(fmt.Sprintf("SELECT count(*) FROM %s.%s", r.database, table)).Scan(&n); err == nil && n == rows {
			return
		}
	}
	r.Fatalf("the replica has %d rows of %s, not %d", n, table, rows)
}

// mark is the newest place of the log, as a copy's mark has it.
func (r *rig) mark() (change.Position, string) {
	r.Helper()
	snap, err := r.source.Snapshot(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	defer snap.Close(r.Context())
	return snap.Position(), snap.(source.Resumable).Resume()
}

// streamFrom is stream from a mark.
func (r *rig) streamFrom(from change.Position, resume string) history {
	r.Helper()
	h, err := r.follow(from, r.head(), source.FollowOptions{Resume: resume})
	if err != nil {
		r.Fatal(err)
	}
	return h
}

// locate asks the server where a mark that was made on another lies.
func (r *rig) locate(on *rig, at change.Position, resume string) *source.Moved {
	r.Helper()
	f, err := on.source.facts(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.source.Locate(source.Located{System: f.identity, Position: at, Resume: resume})
	st, err := r.source.State(r.Context())
	if err != nil || st.Moved == nil {
		r.Fatalf("state %+v: %v", st, err)
	}
	if st.Head.Epoch != at.Epoch+1 || st.Oldest.Epoch != at.Epoch+1 {
		r.Fatalf("a mark at %s, and a log from %s to %s", at, st.Oldest, st.Head)
	}
	return st.Moved
}

// goOn follows from where a mark lies on the server, as the next start does.
func (r *rig) goOn(at change.Position, resume string) (history, error) {
	r.Helper()
	f, err := r.source.facts(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	r.source.Locate(source.Located{System: f.identity, Position: at, Resume: resume})
	return r.follow(at, r.head(), source.FollowOptions{Resume: resume})
}

func TestFailoverGoesOnWhereTheMarkLies(t *testing.T) {
	onPairs(t, func(primary, replica *rig) {
		primary.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		from, resume := primary.mark()
		primary.prepares("'over'", "INSERT INTO t VALUES (50)") // before the mark; its end comes on the other server
		primary.exec("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
		replica.receives("t", 3)
		replica.exec("FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
		primary.exec("INSERT INTO t VALUES (4)")
		h := primary.streamFrom(from, resume)
		primary.want(h, "INSERT t new [2]", "INSERT t new [3]", "INSERT t new [4]")
		primary.exec("UPDATE t SET id = 6 WHERE id = 1", "INSERT INTO t VALUES (5)") // the last is what is waited for
		replica.receives("t", 5)
		if err := primary.server.Kill9(); err != nil {
			t.Fatal(err)
		}
		replica.session("INSERT INTO t VALUES (7)", "XA COMMIT 'over'")

		m := replica.locate(primary, h.end, h.resume)
		if m.Problem != "" || !h.end.Before(m.Position) {
			t.Fatalf("%+v", m)
		}
		g, err := replica.goOn(m.Position, m.Resume)
		if err != nil {
			t.Fatal(err)
		}
		replica.want(g, "UPDATE t old [1] new [6]", "INSERT t new [5]", "INSERT t new [7]", "INSERT t new [50]")
		if r, err := parseResume(g.resume); err != nil || r.held != "" {
			t.Errorf("all of the mark was passed, and it still holds %q back: %v", r.held, err)
		}

		// And on, from a mark of the new server; then back on the one that was killed: it
		// lacks what the new one wrote, until it is its replica.
		replica.exec("INSERT INTO t VALUES (8)")
		if g, err = replica.goOn(g.end, g.resume); err != nil {
			t.Fatal(err)
		}
		replica.want(g, "INSERT t new [8]")
		replica.stopReplicating()
		if err := primary.server.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m := primary.locate(replica, g.end, g.resume); !strings.Contains(m.Problem, "lacks") || m.Remedy == "" {
			t.Fatalf("%+v", m)
		}
		primary.replicate(replica)
		primary.receives("t", 8)
		m = primary.locate(replica, g.end, g.resume)
		primary.exec("INSERT INTO t VALUES (9)")
		if m.Problem != "" || m.Position.Epoch != 2 {
			t.Fatalf("%+v", m)
		}
		if g, err = primary.goOn(m.Position, m.Resume); err != nil {
			t.Fatal(err)
		}
		primary.want(g, "INSERT t new [9]")
	})
}

func TestFailoverToAServerThatLacksOrHasPurgedTransactionsIsRefused(t *testing.T) {
	onPairs(t, func(primary, replica *rig) {
		primary.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		from, resume := primary.mark()
		primary.exec("INSERT INTO t VALUES (2)")
		early := primary.streamFrom(from, resume)
		primary.exec("INSERT INTO t VALUES (3)")
		replica.receives("t", 3)
		replica.stopReplicating()
		primary.exec("INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (5)")
		late := primary.streamFrom(from, resume)
		threads := map[bool]string{true: "SLAVE", false: "REPLICA"}[replica.server.Binaries.MariaDB]
		replica.server.Exec(t, "", "START "+threads+" SQL_THREAD") // it would apply what it received
		if m := replica.locate(primary, late.end, late.resume); !strings.Contains(m.Problem, "lacks") || !m.Passing {
			t.Errorf("%+v", m)
		}
		replica.stopReplicating()
		set, err := parseResume(late.resume)
		if err != nil {
			t.Fatal(err)
		}
		newest := set.gtids[strings.LastIndexAny(set.gtids, "-:")+1:]
		if m := replica.locate(primary, late.end, late.resume); !strings.Contains(m.Problem, "lacks") || !strings.Contains(m.Problem, newest) || m.Remedy == "" || m.Passing {
			t.Errorf("%+v, GTIDs of the mark %s", m, set.gtids)
		}
		// It went on by itself: what it lacks stays lost.
		replica.exec("INSERT INTO t VALUES (14)", "INSERT INTO t VALUES (15)", "INSERT INTO t VALUES (16)")
		if m := replica.locate(primary, late.end, late.resume); !strings.Contains(m.Problem, "lacks") {
			t.Errorf("%+v", m)
		}
		// An earlier mark lacks nothing there.
		m := replica.locate(primary, early.end, early.resume)
		if m.Problem != "" {
			t.Fatalf("%+v", m)
		}
		if g, err := replica.goOn(m.Position, m.Resume); err != nil {
			t.Error(err)
		} else {
			replica.want(g, "INSERT t new [3]", "INSERT t new [14]", "INSERT t new [15]", "INSERT t new [16]")
		}
		replica.exec("FLUSH BINARY LOGS", "INSERT INTO t VALUES (17)")
		files := replica.server.Query(t, "", "SHOW BINARY LOGS")
		last, _, _ := strings.Cut(files[len(files)-1], "|")
		for range 100 { // not while the reader from a moment ago is known
			replica.exec("PURGE BINARY LOGS TO '" + last + "'")
			if len(replica.server.Query(t, "", "SHOW BINARY LOGS")) == 1 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if m := replica.locate(primary, early.end, early.resume); !strings.Contains(m.Problem, "purged") || m.Remedy == "" {
			t.Errorf("%+v", m)
		}
		if m := replica.locate(primary, early.end, "binlog.000001 0 "); !strings.Contains(m.Problem, "no GTIDs") {
			t.Errorf("%+v", m)
		}
		strange := "binlog.000001 0 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7"
		if !replica.server.Binaries.MariaDB {
			strange = "binlog.000001 0 0-1-7"
		}
		if m := replica.locate(primary, early.end, strange); !strings.Contains(m.Problem, "another kind") {
			t.Errorf("%+v", m)
		}
	})
}

// named writes a row as the transaction of a name, as a replica does.
func (r *rig) named(origin string, server int, n, id int) {
	r.Helper()
	if r.server.Binaries.MariaDB {
		r.exec("SET SESSION gtid_domain_id = "+origin, fmt.Sprintf("SET SESSION server_id = %d", server), fmt.Sprintf("SET SESSION gtid_seq_no = %d", n), fmt.Sprintf("INSERT INTO t VALUES (%d)", id))
		return
	}
	r.exec(fmt.Sprintf("SET gtid_next = '%s:%d'", origin, n), fmt.Sprintf("INSERT INTO t VALUES (%d)", id), "SET gtid_next = 'AUTOMATIC'")
}

// A replica commits the transactions of several origins in another order, on MySQL also
// those of one. Wherever the stream is cut, each is seen once.
func TestFailoverSeesTransactionsInAnotherOrderOnce(t *testing.T) {
	onTwo(t, func(first, second *rig) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		second.server.Exec(t, "", "SET sql_log_bin = 0", "CREATE DATABASE "+first.database, "CREATE TABLE "+first.database+".t (id int PRIMARY KEY)")
		first.server.Exec(t, "", "SET sql_log_bin = 0", "CREATE TABLE "+first.database+".t (id int PRIMARY KEY)")
		if first.server.Binaries.MariaDB {
			first.exec("RESET MASTER")
			second.exec("RESET MASTER")
		} else {
			first.exec("RESET BINARY LOGS AND GTIDS")
			second.exec("RESET BINARY LOGS AND GTIDS")
		}
		type tx struct {
			origin    string
			server, n int
		}
		origins := []string{"0", "1", "7"}
		if !first.server.Binaries.MariaDB {
			origins = []string{"3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562", "5e11fa47-71ca-11e1-9e33-c80aa9429562"}
		}
		var all []tx
		for n := 1; n <= 8; n++ {
			for i, o := range origins {
				all = append(all, tx{o, i + 10, n})
			}
		}
		id := func(x tx) int { return x.server*100 + x.n }
		from, resume := first.mark()
		var ends []history
		for _, x := range all {
			first.named(x.origin, x.server, x.n, id(x))
			if x.n == 4 { // a mark in the middle of it
				ends = append(ends, first.streamFrom(from, resume))
			}
		}
		// Anything may pass anything else on MySQL, on MariaDB what is of another domain.
		other := append([]tx(nil), all...)
		for range 200 {
			i := rnd.IntN(len(other) - 1)
			if other[i].origin != other[i+1].origin || !first.server.Binaries.MariaDB {
				other[i], other[i+1] = other[i+1], other[i]
			}
		}
		for i, x := range other {
			second.named(x.origin, x.server, x.n, id(x))
			if i == 5 {
				second.exec("FLUSH BINARY LOGS")
			}
		}
		for _, h := range ends {
			m := second.locate(first, h.end, h.resume)
			if m.Problem != "" {
				t.Fatalf("%+v, mark %s", m, h.resume)
			}
			seen := map[string]int{}
			for _, e := range h.events {
				seen[e.new]++
			}
			at, resume := m.Position, m.Resume
			for at.Before(second.head()) { // one transaction, then from its mark
				f, err := second.source.facts(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				second.source.Locate(source.Located{System: f.identity, Position: at, Resume: resume})
				g, err := second.follow(at, change.Position{Epoch: at.Epoch, File: at.File, Offset: at.Offset + 1}, source.FollowOptions{Resume: resume})
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range g.events {
					if e.tx == 0 {
						seen[e.new]++
					}
				}
				if at, resume = g.txs[0].End, g.txs[0].Resume; resume == "" {
					t.Fatalf("%+v has no resume position", g.txs[0])
				}
			}
			if len(seen) != len(all) {
				t.Errorf("%d of %d transactions were seen", len(seen), len(all))
			}
			for row, n := range seen {
				if n != 1 {
					t.Errorf("row %s was seen %d times", row, n)
				}
			}
		}
	})
}

// A MariaDB whose log does not go on where the mark ends, although its numbers look so.
func TestFailoverAcrossAGapIsRefused(t *testing.T) {
	server := dbtest.MariaDB(t, dbtest.Setting("gtid-strict-mode", "OFF"))
	r := newRig(t, server, Config{})
	r.exec("SET sql_log_bin = 0", "CREATE TABLE t (id int PRIMARY KEY)", "RESET MASTER")
	r.named("0", 1, 10, 1)
	r.named("0", 1, 13, 2)
	r.named("5", 3, 4, 3)
	home := fmt.Sprintf("binlog.%06d 0 ", r.head().File)
	for held, says := range map[string]string{
		"0-1-9,5-3-4":  "", // its log begins with the next one
		"0-1-10,5-3-3": "",
		"0-1-11":       "those in between are not in it",
		"0-1-8":        "those in between are not in it",
		"0-2-13":       "in place of transaction 0-2-13",
	} {
		_, err := r.goOn(change.Position{Epoch: 1, File: r.head().File, Offset: fileBegin}, home+" "+held)
		switch {
		case says == "" && err != nil, says != "" && (err == nil || fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), says)):
			t.Errorf("held %s: %v", held, err)
		}
	}
	if _, err := os.Stat(server.LogFile("binlog.000001")); err != nil {
		t.Fatal(err)
	}
}

// A replica as the source: what it receives is in its log beside what is written there,
// and where it stands as a replica is another place than the end of its log.
func TestReplicaIsASource(t *testing.T) {
	onPairs(t, func(primary, replica *rig) {
		mariaDB := primary.server.Binaries.MariaDB
		domain := func(n int) string {
			if !mariaDB {
				return "DO 0"
			}
			return fmt.Sprintf("SET SESSION gtid_domain_id = %d", n)
		}
		write := func(id int) {
			primary.exec(domain(0), fmt.Sprintf("INSERT INTO t VALUES (%d)", id))
			primary.exec(domain(1), fmt.Sprintf("INSERT INTO t VALUES (%d)", id+1))
			replica.exec(domain(2), fmt.Sprintf("INSERT INTO t VALUES (%d)", id+2))
		}
		primary.exec("CREATE TABLE t (id int PRIMARY KEY)")
		replica.receives("t", 0)
		write(10)
		replica.receives("t", 3)
		rel := replica.relation("t")
		snap, err := replica.source.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for _, row := range replica.copyFrom(snap, rel) {
			seen[row]++
		}
		at, resume := snap.Position(), snap.(source.Resumable).Resume()
		if err := snap.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := 2; n < 6; n++ {
			write(10 * n)
			if n == 3 {
				replica.exec("FLUSH BINARY LOGS")
			}
		}
		replica.receives("t", 15)
		for at.Before(replica.head()) { // one transaction, then from its mark
			h, err := replica.follow(at, change.Position{File: at.File, Offset: at.Offset + 1}, source.FollowOptions{Resume: resume})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range h.events {
				if e.tx == 0 {
					seen[e.new]++
				}
			}
			at, resume = h.txs[0].End, h.txs[0].Resume
		}
		if len(seen) != 15 {
			t.Errorf("%d of 15 rows were seen", len(seen))
		}
		for row, n := range seen {
			if n != 1 {
				t.Errorf("row %s was seen %d times", row, n)
			}
		}
		r, err := parseResume(resume)
		if err != nil {
			t.Fatal(err)
		}
		if mariaDB {
			got := replica.server.Query(t, "", "SELECT @@gtid_binlog_pos, @@gtid_slave_pos")[0]
			log, position, _ := strings.Cut(got, "|")
			a, _ := parseGTIDs(true, log)
			if b, _ := parseGTIDs(true, r.gtids); a.String() != b.String() || len(b.parts) != 3 || log == position {
				t.Errorf("the mark has GTIDs %s, the log %s, the replica %s", r.gtids, log, position)
			}
		} else if got := replica.server.Query(t, "", "SELECT gtid_subtract(@@global.gtid_executed, '"+r.gtids+"')")[0]; got != "" {
			t.Errorf("the mark has GTIDs %s; %s are missing", r.gtids, got)
		}
		// What was written on the replica alone is on no other server.
		if m := primary.locate(replica, at, resume); !strings.Contains(m.Problem, "lacks") {
			t.Errorf("%+v", m)
		}
	})
}
