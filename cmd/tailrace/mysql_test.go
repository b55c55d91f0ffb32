package main

import (
	"strings"
	"testing"
)

// A MariaDB or MySQL source through its ordinary days: columns come, keys move, a table
// is emptied, another one is dropped, and the commands tell what they see.
func TestMySQLSourceIsFollowed(t *testing.T) {
	overKinds(t, func(t *testing.T, kind string) {
		r := newMyRig(t, kind, "flows:\n  - source: DB.*\n  - {source: DB.accounts, target: history, stored_as_scd_type: 2}",
			"CREATE TABLE accounts (id int PRIMARY KEY, name varchar(40), balance decimal(12,2) NOT NULL)", "INSERT INTO accounts VALUES (1, 'né', 100), (2, NULL, 0.5), (3, '', -7)",
			"CREATE TABLE moves (id bigint AUTO_INCREMENT PRIMARY KEY, account int, amount decimal(12,2))", "INSERT INTO moves (account, amount) VALUES (1, 1), (2, 2)")
		r.once(t)
		r.exec(t, "ALTER TABLE accounts ADD COLUMN more int", "UPDATE accounts SET more = id WHERE id = 1", "UPDATE accounts SET id = id + 1000 WHERE id > 1", "TRUNCATE moves", "INSERT INTO moves (account, amount) VALUES (1, 1)")
		r.once(t)
		contains(t, r.must(t, "verify"), "\n0 differences of 7 rows")
		contains(t, r.must(t, "status", "--check"), "log reaches from")
		contains(t, r.must(t, "plan"), "its log is only read")

		// A table that is dropped is parked, by the log; the others go on.
		r.exec(t, "DROP TABLE moves", "UPDATE accounts SET balance = 7 WHERE id = 1")
		contains(t, r.onceParked(t), "moves")
		r.refused(t, 1, []string{"parked"}, "status", "--check")
		if out := r.must(t, "verify", "--table", "accounts"); !strings.Contains(out, "0 differences of 3 rows") {
			t.Errorf("verify:\n%s", out)
		}
	})
}
