package mysql

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"tailrace/internal/change"
)

// Text alone, as in dialect.go: the statements about what is kept, q, and its target, t.
//
//	k0, ..  the key; ks the version's start (sequenced history)
//	was     there was such a row
//	c0, ..  the row's other columns; s, e its start and end (history)
//
// Of a target without a key: n, the order; came, 1 for a row that came, -1 for one that
// went, 0 for one that is no change; c0, ... Of what is remembered: key, seq, place (a hash
// of at, which is too long for an index), was, and the record.

// createSQL makes the table; what is TABLE, perhaps with IF NOT EXISTS.
func (k *held) createSQL(what string) string {
	var lines []string
	for i, c := range k.layout.Keys {
		lines = append(lines, fmt.Sprintf("k%d %s NOT NULL", i, c.Type))
	}
	switch k.holds {
	case heldRecords:
		lines = []string{"`key` varbinary(1500) NOT NULL", "seq varbinary(1000) NOT NULL", "place binary(32) NOT NULL", "was tinyint NOT NULL",
			"at longblob NOT NULL", "body longblob", "tombstone tinyint(1)", "time bigint"}
	case heldRows:
		lines = []string{"n bigint NOT NULL AUTO_INCREMENT PRIMARY KEY", "came tinyint NOT NULL DEFAULT 1"}
	case heldVersion:
		lines = append(lines, "ks "+k.layout.Start+" NOT NULL", "was tinyint NOT NULL", "e "+k.layout.Start+" NULL")
	case heldNewest:
		lines = append(lines, "was tinyint NOT NULL", "s "+k.layout.Start+" NULL", "e "+k.layout.Start+" NULL")
	default:
		lines = append(lines, "was tinyint NOT NULL")
	}
	for i, c := range k.layout.Columns {
		lines = append(lines, fmt.Sprintf("c%d %s NULL", i, c.Type))
	}
	if k.holds != heldRows {
		lines = append(lines, "PRIMARY KEY ("+k.identity("")+")")
	}
	return fmt.Sprintf("CREATE %s %s (\n  %s\n) ENGINE = InnoDB", what, k.table(), strings.Join(lines, ",\n  "))
}

// identity is the columns that say of what something is kept.
func (k *held) identity(alias string) string {
	if k.holds == heldRecords {
		return alias + "`key`, " + alias + "seq, " + alias + "place"
	}
	var names []string
	for i := range k.layout.Keys {
		names = append(names, alias+"k"+strconv.Itoa(i))
	}
	if k.holds == heldVersion {
		names = append(names, alias+"ks")
	}
	return strings.Join(names, ", ")
}

// anew is how a statement goes on that keeps what may be kept already.
func (k *held) anew() string {
	return fmt.Sprintf(" ON DUPLICATE KEY UPDATE %s.was = %[1]s.was", k.table())
}

// keptKeys joins what f makes of the key's columns in the target's order, with versions
// also of the start.
func (sh *shape) keptKeys(k *held, sep string, f func(n int, kept, own string) string) string {
	var parts []string
	for n, i := range sh.keys {
		parts = append(parts, f(n, k.key(&sh.columns[i]), sh.columns[i].name))
	}
	if k.holds == heldVersion {
		parts = append(parts, f(len(sh.keys), "ks", startColumn))
	}
	return strings.Join(parts, sep)
}

// keptRow joins what f makes of the row's other columns: those that are kept, and of a
// history start and end.
func (sh *shape) keptRow(k *held, f func(kept, own string) string) string {
	var parts []string
	switch k.holds {
	case heldNewest:
		parts = append(parts, f("s", startColumn), f("e", endColumn))
	case heldVersion:
		parts = append(parts, f("e", endColumn))
	}
	for i := range sh.columns {
		c := &sh.columns[i]
		if name := k.column(c); name != "" && !c.generated {
			parts = append(parts, f(name, c.name))
		}
	}
	return strings.Join(parts, ", ")
}

// keptColumns are the names in what is kept, and what the target has under them.
func (sh *shape) keptColumns(k *held) (names, own string) {
	names = sh.keptKeys(k, ", ", func(_ int, kept, _ string) string { return kept }) + ", was" + joined(sh.keptRow(k, func(n, _ string) string { return n }))
	own = joined(sh.keptRow(k, func(_, own string) string { return "t." + own }))
	return names, own
}

// joined is a list as the continuation of another.
func joined(list string) string {
	if list == "" {
		return ""
	}
	return ", " + list
}

// keepSQL begins and ends a statement that keeps the rows of keys (of versions) that are
// there; between them comes their list.
func (sh *shape) keepSQL(k *held) (head, tail string) {
	names, own := sh.keptColumns(k)
	head = fmt.Sprintf("INSERT INTO %s (%s) SELECT %s, 1%s FROM %s AS t FORCE INDEX (%s) WHERE %s IN (", k.table(), names,
		sh.keptKeys(k, ", ", func(_ int, _, own string) string { return "t." + own }), own, sh.name, sh.index, sh.keyTuple("t.", k.holds == heldVersion))
	return head, ")" + k.anew()
}

// keepNoneSQL begins and ends a statement that keeps of keys that there is nothing, where
// nothing is kept yet.
func (sh *shape) keepNoneSQL(k *held) (head, tail string) {
	return fmt.Sprintf("INSERT INTO %s (%s, was) VALUES ", k.table(), sh.keptKeys(k, ", ", func(_ int, kept, _ string) string { return kept })), k.anew()
}

// keepNewestSQL is keepSQL and keepNoneSQL for newest versions.
func (sh *shape) keepNewestSQL(k *held) (head, tail string) {
	names, own := sh.keptColumns(k)
	head = fmt.Sprintf("INSERT INTO %s (%s) SELECT %s, t.%s IS NOT NULL%s FROM (", k.table(), names,
		sh.keptKeys(k, ", ", func(n int, _, _ string) string { return "q.k" + strconv.Itoa(n) }), startColumn, own)
	return head, fmt.Sprintf(") AS q LEFT JOIN %s AS t FORCE INDEX (%s) ON %s%s", sh.name, sh.index, sh.onNewest(), k.anew())
}

// keepAllSQL keeps what a truncate touches: all rows, of an ordered history its open
// versions.
func (sh *shape) keepAllSQL(k *held) string {
	if k.holds == heldRows {
		return fmt.Sprintf("INSERT INTO %s (came%s) SELECT -1%s FROM %s AS t", k.table(), joined(sh.keptRow(k, func(kept, _ string) string { return kept })),
			joined(sh.keptRow(k, func(_, own string) string { return "t." + own })), sh.name)
	}
	names, own := sh.keptColumns(k)
	open := ""
	if k.holds == heldNewest {
		open = " WHERE t." + endColumn + " IS NULL"
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s, 1%s FROM %s AS t%s%s", k.table(), names,
		sh.keptKeys(k, ", ", func(_ int, _, own string) string { return "t." + own }), own, sh.name, open, k.anew())
}

// keptFields are the fields of a row's line in LOAD DATA: those that are not kept go into
// a variable.
func (sh *shape) keptFields(k *held) string {
	return sh.list(all, func(c *column) string {
		if name := k.column(c); name != "" {
			return name
		}
		return "@tailrace"
	})
}

const heldRecord = "`key`, seq, place, at, was, body, tombstone, time"

// keepRecordsSQL begins and ends a statement that keeps records by their identities, which
// come between: k, s and a.
func (sh *shape) keepRecordsSQL(k *held) (head, tail string) {
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT q.k, q.s, UNHEX(SHA2(q.a, 256)), q.a, r.body IS NOT NULL, r.body, r.tombstone, r.time FROM (", k.table(), heldRecord),
		fmt.Sprintf(") AS q LEFT JOIN %s AS r FORCE INDEX (identity) ON r.`key` = q.k AND r.seq = q.s AND r.at = q.a%s", sh.records, k.anew())
}

// keepRecordsWhereSQL keeps the records of a condition.
func (sh *shape) keepRecordsWhereSQL(k *held, where string) string {
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT `key`, seq, UNHEX(SHA2(at, 256)), at, 1, body, tombstone, time FROM %s WHERE %s%s", k.table(), heldRecord, sh.records, where, k.anew())
}

// What was restored from an earlier table must not be restored from a later one: its
// identities are put down in a temporary table.

func (k *held) createDoneSQL(done string) string {
	lines := []string{"`key` varbinary(1500) NOT NULL", "seq varbinary(1000) NOT NULL", "place binary(32) NOT NULL"}
	if k.holds != heldRecords {
		lines = nil
		for i, c := range k.layout.Keys {
			lines = append(lines, fmt.Sprintf("k%d %s NOT NULL", i, c.Type))
		}
		if k.holds == heldVersion {
			lines = append(lines, "ks "+k.layout.Start+" NOT NULL")
		}
	}
	return fmt.Sprintf("CREATE TEMPORARY TABLE %s (%s, PRIMARY KEY (%s)) ENGINE = InnoDB", done, strings.Join(lines, ", "), k.identity(""))
}

// addDoneSQL puts down what k holds; names are those of the table with which done was made.
func (k *held) addDoneSQL(done string, names *held) string {
	first, _, _ := strings.Cut(names.identity(""), ", ")
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s AS q ON DUPLICATE KEY UPDATE %[1]s.%[5]s = %[1]s.%[5]s", done, names.identity(""), k.identityAs(names, "q."), k.table(), first)
}

// identityAs is the identity in the order of another table's.
func (k *held) identityAs(other *held, alias string) string {
	if k.holds == heldRecords {
		return k.identity(alias)
	}
	var names []string
	for _, c := range other.layout.Keys {
		names = append(names, alias+find(k.layout.Keys, "k", &column{plain: c.Name}))
	}
	if k.holds == heldVersion {
		names = append(names, alias+"ks")
	}
	return strings.Join(names, ", ")
}

// rest is what is kept, q, without what done holds, and the condition for that. names is
// the table with which done was made, nil: there is none.
func (k *held) rest(done string, names *held) (from, where string) {
	from = k.table() + " AS q"
	if names == nil {
		return from, ""
	}
	theirs := strings.Split(names.identity("d."), ", ")
	var on []string
	for i, mine := range strings.Split(k.identityAs(names, "q."), ", ") {
		on = append(on, theirs[i]+" = "+mine)
	}
	return fmt.Sprintf("%s LEFT JOIN %s AS d ON %s", from, done, strings.Join(on, " AND ")), theirs[0] + " IS NULL"
}

// and joins conditions, of which some may be empty.
func and(conditions ...string) string {
	var parts []string
	for _, c := range conditions {
		if c != "" {
			parts = append(parts, c)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(parts, " AND ")
}

// onKept is the condition that t and q have one key (of versions also one start).
func (sh *shape) onKept(k *held) string {
	return sh.keptKeys(k, " AND ", func(_ int, kept, own string) string { return "t." + own + " = q." + kept })
}

// removeSQL removes what was not there then: with whole all that is touched, so that rows
// which exchange the values of further unique indexes can be written.
func (sh *shape) removeSQL(k *held, done string, names *held, whole bool) string {
	from, rest := k.rest(done, names)
	was := "q.was = 0"
	switch {
	case k.holds == heldNewest && whole:
		was = "(q.was = 0 OR t." + startColumn + " >= q.s)"
	case k.holds == heldNewest:
		was = "(q.was = 0 OR t." + startColumn + " > q.s)"
	case whole:
		was = ""
	}
	return fmt.Sprintf("DELETE t FROM %s STRAIGHT_JOIN %s AS t FORCE INDEX (%s) ON %s%s", from, sh.name, sh.index, sh.onKept(k), and(was, rest))
}

// restoreSQL writes what was there. A column that is not kept gets its default.
func (sh *shape) restoreSQL(k *held, done string, names *held) string {
	from, rest := k.rest(done, names)
	var set []string
	for i := range sh.columns {
		c := &sh.columns[i]
		switch {
		case c.key || c.generated:
		case k.column(c) == "":
			set = append(set, fmt.Sprintf("%s = DEFAULT(%s.%[1]s)", c.name, sh.name))
		default:
			set = append(set, sent(c))
		}
	}
	if k.holds != heldRow {
		set = append(set, sent(&sh.end))
	}
	if len(set) == 0 {
		set = append(set, sent(&sh.columns[sh.keys[0]]))
	}
	return fmt.Sprintf("INSERT INTO %s (%s%s) SELECT %s%s FROM %s%s ON DUPLICATE KEY UPDATE %s", sh.name,
		sh.keptKeys(k, ", ", func(_ int, _, own string) string { return own }), joined(sh.keptRow(k, func(_, own string) string { return own })),
		sh.keptKeys(k, ", ", func(_ int, kept, _ string) string { return "q." + kept }), joined(sh.keptRow(k, func(kept, _ string) string { return "q." + kept })),
		from, and("q.was = 1", rest), strings.Join(set, ", "))
}

// removeRecordsSQL and restoreRecordsSQL do the same to what is remembered.
func (sh *shape) removeRecordsSQL(k *held, done string, names *held) string {
	from, rest := k.rest(done, names)
	return fmt.Sprintf("DELETE r FROM %s STRAIGHT_JOIN %s AS r FORCE INDEX (identity) ON r.`key` = q.`key` AND r.seq = q.seq AND r.at = q.at%s", from, sh.records, and(rest))
}

func (sh *shape) restoreRecordsSQL(k *held, done string, names *held) string {
	from, rest := k.rest(done, names)
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT q.`key`, q.seq, q.at, q.body, q.tombstone, q.time FROM %s%s", sh.records, recordColumns, from, and("q.was = 1", rest))
}

// noteKeptSQL notes for the feed what a restore from k may change: see changefeed.go. Of
// an ordered history it notes versions.
func (sh *shape) noteKeptSQL(k *held, notes string) string {
	if k.holds != heldNewest {
		head, tail := sh.noteSQL(notes)
		keys := sh.keptKeys(k, ", ", func(n int, kept, _ string) string {
			if kept == "ks" {
				return "ks"
			}
			return kept + " AS k" + strconv.Itoa(n)
		})
		return head + "SELECT " + keys + " FROM " + k.table() + tail
	}
	return fmt.Sprintf("INSERT INTO %s (%s, was, %s) SELECT %s, 1, %s FROM %s AS q STRAIGHT_JOIN %s AS t FORCE INDEX (%s) ON %s AND (q.was = 0 OR t.%s >= q.s) ON DUPLICATE KEY UPDATE %[1]s.was = %[1]s.was", notes,
		sh.noteKeys(", ", func(note, _ string) string { return note }), sh.noteNames(), sh.noteKeys(", ", func(_, own string) string { return "t." + own }), sh.ownImage(),
		k.table(), sh.name, sh.index, sh.onKept(k), startColumn)
}

// Rows without a key are told apart by a hash of what is stored, and counted: net holds,
// of each kind of row, how many more have come than gone.

// rowHash is the hash of a row of which value gives the columns; "" where it has none.
func (sh *shape) rowHash(value func(c *column) string) string {
	parts := sh.list(all, func(c *column) string {
		v := value(c)
		if v == "" {
			return "'-'"
		}
		if c.typ.store == asFloat { // as text it has six digits
			v = "(" + v + " * 1E0)"
		}
		return "COALESCE(SHA2(" + v + ", 256), '-')"
	})
	return "UNHEX(SHA2(CONCAT(" + parts + "), 256))"
}

func (sh *shape) keptHash(k *held, alias string) string {
	return sh.rowHash(func(c *column) string {
		if name := k.column(c); name != "" {
			return alias + name
		}
		return ""
	})
}

const (
	netTable     = "_tailrace.tailrace_net"
	surplusTable = "_tailrace.tailrace_surplus"
	createNetSQL = "CREATE TEMPORARY TABLE " + netTable + " (h binary(32) NOT NULL PRIMARY KEY, n bigint NOT NULL) ENGINE = InnoDB"
)

func (sh *shape) addNetSQL(k *held) string {
	return fmt.Sprintf("INSERT INTO %s (h, n) SELECT q.h, SUM(q.came) FROM (SELECT %s AS h, came FROM %s WHERE came <> 0) AS q GROUP BY q.h ON DUPLICATE KEY UPDATE %[1]s.n = %[1]s.n + VALUES(n)",
		netTable, sh.keptHash(k, ""), k.table())
}

// alike are the target's rows that are to go, numbered among those that are equal: c0, ..,
// number, and n, how many of them go.
func (sh *shape) alike() string {
	i := -1
	list := sh.list(all, func(c *column) string { i++; return "t." + c.name + " AS c" + strconv.Itoa(i) })
	return fmt.Sprintf("(SELECT %s, d.n AS n, ROW_NUMBER() OVER (PARTITION BY d.h ORDER BY d.h) AS number FROM %s AS t STRAIGHT_JOIN %s AS d ON d.h = %s WHERE d.n > 0) AS x",
		list, sh.name, netTable, sh.rowHash(func(c *column) string { return "t." + c.name }))
}

// back are the rows that come back, in the same form; n is how many do, below zero.
func (sh *shape) back(tables []*held) string {
	var parts []string
	for _, k := range tables {
		i := -1
		list := sh.list(all, func(c *column) string {
			i++
			if name := k.column(c); name != "" {
				return name + " AS c" + strconv.Itoa(i)
			}
			return "NULL AS c" + strconv.Itoa(i)
		})
		parts = append(parts, fmt.Sprintf("SELECT %s, %s AS h FROM %s WHERE came < 0", list, sh.keptHash(k, ""), k.table()))
	}
	return fmt.Sprintf("(SELECT w.*, d.n AS n, ROW_NUMBER() OVER (PARTITION BY w.h ORDER BY w.h) AS number FROM (%s) AS w STRAIGHT_JOIN %s AS d ON d.h = w.h WHERE d.n < 0) AS x", strings.Join(parts, " UNION ALL "), netTable)
}

// numbered are c0, c1, ... of as many columns as are written.
func (sh *shape) numbered(alias string) string {
	i := -1
	return sh.list(all, func(*column) string { i++; return alias + "c" + strconv.Itoa(i) })
}

func (sh *shape) createSurplusSQL() string {
	i := -1
	return "CREATE TEMPORARY TABLE " + surplusTable + " (" + sh.list(all, func(c *column) string { i++; return "c" + strconv.Itoa(i) + " " + c.definition() + " NULL" }) + ") ENGINE = InnoDB"
}

// fedNumbered is a row in that form as the image of a feed: what the destination computes
// is not known of it.
func (sh *shape) fedNumbered() string {
	i := -1
	return sh.fed(func(_ int, c *column) string {
		if c.generated {
			return "NULL"
		}
		i++
		return "x.c" + strconv.Itoa(i)
	})
}

// intoFeedFrom writes rows in that form into the feed.
func (sh *shape) intoFeedFrom(kind string, at change.Position, from string) string {
	return sh.intoFeed("'"+kind+"'", sh.fedNumbered(), at, time.Time{}) + " FROM " + from
}

// lacks reports whether a target has no column of that name that is written.
func (sh *shape) lacks(c *column) bool {
	for i := range sh.columns {
		if strings.EqualFold(sh.columns[i].plain, c.plain) {
			return sh.columns[i].generated
		}
	}
	return true
}
