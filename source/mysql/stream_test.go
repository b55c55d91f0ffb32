package mysql

import (
	"testing"
)

func TestStreamHoldsWholeTransactionsInCommitOrder(t *testing.T) {
	onAll(t, func(r *rig) {
		r.exec("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "CREATE TABLE other (id int PRIMARY KEY)")
		from := r.head()
		r.exec("INSERT INTO t VALUES (1, 'a'), (2, NULL)",
			"BEGIN", "UPDATE t SET v = 'b' WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO other VALUES (7)", "COMMIT",
			"BEGIN", "INSERT INTO t VALUES (9, 'gone')", "ROLLBACK",
			"BEGIN", "INSERT INTO t VALUES (3, 'kept')", "SAVEPOINT s", "INSERT INTO t VALUES (4, 'undone')", "ROLLBACK TO SAVEPOINT s", "COMMIT",
			"UPDATE t SET id = 5 WHERE id = 3",
			"TRUNCATE TABLE t")
		h := r.stream(from)
		r.want(h, "INSERT t new [1] [a]", "INSERT t new [2] NULL",
			"UPDATE t old [1] [a] new [1] [b]", "DELETE t old [2] NULL", "INSERT other new [7]",
			"INSERT t new [3] [kept]", "UPDATE t old [3] [kept] new [5] [kept]", "TRUNCATE t")
		byTx := map[int]int{}
		for _, e := range h.events {
			byTx[e.tx]++
		}
		if len(byTx) != 5 {
			t.Errorf("changes of %d transactions: %v", len(byTx), byTx)
		}
		if h.end != r.head() {
			t.Errorf("ends at %s, the log at %s", h.end, r.head())
		}
	})
}
