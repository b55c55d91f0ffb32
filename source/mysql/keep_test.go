package mysql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tailrace/internal/dbtest"
	"tailrace/internal/fault"
	"tailrace/source"
)

func (r *rig) kept() source.Kept {
	r.Helper()
	k, err := r.source.Kept(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return k
}

func TestEarlierPlaceIsFollowedFromAgain(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		from, begin := r.mark()
		r.exec("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
		point := r.streamFrom(from, begin)
		if err := r.source.Keep(t.Context(), point.end); err != nil {
			t.Fatal(err)
		}
		r.exec("INSERT INTO t VALUES (4)", "FLUSH BINARY LOGS", "UPDATE t SET id = 5 WHERE id = 4", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 1",
			"CREATE TABLE added (id int PRIMARY KEY)", "INSERT INTO added VALUES (1)",
			"TRUNCATE TABLE added", "INSERT INTO added VALUES (2)")
		first := r.streamFrom(point.end, point.resume)
		r.exec("INSERT INTO t VALUES (6)")
		later := r.streamFrom(first.end, first.resume)
		r.want(later, "INSERT t new [6]")

		// Back, in the same source and in one that was opened anew.
		for _, s := range []*Source{r.source, r.open(r.source.cfg)} {
			r.source = s
			if err := s.Return(t.Context(), point.end); err != nil {
				t.Fatal(err)
			}
			again := r.streamFrom(point.end, point.resume)
			if got := len(again.txs) - len(first.txs); got < 1 {
				t.Fatalf("%d transactions, then %d", len(first.txs), len(again.txs))
			}
			for i := range first.events {
				if again.events[i] != first.events[i] {
					t.Errorf("event %d: %v, then %v", i, first.events[i], again.events[i])
				}
			}
			if last := again.events[len(again.events)-1]; len(again.events) != len(first.events)+1 || last.String() != "INSERT t new [6]" {
				t.Errorf("%d events, then %d, at last %v", len(first.events), len(again.events), last)
			}
			if again.end != later.end || again.resume != later.resume {
				t.Errorf("arrived at %s %q, and again at %s %q", later.end, later.resume, again.end, again.resume)
			}
		}
	})
}

func TestPurgedLogIsLostForItsPoints(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (1)")
		point := r.head()
		if err := r.source.Keep(t.Context(), point); err != nil {
			t.Fatal(err)
		}
		r.exec("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS")
		k, all := r.kept(), int64(0)
		for _, line := range r.server.Query(t, "", "SHOW BINARY LOGS") {
			fields := strings.Split(line, "|")
			var size int64
			if _, n, err := numberOf(fields[0]); err != nil || n < point.File {
				continue
			}
			if _, err := fmt.Sscan(fields[1], &size); err != nil {
				t.Fatal(err)
			}
			all += size
		}
		if !k.Exists || k.Lost || point.Before(k.From) || k.Bytes != all {
			t.Errorf("kept: %+v, want %d bytes", k, all)
		}
		if err := r.source.Return(t.Context(), point); err != nil {
			t.Error(err)
		}
		newest, _, _, err := r.source.status(t.Context(), r.source.db)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 { // MariaDB purges no file that a reader had until a moment ago
			r.exec("PURGE BINARY LOGS TO '" + newest + "'")
			if k = r.kept(); point.Before(k.From) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !k.Lost || !strings.Contains(k.Why, "purged") {
			t.Errorf("kept: %+v", k)
		}
		err = r.source.Return(t.Context(), point)
		if fault.KindOf(err) != fault.Operator || !strings.Contains(err.Error(), "purged") || !strings.Contains(fault.RemedyOf(err), "later point") {
			t.Errorf("return: %v", err)
		}
		// A point of another server is judged by its GTIDs, not by its number.
		other := point
		other.Epoch++
		if err := r.source.Keep(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if err := r.source.Return(t.Context(), other); err != nil || r.kept().Lost {
			t.Errorf("another server's: %v, %+v", err, r.kept())
		}
		if err := r.source.Unkeep(t.Context()); err != nil || r.kept().Lost {
			t.Errorf("nothing kept: %v, %+v", err, r.kept())
		}
	}, dbtest.Dedicated())
}

func TestEarlierPlaceIsFoundOnTheServerThatTookOver(t *testing.T) {
	onPairs(t, func(primary, replica *rig) {
		primary.exec("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
		from, resume := primary.mark()
		primary.exec("INSERT INTO t VALUES (2)")
		point := primary.streamFrom(from, resume)
		primary.exec("INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (4)")
		mark := primary.streamFrom(point.end, point.resume)
		replica.receives("t", 4)
		replica.stopReplicating()
		replica.exec("INSERT INTO t VALUES (5)")

		// The pipeline goes on at the new server.
		m := replica.locate(primary, mark.end, mark.resume)
		if m.Problem != "" {
			t.Fatalf("%+v", m)
		}
		on, err := replica.goOn(m.Position, m.Resume)
		if err != nil {
			t.Fatal(err)
		}
		replica.want(on, "INSERT t new [5]")

		// Then back to the point that was made on the old one.
		if m = replica.locate(primary, point.end, point.resume); m.Problem != "" || !point.end.Before(m.Position) {
			t.Fatalf("%+v", m)
		}
		again, err := replica.goOn(m.Position, m.Resume)
		if err != nil {
			t.Fatal(err)
		}
		replica.want(again, "INSERT t new [3]", "INSERT t new [4]", "INSERT t new [5]")
		if again.end != on.end {
			t.Errorf("arrived at %s, and again at %s", on.end, again.end)
		}
	})
}

func TestCheckComparesTheLogsExpiryWithTheWindow(t *testing.T) {
	onAll(t, func(r *rig) {
		findings := func(window time.Duration) (text string) {
			all, err := r.source.CheckKeep(t.Context(), window)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				text += fmt.Sprintf("%v: %s; %s\n", f.Blocks, f.What, f.Remedy)
			}
			return text
		}
		r.exec("SET GLOBAL binlog_expire_logs_seconds = 3600")
		got := findings(48 * time.Hour)
		want := "SET PERSIST binlog_expire_logs_seconds = 259200"
		if r.server.Binaries.MariaDB {
			want = "SET GLOBAL binlog_expire_logs_seconds = 259200"
		}
		if !strings.Contains(got, "false: the source keeps its log for 1h0m0s, and rewind points are kept for 48h0m0s") || !strings.Contains(got, want) {
			t.Errorf("findings:\n%s", got)
		}
		if got := findings(time.Hour); got != "" {
			t.Errorf("long enough:\n%s", got)
		}
		r.exec("SET GLOBAL binlog_expire_logs_seconds = 0")
		if got := findings(1000 * time.Hour); got != "" {
			t.Errorf("never:\n%s", got)
		}
		if len(r.server.Query(t, "", "SHOW GLOBAL VARIABLES LIKE 'max_binlog_total_size'")) > 0 {
			r.exec("SET GLOBAL max_binlog_total_size = 104857600")
			if got := findings(time.Hour); !strings.Contains(got, "beyond 100 MiB") || !strings.Contains(got, "SET GLOBAL max_binlog_total_size = 0") {
				t.Errorf("findings:\n%s", got)
			}
		}
	}, dbtest.Dedicated())
}

// The settings of servers that are not at hand.
func TestExpiryIsReadFromEveryKindOfSetting(t *testing.T) {
	for _, c := range []struct {
		v    map[string]string
		want time.Duration
		set  string
		f    server
	}{
		{map[string]string{"binlog_expire_logs_seconds": "2592000", "expire_logs_days": "0"}, 720 * time.Hour, "SET PERSIST binlog_expire_logs_seconds = 172800", server{}},
		{map[string]string{"binlog_expire_logs_seconds": "3600", "binlog_expire_logs_auto_purge": "OFF"}, 0, "SET PERSIST binlog_expire_logs_seconds = 172800", server{}},
		{map[string]string{"binlog_expire_logs_seconds": "0", "expire_logs_days": "2"}, 48 * time.Hour, "SET PERSIST binlog_expire_logs_seconds = 172800", server{}},
		{map[string]string{"binlog_expire_logs_seconds": "43200", "expire_logs_days": "0.500000"}, 12 * time.Hour, "SET GLOBAL binlog_expire_logs_seconds = 172800 (and in the server's configuration)", server{mariaDB: true}},
		{map[string]string{"expire_logs_days": "3"}, 72 * time.Hour, "SET GLOBAL expire_logs_days = 2 (and in the server's configuration)", server{mariaDB: true}},
		{map[string]string{"expire_logs_days": "0"}, 0, "SET GLOBAL expire_logs_days = 2 (and in the server's configuration)", server{mariaDB: true}},
	} {
		if got := expiry(c.v); got != c.want {
			t.Errorf("%v: %s, want %s", c.v, got, c.want)
		}
		if got := c.f.expiryRemedy(c.v, 48*time.Hour); got != c.set {
			t.Errorf("%v: %s, want %s", c.v, got, c.set)
		}
	}
}
