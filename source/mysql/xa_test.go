package mysql

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

// session runs statements in a session that ends behind them: what it has prepared then
// belongs to nobody.
func (r *rig) session(statements ...string) {
	r.Helper()
	db, err := sql.Open("mysql", r.server.DSN(r.database))
	if err != nil {
		r.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close()
	for _, q := range statements {
		for until := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			_, err := conn.ExecContext(r.Context(), q)
			if err == nil {
				break
			}
			const unknownXID = 1397 // as long as the session that prepared it is not gone
			if !isCode(err, unknownXID) || time.Now().After(until) {
				r.Fatalf("%s: %v", q, err)
			}
		}
	}
}

// prepares leaves a distributed transaction prepared.
func (r *rig) prepares(xid string, statements ...string) {
	r.Helper()
	// Without locks on gaps, so that others can write meanwhile.
	all := append([]string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "XA START " + xid}, statements...)
	r.session(append(all, "XA END "+xid, "XA PREPARE "+xid)...)
}

func TestDistributedTransactionsCountAtTheirCommit(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v longtext)", "CREATE TABLE u (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
		if err := r.source.Publish(t.Context(), []source.Followed{{Table: r.relation("t").Table}, {Table: r.relation("u").Table}}); err != nil {
			t.Fatal(err)
		}
		from, resume := r.mark()
		r.prepares("'a''b','q',7", "INSERT INTO t VALUES (1, 'x')", "SAVEPOINT s", "INSERT INTO u VALUES (1)", "ROLLBACK TO s", "UPDATE t SET v = 'y' WHERE id = 1", "INSERT INTO other VALUES (1)")
		r.exec("INSERT INTO u VALUES (2)")
		between := r.streamFrom(from, resume)
		r.want(between, "INSERT u new [2]")
		r.prepares("'b'", "INSERT INTO t VALUES (10, 'b')")
		r.prepares("'c'", "INSERT INTO u VALUES (20)")
		r.prepares("'unfollowed'", "INSERT INTO other VALUES (2)")
		late := r.streamFrom(from, resume)
		r.exec("FLUSH BINARY LOGS")
		r.session("XA COMMIT 'b'")
		r.exec("INSERT INTO u VALUES (3)")
		r.session("XA ROLLBACK 'c'", "XA COMMIT 'a''b','q',7", "XA COMMIT 'unfollowed'")
		r.session("XA START 'one'", "INSERT INTO u VALUES (4)", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
		// The name of one that is over may be used again.
		r.prepares("'b'", "INSERT INTO t VALUES (11, 'b')")
		r.session("XA COMMIT 'b'")
		r.session("XA START 'read'", "SELECT * FROM t", "XA END 'read'", "XA PREPARE 'read'", "XA COMMIT 'read'")
		rest := []string{"INSERT t new [10] [b]", "INSERT u new [3]", "INSERT t new [1] [x]", "UPDATE t old [1] [x] new [1] [y]", "INSERT u new [4]", "INSERT t new [11] [b]"}
		all := r.streamFrom(from, resume)
		r.want(all, append([]string{"INSERT u new [2]"}, rest...)...)
		if first, second := all.events[3].tx, all.events[4].tx; first != second {
			t.Errorf("the rows of one transaction came in two: %d, %d", first, second)
		}
		// Wherever the mark is, in this file or the one before: between the parts of some.
		for _, h := range []history{between, late} {
			r.want(r.streamFrom(h.end, h.resume), rest...)
		}
		mid := history{end: all.txs[0].End, resume: all.txs[0].Resume}
		for i := 0; i+1 < len(all.txs); i++ {
			if len(all.txs[i].Changes) == 0 {
				continue
			}
			mid = history{end: all.txs[i].End, resume: all.txs[i].Resume}
			var want []string
			for _, e := range all.events {
				if e.tx > i {
					want = append(want, e.String())
				}
			}
			r.want(r.streamFrom(mid.end, mid.resume), want...)
		}

		// One that is prepared while a copy is taken is not in it, and comes behind it.
		r.prepares("'copied'", "INSERT INTO t VALUES (30, 'c')")
		if rows := r.copyTable("t"); len(rows) != 3 {
			t.Errorf("copied %q", rows)
		}
		from, resume = r.mark()
		r.session("XA COMMIT 'copied'")
		r.want(r.streamFrom(from, resume), "INSERT t new [30] [c]")

		// Larger than what is kept in memory.
		from, resume = r.mark()
		r.prepares("'large'", "INSERT INTO u VALUES (100)", "INSERT INTO t SELECT 100 + a.id, repeat('z', 4000000) FROM t AS a", "INSERT INTO t SELECT 200 + a.id, a.v FROM t AS a WHERE id > 100", "INSERT INTO u VALUES (101)")
		r.exec("INSERT INTO other VALUES (3)")
		r.session("XA COMMIT 'large'")
		h := r.streamFrom(from, resume)
		if n := len(h.events); n != 10 || h.events[0].String() != "INSERT u new [100]" || h.events[9].String() != "INSERT u new [101]" || len(h.events[8].new) < 4000000 {
			t.Errorf("%d events of a large transaction", n)
		}
		if !r.server.Binaries.MariaDB {
			from, resume = r.mark()
			r.session("SET SESSION binlog_transaction_compression = ON", "XA START 'small'", "INSERT INTO u VALUES (200)", "INSERT INTO u VALUES (201)", "XA END 'small'", "XA PREPARE 'small'")
			then, text := r.mark()
			r.session("XA COMMIT 'small'")
			r.want(r.streamFrom(from, resume), "INSERT u new [200]", "INSERT u new [201]")
			r.want(r.streamFrom(then, text), "INSERT u new [200]", "INSERT u new [201]")
		}

		// What it wrote is nowhere any more.
		r.prepares("'lost'", "INSERT INTO t VALUES (50, 'l')")
		r.exec("FLUSH BINARY LOGS")
		from, resume = r.mark()
		last := fmt.Sprintf("binlog.%06d", from.File)
		for range 100 { // not while the reader from a moment ago is known
			r.exec("PURGE BINARY LOGS TO '" + last + "'")
			if len(r.server.Query(t, "", "SHOW BINARY LOGS")) == 1 {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		r.session("XA COMMIT 'lost'")
		_, err := r.follow(from, r.head(), source.FollowOptions{Resume: resume})
		if err == nil || fault.KindOf(err) != fault.Operator || fault.RemedyOf(err) == "" || !strings.Contains(err.Error(), "none of its files") {
			t.Errorf("%v", err)
		}
	}, dbtest.Dedicated())
}

func TestNamesOfDistributedTransactions(t *testing.T) {
	event := []byte{0, 7, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 'a', '\'', 'b', 'q'}
	id, onePhase, ok := readXID(event)
	text, ok2 := parseXID(" X'612762',X'71',7")
	if !ok || !ok2 || onePhase || id != text {
		t.Errorf("%q %q %v %v", id, text, ok, ok2)
	}
	empty, ok := parseXID("X'61',X'',-1")
	if other, _ := parseXID("X'',X'61',-1"); !ok || empty == other {
		t.Errorf("%q %v", empty, ok)
	}
	for _, bad := range []string{"", "X'61',X'71'", "'a','b',1", "X'6',X'',1", "X'61',X'',many"} {
		if id, ok := parseXID(bad); ok {
			t.Errorf("%q is %q", bad, id)
		}
	}
	for n := range event {
		if _, _, ok := readXID(event[:n]); ok {
			t.Errorf("%d bytes are a name", n)
		}
	}
	for i := range event {
		broken := append([]byte(nil), event...)
		broken[i] = 0xff
		readXID(broken)
	}
}
